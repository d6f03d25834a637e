//! [`Row`]: an operator, its arguments, a dtype and extents, as in the list of `thalweg bench`.

use serde_json::{Value as Json, json};
use thalweg::DType;

/// The built-in list of rows.
const LIST: &str = include_str!("operators.txt");

/// A tensor of a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Variable {
    /// The name by which arguments refer to the tensor.
    pub name: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The dtype.
    pub dtype: DType,
    /// The upper bound of integers, which are drawn from 0 and below it.
    pub below: Option<i64>,
    /// Whether numbers are greater than zero.
    pub positive: bool,
    /// Whether the last two dimensions are swapped in memory.
    pub transposed: bool,
    /// Whether channels are last in memory.
    pub channels_last: bool,
}

impl Variable {
    /// Reads `x=8192,768:i64<50304^T`.
    fn parse(text: &str, dtype: DType) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a variable");
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (rest, transposed) = rest.strip_suffix("^T").map_or((rest, false), |rest| (rest, true));
        let (rest, channels_last) = rest.strip_suffix("^L").map_or((rest, false), |rest| (rest, true));
        let (rest, positive) = rest.strip_suffix('+').map_or((rest, false), |rest| (rest, true));
        let (extents, own) = rest.split_once(':').map_or((rest, None), |(extents, own)| (extents, Some(own)));
        let (own, below) =
            match own.map(|own| own.split_once('<').map_or((own, None), |(own, below)| (own, Some(below)))) {
                None => (None, None),
                Some((own, below)) => (Some(own), below),
            };
        let dimensions = extents.split(',').count();
        if (transposed && dimensions < 2) || (channels_last && (transposed || dimensions != 4)) {
            return Err(wrong());
        }
        Ok(Self {
            name: name.trim().to_owned(),
            shape: extents
                .split(',')
                .map(|extent| extent.trim().parse().map_err(|_| wrong()))
                .collect::<Result<_, _>>()?,
            dtype: own.map_or(Ok(dtype), |own| dtype_of(own).ok_or_else(wrong))?,
            below: below.map(|below| below.parse().map_err(|_| wrong())).transpose()?,
            positive,
            transposed,
            channels_last,
        })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.size_bytes() as u64
    }
}

/// One operator on one kind of input.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The family's name.
    pub family: String,
    /// The overload's name.
    pub operator: String,
    /// The arguments in the schema's order, as in Python; a variable is `{"var": NAME}`, a dtype `{"dtype": NAME}`.
    pub arguments: Vec<Json>,
    /// The dtype.
    pub dtype: DType,
    /// The tensors.
    pub variables: Vec<Variable>,
    /// The variables whose gradients are computed too: empty if only forward is timed.
    pub gradients: Vec<String>,
    /// The text of the shapes in the list.
    pub shapes: String,
    /// The text of arguments in the list.
    pub text: String,
}

impl Row {
    /// Returns the row on one line.
    pub fn name(&self) -> String {
        let Self { operator, text, dtype, shapes, .. } = self;
        format!("{operator}({text}) {} {} {shapes}", dtype.short_name(), self.direction())
    }

    /// Returns `forward` or `backward`.
    pub fn direction(&self) -> &'static str {
        if self.gradients.is_empty() { "forward" } else { "backward" }
    }

    /// Returns the row in the peer's format.
    pub fn as_json(&self) -> Json {
        let variables = self.variables.iter().map(|variable| {
            let Variable { name, shape, dtype, below, positive, transposed, channels_last } = variable;
            json!({
                "name": name, "shape": shape, "dtype": dtype.to_string(), "below": below,
                "positive": positive, "transposed": transposed, "channels_last": channels_last,
            })
        });
        json!({
            "operator": self.operator, "arguments": self.arguments, "variables": variables.collect::<Vec<_>>(),
            "gradients": self.gradients,
        })
    }
}

/// The cases that a family's line names: the dtypes, the variables with gradients, and the shapes.
struct Cases {
    dtypes: Vec<DType>,
    gradients: Vec<String>,
    shapes: Vec<String>,
}

