//! The allocator of a process: its devices, each opened when it is first named, and the blocks that PyTorch holds.
//!
//! Opening a device creates its CUDA context, which takes GPU memory and a quarter of a second, and after which the process must
//! not fork. So nothing is opened before it is used. Earlier configuration (settings, observers, recording) is kept, and applied
//! to each device that opens.

use std::sync::{Arc, OnceLock};

use thalweg_driver::Process;
use thalweg_driver::UseKind;
use thalweg_driver::cuda::{ContextGuard, CudaDriver};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::Settings;
use thalweg_memory::history::HistorySettings;
use thalweg_runtime::{Device, Stream, invalid, refuse};

use crate::live::LiveBlocks;
use crate::observers::Observer;
use crate::open_device::OpenDevice;
use crate::pools::PoolName;
use crate::sanitizer::{AtSite, Sanitizer};
use crate::stacks::Stacks;
use crate::status::{Error, Result};

/// The maximum number of devices: PyTorch stores a device's index in a signed byte.
const MOST_DEVICES: usize = 128;

/// From this size on PyTorch has a different message for oversize requests, which programs search for.
const ONE_EXBIBYTE: u64 = 1 << 60;

/// The source of devices.
#[derive(Clone, Debug)]
pub enum Source {
    /// The GPUs of the machine.
    Cuda,
    /// The process's simulated GPUs.
    Sim,
    /// The given devices.
    Devices(Vec<Device>),
    /// Devices whose work a sanitizer checks.
    Sanitized(Arc<Sanitizer>),
}

/// The settings and observers of all devices, including those that are opened later.
#[derive(Default)]
struct DeviceDefaults {
    /// Texts of settings, in the order in which they were set.
    settings: Vec<String>,
    observers: Vec<Observer>,
    history: Option<HistorySettings>,
    /// Whether devices can access each other's memory.
    are_peers: bool,
}

impl DeviceDefaults {
    /// Returns `first` with all texts applied.
    fn settings(&self, first: &Settings) -> Result<Settings> {
        self.settings.iter().try_fold(first.clone(), |settings, text| Ok(settings.apply(text)?))
    }
}

/// The allocator that the C interface exposes. See the [crate's overview](crate).
pub struct Allocator {
    source: Source,
    devices: Box<[OnceLock<Arc<OpenDevice>>]>,
    pub(crate) live: LiveBlocks,
    defaults: Mutex<DeviceDefaults>,
    pub(crate) stacks: Arc<Stacks>,
    /// The driver of real GPUs: it saves and restores the caller's context.
    cuda: OnceLock<Option<Arc<CudaDriver>>>,
    /// The process that opened the first device. Until then a forked child may still be that process.
    process: OnceLock<Process>,
}

impl Allocator {
    /// Creates an allocator that has opened nothing yet. `settings` is a text in the grammar of `PYTORCH_ALLOC_CONF`, which
    /// overrides the environment's settings.
    ///
    /// # Errors
    /// If one of the two texts cannot be parsed, with the position.
    pub fn new(source: Source, settings: &str) -> Result<Self> {
        check_settings(settings)?;
        let allocator = Self {
            source,
            devices: (0..MOST_DEVICES).map(|_| OnceLock::new()).collect(),
            live: LiveBlocks::default(),
            defaults: Mutex::default(),
            stacks: Arc::default(),
            cuda: OnceLock::new(),
            process: OnceLock::new(),
        };
        allocator.defaults().settings.push(settings.to_owned());
        allocator.settings(0)?;
        Ok(allocator)
    }

