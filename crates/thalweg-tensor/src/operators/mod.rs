//! The operators: **one entry is one operator**, in the file of its family.
//!
//! An entry names its schema as PyTorch's `native_functions.yaml` writes it, the method of [`Tensor`] that it gives, and its body:
//!
//! ```text
//! /// What it computes: this becomes the method's documentation.
//! "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
//!     fn softmax(dim: int) = Composite(softmax);
//! ```
//!
//! The method takes the parameters that the entry lists, which are the first ones of the schema behind `self`; the others have
//! their defaults. Elementwise operators are entries of [`thalweg_ops::elementwise_operators`] instead, where a formula is all that
//! is needed.

mod advanced_index;
mod alias;
mod assemble;
mod attention;
mod calculus;
mod compare;
mod counting;
mod create;
mod distance;
mod einsum;
mod grid;
pub(crate) mod in_place;
pub(crate) mod index;
mod join;
mod linalg;
mod loss;
mod margin;
mod matrix;
mod methods;
mod norm;
pub(crate) mod norm_backward;
mod padding;
mod pointwise;
mod pool;
mod random;
mod reduce;
mod resample;
mod scan;
mod sort;
mod special;
mod split;
mod statistics;
mod unpool;
mod view;
mod view_copy;
mod window;

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ops::LoopOp;
use thalweg_runtime::{Device, Result};

use crate::autograd::formula::Formula;
use crate::caller::{enter, label_at};
use crate::dispatch::{Argument, Call, DispatchKey, KernelFunction, Operator};
use crate::kernels::loops::{self, LoopCall};
use crate::tensor::{Tensor, Tensors};

/// An operator as data.
pub(crate) struct OpDef {
    /// The signature, in the notation of `native_functions.yaml`.
    pub schema: &'static str,
    /// The documentation, in sentences; empty for a part of other operators.
    pub doc: &'static str,
    /// The body: how it is computed.
    pub body: Body,
}

impl OpDef {
    /// Makes an entry that is a part of other operators, without a method.
    pub(crate) const fn part(schema: &'static str, body: Body) -> Self {
        Self { schema, doc: "", body }
    }
}

