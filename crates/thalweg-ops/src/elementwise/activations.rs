//! Activation functions: entries of the table. See [`elementwise`](super).

/// Passes every entry of this file to a macro.
#[macro_export]
#[doc(hidden)]
macro_rules! activations_table {
    ($callback:ident $($first:tt)*) => {
        $callback! {
            $($first)*
            /// 1 / (1 + e⁻ˣ), without overflow in value or gradient.
            sigmoid(x) Floating {
                // e^−|x| in a form that has a derivative at 0, which |x| does not.
                body: {
                    let negative = x.lt(0.0);
                    let small = negative.select(x, -x).exp();
                    negative.select(small, x.like(1.0)) / (1.0 + small)
                },
                gradient(y, g): g * y * (1.0 - y),
                reference: 0.5 * (1.0 + (0.5 * x).tanh()),
                samples: [[-200.0], [-2.0], [0.5]],
                complex: "thalweg::sigmoid_of_complex",
            }
            /// x · sigmoid(x). An infinite exponential gives 0.
            silu(x) Floating {
                body: x / (1.0 + (-x).exp()),
                gradients(g): [{
                    // e^−|x|, whose derivative does not overflow either.
                    let negative = x.lt(0.0);
                    let small = negative.select(x, -x).exp();
                    let share = negative.select(small, x.like(1.0)) / (1.0 + small);
                    g * share * (1.0 + x * (1.0 - share))
                }],
                reference: x * 0.5 * (1.0 + (0.5 * x).tanh()),
                samples: [[-2.0], [0.5]],
                complex: "thalweg::silu_of_complex",
            }
            /// The greater of x and 0. The gradient at 0 is 0, as in PyTorch.
            relu(x) Numeric {
                body: x.le(0.0).select(x.like(0.0), x),
                gradient(y, g): y.le(0.0).select(g.like(0.0), g),
                reference: x.max(0.0),
                samples: [[-2.0], [0.5]],
            }
            /// x between 0 and 6. The gradient at the bounds is 0.
            relu6(x) Numeric {
                body: x.le(0.0).select(x.like(0.0), x.ge(6.0).select(x.like(6.0), x)),
                gradient(y, g): y.le(0.0).or(y.ge(6.0)).select(g.like(0.0), g),
                reference: x.clamp(0.0, 6.0),
                samples: [[-2.0], [0.5], [7.0]],
            }
            /// (x + 3) / 6 between 0 and 1.
            hardsigmoid(x) Floating {
                body: {
                    let inside = x / 6.0 + 0.5;
                    // For NaN the value is NaN and the gradient 0.
                    let outside = x.le(-3.0).select(x.like(0.0), x.detach().minimum(x.like(1.0)));
                    x.gt(-3.0).and(x.lt(3.0)).select(inside, outside)
                },
                reference: ((x + 3.0) / 6.0).clamp(0.0, 1.0),
                samples: [[-4.0], [0.5], [4.0]],
            }
            /// x · hardsigmoid(x).
            hardswish(x) Floating {
                body: {
                    let inside = x * (x + 3.0) * (1.0 / 6.0);
                    // The product is NaN at −∞, as in PyTorch.
                    x.le(-3.0).select(x.detach() * 0.0, x.lt(3.0).select(inside, x))
                },
                reference: x * ((x + 3.0) / 6.0).clamp(0.0, 1.0),
                samples: [[-4.0], [0.5], [4.0]],
            }
            /// x · tanh(softplus(x)).
            mish(x) Floating {
                // tanh ln (1 + s) = (s² + 2s) / (s² + 2s + 2), with s = e^x: one exponential, of −|x|, so that nothing overflows.
                body: {
                    let negative = x.lt(0.0);
                    let small = negative.select(x, -x).exp();
                    let above = negative.select(small * (small + 2.0), small * 2.0 + 1.0);
                    x * (above / (above + negative.select(x.like(2.0), 2.0 * (small * small))))
                },
                reference: x * x.exp().ln_1p().tanh(),
                samples: [[-30.0], [-2.0], [0.5], [30.0]],
            }
            /// The scaled exponential linear unit, with the constants of its paper.
            selu(x) Floating {
                body: {
                    let (alpha, scale) = (1.6732632423543772, 1.0507009873554805);
                    x.le(0.0).select(x.expm1() * (alpha * scale), x * scale)
                },
                reference: 1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * (x.exp() - 1.0) },
                samples: [[-2.0], [0.5]],
            }
            /// ln sigmoid(x), without overflow.
            log_sigmoid(x) Floating {
                body: {
                    let negative = x.lt(0.0);
                    negative.select(x, x.like(0.0)) - negative.select(x, -x).exp().log1p()
                },
                reference: -(-x).exp().ln_1p(),
                samples: [[-2.0], [0.5], [30.0]],
            }
            /// max(0, x) + min(0, alpha · (e^(x / alpha) − 1)).
            celu(x; alpha): "celu(Tensor self, Scalar alpha=1.0) -> Tensor" Floating {
                body: x.le(0.0).select((x / alpha).expm1() * alpha, x),
                reference: if x > 0.0 { x } else { alpha * ((x / alpha).exp() - 1.0) },
                samples: [[-2.0], [0.5]],
                numbers: [2.0],
            }
            /// scale · x where x is positive, else scale · alpha · (e^(input_scale · x) − 1).
            elu(x; alpha, scale, input_scale): "elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor" Floating {
                body: x.le(0.0).select((x * input_scale).expm1() * (alpha * scale), x * scale),
                reference: scale * if x > 0.0 { x } else { alpha * ((input_scale * x).exp() - 1.0) },
                samples: [[-2.0], [0.5]],
                numbers: [1.5, 0.5, 2.0],
            }
            /// x where |x| is above lambd, else 0.
            hardshrink(x; lambd): "hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor" Floating {
                body: x.abs().le(lambd).select(x.like(0.0), x),
                reference: if x.abs() > lambd { x } else { 0.0 },
                samples: [[-2.0], [0.25]],
                numbers: [0.5],
            }
            /// x where it is positive, else x · weight: `_prelu_kernel` of PyTorch, whose weight broadcasts.
            prelu(x, y): "_prelu_kernel(Tensor self, Tensor weight) -> Tensor" Floating {
                body: x.gt(0.0).select(x, x * y),
                reference: if x > 0.0 { x } else { x * y },
                samples: [[-2.0, 0.25], [0.5, 4.0]],
            }
            /// x / (1 + |x|).
            softsign(x) Floating {
                body: x / (1.0 + x.abs()),
                reference: if x < 0.0 { x / (1.0 - x) } else { x / (1.0 + x) },
                samples: [[-2.0], [0.5], [30.0]],
                complex: "thalweg::softsign_of_complex",
            }
        }
    };
}
