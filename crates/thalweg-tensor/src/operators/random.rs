//! Random numbers, drawn from the device's default generator: distributions and dropout.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::create::options;
use super::view::{extents, made_like};
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::autograd::no_grad;
use crate::destination::are_disjoint;
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in, in_place, offer_to_function, over};
use crate::dtype_name::{named, unaliased_cpp_type};
use crate::random::{Numbers, default_generator};
use crate::tensor::{Tensor, Tensors};
use crate::warning::warn;

operators! {
    /// Returns numbers in [0, 1).
    "rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 1, default_dtype(), |call, dtype| uniform(call, &extents(&call.ints(0))?, [0.0, 1.0], dtype))), generator: true;
    /// Returns numbers in [0, 1), with a tensor's shape.
    "rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn rand_like() = Composite(|call| {
            let x = call.tensor(0);
            new(call, 1, x.dtype(), |call, dtype| made_like(call, 5, |shape| uniform(call, shape, [0.0, 1.0], dtype)))
        }), generator: true;
    /// Returns numbers with mean 0 and variance 1.
    "randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 1, default_dtype(), |call, dtype| normal(call, &extents(&call.ints(0))?, [0.0, 1.0], dtype))), generator: true;
    /// Returns numbers with mean 0 and variance 1, with a tensor's shape.
    "randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn randn_like() = Composite(|call| {
            let x = call.tensor(0);
            new(call, 1, x.dtype(), |call, dtype| made_like(call, 5, |shape| normal(call, shape, [0.0, 1.0], dtype)))
        }), generator: true;
    /// Returns the numbers 0 to n − 1 in random order, by sorting keys of 48 random bits.
    "randperm(SymInt n, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 1, DType::I64, |call, dtype| {
            let (count, end) = (call.int(0), end_of(dtype));
            if dtype == DType::Bool {
                return Err(Error::not_implemented("\"randperm\" not implemented for 'Bool'"));
            }
            refuse_if!(count > end, "n cannot be greater than {end} for {} type.", named(dtype));
            let shape = extents(&[count])?;
            let half = || uniform(call, &shape, [0.0, 1.0], DType::F32)?.to_dtype(DType::F64);
            let keys = half()?.mul_scalar(f64::from(1 << 24))?.add(&half()?)?;
            keys.argsort(0, false)?.to_dtype(dtype)
        })), generator: true;
    /// Returns integers in [0, high).
    "randint(SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 2, DType::I64, |call, dtype| {
            integers(call, &extents(&call.ints(1))?, [0, call.int(0)], dtype)
        })), generator: true;
    /// Returns integers in [low, high).
    "randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 3, DType::I64, |call, dtype| {
            integers(call, &extents(&call.ints(2))?, [call.int(0), call.int(1)], dtype)
        })), generator: true;
    /// Returns integers in [0, high), with a tensor's shape.
    "randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        = Composite(|call| {
            let x = call.tensor(0);
            let bounds = [0, call.int(1)];
            new(call, 2, x.dtype(), |call, dtype| made_like(call, 6, |shape| integers(call, shape, bounds, dtype)))
        }), generator: true;
    /// Returns integers in [low, high), with a tensor's shape.
    "randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        = Composite(|call| {
            let x = call.tensor(0);
            let bounds = [call.int(1), call.int(2)];
            new(call, 3, x.dtype(), |call, dtype| made_like(call, 7, |shape| integers(call, shape, bounds, dtype)))
        }), generator: true;
    /// Returns 1 with the probability given by each element, else 0. The gradient is 0.
    "bernoulli(Tensor self, *, Generator? generator=None) -> Tensor"
        fn bernoulli() = Differentiable(|call| bernoulli(call, call.tensor(0)).map(single), &NOTHING), in_place: "", out: [AnyDType];
    /// Returns 1 with a probability, else 0, with a tensor's shape. The gradient is 0.
    "bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor"
        fn bernoulli_p(p: float)
        = Differentiable(|call| {
            let x = call.tensor(0);
            trials(call, x.shape(), call.float(1), x.dtype()).map(single)
        }, &NOTHING), in_place: "";
    /// Sets every element to 1 with a probability, else 0.
    "bernoulli_.float(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| trials(call, x.shape(), call.float(1), x.dtype())));
    /// Sets every element to 1 with the probability given by another tensor, else 0.
    "bernoulli_.Tensor(Tensor(a!) self, Tensor p, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| {
            let (x, p) = (call.tensor(0), call.tensor(1));
            // The probabilities are read after the numbers are drawn.
            let offer = if are_disjoint(x, p) { offer_to_function(x) } else { None };
            in_place::write(x, offer, || no_grad(|| bernoulli(call, &p.expand(x.shape())?)?.to_dtype(x.dtype())))?;
            Ok(single(x.clone()))
        });
    /// Sets every element to an integer from 0 on: all that the dtype holds exactly may come.
    "random_(Tensor(a!) self, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| integers(call, x.shape(), [0, end_of(x.dtype())], x.dtype())));
    /// Sets every element to an integer in [0, to).
    "random_.to(Tensor(a!) self, int to, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| integers(call, x.shape(), [0, call.int(1)], x.dtype())));
    /// Sets every element to an integer in [from, to), or from `from` up to the last that the dtype represents exactly.
    "random_.from(Tensor(a!) self, int from, int? to, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| {
            let end = call.optional_int(2).unwrap_or_else(|| end_of(x.dtype()));
            integers(call, x.shape(), [call.int(1), end], x.dtype())
        }));
    /// Returns numbers with these means and standard deviations. The gradient is 0.
    "normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor"
        = Differentiable(|call| {
            let (mean, deviation) = (call.tensor(0).detach(), call.tensor(1).detach());
            let shape = thalweg_ir::broadcast_shapes(mean.shape(), deviation.shape())?;
            let drawn = normal(call, &shape, [0.0, 1.0], mean.dtype())?;
            let scaled = over(&drawn, |drawn| drawn.mul(&deviation))?;
            over(&scaled, |scaled| scaled.add(&mean))?.to_dtype(mean.dtype()).map(single)
        }, &NOTHING), complex: Taken;
    /// Returns numbers with these means and one standard deviation. The gradient is 0.
    "normal.Tensor_float(Tensor mean, float std=1, *, Generator? generator=None) -> Tensor"
        = Differentiable(|call| {
            let mean = call.tensor(0).detach();
            let drawn = normal(call, mean.shape(), [0.0, call.float(1)], mean.dtype())?;
            over(&drawn, |drawn| drawn.add(&mean)).map(single)
        }, &NOTHING), complex: Taken;
    /// Returns numbers with one mean and these standard deviations. The gradient is 0.
    "normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor"
        = Differentiable(|call| {
            let deviation = call.tensor(1).detach();
            let drawn = normal(call, deviation.shape(), [0.0, 1.0], deviation.dtype())?;
            let scaled = over(&drawn, |drawn| drawn.mul(&deviation))?;
            over(&scaled, |scaled| scaled.add_scalar(call.float(0))).map(single)
        }, &NOTHING);
    /// Returns numbers with a mean and a standard deviation.
    "normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| new(call, 4, default_dtype(), |call, dtype| {
            normal(call, &extents(&call.ints(2))?, [call.float(0), call.float(1)], dtype)
        }));
    /// Sets every element to a number in [from, to).
    "uniform_(Tensor(a!) self, float from=0, float to=1, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| {
            let [from, to] = [call.float(1), call.float(2)];
            if from > to {
                refuse!("uniform_ expects to return a [from, to) range, but found from={from} > to={to}");
            }
            uniform(call, x.shape(), [from, to], x.dtype())
        }));
    /// Sets every element to a number of a normal distribution.
    "normal_(Tensor(a!) self, float mean=0, float std=1, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| normal(call, x.shape(), [call.float(1), call.float(2)], x.dtype())));
    /// Sets every element to eˣ with x from a normal distribution.
    "log_normal_(Tensor(a!) self, float mean=1, float std=2, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write(call, |x| {
            check_positive("log_normal_", "std", call.float(2))?;
            let drawn = normal(call, x.shape(), [call.float(1), call.float(2)], x.dtype())?;
            drawn.exp_()?;
            Ok(drawn)
        }));
    /// Sets every element to a number of a Cauchy distribution: median + sigma · tan (π (u − ½)).
    "cauchy_(Tensor(a!) self, float median=0, float sigma=1, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write(call, |x| {
            check_positive("cauchy_", "sigma", call.float(2))?;
            drawn(call, x, built_in!("thalweg::cauchy")?, &[call.float(1), call.float(2)])
        }));
    /// Sets every element to a number of an exponential distribution: −ln u / lambd.
    "exponential_(Tensor(a!) self, float lambd=1, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write(call, |x| {
            check_positive("exponential_", "lambda", call.float(1))?;
            drawn(call, x, built_in!("thalweg::exponential")?, &[-1.0 / call.float(1)])
        }));
    /// Sets every element to the number of trials up to the first success: ⌈ln u / ln (1 − p)⌉.
    "geometric_(Tensor(a!) self, float p, *, Generator? generator=None) -> Tensor(a!)"
        = Composite(|call| write_any(call, |x| {
            let p = call.float(1);
            refuse_if!(!(p > 0.0 && p < 1.0), "geometric_ expects p to be in (0, 1), but got p={p}");
            drawn(call, x, built_in!("thalweg::geometric")?, &[1.0 / (-p).ln_1p()])
        }));
    /// Returns indices that are drawn from each row with probabilities in proportion to its elements, without repetition unless
    /// `replacement` is set.
    "multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor"
        fn multinomial(num_samples: int, replacement: bool) = Composite(|call| no_grad(|| multinomial(call)).map(single)), out: [Int64];
    /// Returns the tensor with each element set to 0 with probability p, and the others divided by 1 − p, in training.
    "dropout(Tensor input, float p, bool train) -> Tensor" = Composite(|call| drop(call, false, false).map(single)), autocast: Parts;
    /// Returns the tensor with each channel set to 0 with probability p, and the others divided by 1 − p, in training.
    "feature_dropout(Tensor input, float p, bool train) -> Tensor"
        fn feature_dropout(p: float, train: bool)
        = Composite(|call| drop(call, true, false).map(single)), autocast: Parts;
    /// Returns the tensor with elements dropped to the least value of `selu`, and scaled so that mean and variance are kept.
    "alpha_dropout(Tensor input, float p, bool train) -> Tensor"
        fn alpha_dropout(p: float, train: bool)
        = Composite(|call| drop(call, false, true).map(single)), autocast: Parts;
    /// Returns the tensor with channels dropped to the least value of `selu`, and scaled so that mean and variance are kept.
    "feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor"
        fn feature_alpha_dropout(p: float, train: bool)
        = Composite(|call| drop(call, true, true).map(single)), autocast: Parts;
    /// Returns the tensor with each element set to 0 with probability p and the others divided by 1 − p, and the mask of the kept
    /// elements.
    "native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)" = Composite(|call| {
        let (x, p) = (call.tensor(0), call.float(1));
        check_probability(p)?;
        if !call.optional_bool(2).unwrap_or(true) || x.elements() == 0 {
            let kept = Tensor::ones(x.shape(), DType::Bool, call.device)?;
            return Ok(Tensors::from_iter([x.copied(call.label.location)?, kept]));
        }
        if is_one_launch(x) && p < 1.0 {
            return Ok(default_generator(call.device)?.dropped(x, 1.0 - p, call.label)?.into_iter().collect());
        }
        let kept = default_generator(call.device)?.bernoulli(x.shape(), 1.0 - p, x.dtype())?;
        let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
        Ok(Tensors::from_iter([x.mul(&kept)?.mul_scalar(scale)?, kept.to_dtype(DType::Bool)?]))
    });
    /// Returns the gradient of `native_dropout`: that of the kept elements, scaled.
    "native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor" = Composite(|call| {
        let gradient = call.tensor(0);
        let kept = gradient.mul(&call.tensor(1).to_dtype(gradient.dtype())?)?;
        over(&kept, |kept| kept.mul_scalar(call.float(2))).map(single)
    });
    /// Returns self where it is positive, else self times a factor, which in training is drawn between two bounds and otherwise
    /// is their mean.
    "rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool training=False, Generator? generator=None) -> Tensor"
        fn rrelu(lower: scalar, upper: scalar, training: bool)
        = Composite(|call| rrelu(call).map(single)), autocast: Parts;
}

