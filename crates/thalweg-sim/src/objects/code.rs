//! Modules and their functions.

use std::sync::Arc;

use thalweg_driver::{HostKernel, HostModule};

/// A loaded module.
pub(crate) struct Module {
    pub(crate) device: u32,
    pub(crate) code: HostModule,
    pub(crate) functions: Vec<(String, u64)>,
}

/// A kernel of a loaded module.
pub(crate) struct Function {
    pub(crate) device: u32,
    pub(crate) name: Arc<str>,
    pub(crate) kernel: Arc<dyn HostKernel>,
}
