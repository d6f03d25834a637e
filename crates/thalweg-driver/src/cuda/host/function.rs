//! Functions of the host in stream order, and objects that captured graphs keep alive.
//!
//! The driver gets a number, never a pointer to a closure. A function that should run once may end up in a graph, if a
//! capture begins on the stream meanwhile. Then its number is gone on the second run, which is reported, whereas a pointer
//! would dangle. Objects that a graph needs for its entire life stay in the registry until the driver reports, through a
//! *user object* that the graph and all its executables share, that none of them is left.

use std::ffi::c_void;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard};

use crate::cuda::context::Fault;

use crate::cuda::objects::pinned::PinnedBlock;
use crate::cuda::objects::{Stream, UnderConstruction};
use crate::cuda::state::CudaDriver;

use crate::command::{HostFunction, Label};
use crate::cuda::sys::{self, RawGraph, RawUserObject};
use crate::{Result, StreamHandle};

/// A host function on a stream or in a graph.
#[derive(Clone)]
struct Call {
    function: HostFunction,
    label: Label,
    fault: Arc<Fault>,
    /// Whether the host function belongs to a graph and runs at each launch.
    repeats: bool,
}

#[derive(Clone)]
enum RegisteredFunction {
    Call(Call),
    /// A pinned block, held only to be dropped.
    Pinned {
        _block: Arc<PinnedBlock>,
    },
}

static REGISTRY: LazyLock<Mutex<FxHashMap<u64, RegisteredFunction>>> = LazyLock::new(Mutex::default);

fn register(kept: RegisteredFunction) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    REGISTRY.lock().insert(number, kept);
    number
}

fn forget(number: u64) {
    // Dropped outside the lock: the destructors of a closure's values can do anything.
    let kept = REGISTRY.lock().remove(&number);
    let _ = catch_unwind(AssertUnwindSafe(|| drop(kept)));
}

/// Runs a host function: the driver calls this, on a thread of its own.
unsafe extern "C" fn run(data: *mut c_void) {
    let number = data as u64;
    let call = match REGISTRY.lock().get(&number) {
        Some(RegisteredFunction::Call(call)) => call.clone(),
        _ => return,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| (call.function)()));
    if let Err(panic) = outcome {
        let text = panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "with no text".to_owned());
        call.fault.raise(format!("the host function of {} panicked: {text}", call.label));
    }
    let once = !call.repeats;
    let _ = catch_unwind(AssertUnwindSafe(|| drop(call)));
    if once {
        forget(number);
    }
}

/// Releases a user object: the driver calls this when no graph needs it any more.
unsafe extern "C" fn release(data: *mut c_void) {
    forget(data as u64);
}

impl CudaDriver {
    pub(in crate::cuda) fn host_function_async(
        &self,
        stream: StreamHandle,
        function: HostFunction,
        label: Label,
    ) -> Result<()> {
        let call = "cuLaunchHostFunc";
        let stream = self.streams.get(stream.raw(), call)?;
        let device = self.submit_on(&stream)?;
        // Dropped after the lock: the destructors of a closure's values can do anything.
        let _own = Arc::clone(&function);
        let _captures = self.captures.lock();
        let graph = self.graph_under_construction(&stream)?;
        let fault = Arc::clone(&device.fault);
        let number =
            register(RegisteredFunction::Call(Call { function, label, fault, repeats: graph.is_some() }));
        if let Some(graph) = graph {
            // SAFETY: the graph was found under the lock of the captures, which is still held.
            unsafe { self.give_to_graph(graph, number)? };
        }
        // SAFETY: `run` takes any number; the stream is looked up.
        let outcome = unsafe { self.cuda.table.launch_host_function(stream.raw, run, number as *mut c_void) };
        let queued = self.cuda.check(outcome, || format!("for {label}"));
        if queued.is_err() && graph.is_none() {
            forget(number);
        }
        queued
    }

