//! Reading and writing at indices in device memory: gathering, scattering, embedding with its gradient, and copying in place.

use std::panic::Location;
use std::slice::from_ref;

use smallvec::SmallVec;
use thalweg_ir::{DType, Dimensions, Layout, Shape};
use thalweg_kernels::scatter::atomic::ScatterAtomic;
use thalweg_kernels::scatter::few::ScatterFew;
use thalweg_kernels::scatter::last::LastIndices;
use thalweg_kernels::scatter::narrow::ScatterNarrow;
use thalweg_kernels::scatter::rows::ScatterRows;
use thalweg_kernels::scatter::segments::Segments;
use thalweg_kernels::scatter::tile::ScatterTile;
use thalweg_kernels::scatter::{Combine, ScatterReduce};
use thalweg_kernels::sort::SortIndices;
use thalweg_ops::Placement;
use thalweg_ops::structured::{GATHER, GATHER_REPORTED, INDEX_CHECK, INDEX_COPY};
use thalweg_runtime::{Error, Label, OutOfRangeReport, RangeOf, Result, invalid, refuse, refuse_if};

use crate::autograd::{Backward, Gradients, Saved, record};
use crate::deferred::{self, GatheredRows};
use crate::destination::{are_disjoint, for_kernel_over};
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::dispatch::{Argument, Arguments, Call, built_in, call};
use crate::loops::{launch_placed, widen};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

pub(super) fn strided(rows: &[usize], inner: &[usize]) -> Placement {
    Placement::Strided { rows: widen(rows), inner: widen(inner) }
}

/// Returns the numbers of rows and features of an embedding, and its indices as one contiguous dimension.
fn sizes(weight: &Tensor, indices: &Tensor) -> Result<([usize; 2], Tensor)> {
    let &[embeddings, features] = weight.shape() else {
        refuse!("the weight is (embeddings, features), not {:?}", weight.shape());
    };
    refuse_if!(indices.dtype() != DType::I64, "the indices are {}, not int64", indices.dtype());
    Ok(([embeddings, features], indices.reshape(&[indices.elements()])?.contiguous()?))
}

/// Returns the rows of a weight at indices of any shape.
pub(crate) fn embedding(call: &Call<'_>) -> Result<Tensors> {
    let weight = call.tensors[0].contiguous()?;
    let ([embeddings, features], indices) = sizes(&weight, call.tensors[1])?;
    let shape: Shape = call.tensors[1].shape().iter().copied().chain([features]).collect();
    let result = call.new_result(&shape, weight.dtype())?;
    let _report = OutOfRangeReport::of(call.label.operator, RangeOf::Dimension(0));
    let count = indices.elements();
    let index = indices.reshape(&[1, count, 1])?.expand(&[1, count, features])?;
    gather_into((&weight, &index), &result, [embeddings, features], call.label)?;
    Ok(SmallVec::from_elem(result, 1))
}

