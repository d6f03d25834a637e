//! Fused optimizers: Adam against its definition in f64, over more tensors than one launch takes; gradient scaling, groups,
//! learning rates, and saved and loaded states.

use std::collections::BTreeMap;

use thalweg_ir::{DType, c64};
use thalweg_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, GradientScale, Muon, MuonOptions, NAdam, NAdamOptions,
    OptimizerState, Sgd, SgdOptions, clip_grad_norm_, get_total_norm,
};
use thalweg_runtime::{CaptureOptions, Graph, Stream};
use thalweg_tensor::Tensor;

use crate::support::{assert_close, device, own_device, random, values};

/// Returns a parameter with a gradient.
fn parameter(elements: usize, seed: u64, dtype: DType) -> Tensor {
    let leaf = random(&[elements], seed).to_dtype(dtype).unwrap().requires_grad_().unwrap();
    leaf.set_grad(Some(random(&[elements], seed + 1000).to_dtype(dtype).unwrap())).unwrap();
    leaf
}

/// Adam by its definition, for a gradient that stays the same; with the weight decay taken from the parameter, if it is AdamW.
fn expected(start: &[f64], gradient: &[f64], options: AdamOptions, is_adamw: bool, steps: i32) -> Vec<f64> {
    let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay, .. } = options;
    let one = |(&start, &gradient): (&f64, &f64)| {
        let (mut value, mut first, mut second) = (start, 0.0, 0.0);
        for step in 1..=steps {
            let mut gradient = gradient;
            if is_adamw {
                value *= 1.0 - lr * weight_decay;
            } else {
                gradient += weight_decay * value;
            }
            first = beta1 * first + (1.0 - beta1) * gradient;
            second = beta2 * second + (1.0 - beta2) * gradient * gradient;
            let (mean, square) = (first / (1.0 - beta1.powi(step)), second / (1.0 - beta2.powi(step)));
            value -= lr * mean / (square.sqrt() + eps);
        }
        value
    };
    start.iter().zip(gradient).map(one).collect()
}

/// More parameters than a launch takes, one of more elements than a block handles, some of one element, and an empty one.
fn many_parameters() -> Vec<Tensor> {
    let size = |number: usize| match number {
        3 => 5000,
        4 => 0,
        5 => 2048,
        _ => 1 + number % 9,
    };
    (0..150).map(|number| parameter(size(number), number as u64, DType::F64)).collect()
}

#[test]
fn many_parameters_of_all_sizes_follow_the_definition() {
    let options = AdamOptions { lr: 0.1, weight_decay: 0.2, ..AdamOptions::default() };
    let check = |is_adamw: bool, parameters: Vec<Tensor>, step: &dyn Fn()| {
        let starts: Vec<Vec<f64>> = parameters.iter().map(values).collect();
        (0..3).for_each(|_| step());
        for (parameter, start) in parameters.iter().zip(&starts) {
            let gradient = values(&parameter.grad().unwrap());
            assert_close(&values(parameter), &expected(start, &gradient, options, is_adamw, 3), 1e-12);
        }
    };
    let parameters = many_parameters();
    let adam = Adam::new(parameters.clone(), options).unwrap();
    check(false, parameters, &|| adam.step().unwrap());
    let parameters = many_parameters();
    let AdamOptions { lr, weight_decay, .. } = options;
    let options = AdamWOptions { lr, weight_decay, ..AdamWOptions::default() };
    let adamw = AdamW::new(parameters.clone(), options).unwrap();
    check(true, parameters, &|| adamw.step().unwrap());
}

#[test]
fn each_parameter_counts_its_own_steps() {
    let [always, later] = [1, 2].map(|seed| parameter(5, seed, DType::F64));
    let [start, later_start] = [&always, &later].map(values);
    let gradient = later.grad();
    later.zero_grad();
    let options = AdamOptions { lr: 0.1, ..AdamOptions::default() };
    let adam = Adam::new(vec![later.clone(), always.clone()], options).unwrap();
    adam.step().unwrap();
    adam.step().unwrap();
    assert_eq!(values(&later), later_start);
    later.set_grad(gradient).unwrap();
    adam.step().unwrap();
    for (parameter, start, steps) in [(&always, &start, 3), (&later, &later_start, 1)] {
        let gradient = values(&parameter.grad().unwrap());
        assert_close(&values(parameter), &expected(start, &gradient, options, false, steps), 1e-12);
    }
    let group = &adam.param_groups()[0];
    assert_eq!([0, 1].map(|number| group.steps(number).item::<f32>().unwrap()), [1.0, 3.0]);
}

