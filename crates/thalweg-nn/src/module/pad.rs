//! Padding of the last axes. The widths are those before and after each axis, the last axis first, as in PyTorch; negative widths
//! remove elements.

use std::panic::Location;

use thalweg_runtime::{Error, Result, invalid, refuse};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;

use super::{Forward, Module};

macro_rules! pads {
    ($($(#[$doc:meta])* $name:ident |$this:ident, $x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Module, Clone, PartialEq, Debug)]
        pub struct $name {
            /// Two widths per axis, the last axis first.
            #[module(skip)]
            pub padding: Vec<i64>,
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                let $this = self;
                in_call(stringify!($name), &[$x], Location::caller(), || $body)
            }
        }
    )*};
}

pads! {
    /// Padding with zeros.
    ZeroPad |this, x| x.constant_pad_nd(&this.padding, 0.0);
    /// Padding by mirroring the input at its ends, which are not repeated.
    ReflectionPad |this, x| match this.padding.len() {
        2 => x.reflection_pad1d(&this.padding),
        4 => x.reflection_pad2d(&this.padding),
        6 => x.reflection_pad3d(&this.padding),
        count => Err(uneven(count)),
    };
    /// Padding by repeating the input's ends.
    ReplicationPad |this, x| match this.padding.len() {
        2 => x.replication_pad1d(&this.padding),
        4 => x.replication_pad2d(&this.padding),
        6 => x.replication_pad3d(&this.padding),
        count => Err(uneven(count)),
    };
    /// Padding with the elements of the opposite end.
    CircularPad |this, x| circular(x, &this.padding);
}

fn uneven(count: usize) -> Error {
    invalid!("the padding has {count} widths, and must have 2 for each of 1 to 3 axes")
}

fn circular(x: &Tensor, padding: &[i64]) -> Result<Tensor> {
    let axes = padding.len() / 2;
    if !padding.len().is_multiple_of(2) || axes == 0 || axes > x.rank() {
        return Err(uneven(padding.len()));
    }
    padding.chunks_exact(2).enumerate().try_fold(x.clone(), |x, (back, widths)| {
        let dim = (x.rank() - 1 - back) as i64;
        let (extent, [front, after]) = (x.size(dim)? as i64, [widths[0], widths[1]]);
        if front > extent || after > extent || extent + front + after < 0 {
            refuse!("Padding value causes wrapping around more than once, or a negative result.");
        }
        let kept = x.slice(dim, Some((-front).max(0)), Some(extent + after.min(0)), 1)?;
        let mut parts = vec![kept];
        if front > 0 {
            parts.insert(0, x.slice(dim, Some(extent - front), None, 1)?);
        }
        if after > 0 {
            parts.push(x.slice(dim, Some(0), Some(after), 1)?);
        }
        Tensor::cat(&parts, dim)
    })
}

/// Padding with one value.
#[derive(Module, Clone, PartialEq, Debug)]
#[module(skip)]
pub struct ConstantPad {
    /// Two widths per axis, the last axis first.
    pub padding: Vec<i64>,
    /// The value.
    pub value: f64,
}

impl Forward for ConstantPad {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.constant_pad_nd(&self.padding, self.value)
    }
}
