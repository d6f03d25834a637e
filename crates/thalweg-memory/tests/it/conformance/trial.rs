//! An allocator with the checker: the steps of a program, and the conditions that must hold after each.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    AllocationError, Block, BlockState, CrossStreamReuse, DeviceAllocator, PoolId, PoolOptions, PoolScope,
    SegmentSnapshot, Settings, SizeClass, StreamFilter, StreamId,
};

use super::checker::Checker;
use super::programs::ProgramStep;
use super::shadow::Point;
use crate::harness::{STREAMS, stream};

const MIB: u64 = 1 << 20;

/// The kinds of pools that programs create.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pools {
    Usual,
    /// Pools whose pages may be at two addresses.
    Aliased,
    NoSplit,
    /// Pools that serve other requests when memory is short.
    UseOnOom,
    /// Pools that get their segments from a source of their own, which passes requests on to the same upstream.
    Sourced,
}

/// A set-up of an allocator.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub settings: Settings,
    pub virtual_memory: bool,
    pub pools: Pools,
}

struct Held {
    block: Block,
    /// Streams that use the block until it is dropped.
    noted: Vec<StreamId>,
    /// The last touches that are known already.
    after: Vec<Point>,
}

/// A scope that directs requests to a pool.
enum Open {
    Capture { pool: usize, filter: Option<u64> },
    Scope { pool: usize, _scope: PoolScope },
}

/// An allocator with its checker. See the [module's essay](self).
pub struct Trial {
    pub checker: Arc<Checker>,
    pub allocator: Arc<DeviceAllocator>,
    capacity_bytes: u64,
    kind_of_pools: Pools,
    held: Vec<Held>,
    pools: Vec<PoolId>,
    references: Vec<usize>,
    open: Vec<Open>,
    allowed_bytes: u64,
    /// Whether the upstream was made to fail: then it may report a lack of memory although there is room.
    pub is_faulty: bool,
}

impl Trial {
    pub fn new(setup: &Setup, capacity_bytes: u64) -> Self {
        let fake = match setup.virtual_memory {
            true => FakeUpstream::with_virtual_memory(capacity_bytes),
            false => FakeUpstream::new(capacity_bytes),
        };
        let checker = Arc::new(Checker::new(fake));
        let allocator = DeviceAllocator::new(checker.clone(), setup.settings.clone());
        Self {
            checker,
            allocator,
            capacity_bytes,
            kind_of_pools: setup.pools,
            held: Vec::new(),
            pools: Vec::new(),
            references: Vec::new(),
            open: Vec::new(),
            allowed_bytes: u64::MAX,
            is_faulty: false,
        }
    }

    fn is_capturing(&self) -> bool {
        self.open.iter().any(|open| matches!(open, Open::Capture { .. }))
    }

    /// Returns the pool that a request is directed to.
    fn pool_for(&self, on: u64) -> Option<PoolId> {
        let serves = self.open.iter().rev().find_map(|open| match open {
            Open::Capture { pool, filter } => filter.is_none_or(|only| only == on).then_some(*pool),
            Open::Scope { pool, .. } => Some(*pool),
        });
        serves.map(|pool| self.pools[pool])
    }

