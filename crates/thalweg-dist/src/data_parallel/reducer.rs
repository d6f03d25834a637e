//! The reducer: collects gradients in buckets and reduces them during the backward pass.
//!
//! # Invariants
//! - Every rank reduces the buckets in the same order, regardless of the order in which gradients become ready.
//! - A parameter is ready at most once between two forward passes.
//! - Where parameters may be unused, the map of those that are used is reduced before the first bucket.
//! - During a pass only the hooks of that pass change the state. They run one after the other.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Error, Result, Stream, invalid, refuse_if};
use thalweg_tensor::autograd::{HookHandle, reached};
use thalweg_tensor::{Tensor, no_grad};

use super::buckets::{Size, ordered, whole};
use super::join::Joining;
use super::used::UsedMap;
use super::{DataParallelOptions, broadcast};
use crate::{ProcessGroup, ReduceOp, Work};

pub(super) struct Reducer {
    pub(super) group: ProcessGroup,
    pub(super) parameters: Vec<Tensor>,
    pub(super) buffers: Vec<Tensor>,
    pub(super) options: DataParallelOptions,
    state: Mutex<State>,
}

/// A function that steps parameters whose gradients have been reduced.
pub(super) type FusedStep = Arc<dyn Fn(&[Tensor]) -> Result<()> + Send + Sync>;

pub(super) struct State {
    pub(super) buckets: Vec<Vec<usize>>,
    /// The bucket of each parameter.
    bucket_of: Vec<usize>,
    /// Whether the buckets are in the order in which gradients become ready.
    pub(super) is_rebuilt: bool,
    pub(super) is_syncing: bool,
    /// Whether a pass is expected or in progress.
    is_expecting: bool,
    /// For each parameter, whether it gets no gradient on this rank, if known: in this pass, or in every pass with a static
    /// graph.
    unused: Option<Vec<bool>>,
    /// For each parameter, whether it has received a gradient that has not been reduced yet.
    accumulated: Vec<bool>,
    /// The map of used parameters of this pass.
    map: Option<UsedMap>,
    /// For each parameter, whether any rank uses it; known after the first pass of a static graph.
    pub(super) used: Option<Vec<bool>>,
    /// For each parameter, whether its gradient is ready in this pass.
    is_ready: Vec<bool>,
    /// The parameters in the order in which their gradients became ready.
    order: Vec<usize>,
    /// The number of parameters of each bucket whose gradients are not ready yet.
    missing: Vec<usize>,
    /// The number of buckets whose reductions have started, counted from the first.
    launched: usize,
    flights: Vec<Flight>,
    /// Streams on which gradients became ready.
    streams: SmallVec<[Stream; 2]>,
    /// The current join of ranks with different numbers of inputs.
    pub(super) join: Option<Joining>,
    /// The optimizer that steps the parameters of each bucket when it has been reduced.
    pub(super) fused: Option<FusedStep>,
}

/// A bucket that is being reduced.
pub(super) struct Flight {
    pub(super) work: Work,
    /// The tensor that will hold the mean over the ranks.
    mean: Tensor,
    dtype: DType,
}

