//! The memory that the commands of a capture touch: the capture's own, and all other.
//!
//! Commands name addresses. Addresses inside a block that the capture itself allocated concern only the graph. All others belong
//! to an [`Input`] of the graph, one per block of another owner, with the mode of access. The block is searched for when it is
//! first touched, among all that are live then. A [`LivenessWatch`] is triggered by its death from that moment on: memory that is
//! freed before the capture ends counts as dead, just as memory that is freed later.
//!
//! The holders of blocks are looked up once per capture, and again only for an address that the result does not contain. So a
//! command costs two look-ups in ordered maps for each range that it touches, however large the graph is.
//!
//! The allocator may have remapped the graph's own memory during the capture, so that some of it has two addresses ([`Alias`]).
//! The written ranges are reported by the final addresses.
//!
//! Pinned memory is not tracked here: the graph keeps it alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_driver::{Access, Label};
use thalweg_memory::{Alias, DeviceAllocator, LiveBlock, LivenessWatch, PoolId};

use super::contract::{Contract, Input, InputKind, Output};
use super::ranges::Ranges;

/// The memory that the commands of a capture touch. See the [module's essay](self).
pub(super) struct Footprint {
    allocator: Arc<DeviceAllocator>,
    pool: PoolId,
    /// The blocks that the capture allocated, by address; a block is removed when another one takes its addresses.
    own: BTreeMap<u64, Own>,
    /// The addresses that the capture's own blocks have occupied.
    occupied: Ranges,
    /// The ranges of the capture's own blocks that commands wrote.
    written: Ranges,
    /// The ranges that were written since their memory was allocated last: the content at the end.
    left: Ranges,
    allocated_bytes: u64,
    inputs: Vec<Input>,
    /// For each input, by its address, the address at which it ends and its index in the list.
    places: BTreeMap<u64, (u64, usize)>,
    /// The holders of blocks when they were last looked up.
    live: Option<Vec<LiveBlock>>,
    watch: Arc<LivenessWatch>,
}

/// A block that the capture allocated.
struct Own {
    end: u64,
    requested_bytes: u64,
    label: Label,
}

/// The memory use of a finished capture.
pub(super) struct Traces {
    pub(super) contract: Contract,
    /// The ranges of the capture's own blocks that its commands wrote.
    pub(super) written: Ranges,
    /// The written ranges that were not handed to another block since.
    pub(super) left: Ranges,
    /// The number of addresses that the capture's own blocks occupy, in bytes.
    pub(super) occupied_bytes: u64,
    /// The sum of the sizes of the capture's own blocks, in bytes.
    pub(super) allocated_bytes: u64,
}

impl Footprint {
    pub(super) fn new(allocator: &Arc<DeviceAllocator>, pool: PoolId) -> Self {
        Self {
            allocator: allocator.clone(),
            pool,
            own: BTreeMap::new(),
            occupied: Ranges::default(),
            written: Ranges::default(),
            left: Ranges::default(),
            allocated_bytes: 0,
            inputs: Vec::new(),
            places: BTreeMap::new(),
            live: None,
            watch: Arc::default(),
        }
    }

    /// Notes a block that the capture allocated: `size_bytes` from `address` on.
    pub(super) fn allocated(&mut self, address: u64, size_bytes: u64, requested_bytes: u64, label: Label) {
        let end = address + size_bytes;
        // The blocks that were there before are gone.
        remove_overlapping(&mut self.own, address, end, |own| own.end);
        remove_overlapping(&mut self.places, address, end, |place| place.0);
        self.own.insert(address, Own { end, requested_bytes, label });
        self.left.remove(address, end);
        self.occupied.insert(address, end);
        self.allocated_bytes += size_bytes;
    }

    /// Notes the ranges that a command touches.
    pub(super) fn touched(&mut self, accesses: &[Access], label: Label) {
        for access in accesses.iter().filter(|access| access.bytes > 0) {
            let (start, end) = (access.start, access.start.saturating_add(access.bytes));
            if self.own.range(..=start).next_back().is_some_and(|(_, own)| own.end > start) {
                if access.mode.writes() {
                    self.written.insert(start, end);
                    self.left.insert(start, end);
                }
                continue;
            }
            let place = match self.places.range(..=start).next_back() {
                Some((_, &(until, place))) if until > start => place,
                _ => self.add_input(access, label),
            };
            let input = &mut self.inputs[place];
            input.touched = input.touched.start.min(start)..input.touched.end.max(end);
            input.is_read |= access.mode != thalweg_driver::AccessMode::Write;
            input.is_written |= access.mode.writes();
        }
    }

