//! Several threads, and an upstream that drops blocks while it is called.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Block, DeviceAllocator, MemoryInfo, Settings, StreamId, Upstream, UpstreamError};

use crate::harness::{forward_events, pytorch, stream};

#[test]
fn blocks_are_allocated_used_and_dropped_by_any_thread() {
    let upstream = Arc::new(FakeUpstream::new(1 << 40));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    let exchange: Mutex<Vec<Block>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (allocator, exchange, upstream) = (&allocator, &exchange, &upstream);
            scope.spawn(move || {
                for round in 0..2000 {
                    let block =
                        allocator.allocate(1 + round * 977 % 100_000, stream(thread)).expect("there is room");
                    block.record_stream(stream(1 + round % 4));
                    let mut exchange = exchange.lock();
                    exchange.push(block);
                    // Every thread frees blocks that another one allocated.
                    let oldest = (exchange.len() > 20).then(|| exchange.remove(0));
                    drop(exchange);
                    drop(oldest);
                    if round % 16 == 0 {
                        upstream.complete_all();
                    }
                }
            });
        }
    });
    let held = exchange.into_inner();
    assert_eq!(allocator.statistics().allocation.all.current, held.len() as u64);
    drop(held);
    assert_eq!(allocator.statistics().allocation.all.freed, 8000);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!((upstream.live_segments().len(), upstream.live_events()), (0, 0));
}

/// An upstream that drops a block whenever it allocates, as a callback that frees caches would.
struct Dropping {
    inner: FakeUpstream,
    victims: Mutex<Vec<Block>>,
}

forward_events!(Dropping, inner);

impl Upstream for Dropping {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        self.victims.lock().clear();
        self.inner.allocate(bytes, stream)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        self.inner.free(address, bytes, stream)
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        self.inner.memory_info()
    }
}

#[test]
fn a_drop_while_the_allocator_is_busy_is_queued() {
    let upstream = Arc::new(Dropping { inner: FakeUpstream::new(1 << 30), victims: Mutex::default() });
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    let victim = allocator.allocate(1000, stream(1)).expect("there is room");
    let address = victim.address();
    upstream.victims.lock().push(victim);
    let large = allocator.allocate(30 << 20, stream(1)).expect("there is room");
    assert_eq!(allocator.statistics().allocation.all.current, 1, "the queue is emptied before the next call");
    assert_eq!(allocator.allocate(1000, stream(1)).expect("there is room").address(), address);
    drop(large);
}

#[test]
fn a_drop_does_not_wait_for_an_upstream_that_blocks() {
    /// Blocks in `allocate` until another thread has dropped its block.
    struct Blocking {
        dropping: Dropping,
        dropped: OnceLock<()>,
    }
    forward_events!(Blocking, dropping);
    impl Upstream for Blocking {
        fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
            if bytes > 2 << 20 {
                self.dropped.wait();
            }
            self.dropping.allocate(bytes, stream)
        }
        fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
            self.dropping.free(address, bytes, stream)
        }
        fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
            self.dropping.memory_info()
        }
    }
    let dropping = Dropping { inner: FakeUpstream::new(1 << 30), victims: Mutex::default() };
    let upstream = Arc::new(Blocking { dropping, dropped: OnceLock::new() });
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    let small = allocator.allocate(1000, stream(1)).expect("there is room");
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| allocator.allocate(30 << 20, stream(1)).map(drop));
        // In either order, the drop returns: if it waited for the other thread, both would wait for ever.
        drop(small);
        upstream.dropped.set(()).expect("set once");
        busy.join().expect("no thread panics").expect("there is room");
    });
    assert_eq!(allocator.statistics().allocation.all.current, 0);
}

#[test]
fn eight_threads_on_their_own_streams_keep_the_figures_exact() {
    let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 36));
    let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 1500;
    let exchanges: Vec<Mutex<Vec<Block>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (allocator, exchanges) = (&allocator, &exchanges);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let bytes = 1 + (round * 7919 + thread * 104_729) % (3 << 20);
                        let block = allocator.allocate(bytes, stream(thread + 1)).expect("there is room");
                        block.record_use(stream((thread + round) % THREADS + 1));
                        // The neighbour drops this thread's block, or this thread the neighbour's.
                        let place = ((thread + round % 2) % THREADS) as usize;
                        let mut exchange = exchanges[place].lock();
                        exchange.push(block);
                        let oldest = (exchange.len() > 8).then(|| exchange.remove(0));
                        drop(exchange);
                        drop(oldest);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let statistics = allocator.statistics();
                assert!(statistics.allocation.all.peak >= statistics.allocation.all.current);
                assert!(allocator.snapshot().iter().all(|segment| !segment.blocks.is_empty()));
                upstream.complete_all();
                allocator.process_events();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().expect("no thread panics"));
        is_done.store(true, Ordering::Release);
        reader.join().expect("no thread panics");
    });
    let held: Vec<Block> = exchanges.into_iter().flat_map(|one| one.into_inner()).collect();
    let statistics = allocator.statistics();
    assert_eq!(statistics.allocation.all.current, held.len() as u64);
    assert_eq!(statistics.allocated_bytes.all.current, held.iter().map(Block::size_bytes).sum::<u64>());
    assert_eq!(statistics.allocation.all.allocated, THREADS * ROUNDS);
    drop(held);
    assert_eq!(allocator.statistics().allocation.all.current, 0);
    upstream.complete_all();
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 0);
    drop(allocator);
    assert_eq!((upstream.live_pages(), upstream.reserved_ranges().len(), upstream.live_events()), (0, 0, 0));
}