/// Records a node that keeps the indices.
pub(crate) fn embedding_autograd(call: &Call<'_>) -> Result<Tensors> {
    // Made contiguous once, for both directions.
    let indices = call.tensors[1].contiguous()?;
    let mut results = call.redispatch_with(&[call.tensors[0], &indices])?;
    let node = EmbeddingBackward {
        indices: Saved::new(&indices)?,
        shape: call.tensors[0].shape().into(),
        // The row whose gradient is always 0; none if it is negative.
        padding: call.scalar(2).to_i64(),
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct EmbeddingBackward {
    indices: Saved,
    shape: Shape,
    padding: i64,
    label: Label,
}

impl Backward for EmbeddingBackward {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let mut results = Gradients::from_elem(None, 2);
        let Some(gradient) = &gradients[0] else { return Ok(results) };
        let (indices, rows) = (self.indices.get()?, self.shape[0] as i64);
        let arguments =
            [gradient.into(), (&indices).into(), rows.into(), self.padding.into(), Argument::Bool(false)];
        results[0] = built_in!("embedding_dense_backward")?.call(&arguments, None, self.label)?.pop();
        Ok(results)
    }

    fn release(&self) {
        self.indices.release();
    }
}

/// Returns a tensor's three extents, or an error if it does not have three dimensions.
fn three(tensor: &Tensor) -> Result<[usize; 3]> {
    tensor.shape().try_into().map_err(|_| {
        invalid!("a tensor (outer, extent, inner) has three dimensions, not {:?}", tensor.shape())
    })
}

/// Returns the shape (outer, count, inner) of indices. The outer dimension may be two: of indices that repeat along one of them, it need
/// not be a single one.
fn shape_of(index: &Tensor) -> Result<[usize; 3]> {
    match *index.shape() {
        [slow, fast, count, inner] => Ok([slow * fast, count, inner]),
        _ => three(index),
    }
}

/// Refuses indices that are not int64 of shape (outer, count, inner), and returns their shape.
fn check_index([outer, _, inner]: [usize; 3], index: &Tensor) -> Result<[usize; 3]> {
    let shape = shape_of(index)?;
    if index.dtype() == DType::I64 && shape[0] == outer && shape[2] == inner {
        return Ok(shape);
    }
    Err(invalid!(
        "the indices are int64 ({outer}, count, {inner}), not {} {:?}",
        index.dtype(),
        index.shape()
    ))
}

/// Reports indices outside of 0 up to an extent (exclusive), except for the one additional index that is allowed. Returns one
/// element, which nothing is written to.
pub(crate) fn index_check(call: &Call<'_>) -> Result<Tensors> {
    let index = call.tensor(0);
    refuse_if!(index.dtype() != DType::I64, "the indices are {}, not int64", index.dtype());
    let result = match index.elements() {
        0 => call.new_empty(&[1], DType::I64)?,
        _ => check_indices(index, [call.int(1) as u64, call.int(2) as u64], call.label)?,
    };
    Ok(SmallVec::from_elem(result, 1))
}

/// Returns the elements of (outer, extent, inner) at indices (outer, count, inner) of the middle dimension.
pub(crate) fn gather(call: &Call<'_>) -> Result<Tensors> {
    let (source, index) = (call.tensor(0).contiguous()?, call.tensor(1));
    let [_, extent, inner] = three(&source)?;
    check_index(three(&source)?, index)?;
    let result = call.new_result(index.shape(), source.dtype())?;
    gather_into((&source, index), &result, [extent, inner], call.label)?;
    Ok(SmallVec::from_elem(result, 1))
}

/// Returns whether a loop that gathers a result may wait, for which another kernel checks the indices.
fn may_wait(result: &Tensor) -> bool {
    deferred::is_on() && deferred::is_large((result.elements() * result.dtype().size_bytes()) as u64)
}

/// Gathers the elements of a contiguous source (outer, extent, inner) at indices (outer, count, inner), by a loop that may wait if the
/// result is large. The outer dimension of indices and result may be two.
fn gather_into(
    (source, index): (&Tensor, &Tensor),
    result: &Tensor,
    [extent, inner]: [usize; 2],
    label: Label,
) -> Result<()> {
    if result.elements() == 0 {
        return Ok(());
    }
    if source.elements() == 0 {
        return Err(Error::index("index is out of bounds for dimension with size 0"));
    }
    let waits = may_wait(result);
    if waits && OutOfRangeReport::is_wanted() {
        check_indices(index, [extent as u64, 0], label)?;
    }
    let mut starts: SmallVec<[usize; 4]> = SmallVec::from_slice(&[extent * inner, 0, 1]);
    if let [_, fast, _, _] = *index.shape() {
        starts.insert(0, fast * extent * inner);
    }
    let rows = Layout::contiguous(index.shape());
    let placements = [
        Placement::Gathered(source.elements() as u64),
        strided(index.layout().strides(), &[]),
        strided(&starts, &[]),
        strided(rows.strides(), &[]),
    ];
    launch_placed(
        if waits { &GATHER_REPORTED } else { &GATHER },
        (index.shape(), &[]),
        (&[source, index, source], from_ref(result)),
        placements.into_iter().collect(),
        &[extent as u64, inner as u64],
        label,
    )
}

/// Reports indices that are not from 0 on below the first number, and not the second. Each that repeats is checked once.
fn check_indices(index: &Tensor, numbers: [u64; 2], label: Label) -> Result<Tensor> {
    let mut list = index.clone();
    for dimension in 0..index.rank() {
        if index.layout().strides()[dimension] == 0 {
            list = list.narrow(dimension as i64, 0, 1)?;
        }
    }
    let (index, stream) = (&list, index.device().current_stream());
    let result = Tensor::empty_on(&[1], DType::I64, &stream, label)?;
    launch_placed(
        &INDEX_CHECK,
        (index.shape(), &[]),
        (&[index], from_ref(&result)),
        [strided(index.layout().strides(), &[]), Placement::Gathered(1)].into_iter().collect(),
        &numbers,
        label,
    )?;
    Ok(result)
}

/// Returns the stride of indices (outer, count, inner) if all elements of a row share an index.
fn stride_of_rows(index: &Tensor) -> Option<u64> {
    let ([by_outer, stride, by_inner], shape) = (strides(index), index.shape());
    let is_list = (shape[0] == 1 || by_outer == 0) && (shape[2] == 1 || by_inner == 0);
    is_list.then_some(stride)
}

/// Returns how a call of `thalweg::scatter` combines elements.
pub(crate) fn combine_of(call: &impl Arguments) -> Result<Combine> {
    let name = call.str(3);
    let found = Combine::ALL.into_iter().find(|combine| combine.name() == name);
    found.ok_or_else(|| {
        let known = Combine::ALL.map(Combine::name).join(", ");
        invalid!("thalweg::scatter: reduce=\"{name}\" does not combine elements: use one of {known}")
    })
}

/// Calls `thalweg::scatter`.
#[track_caller]
pub(crate) fn call_scatter(x: &Tensor, index: &Tensor, source: &Tensor, combine: Combine) -> Result<Tensor> {
    let arguments = [x.into(), index.into(), source.into(), combine.name().into()];
    call(built_in!("thalweg::scatter")?, &arguments, None, Location::caller())
}

/// Returns a copy of (outer, extent, inner), into which the elements of a source (outer, count, inner) are combined at indices of
/// its shape.
pub(crate) fn scatter(call: &Call<'_>) -> Result<Tensors> {
    let (target, index, source) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let combine = combine_of(call)?;
    let [outer, extent, inner] = three(target)?;
    let rows = check_index([outer, extent, inner], index)?;
    if source.shape() != rows || source.dtype() != target.dtype() {
        refuse!("the source must be {} {rows:?} as target and indices are, not {source:?}", target.dtype());
    }
    Scatter { index, source, combine, label: call.label }.onto(Target::Copied(target))
}

/// Returns zeros (outer, extent, inner), to which the elements of a source (outer, count, inner) are added at indices of its shape: the
/// gradient of [`gather`].
pub(crate) fn gather_backward(call: &Call<'_>) -> Result<Tensors> {
    let (source, index) = (call.tensor(0), call.tensor(1));
    refuse_if!(
        source.shape() != index.shape(),
        "the source must be {index:?} as the indices are, not {source:?}"
    );
    let rows = check_index(shape_of(index)?, index)?;
    let extent = usize::try_from(call.int(2)).map_err(|_| invalid!("an extent is not negative"))?;
    let [index, source] = [index, source].map(|tensor| tensor.reshape(&rows));
    let scatter = Scatter { index: &index?, source: &source?, combine: Combine::Sum, label: call.label };
    scatter.onto(Target::Zeros([rows[0], extent, rows[2]]))
}

/// The tensor into whose copy elements are combined.
#[derive(Clone, Copy)]
enum Target<'a> {
    Copied(&'a Tensor),
    Zeros([usize; 3]),
}

/// The number of columns from which on rows at a list of indices are sorted by index before they are added. The sort costs little
/// compared with reading such rows, and sums repeat their bits.
const FEWEST_COLUMNS: u64 = 16;

/// The most rows, possibly all with the same index, that one launch combines. Such a launch takes as long as the index with the most
/// rows.
const FEW_ROWS: u64 = 4096;

/// The number of elements of a result for each element that is added, from which on sums of 16 bits are rounded at each addition.
const FEW_OF: u64 = 8;

/// Elements that are combined into the positions given by indices. All are (outer, count, inner).
struct Scatter<'a> {
    index: &'a Tensor,
    source: &'a Tensor,
    combine: Combine,
    label: Label,
}

