//! Hooks of backward passes: their order, the results that they may return, streams, and tensors that are saved by hooks. The
//! expectations are PyTorch 2.11's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_runtime::sim::{Check, Gpu, Problem};
use thalweg_runtime::{Device, Result, Stream};
use thalweg_sanitizer::FindingKind;
use thalweg_tensor::autocast::{AutocastOptions, Region, is_autocast_enabled};
use thalweg_tensor::autograd::{
    Backward, BackwardOptions, Gradients, enter_saved_tensors_hooks, gradients, gradients_with,
    is_anomaly_check_nan_enabled, is_anomaly_enabled, is_grad_enabled, is_inference_mode_enabled,
    record_function, save_on_cpu, saved_tensors_hooks, set_anomaly_enabled, set_inference_mode_enabled,
};
use thalweg_tensor::graph::{CallableOptions, callable::function, make_graphed_callables};
use thalweg_tensor::random::{DeviceGenerator, default_generator, with_generator};
use thalweg_tensor::{NoGrad, Tensor, no_grad};

use crate::support::{device, tensor, values};

fn leaf(numbers: &[f64]) -> Tensor {
    tensor(numbers, &[numbers.len()], DType::F32).requires_grad_().unwrap()
}

fn sum(x: &Tensor) -> Tensor {
    x.sum(&[], false).unwrap()
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, words: &str) {
    let error = result.err().expect("an error");
    assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
}

#[test]
fn hooks_run_in_pytorchs_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let log = log.clone();
        move |number: f64| log.lock().push((name, number))
    };
    let x = leaf(&[1.0]);
    let y = x.mul_scalar(2.0).unwrap();
    let node = y.grad_fn().unwrap();
    assert_eq!(node.name(), "mul_scalar");
    let before = note("before");
    node.register_prehook(move |gradients| {
        before(values(gradients[0].as_ref().unwrap())[0]);
        Ok(None)
    });
    let after = note("after");
    node.register_hook(move |inputs, outputs| {
        after(values(inputs[0].as_ref().unwrap())[0] * 100.0 + values(outputs[0].as_ref().unwrap())[0]);
        Ok(None)
    });
    y.retain_grad().unwrap();
    let (first, kept) = (note("first"), y.clone());
    y.register_hook(move |gradient| {
        first(values(gradient)[0]);
        assert!(kept.grad().is_none(), "kept behind the hooks, whenever they were registered");
        gradient.mul_scalar(3.0).map(Some)
    })
    .unwrap();
    let second = note("second");
    y.register_hook(move |gradient| {
        second(values(gradient)[0]);
        gradient.mul_scalar(5.0).map(Some)
    })
    .unwrap();
    let arriving = note("leaf");
    x.register_hook(move |gradient| {
        arriving(values(gradient)[0]);
        Ok(None)
    })
    .unwrap();
    let accumulated = note("accumulated");
    x.register_post_accumulate_grad_hook(move |x| {
        accumulated(values(&x.grad().unwrap())[0]);
        Ok(())
    })
    .unwrap();
    sum(&y).backward().unwrap();
    let expected = [
        ("first", 1.0),
        ("second", 3.0),
        ("before", 15.0),
        ("after", 3015.0),
        ("leaf", 30.0),
        ("accumulated", 30.0),
    ];
    assert_eq!(*log.lock(), expected);
    assert_eq!(values(&y.grad().unwrap()), [15.0]);
}

