//! Forms of operators that write into given tensors: in place and `out=`.

use thalweg_ir::DType;
use thalweg_tensor::dispatch::{Value, find_operator, operators};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{random, tensor, values};

#[test]
fn every_form_in_place_gives_what_the_operator_gives() {
    let x = tensor(&[0.25, 0.5, 0.75, 0.125], &[4], DType::F32);
    let y = tensor(&[0.5, 0.125, 0.75, 0.25], &[4], DType::F32);
    let mut tried = 0;
    for operator in operators() {
        let schema = operator.schema();
        let only_tensors = schema.parameters.iter().all(|parameter| {
            parameter.default.is_some()
                || parameter.ty.to_string() == "Tensor"
                || parameter.ty.to_string() == "Scalar"
        });
        let own = operator.name().contains("::") || schema.is_mutable();
        // The elements of uninitialized and of drawn tensors are arbitrary.
        let is_anything =
            ["empty", "bernoulli", "rand"].iter().any(|prefix| operator.name().starts_with(prefix));
        if own
            || is_anything
            || !only_tensors
            || schema
                .parameters
                .first()
                .is_none_or(|first| first.name != "self" || first.ty.to_string() != "Tensor")
        {
            continue;
        }
        let name = match operator.name().split_once('.') {
            Some((base, overload)) => format!("{base}_.{overload}"),
            None => format!("{}_", operator.name()),
        };
        let Ok(in_place) = find_operator(&name) else { continue };
        let arguments = |x: &Tensor| -> Vec<Value> {
            (schema.parameters.iter().enumerate())
                .filter(|(_, parameter)| parameter.default.is_none())
                .map(|(place, parameter)| match parameter.ty.to_string().as_str() {
                    "Tensor" if place == 0 => Value::Tensor(x.clone()),
                    "Tensor" => Value::Tensor(y.clone()),
                    _ => Value::Float(0.5),
                })
                .collect()
        };
        let Ok(expected) = operator.call_boxed(&arguments(&x), None) else { continue };
        let Value::Tensor(expected) = &expected[0] else { continue };
        let target = x.add_scalar(0.0).unwrap();
        let result = in_place.call_boxed(&arguments(&target), None);
        if schema.returns[0].alias.is_some() {
            let found = result.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(matches!(&found[0], Value::Tensor(same) if same.is_same(&target)), "{name}");
            assert_eq!(target.shape(), expected.shape(), "{name}");
            continue;
        }
        if expected.shape() != x.shape() {
            assert!(result.unwrap_err().to_string().contains("doesn't match"), "{name}");
            continue;
        }
        if expected.dtype().is_complex() {
            assert!(result.unwrap_err().to_string().contains("can't be cast"), "{name}");
            continue;
        }
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = values(&expected.to_dtype(DType::F32).unwrap());
        assert_eq!(format!("{:?}", values(&target)), format!("{expected:?}"), "{name}");
        tried += 1;
    }
    println!("{tried} forms in place");
    assert!(tried > 80, "{tried} forms in place were tried");
}

#[test]
fn tensors_become_views_of_themselves() {
    let leaf = random(&[2, 1, 3], 1).requires_grad_().unwrap();
    let run = |name: &str, x: &Tensor, numbers: &[i64]| {
        let arguments: Vec<Value> = [Value::Tensor(x.clone())]
            .into_iter()
            .chain(numbers.iter().map(|&number| Value::Int(number)))
            .collect();
        find_operator(name).unwrap().call_boxed(&arguments, None)
    };
    let x = leaf.mul_scalar(2.0).unwrap();
    let before = x.narrow(2, 0, 1).unwrap();
    run("squeeze_.dim", &x, &[1]).unwrap();
    run("t_", &x, &[]).unwrap();
    run("unsqueeze_", &x, &[0]).unwrap();
    run("transpose_", &x, &[0, 2]).unwrap();
    assert_eq!(x.shape(), [2, 3, 1]);
    assert_eq!(values(&x), values(&leaf.mul_scalar(2.0).unwrap()));
    let weights = random(&[2, 3, 1], 5);
    let sum = x.mul(&weights).unwrap().sum(&[], false).unwrap();
    sum.add(&before.sum(&[], false).unwrap()).unwrap().backward().unwrap();
    let mut expected: Vec<f64> = values(&weights).iter().map(|weight| 2.0 * weight).collect();
    expected[0] += 2.0;
    expected[3] += 2.0;
    crate::support::assert_close(&values(&leaf.grad().unwrap()), &expected, 1e-15);
    let error = run("t_", &leaf.detach().reshape(&[6]).unwrap().requires_grad_().unwrap(), &[]).unwrap_err();
    assert!(error.to_string().contains("a leaf Variable that requires grad"), "{error}");
    // A view of another tensor becomes another one of its views.
    run("squeeze_.dim", &before, &[1]).unwrap();
    assert_eq!(before.shape(), [2, 1]);
    no_grad(|| run("squeeze_.dim", &leaf, &[1])).unwrap();
    assert_eq!(leaf.shape(), [2, 3]);
}

