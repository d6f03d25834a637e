//! Decompositions of batches (batch, rows, columns) of f64 matrices, with their gradients, from which [`solve`](super::solve) is
//! built.
//!
//! The gradients are those of PyTorch's `FunctionsManual.cpp`, derived in M. B. Giles, *An extended collection of matrix derivative
//! results* (2008), and S. F. Walter, L. Lehmann, *Algorithmic differentiation of linear algebra functions* (2010).

use thalweg_ir::DType;
use thalweg_kernels::decompose::{Decompose, Method};
use thalweg_runtime::{Error, Label, Result, invalid, refuse};

use super::Body::{Differentiable, Kernel};
use super::{call_all, decompose_library, operators, single};
use crate::autograd::Gradients;
use crate::autograd::formula::{Formula, GradientCall};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::native;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the lower factors of symmetric matrices, of which only the lower triangle is read, and, as int32, 0 or the order
    /// of the leading minor that is not positive definite.
    "thalweg::cholesky(Tensor self) -> (Tensor L, Tensor info)" = Differentiable(cholesky, &CHOLESKY);
    /// Returns the solutions X of A X = B, or Aᵀ X = B, with triangular matrices A, whose diagonal may be assumed to be ones.
    "thalweg::triangular(Tensor A, Tensor B, bool upper, bool transpose, bool unitriangular) -> Tensor"
        = Differentiable(triangular, &TRIANGULAR);
    /// Returns both factors of matrices in one tensor, the swapped rows, counted from 1, and 0 or the first pivot that is 0.
    "thalweg::lu(Tensor self, bool pivot) -> (Tensor LU, Tensor pivots, Tensor info)" = Differentiable(lu, &LU);
    /// Returns the order of the rows after swaps, as int64 (batch, rows).
    "thalweg::permutation(Tensor pivots, int rows) -> Tensor" = Kernel(|call| permutation(call).map(single));
    /// Returns upper factors with the vectors of reflectors below them, and the factors of the reflectors.
    "thalweg::geqrf(Tensor self) -> (Tensor a, Tensor tau)"
        = Kernel(|call| geqrf(call.tensor(0), call.label).map(Tensors::from_iter));
    /// Returns orthogonal matrices, complete or reduced, and upper factors.
    "thalweg::qr(Tensor self, bool complete) -> (Tensor Q, Tensor R)" = Differentiable(qr, &QR);
    /// Returns the eigenvalues of symmetric matrices, in ascending order, and the eigenvectors as columns. One triangle is read.
    "thalweg::eigh(Tensor self, bool upper) -> (Tensor values, Tensor vectors)" = Differentiable(eigen, &EIGEN);
    /// Returns left singular vectors, singular values in descending order, and right singular vectors of matrices with at least
    /// as many rows as columns; the vectors are columns.
    "thalweg::svd(Tensor self) -> (Tensor U, Tensor S, Tensor V)" = Differentiable(singular, &SINGULAR);
    /// Returns the determinants of square matrices.
    "thalweg::det(Tensor self) -> Tensor" = Differentiable(|call| det(call.tensor(0)).map(single), &DET);
    /// Returns the pseudoinverses of matrices; singular values that are not above a matrix's cutoff count as 0.
    "thalweg::pinv(Tensor self, Tensor cutoff, bool hermitian) -> Tensor"
        = Differentiable(|call| {
            let x = call.tensor(0).detach();
            let x = if call.bool(2) { symmetric(&x, false)? } else { x };
            pseudoinverse(&x, call.tensor(1)).map(single)
        }, &PINV);
    /// Returns the solutions of equations with symmetric matrices, whose triangular factors are given.
    "thalweg::cholesky_solve(Tensor B, Tensor factor, bool upper) -> Tensor"
        = Differentiable(|call| {
            let (b, factor, upper) = (call.tensor(0), call.tensor(1), call.bool(2));
            let first = solve_triangular(factor, b, [upper, upper, false])?;
            solve_triangular(factor, &first, [upper, !upper, false]).map(single)
        }, &CHOLESKY_SOLVE);
}

