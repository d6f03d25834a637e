//! [`Schema`]: the signature of an operator, in the notation of PyTorch's `native_functions.yaml`.
//!
//! ```text
//! sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
//! ```
//!
//! A schema is parsed when an operator is defined. Calls are checked against it, missing arguments take its defaults, and error
//! messages name its parameters. `SymInt` is read as `int`.

use std::fmt;

/// The kind of a value, without list or option around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A number of any kind.
    Scalar,
    /// An integer.
    Int,
    /// A floating-point number.
    Float,
    /// A truth value.
    Bool,
    /// A string.
    Str,
    /// A dtype (`ScalarType`).
    DType,
    /// A memory layout (`Layout`); only strided tensors exist here.
    Layout,
    /// A device.
    Device,
    /// An order of dimensions in memory (`MemoryFormat`).
    MemoryFormat,
    /// A generator of random numbers.
    Generator,
}

impl Kind {
    const NAMES: [(&'static str, Self); 11] = [
        ("Tensor", Self::Tensor),
        ("Scalar", Self::Scalar),
        ("int", Self::Int),
        ("float", Self::Float),
        ("bool", Self::Bool),
        ("str", Self::Str),
        ("ScalarType", Self::DType),
        ("Layout", Self::Layout),
        ("Device", Self::Device),
        ("MemoryFormat", Self::MemoryFormat),
        ("Generator", Self::Generator),
    ];

    fn parse(kind: &str) -> Option<Self> {
        let kind = if kind == "SymInt" { "int" } else { kind };
        Self::NAMES.iter().find(|(known, _)| *known == kind).map(|&(_, kind)| kind)
    }

    /// Returns the name in a schema.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// A memory annotation (`(a!)`): which tensors of a call are views of each other, and whether the call writes them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Alias {
    /// The letter of the set; arguments and results with the same letter share memory. `*` matches any.
    pub set: String,
    /// Whether the call writes the memory.
    pub writes: bool,
}

/// The type of a parameter or a result.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Type {
    /// The kind of a single value.
    pub kind: Kind,
    /// Whether the type is a list.
    pub list: bool,
    /// The length of the list that a single value also stands for (`int[2]`).
    pub length: Option<usize>,
    /// Whether the elements of a list may be missing (`Tensor?[]`).
    pub optional_elements: bool,
    /// Whether the value itself may be missing.
    pub optional: bool,
    /// The memory that the value shares.
    pub alias: Option<Alias>,
}

/// The default of a parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum Literal {
    /// No value.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer; for a `MemoryFormat` or a reduction, PyTorch's number for it.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A string.
    Str(String),
}

/// A parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// The value of a missing argument.
    pub default: Option<Literal>,
    /// Whether the parameter follows `*`, so that callers must name it.
    pub keyword_only: bool,
}

/// The signature of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema {
    /// The name with its overload: `add.Tensor`.
    pub name: String,
    /// The parameters, in their order.
    pub parameters: Vec<Parameter>,
    /// The results, in their order.
    pub returns: Vec<Type>,
    /// The names of the results; empty if they have no names.
    pub return_names: Vec<String>,
}

/// The place and the reason at which parsing of a schema failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaError(String);

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

impl Schema {
    /// Parses a schema.
    ///
    /// # Errors
    /// If the text is not in the notation; the message names the part.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        let fail = |part: &str| SchemaError(format!("the schema `{text}` cannot be read at `{part}`"));
        let (name, rest) = text.split_once('(').ok_or_else(|| fail(text))?;
        let (inside, returns) = rest.rsplit_once("->").ok_or_else(|| fail(rest))?;
        let inside = inside.trim().strip_suffix(')').ok_or_else(|| fail(inside))?;
        let mut keyword_only = false;
        let mut parameters = Vec::new();
        for part in split(inside) {
            if part == "*" {
                keyword_only = true;
                continue;
            }
            parameters.push(Parameter::parse(part, keyword_only).ok_or_else(|| fail(part))?);
        }
        let returns = returns.trim();
        let list = returns.strip_prefix('(').and_then(|list| list.strip_suffix(')')).unwrap_or(returns);
        let (mut types, mut return_names) = (Vec::new(), Vec::new());
        for part in split(list) {
            // A result may have a name after its type.
            let (ty, name) = part.split_once(' ').unwrap_or((part, ""));
            types.push(Type::parse(ty).ok_or_else(|| fail(part))?);
            return_names.push(name.into());
        }
        if name.trim().is_empty() {
            return Err(fail(text));
        }
        Ok(Self { name: name.trim().into(), parameters, returns: types, return_names })
    }

    /// Returns the name without overload and namespace: `add` for `add.Tensor`.
    pub fn base_name(&self) -> &str {
        base_name(&self.name)
    }

    /// Returns whether the operator writes one of its arguments.
    pub fn is_mutable(&self) -> bool {
        self.parameters.iter().any(|parameter| parameter.ty.alias.as_ref().is_some_and(|alias| alias.writes))
    }
}

/// Returns the name without overload and namespace: `add` for `add.Tensor`.
pub fn base_name(name: &str) -> &str {
    let name = name.rsplit_once("::").map_or(name, |(_, name)| name);
    name.split_once('.').map_or(name, |(base, _)| base)
}

