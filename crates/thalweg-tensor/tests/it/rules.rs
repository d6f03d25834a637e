//! PyTorch's rules where mistakes are easy: promotion, values that a dtype cannot represent, odd bounds, classes out of range,
//! options without effect. The expectations are the results and refusals of PyTorch 2.11.

use thalweg_ir::{DType, Scalar, c128};
use thalweg_nn::functional::{
    AttentionOptions, ClassLossOptions, Reduction, cross_entropy, cross_entropy_with, dropout, embedding,
    layer_norm, nll_loss, packed_attention, scaled_dot_product_attention,
};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::{DeviceGenerator, Generator};

use crate::support::{device, expect_out_of_range, on_own_device, random, tensor, values};

#[track_caller]
fn assert_refused<T>(result: Result<T>, word: &str) {
    let Err(error) = result else { panic!("the call should have been refused: {word}") };
    assert!(error.is_invalid_argument() && error.to_string().contains(word), "'{word}' is not in: {error}");
}

fn ones(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &device()).unwrap()
}

#[test]
fn tensors_without_dimensions_are_weak_in_promotion() {
    use DType::{Bf16, Bool, F16, F32, F64, I32, I64, U8};
    // torch.result_type(torch.ones(2, dtype=a), torch.ones((), dtype=b)).
    let cases = [
        (Bf16, F32, Bf16),
        (F16, F64, F16),
        (F32, F64, F32),
        (I32, I64, I32),
        (U8, I64, U8),
        (F32, I64, F32),
        (I32, F64, F64),
        (I32, F16, F16),
        (I64, Bool, I64),
        (Bool, U8, U8),
        (Bool, F16, F16),
        (F16, Bf16, F16),
    ];
    for (dimensioned, zero, expected) in cases {
        let (x, scale) = (ones(&[2], dimensioned), ones(&[], zero));
        assert_eq!(x.mul(&scale).unwrap().dtype(), expected, "{dimensioned}[2] * {zero}[]");
        assert_eq!(scale.add(&x).unwrap().dtype(), expected, "{zero}[] + {dimensioned}[2]");
        let condition = ones(&[2], Bool);
        assert_eq!(
            condition.select_where(&x, &scale).unwrap().dtype(),
            expected,
            "where({dimensioned}, {zero})"
        );
        assert!(x.eq(&scale).unwrap().to_vec::<u8>().unwrap() == [1, 1]);
        // Among equals every one counts.
        let both = if zero == Bf16 { F32 } else { dimensioned.promote(zero).unwrap() };
        assert_eq!(ones(&[], dimensioned).mul(&scale).unwrap().dtype(), both, "{dimensioned}[] * {zero}[]");
    }
    // The gradient of a weak operand has its own dtype.
    let (x, scale) = (ones(&[3], Bf16).requires_grad_().unwrap(), ones(&[], F32).requires_grad_().unwrap());
    x.mul(&scale).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!((x.grad().unwrap().dtype(), scale.grad().unwrap().dtype()), (Bf16, F32));
    assert_eq!(values(&scale.grad().unwrap()), [3.0]);
    // It is rounded to the result's dtype before anything is computed: to 1 in bf16, so that nothing is left.
    let nearly = Tensor::full(&[], 1.0 + 2f64.powi(-10), F32, &device()).unwrap();
    assert_eq!(values(&ones(&[1], Bf16).sub(&nearly).unwrap()), [0.0]);
}

