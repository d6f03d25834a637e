//! Normalization and losses by their operators, compared with explicit formulas, and their gradients.

use std::sync::Arc;

use thalweg_driver::{Cluster, Code, Driver, FunctionHandle};
use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::gradients;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{assert_close, check_gradient, device, random, tensor, values};

/// Calls an operator by its name.
pub fn call(name: &str, arguments: &[Value]) -> Vec<Tensor> {
    let results = find_operator(name).unwrap().call_boxed(arguments, None);
    let results = results.unwrap_or_else(|error| panic!("{name}: {error}"));
    let tensor = |value| if let Value::Tensor(tensor) = value { tensor } else { panic!("a tensor") };
    results.into_iter().map(tensor).collect()
}

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

/// (x − mean) / √(variance + ε) of rows.
fn normalized(rows: &[f64], length: usize, epsilon: f64) -> Vec<f64> {
    rows.chunks(length)
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / length as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / length as f64;
            row.iter().map(move |x| (x - mean) / (variance + epsilon).sqrt())
        })
        .collect()
}

#[test]
fn groups_and_layers_are_normalized() {
    let x = random(&[2, 4, 3], 1);
    let expected = normalized(&values(&x), 6, 1e-5);
    let group = |x: &Tensor| call("group_norm", &[of(x), Value::Int(2)]).remove(0);
    assert_close(&values(&group(&x)), &expected, 1e-12);
    check_gradient(&x, |x| group(x).mul(&random(&[2, 4, 3], 2)).unwrap());
    let layer = |x: &Tensor| {
        call(
            "native_layer_norm",
            &[of(x), Value::Ints(vec![3]), Value::None, Value::None, Value::Float(1e-5)],
        )
    };
    assert_close(&values(&layer(&x)[0]), &normalized(&values(&x), 3, 1e-5), 1e-12);
    assert_eq!(layer(&x)[1].shape(), [2, 4, 1]);
    let root = |x: &Tensor| {
        call("rms_norm", &[of(x), Value::Ints(vec![3]), Value::None, Value::Float(0.0)]).remove(0)
    };
    let expected: Vec<f64> = (values(&x).chunks(3))
        .flat_map(|row| {
            let root = (row.iter().map(|x| x * x).sum::<f64>() / 3.0).sqrt();
            row.iter().map(move |x| x / root).collect::<Vec<_>>()
        })
        .collect();
    assert_close(&values(&root(&x)), &expected, 1e-12);
    check_gradient(&x, |x| root(x).mul(&random(&[2, 4, 3], 2)).unwrap());
}

#[test]
fn batch_norm_moves_running_statistics_and_uses_them() {
    let x = random(&[3, 2, 4], 1);
    let (mean, variance) = (tensor(&[1.0, 2.0], &[2], DType::F64), tensor(&[1.0, 1.0], &[2], DType::F64));
    let run = |x: &Tensor, training: bool| {
        let flags = [Value::Bool(training), Value::Float(0.25), Value::Float(1e-5)];
        let tensors = [of(x), Value::None, Value::None, of(&mean), of(&variance)];
        call("native_batch_norm", &[tensors.as_slice(), &flags].concat())
    };
    let by_channel = x.transpose(0, 1).unwrap().contiguous().unwrap();
    let result = run(&x, true);
    let found = result[0].transpose(0, 1).unwrap().contiguous().unwrap();
    assert_close(&values(&found), &normalized(&values(&by_channel), 12, 1e-5), 1e-12);
    let rows = values(&by_channel);
    for (channel, row) in rows.chunks(12).enumerate() {
        let row_mean = row.iter().sum::<f64>() / 12.0;
        let row_variance = row.iter().map(|x| (x - row_mean).powi(2)).sum::<f64>() / 11.0;
        assert_close(&[values(&mean)[channel]], &[0.75 * (1.0 + channel as f64) + 0.25 * row_mean], 1e-12);
        assert_close(&[values(&variance)[channel]], &[0.75 + 0.25 * row_variance], 1e-12);
    }
    let (kept_mean, kept_variance) = (values(&mean), values(&variance));
    let expected: Vec<f64> = (values(&x).iter().enumerate())
        .map(|(at, x)| (x - kept_mean[at / 4 % 2]) / (kept_variance[at / 4 % 2] + 1e-5).sqrt())
        .collect();
    assert_close(&values(&run(&x, false)[0]), &expected, 1e-12);
    check_gradient(&x, |x| {
        call(
            "batch_norm",
            &[
                of(x),
                Value::None,
                Value::None,
                Value::None,
                Value::None,
                Value::Bool(true),
                Value::Float(0.1),
                Value::Float(1e-5),
                Value::Bool(true),
            ],
        )
        .remove(0)
        .mul(&random(&[3, 2, 4], 9))
        .unwrap()
    });
}

