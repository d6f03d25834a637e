//! The operators of the functional collectives.

use std::sync::{Arc, OnceLock};

use thalweg_runtime::{Error, Result, invalid, refuse};
use thalweg_tensor::caller::at_line;
use thalweg_tensor::dispatch::{Arguments, Call, DispatchKey, Operator, define_operator};
use thalweg_tensor::{Tensor, Tensors};

use super::gradients::record;
use crate::{Coalescing, ProcessGroup, ReduceOp, names};

/// A functional collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// The kinds with PyTorch's schemas, in the order of [`Kind`].
const SCHEMAS: [(Kind, &str); 5] = [
    (Kind::AllReduce, "all_reduce(Tensor input, str reduce_op, str group_name)"),
    (Kind::Broadcast, "broadcast(Tensor input, int src, str group_name)"),
    (Kind::AllGather, "all_gather_into_tensor(Tensor input, int group_size, str group_name)"),
    (
        Kind::ReduceScatter,
        "reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name)",
    ),
    (
        Kind::AllToAll,
        "all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name)",
    ),
];

/// Returns the operators; the first call defines them.
pub(super) fn operators() -> Result<&'static [&'static Operator]> {
    static OPERATORS: OnceLock<Result<Vec<&'static Operator>>> = OnceLock::new();
    let defined =
        OPERATORS.get_or_init(|| SCHEMAS.into_iter().map(|(kind, schema)| define(kind, schema)).collect());
    defined.as_deref().map_err(Clone::clone)
}

/// Returns the operator of a collective.
pub(super) fn operator(kind: Kind) -> Result<&'static Operator> {
    Ok(operators()?[kind as usize])
}

fn define(kind: Kind, schema: &str) -> Result<&'static Operator> {
    let operator = define_operator(&format!("_c10d_functional::{schema} -> Tensor"))?;
    for key in [DispatchKey::Cuda, DispatchKey::Sim] {
        operator.register(key, Arc::new(move |call| forward(kind, call))).keep();
    }
    operator.register(DispatchKey::Meta, Arc::new(move |call| Ok(one(output(kind, call)?)))).keep();
    operator.register(DispatchKey::Autograd, Arc::new(move |call| record(kind, call))).keep();
    Ok(operator)
}

fn one(tensor: Tensor) -> Tensors {
    Tensors::from_iter([tensor])
}

/// Returns the group that a call names.
pub(super) fn group_of(call: &Call<'_>) -> Result<ProcessGroup> {
    names::resolve(call.str(call.arguments.len() - 1), call.device)
}

/// Returns the reduction of a name.
pub(super) fn reduction(name: &str) -> Result<ReduceOp> {
    let all = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
    let found = all.into_iter().find(|operation| operation.name() == name);
    found.ok_or_else(|| invalid!("Unrecognized reduce_op: {name}"))
}

/// Returns the splits of an argument.
pub(super) fn splits(call: &Call<'_>, place: usize) -> Result<Vec<usize>> {
    let sizes = call.ints(place);
    let size = |&size: &i64| {
        usize::try_from(size).map_err(|_| invalid!("a split of {size} rows is none: {sizes:?}"))
    };
    sizes.iter().map(size).collect()
}

/// Returns a new tensor for the result of a call.
fn output(kind: Kind, call: &Call<'_>) -> Result<Tensor> {
    let input = call.tensors[0];
    let mut shape = input.shape().to_vec();
    let ranks = |place: usize| {
        let ranks = call.int(place);
        usize::try_from(ranks)
            .ok()
            .filter(|&ranks| ranks > 0)
            .ok_or_else(|| invalid!("group_size is a number of ranks, not {ranks}"))
    };
    match (kind, shape.first_mut()) {
        (Kind::AllReduce | Kind::Broadcast, _) => {}
        (_, None) => {
            refuse!("a scalar has no dimension to divide: give it one");
        }
        (Kind::AllGather, Some(rows)) => {
            let ranks = ranks(1)?;
            *rows = rows
                .checked_mul(ranks)
                .ok_or_else(|| invalid!("{rows} rows of each of {ranks} ranks are too many"))?;
        }
        (Kind::ReduceScatter, Some(rows)) => {
            let ranks = ranks(2)?;
            if !rows.is_multiple_of(ranks) {
                refuse!("input dimension 0 ({rows}) must be a multiple of group_size {ranks}");
            }
            *rows /= ranks;
        }
        (Kind::AllToAll, Some(rows)) => {
            let sizes = splits(call, 1)?;
            let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
            *rows = sum.ok_or_else(|| invalid!("splits of {sizes:?} rows are too many"))?;
        }
    }
    Tensor::empty(&shape, input.dtype(), input.device())
}

/// Checks that a call's number of ranks is its group's.
fn check_size(group: &ProcessGroup, call: &Call<'_>, place: usize) -> Result<()> {
    let named = call.int(place);
    if named == i64::from(group.size()) {
        return Ok(());
    }
    Err(invalid!("group_size {named} is not that of the group, which has {} ranks", group.size()))
}

fn forward(kind: Kind, call: &Call<'_>) -> Result<Tensors> {
    at_line(call.label.location, || {
        let group = group_of(call)?;
        // The arguments are checked before memory is taken for the result.
        match kind {
            Kind::AllGather => check_size(&group, call, 1)?,
            Kind::ReduceScatter => check_size(&group, call, 2)?,
            _ => {}
        }
        let input = call.tensors[0].contiguous()?;
        let output = output(kind, call)?;
        let mut one_call = group.coalescing();
        collect(kind, call, &mut one_call, &output, &input)?;
        one_call.submit()?.wait()?;
        Ok(one(output))
    })
}

/// Collects the collective of a call.
fn collect(
    kind: Kind,
    call: &Call<'_>,
    one: &mut Coalescing<'_>,
    output: &Tensor,
    input: &Tensor,
) -> Result<()> {
    match kind {
        Kind::AllReduce => one.all_reduce_into(output, input, reduction(call.str(1))?),
        Kind::Broadcast => {
            let src = u32::try_from(call.int(1)).unwrap_or(u32::MAX);
            one.broadcast_into(output, input, src)
        }
        Kind::AllGather => one.all_gather_into_tensor(output, input),
        Kind::ReduceScatter => one.reduce_scatter_tensor(output, input, reduction(call.str(1))?),
        Kind::AllToAll => {
            let (to, from) = (splits(call, 1)?, splits(call, 2)?);
            one.all_to_all_single(output, input, Some(&to), Some(&from))
        }
    }
}
