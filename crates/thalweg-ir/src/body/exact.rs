//! Casts that do nothing, which compositions are full of: where two operators meet, a value is rounded as memory would hold it.

use half::{bf16, f16};

use super::{Binary, Body, ExprId, Node, Unary};
use crate::DType;

/// The most nodes between a value and those that show that it needs no rounding.
const DEPTH: u32 = 4;

impl Body {
    /// Returns a node of which a cast to this dtype has the same result as one of `value`: the operand of a cast that changed no
    /// number.
    pub(super) fn cast_source(&self, value: ExprId, to: DType) -> ExprId {
        let Node::Cast(source) = self.nodes[value.index()] else { return value };
        let (from, between) = (self.dtype(source), self.dtype(value));
        // Floats become narrow integers in several steps, which depend on the float.
        let is_plain = to == from || to == DType::Bool || to.is_floating_point() && !to.is_float8();
        if is_plain && contains(between, from) || to == from && self.is_exact(source, between, DEPTH) {
            source
        } else {
            value
        }
    }

    /// Returns whether every number that a value can be is one of this dtype.
    fn is_exact(&self, value: ExprId, dtype: DType, depth: u32) -> bool {
        if contains(dtype, self.dtype(value)) {
            return true;
        }
        let is_exact = |operand: ExprId| depth > 0 && self.is_exact(operand, dtype, depth - 1);
        match self.nodes[value.index()] {
            Node::Cast(operand) => contains(self.dtype(value), dtype) && is_exact(operand),
            Node::Unary(Unary::Neg | Unary::Abs, operand) | Node::Detach(operand) => {
                self.dtype(operand).is_floating_point() && is_exact(operand)
            }
            Node::Binary(Binary::Max | Binary::Min, a, b) => is_exact(a) && is_exact(b),
            Node::Select(_, yes, no) => is_exact(yes) && is_exact(no),
            Node::Constant(number) => is_number_of(number.to_f64(), dtype),
            _ => false,
        }
    }
}

/// Returns whether a number is one of a dtype of 16 bits.
fn is_number_of(number: f64, dtype: DType) -> bool {
    match dtype {
        DType::Bf16 => bf16::from_f64(number).to_f64() == number,
        DType::F16 => f16::from_f64(number).to_f64() == number,
        _ => false,
    }
}

/// Returns whether a dtype has every number of another: a cast to it and back changes nothing, but for the bits of a NaN.
fn contains(dtype: DType, other: DType) -> bool {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, U8};
    match other {
        _ if dtype == other => true,
        Bool => !dtype.is_complex() && !dtype.is_float8(),
        U8 | I8 => matches!(dtype, Bf16 | F16 | F32 | F64),
        I16 => matches!(dtype, F32 | F64),
        F16 | Bf16 => matches!(dtype, F32 | F64),
        I32 | F32 => dtype == F64,
        _ => false,
    }
}
