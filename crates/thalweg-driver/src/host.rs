//! Host functions, which the simulator runs where a GPU would run a kernel.
//!
//! A host function sees device memory through [`HostLaunch`], and only inside the ranges that its launch declared. This
//! makes racy user programs safe: the executor never runs two commands with conflicting ranges at once, so a command has
//! its declared ranges for itself. [`HostLaunch`] checks that the function stays inside them, and that it has no mutable
//! slice over bytes that it has also borrowed otherwise.

use std::cell::{Cell, RefCell};
use std::fmt;

use bytemuck::Pod;
use smallvec::SmallVec;

use crate::DevicePointer;
use crate::command::{Access, AccessMode};

/// A kernel as a host function.
pub trait HostKernel: Send + Sync {
    /// Does the work of the whole grid.
    ///
    /// Runs on a thread of the simulator, in stream order. An error becomes
    /// [`Code::LaunchFailed`](crate::Code::LaunchFailed), sticky and asynchronous, with the fault's text. A panic is
    /// caught and becomes the same.
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault>;
}

impl<F> HostKernel for F
where
    F: Fn(&HostLaunch<'_>) -> Result<(), HostFault> + Send + Sync,
{
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        self(launch)
    }
}

/// The reason why a host function failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFault(pub String);

impl fmt::Display for HostFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HostFault {}

/// The executor's resolution of device addresses to host memory.
///
/// # Safety
/// For a range inside the declared accesses of the running command, `resolve` returns a pointer to `bytes` contiguous,
/// initialised bytes that stay mapped while the command runs. No other command that conflicts with the declared accesses
/// runs meanwhile. Two ranges share bytes exactly where their physical ranges do.
pub unsafe trait Resolve {
    /// Returns the host address of a device range and its physical ranges.
    fn resolve(&self, start: u64, bytes: u64) -> Result<(*mut u8, PhysicalRanges), HostFault>;
}

/// Physical ranges: the first physical address and the bytes of each. Virtual memory can be mapped twice, so two addresses
/// may name one byte; physical addresses are unique.
pub type PhysicalRanges = SmallVec<[(u64, u64); 1]>;

/// The alignment, in bytes, of device memory as a host function sees it. A controlled simulator passes copies to updates,
/// and these copies are not aligned further.
pub const ALIGNMENT: usize = align_of::<u128>();

/// The data-dependent bytes of an access in one run of its command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touched {
    /// The ticket of the access ([`Touch::Chosen`](crate::Touch::Chosen)).
    pub ticket: u64,
    /// The first address and the bytes of each part, in any order. Parts may overlap.
    pub parts: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Borrow {
    Shared,
    Cells,
    Exclusive,
}

/// A running launch as its host function sees it.
pub struct HostLaunch<'a> {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// The arguments, as the launch packed them.
    pub arguments: &'a [u8],
    accesses: &'a [Access],
    memory: &'a dyn Resolve,
    /// The physical ranges that the kernel has borrowed.
    borrows: RefCell<SmallVec<[(u64, u64, Borrow); 16]>>,
    /// The bytes that the kernel has reported for accesses with a ticket.
    touched: RefCell<Vec<Touched>>,
}

impl<'a> HostLaunch<'a> {
    /// Creates the view of a launch that its host function gets.
    ///
    /// # Safety
    /// `accesses` are the declared accesses of the command that is running, and no other `HostLaunch` of that run exists.
    pub unsafe fn new(
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &'a [u8],
        accesses: &'a [Access],
        memory: &'a dyn Resolve,
    ) -> Self {
        Self {
            grid,
            block,
            arguments,
            accesses,
            memory,
            borrows: RefCell::default(),
            touched: RefCell::default(),
        }
    }

    /// Returns whether any of the launch's accesses has a ticket, so that the kernel must report data-dependent bytes.
    pub fn has_tickets(&self) -> bool {
        self.accesses.iter().any(|access| access.ticket() != 0)
    }

    /// Reports which bytes of an operand the kernel touches, if its launch declared that data chooses them: the first
    /// address and the bytes of each part. `operand` is the access as the launch declared it, except for its `touch`, which
    /// does not matter. A kernel reports all parts of every operand that shares the access, because bytes that it leaves
    /// out count as not touched.
    pub fn touched(&self, operand: &Access, parts: impl IntoIterator<Item = (u64, u64)>) {
        let is_it = |access: &&Access| {
            let range = (access.start, access.bytes, access.mode);
            access.ticket() != 0 && range == (operand.start, operand.bytes, operand.mode)
        };
        let Some(access) = self.accesses.iter().find(is_it) else { return };
        let (ticket, mut touched) = (access.ticket(), self.touched.borrow_mut());
        match touched.iter_mut().find(|touched| touched.ticket == ticket) {
            Some(known) => known.parts.extend(parts),
            None => touched.push(Touched { ticket, parts: parts.into_iter().collect() }),
        }
    }

