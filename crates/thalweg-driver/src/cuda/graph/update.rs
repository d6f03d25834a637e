//! Updates of executable graphs: of the entire graph, or of one kernel.
//!
//! The driver names a node of an executable by the node of the graph that it was instantiated from. That graph is looked up
//! at each update, so a node is passed to the driver only while the graph exists and contains it.

use std::ffi::c_uint;

use super::handle_of;
use crate::command::Launch;
use crate::cuda::module::{Passed, describe};
use crate::cuda::state::CudaDriver;
use crate::cuda::sys::{self, KernelNodeParameters, RawContext, RawGraphNode, RawKernel, UpdateResult};
use crate::graph::{GraphExecUpdate, UpdateReason, UpdateRefusal};
use crate::{Code, Error, GraphExecHandle, GraphHandle, GraphNodeHandle, Result};

/// Translates a `CUgraphExecUpdateResult`.
const fn reason(number: c_uint) -> UpdateReason {
    match number {
        sys::UPDATE_TOPOLOGY_CHANGED => UpdateReason::TopologyChanged,
        sys::UPDATE_NODE_TYPE_CHANGED => UpdateReason::KindChanged,
        sys::UPDATE_FUNCTION_CHANGED | sys::UPDATE_UNSUPPORTED_FUNCTION_CHANGE => {
            UpdateReason::FunctionChanged
        }
        sys::UPDATE_PARAMETERS_CHANGED => UpdateReason::ParametersChanged,
        sys::UPDATE_NOT_SUPPORTED => UpdateReason::NotSupported,
        sys::UPDATE_ATTRIBUTES_CHANGED => UpdateReason::AttributesChanged,
        _ => UpdateReason::Other,
    }
}

impl CudaDriver {
    pub(in crate::cuda) fn graph_exec_update(
        &self,
        exec: GraphExecHandle,
        graph: GraphHandle,
    ) -> Result<GraphExecUpdate> {
        let call = "cuGraphExecUpdate";
        let exec = self.execs.get(exec.raw(), call)?;
        let graph = self.graphs.get(graph.raw(), call)?;
        self.enter(exec.device)?;
        Self::check_finished(&graph, call)?;
        // A condition's handle is a part of the work that sets it, and CUDA does not promise that an update exchanges it.
        if let Some(&node) = graph.conditionals.lock().keys().next() {
            let (reason, node) = (UpdateReason::NotSupported, Some(handle_of(node)));
            return Ok(GraphExecUpdate::Refused(UpdateRefusal { reason, node, dependency: None }));
        }
        let (target, source) = (exec.raw.lock(), graph.raw.lock());
        let mut result = UpdateResult::default();
        // SAFETY: both are looked up and locked; writes one struct.
        let outcome = unsafe { self.cuda.table.graph_exec_update(*target, *source, &raw mut result) };
        if outcome.missing.is_none() && outcome.status == Code::GraphExecUpdateFailure.number() {
            let name = |node: RawGraphNode| (node != RawGraphNode::default()).then(|| handle_of(node));
            return Ok(GraphExecUpdate::Refused(UpdateRefusal {
                reason: reason(result.result),
                node: name(result.error_node),
                dependency: name(result.error_from_node),
            }));
        }
        self.cuda.check(outcome, || {
            format!(
                "an executable of device {} from a graph of device {} ({:?})",
                exec.device,
                graph.device,
                reason(result.result)
            )
        })?;
        Ok(GraphExecUpdate::Updated)
    }

    pub(in crate::cuda) fn graph_exec_kernel_node_set_params(
        &self,
        exec: GraphExecHandle,
        node: GraphNodeHandle,
        launch: &Launch<'_>,
    ) -> Result<()> {
        let call = "cuGraphExecKernelNodeSetParams";
        let exec = self.execs.get(exec.raw(), call)?;
        let function = self.functions.get(launch.function.raw(), call)?;
        let device = self.enter(exec.device)?;
        let template = self.graphs.get(exec.template.raw(), call).map_err(|_| {
            let detail = "the graph that the executable was instantiated from has been destroyed: keep it, since its \
                          nodes name the executable's";
            Error::new(Code::InvalidValue, call, detail)
        })?;
        let raw_node = RawGraphNode(node.raw() as usize);
        if !self.has_node(&template, raw_node)? {
            let detail =
                format!("{node:?} is not a node of the graph that the executable was instantiated from");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        self.prepare(launch, &function, device, call)?;
        let mut bytes = launch.arguments.len();
        let mut passed = Passed::new(launch.arguments, &mut bytes);
        let (arguments, extra) = passed.pointers(&function);
        let parameters = KernelNodeParameters {
            function: function.raw,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_memory_bytes,
            parameters: arguments,
            extra,
            kernel: RawKernel::default(),
            context: RawContext::default(),
        };
        let raw = exec.raw.lock();
        // SAFETY: the executable is looked up and locked, the node belongs to the graph that it was instantiated from,
        // which is held by its entry. The driver copies the arguments before it returns.
        let outcome =
            unsafe { self.cuda.table.graph_exec_kernel_node_set(*raw, raw_node, &raw const parameters) };
        self.cuda.check(outcome, || describe(launch, &function))
    }
}
