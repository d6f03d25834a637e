//! Calls that are harmless to captures.

use std::sync::Arc;

use thalweg_driver::{CaptureMode, Driver};

/// Makes a call that a capture of another thread or device would forbid, although it is harmless to it: allocation, and queries
/// of events that were recorded outside captures. Only the runtime's own calls are made this way: a program must not rely on what
/// such a call waits for.
pub fn outside_capture<T>(
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
