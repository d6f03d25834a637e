//! The primitives that are functions of one floating-point number, one per line.
//!
//! `body`, `body::builder` and this module form a circle: the primitives of a body, and the methods of the builder, are made from
//! this list.

/// Calls a macro with every function: documentation, the primitive's name, the name of the method of [`Value`](crate::Value),
/// CUDA's name of the f64 form (the f32 form has the suffix `f`), and the host's functions of f32 and f64.
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            /// 1 / √x.
            Rsqrt rsqrt "rsqrt" [crate::functions::rsqrt_of_f32, crate::functions::rsqrt_of_f64];
            /// eˣ.
            Exp exp "exp" [crate::host::vectors::exp, f64::exp];
            /// 2ˣ.
            Exp2 exp2 "exp2" [f32::exp2, f64::exp2];
            /// eˣ − 1.
            Expm1 expm1 "expm1" [f32::exp_m1, f64::exp_m1];
            /// ln x.
            Log log "log" [crate::host::vectors::ln, f64::ln];
            /// log₂ x.
            Log2 log2 "log2" [f32::log2, f64::log2];
            /// log₁₀ x.
            Log10 log10 "log10" [f32::log10, f64::log10];
            /// ln (1 + x).
            Log1p log1p "log1p" [f32::ln_1p, f64::ln_1p];
            /// sin x.
            Sin sin "sin" [f32::sin, f64::sin];
            /// cos x.
            Cos cos "cos" [f32::cos, f64::cos];
            /// tan x.
            Tan tan "tan" [f32::tan, f64::tan];
            /// arcsin x.
            Asin asin "asin" [f32::asin, f64::asin];
            /// arccos x.
            Acos acos "acos" [f32::acos, f64::acos];
            /// arctan x.
            Atan atan "atan" [f32::atan, f64::atan];
            /// sinh x.
            Sinh sinh "sinh" [f32::sinh, f64::sinh];
            /// cosh x.
            Cosh cosh "cosh" [f32::cosh, f64::cosh];
            /// tanh x.
            Tanh tanh "tanh" [crate::host::vectors::tanh, f64::tanh];
            /// arsinh x.
            Asinh asinh "asinh" [libm::asinhf, libm::asinh];
            /// arcosh x.
            Acosh acosh "acosh" [crate::functions::acosh_of_f32, crate::functions::acosh_of_f64];
            /// artanh x.
            Atanh atanh "atanh" [libm::atanhf, libm::atanh];
            /// erf x.
            Erf erf "erf" [crate::host::vectors::erf, libm::erf];
            /// 1 − erf x.
            Erfc erfc "erfc" [libm::erfcf, libm::erfc];
            /// ln |Γ(x)|.
            Lgamma lgamma "lgamma" [libm::lgammaf, libm::lgamma];
        }
    };
}

pub(crate) use for_each_function;

use std::f64::consts::PI;

use crate::Value;

pub(crate) fn rsqrt_of_f32(x: f32) -> f32 {
    1.0 / x.sqrt()
}

pub(crate) fn rsqrt_of_f64(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// Returns arcosh x; NaN below 1, where `libm` returns numbers.
pub(crate) fn acosh_of_f32(x: f32) -> f32 {
    if x < 1.0 { f32::NAN } else { libm::acoshf(x) }
}

/// Returns arcosh x; NaN below 1.
pub(crate) fn acosh_of_f64(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

impl Value<'_> {
    /// Returns ψ(x), the derivative of ln Γ(x): by its asymptotic series (Abramowitz and Stegun 6.3.18) at x + 8, brought back by
    /// the recurrence ψ(x) = ψ(x + 1) − 1/x, and for negative x by the reflection ψ(x) = ψ(1 − x) − π cot πx.
    #[must_use]
    pub fn digamma(self) -> Self {
        let is_negative = self.lt(0.5);
        let start = is_negative.select(1.0 - self, self);
        let steps = (0..8).map(|step| 1.0 / (start + f64::from(step)));
        let recurrence = steps.reduce(|sum, term| sum + term).expect("eight steps");
        let far = start + 8.0;
        let inverse = 1.0 / far;
        let square = inverse * inverse;
        // B₂ₙ / 2n.
        let coefficients =
            [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];
        let series =
            coefficients.iter().rev().fold(self.like(0.0), |sum, &coefficient| (sum + coefficient) * square);
        let value = far.log() - 0.5 * inverse - series - recurrence;
        // The period is subtracted first: near a pole, the sine of the full product would lose all digits.
        let angle = (self - self.round()) * PI;
        let reflected = value - PI * angle.cos() / angle.sin();
        let pole = self.eq(0.0).select(-1.0 / self, self * f64::NAN);
        let is_pole = self.le(0.0).and(self.eq(self.floor()));
        is_pole.select(pole, is_negative.select(reflected, value))
    }
    /// Returns ψ′(x), the derivative of ψ, by the series and the recurrence of `digamma`; infinite at the poles.
    #[must_use]
    pub fn trigamma(self) -> Self {
        let is_negative = self.lt(0.5);
        let start = is_negative.select(1.0 - self, self);
        let steps = (0..8).map(|step| start + f64::from(step)).map(|place| 1.0 / (place * place));
        let recurrence = steps.reduce(|sum, term| sum + term).expect("eight steps");
        let inverse = 1.0 / (start + 8.0);
        let square = inverse * inverse;
        // B₂ₙ.
        let coefficients =
            [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0];
        let series =
            coefficients.iter().rev().fold(self.like(0.0), |sum, &coefficient| (sum + coefficient) * square);
        let value = recurrence + inverse + 0.5 * square + series * inverse;
        let angle = (self - self.round()) * PI;
        let sine = angle.sin() / PI;
        is_negative.select(1.0 / (sine * sine) - value, value)
    }
}
