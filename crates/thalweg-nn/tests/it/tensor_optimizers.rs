//! Muon, Adafactor and L-BFGS against PyTorch's: `tests/goldens/tensor_optimizers.txt` (written by `make_tensor_optimizers.py`
//! next to it).

use std::collections::{BTreeMap, HashMap};

use thalweg_ir::DType;
use thalweg_nn::optim::{
    Adafactor, AdafactorOptions, AdjustLr, Lbfgs, LbfgsOptions, Muon, MuonOptions, OptimizerState,
};
use thalweg_runtime::{CaptureOptions, Error, Graph, Result, Stream};
use thalweg_tensor::Tensor;

use crate::support::{device, tensor, values};

const GOLDENS: &str = include_str!("../goldens/tensor_optimizers.txt");
const STEPS: usize = 10;

/// Returns the words of a line, and the numbers after its colon.
fn lines() -> impl Iterator<Item = (Vec<&'static str>, Vec<f64>)> {
    GOLDENS.lines().map(|line| {
        let (head, numbers) = line.split_once(':').unwrap_or((line, ""));
        let numbers = numbers.split_whitespace().map(|word| word.parse().expect("a number"));
        (head.split_whitespace().collect(), numbers.collect())
    })
}

/// Returns the parameters, and their gradients step by step.
fn inputs(dtype: DType) -> (BTreeMap<usize, Tensor>, Vec<BTreeMap<usize, Tensor>>) {
    let (mut starts, mut gradients) = (BTreeMap::new(), vec![BTreeMap::new(); STEPS]);
    let mut shapes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (head, numbers) in lines() {
        let place = |word: usize| head[word].parse::<usize>().expect("a place");
        match head[0] {
            "start" => {
                let shape: Vec<usize> = head[2].split(',').filter_map(|extent| extent.parse().ok()).collect();
                let start = tensor(&numbers, &shape, dtype).requires_grad_().unwrap();
                starts.insert(place(1), start);
                shapes.insert(place(1), shape);
            }
            "gradient" => {
                gradients[place(1)].insert(place(2), tensor(&numbers, &shapes[&place(2)], dtype));
            }
            _ => {}
        }
    }
    (starts, gradients)
}

/// A case of the file.
struct Case {
    head: Vec<&'static str>,
    options: HashMap<String, f64>,
    results: Vec<(Vec<&'static str>, Vec<f64>)>,
}

fn cases(optimizer: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (head, numbers) in lines() {
        if head[0] == "case" {
            let pair = |word: &&str| {
                let (name, value) = word.split_once('=').expect("name=value");
                (name.to_owned(), value.parse().expect("a number"))
            };
            cases.push(Case { options: head[3..].iter().map(pair).collect(), head, results: Vec::new() });
        } else if let Some(case) = cases.last_mut() {
            case.results.push((head, numbers));
        }
    }
    cases.retain(|case| case.head[1] == optimizer);
    assert!(cases.len() >= 8, "the file holds {} cases of {optimizer}", cases.len());
    cases
}

fn muon_options(given: &HashMap<String, f64>) -> MuonOptions {
    let mut options = MuonOptions::default();
    for (name, &value) in given {
        match &name[..] {
            "lr" => options.lr = value,
            "nesterov" => options.nesterov = value != 0.0,
            "weight_decay" => options.weight_decay = value,
            "momentum" => options.momentum = value,
            "ns_steps" => options.ns_steps = value as usize,
            "match_rms" => options.adjust_lr = AdjustLr::MatchRmsAdamW,
            name => options.ns_coefficients[name["ns".len()..].parse::<usize>().expect("a place")] = value,
        }
    }
    options
}

fn adafactor_options(given: &HashMap<String, f64>) -> AdafactorOptions {
    let mut options = AdafactorOptions::default();
    for (name, &value) in given {
        match &name[..] {
            "lr" => options.lr = value,
            "beta2_decay" => options.beta2_decay = value,
            "eps.0" => options.eps.0 = Some(value),
            "eps.1" => options.eps.1 = value,
            "d" => options.d = value,
            "weight_decay" => options.weight_decay = value,
            "maximize" => options.maximize = value != 0.0,
            name => panic!("{name} is not an option"),
        }
    }
    options
}

fn lbfgs_options(given: &HashMap<String, f64>) -> LbfgsOptions {
    let mut options = LbfgsOptions::default();
    for (name, &value) in given {
        match &name[..] {
            "lr" => options.lr = value,
            "max_iter" => options.max_iter = value as usize,
            "max_eval" => options.max_eval = Some(value as usize),
            "tolerance_grad" => options.tolerance_grad = value,
            "tolerance_change" => options.tolerance_change = value,
            "history_size" => options.history_size = value as usize,
            "strong_wolfe" => options.strong_wolfe = value != 0.0,
            name => panic!("{name} is not an option"),
        }
    }
    options
}

/// Ten steps of a case: parameters and states must be PyTorch's.
fn compare(
    case: &Case,
    tolerance: f64,
    parameters: &BTreeMap<usize, Tensor>,
    gradients: &[BTreeMap<usize, Tensor>],
    step: &mut dyn FnMut(usize) -> Result<()>,
    saved: impl FnOnce() -> OptimizerState,
) {
    for (number, gradients) in gradients.iter().enumerate() {
        for (place, parameter) in parameters {
            parameter.set_grad(Some(gradients[place].clone())).unwrap();
        }
        step(number).unwrap();
    }
    let (saved, mut states) = (saved(), 0);
    let places: Vec<usize> = parameters.keys().copied().collect();
    for (head, expected) in &case.results {
        let place: usize = head[1].parse().expect("a place");
        let number = places.iter().position(|other| *other == place).expect("it is stepped");
        let found = match head[0] {
            "param" => values(&parameters[&place]),
            _ => {
                states += 1;
                values(&saved.state[&number][head[2]])
            }
        };
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
                "{:?}, {head:?}: found {found}, PyTorch {expected}",
                case.head
            );
        }
    }
    assert_eq!(saved.state.values().flatten().count(), states, "{:?}: PyTorch's states", case.head);
}

