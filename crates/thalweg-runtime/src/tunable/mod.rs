//! TunableOp: which of the algorithms of a matrix product is the fastest, found by trying, and kept in a file
//! (`torch.cuda.tunable`, with PyTorch's names, variables and file format).
//!
//! While it is [enabled](enable), a product is looked up by its sizes. One without a result is tuned where it is met: the algorithms that
//! cuBLASLt proposes, and Thalweg's own kernels for small products, few rows, and large products of 16-bit floats on compute capability 9.0, are timed over copies of the operands that do not fit into the L2 cache;
//! one that is clearly slower is given up after a few runs, and the least median wins. The result goes into the file at once. In a
//! capture nothing is tuned: run the region once before. While one thread tunes, products of others that have no result run as
//! without tuning.
//!
//! A product of 16-bit floats into a result of f32, as gradients of weights under autocast are, is tuned as `GemmTunableOp_BFloat16_BFloat16_float_NT`, whether
//! it is added to what is there or not: its candidates are the library's. PyTorch has no such name and passes over the line.
//!
//! Products can also be [recorded](record_untuned_enable) in one run and tuned later, by [`tune_gemm_in_file`] or `thalweg tune`.
//!
//! | variable | default | |
//! |---|---|---|
//! | `PYTORCH_TUNABLEOP_ENABLED` | 0 | 1 turns it on |
//! | `…_TUNING` | 1 | 0 only uses results that there are |
//! | `…_RECORD_UNTUNED`, `…_UNTUNED_FILENAME` | 0, `tunableop_untuned.csv` | 1 writes products without a result into this file |
//! | `…_FILENAME` | `tunableop_results.csv` | the file of the results; `%d` stands for the device's number, which else goes before the dot |
//! | `…_MAX_TUNING_DURATION_MS`, `…_MAX_TUNING_ITERATIONS` | 30, 100 | of each candidate |
//! | `…_MAX_WARMUP_DURATION_MS`, `…_MAX_WARMUP_ITERATIONS` | 0, 0 | before it is timed |
//! | `…_ROTATING_BUFFER_SIZE` | -1 | MB that copies of the operands fill; negative for the size of the L2 cache, 0 for one copy |
//! | `…_NUMERICAL_CHECK` | 0 | `1e-5_1e-5`: how far a candidate's result may be from the default's, absolute and relative |
//! | `…_CUBLASLT_REQUESTED_ALGO_COUNT` | 32 | candidates of the library |
//! | `…_WILDCARD_FALLBACK` | 0 | 1 lets results be found in which `*` stands for a number |
//! | `…_ICACHE_FLUSH_ENABLED`, `…_BLAS_LOG` | | not read: in PyTorch they are for AMD's GPUs and libraries |
//! | `…_VERBOSE`, `…_VERBOSE_FILENAME` | 0, `err` | 1 reports files, 2 results, 3 candidates, to `err`, `out` or a file |
//!
//! What a variable says holds, whatever a program sets. Results are of a device's name and compute capability, of a version of cuBLASLt and, where Thalweg wrote them,
//! of its version; those of another, in the same file or not, are passed over. A file that PyTorch reads is written with [`set_pytorch_version`].
//!
//! With `library`, which asks here for the algorithm of a product, `state` and `trial` this is one circle: a trial runs
//! products of `library`.

mod results;
mod settings;
mod signature;
mod state;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use state::state;

pub(crate) use signature::Solution;
pub(crate) use state::{refused, solution_of};
pub(crate) use trial::Operands;

use crate::{Device, Result};

