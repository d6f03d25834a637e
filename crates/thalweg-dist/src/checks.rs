//! Checks of a collective's arguments before anything is submitted. The messages are PyTorch's.

use thalweg_driver::{ElementFormat, Reduction};
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, element_format, invalid, refuse, refuse_if};
use thalweg_tensor::Tensor;

use crate::{ProcessGroup, ReduceOp};

/// Returns the format in which a dtype's elements are moved.
pub(crate) fn moved(dtype: DType) -> Result<ElementFormat> {
    Ok(match dtype {
        DType::Bool | DType::U8 | DType::F8E4m3 | DType::F8E5m2 => ElementFormat::R_8U,
        DType::I8 => ElementFormat::R_8I,
        DType::I32 => ElementFormat::R_32I,
        DType::I64 => ElementFormat::R_64I,
        other => element_format(other).ok_or_else(|| {
            invalid!("Input tensor data type is not supported for NCCL process group: {other}")
        })?,
    })
}

/// Returns the element format and the reduction for a dtype.
pub(crate) fn reduced(dtype: DType, operation: ReduceOp) -> Result<(ElementFormat, Reduction)> {
    refuse_if!(matches!(dtype, DType::F8E4m3 | DType::F8E5m2), "Unsupported Float8 type for NCCL reduction");
    let format = moved(dtype)?;
    let reduction = match operation {
        // Boolean bytes are 0 or 1, so OR is the maximum.
        ReduceOp::Sum if dtype == DType::Bool => Reduction::Maximum,
        ReduceOp::Avg if dtype == DType::Bool => {
            refuse!("Cannot use ReduceOp.AVG with boolean inputs");
        }
        ReduceOp::Sum => Reduction::Sum,
        ReduceOp::Product => Reduction::Product,
        ReduceOp::Min => Reduction::Minimum,
        ReduceOp::Max => Reduction::Maximum,
        ReduceOp::Avg => Reduction::Average,
        ReduceOp::PreMulSum(_) if !matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64) => {
            refuse!("PreMulSum Data type must be half, float, bfloat16 or double, and not {dtype}");
        }
        ReduceOp::PreMulSum(_) => Reduction::Sum,
    };
    Ok((format, reduction))
}

/// Checks that tensors are on the group's device and contiguous.
pub(crate) fn fit(group: &ProcessGroup, tensors: &[&Tensor]) -> Result<()> {
    for tensor in tensors {
        refuse_if!(
            tensor.device() != group.device(),
            "Tensor found on device {} but rank {} of the process group is {}",
            tensor.device(),
            group.rank(),
            group.device()
        );
        refuse_if!(
            !tensor.is_contiguous(),
            "Tensors must be contiguous; one of shape {:?} has strides {:?}",
            tensor.shape(),
            tensor.layout().strides()
        );
    }
    Ok(())
}

/// Checks that a rank is in the group.
pub(crate) fn is_member(group: &ProcessGroup, what: &str, rank: u32) -> Result<()> {
    if rank < group.size() {
        return Ok(());
    }
    Err(invalid!("{what}: rank {rank} is not part of a group of {} ranks", group.size()))
}

/// Checks that a rank is in the group and is not this rank.
pub(crate) fn is_other(group: &ProcessGroup, what: &str, rank: u32) -> Result<()> {
    is_member(group, what, rank)?;
    refuse_if!(
        rank == group.rank(),
        "Invalid {what} rank: {what} rank should not be the same as the rank of the current process."
    );
    Ok(())
}

/// Checks that an output has an input's dtype.
pub(crate) fn same_dtype(output: &Tensor, input: &Tensor) -> Result<()> {
    if output.dtype() == input.dtype() {
        return Ok(());
    }
    Err(invalid!(
        "output tensor must have the same type as input tensor: {} and {}",
        output.dtype(),
        input.dtype()
    ))
}

/// Checks that there is a tensor for each rank.
pub(crate) fn one_per_rank(group: &ProcessGroup, what: &str, tensors: &[Tensor]) -> Result<()> {
    if tensors.len() == group.size() as usize {
        return Ok(());
    }
    Err(invalid!(
        "Tensor list {what} must match number of collective participants: {} tensors, {} ranks",
        tensors.len(),
        group.size()
    ))
}

/// Returns the number of rows of dimension 0 that are sent to or received from each rank.
pub(crate) fn splits(group: &ProcessGroup, tensor: &Tensor, sizes: Option<&[usize]>) -> Result<Vec<usize>> {
    let ranks = group.size() as usize;
    let rows = tensor.shape().first().copied().unwrap_or(1);
    let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else {
        if !rows.is_multiple_of(ranks) {
            refuse!("Tensor's dim 0 does not divide equally across group size: {rows} rows, {ranks} ranks");
        }
        return Ok(vec![rows / ranks; ranks]);
    };
    if sizes.len() != ranks {
        refuse!("Number of tensor splits not equal to group size: {} splits, {ranks} ranks", sizes.len());
    }
    let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if sum != Some(rows) {
        refuse!("Split sizes doesn't match total dim 0 size: splits {sizes:?}, {rows} rows");
    }
    Ok(sizes.to_vec())
}
