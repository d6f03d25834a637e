//! Every elementwise entry of the table at extreme points: its value, its gradient and its second gradient are those of PyTorch's
//! CUDA backend (`tests/goldens/extremes.gz`, written by `extremes.py` next to it). Exceptions are listed in `extremes.txt`
//! there, with the reason: the test fails both if one is missing and if one is no longer needed.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;
use thalweg_ir::{DType, Scalar, bf16, f16};
use thalweg_ops::structured::structured;
use thalweg_ops::{DTypeRule, elementwise, parts};
use thalweg_runtime::Label;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};
use thalweg_tensor::dispatch::{Argument, Operator, find_operator};

use crate::opinfo::file::{File, list};
use crate::support::{tensor, values};

const CREATE: BackwardOptions = BackwardOptions { retain_graph: true, create_graph: true };

/// The places where the goldens do not apply, one per line: entry, `value`, `gradient` or `second`, a condition, `:`, the reason.
const DIFFERENCES: &str = include_str!("../goldens/extremes.txt");

fn goldens() -> File {
    File::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/extremes.gz"))
}

/// A case of the file.
struct Case<'a> {
    file: &'a File,
    json: &'a Json,
    dtype: DType,
    operands: Vec<Vec<f64>>,
}

/// A place where a result is not PyTorch's.
struct Difference {
    what: &'static str,
    point: Vec<f64>,
    found: f64,
    expected: f64,
}

impl<'a> Case<'a> {
    fn of(file: &'a File, json: &'a Json) -> Self {
        let name = json["dtype"].as_str().expect("a dtype's name");
        let dtype: DType = name.parse().expect("the file names PyTorch's dtypes");
        let [begin, points, operands] = [0, 1, 2].map(|place| {
            let grid = json["grid"].as_str().expect("a grid's name");
            file.header["grids"][grid][name][place].as_u64().expect("a number") as usize
        });
        let size = points * dtype.size_bytes();
        let operands =
            (0..operands).map(|place| numbers(file, begin + place * size, points, dtype)).collect();
        Self { file, json, dtype, operands }
    }

    fn entry(&self) -> &'a str {
        self.json["entry"].as_str().expect("an entry's name")
    }

    /// Returns the array of this number.
    fn array(&self, number: usize) -> Vec<f64> {
        let (begin, points) =
            (self.json["begin"].as_u64().expect("a place") as usize, self.operands[0].len());
        let is_bool = self.json["is_bool"] == true;
        let dtype = if is_bool { DType::U8 } else { self.dtype };
        numbers(self.file, begin + number * points * dtype.size_bytes(), points, dtype)
    }

    /// Returns the number of arrays.
    fn arrays(&self) -> usize {
        self.json["arrays"].as_u64().expect("a number") as usize
    }

    /// Returns value, gradients and second gradients, as far as PyTorch has them.
    fn run(&self) -> Vec<Vec<f64>> {
        let wrt: Vec<usize> =
            list(&self.json["wrt"]).iter().map(|place| place.as_u64().unwrap() as usize).collect();
        let chooses =
            elementwise().any(|entry| entry.name == self.entry() && entry.rule == DTypeRule::Condition);
        let leaves: Vec<Tensor> = (self.operands.iter().enumerate())
            .map(|(place, operand)| {
                let dtype = if chooses && place == 0 { DType::Bool } else { self.dtype };
                let leaf = tensor(operand, &[operand.len()], dtype);
                if wrt.contains(&place) { leaf.requires_grad_().unwrap() } else { leaf }
            })
            .collect();
        let number = |text: &Json| text.as_str().unwrap().parse::<f64>().unwrap();
        let scalars =
            list(&self.json["numbers"]).iter().map(|text| Argument::Scalar(Scalar::F64(number(text))));
        let arguments: Vec<_> = leaves.iter().map(Argument::Tensor).chain(scalars).collect();
        let result = operator_of(self.entry()).call(&arguments, None, Label::here("extreme"));
        let value = result.unwrap_or_else(|error| panic!("{}: {error}", self.entry())).swap_remove(0);
        let wanted: Vec<Tensor> = wrt.iter().map(|&place| leaves[place].clone()).collect();
        let mut results = vec![values(&value)];
        if self.arrays() == 1 {
            return results;
        }
        let first = gradients(&value, &wanted);
        results.extend(first.iter().map(values));
        if self.json["seconds"] == true {
            results.extend(
                first.iter().flat_map(|first| gradients(first, &wanted)).map(|second| values(&second)),
            );
        }
        results
    }

    /// Returns the places where results are neither PyTorch's, nor, in 16 bits, PyTorch's 32-bit results rounded.
    fn differences(&self) -> Vec<Difference> {
        let results = self.run();
        assert_eq!(results.len(), self.arrays(), "{} of {}", self.entry(), self.dtype);
        let mut differences = Vec::new();
        for (number, found) in results.into_iter().enumerate() {
            let is_wide = self.json["wide"] == true;
            let expected = self.array(number);
            let wide = if is_wide { self.array(self.arrays() + number) } else { expected.clone() };
            let what = match number {
                0 => "value",
                _ if number <= list(&self.json["wrt"]).len() => "gradient",
                _ => "second",
            };
            for (place, found) in found.into_iter().enumerate() {
                let (expected, wide) = (expected[place], wide[place]);
                if !agrees(found, expected, self.dtype) && !agrees(found, wide, self.dtype) {
                    let point = self.operands.iter().map(|operand| operand[place]).collect();
                    differences.push(Difference { what, point, found, expected });
                }
            }
        }
        differences
    }
}

