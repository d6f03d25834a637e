//! Solutions of linear equations, factors, determinants, eigenvalues and singular values of matrices of any batch.
//!
//! Everything is computed in f64, by [`decompose`](super::decompose), and rounded once. As in PyTorch, the host reads the status
//! of a decomposition (a matrix without an inverse, or one that is not positive definite): those calls block, and their `_ex`
//! forms do not.

use thalweg_ir::{DType, Shape, broadcast_shapes};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::decompose::{
    identity, permutations, signs, solve_cholesky, solve_triangular, swapped, transposed, unpacked,
};
use super::{call_all, complex_factors, complex_matrices, complex_spectra, operators, reflectors, single};
use crate::autograd::no_grad;
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the lower factors L of symmetric positive-definite matrices L Lᵀ, or the upper ones. Blocks.
    "linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor"
        fn linalg_cholesky() = Composite(|call| cholesky(call, "linalg.cholesky", call.bool(1), true).map(first)), out: [OfResult], autocast: Parts, complex: Parts(|call| cholesky_of_complex(call.tensor(0), "linalg.cholesky", call.bool(1), true).map(first));
    /// Returns the lower factors of matrices, or the upper ones, and 0 or the order of the leading minor that is not positive definite.
    "linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)"
        fn linalg_cholesky_ex() -> 2
        = Composite(|call| cholesky(call, "linalg.cholesky_ex", call.bool(1), call.bool(2))), out: [OfResult], complex: Parts(|call| cholesky_of_complex(call.tensor(0), "linalg.cholesky_ex", call.bool(1), call.bool(2)));
    /// Returns the lower factors of symmetric positive-definite matrices, or the upper ones. Blocks.
    "cholesky(Tensor self, bool upper=False) -> Tensor"
        fn cholesky(upper: bool) = Composite(|call| cholesky(call, "cholesky", call.bool(1), true).map(first)), complex: Parts(|call| cholesky_of_complex(call.tensor(0), "cholesky", call.bool(1), true).map(first));
    /// Returns the solutions of equations with matrices from their Cholesky factors.
    "cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor"
        fn cholesky_solve(input2: tensor, upper: bool) = Composite(|call| {
            let (b, factor) = (Stack::new("cholesky_solve", call.tensor(0))?, Stack::square("cholesky_solve", call.tensor(1))?);
            let upper = call.bool(2);
            let [factor, b, batch] = Stack::together(&factor, &b, "cholesky_solve")?;
            batch.to_result(&solve_cholesky(&b.matrices, &factor.matrices, upper)?).map(single)
        }), complex: Parts(|call| {
            complex_factors::cholesky_solve(call.tensor(0), call.tensor(1), call.bool(2)).map(single)
        });
    /// Returns the inverses of matrices from their Cholesky factors.
    "cholesky_inverse(Tensor self, bool upper=False) -> Tensor"
        fn cholesky_inverse(upper: bool) = Composite(|call| {
            let factor = Stack::square("cholesky_inverse", call.tensor(0))?;
            factor.to_result(&solve_cholesky(&factor.identity()?, &factor.matrices, call.bool(1))?).map(single)
        }), complex: Parts(|call| complex_factors::cholesky_inverse(call).map(single));
    /// Returns the solutions X of A X = B, or X A = B, with triangular matrices A.
    "linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor"
        fn linalg_solve_triangular(b: tensor, upper: bool) = Composite(|call| {
            let name = "linalg.solve_triangular";
            let (a, b) = (Stack::square(name, call.tensor(0))?, Stack::new(name, call.tensor(1))?);
            let (upper, left, unit) = (call.bool(2), call.bool(3), call.bool(4));
            let b = if left { b } else { b.transposed()? };
            let [a, b, batch] = Stack::together(&a, &b, name)?;
            let solution = solve_triangular(&a.matrices, &b.matrices, [upper, !left, unit])?;
            batch.to_result(&if left { solution } else { transposed(&solution)? }).map(single)
        }), out: [OfResult], complex: Parts(complex_spectra::triangular);
    /// Returns the solutions of equations with triangular matrices A, and a copy of A.
    "triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)"
        = Composite(|call| {
            let name = "triangular_solve";
            let (b, a) = (Stack::new(name, call.tensor(0))?, Stack::square(name, call.tensor(1))?);
            let [a, b, batch] = Stack::together(&a, &b, name)?;
            let solution = solve_triangular(&a.matrices, &b.matrices, [call.bool(2), call.bool(3), call.bool(4)])?;
            Ok(Tensors::from_iter([batch.to_result(&solution)?, batch.to_result(&a.matrices)?]))
        }), out: [OfResult], complex: Parts(complex_factors::triangular_solve);
    /// Returns both factors of P L U in one tensor, and the swapped rows, counted from 1. Blocks.
    "linalg_lu_factor(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)"
        fn linalg_lu_factor() -> 2
        = Composite(|call| Ok(factors(call, "torch.linalg.lu_factor", call.bool(1), true)?.into_iter().take(2).collect())), out: [OfResult], autocast: Parts, complex: Parts(|call| {
            Ok(complex_lu(call, "torch.linalg.lu_factor", true)?.into_iter().take(2).collect())
        });
    /// Returns both factors of P L U in one tensor, the swapped rows, and 0 or the first pivot that is 0.
    "linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)"
        fn linalg_lu_factor_ex() -> 3
        = Composite(|call| factors(call, "torch.linalg.lu_factor_ex", call.bool(1), call.bool(2))), out: [OfResult], complex: Parts(|call| complex_lu(call, "torch.linalg.lu_factor_ex", call.bool(2)));
    /// Returns both factors of P L U in one tensor, the swapped rows, and 0 or the first pivot that is 0.
    "_lu_with_info(Tensor self, bool pivot=True, bool check_errors=True) -> (Tensor LU, Tensor pivots, Tensor info)"
        = Composite(|call| factors(call, "torch.lu_factor", call.bool(1), call.bool(2))), autocast: Parts;
    /// Returns the factors P, L and U of matrices; P is empty if rows are not swapped.
    "linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)"
        fn linalg_lu() -> 3 = Composite(|call| {
            let a = Stack::new("linalg.lu", call.tensor(0))?;
            let packed = a.call(built_in!("thalweg::lu")?, &[call.bool(1).into()])?;
            let [lower, upper] = unpacked(&packed[0])?;
            let order = if call.bool(1) { a.give_rows(&permutations(&packed[1], a.rows())?)? } else { a.nothing()? };
            Ok(Tensors::from_iter([order, a.give_rows(&lower)?, a.give_rows(&upper)?]))
        }), out: [OfResult], complex: Parts(complex_factors::lu_parts);
    /// Returns the factors P, L and U from the result of `linalg_lu_factor`; those that are not requested are empty.
    "lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)"
        fn lu_unpack(lu_pivots: tensor, unpack_data: bool, unpack_pivots: bool) -> 3
        = Composite(|call| {
            let a = Stack::new("torch.lu_unpack", call.tensor(0))?;
            refuse_if!(
                call.tensor(1).dtype() != DType::I32,
                "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 dtype."
            );
            let order = if call.bool(3) { a.give_rows(&permutations(&pivots_of(&a, call.tensor(1))?, a.rows())?)? } else { a.nothing()? };
            let [lower, upper] = if call.bool(2) {
                let [lower, upper] = unpacked(&a.matrices)?;
                [a.give_rows(&lower)?, a.give_rows(&upper)?]
            } else {
                [a.nothing()?, a.nothing()?]
            };
            Ok(Tensors::from_iter([order, lower, upper]))
        }), out: [OfResult], complex: Parts(complex_factors::lu_unpack);
    /// Returns the solutions of equations with matrices from their LU factors.
    "lu_solve(Tensor self, Tensor LU_data, Tensor LU_pivots) -> Tensor"
        = Composite(|call| lu_solve(call.tensor(1), call.tensor(2), call.tensor(0), [true, false]).map(single)), autocast: Parts;
    /// Returns the solutions of equations with matrices from their LU factors, or with their transposes, on the left or the
    /// right.
    "linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor"
        fn linalg_lu_solve(pivots: tensor, b: tensor)
        = Composite(|call| {
            lu_solve(call.tensor(0), call.tensor(1), call.tensor(2), [call.bool(3), call.bool(4)]).map(single)
        }), out: [OfResult], complex: Parts(|call| complex_factors::lu_solve(call).map(single));
    /// Returns the solutions X of A X = B, or X A = B. Blocks.
    "linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor"
        fn linalg_solve(b: tensor) = Composite(|call| solve(call, "torch.linalg.solve", call.bool(2), true).map(first)), out: [OfResult], autocast: Parts, complex: Parts(|call| of_complex::solve(call, "torch.linalg.solve", true).map(first));
    /// Returns the solutions X of A X = B, or X A = B, and 0 or the first pivot that is 0.
    "linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor info)"
        fn linalg_solve_ex(b: tensor) -> 2
        = Composite(|call| solve(call, "torch.linalg.solve_ex", call.bool(2), call.bool(3))), out: [OfResult], autocast: Parts, complex: Parts(|call| of_complex::solve(call, "torch.linalg.solve_ex", call.bool(3)));
    /// Returns the inverses of matrices. Blocks.
    "linalg_inv(Tensor A) -> Tensor" fn linalg_inv() = Composite(|call| inverse(call, "linalg.inv", true).map(first)), out: [OfResult], autocast: Parts, complex: Parts(|call| of_complex::inverse(call.tensor(0), true).map(first));
    /// Returns the inverses of matrices, and 0 or the first pivot that is 0.
    "linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)"
        fn linalg_inv_ex() -> 2
        = Composite(|call| inverse(call, "linalg.inv_ex", call.bool(1))), out: [OfResult], complex: Parts(|call| of_complex::inverse(call.tensor(0), call.bool(1)));
    /// Returns the inverses of matrices. Blocks.
    "inverse(Tensor self) -> Tensor" fn inverse() = Composite(|call| inverse(call, "linalg.inv", true).map(first)), autocast: Parts, complex: Parts(|call| of_complex::inverse(call.tensor(0), true).map(first));
    /// Returns the determinants of matrices.
    "linalg_det(Tensor A) -> Tensor" fn linalg_det() = Composite(|call| det(call.tensor(0)).map(single)), out: [OfResult], autocast: Parts, complex: Parts(|call| complex_matrices::det(call.tensor(0)).map(single));
    /// Returns the determinants of matrices.
    "det(Tensor self) -> Tensor" fn det() = Composite(|call| det(call.tensor(0)).map(single)), autocast: Parts, complex: Parts(|call| complex_matrices::det(call.tensor(0)).map(single));
    /// Returns the signs of determinants and the logarithms of their absolute values.
    "linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)"
        fn linalg_slogdet() -> 2 = Composite(|call| sign_and_log(call.tensor(0))), out: [OfResult], autocast: Parts, complex: Parts(|call| complex_matrices::sign_and_log(call.tensor(0)));
    /// Returns the signs of determinants and the logarithms of their absolute values.
    "slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)"
        fn slogdet() -> 2 = Composite(|call| sign_and_log(call.tensor(0))), autocast: Parts, complex: Parts(|call| complex_matrices::sign_and_log(call.tensor(0)));
    /// Returns the logarithms of determinants; NaN for negative ones.
    "logdet(Tensor self) -> Tensor" fn logdet() = Composite(|call| {
        let [sign, log] = <[Tensor; 2]>::try_from(sign_and_log(call.tensor(0))?.into_vec()).expect("there are two");
        let nan = Tensor::full(&[], f64::NAN, log.dtype(), call.device)?;
        sign.eq_scalar(-1.0)?.select_where(&nan, &log).map(single)
    }), autocast: Parts, complex: Parts(|call| complex_matrices::logdet(call.tensor(0)).map(single));
    /// Returns orthogonal matrices Q and upper factors R; in the mode `complete` Q is square, in `r` it is empty.
    "linalg_qr(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)"
        fn linalg_qr(mode: str) -> 2 = Composite(|call| qr(call.tensor(0), call.str(1))), out: [OfResult], complex: Parts(|call| qr_of_complex(call.tensor(0), call.str(1)));
    /// Returns orthogonal matrices Q and upper factors R, in the mode `reduced` or `complete`.
    "qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)"
        = Composite(|call| qr(call.tensor(0), if call.bool(1) { "reduced" } else { "complete" })), autocast: Parts, complex: Parts(|call| {
            qr_of_complex(call.tensor(0), if call.bool(1) { "reduced" } else { "complete" })
        });
    /// Returns upper factors with the vectors of reflectors below them, and the factors of the reflectors, as LAPACK packs them.
    "geqrf(Tensor self) -> (Tensor a, Tensor tau)" fn geqrf() -> 2 = Composite(|call| {
        let a = Stack::new("torch.geqrf", call.tensor(0))?;
        a.call(built_in!("thalweg::geqrf")?, &[])?.iter().map(|result| a.to_result(result)).collect()
    }), complex: Parts(complex_matrices::geqrf);
    /// Returns the first columns of products of reflectors, whose vectors are below a diagonal.
    "linalg_householder_product(Tensor input, Tensor tau) -> Tensor"
        fn linalg_householder_product(tau: tensor)
        = Composite(|call| {
            let a = Stack::new("torch.linalg.householder_product", call.tensor(0))?;
            let [rows, columns] = [a.rows(), a.columns()];
            refuse_if!(
                rows < columns,
                "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]"
            );
            let eye = identity(&a.matrices, rows)?.narrow(1, 0, columns)?.unsqueeze(0)?;
            let start = eye.expand(&[a.count(), rows, columns])?;
            a.to_result(&reflected(&a, call.tensor(1), &start, false)?).map(single)
        }), complex: Parts(|call| complex_matrices::householder_product(call).map(single));
    /// Returns the product of all reflectors, or of its transpose, with other matrices, on the left or the right.
    "ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor"
        fn ormqr(input2: tensor, input3: tensor, left: bool, transpose: bool)
        = Composite(|call| {
            let (left, transpose) = (call.bool(3), call.bool(4));
            check_reflectors(call.tensor(0), call.tensor(1), call.tensor(2), left)?;
            let (a, other) = (Stack::new("torch.ormqr", call.tensor(0))?, Stack::new("torch.ormqr", call.tensor(2))?);
            let other = if left { other } else { other.transposed()? };
            let product = reflected(&a, call.tensor(1), &other.matrices, left == transpose)?;
            other.to_result(&if left { product } else { transposed(&product)? }).map(single)
        }), out: [OfResult], complex: Parts(|call| {
            check_reflectors(call.tensor(0), call.tensor(1), call.tensor(2), call.bool(3))?;
            complex_matrices::ormqr(call).map(single)
        });
    /// Returns the eigenvalues of symmetric matrices, in ascending order, and the eigenvectors as columns. One triangle is read.
    "linalg_eigh(Tensor self, str UPLO=\"L\") -> (Tensor eigenvalues, Tensor eigenvectors)"
        fn linalg_eigh() -> 2 = Composite(|call| eigen(call, "linalg.eigh")), out: [OfResult], autocast: Parts, complex: Parts(|call| complex_spectra::eigen(call.tensor(0), check_triangle(call.str(1))?));
    /// Returns the eigenvalues of symmetric matrices, in ascending order. One triangle is read.
    "linalg_eigvalsh(Tensor self, str UPLO=\"L\") -> Tensor"
        fn linalg_eigvalsh() = Composite(|call| eigen(call, "linalg.eigvalsh").map(first)), out: [OfResult], autocast: Parts, complex: Parts(|call| complex_matrices::eigenvalues(call.tensor(0), check_triangle(call.str(1))?).map(single));
    /// Returns left singular vectors as columns, singular values in descending order, and right singular vectors as rows.
    "linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)"
        fn linalg_svd(full_matrices: bool) -> 3 = Composite(|call| {
            let [u, s, v] = singular("linalg.svd", call.tensor(0), call.bool(1))?;
            Ok(Tensors::from_iter([u, s, transposed(&v)?]))
        }), out: [OfResult], autocast: Parts, complex: Parts(complex_spectra::svd);
    /// Returns singular values in descending order.
    "linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor"
        fn linalg_svdvals() = Composite(|call| values("linalg.svdvals", call.tensor(0)).map(single)), out: [OfResult], autocast: Parts, complex: Parts(|call| complex_matrices::singular_values(call.tensor(0)).map(single));
    /// Returns left singular vectors, singular values in descending order, and right singular vectors; the vectors are columns.
    "svd(Tensor self, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)"
        fn svd(some: bool) -> 3 = Composite(|call| {
            let [u, s, v] = singular("linalg.svd", call.tensor(0), !call.bool(1))?;
            if call.bool(2) {
                return Ok(Tensors::from_iter([u, s, v]));
            }
            let zeros = |x: &Tensor| Tensor::zeros(x.shape(), x.dtype(), x.device());
            Ok(Tensors::from_iter([zeros(&u)?, s, zeros(&v)?]))
        }), autocast: Parts, complex: Parts(|call| {
            let [u, s, v] = complex_spectra::singular("linalg.svd", call.tensor(0), !call.bool(1))?;
            if call.bool(2) {
                return Ok(Tensors::from_iter([u, s, v]));
            }
            Ok(Tensors::from_iter([u.zeros_like()?, s, v.zeros_like()?]))
        });
}

