//! Graphed callables: the numbers and gradients of the functions themselves, or an error.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_ir::DType;
use thalweg_nn::functional::linear;
use thalweg_nn::module::callable;
use thalweg_nn::module::{Forward, Linear};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with};
use thalweg_tensor::graph::callable::{Callable, function};
use thalweg_tensor::graph::{CallableOptions, GraphedCallable, LiveOutputs, make_graphed_callables};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::own_device as device;

fn uniform(shape: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    Tensor::uniform(shape, -1.0, 1.0, &mut Generator::new(seed), device)
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.detach().to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// A layer of two parameters, as a closure and as a callable.
#[derive(Clone)]
struct Layer {
    weight: Tensor,
    bias: Tensor,
}

impl Layer {
    fn new(seed: u64, device: &Device) -> Result<Self> {
        let weight = uniform(&[5, 5], seed, device)?.requires_grad_()?;
        Ok(Self { weight, bias: uniform(&[5], seed + 100, device)?.requires_grad_()? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.weight, Some(&self.bias))?.tanh()
    }

    fn callable(&self, name: &str) -> Box<dyn Callable> {
        let layer = self.clone();
        let parameters = vec![self.weight.clone(), self.bias.clone()];
        function(name, parameters, move |inputs| Ok(vec![layer.forward(&inputs[0])?]))
    }
}

fn layers(device: &Device) -> Result<Vec<Layer>> {
    (0..3).map(|seed| Layer::new(seed, device)).collect()
}

fn graphed(
    layers: &[Layer],
    options: &CallableOptions,
    requires_grad: bool,
    device: &Device,
) -> Result<Vec<GraphedCallable>> {
    let callables = layers.iter().map(|layer| layer.callable("layer")).collect();
    let sample = || {
        let sample = uniform(&[4, 5], 50, device)?;
        Ok(vec![if requires_grad { sample.requires_grad_()? } else { sample }])
    };
    let samples = layers.iter().map(|_| sample()).collect::<Result<_>>()?;
    make_graphed_callables(device, callables, samples, options)
}

/// Returns a step of the layers in sequence: the bits of the result, of the input's gradient and of all parameters'.
fn step(
    layers: &[Layer],
    seed: u64,
    device: &Device,
    mut call: impl FnMut(usize, &Tensor) -> Result<Tensor>,
) -> Result<Vec<Vec<u32>>> {
    layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]).for_each(|tensor| tensor.zero_grad());
    let input = uniform(&[4, 5], seed, device)?.requires_grad_()?;
    let mut x = input.clone();
    for index in 0..layers.len() {
        x = call(index, &x)?;
    }
    x.square()?.sum(&[], false)?.backward()?;
    let leaves = layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]).chain([&input]);
    let mut all = vec![bits(&x)?];
    for leaf in leaves {
        all.push(bits(&leaf.grad().expect("every leaf has a gradient"))?);
    }
    Ok(all)
}

#[test]
fn a_chain_gives_the_numbers_and_gradients_of_the_layers() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let layers = layers(&device).unwrap();
    let graphed = graphed(&layers, &CallableOptions::default(), true, &device).unwrap();
    for seed in 10..15 {
        let expected = step(&layers, seed, &device, |index, x| layers[index].forward(x)).unwrap();
        let found =
            step(&layers, seed, &device, |index, x| Ok(graphed[index].call(from_ref(x))?.remove(0))).unwrap();
        assert_eq!(found, expected, "step {seed}");
    }
    assert_eq!(graphed[0].pool().id(), graphed[2].pool().id());
}

#[test]
fn a_chain_passes_the_sanitizer_also_across_streams() {
    Check::new().seeds(0..6).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let layers = layers(device)?;
        let options = CallableOptions { warm_up: 1, ..CallableOptions::default() };
        let graphed = graphed(&layers, &options, true, device)?;
        for seed in 10..13 {
            // The default stream's work comes before that of a stream that has waited for it, and vice versa.
            let before = device.current_stream();
            let stream = Stream::new(device)?;
            stream.wait_stream(&before)?;
            {
                let _current = stream.make_current();
                let expected = step(&layers, seed, device, |index, x| layers[index].forward(x))?;
                let found =
                    step(&layers, seed, device, |index, x| Ok(graphed[index].call(from_ref(x))?.remove(0)))?;
                assert_eq!(found, expected);
                layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]).for_each(|one| one.zero_grad());
            }
            before.wait_stream(&stream)?;
        }
        device.synchronize()
    });
}

