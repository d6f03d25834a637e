//! The memory that a program reads and writes, as typed slices.

use std::cell::Cell;

use half::{bf16, f16};

use crate::DType;

/// Elements that nobody writes during the run.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// Bytes, and bools as bytes of 0 and 1.
    U8(&'a [u8]),
    /// 32-bit integers.
    I32(&'a [i32]),
    /// 64-bit integers.
    I64(&'a [i64]),
    /// IEEE 16-bit floats.
    F16(&'a [f16]),
    /// 16-bit brain floats.
    Bf16(&'a [bf16]),
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 64-bit floats.
    F64(&'a [f64]),
}

/// Elements that are written, and that other operands of the same run may share.
#[derive(Clone, Copy, Debug)]
pub enum Cells<'a> {
    /// Bytes, and bools as bytes of 0 and 1.
    U8(&'a [Cell<u8>]),
    /// 32-bit integers.
    I32(&'a [Cell<i32>]),
    /// 64-bit integers.
    I64(&'a [Cell<i64>]),
    /// IEEE 16-bit floats.
    F16(&'a [Cell<f16>]),
    /// 16-bit brain floats.
    Bf16(&'a [Cell<bf16>]),
    /// 32-bit floats.
    F32(&'a [Cell<f32>]),
    /// 64-bit floats.
    F64(&'a [Cell<f64>]),
}

/// Elements that one operand alone reads and writes.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// Bytes, and bools as bytes of 0 and 1.
    U8(&'a mut [u8]),
    /// 32-bit integers.
    I32(&'a mut [i32]),
    /// 64-bit integers.
    I64(&'a mut [i64]),
    /// IEEE 16-bit floats.
    F16(&'a mut [f16]),
    /// 16-bit brain floats.
    Bf16(&'a mut [bf16]),
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 64-bit floats.
    F64(&'a mut [f64]),
}

/// An input: shared with no output ([`Slice`]), or overlapping one ([`Cells`]).
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Memory that the run does not write.
    Slice(Slice<'a>),
    /// Memory that the run may write through an output.
    Cells(Cells<'a>),
}

macro_rules! every_variant {
    ($value:expr, $kind:ident, $elements:ident => $result:expr) => {
        match $value {
            $kind::U8($elements) => $result,
            $kind::I32($elements) => $result,
            $kind::I64($elements) => $result,
            $kind::F16($elements) => $result,
            $kind::Bf16($elements) => $result,
            $kind::F32($elements) => $result,
            $kind::F64($elements) => $result,
        }
    };
}

macro_rules! describe {
    ($($kind:ident)*) => {$(
        impl $kind<'_> {
            /// How many elements there are.
            #[must_use]
            pub fn len(&self) -> usize {
                every_variant!(self, $kind, elements => elements.len())
            }

            /// Whether there is no element.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The dtype of the elements; [`DType::U8`] for bools too, whose representation is the same.
            #[must_use]
            pub fn dtype(&self) -> DType {
                match self {
                    $kind::U8(_) => DType::U8,
                    $kind::I32(_) => DType::I32,
                    $kind::I64(_) => DType::I64,
                    $kind::F16(_) => DType::F16,
                    $kind::Bf16(_) => DType::Bf16,
                    $kind::F32(_) => DType::F32,
                    $kind::F64(_) => DType::F64,
                }
            }
        }
    )*};
}

describe! { Slice Cells SliceMut }

impl Source<'_> {
    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Cells(cells) => cells.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dtype of the elements; [`DType::U8`] for bools too.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Slice(slice) => slice.dtype(),
            Self::Cells(cells) => cells.dtype(),
        }
    }
}

/// Whether elements of `actual`, the dtype of a slice, represent elements of `wanted`.
pub fn represents(actual: DType, wanted: DType) -> bool {
    actual == wanted || (actual == DType::U8 && wanted == DType::Bool)
}

macro_rules! conversions {
    ($($element:ty => $variant:ident;)*) => {$(
        impl<'a> From<&'a [$element]> for Slice<'a> {
            fn from(elements: &'a [$element]) -> Self {
                Self::$variant(elements)
            }
        }

        impl<'a> From<&'a mut [$element]> for SliceMut<'a> {
            fn from(elements: &'a mut [$element]) -> Self {
                Self::$variant(elements)
            }
        }

        impl<'a> From<&'a [Cell<$element>]> for Cells<'a> {
            fn from(elements: &'a [Cell<$element>]) -> Self {
                Self::$variant(elements)
            }
        }

        impl<'a> From<&'a mut [$element]> for Cells<'a> {
            fn from(elements: &'a mut [$element]) -> Self {
                Self::$variant(Cell::from_mut(elements).as_slice_of_cells())
            }
        }

        impl<'a> From<&'a [$element]> for Source<'a> {
            fn from(elements: &'a [$element]) -> Self {
                Self::Slice(elements.into())
            }
        }

        impl<'a> From<&'a [Cell<$element>]> for Source<'a> {
            fn from(elements: &'a [Cell<$element>]) -> Self {
                Self::Cells(elements.into())
            }
        }
    )*};
}

conversions! {
    u8 => U8;
    i32 => I32;
    i64 => I64;
    f16 => F16;
    bf16 => Bf16;
    f32 => F32;
    f64 => F64;
}
