//! The kernel for complex numbers, above autograd, which the operator's entry selects ([`Complex`]).

use std::cell::Cell;
use std::sync::Arc;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};

use super::definition::{Body, Complex, OpDef};
use super::{BuiltIn, KernelFunction};
use crate::caller::enter;
use crate::dtype_name::named;

/// Returns the kernel of an operator for complex numbers; `None` if its ordinary kernels take them.
pub(super) fn of(definition: &OpDef) -> Option<KernelFunction> {
    match (definition.complex, definition.body) {
        (Complex::Taken, _) => None,
        (Complex::Parts(by_parts), _) => Some(Arc::new(move |call| {
            let _entered = enter(call.label.location);
            by_parts(call)
        })),
        (Complex::Operator(name), _) => {
            let operator = BuiltIn::new(name);
            Some(Arc::new(move |call| operator.get()?.call(call.arguments, None, call.label)))
        }
        (_, Body::Composite(_)) => Some(Arc::new(|call| {
            let _made_of_others = Conversions::refused_by(call.operator.base_name());
            call.redispatch()
        })),
        (_, Body::Kernel(_) | Body::Differentiable(..) | Body::Pair(..)) => Some(Arc::new(|call| {
            let dtype = call.tensors.iter().map(|tensor| tensor.dtype()).find(|dtype| dtype.is_complex());
            Err(not_for(call.operator.base_name(), dtype.unwrap_or(DType::C64)))
        })),
        _ => None,
    }
}

/// Returns PyTorch's refusal of complex numbers.
fn not_for(operator: &str, dtype: DType) -> Error {
    Error::not_implemented(format!("\"{operator}\" not implemented for '{}'", named(dtype)))
}

thread_local! {
    /// The composite operator that this thread runs on complex numbers, if it is not a conversion.
    static MADE_OF_OTHERS: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// A guard that makes losing imaginary parts an error while it exists. It covers an operator made of other operators: if that
/// operator converts its input to a real dtype, it was not written for complex numbers.
struct Conversions {
    former: Option<&'static str>,
}

impl Conversions {
    fn refused_by(operator: &'static str) -> Self {
        let former = MADE_OF_OTHERS.get();
        MADE_OF_OTHERS.set(former.or(Some(operator)));
        Self { former }
    }
}

impl Drop for Conversions {
    fn drop(&mut self) {
        MADE_OF_OTHERS.set(self.former);
    }
}

/// Refuses a conversion that loses imaginary parts inside an operator that is not a conversion.
pub(crate) fn check_conversion(from: DType, to: DType) -> Result<()> {
    match MADE_OF_OTHERS.get() {
        Some(operator) if from.is_complex() && !to.is_complex() && to != DType::Bool => {
            Err(not_for(operator, from))
        }
        _ => Ok(()),
    }
}
