//! The values of a file on their way to a [`Recording`].
//!
//! Both forms of a file, pickle and JSON, consist of the same operations: begin a dictionary, set these keys, append it to that
//! list. The builder converts a dictionary *as soon as its keys are set* to a record of a few dozen bytes; stacks are stored once
//! each. So a file of any size is read in less memory than its own size, and a list that occurs many times costs nothing: values
//! refer to each other by number, nothing is copied and nothing recurses.
//!
//! # Guarantees
//! - A converted dictionary is complete: changing it afterwards is an error. No writer of plain data does that.
//! - Memory is bounded by a multiple of the bytes read so far ([`check_size`](Builder::check_size)), whatever their content.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::frames::{FrameIds, Function};
use super::records::{Context, Entry, RecordedBlock, RecordedSegment, Recording, Trace};
use super::stacks::StackIds;
use super::{Action, BlockState};
use crate::SizeClass;

/// The memory that any file may use; the limit is this plus a multiple of the file's bytes. Real files need less memory than
/// their own size.
const FREE_BYTES: u64 = 64 << 20;
const BYTES_PER_BYTE: u64 = 8;

/// The maximum number of keys of a dictionary other than the settings. No version writes nearly as many.
const MOST_KEYS: usize = 256;

/// The number of kinds of skipped values that are distinguished.
const MOST_REMARKS: usize = 16;

pub(super) type BuildResult<T> = Result<T, String>;

/// A value. Texts and objects are in the [`Builder`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(u32),
    Object(u32),
    /// A frame that was read in one step, without an object for its dictionary.
    Frame(u32),
    /// A value that no snapshot uses: bytes, or a number of more than 64 bits.
    Opaque,
}

/// The kind of an object; its index refers to the table of that kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// A list of anything, or a tuple: an index into `lists`.
    List,
    Tuple,
    /// A list of only entries, or of only blocks: an index into `runs`.
    Entries,
    Blocks,
    Dict,
    Entry,
    Block,
    Segment,
    Frame,
    Stack,
    /// An entry that contains nothing known.
    LeftOut,
}

impl Kind {
    /// All kinds, in the order of their declaration.
    const ALL: [Self; 11] = [
        Self::List,
        Self::Tuple,
        Self::Entries,
        Self::Blocks,
        Self::Dict,
        Self::Entry,
        Self::Block,
        Self::Segment,
        Self::Frame,
        Self::Stack,
        Self::LeftOut,
    ];
}

#[derive(Clone, Copy)]
struct Object {
    kind: Kind,
    index: u32,
}

/// An [`Object`] in four bytes. The size matters because a file in which frames are not shared has one object for each frame of
/// each stack.
#[derive(Clone, Copy)]
struct Packed(u32);

impl Packed {
    const KIND_BITS: u32 = 4;

    #[inline]
    fn object(self) -> Object {
        let kind = Kind::ALL[(self.0 & ((1 << Self::KIND_BITS) - 1)) as usize];
        Object { kind, index: self.0 >> Self::KIND_BITS }
    }
}

impl Object {
    fn pack(self) -> BuildResult<Packed> {
        if self.index >= 1 << (32 - Packed::KIND_BITS) {
            return Err("the file has more than 268 million things of one kind, which is not read".into());
        }
        Ok(Packed(self.index << Packed::KIND_BITS | self.kind as u32))
    }
}

/// The state of reading a file. See the [module's essay](self).
pub(super) struct Builder {
    pub(super) recording: Recording,
    text_ids: FxHashMap<Arc<str>, u32>,
    frame_ids: FrameIds,
    stack_ids: StackIds,
    /// The frames of the stack that is being read.
    stack: Vec<u32>,
    context_ids: FxHashMap<Context, u32>,
    last_context: u32,
    objects: Vec<Packed>,
    lists: Vec<Vec<Value>>,
    /// Lists that were converted to something smaller; their slots are reused.
    spare_lists: Vec<u32>,
    runs: Vec<Vec<Range<u32>>>,
    dicts: Vec<Vec<(Value, Value)>>,
    spare_dicts: Vec<u32>,
    segments: Vec<RecordedSegment>,
    blocks_without_address: bool,
    /// The bytes that texts, lists and dictionaries take in addition to their tables.
    loose_bytes: usize,
}

