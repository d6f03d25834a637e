//! The state of [`CudaDriver`], how it is opened, and how a call enters a device.

use std::fmt;
use std::sync::{Arc, OnceLock};

use thalweg_lock::Mutex;

use super::blaslt::BlasLt;
use super::context::{ContextGuard, Cuda, Device, check_not_forked};
use super::cudnn::Cudnn;
use super::dense::Dense;
use super::fourier::Fourier;
use super::nccl::{Communicator, LazyNccl};
use super::objects::handles::Table;
use super::objects::pinned::Pinned;
use super::objects::ranges::Ranges;
use super::objects::{
    Captures, Condition, Event, Families, Function, Graph, GraphExec, Module, Physical, Pool, Stream,
};
use super::search::SearchEnvironment;
use super::tools::cupti::Cupti;
use crate::{Code, Error, Result};

/// NVIDIA's driver.
///
/// There is one per process ([`CudaDriver::open`]), because contexts, streams and memory belong to the process, too.
pub struct CudaDriver {
    pub(super) cuda: Cuda,
    pub(super) devices: Vec<Device>,
    pub(super) streams: Table<Stream>,
    pub(super) events: Table<Event>,
    pub(super) modules: Table<Module>,
    pub(super) functions: Table<Function>,
    pub(super) graphs: Table<Graph>,
    pub(super) execs: Table<GraphExec>,
    pub(super) physicals: Table<Physical>,
    pub(super) pools: Table<Pool>,
    pub(super) ranges: Ranges,
    pub(super) pinned: Pinned,
    pub(super) captures: Captures,
    /// The streams on which captures began that have not ended. While there is one, no context is waited for unless a
    /// caller requests it.
    pub(super) capturing: Mutex<rustc_hash::FxHashSet<u64>>,
    pub(super) conditions: Table<Condition>,
    pub(super) families: Families,
    pub(super) environment: SearchEnvironment,
    pub(super) blas: OnceLock<Result<BlasLt>>,
    pub(super) cudnn: OnceLock<Result<Cudnn>>,
    pub(super) dense: OnceLock<Result<Dense>>,
    pub(super) fourier: OnceLock<Result<Fourier>>,
    pub(super) cupti: OnceLock<Result<Cupti>>,
    pub(super) communicators: Table<Communicator>,
    pub(super) nccl: LazyNccl,
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("version", &self.cuda.version)
            .field("devices", &self.devices.len())
            .finish_non_exhaustive()
    }
}

impl CudaDriver {
    /// Returns the process's CUDA driver: loaded and initialised at the first call, shared afterwards. Creates no context.
    ///
    /// The environment is read at the first call that succeeds ([`SearchEnvironment::from_process`]).
    ///
    /// # Errors
    /// [`LibraryMissing`](Code::LibraryMissing) if there is no driver, with the places that were searched;
    /// [`NoDevice`](Code::NoDevice) if there is a driver and no device; [`Forked`](Code::Forked) in a child of a process
    /// that had opened it; otherwise the error of the driver's initialisation.
    pub fn open() -> Result<Arc<Self>> {
        static DRIVER: Mutex<Option<Arc<CudaDriver>>> = Mutex::new(None);
        // Before the lock: the parent may have held it when it forked.
        check_not_forked("cuInit")?;
        let mut driver = DRIVER.lock();
        if let Some(driver) = &*driver {
            return Ok(Arc::clone(driver));
        }
        let environment = SearchEnvironment::from_process();
        let cuda = Cuda::load(&environment)?;
        let opened = Arc::new(Self::with(cuda, environment)?);
        *driver = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Creates the driver over an initialised library.
    pub(super) fn with(cuda: Cuda, environment: SearchEnvironment) -> Result<Self> {
        let mut count = 0;
        // SAFETY: writes one number.
        let outcome = unsafe { cuda.table.device_get_count(&raw mut count) };
        cuda.check(outcome, || "the number of devices".to_owned())?;
        if count <= 0 {
            let detail =
                "the driver is there, and shows no device: see whether CUDA_VISIBLE_DEVICES hides them";
            return Err(Error::new(Code::NoDevice, "cuDeviceGetCount", detail));
        }
        let devices =
            (0..count.unsigned_abs()).map(|index| Device::open(&cuda, index)).collect::<Result<_>>()?;
        Ok(Self {
            cuda,
            devices,
            streams: Table::new("stream"),
            events: Table::new("event"),
            modules: Table::new("module"),
            functions: Table::new("function"),
            graphs: Table::new("graph"),
            execs: Table::new("executable graph"),
            physicals: Table::new("physical memory"),
            pools: Table::new("pool"),
            ranges: Ranges::default(),
            pinned: Pinned::default(),
            captures: Mutex::default(),
            capturing: Mutex::default(),
            conditions: Table::new("condition"),
            families: Mutex::default(),
            environment,
            blas: OnceLock::new(),
            cudnn: OnceLock::new(),
            dense: OnceLock::new(),
            fourier: OnceLock::new(),
            cupti: OnceLock::new(),
            communicators: Table::new("communicator"),
            nccl: OnceLock::new(),
        })
    }

    /// Saves the calling thread's current context, and restores it when the guard is dropped.
    ///
    /// A call of this driver makes the context of its device current, and does not restore the previous one. A library in a
    /// program that has a current device of its own (CUDA's runtime, and so PyTorch), or a green context, makes its calls
    /// under such a guard. The guard calls the driver only if the context changes.
    pub fn keep_context(&self) -> ContextGuard<'_> {
        ContextGuard::new(&self.cuda)
    }

    /// Returns the calling thread's current context, if it belongs to this device and is not the primary one: a green
    /// context. Its legacy default stream differs from the device's
    /// ([`ExternalStream::default_of`](crate::ExternalStream::default_of)). Also `None` for a device that has not been used
    /// yet.
    #[inline]
    pub fn green_context(&self, device: u32) -> Option<u64> {
        let device = self.devices.get(device as usize)?;
        device.green_context(&self.cuda).map(|context| context.0 as u64)
    }

    pub(super) fn device(&self, index: u32) -> Result<&Device> {
        self.devices.get(index as usize).ok_or_else(|| {
            let detail = format!("there is no device {index}: the driver shows {}", self.devices.len());
            Error::new(Code::InvalidDevice, "cuDeviceGet", detail)
        })
    }

    /// Makes the device's context current for the calling thread, creating it if needed.
    #[inline]
    pub(super) fn enter(&self, index: u32) -> Result<&Device> {
        let device = self.device(index)?;
        device.make_current(&self.cuda)?;
        Ok(device)
    }

    /// Makes the stream's context current for the calling thread, creating it if needed. Returns the stream's device.
    #[inline]
    pub(super) fn enter_stream(&self, stream: &Stream) -> Result<&Device> {
        let Some(context) = stream.context else { return self.enter(stream.device) };
        let device = self.device(stream.device)?;
        // SAFETY: the code that created the `ExternalStream` promised that it lives as long as its handles.
        unsafe { device.make_context_current(&self.cuda, context)? };
        Ok(device)
    }

    /// Enters a device to submit work, or to wait for some: reports a host function that panicked.
    #[inline]
    pub(super) fn submit(&self, index: u32) -> Result<&Device> {
        let device = self.enter(index)?;
        device.fault.check()?;
        Ok(device)
    }

    /// Enters a stream's device, as [`enter_stream`](Self::enter_stream) does, for a submission.
    #[inline]
    pub(super) fn submit_on(&self, stream: &Stream) -> Result<&Device> {
        let device = self.enter_stream(stream)?;
        device.fault.check()?;
        Ok(device)
    }
}
