//! Losses of an element and its target, of sizes that are reduced in parts, compared with formulas in f64; and their gradients.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::norms::call;
use crate::support::{assert_close, random, values};

/// A loss: the operator, the arguments after the reduction, the loss of an element and its derivatives with respect to input and
/// target.
struct Loss {
    operator: &'static str,
    tail: &'static [Value],
    loss: fn(f64, f64) -> f64,
    of_input: fn(f64, f64) -> f64,
    of_target: fn(f64, f64) -> f64,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

const LOSSES: &[Loss] = &[
    Loss {
        operator: "mse_loss",
        tail: &[],
        loss: |x, y| (x - y).powi(2),
        of_input: |x, y| 2.0 * (x - y),
        of_target: |x, y| 2.0 * (y - x),
    },
    Loss {
        operator: "l1_loss",
        tail: &[],
        loss: |x, y| (x - y).abs(),
        of_input: |x, y| if x == y { 0.0 } else { (x - y).signum() },
        of_target: |x, y| if x == y { 0.0 } else { (y - x).signum() },
    },
    Loss {
        operator: "smooth_l1_loss",
        tail: &[Value::Float(0.25)],
        loss: |x, y| if (x - y).abs() < 0.25 { (x - y).powi(2) * 2.0 } else { (x - y).abs() - 0.125 },
        of_input: |x, y| ((x - y) * 4.0).clamp(-1.0, 1.0),
        of_target: |x, y| ((y - x) * 4.0).clamp(-1.0, 1.0),
    },
    Loss {
        operator: "huber_loss",
        tail: &[Value::Float(0.25)],
        loss: |x, y| {
            if (x - y).abs() <= 0.25 { (x - y).powi(2) / 2.0 } else { 0.25 * ((x - y).abs() - 0.125) }
        },
        of_input: |x, y| (x - y).clamp(-0.25, 0.25),
        of_target: |x, y| (y - x).clamp(-0.25, 0.25),
    },
    Loss {
        operator: "binary_cross_entropy",
        tail: &[],
        loss: |x, y| -y * x.ln() - (1.0 - y) * (1.0 - x).ln(),
        of_input: |x, y| (x - y) / (x * (1.0 - x)),
        of_target: |x, _| (1.0 - x).ln() - x.ln(),
    },
    Loss {
        operator: "binary_cross_entropy_with_logits",
        tail: &[],
        loss: |x, y| (1.0 - y) * x - sigmoid(x).ln(),
        of_input: |x, y| sigmoid(x) - y,
        of_target: |x, _| -x,
    },
    Loss {
        operator: "kl_div",
        tail: &[],
        loss: |x, y| y * (y.ln() - x),
        of_input: |_, y| -y,
        of_target: |x, y| y.ln() + 1.0 - x,
    },
    Loss {
        operator: "kl_div",
        tail: &[Value::Bool(true)],
        loss: |x, y| y.exp() * (y - x),
        of_input: |_, y| -y.exp(),
        of_target: |x, y| y.exp() * (y - x + 1.0),
    },
    Loss {
        operator: "soft_margin_loss",
        tail: &[],
        loss: |x, y| (1.0 + (-x * y).exp()).ln(),
        of_input: |x, y| -y * sigmoid(-x * y),
        of_target: |x, y| -x * sigmoid(-x * y),
    },
];

impl Loss {
    fn call(&self, x: &Tensor, y: &Tensor, reduction: i64) -> Tensor {
        let operator = find_operator(self.operator).unwrap();
        let place = operator.schema().parameters.iter().position(|p| p.name == "reduction").unwrap();
        let mut list = vec![Value::Tensor(x.clone()), Value::Tensor(y.clone())];
        list.resize(place, Value::None);
        list.push(Value::Int(reduction));
        list.extend_from_slice(self.tail);
        call(self.operator, &list).remove(0)
    }
}

/// Returns the relative error of rounding to a dtype.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 4.5e-3,
        DType::F16 => 6e-4,
        DType::F32 => 3e-6,
        _ => 1e-11,
    }
}

