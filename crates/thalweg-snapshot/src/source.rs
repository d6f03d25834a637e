//! A file, read from its beginning to its end.
//!
//! What reads a snapshot sees the file through a window of it, and knows at every moment at which offset it stands. A length
//! that the file declares is never believed: the window grows as bytes arrive, so that a length beyond the file's end costs no
//! more than the file has.

use std::io::{ErrorKind, Read};

use super::SnapshotError;

/// The number of bytes that are read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// See the [module](self).
pub(super) struct Source<R> {
    reader: R,
    window: Vec<u8>,
    /// The beginning of the part of the window that is still to be read.
    at: usize,
    end: usize,
    /// The offset of the window's first byte.
    base: u64,
    /// The place where the instruction or value that is being read begins, for messages.
    start: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, window: vec![0; WINDOW_BYTES], at: 0, end: 0, base: 0, start: 0 }
    }

    /// Returns how many bytes were read so far.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Makes messages from now on be about what begins here.
    #[inline]
    pub(super) fn mark(&mut self) {
        self.start = self.base + self.at as u64;
    }

    /// Returns an error about what was marked last.
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

    /// Returns the next byte, which stays to be read; `None` at the end.
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

    /// Returns what is at hand of the bytes to come: some, or none.
    #[inline]
    pub(super) fn ahead(&self) -> &[u8] {
        &self.window[self.at..self.end]
    }

    /// Passes bytes that are at hand.
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

    /// Reads on; false at the end of the file.
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
