//! Differences, slopes and integrals of points along a dimension.

use thalweg_ir::{DType, Scalar};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use super::Body::Composite;
use super::view::{check_has_dimensions, wrap, wrap_all};
use super::{operators, single};
use crate::dispatch::{Argument, Arguments, Call, Ints};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the n-th differences of neighbours along a dimension, after joining `prepend` and `append` to its ends.
    "diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor"
        fn diff(n: int, dim: int) = Composite(|call| diff(call).map(single)), autocast: Parts;
    /// Returns the slopes along a dimension, or along each, of points this distance apart: by central differences inside, and at
    /// the ends by polynomials of `edge_order`.
    "gradient.scalarint(Tensor self, *, Scalar? spacing=None, int? dim=None, int edge_order=1) -> Tensor[]"
        fn gradient_scalarint() -> list
        = Composite(|call| {
            let dims = chosen(call, call.optional_int(2))?;
            let spacing = call.optional_scalar(1).unwrap_or(Scalar::I64(1));
            gradient(call, &dims, &vec![Spacing::Even(spacing.to_f64()); dims.len()])
        }), autocast: Parts, complex: Taken;
    /// Returns the slopes along dimensions of points this distance apart.
    "gradient.scalararray(Tensor self, *, Scalar spacing, int[] dim, int edge_order=1) -> Tensor[]"
        = Composite(|call| {
            let dims = call.ints(2);
            gradient(call, &dims, &vec![Spacing::Even(call.scalar(1).to_f64()); dims.len()])
        }), autocast: Parts, complex: Taken;
    /// Returns the slopes along dimensions of points at distance 1.
    "gradient.array(Tensor self, *, int[] dim, int edge_order=1) -> Tensor[]"
        = Composite(|call| {
            let dims = call.ints(1);
            gradient(call, &dims, &vec![Spacing::Even(1.0); dims.len()])
        }), autocast: Parts, complex: Taken;
    /// Returns the slopes along a dimension, or along each, with a distance between points per dimension.
    "gradient.scalarrayint(Tensor self, *, Scalar[] spacing, int? dim=None, int edge_order=1) -> Tensor[]"
        = Composite(|call| gradient(call, &chosen(call, call.optional_int(2))?, &distances(call))), autocast: Parts, complex: Taken;
    /// Returns the slopes along dimensions, with a distance between points per dimension.
    "gradient.scalarrayarray(Tensor self, *, Scalar[] spacing, int[] dim, int edge_order=1) -> Tensor[]"
        = Composite(|call| gradient(call, &call.ints(2), &distances(call))), autocast: Parts, complex: Taken;
    /// Returns the slopes along a dimension, or along each, with the points' coordinates.
    "gradient.tensorarrayint(Tensor self, *, Tensor[] spacing, int? dim=None, int edge_order=1) -> Tensor[]"
        = Composite(|call| gradient(call, &chosen(call, call.optional_int(2))?, &coordinates(call))), autocast: Parts, complex: Taken;
    /// Returns the slopes along dimensions, with the points' coordinates.
    "gradient.tensorarray(Tensor self, *, Tensor[] spacing, int[] dim, int edge_order=1) -> Tensor[]"
        = Composite(|call| gradient(call, &call.ints(2), &coordinates(call))), autocast: Parts, complex: Taken;
    /// Returns the integral along a dimension by the trapezoidal rule, of points this distance apart.
    "trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor"
        fn trapezoid()
        = Composite(|call| integral(&even_areas(call, call.scalar(1).to_f64(), 2, "trapezoid")?, call.int(2))), autocast: Parts;
    /// Returns the integral along a dimension by the trapezoidal rule, of points with coordinates.
    "trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor"
        fn trapezoid_x(x: tensor)
        = Composite(|call| integral(&areas(call, "trapezoid")?, call.int(2))), autocast: Parts;
    /// Returns the integral along a dimension by the trapezoidal rule, of points this distance apart.
    "trapz.dx(Tensor y, *, float dx=1, int dim=-1) -> Tensor"
        = Composite(|call| integral(&even_areas(call, call.float(1), 2, "trapezoid")?, call.int(2))), autocast: Parts;
    /// Returns the integral along a dimension by the trapezoidal rule, of points with coordinates.
    "trapz.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor"
        = Composite(|call| integral(&areas(call, "trapezoid")?, call.int(2))), autocast: Parts;
    /// Returns the integrals up to each point after the first along a dimension, of points this distance apart.
    "cumulative_trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor"
        fn cumulative_trapezoid()
        = Composite(|call| {
        even_areas(call, call.scalar(1).to_f64(), 2, "cumulative_trapezoid")?.cumsum(call.int(2)).map(single)
    }), autocast: Parts;
    /// Returns the integrals from the first point to each later point along a dimension, by the trapezoidal rule. `x` holds the
    /// points' coordinates.
    "cumulative_trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor"
        fn cumulative_trapezoid_x(x: tensor)
        = Composite(|call| areas(call, "cumulative_trapezoid")?.cumsum(call.int(2)).map(single)), autocast: Parts;
}

