//! A second implementation of the allocator, as simple as possible: lists and linear searches, no indices, no sets.
//!
//! It takes the documented decisions (best fit on the stream, split, merge, the slow path when memory is short) by searching
//! everything each time. Its statistics are sums over the present state. It shares no code with the allocator, and runs on a fake
//! upstream of its own that is driven in the same way, so that the two must agree on every address.

use std::collections::BTreeMap;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{BlockState, DeviceStatistics, SegmentSnapshot, SizeClass, StreamId, Upstream};

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Cell {
    Free,
    Live {
        handle: usize,
        requested: u64,
    },
    /// The streams that the cell waits for, each with the position of its event once there is one.
    Pending {
        handle: usize,
        requested: u64,
        waits: Vec<(u64, Option<u64>)>,
    },
}

#[derive(Debug)]
struct Segment {
    address: u64,
    stream: u64,
    small: bool,
    pool: Option<usize>,
    cells: Vec<(u64, Cell)>,
}

impl Segment {
    fn size(&self) -> u64 {
        self.cells.iter().map(|(size, _)| size).sum()
    }

    fn merge(&mut self) {
        let mut merged: Vec<(u64, Cell)> = Vec::new();
        for (size, cell) in self.cells.drain(..) {
            match merged.last_mut() {
                Some((before, Cell::Free)) if matches!(cell, Cell::Free) => *before += size,
                _ => merged.push((size, cell)),
            }
        }
        self.cells = merged;
    }

    fn is_whole(&self) -> bool {
        matches!(self.cells[..], [(_, Cell::Free)])
    }
}

#[derive(Debug, Default)]
struct Timeline {
    recorded: u64,
    passed: u64,
}

#[derive(Debug)]
pub struct Model {
    upstream: FakeUpstream,
    max_split: u64,
    allowed: u64,
    segments: Vec<Segment>,
    timelines: BTreeMap<u64, Timeline>,
    /// Handles of blocks freed during a capture, oldest first.
    deferred: Vec<usize>,
    /// Stream and pool of every first allocation of its kind: postponed events are recorded in this order.
    kinds: Vec<(u64, Option<usize>)>,
    /// References of each private pool ever created.
    pools: Vec<usize>,
    /// Open scopes: pool, and the stream or all.
    scopes: Vec<(usize, Option<u64>)>,
    peaks: BTreeMap<String, u64>,
    sums: BTreeMap<&'static str, u64>,
}

