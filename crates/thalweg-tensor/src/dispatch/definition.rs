//! [`OpDef`] and [`Body`]: an operator as data. `derived` builds the kernels from the body.

use std::borrow::Cow;

use smallvec::SmallVec;
use thalweg_ops::{Autocast, LoopOp};
use thalweg_runtime::Result;

use super::{Call, Operator};
use crate::autograd::formula::Formula;
use crate::destination::First;
use crate::loops::LoopCall;
use crate::tensor::{Tensor, Tensors};

/// An operator as data.
pub(crate) struct OpDef {
    /// The signature, in the notation of `native_functions.yaml`.
    pub schema: &'static str,
    /// The documentation, in sentences; empty for a part of other operators.
    pub doc: &'static str,
    /// The method of [`Tensor`] that its entry defines.
    pub method: Option<&'static str>,
    /// The body: how it is computed.
    pub body: Body,
    /// The name of its in-place form, if that is not its own name with `_` after the base name: `pow_.Scalar` of
    /// `pow.Tensor_Scalar`. An operator that returns a view has an in-place form only if its entry names it. Empty if there is
    /// none.
    pub in_place: Option<&'static str>,
    /// The name of its `out=` form, if no rule determines it; in brackets the names of the tensors that the form writes, if they
    /// differ from those of the results: `max.dim_max(max, max_values)`.
    pub out_form: Option<&'static str>,
    /// The conditions on the tensors that its `out=` form writes, in addition to those of every form.
    pub out: &'static [OutRule],
    /// The way in which the operator treats the first tensor of its in-place form. A loop may always overwrite it.
    pub first: First,
    /// Whether the operator draws random numbers although its schema has no generator: PyTorch's overload with a generator is a
    /// separate operator.
    pub generator: bool,
    /// The dtype to which autocast casts the operator's tensors.
    pub autocast: Autocast,
    /// The computation of complex numbers.
    pub complex: Complex,
}

impl OpDef {
    /// Makes an entry that is a part of other operators, without a method.
    pub(crate) const fn part(schema: &'static str, body: Body) -> Self {
        Self {
            schema,
            doc: "",
            method: None,
            body,
            in_place: None,
            out_form: None,
            out: &[],
            first: First::Read,
            generator: false,
            autocast: Autocast::Unchanged,
            complex: Complex::ByBody,
        }
    }

    /// Makes the entry of an operator that is a loop.
    pub(crate) fn of_loop(entry: &'static LoopOp) -> Self {
        let complex = entry.complex.map_or(Complex::ByBody, Complex::Operator);
        let part = Self { first: First::Consumed, ..Self::part(leaked(entry.schema()), Body::Loop(entry)) };
        Self { doc: entry.doc, autocast: entry.autocast, complex, ..part }
    }
}

/// Returns a text with the lifetime of the process, like that of operators.
pub(crate) fn leaked(text: Cow<'static, str>) -> &'static str {
    match text {
        Cow::Borrowed(text) => text,
        Cow::Owned(text) => Box::leak(text.into_boxed_str()),
    }
}

/// The way in which an operator computes complex numbers.
#[derive(Clone, Copy)]
pub(crate) enum Complex {
    /// By its body: a loop by its formula, a composite operator by the operators that it calls, none of which may lose imaginary
    /// parts. Kernels refuse complex numbers.
    ByBody,
    /// By its body, which needs no further care: it moves elements, tests whether they are 0, converts them, or takes complex
    /// numbers only.
    Taken,
    /// By other operators on the real and imaginary parts.
    Parts(fn(&Call<'_>) -> Result<Tensors>),
    /// By the operator of this name.
    Operator(&'static str),
    /// Like `ByBody`, but a complex number argument has the dtype complex128, for any dtype of the tensors.
    Wide,
    /// Like `ByBody`, but an argument that is a complex number makes two calls, one with each part.
    EachPart,
    /// Like `ByBody`, but an argument that is a complex number is repeated at every index, for the operator of this name.
    Repeated(&'static str),
    /// Like `ByBody`, but with a complex factor it is computed as the first tensor, times `beta` if there is one, plus the last
    /// factor times the product that the operator of this name computes.
    Sum(&'static str),
}

/// The way in which an operator is computed.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// By a loop over points, which takes the arguments unchanged. The gradient is derived.
    Loop(&'static LoopOp),
    /// By a loop that the arguments choose. The gradient is derived.
    Lowered(for<'a> fn(&'a Call<'a>) -> Result<LoopCall<'a>>),
    /// By other operators, which autograd records.
    Composite(fn(&Call<'_>) -> Result<Tensors>),
    /// By a kernel; there is no gradient.
    Kernel(fn(&Call<'_>) -> Result<Tensors>),
    /// By a kernel, with a gradient by a formula.
    Differentiable(fn(&Call<'_>) -> Result<Tensors>, &'static Formula),
    /// By a kernel for backends and one for autograd.
    Pair(fn(&Call<'_>) -> Result<Tensors>, fn(&Call<'_>) -> Result<Tensors>),
    /// By another operator, whose result is written into the first argument.
    InPlace(&'static Operator),
    /// By another operator, whose result is a view: the first argument becomes that view.
    InPlaceView(&'static Operator),
    /// By another operator, whose results are written into the last arguments.
    Out(&'static Operator),
    /// By the kernels that a program registers for it.
    Registered,
}

impl Body {
    /// Returns how the operator is computed and where its gradient comes from, in words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Loop(_) | Self::Lowered(_) => "one loop; the gradient is derived",
            Self::Composite(_) => "other operators, and so is the gradient",
            Self::Kernel(_) => "a kernel; there is no gradient",
            Self::Differentiable(..) => "a kernel; the gradient is a formula of operators",
            Self::Pair(..) => "a kernel; the gradient is another",
            Self::InPlace(_) => "the operator without `_`, written into the first argument",
            Self::InPlaceView(_) => "the operator without `_`, whose view the first argument becomes",
            Self::Out(_) => "the operator that returns its results, written into `out`",
            Self::Registered => "the kernels that were registered for it",
        }
    }
}

/// A condition of PyTorch's on the tensors that the `out=` form of an operator writes.
#[derive(Clone, Copy)]
pub(crate) enum OutRule {
    /// The dtype of the result: it is not converted.
    OfResult,
    /// The dtype of the first input.
    SameDType,
    /// The dtype of complex numbers whose parts have the first input's.
    ComplexOfFirst,
    /// The dtype int64.
    Int64,
    /// The dtype int64, with another message.
    Long,
    /// The dtype of the first input, with a message that names the result whose dtype differs.
    EachOfFirst,
    /// Any dtype: truth values are written as its numbers.
    AnyDType,
    /// Memory that no input shares.
    Unshared,
    /// A truth value.
    Boolean,
    /// A truth value, or a byte.
    Truth,
    /// Accepts any tensor; a given tensor with the right number of elements keeps its shape.
    KeepsShape,
    /// The dtype that the call names. If it names none, the operator computes in that of the given tensor.
    GivesDType,
}

/// Returns one tensor as the results of a kernel.
pub(crate) fn single(tensor: Tensor) -> Tensors {
    SmallVec::from_elem(tensor, 1)
}
