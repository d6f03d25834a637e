//! Streams and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use thalweg_driver::EventFlags;
use thalweg_lock::{Mutex, MutexGuard};

use crate::executor::command::{CommandId, Frontier, Origin};
use crate::executor::plug::Reached;
use crate::executor::ready::LEVELS;
use crate::schedules::Actor;

/// The lowest and the highest priority.
pub(crate) const PRIORITY_RANGE: (i32, i32) = (0, 1 - LEVELS as i32);

/// The object of a stream handle.
pub(crate) enum StreamEntry {
    /// A stream.
    Own(Stream),
    /// Another handle of an external stream.
    External { own: u64, device: u32 },
}

/// A stream.
pub(crate) struct Stream {
    /// The number of the stream, in the order of creation.
    pub(crate) number: u32,
    pub(crate) device: u32,
    pub(crate) priority: i32,
    /// Whether the stream synchronizes with the legacy default stream.
    pub(crate) is_blocking: bool,
    pub(crate) is_legacy: bool,
    pub(crate) frontier: Frontier,
    pub(crate) capture: Option<Branch>,
}

/// A stream's part of a capture.
pub(crate) struct Branch {
    pub(crate) capture: u64,
    /// The nodes that the branch's next node will depend on.
    pub(crate) nodes: SmallVec<[u32; 2]>,
}

impl Stream {
    pub(crate) fn legacy(device: u32) -> Self {
        Self { is_legacy: true, ..Self::new(device, device, 0, false) }
    }

    pub(crate) fn new(number: u32, device: u32, priority: i32, is_blocking: bool) -> Self {
        let (lowest, greatest) = PRIORITY_RANGE;
        Self {
            number,
            device,
            priority: priority.clamp(greatest, lowest),
            is_blocking,
            is_legacy: false,
            frontier: Frontier::new(),
            capture: None,
        }
    }

    pub(crate) fn level(&self) -> u8 {
        self.priority.unsigned_abs() as u8
    }

    /// Returns the origin of the stream's commands.
    pub(crate) fn origin(&self) -> Origin {
        Origin { level: self.level(), actor: Actor::Stream(self.number) }
    }
}

/// An event.
pub(crate) struct Event {
    pub(crate) device: u32,
    pub(crate) flags: EventFlags,
    /// The event's latest record, shared with the graph nodes that use the event.
    pub(crate) record: Arc<Mutex<Record>>,
}

impl Event {
    /// Returns the event's latest record, to read or change it.
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }
}

/// The part that an event of work outside has in a graph.
#[derive(Clone)]
pub(crate) struct EventNode {
    /// The latest record of the event.
    pub(crate) record: Arc<Mutex<Record>>,
    /// Whether the node records the event, and does not wait for it.
    pub(crate) records: bool,
}

/// An event node of one launch.
pub(crate) struct LaunchedEventNode {
    node: EventNode,
    stamp: Arc<Stamp>,
}

impl EventNode {
    /// Returns the node for one launch.
    pub(crate) fn launched(&self) -> LaunchedEventNode {
        LaunchedEventNode { node: self.clone(), stamp: Arc::default() }
    }
}

impl Reached for LaunchedEventNode {
    fn queued(&self, command: CommandId) -> Frontier {
        let mut record = self.node.record.lock();
        if self.node.records {
            let frontier = Frontier::from_slice(&[command]);
            *record = Record::Live { frontier, stamp: Some(Arc::clone(&self.stamp)) };
            return Frontier::new();
        }
        match &*record {
            Record::Live { frontier, .. } => frontier.clone(),
            Record::Never | Record::Captured { .. } => Frontier::new(),
        }
    }

    fn reached(&self, nanoseconds: u64) {
        self.stamp.reached(nanoseconds);
    }
}

/// The latest record of an event.
#[derive(Clone)]
pub(crate) enum Record {
    Never,
    Live { frontier: Frontier, stamp: Option<Arc<Stamp>> },
    Captured { capture: u64, nodes: SmallVec<[u32; 2]> },
}

/// The time when a position in the order was reached, in nanoseconds since the machine started.
#[derive(Debug, Default)]
pub(crate) struct Stamp(AtomicU64);

impl Stamp {
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Reached for Stamp {
    fn reached(&self, nanoseconds: u64) {
        self.0.store(nanoseconds, Ordering::Relaxed);
    }
}
