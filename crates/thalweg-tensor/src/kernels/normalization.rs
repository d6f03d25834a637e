//! The gradient of layer normalization with weight and bias: one kernel for the input, one for both parameters.

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape};
use thalweg_ops::structured::LAYER_NORM_AFFINE;
use thalweg_runtime::{Error, Label, Result};

use super::loops::{self, LoopArguments, LoopCall};
use crate::autograd::{Backward, Gradients, Saved, is_grad_enabled, record};
use crate::dispatch::{Arguments, Call, Ints, built_in, internal};
use crate::operators::norm_backward::Normalized;
use crate::tensor::{Tensor, Tensors};

/// The place of the input among the results of a fork: behind mean and inverse deviation.
const FORK: usize = 3;

/// Normalizes the rows of a call. Weight and bias have the shape of a row, and are repeated over the rows.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensors[0];
    let arguments = LoopCall::of(&LAYER_NORM_AFFINE, call)?.arguments;
    let dimensions = arguments.sizes.as_slice();
    let rows = x.rank() - dimensions.len();
    let fits = !dimensions.is_empty()
        && dimensions.iter().copied().eq(rows..x.rank())
        && call.tensors[1..].iter().all(|parameter| parameter.shape() == &x.shape()[rows..]);
    if !fits {
        return Err(Error::invalid(format!(
            "dimensions {dimensions:?} must be the last ones, in their order, and weight and bias have their shape"
        )));
    }
    let [weight, bias] = [call.tensors[1], call.tensors[2]].map(|tensor| tensor.detach().expand(x.shape()));
    let (weight, bias) = (weight?, bias?);
    loops::run(&LoopCall::new(&LAYER_NORM_AFFINE, call, &[x, &weight, &bias], arguments.clone()), None)
}

/// Normalizes as [`backend`] does, and returns the input itself as a further result.
pub(crate) fn fork(call: &Call<'_>) -> Result<Tensors> {
    let mut results = backend(call)?;
    results.push(call.tensors[0].detach());
    Ok(results)
}

/// Runs it, and records a node that keeps input, weight and the statistics of the rows. A fork's gradient arrives behind theirs.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let [x, weight, bias] = [0, 1, 2].map(|input| call.tensors[input]);
    let node = LayerNormBackward {
        x: Saved::new(x)?,
        weight: Saved::new(weight)?,
        mean: Saved::new(&results[1])?,
        inverse_deviation: Saved::new(&results[2])?,
        dimensions: LoopCall::of(&LAYER_NORM_AFFINE, call)?.arguments.sizes,
        count: call.scalar(3),
        wanted: [x.requires_grad(), weight.requires_grad() || bias.requires_grad()],
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct LayerNormBackward {
    x: Saved,
    weight: Saved,
    mean: Saved,
    inverse_deviation: Saved,
    /// The dimensions that are normalized, the last ones.
    dimensions: Shape,
    count: Scalar,
    /// Whether the gradient of the input is wanted, and that of a parameter.
    wanted: [bool; 2],
    label: Label,
}

impl LayerNormBackward {
    fn input(&self, gradient: &Tensor, past: Option<&Tensor>) -> Result<Option<Tensor>> {
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[self.count]),
            sizes: self.dimensions.clone(),
            dtype: None,
        };
        let x = self.x.get()?;
        let weight = self.weight.get()?.expand(x.shape())?;
        let (mean, inverse_deviation) = (self.mean.get()?, self.inverse_deviation.get()?);
        let inputs = [&x, &weight, &mean, &inverse_deviation, gradient];
        let inputs: SmallVec<[&Tensor; 6]> = inputs.into_iter().chain(past).collect();
        let name = if past.is_some() { "layer_norm_backward_add" } else { "layer_norm_backward" };
        let operator = internal(name)?;
        Ok(operator.call_loop(&inputs, &arguments, None, self.label)?.into_iter().next())
    }

    /// Returns the gradients by operators that record theirs.
    fn recorded(&self, gradient: &Tensor, past: Option<&Tensor>) -> Result<Gradients> {
        let (x, weight) = (self.x.get()?, self.weight.get()?);
        let compute = x.dtype().compute();
        let rows = x.rank() - self.dimensions.len();
        let mut kept: Shape = x.shape().into();
        kept[rows..].fill(1);
        let [mean, inverse] = [&self.mean, &self.inverse_deviation].map(|saved| saved.get()?.reshape(&kept));
        let dims: Ints = self.dimensions.iter().map(|&dim| dim as i64).collect();
        let normalized = Normalized::new(&x.to_dtype(compute)?, &mean?, &inverse?, dims)?;
        let wide = gradient.to_dtype(compute)?;
        let outer: Ints = (0..rows as i64).collect();
        let over_rows = |tensor: Tensor| -> Result<Tensor> {
            let sum = if rows == 0 { tensor } else { tensor.sum(&outer, false)? };
            sum.to_dtype(weight.dtype())
        };
        let of_input = normalized.gradient(&wide.mul(&weight.to_dtype(compute)?)?)?.to_dtype(x.dtype())?;
        let of_input = match past {
            Some(past) => of_input.add(past)?,
            None => of_input,
        };
        let of_weight = over_rows(wide.mul(&normalized.values)?)?;
        Ok(Gradients::from_iter([Some(of_input), Some(of_weight), Some(over_rows(wide)?)]))
    }

    /// Returns the gradients of weight and bias, in the shape of a row.
    fn parameters(&self, gradient: &Tensor) -> Result<Tensors> {
        let x = self.x.get()?;
        let rows = x.rank() - self.dimensions.len();
        let arguments = LoopArguments { sizes: (0..rows).collect(), ..LoopArguments::default() };
        let spread = |statistic: &Saved| -> Result<Tensor> {
            let statistic = statistic.get()?;
            let mut shape: Shape = statistic.shape().into();
            shape.resize(x.rank(), 1);
            statistic.reshape(&shape)?.expand(x.shape())
        };
        let inputs = [&x, &spread(&self.mean)?, &spread(&self.inverse_deviation)?, gradient];
        built_in!("thalweg::layer_norm_parameters_backward")?.call_loop(&inputs, &arguments, None, self.label)
    }
}

impl Backward for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let mut results = Gradients::from_elem(None, 3);
        let past = gradients.get(FORK).and_then(Option::as_ref);
        let Some(gradient) = &gradients[0] else {
            results[0] = past.cloned();
            return Ok(results);
        };
        if is_grad_enabled() {
            return self.recorded(gradient, past);
        }
        if self.wanted[0] {
            results[0] = self.input(gradient, past)?;
        }
        if self.wanted[1] {
            for (result, sum) in results[1..].iter_mut().zip(self.parameters(gradient)?) {
                *result = Some(sum);
            }
        }
        Ok(results)
    }

    fn release(&self) {
        [&self.x, &self.weight, &self.mean, &self.inverse_deviation].into_iter().for_each(Saved::release);
    }
}