#[test]
fn writes_in_place_are_recorded_and_see_their_own_overlap() {
    let leaf = random(&[3], 1).requires_grad_().unwrap();
    let x = leaf.mul_scalar(2.0).unwrap();
    x.mul_(&random(&[3], 3)).unwrap();
    x.sum(&[], false).unwrap().backward().unwrap();
    let expected: Vec<f64> = values(&random(&[3], 3)).iter().map(|value| 2.0 * value).collect();
    assert_eq!(values(&leaf.grad().unwrap()), expected);
    assert!(leaf.add_scalar_(1.0).unwrap_err().to_string().contains("no_grad"));
    no_grad(|| leaf.add_scalar_(1.0)).unwrap();

    let memory = tensor(&[1.0, 2.0, 3.0, 4.0], &[4], DType::F32);
    let (head, tail) = (memory.narrow(0, 0, 3).unwrap(), memory.narrow(0, 1, 3).unwrap());
    tail.add_(&head).unwrap();
    assert_eq!(values(&memory), [1.0, 3.0, 5.0, 7.0], "the source is read before it is overwritten");
}

#[test]
fn results_that_do_not_fit_are_refused_in_pytorchs_words() {
    let x = tensor(&[1.0, 2.0], &[2], DType::F32);
    let error = x.add_(&random(&[3, 2], 2)).unwrap_err().to_string();
    assert!(error.contains("output with shape [2] doesn't match the broadcast shape [3, 2]"), "{error}");
    let integers = x.to_dtype(DType::I64).unwrap();
    let error = integers.add_scalar_(0.5).unwrap_err().to_string();
    assert!(error.contains("result type Float can't be cast to the desired output type Long"), "{error}");
    x.gt_scalar(1.0).unwrap().to_dtype(DType::F32).unwrap().mul_(&x).unwrap();

    let out = Tensor::zeros(&[2], DType::F64, x.device()).unwrap();
    let add = find_operator("add.Tensor").unwrap();
    add.call_out(&[(&x).into(), (&x).into()], std::slice::from_ref(&out)).unwrap();
    assert_eq!(values(&out), [2.0, 4.0]);
    let leaf = x.detach().requires_grad_().unwrap();
    let error = add.call_out(&[(&leaf).into(), (&x).into()], &[out]).unwrap_err().to_string();
    assert!(error.contains("don't support automatic differentiation"), "{error}");
}

/// Results of loops are the same for any strides of the given tensor, which they write without a copy.
#[test]
fn given_tensors_may_have_any_strides() {
    let (x, y) = (random(&[5, 3], 1), random(&[5, 3], 2));
    let expected = values(&x.add(&y).unwrap());
    let memory = tensor(&[0.0; 60], &[3, 20], DType::F64);
    let turned = memory.narrow(1, 1, 5).unwrap().transpose(0, 1).unwrap();
    let add = find_operator("add.Tensor").unwrap();
    add.call_out(&[(&x).into(), (&y).into()], std::slice::from_ref(&turned)).unwrap();
    assert_eq!(values(&turned), expected);
    let untouched = memory.narrow(1, 6, 14).unwrap();
    assert_eq!(values(&untouched), vec![0.0; 42]);
    // Half of the elements are read at another index than they are written.
    let wide = random(&[4, 4], 3);
    let expected = values(&wide.add(&wide.transpose(0, 1).unwrap()).unwrap());
    wide.add_(&wide.transpose(0, 1).unwrap()).unwrap();
    assert_eq!(values(&wide), expected);
}

