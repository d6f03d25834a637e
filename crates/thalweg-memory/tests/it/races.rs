//! Captures that begin while another thread is in the middle of a call, at the worst moment, which an upstream arranges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    CaptureId, Captures, DeviceAllocator, EventId, Events, MemoryInfo, PoolId, Settings, StreamFilter,
    StreamId, StreamOrdered, Upstream, UpstreamError,
};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;
/// The stream that captures.
const CAPTURING: u64 = 9;

/// The call during which a capture begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    Allocate,
    Record,
    Query,
    Synchronize,
}

/// A fake during one of whose calls another thread begins a capture. The fake panics when an event is touched during a capture.
struct Racing {
    inner: FakeUpstream,
    moment: Mutex<Option<Moment>>,
    allocator: OnceLock<(Arc<DeviceAllocator>, PoolId)>,
    beginning: Mutex<Option<std::thread::JoinHandle<()>>>,
    capture: Mutex<Option<CaptureId>>,
}

impl Racing {
    fn new(inner: FakeUpstream, settings: Settings) -> (Arc<Self>, Arc<DeviceAllocator>) {
        let racing = Arc::new(Self {
            inner,
            moment: Mutex::default(),
            allocator: OnceLock::new(),
            beginning: Mutex::default(),
            capture: Mutex::default(),
        });
        let allocator = DeviceAllocator::new(racing.clone(), settings);
        let pool = allocator.create_pool();
        assert!(racing.allocator.set((allocator.clone(), pool)).is_ok());
        (racing, allocator)
    }

    fn at(&self, moment: Moment) {
        *self.moment.lock() = Some(moment);
    }

    /// Begins a capture on another thread, if this is the moment, and lets it proceed as far as it can: it may have to wait for
    /// the present call.
    fn call<T>(&self, moment: Moment, call: impl FnOnce() -> T) -> T {
        let is_now = self.moment.lock().take_if(|wanted| *wanted == moment).is_some();
        if !is_now {
            return call();
        }
        let (allocator, pool) = self.allocator.get().expect("it was made").clone();
        let begun = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&begun);
        let handle = std::thread::spawn(move || {
            let filter = StreamFilter::Stream(stream(CAPTURING));
            allocator.begin_allocate_to_pool(pool, filter).expect("the pool is there");
            tell.store(true, Ordering::SeqCst);
        });
        // Called without a lock, this waits for no thread.
        let patience = if moment == Moment::Allocate { usize::MAX } else { 2000 };
        for _ in 0..patience {
            if begun.load(Ordering::SeqCst) {
                // The program has been allowed to begin its capture.
                let capture = self.inner.begin_capture(stream(CAPTURING));
                *self.capture.lock() = Some(capture);
                break;
            }
            std::thread::yield_now();
        }
        *self.beginning.lock() = Some(handle);
        call()
    }

    /// Waits until the allocator lets the capture begin, and ends it.
    fn end(&self) {
        let handle = self.beginning.lock().take().expect("the moment came");
        handle.join().expect("it does not panic");
        let began_meanwhile = self.capture.lock().take();
        if let Some(capture) = began_meanwhile {
            self.inner.end_capture(capture);
        }
        let (allocator, pool) = self.allocator.get().expect("it was made");
        allocator.end_allocate_to_pool(*pool).expect("it was begun");
    }
}

impl Events for Racing {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        self.call(Moment::Record, || self.inner.record_event(stream))
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        self.call(Moment::Query, || self.inner.query_event(event))
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        self.call(Moment::Synchronize, || self.inner.synchronize_event(event))
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        self.inner.wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) {
        self.inner.release_event(event);
    }
}

impl Upstream for Racing {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        self.call(Moment::Allocate, || self.inner.allocate(bytes, stream))
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        let captures = self.capture.lock().is_some();
        assert!(!captures, "nothing is given back while a capture is under way");
        self.inner.free(address, bytes, stream)
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        self.inner.memory_info()
    }

    fn captures(&self) -> Option<&dyn Captures> {
        self.inner.captures()
    }

    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        self.inner.stream_ordered()
    }
}