#[test]
fn truth_values_are_added_and_multiplied() {
    let x = tensor(&[0.0, 0.0, 1.0, 1.0], &[4], DType::Bool);
    let y = tensor(&[0.0, 1.0, 0.0, 1.0], &[4], DType::Bool);
    let check = |result: Result<Tensor>, expected: [f64; 4]| {
        let result = result.unwrap();
        assert_eq!((result.dtype(), values(&result)), (DType::Bool, expected.to_vec()));
    };
    check(x.add(&y), [0.0, 1.0, 1.0, 1.0]);
    check(x.mul(&y), [0.0, 0.0, 0.0, 1.0]);
    check(x.maximum(&y), [0.0, 1.0, 1.0, 1.0]);
    check(x.minimum(&y), [0.0, 0.0, 0.0, 1.0]);
    assert_refused(x.sub(&y), "with two bool tensors is not supported");
    assert_refused(x.neg(), "Negation, the `-` operator, on a bool tensor is not supported");
}

#[test]
fn clamping_with_odd_bounds() {
    let x = tensor(&[0.0, 1.0, 2.0], &[3], DType::F64);
    assert_eq!(values(&x.clamp(2.0, 1.0).unwrap()), [1.0; 3]);
    assert_eq!(values(&x.clamp(1.0, 1.0).unwrap()), [1.0; 3]);
    for (low, high) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::NAN, f64::NAN)] {
        assert!(values(&x.clamp(low, high).unwrap()).iter().all(|value| value.is_nan()), "{low} {high}");
    }
    let found = values(&tensor(&[f64::NAN, f64::INFINITY, -3.0], &[3], DType::F64).clamp(-1.0, 1.0).unwrap());
    assert!(found[0].is_nan() && found[1..] == [1.0, -1.0]);
    let whole = Tensor::from_slice(&[i32::MIN, 0, i32::MAX], &[3], &device()).unwrap();
    let (low, high) = (i64::from(i32::MIN), i64::from(i32::MAX));
    assert_eq!(whole.clamp(low, high).unwrap().to_vec::<i32>().unwrap(), [i32::MIN, 0, i32::MAX]);
    let gradient = |low: f64, high: f64| {
        let leaf = x.detach().requires_grad_().unwrap();
        leaf.clamp(low, high).unwrap().sum(&[], false).unwrap().backward().unwrap();
        values(&leaf.grad().unwrap())
    };
    assert_eq!(gradient(1.0, 2.0), [0.0, 1.0, 1.0]);
    assert_eq!(gradient(2.0, 1.0), [0.0; 3]);
    assert_eq!(gradient(f64::NAN, 1.0), [0.0; 3]);
}

#[test]
fn values_that_a_dtype_does_not_hold() {
    let full = |value: Scalar, dtype| Tensor::full(&[2], value, dtype, &device());
    for truth in [0.5, -1.0, 1e-300, f64::NAN, f64::INFINITY] {
        assert_eq!(values(&full(truth.into(), DType::Bool).unwrap()), [1.0; 2], "{truth}");
    }
    assert_eq!(values(&full(0.0.into(), DType::Bool).unwrap()), [0.0; 2]);
    let refusals = [
        (Scalar::F64(1e10), DType::F16),
        (Scalar::I64(1 << 40), DType::F16),
        (Scalar::F64(1e39), DType::F32),
        (Scalar::F64(-1e39), DType::Bf16),
        (Scalar::I64(300), DType::U8),
        (Scalar::F64(-1.0), DType::U8),
        (Scalar::I64(-256), DType::U8),
        (Scalar::I64(-129), DType::I8),
        (Scalar::I64(255), DType::I8),
        (Scalar::F64(32767.5), DType::I16),
        (Scalar::I64(65_536), DType::U16),
        (Scalar::F64(-1.0), DType::U16),
        (Scalar::I64(1 << 40), DType::I32),
        (Scalar::F64(f64::NAN), DType::I32),
        (Scalar::F64(f64::INFINITY), DType::I64),
        (Scalar::F64(1e30), DType::I64),
    ];
    for (value, dtype) in refusals {
        assert_refused(full(value, dtype), "without overflow");
    }
    let taken = [
        (Scalar::I64(-1), DType::U8, 255.0),
        (Scalar::I64(255), DType::U8, 255.0),
        (Scalar::I64(-128), DType::I8, -128.0),
        (Scalar::I64(-32_768), DType::I16, -32_768.0),
        (Scalar::I64(-1), DType::U16, 65_535.0),
        (Scalar::F64(2.9), DType::I32, 2.0),
        (Scalar::I64(i64::from(i32::MIN)), DType::I32, f64::from(i32::MIN)),
        (Scalar::F64(f64::NEG_INFINITY), DType::F16, f64::NEG_INFINITY),
        (Scalar::F64(65504.0), DType::F16, 65504.0),
    ];
    for (value, dtype, expected) in taken {
        assert_eq!(values(&full(value, dtype).unwrap()), [expected; 2], "{value:?} {dtype}");
    }
    assert_eq!(full(i64::MAX.into(), DType::I64).unwrap().to_vec::<i64>().unwrap(), [i64::MAX; 2]);
    assert!(values(&full(f64::NAN.into(), DType::Bf16).unwrap())[0].is_nan());
}

