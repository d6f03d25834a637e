//! Gradients that are operators of their own, compared with those that autograd computes through the operator itself.

use thalweg_ir::{DType, bf16};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{gradients, no_grad};
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{assert_close, device, random, values};

fn call(name: &str, arguments: &[Value]) -> Vec<Tensor> {
    let results = find_operator(name).unwrap().call_boxed(arguments, None).unwrap();
    results
        .into_iter()
        .map(|result| match result {
            Value::Tensor(tensor) => tensor,
            other => panic!("{name} gives {other:?}"),
        })
        .collect()
}

/// Compares the results of a backward operator with autograd's gradients of an operator's first result.
fn agree(
    name: &str,
    arguments: &[Value],
    leaves: &[&Tensor],
    backward: impl Fn(&Tensor, &[Tensor]) -> Vec<Tensor>,
) {
    let results = call(name, arguments);
    let cotangent = random(results[0].shape(), 77);
    let leaves: Vec<Tensor> = leaves.iter().map(|&leaf| leaf.clone()).collect();
    let expected = gradients(&results[..1], &[Some(cotangent.clone())], &leaves).unwrap();
    let found = backward(&cotangent, &results);
    assert_eq!(found.len(), expected.len());
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = expected.unwrap_or_else(|| panic!("{name}: leaf {place} has a gradient"));
        assert_eq!(found.shape(), expected.shape(), "{name}: gradient {place}");
        assert_close(&values(found), &values(&expected), 1e-10);
    }
}

fn leaf(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).requires_grad_().unwrap()
}

fn ints(list: &[i64]) -> Value {
    Value::Ints(list.to_vec())
}

fn all() -> Value {
    Value::Bools(vec![true; 3])
}

#[test]
fn convolutions() {
    for (is_transposed, groups, output_padding) in [(false, 1, 0), (false, 2, 0), (true, 1, 1), (true, 2, 0)]
    {
        let x = leaf(&[2, 4, 6, 5], 1);
        let shape = if is_transposed { [4, 3, 3, 2] } else { [6, 4 / groups, 3, 2] };
        let weight = leaf(&shape, 2);
        let channels = if is_transposed { 3 * groups } else { 6 };
        let bias = leaf(&[channels], 3);
        let numbers = [
            ints(&[2, 2]),
            ints(&[1, 1]),
            ints(&[1, 2]),
            Value::Bool(is_transposed),
            ints(&[output_padding, output_padding]),
            Value::Int(groups as i64),
        ];
        let tensors = [&x, &weight, &bias].map(|tensor| Value::Tensor(tensor.clone()));
        let forward: Vec<Value> = tensors.iter().chain(&numbers).cloned().collect();
        agree("convolution", &forward, &[&x, &weight, &bias], |gradient, _| {
            let first = [Value::Tensor(gradient.clone()), tensors[0].clone(), tensors[1].clone()];
            let sizes = [ints(&[channels as i64])];
            let last = [all()];
            let arguments: Vec<Value> =
                first.iter().chain(&sizes).chain(&numbers).chain(&last).cloned().collect();
            call("convolution_backward", &arguments)
        });
    }
}

#[test]
fn normalizations() {
    let (x, weight, bias) = (leaf(&[3, 4, 5], 1), leaf(&[4, 5], 2), leaf(&[4, 5], 3));
    let of = |tensor: &Tensor| Value::Tensor(tensor.clone());
    let forward = [of(&x), ints(&[4, 5]), of(&weight), of(&bias), Value::Float(1e-5)];
    agree("native_layer_norm", &forward, &[&x, &weight, &bias], |gradient, results| {
        let statistics = [of(&results[1]), of(&results[2])];
        let [mean, inverse] = statistics;
        let list = [of(gradient), of(&x), ints(&[4, 5]), mean, inverse, of(&weight), of(&bias), all()];
        call("native_layer_norm_backward", &list)
    });
    let (weight, bias) = (leaf(&[4], 4), leaf(&[4], 5));
    let sizes = [3, 4, 5].map(Value::Int);
    let [batch, channels, plane] = sizes;
    let forward = [
        of(&x),
        of(&weight),
        of(&bias),
        batch.clone(),
        channels.clone(),
        plane.clone(),
        Value::Int(2),
        Value::Float(1e-5),
    ];
    agree("native_group_norm", &forward, &[&x, &weight, &bias], |gradient, results| {
        let [batch, channels, plane] = [batch.clone(), channels.clone(), plane.clone()];
        let list = [
            of(gradient),
            of(&x),
            of(&results[1]),
            of(&results[2]),
            of(&weight),
            batch,
            channels,
            plane,
            Value::Int(2),
            all(),
        ];
        call("native_group_norm_backward", &list)
    });
}

