//! Launches of loop kernels. What a launch has in common with earlier ones is computed once.
//!
//! A program repeats its calls: the same kernel over the same shapes and strides, with other addresses and numbers. Kernel, shapes and
//! strides determine the rest of a launch: the grid, the arguments that hold sizes and strides, and how many bytes each operand touches
//! from its first element on. A [`PreparedLaunch`] holds all of this. A device keeps prepared launches by the keys that callers give
//! ([`Device::prepared_launch`]), so an eager call costs a hash, the addresses and the driver's call.
//!
//! # Invariants
//! - The table is bounded: at [`CAPACITY`] entries it is emptied. Where shapes change with each call, a call costs as much as without a
//!   table.

use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use thalweg_driver::{Cluster, DevicePointer, Label, Launch, LaunchMode};
use thalweg_ir::{Geometry, LaunchArguments};

use crate::accesses::{accesses, extents};
use crate::loaded::{LaunchKey, LoadedKernel, PreparedLaunch};
use crate::{Device, Result, Stream};

/// The number of prepared launches that a device keeps: a few times what the largest models have, at about half a kilobyte each.
const CAPACITY: usize = 1 << 14;

impl PreparedLaunch {
    /// Works out what a launch of this geometry has on the kernel's device. Where the kernel's blocks form clusters, the driver is asked how many of them run
    /// at once: the others would begin when all rows of the first are done.
    ///
    /// # Errors
    /// [`Error::is_not_supported`](crate::Error::is_not_supported) where the device has no room for such a cluster.
    pub fn new(device: &Device, loaded: Arc<LoadedKernel>, geometry: &Geometry) -> Result<Self> {
        let kernel = loaded.kernel();
        let processors = device.properties().multi_processor_count;
        let mut shape = thalweg_ir::cuda::launch_shape(kernel, geometry, processors);
        let shared_memory_bytes = thalweg_ir::cuda::shared_memory_bytes(kernel);
        let mut mode = match thalweg_ir::cuda::is_programmatic(&shape) {
            true => LaunchMode::Programmatic,
            false => LaunchMode::InOrder,
        };
        if let Some(streamed) = kernel.class.streamed {
            let (blocks, threads) = (u32::from(streamed.cluster), shape.block[0]);
            let cluster = Cluster { blocks, threads, shared_memory_bytes };
            let most = device.check(device.driver().max_active_clusters(loaded.function(), cluster))?;
            shape.grid[0] = shape.grid[0].min(most * blocks);
            // Its blocks fill the GPU.
            mode = LaunchMode::InOrder;
        }
        let sizes = LaunchArguments::sizes(kernel, geometry);
        let extents = extents(kernel, geometry, device.instrument().is_some());
        Ok(Self { rows: geometry.rows(), shape, mode, shared_memory_bytes, extents, sizes, loaded })
    }
}

impl Device {
    /// Makes a launch for blocks in clusters, if the device has them; without, where it has no room for those of this launch.
    pub fn with_clusters<T>(&self, make: impl Fn(bool) -> Result<T>) -> Result<T> {
        match make(self.has_clusters()) {
            Err(error) if self.has_clusters() && error.is_not_supported() => make(false),
            made => made,
        }
    }

    /// Returns the prepared launch of this name, made if it is not there yet.
    pub fn prepared_launch(
        &self,
        key: &LaunchKey,
        make: impl FnOnce() -> Result<PreparedLaunch>,
    ) -> Result<Arc<PreparedLaunch>> {
        let table = self.launches();
        if let Some(found) = table.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        let mut launches = table.write().unwrap_or_else(PoisonError::into_inner);
        if launches.len() >= CAPACITY {
            launches.clear();
        }
        launches.insert(key.clone(), made.clone());
        Ok(made)
    }
}

impl Stream {
    /// Queues a kernel of the loop IR. Addresses are those of each operand's first element; nothing happens where there
    /// are not rows.
    pub fn launch(
        &self,
        prepared: &PreparedLaunch,
        inputs: &[DevicePointer],
        outputs: &[DevicePointer],
        scalars: &[u64],
        label: Label,
    ) -> Result<()> {
        if prepared.rows == 0 {
            return Ok(());
        }
        let kernel = prepared.loaded.kernel();
        let report;
        let scalars = match kernel.body.report {
            None => scalars,
            Some(_) => {
                let device = self.device();
                let slot = device.out_of_range().scalar(device.driver(), label)?;
                report = scalars.iter().copied().chain([slot]).collect::<SmallVec<[u64; 8]>>();
                &report
            }
        };
        let addresses = inputs.iter().chain(outputs).map(|pointer| pointer.address());
        let arguments = LaunchArguments::behind(kernel, addresses, scalars, &prepared.sizes);
        let launch = Launch {
            function: prepared.loaded.function(),
            grid: prepared.shape.grid,
            block: prepared.shape.block,
            shared_memory_bytes: prepared.shared_memory_bytes,
            mode: prepared.mode,
            arguments: arguments.as_bytes(),
            accesses: &[],
            label,
        };
        self.submit_launch(launch, |list| accesses(list, &prepared.extents, inputs, outputs))
    }
}