#[test]
fn numbers_and_tensors_without_dimensions_are_rounded_before_they_are_compared() {
    use DType::{Bf16, F16, F32, F64, I32, I64, U8};
    let truth = |result: Result<Tensor>| result.unwrap().to_vec::<u8>().unwrap() == [1];
    // 1 + 2⁻¹⁰ is 1 in bf16 and itself in f16; 70000 is infinite in f16; 2²⁴ + 1 is 2²⁴ in f32.
    let nearly = 1.0 + 2f64.powi(-10);
    let cases = [
        (1.0, Bf16, nearly, true),
        (1.0, F16, nearly, false),
        (f64::INFINITY, F16, 70000.0, true),
        (2f64.powi(24), F32, 2f64.powi(24) + 1.0, true),
        (2f64.powi(24), F64, 2f64.powi(24) + 1.0, false),
    ];
    for (value, dtype, other, is_equal) in cases {
        let (x, wide) = (tensor(&[value], &[1], dtype), tensor(&[other], &[], F64));
        assert_eq!(truth(x.eq_scalar(other)), is_equal, "{dtype} {value} = {other}");
        assert_eq!(truth(x.eq(&wide)), is_equal, "{dtype} {value} = {other}[]");
        assert_eq!(truth(wide.eq(&x)), is_equal, "{other}[] = {dtype} {value}");
        assert_eq!(truth(wide.gt(&x)), !is_equal && other > value, "{other}[] > {dtype} {value}");
        // Among tensors with dimensions the wider dtype counts.
        assert_eq!(truth(x.eq(&tensor(&[other], &[1], F64))), value == other, "{other}[1] = {dtype} {value}");
    }
    // Integers wrap around, as in PyTorch: 256 is 0.
    let x = tensor(&[1.0], &[1], U8);
    assert!(truth(x.gt_scalar(256)) && truth(x.gt(&tensor(&[256.0], &[], I64))));
    assert!(!truth(x.gt(&tensor(&[256.0], &[1], I64))));
    assert!(truth(tensor(&[0.0], &[1], I32).eq_scalar(1_i64 << 32)));
    // A float among integers is compared as f32.
    assert!(!truth(x.eq_scalar(1.5)) && truth(x.eq_scalar(1.0)) && truth(x.gt_scalar(-0.5)));
}

