//! Reading and writing at indices of one dimension: gathering, scattering, selecting.
//!
//! Every operator is reduced to one form: a tensor (outer, extent, inner), and indices (outer, count, inner) of its middle
//! dimension. The host never reads an index. **An index that is out of range** reads NaN, or 0 for integers, and writes nothing;
//! the kernel reports it, and the next wait for the device returns an error.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, OutOfRangeReport, RangeOf, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable, Kernel, Pair};
use super::create::pad;
use super::repeated::gathered_in_place;
use super::view::{extents, wrap};
use super::window::is_recorded;
use super::{complex, operators, single};
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::kernels::indexing::{self, call_scatter as scatter, combine_of};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the elements of a tensor (outer, extent, inner) at indices (outer, count, inner).
    "thalweg::gather(Tensor self, Tensor index) -> Tensor" = Differentiable(indexing::gather, &GATHER), complex: Taken;
    /// Reports indices that are negative, or not less than an extent. Returns one element, which nothing is written to.
    "thalweg::index_check(Tensor index, int extent, int allowed=0) -> Tensor" = Kernel(indexing::index_check);
    /// Returns zeros (outer, extent, inner) to which a gradient (outer, count, inner) is added at indices.
    "thalweg::gather_backward(Tensor gradient, Tensor index, int extent) -> Tensor"
        = Differentiable(indexing::gather_backward, &GATHER_BACKWARD), complex: Parts(gather_backward_of_complex);
    /// Returns a tensor (outer, extent, inner) into which a source (outer, count, inner) is combined at indices: `replace`, `sum`,
    /// `prod`, `amax` or `amin`.
    "thalweg::scatter(Tensor self, Tensor index, Tensor source, str reduce) -> Tensor"
        = Pair(indexing::scatter, |call| match combine_of(call)? {
            Combine::Replace | Combine::Sum => LINEAR.record(call),
            Combine::Product => PRODUCT.record(call),
            Combine::Max | Combine::Min => EXTREMUM.record(call),
        }), complex: Parts(complex::scatter);
    /// Returns the result of `thalweg::scatter` for `amax` and `amin`, computed from the source only at the indices.
    "thalweg::scatter_anew(Tensor self, Tensor index, Tensor source, str reduce) -> Tensor"
        = Differentiable(|call| {
            let (x, index, source) = (call.tensor(0).detach(), call.tensor(1), call.tensor(2).detach());
            let combine = combine_of(call)?;
            let start = number_like(&x, neutral(combine, x.dtype()))?.expand(index.shape())?;
            scatter(&scatter(&x, index, &start, Combine::Replace)?, index, &source, combine).map(single)
        }, &ANEW);
    /// Returns the elements at indices of a dimension, which have the result's shape.
    "gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"
        fn gather(dim: int, index: tensor) = Composite(gather), out: [OfResult, Unshared];
    /// Returns the slices at a list of indices of a dimension.
    "index_select(Tensor self, int dim, Tensor index) -> Tensor"
        fn index_select(dim: int, index: tensor) = Composite(|call| {
            index_select(call.tensor(0), call.int(1), call.tensor(2)).map(single)
        }), out: [OfResult, Unshared];
    /// Returns the tensor with the elements of a source written at indices of a dimension.
    "scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"
        fn scatter(dim: int, index: tensor, src: tensor) = Composite(|call| {
            Along::of(call, "scatter").scatter(call.tensor(3), Combine::Replace).map(single)
        }), out: [OfResult], first: Consumed;
    /// Returns the tensor with a number written at indices of a dimension.
    "scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"
        fn scatter_value(dim: int, index: tensor, value: scalar)
        = Composite(|call| Along::of(call, "scatter").scatter_number(call.scalar(3), Combine::Replace).map(single)),
            out: [OfResult], first: Consumed, complex: Repeated("scatter.src");
    /// Returns the tensor with the elements of a source added to, or multiplied by, those at indices of a dimension.
    "scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"
        fn scatter_with(dim: int, index: tensor, src: tensor, reduce: str)
        = Composite(|call| {
        Along::of(call, "scatter").scatter(call.tensor(3), former_reduction(call.str(4))?).map(single)
    }), out: [OfResult], first: Consumed;
    /// Returns the tensor with a number added to, or multiplied by, the elements at indices of a dimension.
    "scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"
        fn scatter_value_with(dim: int, index: tensor, value: scalar, reduce: str)
        = Composite(|call| {
        Along::of(call, "scatter").scatter_number(call.scalar(3), former_reduction(call.str(4))?).map(single)
    }), out: [OfResult], first: Consumed, complex: Repeated("scatter.reduce");
    /// Returns the tensor with the elements of a source added to those at indices of a dimension, in the order of the source.
    "scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"
        fn scatter_add(dim: int, index: tensor, src: tensor) = Composite(|call| {
            Along::of(call, "scatter").scatter(call.tensor(3), Combine::Sum).map(single)
        }), out: [OfResult], first: Consumed, autocast: Widest;
    /// Returns the tensor with the elements of a source combined with those at indices of a dimension: `sum`, `prod`, `mean`,
    /// `amax` or `amin`; without `include_self` from the source only.
    "scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"
        fn scatter_reduce(dim: int, index: tensor, src: tensor, reduce: str, include_self: bool) = Composite(|call| {
            let along = Along::of(call, "scatter_reduce");
            along.reduce(call.tensor(3), call.str(4), call.bool(5)).map(single)
        }), out: [OfResult], first: Consumed;
    /// Returns the elements of a dimension at indices, which are broadcast against the other dimensions; without a dimension, of
    /// all elements as one row.
    "take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor"
        fn take_along_dim(indices: tensor, dim: optional_int) = Composite(take_along_dim), out: [OfResult], autocast: Parts, complex: Taken;
}