/// Returns batch, rows and columns of a batch of matrices of f64.
pub(super) fn sizes(x: &Tensor) -> Result<[usize; 3]> {
    match *x.shape() {
        [batch, rows, columns] if x.dtype() == DType::F64 => Ok([batch, rows, columns]),
        _ => Err(invalid!("matrices are (batch, rows, columns) of float64, not {x:?}")),
    }
}

/// Returns batch and rows of a batch of square matrices.
pub(super) fn square(x: &Tensor) -> Result<[usize; 2]> {
    match sizes(x)? {
        [batch, rows, columns] if rows == columns => Ok([batch, rows]),
        _ => Err(invalid!("the matrices must be square, not {x:?}")),
    }
}

/// Returns the transposes.
pub(super) fn transposed(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -1)
}

/// Returns the conjugate transposes.
pub(super) fn adjoint(x: &Tensor) -> Result<Tensor> {
    transposed(&x.conj()?)
}

/// Returns an identity matrix in the dtype of a tensor.
pub(super) fn identity(like: &Tensor, n: usize) -> Result<Tensor> {
    Tensor::ones(&[n], like.dtype(), like.device())?.diag_embed(0, 0, 1)
}

/// Returns a row-major copy of the elements that a kernel may overwrite.
pub(super) fn row_major_copy(x: &Tensor, label: Label) -> Result<Tensor> {
    x.detach().copied(label.location)
}

pub(super) fn empty(x: &Tensor, shape: &[usize], dtype: DType, label: Label) -> Result<Tensor> {
    Tensor::empty_on(shape, dtype, &x.device().current_stream(), label)
}

/// Launches a method over (batch, rows, columns) with a width and flags.
pub(super) fn launch(
    method: Method,
    [batch, rows, columns]: [usize; 3],
    [width, flags]: [u64; 2],
    operands: &[&Tensor],
    label: Label,
) -> Result<()> {
    let [batch, rows, columns] = [batch, rows, columns].map(|extent| extent as u64);
    let kernel = Decompose { method, batch, rows, columns, width, flags };
    native::launch(kernel, [0, 1, 2].map(|place| operands.get(place).copied()), label)
}

fn cholesky(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let [batch, n] = square(x)?;
    let (factor, info) = (row_major_copy(x, call.label)?, Tensor::zeros(&[batch], DType::I32, x.device())?);
    if let Some(lower) = decompose_library::cholesky(&factor, &info, [batch, n], call.label)? {
        return Ok(Tensors::from_iter([lower, info]));
    }
    launch(Method::Cholesky, [batch, n, n], [0, 0], &[&factor, &info], call.label)?;
    Ok(Tensors::from_iter([factor, info]))
}

/// Solves equations with triangular matrices.
pub(super) fn solve_triangular(
    a: &Tensor,
    b: &Tensor,
    [upper, transpose, unit]: [bool; 3],
) -> Result<Tensor> {
    let arguments = [a.into(), b.into(), upper.into(), transpose.into(), unit.into()];
    super::call(built_in!("thalweg::triangular")?, &arguments, None, std::panic::Location::caller())
}

static CHOLESKY: Formula = Formula {
    inputs: &[],
    outputs: &[0],
    backward: |call| {
        call.one(0, || {
            let factor = call.result(0)?;
            let product = transposed(&factor)?.matmul(&call.gradient()?)?.tril(0)?;
            let symmetric = product.add(&transposed(&product.tril(-1)?)?)?.mul_scalar(0.5)?;
            let left = solve_triangular(&factor, &symmetric, [false, true, false])?;
            transposed(&solve_triangular(&factor, &transposed(&left)?, [false, true, false])?)
        })
    },
};

