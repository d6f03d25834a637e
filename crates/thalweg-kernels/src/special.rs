//! [`Special`]: functions of two numbers whose work depends on the numbers: sums up to a precision, recurrences, Euclid's
//! algorithm.
//!
//! Floats of every dtype are computed in f64. The polynomials are those of Abramowitz and Stegun, *Handbook of Mathematical
//! Functions*, chapter 22; the incomplete gamma functions use 6.5.29 and 6.5.31, the zeta function 23.2.
//!
//! A result that would need more than [`MOST_STEPS`] steps is NaN: polynomials of a higher degree outside of [−1, 1], the zeta
//! function far below 0.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, f16};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::{DTYPES, entry_points, with_float};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::source::Source;

/// A function of two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum Function {
    /// The greatest common divisor, for int64.
    Gcd = 0,
    /// The next number from the first towards the second, in the dtype.
    NextAfter,
    /// The Hurwitz zeta function of s and q.
    Zeta,
    /// The lower incomplete gamma function of a and x, divided by Γ(a).
    LowerGamma,
    /// The upper incomplete gamma function of a and x, divided by Γ(a).
    UpperGamma,
    /// Chebyshev's polynomial of the first kind, of x and its degree.
    ChebyshevT,
    /// Chebyshev's polynomial of the second kind.
    ChebyshevU,
    /// Chebyshev's polynomial of the third kind.
    ChebyshevV,
    /// Chebyshev's polynomial of the fourth kind.
    ChebyshevW,
    /// The physicists' Hermite polynomial.
    HermiteH,
    /// The probabilists' Hermite polynomial.
    HermiteHe,
    /// Laguerre's polynomial.
    Laguerre,
    /// Legendre's polynomial.
    Legendre,
}

impl Function {
    const ALL: [Self; 13] = [
        Self::Gcd,
        Self::NextAfter,
        Self::Zeta,
        Self::LowerGamma,
        Self::UpperGamma,
        Self::ChebyshevT,
        Self::ChebyshevU,
        Self::ChebyshevV,
        Self::ChebyshevW,
        Self::HermiteH,
        Self::HermiteHe,
        Self::Laguerre,
        Self::Legendre,
    ];
}

/// A launch over two operands of one dtype, each contiguous or one number. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Special {
    /// The function.
    pub function: Function,
    /// The number of elements of the result.
    pub elements: u64,
    /// The strides of the operands: 1 for a contiguous operand, 0 for a single number.
    pub strides: [u64; 2],
    /// The dtype of both operands and the result: int64 for [`Function::Gcd`], else a floating-point type.
    pub dtype: DType,
}

impl Special {
    /// Returns the numbers of elements of the operands.
    fn spans(&self) -> [u64; 2] {
        self.strides.map(|stride| if stride == 0 { self.elements.min(1) } else { self.elements })
    }
}

arguments! { Special { elements, strides, function, dtype } }
choices! { Function: Function::ALL }

/// The most steps of a recurrence.
pub const MOST_STEPS: u32 = 1 << 20;

/// Threads of a block.
const BLOCK: u64 = 256;

entry_points! { "special" }

fn print(dtype: DType) -> String {
    Source::new(name(dtype))
        .elements(dtype)
        .flag("IS_INTEGER", dtype == DType::I64)
        .define("STEP", step_bits(dtype))
        .print(include_str!("special.cu"))
}

/// Returns the distance between neighbours of a dtype in the bits of f32, of which shorter dtypes lack the low ones; 0 for other dtypes.
fn step_bits(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 1,
        DType::F16 => 1 << 13,
        DType::Bf16 => 1 << 16,
        _ => 0,
    }
}

