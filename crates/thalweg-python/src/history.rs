//! The history of a device's memory with Python stacks, for `thalweg.cuda.memory`.
//!
//! The interpreter lock is released while an operator runs, and its allocations must not wait for it. So while stacks are
//! recorded, each call of the layers below notes the Python stack before it releases the lock ([`noted`]), and a memory event
//! takes the stack that its thread noted. A tensor that the program drops is freed outside of such a call: if stacks of frees are
//! recorded, the drop notes its own stack ([`noted_at_drop`]).
//!
//! This module forms a circle with `failure`, `device`, `handle`, `convert` and `check`: every call enters and leaves through
//! `failure`, which notes its stack here; a device may be that of a check, whose labels are the lines of calls; and values become
//! tensors on a device.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustc_hash::FxHashMap;
use thalweg::memory::history::{
    ContextLevel, Enabled, HistorySettings, StackId, StackSource, set_user_metadata, user_metadata,
};
use thalweg::snapshot::{Action, Frame};
use thalweg_lock::{Mutex, MutexGuard};

use crate::device::or_current;
use crate::failure::run;
use crate::handle::{Held, PyTensor};
use crate::lines::innermost_frame;

/// Whether any history records stacks.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Whether any history records the stacks of frees.
static IS_WANTED_OF_FREES: AtomicBool = AtomicBool::new(false);

/// The maximum number of frames of a stack. Frames further out are left out.
const MOST_FRAMES: usize = 128;

thread_local! {
    /// The stack of the call that this thread runs.
    static CURRENT: Cell<Option<StackId>> = const { Cell::new(None) };
}

/// The noted stacks by their numbers. They grow with the program's code, not with time.
#[derive(Default)]
struct Stacks(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    texts: FxHashMap<String, Arc<str>>,
    ids: FxHashMap<Arc<[Frame]>, StackId>,
    stacks: Vec<Arc<[Frame]>>,
}

impl Stacks {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock()
    }
}

impl Kept {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let kept: Arc<str> = text.into();
        self.texts.insert(text.to_owned(), kept.clone());
        kept
    }

    fn id(&mut self, frames: Vec<Frame>) -> Option<StackId> {
        let frames: Arc<[Frame]> = frames.into();
        if let Some(&id) = self.ids.get(&frames) {
            return Some(id);
        }
        let id = StackId::new(u32::try_from(self.stacks.len() + 1).ok()?)?;
        self.stacks.push(frames.clone());
        self.ids.insert(frames, id);
        Some(id)
    }
}

impl StackSource for Stacks {
    fn capture(&self) -> Option<StackId> {
        CURRENT.get()
    }

    fn frames(&self, stack: StackId) -> Vec<Frame> {
        self.kept().stacks.get(stack.get() as usize - 1).map(|frames| frames.to_vec()).unwrap_or_default()
    }
}

/// The stacks of all devices.
static STACKS: LazyLock<Arc<Stacks>> = LazyLock::new(Arc::default);

/// A guard that restores the thread's former stack.
pub struct Noted(Option<StackId>);

