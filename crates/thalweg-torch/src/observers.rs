//! Observers of an allocator: the caller's functions, which are also kept for devices that are opened later.

use std::sync::{Arc, Weak};

use thalweg_memory::history::Event;
use thalweg_memory::observe::OutOfMemoryEvent;

use crate::open_device::OpenDevice;

/// An observer of each event; called with the lock of the event's arena held.
pub(crate) type EventObserver = Arc<dyn Fn(&OpenDevice, &Event) + Send + Sync>;
/// An observer of each request that fails for lack of memory; called with no lock held.
pub(crate) type OutOfMemoryObserver = Arc<dyn Fn(&OutOfMemoryEvent) + Send + Sync>;
/// A function that is called to free memory when it is short, and returns whether it freed any.
pub(crate) type FreeMemoryCallback = thalweg_memory::FreeMemoryCallback;

/// A registered observer.
#[derive(Clone)]
pub(crate) enum Observer {
    Event(EventObserver),
    OutOfMemory(OutOfMemoryObserver),
    /// An observer of requests that are refused without an attempt.
    Rejection(OutOfMemoryObserver),
    FreeMemory(FreeMemoryCallback),
}

impl Observer {
    /// Attaches the observer to a device.
    pub(crate) fn attach(&self, device: &Arc<OpenDevice>) {
        let allocator = device.allocator();
        match self {
            Self::Event(observer) => {
                // The device has the allocator, which has the observer: a strong reference would be a circle.
                let (observer, device): (_, Weak<OpenDevice>) =
                    (Arc::clone(observer), Arc::downgrade(device));
                allocator.add_event_observer(move |event| {
                    if let Some(device) = device.upgrade() {
                        observer(&device, event);
                    }
                });
            }
            Self::OutOfMemory(observer) => {
                let observer = Arc::clone(observer);
                allocator.add_out_of_memory_observer(move |event| observer(event));
            }
            Self::Rejection(observer) => {
                let observer = Arc::clone(observer);
                allocator.add_rejection_observer(move |event| observer(event));
            }
            Self::FreeMemory(callback) => allocator.add_free_memory_callback(Arc::clone(callback)),
        }
    }
}
