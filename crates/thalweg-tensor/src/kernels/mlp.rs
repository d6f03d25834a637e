//! Two linear layers with GELU or the rectified linear unit between them as one operator: the library applies the activation, and
//! multiplies by its derivative, while it stores a product.
//!
//! The operator returns the result of the layers, the data that the library keeps for the activation's gradient (GELU's argument,
//! or a bit per element), and the result of the activation; the gradient reads the last two.

use thalweg_execute::execute;
use thalweg_execute::products::{ProductWith, takes_activation};
use thalweg_ir::DType;
use thalweg_kernels::matmul::Matmul;
use thalweg_runtime::{
    Activation, ActivationPass, Error, Label, MatmulActivation, MatmulEpilogue, Result, Stream, invalid,
    refuse, refuse_if,
};

use super::linear::transposed;
use super::matmul::{product, summed_product, summed_rows};
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns the contiguous product of two matrices, with an activation that reads or writes `kept` (rows, columns; or bytes of
/// bits).
fn multiplied(
    [a, b]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (function, pass, kept): (Activation, ActivationPass, &Tensor),
    stream: &Stream,
    label: Label,
) -> Result<Tensor> {
    let (product, [a, b]) = product(a, b)?;
    let result = Tensor::empty_on(&[product.m as usize, product.n as usize], a.dtype(), stream, label)?;
    let leading_dimension = match function {
        Activation::Gelu => product.n,
        Activation::Relu => 8 * kept.shape()[1] as u64,
    };
    let activation = MatmulActivation { function, pass, kept: kept.pointer(), leading_dimension };
    let epilogue = MatmulEpilogue { bias: bias.map(Tensor::pointer), activation: Some(activation) };
    let at = [a.pointer(), b.pointer(), result.pointer()];
    execute(ProductWith(&product), (at, epilogue), stream, label)?;
    Ok(result)
}

/// Checks the shapes of a call: (rows, in), (hidden, in), (out, hidden), and biases for both layers or for none.
fn check(
    tensors: [&Tensor; 3],
    biases: [Option<&Tensor>; 2],
    function: Activation,
    stream: &Stream,
) -> Result<()> {
    let shapes = tensors.map(Tensor::shape);
    let ([&[rows, inputs], &[hidden, own], &[outputs, middle]], true) =
        (shapes, tensors.iter().all(|tensor| tensor.dtype() == tensors[0].dtype()))
    else {
        refuse!("mlp: three matrices of one dtype, not {shapes:?}");
    };
    let fits = |bias: Option<&Tensor>, length: usize| {
        bias.is_none_or(|bias| bias.shape() == [length] && bias.dtype() == tensors[0].dtype())
    };
    let biases_fit =
        biases[0].is_some() == biases[1].is_some() && fits(biases[0], hidden) && fits(biases[1], outputs);
    refuse_if!(
        own != inputs || middle != hidden || !biases_fit,
        "mlp: (rows, in), (hidden, in) and (out, hidden), with biases (hidden) and (out) or without, not {shapes:?}"
    );
    let [m, n, k] = [rows, hidden, inputs].map(|extent| extent as u64);
    let product = Matmul::contiguous(m, n, k, 1, tensors[0].dtype());
    match takes_activation(stream, &product, function) && outputs > 0 && rows > 0 {
        true => Ok(()),
        false => {
            Err(invalid!("mlp: no library here takes the activation of this product; take the layers apart"))
        }
    }
}

/// Returns the activation of a call.
fn activation_of(call: &impl Arguments) -> Activation {
    if call.bool(5) { Activation::Relu } else { Activation::Gelu }
}

/// Computes the layers.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let tensors = [0, 1, 2].map(|place| call.tensor(place));
    let biases = [3, 4].map(|place| call.optional_tensor(place));
    let stream = call.device.current_stream();
    let function = activation_of(call);
    check(tensors, biases, function, &stream)?;
    let [input, first, second] = tensors.map(Tensor::detach);
    let [bias, last_bias] = biases.map(|bias| bias.map(|bias| bias.detach().contiguous()).transpose());
    let (bias, last_bias) = (bias?, last_bias?);
    let (rows, columns) = (input.shape()[0], first.shape()[0]);
    let (columns, dtype) = match function {
        Activation::Gelu => (columns, input.dtype()),
        Activation::Relu => (columns.next_multiple_of(function.row_multiple() as usize) / 8, DType::U8),
    };
    let kept = call.new_empty(&[rows, columns], dtype)?;
    let activation = (function, ActivationPass::Forward, &kept);
    let hidden = multiplied([&input, &transposed(&first)?], bias.as_ref(), activation, &stream, call.label)?;
    let arguments = [(&hidden).into(), (&second).into(), last_bias.as_ref().into()];
    let result = built_in!("thalweg::linear")?.call(&arguments, None, call.label)?.swap_remove(0);
    Ok([result, kept, hidden].into_iter().collect())
}