#[test]
fn gradients_accumulate_over_microbatches() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let layers = vec![Layer::new(1, &device).unwrap()];
    let graphed = graphed(&layers, &CallableOptions::default(), false, &device).unwrap();
    let accumulate = |call: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<u32>> {
        layers[0].weight.zero_grad();
        for seed in 20..24 {
            call(&uniform(&[4, 5], seed, &device)?)?.sum(&[], false)?.backward()?;
        }
        bits(&layers[0].weight.grad().expect("accumulated"))
    };
    let expected = accumulate(&|x| layers[0].forward(x)).unwrap();
    let found = accumulate(&|x| Ok(graphed[0].call(from_ref(x))?.remove(0))).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn inputs_are_copied_only_where_they_lie_elsewhere() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let own = uniform(&[4, 5], 1, &device).unwrap();
    let double = function("double", Vec::new(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]));
    let options = CallableOptions::default();
    let graphed = make_graphed_callables(&device, vec![double], vec![vec![own.clone()]], &options).unwrap();
    let before = own.to_vec::<f32>().unwrap();
    let found = graphed[0].call(from_ref(&own)).unwrap()[0].to_vec::<f32>().unwrap();
    assert_eq!(found, before.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    // Another tensor lands in the sample, transposed ones too.
    let other = uniform(&[5, 4], 2, &device).unwrap().transpose(0, 1).unwrap();
    let found = graphed[0].call(from_ref(&other)).unwrap()[0].to_vec::<f32>().unwrap();
    let expected = other.to_vec::<f32>().unwrap();
    assert_eq!(found, expected.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    assert_eq!(own.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn a_held_result_is_refused_or_moved_but_never_overwritten() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let x = |seed| uniform(&[4, 5], seed, &device).unwrap();
    for live_outputs in [LiveOutputs::Refuse, LiveOutputs::Clone] {
        let layers = vec![Layer::new(1, &device).unwrap()];
        let options = CallableOptions { live_outputs, ..CallableOptions::default() };
        let graphed = graphed(&layers, &options, false, &device).unwrap();
        let first = no_grad(|| graphed[0].call(&[x(1)])).unwrap().remove(0);
        let (address, value) = (first.pointer(), bits(&first).unwrap());
        let second = no_grad(|| graphed[0].call(&[x(2)]));
        match live_outputs {
            LiveOutputs::Refuse => {
                let error = second.unwrap_err();
                assert!(
                    error.is_invalid_argument() && error.to_string().contains("graph_callable.rs"),
                    "{error}"
                );
                assert_eq!(first.pointer(), address);
                assert_eq!(bits(&first).unwrap(), value);
                drop(first);
                no_grad(|| graphed[0].call(&[x(2)])).unwrap();
            }
            LiveOutputs::Clone => {
                let second = second.unwrap().remove(0);
                assert_eq!(second.pointer(), address);
                assert_ne!(first.pointer(), address);
                assert_eq!(bits(&first).unwrap(), value);
                assert_eq!(bits(&second).unwrap(), bits(&layers[0].forward(&x(2)).unwrap()).unwrap());
            }
        }
    }
}

#[test]
fn a_transposed_view_of_the_sample_is_an_input_like_any_other() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let own = uniform(&[4, 4], 1, &device).unwrap();
    let double = function("double", Vec::new(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]));
    let options = CallableOptions::default();
    let graphed = make_graphed_callables(&device, vec![double], vec![vec![own.clone()]], &options).unwrap();
    let view = own.transpose(0, 1).unwrap();
    let expected: Vec<f32> = view.to_vec::<f32>().unwrap().iter().map(|x| 2.0 * x).collect();
    match graphed[0].call(from_ref(&view)) {
        Ok(results) => assert_eq!(results[0].to_vec::<f32>().unwrap(), expected),
        // The same elements, read and written in another order.
        Err(error) => assert!(error.is_invalid_argument(), "{error}"),
    }
}

