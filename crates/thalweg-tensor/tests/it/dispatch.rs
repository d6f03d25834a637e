//! The dispatcher: registration, stacks of kernels, keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::{DType, Scalar};
use thalweg_runtime::{Label, Result};
use thalweg_tensor::dispatch::{
    Argument, Arguments, Call, DispatchKey, DispatchKeySet, ExcludeKeyGuard, IncludeKeyGuard, KernelFunction,
    Operator, Value, define_operator, find_operator, register_fallback, trace,
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
    let operator = define_operator("test::doubled(Tensor self) -> Tensor").unwrap();
    assert!(define_operator("test::doubled(Tensor self) -> Tensor").is_err());
    let x = Tensor::ones(&[2], DType::F32, &device()).unwrap();
    let call = || operator.call(&[(&x).into()], None, Label::here("test::doubled"));
    assert!(call().unwrap_err().to_string().contains("no kernel is registered"));
    let registration = operator.register(backend_key(), Arc::new(doubled));
    assert_eq!(values(&call().unwrap()[0]), [2.0, 2.0]);
    drop(registration);
    assert!(call().is_err());
}

#[test]
fn the_newest_kernel_answers_and_can_redispatch() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let operator = define_operator("test::stacked(Tensor self) -> Tensor").unwrap();
    operator.register(backend_key(), Arc::new(doubled)).keep();
    let outer: KernelFunction = Arc::new(|call| {
        SEEN.fetch_add(1, Ordering::Relaxed);
        assert!(!call.keys.has(DispatchKey::Autograd));
        call.redispatch()
    });
    let registration = operator.register(DispatchKey::Autograd, outer);
    let x = Tensor::ones(&[1], DType::F32, &device()).unwrap();
    let leaf = x.detach().requires_grad_().unwrap();
    let call = |tensor: &Tensor| operator.call(&[tensor.into()], None, Label::here("test::stacked"));
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

/// A mode is a fallback of a key that a thread includes: it sees every call of any operator, including those that composites
/// make.
#[test]
fn a_fallback_sees_the_calls_of_all_operators() {
    thread_local! { static SEEN: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) }; }
    let log: KernelFunction = Arc::new(|call| {
        SEEN.with_borrow_mut(|seen| seen.push(call.operator.name()));
        call.redispatch()
    });
    let registration = register_fallback(DispatchKey::User1, log);
    let seen = || SEEN.take();
    let x = Tensor::ones(&[2, 2], DType::F32, &device()).unwrap();
    x.exp().unwrap();
    assert!(seen().is_empty(), "the thread includes no key");
    {
        let _mode = IncludeKeyGuard::new(DispatchKey::User1);
        let product = x.matmul(&x).unwrap();
        assert_eq!(seen(), ["matmul", "thalweg::matmul"]);
        assert_eq!(values(&product), [2.0; 4]);
        _ = seen();
        let fallthrough = find_operator("exp").unwrap().register_fallthrough(DispatchKey::User1);
        x.exp().unwrap();
        assert!(seen().is_empty(), "a fallthrough hides the fallback");
        drop(fallthrough);
        x.exp().unwrap();
        assert_eq!(seen(), ["exp"]);
        let _without = ExcludeKeyGuard::new(DispatchKey::User1);
        x.exp().unwrap();
        assert!(seen().is_empty(), "what a thread excludes it does not include");
    }
    drop(registration);
    let _mode = IncludeKeyGuard::new(DispatchKey::User1);
    x.exp().unwrap();
    assert!(seen().is_empty());
}

#[test]
fn a_trace_has_the_calls_of_a_function_and_runs_them_again() {
    let x = Tensor::ones(&[2], DType::F32, &device()).unwrap();
    let (result, recorded) = trace(|| x.add(&x)?.softmax(-1)?.sum(&[], false)).unwrap();
    assert_eq!(
        recorded.to_string(),
        "\
%1: float32[2] = add.Tensor(%0, %0, alpha=1)
%2: float32[2] = softmax.int(%1, -1, None)
%3: float32[] = sum.dim_IntList(%2, [], False, dtype=None)
"
    );
    assert_eq!(values(&result), [1.0]);
    x.exp().unwrap();
    assert_eq!(recorded.calls.len(), 3, "what is called later is not recorded");
    let three = Tensor::full(&[2], 3.0, DType::F32, &device()).unwrap();
    let again = recorded.calls[0].call_with(|_| three.clone()).unwrap();
    assert!(matches!(&again[..], [Value::Tensor(sum)] if values(sum) == [6.0, 6.0]));
    assert!(trace(|| x.add(&Tensor::ones(&[3], DType::F32, &device())?)).is_err());
    let ((), inner) = trace(|| Ok(())).unwrap();
    assert!(inner.calls.is_empty(), "a failed trace leaves nothing behind");
}

/// Returns an operator with a parameter of each kind, which returns its tensor.
fn picky() -> &'static Operator {
    let schema = "test::picky(Tensor self, int[2] size, Scalar alpha=1, *, float eps=1e-5, str mode='none', bool flag=False, int? \
                  dim=None, ScalarType? dtype=None) -> Tensor";
    static OPERATOR: std::sync::OnceLock<&'static Operator> = std::sync::OnceLock::new();
    OPERATOR.get_or_init(|| {
        let operator = define_operator(schema).unwrap();
        let kernel: KernelFunction = Arc::new(|call| {
            assert_eq!(call.ints(1).as_slice(), [3, 3], "one integer stands for a list of its length");
            assert_eq!(call.scalar(2), Scalar::I64(1));
            assert_eq!((call.float(3), call.str(4), call.bool(5)), (1e-5, "none", false));
            assert_eq!((call.optional_int(6), call.optional_dtype(7)), (None, None));
            Ok([call.tensor(0).clone()].into_iter().collect())
        });
        operator.register(backend_key(), kernel).keep();
        operator
    })
}

#[test]
fn missing_arguments_take_the_defaults_of_the_schema() {
    let x = Tensor::ones(&[2], DType::F32, &device()).unwrap();
    let result = picky().call(&[(&x).into(), 3.into()], None, Label::here("picky")).unwrap();
    assert!(result[0].shares_storage_with(&x));
    let values = [Value::Tensor(x.clone()), Value::Ints(vec![3, 3]), Value::Int(1), Value::Float(1e-5)];
    let boxed = picky().call_boxed(&values, None).unwrap();
    assert!(matches!(&boxed[..], [Value::Tensor(result)] if result.shares_storage_with(&x)));
}

#[test]
fn arguments_that_do_not_fit_the_schema_are_refused_by_name() {
    let x = Tensor::ones(&[2], DType::F32, &device()).unwrap();
    let refused = |arguments: &[Argument<'_>], text: &str| {
        let error = picky().call(arguments, None, Label::here("picky")).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(text), "{text}: {error}");
    };
    let (tensor, size) = (Argument::Tensor(&x), Argument::Int(3));
    refused(&[tensor], "`size` is missing");
    refused(&[size], "`self` cannot be int");
    refused(&[tensor, Argument::Str("3")], "`size` cannot be str");
    refused(&[tensor, size, Argument::None], "`alpha` cannot be None");
    refused(&[tensor, size, Argument::Int(1), Argument::Str("x")], "`eps` cannot be str");
    refused(&[tensor; 9], "9 arguments are too many");
}
