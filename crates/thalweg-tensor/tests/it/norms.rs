//! Normalization and losses by their operators, against formulas written out, and their gradients.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{assert_close, check_gradient, random, tensor, values};

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
