//! Complex numbers: the elements of complex64 and complex128, with the arithmetic of PyTorch's CUDA kernels.

use num_complex::Complex;

/// A complex number of two 32-bit floats.
#[expect(non_camel_case_types, reason = "the name of the type in CUDA code")]
pub type c64 = Complex<f32>;

/// A complex number of two 64-bit floats.
#[expect(non_camel_case_types, reason = "the name of the type in CUDA code")]
pub type c128 = Complex<f64>;

/// The arithmetic of complex numbers that differs from that of `num-complex`, and conversions between the types.
pub(crate) trait Pair: Copy {
    /// Creates a number from its two parts, rounded to the type's precision.
    fn of(re: f64, im: f64) -> Self;

    /// Returns the real and the imaginary part.
    fn parts(self) -> [f64; 2];

    /// Returns self / divisor by Smith's algorithm (Communications of the ACM 5, 1962), which overflows only where the quotient
    /// nearly does. For a divisor of 0, returns self's parts over |0|.
    fn over(self, divisor: Self) -> Self;
}

/// Returns a / b as kernels divide complex numbers: by Smith's algorithm, which overflows only where the quotient nearly does.
/// For a divisor of 0, returns a's parts over 0.
pub fn quotient(a: c128, b: c128) -> c128 {
    a.over(b)
}

macro_rules! pairs {
    ($($float:ident)*) => {$(
        impl Pair for Complex<$float> {
            fn of(re: f64, im: f64) -> Self {
                Self { re: re as $float, im: im as $float }
            }

            fn parts(self) -> [f64; 2] {
                [self.re.into(), self.im.into()]
            }

            fn over(self, divisor: Self) -> Self {
                let (wide, high) = (divisor.re.abs(), divisor.im.abs());
                if wide >= high {
                    if wide == 0.0 && high == 0.0 {
                        return Self { re: self.re / wide, im: self.im / high };
                    }
                    let ratio = divisor.im / divisor.re;
                    let scale = 1.0 / (divisor.re + divisor.im * ratio);
                    return Self { re: (self.re + self.im * ratio) * scale, im: (self.im - self.re * ratio) * scale };
                }
                let ratio = divisor.re / divisor.im;
                let scale = 1.0 / (divisor.re * ratio + divisor.im);
                Self { re: (self.re * ratio + self.im) * scale, im: (self.im * ratio - self.re) * scale }
            }
        }
    )*};
}

pairs! { f32 f64 }
