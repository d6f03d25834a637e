//! Reading and writing at positions given by several index tensors, or where a mask is true.
//!
//! The indices are converted to positions: numbers of a tensor's elements, or of those of its indexed dimensions, at which
//! [`index`](super::index) reads and writes. **If the result's length is the number of true elements of a mask, it is known only
//! once the host has read that number**: such a call blocks, and cannot be captured.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape, broadcast_shapes, inverse_order};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, Label, OutOfRangeReport, RangeOf, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable, Kernel};
use super::index::{checked, gathered, long, number_like};
use super::view::dtype_of;
use super::{operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::dtype_name::{named, overflow};
use crate::kernels::compact::Selection;
use crate::kernels::creation::{converted, represented};
use crate::kernels::indexing::call_scatter as scatter;
use crate::tensor::{Tensor, Tensors};
use crate::warning::warn;

operators! {
    /// Returns the elements at indices given by tensors, broadcast against each other, for the first dimensions; a missing tensor
    /// selects all indices, truth values select where they are true.
    "index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"
        fn index(indices: optional_tensors) = Composite(|call| {
            let x = call.tensor(0);
            if let Some((_, mask)) = only_mask(call, x).filter(|(_, mask)| mask.shape() == x.shape()) {
                let arguments = [x.into(), mask.into()];
                return super::call(built_in!("thalweg::compact")?, &arguments, None, call.label.location).map(single);
            }
            match Indexed::new(call, x)? {
                None => x.copied(call.label.location).map(single),
                Some(indexed) => indexed.read(x).map(single),
            }
        });
    /// Returns the tensor with values written at indices given by tensors, or added to the elements there.
    "index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"
        fn index_put(indices: optional_tensors, values: tensor, accumulate: bool) = Composite(|call| {
            let (x, values) = (call.tensor(0), call.tensor(2));
            if let Some(mask) = mask_of(call, x).filter(|_| values.elements() == 1 && !call.bool(3)) {
                check_written(x, values)?;
                return mask?.select_where(&values.reshape(())?, x).map(single);
            }
            match Indexed::new(call, x)? {
                None if call.bool(3) => {
                    check_written(x, values)?;
                    x.add(&broadcast_values(values, x.shape())?).map(single)
                }
                None => broadcast_values(values, x.shape())?.copied(call.label.location).map(single),
                Some(indexed) => indexed.write(x, values, call.bool(3)).map(single),
            }
        }), first: Consumed, autocast: Widest;
    /// Returns the elements at indices given by tensors where a mask is true, else a number; where the mask is false, an index
    /// need not be in range.
    "_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor" = Composite(|call| {
        let (x, mask) = (call.tensor(0), call.tensor(1));
        let indices = call.argument(2);
        let read = built_in!("index.Tensor")?.call(&[x.into(), in_range(x, indices)?.as_slice().into()], None, call.label)?;
        mask.logical_not()?.select_where(&number_like(x, call.scalar(3))?, &read[0]).map(single)
    });
    /// Returns the tensor with values added at indices given by tensors where a mask is true.
    "_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor"
        = Composite(|call| {
            let (x, mask, values) = (call.tensor(0), call.tensor(1), call.tensor(3));
            let values = mask.select_where(values, &Tensor::zeros(&[], x.dtype(), x.device())?)?;
            let indices = in_range(x, call.argument(2))?;
            let arguments = [x.into(), indices.as_slice().into(), (&values).into(), true.into()];
            built_in!("index_put")?.call(&arguments, None, call.label)
        });
    /// Returns the tensor with a number where a mask is true.
    "masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor"
        fn masked_fill(mask: tensor, value: scalar) = Composite(|call| {
            let value = number_like(call.tensor(0), call.scalar(2))?;
            masked_fill(call, &value).map(single)
        }), first: Consumed;
    /// Returns the tensor with the only element of another where a mask is true.
    "masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor"
        fn masked_fill_tensor(mask: tensor, value: tensor)
        = Composite(|call| {
        let value = call.tensor(2);
        refuse_if!(
            value.rank() != 0,
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).",
            value.rank()
        );
        let dtype = call.tensor(0).dtype();
        if value.dtype().is_complex() && !dtype.is_complex() {
            return Err(overflow(dtype));
        }
        masked_fill(call, &value.to_dtype(dtype)?).map(single)
    }), first: Consumed;
    /// Returns the tensor with the elements of a source, in order, where a mask is true. Blocks.
    "masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"
        fn masked_scatter(mask: tensor, source: tensor) = Composite(|call| masked_scatter(call).map(single)), first: Consumed;
    /// Returns the elements where a mask is true, as a vector. Blocks.
    "masked_select(Tensor self, Tensor mask) -> Tensor"
        fn masked_select(mask: tensor) = Composite(|call| masked_select(call).map(single)), out: [OfResult, Unshared];
    /// Returns the elements whose flags, of the same shape, are set, as a vector. Blocks.
    "thalweg::compact(Tensor self, Tensor mask) -> Tensor" = Differentiable(compact, &COMPACT), complex: Taken;
    /// Returns a tensor with the elements of a source, in order, where flags of its shape are set. Blocks.
    "thalweg::replace(Tensor self, Tensor mask, Tensor source) -> Tensor" = Differentiable(replace, &REPLACE), complex: Taken;
    /// Returns the elements at indices into all elements, row-major; negative indices are counted from the end.
    "take(Tensor self, Tensor index) -> Tensor"
        fn take(index: tensor) = Composite(|call| {
            let (x, index) = (call.tensor(0), flat_index(call, "take")?);
            let rows = x.reshape(&[1, x.elements(), 1])?;
            gathered(&rows, &index)?.reshape(call.tensor(1).shape()).map(single)
        }), out: [OfResult, Unshared];
    /// Returns the tensor with the elements of a source written at indices into all elements, or added to the elements there.
    "put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"
        fn put(index: tensor, source: tensor, accumulate: bool) = Composite(|call| {
            let (x, index, source) = (call.tensor(0), flat_index(call, "put_")?, call.tensor(2));
            refuse_if!(
                source.dtype() != x.dtype(),
                "put_(): self and source expected to have the same dtype, but got self.dtype = {} and source.dtype = {}",
                x.dtype(),
                source.dtype()
            );
            refuse_if!(
                source.elements() != index.elements(),
                "put_(): Expected source and index to have the same number of elements, but got source.numel() = {}, \
                 index.numel() = {}",
                source.elements(),
                index.elements()
            );
            let rows = x.reshape(&[1, x.elements(), 1])?;
            let combine = if call.bool(3) { Combine::Sum } else { Combine::Replace };
            scatter(&rows, &index, &source.reshape(index.shape())?, combine)?.reshape(x.shape()).map(single)
        }), first: Consumed;
    /// Returns the coordinates of the elements that are not 0, one row each. Blocks.
    "nonzero(Tensor self) -> Tensor" fn nonzero() = Kernel(|call| nonzero(call.tensor(0), call.label).map(single)), out: [Long], complex: Taken;
    /// Returns the coordinates of the elements that are not 0, one tensor per dimension. Blocks.
    "nonzero_numpy(Tensor self) -> Tensor[]" fn nonzero_numpy() -> list = Kernel(|call| coordinates(call.tensor(0), call.label)), complex: Taken;
    /// Returns the coordinates of the elements that are not 0, one row each. Blocks.
    "argwhere(Tensor self) -> Tensor" fn argwhere() = Kernel(|call| nonzero(call.tensor(0), call.label).map(single)), complex: Taken;
    /// Returns the coordinates where a condition is true, one tensor per dimension. Blocks.
    "where(Tensor condition) -> Tensor[]" = Kernel(|call| coordinates(call.tensor(0), call.label));
    /// Returns a number where a condition is true, else the elements of a tensor.
    "where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor" = Composite(|call| {
        call.tensor(0).select_where(&number_within(call, 1, call.tensor(2))?, call.tensor(2)).map(single)
    }), autocast: Parts;
    /// Returns the elements of a tensor where a condition is true, else a number.
    "where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor" = Composite(|call| {
        call.tensor(0).select_where(call.tensor(1), &number_within(call, 2, call.tensor(1))?).map(single)
    }), autocast: Parts;
    /// Returns a number where a condition is true, else another.
    "where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor" = Composite(|call| {
        call.tensor(0).select_where(&number(call, 1)?, &number(call, 2)?).map(single)
    }), autocast: Parts;
    /// Returns classes as rows with a 1 at the class, in int64. If the number of classes is −1, it is one more than the greatest
    /// class, and the call blocks.
    "one_hot(Tensor self, int num_classes=-1) -> Tensor"
        fn one_hot(num_classes: int) = Kernel(|call| one_hot(call).map(single));
}

