//! Training of ranks that have different numbers of inputs (`Join`).
//!
//! Before each pass of a join the ranks sum a *notice*: which ranks still have inputs, and what kind of pass follows. A rank that
//! has no more inputs reads it and runs the same collectives as the others, with zeros. So the collectives of all ranks match, as
//! in a pass without a join.
//!
//! ```text
//! rank 0:  notice  forward  backward: buckets   notice  forward  backward: buckets   notice (no rank is active): the end
//! rank 1:  notice  forward  backward: buckets   notice           zeros               notice
//! ```

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, options, refuse_if};
use thalweg_tensor::{Tensor, no_grad};

use super::broadcast;
use super::reducer::{Reducer, State};
use super::used::UsedMap;
use crate::ReduceOp;

options! {
    /// The options of [`DistributedDataParallel::join`](super::DistributedDataParallel::join), with PyTorch's names and defaults.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct JoinOptions {
        /// Whether gradients are divided by the number of all ranks instead of the number of ranks that still have inputs. All
        /// samples then have the same weight.
        pub divide_by_initial_world_size: bool = true,
        /// Whether all ranks return an error as soon as one runs out of inputs before the others.
        pub throw_on_early_termination: bool = false,
    }
}

/// A join in progress.
pub(super) struct Joining {
    options: JoinOptions,
    /// The sum of the notices before the latest pass.
    notice: Option<Tensor>,
    /// The factor of means: the number of all ranks divided by the number of ranks with inputs. `None` if means are not scaled.
    scale: Option<Tensor>,
}

impl Joining {
    pub(super) fn scale(&self) -> Option<&Tensor> {
        self.scale.as_ref()
    }
}

/// A guard that ends the join of a reducer when it is dropped.
pub(super) struct Inside<'r>(pub(super) &'r Reducer);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state().join = None;
    }
}

/// The entries of a notice before the ranks' entries: whether the order of the buckets is known, whether gradients are reduced,
/// and whether the module is in training mode.
const READY: usize = 0;
const SYNCING: usize = 1;
const TRAINING: usize = 2;
const RANKS: usize = 3;

/// Reads a notice on the host: its first entries, and the ranks that have inputs. *Blocks*.
fn read(notice: &Tensor) -> Result<([i64; RANKS], Vec<u32>)> {
    let all = notice.to_vec::<i64>()?;
    let active = (0..).zip(&all[RANKS..]).filter(|(_, has_inputs)| **has_inputs > 0).map(|(rank, _)| rank);
    Ok(([all[READY], all[SYNCING], all[TRAINING]], active.collect()))
}

/// Returns the rank whose values all ranks take: the last one that has inputs.
fn authority(active: &[u32]) -> u32 {
    active.last().copied().unwrap_or(0)
}

fn early(active: &[u32], ranks: u32) -> Error {
    let through: Vec<u32> = (0..ranks).filter(|rank| !active.contains(rank)).collect();
    Error::distributed(format!(
        "Detected at least one rank that exhausted inputs. Throwing across all ranks. Through are the ranks {through:?}"
    ))
}

impl Reducer {
    pub(super) fn begin_join(&self, options: JoinOptions) -> Result<()> {
        let mut state = self.state();
        refuse_if!(state.join.is_some(), "DistributedDataParallel::join: the module is in a join already");
        state.join = Some(Joining { options, notice: None, scale: None });
        Ok(())
    }

    /// Sums the notices of all ranks.
    fn notify(&self, state: &State, is_active: bool, is_training: bool) -> Result<Tensor> {
        let ranks = self.group.size() as usize;
        let mut own = vec![0i64; RANKS + ranks];
        own[READY] = i64::from(self.can_rebuild(state));
        if is_active {
            own[SYNCING] = i64::from(state.is_syncing);
            own[TRAINING] = i64::from(is_training);
            own[RANKS + self.group.rank() as usize] = 1;
        }
        let notice = Tensor::from_slice(&own, &[own.len()], self.group.device())?;
        self.group.all_reduce(&notice, ReduceOp::Sum)?.wait()?;
        Ok(notice)
    }

    /// Announces that this rank has inputs, and returns the rank whose buffers all ranks take.
    pub(super) fn join_pass(&self, state: &mut State, is_training: bool) -> Result<u32> {
        let notice = no_grad(|| self.notify(state, true, is_training))?;
        let ranks = self.group.size();
        let options = state.join.as_ref().map(|join| join.options).unwrap_or_default();
        let scale = match options.divide_by_initial_world_size {
            true => None,
            false => Some(no_grad(|| -> Result<Tensor> {
                let count = notice.narrow(0, RANKS, ranks as usize)?.sum(&[], false)?.to_dtype(DType::F32)?;
                count.reciprocal()?.mul_scalar(f64::from(ranks))
            })?),
        };
        let has_buffers =
            state.is_syncing && self.options.broadcast_buffers && is_training && !self.buffers.is_empty();
        let mut source = 0;
        // The host reads it only if a decision depends on it.
        if options.throw_on_early_termination || has_buffers || self.can_rebuild(state) {
            let (flags, active) = read(&notice)?;
            if options.throw_on_early_termination && active.len() < ranks as usize {
                return Err(early(&active, ranks));
            }
            if flags[READY] == i64::from(ranks) {
                self.rebuild(state)?;
            }
            source = authority(&active);
        }
        state.join = Some(Joining { options, notice: Some(notice), scale });
        Ok(source)
    }

    /// Takes part in the passes of the other ranks until none has inputs. *Blocks*.
    pub(super) fn shadow(&self) -> Result<()> {
        let mut state = self.state();
        let options = state.join.as_ref().map(|join| join.options).unwrap_or_default();
        let own = state.join.as_ref().and_then(|join| join.notice.clone());
        let mut last = own.map(|notice| read(&notice)).transpose()?.map(|(_, active)| active);
        loop {
            let notice = self.notify(&state, false, false)?;
            let (flags, active) = read(&notice)?;
            if active.is_empty() {
                break;
            }
            if options.throw_on_early_termination {
                return Err(early(&active, self.group.size()));
            }
            if flags[READY] == i64::from(self.group.size()) {
                self.rebuild(&mut state)?;
            }
            let source = authority(&active);
            if flags[SYNCING] > 0 && self.options.broadcast_buffers && flags[TRAINING] > 0 {
                broadcast(&self.group, &self.buffers, source)?;
            }
            if flags[SYNCING] > 0 {
                self.reduce_zeros(&mut state)?;
            }
            last = Some(active);
        }
        // Ranks that have not run a complete pass know no order, so no rank uses its own.
        state.begin();
        let Some(active) = last else { return Ok(()) };
        let all: Vec<Tensor> = self.parameters.iter().chain(&self.buffers).map(Tensor::detach).collect();
        broadcast(&self.group, &all, authority(&active))
    }

    /// Runs the collectives of a backward pass, with zeros.
    fn reduce_zeros(&self, state: &mut State) -> Result<()> {
        if self.sends_map(state) {
            let map = UsedMap::send(&self.group, vec![false; self.parameters.len()])?;
            if self.options.static_graph {
                state.used = Some(map.by_any_rank(&self.group)?);
            }
        }
        for bucket in &state.buckets {
            let count = bucket.iter().map(|&number| self.parameters[number].elements()).sum();
            let dtype = bucket.first().map_or(DType::F32, |&number| self.parameters[number].dtype());
            let zeros = Tensor::zeros(&[count], dtype, self.group.device())?;
            self.reduce(&zeros)?.work.wait()?;
        }
        Ok(())
    }
}
