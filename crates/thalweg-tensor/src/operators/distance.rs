//! Distances and similarities of rows.

use thalweg_ir::{Scalar, Shape, broadcast_shapes};
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::{operators, single};
use crate::autograd::formula::Formula;
use crate::autograd::no_grad;
use crate::destination::without_offers;
use crate::dispatch::{Arguments, Call, Ints, built_in, over};
use crate::tensor::Tensor;

operators! {
    /// Returns the p-norm of the difference.
    "dist(Tensor self, Tensor other, Scalar p=2) -> Tensor"
        fn dist(other: tensor, p: scalar) = Composite(|call| {
            call.tensor(0).sub(call.tensor(1))?.vector_norm(call.scalar(2), &[], false).map(single)
        }), autocast: Full;
    /// Returns the p-norm of the rows' differences, plus eps in each element.
    "pairwise_distance(Tensor x1, Tensor x2, float p=2, float eps=1e-06, bool keepdim=False) -> Tensor"
        fn pairwise_distance(x2: tensor, p: float, eps: float, keepdim: bool)
        = Composite(|call| {
            pairwise(call.tensor(0), call.tensor(1), call.float(2), call.float(3), call.bool(4)).map(single)
        }), autocast: Parts;
    /// Returns the p-norms of the differences between each row of one matrix and each row of another.
    "cdist(Tensor x1, Tensor x2, float p=2, int? compute_mode=None) -> Tensor"
        fn cdist(x2: tensor, p: float, compute_mode: optional_int)
        = Composite(|call| cdist(call).map(single)), autocast: Full;
    /// Returns the Euclidean distances between each row of one matrix and each row of another, by one matrix product.
    "thalweg::euclidean_distances(Tensor x1, Tensor x2) -> Tensor" = Differentiable(|call| {
        let (x, y) = (call.tensor(0).detach(), call.tensor(1).detach());
        no_grad(|| x.euclidean_dist(&y)).map(single)
    }, &EUCLIDEAN);
    /// Returns the p-norms of the differences between each row of one matrix and each row of another.
    "_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"
        = Composite(|call| cdist(call).map(single));
    /// Returns the Euclidean distances between each row of one matrix and each row of another by one matrix product, |x|² − 2x ·
    /// y + |y|²: faster than `cdist` for many rows, and less accurate for rows that are close together.
    "_euclidean_dist(Tensor x1, Tensor x2) -> Tensor"
        fn euclidean_dist(x2: tensor) = Composite(|call| {
            let (x, y) = (call.tensor(0), call.tensor(1));
            let [x_norm, y_norm] = [x.square()?.sum(&[-1], true)?, y.square()?.sum(&[-1], true)?];
            let left = Tensor::cat(&[x.mul_scalar(-2)?, x_norm.clone(), x_norm.ones_like()?], -1)?;
            let right = Tensor::cat(&[y.clone(), y_norm.ones_like()?, y_norm], -1)?;
            left.matmul(&right.transpose(-2, -1)?)?.clamp_min(0)?.sqrt().map(single)
        });
    /// Returns the p-norms of the differences of each pair of rows of a matrix, in the order of their indices.
    "_pdist_forward(Tensor self, float p=2) -> Tensor" = Composite(|call| pdist(call).map(single));
    /// Returns the p-norms of the differences of each pair of rows of a matrix, in the order of their indices.
    "pdist(Tensor self, float p=2) -> Tensor"
        fn pdist(p: float)
        = Composite(|call| pdist(call).map(single)), autocast: Full;
    /// Returns the cosine of the angle between vectors along a dimension; norms are at least eps.
    "cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor"
        fn cosine_similarity(x2: tensor, dim: int, eps: float)
        = Composite(|call| cosine_similarity(call).map(single)), autocast: Full;
    /// Returns the tensor with each slice of a dimension scaled down to a p-norm of at most `maxnorm`.
    "renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor"
        fn renorm(p: scalar, dim: int, maxnorm: scalar) = Composite(|call| renorm(call).map(single)), out: [OfResult], first: Consumed, autocast: Full;
}

