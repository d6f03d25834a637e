//! Discrete Fourier transforms.
//!
//! Transforms are calls of the vendor's library, if there is one (`fft_library`). Without it, a transform of n numbers is a matrix product if n is at most [`DIRECT`]. A larger n is split as n = a · b, into transforms of
//! a and of b numbers with twiddle factors in between (Cooley and Tukey, Mathematics of Computation 19, 1965). If n has no factor
//! up to [`DIRECT`], the transform is a convolution with a chirp, computed by transforms of a power of two (Bluestein, IEEE
//! Transactions on Audio and Electroacoustics 18, 1970). Twiddle factors are computed in f64 and rounded once.
//!
//! A transform of real numbers is a complex transform of which half is kept; a transform to real numbers is the real part of one
//! that counts the kept half twice.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape, inverse_order};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::create::options;
use super::view::wrap;
use super::{fft_library, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, Ints, built_in};
use crate::loops::{LoopArguments, Points};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the discrete Fourier transform of complex numbers over dimensions; if not `forward`, with the conjugate factors.
    /// The normalization is 0 for none, 1 for 1/√n, and 2 for 1/n, with n the product of the sizes.
    "_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"
        = Differentiable(|call| {
            let x = call.tensor(0);
            let dims = dimensions(x, &call.ints(1))?;
            let result = many(x, &dims, call.bool(3), call.label)?;
            // A transform over no dimensions, or over single numbers, is a copy.
            let result = if result.shares_storage_with(x) { result.copied(call.label.location)? } else { result };
            normalized(laid_out(&result, &dims)?, sizes_of(x, &dims), call.int(2)).map(single)
        }, &C2C), complex: Taken;
    /// Returns the discrete Fourier transform of real numbers over dimensions; with `onesided` only up to the middle of the last
    /// one, which determines the rest.
    "_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"
        = Differentiable(|call| {
            let x = call.tensor(0);
            let dims = dimensions(x, &call.ints(1))?;
            let Some((&last, others)) = dims.split_last() else {
                refuse!("_fft_r2c transforms at least one dimension");
            };
            let size = sizes_of(x, &dims);
            if call.bool(3)
                && let Some(half) = fft_library::from_real(x, &dims, call.label)?
            {
                return normalized(laid_out(&half, &dims)?, size, call.int(2)).map(single);
            }
            let mut z = one(&of_real(x)?, last, true, call.label)?;
            if call.bool(3) {
                z = z.narrow(last as i64, 0, x.shape()[last] / 2 + 1)?;
            }
            let result = laid_out(&many(&z, others, true, call.label)?, &dims)?;
            normalized(result, size, call.int(2)).map(single)
        }, &R2C);
    /// Returns the real numbers with this transform over dimensions, given up to the middle of the last one, which becomes
    /// `last_dim_size` long. The factors are those of an inverse transform.
    "_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"
        = Differentiable(|call| {
            let (x, size) = (call.tensor(0), call.int(3));
            let dims = dimensions(x, &call.ints(1))?;
            let Some((&last, others)) = dims.split_last() else {
                refuse!("_fft_c2r transforms at least one dimension");
            };
            let size = usize::try_from(size).ok().filter(|&size| size > 0).ok_or_else(|| too_few(size))?;
            let count = sizes_of(x, others) * size as f64;
            let given = resized(x, last, size / 2 + 1)?;
            if let Some(whole) = fft_library::to_real(&given, &dims, size, call.label)? {
                return normalized(laid_out(&whole, &dims)?, count, call.int(2)).map(single);
            }
            let half = many(&given, others, false, call.label)?;
            let whole = resized(&doubled(&half, last, size)?, last, size)?;
            let result = laid_out(&one(&whole, last, false, call.label)?.real()?, &dims)?;
            normalized(result, count, call.int(2)).map(single)
        }, &C2R), complex: Taken;
    /// Returns the discrete Fourier transform of `n` numbers along a dimension, which is truncated or padded with zeros. The norm
    /// `forward` divides by n, `ortho` by √n.
    "fft_fft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_fft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| along(call, true));
    /// Returns the inverse discrete Fourier transform of `n` numbers along a dimension. The norm `backward` divides by n, `ortho` by
    /// √n.
    "fft_ifft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_ifft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| along(call, false));
    /// Returns the first half of the transform of real numbers along a dimension; the second half are its conjugates.
    "fft_rfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_rfft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| from_real(call, true));
    /// Returns the `n` real numbers with this first half of a transform: the inverse of `fft_rfft`.
    "fft_irfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_irfft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| to_real(call, false));
    /// Returns the real transform of `n` numbers from their first half, of which the second half is the conjugate.
    "fft_hfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_hfft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| to_real(call, true));
    /// Returns the first half of the inverse transform of real numbers: the inverse of `fft_hfft`.
    "fft_ihfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor"
        fn fft_ihfft(n: optional_int, dim: int, norm: optional_str) = Composite(|call| from_real(call, false));
    /// Returns `fft_fftn` over two dimensions.
    "fft_fft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_fft2() = Composite(|call| over(call, true));
    /// Returns `fft_ifftn` over two dimensions.
    "fft_ifft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_ifft2() = Composite(|call| over(call, false));
    /// Returns `fft_rfftn` over two dimensions.
    "fft_rfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_rfft2() = Composite(|call| over_real(call, true));
    /// Returns `fft_irfftn` over two dimensions.
    "fft_irfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_irfft2() = Composite(|call| over_to_real(call, false));
    /// Returns `fft_hfftn` over two dimensions.
    "fft_hfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_hfft2() = Composite(|call| over_to_real(call, true));
    /// Returns `fft_ihfftn` over two dimensions.
    "fft_ihfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor"
        fn fft_ihfft2() = Composite(|call| over_real(call, false));
    /// Returns the discrete Fourier transform over dimensions, which are truncated or padded with zeros to sizes.
    "fft_fftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_fftn(s: optional_ints, dim: optional_ints, norm: optional_str) = Composite(|call| over(call, true));
    /// Returns the inverse discrete Fourier transform over dimensions, which are truncated or padded with zeros to sizes.
    "fft_ifftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_ifftn(s: optional_ints, dim: optional_ints, norm: optional_str) = Composite(|call| over(call, false));
    /// Returns the transform of real numbers over dimensions, up to the middle of the last one.
    "fft_rfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_rfftn(s: optional_ints, dim: optional_ints, norm: optional_str)
        = Composite(|call| over_real(call, true));
    /// Returns the real numbers with this transform over dimensions, given up to the middle of the last one.
    "fft_irfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_irfftn(s: optional_ints, dim: optional_ints, norm: optional_str)
        = Composite(|call| over_to_real(call, false));
    /// Returns the real transform over dimensions of numbers given up to the middle of the last one.
    "fft_hfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_hfftn(s: optional_ints, dim: optional_ints, norm: optional_str)
        = Composite(|call| over_to_real(call, true));
    /// Returns the inverse transform of real numbers over dimensions, up to the middle of the last one.
    "fft_ihfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
        fn fft_ihfftn(s: optional_ints, dim: optional_ints, norm: optional_str)
        = Composite(|call| over_real(call, false));
    /// Returns the frequencies of a transform of n numbers at distance d: 0, 1, …, then the negative ones, divided by n · d.
    "fft_fftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| {
            let size = points(call)?;
            let middle = (size as i64 + 1) / 2;
            let places = Tensor::arange(size, 0, 1, DType::I64, call.device)?;
            let wrapped = places.sub_scalar(size as i64)?;
            frequencies(call, &places.lt_scalar(middle)?.select_where(&places, &wrapped)?)
        });
    /// Returns the frequencies of the first half of a transform of n numbers at distance d: 0, 1, … divided by n · d.
    "fft_rfftfreq(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| {
            let places = Tensor::arange(points(call)? / 2 + 1, 0, 1, DType::I64, call.device)?;
            frequencies(call, &places)
        });
}

