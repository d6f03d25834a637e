//! Activation checkpointing: a function whose saved tensors are computed again in the backward pass instead of being kept
//! (`torch.utils.checkpoint.checkpoint` with `use_reentrant=False`).
//!
//! The forward pass runs the function with hooks ([`saved_tensors_hooks`](super::saved_tensors_hooks)) that keep a *place* for
//! each saved tensor instead of the tensor. The first node of a backward pass that needs one runs the function again, which saves
//! the same tensors in the same order, until all places are filled; each node then takes its own. Gradients flow through the
//! nodes of the first run.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Error, Result, Stream, options, refuse};

use super::saved::{Pack, Saved, Unpack, check_version, with_pack};
use super::{enable_grad, is_grad_enabled, no_grad, pass};
use crate::autocast::{AutocastOptions, autocast_again, current_options};
use crate::caller::{CallLocation, outermost};
use crate::random::{DeviceGenerator, GeneratorState, SEED, made_generator};
use crate::tensor::Tensor;

options! {
    /// The options of a checkpointed function, with PyTorch's defaults.
    #[derive(Clone, Debug)]
    pub struct CheckpointOptions {
        /// Whether random numbers are drawn again: the states of the default generators of the inputs' devices, and of `generators`,
        /// are reset for the second run to those of the first, and restored after it.
        pub preserve_rng_state: bool = true,
        /// Other generators that the function draws from.
        pub generators: Vec<Arc<DeviceGenerator>> = Vec::new(),
        /// Whether it is an error if the second run saves tensors of other shapes, dtypes or devices than the first.
        pub determinism_check: bool = true,
        /// Whether the second run is stopped, by an error that the function must propagate, once it has saved all tensors that
        /// backward needs.
        pub early_stop: bool = true,
        /// A function that extends the message of an error about differences between the second run and the first.
        pub explain: Option<Explain> = None,
    }
}

/// A function that extends a message.
#[derive(Clone)]
pub struct Explain(pub Arc<dyn Fn(String) -> String + Send + Sync>);

impl fmt::Debug for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Explain")
    }
}

/// Runs a function of tensors without keeping the tensors that its operators save for backward: the backward pass runs it again
/// (`torch.utils.checkpoint.checkpoint`, not reentrant). This trades time for memory: a network that is cut into checkpointed
/// pieces keeps the inputs of the pieces, plus the tensors that one piece saves at a time.
///
/// Gradients have the same bits as without checkpointing if both runs compute the same: the function may depend only on its
/// inputs, on tensors that it holds and that are not written meanwhile, and on random numbers of generators
/// ([`CheckpointOptions`]). The autocast options of the first run are restored. The function must propagate errors (with `?`),
/// since an error ends it early if the rest is not needed. Tensors that the function holds in addition to `inputs` stay alive;
/// inputs of a checkpoint within a checkpoint do not. Both runs use the stream that is current now, asynchronously. Under
/// `no_grad` the function is only called.
///
/// # Errors
/// Those of the function. In the backward pass, [`Error::is_invalid_argument`] if the second run saves a different number of
/// tensors, or different ones, or if an input was written in place meanwhile.
#[track_caller]
pub fn checkpoint<T>(
    function: impl Fn(&[Tensor]) -> Result<T> + Send + Sync + 'static,
    inputs: &[Tensor],
) -> Result<T> {
    checkpoint_with(CheckpointOptions::default(), function, inputs)
}

/// Runs a function as [`checkpoint`] does, with options.
#[track_caller]
pub fn checkpoint_with<T>(
    options: CheckpointOptions,
    function: impl Fn(&[Tensor]) -> Result<T> + Send + Sync + 'static,
    inputs: &[Tensor],
) -> Result<T> {
    if !is_grad_enabled() {
        return function(inputs);
    }
    let function = Arc::new(function);
    let again = function.clone();
    let recompute = Box::new(move |inputs: &[Tensor]| again(inputs).map(drop));
    let frame = Arc::new(Frame::new(options, recompute, inputs, outermost(Location::caller()))?);
    let result = with_pack(place_pack(frame.clone()), || function(inputs));
    frame.is_complete.store(true, Ordering::Release);
    result
}

type Recompute = Box<dyn Fn(&[Tensor]) -> Result<()> + Send + Sync>;

