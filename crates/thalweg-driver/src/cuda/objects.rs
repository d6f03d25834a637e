//! The objects that handles name. The modules of their groups contain the calls on them.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet};

use super::handles::lock;
use super::sys::{
    RawContext, RawEvent, RawFunction, RawGraph, RawGraphExec, RawGraphNode, RawModule, RawPhysical, RawPool,
    RawStream,
};
use crate::{ConditionHandle, Conditional, FunctionHandle, GraphHandle, HandleType, StreamHandle};

/// The owner of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamOwner {
    /// The device, for the legacy default stream.
    Device,
    /// This driver.
    Driver,
    /// Another library.
    External,
}

/// A stream.
pub(super) struct Stream {
    pub(super) raw: RawStream,
    pub(super) device: u32,
    /// The stream's context, if that is not the device's primary one. The stream is then its legacy default stream, whose
    /// number is meaningless without it.
    pub(super) context: Option<RawContext>,
    pub(super) owner: StreamOwner,
}

impl Stream {
    pub(super) fn new(raw: RawStream, device: u32, owner: StreamOwner) -> Self {
        Self { raw, device, context: None, owner }
    }
}

/// An event.
pub(super) struct Event {
    pub(super) raw: RawEvent,
    pub(super) device: u32,
    /// Whether nodes of a graph name it: CUDA wants it to be there at each launch, and a launch without it never ends.
    pub(super) is_in_graph: AtomicBool,
}

/// A loaded module.
pub(super) struct Module {
    pub(super) raw: RawModule,
    pub(super) device: u32,
    pub(super) functions: Mutex<FxHashMap<String, FunctionHandle>>,
}

/// A kernel.
pub(super) struct Function {
    pub(super) raw: RawFunction,
    pub(super) device: u32,
    pub(super) name: String,
    /// The size of its arguments in bytes, if the driver can report it.
    pub(super) argument_bytes: Option<usize>,
    /// Whether it is known to have one argument.
    pub(super) has_one_argument: bool,
    /// The dynamic shared memory that was requested so far.
    pub(super) shared_memory_bytes: AtomicU32,
}

/// Physical memory.
pub(super) struct Physical {
    pub(super) raw: RawPhysical,
    pub(super) bytes: u64,
    pub(super) device: u32,
    pub(super) share_as: Option<HandleType>,
}

/// A pool of the stream-ordered allocator.
pub(super) struct Pool {
    pub(super) raw: RawPool,
    pub(super) device: u32,
}

/// A graph.
pub(super) struct Graph {
    pub(super) raw: Mutex<RawGraph>,
    pub(super) device: u32,
    /// The number of the capture that builds it, if one does, and the stream through which that is known.
    pub(super) capture: Mutex<Option<(u64, StreamHandle)>>,
    /// Its nodes, once a node of the finished graph has been requested. The graph gets no further nodes.
    pub(super) nodes: OnceLock<FxHashSet<RawGraphNode>>,
    /// For a body: the graph that contains it, at some depth.
    pub(super) root: Option<GraphHandle>,
    /// The conditional nodes that were added to it.
    pub(super) conditionals: Mutex<FxHashMap<RawGraphNode, ConditionalNode>>,
}

impl Graph {
    pub(super) fn new(raw: RawGraph, device: u32, capture: Option<(u64, StreamHandle)>) -> Self {
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
    pub(super) fn body(raw: RawGraph, device: u32, root: GraphHandle) -> Self {
        Self { root: Some(root), ..Self::new(raw, device, None) }
    }

    pub(super) fn is_under_construction(&self) -> bool {
        lock(&self.capture).is_some()
    }
}

/// An executable graph.
pub(super) struct GraphExec {
    pub(super) raw: Mutex<RawGraphExec>,
    pub(super) device: u32,
    /// The graph that it was instantiated from, whose nodes name the executable's.
    pub(super) template: GraphHandle,
}

/// The graphs under construction, by the number of their capture.
pub(super) type Captures = Mutex<FxHashMap<u64, UnderConstruction>>;

/// A graph under construction.
pub(super) struct UnderConstruction {
    pub(super) handle: GraphHandle,
    /// The nodes of the graph that callers know. A capture only adds nodes, so they remain valid.
    pub(super) known: FxHashSet<RawGraphNode>,
}

/// A condition.
pub(super) struct Condition {
    pub(super) raw: u64,
    pub(super) root: GraphHandle,
    pub(super) device: u32,
    /// Whether a node reads it.
    pub(super) is_used: Mutex<bool>,
}

/// The families by root.
pub(super) type Families = Mutex<FxHashMap<GraphHandle, Family>>;

/// The bodies and conditions that belong to a root.
pub(super) struct Family {
    /// The number of the capture that builds the root, if one does, and the stream through which that is known.
    pub(super) builder: Option<(u64, StreamHandle)>,
    pub(super) conditions: Vec<ConditionHandle>,
    pub(super) bodies: Vec<GraphHandle>,
    /// Whether the capture of a body failed.
    pub(super) is_broken: bool,
}

/// A conditional node of a graph.
#[derive(Clone)]
pub(super) struct ConditionalNode {
    pub(super) conditional: Conditional,
    pub(super) bodies: Vec<GraphHandle>,
}

/// The kernels that set a condition, one per format, once they are loaded on a device.
pub(super) type Setters = OnceLock<[FunctionHandle; 2]>;
