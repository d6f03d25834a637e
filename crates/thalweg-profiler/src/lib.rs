//! The profiler: a [`Driver`](thalweg_driver::Driver) around any other that records a timeline.
//!
//! [`ProfilerDriver`] forwards every call. While it records, each kernel, library call, copy and fill, and each launch of a graph, stands
//! between two events on its stream, and the host's clock is read before and behind the call. [`ProfilerDriver::stop`] waits
//! for the devices and turns that into a [`Trace`]: [`Trace::export_chrome_trace`] writes it in the format of PyTorch's
//! profiler (Kineto's), [`Trace::key_averages`] sums it per operator. [`record_function`] names a region of the program.
//!
//! ```
//! use thalweg_driver::{Driver, Fill, FillPattern, Label};
//! use thalweg_profiler::{ProfilerDriver, profile, record_function};
//! use thalweg_sim::{SimConfig, SimDriver};
//!
//! let driver = ProfilerDriver::new(SimDriver::new(SimConfig::default())?);
//! let stream = driver.stream_create(0, 0)?;
//! let target = driver.memory_allocate(0, 1024)?;
//! let (filled, trace) = profile(&driver, || {
//!     let _region = record_function("zeroing");
//!     let pattern = FillPattern::U8(0);
//!     driver.fill_async(stream, &Fill { target, pattern, count: 1024, label: Label::here("zero_") })
//! })?;
//! filled?;
//! println!("{}", trace.key_averages());
//! # Ok::<(), thalweg_driver::Error>(())
//! ```
//!
//! # What the times mean
//! A device's times are those of CUDA events (of the simulator's clock there). The span of a kernel is from the event before it
//! to the event behind it, and so has the gaps of some microseconds that the device needs between commands: it is an upper bound. The
//! clocks of host and device are joined when recording stops, by events that the host waits for: the device's times
//! are late by what the shortest of those waits takes, and early by rounding alone. Two threads that submit to one stream at once may find each other's work inside
//! the span of theirs.
//!
//! # What it costs
//! While nothing is recorded, a call costs one relaxed load more. A recorded command costs two events, which are kept until
//! recording stops, so record steps and not hours.
//!
//! # What it does not record
//! What a graph's launch runs inside is one span. Work that is captured does not run, and has a span on the host alone. Collectives
//! and host functions are forwarded and not recorded.

#![deny(unsafe_code)]

mod annotation;
mod averages;
mod chrome;
mod driver;
mod on_demand;
mod program;
mod recording;
mod schedule;
mod trace;

pub use self::annotation::{RecordFunction, record_function};
pub use self::averages::{Average, Ceilings, KeyAverages, SortBy};
pub use self::driver::{ProfilerDriver, profile};
pub use self::on_demand::{on_demand, profile_on_demand, profiler_of};
pub use self::program::ProgramProfile;
pub use self::schedule::{Profile, ProfilerAction, Schedule, schedule};
pub use self::trace::{Annotation, Call, Category, Command, Span, Trace};
