//! L D Lᵀ of symmetric matrices that need not be positive definite, and solutions by it.

use thalweg_ir::{DType, Shape};
use thalweg_kernels::decompose::Method;
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use super::Body::{Composite, Kernel};
use super::decompose::{empty, launch, row_major_copy};
use super::operators;
use super::solve::{Stack, check, of_batch};
use super::{call as call_operator, single};
use crate::autograd::no_grad;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns L and D of symmetric matrices L D Lᵀ, of which the lower triangle is read, in one tensor, and the swapped rows,
    /// counted from 1 and negative for both rows of a block of two. D has blocks of one or two rows on the diagonal, L has ones.
    /// Blocks.
    "linalg_ldl_factor(Tensor self, *, bool hermitian=False) -> (Tensor LD, Tensor pivots)"
        fn linalg_ldl_factor() -> 2
        = Composite(|call| Ok(factors(call, "torch.linalg.ldl_factor", true)?.into_iter().take(2).collect())), out: [OfResult], autocast: Parts;
    /// Returns L and D of symmetric matrices in one tensor, the swapped rows, and 0 or the first block of D that is 0.
    "linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> (Tensor LD, Tensor pivots, Tensor info)"
        fn linalg_ldl_factor_ex() -> 3
        = Composite(|call| factors(call, "torch.linalg.ldl_factor_ex", call.bool(2))), out: [OfResult];
    /// Returns the solutions of equations with symmetric matrices from their L, D and swapped rows.
    "linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> Tensor"
        fn linalg_ldl_solve(pivots: tensor, b: tensor) = Composite(|call| solve(call).map(single)), out: [OfResult];
    /// Returns L and D of float64 matrices (batch, rows, rows), the swapped rows, and 0 or the first block of D that is 0.
    "thalweg::ldl(Tensor self) -> (Tensor LD, Tensor pivots, Tensor info)" = Kernel(|call| {
        let x = call.tensor(0);
        let [batch, n] = super::decompose::square(x)?;
        let (factors, info) = (row_major_copy(x, call.label)?, Tensor::zeros(&[batch], DType::I32, x.device())?);
        let pivots = empty(x, &[batch, n], DType::I32, call.label)?;
        launch(Method::Indefinite, [batch, n, n], [0, 0], &[&factors, &pivots, &info], call.label)?;
        Ok(Tensors::from_iter([factors, pivots, info]))
    });
    /// Returns the solutions of equations with float64 matrices from their L, D and int32 swapped rows.
    "thalweg::ldl_solve(Tensor LD, Tensor pivots, Tensor B) -> Tensor" = Kernel(|call| {
        let (a, pivots, b) = (call.tensor(0).contiguous()?, call.tensor(1).contiguous()?, call.tensor(2));
        let [batch, n, columns] = super::decompose::sizes(b)?;
        refuse_if!(
            super::decompose::square(&a)? != [batch, n] || *pivots.shape() != [batch, n] || pivots.dtype() != DType::I32,
            "the factors {a:?} and rows {pivots:?} do not fit the right sides {b:?}"
        );
        let result = row_major_copy(b, call.label)?;
        launch(Method::IndefiniteSolve, [batch, n, columns], [0, 0], &[&a, &pivots, &result], call.label)?;
        Ok(single(result))
    });
}

fn factors(call: &Call<'_>, name: &str, checks: bool) -> Result<Tensors> {
    let a = Stack::square(name, call.tensor(0))?;
    let results = no_grad(|| a.call(built_in!("thalweg::ldl")?, &[]))?;
    if checks {
        check(&results[2], |matrix, order| {
            format!(
                "{name}: {}The diagonal block {order} of D is zero: the factorization was completed, and is singular.",
                of_batch(matrix)
            )
        })?;
    }
    results.iter().map(|result| a.to_result(result)).collect()
}

fn solve(call: &Call<'_>) -> Result<Tensor> {
    let name = "torch.linalg.ldl_solve";
    let (a, b) = (Stack::square(name, call.tensor(0))?, Stack::new(name, call.tensor(2))?);
    let pivots = call.tensor(1);
    refuse_if!(
        *pivots.shape() != call.tensor(0).shape()[..call.tensor(0).rank() - 1],
        "{name}: Expected LD.shape[:-1] and pivots.shape to be the same, but got pivots with shape {:?} instead",
        pivots.shape()
    );
    if pivots.dtype() != DType::I32 {
        refuse!("{name}: Expected pivots to be integers of int32. Got {}", pivots.dtype());
    }
    let n = a.rows();
    let [a, b, batch] = Stack::together(&a, &b, name)?;
    let shape: Shape = batch.batch.iter().copied().chain([n]).collect();
    let pivots = pivots.expand(&shape)?.reshape(&[a.count(), n])?;
    let arguments = [(&a.matrices).into(), (&pivots).into(), (&b.matrices).into()];
    let solution =
        no_grad(|| call_operator(built_in!("thalweg::ldl_solve")?, &arguments, None, call.label.location))?;
    batch.to_result(&solution)
}
