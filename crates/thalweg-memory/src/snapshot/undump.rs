//! A [`Snapshot`] out of a pickle's values.
//!
//! A file from anywhere may use one list in many places, and so stand for far more than it holds. What is built here is
//! therefore paid for: each segment, block and entry costs one of a budget, which is the length of the file. No honest file
//! comes near it, since each of these takes dozens of bytes to write. Stacks are built once and shared, as in the file.

use std::sync::Arc;

use super::pickle::{Node, NodeId, Pickle};
use super::{
    Action, Annotation, BlockState, Frame, Frames, Segment, SegmentBlock, SettingValue, Snapshot,
    SnapshotError, TraceEntry,
};
use crate::stats::SizeClass;
use crate::upstream::StreamId;

/// No entry of any version has nearly as many keys.
const MOST_KEYS: usize = 256;

type Result<T> = std::result::Result<T, SnapshotError>;

/// What `pickle`, read from a file of `file_bytes`, says of the memory.
pub(crate) fn snapshot(pickle: &Pickle, file_bytes: usize) -> Result<Snapshot> {
    let mut reader = Reader { pickle, stacks: vec![None; pickle.len()], budget: file_bytes };
    let root = pickle.root();
    if let Node::List(segments) = pickle.node(root) {
        let segments = reader.list(segments, "segments", Reader::segment)?;
        return Ok(Snapshot { segments, ..Snapshot::default() });
    }
    if !matches!(pickle.node(root), Node::Dict(_)) {
        return Err(SnapshotError::new(
            "the file holds neither a snapshot's dictionary nor a list of segments",
        ));
    }
    reader.dict(root)?;
    if reader.get(root, "segments").is_none() && reader.get(root, "device_traces").is_none() {
        return Err(SnapshotError::new("the file's dictionary has neither segments nor device_traces"));
    }
    Ok(Snapshot {
        segments: reader.list_at(root, "segments", Reader::segment)?,
        device_traces: reader.list_at(root, "device_traces", |reader, entries| {
            let entries = reader.items(entries)?;
            reader.list(entries, "entries", Reader::trace_entry)
        })?,
        allocator_settings: reader.settings(root)?,
        external_annotations: reader.list_at(root, "external_annotations", Reader::annotation)?,
        host_segments: reader.list_at(root, "host_segments", Reader::segment)?,
        host_traces: reader.host_traces(root)?,
    })
}

struct Reader<'p> {
    pickle: &'p Pickle,
    /// The stacks that were built, by the id of their list.
    stacks: Vec<Option<Frames>>,
    budget: usize,
}

impl<'p> Reader<'p> {
    /// The value of a key; of the last, if there are several. `None` is no value.
    fn get(&self, dict: NodeId, key: &str) -> Option<NodeId> {
        let Node::Dict(pairs) = self.pickle.node(dict) else { return None };
        let is_key = |id| matches!(self.pickle.node(id), Node::Text(text) if **text == *key);
        let (_, value) = *pairs.iter().rev().find(|&&(id, _)| is_key(id))?;
        if matches!(self.pickle.node(value), Node::None) { None } else { Some(value) }
    }

