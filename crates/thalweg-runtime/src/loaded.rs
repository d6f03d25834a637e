//! Loaded code and prepared launches, as a device keeps them.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{Driver, FunctionHandle, HostKernel, LaunchMode, ModuleHandle};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::{Class, DType, Kernel};
use thalweg_lock::{Mutex, RwLock};

use crate::accesses::Extent;
use crate::ahead::Ahead;

/// The key of a kernel of a device: the body (by a number that the caller keeps unique), the dtypes, and the class. A look-up
/// must be cheap, so the key consists only of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KernelKey {
    /// The body, by a number that the caller has chosen.
    pub body: u64,
    /// The dtypes that the kernel was built for.
    pub dtypes: SmallVec<[DType; 8]>,
    /// The class that the kernel was compiled for.
    pub class: Class,
}

/// A kernel that is ready to launch on one device.
#[derive(Debug)]
pub struct LoadedKernel {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) function: FunctionHandle,
}

impl LoadedKernel {
    /// Returns the kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn function(&self) -> FunctionHandle {
        self.function
    }
}

/// A kernel with its code, which is not loaded yet.
pub(crate) struct KernelCode {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) code: CompiledCode,
}

/// Code that was compiled ahead.
pub(crate) enum CompiledCode {
    /// Machine code from the compiler.
    Image(Vec<u8>),
    /// A host function.
    Host(Arc<dyn HostKernel>),
    /// None: the code is in a folder, or the compiler failed, and fails again when the kernel is loaded.
    Nothing,
}

/// The kernels of one device.
#[derive(Default)]
pub(crate) struct KernelTable {
    pub(crate) loops: RwLock<FxHashMap<KernelKey, Arc<LoadedKernel>>>,
    pub(crate) natives: RwLock<FxHashMap<String, FunctionHandle>>,
    /// The code of kernels that were compiled ahead of their first launch, which takes it.
    pub(crate) ahead: Arc<Ahead<KernelKey, KernelCode>>,
    /// The modules of the kernels, which are unloaded with the device.
    pub(crate) modules: Mutex<Vec<ModuleHandle>>,
}

impl KernelTable {
    /// Unloads everything when the device is dropped, so that nothing can be launched any more. *Blocks* until running kernels
    /// are done.
    pub(crate) fn unload(&mut self, driver: &dyn Driver) {
        for module in self.modules.get_mut().drain(..) {
            // A module that a lost device cannot unload is lost with it.
            let _ = driver.module_unload(module);
        }
    }

    /// Notes a module that must be unloaded with the device.
    pub(crate) fn loaded(&self, module: ModuleHandle) {
        self.modules.lock().push(module);
    }
}

/// The key of a prepared launch: numbers that no launch of another kernel or geometry has.
pub type LaunchKey = SmallVec<[u64; 40]>;

/// The prepared launches of one device.
pub(crate) type LaunchTable = RwLock<FxHashMap<LaunchKey, Arc<PreparedLaunch>>>;

/// A launch that lacks only its addresses and scalars.
#[derive(Debug)]
pub struct PreparedLaunch {
    pub(crate) loaded: Arc<LoadedKernel>,
    pub(crate) rows: u64,
    pub(crate) shape: LaunchShape,
    pub(crate) mode: LaunchMode,
    /// The bytes of dynamic shared memory of a block.
    pub(crate) shared_memory_bytes: u32,
    /// The extent that each operand touches.
    pub(crate) extents: SmallVec<[Extent; 8]>,
    /// The inputs and outputs whose elements are at the same places: the launch may write the output where it reads the input.
    pub(crate) aligned: SmallVec<[(u8, u8); 2]>,
    /// The words of the arguments that follow the scalars.
    pub(crate) sizes: SmallVec<[u64; 16]>,
}
