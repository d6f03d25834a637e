//! Hostile input: each is an error that names the operator and the shapes, and leaves every tensor as it was.

use thalweg_device::sim::{SimConfig, SimDriver};
use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment, Result};
use thalweg_tensor::functional::{WindowOptions, conv2d, cross_entropy, linear, linear_add, max_pool2d};
use thalweg_tensor::optim::{Adam, AdamOptions};
use thalweg_tensor::{HostTensor, Tensor};

use crate::support::{device, random, values};

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("the call should have been refused: {words:?}") };
    assert!(error.is_invalid_argument(), "{error}");
    let text = error.to_string();
    println!("{text}\n");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let (a, b) = (random(&[2, 3], 1), random(&[2, 4], 2));
    refused(a.add(&b), &["add([2, 3] float64", "[2, 4] float64", "do not broadcast", "dimension 1"]);
    refused(a.matmul(&b), &["matmul([2, 3]", "inner dimensions differ", "3 columns", "2 rows"]);
    refused(a.matmul(&random(&[3], 3)), &["2 dimensions"]);
    refused(random(&[2, 2, 3], 4).matmul(&random(&[3, 3, 2], 5)), &["batches differ: 2 and 3"]);
    refused(a.reshape(&[7]), &["6 elements", "7 elements"]);
    refused(a.expand(&[3, 3]), &["cannot expand"]);
    refused(a.permute(&[0, 0]), &["permutation"]);
    refused(a.narrow(1, 2, 2), &["cannot take 2 elements from 2"]);
    refused(a.narrow(1, usize::MAX, 2), &["cannot take"]);
    refused(a.select(0, 2), &["select: index 2 is out of range", "[2, 3]"]);
    refused(a.sum(&[2], false), &["dimension 2 is out of range", "expected -2 to 1"]);
    refused(a.sum(&[0, -2], false), &["repeat"]);
    refused(a.size(5), &["out of range"]);
    refused(a.unsqueeze(4), &["unsqueeze"]);
    refused(a.flatten_from(3), &["no dimension 3"]);
    refused(a.sum_to_shape(&[1, 1, 1]), &["does not sum"]);
    refused(random(&[0, 3], 6).amax(&[0], false), &["nothing to choose from"]);
    refused(linear(&a, &random(&[5, 2], 7), None), &["linear", "(out, 3)", "[5, 2]"]);
    refused(linear(&random(&[3], 7), &random(&[5, 3], 7), None), &["linear", "2 dimensions", "[3]"]);
    let weight = random(&[5, 3], 7);
    refused(linear(&a, &weight, Some(&random(&[1], 7))), &["the bias is [5], not [1]"]);
    refused(linear_add(&a, &weight, None, &random(&[5], 7)), &["the addend is [2, 5], not [5]"]);
    let rounded = random(&[5], 7).to_dtype(DType::F32).unwrap();
    refused(linear(&a, &weight, Some(&rounded)), &["the dtypes differ (float64 and float32)"]);
    refused(
        cross_entropy(&a, &Tensor::zeros(&[3], DType::I64, &device()).unwrap()),
        &["cross_entropy", "[3]", "[2]"],
    );
    refused(Tensor::from_slice(&[1.0f32; 3], &[2], &device()), &["2 elements", "the slice 3"]);
    refused(Tensor::empty(&[usize::MAX, 2], DType::F32, &device()), &["more elements"]);
    refused(Tensor::empty(&[isize::MAX as usize], DType::F64, &device()), &["larger than the address space"]);
    assert_eq!(values(&a).len(), 6);
}

