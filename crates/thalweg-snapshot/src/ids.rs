//! Numbers of values, found by the values themselves.
//!
//! A file can have millions of distinct stacks and frames. They are stored in tables of their own, so only their numbers are
//! stored here: four bytes per slot, found by hash. A number needs no more bits than the number of slots, and the other bits of a
//! slot hold bits of the hash, so that a value is hardly ever compared in vain.

/// The numbers of the values of one table, by hash. The caller computes the hashes of the table and of the searched value, which
/// must agree.
#[derive(Default)]
pub(super) struct Ids {
    /// The slots of the hash table. The lowest bits are a number plus one, and the other bits are bits of the number's hash; 0 is
    /// an empty slot. The length is a power of two, or 0.
    places: Vec<u32>,
    used: u32,
}

impl Ids {
    /// The greatest number of values.
    pub(super) const MOST: u32 = 1 << 31;

    /// Returns the number that has this hash and for which `is` returns `true`, or the slot where such a number would be stored.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Result<u32, Vacant> {
        let Some(mask) = self.mask() else { return Err(Vacant { hash, at: 0 }) };
        let mut at = hash as u32 & mask;
        loop {
            let place = self.places[at as usize];
            let Some(id) = (place & mask).checked_sub(1) else { return Err(Vacant { hash, at }) };
            if place & !mask == tag(hash, mask) && is(id) {
                return Ok(id);
            }
            at = at.wrapping_add(STEP) & mask;
        }
    }

    /// Adds the next number, at the slot that was found last; numbers count up from 0. `hash_of` returns the hash of each earlier
    /// number.
    pub(super) fn insert(&mut self, Vacant { hash, at }: Vacant, id: u32, hash_of: impl Fn(u32) -> u64) {
        assert!(id == self.used && id < Self::MOST, "numbers count up");
        // At most three quarters of the slots are full, so that searches are short.
        if self.used as usize >= self.places.len() / 4 * 3 {
            let count = (self.places.len() * 2).max(64);
            // The old slots are freed first: they are a quarter of all the memory that a file takes.
            self.places = Vec::new();
            self.places = vec![0; count];
            for id in 0..=id {
                let hash = if id == self.used { hash } else { hash_of(id) };
                let Err(Vacant { at, .. }) = self.find(hash, |_| false) else {
                    unreachable!("nothing is it")
                };
                self.place(at, hash, id);
            }
        } else {
            self.place(at, hash, id);
        }
        self.used += 1;
    }

    fn place(&mut self, at: u32, hash: u64, id: u32) {
        let mask = self.places.len() as u32 - 1;
        self.places[at as usize] = tag(hash, mask) | (id + 1);
    }

    fn mask(&self) -> Option<u32> {
        self.places.len().checked_sub(1).map(|mask| mask as u32)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.places[..])
    }
}

/// The slot where a missing value would be stored. Any other insertion invalidates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Vacant {
    hash: u64,
    at: u32,
}

/// The distance from an occupied slot to the next slot that is tried. If the slots of sixteen adjacent values are taken, this
/// step leads to sixteen adjacent slots again. Repeated steps visit all slots.
const STEP: u32 = 17;

/// Returns the bits of a hash that are stored with a number.
#[inline]
fn tag(hash: u64, mask: u32) -> u32 {
    (hash >> 32) as u32 & !mask
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn numbers_are_found_by_what_they_stand_for_however_their_hashes_meet() {
        let things: Vec<u64> = (0..1000).map(|number| number * number).collect();
        for hash in [|thing: u64| thing, |thing: u64| thing % 3, |_: u64| u64::MAX] {
            let mut ids = Ids::default();
            for (id, &thing) in things.iter().enumerate() {
                let vacant = ids.find(hash(thing), |id| things[id as usize] == thing);
                ids.insert(vacant.expect_err("it is new"), id as u32, |id| hash(things[id as usize]));
            }
            for (id, &thing) in things.iter().enumerate() {
                assert_eq!(ids.find(hash(thing), |id| things[id as usize] == thing), Ok(id as u32));
            }
        }
    }

    #[test]
    fn hardly_a_thing_is_looked_at_in_vain() {
        let hash = |thing: u32| u64::from(thing).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
        let (mut ids, looks) = (Ids::default(), Cell::new(0));
        for id in 0..100_000 {
            let vacant = ids.find(hash(id), |_| {
                looks.set(looks.get() + 1);
                false
            });
            ids.insert(vacant.expect_err("nothing is it"), id, hash);
        }
        assert!(looks.get() < 1000, "{} of 100,000", looks.get());
    }
}
