//! The JSON form of a snapshot.
//!
//! The form is written value by value, and not by `serde_json`: a snapshot can have gigabytes, which a tree of values would hold
//! a second time, and the keys are defined in one place for this form and for pickles ([`dump`]).
//!
//! The output is one line without spaces. Numbers that JSON lacks are null. Integers are written in full: a reader that stores
//! them as doubles has them exact up to 2^53, which addresses do not reach.

use std::fmt::Write;

use super::Frames;
use super::dump::{self, Dump};

/// A writer of consecutive values, with the commas between them.
#[derive(Default)]
pub(crate) struct JsonWriter {
    out: String,
    /// Whether the next value or key follows another one in the same list or dictionary.
    follows: bool,
}

impl JsonWriter {
    pub(crate) fn finish(self) -> String {
        self.out
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.follows, true) {
            self.out.push(',');
        }
    }

    fn begin(&mut self, bracket: char) {
        self.separate();
        self.out.push(bracket);
        self.follows = false;
    }

    fn end(&mut self, bracket: char) {
        self.out.push(bracket);
        self.follows = true;
    }

    fn quote(&mut self, text: &str) {
        self.out.push('"');
        let mut rest = text;
        while let Some(at) = rest.find(|character| matches!(character, '"' | '\\' | '\0'..='\x1f')) {
            self.out.push_str(&rest[..at]);
            match rest.as_bytes()[at] {
                b'\n' => self.out.push_str("\\n"),
                b'\t' => self.out.push_str("\\t"),
                control @ 0..=0x1f => write_to(&mut self.out, format_args!("\\u{control:04x}")),
                quoted => self.out.extend(['\\', char::from(quoted)]),
            }
            rest = &rest[at + 1..];
        }
        self.out.push_str(rest);
        self.out.push('"');
    }
}

fn write_to(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("writing to a string does not fail");
}

impl<'a> Dump<'a> for JsonWriter {
    fn none(&mut self) {
        self.separate();
        self.out.push_str("null");
    }

    fn bool(&mut self, value: bool) {
        self.separate();
        self.out.push_str(if value { "true" } else { "false" });
    }

    fn int(&mut self, value: i64) {
        self.separate();
        write_to(&mut self.out, format_args!("{value}"));
    }

    fn float(&mut self, value: f64) {
        if value.is_finite() {
            self.separate();
            write_to(&mut self.out, format_args!("{value:?}"));
        } else {
            self.none();
        }
    }

    fn text(&mut self, value: &'a str) {
        self.separate();
        self.quote(value);
    }

    fn begin_list(&mut self) {
        self.begin('[');
    }

    fn end_list(&mut self) {
        self.end(']');
    }

    fn begin_dict(&mut self) {
        self.begin('{');
    }

    fn end_dict(&mut self) {
        self.end('}');
    }

    fn key(&mut self, key: &'a str) {
        self.separate();
        self.quote(key);
        self.out.push(':');
        self.follows = false;
    }

    fn pair(&mut self, (first, second): (u64, u64)) {
        self.separate();
        write_to(&mut self.out, format_args!("[{first},{second}]"));
    }

    fn frames(&mut self, frames: &'a Frames) {
        self.begin_list();
        frames.iter().for_each(|frame| dump::frame(frame, self));
        self.end_list();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_values_separated() {
        let mut writer = JsonWriter::default();
        writer.begin_dict();
        writer.key("a\"\\");
        writer.text("\u{1}\n\té");
        writer.key("b");
        writer.begin_list();
        writer.int(-1);
        writer.float(0.0);
        writer.float(1e300);
        writer.float(f64::NAN);
        writer.pair((1, u64::MAX));
        writer.begin_list();
        writer.end_list();
        writer.bool(true);
        writer.end_list();
        writer.end_dict();
        assert_eq!(
            writer.finish(),
            r#"{"a\"\\":"\u0001\n\té","b":[-1,0.0,1e300,null,[1,18446744073709551615],[],true]}"#
        );
    }
}
