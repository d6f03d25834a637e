//! [`KeptCast`]: the 16-bit cast of a parameter from one region to the next.
//!
//! An optimizer that writes a parameter in f32 has its value in registers: it stores the cast as well, for two bytes per element, and
//! the next region takes that in place of reading four and writing two. A cast is kept only of a parameter that an optimizer asks for, from the
//! first region that makes it, and dropped where a step comes that no region has read it before.
//!
//! # When a kept cast is taken
//! Where it has the dtype of the region, and nothing can have written the parameter since: its version is the one that was noted, no
//! graph was replayed (a replay writes without the host's knowledge), and no other library knows its memory. What a region has cast is taken on
//! the stream that it was cast on alone; what an optimizer has written is ordered as the parameter is.
//!
//! # Captures
//! A region that is captured makes no cast that is kept, but takes one that is there, and a captured step writes it. The graph keeps its memory,
//! and sees to it that the cast is right in front of each replay ([`Upkeep`]): it is cast again, into its place, where something else
//! has written the parameter since. In a conditional node's body nothing is taken.
//!
//! A node that has saved a cast for its backward pass keeps it: then the optimizer writes the next one to other memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use rustc_hash::FxHashMap;
use thalweg_ir::DType;
use thalweg_runtime::graph::Upkeep;
use thalweg_runtime::{Result, Stream};

use crate::autograd::no_grad;
use crate::tensor::Tensor;

/// The 16-bit cast of a parameter that lasts from one region of [`autocast`](super::autocast) to the next. See the
/// module's source for when it is taken.
#[derive(Debug)]
pub struct KeptCast {
    parameter: Tensor,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    /// Outside the graph, contiguous.
    cast: Tensor,
    /// The version of the parameter that it is the cast of.
    version: u32,
    /// The number of replays on the device until then.
    replays: u64,
    /// The stream that a region or a replay left it on; `None` where the optimizer wrote it.
    stream: Option<Stream>,
    /// Whether a region has made or taken it since the last step.
    is_read: bool,
}

/// The kept casts by the identities of their parameters, which they hold.
static KEPT: LazyLock<RwLock<FxHashMap<usize, Weak<KeptCast>>>> = LazyLock::new(RwLock::default);

impl KeptCast {
    /// Returns the kept cast of a parameter for as long as the result lives; all that ask for one parameter get the same. `None` of a
    /// tensor that regions do not cast: a dtype other than f32.
    pub fn of(parameter: &Tensor) -> Option<Arc<Self>> {
        if parameter.dtype() != DType::F32 {
            return None;
        }
        let mut all = KEPT.write().unwrap_or_else(PoisonError::into_inner);
        let slot = all.entry(parameter.identity()).or_default();
        Some(slot.upgrade().unwrap_or_else(|| {
            let kept = Arc::new(Self { parameter: parameter.clone(), state: Mutex::default() });
            *slot = Arc::downgrade(&kept);
            kept
        }))
    }

