//! Two linear layers with GELU between them as one operator: the library takes GELU, and multiplies by its derivative, while it stores a
//! product.
//!
//! The operator's results are that of the layers, the argument of GELU, and what GELU gives: the gradient reads the last two.

use thalweg_kernels::matmul::Matmul;
use thalweg_runtime::{Error, Gelu, GeluPass, Label, MatmulEpilogue, Result, Stream};

use super::linear::turned;
use super::matmul::{product, summed_product};
use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

/// Returns the product of two matrices, with GELU over `argument` (rows, columns), which is contiguous.
fn multiplied(
    [a, b]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (pass, argument): (GeluPass, &Tensor),
    stream: &Stream,
    label: Label,
) -> Result<Tensor> {
    let (product, [a, b]) = product(a, b)?;
    let result = Tensor::empty_on(argument.shape(), argument.dtype(), stream, label)?;
    let gelu = Gelu { pass, input: argument.pointer(), leading_dimension: product.n };
    let epilogue = MatmulEpilogue { bias: bias.map(Tensor::pointer), gelu: Some(gelu) };
    stream.matmul_with(&product, [a.pointer(), b.pointer(), result.pointer()], &epilogue, label)?;
    Ok(result)
}

/// Checks the shapes of a call: (rows, in), (hidden, in), (out, hidden), and biases for both layers or for none.
fn check(tensors: [&Tensor; 3], biases: [Option<&Tensor>; 2], stream: &Stream) -> Result<()> {
    let shapes = tensors.map(Tensor::shape);
    let ([&[rows, inputs], &[hidden, own], &[outputs, middle]], true) =
        (shapes, tensors.iter().all(|tensor| tensor.dtype() == tensors[0].dtype()))
    else {
        return Err(Error::invalid(format!("mlp: three matrices of one dtype, not {shapes:?}")));
    };
    let fits = |bias: Option<&Tensor>, length: usize| {
        bias.is_none_or(|bias| bias.shape() == [length] && bias.dtype() == tensors[0].dtype())
    };
    let biases_fit =
        biases[0].is_some() == biases[1].is_some() && fits(biases[0], hidden) && fits(biases[1], outputs);
    if own != inputs || middle != hidden || !biases_fit {
        return Err(Error::invalid(format!(
            "mlp: (rows, in), (hidden, in) and (out, hidden), with biases (hidden) and (out) or without, not {shapes:?}"
        )));
    }
    let [m, n, k] = [rows, hidden, inputs].map(|extent| extent as u64);
    match stream.takes_gelu(&Matmul::contiguous(m, n, k, 1, tensors[0].dtype())) && outputs > 0 && rows > 0 {
        true => Ok(()),
        false => {
            Err(Error::invalid("mlp: no library here takes GELU of this product; take the layers apart"))
        }
    }
}

/// Computes the layers.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let tensors = [0, 1, 2].map(|place| call.tensor(place));
    let biases = [3, 4].map(|place| call.optional_tensor(place));
    let stream = call.device.current_stream();
    check(tensors, biases, &stream)?;
    let [input, first, second] = tensors.map(Tensor::detach);
    let [bias, last_bias] = biases.map(|bias| bias.map(|bias| bias.detach().contiguous()).transpose());
    let (bias, last_bias) = (bias?, last_bias?);
    let shape = [input.shape()[0], first.shape()[0]];
    let argument = Tensor::empty_on(&shape, input.dtype(), &stream, call.label)?;
    let gelu = (GeluPass::Forward, &argument);
    let hidden = multiplied([&input, &turned(&first)?], bias.as_ref(), gelu, &stream, call.label)?;
    let arguments = [(&hidden).into(), (&second).into(), last_bias.as_ref().into()];
    let result = built_in!("thalweg::linear")?.call(&arguments, None, call.label)?.swap_remove(0);
    Ok([result, argument, hidden].into_iter().collect())
}

/// The gradient of [`forward`]: with the derivative of GELU in the product's epilogue, or, where it shall have a gradient itself, by operators.
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
        let (argument, hidden) = (call.result(1)?, call.result(2)?);
        let of_argument = multiplied(
            [&gradient.contiguous()?, &second],
            None,
            (GeluPass::Backward, &argument),
            &stream,
            call.label(),
        )?;
        drop(argument);
        collected(call, [&input, &first, &hidden], &of_argument, &gradient)
    },
};

/// Returns the gradients of all tensors from those of GELU's argument and of the result.
fn collected(
    call: &GradientCall<'_>,
    [input, first, hidden]: [&Tensor; 3],
    of_argument: &Tensor,
    gradient: &Tensor,
) -> Result<Gradients> {
    call.each(|place| {
        Ok(Some(match place {
            0 => of_argument.matmul(first)?,
            1 => return summed_product(1, &of_argument.transpose(0, 1)?, input, call.label()),
            2 => return summed_product(2, &gradient.transpose(0, 1)?, hidden, call.label()),
            3 => of_argument.sum(&[0], false)?,
            _ => gradient.sum(&[0], false)?,
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
    let factor = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let square = x.square()?;
    let tanh = x.mul(&square.mul_scalar(0.044_715)?.add_scalar(1.0)?)?.mul_scalar(factor)?.tanh()?;
    let slope = square.mul_scalar(3.0 * 0.044_715 * factor)?.add_scalar(factor)?;
    let falls = tanh.square()?.neg()?.add_scalar(1.0)?;
    let derivative = x.mul(&falls)?.mul(&slope)?.add(&tanh)?.add_scalar(1.0)?.mul_scalar(0.5)?;
    let hidden = x.mul(&tanh.add_scalar(1.0)?)?.mul_scalar(0.5)?.to_dtype(dtype)?;
    let of_hidden = gradient.matmul(second)?.to_dtype(x.dtype())?;
    let of_argument = of_hidden.mul(&derivative)?.to_dtype(dtype)?;
    collected(call, [input, first, &hidden], &of_argument, gradient)
}
