//! Hostile input: each call returns an error that names the operator and the shapes, and leaves every tensor unchanged.

use thalweg_ir::DType;
use thalweg_nn::functional::{
    ConvOptions, PoolOptions, conv2d, cross_entropy, linear, linear_add, max_pool2d,
};
use thalweg_nn::module::{Conv2d, Linear, SelfAttention};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Device, Environment, Label, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::autograd::gradients;
use thalweg_tensor::dispatch::find_operator;
use thalweg_tensor::random::{DeviceGenerator, Generator};
use thalweg_tensor::{HostTensor, Tensor};

use crate::support::{device, random, values};

#[track_caller]
fn assert_refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("the call should have been refused: {words:?}") };
    assert!(error.is_invalid_argument(), "{error}");
    let location = error.location().unwrap_or_else(|| panic!("the error does not say where: {error}"));
    assert_eq!(location.file(), file!(), "{error}");
    let text = error.to_string();
    println!("{text}\n");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let (a, b) = (random(&[2, 3], 1), random(&[2, 4], 2));
    assert_refused(a.add(&b), &["add([2, 3] float64", "[2, 4] float64", "do not broadcast", "dimension 1"]);
    assert_refused(a.matmul(&b), &["matmul([2, 3]", "shapes cannot be multiplied (2x3 and 2x4)"]);
    assert_refused(a.matmul(&random(&[4], 3)), &["size mismatch, got input (2), mat (2x3), vec (4)"]);
    assert_refused(
        random(&[2, 2, 3], 4).matmul(&random(&[3, 3, 2], 5)),
        &["shapes [2] and [3] do not broadcast"],
    );
    assert_refused(a.reshape(&[7]), &["shape '[7]' is invalid for input of size 6"]);
    assert_refused(a.expand(&[3, 3]), &["must match the existing size (2) at non-singleton dimension 0"]);
    assert_refused(a.permute(&[0, 0]), &["permutation"]);
    assert_refused(a.narrow(1, 2, 2), &["cannot take 2 elements from 2"]);
    assert_refused(a.narrow(1, usize::MAX, 2), &["cannot take"]);
    assert_refused(a.select(0, 2), &["select([2, 3]", "index 2 is out of range", "[2, 3]"]);
    assert_refused(
        a.sum(&[2], false),
        &["Dimension out of range (expected to be in range of [-2, 1], but got 2)"],
    );
    assert_refused(a.sum(&[0, -2], false), &["appears multiple times"]);
    assert_refused(a.size(5), &["out of range"]);
    assert_refused(a.unsqueeze(4), &["unsqueeze"]);
    assert_refused(a.flatten_from(3), &["no dimension 3"]);
    assert_refused(a.sum_to_shape(&[1, 1, 1]), &["does not sum"]);
    assert_refused(random(&[0, 3], 6).amax(&[0], false), &["Expected reduction dim 0 to have non-zero size"]);
    assert_refused(linear(&a, &random(&[5, 2], 7), None), &["linear", "(out, 3)", "[5, 2]"]);
    assert_refused(linear(&random(&[4], 7), &random(&[5, 3], 7), None), &["linear", "weight"]);
    let weight = random(&[5, 3], 7);
    assert_refused(linear(&a, &weight, Some(&random(&[1], 7))), &["the bias is [5], not [1]"]);
    assert_refused(linear_add(&a, &weight, None, &random(&[5], 7)), &["the addend is [2, 5], not [5]"]);
    let rounded = random(&[5], 7).to_dtype(DType::F32).unwrap();
    assert_refused(linear(&a, &weight, Some(&rounded)), &["the dtypes differ (float64 and float32)"]);
    assert_refused(
        cross_entropy(&a, &Tensor::zeros(&[3], DType::I64, &device()).unwrap()),
        &["cross_entropy", "[3]", "Expected input batch_size (2) to match target batch_size (3)."],
    );
    assert_refused(Tensor::from_slice(&[1.0f32; 3], &[2], &device()), &["2 elements", "the slice 3"]);
    assert_refused(Tensor::empty(&[usize::MAX, 2], DType::F32, &device()), &["more elements"]);
    assert_refused(
        Tensor::empty(&[isize::MAX as usize], DType::F64, &device()),
        &["larger than the address space"],
    );
    assert_eq!(values(&a).len(), 6);
}

