//! Matrix products: which matrices of a tensor the library can read without a copy, and the gradient.

use smallvec::SmallVec;
use thalweg_execute::execute;
use thalweg_execute::products::{Product, WideProduct, takes_wide};
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_kernels::matmul::{Factor, Matmul, Operand};
use thalweg_ops::structured;
use thalweg_runtime::{Error, Label, Result};

use super::linear::layer;
use crate::autograd::{Backward, Gradients, Request, Saved, SavedPlace, record};
use crate::destination::for_kernel_over;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::loops::{LoopArguments, run_into};
use crate::tensor::{Tensor, Tensors};

/// Returns the last two dimensions of a tensor as a matrix that the library can read, copied first if it cannot. A copy is
/// outside the graph.
pub(super) fn matrix(tensor: &Tensor) -> Result<(Tensor, Operand)> {
    if let Some(operand) = as_it_lies(tensor) {
        return Ok((tensor.clone(), operand));
    }
    let copy = tensor.detach().contiguous()?;
    let operand = as_it_lies(&copy).expect("a contiguous matrix can be read");
    Ok((copy, operand))
}

fn as_it_lies(tensor: &Tensor) -> Option<Operand> {
    let (shape, strides) = (tensor.shape(), tensor.layout().strides());
    let rank = shape.len();
    let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
    let [row_stride, column_stride] = [strides[rank - 2], strides[rank - 1]];
    if tensor.elements() == 0 {
        // An empty matrix is never read, for any strides.
        let leading_dimension = columns.max(1) as u64;
        return Some(Operand { leading_dimension, batch_stride: 0, transposed: false });
    }
    let batch_stride = if rank == 3 && shape[0] > 1 { strides[0] as u64 } else { 0 };
    let operand = |leading_dimension: usize, transposed: bool| {
        Some(Operand { leading_dimension: leading_dimension as u64, batch_stride, transposed })
    };
    match (row_stride, column_stride) {
        (row, column) if (column == 1 || columns <= 1) && (row >= columns || rows <= 1) => {
            operand(if rows <= 1 { columns.max(1) } else { row }, false)
        }
        (row, column) if (row == 1 || rows <= 1) && (column >= rows || columns <= 1) => {
            operand(if columns <= 1 { rows.max(1) } else { column }, true)
        }
        _ => None,
    }
}

/// Returns whether two tensors can be multiplied.
pub(crate) fn check(a: &Tensor, b: &Tensor) -> Result<()> {
    let fail = |why: String| Err(Error::invalid(why));
    if a.dtype() != b.dtype() {
        return fail(format!(
            "the dtypes differ ({} and {}); convert one with `to_dtype`",
            a.dtype(),
            b.dtype()
        ));
    }
    if !(2..=3).contains(&a.rank()) || !(2..=3).contains(&b.rank()) {
        return fail("operands have 2 dimensions, or 3 with a batch first".into());
    }
    let [k_a, k_b] = [a.shape()[a.rank() - 1], b.shape()[b.rank() - 2]];
    if k_a != k_b {
        return fail(format!(
            "the inner dimensions differ: {k_a} columns on the left, {k_b} rows on the right"
        ));
    }
    if a.rank() == 3
        && b.rank() == 3
        && a.shape()[0] != b.shape()[0]
        && a.shape()[0] != 1
        && b.shape()[0] != 1
    {
        return fail(format!("the batches differ: {} and {}", a.shape()[0], b.shape()[0]));
    }
    Ok(())
}

/// Computes `a · b` for each matrix of a batch.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    multiply(None, call.tensors[0], call.tensors[1], call)
}

/// Computes `beta · self + alpha · a · b` for each matrix of a batch, rounded once. `self` is broadcast.
pub(crate) fn add_backend(call: &Call<'_>) -> Result<Tensors> {
    let added =
        Added { tensor: call.tensor(0), beta: call.scalar(3).to_f64(), alpha: call.scalar(4).to_f64() };
    multiply(Some(added), call.tensor(1), call.tensor(2), call)
}

