//! [`GridSample`]: images at the points of a grid, whose coordinates are −1 to 1 along each axis, and the gradients of both.
//!
//! A thread handles one point of the grid, for all channels or a share of them: it computes the positions and weights once. Backward
//! it adds to the input's gradient, which several points share, so the order of these additions differs from run to run on a GPU. The
//! host function adds in the order of the points.

mod host;

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostKernel};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, Words};
use crate::operands::span;
use crate::source::Source;

/// The elements that contribute to a point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Interpolation {
    /// The two nearest along each axis, linearly.
    Linear,
    /// The nearest.
    Nearest,
    /// The four nearest along each axis, by cubic convolution (R. Keys, 1981, with A = −3/4).
    Cubic,
}

/// The elements outside of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Padding {
    /// Zeros.
    Zeros,
    /// Those of the border.
    Border,
    /// Those of the image, mirrored at its border.
    Reflection,
}

impl Interpolation {
    /// Every interpolation, in the order of PyTorch's numbers.
    pub const ALL: [Self; 3] = [Self::Linear, Self::Nearest, Self::Cubic];
}

impl Padding {
    /// Every padding, in the order of PyTorch's numbers.
    pub const ALL: [Self; 3] = [Self::Zeros, Self::Border, Self::Reflection];
}

/// The sizes of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GridSample {
    /// The number of images, each with its own points.
    pub batch: u64,
    /// The number of planes of an image.
    pub channels: u64,
    /// Height and width of a plane.
    pub extents: [u64; 2],
    /// Height and width of the grid.
    pub points: [u64; 2],
    /// The strides of the input (batch, channels, height, width), in elements.
    pub input_strides: [u64; 4],
    /// The strides of the grid (batch, height, width, coordinates).
    pub grid_strides: [u64; 4],
    /// The strides of the result, or of its gradient (batch, channels, height, width).
    pub output_strides: [u64; 4],
    /// The elements that contribute to a point.
    pub interpolation: Interpolation,
    /// The elements outside of an image.
    pub padding: Padding,
    /// Whether −1 and 1 are the centres of the first and the last element, rather than their outer edges.
    pub align_corners: bool,
    /// The dtype of the elements: a floating-point type. 16-bit floats are computed in f32.
    pub dtype: DType,
    /// Whether the gradients are computed.
    pub backward: bool,
}

arguments! {
    GridSample {
        batch, channels, extents, points, input_strides, grid_strides, output_strides, interpolation, padding, align_corners, dtype,
        backward
    }
}
choices! { Interpolation: Interpolation::ALL }
choices! { Padding: Padding::ALL }

/// Threads of a block.
const BLOCK: u64 = 256;
/// The most blocks of a grid.
const MOST_BLOCKS: u64 = 1 << 20;
/// The number of blocks below which channels are shared among blocks.
const BLOCKS: u64 = 1 << 11;
/// The most blocks along the second axis.
const MOST_SHARES: u64 = 65_535;

fn name(backward: bool, dtype: DType) -> String {
    format!("grid_sample{}_{}", if backward { "_backward" } else { "" }, dtype.name())
}

fn variants() -> impl Iterator<Item = (bool, DType)> {
    [false, true].into_iter().flat_map(|backward| FLOATS.map(|dtype| (backward, dtype)))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    variants().map(|(backward, dtype)| (name(backward, dtype), print(backward, dtype)))
}

fn print(backward: bool, dtype: DType) -> String {
    Source::new(&name(backward, dtype))
        .elements(dtype)
        .flag("BACKWARD", backward)
        .print(include_str!("kernel.cu"))
}

impl GridSample {
    /// Returns the number of elements, counted from the first, of the input, the grid, and the result or its gradient.
    fn spans(&self) -> [u64; 3] {
        let ([height, width], [rows, columns]) = (self.extents, self.points);
        [
            span([self.batch, self.channels, height, width], self.input_strides),
            span([self.batch, rows, columns, 2], self.grid_strides),
            span([self.batch, self.channels, rows, columns], self.output_strides),
        ]
    }

    /// Returns the number of elements of the input's gradient, and of the grid's.
    const fn gradients(&self) -> [u64; 2] {
        let ([height, width], [rows, columns]) = (self.extents, self.points);
        [self.batch * self.channels * height * width, self.batch * rows * columns * 2]
    }
}

/// Operands: the input; the grid; the result, or its gradient; the input's gradient, which is added to, in the dtype of sums; and the
/// grid's gradient. Forward the gradients have null addresses, and backward one that is not wanted.
impl NativeKernel for Placed<GridSample, [DevicePointer; 5]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        static NAMES: std::sync::OnceLock<Vec<((bool, DType), String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| variants().map(|of| (of, name(of.0, of.1))).collect());
        let own = (self.kernel.backward, self.kernel.dtype);
        names.iter().find(|(of, _)| *of == own).map_or("grid_sample", |(_, name)| name)
    }

    fn source(&self) -> String {
        print(self.kernel.backward, self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(host::run)
    }

    fn check(&self) -> Result<(), Fault> {
        let GridSample { extents, points, dtype, .. } = self.kernel;
        let is_small = |numbers: [u64; 2]| numbers[0].saturating_mul(numbers[1]) < 1 << 31;
        Fault::unless(FLOATS.contains(&dtype) && is_small(extents) && is_small(points), || {
            format!(
                "grid_sample: {dtype} images {extents:?} at {points:?} points are not supported: convert to a float, or divide the grid"
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let GridSample { batch, channels, points: [rows, columns], backward, .. } = self.kernel;
        let blocks = (batch * rows * columns).div_ceil(BLOCK);
        let shares = if backward { 1 } else { BLOCKS.div_ceil(blocks.max(1)).min(channels) };
        let is_nothing = blocks == 0 || channels == 0 && !backward;
        (!is_nothing).then(|| LaunchShape {
            grid: [blocks.min(MOST_BLOCKS) as u32, shares.clamp(1, MOST_SHARES) as u32, 1],
            block: [BLOCK as u32, 1, 1],
        })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let size = self.kernel.dtype.size_bytes() as u64;
        let wide = self.kernel.dtype.compute().size_bytes() as u64;
        let ([input, grid, output], [of_input, of_grid]) = (self.kernel.spans(), self.kernel.gradients());
        let [input_at, grid_at, output_at, of_input_at, of_grid_at] = self.at;
        let mut list =
            Accesses::from_iter([Access::read(input_at, input * size), Access::read(grid_at, grid * size)]);
        if !self.kernel.backward {
            list.push(Access::write(output_at, output * size));
            return list;
        }
        list.push(Access::read(output_at, output * size));
        if of_input_at.address() != 0 {
            list.extend([
                Access::read(of_input_at, of_input * wide),
                Access::write(of_input_at, of_input * wide),
            ]);
        }
        if of_grid_at.address() != 0 {
            list.push(Access::write(of_grid_at, of_grid * size));
        }
        list
    }
}