/// Returns the first of several results.
fn first(results: Tensors) -> Tensors {
    results.into_iter().take(1).collect()
}

/// Matrices of any batch as f64 (batch, rows, columns).
pub(super) struct Stack {
    /// The matrices.
    pub matrices: Tensor,
    /// The shape of their batch.
    pub batch: Shape,
    dtype: DType,
}

/// Refuses reflectors whose shapes do not fit the other matrices, for any dtypes.
fn check_reflectors(a: &Tensor, tau: &Tensor, other: &Tensor, left: bool) -> Result<()> {
    let refused = |why: &str| Err(invalid!("torch.ormqr: {why}"));
    let (&[.., columns], &[.., rows, other_columns]) = (a.shape(), other.shape()) else {
        return refused("input must have at least 2 dimensions.");
    };
    let side = if left { rows } else { other_columns };
    match a.rank() >= 2 && tau.shape().last() == Some(&columns.min(side)) {
        true => Ok(()),
        false if a.rank() < 2 => refused("input must have at least 2 dimensions."),
        false => refused("tau.shape[-1] must be equal to min(other.shape[-2], input.shape[-1])"),
    }
}

impl Stack {
    /// Reads an argument of the operator of this name.
    pub(super) fn new(name: &str, x: &Tensor) -> Result<Self> {
        let &[ref batch @ .., rows, columns] = x.shape() else {
            refuse!("{name}: The input tensor must have at least 2 dimensions.");
        };
        match x.dtype() {
            DType::F32 | DType::F64 => {}
            dtype if dtype.is_floating_point() => {
                refuse!("{name}: Low precision dtypes not supported. Got {dtype}");
            }
            dtype => {
                refuse!("{name}: Expected a floating point or complex tensor as input. Got {dtype}");
            }
        }
        let count = batch.iter().product();
        let wide = if x.dtype() == DType::F64 { x.clone() } else { x.contiguous_as(DType::F64)? };
        let matrices = wide.reshape(&[count, rows, columns])?;
        Ok(Self { matrices, batch: batch.into(), dtype: x.dtype() })
    }

