//! Complex numbers: their parts as views, and the operators that compute with the parts.
//!
//! A loop takes complex numbers where its formula is one of them: arithmetic, comparison for equality, and what only moves elements
//! (`thalweg_ir::Body::complex_is_defined`). [`BY_PARTS`] has the operators that are made of others over the parts instead; they
//! answer under [`DispatchKey::Complex`](crate::dispatch::DispatchKey::Complex), above autograd, so that gradients flow through them.
//! Every other kernel refuses complex numbers there, by its name and in PyTorch's words; and an operator made of others does where it
//! would convert them to real ones.
//!
//! Gradients are PyTorch's: with respect to the conjugate, so that a step against a gradient makes a real loss smaller.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, Result};

use super::Body::{Composite, Differentiable};
use super::body::Body;
use super::solve::are_vectors;
use super::view::extents;
use super::{call as call_operator, index, operators, reduce, single};
use crate::autograd::formula::Formula;
use crate::autograd::views::{ViewBackward, record_view};
use crate::caller::enter;
use crate::dispatch::{Argument, Arguments, Call, KernelFunction, built_in};
use crate::dtype_name::named;
use crate::kernels::indexing::combine_of;
use crate::kernels::matmul;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns complex numbers as a view of real ones, whose last dimension has the real and the imaginary part.
    "view_as_real(Tensor(a) self) -> Tensor(a)"
        fn view_as_real() = Composite(|call| view_as_real(call.tensor(0)).map(single));
    /// Returns real numbers, whose last dimension has a real and an imaginary part next to each other, as a view of complex ones.
    "view_as_complex(Tensor(a) self) -> Tensor(a)"
        fn view_as_complex() = Composite(|call| view_as_complex(call.tensor(0)).map(single));
    /// Returns a view of the real parts; real numbers themselves.
    "real(Tensor(a) self) -> Tensor(a)" fn real() = Composite(|call| match call.tensor(0) {
        x if x.dtype().is_complex() => x.view_as_real()?.select(-1, 0).map(single),
        x => Ok(single(x.clone())),
    });
    /// Returns a view of the imaginary parts of complex numbers.
    "imag(Tensor(a) self) -> Tensor(a)" fn imag() = Composite(|call| match call.tensor(0) {
        x if x.dtype().is_complex() => x.view_as_real()?.select(-1, 1).map(single),
        _ => Err(Error::invalid("imag is not implemented for tensors with non-complex dtypes.")),
    });
    /// Returns the complex conjugates, in memory of their own; real numbers themselves.
    "conj(Tensor(a) self) -> Tensor(a)" fn conj() = Composite(|call| conjugate(call).map(single));
    /// Returns the complex conjugates, in memory of their own; real numbers themselves.
    "_conj(Tensor(a) self) -> Tensor(a)" = Composite(|call| conjugate(call).map(single));
    /// Returns the complex conjugates, in memory of their own; real numbers themselves.
    "conj_physical(Tensor self) -> Tensor" = Composite(|call| conjugate(call).map(single));
    /// Returns the tensor: conjugates are always in memory of their own.
    "resolve_conj(Tensor(a) self) -> Tensor(a)" = Composite(|call| Ok(single(call.tensor(0).clone())));
    /// Returns complex numbers of real and imaginary parts, which are broadcast.
    "complex(Tensor real, Tensor imag) -> Tensor"
        fn complex(imag: tensor) = Composite(|call| {
            check_parts(call.tensor(0), call.tensor(1))?;
            of_parts(call.tensor(0), call.tensor(1)).map(single)
        }), out: [ComplexOfFirst];
    /// Returns complex numbers of absolute values and angles in radians, which are broadcast.
    "polar(Tensor abs, Tensor angle) -> Tensor"
        fn polar(angle: tensor) = Composite(|call| {
            let (size, angle) = (call.tensor(0), call.tensor(1));
            check_parts(size, angle)?;
            of_parts(&size.mul(&angle.cos()?)?, &size.mul(&angle.sin()?)?).map(single)
        }), out: [ComplexOfFirst];
    /// Returns the absolute values of complex numbers.
    "thalweg::abs_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [re, im] = parts(call.tensor(0))?;
        re.hypot(&im).map(single)
    }, &ABSOLUTE);
    /// Returns the hyperbolic tangents of complex numbers.
    "thalweg::tanh_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [a, b] = parts(call.tensor(0))?;
        let [re, im] = tangent(&a, &b)?;
        of_parts(&re, &im).map(single)
    }, &TANH);
    /// Returns the angles of complex numbers in radians, in (−π, π].
    "thalweg::angle_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [re, im] = parts(call.tensor(0))?;
        im.atan2(&re).map(single)
    }, &ANGLE);
}

