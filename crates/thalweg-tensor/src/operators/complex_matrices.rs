//! Decompositions of complex matrices: those built from reflections, by operators on complex numbers, through which gradients
//! flow; and those of the real matrix of twice the size, in which the block (a, −b) over (b, a) replaces a + b i.

use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Differentiable;
use super::complex::{of_parts, parts};
use super::complex_spectra::spectrum;
use super::decompose::{adjoint, identity};
use super::reflectors;
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns Hermitian matrices from the upper or lower triangle of complex128 ones.
    "thalweg::hermitian(Tensor self, bool upper) -> Tensor"
        = Differentiable(|call| mirrored(&call.tensor(0).detach(), call.bool(1)).map(single), &MIRRORED), complex: Taken;
    /// Returns the eigenvalues of complex128 Hermitian matrices (batch, rows, rows), in ascending order.
    "thalweg::eigenvalues_of_hermitian(Tensor self) -> Tensor"
        = Differentiable(|call| eigenvalues_of_blocks(&call.tensor(0).detach()).map(single), &EIGENVALUES), complex: Taken;
}

/// Matrices of any batch as complex128 (batch, rows, columns).
pub(super) struct Stack {
    /// The matrices.
    pub(super) matrices: Tensor,
    batch: Shape,
    dtype: DType,
}

impl Stack {
    /// Reads an argument of the operator of this name.
    pub(super) fn new(name: &str, x: &Tensor) -> Result<Self> {
        let &[ref batch @ .., rows, columns] = x.shape() else {
            refuse!("{name}: The input tensor must have at least 2 dimensions.");
        };
        let matrices = x.to_dtype(DType::C128)?.reshape(&[batch.iter().product(), rows, columns])?;
        Ok(Self { matrices, batch: batch.into(), dtype: x.dtype() })
    }

    /// Reads square matrices.
    pub(super) fn square(name: &str, x: &Tensor) -> Result<Self> {
        let stack = Self::new(name, x)?;
        match *stack.matrices.shape() {
            [_, rows, columns] if rows != columns => Err(invalid!(
                "{name}: A must be batches of square matrices, but they are {rows} by {columns} matrices"
            )),
            _ => Ok(stack),
        }
    }

    /// Returns batch, rows and columns.
    pub(super) fn sizes(&self) -> [usize; 3] {
        let shape = self.matrices.shape();
        [shape[0], shape[1], shape[2]]
    }

    /// Returns a result in the batch's shape and the argument's dtype, or the dtype of its parts; integers keep their dtype.
    pub(super) fn to_result(&self, result: &Tensor) -> Result<Tensor> {
        let shape: Shape = self.batch.iter().chain(&result.shape()[1..]).copied().collect();
        let result = result.reshape(&shape)?;
        match result.dtype() {
            DType::C128 => result.to_dtype(self.dtype),
            DType::F64 => result.to_dtype(self.dtype.real()),
            _ => Ok(result),
        }
    }

    /// Returns Hermitian matrices from their upper or lower triangle.
    pub(super) fn hermitian(self, upper: bool) -> Result<Self> {
        let arguments = [(&self.matrices).into(), upper.into()];
        let location = std::panic::Location::caller();
        let matrices = call_operator(built_in!("thalweg::hermitian")?, &arguments, None, location)?;
        Ok(Self { matrices, ..self })
    }

    /// Returns the vectors of reflectors below the diagonal, with 1 on it, and their factors as (batch, count).
    fn reflectors(&self, tau: &Tensor) -> Result<(Tensor, Tensor)> {
        let [count, rows, _] = self.sizes();
        let steps = tau.shape().last().copied().unwrap_or(0);
        let ones = identity(&self.matrices, rows)?.narrow(1, 0, steps)?;
        let vectors = self.matrices.narrow(2, 0, steps)?.tril(-1)?.add(&ones)?;
        Ok((vectors, tau.to_dtype(DType::C128)?.reshape(&[count, steps])?))
    }

    /// Returns the matrices in the batch's shape and the argument's dtype.
    pub(super) fn whole(&self) -> Result<Tensor> {
        self.to_result(&self.matrices)
    }