#[test]
fn windows_that_do_not_fit() {
    let image = random(&[1, 2, 4, 4], 1);
    let options = WindowOptions::default();
    refused(conv2d(&image, &random(&[3, 1, 2, 2], 2), None, options), &["conv2d(", "2 channels", "takes 1"]);
    refused(conv2d(&image, &random(&[3, 2, 5, 5], 3), None, options), &["larger than 4×4"]);
    refused(
        conv2d(&random(&[2, 4, 4], 4), &random(&[3, 2, 2, 2], 5), None, options),
        &["(count, channels, height, width)"],
    );
    refused(
        conv2d(&image, &random(&[3, 2, 2, 2], 6), Some(&random(&[2], 7)), options),
        &["the bias is [2], not [3]"],
    );
    let still = WindowOptions { stride: 0, ..options };
    refused(conv2d(&image, &random(&[3, 2, 2, 2], 8), None, still), &["at least 1"]);
    refused(max_pool2d(&image, [2, 2], WindowOptions { padding: 2, ..options }), &["more than half"]);
    let huge = WindowOptions { padding: usize::MAX, ..options };
    refused(conv2d(&image, &random(&[3, 2, 2, 2], 9), None, huge), &["conv2d"]);
    let wide = WindowOptions { dilation: usize::MAX, ..options };
    refused(conv2d(&image, &random(&[3, 2, 2, 2], 10), None, wide), &["conv2d"]);
}

#[test]
fn dtypes_that_do_not_fit() {
    let x = Tensor::zeros(&[2], DType::F32, &device()).unwrap();
    let truth = x.gt_scalar(0).unwrap();
    refused(truth.add(&truth), &["add([2] bool", "not defined for truth values"]);
    refused(x.to_vec::<i32>(), &["float32", "int32", "to_dtype"]);
    refused(x.item::<f32>(), &["2 elements, not 1"]);
    refused(Tensor::zeros(&[2], DType::I64, &device()).unwrap().requires_grad_(), &["only floating-point"]);
    let square = Tensor::zeros(&[2, 2], DType::F32, &device()).unwrap();
    refused(square.matmul(&square.to_dtype(DType::F64).unwrap()), &["the dtypes differ"]);
    let whole = square.to_dtype(DType::I32).unwrap();
    refused(whole.matmul(&whole), &["int32"]);
    refused(cross_entropy(&square, &x), &["int64 classes"]);
    refused(Tensor::arange(3, 0, 1, DType::Bool, &device()), &["arange", "not in bool"]);
    refused(Adam::new(vec![whole], AdamOptions::default()), &["no contiguous floating-point parameter"]);
    refused(Adam::new(Vec::new(), AdamOptions::default()), &["no parameter"]);
}

#[test]
fn devices_that_do_not_fit() {
    let driver =
        SimDriver::new(SimConfig { devices: 2, memory_bytes: 64 << 20, ..SimConfig::default() }).unwrap();
    let devices = Device::all_of(driver, &Environment::default()).unwrap();
    let tensors: Vec<Tensor> =
        devices.iter().map(|device| Tensor::ones(&[2], DType::F32, device).unwrap()).collect();
    refused(tensors[0].add(&tensors[1]), &["sim:0", "sim:1", "add(["]);
    refused(tensors[0].copy_(&tensors[1]), &["copy_", "sim:1"]);
    let error = Tensor::zeros(&[1 << 30], DType::F32, &devices[0]).unwrap_err();
    println!("{error}");
    assert!(error.is_out_of_memory() && error.to_string().contains("4.00 GiB"), "{error}");
    assert_eq!(values(&tensors[0]), [1.0, 1.0], "nothing was lost");
}

#[test]
fn writes_that_are_forbidden() {
    let x = random(&[3, 1], 1);
    refused(x.expand(&[3, 2]).unwrap().copy_(&x), &["share memory"]);
    let leaf = x.requires_grad_().unwrap();
    refused(leaf.copy_(&x), &["requires a gradient", "no_grad"]);
    refused(x.copy_(&random(&[4, 1], 2)), &["copy_"]);
    refused(x.backward(), &["reduce it to one"]);
    refused(leaf.backward_with(&random(&[3], 3)), &["the gradient is [3]"]);
    let pinned = HostTensor::pinned(&[2, 2], DType::F32, &device()).unwrap();
    refused(pinned.write(3, &[0.0f32; 2]), &["elements 3 to 5", "[2, 2]"]);
    refused(pinned.write(0, &[0.0f64]), &["float64"]);
    refused(pinned.write(usize::MAX, &[0.0f32]), &["do not fit"]);
    refused(x.copy_from_pinned(&pinned), &["copy_from_pinned", "[2, 2]"]);
}
