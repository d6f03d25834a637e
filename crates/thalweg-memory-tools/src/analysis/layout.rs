//! The ways in which reserved memory is unusable.

use std::collections::BTreeMap;

use thalweg_memory::StreamId;

use super::walk::{MemoryState, Taken};

/// Reserved memory at one moment: the active part, and the reasons why the rest serves no request. All in bytes; the sum is the
/// reserved memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fragmentation {
    /// The bytes of blocks that are live or pending, after rounding.
    pub active_bytes: u64,
    /// Free bytes in segments that also contain live blocks: no request larger than the gaps can use them, and they cannot be
    /// returned to the driver.
    pub hard_bytes: u64,
    /// Free bytes in segments without live blocks: they can be returned to the driver, and taken again in one piece.
    pub soft_bytes: u64,
    /// Free bytes in segments of other streams than the requesting one.
    pub stream_bytes: u64,
    /// Free bytes in segments of private pools, which belong to a graph or a program.
    pub pool_bytes: u64,
    /// The largest free range of the requesting stream, in the shared pool.
    pub largest_free_bytes: u64,
}

impl Fragmentation {
    /// Returns the layout of a state in which the stream `asking` requests memory of the shared pool.
    pub(super) fn of(state: &MemoryState, asking: StreamId) -> Self {
        let mut live: Vec<(u64, u64)> =
            state.live.iter().map(|(&address, live)| (address, live.size_bytes)).collect();
        live.sort_unstable();
        let mut live = live.into_iter().peekable();
        let mut result = Self::default();
        for (start, segment) in merged(&state.taken) {
            while live.next_if(|&(address, _)| address < start).is_some() {}
            let (mut active, mut largest, mut at) = (0, 0, start);
            while let Some((address, bytes)) = live.next_if(|&(address, _)| address < segment.end) {
                let end = address.saturating_add(bytes).min(segment.end);
                largest = address.saturating_sub(at).max(largest);
                active += end.saturating_sub(address.max(at));
                at = end.max(at);
            }
            largest = (segment.end - at).max(largest);
            let free = segment.end - start - active;
            result.active_bytes += active;
            if segment.pool_id != (0, 0) {
                result.pool_bytes += free;
            } else if segment.stream != asking {
                result.stream_bytes += free;
            } else {
                let kind = if active > 0 { &mut result.hard_bytes } else { &mut result.soft_bytes };
                *kind += free;
                result.largest_free_bytes = largest.max(result.largest_free_bytes);
            }
        }
        result
    }

    /// Returns all reserved bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.active_bytes + self.hard_bytes + self.soft_bytes + self.stream_bytes + self.pool_bytes
    }
}

/// Returns the segments; adjacent mapped ranges are merged.
fn merged(taken: &BTreeMap<u64, Taken>) -> Vec<(u64, Taken)> {
    let mut merged: Vec<(u64, Taken)> = Vec::new();
    for (&start, &taken) in taken {
        match merged.last_mut() {
            Some((_, last))
                if last.end == start
                    && last.is_mapped
                    && taken.is_mapped
                    && (last.stream, last.pool_id) == (taken.stream, taken.pool_id) =>
            {
                last.end = taken.end;
            }
            // Overlaps are impossible in a valid file, and are cut off.
            Some((_, last)) if last.end > start => {
                if taken.end > last.end {
                    let start = last.end;
                    merged.push((start, taken));
                }
            }
            _ => merged.push((start, taken)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::super::walk::Live;
    use super::*;

    #[test]
    fn free_memory_is_told_apart_by_why_it_is_free() {
        let [one, two] = [1, 2].map(StreamId::from_raw);
        let mut state = MemoryState::default();
        for (start, end, stream, pool_id, is_mapped) in [
            (0, 1000, one, (0, 0), false),
            (1000, 1500, one, (0, 0), false),
            (5000, 6000, two, (0, 0), false),
            (7000, 7400, one, (0, 1), false),
            (8000, 8100, one, (0, 0), true),
            (8100, 8300, one, (0, 0), true),
        ] {
            state.taken.insert(start, Taken { end, stream, pool_id, is_mapped });
        }
        for (address, size_bytes) in [(100, 300), (500, 100), (5000, 10), (8290, 10)] {
            let live = Live { requested_bytes: size_bytes, size_bytes, stream: one, stack: None };
            state.live.insert(address, live);
        }
        let found = Fragmentation::of(&state, one);
        let expected = Fragmentation {
            active_bytes: 420,
            hard_bytes: 600 + 290,
            soft_bytes: 500,
            stream_bytes: 990,
            pool_bytes: 400,
            largest_free_bytes: 500,
        };
        assert_eq!(found, expected);
        assert_eq!(found.reserved_bytes(), state.reserved_bytes());
    }
}
