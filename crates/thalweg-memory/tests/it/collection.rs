//! Cached segments that are returned to the upstream before memory is short, and errors of an upstream that fails.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{DeviceAllocator, Settings};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

/// Returns an allocator that may take 100 MiB, and begins to return cached segments above `threshold` of that.
fn collecting(threshold: f64) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(200 * MIB));
    let settings = pytorch().with_garbage_collection_threshold(threshold).expect("it is a fraction");
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    allocator.set_memory_fraction(0.5).expect("it is a fraction");
    (upstream, allocator)
}

fn sizes(upstream: &FakeUpstream) -> Vec<u64> {
    let mut sizes: Vec<u64> = upstream.live_segments().into_iter().map(|(_, bytes)| bytes / MIB).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn a_lone_cached_segment_is_as_old_as_the_average_and_goes() {
    let (upstream, allocator) = collecting(0.2);
    drop(allocator.allocate(40 * MIB, stream(1)).expect("there is room"));
    assert_eq!(sizes(&upstream), [40]);
    let _second = allocator.allocate(60 * MIB, stream(1)).expect("there is room for both");
    assert_eq!(sizes(&upstream), [60]);
}

#[test]
fn nothing_goes_at_the_threshold_itself() {
    let (upstream, allocator) = collecting(0.4);
    drop(allocator.allocate(40 * MIB, stream(1)).expect("there is room"));
    let _second = allocator.allocate(60 * MIB, stream(1)).expect("there is room for both");
    assert_eq!(sizes(&upstream), [40, 60]);
}

#[test]
fn an_upstream_that_cannot_say_its_size_is_not_out_of_memory() {
    for settings in [Settings::default(), pytorch().with_expandable_segments(true)] {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(100 * MIB));
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        // This simulates a device that is lost before anything was allocated on it.
        (1..20).for_each(|call| upstream.fail_call(call, Fault::Other));
        let error = allocator.allocate(1000, stream(1)).expect_err("the upstream fails");
        assert!(!error.is_out_of_memory(), "{error}");
        assert!(error.to_string().contains("memory_info"), "{error}");
        upstream.clear_faults();
        drop(allocator.allocate(1000, stream(1)).expect("it works again"));
    }
}
