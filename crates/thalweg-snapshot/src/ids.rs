//! Numbers of things by what the things are.
//!
//! A file can have millions of distinct stacks and frames. They lie in tables of their own already, so all that is kept here is
//! their numbers: four bytes a place, found by hash. A number needs no more bits than count the places, and the others hold bits of
//! the hash, so that a thing is hardly ever looked at in vain.

/// The things of one table by hash. The hashes of a table and what is asked for are the caller's, and must agree.
#[derive(Default)]
pub(super) struct Ids {
    /// A number plus one in the lowest bits of each, and bits of its hash above them; 0 is empty. Their count is a power of two, or 0.
    places: Vec<u32>,
    used: u32,
}

impl Ids {
    /// The number of numbers that there can be.
    pub(super) const MOST: u32 = 1 << 31;

    /// Returns the number with this hash of which `is` holds, or where it would stand.
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

    /// Adds the next number, to where it was looked for last; they count up from 0. `hash_of` gives the hash of every number before it.
    pub(super) fn insert(&mut self, Vacant { hash, at }: Vacant, id: u32, hash_of: impl Fn(u32) -> u64) {
        assert!(id == self.used && id < Self::MOST, "numbers count up");
        // At most three quarters are full, so that a search ends soon.
        if self.used as usize >= self.places.len() / 4 * 3 {
            let count = (self.places.len() * 2).max(64);
            // The old ones are given back first: they are a quarter of all that a file takes.
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

/// The place where a thing that is not there yet would stand. Another insertion makes it worthless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Vacant {
    hash: u64,
    at: u32,
}

/// From a place that is taken to the next that is tried. Sixteen that have places side by side then have them so again, and all places are
/// come by.
const STEP: u32 = 17;

/// Returns the bits of a hash that stand beside a number.
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
