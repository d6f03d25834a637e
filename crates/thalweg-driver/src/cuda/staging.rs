//! Copies between the device and ordinary host memory.
//!
//! The driver never sees a caller's slice. It might continue to use the slice after the call (if the memory is pinned
//! without our knowledge, or if a capture turns the copy into a node that is replayed), after Rust has freed it or passed
//! it elsewhere. Bytes go through blocks of our own pinned memory: the host copies to or from a block while no work uses
//! it, the copy engine does the rest, and an event shows when the block is free again.
//!
//! Small copies to the device take a small block each and never wait. Large ones use a few large blocks: the host fills one
//! while the engine empties another, and waits if all of them are in flight.

use std::collections::VecDeque;

use thalweg_lock::Mutex;

use super::context::Cuda;
use super::objects::Stream;
use super::objects::pinned::PinnedBlock;
use super::sys::{self, RawEvent};
use crate::{Code, Result};

/// The size, in bytes, up to which copies never wait for the device.
const SMALL_BYTES: u64 = 64 << 10;
pub(super) const LARGE_BYTES: u64 = 4 << 20;
/// The greatest number of large blocks per device.
const LARGE_BLOCKS: usize = 4;

/// A block of pinned memory and the event that completes when its last copy is done.
pub(super) struct Block {
    pub(super) memory: PinnedBlock,
    pub(super) event: RawEvent,
    pub(super) in_flight: bool,
}

/// Blocks of one size.
#[derive(Default)]
struct Shelf {
    /// The blocks that no call uses, the longest unused first.
    blocks: VecDeque<Block>,
    /// The number of existing blocks.
    count: usize,
}

/// The staging memory of one device, kept until the process ends.
#[derive(Default)]
pub(super) struct Staging {
    small: Mutex<Shelf>,
    large: Mutex<Shelf>,
}

impl Staging {
    const fn shelf(&self, bytes: u64) -> &Mutex<Shelf> {
        if bytes <= SMALL_BYTES { &self.small } else { &self.large }
    }

    /// Returns a block that no work uses, for `bytes` or the largest part of it.
    pub(super) fn acquire(&self, cuda: &Cuda, bytes: u64) -> Result<Block> {
        let small = bytes <= SMALL_BYTES;
        let candidate = {
            let mut shelf = self.shelf(bytes).lock();
            match shelf.blocks.front().map(|block| block.is_done(cuda)) {
                Some(Ok(false)) if small || shelf.count < LARGE_BLOCKS => None,
                Some(_) => shelf.blocks.pop_front(),
                None => None,
            }
        };
        if let Some(mut block) = candidate {
            match block.wait(cuda) {
                Ok(()) => {
                    block.in_flight = false;
                    return Ok(block);
                }
                Err(_) => self.abandon(&block),
            }
        }
        let block = Block::new(cuda, if small { SMALL_BYTES } else { LARGE_BYTES })?;
        self.shelf(bytes).lock().count += 1;
        Ok(block)
    }

    pub(super) fn put_back(&self, block: Block) {
        self.shelf(block.memory.bytes()).lock().blocks.push_back(block);
    }

    /// Leaks a block that unknown work may use. (Dropping a block does not free its memory in the driver.)
    pub(super) fn abandon(&self, block: &Block) {
        let mut shelf = self.shelf(block.memory.bytes()).lock();
        shelf.count = shelf.count.saturating_sub(1);
    }
}

impl Block {
    fn new(cuda: &Cuda, bytes: u64) -> Result<Self> {
        let mut event = RawEvent::default();
        // SAFETY: writes one handle.
        let outcome = unsafe { cuda.table.event_create(&raw mut event, sys::EVENT_DISABLE_TIMING) };
        cuda.check(outcome, || "an event for staging memory".to_owned())?;
        Ok(Self { memory: PinnedBlock::allocate(cuda, bytes, false)?, event, in_flight: false })
    }

    fn is_done(&self, cuda: &Cuda) -> Result<bool> {
        if !self.in_flight {
            return Ok(true);
        }
        // SAFETY: the event is this block's own.
        let outcome = unsafe { cuda.table.event_query(self.event) };
        if outcome.status == Code::NotReady.number() {
            return Ok(false);
        }
        cuda.check(outcome, || "staging memory".to_owned()).map(|()| true)
    }

    pub(super) fn wait(&self, cuda: &Cuda) -> Result<()> {
        if !self.in_flight {
            return Ok(());
        }
        // SAFETY: the event is this block's own.
        let outcome = unsafe { cuda.table.event_synchronize(self.event) };
        cuda.check(outcome, || "staging memory".to_owned())
    }

    /// Records the event whose completion frees the block, on the stream.
    pub(super) fn record(&mut self, cuda: &Cuda, stream: &Stream) -> Result<()> {
        // SAFETY: the event is this block's own, the stream is looked up.
        let outcome = unsafe { cuda.table.event_record(self.event, stream.raw) };
        cuda.check(outcome, || "staging memory".to_owned())?;
        self.in_flight = true;
        Ok(())
    }
}