#[test]
fn a_held_result_of_a_later_callable_is_moved_too() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    // The first one's intermediate values share memory with the second one's result.
    let chain = |name: &str| {
        function(name, Vec::new(), |inputs| {
            let mut x = inputs[0].mul_scalar(2.0)?;
            for _ in 0..3 {
                x = x.add_scalar(1.0)?;
            }
            Ok(vec![x.mul_scalar(1.0)?])
        })
    };
    let sample = || vec![uniform(&[4, 5], 1, &device).unwrap()];
    for live_outputs in [LiveOutputs::Refuse, LiveOutputs::Clone] {
        let options = CallableOptions { live_outputs, ..CallableOptions::default() };
        let (callables, samples) = (vec![chain("first"), chain("second")], vec![sample(), sample()]);
        let graphed = make_graphed_callables(&device, callables, samples, &options).unwrap();
        let x = uniform(&[4, 5], 2, &device).unwrap();
        graphed[0].call(from_ref(&x)).unwrap();
        let held = graphed[1].call(from_ref(&x)).unwrap().remove(0);
        let (address, before) = (held.pointer(), bits(&held).unwrap());
        let again = graphed[0].call(&[uniform(&[4, 5], 3, &device).unwrap()]);
        assert_eq!(again.is_err(), live_outputs == LiveOutputs::Refuse);
        assert_eq!(held.pointer() == address, live_outputs == LiveOutputs::Refuse);
        assert_eq!(bits(&held).unwrap(), before);
    }
}

#[test]
fn backward_behind_a_later_forward_is_an_error_and_not_a_wrong_number() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let layers = layers(&device).unwrap();
    let options = CallableOptions { live_outputs: LiveOutputs::Clone, ..CallableOptions::default() };
    let graphed = graphed(&layers, &options, false, &device).unwrap();
    let x = uniform(&[4, 5], 1, &device).unwrap();
    let call = |index: usize| graphed[index].call(from_ref(&x)).unwrap().remove(0).sum(&[], false).unwrap();
    let (middle, last) = (call(1), call(2));
    last.backward().unwrap();
    last.backward().unwrap();
    middle.backward().unwrap();
    let (middle, first) = (call(1), call(0));
    let error = middle.backward().unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("overwritten"), "{error}");
    first.backward().unwrap();
    assert!(layers[0].weight.grad().is_some());
    // After a later call of the same callable, and after the backward pass of an earlier one.
    let overwritten = |loss: &Tensor| {
        let error = loss.backward().unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("overwritten"), "{error}");
    };
    let (stale, fresh) = (call(0), call(0));
    overwritten(&stale);
    fresh.backward().unwrap();
    let (first, middle) = (call(0), call(1));
    first.backward().unwrap();
    overwritten(&middle);
    // The samples required no gradient.
    let wanted = uniform(&[4, 5], 1, &device).unwrap().requires_grad_().unwrap();
    let error = graphed[0].call(from_ref(&wanted)).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("gradients where"), "{error}");
}

/// A callable whose training can be switched, with a buffer.
struct Switch {
    is_training: Arc<AtomicBool>,
    buffer: Tensor,
}

impl Callable for Switch {
    fn name(&self) -> &str {
        "switch"
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let factor = if self.is_training() { 2.0 } else { 3.0 };
        Ok(vec![inputs[0].mul_scalar(factor)?.add(&self.buffer)?, self.buffer.clone(), inputs[0].clone()])
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }

    fn buffers(&self) -> Vec<Tensor> {
        vec![self.buffer.clone()]
    }

    fn is_training(&self) -> bool {
        self.is_training.load(Ordering::Relaxed)
    }
}