/// The tensor that a product is added to, and the factors of both.
struct Added<'a> {
    tensor: &'a Tensor,
    beta: f64,
    alpha: f64,
}

impl Added<'_> {
    /// Returns the tensor itself if a result of this shape may overwrite it.
    fn consumed(&self, shape: &[usize]) -> Option<Tensor> {
        (self.tensor.shape() == shape).then(|| for_kernel_over(self.tensor))?
    }

    /// Returns the tensor as the bias of a layer if it is one row that is added to every row of a result of this shape.
    fn row(&self, shape: &[usize]) -> Option<Tensor> {
        let &[_, columns] = shape else { return None };
        let is_row = matches!(*self.tensor.shape(), [own] | [1, own] if own == columns);
        let is_plain = (self.beta, self.alpha) == (1.0, 1.0) && self.tensor.shape() != shape;
        (is_row && is_plain).then(|| self.tensor.detach().reshape(&[columns]).ok())?
    }
}

fn multiply(added: Option<Added<'_>>, a: &Tensor, b: &Tensor, call: &Call<'_>) -> Result<Tensors> {
    check(a, b)?;
    let (a, a_matrix) = matrix(a)?;
    let (b, b_matrix) = matrix(b)?;
    let batch_of = |tensor: &Tensor| if tensor.rank() == 3 { tensor.shape()[0] } else { 1 };
    // A batch of one is broadcast to any other, an empty one too.
    let batch = if batch_of(&a) == 1 { batch_of(&b) } else { batch_of(&a) };
    let [m, k, n] = [a.shape()[a.rank() - 2], a.shape()[a.rank() - 1], b.shape()[b.rank() - 1]];
    let mut shape = Shape::new();
    if a.rank() == 3 || b.rank() == 3 {
        shape.push(batch);
    }
    shape.extend([m, n]);
    let mut product = Matmul {
        a: a_matrix,
        b: b_matrix,
        ..Matmul::contiguous(m as u64, n as u64, k as u64, batch as u64, a.dtype())
    };
    if let Some(row) = added.as_ref().and_then(|added| added.row(&shape)) {
        product.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        return layer(&product, [&a, &b], (Some(&row), None), call);
    }
    let stream = call.device.current_stream();
    // The result starts as the added tensor, and the product is added to it.
    let sum = added.as_ref().and_then(|added| added.consumed(&shape));
    let is_begun = sum.is_some();
    let result = match sum {
        Some(sum) => sum,
        None => call.new_result(&shape, a.dtype())?,
    };
    if let Some(Added { tensor, beta, alpha }) = added {
        (product.alpha, product.beta) = (Factor::new(alpha), Factor::new(beta));
        if product.accumulates() && !is_begun {
            let source = tensor.detach().expand(&shape)?;
            let target = std::slice::from_ref(&result);
            let arguments = LoopArguments { dtype: Some(result.dtype()), ..LoopArguments::default() };
            run_into(&structured::COPY, &[&source], &arguments, target, call.label)?;
        }
    }
    product.check().map_err(|fault| Error::invalid(fault.to_string()))?;
    execute(Product(&product), [a.pointer(), b.pointer(), result.pointer()], &stream, call.label)?;
    Ok(SmallVec::from_elem(result, 1))
}

/// Records `∂a = g · bᵀ`, `∂b = aᵀ · g`.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    record_product(call, [call.tensors[0], call.tensors[1]], None)
}

/// Records the gradient of [`add_backend`]. The gradient of `self` is beta times that of the result, summed where `self` was
/// broadcast; those of the factors are scaled by alpha.
pub(crate) fn add_autograd(call: &Call<'_>) -> Result<Tensors> {
    let tensor = call.tensor(0);
    let (shape, is_wanted) = (tensor.shape().into(), tensor.requires_grad());
    let sum = Sum { shape, is_wanted, beta: call.scalar(3), alpha: call.scalar(4) };
    record_product(call, [call.tensor(1), call.tensor(2)], Some(sum))
}

