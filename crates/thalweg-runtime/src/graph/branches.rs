//! The streams of a capture: what each was given last, and whether the origin waits for it.
//!
//! CUDA answers a fork that was not joined with one number for the whole capture. Which stream, what it did last and which
//! wait is missing is known here, because every command passes by with its stream and its label.

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

    /// Notes that a stream was given a command.
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

    /// Returns which streams of the capture of this number its origin does not wait for, in words; `None` if there is none. To
    /// be asked while the capture is under way. A capture on one stream asks nothing of the driver; one on several walks its
    /// graph once.
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
                 wait for it; missing is a `wait_stream` of the latter for the former, behind that command"
            );
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Returns those of the nodes that do not lie before one of `from`, or are it.
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
