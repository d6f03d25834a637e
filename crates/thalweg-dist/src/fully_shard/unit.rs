//! [`Unit`]: a module's parameters, sharded or gathered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Device, Error, Result, Stream, invalid};
use thalweg_tensor::autograd::{Backward, Gradients, record_function};
use thalweg_tensor::{Tensor, no_grad};

use super::context::Context;
use super::offloaded::{Copies, OffloadedTensor};
use super::{FullyShardOptions, OffloadPolicy};
use crate::{ProcessGroup, ReduceOp, Work};

/// A parameter of which this rank has a shard.
pub(super) struct Sharded {
    /// The shape of the full parameter.
    pub(super) shape: Vec<usize>,
    /// The index of this rank's first row.
    pub(super) first: usize,
    /// This rank's rows, padded so that all ranks' parts have equal sizes.
    rows: Rows,
    /// The shape of the padded rows.
    padded_shape: Vec<usize>,
    /// This rank's rows, a leaf tensor. If the rows are in host memory, the tensor has no elements. Its gradient then has no
    /// elements either, and only shows that there is a gradient.
    pub(super) shard: Tensor,
    /// The tensor that represents the shard in autograd: the shard itself, or a tensor of one element on the device.
    source: Tensor,
    /// The gradient in host memory.
    gradient: OnceLock<OffloadedTensor>,
}

/// A rank's rows of a parameter.
enum Rows {
    Device(Tensor),
    Host(OffloadedTensor),
}

/// The parameters of a module that are gathered and freed together.
pub(super) struct Unit {
    group: ProcessGroup,
    /// The ranks of other groups that have the same rows.
    replicas: Option<ProcessGroup>,
    parameters: Vec<Sharded>,
    options: FullyShardOptions,
    context: Mutex<Arc<Context>>,
    /// The streams of copies from and to host memory, if the parameters are there.
    copies: Option<Copies>,
    is_root: AtomicBool,
    syncs: AtomicBool,
    reshards_after_forward: Mutex<Option<bool>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    whole: Option<Whole>,
    /// The number of recorded forward passes that have had no backward pass yet.
    recorded: usize,
    /// Whether a recorded pass has saved parts of parameters.
    has_notes: bool,
    /// Whether the backward pass has used the parameters since they were gathered last.
    is_asked: bool,
    /// The gradients of full parameters that were not reduced.
    accumulated: Vec<Option<Tensor>>,
}

/// Full parameters, in the memory of the group's stream.
struct Whole {
    tensors: Vec<Tensor>,
    work: Work,
    /// The streams that use the parameters.
    streams: SmallVec<[Stream; 2]>,
    /// Whether the program requested the parameters before the pass.
    is_kept: bool,
}

/// Gradients of shards that are being reduced.
pub(super) struct Reduction {
    work: Work,
    /// The indices of the parameters, each with this rank's padded rows of its gradient.
    gradients: Vec<(usize, Tensor)>,
}

/// The location of a part of a full parameter.
pub(super) struct Note {
    unit: Arc<Unit>,
    parameter: usize,
    layout: Layout,
}

impl Sharded {
    fn new(
        group: &ProcessGroup,
        replicas: Option<&ProcessGroup>,
        copies: Option<&Copies>,
        (name, parameter): (&str, &Tensor),
    ) -> Result<Self> {
        let refuse = |text: String| Err(invalid!("fully_shard: the parameter `{name}` {text}"));
        if parameter.device() != group.device() {
            return refuse(format!(
                "is on {}, and rank {} of the group is {}",
                parameter.device(),
                group.rank(),
                group.device()
            ));
        }
        let (shape, ranks) = (parameter.shape().to_vec(), group.size() as usize);
        let Some((&rows, rest)) = shape.split_first() else {
            return refuse("is a scalar, which has no rows to shard: give it one dimension".to_owned());
        };
        let part = rows.div_ceil(ranks);
        let first = rows.min(part * group.rank() as usize);
        let own = part.min(rows - first);
        let padded_shape: Vec<usize> = std::iter::once(part).chain(rest.iter().copied()).collect();
        let padded = Tensor::zeros(&padded_shape, parameter.dtype(), parameter.device())?;
        let values = parameter.detach().contiguous()?;
        for group in replicas.into_iter().chain([group]) {
            group.broadcast(&values, 0)?.wait()?;
        }
        padded.narrow(0, 0, own)?.copy_(&values.narrow(0, first, own)?)?;
        let shard = match copies {
            None => padded.narrow(0, 0, own)?.detach(),
            Some(_) => {
                let own_shape: Vec<usize> = std::iter::once(own).chain(rest.iter().copied()).collect();
                Tensor::empty(&own_shape, parameter.dtype(), &Device::meta()?)?
            }
        };
        shard.set_requires_grad(parameter.requires_grad())?;
        let source = match copies {
            None => shard.clone(),
            Some(_) => Tensor::empty(&[1], parameter.dtype(), parameter.device())?,
        };
        source.set_requires_grad(parameter.requires_grad())?;
        let rows = match copies {
            None => Rows::Device(padded),
            Some(copies) => Rows::Host(OffloadedTensor::of(&padded, copies)?),
        };
        Ok(Self { shape, first, rows, padded_shape, shard, source, gradient: OnceLock::new() })
    }

