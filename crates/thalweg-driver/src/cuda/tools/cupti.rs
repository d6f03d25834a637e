//! CUPTI: a record of the work of this process's GPUs.
//!
//! The library requests buffers, fills them, and returns them on a thread of its own, through two functions that get no
//! pointer of ours. So the records belong to the process ([`RECORDS`]), like the library's own state. A record of an
//! *external correlation* connects the number that a thread pushed with the library's number of a call, and each kernel,
//! copy and fill has that number. Both are kept until tracing ends, because either may come first.
//!
//! Structs are those of `cupti_activity.h`, up to the last field that is read. Later versions of the library append fields
//! to them.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard};

use crate::activity::{Activities, Activity, ActivityKind, ActivityTracer, KernelActivity};
use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::table::{CallStatus, entry_points, function_at, numbers, text_at};
use crate::{Code, Error, Result};

/// `CUpti_BuffersCallbackRequestFunc`.
type RequestBuffer = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
type CompleteBuffer = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// `CUpti_CallbackFunc`.
type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

entry_points! {
    /// libcupti.
    CuptiTable from cudarc::cupti::sys {
        subscribe = cuptiSubscribe (subscriber: *mut usize, callback: Callback, data: *mut c_void);
        unsubscribe = cuptiUnsubscribe (subscriber: usize);
        register_callbacks = cuptiActivityRegisterCallbacks (request: RequestBuffer, complete: CompleteBuffer);
        enable = cuptiActivityEnable (kind: u32);
        disable = cuptiActivityDisable (kind: u32);
        flush_all = cuptiActivityFlushAll (flag: u32);
        next_record = cuptiActivityGetNextRecord (buffer: *mut u8, bytes: usize, record: *mut *mut u8);
        dropped = cuptiActivityGetNumDroppedRecords (context: *mut c_void, stream: u32, dropped: *mut usize);
        push_external = cuptiActivityPushExternalCorrelationId (kind: u32, id: u64);
        pop_external = cuptiActivityPopExternalCorrelationId (kind: u32, last: *mut u64);
        timestamp = cuptiGetTimestamp (timestamp: *mut u64);
    }
}

/// The values of `CUpti_ActivityKind` that are read, such as `CUPTI_ACTIVITY_KIND_MEMCPY`.
pub(in crate::cuda) mod kind {
    super::numbers! { numbers from cudarc::cupti::sys::CUpti_ActivityKind, pub(in crate::cuda) u32 {
        COPY = 1, CUPTI_ACTIVITY_KIND_MEMCPY;
        FILL = 2, CUPTI_ACTIVITY_KIND_MEMSET;
        DRIVER = 4, CUPTI_ACTIVITY_KIND_DRIVER;
        RUNTIME = 5, CUPTI_ACTIVITY_KIND_RUNTIME;
        KERNEL = 10, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        PEER_COPY = 22, CUPTI_ACTIVITY_KIND_MEMCPY2;
        EXTERNAL_CORRELATION = 39, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    } }
}

/// The kinds of records that are traced. Correlations are only recorded with calls, whose records are skipped.
const KINDS: [u32; 7] = [
    kind::KERNEL,
    kind::COPY,
    kind::FILL,
    kind::PEER_COPY,
    kind::EXTERNAL_CORRELATION,
    kind::DRIVER,
    kind::RUNTIME,
];

numbers! { constants_of_cupti from cudarc::cupti::sys, pub(in crate::cuda) u32 {
    OUR_CORRELATION = 3, CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    FLUSH_FORCED = 1, CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED;
    MULTIPLE_SUBSCRIBERS = 39, CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
} }

