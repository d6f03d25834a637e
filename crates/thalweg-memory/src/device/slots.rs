//! A vector whose elements have small integers as names, which stay valid while other elements are added and removed.
//!
//! Segments and their blocks point at each other; an index serves as a pointer in half the space, with a check on every use. A
//! slot is reused after its element was removed, so an index is only valid while the element lives: the holder of an index owns
//! the element, or is owned by it.

use std::ops::{Index, IndexMut};

/// A table of elements by index, in which free indices are reused.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, element: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = Some(element);
            return index;
        }
        let index = u32::try_from(self.slots.len()).expect("there are fewer than 2^32 elements");
        self.slots.push(Some(element));
        index
    }

    /// Removes an element and returns it.
    ///
    /// # Panics
    /// If there is no element with this index.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let element = self.slots[index as usize].take().expect("the index names an element");
        self.vacant.push(index);
        element
    }

    /// Returns the indices of all elements.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.slots).filter(|(_, slot)| slot.is_some()).map(|(index, _)| index)
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.slots[index as usize].as_ref().expect("the index names an element")
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.slots[index as usize].as_mut().expect("the index names an element")
    }
}
