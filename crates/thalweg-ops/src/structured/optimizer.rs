//! The steps of optimizers, in place.
//!
//! Whatever changes from step to step lies in device memory, so that a captured step counts on when it is replayed: the number of
//! steps, and of gradient scaling the scale and whether a gradient was not finite (1 or 0), in which case nothing changes.

use smallvec::SmallVec;
use thalweg_ir::foreach::ForeachKernel;
use thalweg_ir::{BodyBuilder, DType, Place, Value};

use crate::definition::{DTypeError, DTypeRule, LoopOp, Signature, Sizes, Space};

/// The number of steps, one further, unless a gradient was not finite.
pub static ADAM_TICK: LoopOp = LoopOp {
    name: "adam_tick",
    aten: None,
    doc: "The number of steps, one further unless a gradient was not finite.",
    input_count: 2,
    scalars: &[],
    sizes: Sizes::None,
    rule: DTypeRule::FloatingPoint,
    space: Space::Elementwise,
    outputs: &[Place::Row],
    build: |b, signature| {
        let [steps, found_inf] = [0, 1].map(|input| b.input(signature.inputs[input]));
        b.output(steps + (1.0 - found_inf), signature.outputs[0], Place::Row);
    },
    from_result: None,
    examples: None,
};

const fn adam(name: &'static str, doc: &'static str, build: fn(&BodyBuilder, &Signature)) -> LoopOp {
    LoopOp {
        name,
        aten: None,
        doc,
        input_count: 7,
        scalars: &["learning_rate", "beta1", "beta2", "epsilon", "weight_decay"],
        sizes: Sizes::None,
        rule: DTypeRule::FloatingPoint,
        space: Space::Elementwise,
        outputs: &[Place::Row, Place::Row, Place::Row],
        build,
        from_result: None,
        examples: None,
    }
}

/// One step of Adam in place: parameter, first and second moment. The bias corrections come from the step number in device
/// memory, in f64 as PyTorch's fused kernel has them.
/// <https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html>
pub static ADAM_STEP: LoopOp = adam(
    "adam_step",
    "One step of Adam in place: parameter, gradient, first and second moment, step number, gradient scale, whether to skip.",
    |b, signature| build(b, signature, false),
);

/// [`ADAM_STEP`] with the weight decay taken from the parameter instead of added to the gradient.
/// <https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html>
pub static ADAMW_STEP: LoopOp = adam(
    "adamw_step",
    "One step of AdamW in place: as adam_step, with the weight decay apart from the gradient.",
    |b, signature| build(b, signature, true),
);

fn build(b: &BodyBuilder, signature: &Signature, decoupled: bool) {
    let compute = signature.compute;
    let loaded = [0, 1, 2, 3].map(|input| b.input(signature.inputs[input]).to(compute));
    let [old_parameter, gradient, old_first, old_second] = loaded;
    let [step, scale, found_inf] = [4, 5, 6].map(|input| b.input(signature.inputs[input]));
    let step = step.to(DType::F64);
    let [learning_rate, beta1, beta2, epsilon, weight_decay] = [0; 5].map(|_| b.scalar(DType::F64));
    let [correction1, correction2] = [beta1, beta2].map(|beta| 1.0 - beta.pow(step));
    let step_size = (learning_rate / correction1).to(compute);
    let root_correction = correction2.sqrt().to(compute);
    // 1 − β is taken in f64: in f32 it would lose four digits of β₂'s.
    let [rest1, rest2] = [beta1, beta2].map(|beta| (1.0 - beta).to(compute));
    let decay = (learning_rate * weight_decay).to(compute);
    let [beta2, epsilon, weight_decay] = [beta2, epsilon, weight_decay].map(|value| value.to(compute));
    let gradient = gradient / scale.to(compute);
    let (parameter, gradient) = if decoupled {
        (old_parameter - decay * old_parameter, gradient)
    } else {
        (old_parameter, gradient + weight_decay * old_parameter)
    };
    let first = old_first + rest1 * (gradient - old_first);
    let second = beta2 * old_second + rest2 * gradient * gradient;
    let denominator = second.sqrt() / root_correction + epsilon;
    let parameter = parameter - step_size * first / denominator;
    let skip = found_inf.eq(0.0).logical_not();
    let results: [(Value<'_>, Value<'_>); 3] =
        [(old_parameter, parameter), (old_first, first), (old_second, second)];
    for (output, (old, new)) in results.into_iter().enumerate() {
        b.output(skip.select(old, new), signature.outputs[output], Place::Row);
    }
}

/// [`ADAM_STEP`] or [`ADAMW_STEP`] over a list of parameters and gradients of these dtypes: parameter, gradient and moments are
/// each tensor's own; step number, scale and whether to skip are shared.
pub fn adam_foreach(
    operator: &LoopOp,
    [parameter, gradient]: [DType; 2],
) -> Result<ForeachKernel, DTypeError> {
    let inputs = [parameter, gradient, parameter, parameter, DType::F32, DType::F32, DType::F32];
    let signature = operator.signature(&inputs, false, None)?;
    Ok(ForeachKernel {
        name: format!("{}_foreach_{parameter}_{gradient}", operator.name),
        body: operator.body(&signature),
        shared: SmallVec::from_slice(&[false, false, false, false, true, true, true]),
        targets: SmallVec::from_slice(&[0, 2, 3]),
    })
}
