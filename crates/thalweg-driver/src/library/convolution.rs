//! Convolution, as data: a call of a vendor's library ([`GpuCall::Convolution`](crate::GpuCall::Convolution)).
//!
//! For image `n`, output channel `k` of group `g`, input channel `c` of that group, output position `p` and kernel position
//! `r`:
//!
//! ```text
//! y[n, k, p]            = Σ_c Σ_r w[k, c, r] · x[n, g·C + c, p·stride + r·dilation − padding]
//! ```
//!
//! where positions outside of the input count as 0 and `C` is the number of input channels of a group. The gradients of
//! input and weight are the transposes of this sum: each of the three operands is computed from the other two.

use crate::library::ElementFormat;
use crate::{DevicePointer, GpuCall};

/// The sizes of a convolution of volumes. Images have a depth of 1, and sequences also a height of 1; the remaining sizes
/// are the last ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvolutionShape {
    /// Images.
    pub batch: u64,
    /// Channels of the input, in all groups.
    pub input_channels: u64,
    /// Channels of the output, in all groups.
    pub output_channels: u64,
    /// Groups that divide the channels; each group is independent. A divisor of both numbers of channels.
    pub groups: u64,
    /// The extents of the input.
    pub input: [u64; 3],
    /// The extents of the kernel.
    pub kernel: [u64; 3],
    /// The extents of the output.
    pub output: [u64; 3],
    /// The distance between windows.
    pub stride: [u64; 3],
    /// The border of zeros, on both sides.
    pub padding: [u64; 3],
    /// The distance between elements of the kernel.
    pub dilation: [u64; 3],
    /// The format of all operands' elements: floats of 16 or 32 bits.
    pub format: ElementFormat,
    /// Whether the channels of a position are contiguous (NHWC), in all operands; else the positions of a channel are
    /// (NCHW).
    pub channels_last: bool,
}

/// The operand that a convolution call computes from the other two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvolutionPass {
    /// The output.
    Forward,
    /// The gradient of the input, computed from the output's gradient and the weight.
    InputGradient,
    /// The gradient of the weight, computed from the output's gradient and the input.
    WeightGradient,
}

/// An addition to the output of a forward pass: `y + bias[k]`, followed by `max(y, 0)` if `relu` is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvolutionEpilogue {
    /// One element per output channel, aligned to 16 bytes.
    pub bias: DevicePointer,
    /// Whether the rectified linear unit is applied.
    pub relu: bool,
}

/// One of the three passes of a convolution. Operands are contiguous in the layout of the shape.
///
/// [`Driver::library_workspace`](crate::Driver::library_workspace) returns the size of the workspace that a call needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConvolutionCall {
    /// The sizes.
    pub shape: ConvolutionShape,
    /// The operand that is written; the other two are read.
    pub pass: ConvolutionPass,
    /// The input, or its gradient: aligned to 16 bytes, like the next two.
    pub input: DevicePointer,
    /// The weight, or its gradient, of shape [output channels, input channels / groups, kernel].
    pub weight: DevicePointer,
    /// The output, or its gradient.
    pub output: DevicePointer,
    /// Whether 32-bit floats may be rounded to TF32 before they are multiplied.
    pub allow_tf32: bool,
    /// Whether the same operands must result in the same bits each time.
    pub deterministic: bool,
    /// The addition to the output before it is rounded; `None` except in a forward pass.
    pub epilogue: Option<ConvolutionEpilogue>,
    /// The number of the library's engines that may be tried at the first call with such sizes; the fastest is kept. With
    /// at most one, the library's heuristics choose. A call that tries engines *blocks*; a call that is captured tries
    /// none.
    pub most_engines: u32,
    /// The workspace that the library may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

impl ConvolutionShape {
    /// Returns the extent of the output along an axis, as the other sizes determine it; `None` if no window fits.
    pub fn windows(&self, axis: usize) -> Option<u64> {
        let reach = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?.checked_add(1)?;
        let padded = self.padding[axis].checked_mul(2)?.checked_add(self.input[axis])?;
        padded.checked_sub(reach)?.checked_div(self.stride[axis])?.checked_add(1)
    }

    /// Returns the numbers of elements of input, weight and output; `None` if they exceed any memory.
    pub fn elements(&self) -> Option<[u64; 3]> {
        let product = |sizes: [u64; 2], extents: [u64; 3]| {
            sizes
                .into_iter()
                .chain(extents)
                .try_fold(1_u64, u64::checked_mul)
                .filter(|&count| count < 1 << 60)
        };
        let of_group = self.input_channels.checked_div(self.groups)?;
        Some([
            product([self.batch, self.input_channels], self.input)?,
            product([self.output_channels, of_group], self.kernel)?,
            product([self.batch, self.output_channels], self.output)?,
        ])
    }

    /// Returns why these sizes are not a valid convolution; `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        let sizes = [self.batch, self.input_channels, self.output_channels, self.groups];
        let extents = [self.input, self.kernel, self.output, self.stride, self.dilation];
        if sizes.iter().chain(extents.iter().flatten()).any(|&size| size == 0 || size > i32::MAX as u64) {
            return Some("a size is 0, or more than 2^31 - 1".to_owned());
        }
        let Self { input_channels, output_channels, groups, .. } = *self;
        if !input_channels.is_multiple_of(groups) || !output_channels.is_multiple_of(groups) {
            return Some(format!(
                "{input_channels} and {output_channels} channels do not divide evenly over {groups} groups"
            ));
        }
        if self.elements().is_none() {
            return Some("the operands are larger than any memory".to_owned());
        }
        let wrong = (0..3).find(|&axis| self.windows(axis) != Some(self.output[axis]))?;
        Some(format!(
            "an output of {} along axis {wrong}, where the windows over the input are {}",
            self.output[wrong],
            self.windows(wrong).unwrap_or(0)
        ))
    }
}

impl From<ConvolutionCall> for GpuCall {
    fn from(call: ConvolutionCall) -> Self {
        Self::Convolution(call)
    }
}
