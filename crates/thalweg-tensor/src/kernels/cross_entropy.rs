//! The gradient of cross entropy: one pass over the scores, using the logarithm of each row's sum of exponentials, which the loss
//! also returns. Scores are the largest tensor of many networks: if nothing else holds them any more, the gradient overwrites
//! them.

use thalweg_ir::{Scalar, Shape};
use thalweg_ops::structured::CROSS_ENTROPY_BACKWARD;
use thalweg_runtime::Result;

use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::is_grad_enabled;
use crate::dispatch::Arguments;
use crate::loops::{LoopArguments, Points, run_into};
use crate::tensor::Tensor;

/// The gradient of the losses, and of the logarithms, with respect to the scores.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let is_plain = call.has_gradient(0) && !call.has_gradient(1);
            if is_plain && !is_grad_enabled() { by_kernel(call) } else { by_operators(call) }
        })
    },
};

/// The numbers of a call.
struct Numbers {
    classes: i64,
    ignored: i64,
    dimension: usize,
}

impl Numbers {
    fn of(call: &GradientCall<'_>) -> Self {
        let [classes, ignored] = [2, 3].map(|place| call.scalar(place).to_i64());
        Self { classes, ignored, dimension: call.ints(4)[0] as usize }
    }
}

fn by_kernel(call: &GradientCall<'_>) -> Result<Tensor> {
    let Numbers { classes, ignored, dimension } = Numbers::of(call);
    let room = call.reusable_memory(0);
    let [x, target] = [call.saved(0)?, call.saved(1)?];
    let result = match room {
        Some(room) => room,
        None => Tensor::empty_on(x.shape(), x.dtype(), &call.device().current_stream(), call.label())?,
    };
    let arguments = LoopArguments {
        scalars: [classes, ignored].map(Scalar::I64).into_iter().collect(),
        points: Points::Reduced([dimension].into_iter().collect()),
        ..LoopArguments::default()
    };
    let (log_sum, gradient) = (call.result(1)?, call.gradient()?);
    let tensors = [&x, &target, &log_sum, &gradient];
    run_into(&CROSS_ENTROPY_BACKWARD, &tensors, &arguments, std::slice::from_ref(&result), call.label())?;
    Ok(result)
}

/// Returns the gradient, computed by operators that record their own.
fn by_operators(call: &GradientCall<'_>) -> Result<Tensor> {
    let Numbers { classes, ignored, dimension } = Numbers::of(call);
    let [x, target] = [call.saved(0)?, call.saved(1)?];
    let (compute, device, at) = (x.dtype().compute(), call.device(), dimension as i64);
    let number = |value: Scalar, dtype| Tensor::full(&[], value, dtype, device);
    let [count, ignored] = [classes, ignored].map(|value| number(Scalar::I64(value), target.dtype()));
    let [zero, one, nan] = [0.0, 1.0, f64::NAN].map(|value| number(Scalar::F64(value), compute));
    let in_range = target.ge(&number(Scalar::I64(0), target.dtype())?)?.logical_and(&target.lt(&count?)?)?;
    let weight = target.eq(&ignored?)?.select_where(&zero?, &in_range.select_where(&one?, &nan?)?)?;
    let spread = |rows: &Tensor| rows.to_dtype(compute)?.unsqueeze(at);
    let mut extents = Shape::from_elem(1, x.rank());
    extents[dimension] = classes as usize;
    let places = Tensor::arange(extents[dimension], 0, 1, target.dtype(), device)?.reshape(&extents)?;
    let is_class = places.eq(&target.unsqueeze(at)?)?.to_dtype(compute)?;
    let part = x.to_dtype(compute)?.softmax(at)?;
    let gradient = call.gradient()?.to_dtype(compute)?.mul(&weight)?;
    let result = part.sub(&is_class)?.mul(&spread(&gradient)?)?;
    let result = match call.has_gradient(1) {
        true => result.add(&part.mul(&spread(&call.gradient_of(1)?)?)?)?,
        false => result,
    };
    result.to_dtype(x.dtype())
}
