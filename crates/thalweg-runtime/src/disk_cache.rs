//! Compiled kernels on disk.
//!
//! One file a kernel, named by a hash of its source, the compiler's options and the architecture. The file repeats all
//! three and carries a checksum, so that a hash collision, a torn write or a damaged disk reads as "not there" and the
//! entry is built again. Files are written under another name and renamed, so several processes can share a folder: each
//! sees a whole entry or none. Folders of precompiled kernels have the same format and are only read.
//!
//! A cache that cannot be written (a full disk, a read-only home) costs time, not the run: the first failure is said once
//! on standard error, with the folder and what to do.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const MAGIC: &[u8; 8] = b"thalweg1";

/// What a compiled kernel depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryKey<'a> {
    /// The CUDA C source.
    pub source: &'a str,
    /// The compiler's options, joined by spaces.
    pub options: &'a str,
    /// The architecture (`sm_90`).
    pub architecture: &'a str,
}

/// A hash of a text, as 16 hexadecimal digits. The same for every version of Rust: it names files.
pub(crate) fn fingerprint(text: &str) -> String {
    format!("{:016x}", name_hash(FNV_OFFSET, text.as_bytes()))
}

impl EntryKey<'_> {
    fn hash(&self) -> String {
        // A 0 byte between the parts, which none of them contains.
        let digest =
            |seed: u64| self.parts().iter().fold(seed, |hash, part| name_hash(name_hash(hash, part), &[0]));
        format!("{:016x}{:016x}", digest(FNV_OFFSET), digest(!FNV_OFFSET))
    }

    /// Where the entry lies in a folder: a sub-folder an architecture.
    pub fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.architecture).join(self.hash()).with_extension("kernel")
    }

    fn parts(&self) -> [&[u8]; 3] {
        [self.source.as_bytes(), self.options.as_bytes(), self.architecture.as_bytes()]
    }
}

/// Reads an entry. `None` if there is none, or none that is whole and of this key.
pub fn read(folder: &Path, key: &EntryKey<'_>) -> Option<Vec<u8>> {
    let bytes = fs::read(key.path(folder)).ok()?;
    let mut rest = bytes.strip_prefix(MAGIC.as_slice())?;
    let (checksum, body) = rest.split_at_checked(8)?;
    if checksum != checksum_of(body).to_le_bytes() {
        return None;
    }
    rest = body;
    for part in key.parts() {
        if take_part(&mut rest)? != part {
            return None;
        }
    }
    let image = take_part(&mut rest)?;
    rest.is_empty().then(|| image.to_vec())
}

/// Writes an entry so that readers see all of it or nothing.
pub fn write(folder: &Path, key: &EntryKey<'_>, image: &[u8]) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let path = key.path(folder);
    let parent = path.parent().expect("an entry lies in the folder of its architecture");
    fs::create_dir_all(parent)?;
    let mut body = Vec::new();
    for part in key.parts().into_iter().chain([image]) {
        body.extend_from_slice(&(part.len() as u64).to_le_bytes());
        body.extend_from_slice(part);
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}.{serial}.partial", std::process::id()));
    let written = fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(MAGIC)?;
        file.write_all(&checksum_of(&body).to_le_bytes())?;
        file.write_all(&body)?;
        file.flush()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, &path));
    if renamed.is_err() {
        // What is left of a failed write would only take the room that is missing.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

/// Writes an entry; a failure is said once on standard error and otherwise ignored.
pub(crate) fn write_or_warn(folder: &Path, key: &EntryKey<'_>, image: &[u8]) {
    static WARNED: Once = Once::new();
    if let Err(error) = write(folder, key, image) {
        WARNED.call_once(|| {
            eprintln!(
                "thalweg: compiled kernels cannot be kept in {}: {error}; they are compiled anew in each process. Make \
                 room there, or point THALWEG_CACHE_DIR elsewhere (set to nothing, it keeps none).",
                folder.display()
            );
        });
    }
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (part, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

/// FNV-1a over 8-byte words: enough to notice damage. <http://www.isthe.com/chongo/tech/comp/fnv/>
fn checksum_of(bytes: &[u8]) -> u64 {
    let hash = bytes.chunks(8).fold(FNV_OFFSET, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(FNV_PRIME)
    });
    hash ^ bytes.len() as u64
}

/// FNV-1a, going on from `hash`.
fn name_hash(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_cannot_be_written_costs_only_time() {
        let folder = std::env::temp_dir().join(format!("thalweg-unwritable-{}", std::process::id()));
        fs::write(&folder, b"a file, where a folder is wanted").expect("the temporary folder is writable");
        let key = EntryKey { source: "source", options: "", architecture: "sm_90" };
        write_or_warn(&folder, &key, b"image");
        assert_eq!(read(&folder, &key), None);
        fs::remove_file(&folder).expect("it was written above");
    }
}
