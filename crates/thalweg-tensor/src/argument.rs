//! [`Argument`] and [`Value`]: what a call passes for a parameter of a [`Schema`](thalweg_ops::schema::Schema).
//!
//! An argument borrows; it lives on the caller's stack. A value owns, so that calls can be kept, built at run time, and
//! passed on by code that knows nothing of the operator.

use bytemuck::cast_slice;
use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar};
use thalweg_ops::schema::{Kind, Literal, Parameter, Schema, Type};
use thalweg_runtime::{Device, Error, Result};

use crate::tensor::Tensor;

/// A list of integers: extents, dimensions.
pub type Ints = SmallVec<[i64; 6]>;

/// What a call passes for one parameter.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Nothing, for a parameter that is optional.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// A list of tensors.
    Tensors(&'a [Tensor]),
    /// A list of tensors some of which are missing.
    OptionalTensors(&'a [Option<Tensor>]),
    /// A number of any kind.
    Scalar(Scalar),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Integers.
    Ints(&'a [i64]),
    /// Floating-point numbers.
    Floats(&'a [f64]),
    /// Truth values.
    Bools(&'a [bool]),
    /// Numbers of any kind.
    Scalars(&'a [Scalar]),
    /// A string.
    Str(&'a str),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(&'a Device),
}

/// An argument that owns what it refers to.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing, for a parameter that is optional.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors.
    Tensors(Vec<Tensor>),
    /// A list of tensors some of which are missing.
    OptionalTensors(Vec<Option<Tensor>>),
    /// A number of any kind.
    Scalar(Scalar),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Integers.
    Ints(Vec<i64>),
    /// Floating-point numbers.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Numbers of any kind.
    Scalars(Vec<Scalar>),
    /// A string.
    Str(String),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
}

impl Value {
    /// Returns the value as an argument.
    pub fn as_argument(&self) -> Argument<'_> {
        match self {
            Self::None => Argument::None,
            Self::Tensor(tensor) => Argument::Tensor(tensor),
            Self::Tensors(list) => Argument::Tensors(list),
            Self::OptionalTensors(list) => Argument::OptionalTensors(list),
            Self::Scalar(number) => Argument::Scalar(*number),
            Self::Int(integer) => Argument::Int(*integer),
            Self::Float(number) => Argument::Float(*number),
            Self::Bool(truth) => Argument::Bool(*truth),
            Self::Ints(list) => Argument::Ints(list),
            Self::Floats(list) => Argument::Floats(list),
            Self::Bools(list) => Argument::Bools(list),
            Self::Scalars(list) => Argument::Scalars(list),
            Self::Str(text) => Argument::Str(text),
            Self::DType(dtype) => Argument::DType(*dtype),
            Self::Device(device) => Argument::Device(device),
        }
    }
}

impl Argument<'_> {
    /// Returns the argument with all that it refers to.
    pub fn to_value(self) -> Value {
        match self {
            Self::None => Value::None,
            Self::Tensor(tensor) => Value::Tensor(tensor.clone()),
            Self::Tensors(list) => Value::Tensors(list.to_vec()),
            Self::OptionalTensors(list) => Value::OptionalTensors(list.to_vec()),
            Self::Scalar(number) => Value::Scalar(number),
            Self::Int(integer) => Value::Int(integer),
            Self::Float(number) => Value::Float(number),
            Self::Bool(truth) => Value::Bool(truth),
            Self::Ints(list) => Value::Ints(list.to_vec()),
            Self::Floats(list) => Value::Floats(list.to_vec()),
            Self::Bools(list) => Value::Bools(list.to_vec()),
            Self::Scalars(list) => Value::Scalars(list.to_vec()),
            Self::Str(text) => Value::Str(text.into()),
            Self::DType(dtype) => Value::DType(dtype),
            Self::Device(device) => Value::Device(device.clone()),
        }
    }

    /// Returns the value without the tensors in it: what backward needs of an argument whose tensors are saved elsewhere.
    pub(crate) fn to_value_without_tensors(self) -> Value {
        match self {
            Self::Tensor(_) | Self::Tensors(_) | Self::OptionalTensors(_) => Value::None,
            other => other.to_value(),
        }
    }

    /// Returns the argument in the form in which kernels read a parameter of this type; `None` if it has another type.
    pub(crate) fn fit(self, ty: &Type) -> Option<Self> {
        if matches!(self, Self::None) {
            return ty.optional.then_some(self);
        }
        if ty.list {
            return self.fit_list(ty);
        }
        match (ty.kind, self) {
            (Kind::Tensor, Self::Tensor(_))
            | (Kind::Scalar, Self::Scalar(_))
            | (Kind::Int | Kind::MemoryFormat | Kind::Layout, Self::Int(_))
            | (Kind::Float, Self::Float(_))
            | (Kind::Bool, Self::Bool(_))
            | (Kind::Str, Self::Str(_))
            | (Kind::DType, Self::DType(_))
            | (Kind::Device, Self::Device(_)) => Some(self),
            (Kind::Scalar, other) => other.number().map(Self::Scalar),
            (Kind::Float, Self::Int(_) | Self::Scalar(_)) => self.number().map(|n| Self::Float(n.to_f64())),
            (Kind::Int, Self::Bool(truth)) => Some(Self::Int(i64::from(truth))),
            (Kind::Int, Self::Scalar(Scalar::I64(integer))) => Some(Self::Int(integer)),
            (Kind::Bool, Self::Scalar(Scalar::Bool(truth))) => Some(Self::Bool(truth)),
            _ => None,
        }
    }

    fn fit_list(self, ty: &Type) -> Option<Self> {
        match (ty.kind, self) {
            (Kind::Tensor, Self::Tensors(_)) => Some(self),
            (Kind::Tensor, Self::OptionalTensors(_)) => ty.optional_elements.then_some(self),
            (Kind::Int, Self::Ints(_)) | (Kind::Float, Self::Floats(_)) | (Kind::Bool, Self::Bools(_)) => {
                Some(self)
            }
            (Kind::Scalar, Self::Scalars(_)) => Some(self),
            // One number for as many of them as the list has.
            (Kind::Int, Self::Int(_)) | (Kind::Float, Self::Float(_)) | (Kind::Bool, Self::Bool(_)) => {
                ty.length.map(|_| self)
            }
            // An empty list is of any type.
            (Kind::Float | Kind::Bool | Kind::Scalar | Kind::Tensor, Self::Ints([])) => Some(match ty.kind {
                Kind::Float => Self::Floats(&[]),
                Kind::Bool => Self::Bools(&[]),
                Kind::Scalar => Self::Scalars(&[]),
                _ => Self::Tensors(&[]),
            }),
            _ => None,
        }
    }

    fn number(self) -> Option<Scalar> {
        match self {
            Self::Scalar(number) => Some(number),
            Self::Int(integer) => Some(Scalar::I64(integer)),
            Self::Float(number) => Some(Scalar::F64(number)),
            Self::Bool(truth) => Some(Scalar::Bool(truth)),
            _ => None,
        }
    }

    /// Returns what it is, for messages.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Tensor(_) => "Tensor",
            Self::Tensors(_) => "Tensor[]",
            Self::OptionalTensors(_) => "Tensor?[]",
            Self::Scalar(_) => "Scalar",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Ints(_) => "int[]",
            Self::Floats(_) => "float[]",
            Self::Bools(_) => "bool[]",
            Self::Scalars(_) => "Scalar[]",
            Self::Str(_) => "str",
            Self::DType(_) => "ScalarType",
            Self::Device(_) => "Device",
        }
    }
}

