//! The reducer: collects gradients in buckets and reduces them while the backward pass goes on.
//!
//! # Invariants
//! - Buckets are reduced in their order on every rank, whatever the order in which gradients come.
//! - A parameter is ready at most once between two forward passes.
//! - While a pass is under way the state is changed by hooks of that pass alone, which run one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, Stream};
use thalweg_tensor::autograd::{HookHandle, reached};
use thalweg_tensor::{Tensor, no_grad};

use super::buckets::{Size, ordered, whole};
use super::join::Joining;
use super::{DataParallelOptions, broadcast};
use crate::{ProcessGroup, ReduceOp, Work};

pub(super) struct Reducer {
    pub(super) group: ProcessGroup,
    pub(super) parameters: Vec<Tensor>,
    pub(super) buffers: Vec<Tensor>,
    pub(super) options: DataParallelOptions,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) buckets: Vec<Vec<usize>>,
    /// The bucket of each parameter.
    bucket_of: Vec<usize>,
    /// Whether the buckets are in the order in which gradients come.
    pub(super) is_rebuilt: bool,
    pub(super) is_syncing: bool,
    /// Whether a pass is expected, or under way.
    is_expecting: bool,
    /// Parameters that get no gradient, where that is known.
    unused: Option<Vec<bool>>,
    /// Parameters that have got theirs in this pass.
    is_ready: Vec<bool>,
    /// The order in which they came.
    order: Vec<usize>,
    /// How many parameters of each bucket are still to come.
    missing: Vec<usize>,
    /// How many buckets are on their way, from the first on.
    launched: usize,
    flights: Vec<Flight>,
    /// Streams on which gradients became ready.
    streams: SmallVec<[Stream; 2]>,
    /// The join of ranks with inputs of different numbers, inside of one.
    pub(super) join: Option<Joining>,
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
        let buckets = whole(&sizes(&parameters));
        let mut state = State {
            buckets: Vec::new(),
            bucket_of: Vec::new(),
            is_rebuilt: false,
            is_syncing: true,
            is_expecting: false,
            unused: None,
            is_ready: vec![false; parameters.len()],
            order: Vec::new(),
            missing: Vec::new(),
            launched: 0,
            flights: Vec::new(),
            streams: SmallVec::new(),
            join: None,
        };
        state.take_buckets(buckets);
        Self { group, parameters, buffers, options, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Registers what tells this reducer that a gradient is ready.
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
        if state.is_syncing
            && state.is_expecting
            && state.order.len() + state.unused_count() < self.parameters.len()
            && !state.order.is_empty()
        {
            let missing: Vec<usize> =
                (0..self.parameters.len()).filter(|&number| !state.is_ready[number]).collect();
            return Err(Error::invalid(format!(
                "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that \
                 your module has parameters that were not used in producing loss: set find_unused_parameters, or use all of them. \
                 Parameter indices which did not receive grad for rank {}: {missing:?}",
                self.group.rank()
            )));
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

    /// Returns whether the order of the buckets is to be taken from the pass before.
    pub(super) fn can_rebuild(&self, state: &State) -> bool {
        // Where parameters may be left out, ranks may differ in how many came.
        let all_come = !self.options.find_unused_parameters && !self.options.static_graph;
        all_come && !state.is_rebuilt && state.order.len() == self.parameters.len()
    }

    /// Takes the order in which gradients came on rank 0 for that of the buckets.
    pub(super) fn rebuild(&self, state: &mut State) -> Result<()> {
        let own: Vec<u8> = state.order.iter().flat_map(|&number| (number as u32).to_le_bytes()).collect();
        let first = self.group.broadcast_object(&own, 0)?;
        let order = first.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let order: Vec<usize> = order.collect();
        state.take_buckets(ordered(&order, &sizes(&self.parameters), self.options.bucket_cap_bytes));
        state.is_rebuilt = true;
        Ok(())
    }

    /// Notes what the backward pass will start from, and finds the parameters that it does not come to.
    pub(super) fn expect(&self, outputs: &[Tensor]) -> Result<()> {
        let mut state = self.state();
        if !state.is_syncing {
            return Ok(());
        }
        state.is_expecting = true;
        let is_known = self.options.static_graph && state.unused.is_some();
        if (self.options.find_unused_parameters || self.options.static_graph) && !is_known {
            let used = reached(outputs, &self.parameters);
            state.unused = Some(used.into_iter().map(|is_used| !is_used).collect());
        }
        Ok(())
    }

    /// Takes a gradient that has become ready on the current stream.
    fn ready(&self, number: usize) -> Result<()> {
        let mut state = self.state();
        if !state.is_syncing || !state.is_expecting {
            return Ok(());
        }
        if std::mem::replace(&mut state.is_ready[number], true) {
            return Err(Error::invalid(format!(
                "Expected to mark a variable ready only once. The parameter at index {number} got a gradient twice after one forward \
                 pass: run one backward pass per forward pass, with `no_sync` around all but the last"
            )));
        }
        let current = self.group.device().current_stream();
        if !state.streams.contains(&current) {
            state.streams.push(current);
        }
        if state.order.is_empty() {
            // Now that a pass is under way: those that it does not come to are ready as they are.
            let unused = state.unused.clone().unwrap_or_default();
            for (number, _) in unused.iter().enumerate().filter(|(_, is_unused)| **is_unused) {
                let bucket = state.bucket_of[number];
                state.missing[bucket] -= 1;
            }
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

    /// Sends the next bucket on its way.
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
                // Other ranks may have one.
                None => Tensor::zeros(&[parameter.elements()], parameter.dtype(), parameter.device())?,
            });
        }
        let flat = Tensor::cat(&pieces, 0)?;
        // What was read of other streams' memory has been read.
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
        if mean.elements() != flat.elements() {
            return Err(Error::invalid(format!(
                "DistributedDataParallel: the hook of a bucket of {} elements gave {}",
                flat.elements(),
                mean.elements()
            )));
        }
        Ok(Flight { work, mean, dtype })
    }

    /// Gives every parameter its part of the reduced buckets.
    fn finish(&self, state: &mut State) -> Result<()> {
        let used_somewhere = self.used_somewhere(state)?;
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
                if used_somewhere.as_ref().is_none_or(|used| used[number]) {
                    parameter.set_grad(Some(part.reshape(parameter.shape())?))?;
                }
            }
        }
        state.is_expecting = false;
        Ok(())
    }

    /// Returns which parameters any rank has used; `None` where all are used. *Blocks* where some may not be.
    fn used_somewhere(&self, state: &State) -> Result<Option<Vec<bool>>> {
        let Some(unused) = &state.unused else { return Ok(None) };
        let used: Vec<i32> = unused.iter().map(|&is_unused| i32::from(!is_unused)).collect();
        let used = Tensor::from_slice(&used, &[used.len()], self.group.device())?;
        self.group.all_reduce(&used, ReduceOp::Max)?.wait()?;
        Ok(Some(used.to_vec::<i32>()?.into_iter().map(|count| count > 0).collect()))
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
    }

    fn unused_count(&self) -> usize {
        self.unused.iter().flatten().filter(|is_unused| **is_unused).count()
    }
}

fn sizes(parameters: &[Tensor]) -> Vec<Size> {
    let size = |parameter: &Tensor| {
        let dtype = parameter.dtype();
        Size { dtype, bytes: parameter.elements() * dtype.size_bytes() }
    };
    parameters.iter().map(size).collect()
}
