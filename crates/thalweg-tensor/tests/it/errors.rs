//! Errors name the call that the user made, once, with the tensors that were passed, and its line.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::gather::GatherRows;
use thalweg_nn::functional::{
    AttentionOptions, ConvOptions, PoolOptions, conv2d, cross_entropy, dropout, embedding, layer_norm,
    layer_norm_fork, linear, linear_add, max_pool2d, packed_attention, scaled_dot_product_attention,
};
use thalweg_nn::module::{
    Conv2d, Embedding, Forward, LayerNorm, Linear, Module, Transformer, TransformerOptions,
};
use thalweg_nn::optim::{Adam, AdamOptions, GradientScaler, GradientScalerOptions};
use thalweg_runtime::{CaptureOptions, Device, DevicePointer, Environment, Graph, Label, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::dispatch::find_operator;
use thalweg_tensor::random::{DeviceGenerator, Generator};
use thalweg_tensor::{NoGrad, Tensor, no_grad, try_no_grad};

use crate::support::{device, random};

/// Compares the beginning of an error's text, and its line with this call's; the text before `(` must occur once.
#[track_caller]
fn says<T>(result: Result<T>, beginning: &str) {
    let Err(error) = result else { panic!("the call should have been refused: {beginning}") };
    let (text, here) = (error.to_string(), Location::caller());
    let on_device = beginning.replace("sim:0", &device().to_string());
    assert!(text.starts_with(&on_device), "it begins otherwise: {text}");
    let (operator, _) = beginning.split_once(['(', ':']).expect("the operator is named");
    let again =
        text.matches(&format!("{operator}(")).count() + text.matches(&format!("{operator}: ")).count();
    assert_eq!(again, 1, "{operator} is named more than once: {text}");
    assert_eq!(text.matches(&format!("at {}:", file!())).count(), 1, "{text}");
    // The call that fails is in the lines of this call's arguments.
    let lines = here.line()..here.line() + 4;
    let location = error.location().expect("the error says where");
    assert!(location.file() == here.file() && lines.contains(&location.line()), "{lines:?}: {text}");
    assert!(!text.contains("/src/"), "a line of the library is named: {text}");
    assert_eq!(format!("{error:?}"), text);
}

#[test]
fn operators_name_the_call_and_its_line() {
    let (a, b) = (random(&[2, 3], 1), random(&[2, 4], 2));
    says(a.add(&b), "add([2, 3] float64 on sim:0, [2, 4] float64 on sim:0): shapes");
    says(a.sum(&[5], false), "sum([2, 3] float64 on sim:0): Dimension out of range");
    says(a.softmax(2), "softmax([2, 3] float64 on sim:0): Dimension out of range");
    says(a.argmax(-3), "argmax([2, 3] float64 on sim:0): Dimension out of range");
    says(a.size(2), "size([2, 3] float64 on sim:0): dimension 2");
    says(a.transpose(0, 2), "transpose([2, 3] float64 on sim:0): dimension 2");
    says(a.flatten_from(3), "flatten_from([2, 3] float64 on sim:0): ");
    says(a.copy_(&b), "copy_([2, 3] float64 on sim:0, [2, 4] float64 on sim:0): ");
    says(a.item::<f64>(), "item([2, 3] float64 on sim:0): the tensor has 6 elements");
    says(a.to_vec::<f32>(), "to_vec([2, 3] float64 on sim:0): the tensor is float64");
    says(
        random(&[], 3).size(0),
        "size([] float64 on sim:0): dimension 0 was asked for, but the tensor has no dimensions",
    );
    says(
        Tensor::full(&[2], 300, DType::U8, &device()),
        "full([2] uint8 on sim:0): value cannot be converted to type uint8_t without overflow: 300",
    );
    says(
        Tensor::zeros(&[1 << 62], DType::F64, &device()),
        "zeros([4611686018427387904] float64 on sim:0): Storage size calculation overflowed",
    );
    says(Tensor::arange(2, 0, 1, DType::Bool, &device()), "arange([2] bool on sim:0): ");
    says(Tensor::from_slice(&[1.0f32], &[2], &device()), "from_slice([2] float32 on sim:0): the shape has 2");
    let generator = DeviceGenerator::new(1, &device()).unwrap();
    says(generator.uniform(&[2], 1.0, 0.0, DType::F32), "uniform([2] float32 on sim:0): ");
    says(generator.normal(&[2], 0.0, -1.0, DType::F32), "normal([2] float32 on sim:0): ");
    says(generator.bernoulli(&[2], 2.0, DType::F32), "bernoulli([2] float32 on sim:0): ");
    says(dropout(&a, 2.0, true, &generator), "dropout([2, 3] float64 on sim:0): ");
    says(Generator::new(1).below(0), "below: there is no number");
}

#[test]
fn functions_name_the_tensors_that_were_passed() {
    let x = random(&[2, 3], 1);
    let bad = random(&[5, 2], 2);
    says(linear(&x, &bad, None), "linear([2, 3] float64 on sim:0, [5, 2] float64 on sim:0): the weight");
    let deep = random(&[2, 2, 3], 3);
    says(
        linear(&deep, &bad, None),
        "linear([2, 2, 3] float64 on sim:0, [5, 2] float64 on sim:0): the weight",
    );
    says(
        linear_add(&x, &random(&[5, 3], 2), None, &x),
        "linear_add([2, 3] float64 on sim:0, [5, 3] float64 on sim:0, [2, 3] float64 on sim:0): the addend",
    );
    let image = random(&[1, 1, 3, 3], 4);
    let weight = random(&[4, 1, 3, 3], 5).to_dtype(DType::F32).unwrap();
    says(
        conv2d(&image, &weight, None, ConvOptions::default()),
        "conv2d([1, 1, 3, 3] float64 on sim:0, [4, 1, 3, 3] float32 on sim:0): Input type (float64) and weight",
    );
    says(max_pool2d(&x, [2, 2], PoolOptions::default()), "max_pool2d([2, 3] float64 on sim:0): ");
    says(packed_attention(&x, true), "packed_attention([2, 3] float64 on sim:0): the input is");
    says(
        embedding(&x, &bad, None),
        "embedding([2, 3] float64 on sim:0, [5, 2] float64 on sim:0): the indices are",
    );
    says(
        scaled_dot_product_attention(&x, &bad, &bad, AttentionOptions::default()),
        "scaled_dot_product_attention([2, 3] float64 on sim:0, [5, 2] float64 on sim:0, [5, 2] float64 on sim:0): ",
    );
    says(layer_norm(&x, &[2], None, None, 1e-5), "layer_norm([2, 3] float64 on sim:0): ");
    says(layer_norm_fork(&x, &bad, &bad, 1e-5), "layer_norm_fork([2, 3] float64 on sim:0): ");
    says(
        cross_entropy(&x, &bad),
        "cross_entropy([2, 3] float64 on sim:0, [5, 2] float64 on sim:0): a target of floats",
    );
}

#[test]
fn modules_optimizers_and_backward_name_the_line_of_their_call() {
    let device = device();
    let mut generator = Generator::new(1);
    let bad = random(&[2, 7], 1).to_dtype(DType::F32).unwrap();
    let layer = Linear::new(3, 4, &mut generator, &device).unwrap();
    says(
        layer.forward(&bad),
        "linear([2, 7] float32 on sim:0, [4, 3] float32 on sim:0, [4] float32 on sim:0): ",
    );
    let conv = Conv2d::new(1, 1, [3; 2], ConvOptions::default(), &mut generator, &device).unwrap();
    says(conv.forward(&bad), "conv2d([2, 7] ");
    says(LayerNorm::new(3, &device).unwrap().forward(&bad), "layer_norm([2, 7] ");
    says(Embedding::new(3, 2, &mut generator, &device).unwrap().forward(&bad), "embedding([2, 7] ");
    let options = TransformerOptions { vocabulary: 5, context: 4, layers: 1, features: 4, heads: 2 };
    let transformer = Transformer::new(options, &mut generator, &device).unwrap();
    says(transformer.forward(&bad), "Transformer: 7 tokens");
    says(Linear::new(1 << 40, 1 << 40, &mut generator, &device), "uniform([1099511627776, 1099511627776] ");
    says(bad.backward(), "backward: shape [2, 7]");
    says(random(&[1], 1).backward(), "backward: this tensor does not require grad");
    says(bad.set_grad(Some(random(&[1], 1))), "set_grad: the gradient is [1]");
    says(Adam::new(vec![], AdamOptions::default()), "Adam: there is no parameter");
    let options = GradientScalerOptions { init_scale: -1.0, ..GradientScalerOptions::default() };
    says(GradientScaler::new(options, &device), "GradientScaler: ");
    let leaf = random(&[2], 2).requires_grad_().unwrap();
    let squared = leaf.mul(&leaf).unwrap().sum(&[], false).unwrap();
    no_grad(|| leaf.copy_(&random(&[2], 3))).unwrap();
    says(
        squared.backward(),
        "backward of mul: one of the variables needed for gradient computation has been modified by an inplace operation: a tensor [2]",
    );
}

#[test]
fn the_suspects_of_a_lost_device_are_lines_of_the_user() {
    let driver = SimDriver::new(SimConfig { devices: 1, ..SimConfig::default() }).unwrap();
    let device = Device::all_of(driver, &Environment::default()).unwrap().remove(0);
    let mut generator = Generator::new(1);
    let first = line!();
    let images = Tensor::uniform(&[2, 1, 6, 6], 0.0, 1.0, &mut generator, &device).unwrap();
    let conv = Conv2d::new(1, 2, [3; 2], ConvOptions::default(), &mut generator, &device).unwrap();
    let classifier = Linear::new(8, 3, &mut generator, &device).unwrap();
    let parameters = conv.parameters().into_iter().chain(classifier.parameters()).collect();
    let optimizer = Adam::new(parameters, AdamOptions::default()).unwrap();
    let classes = Tensor::zeros(&[2], DType::I64, &device).unwrap();
    device.synchronize().unwrap();
    let lost = || -> Result<()> {
        let pooled = max_pool2d(&conv.forward(&images)?.relu()?, [2, 2], PoolOptions::default())?;
        let loss = cross_entropy(&classifier.forward(&pooled.flatten_from(1)?)?, &classes)?;
        let scaler = GradientScaler::new(GradientScalerOptions::default(), &device)?;
        scaler.scale(&loss)?.backward()?;
        scaler.step(&optimizer)?;
        scaler.update()?;
        Ok(())
    };
    lost().unwrap();
    // A kernel that reads unmapped memory, after everything else: all work that is not known to be complete is suspect.
    let sizes = GatherRows { sizes: [1, 2, 2, 16], index_stride: 1, fill: 0, vectors: 1 };
    let pointers = [DevicePointer::new(1 << 20), classes.pointer(), images.pointer()];
    let stream = device.current_stream();
    let failed = stream.launch_native(&Placed { kernel: sizes, at: pointers }, Label::here("wild"));
    let error = failed.and_then(|()| stream.synchronize()).expect_err("the device is lost");
    let suspects = error.possible_causes();
    println!("{error}");
    assert!(error.is_device_lost() && suspects.iter().any(|label| label.operator == "wild"), "{error}");
    assert!(suspects.len() > 10, "what the step submitted is not known to be complete: {error}");
    for label in suspects {
        assert_eq!(label.location.file(), file!(), "{label} in {error}");
        assert!((first..line!()).contains(&label.location.line()), "{label}");
    }
}

/// Errors of calls without a tensor, or without an operator, name their lines as well.
#[test]
fn calls_without_tensors_name_their_lines() {
    #[track_caller]
    fn is_here<T>(result: Result<T>, text: &str) {
        let Err(error) = result else { panic!("the call should have been refused: {text}") };
        let location = error.location().expect("the error says where");
        assert_eq!((location.file(), location.line()), (file!(), Location::caller().line()), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    is_here(Device::from_name("sim:x"), "is not a device number");
    is_here(find_operator("no_such_operator"), "there is no operator no_such_operator");
    is_here(autocast(DType::F64, || Ok(())), "not in float64");
    is_here(Tensor::cat(&[], 0), "expected a non-empty list of tensors");
    is_here(Tensor::stack(&[], 0), "expected a non-empty list of tensors");
}

#[test]
fn backward_says_what_a_tensor_without_a_history_may_lack() -> Result<()> {
    let x = random(&[3], 1).requires_grad_()?;
    let gradient = {
        x.square()?.sum(&[], false)?.backward()?;
        x.grad().expect("it was computed")
    };
    let text = gradient.sum(&[], false)?.backward().unwrap_err().to_string();
    assert!(text.contains("create_graph") && text.contains("no_grad"), "{text}");
    // An operator is called by its public name.
    let y = x.square()?;
    no_grad(|| x.add_scalar_(1.0))?;
    let text = y.sum(&[], false)?.backward().unwrap_err().to_string();
    assert!(text.contains("backward of square") && !text.contains("square_of"), "{text}");
    Ok(())
}

#[test]
fn nothing_is_recorded_while_the_guard_lives() -> Result<()> {
    let x = random(&[3], 1).requires_grad_()?;
    {
        let _no_grad = NoGrad::new();
        assert!(!x.square()?.requires_grad());
    }
    assert!(x.square()?.requires_grad());
    let y = try_no_grad(|| {
        let y = x.square()?;
        y.square()
    })?;
    assert!(!y.requires_grad() && x.square()?.requires_grad());
    Ok(())
}

#[test]
fn text_of_a_tensor_leaves_a_capture_alone() -> Result<()> {
    let x = random(&[3], 1);
    let (graph, text) = Graph::capture(&device(), CaptureOptions::default(), || {
        let y = x.mul_scalar(2.0)?;
        Ok((y.to_string(), y))
    })?;
    graph.replay()?;
    assert!(text.0.contains("is not read while the stream captures"), "{}", text.0);
    assert_eq!(text.1.to_vec::<f64>()?, x.mul_scalar(2.0)?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn what_cannot_be_made_is_named_as_it_was_called() {
    let shape = [1usize << 45];
    for (name, made) in [
        ("zeros", Tensor::zeros(&shape, DType::F32, &device())),
        ("ones", Tensor::ones(&shape, DType::F32, &device())),
        ("full", Tensor::full(&shape, 1.0, DType::F32, &device())),
    ] {
        let error = made.unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().starts_with(&format!("{name}([")), "{error}");
        assert_eq!(error.location().map(|location| location.file()), Some(file!()));
    }
}

#[test]
fn a_fill_that_is_refused_is_named_as_such() {
    let leaf = Tensor::zeros(&[2], DType::F32, &device()).unwrap().requires_grad_().unwrap();
    let error = leaf.fill_(1.0).unwrap_err();
    assert!(error.to_string().starts_with("fill_([2] float32"), "{error}");
    assert_eq!(error.location().map(|location| location.file()), Some(file!()));
}
