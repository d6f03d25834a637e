//! A forest: the trees whose roots are calls of one function. They share a graph pool.

use rustc_hash::FxHashMap;
use thalweg_runtime::graph::{HeldMemory, OverwritePolicy, PoolState};
use thalweg_runtime::{Device, Error, GraphPool, OutputHandle, Result, Stream, refuse};

use super::function::CallKey;
use super::node::{InputRule, Mismatch, Node, NodeId};
use crate::graph::outputs::{LiveOutputs, clear};
use crate::tensor::Tensor;

/// The nodes that share a pool, and the current path through them.
pub(super) struct Forest {
    pub(super) pool: GraphPool,
    /// The checkpoint of the pool before the first recording.
    empty: PoolState,
    nodes: Vec<Option<Node>>,
    roots: FxHashMap<CallKey, Vec<NodeId>>,
    /// The memory of live outputs of the path, kept from the pool since the last recording.
    held: Vec<HeldMemory>,
    /// The nodes that were replayed in this step, from the root.
    path: Vec<PathEntry>,
    /// The outputs of earlier steps.
    earlier_outputs: Vec<EarlierOutput>,
    pub(super) last_used: u64,
}

/// A node that was replayed, and the handles of its outputs.
struct PathEntry {
    node: NodeId,
    handles: Vec<OutputHandle>,
}

/// An output of an earlier step.
struct EarlierOutput {
    handle: OutputHandle,
    /// The description of a live output for an error; empty for a dropped one.
    description: String,
}

/// The result of a look-up of the next node.
pub(super) enum Lookup {
    /// A node whose invariants hold.
    Node(NodeId),
    /// No node of this function and these shapes.
    Nothing,
    /// Nodes whose invariants fail, with the reason for the one used last.
    Mismatch(Mismatch),
}

impl Forest {
    pub(super) fn new(device: &Device) -> Result<Self> {
        // The invariants of nodes determine what a replay may overwrite, so the pool need not check it.
        let pool = GraphPool::with_policy(device, OverwritePolicy::Unchecked);
        let empty = pool.checkpoint()?;
        Ok(Self {
            pool,
            empty,
            nodes: Vec::new(),
            roots: FxHashMap::default(),
            held: Vec::new(),
            path: Vec::new(),
            earlier_outputs: Vec::new(),
            last_used: 0,
        })
    }

    pub(super) fn depth(&self) -> usize {
        self.path.len()
    }

    pub(super) fn graphs(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    pub(super) fn node(&self, node: NodeId) -> &Node {
        self.nodes[node].as_ref().expect("ids of removed nodes are dropped with them")
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        self.nodes[node].as_mut().expect("ids of removed nodes are dropped with them")
    }

    fn siblings(&self, key: &CallKey) -> Option<&Vec<NodeId>> {
        match self.path.last() {
            None => self.roots.get(key),
            Some(entry) => self.node(entry.node).children.get(key),
        }
    }

    /// Finds a node that can be replayed at the end of the path.
    pub(super) fn find(&self, key: &CallKey, inputs: &[Tensor]) -> Lookup {
        let is_dead = |depth: usize, memory: usize| self.path[depth].handles[memory].is_dropped();
        let mut latest: Option<(u64, Mismatch)> = None;
        for &id in self.siblings(key).into_iter().flatten() {
            let node = self.node(id);
            match node.mismatch(inputs, is_dead) {
                None => return Lookup::Node(id),
                Some(mismatch) if latest.is_none_or(|(used, _)| node.last_used >= used) => {
                    latest = Some((node.last_used, mismatch));
                }
                Some(_) => {}
            }
        }
        latest.map_or(Lookup::Nothing, |(_, mismatch)| Lookup::Mismatch(mismatch))
    }

    /// Returns whether a root serves a call, and copies every input for which `is_given_up` holds.
    pub(super) fn has_root(
        &self,
        key: &CallKey,
        inputs: &[Tensor],
        is_given_up: impl Fn(usize) -> bool,
    ) -> bool {
        self.roots.get(key).into_iter().flatten().any(|&id| {
            let node = self.node(id);
            let is_copied = |(index, rule): (usize, &InputRule)| rule.is_only_copied() || !is_given_up(index);
            node.rules.iter().enumerate().all(is_copied) && node.mismatch(inputs, |_, _| true).is_none()
        })
    }

    /// Inserts a node at the end of the path. If there are too many variants, the least recently used one is removed with its
    /// descendants.
    pub(super) fn insert(&mut self, key: &CallKey, node: Node, variant_limit: usize) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(Some(node));
        let siblings = match self.path.last().map(|entry| entry.node) {
            None => self.roots.entry(key.clone()).or_default(),
            Some(parent) => {
                let parent = self.nodes[parent].as_mut().expect("the path's nodes are not removed");
                parent.children.entry(key.clone()).or_default()
            }
        };
        siblings.push(id);
        let surplus = (siblings.len() > variant_limit).then(|| siblings.clone());
        if let Some(siblings) = surplus {
            let oldest = siblings.into_iter().filter(|&other| other != id);
            if let Some(oldest) = oldest.min_by_key(|&other| self.node(other).last_used) {
                self.remove(key, oldest);
            }
        }
        id
    }

