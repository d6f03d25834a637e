//! Running a pickle.

use std::sync::Arc;

use super::opcode;
use crate::snapshot::SnapshotError;

/// Names a value of a [`Pickle`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeId(u32);

/// A value. Lists may contain themselves: whoever walks them must not rely on an end.
#[derive(Debug)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    List(Vec<NodeId>),
    Tuple(Vec<NodeId>),
    Dict(Vec<(NodeId, NodeId)>),
    /// A value that no snapshot has a use for: bytes, a number of more than 64 bits.
    Opaque,
}

/// All values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    nodes: Vec<Node>,
    root: NodeId,
}

impl Pickle {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The value that the whole pickle stands for.
    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    /// How many values there are; their ids count from 0.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Runs the pickle in `bytes`. What follows its end is ignored, as Python does.
///
/// # Errors
/// If it is broken, or does something that plain data does not need.
pub(crate) fn parse(bytes: &[u8]) -> Result<Pickle, SnapshotError> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(SnapshotError::new("the pickle has more than 4 GiB, which is more than is read"));
    }
    let mut machine = Machine::new(bytes);
    loop {
        machine.start = machine.at;
        if let Some(root) = machine.step()? {
            return Ok(Pickle { nodes: machine.nodes, root });
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the instruction that runs begins, for messages.
    start: usize,
    nodes: Vec<Node>,
    stack: Vec<NodeId>,
    /// The heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: Vec<Option<NodeId>>,
    memoised: usize,
}

type Step<T> = Result<T, SnapshotError>;

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            start: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            memoised: 0,
        }
    }

    /// One instruction; the root after the last.
    fn step(&mut self) -> Step<Option<NodeId>> {
        let code = self.byte()?;
        match code {
            opcode::PROTO => self.protocol()?,
            // Frames say how much to read ahead. All is here already.
            opcode::FRAME => drop(self.take(8)?),
            opcode::STOP => return self.pop().map(Some),
            opcode::MARK => self.marks.push(self.stack.len()),
            opcode::POP => self.pop_any()?,
            opcode::POP_MARK => drop(self.above_mark()?),
            opcode::DUP => {
                let top = self.top()?;
                self.stack.push(top);
            }
            opcode::NONE => self.push(Node::None),
            opcode::NEWTRUE => self.push(Node::Bool(true)),
            opcode::NEWFALSE => self.push(Node::Bool(false)),
            opcode::INT
            | opcode::LONG
            | opcode::BININT
            | opcode::BININT1
            | opcode::BININT2
            | opcode::LONG1
            | opcode::LONG4 => self.int(code)?,
            opcode::FLOAT | opcode::BINFLOAT => self.float(code)?,
            opcode::STRING
            | opcode::BINSTRING
            | opcode::SHORT_BINSTRING
            | opcode::UNICODE
            | opcode::BINUNICODE
            | opcode::SHORT_BINUNICODE
            | opcode::BINUNICODE8 => self.text(code)?,
            opcode::BINBYTES | opcode::SHORT_BINBYTES | opcode::BINBYTES8 => self.opaque_bytes(code)?,
            opcode::GET
            | opcode::BINGET
            | opcode::LONG_BINGET
            | opcode::PUT
            | opcode::BINPUT
            | opcode::LONG_BINPUT
            | opcode::MEMOIZE => self.memo(code)?,
            _ => self.container(code)?,
        }
        Ok(None)
    }

    fn protocol(&mut self) -> Step<()> {
        let protocol = self.byte()?;
        if protocol > 5 {
            return Err(self.error(&format!("protocol {protocol} is not known; the last that is read is 5")));
        }
        Ok(())
    }

    fn container(&mut self, code: u8) -> Step<()> {
        match code {
            opcode::EMPTY_LIST => self.push(Node::List(Vec::new())),
            opcode::EMPTY_TUPLE => self.push(Node::Tuple(Vec::new())),
            opcode::EMPTY_DICT => self.push(Node::Dict(Vec::new())),
            opcode::LIST => {
                let items = self.above_mark()?;
                self.push(Node::List(items));
            }
            opcode::TUPLE => {
                let items = self.above_mark()?;
                self.push(Node::Tuple(items));
            }
            opcode::DICT => {
                let items = self.above_mark()?;
                let pairs = self.pairs(&items)?;
                self.push(Node::Dict(pairs));
            }
            opcode::TUPLE1..=opcode::TUPLE3 => {
                let count = usize::from(code - opcode::TUPLE1) + 1;
                let floor = self.floor();
                if self.stack.len() < floor + count {
                    return Err(self.error("takes more values than there are"));
                }
                let items = self.stack.split_off(self.stack.len() - count);
                self.push(Node::Tuple(items));
            }
            opcode::APPEND => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            opcode::APPENDS => {
                let items = self.above_mark()?;
                self.append(items)?;
            }
            opcode::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![(key, value)])?;
            }
            opcode::SETITEMS => {
                let items = self.above_mark()?;
                let pairs = self.pairs(&items)?;
                self.set(pairs)?;
            }
            _ => {
                return Err(self.error(
                    "is not an instruction that plain data needs; only dictionaries, lists, tuples, numbers and texts \
                     are read",
                ));
            }
        }
        Ok(())
    }

    fn append(&mut self, items: Vec<NodeId>) -> Step<()> {
        let top = self.top()?;
        match &mut self.nodes[top.index()] {
            Node::List(list) if list.is_empty() => *list = items,
            Node::List(list) => list.extend(items),
            _ => return Err(self.error("appends to what is no list")),
        }
        Ok(())
    }

    fn set(&mut self, pairs: Vec<(NodeId, NodeId)>) -> Step<()> {
        let top = self.top()?;
        match &mut self.nodes[top.index()] {
            Node::Dict(dict) if dict.is_empty() => *dict = pairs,
            Node::Dict(dict) => dict.extend(pairs),
            _ => return Err(self.error("sets a key of what is no dictionary")),
        }
        Ok(())
    }

    fn pairs(&self, items: &[NodeId]) -> Step<Vec<(NodeId, NodeId)>> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.error("has a key without a value"));
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn int(&mut self, code: u8) -> Step<()> {
        let node = match code {
            opcode::BININT => Node::Int(i32::from_le_bytes(self.array()?).into()),
            opcode::BININT1 => Node::Int(self.byte()?.into()),
            opcode::BININT2 => Node::Int(u16::from_le_bytes(self.array()?).into()),
            opcode::LONG1 | opcode::LONG4 => {
                let length = self.length(if code == opcode::LONG1 { 1 } else { 4 })?;
                long(self.take(length)?)
            }
            _ => match self.line()? {
                "00" => Node::Bool(false),
                "01" => Node::Bool(true),
                digits => {
                    let digits = digits.strip_suffix('L').unwrap_or(digits);
                    let all_digits = digits.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
                    match digits.parse() {
                        Ok(value) => Node::Int(value),
                        Err(_) if all_digits => Node::Opaque,
                        Err(_) => return Err(self.error(&format!("{digits:?} is no whole number"))),
                    }
                }
            },
        };
        self.push(node);
        Ok(())
    }

    fn float(&mut self, code: u8) -> Step<()> {
        let value = if code == opcode::BINFLOAT {
            f64::from_be_bytes(self.array()?)
        } else {
            let line = self.line()?;
            line.parse().map_err(|_| self.error(&format!("{line:?} is no number")))?
        };
        self.push(Node::Float(value));
        Ok(())
    }

    fn text(&mut self, code: u8) -> Step<()> {
        let text = match code {
            opcode::STRING => {
                let line = self.line()?;
                let inside =
                    ['\'', '"'].iter().find_map(|&quote| line.strip_prefix(quote)?.strip_suffix(quote));
                unescape(inside.ok_or_else(|| self.error("is a text without quotes"))?)
            }
            opcode::UNICODE => unescape(self.line()?),
            _ => {
                let length_bytes = match code {
                    opcode::SHORT_BINSTRING | opcode::SHORT_BINUNICODE => 1,
                    opcode::BINSTRING | opcode::BINUNICODE => 4,
                    _ => 8,
                };
                let length = self.length(length_bytes)?;
                // Python lets single surrogates through, which are no valid UTF-8: they are shown as replaced.
                String::from_utf8_lossy(self.take(length)?).into_owned()
            }
        };
        self.push(Node::Text(text.into()));
        Ok(())
    }

    fn opaque_bytes(&mut self, code: u8) -> Step<()> {
        let length_bytes = match code {
            opcode::SHORT_BINBYTES => 1,
            opcode::BINBYTES => 4,
            _ => 8,
        };
        let length = self.length(length_bytes)?;
        self.take(length)?;
        self.push(Node::Opaque);
        Ok(())
    }

    fn memo(&mut self, code: u8) -> Step<()> {
        let number = match code {
            opcode::MEMOIZE => self.memoised,
            opcode::BINGET | opcode::BINPUT => self.length(1)?,
            opcode::LONG_BINGET | opcode::LONG_BINPUT => self.length(4)?,
            _ => {
                let line = self.line()?;
                line.parse().map_err(|_| self.error(&format!("{line:?} is no number in the memo")))?
            }
        };
        if matches!(code, opcode::GET | opcode::BINGET | opcode::LONG_BINGET) {
            let node = self.memo.get(number).copied().flatten();
            let node = node.ok_or_else(|| self.error(&format!("nothing was remembered as {number}")))?;
            self.stack.push(node);
            return Ok(());
        }
        // A writer counts up. Numbers may be skipped, but no more of them than a file of this size could use.
        if number >= self.bytes.len() {
            return Err(
                self.error(&format!("remembers as {number}, in a file of {} bytes", self.bytes.len()))
            );
        }
        if self.memo.len() <= number {
            self.memo.resize(number + 1, None);
        }
        let top = self.top()?;
        if self.memo[number].replace(top).is_none() {
            self.memoised += 1;
        }
        Ok(())
    }

    fn push(&mut self, node: Node) {
        let id =
            NodeId(u32::try_from(self.nodes.len()).expect("an instruction has a byte and makes one value"));
        self.nodes.push(node);
        self.stack.push(id);
    }

    /// The height that nothing is popped below.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Step<NodeId> {
        let value = if self.stack.len() > self.floor() { self.stack.last() } else { None };
        value.copied().ok_or_else(|| self.error("takes a value where there is none"))
    }

    fn pop(&mut self) -> Step<NodeId> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Pops a value, or a mark if that is on top.
    fn pop_any(&mut self) -> Step<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    fn above_mark(&mut self) -> Step<Vec<NodeId>> {
        let mark =
            self.marks.pop().ok_or_else(|| self.error("takes the values above a mark, and there is none"))?;
        Ok(self.stack.split_off(mark))
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("that many were taken"))
    }

    fn take(&mut self, count: usize) -> Step<&'a [u8]> {
        let left = &self.bytes[self.at..];
        let Some(taken) = left.get(..count) else {
            let left = left.len();
            let what =
                format!("the file ends: {count} bytes are needed at offset {}, {left} are left", self.at);
            return Err(self.error(&what));
        };
        self.at += count;
        Ok(taken)
    }

    /// A length or a number of `bytes` bytes.
    fn length(&mut self, bytes: usize) -> Step<usize> {
        let taken = self.take(bytes)?;
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(taken);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| self.error("has a length beyond all files"))
    }

    /// The rest of the line, as ASCII text.
    fn line(&mut self) -> Step<&'a str> {
        let left = &self.bytes[self.at..];
        let length = left.iter().position(|&byte| byte == b'\n');
        let length = length.ok_or_else(|| self.error("the file ends in the middle of a line"))?;
        self.at += length + 1;
        let line = left[..length].strip_suffix(b"\r").unwrap_or(&left[..length]);
        std::str::from_utf8(line).map_err(|_| self.error("is followed by a line that is no text"))
    }

    fn error(&self, what: &str) -> SnapshotError {
        let Self { start, bytes, .. } = self;
        let code = bytes.get(*start).map_or_else(String::new, |code| format!(", instruction {code:#04x}"));
        SnapshotError::new(format!("the pickle is not read at offset {start}{code}: {what}"))
    }
}

