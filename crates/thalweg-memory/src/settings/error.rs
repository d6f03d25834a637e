//! The error of a settings text: the mistake, and its position.
//!
//! Reading produces a [`Fault`], which has the position in the text but not the text; before it is returned to the caller it
//! becomes a [`SettingsError`], which has both and can draw the line with the caret.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::ops::Range;

/// The reason why settings were refused. No setting has changed.
///
/// ```
/// use thalweg_memory::Settings;
/// let error = Settings::parse("backend:native,max_split_sise_mb:40").expect_err("there is no such key");
/// assert_eq!(
///     error.to_string(),
///     "column 16: `max_split_sise_mb` is not a key; did you mean `max_split_size_mb`?
///   backend:native,max_split_sise_mb:40
///                  ^^^^^^^^^^^^^^^^^"
/// );
/// assert_eq!((error.byte_range(), error.suggestion()), (Some(15..32), Some("max_split_size_mb")));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError(Box<Inner>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Inner {
    fault: Fault,
    /// The text, if the settings were given as one.
    text: Option<String>,
    variable: Option<&'static str>,
}

/// A mistake at a position of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// The position of the mistake, as a range of bytes of the text. The range is empty at the end of the text.
    pub range: Range<usize>,
    /// The key that the mistake concerns, if known.
    pub key: Option<&'static str>,
    /// The text that was found there.
    pub found: String,
    pub expected: Cow<'static, str>,
    pub kind: FaultKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FaultKind {
    /// No key has this name; the nearest existing name.
    UnknownKey { nearest: Option<&'static str> },
    /// The text is not well formed here.
    Syntax,
    /// The key does not accept this value.
    Value,
}

impl Fault {
    /// Creates the fault for a value that the key does not accept.
    pub fn value(
        key: &'static str,
        range: Range<usize>,
        found: impl fmt::Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (found, expected) = (found.to_string(), expected.into());
        Self { range, key: Some(key), found, expected, kind: FaultKind::Value }
    }

    pub fn in_text(self, text: &str) -> SettingsError {
        SettingsError(Box::new(Inner { fault: self, text: Some(text.to_owned()), variable: None }))
    }

    pub fn outside_text(self) -> SettingsError {
        SettingsError(Box::new(Inner { fault: self, text: None, variable: None }))
    }
}

impl SettingsError {
    pub(super) fn with_variable(mut self, variable: &'static str) -> Self {
        self.0.variable = Some(variable);
        self
    }

    /// Returns whether the text names a key that does not exist.
    pub fn is_unknown_key(&self) -> bool {
        matches!(self.0.fault.kind, FaultKind::UnknownKey { .. })
    }

    /// Returns whether the error is a value that its key does not accept.
    pub fn is_invalid_value(&self) -> bool {
        self.0.fault.kind == FaultKind::Value
    }

    /// Returns the key that the error concerns, if the text names one before the mistake. For an unknown key, this is the text
    /// found.
    pub fn key(&self) -> Option<&str> {
        match self.0.fault.kind {
            FaultKind::UnknownKey { .. } => Some(&self.0.fault.found),
            _ => self.0.fault.key,
        }
    }

    /// Returns the text that was found; empty if the text ended too early.
    pub fn found(&self) -> &str {
        &self.0.fault.found
    }

    /// Returns a description of what should have been there.
    pub fn expected(&self) -> &str {
        &self.0.fault.expected
    }

    /// Returns the key that was probably meant instead of an unknown one.
    pub fn suggestion(&self) -> Option<&'static str> {
        match self.0.fault.kind {
            FaultKind::UnknownKey { nearest } => nearest,
            _ => None,
        }
    }

    /// Returns the complete text, unless a value was set by a method.
    pub fn text(&self) -> Option<&str> {
        self.0.text.as_deref()
    }

    /// Returns the bytes of the [`text`](Self::text) that are wrong; empty if something is missing at its end.
    pub fn byte_range(&self) -> Option<Range<usize>> {
        self.0.text.as_ref().map(|_| self.0.fault.range.clone())
    }

    /// Returns the column where that range begins, in characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        let text = self.text()?;
        Some(text[..self.0.fault.range.start].chars().count() + 1)
    }

    /// Returns the environment variable that contained the text.
    pub fn variable(&self) -> Option<&'static str> {
        self.0.variable
    }
}

/// Returns a helpful part of a wrong text, with invisible characters made visible.
fn shown(found: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = found.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if found.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for SettingsError {
    /// Writes one sentence; then, for a text, the part around the position, with a line of carets below.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { fault, text, variable } = &*self.0;
        if let Some(variable) = variable {
            write!(f, "{variable}, ")?;
        }
        if let Some(column) = self.column() {
            write!(f, "column {column}: ")?;
        }
        let (found, expected) = (shown(&fault.found), &fault.expected);
        match &fault.kind {
            FaultKind::UnknownKey { nearest: Some(nearest) } => {
                write!(f, "`{found}` is not a key; did you mean `{nearest}`?")?;
            }
            FaultKind::UnknownKey { nearest: None } => {
                write!(f, "`{found}` is not a key; the keys are {expected}")?;
            }
            FaultKind::Syntax if found.is_empty() => {
                write!(f, "expected {expected}, found the end of the text")?;
            }
            FaultKind::Syntax => write!(f, "expected {expected}, found `{found}`")?,
            FaultKind::Value => {
                let key = fault.key.unwrap_or_default();
                write!(f, "`{found}` is invalid for {key}: expected {expected}")?;
            }
        }
        match text {
            Some(text) => write_carets(f, text, fault.range.clone()),
            None => Ok(()),
        }
    }
}

impl Error for SettingsError {}

/// Draws the text with the range underlined, in at most 78 columns. Any character other than plain ASCII is drawn as a dot, so
/// that every character is one column wide on every terminal.
fn write_carets(f: &mut fmt::Formatter<'_>, text: &str, range: Range<usize>) -> fmt::Result {
    const BEFORE: usize = 40;
    const WIDTH: usize = 72;
    let start = text[..range.start].char_indices().rev().nth(BEFORE - 1).map_or(0, |(at, _)| at);
    let line: String = text[start..].chars().take(WIDTH).map(drawn).collect();
    let left = if start > 0 { "… " } else { "  " };
    let right = if text[start..].chars().nth(WIDTH).is_some() { " …" } else { "" };
    let indent = text[start..range.start].chars().count() + 2;
    let carets = text[range].chars().count().clamp(1, WIDTH + 2 - indent);
    write!(f, "\n{left}{}{right}\n{:indent$}{:^<carets$}", line, "", "")
}

fn drawn(character: char) -> char {
    match character {
        ' ' => ' ',
        _ if character.is_ascii_graphic() => character,
        _ if character.is_whitespace() => ' ',
        _ => '·',
    }
}