/// Returns positions with one more index added, in a dimension of this extent and stride; −1 where an index is out of range.
pub(super) fn place(sum: &Tensor, index: &Tensor, extent: usize, stride: usize) -> Result<Tensor> {
    let numbers = [extent, stride].map(|number| Argument::Scalar(Scalar::I64(number as i64)));
    let arguments = [sum.into(), index.into(), numbers[0], numbers[1]];
    super::call(built_in!("thalweg::place")?, &arguments, None, Location::caller())
}

/// The positions that index tensors select in a tensor.
struct Indexed {
    /// The dimensions of the tensor, the indexed ones first.
    order: Shape,
    /// The number of dimensions that are indexed.
    count: usize,
    /// The positions in the indexed dimensions.
    places: Tensor,
    /// The number of the other dimensions that come before those of the positions in a result.
    leading: usize,
}

impl Indexed {
    /// Reads the indices of a call; `None` if all are missing.
    fn new(call: &Call<'_>, x: &Tensor) -> Result<Option<Self>> {
        let list = expanded(call, x)?;
        if list.len() > x.rank() {
            return Err(Error::index(format!(
                "too many indices for tensor of dimension {} (got {})",
                x.rank(),
                list.len()
            )));
        }
        let indexed: Shape = (0..list.len()).filter(|&dim| list[dim].is_some()).collect();
        let (Some(&first), Some(&last)) = (indexed.first(), indexed.last()) else { return Ok(None) };
        let mut shape = Shape::new();
        for index in list.iter().flatten() {
            shape = broadcast_shapes(&shape, index.shape()).map_err(|_| {
                let shapes: Vec<String> =
                    list.iter().flatten().map(|index| format!("{:?}", index.shape())).collect();
                Error::index(format!(
                    "shape mismatch: indexing tensors could not be broadcast together with shapes {}",
                    shapes.join(", ")
                ))
            })?;
        }
        let mut places: Option<Tensor> = None;
        let mut stride = 1usize;
        for &dim in indexed.iter().rev() {
            let index = list[dim].as_ref().expect("it is indexed");
            let extent = x.shape()[dim];
            if extent == 0 && !shape.contains(&0) {
                return Err(Error::index(format!(
                    "index is out of bounds for dimension with size 0 (dimension {dim} of {:?})",
                    x.shape()
                )));
            }
            let report = (call.label.operator, RangeOf::Dimension(dim));
            places = Some(match places {
                None => checked(index, (-(extent as i64), extent), report)?,
                Some(places) => {
                    let _report = OutOfRangeReport::of(report.0, report.1);
                    place(&places, index, extent, stride)?
                }
            });
            stride = stride.saturating_mul(extent);
        }
        let places = places.expect("a dimension is indexed").expand(&shape)?;
        let others = (0..x.rank()).filter(|dim| !indexed.contains(dim));
        let order = indexed.iter().copied().chain(others).collect();
        // If the indexed dimensions are adjacent, the result's dimensions replace them; otherwise they come first.
        let leading = if last - first + 1 == indexed.len() { first } else { 0 };
        Ok(Some(Self { order, count: indexed.len(), places, leading }))
    }