#[test]
fn writes_through_data_have_a_version_of_their_own() {
    let leaf = random(&[3], 1).requires_grad_().unwrap();
    let y = leaf.mul_scalar(2.0).unwrap();
    let z = y.square().unwrap();
    let before = y.version();
    y.data().add_scalar_(1.0).unwrap();
    y.data().narrow(0, 0, 1).unwrap().fill_(0.0).unwrap();
    assert_eq!(y.version(), before);
    z.sum(&[], false).unwrap().backward().unwrap();
    let expected: Vec<f64> = values(&y).iter().map(|value| 4.0 * value).collect();
    assert_eq!(values(&leaf.grad().unwrap()), expected, "backward reads the elements as they are");

    let z = leaf.mul_scalar(2.0).unwrap().square().unwrap();
    let y = leaf.mul_scalar(2.0).unwrap();
    let w = y.square().unwrap();
    y.detach().add_scalar_(1.0).unwrap();
    assert_eq!(y.version(), 1);
    assert!(
        w.sum(&[], false)
            .unwrap()
            .backward()
            .unwrap_err()
            .to_string()
            .contains("modified by an inplace operation")
    );
    z.sum(&[], false).unwrap().backward().unwrap();
}

/// Results whose dtype is not that of the given tensor are rounded to their own dtype and then converted, as a copy of them is.
#[test]
fn results_of_other_dtypes_are_converted_as_they_are_written() {
    let numbers = [0.1, -2.5, f64::NAN, 3.0, -0.0, 1e30];
    let others = [0.1, 7.0, 1.0, -3.0, 0.0, 1e-30];
    let dtypes =
        [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool, DType::C64];
    let call = |name: &str, arguments: &[&Tensor]| {
        let arguments: Vec<Value> = arguments.iter().map(|&tensor| Value::Tensor(tensor.clone())).collect();
        find_operator(name).unwrap().call_boxed(&arguments, None)
    };
    let mut tried = 0;
    for (of, into) in dtypes.iter().flat_map(|&of| dtypes.map(|into| (of, into))) {
        let [x, y] = [&numbers, &others].map(|values| tensor(values, &[6], DType::F64).to_dtype(of).unwrap());
        for name in ["eq.Tensor", "logical_and", "add.Tensor", "div.Tensor", "lt.Tensor", "square"] {
            let operands: &[&Tensor] = if name == "square" { &[&x] } else { &[&x, &y] };
            let Ok(result) = call(name, operands) else { continue };
            let Value::Tensor(result) = &result[0] else { panic!("{name}") };
            let out = Tensor::zeros(&[6], into, x.device()).unwrap();
            let arguments: Vec<_> = operands.iter().map(|&operand| operand.into()).collect();
            let given = find_operator(name).unwrap().call_out(&arguments, std::slice::from_ref(&out));
            if result.dtype().category() > into.category() {
                assert!(
                    given.unwrap_err().to_string().contains("can't be cast"),
                    "{name} of {of} into {into}"
                );
                let is_zero = out.to_dtype(DType::Bool).unwrap().to_dtype(DType::F64).unwrap();
                assert_eq!(values(&is_zero), [0.0; 6], "{name} of {of} into {into} has written");
                continue;
            }
            given.unwrap();
            let shown = |tensor: &Tensor| {
                let real = if into.is_complex() { tensor.view_as_real().unwrap() } else { tensor.clone() };
                format!("{:?}", values(&real.to_dtype(DType::F64).unwrap()))
            };
            assert_eq!(shown(&out), shown(&result.to_dtype(into).unwrap()), "{name} of {of} into {into}");
            tried += 1;
        }
        for name in ["eq", "lt", "ge"] {
            let Ok(result) = call(&format!("{name}.Tensor"), &[&x, &y]) else { continue };
            let Value::Tensor(result) = &result[0] else { panic!("{name}") };
            let target = x.deep_clone().unwrap();
            call(&format!("{name}_.Tensor"), &[&target, &y]).unwrap();
            assert_eq!(target.dtype(), of);
            let truths = |tensor: &Tensor| {
                values(&tensor.to_dtype(DType::Bool).unwrap().to_dtype(DType::F64).unwrap())
            };
            assert_eq!(truths(&target), truths(result), "{name}_ of {of}");
        }
    }
    assert!(tried > 150, "{tried} results were converted");
}

