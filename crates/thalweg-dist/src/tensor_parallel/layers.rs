//! [`Parallel`]: a module whose computation a plan may divide among ranks; and [`Parallelize`], which such modules implement.

use std::any::Any;
use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_nn::functional::{embedding, linear};
use thalweg_nn::models::gpt2::Conv1D;
use thalweg_nn::module::{Embedding, Entry, EntryMut, Forward, LayerNorm, Linear, Module, RMSNorm};
use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;

use super::placement::{Placement, redistribute};
use super::split::Split;
use super::style::{ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel};
use crate::ProcessGroup;
use crate::functional::dimension;

/// A module that can be wrapped in a [`Parallel`]. Linear layers, embeddings and norms are divided by their styles. For any other
/// module an empty `impl` lets a plan prepare its input and output.
pub trait Parallelize: Forward {
    /// Returns how a style divides a parameter of the module itself; `None` if every rank has the full parameter.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the style does not apply to this kind of module.
    fn split(style: &ParallelStyle, parameter: &str) -> Result<Option<Split>>
    where
        Self: Sized,
    {
        _ = parameter;
        prepared(style)
    }

    /// Returns the result for an input, both with the style's layouts, using the parameters as the style has divided them.
    #[track_caller]
    fn forward_parallel(
        &self,
        input: &Tensor,
        style: &ParallelStyle,
        group: &ProcessGroup,
    ) -> Result<Tensor> {
        _ = (style, group);
        self.forward(input)
    }
}

/// The part of a [`Parallel`] that does not depend on its module, and that a plan changes.
pub(super) struct Slot {
    /// The module's [`Parallelize::split`].
    pub(super) split: fn(&ParallelStyle, &str) -> Result<Option<Split>>,
    pub(super) applied: Option<(ParallelStyle, ProcessGroup)>,
}

/// A module whose computation [`parallelize_module`](super::parallelize_module) may divide among ranks. Until then it behaves as
/// the wrapped module. As a module it always has the same parts under the same names.
pub struct Parallel<M> {
    module: M,
    slot: Slot,
}

impl<M: Parallelize> Parallel<M> {
    /// Wraps a module.
    pub fn new(module: M) -> Self {
        Self { module, slot: Slot { split: M::split, applied: None } }
    }

    /// Returns the module, with this rank's parts of the parameters.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Returns the style, if a plan has set one.
    pub fn style(&self) -> Option<&ParallelStyle> {
        self.slot.applied.as_ref().map(|(style, _)| style)
    }
}

impl<M: Parallelize> From<M> for Parallel<M> {
    fn from(module: M) -> Self {
        Self::new(module)
    }
}

impl<M: Parallelize> Module for Parallel<M> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        self.module.visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        self.module.visit_mut(visitor);
    }

    fn any_mut(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.slot)
    }

    fn type_name(&self) -> &'static str {
        self.module.type_name()
    }
}

impl<M: Parallelize> Forward for Parallel<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let Some((style, group)) = &self.slot.applied else { return self.module.forward(input) };
        at_line(Location::caller(), || match style {
            ParallelStyle::PrepareInput(style) => {
                let (from, to) = (style.input_layouts, style.desired_input_layouts);
                let gradient = if style.reduce_gradient { Placement::Partial } else { to };
                self.module.forward(&redistribute(input, group, from, to, gradient)?)
            }
            ParallelStyle::PrepareOutput(style) => {
                let (from, to) = (style.output_layouts, style.desired_output_layouts);
                redistribute(&self.module.forward(input)?, group, from, to, to)
            }
            style => self.module.forward_parallel(input, style, group),
        })
    }
}

// ---- Columns and rows ---------------------------------------------------------------------------------------------

impl ColwiseParallel {
    /// Returns the full input.
    fn input(&self, input: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let gradient = if self.reduce_gradient { Placement::Partial } else { Placement::Replicate };
        redistribute(input, group, self.input_layouts, Placement::Replicate, gradient)
    }

    /// Returns the output, converted to the layout that the style requests.
    fn output(&self, output: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let to = self.output_layouts;
        redistribute(output, group, Placement::Shard(-1), to, to)
    }
}

impl RowwiseParallel {
    /// Returns this rank's part of the input.
    fn input(&self, input: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let own = Placement::Shard(-1);
        redistribute(input, group, self.input_layouts, own, own)
    }

