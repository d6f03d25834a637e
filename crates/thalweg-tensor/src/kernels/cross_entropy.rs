//! The gradient of cross entropy: one pass over the scores, using the logarithm of each row's sum of exponentials, which the loss
//! also returns. Scores are the largest tensor of many networks: if nothing else holds them any more, the gradient overwrites
//! them.

use thalweg_ir::{Scalar, Shape};
use thalweg_ops::structured::{CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_SMOOTHED_BACKWARD};
use thalweg_runtime::Result;

use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::Arguments;
use crate::loops::{LoopArguments, Points, run_into};
use crate::tensor::Tensor;

/// The gradient of the losses, and of the logarithms, with respect to the scores.
pub(crate) static GRADIENT: Formula =
    Formula { inputs: &[0, 1], outputs: &[1], backward: |call| gradient(call, &Numbers::of(call, None, 4)) };

/// The gradient of losses against smoothed targets.
pub(crate) static SMOOTHED_GRADIENT: Formula =
    Formula { backward: |call| gradient(call, &Numbers::of(call, Some(4), 5)), ..GRADIENT };

fn gradient(call: &GradientCall<'_>, numbers: &Numbers) -> Result<Gradients> {
    call.one(0, || {
        let is_plain = call.has_gradient(0) && !call.has_gradient(1);
        if is_plain && !is_grad_enabled() { by_kernel(call, numbers) } else { by_operators(call, numbers) }
    })
}

/// The numbers of a call.
struct Numbers {
    classes: i64,
    ignored: i64,
    smoothing: Option<f64>,
    dimension: usize,
}

impl Numbers {
    /// Reads the numbers, of which the smoothing and the dimension are at these places.
    fn of(call: &GradientCall<'_>, smoothing: Option<usize>, dimension: usize) -> Self {
        let [classes, ignored] = [2, 3].map(|place| call.scalar(place).to_i64());
        let smoothing = smoothing.map(|place| call.scalar(place).to_f64());
        Self { classes, ignored, smoothing, dimension: call.ints(dimension)[0] as usize }
    }
}

fn by_kernel(call: &GradientCall<'_>, numbers: &Numbers) -> Result<Tensor> {
    let Numbers { classes, ignored, smoothing, dimension } = *numbers;
    let room = call.reusable_memory(0);
    let [x, target] = [call.saved(0)?, call.saved(1)?];
    let result = match room {
        Some(room) => room,
        None => Tensor::empty_on(x.shape(), x.dtype(), &call.device().current_stream(), call.label())?,
    };
    let arguments = LoopArguments {
        scalars: [classes, ignored].map(Scalar::I64).into_iter().chain(smoothing.map(Scalar::F64)).collect(),
        points: Points::Reduced([dimension].into_iter().collect()),
        ..LoopArguments::default()
    };
    let (log_sum, gradient) = (call.result(1)?, call.gradient()?);
    let tensors = [&x, &target, &log_sum, &gradient];
    let operator =
        if smoothing.is_some() { &CROSS_ENTROPY_SMOOTHED_BACKWARD } else { &CROSS_ENTROPY_BACKWARD };
    run_into(operator, &tensors, &arguments, std::slice::from_ref(&result), call.label())?;
    Ok(result)
}

/// Returns the gradient, computed by operators that record their own.
fn by_operators(call: &GradientCall<'_>, numbers: &Numbers) -> Result<Tensor> {
    let Numbers { classes, ignored, smoothing, dimension } = *numbers;
    let [x, target] = [call.saved(0)?, call.saved(1)?];
    let (compute, device, at) = (x.dtype().compute(), call.device(), dimension as i64);
    let number = |value: Scalar, dtype| Tensor::full(&[], value, dtype, device);
    let [count, ignored] = [classes, ignored].map(|value| number(Scalar::I64(value), target.dtype()));
    let [zero, one, nan] = [0.0, 1.0, f64::NAN].map(|value| number(Scalar::F64(value), compute));
    let in_range = target.ge(&number(Scalar::I64(0), target.dtype())?)?.logical_and(&target.lt(&count?)?)?;
    let is_ignored = target.eq(&ignored?)?;
    let spread = |rows: &Tensor| rows.to_dtype(compute)?.unsqueeze(at);
    let mut extents = Shape::from_elem(1, x.rank());
    extents[dimension] = classes as usize;
    let places = Tensor::arange(extents[dimension], 0, 1, target.dtype(), device)?.reshape(&extents)?;
    let smoothing = smoothing.unwrap_or(0.0);
    let is_class = places.eq(&target.unsqueeze(at)?)?.to_dtype(compute)?;
    let wanted = match smoothing {
        0.0 => is_class,
        _ => is_class.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / classes as f64)?,
    };
    let part = x.to_dtype(compute)?.softmax(at)?;
    // Without targets that count, the gradient of their mean is infinite.
    let gradient = call.gradient()?.to_dtype(compute)?.mul(&in_range.select_where(&one?, &nan?)?)?;
    let gradient = is_ignored.select_where(&zero?, &gradient)?;
    let result = part.sub(&wanted)?.mul(&spread(&gradient)?)?;
    let result = match call.has_gradient(1) {
        true => result.add(&part.mul(&spread(&call.gradient_of(1)?)?)?)?,
        false => result,
    };
    result.to_dtype(x.dtype())
}
