//! Element types. The table at the top of this file is the only list of them: everything that the crates need about a dtype
//! follows from its line there and from its Rust type.

use std::fmt;
use std::str::FromStr;

use elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};

/// Calls a macro with any given tokens followed by the table of dtypes. A row has the dtype's documentation, its variant of
/// [`DType`], the Rust type of an element, PyTorch's name, and the fields of its [`Exchange`]. The groups are:
/// - `bool`: truth values, whose elements are bytes of 0 and 1;
/// - `integer`: arithmetic wraps around;
/// - `reduced`: floats of 8 and 16 bits, which are loaded, stored and cast; arithmetic is done in f32;
/// - `float`: floats with arithmetic of their own;
/// - `complex`: a real and an imaginary part next to each other, with the arithmetic of complex numbers: no order, no functions
///   of floats.
macro_rules! for_each_dtype {
    ($then:ident $($before:tt)*) => {
        $then! {
            $($before)*
            bool {
                /// One byte, 0 or 1.
                Bool u8 "bool" { scalar_type: "Bool", has_classes: true, cpp: "bool", plain_cpp: "bool",
                    safetensors: Some("BOOL"), dlpack: 6, buffer: Some("?"), array: Some("b1") },
            }
            integer {
                /// Unsigned 8-bit integers.
                U8 u8 "uint8" { scalar_type: "Byte", has_classes: true, cpp: "uint8_t", plain_cpp: "unsigned char",
                    safetensors: Some("U8"), dlpack: 1, buffer: Some("B"), array: Some("u1") },
                /// Signed 8-bit integers.
                I8 i8 "int8" { scalar_type: "Char", has_classes: true, cpp: "int8_t", plain_cpp: "signed char",
                    safetensors: Some("I8"), dlpack: 0, buffer: Some("b"), array: Some("i1") },
                /// Signed 16-bit integers.
                I16 i16 "int16" { scalar_type: "Short", has_classes: true, cpp: "int16_t", plain_cpp: "short int",
                    safetensors: Some("I16"), dlpack: 0, buffer: Some("h"), array: Some("i2") },
                /// Unsigned 16-bit integers.
                U16 u16 "uint16" { scalar_type: "UInt16", has_classes: false, cpp: "uint16_t", plain_cpp: "short unsigned int",
                    safetensors: Some("U16"), dlpack: 1, buffer: Some("H"), array: Some("u2") },
                /// Signed 32-bit integers.
                I32 i32 "int32" { scalar_type: "Int", has_classes: true, cpp: "int", plain_cpp: "int",
                    safetensors: Some("I32"), dlpack: 0, buffer: Some("i"), array: Some("i4") },
                /// Signed 64-bit integers.
                I64 i64 "int64" { scalar_type: "Long", has_classes: true, cpp: "int64_t", plain_cpp: "long int",
                    safetensors: Some("I64"), dlpack: 0, buffer: Some("q"), array: Some("i8") },
            }
            reduced {
                /// 8-bit floats with 4 bits of exponent, no infinities and numbers up to 448, for storage.
                F8E4m3 f8e4m3 "float8_e4m3fn" { scalar_type: "Float8_e4m3fn", has_classes: false, cpp: "c10::Float8_e4m3fn", plain_cpp: "c10::Float8_e4m3fn",
                    safetensors: Some("F8_E4M3"), dlpack: 10, buffer: None, array: None },
                /// 8-bit floats with 5 bits of exponent, for storage.
                F8E5m2 f8e5m2 "float8_e5m2" { scalar_type: "Float8_e5m2", has_classes: false, cpp: "c10::Float8_e5m2", plain_cpp: "c10::Float8_e5m2",
                    safetensors: Some("F8_E5M2"), dlpack: 12, buffer: None, array: None },
                /// IEEE 16-bit floats.
                F16 f16 "float16" { scalar_type: "Half", has_classes: true, cpp: "c10::Half", plain_cpp: "c10::Half",
                    safetensors: Some("F16"), dlpack: 2, buffer: Some("e"), array: Some("f2") },
                /// 16-bit brain floats.
                Bf16 bf16 "bfloat16" { scalar_type: "BFloat16", has_classes: true, cpp: "c10::BFloat16", plain_cpp: "c10::BFloat16",
                    safetensors: Some("BF16"), dlpack: 4, buffer: None, array: Some("V2") },
            }
            float {
                /// 32-bit floats.
                F32 f32 "float32" { scalar_type: "Float", has_classes: true, cpp: "float", plain_cpp: "float",
                    safetensors: Some("F32"), dlpack: 2, buffer: Some("f"), array: Some("f4") },
                /// 64-bit floats.
                F64 f64 "float64" { scalar_type: "Double", has_classes: true, cpp: "double", plain_cpp: "double",
                    safetensors: Some("F64"), dlpack: 2, buffer: Some("d"), array: Some("f8") },
            }
            complex {
                /// Complex numbers of two 32-bit floats.
                C64 c64 "complex64" { scalar_type: "ComplexFloat", has_classes: true, cpp: "c10::complex<float>", plain_cpp: "c10::complex<float>",
                    safetensors: Some("C64"), dlpack: 5, buffer: Some("Zf"), array: Some("c8") },
                /// Complex numbers of two 64-bit floats.
                C128 c128 "complex128" { scalar_type: "ComplexDouble", has_classes: true, cpp: "c10::complex<double>", plain_cpp: "c10::complex<double>",
                    safetensors: None, dlpack: 5, buffer: Some("Zd"), array: Some("c16") },
            }
        }
    };
}