#[test]
fn parameters_of_several_dtypes_and_without_gradients() {
    let parameters = [DType::F32, DType::F16, DType::Bf16, DType::F64].map(|dtype| parameter(10, 1, dtype));
    parameters[3].zero_grad();
    let starts = parameters.each_ref().map(values);
    let adam = Adam::new(parameters.to_vec(), AdamOptions::default()).unwrap();
    adam.step().unwrap();
    for (parameter, start) in parameters[..3].iter().zip(&starts) {
        let gradient = values(&parameter.grad().unwrap());
        assert_close(&values(parameter), &expected(start, &gradient, AdamOptions::default(), false, 1), 5e-3);
    }
    assert_eq!(values(&parameters[3]), starts[3]);
}

#[test]
fn scaled_gradients_are_divided_and_infinite_ones_skip_the_step() {
    let (plain, scaled) = (parameter(100, 1, DType::F64), parameter(100, 1, DType::F64));
    scaled.set_grad(Some(scaled.grad().unwrap().mul_scalar(1024.0).unwrap())).unwrap();
    let number = |value: f64| Tensor::full(&[1], value, DType::F32, &device()).unwrap();
    let scale = GradientScale { scale: number(1024.0), found_inf: number(0.0) };
    let of = |parameter: &Tensor| Adam::new(vec![parameter.clone()], AdamOptions::default()).unwrap();
    let (plain_adam, scaled_adam) = (of(&plain), of(&scaled));
    plain_adam.step().unwrap();
    scaled_adam.step_scaled(&scale).unwrap();
    assert_eq!(values(&plain), values(&scaled));
    // A gradient that is not finite: nothing changes for any such gradient.
    let finite = scaled.grad().unwrap();
    scaled.set_grad(Some(Tensor::full(&[100], f64::NAN, DType::F64, &device()).unwrap())).unwrap();
    scaled_adam.step_scaled(&GradientScale { found_inf: number(1.0), ..scale.clone() }).unwrap();
    assert_eq!(scaled_adam.param_groups()[0].steps(0).item::<f32>().unwrap(), 1.0);
    assert_eq!(values(&plain), values(&scaled));
    scaled.set_grad(Some(finite)).unwrap();
    plain_adam.step().unwrap();
    scaled_adam.step_scaled(&scale).unwrap();
    assert_eq!(values(&plain), values(&scaled));
    let wrong = GradientScale { scale: Tensor::ones(&[2], DType::F32, &device()).unwrap(), ..scale };
    assert!(scaled_adam.step_scaled(&wrong).is_err());
    assert!(Adam::new(vec![], AdamOptions::default()).is_err());
}

#[test]
fn groups_have_options_of_their_own() {
    let [a, b] = [1, 2].map(|seed| parameter(3, seed, DType::F64));
    let [start_a, start_b] = [&a, &b].map(values);
    let options = |lr| SgdOptions { lr, ..SgdOptions::default() };
    let mut sgd = Sgd::new(vec![a.clone()], options(0.5)).unwrap();
    sgd.add_param_group(vec![b.clone()], options(0.25)).unwrap();
    let moved = |start: &[f64], tensor: &Tensor, rate: f64| {
        let gradient = values(&tensor.grad().unwrap());
        let expected: Vec<f64> = start.iter().zip(&gradient).map(|(x, g)| x - rate * g).collect();
        assert_close(&values(tensor), &expected, 1e-12);
    };
    sgd.step().unwrap();
    moved(&start_a, &a, 0.5);
    moved(&start_b, &b, 0.25);
    sgd.set_learning_rates(&[0.0, 1.0]).unwrap();
    sgd.step().unwrap();
    moved(&start_a, &a, 0.5);
    moved(&start_b, &b, 1.25);
    assert_eq!(sgd.param_groups()[1].options().lr, 1.0);
    let refused = |result: thalweg_runtime::Result<()>, text: &str| {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(text), "{error}");
    };
    refused(sgd.add_param_group(vec![a.clone()], options(0.1)), "share memory");
    refused(sgd.add_param_group(vec![], options(0.1)), "no parameter");
    refused(sgd.add_param_group(vec![parameter(1, 3, DType::F32)], options(-0.1)), "lr is -0.1");
    refused(sgd.set_learning_rates(&[0.1]), "1 learning rates for 2 groups");
    refused(sgd.set_learning_rate(f64::NAN), "lr is NaN");
    assert_eq!(sgd.param_groups().len(), 2);
}

