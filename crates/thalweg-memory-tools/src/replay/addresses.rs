//! Where a driver puts segments, as far as that is known from recorded addresses.
//!
//! Among free blocks of one size the one at the lowest address serves, so addresses decide what lies next to what, and with
//! that how much is reserved in the end. A replay under the settings of the recording gets the recorded addresses. Under other
//! settings it asks for segments that nobody recorded, and their addresses are invented, by the rules that a driver's own show:
//!
//! - Addresses are *reserved* in whole pieces of 32 MiB, each time below everything that was reserved before.
//! - A segment goes to the lowest gap of what is reserved, if one is large enough: small segments fill what large ones left of
//!   their last piece.
//! - A reservation without segments is given up, and its addresses are not used again.
//!
//! ```text
//!   new segments are reserved downwards                 <───┐
//!  ┌──────────────┬──────────────┐      ┌───────────────────┴─────────┐
//!  │ 24 MiB │ 8   │ 20 MiB │ 2│..│      │        50 MiB         │ 12  │
//!  └──────────────┴──────────────┘      └─────────────────────────────┘
//!         gaps are filled, the lowest first
//! ```
//!
//! What the driver keeps for itself is not known, so an invented address can be one that a real driver would have skipped.

use std::collections::BTreeMap;

/// Reservations are multiples of this, in size and place.
const PIECE_BYTES: u64 = 32 << 20;
/// Where the first address is invented below, if none is recorded.
const TOP: u64 = 0x7000_0000_0000;
/// Below this the fake has its ranges for pages. Whoever comes down to it begins at the top again.
const FLOOR: u64 = 0x5000_0000_0000;

/// The segments that are out, and what is reserved around them: sizes by address.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    live: BTreeMap<u64, u64>,
    reserved: BTreeMap<u64, u64>,
    /// Where the lowest reservation since the top begins.
    lowest: Option<u64>,
}

impl Addresses {
    /// Puts a segment at the recorded address, if that can be; whether it could.
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

    /// Puts a segment where a driver would, and returns its address.
    pub(crate) fn invent(&mut self, bytes: u64) -> u64 {
        let address = self.lowest_gap(bytes).unwrap_or_else(|| self.below_all(bytes));
        self.put(address, bytes);
        address
    }

    /// The segment at `address` is no more.
    pub(crate) fn give_back(&mut self, address: u64) {
        let Some(bytes) = self.live.remove(&address) else { return };
        let end = address + bytes;
        let mut before = end;
        while let Some((start, size)) = overlapping(&self.reserved, address, before) {
            if overlapping(&self.live, start, start + size).is_none() {
                self.reserved.remove(&start);
            }
            before = start;
        }
    }

    /// Puts a segment where no other is. Pieces that it touches are reserved from now on, next to each other as one.
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
                    self.lowest = Some(self.lowest.map_or(start, |lowest| lowest.min(start)));
                    next
                }
            };
            start = next;
        }
    }

    fn lowest_gap(&self, bytes: u64) -> Option<u64> {
        self.reserved.iter().find_map(|(&start, &size)| {
            let end = start + size;
            let mut gap = start;
            // A segment that begins before the reservation may reach into it.
            while let Some((segment, size)) = overlapping(&self.live, gap, end.min(gap + bytes)) {
                gap = segment + size;
                if gap >= end {
                    return None;
                }
            }
            (end - gap >= bytes).then_some(gap)
        })
    }

    fn below_all(&mut self, bytes: u64) -> u64 {
        let size = bytes.next_multiple_of(PIECE_BYTES);
        let mut end = self.lowest.unwrap_or(TOP);
        loop {
            // Some systems record low addresses; those have all that is below them.
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

/// The last of the ranges that share an address with the one from `start` to `end`.
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
        let offsets = [20, 50, 12, 8, 12, 2].map(|mebibytes| TOP - addresses.invent(mebibytes * MIB));
        // 20 lies in 32 and 50 in the 64 below; 12 is behind 50, and 8 behind 20 since only 2 are left there. Then 12 is alone.
        assert_eq!(offsets, [32, 96, 46, 12, 128, 116].map(|mebibytes| mebibytes * MIB));
    }

    #[test]
    fn what_was_given_up_is_not_reserved_again() {
        let mut addresses = Addresses::default();
        let [first, second] = [20, 20].map(|mebibytes| addresses.invent(mebibytes * MIB));
        addresses.give_back(second);
        let third = addresses.invent(20 * MIB);
        assert_eq!((first - second, second - third), (32 * MIB, 32 * MIB));
        assert_eq!(addresses.invent(12 * MIB), third + 20 * MIB);
        addresses.give_back(third);
        assert_eq!(addresses.invent(20 * MIB), third, "its reservation has another segment");
    }

    #[test]
    fn recorded_segments_are_where_they_were_and_what_is_left_around_them_is_filled() {
        let mut addresses = Addresses::default();
        let base = 1 << 40;
        assert!(addresses.take_recorded(base + 20 * MIB, 2 * MIB));
        assert!(!addresses.take_recorded(base, 32 * MIB), "something is there");
        // It reaches into the piece that is reserved already.
        assert!(addresses.take_recorded(base - 64 * MIB, 70 * MIB));
        assert_eq!(addresses.invent(14 * MIB), base + 6 * MIB);
        assert_eq!(addresses.invent(12 * MIB), base - 96 * MIB);
        addresses.give_back(base - 64 * MIB);
        let below = [84, 78, 72].map(|mebibytes| base - mebibytes * MIB);
        assert_eq!([6, 6, 6].map(|mebibytes| addresses.invent(mebibytes * MIB)), below);
        assert_eq!(addresses.invent(6 * MIB), base, "the two pieces before it are given up");
        for (address, bytes) in
            [(512, 512), (base + 3, 512), (u64::MAX - 511, 512), (u64::MAX - MIB + 1, 512)]
        {
            assert!(!addresses.take_recorded(address, bytes), "{address:#x} is no place for a segment");
        }
    }

    #[test]
    fn who_comes_to_the_floor_begins_at_the_top_again() {
        let mut addresses = Addresses::default();
        let first = addresses.invent(20 * MIB);
        assert!(addresses.take_recorded(FLOOR, 32 * MIB));
        assert_eq!(addresses.invent(20 * MIB), first - 32 * MIB);
    }
}