/// The gradient of tanh is 1 − tanh², conjugated.
static TANH: Formula = Formula {
    inputs: &[],
    outputs: &[0],
    backward: |call| {
        call.one(0, || {
            let slope = call.result(0)?.square()?.neg()?.add_scalar(1.0)?;
            call.gradient()?.mul(&slope.conj()?)
        })
    },
};

/// The gradient of |z| is z / |z|, and 0 where z is.
static ABSOLUTE: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| call.one(0, || call.saved(0)?.sgn()?.mul(&call.gradient()?)),
};

/// The gradient of the angle is i · z / |z|², and 0 where z is 0.
static ANGLE: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (z, gradient) = (call.saved(0)?, call.gradient()?);
            let [re, im] = parts(&z)?;
            let square = re.square()?.add(&im.square()?)?;
            let scale = gradient.div(&one_for_zero(&square)?)?;
            of_parts(&im.neg()?.mul(&scale)?, &re.mul(&scale)?)
        })
    },
};

/// An operator made of others over the parts of complex numbers.
type ByParts = fn(&Call<'_>) -> Result<Tensors>;

/// The operators that other operators compute where a tensor is complex, by their names.
static BY_PARTS: &[(&str, ByParts)] = &[
    ("abs", |call| {
        call_operator(
            built_in!("thalweg::abs_of_complex")?,
            &[call.tensor(0).into()],
            None,
            call.label.location,
        )
        .map(single)
    }),
    ("angle", |call| {
        call_operator(
            built_in!("thalweg::angle_of_complex")?,
            &[call.tensor(0).into()],
            None,
            call.label.location,
        )
        .map(single)
    }),
    ("sgn", |call| {
        let z = call.tensor(0);
        z.div(&one_for_zero(&z.abs()?)?).map(single)
    }),
    ("exp", |call| {
        let [re, im] = parts(call.tensor(0))?;
        let size = re.exp()?;
        of_parts(&size.mul(&im.cos()?)?, &size.mul(&im.sin()?)?).map(single)
    }),
    ("log", |call| of_parts(&call.tensor(0).abs()?.log()?, &call.tensor(0).angle()?).map(single)),
    ("sqrt", |call| root(call.tensor(0)).map(single)),
    ("rsqrt", |call| root(call.tensor(0))?.reciprocal().map(single)),
    ("exp2", |call| call.tensor(0).mul_scalar(std::f64::consts::LN_2)?.exp().map(single)),
    ("expm1", |call| {
        // e^a · cos b − 1 without loss where both parts are small.
        let [a, b] = parts(call.tensor(0))?;
        let half = b.mul_scalar(0.5)?.sin()?;
        let re = a.expm1()?.mul(&b.cos()?)?.sub(&half.square()?.mul_scalar(2.0)?)?;
        of_parts(&re, &a.exp()?.mul(&b.sin()?)?).map(single)
    }),
    ("log2", |call| call.tensor(0).log()?.mul_scalar(std::f64::consts::LOG2_E).map(single)),
    ("log10", |call| call.tensor(0).log()?.mul_scalar(std::f64::consts::LOG10_E).map(single)),
    ("log1p", |call| {
        // |1 + z|² − 1 = a · (a + 2) + b².
        let [a, b] = parts(call.tensor(0))?;
        let square = a.mul(&a.add_scalar(2.0)?)?.add(&b.square()?)?;
        of_parts(&square.log1p()?.mul_scalar(0.5)?, &b.atan2(&a.add_scalar(1.0)?)?).map(single)
    }),
    ("sin", |call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&a.sin()?.mul(&b.cosh()?)?, &a.cos()?.mul(&b.sinh()?)?).map(single)
    }),
    ("cos", |call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&a.cos()?.mul(&b.cosh()?)?, &a.sin()?.mul(&b.sinh()?)?.neg()?).map(single)
    }),
    ("tan", |call| {
        let [a, b] = parts(call.tensor(0))?;
        let [im, re] = tangent(&b, &a)?;
        of_parts(&re, &im).map(single)
    }),
    ("sinh", |call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&a.sinh()?.mul(&b.cos()?)?, &a.cosh()?.mul(&b.sin()?)?).map(single)
    }),
    ("cosh", |call| {
        let [a, b] = parts(call.tensor(0))?;
        of_parts(&a.cosh()?.mul(&b.cos()?)?, &a.sinh()?.mul(&b.sin()?)?).map(single)
    }),
    ("tanh", |call| {
        call_operator(
            built_in!("thalweg::tanh_of_complex")?,
            &[call.tensor(0).into()],
            None,
            call.label.location,
        )
        .map(single)
    }),
    ("sigmoid", |call| call.tensor(0).neg()?.exp()?.add_scalar(1.0)?.reciprocal().map(single)),
    ("pow.Tensor_Tensor", |call| power(call.tensor(0), call.tensor(1)).map(single)),
    ("pow.Tensor_Scalar", |call| {
        let (x, exponent) = (call.tensor(0), call.scalar(1));
        match exponent.to_f64() {
            // Repeated products have no branch, and a gradient at 0.
            1.0 => x.mul_scalar(1).map(single),
            2.0 => x.mul(x).map(single),
            3.0 => x.mul(x)?.mul(x).map(single),
            exponent => power(x, &Tensor::full(&[], exponent, x.dtype(), x.device())?).map(single),
        }
    }),
    ("pow.Scalar", |call| {
        let exponent = call.tensor(1);
        let base = Tensor::full(&[], call.scalar(0), exponent.dtype(), exponent.device())?;
        power(&base, exponent).map(single)
    }),
    ("linalg_solve", |call| by_blocks::solve(call, call.bool(2)).map(single)),
    ("linalg_inv", |call| by_blocks::inverse(call.tensor(0)).map(single)),
    ("inverse", |call| by_blocks::inverse(call.tensor(0)).map(single)),
    ("isfinite", |call| call.tensor(0).view_as_real()?.isfinite()?.all_dim(-1, false).map(single)),
    ("isinf", |call| call.tensor(0).view_as_real()?.isinf()?.any_dim(-1, false).map(single)),
    ("isreal", |call| call.tensor(0).imag()?.eq_scalar(0.0).map(single)),
    ("linalg_vector_norm", of_absolute_values),
    ("norm.ScalarOpt_dim", of_absolute_values),
    ("norm.Scalar", of_absolute_values),
    ("nan_to_num", over_parts),
    ("thalweg::sum", over_parts),
    ("thalweg::mean", over_parts),
    ("thalweg::prod", products),
    ("thalweg::cumsum", |call| {
        let x = call.tensor(0);
        let Some(&dimension) = reduce::dimensions(x, &[call.int(1)])?.first() else {
            return x.mul_scalar(1).map(single);
        };
        let parts = x.view_as_real()?;
        let arguments = [(&parts).into(), (dimension as i64).into(), call.bool(2).into()];
        call_operator(call.operator, &arguments, None, call.label.location)?
            .contiguous()?
            .view_as_complex()
            .map(single)
    }),
    ("thalweg::cumprod", |call| {
        let x = call.tensor(0);
        let Some(&dimension) = reduce::dimensions(x, &[call.int(1)])?.first() else {
            return x.mul_scalar(1).map(single);
        };
        // After each step an element has the product of twice as many elements.
        let (extent, dim) = (x.shape()[dimension], dimension as i64);
        let (mut result, mut reach) = (x.mul_scalar(1)?, 1);
        while reach < extent {
            let first = result.narrow(dim, 0, reach)?;
            let others =
                result.narrow(dim, reach, extent - reach)?.mul(&result.narrow(dim, 0, extent - reach)?)?;
            result = Tensor::cat(&[first, others], dim)?;
            reach *= 2;
        }
        Ok(single(result))
    }),
    ("thalweg::gather_backward", |call| {
        let (gradient, index) = (call.tensor(0), call.tensor(1));
        let &[outer, _, inner] = gradient.shape() else {
            return Err(Error::invalid("the gradient is (outer, count, inner)"));
        };
        let zeros =
            Tensor::zeros(&[outer, extents(&[call.int(2)])?[0], inner], gradient.dtype(), call.device)?;
        index::scatter(&zeros, index, gradient, Combine::Sum).map(single)
    }),
    ("thalweg::scatter", scatter),
    ("thalweg::matmul", |call| product(call.tensor(0), call.tensor(1)).map(single)),
];

