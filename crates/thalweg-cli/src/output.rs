//! Standard output for people and for scripts.
//!
//! For people: text that is wrapped to the width of the terminal, with a coloured word here and there. For scripts: one
//! JSON object a line ([`Object`]). What a reader no longer reads is dropped in silence, as `head` expects; what cannot be written for
//! another reason, a full disk say, makes the program fail ([`finish`]).

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

/// The width of a terminal that does not say.
const DEFAULT_WIDTH: usize = 80;

/// No terminal is taken to be narrower: words would stand alone on their lines.
const LEAST_WIDTH: usize = 40;

/// Why something that was printed was lost, other than by a reader that has gone.
static LOST: OnceLock<std::io::Error> = OnceLock::new();

/// The status of a call that makes no sense, or could not be done.
pub const EXIT_USAGE: u8 = 2;

/// Writes a complaint to standard error, if anybody listens there. Returns the status that goes with it.
pub fn complain(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
    ExitCode::from(EXIT_USAGE)
}

/// The status of the program: `code`, if all that was printed has arrived.
pub fn finish(code: ExitCode) -> ExitCode {
    match LOST.get() {
        Some(error) => complain(&format!("thalweg: the output could not be written: {error}")),
        None => code,
    }
}

/// The colour of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    Green,
    Yellow,
    Red,
}

/// Standard output.
pub struct Output {
    width: usize,
    colour: bool,
}

impl Output {
    /// Standard output as it is: its width from `COLUMNS`, else from the terminal; colour if it is a terminal that wants
    /// it.
    pub fn standard() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = columns.or_else(|| if terminal { terminal_width() } else { None });
        Self {
            width: width.filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH).max(LEAST_WIDTH),
            colour: terminal && !dumb && !set("NO_COLOR"),
        }
    }

    /// How many columns a line has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes text as it is.
    pub fn text(&self, text: &str) {
        let mut standard = std::io::stdout().lock();
        if let Err(error) = standard.write_all(text.as_bytes()).and_then(|()| standard.flush())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            // What is printed is all there is: whoever asked must know that it is lost.
            let _ = LOST.set(error);
        }
    }

    /// Writes a line, wrapped; its further lines begin with `indent` spaces.
    pub fn line(&self, indent: usize, text: &str) {
        self.text(&wrap(text, self.width, indent));
    }

    /// A word in a colour, where there is colour; padded to a width without counting what colours it.
    pub fn paint(&self, colour: Colour, word: &str, pad: usize) -> String {
        let padding = " ".repeat(pad.saturating_sub(word.chars().count()));
        if !self.colour {
            return format!("{word}{padding}");
        }
        let code = match colour {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
        };
        format!("\x1b[{code}m{word}\x1b[0m{padding}")
    }
}

/// The width that the terminal tells `stty`: asking it ourselves would take an unsafe call.
fn terminal_width() -> Option<usize> {
    let answer =
        Command::new("stty").arg("size").stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(answer.stdout).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Breaks a text between words so that no line is wider than `width`, except for words that are: a path stays whole, to
/// be copied. Spaces at the front and between words of the first line stay as they are; line breaks of the text stay.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for (number, line) in text.lines().enumerate() {
        let mut column = 0;
        if number > 0 {
            out.push_str(&" ".repeat(indent));
            column = indent;
        }
        let mut start_of_line = true;
        for piece in line.split_inclusive(' ') {
            let word = visible_width(piece.trim_end_matches(' '));
            if !start_of_line && word > 0 && column + word > width {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            }
            out.push_str(piece);
            column += visible_width(piece);
            start_of_line &= word == 0;
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// Characters that take room: not those that set a colour.
fn visible_width(text: &str) -> usize {
    let mut width = 0;
    let mut in_escape = false;
    for character in text.chars() {
        match character {
            '\x1b' => in_escape = true,
            'm' if in_escape => in_escape = false,
            _ if in_escape => {}
            _ => width += 1,
        }
    }
    width
}

/// A JSON object, written member by member on one line.
pub struct Object(String);

impl Object {
    /// An object with no members yet.
    pub fn new() -> Self {
        Self(String::from("{"))
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        string(&mut self.0, key);
        self.0.push(':');
    }

    /// A member that is a string.
    pub fn string(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        string(&mut self.0, value);
        self
    }

    /// A member that is a number; one that JSON cannot write is `null`.
    pub fn number(mut self, key: &str, value: f64) -> Self {
        self.key(key);
        let written = if value.is_finite() { write!(self.0, "{value}") } else { write!(self.0, "null") };
        written.expect("writing to a string succeeds");
        self
    }

    /// A member that is a whole number.
    pub fn integer(mut self, key: &str, value: u64) -> Self {
        self.key(key);
        write!(self.0, "{value}").expect("writing to a string succeeds");
        self
    }

    /// A member that is true or false.
    pub fn boolean(mut self, key: &str, value: bool) -> Self {
        self.key(key);
        self.0.push_str(if value { "true" } else { "false" });
        self
    }

    /// A member that is an object.
    pub fn object(mut self, key: &str, value: Self) -> Self {
        self.key(key);
        self.0.push_str(&value.0);
        self.0.push('}');
        self
    }

    /// A member that is a list of objects.
    pub fn objects(mut self, key: &str, values: impl IntoIterator<Item = Self>) -> Self {
        self.key(key);
        self.0.push('[');
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.0.push(',');
            }
            self.0.push_str(&value.0);
            self.0.push('}');
        }
        self.0.push(']');
        self
    }

    /// A member that has no value.
    pub fn null(mut self, key: &str) -> Self {
        self.key(key);
        self.0.push_str("null");
        self
    }

    /// The line, with its end.
    pub fn finish(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }
}

fn string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control.is_control() => {
                write!(out, "\\u{:04x}", u32::from(control)).expect("writing to a string succeeds");
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_paths_stay_whole() {
        assert_eq!(wrap("  ok   one two three", 12, 4), "  ok   one\n    two\n    three\n");
        assert_eq!(wrap("a /very/long/path/to/it b", 10, 2), "a\n  /very/long/path/to/it\n  b\n");
        assert_eq!(wrap("first\nsecond", 80, 3), "first\n   second\n");
        assert_eq!(wrap("", 80, 3), "");
    }

    #[test]
    fn colours_take_no_room() {
        let output = Output { width: 80, colour: true };
        let word = output.paint(Colour::Red, "FAILED", 8);
        assert_eq!(visible_width(&word), 8);
        assert_eq!(wrap(&format!("{word}x y"), 11, 0), format!("{word}x y\n"));
    }

    #[test]
    fn objects_are_json() {
        let line =
            Object::new().string("a\"b", "c\\\n").number("d", 1.5).number("e", f64::NAN).null("f").finish();
        let nested = || Object::new().integer("n", u64::MAX).boolean("b", true);
        let line_of_nested = Object::new().object("o", nested()).objects("l", [nested(), nested()]).finish();
        let inner = "{\"n\":18446744073709551615,\"b\":true}";
        assert_eq!(line_of_nested, format!("{{\"o\":{inner},\"l\":[{inner},{inner}]}}\n"));
        assert_eq!(line, "{\"a\\\"b\":\"c\\\\\\u000a\",\"d\":1.5,\"e\":null,\"f\":null}\n");
    }
}
