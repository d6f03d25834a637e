//! Comparisons of tensors, and the only element of a tensor as a number.

use thalweg_ir::DType;
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::advanced_index::number_beside;
use super::view::dtype_of;
use super::{operators, single};
use crate::dispatch::{Arguments, Call, over};
use crate::dtype_name::named;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns whether |self − other| ≤ atol + rtol · |other|; equal infinities are close, and so are NaNs with `equal_nan`.
    "isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor"
        fn isclose(other: tensor, rtol: float, atol: float, equal_nan: bool)
        = Composite(|call| isclose(call).map(single)), autocast: Parts, complex: Taken;
    /// Returns whether all elements are close to each other; the host reads the answer.
    "allclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> bool"
        fn allclose(other: tensor, rtol: float, atol: float, equal_nan: bool) -> bool
        = Composite(|call| isclose(call)?.all().map(single));
    /// Returns whether shapes and all elements are equal; the host reads the answer.
    "equal(Tensor self, Tensor other) -> bool"
        fn equal(other: tensor) -> bool
        = Composite(|call| {
        let (x, y) = (call.tensor(0), call.tensor(1));
        if x.shape() != y.shape() {
            return Tensor::zeros(&[], DType::Bool, call.device).map(single);
        }
        x.detach().eq(&y.detach())?.all().map(single)
    }), autocast: Widest;
    /// Returns the only element, which the host reads.
    "item(Tensor self) -> Scalar" = Composite(|call| only(call, "cannot be converted to Scalar").map(single)), autocast: Parts;
    /// Returns the only element; the host reads it.
    "_local_scalar_dense(Tensor self) -> Scalar"
        = Composite(|call| only(call, "cannot be converted to Scalar").map(single));
    /// Returns whether the only element is not 0; the host reads it.
    "is_nonzero(Tensor self) -> bool"
        fn is_nonzero() -> bool
        = Composite(|call| {
        let x = call.tensor(0);
        match x.elements() {
            0 => Err(invalid!("Boolean value of Tensor with no values is ambiguous")),
            1 => x.detach().reshape(())?.to_dtype(DType::Bool).map(single),
            _ => Err(invalid!("Boolean value of Tensor with more than one value is ambiguous")),
        }
    }), autocast: Parts;
    /// Returns whether each element is a real number.
    "isreal(Tensor self) -> Tensor"
        fn isreal()
        = Composite(|call| Tensor::ones(call.tensor(0).shape(), DType::Bool, call.device).map(single)), autocast: Parts, complex: Parts(|call| call.tensor(0).imag()?.eq_scalar(0.0).map(single));
    /// Returns which elements are among those of another tensor.
    "isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor"
        fn isin(test_elements: tensor)
        = Composite(|call| {
            let (x, among) = (call.tensor(0), call.tensor(1));
            check_isin([x.dtype(), among.dtype()])?;
            isin(call, x, among)
        }), out: [OfResult];
    /// Returns which elements are equal to a number.
    "isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor"
        fn isin_scalar(test_element: scalar)
        = Composite(|call| {
            let x = call.tensor(0);
            check_isin([dtype_of(call.scalar(1)), x.dtype()])?;
            isin(call, x, &number_beside(call, 1, x)?)
        }), out: [OfResult];
    /// Returns whether a number is among the elements.
    "isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor"
        = Composite(|call| {
            let among = call.tensor(1);
            check_isin([dtype_of(call.scalar(0)), among.dtype()])?;
            isin(call, &number_beside(call, 0, among)?, among)
        }), out: [OfResult];
}

fn isclose(call: &Call<'_>) -> Result<Tensor> {
    let (x, y, relative, absolute) =
        (call.tensor(0).detach(), call.tensor(1).detach(), call.float(2), call.float(3));
    refuse_if!(x.dtype() != y.dtype(), "{} did not match {}", x.dtype(), y.dtype());
    for (name, tolerance) in [("rtol", relative), ("atol", absolute)] {
        if tolerance < 0.0 || tolerance.is_nan() {
            refuse!("{name} must be greater than or equal to zero, but got {tolerance}");
        }
    }
    let mut close = x.eq(&y)?;
    let has_nan = |x: &Tensor| x.dtype().is_floating_point() || x.dtype().is_complex();
    if has_nan(&x) && call.bool(4) {
        close = close.logical_or(&x.isnan()?.logical_and(&y.isnan()?)?)?;
    }
    if relative == 0.0 && absolute == 0.0 {
        return Ok(close);
    }
    let wide = |x: &Tensor| if has_nan(x) { Ok(x.clone()) } else { x.to_dtype(default_dtype()) };
    let (x, y) = (wide(&x)?, wide(&y)?);
    let allowed = y.mul_scalar(relative)?.abs()?.add_scalar(absolute)?;
    let distance = x.sub(&y)?.abs()?;
    close.logical_or(&distance.isfinite()?.logical_and(&distance.le(&allowed)?)?)
}

/// Returns the only element as a tensor without dimensions.
fn only(call: &Call<'_>, refusal: &str) -> Result<Tensor> {
    let x = call.tensor(0);
    match x.elements() {
        1 => x.detach().reshape(()),
        count => Err(invalid!("a Tensor with {count} elements {refusal}")),
    }
}

/// Refuses bools, as PyTorch does.
fn check_isin(dtypes: [DType; 2]) -> Result<()> {
    if let Some(&dtype) = dtypes.iter().find(|dtype| **dtype == DType::Bool || dtype.is_complex()) {
        refuse!("Unsupported input type encountered for isin(): {}", named(dtype));
    }
    Ok(())
}

fn isin(call: &Call<'_>, x: &Tensor, among: &Tensor) -> Result<Tensors> {
    let flat = among.detach().reshape(&[among.elements()])?;
    let found = match flat.elements() {
        0 => Tensor::zeros(x.shape(), DType::Bool, call.device)?,
        1 => x.detach().unsqueeze(-1)?.eq(&flat)?.reshape(x.shape())?,
        _ => x.detach().unsqueeze(-1)?.eq(&flat)?.any_dim(-1, false)?,
    };
    if call.bool(3) { over(&found, Tensor::logical_not).map(single) } else { Ok(single(found)) }
}