    /// Makes the graph that the stream captures into, if it captures, share the block, because its replays use it.
    ///
    /// Called after the command was queued, because a stream may have joined a capture just before. The calling thread has
    /// held the lock of the captures since before the command was queued, so a capture that the command may have become a
    /// part of has not ended.
    pub(in crate::cuda) fn keep_for_capture(
        &self,
        stream: &Stream,
        block: &Arc<PinnedBlock>,
        _captures: &MutexGuard<'_, FxHashMap<u64, UnderConstruction>>,
    ) -> Result<()> {
        let kept = self.graph_under_construction(stream).and_then(|graph| match graph {
            // SAFETY: the graph was found under the lock of the captures, which the caller still holds.
            Some(graph) => unsafe {
                self.give_to_graph(graph, register(RegisteredFunction::Pinned { _block: Arc::clone(block) }))
            },
            None => Ok(()),
        });
        if kept.is_err() {
            // The graph may contain the command all the same, and nothing reports when its last replay is over: the block
            // leaks.
            mem::forget(Arc::clone(block));
        }
        kept
    }

    /// Ties a registered object to the life of a graph and its executables.
    ///
    /// # Safety
    /// The graph is under construction by a capture that cannot end meanwhile: it was found under the lock of the captures,
    /// and the lock is held.
    unsafe fn give_to_graph(&self, graph: RawGraph, number: u64) -> Result<()> {
        let table = &self.cuda.table;
        let mut object = RawUserObject::default();
        // SAFETY: `release` takes any number; writes one handle.
        let outcome = unsafe {
            table.user_object_create(
                &raw mut object,
                number as *mut c_void,
                release,
                1,
                sys::USER_OBJECT_NO_DESTRUCTOR_SYNC,
            )
        };
        if let Err(error) = self.cuda.check(outcome, || "an object of a captured graph".to_owned()) {
            forget(number);
            return Err(error);
        }
        // SAFETY: the graph is alive, by the caller's promise; the object was just made and its only reference moves to the
        // graph.
        let outcome =
            unsafe { table.graph_retain_user_object(graph, object, 1, sys::GRAPH_USER_OBJECT_MOVE) };
        if let Err(error) = self.cuda.check(outcome, || "an object of a captured graph".to_owned()) {
            // SAFETY: the reference did not move; releasing it runs `release`.
            let _ = unsafe { table.user_object_release(object, 1) };
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn call(repeats: bool, fault: &Arc<Fault>, function: HostFunction) -> u64 {
        let fault = Arc::clone(fault);
        register(RegisteredFunction::Call(Call { function, label: Label::here("test"), fault, repeats }))
    }

    fn run_number(number: u64) {
        // SAFETY: `run` takes any number.
        unsafe { run(number as *mut c_void) };
    }

    #[test]
    fn a_single_call_runs_once_whatever_the_driver_does() {
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let fault = Arc::default();
        let number = call(
            false,
            &fault,
            Arc::new(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        run_number(number);
        run_number(number);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&count), 1, "the closure is dropped");
    }

    #[test]
    fn a_graphs_call_runs_until_the_graph_is_gone() {
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let fault = Arc::default();
        let number = call(
            true,
            &fault,
            Arc::new(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        run_number(number);
        run_number(number);
        // SAFETY: `release` takes any number.
        unsafe { release(number as *mut c_void) };
        run_number(number);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert_eq!(Arc::strong_count(&count), 1, "the closure is dropped");
    }

    #[test]
    fn a_panic_becomes_one_error_that_names_the_operator() {
        let fault: Arc<Fault> = Arc::default();
        let number = call(false, &fault, Arc::new(|| panic!("on purpose")));
        run_number(number);
        let error = fault.check().expect_err("the panic is reported");
        assert!(error.is_asynchronous());
        assert!(error.detail().contains("host function of test at") && error.detail().contains("on purpose"));
        fault.check().expect("once");
    }
}
