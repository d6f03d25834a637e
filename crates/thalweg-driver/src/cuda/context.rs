//! The driver's library, its devices and their contexts, and the translation of a status to an error.
//!
//! A device's *primary* context is used, which every other library in the process shares, so memory and streams can be
//! exchanged with them. It is retained when it is first needed, until the process ends. Other libraries change the calling
//! thread's current context as they like. Each of our calls checks which one is current (a read of the thread's state) and
//! sets ours if it differs.
//!
//! # Fork
//! A child of a process that had initialised CUDA cannot use it: the driver's threads and its connection to the device stay
//! with the parent. Every call there fails with [`Code::Forked`] (see `fork.rs`).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_lock::Mutex;

use super::objects::Setters;
use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::staging::Staging;
use super::sys::{self, AllocationProperties, CudaTable, RawContext, RawDevice};
use super::table::{CallStatus, EntryPoint, function_at, text_at};
use crate::fork::Process;
use crate::{Code, DeviceProperties, Error, PhysicalFlags, Result, StreamHandle, Version};

/// The process that initialised CUDA.
static INITIALISED: OnceLock<Process> = OnceLock::new();

/// Checks whether CUDA can be used in this process: not in a child of one that had initialised it.
#[inline]
pub(super) fn check_not_forked(call: &'static str) -> Result<()> {
    INITIALISED.get().map_or(Ok(()), |process| process.check(call, "CUDA"))
}

/// libcuda, loaded and initialised.
pub(super) struct Cuda {
    pub(super) table: CudaTable,
    pub(super) version: Version,
}

impl Cuda {
    /// Loads libcuda and initialises it.
    pub(super) fn load(environment: &SearchEnvironment) -> Result<Self> {
        check_not_forked("cuInit")?;
        let library = OpenLibrary::open(Library::Driver, environment, "cuInit")?;
        let number = driver_version(&library)?;
        let find = resolver(&library, number);
        // SAFETY: `find` returns the function of each entry's symbol, or the one that `cuGetProcAddress` returns for its
        // name at the version that introduced the signature, which is the same; an `OpenLibrary` is never unloaded.
        let table = unsafe { CudaTable::resolve(find) };
        Self::start(table, Version::from_cuda(number))
    }

    /// Initialises a loaded driver.
    pub(super) fn start(table: CudaTable, version: Version) -> Result<Self> {
        let cuda = Self { table, version };
        // SAFETY: takes a number, and 0 is the only one allowed.
        let outcome = unsafe { cuda.table.init(0) };
        cuda.check(outcome, || format!("no use of CUDA is possible (driver for CUDA {version})"))?;
        INITIALISED.get_or_init(Process::current);
        Ok(cuda)
    }