/// Operands: the two operands and the result, which may replace the first.
impl NativeKernel for Placed<Special, [DevicePointer; 3]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let Special { function, dtype, .. } = self.kernel;
        let fits = match function {
            Function::Gcd => dtype == DType::I64,
            _ => dtype != DType::I64 && DTYPES.contains(&dtype),
        };
        if fits { Ok(()) } else { Err(Fault::new(format!("{function:?} does not take {dtype}"))) }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.elements.div_ceil(BLOCK), BLOCK)
    }

    fn accesses(&self) -> Accesses {
        let size = self.kernel.dtype.size_bytes() as u64;
        let [first, second] = self.kernel.spans().map(|elements| elements * size);
        let at = self.at;
        Accesses::from_iter([
            Access::read(at[0], first),
            Access::read(at[1], second),
            Access::write(at[2], self.kernel.elements * size),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (special, at, []): (Special, _, _) = arguments::unpack("special", launch)?;
    if special.function == Function::Gcd {
        return run_typed::<i64>(launch, &special, at, gcd);
    }
    fn floats<T: Element>(special: &Special) -> impl Fn(T, T) -> T + use<T> {
        let Special { function, dtype, .. } = *special;
        move |a, b| T::from_f64(compute(function, dtype, a.to_f64(), b.to_f64()))
    }
    with_float!("special", special.dtype, T => run_typed::<T>(launch, &special, at, floats::<T>(&special)))
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    special: &Special,
    at: [DevicePointer; 3],
    function: impl Fn(T, T) -> T,
) -> Result<(), HostFault> {
    let [first, second, output] = at;
    let [first_count, second_count] = special.spans().map(|elements| elements as usize);
    let strides = special.strides.map(|stride| stride as usize);
    let results = launch.cells::<T>(output, special.elements as usize)?;
    // The result may replace the first operand.
    let (is_over, first_count) = if first == output { (true, 0) } else { (false, first_count) };
    let (first, second) = (launch.read::<T>(first, first_count)?, launch.read::<T>(second, second_count)?);
    for (place, result) in results.iter().enumerate() {
        let a = if is_over { result.get() } else { first[place * strides[0]] };
        result.set(function(a, second[place * strides[1]]));
    }
    Ok(())
}

/// Returns the greatest common divisor; a result of 2⁶³ wraps around.
fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a as i64
}

fn compute(function: Function, dtype: DType, a: f64, b: f64) -> f64 {
    match function {
        Function::Gcd => f64::NAN,
        Function::NextAfter => next_after(dtype, a, b),
        Function::Zeta => zeta(a, b),
        Function::LowerGamma => incomplete_gamma(a, b, true),
        Function::UpperGamma => incomplete_gamma(a, b, false),
        _ => polynomial(function, a, b, if dtype == DType::F64 { 512.0 } else { 128.0 }),
    }
}

fn next_after(dtype: DType, a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a == b {
        return b;
    }
    if dtype == DType::F64 {
        return if a < b { a.next_up() } else { a.next_down() };
    }
    if dtype == DType::F16 {
        let bits = f16::from_f64(a.abs()).to_bits();
        let grows = a == 0.0 || (a < b) == (a > 0.0);
        let size = f16::from_bits(if grows { bits + 1 } else { bits - 1 }).to_f64();
        return size.copysign(if a == 0.0 { b } else { a });
    }
    let (step, number) = (step_bits(dtype), a as f32);
    if a == 0.0 {
        return f64::from(f32::from_bits(step)).copysign(b);
    }
    let grows = (a < b) == (a > 0.0);
    let bits = if grows { number.to_bits() + step } else { number.to_bits() - step };
    f64::from(f32::from_bits(bits))
}

/// B₂ₖ / (2k)! for k = 1, 2, ….
const BERNOULLI: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30_240.0,
    -1.0 / 1_209_600.0,
    1.0 / 47_900_160.0,
    -691.0 / 1_307_674_368_000.0,
    1.0 / 74_724_249_600.0,
    -3617.0 / 10_670_622_842_880_000.0,
];

/// Returns Σ (q + k)⁻ˢ over k = 0, 1, …: by Euler and Maclaurin, beginning at the first q + k above 10.
fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s < 1.0 || s.is_nan() || q.is_nan() {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if s != s.floor() {
            return f64::NAN;
        }
    }
    if q < -f64::from(MOST_STEPS) {
        return f64::NAN;
    }
    let (mut sum, mut a) = (0.0, q);
    while a < 10.0 {
        sum += a.powf(-s);
        a += 1.0;
    }
    let mut power = a.powf(-s);
    sum += power * a / (s - 1.0) + power / 2.0;
    power *= s / a;
    for (k, coefficient) in BERNOULLI.iter().enumerate() {
        sum += coefficient * power;
        let next = s + 2.0 * k as f64 + 1.0;
        power *= next * (next + 1.0) / (a * a);
    }
    sum
}