    /// Returns real matrices with a block of 2 by 2 for each number.
    fn blocks(&self) -> Result<Tensor> {
        let [count, rows, columns] = self.sizes();
        let [re, im] = parts(&self.matrices)?;
        let upper = Tensor::stack(&[re.clone(), im.neg()?], 3)?;
        let lower = Tensor::stack(&[im, re], 3)?;
        Tensor::stack(&[upper, lower], 2)?.reshape(&[count, 2 * rows, 2 * columns])
    }
}

/// Returns the numbers of matrices of blocks.
fn of_blocks(x: &Tensor) -> Result<Tensor> {
    let [count, rows, columns] = [0, 1, 2].map(|dim| x.shape()[dim]);
    let first = x.reshape(&[count, rows / 2, 2, columns / 2, 2])?.select(4, 0)?;
    of_parts(&first.select(2, 0)?, &first.select(2, 1)?)
}

/// Returns the matrices with reflectors I − τ v vᴴ applied.
fn reflected(vector: &Tensor, tau: &Tensor, matrices: &Tensor) -> Result<Tensor> {
    matrices.sub(&tau.mul(&vector.matmul(&adjoint(vector)?.matmul(matrices)?)?)?)
}

/// Returns the sums of squared absolute values of columns.
fn squares(x: &Tensor) -> Result<Tensor> {
    let [re, im] = parts(x)?;
    re.mul(&re)?.add(&im.mul(&im)?)?.sum(&[1], true)
}

/// The factors of matrices by reflections, in LAPACK's form.
struct Reflections {
    /// The upper factors.
    upper: Tensor,
    /// The vectors of the reflectors as columns, with 1 on the diagonal and 0 above.
    vectors: Tensor,
    /// The factors of the reflectors (batch, count).
    tau: Tensor,
    /// The determinants of the products of the reflectors.
    determinants: Tensor,
}

impl Reflections {
    fn of(matrices: &Tensor) -> Result<Self> {
        let (count, rows) = (matrices.shape()[0], matrices.shape()[1]);
        let steps = rows.min(matrices.shape()[2]);
        let number = |value: f64, dtype| Tensor::full(&[], value, dtype, matrices.device());
        let [zero, one] = [number(0.0, DType::C128)?, number(1.0, DType::C128)?];
        let mut determinants = one.expand(&[count, 1, 1])?;
        let (mut upper, mut vectors, mut taus) = (matrices.clone(), Vec::new(), Vec::new());
        for place in 0..steps {
            let column = upper.narrow(2, place, 1)?.narrow(1, place, rows - place)?;
            let (first, rest) = (column.narrow(1, 0, 1)?, column.narrow(1, 1, rows - place - 1)?);
            let [re, im] = parts(&first)?;
            let is_done = squares(&rest.detach())?.eq_scalar(0)?.logical_and(&im.detach().eq_scalar(0)?)?;
            let length = is_done.select_where(&number(1.0, DType::F64)?, &squares(&column)?)?.sqrt()?;
            let target =
                re.detach().lt_scalar(0)?.select_where(&length, &length.neg()?)?.to_dtype(DType::C128)?;
            let tau = is_done.select_where(&zero, &target.sub(&first)?.div(&target)?)?;
            let rest = rest.div(&is_done.select_where(&one, &first.sub(&target)?)?)?;
            let above = zero.expand(&[count, place, 1])?;
            let vector = Tensor::cat(&[above, one.expand(&[count, 1, 1])?, rest], 1)?;
            upper = reflected(&vector, &tau.conj()?, &upper)?;
            determinants =
                determinants.mul(&one.sub(&tau.mul(&squares(&vector)?.to_dtype(DType::C128)?)?)?)?;
            vectors.push(vector);
            taus.push(tau.squeeze(2)?);
        }
        let joined = |list: &[Tensor], dim: i64, shape: &[usize]| match list {
            [] => zero.expand(shape),
            list => Tensor::cat(list, dim),
        };
        Ok(Self {
            upper: upper.triu(0)?,
            vectors: joined(&vectors, 2, &[count, rows, 0])?,
            tau: joined(&taus, 1, &[count, 0])?,
            determinants: determinants.reshape(&[count])?,
        })
    }
}

