//! Running a pickle.

use std::io::Read;

use super::opcode;
use crate::SnapshotError;
use crate::build::{Builder, Value};
use crate::source::Source;

/// Runs the pickle in `source`, into `builder`, and returns the value that it describes. Data after its end is ignored, as in
/// Python.
///
/// # Errors
/// If the pickle is broken, or does something that plain data does not need, or becomes larger in memory than a snapshot can be.
/// The message contains the offset of the instruction.
pub(crate) fn run<R: Read>(source: &mut Source<R>, builder: &mut Builder) -> Result<Value, SnapshotError> {
    let mut machine =
        Machine { source, builder, stack: Vec::new(), marks: Vec::new(), memo: Memo::default() };
    let mut steps = 0_u32;
    loop {
        machine.source.mark();
        if let Some(root) = machine.step()? {
            return Ok(root);
        }
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(CHECK_STEPS) {
            machine.check_size()?;
        }
    }
}

/// The number of instructions between two checks of the memory used.
const CHECK_STEPS: u32 = 4096;

/// The number of instructions that may be run in one batch.
const MOST_AT_ONCE: usize = 64;

struct Machine<'m, R> {
    source: &'m mut Source<R>,
    builder: &'m mut Builder,
    stack: Vec<Value>,
    /// The heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: Memo,
}

type ReadResult<T> = Result<T, SnapshotError>;

/// A dictionary of three pairs that can be read in one step.
struct FrameAhead {
    /// The memo number of the dictionary, if it is stored in the memo.
    number: Option<u32>,
    pairs: [[Value; 2]; 3],
    bytes: usize,
}