/// `CUpti_ActivityKernel10`, its first fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct KernelRecord {
    pub(in crate::cuda) kind: u32,
    pub(in crate::cuda) cache_config: u8,
    pub(in crate::cuda) shared_memory_config: u8,
    pub(in crate::cuda) registers_per_thread: u16,
    pub(in crate::cuda) partitioned: [u32; 2],
    pub(in crate::cuda) start: u64,
    pub(in crate::cuda) end: u64,
    pub(in crate::cuda) completed: u64,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) context: u32,
    pub(in crate::cuda) stream: u32,
    pub(in crate::cuda) grid: [u32; 3],
    pub(in crate::cuda) block: [u32; 3],
    pub(in crate::cuda) static_shared_memory: u32,
    pub(in crate::cuda) dynamic_shared_memory: u32,
    pub(in crate::cuda) local_memory: [u32; 2],
    pub(in crate::cuda) correlation: u32,
    pub(in crate::cuda) grid_id: i64,
    pub(in crate::cuda) name: *const c_char,
    pub(in crate::cuda) reserved: *mut c_void,
    pub(in crate::cuda) queued: u64,
    pub(in crate::cuda) submitted: u64,
    pub(in crate::cuda) launch: [u8; 4],
    pub(in crate::cuda) shared_memory_executed: u32,
    pub(in crate::cuda) graph_node: u64,
}

/// `CUpti_ActivityMemcpy6` and `CUpti_ActivityMemset4`, their first fields. The fields that are read have the same offsets
/// in both.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct CopyOrFillRecord {
    pub(in crate::cuda) kind: u32,
    pub(in crate::cuda) kinds_or_value: [u8; 4],
    pub(in crate::cuda) bytes: u64,
    pub(in crate::cuda) start: u64,
    pub(in crate::cuda) end: u64,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) context: u32,
    pub(in crate::cuda) stream: u32,
    pub(in crate::cuda) correlation: u32,
    pub(in crate::cuda) rest: [u32; 2],
    pub(in crate::cuda) reserved: *mut c_void,
    pub(in crate::cuda) graph_node: u64,
}

/// `CUpti_ActivityMemcpyPtoP4`, its first fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct PeerCopyRecord {
    pub(in crate::cuda) kind: u32,
    pub(in crate::cuda) kinds_and_flags: [u8; 4],
    pub(in crate::cuda) bytes: u64,
    pub(in crate::cuda) start: u64,
    pub(in crate::cuda) end: u64,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) context: u32,
    pub(in crate::cuda) stream: u32,
    pub(in crate::cuda) devices_and_contexts: [u32; 4],
    pub(in crate::cuda) correlation: u32,
    pub(in crate::cuda) reserved: *mut c_void,
    pub(in crate::cuda) graph_node: u64,
}

/// `CUpti_ActivityExternalCorrelation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct CorrelationRecord {
    pub(in crate::cuda) kind: u32,
    pub(in crate::cuda) external_kind: u32,
    pub(in crate::cuda) external: u64,
    pub(in crate::cuda) correlation: u32,
    pub(in crate::cuda) reserved: u32,
}

/// An activity with the library's numbers and times.
struct Raw {
    kind: ActivityKind,
    name: String,
    correlation: u32,
    device: u32,
    stream: u32,
    start: u64,
    end: u64,
    bytes: u64,
    kernel: Option<KernelActivity>,
    graph_node: u64,
}

/// The records that were received, and spare buffers.
struct Records {
    activities: Vec<Raw>,
    /// Our numbers by the library's.
    calls: FxHashMap<u32, u64>,
    spare: Vec<Buffer>,
    dropped: u64,
}

/// A buffer that the library fills.
struct Buffer(*mut u8);

// SAFETY: the memory belongs to the owner of this, on any thread.
unsafe impl Send for Buffer {}

/// The size of a buffer: the library's documentation recommends 1 to 10 MB.
const BUFFER: Layout = match Layout::from_size_align(4 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

/// The number of buffers that are allocated before tracing: allocating one meanwhile delays the program's launch.
const SPARE_BUFFERS: usize = 8;

static RECORDS: Mutex<Option<Records>> = Mutex::new(None);
static TABLE: OnceLock<CuptiTable> = OnceLock::new();

fn records() -> MutexGuard<'static, Option<Records>> {
    RECORDS.lock()
}

