//! Ranks as threads of one process.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::Builder;

use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Environment, Error, Result};
use thalweg_sim::{SimConfig, SimDriver};

use crate::store::HashStore;
use crate::{GroupOptions, ProcessGroup};

/// Creates simulated devices of one machine that reach each other, each with `THALWEG_SIM_MEMORY_BYTES` of memory.
///
/// # Errors
/// The driver's error, if the host has no memory for them.
pub fn simulated_devices(count: u32) -> Result<Vec<Device>> {
    let (environment, defaults) = (Environment::get(), SimConfig::default());
    let memory_bytes = environment.sim_memory_bytes.unwrap_or(defaults.memory_bytes);
    let driver = SimDriver::new(SimConfig { devices: count, memory_bytes, ..defaults })?;
    Device::all_of(driver, environment)
}

/// Runs `body` once per device, each on its own thread as a rank of one process group, and returns the results by rank. The
/// device is the thread's current one. *Blocks* until all are done.
///
/// A rank that fails or panics aborts its group, and the groups have [watchdogs](GroupOptions::watchdog), so that the others do
/// not wait for it forever: they fail with its error.
///
/// # Errors
/// The error of the rank that failed first, with its number; one of asynchronous work gives way to one of a call.
///
/// # Panics
/// If a rank does.
pub fn run_ranks<T: Send>(
    devices: &[Device],
    body: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    run_ranks_with(devices, &GroupOptions::default(), body)
}

/// Runs ranks as [`run_ranks`] does, with options of their group.
///
/// # Errors
/// The error of the rank that failed first, with its number; one of asynchronous work gives way to one of a call.
///
/// # Panics
/// If a rank does.
pub fn run_ranks_with<T: Send>(
    devices: &[Device],
    options: &GroupOptions,
    body: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let values: Vec<Mutex<Option<T>>> = devices.iter().map(|_| Mutex::new(None)).collect();
    run_each(devices, options, &|group| {
        let rank = group.rank() as usize;
        *values[rank].lock() = Some(body(group)?);
        Ok(())
    })?;
    Ok(values.into_iter().filter_map(Mutex::into_inner).collect())
}

/// Runs ranks whose results go elsewhere.
fn run_each(
    devices: &[Device],
    options: &GroupOptions,
    body: &(dyn Fn(ProcessGroup) -> Result<()> + Sync),
) -> Result<()> {
    let store = Arc::new(HashStore::new());
    // A model checker's schedule decides which thread runs, and does not support threads of ours.
    let is_checked = devices.iter().any(|device| device.driver().instrument().is_some());
    let options = GroupOptions { watchdog: options.watchdog.or(Some(!is_checked)), ..options.clone() };
    let failed_first = Mutex::new(None::<Error>);
    let note = |rank: u32, error: Error| {
        let mut first = failed_first.lock();
        // A rank that fails drops its other groups before its error arrives here, and the device of a rank that waits in one of
        // them reports that at once. Such an error is replaced by its cause, but not by an error that the abort of the group
        // returns.
        let is_cause = !error.is_asynchronous() && !error.is_distributed();
        if first.as_ref().is_none_or(|first| is_cause && first.is_asynchronous() && !first.is_out_of_range())
        {
            *first = Some(error.context(format!("rank {rank}")));
        }
    };
    let run = |rank: u32, device: &Device| {
        let _current = device.make_current();
        let group = ProcessGroup::new(store.clone(), rank, devices.len() as u32, device, options.clone());
        let group = match group {
            Ok(group) => group,
            Err(error) => return note(rank, error),
        };
        // The error that caused the abort is more useful than the errors that the abort returns. It is recorded before the others
        // fail because of it.
        match catch_unwind(AssertUnwindSafe(|| body(group.clone()))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                // The device of a waiting rank reports only the symptom; the group may know the cause.
                let is_of_device = error.is_asynchronous() && !error.is_out_of_range();
                let error = if is_of_device { group.explain(error) } else { error };
                let reason = error.to_string();
                note(rank, error);
                let _ = group.abort(&reason);
            }
            Err(panic) => {
                let _ = group.abort("it panicked");
                resume_unwind(panic)
            }
        }
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, device) in (0..).zip(devices) {
            let run = &run;
            let thread = Builder::new().name(format!("rank {rank}"));
            let started = thread.spawn_scoped(scope, move || run(rank, device));
            threads.push(
                started.map_err(|error| Error::distributed(format!("rank {rank} has no thread: {error}"))),
            );
        }
        let join = |thread: Result<std::thread::ScopedJoinHandle<'_, ()>>| {
            thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        };
        threads.into_iter().map(join).collect::<Result<Vec<()>>>()
    })?;
    failed_first.into_inner().map_or(Ok(()), Err)
}
