//! Factors and inverses of complex matrices, by operators on complex numbers, through which gradients flow.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, refuse};

use super::complex::parts;
use super::complex_matrices::Stack;
use super::complex_spectra::{spectrum_of, triangle};
use super::decompose::{adjoint, identity, permutations, transposed, unpacked};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns both factors of P L U of matrices (batch, rows, columns) in one tensor, the swapped rows, counted from 1, and 0 or the
/// first pivot that is 0.
fn eliminated(matrices: &Tensor, pivot: bool) -> Result<[Tensor; 3]> {
    let &[batch, rows, columns] = matrices.shape() else {
        refuse!("matrices are (batch, rows, columns)");
    };
    let device = matrices.device();
    let places = Tensor::arange(rows, 0, 1, DType::I64, device)?.unsqueeze(0)?.expand(&[batch, rows])?;
    let one = Tensor::ones(&[], DType::C128, device)?;
    let (mut a, mut pivots) = (matrices.clone(), Vec::new());
    let mut info = Tensor::zeros(&[batch], DType::I32, device)?;
    for step in 0..rows.min(columns) {
        // As LAPACK measures numbers.
        let [re, im] = parts(&a.detach().narrow(2, step, 1)?.narrow(1, step, rows - step)?.squeeze(2)?)?;
        let below = re.abs()?.add(&im.abs()?)?;
        let best = if pivot { below.argmax(1)?.unsqueeze(1)? } else { places.narrow(1, 0, 1)?.clone() };
        let best = best.add_scalar(step as i64)?;
        let to_here = places.eq_scalar(step as i64)?;
        let from_here = places.eq(&best)?;
        let here = Tensor::full(&[], step as i64, DType::I64, device)?;
        let order = to_here.select_where(&best, &from_here.select_where(&here, &places)?)?;
        a = a.gather(1, &order.unsqueeze(2)?.expand(&[batch, rows, columns])?)?;
        pivots.push(best.add_scalar(1)?.to_dtype(DType::I32)?);
        let head = a.narrow(1, step, 1)?;
        let number = head.narrow(2, step, 1)?;
        let is_zero = number.detach().abs()?.eq_scalar(0.0)?;
        let is_first = is_zero.reshape(&[batch])?.logical_and(&info.eq_scalar(0)?)?;
        let order = Tensor::full(&[], step as i64 + 1, DType::I32, device)?;
        info = is_first.select_where(&order, &info)?;
        if step + 1 == rows {
            break;
        }
        let rest = a.narrow(1, step + 1, rows - step - 1)?;
        let factor = rest.narrow(2, step, 1)?.div(&is_zero.select_where(&one, &number)?)?;
        let mut parts = vec![rest.narrow(2, 0, step)?, factor.clone()];
        if step + 1 < columns {
            let after = |x: &Tensor| x.narrow(2, step + 1, columns - step - 1);
            parts.push(after(&rest)?.sub(&factor.mul(&after(&head)?)?)?);
        }
        a = Tensor::cat(&[a.narrow(1, 0, step + 1)?, Tensor::cat(&parts, 2)?], 1)?;
    }
    let pivots = match pivots.is_empty() {
        true => Tensor::zeros(&[batch, 0], DType::I32, device)?,
        false => Tensor::cat(&pivots, 1)?,
    };
    Ok([a, pivots, info])
}

/// Returns both factors of P L U in one tensor, the swapped rows, and 0 or the first pivot that is 0.
pub(super) fn lu(x: &Tensor, name: &str, pivot: bool) -> Result<Tensors> {
    let a = Stack::new(name, x)?;
    eliminated(&a.matrices, pivot)?.iter().map(|result| a.to_result(result)).collect()
}

/// Returns P, L and U of matrices.
pub(super) fn lu_parts(call: &Call<'_>) -> Result<Tensors> {
    let a = Stack::new("linalg.lu", call.tensor(0))?;
    let [packed, pivots, _] = eliminated(&a.matrices, call.bool(1))?;
    let [lower, upper] = unpacked(&packed)?;
    let order = match call.bool(1) {
        true => a.to_result(&permutations(&pivots, a.sizes()[1])?.to_dtype(DType::C128)?)?,
        false => Tensor::empty(&[0], call.tensor(0).dtype(), call.device)?,
    };
    Ok(Tensors::from_iter([order, a.to_result(&lower)?, a.to_result(&upper)?]))
}

