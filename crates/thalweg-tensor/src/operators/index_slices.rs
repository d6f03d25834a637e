//! Writing slices at a list of indices of one dimension.

use thalweg_ir::{DType, Shape};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, RangeOf, Result, refuse, refuse_if};

use super::Body::Composite;
use super::index::{Write, at_least_1d, checked, long, name_of, number_like, outer_inner};
use super::view::wrap;
use super::{operators, single};
use crate::autograd::is_grad_enabled;
use crate::dispatch::{Arguments, Call};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the tensor with the slices of a source, times alpha, added to those at a list of indices.
    "index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"
        fn index_add(dim: int, index: tensor, source: tensor) = Composite(index_add), out: [OfResult], first: Consumed;
    /// Returns the tensor with the slices of a source written at a list of indices.
    "index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"
        fn index_copy(dim: int, index: tensor, source: tensor) = Composite(|call| {
            Places::of(call, "index_copy_", call.tensor(3))?.scatter(call.tensor(3), Combine::Replace).map(single)
        }), out: [OfResult], first: Consumed;
    /// Returns the tensor with a number written at a list of indices; negative indices are counted from the end.
    "index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"
        fn index_fill(dim: int, index: tensor, value: scalar) = Composite(|call| {
            let value = Tensor::full(&[], call.scalar(3), call.tensor(0).dtype(), call.device)?;
            index_fill(call, &value)
        }), first: Consumed;
    /// Returns the tensor with the only element of another written at a list of indices.
    "index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor"
        fn index_fill_tensor(dim: int, index: tensor, value: tensor)
        = Composite(|call| {
        let value = call.tensor(3);
        refuse_if!(
            value.rank() != 0,
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).",
            value.rank()
        );
        index_fill(call, &value.to_dtype(call.tensor(0).dtype())?)
    }), first: Consumed;
    /// Returns the tensor with the slices of a source combined with those at a list of indices: `prod`, `mean`, `amax` or `amin`.
    "index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"
        fn index_reduce(dim: int, index: tensor, source: tensor, reduce: str, include_self: bool) = Composite(|call| {
            let slices = Places::of(call, "index_reduce_", call.tensor(3))?;
            slices.reduce(call.tensor(3), call.str(4), call.bool(5)).map(single)
        }), out: [OfResult], first: Consumed;
}

/// A write of slices at a list of indices of a dimension.
struct Places {
    x: Tensor,
    dim: usize,
    index: Tensor,
}

impl Places {
    /// Checks the arguments of a write of slices of a dimension.
    fn of(call: &Call<'_>, operator: &'static str, source: &Tensor) -> Result<Places> {
        let (x, index) = (call.tensor(0), call.tensor(2));
        let dim = wrap(call.int(1), x.rank())?;
        if index.rank() > 1 {
            return Err(Error::index(format!("{operator}(): Index is supposed to be a vector")));
        }
        refuse_if!(
            source.dtype() != x.dtype(),
            "{operator}(): self ({}) and source ({}) must have the same scalar type",
            x.dtype(),
            source.dtype()
        );
        let index = long(index, operator)?;
        let count = index.elements();
        let along = source.shape().get(dim).copied().unwrap_or(1);
        refuse_if!(
            source.rank() == 0 && count != 1 || along != count,
            "{operator}(): Number of indices ({count}) should be equal to source.size(dim): ({along}), for dim: {dim}"
        );
        let mut wanted: Shape = at_least_1d(x)?.shape().into();
        wanted[dim] = count;
        refuse_if!(
            at_least_1d(source)?.shape() != wanted.as_slice(),
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = {:?} \
             source.shape = {:?}",
            x.shape(),
            source.shape()
        );
        let extent = at_least_1d(x)?.shape()[dim];
        let index = checked(&index, (0, extent), (name_of(call), RangeOf::Dimension(dim)))?;
        Ok(Places { x: x.clone(), dim, index })
    }

    fn write(&self, source: &Tensor) -> Result<Write> {
        let Self { x, dim, index } = self;
        let rows = outer_inner(&at_least_1d(source)?, *dim)?;
        if rows.elements() == 0 {
            return Ok(Write { x: x.clone(), dim: *dim, source: source.clone(), parts: None });
        }
        let index = index.reshape(&[1, index.elements(), 1])?.expand(rows.shape())?;
        Ok(Write { x: x.clone(), dim: *dim, source: source.clone(), parts: Some([index, rows]) })
    }

    fn scatter(&self, source: &Tensor, combine: Combine) -> Result<Tensor> {
        self.write(source)?.combined(combine)
    }

    fn reduce(&self, source: &Tensor, reduce: &str, include_self: bool) -> Result<Tensor> {
        if reduce == "sum" {
            refuse!("index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got sum.");
        }
        self.write(source)?.reduced(reduce, include_self)
    }
}

fn index_add(call: &Call<'_>) -> Result<Tensors> {
    let (source, alpha) = (call.tensor(3), call.scalar(4));
    let places = Places::of(call, "index_add_", source)?;
    if alpha.to_f64() == 1.0 {
        return places.scatter(source, Combine::Sum).map(single);
    }
    if alpha.is_floating_point() && !source.dtype().is_differentiable() {
        refuse!("For integral input tensors, argument alpha must not be a floating point number.");
    }
    let scaled = source.mul(&number_like(source, alpha)?)?;
    places.scatter(&scaled, Combine::Sum).map(single)
}

fn index_fill(call: &Call<'_>, value: &Tensor) -> Result<Tensors> {
    let x = call.tensor(0);
    let dim = wrap(call.int(1), x.rank())?;
    let index = long(call.tensor(2), "index_fill_")?;
    if index.rank() > 1 {
        return Err(Error::index("index_fill_(): Index is supposed to be a vector"));
    }
    let mut shape: Shape = at_least_1d(x)?.shape().into();
    let extent = shape[dim];
    shape[dim] = index.elements();
    let index = index.reshape(&[index.elements()])?;
    let index = checked(&index, (-(extent as i64), extent), ("index_fill", RangeOf::Dimension(dim)))?;
    if !(is_grad_enabled() && value.requires_grad()) {
        let source = value.expand(&shape)?;
        return Places { x: x.clone(), dim, index }.scatter(&source, Combine::Replace).map(single);
    }
    // An index that occurs twice is filled once: the value's gradient is the sum over the filled slices.
    let none = Tensor::zeros(x.shape(), DType::Bool, call.device)?;
    let all = Tensor::ones(&shape, DType::Bool, call.device)?;
    let is_filled = Places { x: none, dim, index }.scatter(&all, Combine::Replace)?;
    is_filled.select_where(value, x).map(single)
}
