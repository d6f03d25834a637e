//! Whether operators must give the same bits each time that they get the same operands on one device (`torch.use_deterministic_algorithms`).
//!
//! Nearly all always do. Where it is asked for, the gradient of attention is never [`Cudnn`](crate::sdp::SdpBackend::Cudnn)'s, convolutions
//! take engines of cuDNN that repeat their bits, and what is allocated without being written is
//! [filled](set_fill_uninitialized_memory), so that a program that reads it repeats its bits as well. No operator of this library has to be
//! refused; one of a program's own that has no deterministic form says so by [`alert_not_deterministic`].
//!
//! All of it is of the process.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use thalweg_runtime::{Error, Result};

use crate::warning::warn;

/// The fate of an operator without a deterministic form (`torch.set_deterministic_debug_mode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DeterministicDebugMode {
    /// It runs, and nothing is asked of the others: at first.
    Default = 0,
    /// It runs, with a warning on the standard error.
    Warn = 1,
    /// It is an error.
    Error = 2,
}

static MODE: AtomicU8 = AtomicU8::new(DeterministicDebugMode::Default as u8);
static FILLS: AtomicBool = AtomicBool::new(true);

/// Sets whether operators must repeat their bits, and whether one that cannot is warned of and not refused
/// (`torch.use_deterministic_algorithms`).
pub fn use_deterministic_algorithms(enabled: bool, warn_only: bool) {
    set_deterministic_debug_mode(match (enabled, warn_only) {
        (false, _) => DeterministicDebugMode::Default,
        (true, true) => DeterministicDebugMode::Warn,
        (true, false) => DeterministicDebugMode::Error,
    });
}

/// Sets what becomes of an operator without a deterministic form; both modes but the first ask the others to repeat their bits.
pub fn set_deterministic_debug_mode(mode: DeterministicDebugMode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Returns what [`set_deterministic_debug_mode`] or [`use_deterministic_algorithms`] has set.
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

/// Returns whether an operator that cannot repeat its bits is warned of and not refused.
pub fn is_deterministic_algorithms_warn_only_enabled() -> bool {
    deterministic_debug_mode() == DeterministicDebugMode::Warn
}

/// Sets whether memory that is allocated and not written is filled where operators must repeat their bits
/// (`torch.utils.deterministic.fill_uninitialized_memory`): with NaN, the greatest integer, or true. True at first.
pub fn set_fill_uninitialized_memory(fill: bool) {
    FILLS.store(fill, Ordering::Relaxed);
}

/// Returns what [`set_fill_uninitialized_memory`] has set.
pub fn fill_uninitialized_memory() -> bool {
    FILLS.load(Ordering::Relaxed)
}

/// Says that an operator has no deterministic form: nothing where none is asked for, a warning, or an error, as
/// [`deterministic_debug_mode`] says. For operators of a program's own whose kernels add in an order that timing decides.
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

/// Returns whether memory that is allocated and not written is filled now.
pub(crate) fn fills_now() -> bool {
    are_deterministic_algorithms_enabled() && fill_uninitialized_memory()
}