#[test]
fn batch_normalizations() {
    let of = |tensor: &Tensor| Value::Tensor(tensor.clone());
    let (x, weight, bias) = (leaf(&[3, 4, 5], 1), leaf(&[4], 4), leaf(&[4], 5));
    let (mean, variance) = (random(&[4], 6), random(&[4], 7).square().unwrap());
    for (is_training, is_recorded) in [(true, true), (true, false), (false, true)] {
        let running = [of(&mean), of(&variance)];
        let [running_mean, running_variance] = running.clone();
        let parameters = [of(&x), of(&weight), of(&bias), running_mean, running_variance];
        let numbers = [Value::Bool(is_training), Value::Float(0.1), Value::Float(1e-5)];
        let forward: Vec<Value> = parameters.into_iter().chain(numbers).collect();
        agree("native_batch_norm", &forward, &[&x, &weight, &bias], |gradient, results| {
            let [running_mean, running_variance] = running.clone();
            let saved = [of(&results[1]), of(&results[2])];
            let list: Vec<Value> = [of(gradient), of(&x), of(&weight), running_mean, running_variance]
                .into_iter()
                .chain(saved)
                .chain([Value::Bool(is_training), Value::Float(1e-5), all()])
                .collect();
            match is_recorded {
                true => call("native_batch_norm_backward", &list),
                false => no_grad(|| call("native_batch_norm_backward", &list)),
            }
        });
    }
}

/// 256 + 1 · 1 is 257 in f32, and 256 in bfloat16; minus 256 it is 1 if the sum was rounded once.
#[test]
fn a_product_is_rounded_with_what_it_is_added_to() {
    let tensor = |list: &[f64], shape: &[usize]| {
        Tensor::from_slice(list, shape, &device()).unwrap().to_dtype(DType::Bf16).unwrap()
    };
    let (a, b) = (tensor(&[16.0, 1.0], &[1, 2]), tensor(&[16.0, 1.0], &[2, 1]));
    let added = tensor(&[-256.0], &[1]);
    let one = |result: Tensor| result.to_vec::<bf16>().unwrap()[0].to_f64();
    assert_eq!(one(a.matmul(&b).unwrap()), 256.0);
    assert_eq!(one(added.addmm(&a, &b).unwrap()), 1.0);
    assert_eq!(one(a.linear(&b.transpose(0, 1).unwrap(), Some(&added)).unwrap()), 1.0);
    if !device().is_simulated() {
        // On a GPU a convolution's bias is added to a rounded result, as by PyTorch.
        return;
    }
    let image = a.reshape(&[1, 2, 1]).unwrap();
    let kernel = b.reshape(&[1, 2, 1]).unwrap();
    let arguments = [&image, &kernel, &added].map(|tensor| Value::Tensor(tensor.clone()));
    assert_eq!(one(call("conv1d", &arguments).remove(0)), 1.0);
    assert_eq!(
        one(call(
            "conv_transpose1d",
            &[&image, &kernel.transpose(0, 1).unwrap().reshape(&[2, 1, 1]).unwrap(), &added]
                .map(|tensor| Value::Tensor(tensor.clone()))
        )
        .remove(0)),
        1.0
    );
}

/// Compares a backward operator, called by its name outside of autograd, with autograd's gradients of the first result, bit by bit.
fn same_bits(
    name: &str,
    arguments: &[Value],
    leaves: &[&Tensor],
    backward: impl Fn(&Tensor, &[Tensor]) -> Vec<Tensor>,
) {
    let results = call(name, arguments);
    let cotangent = random(results[0].shape(), 78).to_dtype(results[0].dtype()).unwrap();
    let leaves: Vec<Tensor> = leaves.iter().map(|&leaf| leaf.clone()).collect();
    let expected = gradients(&results[..1], &[Some(cotangent.clone())], &leaves).unwrap();
    let found = no_grad(|| backward(&cotangent, &results));
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = expected.unwrap_or_else(|| panic!("{name}: leaf {place} has a gradient"));
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{name}: {place}");
        let bits = |tensor: &Tensor| {
            let numbers = tensor.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert!(bits(found) == bits(&expected), "{name} of {:?}: gradient {place}", leaves[0].shape());
    }
}

