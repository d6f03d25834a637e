//! Sums that a backward function adds to in place: the gradient that a leaf has already, or what another use of the leaf has given in this pass.
//!
//! A gradient that is a matrix product is added by the kernel that multiplies (`beta` = 1), in place of a tensor of its own and a sum
//! behind it. The sum is rounded once where that rounds twice; cuBLASLt may round a product of 16-bit floats before it adds, too. A backward function that has added to a sum returns `None` for the
//! input: nothing is left to be delivered.
//!
//! The gradient of a cast of a leaf that autocast has made may be of f32 at once, too, in place of one of 16 bits that the cast's backward function
//! widens: the kernel that sums has it so. PyTorch rounds it to 16 bits in between; here it is as near to the exact one as f32 is.

use smallvec::SmallVec;

use crate::scoped::{Scoped, put, scoped};
use crate::tensor::Tensor;

/// The ways in which a node may give gradients other than as tensors of its inputs' dtypes.
#[derive(Default)]
pub(super) struct Sums {
    /// Sums by the node's inputs.
    pub(super) sums: SmallVec<[(usize, Tensor); 2]>,
    /// The inputs whose gradient may be of f32.
    pub(super) widened: SmallVec<[usize; 4]>,
}

thread_local! {
    /// The sums of the node that this thread runs.
    static SUMS: Scoped<Sums> =
        const { scoped(Sums { sums: SmallVec::new_const(), widened: SmallVec::new_const() }) };
}

/// Returns the tensor that the gradient of an input of the node that runs may be added to on the current stream: contiguous, of the input's
/// shape. Where the gradient is added, nothing is returned for the input; so at most once.
pub(crate) fn sum_of(input: usize) -> Option<Tensor> {
    SUMS.with_borrow(|own| own.sums.iter().find(|(of, _)| *of == input).map(|(_, sum)| sum.clone()))
}

/// Returns whether the gradient of an input of the node that runs may be of f32, whatever the input's dtype: only the cast of a leaf of f32 reads it.
pub(crate) fn is_widened(input: usize) -> bool {
    SUMS.with_borrow(|sums| sums.widened.contains(&input))
}

/// Runs a backward function with these sums.
pub(super) fn summing<T>(sums: Sums, function: impl FnOnce() -> T) -> T {
    let former = put(&SUMS, sums);
    let result = function();
    let _ended = put(&SUMS, former);
    result
}
