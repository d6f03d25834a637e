//! Operators that join tensors.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape};
use thalweg_kernels::join::{Join, JoinPart, Joined, PARTS};
use thalweg_ops::structured::COPY;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::view::{format_of, layout_in};
use super::{operators, single};
use crate::autograd::formula::Formula;
use crate::deferred;
use crate::dispatch::{Arguments, Call, built_in};
use crate::loops::{LoopArguments, run_into};
use crate::operators::call as call_operator;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Concatenates tensors along a dimension; they agree in all others, or are empty with one dimension.
    "cat(Tensor[] tensors, int dim=0) -> Tensor" = Differentiable(cat, &CAT), out: [Unshared], complex: Taken;
    /// Stacks tensors of one shape along a new dimension.
    "stack(Tensor[] tensors, int dim=0) -> Tensor" = Composite(stack);
    /// Splits a dimension of each tensor into `num_chunks` chunks, the last padded with zeros, and joins the chunks of all
    /// tensors, as rows.
    "_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor" = Composite(chunk_cat);
}

/// The gradient of `cat`: the parts of the result's gradient at the tensors' positions.
static CAT: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        let gradient = call.gradient()?;
        let dim = gradient.layout().dimension(call.int(1))?;
        let mut start = 0;
        (0..call.tensor_count())
            .map(|tensor| {
                let shape = call.shape(tensor);
                if is_skipped(shape) {
                    return if call.wants(tensor) {
                        Tensor::zeros(shape, call.dtype_of(tensor), call.device()).map(Some)
                    } else {
                        Ok(None)
                    };
                }
                let (first, length) = (start, shape[dim]);
                start += length;
                if !call.wants(tensor) {
                    return Ok(None);
                }
                gradient.narrow(dim as i64, first, length)?.to_dtype(call.dtype_of(tensor)).map(Some)
            })
            .collect()
    },
};

/// Returns whether `cat` ignores a tensor of this shape, regardless of the other shapes.
fn is_skipped(shape: &[usize]) -> bool {
    shape == [0]
}

fn cat(call: &Call<'_>) -> Result<Tensors> {
    let list = call.tensor_list(0);
    let Some(first) = list.iter().find(|tensor| !is_skipped(tensor.shape())).or(list.first()) else {
        return Err(Error::value("torch.cat(): expected a non-empty list of Tensors"));
    };
    refuse_if!(first.rank() == 0, "zero-dimensional tensor (at position 0) cannot be concatenated");
    let dim = first.layout().dimension(call.int(1))?;
    let mut shape: Shape = first.shape().into();
    let mut dtype = first.dtype();
    shape[dim] = 0;
    for (position, tensor) in list.iter().enumerate() {
        dtype = dtype.promote(tensor.dtype()).map_err(|error| Error::invalid(error.to_string()))?;
        if is_skipped(tensor.shape()) {
            continue;
        }
        if tensor.rank() != shape.len() {
            refuse!("Tensors must have same number of dimensions: got {} and {}", shape.len(), tensor.rank());
        }
        for (dimension, (&extent, wanted)) in tensor.shape().iter().zip(&mut shape).enumerate() {
            if dimension == dim {
                *wanted += extent;
            } else if extent != *wanted {
                refuse!(
                    "Sizes of tensors must match except in dimension {dim}. Expected size {wanted} but got size {extent} for \
                     tensor number {position} in the list."
                );
            }
        }
    }
    let result = call.new_result(&shape, dtype)?;
    let layout = layout_in(&shape, common_format(list))?;
    let result = result.with_layout(Layout::new(&shape, layout.strides(), result.layout().offset())?);
    let (mut start, mut parts) = (0, Vec::new());
    for tensor in list.iter().filter(|tensor| !is_skipped(tensor.shape())) {
        parts.push((tensor, start));
        start += tensor.shape()[dim];
    }
    let joined = join_at_once(call, &result, dim, &parts)?;
    for ((tensor, start), _) in parts.into_iter().zip(joined).filter(|(_, is_joined)| !is_joined) {
        let part = result.with_layout(result.layout().narrow(dim, start, tensor.shape()[dim])?);
        copy_into(call, tensor, &part, dtype)?;
    }
    Ok(single(result))
}

/// Writes those tensors of a list that have the dtype of the result, and its order of dimensions without gaps, to their places
/// along a dimension, unless loops that wait write them. Returns which ones it has written: none if there is only one such tensor.
fn join_at_once(
    call: &Call<'_>,
    result: &Tensor,
    dim: usize,
    parts: &[(&Tensor, usize)],
) -> Result<Vec<bool>> {
    let order: Shape = result.layout().dense_order().unwrap_or_else(|| (0..result.rank()).collect());
    let place = order.iter().position(|&other| other == dim).unwrap_or(0);
    let size = result.dtype().size_bytes() as u64;
    let inner: u64 = order[place + 1..].iter().map(|&other| result.shape()[other] as u64).product();
    let is_dense = |tensor: &Tensor| tensor.layout().permute(&order).is_ok_and(|laid| laid.is_contiguous());
    // A loop that waits writes its result into the part itself.
    let waits = |tensor: &Tensor| {
        tensor.storage().is_pending() && deferred::is_large(tensor.elements() as u64 * size)
    };
    let fits = |tensor: &Tensor| {
        tensor.dtype() == result.dtype() && tensor.elements() > 0 && is_dense(tensor) && !waits(tensor)
    };
    let mut taken: Vec<bool> = parts.iter().map(|(tensor, _)| fits(tensor)).collect();
    if !is_dense(result) || taken.iter().filter(|&&is_taken| is_taken).count() < 2 {
        taken.fill(false);
        return Ok(taken);
    }
    let kernel = Join {
        rows: order[..place].iter().map(|&other| result.shape()[other] as u64).product(),
        pitch: result.shape()[dim] as u64 * inner * size,
    };
    let chosen: Vec<JoinPart> = (parts.iter().zip(&taken))
        .filter(|(_, is_taken)| **is_taken)
        .map(|((tensor, start), _)| JoinPart {
            source: tensor.pointer(),
            width: tensor.shape()[dim] as u64 * inner * size,
            offset: *start as u64 * inner * size,
        })
        .collect();
    for parts in chosen.chunks(PARTS) {
        call.launch(kernel, (call.device, Joined { result: result.pointer(), parts: parts.into() }))?;
    }
    Ok(taken)
}

