//! The source of stacks for the histories of all devices: the caller's recorder, or Python.
//!
//! A recorder ([`Recorder`]; PyTorch's, in the native class) keeps its own stacks under our numbers: each event has its own
//! number, since only the recorder knows the frames of a stack (Python's, TorchScript's, C++'s). Without one the stacks are
//! Python's ([`PythonStacks`]), and equal ones have the same number.
//!
//! Stacks are kept for as long as a block or an event refers to them. These references are not counted: when there are many
//! stacks, a search finds the numbers in use, and the others are removed. A number that was returned since the last search is
//! kept, because the caller may not have stored it yet.
//!
//! An interpreter that ends kills the threads that wait for it, by unwinding that must not pass through Rust. So before it ends
//! it closes the gate ([`Stacks::stop`]): from then on nothing is called that may wait for it, and threads that already wait are
//! let through.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::DeviceAllocator;
use thalweg_memory::history::{StackId, StackSource};
use thalweg_snapshot::Frame;

use crate::python::PythonStacks;

/// A recorder that keeps stacks for a caller.
pub(crate) trait Recorder: Send + Sync {
    /// Takes the calling thread's stack and stores it under a number. Returns whether there is a stack. No lock is held during the
    /// call.
    fn take(&self, stack: StackId) -> bool;

    /// Removes a stack whose number has no more references. No lock is held during the call.
    fn forget(&self, stack: StackId);
}

/// The stacks that are kept.
#[derive(Default)]
pub(crate) struct Stacks {
    gate: Gate,
    recorder: OnceLock<Box<dyn Recorder>>,
    python: PythonStacks,
    kept: Mutex<Kept>,
    /// The allocators whose histories refer to the stacks.
    devices: Mutex<Vec<Weak<DeviceAllocator>>>,
}

#[derive(Default)]
struct Kept {
    /// The stacks by number; Python's stacks with the numbers of their frames.
    stacks: FxHashMap<StackId, One>,
    ids: FxHashMap<Arc<[u32]>, StackId>,
    last: u32,
    /// The number of searches for stacks in use.
    looks: u32,
    /// The number of stacks at which the next search begins.
    most: usize,
}

struct One {
    frames: Option<Arc<[u32]>>,
    /// The value of `Kept::looks` when the number was last returned.
    given_at: u32,
}

/// The number of stacks that are kept without a search.
const FEW: usize = 1 << 14;

impl Kept {
    fn new_id(&mut self) -> StackId {
        loop {
            self.last = self.last.wrapping_add(1);
            // The number wraps around after 2^32 stacks.
            if let Some(id) = StackId::new(self.last)
                && !self.stacks.contains_key(&id)
            {
                return id;
            }
        }
    }

    fn are_many(&self) -> bool {
        self.stacks.len() > self.most.max(FEW)
    }

    /// Returns a new number for a recorder's stack, and whether there are many.
    fn add(&mut self) -> (StackId, bool) {
        let id = self.new_id();
        self.stacks.insert(id, One { frames: None, given_at: self.looks });
        (id, self.are_many())
    }

    /// Returns the number of a Python stack, and whether there are many.
    fn number(&mut self, frames: Vec<u32>) -> (StackId, bool) {
        if let Some(id) = self.ids.get(&*frames).copied() {
            self.stacks.get_mut(&id).expect("what has a number is kept").given_at = self.looks;
            return (id, false);
        }
        let (id, frames) = (self.new_id(), Arc::<[u32]>::from(frames));
        self.ids.insert(Arc::clone(&frames), id);
        self.stacks.insert(id, One { frames: Some(frames), given_at: self.looks });
        (id, self.are_many())
    }

    /// Removes the numbers that are not in use, except those returned since the last search unless `also_new`. Returns those of
    /// the recorder.
    fn forget(&mut self, in_use: &FxHashSet<StackId>, also_new: bool) -> Vec<StackId> {
        let (looks, ids) = (self.looks, &mut self.ids);
        let mut forgotten = Vec::new();
        self.stacks.retain(|id, one| {
            let stays = in_use.contains(id) || (one.given_at == looks && !also_new);
            match &one.frames {
                _ if stays => {}
                Some(frames) => drop(ids.remove(frames)),
                None => forgotten.push(*id),
            }
            stays
        });
        self.looks = looks.wrapping_add(1);
        self.most = FEW.max(2 * self.stacks.len());
        forgotten
    }
}

thread_local! {
    static AS_NUMBERS: Cell<bool> = const { Cell::new(false) };
    static DISABLED: Cell<bool> = const { Cell::new(false) };
}

