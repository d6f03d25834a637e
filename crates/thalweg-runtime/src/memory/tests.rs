//! The driver as the allocators' upstream, on a simulated device: the guarantees of the traits, and the state after a failure.

use std::sync::Arc;

use thalweg_driver::{
    CaptureMode, DevicePointer, Driver, Fill, FillPattern, HostFunction, Label, MemoryAdvice, StreamHandle,
};
use thalweg_memory::{
    Captures, MemorySharing, PageId, Reserved, SegmentSource, StreamId, StreamOrdered, Upstream,
    UpstreamError, VirtualMemory,
};
use thalweg_sim::{SimConfig, SimDriver};

use super::{DriverUpstream, ManagedMemory};
use crate::forgotten::ForgottenStreams;
use crate::{Device, Environment};

struct Fixture {
    driver: Arc<SimDriver>,
    forgotten: Arc<ForgottenStreams>,
    upstream: DriverUpstream,
    page: u64,
    free_bytes: u64,
}

impl Fixture {
    fn new() -> Self {
        let config = SimConfig { memory_bytes: 64 << 20, workers: 2, ..SimConfig::default() };
        let driver = SimDriver::new(config).expect("a simulator");
        let forgotten = ForgottenStreams::new(driver.clone());
        let upstream = DriverUpstream::new(driver.clone(), 0, forgotten.clone());
        let page = upstream.virtual_memory().expect("the simulator has it").granularity_bytes();
        let free_bytes = driver.memory_info(0).expect("figures").free_bytes;
        Self { driver, forgotten, upstream, page, free_bytes }
    }

    fn stream(&self) -> (StreamHandle, StreamId) {
        let stream = self.driver.stream_create(0, 0).expect("a stream");
        (stream, StreamId::from_raw(stream.raw()))
    }

    fn fill(&self, stream: StreamHandle, address: u64, value: u32, bytes: u64) -> thalweg_driver::Result<()> {
        let target = DevicePointer::new(address);
        let pattern = FillPattern::U32(value);
        self.driver
            .fill_async(stream, &Fill { target, pattern, count: bytes / 4, label: Label::here("fill") })
    }

    fn word(&self, stream: StreamHandle, address: u64) -> u32 {
        let mut bytes = [0; 4];
        let source = DevicePointer::new(address);
        self.driver.copy_to_host(stream, &mut bytes, source, Label::here("read")).expect("a read");
        u32::from_le_bytes(bytes)
    }

    fn pages(&self, count: usize) -> Vec<PageId> {
        (0..count).map(|_| self.upstream.create_page(self.page).expect("a page")).collect()
    }

    /// Blocks the stream until the sender is dropped.
    fn gate(&self, stream: StreamHandle) -> std::sync::mpsc::Sender<()> {
        let (open, wait) = std::sync::mpsc::channel::<()>();
        let wait = thalweg_lock::Mutex::new(wait);
        let function: HostFunction = Arc::new(move || {
            let _ = wait.lock().recv();
        });
        self.driver.host_function_async(stream, function, Label::here("gate")).expect("a gate");
        open
    }
}

fn driver_code(error: &UpstreamError) -> Option<thalweg_driver::Code> {
    let UpstreamError::Other(error) = error else { return None };
    error.downcast_ref::<thalweg_driver::Error>().map(thalweg_driver::Error::code)
}

#[test]
fn pages_are_mapped_side_by_side_and_move() {
    let fixture = Fixture::new();
    let (Fixture { upstream, page, .. }, (stream, id)) = (&fixture, fixture.stream());
    let range = upstream.reserve_addresses(8 * page).expect("addresses");
    let pages = fixture.pages(3);
    upstream.map(range, *page, &pages).expect("three pages");
    fixture.fill(stream, range, 7, 3 * page).expect("one fill over all of them");
    // The second and third page get another address while the first one's is in use.
    upstream.map(range + 5 * page, *page, &pages[1..]).expect("an alias");
    assert_eq!(fixture.word(stream, range + 7 * page - 4), 7);
    upstream.synchronize_stream(id).expect("nothing failed");
    upstream.unmap(range + page, 2 * page).expect("the old address goes");
    fixture.fill(stream, range + 5 * page, 9, 2 * page).expect("the new one stays");
    assert_eq!((fixture.word(stream, range), fixture.word(stream, range + 6 * page)), (7, 9));
    upstream.unmap(range, *page).expect("the rest");
    upstream.unmap(range + 5 * page, 2 * page).expect("the rest");
    pages.into_iter().for_each(|page| upstream.destroy_page(page).expect("mapped nowhere"));
    upstream.free_addresses(range, 8 * page).expect("nothing is mapped there");
    assert_eq!(fixture.driver.memory_info(0).expect("figures").free_bytes, fixture.free_bytes);
}

