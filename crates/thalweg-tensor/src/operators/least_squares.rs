//! Least squares, and the exponential of matrices.

use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::solve::{Stack, are_vectors, values};
use super::{complex_factors, operators, single};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the X that minimizes ‖A X − B‖, the smallest one if there are several; the squares of the columns' residuals, if
    /// there are more rows than columns; the ranks; and the singular values, of which those not above `rcond` times the greatest
    /// count as 0. All drivers use singular values and differ in the results that they return: `gels`, the default, neither ranks
    /// nor singular values; `gelsy` neither residuals nor singular values; `gelsd` and `gelss` everything, but residuals only if
    /// each matrix has full rank, for which the host reads the ranks.
    "linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)"
        fn linalg_lstsq(b: tensor, rcond: optional_float) -> 4
        = Composite(least_squares);
    /// Returns the exponentials of square matrices, by a Taylor polynomial of A / 2ˢ that is squared s times; the host reads the
    /// norm, which determines s.
    "matrix_exp(Tensor self) -> Tensor"
        fn matrix_exp() = Composite(|call| exponential(call.tensor(0)).map(single)), autocast: Parts;
    /// Returns the exponentials of square matrices. The host reads their greatest norm.
    "linalg_matrix_exp(Tensor self) -> Tensor"
        fn linalg_matrix_exp()
        = Composite(|call| exponential(call.tensor(0)).map(single));
}

/// A driver of LAPACK, which determines the parts of the solution that are returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// Neither ranks nor singular values.
    Gels,
    /// Ranks, but no residuals.
    Gelsy,
    /// Ranks and singular values.
    Gelsd,
}

impl Driver {
    fn of(driver: &str, name: &str) -> Result<Self> {
        match driver {
            "gels" => Ok(Self::Gels),
            "gelsy" => Ok(Self::Gelsy),
            "gelsd" | "gelss" => Ok(Self::Gelsd),
            _ => Err(invalid!(
                "{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), but got {driver}"
            )),
        }
    }
}

fn least_squares(call: &Call<'_>) -> Result<Tensors> {
    let name = "torch.linalg.lstsq";
    let (x, b) = (call.tensor(0), call.tensor(1));
    if x.dtype().is_complex() {
        return of_complex(call, name);
    }
    let a = Stack::new(name, x)?;
    refuse_if!(
        b.rank() == 0 || !(0..=1).contains(&(x.rank() as i64 - b.rank() as i64)) || b.dtype() != x.dtype(),
        "{name}: input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1, of one dtype, but got \
         {x:?} and {b:?}"
    );
    let driver = Driver::of(call.optional_str(3).unwrap_or("gels"), name)?;
    let is_vector = are_vectors(x, b);
    let columns = if is_vector { b.unsqueeze(-1)? } else { b.clone() };
    let right = Stack::new(name, &columns)?;
    if right.rows() != a.rows() || right.count() != a.count() {
        refuse!("{name}: input and other must have the same rows and batch, but got {x:?} and {b:?}");
    }
    let [rows, width] = [a.rows(), a.columns()];
    let epsilon = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let share = call.optional_float(2).unwrap_or(epsilon * rows.max(width) as f64);
    let singular = values(name, &a.matrices.detach())?;
    let least = rows.min(width);
    let cutoff = match least {
        0 => Tensor::zeros(&[a.count()], DType::F64, call.device)?,
        // A driver that returns no ranks assumes that they are full.
        _ if driver == Driver::Gels => singular.select(-1, 0)?.mul_scalar(f64::EPSILON)?,
        _ => singular.select(-1, 0)?.mul_scalar(share)?,
    };
    let rank = singular.gt(&cutoff.unsqueeze(-1)?)?.to_dtype(DType::I64)?.sum(&[-1], false)?;
    let solution = match least {
        0 => Tensor::zeros(&[a.count(), width, right.columns()], DType::F64, call.device)?,
        _ => {
            let inverse = a.call(built_in!("thalweg::pinv")?, &[(&cutoff).into(), false.into()])?;
            inverse[0].matmul(&right.matrices)?
        }
    };
    let is_full = match driver {
        Driver::Gelsd if rows > width && !rank.device().is_meta() => {
            rank.to_vec::<i64>()?.iter().all(|&rank| rank == width as i64)
        }
        Driver::Gels | Driver::Gelsd => true,
        Driver::Gelsy => false,
    };
    let residuals = match is_full && rows > width {
        true => {
            let off = a.matrices.matmul(&solution)?.sub(&right.matrices)?;
            a.to_result(&off.square()?.sum(&[-2], false)?)?
        }
        // An empty tensor is a part of the same result, and has its gradient.
        false => solution.flatten_from(0)?.narrow(0, 0, 0)?.to_dtype(x.dtype())?,
    };
    let solution = a.to_result(&solution)?;
    let nothing = |dtype: DType| Tensor::empty(&[0], dtype, call.device);
    let ranks = if driver == Driver::Gels { nothing(DType::I64)? } else { a.to_result(&rank)? };
    let singular = if driver == Driver::Gelsd { a.to_result(&singular)? } else { nothing(x.dtype())? };
    let solution = if is_vector { solution.squeeze(-1)? } else { solution };
    Ok(Tensors::from_iter([solution, residuals, ranks, singular]))
}

