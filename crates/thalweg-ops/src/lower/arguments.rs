//! The arguments of a loop operator other than its tensors.

use smallvec::SmallVec;
use thalweg_ir::{Category, DType, Scalar, Shape};

/// The points of a loop, which the tensors may not determine.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Points {
    /// The points of the tensors, or of given results.
    #[default]
    Tensors,
    /// The points of the first tensor, of which these dimensions are reduced.
    Reduced(Shape),
    /// The points of a result of this shape.
    Result(Shape),
}

impl Points {
    /// Returns the dimensions that are reduced.
    pub fn reduced(&self) -> &[usize] {
        if let Self::Reduced(dimensions) = self { dimensions } else { &[] }
    }

    /// Returns the shape of the result, if no tensor determines it.
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

/// The arguments of a loop operator other than its tensors.
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