/// The gradient of [`forward`]: with the derivative of the activation in the product's epilogue, or, if it must be differentiable
/// itself, by operators.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1, 2, 3],
    outputs: &[1, 2],
    backward: |call| {
        let [input, first, second] = [call.saved(0)?, call.saved(1)?, call.saved(2)?];
        let gradient = call.gradient()?;
        if is_grad_enabled() {
            return by_operators(call, [&input, &first, &second], &gradient);
        }
        let stream = call.device().current_stream();
        let (kept, hidden) = (call.result(1)?, call.result(2)?);
        let of_argument = multiplied(
            [&gradient.contiguous()?, &second],
            None,
            (activation_of(call), ActivationPass::Backward, &kept),
            &stream,
            call.label(),
        )?;
        drop(kept);
        collected(call, [&input, &first, &hidden], &of_argument, &gradient)
    },
};

/// Returns the gradients of all tensors from those of the activation's argument and of the result.
fn collected(
    call: &GradientCall<'_>,
    [input, first, hidden]: [&Tensor; 3],
    of_argument: &Tensor,
    gradient: &Tensor,
) -> Result<Gradients> {
    call.each(|place| {
        Ok(Some(match place {
            0 => of_argument.matmul(first)?,
            1 => {
                return summed_product(
                    (call.request(), 1),
                    &of_argument.transpose(0, 1)?,
                    input,
                    call.label(),
                );
            }
            2 => {
                return summed_product((call.request(), 2), &gradient.transpose(0, 1)?, hidden, call.label());
            }
            3 => summed_rows((call.request(), 3), of_argument, call.label())?,
            _ => summed_rows((call.request(), 4), gradient, call.label())?,
        }))
    })
}

/// Computes the gradients by operators that have gradients themselves.
fn by_operators(
    call: &GradientCall<'_>,
    [input, first, second]: [&Tensor; 3],
    gradient: &Tensor,
) -> Result<Gradients> {
    let dtype = input.dtype();
    let mut x = input.matmul(&first.transpose(0, 1)?)?.to_dtype(dtype.compute())?;
    if call.tensor_count() > 3 {
        x = x.add(&call.saved(3)?.to_dtype(x.dtype())?)?;
    }
    let of_hidden = gradient.matmul(second)?.to_dtype(x.dtype())?;
    let (hidden, derivative) = match activation_of(call) {
        Activation::Gelu => gelu(&x)?,
        Activation::Relu => (x.relu()?, x.gt_scalar(0.0)?.to_dtype(x.dtype())?),
    };
    let of_argument = of_hidden.mul(&derivative)?.to_dtype(dtype)?;
    collected(call, [input, first, &hidden.to_dtype(dtype)?], &of_argument, gradient)
}

/// Returns GELU of a tensor, and its derivative.
fn gelu(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let factor = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let square = x.square()?;
    let tanh = x.mul(&square.mul_scalar(0.044_715)?.add_scalar(1.0)?)?.mul_scalar(factor)?.tanh()?;
    let slope = square.mul_scalar(3.0 * 0.044_715 * factor)?.add_scalar(factor)?;
    let falls = tanh.square()?.neg()?.add_scalar(1.0)?;
    let derivative = x.mul(&falls)?.mul(&slope)?.add(&tanh)?.add_scalar(1.0)?.mul_scalar(0.5)?;
    Ok((x.mul(&tanh.add_scalar(1.0)?)?.mul_scalar(0.5)?, derivative))
}
