//! [`Argument`] and [`Value`]: the arguments that a call passes for a parameter of a [`Schema`](thalweg_ops::schema::Schema).
//!
//! An argument borrows and lives on the caller's stack. A value owns its contents, so that calls can be kept, built at run time,
//! and passed on by code that knows nothing of the operator.

use bytemuck::cast_slice;
use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, c128};
use thalweg_ops::schema::{Kind, Literal, Parameter, Schema, Type};
use thalweg_runtime::{Device, Error, Result, invalid};

use crate::caller::describe;
use crate::tensor::Tensor;

/// A list of integers: extents, dimensions.
pub type Ints = SmallVec<[i64; 6]>;

/// An argument of a call, for one parameter of the schema.
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
    /// A complex number, for a parameter that takes a number of any kind.
    Complex(c128),
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

/// An argument that owns its contents.
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
    /// A complex number, for a parameter that takes a number of any kind.
    Complex(c128),
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
            Self::Complex(number) => Argument::Complex(*number),
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

/// The forms of argument in which kernels read a parameter: one bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Forms(u16);

impl Forms {
    const NONE: u16 = 1;
    const TENSOR: u16 = 1 << 1;
    const TENSORS: u16 = 1 << 2;
    const OPTIONAL_TENSORS: u16 = 1 << 3;
    const SCALAR: u16 = 1 << 4;
    const INT: u16 = 1 << 5;
    const FLOAT: u16 = 1 << 6;
    const BOOL: u16 = 1 << 7;
    const INTS: u16 = 1 << 8;
    const FLOATS: u16 = 1 << 9;
    const BOOLS: u16 = 1 << 10;
    const SCALARS: u16 = 1 << 11;
    const STR: u16 = 1 << 12;
    const DTYPE: u16 = 1 << 13;
    const DEVICE: u16 = 1 << 14;

    /// Returns the forms of a parameter of this type. A list of fixed length also accepts a single number, which is repeated.
    pub(crate) fn of(ty: &Type) -> Self {
        let repeated = |list: u16, one: u16| if ty.length.is_some() { list | one } else { list };
        let forms = match (ty.list, ty.kind) {
            (false, Kind::Tensor) => Self::TENSOR,
            (true, Kind::Tensor) if ty.optional_elements => Self::TENSORS | Self::OPTIONAL_TENSORS,
            (true, Kind::Tensor) => Self::TENSORS,
            (false, Kind::Scalar) => Self::SCALAR,
            (true, Kind::Scalar) => Self::SCALARS,
            (false, Kind::Int | Kind::MemoryFormat | Kind::Layout) => Self::INT,
            (true, Kind::Int) => repeated(Self::INTS, Self::INT),
            (false, Kind::Float) => Self::FLOAT,
            (true, Kind::Float) => repeated(Self::FLOATS, Self::FLOAT),
            (false, Kind::Bool) => Self::BOOL,
            (true, Kind::Bool) => repeated(Self::BOOLS, Self::BOOL),
            (false, Kind::Str) => Self::STR,
            (false, Kind::DType) => Self::DTYPE,
            (false, Kind::Device) => Self::DEVICE,
            (true, _) | (false, Kind::Generator) => 0,
        };
        Self(if ty.optional { forms | Self::NONE } else { forms })
    }

    /// Returns whether these forms include that of an argument.
    #[inline]
    pub(crate) fn include(self, argument: &Argument<'_>) -> bool {
        self.0 & argument.form() != 0
    }
}

impl<'a> Argument<'a> {
    /// Appends the tensors of the argument to a list.
    #[inline]
    pub(crate) fn push_tensors(&self, tensors: &mut SmallVec<[&'a Tensor; 8]>) {
        match *self {
            Self::Tensor(tensor) => tensors.push(tensor),
            Self::Tensors(list) => tensors.extend(list),
            Self::OptionalTensors(list) => tensors.extend(list.iter().flatten()),
            _ => {}
        }
    }
}

impl Argument<'_> {
    /// Returns the bit of [`Forms`] that the argument has.
    #[inline]
    fn form(&self) -> u16 {
        match self {
            Self::None => Forms::NONE,
            Self::Tensor(_) => Forms::TENSOR,
            Self::Tensors(_) => Forms::TENSORS,
            Self::OptionalTensors(_) => Forms::OPTIONAL_TENSORS,
            Self::Scalar(_) => Forms::SCALAR,
            // No kernel reads a complex number: the dispatcher replaces it by a tensor.
            Self::Complex(_) => 0,
            Self::Int(_) => Forms::INT,
            Self::Float(_) => Forms::FLOAT,
            Self::Bool(_) => Forms::BOOL,
            Self::Ints(_) => Forms::INTS,
            Self::Floats(_) => Forms::FLOATS,
            Self::Bools(_) => Forms::BOOLS,
            Self::Scalars(_) => Forms::SCALARS,
            Self::Str(_) => Forms::STR,
            Self::DType(_) => Forms::DTYPE,
            Self::Device(_) => Forms::DEVICE,
        }
    }

