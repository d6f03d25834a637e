//! Devices: one GPU, real or simulated, with everything that belongs to it.
//!
//! A [`Device`] connects the lower crates: it passes the driver to the caching allocators as their upstream, and keeps the pool
//! of streams and the loaded kernels. Code above never distinguishes drivers. Devices of one driver share its pinned memory.
//!
//! The process has one set of CUDA devices ([`Device::cuda`]) and one of simulated ones ([`Device::sim`]), opened at the first
//! request. Tests and embedding programs create their own with [`Device::all_of`].

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use thalweg_driver::cuda::CudaDriver;
use thalweg_driver::{DeviceProperties, Driver, Instrument, Label, Process};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::{AllocationError, DeviceAllocator, HostAllocator};
use thalweg_sim::{SimConfig, SimDriver};

use crate::deferred::queue_deferred;
use crate::environment::Environment;
use crate::forgotten::ForgottenStreams;
use crate::graph::Captures;
use crate::graph::audit::{Auditor, next_call};
use crate::loaded::{KernelTable, LaunchTable};
use crate::memory::{DriverUpstream, Quarantine};
use crate::meta::MetaDriver;
use crate::out_of_range::OutOfRange;
use crate::spare_events::SpareEvents;
use crate::stream::{Entered, current_device, enter};
use crate::stream_state::{StreamPool, StreamState};
use crate::{Error, Result};
use crate::{invalid, refuse};

/// The number of a device among all devices that the process ever opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DeviceId(u64);

/// One GPU. Clones are the same device; devices are equal if they are the same.
#[derive(Clone)]
pub struct Device(Arc<DeviceState>);

struct DeviceState {
    id: DeviceId,
    driver: Arc<dyn Driver>,
    /// The driver that is called while a region is audited, shared by the devices of the driver.
    auditor: Arc<Auditor>,
    audited: Arc<dyn Driver>,
    index: u32,
    is_simulated: bool,
    is_meta: bool,
    is_instrumented: bool,
    reads_accesses: bool,
    /// The process that opened the device.
    process: Process,
    properties: DeviceProperties,
    environment: Environment,
    upstream: Arc<DriverUpstream>,
    /// Freed memory that is held back. It is declared before the allocator because it is returned to the allocator.
    quarantine: OnceLock<Quarantine>,
    allocator: Arc<DeviceAllocator>,
    host_allocator: Arc<HostAllocator>,
    default_stream: Arc<StreamState>,
    streams: StreamPool,
    spare_events: SpareEvents,
    kernels: KernelTable,
    launches: LaunchTable,
    captures: Captures,
    out_of_range: OutOfRange,
    opened: Opens,
    /// Values of the crates above, one per type.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        self.kernels.unload(&*self.driver);
        self.out_of_range.free(&*self.driver);
        self.spare_events.destroy(&*self.driver);
    }
}

/// Returns a driver that records a profile if the environment requests it, or when the program requests it.
fn profiled(driver: Arc<dyn Driver>, environment: &Environment) -> Result<Arc<dyn Driver>> {
    match &environment.profile {
        Some(profile) => Ok(profile.record(driver)?),
        None => Ok(thalweg_profiler::on_demand(driver)),
    }
}

impl Device {
    /// Returns every device of a driver, each with caches of its own.
    pub fn all_of(driver: Arc<dyn Driver>, environment: &Environment) -> Result<Vec<Self>> {
        let system = System::new(driver, environment);
        (0..system.driver.device_count()).map(|index| system.open(index)).collect()
    }

    /// Returns a GPU of this machine. The first call opens the CUDA driver; if there is none, the error lists the places that
    /// were searched and what to install.
    pub fn cuda(index: u32) -> Result<Self> {
        static DEVICES: Opened = Opened(Mutex::new(None));
        DEVICES.get(index, || {
            let environment = Environment::get();
            Ok(Devices::new(profiled(CudaDriver::open()?, environment)?, environment))
        })
    }

