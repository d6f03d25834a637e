//! Compiled passes that move work so that loops meet: which kernels result, and that no bit and no hook notices.

use std::sync::Arc;

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_runtime::{CaptureOptions, Graph, Result};
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::compile::{Counters, compiled, counters, set_recomputed_bytes};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{self, device, on_own_device, values};

fn random(shape: &[usize], seed: u64) -> Tensor {
    support::random(shape, seed).to_dtype(DType::F32).unwrap()
}

fn leaf(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).requires_grad_().unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor).into_iter().map(f64::to_bits).collect()
}

/// Runs a function of leaves and its backward pass, eagerly and compiled, and compares the bits of all gradients. Returns the
/// counters of the compiled backward pass.
fn passed(leaves: &[Tensor], function: impl Fn(&[Tensor]) -> Result<Tensor>) -> Counters {
    let gradients = |loss: &dyn Fn() -> Result<Tensor>| {
        let loss = loss().unwrap();
        let before = counters();
        loss.backward().unwrap();
        let after = counters();
        let found: Vec<_> =
            leaves.iter().map(|leaf| bits(&leaf.grad().expect("every leaf is used"))).collect();
        leaves.iter().for_each(|leaf| leaf.set_grad(None).unwrap());
        let difference = Counters {
            loops: after.loops - before.loops,
            kernels: after.kernels - before.kernels,
            repeated: after.repeated - before.repeated,
            ..Counters::default()
        };
        (found, difference)
    };
    let (expected, _) = gradients(&|| function(leaves));
    let (found, counted) = gradients(&|| compiled(|| function(leaves)));
    assert!(found == expected, "the gradients differ");
    counted
}

#[test]
fn a_gate_and_what_it_gates_get_their_gradients_by_one_kernel() {
    on_own_device(|| {
        set_recomputed_bytes(Some(0));
        let leaves = [leaf(&[16, 24], 1), leaf(&[24, 40], 2), leaf(&[24, 40], 3), leaf(&[40, 24], 4)];
        let gated = |x: &[Tensor]| {
            let hidden = x[0].matmul(&x[1])?.silu()?.mul(&x[0].matmul(&x[2])?)?;
            hidden.matmul(&x[3])?.sum(&[], false)
        };
        let counted = passed(&leaves, gated);
        // The gradient of the sum at all points, for each product; and the gated rows again, with both gradients.
        assert_eq!((counted.kernels, counted.repeated), (3, 1), "{counted:?}");
        set_recomputed_bytes(None);
    });
}

#[test]
fn a_norm_is_computed_again_with_its_gradient() {
    on_own_device(|| {
        let leaves =
            [leaf(&[32, 64], 5), leaf(&[64], 6), leaf(&[64], 7), leaf(&[64, 24], 8), leaf(&[64, 24], 9)];
        let projected = |x: &[Tensor]| {
            let y = x[0].mul_scalar(2.0)?.layer_norm(&[64], Some(&x[1]), Some(&x[2]), 1e-5)?;
            y.matmul(&x[3])?.mul(&y.matmul(&x[4])?)?.sum(&[], false)
        };
        let mut kernels = [u64::MAX, 0].map(|recomputed| {
            set_recomputed_bytes(Some(recomputed));
            passed(&leaves, projected).kernels
        });
        set_recomputed_bytes(None);
        kernels.reverse();
        assert!(kernels[0] <= kernels[1], "computing it again takes no kernel of its own: {kernels:?}");
    });
}

#[test]
fn leaves_with_several_gradients_sum_them_in_the_eager_order() {
    on_own_device(|| {
        // A weight of three products, of which one also adds to another sum; numbers whose sum depends on the order.
        let leaves = [leaf(&[12, 20], 10), leaf(&[20, 20], 11), leaf(&[20], 12)];
        passed(&leaves, |x| {
            let first = x[0].matmul(&x[1])?.add(&x[2])?.tanh()?;
            let second = first.matmul(&x[1])?.mul(&first)?.sigmoid()?;
            let third = second.linear(&x[1], Some(&x[2]))?.mul_scalar(1e4)?;
            third.add(&first)?.mul(&x[0])?.sum(&[], false)
        });
    });
}

#[test]
fn hooks_see_what_they_see_without_compilation() {
    on_own_device(|| {
        let seen = |is_compiled: bool| {
            let leaves = [leaf(&[8, 12], 13), leaf(&[12, 12], 14), leaf(&[12, 12], 15)];
            let order = Arc::new(Mutex::new(Vec::new()));
            for (number, leaf) in leaves.iter().enumerate() {
                let order = order.clone();
                let _hook = leaf
                    .register_hook(move |gradient| {
                        order.lock().push((number, bits(gradient)));
                        Ok(None)
                    })
                    .unwrap();
            }
            let function = || {
                let gate = leaves[0].matmul(&leaves[1])?.silu()?;
                gate.mul(&leaves[0].matmul(&leaves[2])?)?.sum(&[], false)
            };
            let loss = if is_compiled { compiled(function) } else { function() };
            loss.unwrap().backward().unwrap();
            order.lock().clone()
        };
        assert!(seen(true) == seen(false));
    });
}