/// One call of a checkpointed function.
struct Frame {
    options: CheckpointOptions,
    recompute: Recompute,
    /// The inputs, each with whether it requires a gradient: saved by the hooks of the surrounding region.
    inputs: Vec<(Saved, bool)>,
    stream: Option<Stream>,
    autocast: Option<AutocastOptions>,
    generators: Vec<(Arc<DeviceGenerator>, GeneratorState)>,
    /// The devices of inputs whose default generator did not exist yet, so that it started from the default seed.
    without_generator: SmallVec<[Device; 1]>,
    location: CallLocation,
    /// The places of the tensors that the first run saved, in their order.
    places: Mutex<Vec<Place>>,
    /// Whether the first run has ended: a backward pass within it finds fewer places than the second run fills.
    is_complete: AtomicBool,
    /// The tensors that a backward pass has computed again and not taken yet, by the pass.
    recomputed: Mutex<FxHashMap<u64, Vec<Option<Recomputed>>>>,
}

/// A saved tensor of the first run.
struct Place {
    /// The node's claim, which lives as long as the node may need the tensor.
    holder: Weak<Holder>,
    kind: TensorKind,
}

/// A node's claim to a tensor that is computed again.
struct Holder {
    frame: Arc<Frame>,
    place: usize,
}

#[derive(Clone, PartialEq, Debug)]
struct TensorKind {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl TensorKind {
    fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.shape().into(), dtype: tensor.dtype(), device: tensor.device().clone() }
    }

    fn describe(&self) -> String {
        format!("{:?} {} on {}", self.shape.as_slice(), self.dtype, self.device)
    }
}

/// A tensor that was computed again, with the version that it was saved with and the stream where it is ready.
struct Recomputed {
    tensor: Tensor,
    version: u32,
    stream: Stream,
}

/// Returns the hook of the first run, which keeps places instead of tensors.
fn place_pack(frame: Arc<Frame>) -> Pack {
    Arc::new(move |tensor| {
        let mut places = frame.places.lock();
        let holder = Arc::new(Holder { frame: frame.clone(), place: places.len() });
        places.push(Place { holder: Arc::downgrade(&holder), kind: TensorKind::of(tensor) });
        let unpack: Unpack = Arc::new(move || holder.frame.take(holder.place));
        Ok(Some(unpack))
    })
}

impl Frame {
    fn new(
        options: CheckpointOptions,
        recompute: Recompute,
        inputs: &[Tensor],
        location: CallLocation,
    ) -> Result<Self> {
        let mut generators: Vec<Arc<DeviceGenerator>> = Vec::new();
        let mut without_generator = SmallVec::new();
        if options.preserve_rng_state {
            let mut devices: SmallVec<[&Device; 2]> = SmallVec::new();
            for input in inputs {
                if !devices.contains(&input.device()) {
                    devices.push(input.device());
                }
            }
            for device in devices {
                match made_generator(device) {
                    Some(generator) => generators.push(generator),
                    None => without_generator.push(device.clone()),
                }
            }
            generators.extend(options.generators.iter().cloned());
        }
        let snapshot = |generator: Arc<DeviceGenerator>| -> Result<_> {
            let state = generator.snapshot()?;
            Ok((generator, state))
        };
        Ok(Self {
            options,
            recompute,
            inputs: (inputs.iter())
                .map(|input| Ok((Saved::new(input)?, input.requires_grad())))
                .collect::<Result<_>>()?,
            stream: inputs.first().map(|input| input.device().current_stream()),
            autocast: current_options(),
            generators: generators.into_iter().map(snapshot).collect::<Result<_>>()?,
            without_generator,
            location,
            places: Mutex::default(),
            is_complete: AtomicBool::new(false),
            recomputed: Mutex::default(),
        })
    }

    /// Returns the tensor of a place, ready on the current stream: computed again if this pass has not done so yet. A pass takes
    /// each tensor once.
    fn take(self: &Arc<Self>, place: usize) -> Result<Tensor> {
        let Some(number) = pass::number() else {
            // Outside a pass nothing is kept for other nodes.
            let tensors = self.run_again()?;
            return taken(tensors.into_iter().nth(place).flatten());
        };
        if !self.recomputed.lock().contains_key(&number) {
            let tensors = self.run_again()?;
            self.recomputed.lock().insert(number, tensors);
            let frame = Arc::downgrade(self);
            pass::at_end(move || {
                let frame = frame.upgrade();
                let _left = frame.and_then(|frame| frame.recomputed.lock().remove(&number));
            });
        }
        taken(
            (self.recomputed.lock().get_mut(&number))
                .and_then(|tensors| tensors.get_mut(place).and_then(Option::take)),
        )
    }

