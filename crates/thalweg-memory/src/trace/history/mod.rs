//! The history of the memory, event by event, for snapshots.
//!
//! Finding the cause of a peak requires each allocation and free, in order, with its time and its stack. A program that does not
//! record must not pay for it. So an event is a record of 64 bytes in a ring, and everything that takes time (names of functions,
//! merging the rings, writing a file) is postponed until a snapshot is requested.
//!
//! ```text
//!  stream 1 ─▶ Ring ─┐
//!  stream 2 ─▶ Ring ─┼─▶ Merge ─▶ Vec<TraceEntry> ─▶ Snapshot
//!  stream 3 ─▶ Ring ─┘     ▲
//!                          └ texts by number, stacks by number: History
//! ```
//!
//! # Order without a counter
//!
//! Streams do not wait for each other, so each has a ring of its own, which its owner writes with its own lock held. The time
//! puts them in order. A shared counter would be exact and cost more than the allocation that it counts, since every event of
//! every thread would move its cache line. A monotonic clock is read without sharing anything, and if one event has seen the
//! effect of another (a lock handed over, a message), its time is not before the other's. The times are not equal either, since
//! passing anything between threads takes longer than a tick of the clock, which is a nanosecond on Linux. Within a ring, events
//! with equal times stay in order anyway.
//!
//! A [`Merge`] records the time at which it begins and leaves out later events. Since an event's time is taken under the lock of
//! its ring, and the rings are read under their locks one after another, the result is a consistent cut: it contains no event
//! without all events that this event can have seen.
//!
//! # Bounds
//!
//! The capacity of each ring is the limit on all events together; memory is allocated piece by piece, as the ring fills; then
//! each new event overwrites the oldest. Recording allocates nothing but these pieces. Texts ([`TextId`]) are kept as long as an
//! event or a thread refers to them.
//!
//! # Switching
//!
//! [`History::configure`] may be called at any time. Rings notice the change at their next event, by comparing a number in the
//! word that they read anyway to decide whether to record.
//!
//! The owners of the rings, and the kinds of events, are defined elsewhere.

mod ring;
#[cfg(feature = "backtrace")]
mod rust_stacks;
mod texts;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ring::Entry;
use texts::Held;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::{Action, Annotation, Frame, Frames, TraceEntry};

use crate::ids::StreamId;

pub use ring::Ring;
#[cfg(feature = "backtrace")]
pub use rust_stacks::RustStacks;
pub use texts::{CompileRegion, TextId, set_user_metadata, user_metadata};

/// The amount that is recorded: `enabled` of PyTorch's `_record_memory_history`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Enabled {
    /// Nothing is recorded, and earlier records are dropped.
    #[default]
    Off,
    /// The stacks of the allocations of present blocks, but no events.
    State,
    /// Events too.
    All,
}

/// The occasions on which a stack is taken, if there is a source of stacks: `context` of PyTorch's `_record_memory_history`. Each
/// level includes the levels before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum ContextLevel {
    /// No stack is taken.
    Never,
    /// A stack is taken at allocations, for the blocks and segments of a snapshot.
    State,
    /// A stack is taken at allocations, for live blocks and also for the events of their allocation.
    Alloc,
    /// A stack is also taken when memory is freed.
    #[default]
    All,
}

/// A set of actions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ActionSet(u16);

impl ActionSet {
    /// The set of all ten actions.
    const ALL: Self = Self((1 << Action::ALL.len()) - 1);