/// Returns P, L and U from both factors in one tensor and the swapped rows; those that are not requested are empty.
pub(super) fn lu_unpack(call: &Call<'_>) -> Result<Tensors> {
    let a = Stack::new("torch.lu_unpack", call.tensor(0))?;
    let [count, rows, columns] = a.sizes();
    let nothing = || Tensor::empty(&[0], call.tensor(0).dtype(), call.device);
    let pivots = call.tensor(1).reshape(&[count, rows.min(columns)])?;
    let order = match call.bool(3) {
        true => a.to_result(&permutations(&pivots, rows)?.to_dtype(DType::C128)?)?,
        false => nothing()?,
    };
    let [lower, upper] = match call.bool(2) {
        true => {
            let [lower, upper] = unpacked(&a.matrices)?;
            [a.to_result(&lower)?, a.to_result(&upper)?]
        }
        false => [nothing()?, nothing()?],
    };
    Ok(Tensors::from_iter([order, lower, upper]))
}

/// Returns 0 or the first pivot of each matrix that is 0.
pub(super) fn first_zero_pivot(x: &Tensor, name: &str) -> Result<Tensor> {
    let a = Stack::square(name, x)?;
    let [_, _, info] = eliminated(&a.matrices, true)?;
    a.to_result(&info)
}

/// Returns the solutions of equations with matrices from both their factors in one tensor and the swapped rows.
pub(super) fn lu_solve(call: &Call<'_>) -> Result<Tensor> {
    let (factors, b) = (call.tensor(0), call.tensor(2));
    let wide = [factors.to_dtype(DType::C128)?, call.tensor(1).clone()];
    let [order, lower, upper] = wide[0].lu_unpack(&wide[1], true, true)?;
    let matrices = order.matmul(&lower)?.matmul(&upper)?;
    let matrices = if call.bool(4) { adjoint(&matrices)? } else { matrices };
    let b = b.to_dtype(DType::C128)?;
    let arguments = [(&matrices).into(), (&b).into(), call.bool(3).into()];
    super::call(built_in!("linalg_solve")?, &arguments, None, call.label.location)?.to_dtype(factors.dtype())
}

/// Returns the pseudoinverses of matrices, whose singular values that are not above the bounds of their matrices count as 0.
pub(super) fn pseudoinverse(name: &str, x: &Tensor, bounds: &Tensor) -> Result<Tensor> {
    let a = Stack::new(name, x)?;
    let [left, values, right] = spectrum_of(&a.matrices)?;
    let bounds = bounds.reshape(&[a.sizes()[0], 1])?;
    let is_some = values.detach().gt(&bounds)?;
    let [zero, one] = [0.0, 1.0].map(|number| Tensor::full(&[], number, DType::F64, x.device()));
    let safe = is_some.select_where(&values, &one?)?;
    let inverse = is_some.select_where(&safe.reciprocal()?, &zero?)?;
    a.to_result(&right.mul(&inverse.unsqueeze(1)?.to_dtype(DType::C128)?)?.matmul(&adjoint(&left)?)?)
}

/// Returns the solutions of equations with Hermitian matrices from their Cholesky factors.
pub(super) fn cholesky_solve(b: &Tensor, factor: &Tensor, upper: bool) -> Result<Tensor> {
    let other = adjoint(factor)?;
    let [lower, upper] = if upper { [&other, factor] } else { [factor, &other] };
    triangle(upper, &triangle(lower, b, [false, true, false])?, [true, true, false])
}

/// Returns the inverses of Hermitian matrices from their Cholesky factors.
pub(super) fn cholesky_inverse(call: &Call<'_>) -> Result<Tensor> {
    let factor = call.tensor(0);
    Stack::square("cholesky_inverse", factor)?;
    let n = factor.shape()[factor.rank() - 1];
    let eye = identity(factor, n)?.expand(factor.shape())?;
    cholesky_solve(&eye, factor, call.bool(1))
}

/// Returns the solutions of equations with triangular matrices A or their transposes, and a copy of A.
pub(super) fn triangular_solve(call: &Call<'_>) -> Result<Tensors> {
    let (b, a) = (call.tensor(0), call.tensor(1));
    let (upper, transpose, unit) = (call.bool(2), call.bool(3), call.bool(4));
    let of = if transpose { transposed(a)? } else { a.clone() };
    let solution = triangle(&of, b, [upper != transpose, true, unit])?;
    Ok(Tensors::from_iter([solution, a.copied(call.label.location)?]))
}
