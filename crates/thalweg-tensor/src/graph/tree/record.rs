//! Recording a graph in its place, and keeping the pools within their limit.

use rustc_hash::FxHashMap;
use thalweg_runtime::{CaptureOptions, Graph, Result};

use super::counters::DecisionKind;
use super::function::Fitted;
use super::grove::Grove;
use super::node::{InputRule, Mismatch, Node, NodeId};
use super::{CallSite, GraphTree};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// What became of a recording.
enum Recorded {
    /// A graph in its place.
    Node(NodeId),
    /// None this time, for this reason.
    NotNow(String),
    /// None, now or ever, for this reason.
    Never(String),
}

impl GraphTree {
    /// Records a graph behind the path, and replays it. Where that cannot be, the function runs eagerly.
    pub(super) fn record(
        &mut self,
        site: CallSite,
        mut fitted: Fitted,
        mismatch: Option<Mismatch>,
    ) -> Result<Vec<Tensor>> {
        let grove_of = self.current.unwrap_or(site.function);
        let recorded = match self.groves.get(&grove_of) {
            Some(grove) if grove.depth() >= self.options.depth_limit => Recorded::NotNow(format!(
                "the step has {} graphs, the limit: drop its outputs, or end it with `begin_step`",
                grove.depth()
            )),
            _ => self.try_record(grove_of, &site, &mut fitted)?,
        };
        match recorded {
            Recorded::Node(node) => {
                let (kind, reason) = match mismatch {
                    None => (DecisionKind::Record, "there was no graph in this place".to_owned()),
                    Some(mismatch) => (DecisionKind::Rerecord, mismatch.to_string()),
                };
                self.counters.recordings += 1;
                self.log.push(&self.functions[site.function].name, kind, reason);
                let outputs = self.replay(grove_of, node, &site, fitted);
                self.keep_within_limit(grove_of, site.function);
                outputs
            }
            Recorded::NotNow(reason) => self.run_eagerly(site.function, &fitted, reason),
            Recorded::Never(reason) => {
                self.functions[site.function].eager = Some(reason.clone());
                self.run_eagerly(site.function, &fitted, reason)
            }
        }
    }

    fn try_record(&mut self, grove_of: usize, site: &CallSite, fitted: &mut Fitted) -> Result<Recorded> {
        if !self.groves.contains_key(&grove_of) {
            match Grove::new(&self.device) {
                Err(error) if error.is_capture() => return Ok(Recorded::NotNow(error.to_string())),
                grove => self.groves.insert(grove_of, grove?),
            };
        }
        let (mut rules, read) = self.rules(grove_of, site, fitted)?;
        self.follow(&site.stream)?;
        let grove = self.groves.get_mut(&grove_of).expect("made above");
        // Before the recording: where it allocates, outputs of earlier steps may be that are to be moved.
        self.counters.moved_outputs += grove.clear(self.options.live_outputs, &site.stream)?;
        match grove.restore() {
            Err(error) if error.is_capture() => return Ok(Recorded::NotNow(error.to_string())),
            restored => restored?,
        }
        let versions: Vec<u32> = read.iter().map(Tensor::version).collect();
        let (grove, body) = (&self.groves[&grove_of], &self.functions[site.function].body);
        let options = CaptureOptions {
            pool: Some(grove.pool.clone()),
            mode: self.options.mode,
            stream: Some(self.capture_stream.clone()),
        };
        let captured = Graph::capture(&self.device, options, || {
            // Of the path's other graphs: what a graph assumes of them is looked at before each replay.
            grove.pool.vouch(&self.capture_stream);
            body(&read)
        });
        let (graph, results) = match captured {
            Err(error) if error.is_capture() => {
                return Ok(Recorded::Never(format!("it cannot be captured: {error}")));
            }
            captured => captured?,
        };
        let function = &mut self.functions[site.function];
        function.see_writes(&read, &versions);
        for (index, rule) in rules.iter_mut().enumerate() {
            let (InputRule::InPlace { is_written, .. } | InputRule::Copied { is_written, .. }) = rule;
            *is_written = read[index].version() != versions[index];
            if *is_written && fitted.inputs[index].shares_storage_with(&read[index]) && rule.is_copied() {
                return Ok(Recorded::Never(format!("it changes input {index} at some calls only")));
            }
        }
        if let Some(reason) = self.functions[site.function].reason_against_aliases(&fitted.inputs) {
            return Ok(Recorded::NotNow(reason));
        }
        self.plant(grove_of, site, graph, rules, read, results)
    }