/// A little-endian number in two's complement.
fn long(bytes: &[u8]) -> Node {
    if bytes.is_empty() {
        return Node::Int(0);
    }
    let negative = bytes[bytes.len() - 1] >= 0x80;
    let filler = if negative { 0xff } else { 0 };
    let mut wide = [filler; 8];
    let kept = bytes.len().min(8);
    wide[..kept].copy_from_slice(&bytes[..kept]);
    let value = i64::from_le_bytes(wide);
    let fits = bytes[kept..].iter().all(|&byte| byte == filler) && (value < 0) == negative;
    if fits { Node::Int(value) } else { Node::Opaque }
}

/// Undoes the escapes of protocol 0: `\n`, `\x41`, `\u0041`, `\U00000041`, `\\`. Others stay as they are.
fn unescape(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else {
            out.push('\\');
            break;
        };
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let code = rest.get(1..=digits).filter(|_| digits > 0);
        let code = code.and_then(|digits| char::from_u32(u32::from_str_radix(digits, 16).ok()?));
        let (character, length) = match (kind, code) {
            (_, Some(character)) => (character, 1 + digits),
            ('n', _) => ('\n', 1),
            ('r', _) => ('\r', 1),
            ('t', _) => ('\t', 1),
            ('\\' | '\'' | '"', _) => (kind, 1),
            _ => ('\\', 0),
        };
        out.push(character);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(pickle: &Pickle, id: NodeId) -> String {
        let list =
            |items: &[NodeId]| items.iter().map(|&item| show(pickle, item)).collect::<Vec<_>>().join(" ");
        match pickle.node(id) {
            Node::None => "None".into(),
            Node::Bool(value) => value.to_string(),
            Node::Int(value) => value.to_string(),
            Node::Float(value) => format!("{value:?}"),
            Node::Text(text) => format!("{text:?}"),
            Node::List(items) => format!("[{}]", list(items)),
            Node::Tuple(items) => format!("({})", list(items)),
            Node::Dict(pairs) => {
                let items: Vec<_> = pairs.iter().flat_map(|&(key, value)| [key, value]).collect();
                format!("{{{}}}", list(&items))
            }
            Node::Opaque => "?".into(),
        }
    }

    fn run(bytes: &[u8]) -> String {
        match parse(bytes) {
            Ok(pickle) => show(&pickle, pickle.root()),
            Err(error) => error.to_string(),
        }
    }

    /// What Python's `pickle.dumps` writes of one value, under each protocol.
    #[test]
    fn every_protocol_is_understood() {
        let protocol_0 =
            b"(dp0\nVa\np1\n(lp2\nI1\naL-3000000000L\naF0.5\nasVb\np3\n(I01\nNVx\\u000ay\np4\ntp5\ns.";
        let protocol_2 = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01\x8a\x05\x00\xa2\x2f\x4d\xffG?\xe0\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03\x88NX\x03\x00\x00\x00x\nyq\x04\x87q\x05u.";
        let protocol_4 = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01\x8a\x05\x00\xa2\x2f\x4d\xffG?\xe0\x00\x00\x00\x00\x00\x00e\x8c\x01b\x94\x88N\x8c\x03x\ny\x94\x87\x94u.";
        for bytes in [&protocol_0[..], protocol_2, protocol_4] {
            assert_eq!(run(bytes), r#"{"a" [1 -3000000000 0.5] "b" (true None "x\ny")}"#);
        }
    }

    #[test]
    fn remembered_values_are_the_same_value() {
        // The first list is made to hold itself and dropped; the second is appended to through both of its names.
        assert_eq!(run(b"]\x94(h\x00K\x01e0]\x94K\x02ah\x01K\x03a\x86."), "([2 3] [2 3])");
        assert_eq!(run(b"(]q\x00K\x07ah\x00l."), "[[7] [7]]");
    }

    #[test]
    fn what_is_broken_is_said_with_its_place() {
        for (bytes, what) in [
            (&b""[..], "offset 0: the file ends"),
            (b"\x80\x06.", "protocol 6"),
            (b"\x80\x04cos\nsystem\n.", "offset 2, instruction 0x63: is not an instruction"),
            (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "the file ends"),
            (b"h\x05.", "nothing was remembered as 5"),
            (b"Nr\xff\xff\xff\xff.", "remembers as 4294967295, in a file of 7 bytes"),
            (b"N(e.", "no list"),
            (b"}(Nu.", "key without a value"),
            (b"e.", "there is none"),
            (b"I12", "middle of a line"),
            (b"Ix1\n.", "is no whole number"),
        ] {
            assert!(run(bytes).contains(what), "{} lacks {what}", run(bytes));
        }
    }

    #[test]
    fn numbers_beyond_64_bits_are_opaque() {
        assert_eq!(run(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), "?");
        assert_eq!(run(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00."), i64::MAX.to_string());
        assert_eq!(run(b"L99999999999999999999L\n."), "?");
    }
}