/// Returns shapes and numbers that differ from seed to seed.
fn drawn(seed: u64) -> impl FnMut(u64) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as usize
    }
}

#[test]
fn a_backward_operator_by_its_name_is_the_kernel_of_autograd() {
    let of = |tensor: &Tensor| Value::Tensor(tensor.clone());
    for (seed, dtype) in (0..6).flat_map(|seed| [(seed, DType::F32), (seed, DType::Bf16), (seed, DType::F16)])
    {
        let mut draw = drawn(seed);
        let mut number = |below: u64| draw(below);
        let mut seeds = seed * 100;
        let mut leaf = |shape: &[usize]| {
            seeds += 1;
            random(shape, seeds).to_dtype(dtype).unwrap().requires_grad_().unwrap()
        };
        let rows = [1 + number(5), 1 + number(70), 1 + number(300)];
        let (x, dim) = (leaf(&rows), number(3) as i64);
        for (name, of_result) in
            [("_softmax", "_softmax_backward_data"), ("_log_softmax", "_log_softmax_backward_data")]
        {
            let dim = || Value::Int(dim);
            same_bits(name, &[of(&x), dim(), Value::Bool(false)], &[&x], |gradient, results| {
                call(of_result, &[of(gradient), of(&results[0]), dim(), Value::DType(dtype)])
            });
        }
        let row = [rows[1] as i64, rows[2] as i64];
        let (weight, bias) = (leaf(&rows[1..]), leaf(&rows[1..]));
        let forward = [of(&x), ints(&row), of(&weight), of(&bias), Value::Float(1e-5)];
        same_bits("native_layer_norm", &forward, &[&x, &weight, &bias], |gradient, results| {
            let [mean, inverse] = [1, 2].map(|place| of(&results[place]));
            let list = [of(gradient), of(&x), ints(&row), mean, inverse, of(&weight), of(&bias), all()];
            call("native_layer_norm_backward", &list)
        });
        let (groups, each) = (1 + number(3), 1 + number(4));
        let shape = [1 + number(4), groups * each, 3 + number(9), 3 + number(7)];
        let (x, weight, bias) = (leaf(&shape), leaf(&shape[1..2]), leaf(&shape[1..2]));
        let sizes = [shape[0], shape[1], shape[2] * shape[3], groups].map(|size| Value::Int(size as i64));
        let forward: Vec<Value> = [of(&x), of(&weight), of(&bias)]
            .into_iter()
            .chain(sizes.clone())
            .chain([Value::Float(1e-5)])
            .collect();
        same_bits("native_group_norm", &forward, &[&x, &weight, &bias], |gradient, results| {
            let tensors = [of(gradient), of(&x), of(&results[1]), of(&results[2]), of(&weight)];
            let list: Vec<Value> = tensors.into_iter().chain(sizes.clone()).chain([all()]).collect();
            call("native_group_norm_backward", &list)
        });
        let out = groups * (1 + number(4));
        let (weight, bias) = (leaf(&[out, each, 1 + number(3), 1 + number(3)]), leaf(&[out]));
        let stride = 1 + number(2) as i64;
        let numbers = [
            ints(&[stride, stride]),
            ints(&[1, 1]),
            ints(&[1, 1]),
            Value::Bool(false),
            ints(&[0, 0]),
            Value::Int(groups as i64),
        ];
        let tensors = [&x, &weight, &bias].map(of);
        let forward: Vec<Value> = tensors.iter().chain(&numbers).cloned().collect();
        same_bits("convolution", &forward, &[&x, &weight, &bias], |gradient, _| {
            let first = [of(gradient), tensors[0].clone(), tensors[1].clone(), ints(&[out as i64])];
            let list: Vec<Value> = first.into_iter().chain(numbers.clone()).chain([all()]).collect();
            call("convolution_backward", &list)
        });
    }
}
