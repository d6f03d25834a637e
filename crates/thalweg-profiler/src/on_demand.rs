//! Drivers that can be recorded at any time: for programs, such as those in Python, that open devices long before they decide to
//! record.

use std::sync::Arc;

use thalweg_driver::Driver;
use thalweg_lock::{Mutex, MutexGuard};

use crate::driver::ProfilerDriver;

/// The profilers that wrap the opened drivers; `None` while [`profile_on_demand`] was not called.
static PROFILERS: Mutex<Option<Vec<Arc<ProfilerDriver>>>> = Mutex::new(None);

fn profilers() -> MutexGuard<'static, Option<Vec<Arc<ProfilerDriver>>>> {
    PROFILERS.lock()
}

/// Wraps each driver that this process opens from now on in a profiler. It records nothing until it is
/// [started](ProfilerDriver::start), and costs one additional relaxed load per driver call. On a GPU, launches do not list the
/// bytes that they touch for it, so tables have no bandwidths.
pub fn profile_on_demand() {
    profilers().get_or_insert_default();
}

/// Returns a driver that was just opened, wrapped in a profiler if [`profile_on_demand`] was called.
pub fn on_demand(driver: Arc<dyn Driver>) -> Arc<dyn Driver> {
    match &mut *profilers() {
        None => driver,
        Some(all) => {
            let profiler = ProfilerDriver::idle(driver);
            all.push(Arc::clone(&profiler));
            profiler
        }
    }
}

/// Returns the profiler that has wrapped a driver since it was opened; `None` if there is none.
pub fn profiler_of(driver: &Arc<dyn Driver>) -> Option<Arc<ProfilerDriver>> {
    let all = profilers();
    let is_it =
        |profiler: &&Arc<ProfilerDriver>| std::ptr::addr_eq(Arc::as_ptr(profiler), Arc::as_ptr(driver));
    all.iter().flatten().find(is_it).cloned()
}
