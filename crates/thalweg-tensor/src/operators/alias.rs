//! PyTorch's alternative names for operators, and operators that do nothing.

use thalweg_ir::DType;
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::view::transpose;
use super::{complex, operators, single};
use crate::dispatch::{Arguments, Call, Operator, built_in};
use crate::dtype_name::named;
use crate::kernels::reshape::expand;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns self / other: `div`.
    "divide.Tensor(Tensor self, Tensor other) -> Tensor" = Composite(|call| renamed(call, built_in!("div.Tensor")?)), first: Consumed, autocast: Parts;
    /// Returns self / other: `div`.
    "divide.Scalar(Tensor self, Scalar other) -> Tensor" = Composite(|call| renamed(call, built_in!("div.Scalar")?)), first: Consumed, autocast: Parts;
    /// Returns self / other: `div`.
    "true_divide.Tensor(Tensor self, Tensor other) -> Tensor"
        = Composite(|call| renamed(call, built_in!("div.Tensor")?)), first: Consumed, autocast: Parts;
    /// Returns self / other: `div`.
    "true_divide.Scalar(Tensor self, Scalar other) -> Tensor"
        = Composite(|call| renamed(call, built_in!("div.Scalar")?)), first: Consumed, autocast: Parts;
    /// Returns self · other: `mul`.
    "multiply.Tensor(Tensor self, Tensor other) -> Tensor" = Composite(|call| renamed(call, built_in!("mul.Tensor")?)), first: Consumed, autocast: Parts;
    /// Returns self · other: `mul`.
    "multiply.Scalar(Tensor self, Scalar other) -> Tensor" = Composite(|call| renamed(call, built_in!("mul.Scalar")?)), first: Consumed, autocast: Parts;
    /// Returns self − alpha · other: `sub`.
    "subtract.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        = Composite(|call| renamed(call, built_in!("sub.Tensor")?)), first: Consumed, autocast: Parts;
    /// Returns self − alpha · other: `sub`.
    "subtract.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        = Composite(|call| renamed(call, built_in!("sub.Scalar")?)), first: Consumed, autocast: Parts;
    /// Returns the greater of self and other: `maximum`.
    "max.other(Tensor self, Tensor other) -> Tensor" = Composite(|call| renamed(call, built_in!("maximum")?)), out_form: "max.out", autocast: Parts;
    /// Returns the smaller of self and other: `minimum`.
    "min.other(Tensor self, Tensor other) -> Tensor" = Composite(|call| renamed(call, built_in!("minimum")?)), out_form: "min.out", autocast: Parts;
    /// Returns −1, 0 or 1 with the sign of each element: `sign`; of complex numbers self / |self|, and 0 of 0.
    "sgn(Tensor self) -> Tensor" fn sgn() = Composite(|call| renamed(call, built_in!("sign")?)), out: [OfResult], first: Consumed, complex: Parts(complex::sign);
    /// Returns the tensor broadcast to a shape: `expand`.
    "broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)"
        fn broadcast_to(size: sizes)
        = Composite(|call| expand(call.tensor(0), &call.ints(1)).map(single)), autocast: Parts;
    /// Returns matrices with their rows and columns swapped; a tensor without dimensions is returned unchanged.
    "mT(Tensor(a) self) -> Tensor(a)" fn m_t() = Composite(|call| transposed(call.tensor(0), "mT")), autocast: Parts;
    /// Returns matrices with their rows and columns swapped, conjugated: the same as `mT` for real numbers.
    "mH(Tensor(a) self) -> Tensor(a)" = Composite(|call| transposed(&call.tensor(0).conj()?, "mH")), autocast: Parts;
    /// Returns the matrix with rows and columns swapped, conjugated; a tensor without dimensions is returned unchanged.
    "matrix_H(Tensor(a) self) -> Tensor(a)" = Composite(|call| match call.tensor(0).rank() {
        0 => call.tensor(0).conj().map(single),
        2 => transposed(&call.tensor(0).conj()?, "H"),
        rank => Err(invalid!(
            "tensor.H is only supported on matrices (2-D tensors). Got {rank}-D tensor. For batches of matrices, consider using \
             tensor.mH"
        )),
    }), autocast: Parts;
    /// Returns all dimensions in reverse order.
    "numpy_T(Tensor(a) self) -> Tensor(a)" = Composite(|call| {
        let x = call.tensor(0);
        let order: Vec<usize> = (0..x.rank()).rev().collect();
        x.permute(&order).map(single)
    }), autocast: Parts;
    /// Returns the tensor, which must not have truth values.
    "positive(Tensor(a) self) -> Tensor(a)" fn positive() = Composite(|call| match call.tensor(0).dtype() {
        DType::Bool => Err(invalid!("The `+` operator, on a bool tensor is not supported.")),
        _ => Ok(single(call.tensor(0).clone())),
    }), autocast: Parts;
    /// Returns the tensor, whose elements are never kept negated.
    "resolve_neg(Tensor(a) self) -> Tensor(a)" = Composite(|call| Ok(single(call.tensor(0).clone()))), autocast: Parts;
    /// Returns `length` indices of a dimension, beginning with the one that a zero-dimensional tensor contains; the host reads it.
    "narrow.Tensor(Tensor(a) self, int dim, Tensor start, SymInt length) -> Tensor(a)" = Composite(|call| {
        let start = call.tensor(2);
        if start.rank() != 0 || start.dtype().is_floating_point() || start.dtype() == DType::Bool {
            refuse!("start must be an 0-dim integral Tensor.");
        }
        let start: i64 = start.detach().to_dtype(DType::I64)?.item()?;
        let arguments = [call.tensor(0).into(), call.int(1).into(), start.into(), call.int(3).into()];
        built_in!("narrow")?.call(&arguments, None, call.label)
    }), autocast: Parts;
    /// Returns the elements in another dtype on a device; the tensor itself if it already is and no copy is requested.
    "to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
        = Composite(|call| {
            let [_, _, dtype, rest @ ..] = call.arguments else { return Err(invalid!("a dtype is missing")) };
            let there = &super::create::on_device(call, 1)?;
            let arguments: Vec<_> = [there.into(), *dtype].into_iter().chain(rest.iter().copied()).collect();
            built_in!("to.dtype")?.call(&arguments, None, call.label)
        }), autocast: Parts, complex: Taken;
    /// Returns the sum over the dimensions that broadcasting from this shape added or repeated.
    "sum_to_size(Tensor self, SymInt[] size) -> Tensor"
        fn sum_to_size(size: sizes)
        = Composite(|call| {
        let shape = super::view::extents(&call.ints(1))?;
        let x = call.tensor(0);
        let fits = shape.len() <= x.rank()
            && shape.iter().rev().zip(x.shape().iter().rev()).all(|(&to, &from)| to == from || to == 1);
        if !fits {
            refuse!("size {{{shape:?}}} is not expandable to size {{{:?}}}.", x.shape());
        }
        if shape.is_empty() { x.sum(&[], false) } else { x.sum_to_shape(&shape) }.map(single)
    }), autocast: Parts;
    /// Returns the elements in f64 to the power of the exponents.
    "float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"
        fn float_power(exponent: tensor) = Composite(|call| {
            widest(call.tensor(0))?.pow(&widest(call.tensor(1))?).map(single)
        }), in_place: "", out: [OfResult], autocast: Parts, complex: Wide;
    /// Returns the elements in f64 to the power of a number.
    "float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor" = Composite(|call| {
        widest(call.tensor(0))?.pow_scalar(call.scalar(1).to_f64()).map(single)
    }), in_place: "", out: [OfResult], autocast: Parts, complex: Wide;
    /// Raises the elements to the power of the exponents, in place; they must be float64 or complex128.
    "float_power_.Tensor(Tensor(a!) self, Tensor exponent) -> Tensor(a!)" = Composite(|call| {
        let (base, exponent) = (call.tensor(0), widest(call.tensor(1))?);
        check_power(base, exponent.dtype())?;
        built_in!("pow_.Tensor")?.call(&[base.into(), (&exponent).into()], None, call.label)
    }), complex: Wide;
    /// Raises the elements to the power of a number, in place; they must be float64 or complex128.
    "float_power_.Scalar(Tensor(a!) self, Scalar exponent) -> Tensor(a!)" = Composite(|call| {
        check_power(call.tensor(0), DType::F64)?;
        let exponent = thalweg_ir::Scalar::F64(call.scalar(1).to_f64());
        built_in!("pow_.Scalar")?.call(&[call.tensor(0).into(), exponent.into()], None, call.label)
    }), complex: Wide;
    /// Returns a number to the power of each element, in f64.
    "float_power.Scalar(Scalar self, Tensor exponent) -> Tensor" = Composite(|call| {
        let exponent = widest(call.tensor(1))?;
        let base = Tensor::full(&[], call.scalar(0).to_f64(), exponent.dtype(), call.device)?;
        base.pow(&exponent).map(single)
    }), out: [OfResult], autocast: Parts, complex: Wide;
    /// Returns self · 2 to the power of other. Floats times powers of integers keep their dtype.
    "ldexp.Tensor(Tensor self, Tensor other) -> Tensor" fn ldexp(other: tensor) = Composite(|call| {
        if call.tensor(0).dtype().is_floating_point() && call.tensor(1).dtype().is_integer() {
            return scaled_by_powers(call.tensor(0), call.tensor(1)).map(single);
        }
        let base = thalweg_ir::Scalar::F64(2.0);
        let arguments = [base.into(), call.tensor(1).into()];
        let power = super::call(built_in!("pow.Scalar")?, &arguments, None, call.label.location)?;
        call.tensor(0).mul(&power).map(single)
    }), in_place: "ldexp_", first: Consumed;
    /// Returns an uninitialized tensor whose dimensions have this order in memory.
    "empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| empty_permuted(call).map(single));
    /// Sets every element to 0, in place.
    "zero_(Tensor(a!) self) -> Tensor(a!)" = Composite(|call| {
        call.tensor(0).zero_()?;
        Ok(single(call.tensor(0).clone()))
    });
}

