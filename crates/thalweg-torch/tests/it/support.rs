//! [`Torch`]: a caller that makes PyTorch's calls in PyTorch's order, using only the exported functions.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_driver::{CaptureMode, DevicePointer, FillPattern, GraphExecHandle, GraphHandle, Label};
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Environment, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_torch::interface::*;
use thalweg_torch::{Allocator, PoolName, Source, Status};

pub const MIB: u64 = 1 << 20;

/// Creates simulated devices of 64 MiB, with a machine of their own.
pub fn sim(devices: u32) -> Vec<Device> {
    let config = SimConfig { devices, memory_bytes: 64 * MIB, workers: 2, ..SimConfig::default() };
    Device::all_of(SimDriver::new(config).unwrap(), &Environment::default()).unwrap()
}

/// A status with its message.
pub type Answer<T> = Result<T, (Status, String)>;

pub fn message() -> String {
    // SAFETY: the text is there until the thread's next failure.
    unsafe { CStr::from_ptr(thalweg_error_message()) }.to_str().unwrap().to_owned()
}

pub fn answer<T>(status: Status, value: T) -> Answer<T> {
    if status == Status::Ok { Ok(value) } else { Err((status, message())) }
}

/// The process of PyTorch. Dropping it ends the process: live memory is released.
pub struct Torch {
    pub devices: Vec<Device>,
    allocator: *mut Allocator,
}

// SAFETY: the interface may be called from any thread.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

/// Memory of a tensor: freed when it is dropped, as `c10::DataPtr` does.
pub struct Storage {
    torch: Arc<Torch>,
    pub address: u64,
    pub bytes: u64,
}

impl Torch {
    pub fn new(devices: &[Device], settings: &str) -> Arc<Self> {
        let allocator = Allocator::new(Source::Devices(devices.to_vec()), settings).unwrap();
        Arc::new(Self { devices: devices.to_vec(), allocator: Box::into_raw(Box::new(allocator)) })
    }

    /// Returns one small device.
    pub fn small() -> Arc<Self> {
        Self::new(&sim(1), "")
    }

    pub fn raw(&self) -> Option<&Allocator> {
        // SAFETY: the allocator lives as long as `self`.
        unsafe { self.allocator.as_ref() }
    }

    /// Returns a CUDA stream, as of `torch.cuda.Stream()`, and a handle for queueing work on it.
    pub fn stream(&self, device: usize) -> Stream {
        let cuda_stream = Stream::new(&self.devices[device]).unwrap().cuda_stream().unwrap();
        self.wrap(device, cuda_stream)
    }

    pub fn default_stream(&self, device: usize) -> Stream {
        self.wrap(device, 0)
    }

    fn wrap(&self, device: usize, cuda_stream: u64) -> Stream {
        // SAFETY: the allocator lives as long as `self`.
        unsafe { &*self.allocator }.stream(device as i32, cuda_stream).unwrap()
    }

    /// Calls `CUDACachingAllocator::raw_alloc_with_stream`.
    pub fn malloc(&self, bytes: u64, stream: &Stream) -> Answer<u64> {
        let device = stream.device().index() as i32;
        let mut address = 0;
        // SAFETY: the allocator is open, and there is a place.
        let status =
            unsafe { thalweg_malloc(self.raw(), device, bytes, cuda_stream(stream), &raw mut address) };
        answer(status, address)
    }

