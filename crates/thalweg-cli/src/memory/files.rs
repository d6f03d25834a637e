//! Snapshots as files: plain, packed, or from standard input.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thalweg::progress::Progress;
use thalweg::snapshot::Recording;

use crate::output::Failure;

/// The first bytes of every packed file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

const BUFFER_BYTES: usize = 256 << 10;

/// The ratio of unpacked to packed size above which a file is assumed to be malicious, if it also unpacks to more than a number
/// of bytes. gzip reaches a ratio of a thousand for one repeated byte, and about ten for snapshots.
const LARGEST_RATIO: u64 = 256;
const ALWAYS_UNPACKED_BYTES: u64 = 16 << 20;

/// Reads a snapshot. `-` is standard input.
pub fn read(path: &Path) -> Result<Recording, Failure> {
    let complain = |what: &dyn std::fmt::Display| Failure(format!("{}: {what}", path.display()));
    let (reader, bytes): (Box<dyn Read>, u64) = if path == Path::new("-") {
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let file = File::open(path).map_err(|error| complain(&error))?;
        let metadata = file.metadata().map_err(|error| complain(&error))?;
        if metadata.is_dir() {
            return Err(complain(&"it is a folder; give the snapshots in it"));
        }
        (Box::new(file), metadata.len())
    };
    let progress = Progress::transient(format!("reading {}", path.display()), bytes);
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, Counted { reader, done: 0, progress });
    let first = reader.fill_buf().map_err(|error| complain(&error))?;
    if !first.starts_with(&GZIP_MAGIC) {
        return Recording::read(reader).map_err(|error| complain(&error));
    }
    let mut unpacked = Unpacked { decoder: MultiGzDecoder::new(reader), bytes: 0 };
    let recording = Recording::read(&mut unpacked).map_err(|error| complain(&error))?;
    // The checksum and the length are at the end, so damage is only found by reading on.
    std::io::copy(&mut unpacked, &mut std::io::sink())
        .map_err(|error| complain(&format!("the packed file is damaged: {error}")))?;
    Ok(recording)
}

/// Reads the snapshots of several ranks, one by one, each with its path.
pub fn each(
    paths: &[PathBuf],
    mut act: impl FnMut(&str, &Recording) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for path in paths {
        act(&path.to_string_lossy(), &read(path)?)?;
    }
    Ok(())
}

/// A reader that counts the bytes that were read.
struct Counted {
    reader: Box<dyn Read>,
    done: u64,
    progress: Progress,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.done += count as u64;
        self.progress.advance(self.done);
        Ok(count)
    }
}

/// The content of a packed file, as long as that is in proportion to its size.
struct Unpacked {
    decoder: MultiGzDecoder<BufReader<Counted>>,
    bytes: u64,
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        self.bytes += count as u64;
        let packed = self.decoder.get_ref().get_ref().done;
        if self.bytes > ALWAYS_UNPACKED_BYTES && self.bytes / LARGEST_RATIO > packed {
            return Err(std::io::Error::other(format!(
                "{packed} packed bytes hold more than {LARGEST_RATIO} times as many, as no snapshot does"
            )));
        }
        Ok(count)
    }
}
