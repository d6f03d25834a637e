//! The state before a trace, and how an allocator is brought into it.
//!
//! What there was is found backwards: the segments after the trace, minus what it took, plus what it gave back. On the way each
//! allocation is seen in the segment that it came from, whose pool it has. So pools belong to *lifetimes* of segments; an
//! address may be in one pool today and in another tomorrow.
//!
//! Then the state is made by requests alone. One segment after the other is opened by a request for all of it, given back, and
//! cut into pieces from its beginning to its end: the blocks that were live, and *fillers* for what was free. Nothing else is
//! free meanwhile, so each piece comes from where it should. At the end the fillers are freed.
//!
//! ```text
//!  recorded  │ live │      free      │ live │ live │   free   │
//!  made      │  1   │   2, filler    │  3   │  4   │ 5, filler│   then free 2 and 5
//! ```
//!
//! An entry that frees a block says what was asked for with it and not how large it was. A rest of up to 1 MiB is never free on
//! its own in a segment for large requests, so it belongs to the block before it. Of a larger rest the first allocation in it
//! says where it begins. Where there is none while the block is live, all of it is taken to be free, although a part may have
//! belonged to the block too.
//!
//! What is not here: segments that grow. Where they were is of no use to anybody, and their live blocks are allocated plainly.

use std::collections::BTreeMap;

use super::program::Step;
use super::reading::LastSegment;
use crate::snapshot::{Action, Event};
use crate::stats::SizeClass;
use crate::upstream::StreamId;

/// The segment of small requests, in every version of PyTorch.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The largest small request; in segments for large ones, a free rest is larger than this.
const SMALL_BYTES: u64 = 1 << 20;
/// The number of the pool that all share.
const SHARED: (u64, u64) = (0, 0);

/// A segment that was there at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldSegment {
    bytes: u64,
    stream: StreamId,
    class: SizeClass,
    pool: Option<u16>,
    is_expandable: bool,
}

/// A block that was live when the trace began.
#[derive(Clone, Copy, Debug)]
pub(super) struct OlderBlock {
    pub(super) number: u32,
    pub(super) requested_bytes: u64,
    /// What it takes in its segment, where that is known.
    pub(super) size_bytes: Option<u64>,
    pub(super) stream: StreamId,
    /// The entry of the trace that frees it.
    pub(super) freed: Option<usize>,
}

impl OlderBlock {
    /// What was asked for, rounded as in every pool.
    fn rounded_bytes(&self) -> u64 {
        self.requested_bytes.max(1).checked_next_multiple_of(512).unwrap_or(u64::MAX)
    }

    /// Another block begins so many bytes behind its beginning. No third lies between them where these are too close for that.
    pub(super) fn learn_size(&mut self, distance_bytes: u64) {
        let rest = distance_bytes.checked_sub(self.rounded_bytes());
        if self.size_bytes.is_none()
            && self.requested_bytes > SMALL_BYTES
            && rest.is_some_and(|rest| rest <= SMALL_BYTES)
        {
            self.size_bytes = Some(distance_bytes);
        }
    }
}

/// What walking a trace backwards finds.
#[derive(Default)]
pub(super) struct Backwards {
    /// The segments; at the end of the walk those before the trace.
    pub(super) segments: BTreeMap<u64, HeldSegment>,
    /// The private pools, by PyTorch's numbers.
    pub(super) pools: Vec<(u64, u64)>,
    /// The pools of the allocations, the last one first; empty if there is no private pool.
    pub(super) of_allocations: Vec<Option<u16>>,
}

impl Backwards {
    /// Walks a trace whose last state is known.
    pub(super) fn over(last: &[LastSegment], trace: impl DoubleEndedIterator<Item = Event> + Clone) -> Self {
        let mut this = Self::default();
        for segment in last {
            let &LastSegment { address, bytes, stream, class, is_expandable, .. } = segment;
            let pool = this.pool(segment.pool_id);
            this.segments.insert(address, HeldSegment { bytes, stream, class, pool, is_expandable });
        }
        let has_pools =
            !this.pools.is_empty() || trace.clone().any(|event| event.pool_id.is_some_and(|id| id != SHARED));
        for event in trace.rev() {
            if event.action != Action::Alloc {
                this.undo(&event);
            } else if has_pools {
                let pool = match event.pool_id {
                    Some(id) => this.pool(id),
                    None => this.home(event.address).and_then(|(_, segment)| segment.pool),
                };
                this.of_allocations.push(pool);
            }
        }
        this
    }