impl Drop for Noted {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Notes the Python stack for the memory events that a call is about to cause, while any history records stacks.
pub fn noted(py: Python<'_>) -> Option<Noted> {
    if !IS_WANTED.load(Ordering::Relaxed) {
        return None;
    }
    let stack = walk(py).ok().and_then(|frames| STACKS.kept().id(frames));
    Some(Noted(CURRENT.replace(stack)))
}

/// Notes the Python stack for the free that a dropped tensor may cause, while any history records stacks of frees.
#[inline]
pub fn noted_at_drop() -> Option<Noted> {
    if !IS_WANTED_OF_FREES.load(Ordering::Relaxed) {
        return None;
    }
    Python::try_attach(|py| {
        // A tensor may be dropped while an exception is propagating, which reading a frame must not change.
        let raised = PyErr::take(py);
        let noted = noted(py);
        if let Some(raised) = raised {
            raised.restore(py);
        }
        noted
    })
    .flatten()
}

/// Returns the Python frames of the calling thread, innermost first.
fn walk(py: Python<'_>) -> PyResult<Vec<Frame>> {
    let mut frames = Vec::new();
    let Some(mut frame) = innermost_frame(py) else { return Ok(frames) };
    while !frame.is_none() && frames.len() < MOST_FRAMES {
        let code = frame.getattr("f_code")?;
        let (file, name) = (code.getattr("co_filename")?, code.getattr("co_name")?);
        let (file, name) = (file.cast::<PyString>()?.to_cow()?, name.cast::<PyString>()?.to_cow()?);
        let mut kept = STACKS.kept();
        let (filename, name) = (kept.text(&file), kept.text(&name));
        drop(kept);
        // A line is None where the bytecode has none.
        let line = frame.getattr("f_lineno")?.extract().unwrap_or(0);
        frames.push(Frame { filename, line, name });
        frame = frame.getattr("f_back")?;
    }
    Ok(frames)
}

/// Begins or ends the recording of a device's memory events. Words are passed as their positions in PyTorch's lists.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are PyTorch's")]
fn _record_memory_history(
    py: Python<'_>,
    device: Option<&Bound<'_, PyAny>>,
    enabled: u8,
    context: u8,
    max_entries: u64,
    clear_history: bool,
    compile_context: bool,
    record_annotations: bool,
    skip_actions: Vec<String>,
) -> PyResult<()> {
    let device = or_current(py, device)?;
    let skipped = skip_actions
        .iter()
        .map(|name| {
            Action::from_name(name)
                .ok_or_else(|| PyValueError::new_err(format!("skip_actions: there is no action `{name}`")))
        })
        .collect::<PyResult<_>>()?;
    let settings = HistorySettings {
        enabled: [Enabled::Off, Enabled::State, Enabled::All][usize::from(enabled.min(2))],
        context: [ContextLevel::Never, ContextLevel::State, ContextLevel::Alloc, ContextLevel::All]
            [usize::from(context.min(3))],
        max_entries: usize::try_from(max_entries).unwrap_or(usize::MAX).max(1),
        skip_actions: skipped,
        clear_history,
        compile_context,
        record_annotations,
    };
    if settings.enabled != Enabled::Off && settings.context != ContextLevel::Never {
        IS_WANTED.store(true, Ordering::Relaxed);
        IS_WANTED_OF_FREES.store(context == 3, Ordering::Relaxed);
    }
    run(py, || {
        // A device that already has a source keeps it: it is this same one.
        let _kept = device.allocator().set_stack_source(STACKS.clone());
        device.allocator().record_memory_history(settings);
        Ok(())
    })
}

/// Stops noting stacks, because no history records them any more.
#[pyfunction]
fn _forget_stacks() {
    IS_WANTED.store(false, Ordering::Relaxed);
    IS_WANTED_OF_FREES.store(false, Ordering::Relaxed);
}

/// Sets the text that is attached to events of this thread.
#[pyfunction]
fn _set_memory_metadata(text: &str) {
    set_user_metadata(text);
}

/// Returns the text that is attached to events of this thread.
#[pyfunction]
fn _get_memory_metadata() -> String {
    user_metadata().to_string()
}

/// Attaches a text to the memory of a tensor in the history. Returns whether the history contains that memory.
#[pyfunction]
fn _annotate_tensor(py: Python<'_>, tensor: &Bound<'_, PyTensor>, text: &str) -> PyResult<bool> {
    let tensor = tensor.tensor();
    run(py, || {
        let address = tensor.pointer().address();
        Ok(tensor.device().allocator().annotate(address, text))
    })
}

/// Changes settings of a device's allocator from a text in the format of `PYTORCH_CUDA_ALLOC_CONF`. Settings that the text does
/// not name are kept, except for those that PyTorch resets with each text.
#[pyfunction]
fn _set_allocator_settings(py: Python<'_>, text: &str, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    let anew = ["max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold"];
    let settings = anew
        .iter()
        .try_fold(device.allocator().settings(), |settings, key| settings.without(key))
        .and_then(|settings| settings.apply(text))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    run(py, || {
        let set = device.allocator().set_settings(settings);
        set.map_err(|error| thalweg::Error::invalid(error.to_string()))
    })
}

/// Adds the functions to the module of streams and graphs.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![own;
        _record_memory_history, _forget_stacks, _set_memory_metadata, _get_memory_metadata,
        _annotate_tensor, _set_allocator_settings
    ];
    Ok(())
}
