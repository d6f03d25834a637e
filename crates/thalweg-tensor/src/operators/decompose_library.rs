//! Decompositions as calls of the vendor's libraries; on the simulator as host functions.
//!
//! Each function returns `None` if no library computes these matrices: then a kernel of our own does. That is so while the stream
//! captures, as the libraries may wait for the device, and for many small matrices, which the libraries take one after another.

use std::panic::Location;

use thalweg_execute::if_supported;
use thalweg_execute::library::decompose;
use thalweg_ir::DType;
use thalweg_runtime::{DenseCall, DenseMethod, DevicePointer, Label, Result};

use super::decompose::{empty, transposed};
use crate::tensor::Tensor;

/// The most matrices of a batch that a library processes one after another.
const MOST_IN_TURN: usize = 32;
/// The sizes from which each of such matrices is worth a call of its own.
const LARGE: usize = 128;

/// Returns whether a batch of matrices, whose smaller size is `least`, is computed by the libraries one matrix after another.
fn is_worth(batch: usize, least: usize) -> bool {
    batch <= MOST_IN_TURN || least >= LARGE
}

/// Returns whether a library may compute a batch of matrices now: one that has elements, on a device, outside of a capture.
fn may_compute(x: &Tensor, sizes: [usize; 3]) -> Result<bool> {
    let stream = x.device().current_stream();
    Ok(!sizes.contains(&0) && !stream.device().is_meta() && !stream.is_capturing()?)
}

/// Queues a call over (batch, rows, columns), for which `may_compute` holds. Returns whether a library took it.
fn queue(
    method: DenseMethod,
    [batch, rows, columns]: [usize; 3],
    operands: &[&Tensor],
    needs_addresses: bool,
    label: Label,
) -> Result<bool> {
    let stream = operands[0].device().current_stream();
    let null = DevicePointer::new(0);
    let mut call = DenseCall {
        method,
        batch: batch as u64,
        rows: rows as u64,
        columns: columns as u64,
        operands: std::array::from_fn(|place| operands.get(place).map_or(null, |operand| operand.pointer())),
        addresses: [null; 2],
        workspace: None,
    };
    if call.fault().is_some() {
        return Ok(false);
    }
    // Alive until the call is queued: later work of the stream may use the memory then.
    let mut lists = Vec::new();
    if needs_addresses && batch > 1 {
        let bytes = call.operand_bytes();
        for (place, list) in call.addresses.iter_mut().enumerate().take(operands.len().min(2)) {
            let start = call.operands[place].address() as i64;
            let addresses =
                Tensor::arange(batch, start, bytes[place].0 as i64, DType::I64, operands[0].device())?;
            *list = addresses.pointer();
            lists.push(addresses);
        }
    }
    Ok(if_supported(decompose(&call, &stream, label))?.is_some())
}

/// Returns a copy whose columns are contiguous: the rows of the transposes.
fn by_columns(x: &Tensor) -> Result<Tensor> {
    transposed(&x.detach())?.copied(Location::caller())
}

/// Computes lower factors in place, with zeros above them.
pub(super) fn cholesky(
    a: &Tensor,
    info: &Tensor,
    [batch, n]: [usize; 2],
    label: Label,
) -> Result<Option<Tensor>> {
    let sizes = [batch, n, n];
    let is_done = may_compute(a, sizes)? && queue(DenseMethod::Cholesky, sizes, &[a, info], true, label)?;
    if is_done { a.tril(0).map(Some) } else { Ok(None) }
}

/// Solves triangular systems in place of their right sides.
pub(super) fn triangular(
    a: &Tensor,
    b: &Tensor,
    sizes: [usize; 3],
    [upper, transposed, unit]: [bool; 3],
    label: Label,
) -> Result<bool> {
    let method = DenseMethod::Triangular { upper, transposed, unit };
    Ok(may_compute(a, sizes)? && queue(method, sizes, &[a, b], true, label)?)
}

