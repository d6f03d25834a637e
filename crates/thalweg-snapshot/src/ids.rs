//! Numbers of things by what the things are.
//!
//! A file can have millions of distinct stacks and frames. They lie in tables of their own already, so all that is kept here is
//! their numbers: four bytes a place, found by hash.

/// The things of one table by hash. The hashes of a table and what is asked for are the caller's, and must agree.
#[derive(Default)]
pub(super) struct Ids {
    /// A number plus one in each; 0 is empty. Their count is a power of two, or 0.
    places: Vec<u32>,
    used: usize,
}

impl Ids {
    /// The number with this hash of which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let id = self.places[at].checked_sub(1)?;
            if is(id) {
                return Some(id);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a number, below 2^32 - 1, that is not there yet. `hash_of` gives the hash of every number that is there, and of this one.
    pub(super) fn insert(&mut self, id: u32, hash_of: impl Fn(u32) -> u64) {
        // At most three quarters are full, so that a search ends soon.
        if self.used >= self.places.len() / 4 * 3 {
            let old = std::mem::take(&mut self.places);
            self.places = vec![0; (old.len() * 2).max(64)];
            old.iter().filter_map(|place| place.checked_sub(1)).for_each(|id| self.place(id, hash_of(id)));
        }
        self.place(id, hash_of(id));
        self.used += 1;
    }

    fn place(&mut self, id: u32, hash: u64) {
        let mask = self.places.len() - 1;
        let mut at = hash as usize & mask;
        while self.places[at] != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = id + 1;
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.places[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_what_they_stand_for_however_their_hashes_meet() {
        let things: Vec<u64> = (0..1000).map(|number| number * number).collect();
        for hash in [|thing: u64| thing, |thing: u64| thing % 3, |_: u64| u64::MAX] {
            let mut ids = Ids::default();
            for (id, &thing) in things.iter().enumerate() {
                assert_eq!(ids.find(hash(thing), |id| things[id as usize] == thing), None);
                ids.insert(id as u32, |id| hash(things[id as usize]));
            }
            for (id, &thing) in things.iter().enumerate() {
                assert_eq!(ids.find(hash(thing), |id| things[id as usize] == thing), Some(id as u32));
            }
        }
    }
}
