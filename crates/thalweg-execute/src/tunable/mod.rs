//! TunableOp: finds the fastest algorithm of a matrix product by measuring, and keeps it in a file (`torch.cuda.tunable`, with
//! PyTorch's names, variables and file format).
//!
//! While tuning is [enabled](enable), a product is looked up by its sizes. A product without a result is tuned at its first call:
//! the algorithms that cuBLASLt proposes, and Thalweg's own kernels for small products, few rows, and large products of 16-bit
//! floats on compute capability 9.0, are timed over copies of the operands that do not fit into the L2 cache. A candidate that is
//! clearly slower is discarded after a few runs, and the lowest median wins. The result is written to the file immediately.
//! Nothing is tuned in a capture: run the region once before. While one thread tunes, other threads run products without a result
//! as if tuning were off.
//!
//! A product of 16-bit floats whose result is f32, such as the gradient of a weight under autocast, is tuned as
//! `GemmTunableOp_BFloat16_BFloat16_float_NT`, whether or not it is added to existing values; its candidates are the library's.
//! PyTorch does not have this name and skips the line.
//!
//! Products can also be [recorded](record_untuned_enable) in one run and tuned later, by [`tune_gemm_in_file`] or `thalweg tune`.
//!
//! | variable | default | |
//! |---|---|---|
//! | `PYTORCH_TUNABLEOP_ENABLED` | 0 | 1 turns it on |
//! | `…_TUNING` | 1 | 0 only uses existing results |
//! | `…_RECORD_UNTUNED`, `…_UNTUNED_FILENAME` | 0, `tunableop_untuned.csv` | 1 writes products without a result into this file |
//! | `…_FILENAME` | `tunableop_results.csv` | the file of the results; `%d` stands for the device's number, which else goes before the dot |
//! | `…_MAX_TUNING_DURATION_MS`, `…_MAX_TUNING_ITERATIONS` | 30, 100 | limits per candidate |
//! | `…_MAX_WARMUP_DURATION_MS`, `…_MAX_WARMUP_ITERATIONS` | 0, 0 | limits of the warm-up before a candidate is timed |
//! | `…_ROTATING_BUFFER_SIZE` | -1 | MB that copies of the operands fill; negative for the size of the L2 cache, 0 for one copy |
//! | `…_NUMERICAL_CHECK` | 0 | `1e-5_1e-5`: how far a candidate's result may be from the default's, absolute and relative |
//! | `…_CUBLASLT_REQUESTED_ALGO_COUNT` | 32 | candidates of the library |
//! | `…_WILDCARD_FALLBACK` | 0 | 1 also uses results in which `*` stands for a number |
//! | `…_ICACHE_FLUSH_ENABLED`, `…_BLAS_LOG` | | not read: in PyTorch they are for AMD's GPUs and libraries |
//! | `…_VERBOSE`, `…_VERBOSE_FILENAME` | 0, `err` | 1 reports files, 2 results, 3 candidates, to `err`, `out` or a file |
//!
//! A variable overrides any setting of a program. Results apply to a device's name and compute capability, to a version of
//! cuBLASLt and, if Thalweg wrote them, to its version; results of another device or version, in the same file or not, are
//! skipped. Use [`set_pytorch_version`] to write a file that PyTorch reads.
//!
//! `library` asks this module for the algorithm of a product, and `trial` runs products of `library`, so `library`, `state` and
//! `trial` use each other in a circle.

mod results;
mod settings;
mod signature;
mod state;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use state::state;

pub(crate) use signature::Solution;
pub(crate) use state::{forget_refused, solution_of};

use thalweg_runtime::{Device, Result};

/// A result of tuning.
#[derive(Clone, PartialEq, Debug)]
pub struct TuningResult {
    /// The operator (`GemmTunableOp_BFloat16_TN`).
    pub operator: String,
    /// The sizes (`tn_768_16384_768_ld_768_768_768`): transposition, then rows, columns and terms of the column-major product,
    /// then leading dimensions.
    pub parameters: String,
    /// The solution: `Default`, `Gemm_Cublaslt_…` or `Gemm_Thalweg_…`.
    pub solution: String,
    /// The median time of a call, in milliseconds.
    pub milliseconds: f64,
}

/// Turns tuning and the use of its results on or off.
pub fn enable(on: bool) {
    state().change(|state| state.enabled.store(on || state.variables.enabled, Ordering::Relaxed));
}

/// Returns whether tuning results are used.
#[inline]
pub fn is_enabled() -> bool {
    state().enabled.load(Ordering::Relaxed)
}