    /// Returns a simulated GPU. `THALWEG_SIM_DEVICES` and `THALWEG_SIM_MEMORY_BYTES` set their number and memory size; with
    /// `THALWEG_SIM_SEED` they are [watched](crate::sim).
    pub fn sim(index: u32) -> Result<Self> {
        static DEVICES: Opened = Opened(Mutex::new(None));
        let environment = Environment::get();
        let device = DEVICES.get(index, || {
            environment.check()?;
            let defaults = SimConfig::default();
            let config = SimConfig {
                devices: environment.sim_devices.unwrap_or(defaults.devices),
                memory_bytes: (environment.sim_memory_bytes.or(SIM_MEMORY.get().copied()))
                    .unwrap_or(defaults.memory_bytes),
                ..defaults
            };
            let driver: Arc<dyn Driver> = match &environment.sim_check {
                #[cfg(feature = "sim-tools")]
                Some(program) => program.driver(config)?,
                #[cfg(not(feature = "sim-tools"))]
                Some(_) => refuse!(
                    "THALWEG_SIM_SEED requests a checked run, which this program was built without: build it with the \
                     feature `sim-tools` of the crate `thalweg`"
                ),
                None => profiled(SimDriver::new(config)?, environment)?,
            };
            Ok(Devices::new(driver, environment))
        })?;
        if environment.sim_check.as_ref().is_some_and(|program| program.quarantine) {
            device.hold_back_freed();
        }
        Ok(device)
    }

    /// Returns the meta device: tensors on it have shapes, strides, dtypes and addresses, but no elements
    /// (`torch.device("meta")`). Every operator checks its arguments and returns a result of the right shape. Allocators, streams
    /// and captures work as on a GPU, so that the memory use of a program can be predicted without a GPU. Operators that read
    /// elements are refused. The device has `THALWEG_META_MEMORY_BYTES` of memory, by default 4 TiB, and uses none of the host's.
    pub fn meta() -> Result<Self> {
        static DEVICES: Opened = Opened(Mutex::new(None));
        let environment = Environment::get();
        DEVICES.get(0, || {
            environment.check()?;
            let driver = MetaDriver::new(environment.meta_memory_bytes.unwrap_or(4 << 40))?;
            Ok(Devices::new(driver, environment))
        })
    }

    /// Returns the device of a name: `cuda`, `cuda:1`, `sim`, `sim:1`, `meta`.
    #[track_caller]
    pub fn from_name(name: &str) -> Result<Self> {
        let location = Location::caller();
        Self::named(name).map_err(|error| error.at(location))
    }

    fn named(name: &str) -> Result<Self> {
        let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
        let index = index.parse().map_err(|_| {
            invalid!(
                "Invalid device string: '{name}': '{index}' is not a device number; write `cuda:0`, `sim:0` or `meta`"
            )
        })?;
        match kind {
            "cuda" => Self::cuda(index),
            "sim" => Self::sim(index),
            "meta" if index == 0 => Self::meta(),
            _ => Err(invalid!(
                "Invalid device string: '{name}': unknown kind '{kind}'; write `cuda:0`, `sim:0` or `meta`"
            )),
        }
    }

    /// Returns the device that `THALWEG_DEVICE` names, else the first GPU if the machine has one, else the simulated GPU.
    pub fn best() -> Result<Self> {
        match &Environment::get().device {
            Some(name) => Self::from_name(name),
            None if crate::is_available() => Self::cuda(0),
            None => Self::sim(0),
        }
    }

    /// Returns the calling thread's current device: the one set by [`Device::make_current`], else the one set by
    /// [`Device::make_default`], else [`Device::best`].
    pub fn current() -> Result<Self> {
        if let Some(device) = current_device().or_else(default_device) {
            return Ok(device);
        }
        static BEST: OnceLock<Device> = OnceLock::new();
        match BEST.get() {
            Some(device) => Ok(device.clone()),
            None => Ok(BEST
                .get_or_init({
                    let device = Self::best()?;
                    || device
                })
                .clone()),
        }
    }

    /// Makes this the device of all threads that have not made one current, until the guard is dropped.
    pub fn make_default(&self) -> DefaultDeviceGuard {
        enter_default(self)
    }

    /// Returns a text that distinguishes this device from another one, even if both have the same name.
    pub fn told_apart(&self, other: &Self) -> String {
        let (own, others) = (self.to_string(), other.to_string());
        if own != others {
            return format!("{own} and {others}");
        }
        let word = |device: &Self| {
            if device.0.is_instrumented { "a checked one" } else { "one that is not checked" }
        };
        format!(
            "two devices that are both called {own}: {} and {}. What a check runs makes its tensors, streams and events in the check, \
             and uses none from outside",
            word(self),
            word(other)
        )
    }

    /// Returns the open devices of this one's driver by number, including this one.
    pub fn opened(&self) -> Vec<Self> {
        let opened = self.0.opened.lock();
        let mut devices: Vec<Self> = opened.iter().filter_map(Weak::upgrade).map(Self).collect();
        drop(opened);
        devices.sort_by_key(Self::index);
        devices
    }

