//! Capture and graphs.
//!
//! The graph of a running capture has a handle before the capture ends: it can be described, and its nodes can be named as
//! dependencies. Calls that begin, end or inspect captures take one lock, so that such a graph cannot end between the check
//! and the use. So do calls that make a graph share memory that its commands use. The check whether a stream captures at
//! all, which is on hot paths, takes no lock.
//!
//! A node's handle is the driver's own pointer. It is never dereferenced here, and is passed to the driver only after it
//! was found among the nodes of the graph in which it is used. Such a search reads all of them, so a capture remembers the
//! nodes that it returned.
//!
//! Locks are taken in this order: entries of tables, the captures, one graph. A thread that holds the captures never waits
//! for an entry.
//!
//! Graphs and executables of the driver are not safe to use from two threads at once, so each has its lock; if both are
//! needed, the executable's is taken first.

pub(super) mod conditional;
mod description;
mod update;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::{Mutex, MutexGuard};

use crate::cuda::objects::{Graph, GraphExec, Stream, UnderConstruction};
use crate::cuda::state::CudaDriver;
use crate::cuda::sys::{self, EdgeData, RawGraph, RawGraphExec, RawGraphNode};
use crate::graph::{CaptureInfo, CaptureMode, CaptureStatus, DependencyUpdate};
use crate::{Code, Error, GraphExecHandle, GraphHandle, GraphNodeHandle, Result, StreamHandle};

/// The number of predecessors of a node that the first query has room for.
const USUAL_PREDECESSORS: usize = 8;

/// The driver's information about a stream's capture.
struct RawInfo {
    status: u32,
    id: u64,
    graph: RawGraph,
    /// The driver's own list of the dependencies of the stream's next command.
    nodes: *const RawGraphNode,
    count: usize,
}

impl RawInfo {
    /// Returns a copy of the list.
    ///
    /// # Safety
    /// No call on the stream, and no end of its capture, happened after the query, or happens before this returns.
    unsafe fn dependencies(&self) -> Vec<RawGraphNode> {
        if self.status != sys::CAPTURE_ACTIVE || self.count == 0 || self.nodes.is_null() {
            return Vec::new();
        }
        // SAFETY: the driver promises that `count` nodes are at `nodes` until the next call on the stream.
        unsafe { std::slice::from_raw_parts(self.nodes, self.count) }.to_vec()
    }
}

pub(in crate::cuda) const fn mode_number(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => sys::MODE_GLOBAL,
        CaptureMode::ThreadLocal => sys::MODE_THREAD_LOCAL,
        CaptureMode::Relaxed => sys::MODE_RELAXED,
    }
}

pub(in crate::cuda) fn handle_of(node: RawGraphNode) -> GraphNodeHandle {
    GraphNodeHandle::from_raw(node.0 as u64)
}

impl CudaDriver {
    /// Returns the `CUstreamCaptureStatus` of a stream, whose device has been entered.
    #[inline]
    pub(in crate::cuda) fn capture_status(&self, stream: &Stream, call: &'static str) -> Result<u32> {
        let mut status = sys::CAPTURE_NONE;
        // SAFETY: the stream is looked up; writes one number.
        let outcome = unsafe { self.cuda.table.stream_is_capturing(stream.raw, &raw mut status) };
        self.cuda.check(outcome, || format!("{call} on a stream of device {}", stream.device))?;
        Ok(status)
    }

    /// Returns the graph that the stream captures into, if it captures. The graph lives while the caller has the lock of
    /// the captures.
    pub(in crate::cuda) fn graph_under_construction(&self, stream: &Stream) -> Result<Option<RawGraph>> {
        if self.capture_status(stream, "cuStreamIsCapturing")? != sys::CAPTURE_ACTIVE {
            return Ok(None);
        }
        let info = self.raw_info(stream)?;
        Ok((info.status == sys::CAPTURE_ACTIVE).then_some(info.graph))
    }

