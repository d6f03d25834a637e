//! Allocation at an address that the caller specifies.
//!
//! A tensor whose storage was freed for a while may need it back at the same address, because views, a captured graph or a peer
//! have stored that address. [`allocate_at`](DeviceAllocator::allocate_at) takes the range out of the free block that contains
//! it; the parts before and after it stay free.
//!
//! ```text
//! before   [ live ][              free               ][ live ]
//! after    [ live ][   free   ][ at address ][ free ][ live ]
//! ```
//!
//! The address decides, not the sizes: the parts stay in the pool of their segment, for small requests or for large ones, however
//! large they are, and `max_split_size` does not prevent a split. Exactly the rounded size is taken, so that the range after it
//! can be requested too.
//!
//! Not done here: waiting, and taking memory from the upstream. Either the memory is free and cached, or the call fails.

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::block::Block;
use super::blocks::{BlockId, BlockUse, Span};
use crate::error::{AddressProblem, AllocationError, Kind};
use crate::ids::StreamId;
use crate::policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES, Request};

impl DeviceAllocator {
    /// Returns a block of at least `bytes` that begins at `address`, a multiple of 512, where memory is free and cached: on
    /// `stream`, and in the pool that allocations on it are directed to now. If `bytes` is 0, the result is a null block,
    /// whatever the address.
    ///
    /// # Errors
    /// [`address_problem`](AllocationError::address_problem) returns the reason: [misaligned](AddressProblem::Misaligned),
    /// [occupied](AddressProblem::Occupied) or [unknown](AddressProblem::Unknown). Nothing has changed then.
    pub fn allocate_at(&self, address: u64, bytes: u64, stream: StreamId) -> Result<Block, AllocationError> {
        let arena = self.arena_for(stream)?;
        if bytes == 0 {
            return Ok(Block::null(arena));
        }
        let refused = |problem, reason: String| {
            AllocationError::from(Kind::Address { address, requested_bytes: bytes, problem, reason })
        };
        if !address.is_multiple_of(MIN_BLOCK_BYTES) {
            let reason = format!("the address is not a multiple of {MIN_BLOCK_BYTES}");
            return Err(refused(AddressProblem::Misaligned, reason));
        }
        if bytes > MAX_REQUEST_BYTES {
            let reason = "no block is that large; ask for less".to_owned();
            return Err(refused(AddressProblem::Occupied, reason));
        }
        let stack = self.common().watch.stack_of_allocation()?;
        let taken = {
            let mut state = arena.lock();
            state.process_events(&arena);
            let request = state.request_at(address, bytes);
            request.and_then(|request| {
                let request = Request { stack, exact_address: true, ..request };
                state.take_at(&arena, &request, address)
            })
        };
        match taken {
            Ok(span) => Ok(Block::new(arena, span, bytes, stream)),
            Err(Obstacle::Occupied(reason)) => Err(refused(AddressProblem::Occupied, reason)),
            Err(Obstacle::Unknown) => Err(refused(AddressProblem::Unknown, self.whose(address))),
        }
    }

    /// Returns a description of the arena that an address belongs to.
    fn whose(&self, address: u64) -> String {
        let owner = self.common().all_arenas().into_iter().find_map(|arena| {
            let state = arena.lock();
            let block = state.block_at(address)?;
            Some((arena.key, state.blocks.usage(block) == BlockUse::Unmapped))
        });
        match owner {
            Some((_, true)) => "no memory is mapped there any more; allocate as usual".to_owned(),
            Some((key, false)) => match key.owner.pool() {
                Some(pool) => format!("it belongs to {pool:?} on {:?}; allocate there", key.stream),
                None => format!("it belongs to {:?}, in no private pool; allocate there", key.stream),
            },
            None => {
                "the allocator has no memory there; name an address that it gave out and has kept".to_owned()
            }
        }
    }
}

/// The reason why a range cannot be taken.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// A part of the range is not free.
    Occupied(String),
    /// The arena has no memory there.
    Unknown,
}

impl ArenaState {
    /// Returns the block that contains an address. Searches all segments.
    fn block_at(&self, address: u64) -> Option<BlockId> {
        let segment = self
            .blocks
            .segments()
            .find(|segment| address.wrapping_sub(segment.address) < segment.size_bytes)?;
        let lies_in = |block: &BlockId| address < self.blocks.span(*block).end();
        self.blocks.blocks_of(segment).find(lies_in)
    }

    /// Returns the request for an address. If the pool never splits blocks, the request is for the entire block.
    fn request_at(&self, address: u64, bytes: u64) -> Result<Request, Obstacle> {
        let mut request = self.request(bytes);
        let free =
            self.block_at(address).filter(|block| matches!(self.blocks.usage(*block), BlockUse::Free { .. }));
        if let Some(whole) = free.map(|block| self.blocks.span(block)).filter(|_| self.policy.no_split) {
            let Span { address: start, size_bytes, .. } = whole;
            if start != address {
                let reason = format!("its pool never cuts a block, and the free one begins at {start:#x}");
                return Err(Obstacle::Occupied(reason));
            }
            request.size_bytes = request.size_bytes.max(size_bytes);
        }
        Ok(request)
    }

    /// Hands out `request.size_bytes` from `address` on, if all of that is free.
    pub(crate) fn take_at(
        &mut self,
        arena: &Arena,
        request: &Request,
        address: u64,
    ) -> Result<Span, Obstacle> {
        let block = self.block_at(address).ok_or(Obstacle::Unknown)?;
        let whole = self.blocks.span(block);
        match self.blocks.usage(block) {
            BlockUse::Free { .. } => {}
            BlockUse::Unmapped => return Err(Obstacle::Unknown),
            BlockUse::Taken { .. } => return Err(Obstacle::Occupied(self.occupant(block))),
        }
        if whole.end() - address < request.size_bytes {
            let free_bytes = whole.end() - address;
            let after = self.blocks.next(block);
            let after = after.map_or("its segment ends there".to_owned(), |next| self.occupant(next));
            return Err(Obstacle::Occupied(format!(
                "only {free_bytes} bytes are free from there on: {after}"
            )));
        }
        let part = Span { address, size_bytes: request.size_bytes, ..whole };
        let block = self.carve(whole, part);
        Ok(self.hand_out(arena, request, Span { block, ..part }))
    }

    /// Returns a description of the block that occupies the range.
    fn occupant(&self, block: BlockId) -> String {
        let Span { address, size_bytes, .. } = self.blocks.span(block);
        let what = if self.blocks.usage(block) == BlockUse::Unmapped {
            "no memory is mapped"
        } else if self.pending.iter().any(|pending| pending == block) {
            "a block that was freed waits for work on other streams"
        } else {
            "a block is allocated"
        };
        format!("{what} at {address:#x} ({size_bytes} bytes)")
    }
}
