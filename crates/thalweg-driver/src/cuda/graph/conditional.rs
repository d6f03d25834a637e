//! Conditions and conditional nodes.
//!
//! A condition is set by a kernel that calls the device's part of the CUDA runtime. That function is built into the driver's
//! linker, so a few lines of PTX that declare it are all that is needed; they are loaded on a device when it first sets one.
//!
//! The driver owns the bodies of a conditional node. Their handles, like those of the conditions, end with the *root*: the
//! graph that a capture begins, which contains them at some depth. The driver cannot list a node's bodies, so each graph
//! remembers the conditional nodes that were added to it.
//!
//! A body is used under the lock of the captures, and only while its family is listed. The family of a capture that fails
//! is removed from the list under that lock, because the driver frees its graphs then. The list is locked only briefly, and
//! no other lock is taken meanwhile.

use thalweg_lock::Mutex;

use super::handle_of;
use crate::command::{Label, Launch, LaunchMode};
use crate::cuda::objects::{Condition, ConditionalNode, Family, Graph};
use crate::cuda::state::CudaDriver;
use crate::cuda::sys::{self, ConditionalNodeParameters, RawGraph, RawGraphNode};
use crate::graph::{CaptureMode, CaptureStatus, DependencyUpdate};
use crate::module::Image;
use crate::properties::{ConditionalSupport, Version};
use crate::{
    Access, Code, ConditionFormat, ConditionHandle, Conditional, DevicePointer, Error, FunctionHandle,
    GraphHandle, GraphNodeHandle, Result, StreamHandle,
};

/// A kernel that passes the value at an address to a condition.
macro_rules! setter {
    ($name:literal, $load:literal) => {
        concat!(
            ".visible .entry ",
            $name,
            "(\n    .param .u64 condition,\n    .param .u64 source\n)\n{\n",
            "    .reg .b32 %r0;\n    .reg .b64 %d<2>;\n",
            "    ld.param.u64 %d0, [condition];\n",
            "    ld.param.u64 %d1, [source];\n",
            "    cvta.to.global.u64 %d1, %d1;\n",
            "    ",
            $load,
            " %r0, [%d1];\n",
            "    {\n",
            "    .param .b64 first;\n    st.param.b64 [first], %d0;\n",
            "    .param .b32 second;\n    st.param.b32 [second], %r0;\n",
            "    call.uni cudaGraphSetConditional, (first, second);\n",
            "    }\n    ret;\n}\n\n",
        )
    };
}

/// The names of the kernels, and the formats that they read.
const SETTERS: [(&str, ConditionFormat); 2] =
    [("thalweg_condition_u8", ConditionFormat::U8), ("thalweg_condition_u32", ConditionFormat::U32)];

const PTX: &str = concat!(
    ".version 7.0\n.target sm_52\n.address_size 64\n\n",
    ".extern .func cudaGraphSetConditional(.param .b64 condition, .param .b32 value);\n\n",
    setter!("thalweg_condition_u8", "ld.global.u8"),
    setter!("thalweg_condition_u32", "ld.global.u32"),
);

/// Returns the conditional nodes that a driver of this version supports.
pub(in crate::cuda) fn support(version: Version) -> ConditionalSupport {
    ConditionalSupport {
        if_and_while: version >= Version { major: 12, minor: 4 },
        else_and_switch: version >= Version { major: 12, minor: 8 },
    }
}

impl CudaDriver {
    fn check_support(&self, conditional: Option<Conditional>, call: &'static str) -> Result<()> {
        let has = support(self.cuda.version);
        let (is_there, needed) = match conditional {
            None | Some(Conditional::If | Conditional::While) => (has.if_and_while, "12.4"),
            Some(Conditional::IfElse | Conditional::Switch { .. }) => (has.else_and_switch, "12.8"),
        };
        if is_there {
            return Ok(());
        }
        let what = conditional.map_or("conditions".to_owned(), |conditional| conditional.to_string());
        let detail = format!(
            "{what} in graphs: the installed driver, for CUDA {}, has none; it needs one for CUDA {needed} or later",
            self.cuda.version
        );
        Err(Error::new(Code::NotSupported, call, detail))
    }