    /// Reads square matrices.
    pub(super) fn square(name: &str, x: &Tensor) -> Result<Self> {
        let stack = Self::new(name, x)?;
        match [stack.rows(), stack.columns()] {
            [rows, columns] if rows != columns => Err(invalid!(
                "{name}: A must be batches of square matrices, but they are {rows} by {columns} matrices"
            )),
            _ => Ok(stack),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.matrices.shape()[0]
    }

    pub(super) fn rows(&self) -> usize {
        self.matrices.shape()[1]
    }

    pub(super) fn columns(&self) -> usize {
        self.matrices.shape()[2]
    }

    fn transposed(self) -> Result<Self> {
        Ok(Self { matrices: transposed(&self.matrices)?, ..self })
    }

    /// Calls an operator over the matrices.
    pub(super) fn call(&self, operator: &'static Operator, rest: &[Argument<'_>]) -> Result<Tensors> {
        let arguments: Vec<Argument<'_>> =
            [(&self.matrices).into()].into_iter().chain(rest.iter().copied()).collect();
        call_all(operator, &arguments, None, std::panic::Location::caller())
    }

    /// Returns a result in the batch's shape and the argument's dtype, matrices stored by columns, as in LAPACK; integers keep
    /// their dtype.
    pub(super) fn to_result(&self, result: &Tensor) -> Result<Tensor> {
        match result.rank() {
            3 => transposed(&self.give_rows(&transposed(result)?)?),
            _ => self.give_rows(result),
        }
    }