#[test]
fn a_captured_step_follows_the_learning_rate() {
    let device = own_device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let weight = Tensor::zeros(&[2], DType::F32, &device).unwrap().requires_grad_().unwrap();
    weight.set_grad(Some(Tensor::ones(&[2], DType::F32, &device).unwrap())).unwrap();
    let options = SgdOptions { lr: 1.0, momentum: 0.5, ..SgdOptions::default() };
    let sgd = Sgd::new(vec![weight.clone()], options).unwrap();
    sgd.step().unwrap();
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || sgd.step()).unwrap();
    sgd.set_learning_rate(0.5).unwrap();
    graph.replay().unwrap();
    sgd.set_learning_rate(0.25).unwrap();
    graph.replay().unwrap();
    // Buffers of 1, 1.5 and 1.75.
    assert_eq!(values(&weight), [-1.0 - 0.75 - 0.4375; 2]);
}

#[test]
fn a_loaded_optimizer_goes_on_as_the_saved_one() {
    let options = NAdamOptions { lr: 0.1, ..NAdamOptions::default() };
    let make = |options| NAdam::new(vec![parameter(9, 1, DType::F32), parameter(4, 2, DType::F32)], options);
    let saved = make(options).unwrap();
    (0..3).for_each(|_| saved.step().unwrap());
    saved.set_learning_rate(0.05).unwrap();
    let state = saved.state_dict();
    let names: Vec<&str> = state.state[&1].keys().map(String::as_str).collect();
    assert_eq!(names, ["exp_avg", "exp_avg_sq", "mu_product", "step"]);
    assert_eq!(state.param_groups[0].options["lr"], 0.05);
    assert_eq!(state.param_groups[0].options["betas.1"], 0.999);
    let mut loaded = make(NAdamOptions { betas: (0.5, 0.999), ..NAdamOptions::default() }).unwrap();
    loaded.load_state_dict(&state).unwrap();
    assert_eq!(loaded.param_groups()[0].options(), saved.param_groups()[0].options());
    loaded.parameters().zip(saved.parameters()).for_each(|(to, from)| {
        thalweg_tensor::no_grad(|| to.copy_(&from.detach()).unwrap());
    });
    for optimizer in [&saved, &loaded] {
        optimizer.step().unwrap();
        optimizer.step().unwrap();
    }
    for (found, expected) in loaded.parameters().zip(saved.parameters()) {
        assert_eq!(values(found), values(expected));
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_changes_nothing() {
    let options = AdamOptions { amsgrad: true, ..AdamOptions::default() };
    let mut adam = Adam::new(vec![parameter(3, 1, DType::F32)], options).unwrap();
    adam.step().unwrap();
    let before = adam.state_dict();
    let first = values(&before.state[&0]["exp_avg"]);
    let mut refused = |change: &dyn Fn(&mut OptimizerState), text: &str| {
        let mut state = before.clone();
        let zeros = Tensor::zeros(&[3], DType::F32, &device()).unwrap();
        state.state.get_mut(&0).unwrap().insert("exp_avg".into(), zeros);
        change(&mut state);
        let error = adam.load_state_dict(&state).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(text), "{error}");
        assert_eq!(values(&adam.state_dict().state[&0]["exp_avg"]), first);
    };
    refused(&|state| state.param_groups.clear(), "the saved groups have [] parameters");
    refused(&|state| _ = state.param_groups[0].options.insert("eps".into(), -1.0), "eps is -1");
    refused(
        &|state| drop(state.state.get_mut(&0).unwrap().remove("max_exp_avg_sq")),
        "no saved max_exp_avg_sq",
    );
    let wrong = Tensor::zeros(&[4], DType::F32, &device()).unwrap();
    refused(
        &|state| drop(state.state.get_mut(&0).unwrap().insert("exp_avg_sq".into(), wrong.clone())),
        "must be [3]",
    );
    // Without states a parameter starts anew.
    adam.load_state_dict(&OptimizerState { state: BTreeMap::new(), ..before.clone() }).unwrap();
    assert_eq!(values(&adam.state_dict().state[&0]["exp_avg"]), [0.0; 3]);
    assert_eq!(adam.param_groups()[0].steps(0).item::<f32>().unwrap(), 0.0);
}

#[test]
fn many_gradients_of_several_dtypes_are_clipped_together() {
    let device = device();
    let dtypes = [DType::F32, DType::Bf16, DType::F16];
    let (mut parameters, mut expected): (Vec<Tensor>, Vec<(DType, Vec<f64>)>) = (Vec::new(), Vec::new());
    for number in 0..400_usize {
        let (dtype, rows) = (dtypes[number % 3], if number == 7 { 4000 } else { number % 5 });
        // Multiples of ¼ are exact in every dtype.
        let values: Vec<f32> = (0..rows * 6).map(|at| ((at * 7 + number) % 33) as f32 / 4.0 - 4.0).collect();
        let parameter = Tensor::zeros(&[rows, 6], dtype, &device).unwrap().requires_grad_().unwrap();
        let gradient = Tensor::from_slice(&values, &[rows, 6], &device).unwrap().to_dtype(dtype).unwrap();
        // Every eleventh has gaps.
        let gradient = if number % 11 == 0 {
            Tensor::cat(&[gradient.clone(), gradient], 1).unwrap().narrow(1, 0, 6).unwrap()
        } else {
            gradient
        };
        parameter.set_grad(Some(gradient)).unwrap();
        parameters.push(parameter);
        expected.push((dtype, values.into_iter().map(f64::from).collect()));
    }
    let norm = expected.iter().flat_map(|(_, values)| values).map(|x| x * x).sum::<f64>().sqrt();
    let found = clip_grad_norm_(&parameters, 10.0, 2.0).unwrap().to_vec::<f32>().unwrap()[0];
    assert!((f64::from(found) / norm - 1.0).abs() < 1e-6, "{found} and {norm}");
    for (parameter, (dtype, values)) in parameters.iter().zip(&expected) {
        let clipped = parameter.grad().unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        let bound = match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            _ => 1e-2,
        };
        for (found, value) in clipped.iter().zip(values) {
            let expected = value * 10.0 / norm;
            assert!((found - expected).abs() <= bound * expected.abs(), "{dtype}: {found} and {expected}");
        }
    }
    // Gradients within the norm stay as they are, to the bit.
    let before: Vec<Vec<f64>> =
        parameters.iter().map(|parameter| values(&parameter.grad().unwrap())).collect();
    clip_grad_norm_(&parameters, 11.0, 2.0).unwrap();
    for (parameter, before) in parameters.iter().zip(&before) {
        assert_eq!(values(&parameter.grad().unwrap()), *before);
    }
    // A complex number counts by its absolute value.
    let z =
        Tensor::from_slice(&[c64 { re: 3.0, im: 4.0 }, c64 { re: 0.0, im: -12.0 }], &[2], &device).unwrap();
    let leaf = z.zeros_like().unwrap().requires_grad_().unwrap();
    for (norm_type, norm) in [(2.0, 13.0), (1.0, 17.0), (f64::INFINITY, 12.0)] {
        leaf.set_grad(Some(z.mul_scalar(1.0).unwrap())).unwrap();
        let found = clip_grad_norm_([&leaf], norm / 2.0, norm_type).unwrap().to_vec::<f32>().unwrap()[0];
        assert!((f64::from(found) - norm).abs() < 1e-5, "{norm_type}: {found}");
        let clipped = leaf.grad().unwrap().to_vec::<c64>().unwrap();
        assert!((clipped[0].re - 1.5).abs() < 1e-5 && (clipped[1].im + 6.0).abs() < 1e-5, "{clipped:?}");
    }
    let greatest = get_total_norm(&[parameters[7].grad().unwrap()], f64::INFINITY).unwrap();
    let expected = expected[7].1.iter().fold(0.0_f64, |most, x| most.max(x.abs())) * 10.0 / norm;
    assert!((f64::from(greatest.to_vec::<f32>().unwrap()[0]) / expected - 1.0).abs() < 1e-2);
}

