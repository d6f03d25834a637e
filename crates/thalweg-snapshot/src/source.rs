//! A file, read from its beginning to its end.
//!
//! The readers of snapshots see the file through a window, and know at every moment the present offset. A declared length is
//! never trusted: the window grows as bytes arrive, so that a length beyond the file's end costs no more than the file has.

use std::io::{ErrorKind, Read};

use super::SnapshotError;

/// The number of bytes that are read in one call.
const WINDOW_BYTES: usize = 256 << 10;

/// A file that is being read. See the [module's essay](self).
pub(super) struct Source<R> {
    reader: R,
    window: Vec<u8>,
    /// The beginning of the part of the window that has not been consumed.
    at: usize,
    end: usize,
    /// The offset of the window's first byte.
    base: u64,
    /// The offset at which the present instruction or value begins, for messages.
    start: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, window: vec![0; WINDOW_BYTES], at: 0, end: 0, base: 0, start: 0 }
    }

    /// Returns the number of bytes consumed so far.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Marks the present offset as the one that messages refer to.
    #[inline]
    pub(super) fn mark(&mut self) {
        self.start = self.base + self.at as u64;
    }

    /// Returns an error about the marked offset.
    pub(super) fn error(&self, what: &str) -> SnapshotError {
        SnapshotError::new(format!("offset {}: {what}", self.start))
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, SnapshotError> {
        if self.at == self.end {
            self.need(1)?;
        }
        self.at += 1;
        Ok(self.window[self.at - 1])
    }

    /// Returns the next byte without consuming it; `None` at the end.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, SnapshotError> {
        if self.at == self.end && !self.more()? {
            return Ok(None);
        }
        Ok(Some(self.window[self.at]))
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        if self.end - self.at < N {
            self.need(N)?;
        }
        self.at += N;
        Ok(self.window[self.at - N..self.at].try_into().expect("that many were taken"))
    }

    /// Returns the bytes in the window that have not been consumed, possibly none.
    #[inline]
    pub(super) fn ahead(&self) -> &[u8] {
        &self.window[self.at..self.end]
    }

    /// Consumes bytes that are in the window.
    #[inline]
    pub(super) fn pass(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.at);
        self.at += count;
    }

    #[inline]
    pub(super) fn take(&mut self, count: u64) -> Result<&[u8], SnapshotError> {
        let count = usize::try_from(count).map_err(|_| self.error("has a length beyond all files"))?;
        if self.end - self.at < count {
            self.need(count)?;
        }
        self.at += count;
        Ok(&self.window[self.at - count..self.at])
    }

    pub(super) fn skip(&mut self, mut count: u64) -> Result<(), SnapshotError> {
        while count > 0 {
            let step = count.min(WINDOW_BYTES as u64);
            self.take(step)?;
            count -= step;
        }
        Ok(())
    }

    #[cold]
    fn need(&mut self, count: usize) -> Result<(), SnapshotError> {
        while self.end - self.at < count {
            if !self.more()? {
                let left = self.end - self.at;
                let at = self.offset();
                return Err(self.error(&format!(
                    "the file ends: {count} bytes are needed at offset {at}, {left} are left"
                )));
            }
        }
        Ok(())
    }

    /// Reads more of the file. Returns `false` at its end.
    fn more(&mut self) -> Result<bool, SnapshotError> {
        if self.at > 0 {
            self.window.copy_within(self.at..self.end, 0);
            self.base += self.at as u64;
            self.end -= self.at;
            self.at = 0;
        }
        if self.end == self.window.len() {
            self.window.resize(2 * self.end, 0);
        }
        loop {
            match self.reader.read(&mut self.window[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let at = self.base + self.end as u64;
                    return Err(SnapshotError::new(format!(
                        "the file cannot be read at offset {at}: {error}"
                    )));
                }
            }
        }
    }
}