#[test]
fn a_map_that_fails_leaves_nothing_mapped() {
    let fixture = Fixture::new();
    let Fixture { upstream, page, .. } = &fixture;
    let range = upstream.reserve_addresses(4 * page).expect("addresses");
    let mut pages = fixture.pages(3);
    let gone = pages.pop().expect("three were made");
    upstream.destroy_page(gone).expect("mapped nowhere");
    pages.push(gone);
    let error = upstream.map(range, *page, &pages).expect_err("the last page is gone");
    assert_eq!(driver_code(&error), Some(thalweg_driver::Code::InvalidHandle));
    assert!(upstream.unmap(range, *page).is_err(), "the first page is not mapped any more");
    upstream.map(range, *page, &pages[..2]).expect("the range is empty, and the pages are whole");
    upstream.unmap(range, 2 * page).expect("both");

    // A range of which a later part is taken: the pages that were mapped before it are unmapped again.
    upstream.map(range + 2 * page, *page, &pages[1..2]).expect("the third place");
    let trio = [pages[0], fixture.pages(1)[0], pages[1]];
    assert!(upstream.map(range, *page, &trio).is_err());
    assert!(upstream.unmap(range, *page).is_err(), "taken back");
    upstream.unmap(range + 2 * page, *page).expect("what was there before is still there");
}

#[test]
fn running_out_of_pages_is_running_out_of_memory() {
    let fixture = Fixture::new();
    let too_many = fixture.upstream.create_page(fixture.free_bytes + fixture.page);
    assert!(matches!(too_many, Err(UpstreamError::OutOfMemory)));
    let whole = fixture.upstream.create_page(fixture.free_bytes).expect("all of it");
    assert!(matches!(fixture.upstream.create_page(fixture.page), Err(UpstreamError::OutOfMemory)));
    fixture.upstream.destroy_page(whole).expect("mapped nowhere");
}

#[test]
fn waiting_for_a_stream_that_captures_is_refused_and_breaks_nothing() {
    let fixture = Fixture::new();
    let (stream, id) = fixture.stream();
    fixture.driver.stream_begin_capture(stream, CaptureMode::Global).expect("a capture");
    let error = fixture.upstream.synchronize_stream(id).expect_err("nothing on it runs");
    assert_eq!(driver_code(&error), Some(thalweg_driver::Code::StreamCaptureUnsupported));
    let (_, other) = fixture.stream();
    fixture.upstream.synchronize_stream(other).expect("another stream can be waited for");
    fixture.driver.stream_end_capture(stream).expect("the capture is whole");
}

#[test]
fn a_stream_that_is_gone_is_waited_for_by_its_last_work() {
    let fixture = Fixture::new();
    let (stream, id) = fixture.stream();
    let address = fixture.upstream.allocate_async(4096, id).expect("pool memory");
    let gate = fixture.gate(stream);
    fixture.fill(stream, address, 3, 4096).expect("a fill");
    fixture.forgotten.forget(stream);
    fixture.upstream.free_async(address, id).expect("freed behind the last work");
    let reading = fixture.upstream.pool.lock().expect("it was made");
    assert!(fixture.driver.pool_usage(reading).expect("figures").used_bytes > 0, "the fill has not run");
    drop(gate);
    fixture.upstream.synchronize_stream(id).expect("the last work ends");
    fixture.upstream.synchronize().expect("the free, too");
    assert_eq!(fixture.driver.pool_usage(reading).expect("figures").used_bytes, 0);
    assert_eq!(fixture.upstream.capture_of(id).expect("an answer"), None);
}

#[test]
fn the_pool_holds_what_it_has_until_it_is_trimmed() {
    let fixture = Fixture::new();
    let (_, id) = fixture.stream();
    let reserved = || fixture.upstream.reserved().expect("figures");
    assert_eq!(reserved(), Reserved::default(), "there is no pool yet");
    fixture.upstream.reset_reserved_peak().expect("there is no pool yet");
    fixture.upstream.trim(0).expect("there is no pool yet");
    let address = fixture.upstream.allocate_async(5 << 20, id).expect("pool memory");
    fixture.upstream.free_async(address, id).expect("freed");
    fixture.upstream.synchronize().expect("idle");
    let Reserved { current_bytes, peak_bytes } = reserved();
    assert!(current_bytes >= 5 << 20 && peak_bytes == current_bytes);
    fixture.upstream.trim(0).expect("trimmed");
    assert_eq!(reserved(), Reserved { current_bytes: 0, peak_bytes });
    fixture.upstream.reset_reserved_peak().expect("reset");
    assert_eq!(reserved(), Reserved::default());
    let too_large = fixture.upstream.allocate_async(1 << 40, id);
    assert!(matches!(too_large, Err(UpstreamError::OutOfMemory)));
}