/// Numbers are drawn before probabilities are read, and a result may be a part of other memory.
#[test]
fn what_is_read_later_is_not_written_over() {
    let x = Tensor::ones(&[64], DType::F32, &crate::support::device()).unwrap();
    let bernoulli = find_operator("bernoulli_.Tensor").unwrap();
    bernoulli.call(&[(&x).into(), (&x).into()], None, thalweg_runtime::Label::here("test")).unwrap();
    assert_eq!(values(&x), [1.0; 64]);

    let whole = tensor(&[0.0; 192], &[192], DType::F32);
    let part = whole.narrow(0, 64, 128).unwrap();
    let list =
        [Tensor::ones(&[64], DType::F32, whole.device()).unwrap(), tensor(&[2.0; 64], &[64], DType::F32)];
    let cat = find_operator("cat").unwrap();
    cat.call_out(&[list.as_slice().into(), 0.into()], std::slice::from_ref(&part)).unwrap();
    let expected: Vec<f64> = [0.0, 1.0, 2.0].into_iter().flat_map(|value| [value; 64]).collect();
    assert_eq!(values(&whole), expected);
}

/// Kernels that write over their first operand, and several operators over one memory, give the bits that they give apart.
#[test]
fn chains_over_one_memory_give_the_same_bits() {
    let y = tensor(&[0.5, 0.125, 0.75, 0.25, 2.0, 1.5], &[2, 3], DType::F32);
    let forms: [(&str, &str, Vec<Value>); 8] = [
        ("round.decimals", "round_.decimals", vec![Value::Int(1)]),
        ("round.decimals", "round_.decimals", vec![Value::Int(-1)]),
        ("renorm", "renorm_", vec![Value::Float(2.0), Value::Int(0), Value::Float(0.5)]),
        ("renorm", "renorm_", vec![Value::Float(1.0), Value::Int(1), Value::Float(0.1)]),
        ("nextafter", "nextafter_", vec![Value::Tensor(y.clone())]),
        ("igamma", "igamma_", vec![Value::Tensor(y.clone())]),
        ("igammac", "igammac_", vec![Value::Tensor(y.narrow(1, 0, 1).unwrap())]),
        ("nextafter", "nextafter_", vec![Value::Tensor(y.select(0, 0).unwrap().select(0, 0).unwrap())]),
    ];
    let numbers = [1.26, 0.05, 18.75, 2.25, 0.349, 7.0];
    for (name, in_place, rest) in forms {
        for is_transposed in [false, true] {
            let x = match is_transposed {
                false => tensor(&numbers, &[2, 3], DType::F32),
                true => tensor(&numbers, &[3, 2], DType::F32).transpose(0, 1).unwrap(),
            };
            let arguments: Vec<Value> = [Value::Tensor(x.clone())].into_iter().chain(rest.clone()).collect();
            let operator = find_operator(name).unwrap();
            let expected = operator.call_boxed(&arguments, None).unwrap();
            let Value::Tensor(expected) = &expected[0] else { panic!("{name}") };
            let out = Tensor::empty(&[2, 3], DType::F32, x.device()).unwrap();
            let given: Vec<_> = arguments.iter().map(Value::as_argument).collect();
            operator.call_out(&given, std::slice::from_ref(&out)).unwrap();
            assert_eq!(values(&out), values(expected), "{name} out=");
            find_operator(in_place).unwrap().call_boxed(&arguments, None).unwrap();
            assert_eq!(values(&x), values(expected), "{in_place}");
        }
    }
}
