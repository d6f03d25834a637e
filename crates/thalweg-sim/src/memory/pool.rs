//! The stream-ordered allocator.
//!
//! A pool takes segments from its device and divides them. An allocation has its addresses at once and its memory in stream
//! order. A free is a command without work, and when it is reached the memory is free in the pool again. Until then it can
//! still be touched, as on a GPU.
//!
//! Invariants: a pool's segments consist exactly of its free ranges and its allocations, and its usage matches; a destroyed
//! pool has at least one allocation, and is removed with the last.

use std::collections::BTreeMap;

use thalweg_driver::{Code, PoolAttributes, PoolUsage};

use super::ranges::{FreeRanges, Range};
use crate::executor::command::Frontier;
use crate::memory::{Memory, Segment, SpanAccess, nonzero};
use crate::refusal::{CallResult, Refusal};

/// The unit of sizes of allocations from a pool.
const UNIT_BYTES: u64 = 512;
/// The smallest size of a pool's segment.
const SEGMENT_BYTES: u64 = 2 << 20;

/// All pools of a machine.
#[derive(Default)]
pub(crate) struct Pools {
    pools: BTreeMap<u64, Pool>,
    last: u64,
    allocations: BTreeMap<u64, Allocation>,
}

#[derive(Debug)]
struct Pool {
    device: u32,
    destroyed: bool,
    /// Stored for queries only. Memory of this pool is reused as soon as its free is over, whatever the attributes allow,
    /// and returns to the device when the pool is trimmed.
    attributes: PoolAttributes,
    allocations: usize,
    segments: Vec<PoolSegment>,
    usage: PoolUsage,
}

#[derive(Debug)]
struct PoolSegment {
    segment: Segment,
    free: FreeRanges,
}

struct Allocation {
    pool: u64,
    bytes: u64,
    /// The commands whose completion frees the memory, once the free is queued.
    freeing: Option<Frontier>,
}

impl Pools {
    pub(crate) fn create(&mut self, device: u32) -> u64 {
        self.last += 1;
        let pool = Pool {
            device,
            destroyed: false,
            attributes: PoolAttributes::default(),
            allocations: 0,
            segments: Vec::new(),
            usage: PoolUsage::default(),
        };
        self.pools.insert(self.last, pool);
        self.last
    }

    /// Drops the handle of a pool; the pool is removed when its last allocation is freed.
    pub(crate) fn destroy(&mut self, pool: u64, memory: &mut Memory) {
        self.pool(pool).destroyed = true;
        self.collect(pool, memory);
    }

    pub(crate) fn device(&self, pool: u64) -> u32 {
        self.pools[&pool].device
    }

    pub(crate) fn attributes(&mut self, pool: u64) -> &mut PoolAttributes {
        &mut self.pool(pool).attributes
    }

    pub(crate) fn usage(&mut self, pool: u64) -> &mut PoolUsage {
        &mut self.pool(pool).usage
    }

    /// Gives segments without an allocation back to the device, down to `keep_bytes` in all.
    pub(crate) fn trim(&mut self, pool: u64, keep_bytes: u64, memory: &mut Memory) {
        let Pool { segments, usage, .. } = self.pool(pool);
        let held = &mut usage.reserved_bytes;
        for position in (0..segments.len()).rev() {
            let PoolSegment { segment, free } = &segments[position];
            if free.total() == segment.bytes && *held - segment.bytes >= keep_bytes {
                *held -= segment.bytes;
                memory.condemn(segments.remove(position).segment);
            }
        }
    }

    pub(crate) fn allocate(&mut self, pool: u64, bytes: u64, memory: &mut Memory) -> CallResult<u64> {
        let rounded = nonzero(bytes)?.checked_next_multiple_of(UNIT_BYTES);
        let rounded =
            rounded.ok_or_else(|| Refusal::new(Code::OutOfMemory, format!("{bytes} bytes asked for")))?;
        let entry = self.pool(pool);
        let found = entry
            .segments
            .iter_mut()
            .enumerate()
            .find_map(|(number, segment)| Some((number, segment.free.take(rounded, UNIT_BYTES)?)));
        let (number, address) = match found {
            Some(found) => found,
            None => {
                let segment = memory
                    .segment_create(entry.device, rounded.max(SEGMENT_BYTES))
                    .or_else(|_| memory.segment_create(entry.device, rounded))?;
                let rotates = memory.backing.is_recycled();
                let mut free = FreeRanges::rotating(segment.address, segment.bytes, rotates);
                let address = free.take(rounded, UNIT_BYTES).expect("the segment is large enough");
                entry.usage.reserved_bytes += segment.bytes;
                entry.segments.push(PoolSegment { segment, free });
                (entry.segments.len() - 1, address)
            }
        };
        entry.allocations += 1;
        let usage = &mut entry.usage;
        usage.used_bytes += rounded;
        usage.used_peak_bytes = usage.used_peak_bytes.max(usage.used_bytes);
        usage.reserved_peak_bytes = usage.reserved_peak_bytes.max(usage.reserved_bytes);
        memory.add_spans(&entry.segments[number].segment, address, bytes, SpanAccess::Pool);
        self.allocations.insert(address, Allocation { pool, bytes, freeing: None });
        Ok(address)
    }

    /// Checks that an allocation can be freed.
    pub(crate) fn check_live(&self, address: u64) -> CallResult<()> {
        match self.allocations.get(&address) {
            Some(Allocation { freeing: None, .. }) => Ok(()),
            _ => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not what memory_allocate_async returned, or was freed already"),
            )),
        }
    }

    /// Records that the free is queued, as these commands.
    pub(crate) fn set_freeing(&mut self, address: u64, frontier: Frontier) {
        if let Some(allocation) = self.allocations.get_mut(&address) {
            allocation.freeing = Some(frontier);
        }
    }

    /// Returns the frees of a pool that have not been reached.
    pub(crate) fn pending_frees(&self, pool: u64) -> Frontier {
        let of_pool = self.allocations.values().filter(|allocation| allocation.pool == pool);
        of_pool.filter_map(|allocation| allocation.freeing.clone()).flatten().collect()
    }

    /// Completes a free that the stream has reached.
    pub(crate) fn freed(&mut self, address: u64, memory: &mut Memory) {
        let allocation = self.allocations.remove(&address).expect("a free is queued once");
        memory.remove_spans(address, allocation.bytes);
        let pool = self.pool(allocation.pool);
        let bytes = allocation.bytes.next_multiple_of(UNIT_BYTES);
        let around = |entry: &&mut PoolSegment| {
            let segment = &entry.segment;
            (segment.address..segment.address + segment.bytes).contains(&address)
        };
        let entry = pool.segments.iter_mut().find(around).expect("an allocation lies in its pool");
        entry.free.release(Range { start: address, bytes });
        pool.allocations -= 1;
        pool.usage.used_bytes -= bytes;
        self.collect(allocation.pool, memory);
    }

    /// Removes a destroyed pool without allocations.
    fn collect(&mut self, pool: u64, memory: &mut Memory) {
        let entry = self.pool(pool);
        if entry.destroyed && entry.allocations == 0 {
            let entry = self.pools.remove(&pool).expect("found above");
            entry.segments.into_iter().for_each(|entry| memory.condemn(entry.segment));
        }
    }

    fn pool(&mut self, pool: u64) -> &mut Pool {
        self.pools.get_mut(&pool).expect("a pool lives as long as its handle and its allocations")
    }
}
