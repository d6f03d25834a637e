//! Blocks by address, for callers that can hold nothing but a pointer (a C interface).
//!
//! A Rust caller holds the [`HostBlock`] and never comes here. A raw block is a `HostBlock` that this registry holds in the
//! caller's stead. The registry is cut into shards by address, so that callers seldom meet. The beginning of a block is found
//! in its own shard; an address further inside, as a view of a tensor has it, may need a look into every shard, one ordered
//! lookup in each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{HostAllocator, HostBlock};
use crate::error::{AllocationError, Kind};
use crate::upstream::StreamId;

const SHARDS: usize = 16;
/// Pinned memory comes in pages, so that lower bits of an address say nothing.
const PAGE_SHIFT: u32 = 12;

type Shard = BTreeMap<u64, Arc<HostBlock>>;

/// Raw blocks by address. See the [module's essay](self).
#[derive(Default, Debug)]
pub(crate) struct Registry([Mutex<Shard>; SHARDS]);

impl Registry {
    fn shard(&self, address: u64) -> MutexGuard<'_, Shard> {
        // The product's upper bits depend on all of the page's number.
        let mixed = (address >> PAGE_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        lock(&self.0[(mixed >> (u64::BITS - SHARDS.ilog2())) as usize])
    }

    fn insert(&self, block: HostBlock) -> u64 {
        let address = block.address();
        let former = self.shard(address).insert(address, Arc::new(block));
        assert!(former.is_none(), "two live blocks do not begin at one address");
        address
    }

    fn remove(&self, address: u64) -> Option<Arc<HostBlock>> {
        self.shard(address).remove(&address)
    }

    fn containing(&self, address: u64) -> Option<Arc<HostBlock>> {
        if let Some(block) = self.shard(address).get(&address) {
            return Some(Arc::clone(block));
        }
        self.0.iter().find_map(|shard| {
            let shard = lock(shard);
            let (&start, block) = shard.range(..=address).next_back()?;
            (address - start < block.size_bytes()).then(|| Arc::clone(block))
        })
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a raw block. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawBlock {
    /// Where it begins.
    pub address: u64,
    /// How much there is.
    pub size_bytes: u64,
    /// How much was asked for.
    pub requested_bytes: u64,
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
        if block.is_null() { 0 } else { self.registry.insert(block) }
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

fn unknown(what: &'static str, address: u64) -> AllocationError {
    let allowed =
        "in a block that allocate_raw returned and free_raw has not freed (at its beginning, to free it)";
    Kind::OutOfRange { what, value: format!("{address:#x}"), allowed }.into()
}
