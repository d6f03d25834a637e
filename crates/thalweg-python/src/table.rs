//! The operator table for Python: signatures and documentation of its functions, and the table's entries as data, for stubs and
//! tests.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::ops::schema::{Kind, Literal, Parameter, Type};

use crate::call::{Function, Overload};
use crate::functions::functions;

/// Returns a parameter's type as PyTorch's messages name it.
pub fn type_name(ty: &Type) -> String {
    let kind = match ty.kind {
        Kind::Scalar => "Number",
        Kind::DType => "torch.dtype",
        Kind::Device => "torch.device",
        Kind::Layout => "torch.layout",
        Kind::MemoryFormat => "torch.memory_format",
        other => other.name(),
    };
    if ty.list { format!("tuple of {kind}s") } else { kind.to_owned() }
}

/// Returns a parameter's name as shown in messages.
pub fn shown_name(parameter: &Parameter) -> &str {
    if parameter.name == "self" { "input" } else { &parameter.name }
}

/// Returns a default in Python syntax.
fn default_text(literal: &Literal) -> String {
    match literal {
        Literal::None => "None".to_owned(),
        Literal::Bool(truth) => if *truth { "True" } else { "False" }.to_owned(),
        Literal::Int(integer) => integer.to_string(),
        Literal::Float(number) => format!("{number:?}"),
        Literal::Ints(list) => {
            format!("({})", list.iter().map(|integer| format!("{integer},")).collect::<String>())
        }
        Literal::Str(text) => format!("{text:?}"),
    }
}

/// Returns the parameters of an overload, for messages; without the receiver of a method.
pub fn signature(overload: &Overload, is_method: bool) -> String {
    let mut text = String::from("(");
    let mut is_named = false;
    for (place, parameter) in overload.schema().parameters.iter().enumerate() {
        if is_method && Some(place) == overload.receiver {
            continue;
        }
        if text.len() > 1 {
            text.push_str(", ");
        }
        if parameter.keyword_only && !is_named {
            text.push_str("*, ");
            is_named = true;
        }
        _ = write!(text, "{} {}", type_name(&parameter.ty), shown_name(parameter));
        if let Some(default) = &parameter.default {
            _ = write!(text, " = {}", default_text(default));
        }
    }
    text.push(')');
    text
}

/// Returns a function's parameters in Python's notation, for `inspect.signature`. Returns `None` for a function with overloads,
/// or with a parameter that has no valid Python name.
fn python_signature(function: &Function, is_method: bool) -> Option<String> {
    let [overload] = function.overloads.as_slice() else { return None };
    let mut parts: Vec<String> = is_method.then(|| "$self".to_owned()).into_iter().collect();
    let mut is_named = false;
    for (place, parameter) in overload.schema().parameters.iter().enumerate() {
        if matches!(parameter.name.as_str(), "from" | "lambda" | "in" | "is") {
            return None;
        }
        if Some(place) == overload.receiver && is_method {
            continue;
        }
        if parameter.keyword_only && !is_named {
            parts.push("*".to_owned());
            is_named = true;
        }
        let name = if Some(place) == overload.receiver { "input" } else { &parameter.name };
        let default = parameter.default.as_ref().map(|default| format!("={}", default_text(default)));
        parts.push(format!("{name}{}", default.unwrap_or_default()));
    }
    Some(parts.join(", "))
}

/// Returns the documentation of a function: for each overload its schema and a description. The signature comes first, and Python
/// strips it.
pub fn documentation(function: &Function, is_method: bool) -> String {
    let mut text = match python_signature(function, is_method) {
        Some(signature) => format!("{}({signature})\n--\n\n", function.name),
        None => String::new(),
    };
    for overload in &function.overloads {
        let doc = overload.operator.documentation().trim();
        _ = write!(text, "{}\n\n", overload.schema());
        if !doc.is_empty() {
            let lines: Vec<&str> = doc.lines().map(str::trim).collect();
            _ = write!(text, "    {}\n\n", lines.join("\n    "));
        }
    }
    text.trim_end().to_owned()
}

/// Returns a type as a dictionary.
pub fn type_object<'py>(py: Python<'py>, ty: &Type) -> PyResult<Bound<'py, PyDict>> {
    let object = PyDict::new(py);
    object.set_item("kind", ty.kind.name())?;
    object.set_item("list", ty.list)?;
    object.set_item("length", ty.length)?;
    object.set_item("optional", ty.optional)?;
    object.set_item("optional_elements", ty.optional_elements)?;
    object.set_item("alias", ty.alias.as_ref().map(|alias| (&alias.set, alias.writes)))?;
    Ok(object)
}

/// Returns a parameter as a dictionary.
pub fn parameter_object<'py>(py: Python<'py>, parameter: &Parameter) -> PyResult<Bound<'py, PyDict>> {
    let object = type_object(py, &parameter.ty)?;
    object.set_item("name", &parameter.name)?;
    object.set_item("keyword_only", parameter.keyword_only)?;
    object.set_item("default", parameter.default.as_ref().map(default_text))?;
    Ok(object)
}

/// Returns every overload that Python has, as dictionaries: name, schema, whether it is a method, parameters and results.
#[pyfunction]
fn _table(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let table = PyList::empty(py);
    for function in functions() {
        for overload in &function.overloads {
            let schema = overload.schema();
            let object = PyDict::new(py);
            object.set_item("function", &function.name)?;
            object.set_item("name", overload.operator.name())?;
            object.set_item("schema", schema.to_string())?;
            object.set_item("documentation", overload.operator.documentation().trim())?;
            object.set_item("computed_by", overload.operator.computed_by())?;
            object.set_item("receiver", overload.receiver)?;
            object.set_item("generator", overload.operator.takes_generator())?;
            let parameters = schema.parameters.iter().map(|parameter| parameter_object(py, parameter));
            object.set_item("parameters", parameters.collect::<PyResult<Vec<_>>>()?)?;
            let results = schema.returns.iter().map(|ty| (ty.kind.name(), ty.list));
            object.set_item("results", results.collect::<Vec<_>>())?;
            object.set_item("result_names", &schema.return_names)?;
            table.append(object)?;
        }
    }
    Ok(table)
}

/// Returns the names of all operators of the table with their overloads, including parts of other operators, to check [`_table`]
/// against.
#[pyfunction]
fn _operator_names() -> Vec<&'static str> {
    thalweg::dispatch::operators().iter().map(|operator| operator.name()).collect()
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _table, _operator_names];
    Ok(())
}
