//! [`Ceilings`]: the measured limits of a GPU, with which operators are compared.

use std::time::Instant;

use thalweg::{DType, Device, Result, Tensor};

use super::measure::least_span;

/// The number of bytes that the measurement copies.
const COPY_BYTES: usize = 1 << 30;

/// The number of rows and columns of the measured matrices.
const EXTENT: usize = 8192;

/// The number of launches that the host times.
const LAUNCHES: u32 = 2000;

/// The measured ceilings of a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ceilings {
    /// Bytes read and written per second by a copy on the device.
    pub copy: f64,
    /// Operations per second of a matrix product of bf16.
    pub product: f64,
    /// The host's time for an addition of two small tensors, in seconds.
    pub launch: f64,
}

impl Ceilings {
    /// Measures a device: three programs of a few milliseconds. *Blocks*.
    pub fn measure(device: &Device) -> Result<Self> {
        // A simulated GPU is measured with work that takes the host about a second.
        let (bytes, extent) = if device.is_simulated() { (1 << 22, 128) } else { (COPY_BYTES, EXTENT) };
        let source = Tensor::zeros(&[bytes / 4], DType::F32, device)?;
        let target = Tensor::zeros(&[bytes / 4], DType::F32, device)?;
        let copy = least(device, || target.copy_(&source).map(drop))?;
        // Typical numbers: ones take less power, and a GPU at its power limit is then faster.
        let square = Tensor::randn(&[extent, extent], DType::Bf16, device)?;
        let product = least(device, || square.matmul(&square).map(drop))?;
        let small = Tensor::zeros(&[16], DType::F32, device)?;
        let launches = if device.is_simulated() { LAUNCHES / 100 } else { LAUNCHES };
        (0..100).try_for_each(|_| small.add(&small).map(drop))?;
        device.synchronize()?;
        let start = Instant::now();
        (0..launches).try_for_each(|_| small.add(&small).map(drop))?;
        let launch = start.elapsed().as_secs_f64() / f64::from(launches);
        device.synchronize()?;
        Ok(Self { copy: 2.0 * bytes as f64 / copy, product: 2.0 * (extent as f64).powi(3) / product, launch })
    }

    /// Returns the ceilings as text, one per line.
    pub fn as_text(&self, device: &Device) -> String {
        let name = &device.properties().name;
        format!(
            "{name}\n  copy               {:>8.0} GB/s\n  product of bf16    {:>8.1} TFLOP/s\n  small add, host    {:>8.2} us\n\n",
            self.copy * 1e-9,
            self.product * 1e-12,
            self.launch * 1e6
        )
    }
}

/// Returns the minimum device time of a call, in seconds.
fn least(device: &Device, call: impl Fn() -> Result<()>) -> Result<f64> {
    call()?;
    Ok((f64::from(least_span(device, 10, &call)?) * 1e-3).max(1e-9))
}