/// The largest size that is transformed by one matrix.
const DIRECT: usize = 64;

/// The gradient of a transform is the transform with the conjugate factors.
static C2C: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || c2c(&call.gradient()?, &call.ints(1), call.int(2), !call.bool(3))),
};

/// The gradient of a transform of which half is kept is the real part of the gradient's transform with the conjugate factors, the
/// other half being 0.
static R2C: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (dims, mut gradient) = (call.ints(1), call.gradient()?);
            if call.bool(3) {
                let last = wrap(*dims.last().expect("a dimension was transformed"), gradient.rank())?;
                gradient = resized(&gradient, last, call.shape(0)[last])?;
            }
            c2c(&gradient, &dims, call.int(2), false)?.real()
        })
    },
};

/// The gradient of `_fft_c2r`: the first half of the transform of the result's gradient. Elements that stand for two of the whole
/// spectrum are doubled.
static C2R: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (dims, gradient) = (call.ints(1), call.gradient()?);
            let last = wrap(*dims.last().expect("a dimension was transformed"), gradient.rank())?;
            let arguments = [(&gradient).into(), (&dims[..]).into(), call.int(2).into(), true.into()];
            let operator = crate::dispatch::built_in!("_fft_r2c")?;
            let half = operator.call(&arguments, None, call.label())?.swap_remove(0);
            let size = gradient.shape()[last];
            resized(&doubled(&half, last, size)?, last, call.shape(0)[last])
        })
    },
};

