//! The addresses of segments: those that the replay would invent, or random ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_memory::{StreamId, Upstream};
use thalweg_memory_tools::replay::ReplayUpstream;

use super::MIB;

/// A driver of the oracle. It never runs out; the oracle counts.
pub enum Driver {
    /// Exactly the addresses that a replay invents if no trace contains any, so that the two can be compared in everything.
    AsInvented(Arc<ReplayUpstream>),
    /// Random addresses.
    Anywhere(Scatter),
}

/// Segments at addresses in no order.
pub struct Scatter {
    state: u64,
    taken: BTreeMap<u64, u64>,
}

impl Driver {
    pub fn as_invented() -> Self {
        Self::AsInvented(Arc::new(ReplayUpstream::unscripted(1 << 46)))
    }

    pub fn anywhere(seed: u64) -> Self {
        Self::Anywhere(Scatter { state: seed | 1, taken: BTreeMap::new() })
    }

    pub(super) fn segment(&mut self, bytes: u64, stream: u64) -> u64 {
        match self {
            Self::AsInvented(upstream) => {
                upstream.allocate(bytes, StreamId::from_raw(stream)).expect("it does not run out")
            }
            Self::Anywhere(scatter) => scatter.take(bytes),
        }
    }

    pub(super) fn give_back(&mut self, address: u64, bytes: u64, stream: u64) {
        match self {
            Self::AsInvented(upstream) => {
                upstream.free(address, bytes, StreamId::from_raw(stream)).expect("it is out");
            }
            Self::Anywhere(scatter) => drop(scatter.taken.remove(&address)),
        }
    }

    /// Reserves addresses for an expandable segment.
    pub(super) fn range(&mut self, bytes: u64) -> u64 {
        match self {
            Self::AsInvented(upstream) => {
                let memory = upstream.virtual_memory().expect("a replay has it");
                memory.reserve_addresses(bytes).expect("it does not run out")
            }
            Self::Anywhere(scatter) => scatter.take(bytes),
        }
    }

    pub(super) fn give_range_back(&mut self, address: u64, bytes: u64) {
        match self {
            Self::AsInvented(upstream) => {
                let memory = upstream.virtual_memory().expect("a replay has it");
                memory.free_addresses(address, bytes).expect("it is out");
            }
            Self::Anywhere(scatter) => drop(scatter.taken.remove(&address)),
        }
    }
}

impl Scatter {
    fn take(&mut self, bytes: u64) -> u64 {
        loop {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let address = (1 << 44) + self.state % (1 << 22) * 2 * MIB;
            let before = self.taken.range(..address + bytes).next_back();
            if before.is_none_or(|(start, bytes)| start + bytes <= address) {
                self.taken.insert(address, bytes);
                return address;
            }
        }
    }
}