/// Returns the p-norm of the rows' differences, plus eps in each element.
pub(super) fn pairwise(x: &Tensor, y: &Tensor, p: f64, eps: f64, keepdim: bool) -> Result<Tensor> {
    let distance = x.sub(y)?.add_scalar(eps)?;
    refuse_if!(distance.rank() == 0, "pairwise_distance takes at least one dimension");
    distance.vector_norm(p, &[-1], keepdim)
}

fn cdist(call: &Call<'_>) -> Result<Tensor> {
    let (x, y, p) = (call.tensor(0), call.tensor(1), call.float(2));
    for (name, tensor) in [("X1", x), ("X2", y)] {
        if !tensor.dtype().is_floating_point() {
            refuse!("cdist only supports floating-point dtypes, {name} got: {}", tensor.dtype());
        }
        if tensor.rank() < 2 {
            refuse!("cdist only supports at least 2D tensors, {name} got: {}D", tensor.rank());
        }
    }
    refuse_if!(
        x.shape()[x.rank() - 1] != y.shape()[y.rank() - 1],
        "X1 and X2 must have the same number of columns. X1: {} X2: {}",
        x.shape()[x.rank() - 1],
        y.shape()[y.rank() - 1]
    );
    refuse_if!(p < 0.0 || p.is_nan(), "cdist only supports non-negative p values");
    if call.optional_int(3).is_some_and(|mode| !(0..=2).contains(&mode)) {
        refuse!("possible modes: 0, 1, 2, but was another");
    }
    let [rows, columns] = [x.shape()[x.rank() - 2], y.shape()[y.rank() - 2]];
    if x.shape()[x.rank() - 1] == 0 {
        let mut shape: Shape = broadcast_shapes(&x.shape()[..x.rank() - 2], &y.shape()[..y.rank() - 2])?;
        shape.extend([rows, columns]);
        let zeros = Tensor::zeros(&shape, x.dtype(), x.device())?;
        // A constant, through which a gradient of 0 flows.
        let nothing = x.sum(&[], false)?.add(&y.sum(&[], false)?)?.mul_scalar(0.0)?;
        return zeros.add(&nothing);
    }
    // As in PyTorch: by a product of matrices for many rows, unless the mode forbids it.
    let by_product = match call.optional_int(3) {
        Some(1) => true,
        Some(2) => false,
        _ => rows > MANY_ROWS || columns > MANY_ROWS,
    };
    if p != 2.0 || !by_product {
        return x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?.vector_norm(p, &[-1], false);
    }
    let batch: Shape = broadcast_shapes(&x.shape()[..x.rank() - 2], &y.shape()[..y.rank() - 2])?;
    let whole = |x: &Tensor| {
        let mut shape = batch.clone();
        shape.extend_from_slice(&x.shape()[x.rank() - 2..]);
        x.expand(&shape)
    };
    let (x, y) = (whole(x)?, whole(y)?);
    let arguments = [(&x).into(), (&y).into()];
    super::call(built_in!("thalweg::euclidean_distances")?, &arguments, None, call.label.location)
}

/// The number of rows of either matrix above which distances are computed by a product of matrices.
const MANY_ROWS: usize = 25;

/// The gradient of Euclidean distances: a row's is in the direction of its difference from each other row, and 0 where they are
/// equal. Differences are not stored: sums over them are products of matrices.
static EUCLIDEAN: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[0],
    backward: |call| {
        let (gradient, x, y, distances) = (call.gradient()?, call.saved(0)?, call.saved(1)?, call.result(0)?);
        let zero = Tensor::zeros(&[], distances.dtype(), call.device())?;
        let by_distance = distances.eq_scalar(0)?.select_where(&zero, &gradient.div(&distances)?)?;
        let of_side = |weights: &Tensor, own: &Tensor, other: &Tensor| {
            let gradient = weights.sum(&[-1], true)?.mul(own)?.sub(&weights.matmul(other)?)?;
            gradient.sum_to_shape(own.shape())
        };
        call.each(|tensor| match tensor {
            0 => of_side(&by_distance, &x, &y).map(Some),
            _ => of_side(&by_distance.transpose(-2, -1)?, &y, &x).map(Some),
        })
    },
};

