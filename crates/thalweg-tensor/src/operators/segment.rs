//! Reductions of segments of a dimension.

use thalweg_ir::{DType, Scalar, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::index::long;
use super::view::wrap;
use super::{call as call_operator, operators, single};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the sums, means, products, greatest or least elements of consecutive segments along `axis`, given by their
    /// `lengths` or `offsets`, which have the dimensions before the axis. Without `unsafe` the host reads the lengths.
    "segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor"
        fn segment_reduce(reduce: str, lengths: optional_tensor)
        = Composite(segment_reduce);
}

/// Returns the offsets of a call's segments: where each begins, and where the last ends.
fn offsets(call: &Call<'_>, axis: usize) -> Result<Tensor> {
    let (x, lengths, offsets) = (call.tensor(0), call.optional_tensor(2), call.optional_tensor(4));
    if call.optional_tensor(3).is_some() {
        refuse!("segment_reduce(): indices based reduction is not supported yet.");
    }
    let given = match (lengths, offsets) {
        (Some(given), None) | (None, Some(given)) => given,
        _ => return Err(invalid!("segment_reduce(): Either lengths or offsets must be defined.")),
    };
    refuse_if!(
        given.rank() != axis + 1 || given.shape()[..axis] != x.shape()[..axis],
        "segment_reduce(): Expected lengths or offsets to have the dimensions of data in front of axis {axis} and one more, but \
         got {:?} for {:?}",
        given.shape(),
        x.shape()
    );
    let given = long(given, "segment_reduce")?;
    let Some(lengths) = lengths else { return Ok(given) };
    let lengths = long(lengths, "segment_reduce")?;
    if !call.bool(6) && !x.device().is_meta() && lengths.elements() > 0 {
        let least: i64 = lengths.amin(&[], false)?.item()?;
        refuse_if!(least < 0, "lengths contains negative value!");
        let sums: Vec<i64> =
            lengths.sum(&[-1], false)?.reshape(&[lengths.elements() / lengths.shape()[axis]])?.to_vec()?;
        refuse_if!(
            sums.iter().any(|&sum| sum as usize != x.shape()[axis]),
            "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when \
             !unsafe."
        );
    }
    let ends = lengths.cumsum(-1)?;
    let mut shape: Shape = ends.shape().into();
    shape[axis] = 1;
    Tensor::cat(&[Tensor::zeros(&shape, DType::I64, x.device())?, ends], axis as i64)
}

fn segment_reduce(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    if x.elements() == 0 || x.rank() == 0 || !x.dtype().is_floating_point() {
        refuse!("segment_reduce(): data must be floats and not empty, but got {} {:?}", x.dtype(), x.shape());
    }
    let axis = wrap(call.int(5), x.rank())?;
    let offsets = offsets(call, axis)?;
    let Some(segments) = offsets.shape()[axis].checked_sub(1) else {
        refuse!("segment_reduce(): offsets have one element more than there are segments");
    };
    let (kind, neutral, is_mean) = match call.str(1) {
        "sum" => ("sum", 0.0, false),
        "mean" => ("sum", 0.0, true),
        "prod" => ("prod", 1.0, false),
        "max" => ("amax", f64::NEG_INFINITY, false),
        "min" => ("amin", f64::INFINITY, false),
        other => {
            refuse!("segment_reduce(): {other} is not one of `max`, `mean`, `min`, `sum`, `prod`");
        }
    };
    let outer: usize = x.shape()[..axis].iter().product();
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let extent = x.shape()[axis];
    let (rows, offsets) = (x.reshape(&[outer, extent, inner])?, offsets.reshape(&[outer, segments + 1])?);
    // An element's segment is the one before the first offset beyond it; elements in no segment are assigned to an extra one,
    // which is left out.
    let places =
        Tensor::arange(extent, 0, 1, DType::I64, x.device())?.expand(&[outer, extent])?.contiguous()?;
    let offsets = offsets.contiguous()?;
    let arguments: [Argument<'_>; 4] = [(&offsets).into(), (&places).into(), false.into(), true.into()];
    let after = call_operator(built_in!("searchsorted.Tensor")?, &arguments, None, call.label.location)?;
    let none = Tensor::full(&[], segments as i64, DType::I64, x.device())?;
    let segment = after.eq_scalar(0)?.select_where(&none, &after.sub_scalar(1)?)?;
    let segment = segment.unsqueeze(-1)?.expand(&[outer, extent, inner])?;
    let initial = call.optional_scalar(7).map(Scalar::to_f64);
    let wide = x.dtype().compute();
    let start = Tensor::full(&[outer, segments + 1, inner], initial.unwrap_or(neutral), wide, x.device())?;
    let mut result =
        start.scatter_reduce(1, &segment, &rows.to_dtype(wide)?, kind, true)?.narrow(1, 0, segments)?;
    if is_mean {
        let counts = offsets.narrow(1, 1, segments)?.sub(&offsets.narrow(1, 0, segments)?)?.unsqueeze(-1)?;
        let is_empty = counts.eq_scalar(0)?;
        let mean = result.div(&counts.to_dtype(wide)?.clamp_min(1.0)?)?;
        let of_nothing = Tensor::full(&[], initial.unwrap_or(f64::NAN), wide, x.device())?;
        result = is_empty.select_where(&of_nothing, &mean)?;
    }
    let shape: Shape = x.shape()[..axis]
        .iter()
        .copied()
        .chain([segments])
        .chain(x.shape()[axis + 1..].iter().copied())
        .collect();
    result.reshape(&shape)?.to_dtype(x.dtype()).map(single)
}