    fn defaults(&self) -> MutexGuard<'_, DeviceDefaults> {
        self.defaults.lock()
    }

    /// Returns whether this is a forked child of the process that opened the first device.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.get().is_some_and(|process| process.is_left())
    }

    /// Calls a function with a device, which is opened if it is not open yet. The caller's CUDA context is restored.
    #[inline]
    pub(crate) fn with_device<T>(
        &self,
        index: i32,
        body: impl FnOnce(&Arc<OpenDevice>) -> Result<T>,
    ) -> Result<T> {
        let device = self.device(index)?;
        let _context = self.keep_context();
        body(device)
    }

    /// Returns a device, and opens it first if necessary.
    #[inline]
    pub(crate) fn device(&self, index: i32) -> Result<&Arc<OpenDevice>> {
        let slot = usize::try_from(index).ok().and_then(|index| self.devices.get(index));
        let slot = slot.ok_or_else(|| invalid!("there is no device {index}"))?;
        match slot.get() {
            Some(device) => Ok(device),
            None => self.open(slot, index.unsigned_abs()),
        }
    }

    /// Returns the runtime's stream for a CUDA stream, for a program that submits work through both. If it were wrapped twice, it
    /// would count as two streams.
    ///
    /// # Errors
    /// If there is no such device, or the driver does not know the stream.
    pub fn stream(&self, device: i32, cuda_stream: u64) -> Result<Stream> {
        let device = self.device(device)?;
        device.streams.find_or_wrap(&device.device, device.named(cuda_stream))
    }

    /// Marks a CUDA stream as transient: its owner may destroy it without notice.
    ///
    /// # Errors
    /// If there is no such device, or the driver does not know the stream.
    pub(crate) fn set_stream_transient(&self, device: i32, cuda_stream: u64) -> Result<()> {
        self.with_device(device, |device| device.set_stream_transient(cuda_stream))
    }

    /// Returns a device if it has been opened.
    pub(crate) fn opened(&self, index: i32) -> Option<&Arc<OpenDevice>> {
        usize::try_from(index).ok().and_then(|index| self.devices.get(index)?.get())
    }

    #[cold]
    fn open<'a>(&'a self, slot: &'a OnceLock<Arc<OpenDevice>>, index: u32) -> Result<&'a Arc<OpenDevice>> {
        if self.is_forked() {
            return Err(Error::forked("opening a device"));
        }
        self.process.get_or_init(Process::current);
        let _context = self.keep_context();
        // Held until the device is open, so that no setting in between is lost.
        let defaults = self.defaults();
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let device = match &self.source {
            Source::Cuda => Device::cuda(index)?,
            Source::Sim => Device::sim(index)?,
            Source::Sanitized(sanitizer) => sanitizer.device(index)?,
            Source::Devices(devices) => {
                devices.get(index as usize).cloned().ok_or_else(|| invalid!("there is no device {index}"))?
            }
        };
        let allocator = device.allocator();
        let settings = defaults.settings(&allocator.settings())?;
        allocator.set_settings(settings.with_label(format!("GPU {index}")))?;
        // Another allocator of this process may have set a recorder before; it then keeps the stacks.
        let _ = allocator.set_stack_source(self.stacks.clone());
        self.stacks.add_device(allocator);
        if let Some(history) = &defaults.history {
            allocator.record_memory_history(history.clone());
        }
        let device = Arc::new(OpenDevice::new(index, device, self.cuda().cloned()));
        defaults.observers.iter().for_each(|observer| observer.attach(&device));
        if defaults.are_peers {
            self.open_devices().for_each(|other| make_peers(&device, other));
        }
        Ok(slot.get_or_init(|| device))
    }

    /// Enables peer access between all devices that support it, including those that are opened later.
    pub(crate) fn open_to_peers(&self) -> Result<()> {
        let _context = self.keep_context();
        let mut defaults = self.defaults();
        defaults.are_peers = true;
        let open: Vec<_> = self.open_devices().collect();
        for (place, device) in open.iter().enumerate() {
            open[..place].iter().for_each(|other| make_peers(device, other));
        }
        Ok(())
    }

    /// Returns the devices that are open.
    pub(crate) fn open_devices(&self) -> impl Iterator<Item = &Arc<OpenDevice>> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    /// Saves the caller's current CUDA context, which may be another device's or a green one, and restores it later. Before the
    /// first device is open there is no context to save, and querying it would open the driver: a process with an open driver
    /// cannot fork.
    #[inline]
    pub(crate) fn keep_context(&self) -> Option<ContextGuard<'_>> {
        self.process.get()?;
        self.cuda().map(|driver| driver.keep_context())
    }

    /// Returns the driver of real GPUs, and opens it first if necessary.
    #[inline]
    fn cuda(&self) -> Option<&Arc<CudaDriver>> {
        let is_real = match &self.source {
            Source::Cuda => true,
            Source::Sanitized(sanitizer) => sanitizer.is_real(),
            Source::Sim | Source::Devices(_) => false,
        };
        let open = || is_real.then(|| CudaDriver::open().ok())?;
        self.cuda.get_or_init(open).as_ref()
    }

    /// Returns the sanitizer that checks the devices' work.
    ///
    /// # Errors
    /// If there is no sanitizer.
    pub(crate) fn sanitizer(&self) -> Result<&Arc<Sanitizer>> {
        match &self.source {
            Source::Sanitized(sanitizer) => Ok(sanitizer),
            _ => Err(invalid!("this allocator was not opened with a sanitizer (kind `cuda+sanitizer`)")),
        }
    }

    /// Sets the calling thread's line of Python in the sanitizer, if there is one, while the guard lives.
    fn at_python_line(&self, call: &'static str) -> Option<AtSite> {
        let Source::Sanitized(sanitizer) = &self.source else { return None };
        sanitizer.at_line_of(call, &self.stacks)
    }

    /// Allocates at least `bytes` bytes of a device's memory for work on one of its streams, given as `cudaStream_t`; returns 0 for 0
    /// bytes.
    ///
    /// # Errors
    /// [`Status::OutOfMemory`](crate::Status::OutOfMemory), and the driver's errors.
    #[inline]
    pub(crate) fn allocate(&self, device: i32, bytes: u64, stream: u64) -> Result<u64> {
        let _at = self.at_python_line("allocate");
        if bytes >= ONE_EXBIBYTE {
            let message = "CUDA out of memory. Tried to allocate more than 1EB memory.";
            return Err(Error::new(crate::Status::OutOfMemory, message));
        }
        self.with_device(device, |device| device.allocate(&self.live, bytes, stream))
    }

    /// Allocates at an exact address.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate); and if the address is not free.
    pub(crate) fn allocate_at(&self, device: i32, address: u64, bytes: u64, stream: u64) -> Result<()> {
        self.with_device(device, |device| device.allocate_at(&self.live, address, bytes, stream))
    }

    /// Frees the block that begins at an address; 0 is ignored.
    ///
    /// # Errors
    /// If there is no such block.
    #[inline]
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let _at = self.at_python_line("free");
        let Some(live) = self.live.remove(address) else { return Err(unknown(address)) };
        let _context = self.keep_context();
        let device = self.devices[live.device as usize].get().expect("a live block's device is open");
        device.report_freed(address);
        let noted = device.note_green_use(&live.block);
        // The free may call the driver, so the context must be saved during it.
        drop(live);
        noted
    }

    /// Records a use of the block that contains an address, on a CUDA stream of `device`, or of the block's own device if that is
    /// negative. Memory that is not this allocator's is ignored, as in PyTorch.
    ///
    /// # Errors
    /// If the driver does not know the stream.
    pub(crate) fn record(&self, address: u64, device: i32, stream: u64, kind: UseKind) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let _at = self.at_python_line("record_stream");
        let _context = self.keep_context();
        let record = |live: &crate::live::Live| {
            let device = if device < 0 { live.device.cast_signed() } else { device };
            self.device(device)?.record(&live.block, stream, kind)
        };
        self.live.with(address, record).unwrap_or(Ok(()))
    }

    /// Changes the settings of all devices by a text in the grammar of `PYTORCH_ALLOC_CONF`. Settings that it does not name are
    /// unchanged.
    ///
    /// # Errors
    /// If the text is invalid, or names another backend. Nothing has changed then.
    pub(crate) fn set_settings(&self, text: &str) -> Result<()> {
        check_settings(text)?;
        let _context = self.keep_context();
        let mut defaults = self.defaults();
        let changed: Vec<_> = self
            .open_devices()
            .map(|device| Ok((device.allocator(), device.allocator().settings().apply(text)?)))
            .collect::<Result<_>>()?;
        for (allocator, settings) in changed {
            allocator.set_settings(settings)?;
        }
        defaults.settings.push(text.to_owned());
        Ok(())
    }

    /// Returns the settings of a device, or those that it will have when it opens.
    ///
    /// # Errors
    /// If the environment's settings are invalid.
    pub(crate) fn settings(&self, device: i32) -> Result<Settings> {
        if let Some(device) = self.opened(device) {
            return Ok(device.allocator().settings());
        }
        self.defaults().settings(&Settings::from_environment(|name| std::env::var(name).ok())?)
    }

    /// Sets the events that all devices record from now on.
    pub(crate) fn record_history(&self, settings: HistorySettings) {
        let mut defaults = self.defaults();
        for device in self.open_devices() {
            device.allocator().record_memory_history(settings.clone());
        }
        defaults.history = Some(HistorySettings { clear_history: false, ..settings });
        drop(defaults);
        // Cleared histories no longer refer to stacks.
        self.stacks.forget_unused(true);
    }

    /// Adds an observer of all devices, which cannot be removed.
    pub(crate) fn observe(&self, observer: Observer) {
        let mut defaults = self.defaults();
        self.open_devices().for_each(|device| observer.attach(device));
        defaults.observers.push(observer);
    }

    /// Releases all unused cached memory to the driver, on all open devices. *Blocks*.
    ///
    /// # Errors
    /// The first that occurs; the other devices are emptied all the same.
    pub(crate) fn empty_cache(&self) -> Result<()> {
        let _context = self.keep_context();
        let mut outcome = Ok(());
        for device in self.open_devices() {
            // PyTorch releases memory with cudaFree, which also waits for streams that were never named. A capture that forbids
            // it is reported by the next call.
            if !device.is_capturing() {
                let _ = device.device.synchronize();
            }
            outcome = outcome.and(device.allocator().empty_cache().map_err(Error::from));
        }
        outcome
    }
}