fn triangular(call: &Call<'_>) -> Result<Tensors> {
    let (a, b) = (call.tensor(0).detach().contiguous()?, call.tensor(1));
    let [batch, n, columns] = sizes(b)?;
    if square(&a)? != [batch, n] || a.device() != b.device() {
        refuse!("the triangular matrices {a:?} do not fit the right sides {b:?}");
    }
    let flags = (2..5).map(|place| u64::from(call.bool(place)) << (place - 2)).sum();
    let result = row_major_copy(b, call.label)?;
    let kind = [2, 3, 4].map(|place| call.bool(place));
    if decompose_library::triangular(&a, &result, [batch, n, columns], kind, call.label)? {
        return Ok(single(result));
    }
    launch(Method::Triangular, [batch, n, columns], [0, flags], &[&a, &result], call.label)?;
    Ok(single(result))
}

static TRIANGULAR: Formula = Formula {
    inputs: &[0],
    outputs: &[0],
    backward: |call| {
        let [upper, transpose, unit] = [2, 3, 4].map(|place| call.bool(place));
        let back = solve_triangular(&call.saved(0)?, &call.gradient()?, [upper, !transpose, unit])?;
        call.each(|input| {
            if input == 1 {
                return Ok(Some(back.clone()));
            }
            let solution = call.result(0)?;
            let product = match transpose {
                true => solution.matmul(&transposed(&back)?)?,
                false => back.matmul(&transposed(&solution)?)?,
            };
            let inside = i64::from(unit);
            if upper { product.triu(inside)? } else { product.tril(-inside)? }.neg().map(Some)
        })
    },
};

/// The gradient of `cholesky_solve`. The factor's gradient covers all its elements, including those outside the triangle, as in
/// PyTorch.
static CHOLESKY_SOLVE: Formula = Formula {
    inputs: &[1],
    outputs: &[0],
    backward: |call| {
        let (factor, upper) = (call.saved(1)?, call.bool(2));
        let back = solve_cholesky(&call.gradient()?, &factor, upper)?;
        call.each(|input| {
            if input == 0 {
                return Ok(Some(back.clone()));
            }
            let product = back.matmul(&transposed(&call.result(0)?)?)?;
            let both = product.add(&transposed(&product)?)?;
            if upper { factor.matmul(&both)? } else { both.matmul(&factor)? }.neg().map(Some)
        })
    },
};

/// Solves equations with the factor of a symmetric matrix.
pub(super) fn solve_cholesky(b: &Tensor, factor: &Tensor, upper: bool) -> Result<Tensor> {
    let arguments = [b.into(), factor.into(), upper.into()];
    super::call(built_in!("thalweg::cholesky_solve")?, &arguments, None, std::panic::Location::caller())
}

fn lu(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let [batch, rows, columns] = sizes(x)?;
    if call.bool(1)
        && let Some(results) = decompose_library::lu(x, [batch, rows, columns], call.label)?
    {
        return Ok(Tensors::from_iter(results));
    }
    let factors = row_major_copy(x, call.label)?;
    let pivots = empty(x, &[batch, rows.min(columns)], DType::I32, call.label)?;
    let info = Tensor::zeros(&[batch], DType::I32, x.device())?;
    let flags = u64::from(call.bool(1));
    launch(Method::Lu, [batch, rows, columns], [0, flags], &[&factors, &pivots, &info], call.label)?;
    Ok(Tensors::from_iter([factors, pivots, info]))
}

fn permutation(call: &Call<'_>) -> Result<Tensor> {
    let pivots = call.tensor(0).contiguous_as(DType::I32)?;
    let &[batch, count] = pivots.shape() else { return Err(invalid!("pivots are (batch, rows)")) };
    let rows = usize::try_from(call.int(1)).map_err(|_| invalid!("rows are not negative"))?;
    batch
        .checked_mul(rows)
        .filter(|&elements| elements < 1 << 60)
        .ok_or_else(|| invalid!("so many rows have no place in memory"))?;
    let order = empty(&pivots, &[batch, rows], DType::I64, call.label)?;
    launch(Method::Permutation, [batch, rows, count], [0, 0], &[&pivots, &order], call.label)?;
    Ok(order)
}

