//! The addresses that are device memory.
//!
//! With unified addressing the driver accepts *any* address for a copy. An address that happens to be the host's would make
//! it read or overwrite memory of this process. So a caller's address is passed to a copy or a fill only if it is known to
//! be device memory: it is in memory of this driver, or the driver itself reports it as device memory (of another library).
//!
//! The table also knows the kind of each range, so that it is freed by the matching call.

use std::collections::BTreeMap;

use thalweg_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The call that created a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) enum RangeKind {
    /// `memory_allocate`.
    Plain,
    /// `memory_allocate_managed`.
    Managed,
    /// `memory_allocate_collective`.
    Collective,
    /// `ipc_open`, with the number of times that the memory was opened.
    Ipc { opened: u32 },
    /// `memory_allocate_async`.
    Pool,
    /// `memory_allocate_async` on a stream that captured: memory of the graph. It may be freed after each launch, so it
    /// stays listed until a node frees it, or its addresses are reused.
    Graph,
    /// `address_reserve`.
    Reserved,
}

/// A range of device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) struct Range {
    pub(in crate::cuda) bytes: u64,
    pub(in crate::cuda) kind: RangeKind,
    pub(in crate::cuda) device: u32,
}

/// The result of a lookup of a caller's range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) enum Lookup {
    /// The range is inside one of ours.
    Inside,
    /// The range begins in one of ours and ends outside it, or nothing is mapped there.
    Across,
    /// The range does not begin in one of ours.
    Unknown,
}

/// All ranges that the driver allocated, and the mappings in reserved ones.
#[derive(Default)]
pub(in crate::cuda) struct Ranges {
    ranges: RwLock<BTreeMap<u64, Range>>,
    mappings: RwLock<Mappings>,
}

/// The mapped ranges. A large allocation consists of thousands of adjacent mappings, and a copy checks all of it at once,
/// so neighbours are also kept as one run.
#[derive(Default)]
struct Mappings {
    /// The length of each mapping by its first address.
    lengths: BTreeMap<u64, u64>,
    /// The mapped addresses as runs without a gap: first address and the one after the last. Runs are never adjacent.
    runs: BTreeMap<u64, u64>,
}

impl Mappings {
    fn add(&mut self, start: u64, bytes: u64) {
        self.lengths.insert(start, bytes);
        let (mut first, mut end) = (start, start + bytes);
        if let Some(next) = self.runs.remove(&end) {
            end = next;
        }
        if let Some((&before, _)) = self.runs.range(..start).next_back().filter(|(_, stop)| **stop == start) {
            first = before;
        }
        self.runs.insert(first, end);
    }

    /// Removes entire mappings that are adjacent.
    fn remove(&mut self, start: u64, bytes: u64) {
        let end = start + bytes;
        let gone: Vec<u64> = self.lengths.range(start..end).map(|(&first, _)| first).collect();
        for first in gone {
            self.lengths.remove(&first);
        }
        let Some((&first, &stop)) = self.runs.range(..=start).next_back() else { return };
        self.runs.remove(&first);
        if first < start {
            self.runs.insert(first, start);
        }
        if end < stop {
            self.runs.insert(end, stop);
        }
    }

    fn covers(&self, start: u64, bytes: u64) -> bool {
        let run = self.runs.range(..=start).next_back();
        run.is_some_and(|(_, &stop)| start < stop && bytes <= stop - start)
    }
}