/// The gradient of `gather`: added at the indices that were read.
static GATHER: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (gradient, index, extent) = (call.gradient()?, call.saved(1)?, call.shape(0)[1] as i64);
            let arguments = [(&gradient).into(), (&index).into(), extent.into()];
            super::call(built_in!("thalweg::gather_backward")?, &arguments, None, call.label().location)
        })
    },
};

/// The gradient of `gather_backward`: the gradient at the index of each added element.
static GATHER_BACKWARD: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| call.one(0, || gathered(&call.gradient()?, &call.saved(1)?)),
};

/// The gradient of a write at indices: the target's where it was not written, the source's at its indices.
static LINEAR: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        let gradient = call.gradient()?;
        call.each(|tensor| match (tensor, combine_of(call)?) {
            (0, Combine::Sum) => Ok(Some(gradient.clone())),
            (0, _) => {
                let index = call.saved(1)?;
                let zeros = number_like(&gradient, Scalar::F64(0.0))?.expand(index.shape())?;
                scatter(&gradient, &index, &zeros, Combine::Replace).map(Some)
            }
            (2, _) => gathered(&gradient, &call.saved(1)?).map(Some),
            _ => Ok(None),
        })
    },
};

/// The gradient of a maximum or minimum, divided evenly among the elements that equal it.
static EXTREMUM: Formula = Formula {
    inputs: &[0, 1, 2],
    outputs: &[0],
    backward: |call| {
        let (gradient, index, result) = (call.gradient()?, call.saved(1)?, call.result(0)?);
        let dtype = gradient.dtype();
        let of_target = call.saved(0)?.eq(&result)?.to_dtype(dtype)?;
        let of_source = call.saved(2)?.eq(&gathered(&result, &index)?)?.to_dtype(dtype)?;
        let share = gradient.div(&scatter(&of_target, &index, &of_source, Combine::Sum)?)?;
        call.each(|tensor| match tensor {
            0 => of_target.mul(&share).map(Some),
            2 => of_source.mul(&gathered(&share, &index)?).map(Some),
            _ => Ok(None),
        })
    },
};

/// Like [`EXTREMUM`]: an element of the target that equals the result counts in the division, as in PyTorch, although it did not
/// contribute and has no gradient itself.
static ANEW: Formula = Formula {
    inputs: &[0, 1, 2],
    outputs: &[0],
    backward: |call| {
        let mut gradients = (EXTREMUM.backward)(call)?;
        if let Some(of_target) = &gradients[0] {
            let index = call.saved(1)?;
            let zeros = number_like(of_target, Scalar::F64(0.0))?.expand(index.shape())?;
            gradients[0] = Some(scatter(of_target, &index, &zeros, Combine::Replace)?);
        }
        Ok(gradients)
    },
};

/// The gradient of a product: the product of all other factors, times the gradient.
static PRODUCT: Formula = Formula { inputs: &[0, 1, 2], outputs: &[0], backward: product_gradient };