/// Returns three strides.
fn strides(tensor: &Tensor) -> [u64; 3] {
    let strides = tensor.layout().strides();
    [strides[0] as u64, strides[1] as u64, strides[2] as u64]
}

impl Scatter<'_> {
    fn onto(&self, target: Target<'_>) -> Result<Tensors> {
        let shape = match target {
            Target::Copied(target) => three(target)?,
            Target::Zeros(shape) => shape,
        };
        let dtype = self.source.dtype();
        let count = self.index.shape()[1];
        if shape.contains(&0) || self.source.elements() == 0 {
            return self.begun(target, dtype).map(|result| SmallVec::from_elem(result, 1));
        }
        // Elements are combined in a few wide types: narrower integers wrap around when they are converted back.
        let wide = match dtype {
            dtype @ (DType::F64 | DType::F32 | DType::F16 | DType::Bf16) => dtype,
            dtype if dtype.is_floating_point() => DType::F32,
            _ => DType::I64,
        };
        let sizes = [shape[0], shape[1], count, shape[2]].map(|size| size as u64);
        let source = self.source.to_dtype(wide)?;
        let is_sum = self.combine == Combine::Sum;
        // Neither sums of integers nor extremes depend on the order.
        let may_be_atomic = is_sum && (wide == DType::I64 || !are_deterministic_algorithms_enabled())
            || matches!(self.combine, Combine::Max | Combine::Min);
        let list = stride_of_rows(self.index).filter(|_| count.max(shape[1]) as u64 <= SortIndices::MOST);
        let is_narrow = sizes[3] < FEWEST_COLUMNS && self.combine != Combine::Replace;
        let result = if let Some(stride) = list.filter(|_| is_narrow && ScatterNarrow::takes(sizes)) {
            self.narrow_rows(sizes, stride, &source, target, wide)?
        } else if let Some(stride) = list.filter(|_| sizes[3] >= FEWEST_COLUMNS || !may_be_atomic) {
            let result = self.begun(target, wide)?;
            match self.combine {
                Combine::Replace => self.replaced_rows(sizes, stride, &source, &result)?,
                _ => self.rows((sizes, stride), &source, &result, matches!(target, Target::Zeros(_)))?,
            }
            result
        } else if may_be_atomic {
            // Of many elements few change: a copy in float32 and back would take longer than anything else.
            let results: u64 = shape.iter().map(|&extent| extent as u64).product();
            let keeps_dtype = is_sum && results / FEW_OF >= source.elements() as u64;
            let result = self.begun(target, if keeps_dtype { wide } else { wide.compute() })?;
            let kernel = ScatterAtomic {
                sizes,
                index_strides: strides(self.index),
                source_strides: strides(&source),
                dtype: wide,
                keeps_dtype,
                combine: self.combine,
            };
            launch(kernel, [self.index, &source, &result], self.label)?;
            result
        } else if ScatterTile::takes(sizes, wide) {
            self.tiles(sizes, &source, target, wide)?
        } else {
            let wide = wide.compute();
            let (source, result) = (source.to_dtype(wide)?, self.begun(target, wide)?);
            let kernel = ScatterReduce {
                sizes,
                index_strides: strides(self.index),
                source_strides: strides(&source),
                dtype: wide,
                combine: self.combine,
            };
            launch(kernel, [self.index, &source, &result], self.label)?;
            result
        };
        Ok(SmallVec::from_elem(result.to_dtype(dtype)?, 1))
    }

    /// Returns a new tensor with the target's elements, in a dtype.
    fn begun(&self, target: Target<'_>, dtype: DType) -> Result<Tensor> {
        match target {
            Target::Zeros(shape) => Tensor::zeros(&shape, dtype, self.source.device()),
            Target::Copied(target) if target.dtype() == dtype => target.owned(self.label.location),
            Target::Copied(target) => target.contiguous_as(dtype),
        }
    }

    /// Replaces rows at one list of indices.
    fn replaced_rows(&self, sizes: [u64; 4], stride: u64, source: &Tensor, result: &Tensor) -> Result<()> {
        let [_, rows, count, _] = sizes;
        let last = if count > 1 {
            let last = Tensor::zeros(&[rows as usize], DType::I32, source.device())?;
            launch(LastIndices { count, rows, stride }, [self.index, &last], self.label)?;
            Some(last)
        } else {
            None
        };
        let kernel = ScatterRows {
            sizes,
            index_stride: stride,
            source_strides: strides(source),
            dtype: source.dtype(),
        };
        launch(kernel, [Some(self.index), last.as_ref(), Some(source), Some(result)], self.label)
    }

    /// Combines rows at one list of indices with those of a result, which may be zeros.
    fn rows(
        &self,
        (sizes, stride): ([u64; 4], u64),
        source: &Tensor,
        result: &Tensor,
        from_zeros: bool,
    ) -> Result<()> {
        let kernel = Segments {
            sizes,
            source_strides: strides(source),
            source_rows: sizes[2],
            through_stride: 0,
            skipped: u64::MAX,
            combine: self.combine,
            from_zeros,
            is_later: false,
            dtype: source.dtype(),
        };
        combine_rows(kernel, (self.index, stride), source, result, (FEW_ROWS, self.label))
    }

    /// Returns the target, if it is not zeros, and a result for a kernel that reads it once.
    fn former_and_result(
        &self,
        [outer, extent, _, inner]: [u64; 4],
        target: Target<'_>,
        dtype: DType,
    ) -> Result<(Option<Tensor>, Tensor)> {
        let former = match target {
            Target::Copied(target) => Some(target.contiguous_as(dtype)?),
            Target::Zeros(_) => None,
        };
        let shape = [outer, extent, inner].map(|size| size as usize);
        let result = match former.as_ref().and_then(for_kernel_over) {
            Some(over) => over,
            None => {
                let stream = self.source.device().current_stream();
                Tensor::result_on(&shape, dtype, &stream, self.label)?
            }
        };
        Ok((former, result))
    }

    /// Returns the target with narrow rows combined at one list of indices.
    fn narrow_rows(
        &self,
        sizes: [u64; 4],
        stride: u64,
        source: &Tensor,
        target: Target<'_>,
        dtype: DType,
    ) -> Result<Tensor> {
        let (former, result) = self.former_and_result(sizes, target, dtype)?;
        let (keys, order) = sorted((self.index, stride), [sizes[2], sizes[1]], self.label)?;
        let kernel = ScatterNarrow {
            sizes,
            source_strides: strides(source),
            combine: self.combine,
            from_zeros: former.is_none(),
            dtype,
        };
        launch(kernel, [&keys, &order, source, former.as_ref().unwrap_or(&result), &result], self.label)?;
        Ok(result)
    }

    /// Returns the target with elements combined in shared memory.
    fn tiles(&self, sizes: [u64; 4], source: &Tensor, target: Target<'_>, dtype: DType) -> Result<Tensor> {
        let (former, result) = self.former_and_result(sizes, target, dtype)?;
        let kernel = ScatterTile {
            sizes,
            index_strides: strides(self.index),
            source_strides: strides(source),
            dtype,
            combine: self.combine,
            from_zeros: former.is_none(),
        };
        launch(kernel, [self.index, source, former.as_ref().unwrap_or(&result), &result], self.label)?;
        Ok(result)
    }
}

