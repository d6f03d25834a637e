//! Convolution as a product over the windows as columns. The columns are many times the images, so they are made again for the
//! gradient rather than kept.

use smallvec::SmallVec;
use thalweg_runtime::{Error, Label, Result};

use super::loops::LoopArguments;
use super::windows::{Window, output_plane};
use crate::autograd::{Backward, Gradients, Saved, is_asked, record};
use crate::dispatch::{Call, internal};
use crate::tensor::{Tensor, Tensors};

/// Returns a window operator or a product, called for a convolution.
fn run(name: &str, tensors: &[&Tensor], arguments: &LoopArguments, label: Label) -> Result<Tensor> {
    Ok(internal(name)?.call_loop(tensors, arguments, None, label)?.swap_remove(0))
}

fn product(a: &Tensor, b: &Tensor, label: Label) -> Result<Tensor> {
    run("matmul", &[a, b], &LoopArguments::default(), label)
}

/// Returns a weight (out, in, height, width) as a matrix with a row for each result.
fn matrix(weight: &Tensor) -> Result<Tensor> {
    weight.reshape(&[weight.shape()[0], weight.shape()[1..].iter().product()])
}

/// Images and weight; the result is a view whose images and channels are swapped in memory.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let window = Window::of_convolution(call)?;
    let [input, weight] = [0, 1].map(|place| call.tensors[place].detach());
    if input.dtype() != weight.dtype() {
        return Err(Error::invalid(format!(
            "the images are {}, the weight {}; convert one with `to_dtype`",
            input.dtype(),
            weight.dtype()
        )));
    }
    let columns = run("unfold2d", &[&input], &window.arguments(), call.label)?;
    let result = product(&matrix(&weight)?, &columns, call.label)?;
    let shape: SmallVec<[usize; 4]> = [weight.shape()[0]].into_iter().chain(output_plane(&window)).collect();
    Ok(SmallVec::from_elem(result.reshape(&shape)?.permute(&[1, 0, 2, 3])?.detach(), 1))
}

/// Runs it, and records a node that keeps images and weight.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let [input, weight] = [0, 1].map(|place| call.tensors[place]);
    let node = ConvolutionBackward {
        input: Saved::new(input)?,
        weight: Saved::new(weight)?,
        wanted: [input.requires_grad(), weight.requires_grad()],
        arguments: Window::of_convolution(call)?.arguments(),
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct ConvolutionBackward {
    input: Saved,
    weight: Saved,
    /// Whether the gradient of each is wanted.
    wanted: [bool; 2],
    arguments: LoopArguments,
    label: Label,
}

impl Backward for ConvolutionBackward {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let mut results = Gradients::from_elem(None, 2);
        let Some(gradient) = &gradients[0] else { return Ok(results) };
        let weight = self.weight.get()?;
        let gradient = gradient.permute(&[1, 0, 2, 3])?;
        let places = gradient.shape()[1..].iter().product();
        let gradient = gradient.reshape(&[gradient.shape()[0], places])?;
        if self.wanted[0] && is_asked(0) {
            let columns = product(&matrix(&weight)?.transpose(0, 1)?, &gradient, self.label)?;
            results[0] = Some(run("fold2d", &[&columns], &self.arguments, self.label)?);
        }
        if self.wanted[1] && is_asked(1) {
            let columns = run("unfold2d", &[&self.input.get()?], &self.arguments, self.label)?;
            let of_weight = product(&gradient, &columns.transpose(0, 1)?, self.label)?;
            results[1] = Some(of_weight.reshape(weight.shape())?);
        }
        Ok(results)
    }

    fn release(&self) {
        self.input.release();
        self.weight.release();
    }
}
