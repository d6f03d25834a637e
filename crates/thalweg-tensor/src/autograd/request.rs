//! [`Request`]: which gradients a pass asks a node for, and where they may go.
//!
//! A gradient that is a matrix product is added by the kernel that multiplies (`beta` = 1) to what is there already: the gradient of the leaf, or what
//! another use of the leaf has given in this pass. No tensor of its own is needed, and no sum after it. The sum is rounded once where that rounds twice;
//! cuBLASLt may round a product of 16-bit floats before it adds, too. A backward function that has added to a sum returns `None` for the
//! input: nothing is left to be delivered.
//!
//! The gradient of a cast of a leaf that autocast has made may be of f32 at once, too, in place of one of 16 bits that the cast's backward function
//! widens: the kernel that sums has it so. PyTorch rounds it to 16 bits in between; here it is as near to the exact one as f32 is.

use smallvec::SmallVec;

use crate::tensor::Tensor;

/// Of each edge of a node, whether its gradient is asked for.
pub(super) type Asked = SmallVec<[bool; 4]>;

/// The gradients that a pass asks a node for, and the ways in which the node may give them other than as tensors of its inputs' dtypes.
/// The default asks for all of them, as tensors, and keeps what was saved.
#[derive(Default)]
pub struct Request {
    /// Whether what was saved is freed afterwards.
    pub(super) is_last: bool,
    /// The edges that are asked for; `None` is all.
    pub(super) asked: Option<Asked>,
    /// Sums by the node's inputs.
    pub(super) sums: SmallVec<[(usize, Tensor); 2]>,
    /// The inputs whose gradient may be of f32.
    pub(super) widened: SmallVec<[usize; 4]>,
}

impl Request {
    /// Returns whether the pass frees what was saved once the node has run: the node may write over it, where nothing else holds it.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns whether the gradient of an input is asked for: a backward function need not compute the others.
    pub fn is_asked(&self, input: usize) -> bool {
        self.asked.as_ref().is_none_or(|asked| asked.get(input).copied().unwrap_or(true))
    }

    /// Returns the tensor that the gradient of an input may be added to on the current stream: contiguous, of the input's shape. Where the
    /// gradient is added, nothing is returned for the input; so at most once.
    pub(crate) fn sum_of(&self, input: usize) -> Option<&Tensor> {
        self.sums.iter().find(|(of, _)| *of == input).map(|(_, sum)| sum)
    }

    /// Returns whether the gradient of an input may be of f32, whatever the input's dtype: only the cast of a leaf of f32 reads it.
    pub(crate) fn is_widened(&self, input: usize) -> bool {
        self.widened.contains(&input)
    }
}