/// The Rust types of elements, as [`with_dtype!`](crate::with_dtype) names them.
#[doc(hidden)]
pub mod elements {
    pub use crate::complex::{c64, c128};
    pub use crate::float8::{f8e4m3, f8e5m2};
    pub use core::primitive::{f32, f64, i8, i16, i32, i64, u8, u16};
    pub use half::{bf16, f16};
}

/// The kind of a dtype's numbers. The order is that of promotion: the operand with the later category decides the result's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Category {
    /// Truth values.
    Bool,
    /// Integers.
    Integer,
    /// Floating-point numbers.
    FloatingPoint,
    /// Complex numbers.
    Complex,
}

/// The names and codes by which PyTorch, files and other libraries know a dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// The name of PyTorch's scalar type (`Short`), in its messages and in the names of its classes.
    pub scalar_type: &'static str,
    /// Whether PyTorch has classes of storages, and of tensors that are not complex, for the dtype (`ShortStorage`, `ShortTensor`).
    pub has_classes: bool,
    /// The C++ type in PyTorch's messages about numbers.
    pub cpp: &'static str,
    /// The C++ type in PyTorch's messages about `out` tensors: without aliases.
    pub plain_cpp: &'static str,
    /// The name in files of the format `safetensors`; `None` if the format has no such elements.
    pub safetensors: Option<&'static str>,
    /// DLPack's code of the kind of numbers (`DLDataTypeCode`); [`DType::size_bytes`] has the bits.
    pub dlpack: u8,
    /// The format of an element in Python's buffer protocol, if it has one. Integers are those of a fixed size (`i`, `q`, not `l`).
    pub buffer: Option<&'static str>,
    /// Kind and bytes in the array interface of NumPy and of CUDA libraries (`i2`), if it has such a type.
    pub array: Option<&'static str>,
}

/// Makes the [`Exchange`] of a row.
macro_rules! exchange {
    ({ $($field:ident: $value:expr),* $(,)? }) => { Exchange { $($field: $value),* } };
}

