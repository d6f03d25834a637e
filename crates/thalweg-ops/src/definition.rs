//! [`LoopOp`]: an operator as data.

use crate::default_dtype::default_dtype;
use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;
use thalweg_ir::{Body, BodyBuilder, Category, DType, OutputPlace, PromotionError, Scalar, Value};

/// A list of dtypes; most operators have few operands.
pub type DTypes = SmallVec<[DType; 8]>;

/// The input dtypes that an operator accepts, the dtype that it computes in, and the dtypes of its results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DTypeRule {
    /// Inputs are promoted to one numeric dtype, which is also the result's. `Bool` is refused.
    Numeric,
    /// Like `Numeric`; `Bool` is refused with the message with which PyTorch refuses to negate it.
    Negation,
    /// Like `Numeric`, except that inputs that are all truth values have a truth value as result: whether the result computed in
    /// i32 is not 0.
    NumericOrBool,
    /// Like `Numeric`, with integers converted to f32: transcendental functions and division.
    Floating,
    /// Inputs are promoted to one dtype and compared in it; the result is `Bool`.
    Comparison,
    /// Inputs are promoted to one dtype of integers or truth values, which is also the result's. Floats are refused.
    Bits,
    /// Like `Bits`, without truth values.
    Integers,
    /// Inputs are read as truth values ("not 0"); the result is `Bool`.
    Logical,
    /// The first input is a condition, read as a truth value; the others are promoted to one dtype, the result's.
    Condition,
    /// One input; integers and `Bool` are summed in i64, floats in their own dtype, as `torch.sum` does.
    Sum,
    /// One floating-point input; the result has the dtype of the computation.
    Widened,
    /// One numeric input; the result is an i64 index.
    Position,
    /// The first input is floating-point, the second an i64 index: losses over classes.
    Classes,
    /// Like `Classes`; for 16-bit floats the result is f32, the dtype of the computation.
    WideClasses,
    /// The first input is floating-point, and the results have its dtype.
    FloatingPoint,
    /// Like `FloatingPoint`, but the call may request another dtype for results. The computation, and further results, keep the
    /// first input's dtype.
    FloatingPointAs,
    /// Any dtype, unchanged: operators that only move elements.
    Moved,
    /// One input of any dtype; the call specifies the result's dtype.
    Converted,
    /// No input; the call specifies the result's dtype.
    Created,
    /// Like `Created`, but numeric: `Bool` is refused.
    Counted,
}

/// The iteration space of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// Every operand is broadcast to one shape, and each element is computed independently.
    Elementwise,
    /// Some dimensions are reduced: the rows are the others.
    Rows,
    /// The operator specifies its own extents and works with coordinates.
    Coordinates,
}

/// The list of integers that a call passes in addition to tensors and numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sizes {
    /// No list.
    None,
    /// The shape of the result, of any rank.
    Shape,
    /// The shape of the result, of this rank.
    Extents(usize),
    /// Dimensions of the first input, each at most once: those that are reduced.
    Dimensions,
    /// One dimension of the first input: the one that is reduced.
    Dimension,
}

impl Sizes {
    /// Returns PyTorch's name of the parameter.
    fn parameter(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Shape | Self::Extents(_) => Some("size"),
            Self::Dimensions | Self::Dimension => Some("dim"),
        }
    }
}

/// The dtype that the tensors of an operator are cast to in a region of autocast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Autocast {
    /// No cast: the operator computes in the dtypes of its inputs, and so do the operators that it consists of, as in one kernel.
    Unchanged,
    /// No cast by the operator itself: each of the operators that it consists of casts its tensors.
    Parts,
    /// The 16-bit dtype of the region.
    Lower,
    /// f32.
    Full,
    /// The widest dtype of its tensors.
    Widest,
    /// No cast of the inputs. Unless a dtype is requested, the result has the region's 16-bit dtype, because the next operator is
    /// usually a matrix product.
    Rounded,
    /// The operator is refused in a region of autocast.
    Banned,
}

