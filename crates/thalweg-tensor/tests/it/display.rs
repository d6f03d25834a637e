//! `Display`: the texts that PyTorch 2.11 prints, in `goldens/printed.txt`, plus the device.

use thalweg_ir::{DType, c64};
use thalweg_tensor::{PrintOptions, Tensor, print_options, set_print_options};

use crate::support::{device, tensor};

/// Returns the text of a case, without the device that Thalweg adds.
fn printed(tensor: &Tensor) -> String {
    let suffix = format!("device='{}'", device());
    let text = tensor.to_string();
    assert!(text.contains(&suffix), "{text}");
    text.replace(&format!(", {suffix}"), "").replace(&format!(",\n       {suffix}"), "")
}

fn expected(case: &str) -> &'static str {
    let all = include_str!("../goldens/printed.txt");
    let (_, rest) = all.split_once(&format!("## {case}\n")).expect("the case is in the file");
    rest.split_once("\n##").map_or(rest, |(text, _)| text).trim_end()
}

fn ramp(count: usize, scale: f64, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..count).map(|value| value as f64 * scale).collect();
    tensor(&values, shape, DType::F32)
}

fn complex(numbers: &[(f32, f32)], shape: &[usize]) -> Tensor {
    let numbers: Vec<c64> = numbers.iter().map(|&(re, im)| c64 { re, im }).collect();
    Tensor::from_slice(&numbers, shape, &device()).unwrap()
}

fn ramp_of(count: usize, (re, im): (f32, f32), shape: &[usize]) -> Tensor {
    let numbers: Vec<(f32, f32)> = (0..count).map(|at| (at as f32 * re, at as f32 * im + 0.0)).collect();
    complex(&numbers, shape)
}

#[test]
fn tensors_are_printed_as_pytorch_prints_them() {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device()).unwrap();
    let floats = |values: &[f64]| tensor(values, &[values.len()], DType::F32);
    let integers = |count: usize, shape: &[usize]| ramp(count, 1.0, shape).to_dtype(DType::I64).unwrap();
    let leaf = tensor(&[1.0, 2.0], &[2], DType::F64).requires_grad_().unwrap();
    let cases = [
        ("a", tensor(&[1.0, 2.0, 3.0, -4.0], &[2, 2], DType::F32)),
        ("b", floats(&[0.1, 2.5, -1000.0])),
        ("c", floats(&[1e-5, 1.0])),
        ("d", floats(&[1.0, f64::NAN, f64::INFINITY, 0.0])),
        ("e", integers(1200, &[2, 600])),
        ("f", integers(24, &[2, 3, 4])),
        ("g", tensor(&[3.5], &[], DType::F32)),
        ("h", zeros(&[0, 3], DType::F32)),
        ("i", floats(&[1.0, 0.0]).to_dtype(DType::Bool).unwrap()),
        ("j", ramp(30, 1.0 / 29.0, &[30])),
        ("k", leaf),
        ("l", ramp(4000, 1.0 / 7.0, &[40, 100])),
        ("m", floats(&[1.0, 2.0]).to_dtype(DType::U8).unwrap()),
        ("n", zeros(&[0], DType::I64)),
        ("o", floats(&[1e9, 1.0])),
        ("p", tensor(&[1.5, 2.25], &[2], DType::Bf16)),
        ("q", complex(&[(1.0, 2.0), (3.0, -1.0), (-2.0, 0.5)], &[3])),
        ("r", complex(&[(1.5, -2.0)], &[])),
        ("s", complex(&[(1e-5, 1.0), (2.0, 300.0), (1e5, 0.0), (f32::NAN, f32::INFINITY)], &[2, 2])),
        ("t", zeros(&[0, 2], DType::C64)),
        ("u", complex(&[(1.0, 2.0)], &[1]).to_dtype(DType::C128).unwrap()),
        ("v", ramp_of(12, (0.25, -1.5), &[2, 6])),
        ("w", ramp_of(1200, (1.0, -1.0), &[2, 600])),
    ];
    for (case, tensor) in cases {
        assert_eq!(printed(&tensor), expected(case), "{case}");
    }
}

#[test]
fn what_a_tensor_is_the_result_of_is_printed() {
    let leaf = tensor(&[1.0, 2.0], &[2], DType::F32).requires_grad_().unwrap();
    let text = leaf.mul(&leaf).unwrap().to_string();
    assert!(text.starts_with("tensor([1., 4.]") && text.ends_with("grad_fn=<MulBackward0>)"), "{text}");
}

#[test]
fn options_that_print_nothing_are_refused() {
    for wrong in [
        PrintOptions { precision: 1001, ..PrintOptions::default() },
        PrintOptions { edge_items: 0, ..PrintOptions::default() },
    ] {
        let error = set_print_options(wrong).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("1 or more elements at an edge"));
    }
    assert_eq!(print_options(), PrintOptions::default());
}
