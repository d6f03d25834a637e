//! The commands that a stream carries, with the byte ranges that they touch and a label.
//!
//! CUDA's launch takes a function and its arguments. Ours takes two more things. They cost nothing in the CUDA driver,
//! which ignores them, and everything else is based on them:
//!
//! - **accesses**, the byte ranges that the command reads and writes: the simulator orders commands by them (commands with
//!   conflicting ranges never run at once), and race detection and reuse in captures read them;
//! - a **label**, the operator and the source line, which asynchronous errors, traces and reports name.
//!
//! This module and `host` use each other: a launch contains a host function, which can access the ranges of the launch.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::host::HostKernel;
use crate::library::GpuCall;
use crate::program_line::{SourceLine, program_line};
use crate::{DevicePointer, FunctionHandle, HostPointer};

/// The origin of a command: the operator's name and the source line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The operator (`add`, `matmul`, `copy`).
    pub operator: &'static str,
    /// The source line that called the operator.
    pub location: &'static Location<'static>,
    /// The line of a program in another language that called the operator.
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

    /// Returns the source line to show: the line of the program in another language, if there is one, otherwise the line of Rust.
    pub fn source(self) -> SourceLine {
        self.program.copied().unwrap_or_else(|| self.location.into())
    }

    /// Returns a key that is equal for labels of one operator and line, for the lifetime of the process.
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

/// The flags for creating an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventFlags {
    /// Whether the event records the time when it is reached. Events without timing are cheaper.
    pub timing: bool,
    /// Whether `event_synchronize` sleeps instead of spinning.
    pub blocking_sync: bool,
}

/// A function of the host that runs in stream order. It must not call the driver.
pub type HostFunction = Arc<dyn Fn() + Send + Sync>;

/// The way in which a command touches a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessMode {
    /// The command reads the range.
    Read,
    /// The command writes the range, and may read the bytes that it wrote.
    Write,
    /// The command reads earlier contents of the range and writes it.
    ReadWrite,
}

impl AccessMode {
    /// Returns whether the command may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// A repetition at a constant distance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StrideStep {
    /// Bytes from one repetition to the next.
    pub bytes: u64,
    /// The number of repetitions; 1 means that there is no step.
    pub count: u64,
}

impl StrideStep {
    /// No step.
    pub const NONE: Self = Self { bytes: 0, count: 1 };
}

/// The number of steps that describe a strided operand at most.
pub const STEPS: usize = 4;

/// The bytes of its range that a command touches. Drivers order commands by entire ranges. A sanitizer that did so would
/// report false races in the gaps of strided operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Touch {
    /// Every byte.
    #[default]
    All,
    /// Repeated chunks: the first step repeats a chunk of `chunk_bytes`, the next step repeats all of these chunks, and so
    /// on. Nothing between the chunks is touched. For example, these are the bytes of a block of a matrix or of a tensor.
    /// Each step is at least as long as the bytes that it repeats.
    Strided {
        /// Contiguous bytes; at least 1.
        chunk_bytes: u64,
        /// The steps, from the shortest to the longest.
        steps: [StrideStep; STEPS],
    },
    /// Some bytes, unspecified which.
    Some {
        /// The greatest number of bytes.
        most_bytes: u64,
    },
    /// Some bytes, which depend on data: a host function reports them when it runs
    /// ([`HostLaunch::touched`](crate::HostLaunch::touched)).
    Chosen {
        /// The greatest number of bytes.
        most_bytes: u64,
        /// The number under which the touched bytes are recorded; 0 if they need not be.
        ticket: u64,
    },
}

impl Touch {
    /// Returns the touch of the first `chunk_bytes` of every `step_bytes`, `count` times.
    pub const fn rows(chunk_bytes: u64, step_bytes: u64, count: u64) -> Self {
        let first = StrideStep { bytes: step_bytes, count };
        Self::Strided { chunk_bytes, steps: [first, StrideStep::NONE, StrideStep::NONE, StrideStep::NONE] }
    }

    /// Returns the touch of some bytes that depend on data, as a launch declares it.
    pub const fn chosen(most_bytes: u64) -> Self {
        Self::Chosen { most_bytes, ticket: 0 }
    }