#[test]
fn a_hook_sees_the_sum_of_what_arrives_and_can_be_removed() {
    let x = leaf(&[1.0, 2.0]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = seen.clone();
    let handle = x
        .register_hook(move |gradient| {
            list.lock().push(values(gradient));
            gradient.mul_scalar(10.0).map(Some)
        })
        .unwrap();
    let run = || {
        x.zero_grad();
        sum(&x.square().unwrap().add(&x.mul_scalar(3.0).unwrap()).unwrap()).backward().unwrap();
        values(&x.grad().unwrap())
    };
    assert_eq!(run(), [50.0, 70.0]);
    assert_eq!(run(), [50.0, 70.0]);
    assert_eq!(*seen.lock(), [[5.0, 7.0], [5.0, 7.0]]);
    handle.clone().remove();
    handle.remove();
    assert_eq!(run(), [5.0, 7.0]);
}

#[test]
fn the_gradients_of_inputs_are_what_their_hooks_left() {
    for beyond in [false, true] {
        let x = leaf(&[1.0]);
        let y = x.mul_scalar(2.0).unwrap();
        y.retain_grad().unwrap();
        y.register_hook(|gradient| gradient.mul_scalar(10.0).map(Some)).unwrap();
        x.register_hook(|gradient| gradient.mul_scalar(7.0).map(Some)).unwrap();
        let z = sum(&y.mul_scalar(3.0).unwrap());
        let one = Tensor::ones(&[], DType::F32, &device()).unwrap();
        let inputs = if beyond { vec![y.clone(), x.clone()] } else { vec![y.clone()] };
        let found = gradients(&[z], &[Some(one)], &inputs).unwrap();
        assert_eq!(values(found[0].as_ref().unwrap()), [30.0]);
        assert_eq!(values(&y.grad().unwrap()), [30.0]);
        if beyond {
            assert_eq!(values(found[1].as_ref().unwrap()), [420.0]);
        }
        assert!(x.grad().is_none());
    }
}

#[test]
fn results_of_hooks_must_fit() {
    let x = leaf(&[1.0]);
    let y = x.mul_scalar(1.0).unwrap();
    let fails = |words: &str| assert_refused(y.backward_options(None, RETAINED), words);
    let shape = y.register_hook(|_| Tensor::ones(&[3], DType::F32, &device()).map(Some)).unwrap();
    fails("has changed the size of value (was [1] got [3])");
    shape.remove();
    let dtype = y.register_hook(|gradient| gradient.to_dtype(DType::F64).map(Some)).unwrap();
    fails("has changed the type of value (was float32 got float64)");
    dtype.remove();
    let node = y.grad_fn().unwrap();
    let count = node.register_prehook(|_| Ok(Some([].into_iter().collect())));
    fails("has returned an incorrect number of values (got 0, but expected 1)");
    count.remove();
    let error = y.register_hook(|_| Err(thalweg_runtime::Error::invalid("on purpose"))).unwrap();
    fails("on purpose");
    error.remove();
    assert!(x.grad().is_none());
    y.backward().unwrap();
    // A missing gradient that no hook replaces is zero.
    x.zero_grad();
    let y = x.mul_scalar(1.0).unwrap();
    y.grad_fn().unwrap().register_hook(|_, _| Ok(Some([None].into_iter().collect())));
    y.backward().unwrap();
    assert!(x.grad().is_none());
}

const RETAINED: BackwardOptions = BackwardOptions { retain_graph: true, create_graph: false };

#[test]
fn what_has_no_gradient_has_no_hooks() {
    let plain = leaf(&[1.0]).detach();
    const NONE: &str = "cannot register a hook on a tensor that doesn't require gradient";
    assert_refused(plain.register_hook(|_| Ok(None)), NONE);
    assert_refused(plain.register_post_accumulate_grad_hook(|_| Ok(())), NONE);
    assert_refused(plain.retain_grad(), "can't retain_grad on Tensor that has requires_grad=False");
    let result = leaf(&[1.0]).mul_scalar(2.0).unwrap();
    assert_refused(
        result.register_post_accumulate_grad_hook(|_| Ok(())),
        "post accumulate grad hooks cannot be registered on non-leaf tensors",
    );
    let x = leaf(&[1.0]);
    x.retain_grad().unwrap();
    assert!(!x.retains_grad() && x.grad_fn().is_none());
}

#[test]
fn a_retained_gradient_adds_up_and_follows_writes_in_place() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.mul_scalar(2.0).unwrap();
    assert!(!y.retains_grad());
    y.retain_grad().unwrap();
    y.retain_grad().unwrap();
    let z = sum(&y.square().unwrap());
    z.backward_options(None, RETAINED).unwrap();
    z.backward().unwrap();
    assert_eq!(values(&y.grad().unwrap()), [8.0, 16.0]);
    // The leaf's gradient does not share this memory.
    no_grad(|| y.grad().unwrap().copy_(&x)).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [16.0, 32.0]);

    let y = x.mul_scalar(2.0).unwrap();
    let early = Arc::new(Mutex::new(Vec::new()));
    let list = early.clone();
    y.register_hook(move |gradient| {
        list.lock().extend(values(gradient));
        Ok(None)
    })
    .unwrap();
    y.retain_grad().unwrap();
    y.mul_scalar_(5.0).unwrap();
    assert!(y.retains_grad());
    sum(&y.mul_scalar(3.0).unwrap()).backward().unwrap();
    assert_eq!(values(&y.grad().unwrap()), [3.0, 3.0], "of the value that was written");
    assert_eq!(*early.lock(), [15.0, 15.0], "of the value before");
}

