//! Calls every in-place and `out=` form of the built-in operators with nonsensical arguments: tensors of two devices, targets whose
//! elements share memory, targets that are views of the inputs. Each call returns results or an error, never a panic, and changes no
//! memory that was not passed to it.

use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment, Label};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::dispatch::{Argument, Operator, Value, find_operator, operators};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::hostile::{Chooser, Pools, rounds};

/// Calls of each form.
const CALLS: usize = 30;

/// The maximum number of elements of a target.
const MOST_ELEMENTS: usize = 1 << 20;

fn two_devices() -> Vec<Device> {
    let config = SimConfig { devices: 2, memory_bytes: 64 << 20, ..SimConfig::default() };
    Device::all_of(SimDriver::new(config).unwrap(), &Environment::default()).unwrap()
}

/// Returns a tensor on one device or, rarely, on the other; usually outside the graph, so that it may be written.
fn any(chooser: &mut Chooser, pools: &[Pools; 2]) -> Tensor {
    let pools = &pools[usize::from(chooser.one_of(12))];
    let tensor = chooser.tensor(&pools.tensors, &pools.typical);
    if chooser.one_of(6) { tensor.clone() } else { tensor.detach() }
}

/// Returns arguments of an operator. Every third time all tensors are one, so that an input shares memory with the target.
fn arguments(chooser: &mut Chooser, operator: &Operator, pools: &[Pools; 2]) -> Vec<Value> {
    let same = chooser.one_of(3).then(|| any(chooser, pools));
    let parameters = operator.schema().parameters.iter();
    parameters
        .map(|parameter| match chooser.value(parameter, &pools[0]) {
            Value::Tensor(_) => Value::Tensor(same.clone().unwrap_or_else(|| any(chooser, pools))),
            other => other,
        })
        .collect()
}

/// Returns a target for a result, and whether its elements share memory, so that it must be refused.
fn target(chooser: &mut Chooser, result: &Tensor, values: &[Value], pools: &[Pools; 2]) -> (Tensor, bool) {
    let empty = |device: &Device| Tensor::empty(result.shape(), result.dtype(), device).unwrap();
    let given = values.iter().find_map(|value| match value {
        Value::Tensor(tensor) => Some(tensor.detach()),
        _ => None,
    });
    match chooser.0.below(6).unwrap() {
        0 => (any(chooser, pools), false),
        1 => (empty(pools[1].tensors[0].device()), false),
        2 => {
            let one = Tensor::zeros(&[], result.dtype(), result.device()).unwrap();
            (one.expand(result.shape()).unwrap(), result.elements() > 1)
        }
        3 => (given.unwrap_or_else(|| empty(result.device())), false),
        _ => (empty(result.device()), false),
    }
}

/// Calls the `out=` form of an operator with targets of any kind. Returns whether they were written.
fn call_out(operator: &'static Operator, chooser: &mut Chooser, pools: &[Pools; 2]) -> bool {
    let values = arguments(chooser, operator, pools);
    let arguments: Vec<Argument<'_>> = values.iter().map(Value::as_argument).collect();
    let device = pools[0].tensors[0].device();
    let Ok(results) = no_grad(|| operator.call(&arguments, Some(device), Label::here("hostile"))) else {
        return false;
    };
    if results.iter().any(|result| result.elements() > MOST_ELEMENTS) {
        return false;
    }
    let targets: Vec<(Tensor, bool)> =
        results.iter().map(|result| target(chooser, result, &values, pools)).collect();
    let (targets, overlap): (Vec<Tensor>, Vec<bool>) = targets.into_iter().unzip();
    let written = no_grad(|| operator.call_out(&arguments, &targets)).is_ok();
    assert!(
        !(written && overlap.contains(&true)),
        "{} with {values:?} wrote several elements into one place",
        operator.name()
    );
    written
}

#[test]
fn every_form_in_place_and_out_survives_any_arguments() {
    let devices = two_devices();
    let witnesses: Vec<Tensor> =
        devices.iter().map(|device| Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], device).unwrap()).collect();
    let holds = |what: &dyn Fn() -> String| {
        for (device, witness) in devices.iter().zip(&witnesses) {
            if let Err(error) = device.synchronize() {
                assert!(error.is_out_of_range(), "{}: {error}", what());
            }
            let found = witness.to_vec::<f32>();
            let is_whole = found.as_ref().is_ok_and(|values| *values == [1.0, 2.0, 3.0]);
            assert!(is_whole, "{device} is lost after {}: {found:?}", what());
        }
    };
    let list: Vec<_> =
        operators().into_iter().filter(|operator| !operator.name().starts_with("test::")).collect();
    let (mut in_place, mut out) = (0, 0);
    for (round, operator) in rounds().flat_map(|round| list.iter().map(move |operator| (round, *operator))) {
        let seed = operator
            .name()
            .bytes()
            .fold(7 + round, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut chooser = Chooser(Generator::new(seed));
        let pools: [Pools; 2] = [0, 1].map(|place: usize| Pools::new(&devices[place]));
        let form = operator.in_place_schema().and_then(|schema| find_operator(&schema.name).ok());
        for _ in 0..CALLS {
            if let Some(form) = form {
                let values = arguments(&mut chooser, form, &pools);
                let result = match chooser.one_of(2) {
                    true => no_grad(|| form.call_boxed(&values, Some(&devices[0]))),
                    false => form.call_boxed(&values, Some(&devices[0])),
                };
                in_place += usize::from(result.is_ok());
                holds(&|| format!("{} with {values:?}", form.name()));
            }
            if !operator.schema().is_mutable() {
                out += usize::from(call_out(operator, &mut chooser, &pools));
                holds(&|| format!("out= of {}", operator.name()));
            }
        }
    }
    println!("{in_place} calls in place and {out} of out= gave results");
    assert!(in_place > 1000 && out > 1000, "too few gave results: {in_place} in place, {out} of out=");
    let x = Tensor::ones(&[2], DType::F32, &devices[0]).unwrap();
    let y = Tensor::ones(&[2], DType::F32, &devices[1]).unwrap();
    assert!(x.add_(&y).unwrap_err().to_string().contains("to_device"), "tensors of two devices are refused");
}
