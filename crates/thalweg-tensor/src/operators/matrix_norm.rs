//! Norms, ranks, powers and pseudoinverses of matrices, and equations over tensors.

use thalweg_ir::{DType, Scalar, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::decompose::{symmetric, transposed};
use super::matrix::matrix_power;
use super::solve::{Stack, values};
use super::view::wrap;
use super::{complex_factors, complex_matrices, operators, single};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::Tensor;

operators! {
    /// Returns a norm of vectors, or of matrices if two dimensions are given; without an order, the norm of all elements.
    "linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn linalg_norm() = Composite(|call| {
            let ord = call.optional_scalar(1).map(Ord::Number);
            norm(call, ord).map(single)
        }), out: [OfResult], autocast: Parts;
    /// Returns the norm `fro` or `nuc` of matrices.
    "linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn linalg_norm_ord_str(order: str, dim: optional_ints, keepdim: bool)
        = Composite(|call| norm(call, Some(Ord::of(call.str(1))?)).map(single)), out: [OfResult], autocast: Parts;
    /// Returns a norm of matrices: 1 and ∞ are the greatest sums of absolute values of columns and rows, 2 is the greatest
    /// singular value, and negative orders are the least ones.
    "linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn linalg_matrix_norm(order: scalar, dim: ints, keepdim: bool)
        = Composite(|call| {
            matrix_norm(call.tensor(0), Ord::Number(call.scalar(1)), &call.ints(2), call.bool(3), call.optional_dtype(4)).map(single)
        }), out: [OfResult], autocast: Full;
    /// Returns a norm of matrices: `fro` is the root of the sum of squares, `nuc` the sum of singular values.
    "linalg_matrix_norm.str_ord(Tensor self, str ord='fro', int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn linalg_matrix_norm_str_ord(order: str, dim: ints, keepdim: bool)
        = Composite(|call| {
            matrix_norm(call.tensor(0), Ord::of(call.str(1))?, &call.ints(2), call.bool(3), call.optional_dtype(4)).map(single)
        }), out: [OfResult], autocast: Full;
    /// Returns the condition number of matrices in a norm; without a norm, the greatest singular value divided by the least.
    "linalg_cond(Tensor self, Scalar? p=None) -> Tensor"
        fn linalg_cond(p: optional_scalar)
        = Composite(|call| cond(call.tensor(0), call.optional_scalar(1).map(Ord::Number)).map(single)), autocast: Parts;
    /// Returns the condition number of matrices, in the norm `fro` or `nuc`.
    "linalg_cond.p_str(Tensor self, str p) -> Tensor"
        fn linalg_cond_p_str(p: str)
        = Composite(|call| cond(call.tensor(0), Some(Ord::of(call.str(1))?)).map(single)), autocast: Parts;
    /// Returns matrices to the power of an integer; for a negative exponent those of the inverses.
    "linalg_matrix_power(Tensor self, int n) -> Tensor"
        fn matrix_power(n: int) = Composite(|call| matrix_power(call.tensor(0), call.int(1)).map(single)), out: [OfResult], autocast: Parts;
    /// Returns how many singular values are above a bound.
    "linalg_matrix_rank.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor"
        fn linalg_matrix_rank()
        = Composite(|call| {
            let bounds = Bounds::of_numbers(call)?;
            rank(call.tensor(0), &bounds, call.bool(3)).map(single)
        }), autocast: Parts;
    /// Returns how many singular values are above bounds.
    "linalg_matrix_rank.atol_rtol_tensor(Tensor input, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor"
        = Composite(|call| rank(call.tensor(0), &Bounds::of_tensors(call), call.bool(3)).map(single)), autocast: Parts;
    /// Returns the pseudoinverses of matrices; singular values that are not above a bound count as 0.
    "linalg_pinv.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor"
        fn linalg_pinv()
        = Composite(|call| {
            let bounds = Bounds::of_numbers(call)?;
            pseudoinverse(call.tensor(0), &bounds, call.bool(3)).map(single)
        }), autocast: Parts;
    /// Returns the pseudoinverses of matrices; singular values that are not above bounds count as 0.
    "linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor"
        = Composite(|call| pseudoinverse(call.tensor(0), &Bounds::of_tensors(call), call.bool(3)).map(single));
    /// Returns the pseudoinverses of matrices; singular values that are not above this fraction of the greatest count as 0.
    "pinverse(Tensor self, float rcond=1e-15) -> Tensor"
        fn pinverse(rcond: float) = Composite(|call| {
            let share = Tensor::full(&[], call.float(1), DType::F64, call.device)?;
            let bounds = Bounds { absolute: None, relative: Some(share) };
            pseudoinverse(call.tensor(0), &bounds, false).map(single)
        }), autocast: Parts;
    /// Returns the inverse of a tensor as a matrix: its first `ind` dimensions are the rows.
    "linalg_tensorinv(Tensor self, int ind=2) -> Tensor"
        fn linalg_tensorinv(ind: int)
        = Composite(|call| {
            let (x, rows) = (call.tensor(0), call.int(1));
            let Some(rows) = usize::try_from(rows).ok().filter(|&rows| rows > 0) else {
                refuse!("Expected a strictly positive integer for 'ind'");
            };
            let (of_rows, of_columns) = x.shape().split_at(rows.min(x.rank()));
            let [height, width] = [of_rows, of_columns].map(|shape| shape.iter().product::<usize>());
            refuse_if!(
                height != width,
                "Expected self to satisfy the requirement prod(self.shape[ind:]) == prod(self.shape[:ind]), but got {width} != \
                 {height}"
            );
            let shape: Shape = of_columns.iter().chain(of_rows).copied().collect();
            x.reshape(&[height, width])?.linalg_inv()?.reshape(&shape).map(single)
        }), autocast: Parts;
    /// Returns the tensor X whose product with a tensor A is B; dimensions of A may first be moved after the others.
    "linalg_tensorsolve(Tensor self, Tensor other, int[]? dims=None) -> Tensor"
        fn linalg_tensorsolve(other: tensor, dims: optional_ints)
        = Composite(|call| {
            let (mut a, b) = (call.tensor(0).clone(), call.tensor(1));
            if let Some(dims) = call.optional_ints(2) {
                let dims = dims.iter().map(|&dim| wrap(dim, a.rank())).collect::<Result<Vec<usize>>>()?;
                let order: Vec<usize> = (0..a.rank()).filter(|dim| !dims.contains(dim)).chain(dims.iter().copied()).collect();
                a = a.permute(&order)?;
            }
            let shape: Shape = a.shape().get(b.rank()..).unwrap_or(&[]).into();
            let (rows, columns) = (b.elements(), shape.iter().product::<usize>());
            refuse_if!(
                rows * columns != a.elements() || rows != columns,
                "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim])"
            );
            a.reshape(&[rows, columns])?.linalg_solve(&b.reshape(&[rows])?)?.reshape(&shape).map(single)
        }), autocast: Parts;
}