    fn undo(&mut self, event: &Event) {
        let (address, bytes, stream) = (event.address, event.size_bytes, event.stream);
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => self.cut_out(address, address.saturating_add(bytes)),
            Action::SegmentFree | Action::SegmentUnmap => {
                let class = if bytes <= SMALL_SEGMENT_BYTES { SizeClass::Small } else { SizeClass::Large };
                let pool = event.pool_id.and_then(|id| self.pool(id));
                let is_expandable = event.action == Action::SegmentUnmap;
                self.segments.insert(address, HeldSegment { bytes, stream, class, pool, is_expandable });
            }
            _ => {}
        }
    }

    /// Takes a range of addresses out: whole segments, or a part of one that grows.
    fn cut_out(&mut self, start: u64, end: u64) {
        while let Some((address, segment)) =
            self.last_before(end).filter(|(at, segment)| end_of(*at, segment) > start)
        {
            self.segments.remove(&address);
            let segment_end = end_of(address, &segment);
            if segment_end > end {
                self.segments.insert(end, HeldSegment { bytes: segment_end - end, ..segment });
            }
            if address < start {
                self.segments.insert(address, HeldSegment { bytes: start - address, ..segment });
            }
        }
    }

    /// The segment that an address lies in, and where it begins.
    fn home(&self, address: u64) -> Option<(u64, HeldSegment)> {
        self.last_before(address.saturating_add(1)).filter(|(at, segment)| end_of(*at, segment) > address)
    }

    fn last_before(&self, end: u64) -> Option<(u64, HeldSegment)> {
        self.segments.range(..end).next_back().map(|(&address, &segment)| (address, segment))
    }

    /// The index of a private pool. Of more than 65 535, the others count as the last.
    fn pool(&mut self, id: (u64, u64)) -> Option<u16> {
        if id == SHARED {
            return None;
        }
        let index = self.pools.iter().position(|known| *known == id).unwrap_or_else(|| {
            if self.pools.len() < usize::from(u16::MAX) {
                self.pools.push(id);
            }
            self.pools.len() - 1
        });
        Some(index as u16)
    }
}

fn end_of(address: u64, segment: &HeldSegment) -> u64 {
    address.saturating_add(segment.bytes)
}

/// The requests that make a state, as far as they are known.
pub(super) struct Rebuilding<'r> {
    pub(super) steps: Vec<Step>,
    /// The segments as (address, bytes), and the block that takes each.
    pub(super) segments: Vec<(u64, u64)>,
    pub(super) opened_for: Vec<Option<u32>>,
    /// What was asked for, by block: fillers are added.
    requested_bytes: &'r mut Vec<u64>,
    fillers: Vec<u32>,
}

impl<'r> Rebuilding<'r> {
    /// Makes all segments with all blocks.
    pub(super) fn of(
        found: &Backwards,
        older: &BTreeMap<u64, OlderBlock>,
        requested_bytes: &'r mut Vec<u64>,
    ) -> Self {
        let (steps, segments) = (Vec::new(), Vec::new());
        let mut this = Self { steps, segments, opened_for: Vec::new(), requested_bytes, fillers: Vec::new() };
        // Of each kind of small segments, where the last is: it need not be filled.
        let mut last_small = BTreeMap::new();
        for (&address, segment) in
            found.segments.iter().filter(|(_, segment)| segment.class == SizeClass::Small)
        {
            last_small.insert((segment.stream, segment.pool), address);
        }
        let mut done = 0;
        for (&address, segment) in found.segments.iter().filter(|(_, segment)| segment.is_makeable()) {
            // In a damaged file segments overlap.
            if address < done {
                continue;
            }
            // Blocks between segments that can be made.
            older.range(done..address).for_each(|(at, block)| this.allocate(found, *at, block));
            done = end_of(address, segment);
            let is_last = last_small.get(&(segment.stream, segment.pool)) == Some(&address);
            this.segment(address, segment, older.range(address..done), is_last);
        }
        older.range(done..).for_each(|(at, block)| this.allocate(found, *at, block));
        let fillers = std::mem::take(&mut this.fillers);
        this.steps.extend(fillers.into_iter().map(|block| Step::Free { block }));
        this
    }

