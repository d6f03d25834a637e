//! Reading the JSON form of a snapshot.
//!
//! The open lists and dictionaries are kept on a stack of our own, so that depth costs memory in proportion to the file and never
//! the program's stack.

use std::io::Read;

use super::SnapshotError;
use super::build::{Builder, Value};
use super::source::Source;

/// Reads the single value of a file into `builder`, and returns it.
///
/// # Errors
/// If the file is not JSON, or becomes larger in memory than a snapshot can be. The message contains the offset.
pub(super) fn run<R: Read>(source: &mut Source<R>, builder: &mut Builder) -> Result<Value, SnapshotError> {
    let mut reader = Reader { source, builder, open: Vec::new(), pairs: Vec::new(), text: Vec::new() };
    let root = reader.document()?;
    let next = reader.next()?;
    reader.source.mark();
    match next {
        None => Ok(root),
        Some(_) => Err(reader.error("something follows the end of the JSON value")),
    }
}

/// A list or dictionary whose end has not been read yet.
struct Open {
    value: Value,
    /// The number of pairs in `pairs` that belong to enclosing dictionaries; `None` for a list.
    pairs_below: Option<usize>,
}

struct Reader<'m, R> {
    source: &'m mut Source<R>,
    builder: &'m mut Builder,
    open: Vec<Open>,
    /// The pairs of all open dictionaries. The last value of each may not have been read yet.
    pairs: Vec<[Value; 2]>,
    text: Vec<u8>,
}

type ReadResult<T> = Result<T, SnapshotError>;

