//! The dispatch of PyTorch's calls to the operators' functions.

use super::libtorch::{Boxed, Stack};
use super::rows::Computation;
use super::table::operators;
use super::{KERNELS, Kernels, Operator};
use super::{adam, channels, copies, embedding, loss, norms, operators, reductions};

/// Defines how calls are run. A function gets the kernels, the operator, PyTorch's own kernel if the operator has one, further
/// arguments and the stack.
macro_rules! run {
    ($($operator:ident = $name:literal $([$original:ident])?: $run:path $(, $argument:expr)*;)*) => {
        impl Operator {
            /// Returns the function that PyTorch calls.
            pub(super) fn boxed(self) -> Boxed {
                match self {
                    $(Self::$operator => {
                        unsafe extern "C-unwind" fn call(words: *mut u64, _arguments: u64, _results: u64) {
                            let kernels = KERNELS.get().expect("kernels are registered once they are there");
                            // SAFETY: PyTorch passes the stack of a call of this operator.
                            unsafe { Operator::$operator.call(kernels, words) }
                        }
                        call
                    })*
                }
            }

            /// Runs a call of PyTorch's.
            ///
            /// # Safety
            /// The words are a stack with the operator's arguments, and room for its results.
            pub(super) unsafe fn call(self, kernels: &Kernels, words: *mut u64) {
                // SAFETY: the caller's promise; each argument is taken once.
                let stack = unsafe { Stack::new(&kernels.torch, words) };
                match self {
                    $(Self::$operator => {
                        $run(kernels, self, $(kernels.originals.$original,)? $($argument,)* &stack);
                    })*
                }
            }
        }
    };
}

operators!(run);
