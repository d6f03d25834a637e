//! The dictionary of PyTorch's `_snapshot()`, as Rust types.
//!
//! Each field says which key it is. What old versions leave out is optional here where its absence says something (an entry
//! without a time, without stacks), and has a plain default elsewhere. Texts and stacks are shared: a trace has a million
//! entries and a few thousand distinct stacks.

use std::sync::Arc;

use super::{BlockState, SegmentSnapshot};
use crate::SizeClass;
use crate::StreamId;

/// The memory of a process: what there is, and what happened.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Snapshot {
    /// `segments`: of all devices.
    pub segments: Vec<Segment>,
    /// `device_traces`: for each device what happened, oldest first.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// `allocator_settings`: how the allocator was configured, by name.
    pub allocator_settings: Vec<(Arc<str>, SettingValue)>,
    /// `external_annotations`: scopes that a profiler or a user marked.
    pub external_annotations: Vec<Annotation>,
    /// `host_segments`: pinned host memory, one block each.
    pub host_segments: Vec<Segment>,
    /// `host_traces`: what happened to pinned host memory, oldest first.
    pub host_traces: Vec<TraceEntry>,
}

impl Snapshot {
    /// Adds the memory of one device, as its allocator describes it. The result stays sorted if devices come in order.
    pub fn add_segments(&mut self, device: i32, segments: &[SegmentSnapshot]) {
        self.segments.extend(segments.iter().map(|segment| Segment::of(device, segment)));
    }
}

/// One range that was taken from the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// `device`: its number; -1 for the host.
    pub device: i32,
    /// `address`: where it begins.
    pub address: u64,
    /// `total_size`: its size, in bytes.
    pub total_bytes: u64,
    /// `allocated_size`: of these, in the hands of callers.
    pub allocated_bytes: u64,
    /// `active_size`: of these, in the hands of callers or pending.
    pub active_bytes: u64,
    /// `requested_size`: what was asked for of the active ones, before rounding.
    pub requested_bytes: u64,
    /// `stream`: that all its blocks belong to.
    pub stream: StreamId,
    /// `segment_type`: whether it serves small or large requests.
    pub class: SizeClass,
    /// `segment_pool_id`: (0, 0) for the shared pool.
    pub pool_id: (u64, u64),
    /// `is_expandable`: whether it is a mapped range that may grow.
    pub is_expandable: bool,
    /// `frames`: where it was taken.
    pub frames: Frames,
    /// `blocks`: in address order, without a gap.
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

/// One block of a [`Segment`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentBlock {
    /// `address`: where it begins.
    pub address: u64,
    /// `size`: in bytes.
    pub size_bytes: u64,
    /// `requested_size`: of these, asked for; of an inactive block, when it was last used.
    pub requested_bytes: u64,
    /// `state`: what has it.
    pub state: BlockState,
    /// `frames`: where it was allocated.
    pub frames: Frames,
    /// `forward_frames`: where the forward pass made what this belongs to the backward pass of.
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

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// `action`: what.
    pub action: Action,
    /// `addr`: to which memory. Of [`Action::Oom`] it is `device_free`: how many bytes the device had left.
    pub address: u64,
    /// `size`: in bytes. Of allocations and frees it is what was asked for, before rounding; of segments it is their size.
    pub size_bytes: u64,
    /// `stream`: that the memory belongs to.
    pub stream: StreamId,
    /// `time_us`: microseconds since 1970.
    pub time_us: Option<i64>,
    /// `compile_context`: the compiled region that was running; `N/A` if there was none.
    pub compile_context: Option<Arc<str>>,
    /// `user_metadata`: what the thread had been told to write beside its entries.
    pub user_metadata: Option<Arc<str>>,
    /// `pool_id`: of the pool.
    pub pool_id: Option<(u64, u64)>,
    /// `internal_metadata`: what the allocator itself has to say.
    pub internal_metadata: Option<Arc<str>>,
    /// `frames`: where in the program.
    pub frames: Option<Frames>,
    /// `forward_frames`: see [`SegmentBlock::forward_frames`].
    pub forward_frames: Option<Frames>,
}

impl TraceEntry {
    /// Creates an entry that says no more than what happened to which memory.
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
    /// The caller gave it back. Uses on other streams may keep it from being free.
    FreeRequested,
    /// It is free.
    FreeCompleted,
    /// A segment was taken from the driver.
    SegmentAlloc,
    /// A segment was given back to the driver.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken here.
    Snapshot,
    /// A request failed for lack of memory.
    Oom,
    /// Something was said of a block after the fact.
    Annotate,
}

impl Action {
    /// All of them, in the order of their declaration.
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

/// One frame of a stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// `filename`: the source file.
    pub filename: Arc<str>,
    /// `line`: from 1; 0 if it is not known.
    pub line: u32,
    /// `name`: the function.
    pub name: Arc<str>,
}

/// The start or the end of a scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// `name`: of the scope.
    pub name: Arc<str>,
    /// `stage`: `START` or `END`.
    pub stage: Arc<str>,
    /// `device`: that it concerns.
    pub device: i32,
    /// `time_us`: microseconds since 1970.
    pub time_us: i64,
}

/// The value of one of the [`allocator_settings`](Snapshot::allocator_settings).
#[derive(Clone, PartialEq, Debug)]
pub enum SettingValue {
    /// Nothing was set.
    None,
    /// A switch.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(Arc<str>),
    /// Numbers by name: `roundup_power2_divisions` by the size in MiB that they hold for.
    Table(Vec<(Arc<str>, i64)>),
}
