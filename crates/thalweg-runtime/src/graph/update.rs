//! Updating an executable to another capture: in place where possible, by a new instantiation where not.
//!
//! Instantiating a graph takes several microseconds per node on a GPU. If the shape of the graph is the same, updating an
//! executable takes less: all of it at once, or single kernels. This module chooses the cheapest way that is possible, in this
//! order:
//!
//! | what differs | what is done |
//! |---|---|
//! | nothing | nothing |
//! | the arguments of a few kernels | these kernel nodes are updated |
//! | anything that the driver can change in place | the whole graph is updated |
//! | the shape, or a node's kind | a new executable is made |
//!
//! The two captures are compared by their recorded commands ([`steps`](super::steps)); the driver decides about anything that
//! these do not show. If a step fails, the next row is tried, and only a failure of the last one is an error. Then the graph is
//! unchanged; if an earlier row had begun, it is updated back to its own work.
//!
//! Replays that were queued before an update run the old work.

use std::sync::Arc;

use thalweg_driver::{GraphExecUpdate, GraphNodeHandle, UpdateReason};

use super::captured::CapturedGraph;
use super::steps::{Steps, Work};
use super::{CaptureOptions, Graph};
use crate::Result;
use crate::stream::same_device;

/// Kernels are updated one by one if at most one in this many differs. Updating one kernel takes the driver about as long as
/// comparing and changing eight nodes of a whole graph.
const FEW: usize = 8;

/// The result of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Both captures were equal: nothing was changed.
    Unchanged,
    /// The number of kernel nodes whose arguments were updated.
    Kernels(usize),
    /// The executable was updated from the whole graph.
    Whole,
    /// A new executable was made. Contains the driver's reason for not updating the old one, if an update was tried.
    Instantiated(Option<UpdateReason>),
}

/// The numbers of updates by their outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpdateCounts {
    /// The number of [`Update::Unchanged`].
    pub unchanged: u64,
    /// The number of [`Update::Kernels`].
    pub kernels: u64,
    /// The number of [`Update::Whole`].
    pub whole: u64,
    /// The number of [`Update::Instantiated`].
    pub instantiated: u64,
}

impl UpdateCounts {
    fn count(&mut self, update: Update) {
        let count = match update {
            Update::Unchanged => &mut self.unchanged,
            Update::Kernels(_) => &mut self.kernels,
            Update::Whole => &mut self.whole,
            Update::Instantiated(_) => &mut self.instantiated,
        };
        *count += 1;
    }
}

impl Graph {
    /// Updates this graph to another captured graph, as cheaply as the driver allows. Later replays run the new work, on its
    /// memory; replays that were queued before run the old work. Blocks while a new executable is built, if one is needed.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) if the other graph is of another device; the driver's
    /// errors if not even a new executable can be made. Then the graph is unchanged.
    pub fn update(&mut self, captured: &CapturedGraph) -> Result<Update> {
        let device = &self.exec.device;
        same_device("graph update: the captured graph", device, &captured.content.device)?;
        let differences = self.content.steps.differences(&captured.content.steps);
        let update = match self.update_kernels(captured, differences.as_deref()) {
            Some(update) => update,
            None => self.updated_whole(captured, differences.is_some())?,
        };
        self.content = Arc::clone(&captured.content);
        self.updates.count(update);
        Ok(update)
    }

    /// Captures a region again, and updates this graph to it. The region allocates from this graph's pool unless the options name
    /// another.
    ///
    /// # Errors
    /// The errors of [`capture`](Self::capture) and [`update`](Self::update). Then the graph is unchanged.
    pub fn recapture<T>(
        &mut self,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Update, T)> {
        let pool = Some(options.pool.unwrap_or_else(|| self.pool().clone()));
        let capture = Self::capture_begin(&self.exec.device, CaptureOptions { pool, ..options })?;
        let result = {
            let _current = capture.stream().make_current();
            region()?
        };
        Ok((self.update(&capture.end()?)?, result))
    }

    /// Returns the number of updates by outcome.
    pub fn update_counts(&self) -> UpdateCounts {
        self.updates
    }

    /// Updates the changed kernel nodes one by one. Returns `None` if other nodes changed or an update failed.
    fn update_kernels(&self, captured: &CapturedGraph, differences: Option<&[usize]>) -> Option<Update> {
        let differences = differences?;
        if differences.is_empty() {
            return Some(Update::Unchanged);
        }
        let nodes = self.exec.nodes.as_deref()?;
        let (old, new) = (&self.content.steps, &captured.content.steps);
        let are_kernels = |place: &usize| {
            let [old, new] = [old, new].map(|steps: &Steps| &steps.step(*place).work);
            matches!((old, new), (Work::Kernel(_), Work::Kernel(_)))
        };
        if differences.len() * FEW > new.len() || !differences.iter().all(are_kernels) {
            return None;
        }
        let reported =
            differences.iter().try_for_each(|place| self.update_kernel(nodes[*place], new, *place));
        reported.is_ok().then_some(Update::Kernels(differences.len()))
    }

    fn update_kernel(
        &self,
        node: GraphNodeHandle,
        steps: &Steps,
        place: usize,
    ) -> thalweg_driver::Result<()> {
        let step = steps.step(place);
        let Work::Kernel(kernel) = &step.work else { return Ok(()) };
        let driver = self.exec.device.driver();
        driver.graph_exec_kernel_node_set_params(self.exec.handle, node, &kernel.launch(step.label))
    }

    /// Updates the executable from the whole graph, or makes a new one. `alike`: the nodes have the same handles in the same
    /// order.
    fn updated_whole(&mut self, captured: &CapturedGraph, alike: bool) -> Result<Update> {
        let driver = self.exec.device.driver();
        let reported = driver.graph_exec_update(self.exec.handle, captured.content.template.handle);
        if let Ok(GraphExecUpdate::Updated) = reported {
            if !alike {
                self.exec.nodes = None;
            }
            return Ok(Update::Whole);
        }
        let made = captured.instantiate().map_err(|error| {
            // Some kernels may have been updated already. Restore their old arguments, which the executable accepted before.
            let _ = driver.graph_exec_update(self.exec.handle, self.content.template.handle);
            error.context("graph update")
        });
        self.exec = made?.exec;
        let reason = match reported {
            Ok(GraphExecUpdate::Refused(refusal)) => Some(refusal.reason),
            Ok(GraphExecUpdate::Updated) | Err(_) => None,
        };
        Ok(Update::Instantiated(reason))
    }
}
