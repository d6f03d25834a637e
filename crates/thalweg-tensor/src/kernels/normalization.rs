//! The gradient of layer normalization with weight and bias: one kernel for the input, one for both parameters.

use std::ops::Range;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{ADD_LAYER_NORM, LAYER_NORM_AFFINE};
use thalweg_runtime::{Error, Label, Result, refuse_if};

use super::normalized::{Normalized, kept_shape, over_rows, weighted};
use crate::autograd::{Backward, Gradients, Request, Saved, is_grad_enabled, record};
use crate::dispatch::{Call, Ints, built_in};
use crate::loops::{self, LoopArguments, LoopCall, Points};
use crate::tensor::{Tensor, Tensors};

/// The index of the input among the results of a fork: after mean and inverse deviation.
const FORK: usize = 3;

/// Normalizes the rows of a call. Weight and bias have the shape of a row, and are repeated over the rows.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    normalize(&LAYER_NORM_AFFINE, call)
}

/// Normalizes like [`backend`], and returns the input itself as a further result.
pub(crate) fn fork(call: &Call<'_>) -> Result<Tensors> {
    let mut results = backend(call)?;
    results.push(call.tensors[0].detach());
    Ok(results)
}

/// Normalizes the sum of an input and a branch, and returns the sum as a further result. ([`fork`] returns its input in that
/// place.)
pub(crate) fn add(call: &Call<'_>) -> Result<Tensors> {
    let [x, branch] = [call.tensors[0], call.tensors[1]];
    refuse_if!(
        x.shape() != branch.shape() || x.dtype().promote(branch.dtype()).ok() != Some(x.dtype()),
        "the branch must have the shape {:?}, and a dtype that can be added to {}; it is {:?} {}",
        x.shape(),
        x.dtype(),
        branch.shape(),
        branch.dtype()
    );
    normalize(&ADD_LAYER_NORM, call)
}

/// Runs an operator whose last two tensors are weight and bias.
fn normalize(operator: &'static LoopOp, call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensors[0];
    let (inputs, parameters) = call.tensors.split_at(call.tensors.len() - 2);
    let arguments = LoopCall::of(operator, call)?.arguments;
    let dimensions = arguments.points.reduced();
    let rows = x.rank() - dimensions.len();
    let fits = !dimensions.is_empty()
        && dimensions.iter().copied().eq(rows..x.rank())
        && parameters.iter().all(|parameter| parameter.shape() == &x.shape()[rows..]);
    refuse_if!(
        !fits,
        "dimensions {dimensions:?} must be the last ones, in their order, and weight and bias have their shape"
    );
    let spread =
        parameters.iter().map(|tensor| tensor.detach().expand(x.shape())).collect::<Result<Tensors>>()?;
    let tensors: SmallVec<[&Tensor; 4]> = inputs.iter().copied().chain(&spread).collect();
    loops::run(&LoopCall::new(operator, call, &tensors, arguments.clone()), None)
}

