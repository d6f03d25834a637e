//! The devices and streams that are current on a thread.
//!
//! Guards enter and leave in any order: each leaves what it entered, and the latest of those that are left counts. The list has no destructor, so it
//! is there in destructors of thread-local values too, also when a guard is dropped there.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::stream::Stream;
use crate::{Device, device::DeviceId};

/// A device that was made current, perhaps with one of its streams.
struct Entry {
    number: u64,
    device: Device,
    stream: Option<Stream>,
}

/// What a thread has entered and not left, the latest last.
struct Entries {
    next: u64,
    list: ManuallyDrop<SmallVec<[Entry; 4]>>,
}

thread_local! {
    static ENTRIES: RefCell<Entries> =
        const { RefCell::new(Entries { next: 0, list: ManuallyDrop::new(SmallVec::new_const()) }) };
}

/// A guard of an entry: dropping it leaves. It belongs to the thread that made it.
pub(crate) struct Entered {
    number: u64,
    _not_send: PhantomData<*const ()>,
}

/// Makes a device, and a stream of it if there is one, current on this thread.
pub(crate) fn enter(device: &Device, stream: Option<&Stream>) -> Entered {
    let (device, stream) = (device.clone(), stream.cloned());
    ENTRIES.with_borrow_mut(|entries| {
        let number = entries.next;
        entries.next += 1;
        entries.list.push(Entry { number, device, stream });
        Entered { number, _not_send: PhantomData }
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Dropped outside: the last handle of a device or a stream calls its driver.
        let _left = ENTRIES.with_borrow_mut(|Entries { list, .. }| {
            let place = list.iter().rposition(|entry| entry.number == self.number)?;
            let left = list.remove(place);
            if list.is_empty() && list.spilled() {
                // Nothing frees what the list has when the thread ends.
                list.shrink_to_fit();
            }
            Some(left)
        });
    }
}

/// Returns the device that is current on this thread, if one was made so.
pub(crate) fn device() -> Option<Device> {
    ENTRIES.with_borrow(|entries| Some(entries.list.last()?.device.clone()))
}

/// Returns the stream of a device that is current on this thread, if one was made so.
pub(crate) fn stream(device: DeviceId) -> Option<Stream> {
    ENTRIES.with_borrow(|entries| {
        let of_device = |entry: &&Entry| entry.device.id() == device && entry.stream.is_some();
        entries.list.iter().rev().find(of_device)?.stream.clone()
    })
}

/// The devices of all threads that have made none current: the latest counts.
static DEFAULTS: Mutex<Vec<(u64, Device)>> = Mutex::new(Vec::new());

/// The number of these, which is asked without the lock.
static DEFAULTS_COUNT: AtomicUsize = AtomicUsize::new(0);

fn defaults() -> MutexGuard<'static, Vec<(u64, Device)>> {
    DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard that keeps a device the one of all threads that have made none current.
#[must_use = "the device is the default only while the guard lives"]
#[derive(Debug)]
pub struct DefaultDeviceGuard(u64);

/// Makes a device that of all threads that have made none current.
pub(crate) fn enter_default(device: &Device) -> DefaultDeviceGuard {
    let mut list = defaults();
    let number = list.last().map_or(0, |(number, _)| number + 1);
    list.push((number, device.clone()));
    DEFAULTS_COUNT.store(list.len(), Ordering::Relaxed);
    DefaultDeviceGuard(number)
}

impl Drop for DefaultDeviceGuard {
    fn drop(&mut self) {
        let mut list = defaults();
        let place = list.iter().position(|(number, _)| *number == self.0);
        let _dropped_without_the_lock = place.map(|place| list.remove(place));
        DEFAULTS_COUNT.store(list.len(), Ordering::Relaxed);
        drop(list);
    }
}

/// Returns the device of all threads that have made none current, if there is one.
pub(crate) fn default_device() -> Option<Device> {
    if DEFAULTS_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    defaults().last().map(|(_, device)| device.clone())
}
