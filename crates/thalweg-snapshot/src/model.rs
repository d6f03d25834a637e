//! The dictionary of PyTorch's `_snapshot()`, as Rust types.
//!
//! Each field names its key. Values that old versions leave out are optional here if their absence is information (an entry
//! without a time, without stacks), and have a plain default otherwise. Texts and stacks are shared: a trace has a million
//! entries and a few thousand distinct stacks.

use std::sync::Arc;

use super::{BlockState, SegmentSnapshot};
use crate::SizeClass;
use crate::StreamId;

/// The memory of a process: its present state, and the events that led to it.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Snapshot {
    /// `segments`: of all devices.
    pub segments: Vec<Segment>,
    /// `device_traces`: the events of each device, oldest first.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// `allocator_settings`: the configuration of the allocator, by name.
    pub allocator_settings: Vec<(Arc<str>, SettingValue)>,
    /// `external_annotations`: scopes that a profiler or a user marked.
    pub external_annotations: Vec<Annotation>,
    /// `host_segments`: pinned host memory, one block each.
    pub host_segments: Vec<Segment>,
    /// `host_traces`: the events of pinned host memory, oldest first.
    pub host_traces: Vec<TraceEntry>,
}

impl Snapshot {
    /// Adds the memory of one device, as described by its allocator. The result stays sorted if devices are added in order.
    pub fn add_segments(&mut self, device: i32, segments: &[SegmentSnapshot]) {
        self.segments.extend(segments.iter().map(|segment| Segment::of(device, segment)));
    }
}

/// A range that was taken from the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// `device`: the number of the device; -1 for the host.
    pub device: i32,
    /// `address`: the address at which the segment begins.
    pub address: u64,
    /// `total_size`: the size, in bytes.
    pub total_bytes: u64,
    /// `allocated_size`: the bytes that callers hold.
    pub allocated_bytes: u64,
    /// `active_size`: the bytes that callers hold or that are pending.
    pub active_bytes: u64,
    /// `requested_size`: the requested bytes of the active blocks, before rounding.
    pub requested_bytes: u64,
    /// `stream`: the stream that all the segment's blocks belong to.
    pub stream: StreamId,
    /// `segment_type`: whether the segment serves small or large requests.
    pub class: SizeClass,
    /// `segment_pool_id`: (0, 0) for the shared pool.
    pub pool_id: (u64, u64),
    /// `is_expandable`: whether the segment is a mapped range that may grow.
    pub is_expandable: bool,
    /// `frames`: the stack of the call that took the segment from the driver.
    pub frames: Frames,
    /// `blocks`: the segment's blocks in address order, without gaps.
    pub blocks: Vec<SegmentBlock>,
}

impl Segment {
    fn of(device: i32, segment: &SegmentSnapshot) -> Self {
        let sum = |of: fn(&super::BlockSnapshot) -> u64| segment.blocks.iter().map(of).sum();
        Self {
            device,
            address: segment.address,
            total_bytes: segment.total_bytes,
            allocated_bytes: sum(|block| match block.state {
                BlockState::ActiveAllocated => block.size_bytes,
                BlockState::ActivePendingFree | BlockState::Inactive => 0,
            }),
            active_bytes: sum(|block| match block.state {
                BlockState::ActiveAllocated | BlockState::ActivePendingFree => block.size_bytes,
                BlockState::Inactive => 0,
            }),
            requested_bytes: sum(|block| block.requested_bytes),
            stream: segment.stream,
            class: segment.class,
            pool_id: segment.pool.map_or((0, 0), |pool| (0, pool.raw())),
            is_expandable: segment.is_expandable,
            frames: Frames::default(),
            blocks: segment.blocks.iter().map(SegmentBlock::of).collect(),
        }
    }
}

