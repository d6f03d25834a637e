//! Compiled kernels on disk.
//!
//! There is one file per kernel, named by a hash of its source, the compiler's options and the architecture, and by the compiler,
//! since an older driver may refuse the code of a newer compiler. The file repeats all four and carries a checksum, so that a
//! hash collision, a torn write or a damaged disk counts as a missing entry, which is built again. Files are written under
//! another name and renamed, so several processes can share a folder: each sees a complete entry or none. Folders of precompiled
//! kernels have the same format and are only read; their entries name no compiler.
//!
//! The entries run on the GPU, and no checksum keeps out an attacker. So folders are only accessible to their owner (0700), files
//! are created under unpredictable names, and neither is used if another user owns it or can write it.
//!
//! The folder is kept below [`MOST_BYTES`] by removing the least recently used entries ([`sweep`]).
//!
//! A cache that cannot be used (a full disk, a read-only home, a folder that others can write) costs time, but does not fail the
//! run: the first failure is reported once on standard error, with the folder and the remedy.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use thalweg_driver::effective_user_id;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const MAGIC: &[u8; 8] = b"thalweg2";

/// The approximate size to which the cache's folder may grow: some twenty thousand kernels.
pub const MOST_BYTES: u64 = 256 << 20;

/// The number of writes after which a process sweeps the folder again. A process also sweeps at its first write.
const WRITES_A_SWEEP: u64 = 256;
/// The age at which a file that was never renamed counts as abandoned.
const LEFT_OVER: Duration = Duration::from_secs(60 * 60);
/// The age of an entry's last recorded use from which another use is recorded.
const USES_NOTED: Duration = Duration::from_secs(24 * 60 * 60);

/// The inputs of a compiled kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryKey<'a> {
    /// The CUDA C source.
    pub source: &'a str,
    /// The compiler's options, joined by spaces.
    pub options: &'a str,
    /// The architecture (`sm_90`).
    pub architecture: &'a str,
    /// The compiler with its version (`nvrtc-13.0`), as a part of a file's name; empty for a precompiled kernel.
    pub compiler: &'a str,
}

/// Returns a hash of a text, as 16 hexadecimal digits. It is the same for every version of Rust, because it names files.
pub(crate) fn fingerprint(text: &str) -> String {
    format!("{:016x}", name_hash(FNV_OFFSET, text.as_bytes()))
}

impl EntryKey<'_> {
    fn hash(&self) -> String {
        // A 0 byte separates the parts, none of which contains one.
        let digest = |seed: u64| {
            self.parts()[..3].iter().fold(seed, |hash, part| name_hash(name_hash(hash, part), &[0]))
        };
        format!("{:016x}{:016x}", digest(FNV_OFFSET), digest(!FNV_OFFSET))
    }

    /// Returns the hash as a number.
    pub(crate) fn number(&self) -> u128 {
        u128::from_str_radix(&self.hash(), 16).expect("the hash is 32 hexadecimal digits")
    }

    /// Returns the path of the entry in a folder, which has one sub-folder per architecture.
    pub fn path(&self, folder: &Path) -> PathBuf {
        let hyphen = if self.compiler.is_empty() { "" } else { "-" };
        folder.join(self.architecture).join(format!("{}{hyphen}{}.kernel", self.hash(), self.compiler))
    }

    fn parts(&self) -> [&[u8]; 4] {
        [self.source, self.options, self.architecture, self.compiler].map(str::as_bytes)
    }
}

/// Reads an entry. `None` if there is no complete entry of this key.
///
/// # Errors
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the file or a folder that contains it belongs to another user, or can
/// be written by others.
pub fn read(folder: &Path, key: &EntryKey<'_>) -> io::Result<Option<Vec<u8>>> {
    read_file(folder, &key.path(folder), key, true)
}

/// Returns the hash and the machine code of a precompiled kernel's file.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData) if the file is not a complete entry, and the errors of reading it.
pub(crate) fn entry_of(path: &Path) -> io::Result<(u128, Vec<u8>)> {
    let bytes = fs::read(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let image = || {
        let rest = bytes.strip_prefix(MAGIC.as_slice())?;
        let (checksum, mut rest) = rest.split_at_checked(8)?;
        if checksum != checksum_of(rest).to_le_bytes() {
            return None;
        }
        (0..4).try_for_each(|_| take_part(&mut rest).map(drop))?;
        Some((u128::from_str_radix(&stem, 16).ok()?, take_part(&mut rest)?.to_vec()))
    };
    image().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a compiled kernel", path.display()))
    })
}

/// Reads the entries of the key by any compiler, for a machine without a compiler.
pub fn read_of_any_compiler(folder: &Path, key: &EntryKey<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let hash = key.hash();
    for entry in fs::read_dir(folder.join(key.architecture)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&hash) {
            found.extend(read_file(folder, &entry.path(), key, false)?);
        }
    }
    Ok(found)
}