/// Runs a product of two factors, and records a node. A factor is kept only if the gradient of the other is required.
fn record_product(call: &Call<'_>, [a, b]: [&Tensor; 2], sum: Option<Sum>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let factors = [Side::new(a, b.requires_grad())?, Side::new(b, a.requires_grad())?];
    let node = MatmulBackward { factors, sum, label: call.label };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

/// A factor of a product.
struct Side {
    /// The factor, if the gradient of the other one reads it.
    saved: Option<Saved>,
    shape: Shape,
    is_contiguous: bool,
    /// Whether it is a transposed view, so that the gradient of its base (a linear layer's weight) is contiguous if that of the factor is
    /// column-major.
    is_column_major: bool,
    is_wanted: bool,
}

impl Side {
    fn new(factor: &Tensor, is_kept: bool) -> Result<Self> {
        let strides = factor.layout().strides();
        let is_contiguous = factor.is_contiguous();
        Ok(Self {
            saved: is_kept.then(|| Saved::new(factor)).transpose()?,
            shape: factor.shape().into(),
            is_contiguous,
            is_column_major: strides[strides.len() - 2] == 1 && !is_contiguous,
            is_wanted: factor.requires_grad(),
        })
    }

    /// Returns the factor, transposed, for the gradient of the other one.
    fn turned(&self) -> Result<Tensor> {
        self.saved.as_ref().expect("a factor is kept for the gradient of the other").get()?.transpose(-2, -1)
    }

    /// Returns `x · y`, summed to the shape of the factor, and in its order of dimensions.
    fn product_like(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let product = match self.is_column_major {
            true => y.transpose(-2, -1)?.matmul(&x.transpose(-2, -1)?)?.transpose(-2, -1)?,
            false => x.matmul(y)?,
        };
        product.sum_to_shape(&self.shape)
    }

    /// Returns the gradient of the factor, an input of the running node: [`product_like`](Self::product_like), or `None` if it was added
    /// to a sum in place.
    fn gradient(&self, to: (&Request, usize), [x, y]: [&Tensor; 2], label: Label) -> Result<Option<Tensor>> {
        match self.is_contiguous && self.shape.len() == 2 && x.rank() == 2 && y.rank() == 2 {
            true => summed_product(to, x, y, label),
            false => self.product_like(x, y).map(Some),
        }
    }
}

/// The tensor that a product is added to, without its elements, and the factors of both.
struct Sum {
    shape: Shape,
    is_wanted: bool,
    beta: Scalar,
    alpha: Scalar,
}

/// Returns a tensor times a factor of a sum.
fn times(tensor: Tensor, factor: Scalar) -> Result<Tensor> {
    if factor.to_f64() == 1.0 { Ok(tensor) } else { tensor.mul_scalar(factor) }
}

struct MatmulBackward {
    factors: [Side; 2],
    sum: Option<Sum>,
    label: Label,
}

impl MatmulBackward {
    /// Returns the gradient of a factor, if it is required.
    fn of_factor(&self, number: usize, gradient: &Tensor, request: &Request) -> Result<Option<Tensor>> {
        let input = number + usize::from(self.sum.is_some());
        let factor = &self.factors[number];
        if !factor.is_wanted || !request.is_asked(input) {
            return Ok(None);
        }
        let other = self.factors[1 - number].turned()?;
        let product = if number == 0 { [gradient, &other] } else { [&other, gradient] };
        match &self.sum {
            Some(sum) if sum.alpha.to_f64() != 1.0 => {
                times(factor.product_like(product[0], product[1])?, sum.alpha).map(Some)
            }
            _ => factor.gradient((request, input), product, self.label),
        }
    }
}

impl Backward for MatmulBackward {
    fn name(&self) -> &'static str {
        if self.sum.is_some() { "addmm" } else { "matmul" }
    }

    fn is_of_products(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.backward_for(gradients, &Request::default())
    }

    fn backward_for(&self, gradients: &[Option<Tensor>], request: &Request) -> Result<Gradients> {
        let mut results = Gradients::new();
        let Some(gradient) = &gradients[0] else {
            results.resize(2 + usize::from(self.sum.is_some()), None);
            return Ok(results);
        };
        if let Some(sum) = &self.sum {
            let is_wanted = sum.is_wanted && request.is_asked(0);
            let of_sum = || times(gradient.sum_to_shape(&sum.shape)?, sum.beta);
            results.push(is_wanted.then(of_sum).transpose()?);
        }
        // A gradient that was added to a sum remains there if something fails, so nothing comes after the last product.
        for number in 0..2 {
            results.push(self.of_factor(number, gradient, request)?);
        }
        Ok(results)
    }

    fn release(&self) {
        self.factors.iter().filter_map(|factor| factor.saved.as_ref()).for_each(Saved::release);
    }

    fn saved(&self) -> Vec<SavedPlace<'_>> {
        let names = if self.sum.is_some() { ["mat1", "mat2"] } else { ["self", "other"] };
        let places = names.into_iter().zip(&self.factors);
        places
            .filter_map(|(name, factor)| {
                Some(SavedPlace { name: name.to_owned(), saved: factor.saved.as_ref()? })
            })
            .collect()
    }
}

