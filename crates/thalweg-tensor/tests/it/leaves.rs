//! The state after backward: gradients that leaves do not share, freed saved tensors, and, after a failure, the previous state.

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with};
use thalweg_tensor::dispatch::{Value, find_operator};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, random, values};

const RETAINED: BackwardOptions = BackwardOptions { retain_graph: true, create_graph: false };

fn leaf(numbers: &[f64]) -> Tensor {
    Tensor::from_slice(numbers, &[numbers.len()], &device()).unwrap().requires_grad_().unwrap()
}

fn halve(gradient: &Tensor) {
    no_grad(|| gradient.copy_(&gradient.mul_scalar(0.5)?)).unwrap();
}

#[test]
fn leaves_do_not_share_a_gradient() {
    let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    a.add(&b).unwrap().square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let (of_a, of_b) = (a.grad().unwrap(), b.grad().unwrap());
    assert!(!of_a.shares_storage_with(&of_b));
    halve(&of_a);
    assert_eq!((values(&of_a), values(&of_b)), (vec![4.0, 6.0], vec![8.0, 12.0]));
    // Through views as well.
    let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    let sum = a.reshape(&[1, 2]).unwrap().add(&b.reshape(&[1, 2]).unwrap()).unwrap();
    sum.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    halve(&a.grad().unwrap());
    assert_eq!(values(&b.grad().unwrap()), [8.0, 12.0]);
}

#[test]
fn a_leafs_gradient_is_not_the_one_that_was_given() {
    for view in [false, true] {
        let (x, given) = (leaf(&[1.0, 2.0]), leaf(&[5.0, 6.0]).detach());
        let y = if view { x.reshape(&[2, 1]).unwrap() } else { x.clone() };
        y.backward_with(&given.reshape(y.shape()).unwrap()).unwrap();
        halve(&given);
        assert_eq!(values(&x.grad().unwrap()), [5.0, 6.0]);
    }
}

#[test]
fn a_repeated_gradient_is_written_out() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let one = Tensor::ones(&[], DType::F64, &device()).unwrap();
    x.backward_with(&one.expand(&[3]).unwrap()).unwrap();
    halve(&x.grad().unwrap());
    assert_eq!(values(&x.grad().unwrap()), [0.5; 3]);
}

#[test]
fn a_gradient_that_nothing_else_holds_is_not_copied() {
    let device =
        Device::all_of(SimDriver::new(SimConfig::default()).unwrap(), Environment::get()).unwrap().remove(0);
    let x = Tensor::ones(&[1 << 18], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let loss = x.square().unwrap().sum(&[], false).unwrap();
    let allocations = || device.allocator().statistics().allocation.all.allocated;
    let before = allocations();
    loss.backward().unwrap();
    // The loss's gradient, of which the sum's is a view, and the square's, which the leaf takes without a copy.
    assert_eq!(allocations() - before, 2);
}

fn allocated(device: &Device) -> u64 {
    device.allocator().statistics().allocated_bytes.all.current
}

#[test]
fn out_of_memory_leaves_the_gradient_that_was_there() {
    let config = SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() };
    let device = Device::all_of(SimDriver::new(config).unwrap(), Environment::get()).unwrap().remove(0);
    let of = |value: f64| Tensor::full(&[1 << 20], value, DType::F32, &device).unwrap();
    let (x, given) = (of(0.0).requires_grad_().unwrap(), of(2.0));
    x.backward_with(&given).unwrap();
    let mut ballast = Vec::new();
    while let Ok(tensor) = Tensor::empty(&[1 << 18], DType::F32, &device) {
        ballast.push(tensor);
    }
    // A sum that is to have a gradient needs memory; one in place does not.
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let error = x.backward_options(Some(&given), options).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), vec![2.0; 1 << 20]);
    x.backward_with(&given).unwrap();
    drop(ballast);
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), vec![4.0; 1 << 20]);
    x.backward_with(&given).unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), vec![6.0; 1 << 20]);
}