/// Splits a list at commas outside of brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i32;
    list.split(move |character: char| {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

impl Parameter {
    fn parse(text: &str, keyword_only: bool) -> Option<Self> {
        // `Tensor(a -> *) self`: annotations contain spaces, too.
        let facts = text.find(')').unwrap_or(0);
        let (ty, rest) = text.split_at(facts + text[facts..].find(' ')?);
        let (ty, rest) = (Type::parse(ty)?, rest.trim_start());
        let (name, default) = match rest.split_once('=') {
            Some((name, literal)) => (name.trim(), Some(Literal::parse(literal.trim(), &ty)?)),
            None => (rest.trim(), None),
        };
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then(|| Self { name: name.into(), ty, default, keyword_only })
    }
}

impl Type {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let optional = rest.strip_suffix('?').map(|shorter| rest = shorter).is_some();
        let (mut list, mut length) = (false, None);
        if let Some(inside) = rest.strip_suffix(']') {
            let (element, count) = inside.rsplit_once('[')?;
            list = true;
            if !count.is_empty() {
                length = Some(count.parse().ok()?);
            }
            rest = element;
        }
        let optional_elements = list && rest.strip_suffix('?').map(|shorter| rest = shorter).is_some();
        let mut alias = None;
        if let Some(inside) = rest.strip_suffix(')') {
            let (element, facts) = inside.split_once('(')?;
            // `a -> *`: elements of the list may belong to any set.
            let set = facts.split_once(" ->").map_or(facts, |(set, _)| set);
            alias = Some(Alias { set: set.trim_end_matches('!').into(), writes: set.ends_with('!') });
            rest = element;
        }
        Some(Self { kind: Kind::parse(rest)?, list, length, optional_elements, optional, alias })
    }
}

impl Literal {
    fn parse(text: &str, ty: &Type) -> Option<Self> {
        let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
        Some(match text {
            "None" => Self::None,
            "True" => Self::Bool(true),
            "False" => Self::Bool(false),
            // PyTorch's numbers.
            "contiguous_format" => Self::Int(0),
            "Mean" => Self::Int(1),
            "Sum" => Self::Int(2),
            "long" => Self::Str("int64".into()),
            _ if text.starts_with('[') => {
                let inside = text.strip_prefix('[')?.strip_suffix(']')?;
                Self::Ints(split(inside).map(str::parse).collect::<Result<_, _>>().ok()?)
            }
            _ => match quoted('"').or_else(|| quoted('\'')) {
                Some(inside) => Self::Str(inside.into()),
                None if ty.kind == Kind::Float => Self::Float(text.parse().ok()?),
                None => match text.parse() {
                    Ok(integer) => Self::Int(integer),
                    Err(_) => Self::Float(text.parse().ok()?),
                },
            },
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(Alias { set, writes }) = &self.alias {
            write!(f, "({set}{})", if *writes { "!" } else { "" })?;
        }
        if self.optional_elements {
            f.write_str("?")?;
        }
        match (self.list, self.length) {
            (true, Some(length)) => write!(f, "[{length}]")?,
            (true, None) => f.write_str("[]")?,
            (false, _) => {}
        }
        if self.optional { f.write_str("?") } else { Ok(()) }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::Int(integer) => write!(f, "{integer}"),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Ints(list) => {
                let list: Vec<String> = list.iter().map(i64::to_string).collect();
                write!(f, "[{}]", list.join(","))
            }
            Self::Str(text) => write!(f, "'{text}'"),
        }
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        let mut keyword_only = false;
        for (index, parameter) in self.parameters.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            if parameter.keyword_only && !keyword_only {
                keyword_only = true;
                f.write_str("*, ")?;
            }
            write!(f, "{} {}", parameter.ty, parameter.name)?;
            if let Some(default) = &parameter.default {
                write!(f, "={default}")?;
            }
        }
        match self.returns.as_slice() {
            [single] => write!(f, ") -> {single}"),
            several => {
                let list: Vec<String> = several.iter().map(Type::to_string).collect();
                write!(f, ") -> ({})", list.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_read_and_written_again() {
        for text in [
            "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
            "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
            "max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
            "index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
            "split.Tensor(Tensor(a) self, int split_size, int dim=0) -> Tensor(a)[]",
            "add_.Scalar(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)",
            "gelu(Tensor self, *, str approximate='none') -> Tensor",
            "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5, bool cudnn_enable=True) -> Tensor",
        ] {
            assert_eq!(Schema::parse(text).unwrap().to_string(), text);
        }
        let schema = Schema::parse(
            "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        );
        assert_eq!(schema.unwrap().returns.len(), 2);
    }

    #[test]
    fn elements_of_a_list_may_share_the_memory_of_an_argument() {
        let schema = Schema::parse("unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]").unwrap();
        let alias = Some(Alias { set: "a".into(), writes: false });
        assert_eq!((schema.parameters[0].name.as_str(), &schema.parameters[0].ty.alias), ("self", &alias));
        assert!(schema.returns[0].list && schema.returns[0].alias == alias);
    }

    #[test]
    fn what_is_not_a_schema_is_refused_by_its_part() {
        for text in ["", "f", "f() ->", "f(Tensor) -> Tensor", "f(Whale x) -> Tensor", "f(int x=) -> Tensor"]
        {
            let error = Schema::parse(text);
            assert!(error.is_err() || error.as_ref().unwrap().returns.is_empty(), "{text}: {error:?}");
        }
        let error = Schema::parse("f(Tensor x, Whale y) -> Tensor").unwrap_err().to_string();
        assert!(error.contains("`Whale y`"), "{error}");
    }
}
