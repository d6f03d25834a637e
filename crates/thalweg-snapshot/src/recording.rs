//! A snapshot as it lies in a file, in little memory.
//!
//! A [`Snapshot`] has an entry of 150 bytes, which is right for what one process wrote a minute ago, and too much for files of
//! a gigabyte. Here an entry has 32 bytes: where, how much, when, a number for its stack, and one for all that few entries differ in
//! (stream, pool, texts).

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use super::build::Builder;
use super::frames::{self, Function};
use super::mend::{Gap, Mended};
use super::source::Source;
use super::stacks;
use super::{
    Action, Annotation, BlockState, Frame, Frames, Segment, SegmentBlock, SettingValue, Snapshot,
    SnapshotError, TraceEntry,
};
use super::{sniff, undump};
use crate::SizeClass;
use crate::StreamId;

/// A snapshot that was read from a file, as columns of small records.
#[derive(Default, Debug)]
pub struct Recording {
    pub(super) texts: Vec<Arc<str>>,
    pub(super) frames: frames::Frames,
    pub(super) stacks: stacks::Stacks,
    pub(super) contexts: Vec<Context>,
    pub(super) entries: Vec<Entry>,
    pub(super) blocks: Vec<RecordedBlock>,
    pub(super) segments: Vec<RecordedSegment>,
    pub(super) traces: Vec<Trace>,
    /// The entries to mend, with what they lack.
    pub(super) mended: Vec<Mended>,
    pub(super) host_segments: Vec<RecordedSegment>,
    pub(super) host_trace: Trace,
    pub(super) settings: Vec<(Arc<str>, SettingValue)>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) file_bytes: u64,
    /// The parts that were not understood and left out, and how often.
    pub(super) left_out: Vec<(String, u64)>,
}

/// The context that several entries share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Context {
    pub(super) stream: u64,
    pub(super) compile_context: Option<u32>,
    pub(super) user_metadata: Option<u32>,
    pub(super) internal_metadata: Option<u32>,
    pub(super) pool_id: Option<(u64, u64)>,
    pub(super) forward_frames: Option<u32>,
    pub(super) is_timed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    /// 0 where the context is not timed.
    pub(super) time_us: i64,
    /// The number of its stack plus one; 0 if it has none.
    stack: u32,
    /// The number of its context, and of its action in the lowest bits.
    context: u32,
}

impl Entry {
    const ACTION_BITS: u32 = 4;

    /// How many contexts there can be.
    pub(super) const MOST_CONTEXTS: usize = 1 << (32 - Self::ACTION_BITS);

    pub(super) fn new(
        (address, size_bytes, time_us): (u64, u64, i64),
        action: Action,
        context: u32,
        stack: Option<u32>,
    ) -> Self {
        debug_assert!((context as usize) < Self::MOST_CONTEXTS);
        let stack = stack.map_or(0, |stack| stack + 1);
        Self { address, size_bytes, time_us, stack, context: context << Self::ACTION_BITS | action as u32 }
    }

    pub(super) fn action(&self) -> Action {
        Action::ALL[(self.context & ((1 << Self::ACTION_BITS) - 1)) as usize]
    }

    pub(super) fn context(&self) -> u32 {
        self.context >> Self::ACTION_BITS
    }

    pub(super) fn stack(&self) -> Option<u32> {
        self.stack.checked_sub(1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBlock {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) frames: Option<u32>,
    pub(super) forward_frames: Option<u32>,
    pub(super) state: BlockState,
    pub(super) has_address: bool,
}

#[derive(Clone, Debug)]
pub(super) struct RecordedSegment {
    pub(super) device: i32,
    pub(super) address: u64,
    pub(super) total_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) active_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) stream: u64,
    pub(super) class: SizeClass,
    pub(super) pool_id: (u64, u64),
    pub(super) is_expandable: bool,
    pub(super) frames: Option<u32>,
    pub(super) blocks: Vec<Range<u32>>,
}

/// Entries by number, in order: nearly always one range.
#[derive(Clone, Default, Debug)]
pub(super) struct Trace(pub(super) Vec<Range<u32>>);

impl Trace {
    pub(super) fn indices(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + '_ {
        self.0.iter().cloned().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|range| range.len()).sum()
    }
}

/// One entry of a trace of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The kind of event.
    pub action: Action,
    /// To which memory; of [`Action::Oom`], how many bytes the device had left.
    pub address: u64,
    /// Of allocations and frees what was asked for, of segments their size, in bytes.
    pub size_bytes: u64,
    /// The stream that the memory belongs to.
    pub stream: StreamId,
    /// The pool, where the version says it.
    pub pool_id: Option<(u64, u64)>,
    /// Microseconds since 1970, where the version says it.
    pub time_us: Option<i64>,
    /// The stack, for [`Recording::stack`].
    pub stack: Option<StackId>,
}