#[test]
fn a_second_backward_asks_for_the_graph_to_be_retained() {
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    let loss = y.mul(&x).unwrap();
    loss.backward_options(None, RETAINED).unwrap();
    loss.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [54.0]);
    for target in [&loss, &y] {
        let error = target.backward().unwrap_err();
        let text = error.to_string();
        assert!(error.is_invalid_argument(), "{text}");
        assert!(
            text.contains("backward through the graph a second time") && text.contains("retain_graph"),
            "{text}"
        );
    }
    assert_eq!(values(&x.grad().unwrap()), [54.0], "a refused pass adds nothing");
    // Nodes that save nothing can run again, as in PyTorch.
    let shifted = x.add_scalar(1.0).unwrap();
    x.zero_grad();
    (0..2).for_each(|_| shifted.backward().unwrap());
    assert_eq!(values(&x.grad().unwrap()), [2.0]);
}

#[test]
fn gradients_free_the_graph_too() {
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    let one = Some(Tensor::ones(&[1], DType::F64, &device()).unwrap());
    let found = || gradients_with(from_ref(&y), from_ref(&one), from_ref(&x), RETAINED).unwrap();
    assert_eq!(values(found()[0].as_ref().unwrap()), [6.0]);
    assert_eq!(values(found()[0].as_ref().unwrap()), [6.0]);
    gradients(from_ref(&y), from_ref(&one), from_ref(&x)).unwrap();
    let error = gradients(from_ref(&y), &[one], from_ref(&x)).unwrap_err().to_string();
    assert!(error.contains("a second time"), "{error}");
}

#[test]
fn backward_gives_back_what_was_saved() {
    let device =
        Device::all_of(SimDriver::new(SimConfig::default()).unwrap(), Environment::get()).unwrap().remove(0);
    let x = Tensor::ones(&[512, 512], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let start = allocated(&device);
    let layers = |x: &Tensor| x.sin().unwrap().matmul(x).unwrap().silu().unwrap().log1p().unwrap();
    let loss = layers(&x).sum(&[], false).unwrap();
    assert!(allocated(&device) - start >= 3 << 20, "the graph holds three matrices");
    loss.backward().unwrap();
    assert!(allocated(&device) - start <= (1 << 20) + 4096, "the gradient, and the loss");
    assert!(x.grad().is_some() && loss.requires_grad());
}

#[test]
fn two_threads_that_run_backward_over_one_leaf_lose_nothing() {
    let x = random(&[64], 1).requires_grad_().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    x.mul_scalar(2.0).unwrap().sum(&[], false).unwrap().backward().unwrap();
                }
            });
        }
    });
    assert_eq!(values(&x.grad().unwrap()), vec![400.0; 64]);
}

#[test]
fn every_result_that_was_saved_has_its_version_checked() {
    let sorted = || {
        let x = leaf(&[3.0, 1.0, 2.0]);
        let results = x.sort(0, false).unwrap();
        (x, results)
    };
    let (x, [values_, indices]) = sorted();
    values_.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [6.0, 2.0, 4.0]);
    let (_x, [values_, written]) = sorted();
    written.copy_(&indices).unwrap();
    let error = values_.sum(&[], false).unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("inplace operation"), "{error}");
}