/// Returns numbers of the file's raw bytes.
fn numbers(file: &File, begin: usize, count: usize, dtype: DType) -> Vec<f64> {
    let size = dtype.size_bytes();
    let bytes = &file.bytes()[begin..begin + count * size];
    let bits = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    let number = |bits: u64| match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        _ => bits as f64,
    };
    bytes.chunks(size).map(|bytes| number(bits(bytes))).collect()
}

/// Returns the operator of an entry, or of a loss.
fn operator_of(entry: &str) -> &'static Operator {
    let found = elementwise().chain(parts()).chain(structured()).find(|other| other.name == entry);
    let found = found.unwrap_or_else(|| panic!("{entry} is an entry of the table"));
    find_operator(&found.operator_name()).expect("an entry of the table is an operator")
}

/// Returns the gradients of a result for ones, as parts of the graph; zeros where nothing flows.
fn gradients(result: &Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
    let zeros = |input: &Tensor| Tensor::zeros(input.shape(), input.dtype(), input.device()).unwrap();
    if !result.requires_grad() {
        return inputs.iter().map(zeros).collect();
    }
    let ones = Tensor::ones(result.shape(), result.dtype(), result.device()).unwrap();
    let found = gradients_with(std::slice::from_ref(result), &[Some(ones)], inputs, CREATE).unwrap();
    found.into_iter().zip(inputs).map(|(found, input)| found.unwrap_or_else(|| zeros(input))).collect()
}

/// Returns whether a result agrees with PyTorch's: in its kind (NaN, infinite, 0) and in its first digits. A number that underflows may
/// be 0.
fn agrees(found: f64, expected: f64, dtype: DType) -> bool {
    let (relative, lost, tiny) = match dtype {
        DType::F64 => (1e-9, 1e-15, 1e-300),
        DType::F32 => (1e-4, 1e-7, 1e-36),
        DType::F16 => (1e-2, 1e-3, 1e-6),
        _ => (4e-2, 8e-3, 1e-36),
    };
    found == expected
        || found.is_nan() && expected.is_nan()
        || expected.is_finite() && (found - expected).abs() <= relative * expected.abs() + tiny
        || expected == 0.0 && found.abs() <= lost
}

/// A line of the list of differences.
struct Listed<'a> {
    line: &'a str,
    entries: Vec<&'a str>,
    what: &'a str,
    conditions: Vec<&'a str>,
}

impl<'a> Listed<'a> {
    fn all() -> Vec<Self> {
        let lines = DIFFERENCES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(Self::parse).collect()
    }

    fn parse(line: &'a str) -> Self {
        let (place, reason) = line.split_once(": ").unwrap_or_else(|| panic!("`{line}` has no reason"));
        let [entries, what, conditions] = place.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("`{line}` is not entries, a kind of result and conditions")
        };
        assert!(!reason.trim().is_empty(), "`{line}` has no reason");
        Self {
            line,
            entries: entries.split(',').collect(),
            what,
            conditions: conditions.split('&').collect(),
        }
    }

    fn has(&self, case: &Case<'_>, difference: &Difference) -> bool {
        (self.entries == ["*"] || self.entries.contains(&case.entry()))
            && (self.what == "*" || self.what == difference.what)
            && self.conditions.iter().all(|condition| holds(condition, case.dtype, difference))
    }
}