    /// Makes this the thread's current device until the guard is dropped.
    #[must_use = "the device is current only while the guard lives"]
    pub fn make_current(&self) -> DeviceGuard {
        DeviceGuard { _entered: enter(self, None) }
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Returns a number that is unique among all devices that the process ever opens.
    pub fn number(&self) -> u64 {
        self.0.id.0
    }

    /// Returns the driver; while a region is [audited](crate::graph::audit()), the auditor that wraps it. A graph does not see
    /// the work that is submitted through it to a capturing stream, and refuses its replays unless
    /// [`Stream::declare`](crate::Stream::declare) declares the ranges of that work.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        if self.0.auditor.is_on() { &self.0.audited } else { &self.0.driver }
    }

    /// Passes to an audit the label of this thread's next call, if the call has no label of its own. It costs one load while
    /// nothing is audited.
    pub(crate) fn called(&self, label: Label) {
        if self.0.auditor.is_on() {
            next_call::set(label, None);
        }
    }

    pub(crate) fn auditor(&self) -> &Arc<Auditor> {
        &self.0.auditor
    }

    /// Returns an error in a forked child of the process that opened the device. The allocators serve cached memory without
    /// calling the driver, and their locks may be held by threads that do not exist in the child.
    #[inline]
    pub(crate) fn check_process(&self, call: &'static str) -> Result<()> {
        Ok(self.0.process.check(call, "the device")?)
    }

