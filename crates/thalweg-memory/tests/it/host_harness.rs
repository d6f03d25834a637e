//! Random programs for the host allocator, with a plain model of which stream may use what.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{AllocationError, HostAllocator, HostBlock, PoolId, Settings, StreamFilter};

use crate::harness::{STREAMS, pytorch, stream};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A step of a program. Blocks and pools are named by any number, which is taken modulo their count.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate { bytes: u64, stream: u64 },
    Free { block: usize },
    RecordUse { block: usize, stream: u64 },
    RecordStream { block: usize, stream: u64 },
    CompleteNext { stream: u64 },
    CompleteStream { stream: u64 },
    ProcessEvents,
    EmptyCache,
    SetSettings { number: usize },
    CreatePool,
    ReleasePool { pool: usize },
    Begin { pool: usize, filter: Option<u64> },
    End { pool: usize },
}

pub fn op() -> impl Strategy<Value = Op> {
    let on = || 1..=STREAMS;
    let any = any::<usize>;
    let bytes = prop_oneof![Just(0), 1..=4 * KIB, 4 * KIB..=MIB, MIB..=6 * MIB];
    prop_oneof![
        25 => (bytes, on()).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        22 => any().prop_map(|block| Op::Free { block }),
        12 => (any(), on()).prop_map(|(block, stream)| Op::RecordUse { block, stream }),
        6 => (any(), on()).prop_map(|(block, stream)| Op::RecordStream { block, stream }),
        6 => on().prop_map(|stream| Op::CompleteNext { stream }),
        3 => on().prop_map(|stream| Op::CompleteStream { stream }),
        3 => Just(Op::ProcessEvents),
        1 => Just(Op::EmptyCache),
        1 => any().prop_map(|number| Op::SetSettings { number }),
        1 => Just(Op::CreatePool),
        2 => any().prop_map(|pool| Op::ReleasePool { pool }),
        3 => (any(), prop::option::of(on())).prop_map(|(pool, filter)| Op::Begin { pool, filter }),
        4 => any().prop_map(|pool| Op::End { pool }),
    ]
}

/// Returns settings that determine which block serves which request.
pub fn settings(number: usize) -> Settings {
    match number % 5 {
        0 | 1 => Settings::default(),
        2 => pytorch(),
        3 => pytorch()
            .with_pinned_max_round_threshold_bytes(MIB)
            .and_then(|settings| settings.with_pinned_max_cached_size_bytes(2 * MIB))
            .expect("whole numbers of MiB"),
        _ => Settings::default()
            .with_pinned_max_round_threshold_bytes(0)
            .expect("a whole number of MiB")
            .with_pinned_use_cuda_host_register(true),
    }
}

/// The time at which a use of a freed block is over.
#[derive(Clone, Copy, Debug)]
enum Over {
    /// The use is over when this number of events of the stream has passed.
    Passed(u64),
    /// The use is not over before this number of events has passed: its own event had to wait for the end of a capture.
    NotBefore(u64),
}

/// The uses of a block that the program holds: the event's position on its stream's timeline, or `None` for a mark.
type Uses = BTreeMap<u64, Option<u64>>;

pub struct Held {
    pub block: HostBlock,
    uses: Uses,
    captured_by: Vec<usize>,
}

/// Memory that was freed and may still be used.
struct Freed {
    address: u64,
    size: u64,
    uses: Vec<(u64, Over)>,
    captured_by: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Shared,
    Pool(usize),
}

struct Pool {
    id: PoolId,
    released: bool,
    closed: bool,
}

/// An allocator on a fake upstream, with the program's side of it.
pub struct Harness {
    pub upstream: Arc<FakeUpstream>,
    pub allocator: Arc<HostAllocator>,
    pub held: Vec<Held>,
    freed: Vec<Freed>,
    /// The owners of blocks by address; blocks that are missing here are shared.
    owners: BTreeMap<u64, Owner>,
    pools: Vec<Pool>,
    /// The open scopes, in the order in which they began.
    scopes: Vec<(usize, Option<u64>)>,
    pub faulty: bool,
}