impl<R: Read> Machine<'_, R> {
    /// Runs one instruction. Returns the root after the last one.
    fn step(&mut self) -> ReadResult<Option<Value>> {
        let code = self.source.byte()?;
        match code {
            opcode::PROTO => self.protocol()?,
            // Frames suggest how much to read ahead, which is decided differently here.
            opcode::FRAME => drop(self.source.array::<8>()?),
            opcode::STOP => return self.pop().map(Some),
            opcode::MARK => self.marks.push(self.stack.len()),
            opcode::BINGET => {
                let number = self.source.byte()?;
                self.recall(number.into())?;
            }
            opcode::LONG_BINGET => {
                let number = u32::from_le_bytes(self.source.array()?);
                self.recall(number)?;
                self.recall_more();
            }
            opcode::MEMOIZE => self.remember(self.memo.used)?,
            opcode::BINPUT => {
                let number = self.source.byte()?;
                self.remember(number.into())?;
            }
            opcode::LONG_BINPUT => {
                let number = u32::from_le_bytes(self.source.array()?);
                self.remember(number)?;
            }
            opcode::BININT1 => {
                let value = self.source.byte()?;
                self.stack.push(Value::Int(value.into()));
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.source.array()?);
                self.stack.push(Value::Int(value.into()));
            }
            opcode::BININT => {
                let value = i32::from_le_bytes(self.source.array()?);
                self.stack.push(Value::Int(value.into()));
            }
            opcode::LONG1 | opcode::LONG4 => {
                let length = self.length(if code == opcode::LONG1 { 1 } else { 4 })?;
                let value = long(self.source.take(length)?);
                self.stack.push(value);
            }
            opcode::BINFLOAT => {
                let value = f64::from_be_bytes(self.source.array()?);
                self.stack.push(Value::Float(value));
            }
            opcode::SHORT_BINUNICODE => self.text(1)?,
            opcode::BINUNICODE => self.text(4)?,
            opcode::BINUNICODE8 => self.text(8)?,
            opcode::SHORT_BINBYTES => self.bytes(1)?,
            opcode::BINBYTES => self.bytes(4)?,
            opcode::BINBYTES8 => self.bytes(8)?,
            opcode::NONE => self.stack.push(Value::None),
            opcode::NEWTRUE => self.stack.push(Value::Bool(true)),
            opcode::NEWFALSE => self.stack.push(Value::Bool(false)),
            _ => self.container(code)?,
        }
        Ok(None)
    }

    fn protocol(&mut self) -> ReadResult<()> {
        let protocol = self.source.byte()?;
        if !(2..=5).contains(&protocol) {
            return Err(self.error(&format!("protocol {protocol} is not read; 2 to 5 are")));
        }
        Ok(())
    }

    fn container(&mut self, code: u8) -> ReadResult<()> {
        match code {
            opcode::EMPTY_LIST => self.made(|builder| builder.list())?,
            opcode::EMPTY_DICT if self.frame()? => {}
            opcode::EMPTY_DICT => self.made(|builder| builder.dict())?,
            opcode::EMPTY_TUPLE => self.tuple(self.stack.len())?,
            opcode::TUPLE => {
                let mark = self.mark()?;
                self.tuple(mark)?;
            }
            opcode::TUPLE1..=opcode::TUPLE3 => {
                let count = usize::from(code - opcode::TUPLE1) + 1;
                if self.stack.len() < self.floor() + count {
                    return Err(self.error("takes more values than there are"));
                }
                self.tuple(self.stack.len() - count)?;
            }
            opcode::APPEND => {
                self.top()?;
                self.append(self.stack.len() - 1)?;
            }
            opcode::APPENDS => {
                let mark = self.mark()?;
                self.append(mark)?;
            }
            opcode::SETITEM => {
                if self.stack.len() < self.floor() + 2 {
                    return Err(self.error("takes more values than there are"));
                }
                self.set(self.stack.len() - 2, false)?;
            }
            opcode::SETITEMS => {
                let mark = self.mark()?;
                self.set(mark, true)?;
            }
            opcode::POP if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            opcode::POP => drop(self.pop()?),
            opcode::POP_MARK => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            opcode::DUP => {
                let top = self.top()?;
                self.stack.push(top);
            }
            _ => {
                return Err(self.error(&format!(
                    "instruction {code:#04x} is not one that plain data of protocols 2 to 5 needs; only dictionaries, \
                     lists, tuples, numbers and texts are read"
                )));
            }
        }
        Ok(())
    }

    /// Runs the instructions that make a frame in one step. The instructions must follow an empty dictionary, and all texts of
    /// the frame must have been written before. Otherwise returns `false`, without consuming anything. The shortcut matters
    /// because a file in which frames are not shared has one frame for each frame of each stack.
    fn frame(&mut self) -> ReadResult<bool> {
        let Some(FrameAhead { number, pairs, bytes }) = self.frame_ahead() else { return Ok(false) };
        let made = self.builder.whole_frame(&pairs).map_err(|what| self.source.error(&what))?;
        let Some(value) = made else { return Ok(false) };
        self.source.pass(bytes);
        self.stack.push(value);
        if let Some(number) = number {
            self.memo.remember(number, value);
        }
        Ok(true)
    }

    #[inline]
    fn frame_ahead(&self) -> Option<FrameAhead> {
        let ahead = self.source.ahead();
        let (number, rest) = match *ahead {
            [opcode::MEMOIZE, ref rest @ ..] => (Some(self.memo.used), rest),
            [opcode::BINPUT, number, ref rest @ ..] => (Some(number.into()), rest),
            [opcode::LONG_BINPUT, a, b, c, d, ref rest @ ..] => {
                (Some(u32::from_le_bytes([a, b, c, d])), rest)
            }
            _ => (None, ahead),
        };
        if number.is_some_and(|number| u64::from(number) >= self.source.offset()) {
            return None;
        }
        let mut rest = rest.strip_prefix(&[opcode::MARK])?;
        let mut pairs = [[Value::None; 2]; 3];
        for pair in &mut pairs {
            let (key, value);
            (key, rest) = self.small_ahead(rest)?;
            if !Builder::is_key_of_frame(key) {
                return None;
            }
            (value, rest) = self.small_ahead(rest)?;
            *pair = [key, value];
        }
        rest = rest.strip_prefix(&[opcode::SETITEMS])?;
        Some(FrameAhead { number, pairs, bytes: ahead.len() - rest.len() })
    }

    /// Returns the value that an instruction pushes which recalls a value or is a small number, and the bytes after it.
    #[inline]
    fn small_ahead<'a>(&self, ahead: &'a [u8]) -> Option<(Value, &'a [u8])> {
        Some(match *ahead {
            [opcode::BINGET, number, ref rest @ ..] => (self.memo.recall(number.into())?, rest),
            [opcode::LONG_BINGET, a, b, c, d, ref rest @ ..] => {
                (self.memo.recall(u32::from_le_bytes([a, b, c, d]))?, rest)
            }
            [opcode::BININT1, value, ref rest @ ..] => (Value::Int(value.into()), rest),
            [opcode::BININT2, a, b, ref rest @ ..] => (Value::Int(u16::from_le_bytes([a, b]).into()), rest),
            [opcode::BININT, a, b, c, d, ref rest @ ..] => {
                (Value::Int(i32::from_le_bytes([a, b, c, d]).into()), rest)
            }
            _ => return None,
        })
    }

    fn made(&mut self, make: impl FnOnce(&mut Builder) -> Result<Value, String>) -> ReadResult<()> {
        let value = make(self.builder).map_err(|what| self.source.error(&what))?;
        self.stack.push(value);
        Ok(())
    }

    fn tuple(&mut self, from: usize) -> ReadResult<()> {
        let tuple = self.builder.tuple(&self.stack[from..]).map_err(|what| self.source.error(&what))?;
        self.stack.truncate(from);
        self.stack.push(tuple);
        Ok(())
    }

    fn append(&mut self, from: usize) -> ReadResult<()> {
        let list = self.below(from)?;
        self.builder.append(list, &self.stack[from..]).map_err(|what| self.source.error(&what))?;
        self.stack.truncate(from);
        Ok(())
    }

    fn set(&mut self, from: usize, complete: bool) -> ReadResult<()> {
        let dict = self.below(from)?;
        let (pairs, rest) = self.stack[from..].as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.error("has a key without a value"));
        }
        self.builder.set(dict, pairs, complete).map_err(|what| self.source.error(&what))?;
        self.stack.truncate(from);
        Ok(())
    }

    fn text(&mut self, length_bytes: usize) -> ReadResult<()> {
        let length = self.length(length_bytes)?;
        // Python accepts single surrogates, which are not valid UTF-8: they are replaced by the replacement character.
        let text = String::from_utf8_lossy(self.source.take(length)?);
        let value = self.builder.text(&text);
        drop(text);
        let value = value.map_err(|what| self.source.error(&what))?;
        self.stack.push(value);
        Ok(())
    }

    fn bytes(&mut self, length_bytes: usize) -> ReadResult<()> {
        let length = self.length(length_bytes)?;
        self.source.skip(length)?;
        self.stack.push(Value::Opaque);
        Ok(())
    }

    #[inline]
    fn recall(&mut self, number: u32) -> ReadResult<()> {
        let Some(value) = self.memo.recall(number) else {
            return Err(self.error(&format!("nothing was remembered as {number}")));
        };
        self.stack.push(value);
        Ok(())
    }

    /// Runs the following instructions as long as they are of the same kind, as most instructions of a file with stacks are.
    /// Stops before an invalid instruction, whose error is reported when it is run on its own.
    #[inline]
    fn recall_more(&mut self) {
        let Self { source, stack, memo, .. } = self;
        let (pieces, _) = source.ahead().as_chunks::<5>();
        let mut count = 0;
        for &[code, a, b, c, d] in &pieces[..pieces.len().min(MOST_AT_ONCE)] {
            let value = memo.recall(u32::from_le_bytes([a, b, c, d]));
            let Some(value) = value.filter(|_| code == opcode::LONG_BINGET) else { break };
            stack.push(value);
            count += 1;
        }
        source.pass(5 * count);
    }

    fn remember(&mut self, number: u32) -> ReadResult<()> {
        // A writer counts up. Numbers may be skipped, but not more of them than the file so far could have used.
        let offset = self.source.offset();
        if u64::from(number) >= offset {
            return Err(self.error(&format!("remembers as {number}, after {offset} bytes")));
        }
        let top = self.top()?;
        self.memo.remember(number, top);
        Ok(())
    }

    /// Returns the height below which nothing may be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> ReadResult<Value> {
        self.below(self.stack.len())
    }

    /// Returns the value below a height of the stack.
    fn below(&self, height: usize) -> ReadResult<Value> {
        let value = if height > self.floor() { self.stack.get(height - 1) } else { None };
        value.copied().ok_or_else(|| self.error("takes a value where there is none"))
    }

    fn pop(&mut self) -> ReadResult<Value> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn mark(&mut self) -> ReadResult<usize> {
        self.marks.pop().ok_or_else(|| self.error("takes the values above a mark, and there is none"))
    }

    /// Reads a length that is stored in `bytes` bytes.
    fn length(&mut self, bytes: usize) -> ReadResult<u64> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.source.take(bytes as u64)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn check_size(&self) -> ReadResult<()> {
        let own = size_of_val(&self.stack[..]) + size_of_val(&self.marks[..]) + self.memo.bytes();
        self.builder.check_size(own, self.source.offset()).map_err(|what| self.error(&what))
    }

    #[cold]
    fn error(&self, what: &str) -> SnapshotError {
        self.source.error(what)
    }
}

