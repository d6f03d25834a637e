//! Another capture for the same executable: told to it where it can be, instantiated again where it cannot.
//!
//! To instantiate a graph takes several microseconds per node on a GPU. Where the shape of the graph is the same, an executable can
//! be told what is different, for less: all of it at once, or single kernels. Which is possible and which is cheapest is
//! decided here, in this order:
//!
//! | what differs | what is done |
//! |---|---|
//! | nothing | nothing |
//! | the arguments of a few kernels | these kernels are told theirs |
//! | anything that the driver can change in place | the whole graph is updated |
//! | the shape, or a node's kind | a new executable is made |
//!
//! The two captures are compared by what was written down of them ([`steps`](super::steps)); what that cannot tell, the driver
//! decides. Whatever fails on the way is made good by the next row, and only the last one's failure is an error: then the graph
//! is what it was, or, if a row before had begun, gets its own work again.
//!
//! Replays that were queued before an update do the old work.

use std::sync::Arc;

use thalweg_driver::{GraphExecUpdate, GraphNodeHandle, UpdateReason};

use super::captured::CapturedGraph;
use super::steps::{Steps, Work};
use super::{CaptureOptions, Graph};
use crate::Result;
use crate::stream::same_device;

/// A kernel is updated by itself if no more than one in this many differ. To update one takes the driver about as long
/// as to compare and change eight nodes of a whole graph.
const FEW: usize = 8;

/// The result of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Both captures were the same: nothing was to be done.
    Unchanged,
    /// So many kernels were told their new arguments.
    Kernels(usize),
    /// The executable was told the whole graph.
    Whole,
    /// A new executable was made; why the driver could not change the old one, where it was asked.
    Instantiated(Option<UpdateReason>),
}

/// The numbers of updates by their outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpdateCounts {
    /// [`Update::Unchanged`].
    pub unchanged: u64,
    /// [`Update::Kernels`].
    pub kernels: u64,
    /// [`Update::Whole`].
    pub whole: u64,
    /// [`Update::Instantiated`].
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
    /// Becomes another captured graph, as cheaply as the driver allows. Later replays do its work, on its memory; those that
    /// were queued before do theirs. Blocks while a new executable is built, if one is needed.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) if the other graph is of another device; the driver's, where not even a new executable can
    /// be made. The graph is what it was then.
    pub fn update(&mut self, captured: &CapturedGraph) -> Result<Update> {
        let device = &self.exec.device;
        same_device("graph update: the captured graph", device, &captured.content.device)?;
        let differences = self.content.steps.differences(&captured.content.steps);
        let update = match self.told(captured, differences.as_deref()) {
            Some(update) => update,
            None => self.told_whole(captured, differences.is_some())?,
        };
        self.content = Arc::clone(&captured.content);
        self.updates.count(update);
        Ok(update)
    }

    /// Captures a region anew, and becomes that graph. It allocates from this graph's pool unless the options name another.
    ///
    /// # Errors
    /// Those of [`capture`](Self::capture) and [`update`](Self::update). The graph is what it was then.
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

    /// Returns how often updates came to what.
    pub fn update_counts(&self) -> UpdateCounts {
        self.updates
    }

    /// Tells single kernels what is new, if that is all. `None` if it is not, or did not work.
    fn told(&self, captured: &CapturedGraph, differences: Option<&[usize]>) -> Option<Update> {
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
        let told = differences.iter().try_for_each(|place| self.tell(nodes[*place], new, *place));
        told.is_ok().then_some(Update::Kernels(differences.len()))
    }

    fn tell(&self, node: GraphNodeHandle, steps: &Steps, place: usize) -> thalweg_driver::Result<()> {
        let step = steps.step(place);
        let Work::Kernel(kernel) = &step.work else { return Ok(()) };
        let driver = self.exec.device.driver();
        driver.graph_exec_kernel_node_set_params(self.exec.handle, node, &kernel.launch(step.label))
    }

    /// Tells the executable the whole graph, or makes a new one. `alike`: the nodes go by the same names in the same order.
    fn told_whole(&mut self, captured: &CapturedGraph, alike: bool) -> Result<Update> {
        let driver = self.exec.device.driver();
        let told = driver.graph_exec_update(self.exec.handle, captured.content.template.handle);
        if let Ok(GraphExecUpdate::Updated) = told {
            if !alike {
                self.exec.nodes = None;
            }
            return Ok(Update::Whole);
        }
        let made = captured.instantiate().map_err(|error| {
            // Some kernels may have been told before. What they had was theirs a moment ago, so they take it again.
            let _ = driver.graph_exec_update(self.exec.handle, self.content.template.handle);
            error.context("graph update")
        });
        self.exec = made?.exec;
        let reason = match told {
            Ok(GraphExecUpdate::Refused(refusal)) => Some(refusal.reason),
            Ok(GraphExecUpdate::Updated) | Err(_) => None,
        };
        Ok(Update::Instantiated(reason))
    }
}
