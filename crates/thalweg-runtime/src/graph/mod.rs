//! CUDA graphs: a region of work is captured once and replayed many times, for the price of one launch.
//!
//! Nothing runs while a region is captured. Its allocations come from a private pool ([`GraphPool`]), whose addresses stay fixed
//! for as long as a graph or a handle of the pool lives: a replay runs on the addresses that were captured. So a graph's inputs
//! are written in place before a replay, and its outputs are read in place after it. The caller must keep alive the device memory
//! that the region uses but did not allocate; a replay on memory that was freed is refused
//! ([`Contract`]); pinned memory that it copies from or to is kept by the graph.
//!
//! ```text
//!  Graph::capture_begin          Capture::end           CapturedGraph::instantiate        Graph::replay
//!  ────────────────────▶ Capture ─────────────▶ CapturedGraph ──────────────────▶ Graph ───────────────▶
//!                           │ dropped                 any number of times            any number of times,
//!                           ▼                                                        on any stream
//!            stream usable, pool released
//! ```
//!
//! Each state is a type of its own, so an operation that a state does not allow does not compile. [`Graph::capture`] does all the
//! steps in one call, and always ends the capture.
//!
//! # Modules
//!
//! | module | responsibility |
//! |---|---|
//! | `captures`, `capture` | captures under way, how they begin and end, and the values that replays keep current |
//! | `branches` | the streams of a capture: forks that were not joined |
//! | `footprint` | the memory that the commands of a capture touch |
//! | `conditional` | parts that run, or run again, depending on a value on the device |
//! | `captured` | the parts of a capture that are kept |
//! | `contract` | inputs and outputs, and whether they are still live |
//! | `pool`, `report` | private pools and their memory |
//! | `members`, `sharing` | the effects of graphs of one pool on each other's outputs |
//! | `outputs` | outputs that borrow from their graph |
//! | `steps`, `update` | the captured commands, and how an executable is updated to another capture |
//!
//! This module, `captured` and `update` are the three states of a graph. They use each other and `capture`, which makes the first
//! state.
//!
//! # Note: dropping a graph while a replay is under way
//! Dropping waits for nothing. The driver runs the launch to its end. The segments stay in the pool until they are returned to
//! the driver, which happens after all replays: a graph that is dropped passes the streams of its replays to the pool. The same
//! streams are recorded as uses of its pinned memory, so that its cache waits for them.
//!
//! # Note: several captures at once
//! Captures of different threads may overlap. The device is waited for only while no other capture is under way (waiting would
//! break that one). Each pool serves the streams of its own capture, which are identified by the capture's number. Captures of
//! one thread do not nest.
//!
//! # Note: what a capture costs
//! Each command queries the driver for the nodes that it depends on and the node that it became, and looks up the ranges that it
//! touches in ordered maps. Nothing walks the graph, except once at the end of a capture on several streams.

pub mod audit;
mod branches;
mod capture;
mod captured;
mod captures;
mod checkpoint;
mod conditional;
mod contract;
mod footprint;
mod members;
mod outputs;
mod pool;
mod ranges;
mod report;
mod sharing;
mod steps;
mod update;

use std::fmt;
use std::sync::Arc;

use thalweg_driver::{DevicePointer, GraphDescription, GraphExecHandle, GraphNodeHandle, Label};

pub use audit::{Audit, Obstacle, ObstacleKind, audit};
pub use capture::{Capture, CaptureOptions};
pub use captured::CapturedGraph;
pub use captures::Upkeep;
pub use checkpoint::{HeldMemory, PoolState};
pub use conditional::{Condition, Region, if_, if_else, switch, while_};
pub use contract::{Contract, Input, InputKind, Output};
pub use members::OverwritePolicy;
pub use outputs::{BoundGraph, Outputs};
pub use pool::GraphPool;
pub use report::{CaptureCost, GraphMemory, PoolMemory};
pub use update::{Update, UpdateCounts};

pub(crate) use captures::Captures;
pub(crate) use steps::Command;

use crate::deferred::queue_deferred;
use crate::refuse_if;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};
use captured::{Content, Template};

/// The beginning of the errors of a capture.
const REGION: &str = "graph capture";

/// A captured region, ready to be replayed. Dropping it waits for nothing; a replay that is under way runs to its end.
///
/// ```compile_fail
/// # fn f(graph: thalweg_runtime::Graph) -> thalweg_runtime::Result<()> {
/// graph.reset();
/// graph.replay()?; // there is nothing left to replay
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Graph {
    exec: Executable,
    content: Arc<Content>,
    updates: UpdateCounts,
}

/// The driver's executable graph.
struct Executable {
    device: Device,
    handle: GraphExecHandle,
    /// The graph that the executable was instantiated from, by whose nodes it is updated.
    _template: Arc<Template>,
    /// The nodes of that graph in the order of submission; `None` if the order is not known any more.
    nodes: Option<Arc<[GraphNodeHandle]>>,
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
    /// Captures what `region` submits to its current stream, and returns the graph with the region's result.
    ///
    /// *Blocks*: before it starts, all work of the device is waited for. Inside the region, anything that makes the host wait is
    /// an error (reading a value back, say); run the region once beforehand so that its kernels are compiled. If the region
    /// returns an error or panics, the capture ends: the stream is usable and the pool is released.
    ///
    /// # Errors
    /// The errors of [`capture_begin`](Self::capture_begin) and [`Capture::end`]. The region's own error, unchanged.
    pub fn capture<T>(
        device: &Device,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let capture = Self::capture_begin(device, options)?;
        let result = {
            let _current = capture.stream().make_current();
            region()?
        };
        Ok((capture.end()?.instantiate()?, result))
    }

