//! Windows over planes of three axes; planes of one and two axes have leading extents of 1. A plane is an image's channel.
//!
//! A geometry defines the windows: at a stride, with padding and dilation, or adaptive, so that a given number of them covers
//! each axis. The operations on windows (columns, averages, maxima, and their transposes) are written once for both.

use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, ReduceOp, Scalar, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Space, scalar};

/// An extent or another number for each axis.
type PerAxis<'b> = [Value<'b>; 3];

/// The placement of windows.
#[allow(clippy::large_enum_variant)] // it exists only while a body is written
enum Geometry<'b> {
    Strided {
        extents: PerAxis<'b>,
        kernel: PerAxis<'b>,
        windows: PerAxis<'b>,
        stride: PerAxis<'b>,
        padding: PerAxis<'b>,
        dilation: PerAxis<'b>,
        /// Whether an average counts padding.
        counts_padding: Value<'b>,
        /// The divisor of an average, unless it is 0.
        divisor: Value<'b>,
    },
    Adaptive {
        extents: PerAxis<'b>,
        windows: PerAxis<'b>,
    },
}

impl<'b> Geometry<'b> {
    fn strided(b: &'b BodyBuilder) -> Self {
        let number = || scalar(b, DType::I64);
        let three = || [0; 3].map(|_| number());
        Self::Strided {
            extents: three(),
            kernel: three(),
            windows: three(),
            stride: three(),
            padding: three(),
            dilation: three(),
            counts_padding: number(),
            divisor: number(),
        }
    }

    fn adaptive(b: &'b BodyBuilder) -> Self {
        let three = || [0; 3].map(|_| scalar(b, DType::I64));
        Self::Adaptive { extents: three(), windows: three() }
    }

    fn extents(&self) -> PerAxis<'b> {
        match self {
            Self::Strided { extents, .. } | Self::Adaptive { extents, .. } => *extents,
        }
    }

    fn windows(&self) -> PerAxis<'b> {
        match self {
            Self::Strided { windows, .. } | Self::Adaptive { windows, .. } => *windows,
        }
    }

    /// Returns the first coordinate of an adaptive window, and the one after its last.
    fn span(extent: Value<'b>, windows: Value<'b>, window: Value<'b>) -> (Value<'b>, Value<'b>) {
        (window * extent / windows, ((window + 1) * extent + windows - 1) / windows)
    }

    /// Returns the coordinate of a place in a window, and whether it is inside the plane.
    fn at(&self, axis: usize, window: Value<'b>, place: Value<'b>) -> (Value<'b>, Value<'b>) {
        match self {
            Self::Strided { extents, stride, padding, dilation, .. } => {
                let at = window * stride[axis] + place * dilation[axis] - padding[axis];
                (at, at.ge(0).and(at.lt(extents[axis])))
            }
            Self::Adaptive { extents, windows } => {
                let (first, end) = Self::span(extents[axis], windows[axis], window);
                (first + place, (first + place).lt(end))
            }
        }
    }

    /// Returns, among the windows that can contain a coordinate, the one with number `back` (from the last backwards for strided
    /// windows, from the first forwards for adaptive ones), the place in it, and whether the window contains the coordinate
    /// there.
    fn window_of(&self, axis: usize, at: Value<'b>, back: Value<'b>) -> (Value<'b>, Value<'b>, Value<'b>) {
        match self {
            Self::Strided { kernel, windows, stride, padding, dilation, .. } => {
                let padded = at + padding[axis];
                let window = (padded / stride[axis]).minimum(windows[axis] - 1) - back;
                let reach = padded - window * stride[axis];
                let place = reach / dilation[axis];
                let exists = window.ge(0).and((place * dilation[axis]).eq(reach)).and(place.lt(kernel[axis]));
                (window, place, exists)
            }
            Self::Adaptive { extents, windows } => {
                let window = at * windows[axis] / extents[axis] + back;
                let (first, end) = Self::span(extents[axis], windows[axis], window);
                (window, at - first, window.lt(windows[axis]).and(first.le(at)).and(at.lt(end)))
            }
        }
    }

    /// Returns the divisor of an average over a window.
    fn divisor(&self, window: PerAxis<'b>) -> Value<'b> {
        match self {
            Self::Strided { extents, kernel, stride, padding, counts_padding, divisor, .. } => {
                let spans = [0, 1, 2].map(|axis| {
                    let first = window[axis] * stride[axis] - padding[axis];
                    let end = (first + kernel[axis]).minimum(extents[axis] + padding[axis]);
                    let inside = end.minimum(extents[axis]) - first.maximum(0);
                    counts_padding.eq(0).select(inside, end - first)
                });
                divisor.eq(0).select(spans[0] * spans[1] * spans[2], *divisor)
            }
            Self::Adaptive { extents, windows } => {
                let spans = [0, 1, 2].map(|axis| {
                    let (first, end) = Self::span(extents[axis], windows[axis], window[axis]);
                    end - first
                });
                spans[0] * spans[1] * spans[2]
            }
        }
    }

    /// Returns the coordinates of a place in a window, and whether all are inside the plane.
    fn point(&self, window: PerAxis<'b>, place: PerAxis<'b>) -> (PerAxis<'b>, Value<'b>) {
        let points = [0, 1, 2].map(|axis| self.at(axis, window[axis], place[axis]));
        (points.map(|(at, _)| at), points[0].1.and(points[1].1).and(points[2].1))
    }

    /// Returns the windows of coordinates, the places in them, and whether they exist.
    fn windows_of(&self, at: PerAxis<'b>, back: PerAxis<'b>) -> (PerAxis<'b>, PerAxis<'b>, Value<'b>) {
        let found = [0, 1, 2].map(|axis| self.window_of(axis, at[axis], back[axis]));
        let exists = found[0].2.and(found[1].2).and(found[2].2);
        (found.map(|(window, ..)| window), found.map(|(_, place, _)| place), exists)
    }
}