/// Returns the first columns of products of reflectors.
fn product(vectors: &Tensor, tau: &Tensor, columns: usize) -> Result<Tensor> {
    let (count, rows) = (vectors.shape()[0], vectors.shape()[1]);
    let start = identity(vectors, rows)?.narrow(1, 0, columns)?.expand(&[count, rows, columns])?;
    reflectors::reflected(vectors, &tau.unsqueeze(2)?, &start, false)
}

pub(super) fn qr(x: &Tensor, mode: &str) -> Result<Tensors> {
    let a = Stack::new("linalg.qr", x)?;
    let ([_, rows, columns], found) = (a.sizes(), Reflections::of(&a.matrices)?);
    let width = if mode == "complete" { rows } else { rows.min(columns) };
    let q = match mode {
        "r" => Tensor::empty(&[0], x.dtype(), x.device())?,
        _ => a.to_result(&product(&found.vectors, &found.tau, width)?)?,
    };
    Ok(Tensors::from_iter([q, a.to_result(&found.upper.narrow(1, 0, width)?)?]))
}

pub(super) fn geqrf(call: &Call<'_>) -> Result<Tensors> {
    let a = Stack::new("torch.geqrf", call.tensor(0))?;
    let ([count, rows, columns], found) = (a.sizes(), Reflections::of(&a.matrices)?);
    let rest = Tensor::zeros(&[count, rows, columns - rows.min(columns)], DType::C128, call.device)?;
    let packed = found.upper.add(&Tensor::cat(&[found.vectors, rest], 2)?.tril(-1)?)?;
    Ok(Tensors::from_iter([a.to_result(&packed)?, a.to_result(&found.tau)?]))
}

pub(super) fn householder_product(call: &Call<'_>) -> Result<Tensor> {
    let (name, tau) = ("torch.linalg.householder_product", call.tensor(1));
    let a = Stack::new(name, call.tensor(0))?;
    let [count, rows, columns] = a.sizes();
    refuse_if!(rows < columns, "{name}: input.shape[-2] must be greater than or equal to input.shape[-1]");
    let steps = tau.shape().last().copied().unwrap_or(0);
    refuse_if!(
        tau.elements() != count * steps || tau.rank() == 0 || steps > columns,
        "{name}: a factor per reflector is needed, but {:?} do not fit {:?}",
        tau.shape(),
        call.tensor(0).shape()
    );
    let (vectors, tau) = a.reflectors(tau)?;
    a.to_result(&product(&vectors, &tau, columns)?)
}

/// Returns the product of all reflectors, or of its adjoint, with other matrices, on the left or the right.
pub(super) fn ormqr(call: &Call<'_>) -> Result<Tensor> {
    let (left, transpose) = (call.bool(3), call.bool(4));
    let [a, other] = [Stack::new("torch.ormqr", call.tensor(0))?, Stack::new("torch.ormqr", call.tensor(2))?];
    let (vectors, tau) = a.reflectors(call.tensor(1))?;
    let start = if left { other.matrices.clone() } else { adjoint(&other.matrices)? };
    let result = reflectors::reflected(&vectors, &tau.unsqueeze(2)?, &start, left == transpose)?;
    other.to_result(&if left { result } else { adjoint(&result)? })
}

pub(super) fn det(x: &Tensor) -> Result<Tensor> {
    let a = Stack::square("linalg.det", x)?;
    let found = Reflections::of(&a.matrices)?;
    let diagonal = found.upper.diagonal(0, -2, -1)?;
    let all =
        (0..a.sizes()[1]).try_fold(found.determinants, |all, place| all.mul(&diagonal.select(1, place)?))?;
    a.to_result(&all)
}

