//! The memory that a program reads and writes, as typed slices.

use std::cell::Cell;

use crate::elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};
use crate::{DType, Element};

/// Defines the enums over typed slices, with a variant per dtype that has its own element type.
macro_rules! define_slices {
    (
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal $bool_exchange:tt, }
        $($group:ident { $($(#[$doc:meta])* $variant:ident $element:ident $name:literal $exchange:tt,)* })*
    ) => {
        /// Elements that are not written during the run. Bools are bytes of 0 and 1.
        #[derive(Clone, Copy, Debug)]
        pub enum Slice<'a> {
            $($($(#[$doc])* $variant(&'a [$element]),)*)*
        }

        /// Elements that are written, and that other operands of the same run may share. Bools are bytes of 0 and 1.
        #[derive(Clone, Copy, Debug)]
        pub enum Cells<'a> {
            $($($(#[$doc])* $variant(&'a [Cell<$element>]),)*)*
        }

        /// Elements that only one operand reads and writes. Bools are bytes of 0 and 1.
        #[derive(Debug)]
        pub enum SliceMut<'a> {
            $($($(#[$doc])* $variant(&'a mut [$element]),)*)*
        }

        define_slices! { @describe Slice $($($variant)*)* }
        define_slices! { @describe Cells $($($variant)*)* }
        define_slices! { @describe SliceMut $($($variant)*)* }

        impl<'a> Slice<'a> {
            /// Returns the elements of a dtype's own type; `None` if they are of another dtype.
            #[must_use]
            pub fn elements<T: Element>(self) -> Option<&'a [T]> {
                match self {
                    $($(Self::$variant(elements) if T::DTYPE == DType::$variant => Some(bytemuck::cast_slice(elements)),)*)*
                    _ => None,
                }
            }
        }

        impl<'a> SliceMut<'a> {
            /// Returns the elements of a dtype's own type; `None` if they are of another dtype.
            #[must_use]
            pub fn into_elements<T: Element>(self) -> Option<&'a mut [T]> {
                match self {
                    $($(Self::$variant(elements) if T::DTYPE == DType::$variant => Some(bytemuck::cast_slice_mut(elements)),)*)*
                    _ => None,
                }
            }

            /// Returns the elements as cells, which several operands of a run may share.
            #[must_use]
            pub fn into_cells(self) -> Cells<'a> {
                match self {
                    $($(Self::$variant(elements) => elements.into(),)*)*
                }
            }
        }

        $($(define_slices! { @convert $variant $element })*)*
    };
    (@describe $kind:ident $($variant:ident)*) => {
        impl $kind<'_> {
            /// Returns the number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(elements) => elements.len(),)*
                }
            }

            /// Returns whether there are no elements.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the dtype of the elements; [`DType::U8`] for bools too, which have the same representation.
            #[must_use]
            pub fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)*
                }
            }
        }
    };
    (@convert $variant:ident $element:ident) => {
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
    };
}

for_each_dtype! { define_slices }

/// An input: memory shared with no output ([`Slice`]), or memory that overlaps one ([`Cells`]).
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Memory that the run does not write.
    Slice(Slice<'a>),
    /// Memory that the run may write through an output.
    Cells(Cells<'a>),
}

impl Source<'_> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Cells(cells) => cells.len(),
        }
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the dtype of the elements; [`DType::U8`] for bools too.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Slice(slice) => slice.dtype(),
            Self::Cells(cells) => cells.dtype(),
        }
    }
}

/// Returns whether elements of `actual`, the dtype of a slice, represent elements of `wanted`.
pub fn represents(actual: DType, wanted: DType) -> bool {
    actual == wanted || (actual == DType::U8 && wanted == DType::Bool)
}