/// The operators that take complex numbers without further care: kernels that move elements, ask whether they are 0, or are of complex
/// numbers alone, and conversions.
const TAKING: &[&str] = &[
    "_fft_c2c",
    "_fft_c2r",
    "_to_copy",
    "argwhere",
    "cat",
    "constant_pad_nd",
    "copy",
    "fill.Scalar",
    "fill.Tensor",
    "flip",
    "nonzero",
    "nonzero_numpy",
    "nonzero_static",
    "resize_",
    "resize_as_",
    "take_along_dim",
    "thalweg::abs_of_complex",
    "thalweg::angle_of_complex",
    "thalweg::eig",
    "thalweg::gather",
    "thalweg::tanh_of_complex",
    "to.device",
    "to.dtype",
    "to.other",
];

/// Returns the kernel of an operator for complex numbers: its parts', or a refusal; nothing where its ordinary kernels take them or
/// know themselves.
pub(super) fn kernel(name: &'static str, body: Body) -> Option<KernelFunction> {
    if let Some(&(_, by_parts)) = BY_PARTS.iter().find(|(known, _)| *known == name) {
        return Some(Arc::new(move |call| {
            let _entered = enter(call.label.location);
            by_parts(call)
        }));
    }
    match body {
        _ if TAKING.contains(&name) => None,
        Body::Loop(_) | Body::Lowered(_) | Body::InPlace(_) | Body::InPlaceView(_) | Body::Out(_) => None,
        Body::Composite(_) => Some(Arc::new(|call| {
            let _made_of_others = Conversions::refused_by(call.operator.base_name());
            call.redispatch()
        })),
        Body::Kernel(_) | Body::Differentiable(..) | Body::Pair(..) => Some(Arc::new(|call| {
            let dtype = call.tensors.iter().map(|tensor| tensor.dtype()).find(|dtype| dtype.is_complex());
            Err(not_for(call.operator.base_name(), dtype.unwrap_or(DType::C64)))
        })),
    }
}

