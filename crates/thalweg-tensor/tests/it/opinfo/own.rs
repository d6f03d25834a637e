//! Functions of tensors over operators that none of OpInfo's samples reaches: parts of this library's functions, other overloads,
//! or operators without samples that have a gradient.

use thalweg_ir::DType;
use thalweg_nn::functional as F;
use thalweg_runtime::{Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::{DeviceGenerator, with_generator};

use crate::support::{device, random, tensor};

/// A function of tensors.
pub struct Function {
    /// The operator that the function tests.
    pub name: &'static str,
    /// The shapes of its leaves, which hold numbers in [−1, 1).
    shapes: &'static [&'static [usize]],
    /// Whether its gradient has a gradient.
    pub is_smooth: bool,
    /// Computes its results.
    pub outputs: fn(&[Tensor]) -> Result<Vec<Tensor>>,
}

impl Function {
    /// Returns its leaves.
    pub fn points(&self) -> Vec<Tensor> {
        self.shapes.iter().enumerate().map(|(place, shape)| random(shape, 11 + place as u64)).collect()
    }
}

fn call(name: &str, arguments: &[Argument<'_>]) -> Result<Vec<Tensor>> {
    let results = find_operator(name)?.call(arguments, Some(&device()), Label::here("own"))?;
    Ok(results.into_vec())
}

/// Runs a function that draws random numbers, with the same numbers each time.
fn seeded(draw: impl FnOnce(&DeviceGenerator) -> Result<Vec<Tensor>>) -> Result<Vec<Tensor>> {
    let generator = std::sync::Arc::new(DeviceGenerator::new(5, &device())?);
    with_generator(&generator, || draw(&generator))
}

fn attention(leaves: &[Tensor], options: F::AttentionOptions<'_>) -> Result<Vec<Tensor>> {
    Ok(vec![F::scaled_dot_product_attention(&leaves[0], &leaves[1], &leaves[2], options)?])
}

/// Queries, keys and values.
const ATTENTION: &[&[usize]] = &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 4]];