/// Returns the row-major index of coordinates in these extents.
fn linear<'b>(at: PerAxis<'b>, extents: PerAxis<'b>) -> Value<'b> {
    (at[0] * extents[1] + at[1]) * extents[2] + at[2]
}

fn volume(extents: PerAxis<'_>) -> Value<'_> {
    extents[0] * extents[1] * extents[2]
}

/// Returns the index in a tensor of planes of a place in the plane that a row's first coordinate selects.
fn in_planes<'b>(b: &'b BodyBuilder, extents: PerAxis<'b>, in_plane: Value<'b>) -> Value<'b> {
    b.index(Dimension::Row(0)) * volume(extents) + in_plane
}

fn rows(b: &BodyBuilder, first: u8) -> PerAxis<'_> {
    [0, 1, 2].map(|axis| b.index(Dimension::Row(first + axis)))
}

fn inner(b: &BodyBuilder) -> PerAxis<'_> {
    [0, 1, 2].map(|axis| b.index(Dimension::Inner(axis)))
}

const fn windows(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    rule: DTypeRule,
    outputs: &'static [OutputPlace],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp { name, doc, input_count, rule, space: Space::Coordinates, outputs, build, ..LoopOp::BASE }
}

/// The windows of planes as columns. Rows: plane, place in the window (three), window (three).
pub static UNFOLD_WINDOWS: LoopOp = windows(
    "unfold_windows",
    "The windows of planes as columns.",
    1,
    DTypeRule::Moved,
    &[OutputPlace::Row],
    |b, signature| {
        let planes = b.gathered_input(signature.inputs[0]);
        let geometry = Geometry::strided(b);
        let (at, inside) = geometry.point(rows(b, 4), rows(b, 1));
        let extents = geometry.extents();
        let place = b.index(Dimension::Row(0)) * volume(extents) + linear(at, extents);
        b.output(b.gather(planes, place, inside, Scalar::F64(0.0)), signature.outputs[0], OutputPlace::Row);
    },
);