    /// Returns the tensor as (1, indexed elements, others), and the extents of the others.
    fn rows(&self, x: &Tensor) -> Result<(Tensor, Shape)> {
        let moved = x.permute(&self.order)?;
        let (indexed, others) = moved.shape().split_at(self.count);
        let others: Shape = others.into();
        Ok((moved.reshape(&[1, indexed.iter().product(), others.iter().product()])?, others))
    }

    /// Returns the positions, repeated for each element of the other dimensions.
    fn index(&self, inner: usize) -> Result<Tensor> {
        let count = self.places.elements();
        self.places.reshape(&[1, count, 1])?.expand(&[1, count, inner])
    }

    /// Returns the permutation from a result's dimensions to those of the positions followed by the others.
    fn result_order(&self, others: usize) -> Shape {
        let rank = self.places.rank();
        let places = self.leading..self.leading + rank;
        places.clone().chain((0..rank + others).filter(|dim| !places.contains(dim))).collect()
    }

    fn read(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, others) = self.rows(x)?;
        let result = gathered(&rows, &self.index(rows.shape()[2])?)?;
        let shape: Shape = self.places.shape().iter().chain(&others).copied().collect();
        let order = self.result_order(others.len());
        result.reshape(&shape)?.permute(&inverse_order(&order))?.contiguous()
    }

    fn write(&self, x: &Tensor, values: &Tensor, accumulates: bool) -> Result<Tensor> {
        let (rows, others) = self.rows(x)?;
        let order = self.result_order(others.len());
        let moved: Shape = self.places.shape().iter().chain(&others).copied().collect();
        let mut shape: Shape = SmallVec::from_elem(0, order.len());
        order.iter().enumerate().for_each(|(to, &from)| shape[from] = moved[to]);
        // Leading extents of 1 are ignored.
        let added = values.rank().saturating_sub(shape.len());
        let values = match values.shape()[..added].iter().all(|&extent| extent == 1) {
            true => values.reshape(&values.shape()[added..])?,
            false => values.clone(),
        };
        let values = broadcast_values(&values, &shape)?;
        check_written(x, &values)?;
        let source = values.permute(&order)?.reshape(&[1, self.places.elements(), rows.shape()[2]])?;
        let combine = if accumulates { Combine::Sum } else { Combine::Replace };
        let written = scatter(&rows, &self.index(rows.shape()[2])?, &source, combine)?;
        let moved: Shape = self.order.iter().map(|&dim| x.shape()[dim]).collect();
        written.reshape(&moved)?.permute(&inverse_order(&self.order))?.contiguous()
    }
}