    /// Returns the sum of all ranks' outputs with a bias, converted to the layout that the style requests.
    fn output(&self, output: &Tensor, bias: Option<&Tensor>, group: &ProcessGroup) -> Result<Tensor> {
        let to = self.output_layouts;
        let sum = redistribute(output, group, Placement::Partial, to, to)?;
        let Some(bias) = bias else { return Ok(sum) };
        let whole = Placement::Replicate;
        let bias = match to {
            Placement::Replicate => bias.clone(),
            Placement::Shard(dim) if dim == -1 || dim + 1 == sum.rank() as i64 => {
                redistribute(bias, group, whole, Placement::Shard(0), Placement::Shard(0))?
            }
            // Each rank adds the bias to different rows.
            Placement::Shard(_) => redistribute(bias, group, whole, whole, Placement::Partial)?,
            // Only one rank adds the bias.
            Placement::Partial => redistribute(bias, group, whole, Placement::Partial, whole)?,
        };
        sum.add(&bias)
    }
}

/// Returns how a style divides the weight and bias of a layer, whose weight has outputs and inputs along the given dimensions;
/// `None` for other styles.
fn split_linear(
    style: &ParallelStyle,
    parameter: &str,
    [outputs, inputs]: [usize; 2],
) -> Option<Result<Option<Split>>> {
    let split = match (style, parameter) {
        (ParallelStyle::Colwise(style), "weight") => Some(Split { dim: outputs, packed: style.packed }),
        (ParallelStyle::Colwise(style), _) => Some(Split { dim: 0, packed: style.packed }),
        (ParallelStyle::Rowwise(_), "weight") => Some(Split { dim: inputs, packed: 1 }),
        (ParallelStyle::Rowwise(_), _) => None,
        _ => return None,
    };
    Some(Ok(split))
}

/// Returns that nothing is divided, if the style only prepares input or output.
fn prepared(style: &ParallelStyle) -> Result<Option<Split>> {
    let layers = match style {
        ParallelStyle::PrepareInput(_) | ParallelStyle::PrepareOutput(_) => return Ok(None),
        ParallelStyle::Sequence(_) => "nn.LayerNorm and nn.RMSNorm",
        ParallelStyle::Colwise(_) | ParallelStyle::Rowwise(_) => "nn.Linear and nn.Embedding",
    };
    Err(invalid!("{} currently only support {layers}!", style.name()))
}

impl Parallelize for Linear {
    fn split(style: &ParallelStyle, parameter: &str) -> Result<Option<Split>> {
        split_linear(style, parameter, [0, 1]).unwrap_or_else(|| prepared(style))
    }

    #[at_line]
    fn forward_parallel(
        &self,
        input: &Tensor,
        style: &ParallelStyle,
        group: &ProcessGroup,
    ) -> Result<Tensor> {
        match style {
            ParallelStyle::Colwise(style) => style.output(&self.forward(&style.input(input, group)?)?, group),
            ParallelStyle::Rowwise(style) => {
                let part = linear(&style.input(input, group)?, &self.weight, None)?;
                style.output(&part, self.bias.as_ref(), group)
            }
            _ => self.forward(input),
        }
    }
}

impl Parallelize for Conv1D {
    fn split(style: &ParallelStyle, parameter: &str) -> Result<Option<Split>> {
        split_linear(style, parameter, [1, 0]).unwrap_or_else(|| prepared(style))
    }

    #[at_line]
    fn forward_parallel(
        &self,
        input: &Tensor,
        style: &ParallelStyle,
        group: &ProcessGroup,
    ) -> Result<Tensor> {
        match style {
            ParallelStyle::Colwise(style) => style.output(&self.forward(&style.input(input, group)?)?, group),
            ParallelStyle::Rowwise(style) => {
                let part = style.input(input, group)?.matmul(&self.weight)?;
                style.output(&part, Some(&self.bias), group)
            }
            _ => self.forward(input),
        }
    }
}

// ---- Embeddings ---------------------------------------------------------------------------------------------------

impl Parallelize for Embedding {
    fn split(style: &ParallelStyle, _: &str) -> Result<Option<Split>> {
        match style {
            ParallelStyle::Colwise(style) => Ok(Some(Split { dim: 1, packed: style.packed })),
            ParallelStyle::Rowwise(_) => Ok(Some(Split { dim: 0, packed: 1 })),
            other => prepared(other),
        }
    }

