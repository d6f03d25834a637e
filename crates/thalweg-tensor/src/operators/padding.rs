//! Padding by reflection, by repeating the edge, and circularly.

use thalweg_ir::{DType, Scalar};
use thalweg_kernels::resample::ResampleBy;
use thalweg_runtime::{Error, Result};

use super::Body::Composite;
use super::create::pad as pad_constant;
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::kernels::resample::{Resized, resample, resamples};
use crate::tensor::Tensor;

operators! {
    /// Returns the tensor with its last dimensions padded, the last one first: with a value (`constant`), or with elements mirrored at
    /// the ends (`reflect`), the ends themselves (`replicate`), or those of the other side (`circular`).
    "pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor"
        fn pad(pad: ints, mode: str, value: optional_float) = Composite(|call| pad(call).map(single)), autocast: Parts;
}

/// The elements with which a dimension is padded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Reflect,
    Replicate,
    Circular,
}

fn pad(call: &Call<'_>) -> Result<Tensor> {
    let (x, padding, mode, value) = (call.tensor(0), call.ints(1), call.str(2), call.optional_float(3));
    if !padding.len().is_multiple_of(2) {
        return Err(Error::invalid("Padding length must be divisible by 2"));
    }
    if padding.len() > x.rank() * 2 {
        return Err(Error::invalid(format!(
            "Padding length should be less than or equal to two times the input dimension but got padding length {} and input of \
             dimension {}",
            padding.len(),
            x.rank()
        )));
    }
    if mode == "constant" {
        let padded = pad_constant(x, &padding, number(value.unwrap_or(0.0), x.dtype()))?;
        return if padding.iter().all(|&count| count == 0) {
            padded.copied(call.label.location)
        } else {
            Ok(padded)
        };
    }
    if value.is_some_and(|value| value != 0.0) {
        return Err(Error::invalid(format!("Padding mode \"{mode}\" doesn't take in value argument")));
    }
    let mode = match mode {
        "reflect" => Mode::Reflect,
        "replicate" => Mode::Replicate,
        "circular" => Mode::Circular,
        _ => return Err(Error::invalid(format!("Unrecognised padding mode {mode}"))),
    };
    let axes = padding.len() / 2;
    if !(1..=3).contains(&axes) || !(axes + 1..=axes + 2).contains(&x.rank()) {
        return Err(Error::invalid(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now",
        ));
    }
    let batch = if x.rank() == axes + 2 { 1 } else { 0 };
    if x.shape()[batch..].contains(&0) {
        return Err(Error::invalid(format!(
            "Expected a tensor with non-zero size for padding, but got: {:?}",
            x.shape()
        )));
    }
    let is_grown = padding.iter().all(|&count| count >= 0) && padding.iter().any(|&count| count > 0);
    if resamples(x.dtype()) && is_grown {
        return padded(x, &padding, mode);
    }
    let mut result = x.clone();
    for axis in 0..axes {
        let sides = [padding[2 * axis], padding[2 * axis + 1]];
        result = pad_axis(&result, x.rank() - 1 - axis, sides, mode)?;
    }
    if padding.iter().all(|&count| count == 0) { result.copied(call.label.location) } else { Ok(result) }
}

/// Returns a value as a number, an integer for integer dtypes.
fn number(value: f64, dtype: DType) -> Scalar {
    if dtype.is_floating_point() { Scalar::F64(value) } else { Scalar::I64(value as i64) }
}

/// Returns floats padded along all axes at once.
fn padded(x: &Tensor, padding: &[i64], mode: Mode) -> Result<Tensor> {
    let axes = padding.len() / 2;
    let mut list = Vec::with_capacity(axes);
    for axis in 0..axes {
        let dim = x.rank() - axes + axis;
        let [before, after] = [0, 1].map(|side| padding[2 * (axes - 1 - axis) + side]);
        list.push(Resized { size: mode.size(x, dim, [before, after])?, scale: 1.0, before });
    }
    let by = match mode {
        Mode::Reflect => ResampleBy::Reflected,
        Mode::Replicate => ResampleBy::Replicated,
        Mode::Circular => ResampleBy::Circular,
    };
    match x.rank() - axes {
        1 => resample(&x.unsqueeze(0)?, by, &list)?.squeeze(0),
        _ => resample(x, by, &list),
    }
}

impl Mode {
    /// Returns the extent of a padded dimension, if the padding is valid.
    fn size(self, x: &Tensor, dim: usize, [before, after]: [i64; 2]) -> Result<usize> {
        let extent = x.shape()[dim] as i64;
        let limit = match self {
            Self::Reflect => extent - 1,
            Self::Circular => extent,
            Self::Replicate => i64::MAX,
        };
        if before > limit || after > limit {
            return Err(Error::invalid(format!(
                "Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at dimension \
                 {dim} of input {:?}",
                x.shape()
            )));
        }
        let size = extent.checked_add(before).and_then(|size| size.checked_add(after));
        size.filter(|&size| size > 0).map(|size| size as usize).ok_or_else(|| {
            Error::invalid(format!(
                "input (dimension {dim}: {extent}) is too small, or too large, with padding ({before}, {after})"
            ))
        })
    }
}

fn pad_axis(x: &Tensor, dim: usize, [before, after]: [i64; 2], mode: Mode) -> Result<Tensor> {
    if before == 0 && after == 0 {
        return Ok(x.clone());
    }
    if mode == Mode::Circular && (before < 0 || after < 0) {
        // Removed elements are not reused by the circular padding.
        let kept = x.slice(
            dim as i64,
            Some(before.saturating_neg().max(0)),
            Some((x.shape()[dim] as i64).saturating_sub(after.saturating_neg().max(0)).max(0)),
            1,
        )?;
        return pad_axis(&kept, dim, [before.max(0), after.max(0)], mode);
    }
    let (extent, size) = (x.shape()[dim] as i64, mode.size(x, dim, [before, after])?);
    let places = Tensor::arange(size, before.saturating_neg(), 1, DType::I64, x.device())?;
    let places = match mode {
        Mode::Replicate => places.clamp(0, extent - 1)?,
        Mode::Circular => places.remainder_scalar(extent)?,
        // Mirrored at 0, then at the last index.
        Mode::Reflect => places.abs()?.neg()?.add_scalar(extent - 1)?.abs()?.neg()?.add_scalar(extent - 1)?,
    };
    x.index_select(dim as i64, &places)
}
