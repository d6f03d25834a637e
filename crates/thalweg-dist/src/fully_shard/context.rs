//! The units of one model: their order, and the reductions in progress.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Error, Result, refuse_if};
use thalweg_tensor::Tensor;

use super::unit::{Note, Reduction, Unit};

/// The order of one model's units, and their reductions in progress.
#[derive(Default)]
pub(super) struct Context(Mutex<State>);

#[derive(Default)]
struct State {
    /// All units.
    units: Vec<Weak<Unit>>,
    /// The units of the forward passes since the last backward pass ended, in the order of execution.
    order: Vec<Weak<Unit>>,
    /// The value of `order` before the last backward pass ended.
    former: Vec<Weak<Unit>>,
    /// The units that are in a forward pass, innermost last.
    inside: Vec<Arc<Unit>>,
    /// The number of recorded forward passes of units that have no backward pass yet.
    recorded: usize,
    reductions: VecDeque<(Arc<Unit>, Reduction)>,
}

/// A guard: while it lives, a unit is in a forward pass.
pub(super) struct Inside<'c>(&'c Context);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let last = self.0.state().inside.pop();
        drop(last);
    }
}

impl Context {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(super) fn add(&self, unit: &Arc<Unit>) {
        self.state().units.push(Arc::downgrade(unit));
    }

    /// Begins a forward pass of a unit.
    pub(super) fn enter(&self, unit: &Arc<Unit>) -> Result<Inside<'_>> {
        let mut state = self.state();
        let is_outermost = state.inside.is_empty();
        if is_outermost && state.recorded == 0 {
            refuse_if!(
                !state.reductions.is_empty(),
                "fully_shard: the backward pass before did not come to all units whose forward pass was recorded, and gradients \
                 are still being reduced: call `finish_backward` after such a pass"
            );
            state.former = std::mem::take(&mut state.order);
        }
        state.order.push(Arc::downgrade(unit));
        state.inside.push(unit.clone());
        let idle = is_outermost && state.recorded == 0;
        let units: Vec<Arc<Unit>> =
            if idle { state.units.iter().filter_map(Weak::upgrade).collect() } else { Vec::new() };
        drop(state);
        let inside = Inside(self);
        // Parameters that stayed gathered since the previous pass may be older than the shards.
        units.iter().try_for_each(|unit| unit.reshard_left())?;
        if is_outermost {
            // The gather follows the writes of the optimizer.
            let group = unit.group();
            group.stream().wait_stream(&group.device().current_stream())?;
        }
        Ok(inside)
    }

    /// Gathers the units that followed this one in the previous pass.
    pub(super) fn prefetch_forward(&self, unit: &Arc<Unit>) -> Result<()> {
        let count = unit.options().prefetch;
        let next: Vec<Arc<Unit>> = {
            let state = self.state();
            let former = || state.former.iter().filter_map(Weak::upgrade);
            former().skip_while(|other| !Arc::ptr_eq(other, unit)).skip(1).take(count).collect()
        };
        next.iter().try_for_each(|unit| unit.gather())
    }

    /// Gathers the units whose backward passes follow this unit's, if those passes will need the units' parameters.
    pub(super) fn prefetch_backward(&self, unit: &Arc<Unit>) -> Result<()> {
        let count = unit.options().prefetch;
        let next: Vec<Arc<Unit>> = {
            let state = self.state();
            let backwards = || state.order.iter().rev().filter_map(Weak::upgrade);
            let mut found: Vec<Arc<Unit>> = Vec::new();
            for other in backwards().skip_while(|other| !Arc::ptr_eq(other, unit)) {
                let is_known = Arc::ptr_eq(&other, unit) || found.iter().any(|one| Arc::ptr_eq(one, &other));
                if found.len() < count && !is_known && other.awaits_backward() {
                    found.push(other);
                }
            }
            found
        };
        next.iter().try_for_each(|unit| unit.gather())
    }

    /// Returns a note of where to find a tensor again that is a part of a gathered parameter; `None` for other tensors.
    pub(super) fn note(&self, tensor: &Tensor) -> Option<Note> {
        let inside = self.state().inside.clone();
        inside.iter().rev().find_map(|unit| unit.note(tensor))
    }

    /// Counts a recorded forward pass of a unit.
    pub(super) fn recorded(&self) {
        self.state().recorded += 1;
    }

    /// Counts down when a recorded pass has had its backward pass or was dropped.
    pub(super) fn is_over(&self) {
        let mut state = self.state();
        state.recorded = state.recorded.saturating_sub(1);
    }

    pub(super) fn reduces(&self, unit: &Arc<Unit>, reduction: Reduction) {
        self.state().reductions.push_back((unit.clone(), reduction));
    }

    /// Adds reduced gradients to their shards: after the last backward pass for all units, before that for all units but the
    /// latest, whose reduction may still be running while the computation continues.
    pub(super) fn hand_out(&self) -> Result<()> {
        loop {
            let (unit, reduction) = {
                let mut state = self.state();
                let kept = usize::from(state.recorded > 0);
                if state.reductions.len() <= kept {
                    return Ok(());
                }
                state.reductions.pop_front().expect("there are more than are kept")
            };
            unit.take_gradients(reduction)?;
        }
    }

    /// Adds the reduced gradients to the gradients of their shards.
    pub(super) fn finish(&self) -> Result<()> {
        self.state().recorded = 0;
        self.hand_out()
    }
}
