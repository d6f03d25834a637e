//! The openings of documentation comments: a function's begins with a verb, a type's and a field's with a noun.
//!
//! A machine cannot distinguish every verb from every noun. So only these are refused:
//!
//! - before a type, a question word ([`QUESTIONS`]): "The place where …", not "Where …";
//! - before a field, a variant, a constant or a static, a question word other than "Whether", with which Rust's own documentation
//!   describes fields that are true or false;
//! - before a function, a question or an article ([`ARTICLES`]): "Returns the …", not "The …". Getters of Python's properties are
//!   documented like fields, and the tests and cases of a suite are described by their topics: they may begin with an article;
//! - before a function that returns nothing, "Returns".

use super::{Finding, Level};

/// Question words, which do not name the item.
const QUESTIONS: [&str; 9] = ["Who", "Whose", "What", "Why", "Where", "When", "How", "Which", "Whether"];

/// Articles, with which a noun phrase begins, and the word for references.
const ARTICLES: [&str; 4] = ["The", "A", "An", "See"];

/// Finds the openings in a Rust file that do not suit their items.
pub fn check(file: &str, text: &str, findings: &mut Vec<Finding>) {
    let is_product = file.contains("/src/") && !file.contains("/tests/") && !file.ends_with("tests.rs");
    if !is_product || !file.ends_with(".rs") {
        return;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let product = lines.iter().position(|line| *line == "mod tests {").unwrap_or(lines.len());
    let mut number = 0;
    while number < product {
        let Some(comment) = lines[number].strip_prefix("///") else {
            number += 1;
            continue;
        };
        let begin = number;
        number += lines[begin..].iter().take_while(|line| line.starts_with("///")).count();
        let item = Item::after(&lines[number..]);
        let opening = comment.split_whitespace().next().unwrap_or_default();
        if let Some(what) = item.refuses(opening) {
            let what = format!("begins with `{opening}`: {what}");
            findings.push(Finding { level: Level::Error, file: file.to_owned(), line: begin + 1, what });
        }
    }
}

/// The kinds of items that a comment documents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Function {
        returns: bool,
    },
    Type,
    /// A field, a variant, a constant, a getter, a case of a suite, or a macro's.
    Other,
}

impl Item {
    /// Reads the item that follows a comment, after its attributes.
    fn after(lines: &[&str]) -> Self {
        let code = lines
            .iter()
            .skip_while(|line| line.starts_with('#') || line.starts_with("//") || line.ends_with(")]"));
        let signature: Vec<&str> = code.copied().take(24).collect();
        let attributes = &lines[..lines.len().min(6)];
        let is_getter =
            attributes.iter().take_while(|line| line.starts_with('#')).any(|line| line.contains("getter"));
        let Some(first) = signature.first() else { return Self::Other };
        let words = || first.split(|character: char| !(character.is_alphanumeric() || character == '_'));
        let mut keywords = words()
            .filter(|word| !["pub", "crate", "super", "in", "self", "unsafe", "async", ""].contains(word));
        match keywords.next() {
            Some("struct" | "enum" | "trait" | "type" | "union") => Self::Type,
            Some("fn" | "extern") => Self::function(&signature, is_getter),
            Some("const") if keywords.next() == Some("fn") => Self::function(&signature, is_getter),
            _ => Self::Other,
        }
    }

    fn function(signature: &[&str], is_getter: bool) -> Self {
        let text = signature.join(" ");
        let Some(head) = head(&text) else { return Self::Other };
        let is_case = head.contains("-> CaseResult") || head.contains('$');
        if is_getter || is_case { Self::Other } else { Self::Function { returns: head.contains("->") } }
    }

    /// Returns advice for an opening that does not suit the item.
    fn refuses(self, opening: &str) -> Option<&'static str> {
        let word = opening.trim_end_matches(['.', ',', ';', ':']);
        let is_question = QUESTIONS.contains(&word);
        match self {
            Self::Type if is_question => Some("a type's comment begins with a noun"),
            Self::Function { .. } if is_question || ARTICLES.contains(&opening) => {
                Some("a function's comment begins with a verb (\"Returns ...\")")
            }
            Self::Function { returns: false } if opening == "Returns" => Some("the function returns nothing"),
            Self::Other if is_question && word != "Whether" => {
                Some("the comment begins with a noun (\"The number of ...\")")
            }
            _ => None,
        }
    }
}

/// Returns a function up to its body or semicolon outside of round and square brackets; `None` if the text ends before.
fn head(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (place, character) in text.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' | ';' if depth == 0 => return Some(&text[..place]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check("a/src/b.rs", text, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn openings_go_with_what_they_document() {
        assert_eq!(found("/// Where it is.\nstruct S;\n/// The place.\n#[derive(Debug)]\nstruct S;\n"), [1]);
        assert_eq!(found("/// The place.\n#[must_use]\npub(crate) const fn f() -> u32 { 1 }\n"), [1]);
        assert_eq!(
            found("/// Returns the place.\nfn f() -> u32 { 1 }\n/// Returns a place.\nfn f() {}\n"),
            [3]
        );
        assert!(found("/// Returns it.\nfn f(\n    x: [u8; 4],\n) -> u32 {\n}\n").is_empty());
    }

    #[test]
    fn fields_and_variants_do_not_ask() {
        assert_eq!(
            found("struct S {\n    /// How many.\n    count: u32,\n    /// The place.\n    place: u32,\n}\n"),
            [2]
        );
        assert_eq!(
            found("enum E {\n    /// Where it is.\n    There,\n}\n/// Why.\nconst REASON: u32 = 1;\n"),
            [2, 5]
        );
    }

    #[test]
    fn others_are_left_alone() {
        assert!(found("struct S {\n    /// Whether it is there.\n    is_there: bool,\n}\n").is_empty());
        assert!(found("/// The shape.\n#[getter]\nfn shape(&self) -> u32 { 1 }\n").is_empty());
        assert!(found("/// A diamond.\nfn diamond(fixture: &Fixture) -> CaseResult {}\n").is_empty());
        assert!(found("mod tests {\n/// The place.\nfn f() -> u32 { 1 }\n}\n").is_empty());
    }
}
