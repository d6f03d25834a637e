//! [`Trace`]: what was recorded, with times on one axis.
//!
//! This module is a hub: a [`Trace`] is summed by `averages` and written by `chrome`, which read it.

use std::io;
use std::path::Path;

use thalweg_driver::DeviceProperties;

use crate::averages::KeyAverages;
use crate::chrome;

/// A span of time, in nanoseconds since recording began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first moment.
    pub start: u64,
    /// The moment behind the last.
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
    /// Returns Kineto's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Memcpy => "gpu_memcpy",
            Self::Memset => "gpu_memset",
        }
    }
}

/// A call of the driver, on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The entry point of CUDA (`cuLaunchKernel`).
    pub entry_point: &'static str,
    /// The number that joins it with its [`Command`], from 1 on.
    pub correlation: u64,
    /// The thread, numbered from 1 on in the order in which the threads of the process were met.
    pub thread: u64,
    /// When.
    pub span: Span,
}

/// A command that ran on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The kernel's name, or what was copied from where to where.
    pub name: String,
    /// The operator of its label.
    pub operator: &'static str,
    /// The line of source of its label, as `file:line`.
    pub source: String,
    /// Its kind.
    pub category: Category,
    /// The correlation of its [`Call`].
    pub correlation: u64,
    /// The device.
    pub device: u32,
    /// The driver's number of the stream.
    pub stream: u64,
    /// When it ran; `None` if it was captured.
    pub span: Option<Span>,
    /// How many bytes it touches at most, as its launch declared. 0 for a graph.
    pub bytes: u64,
    /// How many floating-point operations it takes, of a matrix product through a library; else 0.
    pub flops: u64,
    /// The grid and the block of a kernel.
    pub shape: Option<[[u32; 3]; 2]>,
}

/// A region of the program ([`record_function`](crate::record_function)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// The thread, as in [`Call`].
    pub thread: u64,
    /// When.
    pub span: Span,
}

/// A recorded timeline.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Nanoseconds from the Unix epoch to the moment when recording began.
    pub base_nanoseconds: u64,
    /// The calls, in the order in which they were submitted per thread.
    pub calls: Vec<Call>,
    /// The commands, in the order in which they were submitted per stream.
    pub commands: Vec<Command>,
    /// The regions, in the order in which they ended.
    pub annotations: Vec<Annotation>,
    /// The devices that ran commands.
    pub devices: Vec<(u32, DeviceProperties)>,
}

impl Trace {
    /// Returns sums per operator, those with the most device time first.
    pub fn key_averages(&self) -> KeyAverages {
        KeyAverages::of(self)
    }

    /// Returns the timeline as Kineto writes it.
    pub fn chrome_trace(&self) -> serde_json::Value {
        chrome::trace(self)
    }

    /// Writes the timeline as Kineto does, for Perfetto and tools that read the traces of PyTorch's profiler.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn export_chrome_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.write_chrome_trace(std::fs::File::create(path)?)
    }

    /// Writes the timeline to a file that is open.
    pub(crate) fn write_chrome_trace(&self, file: std::fs::File) -> io::Result<()> {
        let mut file = io::BufWriter::new(file);
        serde_json::to_writer(&mut file, &self.chrome_trace())?;
        io::Write::flush(&mut file)
    }
}
