//! An external oracle: the results of PyTorch's CUDA backend, in `tests/goldens/pytorch.txt` (written by `make.py` next to it).
//! Values and gradients of operators, kinks and special values, five steps of Adam, the promotion table.

use std::collections::HashMap;

use thalweg_ir::{DType, Element, Scalar, with_dtype};
use thalweg_nn::functional::{
    AttentionOptions, ClassLossOptions, ConvOptions, PoolOptions, Reduction, conv2d, cross_entropy_with,
    embedding, layer_norm, max_pool2d, nll_loss, scaled_dot_product_attention,
};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_ops::{elementwise, parts};
use thalweg_runtime::{Label, Result};
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{close, device, values};

/// The seed from which `make.py` draws random numbers.
const GENERATOR_SEED: u64 = 81_985_529_216_486_895;

const GOLDENS: &str = include_str!("../goldens/pytorch.txt");

/// Operators that take many steps to a result, or, in the case of `randn`, a less accurate sine.
const SUMMING: &[&str] = &[
    "conv2d",
    "matmul",
    "sum",
    "mean",
    "cross_entropy",
    "nll_loss",
    "layer_norm",
    "embedding",
    "randn",
    "scaled_dot_product_attention",
];

/// One block of the file.
struct Case {
    name: String,
    numbers: HashMap<String, f64>,
    order: Vec<f64>,
    inputs: Vec<Tensor>,
    output: Option<Tensor>,
    output_gradient: Option<Tensor>,
    gradients: HashMap<usize, Tensor>,
    line: usize,
}

fn dtype_of(name: &str) -> DType {
    name.parse().expect("the file names PyTorch's dtypes")
}

fn parse<T: Element>(words: &[&str], shape: &[usize], convert: impl Fn(&str) -> T) -> Tensor {
    let numbers: Vec<T> = words.iter().map(|word| convert(word)).collect();
    Tensor::from_slice(&numbers, shape, &device()).expect("a golden tensor is made")
}

/// Returns a tensor from `dtype shape : values`.
fn tensor(words: &[&str]) -> Tensor {
    let dtype = dtype_of(words[0]);
    let shape: Vec<usize> = match words[1] {
        "-" => vec![],
        list => list.split(',').map(|extent| extent.parse().expect("an extent")).collect(),
    };
    let numbers = &words[3..];
    let bits = |word: &str| u64::from_str_radix(word, 16).expect("hexadecimal digits");
    with_dtype!(dtype,
        bool => parse(numbers, &shape, |word| word.parse::<u8>().expect("0 or 1"))
            .to_dtype(DType::Bool)
            .expect("converts"),
        integer T => parse(numbers, &shape, |word| word.parse::<T>().expect("a number")),
        reduced T => parse(numbers, &shape, |word| T::from_bits(bits(word) as _)),
        float T => parse(numbers, &shape, |word| T::from_bits(bits(word) as _)),
    )
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (line, text) in GOLDENS.lines().enumerate() {
        let words: Vec<&str> = text.split_whitespace().collect();
        match (words.first().copied(), cases.last_mut()) {
            (Some("case"), _) => {
                let pairs: Vec<(String, f64)> = words[2..]
                    .iter()
                    .map(|word| word.split_once('=').expect("key=value"))
                    .map(|(key, value)| (key.to_owned(), value.parse().expect("a number")))
                    .collect();
                cases.push(Case {
                    name: words[1].to_owned(),
                    order: pairs.iter().map(|(_, value)| *value).collect(),
                    numbers: pairs.into_iter().collect(),
                    inputs: Vec::new(),
                    output: None,
                    output_gradient: None,
                    gradients: HashMap::new(),
                    line: line + 1,
                });
            }
            (Some("in"), Some(case)) => case.inputs.push(tensor(&words[2..])),
            (Some("out"), Some(case)) => case.output = Some(tensor(&words[2..])),
            (Some("grad"), Some(case)) if words[1] == "out" => {
                case.output_gradient = Some(tensor(&words[2..]))
            }
            (Some("grad"), Some(case)) => {
                case.gradients.insert(words[1].parse().expect("an input"), tensor(&words[2..]));
            }
            _ => {}
        }
    }
    cases
}

impl Case {
    fn number(&self, name: &str) -> f64 {
        self.numbers[name]
    }

    fn window(&self) -> ConvOptions<2> {
        let size = |name| self.number(name) as usize;
        let [stride, padding, dilation] = ["stride", "padding", "dilation"].map(|name| [size(name); 2]);
        ConvOptions { stride, padding, dilation, groups: 1 }
    }