    /// Runs one step. The caller must expect the failures that the upstream injects.
    pub fn step(&mut self, step: &ProgramStep) -> Result<(), AllocationError> {
        self.forget_released();
        let checker = Arc::clone(&self.checker);
        let (held, pools) = (self.held.len().max(1), self.pools.len().max(1));
        match *step {
            ProgramStep::Allocate { bytes, stream } => self.allocate(bytes, stream)?,
            ProgramStep::Free { block, elsewhere } if !self.held.is_empty() => {
                self.free(block % held, elsewhere)
            }
            ProgramStep::RecordStream { block, stream: on } if !self.held.is_empty() => {
                let held = &mut self.held[block % held];
                held.noted.push(stream(on));
                held.block.record_stream(stream(on));
            }
            ProgramStep::RecordUse { block, stream: on } if !self.held.is_empty() => {
                let held = &mut self.held[block % held];
                held.after.push(checker.touched(stream(on)));
                held.block.record_use(stream(on));
            }
            ProgramStep::CompleteNext { stream: on } => checker.complete_next(stream(on)),
            ProgramStep::CompleteStream { stream: on } => checker.complete_stream(stream(on)),
            ProgramStep::Process => self.allocator.process_events(),
            ProgramStep::EmptyCache => self.empty_cache(None)?,
            ProgramStep::EmptyPool { pool } if !self.pools.is_empty() => {
                self.empty_cache(Some(pool % pools))?
            }
            ProgramStep::Fraction { percent } => {
                let fraction = percent as f64 / 100.0;
                self.allocator.set_memory_fraction(fraction)?;
                let allowed = (fraction * self.capacity_bytes as f64).round() as u64;
                self.allowed_bytes = if percent < 100 { allowed } else { u64::MAX };
            }
            ProgramStep::CreatePool => {
                let options = self.pool_options();
                self.pools.push(self.allocator.create_pool_with(options));
                self.references.push(1);
            }
            ProgramStep::ReleasePool { pool }
                if !self.pools.is_empty() && self.references[pool % pools] > 0 =>
            {
                self.references[pool % pools] -= 1;
                self.allocator.release_pool(self.pools[pool % pools])?;
            }
            ProgramStep::Begin { pool, filter } if !self.pools.is_empty() => self.begin(pool % pools, filter),
            ProgramStep::Enter { pool } if !self.pools.is_empty() && self.references[pool % pools] > 0 => {
                let pool = pool % pools;
                let scope = self.allocator.use_pool(self.pools[pool])?;
                self.open.push(Open::Scope { pool, _scope: scope });
            }
            ProgramStep::Leave { place } if !self.open.is_empty() => self.leave(place % self.open.len())?,
            ProgramStep::Change { what } => self.change(what)?,
            _ => {}
        }
        Ok(())
    }

    fn pool_options(&self) -> PoolOptions {
        let usual = PoolOptions::default();
        match self.kind_of_pools {
            Pools::Usual => usual,
            Pools::Aliased => PoolOptions { may_alias: true, ..usual },
            Pools::NoSplit => PoolOptions { no_split: true, ..usual },
            Pools::UseOnOom => PoolOptions { use_on_oom: true, ..usual },
            Pools::Sourced => PoolOptions { source: Some(self.checker.clone()), ..usual },
        }
    }

    fn allocate(&mut self, bytes: u64, on: u64) -> Result<(), AllocationError> {
        let block = match self.allocator.allocate(bytes, stream(on)) {
            Ok(block) => block,
            Err(error) => {
                if error.is_out_of_memory() && !self.is_faulty {
                    self.assert_nothing_fits(bytes, on);
                }
                return Err(error);
            }
        };
        assert!(block.size_bytes() >= bytes && block.stream() == stream(on));
        if !block.is_null() {
            self.checker.handed_out(block.address(), block.size_bytes(), block.stream());
            // Memory of the other kinds of pools may serve a request that does not rely on it.
            if matches!(self.kind_of_pools, Pools::Usual | Pools::Aliased) {
                self.checker.relied_on(block.address(), block.size_bytes(), self.pool_for(on));
            }
        }
        self.held.push(Held { block, noted: Vec::new(), after: Vec::new() });
        Ok(())
    }

    fn free(&mut self, index: usize, elsewhere: bool) {
        let Held { block, noted, mut after } = self.held.swap_remove(index);
        if !block.is_null() {
            let streams = noted.into_iter().chain([block.stream()]);
            after.extend(streams.map(|on| self.checker.touched(on)));
            self.checker.given_back(block.address(), block.size_bytes(), &after);
        }
        if elsewhere {
            let dropped = std::thread::scope(|scope| scope.spawn(move || drop(block)).join());
            dropped.unwrap_or_else(|panic| resume_unwind(panic));
        } else {
            drop(block);
        }
    }