/// Returns numbers in (0, 1), clear of the ends.
fn probabilities(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    let numbers = random(shape, seed).mul_scalar(0.45).unwrap().add_scalar(0.5).unwrap();
    numbers.to_dtype(dtype).unwrap()
}

#[test]
fn losses_and_their_gradients_agree_with_formulas_where_they_are_reduced_in_parts() {
    for dtype in [DType::F64, DType::F32, DType::Bf16, DType::F16] {
        // A row of targets is broadcast; complete parts, and a remainder.
        for (shape, targets) in
            [(&[300, 257][..], &[300, 257][..]), (&[300, 257], &[257]), (&[3, 5], &[3, 5]), (&[], &[])]
        {
            let (x, y) = (probabilities(shape, 1, dtype), probabilities(targets, 2, dtype));
            let (of_x, of_y) = (values(&x), values(&y));
            let pairs: Vec<(f64, f64)> =
                of_x.iter().enumerate().map(|(index, &x)| (x, of_y[index % of_y.len()])).collect();
            // A cross entropy takes no targets of another shape.
            let is_taken = |loss: &&Loss| shape == targets || !loss.operator.starts_with("binary");
            for loss in LOSSES.iter().filter(is_taken) {
                let exact: Vec<f64> = pairs.iter().map(|&(x, y)| (loss.loss)(x, y)).collect();
                assert_close(&values(&loss.call(&x, &y, 0)), &exact, bound(dtype));
                for reduction in [1, 2] {
                    let divisor = if reduction == 1 { exact.len() as f64 } else { 1.0 };
                    let leaves = [&x, &y].map(|x| x.detach().requires_grad_().unwrap());
                    let result = loss.call(&leaves[0], &leaves[1], reduction);
                    assert_eq!(result.dtype(), dtype);
                    let sum = exact.iter().sum::<f64>() / divisor;
                    // The sum is beyond the range of f16.
                    let sum = if dtype == DType::F16 && sum > 65_504.0 { f64::INFINITY } else { sum };
                    assert_close(&values(&result), &[sum], bound(dtype));
                    result.backward().unwrap();
                    let check = |found: &Tensor, exact: Vec<f64>| {
                        let scaled =
                            values(&found.grad().unwrap()).iter().map(|x| x * divisor).collect::<Vec<_>>();
                        // Quotients of 16 bits may be too small to have all their digits.
                        let bound = if dtype == DType::F16 { 0.02 } else { 2.0 * bound(dtype) };
                        assert_close(&scaled, &exact, bound);
                    };
                    check(&leaves[0], pairs.iter().map(|&(x, y)| (loss.of_input)(x, y)).collect());
                    let mut of_targets = vec![0.0; of_y.len()];
                    for (index, &(x, y)) in pairs.iter().enumerate() {
                        of_targets[index % of_y.len()] += (loss.of_target)(x, y);
                    }
                    check(&leaves[1], of_targets);
                }
            }
        }
    }
}

#[test]
fn cross_entropies_at_the_ends_of_probabilities_are_bounded() {
    let x = crate::support::tensor(&[0.0, 1.0, 0.0, 1.0], &[4], DType::F32).requires_grad_().unwrap();
    let y = crate::support::tensor(&[0.0, 1.0, 1.0, 0.0], &[4], DType::F32);
    let arguments = [Value::Tensor(x.clone()), Value::Tensor(y), Value::None, Value::Int(0)];
    let loss = call("binary_cross_entropy", &arguments).remove(0);
    assert_eq!(values(&loss), [0.0, 0.0, 100.0, 100.0]);
    loss.sum(&[], false).unwrap().backward().unwrap();
    assert!(values(&x.grad().unwrap()).iter().all(|x| x.is_finite()));
}