impl Model {
    pub fn new(capacity: u64, max_split: Option<u64>) -> Self {
        Self {
            upstream: FakeUpstream::new(capacity),
            max_split: max_split.unwrap_or(u64::MAX),
            allowed: u64::MAX,
            segments: Vec::new(),
            timelines: BTreeMap::new(),
            deferred: Vec::new(),
            kinds: Vec::new(),
            pools: Vec::new(),
            scopes: Vec::new(),
            peaks: BTreeMap::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Records a request on a stream, which may be the first of its kind.
    pub fn ask(&mut self, stream: u64) {
        let kind = (stream, self.pool_for(stream));
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    fn pool_for(&self, stream: u64) -> Option<usize> {
        let scope = self.scopes.iter().rev().find(|(_, filter)| filter.is_none_or(|only| only == stream));
        scope.map(|(pool, _)| *pool)
    }

    pub fn allocate(&mut self, handle: usize, requested: u64, stream: u64) -> Option<(u64, u64)> {
        self.process();
        let size = requested.div_ceil(512) * 512;
        let small = size <= MIB;
        let pool = self.pool_for(stream);
        let key = (stream, small, pool);
        let (segment, cell) = self.find(size, key).or_else(|| self.reserve(size, key)).or_else(|| {
            if !self.scopes.is_empty() {
                return None;
            }
            self.run(size, key)
        })?;
        let segment = &mut self.segments[segment];
        let offset: u64 = segment.cells[..cell].iter().map(|(size, _)| size).sum();
        let rest = segment.cells[cell].0 - size;
        let split = if small { rest >= 512 } else { rest > MIB && size < self.max_split };
        if split {
            segment.cells[cell].0 = size;
            segment.cells.insert(cell + 1, (rest, Cell::Free));
        }
        segment.cells[cell].1 = Cell::Live { handle, requested };
        let found = (segment.address + offset, segment.cells[cell].0);
        self.note();
        Some(found)
    }

    pub fn count_out_of_memory(&mut self) {
        *self.sums.entry("num_ooms").or_default() += 1;
        self.note();
    }

    pub fn free(&mut self, handle: usize, uses: &[u64]) {
        let recording = self.scopes.is_empty();
        let timelines = &mut self.timelines;
        let (segment, cell) = position(&self.segments, handle);
        let state = &mut self.segments[segment].cells[cell].1;
        let Cell::Live { requested, .. } = *state else { panic!("{handle} is freed twice") };
        if uses.is_empty() {
            *state = Cell::Free;
            self.segments[segment].merge();
        } else {
            let waits =
                uses.iter().map(|&stream| (stream, recording.then(|| record(timelines, stream)))).collect();
            *state = Cell::Pending { handle, requested, waits };
            if !recording {
                self.deferred.push(handle);
            }
        }
        self.note();
    }

    pub fn process(&mut self) {
        self.process_where(|_, _| true);
    }

    fn process_where(&mut self, chosen: impl Fn(&[usize], &Segment) -> bool) {
        if self.scopes.is_empty() {
            let (timelines, pools) = (&self.timelines, &self.pools);
            for segment in self.segments.iter_mut().filter(|segment| chosen(pools, segment)) {
                for (_, cell) in &mut segment.cells {
                    if let Cell::Pending { waits, .. } = cell
                        && waits.iter().all(|(stream, place)| {
                            place.is_some_and(|place| place <= timelines[stream].passed)
                        })
                    {
                        *cell = Cell::Free;
                    }
                }
                segment.merge();
            }
        }
        self.note();
    }

    pub fn complete(&mut self, stream: u64, at_most: u64) {
        if let Some(timeline) = self.timelines.get_mut(&stream) {
            timeline.passed = timeline.recorded.min(timeline.passed.saturating_add(at_most));
        }
    }

    pub fn empty_cache(&mut self) {
        *self.sums.entry("num_sync_all_streams").or_default() += 1;
        let waits =
            self.segments.iter().flat_map(|segment| &segment.cells).filter_map(|(_, cell)| match cell {
                Cell::Pending { waits, .. } => Some(waits),
                _ => None,
            });
        for (stream, place) in waits.flatten() {
            let timeline = self.timelines.get_mut(stream).expect("what waits was recorded");
            timeline.passed = timeline.passed.max(place.expect("nothing is deferred outside of captures"));
        }
        self.process();
        self.release_where(|model, segment| segment.pool.is_none_or(|pool| model.pools[pool] == 0));
        self.note();
    }

    pub fn set_allowed(&mut self, allowed: u64) {
        self.allowed = allowed;
    }

    pub fn create_pool(&mut self) {
        self.pools.push(1);
    }

    /// Returns whether the pool has a reference.
    pub fn is_referenced(&self, pool: usize) -> bool {
        self.pools[pool] > 0
    }

    pub fn retain_pool(&mut self, pool: usize) {
        self.pools[pool] += 1;
    }

    pub fn release_pool(&mut self, pool: usize) {
        self.pools[pool] -= 1;
    }

    pub fn is_begun(&self, pool: usize) -> bool {
        self.scopes.iter().any(|(begun, _)| *begun == pool)
    }

    /// Returns the remaining memory of pools without references, before the first capture.
    pub fn begin(&mut self, pool: usize, filter: Option<u64>) {
        self.pools[pool] += 1;
        if self.scopes.is_empty() {
            let is_left =
                |pools: &[usize], segment: &Segment| segment.pool.is_some_and(|pool| pools[pool] == 0);
            self.process_where(is_left);
            self.release_where(|model, segment| is_left(&model.pools, segment));
        }
        self.scopes.push((pool, filter));
    }

    pub fn end(&mut self, pool: usize) {
        self.pools[pool] -= 1;
        self.scopes.retain(|(begun, _)| *begun != pool);
        if self.scopes.is_empty() {
            let mut deferred = std::mem::take(&mut self.deferred);
            deferred.sort_by_key(|handle| {
                let segment = &self.segments[position(&self.segments, *handle).0];
                self.kinds.iter().position(|kind| *kind == (segment.stream, segment.pool))
            });
            for handle in deferred {
                let (segment, cell) = position(&self.segments, handle);
                let Cell::Pending { waits, .. } = &mut self.segments[segment].cells[cell].1 else {
                    panic!("{handle} is deferred, so it is pending")
                };
                for (stream, place) in waits {
                    *place = Some(record(&mut self.timelines, *stream));
                }
            }
        }
    }

    pub fn is_capturing(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Returns the smallest free cell, the lowest address among equals.
    fn find(&self, size: u64, key: (u64, bool, Option<usize>)) -> Option<(usize, usize)> {
        let mut best: Option<(u64, u64, usize, usize)> = None;
        for (s, segment) in self.segments.iter().enumerate() {
            if (segment.stream, segment.small, segment.pool) != key {
                continue;
            }
            let mut address = segment.address;
            for (c, (cell_size, cell)) in segment.cells.iter().enumerate() {
                let candidate = (*cell_size, address, s, c);
                if matches!(cell, Cell::Free)
                    && *cell_size >= size
                    && best.is_none_or(|best| candidate < best)
                {
                    best = Some(candidate);
                }
                address += cell_size;
            }
        }
        let (found, _, segment, cell) = best?;
        let fits = if size < self.max_split { found < self.max_split } else { found < size + 20 * MIB };
        fits.then_some((segment, cell))
    }

    fn reserve(
        &mut self,
        size: u64,
        (stream, small, pool): (u64, bool, Option<usize>),
    ) -> Option<(usize, usize)> {
        let segment_size = match size {
            _ if small => 2 * MIB,
            _ if size < 10 * MIB => 20 * MIB,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        };
        if self.reserved() + segment_size > self.allowed {
            return None;
        }
        let address = self.upstream.allocate(segment_size, StreamId::from_raw(stream)).ok()?;
        *self.sums.entry("num_device_alloc").or_default() += 1;
        self.segments.push(Segment { address, stream, small, pool, cells: vec![(segment_size, Cell::Free)] });
        Some((self.segments.len() - 1, 0))
    }

    /// Models the slow path when the upstream has run out of memory.
    fn run(&mut self, size: u64, key: (u64, bool, Option<usize>)) -> Option<(usize, usize)> {
        if self.release_oversize(size, key)
            && let Some(found) = self.reserve(size, key)
        {
            return Some(found);
        }
        self.empty_cache();
        *self.sums.entry("num_alloc_retries").or_default() += 1;
        self.reserve(size, key)
    }

    fn release_oversize(&mut self, size: u64, key: (u64, bool, Option<usize>)) -> bool {
        if self.max_split == u64::MAX {
            return false;
        }
        let needed = size.max(self.max_split);
        let mut cached: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|segment| (segment.stream, segment.small, segment.pool) == key && segment.is_whole())
            .map(|segment| (segment.size(), segment.address))
            .filter(|(size, _)| *size >= self.max_split)
            .collect();
        cached.sort();
        let enough = cached.iter().position(|(size, _)| *size >= needed);
        let chosen: Vec<(u64, u64)> = match enough {
            Some(first) => vec![cached[first]],
            None => {
                let mut sum = 0;
                let until_enough = |(size, _): &(u64, u64)| {
                    let wanted = sum < needed;
                    sum += size;
                    wanted
                };
                cached.into_iter().rev().take_while(until_enough).collect()
            }
        };
        self.release_where(|_, segment| chosen.contains(&(segment.size(), segment.address)));
        chosen.iter().map(|(size, _)| size).sum::<u64>() >= needed
    }

    fn release_where(&mut self, chosen: impl Fn(&Self, &Segment) -> bool) {
        let (gone, kept) = std::mem::take(&mut self.segments)
            .into_iter()
            .partition(|segment| segment.is_whole() && chosen(self, segment));
        self.segments = kept;
        for segment in gone {
            self.upstream
                .free(segment.address, segment.size(), StreamId::from_raw(segment.stream))
                .expect("no fault is injected here");
            *self.sums.entry("num_device_free").or_default() += 1;
        }
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().map(Segment::size).sum()
    }

    /// Returns the present values, under PyTorch's keys without the last part.
    fn currents(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        let mut add = |name: &str, small: bool, amount: u64| {
            let pool = if small { "small_pool" } else { "large_pool" };
            *sums.entry(format!("{name}.all")).or_insert(0) += amount;
            *sums.entry(format!("{name}.{pool}")).or_insert(0) += amount;
        };
        for segment in &self.segments {
            let small = segment.small;
            add("segment", small, 1);
            add("reserved_bytes", small, segment.size());
            for (size, cell) in &segment.cells {
                match cell {
                    Cell::Free if segment.cells.len() == 1 => {}
                    Cell::Free => {
                        add("inactive_split", small, 1);
                        add("inactive_split_bytes", small, *size);
                    }
                    Cell::Live { requested, .. } | Cell::Pending { requested, .. } => {
                        add("active", small, 1);
                        add("active_bytes", small, *size);
                        add("requested_bytes", small, *requested);
                    }
                }
                if matches!(cell, Cell::Live { .. }) {
                    add("allocation", small, 1);
                    add("allocated_bytes", small, *size);
                }
            }
        }
        let oversize = |size: &u64| *size >= self.max_split;
        let live = self.segments.iter().flat_map(|segment| &segment.cells);
        let live = live.filter(|(size, cell)| matches!(cell, Cell::Live { .. }) && oversize(size));
        sums.insert("oversize_allocations".to_owned(), live.count() as u64);
        let segments = self.segments.iter().filter(|segment| oversize(&segment.size()));
        sums.insert("oversize_segments".to_owned(), segments.count() as u64);
        sums
    }

    /// Updates the peaks at the end of an operation: within one, memory is first released and then taken.
    fn note(&mut self) {
        for (key, current) in self.currents() {
            let peak = self.peaks.entry(key).or_default();
            *peak = current.max(*peak);
        }
    }

    pub fn assert_statistics(&self, statistics: &DeviceStatistics) {
        let currents = self.currents();
        let stats: BTreeMap<String, u64> = statistics
            .memory_stats()
            .into_iter()
            .filter(|(key, _)| key != "max_split_size" && !key.starts_with("reserved_bytes_by_private_pools"))
            .map(|(key, value)| (key, value.try_into().expect("all others are counts")))
            .filter(|(key, _)| key != "pending_use_bytes")
            .collect();
        for (key, value) in &stats {
            let Some((name, figure)) = key.rsplit_once('.') else {
                assert_eq!(*value, self.sums.get(key.as_str()).copied().unwrap_or(0), "{key}");
                continue;
            };
            match figure {
                "current" => assert_eq!(*value, currents.get(name).copied().unwrap_or(0), "{key}"),
                // Blocks that become free at the same time may be counted one after the other.
                "peak" if name.starts_with("inactive_split") => {}
                "peak" => assert_eq!(*value, self.peaks.get(name).copied().unwrap_or(0), "{key}"),
                "allocated" => assert_eq!(
                    value - stats[&format!("{name}.freed")],
                    currents.get(name).copied().unwrap_or(0),
                    "{key} less what was freed is what there is"
                ),
                _ => {}
            }
        }
    }

    pub fn assert_layout(
        &self,
        snapshot: &[SegmentSnapshot],
        pool_number: impl Fn(&SegmentSnapshot) -> Option<usize>,
    ) {
        assert_eq!(snapshot.len(), self.segments.len(), "{snapshot:#?}\n{:#?}", self.segments);
        let mut segments: Vec<&Segment> = self.segments.iter().collect();
        segments.sort_by_key(|segment| segment.address);
        for (theirs, ours) in snapshot.iter().zip(segments) {
            assert_eq!(theirs.address, ours.address);
            assert_eq!(theirs.stream, StreamId::from_raw(ours.stream));
            assert_eq!(theirs.class == SizeClass::Small, ours.small);
            assert_eq!(pool_number(theirs), ours.pool);
            let blocks: Vec<_> = theirs
                .blocks
                .iter()
                .map(|block| (block.size_bytes, block.requested_bytes, block.state))
                .collect();
            let cells: Vec<_> = ours
                .cells
                .iter()
                .map(|(size, cell)| match cell {
                    Cell::Free => (*size, 0, BlockState::Inactive),
                    Cell::Live { requested, .. } => (*size, *requested, BlockState::ActiveAllocated),
                    Cell::Pending { requested, .. } => (*size, *requested, BlockState::ActivePendingFree),
                })
                .collect();
            assert_eq!(blocks, cells, "in the segment at {:#x}", ours.address);
        }
    }
}

fn position(segments: &[Segment], wanted: usize) -> (usize, usize) {
    for (s, segment) in segments.iter().enumerate() {
        for (c, (_, cell)) in segment.cells.iter().enumerate() {
            if let Cell::Live { handle, .. } | Cell::Pending { handle, .. } = cell
                && *handle == wanted
            {
                return (s, c);
            }
        }
    }
    panic!("the model lost {wanted}")
}

fn record(timelines: &mut BTreeMap<u64, Timeline>, stream: u64) -> u64 {
    let timeline = timelines.entry(stream).or_default();
    timeline.recorded += 1;
    timeline.recorded
}
