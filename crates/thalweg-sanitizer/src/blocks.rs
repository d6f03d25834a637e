//! Blocks of allocators: checks that they are reused and freed in order.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{AccessMode, BlockKind, UseKind};

use super::bytes::Bytes;
use super::clock::Clock;
use super::finding::FindingKind;
use super::model::{Actor, HostId, Model, StreamId};
use super::shadow::{BlockId, Mark, MarkKind, Seen, Written};
use super::site::SiteId;
use super::space::{ELSEWHERE, Pieces};
use super::touch::{Troubles, add, trouble};

/// The minimum number of freed blocks that are kept before those whose bytes now belong to other blocks are forgotten.
const DEAD: usize = 4096;

/// A use by another stream that was recorded with the allocator.
pub(super) struct Recorded {
    pub(super) stream: StreamId,
    pub(super) kind: UseKind,
    pub(super) site: SiteId,
    /// The work of the stream at that time, if only that is waited for.
    clock: Clock,
}

/// A block of a caching allocator.
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) kind: BlockKind,
    pub(super) stream: StreamId,
    pub(super) allocated: SiteId,
    pub(super) freed: Option<SiteId>,
    pub(super) recorded: SmallVec<[Recorded; 1]>,
    /// The capture that the block was allocated in; 0 for none.
    pub(super) capture: u64,
    /// The clock of the thread that freed the block, at that time.
    freed_knowing: Clock,
}

/// All live blocks, and the freed ones whose bytes have not been reused.
#[derive(Default)]
pub(super) struct Blocks {
    live: FxHashMap<u64, BlockId>,
    all: FxHashMap<BlockId, Block>,
    last: BlockId,
    /// The number of blocks at which the next search for forgettable freed blocks starts: twice the number left by the last
    /// search, so that the cost of searching per allocated block is constant.
    full: usize,
    /// The number of blocks that these searches have visited.
    #[cfg(test)]
    looked_at: usize,
}

impl Blocks {
    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.all.get(&id)
    }

    pub(super) fn is_freed(&self, id: BlockId) -> bool {
        self.all.get(&id).is_some_and(|block| block.freed.is_some())
    }
}

impl Model {
    /// Notes that a block was handed out to a caller.
    pub(super) fn block_allocated(
        &mut self,
        range: (u64, u64),
        kind: BlockKind,
        stream: StreamId,
        capture: u64,
        host: HostId,
        site: SiteId,
    ) {
        let (start, bytes) = range;
        self.blocks.last += 1;
        let id = self.blocks.last;
        let pieces = self.space.translate(start, bytes);
        let mut known = self.hosts[host as usize].clock.clone();
        known.join(&self.observed);
        if kind.is_of_stream() {
            known.join(&self.settle(stream).clock);
        }
        let owner = &self.streams[stream as usize];
        let last = owner.clock.of(owner.strand);
        let mut mark = self.mark(stream, last, site, MarkKind::Allocation);
        (mark.start, mark.bytes) = (start, bytes);
        let block = Block {
            start,
            bytes,
            kind,
            stream,
            allocated: site,
            freed: None,
            recorded: SmallVec::new(),
            capture,
            freed_knowing: Clock::default(),
        };
        self.blocks.all.insert(id, block);
        self.blocks.live.insert(start, id);
        if capture == 0 {
            self.check_reuse(&pieces, &known, &mark);
        }
        for piece in &pieces {
            if piece.object == ELSEWHERE {
                continue;
            }
            let object = self.space.object(piece.object);
            object.has_blocks = true;
            object.shadow.each(&Bytes::range(piece.start, piece.end), true, |Seen { state, .. }| {
                state.block = id;
                state.written = Written::No;
                if capture == 0 {
                    state.write = (kind.is_of_stream() && last > 0).then_some(mark);
                    state.since.clear();
                } else {
                    // The graph is launched later. Work that is not complete now may conflict with the launch, so its marks stay.
                    state.write.take_if(|write| write.is_before(&known));
                    state.since.retain(|read| !read.is_before(&known));
                }
            });
        }
        if self.blocks.all.len() > self.blocks.full.max(DEAD) {
            self.forget_overwritten();
        }
    }

    /// Checks that all uses of some bytes are complete from the point of view of the stream that gets them now.
    fn check_reuse(&mut self, pieces: &Pieces, known: &Clock, mark: &Mark) {
        let mut found: SmallVec<[_; 4]> = SmallVec::new();
        self.marks(pieces, |piece, first, end, other, former| {
            if !other.is_before(known) {
                found.push((*piece, first, end, *other, former));
            }
        });
        let mut troubles = Troubles::new();
        for (piece, first, end, other, former) in found {
            let is_host = matches!(self.actors[other.strand.index()], Actor::Host(_));
            let before = self.blocks.get(former);
            if is_host || before.is_some_and(|block| other.is_before(&block.freed_knowing)) {
                continue;
            }
            let kind = FindingKind::ReuseBeforeLastUse;
            add(&mut troubles, trouble(kind, Some(other), former, &piece, first, end));
        }
        for piece in pieces {
            if piece.object == ELSEWHERE {
                continue;
            }
            let (blocks, object) = (&self.blocks, self.space.object(piece.object));
            object.shadow.look(piece.start, piece.end, |first, end, state| {
                if blocks.get(state.block).is_some_and(|block| block.freed.is_none()) {
                    let kind = FindingKind::OverlappingBlocks;
                    add(&mut troubles, trouble(kind, None, state.block, piece, first, end));
                }
            });
        }
        for trouble in troubles {
            self.report(&trouble, mark, known);
        }
    }