/// Returns PyTorch's refusal of complex numbers.
fn not_for(operator: &str, dtype: DType) -> Error {
    Error::invalid(format!("\"{operator}\" not implemented for '{}'", named(dtype)))
}

thread_local! {
    /// The operator of this thread, made of others, that has complex numbers and is not there to convert them.
    static MADE_OF_OTHERS: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// A region in which imaginary parts are not lost: an operator that converts what is not a float was not written for complex numbers.
struct Conversions {
    former: Option<&'static str>,
}

impl Conversions {
    fn refused_by(operator: &'static str) -> Self {
        let former = MADE_OF_OTHERS.get();
        MADE_OF_OTHERS.set(former.or(Some(operator)));
        Self { former }
    }
}

impl Drop for Conversions {
    fn drop(&mut self) {
        MADE_OF_OTHERS.set(self.former);
    }
}

/// Refuses a conversion that loses imaginary parts inside an operator that is not a conversion.
pub(super) fn check_conversion(from: DType, to: DType) -> Result<()> {
    match MADE_OF_OTHERS.get() {
        Some(operator) if from.is_complex() && !to.is_complex() && to != DType::Bool => {
            Err(not_for(operator, from))
        }
        _ => Ok(()),
    }
}

fn view_as_real(x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_complex() {
        return Err(Error::invalid("view_as_real is only supported for complex tensors"));
    }
    let shape: Shape = x.shape().iter().copied().chain([2]).collect();
    let strides: Shape = x.layout().strides().iter().map(|&stride| 2 * stride).chain([1]).collect();
    let layout = Layout::new(&shape, &strides, 2 * x.layout().offset())?;
    Ok(record_view(x, x.view_of_dtype(layout, x.dtype().real()), || ViewBackward::Parts))
}

fn view_as_complex(x: &Tensor) -> Result<Tensor> {
    let refuse = |why: &str| Err(Error::invalid(why.to_owned()));
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return Err(Error::invalid(format!(
            "view_as_complex is only supported for float and double tensors, but got a tensor of scalar type: {}",
            x.dtype()
        )));
    }
    let (Some((&last, shape)), Some((&step, strides))) =
        (x.shape().split_last(), x.layout().strides().split_last())
    else {
        return refuse("Input tensor must have one or more dimensions");
    };
    if last != 2 {
        return refuse("Tensor must have a last dimension of size 2");
    }
    if step != 1 {
        return refuse("Tensor must have a last dimension with stride 1");
    }
    if !strides.iter().all(|stride| stride.is_multiple_of(2)) {
        return refuse("Tensor must have a stride divisible by 2 for all but last dimension");
    }
    if !x.layout().offset().is_multiple_of(2) {
        return refuse("Tensor must have a storage_offset divisible by 2");
    }
    let strides: Shape = strides.iter().map(|&stride| stride / 2).collect();
    let layout = Layout::new(shape, &strides, x.layout().offset() / 2)?;
    Ok(record_view(x, x.view_of_dtype(layout, x.dtype().complex()), || ViewBackward::Numbers))
}