    fn raw_info(&self, stream: &Stream) -> Result<RawInfo> {
        // Any other stream can be queried in any context, and a default stream before its device has one.
        if stream.context.is_some() {
            self.enter_stream(stream)?;
        }
        let (mut status, mut id, mut graph) = (sys::CAPTURE_NONE, 0_u64, RawGraph::default());
        let mut nodes: *const RawGraphNode = std::ptr::null();
        let mut edges: *const EdgeData = std::ptr::null();
        let mut count = 0_usize;
        let table = &self.cuda.table;
        // SAFETY: the stream is looked up; every result is written to a local.
        let outcome = unsafe {
            let newer = table.capture_info_v3(
                stream.raw,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                &raw mut nodes,
                &raw mut edges,
                &raw mut count,
            );
            if newer.missing.is_none() {
                newer
            } else {
                table.capture_info_v2(
                    stream.raw,
                    &raw mut status,
                    &raw mut id,
                    &raw mut graph,
                    &raw mut nodes,
                    &raw mut count,
                )
            }
        };
        self.cuda.check(outcome, || format!("a stream of device {}", stream.device))?;
        Ok(RawInfo { status, id, graph, nodes, count })
    }

    pub(in crate::cuda) fn stream_begin_capture(
        &self,
        handle: StreamHandle,
        mode: CaptureMode,
    ) -> Result<()> {
        let stream = self.streams.get(handle.raw(), "cuStreamBeginCapture")?;
        self.submit_on(&stream)?;
        let _captures = self.captures.lock();
        // SAFETY: the stream is looked up.
        let outcome = unsafe { self.cuda.table.stream_begin_capture(stream.raw, mode_number(mode)) };
        self.cuda.check(outcome, || format!("a {mode:?} capture on a stream of device {}", stream.device))?;
        self.capturing.lock().insert(handle.raw());
        Ok(())
    }

    pub(in crate::cuda) fn stream_end_capture(&self, handle: StreamHandle) -> Result<GraphHandle> {
        let call = "cuStreamEndCapture";
        let stream = self.streams.get(handle.raw(), call)?;
        self.enter_stream(&stream)?;
        let mut captures = self.captures.lock();
        let id =
            self.raw_info(&stream).ok().filter(|info| info.status != sys::CAPTURE_NONE).map(|info| info.id);
        let mut raw = RawGraph::default();
        // SAFETY: the stream is looked up; writes one handle.
        let outcome = unsafe { self.cuda.table.stream_end_capture(stream.raw, &raw mut raw) };
        let ended = self.cuda.check(outcome, || format!("a stream of device {}", stream.device));
        // A broken capture is over; one that another stream has to end is not.
        let over = ended.is_ok() || matches!(self.capture_status(&stream, call), Ok(sys::CAPTURE_NONE));
        if over {
            self.capturing.lock().remove(&handle.raw());
        }
        let known = id.filter(|_| over).and_then(|id| captures.remove(&id)).map(|known| known.handle);
        // Before another thread can inspect them: the bodies of a capture that failed are gone with it.
        let family = known.and_then(|graph| self.family_is_built(graph, ended.is_ok()));
        drop(captures);
        if let Err(error) = ended {
            if let Some(graph) = known {
                self.end_family(family, call);
                self.abandon(graph, call)?;
            }
            return Err(error);
        }
        if raw == RawGraph::default() {
            return Err(Error::new(Code::StreamCaptureInvalidated, call, "the capture gave no graph"));
        }
        if let Some(graph) = known {
            let entry = self.graphs.get(graph.raw(), call)?;
            *entry.raw.lock() = raw;
            *entry.capture.lock() = None;
            return Ok(graph);
        }
        Ok(GraphHandle::from_raw(self.graphs.insert(Graph::new(raw, stream.device, None))))
    }