/// Returns the rows (batch, rows) in their order after swaps.
pub(super) fn order_of(pivots: &Tensor, rows: usize) -> Result<Tensor> {
    let arguments = [pivots.into(), (rows as i64).into()];
    super::call(built_in!("thalweg::permutation")?, &arguments, None, std::panic::Location::caller())
}

/// Returns the matrices P (batch, rows, rows) whose product with the rows restores the order before the swaps.
pub(super) fn permutations(pivots: &Tensor, rows: usize) -> Result<Tensor> {
    let order = order_of(pivots, rows)?;
    let places = Tensor::arange(rows, 0, 1, DType::I64, pivots.device())?;
    places.unsqueeze(-1)?.eq(&order.unsqueeze(1)?)?.to_dtype(DType::F64)
}

/// Returns the rows of matrices in their order after swaps, or, if `is_backward`, in their order before.
pub(super) fn swapped(x: &Tensor, pivots: &Tensor, is_backward: bool) -> Result<Tensor> {
    let [batch, rows, columns] = sizes(x)?;
    let order = order_of(pivots, rows)?;
    let order = if is_backward { order.argsort(-1, false)? } else { order };
    if x.elements() == 0 {
        return Ok(x.clone());
    }
    x.gather(1, &order.unsqueeze(-1)?.expand(&[batch, rows, columns])?)
}

/// Returns the factors L (rows, least) and U (least, columns) from a tensor that holds both.
pub(super) fn unpacked(factors: &Tensor) -> Result<[Tensor; 2]> {
    let &[_, rows, columns] = factors.shape() else {
        refuse!("factors are (batch, rows, columns)");
    };
    let least = rows.min(columns);
    let ones = Tensor::ones(&[least], DType::F64, factors.device())?.diag_embed(0, 0, 1)?;
    let ones = ones.to_dtype(factors.dtype())?;
    let lower = factors.narrow(2, 0, least)?.tril(-1)?;
    let square = lower.narrow(1, 0, least)?.add(&ones)?;
    let lower = match rows > least {
        true => Tensor::cat(&[square, lower.narrow(1, least, rows - least)?], 1)?,
        false => square,
    };
    Ok([lower, factors.narrow(1, 0, least)?.triu(0)?])
}

static LU: Formula =
    Formula { inputs: &[], outputs: &[0, 1], backward: |call| call.one(0, || lu_backward(call)) };

/// Returns the gradient of P L U: for its square part from both triangles of a product, for the part to the right of or below it
/// from the solution of a triangular system.
fn lu_backward(call: &GradientCall<'_>) -> Result<Tensor> {
    let (factors, pivots, gradient) = (call.result(0)?, call.result(1)?, call.gradient()?);
    let [_, rows, columns] = sizes(&factors)?;
    let least = rows.min(columns);
    let square = factors.narrow(1, 0, least)?.narrow(2, 0, least)?;
    let of_square = gradient.narrow(1, 0, least)?.narrow(2, 0, least)?;
    let [lower, upper] = unpacked(&square)?;
    let mut of_lower = transposed(&lower)?.matmul(&of_square.tril(-1)?)?;
    let mut of_upper = of_square.triu(0)?.matmul(&transposed(&upper)?)?;
    let mut beside = None;
    if columns > least {
        let (part, slope) =
            (factors.narrow(2, least, columns - least)?, gradient.narrow(2, least, columns - least)?);
        of_lower = of_lower.sub(&slope.matmul(&transposed(&part)?)?)?;
        beside = Some((2, solve_triangular(&square, &slope, [false, true, true])?));
    }
    if rows > least {
        let (part, slope) =
            (factors.narrow(1, least, rows - least)?, gradient.narrow(1, least, rows - least)?);
        of_upper = of_upper.sub(&transposed(&part)?.matmul(&slope)?)?;
        // slope · U⁻ᵀ.
        beside =
            Some((1, transposed(&solve_triangular(&square, &transposed(&slope)?, [true, false, false])?)?));
    }
    let both = of_lower.tril(-1)?.add(&of_upper.triu(0)?)?;
    let left = solve_triangular(&square, &both, [false, true, true])?;
    let mut result = transposed(&solve_triangular(&square, &transposed(&left)?, [true, false, false])?)?;
    if let Some((dim, part)) = beside {
        result = Tensor::cat(&[result, part], dim)?;
    }
    swapped(&result, &pivots, true)
}