/// The order of a norm.
#[derive(Clone, Copy)]
enum Ord {
    Number(Scalar),
    Frobenius,
    Nuclear,
}

impl Ord {
    fn of(ord: &str) -> Result<Self> {
        match ord {
            "fro" => Ok(Self::Frobenius),
            "nuc" => Ok(Self::Nuclear),
            other => Err(invalid!(
                "linalg.matrix_norm: Order {other} not supported. Only the orders 'fro' and 'nuc' have names."
            )),
        }
    }
}

fn norm(call: &Call<'_>, ord: Option<Ord>) -> Result<Tensor> {
    let (x, dim, keepdim, dtype) =
        (call.tensor(0), call.optional_ints(2), call.bool(3), call.optional_dtype(4));
    let vector = |ord: Scalar, x: &Tensor, dim: &[i64]| {
        let dtype = dtype.map_or(crate::dispatch::Argument::None, Into::into);
        let arguments = [x.into(), ord.into(), dim.into(), keepdim.into(), dtype];
        super::call(built_in!("linalg_vector_norm")?, &arguments, None, call.label.location)
    };
    let Some(ord) = ord else {
        // The norm of all elements, regardless of the dimensions.
        let all: Vec<i64> = dim.map_or_else(|| (0..x.rank() as i64).collect(), |dim| dim.to_vec());
        return vector(Scalar::F64(2.0), x, &all);
    };
    let dims: Vec<i64> = match (&dim, x.rank()) {
        (Some(dim), _) => dim.to_vec(),
        (None, 1) => vec![0],
        (None, 2) => vec![0, 1],
        (None, rank) => {
            refuse!(
                "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {rank}D."
            );
        }
    };
    match (dims.len(), ord) {
        (1, Ord::Number(ord)) => vector(ord, x, &dims),
        (2, ord) => matrix_norm(x, ord, &dims, keepdim, dtype),
        (count, _) => Err(invalid!(
            "linalg.norm: If dim is specified, it must be of length 1 or 2. Got {count} for this order"
        )),
    }
}

