//! Random programs, and an allocator with everything that is needed to run one and to check it.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    AllocationError, Block, BlockState, DeviceAllocator, Policy, PoolId, Settings, StreamFilter, StreamId,
};

/// The number of streams, which are numbered from 1.
pub const STREAMS: u64 = 3;

/// Our default settings, with pages so small that even little memory has many.
pub fn small_pages() -> Settings {
    Settings::default().with_expandable_page_bytes(2 << 20).expect("an even number of MiB")
}

/// Returns the settings that follow PyTorch's decisions.
pub fn pytorch() -> Settings {
    Settings::default().with_policy(Policy::PyTorch)
}

pub fn stream(number: u64) -> StreamId {
    StreamId::from_raw(number)
}

/// A step of a program. Blocks and pools are named by any number, which is taken modulo their count.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate { bytes: u64, stream: u64 },
    Free { block: usize },
    RecordStream { block: usize, stream: u64 },
    CompleteNext { stream: u64 },
    CompleteStream { stream: u64 },
    ProcessEvents,
    EmptyCache,
    SetMemoryFraction { percent: u64 },
    CreatePool,
    RetainPool { pool: usize },
    ReleasePool { pool: usize },
    Begin { pool: usize, filter: Option<u64> },
    End { pool: usize },
}