/// The remarks of the program and the allocator beside an entry of a trace of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remarks<'r> {
    /// The compiled region that was running.
    pub compile_context: Option<&'r str>,
    /// The text that the program had the thread write beside its entries.
    pub user_metadata: Option<&'r str>,
    /// The allocator's own remark.
    pub internal_metadata: Option<&'r str>,
}

/// Names a stack of a [`Recording`]. Equal stacks have equal names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub(super) u32);

impl StackId {
    /// Returns its number, from 0: small, and the same each time that the file is read.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Names a frame of the stacks of a [`Recording`]. Equal frames have equal names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(u32);

impl FrameId {
    /// Returns its number, from 0 and below [`Recording::frame_count`]: the same each time that the file is read.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// One frame of a stack of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameView<'r> {
    /// The source file.
    pub filename: &'r str,
    /// From 1; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub name: &'r str,
}

/// One segment of a [`Recording`]. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// The device's number.
    pub device: i32,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub total_bytes: u64,
    /// The stream that its blocks belong to.
    pub stream: StreamId,
    /// Whether it serves small or large requests.
    pub class: SizeClass,
    /// (0, 0) for the shared pool.
    pub pool_id: (u64, u64),
    /// Whether it is a mapped range that may grow.
    pub is_expandable: bool,
}

/// One block of a [`Recording`]. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// The bytes that were requested.
    pub requested_bytes: u64,
    /// Who has it.
    pub state: BlockState,
    /// Where it was allocated.
    pub stack: Option<StackId>,
}

