//! Convolution as a library call compared with the composition of products in f64, and its gradients.

use thalweg_ir::DType;
use thalweg_runtime::{CaptureOptions, Graph, Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, Ints, find_operator};

use crate::support::{assert_close, device, on_own_device, random, values};

/// The sizes of input and weight; stride, padding and dilation; and the number of groups.
type Case = (&'static [usize], &'static [usize], [&'static [i64]; 3], i64);

const CASES: [Case; 13] = [
    (&[2, 3, 7, 9], &[4, 3, 3, 2], [&[1, 1], &[1, 0], &[1, 1]], 1),
    (&[2, 6, 8, 8], &[9, 2, 3, 3], [&[2, 2], &[1, 1], &[1, 1]], 3),
    (&[1, 4, 10, 9], &[4, 1, 3, 3], [&[1, 1], &[2, 2], &[2, 2]], 4),
    (&[2, 3, 11], &[5, 3, 4], [&[3], &[2], &[1]], 1),
    (&[1, 2, 4, 5, 6], &[3, 2, 3, 2, 3], [&[2, 1, 2], &[1, 0, 1], &[1, 1, 1]], 1),
    (&[8, 3, 20, 33], &[3, 1, 3, 3], [&[1, 1], &[1, 1], &[1, 1]], 3),
    (&[5, 2, 11, 12], &[2, 1, 5, 5], [&[2, 2], &[2, 0], &[1, 1]], 2),
    (&[3, 2, 14, 13], &[2, 1, 7, 7], [&[2, 2], &[3, 4], &[1, 1]], 2),
    (&[2, 3, 9, 10], &[3, 1, 9, 9], [&[1, 1], &[4, 1], &[1, 1]], 3),
    (&[3, 4, 11, 21], &[4, 1, 1, 9], [&[1, 1], &[0, 3], &[1, 1]], 4),
    (&[2, 3, 40, 5], &[3, 1, 33, 1], [&[1, 1], &[16, 0], &[1, 1]], 3),
    (&[2, 5, 50], &[5, 1, 17], [&[1], &[16], &[1]], 5),
    (&[3, 2, 6], &[2, 1, 31], [&[1], &[15], &[1]], 2),
];

/// Returns a tensor of images whose channels are innermost, as a part of the channels of wider ones.
fn part_of_channels_last(x: &Tensor) -> Tensor {
    let last = x.permute(&[0, 2, 3, 1]).unwrap();
    let other = last.mul_scalar(f64::NAN).unwrap();
    let wide = Tensor::cat(&[last, other], 3).unwrap();
    wide.permute(&[0, 3, 1, 2]).unwrap().narrow(1, 0, x.shape()[1]).unwrap()
}

fn ints(list: &[i64]) -> Ints {
    list.iter().copied().collect()
}

fn sizes(tensor: &Tensor) -> Ints {
    tensor.shape().iter().map(|&extent| extent as i64).collect()
}

/// Calls the operator of cuDNN: 0 computes the output, 1 the input, 2 the weight.
fn by_library(operands: [&Tensor; 2], computed: i64, size: &Ints, case: &Case) -> Result<Tensor> {
    if !device().properties().libraries.convolution {
        return Err(thalweg_runtime::Error::invalid("a GPU for tests has cuDNN"));
    }
    let window = case.2.map(ints);
    let arguments: Vec<Argument<'_>> = [operands[0].into(), operands[1].into(), computed.into()]
        .into_iter()
        .chain([size, &window[0], &window[1], &window[2]].map(|list| Argument::Ints(list)))
        .chain([case.3.into()])
        .collect();
    let operator = find_operator("thalweg::convolution")?;
    Ok(operator.call(&arguments, None, Label::here("convolution"))?.swap_remove(0))
}

/// Calls the operator of ATen.
fn by_products([input, weight]: [&Tensor; 2], case: &Case) -> Result<Tensor> {
    let window = case.2.map(ints);
    let none = Ints::from_elem(0, window[0].len());
    let [stride, padding, dilation] = window.each_ref().map(|list| Argument::Ints(list));
    let arguments = [
        input.into(),
        weight.into(),
        Argument::None,
        stride,
        padding,
        dilation,
        Argument::Bool(false),
        Argument::Ints(&none),
        case.3.into(),
    ];
    Ok(find_operator("convolution")?.call(&arguments, None, Label::here("convolution"))?.swap_remove(0))
}

/// Returns numbers that a dtype represents exactly, as a tensor of that dtype.
fn representable(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    random(shape, seed).to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap()
}

fn leaf(tensor: &Tensor, dtype: DType) -> Tensor {
    tensor.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap()
}

#[test]
fn a_convolution_and_its_gradients_are_those_of_products_in_f64() {
    for case in &CASES {
        for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::F16, 0.02), (DType::Bf16, 0.15)] {
            let (input, weight) = (representable(case.0, 1, dtype), representable(case.1, 2, dtype));
            let exact = [&input, &weight].map(|tensor| leaf(tensor, DType::F64));
            let expected = by_products(exact.each_ref(), case).unwrap();
            let gradient = representable(expected.shape(), 3, dtype);
            expected.backward_with(&gradient).unwrap();
            let own = [&input, &weight].map(|tensor| leaf(tensor, dtype));
            let found = by_library(own.each_ref(), 0, &sizes(&expected), case).unwrap();
            found.backward_with(&gradient.to_dtype(dtype).unwrap()).unwrap();
            assert_close(&values(&found), &values(&expected), tolerance);
            for (own, exact) in own.iter().zip(&exact) {
                assert_close(&values(&own.grad().unwrap()), &values(&exact.grad().unwrap()), tolerance);
            }
        }
    }
}

