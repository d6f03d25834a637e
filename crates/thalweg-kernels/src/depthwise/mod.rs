//! [`Depthwise`]: a convolution whose groups have one channel each, with square windows or lines, and its gradients.
//!
//! The library's engines for windows at distance 2, and for large ones, take several times as long as ours. Windows that are lines, also
//! those of convolutions along one axis, have any number of elements. A point of the output is a sum over its window, one of
//! the input's gradient a sum over the windows that contain it; a thread computes it for several images at once. The weight's gradient is
//! a sum over all windows of a channel, which warps compute in [parts](Depthwise::parts), four windows of a row at a time; the caller adds
//! the parts. Operands have any strides, so parts of wider tensors need no copy. The host function adds in the order of the points.

mod host;

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostKernel};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::native::{Accesses, NativeKernel, Placed, Words};
use crate::operands::span;
use crate::planes::over_planes_of;
use crate::source::Source;

/// The tensor that a launch computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DepthwisePass {
    /// The output, from input, weight and bias.
    Output,
    /// The gradient of the input, from that of the output and the weight.
    Input,
    /// The gradient of the weight, from that of the output and the input.
    Weight,
}

impl DepthwisePass {
    const ALL: [Self; 3] = [Self::Output, Self::Input, Self::Weight];
}

/// The sizes of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Depthwise {
    /// The number of images.
    pub images: u64,
    /// The number of channels, of input and output.
    pub channels: u64,
    /// The extents of an input's plane.
    pub input: [u64; 2],
    /// The extents of an output's plane.
    pub output: [u64; 2],
    /// The padding before each axis.
    pub padding: [u64; 2],
    /// The strides (images, channels, height, width) of the output or its gradient, and of the input or its gradient.
    pub strides: [[u64; 4]; 2],
    /// Whether neighbouring threads have neighbouring channels.
    pub channels_last: bool,
    /// The extents of a window: equal, or 1 and the number of elements of a line.
    pub kernel: [u64; 2],
    /// The distance from one window to the next.
    pub stride: u64,
    /// The dtype of the elements. 16-bit floats are summed in f32.
    pub dtype: DType,
    /// The tensor that is computed.
    pub pass: DepthwisePass,
}

arguments! {
    Depthwise { images, channels, input, output, padding, strides, channels_last, kernel, stride, dtype, pass }
}
choices! { DepthwisePass: DepthwisePass::ALL }

/// The windows and their distances for which there are kernels, and the dtypes.
const KERNELS: [u64; 4] = [3, 5, 7, 9];
const STRIDES: [u64; 2] = [1, 2];
/// The most elements of a window that is a line.
const LONGEST_LINE: u64 = 1 << 20;
/// The elements of a line whose gradients a block computes.
const COLUMNS: u64 = 16;
/// The neighbouring points of a line that a thread computes.
const LINE_RUN: u64 = 8;
/// The extent of windows from which on the library is slower at every distance and in every layout.
const LARGE: u64 = 9;
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Threads of a block, and its warps.
const BLOCK: u64 = 256;
const WARPS: u64 = 8;
/// The windows of a row that a lane handles at once, and the fewest such runs of a lane in each of several parts.
const RUN: u64 = 4;
const LEAST_RUNS: u64 = 4;
/// The number of warps that keep a GPU busy, and that number where each writes the sums of 32 channels.
const MANY_WARPS: u64 = 1 << 13;
const MANY_WIDE_WARPS: u64 = 1 << 11;

/// Returns whether our kernels are faster than the library's for square windows of this extent and distance.
const fn is_faster([kernel, stride]: [u64; 2], channels_last: bool) -> bool {
    kernel >= LARGE || stride == 2 && !channels_last
}

/// The windows of a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    /// Squares of an extent at a distance.
    Squares { kernel: u64, stride: u64 },
    /// Lines of any number of elements along the last axis at distance 1.
    Lines,
}

/// A variant of a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Variant {
    pass: DepthwisePass,
    /// Whether lanes of the weight's gradient have a channel each.
    is_wide: bool,
    windows: Windows,
    dtype: DType,
}

