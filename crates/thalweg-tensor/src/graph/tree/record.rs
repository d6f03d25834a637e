//! Recording of nodes, and eviction of pools.

use rustc_hash::FxHashMap;
use thalweg_ir::Layout;
use thalweg_runtime::{CaptureOptions, Graph, Label, Result, Stream};

use super::counters::DecisionKind;
use super::forest::Forest;
use super::function::CallInputs;
use super::node::{InputRule, Mismatch, Node, NodeId};
use super::{CallSite, GraphTreeManager};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// The outcome of a recording.
enum RecordOutcome {
    /// A new node.
    Node(NodeId),
    /// No node for this call, for this reason.
    NotNow(String),
    /// No node for any later call, for this reason.
    Never(String),
}

/// Returns memory of a graph's own for an input, with the input's strides, so that results have the layouts that they would have.
fn own_like(input: &Tensor, stream: &Stream, label: Label) -> Result<Tensor> {
    let layout = input.layout();
    let layout = match layout.may_overlap() {
        true => Layout::contiguous(layout.shape()),
        false => Layout::new(layout.shape(), layout.strides(), 0)?,
    };
    let bytes = (layout.span() * input.dtype().size_bytes()) as u64;
    Tensor::empty_in(layout, bytes, input.dtype(), stream, label)
}

impl GraphTreeManager {
    /// Records a node at the end of the path, and replays it. If that is not possible, runs the function eagerly.
    pub(super) fn record(
        &mut self,
        site: CallSite,
        mut inputs: CallInputs,
        mismatch: Option<Mismatch>,
    ) -> Result<Vec<Tensor>> {
        let root = self.current.unwrap_or(site.function);
        let recorded = match self.forests.get(&root) {
            Some(forest) if forest.depth() >= self.options.depth_limit => RecordOutcome::NotNow(format!(
                "the step has {} graphs, the limit: drop its outputs, or end it with `begin_step`",
                forest.depth()
            )),
            _ => self.try_record(root, &site, &mut inputs)?,
        };
        match recorded {
            RecordOutcome::Node(node) => {
                let (kind, reason) = match mismatch {
                    None => {
                        (DecisionKind::Record, "there was no graph for this call behind the path".to_owned())
                    }
                    Some(mismatch) => (DecisionKind::Rerecord, mismatch.to_string()),
                };
                self.counters.recordings += 1;
                self.log.push(&self.functions[site.function].name, kind, reason);
                let outputs = self.replay(root, node, &site, inputs);
                self.keep_within_limit(root, site.function);
                outputs
            }
            RecordOutcome::NotNow(reason) => self.run_eagerly(site.function, &inputs, reason),
            RecordOutcome::Never(reason) => {
                self.functions[site.function].eager = Some(reason.clone());
                self.run_eagerly(site.function, &inputs, reason)
            }
        }
    }

    fn try_record(&mut self, root: usize, site: &CallSite, inputs: &mut CallInputs) -> Result<RecordOutcome> {
        if !self.forests.contains_key(&root) {
            match Forest::new(&self.device) {
                Err(error) if error.is_capture() => return Ok(RecordOutcome::NotNow(error.to_string())),
                forest => self.forests.insert(root, forest?),
            };
        }
        let (mut rules, read) = self.rules(root, site, inputs)?;
        self.follow(&site.stream)?;
        let forest = self.forests.get_mut(&root).expect("made above");
        // Outputs of earlier steps are moved before the recording, since it may allocate their memory.
        self.counters.moved_outputs += forest.clear(self.options.live_outputs, &site.stream)?;
        match forest.restore() {
            Err(error) if error.is_capture() => return Ok(RecordOutcome::NotNow(error.to_string())),
            restored => restored?,
        }
        let versions: Vec<u32> = read.iter().map(Tensor::writes).collect();
        let (forest, body) = (&self.forests[&root], &self.functions[site.function].body);
        let options = CaptureOptions {
            pool: Some(forest.pool.clone()),
            mode: self.options.mode,
            stream: Some(self.capture_stream.clone()),
            ..CaptureOptions::default()
        };
        let captured = Graph::capture(&self.device, options, || {
            // The recording may use the memory of the path's other graphs: invariants about it are checked before each replay.
            forest.pool.vouch(&self.capture_stream);
            body(&read)
        });
        let (graph, results) = match captured {
            Err(error) if error.is_capture() => {
                return Ok(RecordOutcome::Never(format!("it cannot be captured: {error}")));
            }
            captured => captured?,
        };
        let function = &mut self.functions[site.function];
        function.note_writes(&read, &versions);
        for (index, rule) in rules.iter_mut().enumerate() {
            let (InputRule::InPlace { is_written, .. } | InputRule::Copied { is_written, .. }) = rule;
            *is_written = read[index].writes() != versions[index];
            if *is_written && inputs.tensors[index].shares_storage_with(&read[index]) && rule.is_copied() {
                return Ok(RecordOutcome::Never(format!("it changes input {index} at some calls only")));
            }
        }
        if let Some(reason) = self.functions[site.function].reason_against_aliases(&inputs.tensors) {
            return Ok(RecordOutcome::NotNow(reason));
        }
        self.insert_node(root, site, graph, rules, read, results)
    }

