//! A grove: the trees whose roots are calls of one function. They share a pool.

use rustc_hash::FxHashMap;
use thalweg_runtime::graph::{HeldMemory, OverwritePolicy, PoolState};
use thalweg_runtime::{Device, Error, GraphPool, OutputHandle, Result, Stream};

use super::function::Key;
use super::node::{InputRule, Mismatch, Node, NodeId};
use crate::graph::outputs::{LiveOutputs, clear};
use crate::tensor::Tensor;

/// The graphs of one pool, and where among them the program is.
pub(super) struct Grove {
    pub(super) pool: GraphPool,
    /// The pool before anything was recorded.
    empty: PoolState,
    nodes: Vec<Option<Node>>,
    roots: FxHashMap<Key, Vec<NodeId>>,
    /// The memory of outputs of the path that are alive, behind a recording.
    held: Vec<HeldMemory>,
    /// The graphs that were replayed in this step.
    path: Vec<PathEntry>,
    /// What was lent in earlier steps.
    leftovers: Vec<Leftover>,
    pub(super) last_used: u64,
}

/// A graph that was replayed, and what it lent.
struct PathEntry {
    node: NodeId,
    loans: Vec<OutputHandle>,
}

/// Something that an earlier step lent, with the words for it.
struct Leftover {
    loan: OutputHandle,
    what: String,
}

/// What a look for a graph found.
pub(super) enum Found {
    /// This one fits.
    Fits(NodeId),
    /// There is none in this place for this function and these shapes.
    Nothing,
    /// There are, and the one used last does not fit for this reason.
    Mismatch(Mismatch),
}