    /// Returns `Ok` for success, otherwise an error with the call, `detail` (the request) and the driver's text.
    #[inline]
    pub(super) fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() { Ok(()) } else { Err(self.error(outcome, &detail())) }
    }

    #[cold]
    pub(super) fn error(&self, outcome: CallStatus, detail: &str) -> Error {
        if let Some(version) = outcome.missing {
            let (installed, needed) = (self.version, Version::from_cuda(version.unsigned_abs()));
            let detail = format!(
                "{detail}: the installed driver, for CUDA {installed}, has no such call; it needs one for CUDA {needed} or \
                 later"
            );
            return Error::new(Code::LibraryMissing, outcome.call, detail);
        }
        let code = Code::from_number(outcome.status);
        let text = self.status_text(outcome.status, matches!(code, Code::Other(_)));
        let error = Error::new(code, outcome.call, format!("{detail}: {text}"));
        // Statuses without a name of ours for which the driver documents that the context is lost.
        let lost = matches!(outcome.status, 220 | 226 | 714 | 715 | 717 | 718 | 721);
        if lost { error.asynchronous() } else { error }
    }

    fn status_text(&self, status: u32, with_name: bool) -> String {
        let mut text: *const c_char = std::ptr::null();
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: both calls take any number and store a pointer to a string of the library, or null.
        unsafe {
            let _ = self.table.get_error_string(status, &raw mut text);
            let _ = self.table.get_error_name(status, &raw mut name);
            match (text_at(text), text_at(name)) {
                (text, name) if with_name && !name.is_empty() => format!("{name}, {text}"),
                (text, _) if text.is_empty() => "the driver has no text for it".to_owned(),
                (text, _) => text,
            }
        }
    }

    /// Returns the calling thread's current context; null if there is none, or the call fails.
    #[inline]
    fn current_context(&self) -> RawContext {
        let mut current = RawContext::default();
        // SAFETY: writes one handle.
        let outcome = unsafe { self.table.context_get_current(&raw mut current) };
        if outcome.is_success() { current } else { RawContext::default() }
    }

    /// Exempts the calling thread from other threads' captures while the guard lives: for calls of our own bookkeeping that
    /// do not touch anything that a capture could see.
    pub(super) fn relaxed(&self) -> Relaxed<'_> {
        let mut mode = sys::MODE_RELAXED;
        // SAFETY: swaps a number of this thread with the one in `mode`.
        let outcome = unsafe { self.table.exchange_capture_mode(&raw mut mode) };
        Relaxed { cuda: self, mode: outcome.is_success().then_some(mode) }
    }
}

/// The guard of [`Cuda::relaxed`].
pub(super) struct Relaxed<'a> {
    cuda: &'a Cuda,
    mode: Option<u32>,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.mode {
            // SAFETY: restores the thread's previous number.
            let _ = unsafe { self.cuda.table.exchange_capture_mode(&raw mut mode) };
        }
    }
}

fn driver_version(library: &OpenLibrary) -> Result<u32> {
    type Get = unsafe extern "C" fn(*mut c_int) -> u32;
    let mut number: c_int = 0;
    // SAFETY: the signature of `cuda.h`; the call needs no initialisation and writes one number.
    let status =
        unsafe { function_at::<Get>(library.symbol(c"cuDriverGetVersion")).map(|get| get(&raw mut number)) };
    match (status, u32::try_from(number)) {
        (Some(0), Ok(number)) => Ok(number),
        (status, _) => {
            let code = Code::from_number(status.unwrap_or(Code::LibraryMissing.number()));
            Err(Error::new(code, "cuDriverGetVersion", format!("{}", library.path.display())))
        }
    }
}

/// Returns a resolver of entry points: by name and version through `cuGetProcAddress`, otherwise by symbol.
fn resolver(library: &OpenLibrary, installed: u32) -> impl FnMut(&EntryPoint) -> *const c_void {
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> u32;
    // SAFETY: the signature that `cuda.h` declares for this symbol since CUDA 12.0.
    let get = unsafe { function_at::<Get>(library.symbol(c"cuGetProcAddress_v2")) };
    move |entry| {
        // For a version that it does not know yet, the driver would return an older signature.
        if entry.version.unsigned_abs() > installed {
            return std::ptr::null();
        }
        let mut found: *mut c_void = std::ptr::null_mut();
        if let (Some(get), Ok(name)) = (get, std::ffi::CString::new(entry.name)) {
            let mut status: c_int = 0;
            // SAFETY: the name ends with 0, and both results are written to locals.
            let answer = unsafe {
                get(
                    name.as_ptr(),
                    &raw mut found,
                    entry.version,
                    sys::GET_PROC_ADDRESS_LEGACY_STREAM,
                    &raw mut status,
                )
            };
            if answer == 0 && !found.is_null() {
                return found;
            }
        }
        library.symbol(entry.symbol)
    }
}

/// The panic of a host function, until a call on its device reports it.
#[derive(Default)]
pub(super) struct Fault {
    raised: AtomicBool,
    text: Mutex<Option<String>>,
}