#[test]
fn muon_takes_pytorchs_steps() {
    for case in cases("Muon") {
        let dtype: DType = case.head[2].parse().unwrap();
        let (mut parameters, gradients) = inputs(dtype);
        parameters.retain(|_, parameter| parameter.rank() == 2);
        let options = muon_options(&case.options);
        let list: Vec<Tensor> = parameters.values().cloned().collect();
        let optimizer = std::cell::RefCell::new(Muon::new(list, options).unwrap());
        // The iteration is in bf16, and rounds differently if sums are in another order.
        let tolerance = if dtype == DType::F32 { 2e-2 * options.lr.max(0.01) } else { 3e-2 };
        let mut step = |number| {
            let mut optimizer = optimizer.borrow_mut();
            if number == STEPS / 2 {
                optimizer.set_learning_rate(options.lr / 2.0)?;
            }
            optimizer.step()
        };
        compare(&case, tolerance, &parameters, &gradients, &mut step, || optimizer.borrow().state_dict());
    }
}

#[test]
fn adafactor_takes_pytorchs_steps() {
    for case in cases("Adafactor") {
        let dtype: DType = case.head[2].parse().unwrap();
        let (parameters, gradients) = inputs(dtype);
        let options = adafactor_options(&case.options);
        let list: Vec<Tensor> = parameters.values().cloned().collect();
        let optimizer = std::cell::RefCell::new(Adafactor::new(list, options).unwrap());
        let tolerance = if dtype == DType::F32 { 5e-6 } else { 5e-2 };
        let mut step = |number| {
            let mut optimizer = optimizer.borrow_mut();
            if number == STEPS / 2 {
                optimizer.set_learning_rate(options.lr / 2.0)?;
            }
            optimizer.step()
        };
        compare(&case, tolerance, &parameters, &gradients, &mut step, || optimizer.borrow().state_dict());
    }
}

/// Rosenbrock's function of all parameters concatenated.
fn rosenbrock(parameters: &[Tensor]) -> Result<Tensor> {
    let flat = parameters.iter().map(|parameter| parameter.reshape(&[parameter.elements()]));
    let x = Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?;
    let last = x.elements() - 1;
    let bend = x.narrow(0, 1, last)?.sub(&x.narrow(0, 0, last)?.square()?)?.square()?.sum(&[], false)?;
    x.neg()?.add_scalar(1.0)?.square()?.sum(&[], false)?.add(&bend.mul_scalar(100.0)?)
}

