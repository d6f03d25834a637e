//! The arguments of a loop operator beside its tensors.

use smallvec::SmallVec;
use thalweg_ir::{Category, DType, Scalar, Shape};

/// The points of a loop, where its tensors do not determine them.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Points {
    /// Those of its tensors, or of the results that are given.
    #[default]
    Tensors,
    /// Those of its first tensor, of which these dimensions are reduced.
    Reduced(Shape),
    /// Those of a result of this shape.
    Result(Shape),
}

impl Points {
    /// Returns the dimensions that are reduced.
    pub fn reduced(&self) -> &[usize] {
        if let Self::Reduced(dimensions) = self { dimensions } else { &[] }
    }

    /// Returns the shape of the result, where no tensor determines it.
    pub fn extents(&self) -> &[usize] {
        if let Self::Result(extents) = self { extents } else { &[] }
    }

    /// Returns the integers that a call passes.
    pub fn integers(&self) -> &[usize] {
        match self {
            Self::Tensors => &[],
            Self::Reduced(integers) | Self::Result(integers) => integers,
        }
    }
}

/// The arguments of a loop operator beside its tensors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoopArguments {
    /// The numbers, in the operator's order.
    pub scalars: SmallVec<[Scalar; 4]>,
    /// The points that the loop runs over.
    pub points: Points,
    /// The dtype that the call requests.
    pub dtype: Option<DType>,
}

impl LoopArguments {
    /// Returns the highest category of the numbers.
    pub fn category(&self) -> Category {
        self.scalars.iter().map(|scalar| scalar.category()).max().unwrap_or(Category::Bool)
    }
}