#[test]
fn saved_indices_are_given_back_by_backward() {
    let device = Device::from_name("sim").unwrap();
    let count = 1 << 20;
    let x = Tensor::zeros(&[4], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let indices = Tensor::zeros(&[count], DType::I64, &device).unwrap();
    let loss = x.gather(0, &indices).unwrap().sum(&[], false).unwrap();
    drop(indices);
    assert!(device.memory_allocated() >= 8 * count as u64, "the loss keeps them");
    loss.backward().unwrap();
    assert!(device.memory_allocated() < 1 << 20, "{} bytes are left", device.memory_allocated());
}

#[test]
fn a_leaf_that_is_a_view_is_not_written_through_views_of_it() {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[4], &device()).unwrap();
    let leaf = x.view((2, 2)).unwrap().requires_grad_().unwrap();
    let row = leaf.select(0, 1).unwrap();
    let writes = [
        row.mul_scalar_(2.0),
        row.fill_(0.0),
        leaf.assign(thalweg_tensor::i![0, 1], &Tensor::zeros(&[], DType::F64, &device()).unwrap()),
    ];
    for write in writes {
        let error = write.expect_err("the write was not refused");
        assert!(error.to_string().contains("a view of a leaf Variable that requires grad"), "{error}");
    }
    assert_eq!(values(&leaf), [1.0, 2.0, 3.0, 4.0]);
    no_grad(|| row.mul_scalar_(2.0)).unwrap();
    assert_eq!(values(&leaf), [1.0, 2.0, 6.0, 8.0]);
}

#[test]
fn a_tensor_is_not_its_own_gradient() {
    let x = leaf(&[1.0, 2.0]);
    let error = x.set_grad(Some(x.clone())).unwrap_err();
    assert!(error.is_invalid_argument() && error.location().is_some(), "{error}");
    assert!(x.grad().is_none());
    x.set_grad(Some(x.detach())).unwrap();
}

#[test]
fn one_of_several_views_is_not_written_while_it_is_recorded() {
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]).mul_scalar(1.0).unwrap().view((2, 2)).unwrap();
    let parts = [
        x.unbind(0).unwrap().swap_remove(1),
        x.split(1, 0).unwrap().swap_remove(1),
        x.chunk(2, 0).unwrap().swap_remove(1),
        x.split_with_sizes(&[1, 1], 0).unwrap().swap_remove(1).select(0, 0).unwrap(),
    ];
    for (part, output) in parts.iter().zip([1, 1, 1, 0]) {
        let zeros = Tensor::zeros(&[], DType::F64, &device()).unwrap();
        let in_place = find_operator("unsqueeze_").unwrap();
        let unsqueezed = in_place.call_boxed(&[Value::Tensor(part.clone()), Value::Int(0)], None).map(drop);
        for write in [part.mul_scalar_(2.0), part.copy_(&zeros), unsqueezed] {
            let error = write.expect_err("the write was not refused").to_string();
            let refusal = "is a view and is being modified inplace. This view is the output of a function that returns multiple views.";
            assert!(error.contains(&format!("Output {output} of ")) && error.contains(refusal), "{error}");
        }
    }
    // What nothing records may be written; parts by `tensor_split` are independent views.
    no_grad(|| parts[0].mul_scalar_(10.0)).unwrap();
    x.tensor_split(2, 0).unwrap()[0].mul_scalar_(2.0).unwrap();
    assert_eq!(values(&x), [2.0, 4.0, 30.0, 40.0]);
    let plain = x.detach().mul_scalar(1.0).unwrap();
    plain.unbind(0).unwrap()[0].fill_(0.0).unwrap();
    assert_eq!(values(&plain), [0.0, 0.0, 30.0, 40.0]);
}

#[test]
fn a_gradient_does_not_depend_on_an_input_that_is_no_factor_of_it() {
    let (x, y) = (leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0]));
    let created = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    for (operate, of_y) in [
        (Tensor::mul as fn(&Tensor, &Tensor) -> thalweg_runtime::Result<Tensor>, [1.0, 1.0]),
        (Tensor::div, [-1.0 / 25.0, -1.0 / 49.0]),
    ] {
        let sum = operate(&x, &y).unwrap().sum(&[], false).unwrap();
        let first =
            gradients_with(from_ref(&sum), &[None], from_ref(&x), created).unwrap().remove(0).unwrap();
        let sum = first.sum(&[], false).unwrap();
        let found = gradients(from_ref(&sum), &[None], &[x.clone(), y.clone()]).unwrap();
        assert!(found[0].is_none(), "{:?}", found[0]);
        crate::support::assert_close(&values(found[1].as_ref().unwrap()), &of_y, 1e-12);
    }
}
