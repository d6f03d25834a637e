//! Reading snapshots from files, and writing them.

use std::io::Read;

use super::build::Builder;
use super::json::JsonWriter;
use super::pickle::PickleWriter;
use super::source::Source;
use super::{Recording, Snapshot, SnapshotError};
use super::{dump, sniff, undump};

impl Recording {
    /// Reads a snapshot: a pickle of protocol 2 to 5, or JSON. The file is read as a stream, in less memory than its size.
    ///
    /// # Errors
    /// If the file cannot be read, is broken, or is not a snapshot. The message contains the offset of the mistake, in bytes.
    pub fn read(reader: impl Read) -> Result<Self, SnapshotError> {
        let mut source = Source::new(reader);
        let mut builder = Builder::new();
        let first = source.peek()?;
        if let Some(other) = sniff::what_else(source.ahead()) {
            return Err(SnapshotError::new(format!(
                "this is {other}, and no memory snapshot; torch.cuda.memory._dump_snapshot writes one"
            )));
        }
        let is_pickle =
            first.is_some_and(|first| !matches!(first, b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n'));
        source.mark();
        let root = if is_pickle {
            super::pickle::run(&mut source, &mut builder)?
        } else {
            super::json_reader::run(&mut source, &mut builder)?
        };
        let bytes = source.offset();
        undump::finish(builder, root, bytes).map_err(|what| source.error(&what))
    }
}

impl Snapshot {
    /// Reads a pickle as PyTorch's `_dump_snapshot` and this crate write it: the complete dictionary, or a plain list of
    /// segments.
    ///
    /// # Errors
    /// If the bytes are not such a file. The message contains the offset, and what was expected there.
    pub fn from_pickle(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Recording::read(bytes).map(|recording| recording.to_snapshot())
    }

    /// Returns a pickle (protocol 4) that `pickle.load`, `torch/cuda/_memory_viz.py` and the web viewer open.
    pub fn to_pickle(&self) -> Vec<u8> {
        let mut writer = PickleWriter::new();
        dump::snapshot(self, &mut writer);
        writer.finish()
    }

    /// Returns the dictionary as JSON, which recent versions of the web viewer open. Infinities and NaN, which JSON lacks, are
    /// written as null.
    pub fn to_json(&self) -> String {
        let mut writer = JsonWriter::default();
        dump::snapshot(self, &mut writer);
        writer.finish()
    }
}
