//! The host allocator used from several threads, including its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    EventId, Events, HostAllocator, HostBlock, HostMethod, HostUpstream, Settings, StreamFilter, StreamId,
    UpstreamError,
};

use crate::harness::stream;
use crate::host::with;
use crate::host_harness::{KIB, MIB};

#[test]
fn blocks_are_allocated_used_and_dropped_by_any_thread() {
    for background in [false, true] {
        let settings = Settings::default().with_pinned_use_background_threads(background);
        let (upstream, allocator) = with(1 << 40, settings);
        let exchange: Mutex<Vec<HostBlock>> = Mutex::default();
        let pool = allocator.create_pool();
        std::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let (allocator, exchange, upstream) = (&allocator, &exchange, &upstream);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let bytes = 1 + round * 977 % 100_000;
                        let block = allocator.allocate_on(bytes, stream(thread)).expect("there is room");
                        block.record_use(stream(1 + round % 4));
                        block.record_stream(stream(1 + (round + thread) % 4));
                        let mut exchange = exchange.lock();
                        exchange.push(block);
                        // Every thread frees blocks that another one allocated.
                        let oldest = (exchange.len() > 20).then(|| exchange.remove(0));
                        drop(exchange);
                        drop(oldest);
                        if round % 16 == 0 {
                            upstream.complete_all();
                        }
                        if thread == 1 && round % 100 == 50 {
                            let filter = StreamFilter::Stream(stream(1));
                            allocator.begin_allocate_to_pool(pool, filter).expect("the pool exists");
                        }
                        if thread == 1 && round % 100 == 60 {
                            allocator.end_allocate_to_pool(pool).expect("the scope is open");
                        }
                    }
                });
            }
        });
        let held = exchange.into_inner();
        drop(held);
        allocator.release_pool(pool).expect("one reference");
        // Blocks that were dropped while a capture began or ended get their events now.
        allocator.process_events();
        upstream.complete_all();
        allocator.process_events();
        let statistics = allocator.statistics();
        assert_eq!((statistics.active_requests.current, statistics.active_requests.freed), (0, 8000));
        assert_eq!(statistics.retired.count, 0);
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!((upstream.live_host_allocations().len(), upstream.live_events()), (0, 0));
    }
}

#[test]
fn pools_open_and_close_while_their_blocks_are_dropped() {
    let (upstream, allocator) = with(1 << 40, Settings::default());
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (allocator, upstream) = (&allocator, &upstream);
            scope.spawn(move || {
                for _ in 0..300 {
                    let pool = allocator.create_pool();
                    let filter = StreamFilter::Stream(stream(thread));
                    allocator.begin_allocate_to_pool(pool, filter).expect("the pool exists");
                    let [kept, free] =
                        [(); 2].map(|()| allocator.allocate_on(1000, stream(thread)).expect("there is room"));
                    kept.record_use(stream(thread));
                    free.record_use(stream(thread + 4));
                    allocator.end_allocate_to_pool(pool).expect("the scope is open");
                    std::thread::scope(|inner| {
                        inner.spawn(move || drop((kept, free)));
                        allocator.release_pool(pool).expect("one reference");
                    });
                    upstream.complete_all();
                }
            });
        }
    });
    upstream.complete_all();
    allocator.process_events();
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!((upstream.live_host_allocations().len(), upstream.live_events()), (0, 0));
    let statistics = allocator.statistics();
    assert_eq!((statistics.active_requests.current, statistics.active_requests.freed), (0, 2400));
}