/// Values by number, four bytes each: in a large file, most are entries that are never recalled.
#[derive(Default)]
struct Memo {
    slots: Vec<u32>,
    /// The number of memo entries in use.
    used: u32,
    /// Values that do not fit a slot: numbers, which no known writer stores in the memo. Their indices count from 1, since a slot
    /// of 0 is empty.
    odd: Vec<Value>,
}

impl Memo {
    const KIND_SHIFT: u32 = 30;

    #[inline]
    fn recall(&self, number: u32) -> Option<Value> {
        let slot = *self.slots.get(number as usize)?;
        let index = slot & ((1 << Self::KIND_SHIFT) - 1);
        match slot >> Self::KIND_SHIFT {
            1 => Some(Value::Text(index)),
            2 => Some(Value::Object(index)),
            3 => Some(Value::Frame(index)),
            _ => self.odd.get((index as usize).checked_sub(1)?).copied(),
        }
    }

    fn remember(&mut self, number: u32, value: Value) {
        let (kind, index) = match value {
            Value::Text(text) => (1, text),
            Value::Object(object) => (2, object),
            Value::Frame(frame) => (3, frame),
            other => {
                self.odd.push(other);
                (0, self.odd.len() as u32)
            }
        };
        let number = number as usize;
        if self.slots.len() <= number {
            self.slots.resize(number + 1, 0);
        }
        let slot = kind << Self::KIND_SHIFT | index;
        self.used += u32::from(std::mem::replace(&mut self.slots[number], slot) == 0);
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.slots[..]) + size_of_val(&self.odd[..])
    }
}