fn c2c(x: &Tensor, dims: &[i64], normalization: i64, forward: bool) -> Result<Tensor> {
    let arguments = [x.into(), dims.into(), normalization.into(), forward.into()];
    super::call(crate::dispatch::built_in!("_fft_c2c")?, &arguments, None, std::panic::Location::caller())
}

// ---- The arguments ------------------------------------------------------------------------------------------------

fn too_few(size: i64) -> Error {
    invalid!("Invalid number of data points ({size}) specified")
}

/// Returns the dimensions, and refuses repeated ones.
fn dimensions(x: &Tensor, dims: &[i64]) -> Result<Shape> {
    let mut wrapped = Shape::new();
    for &dim in dims {
        if x.rank() == 0 {
            return Err(Error::index(format!("Dimension specified as {dim} but tensor has no dimensions")));
        }
        let dim = wrap(dim, x.rank())?;
        refuse_if!(wrapped.contains(&dim), "FFT dims must be unique");
        wrapped.push(dim);
    }
    Ok(wrapped)
}

/// Returns PyTorch's number of a normalization: a direction's name means that this direction divides by n.
fn normalization(norm: Option<&str>, forward: bool) -> Result<i64> {
    match (norm, forward) {
        (None | Some("backward"), true) | (Some("forward"), false) => Ok(0),
        (None | Some("backward"), false) | (Some("forward"), true) => Ok(2),
        (Some("ortho"), _) => Ok(1),
        (Some(other), _) => Err(invalid!("Invalid normalization mode: \"{other}\"")),
    }
}

/// Returns numbers as floats, or as complex numbers if those are requested.
fn promoted(x: &Tensor, is_complex: bool) -> Result<Tensor> {
    let dtype = match x.dtype() {
        DType::F16 | DType::Bf16 | DType::F8E4m3 | DType::F8E5m2 => {
            refuse!("Unsupported dtype {}", x.dtype());
        }
        dtype if dtype.is_differentiable() => dtype,
        _ => default_dtype(),
    };
    x.to_dtype(if is_complex { dtype.complex() } else { dtype })
}

fn check_real(x: &Tensor, name: &str) -> Result<()> {
    refuse_if!(x.dtype().is_complex(), "{name} expects a real input tensor, but got {}", x.dtype());
    Ok(())
}

