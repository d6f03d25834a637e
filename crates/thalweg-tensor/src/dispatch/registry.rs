//! The registry: every operator by its name. Built-in operators are defined at the first look-up, forms that write into given
//! tensors when they are looked up themselves.
//!
//! The built-in operators are above this module: their table implements [`Entries`] for [`OperatorTable`].
//!
//! The registry and the functions for complex numbers depend on each other: the registry stores the functions in each operator,
//! and they look up other operators here.

use std::panic::Location;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;
use thalweg_lock::RwLock;
use thalweg_ops::LoopOp;
use thalweg_ops::schema::{Kind, Parameter, Schema, base_name};
use thalweg_runtime::{Error, Result, invalid, refuse};

use super::complex_number::with_complex_number;
use super::definition::{Body, OpDef, leaked};
use super::derived::kernels;
use super::{Operator, in_place, out};
use crate::argument::{Forms, default_of};
use crate::caller::outermost;

/// Entries that the registry begins with.
pub(crate) trait Entries {
    /// Passes every entry to a function.
    fn for_each(define: impl FnMut(&OpDef));
}

/// The table of the built-in operators (`operators::table`).
pub(crate) struct OperatorTable;

/// The operators by name. Built-in ones are defined on first use.
#[derive(Default)]
struct Names {
    operators: FxHashMap<&'static str, &'static Operator>,
    /// The operators by the names that their entries state for their in-place and `out=` forms.
    forms: FxHashMap<&'static str, &'static Operator>,
}

struct Registry(RwLock<Names>);

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let registry = Registry(RwLock::default());
        OperatorTable::for_each(|definition| {
            let defined = registry.define(definition);
            defined.expect("built-in schemas are right, and their names unique");
        });
        registry
    })
}

impl Registry {
    fn define(&self, definition: &OpDef) -> Result<&'static Operator> {
        let schema = Schema::parse(definition.schema).map_err(|error| Error::invalid(error.to_string()))?;
        let mut names = self.0.write();
        if names.operators.contains_key(schema.name.as_str()) {
            refuse!("operator {} is defined already; register kernels on it instead", schema.name);
        }
        let name = leaked(schema.name.clone().into());
        let default = |parameter: &Parameter| Some(default_of(parameter).ok()?.to_value());
        let parameters = (schema.parameters.iter())
            .map(|parameter| (Forms::of(&parameter.ty), default(parameter)))
            .collect();
        let base_name = base_name(name);
        let slots = Default::default();
        let &OpDef { doc, method, body, in_place, out_form, out, first, generator, complex, .. } = definition;
        let has_generator = || schema.parameters.iter().any(|parameter| parameter.ty.kind == Kind::Generator);
        let takes_generator = generator || has_generator();
        let operator = Operator {
            name,
            base_name,
            schema,
            doc,
            method,
            parameters,
            body,
            in_place,
            out_form,
            out,
            first,
            takes_generator,
            complex,
            with_complex_number,
            of_tensors: OnceLock::new(),
            slots,
        };
        for (key, kernel) in kernels(definition) {
            let former = operator.slots[key as usize].built_in.set(kernel);
            debug_assert!(former.is_ok(), "{name}: one built-in kernel per key");
        }
        let operator: &'static Operator = Box::leak(Box::new(operator));
        names.operators.insert(name, operator);
        let forms = in_place
            .into_iter()
            .filter(|form| !form.is_empty())
            .chain(out_form.map(|form| out::named_form(form).0));
        forms.for_each(|form| {
            names.forms.insert(form, operator);
        });
        Ok(operator)
    }
}

/// A built-in operator at one call site: it is looked up by name once.
pub(crate) struct BuiltIn {
    name: &'static str,
    operator: OnceLock<&'static Operator>,
}