/// Returns both neighbours of each gap along a dimension.
fn neighbours(x: &Tensor, dim: i64) -> Result<[Tensor; 2]> {
    let gaps = x.size(dim)?.saturating_sub(1);
    let start = usize::from(x.size(dim)? > 0);
    Ok([x.narrow(dim, 0, gaps)?, x.narrow(dim, start, gaps)?])
}

fn diff(call: &Call<'_>) -> Result<Tensor> {
    let (x, n, dim) = (call.tensor(0), call.int(1), call.int(2));
    check_has_dimensions(x, "diff expects input to be at least one-dimensional")?;
    let ends = [call.optional_tensor(3), call.optional_tensor(4)];
    for end in ends.into_iter().flatten() {
        if end.rank() != x.rank() {
            refuse!("diff expects prepend or append to be the same dimension as input");
        }
    }
    let dim = wrap(dim, x.rank())? as i64;
    for end in ends.into_iter().flatten() {
        let other =
            (0..x.rank()).find(|&place| place as i64 != dim && end.shape()[place] != x.shape()[place]);
        if let Some(place) = other {
            refuse!(
                "diff expects the shape of tensor to prepend or append to match that of input except along the differencing dimension; \
                 input.size({place}) = {}, but got tensor.size({place}) = {}",
                x.shape()[place],
                end.shape()[place]
            );
        }
    }
    refuse_if!(n < 0, "order must be non-negative but got {n}");
    if n == 0 {
        return x.copied(call.label.location);
    }
    let parts: Vec<Tensor> = [ends[0], Some(x), ends[1]].into_iter().flatten().cloned().collect();
    let mut result = if parts.len() > 1 { Tensor::cat(&parts, dim)? } else { x.clone() };
    // After as many steps as there are elements nothing is left.
    for _ in 0..n.min(result.size(dim)? as i64) {
        let [before, after] = neighbours(&result, dim)?;
        result =
            if result.dtype() == DType::Bool { after.logical_xor(&before)? } else { after.sub(&before)? };
    }
    Ok(result)
}

/// The spacing of the points along a dimension.
#[derive(Clone)]
enum Spacing {
    /// One distance between all points.
    Even(f64),
    /// The coordinates of the points.
    At(Tensor),
}

/// Returns a dimension, or all of them.
fn chosen(call: &Call<'_>, dim: Option<i64>) -> Result<Ints> {
    Ok(match dim {
        Some(dim) => Ints::from_slice(&[dim]),
        None => (0..call.tensor(0).rank() as i64).collect(),
    })
}

fn distances(call: &Call<'_>) -> Vec<Spacing> {
    match call.argument(1) {
        Argument::Scalars(list) => list.iter().map(|number| Spacing::Even(number.to_f64())).collect(),
        _ => Vec::new(),
    }
}

fn coordinates(call: &Call<'_>) -> Vec<Spacing> {
    call.tensor_list(1).iter().cloned().map(Spacing::At).collect()
}

