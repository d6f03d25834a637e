//! [`Schema`]: what a call of a built-in operator must pass, checked before any kernel sees it.

use std::ops::RangeInclusive;

use thalweg_ops::{LoopOp, Sizes};
use thalweg_runtime::{Error, Result};

use crate::dispatch::Arguments;
use crate::tensor::Tensor;

/// How many tensors, numbers and sizes an operator takes, and what the sizes are.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) tensors: RangeInclusive<usize>,
    pub(crate) numbers: RangeInclusive<usize>,
    pub(crate) sizes: Sizes,
}

impl Schema {
    /// Exactly so many tensors and numbers.
    pub(crate) fn new(tensors: usize, numbers: usize, sizes: Sizes) -> Self {
        Self { tensors: tensors..=tensors, numbers: numbers..=numbers, sizes }
    }

    /// The schema of an entry of the table.
    pub(crate) fn of(operator: &LoopOp) -> Self {
        Self::new(operator.input_count, operator.scalars.len(), operator.sizes)
    }

    /// Refuses a call that does not fit.
    pub(crate) fn check(&self, tensors: &[&Tensor], arguments: &Arguments) -> Result<()> {
        let counted = |what: &str, range: &RangeInclusive<usize>, count: usize| {
            if range.contains(&count) {
                return Ok(());
            }
            let wanted = match (range.start(), range.end()) {
                (start, end) if start == end => start.to_string(),
                (start, end) => format!("{start} to {end}"),
            };
            Err(Error::invalid(format!("the operator takes {wanted} {what}, not {count}")))
        };
        counted("tensors", &self.tensors, tensors.len())?;
        counted("numbers", &self.numbers, arguments.scalars.len())?;
        let sizes = arguments.sizes.as_slice();
        match self.sizes {
            Sizes::None => counted("sizes", &(0..=0), sizes.len()),
            Sizes::Shape => Ok(()),
            Sizes::Count => counted("sizes", &(1..=1), sizes.len()),
            Sizes::Numbers(count) => counted("sizes", &(count..=count), sizes.len()),
            Sizes::Dimension => {
                counted("dimensions", &(1..=1), sizes.len())?;
                dimensions(sizes, tensors[0])
            }
            Sizes::Dimensions => dimensions(sizes, tensors[0]),
        }
    }
}

fn dimensions(list: &[usize], tensor: &Tensor) -> Result<()> {
    for (index, &dimension) in list.iter().enumerate() {
        if dimension >= tensor.rank() {
            return Err(Error::invalid(format!(
                "dimension {dimension} is out of range for shape {:?}",
                tensor.shape()
            )));
        }
        if list[..index].contains(&dimension) {
            return Err(Error::invalid(format!("the dimensions {list:?} repeat")));
        }
    }
    Ok(())
}
