//! [`Resample`]: planes of another size, each point computed from a few points of the old plane, and the gradient.
//!
//! Along each axis a new point is a weighted sum of one, two or four old ones ([`ResampleBy`]): the nearest, interpolated linearly
//! or cubically, or one that pads the old axis. The gradient of an old point is the sum over the new points that are computed from
//! it, which a thread finds by inverting the positions. So several threads never add to one sum, and results always have the same
//! bits.
//!
//! The planes that are read have any strides; those that are written are contiguous, in the order of the shape or with the
//! channels innermost. The host function (`host`) computes in the same order.

mod host;

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostKernel};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, Words};
use crate::source::Source;

/// The rule by which a new point is computed from old ones. The `Corners` variants place the first and the last points of both
/// axes on each other, the others their outer edges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ResampleBy {
    /// The point at or before the position of the new point's lower edge.
    Nearest,
    /// The point whose interval contains the position of the new point's centre.
    NearestExact,
    /// The axis with padding that mirrors it at its first and last points.
    Reflected,
    /// The axis with padding that repeats its first and last points.
    Replicated,
    /// The axis with padding from its other end.
    Circular,
    /// Interpolation between two points.
    Linear,
    /// Interpolation between two points, with corners aligned.
    LinearCorners,
    /// Cubic convolution of four points (R. Keys, 1981, with A = −3/4).
    Cubic,
    /// Cubic convolution of four points, with corners aligned.
    CubicCorners,
}

impl ResampleBy {
    /// Every rule, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Nearest,
        Self::NearestExact,
        Self::Reflected,
        Self::Replicated,
        Self::Circular,
        Self::Linear,
        Self::LinearCorners,
        Self::Cubic,
        Self::CubicCorners,
    ];

    /// Returns the number of old points, along each axis, that a new one is computed from.
    const fn taps(self) -> usize {
        match self {
            Self::Linear | Self::LinearCorners => 2,
            Self::Cubic | Self::CubicCorners => 4,
            _ => 1,
        }
    }
}

/// The sizes of a launch: planes along three axes; planes of fewer axes have leading extents of 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Resample {
    /// The number of images.
    pub images: u64,
    /// The number of planes of an image.
    pub channels: u64,
    /// The extents of an old plane.
    pub source: [u64; 3],
    /// The extents of a new plane.
    pub target: [u64; 3],
    /// The distance between new points, in old ones; not used by the rules that pad.
    pub scale: [f64; 3],
    /// The number of points before the old ones, for the rules that pad.
    pub before: [i64; 3],
    /// The strides of the tensor that is read, in elements: images, channels, and the three axes.
    pub strides: [u64; 5],
    /// Whether channels are innermost in the tensor that is written.
    pub channels_last: bool,
    /// The rule.
    pub by: ResampleBy,
    /// The dtype of the elements: a floating-point type. 16-bit floats are summed in f32.
    pub dtype: DType,
    /// Whether old planes are written: the gradient.
    pub backward: bool,
}

arguments! { Resample { images, channels, source, target, scale, before, strides, channels_last, by, dtype, backward } }
choices! { ResampleBy: ResampleBy::ALL }

/// Threads of a block over planes of at least [`LARGE`] points; half as many over smaller ones.
const BLOCK: u64 = 256;
/// The number of points of a large plane.
const LARGE: u64 = 1 << 11;
/// The number of blocks from which a thread computes the same point of several planes.
const BLOCKS: u64 = 1 << 13;
/// The most blocks along the second axis of a grid.
const MOST_PLANES: u64 = 65_535;
/// The greatest extent of an axis: twice as many points still have numbers of 32 bits.
const MOST_POINTS: u64 = 1 << 30;

const TAPS: [usize; 3] = [1, 2, 4];

fn name(taps: usize, backward: bool, dtype: DType) -> String {
    let pass = if backward { "_backward" } else { "" };
    format!("resample_{taps}{pass}_{}", dtype.name())
}

/// Returns every variant of the kernel.
fn variants() -> impl Iterator<Item = (usize, bool, DType)> {
    let passes = TAPS.into_iter().flat_map(|taps| [false, true].map(|backward| (taps, backward)));
    passes.flat_map(|(taps, backward)| FLOATS.map(|dtype| (taps, backward, dtype)))
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    variants().map(|(taps, backward, dtype)| (name(taps, backward, dtype), print(taps, backward, dtype)))
}

fn print(taps: usize, backward: bool, dtype: DType) -> String {
    Source::new(&name(taps, backward, dtype))
        .elements(dtype)
        .define("TAPS", taps)
        .flag("BACKWARD", backward)
        .print(include_str!("source.cu"))
}

impl Resample {
    /// Returns the extents of the planes that are read, and of those that are written.
    const fn passes(&self) -> [[u64; 3]; 2] {
        if self.backward { [self.target, self.source] } else { [self.source, self.target] }
    }