impl Fault {
    pub(super) fn raise(&self, text: String) {
        self.text.lock().get_or_insert(text);
        self.raised.store(true, Ordering::Release);
    }

    /// Reports the panic, once.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        if self.raised.load(Ordering::Acquire) { self.report() } else { Ok(()) }
    }

    #[cold]
    fn report(&self) -> Result<()> {
        let mut text = self.text.lock();
        self.raised.store(false, Ordering::Release);
        match text.take() {
            Some(text) => Err(Error::new(Code::Unknown, "cuLaunchHostFunc", text).asynchronous()),
            None => Ok(()),
        }
    }
}

/// The context of a device, with its queried properties.
pub(super) struct Context {
    pub(super) raw: RawContext,
    /// The lowest and the greatest priority of a stream.
    pub(super) priorities: (i32, i32),
}

/// A device.
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) raw: RawDevice,
    pub(super) max_threads_per_block: u32,
    /// Whether kernels may begin before the previous one is complete: from compute capability 9.0 on.
    pub(super) overlaps_launches: bool,
    /// The granularity of virtual memory; 0 if it is not supported.
    pub(super) granularity: OnceLock<u64>,
    pub(super) properties: OnceLock<DeviceProperties>,
    pub(super) default_stream: OnceLock<StreamHandle>,
    pub(super) fault: std::sync::Arc<Fault>,
    pub(super) staging: Staging,
    pub(super) setters: Setters,
    context: OnceLock<Context>,
    creation: Mutex<()>,
}

impl Device {
    pub(super) fn open(cuda: &Cuda, index: u32) -> Result<Self> {
        let mut raw: RawDevice = 0;
        // SAFETY: writes one number.
        let outcome = unsafe { cuda.table.device_get(&raw mut raw, index as c_int) };
        cuda.check(outcome, || format!("device {index}"))?;
        let mut device = Self {
            index,
            raw,
            max_threads_per_block: 0,
            overlaps_launches: false,
            granularity: OnceLock::new(),
            properties: OnceLock::new(),
            default_stream: OnceLock::new(),
            fault: std::sync::Arc::default(),
            staging: Staging::default(),
            setters: Setters::new(),
            context: OnceLock::new(),
            creation: Mutex::new(()),
        };
        device.max_threads_per_block = device.attribute(cuda, sys::DeviceAttribute::MaxThreadsPerBlock)?;
        let major = device.attribute(cuda, sys::DeviceAttribute::ComputeCapabilityMajor)?;
        device.overlaps_launches = major >= 9;
        Ok(device)
    }

    /// Returns whether a device attribute of an ability is set; `false` for drivers older than the attribute.
    pub(super) fn is_able(&self, cuda: &Cuda, ability: sys::DeviceAttribute) -> bool {
        self.attribute(cuda, ability).is_ok_and(|value| value != 0)
    }

