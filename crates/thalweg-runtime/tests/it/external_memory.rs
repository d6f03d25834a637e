//! Buffers over memory of another library: they copy nothing, and the owner is dropped when the work is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use thalweg_driver::FillPattern;
use thalweg_runtime::{Buffer, Device, ExternalMemory, Label, ProcessMemory, Stream, map_process};

use crate::support::{Gate, device, read, sim};

/// An owner of memory in another library: dropping it frees the memory.
struct Owner {
    device: Device,
    pointer: thalweg_driver::DevicePointer,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        self.device.driver().memory_free(self.pointer).unwrap();
    }
}

fn memory(device: &Device, dropped: &Arc<AtomicUsize>) -> ExternalMemory {
    let pointer = device.driver().memory_allocate(device.index(), 256).unwrap();
    let owner = Owner { device: device.clone(), pointer, dropped: dropped.clone() };
    // SAFETY: the owner has 256 bytes of the device, and frees them in its drop.
    unsafe { ExternalMemory::new(pointer, 256, owner) }
}

fn fill(stream: &Stream, buffer: &Buffer, value: f32) {
    let pattern = FillPattern::U32(value.to_bits());
    stream.fill(buffer.pointer(), pattern, 64, Label::here("fill")).unwrap();
}

#[test]
fn it_is_used_where_it_lies_and_given_back_once() {
    let device = device();
    let (stream, dropped) = (Stream::new(&device).unwrap(), Arc::default());
    let external = memory(&device, &dropped);
    let pointer = external.pointer();
    let buffer = Buffer::external(&stream, external).unwrap();
    assert_eq!((buffer.pointer(), buffer.size_bytes()), (pointer, 256));
    assert!(!buffer.is_used_only_on(&stream), "its owner may use it elsewhere");
    fill(&stream, &buffer, 3.0);
    assert_eq!(read(&stream, &buffer), [3.0; 64]);
    let error = buffer.share().unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("another library"), "{error}");
    stream.synchronize().unwrap();
    drop(buffer);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

/// An owner whose own allocator reuses memory in the order of a stream.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn memory_in_stream_order_goes_before_its_work_is_done() {
    let device = device();
    let [first, second] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let dropped: Arc<AtomicUsize> = Arc::default();
    let pointer = device.driver().memory_allocate(device.index(), 256).unwrap();
    // SAFETY: the memory is freed at the end, and only the two streams use it, one after the other.
    let in_order =
        || unsafe { ExternalMemory::new(pointer, 256, Counted(dropped.clone())).in_stream_order() };
    let gate = Gate::close(&first);
    let buffer = Buffer::external(&first, in_order()).unwrap();
    fill(&first, &buffer, 1.0);
    drop(buffer);
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the memory is reused in the order of the stream");
    second.wait_stream(&first).unwrap();
    let buffer = Buffer::external(&first, in_order()).unwrap();
    fill(&second, &buffer, 1.0);
    buffer.record_stream(&second);
    drop(buffer);
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the second stream has not used it yet");
    gate.open();
    second.synchronize().unwrap();
    drop(Buffer::external(&first, in_order()).unwrap());
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
    device.driver().memory_free(pointer).unwrap();
}

#[test]
fn its_owner_goes_when_every_stream_that_used_it_is_done() {
    let device = device();
    let [first, second] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let dropped = Arc::default();
    let buffer = Buffer::external(&first, memory(&device, &dropped)).unwrap();
    let gate = Gate::close(&second);
    fill(&second, &buffer, 1.0);
    buffer.record_stream(&second);
    buffer.record_stream(&second);
    drop(buffer);
    first.synchronize().unwrap();
    let other = Buffer::external(&first, memory(&device, &dropped)).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "the second stream has not used it yet");
    gate.open();
    second.synchronize().unwrap();
    drop(other);
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn memory_that_a_graph_may_use_is_never_given_back() {
    let device = sim(1).remove(0);
    let dropped = Arc::default();
    let stream = Stream::new(&device).unwrap();
    let external = memory(&device, &dropped);
    let options = thalweg_runtime::CaptureOptions { stream: Some(stream.clone()), ..Default::default() };
    let capture = thalweg_runtime::Graph::capture_begin(&device, options).unwrap();
    let buffer = Buffer::external(&stream, external).unwrap();
    fill(&stream, &buffer, 1.0);
    drop(buffer);
    let graph = capture.end().unwrap().instantiate().unwrap();
    graph.replay().unwrap();
    device.synchronize().unwrap();
    let later = Buffer::external(&stream, memory(&device, &dropped)).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(later);
}

#[test]
fn the_host_and_a_simulated_gpu_use_the_same_memory() {
    let device = device();
    if !device.is_simulated() {
        return;
    }
    let stream = Stream::new(&device).unwrap();
    let numbers: Arc<[AtomicU32; 64]> = Arc::new([const { AtomicU32::new(0) }; 64]);
    let (start, dropped) = (numbers.as_ptr().addr(), Arc::<AtomicUsize>::default());
    // The second mapping is of a part of the first.
    let [all, part] = [(start, 256), (start + 128, 128)].map(|(address, bytes)| {
        // SAFETY: the owner keeps the numbers, which are atomic: the host may access them at any time.
        let memory = unsafe { ProcessMemory::new(address, bytes) };
        let owner = (numbers.clone(), Counted(dropped.clone()));
        let external = map_process(device.driver(), &memory, Box::new(owner)).unwrap();
        Buffer::external(&stream, external).unwrap()
    });
    assert_eq!(all.pointer().address() % 4096, start as u64 % 4096, "kernels see the alignment");
    let host = |place: usize| f32::from_bits(numbers[place].load(Ordering::Relaxed));
    for round in 0..200 {
        // No call waits for the stream: the fill is done when its call returns.
        fill(&stream, &all, round as f32);
        assert_eq!([host(0), host(63)], [round as f32; 2]);
        numbers[8].store((-1.0_f32).to_bits(), Ordering::Relaxed);
        stream.copy_on_device(part.pointer(), all.pointer(), 128, Label::here("copy")).unwrap();
        assert_eq!([host(39), host(40), host(41)], [round as f32, -1.0, round as f32]);
    }
    drop(all);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(part);
    assert_eq!((dropped.load(Ordering::SeqCst), Arc::strong_count(&numbers)), (2, 1));
}

#[test]
fn the_host_views_memory_of_a_simulated_gpu() {
    let device = device();
    if !device.is_simulated() {
        return;
    }
    let stream = Stream::new(&device).unwrap();
    let buffer = Buffer::new(&stream, 256).unwrap();
    fill(&stream, &buffer, 1.0);
    let address = buffer.host_address().unwrap().unwrap();
    assert_eq!(buffer.host_address().unwrap(), Some(address));
    // SAFETY: the buffer has 64 numbers there, and its commands are done when their calls return.
    let number = |place: usize| unsafe { (address as *const f32).add(place).read_volatile() };
    assert_eq!([number(0), number(63)], [1.0; 2]);
    for round in 0..200 {
        fill(&stream, &buffer, round as f32);
        assert_eq!([number(0), number(63)], [round as f32; 2]);
    }
    assert_eq!(Buffer::new(&stream, 0).unwrap().host_address().unwrap(), None);
}