/// Returns the dimension of a one-dimensional transform, and the number of transformed elements if the call specifies it.
fn line(call: &Call<'_>) -> Result<(usize, Option<usize>)> {
    let dim = dimensions(call.tensor(0), &[call.int(2)])?[0];
    let size = match call.optional_int(1) {
        Some(size) if size < 1 => return Err(too_few(size)),
        size => size.map(|size| size as usize),
    };
    Ok((dim, size))
}

/// Returns the elements that a one-dimensional transform transforms, its dimension and its normalization.
fn elements_along(call: &Call<'_>, forward: bool, is_complex: bool) -> Result<(Tensor, [i64; 1], i64)> {
    let (dim, size) = line(call)?;
    let normalization = normalization(call.optional_str(3), forward)?;
    let x = promoted(call.tensor(0), is_complex)?;
    match size.unwrap_or(x.shape()[dim]) {
        0 => Err(too_few(0)),
        size => Ok((resized(&x, dim, size)?, [dim as i64], normalization)),
    }
}

fn along(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    let (x, dims, normalization) = elements_along(call, forward, true)?;
    c2c(&x, &dims, normalization, forward).map(single)
}

fn from_real(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    check_real(call.tensor(0), if forward { "rfft" } else { "ihfft" })?;
    let (x, dims, normalization) = elements_along(call, forward, false)?;
    let half = r2c(&x, &dims, normalization)?;
    if forward { Ok(single(half)) } else { half.conj().map(single) }
}

fn r2c(x: &Tensor, dims: &[i64], normalization: i64) -> Result<Tensor> {
    let arguments = [x.into(), dims.into(), normalization.into(), true.into()];
    super::call(crate::dispatch::built_in!("_fft_r2c")?, &arguments, None, std::panic::Location::caller())
}

fn c2r(x: &Tensor, dims: &[i64], normalization: i64, size: usize) -> Result<Tensor> {
    let arguments = [x.into(), dims.into(), normalization.into(), (size as i64).into()];
    super::call(crate::dispatch::built_in!("_fft_c2r")?, &arguments, None, std::panic::Location::caller())
}

fn to_real(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    let (dim, size) = line(call)?;
    let normalization = normalization(call.optional_str(3), forward)?;
    let mut x = promoted(call.tensor(0), true)?;
    let whole = match size {
        Some(size) => size,
        None => 2 * x.shape()[dim].saturating_sub(1),
    };
    if whole == 0 {
        return Err(too_few(2 * (x.shape()[dim] as i64 - 1)));
    }
    if size.is_some() {
        x = resized(&x, dim, whole / 2 + 1)?;
    }
    if forward {
        x = x.conj()?;
    }
    c2r(&x, &[dim as i64], normalization, whole).map(single)
}

/// The dimensions of a transform over several, and the sizes to which they are truncated or padded.
struct Region {
    dims: Shape,
    sizes: Shape,
    /// The last size of the result, for a transform to real numbers.
    last: usize,
}

impl Region {
    /// Reads the sizes and dimensions of a call. With `is_half` the last dimension has only its first half.
    fn of(call: &Call<'_>, is_half: bool) -> Result<Self> {
        let x = call.tensor(0);
        let given = call.optional_ints(1);
        let dims = match (call.optional_ints(2), &given) {
            (Some(dims), given) => {
                let dims = dimensions(x, &dims)?;
                if given.as_ref().is_some_and(|given| given.len() != dims.len()) {
                    refuse!("When given, dim and shape arguments must have the same length");
                }
                dims
            }
            (None, Some(given)) if given.len() > x.rank() => {
                refuse!(
                    "Got shape with {} values but input tensor only has {} dimensions.",
                    given.len(),
                    x.rank()
                );
            }
            (None, Some(given)) => (x.rank() - given.len()..x.rank()).collect(),
            (None, None) => (0..x.rank()).collect(),
        };
        let mut sizes: Shape = dims.iter().map(|&dim| x.shape()[dim]).collect();
        let mut is_last_given = false;
        for (place, &size) in given.iter().flatten().enumerate() {
            match size {
                -1 => {}
                1.. => {
                    sizes[place] = size as usize;
                    is_last_given |= place + 1 == dims.len();
                }
                _ => return Err(too_few(size)),
            }
        }
        let mut last = sizes.last().copied().unwrap_or_default();
        if is_half && !sizes.is_empty() {
            let half = sizes.len() - 1;
            last = if is_last_given { last } else { 2 * last.saturating_sub(1) };
            if last == 0 {
                return Err(too_few(2 * (sizes[half] as i64 - 1)));
            }
            sizes[half] = last / 2 + 1;
        }
        match sizes.iter().find(|&&size| size == 0) {
            Some(_) => Err(too_few(0)),
            None => Ok(Self { dims, sizes, last }),
        }
    }

