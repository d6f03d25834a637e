//! Graph trees: functions that a program calls in changing order, each call a graph, all graphs of a path in one pool.
//!
//! A [`GraphTree`] has functions registered with it. It runs each eagerly until it is warm, then *records* a graph of it in the
//! place where it was called, and from then on *replays* that graph whenever the program comes to the same place again:
//!
//! ```text
//! root ─┬─ forward(8×64) ── backward(8×64)          a place: the function, the shapes of its inputs, and the graphs that were
//!       ├─ forward(4×64) ── backward(4×64)                   replayed before it in this step
//!       └─ forward(8×64)′                           a variant: the same place, recorded with an input at another address
//! ```
//!
//! # Memory
//! The graphs below the roots of one function share a pool (a grove). A graph that is recorded behind others finds the pool as
//! they leave it: what is held of their outputs has its memory, everything else is free to be used again. For that the pool's
//! state is kept with each graph, and put back before the next recording, whatever was recorded meanwhile on other paths.
//!
//! # What a graph assumes, and what happens where it does not hold
//! - *Static inputs* and *managed* ones (outputs of graphs of this step) lie where they lay; all others are copied to where the
//!   graph reads them. What an input holds may be changed in place: that is no obstacle (a copied input is copied back).
//! - Outputs of the path that were dead when it was recorded are dead: it may overwrite them.
//!
//! If an assumption is broken, a variant is recorded, the reason is counted and logged. An input in the pool that keeps moving is
//! copied from then on. A function whose assumptions are broken too often runs eagerly from then on.
//!
//! # Steps
//! A step is a path from a root. It ends when [`GraphTree::begin_step`] says so, or when nothing is held of its outputs any more;
//! and, with [`Steps::Automatic`], when only the inputs of a call hold some, and the call has a graph at a root, to which they are
//! copied: so a loop that feeds its output back does not grow the tree. Outputs are lent: one that is held beyond its step is
//! refused or moved ([`LiveOutputs`]) when a call would overwrite it.
//!
//! # What it does not do
//! Functions run under `no_grad`: a backward pass is a function of its own, of what the forward pass returns
//! ([graphed callables](super::callable) take part in autograd). A function must not keep what it makes, and does on the host
//! what it does at recordings only. A tree belongs to one thread at a time (`&mut`) and one device; trees of several threads run
//! side by side, and a call during another's capture runs eagerly.

mod counters;
mod function;
mod grove;
mod node;
mod record;

use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_runtime::{CaptureMode, Device, Error, Label, Result, Stream};

pub use counters::{Decision, DecisionKind, GraphTreeCounters};
pub use function::{CaptureSizes, FunctionId, FunctionOptions, Padding, PaddingFunction};

use super::LiveOutputs;
use crate::autograd::no_grad;
use crate::caller::label_at;
use crate::tensor::Tensor;
use counters::DecisionLog;
use function::{Fitted, Function, Key};
use grove::{Found, Grove};
use node::{Mismatch, NodeId};

/// When a step ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steps {
    /// Also when the inputs of a call hold all that is left of it, and the call has a graph at a root.
    #[default]
    Automatic,
    /// When [`GraphTree::begin_step`] says so, or nothing of it is held.
    Explicit,
}

/// The numbers of a [`GraphTree`].
#[derive(Clone, Debug)]
pub struct GraphTreeOptions {
    /// Eager runs of a function with some shapes before it is recorded.
    pub warm_up: usize,
    /// What to do about outputs that are held beyond their step when they would be overwritten.
    pub live_outputs: LiveOutputs,
    /// When a step ends.
    pub steps: Steps,
    /// How often the assumptions about a function may be broken (static inputs apart) before it runs eagerly for good.
    pub rerecord_limit: usize,
    /// How often an input in the pool may be found at another place before it is copied for good.
    pub managed_move_limit: usize,
    /// How many different shapes a function is captured for. Others run eagerly.
    pub shape_limit: usize,
    /// How many graphs there may be in one place. The one used longest ago makes room.
    pub variant_limit: usize,
    /// How many graphs a step may have. Further calls run eagerly.
    pub depth_limit: usize,
    /// How many bytes all pools may take from the driver. The pool used longest ago is given up, with its graphs.
    pub pool_bytes_limit: Option<u64>,
    /// Which calls of other threads the captures forbid.
    pub mode: CaptureMode,
}

impl Default for GraphTreeOptions {
    /// PyTorch's where it has one: one warm-up, 128 re-recordings, 5 moves of an input.
    fn default() -> Self {
        Self {
            warm_up: 1,
            live_outputs: LiveOutputs::default(),
            steps: Steps::default(),
            rerecord_limit: 128,
            managed_move_limit: 5,
            shape_limit: 64,
            variant_limit: 16,
            depth_limit: 64,
            pool_bytes_limit: None,
            mode: CaptureMode::ThreadLocal,
        }
    }
}

