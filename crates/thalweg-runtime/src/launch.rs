//! Launches of loop kernels. The parts that a launch shares with earlier ones are computed once.
//!
//! A program repeats its calls: the same kernel over the same shapes and strides, with other addresses and scalars. Kernel,
//! shapes and strides determine the rest of a launch: the grid, the arguments that contain sizes and strides, and the number of
//! bytes that each operand touches from its first element on. A [`PreparedLaunch`] stores all of this. A device keeps prepared
//! launches under keys that callers choose ([`Device::prepared_launch`]), so an eager call costs a hash, the addresses and the
//! driver's call.
//!
//! # Invariants
//! - The table is bounded: at [`CAPACITY`] entries it is cleared. If shapes change with each call, a call costs as much as
//!   without a table.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Cluster, DevicePointer, Label, Launch, LaunchMode};
use thalweg_ir::{Geometry, LaunchArguments};

use crate::accesses::{accesses, aligned, extents};
use crate::loaded::{LaunchKey, LoadedKernel, PreparedLaunch};
use crate::recorder;
use crate::{Device, Result, Stream};

/// The number of prepared launches that a device keeps: a few times the number that the largest models have, at about half a
/// kilobyte each.
const CAPACITY: usize = 1 << 14;

impl PreparedLaunch {
    /// Prepares a launch of this geometry on the kernel's device. If the kernel's blocks form clusters, asks the driver how many
    /// clusters can run at the same time, because further clusters would begin only when all rows of the first ones are done.
    ///
    /// # Errors
    /// [`Error::is_not_supported`](crate::Error::is_not_supported) if such a cluster does not fit on the device.
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
            // The kernel's blocks fill the GPU.
            mode = LaunchMode::InOrder;
        }
        let sizes = LaunchArguments::sizes(kernel, geometry);
        let extents = extents(kernel, geometry, device.instrument().is_some());
        let (rows, aligned) = (geometry.rows(), aligned(kernel, geometry));
        Ok(Self { rows, shape, mode, shared_memory_bytes, extents, aligned, sizes, loaded })
    }
}

impl Device {
    /// Makes a launch with blocks in clusters if the device supports them, and without if the clusters of this launch do not fit.
    pub fn with_clusters<T>(&self, make: impl Fn(bool) -> Result<T>) -> Result<T> {
        match make(self.has_clusters()) {
            Err(error) if self.has_clusters() && error.is_not_supported() => make(false),
            made => made,
        }
    }

    /// Returns the prepared launch with this key, and prepares it at the first call.
    pub fn prepared_launch(
        &self,
        key: &LaunchKey,
        make: impl FnOnce() -> Result<PreparedLaunch>,
    ) -> Result<Arc<PreparedLaunch>> {
        let table = self.launches();
        if let Some(found) = table.read().get(key) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        let mut launches = table.write();
        if launches.len() >= CAPACITY {
            launches.clear();
        }
        launches.insert(key.clone(), made.clone());
        Ok(made)
    }
}

impl Stream {
    /// Queues a kernel of the loop IR. Each address is the address of an operand's first element. Does nothing if there are no
    /// rows.
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
        let arguments = LaunchArguments::from_sizes(kernel, addresses, scalars, &prepared.sizes);
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
        self.submit_launch(launch, |list| accesses(list, &prepared.extents, inputs, outputs))?;
        recorder::note_aligned(prepared.aligned.iter().map(|&(input, output)| {
            [inputs[usize::from(input)], outputs[usize::from(output)]].map(DevicePointer::address)
        }));
        Ok(())
    }
}
