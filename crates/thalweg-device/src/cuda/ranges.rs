//! Which addresses are device memory.
//!
//! With unified addressing the driver takes *any* address for a copy, and one that happens to be the host's would have it
//! read or overwrite memory of this process. So an address that the caller gives is only handed to a copy or a fill when it
//! is known to be the device's: it lies in memory that this driver handed out, or the driver itself says that it is device
//! memory (another library's).
//!
//! The table also knows what kind of memory each range is, so that memory goes back the way it came.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How a range of addresses came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeKind {
    /// `memory_allocate`.
    Plain,
    /// `memory_allocate_async`.
    Pool,
    /// `address_reserve`.
    Reserved,
}

/// A range of device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) bytes: u64,
    pub(super) kind: RangeKind,
    pub(super) device: u32,
}

/// What the table knows about a range that a caller named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    /// It lies in one range of ours.
    Inside,
    /// It begins in a range of ours and ends outside it, or nothing is mapped there.
    Across,
    /// It begins in none.
    Unknown,
}

/// All ranges that the driver handed out, and the mappings in reserved ones.
#[derive(Default)]
pub(super) struct Ranges {
    ranges: RwLock<BTreeMap<u64, Range>>,
    mappings: RwLock<BTreeMap<u64, u64>>,
}

impl Ranges {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, start: u64, range: Range) {
        self.write().insert(start, range);
    }

    /// Takes out the range that starts there, if `wanted` says so of it. One of two callers gets it.
    pub(super) fn take(&self, start: u64, wanted: impl FnOnce(&Range) -> bool) -> Option<Range> {
        let mut ranges = self.write();
        wanted(ranges.get(&start)?).then(|| ranges.remove(&start)).flatten()
    }

    /// Where `[start, start + bytes)` lies. Of a reserved range, only what is mapped is memory.
    pub(super) fn look_up(&self, start: u64, bytes: u64) -> Lookup {
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

    /// Whether all of the range, which ends inside the address space, is mapped.
    fn is_mapped(&self, start: u64, bytes: u64) -> bool {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        let Some((&first, _)) = mappings.range(..=start).next_back() else { return false };
        let end = start.saturating_add(bytes);
        let mut covered = first;
        for (&first, &length) in mappings.range(first..end.max(first + 1)) {
            if first != covered {
                break;
            }
            covered = first + length;
        }
        start < covered && end <= covered
    }

    /// Whether the range lies in one that was reserved.
    pub(super) fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let ranges = self.read();
        ranges.range(..=start).next_back().is_some_and(|(&first, range)| {
            let offset = start - first;
            range.kind == RangeKind::Reserved && offset < range.bytes && bytes <= range.bytes - offset
        })
    }

    pub(super) fn note_mapping(&self, start: u64, bytes: u64) {
        self.mappings.write().unwrap_or_else(PoisonError::into_inner).insert(start, bytes);
    }

    /// Whether `[start, start + bytes)` is made of whole mappings.
    pub(super) fn is_whole_mappings(&self, start: u64, bytes: u64) -> bool {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        let mut next = start;
        for (&first, &length) in mappings.range(start..start.saturating_add(bytes)) {
            if first != next {
                return false;
            }
            next = first + length;
        }
        bytes > 0 && next == start.saturating_add(bytes)
    }

    /// Forgets the mappings in the range.
    pub(super) fn forget_mappings(&self, start: u64, bytes: u64) {
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        mappings.retain(|&first, _| first < start || first >= start.saturating_add(bytes));
    }

    /// Whether anything is mapped in the range.
    pub(super) fn has_mapping(&self, start: u64, bytes: u64) -> bool {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        mappings.range(start..start.saturating_add(bytes)).next().is_some()
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
}
