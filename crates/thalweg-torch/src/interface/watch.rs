//! The state and its changes: statistics, snapshots, histories, observers.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use thalweg_memory::history::{
    CompileRegion, ContextLevel, Enabled, HistorySettings, ScopeStage, StackId, set_user_metadata,
    user_metadata,
};
use thalweg_memory::observe::OutOfMemoryEvent;
use thalweg_snapshot::Action;

use super::{User, Write, give, on, on_unless_forked, put};
use crate::allocator::Allocator;
use crate::observers::{Observer, OutOfMemoryObserver};
use crate::snapshot::{EventC, VisitorC, event_of, stack_of, take, visit};
use crate::stacks::{Recorder, Stacks, as_numbers, without_stacks};
use crate::statistics::{StatisticC, StatisticsC};
use crate::status::{Error, Status, answer, text_of};
use thalweg_runtime::invalid;

exports! {
    /// Returns the statistics of a device.
    on(allocator) thalweg_device_statistics(device: i32, statistics: *mut StatisticsC) {
        let found =
            allocator.opened(device).map(|device| device.allocator().statistics()).unwrap_or_default();
        // SAFETY: the header requires a place.
        unsafe { put(statistics, StatisticsC::from(&found)) }
    }

    /// Returns the memory that each private pool has taken from the driver.
    on(allocator) thalweg_private_pool_statistics(
        device: i32, give: unsafe extern "C" fn(*mut c_void, u64, u64, *const StatisticC), user: *mut c_void
    ) {
        let Some(device) = allocator.opened(device) else { return Ok(()) };
        for (pool, reserved) in device.allocator().statistics().reserved_bytes_by_private_pools {
            let (name, reserved) = (device.pools.name((0, pool.raw())), StatisticC::from(&reserved));
            // SAFETY: the header requires a function that takes `user`.
            unsafe { give(user, name.0, name.1, &raw const reserved) };
        }
        Ok(())
    }

    /// Returns the statistics under PyTorch's keys, one `key value` per line.
    on(allocator) thalweg_memory_stats(device: i32, write: Write, user: *mut c_void) {
        let found =
            allocator.opened(device).map(|device| device.allocator().statistics()).unwrap_or_default();
        let entries = found.memory_stats();
        let text: String = entries.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, text.as_bytes()) };
        Ok(())
    }

    /// Returns the statistics as a table.
    on(allocator) thalweg_memory_summary(device: i32, abbreviated: u8, write: Write, user: *mut c_void) {
        let found =
            allocator.opened(device).map(|device| device.allocator().statistics()).unwrap_or_default();
        let text = found.memory_summary(&format!("GPU {device}"), abbreviated != 0);
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, text.as_bytes()) };
        Ok(())
    }

    /// Resets every peak to the current value.
    on(allocator) thalweg_reset_peak_statistics(device: i32) {
        if let Some(device) = allocator.opened(device) {
            device.allocator().reset_peak_memory_stats();
        }
        Ok(())
    }

    /// Sets every sum to 0.
    on(allocator) thalweg_reset_accumulated_statistics(device: i32) {
        if let Some(device) = allocator.opened(device) {
            device.allocator().reset_accumulated_memory_stats();
        }
        Ok(())
    }

    /// Returns a snapshot, part by part.
    on(allocator) thalweg_visit_snapshot(first: u64, second: u64, include_traces: u8, visitor: *const VisitorC) {
        // SAFETY: the header requires a whole visitor.
        let visitor = unsafe { visitor.as_ref() };
        let visitor = visitor.ok_or_else(|| invalid!("the visitor is a null pointer"))?;
        let _context = allocator.keep_context();
        // SAFETY: the header requires functions that take the visitor's `user`.
        unsafe { visit(allocator, (first, second), include_traces != 0, visitor) }
    }

    /// Returns a snapshot as a file.
    on(allocator) thalweg_write_snapshot(as_json: u8, write: Write, user: *mut c_void) {
        let _context = allocator.keep_context();
        let snapshot = take(allocator, (0, 0), true)?;
        let bytes = if as_json != 0 { snapshot.to_json().into_bytes() } else { snapshot.to_pickle() };
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, &bytes) };
        Ok(())
    }
}