impl<R: Read> Reader<'_, R> {
    fn document(&mut self) -> ReadResult<Value> {
        let mut values = 0_u32;
        loop {
            let mut done = self.begin_value()?;
            // A complete value may end those around it.
            while let Some(value) = done {
                let Some(open) = self.open.last() else { return Ok(value) };
                match open.pairs_below {
                    None => {
                        let appended = self.builder.append(open.value, &[value]);
                        appended.map_err(|what| self.source.error(&what))?;
                    }
                    Some(_) => self.pairs.last_mut().expect("its key was pushed")[1] = value,
                }
                done = self.after_value()?;
            }
            values = values.wrapping_add(1);
            if values.is_multiple_of(1024) {
                let own = size_of_val(&self.open[..]) + size_of_val(&self.pairs[..]);
                let checked = self.builder.check_size(own, self.source.offset());
                checked.map_err(|what| self.error(&what))?;
            }
        }
    }

    /// Reads a value, or the beginning of a list or dictionary; returns `None` for the latter.
    fn begin_value(&mut self) -> ReadResult<Option<Value>> {
        let first = self.next()?;
        self.source.mark();
        let first = first.ok_or_else(|| self.error("the file ends where a value is expected"))?;
        let made = match first {
            b'{' => self.builder.dict(),
            b'[' => self.builder.list(),
            b'"' => return self.string().map(Some),
            b't' => return self.word("true", Value::Bool(true)).map(Some),
            b'f' => return self.word("false", Value::Bool(false)).map(Some),
            b'n' => return self.word("null", Value::None).map(Some),
            b'-' | b'0'..=b'9' => return self.number().map(Some),
            _ => return Err(self.error("expected a JSON value")),
        };
        let value = made.map_err(|what| self.error(&what))?;
        self.source.byte()?;
        let is_dict = first == b'{';
        let end = if is_dict { b'}' } else { b']' };
        if self.next()? == Some(end) {
            self.source.byte()?;
            return Ok(Some(value));
        }
        self.open.push(Open { value, pairs_below: is_dict.then_some(self.pairs.len()) });
        if is_dict {
            self.key()?;
        }
        Ok(None)
    }

    /// Continues after a value inside another: returns the next value, or the enclosing one if it is complete.
    fn after_value(&mut self) -> ReadResult<Option<Value>> {
        let next = self.next()?;
        self.source.mark();
        let open = self.open.last().expect("a value is inside it");
        let is_dict = open.pairs_below.is_some();
        match next {
            Some(b',') => {
                self.source.byte()?;
                if is_dict {
                    self.key()?;
                }
                Ok(None)
            }
            Some(b'}') if is_dict => self.end(),
            Some(b']') if !is_dict => self.end(),
            Some(_) => Err(self.error("expected a comma, or the end of the list or object")),
            None => Err(self.error("the file ends inside a list or an object")),
        }
    }

    fn end(&mut self) -> ReadResult<Option<Value>> {
        self.source.byte()?;
        let Open { value, pairs_below } = self.open.pop().expect("one is open");
        if let Some(below) = pairs_below {
            let set = self.builder.set(value, &self.pairs[below..], true);
            set.map_err(|what| self.source.error(&what))?;
            self.pairs.truncate(below);
        }
        Ok(Some(value))
    }

    fn key(&mut self) -> ReadResult<()> {
        let next = self.next()?;
        self.source.mark();
        if next != Some(b'"') {
            return Err(self.error("expected a key in quotes"));
        }
        let key = self.string()?;
        if self.next()? != Some(b':') {
            return Err(self.error("expected a colon after the key"));
        }
        self.source.byte()?;
        self.pairs.push([key, Value::None]);
        Ok(())
    }

    /// Returns the next byte that is not a space, without taking it.
    fn next(&mut self) -> ReadResult<Option<u8>> {
        loop {
            match self.source.peek()? {
                Some(b' ' | b'\t' | b'\n' | b'\r') => drop(self.source.byte()?),
                other => return Ok(other),
            }
        }
    }

    fn word(&mut self, word: &str, value: Value) -> ReadResult<Value> {
        if self.source.take(word.len() as u64)? != word.as_bytes() {
            return Err(self.error("expected a JSON value"));
        }
        Ok(value)
    }

    fn number(&mut self) -> ReadResult<Value> {
        self.text.clear();
        while let Some(byte @ (b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) = self.source.peek()? {
            self.text.push(byte);
            self.source.byte()?;
        }
        let text = std::str::from_utf8(&self.text).expect("these are ASCII");
        if let Ok(value) = text.parse() {
            return Ok(Value::Int(value));
        }
        // A handle of 64 bits: only its bits matter.
        if let Ok(value) = text.parse::<u64>() {
            return Ok(Value::Int(value as i64));
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty() {
            return Ok(Value::Opaque);
        }
        text.parse().map(Value::Float).map_err(|_| self.error("is not a number"))
    }

    fn string(&mut self) -> ReadResult<Value> {
        self.source.byte()?;
        self.text.clear();
        loop {
            match self.source.byte()? {
                b'"' => break,
                b'\\' => self.escape()?,
                0..=0x1f => return Err(self.error("a text has a control character")),
                byte => self.text.push(byte),
            }
        }
        let text = String::from_utf8_lossy(&self.text);
        self.builder.text(&text).map_err(|what| self.source.error(&what))
    }

    fn escape(&mut self) -> ReadResult<()> {
        let plain = match self.source.byte()? {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.escaped_character(),
            _ => return Err(self.error("a text has an escape that JSON does not know")),
        };
        self.text.push(plain);
        Ok(())
    }

    /// Reads an escape such as `\u0041`, or two of them for a character beyond 16 bits. One half of such a pair alone is replaced
    /// by the replacement character.
    fn escaped_character(&mut self) -> ReadResult<()> {
        let mut code = self.four_digits()?;
        if (0xd800..0xdc00).contains(&code) && self.source.peek()? == Some(b'\\') {
            self.source.byte()?;
            if self.source.byte()? != b'u' {
                return Err(self.error("half a character is followed by another escape"));
            }
            let low = self.four_digits()?;
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff);
        }
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.text.extend(character.encode_utf8(&mut [0; 4]).bytes());
        Ok(())
    }

    fn four_digits(&mut self) -> ReadResult<u32> {
        let digits: [u8; 4] = self.source.array()?;
        let text = std::str::from_utf8(&digits).ok().filter(|_| digits.iter().all(u8::is_ascii_hexdigit));
        let code = text.and_then(|text| u32::from_str_radix(text, 16).ok());
        code.ok_or_else(|| self.error("a text has an escape without four digits"))
    }

    #[cold]
    fn error(&self, what: &str) -> SnapshotError {
        self.source.error(what)
    }
}
