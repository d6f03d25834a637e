//! Repair of histories in whose middle a part is missing.
//!
//! A history can be switched off and on again, and some actions can be left out of it. Then a block is allocated where one is
//! live, or freed where there is none. A reader of the trace would count blocks that were freed long ago, and a replay could not
//! continue. So the missing entries are inserted:
//!
//! - If one gap can explain everything, it is searched for: after the last entry that does not show it and before the first that
//!   does, at the longest interval between two entries. Blocks that were freed in the gap are freed there, and blocks that were
//!   allocated in it are allocated there. In this case the end of the file counts as well: a block that is not live there and was
//!   never freed was freed in the gap.
//! - Otherwise, each entry is inserted right before the one that shows that it is missing.
//!
//! If a trace never records when a free is complete, a free is complete when it is requested.
//!
//! Segments that were taken from the driver and returned during a gap are not inserted, because nothing shows them.

use rustc_hash::FxHashMap;

use super::records::{Context, Entry, Gap, Mended, Recording, Trace};
use super::{Action, BlockState};

#[derive(Clone, Copy, PartialEq, Eq)]
enum RepairState {
    Live,
    Pending,
    Free,
}

/// The last event at an address: the number of an entry, and its position in the trace. There can be as many addresses as
/// entries.
#[derive(Clone, Copy)]
struct Seen {
    at: u32,
    index: u32,
}

/// A missing entry, which happened after position `from` and at position `until` at the latest, counted in entries of the trace.
struct Missing {
    from: usize,
    until: usize,
    action: Action,
    address: u64,
    size_bytes: u64,
    context: u32,
    stack: Option<u32>,
}

impl Mended {
    pub(super) fn of(recording: &mut Recording, device: usize) -> Self {
        let trace = recording.traces[device].clone();
        let actions = || trace.indices().map(|index| recording.entries[index as usize].action());
        let ends_at_request = !actions().any(|action| action == Action::FreeCompleted)
            && actions().any(|action| action == Action::FreeRequested);
        let mut walk = Walk { ends_at_request, ..Walk::default() };
        for (at, index) in (0..).zip(trace.indices()) {
            walk.entry(Seen { at, index }, recording);
        }
        if walk.missing.is_empty() {
            return Self { trace, gap: None, ends_at_request };
        }
        let shown = walk.missing.len();
        walk.compare_with_end(recording, device, trace.len());
        let mut missing = walk.missing;
        let place = the_gap(&missing, &trace, recording);
        match place {
            Some(place) => missing.iter_mut().for_each(|entry| entry.until = place),
            None => missing.truncate(shown),
        }
        // Frees come first: a new block may be at the address of one that was freed.
        missing.sort_by_key(|entry| (entry.until, entry.action == Action::Alloc));
        let of = |action| missing.iter().filter(|entry| entry.action == action).count();
        let gap = Gap {
            entry: missing[0].until,
            is_one: place.is_some(),
            freed_blocks: of(Action::FreeCompleted),
            allocated_blocks: of(Action::Alloc),
        };
        Self { trace: insert(recording, &trace, &missing), gap: Some(gap), ends_at_request }
    }
}

#[derive(Default)]
struct Walk {
    ends_at_request: bool,
    seen: FxHashMap<u64, Seen>,
    missing: Vec<Missing>,
}

impl Walk {
    /// Returns the state of a block after an entry.
    fn state(&self, entry: &Entry) -> Option<RepairState> {
        match entry.action() {
            Action::Alloc => Some(RepairState::Live),
            Action::FreeRequested if !self.ends_at_request => Some(RepairState::Pending),
            Action::FreeRequested | Action::FreeCompleted => Some(RepairState::Free),
            _ => None,
        }
    }

    fn entry(&mut self, seen: Seen, recording: &Recording) {
        let entry = &recording.entries[seen.index as usize];
        let Some(state) = self.state(entry) else { return };
        let Some(before) = self.seen.insert(entry.address, seen) else { return };
        let until = seen.at as usize;
        match (self.state(&recording.entries[before.index as usize]), state) {
            (Some(RepairState::Live), RepairState::Live) => self.freed(before, until, recording),
            (Some(RepairState::Free), RepairState::Pending | RepairState::Free) => {
                // The free contains the stream of the block, but not where it was allocated.
                let Entry { address, size_bytes, .. } = *entry;
                let (from, action, context) = (before.at as usize, Action::Alloc, entry.context());
                let stack = None;
                self.missing.push(Missing { from, until, action, address, size_bytes, context, stack });
            }
            _ => {}
        }
    }

