//! Stream capture, with CUDA's rules and codes.
//!
//! A capture is a graph under construction and the streams that take part in it. Each of them has a *branch*: the nodes
//! that its next command will depend on. A stream joins when it waits for an event of the capture. The capture can be ended
//! when all work of the joined streams precedes the origin's branch.
//!
//! A violation of a rule *invalidates* the capture: its streams refuse everything until it is ended, and then there is no
//! graph. Nothing of a capture has run, so nothing has to be undone.
//!
//! Invariant: a stream has a branch exactly while it is a member of a capture in [`MachineState::captures`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use thalweg_driver::{
    CaptureInfo, CaptureMode, CaptureStatus, Code, DependencyUpdate, GraphHandle, GraphNodeHandle,
    GraphNodeKind,
};

use crate::conditional::Branch as ConditionalBranch;
use crate::executor::task::Task;
use crate::objects::capture::Capture;
use crate::objects::graph::{Graph, Node};
use crate::objects::stream::{Branch, EventNode};
use crate::refusal::{CallResult, Refusal};
use crate::state::MachineState;

thread_local! {
    /// The capture mode that applies to this thread. As with CUDA, it belongs to the thread and not to a driver.
    static THREAD_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets the calling thread's mode and returns the previous one.
pub(crate) fn exchange_thread_mode(mode: CaptureMode) -> CaptureMode {
    THREAD_MODE.replace(mode)
}

impl MachineState {
    // ---- Rules ----------------------------------------------------------------------------------------------------

    /// Refuses a call that is not allowed while a capture forbids such calls to this thread, and breaks those captures.
    pub(crate) fn forbid_in_capture(&mut self, what: &str) -> CallResult<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let (thread, thread_mode) = (std::thread::current().id(), THREAD_MODE.get());
        let mut forbidden = false;
        for capture in &mut self.captures {
            let forbids = if capture.thread == thread {
                capture.mode != CaptureMode::Relaxed && thread_mode != CaptureMode::Relaxed
            } else {
                capture.mode == CaptureMode::Global && thread_mode == CaptureMode::Global
            };
            if forbids {
                forbidden = true;
                capture.broken.get_or_insert_with(|| format!("{what} was called"));
            }
        }
        if !forbidden {
            return Ok(());
        }
        Err(Refusal::new(
            Code::StreamCaptureUnsupported,
            format!(
                "{what} is forbidden to this thread while a stream captures: call it before the capture, or exchange \
                 the thread's capture mode where it is known to be harmless"
            ),
        ))
    }

    /// Refuses a call that is not allowed on a stream while that stream captures, and breaks the capture.
    pub(crate) fn forbid_on_capturing(&mut self, own: u64, what: &str) -> CallResult<()> {
        let Some(branch) = &self.stream(own).capture else { return Ok(()) };
        let capture = branch.capture;
        self.invalidate(capture, &format!("{what} was called on a stream of it"));
        Err(Refusal::new(
            Code::StreamCaptureUnsupported,
            format!("{what} is forbidden on a stream that captures: nothing on it has run"),
        ))
    }

    /// Refuses a call that would wait for an entire device, which is not allowed while one of its streams captures.
    pub(crate) fn forbid_on_capturing_device(&mut self, device: u32, what: &str) -> CallResult<()> {
        let of_device =
            |capture: &Capture| capture.members.iter().any(|&member| self.stream(member).device == device);
        let ids: SmallVec<[u64; 2]> =
            self.captures.iter().filter(|capture| of_device(capture)).map(|capture| capture.id).collect();
        for &id in &ids {
            self.invalidate(id, &format!("{what} was called for its device"));
        }
        if ids.is_empty() {
            return Ok(());
        }
        Err(Refusal::new(
            Code::StreamCaptureUnsupported,
            format!("{what} is forbidden while a stream of device {device} captures"),
        ))
    }

    /// Refuses the use of the legacy stream while a stream that synchronizes with it captures: it would depend on the
    /// capture.
    pub(crate) fn check_legacy(&mut self, device: u32) -> CallResult<()> {
        let Some(capture) = self.capture_tied_to_legacy(device) else { return Ok(()) };
        self.invalidate(capture, "the legacy default stream was used");
        Err(implicit())
    }

    fn capture_tied_to_legacy(&self, device: u32) -> Option<u64> {
        let mut blocking = self.devices[device as usize].blocking_streams.iter();
        blocking.find_map(|&stream| Some(self.stream(stream).capture.as_ref()?.capture))
    }

    /// Refuses the call if the stream's capture is invalid.
    pub(crate) fn check_capture(&self, own: u64) -> CallResult<()> {
        let Some(branch) = &self.stream(own).capture else { return Ok(()) };
        match &self.capture(branch.capture).broken {
            Some(why) => Err(invalidated(why)),
            None => Ok(()),
        }
    }

    /// Breaks a capture.
    pub(crate) fn invalidate(&mut self, id: u64, why: &str) {
        if let Some(capture) = self.captures.iter_mut().find(|capture| capture.id == id) {
            capture.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Breaks the capture of a capturing stream, and returns the refusal.
    pub(crate) fn break_capture_of(&mut self, own: u64, code: Code, detail: &str) -> Refusal {
        let capture = self.stream(own).capture.as_ref().expect("the stream captures").capture;
        self.invalidate(capture, detail);
        Refusal::new(code, detail)
    }

    /// Breaks the captures into a graph.
    pub(crate) fn invalidate_captures_into(&mut self, graph: u64, why: &str) {
        for capture in self.captures.iter_mut().filter(|capture| capture.graph == graph) {
            capture.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Returns the handle of the graph that a capture builds.
    pub(crate) fn graph_under_capture(&self, id: u64) -> u64 {
        self.capture(id).graph
    }

    fn capture(&self, id: u64) -> &Capture {
        let found = self.captures.iter().find(|capture| capture.id == id);
        found.expect("a stream's capture is under way")
    }

    /// Returns the serial number of the graph that the stream captures into, if it captures.
    pub(crate) fn graph_of_capture(&self, own: u64) -> Option<u64> {
        let branch = self.stream(own).capture.as_ref()?;
        let graph = self.capture(branch.capture).graph;
        Some(self.graphs.get(graph).expect("a capture owns its graph").serial())
    }

    // ---- Building -------------------------------------------------------------------------------------------------

    /// Adds a node after the stream's branch.
    pub(crate) fn capture_node(
        &mut self,
        own: u64,
        kind: GraphNodeKind,
        task: Option<Arc<Task>>,
    ) -> CallResult<()> {
        self.capture_work(own, Node { task, ..Node::new(kind) })
    }

    /// Adds a conditional node after the stream's branch.
    pub(crate) fn capture_branch(&mut self, own: u64, branch: Arc<ConditionalBranch>) -> CallResult<()> {
        self.capture_work(own, Node { branch: Some(branch), ..Node::new(GraphNodeKind::Conditional) })
    }

    /// Adds the record of an event of work outside, or a wait for it, after the stream's branch.
    pub(crate) fn capture_event(&mut self, own: u64, event: EventNode) -> CallResult<()> {
        let kind = if event.records { GraphNodeKind::RecordEvent } else { GraphNodeKind::WaitEvent };
        self.capture_work(own, Node { event: Some(event), ..Node::new(kind) })
    }

    /// Adds a node after the stream's branch, with the stream's priority.
    fn capture_work(&mut self, own: u64, node: Node) -> CallResult<()> {
        self.check_capture(own)?;
        let stream = self.stream(own);
        let branch = stream.capture.as_ref().expect("the stream captures");
        let kind = node.kind;
        let node = Node { level: stream.level(), predecessors: branch.nodes.clone(), ..node };
        let graph = self.capture(branch.capture).graph;
        let graph = self.graphs.get_mut(graph).expect("a capture owns its graph");
        if graph.body_of.is_some() && !node.can_be_in_a_body() {
            let detail = format!(
                "a body of a conditional node holds kernels, copies, fills and conditional nodes, and nothing of kind {kind:?}"
            );
            return Err(self.break_capture_of(own, Code::StreamCaptureUnsupported, &detail));
        }
        let index = graph.push(node)?;
        self.branch_mut(own).nodes = SmallVec::from_slice(&[index]);
        Ok(())
    }

    /// Returns the index of a capture that is neither over nor broken.
    fn active_capture(&self, id: u64) -> Option<usize> {
        self.captures.iter().position(|capture| capture.id == id && capture.broken.is_none())
    }

    /// Breaks the capture of an event that the host queries or waits for, and returns the refusal.
    pub(crate) fn refuse_captured_event(&mut self, id: u64) -> Refusal {
        if self.active_capture(id).is_none() {
            return over();
        }
        self.invalidate(id, "the host asked for an event of it");
        Refusal::new(
            Code::CapturedEvent,
            "the event was last recorded in a capture: only streams of that capture can wait for it",
        )
    }

    fn branch_mut(&mut self, own: u64) -> &mut Branch {
        self.stream_mut(own).capture.as_mut().expect("the stream captures")
    }

    /// Makes a stream wait for an event of a capture: the stream joins the capture, or continues in it.
    pub(crate) fn capture_wait(&mut self, own: u64, id: u64, nodes: &[u32]) -> CallResult<()> {
        self.check_capture(own)?;
        let position = self.active_capture(id).ok_or_else(over)?;
        let stream = self.stream(own);
        match &stream.capture {
            Some(branch) if branch.capture == id => {}
            Some(branch) => {
                let other = branch.capture;
                let why = "two captures would have been merged by an event";
                self.invalidate(other, why);
                self.invalidate(id, why);
                return Err(Refusal::new(
                    Code::StreamCaptureMerge,
                    "the event belongs to another capture than the stream: captures cannot be merged",
                ));
            }
            None if stream.is_legacy => {
                self.invalidate(id, "the legacy default stream waited for an event of it");
                return Err(implicit());
            }
            None => {
                self.stream_mut(own).capture = Some(Branch { capture: id, nodes: SmallVec::new() });
                self.captures[position].members.push(own);
            }
        }
        let branch = self.branch_mut(own);
        for &node in nodes {
            if !branch.nodes.contains(&node) {
                branch.nodes.push(node);
            }
        }
        Ok(())
    }

    // ---- Begin, end, information ----------------------------------------------------------------------------------

    pub(crate) fn capture_begin(&mut self, stream: u64, mode: CaptureMode) -> CallResult<()> {
        let own = self.stream_id(stream)?;
        self.capture_begin_into(own, None, mode)
    }

    /// Begins a capture into a new graph, or into the given one.
    pub(crate) fn capture_begin_into(
        &mut self,
        own: u64,
        body: Option<u64>,
        mode: CaptureMode,
    ) -> CallResult<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let found = self.stream(own);
        let is_capturing = found.capture.is_some();
        self.check_alive(found.device)?;
        if found.is_legacy {
            return Err(Refusal::new(
                Code::StreamCaptureUnsupported,
                "the legacy default stream cannot capture: use another stream",
            ));
        }
        if is_capturing {
            return Err(Refusal::new(Code::IllegalState, "the stream captures already"));
        }
        let graph = body.unwrap_or_else(|| {
            let serial = self.next_graph_serial();
            self.graphs.insert(Graph::new(serial))
        });
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.stream_mut(own).capture = Some(Branch { capture: id, nodes: SmallVec::new() });
        self.captures.push(Capture {
            id,
            origin: own,
            mode,
            thread: std::thread::current().id(),
            graph,
            members: vec![own],
            orphans: Vec::new(),
            broken: None,
        });
        Ok(())
    }

    pub(crate) fn capture_end(&mut self, stream: u64) -> CallResult<u64> {
        let own = self.stream_id(stream)?;
        let Some(branch) = &self.stream(own).capture else {
            return Err(Refusal::new(Code::IllegalState, "the stream does not capture"));
        };
        let capture = self.capture(branch.capture);
        if capture.origin != own {
            return Err(self.break_capture_of(
                own,
                Code::StreamCaptureUnmatched,
                "the capture was begun on another stream: end it there",
            ));
        }
        let verdict = self.verdict(capture);
        let capture = self.remove_capture(branch.capture);
        match verdict {
            Ok(()) => {
                self.graphs.get_mut(capture.graph).expect("the capture's own").is_complete = true;
                Ok(capture.graph)
            }
            Err(refusal) => {
                self.abandon(capture.graph);
                Err(refusal)
            }
        }
    }

    /// Drops the graph of a capture that failed. If it was a body, its root cannot be used any more.
    fn abandon(&mut self, graph: u64) {
        let found = self.graphs.get_mut(graph).expect("the capture's own");
        if found.body_of.is_none() {
            return self.drop_graph(graph);
        }
        found.is_complete = true;
        let (nodes, root) = (std::mem::take(&mut found.nodes), found.body_of.as_ref().map(|body| body.root));
        self.trash.push(Box::new(nodes));
        if let Some(root) = root.and_then(|root| self.graphs.get_mut(root)) {
            root.is_broken = true;
        }
    }

    /// Checks whether ending a capture now returns a graph. (A GPU, too, ends the capture when the wrong thread does this.)
    fn verdict(&self, capture: &Capture) -> CallResult<()> {
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Refusal::new(
                Code::StreamCaptureWrongThread,
                "the capture was begun by another thread: end it there, or begin it in relaxed mode; it is over now",
            ));
        }
        if let Some(why) = &capture.broken {
            return Err(invalidated(why));
        }
        if !self.is_joined(capture) {
            return Err(Refusal::new(
                Code::StreamCaptureUnjoined,
                "a stream that joined the capture has work that the origin does not wait for: record an event after it \
                 and let the origin wait for the event",
            ));
        }
        Ok(())
    }

    /// Returns whether all branches precede the origin's.
    fn is_joined(&self, capture: &Capture) -> bool {
        let graph = self.graphs.get(capture.graph).expect("a capture owns its graph");
        let nodes = |&member: &u64| {
            self.stream(member).capture.as_ref().map(|branch| branch.nodes.as_slice()).unwrap_or_default()
        };
        let before = graph.ancestors(nodes(&capture.origin));
        let branches = capture.members.iter().flat_map(nodes).chain(&capture.orphans);
        branches.into_iter().all(|&node| before[node as usize])
    }

    fn remove_capture(&mut self, id: u64) -> Capture {
        let position = self.captures.iter().position(|capture| capture.id == id);
        let capture = self.captures.swap_remove(position.expect("it is under way"));
        for &member in &capture.members {
            self.stream_mut(member).capture = None;
        }
        capture
    }

    /// Removes a stream that is being destroyed from its capture. A capture that loses its origin can no longer be ended by a
    /// call, and is over.
    pub(crate) fn leave_capture(&mut self, own: u64) {
        let Some(branch) = self.stream_mut(own).capture.take() else { return };
        let id = branch.capture;
        let capture = self.captures.iter_mut().find(|capture| capture.id == id).expect("it is under way");
        capture.members.retain(|&member| member != own);
        capture.orphans.extend_from_slice(&branch.nodes);
        if capture.origin == own {
            let capture = self.remove_capture(id);
            self.abandon(capture.graph);
        }
    }

    pub(crate) fn capture_info(&self, stream: u64) -> CallResult<CaptureInfo> {
        let own = self.stream_id(stream)?;
        let found = self.stream(own);
        if found.is_legacy && self.capture_tied_to_legacy(found.device).is_some() {
            return Err(implicit());
        }
        let Some(branch) = &found.capture else { return Ok(CaptureInfo::none()) };
        let capture = self.capture(branch.capture);
        if capture.broken.is_some() {
            return Ok(CaptureInfo { status: CaptureStatus::Invalidated, ..CaptureInfo::none() });
        }
        let graph = self.graphs.get(capture.graph).expect("a capture owns its graph");
        Ok(CaptureInfo {
            status: CaptureStatus::Active,
            id: capture.id,
            graph: Some(GraphHandle::from_raw(capture.graph)),
            dependencies: branch.nodes.iter().map(|&node| graph.handle(node)).collect(),
        })
    }

    pub(crate) fn capture_update(
        &mut self,
        stream: u64,
        dependencies: &[GraphNodeHandle],
        update: DependencyUpdate,
    ) -> CallResult<()> {
        let own = self.stream_id(stream)?;
        let Some(branch) = &self.stream(own).capture else {
            return Err(Refusal::new(Code::IllegalState, "the stream does not capture"));
        };
        self.check_capture(own)?;
        let graph = self.capture(branch.capture).graph;
        let graph = self.graphs.get(graph).expect("a capture owns its graph");
        let nodes = dependencies
            .iter()
            .map(|&handle| {
                graph.index(handle).ok_or_else(|| {
                    Refusal::new(
                        Code::InvalidValue,
                        format!("{handle:?} is not a node of this capture's graph"),
                    )
                })
            })
            .collect::<CallResult<SmallVec<[u32; 4]>>>()?;
        let branch = self.branch_mut(own);
        if update == DependencyUpdate::Set {
            branch.nodes.clear();
        }
        for node in nodes {
            if !branch.nodes.contains(&node) {
                branch.nodes.push(node);
            }
        }
        Ok(())
    }
}

fn implicit() -> Refusal {
    Refusal::new(
        Code::StreamCaptureImplicit,
        "a blocking stream of the device captures, and the legacy default stream would depend on it: use another stream",
    )
}

fn over() -> Refusal {
    Refusal::new(
        Code::InvalidValue,
        "the event was last recorded in a capture that is over or broken: record it again outside",
    )
}

fn invalidated(why: &str) -> Refusal {
    Refusal::new(
        Code::StreamCaptureInvalidated,
        format!("the capture was broken earlier ({why}): end it and begin again"),
    )
}
