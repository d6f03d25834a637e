//! The parts of the state before a trace that the recording leaves open, and how the replay determines them on the way.
//!
//! A block that was live before the trace and is freed in it has a known beginning and a known request. In a plain segment for
//! large requests it may also include a remainder of up to 1 MiB, which was too small to be split off. If more than that is free
//! after it, the part that belongs to the block is not known: the block is laid out without any of it.
//!
//! The free piece after it may then be too large. It may serve a request that it did not serve in the recording; and since the
//! best fit decides, the reason can only be that it was too small. So the block is extended by a *filler* that makes the piece
//! too small, and the request is served again. A mismatch without such a cause remains. A filler is freed with its block.
//!
//! This module and its parent use each other: a [`Replay`] keeps its doubts, which are settled by the requests that it serves.

use std::collections::BTreeMap;

use thalweg_memory::{AllocationError, Block, MIN_BLOCK_BYTES};

use super::Replay;
use super::start::LARGEST_REST_BYTES;

/// Blocks whose size is uncertain, by the end of the known part.
#[derive(Default, Debug)]
pub(super) struct Doubts(BTreeMap<u64, Doubt>);

#[derive(Debug)]
struct Doubt {
    number: u32,
    /// The bytes that the block may have in addition.
    spare_bytes: u64,
    fillers: Vec<Block>,
}

impl Doubts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that a block may be larger than it was laid out.
    pub(super) fn add(&mut self, number: u32, block: &Block) {
        let doubt = Doubt { number, spare_bytes: LARGEST_REST_BYTES, fillers: Vec::new() };
        self.0.insert(block.address() + block.size_bytes(), doubt);
    }

    /// Returns the fillers of a block that is freed.
    pub(super) fn end(&mut self, number: u32, block: &Block) -> Vec<Block> {
        if self.is_empty() {
            return Vec::new();
        }
        let end = block.address() + block.size_bytes();
        let mut near = self.0.range(end..=end + LARGEST_REST_BYTES);
        let found = near.find(|(_, doubt)| doubt.number == number).map(|(&end, _)| end);
        found.and_then(|end| self.0.remove(&end)).map_or_else(Vec::new, |doubt| doubt.fillers)
    }

    /// Adds a filler at the assumed end of a block that is larger.
    fn fill(&mut self, filler: Block) {
        if let Some(mut doubt) = self.0.remove(&filler.address()) {
            let end = filler.address() + filler.size_bytes();
            doubt.spare_bytes -= filler.size_bytes();
            doubt.fillers.push(filler);
            self.0.insert(end, doubt);
        }
    }
}

impl Replay<'_> {
    /// Returns a block that was just handed out for `bytes`; or another, if its place was too small in the recording.
    pub(super) fn reconsidered(
        &mut self,
        mut block: Block,
        bytes: u64,
        recorded_address: u64,
    ) -> Result<Block, AllocationError> {
        while self.upstream.recorded(block.address()) != recorded_address {
            let Some(doubt) = self.doubts.0.get(&block.address()) else { break };
            let Some(owner) = self.blocks.get(&doubt.number) else { break };
            let arena = self.allocator.restore_arena_of(owner);
            let (place, stream) = (block.address(), block.stream());
            // If the free piece had this many bytes less, it would have been too small.
            let (needed_bytes, _) = arena.rounding(bytes);
            let room_bytes = block.size_bytes() + self.allocator.restore_free_after(&block);
            let filler_bytes = room_bytes.saturating_sub(needed_bytes) + MIN_BLOCK_BYTES;
            if filler_bytes > doubt.spare_bytes {
                break;
            }
            drop(block);
            let filler = self.allocator.restore_block(&arena, place, filler_bytes, 0, arena.stream());
            let is_filled = filler.map(|filler| self.doubts.fill(filler)).is_some();
            block = self.allocator.allocate(bytes, stream)?;
            if !is_filled {
                break;
            }
        }
        Ok(block)
    }
}