#[test]
fn a_clipped_step_is_that_of_clipped_gradients() {
    let device = device();
    let start = |seed: usize| -> Vec<Tensor> {
        (0..3)
            .map(|number| {
                let numbers: Vec<f32> =
                    (0..40).map(|at| ((at * 7 + number * 5 + seed) % 33) as f32 / 4.0 - 4.0).collect();
                Tensor::from_slice(&numbers, &[40], &device).unwrap()
            })
            .collect()
    };
    for (max_norm, norm_type, is_clipped) in
        [(1.0, 2.0, true), (0.5, f64::INFINITY, true), (3.0, 1.0, true), (1e6, 2.0, false)]
    {
        let [own, apart] = [0, 0].map(|seed| -> Vec<Tensor> {
            start(seed).iter().map(|parameter| parameter.requires_grad_().unwrap()).collect()
        });
        // Without division by the size of the gradient, which would hide the scale.
        let options = SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() };
        let [one, two] = [&own, &apart].map(|parameters| Sgd::new(parameters.clone(), options).unwrap());
        for seed in 1..4 {
            for (parameters, gradients) in [(&own, start(seed)), (&apart, start(seed))] {
                for (parameter, gradient) in parameters.iter().zip(gradients) {
                    parameter.set_grad(Some(gradient)).unwrap();
                }
            }
            let norm = values(&one.step_clipped(max_norm, norm_type).unwrap());
            assert_eq!(norm, values(&clip_grad_norm_(&apart, max_norm, norm_type).unwrap()));
            two.step().unwrap();
            assert_eq!(values(&own[1].grad().unwrap()), values(&start(seed)[1]), "gradients stay");
            for (own, apart) in own.iter().zip(&apart) {
                for (own, apart) in values(own).iter().zip(values(apart)) {
                    let bound = if is_clipped { 2e-6 * (1.0 + apart.abs()) } else { 0.0 };
                    assert!((own - apart).abs() <= bound, "{norm_type}: {own} and {apart}");
                }
            }
        }
    }
    let optimizer = Sgd::new(vec![start(0)[0].requires_grad_().unwrap()], SgdOptions::default()).unwrap();
    assert!(optimizer.step_clipped(1.0, 2.0).unwrap_err().to_string().contains("run backward first"));
    assert!(optimizer.step_clipped(0.0, 2.0).unwrap_err().to_string().contains("must be above 0"));
}

