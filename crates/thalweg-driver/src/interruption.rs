//! Waits that the program may give up: how a layer above, such as an interpreter with signals, ends the wait of a thread for the
//! device. The work that was waited for goes on.

use std::sync::OnceLock;
use std::time::Duration;

/// The longest time between two questions of a thread that waits.
pub const INTERRUPTION_INTERVAL: Duration = Duration::from_millis(20);

static HOOK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that a thread calls every [`INTERRUPTION_INTERVAL`] while it waits in a call of a driver that can be
/// interrupted; the first that is set stays. Where it answers `true`, the call is refused with [`Code::NotReady`](crate::Code::NotReady). It is called
/// without any lock of the driver and must not call the driver.
///
/// The simulated GPU's `copy_to_host`, `stream_synchronize`, `event_synchronize` and `device_synchronize` can be interrupted; a GPU's cannot.
pub fn set_interruption(hook: fn() -> bool) {
    let _ = HOOK.set(hook);
}

/// Returns the function that says whether the calling thread is to give up its wait.
pub fn interruption() -> Option<fn() -> bool> {
    HOOK.get().copied()
}