    /// Returns this rank's padded rows, for work of the current stream; record its use. Asynchronous.
    pub(super) fn padded(&self) -> Result<Tensor> {
        match &self.rows {
            Rows::Device(padded) => Ok(padded.clone()),
            Rows::Host(offloaded) => offloaded.arrive(),
        }
    }

    /// Copies padded rows to host memory, if this rank's rows are there. Asynchronous.
    pub(super) fn offload(&self, padded: &Tensor) -> Result<()> {
        match &self.rows {
            Rows::Device(_) => Ok(()),
            Rows::Host(offloaded) => offloaded.offload(padded),
        }
    }

    /// Returns whether this rank's rows are in host memory.
    pub(super) fn is_in_host_memory(&self) -> bool {
        matches!(self.rows, Rows::Host(_))
    }

    /// Returns this rank's padded rows, which are valid as long as the result lives, and the rows without padding.
    pub(super) fn present(&self) -> Result<[Tensor; 2]> {
        let padded = self.padded()?;
        padded.record_stream(&padded.device().current_stream());
        let rows = padded.narrow(0, 0, self.shard.shape()[0])?.detach();
        Ok([padded, rows])
    }

    /// Returns the gradient of the shard, for work of the current stream; record its use. Asynchronous.
    pub(super) fn gradient(&self) -> Result<Option<Tensor>> {
        match (self.shard.grad(), self.gradient.get()) {
            (Some(_), Some(offloaded)) => offloaded.arrive().map(Some),
            (gradient, _) => Ok(gradient),
        }
    }

    /// Replaces the gradient of the shard by one that work of the current stream computes. Asynchronous.
    pub(super) fn set_gradient(&self, gradient: Tensor) -> Result<()> {
        let Rows::Host(rows) = &self.rows else { return self.shard.set_grad(Some(gradient)) };
        let offloaded = match self.gradient.get() {
            Some(offloaded) => offloaded,
            None => {
                let offloaded = OffloadedTensor::new(gradient.shape(), gradient.dtype(), rows.copies())?;
                self.gradient.get_or_init(|| offloaded)
            }
        };
        offloaded.offload(&gradient)?;
        self.shard.set_grad(Some(Tensor::empty(self.shard.shape(), self.shard.dtype(), self.shard.device())?))
    }

    /// Returns the shape of all ranks' parts together.
    fn gathered_shape(&self, ranks: u32) -> Vec<usize> {
        let mut shape = self.padded_shape.clone();
        shape[0] *= ranks as usize;
        shape
    }

    /// Starts to gather the parameter in a dtype, and returns the gathered parameter with its padding. The current stream must be
    /// the group's.
    pub(super) fn gather(&self, all: &mut crate::Coalescing<'_>, ranks: u32, dtype: DType) -> Result<Tensor> {
        let padded = self.padded()?;
        let input = padded.to_dtype(dtype)?;
        // A copy in another dtype was read on this stream.
        padded.record_use(&input.device().current_stream());
        let output = Tensor::empty(&self.gathered_shape(ranks), dtype, input.device())?;
        all.all_gather_into_tensor(&output, &input)?;
        Ok(output)
    }
}