#[test]
fn integers_wrap_around_and_bounds_must_fit() {
    let x = Tensor::from_slice(&[1_u8, 250], &[2], &device()).unwrap();
    let bytes = |result: Result<Tensor>| result.unwrap().to_vec::<u8>().unwrap();
    assert_eq!(bytes(x.add_scalar(300)), [45, 38]);
    assert_eq!(bytes(x.add_scalar(-2)), [255, 248]);
    assert_eq!(bytes(x.mul_scalar(257)), [1, 250]);
    assert_eq!(bytes(x.clamp(2, 200)), [2, 200]);
    assert_eq!(x.add_scalar(300.0).unwrap().to_vec::<f32>().unwrap(), [301.0, 550.0]);
    assert_eq!(x.clamp(2.5, 300.0).unwrap().to_vec::<f32>().unwrap(), [2.5, 250.0]);
    for (low, high) in [(0, 300), (300, 400), (-256, 10)] {
        assert_refused(x.clamp(low, high), "cannot be converted to type uint8_t without overflow");
    }
    let large = Tensor::from_slice(&[i32::MAX], &[1], &device()).unwrap();
    assert_eq!(large.add_scalar(1).unwrap().to_vec::<i32>().unwrap(), [i32::MIN]);
    assert_refused(large.clamp(0, 1_i64 << 40), "cannot be converted to type int without overflow");
    assert_refused(
        ones(&[1], DType::F32).clamp(0.0, 1e39),
        "cannot be converted to type float without overflow",
    );
    let unbounded = ones(&[1], DType::F32).clamp(f64::NEG_INFINITY, f64::INFINITY);
    assert_eq!(values(&unbounded.unwrap()), [1.0]);
}

#[test]
fn means_and_normalizations_take_floats() {
    for dtype in [DType::I64, DType::U8, DType::Bool] {
        let x = ones(&[2, 3], dtype);
        assert_refused(x.mean(&[], false), "mean");
        assert_refused(x.softmax(1), "softmax");
        assert_refused(x.log_softmax(1), "log_softmax");
        assert_refused(layer_norm(&x, &[3], None, None, 1e-5), "layer_norm");
        let (weight, bias) = (ones(&[3], dtype), ones(&[3], dtype));
        assert_refused(layer_norm(&x, &[3], Some(&weight), Some(&bias), 1e-5), "layer_norm");
        let generator = DeviceGenerator::new(1, &device()).unwrap();
        assert_refused(dropout(&x, 0.5, true, &generator), "dropout");
        assert_refused(dropout(&x, 1.0, true, &generator), "dropout");
        assert_eq!(dropout(&x, 0.5, false, &generator).unwrap().dtype(), dtype);
    }
}

#[test]
fn reductions_of_a_tensor_without_dimensions() {
    let x = tensor(&[3.0], &[], DType::F64);
    for dimension in [0, -1] {
        assert_eq!(values(&x.sum(&[dimension], false).unwrap()), [3.0]);
        assert_eq!(x.mean(&[dimension], true).unwrap().shape(), &[] as &[usize]);
        assert_eq!(values(&x.softmax(dimension).unwrap()), [1.0]);
        assert_eq!(values(&x.log_softmax(dimension).unwrap()), [0.0]);
        assert_eq!(values(&x.argmax(dimension).unwrap()), [0.0]);
    }
    assert_refused(x.sum(&[1], false), "Dimension out of range");
    assert_refused(x.size(0), "the tensor has no dimensions");
    assert_refused(x.select(0, 0), "the tensor has no dimensions");
}

#[test]
fn attention_without_features_is_the_mean_of_the_values() {
    let (query, key) = (ones(&[1, 2, 0], DType::F64), ones(&[1, 4, 0], DType::F64));
    let value = random(&[1, 4, 3], 1);
    let result = scaled_dot_product_attention(&query, &key, &value, AttentionOptions::default()).unwrap();
    let mean = values(&value.mean(&[1], false).unwrap());
    crate::support::assert_close(&values(&result), &[mean.clone(), mean].concat(), 1e-12);
    let packed = ones(&[3, 2, 3, 0], DType::F32);
    assert_eq!(packed_attention(&packed, true).unwrap().shape(), [3, 2, 0]);
}

