//! Where things wait that come back while their owner is busy.
//!
//! A drop may come from any thread, in the middle of anything, and must neither fail nor wait. If the owner's lock is taken
//! (its upstream may be blocking in another thread's call, or may itself be dropping a block), what is dropped is left
//! here, and whoever takes the owner's lock next empties the inbox first.
//!
//! Nearly always there is nothing, and that is seen by one load. An element that is put in while the owner is unlocking may
//! lie here until the next call; it is in no hurry.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue whose lock is only ever held for a push or a pop.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    length: AtomicUsize,
    elements: Mutex<VecDeque<T>>,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { length: AtomicUsize::new(0), elements: Mutex::default() }
    }
}

impl<T> Inbox<T> {
    /// Whether there was nothing at the time of the call.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    pub(crate) fn push(&self, element: T) {
        let mut elements = self.elements();
        elements.push_back(element);
        self.length.store(elements.len(), Ordering::Release);
    }

    /// The element that was put in first.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut elements = self.elements();
        let element = elements.pop_front();
        self.length.store(elements.len(), Ordering::Release);
        element
    }

    fn elements(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.elements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