/// Sets a switch of the thread while `body` runs.
fn switched<T>(switch: &'static std::thread::LocalKey<Cell<bool>>, body: impl FnOnce() -> T) -> T {
    struct Former(&'static std::thread::LocalKey<Cell<bool>>, bool);
    impl Drop for Former {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _former = Former(switch, switch.replace(true));
    body()
}

/// Runs `body`, in which the thread takes no stacks.
pub(crate) fn without_stacks<T>(body: impl FnOnce() -> T) -> T {
    switched(&DISABLED, body)
}

/// Runs `body`, in which each stack has a single frame without names, whose line is the stack's number.
pub(crate) fn as_numbers<T>(body: impl FnOnce() -> T) -> T {
    switched(&AS_NUMBERS, body)
}

impl Stacks {
    /// Makes a recorder keep all stacks from now on; `false` if there is one already.
    pub(crate) fn set_recorder(&self, recorder: Box<dyn Recorder>) -> bool {
        self.recorder.set(recorder).is_ok()
    }

    /// Registers a device whose histories refer to stacks from now on.
    pub(crate) fn add_device(&self, device: &Arc<DeviceAllocator>) {
        self.devices.lock().push(Arc::downgrade(device));
    }

    /// Calls a function that may wait for the interpreter, unless the interpreter is ending.
    pub(crate) fn pass<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        self.gate.pass(|| Some(body()))
    }

    /// Ends all calls that may wait for the interpreter, and waits for the threads inside such calls. They need the interpreter's
    /// lock, which the caller must not hold.
    pub(crate) fn stop(&self) {
        self.gate.close();
    }

    /// Removes stacks without references; also those that were just returned if `also_new`.
    pub(crate) fn forget_unused(&self, also_new: bool) {
        let devices = self.devices.lock().clone();
        let devices = devices.iter().filter_map(Weak::upgrade);
        let in_use: FxHashSet<StackId> = devices.flat_map(|device| device.stacks_in_use()).collect();
        let forgotten = self.kept().forget(&in_use, also_new);
        if let Some(recorder) = self.recorder.get() {
            forgotten.into_iter().for_each(|stack| recorder.forget(stack));
        }
    }

    /// Returns the Python stack of the calling thread, regardless of the recorder of histories.
    pub(crate) fn python_stack(&self) -> Option<Vec<Frame>> {
        let take = || Some(self.python.frames(&self.python.take()?));
        if DISABLED.get() { None } else { self.gate.pass(take) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    fn take(&self) -> Option<StackId> {
        let (stack, are_many) = match self.recorder.get() {
            Some(recorder) => {
                let new = self.kept().add();
                if !recorder.take(new.0) {
                    self.kept().stacks.remove(&new.0);
                    return None;
                }
                new
            }
            None => {
                let frames = self.python.take()?;
                self.kept().number(frames)
            }
        };
        if are_many {
            self.forget_unused(false);
        }
        Some(stack)
    }
}

impl StackSource for Stacks {
    fn capture(&self) -> Option<StackId> {
        if DISABLED.get() { None } else { self.gate.pass(|| self.take()) }
    }

    fn frames(&self, stack: StackId) -> Vec<Frame> {
        if AS_NUMBERS.get() {
            return vec![Frame { filename: "".into(), line: stack.get(), name: "".into() }];
        }
        let frames = self.kept().stacks.get(&stack).and_then(|one| one.frames.clone());
        frames.map_or_else(Vec::new, |frames| self.python.frames(&frames))
    }
}

/// The threads inside the interpreter, and whether more may enter.
#[derive(Default)]
struct Gate {
    is_closed: AtomicBool,
    inside: AtomicUsize,
}

impl Gate {
    /// Runs `body`, unless the gate is closed.
    fn pass<T>(&self, body: impl FnOnce() -> Option<T>) -> Option<T> {
        struct Inside<'a>(&'a AtomicUsize);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        // This counts first and checks second, while `close` closes first and reads the count second. All four operations are in
        // one total order, so either it sees our count or we see that it has closed.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let _inside = Inside(&self.inside);
        if self.is_closed.load(Ordering::SeqCst) { None } else { body() }
    }

    /// Closes the gate, and waits until no thread is inside.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_closed_gate_has_no_thread_inside() {
        for _ in 0..50 {
            let (gate, start, inside) = (Gate::default(), Barrier::new(4), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        start.wait();
                        let pass = || {
                            inside.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            Some(())
                        };
                        while gate.pass(pass).is_some() {}
                    });
                }
                start.wait();
                gate.close();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            });
        }
    }

    #[test]
    fn equal_python_stacks_have_one_number_until_nothing_refers_to_them() {
        let mut kept = Kept::default();
        let (one, other) = (kept.number(vec![1, 2]).0, kept.number(vec![1]).0);
        assert_eq!((kept.number(vec![1, 2]).0, one == other), (one, false));
        let in_use = FxHashSet::from_iter([one]);
        assert!(kept.forget(&in_use, false).is_empty(), "these are Python's");
        assert_eq!(kept.stacks.len(), 2, "the other may not have been written down yet");
        kept.forget(&in_use, false);
        assert_eq!(kept.stacks.keys().copied().collect::<Vec<_>>(), [one]);
        assert_ne!(kept.number(vec![1]).0, other, "it is a new stack");
        kept.last = u32::MAX;
        assert_eq!(kept.add().0.get(), 2, "numbers come round, and none is given out twice");
    }
}
