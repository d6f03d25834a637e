//! Recognition of files that are mistaken for snapshots, by their first bytes.

const BEGINNINGS: [(&[u8], &str); 12] = [
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "what torch.save wrote in old versions"),
    (b"\x93NUMPY", "an array that numpy.save wrote"),
    (b"version https://git-lfs", "a Git LFS pointer: `git lfs pull` fetches the file itself"),
    (b"\x1f\x8b", "a file that was packed with gzip twice"),
    (b"\x28\xb5\x2f\xfd", "a file that was packed with zstd: unpack it first"),
    (b"\xfd7zXZ", "a file that was packed with xz: unpack it first"),
    (b"BZh", "a file that was packed with bzip2: unpack it first"),
    (b"\x89HDF", "an HDF5 file"),
    (b"%PDF", "a PDF"),
    (b"\x7fELF", "a program or library"),
    (b"Traceback (most recent", "the text of a Python error"),
];

/// Returns the kind of file that begins with these bytes, if it is known and not a snapshot.
pub(super) fn what_else(beginning: &[u8]) -> Option<&'static str> {
    if let Some((_, what)) = BEGINNINGS.iter().find(|(magic, _)| beginning.starts_with(magic)) {
        return Some(what);
    }
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning).trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|text| text.eq_ignore_ascii_case(tag));
    (begins(b"<!doctype") || begins(b"<html")).then_some("an HTML page, as a site shows instead of a file")
}
