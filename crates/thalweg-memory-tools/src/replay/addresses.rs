//! A driver's placement of segments, as far as it is known from recorded addresses.
//!
//! Among free blocks of one size the one at the lowest address serves, so addresses determine which blocks are neighbours, and
//! so how much is reserved in the end. A replay under the settings of the recording uses the recorded addresses. Under other
//! settings it requests segments that were not recorded, and their addresses are invented, by the rules that a driver's addresses
//! show:
//!
//! - Addresses are *reserved* in pieces of 32 MiB, each time below everything that was reserved before.
//! - A segment is placed in the lowest sufficient gap of the reserved ranges: small segments fill the rest of the last piece of
//!   large ones.
//! - A reservation without segments is released, and its addresses are not used again.
//!
//! ```text
//!   new segments are reserved downwards                 <───┐
//!  ┌──────────────┬──────────────┐      ┌───────────────────┴─────────┐
//!  │ 24 MiB │ 8   │ 20 MiB │ 2│..│      │        50 MiB         │ 12  │
//!  └──────────────┴──────────────┘      └─────────────────────────────┘
//!         gaps are filled, the lowest first
//! ```
//!
//! The driver's internal use of addresses is not known, so an invented address can be one that a real driver would have skipped.

use std::collections::{BTreeMap, BTreeSet};

/// The granularity of reservations, in size and address.
const PIECE_BYTES: u64 = 32 << 20;
/// The address below which the first one is invented, if none is recorded.
const TOP: u64 = 0x7000_0000_0000;
/// The lower bound of invented addresses; below it, the fake has its ranges for pages. An allocation that would go below starts
/// at the top again.
const FLOOR: u64 = 0x5000_0000_0000;

/// The present segments, and the reserved ranges around them: sizes by address.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    live: BTreeMap<u64, u64>,
    reserved: BTreeMap<u64, u64>,
    gaps: Gaps,
    /// The beginning of the lowest reservation since the last start at the top.
    lowest: Option<u64>,
}

impl Addresses {
    /// Places a segment at the recorded address, if possible. Returns whether it was.
    pub(crate) fn take_recorded(&mut self, address: u64, bytes: u64) -> bool {
        let end =
            address.checked_add(bytes).filter(|end| end.checked_next_multiple_of(PIECE_BYTES).is_some());
        let can_be = end.is_some_and(|end| {
            address >= PIECE_BYTES
                && address.is_multiple_of(512)
                && overlapping(&self.live, address, end).is_none()
        });
        if can_be {
            self.put(address, bytes);
        }
        can_be
    }

    /// Places a segment where a driver would, and returns its address.
    pub(crate) fn place_segment(&mut self, bytes: u64) -> u64 {
        let address = self.gaps.lowest(bytes).unwrap_or_else(|| self.below_all(bytes));
        self.put(address, bytes);
        address
    }

    /// Removes the segment at `address`.
    pub(crate) fn give_back(&mut self, address: u64) {
        let Some(bytes) = self.live.remove(&address) else { return };
        let end = address + bytes;
        let mut before = end;
        while let Some((start, size)) = overlapping(&self.reserved, address, before) {
            let reserved_end = start + size;
            if overlapping(&self.live, start, reserved_end).is_none() {
                self.reserved.remove(&start);
                self.gaps.cut(start, reserved_end);
            } else {
                self.gaps.widen(address.max(start), end.min(reserved_end), start, reserved_end);
            }
            before = start;
        }
    }

    /// Places a segment where there is no other. The pieces that it overlaps are reserved from now on; adjacent ones are merged.
    fn put(&mut self, address: u64, bytes: u64) {
        self.live.insert(address, bytes);
        let end = (address + bytes).next_multiple_of(PIECE_BYTES);
        let mut start = address / PIECE_BYTES * PIECE_BYTES;
        while start < end {
            let next = match overlapping(&self.reserved, start, start + PIECE_BYTES) {
                Some((reserved, size)) => reserved + size,
                None => {
                    let next = self.reserved.range(start..end).next().map_or(end, |(&next, _)| next);
                    self.reserved.insert(start, next - start);
                    self.gaps.add(start, next);
                    self.lowest = Some(self.lowest.map_or(start, |lowest| lowest.min(start)));
                    next
                }
            };
            start = next;
        }
        self.gaps.cut(address, address + bytes);
    }