/// The sum, at each point of a plane, of the column entries whose windows contain it: the transpose of [`UNFOLD_WINDOWS`]. Rows:
/// plane, coordinates; inner: the windows of a point.
pub static FOLD_WINDOWS: LoopOp = windows(
    "fold_windows",
    "The sum of all window entries at each point of a plane.",
    1,
    DTypeRule::Numeric,
    &[OutputPlace::Row],
    |b, signature| {
        let columns = b.gathered_input(signature.inputs[0]);
        let geometry = Geometry::strided(b);
        let (window, at, exists) = geometry.windows_of(rows(b, 1), inner(b));
        let Geometry::Strided { kernel, windows, .. } = geometry else { unreachable!("it is strided") };
        let column = b.index(Dimension::Row(0)) * volume(kernel) + linear(at, kernel);
        let place = column * volume(windows) + linear(window, windows);
        let value = b.gather(columns, place, exists, Scalar::F64(0.0)).to(signature.compute);
        b.output(b.reduce(ReduceOp::Sum, value), signature.outputs[0], OutputPlace::Row);
    },
);

/// Returns the mean over each window. Rows: plane, window; inner: places in a window.
fn average<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    geometry: impl Fn(&'b BodyBuilder) -> Geometry<'b>,
) {
    let planes = b.gathered_input(signature.inputs[0]);
    let geometry = geometry(b);
    let window = rows(b, 1);
    let (at, inside) = geometry.point(window, inner(b));
    let extents = geometry.extents();
    let place = in_planes(b, extents, linear(at, extents));
    let value = b.gather(planes, place, inside, Scalar::F64(0.0)).to(signature.compute);
    let sum = b.reduce(ReduceOp::Sum, value);
    b.output(sum / geometry.divisor(window).to(signature.compute), signature.outputs[0], OutputPlace::Row);
}

/// Returns the gradient of [`average`]. Rows: plane, coordinates; inner: the windows of a point.
fn average_backward<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    geometry: impl Fn(&'b BodyBuilder) -> Geometry<'b>,
) {
    let gradients = b.gathered_input(signature.inputs[0]);
    let geometry = geometry(b);
    let (at, back) = (rows(b, 1), inner(b));
    let (window, _, exists) = geometry.windows_of(at, back);
    let windows = geometry.windows();
    let place = in_planes(b, windows, linear(window, windows));
    let value = b.gather(gradients, place, exists, Scalar::F64(0.0)).to(signature.compute);
    let part = value / geometry.divisor(window).to(signature.compute);
    let part = exists.select(part, part.like(0.0));
    b.output(b.reduce(ReduceOp::Sum, part), signature.outputs[0], OutputPlace::Row);
}

/// Returns the lowest value of a dtype.
fn lowest(dtype: DType) -> Scalar {
    match dtype.is_signed() {
        _ if dtype.is_floating_point() => Scalar::F64(f64::NEG_INFINITY),
        true => Scalar::I64(i64::MIN >> (64 - 8 * dtype.size_bytes())),
        false => Scalar::I64(0),
    }
}

/// Returns the greatest element of each window and its place in the plane: the first among equals, or among NaNs. Rows: plane,
/// window; inner: places in a window.
fn greatest<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    geometry: impl Fn(&'b BodyBuilder) -> Geometry<'b>,
) {
    let planes = b.gathered_input(signature.inputs[0]);
    let geometry = geometry(b);
    let (window, place) = (rows(b, 1), inner(b));
    let (at, inside) = geometry.point(window, place);
    let extents = geometry.extents();
    let in_plane = linear(at, extents);
    let place = in_planes(b, extents, in_plane);
    let value = b.gather(planes, place, inside, lowest(signature.inputs[0]));
    let greatest = b.reduce(ReduceOp::Max, value);
    let wins = inside.and(value.eq(greatest).or(value.eq(value).logical_not()));
    let first = b.reduce(ReduceOp::Min, wins.select(in_plane, in_plane.like(i64::MAX)));
    b.output(greatest, signature.outputs[0], OutputPlace::Row);
    b.output(first, DType::I64, OutputPlace::Row);
}