    fn empty_cache(&mut self, pool: Option<usize>) -> Result<(), AllocationError> {
        let emptied = match pool {
            None => self.allocator.empty_cache(),
            Some(pool) => {
                // Code that calls this does not rely on the addresses; in a capture it is refused.
                if !self.is_capturing() {
                    self.checker.let_go_of(self.pools[pool]);
                }
                self.allocator.empty_pool_cache(self.pools[pool])
            }
        };
        match emptied {
            Err(error) if error.is_capture() => {
                assert!(self.is_capturing(), "{error}");
                Ok(())
            }
            other => other,
        }
    }

    fn begin(&mut self, pool: usize, filter: Option<u64>) {
        let begun = |open: &Open| matches!(open, Open::Capture { pool: one, .. } if *one == pool);
        let possible = self.allocator.pool_use_count(self.pools[pool]) > 0 && !self.open.iter().any(begun);
        let chosen = filter.map_or(StreamFilter::All, |on| StreamFilter::Stream(stream(on)));
        let begun = self.allocator.begin_allocate_to_pool(self.pools[pool], chosen);
        assert_eq!(begun.is_ok(), possible, "{begun:?}");
        if possible {
            self.checker.begin_capture(filter.map(stream));
            self.open.push(Open::Capture { pool, filter });
        }
    }

    fn leave(&mut self, mut place: usize) -> Result<(), AllocationError> {
        if let Open::Scope { pool, .. } = self.open[place] {
            // Of several scopes of one pool the innermost ends.
            let same = |open: &Open| matches!(open, Open::Scope { pool: one, .. } if *one == pool);
            place = self.open.iter().rposition(same).expect("there is one at least");
        }
        match self.open.remove(place) {
            Open::Capture { pool, filter } => {
                self.checker.end_capture(filter.map(stream));
                self.allocator.end_allocate_to_pool(self.pools[pool])?;
            }
            Open::Scope { .. } => {}
        }
        Ok(())
    }

    /// Reports to the checker the pools that nothing relies on any more.
    fn forget_released(&self) {
        let released = self.pools.iter().filter(|pool| self.allocator.pool_use_count(**pool) == 0);
        released.for_each(|pool| self.checker.let_go_of(*pool));
    }

    /// Changes a setting at run time.
    fn change(&mut self, what: u8) -> Result<(), AllocationError> {
        let now = self.allocator.settings();
        let changed = match what % 8 {
            0 => now.with_max_split_size_bytes(30 * MIB).expect("at least 20 MiB"),
            1 => now.with_max_split_size_bytes(21 * MIB).expect("at least 20 MiB"),
            2 => {
                let on = !now.stitching();
                now.with_stitching(on)
            }
            3 => now.with_cross_stream_reuse(CrossStreamReuse::Ordered),
            4 => now.with_cross_stream_reuse(CrossStreamReuse::Idle),
            5 => now.with_record_use_depth(1),
            6 => {
                let on = !now.expandable_segments();
                now.with_expandable_segments(on)
            }
            _ => now.with_garbage_collection_threshold(0.3).expect("between 0 and 1"),
        };
        self.allocator.set_settings(changed)
    }

