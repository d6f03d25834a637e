//! [`KeptCast`]: the 16-bit cast of a parameter from one region to the next.
//!
//! An optimizer that writes a parameter in f32 has its value in registers: it stores the cast as well, for two bytes per element, and
//! the next region takes that in place of reading four and writing two. A cast is kept only of a parameter that an optimizer asks for, from the
//! first region that makes it, and dropped where a step comes that no region has read it before.
//!
//! # When a kept cast is taken
//! Where it has the dtype of the region, and nothing can have written the parameter since: its version is the one that was noted, no
//! graph was replayed (a replay writes without the host's knowledge), and no other library knows its memory. What a region has cast is taken on
//! the stream that it was cast on alone; what an optimizer has written is ordered as the parameter is. A capture neither takes
//! kept casts nor makes any: a replay would read what holds no more.
//!
//! A node that has saved a cast for its backward pass keeps it: then the optimizer writes the next one to other memory.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use rustc_hash::FxHashMap;
use thalweg_ir::DType;
use thalweg_runtime::{Result, Stream};

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
    /// The stream that a region cast it on; `None` where the optimizer wrote it.
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
    /// or the stream captures. Then nothing is kept any more. Call [`written`](Self::written) behind the launch.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn to_write(&self) -> Result<Option<Tensor>> {
        let mut slot = self.lock();
        let Some(state) = slot.take() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        if !state.is_read || state.cast.shape() != self.parameter.shape() || stream.is_capturing()? {
            return Ok(None);
        }
        let is_ours = Arc::strong_count(&state.cast.0) == 1 && Arc::strong_count(state.cast.storage()) == 1;
        if is_ours {
            state.cast.record_stream(&stream);
            return Ok(Some(state.cast));
        }
        Tensor::empty(state.cast.shape(), state.cast.dtype(), state.cast.device()).map(Some)
    }

    /// Notes that a launch of an optimizer has written the parameter, whose version says so, and this cast of it.
    pub fn written(&self, cast: Tensor) {
        let (version, replays) = (self.parameter.version(), self.parameter.device().replays());
        *self.lock() = Some(State { cast, version, replays, stream: None, is_read: false });
    }

    /// Returns the cast for work on the current stream, if it is that of the parameter as it is now.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn get(&self, dtype: DType) -> Result<Option<Tensor>> {
        let mut slot = self.lock();
        let Some(state) = slot.as_mut() else { return Ok(None) };
        let stream = self.parameter.device().current_stream();
        let is_right = state.cast.dtype() == dtype
            && state.cast.shape() == self.parameter.shape()
            && state.version == self.parameter.version()
            && state.replays == stream.device().replays()
            && state.stream.as_ref().is_none_or(|made_on| *made_on == stream)
            && !self.parameter.storage().is_exported();
        if !is_right || stream.is_capturing()? {
            // A cast that is made anew takes its place; of a capture none does.
            *slot = None;
            return Ok(None);
        }
        state.is_read = true;
        state.cast.record_stream(&stream);
        Ok(Some(state.cast.detach()))
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

impl Drop for KeptCast {
    fn drop(&mut self) {
        let mut all = KEPT.write().unwrap_or_else(PoisonError::into_inner);
        // Another may have been made for the parameter since.
        if all.get(&self.parameter.identity()).is_some_and(|kept| kept.strong_count() == 0) {
            all.remove(&self.parameter.identity());
        }
    }
}