    /// Returns whether every new point is computed from points of the old plane.
    fn reads_inside(&self) -> bool {
        (0..3).all(|axis| {
            let [extent, size] = [self.source, self.target].map(|extents| extents[axis] as i64);
            let (before, after) =
                (self.before[axis], size.saturating_sub(extent).saturating_sub(self.before[axis]));
            let most = match self.by {
                ResampleBy::Reflected => extent - 1,
                ResampleBy::Circular => extent,
                ResampleBy::Replicated => MOST_POINTS as i64,
                _ => return before == 0,
            };
            size == 0 || extent == 0 || [before, after].iter().all(|&side| (-extent..=most).contains(&side))
        })
    }

    /// Returns the number of elements of the tensor that is read, counted from its first; 0 if nothing is read.
    fn span(&self) -> u64 {
        let [[z, y, x], _] = self.passes();
        let extents = [self.images, self.channels, z, y, x];
        if extents.contains(&0) || self.written() == 0 {
            return 0;
        }
        1 + extents.iter().zip(self.strides).map(|(extent, stride)| (extent - 1) * stride).sum::<u64>()
    }

    /// Returns the number of elements that are written.
    fn written(&self) -> u64 {
        self.images * self.channels * self.passes()[1].iter().product::<u64>()
    }

    /// Returns the number of elements that the threads of one layer of blocks write, and the number of layers.
    fn layers(&self) -> (u64, u64) {
        let points = self.passes()[1].iter().product::<u64>();
        match self.channels_last {
            true => (points * self.channels, self.images),
            false => (points, self.images * self.channels),
        }
    }
}

/// Operands: the planes that are read, and those that are written.
impl NativeKernel for Placed<Resample, [DevicePointer; 2]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        type Variant = (usize, bool, DType);
        static NAMES: std::sync::OnceLock<Vec<(Variant, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| variants().map(|of| (of, name(of.0, of.1, of.2))).collect());
        let Resample { by, backward, dtype, .. } = self.kernel;
        let own = (by.taps(), backward, dtype);
        names.iter().find(|(of, _)| *of == own).map_or("resample", |(_, name)| name)
    }

    fn source(&self) -> String {
        print(self.kernel.by.taps(), self.kernel.backward, self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(host::run)
    }

    fn check(&self) -> Result<(), Fault> {
        let Resample { source, target, dtype, .. } = self.kernel;
        if !FLOATS.contains(&dtype) {
            return Err(Fault::new(format!("resample: {dtype} is not supported; convert to a float")));
        }
        let is_small = |numbers: &[u64]| {
            let all = numbers.iter().try_fold(1_u64, |all, &number| all.checked_mul(number));
            all.is_some_and(|all| all < 1 << 31)
        };
        let fits = source.iter().chain(&target).all(|&extent| extent <= MOST_POINTS)
            && is_small(&source)
            && is_small(&target)
            && self.kernel.layers().0 < 1 << 31;
        if !self.kernel.reads_inside()
            || (!self.kernel.backward && self.kernel.written() > 0 && source.contains(&0))
        {
            return Err(Fault::new(format!(
                "resample: planes {source:?} have no points for those of {target:?}, {:?} points after the first; pad less",
                self.kernel.before
            )));
        }
        match fits {
            true => Ok(()),
            false => Err(Fault::new(format!(
                "resample: planes {source:?} and {target:?} are too large: an axis has at most {MOST_POINTS} points and a plane fewer \
                 than 2³¹; divide the images"
            ))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let (count, layers) = self.kernel.layers();
        if count * layers == 0 {
            return None;
        }
        // Small planes leave fewer threads of small blocks idle.
        let block = if count < LARGE { BLOCK / 2 } else { BLOCK };
        let (blocks, at_once) = (count.div_ceil(block), (block / count).max(1));
        let rounds = layers.div_ceil(at_once);
        let wanted = if self.kernel.backward { rounds } else { BLOCKS.div_ceil(blocks).min(rounds) };
        Some(LaunchShape {
            grid: [blocks as u32, wanted.clamp(1, MOST_PLANES) as u32, 1],
            block: [block as u32, 1, 1],
        })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let size = self.kernel.dtype.size_bytes() as u64;
        let [read, written] = self.at;
        Accesses::from_iter([
            Access::read(read, self.kernel.span() * size),
            Access::write(written, self.kernel.written() * size),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_source() {
        let list =
            include_str!("source.cu").split("enum By : u64 {").nth(1).and_then(|rest| rest.split('}').next());
        let names = list.expect("the source lists the rules").split(',').map(str::trim);
        let ours = ResampleBy::ALL.map(|by| format!("{by:?}").to_uppercase());
        assert!(names.map(|name| name.replace('_', "")).eq(ours));
        assert!(ResampleBy::ALL.iter().enumerate().all(|(number, &by)| by as usize == number));
    }
}
