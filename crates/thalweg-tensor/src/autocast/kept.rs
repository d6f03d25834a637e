//! [`KeptCast`]: the 16-bit cast of a parameter that is kept from one region to the next.
//!
//! An optimizer that writes a parameter in f32 has its value in registers: it stores the cast as well, which writes two bytes per
//! element, and saves the next region reading four and writing two. A cast is kept only for a parameter for which an optimizer
//! requests it, from the first region that makes it. It is dropped at a step if no region has read it since the previous one.
//!
//! # When a kept cast is used
//! A kept cast is used if it has the dtype of the region, and nothing can have written the parameter since: its version is
//! unchanged, no graph was replayed (a replay writes without the host's knowledge), and no other library has its address. A cast
//! made by a region is used only on the stream on which it was made; a cast written by an optimizer is ordered like the
//! parameter.
//!
//! # Captures
//! A captured region keeps no new cast, but uses an existing one, and a captured step writes it. The graph keeps its memory
//! alive, and ensures that the cast is valid before each replay ([`Upkeep`]): the parameter is cast again, into the same memory,
//! if something else has written it since. In a conditional node's body no kept cast is used.
//!
//! A node that has saved a cast for its backward pass keeps it: the optimizer then writes the next cast to other memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use rustc_hash::FxHashMap;
use thalweg_ir::DType;
use thalweg_lock::{Mutex, RwLock};
use thalweg_runtime::graph::Upkeep;
use thalweg_runtime::{Result, Stream};

use crate::autograd::no_grad;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// The 16-bit cast of a parameter that lasts from one region of [`autocast`](super::autocast) to the next. See the module's
/// source for when it is used.
#[derive(Debug)]
pub struct KeptCast {
    parameter: Tensor,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    /// The cast: outside the autograd graph and contiguous.
    cast: Tensor,
    /// The version of the parameter from which the cast was made.
    version: u32,
    /// The number of replays on the device when the cast was made.
    replays: u64,
    /// The stream on which a region or a replay made the cast; `None` if the optimizer wrote it.
    stream: Option<Stream>,
    /// Whether a region has made or used the cast since the last step.
    is_read: bool,
}

/// The kept casts by the identities of their parameters, which the casts keep alive.
static KEPT: LazyLock<RwLock<FxHashMap<usize, Weak<KeptCast>>>> = LazyLock::new(RwLock::default);

impl KeptCast {
    /// Returns the kept cast of a parameter for as long as the result lives; all calls for one parameter return the same one.
    /// `None` for a tensor that regions do not cast: one of a dtype other than f32.
    pub fn of(parameter: &Tensor) -> Option<Arc<Self>> {
        if parameter.dtype() != DType::F32 {
            return None;
        }
        let mut all = KEPT.write();
        let slot = all.entry(parameter.identity()).or_default();
        Some(slot.upgrade().unwrap_or_else(|| {
            let kept = Arc::new(Self { parameter: parameter.clone(), state: Mutex::default() });
            *slot = Arc::downgrade(&kept);
            kept
        }))
    }

    /// Returns the kept cast of a tensor, if an optimizer has requested one.
    pub(super) fn find(tensor: &Tensor) -> Option<Arc<Self>> {
        let all = KEPT.read();
        all.get(&tensor.identity())?.upgrade()
    }

    /// Returns the cast that the launch of an optimizer on the current stream is to write. Returns `None`, and drops the kept
    /// cast, if no region has read one since the last step, or if a stream is capturing that cannot use it. Call
    /// [`written`](Self::written) after the launch.
    pub fn to_write(self: &Arc<Self>) -> Result<Option<Tensor>> {
        let mut slot = self.state.lock();
        let Some(state) = slot.take() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        if !state.is_read || state.cast.shape() != self.parameter.shape() {
            return Ok(None);
        }
        // A node that has saved the cast, or a region that holds it, has another tensor over its memory.
        let is_ours = Storage::holders(state.cast.storage()) == 1;
        if stream.is_capturing()? {
            let is_taken = is_ours && self.is_now(&state) && self.keep_up(&state.cast, &stream);
            return Ok(is_taken.then_some(state.cast));
        }
        if is_ours {
            state.cast.record_stream(&stream);
            return Ok(Some(state.cast));
        }
        Tensor::empty(state.cast.shape(), state.cast.dtype(), state.cast.device()).map(Some)
    }

    /// Records that a launch of an optimizer has written this cast and the parameter, whose version already counts the write.
    pub fn written(&self, cast: Tensor) {
        let (version, replays) = (self.parameter.writes(), self.parameter.device().replays());
        *self.state.lock() = Some(State { cast, version, replays, stream: None, is_read: false });
    }