    /// Drops the graph of a capture that failed: the driver's graph is gone, or it is a body that no capture builds.
    fn abandon(&self, graph: GraphHandle, call: &'static str) -> Result<()> {
        let entry = self.graphs.get(graph.raw(), call)?;
        if let Some(root) = entry.root {
            *entry.capture.lock() = None;
            self.body_failed(root);
            return Ok(());
        }
        drop(entry);
        self.graphs.remove(graph.raw(), call, |_| Ok(()))
    }

    /// Records that a capture into a body has begun on a stream.
    pub(in crate::cuda) fn body_is_captured(
        &self,
        stream: &Stream,
        handle: StreamHandle,
        body: GraphHandle,
        graph: &Graph,
        captures: &mut FxHashMap<u64, UnderConstruction>,
    ) -> Result<()> {
        let info = self.raw_info(stream)?;
        *graph.capture.lock() = Some((info.id, handle));
        captures.insert(info.id, UnderConstruction { handle: body, known: FxHashSet::default() });
        Ok(())
    }

    pub(in crate::cuda) fn stream_capture_info(&self, handle: StreamHandle) -> Result<CaptureInfo> {
        let call = "cuStreamGetCaptureInfo";
        {
            // Allocators ask this all the time, and the answer is nearly always no.
            let stream = self.streams.get(handle.raw(), call)?;
            self.enter_stream(&stream)?;
            if self.capture_status(&stream, call)? == sys::CAPTURE_NONE {
                return Ok(CaptureInfo::none());
            }
        }
        // The driver's list of dependencies is valid until the next call on the stream, by whichever thread.
        let stream = self.streams.get_alone(handle.raw(), call)?;
        self.enter_stream(&stream)?;
        let mut captures = self.captures.lock();
        let info = self.raw_info(&stream)?;
        let status = match info.status {
            sys::CAPTURE_NONE => return Ok(CaptureInfo::none()),
            sys::CAPTURE_ACTIVE => CaptureStatus::Active,
            _ => {
                let none = CaptureInfo::none();
                return Ok(CaptureInfo { status: CaptureStatus::Invalidated, id: info.id, ..none });
            }
        };
        let graph = captures.entry(info.id).or_insert_with(|| {
            let graph = Graph::new(info.graph, stream.device, Some((info.id, handle)));
            let handle = GraphHandle::from_raw(self.graphs.insert(graph));
            UnderConstruction { handle, known: FxHashSet::default() }
        });
        // SAFETY: no other thread is in a call on the stream while its entry is held exclusively (for streams that other
        // code knows, their creator promised this), and the lock of the captures keeps the capture from ending.
        let dependencies = unsafe { info.dependencies() };
        graph.known.extend(&dependencies);
        let dependencies = dependencies.into_iter().map(handle_of).collect();
        Ok(CaptureInfo { status, id: info.id, graph: Some(graph.handle), dependencies })
    }

