//! Packs: the precompiled kernels for an architecture in one compressed file, for packages that have thousands.
//!
//! ```text
//! magic, number of entries N                                              16 bytes
//! N × (hash of the inputs, block's place and packed length, place in the
//!      unpacked block, length)                                            40 bytes each, in the order of the hashes
//! blocks of machine code, each packed with zlib
//! ```
//!
//! A block has the code of a few kernels with similar names, which have much in common.
//!
//! The hash is the one that names an entry's file in a folder ([`EntryKey`]). An entry does not repeat its source, as a file does:
//! of a hundred thousand kernels, two have the same 128 bits once in 10²⁸ packs. zlib's checksum finds a damaged entry, which
//! counts as missing. A pack is trusted under the same conditions as a folder.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use thalweg_lock::Mutex;

use crate::disk_cache::{self, EntryKey};

const MAGIC: &[u8; 8] = b"thalwegk";
const ROW: usize = 40;

/// The bytes of machine code from which a block is complete: one kernel is unpacked in less than a millisecond.
const BLOCK: usize = 128 << 10;

/// The most bytes of an index: a damaged number of entries does not make room for itself.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// A pack that is open: the index in memory, the code in the file.
struct Pack {
    file: File,
    index: Vec<u8>,
}

/// Returns the file of an architecture's pack in a folder.
pub(crate) fn path(folder: &Path, architecture: &str) -> PathBuf {
    folder.join(format!("{architecture}.kernels"))
}

/// Writes entries of a folder of precompiled kernels, which are all for this architecture, as a pack into another folder. Returns
/// the pack's file.
///
/// # Errors
/// Returns an error if an entry cannot be read, or the pack cannot be written.
pub fn pack(entries: &[PathBuf], architecture: &str, folder: &Path) -> io::Result<PathBuf> {
    let mut rows = Vec::with_capacity(entries.len());
    let (mut blocks, mut open) = (Vec::new(), Vec::new());
    let head = 16 + ROW * entries.len();
    let close = |rows: &mut Vec<(u128, [u64; 2], [u32; 2])>, open: &mut Vec<u8>, blocks: &mut Vec<u8>| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(open)?;
        let packed = encoder.finish()?;
        let block = [(head + blocks.len()) as u64, packed.len() as u64];
        rows.iter_mut().filter(|row| row.1 == [0; 2]).for_each(|row| row.1 = block);
        blocks.extend_from_slice(&packed);
        open.clear();
        io::Result::Ok(())
    };
    for entry in entries {
        let (hash, image) = disk_cache::entry_of(entry)?;
        rows.push((hash, [0; 2], [open.len() as u32, image.len() as u32]));
        open.extend_from_slice(&image);
        if open.len() >= BLOCK {
            close(&mut rows, &mut open, &mut blocks)?;
        }
    }
    close(&mut rows, &mut open, &mut blocks)?;
    rows.sort_unstable();
    let mut index = MAGIC.to_vec();
    index.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for (hash, [place, packed], [start, length]) in rows {
        index.extend_from_slice(&hash.to_be_bytes());
        index.extend_from_slice(&place.to_le_bytes());
        index.extend_from_slice(&packed.to_le_bytes());
        index.extend_from_slice(&start.to_le_bytes());
        index.extend_from_slice(&length.to_le_bytes());
    }
    fs::create_dir_all(folder)?;
    let path = path(folder, architecture);
    disk_cache::replace(&path, &[&index, &blocks])?;
    Ok(path)
}

/// Reads the machine code of a kernel from an architecture's pack in a folder. `None` if there is no pack, or no such entry. A
/// pack that cannot be trusted is reported once on standard error.
pub(crate) fn read_or_warn(folder: &Path, key: &EntryKey<'_>) -> Option<Vec<u8>> {
    opened(folder, key)?.read(key.number())
}

/// Returns whether an architecture's pack in a folder has a kernel.
pub(crate) fn has(folder: &Path, key: &EntryKey<'_>) -> bool {
    opened(folder, key).is_some_and(|pack| pack.find(key.number()).is_some())
}

