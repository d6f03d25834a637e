//! Products with quantized weights, compared with f64 products of the weights that the integers represent, on both sides of the
//! number of rows up to which integers are read directly.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;

use crate::support::{device, random, values};

const ROWS: [usize; 5] = [1, 4, 7, 16, 40];

/// Compares a product with the exact one, within the rounding of a dtype and of its sums.
fn holds(found: &Tensor, x: &Tensor, weight: &Tensor, dtype: DType, what: &str) {
    let exact = x.to_dtype(DType::F64).unwrap();
    let weight = weight.to_dtype(DType::F64).unwrap().transpose(0, 1).unwrap();
    let expected = values(&exact.matmul(&weight).unwrap());
    let sizes = values(&exact.abs().unwrap().matmul(&weight.abs().unwrap()).unwrap());
    let ulp = match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 2e-3,
        _ => 1e-2,
    };
    assert_eq!(found.dtype(), dtype);
    for ((found, expected), size) in values(found).iter().zip(&expected).zip(&sizes) {
        assert!((found - expected).abs() <= ulp * size, "{what}: {found} and {expected}");
    }
}

#[test]
fn products_with_int8_weights_are_those_of_scaled_weights() {
    let (n, k) = (24, 96);
    let numbers: Vec<i8> = (0..n * k).map(|at| (at * 7919 % 256) as u8 as i8).collect();
    let weight = Tensor::from_slice(&numbers, &[n, k], &device()).unwrap();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let scales = random(&[n], 5).mul_scalar(0.01).unwrap().to_dtype(dtype).unwrap();
        let scaled = weight.to_dtype(DType::F64).unwrap();
        let scaled = scaled.mul(&scales.to_dtype(DType::F64).unwrap().unsqueeze(1).unwrap()).unwrap();
        for rows in ROWS {
            let x = random(&[rows, k], 3).to_dtype(dtype).unwrap();
            let found = x.weight_int8pack_mm(&weight, &scales).unwrap();
            holds(&found, &x, &scaled, dtype, &format!("{dtype} {rows}"));
        }
    }
}

#[test]
fn products_with_int4_weights_are_those_of_their_groups() {
    let (n, k, group) = (16, 128, 32);
    let bytes: Vec<u8> = (0..n * k / 2).map(|at| (at * 7919 % 253) as u8).collect();
    let halves: Vec<f64> =
        bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|half| f64::from(half) - 8.0).collect();
    let device = device();
    let weight = Tensor::from_slice(&bytes, &[n, k / 2], &device).unwrap();
    let numbers = Tensor::from_slice(&halves, &[n, k / group, group], &device).unwrap();
    let packed = weight.convert_weight_to_int4pack(4).unwrap();
    assert_eq!((packed.shape(), packed.dtype()), (&[2, 2, 32, 2][..], DType::I32));
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let both = random(&[k / group, n, 2], 8).mul_scalar(0.1).unwrap().to_dtype(dtype).unwrap();
        let of_groups = both.to_dtype(DType::F64).unwrap().transpose(0, 1).unwrap();
        let part = |which| of_groups.narrow(2, which, 1).unwrap();
        let scaled = numbers.mul(&part(0)).unwrap().add(&part(1)).unwrap().reshape(&[n, k]).unwrap();
        for rows in ROWS {
            let x = random(&[rows, k], 9).to_dtype(dtype).unwrap();
            let found = x.weight_int4pack_mm(&packed, group as i64, &both).unwrap();
            holds(&found, &x, &scaled, dtype, &format!("{dtype} {rows}"));
        }
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let device = device();
    let x = random(&[2, 64], 1).to_dtype(DType::F32).unwrap();
    let weight = Tensor::zeros(&[8, 64], DType::I8, &device).unwrap();
    let scales = Tensor::ones(&[8], DType::F32, &device).unwrap();
    let says = |result: thalweg_runtime::Result<Tensor>, text: &str| {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(text), "{error}");
    };
    says(x.weight_int8pack_mm(&scales, &scales), "expect B to be an int8 tensor of shape [n, 64]");
    says(x.weight_int8pack_mm(&weight, &x), "expect scales to be a 1d tensor of size 8");
    let bytes = Tensor::zeros(&[8, 32], DType::U8, &device).unwrap();
    says(bytes.convert_weight_to_int4pack(3), "innerKTiles need to be 2, 4, or 8, but got 3");
    says(bytes.convert_weight_to_int4pack(8), "are not multiples of 8 and of 64 bytes");
    let packed = bytes.convert_weight_to_int4pack(2).unwrap();
    let both = Tensor::zeros(&[2, 8, 2], DType::F32, &device).unwrap();
    says(x.weight_int4pack_mm(&packed, 48, &both), "expect qGroupSize to be 32, 64, 128 or 256, got 48");
    says(
        x.weight_int4pack_mm(&packed, 64, &both),
        "expect qScaleAndZeros to be a 3d tensor of sizes [64 / 64, 8, 2]",
    );
    // No rows and no columns are products as well.
    assert_eq!(x.narrow(0, 0, 0).unwrap().weight_int8pack_mm(&weight, &scales).unwrap().shape(), [0, 8]);
}
