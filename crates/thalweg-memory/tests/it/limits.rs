//! Extreme values: sizes up to 2^64 - 1, thousands of streams and pools, and addresses that run out.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    Advice, AllocationError, Block, DeviceAllocator, HostAllocator, MemoryInfo, PageId, PowerTwoDivisions,
    Settings, StreamFilter, StreamId, Upstream, UpstreamError, VirtualMemory,
};

use crate::harness::{forward_events, forward_memory, pytorch, stream};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns sizes around every power of two, and the largest.
fn edges() -> Vec<u64> {
    let around = |power: u32| [-1, 0, 1].map(|by| (1u64 << power).wrapping_add_signed(by));
    let mut edges: Vec<u64> =
        [9, 12, 20, 21, 29, 30, 31, 40, 47].into_iter().chain(54..64).flat_map(around).collect();
    edges.extend([(1 << 56) - 512, (1 << 56) + 512, (1 << 57) - 512, (1 << 57) - 511, 800_000_000 * GIB]);
    edges.extend([u64::MAX - 512, u64::MAX - 511, u64::MAX]);
    edges
}

fn all_settings() -> Vec<Settings> {
    let mut all = vec![Settings::default(), pytorch(), Settings::default().with_expandable_segments(false)];
    for divisions in [4, 1 << 63] {
        let divisions = PowerTwoDivisions::uniform(divisions).expect("a power of two");
        all.push(Settings::default().with_roundup_power2_divisions(divisions));
        all.push(pytorch().with_roundup_power2_divisions(divisions));
    }
    let texts = [
        "max_split_size_mb:20",
        "max_split_size_mb:274877906944",
        "large_segment_size_mb:137438953472,policy:pytorch",
        "max_non_split_rounding_mb:17592186044415,max_split_size_mb:100,policy:pytorch",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5",
        "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5",
        "release_lock_on_cudamalloc:True,expandable_segments:False",
        "expandable_segments_reserve:1000000000000G",
        "backend:cudaMallocAsync",
    ];
    all.extend(texts.map(|text| Settings::parse(text).expect("it is valid")));
    all.push(Settings::default().with_caching(false));
    all
}

fn upstreams() -> Vec<FakeUpstream> {
    vec![
        FakeUpstream::new(GIB),
        FakeUpstream::with_virtual_memory(GIB),
        FakeUpstream::with_stream_order(GIB),
        // More than any device has.
        FakeUpstream::new(u64::MAX),
    ]
}

/// Asserts that a request was served, or failed for lack of memory.
fn assert_answered(bytes: u64, answer: Result<Block, AllocationError>, settings: &Settings) -> Option<Block> {
    match answer {
        Ok(block) => {
            assert!(block.size_bytes() >= bytes && bytes <= 1 << 56, "{block:?} for {bytes}");
            Some(block)
        }
        Err(error) => {
            assert!(error.is_out_of_memory(), "{bytes} bytes under {settings:?}: {error}");
            None
        }
    }
}

#[test]
fn a_request_of_any_size_is_served_or_out_of_memory() {
    for settings in all_settings() {
        for upstream in upstreams() {
            let allocator = DeviceAllocator::new(Arc::new(upstream), settings.clone());
            let kept = allocator.allocate(1000, stream(1)).ok();
            for bytes in edges() {
                let served = assert_answered(bytes, allocator.allocate(bytes, stream(1)), &settings);
                if let Some(block) = &served {
                    let address = block.address();
                    drop(served);
                    // The same address again, possibly under another policy: from a cached block.
                    let again = allocator.allocate_at(address, bytes, stream(1));
                    assert!(again.is_ok() || again.is_err_and(|error| error.address_problem().is_some()));
                }
                let nowhere =
                    allocator.allocate_at(512, bytes, stream(1)).expect_err("there is no memory there");
                assert!(nowhere.address_problem().is_some(), "{nowhere}");
            }
            drop(kept);
            allocator.empty_cache().expect("no capture is under way");
        }
    }
}

