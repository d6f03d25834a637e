//! Programs that submit work to a device without this driver, and report it: for example PyTorch under a caching allocator of
//! ours.
//!
//! Their memory comes from this driver, so the model knows it; their streams are external ones. Other orders and accesses are
//! reported here when they are submitted, in the order of submission of each stream. The reports make no driver calls, except one
//! query: work on a stream that captures is not work yet, and is ignored.
//!
//! # What it does not do
//! Memory may have been written by work that is not reported, so no read counts as a read of uninitialised bytes, and no access
//! as one outside its block. The work of a launched CUDA graph is not reported.

use thalweg_driver::{Access, StreamHandle};

use super::clock::Clock;
use super::model::{Model, Record};
use super::shadow::MarkKind;
use super::touch::Manner;
use super::{SanitizerDriver, Site, TOLD, work};

/// Work that a host thread has seen complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// An event's latest record, by the event's `CUevent`.
    Event(u64),
    /// All work that was submitted to a stream so far.
    Stream(StreamHandle),
    /// All work that was submitted to a device so far.
    Device(u32),
}

/// Returns the key of an event of another library. Such events are stored together with the driver's own, which count from 1.
const fn key(event: u64) -> u64 {
    event | 1 << 63
}

impl SanitizerDriver {
    /// Reports work that touches memory, which was just submitted to `stream`, or is about to be. Errors are added to
    /// [`findings`](Self::findings). In a capture the work is ignored, and the result is `false`.
    pub fn reported_work(&self, stream: StreamHandle, site: Site, accesses: &[Access]) -> bool {
        if self.captures_natively(stream) {
            return false;
        }
        let host = self.host();
        let mut model = self.model.lock();
        let site = model.sites.reported(site);
        if let Some(id) = model.stream(stream) {
            let number = model.submit(id, host);
            let mark = model.mark(id, number, site, MarkKind::Command);
            work(&mut model, id, |model, clock| {
                for access in accesses {
                    model.touch(clock, mark, access, Manner::Reported);
                }
            });
        }
        true
    }

    /// Reports that an event, given as its `CUevent`, was recorded on a stream.
    pub fn reported_record(&self, event: u64, stream: StreamHandle) {
        let is_captured = self.captures_natively(stream);
        let host = self.host();
        let mut model = self.model.lock();
        if is_captured {
            model.events.insert(key(event), Record::Captured);
        } else if let Some(id) = model.stream(stream) {
            model.record(key(event), id, host);
        }
    }

    /// Reports that a stream waits for the latest record of an event, if it has one.
    pub fn reported_wait(&self, stream: StreamHandle, event: u64) {
        if self.captures_natively(stream) {
            return;
        }
        let host = self.host();
        let mut model = self.model.lock();
        if let Some(id) = model.stream(stream) {
            let site = TOLD.get().map_or(0, |site| model.sites.reported(site));
            model.wait(id, key(event), host, site);
        }
    }

    /// Reports that the calling thread has seen this complete: it waited, or a query returned true.
    pub fn reported_complete(&self, what: Completed) {
        let host = self.host();
        let mut model = self.model.lock();
        let clock: Option<Clock> = match what {
            Completed::Event(event) => model.recorded(key(event)),
            Completed::Stream(stream) => model.stream(stream).map(|id| model.frontier(id)),
            Completed::Device(device) => Some(model.device_frontier(device)),
        };
        if let Some(clock) = clock {
            model.note_seen(host, &clock);
        }
    }

    /// Reports that an event was destroyed: another may get its handle.
    pub fn reported_event_destroyed(&self, event: u64) {
        self.model.lock().events.remove(&key(event));
    }

    /// Sets the position of the calling thread in its program, for later allocations, records and frees; `None` clears it.
    pub fn reported_site(site: Option<Site>) {
        TOLD.set(site);
    }

    /// Returns whether the calling thread has set its position.
    pub fn has_reported_site() -> bool {
        TOLD.get().is_some()
    }

    /// Returns the findings so far, except the first `from`.
    pub fn findings_from(&self, from: usize) -> Vec<super::Finding> {
        self.model.lock().findings.list.get(from..).unwrap_or_default().to_vec()
    }

    /// Makes advice name calls in Python's syntax.
    pub fn speak_python(&self) {
        self.model.lock().speaks_python = true;
    }

    /// Returns whether the stream takes part in a capture, whichever call began it.
    fn captures_natively(&self, stream: StreamHandle) -> bool {
        self.inner.stream_capture_info(stream).is_ok_and(|info| info.id != 0)
    }
}

impl Model {
    /// Returns the number of the site that the calling thread has set, or of another.
    pub(super) fn site_or(
        &mut self,
        other: impl FnOnce(&mut Self) -> super::site::SiteId,
    ) -> super::site::SiteId {
        match TOLD.get() {
            Some(site) => self.sites.reported(site),
            None => other(self),
        }
    }
}
