//! Modules, functions and launches.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{
    Code, GpuCall, GraphNodeKind, HostLaunch, Image, Launch, LibraryLaunch, MatmulAlgorithm, MatmulCall,
};

use crate::executor::task::{Task, Work};
use crate::objects::code::{Function, Module};
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

/// The greatest number of threads per block.
pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// The largest block in x, y and z, and the largest grid.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// The greatest dynamic shared memory per block: that of an H100, with opting in.
pub(crate) const MAX_SHARED_MEMORY_BYTES: u32 = 227 << 10;

impl MachineState {
    pub(crate) fn module_load(&mut self, device: u32, image: Image<'_>) -> CallResult<u64> {
        self.usable(device)?;
        let Image::Host(code) = image else {
            return Err(Refusal::new(
                Code::InvalidImage,
                "a simulated device runs host functions (Image::Host); machine code and PTX need a GPU",
            ));
        };
        Ok(self.modules.insert(Module { device, code: code.clone(), functions: Vec::new() }))
    }

    pub(crate) fn module_device(&self, module: u64) -> CallResult<u32> {
        Ok(self.modules.get(module).ok_or_else(|| unknown("module", module))?.device)
    }

    pub(crate) fn module_unload(&mut self, module: u64) -> CallResult<()> {
        let removed = self.modules.remove(module).ok_or_else(|| unknown("module", module))?;
        for &(_, function) in &removed.functions {
            let function = self.functions.remove(function).expect("a module owns its functions");
            self.trash.push(Box::new(function));
        }
        self.trash.push(Box::new(removed));
        Ok(())
    }

    pub(crate) fn function_get(&mut self, module: u64, name: &str) -> CallResult<u64> {
        let found = self.modules.get_mut(module).ok_or_else(|| unknown("module", module))?;
        if let Some((_, handle)) = found.functions.iter().find(|(known, _)| known == name) {
            return Ok(*handle);
        }
        let Some(kernel) = found.code.get(name) else {
            let detail = format!("the module has no kernel `{name}`; it is {:?}", found.code);
            return Err(Refusal::new(Code::NotFound, detail));
        };
        let function = Function { device: found.device, name: name.into(), kernel: Arc::clone(kernel) };
        let handle = self.functions.insert(function);
        found.functions.push((name.to_owned(), handle));
        Ok(handle)
    }

    pub(crate) fn check_function(&self, function: u64) -> CallResult<()> {
        self.functions.get(function).map(|_| ()).ok_or_else(|| unknown("function", function))
    }

    pub(crate) fn launch(&mut self, stream: u64, launch: &Launch<'_>) -> CallResult<()> {
        let own = self.enter(stream)?;
        let task = self.kernel_task(self.stream(own).device, launch)?;
        self.submit(own, task, GraphNodeKind::Kernel).map(|_| ())
    }

    /// Returns the task of a launch on a stream of the device.
    pub(crate) fn kernel_task(&self, device: u32, launch: &Launch<'_>) -> CallResult<Task> {
        let handle = launch.function.raw();
        let function = self.functions.get(handle).ok_or_else(|| unknown("function", handle))?;
        if function.device != device {
            return Err(Refusal::new(
                Code::InvalidHandle,
                format!(
                    "`{}`: a kernel of device {} cannot be launched on device {device}",
                    launch.label, function.device
                ),
            ));
        }
        check_shape(launch)?;
        Ok(Task {
            device,
            label: launch.label,
            accesses: SmallVec::from_slice(launch.accesses),
            work: Work::Kernel {
                kernel: Arc::clone(&function.kernel),
                name: Some(Arc::clone(&function.name)),
                grid: launch.grid,
                block: launch.block,
                shared_memory_bytes: launch.shared_memory_bytes,
                arguments: SmallVec::from_slice(launch.arguments),
            },
        })
    }