/// A loss of an element and its target.
type Loss = fn(f64, f64) -> f64;

#[test]
fn losses_agree_with_formulas() {
    let (x, y) = (random(&[2, 3], 1), random(&[2, 3], 2));
    let pairs = || values(&x).into_iter().zip(values(&y));
    let losses: [(&str, Loss); 6] = [
        ("mse_loss", |x, y| (x - y).powi(2)),
        ("l1_loss", |x, y| (x - y).abs()),
        (
            "smooth_l1_loss",
            |x, y| if (x - y).abs() < 1.0 { (x - y).powi(2) / 2.0 } else { (x - y).abs() - 0.5 },
        ),
        ("huber_loss", |x, y| if (x - y).abs() < 1.0 { (x - y).powi(2) / 2.0 } else { (x - y).abs() - 0.5 }),
        ("soft_margin_loss", |x, y| (1.0 + (-x * y).exp()).ln()),
        ("binary_cross_entropy_with_logits", |x, y| {
            let p = 1.0 / (1.0 + (-x).exp());
            -y * p.ln() - (1.0 - y) * (1.0 - p).ln()
        }),
    ];
    for (name, loss) in losses {
        let expected: Vec<f64> = pairs().map(|(x, y)| loss(x, y)).collect();
        let place =
            find_operator(name).unwrap().schema().parameters.iter().position(|p| p.name == "reduction");
        let arguments = |x: &Tensor, reduction: i64| {
            let mut list = vec![of(x), of(&y)];
            list.resize(place.unwrap(), Value::None);
            list.push(Value::Int(reduction));
            list
        };
        assert_close(&values(&call(name, &arguments(&x, 0))[0]), &expected, 1e-12);
        let sum: f64 = expected.iter().sum();
        assert_close(&values(&call(name, &arguments(&x, 1))[0]), &[sum / 6.0], 1e-12);
        assert_close(&values(&call(name, &arguments(&x, 2))[0]), &[sum], 1e-12);
        check_gradient(&x, |x| call(name, &arguments(x, 2)).remove(0));
    }
}

#[test]
fn cross_entropy_weighs_smooths_and_ignores() {
    let x = random(&[3, 4], 1);
    let weight = tensor(&[1.0, 2.0, 0.5, 3.0], &[4], DType::F64);
    let target = Tensor::from_slice(&[1i64, -100, 3], &[3], x.device()).unwrap();
    let run = |x: &Tensor| {
        let tail = [Value::Int(1), Value::Int(-100), Value::Float(0.25)];
        call("cross_entropy_loss", &[&[of(x), of(&target), of(&weight)], tail.as_slice()].concat()).remove(0)
    };
    let (rows, weights) = (values(&x), values(&weight));
    let logarithm = |row: usize, class: usize| {
        let row = &rows[row * 4..][..4];
        row[class] - row.iter().map(|x| x.exp()).sum::<f64>().ln()
    };
    let loss = |row: usize, class: usize| {
        let spread: f64 = (0..4).map(|class| -weights[class] * logarithm(row, class)).sum();
        0.75 * -weights[class] * logarithm(row, class) + 0.25 / 4.0 * spread
    };
    assert_close(&values(&run(&x)), &[(loss(0, 1) + loss(2, 3)) / (2.0 + 3.0)], 1e-12);
    check_gradient(&x, run);
}

/// Returns the gradient of a layer norm's rows by the formula.
fn layer_norm_gradient(rows: &[f64], scale: &[f64], gradients: &[f64], epsilon: f64) -> Vec<f64> {
    let length = scale.len();
    let of_row = |(row, gradient): (&[f64], &[f64])| {
        let mean = row.iter().sum::<f64>() / length as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / length as f64;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        let scaled: Vec<f64> = gradient.iter().zip(scale).map(|(g, s)| g * s).collect();
        let sum = scaled.iter().sum::<f64>() / length as f64;
        let along =
            scaled.iter().zip(row).map(|(g, x)| g * (x - mean) * inverse).sum::<f64>() / length as f64;
        let of_point = move |(g, x): (f64, f64)| inverse * (g - sum - (x - mean) * inverse * along);
        scaled.into_iter().zip(row.to_vec()).map(of_point).collect::<Vec<f64>>()
    };
    rows.chunks(length).zip(gradients.chunks(length)).flat_map(of_row).collect()
}

