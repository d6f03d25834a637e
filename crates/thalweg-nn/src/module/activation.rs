//! Activations: modules of one input and no tensors.

use std::panic::Location;

use thalweg_derive::{enter, in_call};
use thalweg_ir::Scalar;
use thalweg_runtime::{Device, Error, Result, invalid, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::outermost;

use super::{Forward, Module, constant};
use crate::functional::{call, operator};

/// Declares the struct of a module without tensors; a unit struct if the module has no options.
macro_rules! plain_structure {
    ($(#[$doc:meta])* $name:ident {}) => {
        $(#[$doc])*
        #[derive($crate::module::Module, Clone, Copy, PartialEq, Debug, Default)]
        pub struct $name;
    };
    ($(#[$doc:meta])* $name:ident { $( $(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr, )+ }) => {
        $(#[$doc])*
        #[derive($crate::module::Module, Clone, Copy, PartialEq, Debug)]
        pub struct $name {
            $( $(#[$field_doc])* #[module(skip)] pub $field: $type, )*
        }

        impl Default for $name {
            /// Returns PyTorch's numbers.
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

/// Modules without tensors: their numbers with PyTorch's defaults, and the result for an input.
macro_rules! plain_modules {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr, )* }
        |$this:ident, $x:ident| $body:expr;
    )*) => {$(
        plain_structure! {
            $(#[$doc])*
            $name { $( $(#[$field_doc])* $field: $type = $default, )* }
        }

        impl $crate::module::Forward for $name {
            #[track_caller]
            fn forward(&self, $x: &thalweg_tensor::Tensor) -> thalweg_runtime::Result<thalweg_tensor::Tensor> {
                let _entered = thalweg_tensor::caller::enter(std::panic::Location::caller());
                #[allow(unused_variables)]
                let $this = self;
                $body
            }
        }
    )*};
}
plain_modules! {
    /// max(0, x).
    ReLU {} |this, x| x.relu();
    /// min(max(0, x), 6).
    ReLU6 {} |this, x| x.relu6();
    /// x where it is above 0, else a fraction of it.
    LeakyReLU {
        /// The fraction.
        negative_slope: f64 = 0.01,
    } |this, x| x.leaky_relu(this.negative_slope);
    /// x where it is above 0, else alpha · (eˣ − 1).
    ELU {
        /// The limit towards −∞, negated.
        alpha: f64 = 1.0,
    } |this, x| x.elu(this.alpha, 1.0, 1.0);
    /// max(0, x) + min(0, alpha · (e^(x / alpha) − 1)).
    CELU {
        /// The limit towards −∞, negated.
        alpha: f64 = 1.0,
    } |this, x| x.celu(this.alpha);
    /// The self-normalizing ELU.
    SELU {} |this, x| x.selu();
    /// x · Φ(x), or its approximation by tanh.
    GELU {
        /// Whether Φ is approximated by tanh (`approximate='tanh'`).
        tanh: bool = false,
    } |this, x| if this.tanh { x.gelu_tanh() } else { x.gelu() };
    /// The first half of a dimension times the sigmoid of the second.
    GLU {
        /// The dimension.
        dim: i64 = -1,
    } |this, x| x.glu(this.dim);
    /// x · σ(x).
    SiLU {} |this, x| x.silu();
    /// x · tanh(softplus(x)).
    Mish {} |this, x| x.mish();
    /// 1 / (1 + e⁻ˣ).
    Sigmoid {} |this, x| x.sigmoid();
    /// ln σ(x).
    LogSigmoid {} |this, x| x.log_sigmoid();
    /// tanh(x).
    Tanh {} |this, x| x.tanh();
    /// x − tanh(x).
    Tanhshrink {} |this, x| x.sub(&x.tanh()?);
    /// x / (1 + |x|).
    Softsign {} |this, x| x.div(&x.abs()?.add_scalar(1.0)?);
    /// ln(1 + e^(beta · x)) / beta, and x itself where beta · x is above the threshold.
    Softplus {
        /// The steepness.
        beta: f64 = 1.0,
        /// The input above which the function is the identity.
        threshold: f64 = 20.0,
    } |this, x| {
        let numbers = [this.beta, this.threshold].map(|number| Scalar::F64(number).into());
        call(operator!("softplus"), &[x.into(), numbers[0], numbers[1]], Location::caller())
    };
    /// x moved towards 0 by lambd, and 0 where x is within ±lambd.
    Softshrink {
        /// The threshold.
        lambd: f64 = 0.5,
    } |this, x| x.softshrink(this.lambd);
    /// x, but 0 where x is within ±lambd.
    Hardshrink {
        /// The threshold.
        lambd: f64 = 0.5,
    } |this, x| x.hardshrink(this.lambd);
    /// x · min(max(0, x + 3), 6) / 6.
    Hardswish {} |this, x| x.hardswish();
    /// min(max(0, x + 3), 6) / 6.
    Hardsigmoid {} |this, x| x.hardsigmoid();
    /// x clamped between two limits.
    Hardtanh {
        /// The lower limit.
        min_val: f64 = -1.0,
        /// The upper limit.
        max_val: f64 = 1.0,
    } |this, x| x.hardtanh(this.min_val, this.max_val);
    /// x where it is above a threshold, else a value.
    Threshold {
        /// The threshold.
        threshold: f64 = 0.0,
        /// The value.
        value: f64 = 0.0,
    } |this, x| x.threshold(this.threshold, this.value);
    /// eˣ divided by its sum along a dimension.
    Softmax {
        /// The dimension.
        dim: i64 = -1,
    } |this, x| x.softmax(this.dim);
    /// e⁻ˣ divided by its sum along a dimension.
    Softmin {
        /// The dimension.
        dim: i64 = -1,
    } |this, x| x.neg()?.softmax(this.dim);
    /// The logarithm of the softmax along a dimension.
    LogSoftmax {
        /// The dimension.
        dim: i64 = -1,
    } |this, x| x.log_softmax(this.dim);
    /// The softmax over the channels of images (channels, height, width), with or without a batch.
    Softmax2d {} |this, x| match x.rank() {
        3 | 4 => x.softmax(-3),
        rank => Err(invalid!("Softmax2d: expected input to be 3D or 4D, got {rank}D instead")
            .at(outermost(Location::caller()))),
    };
}

/// x where it is above 0, else a learnt fraction of it.
#[derive(Module, Clone, Debug)]
pub struct PReLU {
    /// One fraction for all channels, or one per channel.
    #[module(parameter)]
    pub weight: Tensor,
}

impl PReLU {
    /// Makes an activation with `count` fractions, initially `init` (0.25 in PyTorch).
    #[enter]
    pub fn new(count: usize, init: f64, device: &Device) -> Result<Self> {
        Ok(Self { weight: constant(&[count], init, device)? })
    }
}

impl Forward for PReLU {
    #[in_call("prelu", &[input, &self.weight])]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (count, rank) = (self.weight.elements(), input.rank());
        let channels = input.shape().get(1).copied().unwrap_or(1);
        refuse_if!(
            count != 1 && count != channels,
            "Mismatch of parameter numbers and input channel size. Found parameter numbers = {count} and channel size = \
                 {channels}."
        );
        let mut shape = vec![1; rank];
        if rank > 1 && count != 1 {
            shape[1] = count;
        }
        input.prelu(&self.weight.reshape(&shape)?)
    }
}