    /// Returns the numbers that are transformed.
    fn cut(&self, x: &Tensor) -> Result<Tensor> {
        let mut cut = x.clone();
        for (&dim, &size) in self.dims.iter().zip(&self.sizes) {
            cut = resized(&cut, dim, size)?;
        }
        Ok(cut)
    }

    fn list(&self) -> Ints {
        self.dims.iter().map(|&dim| dim as i64).collect()
    }

    fn check_any(&self, name: &str) -> Result<()> {
        match self.dims.is_empty() {
            true => Err(invalid!("{name} must transform at least one axis")),
            false => Ok(()),
        }
    }
}

fn over(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    let region = Region::of(call, false)?;
    let normalization = normalization(call.optional_str(3), forward)?;
    let x = region.cut(&promoted(call.tensor(0), true)?)?;
    c2c(&x, &region.list(), normalization, forward).map(single)
}

fn over_real(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    let name = if forward { "rfftn" } else { "ihfftn" };
    check_real(call.tensor(0), name)?;
    let region = Region::of(call, false)?;
    region.check_any(name)?;
    let normalization = normalization(call.optional_str(3), forward)?;
    let (x, dims) = (region.cut(&promoted(call.tensor(0), false)?)?, region.list());
    if forward {
        return r2c(&x, &dims, normalization).map(single);
    }
    let (last, others) = dims.split_last().expect("there is a dimension");
    let half = r2c(&x, &[*last], normalization)?.conj()?;
    if others.is_empty() { Ok(single(half)) } else { c2c(&half, others, normalization, false).map(single) }
}

fn over_to_real(call: &Call<'_>, forward: bool) -> Result<Tensors> {
    let region = Region::of(call, true)?;
    region.check_any(if forward { "hfftn" } else { "irfftn" })?;
    let normalization = normalization(call.optional_str(3), forward)?;
    let (x, dims) = (region.cut(&promoted(call.tensor(0), true)?)?, region.list());
    if !forward {
        return c2r(&x, &dims, normalization, region.last).map(single);
    }
    let (last, others) = dims.split_last().expect("there is a dimension");
    let x = if others.is_empty() { x } else { c2c(&x, others, normalization, true)? };
    c2r(&x.conj()?, &[*last], normalization, region.last).map(single)
}

fn points(call: &Call<'_>) -> Result<usize> {
    options(call, 2)?;
    usize::try_from(call.int(0)).map_err(|_| invalid!("{} points are not a number", call.int(0)))
}

fn frequencies(call: &Call<'_>, places: &Tensor) -> Result<Tensors> {
    let dtype = call.optional_dtype(2).unwrap_or_else(default_dtype);
    let step = 1.0 / (call.int(0) as f64 * call.float(1));
    places.to_dtype(dtype)?.mul_scalar(step).map(single)
}

// ---- The transform ------------------------------------------------------------------------------------------------

/// Returns real numbers as complex ones.
fn of_real(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(x.dtype().complex())
}

/// Returns the tensor with a dimension truncated or padded with zeros.
fn resized(x: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
    let extent = x.shape()[dim];
    if size <= extent {
        return x.narrow(dim as i64, 0, size);
    }
    let mut shape: Shape = x.shape().into();
    shape[dim] = size - extent;
    let zeros = Tensor::zeros(&shape, x.dtype(), x.device())?;
    Tensor::cat(&[x.clone(), zeros], dim as i64)
}

