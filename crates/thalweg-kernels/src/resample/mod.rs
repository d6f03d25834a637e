//! [`Resample`]: planes of another size, each point computed from a few points of the old plane, and the gradient.
//!
//! Along each axis a new point is a weighted sum of one, two or four old ones ([`ResampleBy`]): the nearest, interpolated linearly
//! or cubically, or one that pads the old axis. The gradient of an old point is the sum over the new points that are computed from
//! it, which a thread finds by inverting the positions; up to eight along an axis are kept in registers, with their weights, for
//! all planes of the thread, which it reads some at a time. So several threads never add to one sum, and results always have the same bits. A new point that is one
//! old point is a copy, of elements of any dtype.
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
use crate::operands::span;
use crate::planes::{MOST_PLANES, over_planes};
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
    /// The dtype of the elements: any of up to 8 bytes for copies, else a floating-point type. 16-bit floats are summed in f32.
    pub dtype: DType,
    /// Whether old planes are written: the gradient.
    pub backward: bool,
}

arguments! { Resample { images, channels, source, target, scale, before, strides, channels_last, by, dtype, backward } }
choices! { ResampleBy: ResampleBy::ALL }

/// The greatest extent of an axis: twice as many points still have numbers of 32 bits.
const MOST_POINTS: u64 = 1 << 30;

/// The types of elements that are copied, one for each width, and the types in which their positions are computed.
const COPIED: [(usize, &str, &str); 4] =
    [(1, "u8", "f32"), (2, "u16", "f32"), (4, "u32", "f32"), (8, "u64", "f64")];

/// A variant of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// Copies of elements of so many bytes.
    Copy(usize),
    /// Sums of the products of old points, so many along each axis, and their weights.
    Forward(usize, DType),
    /// The gradient of both.
    Backward(usize, DType),
}

impl Variant {
    fn all() -> impl Iterator<Item = Self> {
        let copies = COPIED.into_iter().map(|(bytes, ..)| Self::Copy(bytes));
        let forward = [2, 4].into_iter().flat_map(|taps| FLOATS.map(|dtype| Self::Forward(taps, dtype)));
        let backward = [1, 2, 4].into_iter().flat_map(|taps| FLOATS.map(|dtype| Self::Backward(taps, dtype)));
        copies.chain(forward).chain(backward)
    }

    fn name(self) -> String {
        match self {
            Self::Copy(bytes) => format!("resample_copy_{bytes}"),
            Self::Forward(taps, dtype) => format!("resample_{taps}_{}", dtype.name()),
            Self::Backward(taps, dtype) => format!("resample_{taps}_backward_{}", dtype.name()),
        }
    }

    fn print(self) -> String {
        let source = Source::new(&self.name()).flag("BACKWARD", matches!(self, Self::Backward(..)));
        let source = match self {
            Self::Copy(bytes) => {
                let found = COPIED.into_iter().find(|(copied, ..)| *copied == bytes).unwrap_or(COPIED[0]);
                source.define("TAPS", 1).names(found.1, found.2, "", "")
            }
            Self::Forward(taps, dtype) | Self::Backward(taps, dtype) => {
                source.define("TAPS", taps).elements(dtype)
            }
        };
        source.print(include_str!("kernel.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Variant::all().map(|variant| (variant.name(), variant.print()))
}

impl Resample {
    fn variant(&self) -> Variant {
        match (self.by.taps(), self.backward) {
            (1, false) => Variant::Copy(self.dtype.size_bytes()),
            (taps, false) => Variant::Forward(taps, self.dtype),
            (taps, true) => Variant::Backward(taps, self.dtype),
        }
    }

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
            let least = -(MOST_POINTS as i64);
            size == 0 || extent == 0 || [before, after].iter().all(|&side| (least..=most).contains(&side))
        })
    }

    /// Returns the number of elements of the tensor that is read, counted from its first; 0 if nothing is read.
    fn span(&self) -> u64 {
        let [[z, y, x], _] = self.passes();
        match self.written() {
            0 => 0,
            _ => span([self.images, self.channels, z, y, x], self.strides),
        }
    }

    /// Returns whether the places of a plane that is read, counted from its first element, have numbers of 32 bits.
    fn reads_near(&self) -> bool {
        let [extents, _] = self.passes();
        let strides = [self.strides[2], self.strides[3], self.strides[4]];
        span(extents, strides) <= 1 << 32
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
        static NAMES: std::sync::OnceLock<Vec<(Variant, String)>> = std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| Variant::all().map(|variant| (variant, variant.name())).collect());
        let own = self.kernel.variant();
        names.iter().find(|(variant, _)| *variant == own).map_or("resample", |(_, name)| name)
    }

    fn source(&self) -> String {
        self.kernel.variant().print()
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(host::run)
    }

    fn check(&self) -> Result<(), Fault> {
        let Resample { source, target, dtype, .. } = self.kernel;
        let own = self.kernel.variant();
        if Variant::all().all(|variant| variant != own) {
            return Err(Fault::new(format!("resample: {dtype} is not supported; convert to a float")));
        }
        let is_small = |numbers: &[u64]| {
            let all = numbers.iter().try_fold(1_u64, |all, &number| all.checked_mul(number));
            all.is_some_and(|all| all < 1 << 31)
        };
        let fits = source.iter().chain(&target).all(|&extent| extent <= MOST_POINTS)
            && is_small(&source)
            && is_small(&target)
            && self.kernel.reads_near()
            && self.kernel.layers().0 < 1 << 31
            && self.kernel.layers().1 <= MOST_PLANES;
        if !self.kernel.reads_inside()
            || (!self.kernel.backward && self.kernel.written() > 0 && source.contains(&0))
        {
            return Err(Fault::new(format!(
                "resample: planes {source:?} have no points for those of {target:?}, {:?} points after the first; pad less",
                self.kernel.before
            )));
        }
        Fault::unless(fits, || {
            format!(
                "resample: planes {source:?} and {target:?} are too large: an axis has at most {MOST_POINTS} points and a plane fewer \
                 than 2³¹; divide the images"
            )
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let (count, layers) = self.kernel.layers();
        over_planes(count, layers)
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
            include_str!("kernel.cu").split("enum By : u64 {").nth(1).and_then(|rest| rest.split('}').next());
        let names = list.expect("the source lists the rules").split(',').map(str::trim);
        let ours = ResampleBy::ALL.map(|by| format!("{by:?}").to_uppercase());
        assert!(names.map(|name| name.replace('_', "")).eq(ours));
        assert!(ResampleBy::ALL.iter().enumerate().all(|(number, &by)| by as usize == number));
    }
}