    /// Returns the argument as a value that owns everything that it refers to.
    pub fn to_value(self) -> Value {
        match self {
            Self::None => Value::None,
            Self::Tensor(tensor) => Value::Tensor(tensor.clone()),
            Self::Tensors(list) => Value::Tensors(list.to_vec()),
            Self::OptionalTensors(list) => Value::OptionalTensors(list.to_vec()),
            Self::Scalar(number) => Value::Scalar(number),
            Self::Complex(number) => Value::Complex(number),
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

    /// Returns the value without the tensors in it, for a backward node that saves the tensors elsewhere.
    pub(crate) fn to_value_without_tensors(self) -> Value {
        match self {
            Self::Tensor(_) | Self::Tensors(_) | Self::OptionalTensors(_) => Value::None,
            other => other.to_value(),
        }
    }

    /// Returns the argument in the form in which kernels read a parameter of this type; `None` if it has another type.
    pub(crate) fn fit(self, ty: &Type) -> Option<Self> {
        if Forms::of(ty).include(&self) {
            return Some(self);
        }
        if ty.list {
            return self.fit_list(ty);
        }
        match (ty.kind, self) {
            (Kind::Scalar, other) => other.number().map(Self::Scalar),
            (Kind::Float, Self::Int(_) | Self::Scalar(_)) => self.number().map(|n| Self::Float(n.to_f64())),
            (Kind::Int, Self::Bool(truth)) => Some(Self::Int(i64::from(truth))),
            (Kind::Int, Self::Scalar(Scalar::I64(integer))) => Some(Self::Int(integer)),
            (Kind::Bool, Self::Scalar(Scalar::Bool(truth))) => Some(Self::Bool(truth)),
            _ => None,
        }
    }

    /// Converts an empty list to an empty list of a parameter's type.
    fn fit_list(self, ty: &Type) -> Option<Self> {
        let Self::Ints([]) = self else { return None };
        match ty.kind {
            Kind::Float => Some(Self::Floats(&[])),
            Kind::Bool => Some(Self::Bools(&[])),
            Kind::Scalar => Some(Self::Scalars(&[])),
            Kind::Tensor => Some(Self::Tensors(&[])),
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

    /// Returns a description of the argument's kind, for messages.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Tensor(_) => "Tensor",
            Self::Tensors(_) => "Tensor[]",
            Self::OptionalTensors(_) => "Tensor?[]",
            Self::Scalar(_) => "Scalar",
            Self::Complex(_) => "a complex number",
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
        None => return Err(invalid!("the argument `{}` is missing", parameter.name)),
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

/// Returns extents or dimensions as the integers of a call, without copying them.
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
        /// Returns the argument at a position, or `None` where the call left it out.
        fn $optional(&self, place: usize) -> Option<$type> {
            match self.argument(place) {
                Argument::None => None,
                Argument::$variant(value) => Some(value),
                other => wrong(self.schema(), place, other),
            }
        }
    )*};
}

/// Describes a call with any arguments, like [`describe`]: by its tensors, or by the shape, dtype and device of the new tensor.
pub(crate) fn describe_call(operator: &str, arguments: &[Argument<'_>], device: Option<&Device>) -> String {
    let mut tensors: SmallVec<[&Tensor; 8]> = SmallVec::new();
    let (mut shape, mut dtype): (&[i64], _) = (&[], None);
    for argument in arguments {
        argument.push_tensors(&mut tensors);
        match argument {
            Argument::Ints(list) if shape.is_empty() => shape = list,
            Argument::DType(of) => dtype = Some(of),
            _ => {}
        }
    }
    match (tensors.as_slice(), dtype, device) {
        ([], Some(dtype), Some(device)) => format!("{operator}({shape:?} {dtype} on {device})"),
        (tensors, ..) => describe(operator, tensors),
    }
}

/// Arguments that were checked against a schema, accessed by their position in it.
///
/// # Panics
/// Each method panics if the parameter at `place` has another type: a kernel must read the type in its operator's schema.
pub trait Arguments {
    /// Returns the schema.
    fn schema(&self) -> &Schema;

    /// Returns the argument at a position.
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

    /// Returns integers; a single number for a list of fixed length is repeated.
    fn ints(&self, place: usize) -> Ints {
        self.optional_ints(place).unwrap_or_else(|| wrong(self.schema(), place, Argument::None))
    }

    /// Returns integers; a single number for a list of fixed length is repeated. `None` where they were left out.
    fn optional_ints(&self, place: usize) -> Option<Ints> {
        match self.argument(place) {
            Argument::None => None,
            Argument::Ints(list) => Some(Ints::from_slice(list)),
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