    /// Marks a stream as one that PyTorch did not make, as the shims do.
    pub fn set_transient(&self, cuda_stream: u64) {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_set_stream_transient(self.raw(), 0, cuda_stream) }, ()).unwrap();
    }

    /// Calls `CUDACachingAllocator::raw_delete`.
    pub fn free(&self, address: u64) -> Answer<()> {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_free(self.raw(), address) }, ())
    }

    /// Calls `torch.empty` on the current stream.
    pub fn empty(self: &Arc<Self>, bytes: u64, stream: &Stream) -> Answer<Storage> {
        Ok(Storage { torch: Arc::clone(self), address: self.malloc(bytes, stream)?, bytes })
    }

    /// Calls `torch.full`: an allocation and a kernel.
    pub fn full(self: &Arc<Self>, bytes: u64, value: u8, stream: &Stream) -> Storage {
        let storage = self.empty(bytes, stream).unwrap();
        fill(stream, &storage, value);
        storage
    }

    pub fn statistics(&self, device: i32) -> StatisticsC {
        let mut statistics = StatisticsC::default();
        // SAFETY: the allocator is open, and there is a place.
        let status = unsafe { thalweg_device_statistics(self.raw(), device, &raw mut statistics) };
        answer(status, statistics).unwrap()
    }

    pub fn empty_cache(&self) -> Answer<()> {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_empty_cache(self.raw()) }, ())
    }

    /// Calls `beginAllocateToPool`, with a filter as `CUDAGraph::capture_begin` has it: the streams that a function names.
    pub fn begin(&self, pool: PoolName, filter: impl Fn(u64) -> bool + Send + Sync + 'static) -> Answer<()> {
        unsafe extern "C" fn call(user: *mut c_void, stream: u64) -> u8 {
            // SAFETY: it is the filter below.
            u8::from((unsafe { &*user.cast::<Filter>() })(stream))
        }
        unsafe extern "C" fn free(user: *mut c_void) {
            FILTERS.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: it is the filter below, and this is called once.
            drop(unsafe { Box::from_raw(user.cast::<Filter>()) });
        }
        let filter: Box<Filter> = Box::new(Box::new(filter));
        FILTERS.fetch_add(1, Ordering::Relaxed);
        let user = Box::into_raw(filter).cast();
        // SAFETY: the allocator is open, and the functions accept their arguments.
        let status =
            unsafe { thalweg_begin_allocate_to_pool(self.raw(), 0, pool.0, pool.1, call, user, Some(free)) };
        answer(status, ())
    }

    /// Calls `markCaptureBegin` and `markCaptureEnd`.
    pub fn mark_capture(&self, begins: bool) -> Answer<()> {
        // SAFETY: the allocator is open.
        let status = unsafe {
            if begins {
                thalweg_mark_capture_begin(self.raw(), 0)
            } else {
                thalweg_mark_capture_end(self.raw(), 0)
            }
        };
        answer(status, ())
    }

    pub fn end(&self, pool: PoolName) -> Answer<()> {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_end_allocate_to_pool(self.raw(), 0, pool.0, pool.1) }, ())
    }

    pub fn release(&self, pool: PoolName) -> Answer<()> {
        // SAFETY: the allocator is open.
        answer(unsafe { thalweg_release_pool(self.raw(), 0, pool.0, pool.1) }, ())
    }

    pub fn use_count(&self, pool: PoolName) -> u64 {
        let mut count = 0;
        // SAFETY: the allocator is open, and there is a place.
        let status = unsafe { thalweg_pool_use_count(self.raw(), 0, pool.0, pool.1, &raw mut count) };
        answer(status, count).unwrap()
    }

    /// Returns everything that a snapshot has: segments with their blocks, and events.
    pub fn snapshot(&self, pool: PoolName) -> Collected {
        let collected = Mutex::new(Collected::default());
        let visitor = VisitorC {
            user: (&raw const collected).cast_mut().cast(),
            segment: on_segment,
            block: on_block,
            event: on_event,
            annotation: on_annotation,
        };
        // SAFETY: the allocator is open, and the functions accept their arguments.
        let status = unsafe { thalweg_visit_snapshot(self.raw(), pool.0, pool.1, 1, &raw const visitor) };
        answer(status, collected.into_inner()).unwrap()
    }

    /// Returns the text that a function writes.
    pub fn text(
        &self,
        call: impl FnOnce(Option<&Allocator>, Write, *mut c_void) -> Status,
    ) -> Answer<Vec<u8>> {
        unsafe extern "C" fn write(user: *mut c_void, bytes: *const u8, count: usize) {
            // SAFETY: it is the list below, and there are so many bytes.
            unsafe { (*user.cast::<Vec<u8>>()).extend(std::slice::from_raw_parts(bytes, count)) };
        }
        let mut written = Vec::new();
        let status = call(self.raw(), write, (&raw mut written).cast());
        answer(status, written)
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more: a user has an `Arc` of this.
        let status = unsafe { thalweg_close(self.allocator) };
        assert_eq!(status, Status::Ok);
    }
}

impl Storage {
    pub fn record_stream(&self, stream: &Stream) {
        let device = stream.device().index() as i32;
        // SAFETY: the allocator is open.
        let status =
            unsafe { thalweg_record_stream(self.torch.raw(), self.address, device, cuda_stream(stream)) };
        answer(status, ()).unwrap();
    }

    pub fn record_use(&self, stream: &Stream) {
        let device = stream.device().index() as i32;
        // SAFETY: the allocator is open.
        let status =
            unsafe { thalweg_record_use(self.torch.raw(), self.address, device, cuda_stream(stream)) };
        answer(status, ()).unwrap();
    }

    /// Removes the deleter, as graph trees do with tensors whose memory they reuse: dropping the tensor then does nothing.
    pub fn without_deleter(mut self) -> u64 {
        std::mem::replace(&mut self.address, 0)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.torch.free(self.address).unwrap();
    }
}

