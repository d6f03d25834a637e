//! Device memory from the cache.

use thalweg_runtime::{Buffer, Stream};

use crate::support::{Gate, device, sim};

#[test]
fn later_work_of_the_stream_gets_the_memory_at_once() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let _gate = Gate::close(&stream);
    let first = Buffer::new(&stream, 1000).unwrap();
    let address = first.pointer();
    assert_eq!(first.size_bytes(), 1000);
    drop(first);
    // Although nothing of the stream has run.
    assert_eq!(Buffer::new(&stream, 900).unwrap().pointer(), address);
    let other = Stream::new(&device).unwrap();
    assert_ne!(Buffer::new(&other, 900).unwrap().pointer(), address, "another stream has its own");
}

#[test]
fn recorded_streams_defer_the_reuse_until_their_work_is_done() {
    let device = device();
    let [own, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let buffer = Buffer::new(&own, 4 << 20).unwrap();
    let address = buffer.pointer();
    let gate = Gate::close(&other);
    buffer.record_stream(&other);
    drop(buffer);
    let instead = Buffer::new(&own, 4 << 20).unwrap();
    assert_ne!(instead.pointer(), address);
    gate.open();
    other.synchronize().unwrap();
    let again = Buffer::new(&own, 4 << 20).unwrap();
    assert_eq!(again.pointer(), address);
}

#[test]
fn recording_the_own_stream_defers_nothing() {
    let device = device();
    let own = Stream::new(&device).unwrap();
    let buffer = Buffer::new(&own, 4 << 20).unwrap();
    let address = buffer.pointer();
    let _gate = Gate::close(&own);
    buffer.record_stream(&own);
    drop(buffer);
    assert_eq!(Buffer::new(&own, 4 << 20).unwrap().pointer(), address);
}

#[test]
fn zero_bytes_are_a_null_pointer() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let before = device.allocator().statistics().allocated_bytes.all.current;
    let buffer = Buffer::new(&stream, 0).unwrap();
    buffer.record_stream(&device.default_stream());
    assert!(buffer.pointer().is_null());
    assert_eq!(buffer.size_bytes(), 0);
    assert_eq!(device.allocator().statistics().allocated_bytes.all.current, before);
}

#[test]
fn out_of_memory_names_device_request_and_figures_and_is_survived() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let most = Buffer::new(&stream, 40 << 20).unwrap();
    let error = Buffer::new(&stream, 30 << 20).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_invalid_argument(), "{error}");
    assert_eq!(
        error.to_string(),
        "out of memory. Tried to allocate 30.00 MiB. sim:0 has a total capacity of 64.00 MiB of which 24.00 MiB is free. \
         Of the allocated memory 40.00 MiB is allocated by Thalweg, and 0 bytes is reserved by Thalweg but unallocated. \
         Free tensors that are no longer needed, or ask for less at a time."
    );
    drop(most);
    // The cached 40 MiB are given back to make room on another stream.
    let other = Stream::new(&device).unwrap();
    Buffer::new(&other, 50 << 20).unwrap();
    let error = Buffer::new(&other, u64::MAX).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("No freeing helps"), "{error}");
}

#[test]
fn out_of_memory_waits_for_what_other_streams_still_use() {
    let device = sim(1).remove(0);
    let [own, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let buffer = Buffer::new(&own, 40 << 20).unwrap();
    let gate = Gate::close(&other);
    buffer.record_stream(&other);
    drop(buffer);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Buffer::new(&own, 50 << 20).map(|buffer| buffer.size_bytes()));
        gate.open();
        assert_eq!(waiting.join().unwrap().unwrap(), 50 << 20);
    });
}

#[test]
fn an_emptied_cache_gives_the_memory_back_to_the_driver() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    drop(Buffer::new(&stream, 8 << 20).unwrap());
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    assert!(reserved() >= 8 << 20);
    device.empty_cache().unwrap();
    assert_eq!(reserved(), 0);
    let info = device.driver().memory_info(0).unwrap();
    assert_eq!(info.free_bytes, info.total_bytes);
}

#[test]
fn a_device_gives_everything_back_when_it_is_dropped() {
    let (driver, devices) = crate::support::sim_in(&thalweg_runtime::Environment::default(), 1);
    let stream = Stream::new(&devices[0]).unwrap();
    let buffer = Buffer::new(&stream, 8 << 20).unwrap();
    drop((devices, stream));
    let free = || thalweg_device::Driver::memory_info(&*driver, 0).unwrap().free_bytes;
    assert!(free() <= 56 << 20, "the buffer keeps its device");
    drop(buffer);
    assert_eq!(free(), 64 << 20);
}