impl Harness {
    pub fn new(capacity: u64) -> Self {
        let upstream = Arc::new(FakeUpstream::new(capacity));
        let allocator = HostAllocator::new(upstream.clone(), Settings::default());
        Self {
            upstream,
            allocator,
            held: Vec::new(),
            freed: Vec::new(),
            owners: BTreeMap::new(),
            pools: Vec::new(),
            scopes: Vec::new(),
            faulty: false,
        }
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Allocate { bytes, stream } => self.allocate(bytes, stream),
            Op::Free { block } if !self.held.is_empty() => self.free(block % self.held.len()),
            Op::RecordUse { block, stream } if !self.held.is_empty() => {
                self.record(block % self.held.len(), stream, true);
            }
            Op::RecordStream { block, stream } if !self.held.is_empty() => {
                self.record(block % self.held.len(), stream, false);
            }
            Op::CompleteNext { stream: on } => self.upstream.complete_next(stream(on)),
            Op::CompleteStream { stream: on } => self.upstream.complete_stream(stream(on)),
            Op::ProcessEvents => self.process_events(),
            Op::EmptyCache => match self.allocator.empty_cache() {
                Ok(()) => assert!(self.scopes.is_empty(), "events are touched during a capture"),
                Err(error) => {
                    assert!(self.faulty || error.is_capture() && !self.scopes.is_empty(), "{error}")
                }
            },
            Op::SetSettings { number } => self.allocator.set_settings(settings(number)),
            Op::CreatePool => {
                let id = self.allocator.create_pool();
                self.pools.push(Pool { id, released: false, closed: false });
            }
            Op::ReleasePool { pool } if !self.pools.is_empty() => self.release(pool % self.pools.len()),
            Op::Begin { pool, filter } if !self.pools.is_empty() => {
                self.begin(pool % self.pools.len(), filter);
            }
            Op::End { pool } if !self.pools.is_empty() => self.end(pool % self.pools.len()),
            _ => {}
        }
    }

    /// Returns the pool of the scope that matches a request for, or a use on, this stream.
    fn scope_for(&self, on: u64) -> Option<usize> {
        let serves = |scope: &&(usize, Option<u64>)| scope.1.is_none_or(|filter| filter == on);
        self.scopes.iter().rev().find(serves).map(|&(pool, _)| pool)
    }

    fn is_over(&self, &(on, over): &(u64, Over)) -> bool {
        let (Over::Passed(place) | Over::NotBefore(place)) = over;
        self.upstream.passed_events(stream(on)) >= place
    }

    fn is_kept(&self, freed: &Freed) -> bool {
        freed.captured_by.iter().any(|&pool| !self.pools[pool].closed)
    }

    fn allocate(&mut self, bytes: u64, on: u64) {
        let owner = self.scope_for(on).map_or(Owner::Shared, Owner::Pool);
        let block = match self.allocator.allocate_on(bytes, stream(on)) {
            Ok(block) => block,
            Err(error) => return self.check_failure(&error, bytes, owner),
        };
        if block.is_null() {
            return assert_eq!(bytes, 0);
        }
        let (address, size) = (block.address(), block.size_bytes());
        assert!(size >= bytes, "{block:?} is too small");
        let overlaps = |start: u64, length: u64| address < start + length && start < address + size;
        for Held { block: other, .. } in &self.held {
            assert!(!overlaps(other.address(), other.size_bytes()), "{block:?} overlaps {other:?}");
        }
        let upstream = &self.upstream;
        let live: BTreeMap<u64, u64> = upstream.live_host_allocations().into_iter().collect();
        assert_eq!(live.get(&address), Some(&size), "{block:?} is not what was pinned");
        for freed in self.freed.iter().filter(|freed| overlaps(freed.address, freed.size)) {
            assert!(!self.is_kept(freed), "{block:?} is used by a graph");
            assert!(freed.uses.iter().all(|used| self.is_over(used)), "{block:?} is still used");
        }
        self.freed.retain(|freed| !overlaps(freed.address, freed.size));
        let former = self.owners.get(&address).copied().unwrap_or(Owner::Shared);
        assert!(
            former == owner || former == Owner::Shared,
            "{block:?} is from {former:?}, not from {owner:?}"
        );
        self.owners.insert(address, owner);
        self.held.push(Held { block, uses: Uses::new(), captured_by: Vec::new() });
    }

    /// Checks a failed request: it may fail for lack of memory only if no free block that it may use is large enough.
    fn check_failure(&self, error: &AllocationError, bytes: u64, owner: Owner) {
        if self.faulty {
            return;
        }
        assert!(error.is_out_of_memory(), "{error}");
        for (address, size) in self.upstream.live_host_allocations() {
            let is_held = self.held.iter().any(|held| held.block.address() == address);
            let may_be_used = self.freed.iter().any(|freed| {
                let waits = !freed.uses.is_empty() && !self.scopes.is_empty();
                freed.address == address && (self.is_kept(freed) || waits)
            });
            let belongs = self.owners.get(&address).copied().unwrap_or(Owner::Shared);
            let may_have = belongs == Owner::Shared || belongs == owner;
            assert!(
                is_held || may_be_used || !may_have || size < bytes,
                "{bytes} bytes were refused, but {size} at {address:#x} are free"
            );
        }
    }

    fn record(&mut self, index: usize, on: u64, precise: bool) {
        let captured = self.scope_for(on);
        let capturing = !self.scopes.is_empty();
        let Held { block, uses, captured_by } = &mut self.held[index];
        let before = self.upstream.recorded_events(stream(on));
        // The model changes first: a call that panics has recorded the use nevertheless.
        match captured {
            Some(pool) => captured_by.push(pool),
            None if capturing || !precise => _ = uses.insert(on, None),
            None => _ = uses.entry(on).or_insert(None),
        }
        if precise {
            block.record_use(stream(on))
        } else {
            block.record_stream(stream(on))
        }
        let after = self.upstream.recorded_events(stream(on));
        assert!(!capturing || after == before, "an event was recorded during a capture");
        if after > before {
            assert!(precise, "a mark records nothing before the free");
            uses.insert(on, Some(after));
        }
    }

    fn free(&mut self, index: usize) {
        let Held { block, uses, captured_by } = self.held.swap_remove(index);
        let capturing = !self.scopes.is_empty();
        let over = |(on, event): (u64, Option<u64>)| {
            let next = self.upstream.recorded_events(stream(on)) + 1;
            match event {
                Some(place) => (on, Over::Passed(place)),
                None if capturing || self.faulty => (on, Over::NotBefore(next)),
                None => (on, Over::Passed(next)),
            }
        };
        let uses: Vec<_> = uses.into_iter().map(over).collect();
        let (address, size) = (block.address(), block.size_bytes());
        self.freed.push(Freed { address, size, uses, captured_by });
        drop(block);
    }

    /// Processes the events; then every block whose events have passed must be free, whatever else has not passed.
    fn process_events(&mut self) {
        self.allocator.process_events();
        if self.faulty || !self.scopes.is_empty() {
            return;
        }
        let caught_up =
            |on: u64| self.upstream.passed_events(stream(on)) == self.upstream.recorded_events(stream(on));
        let (mut least, mut most) = (0, 0);
        for freed in &self.freed {
            let waits = |used: &&(u64, Over)| !self.is_over(used);
            let kept = self.is_kept(freed);
            least += u64::from(kept || freed.uses.iter().any(|used| waits(&used)));
            let may_wait = |used: &&(u64, Over)| match used.1 {
                Over::Passed(_) => waits(used),
                Over::NotBefore(_) => !caught_up(used.0),
            };
            most += u64::from(kept || freed.uses.iter().any(|used| may_wait(&used)));
        }
        let pending = self.allocator.statistics().pending.count;
        assert!((least..=most).contains(&pending), "{pending} blocks wait, not {least} to {most}");
    }

    fn release(&mut self, pool: usize) {
        let Pool { id, released, .. } = self.pools[pool];
        if released {
            // While a scope is open, the reference that this would release belongs to the scope.
            let open = self.scopes.iter().any(|scope| scope.0 == pool);
            return assert!(open || self.allocator.release_pool(id).is_err());
        }
        self.pools[pool].released = true;
        self.close_if_done(pool);
        self.allocator.release_pool(id).expect("the program holds a reference");
    }

    fn begin(&mut self, pool: usize, filter: Option<u64>) {
        let stream_filter = filter.map_or(StreamFilter::All, |on| StreamFilter::Stream(stream(on)));
        let allowed = !self.pools[pool].released && !self.scopes.iter().any(|scope| scope.0 == pool);
        let begun = self.allocator.begin_allocate_to_pool(self.pools[pool].id, stream_filter);
        assert_eq!(begun.is_ok(), allowed, "{begun:?}");
        if allowed {
            self.scopes.push((pool, filter));
        }
    }

    fn end(&mut self, pool: usize) {
        let id = self.pools[pool].id;
        let Some(position) = self.scopes.iter().position(|scope| scope.0 == pool) else {
            return assert!(self.allocator.end_allocate_to_pool(id).is_err());
        };
        self.scopes.remove(position);
        self.close_if_done(pool);
        self.allocator.end_allocate_to_pool(id).expect("the scope is open");
    }

    fn close_if_done(&mut self, pool: usize) {
        if self.pools[pool].released && !self.scopes.iter().any(|scope| scope.0 == pool) {
            self.pools[pool].closed = true;
            self.owners.retain(|_, owner| *owner != Owner::Pool(pool));
        }
    }

    /// Asserts the conditions that hold at any time.
    pub fn assert_valid(&mut self) {
        let live = self.upstream.live_host_allocations();
        self.owners.retain(|address, _| live.iter().any(|(start, _)| start == address));
        let statistics = self.allocator.statistics();
        assert_eq!(statistics.allocations.current, live.len() as u64);
        assert_eq!(statistics.allocated_bytes.current, live.iter().map(|(_, bytes)| bytes).sum::<u64>());
        let held_bytes: u64 = self.held.iter().map(|held| held.block.size_bytes()).sum();
        let active = held_bytes + statistics.pending.bytes;
        assert_eq!(statistics.active_bytes.current, active, "{statistics:?}");
        assert_eq!(
            statistics.active_requests.current,
            self.held.len() as u64 + statistics.pending.count,
            "{statistics:?}"
        );
        let quantities = [statistics.active_bytes, statistics.active_requests, statistics.allocated_bytes];
        assert!(quantities.iter().all(|quantity| quantity.peak >= quantity.current));
        assert!(quantities.iter().all(|quantity| quantity.allocated - quantity.freed == quantity.current));
        assert!(self.faulty || statistics.retired.count == 0);
    }

    /// Ends the program: everything is freed, and everything except lost memory must be returned.
    pub fn finish(mut self) {
        while let Some(&(pool, _)) = self.scopes.last() {
            self.end(pool);
        }
        while !self.held.is_empty() {
            self.free(0);
        }
        for pool in 0..self.pools.len() {
            if !self.pools[pool].released {
                self.release(pool);
            }
        }
        // Postponed events are recorded first.
        self.allocator.process_events();
        self.upstream.complete_all();
        self.allocator.process_events();
        let statistics = self.allocator.statistics();
        assert_eq!((statistics.active_requests.current, statistics.active_bytes.current), (0, 0));
        assert_eq!(statistics.pending.count, 0);
        self.allocator.empty_cache().expect("no fault is left");
        let lost = self.allocator.statistics().retired;
        assert_eq!(self.upstream.live_host_allocations().len() as u64, lost.count);
        assert_eq!(self.allocator.statistics().allocated_bytes.current, lost.bytes);
        assert_eq!(self.upstream.live_events(), 0);
    }
}
