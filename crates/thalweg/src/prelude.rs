//! The names that most programs need: `use thalweg::prelude::*;`.
//!
//! ```
//! use thalweg::prelude::*;
//!
//! fn main() -> Result<()> {
//!     let x = Tensor::ones(&[2, 3], DType::F32, &Device::sim(0)?)?;
//!     assert_eq!(x.reshape(&[-1])?.shape(), [6]);
//!     Ok(())
//! }
//! ```

pub use crate::dispatch::find_operator;
#[cfg(feature = "nn")]
pub use crate::functional::{self, ConvOptions};
#[cfg(feature = "nn")]
pub use crate::module::{
    BatchNorm2d, BatchNormOptions, Conv2d, Dropout, Embedding, Forward, GELU, LayerNorm, Linear, Module,
    ReLU, Sequential, SiLU, Sigmoid, Tanh,
};
#[cfg(feature = "nn")]
pub use crate::optim::{Adam, AdamOptions, AdamW, AdamWOptions, LrScheduler, Sgd, SgdOptions};
pub use crate::random::{Generator, default_generator};
pub use crate::{
    DType, Device, Error, Event, Graph, Index, Result, Scalar, Stream, Tensor, i, no_grad, try_no_grad,
};
