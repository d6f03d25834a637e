//! A kernel that reads early and writes late.
//!
//! Two kernels on a GPU overlap: both may read before either writes, and one update is lost. Running one command at a time
//! never shows this. So a controlled machine can run a kernel that updates memory in two halves. At its beginning it copies
//! all memory that the kernel declares. At its end the kernel works on the copy, and the bytes that it changed are written
//! to the real memory. Other commands run in between.
//!
//! A byte that the kernel writes without changing it is not written: that is the outcome in which this write came first.

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode};

use crate::memory::{HostAddress, Resolved};

/// The greatest number of bytes that are copied: a kernel with more runs in one piece.
pub(crate) const MOST_BYTES: u64 = 64 << 10;

/// The contents of a kernel's memory when it began.
pub(crate) struct Snapshot {
    stretches: SmallVec<[Stretch; 2]>,
}

/// Addresses without a gap.
struct Stretch {
    start: u64,
    before: Vec<u8>,
    /// The kernel's own copy. Aligned as device memory is, up to [`ALIGNMENT`](thalweg_driver::host::ALIGNMENT).
    work: Vec<u128>,
}

/// Returns whether the kernel updates memory, so that running it in halves makes a difference.
pub(crate) fn is_update(accesses: &[Access]) -> bool {
    let total = accesses.iter().fold(0_u64, |sum, access| sum.saturating_add(access.bytes));
    let meets = |left: &Access, right: &Access| {
        left.start < right.start + right.bytes && right.start < left.start + left.bytes
    };
    let updates = |access: &Access| match access.mode {
        AccessMode::ReadWrite => true,
        AccessMode::Read => accesses.iter().any(|other| other.mode.writes() && meets(access, other)),
        AccessMode::Write => false,
    };
    total <= MOST_BYTES && accesses.iter().any(updates)
}

impl Snapshot {
    /// Copies the memory that the accesses touch.
    ///
    /// # Safety
    /// `resolved` are the places of the accesses. They are still valid, and no command that conflicts with them runs.
    pub(crate) unsafe fn take(accesses: &[Access], resolved: &Resolved) -> Self {
        let mut ranges: SmallVec<[(u64, u64); 4]> = accesses
            .iter()
            .filter(|access| access.bytes > 0)
            .map(|access| (access.start, access.bytes))
            .collect();
        ranges.sort_unstable();
        let mut stretches: SmallVec<[Stretch; 2]> = SmallVec::new();
        for (start, bytes) in ranges {
            match stretches.last_mut() {
                Some(last) if start <= last.start + last.before.len() as u64 => {
                    let length = last.before.len().max((start - last.start + bytes) as usize);
                    last.before.resize(length, 0);
                }
                _ => stretches.push(Stretch { start, before: vec![0; bytes as usize], work: Vec::new() }),
            }
        }
        let mut snapshot = Self { stretches };
        for (access, pointer) in accesses.iter().zip(&resolved.pointers) {
            let Some(pointer) = pointer else { continue };
            let (stretch, offset) = snapshot.stretch(access.start);
            let target = &mut stretch.before[offset..offset + access.bytes as usize];
            // SAFETY: the caller's promise: the bytes exist and nothing writes them. The target is separate memory.
            unsafe { std::ptr::copy_nonoverlapping(pointer.pointer(), target.as_mut_ptr(), target.len()) };
        }
        for stretch in &mut snapshot.stretches {
            let skip = (stretch.start % 16) as usize;
            stretch.work = vec![0; (skip + stretch.before.len()).div_ceil(16)];
            let (from, to) = (skip, skip + stretch.before.len());
            bytemuck::cast_slice_mut::<u128, u8>(&mut stretch.work)[from..to]
                .copy_from_slice(&stretch.before);
        }
        snapshot
    }

    fn stretch(&mut self, address: u64) -> (&mut Stretch, usize) {
        let inside = |stretch: &&mut Stretch| {
            stretch.start <= address && address < stretch.start + stretch.before.len() as u64
        };
        let stretch = self.stretches.iter_mut().find(inside).expect("every access lies in a stretch");
        let offset = (address - stretch.start) as usize;
        (stretch, offset)
    }

    /// Resolves the accesses in the copy. The result is valid as long as the snapshot is neither moved out of nor changed.
    pub(crate) fn resolved(&mut self, accesses: &[Access], real: &Resolved) -> Resolved {
        let mut pointers = SmallVec::new();
        for (access, pointer) in accesses.iter().zip(&real.pointers) {
            pointers.push(pointer.is_some().then(|| {
                let (stretch, offset) = self.stretch(access.start);
                let skip = (stretch.start % 16) as usize;
                let work = stretch.work.as_mut_ptr().cast::<u8>();
                HostAddress::new(work.wrapping_add(skip + offset))
            }));
        }
        Resolved { pointers, pieces: real.pieces.clone() }
    }

    /// Writes the bytes that the kernel changed.
    ///
    /// # Safety
    /// As for [`take`](Self::take), at this moment.
    pub(crate) unsafe fn write_back(&mut self, accesses: &[Access], resolved: &Resolved) {
        for (access, pointer) in accesses.iter().zip(&resolved.pointers) {
            let Some(pointer) = pointer.filter(|_| access.mode.writes()) else { continue };
            let (stretch, offset) = self.stretch(access.start);
            let skip = (stretch.start % 16) as usize + offset;
            let work = bytemuck::cast_slice::<u128, u8>(&stretch.work);
            for byte in 0..access.bytes as usize {
                if work[skip + byte] != stretch.before[offset + byte] {
                    // SAFETY: the caller's promise: the bytes of the access exist, and nothing else touches them.
                    unsafe { pointer.pointer().add(byte).write(work[skip + byte]) };
                }
            }
        }
    }
}