#[test]
fn a_class_out_of_range_makes_the_gradient_of_its_row_nan() {
    on_own_device(|| {
        let classes = |list: &[i64]| Tensor::from_slice(list, &[list.len()], &device()).unwrap();
        let target = classes(&[0, 7, -100, -1]);
        let smoothed = ClassLossOptions { label_smoothing: 0.1, ..ClassLossOptions::default() };
        type Loss = fn(&Tensor, &Tensor, ClassLossOptions) -> Result<Tensor>;
        let losses: [(Loss, ClassLossOptions); 3] = [
            (cross_entropy_with, ClassLossOptions::default()),
            (cross_entropy_with, smoothed),
            (nll_loss, ClassLossOptions::default()),
        ];
        for (at, (loss, options)) in losses.into_iter().enumerate() {
            let x = random(&[4, 3], 2).requires_grad_().unwrap();
            let rows = loss(&x, &target, ClassLossOptions { reduction: Reduction::None, ..options }).unwrap();
            expect_out_of_range();
            let found = values(&rows);
            assert!(
                found[0].is_finite() && found[1].is_nan() && found[2] == 0.0 && found[3].is_nan(),
                "{found:?}"
            );
            let mean = loss(&x, &target, options).unwrap();
            expect_out_of_range();
            assert!(values(&mean)[0].is_nan());
            mean.backward().unwrap();
            let gradient = values(&x.grad().unwrap());
            assert!(gradient[..3].iter().all(|value| value.is_finite()), "{gradient:?}");
            // The loss at a class reads no element of such a row, and none has a gradient.
            let is_told = |value: &f64| if at == 2 { *value == 0.0 } else { value.is_nan() };
            assert!(gradient[3..6].iter().chain(&gradient[9..]).all(is_told), "{gradient:?}");
            assert_eq!(gradient[6..9], [0.0; 3], "an ignored row has no gradient");
            // Where all classes are in range, nothing is NaN.
            let x = random(&[2, 3], 3).requires_grad_().unwrap();
            loss(&x, &classes(&[2, 0]), options).unwrap().backward().unwrap();
            assert!(values(&x.grad().unwrap()).iter().all(|value| value.is_finite()));
        }
        let loss = cross_entropy(&random(&[1, 3], 4), &classes(&[3])).unwrap();
        expect_out_of_range();
        assert!(values(&loss)[0].is_nan());
    });
}

#[test]
fn an_index_out_of_range_reads_nan_or_0() {
    on_own_device(|| {
        let indices = Tensor::from_slice(&[1i64, 5, -1], &[3], &device()).unwrap();
        let found = embedding(&indices, &ones(&[2, 1], DType::F32), None).unwrap();
        expect_out_of_range();
        let found = values(&found);
        assert!(found[0] == 1.0 && found[1].is_nan() && found[2].is_nan());
        let found = embedding(&indices, &ones(&[2, 1], DType::I64), None).unwrap();
        expect_out_of_range();
        assert_eq!(values(&found), [1.0, 0.0, 0.0]);
    });
}