impl Recording {
    /// Reads a snapshot: a pickle of protocol 2 to 5, or JSON. It is read as a stream, in less memory than the file has.
    ///
    /// # Errors
    /// If it cannot be read, is broken, or is something else. The message has the offset, in bytes, of what is wrong.
    pub fn read(reader: impl Read) -> Result<Self, SnapshotError> {
        let mut source = Source::new(reader);
        let mut builder = Builder::new();
        let first = source.peek()?;
        if let Some(other) = sniff::what_else(source.ahead()) {
            return Err(SnapshotError::new(format!(
                "this is {other}, and no memory snapshot; torch.cuda.memory._dump_snapshot writes one"
            )));
        }
        let is_pickle =
            first.is_some_and(|first| !matches!(first, b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n'));
        source.mark();
        let root = if is_pickle {
            super::pickle::run(&mut source, &mut builder)?
        } else {
            super::json_reader::run(&mut source, &mut builder)?
        };
        let bytes = source.offset();
        undump::finish(builder, root, bytes).map_err(|what| source.error(&what))
    }

    /// Returns the length of the file as a pickle or JSON, in bytes: before it was packed, if it was.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the devices that the file says something of, in order.
    pub fn devices(&self) -> Vec<usize> {
        let traced = (0..self.traces.len()).filter(|&device| self.traces[device].len() > 0);
        let mut devices: Vec<usize> = self
            .segments
            .iter()
            .filter_map(|segment| usize::try_from(segment.device).ok())
            .chain(traced)
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Returns how many entries the trace of a device has; 0 if there is none.
    pub fn trace_len(&self, device: usize) -> usize {
        self.mended.get(device).map_or(0, |mended| mended.trace.len())
    }

    /// Returns the trace of a device, oldest first; empty if there is none. Where it has a [gap](Self::gap), the frees and
    /// allocations that must have been in it are there; where it never says when a free is over, a request to free is the end
    /// of it.
    pub fn trace(&self, device: usize) -> impl DoubleEndedIterator<Item = Event> + Clone + '_ {
        static NONE: Mended = Mended { trace: Trace(Vec::new()), gap: None, ends_at_request: false };
        let Mended { trace, ends_at_request, .. } = self.mended.get(device).unwrap_or(&NONE);
        trace.indices().map(|index| {
            let event = self.event(&self.entries[index as usize]);
            match event.action {
                Action::FreeRequested if *ends_at_request => Event { action: Action::FreeCompleted, ..event },
                _ => event,
            }
        })
    }

    /// Returns what was said beside each entry of the trace of a device, in the same order.
    pub fn remarks(&self, device: usize) -> impl Iterator<Item = Remarks<'_>> + '_ {
        let indices = self.mended.get(device).into_iter().flat_map(|mended| mended.trace.indices());
        indices.map(|index| {
            let context = &self.contexts[self.entries[index as usize].context() as usize];
            let text = |id: Option<u32>| id.map(|id| &*self.texts[id as usize]);
            Remarks {
                compile_context: text(context.compile_context),
                user_metadata: text(context.user_metadata),
                internal_metadata: text(context.internal_metadata),
            }
        })
    }

    /// Returns where the trace of a device does not fit together, since entries in its middle are missing.
    pub fn gap(&self, device: usize) -> Option<Gap> {
        self.mended.get(device)?.gap
    }

    /// Returns whether the trace of a device never says when a free is over (`free_completed` was left out of the recording).
    pub fn leaves_out_ends(&self, device: usize) -> bool {
        self.mended.get(device).is_some_and(|mended| mended.ends_at_request)
    }

    /// Returns what in the file was not understood and is left out, and how often: entries with an action that a later version
    /// has, say.
    pub fn left_out(&self) -> &[(String, u64)] {
        &self.left_out
    }

    /// Returns what happened to pinned host memory, oldest first.
    pub fn host_trace(&self) -> impl DoubleEndedIterator<Item = Event> + Clone + '_ {
        self.host_trace.indices().map(|index| self.event(&self.entries[index as usize]))
    }

    /// Returns the segments of a device, in the order of the file, each with its blocks in the order of their addresses.
    pub fn segments(
        &self,
        device: usize,
    ) -> impl Iterator<Item = (SegmentView, impl Iterator<Item = BlockView> + '_)> + '_ {
        let of_device = move |segment: &&RecordedSegment| usize::try_from(segment.device) == Ok(device);
        self.segments.iter().filter(of_device).map(|segment| self.segment_view(segment))
    }

    /// Returns pinned host memory, where its history was recorded.
    pub fn host_segments(
        &self,
    ) -> impl Iterator<Item = (SegmentView, impl Iterator<Item = BlockView> + '_)> + '_ {
        self.host_segments.iter().map(|segment| self.segment_view(segment))
    }

    /// Returns how the allocator was configured, by name; empty where the version does not say it.
    pub fn settings(&self) -> &[(Arc<str>, SettingValue)] {
        &self.settings
    }

    /// Scopes that a profiler or a user marked.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Returns the frames of a stack, innermost first.
    pub fn stack(&self, stack: StackId) -> impl Iterator<Item = FrameView<'_>> + '_ {
        self.stack_frames(stack).map(|frame| self.frame(frame))
    }

    /// Returns the names of the frames of a stack, innermost first.
    pub fn stack_frames(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        self.stacks.frames(stack.0).map(FrameId)
    }

    /// Returns a frame by its name.
    pub fn frame(&self, frame: FrameId) -> FrameView<'_> {
        let (Function { filename, name }, line) = self.frames.get(frame.0);
        FrameView { filename: &self.texts[filename as usize], line, name: &self.texts[name as usize] }
    }

    /// Returns how many distinct frames there are.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Returns the number of a frame's function, from 0 and below [`function_count`](Self::function_count). Frames of one function have
    /// the same file and name.
    pub fn function(&self, frame: FrameId) -> u32 {
        self.frames.function(frame.0)
    }

    /// Returns how many distinct functions the frames belong to.
    pub fn function_count(&self) -> usize {
        self.frames.functions()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&self.texts[..])
            + self.frames.heap_bytes()
            + self.stacks.heap_bytes()
            + size_of_val(&self.contexts[..])
            + size_of_val(&self.entries[..])
            + size_of_val(&self.blocks[..])
    }

    fn event(&self, entry: &Entry) -> Event {
        let context = &self.contexts[entry.context() as usize];
        Event {
            action: entry.action(),
            address: entry.address,
            size_bytes: entry.size_bytes,
            stream: StreamId::from_raw(context.stream),
            pool_id: context.pool_id,
            time_us: context.is_timed.then_some(entry.time_us),
            stack: entry.stack().map(StackId),
        }
    }

    fn segment_view<'r>(
        &'r self,
        segment: &'r RecordedSegment,
    ) -> (SegmentView, impl Iterator<Item = BlockView> + 'r) {
        let view = SegmentView {
            device: segment.device,
            address: segment.address,
            total_bytes: segment.total_bytes,
            stream: StreamId::from_raw(segment.stream),
            class: segment.class,
            pool_id: segment.pool_id,
            is_expandable: segment.is_expandable,
        };
        let blocks = segment.blocks.iter().cloned().flatten().map(|index| {
            let block = &self.blocks[index as usize];
            BlockView {
                address: block.address,
                size_bytes: block.size_bytes,
                requested_bytes: block.requested_bytes,
                state: block.state,
                stack: block.frames.map(StackId),
            }
        });
        (view, blocks)
    }