    pub(super) fn attribute(&self, cuda: &Cuda, attribute: sys::DeviceAttribute) -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: writes one number; `raw` is a device of this driver.
        let outcome = unsafe { cuda.table.device_get_attribute(&raw mut value, attribute, self.raw) };
        cuda.check(outcome, || format!("{attribute:?} of device {}", self.index))?;
        Ok(value.max(0).unsigned_abs())
    }

    /// Returns the context, if there is one already.
    pub(super) fn existing_context(&self) -> Option<&Context> {
        self.context.get()
    }

    /// Returns the context, made at the first call.
    #[inline]
    pub(super) fn context(&self, cuda: &Cuda) -> Result<&Context> {
        match self.context.get() {
            Some(context) => Ok(context),
            None => self.create_context(cuda),
        }
    }

    #[cold]
    fn create_context(&self, cuda: &Cuda) -> Result<&Context> {
        let _creation = self.creation.lock();
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let mut raw = RawContext::default();
        // SAFETY: writes one handle; `raw` is a device of this driver.
        let outcome = unsafe { cuda.table.primary_context_retain(&raw mut raw, self.raw) };
        cuda.check(outcome, || format!("the context of device {}", self.index))?;
        // SAFETY: the context was just retained, and is never released.
        unsafe { self.make_context_current(cuda, raw)? };
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: writes two numbers.
        let outcome = unsafe { cuda.table.context_priority_range(&raw mut least, &raw mut greatest) };
        cuda.check(outcome, || format!("device {}", self.index))?;
        Ok(self.context.get_or_init(|| Context { raw, priorities: (least, greatest) }))
    }

    /// Returns the page size of virtual memory; 0 if the device does not support it. Needs no context.
    pub(super) fn granularity(&self, cuda: &Cuda) -> Result<u64> {
        if let Some(granularity) = self.granularity.get() {
            return Ok(*granularity);
        }
        let supported = self.attribute(cuda, sys::DeviceAttribute::VirtualMemorySupported)? != 0;
        let mut bytes = 0_usize;
        if supported {
            let properties = AllocationProperties::of_device(self.raw, PhysicalFlags::default());
            // SAFETY: reads an entire properties struct and writes one number.
            let outcome = unsafe {
                cuda.table.allocation_granularity(
                    &raw mut bytes,
                    &raw const properties,
                    sys::GRANULARITY_MINIMUM,
                )
            };
            cuda.check(outcome, || format!("device {}", self.index))?;
        }
        Ok(*self.granularity.get_or_init(|| bytes as u64))
    }

    /// Makes the device's context the calling thread's current one.
    #[inline]
    pub(super) fn make_current(&self, cuda: &Cuda) -> Result<()> {
        // SAFETY: the context is retained until the process ends.
        unsafe { self.make_context_current(cuda, self.context(cuda)?.raw) }
    }

    /// Makes another context of this device current, as [`make_current`](Self::make_current) does for the primary one.
    ///
    /// # Safety
    /// The context is alive.
    #[inline]
    pub(super) unsafe fn make_context_current(&self, cuda: &Cuda, context: RawContext) -> Result<()> {
        let current = cuda.current_context();
        if current == context {
            return Ok(());
        }
        // SAFETY: the caller promises that it is alive.
        let outcome = unsafe { cuda.table.context_set_current(context) };
        cuda.check(outcome, || format!("device {}", self.index))?;
        if KEPT.get() == GuardState::Asked {
            KEPT.set(GuardState::Changed(current));
        }
        Ok(())
    }

    /// Returns the calling thread's current context, if it belongs to this device and is not the primary one. `None` before
    /// the primary context exists.
    #[inline]
    pub(super) fn green_context(&self, cuda: &Cuda) -> Option<RawContext> {
        let current = cuda.current_context();
        let is_other = current != RawContext::default() && current != self.context.get()?.raw;
        if is_other { self.own(cuda, current) } else { None }
    }

    /// Returns `current`, the thread's current context, if it belongs to this device.
    #[cold]
    fn own(&self, cuda: &Cuda, current: RawContext) -> Option<RawContext> {
        let mut device: RawDevice = -1;
        // SAFETY: writes one number.
        let outcome = unsafe { cuda.table.context_get_device(&raw mut device) };
        (outcome.is_success() && device == self.raw).then_some(current)
    }

    /// Converts the text in a buffer that the driver wrote, up to the terminating 0.
    pub(super) fn text(buffer: &[u8]) -> String {
        CStr::from_bytes_until_nul(buffer).map_or_else(
            |_| String::from_utf8_lossy(buffer).into_owned(),
            |text| text.to_string_lossy().into_owned(),
        )
    }
}

/// The state of the innermost guard of a thread's current context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GuardState {
    /// There is no guard.
    No,
    /// There is a guard, and the context has not changed since.
    Asked,
    /// There is a guard, and this was the context before it.
    Changed(RawContext),
}

