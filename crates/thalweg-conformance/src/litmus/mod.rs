//! Litmus programs: small programs over streams, events and copies, with the outcomes that CUDA allows.
//!
//! A model of CUDA is only useful if it is tested against CUDA. Each [`LitmusProgram`] here is a handful of calls that probes one
//! rule, together with the set of outcomes (the values of a few words at the end) that CUDA's documentation allows, and the
//! derivation of that set. The same program runs on the simulator and on a GPU; on both, the [observed](Observation) outcomes
//! must be inside the allowed set. A program with one allowed outcome is *ordered*: it shows that a synchronisation works. A
//! program with several is *racy*: it shows the outcomes without synchronisation, and keeps a driver that programs are tested
//! against from guaranteeing more order than CUDA does.
//!
//! # How to read a program
//! The host threads execute their [`HostStep`]s in order. Streams `A`, `B`, `C` are non-blocking streams, `DEFAULT` is the legacy
//! default stream. `X`, `Y`, `Z` are words of device memory, `P`, `Q` words of pinned memory, `R` and `S` variables of the host;
//! all are 0 at the start. At the end the device is synchronised and the observed places are read.
//!
//! All values fit in one byte, so that a torn word cannot look like another value; and no program's outcome depends on the order
//! in which *two* places become visible to an unordered reader, since CUDA's memory model leaves that order undefined even if
//! complete commands would not.
//!
//! # What the runner varies
//! Kernels wait for a random time before they touch memory, and host threads between their steps, from a seed. On a GPU and on
//! the simulator's threads the rest is left to chance: an allowed outcome need not occur. On a controlled simulator nothing is
//! left to chance: [`explore`] runs a program under every schedule, and the observed outcomes must be exactly the allowed set.

mod programs;
mod runner;

use std::collections::BTreeMap;
use std::fmt;

pub use programs::programs;
pub use runner::{explore, run};

use serde_json::json;

/// A stream of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// The legacy default stream of the device.
    Default,
    /// A non-blocking stream.
    A,
    /// A second non-blocking stream.
    B,
    /// A third non-blocking stream.
    C,
}

/// An event of a program, without timing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The first event.
    E,
    /// The second event.
    F,
}

/// A word of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cell {
    /// The first.
    X,
    /// The second.
    Y,
    /// The third.
    Z,
}

/// A word of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pinned {
    /// The first.
    P,
    /// The second.
    Q,
}

/// A variable of the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Register {
    /// The first.
    R,
    /// The second.
    S,
}

/// A graph of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Graph {
    /// The first.
    G,
    /// The second.
    H,
}

/// A word that is observed at the end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Observed {
    /// Device memory.
    Cell(Cell),
    /// Pinned host memory.
    Pinned(Pinned),
    /// A variable of the host.
    Register(Register),
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cell(cell) => write!(f, "{cell:?}"),
            Self::Pinned(pinned) => write!(f, "{pinned:?}"),
            Self::Register(register) => write!(f, "{register:?}"),
        }
    }
}

/// The next action of a host thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostStep {
    /// A kernel that sets a cell, after a random time.
    Write(Stream, Cell, u32),
    /// A kernel that sets a cell after a long time, for races that would otherwise almost never be lost.
    WriteLate(Stream, Cell, u32),
    /// A kernel that adds to a cell, without an atomic.
    Add(Stream, Cell, u32),
    /// A kernel that copies the second cell to the first, after a random time.
    Move(Stream, Cell, Cell),
    /// A copy inside the device: the second cell to the first.
    Copy(Stream, Cell, Cell),
    /// An asynchronous copy of pinned memory to the device.
    CopyIn(Stream, Cell, Pinned),
    /// An asynchronous copy of device memory to pinned memory.
    CopyOut(Stream, Pinned, Cell),
    /// A fill of a cell.
    Fill(Stream, Cell, u8),
    /// A copy of ordinary host memory, which contains the value, to the device.
    Upload(Stream, Cell, u32),
    /// A copy of a cell to a variable of the host. Blocks.
    Download(Stream, Register, Cell),
    /// A host function that sets a variable.
    Call(Stream, Register, u32),
    /// The event is recorded.
    Record(Event, Stream),
    /// The stream waits for the event.
    Wait(Stream, Event),
    /// The host destroys the event.
    Destroy(Event),
    /// The host blocks until the stream is done.
    SyncStream(Stream),
    /// The host blocks until the event is complete.
    SyncEvent(Event),
    /// The host blocks until the device is done.
    SyncDevice,
    /// The host polls until the stream is done.
    PollStream(Stream),
    /// The host polls until the event is complete.
    PollEvent(Event),
    /// The host queries once: 1 if the event is complete, else 0.
    Query(Register, Event),
    /// The host writes pinned memory.
    HostWrite(Pinned, u32),
    /// The host reads pinned memory.
    HostRead(Register, Pinned),
    /// The host copies the second variable to the first.
    HostCopy(Register, Register),
    /// A relaxed capture begins.
    Begin(Stream),
    /// The capture ends and is instantiated.
    End(Stream, Graph),
    /// The executable is launched.
    Launch(Stream, Graph),
    /// All host threads wait for one another.
    Barrier,
}