    fn segment<'b>(
        &mut self,
        address: u64,
        segment: &HeldSegment,
        blocks: impl Iterator<Item = (&'b u64, &'b OlderBlock)> + Clone,
        is_last: bool,
    ) {
        let is_free = blocks.clone().next().is_none();
        self.segments.push((address, segment.bytes));
        self.opened_for.push(Some(self.requested_bytes.len() as u32));
        match segment.class {
            SizeClass::Small if is_free && is_last => return self.fill(segment, 1),
            SizeClass::Large if is_free => return self.fill(segment, segment.bytes),
            // Its first piece opens it.
            SizeClass::Small => {
                if let Some((_, first)) = blocks.clone().next().filter(|(start, _)| **start == address) {
                    self.opened_for.pop();
                    self.opened_for.push(Some(first.number));
                }
            }
            SizeClass::Large => {
                self.fill(segment, segment.bytes);
                let whole = self.fillers.pop().expect("it was just made");
                self.steps.push(Step::Free { block: whole });
            }
        }
        let mut at = address;
        let mut rest = blocks.peekable();
        while let Some((&start, block)) = rest.next() {
            self.free_range(segment, start.saturating_sub(at));
            let end = rest.peek().map_or(end_of(address, segment), |(next, _)| **next);
            let bytes = segment.size_of(block, end - start);
            self.push(start, block, segment.pool, bytes);
            at = start + bytes;
        }
        self.free_range(segment, end_of(address, segment).saturating_sub(at));
    }

    /// Requests for what is free between two blocks.
    fn free_range(&mut self, segment: &HeldSegment, mut bytes: u64) {
        let most = if segment.class == SizeClass::Small { SMALL_BYTES } else { u64::MAX };
        while bytes > 0 {
            let piece = bytes.min(most);
            self.fill(segment, piece);
            bytes -= piece;
        }
    }

    fn fill(&mut self, segment: &HeldSegment, bytes: u64) {
        let block = self.requested_bytes.len() as u32;
        self.requested_bytes.push(0);
        self.fillers.push(block);
        let (pool, stream) = (segment.pool, segment.stream);
        self.steps.push(Step::Allocate { block, pool, bytes, stream, recorded_address: 0 });
    }

    /// Asks for a block wherever it may be.
    fn allocate(&mut self, found: &Backwards, address: u64, block: &OlderBlock) {
        let pool = found.home(address).and_then(|(_, segment)| segment.pool);
        self.push(address, block, pool, block.requested_bytes);
    }

    fn push(&mut self, recorded_address: u64, older: &OlderBlock, pool: Option<u16>, bytes: u64) {
        let (block, stream) = (older.number, older.stream);
        self.steps.push(Step::Allocate { block, pool, bytes, stream, recorded_address });
    }
}

/// Requests for the live blocks alone, in the order of their addresses.
pub(super) fn live_blocks(found: &Backwards, older: &BTreeMap<u64, OlderBlock>) -> Vec<Step> {
    let requests = older.iter().map(|(&recorded_address, older)| Step::Allocate {
        block: older.number,
        pool: found.home(recorded_address).and_then(|(_, segment)| segment.pool),
        bytes: older.requested_bytes,
        stream: older.stream,
        recorded_address,
    });
    requests.collect()
}

impl HeldSegment {
    /// Whether requests can make it: it is not mapped, and a small one has the usual size.
    fn is_makeable(&self) -> bool {
        let is_usual = self.class == SizeClass::Large || self.bytes == SMALL_SEGMENT_BYTES;
        !self.is_expandable && is_usual
    }

    /// What a block takes that has `room_bytes` up to the next, or to the end.
    fn size_of(&self, block: &OlderBlock, room_bytes: u64) -> u64 {
        let rounded = block.rounded_bytes();
        let size = block.size_bytes.unwrap_or(match self.class {
            SizeClass::Large if room_bytes.saturating_sub(rounded) <= SMALL_BYTES => room_bytes,
            SizeClass::Large | SizeClass::Small => rounded,
        });
        size.min(room_bytes)
    }
}
