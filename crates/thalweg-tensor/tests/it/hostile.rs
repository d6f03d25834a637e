//! Every built-in operator, called by its name with arguments that nobody would mean: each call gives results or an error, never a
//! panic, and the device works afterwards.

use thalweg_ir::{DType, Scalar};
use thalweg_ops::structured::STRUCTURED;
use thalweg_ops::{ELEMENTWISE, Sizes};
use thalweg_runtime::{Device, Environment, Label};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Arguments, Operator, find_operator};
use thalweg_tensor::random::Generator;

/// Calls of an operator with random arguments: so many, and more until some have given results.
const CALLS: usize = 300;
const MOST_CALLS: usize = 6000;
const RESULTS: usize = 1;

/// Operators that are no entry of the table.
const OTHERS: [&str; 4] = ["matmul", "linear", "packed_attention", "layer_norm_fork"];

/// A device with little memory, so that what is too large is soon refused.
fn small_device() -> Device {
    let config = SimConfig { devices: 1, memory_bytes: 64 << 20, ..SimConfig::default() };
    let driver = SimDriver::new(config).expect("a simulated GPU needs nothing");
    Device::all_of(driver, &Environment::default()).expect("its device opens").remove(0)
}

/// Tensors of many shapes, layouts and dtypes: scalars, empty ones, expanded ones, indices in range and out of it.
fn tensors(device: &Device) -> Vec<Tensor> {
    let mut list = Vec::new();
    let ramp = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|value| value as f32 / 4.0 - 1.0).collect();
        Tensor::from_slice(&values, shape, device).unwrap()
    };
    let shapes: [&[usize]; 13] = [
        &[],
        &[1],
        &[2],
        &[3],
        &[0],
        &[2, 3],
        &[3, 2],
        &[2, 0],
        &[2, 2, 3],
        &[2, 3, 3],
        &[0, 3, 1],
        &[2, 2, 4, 4],
        &[5, 2, 3, 2],
    ];
    for shape in shapes {
        list.push(ramp(shape));
        list.push(ramp(shape).requires_grad_().unwrap());
    }
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F32) {
        for shape in [&[2][..], &[2, 3], &[]] {
            list.push(ramp(shape).to_dtype(dtype).unwrap());
        }
    }
    list.push(Tensor::from_slice(&[i64::MIN, i64::MAX, 1], &[3], device).unwrap());
    list.push(ramp(&[2, 3]).transpose(0, 1).unwrap());
    list.push(ramp(&[0, 3, 1]).expand(&[0, 3, 5]).unwrap());
    list.push(ramp(&[1, 3]).expand(&[2, 3]).unwrap());
    list.push(ramp(&[2, 3]).narrow(1, 1, 0).unwrap());
    list
}

/// The tensors that the operators of the table are mostly for: rows, classes of rows, a generator's state, packed heads, images,
/// columns of images.
fn typical(device: &Device) -> Vec<Tensor> {
    let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, device).unwrap();
    let floats: [&[usize]; 7] = [&[2, 3], &[2, 3], &[3], &[2], &[2, 2, 3, 2], &[2, 2, 4, 4], &[2, 32]];
    let leaves = floats.map(|shape| ones(shape, DType::F32).requires_grad_().unwrap());
    let integers: [&[usize]; 3] = [&[2], &[], &[]];
    leaves.into_iter().chain(integers.map(|shape| ones(shape, DType::I64))).collect()
}

fn numbers() -> Vec<Scalar> {
    let floats = [0.0, 1.0, -1.0, 0.5, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let integers = [0, 1, 3, -1, 1 << 40, i64::MAX, i64::MIN];
    floats.map(Scalar::F64).into_iter().chain(integers.map(Scalar::I64)).chain([Scalar::Bool(true)]).collect()
}

/// Sizes and dimensions, the likely ones more often.
const SIZES: [usize; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 7, 1 << 40, 1 << 62, usize::MAX];

struct Chooser(Generator);

impl Chooser {
    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.0.below(list.len() as u32).unwrap() as usize]
    }

    /// A tensor; a typical one three times of four.
    fn tensor<'a>(&mut self, tensors: &'a [Tensor], typical: &'a [Tensor]) -> &'a Tensor {
        if self.0.below(4).unwrap() > 0 { self.pick(typical) } else { self.pick(tensors) }
    }

    /// The twelve sizes of a window over images (2, 2, 4, 4), which most often fit each other.
    fn window(&mut self) -> Vec<usize> {
        let [images, channels, height, width] = [2, 2, 4, 4];
        // Most often what leaves the image as it is.
        let [kernel_y, kernel_x, stride_y, stride_x, dilation, padding] = [1, 1, 1, 1, 1, 0]
            .map(|usual| if self.0.below(3).unwrap() > 0 { usual } else { *self.pick(&SIZES) });
        let kernel = [kernel_y, kernel_x];
        let extent = |size: usize, kernel: usize, stride: usize| -> Option<usize> {
            let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            size.checked_add(padding.checked_mul(2)?)?.checked_sub(reach)?.checked_div(stride)?.checked_add(1)
        };
        let [rows, columns] = [extent(height, kernel[0], stride_y), extent(width, kernel[1], stride_x)];
        let output = [rows, columns].map(|extent| extent.unwrap_or_else(|| *self.pick(&SIZES)));
        vec![
            images, channels, height, width, kernel[0], kernel[1], output[0], output[1], stride_y, stride_x,
            padding, dilation,
        ]
    }

    /// A count, most often the one that is right.
    fn count(&mut self, right: usize) -> usize {
        match self.0.below(12).unwrap() {
            0 => self.0.below(13).unwrap() as usize,
            _ => right,
        }
    }
}

