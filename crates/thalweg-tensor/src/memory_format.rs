//! [`MemoryFormat`]: orders of the dimensions in memory, and tensors that lie in one.

use std::panic::Location;

use thalweg_ir::Shape;
use thalweg_runtime::{Error, Result};

use crate::caller::in_call;
use crate::dispatch::{built_in, call};
use crate::tensor::Tensor;

/// An order of a tensor's dimensions in memory (`torch.memory_format`). The order of the shape, and so of subscripts, is untouched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryFormat {
    /// The order of the shape, the last dimension innermost.
    Contiguous,
    /// Of four dimensions N, C, H, W: the channels C innermost.
    ChannelsLast,
    /// Of five dimensions N, C, D, H, W: the channels C innermost.
    ChannelsLast3d,
}

impl MemoryFormat {
    /// Returns PyTorch's number for it.
    const fn number(self) -> i64 {
        match self {
            Self::Contiguous => 0,
            Self::ChannelsLast => 2,
            Self::ChannelsLast3d => 3,
        }
    }
}

impl Tensor {
    /// Returns the elements with no gaps in a memory format (`torch.Tensor.contiguous(memory_format=)`); the tensor itself where they
    /// lie so. Gradients flow through it. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the format is of another number of dimensions.
    #[track_caller]
    pub fn contiguous_in(&self, format: MemoryFormat) -> Result<Self> {
        call(built_in!("contiguous")?, &[self.into(), format.number().into()], None, Location::caller())
    }

    /// Returns whether the elements lie with no gaps in a memory format (`torch.Tensor.is_contiguous(memory_format=)`).
    ///
    /// # Errors
    /// Those of [`contiguous_in`](Self::contiguous_in).
    #[track_caller]
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> Result<bool> {
        in_call("is_contiguous_in", &[self], Location::caller(), || {
            Ok(match format_order(self.rank(), format.number())? {
                None => self.is_contiguous(),
                Some(order) => self.layout().permute(&order)?.is_contiguous(),
            })
        })
    }
}

/// Returns the order of dimensions, outermost first, of a memory format; `None` where it is that of the shape.
pub(crate) fn format_order(rank: usize, format: i64) -> Result<Option<Shape>> {
    match (format, rank) {
        (0, _) => Ok(None),
        (2, 4) | (3, 5) => Ok(Some(channels_last_order(rank))),
        (2, _) => Err(Error::invalid("required rank 4 tensor to use channels_last format")),
        (3, _) => Err(Error::invalid("required rank 5 tensor to use channels_last_3d format")),
        (1, _) => Err(Error::invalid("preserve memory format is unsupported by the contiguous operator")),
        _ => Err(Error::invalid(format!("{format} is not a memory format"))),
    }
}

/// Returns the order of dimensions, outermost first, of images or volumes whose channels lie behind the places; of two dimensions and more.
pub(crate) fn channels_last_order(rank: usize) -> Shape {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

/// Returns whether channels follow one another in a tensor of two dimensions and more, and not places.
pub(crate) fn is_channels_last(x: &Tensor) -> bool {
    let order = channels_last_order(x.rank());
    !x.is_contiguous() && x.layout().permute(&order).is_ok_and(|moved| moved.is_contiguous())
}