    fn below_all(&mut self, bytes: u64) -> u64 {
        let size = bytes.next_multiple_of(PIECE_BYTES);
        let mut end = self.lowest.unwrap_or(TOP);
        loop {
            // Some systems record low addresses; for those, all addresses below are available.
            let floor = if end >= FLOOR { FLOOR } else { PIECE_BYTES };
            if end < floor + size {
                (end, self.lowest) = (TOP, Some(TOP));
            }
            match overlapping(&self.reserved, end - size, end) {
                Some((start, _)) => end = start,
                None => return end - size,
            }
        }
    }
}

/// The reserved ranges without a segment. No gap extends over two reservations.
#[derive(Debug, Default)]
struct Gaps {
    /// The sizes of the gaps by address.
    sizes: BTreeMap<u64, u64>,
    /// The addresses of the gaps by size. There are few sizes: the distinct sizes add up to at most the reserved bytes.
    places: BTreeMap<u64, BTreeSet<u64>>,
}

impl Gaps {
    /// Returns the lowest address of a gap of at least `bytes`.
    fn lowest(&self, bytes: u64) -> Option<u64> {
        self.places.range(bytes..).filter_map(|(_, places)| places.first().copied()).min()
    }

    /// Adds a range that overlaps no gap, as a gap of its own.
    fn add(&mut self, start: u64, end: u64) {
        if start < end {
            self.sizes.insert(start, end - start);
            self.places.entry(end - start).or_default().insert(start);
        }
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let size = self.sizes.remove(&start)?;
        if let Some(places) = self.places.get_mut(&size) {
            places.remove(&start);
            if places.is_empty() {
                self.places.remove(&size);
            }
        }
        Some(start + size)
    }

    /// Removes a range from all gaps.
    fn cut(&mut self, start: u64, end: u64) {
        while let Some((gap, size)) = overlapping(&self.sizes, start, end) {
            self.remove(gap);
            self.add(gap, start);
            self.add(end, gap + size);
        }
    }

    /// Adds a range of the reservation from `first` to `last`, merged with the gaps right before and after it there.
    fn widen(&mut self, mut start: u64, mut end: u64, first: u64, last: u64) {
        if let Some((gap, size)) = overlapping(&self.sizes, first, start)
            && gap + size == start
        {
            self.remove(gap);
            start = gap;
        }
        if end < last
            && let Some(after) = self.remove(end)
        {
            end = after;
        }
        self.add(start, end);
    }
}

