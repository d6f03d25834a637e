//! The kind of a file, by its first bytes, for errors about a file of an unexpected kind.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The number of leading bytes that are examined.
const LOOKED_AT: usize = 16;

/// Returns a sentence that names the kind of a file that could not be read, and how to handle it; `None` if the kind is unknown.
pub(super) fn sentence(path: &Path) -> Option<&'static str> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LOOKED_AT as u64).read_to_end(&mut bytes).ok()?;
    of(&bytes)
}

fn of(bytes: &[u8]) -> Option<&'static str> {
    let starts = |start: &[u8]| bytes.starts_with(start);
    Some(match bytes {
        [] => "the file is empty",
        _ if starts(b"PK\x03\x04") => {
            "it begins as a zip file, as those of `torch.save` are: read it by `serialize::load`, and if that fails it is cut short"
        }
        _ if starts(b"GGUF") => "it is a GGUF file, which is not read: convert it to safetensors",
        _ if starts(b"\x93NUMPY") => "it is an array of NumPy: save it as safetensors",
        _ if starts(b"\x89HDF") => "it is an HDF5 file, which is not read: convert it to safetensors",
        _ if starts(b"\x1f\x8b") => "it is compressed by gzip: unpack it first",
        _ if starts(b"version https:/") => {
            "it is a pointer of Git LFS: fetch the file itself (`git lfs pull`)"
        }
        _ if starts(b"<") => "it is a page or XML: the download went wrong",
        [0x80, 2..=5, ..] => {
            "it is a pickle, as those of PyTorch before 1.6 are: load and save it again there"
        }
        [8, _, 0x12, ..] => {
            "it seems to be an ONNX model, which is not read: export the weights as safetensors"
        }
        [_, _, _, _, 0, 0, 0, 0, b'{', ..] => "it is a safetensors file: read it by `serialize::load_file`",
        _ if bytes.len() < 8 => "the file is cut short",
        _ => return None,
    })
}
