//! Operators over lists of tensors, compared with the same operator for each tensor by itself.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};

use crate::support::{on_own_device, random, tensor, values};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

fn to_each(tensors: &[Tensor], dtype: DType) -> Vec<Tensor> {
    let arguments = [Argument::from(tensors), dtype.into()];
    let label = thalweg_runtime::Label::here("to_each");
    find_operator("thalweg::to_each").unwrap().call(&arguments, None, label).unwrap().into_iter().collect()
}

/// Returns the bits of a tensor's elements, row-major; those of one NaN for each NaN.
fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor)
        .into_iter()
        .map(|value| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
        .collect()
}

#[test]
fn lists_are_cast_as_each_tensor_by_itself() {
    on_own_device(|| {
        let extremes = [f64::NAN, f64::INFINITY, -0.0, 1e-42, 1e-310, 65_519.9, 65_520.0, 3.4e38, 1.0 + 1e-9];
        let shapes: [&[usize]; 6] = [&[], &[0, 3], &[7], &[2, 3, 4, 5], &[2049], &[1, 6, 1]];
        for from in FLOATS {
            let mut tensors: Vec<Tensor> =
                shapes.iter().map(|shape| random(shape, 3).to_dtype(from).unwrap()).collect();
            tensors.push(tensor(&extremes, &[9], from));
            tensors.push(tensors[3].permute(&[0, 2, 3, 1]).unwrap());
            tensors.push(tensors[3].narrow(3, 1, 3).unwrap());
            tensors.push(tensors[2].narrow(0, 1, 5).unwrap());
            for to in FLOATS {
                for (made, one) in to_each(&tensors, to).iter().zip(&tensors) {
                    let wanted = one.to_dtype(to).unwrap();
                    assert_eq!(bits(made), bits(&wanted), "{from} to {to} of {:?}", one.shape());
                    assert_eq!(made.dtype(), to);
                    // A tensor of the dtype is its own conversion, gaps included.
                    if from != to {
                        assert_eq!(made.layout().strides(), wanted.layout().strides());
                    }
                    assert!(!made.shares_storage_with(one), "the results are new");
                }
            }
        }
    });
}

#[test]
fn lists_longer_than_a_command_takes_are_cast() {
    on_own_device(|| {
        let make = |place: usize| random(&[place % 5 + 1], place as u64).to_dtype(DType::F32).unwrap();
        let tensors: Vec<Tensor> = (0..300).map(make).collect();
        for (made, one) in to_each(&tensors, DType::Bf16).iter().zip(&tensors) {
            assert_eq!(bits(made), bits(&one.to_dtype(DType::Bf16).unwrap()));
        }
    });
}