    pub(in crate::cuda) fn stream_update_capture_dependencies(
        &self,
        stream: StreamHandle,
        dependencies: &[GraphNodeHandle],
        update: DependencyUpdate,
    ) -> Result<()> {
        let call = "cuStreamUpdateCaptureDependencies";
        let stream = self.streams.get(stream.raw(), call)?;
        self.enter_stream(&stream)?;
        let _captures = self.captures.lock();
        let info = self.raw_info(&stream)?;
        if info.status == sys::CAPTURE_NONE {
            return Err(Error::new(Code::IllegalState, call, "the stream does not capture"));
        }
        if info.status != sys::CAPTURE_ACTIVE {
            return Err(Error::new(
                Code::StreamCaptureInvalidated,
                call,
                "the capture was broken by an error",
            ));
        }
        let nodes: FxHashSet<u64> = self.raw_nodes(info.graph)?.iter().map(|node| node.0 as u64).collect();
        if let Some(wrong) = dependencies.iter().find(|node| !nodes.contains(&node.raw())) {
            let detail = format!("{wrong:?} is not a node of the graph under construction");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let mut raw: Vec<RawGraphNode> =
            dependencies.iter().map(|node| RawGraphNode(node.raw() as usize)).collect();
        let flags = match update {
            DependencyUpdate::Add => sys::DEPENDENCIES_ADD,
            DependencyUpdate::Set => sys::DEPENDENCIES_SET,
        };
        let (table, first, count) = (&self.cuda.table, raw.as_mut_ptr(), raw.len());
        // SAFETY: `count` nodes of the graph under construction are at `first`; no edge data means plain edges.
        let outcome = unsafe {
            let newer = table.update_dependencies_v2(stream.raw, first, std::ptr::null(), count, flags);
            if newer.missing.is_none() {
                newer
            } else {
                table.update_dependencies_v1(stream.raw, first, count, flags)
            }
        };
        self.cuda.check(outcome, || format!("{count} dependencies"))
    }

    pub(in crate::cuda) fn thread_exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut number = mode_number(mode);
        // SAFETY: swaps a number of this thread with the one in `number`.
        let outcome = unsafe { self.cuda.table.exchange_capture_mode(&raw mut number) };
        self.cuda.check(outcome, || format!("{mode:?}"))?;
        Ok(match number {
            sys::MODE_THREAD_LOCAL => CaptureMode::ThreadLocal,
            sys::MODE_RELAXED => CaptureMode::Relaxed,
            _ => CaptureMode::Global,
        })
    }

