//! A capture that is over: the graph as it was captured, kept, to be looked at and instantiated as often as one likes.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;
use thalweg_driver::UseKind;
use thalweg_driver::{GraphDescription, GraphHandle, Label};
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

/// A captured region that is kept as it was captured (`keep_graph` in PyTorch). It is instantiated when it is to run; what was
/// instantiated does not need it any more.
#[derive(Debug)]
pub struct CapturedGraph {
    pub(super) content: Arc<Content>,
}

/// The driver's graph, which no launch can use by itself. An executable's nodes go by its names, so it is kept for that.
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
        // A graph that its driver no longer knows holds nothing.
        let _ = self.device.driver().graph_destroy(self.handle);
    }
}

/// The content of a captured graph, with all that it keeps alive. It is shared by all that was instantiated from it.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) device: Device,
    pub(super) template: Arc<Template>,
    pub(super) steps: Steps,
    pub(super) questions: u64,
    /// Made when it is asked for: to ask the driver takes longer than all the rest of a capture.
    pub(super) description: OnceLock<GraphDescription>,
    pub(super) contract: Contract,
    /// Its part in the pool.
    pub(super) member: Arc<Member>,
    /// Pinned memory that the captured copies use.
    pub(super) pinned: Vec<Arc<PinnedBlock>>,
    /// The values that replays look after.
    pub(super) upkeeps: Upkeeps,
    /// The streams on which it was replayed.
    pub(super) replayed_on: Mutex<SmallVec<[StreamId; 2]>>,
    pub(super) pool: GraphPool,
    /// The pools of other graphs whose memory it uses.
    pub(super) kept: Vec<GraphPool>,
}

impl Content {
    /// Returns nodes and edges as they were captured.
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
        let mut streams = self.replayed_on.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

impl Drop for Content {
    /// Replays may be under way. The next owner of the memory waits for their streams.
    fn drop(&mut self) {
        self.member.leave();
        let streams = self.replayed_on.get_mut().unwrap_or_else(PoisonError::into_inner);
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
    /// Returns an executable of the graph. Each call makes another one; they use the same memory, so order their replays.
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

    /// Returns the nodes and edges as they were captured, with the operators that submitted them. The driver is asked when this is called
    /// first.
    ///
    /// # Errors
    /// The driver's.
    pub fn description(&self) -> Result<&GraphDescription> {
        self.content.description()
    }

    /// Returns whether nothing was captured. That is allowed, and seldom meant: the region's work may have gone to a stream
    /// that does not capture.
    pub fn is_empty(&self) -> bool {
        self.content.steps.is_empty()
    }

    /// Writes what the driver itself knows of the graph to a file, in the language of Graphviz (`debug_dump`), `verbose` with
    /// everything. A text that is the same on every driver is [`GraphDescription::to_dot`].
    ///
    /// # Errors
    /// The driver's, for a file that cannot be written.
    pub fn debug_dump(&self, path: &Path, verbose: bool) -> Result<()> {
        let Content { device, template, .. } = &*self.content;
        device.check(device.driver().graph_debug_dot_print(template.handle, path, verbose))
    }

    /// Returns what the capture asked of the driver.
    pub fn cost(&self) -> CaptureCost {
        CaptureCost { commands: self.content.steps.len() as u64, driver_calls: self.content.questions }
    }

    /// Returns what the graph relies on, and what it gives.
    pub fn contract(&self) -> &Contract {
        &self.content.contract
    }

    /// Returns the pool that the graph's memory is in.
    pub fn pool(&self) -> &GraphPool {
        &self.content.pool
    }

    /// Returns what the graph takes of memory.
    pub fn memory(&self) -> &GraphMemory {
        &self.content.member.memory
    }
}