#[test]
fn draws_from_nothing() {
    let (device, mut generator) = (device(), Generator::new(1));
    let drawn = DeviceGenerator::new(1, &device).unwrap();
    for (low, high) in [(1.0, 0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (-3e38, 3e38)] {
        assert_refused(Tensor::uniform(&[2], low as f32, high as f32, &mut generator, &device), "uniform");
        assert_refused(drawn.uniform(&[2], low, high, DType::F32), "uniform");
    }
    assert_refused(drawn.uniform(&[2], 0.0, 1e5, DType::F16), "uniform");
    for deviation in [-1.0, f64::NAN] {
        assert_refused(Tensor::normal(&[2], 0.0, deviation as f32, &mut generator, &device), "normal");
        assert_refused(drawn.normal(&[2], 0.0, deviation, DType::F32), "normal");
    }
    assert!(values(&drawn.normal(&[1], f64::NAN, 1.0, DType::F32).unwrap())[0].is_nan());
    assert_eq!(values(&drawn.uniform(&[2], 1.0, 1.0, DType::F32).unwrap()), [1.0; 2]);
    assert_eq!(values(&drawn.normal(&[2], 3.0, 0.0, DType::F32).unwrap()), [3.0; 2]);
}

#[test]
fn optimizers_that_cannot_step() {
    let leaf = |shape: &[usize]| ones(shape, DType::F32).requires_grad_().unwrap();
    let with = |change: fn(&mut AdamOptions)| {
        let mut options = AdamOptions::default();
        change(&mut options);
        Adam::new(vec![leaf(&[2])], options)
    };
    assert_refused(with(|options| options.lr = f64::NAN), "lr is NaN");
    assert_refused(with(|options| options.lr = -1.0), "lr is -1");
    assert_refused(with(|options| options.betas.0 = 2.0), "betas.0 is 2");
    assert_refused(with(|options| options.betas.1 = 1.0), "betas.1 is 1");
    assert_refused(with(|options| options.betas.1 = f64::NAN), "betas.1 is NaN");
    assert_refused(with(|options| options.eps = -1e-8), "eps is");
    assert_refused(with(|options| options.weight_decay = -0.1), "weight_decay");
    with(|options| options.lr = 0.0).unwrap();
    let new = |parameters: Vec<Tensor>| Adam::new(parameters, AdamOptions::default());
    let x = leaf(&[4]);
    assert_refused(new(vec![x.clone(), leaf(&[1]), x.clone()]), "share memory");
    let base = ones(&[4], DType::F32);
    let part = |start, length| base.narrow(0, start, length).unwrap().requires_grad_().unwrap();
    assert_refused(new(vec![part(0, 3), part(2, 2)]), "share memory");
    new(vec![part(0, 2), part(2, 2)]).unwrap();
    assert_refused(new(vec![x.mul_scalar(2.0).unwrap()]), "not a leaf");
    new(vec![leaf(&[0]), leaf(&[0])]).unwrap();
}

#[test]
fn narrow_integers_wrap_and_are_summed_in_int64() {
    let bytes = Tensor::from_slice(&[i8::MIN, -1, 0, 100], &[4], &device()).unwrap();
    assert_eq!(bytes.add(&bytes).unwrap().to_vec::<i8>().unwrap(), [0, -2, 0, -56]);
    assert_eq!(bytes.neg().unwrap().to_vec::<i8>().unwrap(), [i8::MIN, 1, 0, -100]);
    assert_eq!(bytes.amax(&[], false).unwrap().to_vec::<i8>().unwrap(), [100]);
    assert_eq!(bytes.amin(&[], false).unwrap().to_vec::<i8>().unwrap(), [i8::MIN]);
    assert_eq!(bytes.sum(&[], false).unwrap().to_vec::<i64>().unwrap(), [-29]);
    let words = Tensor::from_slice(&[u16::MAX, 0, 1, 40_000], &[4], &device()).unwrap();
    assert_eq!(words.add(&words).unwrap().to_vec::<u16>().unwrap(), [65_534, 0, 2, 14_464]);
    assert_eq!(words.amax(&[], false).unwrap().to_vec::<u16>().unwrap(), [u16::MAX]);
    assert_eq!(words.sum(&[], false).unwrap().to_vec::<i64>().unwrap(), [105_536]);
    assert_eq!(words.to_dtype(DType::I16).unwrap().to_vec::<i16>().unwrap(), [-1, 0, 1, -25_536]);
    let floats = tensor(&[-40_000.7, f64::NAN, 1.9, 1e9], &[4], DType::F32);
    let converted = |dtype| values(&floats.to_dtype(dtype).unwrap());
    assert_eq!(converted(DType::I8), [-64.0, 0.0, 1.0, 0.0]);
    assert_eq!(converted(DType::I16), [25_536.0, 0.0, 1.0, -13_824.0]);
    assert_eq!(converted(DType::U16), [25_536.0, 0.0, 1.0, 51_712.0]);
    let counted = Tensor::arange(300, -2, 1, DType::I16, &device()).unwrap();
    assert_eq!(counted.to_vec::<i16>().unwrap(), (-2..298).collect::<Vec<i16>>());
    let columns = counted.reshape(&[3, 100]).unwrap().transpose(0, 1).unwrap().contiguous().unwrap();
    assert_eq!(columns.to_vec::<i16>().unwrap()[..4], [-2, 98, 198, -1]);
}

#[test]
fn sixteen_unsigned_bits_promote_to_floats_alone() {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16};
    let words = ones(&[2], U16);
    for other in [Bool, U8, I8, I16, I32, I64] {
        assert_refused(words.add(&ones(&[2], other)), "to no common dtype");
        assert_refused(ones(&[2], other).lt(&words), "to no common dtype");
        assert_refused(ones(&[2], other).logical_and(&words), "to no common dtype");
    }
    for float in [F16, Bf16, F32, F64] {
        assert_eq!(words.mul(&ones(&[2], float)).unwrap().dtype(), float);
    }
    // Without dimensions and of no higher category an operand does not take part: torch.result_type returns uint16.
    assert_eq!(words.mul(&ones(&[], I64)).unwrap().dtype(), U16);
    assert_eq!(words.add_scalar(1).unwrap().dtype(), U16);
    assert_eq!(ones(&[2], U8).add(&ones(&[2], I8)).unwrap().dtype(), I16);
}