/// Runs the operator, and records a node that saves the normalized tensor's input, the weight and the statistics of the rows. A
/// fork's gradient arrives after those of the other results.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let (inputs, parameters) = call.tensors.split_at(call.tensors.len() - 2);
    let (operator, x) = match inputs {
        [x] => (&LAYER_NORM_AFFINE, Saved::new(x)?),
        _ => (&ADD_LAYER_NORM, Saved::result(&results[FORK], FORK)?),
    };
    let wants = |tensors: &[&Tensor]| tensors.iter().any(|tensor| tensor.requires_grad());
    let LoopArguments { scalars, points, .. } = LoopCall::of(operator, call)?.arguments;
    let node = LayerNormBackward {
        x,
        branch: inputs.get(1).map(|branch| branch.dtype()),
        weight: Saved::new(parameters[0])?,
        mean: Saved::new(&results[1])?,
        inverse_deviation: Saved::new(&results[2])?,
        dimensions: points.reduced().into(),
        count: scalars[0],
        wanted: [wants(inputs), wants(parameters)],
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct LayerNormBackward {
    /// The tensor that is normalized: the input, or the sum of it and a branch.
    x: Saved,
    /// The dtype of the branch, if `x` is the sum of an input and a branch.
    branch: Option<DType>,
    weight: Saved,
    mean: Saved,
    inverse_deviation: Saved,
    /// The dimensions that are normalized, the last ones.
    dimensions: Shape,
    count: Scalar,
    /// Whether the gradient of the input is required, and that of a parameter.
    wanted: [bool; 2],
    label: Label,
}

impl LayerNormBackward {
    /// Returns the gradient of `x`, followed by that of the branch if its dtype differs.
    fn inputs(&self, gradient: &Tensor, past: Option<&Tensor>) -> Result<Tensors> {
        let x = self.x.get()?;
        let branch = self.branch.filter(|&branch| branch != x.dtype());
        let (operator, dtype) = match (past, branch) {
            (None, _) => (built_in!("thalweg::layer_norm_backward"), None),
            (Some(_), None) => (built_in!("thalweg::layer_norm_backward_add"), None),
            (Some(_), Some(_)) => (built_in!("thalweg::add_layer_norm_backward"), branch),
        };
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[self.count]),
            points: Points::Reduced(self.dimensions.clone()),
            dtype,
        };
        let weight = self.weight.get()?.expand(x.shape())?;
        let (mean, inverse_deviation) = (self.mean.get()?, self.inverse_deviation.get()?);
        let inputs = [&x, &weight, &mean, &inverse_deviation, gradient];
        let inputs: SmallVec<[&Tensor; 6]> = inputs.into_iter().chain(past).collect();
        let mut results = operator?.call_loop(&inputs, &arguments, None, self.label)?;
        if let (1, Some(branch)) = (results.len(), branch) {
            results.push(results[0].to_dtype(branch)?);
        }
        Ok(results)
    }

    /// Returns whether the gradient of an input is requested by this pass, and that of a parameter.
    fn asked(&self, request: &Request) -> (bool, bool) {
        let inputs = 1 + usize::from(self.branch.is_some());
        let any = |mut range: Range<usize>| range.any(|input| request.is_asked(input));
        (any(0..inputs), any(inputs..inputs + 2))
    }

    /// Returns the gradients in the order of the node's inputs: `x` is the first input, or the sum of the first two.
    fn in_order(&self, inputs: &[Tensor], [weight, bias]: [Option<Tensor>; 2]) -> Gradients {
        let branch = self.branch.map(|_| inputs.get(1).or(inputs.first()).cloned());
        [inputs.first().cloned()].into_iter().chain(branch).chain([weight, bias]).collect()
    }

    /// Returns the gradients, computed by operators that record their own.
    fn recorded(&self, gradient: &Tensor, past: Option<&Tensor>) -> Result<Gradients> {
        let (x, weight) = (self.x.get()?, self.weight.get()?);
        let compute = x.dtype().compute();
        let rows = x.rank() - self.dimensions.len();
        let kept = kept_shape(x.shape(), rows);
        let [mean, inverse] = [&self.mean, &self.inverse_deviation].map(|saved| saved.get()?.reshape(&kept));
        let dims: Ints = self.dimensions.iter().map(|&dim| dim as i64).collect();
        let normalized = Normalized::new(&x.to_dtype(compute)?, &mean?, &inverse?, dims)?;
        let wide = gradient.to_dtype(compute)?;
        let over_rows = |tensor: &Tensor| over_rows(tensor, rows)?.to_dtype(weight.dtype());
        let of_input = normalized.gradient(&weighted(&wide, Some(&weight))?)?.to_dtype(x.dtype())?;
        let of_input = match past {
            Some(past) => of_input.add(past)?,
            None => of_input,
        };
        let of_weight = over_rows(&wide.mul(&normalized.values)?)?;
        let of_branch = of_input.to_dtype(self.branch.unwrap_or(x.dtype()))?;
        Ok(self.in_order(&[of_input, of_branch], [Some(of_weight), Some(over_rows(&wide)?)]))
    }

    /// Returns the gradients of weight and bias, in the shape of a row.
    fn parameters(&self, gradient: &Tensor) -> Result<Tensors> {
        let statistics = [self.mean.get()?, self.inverse_deviation.get()?];
        let rows = self.x.get()?.rank() - self.dimensions.len();
        parameter_gradients(&self.x.get()?, [&statistics[0], &statistics[1]], gradient, rows, self.label)
    }
}

