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
//! The method takes the parameters that the entry lists, which are the first ones of the schema after `self`; the others have
//! their defaults. Where the first is not a tensor it is a function of the type: `of fn einsum(equation: str, tensors: tensors)`. Behind the body may stand, in this order, the names of the forms that PyTorch names by no rule:
//! `in_place: "pow_.Scalar"`, `out_form: "max.unary_out"`; what it asks of the tensors of the `out=` form: `out: [Apart]`
//! ([`OutRule`]); how it treats the first tensor of its form in place: `first: Consumed` ([`First`](crate::destination::First));
//! whether the operator draws although its schema has no generator: `generator: true`; the dtype that autocast gives
//! the tensors: `autocast: Full`, and `autocast: Parts` for an operator that PyTorch makes of others in every case ([`Autocast`](thalweg_ops::Autocast)); and how complex numbers are computed: `complex: Taken`
//! ([`Complex`]).
//! Elementwise operators are entries of [`thalweg_ops::elementwise_operators`] instead, where a formula is all that is needed.

mod advanced_index;
mod alias;
mod assemble;
mod attention;
pub(crate) mod body;
mod calculus;
mod compare;
mod complex;
mod complex_functions;
mod complex_matrices;
mod counting;
mod create;
mod ctc;
mod decompose;
mod distance;
mod eigenvalues;
mod einsum;
mod factories;
mod fft;
mod grid;
pub(crate) mod in_place;
mod in_place_methods;
mod indefinite;
pub(crate) mod index;
mod join;
mod least_squares;
mod linalg;
mod loss;
mod margin;
mod matrix;
mod matrix_norm;
mod methods;
pub(crate) mod norm;
pub(crate) mod norm_backward;
mod offers;
pub(crate) mod out;
mod padding;
mod pointwise;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod resample;
mod scan;
mod segment;
mod sliding;
mod solve;
mod sort;
mod special;
mod split;
mod statistics;
mod stft;
mod unpool;
mod view;
mod view_copy;
mod window;

use std::panic::Location;

use thalweg_ops::structured;
use thalweg_runtime::{Device, Result};

pub(crate) use advanced_index::truth_values;
pub(crate) use body::{Body, Complex, OpDef, single};
pub(crate) use out::OutRule;
pub(crate) use view::{channels_last_order, format_order, is_channels_last};

use crate::autocast;
use crate::caller::label_at;
use crate::dispatch::{Argument, DispatchKey, Operator};
use crate::tensor::{Tensor, Tensors};

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
    ctc::OPERATORS,
    decompose::OPERATORS,
    solve::OPERATORS,
    least_squares::OPERATORS,
    indefinite::OPERATORS,
    eigenvalues::OPERATORS,
    matrix_norm::OPERATORS,
    norm::OPERATORS,
    norm_backward::OPERATORS,
    loss::OPERATORS,
    sliding::OPERATORS,
    window::OPERATORS,
    pool::OPERATORS,
    scan::OPERATORS,
    resample::OPERATORS,
    einsum::OPERATORS,
    fft::OPERATORS,
    stft::OPERATORS,
    sort::OPERATORS,
    view_copy::OPERATORS,
    split::OPERATORS,
    assemble::OPERATORS,
    alias::OPERATORS,
    matrix::OPERATORS,
    calculus::OPERATORS,
    compare::OPERATORS,
    complex::OPERATORS,
    complex_functions::OPERATORS,
    quantized::OPERATORS,
    statistics::OPERATORS,
    counting::OPERATORS,
    segment::OPERATORS,
    special::OPERATORS,
    attention::OPERATORS,
    unpool::OPERATORS,
    grid::OPERATORS,
    margin::OPERATORS,
    distance::OPERATORS,
    padding::OPERATORS,
    random::OPERATORS,
    recurrent::OPERATORS,
    crate::kernels::INTERNAL,
];

/// Hands every built-in operator to a function.
pub(crate) fn define_all(mut define: impl FnMut(&OpDef)) {
    thalweg_ops::elementwise()
        .for_each(|entry| define(&OpDef { method: Some(entry.name), ..OpDef::of_loop(entry) }));
    let called = structured::CALLED.iter().copied();
    thalweg_ops::parts().chain(called).for_each(|entry| define(&OpDef::of_loop(entry)));
    FAMILIES.iter().copied().flatten().for_each(define);
}

