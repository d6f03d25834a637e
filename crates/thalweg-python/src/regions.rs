//! Regions of `with` statements: a thread has a stream, a device or a pool current in them, or for good.
//!
//! A region ends by the object that entered it, so regions that end in another order than they began, or on another thread, end nothing but
//! themselves. What is set for good within a region (`set_stream`, `set_device`) ends with that region, as in PyTorch, where leaving one puts
//! back what was there before.

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

    /// Returns whether nothing is left of another one once this was made current for good behind it.
    fn replaces(&self, former: &Self) -> bool {
        match (self, former) {
            (Self::Stream(_, stream), Self::Stream(_, former)) => stream.device() == former.device(),
            (_, Self::Device(_)) => true,
            _ => false,
        }
    }

    /// Returns whether the end of a region puts back what was current before the other one.
    fn ends(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Stream(..), _) | (Self::Device(_), Self::Device(_)))
    }
}

/// The one who entered a region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// An object of Python, by its address.
    Object(usize),
    /// A graph that is captured, by its number.
    Graph(u64),
}

impl Owner {
    /// Returns an object as an owner.
    pub fn object(object: &Bound<'_, PyAny>) -> Self {
        Self::Object(object.as_ptr().addr())
    }
}

/// A region that a thread is in.
struct Region {
    owner: Owner,
    current: Current,
    /// The streams and devices that were made current for good within it.
    set: Vec<Current>,
}

#[derive(Default)]
struct Regions {
    entered: Vec<Region>,
    /// The streams and devices that were made current for good outside of regions.
    set: Vec<Current>,
}

thread_local! {
    static REGIONS: RefCell<Regions> = RefCell::default();
}

/// Changes the regions of this thread. What it returns is dropped outside, since that may come back here. `None` at the end of the thread, whose regions
/// are over.
fn change<T>(change: impl FnOnce(&mut Regions) -> T) -> Option<T> {
    REGIONS.try_with(|regions| change(&mut regions.borrow_mut())).ok()
}

/// A guard: what this thread made current before is as it was then once this is dropped, and what it has made current since is not.
pub struct Apart(Option<Regions>);

/// Sets what this thread has made current so far apart: a program that runs now may leave regions open.
pub fn apart() -> Apart {
    Apart(change(std::mem::take))
}

impl Drop for Apart {
    fn drop(&mut self) {
        let former = self.0.take().unwrap_or_default();
        let _left_open = change(|regions| std::mem::replace(regions, former));
    }
}

/// Keeps something current on this thread until [`leave`] is called for the same owner.
pub fn enter(owner: Owner, current: Current) {
    let region = Region { owner, current, set: Vec::new() };
    change(|regions| regions.entered.push(region));
}

/// Ends the innermost region of this thread that an owner has entered; nothing, where it has entered none.
pub fn leave(owner: Owner) {
    let _ended = change(|regions| {
        let place = regions.entered.iter().rposition(|region| region.owner == owner)?;
        Some(regions.entered.remove(place))
    });
}

/// Keeps something current on this thread until the innermost region ends that puts back what was there before, or for good.
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