#[test]
fn a_capture_and_a_pool_answer_any_size_too() {
    for settings in [Settings::default(), pytorch()] {
        let allocator =
            DeviceAllocator::new(Arc::new(FakeUpstream::with_virtual_memory(GIB)), settings.clone());
        let pool = allocator.create_pool();
        allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("the pool is there");
        for bytes in edges() {
            drop(assert_answered(bytes, allocator.allocate(bytes, stream(1)), &settings));
        }
        allocator.end_allocate_to_pool(pool).expect("it was begun");
    }
}

#[test]
fn pinned_memory_of_any_size_is_served_or_out_of_memory() {
    for settings in [Settings::default(), pytorch()] {
        let allocator = HostAllocator::new(Arc::new(FakeUpstream::new(GIB)), settings);
        for bytes in edges() {
            match allocator.allocate(bytes) {
                Ok(block) => assert!(block.size_bytes() >= bytes && bytes <= GIB),
                Err(error) => assert!(error.is_out_of_memory(), "{bytes}: {error}"),
            }
        }
    }
}

type Reserve = fn(&FakeUpstream, u64) -> Result<u64, UpstreamError>;

/// An upstream whose ranges of addresses a test determines.
struct Reserving {
    inner: FakeUpstream,
    reserve: Reserve,
}

forward_events!(Reserving, inner);

impl Upstream for Reserving {
    forward_memory!(inner);

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl VirtualMemory for Reserving {
    fn granularity_bytes(&self) -> u64 {
        self.inner.granularity_bytes()
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        (self.reserve)(&self.inner, bytes)
    }

    fn free_addresses(&self, _address: u64, _bytes: u64) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        self.inner.create_page(bytes)
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        self.inner.destroy_page(page)
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        self.inner.map(address, page_bytes, pages)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.inner.unmap(address, bytes)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError> {
        self.inner.synchronize_stream(stream)
    }
}

#[test]
fn addresses_that_cannot_be_kept_are_an_error_of_the_upstream() {
    let strange: [Reserve; 4] =
        [|_, _| Ok(1 << 57), |_, _| Ok((1 << 57) - (2 << 20)), |_, _| Ok(0), |_, _| Ok(u64::MAX - 511)];
    for reserve in strange {
        let upstream = Arc::new(Reserving { inner: FakeUpstream::with_virtual_memory(GIB), reserve });
        let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
        let error = allocator.allocate(5 * MIB, stream(1)).expect_err("no address is any good");
        assert!(error.is_upstream() && error.to_string().contains("2^57"), "{error}");
        assert_eq!(upstream.inner.live_pages(), 0);
    }
}

#[test]
fn without_addresses_to_grow_in_plain_segments_serve_and_no_promise_is_made() {
    let reserve = |_: &FakeUpstream, _| Err(UpstreamError::OutOfMemory);
    let upstream = Arc::new(Reserving { inner: FakeUpstream::with_virtual_memory(100 * MIB), reserve });
    let allocator = DeviceAllocator::new(upstream, Settings::default());
    let small = allocator.allocate(1000, stream(1)).expect("there is memory");
    let large = allocator.allocate(60 * MIB, stream(1)).expect("there is memory");
    let error = allocator.allocate(60 * MIB, stream(1)).expect_err("there are 38 MiB");
    assert!(error.is_out_of_memory());
    drop(large);
    let again = allocator.allocate(50 * MIB, stream(1)).expect("it is free again");
    drop((small, again));
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 0);
}