    /// Returns whether this process is a forked child of the one that opened the device.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.0.process.is_left()
    }

    /// Returns the driver's number of the device.
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// Returns whether the device is simulated.
    pub fn is_simulated(&self) -> bool {
        self.0.is_simulated
    }

    /// Returns whether the device's kernels may multiply float16 and bfloat16 by tensor cores: from compute capability 8.0 on,
    /// and on simulated devices.
    pub fn has_tensor_cores(&self) -> bool {
        self.is_simulated() || self.properties().compute_capability.major >= 8
    }

    /// Returns whether the device's tensor cores are fed by groups of four warps (`wgmma`): on compute capability 9.0, and on
    /// simulated devices.
    pub fn has_warp_groups(&self) -> bool {
        let capability = self.properties().compute_capability;
        (capability.major, capability.minor) == (9, 0)
    }

    /// Returns whether blocks of the device's kernels may form clusters that read each other's shared memory, which copy engines
    /// fill: on compute capability 9.0, and on simulated devices. Later GPUs support them too, but no kernel of this library has
    /// run there.
    pub fn has_clusters(&self) -> bool {
        self.has_warp_groups()
    }

    /// Returns whether the device's tensors have no elements: see [`Device::meta`].
    pub fn is_meta(&self) -> bool {
        self.0.is_meta
    }

    /// Returns the instrument that watches the device's memory; `None`, without a call of the driver, if there is none.
    #[inline]
    pub(crate) fn instrument(&self) -> Option<&dyn Instrument> {
        if self.0.is_instrumented { self.0.driver.instrument() } else { None }
    }

    /// Returns whether the ranges that launches list are read by the driver or an instrument.
    pub(crate) fn reads_accesses(&self) -> bool {
        self.0.reads_accesses
    }

    /// Returns the device's properties.
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.properties
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.0.environment
    }

    /// Returns the caching allocator of the device's memory.
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.0.allocator
    }

    /// Returns the cache of pinned host memory, shared by all devices of the driver. Snapshots of
    /// [`allocator`](Self::allocator) contain it.
    pub fn host_allocator(&self) -> &Arc<HostAllocator> {
        &self.0.host_allocator
    }

    pub(crate) fn default_stream_state(&self) -> &Arc<StreamState> {
        &self.0.default_stream
    }

    pub(crate) fn spare_events(&self) -> &SpareEvents {
        &self.0.spare_events
    }

    pub(crate) fn stream_pool(&self) -> &StreamPool {
        &self.0.streams
    }

    pub(crate) fn kernels(&self) -> &KernelTable {
        &self.0.kernels
    }

    pub(crate) fn launches(&self) -> &LaunchTable {
        &self.0.launches
    }

    pub(crate) fn captures(&self) -> &Captures {
        &self.0.captures
    }

    /// Returns the number of graphs that were replayed on the device so far. The writes of a replay are not recorded: facts that
    /// the host has recorded about the device's memory are valid only while this number does not change.
    pub fn replays(&self) -> u64 {
        self.captures().replays()
    }

    /// Blocks until all work of the device is complete.
    ///
    /// # Errors
    /// The error of failed asynchronous work; [`Error::is_out_of_range`] if a kernel found an index out of range.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        queue_deferred(Label::here("synchronize"))?;
        self.called(Label::here("synchronize"));
        let streams = self.stream_states().map(|stream| (stream.next_command(), stream)).collect::<Vec<_>>();
        self.check(self.driver().device_synchronize(self.0.index))?;
        streams.iter().for_each(|(next, stream)| stream.complete_before(*next));
        self.check_indices()
    }

    /// Returns an error if kernels that the host has waited for found indices out of range.
    pub(crate) fn check_indices(&self) -> Result<()> {
        self.0.out_of_range.check(&self.0.driver)
    }

    pub(crate) fn out_of_range(&self) -> &OutOfRange {
        &self.0.out_of_range
    }

    /// Returns every known stream, the default stream first.
    fn stream_states(&self) -> impl Iterator<Item = Arc<StreamState>> {
        std::iter::once(self.0.default_stream.clone()).chain(self.0.streams.all())
    }

    /// Returns the bytes that callers hold (`torch.cuda.memory_allocated`).
    pub fn memory_allocated(&self) -> u64 {
        self.0.allocator.statistics().allocated_bytes.all.current
    }

    /// Returns the maximum of [`memory_allocated`](Self::memory_allocated) since the peaks were reset.
    pub fn max_memory_allocated(&self) -> u64 {
        self.0.allocator.statistics().allocated_bytes.all.peak
    }

    /// Returns the bytes that the caching allocator has taken from the driver (`torch.cuda.memory_reserved`).
    pub fn memory_reserved(&self) -> u64 {
        self.0.allocator.statistics().reserved_bytes.all.current
    }

    /// Returns the maximum of [`memory_reserved`](Self::memory_reserved) since the peaks were reset.
    pub fn max_memory_reserved(&self) -> u64 {
        self.0.allocator.statistics().reserved_bytes.all.peak
    }

    /// Returns the statistics as a table for people (`torch.cuda.memory_summary`).
    pub fn memory_summary(&self, abbreviated: bool) -> String {
        self.0.allocator.statistics().memory_summary(&self.to_string(), abbreviated)
    }

    /// Returns all memory that is cached and unused to the driver. *Blocks* until the device is done with it.
    pub fn empty_cache(&self) -> Result<()> {
        self.check_process("empty_cache")?;
        self.give_back_held();
        self.0.allocator.empty_cache().map_err(|error| from_allocation(self, error))
    }

    /// Holds freed memory back from now on ([`Quarantine`]).
    pub(crate) fn hold_back_freed(&self) {
        self.0.quarantine.get_or_init(|| Quarantine::new(self.0.properties.total_memory_bytes));
    }

    pub(crate) fn quarantine(&self) -> Option<&Quarantine> {
        self.0.quarantine.get()
    }

    /// Releases the freed memory that is held back, and returns whether there was any.
    pub(crate) fn give_back_held(&self) -> bool {
        self.quarantine().is_some_and(Quarantine::give_back)
    }

    /// Returns the value of a type that the device [keeps](Self::keep), if it does.
    pub fn kept<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let found = |value: &Arc<dyn Any + Send + Sync>| value.clone().downcast().ok();
        self.0.kept.lock().iter().find_map(found)
    }

    /// Makes the device keep a value, unless it keeps one of the type already, and returns the one that it keeps. A value that holds the
    /// device lives as long as the process, or as the program of a check.
    pub fn keep<T: Any + Send + Sync>(&self, value: Arc<T>) -> Arc<T> {
        let mut kept = self.0.kept.lock();
        if let Some(earlier) = kept.iter().find_map(|earlier| earlier.clone().downcast().ok()) {
            return earlier;
        }
        kept.push(value.clone());
        value
    }

    /// Drops what the device keeps.
    #[cfg(feature = "sim-tools")]
    pub(crate) fn forget_kept(&self) {
        let _dropped_without_the_lock = std::mem::take(&mut *self.0.kept.lock());
    }

    /// Lets kernels and copies of `accessor`, another device of the same driver, access this device's memory: plain memory, and
    /// the memory that the caching allocator has mapped or will map. Once it has succeeded, further calls do nothing.
    ///
    /// # Errors
    /// If the devices cannot access each other's memory.
    pub fn enable_peer_access(&self, accessor: &Self) -> Result<()> {
        let (driver, upstream) = (&self.0.driver, &self.0.upstream);
        if upstream.is_open_to(accessor.index()) {
            return Ok(());
        }
        match driver.enable_peer_access(accessor.index(), self.index()) {
            Err(error) if error.code() == thalweg_driver::Code::PeerAccessAlreadyEnabled => {}
            outcome => self.check(outcome)?,
        }
        // Later mappings first, then the current ones, so that none made in between is missed.
        upstream.add_peer(accessor.index());
        for segment in self.0.allocator.snapshot().iter().filter(|segment| segment.is_expandable) {
            let start = thalweg_driver::DevicePointer::new(segment.address);
            let access = thalweg_driver::MemoryAccess::ReadWrite;
            self.check(driver.memory_set_access(start, segment.total_bytes, accessor.index(), access))?;
        }
        upstream.set_open_to(accessor.index());
        Ok(())
    }

    /// Converts a driver's result: an asynchronous error names the commands that may have caused it.
    pub(crate) fn check<T>(&self, result: thalweg_driver::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let asynchronous = error.is_asynchronous();
            let error = Error::from(error);
            if !asynchronous {
                return error;
            }
            error.suspects(self.stream_states().flat_map(|stream| stream.outstanding()).collect())
        })
    }
}