fn incomplete_gamma(a: f64, x: f64, is_lower: bool) -> f64 {
    let pick = |lower: f64| if is_lower { lower } else { 1.0 - lower };
    if a.is_nan() || x.is_nan() || a < 0.0 || x < 0.0 {
        return f64::NAN;
    }
    if a == 0.0 {
        return if x > 0.0 { pick(1.0) } else { f64::NAN };
    }
    if x == 0.0 {
        return pick(0.0);
    }
    if a.is_infinite() {
        return if x.is_infinite() { f64::NAN } else { pick(0.0) };
    }
    if x.is_infinite() {
        return pick(1.0);
    }
    let factor = (a * x.ln() - x - libm::lgamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        for _ in 0..MOST_STEPS {
            n += 1.0;
            term *= x / n;
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        return pick(sum * factor);
    }
    // The continued fraction, by Lentz's method.
    let tiny = 1e-300;
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / tiny, 1.0 / b);
    let mut fraction = d;
    for step in 1..MOST_STEPS {
        let n = f64::from(step);
        let numerator = -n * (n - a);
        b += 2.0;
        d = numerator * d + b;
        d = 1.0 / if d.abs() < tiny { tiny } else { d };
        c = b + numerator / c;
        c = if c.abs() < tiny { tiny } else { c };
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    let upper = fraction * factor;
    if is_lower { 1.0 - upper } else { upper }
}

/// Returns a polynomial of x. The fraction of the degree is dropped; for a negative degree the result is 0. Hermite polynomials
/// are NaN above a degree of `hermite_limit`.
fn polynomial(function: Function, x: f64, degree: f64, hermite_limit: f64) -> f64 {
    let n = degree.trunc();
    if x.is_nan() || n.is_nan() {
        return f64::NAN;
    }
    if n < 0.0 {
        return 0.0;
    }
    let is_chebyshev =
        (Function::ChebyshevT as u64..=Function::ChebyshevW as u64).contains(&(function as u64));
    if is_chebyshev && n > 8.0 && x.abs() < 1.0 {
        let angle = x.acos();
        return match function {
            Function::ChebyshevT => (n * angle).cos(),
            Function::ChebyshevU => ((n + 1.0) * angle).sin() / angle.sin(),
            Function::ChebyshevV => ((n + 0.5) * angle).cos() / (angle / 2.0).cos(),
            _ => ((n + 0.5) * angle).sin() / (angle / 2.0).sin(),
        };
    }
    let is_hermite = matches!(function, Function::HermiteH | Function::HermiteHe);
    if is_hermite && n > hermite_limit || n > f64::from(MOST_STEPS) {
        return f64::NAN;
    }
    let (mut former, mut current) = (1.0, first(function, x));
    if n == 0.0 {
        return former;
    }
    for step in 1..n as u32 {
        let k = f64::from(step);
        let next = match function {
            Function::HermiteH => 2.0 * x * current - 2.0 * k * former,
            Function::HermiteHe => x * current - k * former,
            Function::Laguerre => ((2.0 * k + 1.0 - x) * current - k * former) / (k + 1.0),
            Function::Legendre => ((2.0 * k + 1.0) * x * current - k * former) / (k + 1.0),
            _ => 2.0 * x * current - former,
        };
        (former, current) = (current, next);
        if current.is_nan() {
            break;
        }
    }
    current
}

/// Returns the polynomial of degree 1.
fn first(function: Function, x: f64) -> f64 {
    match function {
        Function::ChebyshevU | Function::HermiteH => 2.0 * x,
        Function::ChebyshevV => 2.0 * x - 1.0,
        Function::ChebyshevW => 2.0 * x + 1.0,
        Function::Laguerre => 1.0 - x,
        _ => x,
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    #[test]
    fn functions_have_their_known_values() {
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= 1e-13 * expected.abs(), "{found}, not {expected}");
        };
        near(zeta(2.0, 1.0), PI * PI / 6.0);
        near(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        near(zeta(2.0, 0.5), PI * PI / 2.0);
        near(zeta(3.0, -0.5), zeta(3.0, 0.5) - 8.0);
        for x in [0.25, 1.5, 40.0] {
            // P(1, x) = 1 − e⁻ˣ, and P(½, x) = erf √x.
            near(incomplete_gamma(1.0, x, true), -(-x).exp_m1());
            near(incomplete_gamma(0.5, x, true), libm::erf(x.sqrt()));
            near(incomplete_gamma(0.5, x, false), libm::erfc(x.sqrt()));
        }
        let of = |function, x, n| polynomial(function, x, n, 512.0);
        let x: f64 = 0.375;
        near(of(Function::ChebyshevT, x, 3.0), 4.0 * x.powi(3) - 3.0 * x);
        near(of(Function::ChebyshevT, x, 12.0), 2.0 * of(Function::ChebyshevT, x, 6.0).powi(2) - 1.0);
        near(of(Function::ChebyshevU, x, 3.0), 8.0 * x.powi(3) - 4.0 * x);
        near(of(Function::ChebyshevV, x, 2.0), 4.0 * x * x - 2.0 * x - 1.0);
        near(of(Function::ChebyshevW, x, 2.0), 4.0 * x * x + 2.0 * x - 1.0);
        near(of(Function::HermiteH, x, 3.0), 8.0 * x.powi(3) - 12.0 * x);
        near(of(Function::HermiteHe, x, 3.0), x.powi(3) - 3.0 * x);
        near(of(Function::Laguerre, x, 2.0), x * x / 2.0 - 2.0 * x + 1.0);
        near(of(Function::Legendre, x, 3.0), 2.5 * x.powi(3) - 1.5 * x);
        assert_eq!((gcd(-12, 18), gcd(0, -5), gcd(0, 0)), (6, 5, 0));
        assert_eq!(next_after(DType::Bf16, 1.0, 2.0), 1.0 + 2f64.powi(-7));
        // Up to 65504, and down to 2⁻²⁴ in steps of 2⁻²⁴.
        let (least, most) = (2f64.powi(-24), 65_504.0);
        for (a, b, wanted) in [
            (1.0, 2.0, 1.0 + 2f64.powi(-10)),
            (1.0, 0.0, 1.0 - 2f64.powi(-11)),
            (0.0, -1.0, -least),
            (-least, 1.0, -0.0),
            (2f64.powi(-14), 0.0, 2f64.powi(-14) - least),
            (most, f64::INFINITY, f64::INFINITY),
            (f64::NEG_INFINITY, 0.0, -most),
        ] {
            assert_eq!(next_after(DType::F16, a, b).to_bits(), wanted.to_bits(), "from {a} to {b}");
        }
        assert_eq!(next_after(DType::F32, 1.0, 0.0), 1.0 - 2f64.powi(-24));
    }
}