#[test]
fn windows_that_do_not_fit() {
    let image = random(&[1, 2, 4, 4], 1);
    let (options, pool) = (ConvOptions::default(), PoolOptions::default());
    assert_refused(
        conv2d(&image, &random(&[3, 1, 2, 2], 2), None, options),
        &["conv2d(", "to have 1 channels, but got 2"],
    );
    assert_refused(
        conv2d(&image, &random(&[3, 2, 5, 5], 3), None, options),
        &["Kernel size: (5 x 5)", "(4 x 4)"],
    );
    assert_refused(
        conv2d(&random(&[4, 4], 4), &random(&[3, 2, 2, 2], 5), None, options),
        &["Expected 3D (unbatched) or 4D (batched) input to conv2d"],
    );
    assert_refused(
        conv2d(&image, &random(&[3, 2, 2, 2], 6), Some(&random(&[2], 7)), options),
        &["expected bias to be 1-dimensional with 3 elements", "[2]"],
    );
    let still = ConvOptions { stride: [0; 2], ..options };
    assert_refused(
        conv2d(&image, &random(&[3, 2, 2, 2], 8), None, still),
        &["non-positive stride is not supported"],
    );
    assert_refused(max_pool2d(&image, [2, 2], PoolOptions { padding: 2, ..pool }), &["more than half"]);
    let huge = ConvOptions { padding: [usize::MAX; 2], ..options };
    assert_refused(conv2d(&image, &random(&[3, 2, 2, 2], 9), None, huge), &["conv2d"]);
    let wide = ConvOptions { dilation: [usize::MAX; 2], ..options };
    assert_refused(conv2d(&image, &random(&[3, 2, 2, 2], 10), None, wide), &["conv2d"]);
    for (stride, padding) in [(1, 1 << 40), (1, 1 << 62), (usize::MAX, 0), (usize::MAX, 1 << 62)] {
        let options = ConvOptions { stride: [stride; 2], padding: [padding; 2], ..options };
        assert_refused(conv2d(&image, &random(&[3, 2, 2, 2], 11), None, options), &["conv2d"]);
    }
    let far = PoolOptions { padding: 1 << 61, ..pool };
    assert_refused(max_pool2d(&image, [1 << 62, 1 << 62], far), &["max_pool2d"]);
    assert_refused(
        max_pool2d(&image, [2, 2], PoolOptions { padding: usize::MAX, ..pool }),
        &["more than half"],
    );
    // The largest stride that can be expressed leaves one window.
    let leap = ConvOptions { stride: [isize::MAX as usize / 4; 2], ..options };
    let (leaf, weight) = (image.requires_grad_().unwrap(), random(&[3, 2, 2, 2], 12));
    let result = conv2d(&leaf, &weight, None, leap).unwrap();
    assert_eq!(result.shape(), [1, 3, 1, 1]);
    result.sum(&[], false).unwrap().backward().unwrap();
    let expected = values(&weight.sum(&[0], false).unwrap());
    let found = values(&leaf.grad().unwrap().narrow(2, 0, 2).unwrap().narrow(3, 0, 2).unwrap());
    crate::support::assert_close(&found, &expected, 1e-12);
}

/// Returns two devices with so little memory that huge tensors do not fit.
fn two_devices() -> Vec<Device> {
    let config = SimConfig { devices: 2, memory_bytes: 64 << 20, ..SimConfig::default() };
    Device::all_of(SimDriver::new(config).unwrap(), &Environment::default()).unwrap()
}