fn product_gradient(call: &GradientCall<'_>) -> Result<Gradients> {
    let (gradient, index, result) = (call.gradient()?, call.saved(1)?, call.result(0)?);
    let (target, source) = (call.saved(0)?, call.saved(2)?);
    let one = number_like(&target, Scalar::F64(1.0))?;
    let zero = number_like(&target, Scalar::F64(0.0))?;
    call.each(|tensor| match tensor {
        0 => {
            let nonzero = target.eq(&zero)?.select_where(&one, &target)?;
            let others = scatter(&nonzero, &index, &source, Combine::Product)?.div(&nonzero)?;
            gradient.mul(&others).map(Some)
        }
        2 => {
            let is_zero = source.eq(&zero)?;
            let zeros = Tensor::zeros(target.shape(), target.dtype(), target.device())?;
            let counts = scatter(&zeros, &index, &is_zero.to_dtype(target.dtype())?, Combine::Sum)?;
            let is_only_zero = is_zero.logical_and(&gathered(&counts, &index)?.eq(&one)?)?;
            let without =
                scatter(&target, &index, &is_only_zero.select_where(&one, &source)?, Combine::Product)?;
            let of_zero = gathered(&gradient.mul(&without)?, &index)?;
            let divisor = is_zero.select_where(&one, &source)?;
            let of_others = gathered(&gradient.mul(&result)?, &index)?.div(&divisor)?;
            is_only_zero.select_where(&of_zero, &of_others).map(Some)
        }
        _ => Ok(None),
    })
}

/// Calls `thalweg::gather`.
#[track_caller]
pub(super) fn gathered(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    super::call(
        built_in!("thalweg::gather")?,
        &[x.into(), index.into()],
        None,
        std::panic::Location::caller(),
    )
}

/// Returns a number as a tensor without dimensions, of a tensor's dtype and device.
pub(super) fn number_like(x: &Tensor, number: Scalar) -> Result<Tensor> {
    Tensor::full(&[], number, x.dtype(), x.device())
}

/// Returns indices in int64.
pub(super) fn long(index: &Tensor, operator: &str) -> Result<Tensor> {
    match index.dtype() {
        DType::I64 | DType::I32 => index.to_dtype(DType::I64),
        other => Err(invalid!("{operator}(): Expected dtype int32/int64 for index, but got {other}")),
    }
}

