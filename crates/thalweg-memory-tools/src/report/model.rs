//! The content of a page, as plain data.
//!
//! Events are numbered from 0 for each device. An object with a lifetime contains the event with which it began (`None`: before
//! the first) and the event with which it ended (`None`: not before the last). Entries of tables (streams, pools, categories,
//! stacks) are referred to by index.

/// The complete content of a page.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PageModel {
    /// The names of the files that are shown.
    pub title: String,
    /// The devices of all ranks, in the order of the selector.
    pub devices: Vec<DevicePage>,
    /// The distinct frames.
    pub frames: Vec<StackFrame>,
    /// The distinct stacks.
    pub stacks: Vec<Stack>,
    /// The names of the categories of blocks (`parameters`, `activations`, …).
    pub categories: Vec<String>,
}

/// A stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Stack {
    /// Indices into [`PageModel::frames`], innermost first.
    pub frames: Vec<u32>,
    /// The frame that is shown if there is room for only one: its index in `frames`. Meaningless if there are no frames.
    pub frame: u32,
}

/// A frame of a stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StackFrame {
    /// The source file.
    pub file: String,
    /// The line in the file, from 1; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// The memory of one device of one rank.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct DevicePage {
    /// The name in the selector: `rank 0, GPU 0`.
    pub name: String,
    /// The number of events.
    pub event_count: u32,
    /// The time of each event, in microseconds since 1970; empty for old traces, which have no times.
    pub times_us: Vec<i64>,
    /// The names of the streams.
    pub streams: Vec<String>,
    /// The names of the pools, the shared one first.
    pub pools: Vec<String>,
    /// Every block that was ever live, in any order. Blocks that begin with the same event are stacked in this order.
    pub blocks: Vec<BlockLife>,
    /// Every segment that ever existed, in any order. Of an expandable one, each mapped range.
    pub segments: Vec<SegmentLife>,
    /// The other events.
    pub marks: Vec<Mark>,
    /// Further curves over the timeline: the memory that other settings would have reserved.
    pub curves: Vec<Curve>,
    /// The headline figures, the most important first.
    pub figures: Vec<Figure>,
    /// Sentences for people: which code used the memory, what to change, what the page cannot know.
    pub findings: Vec<String>,
    /// The size of the GPU, in bytes, if it is known: a line in the chart.
    pub gpu_bytes: Option<u64>,
    /// The stages that the program marked.
    pub stages: Vec<StageRow>,
    /// The settings of the allocator during the recording: names and values.
    pub settings: Vec<(String, String)>,
}

/// A stage that the program marked, with all its occurrences. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StageRow {
    /// The name of the stage.
    pub name: String,
    /// The number of times that the scope was entered.
    pub times: u32,
    /// The total time spent in the scope, in microseconds.
    pub duration_us: i64,
    /// The peak of live memory in the scope.
    pub peak_live_bytes: u64,
    /// The greatest amount by which live memory in the scope exceeded that at the scope's start.
    pub peak_own_bytes: u64,
    /// The peak of reserved memory in the scope.
    pub peak_reserved_bytes: u64,
    /// The number of events before the peak of live memory.
    pub peak_position: u32,
}

/// The life of one block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockLife {
    /// The event that allocated the block; `None` if the block was live before the first event.
    pub allocated: Option<u32>,
    /// The event in which the owner freed the block; `None` if that did not happen.
    pub freed: Option<u32>,
    /// The event in which the block became free, not before `freed`; `None` if that did not happen. Until then the block is
    /// active: it counts as live until `freed`, and as pending from there on.
    pub completed: Option<u32>,
    /// The address at which the block begins.
    pub address: u64,
    /// The bytes that the block takes in its segment.
    pub size_bytes: u64,
    /// The requested bytes, which count as live.
    pub requested_bytes: u64,
    /// The stream: an index into [`DevicePage::streams`].
    pub stream: u16,
    /// The pool: an index into [`DevicePage::pools`].
    pub pool: u16,
    /// The category: an index into [`PageModel::categories`].
    pub category: u16,
    /// The stack of the block's allocation: an index into [`PageModel::stacks`].
    pub stack: Option<u32>,
}

/// The life of one segment, or of one mapped range of an expandable one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SegmentLife {
    /// The event that took the segment from the driver; `None` if the segment existed before the first event.
    pub taken: Option<u32>,
    /// The event that returned the segment to the driver; `None` if that did not happen.
    pub returned: Option<u32>,
    /// The address at which the segment begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The stream: an index into [`DevicePage::streams`].
    pub stream: u16,
    /// The pool: an index into [`DevicePage::pools`].
    pub pool: u16,
    /// Whether the segment is a range of an expandable segment.
    pub is_expandable: bool,
}

/// An event at one moment that is marked on the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The number of the event.
    pub event: u32,
    /// The kind of event.
    pub kind: MarkKind,
    /// The text for the event.
    pub text: String,
}

/// The kind of a [`Mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkKind {
    /// A request failed for lack of memory.
    OutOfMemory,
    /// A snapshot was taken.
    Snapshot,
    /// A scope began or ended, or a text was attached to a block.
    Annotation,
}

/// A curve over the timeline, in steps.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Curve {
    /// The name of the curve: `reserved with expandable_segments:True`.
    pub name: String,
    /// Whether the curve is an estimate, which is drawn differently and labelled.
    pub is_estimate: bool,
    /// The steps: from each event on, the curve has that many bytes. Events ascend; `None` is before the first.
    pub steps: Vec<(Option<u32>, u64)>,
}

/// A figure of the headline.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The name of the figure in the output of `--json`.
    pub key: String,
    /// The label for people.
    pub label: String,
    /// The value.
    pub value: FigureValue,
    /// A short note below the value; may be empty.
    pub note: String,
    /// The tone, which shows whether the figure needs attention.
    pub tone: Tone,
}

/// The value of a [`Figure`].
#[derive(Clone, PartialEq, Debug)]
pub enum FigureValue {
    /// A number of bytes.
    Bytes(u64),
    /// A number of objects.
    Count(u64),
    /// A share of a whole, from 0 to 1.
    Share(f64),
    /// Anything else.
    Text(String),
}

/// The way in which a [`Figure`] is shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Tone {
    /// Not highlighted.
    #[default]
    Plain,
    /// Highlighted as something that needs attention.
    Warning,
    /// Highlighted as wrong.
    Bad,
}
