//! Loadable code.

use std::fmt;
use std::sync::Arc;

use crate::host::HostKernel;

/// The code that [`Driver::module_load`](crate::Driver::module_load) loads.
#[derive(Clone, Copy)]
pub enum Image<'a> {
    /// Machine code for one architecture.
    Cubin(&'a [u8]),
    /// PTX text, compiled by the driver when it is loaded.
    Ptx(&'a str),
    /// Host functions, for the simulator.
    Host(&'a HostModule),
}

impl fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(bytes) => write!(f, "Cubin({} bytes)", bytes.len()),
            Self::Ptx(text) => write!(f, "Ptx({} bytes)", text.len()),
            Self::Host(module) => write!(f, "Host({module:?})"),
        }
    }
}

/// The resources that a kernel needs of a multiprocessor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FunctionAttributes {
    /// The greatest number of threads per block of this kernel.
    pub max_threads_per_block: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Static shared memory per block.
    pub shared_memory_bytes: u32,
    /// Local memory per thread (spills and arrays).
    pub local_memory_bytes: u32,
}

/// A cluster of blocks, which run at once and can read each other's shared memory. The number of blocks is fixed in the
/// kernel's code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cluster {
    /// The number of blocks.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
    /// Dynamic shared memory of each block.
    pub shared_memory_bytes: u32,
}

/// Named host functions.
#[derive(Clone, Default)]
pub struct HostModule {
    kernels: Vec<(String, Arc<dyn HostKernel>)>,
}

impl HostModule {
    /// Creates a module with one function.
    pub fn single(name: impl Into<String>, kernel: Arc<dyn HostKernel>) -> Self {
        Self { kernels: vec![(name.into(), kernel)] }
    }

    /// Returns the module with one more function.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, kernel: Arc<dyn HostKernel>) -> Self {
        self.kernels.push((name.into(), kernel));
        self
    }

    /// Returns the module with each function wrapped by `wrap`.
    #[must_use]
    pub fn map(&self, wrap: impl Fn(&Arc<dyn HostKernel>) -> Arc<dyn HostKernel>) -> Self {
        Self { kernels: self.kernels.iter().map(|(name, kernel)| (name.clone(), wrap(kernel))).collect() }
    }

    /// Returns the function of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn HostKernel>> {
        self.kernels.iter().find(|(candidate, _)| candidate == name).map(|(_, kernel)| kernel)
    }
}

impl fmt::Debug for HostModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kernels.iter().map(|(name, _)| name)).finish()
    }
}
