//! The profiler: a [`Driver`](thalweg_driver::Driver) that wraps any other and records a timeline.
//!
//! [`ProfilerDriver`] forwards every call. While it records, each kernel, library call, copy and fill, and each launch of a
//! graph, is enclosed by two events on its stream, and the host's clock is read before and after the call.
//! [`ProfilerDriver::stop`] waits for the devices and turns the records into a [`Trace`]: [`Trace::export_chrome_trace`] writes
//! it in the format of PyTorch's profiler (Kineto's), [`Trace::key_averages`] sums it per operator. [`record_function`] names a
//! region of the program.
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
//! On a GPU the device's own times are used, through CUPTI: each kernel, copy and fill has its span, within libraries and graphs
//! too ([`Clock::Device`]). If the driver has no tracer (the simulator), if CUPTI is not installed, or if another profiler of the
//! process uses it, the times are those of events around each command ([`Clock::Events`], with the reason). A span then extends
//! from the event before the command to the event after it, and so includes the gaps of some microseconds that a GPU needs
//! between commands. A graph's launch is one span, and if two threads submit to one stream at the same time, their spans may
//! include each other's work.
//!
//! The clocks of host and device are related when recording stops, to about a microsecond.
//!
//! # What it costs
//! While nothing is recorded, a call costs one additional relaxed load. A recorded command costs its records, which are kept
//! until recording stops, so record minutes and not hours.
//!
//! # What it does not record
//! Captured work does not run, so it has a span only on the host. Host functions have no span on the device.

#![forbid(unsafe_code)]

mod annotation;
mod averages;
#[cfg(feature = "timeline")]
mod chrome;
mod driver;
mod events;
mod on_demand;
mod program;
mod recording;
mod schedule;
mod trace;

pub use self::annotation::{
    EmitNvtx, RecordFunction, RecordOperator, emit_nvtx, record_function, record_memory, record_operator,
    record_operator_with,
};
pub use self::averages::{Average, Ceilings, KeyAverages, SortBy};
pub use self::driver::{ProfilerDriver, profile};
pub use self::on_demand::{on_demand, profile_on_demand, profiler_of};
pub use self::program::ProgramProfile;
pub use self::schedule::{Profile, ProfilerAction, Schedule, schedule};
pub use self::trace::{
    Activity, ActivityStream, Annotation, Call, Category, Clock, Command, MemoryChange, MemoryEvent,
    OperatorCall, Span, Trace,
};
pub use thalweg_driver::KernelActivity;
