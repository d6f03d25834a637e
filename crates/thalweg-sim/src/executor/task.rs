//! The work of a command: kernels, copies, fills and host functions, executed on a thread of the machine.
//!
//! A task is immutable once it is queued, so that the launches of a graph can share it. It accesses memory only through the
//! places that the executor resolved when the task was chosen to run.
//!
//! # Memory of callers
//! A command may run long after the call that queued it, whatever that call returned: a wait can be refused (a deadlock,
//! the end of the run) or interrupted, and the program continues to use its memory. So no work keeps memory that is
//! borrowed from a caller. Each kind has something else instead:
//!
//! - `CopyIn` has a copy of the caller's bytes, made before it is queued.
//! - `CopyOut` borrows the caller's memory: the borrow ends when the call returns, whatever it returns, and from then on
//!   the command does not write ([`BorrowedTarget`]). No other command has a pointer into a caller's memory.
//! - `Copy`, `Fill`, `Kernel`, `Joint` and `ToCell` touch only memory of devices and pinned memory. They have its
//!   addresses, which are resolved when the command is chosen, and the range lock keeps these places mapped while they run.
//!   A call that removes memory and is refused has removed nothing.
//! - `Kernel` and `Host` run closures, which own what they use (`'static`), with arguments that were copied.
//! - A driver's call that touches the caller's memory itself (`host_read`, `host_write`) does so before it returns, and
//!   queues nothing.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use thalweg_driver::{
    Access, Code, FillPattern, GraphNodeWork, HostFunction, Label, host::HostFault, host::HostKernel,
    host::HostLaunch, host::PhysicalRanges, host::Resolve,
};
use thalweg_lock::Mutex;

use super::snapshot::Snapshot;
use crate::memory::{HostAddress, Memory, Resolved, Toucher};
use crate::refusal::Refusal;

/// Work with the bytes that it touches and the operator that submitted it.
pub(crate) struct Task {
    pub(crate) device: u32,
    pub(crate) label: Label,
    pub(crate) accesses: SmallVec<[Access; 4]>,
    pub(crate) work: Work,
}

/// The work of a command.
pub(crate) enum Work {
    /// A kernel, or library work.
    Kernel {
        kernel: Arc<dyn HostKernel>,
        /// The kernel's name in its module; library work has none.
        name: Option<Arc<str>>,
        grid: [u32; 3],
        block: [u32; 3],
        shared_memory_bytes: u32,
        arguments: SmallVec<[u8; 96]>,
    },
    /// Copies from the first access to the second, as if through a buffer.
    Copy,
    /// Copies from a buffer of the host to the only access.
    CopyIn(Box<[u8]>),
    /// Copies from the only access to host memory of a caller, as long as the caller waits for this command.
    CopyOut(Arc<HostTarget>),
    /// Writes the pattern to the only access.
    Fill(FillPattern),
    /// Copies the value at the only access, of one byte or four, to a cell of the host.
    ToCell(Arc<AtomicU32>),
    /// A function of the host.
    Host(HostFunction),
    /// The command waits at the [gate](super::plug::Gate), which can interpret the value. One of the commands that meet there
    /// runs for all of them.
    Gated(Box<dyn Any + Send + Sync>),
    /// The work that one gated command does for several.
    Joint(Box<dyn JointWork>),
}

/// Work over the memory of several devices.
pub(crate) trait JointWork: Send + Sync {
    /// Resolves the accesses of a task, each with the rights of its device.
    fn resolve(&self, memory: &Memory, accesses: &[Access]) -> Result<Resolved, String>;

    /// Does the work.
    ///
    /// # Safety
    /// As for [`Task::run`].
    unsafe fn run(&self, accesses: &[Access], resolved: &Resolved);
}

/// Host memory of a caller, until the caller leaves its call ([`BorrowedTarget`]).
///
/// The command of the copy may outlive that call, whose wait may be refused or interrupted. So the command has the memory
/// only through this, and writes only while it holds the lock and finds the address there.
pub(crate) struct HostTarget(Mutex<Option<HostAddress>>);

impl HostTarget {
    /// Writes `source` to the memory, if its caller still waits.
    ///
    /// # Safety
    /// `source` is valid for reads of `bytes` bytes, no more than the memory has; nothing writes them meanwhile, and they
    /// do not overlap the memory.
    unsafe fn write(&self, source: *const u8, bytes: usize) {
        let target = self.0.lock();
        if let Some(target) = *target {
            // SAFETY: the end of the borrow removes the address under the lock that is held here, before the borrow of the
            // memory ends. So the memory exists and is only ours, and it is as long as the borrowed slice. The rest is the
            // caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(source, target.pointer(), bytes) };
        }
    }
}