fn read_file(
    folder: &Path,
    path: &Path,
    key: &EntryKey<'_>,
    of_this_compiler: bool,
) -> io::Result<Option<Vec<u8>>> {
    // Anything that is not a file is not opened: a pipe would wait for a writer.
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let found = file.metadata()?;
    refuse_writable_by_others(path, &found)?;
    check_folders(folder, path)?;
    let mut bytes = Vec::new();
    if !found.is_file() || file.read_to_end(&mut bytes).is_err() {
        return Ok(None);
    }
    let image = parse(&bytes, key, of_this_compiler).map(<[u8]>::to_vec);
    let age = |used: SystemTime| SystemTime::now().duration_since(used).unwrap_or_default();
    if image.is_some() && found.modified().is_ok_and(|used| age(used) > USES_NOTED) {
        // A folder that is only read records no uses.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(image)
}

fn parse<'a>(bytes: &'a [u8], key: &EntryKey<'_>, of_this_compiler: bool) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(MAGIC.as_slice())?;
    let (checksum, mut rest) = rest.split_at_checked(8)?;
    if checksum != checksum_of(rest).to_le_bytes() {
        return None;
    }
    let parts = key.parts();
    for (index, wanted) in parts.into_iter().enumerate() {
        let part = take_part(&mut rest)?;
        let is_free = index + 1 == parts.len() && !of_this_compiler;
        if !is_free && part != wanted {
            return None;
        }
    }
    let image = take_part(&mut rest)?;
    rest.is_empty().then_some(image)
}

/// Writes an entry so that readers see all of it or nothing.
pub fn write(folder: &Path, key: &EntryKey<'_>, image: &[u8]) -> io::Result<()> {
    let path = key.path(folder);
    let parent = path.parent().expect("an entry lies in the folder of its architecture");
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    check_folders(folder, &path)?;
    let mut body = Vec::new();
    for part in key.parts().into_iter().chain([image]) {
        body.extend_from_slice(&(part.len() as u64).to_le_bytes());
        body.extend_from_slice(part);
    }
    replace(&path, &[MAGIC, &checksum_of(&body).to_le_bytes(), &body])
}

/// Replaces a file by these parts; readers see either the old content or the new.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Each `RandomState` is seeded at random, so the name cannot be predicted.
    let random = RandomState::new().hash_one(&*name);
    let temporary = path.with_file_name(format!("{name}.{random:016x}.partial"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        // The remains of a failed write would only occupy the space that is missing.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

/// Writes an entry, and sweeps the folder from time to time; a failure is reported once on standard error and otherwise ignored.
pub(crate) fn write_or_warn(folder: &Path, key: &EntryKey<'_>, image: &[u8]) {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let swept = match write(folder, key, image) {
        Ok(()) if WRITES.fetch_add(1, Ordering::Relaxed).is_multiple_of(WRITES_A_SWEEP) => {
            sweep(folder, MOST_BYTES)
        }
        written => written,
    };
    if let Err(error) = swept {
        warn_once(folder, &error);
    }
}

/// Reads an entry. A folder that cannot be trusted is reported once on standard error, and counts as empty.
pub(crate) fn read_or_warn(folder: &Path, key: &EntryKey<'_>) -> Option<Vec<u8>> {
    read(folder, key).unwrap_or_else(|error| {
        warn_once(folder, &error);
        None
    })
}

pub(crate) fn warn_once(folder: &Path, error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        eprintln!(
            "thalweg: compiled kernels cannot be kept in, or taken from, {}: {error}; they are compiled anew in each \
             process. Make room there, or point THALWEG_CACHE_DIR elsewhere (set to nothing, it keeps none).",
            folder.display()
        );
    });
}

/// Removes files that interrupted writers left; and if the entries exceed `most_bytes`, removes the least recently used ones
/// until the rest takes three quarters of it.
pub fn sweep(folder: &Path, most_bytes: u64) -> io::Result<()> {
    let now = SystemTime::now();
    let mut entries = Vec::new();
    for architecture in fs::read_dir(folder)? {
        for file in fs::read_dir(architecture?.path()).into_iter().flatten().flatten() {
            // Another process may have removed it meanwhile.
            let Ok(data) = file.metadata() else { continue };
            let (path, used) = (file.path(), data.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            match path.extension().and_then(OsStr::to_str) {
                Some("partial") if now.duration_since(used).is_ok_and(|age| age > LEFT_OVER) => {
                    remove(&path)?;
                }
                Some("kernel") => entries.push((used, data.len(), path)),
                _ => {}
            }
        }
    }
    let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
    if total <= most_bytes {
        return Ok(());
    }
    entries.sort();
    for (_, bytes, path) in entries {
        if total <= most_bytes / 4 * 3 {
            break;
        }
        remove(&path)?;
        total -= bytes;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Refuses folders that other users could have written to.
fn check_folders(folder: &Path, path: &Path) -> io::Result<()> {
    for folder in [Some(folder), path.parent()].into_iter().flatten() {
        refuse_writable_by_others(folder, &fs::metadata(folder)?)?;
    }
    Ok(())
}

pub(crate) fn refuse_writable_by_others(path: &Path, found: &Metadata) -> io::Result<()> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let reason = if owner != 0 && owner != effective_user_id() {
        format!(
            "{} belongs to another user (number {owner}), who could put code for the GPU there",
            path.display()
        )
    } else if mode & 0o022 != 0 {
        format!(
            "others may write {} (mode {mode:04o}), and so put code for the GPU there: chmod go-w it",
            path.display()
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let (part, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

/// Returns the FNV-1a hash over 8-byte words: enough to notice damage. <http://www.isthe.com/chongo/tech/comp/fnv/>
fn checksum_of(bytes: &[u8]) -> u64 {
    let hash = bytes.chunks(8).fold(FNV_OFFSET, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(FNV_PRIME)
    });
    hash ^ bytes.len() as u64
}

/// Returns the FNV-1a hash, continuing from `hash`.
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
        let key = EntryKey { source: "source", options: "", architecture: "sm_90", compiler: "" };
        write_or_warn(&folder, &key, b"image");
        assert_eq!(read_or_warn(&folder, &key), None);
        fs::remove_file(&folder).expect("it was written above");
    }
}