    /// Returns the set without `other`.
    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether `action` is in the set.
    pub const fn contains(self, action: Action) -> bool {
        self.0 >> action as u16 & 1 == 1
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> Self {
        Self(actions.into_iter().fold(0, |bits, action| bits | 1 << action as u16))
    }
}

/// The settings of a [`History`]: the arguments of PyTorch's `_record_memory_history`. The default records nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistorySettings {
    /// Whether anything is recorded, and how much.
    pub enabled: Enabled,
    /// The occasions on which stacks are taken, if there is a [source](History::set_stack_source) of stacks.
    pub context: ContextLevel,
    /// The number of events that are kept, the newest ones; at least 1.
    pub max_entries: usize,
    /// The actions whose events are left out.
    pub skip_actions: ActionSet,
    /// Whether to forget earlier records.
    pub clear_history: bool,
    /// Whether to record which compiled region is running.
    pub compile_context: bool,
    /// Whether to keep the scopes that [`History::annotate_scope`] records.
    pub record_annotations: bool,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self {
            enabled: Enabled::Off,
            context: ContextLevel::All,
            max_entries: usize::MAX,
            skip_actions: ActionSet::default(),
            clear_history: false,
            compile_context: false,
            record_annotations: false,
        }
    }
}

/// The identifier of a stack that a [`StackSource`] took.
pub type StackId = NonZeroU32;

/// A source of stacks: of the Rust program itself, or of an interpreter that calls it.
pub trait StackSource: Send + Sync {
    /// Takes the calling thread's stack and returns an identifier; `None` if there is no stack. Equal stacks should get equal
    /// identifiers, since an identifier is valid for as long as anything refers to it
    /// ([`stacks_in_use`](crate::DeviceAllocator::stacks_in_use)). Called at every event that has a stack, without any lock of
    /// the allocator; names are looked up in [`frames`](Self::frames).
    fn capture(&self) -> Option<StackId>;

    /// Returns the frames of a stack, innermost first. Called when a snapshot is made, once for each stack in it.
    fn frames(&self, stack: StackId) -> Vec<Frame>;
}

/// An event, as the code that caused it reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The action.
    pub action: Action,
    /// The address of the memory. For [`Action::Oom`]: the number of bytes that were left on the device.
    pub address: u64,
    /// The size in bytes, as in [`TraceEntry::size_bytes`].
    pub size_bytes: u64,
    /// The stream that the memory belongs to.
    pub stream: StreamId,
    /// The pool that the memory belongs to: (0, 0) for the shared one.
    pub pool_id: (u64, u64),
    /// The stack that [`History::stack_of_allocation`] or [`History::stack_of_free`] returned.
    pub stack: Option<StackId>,
    /// The text of the event, which replaces the thread's own [`user_metadata`]: for [`Action::Annotate`].
    pub metadata: Option<TextId>,
    /// Whether the caller had requested this very address. PyTorch's name for this is `mallocWithAddress`.
    pub exact_address: bool,
}

impl Event {
    /// Creates an event of the shared pool, without stack or text.
    pub const fn new(action: Action, address: u64, size_bytes: u64, stream: StreamId) -> Self {
        Self {
            action,
            address,
            size_bytes,
            stream,
            pool_id: (0, 0),
            stack: None,
            metadata: None,
            exact_address: false,
        }
    }
}

/// The word that a ring reads before it records: the actions to record, some switches, and the number of changes of the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mode(u64);

impl Mode {
    const STACK_OF_ALLOCATION: u64 = 1 << 16;
    const STACK_IN_EVENT: u64 = 1 << 17;
    const STACK_OF_FREE: u64 = 1 << 18;
    const COMPILE_CONTEXT: u64 = 1 << 19;
    const ON: u64 = 1 << 20;

    fn of(settings: &HistorySettings, changes: u32) -> Self {
        let on = settings.enabled != Enabled::Off;
        let events = settings.enabled == Enabled::All;
        let actions =
            if events { ActionSet::ALL.without(settings.skip_actions) } else { ActionSet::default() };
        let stacks = |level| on && settings.context >= level;
        let bit = |bit, is_set| if is_set { bit } else { 0 };
        Self(
            u64::from(actions.0)
                | bit(Self::STACK_OF_ALLOCATION, stacks(ContextLevel::State))
                | bit(Self::STACK_IN_EVENT, events && stacks(ContextLevel::Alloc))
                | bit(Self::STACK_OF_FREE, events && stacks(ContextLevel::All))
                | bit(Self::COMPILE_CONTEXT, settings.compile_context)
                | bit(Self::ON, on)
                | u64::from(changes) << 32,
        )
    }

    fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    fn records(self, action: Action) -> bool {
        ActionSet(self.0 as u16).contains(action)
    }

    /// Returns the number of changes of the settings.
    fn changes(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The settings, and the data that rings need to follow changes of them.
struct Configured {
    settings: HistorySettings,
    changes: u32,
    /// The number of the configuration change that last cleared the history.
    cleared_at: u32,
    annotations: Vec<Annotation>,
}

/// The part of a history that its rings share. See the [module's essay](self).
pub struct History {
    mode: AtomicU64,
    configured: Mutex<Configured>,
    stacks: OnceLock<Arc<dyn StackSource>>,
    start: Instant,
    /// The time of `start`, in microseconds since 1970.
    start_us: i64,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// Creates a history that records nothing yet.
    pub fn new() -> Self {
        let settings = HistorySettings::default();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            mode: AtomicU64::new(Mode::of(&settings, 0).0),
            configured: Mutex::new(Configured {
                settings,
                changes: 0,
                cleared_at: 0,
                annotations: Vec::new(),
            }),
            stacks: OnceLock::new(),
            start: Instant::now(),
            start_us: i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// Changes what is recorded. Recorded events are kept, unless recording is switched off or `clear_history` is set; if
    /// `max_entries` is smaller than before, the oldest are forgotten.
    pub fn configure(&self, settings: HistorySettings) {
        let mut configured = self.configured();
        configured.changes = configured.changes.wrapping_add(1);
        if settings.clear_history || settings.enabled == Enabled::Off {
            configured.cleared_at = configured.changes;
            configured.annotations.clear();
        }
        let mode = Mode::of(&settings, configured.changes);
        configured.settings = HistorySettings { max_entries: settings.max_entries.max(1), ..settings };
        self.mode.store(mode.0, Ordering::Release);
    }

    /// Returns the settings.
    pub fn settings(&self) -> HistorySettings {
        self.configured().settings.clone()
    }

    /// Sets the source of stacks. It cannot be changed later, because events and blocks store its identifiers.
    ///
    /// # Errors
    /// Returns `source` if there is one already.
    pub fn set_stack_source(&self, source: Arc<dyn StackSource>) -> Result<(), Arc<dyn StackSource>> {
        self.stacks.set(source)
    }

    /// Returns whether anything is recorded now: events, or stacks of allocations.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode().has(Mode::ON)
    }

    /// Returns whether events of this kind are recorded now. [`Ring::push`] checks this itself; call this before doing work for
    /// an event.
    pub fn records(&self, action: Action) -> bool {
        self.mode().records(action)
    }

    /// Returns the stack of an allocation that is about to be made, if it is to be recorded. Call this without a lock: it may
    /// take long.
    pub fn stack_of_allocation(&self) -> Option<StackId> {
        if self.mode().has(Mode::STACK_OF_ALLOCATION) { self.capture() } else { None }
    }

    /// Returns the stack of a free, if it is to be recorded. Call this without a lock: it may take long.
    pub fn stack_of_free(&self) -> Option<StackId> {
        if self.mode().has(Mode::STACK_OF_FREE) { self.capture() } else { None }
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> Frames {
        self.stacks.get().map_or_else(Frames::default, |source| source.frames(stack).into())
    }

    /// Returns whether events have stacks, and not only live blocks.
    pub(crate) fn keeps_stacks_of_events(&self) -> bool {
        self.mode().has(Mode::STACK_IN_EVENT)
    }

    /// Returns the stacks that the events of a ring refer to.
    pub fn stacks_in<'r>(&self, ring: &'r Ring) -> impl Iterator<Item = StackId> + use<'r> {
        let cleared_at = self.configured().cleared_at;
        ring.entries(cleared_at).filter_map(|entry| entry.stack)
    }

    /// Records the start or the end of a scope, if `record_annotations` is set. Beyond `max_entries`, the oldest are forgotten.
    pub fn annotate_scope(&self, name: &str, stage: ScopeStage, device: i32) {
        let time_us = self.time_us(self.now_ns());
        let mut configured = self.configured();
        let HistorySettings { enabled, record_annotations, max_entries, .. } = configured.settings;
        if enabled == Enabled::Off || !record_annotations {
            return;
        }
        let stage = match stage {
            ScopeStage::Start => "START",
            ScopeStage::End => "END",
        };
        // Removing from the front moves the rest, so half of the entries are removed at a time.
        if configured.annotations.len() >= max_entries.saturating_mul(2) {
            let surplus = configured.annotations.len() - max_entries;
            configured.annotations.drain(..surplus);
        }
        configured.annotations.push(Annotation { name: name.into(), stage: stage.into(), device, time_us });
    }

    /// Returns the recorded scopes, oldest first.
    pub fn annotations(&self) -> Vec<Annotation> {
        let configured = self.configured();
        let surplus = configured.annotations.len().saturating_sub(configured.settings.max_entries);
        configured.annotations[surplus..].to_vec()
    }

    /// Begins to merge rings. Later events are not part of the result.
    pub fn merge(&self) -> Merge<'_> {
        Merge { history: self, until_ns: self.now_ns(), entries: Vec::new() }
    }