fn gradient(call: &Call<'_>, dims: &[i64], spacing: &[Spacing]) -> Result<Tensors> {
    let (x, edge_order) = (call.tensor(0), call.int(call.arguments.len() - 1));
    let parameters = &call.operator.schema().parameters;
    let names_dimensions = parameters.iter().any(|parameter| parameter.name == "dim" && parameter.ty.list);
    refuse_if!(
        spacing.len() != dims.len() && names_dimensions,
        "torch.gradient expected spacing to be unspecified, a scalar or it's spacing and dim arguments to have the same length, but \
         got a spacing argument of length {} and a dim argument of length {}.",
        spacing.len(),
        dims.len()
    );
    refuse_if!(
        spacing.len() != dims.len(),
        "torch.gradient expected spacing to be unspecified, a scalar, or a list of length equal to 'self.dim() = {}', but got a \
         list of length {}",
        dims.len(),
        spacing.len()
    );
    refuse_if!(!(1..=2).contains(&edge_order), "torch.gradient only supports edge_order=1 and edge_order=2.");
    let dims = wrap_all(dims, x.rank())?;
    check_has_dimensions(x, "torch.gradient expects a tensor with dimensions")?;
    (dims.iter().zip(spacing))
        .map(|(&dim, spacing)| {
            let extent = x.shape()[dim];
            if extent <= edge_order as usize {
                refuse!("torch.gradient expected each dimension size to be at least edge_order+1");
            }
            let distances = match spacing {
                Spacing::Even(distance) => return even_slopes(x, dim, *distance, edge_order == 2),
                Spacing::At(places) if places.shape() == [extent] => {
                    let [before, after] = neighbours(places, 0)?;
                    after.sub(&before)?
                }
                Spacing::At(places) => {
                    refuse!(
                        "torch.gradient expected each element of 'spacing' to have a size of {extent}, but got {:?}",
                        places.shape()
                    );
                }
            };
            slopes(x, dim, &distances, edge_order == 2)
        })
        .collect()
}

/// Returns the dtype of slopes.
fn slope_dtype(x: &Tensor) -> DType {
    if x.dtype().is_floating_point() || x.dtype().is_complex() { x.dtype() } else { default_dtype() }
}

/// Returns the slopes along a dimension of points this distance apart.
fn even_slopes(x: &Tensor, dim: usize, distance: f64, is_second_order: bool) -> Result<Tensor> {
    let (at, extent, dtype) = (dim as i64, x.shape()[dim], slope_dtype(x));
    let x = if dtype.is_complex() { x.clone() } else { x.to_dtype(dtype.compute())? };
    let part = |start: usize, count: usize| x.narrow(at, start, count);
    let slope = |high: &Tensor, low: &Tensor, gaps: f64| high.sub(low)?.div_scalar(gaps * distance);
    // Uses the end and the two points next to it.
    let curved = |place: usize, next: usize, last: usize, sign: f64| {
        let sum =
            part(next, 1)?.mul_scalar(4.0)?.sub(&part(place, 1)?.mul_scalar(3.0)?)?.sub(&part(last, 1)?)?;
        sum.div_scalar(2.0 * sign * distance)
    };
    let [first, last] = match is_second_order {
        true => [curved(0, 1, 2, 1.0)?, curved(extent - 1, extent - 2, extent - 3, -1.0)?],
        false => [
            slope(&part(1, 1)?, &part(0, 1)?, 1.0)?,
            slope(&part(extent - 1, 1)?, &part(extent - 2, 1)?, 1.0)?,
        ],
    };
    let middle = slope(&part(2, extent - 2)?, &part(0, extent - 2)?, 2.0)?;
    Tensor::cat(&[first, middle, last], at)?.to_dtype(dtype)
}