    /// How the graph will get each input, and the tensors that it is recorded with. What is copied is copied now, and the
    /// caller's let go of where nothing will be written to it: it may lie where the recording allocates.
    fn rules(
        &mut self,
        grove_of: usize,
        site: &CallSite,
        fitted: &mut Fitted,
    ) -> Result<(Vec<InputRule>, Vec<Tensor>)> {
        let (grove, function) = (&self.groves[&grove_of], &self.functions[site.function]);
        let mut rules = Vec::new();
        let mut read = Vec::new();
        for index in 0..fitted.inputs.len() {
            let input = &fitted.inputs[index];
            let is_static = function.options.static_inputs.contains(&index);
            let is_managed = !is_static && !function.demoted.contains(&index) && grove.is_managed(input);
            if is_static || is_managed {
                let (base, layout) = (input.storage().buffer.pointer(), input.layout().clone());
                rules.push(InputRule::InPlace { base, layout, is_managed, is_written: false });
                read.push(input.clone());
                continue;
            }
            let own = Tensor::empty(input.shape(), input.dtype(), &self.device)?;
            if function.was_seen && !function.written.contains(&index) {
                self.counters.copy(&own, input)?;
                fitted.replace(index, own.clone());
            }
            read.push(own.clone());
            rules.push(InputRule::Copied { own, is_written: false });
        }
        Ok((rules, read))
    }

    /// Puts a captured graph in its place, if its memory is all accounted for.
    fn plant(
        &mut self,
        grove_of: usize,
        site: &CallSite,
        graph: Graph,
        rules: Vec<InputRule>,
        read: Vec<Tensor>,
        results: Vec<Tensor>,
    ) -> Result<Recorded> {
        let grove = self.groves.get_mut(&grove_of).expect("made before the capture");
        let state = match grove.pool.checkpoint() {
            Err(error) if error.is_capture() => return Ok(Recorded::NotNow(error.to_string())),
            state => state?,
        };
        let adopted = match Outputs::adopt(results, &read, &grove.pool, site.label) {
            Err(error) => return Ok(Recorded::Never(error.to_string())),
            Ok(adopted) => adopted,
        };
        grove.hold(adopted.held);
        if let Some(address) = state.live_addresses().into_iter().find(|&address| !grove.holds(address)) {
            return Ok(Recorded::Never(format!(
                "the function keeps memory that it allocated ({address:#x}), which every replay overwrites"
            )));
        }
        let node = Node {
            graph,
            rules,
            outputs: adopted.outputs,
            expected_dead: grove.dead_memories(),
            state,
            home: site.stream.clone(),
            children: FxHashMap::default(),
            last_used: self.clock,
        };
        Ok(Recorded::Node(grove.insert(&site.key, node, self.options.variant_limit)))
    }

    /// Gives up pools, the one used longest ago first, until all together are within the limit.
    fn keep_within_limit(&mut self, recorded: usize, function: usize) {
        let Some(limit) = self.options.pool_bytes_limit else { return };
        while self.pool_bytes() > limit {
            let others = self.groves.iter().filter(|(of, _)| **of != recorded);
            let oldest = others.min_by_key(|(_, grove)| grove.last_used).map(|(of, _)| *of);
            let Some(of) = oldest.or_else(|| self.groves.contains_key(&recorded).then_some(recorded)) else {
                return;
            };
            let grove = &self.groves[&of];
            let bytes = grove.pool.reserved_bytes();
            if of == recorded && grove.graphs() == grove.depth() {
                let reason = format!("the graphs of one step take {bytes} bytes; the limit is {limit}");
                self.log.push(&self.functions[function].name, DecisionKind::Eager, reason.clone());
                self.functions[function].eager = Some(reason);
            }
            self.evict(
                of,
                format!("its pool has {bytes} bytes, all of them are more than the limit of {limit}"),
            );
        }
    }

    /// Gives up a pool with all its graphs. What is lent stays valid, and keeps the pool until it is dropped.
    fn evict(&mut self, of: usize, reason: String) {
        if self.current == Some(of) {
            self.begin_step();
        }
        let Some(grove) = self.groves.remove(&of) else { return };
        let (id, is_held) = (grove.pool.id(), grove.is_held());
        drop(grove);
        if !is_held {
            // In a capture of another thread, or on a lost device, the memory stays cached for now.
            let _ = self.device.allocator().empty_pool_cache(id);
        }
        self.counters.evictions += 1;
        self.log.push(&self.functions[of].name, DecisionKind::Evict, reason);
    }
}