/// A gradient of 0 for every tensor.
static NOTHING: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.each(|tensor| Tensor::zeros(call.shape(tensor), call.dtype_of(tensor), call.device()).map(Some))
    },
};

/// Makes a new tensor with the options of a call from a position on.
fn new(
    call: &Call<'_>,
    at: usize,
    dtype: DType,
    draw: impl FnOnce(&Call<'_>, DType) -> Result<Tensor>,
) -> Result<Tensors> {
    let (call, named) = options(call, at)?;
    draw(&call, named.unwrap_or(dtype)).map(single)
}

/// Writes drawn numbers into the first tensor, which must have floats.
fn write(call: &Call<'_>, draw: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensors> {
    let dtype = call.tensor(0).dtype();
    if !dtype.is_floating_point() {
        let name = call.operator.base_name();
        return Err(Error::not_implemented(format!("\"{name}\" not implemented for '{}'", named(dtype))));
    }
    write_any(call, draw)
}

/// Writes drawn numbers into the first tensor.
fn write_any(call: &Call<'_>, draw: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensors> {
    let x = call.tensor(0);
    in_place::write(x, offer_to_function(x), || no_grad(|| draw(x)))?;
    Ok(single(x.clone()))
}

fn check_positive(name: &str, parameter: &str, number: f64) -> Result<()> {
    if number > 0.0 {
        return Ok(());
    }
    Err(invalid!("{name} expects {parameter} > 0.0, but found {parameter}={number}"))
}

pub(super) fn check_probability(p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(invalid!("dropout probability has to be between 0 and 1, but got {p}"))
}

fn check_floats(dtype: DType, name: &str) -> Result<()> {
    if dtype.is_differentiable() && !dtype.is_float8() {
        return Ok(());
    }
    Err(Error::not_implemented(format!("\"{name}\" not implemented for '{}'", named(dtype))))
}

fn uniform(call: &Call<'_>, shape: &[usize], [low, high]: [f64; 2], dtype: DType) -> Result<Tensor> {
    check_floats(dtype, "uniform")?;
    if low == high {
        return Tensor::full(shape, low, dtype, call.device);
    }
    default_generator(call.device)?.uniform(shape, low, high, dtype)
}

fn normal(call: &Call<'_>, shape: &[usize], [mean, deviation]: [f64; 2], dtype: DType) -> Result<Tensor> {
    check_floats(dtype, "normal")?;
    default_generator(call.device)?.normal(shape, mean, deviation, dtype)
}

/// Draws numbers of a tensor's shape and dtype by an operator that takes `numbers`.
fn drawn(call: &Call<'_>, x: &Tensor, operator: &'static Operator, numbers: &[f64]) -> Result<Tensor> {
    let numbers: SmallVec<[Scalar; 2]> = numbers.iter().copied().map(Scalar::F64).collect();
    default_generator(call.device)?.draw(operator, x.shape(), Numbers::of(&numbers), x.dtype())
}

/// Draws integers: as the remainder of 63 random bits. For a larger range, one half of int64's range is chosen in proportion to
/// its share of the range.
fn integers(call: &Call<'_>, shape: &[usize], [low, high]: [i64; 2], dtype: DType) -> Result<Tensor> {
    refuse_if!(low >= high, "random_ expects 'from' to be less than 'to', but got from={low} >= to={high}");
    refuse_if!(dtype.is_complex(), "random_ draws integers, floats and truth values, not {}", dtype);
    let [low, last] = check_bounds([low, high - 1], dtype)?;
    let high = last + 1;
    let generator = default_generator(call.device)?;
    if let Some(range) = high.checked_sub(low) {
        return generator.integers(shape, range, low, dtype);
    }
    // Such a large range has numbers on both sides of 0.
    let share = -(low as f64) / (high as f64 - low as f64);
    let is_negative = generator.bernoulli(shape, share, DType::F64)?.to_dtype(DType::Bool)?;
    let below = generator.integers(shape, low.saturating_neg(), 0, DType::I64)?.bitwise_not()?;
    let above = generator.integers(shape, high, 0, DType::I64)?;
    is_negative.select_where(&below, &above)?.to_dtype(dtype)
}

/// Refuses bounds that a dtype cannot represent, and warns of those that a float cannot represent exactly. Returns the outermost
/// numbers between the bounds that it can represent, so that no number is rounded to one beyond them.
fn check_bounds(bounds: [i64; 2], dtype: DType) -> Result<[i64; 2]> {
    if dtype == DType::I64 {
        return Ok(bounds);
    }
    for (bound, name) in bounds.into_iter().zip(["from", "to - 1"]) {
        let end = i128::from(end_of(dtype));
        let least = if dtype.is_floating_point() {
            1 - end
        } else if dtype.is_signed() {
            -end
        } else {
            0
        };
        if (least..end).contains(&i128::from(bound)) {
            continue;
        }
        let is_beyond = !dtype.is_floating_point() || dtype == DType::F16 && bound.unsigned_abs() > 65_504;
        refuse_if!(is_beyond, "{name} is out of bounds for {}", unaliased_cpp_type(dtype));
        warn(&format!(
            "{name} is out of bounds [{least}, {}]. Due to precision limitations {} can support discrete uniform distribution only within \
             this range.",
            end - 1,
            unaliased_cpp_type(dtype)
        ));
    }
    if !dtype.is_floating_point() {
        return Ok(bounds);
    }
    let digits = (end_of(dtype) - 1).trailing_zeros();
    let [low, last] = bounds.map(|bound| {
        let unit = 1i128 << (64 - bound.unsigned_abs().leading_zeros()).saturating_sub(digits);
        (i128::from(bound), unit)
    });
    let (low, last) = (-(-low.0).div_euclid(low.1) * low.1, last.0.div_euclid(last.1) * last.1);
    refuse_if!(
        low > last,
        "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got from={} >= to={}",
        bounds[0],
        bounds[1] + 1
    );
    Ok([low as i64, last as i64])
}

/// Returns the end of the integers from 0 on that a dtype represents exactly. An end beyond int64 cannot be expressed; the last
/// number is then not drawn.
fn end_of(dtype: DType) -> i64 {
    match dtype {
        DType::Bool => 2,
        DType::F64 => (1 << 53) + 1,
        DType::F32 => (1 << 24) + 1,
        DType::F16 => (1 << 11) + 1,
        DType::Bf16 => (1 << 8) + 1,
        dtype => {
            let bits = 8 * dtype.size_bytes() as u32 - u32::from(dtype.is_signed());
            1i64.checked_shl(bits).filter(|&end| end > 0).unwrap_or(i64::MAX)
        }
    }
}

/// Draws 1 with a probability, else 0.
fn trials(call: &Call<'_>, shape: &[usize], probability: f64, dtype: DType) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&probability) {
        refuse!("bernoulli_ expects p to be in [0, 1], but got p={probability}");
    }
    default_generator(call.device)?.bernoulli(shape, probability, dtype)
}