/// Returns a mask of bytes as one of truth values, with PyTorch's warning.
pub(crate) fn truth_values(mask: &Tensor) -> Result<Tensor> {
    warn("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    mask.detach().to_dtype(DType::Bool)
}

/// Returns values broadcast to the shape of the written part.
fn broadcast_values(values: &Tensor, shape: &[usize]) -> Result<Tensor> {
    values.expand(shape).map_err(|_| {
        invalid!(
            "shape mismatch: value tensor of shape {:?} cannot be broadcast to indexing result of shape {shape:?}",
            values.shape()
        )
    })
}

/// Refuses values whose dtype differs from that of the tensor.
fn check_written(x: &Tensor, values: &Tensor) -> Result<()> {
    if values.dtype() == x.dtype() {
        return Ok(());
    }
    let [own, given] = [x.dtype(), values.dtype()].map(named);
    Err(invalid!(
        "Index put requires the source and destination dtypes match, got {own} for the destination and {given} for the source."
    ))
}

/// Returns the index of a call and the dimension at which it begins, if there is one index, which is a mask, and its extents are those
/// of the tensor from that dimension on.
fn only_mask<'a>(call: &'a Call<'_>, x: &Tensor) -> Option<(usize, &'a Tensor)> {
    let Argument::OptionalTensors(list) = call.argument(1) else { return None };
    let (first, mask) = list.iter().enumerate().find_map(|(at, index)| Some((at, index.as_ref()?)))?;
    let is_only = list.iter().flatten().count() == 1;
    let fits = x.shape().get(first..first + mask.rank()) == Some(mask.shape());
    (is_only && mask.dtype() == DType::Bool && mask.rank() > 0 && fits).then_some((first, mask))
}

/// Returns the only index of a call, if it is a mask whose extents match the tensor's, as a mask that is broadcast to the tensor.
fn mask_of(call: &Call<'_>, x: &Tensor) -> Option<Result<Tensor>> {
    let (first, mask) = only_mask(call, x)?;
    let mut shape: Shape = mask.shape().into();
    shape.resize(x.rank() - first, 1);
    Some(mask.reshape(&shape))
}

/// Returns index tensors with indices out of range moved into the range.
fn in_range(x: &Tensor, indices: Argument<'_>) -> Result<Vec<Option<Tensor>>> {
    let given: Vec<Option<&Tensor>> = match indices {
        Argument::OptionalTensors(given) => given.iter().map(Option::as_ref).collect(),
        Argument::Tensors(given) => given.iter().map(Some).collect(),
        _ => Vec::new(),
    };
    let moved = |(dim, index): (usize, Option<&Tensor>)| {
        let extent = x.shape().get(dim).map_or(1, |&extent| extent as i64);
        index.map(|index| index.clamp(-extent, extent - 1)).transpose()
    };
    given.into_iter().enumerate().map(moved).collect()
}