    /// Returns the graph that the stream captures into, its root, the stream's device, and the dependencies of its next
    /// command.
    fn captured_graph(&self, stream: StreamHandle, call: &'static str) -> Result<Captured> {
        let info = self.stream_capture_info(stream)?;
        let graph = match (info.status, info.graph) {
            (CaptureStatus::Active, Some(graph)) => graph,
            (CaptureStatus::Invalidated, _) => {
                let detail = "the capture was broken by an error";
                return Err(Error::new(Code::StreamCaptureInvalidated, call, detail));
            }
            _ => {
                let detail =
                    "the stream does not capture: conditions and conditional nodes are parts of a graph";
                return Err(Error::new(Code::IllegalState, call, detail));
            }
        };
        let root = self.graphs.get(graph.raw(), call)?.root.unwrap_or(graph);
        let device = self.streams.get(stream.raw(), call)?.device;
        Ok(Captured { graph, root, device, dependencies: info.dependencies })
    }

    pub(in crate::cuda) fn condition_create(
        &self,
        stream: StreamHandle,
        initial: u32,
    ) -> Result<ConditionHandle> {
        let call = "cuGraphConditionalHandleCreate";
        self.check_support(None, call)?;
        let Captured { graph, root, device, .. } = self.captured_graph(stream, call)?;
        let entered = self.enter(device)?;
        let context = entered.context(&self.cuda)?.raw;
        let entry = self.graphs.get(graph.raw(), call)?;
        let captures = self.check_alive(&entry, call)?;
        let (raw_graph, mut raw) = (entry.raw.lock(), 0);
        // SAFETY: the graph is looked up, locked and under construction by a capture that cannot end meanwhile; the context is
        // retained until the process ends; writes one number.
        let outcome = unsafe {
            self.cuda.table.condition_create(
                &raw mut raw,
                *raw_graph,
                context,
                initial,
                sys::CONDITION_ASSIGN_DEFAULT,
            )
        };
        self.cuda.check(outcome, || format!("a condition of device {device}, {initial} at first"))?;
        let condition = Condition { raw, root, device, is_used: Mutex::new(false) };
        let handle = ConditionHandle::from_raw(self.conditions.insert(condition));
        let builder = self.builder(&entry, call)?;
        let new = || Family { builder, conditions: Vec::new(), bodies: Vec::new(), is_broken: false };
        self.families.lock().entry(root).or_insert_with(new).conditions.push(handle);
        drop(captures);
        Ok(handle)
    }

    /// Refuses a condition of another graph.
    fn check_condition(condition: &Condition, captured: &Captured, call: &'static str) -> Result<()> {
        if condition.root == captured.root && condition.device == captured.device {
            return Ok(());
        }
        let detail =
            "the condition belongs to another graph, or another device, than the stream captures for";
        Err(Error::new(Code::InvalidValue, call, detail))
    }