/// `thalweg_history_settings`: the arguments of PyTorch's `_record_memory_history`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct HistorySettingsC {
    pub enabled: u8,
    pub context: u8,
    pub clear_history: u8,
    pub compile_context: u8,
    pub record_annotations: u8,
    pub skip_actions: u32,
    pub max_entries: u64,
}

exports! {
    /// Starts to record the history.
    on(allocator) thalweg_record_history(settings: *const HistorySettingsC) {
        // SAFETY: the header requires whole settings.
        let settings = unsafe { settings.as_ref() };
        let settings = settings.ok_or_else(|| invalid!("the settings are a null pointer"))?;
        let context = match settings.context {
            0 => ContextLevel::Never,
            1 => ContextLevel::State,
            2 => ContextLevel::Alloc,
            _ => ContextLevel::All,
        };
        let enabled = match settings.enabled {
            0 => Enabled::Off,
            1 => Enabled::State,
            _ => Enabled::All,
        };
        let skipped =
            Action::ALL.into_iter().filter(|action| settings.skip_actions >> *action as u32 & 1 == 1);
        allocator.record_history(HistorySettings {
            enabled,
            context,
            max_entries: usize::try_from(settings.max_entries).unwrap_or(usize::MAX).max(1),
            skip_actions: skipped.collect(),
            clear_history: settings.clear_history != 0,
            compile_context: settings.compile_context != 0,
            record_annotations: settings.record_annotations != 0,
        });
        Ok(())
    }
}

/// `thalweg_stack_recorder`: functions that keep stacks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct StackRecorderC {
    pub user: *mut c_void,
    pub take: unsafe extern "C" fn(*mut c_void, u32) -> u8,
    pub forget: unsafe extern "C" fn(*mut c_void, u32),
}

// SAFETY: the header requires that they can be called on any thread, by several at a time.
unsafe impl Send for StackRecorderC {}
// SAFETY: as above.
unsafe impl Sync for StackRecorderC {}

impl Recorder for StackRecorderC {
    fn take(&self, stack: StackId) -> bool {
        // SAFETY: the header requires a function that takes `user`.
        (unsafe { (self.take)(self.user, stack.get()) }) != 0
    }

    fn forget(&self, stack: StackId) {
        // SAFETY: as above.
        unsafe { (self.forget)(self.user, stack.get()) };
    }
}

exports! {
    /// Sets the recorder of stacks.
    on(allocator) thalweg_record_stacks_by(recorder: *const StackRecorderC) {
        // SAFETY: the header requires a whole recorder.
        let recorder = unsafe { recorder.as_ref() };
        let recorder = *recorder.ok_or_else(|| invalid!("the recorder is a null pointer"))?;
        let is_first = allocator.stacks.set_recorder(Box::new(recorder));
        if is_first { Ok(()) } else { Err(invalid!("there is a recorder of stacks already")) }
    }

    /// Stops taking stacks.
    on_unless_forked(allocator) thalweg_stop_stacks() {
        allocator.stacks.stop();
        Ok(())
    }
}

/// Adds an observer of each event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_observe_events(
    allocator: Option<&Allocator>,
    reported: unsafe extern "C" fn(*mut c_void, *const EventC),
    user: *mut c_void,
) -> Status {
    let user = User::new(user, None);
    on("thalweg_observe_events", allocator, |allocator| {
        allocator.observe(Observer::Event(Arc::new(move |device, event| {
            let event = event_of(device, event);
            // SAFETY: the header requires a function that takes `user`, on any thread.
            unsafe { reported(user.pointer(), &raw const event) };
        })));
        Ok(())
    })
}

/// The observer function of [`thalweg_observe_out_of_memory`]. Its arguments are the device, the requested size, the limit, and
/// the free memory.
type FailureObserver = unsafe extern "C" fn(*mut c_void, i32, u64, u64, u64);

/// Returns an observer that may be Python's: it is not called while the interpreter ends.
fn failure_observer(
    stacks: &Arc<Stacks>,
    reported: FailureObserver,
    user: *mut c_void,
) -> OutOfMemoryObserver {
    let (user, stacks) = (User::new(user, None), Arc::clone(stacks));
    Arc::new(move |event| {
        let OutOfMemoryEvent { device, size_bytes, allowed_bytes, free_bytes } = *event;
        // SAFETY: the header requires a function that takes `user`, on any thread.
        stacks.pass(|| unsafe { reported(user.pointer(), device, size_bytes, allowed_bytes, free_bytes) });
    })
}