/// Returns the last of the ranges that overlap the one from `start` to `end`.
fn overlapping(ranges: &BTreeMap<u64, u64>, start: u64, end: u64) -> Option<(u64, u64)> {
    let (&last, &size) = ranges.range(..end).next_back()?;
    (last + size > start).then_some((last, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn segments_go_down_and_fill_the_lowest_gap() {
        let mut addresses = Addresses::default();
        let offsets = [20, 50, 12, 8, 12, 2].map(|mebibytes| TOP - addresses.place_segment(mebibytes * MIB));
        // 20 is in a piece of 32, and 50 in the two pieces below; 12 follows 50, and 8 follows 20 since only 2 are left there.
        // The last 12 is in a piece of its own.
        assert_eq!(offsets, [32, 96, 46, 12, 128, 116].map(|mebibytes| mebibytes * MIB));
    }

    #[test]
    fn what_was_given_up_is_not_reserved_again() {
        let mut addresses = Addresses::default();
        let [first, second] = [20, 20].map(|mebibytes| addresses.place_segment(mebibytes * MIB));
        addresses.give_back(second);
        let third = addresses.place_segment(20 * MIB);
        assert_eq!((first - second, second - third), (32 * MIB, 32 * MIB));
        assert_eq!(addresses.place_segment(12 * MIB), third + 20 * MIB);
        addresses.give_back(third);
        assert_eq!(addresses.place_segment(20 * MIB), third, "its reservation has another segment");
    }

    #[test]
    fn recorded_segments_are_where_they_were_and_what_is_left_around_them_is_filled() {
        let mut addresses = Addresses::default();
        let base = 1 << 40;
        assert!(addresses.take_recorded(base + 20 * MIB, 2 * MIB));
        assert!(!addresses.take_recorded(base, 32 * MIB), "something is there");
        // The segment extends into the piece that is reserved already.
        assert!(addresses.take_recorded(base - 64 * MIB, 70 * MIB));
        assert_eq!(addresses.place_segment(14 * MIB), base + 6 * MIB);
        assert_eq!(addresses.place_segment(12 * MIB), base - 96 * MIB);
        addresses.give_back(base - 64 * MIB);
        let below = [84, 78, 72].map(|mebibytes| base - mebibytes * MIB);
        assert_eq!([6, 6, 6].map(|mebibytes| addresses.place_segment(mebibytes * MIB)), below);
        assert_eq!(addresses.place_segment(6 * MIB), base, "the two pieces before it are given up");
        for (address, bytes) in
            [(512, 512), (base + 3, 512), (u64::MAX - 511, 512), (u64::MAX - MIB + 1, 512)]
        {
            assert!(!addresses.take_recorded(address, bytes), "{address:#x} is not a place for a segment");
        }
    }

    #[test]
    fn who_comes_to_the_floor_begins_at_the_top_again() {
        let mut addresses = Addresses::default();
        let first = addresses.place_segment(20 * MIB);
        assert!(addresses.take_recorded(FLOOR, 32 * MIB));
        assert_eq!(addresses.place_segment(20 * MIB), first - 32 * MIB);
    }

    /// Segments of a few sizes, most of them short-lived, at invented and at recorded addresses, compared with an implementation
    /// that searches every reservation and every segment.
    #[test]
    fn gaps_are_those_that_are_found_by_looking_at_everything() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut addresses, mut live) = (Addresses::default(), Vec::new());
        for step in 0..6000 {
            let bytes = [2, 2, 6, 20, 34, 70][next(6) as usize] * MIB + 512 * next(2);
            match next(8) {
                0..3 if !live.is_empty() => {
                    addresses.give_back(live.swap_remove(next(live.len() as u64) as usize));
                }
                3 => {
                    let address = TOP - (1 + next(3000)) * MIB;
                    if addresses.take_recorded(address, bytes) {
                        live.push(address);
                    }
                }
                _ => {
                    let expected = lowest_gap(&addresses, bytes);
                    let address = addresses.place_segment(bytes);
                    assert_eq!(expected.unwrap_or(address), address, "step {step}");
                    live.push(address);
                }
            }
            if step % 1000 == 999 {
                live.drain(..).for_each(|address| addresses.give_back(address));
                assert!(addresses.reserved.is_empty() && addresses.gaps.sizes.is_empty());
                assert!(addresses.gaps.places.is_empty());
            }
        }
    }

    fn lowest_gap(addresses: &Addresses, bytes: u64) -> Option<u64> {
        addresses.reserved.iter().find_map(|(&start, &size)| {
            let end = start + size;
            let mut gap = start;
            // A segment that begins before the reservation may reach into it.
            for (&segment, &size) in addresses.live.iter().filter(|(segment, size)| *segment + *size > start)
            {
                if segment >= gap.saturating_add(bytes) || segment >= end {
                    break;
                }
                gap = segment + size;
            }
            (gap + bytes <= end).then_some(gap)
        })
    }

    /// The number of segments is that of a GPU of 600 GB.
    #[test]
    fn three_hundred_thousand_segments_lie_side_by_side() {
        let mut addresses = Addresses::default();
        let mut last = 0;
        for _ in 0..300_000 {
            last = addresses.place_segment(2 * MIB);
        }
        assert_eq!(last, TOP - 300_000_u64.next_multiple_of(16) * 2 * MIB + 15 * 2 * MIB);
    }
}