/// Converts an allocator's refusal to an error: the driver's own error if that is the cause.
pub(crate) fn from_allocation(device: &Device, error: AllocationError) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(driver_error) = cause.downcast_ref::<thalweg_driver::Error>() {
            let answer: thalweg_driver::Result<()> = Err(driver_error.clone());
            return device.check(answer).expect_err("made from an error");
        }
        source = cause.source();
    }
    // An error of memory that is short names its device.
    let names_device = error.is_out_of_memory();
    let error = Error::from(error);
    if names_device { error } else { error.context(device.to_string()) }
}

/// A driver with the state that its devices share.
struct System {
    driver: Arc<dyn Driver>,
    auditor: Arc<Auditor>,
    environment: Environment,
    forgotten: Arc<ForgottenStreams>,
    host_allocator: Arc<HostAllocator>,
    opened: Opens,
}

/// The devices of a driver that are open.
type Opens = Arc<Mutex<Vec<Weak<DeviceState>>>>;

impl System {
    fn new(driver: Arc<dyn Driver>, environment: &Environment) -> Self {
        let forgotten = ForgottenStreams::new(driver.clone());
        let upstream = DriverUpstream::new(driver.clone(), 0, forgotten.clone());
        let host_allocator = HostAllocator::new(Arc::new(upstream), environment.allocator.clone());
        let auditor = Auditor::new(driver.clone());
        let opened = Opens::default();
        Self { driver, auditor, environment: environment.clone(), forgotten, host_allocator, opened }
    }

    /// Opens one device. On a GPU this creates its context, so the other devices are not opened.
    fn open(&self, index: u32) -> Result<Device> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let driver = &self.driver;
        let label = format!("{}:{index}", driver.name());
        let number = i32::try_from(index).unwrap_or(i32::MAX);
        let upstream = Arc::new(DriverUpstream::new(driver.clone(), index, self.forgotten.clone()));
        let settings = self.environment.allocator.clone().with_label(label).with_device_number(number);
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        let properties = driver.device_properties(index)?;
        let attached = allocator.attach_host_allocator(self.host_allocator.clone());
        debug_assert!(attached.is_ok(), "a new allocator has none attached");
        let state = Arc::new(DeviceState {
            opened: self.opened.clone(),
            kept: Mutex::default(),
            id: DeviceId(NEXT.fetch_add(1, Ordering::Relaxed)),
            out_of_range: OutOfRange::new(properties.image_kind),
            properties,
            environment: self.environment.clone(),
            upstream,
            quarantine: OnceLock::new(),
            allocator,
            host_allocator: self.host_allocator.clone(),
            default_stream: Arc::new(StreamState::default_of(driver, index)?),
            streams: StreamPool::new(self.forgotten.clone()),
            spare_events: SpareEvents::default(),
            kernels: KernelTable::default(),
            launches: LaunchTable::default(),
            captures: Captures::default(),
            driver: driver.clone(),
            auditor: self.auditor.clone(),
            audited: self.auditor.clone(),
            index,
            is_simulated: driver.name() == "sim",
            is_meta: driver.name() == "meta",
            is_instrumented: driver.instrument().is_some(),
            reads_accesses: driver.reads_accesses(),
            process: Process::current(),
        });
        self.opened.lock().push(Arc::downgrade(&state));
        Ok(Device(state))
    }
}