/// Returns the real and the imaginary parts of complex numbers, as views.
fn parts(z: &Tensor) -> Result<[Tensor; 2]> {
    let both = z.view_as_real()?.unbind(-1)?;
    Ok(both.try_into().expect("a complex number has two parts"))
}

/// Returns complex numbers of real and imaginary parts, which are broadcast.
fn of_parts(re: &Tensor, im: &Tensor) -> Result<Tensor> {
    let shape = thalweg_ir::broadcast_shapes(re.shape(), im.shape())?;
    Tensor::stack(&[re.expand(&shape)?, im.expand(&shape)?], -1)?.view_as_complex()
}

fn check_parts(a: &Tensor, b: &Tensor) -> Result<()> {
    if ![a, b].iter().all(|part| matches!(part.dtype(), DType::F32 | DType::F64)) {
        return Err(Error::invalid(format!(
            "Expected both inputs to be Half, Float or Double tensors but got {} and {}",
            named(a.dtype()),
            named(b.dtype())
        )));
    }
    if a.dtype() != b.dtype() {
        return Err(Error::invalid(format!(
            "Expected object of scalar type {} but got scalar type {} for second argument",
            named(a.dtype()),
            named(b.dtype())
        )));
    }
    Ok(())
}

fn conjugate(call: &Call<'_>) -> Result<Tensor> {
    match call.tensor(0) {
        z if z.dtype().is_complex() => {
            call_operator(built_in!("thalweg::conj_of")?, &[z.into()], None, call.label.location)
        }
        x => Ok(x.clone()),
    }
}

/// Returns the roots whose real parts are not negative: of the absolute value, at half the angle.
fn root(z: &Tensor) -> Result<Tensor> {
    let (size, half) = (z.abs()?.sqrt()?, z.angle()?.mul_scalar(0.5)?);
    of_parts(&size.mul(&half.cos()?)?, &size.mul(&half.sin()?)?)
}

/// Returns base^exponent = exp(exponent · log base); of a base of 0, 0, and 1 where the exponent is 0 too.
fn power(base: &Tensor, exponent: &Tensor) -> Result<Tensor> {
    let dtype = DType::promote(base.dtype(), exponent.dtype());
    let dtype = dtype.map_err(|error| Error::invalid(error.to_string()))?;
    // An error of the angle grows with the exponent: f64 keeps it below what f32 rounds.
    let (base, exponent) = (base.to_dtype(DType::C128)?, exponent.to_dtype(DType::C128)?);
    let one = Tensor::ones(&[], DType::C128, base.device())?;
    let is_zero = base.eq_scalar(0.0)?;
    let result = is_zero.select_where(&one, &base)?.log()?.mul(&exponent)?.exp()?;
    let of_zero = exponent.eq_scalar(0.0)?.to_dtype(DType::C128)?;
    is_zero.select_where(&of_zero, &result)?.to_dtype(dtype)
}