/// A borrow of host memory by a command. When it ends, by a return or by a panic, the command's target is removed.
pub(crate) struct BorrowedTarget<'a> {
    target: Arc<HostTarget>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> BorrowedTarget<'a> {
    /// Lends the memory.
    pub(crate) fn new(memory: &'a mut [u8]) -> Self {
        let address = HostAddress::new(memory.as_mut_ptr());
        Self { target: Arc::new(HostTarget(Mutex::new(Some(address)))), memory: PhantomData }
    }

    /// Returns the memory, for a command that writes no more bytes than it has.
    pub(crate) fn target(&self) -> Arc<HostTarget> {
        Arc::clone(&self.target)
    }
}

impl Drop for BorrowedTarget<'_> {
    fn drop(&mut self) {
        // This waits for a command that is writing now, which needs nothing else to end.
        *self.target.0.lock() = None;
    }
}

impl Task {
    /// Returns the rules that bind the task's accesses.
    pub(crate) fn toucher(&self) -> Toucher {
        if matches!(self.work, Work::Kernel { .. } | Work::ToCell(_)) {
            Toucher::Kernel
        } else {
            Toucher::Copy
        }
    }

    /// Describes the work for a graph's description.
    pub(crate) fn describe(&self) -> GraphNodeWork {
        let bytes = self.accesses.first().map_or(0, |access| access.bytes);
        match &self.work {
            Work::Kernel { name, grid, block, shared_memory_bytes, .. } => GraphNodeWork::Kernel {
                name: Some(name.as_deref().unwrap_or(self.label.operator).to_owned()),
                grid: *grid,
                block: *block,
                shared_memory_bytes: *shared_memory_bytes,
            },
            Work::ToCell(_) => GraphNodeWork::Kernel {
                name: Some(format!("thalweg_condition_u{}", 8 * bytes)),
                grid: [1; 3],
                block: [1; 3],
                shared_memory_bytes: 0,
            },
            Work::Copy | Work::CopyIn(_) | Work::CopyOut(_) => GraphNodeWork::Copy { bytes },
            Work::Fill(_) => GraphNodeWork::Fill { bytes },
            Work::Host(_) | Work::Gated(_) | Work::Joint(_) => GraphNodeWork::Unknown,
        }
    }

    /// Resolves the task's accesses.
    pub(crate) fn resolve(&self, memory: &Memory) -> Result<Resolved, String> {
        match &self.work {
            Work::Joint(joint) => joint.resolve(memory, &self.accesses),
            _ => memory.resolve(self.device, &self.accesses, self.toucher()),
        }
    }