/// Returns the default of a parameter as an argument.
pub(crate) fn default_of(parameter: &Parameter) -> Result<Argument<'_>> {
    Ok(match &parameter.default {
        None => return Err(Error::invalid(format!("the argument `{}` is missing", parameter.name))),
        Some(Literal::None) => Argument::None,
        Some(Literal::Bool(truth)) => Argument::Bool(*truth),
        Some(Literal::Int(integer)) if parameter.ty.kind == Kind::Scalar => {
            Argument::Scalar(Scalar::I64(*integer))
        }
        Some(Literal::Float(number)) if parameter.ty.kind == Kind::Scalar => {
            Argument::Scalar(Scalar::F64(*number))
        }
        Some(Literal::Int(integer)) => Argument::Int(*integer),
        Some(Literal::Float(number)) => Argument::Float(*number),
        Some(Literal::Ints(list)) => Argument::Ints(list),
        Some(Literal::Str(_)) if parameter.ty.kind == Kind::DType => Argument::DType(DType::I64),
        Some(Literal::Str(text)) => Argument::Str(text),
    })
}

/// Returns extents or dimensions as the integers of a call. They stay in their memory.
pub fn as_ints(sizes: &[usize]) -> &[i64] {
    cast_slice(sizes)
}

macro_rules! from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl<'a> From<$from> for Argument<'a> {
            fn from(value: $from) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

from! {
    &'a Tensor => Tensor,
    &'a [Tensor] => Tensors,
    &'a [Option<Tensor>] => OptionalTensors,
    Scalar => Scalar,
    i64 => Int,
    f64 => Float,
    bool => Bool,
    &'a [i64] => Ints,
    &'a [f64] => Floats,
    &'a [bool] => Bools,
    &'a str => Str,
    DType => DType,
    &'a Device => Device,
}

impl<'a, T: Into<Argument<'a>>> From<Option<T>> for Argument<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, T::into)
    }
}

