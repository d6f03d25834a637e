//! Whether operators must produce the same bits for the same operands on one device (`torch.use_deterministic_algorithms`).
//!
//! Nearly all operators always do. In this mode, the gradient of attention is never computed by
//! [`Cudnn`](crate::sdp::SdpBackend::Cudnn), convolutions use engines of cuDNN that repeat their bits, sums of floats at indices
//! are added in a fixed order instead of by atomic additions, and memory that is allocated without being written is
//! [filled](set_fill_uninitialized_memory), so that a program that reads it repeats its bits as well. The library refuses none of
//! its operators; a program's own operator that has no deterministic form reports it with
//! [`alert_not_deterministic`].
//!
//! These settings are per process.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use thalweg_runtime::{Error, Result};

use crate::warning::warn;

/// The treatment of an operator without a deterministic form (`torch.set_deterministic_debug_mode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DeterministicDebugMode {
    /// The operator runs, and the others need not repeat their bits: the initial mode.
    Default = 0,
    /// The operator runs, with a warning on the standard error.
    Warn = 1,
    /// The operator returns an error.
    Error = 2,
}

static MODE: AtomicU8 = AtomicU8::new(DeterministicDebugMode::Default as u8);
static FILLS: AtomicBool = AtomicBool::new(true);

/// Sets whether operators must repeat their bits, and whether an operator that cannot causes a warning instead of an error
/// (`torch.use_deterministic_algorithms`).
pub fn use_deterministic_algorithms(enabled: bool, warn_only: bool) {
    set_deterministic_debug_mode(match (enabled, warn_only) {
        (false, _) => DeterministicDebugMode::Default,
        (true, true) => DeterministicDebugMode::Warn,
        (true, false) => DeterministicDebugMode::Error,
    });
}

/// Sets the treatment of operators without a deterministic form. In every mode but the first, the other operators must repeat
/// their bits.
pub fn set_deterministic_debug_mode(mode: DeterministicDebugMode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Returns the mode that [`set_deterministic_debug_mode`] or [`use_deterministic_algorithms`] has set.
pub fn deterministic_debug_mode() -> DeterministicDebugMode {
    match MODE.load(Ordering::Relaxed) {
        0 => DeterministicDebugMode::Default,
        1 => DeterministicDebugMode::Warn,
        _ => DeterministicDebugMode::Error,
    }
}

/// Returns whether operators must repeat their bits.
pub fn are_deterministic_algorithms_enabled() -> bool {
    deterministic_debug_mode() != DeterministicDebugMode::Default
}

/// Returns whether an operator that cannot repeat its bits causes a warning instead of an error.
pub fn is_deterministic_algorithms_warn_only_enabled() -> bool {
    deterministic_debug_mode() == DeterministicDebugMode::Warn
}

/// Sets whether memory that is allocated without being written is filled while operators must repeat their bits
/// (`torch.utils.deterministic.fill_uninitialized_memory`): with NaN, the greatest integer, or true. Initially true.
pub fn set_fill_uninitialized_memory(fill: bool) {
    FILLS.store(fill, Ordering::Relaxed);
}

/// Returns the value that [`set_fill_uninitialized_memory`] has set.
pub fn fill_uninitialized_memory() -> bool {
    FILLS.load(Ordering::Relaxed)
}

/// Reports that an operator has no deterministic form: does nothing, warns, or returns an error, depending on
/// [`deterministic_debug_mode`]. Call it in a program's own operators whose kernels add in an order that depends on timing.
///
/// # Errors
/// [`Error::is_invalid_argument`] where operators must repeat their bits.
pub fn alert_not_deterministic(operator: &str) -> Result<()> {
    let mode = deterministic_debug_mode();
    if mode == DeterministicDebugMode::Default {
        return Ok(());
    }
    let says = format!(
        "{operator} does not have a deterministic implementation, but you set 'use_deterministic_algorithms(true)'. You can turn off \
         determinism just for this operation, or you can use warn_only if that's acceptable for your application"
    );
    if mode == DeterministicDebugMode::Error {
        return Err(Error::invalid(says));
    }
    warn(&says);
    Ok(())
}

/// Returns whether memory that is allocated without being written is filled at present.
pub(crate) fn fills_now() -> bool {
    are_deterministic_algorithms_enabled() && fill_uninitialized_memory()
}