/// Returns the packed form of QR, and the factors of its reflectors.
fn geqrf(x: &Tensor, label: Label) -> Result<[Tensor; 2]> {
    let [batch, rows, columns] = sizes(x)?;
    if let Some(results) = decompose_library::qr(x, [batch, rows, columns], label)? {
        return Ok(results);
    }
    let packed = row_major_copy(x, label)?;
    let factors = empty(x, &[batch, rows.min(columns)], DType::F64, label)?;
    launch(Method::Qr, [batch, rows, columns], [0, 0], &[&packed, &factors], label)?;
    Ok([packed, factors])
}

fn qr(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let [batch, rows, columns] = sizes(x)?;
    let least = rows.min(columns);
    let width = if call.bool(1) { rows } else { least };
    let [packed, factors] = geqrf(x, call.label)?;
    let upper = packed.narrow(1, 0, width)?.triu(0)?;
    let vectors = packed.narrow(2, 0, least)?;
    let sizes = [batch, rows, least, width];
    if let Some(q) = decompose_library::reflectors(&vectors, &factors, sizes, call.label)? {
        return Ok(Tensors::from_iter([q, upper]));
    }
    let vectors = vectors.contiguous()?;
    let q = empty(x, &[batch, rows, width], DType::F64, call.label)?;
    launch(
        Method::Reflectors,
        [batch, rows, least],
        [width as u64, 0],
        &[&vectors, &factors, &q],
        call.label,
    )?;
    Ok(Tensors::from_iter([q, upper]))
}

static QR: Formula = Formula {
    inputs: &[0],
    outputs: &[0, 1],
    backward: |call| {
        call.one(0, || {
            let (q, r, x) = (call.result(0)?, call.result(1)?, call.saved(0)?);
            let (of_q, of_r) = (call.gradient_of(0)?, call.gradient_of(1)?);
            let [_, rows, columns] = sizes(&x)?;
            if call.bool(1) && rows > columns {
                refuse!("The QR decomposition is not differentiable when mode='complete' and nrows > ncols.");
            }
            if rows >= columns {
                return qr_backward(&q, &r, &of_q, &of_r);
            }
            // The part to the right of the square one is Q · R there.
            let slope = of_r.narrow(2, rows, columns - rows)?;
            let of_q = of_q.add(&x.narrow(2, rows, columns - rows)?.matmul(&transposed(&slope)?)?)?;
            let square = qr_backward(&q, &r.narrow(2, 0, rows)?, &of_q, &of_r.narrow(2, 0, rows)?)?;
            Tensor::cat(&[square, q.matmul(&slope)?], 2)
        })
    },
};

/// Returns the gradient of Q R with a square R.
fn qr_backward(q: &Tensor, r: &Tensor, of_q: &Tensor, of_r: &Tensor) -> Result<Tensor> {
    let product = of_r.matmul(&transposed(r)?)?.sub(&transposed(q)?.matmul(of_q)?)?.triu(0)?;
    let symmetric = product.add(&transposed(&product.triu(1)?)?)?;
    let sum = of_q.add(&q.matmul(&symmetric)?)?;
    transposed(&solve_triangular(r, &transposed(&sum)?, [true, false, false])?)
}

/// Returns symmetric matrices from one triangle.
pub(super) fn symmetric(x: &Tensor, upper: bool) -> Result<Tensor> {
    match upper {
        true => x.triu(0)?.add(&transposed(&x.triu(1)?)?),
        false => x.tril(0)?.add(&transposed(&x.tril(-1)?)?),
    }
}