/// Methods of [`Arguments`] that read an argument of one type.
macro_rules! readers {
    ($($(#[doc = $doc:literal])+ $name:ident, $optional:ident: $variant:ident => $type:ty;)*) => {$(
        $(#[doc = $doc])+
        fn $name(&self, place: usize) -> $type {
            match self.argument(place) {
                Argument::$variant(value) => value,
                other => wrong(self.schema(), place, other),
            }
        }

        $(#[doc = $doc])+
        /// `None` where it was left out.
        fn $optional(&self, place: usize) -> Option<$type> {
            match self.argument(place) {
                Argument::None => None,
                Argument::$variant(value) => Some(value),
                other => wrong(self.schema(), place, other),
            }
        }
    )*};
}

/// Arguments that were held against a schema, read by their place in it.
///
/// # Panics
/// Each method, if the parameter at `place` is of another type: whoever reads knows the operator's schema.
pub trait Arguments {
    /// Returns the schema.
    fn schema(&self) -> &Schema;

    /// Returns the argument at a place.
    fn argument(&self, place: usize) -> Argument<'_>;

    readers! {
        /// Returns a tensor.
        tensor, optional_tensor: Tensor => &Tensor;
        /// Returns a list of tensors.
        tensor_list, optional_tensor_list: Tensors => &[Tensor];
        /// Returns a number.
        scalar, optional_scalar: Scalar => Scalar;
        /// Returns an integer.
        int, optional_int: Int => i64;
        /// Returns a floating-point number.
        float, optional_float: Float => f64;
        /// Returns a truth value.
        bool, optional_bool: Bool => bool;
        /// Returns a string.
        str, optional_str: Str => &str;
        /// Returns a dtype.
        dtype, optional_dtype: DType => DType;
    }

    /// Returns integers; one that stands for a list of a length is repeated.
    fn ints(&self, place: usize) -> Ints {
        self.optional_ints(place).unwrap_or_else(|| wrong(self.schema(), place, Argument::None))
    }

    /// Returns integers; one that stands for a list of a length is repeated. `None` where they were left out.
    fn optional_ints(&self, place: usize) -> Option<Ints> {
        match self.argument(place) {
            Argument::None => None,
            Argument::Ints(list) => Some(list.into()),
            Argument::Int(integer) => {
                let length = self.schema().parameters[place].ty.length.unwrap_or(1);
                Some(Ints::from_elem(integer, length))
            }
            other => wrong(self.schema(), place, other),
        }
    }
}

fn wrong(schema: &Schema, place: usize, argument: Argument<'_>) -> ! {
    panic!("argument {place} of `{schema}` is {}, and is read as another type", argument.kind())
}
