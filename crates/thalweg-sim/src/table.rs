//! Handle tables: objects that are named by checked integers.
//!
//! A handle is `[driver: 16 | generation: 24 | index: 24]`. The driver's number makes a handle of one simulator invalid in
//! another; the generation makes a destroyed handle invalid although its slot is reused. Slots are reused in the order in
//! which they were freed, so that a generation is reused as late as possible.
//!
//! Invariant: a handle is valid exactly from the `insert` that returned it to the `remove` that ended it.

use std::collections::VecDeque;

const INDEX_BITS: u32 = 24;
const FIELD_MASK: u64 = (1 << INDEX_BITS) - 1;

/// A table of objects of one kind, by handle.
#[derive(Debug)]
pub(crate) struct Table<T> {
    driver: u16,
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Table<T> {
    /// Creates an empty table. `driver` is the number of its driver, which is not 0.
    pub(crate) fn new(driver: u16) -> Self {
        assert_ne!(driver, 0, "driver numbers start at 1: no handle is 0");
        Self { driver, slots: Vec::new(), free: VecDeque::new() }
    }

    /// Stores `value` and returns its handle.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop_front().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer than 2^24 objects");
            assert!(u64::from(index) <= FIELD_MASK, "more than 2^24 objects of one kind are alive");
            self.slots.push(Slot { generation: 0, value: None });
            index
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        u64::from(self.driver) << (2 * INDEX_BITS) | slot.generation << INDEX_BITS | u64::from(index)
    }

    /// Returns the object of a handle, if the handle is valid.
    pub(crate) fn get(&self, raw: u64) -> Option<&T> {
        self.slots[self.slot(raw)?].value.as_ref()
    }

    /// Returns the object of a handle, mutably.
    pub(crate) fn get_mut(&mut self, raw: u64) -> Option<&mut T> {
        let slot = self.slot(raw)?;
        self.slots[slot].value.as_mut()
    }

    /// Ends the handle and returns its object.
    pub(crate) fn remove(&mut self, raw: u64) -> Option<T> {
        let index = self.slot(raw)?;
        let slot = &mut self.slots[index];
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & FIELD_MASK;
        self.free.push_back(index as u32);
        Some(value)
    }

    /// Returns all objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let driver = u64::from(self.driver) << (2 * INDEX_BITS);
        self.slots.iter().enumerate().filter_map(move |(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((driver | slot.generation << INDEX_BITS | index as u64, value))
        })
    }

    fn slot(&self, raw: u64) -> Option<usize> {
        let index = (raw & FIELD_MASK) as usize;
        let slot = self.slots.get(index)?;
        let of_this_driver = raw >> (2 * INDEX_BITS) == u64::from(self.driver);
        (of_this_driver && slot.generation == (raw >> INDEX_BITS) & FIELD_MASK).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_ends_with_its_object() {
        let mut table = Table::new(7);
        let first = table.insert('a');
        assert_eq!(table.get(first), Some(&'a'));
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b');
        assert_eq!(second & FIELD_MASK, first & FIELD_MASK, "the slot is used again");
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(second, &'b')]);
    }

    #[test]
    fn handles_of_another_driver_and_invented_ones_are_invalid() {
        let mut mine = Table::new(1);
        let mut other = Table::new(2);
        let (in_mine, in_other) = (mine.insert(1), other.insert(2));
        assert_eq!((mine.get(in_other), other.get(in_mine)), (None, None));
        assert_eq!((mine.get(0), mine.get(u64::MAX), mine.get(in_mine + 1)), (None, None, None));
    }
}