/// Tensors, numbers and sizes that an entry of the table takes.
fn counts(name: &str) -> [usize; 3] {
    let entry = ELEMENTWISE.iter().chain(STRUCTURED).find(|entry| entry.name == name);
    match (name, entry) {
        ("unfold2d" | "fold2d" | "max_pool2d", _) => [1, 0, 12],
        ("linear", _) => [3, 0, 2],
        ("embedding", _) => [2, 1, 0],
        ("packed_attention", _) => [1, 1, 1],
        ("layer_norm_fork", _) => [3, 2, 1],
        ("matmul", _) => [2, 0, 0],
        (_, Some(entry)) => [entry.input_count, entry.scalars.len(), usize::from(entry.sizes != Sizes::None)],
        (_, None) => unreachable!("{name} is neither an entry nor known here"),
    }
}

/// Calls an operator; where it gives results they are read, and differentiated if they can be.
fn call(operator: &Operator, tensors: &[&Tensor], arguments: &Arguments, device: &Device) -> bool {
    let Ok(results) = operator.call(tensors, arguments, Some(device), Label::here("hostile")) else {
        return false;
    };
    for result in &results {
        result.to_dtype(DType::F64).and_then(|result| result.to_vec::<f64>()).unwrap_or_else(|error| {
            panic!("{} of {tensors:?} with {arguments:?} gave what cannot be read: {error}", operator.name())
        });
    }
    if results[0].requires_grad() {
        // An operator may have no gradient here; it may not panic, nor take the device away.
        let _ = results[0].sum(&[], false).and_then(|sum| sum.backward());
    }
    true
}

#[test]
fn every_operator_survives_any_arguments() {
    let device = small_device();
    let witness = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device).unwrap();
    let (tensors, typical, numbers) = (tensors(&device), typical(&device), numbers());
    let names = ELEMENTWISE.iter().chain(STRUCTURED).map(|entry| entry.name).chain(OTHERS);
    let mut operators = 0;
    for name in names {
        // What is only launched into given tensors is no operator.
        let Ok(operator) = find_operator(name) else { continue };
        operators += 1;
        let [tensor_count, number_count, size_count] = counts(name);
        let mut chooser = Chooser(Generator::new(operators));
        let (mut calls, mut succeeded) = (0, 0);
        while calls < CALLS || succeeded < RESULTS {
            assert!(calls < MOST_CALLS, "{name}: only {succeeded} of {calls} calls gave results");
            calls += 1;
            let list: Vec<&Tensor> = if chooser.0.below(3).unwrap() == 0 {
                let tensor = chooser.tensor(&tensors, &typical);
                vec![tensor; chooser.count(tensor_count)]
            } else {
                let count = chooser.count(tensor_count);
                (0..count).map(|_| chooser.tensor(&tensors, &typical)).collect()
            };
            let is_window = size_count == 12 && chooser.0.below(8).unwrap() > 0;
            let arguments = Arguments {
                scalars: (0..chooser.count(number_count)).map(|_| *chooser.pick(&numbers)).collect(),
                sizes: match is_window {
                    true => chooser.window().into_iter().collect(),
                    false => (0..chooser.count(size_count)).map(|_| *chooser.pick(&SIZES)).collect(),
                },
                dtype: (chooser.0.below(2).unwrap() == 0).then(|| *chooser.pick(&DType::ALL)),
            };
            succeeded += usize::from(call(operator, &list, &arguments, &device));
            let found = witness.to_vec::<f32>();
            assert_eq!(
                found.as_deref().ok(),
                Some(&[1.0, 2.0, 3.0][..]),
                "the device is lost after {name} of {list:?} with {arguments:?}: {found:?}"
            );
        }
        println!("{name}: {succeeded} of {calls} calls gave results");
    }
    assert!(operators > 80, "the table has more operators than {operators}");
}

#[test]
fn wrong_counts_are_refused_by_every_operator() {
    let device = small_device();
    let x = Tensor::ones(&[2, 3], DType::F32, &device).unwrap();
    for name in ELEMENTWISE.iter().chain(STRUCTURED).map(|entry| entry.name).chain(OTHERS) {
        let Ok(operator) = find_operator(name) else { continue };
        let call = |tensors: usize, numbers: usize| {
            let arguments = Arguments {
                scalars: std::iter::repeat_n(Scalar::F64(1.0), numbers).collect(),
                sizes: [0].into_iter().collect(),
                dtype: Some(DType::F32),
            };
            operator.call(&vec![&x; tensors], &arguments, Some(&device), Label::here("hostile"))
        };
        let [tensors, numbers, _] = counts(name);
        for (tensors, numbers) in [(tensors + 2, numbers), (tensors, numbers + 2)] {
            let error = call(tensors, numbers).unwrap_err();
            assert!(
                error.is_invalid_argument() && error.to_string().contains("the operator takes"),
                "{name}: {error}"
            );
        }
        if tensors > 0 {
            assert!(call(tensors - 1, numbers).unwrap_err().is_invalid_argument(), "{name}");
        }
    }
}
