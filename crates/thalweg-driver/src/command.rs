//! The commands that a stream carries, with the byte ranges that they touch and a label.
//!
//! CUDA's launch takes a function and its arguments. Ours takes two things more, which cost the CUDA driver nothing (it
//! ignores them) and on which everything else rests:
//!
//! - **accesses**, the byte ranges that the command reads and writes: the simulator orders commands by them (two
//!   commands whose ranges conflict never run at once), race detection and reuse in capture read them;
//! - a **label**, the operator and the source line: what an asynchronous error, a trace and a report name.
//!
//! This module and `host` use each other: a launch carries a host function, which sees the ranges of the launch.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::host::HostKernel;
use crate::library::GpuCall;
use crate::program_line::{SourceLine, program_line};
use crate::{DevicePointer, FunctionHandle, HostPointer};

/// The origin of a command: the operator's name and the line of source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The operator (`add`, `matmul`, `copy`).
    pub operator: &'static str,
    /// The place where it was called.
    pub location: &'static Location<'static>,
    /// The line of a program in another language that called it.
    pub program: Option<&'static SourceLine>,
}

impl Label {
    /// Creates a label for `operator`, called where this function is called.
    #[track_caller]
    pub fn here(operator: &'static str) -> Self {
        Self::at(operator, Location::caller())
    }

    /// Creates a label for `operator`, called at `location`.
    pub fn at(operator: &'static str, location: &'static Location<'static>) -> Self {
        Self { operator, location, program: program_line() }
    }

    /// Returns the line that people look for: that of the program in another language, where there is one.
    pub fn source(self) -> SourceLine {
        self.program.copied().unwrap_or_else(|| self.location.into())
    }

    /// Returns a key that labels of one operator and line share, as long as the process lives.
    pub fn key(self) -> (usize, usize) {
        let line = self
            .program
            .map_or(std::ptr::from_ref(self.location).addr(), |line| std::ptr::from_ref(line).addr());
        (self.operator.as_ptr().addr(), line)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLine { file, line } = self.source();
        write!(f, "{} at {file}:{line}", self.operator)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Label({self})")
    }
}

/// The flags with which an event is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventFlags {
    /// Whether it takes the time when it is reached. Events without are cheaper.
    pub timing: bool,
    /// Whether `event_synchronize` sleeps instead of spinning.
    pub blocking_sync: bool,
}

/// A function of the host that runs in stream order. It must not call the driver.
pub type HostFunction = Arc<dyn Fn() + Send + Sync>;

/// The way in which a command touches a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessMode {
    /// It reads.
    Read,
    /// It writes, and may read what it wrote.
    Write,
    /// It reads what was there before and writes.
    ReadWrite,
}

impl AccessMode {
    /// Returns whether the command may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// Bytes again and again at one distance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StrideStep {
    /// Bytes from each to the next.
    pub bytes: u64,
    /// The number of times; with 1 the step is none.
    pub count: u64,
}

impl StrideStep {
    /// No step.
    pub const NONE: Self = Self { bytes: 0, count: 1 };
}

/// The number of steps that can be said of a strided operand.
pub const STEPS: usize = 4;

/// The bytes of its range that a command touches. Drivers order commands by whole ranges; a sanitizer would
/// raise false alarms over the gaps of strided operands if it did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Touch {
    /// Every byte.
    #[default]
    All,
    /// The first `chunk_bytes` from the start on, and the same again at each step, and all of that at each of the next step,
    /// and nothing between: the bytes of a block of a matrix, say, or of a tensor. Each step is as long at least as
    /// what it repeats.
    Strided {
        /// Bytes that follow one another; at least 1.
        chunk_bytes: u64,
        /// From the shortest step to the longest.
        steps: [StrideStep; STEPS],
    },
    /// Some bytes, which ones is not said.
    Some {
        /// The greatest number of bytes.
        most_bytes: u64,
    },
    /// Some bytes, which data chooses: a host function says which when it runs
    /// ([`HostLaunch::touched`](crate::HostLaunch::touched)).
    Chosen {
        /// The greatest number of bytes.
        most_bytes: u64,
        /// The number under which it is noted which they are; 0 if they need not be.
        ticket: u64,
    },
}

impl Touch {
    /// Creates the first `chunk_bytes` of every `step_bytes`, `count` times.
    pub const fn rows(chunk_bytes: u64, step_bytes: u64, count: u64) -> Self {
        let first = StrideStep { bytes: step_bytes, count };
        Self::Strided { chunk_bytes, steps: [first, StrideStep::NONE, StrideStep::NONE, StrideStep::NONE] }
    }

