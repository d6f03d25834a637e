//! Library calls on streams.

use super::blaslt::BlasLt;
use super::state::CudaDriver;
use crate::command::LibraryLaunch;
use crate::library::GpuCall;
use crate::{Error, Result, StreamHandle};

impl CudaDriver {
    /// Returns cuBLASLt, or why there is none. Loaded at the first call.
    pub(super) fn blas_lt(&self) -> Result<&BlasLt> {
        let loaded = self.blas.get_or_init(|| BlasLt::load(&self.environment, self.devices.len()));
        loaded.as_ref().map_err(Error::clone)
    }

    pub(super) fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()> {
        let GpuCall::Matmul(call) = launch.gpu;
        let stream = self.streams.get(stream.raw(), "cublasLtMatmul")?;
        self.submit_on(&stream)?;
        let blas = self.blas_lt().map_err(|error| error.with_detail(&format!("for {}", launch.label)))?;
        // The library's first use of a kernel loads it, which is no part of another capture.
        let _relaxed = self.cuda.relaxed();
        blas.matmul(stream.device, stream.raw, call, || launch.label.to_string())
    }
}