/// Returns the memory format of all tensors; the order of the shape if they have different ones.
fn common_format(list: &[Tensor]) -> i64 {
    let mut formats = list.iter().filter(|tensor| !is_skipped(tensor.shape())).map(format_of);
    let first = formats.next().unwrap_or(0);
    if formats.all(|format| format == first) { first } else { 0 }
}

/// Writes the elements of a tensor, converted, into memory that no other work uses yet.
pub(super) fn copy_into(call: &Call<'_>, source: &Tensor, target: &Tensor, dtype: DType) -> Result<()> {
    if target.elements() == 0 {
        return Ok(());
    }
    let arguments = LoopArguments { dtype: Some(dtype), ..LoopArguments::default() };
    run_into(&COPY, &[source], &arguments, std::slice::from_ref(target), call.label)
}

fn chunk_cat(call: &Call<'_>) -> Result<Tensors> {
    let (list, dim, chunks) = (call.tensor_list(0), call.int(1), call.int(2));
    let refuse = |why: &str| Err(invalid!("_chunk_cat expects {why}"));
    let Some(first) = list.first() else { return refuse("a non-empty input tensor list") };
    let Some(chunks) = usize::try_from(chunks).ok().filter(|&chunks| chunks > 0) else {
        return refuse("positive num_chunks");
    };
    if list.iter().any(|tensor| tensor.elements() == 0) {
        return refuse("non-empty tensor");
    }
    if dim < 0 && list.iter().any(|tensor| tensor.rank() != first.rank()) {
        return refuse("non-negative dim when input tensors have different ndims");
    }
    let dim = if dim < 0 { dim + first.rank() as i64 } else { dim };
    let Some(at) = usize::try_from(dim).ok().filter(|&at| list.iter().all(|tensor| at < tensor.rank()))
    else {
        return refuse("dim < ndim for all input tensors");
    };
    let leading = &first.shape()[..at];
    if list.iter().any(|tensor| tensor.shape()[..at] != *leading) {
        return refuse("same sizes of 0,...,dim-1 dimensions for all tensors");
    }
    let rows = list.iter().map(|tensor| {
        let extent = tensor.shape()[at];
        let mut filled: Shape = tensor.shape().into();
        filled[at] = extent.next_multiple_of(chunks) - extent;
        let zeros = Tensor::zeros(&filled, tensor.dtype(), tensor.device())?;
        let whole = Tensor::cat(&[tensor.clone(), zeros], dim)?;
        let width = whole.shape()[at..].iter().product::<usize>() / chunks;
        let shape: Shape = leading.iter().copied().chain([chunks, width]).collect();
        whole.reshape(&shape)
    });
    let rows: SmallVec<[Tensor; 4]> = rows.collect::<Result<_>>()?;
    Tensor::cat(&rows, dim + 1).map(single)
}

fn stack(call: &Call<'_>) -> Result<Tensors> {
    let list = call.tensor_list(0);
    let Some(first) = list.first() else {
        refuse!("stack expects a non-empty TensorList");
    };
    if let Some((position, other)) = list.iter().enumerate().find(|(_, other)| other.shape() != first.shape())
    {
        refuse!(
            "stack expects each tensor to be equal size, but got {:?} at entry 0 and {:?} at entry {position}",
            first.shape(),
            other.shape()
        );
    }
    let parts: SmallVec<[Tensor; 4]> =
        list.iter().map(|tensor| tensor.unsqueeze(call.int(1))).collect::<Result<_>>()?;
    // A dimension is counted from the end of the result, which has one more.
    call_operator(
        built_in!("cat")?,
        &[parts.as_slice().into(), call.int(1).into()],
        None,
        call.label.location,
    )
    .map(single)
}

impl Tensor {
    /// Concatenates tensors along a dimension (`torch.cat`): they agree in all others, or are empty with one dimension. The
    /// dtypes are promoted. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// let y = Tensor::from_values([3.0f32], &device)?;
    /// assert_eq!(Tensor::cat(&[x, y], 0)?.to_string(), "tensor([1., 2., 3.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the list is empty, the shapes do not fit, or the dimension is out of range.
    #[track_caller]
    pub fn cat(tensors: &[Tensor], dim: i64) -> Result<Self> {
        let location = std::panic::Location::caller();
        call_operator(built_in!("cat")?, &[tensors.into(), dim.into()], None, location)
    }

    /// Stacks tensors of one shape along a new dimension (`torch.stack`). Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// let y = Tensor::from_values([3.0f32, 4.0], &device)?;
    /// assert_eq!(Tensor::stack(&[x, y], 0)?.to_string(), "\
    /// tensor([[1., 2.],
    ///         [3., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the list is empty, the shapes differ, or the dimension is out of range.
    #[track_caller]
    pub fn stack(tensors: &[Tensor], dim: i64) -> Result<Self> {
        let location = std::panic::Location::caller();
        call_operator(built_in!("stack")?, &[tensors.into(), dim.into()], None, location)
    }
}