/// The devices of a driver, each opened at the first request. A failure is returned, and the next call tries again. Other threads
/// that request the device meanwhile wait.
pub struct Devices {
    system: System,
    open: Mutex<Vec<Option<Device>>>,
}

impl Devices {
    /// Creates the list of the devices of a driver. None is opened yet.
    pub fn new(driver: Arc<dyn Driver>, environment: &Environment) -> Self {
        let open = Mutex::new(vec![None; driver.device_count() as usize]);
        Self { system: System::new(driver, environment), open }
    }

    /// Returns a device of the driver, by the driver's number.
    ///
    /// # Errors
    /// If there is no such device, or the driver cannot open it.
    pub fn get(&self, index: u32) -> Result<Device> {
        let mut open = self.open.lock();
        let count = open.len();
        let Some(device) = open.get_mut(index as usize) else {
            let kind = self.system.driver.name();
            let names: Vec<_> = (0..count).map(|index| format!("{kind}:{index}")).collect();
            let more = if kind == "sim" { " (THALWEG_SIM_DEVICES=N makes more)" } else { "" };
            refuse!("there is no device {kind}:{index}; there is {}{more}", names.join(", "));
        };
        match device {
            Some(device) => Ok(device.clone()),
            None => Ok(device.insert(self.system.open(index)?).clone()),
        }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").field("driver", &self.system.driver).finish_non_exhaustive()
    }
}

/// The process's devices of one kind. A driver that cannot be opened is tried again at the next call.
struct Opened(Mutex<Option<Arc<Devices>>>);

impl Opened {
    fn get(&self, index: u32, open: impl FnOnce() -> Result<Devices>) -> Result<Device> {
        let devices = {
            let mut slot = self.0.lock();
            match &*slot {
                Some(devices) => devices.clone(),
                None => slot.insert(Arc::new(open()?)).clone(),
            }
        };
        devices.get(index)
    }
}

/// A guard that keeps a device current on this thread. Guards may be dropped in any order: the latest remaining one counts.
pub struct DeviceGuard {
    _entered: Entered,
}

/// The default devices of all threads that have not made one current: the latest counts.
static DEFAULTS: Mutex<Vec<(u64, Device)>> = Mutex::new(Vec::new());

/// The number of default devices, which is read without the lock.
static DEFAULTS_COUNT: AtomicUsize = AtomicUsize::new(0);

fn defaults() -> MutexGuard<'static, Vec<(u64, Device)>> {
    DEFAULTS.lock()
}

/// A guard that keeps a device the default of all threads that have not made one current.
#[must_use = "the device is the default only while the guard lives"]
#[derive(Debug)]
pub struct DefaultDeviceGuard(u64);

/// Makes a device the default of all threads that have not made one current.
fn enter_default(device: &Device) -> DefaultDeviceGuard {
    let mut list = defaults();
    let number = list.last().map_or(0, |(number, _)| number + 1);
    list.push((number, device.clone()));
    DEFAULTS_COUNT.store(list.len(), Ordering::Relaxed);
    DefaultDeviceGuard(number)
}

impl Drop for DefaultDeviceGuard {
    fn drop(&mut self) {
        let mut list = defaults();
        let place = list.iter().position(|(number, _)| *number == self.0);
        let _dropped_without_the_lock = place.map(|place| list.remove(place));
        DEFAULTS_COUNT.store(list.len(), Ordering::Relaxed);
        drop(list);
    }
}

/// Returns the default device of all threads that have not made one current, if there is one.
fn default_device() -> Option<Device> {
    if DEFAULTS_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    defaults().last().map(|(_, device)| device.clone())
}

/// The memory of each simulated GPU where the environment does not set it.
static SIM_MEMORY: OnceLock<u64> = OnceLock::new();

/// Sets the memory of each simulated GPU, unless `THALWEG_SIM_MEMORY_BYTES` does. It has no effect once a simulated GPU is open. Of
/// several calls the first counts.
pub fn set_sim_memory(bytes: u64) {
    let _ = SIM_MEMORY.set(bytes);
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.driver.name(), self.0.index)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self}, {})", self.0.properties.name)
    }
}