    /// Creates the touch of some bytes that data chooses, as a launch declares it.
    pub const fn chosen(most_bytes: u64) -> Self {
        Self::Chosen { most_bytes, ticket: 0 }
    }

    /// Returns which bytes of its span an operand touches whose dimensions have these extents and strides, in elements of this size.
    pub fn of(dimensions: impl Iterator<Item = (u64, u64)>, element_bytes: u64) -> Self {
        let (mut sorted, mut points) = (SmallVec::<[(u64, u64); 8]>::new(), 1_u64);
        for (extent, stride) in dimensions.filter(|&(extent, stride)| extent > 1 && stride > 0) {
            sorted.push((extent, stride));
            points = points.saturating_mul(extent);
        }
        sorted.sort_unstable_by_key(|&(_, stride)| stride);
        // Elements that follow one another, elements from the first to behind the last, and the steps between.
        let (mut chunk, mut reach, mut steps) = (1, 1, SmallVec::<[StrideStep; STEPS]>::new());
        for (extent, stride) in sorted {
            let whole = (extent - 1) * stride;
            let nests = stride >= reach && steps.len() < STEPS;
            match steps.last_mut() {
                // Within the chunk, or right behind it.
                None if stride <= chunk => chunk += whole,
                // The same step goes on.
                Some(last) if stride % last.bytes == 0 && stride / last.bytes <= last.count => {
                    last.count += whole / last.bytes;
                }
                _ if nests => steps.push(StrideStep { bytes: stride, count: extent }),
                // They interleave, or are too many.
                _ => return Self::Some { most_bytes: points.saturating_mul(element_bytes) },
            }
            reach += whole;
        }
        if steps.is_empty() {
            return Self::All;
        }
        let mut list = [StrideStep::NONE; STEPS];
        for (place, StrideStep { bytes, count }) in list.iter_mut().zip(steps) {
            *place = StrideStep { bytes: bytes * element_bytes, count };
        }
        Self::Strided { chunk_bytes: chunk * element_bytes, steps: list }
    }
}

/// A range of bytes that a command touches, in device memory or in pinned host memory (their addresses never meet).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The way in which they are accessed.
    pub mode: AccessMode,
    /// The bytes of the range that are touched.
    pub touch: Touch,
}

impl Access {
    /// Touches all `bytes` from the address `start` on.
    pub const fn new(start: u64, bytes: u64, mode: AccessMode) -> Self {
        Self { start, bytes, mode, touch: Touch::All }
    }

    /// Returns the range, of which only these bytes are touched.
    #[must_use]
    pub const fn touching(mut self, touch: Touch) -> Self {
        self.touch = touch;
        self
    }

    /// Declares a read of `bytes` from `start` on.
    pub const fn read(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::Read)
    }

    /// Writes `bytes` from `start` on.
    pub const fn write(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::Write)
    }

    /// Declares a read and a write of `bytes` from `start` on.
    pub const fn read_write(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::ReadWrite)
    }

    /// Returns the number under which it is noted which bytes data chose; 0 for none.
    pub const fn ticket(&self) -> u64 {
        match self.touch {
            Touch::Chosen { ticket, .. } => ticket,
            _ => 0,
        }
    }

    /// Returns whether both touch a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.start < other.start.saturating_add(other.bytes)
            && other.start < self.start.saturating_add(self.bytes)
    }

    /// Returns whether both touch a byte in common and one of them writes it.
    pub const fn conflicts(&self, other: &Self) -> bool {
        (self.mode.writes() || other.mode.writes()) && self.overlaps(other)
    }
}

