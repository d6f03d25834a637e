//! A vector whose elements are named by small integers that stay valid while others come and go.
//!
//! Segments and their blocks point at each other; an index says the same as a pointer would, in half the space, with a check
//! on every use. A slot is used again after its element was removed, so that an index means something only as long
//! as the element lives: the holder of an index owns the element, or is owned by it.

use std::ops::{Index, IndexMut};

/// Elements by index.
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

    /// Takes an element out.
    ///
    /// # Panics
    /// If there is none of this index.
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