#[test]
fn depthwise_gradients_are_the_same_in_other_layouts() {
    for case in CASES.iter().filter(|case| case.1[1] == 1 && case.0.len() == 4) {
        let (input, weight) = (representable(case.0, 1, DType::F16), representable(case.1, 2, DType::F16));
        let [input, weight] = [input, weight].map(|x| x.to_dtype(DType::F16).unwrap());
        let output = by_products([&input, &weight], case).unwrap();
        let gradient = representable(output.shape(), 3, DType::F16).to_dtype(DType::F16).unwrap();
        let of = |gradient: &Tensor, input: &Tensor| {
            let of_input = by_library([gradient, &weight], 1, &sizes(input), case).unwrap();
            let of_weight = by_library([gradient, input], 2, &sizes(&weight), case).unwrap();
            [of_input, of_weight]
        };
        let expected = of(&gradient, &input);
        let found = of(&part_of_channels_last(&gradient), &part_of_channels_last(&input));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.shape(), expected.shape());
            assert_close(&values(found), &values(expected), 0.02);
        }
    }
}

/// Calls an operator of ATen with a bias; `more` follows the dilation.
fn biased(name: &str, operands: [&Tensor; 3], case: &Case, more: &[Argument<'_>]) -> Result<Tensor> {
    let window = case.2.map(ints);
    let lists = window.each_ref().map(|list| Argument::Ints(list));
    let arguments: Vec<Argument<'_>> =
        operands.map(Argument::from).into_iter().chain(lists).chain(more.iter().copied()).collect();
    Ok(find_operator(name)?.call(&arguments, None, Label::here("biased"))?.swap_remove(0))
}

#[test]
fn a_bias_and_its_gradient_are_those_of_products_in_f64_and_relu_is_that_of_the_sum() {
    for case in &CASES {
        let none = Ints::from_elem(0, case.2[0].len());
        let more = [Argument::Bool(false), Argument::Ints(&none), case.3.into()];
        for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::F16, 0.02), (DType::Bf16, 0.15)] {
            let shapes: [&[usize]; 3] = [case.0, case.1, &case.1[..1]];
            let held = [0, 1, 2].map(|place| representable(shapes[place], place as u64 + 1, dtype));
            let exact = held.each_ref().map(|tensor| leaf(tensor, DType::F64));
            let expected = biased("convolution", exact.each_ref(), case, &more).unwrap();
            let gradient = random(expected.shape(), 9).to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap();
            expected.backward_with(&gradient).unwrap();
            let own = held.each_ref().map(|tensor| leaf(tensor, dtype));
            let found = biased("convolution", own.each_ref(), case, &more).unwrap();
            found.backward_with(&gradient.to_dtype(dtype).unwrap()).unwrap();
            assert_close(&values(&found), &values(&expected), tolerance);
            for (own, exact) in own.iter().zip(&exact) {
                assert_close(&values(&own.grad().unwrap()), &values(&exact.grad().unwrap()), tolerance);
            }
            // Where a gradient is recorded, and where none is.
            let rectified: Vec<f64> = values(&expected).iter().map(|value| value.max(0.0)).collect();
            let plain = own.each_ref().map(Tensor::detach);
            for operands in [own.each_ref(), plain.each_ref()] {
                let found = biased("cudnn_convolution_relu", operands, case, &[case.3.into()]).unwrap();
                assert_eq!(found.requires_grad(), operands[0].requires_grad());
                assert_close(&values(&found), &rectified, tolerance);
            }
        }
    }
}

