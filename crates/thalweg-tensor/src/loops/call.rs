//! [`LoopCall`]: a call of a loop operator, made from the typed arguments of an operator.

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
pub(crate) use thalweg_ops::lower::{LoopArguments, Points};
use thalweg_ops::{LoopOp, Sizes, Space};
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse_if};

use super::Resolved;
use crate::dispatch::{Argument, Call};
use crate::tensor::Tensor;

/// A call of a loop operator.
#[derive(Clone, Debug)]
pub(crate) struct LoopCall<'a> {
    /// The operator.
    pub operator: &'static LoopOp,
    /// The tensors.
    pub tensors: SmallVec<[&'a Tensor; 4]>,
    /// The other arguments.
    pub arguments: LoopArguments,
    /// The device of tensors and results.
    pub device: &'a Device,
    /// The operator that was called, and the line that called it.
    pub label: Label,
}

impl<'a> LoopCall<'a> {
    /// Makes a loop operator's call from the unchanged arguments of a call: tensors, numbers, sizes, dtype.
    pub(crate) fn of(operator: &'static LoopOp, call: &Call<'a>) -> Result<Self> {
        let mut arguments = LoopArguments::default();
        for argument in call.arguments {
            match *argument {
                Argument::Scalar(number) => arguments.scalars.push(number),
                Argument::Ints(list) => {
                    let integers = unsigned(list)?;
                    arguments.points = match operator.sizes {
                        Sizes::Dimension | Sizes::Dimensions => Points::Reduced(integers),
                        Sizes::None | Sizes::Shape | Sizes::Extents(_) => Points::Result(integers),
                    };
                }
                Argument::DType(dtype) => arguments.dtype = Some(dtype),
                _ => {}
            }
        }
        check_sizes(operator, call.tensors, &arguments.points)?;
        Ok(Self::new(operator, call, call.tensors, arguments))
    }

    /// Makes a loop operator's call, on behalf of another call.
    #[inline]
    pub(crate) fn new(
        operator: &'static LoopOp,
        call: &Call<'a>,
        tensors: &[&'a Tensor],
        arguments: LoopArguments,
    ) -> Self {
        Self {
            operator,
            tensors: SmallVec::from_slice(tensors),
            arguments,
            device: call.device,
            label: call.label,
        }
    }
}

impl LoopCall<'_> {
    /// Returns the inputs that require a gradient, as bits.
    pub(crate) fn wanted(&self) -> u32 {
        let inputs = self.tensors.iter().enumerate();
        inputs
            .filter(|(_, tensor)| tensor.requires_grad() && tensor.dtype().is_differentiable())
            .fold(0, |mask, (input, _)| mask | 1 << input)
    }

    /// Returns whether the gradients of the call read its first tensor.
    pub(crate) fn saves_first_input(&self) -> Result<bool> {
        let wanted = self.wanted();
        let is_differentiable = self.result()?.is_some_and(|(_, dtype)| dtype.is_differentiable());
        if wanted == 0 || !is_differentiable {
            return Ok(false);
        }
        let gradient = Resolved::of(self)?.lowered.gradient(wanted).map_err(Error::invalid)?;
        Ok(gradient.saved_inputs.contains(&0))
    }

    /// Returns shape and dtype of the only result of an elementwise call, or `None` for another call.
    pub(crate) fn result(&self) -> Result<Option<(Shape, DType)>> {
        if self.operator.space != Space::Elementwise || self.operator.outputs.len() != 1 {
            return Ok(None);
        }
        let resolved = Resolved::of(self)?;
        let output = &resolved.lowered.outputs[0];
        Ok(Some((output.layout.shape().into(), output.dtype)))
    }
}

/// Returns integers as extents or dimensions, which are at least 0.
fn unsigned(list: &[i64]) -> Result<Shape> {
    let refuse = |_| {
        invalid!(
            "the integers {list:?} must be at least 0; one of 2⁶³ or more, which is shown as negative, is more elements than can be \
             addressed"
        )
    };
    list.iter().map(|&number| usize::try_from(number).map_err(refuse)).collect()
}

/// Refuses integers that the entry does not accept.
fn check_sizes(operator: &LoopOp, tensors: &[&Tensor], points: &Points) -> Result<()> {
    let integers = points.integers();
    let counted = |what: &str, count: usize| match integers.len() == count {
        true => Ok(()),
        false => Err(invalid!("the operator takes {count} {what}, not {}", integers.len())),
    };
    match operator.sizes {
        Sizes::None => counted("extents", 0),
        Sizes::Shape => Ok(()),
        Sizes::Extents(count) => counted("extents", count),
        Sizes::Dimension => {
            counted("dimensions", 1)?;
            check_dimensions(integers, tensors[0])
        }
        Sizes::Dimensions => check_dimensions(integers, tensors[0]),
    }
}

fn check_dimensions(list: &[usize], tensor: &Tensor) -> Result<()> {
    for (index, &dimension) in list.iter().enumerate() {
        if dimension >= tensor.rank() {
            return Err(Error::index(format!(
                "dimension {dimension} is out of range for shape {:?}",
                tensor.shape()
            )));
        }
        refuse_if!(list[..index].contains(&dimension), "the dimensions {list:?} repeat");
    }
    Ok(())
}
