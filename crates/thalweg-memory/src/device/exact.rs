//! Memory at an address that the caller names.
//!
//! A tensor whose storage was given up for a while may need it back where it was, since its address is known elsewhere:
//! to views, a captured graph, a peer. [`allocate_at`](DeviceAllocator::allocate_at) takes it out of the free block that it lies
//! in; the parts before and behind it stay free.
//!
//! ```text
//! before   [ live ][              free               ][ live ]
//! after    [ live ][   free   ][ at address ][ free ][ live ]
//! ```
//!
//! The address decides, and sizes do not: the parts stay in the pool of their segment, for small requests or for large ones,
//! however large they are, and `max_split_size` does not keep a block whole. Exactly as much as the rounded size is taken, so
//! that what follows can be had too.
//!
//! What is not here: waiting, and getting memory from the upstream. Either the memory is free and cached, or the call fails.

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::block::Block;
use super::blocks::{BlockId, BlockUse, Span};
use crate::error::{AddressProblem, AllocationError, Kind};
use crate::ids::StreamId;
use crate::policy::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES, Request};

impl DeviceAllocator {
    /// Returns a block of at least `bytes` that begins at `address`, a multiple of 512, where memory is free and cached: on
    /// `stream`, and in the pool that allocations on it go to now. `bytes` of 0 give a null block, whatever the address.
    ///
    /// # Errors
    /// [`address_problem`](AllocationError::address_problem) says what stands against it:
    /// [misaligned](AddressProblem::Misaligned), [occupied](AddressProblem::Occupied) or
    /// [unknown](AddressProblem::Unknown). Nothing has changed then.
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

    /// Returns which arena an address belongs to, in words.
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
    /// It is not all free.
    Occupied(String),
    /// No memory of this arena is there.
    Unknown,
}

impl ArenaState {
    /// Returns the block that an address lies in. Looks at all segments.
    fn block_at(&self, address: u64) -> Option<BlockId> {
        let segment = self
            .blocks
            .segments()
            .find(|segment| address.wrapping_sub(segment.address) < segment.size_bytes)?;
        let lies_in = |block: &BlockId| address < self.blocks.span(*block).end();
        self.blocks.blocks_of(segment).find(lies_in)
    }

    /// Returns what a request at an address comes to. Where no block is ever cut, it is a whole one.
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
            let behind = self.blocks.next(block);
            let behind = behind.map_or("its segment ends there".to_owned(), |next| self.occupant(next));
            return Err(Obstacle::Occupied(format!(
                "only {free_bytes} bytes are free from there on: {behind}"
            )));
        }
        let part = Span { address, size_bytes: request.size_bytes, ..whole };
        let block = self.carve(whole, part);
        Ok(self.hand_out(arena, request, Span { block, ..part }))
    }

    /// Returns what is in the way, in words.
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