#[test]
fn a_bias_of_another_size_or_dtype_is_refused() {
    let case = &CASES[0];
    let [input, weight] = [representable(case.0, 1, DType::F32), representable(case.1, 2, DType::F32)];
    let [input, weight] = [input, weight].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
    let none = Ints::from_elem(0, 2);
    let more = [Argument::Bool(false), Argument::Ints(&none), case.3.into()];
    let wrong = [random(&[5], 3).to_dtype(DType::F32).unwrap(), random(&[4], 3)];
    for (bias, why) in wrong.iter().zip(["with 4 elements", "bias type"]) {
        for (name, more) in [("convolution", &more[..]), ("cudnn_convolution_relu", &more[2..])] {
            let error = biased(name, [&input, &weight, bias], case, more).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }
}

#[test]
fn gradients_of_each_operand_have_gradients() {
    let case = &CASES[1];
    let output = [2, 9, 4, 4];
    let shapes: [&[usize]; 3] = [&output, case.0, case.1];
    // The operands of a call, and its result, as indices into `shapes`.
    for (computed, operands, size) in [(0, [1, 2], 0), (1, [0, 2], 1), (2, [0, 1], 2)] {
        let size: Ints = shapes[size].iter().map(|&extent| extent as i64).collect();
        let leaves = operands.map(|place| leaf(&random(shapes[place], place as u64), DType::F32));
        let result = by_library(leaves.each_ref(), computed, &size, case).unwrap();
        let direction = random(result.shape(), 7).to_dtype(DType::F32).unwrap();
        result.backward_with(&direction).unwrap();
        // The sum is linear in each operand, so each gradient times its operand is the result times its gradient.
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let expected = dot(&values(&result), &values(&direction));
        for leaf in &leaves {
            let found = dot(&values(&leaf.grad().unwrap()), &values(leaf));
            assert_close(&[found], &[expected], 0.01);
        }
    }
}

#[test]
fn channels_last_stay_so_and_a_capture_repeats() {
    let case = &CASES[0];
    let input = leaf(&random(case.0, 1), DType::F32).detach();
    let weight = leaf(&random(case.1, 2), DType::F32).detach();
    let expected = by_products([&input, &weight], case).unwrap();
    let last = input.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
    let size = sizes(&expected);
    let found = by_library([&last, &weight], 0, &size, case).unwrap();
    assert!(!found.is_contiguous() && found.permute(&[0, 2, 3, 1]).unwrap().is_contiguous());
    assert_close(&values(&found), &values(&expected), 1e-3);
    let run = || by_library([&last, &weight], 0, &size, case);
    let (graph, captured) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
    graph.replay().unwrap();
    assert_close(&values(&captured), &values(&expected), 1e-3);
}

#[test]
fn what_is_no_convolution_is_refused() {
    let case = &CASES[0];
    let [input, weight] = [case.0, case.1].map(|shape| random(shape, 1).to_dtype(DType::F32).unwrap());
    let error = by_library([&input, &weight], 0, &ints(&[2, 4, 7, 9]), case).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("windows"), "{error}");
    let error = by_library([&input, &weight], 3, &ints(&[2, 4, 7, 8]), case).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
    let wide = weight.to_dtype(DType::F64).unwrap();
    assert!(by_library([&input, &wide], 0, &ints(&[2, 4, 7, 8]), case).is_err());
}

#[test]
fn results_with_their_channels_last_are_computed_where_they_are_wanted() {
    on_own_device(|| {
        let device = device();
        for (channels, kernel, groups) in [(64, 3, 1), (96, 1, 1), (64, 3, 64)] {
            let last = |shape: &[usize], seed| {
                let order: Vec<usize> = [0, 2, 3, 1].map(|dim| shape[dim]).to_vec();
                random(&order, seed).to_dtype(DType::F32).unwrap().permute(&[0, 3, 1, 2]).unwrap()
            };
            let x = last(&[2, 64, 16, 16], 1);
            let weight = last(&[channels, 64 / groups, kernel, kernel], 2);
            let padding: Ints = [kernel as i64 / 2; 2].into_iter().collect();
            let [ones, zeros]: [Ints; 2] = [1, 0].map(|number| [number; 2].into_iter().collect());
            let arguments = || {
                let lists = [&ones, &padding, &ones].map(|list| Argument::Ints(list));
                let start = [Argument::from(&x), (&weight).into(), Argument::None];
                let end = [false.into(), Argument::Ints(&zeros), (groups as i64).into()];
                start.into_iter().chain(lists).chain(end).collect::<Vec<_>>()
            };
            let operator = find_operator("convolution").unwrap();
            let wanted =
                operator.call(&arguments(), None, Label::here("convolution")).unwrap().swap_remove(0);
            let out = last(wanted.shape(), 3);
            let allocator = device.allocator();
            allocator.reset_peak_memory_stats();
            let before = allocator.statistics().allocated_bytes.all.current;
            operator.call_out(&arguments(), std::slice::from_ref(&out)).unwrap();
            let more = allocator.statistics().allocated_bytes.all.peak - before;
            assert!((more as usize) < 4 * out.elements(), "{more} bytes with a kernel of {kernel}");
            assert_eq!(values(&out), values(&wanted));
        }
    });
}