/// The codes that PyTorch 2.11 casts float32 to on the CPU: number, float8_e4m3fn, float8_e5m2.
const FLOAT8_CODES: &[(f32, u8, u8)] = &[
    (-0.0, 0x80, 0x80),
    (0.1, 0x1d, 0x2e),
    (-1.5, 0xbc, 0xbe),
    (-2.5, 0xc2, 0xc1),
    (3.2, 0x45, 0x42),
    (17.0, 0x58, 0x4c),
    (19.0, 0x5a, 0x4d),
    (300.0, 0x79, 0x5d),
    (464.0, 0x7e, 0x5f),
    (464.1, 0x7f, 0x5f),
    (480.0, 0x7f, 0x60),
    (57344.0, 0x7f, 0x7b),
    (61439.0, 0x7f, 0x7b),
    (61440.0, 0x7f, 0x7c),
    (f32::INFINITY, 0x7f, 0x7c),
    (f32::NEG_INFINITY, 0xff, 0xfc),
    (f32::NAN, 0x7f, 0x7f),
    (0.015625, 0x08, 0x24),
    (0.0156, 0x08, 0x24),
    (0.0078125, 0x04, 0x20),
    (0.001953125, 0x01, 0x18),
    (0.0009765625, 0x00, 0x14),
    (0.001_464_843_8, 0x01, 0x16),
    (6.1035156e-5, 0x00, 0x04),
    (1.5258789e-5, 0x00, 0x01),
    (7.6293945e-6, 0x00, 0x00),
    (1.1444092e-5, 0x00, 0x01),
    (1e-40, 0x00, 0x00),
];