exports! {
    /// Adds an observer that is called when memory runs out.
    on(allocator) thalweg_observe_out_of_memory(reported: FailureObserver, user: *mut c_void) {
        allocator.observe(Observer::OutOfMemory(failure_observer(&allocator.stacks, reported, user)));
        Ok(())
    }

    /// Adds an observer that is called when a request is refused without an attempt.
    on(allocator) thalweg_observe_rejections(reported: FailureObserver, user: *mut c_void) {
        allocator.observe(Observer::Rejection(failure_observer(&allocator.stacks, reported, user)));
        Ok(())
    }
}

/// Adds a function that is called to free memory when it is short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_add_free_memory_callback(
    allocator: Option<&Allocator>,
    asked: unsafe extern "C" fn(*mut c_void) -> u8,
    user: *mut c_void,
) -> Status {
    let user = User::new(user, None);
    on("thalweg_add_free_memory_callback", allocator, |allocator| {
        let stacks = Arc::clone(&allocator.stacks);
        allocator.observe(Observer::FreeMemory(Arc::new(move || {
            // SAFETY: the header requires a function that takes `user`, on any thread.
            let ask = || without_stacks(|| unsafe { asked(user.pointer()) }) != 0;
            stacks.pass(ask).unwrap_or(false)
        })));
        Ok(())
    })
}

exports! {
    /// Returns the stack at which a block was allocated.
    on(allocator) thalweg_stack_of_block(address: u64, stack: *mut u32) {
        let block = allocator.find(address)?;
        let device = allocator.device(block.device)?;
        let frames = as_numbers(|| device.allocator().allocation_traceback(address));
        // SAFETY: the header requires a place.
        unsafe { put(stack, frames.map_or(0, |frames| stack_of(&frames))) }
    }

    /// Attaches a text to a block.
    on(allocator) thalweg_annotate_block(address: u64, text: *const c_char) {
        let block = allocator.find(address)?;
        // SAFETY: the header requires a text.
        let text = unsafe { text_of("text", text)? };
        allocator.device(block.device)?.allocator().annotate(address, text);
        Ok(())
    }

    /// Records the begin or the end of a scope of the program.
    on(allocator) thalweg_annotate_scope(device: i32, name: *const c_char, is_start: u8) {
        // SAFETY: the header requires a text.
        let name = unsafe { text_of("name", name)? };
        let stage = if is_start != 0 { ScopeStage::Start } else { ScopeStage::End };
        if let Some(device) = allocator.opened(device) {
            device.allocator().annotate_scope(name, stage);
        }
        Ok(())
    }
}

/// Sets the text that is attached to the thread's events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_user_metadata(text: *const c_char) -> Status {
    answer("thalweg_set_user_metadata", || {
        // SAFETY: the header requires a text.
        set_user_metadata(unsafe { text_of("metadata", text)? });
        Ok(())
    })
}

/// Returns the text that is attached to the thread's events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_user_metadata(write: Write, user: *mut c_void) -> Status {
    answer("thalweg_user_metadata", || {
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, user_metadata().as_bytes()) };
        Ok(())
    })
}

thread_local! {
    static REGIONS: RefCell<Vec<CompileRegion>> = const { RefCell::new(Vec::new()) };
}

/// Enters a compile context on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_push_compile_context(name: *const c_char) -> Status {
    answer("thalweg_push_compile_context", || {
        // SAFETY: the header requires a text.
        let region = CompileRegion::enter(unsafe { text_of("name", name)? });
        REGIONS.with_borrow_mut(|regions| regions.push(region));
        Ok(())
    })
}

/// Leaves the compile context that the calling thread entered last.
#[unsafe(no_mangle)]
pub extern "C" fn thalweg_pop_compile_context() -> Status {
    answer("thalweg_pop_compile_context", || {
        drop(REGIONS.with_borrow_mut(Vec::pop));
        Ok(())
    })
}
