//! Launches on memory that PyTorch owns: calls lowered by [`thalweg_ops::lower`], executed with PyTorch's addresses. A call is
//! lowered, and its kernels are loaded, once per key.
//!
//! This module and its parent use each other: [`Kernels`] caches what is made here, and finds it for a call.

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use thalweg_driver::host::{PhysicalRanges, Resolve};
use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Label};
use thalweg_execute::{Addresses, Kept, Lowered, addresses, alignment_of, execute, to_runtime_error};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_kernels::NativeKernel;
use thalweg_lock::Mutex;
use thalweg_ops::lower::{self, Step, Steps};
use thalweg_runtime::{HostLoop, LaunchKey, Stream};

use super::libtorch::Tensor;
use super::{Kernels, Operator};
use crate::allocator::Allocator;
use crate::status::{Error, Result, Status};

/// The place where kernels run: a GPU or the host.
pub(super) enum Place {
    /// On the devices of an allocator, at PyTorch's key CUDA.
    Gpu(&'static Allocator),
    /// On the host, at PyTorch's key CPU.
    Host,
}

/// The maximum number of lowered calls that are kept.
const CAPACITY: usize = 1 << 14;

/// A cache of lowered calls, by their key.
pub(super) type LoweredCalls = Mutex<FxHashMap<LaunchKey, Arc<LoweredCall>>>;

/// A lowered call on a device, for addresses of an alignment.
pub(super) struct LoweredCall {
    /// The dtype and the number of elements of each temporary.
    temporaries: Vec<(DType, u64)>,
    launches: Vec<KeptStep>,
}

/// A launch of a call, and the objects that are made for it once: a kernel on a GPU, or a program of the host.
struct KeptStep {
    step: Step,
    kernel: Kept,
    program: OnceLock<HostLoop>,
}

/// The launches of a call. The addresses are those of its inputs and outputs.
pub(super) struct Work<'a> {
    pub(super) name: &'static str,
    /// The number that identifies the computation.
    pub(super) number: u64,
    /// The dtypes that the launches depend on.
    pub(super) dtypes: &'a [DType],
    /// All values that the launches depend on besides the number and dtypes.
    pub(super) extents: &'a [u64],
    /// Lowers the call when its key is seen for the first time.
    pub(super) lower: &'a dyn Fn() -> lower::Result<Steps>,
    pub(super) scalars: &'a [u64],
    pub(super) inputs: &'a [u64],
    pub(super) outputs: &'a [u64],
}

fn pointers(addresses: &[u64]) -> SmallVec<[DevicePointer; 8]> {
    addresses.iter().copied().map(DevicePointer::new).collect()
}

impl Work<'_> {
    fn lowered(&self, calls: &LoweredCalls, device: i32) -> Result<Arc<LoweredCall>> {
        let all = self.inputs.iter().chain(self.outputs);
        let alignment_bytes = alignment_of(all.copied().map(DevicePointer::new));
        let mut key = LaunchKey::from_slice(&[self.number, device as u64, alignment_bytes]);
        key.push(self.dtypes.len() as u64);
        key.extend(self.dtypes.iter().map(|&dtype| dtype as u64));
        key.extend_from_slice(self.extents);
        if let Some(call) = calls.lock().get(&key) {
            return Ok(Arc::clone(call));
        }
        let Steps { temporaries, list } = (self.lower)().map_err(to_runtime_error)?;
        let kept = |step| KeptStep { step, kernel: Kept::new(alignment_bytes), program: OnceLock::new() };
        let call = Arc::new(LoweredCall { temporaries, launches: list.into_iter().map(kept).collect() });
        let mut calls = calls.lock();
        if calls.len() >= CAPACITY {
            calls.clear();
        }
        calls.insert(key, Arc::clone(&call));
        Ok(call)
    }

    /// Runs the launches on PyTorch's stream of a device: asynchronously on a GPU, synchronously on the host. Returns `None` if one
    /// of them fails, in which case the call is left to PyTorch.
    ///
    /// # Safety
    /// Each address is that of an operand on the device with the size that the launches have; no output overlaps another operand.
    pub(super) unsafe fn run(&self, kernels: &Kernels, operator: Operator, device: i32) -> Option<()> {
        let stream = kernels.current_stream(device)?;
        // SAFETY: the caller's promise.
        let ran = unsafe { self.launch(kernels, device, stream) };
        ran.map_err(|error| kernels.give_up(operator, &error)).ok()?
    }

    /// Runs the launches; `None` if PyTorch has no memory for the results that they pass to each other.
    ///
    /// # Errors
    /// Those of the driver or the compiler. [`Status::Capture`] if a kernel is not loaded yet and the stream captures.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn launch(&self, kernels: &Kernels, device: i32, stream: u64) -> Result<Option<()>> {
        let call = self.lowered(&kernels.lowered, device)?;
        let made =
            |&(dtype, elements): &(DType, u64)| kernels.torch.empty(&[elements.cast_signed()], dtype, device);
        let temporaries: Option<SmallVec<[Tensor<'_>; 2]>> = call.temporaries.iter().map(made).collect();
        let Some(temporaries) = temporaries else { return Ok(None) };
        let made = temporaries.iter().map(Tensor::address).collect::<Option<SmallVec<[u64; 4]>>>();
        let Some(made) = made else { return Ok(None) };
        let [inputs, outputs, made] = [self.inputs, self.outputs, &made].map(pointers);
        let placed = |kept: &KeptStep| addresses(&kept.step, &inputs, &outputs, &made);
        match &kernels.place {
            Place::Gpu(allocator) => allocator.with_device(device, |open| {
                let stream = open.streams.find_or_wrap(&open.device, open.named(stream))?;
                let label = Label::here(self.name);
                call.launches
                    .iter()
                    .try_for_each(|kept| kept.queue(self.scalars, &placed(kept), &stream, label))
            })?,
            Place::Host => {
                // SAFETY: the caller's promise; temporaries were made with their sizes.
                let run = |kept: &KeptStep| unsafe { kept.run_on_host(self.scalars, &placed(kept)) };
                call.launches.iter().try_for_each(run)?;
            }
        }
        Ok(Some(()))
    }
}