#[test]
fn a_leaf_steps_and_frees_its_gradient_while_backward_runs() {
    let (a, b) = (leaf(&[1.0]), leaf(&[2.0]));
    for parameter in [&a, &b] {
        parameter
            .register_post_accumulate_grad_hook(|parameter| {
                let step = parameter.grad().expect("it has accumulated").mul_scalar(0.5)?;
                parameter.copy_(&parameter.sub(&step)?)?;
                parameter.zero_grad();
                Ok(())
            })
            .unwrap();
    }
    sum(&a.mul_scalar(4.0).unwrap().add(&b.mul_scalar(6.0).unwrap()).unwrap()).backward().unwrap();
    assert_eq!((values(&a), values(&b)), (vec![-1.0], vec![-1.0]));
    assert!(a.grad().is_none() && b.grad().is_none());
}

#[test]
fn hooks_are_recorded_where_gradients_of_gradients_are_asked_for() {
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    y.register_hook(|gradient| gradient.square().map(Some)).unwrap();
    let start = Tensor::full(&[1], 5.0, DType::F32, &device()).unwrap().requires_grad_().unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = gradients_with(&[y], &[Some(start.clone())], std::slice::from_ref(&x), options).unwrap();
    // 2 x g²: with respect to g it is 4 x g, with respect to x 2 g².
    let first = first[0].clone().unwrap();
    assert_eq!(values(&first), [150.0]);
    sum(&first).backward().unwrap();
    assert_eq!((values(&start.grad().unwrap()), values(&x.grad().unwrap())), (vec![60.0], vec![50.0]));
}

