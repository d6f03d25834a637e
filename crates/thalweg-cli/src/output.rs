//! Standard output for people and for scripts.
//!
//! For people: text that is wrapped to the width of the terminal, with a coloured word here and there. For scripts: one JSON
//! object per line ([`Output::json`]). Output to a closed pipe is dropped silently, as `head` expects; any other error of
//! writing, such as a full disk, makes the program fail ([`finish`]).

use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Effects, Style};

/// The width of a terminal that does not report one.
const DEFAULT_WIDTH: usize = 80;

/// The minimum width that is assumed: on a narrower terminal most lines would have one word.
const LEAST_WIDTH: usize = 40;

/// The first write error other than a closed pipe: output was lost.
static LOST: OnceLock<std::io::Error> = OnceLock::new();

/// The exit status of usage errors, and of commands that could not be run.
pub const EXIT_USAGE: u8 = 2;

/// The reason why a command could not be run, in a sentence: exit status 2.
pub struct Failure(pub String);

/// Writes `error:` and a sentence to standard error. Returns the exit status of an error.
pub fn print_error(text: &str) -> ExitCode {
    let style = Style::new().fg_color(Some(AnsiColor::Red.into())).effects(Effects::BOLD);
    explain(&format!("{style}error:{style:#} {text}"))
}

/// Writes a text to standard error, if there is one. Returns the exit status of a usage error.
pub fn explain(text: &str) -> ExitCode {
    let _ = writeln!(anstream::stderr(), "{}", text.trim_end());
    ExitCode::from(EXIT_USAGE)
}

/// Returns the exit status of the program: `code`, if no output was lost.
pub fn finish(code: ExitCode) -> ExitCode {
    match LOST.get() {
        Some(error) => print_error(&format!("the output could not be written: {error}")),
        None => code,
    }
}

/// Returns the number of columns of a line, from `COLUMNS` or else the terminal.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || {
        let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
        Some(usize::from(width.0))
    };
    columns.or_else(terminal).filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH).max(LEAST_WIDTH)
}

/// Returns a word in a colour, padded to a width without counting the colour codes.
pub fn paint(colour: AnsiColor, word: &str, pad: usize) -> String {
    let (style, padding) = (colour.on_default(), " ".repeat(pad.saturating_sub(word.chars().count())));
    format!("{style}{word}{style:#}{padding}")
}

/// Standard output.
pub struct Output {
    width: usize,
}

impl Output {
    /// Returns the process's standard output.
    pub fn standard() -> Self {
        Self { width: width() }
    }

    /// Returns the number of columns of a line.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes text unchanged, except that colours are removed if they are disabled.
    pub fn text(&self, text: &str) {
        let mut standard = anstream::stdout().lock();
        if let Err(error) = standard.write_all(text.as_bytes()).and_then(|()| standard.flush())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            // The output is the only result, so the caller must learn that it was lost.
            let _ = LOST.set(error);
        }
    }

    /// Writes a line, wrapped; its further lines begin with `indent` spaces.
    pub fn line(&self, indent: usize, text: &str) {
        self.text(&wrap(text, self.width, indent));
    }

    /// Writes a JSON value as one line.
    pub fn json(&self, value: &serde_json::Value) {
        self.text(&json_line(value));
    }
}

/// Returns a JSON value as one line, without control of the terminal.
fn json_line(value: &serde_json::Value) -> String {
    let mut line = String::new();
    for character in value.to_string().chars() {
        // Characters that JSON forbids are already escaped; the others occur only in strings.
        match character.is_control() {
            true => line.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => line.push(character),
        }
    }
    line.push('\n');
    line
}

/// Breaks a text between words so that no line is wider than `width`. A longer word, such as a path to be copied, stays in one
/// piece. Line breaks in the text stay, and so do spaces at its start and between the words of its first line.
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

/// Returns the number of visible characters, without those that set a colour.
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
    fn objects_are_one_line_that_a_terminal_does_not_obey() {
        let value = serde_json::json!({ "b": "\u{9b}2J\u{7f}\n\u{1b}é", "a": f64::NAN });
        let line = json_line(&value);
        assert_eq!(line, "{\"b\":\"\\u009b2J\\u007f\\n\\u001bé\",\"a\":null}\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).ok(), Some(value));
    }

    #[test]
    fn colours_take_no_room() {
        let word = paint(AnsiColor::Red, "FAILED", 8);
        assert_eq!(visible_width(&word), 8);
        assert_eq!(wrap(&format!("{word}x y"), 11, 0), format!("{word}x y\n"));
    }
}