type Filter = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// Filters that were not dropped yet, of the whole process.
pub static FILTERS: AtomicUsize = AtomicUsize::new(0);

#[derive(Default, Debug)]
pub struct Collected {
    pub segments: Vec<(SegmentC, Vec<BlockC>)>,
    pub events: Vec<EventC>,
}

// SAFETY: the pointers in events are not followed.
unsafe impl Send for Collected {}

fn collected<'a>(user: *mut c_void) -> thalweg_lock::MutexGuard<'a, Collected> {
    // SAFETY: it is the collection of `Torch::snapshot`, which is there during the visit.
    unsafe { &*user.cast::<Mutex<Collected>>() }.lock()
}

unsafe extern "C" fn on_segment(user: *mut c_void, segment: *const SegmentC) {
    // SAFETY: a segment is there during the call.
    collected(user).segments.push((unsafe { *segment }, Vec::new()));
}

unsafe extern "C" fn on_block(user: *mut c_void, block: *const BlockC) {
    // SAFETY: a block is there during the call.
    collected(user).segments.last_mut().unwrap().1.push(unsafe { *block });
}

unsafe extern "C" fn on_event(user: *mut c_void, event: *const EventC) {
    // SAFETY: an event is there during the call.
    collected(user).events.push(unsafe { *event });
}

unsafe extern "C" fn on_annotation(_: *mut c_void, _: *const AnnotationC) {}

pub fn cuda_stream(stream: &Stream) -> u64 {
    if stream.is_default() { 0 } else { stream.cuda_stream().unwrap() }
}

/// Returns the parts that are written and read, by address and size: of large memory, the beginning of each page.
fn pieces(storage: &Storage) -> impl Iterator<Item = (DevicePointer, u64)> {
    let starts = (0..storage.bytes).step_by(2 * MIB as usize);
    starts.map(|start| (DevicePointer::new(storage.address + start), (storage.bytes - start).min(1 << 16)))
}

pub fn fill(stream: &Stream, storage: &Storage, value: u8) {
    for (piece, bytes) in pieces(storage) {
        stream.fill(piece, FillPattern::U8(value), bytes, Label::here("fill")).unwrap();
    }
}

/// Returns the first byte, after the stream's work; all others that were written must be equal.
pub fn read(stream: &Stream, storage: &Storage) -> u8 {
    let mut first = None;
    for (piece, bytes) in pieces(storage) {
        let mut found = vec![0; bytes as usize];
        stream.copy_to_host(&mut found, piece, Label::here("read")).unwrap();
        let first = *first.get_or_insert(found[0]);
        assert!(found.iter().all(|byte| *byte == first), "one value fills the memory");
    }
    first.expect("the memory is not empty")
}

/// `torch.cuda.CUDAGraph`: begin, work, end, replay, and the release of its pool when it is dropped.
pub struct Graph {
    torch: Arc<Torch>,
    pub pool: PoolName,
    exec: Option<GraphExecHandle>,
    graph: Option<GraphHandle>,
}

impl Graph {
    /// Calls `CUDAGraph::capture_begin` to `capture_end`.
    pub fn capture<T>(
        torch: &Arc<Torch>,
        pool: PoolName,
        stream: &Stream,
        body: impl FnOnce() -> T,
    ) -> (Self, T) {
        let (driver, handle) = (stream.device().driver(), stream.handle());
        let asked = stream.clone();
        let capturing = cuda_stream(stream);
        torch
            .begin(pool, move |cuda_stream| cuda_stream == capturing && asked.is_capturing().unwrap_or(false))
            .unwrap();
        torch.mark_capture(true).unwrap();
        driver.stream_begin_capture(handle, CaptureMode::Global).unwrap();
        let result = body();
        let graph = driver.stream_end_capture(handle).unwrap();
        torch.mark_capture(false).unwrap();
        torch.end(pool).unwrap();
        let exec = driver.graph_instantiate(graph, stream.device().index()).unwrap();
        (Self { torch: Arc::clone(torch), pool, exec: Some(exec), graph: Some(graph) }, result)
    }

    pub fn replay(&self, stream: &Stream) {
        stream.device().driver().graph_launch(self.exec.unwrap(), stream.handle()).unwrap();
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // PyTorch's order: first the pool, then the executable.
        self.torch.release(self.pool).unwrap();
        let driver = self.torch.devices[0].driver();
        driver.graph_exec_destroy(self.exec.take().unwrap()).unwrap();
        driver.graph_destroy(self.graph.take().unwrap()).unwrap();
    }
}