/// Returns the parts of the hyperbolic tangent of a + b i (W. Kahan, *Branch cuts for complex elementary functions*, 1987). Beyond ±40 it
/// is ±1 in any precision.
fn tangent(a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    let (t, s) = (b.tan()?, a.clamp(-40.0, 40.0)?.sinh()?);
    let beta = t.square()?.add_scalar(1.0)?;
    let divisor = beta.mul(&s.square()?)?.add_scalar(1.0)?;
    let root = s.square()?.add_scalar(1.0)?.sqrt()?;
    Ok([beta.mul(&root)?.mul(&s)?.div(&divisor)?, t.div(&divisor)?])
}

/// Solutions of complex equations by real ones of twice the size: A + B i is (A, −B) over (B, A).
mod by_blocks {
    use super::*;

    fn blocks(z: &Tensor) -> Result<Tensor> {
        if z.rank() < 2 {
            return Err(Error::invalid("linalg.solve: The input tensor must have at least 2 dimensions."));
        }
        let [re, im] = parts(z)?;
        let upper = Tensor::cat(&[re.clone(), im.neg()?], -1)?;
        Tensor::cat(&[upper, Tensor::cat(&[im, re], -1)?], -2)
    }

    /// The numbers of real parts above imaginary ones.
    fn joined(stacked: &Tensor) -> Result<Tensor> {
        let rows = stacked.shape()[stacked.rank() - 2] / 2;
        of_parts(&stacked.narrow(-2, 0, rows)?, &stacked.narrow(-2, rows, rows)?)
    }

    pub(super) fn solve(call: &Call<'_>, left: bool) -> Result<Tensor> {
        let (a, b) = (call.tensor(0), call.tensor(1));
        if a.dtype() != b.dtype() {
            return Err(Error::invalid(format!(
                "torch.linalg.solve: Expected A and B to have the same dtype, but found A of type {} and B of type {} instead",
                a.dtype(),
                b.dtype()
            )));
        }
        let is_vector = are_vectors(a, b);
        let is_turned = !left && !is_vector;
        if a.rank() < 2 || b.rank() < 2 && !is_vector {
            return Err(Error::invalid(
                "torch.linalg.solve: The input tensor must have at least 2 dimensions.",
            ));
        }
        let columns = if is_vector { b.unsqueeze(-1)? } else { b.clone() };
        let [a, columns] = match is_turned {
            true => [a.transpose(-2, -1)?, columns.transpose(-2, -1)?],
            false => [a.clone(), columns],
        };
        let [re, im] = parts(&columns)?;
        let solution = joined(&blocks(&a)?.linalg_solve(&Tensor::cat(&[re, im], -2)?)?)?;
        match (is_vector, is_turned) {
            (true, _) => solution.squeeze(-1),
            (_, true) => solution.transpose(-2, -1)?.contiguous(),
            _ => Ok(solution),
        }
    }

    pub(super) fn inverse(z: &Tensor) -> Result<Tensor> {
        let blocks = blocks(z)?.linalg_inv()?;
        let columns = blocks.shape()[blocks.rank() - 1] / 2;
        joined(&blocks.narrow(-1, 0, columns)?)
    }
}

/// Returns real numbers with 1 in place of 0.
fn one_for_zero(x: &Tensor) -> Result<Tensor> {
    let one = Tensor::ones(&[], x.dtype(), x.device())?;
    x.eq_scalar(0.0)?.select_where(&one, x)
}

/// Returns what the operator gives for the real parts and for the imaginary ones.
fn over_parts(call: &Call<'_>) -> Result<Tensors> {
    let (rank, parts) = (call.tensor(0).rank(), call.tensor(0).view_as_real()?);
    let reduced = call
        .arguments
        .iter()
        .filter_map(|argument| if let Argument::Ints(list) = argument { Some(list) } else { None });
    if let Some(dimension) =
        reduced.flat_map(|list| list.iter()).find(|&&dimension| !(0..rank as i64).contains(&dimension))
    {
        return Err(Error::index(format!("dimension {dimension} is out of range for {rank} dimensions")));
    }
    with_first(call, &parts)?.swap_remove(0).contiguous()?.view_as_complex().map(single)
}