fn pdist(call: &Call<'_>) -> Result<Tensor> {
    let (x, p) = (call.tensor(0), call.float(1));
    refuse_if!(x.rank() != 2, "pdist only supports 2D tensors, got: {}D", x.rank());
    refuse_if!(!x.dtype().is_floating_point(), "pdist only supports floating-point dtypes");
    refuse_if!(p < 0.0 || p.is_nan(), "pdist only supports non-negative p values");
    let rows = x.shape()[0] as i64;
    let pairs = || (0..rows).flat_map(move |i| (i + 1..rows).map(move |j| (i, j)));
    let mut list = crate::host_room::host_room((rows * (rows - 1).max(0) / 2) as usize)?;
    list.extend(pairs().map(|(i, _)| i));
    let first = Tensor::from_slice(&list, &[list.len()], x.device())?;
    list.clear();
    list.extend(pairs().map(|(_, j)| j));
    let second = Tensor::from_slice(&list, &[list.len()], x.device())?;
    if x.shape()[1] == 0 {
        return Tensor::zeros(&[list.len()], x.dtype(), x.device());
    }
    x.index_select(0, &first)?.sub(&x.index_select(0, &second)?)?.vector_norm(p, &[-1], false)
}

fn cosine_similarity(call: &Call<'_>) -> Result<Tensor> {
    let (x, y, dim, eps) = (call.tensor(0), call.tensor(1), call.int(2), call.float(3));
    let dtype = x.dtype().promote(y.dtype()).map_err(|error| Error::invalid(error.to_string()))?;
    if !dtype.is_floating_point() {
        refuse!("expected common dtype to be floating point, yet common dtype is {dtype}");
    }
    let shape = broadcast_shapes(x.shape(), y.shape())?;
    let unit = |tensor: &Tensor| {
        let whole = tensor.to_dtype(dtype)?.expand(&shape)?;
        let norm = whole.vector_norm(2.0, &[dim], true)?;
        // Where the bound applies, the gradient is that of the norm, as in PyTorch.
        let least = no_grad(|| norm.detach().clamp_min(eps)?.sub(&norm.detach()))?;
        whole.div(&norm.add(&least)?)
    };
    unit(x)?.mul(&unit(y)?)?.sum(&[dim], false)
}

fn renorm(call: &Call<'_>) -> Result<Tensor> {
    let (x, p, dim, most) = (call.tensor(0), call.scalar(1).to_f64(), call.int(2), call.scalar(3).to_f64());
    refuse_if!(p <= 0.0 || p.is_nan(), "renorm: non-positive-norm not supported");
    refuse_if!(most < 0.0 || most.is_nan(), "renorm: expected maxnorm to be >= 0 but got {most}");
    if x.rank() < 2 {
        refuse!("renorm: input needs at least 2 dimensions, got {} dimensions", x.rank());
    }
    let kept = super::view::wrap(dim, x.rank())?;
    let others: Ints = (0..x.rank()).filter(|&dim| dim != kept).map(|dim| dim as i64).collect();
    let wide = x.to_dtype(x.dtype().compute())?;
    // The product alone may replace what it reads.
    let factor = without_offers(|| {
        let norm = wide.vector_norm(Scalar::F64(p), &others, true)?;
        let limit = Tensor::full(&[], most, norm.dtype(), x.device())?;
        let one = Tensor::full(&[], 1.0, norm.dtype(), x.device())?;
        let is_above = norm.gt(&limit)?;
        let raised = over(&norm, |norm| norm.add_scalar(1e-7))?;
        let least = over(&raised, |raised| limit.div(raised))?;
        over(&least, |least| is_above.select_where(least, &one))
    })?;
    wide.mul(&factor)?.to_dtype(x.dtype())
}