    /// Asserts that there is no eligible free block, and no room, for a request that has just failed.
    fn assert_nothing_fits(&self, bytes: u64, on: u64) {
        let settings = self.allocator.settings();
        let size_bytes = match settings.last_resort() {
            true => bytes.next_multiple_of(512),
            false => settings.roundup_power2_divisions().round_size(bytes),
        };
        let pool = self.pool_for(on);
        let anywhere = settings.cross_stream_reuse() != CrossStreamReuse::Never && !self.is_capturing();
        if settings.last_resort() {
            for segment in self.allocator.snapshot() {
                // A pool that helps does so only on the stream of its memory.
                let helps = self.kind_of_pools == Pools::UseOnOom && pool.is_none() && !self.is_capturing();
                let own = segment.stream == stream(on);
                let is_eligible = segment.pool == pool && (own || anywhere) || helps && own;
                let fits = |state, size| state == BlockState::Inactive && size >= size_bytes;
                let free = segment.blocks.iter().find(|block| fits(block.state, block.size_bytes));
                assert!(
                    !is_eligible || free.is_none(),
                    "{bytes} bytes on {on} would fit in {free:?} of {segment:?}"
                );
            }
        }
        let limit = self.allowed_bytes.min(self.capacity_bytes);
        let is_sourced = pool.is_some() && self.kind_of_pools == Pools::Sourced;
        let may_grow = settings.expandable_segments() && !is_sourced;
        let expandable = may_grow && self.checker.fake.has_virtual_memory();
        let class = if size_bytes <= MIB { SizeClass::Small } else { SizeClass::Large };
        let plain_bytes = match class {
            SizeClass::Small => 2 * MIB,
            SizeClass::Large => size_bytes.next_multiple_of(2 * MIB).max(20 * MIB),
        };
        let paged_bytes = |class| size_bytes.next_multiple_of(settings.expandable_page_bytes(class));
        let growth = |class| paged_bytes(class).min(self.least_growth(size_bytes, pool, on, class));
        let segment_bytes = match (expandable, settings.stitching()) {
            (false, _) => plain_bytes,
            (true, false) => paged_bytes(class).max(plain_bytes),
            (true, true) if settings.last_resort() => growth(class).min(growth(SizeClass::Small)),
            (true, true) => growth(class),
        };
        let reserved_bytes = self.checker.reserved_bytes();
        assert!(
            reserved_bytes + segment_bytes > limit,
            "{bytes} bytes on {on}: of {limit} only {reserved_bytes} are taken, and {segment_bytes} are missing"
        );
    }

    /// Returns the fewest bytes of pages of a class that would have to be mapped after memory of a stream, so that `size_bytes`
    /// are free there.
    fn least_growth(&self, size_bytes: u64, pool: Option<PoolId>, on: u64, class: SizeClass) -> u64 {
        let (mapped, ranges) = (self.checker.fake.mapped_pages(), self.checker.fake.reserved_ranges());
        let page_bytes = self.allocator.settings().expandable_page_bytes(class);
        let growth = |segment: &SegmentSnapshot| {
            let end = segment.address + segment.total_bytes;
            let last = segment.blocks.last().filter(|block| block.state == BlockState::Inactive);
            let free_bytes = last.map_or(0, |block| block.size_bytes);
            let missing_bytes = size_bytes.saturating_sub(free_bytes).next_multiple_of(page_bytes);
            let after = end..end + missing_bytes;
            let there = ranges.iter().any(|(start, size)| *start < end && after.end <= start + size);
            let open = !mapped.iter().any(|(start, ..)| after.contains(start));
            (there && open).then_some(missing_bytes)
        };
        let snapshot = self.allocator.snapshot();
        let own = |segment: &&SegmentSnapshot| {
            segment.is_expandable
                && (segment.pool, segment.stream, segment.class) == (pool, stream(on), class)
        };
        snapshot.iter().filter(own).filter_map(growth).min().unwrap_or(u64::MAX)
    }

    /// Asserts the conditions that hold at any time.
    pub fn assert_valid(&self) {
        assert_eq!(self.checker.violations(), Vec::<String>::new());
        let snapshot = self.allocator.snapshot();
        let held = self.held.iter().filter(|held| !held.block.is_null());
        let held: BTreeMap<_, _> = held.map(|held| (held.block.address(), held.block.size_bytes())).collect();
        assert_eq!(assert_tiled(&snapshot), held, "what is allocated is what the program holds");
        self.assert_statistics(&snapshot, &held);
    }

