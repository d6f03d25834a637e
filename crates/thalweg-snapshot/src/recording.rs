//! Functions that read the records of a [`Recording`].

use std::sync::Arc;

use super::frames::Function;
use super::records::{Entry, Gap, Mended, RecordedSegment, Recording, Trace};
use super::{Action, Annotation, BlockState, SettingValue};
use crate::SizeClass;
use crate::StreamId;

/// An entry of a trace of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The kind of event.
    pub action: Action,
    /// The address of the memory; for [`Action::Oom`], the number of bytes that were left on the device.
    pub address: u64,
    /// The size in bytes: for allocations and frees the requested size, for segments the size of the segment.
    pub size_bytes: u64,
    /// The stream that the memory belongs to.
    pub stream: StreamId,
    /// The pool, if the version records it.
    pub pool_id: Option<(u64, u64)>,
    /// Microseconds since 1970, if the version records it.
    pub time_us: Option<i64>,
    /// The stack, for [`Recording::stack`].
    pub stack: Option<StackId>,
}

/// The remarks of the program and the allocator on an entry of a trace of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remarks<'r> {
    /// The compiled region that was running.
    pub compile_context: Option<&'r str>,
    /// The text that the program had attached to the thread's entries.
    pub user_metadata: Option<&'r str>,
    /// The allocator's own remark.
    pub internal_metadata: Option<&'r str>,
}

/// The identifier of a stack of a [`Recording`]. Equal stacks have equal identifiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub(super) u32);

impl StackId {
    /// Returns the number of the stack, from 0. The number is small, and is the same each time that the file is read.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The identifier of a frame of the stacks of a [`Recording`]. Equal frames have equal identifiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(u32);

impl FrameId {
    /// Returns the number of the frame, from 0 and below [`Recording::frame_count`]. It is the same each time that the file is
    /// read.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A frame of a stack of a [`Recording`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameView<'r> {
    /// The source file.
    pub filename: &'r str,
    /// The line, from 1; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub name: &'r str,
}

/// A segment of a [`Recording`]. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentView {
    /// The device's number.
    pub device: i32,
    /// The address at which the segment begins.
    pub address: u64,
    /// The size.
    pub total_bytes: u64,
    /// The stream that the segment's blocks belong to.
    pub stream: StreamId,
    /// The class of the requests that the segment serves: small or large.
    pub class: SizeClass,
    /// The pool; (0, 0) for the shared one.
    pub pool_id: (u64, u64),
    /// Whether the segment is a mapped range that may grow.
    pub is_expandable: bool,
}

/// A block of a [`Recording`]. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// The address at which the block begins.
    pub address: u64,
    /// The size.
    pub size_bytes: u64,
    /// The bytes that were requested.
    pub requested_bytes: u64,
    /// The state of the block.
    pub state: BlockState,
    /// The stack of the block's allocation.
    pub stack: Option<StackId>,
}

impl Recording {
    /// Returns the length of the pickle or JSON in bytes, after decompression.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the devices that appear in the file, in order.
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

    /// Returns the number of entries of a device's trace; 0 if there is none.
    pub fn trace_len(&self, device: usize) -> usize {
        self.mended.get(device).map_or(0, |mended| mended.trace.len())
    }

    /// Returns the trace of a device, oldest first; empty if there is none. If it has a [gap](Self::gap), the frees and
    /// allocations that must have happened in it are included; if it never records when a free is complete, a free is complete
    /// when it is requested.
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

    /// Returns the remarks on each entry of a device's trace, in the same order.
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

    /// Returns the position where the trace of a device is inconsistent because entries in its middle are missing.
    pub fn gap(&self, device: usize) -> Option<Gap> {
        self.mended.get(device)?.gap
    }

    /// Returns whether the trace of a device never records when a free is complete (`free_completed` was left out of the
    /// recording).
    pub fn leaves_out_ends(&self, device: usize) -> bool {
        self.mended.get(device).is_some_and(|mended| mended.ends_at_request)
    }

    /// Returns the parts of the file that were not understood and left out, with their counts: for example entries with an action
    /// of a later version.
    pub fn left_out(&self) -> &[(String, u64)] {
        &self.left_out
    }

    /// Returns the events of pinned host memory, oldest first.
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

    /// Returns pinned host memory, if its history was recorded.
    pub fn host_segments(
        &self,
    ) -> impl Iterator<Item = (SegmentView, impl Iterator<Item = BlockView> + '_)> + '_ {
        self.host_segments.iter().map(|segment| self.segment_view(segment))
    }

    /// Returns the configuration of the allocator, by name; empty if the version does not record it.
    pub fn settings(&self) -> &[(Arc<str>, SettingValue)] {
        &self.settings
    }

    /// Returns the scopes that a profiler or a user marked.
    pub fn annotations(&self) -> &[Annotation] {
        &self.annotations
    }

    /// Returns the frames of a stack, innermost first.
    pub fn stack(&self, stack: StackId) -> impl Iterator<Item = FrameView<'_>> + '_ {
        self.stack_frames(stack).map(|frame| self.frame(frame))
    }

    /// Returns the identifiers of the frames of a stack, innermost first.
    pub fn stack_frames(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        self.stacks.frames(stack.0).map(FrameId)
    }

    /// Returns a frame by its identifier.
    pub fn frame(&self, frame: FrameId) -> FrameView<'_> {
        let (Function { filename, name }, line) = self.frames.get(frame.0);
        FrameView { filename: &self.texts[filename as usize], line, name: &self.texts[name as usize] }
    }

    /// Returns the number of distinct frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Returns the number of a frame's function, from 0 and below [`function_count`](Self::function_count). Frames of one
    /// function have the same file and name.
    pub fn function(&self, frame: FrameId) -> u32 {
        self.frames.function(frame.0)
    }

    /// Returns the number of distinct functions of the frames.
    pub fn function_count(&self) -> usize {
        self.frames.functions()
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
}
