//! Discrete Fourier transforms, as data: a call of a vendor's library ([`GpuCall::Fourier`](crate::GpuCall::Fourier)).
//!
//! Over up to three dimensions, without a factor:
//!
//! ```text
//! X[k] = Σ_t x[t] · exp(∓ 2 π i Σ_d k_d t_d / n_d)      − forward, + inverse
//! ```

use crate::library::ElementFormat;
use crate::{DevicePointer, GpuCall};

/// The numbers that a transform reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FourierKind {
    /// Complex numbers to complex numbers; forward, or inverse.
    Complex {
        /// Whether the exponent is negative.
        forward: bool,
    },
    /// Real numbers to the half of their forward transform up to the middle of the last dimension.
    FromReal,
    /// The real numbers whose inverse transform this half is. Imaginary parts that such a half cannot have are ignored. The input
    /// is overwritten.
    ToReal,
}

/// The sizes of a batch of transforms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FourierShape {
    /// The numbers that are read and written.
    pub kind: FourierKind,
    /// The number of dimensions: 1 to 3.
    pub rank: u32,
    /// The sizes of the dimensions, outermost first; those beyond the rank are 1. A half has n / 2 + 1 numbers in the last one.
    pub sizes: [u64; 3],
    /// The number of transforms.
    pub batch: u64,
    /// Elements from one number of the input to the next in the last dimension, and from one transform to the next. With more
    /// than one dimension, transforms are contiguous: 1 and the product of the sizes.
    pub input_strides: [u64; 2],
    /// The format of real numbers: floats of 32 or 64 bits. Complex numbers are pairs of them.
    pub format: ElementFormat,
}

/// A batch of transforms. The output is contiguous, one transform after another.
///
/// [`Driver::library_workspace`](crate::Driver::library_workspace) returns the size of the workspace that a call needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FourierCall {
    /// The sizes.
    pub shape: FourierShape,
    /// The input, aligned to a complex number, or to 8 bytes.
    pub input: DevicePointer,
    /// The output, apart from the input and aligned like it.
    pub output: DevicePointer,
    /// The workspace that the library may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

impl FourierShape {
    /// Returns the sizes of the dimensions.
    pub fn extents(&self) -> &[u64] {
        &self.sizes[..(self.rank as usize).clamp(1, 3)]
    }

    /// Returns the numbers of one transform in memory: of the input and of the output.
    pub fn counts(&self) -> [u64; 2] {
        let whole: u64 = self.extents().iter().product();
        let last = self.extents().last().copied().unwrap_or(1);
        let half = whole / last.max(1) * (last / 2 + 1);
        match self.kind {
            FourierKind::Complex { .. } => [whole, whole],
            FourierKind::FromReal => [whole, half],
            FourierKind::ToReal => [half, whole],
        }
    }

    /// Returns the bytes of one number of the input and of the output.
    pub fn widths(&self) -> [u64; 2] {
        let real = self.format.bytes().unwrap_or(4);
        match self.kind {
            FourierKind::Complex { .. } => [2 * real, 2 * real],
            FourierKind::FromReal => [real, 2 * real],
            FourierKind::ToReal => [2 * real, real],
        }
    }

    /// Returns the bytes from the first to the end of the last number of input and output.
    pub fn bytes(&self) -> [u64; 2] {
        let ([input, output], [of_input, of_output]) = (self.counts(), self.widths());
        let [step, distance] = self.input_strides;
        let reach = 1 + step * (input - 1) + distance * (self.batch - 1);
        [reach * of_input, self.batch * output * of_output]
    }

    /// Returns why these sizes are not a valid transform; `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        if !(1..=3).contains(&self.rank) {
            return Some(format!("a transform over {} dimensions: it is 1 to 3", self.rank));
        }
        if self.sizes.iter().chain([&self.batch]).any(|&size| size == 0 || size > i32::MAX as u64) {
            return Some("a size is 0, or more than 2^31 - 1".to_owned());
        }
        if ![ElementFormat::R_32F, ElementFormat::R_64F].contains(&self.format) {
            return Some(format!("numbers of format {} are not transformed", self.format.0));
        }
        let [step, distance] = self.input_strides;
        let mut factors = self.extents().iter().chain([&self.batch]);
        let elements = factors.try_fold(64_u64, |bytes, &size| bytes.checked_mul(size));
        let reach = step.checked_mul(self.sizes[0]).zip(distance.checked_mul(self.batch));
        if elements.is_none_or(|bytes| bytes >= 1 << 60)
            || reach.is_none_or(|(one, other)| one >= 1 << 56 || other >= 1 << 56)
        {
            return Some("the operands are larger than any memory".to_owned());
        }
        let is_contiguous = self.rank == 1 || [step, distance] == [1, self.counts()[0]];
        (!is_contiguous).then(|| "transforms over several dimensions are contiguous".to_owned())
    }
}

impl From<FourierCall> for GpuCall {
    fn from(call: FourierCall) -> Self {
        Self::Fourier(call)
    }
}
