//! A finished capture: the graph as it was captured, kept for inspection and for any number of instantiations.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_driver::UseKind;
use thalweg_driver::{GraphDescription, GraphHandle, Label};
use thalweg_lock::Mutex;
use thalweg_memory::StreamId;

use super::captures::Upkeeps;
use super::contract::Contract;
use super::members::Member;
use super::pool::GraphPool;
use super::report::{CaptureCost, GraphMemory};
use super::steps::Steps;
use super::update::UpdateCounts;
use super::{Executable, Graph};
use crate::pinned::PinnedBlock;
use crate::{Device, Result};

/// A captured region that is kept as it was captured (`keep_graph` in PyTorch). It must be instantiated before it can run; an
/// executable stays valid after the captured graph is dropped.
#[derive(Debug)]
pub struct CapturedGraph {
    pub(super) content: Arc<Content>,
}

/// The driver's graph. It cannot be launched, but it is kept because the nodes of executables are addressed by its node handles.
pub(super) struct Template {
    device: Device,
    pub(super) handle: GraphHandle,
}

impl Template {
    pub(super) fn new(device: &Device, handle: GraphHandle) -> Self {
        Self { device: device.clone(), handle }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}", self.handle, self.device)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // A graph that its driver no longer knows owns nothing.
        let _ = self.device.driver().graph_destroy(self.handle);
    }
}

/// The content of a captured graph, with everything that it keeps alive. All its executables share it.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) device: Device,
    pub(super) template: Arc<Template>,
    pub(super) steps: Steps,
    pub(super) questions: u64,
    /// The description, made at the first request: reading it from the driver takes longer than all the rest of a capture.
    pub(super) description: OnceLock<GraphDescription>,
    pub(super) contract: Contract,
    /// The graph's part in the pool.
    pub(super) member: Arc<Member>,
    /// Pinned memory that the captured copies use.
    pub(super) pinned: Vec<Arc<PinnedBlock>>,
    /// The values that replays keep current.
    pub(super) upkeeps: Upkeeps,
    /// The streams on which the graph was replayed.
    pub(super) replayed_on: Mutex<SmallVec<[StreamId; 2]>>,
    pub(super) pool: GraphPool,
    /// The pools of other graphs whose memory this graph uses.
    pub(super) kept: Vec<GraphPool>,
}

impl Content {
    /// Returns the captured nodes and edges.
    pub(super) fn description(&self) -> Result<&GraphDescription> {
        if let Some(description) = self.description.get() {
            return Ok(description);
        }
        let described = self.device.driver().graph_describe(self.template.handle);
        let mut description = self.device.check(described)?;
        self.steps.name_nodes(&mut description);
        Ok(self.description.get_or_init(|| description))
    }

    /// Notes that work of this stream uses the graph's memory.
    pub(super) fn was_replayed_on(&self, stream: StreamId) {
        let mut streams = self.replayed_on.lock();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

impl Drop for Content {
    /// Replays may be under way. The next owner of the memory waits for their streams.
    fn drop(&mut self) {
        self.member.leave();
        let streams = self.replayed_on.get_mut();
        self.kept.iter().chain([&self.pool]).for_each(|pool| pool.was_replayed_on(streams));
        let used = &self.pinned[..];
        for block in used {
            streams
                .iter()
                .for_each(|stream| block.record(*stream, UseKind::UntilFree, Label::here("graph replay")));
        }
    }
}

impl CapturedGraph {
    /// Returns a new executable of the graph. All executables use the same memory, so their replays must be ordered.
    /// *Blocks* while the driver builds it.
    pub fn instantiate(&self) -> Result<Graph> {
        let device = &self.content.device;
        let made = device.driver().graph_instantiate(self.content.template.handle, device.index());
        let handle = device.check(made).map_err(|error| error.context("graph instantiation"))?;
        let template = Arc::clone(&self.content.template);
        let nodes = Some(self.content.steps.nodes());
        let exec = Executable { device: device.clone(), handle, _template: template, nodes };
        Ok(Graph { exec, content: self.content.clone(), updates: UpdateCounts::default() })
    }

    /// Returns the captured nodes and edges, with the operators that submitted them. The first call reads them from the driver.
    pub fn description(&self) -> Result<&GraphDescription> {
        self.content.description()
    }

    /// Returns whether nothing was captured. That is allowed, but seldom intended: the region's work may have been submitted to a
    /// stream that does not capture.
    pub fn is_empty(&self) -> bool {
        self.content.steps.is_empty()
    }

    /// Writes the driver's view of the graph to a file, in the language of Graphviz (`debug_dump`); `verbose` writes everything.
    /// For a text that is the same on every driver, see [`GraphDescription::to_dot`].
    ///
    /// # Errors
    /// The driver's errors, for a file that cannot be written.
    pub fn debug_dump(&self, path: &Path, verbose: bool) -> Result<()> {
        let Content { device, template, .. } = &*self.content;
        device.check(device.driver().graph_debug_dot_print(template.handle, path, verbose))
    }

    /// Returns the number of driver calls that the capture made.
    pub fn cost(&self) -> CaptureCost {
        CaptureCost { commands: self.content.steps.len() as u64, driver_calls: self.content.questions }
    }

    /// Returns the graph's contract: the memory that it relies on, and its outputs.
    pub fn contract(&self) -> &Contract {
        &self.content.contract
    }

    /// Returns the pool that owns the graph's memory.
    pub fn pool(&self) -> &GraphPool {
        &self.content.pool
    }

    /// Returns the graph's use of memory.
    pub fn memory(&self) -> &GraphMemory {
        &self.content.member.memory
    }
}