    /// Returns the whole as a [`Snapshot`], with everything that the file says. It takes about five times the memory.
    pub fn to_snapshot(&self) -> Snapshot {
        let mut stacks = Stacks { recording: self, built: vec![None; self.stacks.len()] };
        let segments = |stacks: &mut Stacks<'_>, segments: &[RecordedSegment]| {
            segments.iter().map(|segment| stacks.segment(segment)).collect()
        };
        Snapshot {
            segments: segments(&mut stacks, &self.segments),
            device_traces: self.traces.iter().map(|trace| stacks.trace(trace)).collect(),
            allocator_settings: self.settings.clone(),
            external_annotations: self.annotations.clone(),
            host_segments: segments(&mut stacks, &self.host_segments),
            host_traces: stacks.trace(&self.host_trace),
        }
    }
}

/// The stacks of a recording that a [`Snapshot`] was given already.
struct Stacks<'r> {
    recording: &'r Recording,
    built: Vec<Option<Frames>>,
}

impl Stacks<'_> {
    fn frames(&mut self, stack: Option<u32>) -> Option<Frames> {
        let stack = stack?;
        let text = |id: u32| Arc::clone(&self.recording.texts[id as usize]);
        let build = || {
            let frames = self.recording.stacks.frames(stack).map(|frame| {
                let (Function { filename, name }, line) = self.recording.frames.get(frame);
                Frame { filename: text(filename), line, name: text(name) }
            });
            frames.collect()
        };
        Some(Arc::clone(self.built[stack as usize].get_or_insert_with(build)))
    }

    fn trace(&mut self, trace: &Trace) -> Vec<TraceEntry> {
        trace.indices().map(|index| self.entry(index)).collect()
    }

    fn entry(&mut self, index: u32) -> TraceEntry {
        let entry = self.recording.entries[index as usize];
        let context = self.recording.contexts[entry.context() as usize];
        let text = |id: Option<u32>| id.map(|id| Arc::clone(&self.recording.texts[id as usize]));
        TraceEntry {
            action: entry.action(),
            address: entry.address,
            size_bytes: entry.size_bytes,
            stream: StreamId::from_raw(context.stream),
            time_us: context.is_timed.then_some(entry.time_us),
            compile_context: text(context.compile_context),
            user_metadata: text(context.user_metadata),
            pool_id: context.pool_id,
            internal_metadata: text(context.internal_metadata),
            frames: self.frames(entry.stack()),
            forward_frames: self.frames(context.forward_frames),
        }
    }

    fn segment(&mut self, segment: &RecordedSegment) -> Segment {
        Segment {
            device: segment.device,
            address: segment.address,
            total_bytes: segment.total_bytes,
            allocated_bytes: segment.allocated_bytes,
            active_bytes: segment.active_bytes,
            requested_bytes: segment.requested_bytes,
            stream: StreamId::from_raw(segment.stream),
            class: segment.class,
            pool_id: segment.pool_id,
            is_expandable: segment.is_expandable,
            frames: self.frames(segment.frames).unwrap_or_default(),
            blocks: segment.blocks.iter().cloned().flatten().map(|index| self.block(index)).collect(),
        }
    }

    fn block(&mut self, index: u32) -> SegmentBlock {
        let block = self.recording.blocks[index as usize];
        SegmentBlock {
            address: block.address,
            size_bytes: block.size_bytes,
            requested_bytes: block.requested_bytes,
            state: block.state,
            frames: self.frames(block.frames).unwrap_or_default(),
            forward_frames: self.frames(block.forward_frames),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks cost what their frames cost, and nothing that few entries differ in is written for each of them.
    #[test]
    fn distinct_stacks_take_less_than_half_of_their_file() {
        let text = |text: &str| Arc::<str>::from(text);
        let frames: Vec<Frame> =
            (0..4000).map(|line| Frame { filename: text("a.py"), line, name: text("f") }).collect();
        let entries = (0..3000_u64).map(|number| {
            let level = |level: u64| frames[(level * 40 + number * (level + 7) % 40) as usize].clone();
            let mut stack: Vec<Frame> = (0..100).map(level).collect();
            stack.push(frames[number as usize].clone());
            let frames = Some(stack.into());
            TraceEntry { frames, ..TraceEntry::new(Action::Alloc, number << 9, 512, StreamId::from_raw(0)) }
        });
        let whole = Snapshot { device_traces: vec![entries.collect()], ..Snapshot::default() };
        let file = whole.to_pickle();
        let recording = Recording::read(&file[..]).expect("it was just written");
        assert_eq!((recording.stacks.len(), recording.contexts.len()), (3000, 1));
        assert!(recording.heap_bytes() < file.len() / 2, "{} of {}", recording.heap_bytes(), file.len());
        assert!(recording.to_snapshot() == whole);
    }
}
