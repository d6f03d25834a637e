//! Eigenvectors of Hermitian matrices, singular vectors of complex ones, and complex triangular systems.
//!
//! Eigenvectors are those of a general matrix, in the order of the eigenvalues. A Hermitian matrix is normal, so only vectors of one
//! eigenvalue need to be made orthogonal, which a factorization by reflections does. Singular vectors u and v are the halves of
//! eigenvectors of ((0, A), (Aᴴ, 0)), whose eigenvalues are the singular values and their negatives: no square loses digits.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, refuse};

use super::complex::parts;
use super::complex_matrices::{Stack, qr};
use super::decompose::{adjoint, identity, transposed};
use super::single;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns orthonormal columns with the directions of nearly orthonormal ones. A column that depends on those before it is replaced
/// by one that is orthogonal to them.
fn orthonormal(columns: &Tensor) -> Result<Tensor> {
    let results = qr(columns, "reduced")?;
    let diagonal = results[1].diagonal(0, -2, -1)?;
    let size = diagonal.abs()?;
    let is_some = size.gt_scalar(0.0)?;
    let one = Tensor::ones(&[], DType::F64, columns.device())?;
    let size = is_some.select_where(&size, &one)?.to_dtype(DType::C128)?;
    let one = one.to_dtype(DType::C128)?;
    let phase = is_some.select_where(&diagonal.div(&size)?, &one)?;
    results[0].mul(&phase.unsqueeze(-2)?)
}

/// Returns the eigenvalues of Hermitian matrices (batch, rows, rows) in ascending order, and the eigenvectors as columns.
pub(super) fn spectrum(matrices: &Tensor) -> Result<[Tensor; 2]> {
    let [values, vectors] = matrices.linalg_eig()?;
    let [values, _] = parts(&values)?;
    let order = values.detach().argsort(-1, false)?;
    let places = Tensor::arange(order.shape()[1], 0, 1, DType::I64, matrices.device())?;
    let chosen =
        places.unsqueeze(-1)?.eq(&order.unsqueeze(1)?)?.to_dtype(DType::F64)?.to_dtype(DType::C128)?;
    Ok([values.gather(1, &order)?, orthonormal(&vectors.matmul(&chosen)?)?])
}

/// Returns the eigenvalues and eigenvectors of Hermitian matrices, of which one triangle is read.
pub(super) fn eigen(x: &Tensor, upper: bool) -> Result<Tensors> {
    let whole = Stack::square("linalg.eigh", x)?.hermitian(upper)?;
    let [values, vectors] = spectrum(&whole.matrices)?;
    Ok(Tensors::from_iter([whole.to_result(&values)?, whole.to_result(&vectors)?]))
}

/// Returns left singular vectors, singular values in descending order, and right singular vectors, as columns, of matrices with at
/// least as many rows as columns; with `is_full` the left ones are completed to a basis.
fn tall(a: &Tensor, is_full: bool) -> Result<[Tensor; 3]> {
    let &[count, rows, columns] = a.shape() else {
        refuse!("matrices are (batch, rows, columns)");
    };
    let zeros = |size: usize| Tensor::zeros(&[count, size, size], DType::C128, a.device());
    let upper = Tensor::cat(&[zeros(rows)?, a.clone()], 2)?;
    let lower = Tensor::cat(&[adjoint(a)?, zeros(columns)?], 2)?;
    let [values, vectors] = spectrum(&Tensor::cat(&[upper, lower], 1)?)?;
    // The greatest first.
    let values = values.narrow(1, rows, columns)?.flip(&[1])?.clamp_min(0.0)?;
    let vectors = vectors.narrow(2, rows, columns)?.flip(&[2])?.mul_scalar(std::f64::consts::SQRT_2)?;
    let right = orthonormal(&vectors.narrow(1, rows, columns)?)?;
    let mut left = orthonormal(&vectors.narrow(1, 0, rows)?)?;
    if is_full && rows > columns {
        let basis = qr(&left.detach(), "complete")?;
        left = Tensor::cat(&[left, basis[0].narrow(2, columns, rows - columns)?], 2)?;
    }
    Ok([left, values, right])
}

/// Returns left singular vectors, singular values and right singular vectors of matrices (batch, rows, columns), as columns.
pub(super) fn spectrum_of(matrices: &Tensor) -> Result<[Tensor; 3]> {
    whole(matrices, false)
}

fn whole(matrices: &Tensor, is_full: bool) -> Result<[Tensor; 3]> {
    if matrices.shape()[1] >= matrices.shape()[2] {
        return tall(matrices, is_full);
    }
    let [right, values, left] = tall(&adjoint(matrices)?, is_full)?;
    Ok([left, values, right])
}

/// Returns left singular vectors as columns, singular values, and right singular vectors as columns.
pub(super) fn singular(name: &str, x: &Tensor, is_full: bool) -> Result<[Tensor; 3]> {
    let a = Stack::new(name, x)?;
    let [left, values, right] = whole(&a.matrices, is_full)?;
    Ok([a.to_result(&left)?, a.to_result(&values)?, a.to_result(&right)?])
}

/// Returns (U, S, Vᴴ) of `linalg_svd`.
pub(super) fn svd(call: &Call<'_>) -> Result<Tensors> {
    let [left, values, right] = singular("linalg.svd", call.tensor(0), call.bool(1))?;
    Ok(Tensors::from_iter([left, values, transposed(&right.conj()?)?]))
}

/// Returns the solutions of complex equations with triangular matrices: those of the whole matrices without their other triangle.
pub(super) fn triangular(call: &Call<'_>) -> Result<Tensors> {
    let kind = [2, 3, 4].map(|place| call.bool(place));
    triangle(call.tensor(0), call.tensor(1), kind).map(single)
}

/// Returns the solutions X of A X = B, or, if not `left`, X A = B, with triangular matrices A, whose diagonal may be ones.
pub(super) fn triangle(a: &Tensor, b: &Tensor, [upper, left, unit]: [bool; 3]) -> Result<Tensor> {
    if a.rank() < 2 || b.rank() < 2 || a.dtype() != b.dtype() {
        refuse!("linalg.solve_triangular: A and B are matrices of one dtype, but they are {a:?} and {b:?}");
    }
    let inside = i64::from(unit);
    let mut whole = if upper { a.triu(inside)? } else { a.tril(-inside)? };
    if unit {
        let n = a.shape()[a.rank() - 1];
        whole = whole.add(&identity(a, n)?)?;
    }
    // A zero on the diagonal is accepted: the solutions are not finite.
    let arguments = [(&whole).into(), b.into(), left.into(), false.into()];
    let location = std::panic::Location::caller();
    Ok(super::call_all(built_in!("linalg_solve_ex")?, &arguments, None, location)?.swap_remove(0))
}
