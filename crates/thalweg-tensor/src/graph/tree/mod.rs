//! Graph trees: functions that a program calls in changing order. Each call is a graph, and all graphs of a path share one pool.
//!
//! Functions are registered with a [`GraphTreeManager`]. It runs each eagerly to warm up, then *records* its call as a *node*, a
//! graph that follows the graphs replayed before it in this step, and *replays* that node whenever the program takes the same
//! path again:
//!
//! ```text
//! root ─┬─ forward(8×64) ── backward(8×64)          a node: a function, the shapes of its inputs, and the path to it
//!       ├─ forward(4×64) ── backward(4×64)
//!       └─ forward(8×64)′                           a variant: the same call, recorded with an input at another address
//! ```
//!
//! # Memory
//! The trees whose roots are calls of one function share a pool (a forest). A graph that is recorded after others may use all
//! memory of the pool that they leave free; outputs that are still held keep theirs. For this purpose each node keeps a
//! checkpoint of the pool, which is restored before a recording that follows the node, regardless of recordings on other paths
//! meanwhile.
//!
//! # Invariants of a node
//! - *Static inputs* and *managed inputs* (outputs of this step's graphs) have the addresses of the recording. All other inputs
//!   are copied to the graph's own tensors, and copied back if the graph writes them.
//! - *Liveness*: outputs of the path that were dead at the recording are dead now, since the graph may overwrite them.
//!
//! If an invariant does not hold, a variant is recorded, and the reason is counted and logged. A managed input that keeps moving is
//! copied from then on. A function whose invariants fail too often runs eagerly from then on.
//!
//! # Steps
//! A step is a path from a root (PyTorch: a generation). It ends at [`GraphTreeManager::begin_step`], or when none of its outputs
//! is held any more. With [`Steps::Automatic`] it also ends when only the inputs of a call hold outputs, and a root can run that
//! call and copies them, so that a loop that feeds its output back does not grow the tree. When a call would overwrite an output
//! that is held beyond its step, the call is refused or the output is moved ([`LiveOutputs`]).
//!
//! # Limits
//! Functions run under `no_grad`: a backward pass is a separate function that takes the results of the forward pass, and what its
//! nodes saved ([`record_forward`]). A function must not keep tensors that it makes, and its host code runs at
//! warm-ups and recordings only. A manager belongs to one thread at a time (`&mut`) and one device; managers of several threads
//! run concurrently, and a call during another thread's capture runs eagerly.

mod counters;
mod forest;
mod function;
mod gradients;
mod node;
mod record;

use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_runtime::{CaptureMode, Device, Error, Label, Result, Stream, invalid, options, refuse};

pub use counters::{Decision, DecisionKind, GraphTreeCounters};
pub use function::{CaptureSizes, FunctionId, FunctionOptions, Padding, PaddingFunction};
pub use gradients::{Differentiable, ForwardPass, RunBackward, attach, check_kept, holders, record_forward};

use super::LiveOutputs;
use crate::autograd::no_grad;
use crate::caller::label_at;
use crate::storage::Storage;
use crate::tensor::Tensor;
use counters::DecisionLog;
use forest::{Forest, Lookup};
use function::{CallInputs, CallKey, Function};
use node::{Mismatch, NodeId};

/// The rule for the end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steps {
    /// The step ends at [`GraphTreeManager::begin_step`] or when none of its outputs is held, and also when only the inputs of a
    /// call hold outputs and a root can run the call.
    #[default]
    Automatic,
    /// The step ends at [`GraphTreeManager::begin_step`], or when none of its outputs is held.
    Explicit,
}

options! {
    /// The options of a [`GraphTreeManager`].
    #[derive(Clone, Debug)]
    pub struct GraphTreeOptions {
        /// The number of eager runs of a function with some shapes before it is recorded.
        pub warm_up: usize = 1,
        /// The policy for outputs that are held beyond their step when a call would overwrite them.
        pub live_outputs: LiveOutputs = LiveOutputs::default(),
        /// The rule for the end of a step.
        pub steps: Steps = Steps::default(),
        /// The number of times that the invariants of a function's graphs may fail (apart from those of static inputs) before it
        /// always runs eagerly.
        pub rerecord_limit: usize = 128,
        /// The number of times that a managed input may have moved before it is always copied.
        pub managed_move_limit: usize = 5,
        /// The number of different shapes that a function is captured for. Calls with others run eagerly.
        pub shape_limit: usize = 64,
        /// The number of variants of a node. A new one replaces the least recently used one.
        pub variant_limit: usize = 16,
        /// The number of graphs per step. Further calls run eagerly.
        pub depth_limit: usize = 64,
        /// The number of bytes that all pools together may take from the driver. The least recently used pool is evicted with its graphs.
        pub pool_bytes_limit: Option<u64> = None,
        /// The calls of other threads that the captures forbid.
        pub mode: CaptureMode = CaptureMode::ThreadLocal,
    }
}

