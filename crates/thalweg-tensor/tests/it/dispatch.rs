//! The dispatcher: registration, stacks of kernels, keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::DType;
use thalweg_runtime::{Label, Result};
use thalweg_tensor::dispatch::{
    Arguments, Call, DispatchKey, DispatchKeySet, ExcludeKeyGuard, KernelFunction, define_operator,
    find_operator,
};
use thalweg_tensor::{Tensor, Tensors};

use crate::support::{device, values};

fn doubled(call: &Call<'_>) -> Result<Tensors> {
    Ok([call.tensors[0].mul_scalar(2.0)?].into_iter().collect())
}

fn backend_key() -> DispatchKey {
    DispatchKey::of_device(&device())
}

#[test]
fn an_operator_of_ones_own_is_called_by_its_key() {
    let operator = define_operator("test::doubled").unwrap();
    assert!(define_operator("test::doubled").is_err());
    let x = Tensor::ones(&[2], DType::F32, &device()).unwrap();
    let call = || operator.call(&[&x], &Arguments::default(), None, Label::here("test::doubled"));
    assert!(call().unwrap_err().to_string().contains("no kernel is registered"));
    let registration = operator.register(backend_key(), Arc::new(doubled));
    assert_eq!(values(&call().unwrap()[0]), [2.0, 2.0]);
    drop(registration);
    assert!(call().is_err());
}

#[test]
fn the_newest_kernel_answers_and_can_redispatch() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let operator = define_operator("test::stacked").unwrap();
    operator.register(backend_key(), Arc::new(doubled)).keep();
    let outer: KernelFunction = Arc::new(|call| {
        SEEN.fetch_add(1, Ordering::Relaxed);
        assert!(!call.keys.has(DispatchKey::Autograd));
        call.redispatch()
    });
    let registration = operator.register(DispatchKey::Autograd, outer);
    let x = Tensor::ones(&[1], DType::F32, &device()).unwrap();
    let leaf = x.detach().requires_grad_().unwrap();
    let call =
        |tensor: &Tensor| operator.call(&[tensor], &Arguments::default(), None, Label::here("test::stacked"));
    assert_eq!(values(&call(&x).unwrap()[0]), [2.0]);
    assert_eq!(SEEN.load(Ordering::Relaxed), 0, "no gradient is wanted");
    assert_eq!(values(&call(&leaf).unwrap()[0]), [2.0]);
    assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    let guard = ExcludeKeyGuard::new(DispatchKey::Autograd);
    call(&leaf).unwrap();
    drop(guard);
    assert_eq!(SEEN.load(Ordering::Relaxed), 1, "the key was left out");
    drop(registration);
}

#[test]
fn built_in_operators_can_be_overridden_and_restored() {
    let operator = find_operator("floor").unwrap();
    let x = Tensor::full(&[1], 1.5, DType::F32, &device()).unwrap();
    let registration = operator.register(backend_key(), Arc::new(doubled));
    assert_eq!(values(&x.floor().unwrap()), [3.0]);
    drop(registration);
    assert_eq!(values(&x.floor().unwrap()), [1.0]);
}

#[test]
fn key_sets_add_and_take_away() {
    let set = DispatchKeySet::EMPTY.with(DispatchKey::Cuda).with(DispatchKey::Autograd);
    assert!(set.has(DispatchKey::Cuda) && set.has(DispatchKey::Autograd) && !set.has(DispatchKey::Sim));
    assert!(!set.without(DispatchKey::Autograd).has(DispatchKey::Autograd));
}