    /// Returns the cast for work on the current stream, if it matches the parameter's present value.
    pub(super) fn get(self: &Arc<Self>, dtype: DType) -> Result<Option<Tensor>> {
        let mut slot = self.state.lock();
        let Some(state) = slot.as_mut() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        let fits = state.cast.dtype() == dtype && self.is_now(state);
        let is_ready = match stream.is_capturing()? {
            // A capture begins when all work is done, and a replay waits for later work.
            true => fits && self.keep_up(&state.cast, &stream),
            false => fits && state.stream.as_ref().is_none_or(|made_on| *made_on == stream),
        };
        if !is_ready {
            // A new cast will replace this one, except in a capture.
            *slot = None;
            return Ok(None);
        }
        state.is_read = true;
        state.cast.record_stream(&stream);
        Ok(Some(state.cast.detach()))
    }

    /// Returns whether a cast matches the parameter's present value, as far as the host knows.
    fn is_now(&self, state: &State) -> bool {
        state.cast.shape() == self.parameter.shape()
            && state.version == self.parameter.writes()
            && state.replays == self.parameter.device().replays()
            && !self.parameter.storage().is_exported()
    }

    /// Registers a cast for upkeep by the graph that a stream is capturing, and returns whether the graph accepts it.
    fn keep_up(self: &Arc<Self>, cast: &Tensor, stream: &Stream) -> bool {
        stream.keep_up(cast.identity(), || {
            let (kept, cast) = (self.clone(), cast.clone());
            Arc::new(CapturedCast { kept, cast, stays_right: AtomicBool::new(false) })
        })
    }

    /// Keeps a cast that a region has made on the current stream, of the parameter with this version.
    pub(super) fn put(&self, cast: &Tensor, version: u32) -> Result<()> {
        let stream = cast.device().current_stream();
        let is_plain =
            cast.is_contiguous() && !cast.is_inference() && !self.parameter.storage().is_exported();
        if is_plain && !stream.is_capturing()? {
            let (cast, replays, stream) = (cast.detach(), stream.device().replays(), Some(stream));
            *self.state.lock() = Some(State { cast, version, replays, stream, is_read: true });
        }
        Ok(())
    }
}

/// A cast that a graph reads or writes.
#[derive(Debug)]
struct CapturedCast {
    kept: Arc<KeptCast>,
    cast: Tensor,
    /// Whether the cast is still valid after a replay, if it was valid before.
    stays_right: AtomicBool,
}

impl CapturedCast {
    /// Records that the cast is valid on a stream.
    fn set_right(&self, slot: &mut Option<State>, stream: &Stream) {
        let (parameter, cast) = (&self.kept.parameter, self.cast.clone());
        let (version, replays) = (parameter.writes(), stream.device().replays());
        *slot = Some(State { cast, version, replays, stream: Some(stream.clone()), is_read: true });
    }
}

impl Upkeep for CapturedCast {
    fn captured(&self) {
        // All captured writes of the parameter also wrote the cast, or there were none.
        let slot = self.kept.state.lock();
        let stays_right =
            slot.as_ref().is_some_and(|state| state.cast.is_same(&self.cast) && self.kept.is_now(state));
        self.stays_right.store(stays_right, Ordering::Release);
    }

    fn before_replay(&self, stream: &Stream) -> Result<()> {
        let mut slot = self.kept.state.lock();
        self.cast.record_stream(stream);
        if let Some(state) =
            slot.as_ref().filter(|state| state.cast.is_same(&self.cast) && self.kept.is_now(state))
        {
            return match &state.stream {
                Some(made_on) if made_on != stream => stream.wait_stream(made_on),
                _ => Ok(()),
            };
        }
        let _current = stream.make_current();
        no_grad(|| self.cast.copy_(&self.kept.parameter.detach()))?;
        self.set_right(&mut slot, stream);
        Ok(())
    }

    fn after_replay(&self, stream: &Stream) {
        let mut slot = self.kept.state.lock();
        if self.stays_right.load(Ordering::Acquire) {
            self.set_right(&mut slot, stream);
        }
    }
}

impl Drop for KeptCast {
    fn drop(&mut self) {
        let mut all = KEPT.write();
        // Another kept cast may have been made for the parameter since.
        if all.get(&self.parameter.identity()).is_some_and(|kept| kept.strong_count() == 0) {
            all.remove(&self.parameter.identity());
        }
    }
}