/// The keys that have a meaning, in the order of the numbers of their texts.
macro_rules! keys {
    ($($name:ident = $text:literal),* $(,)?) => {
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum Key { $($name),* }
        const KEYS: &[&str] = &[$($text),*];
        impl Key {
            const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

keys! {
    Action = "action", Addr = "addr", DeviceFree = "device_free", Size = "size", Stream = "stream", TimeUs = "time_us",
    CompileContext = "compile_context", UserMetadata = "user_metadata", PoolId = "pool_id",
    InternalMetadata = "internal_metadata", Frames = "frames", ForwardFrames = "forward_frames",
    Filename = "filename", Line = "line", Name = "name",
    Device = "device", Address = "address", TotalSize = "total_size", AllocatedSize = "allocated_size",
    ActiveSize = "active_size", RequestedSize = "requested_size", SegmentType = "segment_type",
    SegmentPoolId = "segment_pool_id", IsExpandable = "is_expandable", Blocks = "blocks",
    State = "state", History = "history",
}

/// The pairs of a dictionary by key.
struct Pairs {
    values: [Value; KEYS.len()],
}

impl Pairs {
    fn of(pairs: &[[Value; 2]]) -> Self {
        let mut values = [Value::None; KEYS.len()];
        for &[key, value] in pairs {
            if let Value::Text(text) = key
                && let Some(place) = values.get_mut(text as usize)
            {
                *place = value;
            }
        }
        Self { values }
    }

    fn get(&self, key: Key) -> Value {
        self.values[key as usize]
    }

    fn has(&self, key: Key) -> bool {
        self.get(key) != Value::None
    }

    fn int(&self, key: Key) -> BuildResult<Option<i64>> {
        match self.get(key) {
            Value::None => Ok(None),
            Value::Int(value) => Ok(Some(value)),
            Value::Bool(value) => Ok(Some(value.into())),
            other => Err(format!(
                "{}: expected a whole number of up to 64 bits, found {}",
                key.text(),
                name_of(other)
            )),
        }
    }

    /// Returns an address or a handle as unsigned bits, since Python may have stored it as a negative number.
    fn handle(&self, key: Key) -> BuildResult<Option<u64>> {
        Ok(self.int(key)?.map(|value| value as u64))
    }

    fn bytes(&self, key: Key) -> BuildResult<Option<u64>> {
        let Some(value) = self.int(key)? else { return Ok(None) };
        let bytes = u64::try_from(value);
        bytes.map(Some).map_err(|_| format!("{}: {value} is not a size, it is negative", key.text()))
    }

    fn text(&self, key: Key) -> BuildResult<Option<u32>> {
        match self.get(key) {
            Value::None => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            other => Err(format!("{}: expected a text, found {}", key.text(), name_of(other))),
        }
    }

    fn device(&self) -> BuildResult<i32> {
        let device = self.int(Key::Device)?.unwrap_or(0);
        i32::try_from(device).map_err(|_| format!("device: there is none with number {device}"))
    }
}

impl Key {
    fn text(self) -> &'static str {
        KEYS[self as usize]
    }
}

fn missing(key: Key) -> String {
    format!("{} is missing", key.text())
}

fn name_of(value: Value) -> &'static str {
    match value {
        Value::None => "None",
        Value::Bool(_) => "a truth value",
        Value::Int(_) => "a whole number",
        Value::Float(_) => "a number with a fraction",
        Value::Text(_) => "a text",
        Value::Object(_) | Value::Frame(_) => "a list or a dictionary",
        Value::Opaque => "bytes, or a number of more than 64 bits",
    }
}

impl Builder {
    pub(super) fn new() -> Self {
        let mut this = Self {
            recording: Recording::default(),
            text_ids: FxHashMap::default(),
            frame_ids: FrameIds::default(),
            stack_ids: StackIds::default(),
            stack: Vec::new(),
            context_ids: FxHashMap::default(),
            last_context: 0,
            objects: Vec::new(),
            lists: Vec::new(),
            spare_lists: Vec::new(),
            runs: Vec::new(),
            dicts: Vec::new(),
            spare_dicts: Vec::new(),
            segments: Vec::new(),
            blocks_without_address: false,
            loose_bytes: 0,
        };
        for (key, text) in Key::ALL.iter().zip(KEYS) {
            let id = this.text(text);
            debug_assert_eq!(id, Ok(Value::Text(*key as u32)));
        }
        this
    }

    /// Returns the records so far, and drops everything else.
    pub(super) fn into_recording(self) -> Recording {
        self.recording
    }

    /// Returns an error if a file has become larger in memory than any valid one of its size.
    pub(super) fn check_size(&self, own_bytes: usize, offset: u64) -> BuildResult<()> {
        let recording = &self.recording;
        let tables = size_of_val(&self.objects[..])
            + size_of_val(&self.lists[..])
            + size_of_val(&self.dicts[..])
            + size_of_val(&self.runs[..])
            + size_of_val(&self.segments[..])
            + recording.heap_bytes();
        let maps = self.text_ids.capacity() * 32
            + self.frame_ids.bytes()
            + self.stack_ids.bytes()
            + self.context_ids.capacity() * (size_of::<Context>() + 8);
        let bytes = (own_bytes + tables + maps + self.loose_bytes) as u64;
        if bytes > FREE_BYTES + BYTES_PER_BYTE * offset {
            return Err(format!(
                "{offset} bytes of the file stand for {bytes} bytes of values, more than in any real snapshot"
            ));
        }
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) -> BuildResult<Value> {
        if let Some(&id) = self.text_ids.get(text) {
            return Ok(Value::Text(id));
        }
        let id = number(self.recording.texts.len())?;
        let shared: Arc<str> = text.into();
        self.loose_bytes += text.len() + 16;
        self.recording.texts.push(Arc::clone(&shared));
        self.text_ids.insert(shared, id);
        Ok(Value::Text(id))
    }

    pub(super) fn list(&mut self) -> BuildResult<Value> {
        let index = place(&mut self.lists, &mut self.spare_lists)?;
        self.object(Kind::List, index)
    }

    pub(super) fn tuple(&mut self, items: &[Value]) -> BuildResult<Value> {
        let index = place(&mut self.lists, &mut self.spare_lists)?;
        self.loose_bytes += size_of_val(items);
        self.lists[index as usize].extend_from_slice(items);
        self.object(Kind::Tuple, index)
    }

    pub(super) fn dict(&mut self) -> BuildResult<Value> {
        let index = place(&mut self.dicts, &mut self.spare_dicts)?;
        self.object(Kind::Dict, index)
    }

    fn object(&mut self, kind: Kind, index: u32) -> BuildResult<Value> {
        let id = number(self.objects.len())?;
        self.objects.push(Object { kind, index }.pack()?);
        Ok(Value::Object(id))
    }

    #[inline]
    fn kind(&self, value: Value) -> Option<Object> {
        match value {
            Value::Object(id) => Some(self.objects[id as usize].object()),
            Value::Frame(index) => Some(Object { kind: Kind::Frame, index }),
            _ => None,
        }
    }

    pub(super) fn append(&mut self, list: Value, items: &[Value]) -> BuildResult<()> {
        let Some(Object { kind, index }) = self.kind(list) else {
            return Err("appends to what is not a list".into());
        };
        for &item in items {
            self.complete(item)?;
        }
        let kept: Vec<Value>;
        let items = match self.recording.left_out.is_empty() {
            true => items,
            false => {
                kept = items.iter().copied().filter(|item| !self.is_left_out(*item)).collect();
                &kept
            }
        };
        let Some(&first) = items.first() else { return Ok(()) };
        match (kind, self.kind(first).map(|object| object.kind)) {
            (Kind::List, Some(kind @ (Kind::Entry | Kind::Block)))
                if self.lists[index as usize].is_empty() =>
            {
                self.spare_lists.push(index);
                let kind = if kind == Kind::Entry { Kind::Entries } else { Kind::Blocks };
                let run = number(self.runs.len())?;
                self.runs.push(Vec::new());
                let Value::Object(id) = list else { unreachable!("it has a kind") };
                self.objects[id as usize] = Object { kind, index: run }.pack()?;
                self.extend_run(kind, run, items)
            }
            (Kind::Entries | Kind::Blocks, _) => self.extend_run(kind, index, items),
            (Kind::List, _) => {
                self.loose_bytes += size_of_val(items);
                self.lists[index as usize].extend_from_slice(items);
                Ok(())
            }
            (Kind::Stack, _) => Err("appends to a stack that was used before".into()),
            _ => Err("appends to what is not a list".into()),
        }
    }

    /// Appends to a list of entries or of blocks.
    fn extend_run(&mut self, kind: Kind, run: u32, items: &[Value]) -> BuildResult<()> {
        let expected = if kind == Kind::Entries { Kind::Entry } else { Kind::Block };
        for &item in items {
            let record = self.kind(item).filter(|object| object.kind == expected);
            let Some(Object { index, .. }) = record else {
                return Err("appends something else to a list of entries or blocks".into());
            };
            let ranges = &mut self.runs[run as usize];
            match ranges.last_mut() {
                Some(last) if last.end == index => last.end += 1,
                _ => {
                    self.loose_bytes += size_of::<Range<u32>>();
                    ranges.push(index..index + 1);
                }
            }
        }
        Ok(())
    }

    /// Sets keys of a dictionary. With `at_once` all its keys are set at once, so that its kind is known from now on.
    pub(super) fn set(&mut self, dict: Value, pairs: &[[Value; 2]], at_once: bool) -> BuildResult<()> {
        let Some(Object { kind: Kind::Dict, index }) = self.kind(dict) else {
            let known = self.kind(dict).is_some_and(|object| {
                matches!(object.kind, Kind::Entry | Kind::Block | Kind::Segment | Kind::Frame)
            });
            return Err(if known {
                "sets a key of a dictionary that was complete".into()
            } else {
                "sets a key of what is not a dictionary".into()
            });
        };
        if at_once && self.dicts[index as usize].is_empty() && self.take_apart(dict, pairs)? {
            return Ok(());
        }
        self.loose_bytes += size_of_val(pairs);
        self.dicts[index as usize].extend(pairs.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    /// Converts a dictionary whose keys were set one by one.
    #[inline]
    fn complete(&mut self, item: Value) -> BuildResult<()> {
        match self.kind(item) {
            Some(Object { kind: Kind::Dict, index }) => self.complete_dict(item, index),
            _ => Ok(()),
        }
    }

    #[cold]
    fn complete_dict(&mut self, item: Value, index: u32) -> BuildResult<()> {
        let pairs = &self.dicts[index as usize];
        if pairs.is_empty() || pairs.len() > MOST_KEYS {
            return Ok(());
        }
        let pairs: Vec<_> = pairs.iter().map(|&(key, value)| [key, value]).collect();
        if self.take_apart(item, &pairs)? {
            self.loose_bytes -= size_of_val(&pairs[..]);
            self.dicts[index as usize] = Vec::new();
        }
        Ok(())
    }

    /// Converts a dictionary of one of the frequent kinds to a record. Returns `false` if it is something else.
    fn take_apart(&mut self, dict: Value, pairs: &[[Value; 2]]) -> BuildResult<bool> {
        let Value::Object(id) = dict else { return Ok(false) };
        let pairs = Pairs::of(pairs);
        let (kind, index) = if pairs.has(Key::Action) {
            match self.entry(&pairs).map_err(|what| format!("an entry of a trace: {what}"))? {
                Some(entry) => (Kind::Entry, entry),
                None => (Kind::LeftOut, 0),
            }
        } else if pairs.has(Key::Filename) {
            (Kind::Frame, self.frame(&pairs).map_err(|what| format!("a frame: {what}"))?)
        } else if pairs.has(Key::TotalSize) {
            (Kind::Segment, self.segment(&pairs).map_err(|what| format!("a segment: {what}"))?)
        } else if pairs.has(Key::State) {
            (Kind::Block, self.block(&pairs).map_err(|what| format!("a block: {what}"))?)
        } else {
            return Ok(false);
        };
        let place = &mut self.objects[id as usize];
        let spare = std::mem::replace(place, Object { kind, index }.pack()?);
        self.spare_dicts.push(spare.object().index);
        Ok(true)
    }

    /// Reads an entry; `None` if it is left out, because a later version may have actions that are unknown here.
    fn entry(&mut self, pairs: &Pairs) -> BuildResult<Option<u32>> {
        let name = pairs.text(Key::Action)?.ok_or_else(|| missing(Key::Action))?;
        let name = &self.recording.texts[name as usize];
        let Some(action) = Action::from_name(name) else {
            let short: String = name.chars().take(40).collect();
            self.leave_out(format!("entries with the action {short:?}"));
            return Ok(None);
        };
        let address = match pairs.handle(Key::Addr)? {
            Some(address) => address,
            None => pairs.handle(Key::DeviceFree)?.ok_or_else(|| missing(Key::Addr))?,
        };
        let size_bytes = pairs.bytes(Key::Size)?.ok_or_else(|| missing(Key::Size))?;
        let time_us = match pairs.get(Key::TimeUs) {
            Value::Float(time_us) => Some(time_us as i64),
            _ => pairs.int(Key::TimeUs)?,
        };
        let context = Context {
            stream: pairs.handle(Key::Stream)?.unwrap_or(0),
            compile_context: self.remark(pairs, Key::CompileContext),
            user_metadata: self.remark(pairs, Key::UserMetadata),
            internal_metadata: self.remark(pairs, Key::InternalMetadata),
            pool_id: self.pair(pairs, Key::PoolId)?,
            forward_frames: self.frames(pairs.get(Key::ForwardFrames), Key::ForwardFrames)?,
            is_timed: time_us.is_some(),
        };
        let context = self.context(context)?;
        let stack = self.frames(pairs.get(Key::Frames), Key::Frames)?;
        let what = (address, size_bytes, time_us.unwrap_or(0));
        self.recording.entries.push(Entry::new(what, action, context, stack));
        number(self.recording.entries.len() - 1).map(Some)
    }

    /// Reads a text of an entry. A value of another type is left out.
    fn remark(&mut self, pairs: &Pairs, key: Key) -> Option<u32> {
        match pairs.get(key) {
            Value::None => None,
            Value::Text(text) => Some(text),
            other => {
                self.leave_out(format!("{} that is {}", key.text(), name_of(other)));
                None
            }
        }
    }

    fn leave_out(&mut self, what: String) {
        let left_out = &mut self.recording.left_out;
        match left_out.iter().position(|(known, _)| *known == what) {
            Some(at) => left_out[at].1 += 1,
            None if left_out.len() < MOST_REMARKS => left_out.push((what, 1)),
            // A file can contain any number of names.
            None => left_out[MOST_REMARKS - 1].1 += 1,
        }
    }

    fn is_left_out(&self, item: Value) -> bool {
        self.kind(item).is_some_and(|object| object.kind == Kind::LeftOut)
    }

    fn context(&mut self, context: Context) -> BuildResult<u32> {
        if self.recording.contexts.get(self.last_context as usize) == Some(&context) {
            return Ok(self.last_context);
        }
        let next = number(self.recording.contexts.len())?;
        if self.recording.contexts.len() >= Entry::MOST_CONTEXTS / 2 {
            return Err(
                "the file has more than 134 million streams, pools and texts together, which is not read"
                    .into(),
            );
        }
        let id = *self.context_ids.entry(context).or_insert(next);
        if id == next {
            self.recording.contexts.push(context);
        }
        self.last_context = id;
        Ok(id)
    }

    fn frame(&mut self, pairs: &Pairs) -> BuildResult<u32> {
        let empty = match self.text("")? {
            Value::Text(text) => text,
            _ => unreachable!("a text is a text"),
        };
        let function = Function {
            filename: pairs.text(Key::Filename)?.unwrap_or(empty),
            name: pairs.text(Key::Name)?.unwrap_or(empty),
        };
        self.frame_at(function, pairs.int(Key::Line)?.unwrap_or(0))
    }

    fn frame_at(&mut self, function: Function, line: i64) -> BuildResult<u32> {
        let line = u32::try_from(line).unwrap_or(0);
        let id = self.recording.frames.intern(&mut self.frame_ids, function, line);
        number(id.map_or(usize::MAX, |id| id as usize))
    }

    /// Returns whether a value is one of the three keys of a frame.
    #[inline]
    pub(super) fn is_key_of_frame(value: Value) -> bool {
        let keys = Key::Filename as u32..=Key::Name as u32;
        matches!(value, Value::Text(text) if keys.contains(&text))
    }

    /// Returns the frame of a dictionary with these pairs, if it has exactly the three values of a frame.
    #[inline]
    pub(super) fn whole_frame(&mut self, pairs: &[[Value; 2]; 3]) -> BuildResult<Option<Value>> {
        let (mut filename, mut line, mut name) = (None, None, None);
        for pair in pairs {
            match *pair {
                [Value::Text(key), Value::Text(value)] if key == Key::Filename as u32 => {
                    filename = Some(value)
                }
                [Value::Text(key), Value::Text(value)] if key == Key::Name as u32 => name = Some(value),
                [Value::Text(key), Value::Int(value)] if key == Key::Line as u32 => line = Some(value),
                _ => return Ok(None),
            }
        }
        let (Some(filename), Some(line), Some(name)) = (filename, line, name) else { return Ok(None) };
        self.frame_at(Function { filename, name }, line).map(|frame| Some(Value::Frame(frame)))
    }

    /// Returns the stack for a list of frames. The list becomes the stack: from then on it is known, and takes no memory.
    fn frames(&mut self, value: Value, key: Key) -> BuildResult<Option<u32>> {
        let Some(object) = self.kind(value) else {
            return match value {
                Value::None => Ok(None),
                other => Err(format!("{}: expected a list, found {}", key.text(), name_of(other))),
            };
        };
        let index = match object.kind {
            Kind::Stack => return Ok(Some(object.index)),
            Kind::List | Kind::Tuple => object.index,
            _ => return Err(format!("{}: expected a list of frames", key.text())),
        };
        let items = std::mem::take(&mut self.lists[index as usize]);
        let mut frames = std::mem::take(&mut self.stack);
        frames.clear();
        for &item in &items {
            frames.push(self.frame_of(item).map_err(|what| format!("{}: {what}", key.text()))?);
        }
        self.loose_bytes -= size_of_val(&items[..]);
        self.spare_lists.push(index);
        let stack = self.recording.stacks.intern(&mut self.stack_ids, &frames);
        self.stack = frames;
        let stack = stack.ok_or("the stacks of the file take more than 4 GiB, which is not read")?;
        let Value::Object(id) = value else { unreachable!("it has a kind") };
        self.objects[id as usize] = Object { kind: Kind::Stack, index: stack }.pack()?;
        Ok(Some(stack))
    }

    /// Returns the frame for a value: a converted one, or one of an old version, which lacks keys.
    #[inline]
    pub(super) fn frame_of(&mut self, item: Value) -> BuildResult<u32> {
        match self.kind(item) {
            Some(Object { kind: Kind::Frame, index }) => Ok(index),
            Some(Object { kind: Kind::Dict, index }) if self.dicts[index as usize].len() <= MOST_KEYS => {
                let pairs: Vec<_> =
                    self.dicts[index as usize].iter().map(|&(key, value)| [key, value]).collect();
                self.frame(&Pairs::of(&pairs))
            }
            _ => Err("expected a list of frames".into()),
        }
    }

    fn pair(&mut self, pairs: &Pairs, key: Key) -> BuildResult<Option<(u64, u64)>> {
        let value = pairs.get(key);
        if value == Value::None {
            return Ok(None);
        }
        let items = self.items(value).unwrap_or_default();
        match *items {
            [Value::Int(first), Value::Int(second)] => Ok(Some((first as u64, second as u64))),
            _ => Err(format!("{}: expected two numbers", key.text())),
        }
    }

    fn segment(&mut self, pairs: &Pairs) -> BuildResult<u32> {
        let class = match pairs.text(Key::SegmentType)?.map(|text| &*self.recording.texts[text as usize]) {
            Some("small") => SizeClass::Small,
            Some("large") | None => SizeClass::Large,
            Some(other) => return Err(format!("segment_type: {other:?} is not known")),
        };
        let address = pairs.handle(Key::Address)?.ok_or_else(|| missing(Key::Address))?;
        let blocks = match pairs.get(Key::Blocks) {
            Value::None => Vec::new(),
            value => match self.kind(value) {
                Some(Object { kind: Kind::Blocks, index }) => self.runs[index as usize].clone(),
                Some(Object { kind: Kind::List | Kind::Tuple, index })
                    if self.lists[index as usize].is_empty() =>
                {
                    Vec::new()
                }
                _ => return Err("blocks: expected a list of blocks".into()),
            },
        };
        self.loose_bytes += size_of_val(&blocks[..]);
        if self.blocks_without_address {
            self.place_blocks(address, &blocks);
        }
        let segment = RecordedSegment {
            device: pairs.device()?,
            address,
            total_bytes: pairs.bytes(Key::TotalSize)?.ok_or_else(|| missing(Key::TotalSize))?,
            allocated_bytes: pairs.bytes(Key::AllocatedSize)?.unwrap_or(0),
            active_bytes: pairs.bytes(Key::ActiveSize)?.unwrap_or(0),
            requested_bytes: pairs.bytes(Key::RequestedSize)?.unwrap_or(0),
            stream: pairs.handle(Key::Stream)?.unwrap_or(0),
            class,
            pool_id: self.pair(pairs, Key::SegmentPoolId)?.unwrap_or((0, 0)),
            is_expandable: pairs.int(Key::IsExpandable)?.unwrap_or(0) != 0,
            frames: self.frames(pairs.get(Key::Frames), Key::Frames)?,
            blocks,
        };
        self.segments.push(segment);
        number(self.segments.len() - 1)
    }

    /// Sets the addresses of blocks of old versions, which do not contain them: each begins where the one before it ends.
    fn place_blocks(&mut self, address: u64, blocks: &[Range<u32>]) {
        let mut end = address;
        for block in blocks.iter().cloned().flatten() {
            let block = &mut self.recording.blocks[block as usize];
            if !std::mem::replace(&mut block.has_address, true) {
                block.address = end;
            }
            end = block.address.saturating_add(block.size_bytes);
        }
    }

    fn block(&mut self, pairs: &Pairs) -> BuildResult<u32> {
        let state = pairs.text(Key::State)?.ok_or_else(|| missing(Key::State))?;
        let state = &self.recording.texts[state as usize];
        let state = BlockState::from_name(state).ok_or_else(|| format!("state: {state:?} is not known"))?;
        let mut frames = self.frames(pairs.get(Key::Frames), Key::Frames)?;
        if frames.is_none() {
            frames = self.frames_of_history(pairs.get(Key::History))?;
        }
        let address = pairs.handle(Key::Address)?;
        self.blocks_without_address |= address.is_none();
        let block = RecordedBlock {
            address: address.unwrap_or(0),
            has_address: address.is_some(),
            size_bytes: pairs.bytes(Key::Size)?.ok_or_else(|| missing(Key::Size))?,
            requested_bytes: pairs.bytes(Key::RequestedSize)?.unwrap_or(0),
            state,
            frames,
            forward_frames: self.frames(pairs.get(Key::ForwardFrames), Key::ForwardFrames)?,
        };
        self.recording.blocks.push(block);
        number(self.recording.blocks.len() - 1)
    }

    /// Reads the stack of old versions, which have a history of owners, newest first, each with its stack.
    fn frames_of_history(&mut self, history: Value) -> BuildResult<Option<u32>> {
        let Some(&newest) = self.items(history).and_then(|owners| owners.first()) else { return Ok(None) };
        match self.pairs(newest) {
            Some(owner) if owner.len() > MOST_KEYS => Err("history: an owner has too many keys".into()),
            Some(owner) => {
                let frames = Pairs::of(&owner.iter().map(|&(key, value)| [key, value]).collect::<Vec<_>>());
                self.frames(frames.get(Key::Frames), Key::Frames)
            }
            None => Err("history: expected a list of dictionaries".into()),
        }
    }

    #[cfg(test)]
    pub(super) fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Returns the items of a list or tuple that is neither of entries nor of blocks.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.kind(value)? {
            Object { kind: Kind::List | Kind::Tuple, index } => Some(&self.lists[index as usize]),
            _ => None,
        }
    }

    /// Returns the pairs of a dictionary that was not converted.
    pub(super) fn pairs(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.kind(value)? {
            Object { kind: Kind::Dict, index } => Some(&self.dicts[index as usize]),
            _ => None,
        }
    }

    /// Returns the entries of a list of only entries.
    pub(super) fn trace(&self, value: Value) -> Option<Trace> {
        match self.kind(value)? {
            Object { kind: Kind::Entries, index } => Some(Trace(self.runs[index as usize].clone())),
            Object { kind: Kind::List | Kind::Tuple, index } if self.lists[index as usize].is_empty() => {
                Some(Trace::default())
            }
            _ => None,
        }
    }

    pub(super) fn is_segment(&self, value: Value) -> Option<RecordedSegment> {
        match self.kind(value)? {
            Object { kind: Kind::Segment, index } => Some(self.segments[index as usize].clone()),
            _ => None,
        }
    }
}

/// Returns an index into a table of lists: a spare one, or a new one.
fn place<T>(table: &mut Vec<Vec<T>>, spare: &mut Vec<u32>) -> BuildResult<u32> {
    if let Some(index) = spare.pop() {
        return Ok(index);
    }
    table.push(Vec::new());
    number(table.len() - 1)
}

/// Returns a number of 30 bits, so that the memo has two bits left for its kind.
fn number(value: usize) -> BuildResult<u32> {
    let small = u32::try_from(value).ok().filter(|&value| value < 1 << 30);
    small.ok_or_else(|| "the file has more than a billion values of one kind, which is not read".into())
}