/// A manager of functions whose calls are recorded and replayed as graphs (PyTorch: `CUDAGraphTreeManager`). See the
/// [module](self).
pub struct GraphTreeManager {
    device: Device,
    options: GraphTreeOptions,
    functions: Vec<Function>,
    /// The forests by the function of their roots.
    forests: FxHashMap<usize, Forest>,
    /// The function at the root of the current step.
    current: Option<usize>,
    /// The stream on which graphs are recorded.
    capture_stream: Stream,
    /// The stream of the last replay.
    last_stream: Option<Stream>,
    /// Whether the allocator caches memory, without which pools cannot be put back to the state after a node.
    has_cache: bool,
    /// The number of calls so far, which orders uses by age.
    clock: u64,
    counters: GraphTreeCounters,
    log: DecisionLog,
}

/// A call of a function: its key, stream and label.
struct CallSite {
    function: usize,
    key: CallKey,
    stream: Stream,
    label: Label,
}

impl GraphTreeManager {
    /// Returns a manager without functions.
    pub fn new(device: &Device, options: GraphTreeOptions) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            options,
            functions: Vec::new(),
            forests: FxHashMap::default(),
            current: None,
            capture_stream: Stream::new(device)?,
            last_stream: None,
            has_cache: device.allocator().settings().is_cached_here(),
            clock: 0,
            counters: GraphTreeCounters::default(),
            log: DecisionLog::default(),
        })
    }

    /// Registers a function. It must do the same work at each call with the same shapes, and may change its inputs in place.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the options contradict each other.
    pub fn register(
        &mut self,
        name: &str,
        options: FunctionOptions,
        function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Result<FunctionId> {
        self.functions.push(Function::new(name, options, Arc::new(function))?);
        Ok(FunctionId(self.functions.len() - 1))
    }

    /// Drops the graphs of a function, and the function, which is not called any more. Outputs that are held stay valid.
    pub fn unregister(&mut self, function: FunctionId) {
        let FunctionId(index) = function;
        if self.forests.contains_key(&index) {
            self.evict(index, "the function was dropped".to_owned());
        }
        if let Some(function) = self.functions.get_mut(index) {
            let gone = |_: &[Tensor]| Err(invalid!("the function was dropped"));
            let name = function.name.clone();
            *function = Function::new(&name, FunctionOptions::default(), Arc::new(gone))
                .expect("functions without sizes are accepted");
        }
    }

    /// Calls a function, as a graph where that is possible. Asynchronous on the current stream, like any operator; a call that
    /// records waits for the device.
    ///
    /// The call takes its inputs by value, so that outputs of earlier calls among them count as dropped: clone the tensors that
    /// must be kept. Drop or copy outputs before their step is repeated; see [`LiveOutputs`].
    ///
    /// # Errors
    /// Those of the function; [`Error::is_invalid_argument`] if an input is on another device, or outputs of an earlier step are
    /// still held under [`LiveOutputs::Refuse`]. The manager remains usable afterwards.
    #[track_caller]
    pub fn call(&mut self, function: FunctionId, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let label = label_at("graph_tree_call", Location::caller());
        let FunctionId(index) = function;
        if index >= self.functions.len() {
            let count = self.functions.len();
            refuse!("{function:?} is of another manager: this one has {count} functions");
        }
        self.counters.calls += 1;
        self.clock += 1;
        let called = no_grad(|| self.dispatch(index, inputs, label));
        called.map_err(|error| error.context(self.functions[index].name.clone()))
    }

    /// Ends the step: the next call begins at a root.
    pub fn begin_step(&mut self) {
        if let Some(current) = self.current.take() {
            let functions = &self.functions;
            let forest = self.forests.get_mut(&current).expect("the current forest exists");
            forest.end_path(|key| functions[key.function].name.clone());
            self.counters.steps += 1;
        }
    }

    /// Drops all graphs, and all that is known about the functions. Outputs that are held stay valid.
    pub fn reset(&mut self) {
        self.begin_step();
        self.forests.clear();
        for function in &mut self.functions {
            let (name, options, body) = (&function.name, function.options.clone(), function.body.clone());
            *function = Function::new(name, options, body).expect("the options were accepted before");
        }
    }

    /// Returns the stream on which graphs are recorded.
    pub fn capture_stream(&self) -> &Stream {
        &self.capture_stream
    }

    /// Returns counters of calls, recordings, replays and the reasons for them.
    pub fn counters(&self) -> GraphTreeCounters {
        self.counters
    }

    /// Returns the last 256 decisions, oldest first, each with its reason.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.log.iter()
    }

    /// Returns the reason why a function always runs eagerly, if it does.
    pub fn eager_reason(&self, function: FunctionId) -> Option<&str> {
        self.functions.get(function.0)?.eager.as_deref()
    }

    /// Returns the number of recorded graphs.
    pub fn graphs(&self) -> usize {
        self.forests.values().map(Forest::graphs).sum()
    }

    /// Returns the number of bytes that the pools have taken from the driver.
    pub fn pool_bytes(&self) -> u64 {
        self.forests.values().map(|forest| forest.pool.reserved_bytes()).sum()
    }

    fn dispatch(&mut self, index: usize, inputs: Vec<Tensor>, label: Label) -> Result<Vec<Tensor>> {
        if let Some(input) = inputs.iter().find(|input| *input.device() != self.device) {
            refuse!("{input:?} is not on {}, the manager's device", self.device);
        }
        let stream = self.device.current_stream();
        let function = &self.functions[index];
        if stream.is_capturing()? {
            self.counters.inlined += 1;
            return (function.body)(&inputs);
        }
        if function.eager.is_some() {
            self.counters.eager += 1;
            return (function.body)(&inputs);
        }
        let inputs = inputs.into_iter().map(|input| input.detach()).collect();
        let inputs = match function.pad_inputs(inputs)? {
            Ok(inputs) => inputs,
            Err((inputs, reason)) => return self.run_eagerly(index, &CallInputs::exact(inputs), reason),
        };
        self.counters.padded += u64::from(inputs.unpadded_size.is_some());
        let key = CallKey::new(index, &inputs.tensors);
        if let Some(reason) = self.reason_against(index, &key, &inputs) {
            return self.run_eagerly(index, &inputs, reason);
        }
        let runs = self.functions[index].warm.entry(key.clone()).or_insert(0);
        if *runs < self.options.warm_up {
            *runs += 1;
            self.counters.warm_ups += 1;
            return self.functions[index].run_eagerly(&inputs);
        }
        self.serve(CallSite { function: index, key, stream, label }, inputs)
    }

    /// Returns the reason why a call must run eagerly this time, if it must.
    fn reason_against(&self, index: usize, key: &CallKey, inputs: &CallInputs) -> Option<String> {
        if !self.has_cache {
            return Some("the allocator's settings leave caching to the driver, or turn it off".to_owned());
        }
        let function = &self.functions[index];
        let limit = self.options.shape_limit;
        if !function.warm.contains_key(key) && function.warm.len() >= limit {
            return Some(format!("its inputs have had {limit} different shapes, the limit"));
        }
        function.reason_against_aliases(&inputs.tensors)
    }

    fn run_eagerly(&mut self, index: usize, inputs: &CallInputs, reason: String) -> Result<Vec<Tensor>> {
        self.counters.eager += 1;
        self.log.push(&self.functions[index].name, DecisionKind::Eager, reason);
        self.functions[index].run_eagerly(inputs)
    }

    /// Runs a call as a graph: one whose invariants hold, or a new one.
    fn serve(&mut self, site: CallSite, inputs: CallInputs) -> Result<Vec<Tensor>> {
        if self.current.is_some_and(|current| self.forests[&current].live_outputs().next().is_none()) {
            self.begin_step();
        }
        let mut mismatch = None;
        if let Some(current) = self.current {
            match self.forests[&current].find(&site.key, &inputs.tensors) {
                Lookup::Node(node) => return self.replay(current, node, &site, inputs),
                Lookup::Nothing if self.is_fed_back(current, &site, &inputs) => self.begin_step(),
                Lookup::Nothing => {}
                Lookup::Mismatch(found) => mismatch = Some(found),
            }
        }
        if self.current.is_none()
            && let Some(forest) = self.forests.get(&site.function)
        {
            match forest.find(&site.key, &inputs.tensors) {
                Lookup::Node(node) => return self.replay(site.function, node, &site, inputs),
                Lookup::Nothing => {}
                Lookup::Mismatch(found) => mismatch = Some(found),
            }
        }
        if let Some(mismatch) = mismatch {
            self.note_failed_invariant(site.function, mismatch);
        }
        if self.functions[site.function].eager.is_some() {
            self.counters.eager += 1;
            return self.functions[site.function].run_eagerly(&inputs);
        }
        self.record(site, inputs, mismatch)
    }

    /// Returns whether only a call's inputs hold outputs of the step, and a root can run the call.
    fn is_fed_back(&self, current: usize, site: &CallSite, inputs: &CallInputs) -> bool {
        if self.options.steps == Steps::Explicit {
            return false;
        }
        let given: Vec<&Tensor> = inputs.given().collect();
        let is_held_by_inputs = |handle: &thalweg_runtime::OutputHandle| {
            let own: Vec<&&Tensor> =
                given.iter().filter(|input| handle.is_of(&input.storage().buffer())).collect();
            own.first().is_some_and(|first| Storage::holders(first.storage()) == own.len())
        };
        let current = &self.forests[&current];
        current.live_outputs().all(is_held_by_inputs)
            && self.forests.get(&site.function).is_some_and(|forest| {
                forest.has_root(&site.key, &inputs.tensors, |input| current.is_managed(given[input]))
            })
    }

    /// Counts a failed invariant of a function's graphs, and demotes the input or stops graphing the function at the limits.
    fn note_failed_invariant(&mut self, index: usize, mismatch: Mismatch) {
        let function = &mut self.functions[index];
        match mismatch {
            Mismatch::StaticInput(_) | Mismatch::DeadInput => {
                self.counters.static_inputs_moved += 1;
                return;
            }
            Mismatch::LiveOutput { .. } => self.counters.outputs_alive += 1,
            Mismatch::ManagedInput(input) => {
                self.counters.managed_inputs_moved += 1;
                let moves = function.moves.entry(input).or_insert(0);
                *moves += 1;
                if *moves > self.options.managed_move_limit && function.demoted.insert(input) {
                    self.counters.demotions += 1;
                    let reason = format!("input {input}, which lies in the pool, has moved {moves} times");
                    self.log.push(&function.name, DecisionKind::Demote, reason);
                }
            }
        }
        function.failed_invariants += 1;
        if function.failed_invariants > self.options.rerecord_limit {
            let limit = self.options.rerecord_limit;
            let reason =
                format!("invariants of its graphs failed more than {limit} times; the last time: {mismatch}");
            self.log.push(&function.name, DecisionKind::Eager, reason.clone());
            function.eager = Some(reason);
        }
    }

    /// Orders a stream after the last replay: all replays of a pool share memory.
    fn follow(&mut self, stream: &Stream) -> Result<()> {
        match self.last_stream.replace(stream.clone()) {
            Some(last) if last != *stream => stream.wait_stream(&last),
            _ => Ok(()),
        }
    }

    /// Replays a node at the end of the current path of the forest of `root`, which becomes the current one.
    fn replay(
        &mut self,
        root: usize,
        node: NodeId,
        site: &CallSite,
        mut inputs: CallInputs,
    ) -> Result<Vec<Tensor>> {
        self.follow(&site.stream)?;
        let forest = self.forests.get_mut(&root).expect("the node was found in it");
        forest.node(node).read(&mut inputs, &site.stream, &mut self.counters)?;
        self.counters.moved_outputs += forest.clear(self.options.live_outputs, &site.stream)?;
        let (outputs, handles) =
            forest.node(node).replay(&forest.pool, &inputs, &site.stream, site.label, &mut self.counters)?;
        forest.advance(node, handles, self.clock);
        self.current = Some(root);
        self.functions[site.function].narrow_outputs(outputs, inputs.unpadded_size)
    }
}

impl std::fmt::Debug for GraphTreeManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphTreeManager")
            .field("device", &self.device)
            .field("functions", &self.functions.len())
            .field("graphs", &self.graphs())
            .field("counters", &self.counters)
            .finish()
    }
}