/// Draws 1 with the probability given by each element, else 0.
fn bernoulli(call: &Call<'_>, probabilities: &Tensor) -> Result<Tensor> {
    let x = probabilities.detach();
    check_floats(x.dtype(), "bernoulli")?;
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let drawn = uniform(call, x.shape(), [0.0, 1.0], wide)?;
    let probabilities = x.to_dtype(wide)?;
    let arguments = [(&drawn).into(), (&probabilities).into()];
    // Truth values as numbers, over those that were drawn.
    call_operator(built_in!("lt_.Tensor")?, &arguments, None, call.label.location)?.to_dtype(x.dtype())
}

fn multinomial(call: &Call<'_>) -> Result<Tensor> {
    let (x, count, replacement) = (call.tensor(0).detach(), call.int(1), call.bool(2));
    refuse_if!(!(1..=2).contains(&x.rank()), "prob_dist must be 1 or 2 dim");
    if !x.dtype().is_floating_point() {
        refuse!("multinomial only supports floating-point dtypes for input, got: {}", x.dtype());
    }
    let categories = x.shape()[x.rank() - 1];
    let Some(count) = usize::try_from(count).ok().filter(|&count| count > 0) else {
        refuse!("cannot sample n_sample <= 0 samples");
    };
    if !replacement && count > categories {
        refuse!("cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    }
    refuse_if!(categories > 1 << 24, "number of categories cannot exceed 2^24");
    refuse_if!(categories == 0, "invalid multinomial distribution (with no categories)");
    let weights = x.to_dtype(x.dtype().compute())?;
    if weights.elements() == 0 {
        return Tensor::empty(&[0, count], DType::I64, x.device());
    }
    refuse_if!(
        !weights.device().is_meta() && !are_weights(&weights)?,
        "probability tensor contains either `inf`, `nan` or element < 0, or a row of an invalid multinomial distribution (sum of \
         probabilities <= 0)"
    );
    // The first of exponentially distributed waiting times, none of which is 0, is that of an element with the element's probability; the next one is
    // drawn in the same way from the rest.
    if !replacement || count == 1 {
        let times = drawn(call, &weights, built_in!("thalweg::exponential")?, &[-1.0])?;
        let scores = weights.div(&times)?;
        if count == 1 {
            return scores.argmax(-1)?.unsqueeze(-1);
        }
        let [_, places] = scores.topk(count as i64, -1, true, true)?;
        return Ok(places);
    }
    // A number below the sum of the weights belongs to one element: that of the first partial sum above the number.
    let sums = weights.to_dtype(DType::F64)?.cumsum(-1)?;
    let mut shape: Shape = weights.shape().into();
    *shape.last_mut().expect("rank 1 or 2") = count;
    let numbers =
        uniform(call, &shape, [0.0, 1.0], DType::F64)?.mul(&sums.narrow(-1, categories - 1, 1)?)?;
    let arguments: [Argument<'_>; 4] = [(&sums).into(), (&numbers).into(), false.into(), true.into()];
    call_operator(built_in!("searchsorted.Tensor")?, &arguments, None, call.label.location)?
        .clamp_max(categories as i64 - 1)
}

/// Returns whether numbers are finite and not negative, and none of their rows has zeros alone. The host waits for the answer.
fn are_weights(weights: &Tensor) -> Result<bool> {
    // NaN is the least and the greatest element if there is one, and no comparison with it is true.
    let [least, greatest] = [weights.amin(&[], false)?, weights.amax(&[], false)?];
    let is_right = least.ge_scalar(0)?.logical_and(&greatest.lt_scalar(f64::INFINITY)?)?;
    let is_empty = weights.amax(&[-1], false)?.le_scalar(0)?.any()?;
    Ok(is_right.logical_and(&is_empty.logical_not()?)?.to_dtype(DType::U8)?.item::<u8>()? != 0)
}

/// Returns whether a single kernel can draw which elements of a tensor are kept, and scale them: for contiguous real numbers.
fn is_one_launch(x: &Tensor) -> bool {
    x.dtype().is_floating_point() && !x.dtype().is_float8() && x.is_contiguous()
}

/// Drops elements or channels, to 0 or to the least value of `selu`.
fn drop(call: &Call<'_>, by_channel: bool, is_alpha: bool) -> Result<Tensor> {
    let (x, p, train) = (call.tensor(0), call.float(1), call.bool(2));
    check_probability(p)?;
    if p == 0.0 || !train || x.elements() == 0 {
        return Ok(x.clone());
    }
    refuse_if!(by_channel && x.rank() < 2, "Feature dropout requires at least 2 dimensions in the input");
    if p == 1.0 {
        return x.mul(&Tensor::zeros(&[], x.dtype(), x.device())?);
    }
    check_floats(x.dtype(), "dropout")?;
    if !by_channel && !is_alpha && is_one_launch(x) {
        let [result, _] = default_generator(call.device)?.dropped(x, 1.0 - p, call.label)?;
        return Ok(result);
    }
    let shape: Shape = match by_channel {
        true => x.shape().iter().enumerate().map(|(dim, &extent)| if dim < 2 { extent } else { 1 }).collect(),
        false => x.shape().into(),
    };
    let kept = default_generator(call.device)?.bernoulli(&shape, 1.0 - p, x.dtype())?;
    if !is_alpha {
        return x.mul(&kept.div_scalar(1.0 - p)?);
    }
    // Klambauer et al., Self-Normalizing Neural Networks: scale · alpha of `selu`, and the affine map that restores mean and variance.
    let alpha = 1.758_099_340_847_376_6;
    let scale = 1.0 / ((alpha * alpha * p + 1.0) * (1.0 - p)).sqrt();
    let shift = kept.sub_scalar(1.0)?.mul_scalar(alpha * scale)?.add_scalar(alpha * scale * p)?;
    x.mul(&kept.mul_scalar(scale)?)?.add(&shift)
}

fn rrelu(call: &Call<'_>) -> Result<Tensor> {
    let (x, lower, upper) = (call.tensor(0), call.scalar(1).to_f64(), call.scalar(2).to_f64());
    refuse_if!(lower > upper, "Lower bound should be less than or equal to the upper bound");
    refuse_if!(!lower.is_finite() || !upper.is_finite(), "rrelu: lower bound and upper bound must be finite");
    check_floats(x.dtype(), "rrelu")?;
    let slopes = match call.bool(3) {
        true => no_grad(|| uniform(call, x.shape(), [lower, upper], x.dtype()))?,
        false => Tensor::full(&[], Scalar::F64((lower + upper) / 2.0), x.dtype(), x.device())?,
    };
    x.le_scalar(0)?.select_where(&x.mul(&slopes)?, x)
}