/// Waits for a condition that another thread makes true at some time.
fn eventually(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn pinned_memory_use_background_threads() {
    let settings = Settings::default()
        .with_pinned_use_background_threads(true)
        .with_pinned_max_cached_size_bytes(MIB)
        .expect("a whole number of MiB");
    let (upstream, allocator) = with(1 << 30, settings);
    let block = allocator.allocate(1000).expect("there is room");
    block.record_use(stream(1));
    drop(block);
    assert_eq!(allocator.statistics().pending.count, 1);
    upstream.complete_all();
    eventually(|| allocator.statistics().pending.count == 0);
    // The thread returns blocks that are too large to be kept, even after it was idle for a while.
    drop(allocator.allocate(2 * MIB).expect("there is room"));
    eventually(|| upstream.live_host_allocations().len() == 1);
    // The thread is stopped and started with the settings, and does not keep the allocator alive.
    allocator.set_settings(Settings::default());
    allocator.set_settings(Settings::default().with_pinned_use_background_threads(true));
    let block = allocator.allocate(1000).expect("there is room");
    block.record_use(stream(1));
    drop(block);
    upstream.complete_all();
    eventually(|| allocator.statistics().pending.count == 0);
    drop(allocator);
    assert_eq!((upstream.live_host_allocations().len(), upstream.live_events()), (0, 0));
    assert_eq!(Arc::strong_count(&upstream), 1, "the thread has ended");
}

/// An upstream that drops blocks whenever it is called, and waits in `allocate_host` until it may continue.
struct Unkind {
    inner: FakeUpstream,
    victims: Mutex<Vec<HostBlock>>,
    waits: AtomicBool,
    go_on: OnceLock<()>,
}

impl Unkind {
    fn new() -> Arc<Self> {
        let inner = FakeUpstream::new(1 << 30);
        Arc::new(Self {
            inner,
            victims: Mutex::default(),
            waits: AtomicBool::new(false),
            go_on: OnceLock::new(),
        })
    }

    fn drop_one(&self) {
        let victim = self.victims.lock().pop();
        drop(victim);
    }
}

impl Events for Unkind {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        self.drop_one();
        self.inner.record_event(stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        self.drop_one();
        self.inner.query_event(event)
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        self.drop_one();
        self.inner.synchronize_event(event)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        self.inner.wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) {
        self.drop_one();
        self.inner.release_event(event);
    }
}

impl HostUpstream for Unkind {
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError> {
        self.drop_one();
        if self.waits.load(Ordering::Acquire) {
            self.go_on.wait();
        }
        self.inner.allocate_host(bytes, method)
    }

    fn free_host(&self, address: u64, bytes: u64, method: HostMethod) -> Result<(), UpstreamError> {
        self.drop_one();
        self.inner.free_host(address, bytes, method)
    }
}

#[test]
fn an_upstream_may_drop_blocks_in_any_call() {
    let upstream = Unkind::new();
    let allocator = HostAllocator::new(upstream.clone(), Settings::default());
    for round in 0..50 {
        let blocks: Vec<_> =
            (0..6).map(|_| allocator.allocate(1000 + round).expect("there is room")).collect();
        blocks.iter().step_by(2).for_each(|block| block.record_use(stream(1)));
        blocks.iter().step_by(3).for_each(|block| block.record_stream(stream(2)));
        upstream.victims.lock().extend(blocks);
        drop(allocator.allocate(10 * KIB * (round + 1)).expect("there is room"));
        let used = allocator.allocate(1).expect("there is room");
        used.record_use(stream(1));
        drop(used);
        upstream.inner.complete_all();
        allocator.process_events();
        if round % 10 == 0 {
            allocator.empty_cache().expect("no capture is under way");
        }
    }
    std::mem::take(&mut *upstream.victims.lock()).clear();
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!((upstream.inner.live_host_allocations().len(), upstream.inner.live_events()), (0, 0));
}

#[test]
fn neither_a_drop_nor_an_allocation_waits_for_memory_that_is_being_pinned() {
    let upstream = Unkind::new();
    let allocator = HostAllocator::new(upstream.clone(), Settings::default());
    let [first, second] = [(); 2].map(|()| allocator.allocate(1000).expect("there is room"));
    drop(second);
    let taken = allocator.allocate(1000).expect("there is room");
    upstream.waits.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| allocator.allocate(1000).map(drop));
        // In either order, these calls return: if they waited for the other thread, all would wait for ever.
        drop(first);
        drop(allocator.allocate(1000).expect("a block of the same size is cached"));
        upstream.go_on.set(()).expect("set once");
        busy.join().expect("no thread panics").expect("there is room");
    });
    drop(taken);
}
