//! Buffers over memory of another library: they copy nothing, and the owner is dropped when the work is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_driver::FillPattern;
use thalweg_runtime::{Buffer, Device, ExternalMemory, Label, Stream};

use crate::support::{Gate, device, read, sim};

/// Another library's owner of memory: dropping it frees the memory.
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

/// An owner that an allocator of its own has, which reuses memory in the order of a stream.
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
