//! Numbers of a run over its steps, in files that TensorBoard and scripts read (`torch.utils.tensorboard`).
//!
//! ```
//! # use thalweg_nn::summary::SummaryWriter;
//! # fn main() -> thalweg_runtime::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("thalweg-summary-{}", std::process::id()));
//! let mut writer = SummaryWriter::new(&folder)?;
//! for step in 0..100 {
//!     writer.add_scalar("loss", 1.0 / f64::from(step + 1), step.into())?;
//! }
//! writer.flush()?;
//! # std::fs::remove_dir_all(folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! The folder has two files: `events.out.tfevents.…`, which `tensorboard --logdir` finds, and `metrics.jsonl`, one object per
//! line: `{"wall_time":1790000000.5,"step":3,"tag":"loss","value":0.25}`.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};
use serde_json::{Value, json};
use thalweg_runtime::{Error, Result, invalid};

/// The checksum of TensorFlow's record files (CRC-32C).
static CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// A writer of numbers over steps, to TensorBoard's event files and to JSON lines (`torch.utils.tensorboard.SummaryWriter`).
///
/// Added numbers are in the files after [`flush`](Self::flush), and when the writer is dropped. A writer adds to the existing
/// files of a folder, so use separate folders to distinguish runs.
#[derive(Debug)]
pub struct SummaryWriter {
    events: BufWriter<File>,
    lines: BufWriter<File>,
    folder: PathBuf,
}

impl SummaryWriter {
    /// Opens files in a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the folder or the files cannot be created.
    pub fn new(log_dir: impl AsRef<Path>) -> Result<Self> {
        let folder = log_dir.as_ref().to_owned();
        let now = wall_time();
        let open = || {
            create_dir_all(&folder)?;
            static FILES: AtomicU32 = AtomicU32::new(0);
            let number = FILES.fetch_add(1, Ordering::Relaxed);
            let name = format!("events.out.tfevents.{}.thalweg.{}.{number}", now as u64, std::process::id());
            let events = OpenOptions::new().write(true).create_new(true).open(folder.join(name))?;
            let lines = OpenOptions::new().append(true).create(true).open(folder.join("metrics.jsonl"))?;
            Ok((BufWriter::new(events), BufWriter::new(lines)))
        };
        let (events, lines) = open().map_err(|error| failed(&folder, &error))?;
        let mut writer = Self { events, lines, folder };
        let version = bytes_field(3, b"brain.Event:2");
        write_record(&mut writer.events, &[double_field(1, now), version].concat())
            .map_err(|error| failed(&writer.folder, &error))?;
        Ok(writer)
    }

    /// Adds a number of a step under a name; a name with `/` belongs to the group before the slash. TensorBoard keeps 32 bits of
    /// the number.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the files cannot be written.
    pub fn add_scalar(&mut self, tag: &str, value: f64, step: i64) -> Result<()> {
        self.add_scalar_at(tag, value, step, wall_time())
    }

    /// Adds a number with its time, in seconds since 1970.
    pub fn add_scalar_at(&mut self, tag: &str, value: f64, step: i64, wall_time: f64) -> Result<()> {
        // JSON cannot represent numbers that are not finite.
        let number = if value.is_finite() { json!(value) } else { Value::String(value.to_string()) };
        let line = json!({ "wall_time": wall_time, "step": step, "tag": tag, "value": number });
        let event = scalar_event(tag, value as f32, step, wall_time);
        write_record(&mut self.events, &event)
            .and_then(|()| writeln!(self.lines, "{line}"))
            .map_err(|error| failed(&self.folder, &error))
    }

    /// Writes added numbers to the files.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the files cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.events.flush().and_then(|()| self.lines.flush());
        flushed.map_err(|error| failed(&self.folder, &error))
    }
}

fn failed(folder: &Path, error: &std::io::Error) -> Error {
    invalid!("the summary in {} cannot be written: {error}", folder.display())
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Writes a record of TensorFlow's format: length, its masked checksum, the bytes, their masked checksum; all little-endian.
/// <https://www.tensorflow.org/tutorials/load_data/tfrecord>
fn write_record(writer: &mut impl Write, record: &[u8]) -> std::io::Result<()> {
    let masked =
        |bytes: &[u8]| CHECKSUM.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (record.len() as u64).to_le_bytes();
    writer.write_all(&length)?;
    writer.write_all(&masked(&length))?;
    writer.write_all(record)?;
    writer.write_all(&masked(record))
}

/// Returns an `Event` (1: time, 2: step, 5: `Summary`) of one number (1: `Value`, of which 1: tag, 2: simple value), as protocol buffers
/// encode it: fields of 0 are left out.
fn scalar_event(tag: &str, value: f32, step: i64, wall_time: f64) -> Vec<u8> {
    let mut event = double_field(1, wall_time);
    if step != 0 {
        event.push(2 << 3);
        push_varint(&mut event, step as u64);
    }
    let mut number = bytes_field(1, tag.as_bytes());
    // A number in a `oneof` is written even if it is 0.
    number.push(2 << 3 | 5);
    number.extend(value.to_le_bytes());
    event.extend(bytes_field(5, &bytes_field(1, &number)));
    event
}

fn double_field(field: u8, value: f64) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 1];
    bytes.extend(value.to_le_bytes());
    bytes
}

fn bytes_field(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 2];
    push_varint(&mut bytes, content.len() as u64);
    bytes.extend(content);
    bytes
}

/// Appends a number in groups of seven bits, the lowest first.
fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