    /// Notes that another stream's use was recorded with the allocator.
    pub(super) fn block_recorded(&mut self, start: u64, stream: StreamId, kind: UseKind, site: SiteId) {
        let Some(&id) = self.blocks.live.get(&start) else { return };
        let clock = match kind {
            UseKind::SoFar => self.frontier(stream),
            UseKind::UntilFree => Clock::default(),
        };
        let Some(block) = self.blocks.all.get_mut(&id) else { return };
        let same = |recorded: &&mut Recorded| recorded.stream == stream && recorded.kind == kind;
        let recorded = Recorded { stream, kind, site, clock };
        match block.recorded.iter_mut().find(same) {
            // A later record of the same stream covers more.
            Some(known) => *known = recorded,
            None => block.recorded.push(recorded),
        }
    }

    /// Notes that a block is about to be freed.
    pub(super) fn block_freed(&mut self, start: u64, host: HostId, site: SiteId) {
        let Some(id) = self.blocks.live.remove(&start) else { return };
        let Some(block) = self.blocks.all.remove(&id) else { return };
        let mut knowing = self.hosts[host as usize].clock.clone();
        let stream = block.stream;
        let mut troubles = Troubles::new();
        if block.capture == 0 {
            let mut known = knowing.clone();
            known.join(&self.observed);
            if block.kind.is_of_stream() {
                known.join(&self.settle(stream).clock);
            }
            for recorded in &block.recorded {
                match recorded.kind {
                    UseKind::SoFar => known.join(&recorded.clock),
                    UseKind::UntilFree => known.join(&self.settle(recorded.stream).clock),
                }
            }
            let pieces = self.space.translate(block.start, block.bytes);
            let mut found: SmallVec<[_; 4]> = SmallVec::new();
            self.marks(&pieces, |piece, first, end, mark, _| found.push((*piece, first, end, *mark)));
            for (piece, first, end, mark) in found {
                match self.actors[mark.strand.index()] {
                    // A thread that frees memory knows all accesses that host threads made to it, because nothing else owned it.
                    Actor::Host(_) => knowing.learn(mark.strand, mark.number),
                    _ if mark.is_before(&known) => {}
                    actor => {
                        let kind = kind_of_free(&block, actor);
                        add(&mut troubles, trouble(kind, Some(mark), id, &piece, first, end));
                    }
                }
            }
        }
        let has_line = self.sites.get(site).is_some_and(|site| site.location.is_some());
        let site = if !has_line && (self.traces_drops || !troubles.is_empty()) {
            self.sites.traced("drop")
        } else {
            site
        };
        let number = self.number + 1;
        let mut mark = self.mark(stream, number, site, MarkKind::Free);
        (mark.start, mark.bytes, mark.mode) = (block.start, block.bytes, AccessMode::Write);
        let block = Block { freed: Some(site), freed_knowing: knowing.clone(), ..block };
        self.blocks.all.insert(id, block);
        for trouble in troubles {
            self.report(&trouble, &mark, &knowing);
        }
    }

    /// Forgets freed blocks whose bytes now belong to other blocks.
    fn forget_overwritten(&mut self) {
        #[cfg(test)]
        {
            self.blocks.looked_at += self.blocks.all.len();
        }
        let mut freed: Vec<(BlockId, u64)> = Vec::new();
        for (&id, block) in &self.blocks.all {
            if block.freed.is_some() {
                freed.push((id, block.start));
            }
        }
        for (id, start) in freed {
            if self.owner(start).is_none_or(|owner| owner.block != id) {
                self.blocks.all.remove(&id);
            }
        }
        self.blocks.full = 2 * self.blocks.all.len();
    }
}

/// Returns the kind of finding for a use that the free of a block does not wait for.
fn kind_of_free(block: &Block, actor: Actor) -> FindingKind {
    let user = match actor {
        Actor::Stream(stream) | Actor::Chain { stream, .. } => stream,
        Actor::Host(_) => return FindingKind::MissingRecord,
    };
    let too_early = |recorded: &Recorded| recorded.stream == user && recorded.kind == UseKind::SoFar;
    if block.recorded.iter().any(too_early) { FindingKind::EarlyRecord } else { FindingKind::MissingRecord }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::ObjectKind;
    use thalweg_driver::StreamHandle;

    /// Allocates and frees many blocks that are never reused: as long as recorded uses do not end, an allocator takes new memory
    /// each time, and no block can be forgotten.
    #[test]
    fn the_search_for_blocks_to_forget_costs_each_block_the_same() {
        const COUNT: u64 = 50_000;
        let mut model = Model::new(1);
        let stream = model.add_stream(StreamHandle::from_raw(1), 0, 1, false, false);
        model.appeared(ObjectKind::Plain, 0, 1 << 20, COUNT * 512, 0);
        for number in 0..COUNT {
            let start = (1 << 20) + number * 512;
            model.block_allocated((start, 512), BlockKind::Device, stream, 0, 0, 0);
            model.block_freed(start, 0, 0);
        }
        assert_eq!(model.blocks.all.len() as u64, COUNT, "the bytes of each are still its own");
        assert!(model.blocks.looked_at < 3 * COUNT as usize, "{} looks", model.blocks.looked_at);
    }
}
