//! The streams of a capture: the last command of each, and whether the origin waits for it.
//!
//! CUDA reports a fork that was not joined with one error code for the whole capture. This module knows which stream it is, what
//! its last command was and which wait is missing, because it sees every command with its stream and its label.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashSet;
use thalweg_driver::{Driver, GraphHandle, GraphNodeHandle, Label};

use crate::Stream;

/// The streams of a capture.
#[derive(Default)]
pub(super) struct Branches {
    branches: Vec<Branch>,
}

struct Branch {
    stream: Stream,
    last: Option<Label>,
}

impl Branches {
    /// Notes that a stream takes part.
    pub(super) fn joined(&mut self, stream: &Stream) {
        self.branch(stream);
    }

    /// Notes that a command was submitted to a stream.
    pub(super) fn submitted(&mut self, stream: &Stream, label: Label) {
        self.branch(stream).last = Some(label);
    }

    fn branch(&mut self, stream: &Stream) -> &mut Branch {
        let place = match self.branches.iter().position(|branch| branch.stream == *stream) {
            Some(place) => place,
            None => {
                self.branches.push(Branch { stream: stream.clone(), last: None });
                self.branches.len() - 1
            }
        };
        &mut self.branches[place]
    }

    /// Describes the streams of a capture that its origin does not wait for; `None` if there are none. To be called while the
    /// capture is under way. A capture on one stream makes no call of the driver for this; one on several streams walks its graph
    /// once.
    pub(super) fn unjoined(&self, origin: &Stream, capture: u64, questions: &AtomicU64) -> Option<String> {
        let driver = &**origin.device().driver();
        let ends = |stream: &Stream| {
            questions.fetch_add(1, Ordering::Relaxed);
            let info = driver.stream_capture_info(stream.handle()).ok()?;
            (info.id == capture).then_some((info.graph?, info.dependencies))
        };
        let others = self.branches.iter().filter(|branch| branch.stream != *origin);
        let open: Vec<(&Branch, Vec<GraphNodeHandle>)> =
            others.filter_map(|branch| Some((branch, ends(&branch.stream)?.1))).collect();
        if open.is_empty() {
            return None;
        }
        let (graph, from) = ends(origin)?;
        let wanted = open.iter().flat_map(|(_, nodes)| nodes).copied().collect();
        let missing = not_before(driver, graph, from, wanted, questions);
        let mut text = String::new();
        for (branch, _) in open.iter().filter(|(_, ends)| ends.iter().any(|node| missing.contains(node))) {
            let separator = if text.is_empty() { "" } else { "; " };
            let last = branch.last.map_or_else(
                || "its last command was not submitted through Thalweg".to_owned(),
                |label| format!("its last command is {label}"),
            );
            let stream = &branch.stream;
            let written = write!(
                text,
                "{separator}{stream:?} was forked and not joined: {last}, and {origin:?}, on which the capture began, does not \
                 wait for it; missing is a `wait_stream` of the latter for the former, after that command"
            );
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Returns the `wanted` nodes that are neither in `from` nor before a node of `from`.
fn not_before(
    driver: &dyn Driver,
    graph: GraphHandle,
    from: Vec<GraphNodeHandle>,
    mut wanted: FxHashSet<GraphNodeHandle>,
    questions: &AtomicU64,
) -> FxHashSet<GraphNodeHandle> {
    let mut seen: FxHashSet<GraphNodeHandle> = FxHashSet::default();
    let mut unvisited = from;
    while let Some(node) = unvisited.pop() {
        if !seen.insert(node) {
            continue;
        }
        wanted.remove(&node);
        if wanted.is_empty() {
            break;
        }
        questions.fetch_add(1, Ordering::Relaxed);
        unvisited.extend(driver.graph_node_predecessors(graph, node).unwrap_or_default());
    }
    wanted
}
