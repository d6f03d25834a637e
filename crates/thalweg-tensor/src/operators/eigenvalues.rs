//! Eigenvalues and eigenvectors of matrices that need not be symmetric; they are complex.

use thalweg_ir::{DType, Shape};
use thalweg_kernels::decompose::Method;
use thalweg_runtime::{Error, Result, refuse};

use super::Body::{Composite, Differentiable};
use super::decompose::{differences, empty, launch, row_major_copy, transposed};
use super::{call_all, operators};
use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the eigenvalues of square matrices, in no order, and the eigenvectors as columns of length 1, whose largest elements are
    /// real. Blocks, because the elements must be finite.
    "linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)"
        fn linalg_eig() -> 2 = Composite(|call| eigen(call, "torch.linalg.eig"));
    /// Returns the eigenvalues of square matrices, in no order. Blocks, because the elements must be finite.
    "linalg_eigvals(Tensor self) -> Tensor"
        fn linalg_eigvals() = Composite(|call| Ok(eigen(call, "torch.linalg.eigvals")?.into_iter().take(1).collect())), autocast: Parts;
    /// Returns the eigenvalues of square matrices, in no order. Blocks, because the elements must be finite.
    "_linalg_eigvals(Tensor self) -> Tensor"
        = Composite(|call| Ok(eigen(call, "torch.linalg.eigvals")?.into_iter().take(1).collect()));
    /// Returns the eigenvalues of complex128 matrices (batch, rows, rows), and the eigenvectors as columns of length 1.
    "thalweg::eig(Tensor self) -> (Tensor values, Tensor vectors)" = Differentiable(|call| {
        let x = call.tensor(0);
        let &[batch, n, columns] = x.shape() else {
            refuse!("matrices are (batch, rows, rows), not {x:?}");
        };
        if n != columns || x.dtype() != DType::C128 {
            refuse!("matrices are square and of complex128, not {x:?}");
        }
        let matrices = row_major_copy(x, call.label)?;
        let vectors = empty(x, &[batch, n, n], DType::C128, call.label)?;
        let values = empty(x, &[batch, n], DType::C128, call.label)?;
        launch(Method::General, [batch, n, n], [0, 0], &[&matrices, &vectors, &values], call.label)?;
        Ok(Tensors::from_iter([values, vectors]))
    }, &EIGEN), complex: Taken;
}

fn eigen(call: &Call<'_>, name: &str) -> Result<Tensors> {
    let x = call.tensor(0);
    let &[ref batch @ .., rows, columns] = x.shape() else {
        refuse!("{name}: The input tensor must have at least 2 dimensions.");
    };
    if rows != columns {
        refuse!("{name}: A must be batches of square matrices, but they are {rows} by {columns} matrices");
    }
    let narrow = match x.dtype() {
        DType::F32 | DType::C64 => DType::C64,
        DType::F64 | DType::C128 => DType::C128,
        dtype => {
            refuse!("{name}: Expected a tensor of float32, float64 or complex numbers. Got {dtype}");
        }
    };
    let count: usize = batch.iter().product();
    let matrices = x.to_dtype(DType::C128)?.reshape(&[count, rows, rows])?;
    if x.elements() > 0 && !x.device().is_meta() && x.detach().isfinite()?.all()?.item::<u8>()? == 0 {
        refuse!("{name}: input tensor should not contain infs or NaNs.");
    }
    // Scaled by the largest element, so that squares of elements do not overflow.
    let scale = match x.elements() {
        0 => Tensor::ones(&[count, 1, 1], DType::F64, x.device())?,
        _ => {
            let largest = matrices.detach().abs()?.amax(&[1, 2], true)?;
            let one = Tensor::ones(&[], DType::F64, x.device())?;
            largest.eq_scalar(0.0)?.select_where(&one, &largest)?
        }
    };
    let scaled = matrices.div(&scale)?;
    let results = call_all(built_in!("thalweg::eig")?, &[(&scaled).into()], None, call.label.location)?;
    let values = results[0].mul(&scale.squeeze(-1)?)?;
    let shape: Shape = batch.iter().copied().chain([rows]).collect();
    let values = values.reshape(&shape)?.to_dtype(narrow)?;
    // Stored by columns, as in LAPACK.
    let vectors = transposed(&results[1])?.reshape(x.shape())?.contiguous_as(narrow)?;
    Ok(Tensors::from_iter([values, transposed(&vectors)?]))
}

/// The gradient of A V = V Λ with columns of length 1 (C. Boeddeker and others, *On the computation of complex-valued gradients with
/// application to statistically optimum beamforming*, 2017). A loss must not depend on the phases of eigenvectors.
static EIGEN: Formula = Formula {
    inputs: &[],
    outputs: &[0, 1],
    backward: |call| {
        call.one(0, || {
            let (values, vectors) = (call.result(0)?, call.result(1)?);
            let adjoint = transposed(&vectors.conj()?)?;
            let mut inner = call.gradient_of(0)?.diag_embed(0, -2, -1)?;
            if call.has_gradient(1) {
                let product = adjoint.matmul(&call.gradient_of(1)?)?;
                let lengths = product.diagonal(0, -2, -1)?.real()?.to_dtype(DType::C128)?;
                let along = adjoint.matmul(&vectors.mul(&lengths.unsqueeze(1)?)?)?;
                let n = values.shape()[1];
                let eye = Tensor::ones(&[n], DType::F64, values.device())?.diag_embed(0, 0, 1)?;
                // The diagonal does not contribute.
                let off = product.sub(&along)?.div(&differences(&values)?.conj()?)?;
                inner = inner.add(&off.mul(&eye.neg()?.add_scalar(1.0)?)?)?;
            }
            adjoint.linalg_solve(&inner.matmul(&adjoint)?)
        })
    },
};
