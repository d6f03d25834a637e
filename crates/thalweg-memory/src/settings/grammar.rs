//! The text of the settings: its division into tokens, and the reading and writing of each form of value.
//!
//! ```text
//! text    = [ entry { "," entry } [ "," ] ]
//! entry   = key ":" ( "default" | value )
//! value   = word | list
//! list    = "[" [ word ":" word { "," word ":" word } [ "," ] ] "]"
//! ```
//!
//! A word is the text between these signs and white space. The cursor never moves back, looks ahead by one token, and does not
//! recurse, since lists do not nest. So the time is linear in the length of the text, and no text overflows the stack.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::error::{Fault, FaultKind};
use super::values::{Choice, MIB, PowerTwoDivisions, Reserve, word};

/// The value that resets any key to its default.
pub(super) const DEFAULT_WORD: &str = "default";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    Comma,
    Colon,
    Open,
    Close,
    Word,
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: TokenKind,
    /// The text of the token; empty at the end.
    pub text: &'a str,
    /// The position where the token begins, in bytes.
    pub start: usize,
}

impl Token<'_> {
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// Returns the fault of a token that does not belong here.
    pub fn unexpected(&self, expected: impl Into<String>) -> Fault {
        let (found, expected) = (self.text.to_owned(), expected.into().into());
        Fault { range: self.range(), key: None, found, expected, kind: FaultKind::Syntax }
    }
}

/// A position in the text, at which the next token is read.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the next token without taking it.
    pub fn peek(&self) -> Token<'a> {
        let rest = self.text[self.at..].trim_start();
        let start = self.text.len() - rest.len();
        let Some(first) = rest.chars().next() else {
            return Token { kind: TokenKind::End, text: "", start };
        };
        match sign(first) {
            Some(kind) => Token { kind, text: &rest[..first.len_utf8()], start },
            None => {
                let length = rest.find(|character: char| !is_of_word(character)).unwrap_or(rest.len());
                Token { kind: TokenKind::Word, text: &rest[..length], start }
            }
        }
    }

    /// Takes the next token.
    pub fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at = token.range().end;
        token
    }

    /// Takes the next token, which must be of this kind.
    pub fn expect(&mut self, kind: TokenKind, expected: &str) -> Result<Token<'a>, Fault> {
        let token = self.next();
        if token.kind == kind { Ok(token) } else { Err(token.unexpected(expected)) }
    }

    /// Takes the next token if it is of this kind.
    pub fn take(&mut self, kind: TokenKind) -> bool {
        let found = self.peek().kind == kind;
        if found {
            self.next();
        }
        found
    }

    /// Returns the end of the last token taken, in bytes.
    pub fn position(&self) -> usize {
        self.at
    }
}

fn sign(character: char) -> Option<TokenKind> {
    match character {
        ',' => Some(TokenKind::Comma),
        ':' => Some(TokenKind::Colon),
        '[' => Some(TokenKind::Open),
        ']' => Some(TokenKind::Close),
        _ => None,
    }
}

fn is_of_word(character: char) -> bool {
    sign(character).is_none() && !character.is_whitespace()
}

/// Returns whether a text can be written as one word.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_word)
}

/// The key for which a value is read, with the words for error messages.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub key: &'static str,
    /// A description of the values that the key accepts.
    pub accepts: &'static str,
}

impl Wanted {
    /// Returns the fault of a word that the key does not accept.
    fn refuses(self, token: &Token<'_>) -> Fault {
        Fault::value(self.key, token.range(), token.text, self.accepts)
    }

    fn word<'a>(self, cursor: &mut Cursor<'a>) -> Result<Token<'a>, Fault> {
        let token = cursor.next();
        match token.kind {
            TokenKind::Word => Ok(token),
            _ => Err(Fault { key: Some(self.key), ..token.unexpected(self.accepts) }),
        }
    }

    fn parsed<T>(self, cursor: &mut Cursor<'_>, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Fault> {
        let token = self.word(cursor)?;
        parse(token.text).ok_or_else(|| self.refuses(&token))
    }
}

/// The reading and writing of one form of value. Writing a value and reading the result returns the same value.
pub(super) struct Syntax<T: 'static> {
    pub read: fn(&mut Cursor<'_>, Wanted) -> Result<T, Fault>,
    pub write: fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
}

/// Returns the syntax of a choice between a few words.
pub(super) const fn choice<T: Choice>() -> Syntax<T> {
    Syntax {
        read: |cursor, wanted| {
            wanted.parsed(cursor, |text| {
                T::WORDS.iter().find(|(_, word)| *word == text).map(|(value, _)| *value)
            })
        },
        write: |value, f| f.write_str(word(*value)),
    }
}

/// A whole number.
pub(super) const INTEGER: Syntax<u64> =
    Syntax { read: |cursor, wanted| wanted.parsed(cursor, integer), write: |value, f| write!(f, "{value}") };