impl BuiltIn {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, operator: OnceLock::new() }
    }

    /// Returns the operator.
    pub(crate) fn get(&self) -> Result<&'static Operator> {
        if let Some(operator) = self.operator.get() {
            return Ok(operator);
        }
        // A schema names its operator before its parameters.
        let name = self.name.split_once('(').map_or(self.name, |(name, _)| name);
        let operator = find_operator(name)?;
        Ok(self.operator.get_or_init(|| operator))
    }
}

/// The built-in operator of a literal name, looked up only the first time.
macro_rules! built_in {
    ($name:expr) => {{
        static OPERATOR: $crate::dispatch::BuiltIn = $crate::dispatch::BuiltIn::new($name);
        OPERATOR.get()
    }};
}
pub(crate) use built_in;

/// Returns the operator with a name, including its overload: `add.Tensor`. Every operator with one result has an in-place form,
/// whose name has `_` after the base name: `add_.Tensor` writes the result into `self` and returns it. It also has a form that
/// writes the result into `out`: `add.Tensor_out`.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there is no such operator.
#[track_caller]
pub fn find_operator(name: &str) -> Result<&'static Operator> {
    let location = outermost(Location::caller());
    let read = || registry().0.read();
    let find = |name: &str| read().operators.get(name).copied();
    if let Some(operator) = find(name) {
        return Ok(operator);
    }
    let missing =
        || invalid!("there is no operator {name}; define it with `dispatch::define_operator`").at(location);
    let named = read().forms.get(name).copied();
    let functional = match named {
        Some(named) => Some(named).filter(|operator| operator.in_place == Some(name)),
        None => in_place::functional_name(name).and_then(|name| find(&name)),
    };
    let (schema, body) = if let Some(functional) = functional {
        let is_view = in_place::is_view(functional);
        let body = if is_view { Body::InPlaceView(functional) } else { Body::InPlace(functional) };
        (in_place::schema(functional, name), body)
    } else {
        let by_rule = || out::returning_names(name).iter().find_map(|name| find(name));
        let returning = named.or_else(by_rule).ok_or_else(missing)?;
        (out::schema(returning, name), Body::Out(returning))
    };
    let schema = leaked(schema.ok_or_else(missing)?.to_string().into());
    match registry().define(&OpDef::part(schema, body)) {
        Ok(operator) => Ok(operator),
        // Another thread was faster.
        Err(_) => find(name).ok_or_else(missing),
    }
}

/// Returns every operator, sorted by name.
pub fn operators() -> Vec<&'static Operator> {
    let names = registry().0.read();
    let mut list: Vec<_> = names.operators.values().copied().collect();
    list.sort_unstable_by_key(|operator| operator.name);
    list
}

/// Defines a program's own operator by its schema, in the notation of `native_functions.yaml`. Register kernels for the backends,
/// and one for `Autograd` if the operator has a gradient.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the schema cannot be read, or the name is already used.
pub fn define_operator(schema: &str) -> Result<&'static Operator> {
    registry().define(&OpDef::part(leaked(schema.to_owned().into()), Body::Registered))
}

/// Defines a program's own operator by a [`LoopOp`]: its kernels on every device and in every dtype, and its gradient, are
/// derived from the formula. Its schema (`aten`) must have a namespace of its own.
/// `testing::check_entry` tests it.
///
/// # Errors
/// Those of [`define_operator`]; [`Error::is_invalid_argument`] if another loop has its name, since kernels are cached by it.
pub fn define_loop(entry: &'static LoopOp) -> Result<&'static Operator> {
    let is_other = |other: &LoopOp| other.id() == entry.id() && !std::ptr::eq(other, entry);
    let own = operators().into_iter().filter_map(|operator| match operator.body {
        Body::Loop(other) => Some(other),
        _ => None,
    });
    if own.chain(thalweg_ops::structured::structured()).any(is_other) {
        refuse!("a loop of the name {} exists already; choose another", entry.name);
    }
    registry().define(&OpDef::of_loop(entry))
}