/// Returns the pack of an architecture in a folder, which is opened at the first call.
fn opened(folder: &Path, key: &EntryKey<'_>) -> Option<Arc<Pack>> {
    static PACKS: OnceLock<Mutex<HashMap<PathBuf, Option<Arc<Pack>>>>> = OnceLock::new();
    let path = path(folder, key.architecture);
    let open = || match Pack::open(&path) {
        Ok(pack) => Some(Arc::new(pack)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            disk_cache::warn_once(folder, &error);
            None
        }
    };
    PACKS.get_or_init(Mutex::default).lock().entry(path.clone()).or_insert_with(open).clone()
}

impl Pack {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        disk_cache::refuse_writable_by_others(path, &file.metadata()?)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
        let mut head = [0; 16];
        file.read_exact(&mut head).map_err(|_| damaged())?;
        let (magic, count) = head.split_at(8);
        let count = u64::from_le_bytes(count.try_into().expect("eight bytes"));
        let bytes = count.saturating_mul(ROW as u64);
        if magic != MAGIC || bytes > MOST_INDEX_BYTES {
            return Err(damaged());
        }
        let mut index = vec![0; bytes as usize];
        file.read_exact(&mut index).map_err(|_| damaged())?;
        Ok(Self { file, index })
    }

    fn row(&self, number: usize) -> [u8; ROW] {
        self.index[number * ROW..][..ROW].try_into().expect("a row of the index")
    }

    fn read(&self, hash: u128) -> Option<Vec<u8>> {
        self.unpacked(&self.find(hash)?)
    }

    /// Returns the row of a hash.
    fn find(&self, hash: u128) -> Option<[u8; ROW]> {
        let (mut low, mut high) = (0, self.index.len() / ROW);
        while low < high {
            let middle = low.midpoint(high);
            let row = self.row(middle);
            match u128::from_be_bytes(row[..16].try_into().expect("a hash")).cmp(&hash) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(row),
            }
        }
        None
    }

    fn unpacked(&self, row: &[u8; ROW]) -> Option<Vec<u8>> {
        let long = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")) as usize;
        let (place, packed, start, length) = (long(16), long(24), short(32), short(36));
        if place.checked_add(packed)? > self.file.metadata().ok()?.len() {
            return None;
        }
        let mut code = vec![0; usize::try_from(packed).ok()?];
        self.file.read_exact_at(&mut code, place).ok()?;
        let mut block = Vec::new();
        ZlibDecoder::new(&*code).read_to_end(&mut block).ok()?;
        block.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str) -> EntryKey<'_> {
        EntryKey { source, options: "-o", architecture: "sm_90", compiler: "" }
    }

    #[test]
    fn a_pack_has_each_entry_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("thalweg-pack-{}", std::process::id()));
        let names: Vec<String> = (0..100).map(|number| format!("kernel {number}")).collect();
        // Several blocks.
        let image = |number: usize| vec![number as u8; 100 * number];
        let mut files = Vec::new();
        for (number, name) in names.iter().enumerate() {
            disk_cache::write(&folder.join("files"), &key(name), &image(number)).unwrap();
            files.push(key(name).path(&folder.join("files")));
        }
        let packed = folder.join("packed");
        let path = pack(&files, "sm_90", &packed).unwrap();
        for (number, name) in names.iter().enumerate() {
            assert_eq!(read_or_warn(&packed, &key(name)), Some(image(number)), "{name}");
        }
        assert_eq!(read_or_warn(&packed, &key("another kernel")), None);
        assert_eq!(read_or_warn(&packed, &EntryKey { options: "-p", ..key("kernel 7") }), None);
        assert_eq!(read_or_warn(&packed, &EntryKey { architecture: "sm_80", ..key("kernel 7") }), None);

        // Every cut and every changed byte is an error or a missing entry, and no crash.
        let whole = fs::read(&path).unwrap();
        let mut missing = 0;
        for at in (0..whole.len()).step_by(7) {
            let mut other = whole.clone();
            if at % 2 == 0 {
                other.truncate(at)
            } else {
                other[at] ^= 0x55
            }
            fs::write(&path, other).unwrap();
            let found = Pack::open(&path).ok().and_then(|pack| pack.read(key("kernel 50").number()));
            assert!(found.is_none() || found == Some(image(50)), "byte {at}");
            missing += usize::from(found.is_none());
        }
        assert!(missing > whole.len() / 28, "{missing} of {} changes were found", whole.len());
        fs::remove_dir_all(&folder).unwrap();
    }
}