#[test]
fn gigantic_tensors_are_out_of_memory() {
    let device = &two_devices()[0];
    let mut generator = Generator::new(1);
    let drawn = DeviceGenerator::new(1, device).unwrap();
    for shape in [&[1 << 50][..], &[1 << 60], &[1 << 30, 1 << 30], &[1 << 28]] {
        let results = [
            Tensor::normal(shape, 0.0, 1.0, &mut generator, device),
            Tensor::uniform(shape, 0.0, 1.0, &mut generator, device),
            drawn.normal(shape, 0.0, 1.0, DType::F32),
            drawn.uniform(shape, 0.0, 1.0, DType::F32),
            drawn.bernoulli(shape, 0.5, DType::F32),
            Tensor::zeros(shape, DType::F32, device),
            Tensor::empty(shape, DType::F32, device),
        ];
        for (index, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(error.is_out_of_memory(), "{index} {shape:?}: {error}");
        }
    }
    assert!(Linear::new(1 << 30, 1 << 30, &mut generator, device).unwrap_err().is_out_of_memory());
    assert_refused(
        Tensor::normal(&[1 << 62], 0.0, 1.0, &mut generator, device),
        &["larger than the address space"],
    );
    assert_refused(Tensor::arange(usize::MAX, 0, 1, DType::F32, device), &["more elements"]);
    let options = ConvOptions::default();
    assert_refused(
        Conv2d::new(1 << 40, 1, [1 << 40; 2], options, &mut generator, device),
        &["more elements"],
    );
    assert_refused(SelfAttention::new(1 << 63, 1, true, &mut generator, device), &["features are too many"]);
    assert_refused(HostTensor::pinned(&[1 << 62], DType::F64, device), &["larger than the address space"]);
    assert_refused(
        HostTensor::pinned(&[(1 << 62) + 1], DType::F32, device),
        &["larger than the address space"],
    );
    assert_refused(Tensor::empty(&[0, usize::MAX, 4], DType::F32, device), &["more elements"]);
    assert_refused(generator.permutation(1 << 33), &["permutation"]);
    assert_refused(generator.below(0), &["no number below 0"]);
    assert_eq!(Tensor::ones(&[2], DType::F32, device).unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn empty_tensors_are_written_and_multiplied() {
    let device = &two_devices()[0];
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device).unwrap();
    let index = Tensor::zeros(&[1], DType::I64, device).unwrap();
    assert_refused(
        zeros(&[0, 2]).index_copy_(0, &index, &zeros(&[1, 2])),
        &["out of bounds for dimension 0 with size 0"],
    );
    zeros(&[2, 0]).index_copy_(0, &index, &zeros(&[1, 0])).unwrap();
    assert_refused(
        zeros(&[2, 0]).index_copy_(1, &index, &zeros(&[2, 1])),
        &["out of bounds for dimension 1 with size 0"],
    );
    zeros(&[3, 2])
        .index_copy_(0, &Tensor::zeros(&[0], DType::I64, device).unwrap(), &zeros(&[0, 2]))
        .unwrap();
    // An empty tensor is contiguous with any strides.
    let expanded = zeros(&[0, 3, 1]).expand(&[0, 3, 5]).unwrap();
    assert_eq!(expanded.matmul(&zeros(&[0, 5, 2])).unwrap().shape(), [0, 3, 2]);
    let wide = zeros(&[3, 1]).narrow(1, 0, 0).unwrap().expand(&[3, 0]).unwrap();
    assert_eq!(wide.matmul(&zeros(&[0, 2])).unwrap().to_vec::<f32>().unwrap(), [0.0; 6]);
    let thin = zeros(&[1, 1, 0]).expand(&[4, 7, 0]).unwrap();
    assert_eq!(thin.transpose(1, 2).unwrap().matmul(&zeros(&[4, 7, 2])).unwrap().shape(), [4, 0, 2]);
    let layer =
        linear(&zeros(&[1, 0]).expand(&[3, 0]).unwrap(), &zeros(&[2, 0]), Some(&zeros(&[2]))).unwrap();
    assert_eq!(layer.to_vec::<f32>().unwrap(), [0.0; 6]);
    assert_eq!(zeros(&[2]).to_vec::<f32>().unwrap(), [0.0, 0.0], "the device works");
}

#[test]
fn gradients_that_do_not_fit() {
    let devices = two_devices();
    let here = Tensor::ones(&[2], DType::F32, &devices[0]).unwrap().requires_grad_().unwrap();
    let there = Tensor::ones(&[2], DType::F32, &devices[1]).unwrap();
    let y = here.mul_scalar(2.0).unwrap();
    assert_refused(y.backward_with(&there), &["backward", "sim:1", "sim:0"]);
    assert_refused(
        gradients(&[y], &[Some(there.clone())], std::slice::from_ref(&here)),
        &["gradients", "sim:1"],
    );
    assert_refused(here.set_grad(Some(there)), &["set_grad", "sim:1"]);
    let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &devices[0]).unwrap();
    assert_refused(here.set_grad(Some(ones(&[3, 2], DType::F32))), &["set_grad", "[3, 2]"]);
    assert_refused(here.set_grad(Some(ones(&[2], DType::I64))), &["set_grad", "int64"]);
    assert_refused(here.set_grad(Some(ones(&[2], DType::F64))), &["set_grad", "float64"]);
    assert!(here.grad().is_none());
    Adam::new(vec![here.clone()], AdamOptions::default()).unwrap().step().unwrap();
    assert_eq!(here.detach().to_vec::<f32>().unwrap(), [1.0, 1.0], "there was no gradient");
}