    /// Returns a result as [`to_result`](Self::to_result) does, but matrices stored by rows.
    pub(super) fn give_rows(&self, result: &Tensor) -> Result<Tensor> {
        let shape: Shape = self.batch.iter().chain(&result.shape()[1..]).copied().collect();
        let result = result.reshape(&shape)?;
        if result.dtype().is_floating_point() { result.contiguous_as(self.dtype) } else { Ok(result) }
    }

    fn identity(&self) -> Result<Tensor> {
        identity(&self.matrices, self.rows())?.unsqueeze(0)?.expand(&[self.count(), self.rows(), self.rows()])
    }

    /// Returns an empty result.
    pub(super) fn nothing(&self) -> Result<Tensor> {
        Tensor::empty(&[0], self.dtype, self.matrices.device())
    }

    /// Broadcasts the batches of square matrices and of right sides, and returns these with the batch shape.
    pub(super) fn together(a: &Self, b: &Self, name: &str) -> Result<[Self; 3]> {
        refuse_if!(
            a.dtype != b.dtype,
            "{name}: Expected A and B to have the same dtype, but found A of type {} and B of type {} instead",
            a.dtype,
            b.dtype
        );
        refuse_if!(
            a.columns() != b.rows(),
            "{name}: Incompatible shapes of A and B for the equation AX = B ({}x{} and {}x{})",
            a.rows(),
            a.columns(),
            b.rows(),
            b.columns()
        );
        let batch = broadcast_shapes(&a.batch, &b.batch)?;
        let broadcast = |stack: &Self| -> Result<Self> {
            let [rows, columns] = [stack.rows(), stack.columns()];
            let with = |batch: &[usize]| -> Shape { batch.iter().copied().chain([rows, columns]).collect() };
            let whole = stack.matrices.reshape(&with(&stack.batch))?.expand(&with(&batch))?;
            let matrices = whole.reshape(&[batch.iter().product(), rows, columns])?;
            Ok(Self { matrices, batch: batch.clone(), dtype: stack.dtype })
        };
        Ok([broadcast(a)?, broadcast(b)?, broadcast(b)?])
    }
}