/// Returns the gradients of weight and bias of a layer norm, in the shape of a row, from the input, the statistics of its rows,
/// which are its first `rows` dimensions, and the gradient of the result.
fn parameter_gradients(
    x: &Tensor,
    statistics: [&Tensor; 2],
    gradient: &Tensor,
    rows: usize,
    label: Label,
) -> Result<Tensors> {
    let arguments =
        LoopArguments { points: Points::Reduced((0..rows).collect()), ..LoopArguments::default() };
    let spread = |statistic: &Tensor| -> Result<Tensor> {
        statistic.reshape(&kept_shape(x.shape(), rows))?.expand(x.shape())
    };
    let [mean, inverse] = statistics.map(spread);
    let inputs = [x, &mean?, &inverse?, gradient];
    built_in!("thalweg::layer_norm_parameters_backward")?.call_loop(&inputs, &arguments, None, label)
}

/// Returns the gradients of a layer norm by the kernels that its node uses: of the input, and of weight and bias. Statistics have one
/// number per row; `rows` dimensions are rows. No gradients are recorded.
pub(crate) fn gradients(
    [x, gradient]: [&Tensor; 2],
    statistics: [&Tensor; 2],
    weight: Option<&Tensor>,
    rows: usize,
    [of_input, of_parameters]: [bool; 2],
    label: Label,
) -> Result<(Option<Tensor>, Option<Tensors>)> {
    let compute = x.dtype().compute();
    let [mean, inverse] =
        statistics.map(|statistic| statistic.reshape(&x.shape()[..rows])?.to_dtype(compute));
    let (mean, inverse) = (mean?, inverse?);
    let input = || -> Result<Tensor> {
        let weight = match weight {
            Some(weight) => weight.expand(x.shape())?,
            None => Tensor::ones(&[], x.dtype(), x.device())?.expand(x.shape())?,
        };
        let dimensions: Shape = (rows..x.rank()).collect();
        let count: usize = x.shape()[rows..].iter().product();
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[Scalar::I64(count as i64)]),
            points: Points::Reduced(dimensions),
            dtype: None,
        };
        let inputs = [x, &weight, &mean, &inverse, gradient];
        let mut results =
            built_in!("thalweg::layer_norm_backward")?.call_loop(&inputs, &arguments, None, label)?;
        Ok(results.remove(0))
    };
    let of_input = of_input.then(input).transpose()?;
    let parameters = || parameter_gradients(x, [&mean, &inverse], gradient, rows, label);
    Ok((of_input, of_parameters.then(parameters).transpose()?))
}

impl Backward for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.backward_for(gradients, &Request::default())
    }

    fn backward_for(&self, gradients: &[Option<Tensor>], request: &Request) -> Result<Gradients> {
        let past = gradients.get(FORK).and_then(Option::as_ref);
        let Some(gradient) = &gradients[0] else {
            let mut inputs: Tensors = past.cloned().into_iter().collect();
            if let (Some(past), Some(branch)) = (past, self.branch) {
                inputs.push(past.to_dtype(branch)?);
            }
            return Ok(self.in_order(&inputs, [None, None]));
        };
        if is_grad_enabled() {
            return self.recorded(gradient, past);
        }
        let (inputs_asked, parameters_asked) = self.asked(request);
        let inputs =
            if self.wanted[0] && inputs_asked { self.inputs(gradient, past)? } else { Tensors::new() };
        let mut parameters = [None, None];
        if self.wanted[1] && parameters_asked {
            for (result, sum) in parameters.iter_mut().zip(self.parameters(gradient)?) {
                *result = Some(sum);
            }
        }
        Ok(self.in_order(&inputs, parameters))
    }

    fn release(&self) {
        [&self.x, &self.weight, &self.mean, &self.inverse_deviation].into_iter().for_each(Saved::release);
    }
}