#[test]
fn a_captured_backward_pass_takes_no_parameters_with_hooks() {
    let device = crate::support::own_device();
    let weight = Tensor::ones(&[2], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let sample = Tensor::ones(&[2], DType::F32, &device).unwrap();
    let graphed = |weight: &Tensor| {
        let parameter = weight.clone();
        let body = move |inputs: &[Tensor]| Ok(vec![inputs[0].mul(&parameter)?]);
        let callable = function("product", vec![weight.clone()], body);
        make_graphed_callables(
            &device,
            vec![callable],
            vec![vec![sample.clone()]],
            &CallableOptions::default(),
        )
    };
    let handle = weight.register_hook(|gradient| gradient.mul_scalar(2.0).map(Some)).unwrap();
    assert_refused(graphed(&weight), "a parameter has hooks");
    handle.remove();
    let graphed = graphed(&weight).unwrap().remove(0);
    weight.register_hook(|gradient| gradient.mul_scalar(2.0).map(Some)).unwrap();
    sum(&graphed.call(std::slice::from_ref(&sample)).unwrap()[0]).backward().unwrap();
    assert_eq!(values(&weight.grad().unwrap()), [2.0, 2.0]);
}

/// A backward pass on a side stream whose hook works on a third; `ordered` lets the streams wait for each other.
fn hook_on_a_third_stream(gpu: &Gpu, ordered: bool) -> Result<()> {
    let device = gpu.device();
    let main = device.current_stream();
    let [side, third] = [Stream::new(device)?, Stream::new(device)?];
    let x = Tensor::ones(&[64], DType::F32, device)?.requires_grad_()?;
    side.wait_stream(&main)?;
    x.record_stream(&side);
    let y = {
        let _current = side.make_current();
        x.mul_scalar(2.0)?
    };
    y.register_hook(move |gradient| {
        let current = gradient.device().current_stream();
        third.wait_stream(&current)?;
        gradient.record_stream(&third);
        let doubled = {
            let _current = third.make_current();
            gradient.mul_scalar(2.0)?
        };
        if ordered {
            current.wait_stream(&third)?;
            doubled.record_stream(&current);
        }
        Ok(Some(doubled))
    })?;
    main.wait_stream(&side)?;
    y.record_stream(&main);
    y.sum(&[], false)?.backward()?;
    assert_eq!(x.grad().expect("a leaf has a gradient").to_vec::<f32>()?, [4.0; 64]);
    Ok(())
}

#[test]
fn a_hook_that_works_on_another_stream_hands_its_result_over() {
    Check::new().seeds(0..20).run(|gpu| hook_on_a_third_stream(gpu, true));
    let failure = Check::new().seeds(0..1).find(|gpu| hook_on_a_third_stream(gpu, false)).unwrap_err();
    let Problem::Finding(finding) = failure.problem() else { panic!("{failure}") };
    assert_eq!(finding.kind, FindingKind::Race, "{failure}");
}

/// Gradients that are retained on a stream other than the caller's: that of the forward pass.
#[test]
fn a_retained_gradient_is_ready_for_the_caller() {
    Check::new().seeds(0..20).run(|gpu: &Gpu| -> Result<()> {
        let device = gpu.device();
        let (main, side) = (device.current_stream(), Stream::new(device)?);
        let x = Tensor::ones(&[64], DType::F32, device)?.requires_grad_()?;
        side.wait_stream(&main)?;
        x.record_stream(&side);
        let y = {
            let _current = side.make_current();
            x.square()?
        };
        y.retain_grad()?;
        main.wait_stream(&side)?;
        y.record_stream(&main);
        y.square()?.sum(&[], false)?.backward()?;
        let kept = y.grad().expect("it was asked for");
        y.zero_grad();
        let double = kept.add(&kept)?;
        drop(kept);
        {
            // Memory of the side stream, which may be that of the gradient.
            let _current = side.make_current();
            Tensor::zeros(&[64], DType::F32, device)?;
        }
        assert_eq!(double.to_vec::<f32>()?, [4.0; 64]);
        Ok(())
    });
}

fn network(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(weight)?.tanh()?.softmax(1)?.exp()?.sum(&[], false)
}

fn network_gradients(run: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> [Vec<f64>; 2] {
    let x = crate::support::random(&[4, 8], 1).to_dtype(DType::F32).unwrap().requires_grad_().unwrap();
    let weight = crate::support::random(&[8, 8], 2).to_dtype(DType::F32).unwrap().requires_grad_().unwrap();
    run(&x, &weight).unwrap().backward().unwrap();
    [values(&x.grad().unwrap()), values(&weight.grad().unwrap())]
}

#[test]
fn saved_tensors_are_packed_once_and_unpacked_once_per_run_of_a_node() {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (packs, unpacks) = (counts.clone(), counts.clone());
    let found = network_gradients(|x, weight| {
        saved_tensors_hooks(
            move |tensor| {
                packs[0].fetch_add(1, Ordering::Relaxed);
                assert!(!tensor.requires_grad());
                tensor.to_vec::<f32>().map(|values| (values, tensor.shape().to_vec()))
            },
            move |(values, shape)| {
                unpacks[1].fetch_add(1, Ordering::Relaxed);
                Tensor::from_slice(values, shape, &device())
            },
            || network(x, weight),
        )
    });
    assert_eq!(found, network_gradients(network));
    let [packed, unpacked] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    // The product keeps both operands, tanh, softmax and exp their results.
    assert_eq!((packed, unpacked), (5, 5));
}

#[test]
fn the_innermost_hooks_pack_and_none_within_them() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let hook = |name: &'static str| {
        let log = log.clone();
        move |tensor: &Tensor| {
            log.lock().push(name);
            // This would be saved, if hooks saved tensors.
            leaf(&[1.0]).square()?;
            Ok(tensor.clone())
        }
    };
    let x = leaf(&[2.0]);
    let unpack = |tensor: &Tensor| Ok(tensor.clone());
    let y = saved_tensors_hooks(hook("outer"), unpack, || {
        let y = saved_tensors_hooks(hook("inner"), unpack, || x.square())?;
        y.square()
    })
    .unwrap();
    y.square().unwrap().backward().unwrap();
    assert_eq!(*log.lock(), ["inner", "outer"]);
    assert_eq!(values(&x.grad().unwrap()), [8.0 * 128.0]);
}

#[test]
fn packed_tensors_go_through_second_passes_and_second_derivatives() {
    let copy = |tensor: &Tensor| tensor.add_scalar(0.0);
    let x = leaf(&[3.0]);
    let y = saved_tensors_hooks(copy, |tensor| Ok(tensor.clone()), || x.square()?.mul(&x)).unwrap();
    y.backward_options(None, RETAINED).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [27.0]);
    let one = Tensor::ones(&[1], DType::F32, &device()).unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = gradients_with(&[y], &[Some(one.clone())], std::slice::from_ref(&x), options).unwrap();
    let second = gradients(&[first[0].clone().unwrap()], &[Some(one)], &[x]).unwrap();
    assert_eq!(values(second[0].as_ref().unwrap()), [18.0]);
}

