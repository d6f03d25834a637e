//! Normalization by kernels, of rows by their mean square and of channels in every division into parts, compared with f64 and
//! with gradients by operators.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, GradcheckOptions, gradcheck, gradgradcheck, gradients_with};
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::{assert_close, random, values};

/// The shape of an input, whether its channels are last, and its groups: 0 means statistics of the batch.
type Case = (&'static [usize], bool, i64);

/// Rows in one part and in several, planes that are rows of their own and small ones, one instance and many.
const CASES: [Case; 13] = [
    (&[3, 4, 2, 3], false, 2),
    (&[3, 4, 2, 3], true, 2),
    (&[3, 4, 2, 3], false, 4),
    (&[3, 4, 2, 3], true, 0),
    (&[5, 6], false, 0),
    (&[5, 6], false, 3),
    (&[2, 3, 8, 12], false, 0),
    (&[1, 3, 8, 12], true, 0),
    (&[2, 2, 64, 96], false, 0),
    (&[2, 2, 64, 96], true, 0),
    (&[2, 4, 64, 48], true, 2),
    (&[1, 4, 64, 48], false, 1),
    (&[4096, 3], false, 0),
];

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

/// Returns a random tensor, in channels-last layout if requested.
fn input(shape: &[usize], is_last: bool, dtype: DType) -> Tensor {
    let x = random(shape, 3).mul_scalar(2.0).unwrap().add_scalar(1.0).unwrap().to_dtype(dtype).unwrap();
    if !is_last {
        return x;
    }
    x.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap()
}

fn normalize(groups: i64, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    let parameters = [of(weight), of(bias)];
    let arguments = match groups {
        0 => vec![Value::None, Value::None, Value::Bool(true), Value::Float(0.1), Value::Float(1e-5)],
        _ => vec![Value::Float(1e-5), Value::Bool(true)],
    };
    let (name, list) = match groups {
        0 => ("batch_norm", [&[of(x)], &parameters[..], &arguments, &[Value::Bool(true)]].concat()),
        _ => ("group_norm", [&[of(x), Value::Int(groups)], &parameters[..], &arguments].concat()),
    };
    call(name, &list).remove(0)
}

/// Normalization in f64, point by point.
fn expected(shape: &[usize], groups: i64, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let channels = shape[1];
    let plane: usize = shape[2..].iter().product();
    let key = |at: usize| {
        let (instance, channel) = (at / plane / channels, at / plane % channels);
        match groups as usize {
            0 => channel,
            groups => instance * groups + channel / (channels / groups),
        }
    };
    let mut sums = vec![[0.0; 3]; x.len()];
    x.iter().enumerate().for_each(|(at, x)| {
        sums[key(at)][0] += 1.0;
        sums[key(at)][1] += x;
    });
    x.iter().enumerate().for_each(|(at, x)| {
        let [count, sum, squares] = &mut sums[key(at)];
        *squares += (x - *sum / *count).powi(2);
    });
    let point = |(at, x): (usize, &f64)| {
        let [count, sum, squares] = sums[key(at)];
        let channel = at / plane % channels;
        (x - sum / count) / (squares / count + 1e-5).sqrt() * weight[channel] + bias[channel]
    };
    x.iter().enumerate().map(point).collect()
}

#[test]
fn channels_are_normalized_in_every_division_into_parts() {
    for ((shape, is_last, groups), dtype) in
        CASES.iter().flat_map(|case| [DType::F64, DType::F32, DType::Bf16].map(|dtype| (*case, dtype)))
    {
        let x = input(shape, is_last, dtype);
        let [weight, bias] = [4, 5].map(|seed| random(&[shape[1]], seed).to_dtype(dtype).unwrap());
        let found = normalize(groups, &x, &weight, &bias);
        assert_eq!((found.shape(), found.dtype()), (x.shape(), dtype));
        if is_last {
            assert_eq!(found.layout().strides(), x.layout().strides(), "it lies as the input does");
        }
        let list = expected(shape, groups, &values(&x), &values(&weight), &values(&bias));
        let tolerance = match dtype {
            DType::F64 => 1e-11,
            DType::F32 => 1e-5,
            _ => 8e-3,
        };
        assert_close(&values(&found), &list, tolerance);
    }
}

/// Returns the gradients of the inputs, by kernels or by operators that record theirs.
fn gradients(result: &Tensor, inputs: &[Tensor], create_graph: bool) -> Vec<Vec<f64>> {
    let options = BackwardOptions { retain_graph: true, create_graph };
    let gradient = random(result.shape(), 8).to_dtype(result.dtype()).unwrap();
    let found = gradients_with(std::slice::from_ref(result), &[Some(gradient)], inputs, options).unwrap();
    found.into_iter().map(|gradient| values(&gradient.unwrap())).collect()
}

#[test]
fn gradients_of_channels_by_kernels_are_those_by_operators() {
    for (shape, is_last, groups) in CASES {
        let mut inputs = vec![input(shape, is_last, DType::F64)];
        inputs.extend([4, 5].map(|seed| random(&[shape[1]], seed)));
        let inputs: Vec<Tensor> = inputs.iter().map(|input| input.requires_grad_().unwrap()).collect();
        let result = normalize(groups, &inputs[0], &inputs[1], &inputs[2]);
        let by_operators = gradients(&result, &inputs, true);
        for (found, expected) in gradients(&result, &inputs, false).iter().zip(&by_operators) {
            assert_close(found, expected, 1e-10);
        }
    }
}

const OPTIONS: GradcheckOptions = GradcheckOptions { eps: 1e-5, atol: 1e-6, rtol: 1e-4, nondet_tol: 0.0 };

#[test]
fn normalized_channels_are_differentiated_twice() {
    for (shape, is_last, groups) in CASES.into_iter().filter(|case| case.0.iter().product::<usize>() < 100) {
        let inputs = [input(shape, is_last, DType::F64), random(&[shape[1]], 4), random(&[shape[1]], 5)]
            .map(|input| input.requires_grad_().unwrap());
        let function = |inputs: &[Tensor]| {
            let y = normalize(groups, &inputs[0], &inputs[1], &inputs[2]);
            Ok(vec![y.mul(&y)?.mul(&y)?])
        };
        gradcheck(function, &inputs, OPTIONS).unwrap();
        gradgradcheck(function, &inputs, None, OPTIONS).unwrap();
    }
}

#[test]
fn statistics_of_channels_have_gradients_too() {
    let x = random(&[3, 2, 4], 1).requires_grad_().unwrap();
    let statistics = |inputs: &[Tensor]| {
        let flags = [Value::Bool(true), Value::Float(0.1), Value::Float(1e-5)];
        let list = [of(&inputs[0]), Value::None, Value::None, Value::None, Value::None];
        let results = call("native_batch_norm", &[list.as_slice(), &flags].concat());
        Ok(vec![results[0].mul(&results[0])?.sum(&[0, 2], false)?.add(&results[1])?, results[2].clone()])
    };
    gradcheck(statistics, std::slice::from_ref(&x), OPTIONS).unwrap();
}

#[test]
fn rows_over_the_root_of_their_mean_square_have_every_gradient() {
    for (shape, length) in [(&[3, 5][..], 1), (&[2, 3, 4], 2), (&[4, 1500], 1), (&[6], 1)] {
        let normalized: Vec<i64> =
            shape[shape.len() - length..].iter().map(|&extent| extent as i64).collect();
        let row = &shape[shape.len() - length..];
        let count: usize = row.iter().product();
        for has_weight in [true, false] {
            let mut inputs = vec![random(shape, 1).requires_grad_().unwrap()];
            inputs.extend(has_weight.then(|| random(row, 2).requires_grad_().unwrap()));
            let run = |inputs: &[Tensor]| {
                let weight = inputs.get(1).map_or(Value::None, of);
                let list = [of(&inputs[0]), Value::Ints(normalized.clone()), weight, Value::Float(1e-3)];
                call("rms_norm", &list).remove(0)
            };
            let weight = inputs.get(1).map_or(vec![1.0; count], values);
            let expected: Vec<f64> = (values(&inputs[0]).chunks(count))
                .flat_map(|row| {
                    let root = (row.iter().map(|x| x * x).sum::<f64>() / count as f64 + 1e-3).sqrt();
                    row.iter().zip(&weight).map(move |(x, weight)| x / root * weight).collect::<Vec<_>>()
                })
                .collect();
            let result = run(&inputs);
            assert_close(&values(&result), &expected, 1e-12);
            let by_operators = gradients(&result, &inputs, true);
            for (found, expected) in gradients(&result, &inputs, false).iter().zip(&by_operators) {
                assert_close(found, expected, 1e-11);
            }
            if count < 100 {
                let function = |inputs: &[Tensor]| Ok(vec![run(inputs)]);
                gradcheck(function, &inputs, OPTIONS).unwrap();
                gradgradcheck(function, &inputs, None, OPTIONS).unwrap();
            }
        }
    }
}