/// How an operator is computed.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// By a loop over points, which takes the arguments as they stand. The gradient is derived.
    Loop(&'static LoopOp),
    /// By a loop that the arguments choose. The gradient is derived.
    Lowered(for<'a> fn(&'a Call<'a>) -> Result<LoopCall<'a>>),
    /// By other operators, which autograd sees.
    Composite(fn(&Call<'_>) -> Result<Tensors>),
    /// By a kernel; there is no gradient.
    Kernel(fn(&Call<'_>) -> Result<Tensors>),
    /// By a kernel, with a gradient by a formula.
    Differentiable(fn(&Call<'_>) -> Result<Tensors>, &'static Formula),
    /// By a kernel for backends and one for autograd.
    Pair(fn(&Call<'_>) -> Result<Tensors>, fn(&Call<'_>) -> Result<Tensors>),
    /// By another operator, whose result is written into the first argument.
    InPlace(&'static Operator),
    /// By another operator, whose results are written into the last arguments.
    Out(&'static Operator),
}

/// Kernels by key, under which an operator is defined.
pub(crate) type Kernels = SmallVec<[(DispatchKey, KernelFunction); 4]>;

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
            Self::Out(_) => "the operator that returns its results, written into `out`",
        }
    }

    /// Returns the kernels that answer.
    pub(crate) fn kernels(self) -> Kernels {
        let (backend, autograd): (KernelFunction, Option<KernelFunction>) = match self {
            Self::Loop(operator) => (
                Arc::new(move |call| loops::run(&LoopCall::of(operator, call)?, call.resolved)),
                Some(Arc::new(move |call| loops::autograd(&LoopCall::of(operator, call)?, call))),
            ),
            Self::Lowered(lower) => (
                Arc::new(move |call| loops::run(&lower(call)?, call.resolved)),
                Some(Arc::new(move |call| loops::autograd(&lower(call)?, call))),
            ),
            Self::Composite(function) | Self::Kernel(function) => (
                Arc::new(move |call| {
                    // What it calls names the line of this call.
                    let _entered = enter(call.label.location);
                    function(call)
                }),
                None,
            ),
            Self::Differentiable(function, formula) => {
                (Arc::new(function), Some(Arc::new(|call| formula.record(call))))
            }
            Self::InPlace(functional) => (
                Arc::new(move |call| {
                    let _entered = enter(call.label.location);
                    in_place::run(functional, call)
                }),
                None,
            ),
            Self::Out(returning) => (Arc::new(move |call| in_place::run_out(returning, call)), None),
            Self::Pair(backend, autograd) => (Arc::new(backend), Some(Arc::new(autograd))),
        };
        let backends = DispatchKey::BACKENDS.map(|key| (key, backend.clone()));
        backends.into_iter().chain(autograd.map(|kernel| (DispatchKey::Autograd, kernel))).collect()
    }
}

/// Every family.
static FAMILIES: &[&[OpDef]] = &[
    pointwise::OPERATORS,
    reduce::OPERATORS,
    join::OPERATORS,
    view::OPERATORS,
    create::OPERATORS,
    index::OPERATORS,
    advanced_index::OPERATORS,
    linalg::OPERATORS,
    norm::OPERATORS,
    norm_backward::OPERATORS,
    loss::OPERATORS,
    window::OPERATORS,
    pool::OPERATORS,
    scan::OPERATORS,
    resample::OPERATORS,
    einsum::OPERATORS,
    sort::OPERATORS,
    view_copy::OPERATORS,
    split::OPERATORS,
    assemble::OPERATORS,
    alias::OPERATORS,
    matrix::OPERATORS,
    calculus::OPERATORS,
    compare::OPERATORS,
    statistics::OPERATORS,
    counting::OPERATORS,
    special::OPERATORS,
    attention::OPERATORS,
    unpool::OPERATORS,
    grid::OPERATORS,
    margin::OPERATORS,
    distance::OPERATORS,
    padding::OPERATORS,
    random::OPERATORS,
    crate::kernels::INTERNAL,
];

/// Defines every built-in operator.
pub(crate) fn define_all(define: &mut dyn FnMut(&str, &'static str, Body)) {
    for entry in thalweg_ops::elementwise().chain(thalweg_ops::parts()).chain(crate::kernels::loop_entries())
    {
        define(&entry.schema(), entry.doc, Body::Loop(entry));
    }
    for operator in FAMILIES.iter().copied().flatten() {
        define(operator.schema, operator.doc, operator.body);
    }
}

/// Calls an operator that gives one tensor.
pub(crate) fn call(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<&Device>,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let mut results = call_all(operator, arguments, device, location)?;
    Ok(results.swap_remove(0))
}

/// Calls an operator.
pub(crate) fn call_all(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<&Device>,
    location: &'static Location<'static>,
) -> Result<Tensors> {
    operator.call(arguments, device, label_at(operator.base_name(), location))
}

/// Returns one tensor as the results of a kernel.
pub(crate) fn single(tensor: Tensor) -> Tensors {
    SmallVec::from_elem(tensor, 1)
}

/// The Rust type of a method's parameter.
macro_rules! parameter {
    (tensor) => { &$crate::Tensor };
    (optional_tensor) => { Option<&$crate::Tensor> };
    (tensors) => { &[$crate::Tensor] };
    (optional_tensors) => { &[Option<$crate::Tensor>] };
    (scalar) => { impl Into<thalweg_ir::Scalar> };
    (int) => { i64 };
    (optional_int) => { Option<i64> };
    (ints) => { &[i64] };
    (optional_ints) => { Option<&[i64]> };
    (sizes) => { &[usize] };
    (float) => { f64 };
    (optional_float) => { Option<f64> };
    (bool) => { bool };
    (str) => { &str };
    (optional_str) => { Option<&str> };
    (dtype) => { thalweg_ir::DType };
    (optional_dtype) => { Option<thalweg_ir::DType> };
}

/// A method's parameter as an argument.
macro_rules! argument {
    (scalar, $value:ident) => {
        $crate::dispatch::Argument::Scalar($value.into())
    };
    (sizes, $value:ident) => {
        $crate::dispatch::Argument::Ints($crate::dispatch::as_ints($value))
    };
    ($kind:ident, $value:ident) => {
        $crate::dispatch::Argument::from($value)
    };
}

/// The method of an entry, if it has one: of one result, of several, or of a list.
macro_rules! method {
    ([$($doc:literal)+] $schema:literal) => {};
    ([$($doc:literal)+] $schema:literal $name:ident($($parameter:ident: $kind:ident),*)) => {
        impl Tensor {
            $(#[doc = $doc])+
            ///
            /// Asynchronous.
            #[track_caller]
            #[allow(clippy::too_many_arguments)] // as many as PyTorch's
            pub fn $name(&self $(, $parameter: $crate::operators::parameter!($kind))*) -> thalweg_runtime::Result<Tensor> {
                $crate::operators::call(
                    $crate::dispatch::built_in!($schema)?,
                    &[$crate::dispatch::Argument::Tensor(self) $(, $crate::operators::argument!($kind, $parameter))*],
                    None,
                    std::panic::Location::caller(),
                )
            }
        }
    };
    ([$($doc:literal)+] $schema:literal $name:ident($($parameter:ident: $kind:ident),*) -> $count:literal) => {
        impl Tensor {
            $(#[doc = $doc])+
            ///
            /// Asynchronous.
            #[track_caller]
            pub fn $name(&self $(, $parameter: $crate::operators::parameter!($kind))*) -> thalweg_runtime::Result<[Tensor; $count]> {
                let results = $crate::operators::call_all(
                    $crate::dispatch::built_in!($schema)?,
                    &[$crate::dispatch::Argument::Tensor(self) $(, $crate::operators::argument!($kind, $parameter))*],
                    None,
                    std::panic::Location::caller(),
                )?;
                Ok(results.into_vec().try_into().expect("the operator has so many results"))
            }
        }
    };
    ([$($doc:literal)+] $schema:literal $name:ident($($parameter:ident: $kind:ident),*) -> list) => {
        impl Tensor {
            $(#[doc = $doc])+
            ///
            /// Asynchronous.
            #[track_caller]
            pub fn $name(&self $(, $parameter: $crate::operators::parameter!($kind))*) -> thalweg_runtime::Result<Vec<Tensor>> {
                let results = $crate::operators::call_all(
                    $crate::dispatch::built_in!($schema)?,
                    &[$crate::dispatch::Argument::Tensor(self) $(, $crate::operators::argument!($kind, $parameter))*],
                    None,
                    std::panic::Location::caller(),
                )?;
                Ok(results.into_vec())
            }
        }
    };
}

/// A family: its entries as values, and their methods.
macro_rules! operators {
    ($(
        $(#[doc = $doc:literal])+
        $schema:literal
        $(fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $results:tt)?)?
        = $body:expr;
    )*) => {
        /// The operators of this family.
        pub(super) static OPERATORS: &[$crate::operators::OpDef] =
            &[$($crate::operators::OpDef { schema: $schema, doc: concat!($($doc, "\n"),+), body: $body }),*];

        $($crate::operators::method! {
            [$($doc)+] $schema $($name($($parameter: $kind),*) $(-> $results)?)?
        })*
    };
}

pub(crate) use {argument, method, operators, parameter};