impl Allocator {
    /// Empties the cache of the pools with one name that are no longer held. (A pool that is held may contain a graph.)
    pub(crate) fn empty_pool_cache(&self, pool: PoolName) -> Result<()> {
        let _context = self.keep_context();
        let mut outcome = Ok(());
        for device in self.open_devices() {
            let allocator = device.allocator();
            let released =
                device.pools.ids_named(pool).into_iter().filter(|id| allocator.pool_use_count(*id) == 0);
            for id in released {
                outcome = outcome.and(allocator.empty_pool_cache(id).map_err(Error::from));
            }
        }
        outcome
    }

    /// Returns the block that contains an address, in the form of the C interface.
    ///
    /// # Errors
    /// If there is no such block.
    pub(crate) fn find(&self, address: u64) -> Result<LiveBlockC> {
        let found = self.live.with(address, |live| LiveBlockC {
            address: live.block.address(),
            size_bytes: live.block.size_bytes(),
            requested_bytes: live.block.requested_bytes(),
            device: live.device.cast_signed(),
        });
        found.ok_or_else(|| unknown(address))
    }
}

/// `thalweg_live_block`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct LiveBlockC {
    /// The address at which the block begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The requested size, in bytes.
    pub requested_bytes: u64,
    /// The device's number.
    pub device: i32,
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // A forked child must not use its parent's objects, and may wait forever for its parent's locks.
        if self.is_forked() {
            std::mem::forget(std::mem::take(&mut self.live));
            std::mem::forget(std::mem::take(&mut self.devices));
        } else {
            self.live.clear();
        }
    }
}

/// Enables peer access between two devices, if they support it. Other devices copy through the host.
fn make_peers(one: &OpenDevice, other: &OpenDevice) {
    let _ = one.device.enable_peer_access(&other.device);
    let _ = other.device.enable_peer_access(&one.device);
}

/// Rejects a text that is invalid, or that changes settings that are fixed when a device opens.
fn check_settings(text: &str) -> Result<()> {
    if Settings::parse(text)?.is_set("backend") {
        refuse!("`backend` cannot be chosen here: set it in PYTORCH_ALLOC_CONF before the process starts");
    }
    Ok(())
}

#[cold]
fn unknown(address: u64) -> Error {
    invalid!(
        "no live block of this allocator begins at {address:#x}: it was freed before, or comes from another allocator"
    )
}
