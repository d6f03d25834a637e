//! Functions of the program that call the allocator which called them: no call waits for itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    AllocationError, Block, DeviceAllocator, PoolOptions, SegmentSource, Settings, StreamFilter, StreamId,
    Upstream, UpstreamError,
};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, AllocationError>) {
    let error = answer.expect_err("a lock is held");
    assert!(error.is_invalid_argument() && error.to_string().contains("afterwards"), "{error}");
}

/// Makes all calls of an allocator that return an error.
fn ask(allocator: &Arc<DeviceAllocator>) {
    for on in 1..=3 {
        assert_refused(allocator.allocate(1000, stream(on)));
        assert_refused(allocator.allocate(30 * MIB, stream(on)));
        assert_refused(allocator.allocate(u64::MAX, stream(on)));
        assert_refused(allocator.allocate_at(512, 1000, stream(on)));
    }
    assert_refused(allocator.empty_cache());
    assert_refused(allocator.set_memory_fraction(0.5));
    assert_refused(allocator.set_settings(allocator.settings()));
}

#[test]
fn an_observer_that_asks_is_refused_and_may_drop() {
    for settings in [Settings::default(), pytorch()] {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(200 * MIB));
        let allocator = DeviceAllocator::new(upstream, settings);
        let pool = allocator.create_pool();
        let (reported, held): (_, Mutex<Vec<Block>>) = (Arc::new(AtomicUsize::new(0)), Mutex::default());
        let held = Arc::new(held);
        let elsewhere = allocator.allocate(5000, stream(2)).expect("there is room");
        elsewhere.record_stream(stream(3));
        held.lock().push(elsewhere);
        let (inside, count, blocks) = (Arc::downgrade(&allocator), Arc::clone(&reported), Arc::clone(&held));
        let observer = allocator.add_event_observer(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let allocator: Arc<DeviceAllocator> = Weak::upgrade(&inside).expect("it is being used");
            ask(&allocator);
            assert_refused(allocator.begin_allocate_to_pool(pool, StreamFilter::All));
            for block in blocks.lock().iter() {
                block.record_use(stream(1));
            }
            blocks.lock().clear();
            // A call that returns no error panics, and the panic ends here.
            assert!(catch_unwind(AssertUnwindSafe(|| allocator.statistics())).is_err());
            panic!("this goes no further than to here");
        });
        let block = allocator.allocate(30 * MIB, stream(1)).expect("it is refused to the observer alone");
        // The same from another thread, which does not hold the lock.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(allocator.allocate(2 * MIB, stream(1)).expect("there is room")));
        });
        drop(block);
        allocator.empty_cache().expect("no capture is under way");
        assert!(reported.load(Ordering::Relaxed) >= 4);
        assert!(allocator.remove_event_observer(observer));
        assert!(allocator.allocate(1000, stream(1)).is_ok());
        assert_eq!(allocator.statistics().allocation.all.current, 0, "what it dropped is free");
    }
}

#[test]
fn an_observer_that_removes_itself_is_refused_all_the_same() {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(200 * MIB)), Settings::default());
    let name = Arc::new(Mutex::new(None));
    let (inside, own) = (Arc::downgrade(&allocator), Arc::clone(&name));
    let observer = allocator.add_event_observer(move |_| {
        let allocator = inside.upgrade().expect("it is being used");
        let own = own.lock().take().expect("it is called once");
        assert!(allocator.remove_event_observer(own));
        ask(&allocator);
    });
    *name.lock() = Some(observer);
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    drop(block);
    assert!(name.lock().is_none(), "it was told");
    assert!(allocator.allocate(1000, stream(1)).is_ok());
}

#[test]
fn callbacks_for_want_of_memory_and_sources_are_refused_what_would_wait() {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(100 * MIB)), Settings::default());
    let (inside, called) = (Arc::downgrade(&allocator), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&called);
    allocator.add_free_memory_callback(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let allocator = inside.upgrade().expect("it is being used");
        assert_refused(allocator.allocate(20 * MIB, stream(7)));
        assert_refused(allocator.empty_cache());
        false
    }));
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    assert!(called.load(Ordering::Relaxed) > 0);
    drop(block);

    struct Asking(Weak<DeviceAllocator>, FakeUpstream);
    impl SegmentSource for Asking {
        fn allocate(&self, bytes: u64, on: StreamId) -> Result<u64, UpstreamError> {
            let allocator = self.0.upgrade().expect("it is being used");
            assert_refused(allocator.allocate(20 * MIB, stream(8)));
            self.1.allocate(bytes, on)
        }
        fn free(&self, address: u64, bytes: u64, on: StreamId) -> Result<(), UpstreamError> {
            if let Some(allocator) = self.0.upgrade() {
                assert_refused(allocator.allocate(20 * MIB, stream(9)));
            }
            self.1.free(address, bytes, on)
        }
    }
    let source = Some(Arc::new(Asking(Arc::downgrade(&allocator), FakeUpstream::new(100 * MIB))) as _);
    let pool = allocator.create_pool_with(PoolOptions { source, ..PoolOptions::default() });
    let scope = allocator.use_pool(pool).expect("the pool is there");
    drop(allocator.allocate(1000, stream(1)).expect("the source has room"));
    drop(scope);
    allocator.release_pool(pool).expect("one reference");
    allocator.empty_cache().expect("no capture is under way");
}

/// An observer of failed requests may make any request; it is not called for its own requests that fail.
#[test]
fn an_observer_of_failures_may_fail_itself() {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(100 * MIB)), Settings::default());
    let (inside, reported) = (Arc::downgrade(&allocator), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&reported);
    allocator.add_out_of_memory_observer(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let allocator = inside.upgrade().expect("it is being used");
        assert!(allocator.allocate(200 * MIB, stream(1)).expect_err("there is less").is_out_of_memory());
        assert!(allocator.allocate(1000, stream(1)).is_ok());
    });
    for round in 1..=2 {
        assert!(allocator.allocate(200 * MIB, stream(1)).expect_err("there is less").is_out_of_memory());
        assert_eq!(reported.load(Ordering::Relaxed), round);
    }
}