    /// Checks a looked-up graph for a call that uses it, and enters its device. The guard of the captures keeps the capture
    /// that builds it, or the graph that contains it as a body, from ending.
    pub(in crate::cuda) fn check_alive(
        &self,
        graph: &Graph,
        call: &'static str,
    ) -> Result<MutexGuard<'_, FxHashMap<u64, UnderConstruction>>> {
        self.enter(graph.device)?;
        let Some((id, stream)) = self.builder(graph, call)? else {
            let captures = self.captures.lock();
            // A body's graph may have been destroyed by now; then its family is gone too.
            self.builder(graph, call)?;
            return Ok(captures);
        };
        let stream = self.streams.get(stream.raw(), call)?;
        let captures = self.captures.lock();
        let info = self.raw_info(&stream)?;
        if info.status == sys::CAPTURE_ACTIVE && info.id == id {
            return Ok(captures);
        }
        Err(Error::new(Code::InvalidHandle, call, "the capture that built this graph has ended without it"))
    }

    /// Returns the number of the capture that builds a graph, and a stream of that capture. For a body of a conditional node,
    /// this is the capture of the graph that contains the body.
    pub(in crate::cuda) fn builder(
        &self,
        graph: &Graph,
        call: &'static str,
    ) -> Result<Option<(u64, StreamHandle)>> {
        match graph.root {
            Some(root) => self.builder_of_root(root, call),
            None => Ok(*graph.capture.lock()),
        }
    }

    /// Refuses a graph that a capture builds, and a body.
    pub(in crate::cuda) fn check_finished(graph: &Graph, call: &'static str) -> Result<()> {
        let detail = if graph.is_under_construction() {
            "the graph belongs to a capture: end the capture first"
        } else if graph.root.is_some() {
            "the graph is a body of a conditional node and belongs to the graph that it is in"
        } else {
            return Ok(());
        };
        Err(Error::new(Code::IllegalState, call, detail))
    }

    /// Refuses a graph one of whose bodies is being captured.
    fn check_bodies(&self, graph: GraphHandle, call: &'static str) -> Result<()> {
        if !self.is_family_under_construction(graph, call) {
            return Ok(());
        }
        let detail = "a body of the graph is being captured: end that capture first";
        Err(Error::new(Code::IllegalState, call, detail))
    }

    pub(in crate::cuda) fn raw_nodes(&self, graph: RawGraph) -> Result<Vec<RawGraphNode>> {
        let table = &self.cuda.table;
        let mut count = 0_usize;
        // SAFETY: the graph is alive; with no array only the count is written.
        let outcome = unsafe { table.graph_get_nodes(graph, std::ptr::null_mut(), &raw mut count) };
        self.cuda.check(outcome, || "the number of nodes".to_owned())?;
        let mut nodes = vec![RawGraphNode::default(); count];
        if count > 0 {
            // SAFETY: the array has room for `count` nodes, and says so.
            let outcome = unsafe { table.graph_get_nodes(graph, nodes.as_mut_ptr(), &raw mut count) };
            self.cuda.check(outcome, || format!("{count} nodes"))?;
            nodes.truncate(count);
        }
        Ok(nodes)
    }

    /// Returns whether a finished graph has this node.
    pub(in crate::cuda) fn has_node(&self, graph: &Graph, node: RawGraphNode) -> Result<bool> {
        if let Some(nodes) = graph.nodes.get() {
            return Ok(nodes.contains(&node));
        }
        let nodes = self.raw_nodes(*graph.raw.lock())?.into_iter().collect();
        Ok(graph.nodes.get_or_init(|| nodes).contains(&node))
    }

    pub(in crate::cuda) fn raw_edges(&self, graph: RawGraph) -> Result<Vec<(RawGraphNode, RawGraphNode)>> {
        let table = &self.cuda.table;
        let null = std::ptr::null_mut::<RawGraphNode>();
        let mut count = 0_usize;
        // SAFETY: the graph is alive; with no arrays only the count is written.
        let mut outcome =
            unsafe { table.graph_get_edges_v2(graph, null, null, std::ptr::null_mut(), &raw mut count) };
        let newer = outcome.missing.is_none();
        if !newer {
            // SAFETY: as above.
            outcome = unsafe { table.graph_get_edges_v1(graph, null, null, &raw mut count) };
        }
        self.cuda.check(outcome, || "the number of edges".to_owned())?;
        let mut from = vec![RawGraphNode::default(); count];
        let mut to = from.clone();
        let mut data = vec![EdgeData::default(); count];
        if count > 0 {
            let (first, second, room) = (from.as_mut_ptr(), to.as_mut_ptr(), &raw mut count);
            // SAFETY: every array has room for `count` items, and `count` says so.
            let outcome = unsafe {
                if newer {
                    table.graph_get_edges_v2(graph, first, second, data.as_mut_ptr(), room)
                } else {
                    table.graph_get_edges_v1(graph, first, second, room)
                }
            };
            self.cuda.check(outcome, || "the edges".to_owned())?;
        }
        Ok(from.into_iter().zip(to).take(count).collect())
    }

    pub(in crate::cuda) fn graph_node_predecessors(
        &self,
        graph: GraphHandle,
        node: GraphNodeHandle,
    ) -> Result<Vec<GraphNodeHandle>> {
        let call = "cuGraphNodeGetDependencies";
        let graph = self.graphs.get(graph.raw(), call)?;
        let mut captures = self.check_alive(&graph, call)?;
        let raw = graph.raw.lock();
        let mut builder = graph.capture.lock().and_then(|(id, _)| captures.get_mut(&id));
        let wanted = RawGraphNode(node.raw() as usize);
        let is_known = builder.as_ref().is_some_and(|builder| builder.known.contains(&wanted));
        if !is_known && !self.raw_nodes(*raw)?.contains(&wanted) {
            return Err(Error::new(Code::InvalidValue, call, format!("{node:?} is not a node of the graph")));
        }
        let predecessors = self.raw_predecessors(wanted)?;
        if let Some(builder) = &mut builder {
            builder.known.extend(&predecessors);
        }
        Ok(predecessors.into_iter().map(handle_of).collect())
    }

    /// Returns the predecessors of a node of a graph that is alive.
    fn raw_predecessors(&self, node: RawGraphNode) -> Result<Vec<RawGraphNode>> {
        let table = &self.cuda.table;
        let mut room = USUAL_PREDECESSORS;
        loop {
            let mut nodes = vec![RawGraphNode::default(); room];
            let mut edges = vec![EdgeData::default(); room];
            let mut count = room;
            // SAFETY: the node is alive; both arrays have room for `count` items, and `count` says so.
            let outcome = unsafe {
                let first = nodes.as_mut_ptr();
                let newer = table.graph_node_predecessors_v2(node, first, edges.as_mut_ptr(), &raw mut count);
                if newer.missing.is_none() {
                    newer
                } else {
                    table.graph_node_predecessors_v1(node, first, &raw mut count)
                }
            };
            self.cuda.check(outcome, || "what a node depends on".to_owned())?;
            if count < room {
                nodes.truncate(count);
                return Ok(nodes);
            }
            // The list may have been cut off: the driver fills the room that there is.
            room *= 4;
        }
    }

    pub(in crate::cuda) fn graph_destroy(&self, handle: GraphHandle) -> Result<()> {
        let call = "cuGraphDestroy";
        self.graphs.remove(handle.raw(), call, |graph| {
            Self::check_finished(graph, call)?;
            self.check_bodies(handle, call)?;
            self.enter(graph.device)?;
            let is_intact = self.check_intact(handle, call).is_ok();
            self.drop_family(handle, call);
            if !is_intact {
                // The driver cannot destroy the graph, so it leaks.
                return Ok(());
            }
            // SAFETY: the graph is this driver's, no capture builds it, and nothing else holds its entry.
            let outcome = unsafe { self.cuda.table.graph_destroy(*graph.raw.lock()) };
            self.cuda.check(outcome, || format!("a graph of device {}", graph.device))
        })
    }

    pub(in crate::cuda) fn graph_instantiate(
        &self,
        template: GraphHandle,
        device: u32,
    ) -> Result<GraphExecHandle> {
        let call = "cuGraphInstantiate";
        let graph = self.graphs.get(template.raw(), call)?;
        self.enter(device)?;
        Self::check_finished(&graph, call)?;
        self.check_bodies(template, call)?;
        self.check_intact(template, call)?;
        let mut raw = RawGraphExec::default();
        // Memory that a launch allocated and did not free is freed by the next launch, and a kernel keeps the priority of
        // the stream on which it was captured.
        let flags = sys::INSTANTIATE_AUTO_FREE_ON_LAUNCH | sys::INSTANTIATE_USE_NODE_PRIORITY;
        let source = graph.raw.lock();
        // SAFETY: the graph is looked up and locked; writes one handle.
        let outcome = unsafe { self.cuda.table.graph_instantiate(&raw mut raw, *source, flags) };
        drop(source);
        self.cuda.check(outcome, || format!("a graph for device {device}"))?;
        let exec = GraphExec { raw: Mutex::new(raw), device, template };
        Ok(GraphExecHandle::from_raw(self.execs.insert(exec)))
    }

    pub(in crate::cuda) fn graph_exec_destroy(&self, exec: GraphExecHandle) -> Result<()> {
        self.execs.remove(exec.raw(), "cuGraphExecDestroy", |exec| {
            self.enter(exec.device)?;
            // SAFETY: the executable is this driver's, and nothing else holds its entry. If it is running, the driver frees
            // it when it is done.
            let outcome = unsafe { self.cuda.table.graph_exec_destroy(*exec.raw.lock()) };
            self.cuda.check(outcome, || format!("an executable graph of device {}", exec.device))
        })
    }

    pub(in crate::cuda) fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        let call = "cuGraphLaunch";
        let exec = self.execs.get(exec.raw(), call)?;
        let stream = self.streams.get(stream.raw(), call)?;
        self.submit_on(&stream)?;
        let raw = exec.raw.lock();
        // SAFETY: both are looked up, and the executable is locked.
        let outcome = unsafe { self.cuda.table.graph_launch(*raw, stream.raw) };
        self.cuda.check(outcome, || {
            format!("an executable of device {} on a stream of device {}", exec.device, stream.device)
        })
    }
}