#[test]
fn a_second_derivative_is_an_error() {
    let device = device();
    let layers = layers(&device).unwrap();
    let callables = vec![layers[0].callable("layer")];
    let x = uniform(&[4, 5], 50, &device).unwrap().requires_grad_().unwrap();
    let graphed =
        make_graphed_callables(&device, callables, vec![vec![x.clone()]], &CallableOptions::default())
            .unwrap();
    let y = graphed[0].call(from_ref(&x)).unwrap().remove(0);
    let create = BackwardOptions { retain_graph: true, create_graph: true };
    let from = y.detach().requires_grad_().unwrap();
    let gradient =
        gradients_with(from_ref(&y), &[Some(from.clone())], from_ref(&x), create).unwrap().remove(0).unwrap();
    let error = gradients(&[gradient], &[Some(x.detach())], &[from]).unwrap_err().to_string();
    assert!(error.contains("graphed_callable cannot be differentiated again"), "{error}");
}

#[test]
fn the_function_itself_is_called_where_training_differs() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let is_training = Arc::new(AtomicBool::new(true));
    let buffer = Tensor::ones(&[2], DType::F32, &device).unwrap();
    let switch = Switch { is_training: is_training.clone(), buffer: buffer.clone() };
    let sample = Tensor::zeros(&[2], DType::F32, &device).unwrap();
    let options = CallableOptions::default();
    let graphed =
        make_graphed_callables(&device, vec![Box::new(switch)], vec![vec![sample]], &options).unwrap();
    let x = Tensor::full(&[2], 10.0, DType::F32, &device).unwrap();
    let results = graphed[0].call(from_ref(&x)).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [21.0; 2]);
    assert!(results[1].shares_storage_with(&buffer), "a result from elsewhere is itself");
    assert_eq!(results[2].to_vec::<f32>().unwrap(), [10.0; 2], "an input is a copy");
    drop(results);
    is_training.store(false, Ordering::Relaxed);
    assert_eq!(graphed[0].call(from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap(), [31.0; 2]);
    is_training.store(true, Ordering::Relaxed);
    assert_eq!(graphed[0].call(&[x]).unwrap()[0].to_vec::<f32>().unwrap(), [21.0; 2]);
}

#[test]
fn what_cannot_be_graphed_is_refused_and_leaves_all_usable() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let x = || uniform(&[4, 5], 1, &device).unwrap();
    let make = |callable: Box<dyn Callable>, samples: Vec<Tensor>| {
        make_graphed_callables(&device, vec![callable], vec![samples], &CallableOptions::default())
    };
    let buffer = x().requires_grad_().unwrap();
    let switch = Switch { is_training: Arc::new(AtomicBool::new(true)), buffer };
    let error = make(Box::new(switch), vec![x()]).unwrap_err();
    assert!(error.to_string().contains("buffer"), "{error}");
    let kept = thalweg_lock::Mutex::new(None);
    let keeps = function("keeps", Vec::new(), move |inputs| {
        let result = inputs[0].mul_scalar(2.0)?;
        *kept.lock() = Some(result.clone());
        Ok(vec![result])
    });
    let error = make(keeps, vec![x()]).unwrap_err();
    assert!(error.to_string().contains("keeps"), "{error}");
    let reads = function("reads", Vec::new(), |inputs| {
        inputs[0].to_vec::<f32>()?;
        Ok(inputs.to_vec())
    });
    assert!(make(reads, vec![x()]).unwrap_err().is_capture());
    let repeated = x().select(0, 0).unwrap().expand(&[4, 5]).unwrap();
    let layer = Layer::new(1, &device).unwrap();
    let error = make(layer.callable("layer"), vec![repeated]).unwrap_err().to_string();
    assert!(error.contains("a place of its own for each element"), "{error}");
    let ignores = function("ignores", Vec::new(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]));
    let samples = vec![x().requires_grad_().unwrap(), x().requires_grad_().unwrap()];
    let error = make(ignores, samples.clone()).unwrap_err();
    assert!(error.to_string().contains("input 1"), "{error}");
    assert!(
        make_graphed_callables(&device, Vec::new(), vec![Vec::new()], &CallableOptions::default()).is_err()
    );
    // With the option, an input that nothing depends on has no gradient.
    let ignores = function("ignores", Vec::new(), |inputs| Ok(vec![inputs[0].mul_scalar(2.0)?]));
    let options = CallableOptions { allow_unused_input: true, ..CallableOptions::default() };
    let graphed = make_graphed_callables(&device, vec![ignores], vec![samples], &options).unwrap();
    let [used, unused] =
        [2, 3].map(|seed| uniform(&[4, 5], seed, &device).unwrap().requires_grad_().unwrap());
    let result = graphed[0].call(&[used.clone(), unused.clone()]).unwrap().remove(0);
    result.sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(used.grad().unwrap().to_vec::<f32>().unwrap(), [2.0; 20]);
    assert!(unused.grad().is_none());
    drop(result);
    for wrong in [vec![x()], vec![x(), uniform(&[4, 6], 1, &device).unwrap()]] {
        assert!(graphed[0].call(&wrong).unwrap_err().is_invalid_argument());
    }
}