/// The functions.
pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "_adaptive_avg_pool3d",
        shapes: &[&[2, 5, 4, 3]],
        is_smooth: true,
        outputs: |leaves| call("_adaptive_avg_pool3d", &[(&leaves[0]).into(), Argument::Ints(&[2, 3, 2])]),
    },
    Function {
        name: "clamp_max",
        shapes: &[&[9]],
        is_smooth: true,
        outputs: |leaves| call("clamp_max", &[(&leaves[0].square()?).into(), Argument::Scalar(0.3.into())]),
    },
    Function {
        name: "div.Scalar_mode",
        shapes: &[&[9]],
        is_smooth: true,
        outputs: |leaves| {
            call(
                "div.Scalar_mode",
                &[(&leaves[0].square()?).into(), Argument::Scalar(0.7.into()), Argument::None],
            )
        },
    },
    Function {
        name: "fill.Tensor",
        shapes: &[&[2, 3], &[]],
        is_smooth: false,
        outputs: |leaves| call("fill.Tensor", &[(&leaves[0]).into(), (&leaves[1]).into()]),
    },
    Function {
        name: "floor_divide",
        shapes: &[&[7], &[7]],
        is_smooth: false,
        outputs: |leaves| call("floor_divide", &[(&leaves[0]).into(), (&leaves[1]).into()]),
    },
    Function {
        name: "floor_divide.Scalar",
        shapes: &[&[7]],
        is_smooth: false,
        outputs: |leaves| call("floor_divide.Scalar", &[(&leaves[0]).into(), Argument::Scalar(0.3.into())]),
    },
    Function {
        name: "igamma",
        shapes: &[&[6]],
        is_smooth: false,
        outputs: |leaves| {
            let order = random(&[6], 3).square()?.add_scalar(0.5)?;
            call("igamma", &[(&order).into(), (&leaves[0].square()?.add_scalar(0.2)?).into()])
        },
    },
    Function {
        name: "igammac",
        shapes: &[&[6]],
        is_smooth: false,
        outputs: |leaves| {
            let order = random(&[6], 3).square()?.add_scalar(0.5)?;
            call("igammac", &[(&order).into(), (&leaves[0].square()?.add_scalar(0.2)?).into()])
        },
    },
    Function {
        name: "rsub.Scalar",
        shapes: &[&[5]],
        is_smooth: true,
        outputs: |leaves| {
            let numbers = [2.5, 3.0].map(|number: f64| Argument::Scalar(number.into()));
            call("rsub.Scalar", &[(&leaves[0].square()?).into(), numbers[0], numbers[1]])
        },
    },
    Function {
        name: "thalweg::add_layer_norm",
        shapes: &[&[2, 5], &[2, 5], &[5], &[5]],
        is_smooth: true,
        outputs: |leaves| {
            Ok(F::add_layer_norm(&leaves[0], &leaves[1], &leaves[2], &leaves[3], 1e-5)?.to_vec())
        },
    },
    Function {
        name: "thalweg::layer_norm_fork",
        shapes: &[&[2, 5], &[5], &[5]],
        is_smooth: true,
        outputs: |leaves| Ok(F::layer_norm_fork(&leaves[0], &leaves[1], &leaves[2], 1e-5)?.to_vec()),
    },
    Function {
        name: "thalweg::scaled_softmax",
        shapes: ATTENTION,
        is_smooth: true,
        outputs: |leaves| attention(leaves, F::AttentionOptions::default()),
    },
    Function {
        name: "thalweg::causal_softmax",
        shapes: ATTENTION,
        is_smooth: true,
        outputs: |leaves| {
            attention(leaves, F::AttentionOptions { is_causal: true, ..F::AttentionOptions::default() })
        },
    },
    Function {
        name: "thalweg::masked_softmax",
        shapes: ATTENTION,
        is_smooth: true,
        outputs: |leaves| {
            let mask = random(&[2, 3, 3], 9);
            attention(
                leaves,
                F::AttentionOptions { attn_mask: Some(&mask), ..F::AttentionOptions::default() },
            )
        },
    },
    Function {
        name: "thalweg::lstm_step",
        shapes: &[&[2, 12], &[2, 12], &[2, 3]],
        is_smooth: true,
        outputs: |leaves| step("thalweg::lstm_step", leaves, 2),
    },
    Function {
        name: "thalweg::lstm_step",
        shapes: &[&[12], &[12], &[3]],
        is_smooth: true,
        outputs: |leaves| step("thalweg::lstm_step", leaves, 3),
    },
    Function {
        name: "thalweg::gru_step",
        shapes: &[&[2, 9], &[2, 9], &[2, 3]],
        is_smooth: true,
        outputs: |leaves| step("thalweg::gru_step", leaves, 1),
    },
    Function {
        name: "thalweg::gru_step",
        shapes: &[&[9], &[9], &[3]],
        is_smooth: true,
        outputs: |leaves| step("thalweg::gru_step", leaves, 2),
    },
    Function {
        name: "thalweg::dropout",
        shapes: &[&[4, 5]],
        is_smooth: true,
        outputs: |leaves| {
            seeded(|generator| Ok(vec![F::dropout(&leaves[0].square()?, 0.4, true, generator)?]))
        },
    },
    Function {
        name: "thalweg::cross_entropy",
        shapes: &[&[4, 5]],
        is_smooth: true,
        outputs: |leaves| Ok(vec![F::cross_entropy(&leaves[0], &classes())?]),
    },
    Function {
        name: "thalweg::cross_entropy_smoothed",
        shapes: &[&[4, 5]],
        is_smooth: true,
        outputs: |leaves| {
            let options = F::ClassLossOptions { label_smoothing: 0.1, ..F::ClassLossOptions::default() };
            Ok(vec![F::cross_entropy_with(&leaves[0], &classes(), options)?])
        },
    },
    Function {
        name: "normal.Tensor_Tensor",
        shapes: &[&[6], &[6]],
        is_smooth: false,
        outputs: |leaves| {
            seeded(|_| call("normal.Tensor_Tensor", &[(&leaves[0]).into(), (&leaves[1].square()?).into()]))
        },
    },
    Function {
        name: "normal.Tensor_float",
        shapes: &[&[6]],
        is_smooth: false,
        outputs: |leaves| seeded(|_| call("normal.Tensor_float", &[(&leaves[0]).into(), 0.5.into()])),
    },
    Function {
        name: "normal.float_Tensor",
        shapes: &[&[6]],
        is_smooth: false,
        outputs: |leaves| {
            seeded(|_| call("normal.float_Tensor", &[0.5.into(), (&leaves[0].square()?).into()]))
        },
    },
];

/// Returns the first results of a step of a recurrent network.
fn step(name: &str, leaves: &[Tensor], count: usize) -> Result<Vec<Tensor>> {
    let mut results = call(name, &[(&leaves[0]).into(), (&leaves[1]).into(), (&leaves[2]).into()])?;
    results.truncate(count);
    Ok(results)
}

fn classes() -> Tensor {
    tensor(&[1.0, 0.0, 4.0, 2.0], &[4], DType::I64)
}