/// The dtypes of one call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    /// The dtype of each input in memory.
    pub inputs: DTypes,
    /// The dtype that inputs and numbers are converted to (`torch.result_type`), before anything is computed.
    pub common: DType,
    /// The dtype of the computation.
    pub compute: DType,
    /// The dtype of each output in memory.
    pub outputs: DTypes,
}

/// Samples and an independent oracle, from which the tests of an operator are generated.
#[derive(Clone, Copy)]
pub struct Examples {
    /// Values of the inputs, one list per sample. They are not at kinks, so that finite differences are meaningful.
    pub inputs: &'static [&'static [f64]],
    /// Values of the scalars.
    pub scalars: &'static [f64],
    /// The function in f64, implemented without this crate.
    pub reference: fn(&[f64], &[f64]) -> f64,
}

/// A function that computes the gradient of each input, in the compute dtype, from the result and its gradient. Scalars are those
/// of the operator.
pub type FromResult =
    for<'b> fn(&'b BodyBuilder, &Signature, Value<'b>, Value<'b>) -> SmallVec<[Value<'b>; 2]>;

/// A function that computes the gradient of each input, in the compute dtype. It adds the operator's inputs and numbers to the
/// builder, and then the gradient of the result.
pub type FromInputs = for<'b> fn(&'b BodyBuilder, &Signature) -> SmallVec<[Value<'b>; 2]>;

/// An operator that is a loop over points: an entry of the table.
#[derive(Clone, Copy)]
pub struct LoopOp {
    /// The operator's name: PyTorch's, if PyTorch has the operator.
    pub name: &'static str,
    /// The operator's signature, in the notation of [`schema`](crate::schema); `None` for an entry that is only a part of other
    /// operators: see [`LoopOp::schema`].
    pub aten: Option<&'static str>,
    /// The meaning of the operator, in a sentence.
    pub doc: &'static str,
    /// The number of tensors that the operator takes.
    pub input_count: usize,
    /// The names of the numbers that the operator takes.
    pub scalars: &'static [&'static str],
    /// The integers that the operator takes.
    pub sizes: Sizes,
    /// The rule for dtypes.
    pub rule: DTypeRule,
    /// The iteration space.
    pub space: Space,
    /// Whether each output is written once per row or once per point.
    pub outputs: &'static [OutputPlace],
    /// Writes the body for a signature.
    pub build: fn(&BodyBuilder, &Signature),
    /// The gradients of the inputs, if they are better computed from the result than derived: the next operator often keeps the
    /// result anyway, while an input would be kept only for this gradient.
    pub from_result: Option<FromResult>,
    /// The gradients of the inputs, if derived ones would differ from PyTorch's: at poles, and where the formula overflows.
    pub from_inputs: Option<FromInputs>,
    /// The dtype to which autocast casts the operator's tensors.
    pub autocast: Autocast,
    /// The operator that handles calls with complex numbers, if the formula has no meaning for them.
    pub complex: Option<&'static str>,
    /// Examples for tests; only elementwise operators have them here.
    pub examples: Option<Examples>,
}

impl LoopOp {
    /// A reduction of one floating-point input to one result per row, without a body. Entries override its fields
    /// (`..LoopOp::BASE`).
    pub const BASE: Self = Self {
        name: "",
        aten: None,
        doc: "",
        input_count: 1,
        scalars: &[],
        sizes: Sizes::None,
        rule: DTypeRule::FloatingPoint,
        space: Space::Rows,
        outputs: &[OutputPlace::Row],
        build: |_, _| {},
        from_result: None,
        from_inputs: None,
        autocast: Autocast::Unchanged,
        complex: None,
        examples: None,
    };
}

impl fmt::Debug for LoopOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoopOp({})", self.name)
    }
}

