//! The modes of recording, each per thread: `no_grad`, `enable_grad`, and inference mode.

use thalweg_runtime::Result;

use crate::dispatch::{DispatchKey, ModeGuard, is_excluded, is_inference, set_excluded, set_inference};
use crate::scoped::{Guard, Replaced, nothing_replaced};

/// A guard: while it lives, operators of this thread record nothing (`with torch.no_grad():`). Guards may be dropped in any order.
///
/// ```
/// # use thalweg_ir::DType;
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{NoGrad, Tensor};
/// # fn main() -> Result<()> {
/// # let device = Device::sim(0)?;
/// let weight = Tensor::ones(&[2], DType::F32, &device)?.requires_grad_()?;
/// {
///     let _no_grad = NoGrad::new();
///     weight.add_scalar_(1.0)?;
/// }
/// # assert_eq!(weight.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[must_use = "operators record nothing only while the guard lives"]
pub struct NoGrad {
    _recording: Recording,
}

/// A guard of whether operators are recorded.
struct Recording(Guard<bool>);

thread_local! {
    /// For each guard, whether operators were recorded.
    static REPLACED: Replaced<bool> = const { nothing_replaced() };
}

impl NoGrad {
    /// Stops recording.
    #[allow(clippy::new_without_default, reason = "a guard without a name would be dropped at once")]
    pub fn new() -> Self {
        Self { _recording: Recording::set(false) }
    }
}

impl Recording {
    fn set(enabled: bool) -> Self {
        Self(Guard::new(&REPLACED, set_grad_enabled(enabled)))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.end().map(set_grad_enabled);
    }
}

/// Runs a function that may fail and whose operators record nothing: like [`no_grad`], but the type of its result need not be
/// annotated.
///
/// ```
/// # use thalweg_ir::DType;
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, try_no_grad};
/// # fn main() -> Result<()> {
/// # let device = Device::sim(0)?;
/// # let weight = Tensor::ones(&[2], DType::F32, &device)?.requires_grad_()?;
/// try_no_grad(|| {
///     weight.add_scalar_(1.0)?;
///     Ok(())
/// })?;
/// # assert_eq!(weight.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub fn try_no_grad<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    no_grad(function)
}

/// Runs a function whose operators record nothing (`torch.no_grad`). [`NoGrad`] is a guard that does the same.
pub fn no_grad<T>(function: impl FnOnce() -> T) -> T {
    let _recording = Recording::set(false);
    function()
}

/// Runs a function whose operators are recorded, within `no_grad` too (`torch.enable_grad`). In inference mode nothing is
/// recorded even so.
pub fn enable_grad<T>(function: impl FnOnce() -> T) -> T {
    let _recording = Recording::set(true);
    function()
}

/// Sets whether operators of this thread are recorded from now on (`torch.set_grad_enabled`), and returns whether they were. For
/// code that cannot nest functions as [`no_grad`] does, such as a context manager of another language.
pub fn set_grad_enabled(enabled: bool) -> bool {
    !set_excluded(DispatchKey::Autograd, !enabled)
}

/// Returns whether operators of this thread are recorded. In inference mode they are not.
pub fn is_grad_enabled() -> bool {
    !is_excluded(DispatchKey::Autograd) && !is_inference()
}

/// Runs a function in inference mode (`torch.inference_mode`): its operators record nothing, and the memory that it allocates is
/// marked, so that autograd refuses tensors over it outside inference mode: there they cannot be saved for backward, written in
/// place, or made to require a gradient. A clone made outside is an ordinary tensor.
///
/// Tensors from outside can be read and written; their views are not marked.
pub fn inference_mode<T>(function: impl FnOnce() -> T) -> T {
    set_inference_mode(true, function)
}

/// Runs a function in inference mode or, with `false`, in a region where inference mode is off and operators are recorded
/// (`torch.inference_mode(mode)`).
pub fn set_inference_mode<T>(enabled: bool, function: impl FnOnce() -> T) -> T {
    let _guard = ModeGuard::inference(enabled);
    function()
}

/// Sets whether this thread is in inference mode from now on, and returns whether it was. For code that cannot nest functions as
/// [`inference_mode`] does. Does not change whether operators are recorded outside inference mode.
pub fn set_inference_mode_enabled(enabled: bool) -> bool {
    set_inference(enabled)
}

/// Returns whether this thread is in inference mode (`torch.is_inference_mode_enabled`).
pub fn is_inference_mode_enabled() -> bool {
    is_inference()
}