/// Combines rows with those of a result at a list of indices with this stride. At most so many rows are combined by one launch.
fn combine_rows(
    kernel: Segments,
    (index, stride): (&Tensor, u64),
    source: &Tensor,
    result: &Tensor,
    (most, label): (u64, Label),
) -> Result<()> {
    let [_, limit, count, _] = kernel.sizes;
    if count <= most && ScatterFew::are_few(kernel.sizes) || count.max(limit) > SortIndices::MOST {
        let Segments { sizes, source_strides, skipped, combine, from_zeros, dtype, .. } = kernel;
        let few =
            ScatterFew { sizes, index_stride: stride, source_strides, skipped, combine, from_zeros, dtype };
        return launch(few, [index, source, result], label);
    }
    let (keys, order) = sorted((index, stride), [count, limit], label)?;
    // Rows that the kernel itself writes are gathered before it.
    let may_be_read = |GatheredRows { table, index }: &GatheredRows| {
        let is_numbered = table.shape()[1] as u64 <= SortIndices::MOST;
        is_numbered && [table, index].into_iter().all(|read| are_disjoint(read, result))
    };
    let Some(GatheredRows { table, index: through }) = gathered_rows(source).filter(may_be_read) else {
        return combine_sorted(kernel, [&keys, &order, source, result], None, label);
    };
    let [outer, extent, inner] = three(&table)?.map(|size| size as u64);
    debug_assert_eq!(
        [outer, inner],
        [kernel.sizes[0], kernel.sizes[3]],
        "rows that are gathered keep their size"
    );
    let kernel = Segments {
        source_strides: strides(&table),
        source_rows: extent,
        through_stride: through.layout().strides()[0] as u64,
        ..kernel
    };
    combine_sorted(kernel, [&keys, &order, &table, result], Some(&through), label)
}