    pub(crate) fn library(&mut self, stream: u64, launch: &LibraryLaunch<'_>) -> CallResult<()> {
        let own = self.enter(stream)?;
        if matches!(launch.gpu, GpuCall::Dense(_)) && self.stream(own).capture.is_some() {
            let detail =
                format!("`{}`: a decomposition by a library cannot be captured in a graph", launch.label);
            return Err(Refusal::new(Code::StreamCaptureUnsupported, detail));
        }
        if let GpuCall::Matmul(MatmulCall { algorithm: Some(algorithm), .. }) = launch.gpu
            && !ALGORITHMS.contains(algorithm)
        {
            let detail = format!("`{}`: the simulated library has no algorithm {algorithm:?}", launch.label);
            return Err(Refusal::new(Code::NotSupported, detail));
        }
        let task = Task {
            device: self.stream(own).device,
            label: launch.label,
            accesses: SmallVec::from_slice(launch.accesses),
            work: Work::Kernel {
                kernel: Arc::clone(launch.host),
                name: None,
                grid: [1; 3],
                block: [1; 3],
                shared_memory_bytes: 0,
                arguments: SmallVec::from_slice(launch.arguments),
            },
        };
        for _ in 0..extra_commands(launch.gpu) {
            let task = Task {
                device: self.stream(own).device,
                label: launch.label,
                accesses: SmallVec::new(),
                work: Work::Kernel {
                    kernel: Arc::new(|_: &HostLaunch<'_>| Ok(())),
                    name: None,
                    grid: [1; 3],
                    block: [1; 3],
                    shared_memory_bytes: 0,
                    arguments: SmallVec::new(),
                },
            };
            self.submit(own, task, GraphNodeKind::Library)?;
        }
        self.submit(own, task, GraphNodeKind::Library).map(|_| ())
    }
}

/// The algorithms that a simulated library has for every product. They differ in how many commands they take in addition to
/// the host function, and so, if time is counted in commands, in how long they take.
pub(crate) const ALGORITHMS: [MatmulAlgorithm; 4] =
    [algorithm(0, 4), algorithm(1, 2), algorithm(2, 1), algorithm(3, 8)];

const fn algorithm(id: i32, split_k: i32) -> MatmulAlgorithm {
    MatmulAlgorithm {
        id,
        split_k,
        tile: 0,
        stages: 0,
        reduction: 0,
        swizzle: 0,
        custom: 0,
        inner_shape: 0,
        cluster_shape: 0,
    }
}

/// Returns how many commands without an effect precede a library's work: for a product with an algorithm, one less than the
/// number of parts that it is split into; otherwise 0.
fn extra_commands(call: &GpuCall) -> i32 {
    match call {
        GpuCall::Matmul(MatmulCall { algorithm: Some(algorithm), .. }) => algorithm.split_k - 1,
        _ => 0,
    }
}

fn check_shape(launch: &Launch<'_>) -> CallResult<()> {
    let Launch { grid, block, shared_memory_bytes, label, .. } = launch;
    let within = |sizes: &[u32; 3], most: [u32; 3]| {
        sizes.iter().zip(most).all(|(&size, most)| size > 0 && size <= most)
    };
    let threads = block.iter().fold(1_u64, |threads, &size| threads.saturating_mul(u64::from(size)));
    let is_valid =
        within(grid, MAX_GRID) && within(block, MAX_BLOCK) && threads <= u64::from(MAX_THREADS_PER_BLOCK);
    if is_valid && *shared_memory_bytes <= MAX_SHARED_MEMORY_BYTES {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidValue,
        format!(
            "`{label}`: grid {grid:?}, block {block:?}, {shared_memory_bytes} bytes of shared memory; sizes are at \
             least 1, a grid at most {MAX_GRID:?}, a block at most {MAX_BLOCK:?} and {MAX_THREADS_PER_BLOCK} threads, \
             shared memory at most {MAX_SHARED_MEMORY_BYTES} bytes"
        ),
    ))
}