#[test]
fn lbfgs_takes_pytorchs_steps() {
    for case in cases("LBFGS") {
        let (starts, _) = inputs(DType::F64);
        let parameters = [0, 1].map(|place| starts[&place].clone());
        let mut optimizer = Lbfgs::new(parameters.to_vec(), lbfgs_options(&case.options)).unwrap();
        for (head, expected) in &case.results {
            let found = match head[0] {
                "call" => {
                    let loss = optimizer.step(|| {
                        parameters.iter().for_each(Tensor::zero_grad);
                        let loss = rosenbrock(&parameters)?;
                        loss.backward()?;
                        Ok(loss)
                    });
                    let (evaluations, iterations) = optimizer.counts();
                    vec![values(&loss.unwrap())[0], evaluations as f64, iterations as f64]
                }
                _ => values(&parameters[head[1].parse::<usize>().expect("a place")]),
            };
            for (found, expected) in found.iter().zip(expected) {
                // Near the minimum only rounding errors remain.
                assert!(
                    (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                    "{:?}, {head:?}: found {found}, PyTorch {expected}",
                    case.head
                );
            }
        }
    }
}

/// Checks that a captured step follows changes of the learning rate, and that its step counter is on the device.
#[test]
fn steps_of_muon_and_adafactor_are_captured() {
    let stream = Stream::new(&device()).unwrap();
    let _current = stream.make_current();
    let run = |is_captured: bool| {
        let (parameters, gradients) = inputs(DType::F32);
        let list = vec![parameters[&1].clone(), parameters[&2].clone()];
        for (place, parameter) in [1, 2].into_iter().zip(&list) {
            parameter.set_grad(Some(gradients[0][&place].clone())).unwrap();
        }
        let mut muon = Muon::new(list.clone(), MuonOptions { lr: 0.1, ..Default::default() }).unwrap();
        let mut adafactor = Adafactor::new(list.clone(), AdafactorOptions::default()).unwrap();
        muon.step().and_then(|()| adafactor.step()).unwrap();
        let graph = is_captured.then(|| {
            let step = || muon.step().and_then(|()| adafactor.step());
            Graph::capture(&device(), CaptureOptions::default(), step).unwrap().0
        });
        for rate in [0.1, 0.01] {
            muon.set_learning_rate(rate).unwrap();
            adafactor.set_learning_rate(rate / 2.0).unwrap();
            match &graph {
                Some(graph) => graph.replay().unwrap(),
                None => muon.step().and_then(|()| adafactor.step()).unwrap(),
            }
        }
        list.iter().map(values).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn saved_states_go_on_as_if_nothing_had_happened() {
    let run = |is_saved: bool| {
        let (parameters, gradients) = inputs(DType::F32);
        let list: Vec<Tensor> = parameters.values().cloned().collect();
        let mut optimizer = Adafactor::new(list.clone(), AdafactorOptions::default()).unwrap();
        for (step, gradients) in gradients.iter().enumerate() {
            for (place, parameter) in &parameters {
                parameter.set_grad(Some(gradients[place].clone())).unwrap();
            }
            if is_saved && step == 4 {
                let saved = optimizer.state_dict();
                let options = AdafactorOptions { lr: 0.5, ..AdafactorOptions::default() };
                optimizer = Adafactor::new(list.clone(), options).unwrap();
                optimizer.load_state_dict(&saved).unwrap();
            }
            optimizer.step().unwrap();
        }
        list.iter().map(values).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn what_does_not_fit_is_refused_in_pytorchs_words() {
    let (parameters, _) = inputs(DType::F32);
    let refused = |outcome: std::result::Result<(), Error>, words: &str| {
        let error = outcome.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{words}: {error}");
    };
    let list: Vec<Tensor> = parameters.values().cloned().collect();
    let muon = |list: &[Tensor], options| Muon::new(list.to_vec(), options).map(drop);
    refused(muon(&list, MuonOptions::default()), "Muon only supports 2D parameters");
    let matrix = &list[1..2];
    refused(muon(&[], MuonOptions::default()), "there is no parameter to optimize");
    refused(muon(&[matrix[0].clone(), matrix[0].clone()], MuonOptions::default()), "share memory");
    let bad = [f64::NAN, -0.1];
    for value in bad {
        refused(
            muon(matrix, MuonOptions { lr: value, ..Default::default() }),
            "learning rate should be >= 0",
        );
        refused(
            muon(matrix, MuonOptions { momentum: value, ..Default::default() }),
            "momentum should be >= 0",
        );
    }
    refused(muon(matrix, MuonOptions { ns_steps: 100, ..Default::default() }), "less than 100");
    let adafactor = |options| Adafactor::new(list.clone(), options).map(drop);
    refused(
        adafactor(AdafactorOptions { eps: (Some(-1e-30), 1e-3), ..Default::default() }),
        "epsilon1 should be >= 0",
    );
    refused(
        adafactor(AdafactorOptions { d: 0.0, ..Default::default() }),
        "Clipping threshold d should be >= 1",
    );
    refused(
        adafactor(AdafactorOptions { beta2_decay: 0.8, ..Default::default() }),
        "beta2_decay should be <= 0",
    );
    let lbfgs = |options| Lbfgs::new(list.clone(), options).map(drop);
    refused(lbfgs(LbfgsOptions { lr: f64::NAN, ..Default::default() }), "lr is");
    refused(lbfgs(LbfgsOptions { history_size: 0, ..Default::default() }), "history_size");
    let mut optimizer = Adafactor::new(list.clone(), AdafactorOptions::default()).unwrap();
    let mut saved = optimizer.state_dict();
    saved.state.get_mut(&1).unwrap().remove("row_var");
    refused(optimizer.load_state_dict(&saved), "parameter 1 has no saved row_var");
    refused(optimizer.load_state_dict(&OptimizerState::default()), "0 groups of parameters");
    let mut saved = optimizer.state_dict();
    let counted = Tensor::ones(&[], DType::F32, &device()).unwrap();
    saved.state.get_mut(&1).unwrap().insert("step".into(), counted);
    saved.param_groups[0].options.insert("lr".into(), -1.0);
    refused(optimizer.load_state_dict(&saved), "Learning rate should be >= 0");
    assert_eq!(values(&optimizer.state_dict().state[&1]["step"]), [0.0], "nothing has changed");
    // An error of the closure is the step's.
    let mut optimizer = Lbfgs::new(list, LbfgsOptions::default()).unwrap();
    refused(optimizer.step(|| Err(Error::invalid("no loss today"))).map(drop), "no loss today");
}
