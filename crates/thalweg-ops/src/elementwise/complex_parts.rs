//! The real and imaginary parts of functions of a complex number a + b i: entries of the table. See [`elementwise`](super) and
//! [`complex_values`](super::complex_values).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! complex_parts_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// ln |a + b i|.
            log_of_length(a, b) Floating {
                body: super::complex_values::log_size(a, b),
                reference: 0.5 * (a * a + b * b).ln(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of ln (1 + a + b i).
            log1p_real(a, b) Floating {
                body: super::complex_values::log_size_beside_one(a, b),
                reference: 0.5 * ((1.0 + a) * (1.0 + a) + b * b).ln(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of e to the power of a + b i, less 1.
            expm1_real(a, b) Floating {
                body: super::complex_values::real_expm1(a, b),
                reference: a.exp() * b.cos() - 1.0,
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of √(a + b i).
            sqrt_real(a, b) Floating {
                body: super::complex_values::root(a, b).0,
                reference: (a * a + b * b).powf(0.25) * (0.5 * b.atan2(a)).cos(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of √(a + b i).
            sqrt_imag(a, b) Floating {
                body: super::complex_values::root(a, b).1,
                reference: (a * a + b * b).powf(0.25) * (0.5 * b.atan2(a)).sin(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of e to the power of a + b i.
            exp_real(a, b) Floating {
                body: super::complex_values::exponential(a, b).0,
                reference: a.exp() * b.cos(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of e to the power of a + b i.
            exp_imag(a, b) Floating {
                body: super::complex_values::exponential(a, b).1,
                reference: a.exp() * b.sin(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of sinh (a + b i).
            sinh_real(a, b) Floating {
                body: super::complex_values::sinh(a, b).0,
                reference: a.sinh() * b.cos(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of sinh (a + b i).
            sinh_imag(a, b) Floating {
                body: super::complex_values::sinh(a, b).1,
                reference: a.cosh() * b.sin(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of cosh (a + b i).
            cosh_real(a, b) Floating {
                body: super::complex_values::cosh(a, b).0,
                reference: a.cosh() * b.cos(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of cosh (a + b i).
            cosh_imag(a, b) Floating {
                body: super::complex_values::cosh(a, b).1,
                reference: a.sinh() * b.sin(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of tanh (a + b i).
            tanh_real(a, b) Floating {
                body: super::complex_values::tanh(a, b).0,
                reference: (2.0 * a).sinh() / ((2.0 * a).cosh() + (2.0 * b).cos()),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of tanh (a + b i).
            tanh_imag(a, b) Floating {
                body: super::complex_values::tanh(a, b).1,
                reference: (2.0 * b).sin() / ((2.0 * a).cosh() + (2.0 * b).cos()),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of arcsin (a + b i).
            asin_real(a, b) Floating {
                body: super::complex_values::asin(a, b).0,
                reference: (((a + 1.0).hypot(b) - (a - 1.0).hypot(b)) / 2.0).asin(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of arcsin (a + b i).
            asin_imag(a, b) Floating {
                body: super::complex_values::asin(a, b).1,
                reference: (((a + 1.0).hypot(b) + (a - 1.0).hypot(b)) / 2.0).acosh().copysign(b),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of arccos (a + b i).
            acos_real(a, b) Floating {
                body: super::complex_values::acos(a, b).0,
                reference: (((a + 1.0).hypot(b) - (a - 1.0).hypot(b)) / 2.0).acos(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of arccos (a + b i).
            acos_imag(a, b) Floating {
                body: super::complex_values::acos(a, b).1,
                reference: -(((a + 1.0).hypot(b) + (a - 1.0).hypot(b)) / 2.0).acosh().copysign(b),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The real part of artanh (a + b i).
            atanh_real(a, b) Floating {
                body: super::complex_values::atanh(a, b).0,
                reference: 0.5 * ((1.0 + a).hypot(b) / (1.0 - a).hypot(b)).ln(),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
            /// The imaginary part of artanh (a + b i).
            atanh_imag(a, b) Floating {
                body: super::complex_values::atanh(a, b).1,
                reference: 0.5 * (b.atan2(1.0 + a) + b.atan2(1.0 - a)),
                samples: [[-2.0, 0.5], [0.5, -3.0], [0.25, 0.75]],
            }
        }
    };
}