/// Returns the name of an operator, without the `_` of its in-place form.
pub(super) fn name_of(call: &Call<'_>) -> &'static str {
    call.label.operator.trim_end_matches('_')
}

/// Returns indices counted from 0, from indices between the lowest, 0 or minus the extent, and the extent; −1 where one is out of
/// range, which the operator's kernel reports.
pub(super) fn checked(
    index: &Tensor,
    (lowest, extent): (i64, usize),
    (operator, indexed): (&'static str, RangeOf),
) -> Result<Tensor> {
    let _report = OutOfRangeReport::of(operator, indexed);
    let numbers = [lowest, extent as i64].map(|number| Argument::Scalar(Scalar::I64(number)));
    let arguments = [index.into(), numbers[0], numbers[1]];
    super::call(built_in!("thalweg::checked_index")?, &arguments, None, std::panic::Location::caller())
}

/// Returns a tensor as (outer, a dimension, inner).
pub(super) fn outer_inner(x: &Tensor, dim: usize) -> Result<Tensor> {
    let (outer, rest) = x.shape().split_at(dim);
    x.reshape(&[outer.iter().product(), rest[0], rest[1..].iter().product()])
}

/// Returns a tensor with at least one dimension.
pub(super) fn at_least_1d(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 { x.reshape(&[1]) } else { Ok(x.clone()) }
}

fn former_reduction(reduce: &str) -> Result<Combine> {
    match reduce {
        "add" => Ok(Combine::Sum),
        "multiply" => Ok(Combine::Product),
        _ => Err(invalid!("reduce argument must be either add or multiply.")),
    }
}

fn gather(call: &Call<'_>) -> Result<Tensors> {
    let (x, index) = (call.tensor(0), call.tensor(2));
    let dim = wrap(call.int(1), x.rank())?;
    if index.elements() == 0 {
        // As in PyTorch, an empty list of indices may have any dtype.
        let none = x.reshape(&[x.elements()])?.narrow(0, 0, 0)?;
        return none.copied(call.label.location)?.reshape(index.shape()).map(single);
    }
    let index = long(index, "gather")?;
    if x.rank().max(1) != index.rank().max(1) {
        refuse!("Index tensor must have the same number of dimensions as input tensor");
    }
    let (mut source, wide) = (at_least_1d(x)?, at_least_1d(&index)?);
    for other in (0..wide.rank()).filter(|&other| other != dim) {
        refuse_if!(
            wide.shape()[other] > source.shape()[other],
            "Size does not match at dimension {other} expected index {:?} to be no larger than self {:?} apart from dimension \
             {dim}",
            index.shape(),
            x.shape()
        );
        source = source.narrow(other as i64, 0, wide.shape()[other])?;
    }
    let _report = OutOfRangeReport::of("gather", RangeOf::Dimension(dim));
    // A copy of the whole source costs more than places in its memory for a few indices.
    let layout = source.layout();
    let is_copied = layout.may_overlap() && wide.elements() < source.elements();
    if is_copied && !is_recorded(&[x]) {
        return gathered_in_place(&source, dim, &wide)?.reshape(index.shape()).map(single);
    }
    let at = if source.dtype().is_complex() {
        outer_inner(&wide, dim)?
    } else {
        outer_inner_of_index(&wide, dim)?
    };
    gathered(&outer_inner(&source, dim)?, &at)?.reshape(index.shape()).map(single)
}

/// Returns indices as [`outer_inner`] does, or, if they would be copied because they repeat along some dimensions, with two outer
/// dimensions.
fn outer_inner_of_index(index: &Tensor, dim: usize) -> Result<Tensor> {
    let (outer, rest) = index.shape().split_at(dim);
    let counts = |at: usize| [outer[..at].iter().product(), outer[at..].iter().product()];
    let inner = [rest[0], rest[1..].iter().product()];
    if index.layout().strides().contains(&0)
        && index.view(&[outer.iter().product(), inner[0], inner[1]]).is_err()
    {
        let as_two = |at: usize| index.view(&[counts(at), inner].concat()).ok();
        if let Some(view) = (1..dim).find_map(as_two) {
            return Ok(view);
        }
    }
    outer_inner(index, dim)
}

pub(super) fn index_select(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    let dim = wrap(dim, x.rank())?;
    if index.rank() > 1 {
        return Err(Error::index("index_select(): Index is supposed to be a vector"));
    }
    let index = long(index, "index_select")?;
    let source = at_least_1d(x)?;
    let count = index.elements();
    if x.rank() == 0 && count != 1 {
        refuse!("index_select(): Index to scalar can have only 1 value, got {count} value(s)");
    }
    let mut shape: Shape = source.shape().into();
    shape[dim] = count;
    let rows = outer_inner(&source, dim)?;
    let index = index.reshape(&[1, count, 1])?.expand(&[rows.shape()[0], count, rows.shape()[2]])?;
    let _report = OutOfRangeReport::of("index_select", RangeOf::Dimension(dim));
    let result = gathered(&rows, &index)?;
    result.reshape(if x.rank() == 0 { &[] } else { shape.as_slice() })
}

/// A write at indices of a dimension with the source's shape.
struct Along<'a> {
    operator: &'static str,
    /// The operator's own name, under which the device reports indices out of range.
    reported: &'static str,
    x: &'a Tensor,
    dim: i64,
    index: &'a Tensor,
}

impl<'a> Along<'a> {
    fn of(call: &'a Call<'a>, operator: &'static str) -> Self {
        let reported = name_of(call);
        Self { operator, reported, x: call.tensor(0), dim: call.int(1), index: call.tensor(2) }
    }

    /// Checks dtypes and shapes, and brings indices and source into the form of the target.
    fn prepare(&self, source: &Tensor) -> Result<Write> {
        let Self { operator, reported, x, .. } = *self;
        let dim = wrap(self.dim, x.rank())?;
        let index = long(self.index, operator)?;
        refuse_if!(
            source.dtype() != x.dtype(),
            "{operator}(): Expected self.dtype to be equal to src.dtype, but got {} and {}",
            x.dtype(),
            source.dtype()
        );
        if index.elements() == 0 {
            return Ok(Write { x: x.clone(), dim, source: source.clone(), parts: None });
        }
        for (other, name) in [(x, "self"), (source, "src")] {
            if other.rank().max(1) != index.rank().max(1) {
                refuse!("Index tensor must have the same number of dimensions as {name} tensor");
            }
        }
        let (target, index, mut source) = (at_least_1d(x)?, at_least_1d(&index)?, at_least_1d(source)?);
        // The kernels that write skip an index that is out of range, which is reported here.
        let _report = OutOfRangeReport::of(reported, RangeOf::Dimension(dim));
        let arguments = [(&index).into(), (target.shape()[dim] as i64).into()];
        super::call(built_in!("thalweg::index_check")?, &arguments, None, std::panic::Location::caller())?;
        let mut padding: SmallVec<[i64; 12]> = SmallVec::new();
        for at in (0..index.rank()).rev() {
            let [whole, count, available] = [&target, &index, &source].map(|tensor| tensor.shape()[at]);
            refuse_if!(
                count > available || (at != dim && count > whole),
                "Expected index {:?} to be no larger than self {:?} apart from dimension {dim} and to be no larger size than \
                 src {:?}",
                index.shape(),
                target.shape(),
                source.shape()
            );
            source = source.narrow(at as i64, 0, count)?;
            padding.extend([0, if at == dim { 0 } else { (whole - count) as i64 }]);
        }
        // If the target has more elements than there are indices, the padding is an index out of range, which writes nothing.
        let index = pad(&index, &padding, Scalar::I64(-1))?;
        let source = pad(&source, &padding, Scalar::I64(0))?;
        let parts = Some([outer_inner(&index, dim)?, outer_inner(&source, dim)?]);
        Ok(Write { x: x.clone(), dim, source, parts })
    }

    fn scatter(&self, source: &Tensor, combine: Combine) -> Result<Tensor> {
        self.prepare(source)?.combined(combine)
    }

    fn scatter_number(&self, number: Scalar, combine: Combine) -> Result<Tensor> {
        let source = number_like(self.x, number)?.expand(self.index.shape())?;
        self.scatter(&source, combine)
    }

    fn reduce(&self, source: &Tensor, reduce: &str, include_self: bool) -> Result<Tensor> {
        self.prepare(source)?.reduced(reduce, include_self)
    }
}

/// A write whose arguments were checked: a target and, if there are any, indices and a source, broadcast to its form.
pub(super) struct Write {
    pub(super) x: Tensor,
    pub(super) dim: usize,
    pub(super) source: Tensor,
    /// The indices and the source in the form of the target; `None` if nothing is written.
    pub(super) parts: Option<[Tensor; 2]>,
}

impl Write {
    /// Returns a copy of the target, for a write of nothing. A source that requires a gradient is still recorded: its gradient is
    /// zero.
    fn unchanged(&self) -> Result<Tensor> {
        if !(is_grad_enabled() && self.source.requires_grad()) {
            return self.x.copied(std::panic::Location::caller());
        }
        // Subtracts an empty sum. Adding 0 would turn -0 into 0.
        self.x.sub(&at_least_1d(&self.source)?.narrow(0, 0, 0)?.sum(&[], false)?)
    }

    pub(super) fn combined(&self, combine: Combine) -> Result<Tensor> {
        let Some([index, source]) = &self.parts else { return self.unchanged() };
        let target = outer_inner(&at_least_1d(&self.x)?, self.dim)?;
        scatter(&target, index, source, combine)?.reshape(self.x.shape())
    }

    pub(super) fn reduced(&self, reduce: &str, include_self: bool) -> Result<Tensor> {
        let (combine, is_mean) = match reduce {
            "sum" => (Combine::Sum, false),
            "mean" => (Combine::Sum, true),
            "prod" => (Combine::Product, false),
            "amax" => (Combine::Max, false),
            "amin" => (Combine::Min, false),
            _ => {
                refuse!("reduce argument must be either sum, prod, mean, amax or amin, got {reduce}");
            }
        };
        let Some([index, source]) = &self.parts else { return self.combined(combine) };
        let mut target = outer_inner(&at_least_1d(&self.x)?, self.dim)?;
        if !include_self && matches!(combine, Combine::Max | Combine::Min) {
            let arguments = [(&target).into(), index.into(), source.into(), combine.name().into()];
            let location = std::panic::Location::caller();
            return super::call(built_in!("thalweg::scatter_anew")?, &arguments, None, location)?
                .reshape(self.x.shape());
        }
        if !include_self {
            let start = number_like(&target, neutral(combine, target.dtype()))?.expand(index.shape())?;
            target = scatter(&target, index, &start, Combine::Replace)?;
        }
        let result = scatter(&target, index, source, combine)?;
        let result = if is_mean { self.divided(&result, index, include_self)? } else { result };
        result.reshape(self.x.shape())
    }

    /// Divides sums by the number of their elements; integers are rounded down.
    fn divided(&self, sums: &Tensor, index: &Tensor, include_self: bool) -> Result<Tensor> {
        let dtype = if sums.dtype().is_differentiable() { sums.dtype().real() } else { DType::F64 };
        let count_dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let one = Tensor::ones(&[], count_dtype, sums.device())?;
        let ones = Tensor::ones(sums.shape(), count_dtype, sums.device())?;
        let start = match include_self {
            true => ones.clone(),
            false => scatter(&ones, index, &one.sub(&one)?.expand(index.shape())?, Combine::Replace)?,
        };
        let counts = scatter(&start, index, &one.expand(index.shape())?, Combine::Sum)?.maximum(&one)?;
        if sums.dtype().is_differentiable() {
            return sums.div(&counts.to_dtype(dtype)?);
        }
        sums.to_dtype(dtype)?.div(&counts)?.floor()?.to_dtype(sums.dtype())
    }
}

/// Returns the neutral element of a way to combine.
fn neutral(combine: Combine, dtype: DType) -> Scalar {
    let (lowest, highest) = match dtype {
        dtype if dtype.is_differentiable() => (Scalar::F64(f64::NEG_INFINITY), Scalar::F64(f64::INFINITY)),
        DType::Bool => (Scalar::I64(0), Scalar::I64(1)),
        dtype => {
            let bits = 8 * dtype.size_bytes() as u32;
            match dtype.is_signed() {
                true => (Scalar::I64(i64::MIN >> (64 - bits)), Scalar::I64(i64::MAX >> (64 - bits))),
                false => (Scalar::I64(0), Scalar::I64((1 << bits) - 1)),
            }
        }
    };
    match combine {
        Combine::Product => Scalar::I64(1),
        Combine::Max => lowest,
        Combine::Min => highest,
        Combine::Replace | Combine::Sum => Scalar::I64(0),
    }
}

fn take_along_dim(call: &Call<'_>) -> Result<Tensors> {
    let (x, indices) = (call.tensor(0), call.tensor(1));
    if indices.dtype() != DType::I64 {
        refuse!("torch.take_along_dim(): dtype of indices should be Long but got {}", indices.dtype());
    }
    // Negative indices are counted from the end.
    let wrapped = |extent: usize, indexed: RangeOf| {
        checked(indices, (-(extent as i64), extent), ("take_along_dim", indexed))
    };
    let Some(dim) = call.optional_int(2) else {
        let indices = wrapped(x.elements(), RangeOf::Elements)?;
        let flat = x.reshape(&[x.elements()])?;
        return flat.gather(0, &indices.reshape(&[indices.elements()])?).map(single);
    };
    refuse_if!(
        x.rank() != indices.rank(),
        "torch.take_along_dim(): input and indices should have the same number of dimensions, but got {} dimensions for input, \
         and {} dimensions for indices",
        x.rank(),
        indices.rank()
    );
    let at = wrap(dim, x.rank())?;
    if x.rank() == 0 {
        return x.gather(0, &wrapped(1, RangeOf::Dimension(0))?).map(single);
    }
    let indices = wrapped(x.shape()[at], RangeOf::Dimension(at))?;
    let (mut of_x, mut of_indices): (Shape, Shape) = (x.shape().into(), indices.shape().into());
    (of_x[at], of_indices[at]) = (1, 1);
    let shared = thalweg_ir::broadcast_shapes(&of_x, &of_indices)?;
    let with = |extent: usize| -> Shape {
        let mut shape = shared.clone();
        shape[at] = extent;
        shape
    };
    let source = x.expand(&with(x.shape()[at]))?;
    source.gather(at as i64, &indices.expand(&with(indices.shape()[at]))?).map(single)
}

/// Returns the gradient of a gather of complex numbers.
fn gather_backward_of_complex(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, index) = (call.tensor(0), call.tensor(1));
    let &[outer, _, inner] = gradient.shape() else {
        refuse!("the gradient is (outer, count, inner)");
    };
    let zeros = Tensor::zeros(&[outer, extents(&[call.int(2)])?[0], inner], gradient.dtype(), call.device)?;
    scatter(&zeros, index, gradient, Combine::Sum).map(single)
}
