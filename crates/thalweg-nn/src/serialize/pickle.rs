//! Python's pickle, as far as PyTorch's files of weights need it. Nothing is imported or called: names are only recorded, and
//! only those that rebuild tensors and dictionaries are accepted.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, refuse_if};

/// A value by its place in [`Values`].
pub(super) type ValueIndex = usize;

/// A value of a pickle.
#[derive(Clone, Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<ValueIndex>),
    Tuple(Vec<ValueIndex>),
    Dict(Vec<(ValueIndex, ValueIndex)>),
    /// A name in Python, `module name`.
    Global(String),
    /// The result of calling a name with arguments.
    Called(ValueIndex, ValueIndex),
    /// A value outside the pickle, with an id.
    Persistent(ValueIndex),
}

/// The values of a pickle. They refer to each other by index, so that no nesting is too deep for the stack.
#[derive(Debug, Default)]
pub(super) struct Values(Vec<Node>);

impl Values {
    pub(super) fn at(&self, place: ValueIndex) -> &Node {
        &self.0[place]
    }

    fn add(&mut self, node: Node) -> ValueIndex {
        self.0.push(node);
        self.0.len() - 1
    }
}

/// The machine that runs the program of a pickle.
struct Machine<'a> {
    bytes: &'a [u8],
    next: usize,
    values: Values,
    stack: Vec<ValueIndex>,
    marks: Vec<usize>,
    memo: std::collections::HashMap<u32, ValueIndex>,
}

/// Runs a pickle of protocol 2 to 5, and returns its values and the index of the root.
pub(super) fn run(bytes: &[u8]) -> Result<(Values, ValueIndex)> {
    let values = Values::default();
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Default::default());
    let mut machine = Machine { bytes, next: 0, values, stack, marks, memo };
    loop {
        if let Some(root) = machine.step()? {
            return Ok((machine.values, root));
        }
    }
}