    /// Returns what is kept of a tensor, if anything asks for that.
    pub(super) fn find(tensor: &Tensor) -> Option<Arc<Self>> {
        let all = KEPT.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&tensor.identity())?.upgrade()
    }

    /// Returns the cast that the launch of an optimizer on the current stream is to write: none where no region has read one since the last step,
    /// or a stream captures that cannot take it. Then nothing is kept any more. Call [`written`](Self::written) behind the launch.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn to_write(self: &Arc<Self>) -> Result<Option<Tensor>> {
        let mut slot = self.lock();
        let Some(state) = slot.take() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        if !state.is_read || state.cast.shape() != self.parameter.shape() {
            return Ok(None);
        }
        // What a node has saved of it, or a region holds, is another tensor over its memory.
        let is_ours = Arc::strong_count(state.cast.storage()) == 1;
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

    /// Notes that a launch of an optimizer has written the parameter, whose version says so, and this cast of it.
    pub fn written(&self, cast: Tensor) {
        let (version, replays) = (self.parameter.writes(), self.parameter.device().replays());
        *self.lock() = Some(State { cast, version, replays, stream: None, is_read: false });
    }

    /// Returns the cast for work on the current stream, if it is that of the parameter as it is now.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn get(self: &Arc<Self>, dtype: DType) -> Result<Option<Tensor>> {
        let mut slot = self.lock();
        let Some(state) = slot.as_mut() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        let fits = state.cast.dtype() == dtype && self.is_now(state);
        let is_ready = match stream.is_capturing()? {
            // A capture begins when all work is done, and a replay waits for what comes later.
            true => fits && self.keep_up(&state.cast, &stream),
            false => fits && state.stream.as_ref().is_none_or(|made_on| *made_on == stream),
        };
        if !is_ready {
            // A cast that is made anew takes its place; of a capture none does.
            *slot = None;
            return Ok(None);
        }
        state.is_read = true;
        state.cast.record_stream(&stream);
        Ok(Some(state.cast.detach()))
    }

    /// Returns whether a cast is that of the parameter as it is now, by all that the host knows.
    fn is_now(&self, state: &State) -> bool {
        state.cast.shape() == self.parameter.shape()
            && state.version == self.parameter.writes()
            && state.replays == self.parameter.device().replays()
            && !self.parameter.storage().is_exported()
    }

    /// Lets the graph that a stream captures look after a cast, and returns whether it will.
    fn keep_up(self: &Arc<Self>, cast: &Tensor, stream: &Stream) -> bool {
        stream.keep_up(cast.identity(), || {
            let (kept, cast) = (self.clone(), cast.clone());
            Arc::new(CapturedCast { kept, cast, stays_right: AtomicBool::new(false) })
        })
    }

    /// Keeps a cast that a region has made on the current stream, of the parameter with this version.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn put(&self, cast: &Tensor, version: u32) -> Result<()> {
        let stream = cast.device().current_stream();
        let is_plain =
            cast.is_contiguous() && !cast.is_inference() && !self.parameter.storage().is_exported();
        if is_plain && !stream.is_capturing()? {
            let (cast, replays, stream) = (cast.detach(), stream.device().replays(), Some(stream));
            *self.lock() = Some(State { cast, version, replays, stream, is_read: true });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cast that a graph reads or writes.
#[derive(Debug)]
struct CapturedCast {
    kept: Arc<KeptCast>,
    cast: Tensor,
    /// Whether it is right behind a replay if it was in front of it.
    stays_right: AtomicBool,
}

impl CapturedCast {
    /// Notes that the cast is right on a stream.
    fn set_right(&self, slot: &mut Option<State>, stream: &Stream) {
        let (parameter, cast) = (&self.kept.parameter, self.cast.clone());
        let (version, replays) = (parameter.writes(), stream.device().replays());
        *slot = Some(State { cast, version, replays, stream: Some(stream.clone()), is_read: true });
    }
}

impl Upkeep for CapturedCast {
    fn captured(&self) {
        // All captured writes of the parameter wrote the cast as well, or there was none.
        let slot = self.kept.lock();
        let stays_right =
            slot.as_ref().is_some_and(|state| state.cast.is_same(&self.cast) && self.kept.is_now(state));
        self.stays_right.store(stays_right, Ordering::Release);
    }

    fn before_replay(&self, stream: &Stream) -> Result<()> {
        let mut slot = self.kept.lock();
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
        let mut slot = self.kept.lock();
        if self.stays_right.load(Ordering::Acquire) {
            self.set_right(&mut slot, stream);
        }
    }
}

impl Drop for KeptCast {
    fn drop(&mut self) {
        let mut all = KEPT.write().unwrap_or_else(PoisonError::into_inner);
        // Another may have been made for the parameter since.
        if all.get(&self.parameter.identity()).is_some_and(|kept| kept.strong_count() == 0) {
            all.remove(&self.parameter.identity());
        }
    }
}