/// Returns products over dimensions, by halves.
fn products(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let reduced = call
        .arguments
        .iter()
        .find_map(|argument| if let Argument::Ints(list) = argument { Some(list.to_vec()) } else { None });
    let mut reduced = reduced.unwrap_or_default();
    reduced.sort_unstable();
    let mut result = x.clone();
    for dimension in reduced.into_iter().rev() {
        let mut extent = result.size(dimension)?;
        if extent == 0 {
            // The product of nothing, in whose gradient there is nothing.
            result = result.sum(&[dimension], true)?.add_scalar(1)?;
        }
        while extent > 1 {
            let half = extent / 2;
            let product = result.narrow(dimension, 0, half)?.mul(&result.narrow(dimension, half, half)?)?;
            result = match extent % 2 {
                0 => product,
                _ => Tensor::cat(&[product, result.narrow(dimension, extent - 1, 1)?], dimension)?,
            };
            extent = extent.div_ceil(2);
        }
        result = result.squeeze(dimension)?;
    }
    if result.shares_storage_with(x) { result.mul_scalar(1).map(single) } else { Ok(single(result)) }
}

/// Returns what the operator gives for the absolute values.
fn of_absolute_values(call: &Call<'_>) -> Result<Tensors> {
    with_first(call, &call.tensor(0).abs()?)
}

/// Calls the operator of a call again, with another first tensor.
fn with_first(call: &Call<'_>, first: &Tensor) -> Result<Tensors> {
    let mut arguments: SmallVec<[Argument<'_>; 8]> = call.arguments.into();
    arguments[0] = first.into();
    call.operator.call(&arguments, None, call.label)
}

/// Writes or adds complex numbers at indices, as twice as many real ones next to each other.
fn scatter(call: &Call<'_>) -> Result<Tensors> {
    let (x, index, source) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let combine = combine_of(call)?;
    if [x, index, source].iter().any(|tensor| tensor.rank() != 3) {
        return Err(Error::invalid("the tensor, indices and source are (outer, extent, inner)"));
    }
    if x.dtype() != source.dtype() || !matches!(combine, Combine::Replace | Combine::Sum) {
        return Err(Error::invalid(format!(
            "scatter of {} into {} by `{}` is not implemented for complex numbers",
            source.dtype(),
            x.dtype(),
            combine.name()
        )));
    }
    let of_parts = |z: &Tensor| {
        let [outer, extent, inner] = [0, 1, 2].map(|dimension| z.shape()[dimension]);
        z.view_as_real()?.reshape(&[outer, extent, 2 * inner])
    };
    let [outer, count, inner] = [0, 1, 2].map(|dimension| source.shape()[dimension]);
    let places = index.expand(&[outer, count, inner])?.unsqueeze(-1)?.expand(&[outer, count, inner, 2])?;
    let places = places.reshape(&[outer, count, 2 * inner])?;
    let arguments = [
        Argument::from(&of_parts(x)?).to_value(),
        Argument::from(&places).to_value(),
        Argument::from(&of_parts(source)?).to_value(),
        Argument::from(combine.name()).to_value(),
    ];
    let arguments: SmallVec<[Argument<'_>; 4]> = arguments.iter().map(|value| value.as_argument()).collect();
    let written = call_operator(call.operator, &arguments, None, call.label.location)?;
    let [outer, extent, inner] = [0, 1, 2].map(|dimension| x.shape()[dimension]);
    written.reshape(&[outer, extent, inner, 2])?.view_as_complex().map(single)
}

/// Returns the product of complex matrices as one of real ones: each row (re, im, …) of the left meets, for each number of the
/// right, the rows (re, im) and (−im, re).
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul::check(a, b)?;
    let doubled = |matrix: &Tensor, rows: usize, columns: usize| {
        let shape = matrix.shape();
        let [height, width] = [shape[shape.len() - 2], shape[shape.len() - 1]];
        let batch = shape[..shape.len() - 2].iter().copied();
        batch.chain([rows * height, columns * width]).collect::<Shape>()
    };
    let left = a.view_as_real()?.reshape(&doubled(a, 1, 2))?;
    let [re, im] = parts(b)?;
    let turned = Tensor::stack(&[im.neg()?, re], -1)?;
    let right = Tensor::stack(&[b.view_as_real()?, turned], -3)?.reshape(&doubled(b, 2, 2))?;
    let result = left.matmul(&right)?;
    let columns = b.shape()[b.rank() - 1];
    let shape: Shape = result.shape()[..result.rank() - 1].iter().copied().chain([columns, 2]).collect();
    result.reshape(&shape)?.contiguous()?.view_as_complex()
}