fn eigen(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0).detach();
    let [batch, n] = square(&x)?;
    let matrices = row_major_copy(&symmetric(&x, call.bool(1))?, call.label)?;
    if let Some(results) = decompose_library::eigen(&matrices, [batch, n], call.label)? {
        return Ok(Tensors::from_iter(results));
    }
    let vectors = empty(&x, &[batch, n, n], DType::F64, call.label)?;
    let values = empty(&x, &[batch, n], DType::F64, call.label)?;
    launch(Method::Eigen, [batch, n, n], [0, 0], &[&matrices, &vectors, &values], call.label)?;
    Ok(Tensors::from_iter([values, vectors]))
}

/// Returns the differences b − a of each pair of numbers in a list, with 1 on the diagonal.
pub(super) fn differences(numbers: &Tensor) -> Result<Tensor> {
    let n = numbers.shape()[1];
    let ones = Tensor::ones(&[n], numbers.dtype(), numbers.device())?.diag_embed(0, 0, 1)?;
    numbers.unsqueeze(1)?.sub(&numbers.unsqueeze(2)?)?.add(&ones)
}

static EIGEN: Formula = Formula {
    inputs: &[],
    outputs: &[0, 1],
    backward: |call| {
        call.one(0, || {
            let (values, vectors) = (call.result(0)?, call.result(1)?);
            let mut inner = call.gradient_of(0)?.diag_embed(0, -2, -1)?;
            if call.has_gradient(1) {
                let product = transposed(&vectors)?.matmul(&call.gradient_of(1)?)?;
                // Vectors stay orthogonal: only the skew part matters.
                let off = product.sub(&transposed(&product)?)?.mul_scalar(0.5)?;
                inner = inner.add(&off.div(&differences(&values)?)?)?;
            }
            vectors.matmul(&inner)?.matmul(&transposed(&vectors)?)
        })
    },
};

fn singular(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let [batch, rows, columns] = sizes(x)?;
    if let Some(results) = decompose_library::singular(x, [batch, rows, columns], call.label)? {
        return Ok(Tensors::from_iter(results));
    }
    let left = row_major_copy(x, call.label)?;
    let right = empty(x, &[batch, columns, columns], DType::F64, call.label)?;
    let values = empty(x, &[batch, columns], DType::F64, call.label)?;
    launch(Method::Singular, [batch, rows, columns], [0, 0], &[&left, &right, &values], call.label)?;
    Ok(Tensors::from_iter([left, values, right]))
}

static SINGULAR: Formula = Formula {
    inputs: &[],
    outputs: &[0, 1, 2],
    backward: |call| {
        call.one(0, || {
            let (u, s, v) = (call.result(0)?, call.result(1)?, call.result(2)?);
            let mut inner = call.gradient_of(1)?.diag_embed(0, -2, -1)?;
            let mut outer = None;
            if call.has_gradient(0) || call.has_gradient(2) {
                let (of_u, of_v) = (call.gradient_of(0)?, call.gradient_of(2)?);
                let skew = |a: &Tensor, of_a: &Tensor| -> Result<Tensor> {
                    let product = transposed(a)?.matmul(of_a)?;
                    product.sub(&transposed(&product)?)
                };
                let squares = differences(&s.mul(&s)?)?;
                let left = skew(&u, &of_u)?.div(&squares)?.mul(&s.unsqueeze(1)?)?;
                let right = s.unsqueeze(2)?.mul(&skew(&v, &of_v)?.div(&squares)?)?;
                inner = inner.add(&left)?.add(&right)?;
                let [_, rows, columns] = sizes(&u)?;
                if rows > columns {
                    // The part of the gradient outside the span of U.
                    let rest =
                        of_u.sub(&u.matmul(&transposed(&u)?.matmul(&of_u)?)?)?.div(&s.unsqueeze(1)?)?;
                    outer = Some(rest.matmul(&transposed(&v)?)?);
                }
            }
            let result = u.matmul(&inner)?.matmul(&transposed(&v)?)?;
            outer.map_or(Ok(result.clone()), |outer| result.add(&outer))
        })
    },
};

