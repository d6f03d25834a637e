//! [`ActivationOffload`]: saved tensors are kept in pinned host memory, and the copy engines move them there and back during the
//! computation.
//!
//! ```text
//! forward:   compute 0 | compute 1 | compute 2          backward:  compute 2 | compute 1 | compute 0
//! out:               0 →         1 →         2 →        back:    2 →       1 →       0 →
//! ```
//!
//! A copy out follows the work that the operator's stream has when it saves the tensor. Its use is recorded precisely, so the
//! memory is free as soon as the copy is done. A copy back goes into memory of its own stream, and is started some tensors before
//! its use.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Device, Event, Result, Stream, options};
use thalweg_tensor::autograd::saved_tensors_hooks_for;
use thalweg_tensor::{HostTensor, Tensor, no_grad};

options! {
    /// The options of an [`ActivationOffload`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct OffloadOptions {
        /// The minimum size of tensors that are moved; smaller ones stay on the device. The default is 1 KiB.
        pub min_bytes: usize = 1024,
        /// The number of copies out that may be in progress; the default is 2. A forward pass that is further ahead *blocks*, since
        /// the memory is not free yet.
        pub in_flight: usize = 2,
        /// The number of tensors that are copied back before they are used, the last saved first; the default is 2.
        pub prefetch: usize = 2,
    }
}

/// A mover of tensors that are saved for the backward pass: it copies them to host memory and back on its own streams. Parameters
/// stay where they are.
///
/// Around modules of [`fully_shard`](crate::fully_shard) it moves everything but the gathered parameters, of which those modules
/// save notes.
#[derive(Debug)]
pub struct ActivationOffload {
    shared: Arc<Shared>,
    parameters: Arc<[Tensor]>,
}

#[derive(Debug)]
struct Shared {
    device: Device,
    options: OffloadOptions,
    out: Stream,
    back: Stream,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    /// The tensors that are still needed, in the order in which they were saved.
    saved: Vec<Weak<Saved>>,
    /// The copies out that may be in progress.
    leaving: VecDeque<Arc<Event>>,
}

/// A tensor in host memory.
#[derive(Debug)]
struct Saved {
    shared: Arc<Shared>,
    host: HostTensor,
    /// The event after the copy out.
    left: Arc<Event>,
    returned: Mutex<Option<Returned>>,
}

/// A tensor that is being copied back.
#[derive(Debug)]
struct Returned {
    tensor: Tensor,
    arrived: Event,
}

impl ActivationOffload {
    /// Creates the streams. Tensors that share memory with a parameter are never moved, because the module keeps them on the
    /// device anyway.
    pub fn new(device: &Device, parameters: &[Tensor], options: OffloadOptions) -> Result<Self> {
        let (out, back) = (Stream::new(device)?, Stream::new(device)?);
        let shared = Shared { device: device.clone(), options, out, back, state: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), parameters: parameters.into() })
    }

    /// Runs a forward pass whose operators save tensors for backward in host memory. During a capture they stay on the device.
    ///
    /// # Errors
    /// Those of the pass, among them [`Error::is_out_of_memory`](thalweg_runtime::Error::is_out_of_memory) if the host has no
    /// pinned memory.
    pub fn run<T>(&self, forward: impl FnOnce() -> Result<T>) -> Result<T> {
        let (shared, parameters) = (self.shared.clone(), self.parameters.clone());
        let pack = move |tensor: &Tensor| {
            let is_moved = tensor.device() == &shared.device
                && tensor.elements() * tensor.dtype().size_bytes() >= shared.options.min_bytes
                && !parameters.iter().any(|parameter| parameter.shares_storage_with(tensor))
                && !shared.device.current_stream().is_capturing()?;
            is_moved.then(|| no_grad(|| Saved::new(&shared, tensor))).transpose()
        };
        saved_tensors_hooks_for(pack, |saved: &Arc<Saved>| saved.tensor(), forward)
    }

    /// Returns how many tensors are in host memory and still needed.
    pub fn saved(&self) -> usize {
        let mut state = self.shared.state();
        state.saved.retain(|saved| saved.strong_count() > 0);
        state.saved.len()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until another copy out may start, and adds its event.
    fn wait_for_room(&self, left: &Arc<Event>) -> Result<()> {
        let oldest = {
            let mut state = self.state();
            state.leaving.push_back(left.clone());
            let is_full = state.leaving.len() > self.options.in_flight.max(1);
            if is_full { state.leaving.pop_front() } else { None }
        };
        oldest.map_or(Ok(()), |oldest| oldest.synchronize())
    }

    /// Starts to copy back the tensors that were saved before one.
    fn prefetch(&self, saved: &Arc<Saved>) -> Result<()> {
        let before: Vec<Arc<Saved>> = {
            let mut state = self.state();
            state.saved.retain(|other| other.strong_count() > 0);
            let own = Arc::as_ptr(saved);
            let place = state.saved.iter().position(|other| other.as_ptr() == own).unwrap_or(0);
            state.saved[..place].iter().rev().take(self.options.prefetch).filter_map(Weak::upgrade).collect()
        };
        before.iter().try_for_each(|other| other.starts_back().map(drop))
    }
}

impl Saved {
    /// Copies a tensor to the host.
    fn new(shared: &Arc<Shared>, tensor: &Tensor) -> Result<Arc<Self>> {
        let source = tensor.detach().contiguous()?;
        let host = HostTensor::pinned(source.shape(), source.dtype(), &shared.device)?;
        let left = Arc::new(Event::new());
        shared.out.wait_stream(&shared.device.current_stream())?;
        {
            let _out = shared.out.make_current();
            source.copy_to_pinned(&host)?;
        }
        source.record_use(&shared.out);
        left.record(&shared.out)?;
        shared.wait_for_room(&left)?;
        let saved = Arc::new(Self { shared: shared.clone(), host, left, returned: Mutex::default() });
        shared.state().saved.push(Arc::downgrade(&saved));
        Ok(saved)
    }

    fn returned(&self) -> MutexGuard<'_, Option<Returned>> {
        self.returned.lock()
    }

    /// Starts the copy back, if it has not been started.
    fn starts_back(&self) -> Result<MutexGuard<'_, Option<Returned>>> {
        let mut returned = self.returned();
        if returned.is_none() {
            let back = &self.shared.back;
            back.wait_event(&self.left)?;
            let tensor = {
                let _back = back.make_current();
                no_grad(|| self.host.to_device())?
            };
            let arrived = Event::new();
            arrived.record(back)?;
            *returned = Some(Returned { tensor, arrived });
        }
        Ok(returned)
    }

    /// Returns the tensor for work of the current stream.
    fn tensor(self: &Arc<Self>) -> Result<Tensor> {
        let tensor = {
            let returned = self.starts_back()?;
            let returned = returned.as_ref().expect("it was started above");
            let current = self.shared.device.current_stream();
            current.wait_event(&returned.arrived)?;
            // The tensor is used until the node is done with it and drops it.
            returned.tensor.record_stream(&current);
            returned.tensor.clone()
        };
        self.shared.prefetch(self)?;
        Ok(tensor)
    }
}
