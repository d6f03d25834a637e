//! Decisions by an operator's name, in the crates whose operators are entries of tables.
//!
//! The entry describes an operator: it passes a flag, an enum or a function to the code that it shares with other entries. So no
//! line compares an operator's name with a text, searches in it, or matches on it. Expressions that end with one of [`PATHS`],
//! and variables of [`VARIABLES`], are operators' names. The name of a parameter (`parameter.name == "dtype"`) is allowed, and
//! messages may contain names.

use super::{Finding, Level};

const FOLDERS: [&str; 3] =
    ["crates/thalweg-ops/src/", "crates/thalweg-tensor/src/", "crates/thalweg-torch/src/kernels/"];

/// Variables that hold the name of an operator.
const VARIABLES: [&str; 3] = ["base_name", "name", "operator"];

/// The suffixes of expressions that are the name of an operator.
const PATHS: [&str; 3] = [".base_name()", "operator.name()", "schema().name"];

/// Tests of a text that follow an expression.
const QUESTIONS: [&str; 6] =
    [" == \"", " != \"", ".contains(\"", ".starts_with(\"", ".ends_with(\"", ".eq(\""];

/// Finds decisions by the name of an operator in a file.
pub fn check(file: &str, text: &str, findings: &mut Vec<Finding>) {
    let is_test = file.trim_end_matches(".rs").ends_with("tests");
    if is_test || !FOLDERS.iter().any(|folder| file.starts_with(folder)) {
        return;
    }
    let product = text.split("\nmod tests {").next().unwrap_or_default();
    let mut lines = product.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let next = lines.peek().map_or("", |(_, next)| next.trim_start());
        if !line.trim_start().starts_with("//") && (tests_name(line) || matches(line, next)) {
            let what = "decides by an operator's name: let its entry say it, by a value or a function".into();
            findings.push(Finding { level: Level::Error, file: file.to_owned(), line: index + 1, what });
        }
    }
}

/// Returns whether a line has one of the tests of a name.
fn tests_name(line: &str) -> bool {
    QUESTIONS
        .iter()
        .any(|question| line.match_indices(question).any(|(place, _)| ends_with_name(&line[..place])))
}

/// Returns whether a line matches on a name: the first arm is on the same line or on the next.
fn matches(line: &str, next: &str) -> bool {
    let is_in = |begin: &str, end: &str, next: &str| {
        line.match_indices(begin).any(|(place, _)| {
            let rest = &line[place + begin.len()..];
            rest.split_once(end).is_some_and(|(subject, arms)| {
                let arms = if arms.trim().is_empty() { next } else { arms.trim_start() };
                ends_with_name(subject) && arms.starts_with('"')
            })
        })
    };
    is_in("match ", " {", next) || is_in("matches!(", ",", "")
}

/// Returns whether code ends with an expression that is an operator's name.
fn ends_with_name(code: &str) -> bool {
    let code = code.strip_suffix(".as_str()").unwrap_or(code);
    let is_word = |character: char| character.is_alphanumeric() || "_.".contains(character);
    let variable = code.rsplit(|character| !is_word(character)).next().unwrap_or_default();
    VARIABLES.contains(&variable) || PATHS.iter().any(|path| code.ends_with(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check("crates/thalweg-tensor/src/operators/a.rs", text, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn decisions_by_name_are_found() {
        for planted in [
            "if name == \"tril\" {",
            "if *operator != \"mean\" && x {",
            "is(call.operator.base_name() == \"geometric_\")",
            "_ if target.operator.name() == \"where.self\" => x,",
            "if call.schema().name.contains(\"adaptive\") {",
            "if call.schema().name.as_str().starts_with(\"max\") {",
            "matches!(operator, \"mean\" | \"var\")",
            "match name { \"hsplit\" => 1, _ => 2 }",
            "match call.operator.base_name() {\n    \"std\" => 1,",
        ] {
            assert_eq!(found(planted), [1], "{planted}");
        }
    }

    #[test]
    fn other_texts_may_be_compared() {
        for line in [
            "if parameter.name == \"dtype\" {",
            "if reduce == \"mean\" {",
            "match operator {\n    Operator::Sum => 1,",
            "match filename {\n    \"x\" => 1,",
            "// if name == \"tril\" {",
            "check(name, \"std\", call.float(2))?;",
            "if operator.name == COPY.name {",
            "mod x;\nmod tests {\n    if name == \"tril\" {",
        ] {
            assert!(found(line).is_empty(), "{line}");
        }
        let mut findings = Vec::new();
        check("crates/thalweg-cli/src/a.rs", "if name == \"sim\" {", &mut findings);
        assert!(findings.is_empty());
    }
}
