//! A driver's own allocator, which allocates and frees memory in stream order.
//!
//! Freed memory is free when its stream has passed the position of the free, and everything that the stream was made to wait for
//! before; then it stays with the driver, for any stream, until it is trimmed. On its own stream it may be used again at once.
//! Only memory of the same size is used again, because the driver's packing is not tested here.

use std::collections::BTreeMap;

use super::{FakeUpstream, Inner};
use crate::ids::StreamId;
use crate::upstream::{Reserved, StreamOrdered, UpstreamError};

/// Memory that was freed in stream order and is not free yet.
#[derive(Debug)]
struct Freed {
    address: u64,
    bytes: u64,
    stream: StreamId,
    /// The positions on streams that must have been passed.
    after: Vec<(StreamId, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct DriverPool {
    /// Size and stream of allocated memory, by address.
    live: BTreeMap<u64, (u64, StreamId)>,
    freed: Vec<Freed>,
    /// Sizes of free memory, by address.
    idle: BTreeMap<u64, u64>,
    /// The positions on other streams that a stream was made to wait for.
    waits: BTreeMap<StreamId, Vec<(StreamId, u64)>>,
    reserved_peak_bytes: u64,
}

impl DriverPool {
    pub(super) fn wait(&mut self, stream: StreamId, place: (StreamId, u64)) {
        self.waits.entry(stream).or_default().push(place);
    }

    fn reserved_bytes(&self) -> u64 {
        let live: u64 = self.live.values().map(|(bytes, _)| bytes).sum();
        let freed: u64 = self.freed.iter().map(|freed| freed.bytes).sum();
        live + freed + self.idle.values().sum::<u64>()
    }
}

impl Inner {
    fn has_passed_all(&self, places: &[(StreamId, u64)]) -> bool {
        let passed = |stream| self.timelines.get(&stream).map_or(0, |timeline| timeline.passed);
        places.iter().all(|&(stream, place)| passed(stream) >= place)
    }

    /// Moves the memory of completed frees to the idle memory.
    fn settle(&mut self) {
        let freed = std::mem::take(&mut self.driver_pool.freed);
        let (done, waiting) = freed.into_iter().partition(|freed| self.has_passed_all(&freed.after));
        self.driver_pool.freed = waiting;
        let done: Vec<Freed> = done;
        self.driver_pool.idle.extend(done.into_iter().map(|freed| (freed.address, freed.bytes)));
    }

    fn assert_not_capturing(&self, call: &str) {
        assert!(!self.graphs.are_under_way(), "{call} is not called while a capture is under way");
    }
}

/// Functions for tests of the driver's own allocator.
impl FakeUpstream {
    /// Creates a device as [`new`](Self::new) does, with a stream-ordered allocator of its own.
    pub fn with_stream_order(capacity_bytes: u64) -> Self {
        Self { has_stream_order: true, ..Self::new(capacity_bytes) }
    }

    /// Returns the number of bytes that were freed in stream order and are not free yet.
    pub fn freed_in_stream_order(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.settle();
        inner.driver_pool.freed.iter().map(|freed| freed.bytes).sum()
    }
}

impl StreamOrdered for FakeUpstream {
    fn allocate_async(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        assert!(bytes > 0, "a request has a size");
        self.call(
            |calls| &mut calls.allocate_async,
            |inner| {
                inner.settle();
                let pool = &mut inner.driver_pool;
                let own = pool.freed.iter().position(|freed| freed.stream == stream && freed.bytes == bytes);
                let idle = pool.idle.iter().find(|(_, size)| **size == bytes).map(|(address, _)| *address);
                let address = if let Some(index) = own {
                    pool.freed.remove(index).address
                } else if let Some(address) = idle {
                    pool.idle.remove(&address);
                    address
                } else {
                    inner.device.allocate(bytes)?
                };
                let pool = &mut inner.driver_pool;
                pool.live.insert(address, (bytes, stream));
                pool.reserved_peak_bytes = pool.reserved_peak_bytes.max(pool.reserved_bytes());
                Ok(address)
            },
        )
    }

    fn free_async(&self, address: u64, stream: StreamId) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.free_async,
            |inner| {
                let place = inner.timelines.entry(stream).or_default();
                // Work that is submitted to the stream later has a later position.
                place.recorded += 1;
                let own = (stream, place.recorded);
                let pool = &mut inner.driver_pool;
                let (bytes, _) = pool.live.remove(&address).expect("what is freed is out, and freed once");
                let mut after = pool.waits.get(&stream).cloned().unwrap_or_default();
                after.push(own);
                pool.freed.push(Freed { address, bytes, stream, after });
                Ok(())
            },
        )
    }

    fn trim(&self, keep_bytes: u64) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.trim,
            |inner| {
                inner.assert_not_capturing("trim");
                inner.settle();
                while inner.driver_pool.reserved_bytes() > keep_bytes
                    && let Some((address, bytes)) = inner.driver_pool.idle.pop_last()
                {
                    inner.device.free(address, bytes)?;
                }
                Ok(())
            },
        )
    }

    fn reserved(&self) -> Result<Reserved, UpstreamError> {
        self.call(
            |calls| &mut calls.reserved,
            |inner| {
                let pool = &inner.driver_pool;
                Ok(Reserved { current_bytes: pool.reserved_bytes(), peak_bytes: pool.reserved_peak_bytes })
            },
        )
    }

    fn reset_reserved_peak(&self) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.reset_reserved_peak,
            |inner| {
                inner.driver_pool.reserved_peak_bytes = inner.driver_pool.reserved_bytes();
                Ok(())
            },
        )
    }

    fn synchronize(&self) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.synchronize,
            |inner| {
                inner.assert_not_capturing("synchronize");
                inner.timelines.values_mut().for_each(|timeline| timeline.passed = timeline.recorded);
                Ok(())
            },
        )
    }
}
