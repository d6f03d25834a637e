//! An external oracle for optimizers, learning-rate schedules and clipping: PyTorch's results, in `tests/goldens/optimizers.txt`
//! (written by `make_optimizers.py` next to it).

use std::collections::HashMap;

use thalweg_ir::{DType, bf16};
use thalweg_nn::optim::{
    AdadeltaOptions, AdagradOptions, AdamOptions, AdamWOptions, AdamaxOptions, Anneal, AsgdOptions,
    ChainedLr, ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, CyclicLr, CyclicMode,
    ExponentialLr, LambdaLr, LinearLr, LionOptions, LrScheduler, MultiStepLr, MultiplicativeLr, NAdamOptions,
    OneCycleLr, Optimizer, OptimizerOptions, PlateauMode, PlateauOptions, PolynomialLr, RAdamOptions,
    RMSpropOptions, ReduceLrOnPlateau, RpropOptions, Schedule, SequentialLr, Sgd, SgdOptions,
    SparseAdamOptions, StepLr, ThresholdMode, clip_grad_norm_, clip_grad_value_,
};
use thalweg_tensor::Tensor;

use crate::support::{assert_close, device, values};

const GOLDENS: &str = include_str!("../goldens/optimizers.txt");
const SHAPES: [&[usize]; 2] = [&[4], &[2, 3]];
const STEPS: usize = 10;

/// Returns the words of the lines that begin with a word, and the numbers after their colons.
fn lines(first: &'static str) -> impl Iterator<Item = (Vec<&'static str>, Vec<&'static str>)> {
    let split = |line: &'static str| {
        let (head, numbers) = line.split_once(':').unwrap_or((line, ""));
        (head.split_whitespace().collect(), numbers.split_whitespace().collect())
    };
    GOLDENS.lines().map(split).filter(move |(head, _): &(Vec<&str>, Vec<&str>)| head[0] == first)
}

fn bits(word: &str) -> u32 {
    u32::from_str_radix(word, 16).expect("hexadecimal digits")
}

fn floats(words: &[&str]) -> Vec<f64> {
    let one = |word: &&str| match word.len() {
        4 => f64::from(bf16::from_bits(bits(word) as u16)),
        _ => f64::from(f32::from_bits(bits(word))),
    };
    words.iter().map(one).collect()
}

fn tensor(words: &[&str], shape: &[usize], dtype: DType) -> Tensor {
    crate::support::tensor(&floats(words), shape, dtype)
}