    #[track_caller]
    fn forward_parallel(
        &self,
        input: &Tensor,
        style: &ParallelStyle,
        group: &ProcessGroup,
    ) -> Result<Tensor> {
        let whole = Placement::Replicate;
        at_line(Location::caller(), || match style {
            ParallelStyle::Colwise(style) => {
                let indices = redistribute(input, group, style.input_layouts, whole, whole)?;
                style.output(&self.forward(&indices)?, group)
            }
            ParallelStyle::Rowwise(style) => {
                let indices = redistribute(input, group, style.input_layouts, whole, whole)?;
                style.output(&own_rows(self, &indices, group)?, None, group)
            }
            _ => self.forward(input),
        })
    }
}

/// Returns the rows for those indices that are in this rank's part of a table, and zeros for the other indices.
fn own_rows(table: &Embedding, indices: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
    let (rank, ranks) = (group.rank() as usize, group.size() as usize);
    let rows = table.weight.shape()[0];
    let (start, last) = ((rank * rows) as i64, rank + 1 == ranks);
    let padding = table.padding_idx.map(|index| index.rem_euclid((rows * ranks) as i64) - start);
    let padding = padding.filter(|index| (0..rows as i64).contains(index));
    let own = indices.sub_scalar(start)?;
    // Indices below the full table are left to the first rank, and those above it to the last, whose lookup then fails as on one
    // GPU.
    let below = (rank > 0).then(|| indices.lt_scalar(start)).transpose()?;
    let beyond = (!last).then(|| indices.ge_scalar(start + rows as i64)).transpose()?;
    let elsewhere = match (below, beyond) {
        (Some(below), Some(beyond)) => below.logical_or(&beyond)?,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return embedding(indices, &table.weight, padding),
    };
    let zero = |like: &Tensor| Tensor::zeros(&[], like.dtype(), like.device());
    let found = embedding(&elsewhere.select_where(&zero(&own)?, &own)?, &table.weight, padding)?;
    elsewhere.unsqueeze(-1)?.select_where(&zero(&found)?, &found)
}

// ---- Norms --------------------------------------------------------------------------------------------------------

impl SequenceParallel {
    /// Returns a parameter that every rank applies to its part of the sequence: its gradient is summed.
    fn parameter(parameter: Option<&Tensor>, group: &ProcessGroup) -> Result<Option<Tensor>> {
        let whole = Placement::Replicate;
        parameter.map(|tensor| redistribute(tensor, group, whole, whole, Placement::Partial)).transpose()
    }
}

/// Returns that nothing is divided, if the style applies to norms.
fn split_norm(style: &ParallelStyle) -> Result<Option<Split>> {
    match style {
        ParallelStyle::Sequence(_) => Ok(None),
        other => prepared(other),
    }
}

/// Checks that the dimension of the sequence exists, and is not normalized.
fn check_sequence(style: &SequenceParallel, input: &Tensor, normalized: usize) -> Result<()> {
    if dimension(input, style.sequence_dim)? + normalized < input.rank() {
        return Ok(());
    }
    Err(invalid!(
        "SequenceParallel: sequence_dim {} of an input of shape {:?} is one that is normalized",
        style.sequence_dim,
        input.shape()
    ))
}

macro_rules! norms {
    ($($norm:ident { $($parameter:ident),* })*) => {$(
        impl Parallelize for $norm {
            fn split(style: &ParallelStyle, _: &str) -> Result<Option<Split>> {
                split_norm(style)
            }

            #[at_line]
            fn forward_parallel(
                &self,
                input: &Tensor,
                style: &ParallelStyle,
                group: &ProcessGroup,
            ) -> Result<Tensor> {
let ParallelStyle::Sequence(style) = style else { return self.forward(input) };
                    check_sequence(style, input, self.normalized_shape.len())?;
                    $(let $parameter = SequenceParallel::parameter(self.$parameter.as_ref(), group)?;)*
                    Self { $($parameter,)* normalized_shape: self.normalized_shape.clone(), eps: self.eps }.forward(input)
            }
        }
    )*};
}

norms! {
    LayerNorm { weight, bias }
    RMSNorm { weight }
}