#[test]
fn floats_of_8_bits_are_stored_cast_filled_and_copied() {
    use thalweg_ir::{f8e4m3, f8e5m2};
    let numbers: Vec<f32> = FLOAT8_CODES.iter().map(|row| row.0).collect();
    let numbers = Tensor::from_slice(&numbers, &[4, 7], &device()).unwrap();
    let e4m3 = numbers.to_dtype(DType::F8E4m3).unwrap();
    let codes: Vec<u8> = e4m3.to_vec::<f8e4m3>().unwrap().into_iter().map(f8e4m3::to_bits).collect();
    assert_eq!(codes, FLOAT8_CODES.iter().map(|row| row.1).collect::<Vec<_>>());
    let e5m2 = numbers.to_dtype(DType::F8E5m2).unwrap();
    let codes: Vec<u8> = e5m2.to_vec::<f8e5m2>().unwrap().into_iter().map(f8e5m2::to_bits).collect();
    assert_eq!(codes, FLOAT8_CODES.iter().map(|row| row.2).collect::<Vec<_>>());
    // Strided, and from and to other dtypes.
    let turned = e4m3.transpose(0, 1).unwrap().contiguous().unwrap();
    assert_eq!(values(&turned)[1], values(&e4m3)[7]);
    let third = Tensor::full(&[2], 1.0 / 3.0, DType::F64, &device()).unwrap();
    for dtype in [DType::F8E4m3, DType::F8E5m2] {
        for through in [DType::F64, DType::Bf16, DType::F16] {
            let cast = third.to_dtype(through).unwrap().to_dtype(dtype).unwrap();
            assert_eq!(values(&cast), [if dtype == DType::F8E4m3 { 0.34375 } else { 0.3125 }; 2]);
        }
        let whole = tensor(&[2.5, -3.0, 0.0, f64::NAN], &[4], DType::F32).to_dtype(dtype).unwrap();
        assert_eq!(whole.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [2, -3, 0, 0]);
        assert_eq!(whole.to_dtype(DType::Bool).unwrap().to_vec::<u8>().unwrap(), [1, 1, 0, 1]);
        let filled = Tensor::full(&[3], 3.3, dtype, &device()).unwrap();
        assert_eq!(values(&filled), [if dtype == DType::F8E4m3 { 3.25 } else { 3.5 }; 3]);
        filled.copy_(&Tensor::ones(&[], DType::F32, &device()).unwrap()).unwrap();
        assert_eq!(values(&filled), [1.0; 3]);
        assert_refused(Tensor::full(&[3], 1e6, dtype, &device()), "cannot be converted");
        for result in [filled.add(&filled), filled.exp(), filled.sum(&[], false), filled.add_scalar(1.0)] {
            assert_refused(result, "floats of 8 bits are for storage");
        }
        assert_refused(filled.add(&third), "floats of 8 bits are for storage");
        let square = filled.reshape(&[3, 1]).unwrap();
        assert!(square.matmul(&square.transpose(0, 1).unwrap()).unwrap_err().is_invalid_argument());
    }
}

#[test]
fn truth_values_are_not_subtracted() {
    let (truth, x) = (ones(&[2], DType::Bool), ones(&[2], DType::F32));
    let one = "with a bool tensor is not supported";
    assert_refused(x.sub(&truth), one);
    assert_refused(truth.sub(&x), one);
    assert_refused(truth.sub_scalar(1), one);
    assert_refused(truth.rsub_scalar(1), one);
    assert_refused(x.sub_scalar(true), one);
    assert_refused(x.sub_(&truth), one);
    assert_refused(truth.sub_scalar(true), "with two bool tensors is not supported");
}

#[test]
fn factors_have_the_kind_of_what_they_multiply() {
    let (x, whole) = (ones(&[2], DType::F32), ones(&[2], DType::I64));
    let add = |x: &Tensor, other: Argument<'_>, alpha: Argument<'_>| {
        let name = if matches!(other, Argument::Tensor(_)) { "add.Tensor" } else { "add.Scalar" };
        find_operator(name)?.call(&[x.into(), other, alpha], None, Label::here("add"))
    };
    let imaginary = Argument::Complex(c128::new(0.0, 1.0));
    assert_refused(add(&x, (&x).into(), imaginary), "argument alpha must not be a complex number");
    assert_refused(add(&x, 2i64.into(), imaginary), "argument alpha must not be a complex number");
    assert_refused(add(&whole, 2i64.into(), imaginary), "argument alpha must not be a floating point number");
    assert_refused(
        add(&whole, 2i64.into(), 1.5.into()),
        "argument alpha must not be a floating point number",
    );
    assert_refused(add(&whole, 2i64.into(), true.into()), "Boolean alpha only supported for Boolean results");
    assert_eq!(values(&add(&whole, 2.5.into(), 1.5.into()).unwrap()[0]), [4.75; 2]);
}