/// Returns where the rows of a source come from, if they are not gathered yet.
fn gathered_rows(source: &Tensor) -> Option<GatheredRows> {
    match source.rank() {
        2 => GatheredRows::of(&source.unsqueeze(0).ok()?),
        _ => GatheredRows::of(source),
    }
}

/// Returns indices with this stride in their order, and the place that each had (both 32 bits).
fn sorted(
    (index, stride): (&Tensor, u64),
    [count, limit]: [u64; 2],
    label: Label,
) -> Result<(Tensor, Tensor)> {
    let empty = || Tensor::empty_on(&[count as usize], DType::I32, &index.device().current_stream(), label);
    let (keys, order) = (empty()?, empty()?);
    launch(SortIndices { count, stride, limit }, [index, &keys, &order], label)?;
    Ok((keys, order))
}

/// Combines rows with those of a result: sorted keys (32 bits), the row of the source of each key (32 bits), the source, and the
/// result. The rows may be read through a list.
fn combine_sorted(
    mut kernel: Segments,
    [keys, order, source, result]: [&Tensor; 4],
    mut through: Option<&Tensor>,
    label: Label,
) -> Result<()> {
    let stream = source.device().current_stream();
    let empty = |elements: u64, dtype| Tensor::empty_on(&[elements as usize], dtype, &stream, label);
    let [outer, _, _, inner] = kernel.sizes;
    let (mut keys, mut source, mut order) = (keys.clone(), source.clone(), Some(order.clone()));
    loop {
        let next = kernel.next();
        let rows = next.map_or(0, |next| next.sizes[2]);
        let (next_keys, next_rows) =
            (empty(rows, DType::I32)?, empty(outer * rows * inner, kernel.dtype.compute())?);
        let next_at = [&next_keys, &next_rows].map(|tensor| (rows > 0).then_some(tensor));
        let [keys_at, source_at, result_at] = [&keys, &source, result].map(Some);
        launch(
            kernel,
            [keys_at, order.take().as_ref(), through.take(), source_at, result_at, next_at[0], next_at[1]],
            label,
        )?;
        let Some(next) = next else { return Ok(()) };
        (kernel, keys, source) = (next, next_keys, next_rows);
    }
}

