//! Obstacles to a capture: the kinds, and one of them found in a region.

use std::fmt;

use thalweg_driver::{Code, Label, SourceLine};

/// A kind of call that a graph cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ObstacleKind {
    /// The host waits for the device, or queries its progress. Nothing runs during a capture, so there is nothing to wait for.
    HostSynchronisation,
    /// Work on the legacy default stream, which no capture contains.
    LegacyStream,
    /// A call takes memory from the driver, or returns it, and may wait for the device.
    SynchronousAllocation,
    /// A copy from or to host memory that is not pinned.
    PageableCopy,
    /// A stream joined the capture and the region's stream does not wait for its last work.
    UnjoinedFork,
    /// A call by a thread other than the region's, which the capture forbids or does not see.
    OtherThread,
    /// Random numbers that the host draws: every replay would repeat the numbers of the capture.
    HostRandomState,
    /// The host reads a value in order to decide on the next work: a shape, a count, a branch.
    DataDependentShape,
    /// A kernel that is loaded at its first use.
    LazyModuleLoad,
    /// A call of the driver or of a library that cannot be a part of a graph.
    UncapturableCall,
    /// Work on a stream that the region did not fork: it runs once, during the capture, and the graph lacks it.
    OutsideStream,
    /// A stream of the capture waits for an event that was recorded outside of it.
    OutsideEvent,
}

impl ObstacleKind {
    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::HostSynchronisation,
        Self::LegacyStream,
        Self::SynchronousAllocation,
        Self::PageableCopy,
        Self::UnjoinedFork,
        Self::OtherThread,
        Self::HostRandomState,
        Self::DataDependentShape,
        Self::LazyModuleLoad,
        Self::UncapturableCall,
        Self::OutsideStream,
        Self::OutsideEvent,
    ];

    /// Returns the common name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostSynchronisation => "host synchronisation",
            Self::LegacyStream => "legacy stream",
            Self::SynchronousAllocation => "synchronous allocation",
            Self::PageableCopy => "pageable copy",
            Self::UnjoinedFork => "unjoined fork",
            Self::OtherThread => "other thread",
            Self::HostRandomState => "host random state",
            Self::DataDependentShape => "data-dependent shape",
            Self::LazyModuleLoad => "lazy module load",
            Self::UncapturableCall => "uncapturable call",
            Self::OutsideStream => "outside stream",
            Self::OutsideEvent => "outside event",
        }
    }

    /// Returns the usual repair.
    pub const fn repair(self) -> &'static str {
        match self {
            Self::HostSynchronisation => {
                "wait once, after the replay; order streams by events (`wait_stream`), not by the host"
            }
            Self::LegacyStream => {
                "run it on the region's stream: make that current (`make_current`), or fork one from it with `wait_stream`"
            }
            Self::SynchronousAllocation => {
                "allocate before the capture, or from the caching allocator (`Tensor::empty`, `Buffer::new`), which serves \
                 captures from a private pool"
            }
            Self::PageableCopy => {
                "move it out of the region: copy into a tensor that stays before the replay, read results after it; or copy \
                 through pinned memory (`HostTensor`)"
            }
            Self::UnjoinedFork => {
                "let the region's stream wait for the forked one before the region ends: `stream.wait_stream(&fork)`"
            }
            Self::OtherThread => {
                "do it on the region's thread, or make a stream of the capture current in the other one (`make_current`); what \
                 has nothing to do with the region can wait for the end of the capture, or the capture be thread-local"
            }
            Self::HostRandomState => {
                "draw on the device (`DeviceGenerator`), or draw before the replay into a tensor that the graph reads"
            }
            Self::DataDependentShape => {
                "keep the decision on the device (a mask, a fixed largest size, `index_copy_` at a position in device \
                 memory), or end the graph here and decide between two graphs"
            }
            Self::LazyModuleLoad => "run the region once before the capture",
            Self::UncapturableCall => "make the call before or after the replay",
            Self::OutsideStream => {
                "fork the stream from the region's (`fork.wait_stream(&stream)`) before its first work, and join it at the end"
            }
            Self::OutsideEvent => {
                "wait before the region begins; the device is idle when a capture begins, so most such waits can go"
            }
        }
    }
}

impl fmt::Display for ObstacleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Something that a region does and a graph cannot hold, at one source line. Doing it again at the same line counts as the same
/// obstacle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    pub(super) kind: ObstacleKind,
    pub(super) site: Site,
    pub(super) code: Option<Code>,
    pub(super) detail: String,
    pub(super) count: u64,
}

impl Obstacle {
    /// Returns the kind of the obstacle.
    pub fn kind(&self) -> ObstacleKind {
        self.kind
    }

    /// Returns the operator, or the driver call if no operator made it.
    pub fn operator(&self) -> &'static str {
        self.site.operator
    }

    /// Returns the source line; `None` if the call was made past the runtime.
    pub fn location(&self) -> Option<SourceLine> {
        self.site.location
    }

    /// Returns the error code that CUDA returns in a capture of this mode: one of 900 to 907. `None` if the capture succeeds but
    /// the graph is wrong: it lacks the work, or repeats a decision that the host made once.
    pub fn code(&self) -> Option<Code> {
        self.code
    }

    /// Returns a sentence that describes the finding.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the usual repair.
    pub fn repair(&self) -> &'static str {
        self.kind.repair()
    }

    /// Returns the number of times that the region did it.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The source of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    pub(super) operator: &'static str,
    pub(super) location: Option<SourceLine>,
}

impl Site {
    /// Creates the site of a call without a label.
    pub(super) const fn unknown(operator: &'static str) -> Self {
        Self { operator, location: None }
    }
}

impl From<Label> for Site {
    fn from(label: Label) -> Self {
        Self { operator: label.operator, location: Some(label.source()) }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operator)?;
        match self.location {
            Some(SourceLine { file, line }) => write!(f, " at {file}:{line}"),
            None => Ok(()),
        }
    }
}
