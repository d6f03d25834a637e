//! [`MetaDriver`]: the driver of [`Device::meta`](crate::Device::meta).

use std::sync::Arc;

use thalweg_driver::{
    Code, Collective, Copy, DevicePointer, Driver, Endpoint, Error, Fill, Label, Launch, LibraryLaunch,
    Result, StreamHandle,
};
use thalweg_sim::{SimConfig, SimDriver};

/// A driver whose tensors have shapes, strides and dtypes but no elements. Allocation, streams, events and captures work as on a
/// simulated GPU; kernels, copies and fills are accepted and ignored. Its memory costs the host nothing, since nothing is ever
/// written.
#[derive(Debug)]
pub(crate) struct MetaDriver(Arc<SimDriver>);

impl MetaDriver {
    /// Returns the driver of one device with this much memory.
    pub(crate) fn new(memory_bytes: u64) -> Result<Arc<Self>> {
        let config =
            SimConfig { devices: 1, memory_bytes, workers: 1, name: "Thalweg meta device".to_owned() };
        Ok(Arc::new(Self(SimDriver::new(config)?)))
    }
}

fn no_elements() -> Error {
    let detail = "tensors on the meta device have no elements to read; compute on `sim` or `cuda` where values are needed";
    Error::new(Code::NotSupported, "cuMemcpyDtoH", detail)
}

impl Driver for MetaDriver {
    thalweg_driver::wraps!(0, own name);

    fn name(&self) -> &'static str {
        "meta"
    }

    fn reads_accesses(&self) -> bool {
        false
    }

    fn copy_async(&self, _: StreamHandle, copy: &Copy) -> Result<()> {
        match copy.target {
            Endpoint::Device(_) => Ok(()),
            Endpoint::Pinned(_) => Err(no_elements()),
        }
    }

    fn copy_from_host(&self, _: StreamHandle, _: DevicePointer, _: &[u8], _: Label) -> Result<()> {
        Ok(())
    }

    fn copy_to_host(&self, _: StreamHandle, target: &mut [u8], _: DevicePointer, _: Label) -> Result<()> {
        if target.is_empty() { Ok(()) } else { Err(no_elements()) }
    }

    fn fill_async(&self, _: StreamHandle, _: &Fill) -> Result<()> {
        Ok(())
    }

    fn launch(&self, _: StreamHandle, _: &Launch<'_>) -> Result<()> {
        Ok(())
    }

    fn library_async(&self, _: StreamHandle, _: &LibraryLaunch<'_>) -> Result<()> {
        Ok(())
    }

    fn collectives_async(&self, _: &[Collective]) -> Result<()> {
        Ok(())
    }
}
