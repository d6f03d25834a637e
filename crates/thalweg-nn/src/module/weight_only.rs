//! Linear layers whose weight is integers and scales, for inference.

use thalweg_derive::enter;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, refuse, refuse_if};
use thalweg_tensor::{Tensor, no_grad};

use super::{Forward, Linear, Module};

/// The integer format of a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntegerFormat {
    /// 8 bits, with a scale per output feature: half the memory of bfloat16.
    Int8,
    /// 4 bits, with a scale and a zero point per output feature and group of input features: about a quarter of the memory.
    Int4 {
        /// The number of input features that share a scale: 32, 64, 128 or 256, a divisor of the number of input features.
        group: usize,
    },
}

/// `input · weightᵀ + bias` with a weight of integers, each times the scale of its row or group, for inference (the weight-only
/// quantization of torchao). One to sixteen rows are multiplied directly by the integers as they are read, so that a step of a
/// decoder takes only the time to read them; for more rows the weight is converted first. Input (…, in) and result (…, out) have
/// the dtype of the layer that it was made from. There is no gradient.
#[derive(Module, Clone, Debug)]
pub struct WeightOnlyLinear {
    /// The weight, (out, in) of int8, or 4-bit integers in the packing of [`Tensor::convert_weight_to_int4pack`].
    #[module(buffer)]
    pub weight: Tensor,
    /// The scales, (out), or the scales and zero points, (in / group, out, 2).
    #[module(buffer)]
    pub scales: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Option<Tensor>,
    /// The format of the weight.
    #[module(skip)]
    pub format: IntegerFormat,
}

impl WeightOnlyLinear {
    /// Makes a layer from another: each weight is rounded to the nearest of 255 steps between the greatest magnitude of its row
    /// and its negative (8 bits), or of 16 between the least and the greatest of its group (4 bits). The bias is shared.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for a weight of a different dtype than float32, float16 and bfloat16; with 4 bits, for one
    /// whose output features are not a multiple of 8, or whose input features are not a multiple of the group.
    #[enter]
    pub fn of(layer: &Linear, format: IntegerFormat) -> Result<Self> {
        let weight = layer.weight.detach();
        refuse_if!(
            !matches!(weight.dtype(), DType::F32 | DType::F16 | DType::Bf16),
            "WeightOnlyLinear: a weight of float32, float16 or bfloat16 becomes integers, not one of {}",
            weight.dtype()
        );
        let (weight, scales) = no_grad(|| match format {
            IntegerFormat::Int8 => int8(&weight),
            IntegerFormat::Int4 { group } => int4(&weight, group),
        })?;
        Ok(Self { weight, scales, bias: layer.bias.clone(), format })
    }
}

impl Forward for WeightOnlyLinear {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let Some((&inputs, outer)) = input.shape().split_last() else {
            refuse!("WeightOnlyLinear: the input has no dimension of features");
        };
        let rows = input.reshape(&[outer.iter().product(), inputs])?;
        let product = match self.format {
            IntegerFormat::Int8 => rows.weight_int8pack_mm(&self.weight, &self.scales)?,
            IntegerFormat::Int4 { group } => {
                rows.weight_int4pack_mm(&self.weight, group as i64, &self.scales)?
            }
        };
        let result = match &self.bias {
            Some(bias) => product.add(bias)?,
            None => product,
        };
        let shape: Vec<usize> = outer.iter().copied().chain([result.shape()[1]]).collect();
        result.reshape(&shape)
    }
}

/// Returns divisors: the elements with 0 replaced by 1.
fn divisor(x: &Tensor) -> Result<Tensor> {
    x.add(&x.eq_scalar(0.0)?.to_dtype(x.dtype())?)
}

fn int8(weight: &Tensor) -> Result<(Tensor, Tensor)> {
    let exact = weight.to_dtype(DType::F32)?;
    // The scale by which the product multiplies, rounded to its dtype.
    let scales = exact.abs()?.amax(&[-1], true)?.mul_scalar(1.0 / 127.0)?.to_dtype(weight.dtype())?;
    let steps = exact.div(&divisor(&scales.to_dtype(DType::F32)?)?)?.round()?;
    Ok((steps.clamp(-127.0, 127.0)?.to_dtype(DType::I8)?, scales.reshape(&[weight.shape()[0]])?))
}

fn int4(weight: &Tensor, group: usize) -> Result<(Tensor, Tensor)> {
    let &[outputs, inputs] = weight.shape() else {
        refuse!("WeightOnlyLinear: a weight is (out, in)");
    };
    refuse_if!(
        ![32, 64, 128, 256].contains(&group) || !inputs.is_multiple_of(group) || !outputs.is_multiple_of(8),
        "WeightOnlyLinear: with 4 bits, groups of 32, 64, 128 or 256 divide the input features, and 8 the output features; this is a weight ({outputs}, \
         {inputs}) in groups of {group}"
    );
    let exact = weight.to_dtype(DType::F32)?.reshape(&[outputs, inputs / group, group])?;
    let (least, greatest) = (exact.amin(&[-1], true)?, exact.amax(&[-1], true)?);
    // Rounded to the dtype of the product.
    let rounded = |x: &Tensor| x.to_dtype(weight.dtype())?.to_dtype(DType::F32);
    let scale = rounded(&greatest.sub(&least)?.mul_scalar(1.0 / 15.0)?)?;
    let zero = rounded(&least.add(&scale.mul_scalar(8.0)?)?)?;
    let steps = exact.sub(&zero)?.div(&divisor(&scale)?)?.add_scalar(8.0)?.round()?.clamp(0.0, 15.0)?;
    let pairs = steps.reshape(&[outputs, inputs / 2, 2])?;
    let bytes = pairs.select(2, 0)?.mul_scalar(16.0)?.add(&pairs.select(2, 1)?)?.to_dtype(DType::U8)?;
    // The largest tiles that divide the input features.
    let tiles = [8, 4, 2].into_iter().find(|tiles| inputs.is_multiple_of(16 * tiles)).unwrap_or(2);
    let packed = bytes.convert_weight_to_int4pack(tiles as i64)?;
    let both = Tensor::cat(&[scale, zero], -1)?.transpose(0, 1)?.contiguous()?;
    Ok((packed, both.to_dtype(weight.dtype())?))
}