fn matrix_norm(x: &Tensor, ord: Ord, dim: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensor> {
    let name = "linalg.matrix_norm";
    refuse_if!(x.rank() < 2, "{name}: The input tensor A must have at least 2 dimensions.");
    let &[row, column] = dim else {
        refuse!("{name}: dim must be a 2-tuple. Got {dim:?}");
    };
    let (row, column) = (wrap(row, x.rank())?, wrap(column, x.rank())?);
    refuse_if!(row == column, "{name}: dims must be different. Got ({row}, {column})");
    if !x.dtype().is_differentiable() {
        refuse!("{name}: Expected a floating point or complex tensor as input. Got {}", x.dtype());
    }
    let x = &x.to_dtype(dtype.unwrap_or(x.dtype()))?;
    let others = (0..x.rank()).filter(|&dim| dim != row && dim != column);
    let order: Vec<usize> = others.chain([row, column]).collect();
    let matrices = x.permute(&order)?;
    // The greatest of no numbers is 0, and there is no least one.
    let extremum = |x: &Tensor, is_least: bool| match (is_least, x.shape().last()) {
        (true, _) => x.amin(&[-1], false),
        (false, Some(0)) => x.sum(&[-1], false),
        (false, _) => x.amax(&[-1], false),
    };
    let result = match ord {
        Ord::Frobenius => matrices.vector_norm(2, &[-2, -1], false)?,
        Ord::Nuclear => values(name, &matrices)?.sum(&[-1], false)?,
        Ord::Number(number) => {
            let (size, is_least) = (number.to_f64().abs(), number.to_f64() < 0.0);
            if size == 2.0 {
                extremum(&values(name, &matrices)?, is_least)?
            } else if size == 1.0 {
                extremum(&matrices.abs()?.sum(&[-2], false)?, is_least)?
            } else if size == f64::INFINITY {
                extremum(&matrices.abs()?.sum(&[-1], false)?, is_least)?
            } else {
                refuse!("{name}: Order {} not supported.", number.to_f64());
            }
        }
    };
    if !keepdim {
        return Ok(result);
    }
    let shape: Shape = x
        .shape()
        .iter()
        .enumerate()
        .map(|(dim, &extent)| if dim == row || dim == column { 1 } else { extent })
        .collect();
    result.reshape(&shape)
}

fn cond(x: &Tensor, ord: Option<Ord>) -> Result<Tensor> {
    let size = match ord {
        None => 2.0,
        Some(Ord::Number(number)) => number.to_f64(),
        Some(_) => f64::NAN,
    };
    if size.abs() == 2.0 {
        let list = values("linalg.cond", x)?;
        if list.shape().last() == Some(&0) {
            return Tensor::zeros(&list.shape()[..list.rank() - 1], x.dtype().real(), x.device());
        }
        let (greatest, least) =
            (list.narrow(-1, 0, 1)?.squeeze(-1)?, list.narrow(-1, list.size(-1)? - 1, 1)?.squeeze(-1)?);
        return if size > 0.0 { greatest.div(&least) } else { least.div(&greatest) };
    }
    let ord = ord.expect("what has none is 2");
    match x.dtype().is_complex() {
        true => complex_matrices::Stack::square("linalg.cond", x).map(drop)?,
        false => Stack::square("linalg.cond", x).map(drop)?,
    }
    if x.size(-1)? == 0 {
        return Tensor::zeros(&x.shape()[..x.rank() - 2], x.dtype().real(), x.device());
    }
    let of = |x: &Tensor| matrix_norm(x, ord, &[-2, -1], false, None);
    let [inverse, info] = x.linalg_inv_ex()?;
    // The norm of an inverse that there is not is infinite.
    let is_singular = info.ne_scalar(0)?;
    let inverse = inverse.masked_fill(&is_singular.unsqueeze(-1)?.unsqueeze(-1)?, 0)?;
    let product = of(x)?.mul(&of(&inverse)?)?;
    product.masked_fill(&is_singular.logical_or(&product.ne(&product)?)?, f64::INFINITY)
}

/// The bounds below which singular values count as 0: a number, or a fraction of the greatest.
struct Bounds {
    absolute: Option<Tensor>,
    relative: Option<Tensor>,
}

impl Bounds {
    fn of_numbers(call: &Call<'_>) -> Result<Self> {
        let of = |place: usize| {
            call.optional_float(place)
                .map(|bound| Tensor::full(&[], bound, DType::F64, call.device))
                .transpose()
        };
        Ok(Self { absolute: of(1)?, relative: of(2)? })
    }

    fn of_tensors(call: &Call<'_>) -> Self {
        Self { absolute: call.optional_tensor(1).cloned(), relative: call.optional_tensor(2).cloned() }
    }

    /// Returns the bound of each matrix, from its singular values (…, least), in f64.
    fn of(&self, values: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (batch, least) = values.shape().split_at(values.rank() - 1);
        let zero = Tensor::zeros(&[], DType::F64, x.device())?;
        let greatest = match least {
            [0] => zero.expand(batch)?,
            _ => values.amax(&[-1], false)?,
        };
        let epsilon = if x.dtype().real() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let longest = x.shape()[x.rank() - 2..].iter().copied().max().unwrap_or(0) as f64;
        let share = Tensor::full(&[], epsilon * longest, DType::F64, x.device())?;
        let wide = |bound: &Tensor| bound.detach().to_dtype(DType::F64);
        let (absolute, relative) = match (&self.absolute, &self.relative) {
            (None, None) => (zero, share),
            (None, Some(relative)) => (zero, wide(relative)?),
            // The default fraction is not used if the number is above 0.
            (Some(absolute), None) => {
                let absolute = wide(absolute)?;
                let relative = absolute.gt_scalar(0.0)?.select_where(&zero, &share)?;
                (absolute, relative)
            }
            (Some(absolute), Some(relative)) => (wide(absolute)?, wide(relative)?),
        };
        let bound = absolute.maximum(&relative.mul(&greatest)?)?;
        Ok(bound)
    }
}

/// Returns numbers in 64 bits.
fn widened(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(if x.dtype().is_complex() { DType::C128 } else { DType::F64 })
}

fn rank(x: &Tensor, bounds: &Bounds, hermitian: bool) -> Result<Tensor> {
    let name = "linalg.matrix_rank";
    let x = &match (hermitian, x.dtype().is_complex()) {
        (true, true) => complex_matrices::Stack::square(name, x)?.hermitian(false)?.whole()?,
        (false, true) => x.detach(),
        (is_symmetric, false) => {
            Stack::new(name, x)?;
            if is_symmetric { symmetric(&x.detach(), false)? } else { x.detach() }
        }
    };
    let list = values(name, &widened(x)?)?;
    let bound = bounds.of(&list, x)?;
    list.gt(&bound.unsqueeze(-1)?)?.sum(&[-1], false)
}

fn pseudoinverse(x: &Tensor, bounds: &Bounds, hermitian: bool) -> Result<Tensor> {
    if x.dtype().is_complex() {
        let name = "linalg.pinv";
        if x.rank() > 1 && x.elements() == 0 {
            return transposed(x)?.contiguous();
        }
        let read = match hermitian {
            true => complex_matrices::Stack::square(name, x)?.hermitian(false)?.whole()?,
            false => x.clone(),
        };
        let list = values(name, &widened(&read.detach())?)?;
        let bound = bounds.of(&list, x)?.expand(&list.shape()[..list.rank() - 1])?;
        return complex_factors::pseudoinverse(name, &read, &bound);
    }
    let a = Stack::new("linalg.pinv", x)?;
    if x.elements() == 0 {
        return transposed(x)?.contiguous();
    }
    let read = if hermitian { symmetric(&x.detach(), false)? } else { x.detach() };
    let list = values("linalg.pinv", &read.to_dtype(DType::F64)?)?;
    let batch = &list.shape()[..list.rank() - 1];
    let bound = bounds.of(&list, x)?.expand(batch)?.reshape(&[a.count()])?;
    a.give_rows(&a.call(built_in!("thalweg::pinv")?, &[(&bound).into(), hermitian.into()])?[0])
}