#[test]
fn rows_longer_than_a_multiprocessor_holds_agree_with_formulas() {
    // Fewer would be divided into parts; on a GPU enough that each group of threads has several, in each slot of its memory in
    // turn.
    let rows: usize = if device().is_simulated() { 64 } else { 1_100 };
    let compared: Vec<usize> = (0..rows).step_by(rows.div_ceil(8)).chain([rows - 1]).collect();
    let cases = [
        (DType::F32, 50_304, 3e-6),
        (DType::F32, 16_384, 3e-6),
        (DType::F32, 131_072, 3e-6),
        (DType::Bf16, 65_536, 1e-2),
        (DType::F32, 65_536, 3e-6),
        (DType::Bf16, 128_256, 1e-2),
    ];
    // On the simulator the last two lengths run as others do.
    let cases = if device().is_simulated() { &cases[..4] } else { &cases[..] };
    for &(dtype, length, tolerance) in cases {
        let make = |shape: &[usize], seed: u64| random(shape, seed).to_dtype(dtype).unwrap();
        let (x, gradient) = (make(&[rows, length], 1), make(&[rows, length], 2));
        x.set_requires_grad(true).unwrap();
        let (scale, shift) = (make(&[length], 3), make(&[length], 4));
        let of_rows = |tensor: &Tensor| -> Vec<f64> {
            let row = |&row: &usize| values(&tensor.detach().narrow(0, row, 1).unwrap());
            compared.iter().flat_map(row).collect()
        };
        let [all, written] = [&x, &gradient].map(of_rows);
        let [scales, shifts] = [&scale, &shift].map(values);
        let gradient_of = |found: &Tensor| {
            let found =
                gradients(std::slice::from_ref(found), &[Some(gradient.clone())], std::slice::from_ref(&x));
            of_rows(found.unwrap()[0].as_ref().unwrap())
        };
        let layer = [of(&x), Value::Ints(vec![length as i64]), of(&scale), of(&shift), Value::Float(1e-5)];
        let found = call("native_layer_norm", &layer).remove(0);
        let affine = |(index, value): (usize, f64)| value * scales[index % length] + shifts[index % length];
        let expected: Vec<f64> = normalized(&all, length, 1e-5).into_iter().enumerate().map(affine).collect();
        assert_close(&of_rows(&found), &expected, tolerance);
        assert_close(&gradient_of(&found), &layer_norm_gradient(&all, &scales, &written, 1e-5), tolerance);

        // Each times its length: near 1.
        let scaled = |values: &[f64]| values.iter().map(|x| x * length as f64).collect::<Vec<f64>>();
        let found = call("_softmax", &[of(&x), Value::Int(-1), Value::Bool(false)]).remove(0);
        let of_row = |row: &[f64]| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / sum).collect::<Vec<f64>>()
        };
        let expected: Vec<f64> = all.chunks(length).flat_map(of_row).collect();
        let weights = of_rows(&found);
        assert_close(&scaled(&weights), &scaled(&expected), tolerance);
        let of_row = |(y, g): (&[f64], &[f64])| {
            let sum: f64 = y.iter().zip(g).map(|(y, g)| y * g).sum();
            y.iter().zip(g).map(|(y, g)| y * (g - sum)).collect::<Vec<f64>>()
        };
        let expected: Vec<f64> =
            weights.chunks(length).zip(written.chunks(length)).flat_map(of_row).collect();
        assert_close(&scaled(&gradient_of(&found)), &scaled(&expected), tolerance);
    }
}

/// A machine that cannot run clusters of blocks, like a slice of a GPU.
#[derive(Debug)]
struct WithoutClusters(Arc<SimDriver>);

impl Driver for WithoutClusters {
    thalweg_driver::wraps!(0);

    fn max_active_clusters(&self, _: FunctionHandle, _: Cluster) -> thalweg_driver::Result<u32> {
        Err(thalweg_driver::Error::new(Code::NotSupported, "cuOccupancyMaxActiveClusters", "no room"))
    }
}

#[test]
fn long_rows_need_no_clusters() {
    let driver = Arc::new(WithoutClusters(SimDriver::new(SimConfig::default()).unwrap()));
    let device = Device::all_of(driver, &Environment::default()).unwrap().remove(0);
    let x = Tensor::full(&[64, 1 << 16], 2.0, DType::F32, &device).unwrap();
    let found = call("_softmax", &[of(&x), Value::Int(-1), Value::Bool(false)]).remove(0);
    assert!(values(&found).iter().all(|&weight| weight == 1.0 / 65_536.0));
}