    fn assert_statistics(&self, snapshot: &[SegmentSnapshot], held: &BTreeMap<u64, u64>) {
        let statistics = self.allocator.statistics();
        let blocks = || snapshot.iter().flat_map(|segment| &segment.blocks);
        let active = || blocks().filter(|block| block.state != BlockState::Inactive);
        let plain = snapshot.iter().filter(|one| !one.is_expandable && one.blocks.len() > 1);
        let split = plain.flat_map(|one| &one.blocks).filter(|block| block.state == BlockState::Inactive);
        let (split, split_bytes) =
            split.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.size_bytes));
        let figures = [
            ("allocation", &statistics.allocation, held.len() as u64),
            ("allocated_bytes", &statistics.allocated_bytes, held.values().sum()),
            ("active", &statistics.active, active().count() as u64),
            ("active_bytes", &statistics.active_bytes, active().map(|block| block.size_bytes).sum()),
            (
                "requested_bytes",
                &statistics.requested_bytes,
                active().map(|block| block.requested_bytes).sum(),
            ),
            ("inactive_split", &statistics.inactive_split, split),
            ("inactive_split_bytes", &statistics.inactive_split_bytes, split_bytes),
            ("segment", &statistics.segment, self.checker.fake.live_segments().len() as u64),
            ("reserved_bytes", &statistics.reserved_bytes, self.checker.reserved_bytes()),
        ];
        for (name, by_pool, expected) in figures {
            assert_eq!(by_pool.all.current, expected, "{name}");
            let parts = by_pool.small_pool.current + by_pool.large_pool.current;
            assert_eq!(parts, expected, "{name} by pool");
            assert!(by_pool.all.peak >= expected, "{name}: the peak is too low");
        }
        for (pool, statistic) in &statistics.reserved_bytes_by_private_pools {
            let own = snapshot.iter().filter(|segment| segment.pool == Some(*pool));
            assert_eq!(statistic.current, own.map(|segment| segment.total_bytes).sum::<u64>(), "{pool:?}");
        }
        let oversize = statistics.max_split_size.unwrap_or(u64::MAX);
        let large = held.values().filter(|bytes| **bytes >= oversize).count() as u64;
        assert_eq!(statistics.oversize_allocations.current, large, "oversize_allocations");
    }

    /// Drops everything that the program holds.
    pub fn let_go(&mut self) {
        while let Some(open) = self.open.len().checked_sub(1) {
            self.leave(open).expect("no fault is left");
        }
        while !self.held.is_empty() {
            self.free(0, false);
        }
        for (&pool, references) in self.pools.iter().zip(&mut self.references) {
            for _ in 0..std::mem::take(references) {
                self.allocator.release_pool(pool).expect("the program holds this reference");
            }
        }
        self.forget_released();
    }

    /// Ends the program: everything must be returned, after the cache is emptied or when the allocator is dropped.
    pub fn finish(mut self, emptied: bool) {
        self.let_go();
        if emptied {
            self.allocator.process_events();
            self.checker.complete_all();
            self.allocator.process_events();
            self.allocator.empty_cache().expect("no fault is left");
            self.assert_valid();
            // The event of a fence that checks a stream's progress may not have passed yet.
            let fences = STREAMS as usize * (self.pools.len() + 1);
            let [segments, pages, ranges, mapped, events] = self.checker.held();
            assert_eq!([segments, pages, ranges, mapped], [0; 4], "all goes back when the cache is emptied");
            assert!(events <= fences, "{events} events are left");
            let left = self.allocator.memory_stats().into_iter();
            let left: Vec<_> = left.filter(|(key, value)| key.ends_with(".current") && *value > 0).collect();
            assert_eq!(left, []);
        }
        drop(self.allocator);
        assert_eq!(self.checker.held(), [0; 5], "all goes back when the allocator goes");
        assert_eq!(self.checker.violations(), Vec::<String>::new());
    }
}

/// Asserts that blocks tile their segments. Returns the blocks that callers hold.
fn assert_tiled(snapshot: &[SegmentSnapshot]) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    for segment in snapshot {
        let (mut end, mut was_free) = (segment.address, false);
        for block in &segment.blocks {
            assert_eq!(block.address, end, "blocks tile their segment");
            assert!(block.size_bytes > 0 && block.size_bytes.is_multiple_of(512));
            let free = block.state == BlockState::Inactive;
            assert!(!(was_free && free), "free neighbours are merged");
            was_free = free;
            end += block.size_bytes;
            if block.state == BlockState::ActiveAllocated {
                live.insert(block.address, block.size_bytes);
            }
        }
        assert_eq!(end, segment.address + segment.total_bytes, "no byte is lost");
    }
    live
}
