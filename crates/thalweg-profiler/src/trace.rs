//! [`Trace`]: the recorded timeline, with all times on one axis.
//!
//! This module is a hub: `averages` sums a [`Trace`] and `chrome` writes it.

use std::collections::HashMap;
use std::io;
#[cfg(feature = "timeline")]
use std::path::Path;

use thalweg_driver::{DeviceProperties, KernelActivity};

use crate::averages::KeyAverages;
#[cfg(feature = "timeline")]
use crate::chrome;

/// A span of time, in nanoseconds since recording began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first moment.
    pub start: u64,
    /// The moment after the last.
    pub end: u64,
}

impl Span {
    /// Returns the length in nanoseconds.
    pub const fn nanoseconds(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// A kind of device work, by Kineto's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Category {
    /// A kernel, a library's call, or the launch of a graph.
    Kernel,
    /// A copy.
    Memcpy,
    /// A fill.
    Memset,
}

impl Category {
    /// Returns Kineto's name of the category.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memcpy => "gpu_memcpy",
            Self::Memset => "gpu_memset",
        }
    }
}

/// A call of an operator, on the host: from the dispatcher's first step to its last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperatorCall {
    /// The operator.
    pub name: &'static str,
    /// The number that links the operator call to the [`Call`]s that it made, from 1 on.
    pub id: u64,
    /// The number of the operator call that made this one.
    pub parent: Option<u64>,
    /// The thread, as in [`Call`].
    pub thread: u64,
    /// The time that the operator call took.
    pub span: Span,
}

/// A call of the driver, on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The entry point of CUDA (`cuLaunchKernel`).
    pub entry_point: &'static str,
    /// The number that links the call to its [`Command`]s, from 1 on.
    pub correlation: u64,
    /// The number of the innermost [`OperatorCall`] during which the call was made.
    pub operator: Option<u64>,
    /// The thread, numbered from 1 on in the order in which the process's threads were first seen.
    pub thread: u64,
    /// The time that the call took.
    pub span: Span,
}

/// A command that was submitted to a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The kernel's name, or the source and target of a copy.
    pub name: String,
    /// The operator of the command's label.
    pub operator: &'static str,
    /// The source line of the command's label, as `file:line`.
    pub source: String,
    /// The kind of work.
    pub category: Category,
    /// The correlation of the [`Call`] that submitted the command. Collectives of one group share it.
    pub correlation: u64,
    /// The device.
    pub device: u32,
    /// The driver's number of the stream.
    pub stream: u64,
    /// The time in which the command ran: from its first [`Activity`] to its last. `None` if it was captured.
    pub span: Option<Span>,
    /// The maximum number of bytes that the command touches, as its launch declared; 0 for a graph.
    pub bytes: u64,
    /// The number of floating-point operations of a matrix product through a library; 0 for other commands.
    pub flops: u64,
    /// The grid and the block of a kernel.
    pub shape: Option<[[u32; 3]; 2]>,
}

/// A stream of a device, as a key for sorting activities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ActivityStream {
    /// A stream of the program, by the driver's number.
    Program(u64),
    /// A stream that the driver keeps for branches of graphs, or one that another library made, by the tracer's number.
    Other(u32),
}

/// A piece of work that ran on a device: a command is one activity or, through a library or as a graph, several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activity {
    /// The kernel's name, or the source and target of a copy.
    pub name: String,
    /// The innermost operator that was called; else the operator in the command's label, which within a graph is the label of the
    /// captured launch. `name` if no operator is known.
    pub operator: String,
    /// The kind of work.
    pub category: Category,
    /// The correlation of the [`Call`] that caused the activity; `None` if no recorded call did.
    pub correlation: Option<u64>,
    /// The device.
    pub device: u32,
    /// The stream.
    pub stream: ActivityStream,
    /// The time that the activity took.
    pub span: Span,
    /// The number of bytes that a copy moved or a fill wrote; for a kernel, the bytes that its launch declared.
    pub bytes: u64,
    /// The details of a kernel, if the device reports them.
    pub kernel: Option<KernelActivity>,
    /// The node of the graph that the activity was part of.
    pub graph_node: Option<u64>,
}

/// The source of the times of a trace's [`Activity`] list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The devices' own clocks, through CUPTI: each kernel has its own span, within graphs too.
    Device,
    /// Events around each command.
    Events {
        /// The reason why the devices' clocks were not used.
        reason: String,
    },
}