/// Returns the parameters, then the gradients step by step.
fn inputs(dtype: DType) -> ([Tensor; 2], Vec<[Tensor; 2]>) {
    let of = |first| {
        let found = lines(first).filter(|(head, _)| head[1] == dtype.name());
        let tensors =
            found.map(|(head, words)| tensor(&words, SHAPES[head[2].parse::<usize>().unwrap()], dtype));
        let tensors: Vec<Tensor> = tensors.collect();
        tensors.chunks(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect::<Vec<_>>()
    };
    let starts = of("start").swap_remove(0);
    (starts.map(|start| start.detach().requires_grad_().unwrap()), of("gradient"))
}

fn pairs(words: &[&str]) -> HashMap<String, f64> {
    let pair = |word: &&str| {
        let (name, value) = word.split_once('=').expect("name=value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    words.iter().map(pair).collect()
}

/// A case of the file: optimizer, dtype, whether PyTorch's fused one ran, options, and the results by line.
struct Case {
    head: Vec<&'static str>,
    results: Vec<(Vec<&'static str>, Vec<&'static str>)>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in GOLDENS.lines() {
        let (head, numbers) = line.split_once(':').unwrap_or((line, ""));
        let head: Vec<&str> = head.split_whitespace().collect();
        match (head[0], cases.last_mut()) {
            ("case", _) => cases.push(Case { head, results: Vec::new() }),
            ("param" | "state", Some(case)) => {
                case.results.push((head, numbers.split_whitespace().collect()));
            }
            _ => {}
        }
    }
    cases
}

fn run<O: OptimizerOptions>(case: &Case) {
    let dtype: DType = case.head[2].parse().unwrap();
    let named = pairs(&case.head[4..]);
    let mut options = O::default();
    for (name, &value) in &named {
        assert!(options.set(name, value), "{:?} has {name}", case.head);
    }
    let (parameters, gradients) = inputs(dtype);
    let optimizer = Optimizer::new(parameters.to_vec(), options).unwrap();
    for (step, gradients) in gradients.iter().enumerate() {
        if step == STEPS / 2 {
            optimizer.set_learning_rate(optimizer.param_groups()[0].learning_rate() / 2.0).unwrap();
        }
        for (parameter, gradient) in parameters.iter().zip(gradients) {
            parameter.set_grad(Some(gradient.clone())).unwrap();
        }
        optimizer.step().unwrap();
    }
    // PyTorch rounds to bfloat16 in every operation of the optimizers that are not fused; here only states are rounded.
    let tolerance = match (dtype, case.head[3]) {
        (DType::F32, _) => 4e-6,
        (_, "1") => 1.6e-2,
        _ => 8e-2,
    };
    let saved = optimizer.state_dict();
    let mut states = 0;
    for (head, words) in &case.results {
        let number: usize = head[1].parse().unwrap();
        let (found, name) = match head[0] {
            "param" => (parameters[number].detach(), "param"),
            _ => {
                states += 1;
                (
                    saved.state[&number]
                        .get(head[2])
                        .unwrap_or_else(|| panic!("{:?}: {}", case.head, head[2]))
                        .clone(),
                    head[2],
                )
            }
        };
        let (found, expected) = (values(&found), floats(words));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
                "{:?}, {name} of {number}, element {index}: found {found}, PyTorch {expected}",
                case.head
            );
        }
    }
    let own = saved.state.values().flatten().filter(|(name, _)| *name != "step" || case.head[1] != "SGD");
    assert_eq!(own.count(), states, "{:?}: the states have PyTorch's names", case.head);
}

#[test]
fn optimizers_take_pytorchs_steps() {
    let cases = cases();
    assert!(cases.len() > 120, "the file holds {} cases", cases.len());
    for case in &cases {
        match case.head[1] {
            "Adam" => run::<AdamOptions>(case),
            "AdamW" => run::<AdamWOptions>(case),
            "SGD" => run::<SgdOptions>(case),
            "Adagrad" => run::<AdagradOptions>(case),
            "NAdam" => run::<NAdamOptions>(case),
            "RAdam" => run::<RAdamOptions>(case),
            "RMSprop" => run::<RMSpropOptions>(case),
            "Adamax" => run::<AdamaxOptions>(case),
            "Adadelta" => run::<AdadeltaOptions>(case),
            "ASGD" => run::<AsgdOptions>(case),
            "Rprop" => run::<RpropOptions>(case),
            "SparseAdam" => run::<SparseAdamOptions>(case),
            name => panic!("{name} has no options here"),
        }
    }
}

/// Lion according to its paper's algorithm 2.
#[test]
fn lion_follows_its_paper() {
    let (parameters, gradients) = inputs(DType::F32);
    let options = LionOptions { lr: 0.05, weight_decay: 0.1, ..LionOptions::default() };
    let optimizer = Optimizer::new(parameters.to_vec(), options).unwrap();
    let mut expected = parameters.each_ref().map(values);
    let mut momenta = expected.clone().map(|list| vec![0.0; list.len()]);
    for gradients in &gradients {
        for number in 0..2 {
            parameters[number].set_grad(Some(gradients[number].clone())).unwrap();
            for (index, gradient) in values(&gradients[number]).into_iter().enumerate() {
                let (parameter, momentum) = (&mut expected[number][index], &mut momenta[number][index]);
                let update: f64 = 0.9 * *momentum + 0.1 * gradient;
                let sign = if update == 0.0 { 0.0 } else { update.signum() };
                *parameter -= 0.05 * (sign + 0.1 * *parameter);
                *momentum = 0.99 * *momentum + 0.01 * gradient;
            }
        }
        optimizer.step().unwrap();
    }
    for (parameter, expected) in parameters.iter().zip(&expected) {
        assert_close(&values(parameter), expected, 1e-6);
    }
}

fn sgd() -> Sgd {
    let parameter = Tensor::zeros(&[1], DType::F32, &device()).unwrap().requires_grad_().unwrap();
    Sgd::new(vec![parameter], SgdOptions { lr: 0.5, ..SgdOptions::default() }).unwrap()
}

/// Returns the learning rates that a scheduler sets, epoch by epoch, as stored on the device.
fn set_rates(schedule: Box<dyn Schedule>, epochs: usize) -> Vec<f64> {
    let optimizer = sgd();
    let mut scheduler = LrScheduler::new(&optimizer, schedule).unwrap();
    let rates = (0..epochs).map(|_| {
        let group = &optimizer.param_groups()[0];
        let rate = group.learning_rate_tensor().item::<f64>().unwrap();
        assert_eq!(rate, group.learning_rate());
        scheduler.step(&optimizer).unwrap();
        rate
    });
    rates.collect()
}

fn sequence() -> SequentialLr {
    SequentialLr {
        schedules: vec![
            Box::new(LinearLr { start_factor: 0.1, end_factor: 1.0, total_iters: 4 }),
            Box::new(ExponentialLr { gamma: 0.8 }),
            Box::new(ConstantLr { factor: 0.5, total_iters: 3 }),
        ],
        milestones: vec![4, 12],
    }
}

fn schedule(name: &str, options: &HashMap<String, f64>) -> Box<dyn Schedule> {
    let number = |name: &str| options[name];
    let whole = |name: &str| options[name] as u64;
    match name {
        "StepLR" => Box::new(StepLr { step_size: whole("step_size"), gamma: number("gamma") }),
        "MultiStepLR" => Box::new(MultiStepLr { milestones: vec![3, 3, 11, 17], gamma: 0.5 }),
        "ExponentialLR" => Box::new(ExponentialLr { gamma: number("gamma") }),
        "CosineAnnealingLR" => {
            Box::new(CosineAnnealingLr { t_max: whole("T_max"), eta_min: number("eta_min") })
        }
        "CosineAnnealingWarmRestarts" => Box::new(CosineAnnealingWarmRestarts {
            t_0: whole("T_0"),
            t_mult: whole("T_mult"),
            eta_min: number("eta_min"),
        }),
        "LinearLR" => Box::new(LinearLr {
            start_factor: number("start_factor"),
            end_factor: number("end_factor"),
            total_iters: whole("total_iters"),
        }),
        "ConstantLR" => Box::new(ConstantLr { factor: number("factor"), total_iters: whole("total_iters") }),
        "PolynomialLR" => {
            Box::new(PolynomialLr { total_iters: whole("total_iters"), power: number("power") })
        }
        "OneCycleLR" => Box::new(OneCycleLr {
            pct_start: number("pct_start"),
            anneal: if number("linear") == 1.0 { Anneal::Linear } else { Anneal::Cos },
            div_factor: number("div_factor"),
            final_div_factor: number("final_div_factor"),
            three_phase: number("three_phase") == 1.0,
            ..OneCycleLr::new(number("max_lr"), whole("total_steps"))
        }),
        "CyclicLR" => Box::new(CyclicLr {
            base_lr: number("base_lr"),
            max_lr: number("max_lr"),
            step_size_up: whole("step_size_up"),
            step_size_down: whole("step_size_down"),
            mode: match whole("mode") {
                0 => CyclicMode::Triangular,
                1 => CyclicMode::Triangular2,
                _ => CyclicMode::ExpRange(number("gamma")),
            },
        }),
        "MultiplicativeLR" => Box::new(MultiplicativeLr(|epoch| 1.0 - 1.0 / (2.0 + epoch as f64))),
        "ChainedScheduler" => Box::new(ChainedLr(vec![
            Box::new(LinearLr { start_factor: 0.1, end_factor: 1.0, total_iters: 4 }),
            Box::new(ExponentialLr { gamma: 0.8 }),
            Box::new(StepLr { step_size: 7, gamma: 0.5 }),
        ])),
        "LambdaLR" => Box::new(LambdaLr(|epoch| 1.0 / (1.0 + epoch as f64))),
        "SequentialLR" => Box::new(sequence()),
        name => panic!("{name} is not a schedule here"),
    }
}

fn parse(words: &[&str]) -> Vec<f64> {
    words.iter().map(|word| word.parse().expect("a number")).collect()
}

#[test]
fn schedules_give_pytorchs_learning_rates() {
    let mut count = 0;
    for (head, words) in lines("schedule").filter(|(head, _)| head[1] != "ReduceLROnPlateau") {
        let expected = parse(&words);
        let found = set_rates(schedule(head[1], &pairs(&head[2..])), expected.len());
        for (epoch, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-12,
                "{head:?}, epoch {epoch}: {found}, PyTorch {expected}"
            );
        }
        count += 1;
    }
    assert_eq!(count, 19);
}

