//! Calls that no capture minds.

use std::sync::Arc;

use thalweg_driver::{CaptureMode, Driver};

/// Makes a call that a capture of another thread or device would forbid, and that is harmless to it: allocation, and asking
/// for events that were recorded outside captures. The call is the runtime's own: a program may not count on what it waits for.
pub(crate) fn outside_capture<T>(
    driver: &Arc<dyn Driver>,
    call: impl FnOnce() -> thalweg_driver::Result<T>,
) -> thalweg_driver::Result<T> {
    let former = driver.thread_exchange_capture_mode(CaptureMode::Relaxed)?;
    let instrument = driver.instrument();
    let was_internal = instrument.map(|instrument| instrument.exchange_internal(true));
    let result = call();
    if let (Some(instrument), Some(was_internal)) = (instrument, was_internal) {
        instrument.exchange_internal(was_internal);
    }
    driver.thread_exchange_capture_mode(former)?;
    result
}