    fn capture(&self) -> Option<StackId> {
        self.stacks.get()?.capture()
    }

    #[inline]
    fn mode(&self) -> Mode {
        Mode(self.mode.load(Ordering::Acquire))
    }

    /// Returns the nanoseconds since the history began.
    fn now_ns(&self) -> u64 {
        // The type holds 584 years.
        self.start.elapsed().as_nanos() as u64
    }

    fn time_us(&self, time_ns: u64) -> i64 {
        self.start_us.saturating_add_unsigned(time_ns / 1000)
    }

    fn configured(&self) -> MutexGuard<'_, Configured> {
        self.configured.lock()
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

/// The start or the end of a scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeStage {
    /// The scope begins.
    Start,
    /// The scope ends.
    End,
}

/// A merge of rings in progress: call [`add`](Self::add) for each, with only its lock held, then [`finish`](Self::finish).
pub struct Merge<'h> {
    history: &'h History,
    until_ns: u64,
    entries: Vec<Entry>,
}

impl Merge<'_> {
    /// Adds the events of a ring.
    pub fn add(&mut self, ring: &Ring) {
        let cleared_at = self.history.configured().cleared_at;
        self.entries.extend(ring.entries(cleared_at).take_while(|entry| entry.time_ns <= self.until_ns));
    }

    /// Returns the newest events of all rings, oldest first, in PyTorch's form.
    pub fn finish(self) -> Vec<TraceEntry> {
        let Self { history, mut entries, .. } = self;
        // Each ring is in order, which makes this sort fast; and the sort is stable.
        entries.sort_by_key(|entry| entry.time_ns);
        let surplus = entries.len().saturating_sub(history.configured().settings.max_entries);
        let text = |text: &Option<Held>| text.as_ref().map_or_else(|| Arc::from(""), Held::text);
        let not_compiled: Arc<str> = "N/A".into();
        let exact: Arc<str> = "mallocWithAddress".into();
        let mut stacks: HashMap<StackId, Frames> = HashMap::new();
        let mut frames = |id| stacks.entry(id).or_insert_with(|| history.frames(id)).clone();
        let resolve = |entry: &Entry| TraceEntry {
            time_us: Some(history.time_us(entry.time_ns)),
            compile_context: Some(match &entry.compile_context {
                None => not_compiled.clone(),
                region => text(region),
            }),
            user_metadata: Some(text(&entry.metadata)),
            pool_id: Some(entry.pool_id),
            internal_metadata: entry.exact_address.then(|| exact.clone()),
            frames: entry.stack.map(&mut frames),
            ..TraceEntry::new(entry.action, entry.address, entry.size_bytes, entry.stream)
        };
        entries[surplus..].iter().map(resolve).collect()
    }
}

