//! The flight recorder: the last collectives of a rank, and how far each rank has come.

mod summary;

use std::collections::VecDeque;
use std::fmt;

use thalweg_runtime::Label;

pub use self::summary::{FlightSummary, RankFlight};

/// How many collectives are remembered.
const REMEMBERED: usize = 64;

/// A collective that a rank has submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Its number among those of the group, from 1 on.
    pub(crate) sequence: u64,
    /// Operation and line.
    pub(crate) label: Label,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} is {}", self.sequence, self.label)
    }
}

/// The last collectives of a rank.
#[derive(Default, Debug)]
pub(crate) struct FlightRecorder {
    entries: VecDeque<Entry>,
    submitted: u64,
}

impl FlightRecorder {
    pub(crate) fn add(&mut self, label: Label) -> Entry {
        self.submitted += 1;
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        let entry = Entry { sequence: self.submitted, label };
        self.entries.push_back(entry);
        entry
    }

    pub(crate) fn last(&self) -> Option<Entry> {
        self.entries.back().copied()
    }

    /// Returns the remembered collectives, one per line, the latest last.
    pub(crate) fn dump(&self) -> String {
        self.entries.iter().map(|entry| format!("  {entry}\n")).collect()
    }
}
