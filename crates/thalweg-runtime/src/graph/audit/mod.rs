//! [`audit()`]: all the reasons why a region cannot be captured, from one run.
//!
//! A capture stops at the first call that it forbids, with a code and no source line. An audit runs the region as ordinary work,
//! to its end, and keeps a model of its capture: which streams take part, what each call would return, which forks are joined.
//! Each thing that a graph cannot hold is an [`Obstacle`], with the operator, the source line, CUDA's code and the usual repair.
//!
//! ```text
//! region ─ runtime ─ Device::driver ─┬─ the driver                      (no audit: one load decides)
//!                                    └─ Auditor ─┬─ the driver          the call is made
//!                                                └─ DryRun           and what it would mean in a capture is noted
//! ```
//!
//! Call `audit` in place of `Graph::capture`, with the same options. If an audit finds no obstacle, the region can be captured,
//! with everything that it does. The first obstacle with a code has the code that the capture would return.
//!
//! # What it covers
//! Every call of the driver that the region makes through the runtime, on every thread, and those that other threads make
//! meanwhile: a global capture restricts them too, so audit while nothing else runs. Besides these calls, an audit covers what
//! the runtime and the operators report ([`host_random`], [`explain`]).
//!
//! An audit does not see calls of CUDA past this driver (a library of the program's own), calls that the allocators make of the
//! driver (which no capture forbids), or differences between replays because the host computed something without a call (the
//! time, a counter).
//!
//! # Invariants
//! - The region runs once, eagerly, and its results are unaffected: an audit changes no bytes.
//! - Inside, `Stream::is_capturing` answers as it would in the capture.
//! - While nothing is audited, this costs one load per call of the driver.

mod auditor;
mod counts;
mod display;
mod dry_run;
mod hooks;
pub(crate) mod next_call;
mod obstacle;
mod savings;
mod times;

use std::sync::Arc;
use std::time::Instant;

use thalweg_driver::{CaptureMode, Code};

use self::auditor::Session;
use self::hooks::RegionGuard;
use crate::graph::CaptureOptions;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};
use crate::{refuse, refuse_if};

pub(crate) use self::auditor::Auditor;
pub use self::counts::Counts;
pub use self::hooks::{explain, host_random};
pub use self::obstacle::{Obstacle, ObstacleKind};
pub use self::savings::Savings;

/// The findings of [`audit()`] about a region. [`Display`](std::fmt::Display) writes it as a table, 100 columns wide, or as wide
/// as the format requests (`{audit:60}`).
#[derive(Clone, Debug)]
pub struct Audit {
    device: String,
    is_simulated: bool,
    mode: CaptureMode,
    obstacles: Vec<Obstacle>,
    counts: Counts,
    savings: Option<Savings>,
}

impl Audit {
    /// Returns whether there is no obstacle: a capture would succeed and the graph would do what the region does.
    pub fn is_capturable(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// Returns all obstacles, in the order in which the region ran into them; forks that were not joined come last.
    pub fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    /// Returns the error code that a capture of the region would return, if it would fail.
    pub fn code(&self) -> Option<Code> {
        self.obstacles.iter().find_map(Obstacle::code)
    }

    /// Returns the counts of the commands that the region submits.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the savings of a graph; `None` on the simulator, whose times are not a GPU's, and for a region that submits
    /// nothing.
    pub fn savings(&self) -> Option<&Savings> {
        self.savings.as_ref()
    }

    /// Returns the mode of the capture that the dry run models.
    pub fn mode(&self) -> CaptureMode {
        self.mode
    }
}

/// Runs a region once, eagerly, and reports the obstacles to `Graph::capture` with the same options. A pool among the options is
/// not used: the region allocates like any other.
///
/// *Blocks* until the device is idle, before and after the region. On a GPU it then measures the cost of a replay.
///
/// # Errors
/// [`Error::is_invalid_argument`] in the cases in which `Graph::capture` returns it: the stream is the default stream, or
/// captures, or belongs to another device; also while another audit or a capture of the device is under way. The region's own
/// error, with context, and without the obstacles found so far, which would be incomplete.
pub fn audit<T>(
    device: &Device,
    options: CaptureOptions,
    region: impl FnOnce() -> Result<T>,
) -> Result<Audit> {
    let mode = options.mode;
    let stream = match options.stream {
        Some(stream) => stream,
        None => Stream::new(device)?,
    };
    check(device, &stream)?;
    device.synchronize()?;
    let before = device.allocator().statistics();
    let open = Open::begin(device, &stream, mode)?;
    let result = {
        let _current = stream.make_current();
        region()
    };
    let session = open.end();
    let over = Instant::now();
    let drained = device.synchronize().map(|()| over.elapsed());
    drop(result.map_err(|error| error.context("audit: the region failed where nothing was captured"))?);
    let Session { dry_run, times } = session;
    let (obstacles, mut counts) = dry_run.finish();
    let after = device.allocator().statistics();
    counts.allocations = after.allocation.all.allocated - before.allocation.all.allocated;
    counts.allocated_bytes = after.requested_bytes.all.allocated - before.requested_bytes.all.allocated;
    let is_simulated = device.is_simulated();
    let savings = match drained? {
        drained if !is_simulated && counts.commands() > 0 => {
            Some(Savings::predict(device, &counts, &times, drained)?)
        }
        _ => None,
    };
    Ok(Audit { device: device.to_string(), is_simulated, mode, obstacles, counts, savings })
}

fn check(device: &Device, stream: &Stream) -> Result<()> {
    same_device("audit: the stream", device, stream.device())?;
    if stream.is_default() {
        refuse!("audit: the default stream cannot capture; make a stream with `Stream::new` and audit there");
    }
    refuse_if!(
        device.current_stream().is_capturing()?
            || stream.is_capturing()?
            || device.captures().are_under_way(),
        "audit: a capture of the device, or an audit, is under way, and this one would break it; end it first"
    );
    Ok(())
}

/// An audit under way. Dropping it, as a panic of the region does, ends the audit.
struct Open<'a> {
    auditor: &'a Arc<Auditor>,
    _region: RegionGuard,
}

impl<'a> Open<'a> {
    fn begin(device: &'a Device, stream: &Stream, mode: CaptureMode) -> Result<Self> {
        let auditor = device.auditor();
        if !device.check(auditor.begin(stream.handle(), mode))? {
            refuse!("audit: another audit of this driver is under way; wait for its end");
        }
        Ok(Self { auditor, _region: RegionGuard::enter(Arc::downgrade(auditor)) })
    }

    fn end(self) -> Session {
        self.auditor.end().expect("an audit that was begun is ended once")
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        drop(self.auditor.end());
    }
}