impl Variant {
    fn all() -> impl Iterator<Item = Self> {
        let forms = [
            (DepthwisePass::Output, false),
            (DepthwisePass::Input, false),
            (DepthwisePass::Weight, false),
            (DepthwisePass::Weight, true),
        ];
        let squares = |kernel| STRIDES.map(|stride| Windows::Squares { kernel, stride });
        let windows = KERNELS.into_iter().flat_map(squares).chain([Windows::Lines]);
        let all = windows.flat_map(move |windows| {
            let forms = forms.into_iter();
            forms.flat_map(move |(pass, is_wide)| DTYPES.map(|dtype| Self { pass, is_wide, windows, dtype }))
        });
        all.filter(|variant| match variant.windows {
            Windows::Squares { kernel, stride } => is_faster([kernel, stride], variant.is_wide),
            Windows::Lines => true,
        })
    }

    fn name(&self) -> String {
        let form = match (self.pass, self.is_wide) {
            (DepthwisePass::Output, _) => "output",
            (DepthwisePass::Input, _) => "input",
            (DepthwisePass::Weight, false) => "weight",
            (DepthwisePass::Weight, true) => "weight_wide",
        };
        match self.windows {
            Windows::Squares { kernel, stride } => {
                format!("depthwise_{form}_{kernel}_{stride}_{}", self.dtype.name())
            }
            Windows::Lines => format!("depthwise_{form}_line_{}", self.dtype.name()),
        }
    }

    fn print(&self) -> String {
        let name = self.name();
        let source = Source::new(&name).elements(self.dtype);
        let backward = self.pass != DepthwisePass::Output;
        let (rows, columns, stride) = match self.windows {
            Windows::Squares { kernel, stride } => (kernel, kernel, stride),
            Windows::Lines => (1, COLUMNS, 1),
        };
        match (self.pass, self.windows) {
            (DepthwisePass::Weight, _) => source
                .define("ROWS", rows)
                .define("COLUMNS", columns)
                .define("STRIDE", stride)
                .flag("CHANNELS_LAST", self.is_wide)
                .print(include_str!("weight.cu")),
            (_, Windows::Squares { kernel, stride }) => source
                .define("KERNEL", kernel)
                .define("STRIDE", stride)
                .flag("BACKWARD", backward)
                .print(include_str!("points.cu")),
            (_, Windows::Lines) => source.flag("BACKWARD", backward).print(include_str!("line.cu")),
        }
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Variant::all().map(|variant| (variant.name(), variant.print()))
}

impl Depthwise {
    /// Returns whether there is a kernel for these windows, and it is faster than the library's.
    pub fn is_taken(&self) -> bool {
        let is_small = |extents: [u64; 2]| extents[0].saturating_mul(extents[1]) < 1 << 30;
        let inner = if self.channels_last { self.channels } else { 1 };
        let [rows, columns] = self.kernel;
        let has_kernel = match self.windows() {
            Windows::Squares { kernel, stride } => {
                rows == columns
                    && is_faster([kernel, stride], self.channels_last)
                    && KERNELS.contains(&kernel)
                    && STRIDES.contains(&stride)
            }
            Windows::Lines => {
                // The library computes these up to three times as fast.
                let is_of_library =
                    self.pass == DepthwisePass::Output && self.dtype == DType::F32 && self.input[0] == 1;
                let is_line = self.stride == 1 && self.padding[0] == 0;
                is_line && !is_of_library && (2..=LONGEST_LINE).contains(&columns)
            }
        };
        has_kernel
            && DTYPES.contains(&self.dtype)
            && is_small(self.input)
            && is_small(self.output)
            && self.padding.iter().all(|&padding| padding < 1 << 20)
            && [self.input, self.output]
                .iter()
                .all(|[height, width]| (height * width).saturating_mul(inner) < 1 << 31)
            && self.images.saturating_mul(self.output[0] * self.output[1]) < 1 << 31
            && self.channels < 1 << 16
    }

    /// Returns the number of parts of the weight's gradient, each (channels, kernel, kernel): of several, sums in the dtype of these; a
    /// single one is the gradient itself.
    pub fn parts(&self) -> u64 {
        let runs = self.images * self.output[0] * self.output[1].div_ceil(RUN);
        let (lanes, warps) = match self.channels_last {
            true => (1, MANY_WIDE_WARPS / self.channels.div_ceil(32)),
            false => (32, MANY_WARPS / self.channels),
        };
        (runs / (lanes * LEAST_RUNS)).min(warps).max(1)
    }