/// Refuses a base that does not have the dtype of its powers, with PyTorch's message.
fn check_power(base: &Tensor, exponent: DType) -> Result<()> {
    let is_complex = base.dtype().is_complex() || exponent.is_complex();
    let result = if is_complex { DType::C128 } else { DType::F64 };
    match base.dtype() == result {
        true => Ok(()),
        false => Err(invalid!(
            "the base given to float_power_ has dtype {} but the operation's result requires dtype {}",
            named(base.dtype()),
            named(result)
        )),
    }
}

/// Returns the elements in the widest dtype of their kind: f64, or complex128.
fn widest(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(if x.dtype().is_complex() { DType::C128 } else { DType::F64 })
}

/// Returns floats times 2 to the power of integers, in the dtype of the floats. Three factors multiply in turn, which the dtype
/// represents for every exponent that matters: greater ones make each number infinite or 0 as well.
fn scaled_by_powers(x: &Tensor, exponents: &Tensor) -> Result<Tensor> {
    let wide = x.dtype().compute();
    let most = if wide == DType::F64 { 2_100 } else { 300 };
    let exponents = exponents.to_dtype(DType::I64)?.clamp(-most, most)?.to_dtype(wide)?;
    let third = exponents.div_scalar(3.0)?.floor()?;
    let (factor, last) = (third.exp2()?, exponents.sub(&third.add(&third)?)?.exp2()?);
    x.to_dtype(wide)?.mul(&factor)?.mul(&factor)?.mul(&last)?.to_dtype(x.dtype())
}