/// Returns whether a condition holds: `any`, a dtype, `tie` of operands, `numbers` (no NaN), or a value of `x`, `y`, `z`, `pytorch`, `ours`.
fn holds(condition: &str, dtype: DType, difference: &Difference) -> bool {
    let Some((name, value)) = condition.split_once('=') else {
        let point = &difference.point;
        return match condition {
            "any" => true,
            "numbers" => !point.iter().any(|number| number.is_nan()),
            "tie" => point.windows(2).all(|pair| pair[0] == pair[1]),
            _ => condition == dtype.name(),
        };
    };
    let number = match name {
        "pytorch" => difference.expected,
        "ours" => difference.found,
        "any" => {
            return ["x", "y", "z"].iter().any(|name| holds(&format!("{name}={value}"), dtype, difference));
        }
        name => {
            match difference.point.get(["x", "y", "z"].iter().position(|&other| other == name).unwrap()) {
                Some(&number) => number,
                None => return false,
            }
        }
    };
    let largest = match dtype {
        DType::F64 => f64::MAX,
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => f16::MAX.to_f64(),
        _ => bf16::MAX.to_f64(),
    };
    match value {
        "nan" => number.is_nan(),
        "inf" => number.is_infinite(),
        "finite" => number.is_finite(),
        "largest" => number.abs() == largest,
        "tiny" => number != 0.0 && number.abs() < 1e-30,
        "huge" => number.abs() >= 88.0,
        _ => {
            number == value.parse::<f64>().unwrap_or_else(|_| panic!("`{condition}` compares with a number"))
        }
    }
}

#[test]
fn values_and_gradients_at_extreme_points_are_pytorchs() {
    let (file, listed) = (goldens(), Listed::all());
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for json in list(&file.header["cases"]) {
        let case = Case::of(&file, json);
        for difference in case.differences() {
            match listed.iter().find(|listed| listed.has(&case, &difference)) {
                Some(listed) => _ = used.insert(listed.line),
                None => {
                    let Difference { what, point, found, expected } = difference;
                    wrong.push(format!(
                        "{} {} {what} {} {point:?}: {found}, PyTorch {expected}",
                        case.entry(),
                        case.json["numbers"],
                        case.dtype
                    ));
                }
            }
        }
    }
    let needless = listed.iter().filter(|listed| !used.contains(listed.line));
    wrong.extend(needless.map(|listed| format!("listed, and no difference: {}", listed.line)));
    assert!(wrong.is_empty(), "{} results differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The entries that take floats and have no goldens, with the reason.
const WITHOUT: &[(&str, &str)] = &[
    ("pow_of_scalar", "it is `power` of a base that is a number"),
    ("integer_power", "of floats it is `power`"),
    ("integer_power_scalar", "of floats it is `power_scalar`"),
    ("integer_power_of_scalar", "of floats it is `pow_of_scalar`"),
    ("power_1", "it is its operand"),
    ("trigamma", "it is the gradient of `digamma`"),
    ("mul_reciprocal", "it is `div_scalar` of 16 bits, up to the rounding of float32"),
    ("logit_within", "it is `logit_of` of numbers that a bound replaces"),
];

/// The parts of functions of complex numbers, whose goldens are those of the Python package (`tests/test_complex.py`).
const COMPLEX: &[&str] = &[
    "log_of_length",
    "log1p_real",
    "expm1_real",
    "sqrt_real",
    "sqrt_imag",
    "exp_real",
    "exp_imag",
    "sinh_real",
    "sinh_imag",
    "cosh_real",
    "cosh_imag",
    "tanh_real",
    "tanh_imag",
    "asin_real",
    "asin_imag",
    "acos_real",
    "acos_imag",
    "atanh_real",
    "atanh_imag",
];

#[test]
fn every_entry_of_floats_has_goldens() {
    let file = goldens();
    let cases: BTreeSet<&str> =
        list(&file.header["cases"]).iter().map(|case| case["entry"].as_str().unwrap()).collect();
    let without: BTreeSet<&str> =
        WITHOUT.iter().map(|&(entry, _)| entry).chain(COMPLEX.iter().copied()).collect();
    let of_floats = elementwise()
        .chain(parts())
        .filter(|entry| !matches!(entry.rule, DTypeRule::Bits | DTypeRule::Integers));
    for entry in of_floats {
        let (has, listed) = (cases.contains(entry.name), without.contains(entry.name));
        assert!(has != listed, "{}: add a case to tests/goldens/extremes.py, or the reason here", entry.name);
    }
}