fn new_buffer() -> Option<Buffer> {
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc(BUFFER) };
    (!memory.is_null()).then_some(Buffer(memory))
}

/// Passes an empty buffer to the library. A null pointer makes it drop records, and count them.
unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    let spare = records().as_mut().and_then(|records| records.spare.pop());
    let given = spare.or_else(new_buffer).map_or(std::ptr::null_mut(), |buffer| buffer.0);
    // SAFETY: the library passes three places to write to; 0 means any number of records.
    unsafe {
        *buffer = given;
        *bytes = if given.is_null() { 0 } else { BUFFER.size() };
        *most_records = 0;
    }
}

/// Reads a buffer that the library has filled, and frees or keeps it.
unsafe extern "C" fn complete_buffer(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _bytes: usize,
    filled: usize,
) {
    if buffer.is_null() {
        return;
    }
    let mut records = records();
    let (Some(records), Some(table)) = (records.as_mut(), TABLE.get()) else {
        // SAFETY: it came from `new_buffer`, and the library no longer uses it.
        unsafe { dealloc(buffer, BUFFER) };
        return;
    };
    let mut record = std::ptr::null_mut();
    // SAFETY: the library filled `filled` bytes of its buffer. It returns an error after the last record; a record has the
    // layout of its kind and lives as long as the buffer.
    unsafe {
        while table.next_record(buffer, filled, &raw mut record).is_success() {
            records.read(record);
        }
        let mut dropped = 0;
        if table.dropped(context, stream, &raw mut dropped).is_success() {
            records.dropped += dropped as u64;
        }
    }
    records.spare.push(Buffer(buffer));
}

/// Does nothing: no callback is enabled, but a subscriber must have a function.
unsafe extern "C" fn ignore(_data: *mut c_void, _domain: u32, _id: u32, _call: *const c_void) {}

impl Records {
    fn new() -> Self {
        Self {
            activities: Vec::new(),
            calls: FxHashMap::default(),
            spare: (0..SPARE_BUFFERS).filter_map(|_| new_buffer()).collect(),
            dropped: 0,
        }
    }

    /// Adds a record of the library.
    ///
    /// # Safety
    /// `record` points to a record of the library that begins with its kind.
    unsafe fn read(&mut self, record: *const u8) {
        // SAFETY: by the kind, a record has the layout that is read; records are aligned to 8 bytes.
        unsafe {
            match record.cast::<u32>().read() {
                kind::KERNEL => self.kernel(&record.cast::<KernelRecord>().read()),
                number @ (kind::COPY | kind::FILL) => {
                    let it = record.cast::<CopyOrFillRecord>().read();
                    let numbers = [it.correlation, it.device, it.stream];
                    let kind = if number == kind::COPY { ActivityKind::Copy } else { ActivityKind::Fill };
                    self.moved(kind, numbers, [it.start, it.end], it.bytes, it.graph_node);
                }
                kind::PEER_COPY => {
                    let it = record.cast::<PeerCopyRecord>().read();
                    let numbers = [it.correlation, it.device, it.stream];
                    self.moved(ActivityKind::Copy, numbers, [it.start, it.end], it.bytes, it.graph_node);
                }
                kind::EXTERNAL_CORRELATION => {
                    let it = record.cast::<CorrelationRecord>().read();
                    if it.external_kind == OUR_CORRELATION {
                        self.calls.insert(it.correlation, it.external);
                    }
                }
                _ => {}
            }
        }
    }