    /// Takes all bytes that were reported by [`touched`](Self::touched).
    pub fn take_touched(&self) -> Vec<Touched> {
        self.touched.take()
    }

    /// Borrows `count` elements from `start` on for reading. The range must be inside one declared access. The alignment of
    /// `T` is at most 16 bytes, here and in the methods below.
    pub fn read<T: Pod>(&self, start: DevicePointer, count: usize) -> Result<&[T], HostFault> {
        let pointer = self.borrow::<T>(start, count, Borrow::Shared)?;
        // SAFETY: `borrow` checked that the range is declared and mapped, that its address here is aligned, and that this
        // command has no mutable slice or cells over it; `Resolve` promises that no conflicting command runs while this one
        // does.
        Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
    }

    /// Borrows `count` elements from `start` on for writing. The range must be inside one declared access that writes, and
    /// must not overlap any other range that this launch has borrowed.
    #[allow(clippy::mut_from_ref)] // the exclusive borrow is checked at run time, as a RefCell's is
    pub fn write<T: Pod>(&self, start: DevicePointer, count: usize) -> Result<&mut [T], HostFault> {
        let pointer = self.borrow::<T>(start, count, Borrow::Exclusive)?;
        // SAFETY: as in `read`; `borrow` also checked that nothing else of this command overlaps the range.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
    }

    /// Borrows `count` elements from `start` on as cells, which may alias other cells: for the output of an in-place kernel
    /// and the input that overlaps it. The range must be inside one declared access that writes.
    pub fn cells<T: Pod>(&self, start: DevicePointer, count: usize) -> Result<&[Cell<T>], HostFault> {
        let pointer = self.borrow::<T>(start, count, Borrow::Cells)?;
        // SAFETY: as in `read`; `Cell<T>` has the layout of `T`, cells may alias one another, `borrow` checked that no
        // slice of this command overlaps them, and cells are not `Sync`, so they stay on this thread.
        Ok(unsafe { std::slice::from_raw_parts(pointer.cast::<Cell<T>>(), count) })
    }

    fn borrow<T: Pod>(&self, start: DevicePointer, count: usize, kind: Borrow) -> Result<*mut T, HostFault> {
        let address = start.address();
        if align_of::<T>() > ALIGNMENT {
            return Err(HostFault(format!(
                "elements are aligned to {} bytes; a host function has device memory aligned to {ALIGNMENT}",
                align_of::<T>()
            )));
        }
        let bytes = (count as u64)
            .checked_mul(size_of::<T>() as u64)
            .ok_or_else(|| HostFault(format!("{count} elements of {} bytes: too many", size_of::<T>())))?;
        if bytes == 0 {
            return Ok(std::ptr::NonNull::<T>::dangling().as_ptr());
        }
        let declared = self.accesses.iter().any(|access| {
            contains(access, address, bytes) && (kind == Borrow::Shared || access.mode != AccessMode::Read)
        });
        if !declared {
            return Err(HostFault(format!(
                "the kernel touches [{address:#x}, {:#x}), which its launch does not declare for this use; declared: {:?}",
                address.saturating_add(bytes),
                self.accesses
            )));
        }
        if !address.is_multiple_of(align_of::<T>() as u64) {
            return Err(HostFault(format!(
                "address {address:#x} is not aligned to {} bytes",
                align_of::<T>()
            )));
        }
        let (pointer, ranges) = self.memory.resolve(address, bytes)?;
        assert!(
            pointer.cast::<T>().is_aligned(),
            "host memory is as round as device memory, up to {ALIGNMENT}"
        );
        let mut borrows = self.borrows.borrow_mut();
        for (start, length) in ranges {
            let mut held = false;
            for &(other, other_length, other_kind) in borrows.iter() {
                let overlaps = other < start + length && start < other + other_length;
                if overlaps && (kind == Borrow::Exclusive || other_kind != kind) {
                    return Err(HostFault(format!(
                        "the kernel holds [{address:#x}, {:#x}) twice, once mutably: in-place kernels ask for cells",
                        address + bytes
                    )));
                }
                held |= overlaps && other <= start && start + length <= other + other_length;
            }
            if !held {
                borrows.push((start, length, kind));
            }
        }
        Ok(pointer.cast())
    }
}

fn contains(access: &Access, start: u64, bytes: u64) -> bool {
    access.start <= start && start.saturating_add(bytes) <= access.start.saturating_add(access.bytes)
}
