//! The value at each row's class, and its gradient: only that element of a row is read, or has a gradient other than 0.

use smallvec::SmallVec;
use thalweg_ir::{DType, Dimensions, Scalar, Shape};
use thalweg_ops::Placement;
use thalweg_ops::structured::{INDEX_COPY, NLL_LOSS, NLL_LOSS_WEIGHTED};
use thalweg_runtime::{Error, OutOfRangeReport, RangeOf, Result, invalid, refuse};

use super::indexing::strided;
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::is_grad_enabled;
use crate::dispatch::{self, Arguments, Call, built_in};
use crate::loops::launch_placed;
use crate::tensor::{Tensor, Tensors};

/// Returns the extents around a dimension.
fn extents_around(shape: &[usize], dimension: usize) -> [usize; 3] {
    let (outer, rest) = shape.split_at(dimension);
    [outer.iter().product(), rest[0], rest[1..].iter().product()]
}

/// Refuses classes, or weights, that do not fit; returns the extents around the dimension of classes.
fn checked(call: &Call<'_>) -> Result<[usize; 3]> {
    let (x, target) = (call.tensor(0), call.tensor(1));
    let dimension = usize::try_from(call.int(4)).ok().filter(|&dimension| dimension < x.rank());
    let Some(dimension) = dimension else {
        refuse!("{x:?} has no dimension {} of classes", call.int(4));
    };
    let mut rows: Shape = x.shape().into();
    let classes = rows.remove(dimension);
    if target.shape() != rows.as_slice() || target.dtype() != DType::I64 {
        refuse!("the classes are int64 {rows:?}, not {target:?}");
    }
    match call.optional_tensor(2) {
        Some(weight) if weight.shape() != [classes] || weight.dtype() != x.dtype() => {
            Err(invalid!("the weights are {} [{classes}], not {weight:?}", x.dtype()))
        }
        _ => Ok(extents_around(x.shape(), dimension)),
    }
}

/// Returns −x at each row's class times the class's weight, and that weight, in the compute dtype of x.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let [outer, classes, inner] = checked(call)?;
    let (x, target) = (call.tensor(0).contiguous()?, call.tensor(1).contiguous()?);
    let compute = x.dtype().compute();
    let result = || call.new_result(target.shape(), compute);
    let results: Tensors = [result()?, result()?].into_iter().collect();
    let mut placements: SmallVec<[Placement; 8]> = SmallVec::new();
    placements.push(Placement::Gathered(x.elements() as u64));
    placements.push(strided(&[inner, 1], &[]));
    let weight = call.optional_tensor(2).map(Tensor::contiguous).transpose()?;
    placements.extend(weight.iter().map(|weight| Placement::Gathered(weight.elements() as u64)));
    placements.extend([(); 2].map(|()| strided(&[inner, 1], &[])));
    let operator = if weight.is_some() { &NLL_LOSS_WEIGHTED } else { &NLL_LOSS };
    let inputs: SmallVec<[&Tensor; 3]> = [&x, &target].into_iter().chain(&weight).collect();
    let _report = OutOfRangeReport::of(call.label.operator, RangeOf::Classes);
    let scalars = [classes as u64, call.int(3) as u64, inner as u64];
    launch_placed(operator, (&[outer, inner], &[]), (&inputs, &results), placements, &scalars, call.label)?;
    Ok(results)
}

/// The gradient of the losses with respect to x. The weights have none.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[1],
    outputs: &[1],
    backward: |call| call.one(0, || if is_grad_enabled() { by_operators(call) } else { by_kernel(call) }),
};

/// Returns which rows are ignored.
fn ignored(call: &GradientCall<'_>) -> Result<Tensor> {
    let target = call.saved(1)?;
    target.eq(&Tensor::full(&[], Scalar::I64(call.int(3)), target.dtype(), call.device())?)
}

/// Returns the gradients of the elements at the classes, in x's dtype: 0 where the row is ignored, also where the gradient is infinite
/// because all rows of a mean are.
fn at_classes(call: &GradientCall<'_>) -> Result<Tensor> {
    let counted = call.gradient()?.mul(&call.result(1)?)?.neg()?;
    counted.masked_fill(&ignored(call)?, 0)?.to_dtype(call.dtype_of(0))
}

fn by_kernel(call: &GradientCall<'_>) -> Result<Tensor> {
    let (value, target) = (at_classes(call)?.contiguous()?, call.saved(1)?.contiguous()?);
    let [outer, classes, inner] = extents_around(call.shape(0), call.int(4) as usize);
    let result = Tensor::zeros(call.shape(0), call.dtype_of(0), call.device())?;
    let row =
        Placement::Strided { rows: [inner as u64, 0, 1].into_iter().collect(), inner: Dimensions::new() };
    let placements = [row.clone(), row, Placement::Gathered(result.elements() as u64)];
    launch_placed(
        &INDEX_COPY,
        (&[outer, 1, inner], &[]),
        (&[&value, &target], std::slice::from_ref(&result)),
        placements.into_iter().collect(),
        &[classes, classes * inner, inner, 1].map(|number| number as u64),
        call.label(),
    )?;
    Ok(result)
}

/// Returns the gradient, computed by operators that record their own.
fn by_operators(call: &GradientCall<'_>) -> Result<Tensor> {
    let target = call.saved(1)?;
    let [outer, classes, inner] = extents_around(call.shape(0), call.int(4) as usize);
    // An ignored row adds 0 to the first class.
    let index = target.masked_fill(&ignored(call)?, 0)?;
    let (value, index) = (at_classes(call)?.reshape(&[outer, 1, inner])?, index.reshape(&[outer, 1, inner])?);
    let arguments = [(&value).into(), (&index).into(), (classes as i64).into()];
    let location = call.label().location;
    dispatch::call(built_in!("thalweg::gather_backward")?, &arguments, None, location)?.reshape(call.shape(0))
}