    /// # Safety
    /// The name is null or a string of the library.
    unsafe fn kernel(&mut self, it: &KernelRecord) {
        // SAFETY: the caller's promise.
        let name = unsafe { text_at(it.name) };
        self.activities.push(Raw {
            kind: ActivityKind::Kernel,
            name,
            correlation: it.correlation,
            device: it.device,
            stream: it.stream,
            start: it.start,
            end: it.end,
            bytes: 0,
            kernel: Some(KernelActivity {
                grid: it.grid,
                block: it.block,
                registers: u32::from(it.registers_per_thread),
                shared_memory_bytes: it.static_shared_memory.saturating_add(it.dynamic_shared_memory),
            }),
            graph_node: it.graph_node,
        });
    }

    /// Adds a copy or a fill. The numbers identify its call, device and stream.
    fn moved(
        &mut self,
        kind: ActivityKind,
        [correlation, device, stream]: [u32; 3],
        [start, end]: [u64; 2],
        bytes: u64,
        graph_node: u64,
    ) {
        let name = String::new();
        self.activities.push(Raw {
            kind,
            name,
            correlation,
            device,
            stream,
            start,
            end,
            bytes,
            kernel: None,
            graph_node,
        });
    }

    /// Turns the records into activities. A record without times belongs to work that did not end, and counts as dropped.
    fn resolve(mut self, clock: Clock) -> Activities {
        self.spare.drain(..).for_each(|buffer| {
            // SAFETY: it came from `new_buffer`, and nothing else has it.
            unsafe { dealloc(buffer.0, BUFFER) }
        });
        let all = self.activities.len();
        let whole = self.activities.into_iter().filter(|raw| raw.start > 0 && raw.end >= raw.start);
        let mut list: Vec<Activity> = whole
            .map(|raw| Activity {
                kind: raw.kind,
                name: raw.name,
                call: self.calls.get(&raw.correlation).copied(),
                device: raw.device,
                stream: raw.stream,
                start: clock.instant(raw.start),
                end: clock.instant(raw.end),
                bytes: raw.bytes,
                kernel: raw.kernel,
                graph_node: Some(raw.graph_node).filter(|&node| node != 0),
            })
            .collect();
        list.sort_by_key(|activity| activity.start);
        let dropped = self.dropped + (all - list.len()) as u64;
        Activities { list, dropped }
    }
}

/// A moment in the library's clock and in the host's.
#[derive(Clone, Copy)]
struct Clock {
    library: u64,
    host: Instant,
}

impl Clock {
    fn instant(self, nanoseconds: u64) -> Instant {
        let moment = match nanoseconds.checked_sub(self.library) {
            Some(later) => self.host.checked_add(Duration::from_nanos(later)),
            None => self.host.checked_sub(Duration::from_nanos(self.library - nanoseconds)),
        };
        moment.unwrap_or(self.host)
    }
}

/// CUPTI's library, loaded.
pub(in crate::cuda) struct Cupti {
    table: &'static CuptiTable,
    error_text: Option<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>,
    /// The subscriber while tracing is on.
    subscriber: Mutex<Option<usize>>,
}

impl fmt::Debug for Cupti {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cupti").finish_non_exhaustive()
    }
}

impl Cupti {
    pub(in crate::cuda) fn load(environment: &SearchEnvironment) -> Result<Self> {
        let library = OpenLibrary::open(Library::Cupti, environment, "cuptiSubscribe")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `cupti_activity.h`, `cupti_callbacks.h` and `cupti_result.h` declare for these symbols; an
        // `OpenLibrary` is never unloaded.
        let (table, error_text) = unsafe {
            (
                TABLE.get_or_init(|| CuptiTable::resolve(|entry| symbol(entry.symbol))),
                function_at(symbol(c"cuptiGetResultString")),
            )
        };
        Ok(Self { table, error_text, subscriber: Mutex::default() })
    }