/// Solves complex equations, by pseudoinverses.
fn of_complex(call: &Call<'_>, name: &str) -> Result<Tensors> {
    let (x, b) = (call.tensor(0), call.tensor(1));
    let driver = Driver::of(call.optional_str(3).unwrap_or("gels"), name)?;
    let is_vector = are_vectors(x, b);
    let columns = if is_vector { b.unsqueeze(-1)? } else { b.clone() };
    let fits = x.rank() >= 2 && columns.rank() == x.rank() && columns.dtype() == x.dtype();
    if !fits || columns.shape()[..x.rank() - 1] != x.shape()[..x.rank() - 1] {
        refuse!("{name}: input and other must have the same rows, batch and dtype, but got {x:?} and {b:?}");
    }
    let [rows, width] = [x.rank() - 2, x.rank() - 1].map(|dim| x.shape()[dim]);
    let epsilon = if x.dtype() == DType::C128 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let share = match driver {
        Driver::Gels => f64::EPSILON,
        _ => call.optional_float(2).unwrap_or(epsilon * rows.max(width) as f64),
    };
    let singular = values(name, &x.detach())?;
    let batch = &x.shape()[..x.rank() - 2];
    let cutoff = match rows.min(width) {
        0 => Tensor::zeros(batch, singular.dtype(), call.device)?,
        _ => singular.select(-1, 0)?.mul_scalar(share)?,
    };
    let rank = singular.gt(&cutoff.unsqueeze(-1)?)?.to_dtype(DType::I64)?.sum(&[-1], false)?;
    let solution = if x.elements() == 0 {
        let shape: Shape = batch.iter().copied().chain([width, columns.shape()[x.rank() - 1]]).collect();
        Tensor::zeros(&shape, x.dtype(), call.device)?
    } else {
        complex_factors::pseudoinverse(name, x, &cutoff)?.matmul(&columns)?
    };
    let nothing = |dtype: DType| Tensor::empty(&[0], dtype, call.device);
    let residuals = match driver {
        Driver::Gels | Driver::Gelsd if rows > width => {
            x.matmul(&solution)?.sub(&columns)?.abs()?.square()?.sum(&[-2], false)?
        }
        _ => nothing(x.dtype().real())?,
    };
    let ranks = if driver == Driver::Gels { nothing(DType::I64)? } else { rank };
    let singular = if driver == Driver::Gelsd { singular } else { nothing(x.dtype().real())? };
    let solution = if is_vector { solution.squeeze(-1)? } else { solution };
    Ok(Tensors::from_iter([solution, residuals, ranks, singular]))
}

/// The degree of the polynomial: for a matrix with a norm of 1 the remainder is below 1 / 19!, which is less than an ulp of f64.
const DEGREE: usize = 18;

fn exponential(x: &Tensor) -> Result<Tensor> {
    let &[ref batch @ .., rows, columns] = x.shape() else {
        refuse!("linalg.matrix_exp: The input tensor must have at least 2 dimensions.");
    };
    refuse_if!(
        rows != columns,
        "linalg.matrix_exp: A must be batches of square matrices, but they are {rows} by {columns} matrices"
    );
    if !x.dtype().is_differentiable() {
        refuse!("linalg.matrix_exp: Expected a floating point or complex tensor as input. Got {}", x.dtype());
    }
    if x.elements() == 0 {
        return x.copied(std::panic::Location::caller());
    }
    let wide = if x.dtype().is_complex() { DType::C128 } else { DType::F64 };
    let flat: Shape = [batch.iter().product(), rows, rows].into_iter().collect();
    let a = x.to_dtype(wide)?.reshape(&flat)?;
    let norm = match a.device().is_meta() {
        true => 0.0,
        false => a.detach().abs()?.sum(&[-2], false)?.amax(&[], false)?.item::<f64>()?,
    };
    // A matrix that is not finite has no exponential, however often it is halved.
    let halvings = if norm.is_finite() { norm.log2().ceil().max(0.0) as i32 } else { 0 };
    let a = a.mul_scalar(0.5_f64.powi(halvings))?;
    let one = Tensor::ones(&[rows], DType::F64, x.device())?.diag_embed(0, 0, 1)?.to_dtype(wide)?;
    let mut result = a.mul_scalar(1.0 / DEGREE as f64)?.add(&one)?;
    for degree in (1..DEGREE).rev() {
        result = a.matmul(&result)?.mul_scalar(1.0 / degree as f64)?.add(&one)?;
    }
    for _ in 0..halvings {
        result = result.matmul(&result)?;
    }
    result.reshape(x.shape())?.to_dtype(x.dtype())
}