impl Ranges {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.write()
    }

    pub(in crate::cuda) fn insert(&self, start: u64, range: Range) {
        self.write().insert(start, range);
    }

    /// Removes the range that starts there, if `wanted` accepts it. If two callers race, one of them gets it.
    pub(in crate::cuda) fn take(&self, start: u64, wanted: impl FnOnce(&Range) -> bool) -> Option<Range> {
        let mut ranges = self.write();
        wanted(ranges.get(&start)?).then(|| ranges.remove(&start)).flatten()
    }

    /// Returns whether `[start, start + bytes)` is in a range. Of a reserved range, only the mapped part is memory.
    pub(in crate::cuda) fn look_up(&self, start: u64, bytes: u64) -> Lookup {
        let ranges = self.read();
        match ranges.range(..=start).next_back() {
            Some((&first, range)) if start - first < range.bytes => {
                let fits = bytes <= range.bytes - (start - first);
                let there = range.kind != RangeKind::Reserved || self.is_mapped(start, bytes);
                if fits && there { Lookup::Inside } else { Lookup::Across }
            }
            _ => Lookup::Unknown,
        }
    }

    /// Returns whether the entire range is mapped.
    fn is_mapped(&self, start: u64, bytes: u64) -> bool {
        self.read_mappings().covers(start, bytes)
    }

    fn read_mappings(&self) -> RwLockReadGuard<'_, Mappings> {
        self.mappings.read()
    }

    fn write_mappings(&self) -> RwLockWriteGuard<'_, Mappings> {
        self.mappings.write()
    }

    /// Returns the range that starts there.
    pub(in crate::cuda) fn starting_at(&self, start: u64) -> Option<Range> {
        self.read().get(&start).copied()
    }

    /// Returns the range that contains `[start, start + bytes)`.
    pub(in crate::cuda) fn containing(&self, start: u64, bytes: u64) -> Option<Range> {
        let ranges = self.read();
        let (&first, range) = ranges.range(..=start).next_back()?;
        let offset = start - first;
        (offset < range.bytes && bytes <= range.bytes - offset).then_some(*range)
    }

    /// Records that memory of another process was opened there. It may be open already.
    pub(in crate::cuda) fn open(&self, start: u64, range: Range) {
        let mut ranges = self.write();
        match ranges.get_mut(&start).map(|known| &mut known.kind) {
            Some(RangeKind::Ipc { opened }) => *opened += 1,
            _ => drop(ranges.insert(start, range)),
        }
    }

    /// Records that memory of another process that starts there was closed once.
    pub(in crate::cuda) fn close(&self, start: u64) -> Option<Range> {
        let mut ranges = self.write();
        let range = ranges.get_mut(&start)?;
        let closed = *range;
        let RangeKind::Ipc { opened } = &mut range.kind else { return None };
        *opened -= 1;
        if *opened == 0 {
            ranges.remove(&start);
        }
        Some(closed)
    }

    /// Returns whether the range is inside a reserved one.
    pub(in crate::cuda) fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        self.containing(start, bytes).is_some_and(|range| range.kind == RangeKind::Reserved)
    }

    pub(in crate::cuda) fn note_mapping(&self, start: u64, bytes: u64) {
        self.write_mappings().add(start, bytes);
    }

    /// Returns whether `[start, start + bytes)` consists of entire mappings.
    pub(in crate::cuda) fn is_whole_mappings(&self, start: u64, bytes: u64) -> bool {
        let mappings = self.read_mappings();
        let mut next = start;
        for (&first, &length) in mappings.lengths.range(start..start.saturating_add(bytes)) {
            if first != next {
                return false;
            }
            next = first + length;
        }
        bytes > 0 && next == start.saturating_add(bytes)
    }

    /// Removes the mappings in the range, which consists of entire ones.
    pub(in crate::cuda) fn forget_mappings(&self, start: u64, bytes: u64) {
        self.write_mappings().remove(start, bytes);
    }

    /// Returns whether anything is mapped in the range.
    pub(in crate::cuda) fn has_mapping(&self, start: u64, bytes: u64) -> bool {
        self.read_mappings().lengths.range(start..start.saturating_add(bytes)).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: u64) -> Range {
        Range { bytes, kind: RangeKind::Plain, device: 0 }
    }

    #[test]
    fn a_range_is_inside_across_or_unknown() {
        let ranges = Ranges::default();
        ranges.insert(1000, plain(100));
        ranges.insert(1100, plain(50));
        assert_eq!(ranges.look_up(1000, 100), Lookup::Inside);
        assert_eq!(ranges.look_up(1099, 1), Lookup::Inside);
        assert_eq!(ranges.look_up(1099, 2), Lookup::Across, "neighbours are two allocations");
        assert_eq!(ranges.look_up(1000, u64::MAX), Lookup::Across);
        assert_eq!(ranges.look_up(999, 1), Lookup::Unknown);
        assert_eq!(ranges.look_up(1150, 1), Lookup::Unknown);
        assert!(!ranges.is_reserved(1000, 10));
    }

    #[test]
    fn only_whole_mappings_can_be_unmapped() {
        let ranges = Ranges::default();
        ranges.note_mapping(0, 10);
        ranges.note_mapping(10, 20);
        ranges.note_mapping(40, 10);
        ranges.insert(0, Range { bytes: 100, kind: RangeKind::Reserved, device: 0 });
        for (start, bytes, there) in [
            (0, 30, true),
            (5, 20, true),
            (29, 1, true),
            (29, 2, false),
            (30, 1, false),
            (40, 10, true),
            (45, 6, false),
        ] {
            let expected = if there { Lookup::Inside } else { Lookup::Across };
            assert_eq!(ranges.look_up(start, bytes), expected, "[{start}, +{bytes})");
        }
        for (start, bytes, whole) in
            [(0, 10, true), (0, 30, true), (10, 20, true), (0, 20, false), (5, 5, false), (0, 50, false)]
        {
            assert_eq!(ranges.is_whole_mappings(start, bytes), whole, "[{start}, +{bytes})");
        }
        assert!(!ranges.is_whole_mappings(0, 0));
        ranges.forget_mappings(0, 30);
        assert!(!ranges.has_mapping(0, 40));
        assert!(ranges.has_mapping(0, 41));
    }

    /// Pages are mapped and unmapped one by one and in groups; the runs always agree with the pages.
    #[test]
    fn runs_are_what_the_mappings_say() {
        let ranges = Ranges::default();
        ranges.insert(0, Range { bytes: 640, kind: RangeKind::Reserved, device: 0 });
        let mut mapped = [false; 64];
        let mut state = 1_u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (first, count) = ((state >> 33) as usize % 64, (state >> 45) as usize % 5 + 1);
            let last = (first + count).min(64);
            let pages = &mut mapped[first..last];
            if pages.iter().all(|page| *page) {
                ranges.forget_mappings(first as u64 * 10, (last - first) as u64 * 10);
                pages.fill(false);
            } else if pages.iter().all(|page| !*page) {
                (first..last).for_each(|page| ranges.note_mapping(page as u64 * 10, 10));
                pages.fill(true);
            }
            let (from, to) = ((state >> 20) as usize % 64, (state >> 27) as usize % 64);
            let (from, to) = (from.min(to), from.max(to) + 1);
            let expected = mapped[from..to].iter().all(|page| *page);
            let seen = ranges.look_up(from as u64 * 10 + 3, (to - from) as u64 * 10 - 5);
            assert_eq!(seen == Lookup::Inside, expected, "pages {from} to {to} of {mapped:?}");
        }
    }

    #[test]
    fn memory_of_another_process_is_closed_as_often_as_it_was_opened() {
        let ranges = Ranges::default();
        let range = Range { bytes: 100, kind: RangeKind::Ipc { opened: 1 }, device: 0 };
        ranges.open(1000, range);
        ranges.open(1000, range);
        assert!(ranges.close(1000).is_some());
        assert_eq!(ranges.look_up(1000, 100), Lookup::Inside);
        assert!(ranges.close(1000).is_some());
        assert!(ranges.close(1000).is_none());
        ranges.insert(2000, plain(10));
        assert!(ranges.close(2000).is_none(), "plain memory was not opened");
    }
}