impl KeptStep {
    /// Queues the launch on a stream.
    fn queue(
        &self,
        scalars: &[u64],
        (read, written): &Addresses,
        stream: &Stream,
        label: Label,
    ) -> Result<()> {
        if !self.kernel.is_loaded() && stream.is_capturing()? {
            return Err(Error::new(Status::Capture, NOT_LOADED));
        }
        let (launch, numbers) = (&self.step.launch, self.step.numbers(scalars));
        let lowered = Lowered { launch, steps: None, numbers: &numbers, kept: Some(&self.kernel) };
        Ok(execute(&lowered, (&read[..], &written[..]), stream, label)?)
    }

    /// Runs the launch on the host.
    ///
    /// # Safety
    /// The addresses are the host's, with the sizes of the launch; no output overlaps another operand.
    unsafe fn run_on_host(&self, scalars: &[u64], (read, written): &Addresses) -> Result<()> {
        let program = match self.program.get() {
            Some(made) => made,
            None => {
                let launch = &self.step.launch;
                let plan = launch.plan(self.kernel.alignment_bytes(), 0, false).map_err(to_runtime_error)?;
                self.program.get_or_init(|| HostLoop::new(launch.kernel(&plan), plan.geometry))
            }
        };
        let (arguments, accesses) = program.launch(read, written, &self.step.numbers(scalars));
        // SAFETY: the caller's promise; these are the ranges that the program touches.
        unsafe { run_on_host(program, [[1; 3]; 2], arguments.as_bytes(), &accesses) }
    }
}

/// Runs a host function on the memory of the process.
///
/// # Safety
/// The ranges are memory, and nothing else uses those that are written.
unsafe fn run_on_host(
    function: &dyn HostKernel,
    [grid, block]: [[u32; 3]; 2],
    arguments: &[u8],
    accesses: &[Access],
) -> Result<()> {
    // SAFETY: the caller's promise; this is the only view of the run.
    let launch = unsafe { HostLaunch::new(grid, block, arguments, accesses, &HostMemory) };
    function.run(&launch).map_err(|fault| Error::invalid(fault.to_string()))
}

/// The message of an error if a kernel cannot be loaded.
const NOT_LOADED: &str = "the stream captures, and the kernel is not loaded yet";

/// The host functions of native kernels, by the kernels' names.
pub(super) type HostFunctions = Mutex<FxHashMap<String, Arc<dyn HostKernel>>>;

/// Launches of native kernels on a stream of PyTorch's.
pub(super) struct NativeLaunches<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) device: i32,
    pub(super) stream: u64,
}

impl NativeLaunches<'_> {
    /// Launches a kernel, asynchronously on a GPU and at once on the host.
    ///
    /// # Errors
    /// Those of the driver or the compiler. [`Status::Capture`] if the kernel is not loaded yet and the stream captures.
    ///
    /// # Safety
    /// The ranges that the kernel declares are memory of the device, and nothing else uses those that it writes.
    pub(super) unsafe fn run(&self, kernel: &dyn NativeKernel, label: Label) -> Result<()> {
        match &self.kernels.place {
            Place::Gpu(allocator) => self.queue(allocator, kernel, label),
            // SAFETY: the caller's promise.
            Place::Host => unsafe { self.run_on_host(kernel) },
        }
    }

    fn queue(&self, allocator: &Allocator, kernel: &dyn NativeKernel, label: Label) -> Result<()> {
        let key = (self.device, kernel.name().to_owned());
        allocator.with_device(self.device, |open| {
            let stream = open.streams.find_or_wrap(&open.device, open.named(self.stream))?;
            let is_loaded = self.kernels.loaded().contains(&key);
            if !is_loaded && stream.is_capturing()? {
                return Err(Error::new(Status::Capture, NOT_LOADED));
            }
            stream.launch_native(kernel, label)?;
            if !is_loaded {
                self.kernels.loaded().insert(key.clone());
            }
            Ok(())
        })
    }

    /// Runs a kernel's host function.
    ///
    /// # Safety
    /// As for [`run`](Self::run), and the addresses are the host's.
    unsafe fn run_on_host(&self, kernel: &dyn NativeKernel) -> Result<()> {
        kernel.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let Some(LaunchShape { grid, block, .. }) = kernel.launch_shape() else { return Ok(()) };
        let name = kernel.name().to_owned();
        let host = Arc::clone(self.kernels.hosts.lock().entry(name).or_insert_with(|| kernel.host()));
        let (mut words, accesses) = (kernel.words(), kernel.accesses());
        // The place of an index that is out of range, which nothing reads.
        words.extend(kernel.reports_indices().then_some(0));
        let arguments: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: the caller's promise.
        unsafe { run_on_host(&*host, [grid, block], &arguments, &accesses) }
    }
}

/// The memory of a process, whose addresses are those of a launch.
struct HostMemory;

// SAFETY: the addresses are the host's, and the caller of a launch promises that its ranges are memory that nothing else uses.
unsafe impl Resolve for HostMemory {
    fn resolve(&self, start: u64, bytes: u64) -> std::result::Result<(*mut u8, PhysicalRanges), HostFault> {
        Ok((start as *mut u8, smallvec![(start, bytes)]))
    }
}