impl Unit {
    /// Shards parameters.
    pub(super) fn new(
        group: &ProcessGroup,
        replicas: Option<&ProcessGroup>,
        named: &[(String, Tensor)],
        options: FullyShardOptions,
    ) -> Result<Arc<Self>> {
        let copies = match options.offload_policy {
            OffloadPolicy::None => None,
            OffloadPolicy::Cpu => Some(Copies::of(group)?),
        };
        let parameters: Vec<Sharded> = named
            .iter()
            .map(|(name, parameter)| Sharded::new(group, replicas, copies.as_ref(), (name, parameter)))
            .collect::<Result<_>>()?;
        let state = State { accumulated: vec![None; parameters.len()], ..State::default() };
        let unit = Arc::new(Self {
            group: group.clone(),
            replicas: replicas.cloned(),
            parameters,
            options,
            context: Mutex::default(),
            copies,
            is_root: AtomicBool::new(true),
            syncs: AtomicBool::new(true),
            reshards_after_forward: Mutex::new(options.reshard_after_forward),
            state: Mutex::new(state),
        });
        unit.context().add(&unit);
        Ok(unit)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    pub(super) fn replicas(&self) -> Option<&ProcessGroup> {
        self.replicas.as_ref()
    }

    pub(super) fn options(&self) -> &FullyShardOptions {
        &self.options
    }

    pub(super) fn parameters(&self) -> &[Sharded] {
        &self.parameters
    }

    pub(super) fn shards(&self) -> Vec<Tensor> {
        self.parameters.iter().map(|parameter| parameter.shard.clone()).collect()
    }

    /// Returns whether a tensor is a shard of this unit.
    pub(super) fn has(&self, tensor: &Tensor) -> bool {
        self.place(tensor).is_some()
    }

    /// Returns the index of the parameter that a tensor is the shard of.
    pub(super) fn place(&self, tensor: &Tensor) -> Option<usize> {
        self.parameters.iter().position(|parameter| parameter.shard.is_same(tensor))
    }

    /// Returns the streams of copies from and to host memory, if the parameters are there.
    pub(super) fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    pub(super) fn context(&self) -> Arc<Context> {
        self.context.lock().clone()
    }

    /// Adds the units within a module to this unit's context.
    pub(super) fn take_in(&self, nested: &[Arc<Self>]) {
        let context = self.context();
        for unit in nested {
            *unit.context.lock() = context.clone();
            context.add(unit);
            unit.is_root.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn set_syncs(&self, syncs: bool) {
        self.syncs.store(syncs, Ordering::Relaxed);
    }

    pub(super) fn set_reshards_after_forward(&self, reshards: bool) {
        *self.reshards_after_forward.lock() = Some(reshards);
    }

    pub(super) fn reshards_after_forward(&self) -> bool {
        let chosen = *self.reshards_after_forward.lock();
        chosen.unwrap_or(!self.is_root.load(Ordering::Relaxed))
    }

    // ---- Whole parameters -----------------------------------------------------------------------------------------

    /// Starts to gather the parameters, if they are not gathered. The group's stream must already wait for the last writes of the
    /// shards.
    pub(super) fn gather(&self) -> Result<()> {
        let mut state = self.state();
        if state.whole.is_some() || self.parameters.is_empty() {
            return Ok(());
        }
        let _current = self.group.stream().make_current();
        let (mut all, mut tensors) = (self.group.coalescing(), Vec::new());
        no_grad(|| {
            self.parameters.iter().try_for_each(|parameter| {
                let dtype = self.options.mixed_precision.param_dtype.unwrap_or(parameter.shard.dtype());
                let whole = parameter.gather(&mut all, self.group.size(), dtype)?;
                tensors.push(whole.narrow(0, 0, parameter.shape[0])?.detach());
                Ok::<_, Error>(())
            })
        })?;
        state.whole = Some(Whole { tensors, work: all.submit()?, streams: SmallVec::new(), is_kept: false });
        state.is_asked = false;
        Ok(())
    }

    /// Starts to gather the parameters for the program, after the current stream's work so far.
    pub(super) fn gather_after_current(&self) -> Result<()> {
        self.group.stream().wait_stream(&self.group.device().current_stream())?;
        self.gather()?;
        if let Some(whole) = &mut self.state().whole {
            whole.is_kept = true;
        }
        Ok(())
    }

    /// Frees parameters that stayed gathered since an earlier pass.
    pub(super) fn reshard_left(&self) -> Result<()> {
        let is_left = self.state().whole.as_ref().is_some_and(|whole| !whole.is_kept);
        if is_left { self.reshard() } else { Ok(()) }
    }

    /// Returns the full parameters, for work on the current stream.
    pub(super) fn gathered(&self) -> Result<Vec<Tensor>> {
        self.gather()?;
        let mut state = self.state();
        let Some(whole) = &mut state.whole else { return Ok(Vec::new()) };
        whole.work.wait()?;
        let current = self.group.device().current_stream();
        if !whole.streams.contains(&current) {
            whole.streams.push(current);
        }
        whole.is_kept = false;
        Ok(whole.tensors.clone())
    }

    /// Frees the full parameters.
    pub(super) fn reshard(&self) -> Result<()> {
        let whole = self.state().whole.take();
        let Some(whole) = whole else { return Ok(()) };
        if whole.streams.is_empty() {
            // The next writes of the shards must follow a gather that no stream has waited for.
            return whole.work.wait();
        }
        for stream in &whole.streams {
            whole.tensors.iter().for_each(|tensor| tensor.record_use(stream));
        }
        Ok(())
    }

    /// Returns a note of where to find the tensor again, if it is a part of a full parameter.
    pub(super) fn note(self: &Arc<Self>, tensor: &Tensor) -> Option<Note> {
        let mut state = self.state();
        let mut tensors = state.whole.iter().flat_map(|whole| &whole.tensors);
        let parameter = tensors.position(|whole| whole.shares_storage_with(tensor))?;
        state.has_notes = true;
        Some(Note { unit: self.clone(), parameter, layout: tensor.layout().clone() })
    }

    // ---- Backward passes ------------------------------------------------------------------------------------------

    /// Returns full parameters as results of a node that reduces their gradients.
    pub(super) fn recorded(self: &Arc<Self>, whole: Vec<Tensor>) -> Vec<Tensor> {
        let inputs: Vec<&Tensor> = self.parameters.iter().map(|parameter| &parameter.source).collect();
        if !thalweg_tensor::autograd::is_grad_enabled() || !inputs.iter().any(|source| source.requires_grad())
        {
            return whole.iter().map(Tensor::detach).collect();
        }
        self.state().recorded += 1;
        self.context().recorded();
        let node = GatherBackward { unit: self.clone(), is_over: AtomicBool::new(false) };
        let mut recorded = record_function(Box::new(node), &inputs, whole);
        for (result, _) in recorded.iter_mut().zip(&inputs).filter(|(_, source)| !source.requires_grad()) {
            *result = result.detach();
        }
        recorded
    }

    /// Returns whether a backward pass will need the parameters.
    pub(super) fn awaits_backward(&self) -> bool {
        let state = self.state();
        state.recorded > 0 && state.has_notes
    }

    fn is_over(&self) {
        {
            let mut state = self.state();
            state.recorded = state.recorded.saturating_sub(1);
            state.has_notes &= state.recorded > 0;
        }
        self.context().is_over();
    }

    /// Accepts the gradients of full parameters: starts to reduce them, or accumulates them.
    fn reduce(self: &Arc<Self>, gradients: &[Option<Tensor>]) -> Result<()> {
        let syncs = self.syncs.load(Ordering::Relaxed);
        let current = self.group.device().current_stream();
        let mut all = self.group.coalescing();
        let mut reduced = Vec::new();
        for (place, parameter) in self.parameters.iter().enumerate() {
            if !parameter.shard.requires_grad() {
                continue;
            }
            let policy = self.options.mixed_precision;
            let dtype = policy.reduce_dtype.or(policy.param_dtype).unwrap_or(parameter.shard.dtype());
            let arrived = gradients[place].as_ref().map(|gradient| gradient.to_dtype(dtype)).transpose()?;
            let earlier = self.state().accumulated[place].take();
            let sum = match (earlier, arrived) {
                (Some(earlier), Some(arrived)) => {
                    earlier.record_stream(&current);
                    Some(earlier.add(&arrived)?)
                }
                (earlier, arrived) => earlier.or(arrived),
            };
            if !syncs {
                self.state().accumulated[place] = sum;
                continue;
            }
            let input = parameter.padded_gradient(sum, self.group.size(), dtype)?;
            let output = Tensor::empty(&parameter.padded_shape, dtype, self.group.device())?;
            all.reduce_scatter_tensor(&output, &input, ReduceOp::Avg)?;
            reduced.push((place, output));
        }
        if !reduced.is_empty() {
            let work = self.replicated(all.submit()?, &reduced)?;
            self.context().reduces(self, Reduction { work, gradients: reduced });
        }
        Ok(())
    }

    /// Starts to reduce gradients over the replicas, after the work that reduces them within the group.
    fn replicated(&self, work: Work, gradients: &[(usize, Tensor)]) -> Result<Work> {
        let Some(replicas) = &self.replicas else { return Ok(work) };
        // The computation waits for neither reduction.
        let _behind = self.group.stream().make_current();
        let mut all = replicas.coalescing();
        gradients.iter().try_for_each(|(_, gradient)| all.all_reduce(gradient, ReduceOp::Avg))?;
        all.submit()
    }

    /// Adds reduced gradients to the gradients of the shards, on the current stream.
    pub(super) fn take_gradients(&self, reduction: Reduction) -> Result<()> {
        let Reduction { work, gradients } = reduction;
        work.wait()?;
        let current = self.group.device().current_stream();
        no_grad(|| {
            gradients.iter().try_for_each(|(place, gradient)| {
                gradient.record_stream(&current);
                let parameter = &self.parameters[*place];
                let shard = &parameter.shard;
                let own = gradient.narrow(0, 0, shard.shape()[0])?.to_dtype(shard.dtype())?.detach();
                let sum = match parameter.gradient()? {
                    Some(earlier) => {
                        earlier.record_stream(&current);
                        earlier.add(&own)?
                    }
                    None => own,
                };
                parameter.set_gradient(sum)
            })
        })
    }
}

impl Sharded {
    /// Returns a full parameter's gradient, padded with rows so that all ranks' parts have equal sizes; zeros if there is no
    /// gradient.
    fn padded_gradient(&self, gradient: Option<Tensor>, ranks: u32, dtype: DType) -> Result<Tensor> {
        let shape = self.gathered_shape(ranks);
        match gradient {
            Some(gradient) if gradient.shape() == shape => gradient.contiguous(),
            gradient => {
                let padded = Tensor::zeros(&shape, dtype, self.source.device())?;
                if let Some(gradient) = gradient {
                    padded.narrow(0, 0, self.shape[0])?.copy_(&gradient)?;
                }
                Ok(padded)
            }
        }
    }
}

impl Note {
    /// Returns the tensor, for work of a backward pass on the current stream.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        let whole = self.unit.gathered()?;
        let is_first = !std::mem::replace(&mut self.unit.state().is_asked, true);
        if is_first {
            self.unit.context().prefetch_backward(&self.unit)?;
        }
        let signed = |list: &[usize]| -> Vec<i64> { list.iter().map(|&number| number as i64).collect() };
        let (shape, layout) = (signed(self.layout.shape()), &self.layout);
        let strides: Vec<i64> = layout.strides().iter().map(|&stride| stride as i64).collect();
        whole[self.parameter].as_strided(&shape, &strides, Some(layout.offset() as i64))
    }
}

/// The node of a gather: it reduces the gradients of the full parameters, and frees the parameters.
struct GatherBackward {
    unit: Arc<Unit>,
    is_over: AtomicBool,
}

impl GatherBackward {
    fn over(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.unit.is_over();
        }
    }
}

impl Backward for GatherBackward {
    fn name(&self) -> &'static str {
        "fully_shard"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let unit = &self.unit;
        no_grad(|| unit.reduce(gradients))?;
        unit.reshard()?;
        self.over();
        unit.context().hand_out()?;
        // The shards get their gradients when the reduction is done.
        Ok(Gradients::from_elem(None, unit.parameters.len()))
    }

    /// Returns `false`: gradients of gradients through a sharded parameter are an error.
    fn is_recorded(&self) -> bool {
        false
    }
}

impl Drop for GatherBackward {
    fn drop(&mut self) {
        self.over();
    }
}
