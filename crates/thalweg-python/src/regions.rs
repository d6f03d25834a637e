//! Regions of `with` statements, in which a stream, a device or a pool is current on a thread, and settings without a region.
//!
//! A region is ended by the object that entered it, so regions that end in a different order than they began, or on another thread,
//! end only themselves. A setting without a region of its own (`set_stream`, `set_device`) ends with the region that surrounds
//! it, as in PyTorch, where leaving a region restores the previous setting.

use std::cell::RefCell;

use pyo3::prelude::*;
use thalweg::runtime::MemPoolScope;
use thalweg::{Device, DeviceGuard, Stream, StreamGuard};

/// A stream, a device or a pool that is current.
pub enum Current {
    /// A stream, with its device.
    Stream(#[expect(dead_code, reason = "its drop is what it is for")] StreamGuard, Stream),
    /// A device.
    Device(#[expect(dead_code, reason = "its drop is what it is for")] DeviceGuard),
    /// A pool.
    Pool(#[expect(dead_code, reason = "its drop is what it is for")] MemPoolScope),
}

impl Current {
    /// Makes a stream current.
    pub fn stream(stream: &Stream) -> Self {
        Self::Stream(stream.make_current(), stream.clone())
    }

    /// Makes a device current.
    pub fn device(device: &Device) -> Self {
        Self::Device(device.make_current())
    }

    /// Returns whether nothing remains of `former` once `self` has been set after it without a region.
    fn replaces(&self, former: &Self) -> bool {
        match (self, former) {
            (Self::Stream(_, stream), Self::Stream(_, former)) => stream.device() == former.device(),
            (_, Self::Device(_)) => true,
            _ => false,
        }
    }

    /// Returns whether the end of a region with `self` restores the state from before `other`.
    fn ends(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Stream(..), _) | (Self::Device(_), Self::Device(_)))
    }
}

/// The owner of a region: the object that entered it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A Python object, by its address.
    Object(usize),
    /// A graph that is being captured, by its number.
    Graph(u64),
}

impl Owner {
    /// Returns a Python object as an owner.
    pub fn object(object: &Bound<'_, PyAny>) -> Self {
        Self::Object(object.as_ptr().addr())
    }
}

/// A region that a thread is in.
struct Region {
    owner: Owner,
    current: Current,
    /// The streams and devices that were set without a region inside this one.
    set: Vec<Current>,
}

#[derive(Default)]
struct Regions {
    entered: Vec<Region>,
    /// The streams and devices that were set outside of all regions.
    set: Vec<Current>,
}

thread_local! {
    static REGIONS: RefCell<Regions> = RefCell::default();
}

/// Changes the regions of this thread. The result must be dropped outside, because its drop may re-enter this function. Returns
/// `None` at the end of the thread, when its regions are over.
fn change<T>(change: impl FnOnce(&mut Regions) -> T) -> Option<T> {
    REGIONS.try_with(|regions| change(&mut regions.borrow_mut())).ok()
}

/// A guard that restores the former regions of this thread when it is dropped, and discards those entered since.
pub struct RegionsAside(Option<Regions>);

/// Sets this thread's regions aside, because a program that runs now may leave regions open.
pub fn set_aside() -> RegionsAside {
    RegionsAside(change(std::mem::take))
}

impl Drop for RegionsAside {
    fn drop(&mut self) {
        let former = self.0.take().unwrap_or_default();
        let _left_open = change(|regions| std::mem::replace(regions, former));
    }
}

/// Makes something current on this thread until [`leave`] is called for the same owner.
pub fn enter(owner: Owner, current: Current) {
    let region = Region { owner, current, set: Vec::new() };
    change(|regions| regions.entered.push(region));
}

/// Ends the innermost region of this thread that an owner has entered. Does nothing if there is none.
pub fn leave(owner: Owner) {
    let _ended = change(|regions| {
        let place = regions.entered.iter().rposition(|region| region.owner == owner)?;
        Some(regions.entered.remove(place))
    });
}

/// Makes something current on this thread until the innermost region that restores the previous setting ends; permanently if
/// there is no such region.
pub fn set(current: Current) {
    let _replaced = change(|regions| {
        let around = regions.entered.iter_mut().rev().find(|region| region.current.ends(&current));
        let list = around.map_or(&mut regions.set, |region| &mut region.set);
        let replaced: Vec<Current> = list.extract_if(.., |former| current.replaces(former)).collect();
        list.push(current);
        replaced
    });
}

/// Ends the innermost region that an object has entered.
#[pyfunction]
fn _exit(owner: &Bound<'_, PyAny>) {
    leave(Owner::object(owner));
}

/// Adds the function.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    own.add_function(wrap_pyfunction!(_exit, own)?)
}
