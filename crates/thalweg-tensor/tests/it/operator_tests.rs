//! The checks of `thalweg_tensor::testing` find errors in an operator.

use std::sync::Arc;

use thalweg_ir::{DType, OutputPlace};
use thalweg_ops::{DTypeRule, Examples, LoopOp, Space};
use thalweg_runtime::Result;
use thalweg_tensor::autograd::formula::{Formula, register_formula};
use thalweg_tensor::dispatch::{
    Call, DispatchKey, KernelFunction, Operator, Value, define_loop, define_operator,
};
use thalweg_tensor::testing::{check_entry, check_operator};
use thalweg_tensor::{Tensor, Tensors};

use crate::support::tensor;

/// x³, by a program's own entry.
static CUBE: LoopOp = LoopOp {
    name: "operator_tests_cube",
    aten: Some("test::checked_cube(Tensor self) -> Tensor"),
    rule: DTypeRule::Floating,
    space: Space::Elementwise,
    build: |b, signature| {
        let x = b.input(signature.inputs[0]).to(signature.compute);
        b.output(x * x * x, signature.outputs[0], OutputPlace::Row);
    },
    examples: Some(Examples { inputs: &[&[-1.5], &[0.25]], scalars: &[], reference: |x, _| x[0].powi(3) }),
    ..LoopOp::BASE
};

/// An entry whose reference is another function.
static WRONG: LoopOp = LoopOp {
    name: "operator_tests_wrong",
    aten: Some("test::checked_wrong(Tensor self) -> Tensor"),
    examples: Some(Examples { inputs: &[&[-1.5], &[0.25]], scalars: &[], reference: |x, _| x[0].powi(2) }),
    ..CUBE
};

#[test]
fn an_entry_of_a_program_is_an_operator_with_a_gradient() {
    let cube = define_loop(&CUBE).unwrap();
    check_entry(&CUBE).unwrap();
    assert!(cube.records_gradient());
    define_loop(&WRONG).unwrap();
    let error = check_entry(&WRONG).unwrap_err().to_string();
    assert!(error.contains("element 0 of result 0 is -3.375, the reference gives 2.25"), "{error}");
    let error = define_loop(&CUBE).unwrap_err().to_string();
    assert!(error.contains("is defined already"), "{error}");
    static EXP: LoopOp =
        LoopOp { name: "exp", aten: Some("test::checked_exp(Tensor self) -> Tensor"), ..CUBE };
    let error = define_loop(&EXP).unwrap_err().to_string();
    assert!(error.contains("a loop of the name exp exists already"), "{error}");
}

static DOUBLED: Formula =
    Formula { inputs: &[], outputs: &[], backward: |call| call.one(0, || call.gradient()?.mul_scalar(2.0)) };

/// Defines an operator whose gradient is 2, by a kernel for devices and another for the meta device.
fn doubling(
    name: &str,
    kernel: fn(&Tensor) -> Result<Tensor>,
    meta: fn(&Tensor) -> Result<Tensor>,
) -> &'static Operator {
    let operator = define_operator(&format!("test::checked_{name}(Tensor self) -> Tensor")).unwrap();
    let answer = |kernel: fn(&Tensor) -> Result<Tensor>| -> KernelFunction {
        Arc::new(move |call: &Call<'_>| Ok(Tensors::from_iter([kernel(call.tensors[0])?])))
    };
    for key in [DispatchKey::Cuda, DispatchKey::Sim] {
        operator.register(key, answer(kernel)).keep();
    }
    operator.register(DispatchKey::Meta, answer(meta)).keep();
    register_formula(operator, &DOUBLED).keep();
    operator
}

#[test]
fn what_is_wrong_with_an_operator_is_said() {
    let x = tensor(&[0.5, -1.0, 2.0, 0.25, 3.0, -4.0], &[2, 3], DType::F64).requires_grad_().unwrap();
    let samples = [vec![Value::Tensor(x)]];
    let check = |operator: &'static Operator| {
        let twice = |arguments: &[Value]| match &arguments[0] {
            Value::Tensor(x) => Ok(vec![x.mul_scalar(2.0)?]),
            _ => unreachable!("the sample is a tensor"),
        };
        check_operator(operator, &samples, twice).map_err(|error| error.to_string())
    };
    let twice = |x: &Tensor| x.mul_scalar(2.0)?.contiguous();
    assert_eq!(check(doubling("twice", twice, twice)), Ok(()));
    let refused = |operator, words: &str| {
        let error = check(operator).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    // The kernel reads memory as if it had no gaps.
    let flat = |x: &Tensor| x.as_strided(&[2, 3], &[3, 1], None)?.mul_scalar(2.0);
    refused(doubling("flat", flat, twice), "with gaps between elements, element 1 of result 0");
    let turned = |x: &Tensor| x.transpose(0, 1)?.mul_scalar(2.0)?.contiguous()?.transpose(0, 1);
    refused(
        doubling("turned", turned, twice),
        "float64 [2, 3] with strides [1, 2], on the meta device float64 [2, 3] with strides [3, 1]",
    );
    let also = |x: &Tensor| x.mul_scalar(2.0)?.add_scalar(0.0);
    let operator = doubling("slope", also, also);
    static TRIPLED: Formula = Formula {
        inputs: &[],
        outputs: &[],
        backward: |call| call.one(0, || call.gradient()?.mul_scalar(3.0)),
    };
    register_formula(operator, &TRIPLED).keep();
    refused(operator, "Jacobian mismatch for output 0 with respect to input 0");
}

#[test]
fn a_race_of_an_operator_is_found() {
    // The kernel works on another stream, for which nothing waits.
    let racing = |x: &Tensor| {
        let side = thalweg_runtime::Stream::new(x.device())?;
        let _current = side.make_current();
        x.mul_scalar(2.0)
    };
    let twice = |x: &Tensor| x.mul_scalar(2.0)?.contiguous();
    let operator = doubling("racing", racing, twice);
    let samples = [vec![Value::Tensor(tensor(&[1.0; 64], &[64], DType::F32))]];
    let run = || {
        check_operator(operator, &samples, |arguments| match &arguments[0] {
            Value::Tensor(x) => Ok(vec![x.mul_scalar(2.0)?]),
            _ => unreachable!("the sample is a tensor"),
        })
    };
    let error = run().unwrap_err().to_string();
    assert!(error.contains("test::checked_racing"), "{error}");
}
