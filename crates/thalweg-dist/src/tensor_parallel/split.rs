//! [`Split`]: the part of a parameter that a rank has.

use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::{Tensor, no_grad};

use crate::ProcessGroup;
use crate::functional::all_gather_tensor;

/// A dimension of a parameter that is divided among the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// The dimension.
    pub dim: usize,
    /// The number of equal consecutive pieces of the tensor. Every rank has a part of each piece.
    pub packed: usize,
}

impl Split {
    /// Returns the size of one rank's part of one piece.
    pub(super) fn part(&self, name: &str, shape: &[usize], ranks: usize) -> Result<usize> {
        let (size, pieces) = (shape.get(self.dim).copied().unwrap_or(1), self.packed);
        let each = if pieces > 0 && size.is_multiple_of(pieces) { size / pieces } else { 0 };
        if each > 0 && each.is_multiple_of(ranks) {
            return Ok(each / ranks);
        }
        let packed = if pieces == 1 { String::new() } else { format!("each of the {pieces} parts of ") };
        Err(invalid!(
            "parallelize_module: {packed}dimension {} of `{name}`, of shape {shape:?}, must be divisible by the mesh size {ranks}",
            self.dim
        ))
    }

    /// Returns a copy of this rank's part of a full tensor.
    pub(super) fn local(&self, name: &str, whole: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let (dim, rank) = (self.dim, group.rank() as usize);
        let part = self.part(name, whole.shape(), group.size() as usize)?;
        let mut split = whole.shape().to_vec();
        let mut shape = split.clone();
        shape[dim] = self.packed * part;
        split[dim] /= self.packed;
        split.insert(dim, self.packed);
        let own = whole.reshape(&split)?.narrow(dim as i64 + 1, rank * part, part)?.reshape(&shape)?;
        // For dimension 0 this may be a view, which must not keep the full tensor alive.
        let copy = own.empty_like()?;
        copy.copy_(&own)?;
        Ok(copy)
    }

    /// Returns the full tensor from all ranks' parts.
    pub(super) fn whole(&self, local: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let ranks = group.size() as usize;
        let gathered = no_grad(|| all_gather_tensor(local, self.dim as i64, group))?;
        if self.packed == 1 {
            return Ok(gathered);
        }
        // The order here is ranks, pieces, parts; in the full tensor pieces are first.
        let shape = gathered.shape();
        let part = local.shape()[self.dim] / self.packed;
        let split = [&shape[..self.dim], &[ranks, self.packed, part], &shape[self.dim + 1..]].concat();
        let mut order: Vec<usize> = (0..split.len()).collect();
        order.swap(self.dim, self.dim + 1);
        gathered.reshape(&split)?.permute(&order)?.reshape(shape)
    }
}
