//! The background thread that checks events, so that calls that need a block find it free.
//!
//! It checks every 100 microseconds as long as a freed block waits for an event, and sleeps while none does. It holds the
//! [`Core`], not the allocator: when the allocator's last handle is dropped, the allocator stops the thread and waits for it. It
//! touches no event while a capture is under way.
//!
//! # Note: falling asleep
//! A block may be freed just as the thread finds nothing to do. So the thread announces that it is about to sleep *before* its
//! last check, and a drop checks that announcement *after* it has delivered its block: with a fence on each side, one of the two
//! sees the other. A wake before the sleep makes the sleep end at once.
//!
//! This module and `core` use each other: the core wakes the thread, which works on the core.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use thalweg_lock::Mutex;

use super::core::Core;

const INTERVAL: Duration = Duration::from_micros(100);

/// The thread to wake, if there is one.
#[derive(Default, Debug)]
pub(crate) struct Wake {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Wake {
    /// Wakes the thread because there is something to do. Does not wait.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The lock is held only to store or remove the thread.
            if let Some(thread) = &*self.thread.lock() {
                thread.unpark();
            }
        }
    }

    fn set(&self, thread: Option<Thread>) {
        *self.thread.lock() = thread;
    }
}

/// The thread that checks events of pinned memory. Dropping this stops the thread, and waits for its end.
pub(crate) struct Poller {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread. Returns `None` if the system cannot create one: events are then checked by calls, as they are without
    /// the thread.
    pub(crate) fn start(core: &Arc<Core>) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(core), Arc::clone(&stop));
        let builder = std::thread::Builder::new().name("thalweg-pinned".to_owned());
        let thread = builder.spawn(move || run(&polled, &stopped)).ok()?;
        core.wake.set(Some(thread.thread().clone()));
        Some(Self { core: Arc::clone(core), stop, thread: Some(thread) })
    }
}

fn run(core: &Core, stop: &AtomicBool) {
    // An upstream that panics here harms no call: the state is valid, and the next check may succeed.
    let is_pending = || catch_unwind(AssertUnwindSafe(|| core.process_events())).unwrap_or(true);
    while !stop.load(Ordering::Acquire) {
        if is_pending() {
            std::thread::park_timeout(INTERVAL);
            continue;
        }
        core.wake.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_pending() && !stop.load(Ordering::Acquire) {
            std::thread::park();
        }
        core.wake.asleep.store(false, Ordering::Relaxed);
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.core.wake.set(None);
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The upstream may drop the allocator's last block while this very thread calls it; then the thread ends on its own.
        if thread.thread().id() != std::thread::current().id() {
            // The thread catches its panics, so the result contains no information.
            let _ = thread.join();
        }
    }
}