impl Reducer {
    pub(super) fn new(
        group: ProcessGroup,
        parameters: Vec<Tensor>,
        buffers: Vec<Tensor>,
        options: DataParallelOptions,
    ) -> Self {
        let sizes = sizes(&parameters);
        let buckets = match options.find_unused_parameters && !options.static_graph {
            // The buckets stay: the gradients that become ready differ from pass to pass.
            true => {
                let order: Vec<usize> = (0..parameters.len()).rev().collect();
                ordered(&order, &sizes, options.bucket_cap_bytes)
            }
            false => whole(&sizes),
        };
        let mut state = State {
            buckets: Vec::new(),
            bucket_of: Vec::new(),
            is_rebuilt: false,
            is_syncing: true,
            is_expecting: false,
            unused: None,
            accumulated: vec![false; parameters.len()],
            map: None,
            used: None,
            is_ready: vec![false; parameters.len()],
            order: Vec::new(),
            missing: Vec::new(),
            launched: 0,
            flights: Vec::new(),
            streams: SmallVec::new(),
            join: None,
            fused: None,
        };
        state.take_buckets(buckets);
        Self { group, parameters, buffers, options, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    pub(super) fn exchange_sync(&self, is_syncing: bool) -> bool {
        std::mem::replace(&mut self.state().is_syncing, is_syncing)
    }

    pub(super) fn bucket_bytes(&self) -> Vec<usize> {
        let sizes = sizes(&self.parameters);
        let bytes = |bucket: &Vec<usize>| bucket.iter().map(|&parameter| sizes[parameter].bytes).sum();
        self.state().buckets.iter().map(bytes).collect()
    }

    /// Registers the hooks that notify this reducer of ready gradients.
    pub(super) fn register(self: &Arc<Self>) -> Result<Vec<HookHandle>> {
        let register = |(number, parameter): (usize, &Tensor)| {
            let reducer = Arc::downgrade(self);
            parameter.register_post_accumulate_grad_hook(move |_| match reducer.upgrade() {
                Some(reducer) => reducer.ready(number),
                None => Ok(()),
            })
        };
        self.parameters.iter().enumerate().map(register).collect()
    }

    /// Begins a forward pass.
    pub(super) fn prepare(&self, is_training: bool) -> Result<()> {
        let mut state = self.state();
        if state.is_syncing && state.is_expecting && !state.is_complete() && !state.order.is_empty() {
            return Err(self.unfinished(&state));
        }
        let source = match state.join.is_some() {
            true => self.join_pass(&mut state, is_training)?,
            false => {
                if self.can_rebuild(&state) {
                    self.rebuild(&mut state)?;
                }
                0
            }
        };
        if state.is_syncing && self.options.broadcast_buffers && is_training {
            broadcast(&self.group, &self.buffers, source)?;
        }
        state.begin();
        Ok(())
    }

    fn unfinished(&self, state: &State) -> Error {
        let missing: Vec<usize> =
            (0..self.parameters.len()).filter(|&number| !state.is_ready[number]).collect();
        let reason = match self.options.static_graph {
            true => {
                "your training graph has changed: parameters of the first pass were not used in this one. Leave static_graph unset"
            }
            false => {
                "your module has parameters that were not used in producing loss: set find_unused_parameters, or use all of them"
            }
        };
        invalid!(
            "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that {reason}. \
             Parameter indices which did not receive grad for rank {}: {missing:?}",
            self.group.rank()
        )
    }

    /// Returns whether the buckets are to be rebuilt in the order of the previous pass.
    pub(super) fn can_rebuild(&self, state: &State) -> bool {
        // If some passes leave out parameters, no order is right for all passes.
        let is_steady = self.options.static_graph || !self.options.find_unused_parameters;
        is_steady && !state.is_rebuilt && state.is_complete()
    }

    /// Returns whether the ranks reduce a map of used parameters in this pass.
    pub(super) fn sends_map(&self, state: &State) -> bool {
        match self.options.static_graph {
            true => state.used.is_none(),
            false => self.options.find_unused_parameters,
        }
    }

    /// Rebuilds the buckets in the order in which gradients became ready on rank 0. Parameters that rank 0 does not use come
    /// last.
    pub(super) fn rebuild(&self, state: &mut State) -> Result<()> {
        let unused = (0..self.parameters.len()).filter(|&number| state.is_unused(number));
        let order = state.order.iter().copied().chain(unused);
        let own: Vec<u8> = order.flat_map(|number| (number as u32).to_le_bytes()).collect();
        let first = self.group.broadcast_object(&own, 0)?;
        let order = first.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let order: Vec<usize> = order.collect();
        state.take_buckets(ordered(&order, &sizes(&self.parameters), self.options.bucket_cap_bytes));
        state.is_rebuilt = true;
        Ok(())
    }

    /// Records the tensors that the backward pass will start from, and finds the parameters that it does not reach.
    pub(super) fn expect(&self, outputs: &[Tensor]) -> Result<()> {
        let mut state = self.state();
        if !state.is_syncing {
            return Ok(());
        }
        state.is_expecting = true;
        // Until a backward pass has shown which parameters all ranks use.
        let is_known = self.options.static_graph && state.unused.is_some() && state.used.is_some();
        if (self.options.find_unused_parameters || self.options.static_graph) && !is_known {
            let used = reached(outputs, &self.parameters);
            state.unused = Some(used.into_iter().map(|is_used| !is_used).collect());
        }
        Ok(())
    }

    /// Accepts a gradient that has become ready on the current stream.
    fn ready(&self, number: usize) -> Result<()> {
        let mut state = self.state();
        if !state.is_syncing || !state.is_expecting {
            state.accumulated[number] |= !state.is_syncing;
            return Ok(());
        }
        if state.is_unused(number) {
            return Err(self.used_after_all(number));
        }
        if state.order.is_empty() {
            self.begin_backward(&mut state)?;
        }
        refuse_if!(
            std::mem::replace(&mut state.is_ready[number], true),
            "Expected to mark a variable ready only once. The parameter at index {number} got a gradient twice after one forward \
             pass: run one backward pass per forward pass, with `no_sync` around all but the last"
        );
        let current = self.group.device().current_stream();
        if !state.streams.contains(&current) {
            state.streams.push(current);
        }
        state.order.push(number);
        let bucket = state.bucket_of[number];
        state.missing[bucket] -= 1;
        no_grad(|| {
            while state.launched < state.buckets.len() && state.missing[state.launched] == 0 {
                let flight = self.launch(&state)?;
                state.flights.push(flight);
                state.launched += 1;
            }
            match state.launched == state.buckets.len() {
                true => self.finish(&mut state),
                false => Ok(()),
            }
        })
    }

    /// Starts to reduce the map of used parameters, and marks the parameters that this rank does not use as ready.
    fn begin_backward(&self, state: &mut State) -> Result<()> {
        let State { unused: Some(unused), is_ready, missing, bucket_of, .. } = state else { return Ok(()) };
        for number in (0..unused.len()).filter(|&number| unused[number]) {
            is_ready[number] = true;
            missing[bucket_of[number]] -= 1;
        }
        if self.sends_map(state) {
            let is_used = |number: usize| !state.is_unused(number) || state.accumulated[number];
            let own = (0..self.parameters.len()).map(is_used).collect();
            state.map = Some(no_grad(|| UsedMap::send(&self.group, own))?);
        }
        Ok(())
    }

    fn used_after_all(&self, number: usize) -> Error {
        Error::invalid(match self.options.static_graph {
            true => format!(
                "Your training graph has changed in this iteration, e.g., one parameter is unused in first iteration, but then got used in \
                 the second iteration. This is not compatible with static_graph set to True. The parameter at index {number} got a gradient"
            ),
            false => format!(
                "DistributedDataParallel: the parameter at index {number} got a gradient, and no output of the forward pass leads to it: \
                 return all tensors that the loss is computed from"
            ),
        })
    }

    /// Starts the reduction of the next bucket.
    fn launch(&self, state: &State) -> Result<Flight> {
        let current = self.group.device().current_stream();
        for stream in state.streams.iter().filter(|stream| **stream != current) {
            current.wait_stream(stream)?;
        }
        let mut pieces = Vec::new();
        for &number in &state.buckets[state.launched] {
            let parameter = &self.parameters[number];
            pieces.push(match parameter.grad() {
                Some(gradient) => {
                    gradient.record_use(&current);
                    gradient.detach().contiguous()?.reshape(&[parameter.elements()])?
                }
                // Other ranks may have a gradient.
                None => Tensor::zeros(&[parameter.elements()], parameter.dtype(), parameter.device())?,
            });
        }
        let flat = Tensor::cat(&pieces, 0)?;
        // The memory of other streams has been read.
        pieces.iter().for_each(|piece| piece.record_use(&current));
        self.reduce(&flat)
    }

    /// Reduces the gradients of a bucket.
    pub(super) fn reduce(&self, flat: &Tensor) -> Result<Flight> {
        let dtype = flat.dtype();
        let (work, mean) = match &self.options.hook {
            Some(hook) => hook(&self.group, flat)?,
            None => (self.group.all_reduce(flat, ReduceOp::Avg)?, flat.clone()),
        };
        refuse_if!(
            mean.elements() != flat.elements(),
            "DistributedDataParallel: the hook of a bucket of {} elements gave {}",
            flat.elements(),
            mean.elements()
        );
        Ok(Flight { work, mean, dtype })
    }

    /// Replaces every parameter's gradient by its part of the reduced buckets.
    fn finish(&self, state: &mut State) -> Result<()> {
        let used = match state.map.take() {
            Some(map) => Some(map.by_any_rank(&self.group)?),
            None => state.used.clone(),
        };
        let flights = std::mem::take(&mut state.flights);
        for (bucket, flight) in state.buckets.iter().zip(flights) {
            flight.work.wait()?;
            let flat = match flight.mean.dtype() == flight.dtype {
                true => flight.mean,
                false => flight.mean.to_dtype(flight.dtype)?,
            };
            let flat = match state.join.as_ref().and_then(Joining::scale) {
                Some(scale) => flat.mul(&scale.to_dtype(flat.dtype())?)?,
                None => flat,
            };
            for stream in &state.streams {
                flat.record_stream(stream);
            }
            let mut start = 0;
            for &number in bucket {
                let parameter = &self.parameters[number];
                let count = parameter.elements();
                let part = flat.narrow(0, start, count)?;
                start += count;
                // Gradients of parameters that no rank has used are unchanged.
                if used.as_ref().is_none_or(|used| used[number]) {
                    parameter.set_grad(Some(part.reshape(parameter.shape())?))?;
                }
            }
            if let Some(step) = &state.fused {
                // Runs while later buckets are still being reduced.
                let members: Vec<Tensor> =
                    bucket.iter().map(|&number| self.parameters[number].clone()).collect();
                step(&members)?;
            }
        }
        if self.options.static_graph {
            state.used = used;
        }
        state.accumulated.fill(false);
        state.is_expecting = false;
        Ok(())
    }
}

impl State {
    fn take_buckets(&mut self, buckets: Vec<Vec<usize>>) {
        self.bucket_of = vec![0; self.is_ready.len()];
        for (place, bucket) in buckets.iter().enumerate() {
            bucket.iter().for_each(|&number| self.bucket_of[number] = place);
        }
        self.buckets = buckets;
    }

    pub(super) fn begin(&mut self) {
        self.is_ready.fill(false);
        self.order.clear();
        self.missing = self.buckets.iter().map(Vec::len).collect();
        self.launched = 0;
        self.flights.clear();
        self.streams.clear();
        self.map = None;
    }

    fn is_unused(&self, number: usize) -> bool {
        self.unused.as_ref().is_some_and(|unused| unused[number])
    }

    /// Returns whether the backward pass has reached all the parameters that it is expected to reach.
    fn is_complete(&self) -> bool {
        let unused = self.unused.iter().flatten().filter(|is_unused| **is_unused).count();
        !self.order.is_empty() && self.order.len() + unused == self.is_ready.len()
    }
}

fn sizes(parameters: &[Tensor]) -> Vec<Size> {
    let size = |parameter: &Tensor| {
        let dtype = parameter.dtype();
        Size { dtype, bytes: parameter.elements() * dtype.size_bytes() }
    };
    parameters.iter().map(size).collect()
}