fn empty_permuted(call: &Call<'_>) -> Result<Tensor> {
    let (size, order) = (super::view::extents(&call.ints(0))?, call.ints(1));
    super::view::check_options(call.optional_int(3), call.optional_bool(5))?;
    refuse_if!(
        size.len() != order.len(),
        "Number of dimensions in size does not match the length of the physical_layout; i.e. len(size) = {} is not equal to \
         len(physical_layout) = {}",
        size.len(),
        order.len()
    );
    let mut inverse = vec![usize::MAX; size.len()];
    for (place, &dim) in order.iter().enumerate() {
        match usize::try_from(dim).ok().and_then(|dim| inverse.get_mut(dim)) {
            Some(slot) if *slot == usize::MAX => *slot = place,
            Some(_) => return Err(invalid!("Duplicate dim not allowed")),
            None => {
                return Err(Error::index(format!(
                    "Dimension out of range (expected to be between 0 and {}, but got {dim} at index {place})",
                    size.len() as i64 - 1
                )));
            }
        }
    }
    let lying: thalweg_ir::Shape = order.iter().map(|&dim| size[dim as usize]).collect();
    Tensor::empty(&lying, call.optional_dtype(2).unwrap_or_else(default_dtype), call.device)?
        .permute(&inverse)
}

/// Calls another operator with the same arguments.
fn renamed(call: &Call<'_>, operator: &'static Operator) -> Result<Tensors> {
    operator.call(call.arguments, None, call.label)
}

fn transposed(x: &Tensor, name: &str) -> Result<Tensors> {
    if x.rank() == 0 {
        return Ok(single(x.clone()));
    }
    refuse_if!(
        x.rank() < 2,
        "tensor.{name} is only supported on matrices or batches of matrices. Got {}-D tensor.",
        x.rank()
    );
    transpose(x, -2, -1).map(single)
}