/// Returns the slopes along a dimension of at least two points, three for a second-order edge, by the polynomials of order 2 through
/// three neighbours.
fn slopes(x: &Tensor, dim: usize, distances: &Tensor, is_second_order: bool) -> Result<Tensor> {
    let at = dim as i64;
    // Coordinates of a wider dtype make slopes of that dtype.
    let dtype = match (slope_dtype(x), distances.dtype()) {
        (DType::C64, DType::F64) => DType::C128,
        (dtype @ (DType::C64 | DType::C128), _) => dtype,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        (DType::F32, _) | (_, DType::F32) => DType::F32,
        (dtype, _) => dtype,
    };
    let x = x.to_dtype(if dtype.is_complex() { dtype } else { dtype.compute() })?;
    let extent = x.shape()[dim];
    let mut shape = vec![1; x.rank()];
    shape[dim] = extent - 1;
    let h = distances
        .to_dtype(if x.dtype().is_complex() { x.dtype().real() } else { x.dtype() })?
        .reshape(&shape)?;
    let part = |tensor: &Tensor, start: usize, count: usize| tensor.narrow(at, start, count);
    let [low, high] = neighbours(&x, at)?;
    let gaps = high.sub(&low)?.div(&h)?;
    let weighted = |first: &Tensor, of_first: &Tensor, second: &Tensor, of_second: &Tensor| {
        let total = of_first.add(of_second)?;
        first.mul(of_first)?.add(&second.mul(of_second)?)?.div(&total)
    };
    let mut parts = Vec::new();
    let end = |near: usize, far: usize| {
        let (near_slope, far_slope) = (part(&gaps, near, 1)?, part(&gaps, far, 1)?);
        let (near, far) = (part(&h, near, 1)?, part(&h, far, 1)?);
        // The slope of the middle, extrapolated by half of the curvature.
        near_slope.add(&near_slope.sub(&far_slope)?.mul(&near)?.div(&near.add(&far)?)?)
    };
    parts.push(if is_second_order { end(0, 1)? } else { part(&gaps, 0, 1)? });
    if extent > 2 {
        let (before, after) = (part(&gaps, 0, extent - 2)?, part(&gaps, 1, extent - 2)?);
        let (h_before, h_behind) = (part(&h, 0, extent - 2)?, part(&h, 1, extent - 2)?);
        parts.push(weighted(&before, &h_behind, &after, &h_before)?);
    }
    parts.push(if is_second_order { end(extent - 2, extent - 3)? } else { part(&gaps, extent - 2, 1)? });
    Tensor::cat(&parts, at)?.to_dtype(dtype)
}

fn integral(areas: &Tensor, dim: i64) -> Result<Tensors> {
    areas.sum(&[dim], false).map(single)
}

/// Returns the areas between neighbours this distance apart.
fn even_areas(call: &Call<'_>, distance: f64, dim: usize, name: &str) -> Result<Tensor> {
    let (y, dim) = (call.tensor(0), call.int(dim));
    check_integrable(y, name)?;
    let [before, after] = neighbours(y, wrap(dim, y.rank())? as i64)?;
    before.add(&after)?.mul_scalar(distance / 2.0)
}

fn check_integrable(y: &Tensor, name: &str) -> Result<()> {
    refuse_if!(y.dtype() == DType::Bool, "{name}: received a bool input for `y`, but bool is not supported");
    check_has_dimensions(y, "the integrand has no dimensions")
}

/// Returns the areas between neighbours at coordinates, which are those of the dimension or of all points.
fn areas(call: &Call<'_>, name: &str) -> Result<Tensor> {
    let (y, x) = (call.tensor(0), call.tensor(1));
    check_integrable(y, name)?;
    refuse_if!(x.dtype() == DType::Bool, "{name}: received a bool input for `x`, but bool is not supported");
    let dim = wrap(call.int(2), y.rank())?;
    let along = (dim + x.rank()).checked_sub(y.rank());
    let x = match x.rank() {
        1 if x.elements() == y.shape()[dim] => {
            let mut shape = vec![1; y.rank()];
            shape[dim] = x.elements();
            x.reshape(&shape)?
        }
        1 => {
            refuse!("{name}: There must be one `x` value for each sample point");
        }
        _ if along.is_some_and(|along| x.shape()[along] == y.shape()[dim]) => {
            let mut shape = vec![1; y.rank() - x.rank().min(y.rank())];
            shape.extend(x.shape());
            x.reshape(&shape)?
        }
        _ => {
            refuse!("{name}: There must be one `x` value for each sample point");
        }
    };
    let along = (dim + x.rank() - y.rank()) as i64;
    let [left, right] = neighbours(&x, along)?;
    let [before, after] = neighbours(y, dim as i64)?;
    right.sub(&left)?.mul(&before.add(&after)?)?.div_scalar(2.0)
}
