//! Drivers that can be recorded at any time: for programs, such as those of Python, that open devices long before they know that they will.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_driver::Driver;

use crate::driver::ProfilerDriver;

/// The profilers around the drivers that were opened; `None` while none are asked for.
static PROFILERS: Mutex<Option<Vec<Arc<ProfilerDriver>>>> = Mutex::new(None);

fn profilers() -> MutexGuard<'static, Option<Vec<Arc<ProfilerDriver>>>> {
    PROFILERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a profiler around each driver that this process opens from now on. It records nothing until it is [started](ProfilerDriver::start), and a
/// call of the driver costs one relaxed load more. On a GPU, launches do not tell it which bytes they touch, so tables have no bandwidths.
pub fn profile_on_demand() {
    profilers().get_or_insert_default();
}

/// Returns a driver that was opened just now: with a profiler around it, if [`profile_on_demand`] asked for that.
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

/// Returns the profiler that is around a driver since it was opened; `None` if there is none.
pub fn profiler_of(driver: &Arc<dyn Driver>) -> Option<Arc<ProfilerDriver>> {
    let all = profilers();
    let is_it =
        |profiler: &&Arc<ProfilerDriver>| std::ptr::addr_eq(Arc::as_ptr(profiler), Arc::as_ptr(driver));
    all.iter().flatten().find(is_it).cloned()
}
