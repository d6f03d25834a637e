//! Lists of hooks, and the handles that remove them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use thalweg_lock::Mutex;

/// Hooks of one kind, in the order of their registration.
pub(crate) struct HookList<F: ?Sized> {
    /// The hooks, each with its number and the output of the node that it is for.
    entries: Mutex<Vec<(u64, usize, Arc<F>)>>,
}

impl<F: ?Sized> Default for HookList<F> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<F: ?Sized + Send + Sync + 'static> HookList<F> {
    /// Adds a hook for an output of a node.
    pub(crate) fn add(self: &Arc<Self>, output: usize, hook: Arc<F>) -> HookHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.entries.lock().push((number, output, hook));
        HookHandle { list: Arc::downgrade(self) as Weak<dyn Remove>, number }
    }

    /// Returns the hooks, each with its output. A hook may register and remove others.
    pub(crate) fn hooks(&self) -> SmallVec<[(usize, Arc<F>); 2]> {
        let entries = self.entries.lock();
        entries.iter().map(|(_, output, hook)| (*output, Arc::clone(hook))).collect()
    }
}

/// A list that a handle can remove a hook from.
trait Remove: Send + Sync {
    fn remove(&self, number: u64);
}

impl<F: ?Sized + Send + Sync> Remove for HookList<F> {
    fn remove(&self, number: u64) {
        let mut entries = self.entries.lock();
        let place = entries.iter().position(|(other, ..)| *other == number);
        let removed = place.map(|place| entries.remove(place));
        drop(entries);
        // The hook is dropped after the lock is released.
        drop(removed);
    }
}

/// A handle of a registered hook (`RemovableHandle` of PyTorch). Dropping the handle does not remove the hook.
#[derive(Clone)]
pub struct HookHandle {
    list: Weak<dyn Remove>,
    number: u64,
}

impl HookHandle {
    /// Removes the hook, if it is still registered. A pass that is running it continues.
    pub fn remove(&self) {
        if let Some(list) = self.list.upgrade() {
            list.remove(self.number);
        }
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookHandle({})", self.number)
    }
}