/// Functions whose calls are recorded and replayed as graphs. See the [module](self).
pub struct GraphTree {
    device: Device,
    options: GraphTreeOptions,
    functions: Vec<Function>,
    /// By the function of their roots.
    groves: FxHashMap<usize, Grove>,
    /// The grove of the current step.
    current: Option<usize>,
    /// Where graphs are recorded.
    capture_stream: Stream,
    /// Where the last graph was replayed.
    last_stream: Option<Stream>,
    /// Grows with every call.
    clock: u64,
    counters: GraphTreeCounters,
    log: DecisionLog,
}

/// A call on its way.
struct CallSite {
    function: usize,
    key: Key,
    stream: Stream,
    label: Label,
}

impl GraphTree {
    /// A tree without functions.
    pub fn new(device: &Device, options: GraphTreeOptions) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            options,
            functions: Vec::new(),
            groves: FxHashMap::default(),
            current: None,
            capture_stream: Stream::new(device)?,
            last_stream: None,
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

    /// Calls a function, as a graph where that is possible. Asynchronous on the current stream, like any operator; a call that
    /// records waits for the device.
    ///
    /// Inputs are given away, so that outputs of earlier calls among them count as dropped: clone what is to stay. Outputs must
    /// be dropped, or copied, before their step is repeated; see [`LiveOutputs`].
    ///
    /// # Errors
    /// The function's own; [`Error::is_invalid_argument`] if an input lies on another device, or outputs of an earlier step are
    /// still held and [`LiveOutputs::Refuse`] was asked for. The tree is as usable afterwards as before.
    #[track_caller]
    pub fn call(&mut self, function: FunctionId, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let label = label_at("graph_tree_call", Location::caller());
        let FunctionId(index) = function;
        if index >= self.functions.len() {
            let count = self.functions.len();
            return Err(Error::invalid(format!(
                "{function:?} is of another tree: this one has {count} functions"
            )));
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
            let grove = self.groves.get_mut(&current).expect("the current grove is there");
            grove.end_path(|key| functions[key.function].name.clone());
            self.counters.steps += 1;
        }
    }

    /// Forgets all graphs, and what was learned of the functions. Outputs that are held stay valid.
    pub fn reset(&mut self) {
        self.begin_step();
        self.groves.clear();
        for function in &mut self.functions {
            let (name, options, body) = (&function.name, function.options.clone(), function.body.clone());
            *function = Function::new(name, options, body).expect("the options were accepted before");
        }
    }

    /// How often the tree did what.
    pub fn counters(&self) -> GraphTreeCounters {
        self.counters
    }