/// Returns both factors in one tensor, the swapped rows, and the state.
pub(super) fn lu(x: &Tensor, sizes: [usize; 3], label: Label) -> Result<Option<[Tensor; 3]>> {
    let [batch, rows, columns] = sizes;
    let is_worth = rows == columns || is_worth(batch, rows.min(columns));
    if !is_worth || !may_compute(x, sizes)? {
        return Ok(None);
    }
    let factors = by_columns(x)?;
    let pivots = empty(x, &[batch, rows.min(columns)], DType::I32, label)?;
    let info = Tensor::zeros(&[batch], DType::I32, x.device())?;
    let is_done = queue(DenseMethod::Lu, sizes, &[&factors, &pivots, &info], true, label)?;
    if is_done { Ok(Some([transposed(&factors)?, pivots, info])) } else { Ok(None) }
}

/// Returns the packed form of QR, by columns, and the factors of its reflectors.
pub(super) fn qr(x: &Tensor, sizes: [usize; 3], label: Label) -> Result<Option<[Tensor; 2]>> {
    let [batch, rows, columns] = sizes;
    let least = rows.min(columns);
    if !is_worth(batch, least) || !may_compute(x, sizes)? {
        return Ok(None);
    }
    let packed = by_columns(x)?;
    let factors = empty(x, &[batch, least], DType::F64, label)?;
    let is_done = queue(DenseMethod::Qr, sizes, &[&packed, &factors], false, label)?;
    if is_done { Ok(Some([transposed(&packed)?, factors])) } else { Ok(None) }
}

/// Returns the first `width` columns of the product of reflectors, whose vectors are below the diagonal of `vectors` (batch, rows,
/// count).
pub(super) fn reflectors(
    vectors: &Tensor,
    factors: &Tensor,
    [batch, rows, count, width]: [usize; 4],
    label: Label,
) -> Result<Option<Tensor>> {
    let sizes = [batch, rows, count];
    if !is_worth(batch, count) || count > width || !may_compute(vectors, sizes)? {
        return Ok(None);
    }
    let mut columns = transposed(&vectors.detach())?;
    if width > count {
        let rest = Tensor::zeros(&[batch, width - count, rows], DType::F64, vectors.device())?;
        columns = Tensor::cat(&[columns, rest], 1)?;
    }
    let columns = columns.copied(Location::caller())?;
    let method = DenseMethod::Reflectors { width: width as u64 };
    let is_done = queue(method, sizes, &[&columns, factors], false, label)?;
    if is_done { transposed(&columns).map(Some) } else { Ok(None) }
}

/// Returns the eigenvalues and eigenvectors of symmetric matrices, which are overwritten.
pub(super) fn eigen(a: &Tensor, [batch, n]: [usize; 2], label: Label) -> Result<Option<[Tensor; 2]>> {
    let sizes = [batch, n, n];
    if !may_compute(a, sizes)? {
        return Ok(None);
    }
    let values = empty(a, &[batch, n], DType::F64, label)?;
    let info = Tensor::zeros(&[batch], DType::I32, a.device())?;
    let is_done = queue(DenseMethod::Eigen, sizes, &[a, &values, &info], false, label)?;
    if is_done { Ok(Some([values, transposed(a)?])) } else { Ok(None) }
}

/// Returns left singular vectors, singular values and right singular vectors of tall matrices.
pub(super) fn singular(x: &Tensor, sizes: [usize; 3], label: Label) -> Result<Option<[Tensor; 3]>> {
    let [batch, rows, columns] = sizes;
    if !is_worth(batch, columns) || columns > rows || !may_compute(x, sizes)? {
        return Ok(None);
    }
    let a = by_columns(x)?;
    let left = empty(x, &[batch, columns, rows], DType::F64, label)?;
    let right = empty(x, &[batch, columns, columns], DType::F64, label)?;
    let values = empty(x, &[batch, columns], DType::F64, label)?;
    let info = Tensor::zeros(&[batch], DType::I32, x.device())?;
    let is_done = queue(DenseMethod::Singular, sizes, &[&a, &left, &right, &values, &info], false, label)?;
    // The library's rotations may not converge; ours have another limit.
    if !is_done || info.ne_scalar(0)?.any()?.to_vec::<bool>()?[0] {
        return Ok(None);
    }
    Ok(Some([transposed(&left)?, values, transposed(&right)?]))
}