/// Returns a little-endian number in two's complement.
fn long(bytes: &[u8]) -> Value {
    let Some(&last) = bytes.last() else { return Value::Int(0) };
    let filler = if last >= 0x80 { 0xff } else { 0 };
    let mut wide = [filler; 8];
    let kept = bytes.len().min(8);
    wide[..kept].copy_from_slice(&bytes[..kept]);
    let value = i64::from_le_bytes(wide);
    let fits = bytes[kept..].iter().all(|&byte| byte == filler) && (value < 0) == (filler != 0);
    // An address in the upper half is one byte longer; only its bits matter.
    let unsigned = bytes.len() == 9 && last == 0;
    if fits || unsigned { Value::Int(value) } else { Value::Opaque }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(builder: &Builder, value: Value) -> String {
        match value {
            Value::Text(text) => format!("{:?}", builder.recording.texts[text as usize]),
            Value::Object(_) => {
                let list = |items: &mut dyn Iterator<Item = Value>| {
                    items.map(|item| show(builder, item)).collect::<Vec<_>>().join(" ")
                };
                match (builder.items(value), builder.pairs(value)) {
                    (Some(items), _) => format!("[{}]", list(&mut items.iter().copied())),
                    (_, Some(pairs)) => {
                        format!("{{{}}}", list(&mut pairs.iter().flat_map(|&(key, value)| [key, value])))
                    }
                    _ => "record".into(),
                }
            }
            Value::None => "None".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}"),
            Value::Frame(_) => "record".into(),
            Value::Opaque => "?".into(),
        }
    }

    fn read(bytes: &[u8]) -> String {
        let mut builder = Builder::new();
        match run(&mut Source::new(bytes), &mut builder) {
            Ok(root) => show(&builder, root),
            Err(error) => error.to_string(),
        }
    }

    /// The bytes that Python's `pickle.dumps` writes for one value, with protocols 2 and 4.
    #[test]
    fn every_protocol_is_understood() {
        let protocol_2 = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01\x8a\x05\x00\xa2\x2f\x4d\xffG?\xe0\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03\x88NX\x03\x00\x00\x00x\nyq\x04\x87q\x05u.";
        let protocol_4 = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01\x8a\x05\x00\xa2\x2f\x4d\xffG?\xe0\x00\x00\x00\x00\x00\x00e\x8c\x01b\x94\x88N\x8c\x03x\ny\x94\x87\x94u.";
        for bytes in [&protocol_2[..], protocol_4] {
            assert_eq!(read(bytes), r#"{"a" [1 -3000000000 0.5] "b" [true None "x\ny"]}"#);
        }
    }

    #[test]
    fn remembered_values_are_the_same_value() {
        // The first list is made to contain itself and dropped; the second is appended to through both of its names.
        assert_eq!(read(b"]\x94(h\x00K\x01e0]\x94K\x02ah\x01K\x03a\x86."), "[[2 3] [2 3]]");
    }

    #[test]
    fn what_is_broken_is_said_with_its_place() {
        for (bytes, what) in [
            (&b""[..], "offset 0: the file ends"),
            (b"\x80\x06.", "offset 0: protocol 6"),
            (b"\x80\x01.", "protocol 1 is not read"),
            (b"\x80\x04cos\nsystem\n.", "offset 2: instruction 0x63 is not one that plain data"),
            (b"\x80\x04N\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "offset 3: the file ends"),
            (b"h\x05.", "nothing was remembered as 5"),
            (b"Nr\xff\xff\xff\xff.", "offset 1: remembers as 4294967295, after 6 bytes"),
            (b"N(e.", "not a list"),
            (b"}(Nu.", "key without a value"),
            (b"e.", "there is none"),
            (b"NN(\x87.", "more values than there are"),
            (b"}(\x8c\x08filename\x8c\x01aus.", "takes more values"),
        ] {
            assert!(read(bytes).contains(what), "{} lacks {what}", read(bytes));
        }
    }

    #[test]
    fn what_was_taken_apart_is_not_changed() {
        let frame = b"}\x94(\x8c\x08filename\x8c\x01au";
        assert_eq!(read(&[&frame[..], b"."].concat()), "record");
        let whole =
            b"(\x8c\x08filenameq\x01\x8c\x04lineq\x02\x8c\x04nameq\x031}(h\x01h\x01h\x02K\x01h\x03h\x01u";
        assert_eq!(read(&[&whole[..], b"."].concat()), "record");
        for frame in [&frame[..], whole] {
            let changed = read(&[frame, b"\x8c\x04nameNs."].concat());
            assert!(changed.contains("dictionary that was complete"), "{changed}");
        }
    }

    /// A list of frames whose texts were written before, each in one of the forms of the protocols. A reader that returns one
    /// byte at a time never has a complete frame in its buffer.
    #[test]
    fn frames_that_are_read_whole_are_those_that_are_read_in_parts() {
        struct Drops<'b>(&'b [u8]);
        impl Read for Drops<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(&mut into[..1])
            }
        }
        let texts = b"\x80\x04(\x8c\x08filenameq\x00\x8c\x04lineq\x01\x8c\x04nameq\x02\x8c\x01aq\x031";
        let plain: &[u8] = b"}\x94(h\x00h\x03h\x01K\x07h\x02h\x03u";
        let other: &[u8] = b"}q\x20(h\x00h\x03h\x01M\x00\x01h\x02j\x03\x00\x00\x00u";
        let same: &[u8] = b"}(h\x02h\x03h\x01J\x07\x00\x00\x00h\x00h\x03u";
        let negative: &[u8] = b"}r\x21\x00\x00\x00(h\x00h\x03h\x01J\xff\xff\xff\xffh\x02h\x03u";
        let nameless: &[u8] = b"}(h\x00h\x03h\x01K\x07u";
        let twice: &[u8] = b"}(h\x00h\x03h\x01K\x08h\x01K\x07u";
        let recalls: &[u8] = b"h\x20h\x21";
        let file =
            [texts, &b"]("[..], plain, other, same, negative, nameless, twice, recalls, b"e."].concat();

        let run = |reader: &mut dyn Read| {
            let mut builder = Builder::new();
            let root = run(&mut Source::new(reader), &mut builder).expect("it is right");
            let items = builder.items(root).expect("a list").to_vec();
            let frames: Vec<u32> =
                items.into_iter().map(|item| builder.frame_of(item).expect("a frame")).collect();
            let reported =
                (0..builder.recording.frames.len()).map(|frame| builder.recording.frames.get(frame as u32));
            (frames, reported.collect::<Vec<_>>(), builder.objects())
        };
        let (frames, reported, objects) = run(&mut &file[..]);
        assert_eq!(frames, [0, 1, 0, 2, 3, 3, 1, 2]);
        assert_eq!(reported.iter().map(|(_, line)| *line).collect::<Vec<_>>(), [7, 256, 0, 7]);
        let (in_parts, same_told, more_objects) = run(&mut Drops(&file));
        assert_eq!((in_parts, same_told), (frames, reported));
        assert_eq!(
            (objects, more_objects),
            (3, 7),
            "a frame that is read whole has no object: the list, and the last two"
        );
    }

    #[test]
    fn numbers_beyond_64_bits_are_opaque() {
        assert_eq!(read(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff."), "-1");
        assert_eq!(read(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01."), "?");
        assert_eq!(read(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00."), i64::MAX.to_string());
        assert_eq!(read(b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."), i64::MIN.to_string());
    }

    #[test]
    fn a_small_file_that_stands_for_much_is_refused() {
        // Every pair of bytes pushes a list of 16 bytes and a mark on the stack.
        let bytes = b"(".iter().copied().chain(std::iter::repeat_n(b']', 20 << 20)).collect::<Vec<_>>();
        assert!(read(&bytes).contains("more than in any real snapshot"), "{}", read(&bytes));
    }
}