    /// Does the work. A panic of the program's code is a failed launch.
    ///
    /// # Safety
    /// `resolved` is the result of [`resolve`](Self::resolve) for the accesses of this task and is still valid. Until this
    /// returns, no other command and no host access touches these bytes in conflict.
    pub(crate) unsafe fn run(&self, resolved: &Resolved) -> Result<(), Refusal> {
        let failed =
            |text: String| Refusal::new(Code::LaunchFailed, format!("`{}` failed: {text}", self.label));
        // SAFETY: the caller's promise.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { self.execute(resolved) }));
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(HostFault(text))) => Err(failed(text)),
            Err(payload) => {
                let text = panic_text(payload.as_ref()).to_owned();
                // The payload is the program's own value, so a panic of its destructor is caught as well.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
                Err(failed(format!("it panicked: {text}")))
            }
        }
    }

    /// Does the work on the contents that memory had when the command began, and writes the bytes that it changed.
    ///
    /// # Safety
    /// As for `run`.
    pub(crate) unsafe fn run_from(&self, mut snapshot: Snapshot, resolved: &Resolved) -> Result<(), Refusal> {
        let private = snapshot.resolved(&self.accesses, resolved);
        // SAFETY: the copy contains every access, initialised, and nothing else uses it.
        unsafe { self.run(&private)? };
        // SAFETY: the caller's promise.
        unsafe { snapshot.write_back(&self.accesses, resolved) };
        Ok(())
    }

    /// # Safety
    /// As for `run`.
    unsafe fn execute(&self, resolved: &Resolved) -> Result<(), HostFault> {
        let bytes = |access: usize| self.accesses[access].bytes as usize;
        let pointer = |access: usize| resolved.pointers[access].map(HostAddress::pointer);
        match &self.work {
            Work::Kernel { kernel, grid, block, arguments, .. } => {
                let memory = Reach { accesses: &self.accesses, resolved };
                // SAFETY: the accesses are this command's, it is running, and this is the only view of this run.
                let launch = unsafe { HostLaunch::new(*grid, *block, arguments, &self.accesses, &memory) };
                return kernel.run(&launch);
            }
            Work::ToCell(cell) => {
                let mut value = [0; 4];
                if let Some(source) = pointer(0) {
                    // SAFETY: the range is resolved and locked for this command, and of one byte or four.
                    unsafe { std::ptr::copy_nonoverlapping(source, value.as_mut_ptr(), bytes(0).min(4)) };
                }
                cell.store(u32::from_le_bytes(value), Ordering::Relaxed);
            }
            Work::Host(function) => function(),
            Work::Gated(_) => unreachable!("what is gated never runs: joint work does"),
            // SAFETY: the caller's promise.
            Work::Joint(joint) => unsafe { joint.run(&self.accesses, resolved) },
            Work::Copy => {
                if let (Some(source), Some(target)) = (pointer(0), pointer(1)) {
                    // SAFETY: both ranges are resolved and locked for this command; they may overlap.
                    unsafe { std::ptr::copy(source, target, bytes(0)) };
                }
            }
            Work::CopyIn(source) => {
                if let Some(target) = pointer(0) {
                    // SAFETY: the range is resolved and locked for this command and as long as the buffer, which is
                    // memory of its own.
                    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
                }
            }
            Work::CopyOut(target) => {
                if let Some(source) = pointer(0) {
                    // SAFETY: the range is resolved and locked for this command, and as long as the target, which is
                    // separate memory: a caller's, not a device's.
                    unsafe { target.write(source, bytes(0)) };
                }
            }
            Work::Fill(pattern) => {
                if let Some(target) = pointer(0) {
                    // SAFETY: the range is resolved and locked for this command, which makes no other reference to it.
                    let target = unsafe { std::slice::from_raw_parts_mut(target, bytes(0)) };
                    fill(target, *pattern);
                }
            }
        }
        Ok(())
    }
}

fn fill(target: &mut [u8], pattern: FillPattern) {
    match pattern {
        FillPattern::U8(value) => target.fill(value),
        FillPattern::U16(value) => repeat(target, value.to_le_bytes()),
        FillPattern::U32(value) => repeat(target, value.to_le_bytes()),
    }
}

fn repeat<const N: usize>(target: &mut [u8], unit: [u8; N]) {
    for chunk in target.chunks_exact_mut(N) {
        chunk.copy_from_slice(&unit);
    }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

/// The memory that a running kernel can access.
struct Reach<'a> {
    accesses: &'a [Access],
    resolved: &'a Resolved,
}

// SAFETY: `Task::run` is only called with accesses that were resolved under the machine's lock and are held by the range
// lock until it returns, so the bytes stay mapped and no conflicting command runs. The bytes are initialised: files and
// anonymous mappings read as zeros before they are written. The pieces of an access are its physical ranges in order.
unsafe impl Resolve for Reach<'_> {
    fn resolve(&self, start: u64, bytes: u64) -> Result<(*mut u8, PhysicalRanges), HostFault> {
        let inside = |access: &Access| {
            access.start <= start && start.saturating_add(bytes) <= access.start.saturating_add(access.bytes)
        };
        let number = self.accesses.iter().position(inside);
        let found = number.and_then(|number| Some((number, self.resolved.pointers[number]?)));
        let Some((number, base)) = found else {
            return Err(HostFault(format!("{bytes} bytes from {start:#x} on are not declared")));
        };
        let offset = start - self.accesses[number].start;
        let mut ranges = PhysicalRanges::new();
        let (mut skip, mut left) = (offset, bytes);
        for piece in self.resolved.pieces.iter().filter(|piece| piece.access as usize == number) {
            let before = skip.min(piece.bytes);
            let length = (piece.bytes - before).min(left);
            if length > 0 {
                ranges.push((piece.start + before, length));
            }
            skip -= before;
            left -= length;
        }
        Ok((base.pointer().wrapping_add(offset as usize), ranges))
    }
}