impl std::fmt::Debug for Merge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId::from_raw(1);

    fn recording(settings: HistorySettings) -> History {
        let history = History::new();
        history.configure(HistorySettings { enabled: Enabled::All, ..settings });
        history
    }

    fn alloc(address: u64) -> Event {
        Event::new(Action::Alloc, address, 512, STREAM)
    }

    fn merged(history: &History, rings: &[&Ring]) -> Vec<TraceEntry> {
        let mut merge = history.merge();
        rings.iter().for_each(|ring| merge.add(ring));
        merge.finish()
    }

    fn addresses(history: &History, rings: &[&Ring]) -> Vec<u64> {
        merged(history, rings).iter().map(|entry| entry.address).collect()
    }

    #[test]
    fn rings_are_merged_in_the_order_of_time_and_the_newest_stay() {
        let history = recording(HistorySettings { max_entries: 3000, ..HistorySettings::default() });
        let mut rings = [Ring::new(), Ring::new()];
        for address in 0..10_000 {
            rings[usize::from(address % 3 == 0)].push(&history, &alloc(address));
        }
        let expected: Vec<u64> = (7000..10_000).collect();
        assert_eq!(addresses(&history, &[&rings[1], &rings[0]]), expected);
        let times: Vec<_> = merged(&history, &[&rings[0]]).iter().map(|entry| entry.time_us).collect();
        assert!(times.is_sorted() && times[0] > Some(1_600_000_000_000_000), "microseconds since 1970");
    }

    #[test]
    fn what_happens_during_a_merge_is_not_in_it() {
        let history = recording(HistorySettings::default());
        let mut rings = [Ring::new(), Ring::new()];
        rings[0].push(&history, &alloc(1));
        let mut merge = history.merge();
        merge.add(&rings[0]);
        // The clock must advance, however coarse it is.
        let begun = history.now_ns();
        while history.now_ns() == begun {}
        rings[1].push(&history, &alloc(2));
        merge.add(&rings[1]);
        assert_eq!(merge.finish().len(), 1);
        assert_eq!(addresses(&history, &[&rings[0], &rings[1]]), [1, 2]);
    }

    #[test]
    fn rings_follow_the_settings() {
        let history = History::new();
        let mut ring = Ring::new();
        let on = HistorySettings { enabled: Enabled::All, ..HistorySettings::default() };
        let mut push_all = |addresses: std::ops::Range<u64>| {
            addresses.for_each(|address| ring.push(&history, &alloc(address)));
            self::addresses(&history, &[&ring])
        };
        assert_eq!(push_all(0..3), [0; 0], "nothing is recorded at first");
        history.configure(on.clone());
        assert_eq!(push_all(3..6), [3, 4, 5]);
        history.configure(HistorySettings { max_entries: 2, ..on.clone() });
        assert_eq!(push_all(6..6), [4, 5], "also while the ring has not noticed");
        assert_eq!(push_all(6..7), [5, 6]);
        history.configure(HistorySettings { max_entries: 3, ..on.clone() });
        assert_eq!(push_all(7..8), [5, 6, 7]);
        history
            .configure(HistorySettings { skip_actions: [Action::Alloc].into_iter().collect(), ..on.clone() });
        assert_eq!(push_all(8..9), [5, 6, 7]);
        history.configure(HistorySettings { clear_history: true, ..on.clone() });
        assert_eq!(push_all(9..9), [0; 0]);
        assert_eq!(push_all(9..11), [9, 10]);
        history.configure(HistorySettings { enabled: Enabled::State, ..on.clone() });
        assert_eq!(push_all(11..12), [9, 10], "events stay, and no more come");
        history.configure(HistorySettings::default());
        history.configure(on);
        assert_eq!(push_all(12..13), [12], "switching it off forgot the rest");
    }

    #[test]
    fn threads_have_their_own_words() {
        let history = recording(HistorySettings { compile_context: true, ..HistorySettings::default() });
        let mut ring = Ring::new();
        set_user_metadata("step one");
        assert_eq!(&*user_metadata(), "step one");
        let outer = CompileRegion::enter("0/0");
        let inner = CompileRegion::enter("0/1");
        ring.push(&history, &alloc(1));
        drop(inner);
        let metadata = TextId::of("weights");
        ring.push(
            &history,
            &Event { metadata, exact_address: true, ..Event::new(Action::Annotate, 2, 512, STREAM) },
        );
        drop(outer);
        std::thread::scope(|scope| {
            scope.spawn(|| ring.push(&history, &alloc(3))).join().expect("it only records")
        });
        set_user_metadata("");
        let entries = merged(&history, &[&ring]);
        let words: Vec<_> = entries
            .iter()
            .map(|entry| {
                [&entry.user_metadata, &entry.compile_context].map(|text| text.as_deref().unwrap_or("-"))
            })
            .collect();
        assert_eq!(words, [["step one", "0/1"], ["weights", "0/0"], ["", "N/A"]]);
        assert_eq!(entries[1].internal_metadata.as_deref(), Some("mallocWithAddress"));
    }

    /// A source with one frame per stack, which counts how often frames are requested.
    #[derive(Default)]
    struct Counting {
        captured: std::sync::atomic::AtomicU32,
        resolved: std::sync::atomic::AtomicU32,
    }

    impl StackSource for Counting {
        fn capture(&self) -> Option<StackId> {
            self.captured.fetch_add(1, Ordering::Relaxed);
            StackId::new(7)
        }

        fn frames(&self, stack: StackId) -> Vec<Frame> {
            self.resolved.fetch_add(1, Ordering::Relaxed);
            vec![Frame { filename: "train.py".into(), line: stack.get(), name: "step".into() }]
        }
    }

    #[test]
    fn stacks_are_taken_at_their_level_and_resolved_once() {
        for (context, captured, frames) in [
            (ContextLevel::Never, 0, [0, 0]),
            (ContextLevel::State, 1, [0, 0]),
            (ContextLevel::Alloc, 1, [1, 0]),
            (ContextLevel::All, 2, [1, 1]),
        ] {
            let history = recording(HistorySettings { context, ..HistorySettings::default() });
            let source = Arc::new(Counting::default());
            assert!(history.set_stack_source(source.clone()).is_ok());
            assert!(history.set_stack_source(source.clone()).is_err(), "there is one already");
            let mut ring = Ring::new();
            ring.push(&history, &Event { stack: history.stack_of_allocation(), ..alloc(1) });
            ring.push(&history, &Event { stack: history.stack_of_free(), ..alloc(1) });
            let entries = merged(&history, &[&ring]);
            let lengths = [0, 1].map(|index| entries[index].frames.as_ref().map_or(0, |frames| frames.len()));
            assert_eq!(lengths, frames, "{context:?}");
            assert_eq!(source.captured.load(Ordering::Relaxed), captured, "{context:?}");
            assert_eq!(source.resolved.load(Ordering::Relaxed), u32::from(frames[0] > 0), "{context:?}");
        }
    }

    #[test]
    fn scopes_are_kept_when_wanted_and_not_for_ever() {
        let history = History::new();
        let annotate = |number: usize| history.annotate_scope(&number.to_string(), ScopeStage::Start, 0);
        annotate(0);
        let settings =
            HistorySettings { enabled: Enabled::All, max_entries: 3, ..HistorySettings::default() };
        history.configure(settings.clone());
        annotate(1);
        history.configure(HistorySettings { record_annotations: true, ..settings });
        (2..100).for_each(annotate);
        let names: Vec<_> =
            history.annotations().iter().map(|annotation| annotation.name.to_string()).collect();
        assert_eq!(names, ["97", "98", "99"]);
    }
}