/// The time when a kernel may begin, and whether its blocks may wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LaunchMode {
    /// The kernel begins when what is in front of it on its stream is complete, and its blocks run in any order.
    #[default]
    InOrder,
    /// The kernel may begin before the kernel in front of it on its stream is complete (CUDA's programmatic dependent launch).
    ///
    /// Such a kernel executes `griddepcontrol.wait` in every thread before the first access to memory that has a value or takes one (prefetches
    /// into the L2 have none), which waits until the kernel in front is complete and what it wrote is visible. That kernel
    /// waited likewise for the one before, so all that the stream was given before is complete behind the wait, as if launches had not overlapped.
    /// How early it begins is up to the kernel in front: when all of its blocks have executed `griddepcontrol.launch_dependents`, or have ended.
    /// GPUs before compute capability 9.0, drivers before CUDA 11.8 and the simulator launch it behind what is in front of it.
    Programmatic,
    /// All blocks of the kernel run at once, so that they may wait for each other (CUDA's cooperative launch). While a stream captures, the kernel has one
    /// argument, a structure, and the driver is of CUDA 12.4 or later. A grid that the GPU cannot hold
    /// at once is refused ([`Code::CooperativeLaunchTooLarge`](crate::Code::CooperativeLaunchTooLarge)), and drivers before CUDA 11.8 refuse every one
    /// ([`Code::NotSupported`](crate::Code::NotSupported)).
    Cooperative,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: FunctionHandle,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block.
    pub shared_memory_bytes: u32,
    /// The condition on which the kernel may begin, and whether its blocks may wait for each other.
    pub mode: LaunchMode,
    /// The arguments, laid out as a C struct with one field an argument (natural alignment, little endian).
    pub arguments: &'a [u8],
    /// Every byte that the kernel may touch.
    pub accesses: &'a [Access],
    /// The operator and the line of source that asked for it.
    pub label: Label,
}

/// Work that a vendor's library does on the GPU, and a host function in the simulator.
#[derive(Clone)]
pub struct LibraryLaunch<'a> {
    /// The call of the library.
    pub gpu: &'a GpuCall,
    /// The implementation on the host, of equal results.
    pub host: &'a Arc<dyn HostKernel>,
    /// The arguments of the host function, in a layout that it knows.
    pub arguments: &'a [u8],
    /// Every byte that the work may touch, its workspace included.
    pub accesses: &'a [Access],
    /// The operator and the line of source that asked for it.
    pub label: Label,
}

impl fmt::Debug for LibraryLaunch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibraryLaunch")
            .field("GPU", self.gpu)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// One end of an asynchronous copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// Device memory.
    Device(DevicePointer),
    /// Pinned host memory.
    Pinned(HostPointer),
}

/// An asynchronous copy between device memory and device memory or pinned host memory, in any direction.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The place where the bytes go.
    pub target: Endpoint,
    /// The place where they come from.
    pub source: Endpoint,
    /// The number of bytes.
    pub bytes: u64,
    /// The operator and the line of source that asked for it.
    pub label: Label,
}

/// An asynchronous fill of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The first byte, aligned to the pattern.
    pub target: DevicePointer,
    /// The pattern that is written.
    pub pattern: FillPattern,
    /// The number of times that the pattern is written.
    pub count: u64,
    /// The operator and the line of source that asked for it.
    pub label: Label,
}

/// The unit of a fill.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FillPattern {
    /// One byte.
    U8(u8),
    /// Two bytes.
    U16(u16),
    /// Four bytes.
    U32(u32),
}

impl FillPattern {
    /// Returns the size of the unit.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gaps_of_strided_operands_are_told() {
        let touch = |dimensions: &[(u64, u64)]| Touch::of(dimensions.iter().copied(), 4);
        assert_eq!(touch(&[(3, 4), (4, 1)]), Touch::All);
        assert_eq!(touch(&[(3, 0), (4, 1)]), Touch::All, "broadcast");
        assert_eq!(touch(&[(3, 8), (4, 1)]), Touch::rows(16, 32, 3), "columns of a matrix");
        assert_eq!(touch(&[(5, 2)]), Touch::rows(4, 8, 5), "every other element");
        assert_eq!(
            touch(&[(2, 24), (3, 8), (4, 1)]),
            Touch::rows(16, 32, 6),
            "planes that follow one another"
        );
        assert_eq!(touch(&[(5, 4), (3, 2)]), Touch::rows(4, 8, 11), "windows that slide by two");
        assert_eq!(touch(&[(1, 100), (3, 1), (4, 1)]), Touch::All, "a window that slides");
        let steps = [(32, 3), (400, 2), (0, 1), (0, 1)].map(|(bytes, count)| StrideStep { bytes, count });
        let block = Touch::Strided { chunk_bytes: 16, steps };
        assert_eq!(touch(&[(2, 100), (3, 8), (4, 1)]), block, "planes with gaps between them");
        let some = |most_bytes| Touch::Some { most_bytes };
        assert_eq!(touch(&[(10, 3), (10, 4)]), some(400), "steps that interleave");
        assert_eq!(
            touch(&[2, 5, 11, 23, 47].map(|stride| (2, stride))),
            some(128),
            "more steps than can be said"
        );
    }
}