/// Returns the kernels of an operator, by key.
pub(crate) fn kernels(definition: &OpDef) -> body::Kernels {
    let mut kernels = definition.body.kernels();
    let is_composite = matches!(definition.body, Body::Composite(_));
    let of_autocast =
        autocast::kernel(definition.autocast, is_composite).map(|kernel| (DispatchKey::Autocast, kernel));
    let of_complex = complex::kernel(definition).map(|kernel| (DispatchKey::Complex, kernel));
    kernels.extend(of_autocast.into_iter().chain(of_complex));
    kernels
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
    (optional_floats) => { Option<&[f64]> };
    (optional_scalar) => { Option<thalweg_ir::Scalar> };
    (optional_bool) => { Option<bool> };
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

/// The method of an entry, if it has one: of one result, of several, of a list, or of a truth value that the host reads. One whose first
/// parameter is not a tensor is a function of the type.
macro_rules! method {
    ([$($doc:literal)+] $schema:literal) => {};
    ([$($doc:literal)+] $schema:literal of $name:ident($($parameter:ident: $kind:ident),*) $($results:tt)*) => {
        $crate::operators::method! { @define [$($doc)+] $schema $name() [] ($($parameter: $kind),*) $($results)* }
    };
    ([$($doc:literal)+] $schema:literal $name:ident($($parameter:ident: $kind:ident),*) $($results:tt)*) => {
        $crate::operators::method! { @define [$($doc)+] $schema $name(self) [] ($($parameter: $kind),*) $($results)* }
    };
    (@define [$($doc:literal)+] $schema:literal $name:ident($($this:ident)?) [] ($($parameter:ident: $kind:ident),*) $($results:tt)*) => {
        impl Tensor {
            $(#[doc = $doc])+
            ///
            #[doc = $crate::operators::method!(@timing $($results)*)]
            #[track_caller]
            #[allow(clippy::too_many_arguments)] // as many as PyTorch's
            pub fn $name($(&$this,)? $($parameter: $crate::operators::parameter!($kind)),*)
                -> thalweg_runtime::Result<$crate::operators::method!(@type $($results)*)>
            {
                let results = $crate::operators::call_all(
                    $crate::dispatch::built_in!($schema)?,
                    &[$($crate::dispatch::Argument::Tensor($this),)? $($crate::operators::argument!($kind, $parameter)),*],
                    None,
                    std::panic::Location::caller(),
                )?;
                $crate::operators::method!(@result results $($results)*)
            }
        }
    };
    (@timing -> bool) => { "Blocks." };
    (@timing $($results:tt)*) => { "Asynchronous." };
    (@type) => { Tensor };
    (@type -> bool) => { bool };
    (@type -> list) => { Vec<Tensor> };
    (@type -> $count:literal) => { [Tensor; $count] };
    (@result $found:ident) => {{
        let mut found = $found;
        Ok(found.swap_remove(0))
    }};
    (@result $found:ident -> bool) => { $found[0].item::<bool>() };
    (@result $found:ident -> list) => { Ok($found.into_vec()) };
    (@result $found:ident -> $count:literal) => {
        Ok($found.into_vec().try_into().expect("the operator has so many results"))
    };
}

/// A family: its entries as values, and their methods.
macro_rules! operators {
    ($(
        $(#[doc = $doc:literal])+
        $schema:literal
        $(of fn $function:ident($($given:ident: $given_kind:ident),*) $(-> $outcome:tt)?)?
        $(fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $results:tt)?)?
        = $body:expr
        $(, in_place: $in_place:literal)?
        $(, out_form: $out_form:literal)?
        $(, out: [$($rule:ident),+])?
        $(, first: $first:ident)?
        $(, generator: $generator:literal)?
        $(, autocast: $autocast:ident)?
        $(, complex: $complex:ident $(($parts:expr))?)?;
    )*) => {
        /// The operators of this family.
        pub(super) static OPERATORS: &[$crate::operators::OpDef] =
            &[$($crate::operators::OpDef {
                schema: $schema,
                doc: concat!($($doc, "\n"),+),
                method: [$(Some(stringify!($function)),)? $(Some(stringify!($name)),)? None][0],
                body: $body,
                in_place: [$(Some($in_place),)? None][0],
                out_form: [$(Some($out_form),)? None][0],
                out: &[$($($crate::operators::OutRule::$rule),+)?],
                first: [$($crate::destination::First::$first,)? $crate::destination::First::Read][0],
                generator: [$($generator,)? false][0],
                autocast: [$(thalweg_ops::Autocast::$autocast,)? thalweg_ops::Autocast::Unchanged][0],
                complex: [
                    $($crate::operators::Complex::$complex $(($parts))?,)?
                    $crate::operators::Complex::ByBody,
                ][0],
            }),*];

        $($crate::operators::method! {
            [$($doc)+] $schema
            $(of $function($($given: $given_kind),*) $(-> $outcome)?)?
            $($name($($parameter: $kind),*) $(-> $results)?)?
        })*
    };
}

pub(crate) use {argument, method, operators, parameter};