pub fn bytes() -> impl Strategy<Value = u64> {
    const MIB: u64 = 1 << 20;
    prop_oneof![
        1 => Just(0),
        6 => 1..=4096u64,
        4 => 4096..=MIB,
        4 => MIB..=10 * MIB,
        3 => 10 * MIB..=40 * MIB,
        1 => prop::sample::select(vec![512, 513, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let any_stream = || 1..=STREAMS;
    let pool = || any::<usize>();
    prop_oneof![
        30 => (bytes(), any_stream()).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        25 => any::<usize>().prop_map(|block| Op::Free { block }),
        12 => (any::<usize>(), any_stream()).prop_map(|(block, stream)| Op::RecordStream { block, stream }),
        6 => any_stream().prop_map(|stream| Op::CompleteNext { stream }),
        3 => any_stream().prop_map(|stream| Op::CompleteStream { stream }),
        2 => Just(Op::ProcessEvents),
        1 => Just(Op::EmptyCache),
        1 => (0..=100u64).prop_map(|percent| Op::SetMemoryFraction { percent: (percent + 20).min(100) }),
        1 => Just(Op::CreatePool),
        1 => pool().prop_map(|pool| Op::RetainPool { pool }),
        2 => pool().prop_map(|pool| Op::ReleasePool { pool }),
        3 => (pool(), prop::option::of(any_stream())).prop_map(|(pool, filter)| Op::Begin { pool, filter }),
        4 => pool().prop_map(|pool| Op::End { pool }),
    ]
}

pub fn program() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..200)
}

/// Memory that was freed while streams used it.
pub struct Danger {
    address: u64,
    size: u64,
    /// For each stream, the number of its events that must have passed before the memory may be used again.
    uses: Vec<(u64, u64)>,
}

impl Danger {
    /// Call this just before the memory is freed: the first event recorded from then on is the one that counts.
    pub fn new(upstream: &FakeUpstream, address: u64, size: u64, uses: &[u64]) -> Self {
        let uses = uses.iter().map(|&on| (on, upstream.recorded_events(stream(on)) + 1)).collect();
        Self { address, size, uses }
    }

    pub fn is_past(&self, upstream: &FakeUpstream) -> bool {
        self.uses.iter().all(|&(on, place)| upstream.passed_events(stream(on)) >= place)
    }

    pub fn overlaps(&self, address: u64, size: u64) -> bool {
        address < self.address + self.size && self.address < address + size
    }
}

/// A block that the program holds.
pub struct Held {
    pub handle: usize,
    pub block: Block,
    pub uses: Vec<u64>,
}

/// An allocator on a fake upstream, with the program's side of it.
pub struct Harness {
    pub upstream: Arc<FakeUpstream>,
    pub allocator: Arc<DeviceAllocator>,
    pub held: Vec<Held>,
    pub pools: Vec<PoolId>,
    /// References that the program holds to each pool.
    pub references: Vec<usize>,
    dangers: Vec<Danger>,
    next_handle: usize,
}

impl Harness {
    pub fn new(capacity: u64, max_split: Option<u64>) -> Self {
        let upstream = Arc::new(FakeUpstream::new(capacity));
        let mut settings = pytorch();
        if let Some(bytes) = max_split {
            settings = settings.with_max_split_size_bytes(bytes).expect("at least 20 MiB");
        }
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        let held = Vec::new();
        Self {
            upstream,
            allocator,
            held,
            pools: Vec::new(),
            references: Vec::new(),
            dangers: Vec::new(),
            next_handle: 0,
        }
    }

    /// Allocates, and checks that nothing else uses the memory.
    pub fn allocate(&mut self, bytes: u64, on: u64) -> Result<&Held, AllocationError> {
        let block = self.allocator.allocate(bytes, stream(on))?;
        let (from, to) = (block.address(), block.address() + block.size_bytes());
        for other in &self.held {
            let (start, end) = (other.block.address(), other.block.address() + other.block.size_bytes());
            assert!(to <= start || end <= from, "{block:?} overlaps {:?}", other.block);
        }
        self.dangers.retain(|danger| !danger.is_past(&self.upstream));
        for danger in &self.dangers {
            let clear = !danger.overlaps(block.address(), block.size_bytes());
            assert!(clear, "{block:?} is still used by the streams {:?}", danger.uses);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.held.push(Held { handle, block, uses: Vec::new() });
        Ok(self.held.last().expect("one was pushed"))
    }

    pub fn record_stream(&mut self, index: usize, on: u64) {
        let held = &mut self.held[index];
        held.block.record_stream(stream(on));
        if !held.block.is_null() && held.block.stream() != stream(on) && !held.uses.contains(&on) {
            held.uses.push(on);
        }
    }

    /// Removes a block from the program; the caller drops it.
    pub fn let_go(&mut self, index: usize) -> Held {
        let held = self.held.swap_remove(index);
        if !held.uses.is_empty() {
            let (address, size) = (held.block.address(), held.block.size_bytes());
            self.dangers.push(Danger::new(&self.upstream, address, size, &held.uses));
        }
        held
    }

    pub fn begin(&self, pool: usize, filter: Option<u64>) -> Result<(), AllocationError> {
        let filter = filter.map_or(StreamFilter::All, |on| StreamFilter::Stream(stream(on)));
        self.allocator.begin_allocate_to_pool(self.pools[pool], filter)
    }

    /// Asserts the conditions that hold at any time.
    pub fn assert_valid(&self) {
        let snapshot = self.allocator.snapshot();
        let mut live = BTreeMap::new();
        for segment in &snapshot {
            let mut end = segment.address;
            let mut was_free = false;
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
        let segments: Vec<_> =
            snapshot.iter().map(|segment| (segment.address, segment.total_bytes)).collect();
        assert_eq!(
            segments,
            self.upstream.live_segments(),
            "the upstream and the allocator agree on what is out"
        );
        let held = self.held.iter().filter(|held| !held.block.is_null());
        let held: BTreeMap<_, _> = held.map(|held| (held.block.address(), held.block.size_bytes())).collect();
        assert_eq!(live, held, "what is allocated is what the program holds");
    }

    /// Ends the program: everything is freed, and everything must be returned.
    pub fn finish(mut self) {
        for &pool in &self.pools {
            let _ = self.allocator.end_allocate_to_pool(pool);
        }
        while !self.held.is_empty() {
            drop(self.let_go(0));
        }
        for (&pool, &references) in self.pools.iter().zip(&self.references) {
            for _ in 0..references {
                self.allocator.release_pool(pool).expect("the program holds this reference");
            }
        }
        // Postponed events are recorded first.
        self.allocator.process_events();
        self.upstream.complete_all();
        self.allocator.process_events();
        for segment in self.allocator.snapshot() {
            assert_eq!(segment.blocks.len(), 1, "all is merged when all is freed");
            assert_eq!(segment.blocks[0].state, BlockState::Inactive);
        }
        self.allocator.empty_cache().expect("no fault is left");
        assert_eq!(self.upstream.live_segments(), []);
        assert_eq!(self.upstream.live_events(), 0);
        let left = self.allocator.memory_stats().into_iter();
        let left: Vec<_> = left.filter(|(key, value)| key.ends_with(".current") && *value > 0).collect();
        assert_eq!(left, []);
    }
}

/// Implements the events of an upstream by forwarding to its field.
macro_rules! forward_events {
    ($upstream:ty, $field:ident) => {
        impl thalweg_memory::Events for $upstream {
            fn record_event(
                &self,
                stream: thalweg_memory::StreamId,
            ) -> Result<thalweg_memory::EventId, thalweg_memory::UpstreamError> {
                self.$field.record_event(stream)
            }

            fn query_event(
                &self,
                event: thalweg_memory::EventId,
            ) -> Result<bool, thalweg_memory::UpstreamError> {
                self.$field.query_event(event)
            }

            fn synchronize_event(
                &self,
                event: thalweg_memory::EventId,
            ) -> Result<(), thalweg_memory::UpstreamError> {
                self.$field.synchronize_event(event)
            }

            fn wait_event(
                &self,
                stream: thalweg_memory::StreamId,
                event: thalweg_memory::EventId,
            ) -> Result<(), thalweg_memory::UpstreamError> {
                self.$field.wait_event(stream, event)
            }

            fn release_event(&self, event: thalweg_memory::EventId) {
                self.$field.release_event(event);
            }
        }
    };
}

pub(crate) use forward_events;

/// Implements the required calls of an `Upstream` by forwarding to its field, which has another upstream.
macro_rules! forward_memory {
    ($field:ident) => {
        fn allocate(
            &self,
            bytes: u64,
            stream: thalweg_memory::StreamId,
        ) -> Result<u64, thalweg_memory::UpstreamError> {
            self.$field.allocate(bytes, stream)
        }

        fn free(
            &self,
            address: u64,
            bytes: u64,
            stream: thalweg_memory::StreamId,
        ) -> Result<(), thalweg_memory::UpstreamError> {
            self.$field.free(address, bytes, stream)
        }

        fn memory_info(&self) -> Result<thalweg_memory::MemoryInfo, thalweg_memory::UpstreamError> {
            self.$field.memory_info()
        }
    };
}

pub(crate) use forward_memory;