/// Returns the signs of permutations: 1 for an even number of swaps.
pub(super) fn signs(pivots: &Tensor) -> Result<Tensor> {
    let count = pivots.shape()[1];
    let places = Tensor::arange(count, 1, 1, DType::I32, pivots.device())?;
    let swaps = pivots.ne(&places)?.sum(&[-1], false)?.remainder_scalar(2)?.to_dtype(DType::F64)?;
    swaps.mul_scalar(-2.0)?.add_scalar(1.0)
}

fn det(x: &Tensor) -> Result<Tensor> {
    square(x)?;
    let location = std::panic::Location::caller();
    let results = call_all(built_in!("thalweg::lu")?, &[(&x.detach()).into(), true.into()], None, location)?;
    let diagonal = results[0].diagonal(0, -2, -1)?;
    diagonal.prod_dim(-1, false)?.mul(&signs(&results[1])?)
}

static DET: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            // The cofactors, by singular values, which need no inverse: U · (products of all other values) · Vᵀ, with the sign of
            // the orthogonal matrices.
            let x = call.saved(0)?;
            let [_, n, _] = sizes(&x)?;
            let results = call_all(built_in!("thalweg::svd")?, &[(&x).into()], None, call.label().location)?;
            let [u, s, v] = [0, 1, 2].map(|place| results[place].clone());
            let eye = Tensor::ones(&[n], DType::F64, x.device())?.diag_embed(0, 0, 1)?;
            let others = eye
                .ne_scalar(0)?
                .select_where(&Tensor::ones(&[], DType::F64, x.device())?, &s.unsqueeze(1)?)?;
            let sign = det(&u.detach())?.mul(&det(&v.detach())?)?.sign()?;
            let factors = others
                .prod_dim(-1, false)?
                .mul(&sign.unsqueeze(-1)?)?
                .mul(&call.gradient()?.unsqueeze(-1)?)?;
            u.mul(&factors.unsqueeze(1)?)?.matmul(&transposed(&v)?)
        })
    },
};

fn pseudoinverse(x: &Tensor, cutoff: &Tensor) -> Result<Tensor> {
    let x = x.detach();
    let [_, rows, columns] = sizes(&x)?;
    if rows < columns {
        return transposed(&pseudoinverse(&transposed(&x)?, cutoff)?);
    }
    let location = std::panic::Location::caller();
    let results = call_all(built_in!("thalweg::svd")?, &[Argument::Tensor(&x)], None, location)?;
    let values = &results[1];
    let zero = Tensor::zeros(&[], DType::F64, x.device())?;
    let inverse = values.gt(&cutoff.unsqueeze(-1)?)?.select_where(&values.reciprocal()?, &zero)?;
    results[2].mul(&inverse.unsqueeze(1)?)?.matmul(&transposed(&results[0])?)
}

static PINV: Formula = Formula {
    inputs: &[0],
    outputs: &[0],
    backward: |call| -> Result<Gradients> {
        call.one(0, || {
            let (x, inverse, gradient) = (call.saved(0)?, call.result(0)?, transposed(&call.gradient()?)?);
            let turned_inverse = transposed(&inverse)?;
            let [_, rows, columns] = sizes(&x)?;
            if rows <= columns {
                let k = gradient.matmul(&inverse)?;
                let product = k.matmul(&turned_inverse)?;
                let sum = product.sub(&transposed(&inverse.matmul(&k)?)?)?;
                let sum = sum.sub(&x.matmul(&inverse)?.matmul(&product)?)?;
                return sum.add(&turned_inverse.matmul(&inverse)?.matmul(&gradient.sub(&k.matmul(&x)?)?)?);
            }
            let k = inverse.matmul(&gradient)?;
            let product = turned_inverse.matmul(&k)?;
            let sum = product.sub(&transposed(&k.matmul(&inverse)?)?)?;
            let sum = sum.sub(&product.matmul(&inverse)?.matmul(&x)?)?;
            sum.add(&gradient.sub(&x.matmul(&k)?)?.matmul(&inverse)?.matmul(&turned_inverse)?)
        })
    },
};
