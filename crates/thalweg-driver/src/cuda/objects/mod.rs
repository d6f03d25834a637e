//! The objects that handles name. The modules of their groups contain the calls on them.

pub(super) mod handles;
pub(super) mod pinned;
pub(super) mod ranges;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32};

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::Mutex;

use crate::cuda::sys::{
    RawContext, RawEvent, RawFunction, RawGraph, RawGraphExec, RawGraphNode, RawModule, RawPhysical, RawPool,
    RawStream,
};
use crate::{ConditionHandle, Conditional, FunctionHandle, GraphHandle, HandleType, StreamHandle};

/// The owner of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) enum StreamOwner {
    /// The device, for the legacy default stream.
    Device,
    /// This driver.
    Driver,
    /// Another library.
    External,
}

/// A stream.
pub(in crate::cuda) struct Stream {
    pub(in crate::cuda) raw: RawStream,
    pub(in crate::cuda) device: u32,
    /// The stream's context, if that is not the device's primary context. The stream is then the legacy default stream of that
    /// context, and `raw` has no meaning without it.
    pub(in crate::cuda) context: Option<RawContext>,
    pub(in crate::cuda) owner: StreamOwner,
}

impl Stream {
    pub(in crate::cuda) fn new(raw: RawStream, device: u32, owner: StreamOwner) -> Self {
        Self { raw, device, context: None, owner }
    }
}

/// An event.
pub(in crate::cuda) struct Event {
    pub(in crate::cuda) raw: RawEvent,
    pub(in crate::cuda) device: u32,
    /// Whether nodes of a graph use the event. CUDA then needs it at each launch: a launch without it never ends.
    pub(in crate::cuda) is_in_graph: AtomicBool,
}

/// A loaded module.
pub(in crate::cuda) struct Module {
    pub(in crate::cuda) raw: RawModule,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) functions: Mutex<FxHashMap<String, FunctionHandle>>,
}

/// A kernel.
pub(in crate::cuda) struct Function {
    pub(in crate::cuda) raw: RawFunction,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) name: String,
    /// The size of the kernel's arguments in bytes, if the driver can report it.
    pub(in crate::cuda) argument_bytes: Option<usize>,
    /// Whether the kernel is known to have exactly one argument.
    pub(in crate::cuda) has_one_argument: bool,
    /// The dynamic shared memory that was requested so far.
    pub(in crate::cuda) shared_memory_bytes: AtomicU32,
}

/// Physical memory.
pub(in crate::cuda) struct Physical {
    pub(in crate::cuda) raw: RawPhysical,
    pub(in crate::cuda) bytes: u64,
    pub(in crate::cuda) device: u32,
    pub(in crate::cuda) share_as: Option<HandleType>,
}

/// A pool of the stream-ordered allocator.
pub(in crate::cuda) struct Pool {
    pub(in crate::cuda) raw: RawPool,
    pub(in crate::cuda) device: u32,
}

/// A graph.
pub(in crate::cuda) struct Graph {
    pub(in crate::cuda) raw: Mutex<RawGraph>,
    pub(in crate::cuda) device: u32,
    /// The number of the capture that builds the graph, and a stream of that capture; `None` if the graph is complete.
    pub(in crate::cuda) capture: Mutex<Option<(u64, StreamHandle)>>,
    /// Its nodes, once a node of the finished graph has been requested. The graph gets no further nodes.
    pub(in crate::cuda) nodes: OnceLock<FxHashSet<RawGraphNode>>,
    /// The outermost graph, if this graph is a body of a conditional node.
    pub(in crate::cuda) root: Option<GraphHandle>,
    /// The conditional nodes that were added to the graph.
    pub(in crate::cuda) conditionals: Mutex<FxHashMap<RawGraphNode, ConditionalNode>>,
}

impl Graph {
    pub(in crate::cuda) fn new(raw: RawGraph, device: u32, capture: Option<(u64, StreamHandle)>) -> Self {
        Self {
            raw: Mutex::new(raw),
            device,
            capture: Mutex::new(capture),
            nodes: OnceLock::new(),
            root: None,
            conditionals: Mutex::default(),
        }
    }

    /// Creates a body of a conditional node.
    pub(in crate::cuda) fn body(raw: RawGraph, device: u32, root: GraphHandle) -> Self {
        Self { root: Some(root), ..Self::new(raw, device, None) }
    }

    pub(in crate::cuda) fn is_under_construction(&self) -> bool {
        self.capture.lock().is_some()
    }
}

/// An executable graph.
pub(in crate::cuda) struct GraphExec {
    pub(in crate::cuda) raw: Mutex<RawGraphExec>,
    pub(in crate::cuda) device: u32,
    /// The graph that the executable was instantiated from, whose node handles also identify the executable's nodes.
    pub(in crate::cuda) template: GraphHandle,
}

/// The graphs under construction, by the number of their capture.
pub(in crate::cuda) type Captures = Mutex<FxHashMap<u64, UnderConstruction>>;

/// A graph under construction.
pub(in crate::cuda) struct UnderConstruction {
    pub(in crate::cuda) handle: GraphHandle,
    /// The graph's nodes whose handles callers have. A capture only adds nodes, so these handles remain valid.
    pub(in crate::cuda) known: FxHashSet<RawGraphNode>,
}

/// A condition.
pub(in crate::cuda) struct Condition {
    pub(in crate::cuda) raw: u64,
    pub(in crate::cuda) root: GraphHandle,
    pub(in crate::cuda) device: u32,
    /// Whether a node reads the condition.
    pub(in crate::cuda) is_used: Mutex<bool>,
}

/// The bodies and conditions of each root, by the root's handle.
pub(in crate::cuda) type Families = Mutex<FxHashMap<GraphHandle, Family>>;

/// The bodies and conditions that belong to a root.
pub(in crate::cuda) struct Family {
    /// The number of the capture that builds the root, and a stream of that capture; `None` if no capture builds the root.
    pub(in crate::cuda) builder: Option<(u64, StreamHandle)>,
    pub(in crate::cuda) conditions: Vec<ConditionHandle>,
    pub(in crate::cuda) bodies: Vec<GraphHandle>,
    /// Whether the capture of a body failed.
    pub(in crate::cuda) is_broken: bool,
}

/// A conditional node of a graph.
#[derive(Clone)]
pub(in crate::cuda) struct ConditionalNode {
    pub(in crate::cuda) conditional: Conditional,
    pub(in crate::cuda) bodies: Vec<GraphHandle>,
}

/// The kernels that set a condition, one per format, once they are loaded on a device.
pub(in crate::cuda) type Setters = OnceLock<[FunctionHandle; 2]>;
