//! Bytes between files and devices, through pinned memory.

use std::io::{Read, Write};
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Event, PinnedBuffer, Result, invalid};
use thalweg_tensor::caller::label_at;
use thalweg_tensor::{Tensor, no_grad};

/// The number of bytes of a piece.
const PIECE: usize = 4 << 20;

/// Converts an error of a file to this library's error.
pub(super) fn file_error(what: &str, error: impl std::fmt::Display) -> Error {
    invalid!("{what}: {error}")
}

/// Two alternating pinned buffers, each with an event after the copy that reads it.
pub(super) struct Upload {
    device: Device,
    buffers: Vec<Option<(PinnedBuffer, Event)>>,
    piece: Vec<u8>,
    turn: usize,
}

impl Upload {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), buffers: Vec::new(), piece: Vec::new(), turn: 0 }
    }

    /// Returns a new tensor from the row-major bytes of a reader. The last copies are asynchronous.
    #[track_caller]
    pub(super) fn tensor(&mut self, shape: &[usize], dtype: DType, reader: &mut dyn Read) -> Result<Tensor> {
        let tensor = Tensor::empty(shape, dtype, &self.device)?;
        let (stream, bytes) = (self.device.current_stream(), tensor.elements() * dtype.size_bytes());
        let label = label_at("load", Location::caller());
        for first in (0..bytes).step_by(PIECE) {
            let count = PIECE.min(bytes - first);
            self.piece.resize(count, 0);
            reader
                .read_exact(&mut self.piece)
                .map_err(|error| file_error("the file ends too early", error))?;
            self.turn = 1 - self.turn;
            if self.buffers.len() <= self.turn {
                self.buffers.resize_with(self.turn + 1, || None);
            }
            let buffer = match self.buffers[self.turn].take() {
                Some((buffer, copied)) => {
                    copied.synchronize()?;
                    buffer
                }
                None => PinnedBuffer::new(&self.device, PIECE as u64)?,
            };
            buffer.write(0, &self.piece[..])?;
            let target = tensor.pointer().offset(first as u64);
            stream.copy_from_pinned(target, &buffer, 0, count as u64, label)?;
            let event = Event::new();
            event.record(&stream)?;
            self.buffers[self.turn] = Some((buffer, event));
        }
        Ok(tensor)
    }
}

/// Writes the bytes of a tensor, row-major. *Blocks.*
#[track_caller]
pub(super) fn download(tensor: &Tensor, writer: &mut dyn Write) -> Result<()> {
    let tensor = no_grad(|| tensor.detach().contiguous())?;
    let (stream, bytes) = (tensor.device().current_stream(), tensor.elements() * tensor.dtype().size_bytes());
    let label = label_at("save", Location::caller());
    if bytes == 0 {
        return Ok(());
    }
    let mut piece = vec![0u8; PIECE.min(bytes)];
    let buffer = PinnedBuffer::new(tensor.device(), piece.len() as u64)?;
    for first in (0..bytes).step_by(PIECE) {
        let count = PIECE.min(bytes - first);
        let source = tensor.pointer().offset(first as u64);
        stream.copy_to_pinned(&buffer, 0, source, count as u64, label)?;
        stream.synchronize()?;
        buffer.read(0, &mut piece[..count])?;
        writer.write_all(&piece[..count]).map_err(|error| file_error("the file cannot be written", error))?;
    }
    Ok(())
}
