//! Device memory by address, for callers that can hold nothing but a pointer: PyTorch's `caching_allocator_alloc`,
//! `caching_allocator_delete` and `record_stream` of a pointer, C libraries, pluggable allocators of others.
//!
//! A raw block is a [`Block`] that a [`Registry`](super::registry) holds in the caller's stead, so that it is served, shared
//! between streams and counted as any other. A Rust caller holds the block and never comes here, and pays nothing for it.
//!
//! # Lifetime
//!
//! Raw blocks keep the memory that they are in, but not the [`DeviceAllocator`]: a C caller's memory stays valid when that
//! is dropped, though nobody can free it any more. So free raw blocks before the allocator goes.
//!
//! A raw block whose pool was put back to a checkpoint ([`restore_pool`](DeviceAllocator::restore_pool)) is gone with it:
//! its address is unknown here from then on, until it is handed out again.
//!
//! What is not here: negative sizes. A caller from C checks them before they become a `u64`.

use super::allocator::{Block, DeviceAllocator};
use super::registry::{Located, RawBlock, unknown};
use crate::error::AllocationError;
use crate::upstream::StreamId;

impl Located for Block {
    fn address(&self) -> u64 {
        self.address()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }
}

/// What a raw block is a part of (`getBaseAllocation`): a segment, as the upstream gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BaseAllocation {
    /// Where the segment begins.
    pub address: u64,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// The stream that the block was allocated on.
    pub stream: StreamId,
    /// Whether pages come and go in it one by one. Then it is a range of addresses that may be much larger than the memory
    /// in it, and cannot be handed to another process as one piece.
    pub is_expandable: bool,
}

impl DeviceAllocator {
    /// As [`allocate`](Self::allocate), for a caller who can hold nothing but the address. The block is out until
    /// [`free_raw`](Self::free_raw). `bytes` of 0 give the address 0, which need not be freed. Any stream will do, also one
    /// that this program did not make, as long as the upstream knows it.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_raw(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocationError> {
        Ok(self.register_raw(self.allocate(bytes, stream)?))
    }

    /// Turns a block into a raw one, to be freed by [`free_raw`](Self::free_raw): its address.
    ///
    /// # Panics
    /// If the block belongs to another allocator.
    pub fn register_raw(&self, block: Block) -> u64 {
        let own = std::sync::Arc::ptr_eq(&block.place().0.common, self.common());
        assert!(own, "a block is registered with the allocator that it came from");
        if block.is_null() {
            return 0;
        }
        let address = block.address();
        let former = self.common().raw.insert(block);
        assert!(
            former.is_none_or(|former| former.is_revoked()),
            "two live blocks do not begin at one address"
        );
        address
    }

    /// Frees a raw block, without waiting. The address 0 is ignored.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if no raw block begins there: it was freed before, or
    /// belongs to somebody else.
    pub fn free_raw(&self, address: u64) -> Result<(), AllocationError> {
        if address == 0 {
            return Ok(());
        }
        match self.common().raw.remove(address) {
            Some(_block) => Ok(()),
            None => Err(unknown("the address given to free_raw", address)),
        }
    }

    /// As [`Block::record_stream`], for the raw block that has this address in it.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is none.
    pub fn record_stream_raw(&self, address: u64, stream: StreamId) -> Result<(), AllocationError> {
        let block = self.common().raw.containing(address);
        block
            .ok_or_else(|| unknown("the address given to record_stream_raw", address))?
            .record_stream(stream);
        Ok(())
    }

    /// As [`Block::record_use`], for the raw block that has this address in it.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is none.
    pub fn record_use_raw(&self, address: u64, stream: StreamId) -> Result<(), AllocationError> {
        let block = self.common().raw.containing(address);
        block.ok_or_else(|| unknown("the address given to record_use_raw", address))?.record_use(stream);
        Ok(())
    }

    /// The raw block that has this address in it, if there is one. Blocks that are held as [`Block`]s are not looked at.
    pub fn raw_block_containing(&self, address: u64) -> Option<RawBlock> {
        self.common().raw.containing(address).map(|block| RawBlock {
            address: block.address(),
            size_bytes: block.size_bytes(),
            requested_bytes: block.requested_bytes(),
        })
    }

    /// The segment of the raw block that has this address in it, if there is one.
    pub fn base_allocation(&self, address: u64) -> Option<BaseAllocation> {
        let block = self.common().raw.containing(address)?;
        let segment = block.segment()?;
        let stream = block.stream();
        let is_expandable = segment.tag.grows;
        Some(BaseAllocation {
            address: segment.address,
            size_bytes: segment.size_bytes,
            stream,
            is_expandable,
        })
    }
}