impl Grove {
    pub(super) fn new(device: &Device) -> Result<Self> {
        // What a replay may overwrite is known here, path by path.
        let pool = GraphPool::with_policy(device, OverwritePolicy::Unchecked);
        let empty = pool.checkpoint()?;
        Ok(Self {
            pool,
            empty,
            nodes: Vec::new(),
            roots: FxHashMap::default(),
            held: Vec::new(),
            path: Vec::new(),
            leftovers: Vec::new(),
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
        self.nodes[node].as_ref().expect("ids come from places that are kept up to date")
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        self.nodes[node].as_mut().expect("ids come from places that are kept up to date")
    }

    fn siblings(&self, key: &Key) -> Option<&Vec<NodeId>> {
        match self.path.last() {
            None => self.roots.get(key),
            Some(entry) => self.node(entry.node).children.get(key),
        }
    }

    /// Looks for a graph that can be replayed next.
    pub(super) fn find(&self, key: &Key, inputs: &[Tensor]) -> Found {
        let is_dead = |depth: usize, memory: usize| self.path[depth].loans[memory].is_dropped();
        let mut latest: Option<(u64, Mismatch)> = None;
        for &id in self.siblings(key).into_iter().flatten() {
            let node = self.node(id);
            match node.mismatch(inputs, is_dead) {
                None => return Found::Fits(id),
                Some(mismatch) if latest.is_none_or(|(used, _)| node.last_used >= used) => {
                    latest = Some((node.last_used, mismatch));
                }
                Some(_) => {}
            }
        }
        latest.map_or(Found::Nothing, |(_, mismatch)| Found::Mismatch(mismatch))
    }

    /// Whether a root serves a call without the caller's own tensors of those inputs for which `is_given_up` holds.
    pub(super) fn has_root(&self, key: &Key, inputs: &[Tensor], is_given_up: impl Fn(usize) -> bool) -> bool {
        self.roots.get(key).into_iter().flatten().any(|&id| {
            let node = self.node(id);
            let is_copied = |(index, rule): (usize, &InputRule)| rule.is_only_copied() || !is_given_up(index);
            node.rules.iter().enumerate().all(is_copied) && node.mismatch(inputs, |_, _| true).is_none()
        })
    }

    /// Puts a new graph in the place behind the path. Of too many in one place the one used longest ago goes, with all behind it.
    pub(super) fn insert(&mut self, key: &Key, node: Node, variant_limit: usize) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(Some(node));
        let siblings = match self.path.last().map(|entry| entry.node) {
            None => self.roots.entry(key.clone()).or_default(),
            Some(parent) => {
                let parent = self.nodes[parent].as_mut().expect("the path's graphs are there");
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

    /// Removes a graph from the place behind the path, with all behind it.
    fn remove(&mut self, key: &Key, node: NodeId) {
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

    /// Whether an input is an output of this step that still lies in the pool.
    pub(super) fn is_managed(&self, input: &Tensor) -> bool {
        self.loans().any(|loan| loan.is_of(&input.storage().buffer))
    }

    fn loans(&self) -> impl Iterator<Item = &OutputHandle> {
        self.path.iter().flat_map(|entry| &entry.loans)
    }

    /// What of the path is still held.
    pub(super) fn live_loans(&self) -> impl Iterator<Item = &OutputHandle> {
        self.loans().filter(|loan| !loan.is_dropped())
    }

    /// Memory of the path that nobody holds.
    pub(super) fn dead_memories(&self) -> Vec<(usize, usize)> {
        let mut dead = Vec::new();
        for (depth, entry) in self.path.iter().enumerate() {
            let returned = entry.loans.iter().enumerate().filter(|(_, loan)| loan.is_dropped());
            dead.extend(returned.map(|(memory, _)| (depth, memory)));
        }
        dead
    }

    /// Puts the pool back to what the path leaves behind: outputs that are alive have their memory, all else is free.
    pub(super) fn restore(&mut self) -> Result<()> {
        let state = match self.path.last() {
            None => &self.empty,
            Some(entry) => &self.node(entry.node).state,
        };
        let restored = self.pool.restore(state)?;
        let live: Vec<u64> = self.live_loans().map(|loan| loan.pointer().address()).collect();
        self.held = restored.into_iter().filter(|held| live.contains(&held.address())).collect();
        Ok(())
    }

    /// Keeps the memory of outputs that were recorded.
    pub(super) fn hold(&mut self, held: Vec<HeldMemory>) {
        self.held.extend(held);
    }

    /// Whether an address begins memory that is kept for outputs.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.held.iter().any(|held| held.address() == address)
    }

    /// Clears what the next graph of the path may overwrite, for work of `stream`. Says how much was moved.
    ///
    /// # Errors
    /// Outputs of earlier steps that are still held, if they are not to be moved.
    pub(super) fn clear(&mut self, policy: LiveOutputs, stream: &Stream) -> Result<u64> {
        for loan in self.loans().filter(|loan| loan.is_dropped()) {
            loan.wait_for_uses(stream)?;
        }
        if !self.path.is_empty() {
            return Ok(0);
        }
        let held: Vec<&Leftover> = self.leftovers.iter().filter(|one| !one.loan.is_dropped()).collect();
        if let (LiveOutputs::Refuse, false) = (policy, held.is_empty()) {
            let list: Vec<String> =
                held.iter().map(|one| format!("{} ({})", one.what, one.loan.label())).collect();
            return Err(Error::invalid(format!(
                "outputs of an earlier step are still held, and this call would overwrite them: {}; drop or copy them before \
                 the step ends, or ask for `LiveOutputs::Clone`",
                list.join("; ")
            )));
        }
        let mut loans: Vec<OutputHandle> = self.leftovers.drain(..).map(|one| one.loan).collect();
        clear(&mut loans, stream)
    }

    /// A graph was replayed behind the path.
    pub(super) fn advance(&mut self, node: NodeId, loans: Vec<OutputHandle>, clock: u64) {
        self.path.push(PathEntry { node, loans });
        self.last_used = clock;
        self.node_mut(node).last_used = clock;
    }

    /// Ends the step.
    pub(super) fn end_path(&mut self, name_of: impl Fn(&Key) -> String) {
        let names: FxHashMap<NodeId, String> = self.names(name_of);
        for PathEntry { node, loans } in std::mem::take(&mut self.path) {
            for (memory, loan) in loans.into_iter().enumerate() {
                let what = if loan.is_dropped() {
                    String::new()
                } else {
                    let name = names.get(&node).map_or("a function", String::as_str);
                    format!("{} of '{name}'", self.node(node).describe_outputs(memory))
                };
                self.leftovers.push(Leftover { loan, what });
            }
        }
    }

    /// The functions of the graphs of the path, where something of them is held.
    fn names(&self, name_of: impl Fn(&Key) -> String) -> FxHashMap<NodeId, String> {
        let mut names = FxHashMap::default();
        if self.live_loans().next().is_none() {
            return names;
        }
        let mut places = &self.roots;
        for entry in &self.path {
            let key = places.iter().find(|(_, nodes)| nodes.contains(&entry.node));
            names.extend(key.map(|(key, _)| (entry.node, name_of(key))));
            places = &self.node(entry.node).children;
        }
        names
    }

    /// Whether anything that was ever lent is still held.
    pub(super) fn is_held(&self) -> bool {
        self.live_loans().next().is_some() || self.leftovers.iter().any(|one| !one.loan.is_dropped())
    }
}