/// Returns the first half of a transform of this many real numbers, doubled where the other half has the conjugate: everywhere
/// except at the first element, and at the middle of an even number.
fn doubled(half: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
    let last = size.div_ceil(2) as i64;
    let places = Tensor::arange(half.shape()[dim], 0, 1, DType::I64, half.device())?;
    let inside = places.ge_scalar(1)?.logical_and(&places.lt_scalar(last)?)?;
    let factor = inside.to_dtype(half.dtype().real())?.add_scalar(1.0)?;
    let shape: Shape =
        (0..half.rank()).map(|place| if place == dim { half.shape()[dim] } else { 1 }).collect();
    half.mul(&factor.reshape(&shape)?)
}

fn sizes_of(x: &Tensor, dims: &[usize]) -> f64 {
    dims.iter().map(|&dim| x.shape()[dim] as f64).product()
}

/// Multiplies a result that nothing else holds by the factor of a normalization.
fn normalized(x: Tensor, count: f64, normalization: i64) -> Result<Tensor> {
    let factor = match normalization {
        0 => return Ok(x),
        1 => 1.0 / count.sqrt(),
        2 => 1.0 / count,
        other => {
            refuse!("there is no normalization {other}; 0 is none, 1 is 1/√n, 2 is 1/n");
        }
    };
    x.mul_scalar_(factor)?;
    Ok(x)
}

/// Transforms along several dimensions in turn.
fn many(x: &Tensor, dims: &[usize], forward: bool, label: Label) -> Result<Tensor> {
    refuse_if!(!x.dtype().is_complex(), "a transform of complex numbers cannot be of {}", x.dtype());
    let dims: Shape = dims.iter().copied().filter(|&dim| x.shape()[dim] > 1).collect();
    if dims.is_empty() || x.elements() == 0 {
        return Ok(x.clone());
    }
    if let Some(result) = fft_library::complex(x, &dims, forward, label)? {
        return Ok(result);
    }
    dims.iter().try_fold(x.clone(), |x, &dim| one(&x, dim, forward, label))
}

/// Transforms along a dimension.
fn one(x: &Tensor, dim: usize, forward: bool, label: Label) -> Result<Tensor> {
    let size = x.shape()[dim];
    if size <= 1 || x.elements() == 0 {
        return Ok(x.clone());
    }
    let order = innermost(x.rank(), &[dim]);
    let moved = x.permute(&order)?;
    let shape: Shape = moved.shape().into();
    let transform =
        Transform { sign: if forward { -1.0 } else { 1.0 }, dtype: x.dtype(), device: x.device(), label };
    let lines = moved.reshape(&[x.elements() / size, size])?.contiguous()?;
    transform.lines(&lines)?.reshape(&shape)?.permute(&inverse_order(&order))
}

/// Returns the order of dimensions in which the given ones come last.
fn innermost(rank: usize, dims: &[usize]) -> Shape {
    let (inner, outer): (Shape, Shape) = (0..rank).partition(|dim| dims.contains(dim));
    outer.into_iter().chain(inner).collect()
}

/// Returns the result of a transform without gaps, with the transformed dimensions innermost in memory, as in PyTorch.
fn laid_out(result: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let order = innermost(result.rank(), dims);
    result.permute(&order)?.contiguous()?.permute(&inverse_order(&order))
}

/// Transforms of one direction and dtype.
struct Transform<'a> {
    /// The sign of the exponent.
    sign: f64,
    dtype: DType,
    device: &'a Device,
    label: Label,
}