/// Returns the indices of a call, in int64; truth values are replaced by the coordinates where they are true.
fn expanded(call: &Call<'_>, x: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let mut list = Vec::new();
    let given: Vec<Option<&Tensor>> = match call.argument(1) {
        Argument::OptionalTensors(given) => given.iter().map(Option::as_ref).collect(),
        Argument::Tensors(given) => given.iter().map(Some).collect(),
        _ => Vec::new(),
    };
    for index in given {
        match index.map(|index| (index, index.dtype())) {
            None => list.push(None),
            Some((index, DType::I64 | DType::I32)) => list.push(Some(index.to_dtype(DType::I64)?)),
            Some((mask, dtype @ (DType::Bool | DType::U8))) => {
                let mask = &(if dtype == DType::U8 { truth_values(mask)? } else { mask.clone() });
                for (dim, &extent) in mask.shape().iter().enumerate() {
                    if x.shape().get(list.len() + dim) != Some(&extent) {
                        return Err(Error::index(format!(
                            "The shape of the mask {:?} at index {dim} does not match the shape of the indexed tensor {:?} at index \
                             {}",
                            mask.shape(),
                            x.shape(),
                            list.len() + dim
                        )));
                    }
                }
                list.extend(coordinates(mask, call.label)?.into_iter().map(Some));
            }
            Some(_) => {
                return Err(Error::index("tensors used as indices must be long, int, byte or bool tensors"));
            }
        }
    }
    Ok(list)
}

fn nonzero(x: &Tensor, label: Label) -> Result<Tensor> {
    Selection::new(x, label)?.coordinates(x.shape())
}

/// Returns the coordinates of the elements that are not 0, one tensor per dimension.
fn coordinates(x: &Tensor, label: Label) -> Result<Tensors> {
    if x.rank() == 0 {
        return coordinates(&x.unsqueeze(0)?, label);
    }
    let rows = nonzero(x, label)?;
    (0..x.rank()).map(|dim| rows.select(1, dim)?.contiguous()).collect()
}

/// Checks that each element of a tensor has a flag.
fn check_flags(x: &Tensor, mask: &Tensor) -> Result<()> {
    match x.shape() == mask.shape() {
        true => Ok(()),
        false => {
            Err(invalid!("the flags have the shape {:?}, not the tensor's {:?}", mask.shape(), x.shape()))
        }
    }
}

/// Returns the elements of a tensor whose flags, of the same shape, are set.
fn compact(call: &Call<'_>) -> Result<Tensors> {
    let (x, mask) = (call.tensor(0), call.tensor(1));
    check_flags(x, mask)?;
    Selection::new(mask, call.label)?.values(x).map(single)
}

/// Returns a tensor with the elements of a source in order where flags of its shape are set.
fn replace(call: &Call<'_>) -> Result<Tensors> {
    let (x, mask, source) = (call.tensor(0), call.tensor(1), call.tensor(2));
    check_flags(x, mask)?;
    refuse_if!(source.dtype() != x.dtype(), "the source must be {}, not {}", x.dtype(), source.dtype());
    let selection = Selection::new(mask, call.label)?;
    refuse_if!(
        source.elements() < selection.count,
        "masked_scatter: expected the number of elements in source to be at least the {} true elements of the mask, but got {}",
        selection.count,
        source.elements()
    );
    selection.replaced(x, source).map(single)
}

fn call_replace(x: &Tensor, mask: &Tensor, source: &Tensor, label: Label) -> Result<Tensor> {
    let arguments = [x.into(), mask.into(), source.into()];
    super::call(built_in!("thalweg::replace")?, &arguments, None, label.location)
}

/// The gradient of [`compact`]: each element's where it was read, and 0 elsewhere.
static COMPACT: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let gradient = call.gradient()?;
            let zeros = Tensor::zeros(call.shape(0), gradient.dtype(), call.device())?;
            call_replace(&zeros, &call.saved(1)?, &gradient, call.label())
        })
    },
};

/// The gradient of [`replace`]: that of the elements that were kept, and of those that replaced others.
static REPLACE: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        let (gradient, mask) = (call.gradient()?, call.saved(1)?);
        call.each(|tensor| match tensor {
            0 => mask.select_where(&number_like(&gradient, Scalar::F64(0.0))?, &gradient).map(Some),
            2 => {
                let arguments = [(&gradient).into(), (&mask).into()];
                let operator = built_in!("thalweg::compact")?;
                let read = super::call(operator, &arguments, None, call.label().location)?;
                let unread: usize = call.shape(2).iter().product::<usize>() - read.elements();
                let zeros = Tensor::zeros(&[unread], gradient.dtype(), call.device())?;
                Tensor::cat(&[read, zeros], 0)?.reshape(call.shape(2)).map(Some)
            }
            _ => Ok(None),
        })
    },
};

