//! The description of a captured graph, from the driver's queries.
//!
//! Sizes and names are queried node by node. If an older driver cannot report one, it is left out: a description never
//! fails because of a missing detail.

use std::ffi::{CString, c_char};
use std::path::Path;

use rustc_hash::FxHashMap;

use super::handle_of;
use crate::cuda::objects::{ConditionalNode, Graph};
use crate::cuda::state::CudaDriver;
use crate::cuda::sys::{
    self, CopyNodeParameters, FillNodeParameters, KernelNodeParameters, RawContext, RawFunction,
    RawGraphNode, RawKernel,
};
use crate::cuda::table::text_at;
use crate::graph::description::{GraphDescription, GraphNode, GraphNodeKind, GraphNodeWork};
use crate::{Code, Error, GraphHandle, Result};

/// Translates a `CUgraphNodeType`.
const fn node_kind(number: u32) -> GraphNodeKind {
    match number {
        0 => GraphNodeKind::Kernel,
        1 => GraphNodeKind::Copy,
        2 => GraphNodeKind::Fill,
        3 => GraphNodeKind::Host,
        5 => GraphNodeKind::Empty,
        6 => GraphNodeKind::WaitEvent,
        7 => GraphNodeKind::RecordEvent,
        10 => GraphNodeKind::Allocate,
        11 => GraphNodeKind::Free,
        sys::NODE_CONDITIONAL => GraphNodeKind::Conditional,
        _ => GraphNodeKind::Other,
    }
}

impl CudaDriver {
    pub(in crate::cuda) fn graph_describe(&self, handle: GraphHandle) -> Result<GraphDescription> {
        let call = "cuGraphGetNodes";
        let graph = self.graphs.get(handle.raw(), call)?;
        self.check_intact(graph.root.unwrap_or(handle), call)?;
        let mut description = self.describe_nodes(&graph, call)?;
        let conditionals = graph.conditionals.lock().clone();
        for node in &mut description.nodes {
            let raw = RawGraphNode(node.handle.raw() as usize);
            if let Some(ConditionalNode { conditional, bodies }) = conditionals.get(&raw) {
                let bodies = bodies.iter().map(|body| self.graph_describe(*body)).collect::<Result<_>>()?;
                node.work = GraphNodeWork::Conditional { conditional: *conditional, bodies };
            }
        }
        Ok(description)
    }

    fn describe_nodes(&self, graph: &Graph, call: &'static str) -> Result<GraphDescription> {
        let _captures = self.check_alive(graph, call)?;
        let raw = graph.raw.lock();
        let nodes = self.raw_nodes(*raw)?;
        let index: FxHashMap<RawGraphNode, usize> =
            nodes.iter().enumerate().map(|(i, node)| (*node, i)).collect();
        let mut description = GraphDescription::default();
        for node in &nodes {
            let mut kind = u32::MAX;
            // SAFETY: the node was just read from a graph that is alive; writes one number.
            let outcome = unsafe { self.cuda.table.graph_node_get_type(*node, &raw mut kind) };
            self.cuda.check(outcome, || "the kind of a node".to_owned())?;
            let kind = node_kind(kind);
            let work = match kind {
                GraphNodeKind::Kernel => self.kernel_node(*node),
                GraphNodeKind::Copy => self.copy_node(*node),
                GraphNodeKind::Fill => self.fill_node(*node),
                _ => None,
            };
            let (handle, work) = (handle_of(*node), work.unwrap_or_default());
            description.nodes.push(GraphNode { handle, kind, label: None, work });
        }
        for (from, to) in self.raw_edges(*raw)? {
            if let (Some(&from), Some(&to)) = (index.get(&from), index.get(&to)) {
                description.edges.push((from, to));
            }
        }
        Ok(description)
    }

    /// Describes a kernel node of a graph that is alive.
    fn kernel_node(&self, node: RawGraphNode) -> Option<GraphNodeWork> {
        let mut found = KernelNodeParameters {
            function: RawFunction::default(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            parameters: std::ptr::null_mut(),
            extra: std::ptr::null_mut(),
            kernel: RawKernel::default(),
            context: RawContext::default(),
        };
        // SAFETY: the node is alive; writes one struct, whose pointers are not followed.
        let outcome = unsafe { self.cuda.table.graph_kernel_node_get(node, &raw mut found) };
        let mut name: *const c_char = std::ptr::null();
        outcome.is_success().then(|| {
            // SAFETY: the function or kernel belongs to a node that is alive; writes a pointer to a string of the driver.
            let named = unsafe {
                if found.function == RawFunction::default() {
                    self.cuda.table.kernel_get_name(&raw mut name, found.kernel)
                } else {
                    self.cuda.table.function_get_name(&raw mut name, found.function)
                }
            };
            GraphNodeWork::Kernel {
                // SAFETY: null, or a string of the driver that lives as long as the kernel's module.
                name: named.is_success().then(|| unsafe { text_at(name) }).filter(|name| !name.is_empty()),
                grid: found.grid,
                block: found.block,
                shared_memory_bytes: found.shared_bytes,
            }
        })
    }

    /// Describes a copy node of a graph that is alive.
    fn copy_node(&self, node: RawGraphNode) -> Option<GraphNodeWork> {
        let mut found = CopyNodeParameters::default();
        // SAFETY: the node is alive; writes one struct.
        let outcome = unsafe { self.cuda.table.graph_copy_node_get(node, &raw mut found) };
        let bytes = found.width_bytes as u64 * found.height.max(1) as u64 * found.depth.max(1) as u64;
        outcome.is_success().then_some(GraphNodeWork::Copy { bytes })
    }

    /// Describes a fill node of a graph that is alive.
    fn fill_node(&self, node: RawGraphNode) -> Option<GraphNodeWork> {
        let mut found = FillNodeParameters::default();
        // SAFETY: the node is alive; writes one struct.
        let outcome = unsafe { self.cuda.table.graph_fill_node_get(node, &raw mut found) };
        let bytes = u64::from(found.element_bytes) * found.width as u64 * found.height.max(1) as u64;
        outcome.is_success().then_some(GraphNodeWork::Fill { bytes })
    }

    pub(in crate::cuda) fn graph_debug_dot_print(
        &self,
        handle: GraphHandle,
        path: &Path,
        verbose: bool,
    ) -> Result<()> {
        let call = "cuGraphDebugDotPrint";
        let graph = self.graphs.get(handle.raw(), call)?;
        self.check_intact(graph.root.unwrap_or(handle), call)?;
        let _captures = self.check_alive(&graph, call)?;
        let text = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| {
            Error::new(Code::InvalidValue, call, format!("the path {path:?} has a 0 byte in its name"))
        })?;
        let flags = if verbose { sys::DEBUG_DOT_VERBOSE } else { 0 };
        let raw = graph.raw.lock();
        // SAFETY: the graph is looked up and locked, and the path ends with 0.
        let outcome = unsafe { self.cuda.table.graph_debug_dot_print(*raw, text.as_ptr(), flags) };
        self.cuda.check(outcome, || format!("writing {}", path.display()))
    }
}
