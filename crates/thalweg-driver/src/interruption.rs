//! Waits that the program can interrupt: a layer above, such as an interpreter with signals, can end a thread's wait for
//! the device. The work that the thread waited for continues.

use std::sync::OnceLock;
use std::time::Duration;

/// The longest time between two checks of a waiting thread.
pub const INTERRUPTION_INTERVAL: Duration = Duration::from_millis(20);

static HOOK: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that a thread calls every [`INTERRUPTION_INTERVAL`] while it waits in a driver call that can be
/// interrupted. Only the first call has an effect. If the function returns `true`, the driver call fails with
/// [`Code::NotReady`](crate::Code::NotReady). The function is called without any lock of the driver and must not call the
/// driver.
///
/// The simulated GPU's `copy_to_host`, `stream_synchronize`, `event_synchronize` and `device_synchronize` can be
/// interrupted; a GPU's cannot.
pub fn set_interruption(hook: fn() -> bool) {
    let _ = HOOK.set(hook);
}

/// Returns the function that decides whether the calling thread gives up its wait.
pub fn interruption() -> Option<fn() -> bool> {
    HOOK.get().copied()
}