    /// Runs the function again, and returns the tensors that it saved for the nodes that may still need them.
    fn run_again(&self) -> Result<Vec<Option<Recomputed>>> {
        let _current = self.stream.as_ref().map(Stream::make_current);
        let inputs = (self.inputs.iter())
            .map(|(saved, requires_grad)| {
                let input = saved.get()?.detach();
                if *requires_grad { input.requires_grad_() } else { Ok(input) }
            })
            .collect::<Result<Vec<Tensor>>>()?;
        let run = Arc::new(Run::new(self));
        let outcome = self.with_generators(|| {
            let run = run.clone();
            let function = || with_pack(run.pack(), || (self.recompute)(&inputs));
            enable_grad(|| autocast_again(self.autocast, function))
        });
        let state = std::mem::take(&mut *run.state.lock());
        if !state.is_left {
            outcome?;
        }
        self.check(&run, &state)?;
        Ok(state.tensors)
    }

    /// Runs a function with the generators in the states of the first run, and restores their present states afterwards.
    fn with_generators(&self, function: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut present = Vec::new();
        for (generator, state) in &self.generators {
            present.push((generator.clone(), generator.snapshot()?));
            generator.restore(state)?;
        }
        for generator in self.without_generator.iter().filter_map(made_generator) {
            present.push((generator.clone(), generator.snapshot()?));
            generator.manual_seed(SEED)?;
        }
        let outcome = function();
        for (generator, state) in present {
            generator.restore(&state)?;
        }
        outcome
    }

    /// Refuses a second run whose saved tensors differ from those of the first, with PyTorch's message.
    fn check(&self, run: &Run, state: &RunState) -> Result<()> {
        let places = run.places.len();
        let at = |why: String| {
            let text = format!("checkpoint ({}): {why}", self.location);
            Err(Error::recomputation(match &self.options.explain {
                Some(Explain(explain)) => explain(text),
                None => text,
            }))
        };
        if state.count > places && self.is_complete.load(Ordering::Acquire) {
            return at(format!(
                "trying to save more tensors during recomputation than during the original forward pass ({} and {places})",
                state.count
            ));
        }
        if state.count < places {
            return at(format!(
                "A different number of tensors was saved during the original forward and recomputation. Number of tensors saved \
                 during forward: {places}. Number of tensors saved during recomputation: {}.",
                state.count
            ));
        }
        if state.differences.is_empty() || !self.options.determinism_check {
            return Ok(());
        }
        let list: Vec<String> = (state.differences.iter())
            .map(|(place, kind)| {
                format!(
                    "tensor at position {place}: saved metadata: {}, recomputed metadata: {}",
                    run.places[*place].1.describe(),
                    kind.describe()
                )
            })
            .collect();
        at(format!(
            "Recomputed values for the following tensors have different metadata than during the forward pass. {}",
            list.join("; ")
        ))
    }
}

/// Returns a tensor that was computed again, ready on the current stream.
fn taken(tensor: Option<Recomputed>) -> Result<Tensor> {
    let Some(Recomputed { tensor, version, stream }) = tensor else {
        refuse!("a saved tensor of a checkpointed function was asked for twice by one run of a node");
    };
    check_version(&tensor, version)?;
    let current = tensor.device().current_stream();
    if current != stream {
        current.wait_stream(&stream)?;
    }
    Ok(tensor)
}

/// A run of the function in a backward pass.
struct Run {
    /// For each tensor that the first run saved: whether a node may still need it, and its kind.
    places: Vec<(bool, TensorKind)>,
    early_stop: bool,
    state: Mutex<RunState>,
}

#[derive(Default)]
struct RunState {
    count: usize,
    tensors: Vec<Option<Recomputed>>,
    /// The places that differ from the first run.
    differences: Vec<(usize, TensorKind)>,
    /// Whether the function was stopped early because all tensors were saved.
    is_left: bool,
}

impl Run {
    fn new(frame: &Frame) -> Self {
        let places = frame.places.lock();
        let places = places.iter().map(|place| (place.holder.strong_count() > 0, place.kind.clone()));
        Self { places: places.collect(), early_stop: frame.options.early_stop, state: Mutex::default() }
    }

    /// Returns the hook of this run, which keeps the tensors.
    fn pack(self: Arc<Self>) -> Pack {
        Arc::new(move |tensor| {
            let mut state = self.state.lock();
            let place = state.count;
            state.count += 1;
            if let Some((is_wanted, kind)) = self.places.get(place) {
                let found = TensorKind::of(tensor);
                if found != *kind {
                    state.differences.push((place, found));
                }
                state.tensors.push(is_wanted.then(|| Recomputed {
                    tensor: tensor.clone(),
                    version: tensor.version(),
                    stream: tensor.device().current_stream(),
                }));
            }
            if self.early_stop && state.count == self.places.len() {
                state.is_left = true;
                refuse!("a checkpointed function has all that backward needs, and is left");
            }
            let tensor = tensor.clone();
            let unpack: Unpack = Arc::new(move || no_grad(|| Ok(tensor.clone())));
            Ok(Some(unpack))
        })
    }
}