/// Returns the gradient of a table of embeddings, from the gradient of the rows that were read at indices of any shape.
pub(crate) fn embedding_gradient(
    gradient: &Tensor,
    indices: &Tensor,
    [embeddings, features]: [usize; 2],
    padding: i64,
    label: Label,
) -> Result<Tensor> {
    let gradient = gradient.contiguous()?;
    let sum = Tensor::zeros(&[embeddings, features], gradient.dtype(), gradient.device())?;
    let (_, indices) = sizes(&sum, indices)?;
    let [count, rows, columns] = [indices.elements(), embeddings, features].map(|size| size as u64);
    if features == 0 || count == 0 {
        return Ok(sum);
    }
    let kernel = Segments {
        sizes: [1, rows, count, columns],
        source_strides: [count * columns, columns, 1],
        source_rows: count,
        through_stride: 0,
        skipped: u64::try_from(padding).unwrap_or(u64::MAX),
        combine: Combine::Sum,
        from_zeros: true,
        is_later: false,
        dtype: sum.dtype(),
    };
    // The rows of a table are seldom all the same one.
    combine_rows(kernel, (&indices, 1), &gradient, &sum, (u64::MAX, label))?;
    Ok(sum)
}

/// Returns extents and strides of a tensor seen as (outside a dimension, the dimension, inside), if its strides allow it.
fn around(tensor: &Tensor, dimension: usize) -> Result<Option<([usize; 3], [usize; 3])>> {
    let (outer, rest) = tensor.shape().split_at(dimension);
    let shape = [outer.iter().product(), rest[0], rest[1..].iter().product()];
    let Some(layout) = tensor.layout().reshape(&shape)? else { return Ok(None) };
    Ok(Some((shape, layout.strides().try_into().expect("three dimensions"))))
}

