//! [`GridSample`]: images at the points of a grid, whose coordinates are −1 to 1 along each axis, and the gradients of both.
//!
//! A thread handles one point of the grid, for all channels or a share of them: it computes the positions and weights once. The gradient
//! of a point of the grid is a sum over the channels, which threads of a block share if there are few points. Backward a thread adds to the input's gradient, which several points share, so the order of these additions differs from run to run on a GPU. The
//! host function adds in the order of the points.

mod host;

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostKernel};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x};
use crate::operands::span;
use crate::planes::{MOST_PLANES, over_planes};
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
    /// Points outside of the image are zeros.
    Zeros,
    /// Points outside of the image are those of the border.
    Border,
    /// Points outside of the image are mirrored at its border.
    Reflection,
}

impl Interpolation {
    /// Every interpolation, in the order of PyTorch's numbers.
    pub const ALL: [Self; 3] = [Self::Linear, Self::Nearest, Self::Cubic];

    /// Returns the number of elements, along each axis, that a point is computed from.
    const fn taps(self) -> usize {
        match self {
            Self::Linear => 2,
            Self::Nearest => 1,
            Self::Cubic => 4,
        }
    }
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
/// The number of blocks below which several threads share the channels of a point for the gradients, and the most that do.
const BLOCKS: u64 = 1 << 9;
const MOST_SLICES: u64 = 8;

/// A variant of the kernel: an interpolation, forward or backward, of elements of a dtype.
type Variant = (Interpolation, bool, DType);

fn name((interpolation, backward, dtype): Variant) -> String {
    format!(
        "grid_sample_{}{}_{}",
        interpolation.taps(),
        if backward { "_backward" } else { "" },
        dtype.name()
    )
}

fn variants() -> impl Iterator<Item = Variant> {
    let passes = Interpolation::ALL.into_iter().flat_map(|by| [false, true].map(|backward| (by, backward)));
    passes.flat_map(|(by, backward)| FLOATS.map(|dtype| (by, backward, dtype)))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    variants().map(|variant| (name(variant), print(variant)))
}

fn print(variant: Variant) -> String {
    let (interpolation, backward, dtype) = variant;
    Source::new(&name(variant))
        .elements(dtype)
        .define("TAPS", interpolation.taps())
        .flag("BACKWARD", backward)
        .print(include_str!("kernel.cu"))
}

impl GridSample {
    const fn variant(&self) -> Variant {
        (self.interpolation, self.backward, self.dtype)
    }

    /// Returns the number of elements, counted from the first, of the input, the grid, and the result or its gradient.
    fn spans(&self) -> [u64; 3] {
        let ([height, width], [rows, columns]) = (self.extents, self.points);
        [
            span([self.batch, self.channels, height, width], self.input_strides),
            span([self.batch, rows, columns, 2], self.grid_strides),
            span([self.batch, self.channels, rows, columns], self.output_strides),
        ]
    }

    /// Returns the number of points of the grid of all images.
    const fn all_points(&self) -> u64 {
        self.batch * self.points[0] * self.points[1]
    }

    /// Returns the number of threads that share the channels of a point: each has every channel after as many.
    fn slices(&self) -> u64 {
        let wanted = (BLOCKS * BLOCK).div_ceil(self.all_points().max(1)).next_power_of_two();
        if self.backward { wanted.min(MOST_SLICES).min(self.channels.max(1).next_power_of_two()) } else { 1 }
    }

    /// Returns the number of elements of the input's gradient, and of the grid's.
    const fn gradients(&self) -> [u64; 2] {
        let ([height, width], [rows, columns]) = (self.extents, self.points);
        [self.batch * self.channels * height * width, self.batch * rows * columns * 2]
    }
}

/// Operands: the input; the grid; the result, or its gradient; the input's gradient, to which is added, in the dtype of sums; and the
/// grid's gradient. The addresses of both gradients are null in the forward pass; in the backward pass, that of a gradient which is
/// not wanted is null.
impl NativeKernel for Placed<GridSample, [DevicePointer; 5]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        static NAMES: std::sync::OnceLock<Vec<(Variant, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| variants().map(|of| (of, name(of))).collect());
        let own = self.kernel.variant();
        names.iter().find(|(of, _)| *of == own).map_or("grid_sample", |(_, name)| name)
    }

    fn source(&self) -> String {
        print(self.kernel.variant())
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(host::run)
    }

    fn check(&self) -> Result<(), Fault> {
        let GridSample { batch, channels, extents, points, dtype, .. } = self.kernel;
        let is_small = |numbers: [u64; 2]| numbers[0].saturating_mul(numbers[1]) < 1 << 31;
        let is_supported = FLOATS.contains(&dtype)
            && is_small(extents)
            && is_small(points)
            && self.kernel.all_points() < 1 << 31
            && channels <= MOST_PLANES;
        Fault::unless(is_supported, || {
            format!(
                "grid_sample: {batch} {dtype} images {extents:?} at {points:?} points are not supported: convert to a float, or divide the batch \
                 or the grid"
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let (points, slices) = (self.kernel.all_points(), self.kernel.slices());
        match self.kernel.backward {
            true => along_x((points * slices).div_ceil(BLOCK), BLOCK),
            false => over_planes(points, self.kernel.channels),
        }
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        words.push(self.kernel.slices());
        words
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