/// A whole number of MiB in the text; bytes in memory.
pub(super) const MEBIBYTES: Syntax<u64> = Syntax {
    read: |cursor, wanted| wanted.parsed(cursor, |text| integer(text)?.checked_mul(MIB)),
    write: |bytes, f| match bytes % MIB {
        0 => write!(f, "{}", bytes / MIB),
        // Only reached for the error that refuses the value.
        _ => write!(f, "{bytes} bytes"),
    },
};

/// A decimal number.
pub(super) const NUMBER: Syntax<f64> =
    Syntax { read: |cursor, wanted| wanted.parsed(cursor, number), write: |value, f| write!(f, "{value}") };

/// `0.5` or `8G`.
pub(super) const RESERVE: Syntax<Reserve> =
    Syntax { read: |cursor, wanted| wanted.parsed(cursor, reserve), write: |value, f| write!(f, "{value}") };

/// A list such as `[serving:0.25,training:8G]`. Of two entries with one name, the last counts.
pub(super) const RESERVE_BY_CLASS: Syntax<BTreeMap<String, Reserve>> = Syntax {
    read: |cursor, wanted| {
        let mut classes = BTreeMap::new();
        cursor.expect(TokenKind::Open, "`[`, which begins a list").map_err(|fault| of(wanted, fault))?;
        read_list(cursor, wanted, |name, cursor| {
            let accepts = "a fraction (`0.5`) or a number of GiB (`8G`), more than 0";
            let text = cursor.peek();
            let value = Wanted { accepts, ..wanted }.parsed(cursor, reserve)?;
            if !value.is_valid() {
                return Err(Fault::value(wanted.key, text.range(), text.text, accepts));
            }
            classes.insert(name.text.to_owned(), value);
            Ok(())
        })?;
        Ok(classes)
    },
    write: |classes, f| {
        f.write_str("[")?;
        for (index, (name, value)) in classes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{name}:{value}")?;
        }
        f.write_str("]")
    },
};

/// One number such as `8`, or a list such as `[64:8,256:4,>:1]`. Entries are applied in order. The first also applies to all
/// smaller intervals, `>` to all above the one before it; intervals that are not named have no divisions.
pub(super) const DIVISIONS: Syntax<PowerTwoDivisions> = Syntax {
    read: |cursor, wanted| {
        if !cursor.take(TokenKind::Open) {
            return wanted.parsed(cursor, |text| PowerTwoDivisions::uniform(integer(text)?));
        }
        let mut divisions = PowerTwoDivisions::default();
        let mut is_first = true;
        let mut last = 0;
        read_list(cursor, wanted, |boundary, cursor| {
            let accepts = "0 or a power of two as the number of divisions";
            let valid = |text: &str| integer(text).filter(|&count| PowerTwoDivisions::is_valid(count));
            let count = Wanted { accepts, ..wanted }.parsed(cursor, valid)?;
            if boundary.text == ">" {
                (last + 1..PowerTwoDivisions::INTERVALS).for_each(|interval| divisions.set(interval, count));
                return Ok(());
            }
            let Some(size_mib) = integer(boundary.text).filter(|size| size.is_power_of_two()) else {
                let accepts = "a power of two, in MiB, or `>` before each `:`";
                return Err(Wanted { accepts, ..wanted }.refuses(&boundary));
            };
            last = PowerTwoDivisions::interval(size_mib);
            let from = if is_first { 0 } else { last };
            (from..=last).for_each(|interval| divisions.set(interval, count));
            is_first = false;
            Ok(())
        })?;
        Ok(divisions)
    },
    write: |value, f| write!(f, "{value}"),
};

/// Reads the pairs of a list and its end. `pair` is called with the token before the colon, and reads the value after it.
fn read_list<'a>(
    cursor: &mut Cursor<'a>,
    wanted: Wanted,
    mut pair: impl FnMut(Token<'a>, &mut Cursor<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    while !cursor.take(TokenKind::Close) {
        let name =
            cursor.expect(TokenKind::Word, "`name:value` or `]`").map_err(|fault| of(wanted, fault))?;
        cursor.expect(TokenKind::Colon, "`:`").map_err(|fault| of(wanted, fault))?;
        pair(name, cursor)?;
        if cursor.peek().kind != TokenKind::Close {
            cursor.expect(TokenKind::Comma, "`,` or `]`").map_err(|fault| of(wanted, fault))?;
        }
    }
    Ok(())
}

fn of(wanted: Wanted, fault: Fault) -> Fault {
    Fault { key: Some(wanted.key), ..fault }
}

/// Reads digits and nothing else: no sign, no unit.
fn integer(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reads a decimal number. The standard library's parser would also accept `inf` and `nan`.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    plain.then(|| text.parse().ok())?
}

fn reserve(text: &str) -> Option<Reserve> {
    match text.strip_suffix('G') {
        Some(count) => integer(count).map(Reserve::Gibibytes),
        None => number(text).map(Reserve::Fraction),
    }
}