    fn check(&self, outcome: CallStatus) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        if outcome.missing.is_some() {
            return Err(Error::new(Code::NotSupported, outcome.call, "this version of CUPTI lacks it"));
        }
        if outcome.status == MULTIPLE_SUBSCRIBERS {
            let detail = "another profiler of this process has CUPTI (PyTorch's, Nsight's): stop it first";
            return Err(Error::new(Code::NotSupported, outcome.call, detail));
        }
        let mut text = std::ptr::null();
        // SAFETY: writes a pointer to a string of the library, or leaves it null.
        let text = unsafe {
            if let Some(error_text) = self.error_text {
                error_text(outcome.status, &raw mut text);
            }
            text_at(text)
        };
        Err(Error::new(
            Code::Other(outcome.status),
            outcome.call,
            format!("CUPTI answered {} ({text})", outcome.status),
        ))
    }

    fn subscriber(&self) -> MutexGuard<'_, Option<usize>> {
        self.subscriber.lock()
    }

    fn enable(&self) -> Result<()> {
        // SAFETY: the functions live as long as the process; kinds are numbers.
        unsafe {
            self.check(self.table.register_callbacks(request_buffer, complete_buffer))?;
            KINDS.iter().try_for_each(|&kind| self.check(self.table.enable(kind)))
        }
    }

    /// Stops the library, ignoring errors until the end; returns the first.
    fn disable(&self, subscriber: usize) -> Result<()> {
        // SAFETY: kinds and the flag are numbers; the subscriber is that of `start`, and is removed once.
        unsafe {
            let disabled =
                KINDS.iter().map(|&kind| self.check(self.table.disable(kind))).fold(Ok(()), Result::and);
            let flushed = self.check(self.table.flush_all(FLUSH_FORCED));
            let unsubscribed = self.check(self.table.unsubscribe(subscriber));
            disabled.and(flushed).and(unsubscribed)
        }
    }

    /// Returns a moment in both clocks: of several readings, the one with the least time between its two readings of the
    /// host's clock.
    fn clock(&self) -> Result<Clock> {
        const CLOCK_READINGS: usize = 16;
        let mut best: Option<(Duration, Clock)> = None;
        for _ in 0..CLOCK_READINGS {
            let (before, mut library) = (Instant::now(), 0);
            // SAFETY: writes one number.
            self.check(unsafe { self.table.timestamp(&raw mut library) })?;
            let took = before.elapsed();
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, Clock { library, host: before + took / 2 }));
            }
        }
        best.map(|(_, clock)| clock).ok_or_else(|| {
            Error::new(Code::NotSupported, "cuptiGetTimestamp", "there was no look at the clock")
        })
    }
}

impl ActivityTracer for Cupti {
    fn start(&self) -> Result<()> {
        let mut held = self.subscriber();
        if held.is_some() {
            return Err(Error::new(Code::InvalidValue, "cuptiSubscribe", "activities are traced already"));
        }
        let mut subscriber = 0;
        // SAFETY: writes a handle; the function does nothing.
        self.check(unsafe { self.table.subscribe(&raw mut subscriber, ignore, std::ptr::null_mut()) })?;
        *records() = Some(Records::new());
        if let Err(error) = self.enable() {
            let _ = self.disable(subscriber);
            *records() = None;
            return Err(error);
        }
        *held = Some(subscriber);
        Ok(())
    }

    fn enter(&self, call: u64) {
        // SAFETY: takes two numbers. The call fails only for kinds that CUPTI does not have.
        let _ = unsafe { self.table.push_external(OUR_CORRELATION, call) };
    }

    fn leave(&self) {
        let mut last = 0;
        // SAFETY: writes one number; fails if nothing was pushed.
        let _ = unsafe { self.table.pop_external(OUR_CORRELATION, &raw mut last) };
    }

    fn stop(&self) -> Result<Activities> {
        let Some(subscriber) = self.subscriber().take() else {
            return Err(Error::new(Code::InvalidValue, "cuptiUnsubscribe", "activities are not traced"));
        };
        let clock = self.clock();
        let disabled = self.disable(subscriber);
        let taken = records().take();
        let clock = clock.and_then(|clock| disabled.map(|()| clock))?;
        Ok(taken.map(|records| records.resolve(clock)).unwrap_or_default())
    }
}