    fn items(&self, id: NodeId) -> Result<&'p [NodeId]> {
        match self.pickle.node(id) {
            Node::List(items) | Node::Tuple(items) => Ok(items),
            other => Err(unexpected("a list", other)),
        }
    }

    fn pay(&mut self) -> Result<()> {
        self.budget = self.budget.checked_sub(1).ok_or_else(|| {
            SnapshotError::new(
                "the file stands for more entries than it has bytes, which no real snapshot does",
            )
        })?;
        Ok(())
    }

    fn list<T>(
        &mut self,
        items: &[NodeId],
        name: &str,
        mut each: impl FnMut(&mut Self, NodeId) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut list = Vec::new();
        for (index, &item) in items.iter().enumerate() {
            self.pay()?;
            list.push(each(self, item).map_err(|error| within(error, &format!("{name}[{index}]")))?);
        }
        Ok(list)
    }

    /// The list under a key; an absent one is empty.
    fn list_at<T>(
        &mut self,
        dict: NodeId,
        key: &str,
        each: impl FnMut(&mut Self, NodeId) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some(id) = self.get(dict, key) else { return Ok(Vec::new()) };
        let items = self.items(id).map_err(|error| within(error, key))?;
        self.list(items, key, each)
    }

    /// The traces of the host: a list of entries, or one list for the one host.
    fn host_traces(&mut self, root: NodeId) -> Result<Vec<TraceEntry>> {
        let nested = self.list_at(root, "host_traces", |reader, item| match reader.pickle.node(item) {
            Node::List(entries) => reader.list(entries, "entries", Self::trace_entry),
            _ => Ok(vec![reader.trace_entry(item)?]),
        })?;
        Ok(nested.into_iter().flatten().collect())
    }

    fn int(&self, dict: NodeId, key: &str) -> Result<Option<i64>> {
        let Some(id) = self.get(dict, key) else { return Ok(None) };
        match self.pickle.node(id) {
            Node::Int(value) => Ok(Some(*value)),
            Node::Bool(value) => Ok(Some((*value).into())),
            other => Err(within(unexpected("a whole number of up to 64 bits", other), key)),
        }
    }

    /// An address or a handle: its bits, since Python may have taken it for negative.
    fn handle(&self, dict: NodeId, key: &str) -> Result<Option<u64>> {
        Ok(self.int(dict, key)?.map(|value| value as u64))
    }

    fn bytes(&self, dict: NodeId, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.int(dict, key)? else { return Ok(None) };
        let bytes = u64::try_from(value);
        bytes.map(Some).map_err(|_| SnapshotError::new(format!("{key}: {value} is no size, it is negative")))
    }

    fn text(&self, dict: NodeId, key: &str) -> Result<Option<Arc<str>>> {
        let Some(id) = self.get(dict, key) else { return Ok(None) };
        match self.pickle.node(id) {
            Node::Text(text) => Ok(Some(Arc::clone(text))),
            other => Err(within(unexpected("a text", other), key)),
        }
    }

    fn pair(&self, dict: NodeId, key: &str) -> Result<Option<(u64, u64)>> {
        let Some(id) = self.get(dict, key) else { return Ok(None) };
        let items = self.items(id).map_err(|error| within(error, key))?;
        let number = |id: NodeId| match self.pickle.node(id) {
            Node::Int(value) => Some(*value as u64),
            _ => None,
        };
        match items {
            &[first, second] if number(first).is_some() && number(second).is_some() => {
                Ok(number(first).zip(number(second)))
            }
            _ => Err(SnapshotError::new(format!("{key}: expected two numbers"))),
        }
    }

    fn frames(&mut self, dict: NodeId, key: &str) -> Result<Option<Frames>> {
        let Some(id) = self.get(dict, key) else { return Ok(None) };
        if let Some(frames) = &self.stacks[id.index()] {
            return Ok(Some(Arc::clone(frames)));
        }
        let items = self.items(id).map_err(|error| within(error, key))?;
        let frames: Frames = items
            .iter()
            .map(|&item| self.frame(item))
            .collect::<Result<_>>()
            .map_err(|error| within(error, key))?;
        self.stacks[id.index()] = Some(Arc::clone(&frames));
        Ok(Some(frames))
    }

    fn frame(&self, id: NodeId) -> Result<Frame> {
        self.dict(id)?;
        let empty = || Arc::from("");
        Ok(Frame {
            filename: self.text(id, "filename")?.unwrap_or_else(empty),
            line: self.int(id, "line")?.and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
            name: self.text(id, "name")?.unwrap_or_else(empty),
        })
    }

    /// Checks that it is a dictionary, and one of a size at which looking for a key from end to end is quick.
    fn dict(&self, id: NodeId) -> Result<()> {
        match self.pickle.node(id) {
            Node::Dict(pairs) if pairs.len() <= MOST_KEYS => Ok(()),
            Node::Dict(pairs) => Err(SnapshotError::new(format!(
                "a dictionary of {} keys, where no version has more than {MOST_KEYS}",
                pairs.len()
            ))),
            other => Err(unexpected("a dictionary", other)),
        }
    }

    fn device(&self, dict: NodeId) -> Result<i32> {
        let device = self.int(dict, "device")?.unwrap_or(0);
        i32::try_from(device)
            .map_err(|_| SnapshotError::new(format!("device: there is none with number {device}")))
    }

    fn segment(&mut self, id: NodeId) -> Result<Segment> {
        self.dict(id)?;
        let address = self.handle(id, "address")?.ok_or_else(|| missing("address"))?;
        let mut end = address;
        let blocks = self.list_at(id, "blocks", |reader, block| {
            let block = reader.block(block, end)?;
            end = block.address.saturating_add(block.size_bytes);
            Ok(block)
        })?;
        let class = match self.text(id, "segment_type")?.as_deref() {
            Some("small") => SizeClass::Small,
            Some("large") | None => SizeClass::Large,
            Some(other) => return Err(SnapshotError::new(format!("segment_type: {other:?} is not known"))),
        };
        Ok(Segment {
            device: self.device(id)?,
            address,
            total_bytes: self.bytes(id, "total_size")?.ok_or_else(|| missing("total_size"))?,
            allocated_bytes: self.bytes(id, "allocated_size")?.unwrap_or(0),
            active_bytes: self.bytes(id, "active_size")?.unwrap_or(0),
            requested_bytes: self.bytes(id, "requested_size")?.unwrap_or(0),
            stream: StreamId::from_raw(self.handle(id, "stream")?.unwrap_or(0)),
            class,
            pool_id: self.pair(id, "segment_pool_id")?.unwrap_or((0, 0)),
            is_expandable: self.int(id, "is_expandable")?.unwrap_or(0) != 0,
            frames: self.frames(id, "frames")?.unwrap_or_default(),
            blocks,
        })
    }

    /// A block. Old versions do not say its address, which is then the end of the one before it, and have its stack in a
    /// history of owners.
    fn block(&mut self, id: NodeId, end_before: u64) -> Result<SegmentBlock> {
        self.dict(id)?;
        let state = self.text(id, "state")?.ok_or_else(|| missing("state"))?;
        let frames = match self.frames(id, "frames")? {
            Some(frames) => frames,
            None => self.frames_of_history(id)?.unwrap_or_default(),
        };
        Ok(SegmentBlock {
            address: self.handle(id, "address")?.unwrap_or(end_before),
            size_bytes: self.bytes(id, "size")?.ok_or_else(|| missing("size"))?,
            requested_bytes: self.bytes(id, "requested_size")?.unwrap_or(0),
            state: BlockState::from_name(&state)
                .ok_or_else(|| SnapshotError::new(format!("state: {state:?} is not known")))?,
            frames,
            forward_frames: self.frames(id, "forward_frames")?,
        })
    }

    fn frames_of_history(&mut self, block: NodeId) -> Result<Option<Frames>> {
        let Some(history) = self.get(block, "history") else { return Ok(None) };
        let owners = self.items(history).map_err(|error| within(error, "history"))?;
        let Some(&newest) = owners.first() else { return Ok(None) };
        self.dict(newest).map_err(|error| within(error, "history"))?;
        self.frames(newest, "frames")
    }

    fn trace_entry(&mut self, id: NodeId) -> Result<TraceEntry> {
        self.dict(id)?;
        let name = self.text(id, "action")?.ok_or_else(|| missing("action"))?;
        let action = Action::from_name(&name)
            .ok_or_else(|| SnapshotError::new(format!("action: {name:?} is not known")))?;
        let address = match self.handle(id, "addr")? {
            Some(address) => address,
            None => self.handle(id, "device_free")?.ok_or_else(|| missing("addr"))?,
        };
        Ok(TraceEntry {
            action,
            address,
            size_bytes: self.bytes(id, "size")?.ok_or_else(|| missing("size"))?,
            stream: StreamId::from_raw(self.handle(id, "stream")?.unwrap_or(0)),
            time_us: self.int(id, "time_us")?,
            compile_context: self.text(id, "compile_context")?,
            user_metadata: self.text(id, "user_metadata")?,
            pool_id: self.pair(id, "pool_id")?,
            internal_metadata: self.text(id, "internal_metadata")?,
            frames: self.frames(id, "frames")?,
            forward_frames: self.frames(id, "forward_frames")?,
        })
    }

    fn annotation(&mut self, id: NodeId) -> Result<Annotation> {
        self.dict(id)?;
        Ok(Annotation {
            name: self.text(id, "name")?.unwrap_or_else(|| Arc::from("")),
            stage: self.text(id, "stage")?.unwrap_or_else(|| Arc::from("")),
            device: self.device(id)?,
            time_us: self.int(id, "time_us")?.unwrap_or(0),
        })
    }

    fn settings(&mut self, root: NodeId) -> Result<Vec<(Arc<str>, SettingValue)>> {
        let Some(id) = self.get(root, "allocator_settings") else { return Ok(Vec::new()) };
        let Node::Dict(pairs) = self.pickle.node(id) else { return Ok(Vec::new()) };
        let mut settings = Vec::new();
        for &(key, value) in pairs {
            self.pay()?;
            if let (Node::Text(name), Some(value)) = (self.pickle.node(key), self.setting(value)?) {
                settings.push((Arc::clone(name), value));
            }
        }
        Ok(settings)
    }

    /// The value of a setting, if it is of a kind that settings have had so far.
    fn setting(&mut self, id: NodeId) -> Result<Option<SettingValue>> {
        Ok(Some(match self.pickle.node(id) {
            Node::None => SettingValue::None,
            Node::Bool(value) => SettingValue::Bool(*value),
            Node::Int(value) => SettingValue::Int(*value),
            Node::Float(value) => SettingValue::Float(*value),
            Node::Text(text) => SettingValue::Text(Arc::clone(text)),
            Node::Dict(pairs) => {
                let mut table = Vec::new();
                for &(key, value) in pairs {
                    self.pay()?;
                    if let (Node::Text(name), Node::Int(value)) =
                        (self.pickle.node(key), self.pickle.node(value))
                    {
                        table.push((Arc::clone(name), *value));
                    }
                }
                SettingValue::Table(table)
            }
            Node::List(_) | Node::Tuple(_) | Node::Opaque => return Ok(None),
        }))
    }
}

fn missing(key: &str) -> SnapshotError {
    SnapshotError::new(format!("{key} is missing"))
}

fn unexpected(expected: &str, node: &Node) -> SnapshotError {
    let found = match node {
        Node::None => "None",
        Node::Bool(_) => "a truth value",
        Node::Int(_) => "a whole number",
        Node::Float(_) => "a number with a fraction",
        Node::Text(_) => "a text",
        Node::List(_) => "a list",
        Node::Tuple(_) => "a tuple",
        Node::Dict(_) => "a dictionary",
        Node::Opaque => "bytes, or a number of more than 64 bits",
    };
    SnapshotError::new(format!("expected {expected}, found {found}"))
}

/// The error with the place that it is in: `device_traces[0]: entries[17]: size is missing`.
fn within(error: SnapshotError, place: &str) -> SnapshotError {
    SnapshotError::new(format!("{place}: {error}"))
}