/// A block that is freed during the slow path, after its stage has run, still serves.
#[test]
fn memory_that_others_free_meanwhile_is_looked_for_again() {
    struct Freeing {
        inner: FakeUpstream,
        victims: thalweg_lock::Mutex<Vec<Block>>,
    }
    forward_events!(Freeing, inner);
    impl Upstream for Freeing {
        fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
            self.inner.allocate(bytes, stream)
        }
        fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
            self.inner.free(address, bytes, stream)
        }
        fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
            // This is called after everything has been tried.
            self.victims.lock().clear();
            self.inner.memory_info()
        }
    }
    let upstream =
        Arc::new(Freeing { inner: FakeUpstream::new(100 * MIB), victims: thalweg_lock::Mutex::default() });
    let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
    let victim = allocator.allocate(60 * MIB, stream(1)).expect("there is room");
    upstream.victims.lock().push(victim);
    let served = allocator.allocate(60 * MIB, stream(1)).expect("it is free by then");
    assert_eq!(allocator.statistics().num_ooms, 0);
    let error = allocator.allocate(60 * MIB, stream(1)).expect_err("now nothing is freed");
    let advice = error.figures().and_then(|figures| figures.advice);
    assert!(matches!(advice, Some(Advice::AskForLess { .. })), "{error}");
    drop(served);
}

/// Every stream, and every pool on it, reserves more addresses than the device has memory.
#[test]
fn thousands_of_streams_and_pools_have_memory() {
    let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 46));
    for settings in [Settings::default(), pytorch().with_expandable_segments(true)] {
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        let mut blocks = Vec::new();
        for number in 1..=1200 {
            blocks.push(allocator.allocate(2 * MIB, stream(number)).expect("there is memory"));
            let pool = allocator.create_pool();
            let scope = allocator.use_pool(pool).expect("the pool is there");
            blocks.push(allocator.allocate(1000, stream(number)).expect("there is memory"));
            drop(scope);
        }
        assert_eq!(allocator.statistics().allocation.all.current, 2400);
        drop(blocks);
    }
    assert_eq!((upstream.live_pages(), upstream.reserved_ranges().len()), (0, 0));
}

/// The simulated GPU has room for 60 such pools.
#[test]
fn pools_without_references_leave_their_memory_and_addresses_to_the_next_capture() {
    let upstreams = [FakeUpstream::with_virtual_memory(100 * MIB), FakeUpstream::new(100 * MIB)];
    for upstream in upstreams.map(Arc::new) {
        for settings in [Settings::default(), pytorch()] {
            let allocator = DeviceAllocator::new(upstream.clone(), settings);
            for capture in 0..70 {
                let pool = allocator.create_pool();
                allocator.begin_allocate_to_pool(pool, StreamFilter::Stream(stream(1))).expect("it is there");
                let graph = upstream.begin_capture(stream(1));
                let block = allocator.allocate(60 * MIB, stream(1));
                drop(block.unwrap_or_else(|error| panic!("capture {capture}: {error}")));
                upstream.end_capture(graph);
                allocator.end_allocate_to_pool(pool).expect("it was begun");
                allocator.release_pool(pool).expect("one reference");
            }
            assert!(upstream.reserved_ranges().len() <= 2, "{:?}", upstream.reserved_ranges());
        }
    }
}

/// The statistics show the memory of a pool after its end, but not for all pools that have ever existed.
#[test]
fn figures_of_pools_that_are_gone_are_not_kept_for_ever() {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 40)), Settings::default());
    let mut kept = Vec::new();
    for number in 0..1500 {
        let pool = allocator.create_pool();
        let scope = allocator.use_pool(pool).expect("the pool is there");
        let block = allocator.allocate(1000, stream(1)).expect("there is room");
        drop(scope);
        if number % 100 == 0 {
            kept.push((pool, block));
            continue;
        }
        drop(block);
        allocator.release_pool(pool).expect("one reference");
        allocator.empty_cache().expect("no capture is under way");
    }
    let figures = allocator.statistics().reserved_bytes_by_private_pools;
    assert!((400..1200).contains(&figures.len()), "{} pools", figures.len());
    let reserved =
        |pool| figures.iter().find(|(known, _)| **known == pool).map(|(_, statistic)| statistic.current);
    assert!(kept.iter().all(|(pool, _)| reserved(*pool) == Some(2 * MIB)));
}