/// The lock is released while the driver allocates, and a capture begins then: from there on nothing is waited for or returned.
#[test]
fn a_capture_that_begins_while_the_driver_is_asked_without_the_lock() {
    for settings in
        [pytorch(), Settings::default(), Settings::parse("max_split_size_mb:20").expect("it is valid")]
    {
        let settings = settings.with_release_lock_on_cudamalloc(true);
        let (upstream, allocator) = Racing::new(FakeUpstream::new(100 * MIB), settings);
        let used = allocator.allocate(30 * MIB, stream(1)).expect("there is room");
        used.record_stream(stream(2));
        drop(used);
        drop(allocator.allocate(30 * MIB, stream(2)).expect("there is room"));
        upstream.at(Moment::Allocate);
        let error = allocator.allocate(90 * MIB, stream(1)).expect_err("what is cached stays");
        assert!(error.figures().is_some_and(|figures| figures.capturing), "{error}");
        upstream.end();
        assert!(allocator.allocate(90 * MIB, stream(1)).is_ok(), "now it may go back");
    }
}

/// A capture begins between the check and the wait for events when nothing is cached here.
#[test]
fn a_capture_that_would_begin_while_everything_is_waited_for() {
    let uncached = Settings::default().with_caching(false);
    let ordered = Settings::parse("backend:cudaMallocAsync").expect("it is valid");
    for settings in [uncached, ordered] {
        let (upstream, allocator) = Racing::new(FakeUpstream::with_stream_order(100 * MIB), settings);
        for on in [1, 2, 3] {
            let used = allocator.allocate(30 * MIB, stream(on)).expect("there is room");
            used.record_stream(stream(4));
            used.record_use(stream(5));
            drop(used);
        }
        upstream.at(Moment::Synchronize);
        let served = allocator.allocate(90 * MIB, stream(1));
        if upstream.moment.lock().take().is_none() {
            upstream.end();
        }
        drop(served.expect("the capture waits for its turn"));
    }
}

/// An event that is recorded or queried because no capture was seen is not in one.
#[test]
fn no_capture_begins_between_a_look_and_an_event() {
    for settings in [pytorch(), Settings::default()] {
        for moment in [Moment::Record, Moment::Query] {
            for precise in [false, true] {
                let (upstream, allocator) = Racing::new(FakeUpstream::new(100 * MIB), settings.clone());
                let used = allocator.allocate(1000, stream(1)).expect("there is room");
                if moment == Moment::Record {
                    upstream.at(moment);
                }
                if precise {
                    used.record_use(stream(CAPTURING));
                } else {
                    used.record_stream(stream(CAPTURING));
                }
                drop(used);
                if moment == Moment::Query {
                    upstream.at(moment);
                    allocator.process_events();
                }
                upstream.end();
                upstream.inner.complete_all();
                allocator.process_events();
                assert_eq!(
                    allocator.statistics().active.all.current,
                    0,
                    "it comes back ({moment:?}, {precise})"
                );
            }
        }
    }
}

/// The events that waited for a capture are recorded before the next one begins.
#[test]
fn a_capture_begins_behind_what_the_one_before_it_held_back() {
    let (upstream, allocator) = Racing::new(FakeUpstream::new(100 * MIB), Settings::default());
    let (_, pool) = upstream.allocator.get().expect("it was made").clone();
    let first = allocator.create_pool();
    allocator.begin_allocate_to_pool(first, StreamFilter::Stream(stream(1))).expect("the pool is there");
    for _ in 0..3 {
        let used = allocator.allocate(1000, stream(2)).expect("there is room");
        used.record_stream(stream(CAPTURING));
        drop(used);
    }
    assert_ne!(first, pool);
    upstream.at(Moment::Record);
    allocator.end_allocate_to_pool(first).expect("it was begun");
    upstream.end();
    upstream.inner.complete_all();
    allocator.process_events();
    assert_eq!(allocator.statistics().active.all.current, 0);
}
