//! Padding by reflection, by repeating the edge, and circularly.

use thalweg_ir::{DType, Scalar};
use thalweg_kernels::resample::ResampleBy;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::create::pad as pad_constant;
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::kernels::resample::{Resized, resample};
use crate::tensor::Tensor;

operators! {
    /// Returns the tensor with its last dimensions padded, the last one first: with a value (`constant`), or with elements mirrored at
    /// the ends (`reflect`), the ends themselves (`replicate`), or those of the other side (`circular`).
    "pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor"
        fn pad(pad: ints, mode: str, value: optional_float) = Composite(|call| pad(call).map(single)), autocast: Parts;
    /// Returns the tensor with its last dimension mirrored at both ends.
    "reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor"
        fn reflection_pad1d(padding: ints) = Composite(|call| border(call, 1, Mode::Reflect).map(single));
    /// Returns the tensor with its last two dimensions mirrored at both ends.
    "reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor"
        fn reflection_pad2d(padding: ints) = Composite(|call| border(call, 2, Mode::Reflect).map(single));
    /// Returns the tensor with its last three dimensions mirrored at both ends.
    "reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor"
        fn reflection_pad3d(padding: ints) = Composite(|call| border(call, 3, Mode::Reflect).map(single));
    /// Returns the tensor with the ends of its last dimension repeated.
    "replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor"
        fn replication_pad1d(padding: ints) = Composite(|call| border(call, 1, Mode::Replicate).map(single));
    /// Returns the tensor with the ends of its last two dimensions repeated.
    "replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor"
        fn replication_pad2d(padding: ints) = Composite(|call| border(call, 2, Mode::Replicate).map(single));
    /// Returns the tensor with the ends of its last three dimensions repeated.
    "replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor"
        fn replication_pad3d(padding: ints) = Composite(|call| border(call, 3, Mode::Replicate).map(single));
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
    refuse_if!(!padding.len().is_multiple_of(2), "Padding length must be divisible by 2");
    refuse_if!(
        padding.len() > x.rank() * 2,
        "Padding length should be less than or equal to two times the input dimension but got padding length {} and input of \
         dimension {}",
        padding.len(),
        x.rank()
    );
    if mode == "constant" {
        let padded = pad_constant(x, &padding, number(value.unwrap_or(0.0), x.dtype()))?;
        return if padding.iter().all(|&count| count == 0) {
            padded.copied(call.label.location)
        } else {
            Ok(padded)
        };
    }
    if value.is_some_and(|value| value != 0.0) {
        refuse!("Padding mode \"{mode}\" doesn't take in value argument");
    }
    let mode = match mode {
        "reflect" => Mode::Reflect,
        "replicate" => Mode::Replicate,
        "circular" => Mode::Circular,
        _ => return Err(invalid!("Unrecognised padding mode {mode}")),
    };
    let axes = padding.len() / 2;
    if !(1..=3).contains(&axes) || !(axes + 1..=axes + 2).contains(&x.rank()) {
        refuse!("Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now");
    }
    let batch = if x.rank() == axes + 2 { 1 } else { 0 };
    if x.shape()[batch..].contains(&0) {
        refuse!("Expected a tensor with non-zero size for padding, but got: {:?}", x.shape());
    }
    padded(x, &padding, mode)
}

/// Returns the call's tensor with its last dimensions mirrored, or their ends repeated.
fn border(call: &Call<'_>, dimensions: usize, mode: Mode) -> Result<Tensor> {
    let (x, padding) = (call.tensor(0), call.ints(1));
    if padding.len() != 2 * dimensions {
        refuse!("padding size is expected to be {}, but got: {}", 2 * dimensions, padding.len());
    }
    let has_batch = x.rank() == dimensions + 2;
    let is_valid = (has_batch || x.rank() == dimensions + 1)
        && x.shape()[usize::from(has_batch)..].iter().all(|&extent| extent > 0);
    refuse_if!(
        !is_valid,
        "{}: Expected {}D or {}D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but \
         got: {:?}",
        call.operator.name(),
        dimensions + 1,
        dimensions + 2,
        x.shape()
    );
    padded(x, &padding, mode)
}

/// Returns a value as a number, an integer for integer dtypes.
fn number(value: f64, dtype: DType) -> Scalar {
    if dtype.is_floating_point() { Scalar::F64(value) } else { Scalar::I64(value as i64) }
}

/// Returns a tensor padded along its last dimensions, the last one first.
fn padded(x: &Tensor, padding: &[i64], mode: Mode) -> Result<Tensor> {
    let axes = padding.len() / 2;
    let (mut x, mut list) = (x.clone(), Vec::with_capacity(axes));
    for axis in 0..axes {
        let dim = x.rank() - axes + axis;
        let mut sides = [0, 1].map(|side| padding[2 * (axes - 1 - axis) + side]);
        let size = mode.size(&x, dim, sides, axes)?;
        if mode == Mode::Circular && sides.iter().any(|&side| side < 0) {
            // Removed elements are not reused by the circular padding.
            let [first, removed] = sides.map(|side| side.saturating_neg().max(0));
            let end = (x.shape()[dim] as i64).saturating_sub(removed).max(0);
            x = x.slice(dim as i64, Some(first), Some(end), 1)?;
            sides = sides.map(|side| side.max(0));
            mode.size(&x, dim, sides, axes)?;
        }
        list.push(Resized { size, scale: 1.0, before: sides[0] });
    }
    refuse_if!(
        list.iter().all(|resized| resized.size == 0),
        "input {:?} is too small with padding {padding:?}: nothing remains",
        x.shape()
    );
    let by = match mode {
        Mode::Reflect => ResampleBy::Reflected,
        Mode::Replicate => ResampleBy::Replicated,
        Mode::Circular => ResampleBy::Circular,
    };
    match x.rank() - axes {
        1 => resample(&x.unsqueeze(0)?, by, &list)?.squeeze(0),
        _ => resample(&x, by, &list),
    }
}

impl Mode {
    /// Returns the extent of a padded dimension, if the padding is valid.
    fn size(self, x: &Tensor, dim: usize, [before, after]: [i64; 2], axes: usize) -> Result<usize> {
        let extent = x.shape()[dim] as i64;
        let (limit, argument) = match self {
            Self::Reflect => (extent - 1, "Argument #4: "),
            Self::Circular => (extent, ""),
            Self::Replicate => (i64::MAX, ""),
        };
        refuse_if!(
            before > limit || after > limit,
            "{argument}Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at \
             dimension {dim} of input {:?}",
            x.shape()
        );
        let size = extent.checked_add(before).and_then(|size| size.checked_add(after));
        // As in PyTorch, nothing may remain of one of several dimensions.
        let least = if self != Self::Circular && axes > 1 { 0 } else { 1 };
        size.filter(|&size| size >= least).map(|size| size as usize).ok_or_else(|| {
            invalid!(
                "input (dimension {dim}: {extent}) is too small, or too large, with padding ({before}, {after})"
            )
        })
    }
}