/// Writes slices of the source into the target at indices of a dimension.
pub(crate) fn index_copy(
    target: &Tensor,
    dimension: usize,
    index: &Tensor,
    source: &Tensor,
    label: Label,
) -> Result<()> {
    if source.elements() == 0 {
        return Ok(());
    }
    if target.shape()[dimension] == 0 {
        return Err(Error::index(format!("index is out of bounds for dimension {dimension} with size 0")));
    }
    let Some((shape, strides)) = around(target, dimension)? else {
        refuse!(
            "{target:?} cannot be walked along dimension {dimension} with even strides; make it contiguous"
        );
    };
    let source = match around(source, dimension)? {
        Some(_) => source.clone(),
        None => source.contiguous()?,
    };
    let (rows, source_strides) = around(&source, dimension)?.expect("a contiguous tensor can be walked");
    let outputs = strides.map(|stride| stride as u64);
    let span =
        1 + shape.iter().zip(outputs).map(|(&extent, stride)| (extent as u64 - 1) * stride).sum::<u64>();
    let placements = [
        strided(&source_strides, &[]),
        Placement::Strided { rows: [0, 1, 0].into_iter().collect(), inner: Dimensions::new() },
        Placement::Gathered(span),
    ];
    let _report = OutOfRangeReport::of(label.operator, RangeOf::Dimension(dimension));
    launch_placed(
        &INDEX_COPY,
        (&rows, &[]),
        (&[&source, index], from_ref(target)),
        placements.into_iter().collect(),
        &[shape[1] as u64, outputs[0], outputs[1], outputs[2]],
        label,
    )?;
    target.bump_version();
    Ok(())
}