    fn class_loss(&self) -> ClassLossOptions {
        let number = |name: &str| self.numbers.get(name).copied();
        let defaults = ClassLossOptions::default();
        ClassLossOptions {
            ignore_index: number("ignore_index").map_or(defaults.ignore_index, |class| class as i64),
            label_smoothing: number("label_smoothing").unwrap_or(0.0),
            reduction: match number("reduction") {
                Some(0.0) => Reduction::None,
                Some(2.0) => Reduction::Sum,
                _ => Reduction::Mean,
            },
        }
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let x = &inputs[0];
        let dimension = || self.number("dim") as i64;
        match self.name.as_str() {
            "sum" => x.sum(&[dimension()], false),
            "mean" => x.mean(&[dimension()], false),
            "amax" => x.amax(&[dimension()], false),
            "amin" => x.amin(&[dimension()], false),
            "argmax" => x.argmax(dimension()),
            "softmax" => x.softmax(dimension()),
            "log_softmax" => x.log_softmax(dimension()),
            "cross_entropy" => cross_entropy_with(x, &inputs[1], self.class_loss()),
            "nll_loss" => nll_loss(x, &inputs[1], self.class_loss()),
            "layer_norm" => layer_norm(x, inputs[1].shape(), inputs.get(1), inputs.get(2), 1e-5),
            "embedding" => embedding(&inputs[1], x, self.numbers.get("padding_idx").map(|&row| row as i64)),
            "scaled_dot_product_attention" => {
                let is_causal = self.numbers.get("is_causal") == Some(&1.0);
                let options = AttentionOptions { attn_mask: inputs.get(3), is_causal, ..Default::default() };
                scaled_dot_product_attention(x, &inputs[1], &inputs[2], options)
            }
            "rand" | "randn" => {
                let generator = DeviceGenerator::new(0, &device())?;
                generator.set_state(GENERATOR_SEED, self.number("offset") as u64)?;
                match self.name.as_str() {
                    "rand" => generator.rand(&[700], x.dtype()),
                    _ => generator.randn(&[700], x.dtype()),
                }
            }
            "matmul" => x.matmul(&inputs[1]),
            "softplus" => x.softplus(),
            "conv2d" => conv2d(x, &inputs[1], Some(&inputs[2]), self.window()),
            "max_pool2d" => {
                let kernel = ["kernel_height", "kernel_width"].map(|name| self.number(name) as usize);
                let ConvOptions { stride, padding: [padding, _], dilation: [dilation, _], .. } =
                    self.window();
                max_pool2d(x, kernel, PoolOptions { stride: Some(stride), padding, dilation })
            }
            name => {
                let name = match name {
                    "pow" => "power",
                    "pow_scalar" => "power_scalar",
                    "square" => "square_of",
                    name => name,
                };
                let entry = elementwise().chain(parts()).find(|entry| entry.name == name);
                let entry = entry.unwrap_or_else(|| panic!("{name} is an entry of the table"));
                let numbers = self.order.iter().map(|&number| Argument::Scalar(Scalar::F64(number)));
                let arguments: Vec<_> = inputs.iter().map(Argument::Tensor).chain(numbers).collect();
                let operator = find_operator(&entry.operator_name())?;
                Ok(operator.call(&arguments, None, Label::here("golden"))?.swap_remove(0))
            }
        }
    }

    /// Returns the tolerance of results: both sides round, and neither is exact. Sums and products take several steps.
    fn tolerance(&self, dtype: DType) -> f64 {
        let epsilon = match dtype {
            DType::F16 => 1e-3,
            DType::Bf16 => 8e-3,
            _ => 2e-7,
        };
        let steps = if SUMMING.contains(&self.name.as_str()) { 30.0 } else { 4.0 };
        epsilon * steps
    }

    fn compare(&self, what: &str, found: &Tensor, expected: &Tensor) {
        let place = format!("{} (line {}): {what}", self.name, self.line);
        assert_eq!(found.dtype(), expected.dtype(), "{place}");
        assert_eq!(found.shape(), expected.shape(), "{place}");
        let tolerance = self.tolerance(found.dtype());
        for (index, (found, expected)) in values(found).into_iter().zip(values(expected)).enumerate() {
            assert!(
                close(found, expected, tolerance),
                "{place}, element {index}: found {found}, PyTorch {expected}"
            );
        }
    }
}

#[test]
fn values_and_gradients_agree_with_pytorch() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name != "adam").collect();
    assert!(cases.len() > 100, "the file holds {} cases", cases.len());
    for case in &cases {
        let leaves: Vec<Tensor> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| match case.gradients.contains_key(&index) {
                true => input.requires_grad_().expect("PyTorch gave it a gradient"),
                false => input.clone(),
            })
            .collect();
        let output = case.run(&leaves).unwrap_or_else(|error| panic!("line {}: {error}", case.line));
        case.compare("output", &output.detach(), case.output.as_ref().expect("every case has an output"));
        let Some(gradient) = &case.output_gradient else { continue };
        output.backward_with(gradient).unwrap_or_else(|error| panic!("line {}: {error}", case.line));
        for (&index, expected) in &case.gradients {
            let found = leaves[index].grad().expect("the leaf has a gradient");
            case.compare(&format!("gradient of input {index}"), &found, expected);
        }
    }
}

#[test]
fn adam_takes_pytorchs_steps() {
    let cases = cases();
    let case = cases.iter().find(|case| case.name == "adam").expect("the file has the case");
    let parameter = case.inputs[0].detach().requires_grad_().unwrap();
    let options = AdamOptions {
        lr: case.number("lr"),
        weight_decay: case.number("weight_decay"),
        ..AdamOptions::default()
    };
    let optimizer = Adam::new(vec![parameter.clone()], options).unwrap();
    for step in 0..case.gradients.len() {
        parameter.set_grad(Some(case.gradients[&step].clone())).unwrap();
        optimizer.step().unwrap();
    }
    no_grad(|| case.compare("parameter", &parameter.detach(), case.output.as_ref().expect("the parameter")));
}

#[test]
fn promotion_agrees_with_pytorch() {
    let mut pairs = 0;
    for line in GOLDENS.lines().filter_map(|line| line.strip_prefix("promote ")) {
        let [a, b, result] = *line.split(' ').collect::<Vec<_>>() else { panic!("{line}") };
        assert_eq!(dtype_of(a).promote(dtype_of(b)), Ok(dtype_of(result)), "{line}");
        pairs += 1;
    }
    assert_eq!(pairs, 64);
}
