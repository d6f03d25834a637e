//! [`MemoryFormat`]: orders of the dimensions in memory, and tensors laid out in one.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_ir::{DType, Layout, Shape, inverse_order};
use thalweg_runtime::{Error, Label, Result, Stream, invalid};

use crate::dispatch::{built_in, call};
use crate::tensor::Tensor;

/// An order of a tensor's dimensions in memory (`torch.memory_format`). The order of the shape, and so of subscripts, does not
/// change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryFormat {
    /// The order of the shape, the last dimension innermost.
    Contiguous,
    /// For four dimensions N, C, H, W: the channels C innermost.
    ChannelsLast,
    /// For five dimensions N, C, D, H, W: the channels C innermost.
    ChannelsLast3d,
}

impl MemoryFormat {
    /// Returns PyTorch's number of the format.
    const fn number(self) -> i64 {
        match self {
            Self::Contiguous => 0,
            Self::ChannelsLast => 2,
            Self::ChannelsLast3d => 3,
        }
    }
}

impl Tensor {
    /// Returns the elements in a memory format without gaps (`torch.Tensor.contiguous(memory_format=)`); the tensor itself if
    /// they already are. Gradients flow through it. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the format is for another number of
    /// dimensions.
    #[track_caller]
    pub fn contiguous_in(&self, format: MemoryFormat) -> Result<Self> {
        call(built_in!("contiguous")?, &[self.into(), format.number().into()], None, Location::caller())
    }

    /// Returns whether the elements are in a memory format without gaps (`torch.Tensor.is_contiguous(memory_format=)`).
    #[in_call("is_contiguous_in", &[self])]
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> Result<bool> {
        Ok(match format_order(self.rank(), format.number())? {
            None => self.is_contiguous(),
            Some(order) => self.layout().permute(&order)?.is_contiguous(),
        })
    }
}

/// Returns the order of dimensions, outermost first, of a memory format; `None` if it is the order of the shape.
pub(crate) fn format_order(rank: usize, format: i64) -> Result<Option<Shape>> {
    match (format, rank) {
        (0, _) => Ok(None),
        (2, 4) | (3, 5) => Ok(Some(channels_last_order(rank))),
        (2, _) => Err(invalid!("required rank 4 tensor to use channels_last format")),
        (3, _) => Err(invalid!("required rank 5 tensor to use channels_last_3d format")),
        (1, _) => Err(invalid!("preserve memory format is unsupported by the contiguous operator")),
        _ => Err(invalid!("{format} is not a memory format")),
    }
}

/// Returns the order of dimensions, outermost first, for images or volumes with the channels last, of two or more dimensions.
pub(crate) fn channels_last_order(rank: usize) -> Shape {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

/// Returns whether the channels are innermost in a tensor of two or more dimensions.
pub(crate) fn is_channels_last(x: &Tensor) -> bool {
    let order = channels_last_order(x.rank());
    !x.is_contiguous() && x.layout().permute(&order).is_ok_and(|moved| moved.is_contiguous())
}

/// Returns the view of a tensor whose channels are its last dimension, with the channels before the axes.
pub(crate) fn from_last(tensor: &Tensor) -> Result<Tensor> {
    let rank = tensor.rank();
    let dims: Shape = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    tensor.permute(&dims)
}

/// Returns the elements without gaps in an order of dimensions, outermost first; the tensor itself if they already are.
pub(crate) fn in_order(tensor: &Tensor, order: &[usize]) -> Result<Tensor> {
    match tensor.layout().permute(order)?.is_contiguous() {
        true => Ok(tensor.clone()),
        false => tensor.permute(order)?.contiguous()?.permute(&inverse_order(order)),
    }
}

/// Returns the elements without gaps, in the order of the shape or with the channels innermost.
pub(crate) fn laid_out(tensor: &Tensor, channels_last: bool) -> Result<Tensor> {
    match channels_last {
        true => in_order(tensor, &channels_last_order(tensor.rank())),
        false => tensor.contiguous(),
    }
}

/// Returns a result of an operator without gaps, in the order of the shape or with the channels innermost: offered memory, if there is
/// any of that order.
pub(crate) fn empty_in(
    shape: &[usize],
    dtype: DType,
    (channels_last, stream): (bool, &Stream),
    label: Label,
) -> Result<Tensor> {
    if !channels_last {
        return Tensor::result_on(shape, dtype, stream, label);
    }
    let order = channels_last_order(shape.len());
    let last: Shape = order.iter().map(|&dim| shape[dim]).collect();
    let layout = Layout::contiguous(&last).permute(&inverse_order(&order))?;
    match Tensor::offered(&layout, dtype, stream) {
        Some(offered) => Ok(offered),
        None => from_last(&Tensor::empty_on(&last, dtype, stream, label)?),
    }
}