/// The reason why an operator refuses dtypes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DTypeError {
    text: String,
    /// Whether the operator is not implemented for a dtype (`NotImplementedError` in PyTorch).
    pub is_not_implemented: bool,
}

impl DTypeError {
    fn invalid(text: String) -> Self {
        Self { text, is_not_implemented: false }
    }

    fn not_implemented(text: String) -> Self {
        Self { text, is_not_implemented: true }
    }
}

impl fmt::Display for DTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DTypeError {}

impl LoopOp {
    /// Returns a number that identifies the operator: a hash of its name (FNV-1a). A test of the table checks that it is unique.
    pub const fn id(&self) -> u64 {
        let bytes = self.name.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut index = 0;
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            index += 1;
        }
        hash
    }

    /// Returns the signature of the operator. A part of other operators is called `thalweg::name` and takes tensors, numbers,
    /// integers and a dtype, in this order.
    pub fn schema(&self) -> Cow<'static, str> {
        if let Some(schema) = self.aten {
            return Cow::Borrowed(schema);
        }
        let mut parameters: Vec<String> =
            (0..self.input_count).map(|input| format!("Tensor input{input}")).collect();
        parameters.extend(self.scalars.iter().map(|name| format!("Scalar {name}")));
        parameters.extend(self.sizes.parameter().map(|name| format!("int[] {name}")));
        let is_asked = matches!(
            self.rule,
            DTypeRule::Converted | DTypeRule::Created | DTypeRule::Counted | DTypeRule::FloatingPointAs
        );
        if is_asked {
            parameters.push("ScalarType dtype".into());
        }
        let results = vec!["Tensor"; self.outputs.len()].join(", ");
        let results = if self.outputs.len() == 1 { results } else { format!("({results})") };
        Cow::Owned(format!("thalweg::{}({}) -> {results}", self.name, parameters.join(", ")))
    }

    /// Returns the full name of the operator: `add.Tensor`, or `thalweg::name` for a part.
    pub fn operator_name(&self) -> String {
        let schema = self.schema();
        schema.split_once('(').map_or_else(|| schema.to_string(), |(name, _)| name.to_owned())
    }

    /// Returns the dtypes of a call. `scalar_is_float` states whether a scalar argument is a floating-point number, which
    /// converts integers to f32 as in PyTorch; `requested` is the dtype that the call specifies, if the rule needs one.
    pub fn signature(
        &self,
        inputs: &[DType],
        scalar_is_float: bool,
        requested: Option<DType>,
    ) -> Result<Signature, DTypeError> {
        let scalars = if scalar_is_float { Category::FloatingPoint } else { Category::Bool };
        self.signature_of(inputs, 0, scalars, requested)
    }

    /// Returns [`LoopOp::signature`] for a call in which some inputs have no dimensions, as bits of `zero_dimensional`. These do
    /// not take part in promotion unless they have a higher category (bool, integers, floats, complex numbers) than all others.
    /// `scalars` is the highest category of the numbers: one above that of all tensors makes the tensors i64 or f32.
    pub fn signature_of(
        &self,
        inputs: &[DType],
        zero_dimensional: u32,
        scalars: Category,
        requested: Option<DType>,
    ) -> Result<Signature, DTypeError> {
        if inputs.len() != self.input_count {
            return Err(DTypeError::invalid(format!(
                "{} takes {} tensors, not {}",
                self.name,
                self.input_count,
                inputs.len()
            )));
        }
        let promote = |first| self.promote(inputs, first, zero_dimensional, scalars);
        let result = self.result_of(inputs, &promote, requested)?;
        let common = match self.rule {
            DTypeRule::Comparison | DTypeRule::Logical => promote(0)?,
            DTypeRule::FloatingPointAs => inputs[0],
            _ => result,
        };
        let compute = match self.rule {
            DTypeRule::FloatingPointAs | DTypeRule::Comparison => common.compute(),
            DTypeRule::NumericOrBool if result == DType::Bool => DType::I32,
            DTypeRule::Position => inputs[0].compute(),
            _ => result.compute(),
        };
        let outputs = std::iter::repeat_n(result, self.outputs.len()).collect();
        let signature = Signature { inputs: inputs.into(), common, compute, outputs };
        match inputs.iter().chain(&signature.outputs).find(|dtype| dtype.is_complex()) {
            Some(&dtype) if !self.takes_complex(&signature) => Err(self.not_for(dtype)),
            _ => Ok(signature),
        }
    }

    /// Returns whether the formula is defined for complex numbers, by its rule and by its primitives.
    fn takes_complex(&self, signature: &Signature) -> bool {
        let is_moved_or_computed =
            !matches!(self.rule, DTypeRule::Counted | DTypeRule::Bits | DTypeRule::Integers | DTypeRule::Sum);
        is_moved_or_computed && self.body(signature).complex_is_defined()
    }

    /// Returns PyTorch's error for an unsupported dtype.
    fn not_for(&self, dtype: DType) -> DTypeError {
        let named = if dtype == DType::C64 { "ComplexFloat" } else { "ComplexDouble" };
        DTypeError::not_implemented(format!("\"{}\" not implemented for '{named}'", self.name))
    }

    /// Returns the dtype to which the inputs from `first` on, and the numbers, promote.
    fn promote(
        &self,
        inputs: &[DType],
        first: usize,
        zero_dimensional: u32,
        scalars: Category,
    ) -> Result<DType, DTypeError> {
        result_type(&inputs[first..], zero_dimensional >> first)
            .map(|dtype| match scalars {
                Category::FloatingPoint if dtype.category() < scalars => default_dtype(),
                Category::Integer if dtype.category() < scalars => DType::I64,
                _ => dtype,
            })
            .map_err(|error| {
                DTypeError::invalid(format!("{} takes operands that promote: {error}", self.name))
            })
    }

    /// Returns the dtype of the results.
    fn result_of(
        &self,
        inputs: &[DType],
        promote: &dyn Fn(usize) -> Result<DType, DTypeError>,
        requested: Option<DType>,
    ) -> Result<DType, DTypeError> {
        let floating = |dtype: DType| if dtype.is_differentiable() { dtype } else { default_dtype() };
        let text = |why: &str| format!("{} does not take {}: {why}", self.name, names(inputs));
        let refuse = |why: &str| Err(DTypeError::not_implemented(text(why)));
        let only_moves = matches!(
            self.rule,
            DTypeRule::Condition | DTypeRule::Moved | DTypeRule::Converted | DTypeRule::Created
        );
        let counted = requested.filter(|_| self.rule == DTypeRule::Counted);
        if !only_moves && inputs.iter().copied().chain(counted).any(DType::is_float8) {
            return refuse("floats of 8 bits are for storage; convert with `to_dtype`");
        }
        Ok(match self.rule {
            DTypeRule::Bits | DTypeRule::Integers if promote(0)?.is_differentiable() => {
                return refuse("bits are those of integers and truth values");
            }
            DTypeRule::Numeric
            | DTypeRule::Negation
            | DTypeRule::NumericOrBool
            | DTypeRule::Bits
            | DTypeRule::Integers => match (promote(0)?, self.refusal_of_bool()) {
                (DType::Bool, Some(why)) => return Err(DTypeError::invalid(text(why))),
                (promoted, _) => promoted,
            },
            DTypeRule::Floating => floating(promote(0)?),
            DTypeRule::Comparison | DTypeRule::Logical => {
                promote(0)?;
                DType::Bool
            }
            DTypeRule::Condition if !matches!(inputs[0], DType::Bool | DType::U8) => {
                return Err(DTypeError::invalid(format!(
                    "where expected condition to be a boolean tensor, but got a tensor with dtype {}",
                    inputs[0]
                )));
            }
            DTypeRule::Condition => promote(1)?,
            DTypeRule::Sum if inputs[0].is_differentiable() => inputs[0],
            DTypeRule::Sum | DTypeRule::Position => DType::I64,
            DTypeRule::Classes | DTypeRule::WideClasses
                if !inputs[0].is_floating_point() || inputs[1] != DType::I64 =>
            {
                return refuse("it takes a floating-point tensor and int64 classes");
            }
            DTypeRule::WideClasses => inputs[0].compute(),
            DTypeRule::Widened | DTypeRule::FloatingPoint | DTypeRule::FloatingPointAs
                if !inputs[..1].iter().chain(&requested).all(|dtype| dtype.is_floating_point()) =>
            {
                return refuse("it takes floating-point tensors; convert with `to_dtype`");
            }
            DTypeRule::Widened => inputs[0].compute(),
            DTypeRule::FloatingPointAs => requested.unwrap_or(inputs[0]),
            DTypeRule::Classes | DTypeRule::FloatingPoint | DTypeRule::Moved => inputs[0],
            DTypeRule::Counted if requested == Some(DType::Bool) => {
                return Err(DTypeError::invalid(format!("{} counts in numbers, not in bool", self.name)));
            }
            DTypeRule::Converted | DTypeRule::Created | DTypeRule::Counted => match requested {
                Some(dtype) => dtype,
                None => return refuse("the call must say which dtype it wants"),
            },
        })
    }

    /// Returns the reason why the operator does not compute with truth values, if it does not.
    fn refusal_of_bool(&self) -> Option<&'static str> {
        match self.rule {
            DTypeRule::Negation => Some(
                "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the `~` or \
                 `logical_not()` operator instead.",
            ),
            DTypeRule::Numeric => Some("it is not defined for truth values; convert them first"),
            DTypeRule::Integers => Some("truth values are not shifted; convert them first"),
            _ => None,
        }
    }

    /// Returns the body for a signature.
    pub fn body(&self, signature: &Signature) -> Body {
        let builder = BodyBuilder::new();
        (self.build)(&builder, signature);
        builder.finish()
    }
}