/// Reads the status of a decomposition, and names the first matrix that it could not decompose.
pub(super) fn check(info: &Tensor, refuse: impl Fn(Option<usize>, i32) -> String) -> Result<()> {
    if info.device().is_meta() {
        return Ok(());
    }
    let list: Vec<i32> = info.detach().reshape(&[info.elements()])?.to_vec()?;
    match list.iter().position(|&info| info != 0) {
        Some(matrix) => Err(Error::linear_algebra(refuse((list.len() > 1).then_some(matrix), list[matrix]))),
        None => Ok(()),
    }
}

/// Refuses matrices with infinities or NaN, for which no decomposition converges. Blocks.
fn check_finite(name: &str, matrices: &Tensor) -> Result<()> {
    if matrices.device().is_meta() || matrices.elements() == 0 {
        return Ok(());
    }
    let is_finite = matrices.detach().isfinite()?.all_dim(2, false)?.all_dim(1, false)?;
    let of_matrices: Vec<bool> = is_finite.to_vec()?;
    match of_matrices.iter().position(|&is_finite| !is_finite) {
        Some(matrix) => Err(Error::linear_algebra(format!(
            "{name}: {}The algorithm failed to converge because the input matrix contained non-finite values.",
            of_batch((of_matrices.len() > 1).then_some(matrix))
        ))),
        None => Ok(()),
    }
}

/// Returns the text that names a matrix of a batch in an error.
pub(super) fn of_batch(matrix: Option<usize>) -> String {
    matrix.map_or_else(String::new, |matrix| format!("(Batch element {matrix}): "))
}