    /// Begins a capture: the work that is submitted to [its stream](Capture::stream) from now on becomes a graph. The current
    /// stream does not change.
    ///
    /// *Blocks*: all work of the device is waited for, unless another capture is under way.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the stream is the default stream, or already captures, or this thread is inside another
    /// capture of the device (which continues unharmed), or if the pool and the stream are not of this device.
    pub fn capture_begin(device: &Device, options: CaptureOptions) -> Result<Capture> {
        Capture::begin(device, options)
    }

    /// Queues the whole graph on the current stream.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        self.launch(&self.exec.device.current_stream(), Label::here("graph replay"))
    }

    /// Queues the whole graph on a stream of its device. Replays of one graph run one after the other, whatever their streams.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if an input has died ([`Contract::check`]), or a live output of another graph of the pool
    /// would be overwritten ([`OverwritePolicy`]), or the stream is of another device; [`Error::is_capture`] if the stream
    /// captures: the capture continues unharmed. In these cases nothing is launched.
    #[track_caller]
    pub fn replay_on(&self, stream: &Stream) -> Result<()> {
        self.launch(stream, Label::here("graph replay"))
    }

    fn launch(&self, stream: &Stream, label: Label) -> Result<()> {
        let Executable { device, handle, .. } = &self.exec;
        queue_deferred(label)?;
        same_device("graph replay: the stream", device, stream.device())?;
        if device.captures().are_under_way() && stream.is_capturing()? {
            return Err(Error::capture(format!(
                "graph replay: {stream:?} captures, and a graph cannot be replayed into a capture; replay it on another \
                 stream, or capture its region as a part of this one"
            )));
        }
        let Content { contract, member, pool, upkeeps, .. } = &*self.content;
        let named = |error: Error| error.context("graph replay").at(label.location);
        contract.check().map_err(named)?;
        upkeeps.iter().try_for_each(|(_, upkeep)| upkeep.before_replay(stream)).map_err(named)?;
        let kept = pool.members().before_replay(member, stream, label).map_err(named)?;
        if let Some(instrument) = device.instrument() {
            instrument.label_next(label);
        }
        device.called(label);
        device.captures().note_replay();
        stream.submit(Command::Other { label, accesses: &[], parameters: &[] }, || {
            device.driver().graph_launch(*handle, stream.handle())
        })?;
        self.content.was_replayed_on(stream.id());
        upkeeps.iter().for_each(|(_, upkeep)| upkeep.after_replay(stream));
        pool.members().after_replay(member, kept, stream, label)
    }

    /// Releases the outputs of the last replay: other graphs of the pool may overwrite them ([`OverwritePolicy`]). Buffers that
    /// are dropped are released without this call.
    pub fn release_outputs(&self) {
        self.content.member.release_outputs();
    }

    /// Destroys the executable, and frees the memory unless it is kept by the [`CapturedGraph`], by other graphs of the pool, or
    /// by a handle of the pool. Dropping the graph does the same.
    pub fn reset(self) {}

    /// Copies `bytes` to an input of the graph, on a stream, unless source and input have the same address. Returns whether they
    /// were copied.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if no input of the graph contains `bytes` bytes from `input` on; and the errors of the
    /// copy.
    #[track_caller]
    pub fn write_input(
        &self,
        stream: &Stream,
        input: DevicePointer,
        source: DevicePointer,
        bytes: u64,
    ) -> Result<bool> {
        let label = Label::here("graph input");
        let address = input.address();
        let found = self.contract().input_at(address);
        refuse_if!(
            found.is_none_or(|found| address - found.address + bytes > found.size_bytes),
            "graph input: no input of the graph holds {bytes} bytes from {address:#x} on; its inputs are: {}",
            self.contract().inputs().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        );
        if input == source {
            return Ok(false);
        }
        stream.copy_on_device(input, source, bytes, label)?;
        Ok(true)
    }

    /// Returns the pool that owns the graph's memory.
    pub fn pool(&self) -> &GraphPool {
        &self.content.pool
    }

    /// Returns the captured nodes and edges: see [`CapturedGraph::description`].
    ///
    /// # Errors
    /// The driver's error.
    pub fn description(&self) -> Result<&GraphDescription> {
        self.content.description()
    }

    /// Returns whether the graph has no node: see [`CapturedGraph::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.content.steps.is_empty()
    }

    /// Returns the graph's contract: the memory that it relies on, and its outputs.
    pub fn contract(&self) -> &Contract {
        &self.content.contract
    }

    /// Returns the graph's use of memory.
    pub fn memory(&self) -> &GraphMemory {
        &self.content.member.memory
    }
}
