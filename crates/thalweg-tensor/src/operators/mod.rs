//! The operators: **one entry is one operator**, in the file of its family.
//!
//! An entry states its schema in the notation of PyTorch's `native_functions.yaml`, the method of [`Tensor`] that it defines, and
//! its body:
//!
//! ```text
//! /// What it computes: this becomes the method's documentation.
//! "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
//!     fn softmax(dim: int) = Composite(softmax);
//! ```
//!
//! The method takes the parameters that the entry lists, which are the first ones of the schema after `self`; the others have
//! their defaults. If the first is not a tensor, the method is an associated function: `of fn einsum(equation: str, tensors:
//! tensors)`. The body may be followed, in this order, by the names of forms for which PyTorch follows no rule: `in_place:
//! "pow_.Scalar"`, `out_form: "max.unary_out"`; the conditions on the tensors of the `out=` form: `out: [Unshared]` ([`OutRule`]);
//! how it treats the first tensor of its in-place form: `first: Consumed` ([`First`](crate::destination::First)); whether the
//! operator draws although its schema has no generator: `generator: true`; the dtype to which autocast casts the tensors:
//! `autocast: Full`, and `autocast: Parts` for an operator that PyTorch always composes from others
//! ([`Autocast`](thalweg_ops::Autocast)); and how complex numbers are computed: `complex: Taken` ([`Complex`]). The union of the
//! families is in `table.rs`. Elementwise operators are entries of [`thalweg_ops::elementwise_operators`] instead, if a formula
//! is sufficient.

mod advanced_index;
mod alias;
mod assemble;
mod attention;
mod calculus;
mod compare;
mod complex;
mod complex_factors;
mod complex_functions;
mod complex_matrices;
mod complex_spectra;
mod counting;
mod create;
mod ctc;
mod decompose;
mod decompose_library;
mod distance;
mod eigenvalues;
mod einsum;
mod embedding;
#[cfg(any(doc, doctest))]
mod examples;
mod factories;
mod fft;
mod fft_library;
mod grid;
mod in_place_methods;
mod indefinite;
mod index;
mod index_slices;
mod join;
mod least_squares;
mod linalg;
mod lists;
mod loss;
mod margin;
mod matrix;
mod matrix_norm;
mod methods;
mod norm;
mod norm_backward;
mod padding;
mod parts;
mod pointwise;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod recurrent_networks;
mod reduce;
mod reflectors;
mod repeated;
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
mod table;
mod unpool;
mod view;
mod view_copy;
mod window;

pub(crate) use advanced_index::truth_values;

pub(crate) use crate::dispatch::{Body, Complex, OpDef, OutRule, call, call_all, single};

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
    (sizes) => { impl $crate::Sizes };
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
        $crate::dispatch::Argument::Ints(&$value.sizes())
    };
    ($kind:ident, $value:ident) => {
        $crate::dispatch::Argument::from($value)
    };
}

/// The method of an entry, if it has one, with one result, several, a list, or a truth value that the host reads. A method whose
/// first parameter is not a tensor is an associated function.
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
            #[cfg_attr(any(doc, doctest), doc = $crate::operators::examples::example!($name))]
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