/// Refuses matrices that are not positive definite.
fn not_positive_definite(info: &Tensor, name: &str) -> Result<()> {
    check(info, |matrix, order| {
        format!(
            "{name}: {}The factorization could not be completed because the input is not positive-definite (the leading minor of order \
             {order} is not positive-definite).",
            of_batch(matrix)
        )
    })
}

fn cholesky_of_complex(x: &Tensor, name: &str, upper: bool, checks: bool) -> Result<Tensors> {
    let results = complex_matrices::cholesky(x, name, upper)?;
    if checks {
        not_positive_definite(&results[1], name)?;
    }
    Ok(results)
}

fn cholesky(call: &Call<'_>, name: &str, upper: bool, checks: bool) -> Result<Tensors> {
    let a = Stack::square(name, call.tensor(0))?;
    let a = if upper { a.transposed()? } else { a };
    let results = a.call(built_in!("thalweg::cholesky")?, &[])?;
    if checks {
        not_positive_definite(&results[1], name)?;
    }
    let factor = if upper { transposed(&results[0])? } else { results[0].clone() };
    Ok(Tensors::from_iter([a.to_result(&factor)?, a.to_result(&results[1])?]))
}

/// Returns swapped rows of any batch as (batch, rows).
fn pivots_of(a: &Stack, pivots: &Tensor) -> Result<Tensor> {
    let count = pivots.shape().last().copied().unwrap_or(0);
    refuse_if!(
        pivots.elements() != a.count() * count || pivots.rank() == 0,
        "pivots must be a row per matrix, but {:?} do not fit matrices {:?}",
        pivots.shape(),
        a.matrices.shape()
    );
    pivots.reshape(&[a.count(), count])
}

fn complex_lu(call: &Call<'_>, name: &str, checks: bool) -> Result<Tensors> {
    let results = complex_factors::lu(call.tensor(0), name, call.bool(1))?;
    if checks {
        no_zero_pivot(&results[2], name)?;
    }
    Ok(results)
}

/// Refuses factors with a pivot of 0.
fn no_zero_pivot(info: &Tensor, name: &str) -> Result<()> {
    check(info, |matrix, order| {
        format!(
            "{name}: {}U[{order},{order}] is zero and using it on lu_solve would result in a division by zero. If you still want to \
             perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)",
            of_batch(matrix)
        )
    })
}

fn factors(call: &Call<'_>, name: &str, pivot: bool, checks: bool) -> Result<Tensors> {
    let a = Stack::new(name, call.tensor(0))?;
    let results = a.call(built_in!("thalweg::lu")?, &[pivot.into()])?;
    if checks {
        no_zero_pivot(&results[2], name)?;
    }
    results.iter().map(|result| a.to_result(result)).collect()
}

/// Solves with both factors in one tensor: P L U X = B, or its transpose.
fn solved(factors: &Tensor, pivots: &Tensor, b: &Tensor, transpose: bool) -> Result<Tensor> {
    if transpose {
        let first = solve_triangular(factors, b, [true, true, false])?;
        return swapped(&solve_triangular(factors, &first, [false, true, true])?, pivots, true);
    }
    let first = solve_triangular(factors, &swapped(b, pivots, false)?, [false, false, true])?;
    solve_triangular(factors, &first, [true, false, false])
}

fn lu_solve(factors: &Tensor, pivots: &Tensor, b: &Tensor, [left, transpose]: [bool; 2]) -> Result<Tensor> {
    let name = "torch.linalg.lu_solve";
    let (a, b) = (Stack::square(name, factors)?, Stack::new(name, b)?);
    refuse_if!(pivots.dtype() != DType::I32, "{name}: pivots should be a Tensor of scalar type torch.int32");
    let rows = pivots_of(&a, pivots)?;
    let b = if left { b } else { b.transposed()? };
    let of_factors = a.batch.clone();
    let [a, b, batch] = Stack::together(&a, &b, name)?;
    let whole: Shape = of_factors.iter().copied().chain([rows.shape()[1]]).collect();
    let shape: Shape = batch.batch.iter().copied().chain([rows.shape()[1]]).collect();
    let rows = rows.reshape(&whole)?.expand(&shape)?.reshape(&[a.count(), rows.shape()[1]])?;
    let solution = solved(&a.matrices, &rows, &b.matrices, left == transpose)?;
    if left { batch.to_result(&solution) } else { batch.give_rows(&transposed(&solution)?) }
}

/// Returns whether right sides of matrices are vectors, one per matrix or one for all, and not columns of matrices.
pub(super) fn are_vectors(a: &Tensor, b: &Tensor) -> bool {
    b.rank() == 1 || b.rank() + 1 == a.rank() && *b.shape() == a.shape()[..b.rank()]
}