    /// The last decisions, oldest first, each with its reason.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.log.iter()
    }

    /// Why a function runs eagerly for good, if it does.
    pub fn eager_reason(&self, function: FunctionId) -> Option<&str> {
        self.functions.get(function.0)?.eager.as_deref()
    }

    /// How many graphs there are.
    pub fn graphs(&self) -> usize {
        self.groves.values().map(Grove::graphs).sum()
    }

    /// The bytes that the pools have taken from the driver.
    pub fn pool_bytes(&self) -> u64 {
        self.groves.values().map(|grove| grove.pool.reserved_bytes()).sum()
    }

    fn dispatch(&mut self, index: usize, inputs: Vec<Tensor>, label: Label) -> Result<Vec<Tensor>> {
        if let Some(input) = inputs.iter().find(|input| *input.device() != self.device) {
            return Err(Error::invalid(format!("{input:?} is not on {}, the tree's device", self.device)));
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
        let fitted = match function.fit(inputs)? {
            Ok(fitted) => fitted,
            Err((inputs, reason)) => return self.run_eagerly(index, &Fitted::exact(inputs), reason),
        };
        self.counters.padded += u64::from(fitted.cut.is_some());
        let key = Key::new(index, &fitted.inputs);
        if let Some(reason) = self.reason_against(index, &key, &fitted) {
            return self.run_eagerly(index, &fitted, reason);
        }
        let runs = self.functions[index].warm.entry(key.clone()).or_insert(0);
        if *runs < self.options.warm_up {
            *runs += 1;
            self.counters.warm_ups += 1;
            return self.functions[index].run_eagerly(&fitted);
        }
        self.serve(CallSite { function: index, key, stream, label }, fitted)
    }

    /// Why a call had better run eagerly, this once.
    fn reason_against(&self, index: usize, key: &Key, fitted: &Fitted) -> Option<String> {
        let function = &self.functions[index];
        let limit = self.options.shape_limit;
        if !function.warm.contains_key(key) && function.warm.len() >= limit {
            return Some(format!("its inputs have had {limit} different shapes, the limit"));
        }
        function.reason_against_aliases(&fitted.inputs)
    }

    fn run_eagerly(&mut self, index: usize, fitted: &Fitted, reason: String) -> Result<Vec<Tensor>> {
        self.counters.eager += 1;
        self.log.push(&self.functions[index].name, DecisionKind::Eager, reason);
        self.functions[index].run_eagerly(fitted)
    }

    /// Serves a call with a graph: one that fits, or a new one.
    fn serve(&mut self, site: CallSite, fitted: Fitted) -> Result<Vec<Tensor>> {
        if self.current.is_some_and(|current| self.groves[&current].live_loans().next().is_none()) {
            self.begin_step();
        }
        let mut mismatch = None;
        if let Some(current) = self.current {
            match self.groves[&current].find(&site.key, &fitted.inputs) {
                Found::Fits(node) => return self.replay(current, node, &site, fitted),
                Found::Nothing if self.is_fed_back(current, &site, &fitted) => self.begin_step(),
                Found::Nothing => {}
                Found::Mismatch(found) => mismatch = Some(found),
            }
        }
        if self.current.is_none()
            && let Some(grove) = self.groves.get(&site.function)
        {
            match grove.find(&site.key, &fitted.inputs) {
                Found::Fits(node) => return self.replay(site.function, node, &site, fitted),
                Found::Nothing => {}
                Found::Mismatch(found) => mismatch = Some(found),
            }
        }
        if let Some(mismatch) = mismatch {
            self.note_broken(site.function, mismatch);
        }
        if self.functions[site.function].eager.is_some() {
            self.counters.eager += 1;
            return self.functions[site.function].run_eagerly(&fitted);
        }
        self.record(site, fitted, mismatch)
    }

    /// Whether a call's inputs hold all that is held of the step, and a root serves the call.
    fn is_fed_back(&self, current: usize, site: &CallSite, fitted: &Fitted) -> bool {
        if self.options.steps == Steps::Explicit {
            return false;
        }
        let inputs: Vec<&Tensor> = fitted.of_caller().collect();
        let is_held_by_inputs = |loan: &thalweg_runtime::OutputHandle| {
            let own: Vec<&&Tensor> =
                inputs.iter().filter(|input| loan.is_of(&input.storage().buffer)).collect();
            own.first().is_some_and(|first| Arc::strong_count(first.storage()) == own.len())
        };
        let current = &self.groves[&current];
        current.live_loans().all(is_held_by_inputs)
            && self.groves.get(&site.function).is_some_and(|grove| {
                grove.has_root(&site.key, &fitted.inputs, |input| {
                    fitted.of_caller().nth(input).is_some_and(|input| current.is_managed(input))
                })
            })
    }

    /// An assumption about a function did not hold.
    fn note_broken(&mut self, index: usize, mismatch: Mismatch) {
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
                    let reason =
                        format!("input {input} was found at another place of the pool {moves} times");
                    self.log.push(&function.name, DecisionKind::Demote, reason);
                }
            }
        }
        function.broken += 1;
        if function.broken > self.options.rerecord_limit {
            let limit = self.options.rerecord_limit;
            let reason = format!(
                "what its graphs assume was broken more than {limit} times; the last time: {mismatch}"
            );
            self.log.push(&function.name, DecisionKind::Eager, reason.clone());
            function.eager = Some(reason);
        }
    }

    /// Orders a stream behind the last replay: all replays of a pool share memory.
    fn follow(&mut self, stream: &Stream) -> Result<()> {
        match self.last_stream.replace(stream.clone()) {
            Some(last) if last != *stream => stream.wait_stream(&last),
            _ => Ok(()),
        }
    }

    /// Replays a graph behind the current path, which becomes that of `grove`.
    fn replay(
        &mut self,
        grove_of: usize,
        node: NodeId,
        site: &CallSite,
        mut fitted: Fitted,
    ) -> Result<Vec<Tensor>> {
        self.follow(&site.stream)?;
        let grove = self.groves.get_mut(&grove_of).expect("found in it");
        grove.node(node).read(&mut fitted, &site.stream, &mut self.counters)?;
        self.counters.moved_outputs += grove.clear(self.options.live_outputs, &site.stream)?;
        let (outputs, loans) =
            grove.node(node).replay(&grove.pool, &fitted, &site.stream, site.label, &mut self.counters)?;
        grove.advance(node, loans, self.clock);
        self.current = Some(grove_of);
        self.functions[site.function].cut(outputs, fitted.cut)
    }
}

impl std::fmt::Debug for GraphTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphTree")
            .field("device", &self.device)
            .field("functions", &self.functions.len())
            .field("graphs", &self.graphs())
            .field("counters", &self.counters)
            .finish()
    }
}