/// A result of tuning.
#[derive(Clone, PartialEq, Debug)]
pub struct TuningResult {
    /// The operator (`GemmTunableOp_BFloat16_TN`).
    pub operator: String,
    /// Its sizes (`tn_768_16384_768_ld_768_768_768`): transposition, then rows, columns and terms of the column-major product, then leading dimensions.
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

/// Returns whether products are looked up.
#[inline]
pub fn is_enabled() -> bool {
    state().enabled.load(Ordering::Relaxed)
}

/// Sets whether products without a result are tuned where they are met.
pub fn tuning_enable(on: bool) {
    state().change(|state| {
        state.tuning.store(state.variables.tuning.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether products without a result are tuned.
pub fn tuning_is_enabled() -> bool {
    state().tuning.load(Ordering::Relaxed)
}

/// Sets whether products without a result, where they are not tuned, are written into the file of untuned products.
pub fn record_untuned_enable(on: bool) {
    state().change(|state| {
        state.record_untuned.store(state.variables.record_untuned.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether products without a result are recorded.
pub fn record_untuned_is_enabled() -> bool {
    state().record_untuned.load(Ordering::Relaxed)
}

/// Sets whether results are found in which `*` stands for a number.
pub fn wildcard_fallback_enable(on: bool) {
    state().change(|state| {
        state.wildcards.store(state.variables.wildcard_fallback.unwrap_or(on), Ordering::Relaxed);
    });
}

/// Returns whether results are found in which `*` stands for a number.
pub fn wildcard_fallback_is_enabled() -> bool {
    state().wildcards.load(Ordering::Relaxed)
}

/// Sets how many milliseconds a candidate is timed at most.
pub fn set_max_tuning_duration(milliseconds: u32) {
    state().set(|settings| settings.max_tuning_duration_ms = milliseconds);
}

/// Returns how many milliseconds a candidate is timed at most.
pub fn get_max_tuning_duration() -> u32 {
    state().effective().max_tuning_duration_ms
}

/// Sets how often a candidate is timed at most; once at least.
pub fn set_max_tuning_iterations(iterations: u32) {
    state().set(|settings| settings.max_tuning_iterations = iterations);
}

/// Returns how often a candidate is timed at most.
pub fn get_max_tuning_iterations() -> u32 {
    state().effective().max_tuning_iterations
}

/// Sets how many algorithms the library is asked for; 1 at least.
pub fn set_cublaslt_requested_algo_count(count: u32) {
    state().set(|settings| settings.requested_algorithms = count.max(1));
}

/// Returns how many algorithms the library is asked for.
pub fn get_cublaslt_requested_algo_count() -> u32 {
    state().effective().requested_algorithms
}

/// Sets how many MB the copies of the operands fill: negative for the size of the L2 cache, 0 for one copy.
pub fn set_rotating_buffer_size(megabytes: i64) {
    state().set(|settings| settings.rotating_buffer = megabytes);
}

/// Returns how many MB the copies of the operands fill on a device.
pub fn get_rotating_buffer_size(device: &Device) -> u64 {
    state().effective().rotating_bytes(device.properties().l2_cache_bytes) >> 20
}

/// Sets whether a candidate whose result is further from the default's than `atol` plus `rtol` times as much as it is is left out.
pub fn set_numerical_check_tolerances(enable: bool, atol: f64, rtol: f64) {
    let tolerances = enable.then_some(settings::Tolerances { atol, rtol });
    state().set(|settings| settings.numerical_check = tolerances);
}

/// Sets the file of the results; `insert_device_ordinal` puts the device's number in. Results that there are stay.
pub fn set_filename(name: &str, insert_device_ordinal: bool) {
    state().set(|settings| settings.filename = Some((name.to_owned(), insert_device_ordinal)));
    state().read_files_again();
}

/// Returns the file of a device's results.
pub fn get_filename(device: &Device) -> PathBuf {
    state().results_file(device)
}

/// Returns the results for a kind of device, by name.
pub fn get_results(device: &Device) -> Vec<TuningResult> {
    state().results_of(device)
}

/// Returns what the results of a device depend on, as keys and values.
pub fn get_validators(device: &Device) -> Vec<(String, String)> {
    state().validators(device)
}

/// Sets the version of PyTorch (`2.11.0`) that results are for; `None` for Thalweg, which is the default. For PyTorch only cuBLASLt's algorithms are
/// tried, and files have PyTorch's validators: it takes them where its cuBLASLt is the one that was tuned here.
pub fn set_pytorch_version(version: Option<&str>) {
    state().set_pytorch_version(version);
}

/// Takes the results for a device from a file, by default [its own](get_filename). Returns whether there were any that hold for it, or none
/// at all; lines that cannot be read and results of other devices are passed over.
///
/// # Errors
/// If the file cannot be read.
pub fn read_file(device: &Device, name: Option<&Path>) -> Result<bool> {
    state().read_file(device, name)
}

/// Replaces a file by the results of the process, by default the device's [own](get_filename).
///
/// # Errors
/// If the file cannot be written.
pub fn write_file(device: &Device, name: Option<&Path>) -> Result<()> {
    state().write_file(device, name)
}

/// The outcome of tuning a product of a file.
#[derive(Clone, PartialEq, Debug)]
pub enum OfflineOutcome {
    /// It was tuned: the result, and the default's median in milliseconds.
    Tuned(TuningResult, f64),
    /// It had a result already.
    Known(TuningResult),
    /// It could not be tuned: the line, and why.
    Skipped(String, String),
}

/// Tunes the products of a file that was recorded ([`record_untuned_enable`]), or of a file of results, over numbers of its own, and tells
/// `progress` of each product's outcome, with how many are done of how many. Results go to the device's [file](get_filename). It does not matter
/// whether tuning is [enabled](enable). *Blocks.*
///
/// # Errors
/// If a file cannot be read or written, and what the device answers.
pub fn tune_gemm_in_file(
    device: &Device,
    name: &Path,
    progress: &mut dyn FnMut(&OfflineOutcome, usize, usize),
) -> Result<()> {
    state().tune_file(device, name, progress)
}