#[test]
fn a_plateau_lowers_the_learning_rate_as_pytorchs() {
    let metrics = parse(&lines("metrics").next().expect("the file has metrics").1);
    let mut count = 0;
    for (head, words) in lines("schedule").filter(|(head, _)| head[1] == "ReduceLROnPlateau") {
        let options = pairs(&head[2..]);
        let plateau = PlateauOptions {
            mode: if options["maximize"] == 1.0 { PlateauMode::Max } else { PlateauMode::Min },
            factor: options["factor"],
            patience: options["patience"] as u64,
            threshold: options["threshold"],
            threshold_mode: match options["absolute"] == 1.0 {
                true => ThresholdMode::Absolute,
                false => ThresholdMode::Relative,
            },
            cooldown: options["cooldown"] as u64,
            min_lr: options["min_lr"],
            ..PlateauOptions::default()
        };
        let mut scheduler = ReduceLrOnPlateau::new(plateau).unwrap();
        let optimizer = sgd();
        let rates: Vec<f64> = metrics
            .iter()
            .map(|&metric| {
                let rate = optimizer.param_groups()[0].learning_rate();
                scheduler.step(metric, &optimizer).unwrap();
                rate
            })
            .collect();
        assert_close(&rates, &parse(&words), 1e-12);
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn gradients_are_clipped_as_pytorchs() {
    let clipped: Vec<Vec<f64>> = lines("clipped").map(|(_, words)| floats(&words)).collect();
    let mut clipped = clipped.chunks(2);
    for (head, words) in lines("clip") {
        let (parameters, gradients) = inputs(DType::F32);
        for (parameter, gradient) in parameters.iter().zip(&gradients[0]) {
            parameter.set_grad(Some(gradient.detach().mul_scalar(1.0).unwrap())).unwrap();
        }
        match head[1] {
            "value" => clip_grad_value_(&parameters, head[2].parse().unwrap()).unwrap(),
            _ => {
                let [max_norm, norm_type] = [1, 2].map(|word| head[word].parse().expect("a number"));
                let norm = clip_grad_norm_(&parameters, max_norm, norm_type).unwrap();
                assert_close(&values(&norm), &floats(&words), 1e-6);
            }
        }
        for (parameter, expected) in parameters.iter().zip(clipped.next().expect("two lines per case")) {
            assert_close(&values(&parameter.grad().unwrap()), expected, 1e-6);
        }
    }
    assert!(clipped.next().is_none());
}