#[test]
fn clipping_takes_four_commands_whatever_the_number_of_tensors() {
    let device = own_device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let parameters: Vec<Tensor> = (0..148)
        .map(|number| {
            let parameter =
                Tensor::ones(&[number + 1], DType::F32, &device).unwrap().requires_grad_().unwrap();
            parameter.set_grad(Some(Tensor::ones(&[number + 1], DType::F32, &device).unwrap())).unwrap();
            parameter
        })
        .collect();
    let (graph, _norm) =
        Graph::capture(&device, CaptureOptions::default(), || clip_grad_norm_(&parameters, 1.0, 2.0))
            .unwrap();
    // Magnitudes, their sum, its root, and the product.
    assert_eq!(graph.description().unwrap().nodes.len(), 4);
}

#[test]
fn loaded_options_continue_as_the_saved_ones() {
    let steps = |optimizer: &Sgd, leaf: &Tensor| {
        for step in 0..3 {
            leaf.set_grad(Some(random(&[4], 50 + step))).unwrap();
            optimizer.step().unwrap();
        }
        values(leaf)
    };
    let start = || random(&[4], 9).requires_grad_().unwrap();
    let with =
        |momentum: f64, nesterov: bool| SgdOptions { lr: 0.1, momentum, nesterov, ..SgdOptions::default() };
    for (saved, own) in [(with(0.9, true), with(0.0, false)), (with(0.0, false), with(0.5, false))] {
        let (a, b) = (start(), start());
        let first = Sgd::new(vec![a.clone()], saved).unwrap();
        let mut second = Sgd::new(vec![b.clone()], own).unwrap();
        steps(&first, &a);
        second.load_state_dict(&first.state_dict()).unwrap();
        thalweg_tensor::no_grad(|| b.copy_(&a)).unwrap();
        assert_eq!(second.param_groups()[0].options(), saved);
        assert_eq!(steps(&second, &b), steps(&first, &a));
    }
    let muon = |momentum: f64| MuonOptions { momentum, ..MuonOptions::default() };
    let matrix = || random(&[3, 3], 4).requires_grad_().unwrap();
    let mut loaded = Muon::new(vec![matrix()], muon(0.5)).unwrap();
    loaded.load_state_dict(&Muon::new(vec![matrix()], muon(0.8)).unwrap().state_dict()).unwrap();
    assert_eq!(loaded.options().momentum, 0.8);
}
