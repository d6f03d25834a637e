//! External streams that the runtime has forgotten, and their remaining work.
//!
//! When the last clone of an external [`Stream`](crate::Stream) is dropped, its handle is released, because its owner may destroy
//! the stream from then on. But memory that was recorded as used on it may be freed later, and has to wait for its work. So a
//! last event is recorded at the end of that work, and takes the place of the stream.
//!
//! Invariant: a stream that is not listed here has no work left that this runtime submitted.
//!
//! The owner of a *transient* stream may destroy it earlier, without notice. The driver would crash on its handle then, so the
//! handle is used only in calls that name the stream, and not to record a last event. Waiting for its work waits for the device.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_driver::{Driver, EventFlags, EventHandle, StreamHandle};
use thalweg_lock::{Mutex, RwLock};

use crate::memory::outside_capture;

/// The forgotten streams of one driver.
#[derive(Debug)]
pub(crate) struct ForgottenStreams {
    driver: Arc<dyn Driver>,
    last: Mutex<FxHashMap<StreamHandle, LastWork>>,
    /// The transient streams, including forgotten ones.
    transient: RwLock<FxHashSet<StreamHandle>>,
}

/// The end of the work of a forgotten stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LastWork {
    /// The work ends at this event.
    Event(EventHandle),
    /// No event could be recorded: the device was lost, or the stream was capturing, or transient.
    Unknown,
}

impl ForgottenStreams {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, last: Mutex::default(), transient: RwLock::default() })
    }

    /// Marks a stream as transient: its owner may destroy it at any moment.
    pub(crate) fn set_transient(&self, stream: StreamHandle) {
        if !self.is_transient(stream) {
            self.transient.write().insert(stream);
        }
    }

    /// Returns whether the stream is transient: its owner may have destroyed it already.
    pub(crate) fn is_transient(&self, stream: StreamHandle) -> bool {
        self.transient.read().contains(&stream)
    }

    /// Releases the handle.
    pub(crate) fn forget(&self, stream: StreamHandle) {
        let last = self.record_last(stream).unwrap_or(LastWork::Unknown);
        let mut list = self.last.lock();
        list.retain(|_, last| !self.is_over(*last));
        list.insert(stream, last);
        // A handle that the driver no longer knows (its owner has destroyed the stream) is already released.
        let _ = self.driver.stream_destroy(stream);
    }

    /// Returns the end of the work of a forgotten stream; `None` if the work is complete.
    pub(crate) fn last_work(&self, stream: StreamHandle) -> Option<LastWork> {
        self.last.lock().get(&stream).copied()
    }

    fn record_last(&self, stream: StreamHandle) -> thalweg_driver::Result<LastWork> {
        if self.is_transient(stream) || self.driver.stream_capture_info(stream)?.id != 0 {
            return Ok(LastWork::Unknown);
        }
        let event = self.driver.event_create(self.driver.stream_device(stream)?, EventFlags::default())?;
        match self.driver.event_record(event, stream) {
            Ok(()) => Ok(LastWork::Event(event)),
            Err(error) => {
                let _ = self.driver.event_destroy(event);
                Err(error)
            }
        }
    }

    /// Returns whether the last work of a stream is complete. If so, the event for it is destroyed.
    fn is_over(&self, last: LastWork) -> bool {
        let LastWork::Event(event) = last else { return false };
        let is_over = outside_capture(&self.driver, || self.driver.event_query(event)).unwrap_or(false);
        if is_over {
            let _ = self.driver.event_destroy(event);
        }
        is_over
    }
}

impl Drop for ForgottenStreams {
    fn drop(&mut self) {
        for last in self.last.get_mut().values() {
            if let LastWork::Event(event) = last {
                let _ = self.driver.event_destroy(*event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;

    #[test]
    fn a_streams_last_event_is_recorded_unless_it_is_transient() {
        let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).expect("there is memory");
        let forgotten = ForgottenStreams::new(driver.clone());
        let [lasting, transient] = [(); 2].map(|()| driver.stream_create(0, 0).expect("there is room"));
        forgotten.set_transient(transient);
        forgotten.forget(transient);
        forgotten.forget(lasting);
        assert!(matches!(forgotten.last_work(lasting), Some(LastWork::Event(_))));
        // Its owner may have destroyed it, so the driver is not called.
        assert!(matches!(forgotten.last_work(transient), Some(LastWork::Unknown)));
    }
}