/// A region of the program ([`record_function`](crate::record_function)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// The region's name.
    pub name: String,
    /// The thread, as in [`Call`].
    pub thread: u64,
    /// The time that the region took.
    pub span: Span,
}

/// A block that a caching allocator handed out or took back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryChange {
    /// The device.
    pub device: u32,
    /// The block's address.
    pub address: u64,
    /// The block's size in bytes; negative if it was freed.
    pub bytes: i64,
    /// The bytes that are handed out after the change.
    pub total_allocated: u64,
    /// The bytes that the allocator has reserved from the driver after the change.
    pub total_reserved: u64,
}

/// A change of a caching allocator's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryEvent {
    /// The block, and the sums after it.
    pub change: MemoryChange,
    /// The number of the innermost [`OperatorCall`] during which the change happened.
    pub operator: Option<u64>,
    /// The thread, as in [`Call`].
    pub thread: u64,
    /// The time, in nanoseconds since recording began.
    pub at: u64,
}

/// A recorded timeline.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Nanoseconds from the Unix epoch to the moment when recording began.
    pub base_nanoseconds: u64,
    /// The calls, in the order in which they were submitted per thread.
    pub calls: Vec<Call>,
    /// The calls of operators, in the order in which they began per thread.
    pub operators: Vec<OperatorCall>,
    /// The commands, in the order in which they were submitted per stream.
    pub commands: Vec<Command>,
    /// The work of devices, in the order in which it began.
    pub activities: Vec<Activity>,
    /// The number of activities that are missing because the tracer had no room for them.
    pub dropped: u64,
    /// The source of the times of `activities`.
    pub clock: Clock,
    /// The regions, in the order in which they ended.
    pub annotations: Vec<Annotation>,
    /// The changes of memory, if they were requested ([`ProfilerDriver::profile_memory`](crate::ProfilerDriver::profile_memory)),
    /// in the order in which they happened per thread.
    pub memory: Vec<MemoryEvent>,
    /// The devices that ran commands or whose memory changed.
    pub devices: Vec<(u32, DeviceProperties)>,
}

impl Trace {
    /// Returns, by correlation, the innermost operator of each call that was made within one.
    pub(crate) fn operators_of_calls(&self) -> HashMap<u64, &'static str> {
        let names: HashMap<u64, &'static str> =
            self.operators.iter().map(|operator| (operator.id, operator.name)).collect();
        let within =
            self.calls.iter().filter_map(|call| Some((call.correlation, *names.get(&call.operator?)?)));
        within.collect()
    }

    /// Assigns activities to the innermost operators that were called; the label of a command names the operator that the program
    /// wrote.
    pub(crate) fn name_activities(&mut self) {
        let operators = self.operators_of_calls();
        for activity in self.activities.iter_mut().filter(|activity| activity.graph_node.is_none()) {
            if let Some(&operator) = activity.correlation.and_then(|it| operators.get(&it)) {
                operator.clone_into(&mut activity.operator);
            }
        }
    }

    /// Returns the sums per operator, the operators with the most device time first.
    pub fn key_averages(&self) -> KeyAverages {
        KeyAverages::of(self)
    }

    /// Returns the timeline in Kineto's format.
    #[cfg(feature = "timeline")]
    pub fn chrome_trace(&self) -> serde_json::Value {
        chrome::trace(self)
    }

    /// Writes the timeline in Kineto's format, for Perfetto and tools that read the traces of PyTorch's profiler.
    #[cfg(feature = "timeline")]
    pub fn export_chrome_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.write_chrome_trace(std::fs::File::create(path)?)
    }

    /// Writes the timeline to an open file.
    pub(crate) fn write_chrome_trace(&self, file: std::fs::File) -> io::Result<()> {
        #[cfg(feature = "timeline")]
        {
            let mut file = io::BufWriter::new(file);
            serde_json::to_writer(&mut file, &self.chrome_trace())?;
            io::Write::flush(&mut file)
        }
        #[cfg(not(feature = "timeline"))]
        {
            drop(file);
            Err(io::Error::other(
                "timelines need the feature `profiler` of the crate `thalweg` (`timeline` of `thalweg-profiler`)",
            ))
        }
    }
}
