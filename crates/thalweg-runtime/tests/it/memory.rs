//! Device memory from the cache.

use thalweg_driver::FillPattern;
use thalweg_memory::{PoolOptions, SizeClass};
use thalweg_runtime::{Buffer, Label, MemPool, Stream};

use crate::kernels::launch_sum;
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
    // The address is reused although no work of the stream has run.
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
    let at = format!("\n  at {}:{}", file!(), line!() - 2);
    assert_eq!(
        error.to_string().strip_suffix(&at).expect("the error says where"),
        "out of memory. Tried to allocate 30.00 MiB. sim:0 has a total capacity of 64.00 MiB of which 24.00 MiB is free. \
         Of the allocated memory 40.00 MiB is allocated by Thalweg, and 0 bytes is reserved by Thalweg but unallocated. \
         It would fit if it were 6.00 MiB less."
    );
    drop(most);
    // The cached 40 MiB are released to make room on another stream.
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
    let free = || thalweg_driver::Driver::memory_info(&*driver, 0).unwrap().free_bytes;
    assert!(free() <= 56 << 20, "the buffer keeps its device");
    drop(buffer);
    assert_eq!(free(), 64 << 20);
}

#[test]
fn a_precise_use_waits_for_nothing_that_comes_later() {
    let device = device();
    let [own, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let buffer = Buffer::new(&own, 4 << 20).unwrap();
    let address = buffer.pointer();
    buffer.record_use(&other);
    other.synchronize().unwrap();
    // Work that the stream gets after the use does not matter: it may never end.
    let gate = Gate::close(&other);
    drop(buffer);
    assert_eq!(Buffer::new(&own, 4 << 20).unwrap().pointer(), address);
    gate.open();
}

#[test]
fn the_device_waits_instead_of_the_host() {
    let device = device();
    let [own, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let gate = Gate::close(&other);
    let mut addresses = Vec::new();
    for round in 0..6u32 {
        let buffer = Buffer::new(&own, 4 << 20).unwrap();
        own.fill(buffer.pointer(), FillPattern::U32(round), 1 << 20, Label::here("fill")).unwrap();
        other.wait_stream(&own).unwrap();
        launch_sum(&other, &[buffer.pointer()], buffer.pointer(), 1 << 20).unwrap();
        buffer.record_use(&other);
        addresses.push(buffer.pointer());
    }
    // Two wait, the third gets the memory of the first, although no work of the other stream has run.
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 2, "two buffers serve them all");
    assert!(device.allocator().statistics().num_cross_stream_waits >= 4);
    gate.open();
    device.synchronize().unwrap();
}

#[test]
fn a_pool_serves_its_thread_while_it_is_entered() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let outside = Buffer::new(&stream, 1000).unwrap();
    let pool = MemPool::new(&device, PoolOptions::default());
    let pool_of = |buffer: &Buffer| {
        let address = buffer.pointer().address();
        let segments = device.allocator().snapshot();
        let holds = |one: &&thalweg_memory::SegmentSnapshot| {
            (one.address..one.address + one.total_bytes).contains(&address)
        };
        segments.iter().find(holds).unwrap().pool
    };
    let scope = pool.enter().unwrap();
    assert_eq!(pool.use_count(), 2);
    let inside = Buffer::new(&stream, 1000).unwrap();
    assert_eq!(pool_of(&inside), Some(pool.id()));
    assert_eq!(pool_of(&outside), None);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| Buffer::new(&stream, 1000).unwrap()).join());
    assert_eq!(pool_of(&elsewhere.unwrap()), None, "a scope is its thread's");
    drop(scope);
    assert_eq!(pool.use_count(), 1);
    assert_eq!(pool_of(&Buffer::new(&stream, 1000).unwrap()), None);
    let reserved = device.memory_reserved();
    drop(inside);
    drop(pool);
    assert!(device.memory_reserved() < reserved, "the pool's memory goes back with it");
}

#[test]
fn free_pages_in_pieces_serve_a_request_that_none_of_them_could() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let mib = 1u64 << 20;
    let page_bytes = device.allocator().settings().expandable_page_bytes(SizeClass::Large);
    let mut buffers: Vec<_> = (0..6).map(|_| Some(Buffer::new(&stream, page_bytes).unwrap())).collect();
    let reserved = device.memory_reserved();
    for place in [0, 2, 4] {
        buffers[place] = None;
    }
    let large = Buffer::new(&stream, 3 * page_bytes).unwrap();
    assert_eq!(device.memory_reserved(), reserved, "three pages in pieces are enough");
    // The memory is intact: the live neighbours keep theirs, and the moved pages contain what is written.
    for (round, buffer) in buffers.iter().flatten().enumerate() {
        stream.fill(buffer.pointer(), FillPattern::U32(round as u32), mib, Label::here("fill")).unwrap();
    }
    stream.fill(large.pointer(), FillPattern::U32(99), 4 * mib, Label::here("fill")).unwrap();
    let mut words = vec![0u32; 4 * mib as usize];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    stream.copy_to_host(bytes, large.pointer(), Label::here("read")).unwrap();
    assert!(words.iter().all(|word| *word == 99));
    for (round, buffer) in buffers.iter().flatten().enumerate() {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words[..mib as usize]);
        stream.copy_to_host(bytes, buffer.pointer(), Label::here("read")).unwrap();
        assert!(words[..mib as usize].iter().all(|word| *word == round as u32));
    }
}