#[test]
fn hooks_that_give_something_else_are_refused() {
    let x = leaf(&[1.0, 2.0]);
    let write = |tensor: &Tensor| tensor.add_scalar_(1.0).map(drop);
    assert_refused(
        saved_tensors_hooks(write, |()| unreachable!(), || x.detach().requires_grad_()?.square()),
        "A saved tensor pack hook is modifying its input in place.",
    );
    assert_refused(
        saved_tensors_hooks(
            |_| Err::<(), _>(thalweg_runtime::Error::invalid("no room")),
            |()| unreachable!(),
            || x.square(),
        ),
        "no room",
    );
    let narrow = saved_tensors_hooks(|tensor| tensor.narrow(0, 0, 1), |part| Ok(part.clone()), || x.square());
    assert_refused(sum(&narrow.unwrap()).backward(), "a saved tensor unpack hook gave");
    // A tensor with another layout is made contiguous.
    let y = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32).requires_grad_().unwrap();
    let turn = |tensor: &Tensor| tensor.transpose(0, 1)?.contiguous();
    let square =
        saved_tensors_hooks(turn, |turned: &Tensor| turned.transpose(0, 1), || y.matmul(&y)).unwrap();
    sum(&square).backward().unwrap();
    let found = values(&y.grad().unwrap());
    y.zero_grad();
    sum(&y.matmul(&y).unwrap()).backward().unwrap();
    assert_eq!(found, values(&y.grad().unwrap()));
}

#[test]
fn saved_tensors_wait_in_host_memory() {
    let found = network_gradients(|x, weight| save_on_cpu(|| network(x, weight)));
    assert_eq!(found, network_gradients(network));
    // No element, and elements that are not contiguous.
    let x = Tensor::ones(&[0, 3], DType::F32, &device()).unwrap().requires_grad_().unwrap();
    sum(&save_on_cpu(|| x.square()).unwrap()).backward().unwrap();
    assert_eq!(x.grad().unwrap().shape(), [0, 3]);
    let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], DType::F64).requires_grad_().unwrap();
    sum(&save_on_cpu(|| x.transpose(0, 1)?.square()).unwrap()).backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

fn allocated(device: &Device) -> u64 {
    device.allocator().statistics().allocated_bytes.all.current
}

#[test]
fn host_memory_frees_the_device_until_backward() {
    let device = crate::support::own_device();
    let grown = |on_host: bool| {
        let x = Tensor::ones(&[1 << 16], DType::F32, &device).unwrap().requires_grad_().unwrap();
        let before = allocated(&device);
        let run = || (0..8).try_fold(x.clone(), |x, _| x.tanh());
        let y = if on_host { save_on_cpu(run) } else { run() }.unwrap();
        let grown = allocated(&device) - before;
        sum(&y).backward().unwrap();
        (grown, values(&x.grad().unwrap()))
    };
    let ((one, on_host), (eight, on_device)) = (grown(true), grown(false));
    assert_eq!((one, eight), (1 << 18, 8 << 18));
    assert_eq!(on_host, on_device);
}

#[test]
fn the_graph_can_be_walked() {
    let (x, y) = (leaf(&[1.0]), leaf(&[2.0]));
    let product = x.mul(&y.detach()).unwrap().exp().unwrap().grad_fn().unwrap();
    let edges = product.next_functions();
    let (before, place) = edges[0].clone().expect("the product requires a gradient");
    assert_eq!((edges.len(), before.name(), place), (1, "mul", 0));
    assert!(before.sequence_number() < product.sequence_number());
    let edges = before.next_functions();
    assert_eq!(edges.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    let (leaf, _) = edges[0].clone().unwrap();
    assert!(leaf.is_accumulator() && !before.is_accumulator() && leaf.next_functions().is_empty());
}

#[test]
fn modes_are_set_without_functions() {
    assert!(!set_inference_mode_enabled(true) && is_inference_mode_enabled());
    assert!(tensor(&[1.0], &[1], DType::F32).mul_scalar(2.0).unwrap().is_inference());
    assert!(set_inference_mode_enabled(false) && !is_inference_mode_enabled());
    // As in PyTorch, NaN are a failure wherever the mode is on, unless said otherwise.
    assert_eq!(set_anomaly_enabled(true, false), (false, true));
    assert_eq!((is_anomaly_enabled(), is_anomaly_check_nan_enabled()), (true, false));
    assert_eq!(set_anomaly_enabled(true, true), (true, false));
    assert_eq!(set_anomaly_enabled(false, true), (true, true));
    assert!(!is_anomaly_enabled() && is_anomaly_check_nan_enabled());
}

#[test]
fn regions_of_saved_tensors_nest_without_functions() {
    let x = leaf(&[3.0]);
    let scaled = |factor: f64| {
        enter_saved_tensors_hooks(
            move |tensor: &Tensor| tensor.mul_scalar(factor),
            |packed: &Tensor| Ok(packed.clone()),
        )
    };
    let outer = scaled(10.0);
    let inner = scaled(100.0);
    let first = x.square().unwrap();
    drop(inner);
    let second = x.square().unwrap();
    drop(outer);
    let third = x.square().unwrap();
    for (y, expected) in [(first, 600.0), (second, 60.0), (third, 6.0)] {
        x.set_grad(None).unwrap();
        y.backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [expected]);
    }
}

