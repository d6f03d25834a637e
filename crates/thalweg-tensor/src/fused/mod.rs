//! Functions of several operators in fewer launches. The rows of [`thalweg_ops::fused`] say what they replace; each file here asks
//! whether the library or a kernel takes the extents. [`decoder`] is not a row: it computes all layers of a model, and writes
//! their caches.
//!
//! `functional::gelu_mlp`, `norm_linear` and `decoder_layers` try these first, and otherwise call the operators one by one.

pub mod decoder;
mod mlp;
mod norm_linear;

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_ops::fused::{self, Extents, Pattern, Precision};
use thalweg_runtime::Result;

pub use self::mlp::fused_mlp;
pub use self::norm_linear::{NormLinear, fused_norm_linear, has_few_rows};
use crate::argument::Argument;
use crate::autocast::{dtype_in_lower, is_taken_as_it_is};
use crate::caller::label_at;
use crate::dispatch::BuiltIn;
use crate::tensor::Tensor;

/// A row of the table, with its operator.
struct Fusion {
    pattern: &'static Pattern,
    operator: BuiltIn,
}

impl Fusion {
    const fn new(pattern: &'static Pattern) -> Self {
        Self { pattern, operator: BuiltIn::new(pattern.fused.operator) }
    }

    /// Returns the result for these inputs and numbers, or `None` if the pattern does not match them or `takes` refuses the
    /// extents and the dtype.
    fn call(
        &self,
        inputs: &[Option<&Tensor>],
        numbers: &[f64],
        takes: impl FnOnce(&Extents, DType) -> bool,
        location: &'static Location<'static>,
    ) -> Result<Option<Tensor>> {
        let pattern = self.pattern;
        let Some(dtype) = dtype_of(pattern.precision, inputs) else { return Ok(None) };
        let Some(extents) = pattern.extents(inputs.iter().map(|input| input.map(Tensor::shape))) else {
            return Ok(None);
        };
        if !takes(&extents, dtype) {
            return Ok(None);
        }
        let argument = |argument: &fused::Argument| match *argument {
            fused::Argument::Input(input) => inputs[input].into(),
            fused::Argument::Number(number) => numbers[number].into(),
            fused::Argument::Flag(flag) => flag.into(),
            fused::Argument::Text(text) => text.into(),
            fused::Argument::None => Argument::None,
            fused::Argument::Result(_) | fused::Argument::Extents(_) => {
                unreachable!("the call that replaces others takes inputs and numbers")
            }
        };
        let arguments: SmallVec<[Argument<'_>; 8]> = pattern.fused.arguments.iter().map(argument).collect();
        let mut results = self.operator.get()?.call(&arguments, None, label_at(pattern.name, location))?;
        Ok(Some(results.swap_remove(0)))
    }
}

/// Returns the dtype in which inputs are taken, if they are.
fn dtype_of(precision: Precision, inputs: &[Option<&Tensor>]) -> Option<DType> {
    let mut tensors = inputs.iter().flatten();
    let first = inputs.iter().flatten().next()?;
    let (dtype, is_taken) = match precision {
        Precision::Lower(dtypes) => {
            let dtype = dtype_in_lower(first);
            (dtype, dtypes.contains(&dtype) && tensors.all(|tensor| dtype_in_lower(tensor) == dtype))
        }
        Precision::AsItIs => {
            let (dtype, device) = (first.dtype(), first.device());
            (dtype, tensors.all(|tensor| is_taken_as_it_is(tensor, dtype, device)))
        }
    };
    is_taken.then_some(dtype)
}
