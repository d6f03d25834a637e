//! Sums that a backward function adds to in place: the gradient that a leaf has already, or what another use of the leaf has given in this pass.
//!
//! A gradient that is a matrix product is added by the kernel that multiplies (`beta` = 1), in place of a tensor of its own and a sum
//! behind it. The sum is rounded once where that rounds twice; cuBLASLt may round a product of 16-bit floats before it adds, too. A backward function that has added to a sum returns `None` for the
//! input: nothing is left to be delivered.

use std::cell::RefCell;

use smallvec::SmallVec;

use crate::tensor::Tensor;

/// Sums by the node's inputs.
pub(super) type Sums = SmallVec<[(usize, Tensor); 2]>;

thread_local! {
    /// The sums of the node that this thread runs.
    static SUMS: RefCell<Sums> = RefCell::default();
}

/// Returns the tensor that the gradient of an input of the node that runs may be added to on the current stream: contiguous, of the input's
/// shape. Where the gradient is added, nothing is returned for the input; so at most once.
pub(crate) fn sum_of(input: usize) -> Option<Tensor> {
    SUMS.with_borrow(|sums| sums.iter().find(|(of, _)| *of == input).map(|(_, sum)| sum.clone()))
}

/// Runs a backward function with these sums.
pub(super) fn summing<T>(sums: Sums, function: impl FnOnce() -> T) -> T {
    let former = SUMS.replace(sums);
    let result = function();
    SUMS.set(former);
    result
}
