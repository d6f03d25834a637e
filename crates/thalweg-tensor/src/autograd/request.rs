//! [`Request`]: which gradients a pass requests from a node, and where the node may write them.
//!
//! If a gradient is a matrix product, the kernel that multiplies (`beta` = 1) can add it to an existing sum: the gradient of the
//! leaf, or the gradient from another use of the leaf in this pass. This needs no separate tensor and no addition afterwards. The
//! sum is rounded once instead of twice, although cuBLASLt may also round a product of 16-bit floats before it adds. A backward
//! function that has added to a sum returns `None` for the input: nothing remains to be delivered.
//!
//! The gradient of a leaf's cast by autocast may also be f32 directly, instead of 16 bits that the cast's backward function
//! widens, because the kernel accumulates in f32. PyTorch rounds it to 16 bits in between; here it has the precision of f32.

use smallvec::SmallVec;

use crate::tensor::Tensor;

/// For each edge of a node, whether its gradient is requested.
pub(super) type Asked = SmallVec<[bool; 4]>;

/// The gradients that a pass requests from a node, and the ways in which the node may return them other than as tensors of its
/// inputs' dtypes. The default requests all of them, as tensors, and keeps the saved tensors.
#[derive(Default)]
pub struct Request {
    /// Whether the saved tensors are freed afterwards.
    pub(super) is_last: bool,
    /// The requested edges; `None` is all.
    pub(super) asked: Option<Asked>,
    /// The sums that gradients may be added to, by the node's inputs.
    pub(super) sums: SmallVec<[(usize, Tensor); 2]>,
    /// The inputs whose gradient may be of f32.
    pub(super) widened: SmallVec<[usize; 4]>,
}

impl Request {
    /// Returns whether the pass frees the saved tensors once the node has run: the node may overwrite those that nothing else
    /// holds.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns whether the gradient of an input is requested: a backward function need not compute the others.
    pub fn is_asked(&self, input: usize) -> bool {
        self.asked.as_ref().is_none_or(|asked| asked.get(input).copied().unwrap_or(true))
    }

    /// Returns the tensor that the gradient of an input may be added to on the current stream: contiguous, of the input's shape.
    /// A backward function that adds the gradient returns `None` for the input, so it adds at most once.
    pub(crate) fn sum_of(&self, input: usize) -> Option<&Tensor> {
        self.sums.iter().find(|(of, _)| *of == input).map(|(_, sum)| sum)
    }

    /// Returns whether the gradient of an input may be f32 for any dtype of the input: only the cast of an f32 leaf reads it.
    pub(crate) fn is_widened(&self, input: usize) -> bool {
        self.widened.contains(&input)
    }
}
