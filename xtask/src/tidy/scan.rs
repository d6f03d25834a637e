//! Finds functions in Rust's text, by brackets, without a parser, so that it stays small and supports every edition.
//!
//! Comments and the insides of strings and characters are blanked first ([`blank`]); the brackets of the rest are in pairs.
//! Functions that macros generate are not found.

/// A function with a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    pub name: String,
    /// The line of its `fn`, from 1.
    pub line: usize,
    /// The number of lines from that line to the one of the closing bracket, both included.
    pub lines: usize,
}

/// Returns the functions of a source, including nested ones, by their beginnings.
pub fn functions(source: &str) -> Vec<Function> {
    let code = blank(source);
    let line_of = |place: usize| 1 + code[..place].iter().filter(|&&byte| byte == b'\n').count();
    let mut functions = Vec::new();
    for place in 0..code.len().saturating_sub(3) {
        let starts_word = place == 0 || !is_word(code[place - 1]);
        if !(starts_word && &code[place..place + 3] == b"fn ") {
            continue;
        }
        let name: Vec<u8> = code[place + 3..].iter().copied().take_while(|&byte| is_word(byte)).collect();
        if name.is_empty() {
            // A type (`fn (u32)`), not a function.
            continue;
        }
        if let Some(end) = body_end(&code, place) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let line = line_of(place);
            functions.push(Function { name, line, lines: line_of(end) - line + 1 });
        }
    }
    functions
}

/// Returns where the body of the function at `start` closes; `None` if it has no body (`fn f();`).
fn body_end(code: &[u8], start: usize) -> Option<usize> {
    let mut round_and_square = 0_usize;
    let mut curly = 0_usize;
    for (place, byte) in code.iter().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => round_and_square += 1,
            b')' | b']' => round_and_square = round_and_square.checked_sub(1)?,
            // The `;` of `[u8; 4]` and of statements does not end the signature.
            b';' if curly == 0 && round_and_square == 0 => return None,
            // Brackets inside the signature (`[u8; { N + 1 }]`) are not a body.
            b'{' if round_and_square == 0 || curly > 0 => curly += 1,
            b'}' if curly > 0 => {
                curly -= 1;
                if curly == 0 {
                    return Some(place);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Returns the source with comments and quoted text replaced by spaces. Line breaks stay.
pub fn blank(source: &str) -> Vec<u8> {
    let mut code = source.as_bytes().to_vec();
    let mut place = 0;
    while place < code.len() {
        let end = end_of_text(&code, place);
        match end {
            Some(end) => {
                let end = end.min(code.len());
                code[place..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
                place = end;
            }
            None => place += 1,
        }
    }
    code
}

/// Returns where the comment, string or character that begins at `place` ends, if one begins there.
fn end_of_text(code: &[u8], place: usize) -> Option<usize> {
    let rest = &code[place..];
    let after_word = place > 0 && is_word(code[place - 1]);
    if rest.starts_with(b"//") {
        return Some(place + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(end_of_block_comment(code, place));
    }
    if rest[0] == b'"' {
        return Some(end_of_quoted(code, place + 1, b'"'));
    }
    if rest[0] == b'r' && (!after_word || matches!(code[place - 1], b'b' | b'c')) {
        let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            let start = place + 2 + hashes;
            let found = code[start..].windows(close.len()).position(|window| window == close);
            return Some(found.map_or(code.len(), |found| start + found + close.len()));
        }
    }
    if rest[0] == b'\'' {
        // A character, not a lifetime: `'\…'`, or one character and the closing quote.
        let character = rest.get(1) == Some(&b'\\');
        let length = rest.get(1).map_or(1, |&lead| utf8_length(lead));
        if character || rest.get(1 + length) == Some(&b'\'') {
            return Some(end_of_quoted(code, place + 1, b'\''));
        }
    }
    None
}

fn end_of_quoted(code: &[u8], start: usize, quote: u8) -> usize {
    let mut place = start;
    while place < code.len() {
        match code[place] {
            b'\\' => place += 2,
            byte if byte == quote => return place + 1,
            _ => place += 1,
        }
    }
    code.len()
}

fn end_of_block_comment(code: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut place = start;
    while place < code.len() {
        if code[place..].starts_with(b"/*") {
            (depth, place) = (depth + 1, place + 2);
        } else if code[place..].starts_with(b"*/") {
            (depth, place) = (depth - 1, place + 2);
            if depth == 0 {
                return place;
            }
        } else {
            place += 1;
        }
    }
    code.len()
}

const fn utf8_length(lead: u8) -> usize {
    match lead {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(String, usize, usize)> {
        functions(source).into_iter().map(|function| (function.name, function.line, function.lines)).collect()
    }

    #[test]
    fn brackets_in_text_do_not_count() {
        let source = r####"
fn first(text: &'static str) -> char {
    // a } in a comment, and /* another
    /* } /* } */ } */
    let raw = r#"} " fn no() {"#;
    let bytes = b"}\"}";
    match raw { _ => '}' as char };
    if text == "\\" { '\'' } else { 'é' }
}
fn second<'a>(x: &'a str) -> &'a str { x }
"####;
        assert_eq!(found(source), [("first".to_owned(), 2, 8), ("second".to_owned(), 10, 1)]);
    }

    #[test]
    fn only_functions_with_bodies_are_found() {
        let source = "trait T {\n    fn none(x: [u8; 4]);\n    fn some(&self) -> [u8; 2] {\n        [0; 2]\n    }\n}\n\
                      type F = fn(u32) -> u32;\nfn outer() {\n    fn inner() {\n    }\n}\nstruct fn_like {\n}\n";
        let expected = [("some", 3, 3), ("outer", 8, 4), ("inner", 9, 2)];
        assert_eq!(found(source), expected.map(|(name, line, lines)| (name.to_owned(), line, lines)));
    }

    #[test]
    fn unfinished_sources_do_no_harm() {
        for source in ["fn f() {", "fn f(", "\"", "'", "/* /*", "r#\"", "fn ", "'\\", "b'"] {
            assert_eq!(found(source), [], "{source}");
        }
    }
}