/// Returns the dtype to which inputs are converted (`torch.result_type`). `zero_dimensional` has a bit for each input without
/// dimensions: of float32 with dimensions and complex128 without any, it is complex64.
///
/// # Errors
/// [`PromotionError`] if two of the dtypes have no common one.
pub fn result_type(inputs: &[DType], zero_dimensional: u32) -> Result<DType, PromotionError> {
    let of = |zero: bool| {
        let list =
            inputs.iter().enumerate().filter(|(index, _)| (zero_dimensional >> index & 1 == 1) == zero);
        let mut dtypes = list.map(|(_, &dtype)| dtype);
        let Some(first) = dtypes.next() else { return Ok(None) };
        dtypes.try_fold(first, DType::promote).map(Some)
    };
    match (of(false)?, of(true)?) {
        // The float keeps its width: the complex result's parts are as wide.
        (Some(dimensioned), Some(zero)) if dimensioned.is_floating_point() && zero.is_complex() => {
            Ok(dimensioned.complex())
        }
        (Some(dimensioned), Some(zero)) if zero.category() > dimensioned.category() => {
            dimensioned.promote(zero)
        }
        (Some(dtype), _) | (None, Some(dtype)) => Ok(dtype),
        (None, None) => Ok(default_dtype()),
    }
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// Returns a scalar argument as a value of the compute dtype; it is passed as f64 or i64.
pub fn scalar(builder: &BodyBuilder, compute: DType) -> Value<'_> {
    let travels = if compute.is_differentiable() { DType::F64 } else { DType::I64 };
    builder.scalar(travels).to(compute)
}

/// Returns the bits of a scalar argument in the form in which [`scalar`] reads it.
pub fn scalar_bits(value: Scalar, compute: DType) -> u64 {
    if compute.is_differentiable() {
        Scalar::F64(value.to_f64()).to_bits()
    } else {
        Scalar::I64(value.to_i64()).to_bits()
    }
}
