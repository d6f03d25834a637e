//! Blocks by address, for callers that can hold nothing but a pointer (a C interface).
//!
//! A Rust caller holds the block and never comes here. A *raw* block is one that a [`Registry`] holds in the caller's stead.
//! Both allocators have one: for device memory (`raw`), and for pinned memory ([`pinned`](crate::pinned)).
//!
//! The registry is cut into shards by address, so that callers seldom meet. The beginning of a block is found in its own
//! shard; an address further inside, as a view of a tensor has it, may need a look into every shard, one ordered lookup in
//! each.
//!
//! Invariants:
//!
//! - A block stands in the shard of its first address, under that address.
//! - No block is used or dropped with a shard's lock held: what is found is counted up, and what is removed is handed out.
//!
//! What is not here: which addresses a caller may name, and what becomes of the memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{AllocationError, Kind};
use crate::policy::MIN_BLOCK_BYTES;

/// A power of two. PyTorch has 67, since it takes the remainder of the address itself.
const SHARDS: usize = 64;
/// No two blocks begin closer to each other than the smallest is large, so that lower bits of an address say nothing.
const ADDRESS_SHIFT: u32 = MIN_BLOCK_BYTES.ilog2();

/// What has a place in memory.
pub(crate) trait Located {
    fn address(&self) -> u64;
    fn size_bytes(&self) -> u64;
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

type Shard<B> = BTreeMap<u64, Arc<B>>;

/// Raw blocks by address. See the [module's essay](self).
#[derive(Debug)]
pub(crate) struct Registry<B> {
    shards: [Mutex<Shard<B>>; SHARDS],
}

impl<B> Default for Registry<B> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<B: Located> Registry<B> {
    fn shard(&self, address: u64) -> MutexGuard<'_, Shard<B>> {
        // The product's upper bits depend on all bits of the number.
        let mixed = (address >> ADDRESS_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        lock(&self.shards[(mixed >> (u64::BITS - SHARDS.ilog2())) as usize])
    }

    /// Holds a block; the one that stood at its address before, if any.
    pub(crate) fn insert(&self, block: B) -> Option<Arc<B>> {
        let address = block.address();
        let block = Arc::new(block);
        self.shard(address).insert(address, block)
    }

    /// Lets go of the block that begins at an address.
    pub(crate) fn remove(&self, address: u64) -> Option<Arc<B>> {
        self.shard(address).remove(&address)
    }

    /// Lets go of all blocks that `is_void` holds for.
    pub(crate) fn remove_all(&self, is_void: impl Fn(&B) -> bool) {
        for shard in &self.shards {
            let blocks: Vec<Arc<B>> = lock(shard).values().cloned().collect();
            for block in blocks.into_iter().filter(|block| is_void(block)) {
                let mut shard = lock(shard);
                // Another may stand there by now.
                let address = block.address();
                if shard.get(&address).is_some_and(|other| Arc::ptr_eq(other, &block)) {
                    shard.remove(&address);
                }
            }
        }
    }

    /// The block that has an address in it.
    pub(crate) fn containing(&self, address: u64) -> Option<Arc<B>> {
        if let Some(block) = self.shard(address).get(&address) {
            return Some(Arc::clone(block));
        }
        self.shards.iter().find_map(|shard| {
            let shard = lock(shard);
            let (&start, block) = shard.range(..=address).next_back()?;
            (address - start < block.size_bytes()).then(|| Arc::clone(block))
        })
    }
}

fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error for an address that names no raw block; `what` says who was given it.
pub(crate) fn unknown(what: &'static str, address: u64) -> AllocationError {
    let allowed =
        "in a block that allocate_raw returned and free_raw has not freed (at its beginning, to free it)";
    Kind::OutOfRange { what, value: format!("{address:#x}"), allowed }.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[derive(Debug)]
    struct Range(u64, u64);

    impl Located for Range {
        fn address(&self) -> u64 {
            self.0
        }

        fn size_bytes(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn neighbours_are_spread_over_the_shards() {
        let registry = Registry::default();
        for (count, step) in [(64, 512), (64, 4096), (64, 2 << 20)] {
            (0..count).for_each(|place| drop(registry.insert(Range(0x7000_0000_0000 + place * step, step))));
            let used = registry.shards.iter().filter(|shard| !lock(shard).is_empty()).count();
            assert!(used >= 16, "{used} shards hold {count} blocks at a distance of {step}");
            registry.remove_all(|_| true);
        }
        assert!(registry.shards.iter().all(|shard| lock(shard).is_empty()));
    }

    #[test]
    fn an_address_inside_finds_the_block_around_it_and_none_behind_its_end() {
        let registry = Registry::default();
        let starts: BTreeSet<u64> = (1..200u64).map(|place| place * place * 4096).collect();
        starts.iter().for_each(|start| assert!(registry.insert(Range(*start, 4096)).is_none()));
        for start in &starts {
            for inside in [0, 1, 512, 4095] {
                assert_eq!(registry.containing(start + inside).map(|found| found.0), Some(*start));
            }
            assert!(starts.contains(&(start + 4096)) || registry.containing(start + 4096).is_none());
        }
        registry.remove_all(|range| range.0 > 4096);
        assert!(registry.containing(4 * 4096).is_none() && registry.remove(4096).is_some());
    }
}