impl Transform<'_> {
    /// Transforms each line of a contiguous matrix.
    fn lines(&self, x: &Tensor) -> Result<Tensor> {
        let &[count, size] = x.shape() else { unreachable!("lines are the rows of a matrix") };
        if size <= DIRECT {
            return self.direct(x);
        }
        let Some(first) = (2..=DIRECT).rev().find(|factor| size.is_multiple_of(*factor)) else {
            return self.by_chirp(x);
        };
        // Element second · i + j, frequency k + first · l.
        let second = size / first;
        let columns = x.reshape(&[count, first, second])?.transpose(1, 2)?.contiguous()?;
        let inner = self.direct(&columns.reshape(&[count * second, first])?)?;
        let twiddles = self.roots([second, first], size, self.sign)?;
        let transposed = inner.reshape(&[count, second, first])?.mul(&twiddles)?;
        let rows = transposed.transpose(1, 2)?.contiguous()?.reshape(&[count * first, second])?;
        let outer = self.lines(&rows)?.reshape(&[count, first, second])?;
        outer.transpose(1, 2)?.contiguous()?.reshape(&[count, size])
    }

    /// Transforms each line by one product with real numbers: (re, im) of each element with (cos, sin) and (−sin, cos) of each
    /// frequency.
    fn direct(&self, x: &Tensor) -> Result<Tensor> {
        let &[count, size] = x.shape() else { unreachable!("lines are the rows of a matrix") };
        let matrix = self.table([size, 2, size], size, self.sign)?.reshape(&[2 * size, 2 * size])?;
        let result = x.view_as_real()?.reshape(&[count, 2 * size])?.matmul(&matrix)?;
        result.reshape(&[count, size, 2])?.contiguous()?.view_as_complex()
    }

    /// Transforms lines of any size: i · k = (i² + k² − (i − k)²) / 2 makes the transform a convolution with a chirp.
    fn by_chirp(&self, x: &Tensor) -> Result<Tensor> {
        let size = x.shape()[1];
        let padded = (2 * size - 1).next_power_of_two();
        let chirp = self.chirp(size, size)?;
        // The conjugate of the chirp at distances −size + 1 to size − 1, with the negative ones at the end.
        let filter = self.chirp(padded, size)?.conj()?;
        let forward = Transform { sign: -1.0, ..*self };
        let inverse = Transform { sign: 1.0, ..*self };
        let filter = forward.lines(&filter.reshape(&[1, padded])?)?;
        let x = forward.lines(&resized(&x.mul(&chirp)?, 1, padded)?.contiguous()?)?;
        let convolved = inverse.lines(&x.mul(&filter)?)?.narrow(1, 0, size)?;
        convolved.mul(&chirp)?.mul_scalar(1.0 / padded as f64)
    }

    /// Returns exp(± i π t² / size) of the distance t from 0 around a circle of `places` elements.
    fn chirp(&self, places: usize, size: usize) -> Result<Tensor> {
        let at = Tensor::arange(places, 0, 1, DType::I64, self.device)?;
        let distance = if places == size { at } else { at.minimum(&at.neg()?.add_scalar(places as i64)?)? };
        // The square, counted around the circle of 2 · size, is exact.
        let turn = distance.remainder_scalar(2 * size as i64)?.square()?.remainder_scalar(2 * size as i64)?;
        let angle = turn.to_dtype(DType::F64)?.mul_scalar(self.sign * std::f64::consts::PI / size as f64)?;
        let parts = Tensor::stack(&[angle.cos()?, angle.sin()?], -1)?;
        parts.to_dtype(self.dtype.real())?.view_as_complex()
    }

    /// Returns exp(± 2 π i · row · column / period).
    fn roots(&self, [rows, columns]: [usize; 2], period: usize, sign: f64) -> Result<Tensor> {
        self.table([rows, 1, columns], period, sign)?.reshape(&[rows, columns, 2])?.view_as_complex()
    }

    fn table(&self, [rows, parts, columns]: [usize; 3], period: usize, sign: f64) -> Result<Tensor> {
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[Scalar::I64(period as i64), Scalar::F64(sign)]),
            points: Points::Result(SmallVec::from_slice(&[rows, parts, columns, 2])),
            dtype: Some(self.dtype.real()),
        };
        let operator = built_in!("thalweg::roots_of_unity")?;
        Ok(operator.call_loop(&[], &arguments, Some(self.device), self.label)?.swap_remove(0))
    }
}
