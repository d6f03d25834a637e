//! Pinned blocks by address, for callers that can hold nothing but a pointer (a C interface).
//!
//! A Rust caller holds the [`HostBlock`] and never comes here. A raw block is a `HostBlock` that a
//! [`Registry`](crate::device::registry) holds in the caller's stead.

use std::sync::Arc;

use super::{HostAllocator, HostBlock};
use crate::device::registry::{Located, RawBlock, unknown};
use crate::error::AllocationError;
use crate::upstream::StreamId;

impl Located for HostBlock {
    fn address(&self) -> u64 {
        self.address()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }
}

impl HostAllocator {
    /// As [`allocate`](Self::allocate), for a caller who can hold nothing but the address. The block is out until
    /// [`free_raw`](Self::free_raw), and keeps the allocator alive. `bytes` of 0 give the address 0, which need not be freed.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_raw(self: &Arc<Self>, bytes: u64) -> Result<u64, AllocationError> {
        Ok(self.register(self.allocate(bytes)?))
    }

    /// As [`allocate_on`](Self::allocate_on), for a caller who can hold nothing but the address.
    ///
    /// # Errors
    /// Those of [`allocate_on`](Self::allocate_on).
    pub fn allocate_raw_on(self: &Arc<Self>, bytes: u64, stream: StreamId) -> Result<u64, AllocationError> {
        Ok(self.register(self.allocate_on(bytes, stream)?))
    }

    fn register(&self, block: HostBlock) -> u64 {
        if block.is_null() {
            return 0;
        }
        let address = block.address();
        let former = self.registry.insert(block);
        assert!(former.is_none(), "two live blocks do not begin at one address");
        address
    }

    /// Frees a raw block, without waiting. The address 0 is ignored.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if no raw block begins there.
    pub fn free_raw(&self, address: u64) -> Result<(), AllocationError> {
        if address == 0 {
            return Ok(());
        }
        match self.registry.remove(address) {
            Some(_block) => Ok(()),
            None => Err(unknown("the address given to free_raw", address)),
        }
    }

    /// As [`HostBlock::record_use`], for the raw block that has this address in it.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is none.
    pub fn record_use_raw(&self, address: u64, stream: StreamId) -> Result<(), AllocationError> {
        let block = self.registry.containing(address);
        block.ok_or_else(|| unknown("the address given to record_use_raw", address))?.record_use(stream);
        Ok(())
    }

    /// As [`HostBlock::record_stream`], for the raw block that has this address in it.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is none.
    pub fn record_stream_raw(&self, address: u64, stream: StreamId) -> Result<(), AllocationError> {
        let block = self.registry.containing(address);
        block
            .ok_or_else(|| unknown("the address given to record_stream_raw", address))?
            .record_stream(stream);
        Ok(())
    }

    /// The raw block that has this address in it, if there is one. Blocks that are held as [`HostBlock`]s are not looked at.
    pub fn block_containing(&self, address: u64) -> Option<RawBlock> {
        self.registry.containing(address).map(|block| RawBlock {
            address: block.address(),
            size_bytes: block.size_bytes(),
            requested_bytes: block.requested_bytes(),
        })
    }
}