#[test]
fn captures_are_walked_back_from_their_ends() {
    let fixture = Fixture::new();
    let (Fixture { driver, upstream, .. }, (stream, id)) = (&fixture, fixture.stream());
    let memory = driver.memory_allocate(0, 4096).expect("memory").address();
    assert_eq!(upstream.capture_of(id).expect("an answer"), None);
    assert!(upstream.terminals(id).is_err(), "it does not capture");
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).expect("a capture");
    let capture = upstream.capture_of(id).expect("an answer").expect("it captures");
    assert_eq!(upstream.terminals(id).expect("nodes"), []);
    let mut nodes = Vec::new();
    for value in 0..3 {
        fixture.fill(stream, memory, value, 4096).expect("a node");
        nodes.extend(upstream.terminals(id).expect("one node"));
    }
    assert_eq!(nodes.len(), 3);
    assert_eq!(upstream.predecessors(id, nodes[2]).expect("one"), [nodes[1]]);
    assert_eq!(upstream.predecessors(id, nodes[1]).expect("one"), [nodes[0]]);
    assert_eq!(upstream.predecessors(id, nodes[0]).expect("none"), []);
    // Another stream joins, and belongs to the same capture.
    let (other, other_id) = fixture.stream();
    let event = driver.event_create(0, Default::default()).expect("an event");
    driver.event_record(event, stream).expect("recorded");
    driver.stream_wait_event(other, event).expect("joined");
    assert_eq!(upstream.capture_of(other_id).expect("an answer"), Some(capture));
    assert_eq!(upstream.terminals(other_id).expect("nodes"), [nodes[2]]);
    // A broken capture counts neither as a capture nor as none.
    assert!(driver.stream_synchronize(stream).is_err());
    assert!(upstream.capture_of(id).is_err());
    assert!(driver.stream_end_capture(stream).is_err());
    assert_eq!(upstream.capture_of(id).expect("an answer"), None);
}

#[test]
fn managed_segments_are_memory_and_go_back() {
    let driver =
        SimDriver::new(SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() }).expect("a simulator");
    let device = Device::all_of(driver.clone(), &Environment::default()).expect("a device").remove(0);
    let managed = ManagedMemory::new(&device);
    let stream = device.default_stream().handle();
    let free_bytes = driver.memory_info(0).expect("figures").free_bytes;
    // A capture of another stream forbids allocation to every thread, and must not be disturbed.
    let capturing = driver.stream_create(0, 0).expect("a stream");
    driver.stream_begin_capture(capturing, CaptureMode::Global).expect("a capture");
    let address = managed.allocate(4 << 20, StreamId::from_raw(stream.raw())).expect("managed memory");
    driver
        .memory_advise(DevicePointer::new(address), 4 << 20, MemoryAdvice::ReadMostly(true))
        .expect("managed");
    managed.free(address, 4 << 20, StreamId::from_raw(stream.raw())).expect("it was there");
    driver.stream_end_capture(capturing).expect("the capture is whole");
    assert_eq!(driver.memory_info(0).expect("figures").free_bytes, free_bytes);
    let too_large = managed.allocate(1 << 40, StreamId::from_raw(stream.raw()));
    assert!(matches!(too_large, Err(UpstreamError::OutOfMemory)));
}

#[test]
fn the_descriptor_of_a_page_is_opened_once_and_goes_with_the_page() {
    let fixture = Fixture::new();
    let upstream = &fixture.upstream;
    let pages = fixture.pages(2);
    let first = upstream.export_page(pages[0]).expect("a page that can be shared");
    assert_eq!(upstream.export_page(pages[0]).expect("again"), first);
    assert_ne!(upstream.export_page(pages[1]).expect("another page"), first);
    assert_eq!(upstream.descriptors.lock().len(), 2);
    upstream.destroy_page(pages[0]).expect("mapped nowhere");
    assert!(upstream.export_page(pages[0]).is_err(), "it is gone");
    assert!(upstream.destroy_page(pages[0]).is_err(), "it is gone");
    upstream.destroy_page(pages[1]).expect("mapped nowhere");
    assert!(upstream.descriptors.lock().is_empty());
}
