//! The backward passes that a thread runs: one, or more if a hook runs another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use thalweg_runtime::Result;

use super::Node;
use crate::scoped::{Scoped, scoped};
use crate::tensor::Tensor;

thread_local! {
    static PASSES: Scoped<SmallVec<[Running; 2]>> = const { scoped(SmallVec::new_const()) };
}

/// A function that is called once a pass has succeeded.
type Callback = Box<dyn FnOnce() -> Result<()>>;

/// The nodes that a pass runs.
pub(super) enum Runs {
    /// All nodes that these reach.
    From(Vec<Arc<Node>>),
    /// The nodes that were found to be reachable, by their numbers.
    Found(FxHashSet<u64>),
    /// The nodes that lead to targets, and the targets.
    Towards(Arc<FxHashSet<u64>>, Arc<FxHashSet<u64>>),
}

struct Running {
    number: u64,
    runs: Runs,
    at_end: Vec<Box<dyn FnOnce()>>,
    callbacks: Vec<Callback>,
}

/// A guard: while it lives, this thread is running a backward pass.
pub(super) struct RunningPass;

impl RunningPass {
    pub(super) fn new(runs: Runs) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let running = Running { number, runs, at_end: Vec::new(), callbacks: Vec::new() };
        PASSES.with_borrow_mut(|passes| passes.push(running));
        Self
    }
}

impl Drop for RunningPass {
    fn drop(&mut self) {
        let ended = PASSES.with_borrow_mut(|passes| passes.pop()).expect("it was pushed");
        ended.at_end.into_iter().for_each(|function| function());
    }
}

/// Returns the number of the innermost pass that this thread is running; numbers are unique.
pub fn number() -> Option<u64> {
    PASSES.with_borrow(|passes| passes.last().map(|pass| pass.number))
}

/// Returns whether the innermost pass of this thread reaches the node that the gradient of a tensor flows to.
pub fn will_run(tensor: &Tensor) -> bool {
    let Some(edge) = tensor.gradient_edge() else { return false };
    let node = edge.node().sequence_number();
    PASSES.with_borrow_mut(|passes| match passes.last_mut().map(|pass| &mut pass.runs) {
        None => false,
        Some(Runs::Towards(on_the_way, targets)) => on_the_way.contains(&node) || targets.contains(&node),
        Some(Runs::Found(found)) => found.contains(&node),
        Some(runs @ Runs::From(_)) => {
            let Runs::From(roots) = &*runs else { return false };
            let found: FxHashSet<u64> =
                super::engine::reachable(roots.iter()).iter().map(|node| node.sequence_number()).collect();
            let is_reached = found.contains(&node);
            *runs = Runs::Found(found);
            is_reached
        }
    })
}

/// Calls a function at the end of the innermost pass, also if that fails.
pub fn at_end(function: impl FnOnce() + 'static) {
    PASSES.with_borrow_mut(|passes| {
        if let Some(pass) = passes.last_mut() {
            pass.at_end.push(Box::new(function));
        }
    });
}

/// Makes the innermost pass of this thread call a function once it has succeeded, after all its nodes; an error of the function
/// is an error of the pass (`queue_callback` of PyTorch's engine). Returns whether a pass is running.
pub fn queue_callback(function: impl FnOnce() -> Result<()> + 'static) -> bool {
    PASSES.with_borrow_mut(|passes| match passes.last_mut() {
        Some(pass) => {
            pass.callbacks.push(Box::new(function));
            true
        }
        None => false,
    })
}

/// Calls the functions that wait for the end of the innermost pass, and those that they add.
pub(super) fn run_callbacks() -> Result<()> {
    loop {
        let waiting = PASSES.with_borrow_mut(|passes| {
            passes.last_mut().map(|pass| std::mem::take(&mut pass.callbacks)).unwrap_or_default()
        });
        if waiting.is_empty() {
            return Ok(());
        }
        for callback in waiting {
            callback()?;
        }
    }
}
