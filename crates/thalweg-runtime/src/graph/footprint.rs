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
//! Memory of a pool that was made for another graph is not watched. Only captures into that pool can receive it, whether its block
//! is held or not, so the graph keeps the pool and reads what the other graph's replays leave there, as in PyTorch. Whether a
//! graph that was captured into that pool later has overwritten it is checked as for memory of the graph's own pool
//! ([`sharing`](super::sharing)).
//!
//! Pinned memory is not tracked here: the graph keeps it alive.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_driver::{Access, Label};
use thalweg_memory::{Alias, DeviceAllocator, LiveBlock, LivenessWatch, PoolId};

use super::contract::{Contract, Input, InputKind, Output};
use super::ranges::Ranges;

/// The function that finds a pool that was made for one graph, and keeps it.
pub(super) type PoolOfOneGraph<P> = Box<dyn Fn(PoolId) -> Option<P> + Send>;

/// The memory that the commands of a capture touch. See the [module's essay](self).
pub(super) struct Footprint<P> {
    allocator: Arc<DeviceAllocator>,
    pool: PoolId,
    pool_of_one_graph: PoolOfOneGraph<P>,
    /// The pools of other graphs whose memory the commands touch.
    kept: Vec<(PoolId, P)>,
    /// The blocks that the capture allocated, by address; a block is removed when another one takes its addresses.
    own: BTreeMap<u64, Own>,
    /// The addresses that the capture's own blocks have occupied.
    occupied: Ranges,
    /// The ranges of the capture's own blocks that commands wrote.
    written: Ranges,
    /// The ranges that commands wrote after their memory was last allocated: the graph's content at its end.
    left: Ranges,
    allocated_bytes: u64,
    inputs: Vec<Input>,
    /// The inputs by address: the address at which an input ends, and its index in `inputs`.
    places: BTreeMap<u64, (u64, usize)>,
    /// The holders of blocks when they were last looked up.
    live: Option<Vec<LiveBlock>>,
    watch: Arc<LivenessWatch>,
}

/// A block that the capture allocated, without its start.
struct Own {
    end: u64,
    requested_bytes: u64,
    label: Label,
}

/// The memory use of a finished capture.
pub(super) struct Traces<P> {
    pub(super) contract: Contract,
    /// The pools of other graphs whose memory the capture uses.
    pub(super) kept: Vec<P>,
    /// The ranges of the capture's own blocks that the capture's commands wrote.
    pub(super) written: Ranges,
    /// The written ranges that were not handed to another block since.
    pub(super) left: Ranges,
    /// The number of addresses that the capture's own blocks occupy, in bytes.
    pub(super) occupied_bytes: u64,
    /// The sum of the sizes of the capture's own blocks, in bytes.
    pub(super) allocated_bytes: u64,
}

impl<P> Footprint<P> {
    pub(super) fn new(
        allocator: &Arc<DeviceAllocator>,
        pool: PoolId,
        pool_of_one_graph: PoolOfOneGraph<P>,
    ) -> Self {
        Self {
            allocator: allocator.clone(),
            pool,
            pool_of_one_graph,
            kept: Vec::new(),
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
                let kind = self.kind(&block);
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

    /// Returns the kind of input that a block is. The pool of another graph is kept from then on.
    fn kind(&mut self, block: &LiveBlock) -> InputKind {
        let Some(id) = block.pool else { return InputKind::Buffer };
        if id == self.pool {
            return InputKind::Pool;
        }
        if self.kept.iter().any(|(known, _)| *known == id) {
            return InputKind::OtherPool;
        }
        match (self.pool_of_one_graph)(id) {
            Some(pool) => {
                self.kept.push((id, pool));
                InputKind::OtherPool
            }
            None => InputKind::Buffer,
        }
    }

    /// Returns the live block that contains an address, and watches it unless it is in a pool of graphs.
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

    /// Watches a block, unless it is in a pool of graphs: an output that a graph left there may still be valid although its
    /// block is freed. Returns `false` if the block is not live any more.
    fn watch(&mut self, block: &LiveBlock) -> bool {
        self.kind(block) != InputKind::Buffer || self.allocator.watch_block(block, &self.watch)
    }

    /// Ends the capture, and returns the memory that it touched.
    pub(super) fn finish(self) -> Traces<P> {
        let Self { allocator, pool, kept, own, left, allocated_bytes, inputs, watch, .. } = self;
        let kept = kept.into_iter().map(|(_, pool)| pool).collect();
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
        Traces { contract, kept, written, left, occupied_bytes: occupied.bytes(), allocated_bytes }
    }
}

/// Returns the block that contains an address, from blocks in ascending order.
fn find(live: &[LiveBlock], address: u64) -> Option<LiveBlock> {
    let after = live.partition_point(|block| block.address <= address);
    let block = live[..after].last()?;
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