#[test]
fn operators_called_by_name_check_their_sizes() {
    let x = random(&[2, 3], 1);
    let call = |name: &'static str, sizes: &[i64]| {
        let arguments = [(&x).into(), sizes.into()];
        find_operator(&format!("thalweg::{name}")).unwrap().call(&arguments, None, Label::here(name))
    };
    assert_refused(call("sum", &[7]), &["sum", "dimension 7 is out of range"]);
    assert_refused(call("sum", &[1, 1]), &["repeat"]);
    assert_refused(call("softmax", &[5]), &["softmax", "dimension 5 is out of range"]);
    assert_refused(call("softmax", &[0, 1]), &["softmax", "takes 1 dimensions, not 2"]);
    assert_refused(call("argmax", &[]), &["argmax", "takes 1 dimensions, not 0"]);
    assert_refused(call("causal_softmax", &[1]), &["causal_softmax"]);
    assert_refused(call("sum", &[-1]), &["sum", "at least 0"]);
}

#[test]
fn dtypes_that_do_not_fit() {
    let x = Tensor::zeros(&[2], DType::F32, &device()).unwrap();
    let truth = x.gt_scalar(0).unwrap();
    assert_refused(truth.sub(&truth), &["sub([2] bool", "with two bool tensors is not supported"]);
    assert_refused(x.to_vec::<i32>(), &["float32", "int32", "to_dtype"]);
    assert_refused(x.item::<f32>(), &["2 elements, not 1"]);
    assert_refused(
        Tensor::zeros(&[2], DType::I64, &device()).unwrap().requires_grad_(),
        &["only floating-point"],
    );
    let square = Tensor::zeros(&[2, 2], DType::F32, &device()).unwrap();
    assert_refused(
        square.matmul(&square.to_dtype(DType::F64).unwrap()),
        &["expected m1 and m2 to have the same dtype"],
    );
    let whole = square.to_dtype(DType::I32).unwrap();
    let truths = square.to_dtype(DType::Bool).unwrap();
    assert_refused(truths.matmul(&truths), &["bool is not supported"]);
    assert_refused(cross_entropy(&square, &x), &["classes are of int64"]);
    assert_refused(Tensor::arange(3, 0, 1, DType::Bool, &device()), &["arange", "not in bool"]);
    assert_refused(
        Adam::new(vec![whole], AdamOptions::default()),
        &["not a floating-point parameter without gaps"],
    );
    assert_refused(Adam::new(Vec::new(), AdamOptions::default()), &["no parameter"]);
}

#[test]
fn devices_that_do_not_fit() {
    let driver =
        SimDriver::new(SimConfig { devices: 2, memory_bytes: 64 << 20, ..SimConfig::default() }).unwrap();
    let devices = Device::all_of(driver, &Environment::default()).unwrap();
    let tensors: Vec<Tensor> =
        devices.iter().map(|device| Tensor::ones(&[2], DType::F32, device).unwrap()).collect();
    assert_refused(tensors[0].add(&tensors[1]), &["sim:0", "sim:1", "add([", "to_device"]);
    let error = Tensor::zeros(&[1 << 30], DType::F32, &devices[0]).unwrap_err();
    println!("{error}");
    assert!(error.is_out_of_memory() && error.to_string().contains("4.00 GiB"), "{error}");
    assert_eq!(values(&tensors[0]), [1.0, 1.0], "nothing was lost");
}

#[test]
fn writes_that_are_forbidden() {
    let x = random(&[3, 1], 1);
    assert_refused(x.expand(&[3, 2]).unwrap().copy_(&x), &["single memory location"]);
    let leaf = x.requires_grad_().unwrap();
    assert_refused(
        leaf.copy_(&x),
        &["a leaf Variable that requires grad is being used in an in-place operation", "no_grad"],
    );
    assert_refused(x.copy_(&random(&[4, 1], 2)), &["copy_"]);
    assert_refused(x.backward(), &["reduce it to one"]);
    assert_refused(leaf.backward_with(&random(&[3], 3)), &["the gradient is [3]"]);
    let pinned = HostTensor::pinned(&[2, 2], DType::F32, &device()).unwrap();
    assert_refused(pinned.write(3, &[0.0f32; 2]), &["elements 3 to 5", "[2, 2]"]);
    assert_refused(pinned.write(0, &[0.0f64]), &["float64"]);
    assert_refused(pinned.write(usize::MAX, &[0.0f32]), &["do not fit"]);
    assert_refused(x.copy_from_pinned(&pinned), &["copy_from_pinned", "[2, 2]"]);
}