fn check_mask(mask: &Tensor, operator: &str) -> Result<()> {
    match mask.dtype() {
        DType::Bool => Ok(()),
        other => Err(invalid!("{operator} only supports boolean masks, but got mask with dtype {other}")),
    }
}

/// Returns a number as a tensor without dimensions. It takes the dtype of the tensor that it is combined with, if that is of the
/// number's category or a higher one.
pub(super) fn number_beside(call: &Call<'_>, place: usize, tensor: &Tensor) -> Result<Tensor> {
    let (scalar, dtype) = (call.scalar(place), tensor.dtype());
    if dtype_of(scalar).category() > dtype.category() {
        return number(call, place);
    }
    converted(scalar, dtype, call.device)
}

/// Returns a number as [`number_beside`] does, and refuses one that the tensor's dtype cannot represent.
fn number_within(call: &Call<'_>, place: usize, tensor: &Tensor) -> Result<Tensor> {
    let (scalar, dtype) = (call.scalar(place), tensor.dtype());
    match dtype_of(scalar).category() > dtype.category() {
        true => number(call, place),
        false => represented(scalar, dtype, call.device),
    }
}

fn number(call: &Call<'_>, place: usize) -> Result<Tensor> {
    converted(call.scalar(place), dtype_of(call.scalar(place)), call.device)
}

fn masked_fill(call: &Call<'_>, value: &Tensor) -> Result<Tensor> {
    check_mask(call.tensor(1), "masked_fill")?;
    call.tensor(1).select_where(value, call.tensor(0))
}

fn masked_select(call: &Call<'_>) -> Result<Tensor> {
    let (x, mask) = (call.tensor(0), call.tensor(1));
    if mask.dtype() != DType::Bool {
        refuse!("masked_select: expected BoolTensor for mask, but got {}", mask.dtype());
    }
    let shape = broadcast_shapes(x.shape(), mask.shape())?;
    let (x, mask) = (x.expand(&shape)?, mask.expand(&shape)?);
    let arguments = [(&x).into(), (&mask).into()];
    super::call(built_in!("thalweg::compact")?, &arguments, None, call.label.location)
}

fn masked_scatter(call: &Call<'_>) -> Result<Tensor> {
    let (x, mask, source) = (call.tensor(0), call.tensor(1), call.tensor(2));
    check_mask(mask, "masked_scatter_")?;
    refuse_if!(
        source.dtype() != x.dtype(),
        "masked_scatter: expected self and source to have same dtypes but got {} and {}",
        x.dtype(),
        source.dtype()
    );
    let shape = broadcast_shapes(x.shape(), mask.shape())?;
    call_replace(&x.expand(&shape)?, &mask.expand(&shape)?, source, call.label)
}

/// Returns indices into all elements of the first tensor as (1, count, 1).
fn flat_index(call: &Call<'_>, operator: &str) -> Result<Tensor> {
    let (x, index) = (call.tensor(0), call.tensor(1));
    if index.dtype() != DType::I64 {
        refuse!("{operator}(): Expected a long tensor for index, but got {}", index.dtype());
    }
    refuse_if!(x.elements() == 0 && index.elements() > 0, "{operator}(): tried to take from an empty tensor");
    let index = index.reshape(&[1, index.elements(), 1])?;
    let count = x.elements();
    checked(&index, (-(count as i64), count), (call.label.operator, RangeOf::Elements))
}

fn one_hot(call: &Call<'_>) -> Result<Tensor> {
    let (x, classes) = (call.tensor(0), call.int(1));
    refuse_if!(x.dtype() != DType::I64, "one_hot is only applicable to index tensor of type LongTensor.");
    let x = long(x, "one_hot")?;
    refuse_if!(x.elements() == 0 && classes <= 0, "Can not infer total number of classes from empty tensor.");
    let classes = match classes {
        -1 => {
            let list = x.to_vec::<i64>()?;
            refuse_if!(list.iter().any(|&class| class < 0), "Class values must be non-negative.");
            list.into_iter().max().unwrap_or(0).saturating_add(1)
        }
        1.. => classes,
        _ => return Err(invalid!("num_classes should be positive")),
    };
    let all = Tensor::arange(classes as usize, 0i64, 1i64, DType::I64, x.device())?;
    let x = checked(&x, (0, classes as usize), ("one_hot", RangeOf::Classes))?;
    x.unsqueeze(-1)?.eq(&all)?.to_dtype(DType::I64)
}
