//! CUDA graphs: a region of work is captured once and replayed many times, for the price of one launch.
//!
//! While a region is captured nothing runs. Its allocations come from a private pool ([`GraphPool`]), whose addresses stay
//! put for as long as a graph or a handle of the pool lives: a replay runs on the very addresses that were captured. So a
//! graph's inputs are written in place before a replay, and its outputs are read in place after it. Device memory that the
//! region uses but did not allocate is the caller's to keep; pinned memory that it copies from or to is kept by the graph.
//!
//! ```text
//! capture:  begin pool ─ begin capture ─ region's commands ─ end capture ─ end pool ─ instantiate
//! replay:   write inputs ─ launch on the current stream ─ read outputs
//! ```
//!
//! # Note: dropping a graph while a replay is under way
//! Nothing waits. The driver runs the launch to its end; the pool's segments are no one's but the pool's until they go
//! back to the driver, and that is behind all replays: the pool remembers their streams. Pinned memory has the streams of all replays recorded as
//! uses, so that its cache waits for them.
//!
//! # Note: several captures at once
//! Captures of different threads may overlap. The device is waited for only where no other capture is under way (waiting
//! would break that one), and each pool serves the streams of its own capture, which are told by the capture's number.
//! Captures of one thread do not nest.

mod capture;
mod pool;

use std::fmt;
use std::sync::Arc;

use thalweg_device::check::UseKind;
use thalweg_device::{GraphDescription, GraphExecHandle, Label};
use thalweg_memory::planted;

pub use capture::CaptureOptions;
pub use pool::GraphPool;

pub(crate) use capture::Captures;

use crate::pinned::PinnedBlock;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};
use capture::Capture;

/// A captured region, ready to be replayed. Dropping it waits for nothing; a replay that is under way runs to its end.
#[derive(Debug)]
pub struct Graph {
    exec: Executable,
    description: GraphDescription,
    /// Pinned memory that the captured copies use.
    pinned: Vec<Arc<PinnedBlock>>,
    pool: GraphPool,
}

/// The driver's executable graph.
struct Executable {
    device: Device,
    handle: GraphExecHandle,
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}", self.handle, self.device)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // An executable that its driver no longer knows holds nothing.
        let _ = self.device.driver().graph_exec_destroy(self.handle);
    }
}

impl Graph {
    /// Captures what `region` submits to its current stream, and gives the graph with the region's result.
    ///
    /// *Blocks*: before it starts, all work of the device is waited for. Inside, anything that needs the host to wait is an
    /// error (reading a value back, say); run the region once beforehand so that its kernels are compiled. An error or a
    /// panic of the region ends the capture: the stream is usable and the pool is given back.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the stream is the default stream, or captures already, or this thread is inside
    /// another capture of the device (which goes on unharmed), or if pool and stream are not of this device.
    /// [`Error::is_capture`] if the region broke a rule of capture. The region's own error, as it is.
    pub fn capture<T>(
        device: &Device,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let CaptureOptions { pool, mode, stream } = options;
        if device.current_stream().is_capturing()? {
            return Err(Error::invalid(
                "graph capture: the current stream captures already, and captures do not nest; end the outer capture first",
            ));
        }
        let stream = match stream {
            Some(stream) => stream,
            None => Stream::new(device)?,
        };
        if stream.is_default() {
            return Err(Error::invalid(
                "graph capture: the default stream cannot capture; make a stream with `Stream::new` and capture there",
            ));
        }
        let pool = pool.unwrap_or_else(|| GraphPool::new(device));
        same_device("graph capture: the stream", device, stream.device())?;
        same_device("graph capture: the pool", device, pool.device())?;
        if stream.is_capturing()? {
            return Err(Error::invalid(format!(
                "graph capture: {stream:?} captures already; capture on another stream"
            )));
        }
        let name = |error: Error| error.context("graph capture");
        let capture = Capture::begin(&stream, &pool, mode).map_err(name)?;
        let result = {
            let _current = stream.make_current();
            region()?
        };
        let (graph, pinned) = capture.end().map_err(name)?;
        let driver = device.driver();
        let built = driver
            .graph_describe(graph)
            .and_then(|description| Ok((description, driver.graph_instantiate(graph, device.index())?)));
        // The executable lives on. A handle that the driver gave a moment ago can be given back.
        let _ = driver.graph_destroy(graph);
        let (description, handle) = device.check(built).map_err(name)?;
        let exec = Executable { device: device.clone(), handle };
        let pool = planted!(GraphDropsPool, pool, GraphPool::new(device));
        Ok((Self { exec, description, pinned, pool }, result))
    }

    /// Queues the whole graph on the current stream.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let Executable { device, handle } = &self.exec;
        let stream = device.current_stream();
        let label = Label::here("graph replay");
        if let Some(instrument) = device.driver().instrument() {
            instrument.label_next(label);
        }
        stream.submit(label, || device.driver().graph_launch(*handle, stream.handle()))?;
        planted!(ReplayNotAwaited, self.pool.was_replayed_on(stream.id()), ());
        // The event comes when the memory is freed: one for all replays.
        let used = planted!(ReplayForgetsPinned, &self.pinned[..], &[]);
        used.iter().for_each(|block| block.record(&stream, UseKind::UntilFree, label));
        Ok(())
    }

    /// The pool that the graph's memory is in.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// Nodes and edges as they were captured.
    pub fn description(&self) -> &GraphDescription {
        &self.description
    }
}
