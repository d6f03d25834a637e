//! Each device's default generator, from which operators draw if the call passes no generator.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_runtime::{Device, Result};

use super::DeviceGenerator;
use crate::scoped::{Scoped, scoped};

/// The seed of a generator that was not seeded: PyTorch's `default_rng_seed_val`.
pub(crate) const SEED: u64 = 67_280_421_310_721;

thread_local! {
    /// The generators that replace the default ones on this thread, the innermost last.
    static INSTEAD: Scoped<SmallVec<[Arc<DeviceGenerator>; 2]>> = const { scoped(SmallVec::new_const()) };
}

/// Runs a function whose operators draw from a generator instead of the default one of its device (the argument `generator` of
/// PyTorch's functions).
pub fn with_generator<T>(generator: &Arc<DeviceGenerator>, function: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            let _ended = INSTEAD.with_borrow_mut(|list| list.pop());
        }
    }
    INSTEAD.with_borrow_mut(|list| list.push(generator.clone()));
    let _end = End;
    function()
}

/// Returns the generator from which operators such as `rand` and `dropout` draw on a device (`torch.cuda.default_generators`). Its
/// device keeps it, like PyTorch's. Its seed is 67280421310721 until [`DeviceGenerator::manual_seed`] sets another.
pub fn default_generator(device: &Device) -> Result<Arc<DeviceGenerator>> {
    let instead =
        INSTEAD.with_borrow(|list| list.last().filter(|generator| generator.device() == device).cloned());
    if let Some(generator) = instead.or_else(|| made_generator(device)) {
        return Ok(generator);
    }
    Ok(device.keep(Arc::new(DeviceGenerator::new(SEED, device)?)))
}

/// Returns the generator of [`default_generator`], if it was requested before.
pub(crate) fn made_generator(device: &Device) -> Option<Arc<DeviceGenerator>> {
    device.kept()
}