    pub(in crate::cuda) fn condition_set_async(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        source: DevicePointer,
        format: ConditionFormat,
        label: Label,
    ) -> Result<()> {
        let call = "cudaGraphSetConditional";
        self.check_support(None, call)?;
        let condition = self.conditions.get(condition.raw(), call)?;
        let captured = self.captured_graph(stream, call)?;
        Self::check_condition(&condition, &captured, call)?;
        if !source.address().is_multiple_of(format.bytes()) {
            let detail = format!(
                "{source:?} is not aligned to the {} bytes of the value, for {label}",
                format.bytes()
            );
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let mut arguments = [0; 16];
        arguments[..8].copy_from_slice(&condition.raw.to_le_bytes());
        arguments[8..].copy_from_slice(&source.address().to_le_bytes());
        let launch = Launch {
            function: self.setter(captured.device, format)?,
            grid: [1; 3],
            block: [1; 3],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &arguments,
            accesses: &[Access::read(source, format.bytes())],
            label,
        };
        self.launch(stream, &launch)
    }

    /// Returns the kernel that sets a condition of the device.
    fn setter(&self, device: u32, format: ConditionFormat) -> Result<FunctionHandle> {
        let setters = &self.device(device)?.setters;
        let functions = match setters.get() {
            Some(functions) => *functions,
            None => {
                let module = self.module_load(device, Image::Ptx(PTX))?;
                let mut functions = [FunctionHandle::from_raw(0); 2];
                for (function, (name, _)) in functions.iter_mut().zip(SETTERS) {
                    *function = self.function_get(module, name)?;
                }
                // If two threads load it at once, one of the loads is wasted.
                *setters.get_or_init(|| functions)
            }
        };
        let position = SETTERS.iter().position(|(_, known)| *known == format);
        Ok(functions[position.expect("each format has its kernel")])
    }

    pub(in crate::cuda) fn conditional_node_add(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        conditional: Conditional,
        label: Label,
    ) -> Result<Vec<GraphHandle>> {
        let call = "cuGraphAddNode";
        self.check_support(Some(conditional), call)?;
        conditional.check().map_err(|why| {
            Error::new(Code::InvalidValue, call, format!("{conditional} for {label}: {why}"))
        })?;
        let condition = self.conditions.get(condition.raw(), call)?;
        let captured = self.captured_graph(stream, call)?;
        Self::check_condition(&condition, &captured, call)?;
        let mut is_used = condition.is_used.lock();
        if *is_used {
            let detail = format!("{conditional} for {label}: another node reads this condition");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let (node, bodies) = self.add_raw_node(&captured, condition.raw, conditional, label)?;
        *is_used = true;
        // A failure below leaves the node in the graph, which knows its bodies already.
        self.stream_update_capture_dependencies(stream, &[node], DependencyUpdate::Set)?;
        Ok(bodies)
    }

    /// Adds the node to the graph under construction.
    fn add_raw_node(
        &self,
        captured: &Captured,
        condition: u64,
        conditional: Conditional,
        label: Label,
    ) -> Result<(GraphNodeHandle, Vec<GraphHandle>)> {
        let call = "cuGraphAddNode";
        let &Captured { graph, root, device, ref dependencies } = captured;
        let context = self.enter(device)?.context(&self.cuda)?.raw;
        let entry = self.graphs.get(graph.raw(), call)?;
        let captures = self.check_alive(&entry, call)?;
        let raw_graph = entry.raw.lock();
        let kind = match conditional {
            Conditional::If | Conditional::IfElse => sys::CONDITIONAL_IF,
            Conditional::While => sys::CONDITIONAL_WHILE,
            Conditional::Switch { .. } => sys::CONDITIONAL_SWITCH,
        };
        let mut parameters = ConditionalNodeParameters::new(condition, kind, conditional.bodies(), context);
        let before: Vec<RawGraphNode> =
            dependencies.iter().map(|node| RawGraphNode(node.raw() as usize)).collect();
        let mut node = RawGraphNode::default();
        // SAFETY: the graph is looked up, locked and under construction by a capture that cannot end meanwhile. The
        // dependencies are its own, because the driver has just returned them for its capture and nodes are never removed;
        // no edge data means plain edges. The struct is as long as the driver's.
        let outcome = unsafe {
            self.cuda.table.graph_add_node(
                &raw mut node,
                *raw_graph,
                before.as_ptr(),
                std::ptr::null(),
                before.len(),
                &raw mut parameters,
            )
        };
        self.cuda.check(outcome, || format!("{conditional} for {label}"))?;
        let count = conditional.bodies() as usize;
        let raw_bodies = parameters.bodies;
        if raw_bodies.is_null() {
            return Err(Error::new(
                Code::Unknown,
                call,
                format!("{conditional} for {label}: the node has no bodies"),
            ));
        }
        // SAFETY: the driver has stored `count` graphs there, which live as long as the node; they are copied now.
        let raw_bodies: Vec<RawGraph> = unsafe { std::slice::from_raw_parts(raw_bodies, count) }.to_vec();
        let bodies: Vec<GraphHandle> = raw_bodies
            .into_iter()
            .map(|raw| GraphHandle::from_raw(self.graphs.insert(Graph::body(raw, device, root))))
            .collect();
        entry.conditionals.lock().insert(node, ConditionalNode { conditional, bodies: bodies.clone() });
        if let Some(family) = self.families.lock().get_mut(&root) {
            family.bodies.extend(&bodies);
        }
        drop(captures);
        Ok((handle_of(node), bodies))
    }

    pub(in crate::cuda) fn stream_begin_capture_to_graph(
        &self,
        handle: StreamHandle,
        body: GraphHandle,
        mode: CaptureMode,
    ) -> Result<()> {
        let call = "cuStreamBeginCaptureToGraph";
        let stream = self.streams.get(handle.raw(), call)?;
        let graph = self.graphs.get(body.raw(), call)?;
        self.submit_on(&stream)?;
        let refuse = |detail: &str| Err(Error::new(Code::InvalidValue, call, detail));
        if graph.root.is_none() {
            return refuse("the graph is not a body of a conditional node: only those are captured into");
        }
        if graph.device != stream.device {
            return refuse("the body is of another device than the stream");
        }
        if self.builder(&graph, call)?.is_some_and(|(_, stream)| stream == handle) {
            return Err(Error::new(Code::IllegalState, call, "the stream captures already"));
        }
        if let Some(root) = graph.root {
            self.check_intact(root, call)?;
        }
        let mut captures = self.check_alive(&graph, call)?;
        let raw = graph.raw.lock();
        if graph.is_under_construction() || !self.raw_nodes(*raw)?.is_empty() {
            return refuse("the body has been captured already, or is just now");
        }
        // SAFETY: both are looked up, the graph is locked; it has no nodes that the first could depend on.
        let outcome = unsafe {
            self.cuda.table.begin_capture_to_graph(
                stream.raw,
                *raw,
                std::ptr::null(),
                std::ptr::null(),
                0,
                crate::cuda::graph::mode_number(mode),
            )
        };
        self.cuda.check(outcome, || format!("a {mode:?} capture of a body on device {}", stream.device))?;
        self.capturing.lock().insert(handle.raw());
        drop(raw);
        self.body_is_captured(&stream, handle, body, &graph, &mut captures)
    }

    /// Returns the capture that builds a root with bodies, if one still does.
    pub(in crate::cuda) fn builder_of_root(
        &self,
        root: GraphHandle,
        call: &'static str,
    ) -> Result<Option<(u64, StreamHandle)>> {
        self.families
            .lock()
            .get(&root)
            .map(|family| family.builder)
            .ok_or_else(|| Error::new(Code::InvalidHandle, call, "the graph that the body was in is gone"))
    }

    /// Records that the capture that built a graph has ended, well or not. Returns the family of a graph that failed.
    pub(in crate::cuda) fn family_is_built(&self, graph: GraphHandle, succeeded: bool) -> Option<Family> {
        let mut families = self.families.lock();
        if !succeeded {
            return families.remove(&graph);
        }
        if let Some(family) = families.get_mut(&graph) {
            family.builder = None;
        }
        None
    }

    /// Drops the bodies and conditions of a root that is being destroyed.
    pub(in crate::cuda) fn drop_family(&self, root: GraphHandle, call: &'static str) {
        let family = self.families.lock().remove(&root);
        self.end_family(family, call);
    }

    /// Ends the handles of a family. Waits for the calls that use them.
    pub(in crate::cuda) fn end_family(&self, family: Option<Family>, call: &'static str) {
        let Some(Family { conditions, bodies, .. }) = family else { return };
        // Only this function removes them, so they exist.
        for condition in conditions {
            let _ = self.conditions.remove(condition.raw(), call, |_| Ok(()));
        }
        for body in bodies {
            let _ = self.graphs.remove(body.raw(), call, |_| Ok(()));
        }
    }

    /// Records that the capture of a body of the root failed.
    pub(in crate::cuda) fn body_failed(&self, root: GraphHandle) {
        if let Some(family) = self.families.lock().get_mut(&root) {
            family.is_broken = true;
        }
    }

    /// Refuses a root with a body whose capture failed. The driver has freed that body, and the root still points to it:
    /// destroying or instantiating the root crashes (seen with driver 580.159).
    pub(in crate::cuda) fn check_intact(&self, root: GraphHandle, call: &'static str) -> Result<()> {
        if !self.families.lock().get(&root).is_some_and(|family| family.is_broken) {
            return Ok(());
        }
        let detail = "the capture of a body of the graph failed: the graph can only be destroyed";
        Err(Error::new(Code::IllegalState, call, detail))
    }

    /// Returns whether a body of the root is being captured.
    pub(in crate::cuda) fn is_family_under_construction(
        &self,
        root: GraphHandle,
        call: &'static str,
    ) -> bool {
        let bodies = self.families.lock().get(&root).map(|family| family.bodies.clone()).unwrap_or_default();
        bodies
            .iter()
            .any(|body| self.graphs.get(body.raw(), call).is_ok_and(|body| body.is_under_construction()))
    }
}

/// The position of a capturing stream in its graph.
struct Captured {
    graph: GraphHandle,
    root: GraphHandle,
    device: u32,
    dependencies: Vec<GraphNodeHandle>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_have_conditional_nodes_from_their_versions_on() {
        let has = |minor| {
            let ConditionalSupport { if_and_while, else_and_switch } = support(Version { major: 12, minor });
            (if_and_while, else_and_switch)
        };
        assert_eq!([3, 4, 7, 8].map(has), [(false, false), (true, false), (true, false), (true, true)]);
        assert_eq!(
            support(Version { major: 13, minor: 0 }),
            ConditionalSupport { if_and_while: true, else_and_switch: true }
        );
    }

    #[test]
    fn every_format_has_its_kernel() {
        for (name, format) in SETTERS {
            assert!(PTX.contains(&format!(".entry {name}(")), "{name}");
            assert!(PTX.contains(&format!("ld.global.u{} ", 8 * format.bytes())), "{format:?}");
        }
    }
}