/// A block of a [`Segment`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentBlock {
    /// `address`: the address at which the block begins.
    pub address: u64,
    /// `size`: the size, in bytes.
    pub size_bytes: u64,
    /// `requested_size`: the requested bytes; for an inactive block, those of its last use.
    pub requested_bytes: u64,
    /// `state`: the state of the block.
    pub state: BlockState,
    /// `frames`: the stack of the block's allocation.
    pub frames: Frames,
    /// `forward_frames`: for a block of a backward pass, the stack of the corresponding call in the forward pass.
    pub forward_frames: Option<Frames>,
}

impl SegmentBlock {
    fn of(block: &super::BlockSnapshot) -> Self {
        Self {
            address: block.address,
            size_bytes: block.size_bytes,
            requested_bytes: block.requested_bytes,
            state: block.state,
            frames: Frames::default(),
            forward_frames: None,
        }
    }
}

/// An event of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// `action`: the kind of event.
    pub action: Action,
    /// `addr`: the address of the memory. For [`Action::Oom`], `device_free`: the number of bytes that were left on the device.
    pub address: u64,
    /// `size`: the size in bytes: for allocations and frees the requested size, before rounding; for segments the size of the
    /// segment.
    pub size_bytes: u64,
    /// `stream`: the stream that the memory belongs to.
    pub stream: StreamId,
    /// `time_us`: microseconds since 1970.
    pub time_us: Option<i64>,
    /// `compile_context`: the compiled region that was running; `N/A` if there was none.
    pub compile_context: Option<Arc<str>>,
    /// `user_metadata`: the text that the program had attached to the thread's entries.
    pub user_metadata: Option<Arc<str>>,
    /// `pool_id`: the pool of the memory.
    pub pool_id: Option<(u64, u64)>,
    /// `internal_metadata`: the allocator's own remark.
    pub internal_metadata: Option<Arc<str>>,
    /// `frames`: the stack of the event.
    pub frames: Option<Frames>,
    /// `forward_frames`: see [`SegmentBlock::forward_frames`].
    pub forward_frames: Option<Frames>,
}

impl TraceEntry {
    /// Creates an entry that has an action and its memory, and nothing else.
    pub fn new(action: Action, address: u64, size_bytes: u64, stream: StreamId) -> Self {
        Self {
            action,
            address,
            size_bytes,
            stream,
            time_us: None,
            compile_context: None,
            user_metadata: None,
            pool_id: None,
            internal_metadata: None,
            frames: None,
            forward_frames: None,
        }
    }
}

/// The kind of event of a [`TraceEntry`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Action {
    /// A caller got a block.
    Alloc,
    /// The caller freed the memory. It may become free later, because of uses on other streams.
    FreeRequested,
    /// The block is free.
    FreeCompleted,
    /// A segment was taken from the driver.
    SegmentAlloc,
    /// A segment was returned to the driver.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken here.
    Snapshot,
    /// A request failed for lack of memory.
    Oom,
    /// A text was attached to an existing block.
    Annotate,
}

impl Action {
    /// All actions, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::Annotate,
    ];

    /// Returns PyTorch's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }

    /// Returns the action with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// A stack, innermost frame first. Cheap to copy.
pub type Frames = Arc<[Frame]>;

/// A frame of a stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// `filename`: the source file.
    pub filename: Arc<str>,
    /// `line`: the line, from 1; 0 if it is not known.
    pub line: u32,
    /// `name`: the function.
    pub name: Arc<str>,
}

/// The start or the end of a scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// `name`: of the scope.
    pub name: Arc<str>,
    /// `stage`: `START` or `END` of the scope.
    pub stage: Arc<str>,
    /// `device`: the device that the scope concerns.
    pub device: i32,
    /// `time_us`: microseconds since 1970.
    pub time_us: i64,
}

/// The value of one of the [`allocator_settings`](Snapshot::allocator_settings).
#[derive(Clone, PartialEq, Debug)]
pub enum SettingValue {
    /// No value is set.
    None,
    /// A switch.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(Arc<str>),
    /// Numbers by name: `roundup_power2_divisions`, by the size in MiB that each applies to.
    Table(Vec<(Arc<str>, i64)>),
}