/// Defines [`DType`] and the methods that follow from its table.
macro_rules! define_dtypes {
    (
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal $bool_exchange:tt, }
        integer { $($(#[$integer_doc:meta])* $integer:ident $integer_element:ident $integer_name:literal $integer_exchange:tt,)* }
        reduced { $($(#[$reduced_doc:meta])* $reduced:ident $reduced_element:ident $reduced_name:literal $reduced_exchange:tt,)* }
        float { $($(#[$float_doc:meta])* $float:ident $float_element:ident $float_name:literal $float_exchange:tt,)* }
        complex { $($(#[$complex_doc:meta])* $complex:ident $complex_element:ident $complex_name:literal $complex_exchange:tt,)* }
    ) => {
        /// The type of a tensor's elements, by PyTorch's names.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum DType {
            $(#[$bool_doc])* $bool,
            $($(#[$integer_doc])* $integer,)*
            $($(#[$reduced_doc])* $reduced,)*
            $($(#[$float_doc])* $float,)*
            $($(#[$complex_doc])* $complex,)*
        }

        impl DType {
            /// Every dtype: bool, then integers, then floats, then complex numbers.
            pub const ALL: [Self; [
                $bool_name $(, $integer_name)* $(, $reduced_name)* $(, $float_name)* $(, $complex_name)*
            ].len()] = [
                Self::$bool $(, Self::$integer)* $(, Self::$reduced)* $(, Self::$float)* $(, Self::$complex)*
            ];

            /// Returns the size of an element in bytes.
            pub const fn size_bytes(self) -> usize {
                match self {
                    Self::$bool => size_of::<$bool_element>(),
                    $(Self::$integer => size_of::<$integer_element>(),)*
                    $(Self::$reduced => size_of::<$reduced_element>(),)*
                    $(Self::$float => size_of::<$float_element>(),)*
                    $(Self::$complex => size_of::<$complex_element>(),)*
                }
            }

            /// Returns the category: truth values, integers, floating-point or complex numbers.
            pub const fn category(self) -> Category {
                match self {
                    Self::$bool => Category::Bool,
                    $(Self::$integer)|* => Category::Integer,
                    $(Self::$reduced)|* | $(Self::$float)|* => Category::FloatingPoint,
                    $(Self::$complex)|* => Category::Complex,
                }
            }

            /// Returns whether the dtype has negative numbers (`torch.is_signed`).
            pub const fn is_signed(self) -> bool {
                match self {
                    Self::$bool => false,
                    $(Self::$integer => $integer_element::MIN != 0,)*
                    $(Self::$reduced)|* | $(Self::$float)|* | $(Self::$complex)|* => true,
                }
            }

            /// Returns the type in which arithmetic on elements of this type is done (PyTorch's `opmath_t`): f32 for floats of 8 and
            /// 16 bits, the type itself otherwise.
            pub const fn compute(self) -> Self {
                match self {
                    $(Self::$reduced)|* => Self::F32,
                    other => other,
                }
            }

            /// Returns the integer type through which a float is converted to this type, so that the low bits of a number beyond a
            /// narrow type's range are kept, as in PyTorch; the type itself for all others.
            pub const fn from_float(self) -> Self {
                match self {
                    Self::U8 => Self::I64,
                    Self::I8 | Self::I16 | Self::U16 => Self::I32,
                    other => other,
                }
            }

            /// Returns PyTorch's name (`float32`).
            pub const fn name(self) -> &'static str {
                match self {
                    Self::$bool => $bool_name,
                    $(Self::$integer => $integer_name,)*
                    $(Self::$reduced => $reduced_name,)*
                    $(Self::$float => $float_name,)*
                    $(Self::$complex => $complex_name,)*
                }
            }

            /// Returns the names and codes by which PyTorch, files and other libraries know the dtype.
            pub const fn exchange(self) -> &'static Exchange {
                match self {
                    Self::$bool => &exchange!($bool_exchange),
                    $(Self::$integer => &exchange!($integer_exchange),)*
                    $(Self::$reduced => &exchange!($reduced_exchange),)*
                    $(Self::$float => &exchange!($float_exchange),)*
                    $(Self::$complex => &exchange!($complex_exchange),)*
                }
            }

            /// Returns the short name (`f32`, `bool`): the type of a value in CUDA code.
            pub const fn short_name(self) -> &'static str {
                match self {
                    Self::$bool => "bool",
                    $(Self::$integer => stringify!($integer_element),)*
                    $(Self::$reduced => stringify!($reduced_element),)*
                    $(Self::$float => stringify!($float_element),)*
                    $(Self::$complex => stringify!($complex_element),)*
                }
            }
        }

        $(
            impl Element for $integer_element {
                const DTYPE: DType = DType::$integer;

                fn from_f64(value: f64) -> Self {
                    value as Self
                }

                fn to_f64(self) -> f64 {
                    self as f64
                }
            }
        )*
        $(
            impl Element for $reduced_element {
                const DTYPE: DType = DType::$reduced;

                fn from_f64(value: f64) -> Self {
                    Self::from_f64(value)
                }

                fn to_f64(self) -> f64 {
                    self.to_f64()
                }
            }
        )*
        $(
            impl Element for $float_element {
                const DTYPE: DType = DType::$float;

                fn from_f64(value: f64) -> Self {
                    value as Self
                }

                fn to_f64(self) -> f64 {
                    self.into()
                }
            }
        )*
        $(
            impl Element for $complex_element {
                const DTYPE: DType = DType::$complex;

                fn from_f64(value: f64) -> Self {
                    <Self as crate::complex::Pair>::of(value, 0.0)
                }

                fn to_f64(self) -> f64 {
                    self.re.into()
                }
            }
        )*
    };
}

for_each_dtype! { define_dtypes }

/// Evaluates an expression of [`with_dtype!`](crate::with_dtype) with a name for a type of [`elements`].
#[doc(hidden)]
#[macro_export]
macro_rules! with_element {
    ($T:ident, $element:ident, $value:expr) => {{
        type $T = $crate::elements::$element;
        // The expression need not use the type.
        const _: usize = size_of::<$T>();
        $value
    }};
}

/// Defines `with_dtype!`; `$d` is a dollar sign.
macro_rules! define_with_dtype {
    (
        $d:tt
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal $bool_exchange:tt, }
        integer { $($(#[$integer_doc:meta])* $integer:ident $integer_element:ident $integer_name:literal $integer_exchange:tt,)* }
        reduced { $($(#[$reduced_doc:meta])* $reduced:ident $reduced_element:ident $reduced_name:literal $reduced_exchange:tt,)* }
        float { $($(#[$float_doc:meta])* $float:ident $float_element:ident $float_name:literal $float_exchange:tt,)* }
        complex { $($(#[$complex_doc:meta])* $complex:ident $complex_element:ident $complex_name:literal $complex_exchange:tt,)* }
    ) => {
        /// Evaluates an expression with a name bound to the Rust type of a dtype's elements.
        ///
        /// `with_dtype!(dtype, T => …)` has one expression for all dtypes; the elements of bools are `u8`. Where groups of dtypes
        /// differ, each has its own expression. Floats of 8 and 16 bits, which have no arithmetic of their own, are `reduced`.
        /// Without an expression for complex numbers, the macro panics on them: use that form only where they were refused
        /// before.
        ///
        /// ```
        /// use thalweg_ir::{DType, Element, with_dtype};
        ///
        /// let highest = |dtype: DType| with_dtype!(dtype,
        ///     bool => 1.0,
        ///     integer T => T::MAX.to_f64(),
        ///     reduced T => T::MAX.to_f64(),
        ///     float T => T::MAX.to_f64(),
        /// );
        /// assert_eq!(highest(DType::U8), 255.0);
        /// assert_eq!(highest(DType::F16), 65504.0);
        /// assert_eq!(with_dtype!(DType::I64, T => size_of::<T>()), 8);
        /// ```
        #[macro_export]
        macro_rules! with_dtype {
            ($d dtype:expr, $d T:ident => $d of_any:expr $d(,)?) => {
                match $d dtype {
                    $crate::DType::$bool => $crate::with_element!($d T, $bool_element, $d of_any),
                    $($crate::DType::$integer => $crate::with_element!($d T, $integer_element, $d of_any),)*
                    $($crate::DType::$reduced => $crate::with_element!($d T, $reduced_element, $d of_any),)*
                    $($crate::DType::$float => $crate::with_element!($d T, $float_element, $d of_any),)*
                    $($crate::DType::$complex => $crate::with_element!($d T, $complex_element, $d of_any),)*
                }
            };
            (
                $d dtype:expr,
                bool => $d of_bool:expr,
                integer $d I:ident => $d of_integer:expr,
                reduced $d R:ident => $d of_reduced:expr,
                float $d F:ident => $d of_float:expr $d(,)?
            ) => {
                match $d dtype {
                    $crate::DType::$bool => $d of_bool,
                    $($crate::DType::$integer => $crate::with_element!($d I, $integer_element, $d of_integer),)*
                    $($crate::DType::$reduced => $crate::with_element!($d R, $reduced_element, $d of_reduced),)*
                    $($crate::DType::$float => $crate::with_element!($d F, $float_element, $d of_float),)*
                    $($crate::DType::$complex)|* => unreachable!("complex numbers were refused before"),
                }
            };
            (
                $d dtype:expr,
                bool => $d of_bool:expr,
                integer $d I:ident => $d of_integer:expr,
                reduced $d R:ident => $d of_reduced:expr,
                float $d F:ident => $d of_float:expr,
                complex $d C:ident => $d of_complex:expr $d(,)?
            ) => {
                match $d dtype {
                    $crate::DType::$bool => $d of_bool,
                    $($crate::DType::$integer => $crate::with_element!($d I, $integer_element, $d of_integer),)*
                    $($crate::DType::$reduced => $crate::with_element!($d R, $reduced_element, $d of_reduced),)*
                    $($crate::DType::$float => $crate::with_element!($d F, $float_element, $d of_float),)*
                    $($crate::DType::$complex => $crate::with_element!($d C, $complex_element, $d of_complex),)*
                }
            };
        }
    };
}

for_each_dtype! { define_with_dtype $ }

impl DType {
    /// Returns whether the dtype is a floating-point type.
    pub const fn is_floating_point(self) -> bool {
        matches!(self.category(), Category::FloatingPoint)
    }

    /// Returns whether the dtype is a type of complex numbers (`torch.is_complex`).
    pub const fn is_complex(self) -> bool {
        matches!(self.category(), Category::Complex)
    }

    /// Returns whether tensors of the dtype have gradients: those of floating-point and complex numbers.
    pub const fn is_differentiable(self) -> bool {
        matches!(self.category(), Category::FloatingPoint | Category::Complex)
    }

    /// Returns the dtype of the parts of a complex number, and of its absolute value (`torch.Tensor.real`); any other dtype is
    /// returned unchanged.
    pub const fn real(self) -> Self {
        match self {
            Self::C64 => Self::F32,
            Self::C128 => Self::F64,
            other => other,
        }
    }

    /// Returns the dtype of complex numbers with parts of this dtype (`torch.dtype.to_complex`): complex128 for 64-bit floats,
    /// complex64 for any other dtype. A complex dtype is returned unchanged.
    pub const fn complex(self) -> Self {
        match self {
            Self::C64 | Self::C128 => self,
            Self::F64 => Self::C128,
            _ => Self::C64,
        }
    }

    /// Returns whether the dtype is a float of 8 bits: a type for storage, which PyTorch casts, fills and copies.
    pub const fn is_float8(self) -> bool {
        self.is_floating_point() && self.size_bytes() == 1
    }

    /// Returns whether the dtype is an integer type; `Bool` is not one.
    pub const fn is_integer(self) -> bool {
        matches!(self.category(), Category::Integer)
    }

    /// Returns the type to which two operands of an operator are converted (`torch.promote_types`).
    ///
    /// Complex numbers win over all others, with parts at least as wide as the other operand's floats; floats win over integers
    /// and bools, integers over bools. Of two floats or two integers, the wider wins. Two different floats of the same width
    /// promote to f32; u8 and i8 promote to i16.
    ///
    /// # Errors
    /// If one is a float of 8 bits, or one is an unsigned integer of more than 8 bits and the other is an integer or bool:
    /// PyTorch has such types for storage only, and promotes such integers to floats only. Its table has no other gap.
    pub fn promote(self, other: Self) -> Result<Self, PromotionError> {
        if self == other {
            return Ok(self);
        }
        let (lower, higher) = if self.rank() <= other.rank() { (self, other) } else { (other, self) };
        let is_tie = lower.rank() == higher.rank();
        if self.is_float8() || other.is_float8() {
            return Err(PromotionError(self, other));
        }
        if higher.is_complex() {
            return Ok(if lower == Self::F64 { Self::C128 } else { higher });
        }
        if higher.category() == Category::FloatingPoint {
            return Ok(if is_tie { Self::F32 } else { higher });
        }
        let is_for_storage = |dtype: Self| dtype.is_integer() && !dtype.is_signed() && dtype.size_bytes() > 1;
        if is_for_storage(lower) || is_for_storage(higher) {
            return Err(PromotionError(self, other));
        }
        Ok(if is_tie { Self::I16 } else { higher })
    }

    /// Returns category and width, which order dtypes in promotion.
    const fn rank(self) -> (Category, usize) {
        (self.category(), self.size_bytes())
    }
}

/// The reason why two dtypes do not promote: PyTorch defines no common type for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromotionError(pub DType, pub DType);

impl fmt::Display for PromotionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PyTorch promotes {} and {} to no common dtype; convert one with `to_dtype`",
            self.0, self.1
        )
    }
}

impl std::error::Error for PromotionError {}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a name that is not a dtype's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownDType(pub String);

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        write!(f, "`{}` is not a dtype; dtypes are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Reads PyTorch's name (`float32`).
    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

/// A Rust type that kernels compute with and device memory stores. `bool` is not one: device memory may have any byte, and a
/// `bool` must be 0 or 1. Values on the host may also be `bool`s: [`HostElement`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the element type of a tensor in device memory",
    label = "not one of the Rust types that `thalweg_ir::DType` lists",
    note = "truth values lie in device memory as `u8`"
)]
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The type's dtype. `u8` is [`DType::U8`].
    const DTYPE: DType;

    /// Creates the nearest value of this type (saturating for integers, as Rust's `as`).
    fn from_f64(value: f64) -> Self;

    /// Returns the value as an f64, rounded where f64 cannot represent it.
    fn to_f64(self) -> f64;
}

/// A Rust type of the host from which tensors are made and to which they are read: every [`Element`], and `bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the element type of a tensor",
    label = "neither `bool` nor one of the Rust types that `thalweg_ir::DType` lists"
)]
pub trait HostElement: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The dtype of a tensor of such values.
    const TENSOR_DTYPE: DType;

    /// The element in device memory, as large as the value.
    type Stored: Element;

    /// Returns values as the bytes that device memory stores.
    fn bytes(values: &[Self]) -> &[u8];

    /// Returns the values that were read from device memory.
    fn loaded(stored: Vec<Self::Stored>) -> Vec<Self>;
}

impl<T: Element> HostElement for T {
    const TENSOR_DTYPE: DType = T::DTYPE;

    type Stored = T;

    fn bytes(values: &[T]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    fn loaded(stored: Vec<T>) -> Vec<T> {
        stored
    }
}

/// Any byte but 0 is read as true.
impl HostElement for bool {
    const TENSOR_DTYPE: DType = DType::Bool;

    type Stored = u8;

    fn bytes(values: &[bool]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    fn loaded(stored: Vec<u8>) -> Vec<bool> {
        stored.into_iter().map(|byte| byte != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, PromotionError};

    /// `torch.promote_types`, by `promoteTypes` in PyTorch's `c10/core/ScalarType.cpp`: the row's dtype with those of the columns
    /// up to the row's own. "-" marks pairs that PyTorch refuses: "Promotion for uint16, uint32, uint64 types is not supported",
    /// "Promotion for Float8 Types is not supported".
    const PROMOTION: &str = "\
bool:     bool
uint8:    uint8    uint8
int8:     int8     int16    int8
int16:    int16    int16    int16    int16
uint16:   -        -        -        -        uint16
int32:    int32    int32    int32    int32    -        int32
int64:    int64    int64    int64    int64    -        int64    int64
float8_e4m3fn: - -    -        -        -        -        -        float8_e4m3fn
float8_e5m2: - -      -        -        -        -        -        -        float8_e5m2
float16:  float16  float16  float16  float16  float16  float16  float16  -        -        float16
bfloat16: bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 -        -        float32  bfloat16
float32:  float32  float32  float32  float32  float32  float32  float32  -        -        float32  float32  float32
float64:  float64  float64  float64  float64  float64  float64  float64  -        -        float64  float64  float64  float64
complex64: complex64 complex64 complex64 complex64 complex64 complex64 complex64 - - complex64 complex64 complex64 complex128 complex64
complex128: complex128 complex128 complex128 complex128 complex128 complex128 complex128 - - complex128 complex128 complex128 complex128 complex128 complex128
";

    #[test]
    fn promotion_follows_pytorchs_table() {
        let rows: Vec<(DType, &str)> = PROMOTION
            .lines()
            .map(|line| line.split_once(':').expect("a row has a name"))
            .map(|(name, results)| (name.parse().expect("PyTorch's name"), results))
            .collect();
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), DType::ALL);
        for (row, &(a, results)) in rows.iter().enumerate() {
            let results: Vec<&str> = results.split_whitespace().collect();
            assert_eq!(results.len(), row + 1, "{a}");
            for (&(b, _), &result) in rows.iter().zip(&results) {
                let [one, other] = match result {
                    "-" => [Err(PromotionError(a, b)), Err(PromotionError(b, a))],
                    name => [Ok(name.parse().expect("PyTorch's name")); 2],
                };
                assert_eq!((a.promote(b), b.promote(a)), (one, other), "{a} and {b}");
            }
        }
    }

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        let error = "float".parse::<DType>().expect_err("PyTorch's name is float32");
        assert!(error.to_string().contains("`float` is not a dtype; dtypes are bool, uint8"), "{error}");
    }
}