    /// Returns the touch of an operand whose dimensions have these extents and strides, in elements of `element_bytes`.
    pub fn of(dimensions: impl Iterator<Item = (u64, u64)>, element_bytes: u64) -> Self {
        let (mut sorted, mut points) = (SmallVec::<[(u64, u64); 8]>::new(), 1_u64);
        for (extent, stride) in dimensions.filter(|&(extent, stride)| extent > 1 && stride > 0) {
            sorted.push((extent, stride));
            points = points.saturating_mul(extent);
        }
        sorted.sort_unstable_by_key(|&(_, stride)| stride);
        // `chunk`: contiguous elements. `reach`: elements from the first to the end of the last.
        let (mut chunk, mut reach, mut steps) = (1, 1, SmallVec::<[StrideStep; STEPS]>::new());
        for (extent, stride) in sorted {
            let whole = (extent - 1) * stride;
            let nests = stride >= reach && steps.len() < STEPS;
            match steps.last_mut() {
                // Within the chunk, or directly after it.
                None if stride <= chunk => chunk += whole,
                // The same step continues.
                Some(last) if stride % last.bytes == 0 && stride / last.bytes <= last.count => {
                    last.count += whole / last.bytes;
                }
                _ if nests => steps.push(StrideStep { bytes: stride, count: extent }),
                // The steps interleave, or are too many.
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

/// A range of bytes that a command touches, in device memory or in pinned host memory, whose addresses never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The mode of the access.
    pub mode: AccessMode,
    /// The bytes of the range that are touched.
    pub touch: Touch,
}

impl Access {
    /// Creates an access to all `bytes` from the address `start` on.
    pub const fn new(start: u64, bytes: u64, mode: AccessMode) -> Self {
        Self { start, bytes, mode, touch: Touch::All }
    }

    /// Returns the access, restricted to these bytes of its range.
    #[must_use]
    pub const fn touching(mut self, touch: Touch) -> Self {
        self.touch = touch;
        self
    }

    /// Creates a read of `bytes` from `start` on.
    pub const fn read(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::Read)
    }

    /// Creates a write of `bytes` from `start` on.
    pub const fn write(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::Write)
    }

    /// Creates a read and a write of `bytes` from `start` on.
    pub const fn read_write(start: DevicePointer, bytes: u64) -> Self {
        Self::new(start.address(), bytes, AccessMode::ReadWrite)
    }

    /// Returns the number under which data-dependent bytes are recorded; 0 if they are not.
    pub const fn ticket(&self) -> u64 {
        match self.touch {
            Touch::Chosen { ticket, .. } => ticket,
            _ => 0,
        }
    }

    /// Returns whether the two ranges overlap.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.start < other.start.saturating_add(other.bytes)
            && other.start < self.start.saturating_add(self.bytes)
    }

    /// Returns whether the two ranges overlap and at least one access writes.
    pub const fn conflicts(&self, other: &Self) -> bool {
        (self.mode.writes() || other.mode.writes()) && self.overlaps(other)
    }
}

/// The condition on which a kernel may begin, and whether its blocks may wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LaunchMode {
    /// The kernel begins when the earlier work of its stream is complete, and its blocks run in any order.
    #[default]
    InOrder,
    /// The kernel may begin before the previous kernel of its stream is complete (CUDA's programmatic dependent launch).
    ///
    /// Every thread of such a kernel executes `griddepcontrol.wait` before its first read or write of memory; prefetches
    /// into the L2 are exempt. The instruction waits until the previous kernel is complete and its writes are visible. That
    /// kernel waited in the same way for the one before it, so after the wait all earlier work of the stream is complete,
    /// as if launches did not overlap. The previous kernel decides how early this one begins: when all of its blocks have
    /// executed `griddepcontrol.launch_dependents`, or have ended. GPUs before compute capability 9.0, drivers before CUDA
    /// 11.8 and the simulator launch the kernel after the earlier work.
    Programmatic,
    /// All blocks of the kernel run at once, so that they may wait for each other (CUDA's cooperative launch). While a
    /// stream captures, the kernel must have one argument, a structure, and the driver must be of CUDA 12.4 or later. A
    /// grid that does not fit on the GPU at once is refused
    /// ([`Code::CooperativeLaunchTooLarge`](crate::Code::CooperativeLaunchTooLarge)). Drivers before CUDA 11.8 refuse every
    /// grid ([`Code::NotSupported`](crate::Code::NotSupported)).
    Cooperative,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: FunctionHandle,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_memory_bytes: u32,
    /// The condition on which the kernel may begin, and whether its blocks may wait for each other.
    pub mode: LaunchMode,
    /// The arguments, packed like a C struct with one field per argument (natural alignment, little endian).
    pub arguments: &'a [u8],
    /// Every byte that the kernel may touch.
    pub accesses: &'a [Access],
    /// The operator and the source line that submitted it.
    pub label: Label,
}

/// Work that a vendor's library does on the GPU, and a host function in the simulator.
#[derive(Clone)]
pub struct LibraryLaunch<'a> {
    /// The call of the library.
    pub gpu: &'a GpuCall,
    /// The implementation on the host, with equal results.
    pub host: &'a Arc<dyn HostKernel>,
    /// The arguments of the host function, in a layout of its own.
    pub arguments: &'a [u8],
    /// Every byte that the work may touch, its workspace included.
    pub accesses: &'a [Access],
    /// The operator and the source line that submitted it.
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
    /// The destination of the bytes.
    pub target: Endpoint,
    /// The source of the bytes.
    pub source: Endpoint,
    /// The number of bytes.
    pub bytes: u64,
    /// The operator and the source line that submitted it.
    pub label: Label,
}

/// An asynchronous fill of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The first byte, aligned to the pattern.
    pub target: DevicePointer,
    /// The pattern.
    pub pattern: FillPattern,
    /// The number of times that the pattern is written.
    pub count: u64,
    /// The operator and the source line that submitted it.
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
