//! Types of stream captures and graphs.

pub mod conditional;
pub(crate) mod description;

use crate::GraphNodeHandle;

/// The calls that a capture forbids, and the threads to which this applies (`cudaStreamCaptureMode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CaptureMode {
    /// Potentially unsafe calls (synchronous allocation, say) of every thread break the capture.
    #[default]
    Global,
    /// Potentially unsafe calls of the thread that captures break the capture.
    ThreadLocal,
    /// No call breaks the capture by being potentially unsafe.
    Relaxed,
}

/// The state of a stream with regard to captures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaptureStatus {
    /// The stream does not capture.
    None,
    /// The stream captures.
    Active,
    /// The stream captured, and an error broke the capture: it must be ended, and will return no graph.
    Invalidated,
}

/// The state of a stream's capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureInfo {
    /// The status of the capture.
    pub status: CaptureStatus,
    /// The number of the capture, unique in the process; 0 if there is no capture.
    pub id: u64,
    /// The graph under construction; `None` if there is no capture. It belongs to the capture: it can be read, and extended
    /// through the stream, but not destroyed.
    pub graph: Option<crate::GraphHandle>,
    /// The nodes that the next command on the stream will depend on.
    pub dependencies: Vec<GraphNodeHandle>,
}

impl CaptureInfo {
    /// Creates the state of a stream that does not capture.
    pub const fn none() -> Self {
        Self { status: CaptureStatus::None, id: 0, graph: None, dependencies: Vec::new() }
    }
}

/// The effect of an update on the dependencies of a capturing stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DependencyUpdate {
    /// The nodes are added to the dependencies.
    Add,
    /// The nodes replace the dependencies.
    Set,
}

/// The result of an update of an entire executable graph ([`Driver::graph_exec_update`](crate::Driver::graph_exec_update)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphExecUpdate {
    /// Later launches do the other graph's work.
    Updated,
    /// The other graph does not match, and the executable is unchanged: instantiate the graph instead.
    Refused(UpdateRefusal),
}

impl GraphExecUpdate {
    /// Returns whether later launches do the other graph's work.
    pub const fn is_updated(&self) -> bool {
        matches!(self, Self::Updated)
    }
}

/// The reason why an executable could not take another graph's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpdateRefusal {
    /// The difference.
    pub reason: UpdateReason,
    /// The node of the other graph at which the difference was noticed; `None` if it is not one particular node.
    pub node: Option<GraphNodeHandle>,
    /// The dependency of `node` that has no counterpart, if that is the difference.
    pub dependency: Option<GraphNodeHandle>,
}

/// A difference between an executable and a graph (`CUgraphExecUpdateResult`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum UpdateReason {
    /// The numbers of nodes differ, or the nodes depend on one another in a different way.
    TopologyChanged,
    /// The kinds of two paired nodes differ.
    KindChanged,
    /// A kernel would be replaced by one that cannot run in its place: it belongs to another device, say.
    FunctionChanged,
    /// Parameters changed in a way that needs a new executable: a copy between other kinds of memory, say.
    ParametersChanged,
    /// An attribute changed that an executable cannot change: the priority of a kernel, say.
    AttributesChanged,
    /// Nodes of this kind cannot be updated.
    NotSupported,
    /// Another reason, which the driver does not report.
    Other,
}
