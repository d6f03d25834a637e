//! [`MemoryFormat`]: orders of the dimensions in memory, and tensors that lie in one.

use std::panic::Location;

use thalweg_runtime::Result;

use crate::caller::in_call;
use crate::dispatch::built_in;
use crate::operators::{call, format_order};
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
