//! Library calls on streams.

use super::blaslt::BlasLt;
use super::cudnn::Cudnn;
use super::dense::Dense;
use super::fourier::Fourier;
use super::state::CudaDriver;
use super::sys;
use crate::command::LibraryLaunch;
use crate::library::recurrent::{RecurrentMemory, RecurrentShape};
use crate::library::{GpuCall, MatmulAlgorithm, MatmulCall};
use crate::{Code, DevicePointer, Error, EventFlags, Result, StreamHandle};

impl CudaDriver {
    /// Returns cuBLASLt, or the error of loading it. Loaded at the first call.
    pub(super) fn blas_lt(&self) -> Result<&BlasLt> {
        let loaded = self.blas.get_or_init(|| BlasLt::load(&self.environment, self.devices.len()));
        loaded.as_ref().map_err(Error::clone)
    }

    /// Returns cuDNN, or the error of loading it. Loaded at the first call.
    pub(super) fn cudnn(&self) -> Result<&Cudnn> {
        let loaded = self.cudnn.get_or_init(|| Cudnn::load(&self.environment, self.devices.len()));
        loaded.as_ref().map_err(Error::clone)
    }

    /// Returns cuFFT, or the error of loading it. Loaded at the first call.
    fn fourier(&self) -> Result<&Fourier> {
        let loaded = self.fourier.get_or_init(|| Fourier::load(&self.environment, self.devices.len()));
        loaded.as_ref().map_err(Error::clone)
    }

    /// Returns cuSOLVER with cuBLAS, or the error of loading them. Loaded at the first call.
    fn dense(&self) -> Result<&Dense> {
        let loaded = self.dense.get_or_init(|| Dense::load(&self.environment, self.devices.len()));
        loaded.as_ref().map_err(Error::clone)
    }

    pub(super) fn library_workspace(&self, device: u32, call: &GpuCall) -> Result<u64> {
        self.enter(device)?;
        match call {
            // A product works with any workspace.
            GpuCall::Matmul(_) => Ok(0),
            GpuCall::Attention(call) => {
                let _relaxed = self.cuda.relaxed();
                self.cudnn()?.workspace(device, call)
            }
            GpuCall::Convolution(call) => {
                let _relaxed = self.cuda.relaxed();
                self.cudnn()?.convolution_workspace(device, call)
            }
            GpuCall::Dense(call) => {
                let _relaxed = self.cuda.relaxed();
                self.dense()?.workspace(device, call)
            }
            GpuCall::Fourier(call) => {
                let _relaxed = self.cuda.relaxed();
                self.fourier()?.workspace(device, call)
            }
            GpuCall::Recurrent(call) => Ok(self.recurrent_memory(device, &call.shape)?.workspace_bytes),
        }
    }

    pub(super) fn recurrent_memory(&self, device: u32, shape: &RecurrentShape) -> Result<RecurrentMemory> {
        self.enter(device)?;
        let _relaxed = self.cuda.relaxed();
        self.cudnn()?.recurrent_memory(device, shape)
    }

    pub(super) fn matmul_algorithms(
        &self,
        device: u32,
        call: &MatmulCall,
        most: u32,
    ) -> Result<Vec<MatmulAlgorithm>> {
        self.enter(device)?;
        let _relaxed = self.cuda.relaxed();
        self.blas_lt()?.algorithms(device, call, most)
    }

    pub(super) fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()> {
        let handle = stream;
        let stream = self.streams.get(stream.raw(), launch.gpu.entry_point())?;
        self.submit_on(&stream)?;
        let label = || launch.label.to_string();
        let explain = |error: Error| error.with_detail(&format!("for {}", launch.label));
        // The library's first use of a kernel loads it, which is not part of another capture.
        let _relaxed = self.cuda.relaxed();
        match launch.gpu {
            GpuCall::Matmul(call) => {
                self.blas_lt().map_err(explain)?.matmul(stream.device, stream.raw, call, label)
            }
            GpuCall::Attention(call) => {
                let fill = |target: DevicePointer, value, count: u64| {
                    self.check_device_range(target.address(), 4 * count, "cuMemsetD32Async")?;
                    let (table, start) = (&self.cuda.table, target.address());
                    // SAFETY: the range is device memory; the stream is looked up.
                    let outcome = unsafe { table.fill_32(start, value, count as usize, stream.raw) };
                    self.cuda.check(outcome, || format!("{count} lengths, for {}", launch.label))
                };
                self.cudnn().map_err(explain)?.attention(stream.device, stream.raw, call, fill, label)
            }
            GpuCall::Convolution(call) => {
                let stopwatch = |run: &mut dyn FnMut() -> Result<()>| self.time(handle, run);
                self.cudnn().map_err(explain)?.convolution(stream.device, stream.raw, call, &stopwatch, label)
            }
            GpuCall::Dense(call) => {
                if self.capture_status(&stream, "cuStreamIsCapturing")? != sys::CAPTURE_NONE {
                    let detail = "a decomposition by cuSOLVER cannot be captured in a graph".to_owned();
                    return Err(explain(Error::new(Code::StreamCaptureUnsupported, "cusolverDn", detail)));
                }
                self.dense().map_err(explain)?.decompose(stream.device, stream.raw, call, label)
            }
            GpuCall::Fourier(call) => {
                let is_captured = self.capture_status(&stream, "cuStreamIsCapturing")? != sys::CAPTURE_NONE;
                let library = self.fourier().map_err(explain)?;
                library.transform(stream.device, stream.raw, call, is_captured, label)
            }
            GpuCall::Recurrent(call) => {
                self.cudnn().map_err(explain)?.recurrent(stream.device, stream.raw, call, label)
            }
        }
    }

    /// Returns the milliseconds of the work that a function queues on a stream. If the stream captures, returns `None` and
    /// queues nothing. Blocks until the work is done.
    fn time(&self, handle: StreamHandle, run: &mut dyn FnMut() -> Result<()>) -> Result<Option<f32>> {
        let stream = self.streams.get(handle.raw(), "cuEventRecord")?;
        if self.capture_status(&stream, "cuStreamIsCapturing")? != sys::CAPTURE_NONE {
            return Ok(None);
        }
        let flags = EventFlags { timing: true, ..EventFlags::default() };
        let create = || self.event_create(stream.device, flags);
        let start = create()?;
        let end = create().inspect_err(|_| drop(self.event_destroy(start)))?;
        let timed = self.event_record(start, handle).and_then(|()| run()).and_then(|()| {
            self.event_record(end, handle)?;
            self.event_synchronize(end)?;
            self.event_elapsed_ms(start, end)
        });
        let destroyed = [start, end].map(|event| self.event_destroy(event));
        destroyed.into_iter().collect::<Result<()>>()?;
        timed.map(Some)
    }
}