fn solve(call: &Call<'_>, name: &str, left: bool, checks: bool) -> Result<Tensors> {
    let (a, b) = (Stack::square(name, call.tensor(0))?, call.tensor(1));
    let is_vector = are_vectors(call.tensor(0), b);
    let b = Stack::new(name, &if is_vector { b.unsqueeze(-1)? } else { b.clone() })?;
    let b = if left || is_vector { b } else { b.transposed()? };
    let info_batch = a.batch.clone();
    let [a, b, batch] = Stack::together(&a, &b, name)?;
    let results = a.call(built_in!("thalweg::lu")?, &[true.into()])?;
    if checks {
        check(&results[2], |matrix, _| {
            format!("{name}: {}The solver failed because the input matrix is singular.", of_batch(matrix))
        })?;
    }
    let solution = solved(&results[0], &results[1], &b.matrices, !left)?;
    let solution = if left || is_vector {
        batch.to_result(&solution)
    } else {
        batch.give_rows(&transposed(&solution)?)
    }?;
    let solution = if is_vector { solution.squeeze(-1)? } else { solution };
    let info = if info_batch == batch.batch {
        a.to_result(&results[2])?
    } else {
        Tensor::zeros(&info_batch, DType::I32, b.matrices.device())?
    };
    Ok(Tensors::from_iter([solution, info]))
}

fn inverse(call: &Call<'_>, name: &str, checks: bool) -> Result<Tensors> {
    let a = Stack::square(name, call.tensor(0))?;
    let results = a.call(built_in!("thalweg::lu")?, &[true.into()])?;
    if checks {
        check(&results[2], |matrix, order| {
            format!(
                "{name}: {}The diagonal element {order} is zero, the inversion could not be completed because the input matrix is singular.",
                of_batch(matrix)
            )
        })?;
    }
    let result = solved(&results[0], &results[1], &a.identity()?, false)?;
    Ok(Tensors::from_iter([a.to_result(&result)?, a.to_result(&results[2])?]))
}

fn det(x: &Tensor) -> Result<Tensor> {
    let a = Stack::square("linalg.det", x)?;
    a.to_result(&a.call(built_in!("thalweg::det")?, &[])?[0])
}

fn sign_and_log(x: &Tensor) -> Result<Tensors> {
    let a = Stack::square("linalg.slogdet", x)?;
    let results = a.call(built_in!("thalweg::lu")?, &[true.into()])?;
    let diagonal = results[0].diagonal(0, -2, -1)?;
    let sign = diagonal.sign()?.prod_dim(-1, false)?.mul(&signs(&results[1])?)?;
    let log = diagonal.abs()?.log()?.sum(&[-1], false)?;
    Ok(Tensors::from_iter([a.to_result(&sign)?, a.to_result(&log)?]))
}