#[test]
fn a_generator_stands_in_for_the_default_one_of_its_device() {
    let device = device();
    let own = Arc::new(DeviceGenerator::new(5, &device).unwrap());
    let other =
        Arc::new(DeviceGenerator::new(6, &Device::sim(1).unwrap_or_else(|_| device.clone())).unwrap());
    let is_other_device = other.device() != own.device();
    let current = || default_generator(&device).unwrap();
    let before = current();
    with_generator(&own, || {
        assert!(Arc::ptr_eq(&current(), &own));
        if is_other_device {
            with_generator(&other, || assert!(!Arc::ptr_eq(&current(), &other)));
        }
        assert!(Arc::ptr_eq(&current(), &own));
    });
    assert!(Arc::ptr_eq(&current(), &before));
}

/// A function of the program whose backward pass returns a gradient that is made from the one that arrives.
struct Returns(fn(&Tensor) -> Result<Tensor>);

impl Backward for Returns {
    fn name(&self) -> &'static str {
        "returns"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        gradients.iter().map(|gradient| gradient.as_ref().map(self.0).transpose()).collect()
    }
}

#[test]
fn gradients_of_a_programs_function_fit_its_inputs() {
    let gradient = |function| {
        let x = leaf(&[1.0, 2.0]);
        let y = record_function(Box::new(Returns(function)), &[&x], vec![x.detach()]).remove(0);
        sum(&y).backward().map(|()| x.grad().expect("a gradient arrived"))
    };
    // Summed where the input would have been broadcast, and in the dtype of the input, as in PyTorch's `validate_outputs`.
    let summed = gradient(|g| g.to_dtype(DType::F64)?.expand(&[3, 2])).unwrap();
    assert_eq!((summed.dtype(), values(&summed)), (DType::F32, vec![3.0, 3.0]));
    for function in [|g: &Tensor| g.narrow(0, 0, 1), |g: &Tensor| g.to_device(&Device::meta()?)] {
        let error = gradient(function).unwrap_err().to_string();
        assert!(error.contains("ReturnsBackward0 returned an invalid gradient at index 0"), "{error}");
    }
}

#[test]
fn guards_end_in_any_order() {
    let x = leaf(&[1.0]);
    let (outer, inner) = (NoGrad::new(), NoGrad::new());
    let region = Region::enter(AutocastOptions::default()).unwrap();
    let within = Region::enter(AutocastOptions { dtype: DType::Bf16, ..AutocastOptions::default() }).unwrap();
    let pack = |_: &Tensor| -> Result<Tensor> { panic!("the region has ended") };
    let hooks = enter_saved_tensors_hooks(pack, |saved: &Tensor| Ok(saved.clone()));
    let more = enter_saved_tensors_hooks(pack, |saved: &Tensor| Ok(saved.clone()));
    drop(outer);
    assert!(!is_grad_enabled());
    drop((region, inner, hooks));
    assert!(is_grad_enabled() && is_autocast_enabled());
    let matrix = tensor(&[1.0], &[1, 1], DType::F32);
    assert_eq!(matrix.matmul(&matrix).unwrap().dtype(), DType::Bf16);
    drop((within, more));
    assert!(!is_autocast_enabled());
    assert_eq!(matrix.matmul(&matrix).unwrap().dtype(), DType::F32);
    assert!(x.exp().unwrap().requires_grad());
}
