//! NVIDIA's libraries beside the driver, each of which works without the others: NVRTC compiles kernels, NVML counts devices and reads
//! their state, CUPTI records the work of a device, and NVTX shows the program's own ranges in profilers.

pub(super) mod cupti;
pub(super) mod nvml;
pub(super) mod nvrtc;
pub mod nvtx;