fn check_mode(mode: &str) -> Result<()> {
    match mode {
        "reduced" | "complete" | "r" => Ok(()),
        _ => Err(invalid!(
            "qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )),
    }
}

fn qr_of_complex(x: &Tensor, mode: &str) -> Result<Tensors> {
    check_mode(mode)?;
    complex_matrices::qr(x, mode)
}

fn qr(x: &Tensor, mode: &str) -> Result<Tensors> {
    let a = Stack::new("linalg.qr", x)?;
    check_mode(mode)?;
    let results = a.call(built_in!("thalweg::qr")?, &[(mode == "complete").into()])?;
    let q = if mode == "r" { a.nothing()? } else { a.to_result(&results[0])? };
    Ok(Tensors::from_iter([q, a.to_result(&results[1])?]))
}

/// Applies the product of the reflectors I − τ v vᵀ whose vectors are below a diagonal, or its transpose, to matrices.
fn reflected(a: &Stack, tau: &Tensor, start: &Tensor, is_transposed: bool) -> Result<Tensor> {
    let count = tau.shape().last().copied().unwrap_or(0);
    refuse_if!(
        tau.elements() != a.count() * count || tau.rank() == 0 || count > a.columns() || count > a.rows(),
        "a factor per reflector is needed, but {:?} do not fit {:?}",
        tau.shape(),
        a.matrices.shape()
    );
    let tau = tau.to_dtype(DType::F64)?.reshape(&[a.count(), count, 1])?;
    let vectors = a.matrices.narrow(2, 0, count)?.tril(-1)?;
    let vectors = vectors.add(&identity(&a.matrices, a.rows())?.narrow(1, 0, count)?)?;
    reflectors::reflected(&vectors, &tau, start, is_transposed)
}

/// Returns whether the upper triangle of symmetric matrices is read.
fn check_triangle(uplo: &str) -> Result<bool> {
    match uplo {
        "U" | "u" => Ok(true),
        "L" | "l" => Ok(false),
        other => Err(invalid!("Expected UPLO argument to be 'L' or 'U', but got {other}")),
    }
}

fn eigen(call: &Call<'_>, name: &str) -> Result<Tensors> {
    let a = Stack::square(name, call.tensor(0))?;
    let upper = check_triangle(call.str(1))?;
    let results = a.call(built_in!("thalweg::eigh")?, &[upper.into()])?;
    results.iter().map(|result| a.to_result(result)).collect()
}

/// Returns left singular vectors, singular values and right singular vectors of f64 matrices, and the columns that complete the
/// wider ones.
fn singular(name: &str, x: &Tensor, is_full: bool) -> Result<[Tensor; 3]> {
    let a = Stack::new(name, x)?;
    let is_wide = a.rows() < a.columns();
    let tall = if is_wide { a.transposed()? } else { a };
    check_finite(name, &tall.matrices)?;
    let results = tall.call(built_in!("thalweg::svd")?, &[])?;
    let mut left = results[0].clone();
    let [rows, columns] = [tall.rows(), tall.columns()];
    if is_full && rows > columns {
        // The product of the reflectors of orthogonal columns has the completing columns after them.
        let columns_alone = left.detach();
        let arguments = [(&columns_alone).into(), true.into()];
        let whole = call_all(built_in!("thalweg::qr")?, &arguments, None, std::panic::Location::caller())?;
        left = Tensor::cat(&[left, whole[0].narrow(2, columns, rows - columns)?], 2)?;
    }
    let (right, values) = (results[2].clone(), tall.to_result(&results[1])?);
    let [left, right] = if is_wide { [right, left] } else { [left, right] };
    Ok([tall.to_result(&left)?, values, tall.give_rows(&right)?])
}

/// Returns singular values in descending order.
pub(super) fn values(name: &str, x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() {
        return complex_matrices::singular_values(x);
    }
    let a = Stack::new(name, x)?;
    let tall = if a.rows() < a.columns() { a.transposed()? } else { a };
    tall.to_result(&tall.call(built_in!("thalweg::svd")?, &[])?[1])
}

/// Solutions of complex equations by real ones of twice the size: A + B i is (A, −B) over (B, A).
mod of_complex {
    use super::super::complex::{of_parts, parts};
    use super::*;

    fn blocks(z: &Tensor) -> Result<Tensor> {
        refuse_if!(z.rank() < 2, "linalg.solve: The input tensor must have at least 2 dimensions.");
        let [re, im] = parts(z)?;
        let upper = Tensor::cat(&[re.clone(), im.neg()?], -1)?;
        Tensor::cat(&[upper, Tensor::cat(&[im, re], -1)?], -2)
    }

    /// Returns the numbers of real parts above imaginary ones.
    fn joined(stacked: &Tensor) -> Result<Tensor> {
        let rows = stacked.shape()[stacked.rank() - 2] / 2;
        of_parts(&stacked.narrow(-2, 0, rows)?, &stacked.narrow(-2, rows, rows)?)
    }

    /// Returns the solutions, and 0 or the first pivot that is 0, which is refused if the call checks it.
    pub(super) fn solve(call: &Call<'_>, name: &str, checks: bool) -> Result<Tensors> {
        let (whole, b, left) = (call.tensor(0), call.tensor(1), call.bool(2));
        refuse_if!(
            whole.dtype() != b.dtype(),
            "{name}: Expected A and B to have the same dtype, but found A of type {} and B of type {} instead",
            whole.dtype(),
            b.dtype()
        );
        let is_vector = are_vectors(whole, b);
        let is_transposed = !left && !is_vector;
        if whole.rank() < 2 || b.rank() < 2 && !is_vector {
            refuse!("{name}: The input tensor must have at least 2 dimensions.");
        }
        let columns = if is_vector { b.unsqueeze(-1)? } else { b.clone() };
        let [a, columns] = match is_transposed {
            true => [whole.transpose(-2, -1)?, columns.transpose(-2, -1)?],
            false => [whole.clone(), columns],
        };
        let [re, im] = parts(&columns)?;
        let solution = joined(&solved(&blocks(&a)?, &Tensor::cat(&[re, im], -2)?, checks)?)?;
        let solution = match (is_vector, is_transposed) {
            (true, _) => solution.squeeze(-1)?,
            (_, true) => solution.transpose(-2, -1)?.contiguous()?,
            _ => solution,
        };
        with_info(solution, whole, name, checks)
    }

    /// Returns the inverses, and 0 or the first pivot that is 0, which is refused if the call checks it.
    pub(super) fn inverse(z: &Tensor, checks: bool) -> Result<Tensors> {
        let blocks = blocks(z)?;
        let whole = if checks { blocks.linalg_inv()? } else { blocks.linalg_inv_ex()?[0].clone() };
        let columns = whole.shape()[whole.rank() - 1] / 2;
        with_info(joined(&whole.narrow(-1, 0, columns)?)?, z, "linalg.inv_ex", checks)
    }

    fn solved(blocks: &Tensor, columns: &Tensor, checks: bool) -> Result<Tensor> {
        if checks { blocks.linalg_solve(columns) } else { Ok(blocks.linalg_solve_ex(columns)?[0].clone()) }
    }

    /// Returns a result and the first pivots that are 0, of which a call that checks them has none.
    fn with_info(result: Tensor, matrices: &Tensor, name: &str, checks: bool) -> Result<Tensors> {
        let info = match checks {
            true => Tensor::zeros(&matrices.shape()[..matrices.rank() - 2], DType::I32, matrices.device())?,
            false => no_grad(|| complex_factors::first_zero_pivot(matrices, name))?,
        };
        Ok(Tensors::from_iter([result, info]))
    }
}