/// A litmus program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LitmusProgram {
    /// The program's name, as in `events/wait_binds_to_the_latest_record`.
    pub name: &'static str,
    /// The rule that the program probes, and the reason for the allowed outcomes.
    pub about: &'static str,
    /// The steps of each host thread.
    pub threads: &'static [&'static [HostStep]],
    /// The words that are read at the end.
    pub observed: &'static [Observed],
    /// The values that the observed places may have.
    pub allowed: &'static [&'static [u32]],
}

impl LitmusProgram {
    /// Returns whether more than one outcome is allowed.
    pub const fn is_racy(&self) -> bool {
        self.allowed.len() > 1
    }

    /// Returns whether the outcome is allowed.
    pub fn allows(&self, outcome: &[u32]) -> bool {
        self.allowed.contains(&outcome)
    }
}

/// The observations of repeated runs of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The program.
    pub program: LitmusProgram,
    /// The number of times that each outcome was seen.
    pub counts: BTreeMap<Vec<u32>, u64>,
}

impl Observation {
    /// Returns whether every observed outcome is allowed.
    pub fn is_allowed(&self) -> bool {
        self.counts.keys().all(|outcome| self.program.allows(outcome))
    }

    /// Returns the observed outcomes that are not allowed.
    pub fn forbidden(&self) -> impl Iterator<Item = (&Vec<u32>, u64)> {
        self.counts
            .iter()
            .filter(|(outcome, _)| !self.program.allows(outcome))
            .map(|(outcome, &count)| (outcome, count))
    }

    /// Returns the number of runs of the program.
    pub fn repetitions(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns every allowed outcome with its count, 0 included, then the observed outcomes that are not allowed.
    fn rows(&self) -> Vec<(Vec<u32>, u64, bool)> {
        let allowed = self.program.allowed.iter().map(|outcome| {
            let count = self.counts.get(*outcome).copied().unwrap_or(0);
            (outcome.to_vec(), count, true)
        });
        let forbidden = self.forbidden().map(|(outcome, count)| (outcome.clone(), count, false));
        allowed.chain(forbidden).collect()
    }

    /// Returns one JSON object on one line.
    pub fn to_json(&self, device: &str) -> String {
        let outcomes = self
            .rows()
            .into_iter()
            .map(|(values, count, allowed)| json!({ "values": values, "count": count, "allowed": allowed }));
        json!({
            "name": format!("litmus/{}", self.program.name),
            "value": self.repetitions(),
            "unit": "repetitions",
            "device": device,
            "passed": self.is_allowed(),
            "racy": self.program.is_racy(),
            "observed": self.program.observed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "outcomes": outcomes.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// Writes one line: the verdict, the name, and each outcome with its count. `!` marks an outcome that is not allowed.
impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_allowed() { "passed" } else { "FAILED" };
        let kind = if self.program.is_racy() { "racy" } else { "ordered" };
        write!(f, "{verdict}   {:<58} {kind:<8}", self.program.name)?;
        for (values, count, allowed) in self.rows() {
            let pairs: Vec<String> = self
                .program
                .observed
                .iter()
                .zip(&values)
                .map(|(place, value)| format!("{place}={value}"))
                .collect();
            let mark = if allowed { "" } else { "!" };
            write!(f, "  {mark}{}: {count}", pairs.join(" "))?;
        }
        Ok(())
    }
}
