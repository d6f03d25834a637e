//! Functional collectives (`torch.distributed._functional_collectives`): they return new tensors, and gradients flow through them.
//!
//! Each is an operator of the table, `_c10d_functional::name`, whose argument names the group by [`ProcessGroup::group_name`]. So
//! calls can be traced, captured, and made by name. The collective runs on the group's stream, after the current stream's work so
//! far, and the current stream waits for it: the host does not block.
//!
//! | forward | backward |
//! |---|---|
//! | [`all_reduce`] of sums | the sum of the gradients of all ranks |
//! | [`all_gather_tensor`] | their sum, of which each rank gets its part |
//! | [`reduce_scatter_tensor`] of sums | the gradients of all ranks, gathered |
//! | [`all_to_all_single`] | the way back |
//! | [`broadcast`] | their sum on the source, and 0 elsewhere |
//!
//! As in PyTorch these are the gradients of the sum of all ranks' results: if every rank computes the loss from the same numbers,
//! `n` ranks result in `n` times its gradient. [`redistribute`](crate::tensor_parallel::redistribute) computes the gradients of
//! one loss that all ranks compute together.
//!
//! This module, `operators` and `gradients` use each other: the gradient of a collective is a collective, which is recorded as
//! well.

mod gradients;
mod operators;

use std::panic::Location;

use thalweg_runtime::{Error, Result, invalid, refuse};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::{in_call, label_at};
use thalweg_tensor::dispatch::{Argument, as_ints};

use self::operators::{Kind, operator};
use crate::{ProcessGroup, ReduceOp};

/// Defines the operators, so that they can be called by name. Each function of this module does so automatically.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the program has defined others of these names.
pub fn define_operators() -> Result<()> {
    operators::operators().map(drop)
}

/// Calls the operator of a collective.
fn call(kind: Kind, arguments: &[Argument<'_>], location: &'static Location<'static>) -> Result<Tensor> {
    let operator = operator(kind)?;
    Ok(operator.call(arguments, None, label_at(operator.base_name(), location))?.swap_remove(0))
}

/// Returns the reduction of the tensors of all ranks.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor is on a different device than the group, or its dtype does not support the reduction;
/// the reason why the group failed, if it has.
#[track_caller]
pub fn all_reduce(input: &Tensor, operation: ReduceOp, group: &ProcessGroup) -> Result<Tensor> {
    let arguments = [input.into(), operation.name().into(), group.group_name().into()];
    call(Kind::AllReduce, &arguments, Location::caller())
}

/// Returns the tensor of rank `src`.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor is on a different device than the group, or there is no such rank; the reason why the
/// group failed, if it has.
#[track_caller]
pub fn broadcast(input: &Tensor, src: u32, group: &ProcessGroup) -> Result<Tensor> {
    let arguments = [input.into(), i64::from(src).into(), group.group_name().into()];
    call(Kind::Broadcast, &arguments, Location::caller())
}

/// Returns the tensors of all ranks, of equal shapes, concatenated along a dimension.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor is on a different device than the group, or has no such dimension; the reason why the
/// group failed, if it has.
#[track_caller]
pub fn all_gather_tensor(input: &Tensor, gather_dim: i64, group: &ProcessGroup) -> Result<Tensor> {
    let location = Location::caller();
    in_call("all_gather_tensor", &[input], location, || {
        let dim = dimension(input, gather_dim)?;
        let arguments = [input.into(), i64::from(group.size()).into(), group.group_name().into()];
        let gathered = call(Kind::AllGather, &arguments, location)?;
        side_by_side(&gathered, dim, group.size() as usize)
    })
}

/// Returns this rank's part of the reduction of the tensors of all ranks, which are divided along a dimension.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor is on a different device than the group, has no such dimension, or its size is not a
/// multiple of the number of ranks; the reason why the group failed, if it has.
#[track_caller]
pub fn reduce_scatter_tensor(
    input: &Tensor,
    operation: ReduceOp,
    scatter_dim: i64,
    group: &ProcessGroup,
) -> Result<Tensor> {
    let location = Location::caller();
    in_call("reduce_scatter_tensor", &[input], location, || {
        let (dim, ranks) = (dimension(input, scatter_dim)?, group.size() as usize);
        let size = input.shape()[dim];
        if !size.is_multiple_of(ranks) {
            refuse!("input dimension {dim} ({size}) must be a multiple of group_size {ranks}");
        }
        let by_rank = stacked(input, dim, ranks)?;
        let (size, name) = (i64::from(group.size()).into(), group.group_name().into());
        let arguments = [(&by_rank).into(), operation.name().into(), size, name];
        call(Kind::ReduceScatter, &arguments, location)
    })
}

/// Sends rows of dimension 0 to all ranks, and returns the rows that they send. The splits are the numbers of rows from and to
/// each rank; `None` for both divides evenly.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor is on a different device than the group, only one of the splits is `None`, or they do
/// not fit; the reason why the group failed, if it has.
#[track_caller]
pub fn all_to_all_single(
    input: &Tensor,
    output_split_sizes: Option<&[usize]>,
    input_split_sizes: Option<&[usize]>,
    group: &ProcessGroup,
) -> Result<Tensor> {
    let location = Location::caller();
    in_call("all_to_all_single", &[input], location, || {
        let even;
        let (output, input_splits) = match (output_split_sizes, input_split_sizes) {
            (Some(output), Some(input)) => (output, input),
            (None, None) => {
                even = crate::checks::splits(group, input, None)?;
                (&even[..], &even[..])
            }
            _ => {
                refuse!(
                    "output_split_sizes and input_split_sizes must either be specified together or both set to None"
                );
            }
        };
        let (output, splits) = (as_ints(output), as_ints(input_splits));
        let arguments = [input.into(), output.into(), splits.into(), group.group_name().into()];
        call(Kind::AllToAll, &arguments, location)
    })
}

/// Returns the equal parts of a dimension concatenated along dimension 0.
pub(crate) fn stacked(tensor: &Tensor, dim: usize, parts: usize) -> Result<Tensor> {
    if dim == 0 {
        return Ok(tensor.clone());
    }
    let mut shape = tensor.shape().to_vec();
    shape[dim] /= parts;
    let mut split = shape.clone();
    split.insert(dim, parts);
    shape[0] *= parts;
    let order: Vec<usize> = [dim].into_iter().chain(0..dim).chain(dim + 1..split.len()).collect();
    tensor.reshape(&split)?.permute(&order)?.reshape(&shape)
}

/// Returns parts that are concatenated along dimension 0 concatenated along another dimension instead.
pub(crate) fn side_by_side(tensor: &Tensor, dim: usize, parts: usize) -> Result<Tensor> {
    if dim == 0 {
        return Ok(tensor.clone());
    }
    let mut shape = tensor.shape().to_vec();
    shape[0] /= parts;
    let split = [&[parts], &shape[..]].concat();
    shape[dim] *= parts;
    let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..split.len()).collect();
    tensor.reshape(&split)?.permute(&order)?.reshape(&shape)
}

/// Returns the index of a dimension; negative ones count from the end.
pub(crate) fn dimension(tensor: &Tensor, dim: i64) -> Result<usize> {
    let rank = tensor.rank() as i64;
    if (-rank..rank).contains(&dim) {
        return Ok(dim.rem_euclid(rank) as usize);
    }
    Err(match rank {
        0 => invalid!("a scalar has no dimension to divide: give it one"),
        _ => Error::index(format!(
            "Dimension out of range (expected to be in range of [{}, {}], but got {dim})",
            -rank,
            rank - 1
        )),
    })
}
