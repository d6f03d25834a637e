//! The common parts of driver calls: work, waits, freed memory, and the host's accesses.
//!
//! This module and the root of the crate use each other: these are methods of [`SanitizerDriver`], which its driver calls use.

use std::sync::atomic::Ordering;

use thalweg_driver::{
    Access, AccessMode, CaptureInfo, CaptureStatus, Code, Error, Label, Result, StreamHandle,
};

use super::capture::CapturedCall;
use super::clock::Clock;
use super::model::{Model, StreamId};
use super::shadow::{Mark, MarkKind};
use super::touch::Manner;
use super::{SanitizerDriver, take_label};

impl SanitizerDriver {
    /// Returns the state of the stream's capture, if it takes part in one.
    pub(super) fn capturing(&self, stream: StreamHandle) -> Option<CaptureInfo> {
        self.arrive();
        if self.captures.load(Ordering::Acquire) == 0 {
            return None;
        }
        let info = self.inner.stream_capture_info(stream).ok()?;
        (info.status == CaptureStatus::Active).then_some(info)
    }

    /// Notes a command on a stream, or a node of its capture.
    pub(super) fn command(
        &self,
        stream: StreamHandle,
        label: Label,
        accesses: &[Access],
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.capturing(stream);
        call()?;
        let after = before.as_ref().map(|_| self.inner.stream_capture_info(stream)).transpose()?;
        let host = self.host();
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        let site = model.sites.of(label);
        if let (Some(before), Some(after)) = (&before, &after) {
            model.captured(&*self.inner, before, after, site, CapturedCall::Accesses(accesses));
        } else if let Some(id) = model.stream(stream) {
            let number = model.submit(id, host);
            let mark = model.mark(id, number, site, MarkKind::Command);
            work(&mut model, id, |model, clock| {
                for access in accesses {
                    model.touch(clock, mark, access, Manner::Submitted);
                }
            });
        }
        self.answer(&model, found, label.operator, ())
    }

    /// Makes the host wait for work that a clock describes.
    pub(super) fn waits(
        &self,
        frontier: impl FnOnce(&mut Model) -> Option<Clock>,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.query(frontier, || call().map(|()| true)).map(|_| ())
    }

    /// Queries for the host whether the work that a clock describes is complete.
    pub(super) fn query(
        &self,
        frontier: impl FnOnce(&mut Model) -> Option<Clock>,
        call: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        self.arrive();
        // Taken before the call: work that other threads submit while this call waits is not waited for.
        let clock = frontier(&mut self.model.lock());
        let answer = call();
        self.note_standstill(&answer);
        // Nothing runs on a lost device any more, so its work counts as complete.
        let is_over = answer.as_ref().map_or_else(Error::is_device_lost, |is_done| *is_done);
        if let (true, Some(clock)) = (is_over, clock) {
            self.seen(&clock);
            self.model.lock().decide();
        }
        answer
    }

    /// Notes a wait that timed out, which shows that expected work cannot continue: a collective that a rank has not joined, a
    /// thread that nothing wakes. That is the cause of later findings about memory that is freed while that work uses it.
    pub(super) fn note_standstill<T>(&self, answer: &Result<T>) {
        if answer.as_ref().is_err_and(|error| error.code() == Code::Timeout) {
            self.model.lock().stands_still = true;
        }
    }

    /// Notes that memory is freed by a call that waits for all work that `frontier` describes.
    pub(super) fn gives_back(
        &self,
        start: u64,
        name: &'static str,
        frontier: impl FnOnce(&mut Model) -> Clock,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (clock, taken) = {
            let mut model = self.model.lock();
            let site = model.sites.labelled(take_label(), name);
            (frontier(&mut model), model.depart(start, site))
        };
        let result = call();
        let mut model = self.model.lock();
        model.departed(taken, result.is_ok());
        drop(model);
        if result.is_ok() {
            self.seen(&clock);
        }
        result
    }

    /// Notes that a range is unmapped by a call that does not wait.
    pub(super) fn unmaps(
        &self,
        start: u64,
        bytes: u64,
        name: &'static str,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let host = self.host();
        let (taken, found) = {
            let mut model = self.model.lock();
            let found = model.findings.list.len();
            let site = model.sites.labelled(take_label(), name);
            model.check_unmap(start, bytes, host, site);
            (model.depart_range(start, start.saturating_add(bytes), site), found)
        };
        let result = call();
        let mut model = self.model.lock();
        model.departed(taken, result.is_ok());
        result.and_then(|()| self.answer(&model, found, name, ()))
    }

    /// Checks the host's access to pinned memory.
    pub(super) fn host_touches(
        &self,
        start: u64,
        bytes: usize,
        mode: AccessMode,
        name: &'static str,
    ) -> Result<()> {
        let host = self.host();
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        let site = model.sites.labelled(take_label(), name);
        let number = model.host_acts(host);
        let strand = model.hosts[host as usize].strand;
        let access = Access::new(start, bytes as u64, mode);
        let mark =
            Mark { start, bytes: access.bytes, mode, ..Mark::new(strand, number, site, MarkKind::Host) };
        let clock = std::mem::take(&mut model.hosts[host as usize].clock);
        model.touch(&clock, mark, &access, Manner::Submitted);
        model.hosts[host as usize].clock = clock;
        self.answer(&model, found, name, ())
    }

    /// Adds a stream for which the driver has returned a handle.
    pub(super) fn enter_stream(&self, device: u32, handle: StreamHandle, is_legacy: bool) {
        let known = self.model.lock().stream(handle).is_some();
        if known {
            return;
        }
        let cuda_stream = self.inner.cuda_stream(handle).unwrap_or(handle.raw());
        let is_blocking = self.inner.stream_is_blocking(handle).unwrap_or(false);
        let is_legacy = is_legacy || cuda_stream <= 1;
        self.model.lock().add_stream(handle, device, cuda_stream, is_legacy, is_blocking);
    }

    /// Notes an allocation or a free in stream order.
    pub(super) fn in_stream_order(
        &self,
        stream: StreamHandle,
        before: Option<&CaptureInfo>,
        name: &'static str,
        node: CapturedCall<'_>,
        apply: impl FnOnce(&mut Model, &Clock, Mark),
    ) -> Result<()> {
        let after = before.map(|_| self.inner.stream_capture_info(stream)).transpose()?;
        let host = self.host();
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        let site = model.sites.labelled(take_label(), name);
        if let (Some(before), Some(after)) = (before, &after) {
            model.captured(&*self.inner, before, after, site, node);
        } else if let Some(id) = model.stream(stream) {
            let number = model.submit(id, host);
            let mark = model.mark(id, number, site, MarkKind::Command);
            work(&mut model, id, |model, clock| apply(model, clock, mark));
        }
        self.answer(&model, found, name, ())
    }
}

/// Calls a function with the clock of a stream's newest command.
pub(super) fn work(model: &mut Model, id: StreamId, act: impl FnOnce(&mut Model, &Clock)) {
    let clock = std::mem::take(&mut model.streams[id as usize].clock);
    act(model, &clock);
    model.streams[id as usize].clock = clock;
}
