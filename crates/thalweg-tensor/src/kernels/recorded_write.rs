//! Writes in place that gradients flow through.
//!
//! A tensor that is written becomes the result of a node whose inputs are its former value and the value that was written. For a
//! view, its base becomes that result: the node covers the memory of the base and stores the region that was written
//! (`CopySlices` of PyTorch). Views that are used afterwards are read from the base's new history.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape, inverse_order};
use thalweg_runtime::{Error, Label, Result, invalid};

use super::indexing::index_copy;
use crate::autograd::{Backward, Edge, Gradients, Node, Region, Saved, ViewOf};
use crate::dispatch::{Argument, built_in};
use crate::tensor::Tensor;

/// The effect of a write in place on the region that it wrote.
pub(crate) enum Write {
    /// All elements are the source's, broadcast and converted.
    Copy {
        /// The source's shape.
        shape: Shape,
        /// The source's dtype.
        dtype: DType,
    },
    /// The slices at these indices of a dimension are the source's.
    IndexCopy {
        /// The dimension.
        dimension: usize,
        /// The indices, of one dimension.
        index: Saved,
        /// The operator that wrote.
        label: Label,
    },
}

impl Write {
    const fn name(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copy_",
            Self::IndexCopy { .. } => "index_copy_",
        }
    }

    /// Computes, from the gradient of the region, that of its former value (`None` if it was overwritten completely) and that of
    /// the source.
    fn gradients(&self, gradient: &Tensor) -> Result<(Option<Tensor>, Tensor)> {
        match self {
            Self::Copy { shape, dtype } => Ok((None, gradient.sum_to_shape(shape)?.to_dtype(*dtype)?)),
            Self::IndexCopy { dimension, index, label } => {
                let index = index.get()?;
                let mut shape: Shape = gradient.shape().into();
                shape[*dimension] = index.elements();
                let zeros = Tensor::zeros(&[], gradient.dtype(), gradient.device())?.expand(&shape)?;
                let before = gradient.copied(label.location)?;
                index_copy(&before, *dimension, &index, &zeros, *label)?;
                // The slices at the indices become the rows of a table.
                let mut order: Shape = (0..gradient.rank()).collect();
                order[..=*dimension].rotate_right(1);
                let moved = gradient.permute(&order)?;
                let columns: usize = moved.shape()[1..].iter().product();
                let table = moved.reshape(&[moved.shape()[0], columns])?;
                let rows = built_in!("thalweg::embedding")?.call(
                    &[Argument::Tensor(&table), Argument::Tensor(&index)],
                    None,
                    *label,
                )?;
                let shape: Shape =
                    [index.elements()].into_iter().chain(moved.shape()[1..].iter().copied()).collect();
                Ok((Some(before), rows[0].reshape(&shape)?.permute(&inverse_order(&order))?))
            }
        }
    }

    fn release(&self) {
        if let Self::IndexCopy { index, .. } = self {
            index.release();
        }
    }
}

/// A write that is about to happen.
pub(crate) struct Recording {
    /// The tensor whose history changes.
    whole: Tensor,
    /// The written region of its elements; `None` if it is all of them.
    region: Option<Region>,
    edges: SmallVec<[Option<Edge>; 4]>,
}

impl Recording {
    /// Determines whether a write of `source` into `target` is recorded, and how.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the target is a leaf that requires a gradient or a view of one, if it is a view whose
    /// base autograd does not know, or if it is an inference tensor outside inference mode.
    pub(crate) fn new(target: &Tensor, source: &Tensor) -> Result<Option<Self>> {
        if !target.is_write_recorded(source.requires_grad())? {
            return Ok(None);
        }
        let base = target.0.autograd.view_of().and_then(ViewOf::base);
        if base.is_some_and(|base| base.layout().may_overlap()) {
            return Err(invalid!(
                "{target:?} is a view of an expanded tensor, and such a write cannot be recorded; make it contiguous first"
            ));
        }
        let whole = base.unwrap_or(target).clone();
        let region = base.map(|base| Region::new(target, base)).transpose()?;
        let edges = [whole.gradient_edge(), source.gradient_edge()].into_iter().collect();
        Ok(Some(Self { whole, region, edges }))
    }

    /// Records the write, which has happened.
    pub(crate) fn record(self, write: Write) {
        let stream = self.whole.device().current_stream();
        let wanted = [0, 1].map(|input| self.edges[input].is_some());
        let function = Box::new(WriteBackward { write, region: self.region, wanted });
        let node = Node::new(function, self.edges, 1, stream, None);
        self.whole.set_history(Edge { node, input: 0 });
    }
}

struct WriteBackward {
    write: Write,
    region: Option<Region>,
    /// Whether there is a gradient of the former value, and of the source.
    wanted: [bool; 2],
}

impl Backward for WriteBackward {
    fn name(&self) -> &'static str {
        self.write.name()
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let mut results = Gradients::from_elem(None, 2);
        let Some(gradient) = &gradients[0] else { return Ok(results) };
        let (before, source) = match &self.region {
            None => {
                let (before, source) = self.write.gradients(gradient)?;
                let is_left_out = before.is_none() && self.wanted[0];
                let zeros = || Tensor::zeros(gradient.shape(), gradient.dtype(), gradient.device());
                (if is_left_out { Some(zeros()?) } else { before }, source)
            }
            Some(region) => {
                let [whole, part] = region.zeros(gradient)?;
                whole.copy_(gradient)?;
                let (before, source) = self.write.gradients(&part)?;
                // If the gradient is the part itself, it is read before the part is written.
                let source = match source.shares_storage_with(&whole) {
                    true => source.copied(Location::caller())?,
                    false => source,
                };
                match before {
                    Some(before) => part.copy_(&before)?,
                    None => part.copy_(&Tensor::zeros(&[], whole.dtype(), whole.device())?)?,
                }
                (Some(whole), source)
            }
        };
        results[0] = before.filter(|_| self.wanted[0]);
        results[1] = self.wanted[1].then_some(source);
        Ok(results)
    }

    fn release(&self) {
        self.write.release();
    }
}