    fn windows(&self) -> Windows {
        match self.kernel {
            [1, _] => Windows::Lines,
            [kernel, _] => Windows::Squares { kernel, stride: self.stride },
        }
    }

    fn variant(&self) -> Variant {
        let Self { pass, dtype, .. } = *self;
        let is_wide = pass == DepthwisePass::Weight && self.channels_last;
        Variant { pass, is_wide, windows: self.windows(), dtype }
    }

    /// Returns whether the rows of the input are closer in memory than its columns, so that neighbouring lanes have neighbouring rows.
    fn is_by_rows(&self) -> bool {
        let [_, [_, _, row, column]] = self.strides;
        row < column
    }

    /// Returns the number of elements, counted from the first, of the output's gradient, of the input or its gradient, and of the weight.
    fn spans(&self) -> [u64; 3] {
        let Self { images, channels, output, input, strides, .. } = *self;
        let of = |extents: [u64; 2], strides| span([images, channels, extents[0], extents[1]], strides);
        [of(output, strides[0]), of(input, strides[1]), channels * self.kernel[0] * self.kernel[1]]
    }
}

/// Operands: input, weight, output, and bias or a null address; or the gradient of the output, the weight, and the gradient of the input; or
/// the gradient of the output, the input, and the parts of the weight's gradient.
impl NativeKernel for Placed<Depthwise, [DevicePointer; 4]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        static NAMES: std::sync::OnceLock<Vec<(Variant, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| Variant::all().map(|variant| (variant, variant.name())).collect());
        let own = self.kernel.variant();
        names.iter().find(|(variant, _)| *variant == own).map_or("depthwise", |(_, name)| name)
    }

    fn source(&self) -> String {
        self.kernel.variant().print()
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(host::run)
    }

    fn check(&self) -> Result<(), Fault> {
        match self.kernel.is_taken() {
            true => Ok(()),
            false => Err(Fault::new(format!("there is no kernel for {:?}", self.kernel))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Depthwise { images, channels, input, output, channels_last, .. } = self.kernel;
        let points = |[height, width]: [u64; 2]| match self.kernel.windows() {
            Windows::Squares { .. } => height * width,
            Windows::Lines => height * width.div_ceil(LINE_RUN),
        };
        let (inner, apart) = if channels_last { (channels, 1) } else { (1, channels) };
        if images * channels == 0 {
            return None;
        }
        match self.kernel.pass {
            DepthwisePass::Output => over_planes_of(points(output) * inner, images, apart),
            DepthwisePass::Input => over_planes_of(points(input) * inner, images, apart),
            DepthwisePass::Weight => {
                let columns = if channels_last { channels.div_ceil(32) } else { channels };
                let blocks = self.kernel.parts().div_ceil(WARPS);
                let shares = match self.kernel.windows() {
                    Windows::Squares { .. } => 1,
                    Windows::Lines => self.kernel.kernel[1].div_ceil(COLUMNS),
                };
                let grid = [blocks, columns, shares].map(|extent| extent as u32);
                Some(LaunchShape { grid, block: [BLOCK as u32, 1, 1] })
            }
        }
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        if self.kernel.pass == DepthwisePass::Weight {
            words.push(self.kernel.parts());
        }
        words
    }

    fn accesses(&self) -> Accesses {
        let size = self.kernel.dtype.size_bytes() as u64;
        let ([output, input, weight], [first, second, result, bias]) = (self.kernel.spans(), self.at);
        let parts = self.kernel.parts();
        let sum = if parts == 1 { size } else { self.kernel.dtype.compute().size_bytes() as u64 };
        let [of_first, of_second, written] = match self.kernel.pass {
            DepthwisePass::Output => [input * size, weight * size, output * size],
            DepthwisePass::Input => [output * size, weight * size, input * size],
            DepthwisePass::Weight => [output * size, input * size, parts * weight * sum],
        };
        let of_bias = if bias.address() == 0 { 0 } else { self.kernel.channels * size };
        Accesses::from_iter([
            Access::read(first, of_first),
            Access::read(second, of_second),
            Access::read(bias, of_bias),
            Access::write(result, written),
        ])
    }
}