/// Sets whether products without a result are tuned at their first call.
pub fn tuning_enable(on: bool) {
    state().change(|state| {
        state.tuning.store(state.variables.tuning.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether products without a result are tuned.
pub fn tuning_is_enabled() -> bool {
    state().tuning.load(Ordering::Relaxed)
}

/// Sets whether products without a result that are not tuned are written into the file of untuned products.
pub fn record_untuned_enable(on: bool) {
    state().change(|state| {
        state.record_untuned.store(state.variables.record_untuned.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether products without a result are recorded.
pub fn record_untuned_is_enabled() -> bool {
    state().record_untuned.load(Ordering::Relaxed)
}

/// Sets whether results in which `*` stands for a number are used.
pub fn wildcard_fallback_enable(on: bool) {
    state().change(|state| {
        state.wildcards.store(state.variables.wildcard_fallback.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether results in which `*` stands for a number are used.
pub fn wildcard_fallback_is_enabled() -> bool {
    state().wildcards.load(Ordering::Relaxed)
}

/// Sets the maximum time for which a candidate is timed.
pub fn set_max_tuning_duration(milliseconds: u32) {
    state().set(|settings| settings.max_tuning_duration_ms = milliseconds);
}

/// Returns the maximum time, in milliseconds, for which a candidate is timed.
pub fn get_max_tuning_duration() -> u32 {
    state().effective().max_tuning_duration_ms
}

/// Sets the maximum number of timed runs of a candidate; at least 1.
pub fn set_max_tuning_iterations(iterations: u32) {
    state().set(|settings| settings.max_tuning_iterations = iterations);
}

/// Returns the maximum number of timed runs of a candidate.
pub fn get_max_tuning_iterations() -> u32 {
    state().effective().max_tuning_iterations
}

/// Sets the number of algorithms that are requested from the library; at least 1.
pub fn set_cublaslt_requested_algo_count(count: u32) {
    state().set(|settings| settings.requested_algorithms = count.max(1));
}

/// Returns the number of algorithms that are requested from the library.
pub fn get_cublaslt_requested_algo_count() -> u32 {
    state().effective().requested_algorithms
}

/// Sets the size in MB of the copies of the operands: negative for the size of the L2 cache, 0 for one copy.
pub fn set_rotating_buffer_size(megabytes: i64) {
    state().set(|settings| settings.rotating_buffer = megabytes);
}

/// Returns the size in MB of the copies of the operands on a device.
pub fn get_rotating_buffer_size(device: &Device) -> u64 {
    state().effective().rotating_bytes(device.properties().l2_cache_bytes) >> 20
}

/// Sets the tolerances of the numerical check: a candidate is rejected if its result differs from the default's by more than
/// `atol + rtol * |default|`.
pub fn set_numerical_check_tolerances(enable: bool, atol: f64, rtol: f64) {
    let tolerances = enable.then_some(settings::Tolerances { atol, rtol });
    state().set(|settings| settings.numerical_check = tolerances);
}

/// Sets the file of the results; `insert_device_ordinal` inserts the device's number. Existing results are kept.
pub fn set_filename(name: &str, insert_device_ordinal: bool) {
    state().set(|settings| settings.filename = Some((name.to_owned(), insert_device_ordinal)));
    state().read_files_again();
}

/// Returns the file of a device's results.
pub fn get_filename(device: &Device) -> PathBuf {
    state().results_file(device)
}

/// Returns the results for a device's kind, ordered by name.
pub fn get_results(device: &Device) -> Vec<TuningResult> {
    state().results_of(device)
}

/// Returns the keys and values that the results of a device depend on.
pub fn get_validators(device: &Device) -> Vec<(String, String)> {
    state().validators(device)
}

/// Sets the version of PyTorch (`2.11.0`) that results are for; `None`, the default, for Thalweg. For PyTorch only cuBLASLt's
/// algorithms are tried, and files have PyTorch's validators: it accepts them if its cuBLASLt is the version that was tuned here.
pub fn set_pytorch_version(version: Option<&str>) {
    state().set_pytorch_version(version);
}

/// Reads the results for a device from a file, by default [its own](get_filename). Returns `true` if some of them apply to the
/// device, or if the file has no results; lines that cannot be read and results of other devices are skipped.
///
/// # Errors
/// If the file cannot be read.
pub fn read_file(device: &Device, name: Option<&Path>) -> Result<bool> {
    state().read_file(device, name)
}

/// Overwrites a file with the results of the process, by default the device's [own](get_filename).
///
/// # Errors
/// If the file cannot be written.
pub fn write_file(device: &Device, name: Option<&Path>) -> Result<()> {
    state().write_file(device, name)
}

/// The outcome of tuning one product of a file.
#[derive(Clone, PartialEq, Debug)]
pub enum OfflineOutcome {
    /// The product was tuned: the result, and the default's median in milliseconds.
    Tuned(TuningResult, f64),
    /// The product already had a result.
    Known(TuningResult),
    /// The product could not be tuned: the line, and the reason.
    Skipped(String, String),
}

/// Tunes the products of a file that was recorded ([`record_untuned_enable`]), or of a file of results, over generated numbers.
/// Calls `progress` with each product's outcome, the number of products done, and the total. Results are written to the device's
/// [file](get_filename), whether or not tuning is [enabled](enable). *Blocks.*
///
/// # Errors
/// If a file cannot be read or written, and the errors of the device.
pub fn tune_gemm_in_file(
    device: &Device,
    name: &Path,
    progress: &mut dyn FnMut(&OfflineOutcome, usize, usize),
) -> Result<()> {
    state().tune_file(device, name, progress)
}