thread_local! {
    static KEPT: Cell<GuardState> = const { Cell::new(GuardState::No) };
}

/// A guard that restores the thread's previous context. See [`CudaDriver::keep_context`](super::CudaDriver::keep_context).
pub struct ContextGuard<'a> {
    cuda: &'a Cuda,
    /// The state of the enclosing guard, which this one restores.
    around: GuardState,
    /// Keeps the guard on its thread, because the current context is per thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl std::fmt::Debug for ContextGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextGuard").finish_non_exhaustive()
    }
}

impl<'a> ContextGuard<'a> {
    #[inline]
    pub(super) fn new(cuda: &'a Cuda) -> Self {
        Self { cuda, around: KEPT.replace(GuardState::Asked), _thread: std::marker::PhantomData }
    }
}

impl Drop for ContextGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A thread that had no context keeps its present one.
        if let GuardState::Changed(former) = KEPT.replace(self.around)
            && former != RawContext::default()
        {
            // SAFETY: the context was current before this guard. If it has been destroyed since, the driver returns an
            // error and changes nothing.
            let _ = unsafe { self.cuda.table.context_set_current(former) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn start(_flags: u32) -> u32 {
        0
    }

    unsafe extern "C" fn no_device(_flags: u32) -> u32 {
        Code::NoDevice.number()
    }

    /// Returns a driver that supports initialisation only.
    fn bare(init: unsafe extern "C" fn(u32) -> u32) -> CudaTable {
        // SAFETY: the one function has the signature of `cuInit`, and lives as long as the process.
        unsafe {
            CudaTable::resolve(
                |entry| if entry.name == "cuInit" { init as *const c_void } else { std::ptr::null() },
            )
        }
    }

    thread_local! {
        /// The current context: 100 and up are the primary contexts of the devices, 200 and up other contexts of theirs.
        static CURRENT: Cell<usize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn get_current(context: *mut RawContext) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { *context = RawContext(CURRENT.get()) };
        0
    }

    unsafe extern "C" fn set_current(context: RawContext) -> u32 {
        CURRENT.set(context.0);
        0
    }

    unsafe extern "C" fn retain(context: *mut RawContext, device: RawDevice) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { *context = RawContext(100 + device as usize) };
        0
    }

    unsafe extern "C" fn device_of_current(device: *mut RawDevice) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { *device = (CURRENT.get() % 100) as RawDevice };
        0
    }

    unsafe extern "C" fn device_get(device: *mut RawDevice, ordinal: c_int) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { *device = ordinal };
        0
    }

    unsafe extern "C" fn attribute(value: *mut c_int, _attribute: u32, _device: RawDevice) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { *value = 1024 };
        0
    }

    unsafe extern "C" fn priorities(least: *mut c_int, greatest: *mut c_int) -> u32 {
        // SAFETY: the driver's signature.
        unsafe { (*least, *greatest) = (0, -5) };
        0
    }

    /// Returns a driver with contexts, and two devices that were not used yet.
    fn with_contexts() -> (Cuda, [Device; 2]) {
        // SAFETY: the functions have the signatures of the driver's, and live as long as the process.
        let table = unsafe {
            CudaTable::resolve(|entry| match entry.name {
                "cuInit" => start as *const c_void,
                "cuCtxGetCurrent" => get_current as *const c_void,
                "cuCtxSetCurrent" => set_current as *const c_void,
                "cuDevicePrimaryCtxRetain" => retain as *const c_void,
                "cuCtxGetDevice" => device_of_current as *const c_void,
                "cuDeviceGet" => device_get as *const c_void,
                "cuDeviceGetAttribute" => attribute as *const c_void,
                "cuCtxGetStreamPriorityRange" => priorities as *const c_void,
                _ => std::ptr::null(),
            })
        };
        let cuda = Cuda::start(table, Version::from_cuda(13_000)).expect("it starts");
        let devices = [0, 1].map(|index| Device::open(&cuda, index).expect("it opens"));
        (cuda, devices)
    }

    #[test]
    fn a_guard_puts_back_the_context_that_was_there() {
        let (cuda, [first, second]) = with_contexts();
        CURRENT.set(200);
        let outer = ContextGuard::new(&cuda);
        // The first use of a device makes its context current, too.
        first.make_current(&cuda).expect("it can be");
        assert_eq!(CURRENT.get(), 100);
        let inner = ContextGuard::new(&cuda);
        second.make_current(&cuda).expect("it can be");
        assert_eq!(CURRENT.get(), 101);
        first.make_current(&cuda).expect("it can be");
        second.make_current(&cuda).expect("it can be");
        drop(inner);
        assert_eq!(CURRENT.get(), 100, "as before the inner one");
        drop(outer);
        assert_eq!(CURRENT.get(), 200);
        let _unused = ContextGuard::new(&cuda);
        let inner = ContextGuard::new(&cuda);
        second.make_current(&cuda).expect("it can be");
        drop(inner);
        assert_eq!(CURRENT.get(), 200, "whatever the outer one has seen");
    }

    #[test]
    fn a_thread_without_a_context_keeps_what_it_got() {
        let (cuda, [first, _]) = with_contexts();
        CURRENT.set(0);
        let guard = ContextGuard::new(&cuda);
        first.make_current(&cuda).expect("it can be");
        drop(guard);
        assert_eq!(CURRENT.get(), 100);
    }

    #[test]
    fn a_green_context_is_of_its_device_and_not_the_primary_one() {
        let (cuda, [first, second]) = with_contexts();
        CURRENT.set(200);
        assert_eq!(first.green_context(&cuda), None, "the device was not used yet");
        for device in [&first, &second] {
            device.make_current(&cuda).expect("it can be");
        }
        for (current, of_first, of_second) in [
            (0, None, None),
            (100, None, None),
            (101, None, None),
            (200, Some(200), None),
            (201, None, Some(201)),
        ] {
            CURRENT.set(current);
            assert_eq!(first.green_context(&cuda), of_first.map(RawContext), "{current}");
            assert_eq!(second.green_context(&cuda), of_second.map(RawContext), "{current}");
        }
    }

    #[test]
    fn a_driver_without_devices_says_so_when_it_is_opened() {
        let error = Cuda::start(bare(no_device), Version::from_cuda(12_040)).err().expect("no device");
        assert_eq!(error.code(), Code::NoDevice);
        assert!(error.to_string().contains("driver for CUDA 12.4"), "{error}");
    }

    #[test]
    fn a_call_that_an_old_driver_lacks_is_an_error_that_names_the_version() {
        let cuda = Cuda::start(bare(start), Version::from_cuda(11_000)).expect("it starts");
        let mut pool = sys::RawPool::default();
        // SAFETY: there is no such entry point in the table, so nothing is called.
        let outcome = unsafe { cuda.table.pool_create(&raw mut pool, std::ptr::null()) };
        let error = cuda.check(outcome, || "a pool of device 0".to_owned()).expect_err("it is missing");
        assert_eq!((error.code(), error.call()), (Code::LibraryMissing, "cuMemPoolCreate"));
        assert!(error.detail().contains("for CUDA 11.0") && error.detail().contains("CUDA 11.2"), "{error}");
    }

    #[test]
    fn the_child_of_a_fork_is_told_so() {
        Cuda::start(bare(start), Version::from_cuda(13_000)).expect("it starts");
        check_not_forked("cuMemAlloc").expect("the parent goes on");
        let refused = || check_not_forked("cuMemAlloc").is_err_and(|error| error.code() == Code::Forked);
        assert!(thalweg_conformance::holds_in_child(refused), "the child was refused");
        check_not_forked("cuMemAlloc").expect("the parent still goes on");
    }
}
