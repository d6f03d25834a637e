//! [`SpareEvents`]: events that are recorded again instead of made anew.

use thalweg_driver::{Driver, EventHandle};
use thalweg_lock::{Mutex, MutexGuard};

/// The maximum number of events that a device keeps for reuse: more than collectives are submitted between two checks of a
/// watchdog, which drops their events.
const SPARE: usize = 4096;

/// Events without timing that the program has dropped, kept for reuse: creating one takes as long as recording it.
#[derive(Default, Debug)]
pub(crate) struct SpareEvents(Mutex<Vec<EventHandle>>);

impl SpareEvents {
    fn handles(&self) -> MutexGuard<'_, Vec<EventHandle>> {
        self.0.lock()
    }

    /// Returns an event, which must be recorded before any other use.
    pub(crate) fn take(&self) -> Option<EventHandle> {
        self.handles().pop()
    }

    /// Keeps an event; `false` if there are enough.
    pub(crate) fn keep(&self, handle: EventHandle) -> bool {
        let mut handles = self.handles();
        let has_room = handles.len() < SPARE;
        if has_room {
            handles.push(handle);
        }
        has_room
    }

    /// Destroys all kept events.
    pub(crate) fn destroy(&self, driver: &dyn Driver) {
        for handle in self.handles().drain(..) {
            // A driver that no longer knows the event has lost its context, and has nothing left to leak.
            let _ = driver.event_destroy(handle);
        }
    }
}