#[test]
fn a_graph_that_is_retained_can_be_run_again() {
    on_own_device(|| {
        let leaves = [leaf(&[8, 12], 16), leaf(&[12, 12], 17)];
        let loss =
            compiled(|| leaves[0].matmul(&leaves[1])?.gelu()?.matmul(&leaves[1].detach())?.sum(&[], false))
                .unwrap();
        let retained = thalweg_tensor::autograd::BackwardOptions { retain_graph: true, ..Default::default() };
        loss.backward_options(None, retained).unwrap();
        let first: Vec<_> = leaves.iter().map(|leaf| bits(&leaf.grad().unwrap())).collect();
        leaves.iter().for_each(|leaf| leaf.set_grad(None).unwrap());
        loss.backward().unwrap();
        let second: Vec<_> = leaves.iter().map(|leaf| bits(&leaf.grad().unwrap())).collect();
        assert!(first == second);
        assert!(loss.backward().is_err(), "what the graph saved is freed");
    });
}

#[test]
fn parts_that_are_turned_and_joined_are_one_kernel() {
    let x = random(&[4, 3, 50, 64], 18).to_dtype(DType::Bf16).unwrap().transpose(1, 2).unwrap();
    let (cosine, sine) = (random(&[3, 32], 19), random(&[3, 32], 20));
    let rotated = || {
        let [a, b] = <[Tensor; 2]>::try_from(x.to_dtype(DType::F32)?.chunk(2, -1)?).expect("two parts");
        let first = a.mul(&cosine)?.sub(&b.mul(&sine)?)?;
        let second = b.mul(&cosine)?.add(&a.mul(&sine)?)?;
        Tensor::cat(&[first, second], -1)?.to_dtype(DType::Bf16)
    };
    let expected = bits(&rotated().unwrap());
    let before = counters();
    let found = compiled(rotated).unwrap();
    let after = counters();
    assert!(bits(&found) == expected);
    assert_eq!((after.loops - before.loops, after.kernels - before.kernels), (10, 1));
}

#[test]
fn results_that_are_joined_are_written_into_their_parts() {
    on_own_device(|| {
        let (gate, up) = (random(&[64, 96], 22), random(&[64, 96], 23));
        let joined = || {
            let first = gate.silu()?.mul(&up)?;
            let second = gate.mul_scalar(0.5)?;
            let sum = first.sum(&[], false)?;
            Ok([Tensor::cat(&[first, second, up.clone()], 1)?, sum])
        };
        let expected = joined().unwrap().map(|tensor| bits(&tensor));
        set_recomputed_bytes(Some(0));
        let before = counters();
        let found = compiled(joined);
        let loops = counters().loops - before.loops;
        set_recomputed_bytes(None);
        assert!(found.unwrap().map(|tensor| bits(&tensor)) == expected);
        // Those of the results, and a copy for each part.
        assert_eq!(loops, 4 + 3);
    });
}

/// Returns the number of loops that remain of a function, which consists of casts.
fn loops_of(function: impl FnOnce() -> Result<()>) -> u64 {
    let before = counters().loops;
    compiled(|| autocast(DType::Bf16, function)).unwrap();
    counters().loops - before
}

#[test]
fn operators_in_a_row_share_the_cast_of_a_result() {
    on_own_device(|| {
        let (x, weights) = (leaf(&[8, 16], 21), [22, 23, 24].map(|seed| leaf(&[16, 16], seed)));
        let three = |y: &Tensor| weights.iter().map(|weight| y.matmul(weight)).collect::<Result<Vec<_>>>();
        // Three casts of weights, and one of the result.
        assert_eq!(loops_of(|| three(&x.mul_scalar(1.5)?).map(drop)), 1 + 3 + 1);
        // A write in between makes another cast necessary.
        let mut products = Vec::new();
        let written = loops_of(|| {
            let y = x.detach().mul_scalar(1.5)?;
            products.push(y.matmul(&weights[0])?);
            no_grad(|| y.add_scalar_(1.0))?;
            products.push(y.matmul(&weights[0])?);
            Ok(())
        });
        assert_eq!(written, 1 + 1 + 1 + 1 + 1);
        assert!(bits(&products[0]) != bits(&products[1]));
        // Gradients are widened one by one before they are added.
        let gradient = |is_shared: bool| {
            let loss = autocast(DType::Bf16, || {
                let y = x.mul_scalar(1.5)?;
                let sums = weights.iter().enumerate().map(|(number, weight)| {
                    let other = if is_shared {
                        y.clone()
                    } else {
                        y.view(&[8, 16])?.transpose(0, 1)?.transpose(0, 1)?
                    };
                    let other = if is_shared || number == 0 { other } else { other.add_scalar(0.0)? };
                    other.matmul(weight)?.to_dtype(DType::F32)?.sum(&[], false)
                });
                sums.reduce(|sum, part| sum?.add(&part?)).expect("there are weights")
            });
            loss.unwrap().backward().unwrap();
            let gradient = bits(&x.grad().unwrap());
            [&x].into_iter().chain(&weights).for_each(|leaf| leaf.set_grad(None).unwrap());
            gradient
        };
        assert!(gradient(true) == gradient(false));
    });
}

#[test]
fn a_capture_makes_its_own_cast() {
    on_own_device(|| {
        let device = device();
        let (x, weight) = (random(&[8, 16], 25), random(&[16, 16], 26).to_dtype(DType::Bf16).unwrap());
        let run = || autocast(DType::Bf16, || x.matmul(&weight));
        autocast(DType::Bf16, || {
            let before = x.matmul(&weight)?;
            let (graph, output) = Graph::capture(&device, CaptureOptions::default(), run)?;
            no_grad(|| x.mul_scalar_(3.0))?;
            graph.replay()?;
            assert!(bits(&output) == bits(&run()?));
            assert!(bits(&output) != bits(&before));
            Ok(())
        })
        .unwrap();
    });
}
