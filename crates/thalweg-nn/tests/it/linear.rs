//! The linear layer as one operator: compared with the equivalent product and sums, and with finite differences.

use thalweg_ir::DType;
use thalweg_nn::functional::{linear, linear_add};
use thalweg_nn::module::{Forward, IntegerFormat, Linear, Module, WeightOnlyLinear};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{assert_close, check_gradient, device, random, values};

/// Returns a linear layer with everything, with the gradients of each of its tensors for a gradient that differs from element to element.
fn layer_and_gradients(tensors: &[Tensor; 4], fused: bool) -> Vec<Vec<f64>> {
    let [input, weight, bias, addend] =
        tensors.each_ref().map(|tensor| tensor.detach().requires_grad_().unwrap());
    let result = if fused {
        linear_add(&input, &weight, Some(&bias), &addend).unwrap()
    } else {
        let product = input.matmul(&weight.transpose(0, 1).unwrap()).unwrap();
        product.add(&bias).unwrap().add(&addend).unwrap()
    };
    result.backward_with(&result.detach().sin().unwrap()).unwrap();
    let leaves = [&input, &weight, &bias, &addend];
    let gradients = leaves.into_iter().map(|leaf| values(&leaf.grad().expect("every leaf has a gradient")));
    std::iter::once(values(&result)).chain(gradients).collect()
}

#[test]
fn a_linear_layer_is_its_product_and_sums() {
    for dtype in [DType::F32, DType::F64] {
        for (rows, inputs, outputs) in
            [(1, 1, 1), (5, 3, 2), (33, 70, 65), (64, 32, 128), (4, 0, 3), (0, 4, 3)]
        {
            let matrix = |shape: [usize; 2], seed| random(&shape, seed).to_dtype(dtype).unwrap();
            // Also column-major: the product reads it directly, an addend is copied.
            let turned =
                |shape: [usize; 2], seed| matrix([shape[1], shape[0]], seed).transpose(0, 1).unwrap();
            let bias = random(&[outputs], 3).to_dtype(dtype).unwrap();
            let [input, weight, addend] = [[rows, inputs], [outputs, inputs], [rows, outputs]];
            let plain = [matrix(input, 1), matrix(weight, 2), bias.clone(), matrix(addend, 4)];
            let strided = [turned(input, 1), turned(weight, 2), bias, turned(addend, 4)];
            for tensors in [plain, strided] {
                let (found, expected) =
                    (layer_and_gradients(&tensors, true), layer_and_gradients(&tensors, false));
                let allowed = if dtype == DType::F32 { 3e-5 } else { 1e-12 };
                found
                    .iter()
                    .zip(&expected)
                    .for_each(|(found, expected)| assert_close(found, expected, allowed));
            }
        }
    }
}

#[test]
fn a_linear_layer_has_the_gradients_of_finite_differences() {
    let [input, weight, bias, addend] =
        [(&[4, 3][..], 1), (&[2, 3], 2), (&[2], 3), (&[4, 2], 4)].map(|(shape, seed)| random(shape, seed));
    let layer = |input: &Tensor, weight: &Tensor, bias: &Tensor, addend: &Tensor| {
        linear_add(input, weight, Some(bias), addend).unwrap().sin().unwrap()
    };
    check_gradient(&input, |input| layer(input, &weight, &bias, &addend));
    check_gradient(&weight, |weight| layer(&input, weight, &bias, &addend));
    check_gradient(&bias, |bias| layer(&input, &weight, bias, &addend));
    check_gradient(&addend, |addend| layer(&input, &weight, &bias, addend));
}

#[test]
fn a_frozen_weight_leaves_the_bias_its_gradient() {
    let (input, weight) = (random(&[4, 3], 1), random(&[2, 3], 2));
    let bias = random(&[2], 3).requires_grad_().unwrap();
    linear(&input, &weight, Some(&bias)).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_close(&values(&bias.grad().unwrap()), &[4.0, 4.0], 0.0);
    assert!(input.grad().is_none() && weight.grad().is_none());
}

#[test]
fn a_weight_of_integers_is_within_half_a_step_of_each_weight() {
    let device = device();
    for dtype in [DType::F32, DType::Bf16] {
        let mut layer = Linear::new(128, 24, &mut Generator::new(5), &device).unwrap();
        // A row of zeros has no step, and one of equal weights none of 4 bits.
        no_grad(|| {
            layer.weight.select(0, 3).unwrap().zero_().unwrap();
            layer.weight.select(0, 4).unwrap().fill_(0.5).unwrap();
        });
        layer.weight = layer.weight.detach().to_dtype(dtype).unwrap();
        layer.bias = layer.bias.map(|bias| bias.detach().to_dtype(dtype).unwrap());
        let exact: Vec<f64> = layer.weight.to_dtype(DType::F64).unwrap().to_vec().unwrap();
        let eye = Tensor::eye(128, 128, dtype, &device).unwrap();
        for (format, steps, span) in
            [(IntegerFormat::Int8, 127.0, 128), (IntegerFormat::Int4 { group: 32 }, 15.0, 32)]
        {
            let integers = WeightOnlyLinear::of(&Linear { bias: None, ..layer.clone() }, format).unwrap();
            let found = integers.forward(&eye).unwrap().transpose(0, 1).unwrap();
            let found: Vec<f64> = found.to_dtype(DType::F64).unwrap().to_vec().unwrap();
            for (found, exact) in found.chunks(span).zip(exact.chunks(span)) {
                let greatest = exact.iter().fold(f64::NEG_INFINITY, |most, &weight| most.max(weight));
                let least = exact.iter().fold(f64::INFINITY, |least, &weight| least.min(weight));
                let reach =
                    if format == IntegerFormat::Int8 { greatest.max(-least) } else { greatest - least };
                // Half a step, and the rounding of 16-bit scales, zero points and results.
                let rounding = if dtype == DType::F32 { 1e-6 } else { 0.01 * greatest.max(-least) };
                let off =
                    |(found, exact): (&f64, &f64)| (found - exact).abs() > 0.5 * reach / steps + rounding;
                assert!(!found.iter().zip(exact).any(off), "{format:?} {dtype}: {found:?} for {exact:?}");
            }
            let whole = WeightOnlyLinear::of(&layer, format).unwrap();
            let x = Tensor::full(&[2, 3, 128], 0.25, dtype, &device).unwrap();
            assert_eq!(whole.forward(&x).unwrap().shape(), [2, 3, 24]);
            let names: Vec<_> = whole.state_dict().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["bias", "weight", "scales"], "parameters, then buffers");
        }
    }
    let layer = Linear::new(96, 20, &mut Generator::new(5), &device).unwrap();
    for (group, part) in [(64, "groups"), (48, "groups"), (32, "8 the output features")] {
        let error = WeightOnlyLinear::of(&layer, IntegerFormat::Int4 { group }).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(part), "{error}");
    }
    let wide = Linear { weight: layer.weight.to_dtype(DType::F64).unwrap(), bias: None };
    assert!(WeightOnlyLinear::of(&wide, IntegerFormat::Int8).is_err());
}