/// Returns the gradient `a · b` of an input of the running node, of rank 2, or `None` if it was added to a sum in place. It is
/// f32 if that is allowed for the input and a library computes it.
pub(super) fn summed_product(
    (request, input): (&Request, usize),
    a: &Tensor,
    b: &Tensor,
    label: Label,
) -> Result<Option<Tensor>> {
    if a.rank() != 2 || b.rank() != 2 || a.dtype() != b.dtype() {
        return a.matmul(b).map(Some);
    }
    let shape = [a.shape()[0], b.shape()[1]];
    let sum = request.sum_of(input).filter(|sum| {
        let is_apart = !sum.shares_storage_with(a) && !sum.shares_storage_with(b);
        sum.shape() == shape && is_apart && sum.elements() > 0
    });
    if sum.is_none() && !request.is_widened(input) {
        return a.matmul(b).map(Some);
    }
    let (product, [left, right]) = product(a, b)?;
    let stream = a.device().current_stream();
    let takes_wide = takes_wide(&stream, &product);
    let at = |result: &Tensor| [left.pointer(), right.pointer(), result.pointer()];
    let Some(sum) = sum else {
        if !takes_wide {
            return a.matmul(b).map(Some);
        }
        let result = Tensor::empty_on(&shape, DType::F32, &stream, label)?;
        execute(WideProduct(&product), at(&result), &stream, label)?;
        return Ok(Some(result));
    };
    let product = Matmul { beta: Factor::ONE, ..product };
    if sum.dtype() == a.dtype() {
        execute(Product(&product), at(sum), &stream, label)?;
    } else if sum.dtype() == DType::F32 && takes_wide {
        execute(WideProduct(&product), at(sum), &stream, label)?;
    } else {
        return a.matmul(b).map(Some);
    }
    sum.record_stream(&stream);
    sum.bump_version();
    Ok(None)
}

/// Returns the gradient of an input of the running node, the sum of a matrix's rows: f32 if that is allowed for the input.
pub(super) fn summed_rows(
    (request, input): (&Request, usize),
    rows: &Tensor,
    label: Label,
) -> Result<Tensor> {
    let dtype = if request.is_widened(input) { DType::F32 } else { rows.dtype() };
    let arguments = [rows.into(), Argument::Ints(&[0]), false.into(), Argument::DType(dtype)];
    Ok(built_in!("sum.dim_IntList")?.call(&arguments, None, label)?.swap_remove(0))
}

/// Describes the product `a · b` of two tensors of rank 2, and returns the tensors that it reads.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<(Matmul, [Tensor; 2])> {
    check(a, b)?;
    let ((a, left), (b, right)) = (matrix(a)?, matrix(b)?);
    let [m, k, n] = [a.shape()[0], a.shape()[1], b.shape()[1]].map(|extent| extent as u64);
    let product = Matmul { a: left, b: right, ..Matmul::contiguous(m, n, k, 1, a.dtype()) };
    product.check().map_err(|fault| Error::invalid(fault.to_string()))?;
    Ok((product, [a, b]))
}