    /// Returns the rule of each input, and the tensors that the graph is recorded with. Copies inputs whose rule requires it, and
    /// drops the caller's tensors that are not written back: their memory may be needed by the recording.
    fn rules(
        &mut self,
        root: usize,
        site: &CallSite,
        inputs: &mut CallInputs,
    ) -> Result<(Vec<InputRule>, Vec<Tensor>)> {
        let (forest, function) = (&self.forests[&root], &self.functions[site.function]);
        let mut rules = Vec::new();
        let mut read = Vec::new();
        for index in 0..inputs.tensors.len() {
            let input = &inputs.tensors[index];
            let is_static = function.options.static_inputs.contains(&index);
            let is_managed = !is_static && !function.demoted.contains(&index) && forest.is_managed(input);
            if is_static || is_managed {
                let (base, layout) = (input.storage().pointer(), input.layout().clone());
                rules.push(InputRule::InPlace { base, layout, is_managed, is_written: false });
                read.push(input.clone());
                continue;
            }
            let own = own_like(input, &self.device.current_stream(), site.label)?;
            if function.writes_are_known && !function.written.contains(&index) {
                self.counters.copy(&own, input)?;
                inputs.replace(index, own.clone());
            }
            read.push(own.clone());
            rules.push(InputRule::Copied { own, is_written: false });
        }
        Ok((rules, read))
    }

    /// Inserts a captured graph as a node, if its outputs account for all memory that it holds.
    fn insert_node(
        &mut self,
        root: usize,
        site: &CallSite,
        graph: Graph,
        rules: Vec<InputRule>,
        read: Vec<Tensor>,
        results: Vec<Tensor>,
    ) -> Result<RecordOutcome> {
        let forest = self.forests.get_mut(&root).expect("made before the capture");
        let state = match forest.pool.checkpoint() {
            Err(error) if error.is_capture() => return Ok(RecordOutcome::NotNow(error.to_string())),
            state => state?,
        };
        let (outputs, held) = match Outputs::take_over(results, &read, &forest.pool, site.label) {
            Err(error) => return Ok(RecordOutcome::Never(error.to_string())),
            Ok(taken) => taken,
        };
        forest.hold(held);
        if let Some(address) = state.live_addresses().into_iter().find(|&address| !forest.holds(address)) {
            return Ok(RecordOutcome::Never(format!(
                "the function keeps memory that it allocated ({address:#x}), which every replay overwrites"
            )));
        }
        let node = Node {
            graph,
            rules,
            outputs,
            expected_dead: forest.dead_memories(),
            state,
            input_stream: site.stream.clone(),
            children: FxHashMap::default(),
            last_used: self.clock,
        };
        Ok(RecordOutcome::Node(forest.insert(&site.key, node, self.options.variant_limit)))
    }

    /// Evicts pools, the least recently used one first, until their total size is within the limit.
    fn keep_within_limit(&mut self, recorded: usize, function: usize) {
        let Some(limit) = self.options.pool_bytes_limit else { return };
        while self.pool_bytes() > limit {
            let others = self.forests.iter().filter(|(of, _)| **of != recorded);
            let oldest = others.min_by_key(|(_, forest)| forest.last_used).map(|(of, _)| *of);
            let Some(of) = oldest.or_else(|| self.forests.contains_key(&recorded).then_some(recorded)) else {
                return;
            };
            let forest = &self.forests[&of];
            let bytes = forest.pool.reserved_bytes();
            if of == recorded && forest.graphs() == forest.depth() {
                let reason = format!("the graphs of one step take {bytes} bytes; the limit is {limit}");
                self.log.push(&self.functions[function].name, DecisionKind::Eager, reason.clone());
                self.functions[function].eager = Some(reason);
            }
            self.evict(
                of,
                format!(
                    "its pool has {bytes} bytes, and all pools together have more than the limit of {limit}"
                ),
            );
        }
    }

    /// Evicts a pool with all its graphs. Outputs that are held stay valid, and keep the pool until they are dropped.
    pub(super) fn evict(&mut self, of: usize, reason: String) {
        if self.current == Some(of) {
            self.begin_step();
        }
        let Some(forest) = self.forests.remove(&of) else { return };
        let (id, is_held) = (forest.pool.id(), forest.is_held());
        drop(forest);
        if !is_held {
            // In a capture of another thread, or on a lost device, the memory stays cached for now.
            let _ = self.device.allocator().empty_pool_cache(id);
        }
        self.counters.evictions += 1;
        self.log.push(&self.functions[of].name, DecisionKind::Evict, reason);
    }
}