impl Machine<'_> {
    fn error(&self, what: &str) -> Error {
        invalid!("the pickle is broken at byte {}: {what}", self.next)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.next.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.error("it ends too early"))?;
        let taken = &self.bytes[self.next..end];
        self.next = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("so many were taken"))
    }

    /// Reads a length that is encoded in this many bytes.
    fn length(&mut self, bytes: usize) -> Result<usize> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| self.error("a length is too large"))
    }

    fn text(&mut self, bytes: usize) -> Result<String> {
        let count = self.length(bytes)?;
        let text = self.take(count)?.to_vec();
        String::from_utf8(text).map_err(|_| self.error("a string is not UTF-8"))
    }

    /// Reads the rest of a line.
    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.next..];
        let count =
            rest.iter().position(|&byte| byte == b'\n').ok_or_else(|| self.error("a line has no end"))?;
        let text = String::from_utf8_lossy(&rest[..count]).into_owned();
        self.next += count + 1;
        Ok(text)
    }

    fn push(&mut self, node: Node) {
        let place = self.values.add(node);
        self.stack.push(place);
    }

    fn pop(&mut self) -> Result<ValueIndex> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => Ok(self.stack.pop().expect("it is not empty")),
            false => Err(self.error("the stack is empty")),
        }
    }

    fn top(&self) -> Result<ValueIndex> {
        self.stack.last().copied().ok_or_else(|| self.error("the stack is empty"))
    }

    fn above_mark(&mut self) -> Result<Vec<ValueIndex>> {
        let mark = self.marks.pop().ok_or_else(|| self.error("there is no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    /// Adds pairs to the dictionary at the top.
    fn set(&mut self, items: &[ValueIndex]) -> Result<()> {
        let target = self.top()?;
        if !items.len().is_multiple_of(2) {
            return Err(self.error("a key has no value"));
        }
        let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        match &mut self.values.0[target] {
            Node::Dict(list) => list.extend(pairs),
            _ => return Err(self.error("pairs are added to what is not a dictionary")),
        }
        Ok(())
    }

    fn append(&mut self, items: &[ValueIndex]) -> Result<()> {
        let target = self.top()?;
        match &mut self.values.0[target] {
            Node::List(list) => list.extend(items),
            _ => return Err(self.error("items are appended to what is not a list")),
        }
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    fn remember(&mut self, number: u32) -> Result<()> {
        let place = self.top()?;
        self.memo.insert(number, place);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<()> {
        let place =
            *self.memo.get(&number).ok_or_else(|| self.error("a value is recalled that was not kept"))?;
        self.stack.push(place);
        Ok(())
    }

    /// Runs one instruction, and returns the root value after the last.
    fn step(&mut self) -> Result<Option<ValueIndex>> {
        let [code] = self.array()?;
        match code {
            0x80 => drop(self.array::<1>()?),
            0x95 => drop(self.array::<8>()?),
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Node::None),
            0x88 | 0x89 => self.push(Node::Bool(code == 0x88)),
            b'K' => {
                let [byte] = self.array()?;
                self.push(Node::Int(byte.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Node::Int(number.into()));
            }
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Node::Int(number.into()));
            }
            0x8a => {
                let count = self.length(1)?;
                let number = self.long(count)?;
                self.push(Node::Int(number));
            }
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Node::Float(number));
            }
            b'X' | 0x8c | 0x8d => {
                let text = self.text(if code == b'X' {
                    4
                } else if code == 0x8c {
                    1
                } else {
                    8
                })?;
                self.push(Node::Str(text));
            }
            b'q' => {
                let [number] = self.array()?;
                self.remember(number.into())?;
            }
            b'r' => {
                let number = u32::from_le_bytes(self.array()?);
                self.remember(number)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?,
            b'h' => {
                let [number] = self.array()?;
                self.recall(number.into())?;
            }
            b'j' => {
                let number = u32::from_le_bytes(self.array()?);
                self.recall(number)?;
            }
            _ => self.container(code)?,
        }
        Ok(None)
    }

    /// Reads a number of this many bytes in two's complement.
    fn long(&mut self, count: usize) -> Result<i64> {
        if count > 8 {
            return Err(self.error("an integer has more than 64 bits"));
        }
        let bytes = self.take(count)?;
        let fill = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        wide[..count].copy_from_slice(bytes);
        Ok(i64::from_le_bytes(wide))
    }

    fn container(&mut self, code: u8) -> Result<()> {
        match code {
            b']' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b')' => self.push(Node::Tuple(Vec::new())),
            b't' => {
                let items = self.above_mark()?;
                self.push(Node::Tuple(items));
            }
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.above_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.above_mark()?;
                self.set(&items)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.values.at(module).clone(), self.values.at(name).clone()) {
                    (Node::Str(module), Node::Str(name)) => self.global(&module, &name)?,
                    _ => return Err(self.error("a name is not a string")),
                }
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let is_dict = matches!(self.values.at(function), Node::Global(name) if name == DICTIONARY);
                let is_empty = matches!(self.values.at(arguments), Node::Tuple(list) if list.is_empty());
                self.push(if is_dict && is_empty {
                    Node::Dict(Vec::new())
                } else {
                    Node::Called(function, arguments)
                });
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id));
            }
            // The attributes of an object: `_metadata` of a state dictionary, which has no information about the tensors.
            b'b' => drop(self.pop()?),
            other => return Err(self.error(&format!("the instruction {other:#04x} is not read"))),
        }
        Ok(())
    }

    /// Pushes a global name if it is one of those that only rebuild tensors and dictionaries; refuses any other.
    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let name = format!("{module} {name}");
        let is_storage =
            (module == "torch" && name.ends_with("Storage")) || name == "torch.storage UntypedStorage";
        let is_dtype = name.strip_prefix("torch ").is_some_and(|name| name.parse::<DType>().is_ok());
        refuse_if!(
            !is_storage && !is_dtype && !KNOWN.contains(&name.as_str()),
            "Weights only load failed. Unsupported global: GLOBAL {} was not an allowed global: the file is not one of plain \
             weights; save a state_dict instead",
            name.replace(' ', ".")
        );
        self.push(Node::Global(name));
        Ok(())
    }
}

pub(super) const DICTIONARY: &str = "collections OrderedDict";

const KNOWN: [&str; 5] = [
    DICTIONARY,
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch Size",
];

/// A pickle of protocol 2 that is being written.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        Self(vec![0x80, 2])
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.push(b'.');
        self.0
    }

    /// Writes an instruction without operands.
    pub(super) fn code(&mut self, code: u8) {
        self.0.push(code);
    }

    pub(super) fn global(&mut self, name: &str) {
        self.0.extend(format!("c{}\n", name.replacen(' ', "\n", 1)).as_bytes());
    }

    pub(super) fn int(&mut self, number: i64) {
        match i32::try_from(number) {
            Ok(number) => {
                self.0.push(b'J');
                self.0.extend(number.to_le_bytes());
            }
            Err(_) => {
                self.0.extend([0x8a, 8]);
                self.0.extend(number.to_le_bytes());
            }
        }
    }

    pub(super) fn float(&mut self, number: f64) {
        self.0.push(b'G');
        self.0.extend(number.to_be_bytes());
    }

    pub(super) fn bool(&mut self, truth: bool) {
        self.0.push(if truth { 0x88 } else { 0x89 });
    }

    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        let count = u32::try_from(text.len()).map_err(|_| invalid!("a string is longer than 4 GiB"))?;
        self.0.push(b'X');
        self.0.extend(count.to_le_bytes());
        self.0.extend(text.as_bytes());
        Ok(())
    }
}
