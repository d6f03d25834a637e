//! Anomaly mode: backward passes that report which line of the program caused their failures and NaNs.

use std::cell::Cell;

use thalweg_runtime::{Error, Result, refuse};

use super::hooks::title;
use super::{Node, no_grad};
use crate::dispatch::{Anomaly, ModeGuard, anomaly, set_anomaly};
use crate::tensor::Tensor;
use crate::warning::warn;

/// Runs a function in anomaly mode with a check for NaN (`torch.autograd.detect_anomaly`). See [`set_detect_anomaly`].
pub fn detect_anomaly<T>(function: impl FnOnce() -> T) -> T {
    set_detect_anomaly(true, true, function)
}

/// Runs a function in anomaly mode, or outside it (`torch.autograd.set_detect_anomaly`). In anomaly mode each operator that is
/// recorded stores the line of the program that called it, and a backward pass that fails names that line. With `check_nan` a NaN
/// in a gradient that an operator's backward function computes is a failure, too: the host then checks each gradient, which
/// *blocks* and cannot be captured. The function must run both the forward and the backward pass, on this thread.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, autograd::detect_anomaly};
/// # use thalweg_ir::DType;
/// # fn main() -> Result<()> {
/// let x = Tensor::zeros(&[1], DType::F32, &Device::sim(0)?)?.requires_grad_()?;
/// let error = detect_anomaly(|| x.sqrt()?.mul_scalar(0.0)?.backward()).unwrap_err().to_string();
/// assert!(error.contains("Function 'SqrtBackward0' returned nan values in its 0th output"), "{error}");
/// # Ok(())
/// # }
/// ```
pub fn set_detect_anomaly<T>(mode: bool, check_nan: bool, function: impl FnOnce() -> T) -> T {
    let _guard = ModeGuard::anomaly(level(mode, check_nan));
    function()
}

const fn level(mode: bool, check_nan: bool) -> Anomaly {
    match (mode, check_nan) {
        (false, _) => Anomaly::Off,
        (true, false) => Anomaly::Lines,
        (true, true) => Anomaly::LinesAndNan,
    }
}

/// Sets from now on the modes that [`set_detect_anomaly`] sets for a function, and returns the previous mode and whether it
/// checked for NaN. For code that cannot nest functions.
pub fn set_anomaly_enabled(mode: bool, check_nan: bool) -> (bool, bool) {
    let former = (is_anomaly_enabled(), is_anomaly_check_nan_enabled());
    set_anomaly(level(mode, check_nan));
    CHECKS_NAN.set(check_nan);
    former
}

thread_local! {
    /// Whether this thread's anomaly mode will check for NaN once it is turned on. Used only while the mode is off.
    static CHECKS_NAN: Cell<bool> = const { Cell::new(true) };
}

/// Returns whether anomaly mode of this thread checks for NaN, or would if it were on (`torch.is_anomaly_check_nan_enabled`).
pub fn is_anomaly_check_nan_enabled() -> bool {
    match anomaly() {
        Anomaly::Off => CHECKS_NAN.get(),
        mode => mode == Anomaly::LinesAndNan,
    }
}

/// Returns whether this thread is in anomaly mode (`torch.is_anomaly_enabled`).
pub fn is_anomaly_enabled() -> bool {
    anomaly() != Anomaly::Off
}

/// Adds the place where the node was recorded to the error of its backward function. Also issues it as a warning, because an
/// exception of a program's own function cannot carry it.
pub(super) fn explain(node: &Node, error: Error) -> Error {
    if !is_anomaly_enabled() {
        return error;
    }
    let found = format!("Error detected in {}.", node.title());
    let Some(mut origin) = node.origin.as_ref() else {
        warn(&format!(
            "{found} No forward pass information available. Enable detect anomaly during forward pass for more information."
        ));
        return error.context(format!(
            "{}: no forward pass information is available; enable anomaly mode during the forward pass too",
            node.name()
        ));
    };
    let mut text = String::from("the forward call that caused the error is ");
    warn(&format!("{found} Traceback of forward call that caused the error:\n{}", origin.calls()));
    loop {
        text += &origin.text();
        match &origin.parent {
            Some(parent) => {
                text += ", induced by the backward pass of ";
                origin = parent;
                warn(&format!(
                    "Previous calculation was induced by {}. Traceback of forward call that induced the previous calculation:\n{}",
                    title(origin.operator),
                    origin.calls()
                ));
            }
            None => return error.context(text),
        }
    }
}

/// Checks the gradients that a node's backward function has computed for NaN, if anomaly mode requires it.
pub(super) fn check(node: &Node, results: &[Option<Tensor>]) -> Result<()> {
    if anomaly() != Anomaly::LinesAndNan {
        return Ok(());
    }
    for (output, result) in results.iter().enumerate() {
        let Some(result) = result.as_ref().filter(|result| result.dtype().is_floating_point()) else {
            continue;
        };
        if no_grad(|| result.detach().isnan()?.any()?.to_vec::<u8>())?[0] != 0 {
            refuse!("Function '{}' returned nan values in its {output}th output.", node.title());
        }
    }
    Ok(())
}