    /// Removes a child of the path's end with its descendants.
    fn remove(&mut self, key: &CallKey, node: NodeId) {
        let siblings = match self.path.last().map(|entry| entry.node) {
            None => self.roots.get_mut(key),
            Some(parent) => self.node_mut(parent).children.get_mut(key),
        };
        if let Some(siblings) = siblings {
            siblings.retain(|&other| other != node);
        }
        let mut pending = vec![node];
        while let Some(id) = pending.pop() {
            if let Some(node) = self.nodes[id].take() {
                pending.extend(node.children.into_values().flatten());
            }
        }
    }

    /// Returns whether an input is an output of this step that is still in the pool.
    pub(super) fn is_managed(&self, input: &Tensor) -> bool {
        self.handles().any(|handle| handle.is_of(&input.storage().buffer()))
    }

    fn handles(&self) -> impl Iterator<Item = &OutputHandle> {
        self.path.iter().flat_map(|entry| &entry.handles)
    }

    /// Returns the outputs of the path that are still held.
    pub(super) fn live_outputs(&self) -> impl Iterator<Item = &OutputHandle> {
        self.handles().filter(|handle| !handle.is_dropped())
    }

    /// Returns the memory of dropped outputs of the path, by depth of the node and index of its memory.
    pub(super) fn dead_memories(&self) -> Vec<(usize, usize)> {
        let mut dead = Vec::new();
        for (depth, entry) in self.path.iter().enumerate() {
            let returned = entry.handles.iter().enumerate().filter(|(_, handle)| handle.is_dropped());
            dead.extend(returned.map(|(memory, _)| (depth, memory)));
        }
        dead
    }

    /// Restores the pool to the checkpoint at the path's end: live outputs keep their memory, the rest is free.
    pub(super) fn restore(&mut self) -> Result<()> {
        let state = match self.path.last() {
            None => &self.empty,
            Some(entry) => &self.node(entry.node).state,
        };
        let restored = self.pool.restore(state)?;
        let live: Vec<u64> = self.live_outputs().map(|handle| handle.pointer().address()).collect();
        self.held = restored.into_iter().filter(|held| live.contains(&held.address())).collect();
        Ok(())
    }

    /// Keeps the memory of recorded outputs, so that the pool does not allocate it.
    pub(super) fn hold(&mut self, held: Vec<HeldMemory>) {
        self.held.extend(held);
    }

    /// Returns whether an address is the beginning of memory that is kept for outputs.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.held.iter().any(|held| held.address() == address)
    }

    /// Prepares the memory that the next graph of the path may overwrite on `stream`, and returns how many outputs were moved.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if outputs of earlier steps are still held under [`LiveOutputs::Refuse`].
    pub(super) fn clear(&mut self, policy: LiveOutputs, stream: &Stream) -> Result<u64> {
        for handle in self.handles().filter(|handle| handle.is_dropped()) {
            handle.wait_for_uses(stream)?;
        }
        if !self.path.is_empty() {
            return Ok(0);
        }
        let held: Vec<&EarlierOutput> =
            self.earlier_outputs.iter().filter(|one| !one.handle.is_dropped()).collect();
        if let (LiveOutputs::Refuse, false) = (policy, held.is_empty()) {
            let list: Vec<String> =
                held.iter().map(|one| format!("{} ({})", one.description, one.handle.label())).collect();
            refuse!(
                "outputs of an earlier step are still held, and this call would overwrite them: {}; drop or copy them before \
                 the step ends, or ask for `LiveOutputs::Clone`",
                list.join("; ")
            );
        }
        let mut handles: Vec<OutputHandle> = self.earlier_outputs.drain(..).map(|one| one.handle).collect();
        clear(&mut handles, stream)
    }

    /// Extends the path by a node that was replayed.
    pub(super) fn advance(&mut self, node: NodeId, handles: Vec<OutputHandle>, clock: u64) {
        self.path.push(PathEntry { node, handles });
        self.last_used = clock;
        self.node_mut(node).last_used = clock;
    }

    /// Ends the step: the path's outputs become those of an earlier step.
    pub(super) fn end_path(&mut self, name_of: impl Fn(&CallKey) -> String) {
        let names: FxHashMap<NodeId, String> = self.names(name_of);
        for PathEntry { node, handles } in std::mem::take(&mut self.path) {
            for (memory, handle) in handles.into_iter().enumerate() {
                let description = if handle.is_dropped() {
                    String::new()
                } else {
                    let name = names.get(&node).map_or("a function", String::as_str);
                    format!("{} of '{name}'", self.node(node).describe_outputs(memory))
                };
                self.earlier_outputs.push(EarlierOutput { handle, description });
            }
        }
    }

    /// Returns the names of the functions of the path's nodes; empty if no output is still held.
    fn names(&self, name_of: impl Fn(&CallKey) -> String) -> FxHashMap<NodeId, String> {
        let mut names = FxHashMap::default();
        if self.live_outputs().next().is_none() {
            return names;
        }
        let mut siblings = &self.roots;
        for entry in &self.path {
            let key = siblings.iter().find(|(_, nodes)| nodes.contains(&entry.node));
            names.extend(key.map(|(key, _)| (entry.node, name_of(key))));
            siblings = &self.node(entry.node).children;
        }
        names
    }

    /// Returns whether any output of this or an earlier step is still held.
    pub(super) fn is_held(&self) -> bool {
        self.live_outputs().next().is_some()
            || self.earlier_outputs.iter().any(|one| !one.handle.is_dropped())
    }
}
