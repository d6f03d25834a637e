//! Special functions: entries of the table. See [`elementwise`](super).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! special_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// The angle of a real number: π where it is negative, else 0.
            angle(x) Floating {
                body: x.lt(0.0).select(x.like(std::f64::consts::PI), x.eq(x).select(x.like(0.0), x.detach())),
                reference: if x < 0.0 { std::f64::consts::PI } else { 0.0 },
                samples: [[-2.0], [0.5]],
                complex: "thalweg::angle_of_complex",
            }
            /// The number whose error function is x.
            erfinv(x) Floating {
                body: super::series::inverse_erf(x),
                gradient(y, g): g * (y * y).exp() * (std::f64::consts::PI.sqrt() / 2.0),
                reference: super::series::reference::inverse(x, |y| {
                    2.0 * super::series::reference::normal_cdf(y * std::f64::consts::SQRT_2) - 1.0
                }),
                samples: [[-0.75], [0.25]],
                autocast: Full,
            }
            /// The modified Bessel function of the first kind of order 0.
            i0(x) Floating {
                body: super::series::bessel_i(0, x, false),
                gradients(g): [g * super::series::bessel_i(1, x, false)],
                reference: super::series::reference::i(0.0, x),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// e⁻|x| times the modified Bessel function of the first kind of order 0.
            i0e(x): "special_i0e(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_i(0, x, true),
                reference: super::series::reference::i(0.0, x) * (-x.abs()).exp(),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// The modified Bessel function of the first kind of order 1.
            i1(x): "special_i1(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_i(1, x, false),
                reference: super::series::reference::i(1.0, x),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// e⁻|x| times the modified Bessel function of the first kind of order 1.
            i1e(x): "special_i1e(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_i(1, x, true),
                reference: super::series::reference::i(1.0, x) * (-x.abs()).exp(),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// The modified Bessel function of the first kind of order 0.
            modified_bessel_i0(x): "special_modified_bessel_i0(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_i(0, x, false),
                gradients(g): [g * super::series::bessel_i(1, x, false)],
                reference: super::series::reference::i(0.0, x),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// The modified Bessel function of the first kind of order 1.
            modified_bessel_i1(x): "special_modified_bessel_i1(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_i(1, x, false),
                reference: super::series::reference::i(1.0, x),
                samples: [[-2.0], [0.5], [9.0]],
            }
            /// The modified Bessel function of the second kind of order 0.
            modified_bessel_k0(x): "special_modified_bessel_k0(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_k(0, x, false),
                reference: super::series::reference::k(0.0, x),
                samples: [[0.5], [5.0]],
            }
            /// The modified Bessel function of the second kind of order 1.
            modified_bessel_k1(x): "special_modified_bessel_k1(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_k(1, x, false),
                reference: super::series::reference::k(1.0, x),
                samples: [[0.5], [5.0]],
            }
            /// eˣ times the modified Bessel function of the second kind of order 0.
            scaled_modified_bessel_k0(x): "special_scaled_modified_bessel_k0(Tensor x) -> Tensor" Floating {
                body: super::series::bessel_k(0, x, true),
                reference: super::series::reference::k(0.0, x) * x.exp(),
                samples: [[0.5], [5.0]],
            }
            /// eˣ times the modified Bessel function of the second kind of order 1.
            scaled_modified_bessel_k1(x): "special_scaled_modified_bessel_k1(Tensor x) -> Tensor" Floating {
                body: super::series::bessel_k(1, x, true),
                reference: super::series::reference::k(1.0, x) * x.exp(),
                samples: [[0.5], [5.0]],
            }
            /// The Bessel function of the first kind of order 0.
            bessel_j0(x): "special_bessel_j0(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_j(0, x),
                reference: super::series::reference::j(0.0, x),
                samples: [[-2.0], [0.5], [9.5]],
            }
            /// The Bessel function of the first kind of order 1.
            bessel_j1(x): "special_bessel_j1(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_j(1, x),
                reference: super::series::reference::j(1.0, x),
                samples: [[-2.0], [0.5], [9.5]],
            }
            /// The Bessel function of the second kind of order 0; NaN for negative numbers.
            bessel_y0(x): "special_bessel_y0(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_y(0, x),
                reference: super::series::reference::y(0.0, x),
                samples: [[0.5], [9.5]],
            }
            /// The Bessel function of the second kind of order 1; NaN for negative numbers.
            bessel_y1(x): "special_bessel_y1(Tensor self) -> Tensor" Floating {
                body: super::series::bessel_y(1, x),
                reference: super::series::reference::y(1.0, x),
                samples: [[0.5], [9.5]],
            }
            /// The spherical Bessel function of the first kind of order 0: sin x / x.
            spherical_bessel_j0(x): "special_spherical_bessel_j0(Tensor x) -> Tensor" Floating {
                body: super::series::spherical_j0(x),
                reference: x.sin() / x,
                samples: [[-2.0], [0.25]],
            }
            /// The Airy function Ai.
            airy_ai(x): "special_airy_ai(Tensor x) -> Tensor" Floating {
                body: super::series::airy(x),
                reference: super::series::reference::airy(x),
                samples: [[-3.0], [0.5], [3.0]],
            }
            /// −x ln x; 0 at 0, and −∞ for negative numbers.
            entr(x): "special_entr(Tensor self) -> Tensor" Floating {
                body: x.gt(0.0).select(-x * x.log(), x.eq(0.0).select(x.like(0.0), x.lt(0.0).select(x.like(f64::NEG_INFINITY), x))),
                gradients(g): [-(g * (x.log() + 1.0))],
                reference: -x * x.ln(),
                samples: [[0.5], [3.0]],
            }
            /// eˣ² erfc x, without overflow where x is positive.
            erfcx(x): "special_erfcx(Tensor self) -> Tensor" Floating {
                body: super::series::scaled_erfc(x),
                reference: super::series::reference::erfcx(x),
                samples: [[-1.5], [0.5], [3.0]],
            }
            /// The normal distribution's cumulative probability up to x.
            ndtr(x): "special_ndtr(Tensor self) -> Tensor" Floating {
                body: (-x * std::f64::consts::FRAC_1_SQRT_2).erfc() * 0.5,
                reference: super::series::reference::normal_cdf(x),
                samples: [[-2.0], [0.5]],
            }
            /// The logarithm of the normal distribution's cumulative probability up to x.
            log_ndtr(x): "special_log_ndtr(Tensor self) -> Tensor" Floating {
                body: super::series::log_normal_cdf(x),
                reference: super::series::reference::normal_cdf(x).ln(),
                samples: [[-4.0], [0.5]],
            }
            /// The number up to which the normal distribution's cumulative probability is x.
            ndtri(x): "special_ndtri(Tensor self) -> Tensor" Floating {
                body: super::series::inverse_normal_cdf(x),
                gradient(y, g): g * (y * y / 2.0).exp() * (2.0 * std::f64::consts::PI).sqrt(),
                reference: super::series::reference::inverse(x, super::series::reference::normal_cdf),
                samples: [[0.125], [0.75]],
            }
            /// x · ln (1 + y), and 0 where x is 0.
            xlog1py(x, y): "special_xlog1py(Tensor self, Tensor other) -> Tensor" Floating {
                body: times_logarithm(x, y, -1.0, y.log1p()),
                gradients(g): [
                    x.eq(0.0).and(y.le(-1.0)).select(x.like(0.0), times_logarithm(g, y, -1.0, y.log1p())),
                    g * x / (y + 1.0)
                ],
                reference: x * y.ln_1p(),
                samples: [[-2.0, 3.0], [0.5, 0.25]],
            }
        }
    };
}