    fn freed(&mut self, before: Seen, until: usize, recording: &Recording) {
        let entry = &recording.entries[before.index as usize];
        let Entry { address, size_bytes, .. } = *entry;
        let (from, action) = (before.at as usize, Action::FreeCompleted);
        let (context, stack) = (entry.context(), entry.stack());
        self.missing.push(Missing { from, until, action, address, size_bytes, context, stack });
    }

    /// Finds missing frees and allocations that no entry shows, but the segments at the end do.
    fn compare_with_end(&mut self, recording: &mut Recording, device: usize, length: usize) {
        let mut live: FxHashMap<u64, (u64, Option<u32>)> = FxHashMap::default();
        let of_device =
            |segment: &&super::records::RecordedSegment| usize::try_from(segment.device) == Ok(device);
        let mut is_empty = true;
        for segment in recording.segments.iter().filter(of_device) {
            is_empty = false;
            for index in segment.blocks.iter().cloned().flatten() {
                let block = &recording.blocks[index as usize];
                if block.state != BlockState::Inactive {
                    live.insert(block.address, (segment.stream, block.frames));
                }
            }
        }
        if is_empty {
            // The file contains no state at the end.
            return;
        }
        let mut seen: Vec<Seen> = self.seen.values().copied().collect();
        seen.sort_unstable_by_key(|seen| seen.at);
        let mut added: FxHashMap<Context, u32> = FxHashMap::default();
        for before in seen {
            let entry = recording.entries[before.index as usize];
            match (self.state(&entry), live.get(&entry.address)) {
                (Some(RepairState::Live | RepairState::Pending), None) => {
                    self.freed(before, length, recording)
                }
                (Some(RepairState::Free), Some(&(stream, stack))) => {
                    let is_timed = recording.contexts[entry.context() as usize].is_timed;
                    let context = Context { stream, is_timed, ..Context::default() };
                    let context = *added.entry(context).or_insert_with(|| add_context(recording, context));
                    let Entry { address, size_bytes, .. } = entry;
                    self.missing.push(Missing {
                        from: before.at as usize,
                        until: length,
                        action: Action::Alloc,
                        address,
                        size_bytes,
                        context,
                        stack,
                    });
                }
                _ => {}
            }
        }
    }
}

fn add_context(recording: &mut Recording, context: Context) -> u32 {
    recording.contexts.push(context);
    recording.contexts.len() as u32 - 1
}

/// Returns the position of the one gap that explains everything, if there can be one.
fn the_gap(missing: &[Missing], trace: &Trace, recording: &Recording) -> Option<usize> {
    let first = missing.iter().map(|entry| entry.from).max()? + 1;
    let last = missing.iter().map(|entry| entry.until).min()?;
    let times = || trace.indices().map(|index| recording.entries[index as usize].time_us);
    let waits = times().zip(times().skip(1)).map(|(before, after)| after.saturating_sub(before));
    // Of equal intervals the first one counts.
    let places = waits.enumerate().skip(first - 1).take((last + 1).saturating_sub(first));
    let longest = places.fold(None, |best: Option<(usize, i64)>, (at, wait)| match best {
        Some((_, longest)) if longest >= wait => best,
        _ => Some((at + 1, wait)),
    });
    match longest {
        Some((place, _)) => Some(place),
        None => (first <= last).then_some(first),
    }
}

/// Returns the trace with the missing entries inserted.
fn insert(recording: &mut Recording, trace: &Trace, missing: &[Missing]) -> Trace {
    let mut ranges = trace.0.iter().cloned();
    let mut range = ranges.next().unwrap_or(0..0);
    let (mut out, mut at) = (Vec::new(), 0);
    for entry in missing {
        while at < entry.until {
            let count = (entry.until - at).min(range.len());
            out.push(range.start..range.start + count as u32);
            (range.start, at) = (range.start + count as u32, at + count);
            if range.is_empty() {
                match ranges.next() {
                    Some(next) => range = next,
                    None => break,
                }
            }
        }
        let index = recording.entries.len() as u32;
        let &Missing { address, size_bytes, context, action, stack, .. } = entry;
        let before = out.last().map(|range| recording.entries[range.end as usize - 1].time_us);
        let time_us = before.unwrap_or(0);
        recording.entries.push(Entry::new((address, size_bytes, time_us), action, context, stack));
        match out.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => out.push(index..index + 1),
        }
    }
    out.push(range);
    out.extend(ranges);
    out.retain(|range: &std::ops::Range<u32>| !range.is_empty());
    Trace(out)
}