pub(super) fn sign_and_log(x: &Tensor) -> Result<Tensors> {
    let a = Stack::square("linalg.slogdet", x)?;
    let found = Reflections::of(&a.matrices)?;
    let diagonal = found.upper.diagonal(0, -2, -1)?;
    let signs = diagonal.sgn()?;
    let sign =
        (0..a.sizes()[1]).try_fold(found.determinants, |all, place| all.mul(&signs.select(1, place)?))?;
    let log = diagonal.abs()?.log()?.sum(&[-1], false)?;
    Ok(Tensors::from_iter([a.to_result(&sign)?, a.to_result(&log)?]))
}

pub(super) fn logdet(x: &Tensor) -> Result<Tensor> {
    let [sign, log] = <[Tensor; 2]>::try_from(sign_and_log(x)?.into_vec()).expect("there are two");
    sign.log()?.add(&log)
}

/// Returns the lower or upper factors of Hermitian matrices, of which one triangle is read, computed from their blocks, whose
/// diagonals are real.
pub(super) fn cholesky(x: &Tensor, name: &str, upper: bool) -> Result<Tensors> {
    let a = Stack::square(name, x)?;
    let whole = a.hermitian(upper)?;
    let [factor, info] = whole.blocks()?.linalg_cholesky_ex()?;
    // Two rows of the block matrix are one row of complex numbers.
    let info = info.add_scalar(1)?.floor_divide_scalar(2)?;
    let factor = of_blocks(&factor)?;
    let factor = if upper { adjoint(&factor)? } else { factor };
    Ok(Tensors::from_iter([whole.to_result(&factor)?, whole.to_result(&info)?]))
}

/// Returns the eigenvalues of Hermitian matrices, of which one triangle is read, in ascending order.
pub(super) fn eigenvalues(x: &Tensor, upper: bool) -> Result<Tensor> {
    let whole = Stack::square("linalg.eigvalsh", x)?.hermitian(upper)?;
    let arguments = [(&whole.matrices).into()];
    let location = std::panic::Location::caller();
    let values = call_operator(built_in!("thalweg::eigenvalues_of_hermitian")?, &arguments, None, location)?;
    whole.to_result(&values)
}

/// Returns the eigenvalues of complex128 matrices (batch, rows, rows): those of their blocks, where each occurs twice.
fn eigenvalues_of_blocks(matrices: &Tensor) -> Result<Tensor> {
    let whole = Stack::square("linalg.eigvalsh", matrices)?;
    let [count, rows, _] = whole.sizes();
    whole.blocks()?.linalg_eigvalsh()?.reshape(&[count, rows, 2])?.select(2, 0)?.contiguous()
}

/// The gradient by eigenvectors, which are computed for it: those of the blocks, whose eigenvalues are all double, have none.
static EIGENVALUES: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let [_, vectors] = spectrum(&call.saved(0)?)?;
            let values = call.gradient_of(0)?.to_dtype(DType::C128)?;
            vectors.mul(&values.unsqueeze(1)?)?.matmul(&adjoint(&vectors)?)
        })
    },
};

/// Returns Hermitian matrices from the upper or lower triangle of complex128 ones.
fn mirrored(x: &Tensor, upper: bool) -> Result<Tensor> {
    let lower = if upper { adjoint(x)? } else { x.clone() };
    let below = lower.tril(-1)?;
    let [diagonal, _] = parts(&lower.diagonal(0, -2, -1)?)?;
    let diagonal = diagonal.to_dtype(DType::C128)?.diag_embed(0, -2, -1)?;
    below.add(&adjoint(&below)?)?.add(&diagonal)
}

/// The gradient of both triangles, as in PyTorch.
static MIRRORED: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let gradient = call.gradient_of(0)?;
            gradient.add(&adjoint(&gradient)?)?.mul_scalar(0.5)
        })
    },
};

/// Returns singular values, in descending order: those of the blocks, where each occurs twice.
pub(super) fn singular_values(x: &Tensor) -> Result<Tensor> {
    let a = Stack::new("linalg.svdvals", x)?;
    let [count, rows, columns] = a.sizes();
    let values = a.blocks()?.linalg_svdvals()?;
    a.to_result(&values.reshape(&[count, rows.min(columns), 2])?.select(2, 0)?)
}