impl Cases {
    /// Parses the text after `forward` or `backward`.
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` says no dtypes and shapes");
        let (head, shapes) = text.split_once(": ").ok_or_else(wrong)?;
        let (dtypes, gradients) = head.split_once(" of ").unwrap_or((head, ""));
        Ok(Self {
            dtypes: dtypes
                .split_whitespace()
                .map(|name| dtype_of(name).ok_or_else(wrong))
                .collect::<Result<_, _>>()?,
            gradients: gradients
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            shapes: shapes.split('|').map(|shapes| shapes.trim().to_owned()).collect(),
        })
    }
}

/// Returns all rows of the list.
pub fn rows() -> Vec<Row> {
    parse(LIST).expect("the list is right, which a test says")
}

/// Reads a list.
fn parse(list: &str) -> Result<Vec<Row>, String> {
    let (mut rows, mut family, mut cases) = (Vec::new(), String::new(), Vec::<Cases>::new());
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            family = name.to_owned();
            cases.clear();
        } else if let Some(text) = line.strip_prefix("forward ").or_else(|| line.strip_prefix("backward ")) {
            cases.push(Cases::parse(text)?);
        } else {
            let (operator, text) =
                line.split_once(' ').ok_or_else(|| format!("`{line}` has no arguments"))?;
            let arguments = arguments(text)?;
            for case in &cases {
                for shapes in &case.shapes {
                    for &dtype in &case.dtypes {
                        rows.push(Row {
                            family: family.clone(),
                            operator: operator.to_owned(),
                            arguments: arguments.clone(),
                            dtype,
                            variables: variables(shapes, dtype)?,
                            gradients: case.gradients.clone(),
                            shapes: shapes.clone(),
                            text: text.to_owned(),
                        });
                    }
                }
            }
        }
    }
    Ok(rows)
}

/// Returns the dtype with a short name.
fn dtype_of(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.short_name() == name)
}

/// Reads the variables of a case: they are separated by a comma and a space.
fn variables(shapes: &str, dtype: DType) -> Result<Vec<Variable>, String> {
    shapes.split(", ").map(|text| Variable::parse(text, dtype)).collect()
}

/// Reads arguments, as Python writes them.
fn arguments(text: &str) -> Result<Vec<Json>, String> {
    let mut quoted = String::new();
    // Names become objects; the rest is JSON.
    for token in text.split_inclusive([' ', ',', '[', ']']) {
        let word = token.trim_end_matches([' ', ',', '[', ']']);
        let rest = &token[word.len()..];
        match word {
            "none" => quoted.push_str("null"),
            "true" | "false" => quoted.push_str(word),
            _ if word.starts_with('"') => quoted.push_str(word),
            _ if word.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                let named = dtype_of(word)
                    .map_or(json!({ "var": word }), |dtype| json!({ "dtype": dtype.to_string() }));
                quoted.push_str(&named.to_string());
            }
            _ => quoted.push_str(word),
        }
        quoted.push_str(rest);
    }
    serde_json::from_str(&format!("[{quoted}]"))
        .map_err(|error| format!("`{text}` is not a list of arguments: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use thalweg::dispatch::find_operator;

    use super::*;

    #[test]
    fn the_list_names_operators_and_variables_that_exist() {
        let rows = parse(LIST).unwrap();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.operator.as_str()).collect();
        assert!(names.len() >= 120, "{} operators", names.len());
        for row in &rows {
            let operator = find_operator(&row.operator).unwrap_or_else(|error| panic!("{error}"));
            let parameters = operator.schema().parameters.len();
            assert!(row.arguments.len() <= parameters, "{}: {} arguments", row.operator, row.arguments.len());
            let known: BTreeSet<&str> = row.variables.iter().map(|variable| variable.name.as_str()).collect();
            let text = json!(row.arguments).to_string();
            assert!(row.gradients.iter().all(|name| known.contains(name.as_str())), "{row:?}");
            for (at, _) in text.match_indices("{\"var\":\"") {
                let name: String = text[at + 8..].chars().take_while(|character| *character != '"').collect();
                assert!(
                    known.contains(name.as_str()),
                    "{}: `{name}` is not a variable of {}",
                    row.operator,
                    row.shapes
                );
            }
        }
    }

    #[test]
    fn a_variable_is_read_with_all_that_it_may_say() {
        let variable = Variable::parse("i=8,1024:i64<50304", DType::Bf16).unwrap();
        assert_eq!(
            (variable.shape, variable.dtype, variable.below),
            (vec![8, 1024], DType::I64, Some(50304))
        );
        let variable = Variable::parse("x=4,6+^T", DType::Bf16).unwrap();
        assert_eq!((variable.dtype, variable.positive, variable.transposed), (DType::Bf16, true, true));
        assert!(Variable::parse("x=4,6,2,2^L", DType::Bf16).unwrap().channels_last);
        for wrong in ["x", "x=", "x=a", "x=1:q8", "x=1:i64<a", "x=4^T", "x=4,4^L"] {
            Variable::parse(wrong, DType::F32).unwrap_err();
        }
    }

    #[test]
    fn arguments_are_read_as_python_writes_them() {
        let read = arguments("x, [1, 2], none, \"tanh\", 0.5, [x, y], f16, true").unwrap();
        let x = json!({ "var": "x" });
        let expected =
            json!([x, [1, 2], null, "tanh", 0.5, [x, { "var": "y" }], { "dtype": "float16" }, true]);
        assert_eq!(json!(read), expected);
        arguments("x, [1").unwrap_err();
    }
}