    /// Adds the input of an address that belongs to no known input, and returns its index.
    fn add_input(&mut self, access: &Access, label: Label) -> usize {
        let (start, end) = (access.start, access.start.saturating_add(access.bytes));
        let (address, size_bytes, until, kind) = match self.holder(start) {
            Some(block) => {
                let kind = if block.pool == Some(self.pool) { InputKind::Pool } else { InputKind::Buffer };
                (block.address, block.requested_bytes, block.address + block.size_bytes, kind)
            }
            None => (start, access.bytes, end, InputKind::Unknown),
        };
        let place = self.inputs.len();
        let touched = start..end;
        let (is_read, is_written) = (false, false);
        self.inputs.push(Input { address, size_bytes, touched, is_read, is_written, label, kind });
        self.places.insert(address, (until, place));
        place
    }

    /// Returns the live block that contains an address, and watches it unless it is in the graph's own pool.
    fn holder(&mut self, address: u64) -> Option<LiveBlock> {
        let asked_before = self.live.is_some();
        let live = self.live.get_or_insert_with(|| self.allocator.live_blocks());
        let found = find(live, address).filter(|block| self.watch(block));
        if found.is_some() || !asked_before {
            return found;
        }
        // The block may be younger than the list.
        let live = self.allocator.live_blocks();
        let found = find(&live, address).filter(|block| self.watch(block));
        self.live = Some(live);
        found
    }

    /// Watches a block, unless it is in the graph's own pool: an output that a graph left there may still be valid although its
    /// block is freed. Returns `false` if the block is not live any more.
    fn watch(&self, block: &LiveBlock) -> bool {
        block.pool == Some(self.pool) || self.allocator.watch_block(block, &self.watch)
    }

    /// Ends the capture, and returns the memory that it touched.
    pub(super) fn finish(self) -> Traces {
        let Self { allocator, pool, own, left, allocated_bytes, inputs, watch, .. } = self;
        let (mut occupied, mut written) = (self.occupied, self.written);
        // A write through an old address is a write to where the memory is now.
        for Alias { address, size_bytes, now_at } in allocator.aliases(pool) {
            let (end, now) = (address + size_bytes, |place| place - address + now_at);
            for (start, end) in written.overlaps(address, end).collect::<Vec<_>>() {
                written.insert(now(start), now(end));
            }
            for (start, end) in occupied.overlaps(address, end).collect::<Vec<_>>() {
                occupied.remove(start, end);
                occupied.insert(now(start), now(end));
            }
        }
        let live = allocator.live_blocks_of(pool);
        let outputs = live.iter().filter_map(|block| {
            let Own { end, requested_bytes, label } = own.get(&block.address)?;
            let watch = Arc::default();
            let is_live = *end == block.address + block.size_bytes && allocator.watch_block(block, &watch);
            is_live.then_some(Output {
                address: block.address,
                size_bytes: *requested_bytes,
                label: *label,
                watch,
            })
        });
        let contract = Contract::new(inputs, outputs.collect(), watch);
        Traces { contract, written, left, occupied_bytes: occupied.bytes(), allocated_bytes }
    }
}

/// Returns the block that contains an address, from blocks in ascending order.
fn find(live: &[LiveBlock], address: u64) -> Option<LiveBlock> {
    let behind = live.partition_point(|block| block.address <= address);
    let block = live[..behind].last()?;
    (address - block.address < block.size_bytes).then_some(*block)
}

/// Removes the entries that overlap `start..end`.
fn remove_overlapping<T>(map: &mut BTreeMap<u64, T>, start: u64, end: u64, end_of: impl Fn(&T) -> u64) {
    while let Some((&address, entry)) = map.range(..end).next_back()
        && end_of(entry) > start
    {
        map.remove(&address);
    }
}