/// Returns the gradient of [`greatest`], from the gradient of its first output and the places of the greatest elements. Rows:
/// plane, coordinates; inner: the windows of a point.
fn greatest_backward<'b>(
    b: &'b BodyBuilder,
    signature: &Signature,
    geometry: impl Fn(&'b BodyBuilder) -> Geometry<'b>,
) {
    let gradients = b.gathered_input(signature.inputs[0]);
    let winners = b.gathered_input(DType::I64);
    let geometry = geometry(b);
    let (at, back) = (rows(b, 1), inner(b));
    let (window, _, exists) = geometry.windows_of(at, back);
    let (windows, extents) = (geometry.windows(), geometry.extents());
    let place = in_planes(b, windows, linear(window, windows));
    let winner = b.gather(winners, place, exists, Scalar::I64(-1));
    let value = b.gather(gradients, place, exists, Scalar::F64(0.0)).to(signature.compute);
    let won = exists.and(winner.eq(linear(at, extents)));
    b.output(
        b.reduce(ReduceOp::Sum, won.select(value, value.like(0.0))),
        signature.outputs[0],
        OutputPlace::Row,
    );
}

/// The four bodies of a pool, for one geometry.
macro_rules! pools {
    ($geometry:ident: $average:ident $average_name:literal, $average_backward:ident $average_backward_name:literal,
     $greatest:ident $greatest_name:literal, $greatest_backward:ident $greatest_backward_name:literal) => {
        /// The mean over each window. Rows: plane, window; inner: places in a window.
        pub static $average: LoopOp = windows(
            $average_name,
            "The mean over each window of planes.",
            1,
            DTypeRule::Numeric,
            &[OutputPlace::Row],
            |b, signature| average(b, signature, Geometry::$geometry),
        );

        /// The gradient of the mean over each window. Rows: plane, coordinates; inner: the windows of a point.
        pub static $average_backward: LoopOp = windows(
            $average_backward_name,
            "The gradient of the mean over each window of planes.",
            1,
            DTypeRule::FloatingPoint,
            &[OutputPlace::Row],
            |b, signature| average_backward(b, signature, Geometry::$geometry),
        );

        /// The greatest element of each window, and its place in the plane. Rows: plane, window; inner: places in a window.
        pub static $greatest: LoopOp = windows(
            $greatest_name,
            "The greatest element of each window of planes, and its place.",
            1,
            DTypeRule::Numeric,
            &[OutputPlace::Row, OutputPlace::Row],
            |b, signature| greatest(b, signature, Geometry::$geometry),
        );

        /// The gradient of the greatest element of each window. Rows: plane, coordinates; inner: the windows of a point.
        pub static $greatest_backward: LoopOp = windows(
            $greatest_backward_name,
            "The gradient of the greatest element of each window of planes.",
            2,
            DTypeRule::FloatingPoint,
            &[OutputPlace::Row],
            |b, signature| greatest_backward(b, signature, Geometry::$geometry),
        );
    };
}

pools!(strided:
    AVERAGE_WINDOWS "average_windows",
    AVERAGE_WINDOWS_BACKWARD "average_windows_backward",
    GREATEST_OF_WINDOWS "greatest_of_windows",
    GREATEST_OF_WINDOWS_BACKWARD "greatest_of_windows_backward");

pools!(adaptive:
    AVERAGE_ADAPTIVE "average_adaptive",
    AVERAGE_ADAPTIVE_BACKWARD "average_adaptive_backward",
    GREATEST_ADAPTIVE "greatest_adaptive",
    GREATEST_ADAPTIVE_BACKWARD "greatest_adaptive_backward");
