//! The content of a page, as plain data.
//!
//! Events are numbered from 0 for each device. Whatever has a lifetime says with which event it began (`None`: before the
//! first) and with which it ended (`None`: not before the last). Tables (streams, pools, categories, stacks) are named by
//! index.

/// All that is on a page.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PageModel {
    /// The names of the files that are shown.
    pub title: String,
    /// One device of one rank each, in the order of the selector.
    pub devices: Vec<DevicePage>,
    /// The distinct frames.
    pub frames: Vec<StackFrame>,
    /// The distinct stacks.
    pub stacks: Vec<Stack>,
    /// The names of the categories of blocks (`parameters`, `activations`, …).
    pub categories: Vec<String>,
}

/// One stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Stack {
    /// Indices into [`PageModel::frames`], innermost first.
    pub frames: Vec<u32>,
    /// The one of them that a reader is shown where there is room for one: its place in `frames`. Of no meaning where there are none.
    pub telling: u32,
}

/// One frame of a stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StackFrame {
    /// The source file.
    pub file: String,
    /// The line in it, from 1; 0 if it is not known.
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
    /// The time of each event, in microseconds since 1970, or nothing: old traces have no times.
    pub times_us: Vec<i64>,
    /// The names of the streams.
    pub streams: Vec<String>,
    /// The names of the pools, the shared one first.
    pub pools: Vec<String>,
    /// Every block that was ever live, in any order. Those that begin with the same event are stacked in this order.
    pub blocks: Vec<BlockLife>,
    /// Every segment that ever was, in any order. Of an expandable one, each mapped range.
    pub segments: Vec<SegmentLife>,
    /// The other events.
    pub marks: Vec<Mark>,
    /// Further curves over the timeline: what other settings would have reserved.
    pub curves: Vec<Curve>,
    /// The headline, first the most important.
    pub figures: Vec<Figure>,
    /// Sentences for people: what ate the memory, what to change, what the page cannot know.
    pub findings: Vec<String>,
    /// The size of the GPU, in bytes, if it is known: a line in the chart.
    pub gpu_bytes: Option<u64>,
    /// The stages that the program marked.
    pub stages: Vec<StageRow>,
    /// The settings of the allocator when this was recorded: names and values.
    pub settings: Vec<(String, String)>,
}

/// A stage that the program marked, with all its times. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StageRow {
    /// Its name.
    pub name: String,
    /// The number of times that it was entered.
    pub times: u32,
    /// The time that it took, all together, in microseconds.
    pub duration_us: i64,
    /// The most that was live at once in it.
    pub peak_live_bytes: u64,
    /// The most that was live at once in it beyond what was live at its start.
    pub peak_own_bytes: u64,
    /// The most that was reserved at once in it.
    pub peak_reserved_bytes: u64,
    /// After how many events most was live in it.
    pub peak_position: u32,
}

/// The life of one block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockLife {
    /// The event that allocated it; `None` if it was live before the first.
    pub allocated: Option<u32>,
    /// The event with which its owner gave it up; `None` if that did not happen.
    pub freed: Option<u32>,
    /// The event with which it was free, not before `freed`; `None` if that did not happen. Until then it is active and
    /// counts as live, from `freed` on as pending.
    pub completed: Option<u32>,
    /// The address at which it begins.
    pub address: u64,
    /// The bytes that it takes in its segment.
    pub size_bytes: u64,
    /// The requested bytes, which are live.
    pub requested_bytes: u64,
    /// An index into [`DevicePage::streams`].
    pub stream: u16,
    /// An index into [`DevicePage::pools`].
    pub pool: u16,
    /// An index into [`PageModel::categories`].
    pub category: u16,
    /// The place where it was allocated: an index into [`PageModel::stacks`].
    pub stack: Option<u32>,
}

/// The life of one segment, or of one mapped range of an expandable one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SegmentLife {
    /// The event that took it from the driver; `None` if it was there before the first.
    pub taken: Option<u32>,
    /// The event that gave it back; `None` if that did not happen.
    pub returned: Option<u32>,
    /// The address at which it begins.
    pub address: u64,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// An index into [`DevicePage::streams`].
    pub stream: u16,
    /// An index into [`DevicePage::pools`].
    pub pool: u16,
    /// Whether it is a range of an expandable segment.
    pub is_expandable: bool,
}

/// Something that happened at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// With which event.
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
    /// A scope began or ended, or something was said of a block.
    Annotation,
}

/// A curve over the timeline, in steps.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Curve {
    /// The name of the curve: `reserved with expandable_segments:True`.
    pub name: String,
    /// Whether it is an estimate, drawn so and said so.
    pub is_estimate: bool,
    /// From the event of each step on it has that many bytes. Events ascend; `None` is before the first.
    pub steps: Vec<(Option<u32>, u64)>,
}

/// One figure of the headline.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The name that `--json` has for it.
    pub key: String,
    /// The label for people.
    pub label: String,
    /// The value.
    pub value: FigureValue,
    /// Half a line below it; may be empty.
    pub note: String,
    /// The tone, which says whether it needs attention.
    pub tone: Tone,
}

/// The value of a [`Figure`].
#[derive(Clone, PartialEq, Debug)]
pub enum FigureValue {
    /// A number of bytes.
    Bytes(u64),
    /// A number of things.
    Count(u64),
    /// A share of a whole, from 0 to 1.
    Share(f64),
    /// Anything else.
    Text(String),
}

/// The way in which a [`Figure`] is shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Tone {
    /// As any other.
    #[default]
    Plain,
    /// As one to look at.
    Warning,
    /// As what is wrong.
    Bad,
}