#[test]
fn modules_and_calls_without_gradients_have_forward_graphs() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let layer = Linear::new(5, 3, &mut Generator::new(1), &device).unwrap();
    let x = uniform(&[4, 5], 1, &device).unwrap();
    let expected = bits(&layer.forward(&x).unwrap()).unwrap();
    let options = CallableOptions::default();
    let sample = || vec![vec![Tensor::zeros(&[4, 5], DType::F32, &device).unwrap()]];
    let graphed =
        no_grad(|| make_graphed_callables(&device, vec![callable(layer.clone())], sample(), &options))
            .unwrap();
    let result = graphed[0].call(from_ref(&x)).unwrap().remove(0);
    assert!(!result.requires_grad());
    assert_eq!(bits(&result).unwrap(), expected);
    let graphed = make_graphed_callables(&device, vec![callable(layer)], sample(), &options).unwrap();
    assert!(graphed[0].call(from_ref(&x)).unwrap()[0].requires_grad());
    // A result outlives the callable.
    let result = no_grad(|| graphed[0].call(&[x])).unwrap().remove(0);
    drop(graphed);
    assert_eq!(bits(&result).unwrap(), expected);
}

#[test]
fn gradients_are_those_of_backward_and_leave_the_leaves_alone() {
    let device = device();
    let layer = Layer::new(1, &device).unwrap();
    let x = uniform(&[4, 5], 2, &device).unwrap().requires_grad_().unwrap();
    let middle = layer.forward(&x).unwrap();
    let loss = layer.forward(&middle).unwrap().square().unwrap().sum(&[], false).unwrap();
    let one = Tensor::ones(&[], DType::F32, &device).unwrap();
    let unrelated = x.detach().requires_grad_().unwrap();
    let retained = BackwardOptions { retain_graph: true, create_graph: false };
    let targets = [layer.weight.clone(), middle.clone(), x.clone(), unrelated];
    let found = gradients_with(from_ref(&loss), &[Some(one.clone())], &targets, retained).unwrap();
    assert!(layer.weight.grad().is_none() && x.grad().is_none());
    assert!(found[3].is_none());
    loss.backward_options(None, retained).unwrap();
    assert_eq!(bits(found[0].as_ref().unwrap()).unwrap(), bits(&layer.weight.grad().unwrap()).unwrap());
    assert_eq!(bits(found[2].as_ref().unwrap()).unwrap(), bits(&x.grad().unwrap()).unwrap());
    assert_eq!(found[1].as_ref().unwrap().shape(), middle.shape());
    // Two roots add up.
    let outputs = [loss.clone(), loss];
    let twice = gradients(&outputs, &[Some(one.clone()), Some(one)], &targets[..1]).unwrap();
    let twice = twice[0].as_ref().unwrap().to_vec::<f32>().unwrap();
    let once = layer.weight.grad().unwrap().to_vec::<f32>().unwrap();
    assert!(twice.iter().zip(&once).all(|(twice, once)| (twice - 2.0 * once).abs() <= 1e-5 * once.abs()));
    assert!(gradients(&outputs, &[None], &[]).is_err());
    assert!(gradients(&outputs[..1], &[Some(middle)], &[]).is_err());
}
