//! The captures of a device that are under way, and the notes that are taken about each as its commands are submitted.
//!
//! A device owns the captures, and they own streams, pools and pinned memory, each of which refers to its device. So `device`,
//! `stream`, `pinned`, `pool` and `branches` use each other in a circle, of which this module is the hub; the rest of the crate
//! is above them, or below.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

use smallvec::SmallVec;
use thalweg_driver::{Access, CaptureInfo, CaptureMode, CaptureStatus, Label};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::{Block, PoolId};

use super::branches::Branches;
use super::footprint::Footprint;
use super::pool::{GraphPool, WeakPool};
use super::steps::{Command, Steps};
use crate::pinned::PinnedBlock;
use crate::{Error, Result, STREAMS_PER_PRIORITY, Stream};

/// The captures of one device that are under way.
#[derive(Default)]
pub(crate) struct Captures {
    /// The number of captures under way, readable without the lock.
    pub(super) count: AtomicUsize,
    under_way: Mutex<Vec<UnderWay>>,
    /// The latest pool that served one graph and is released. Its memory may still exist, until the next capture begins.
    left: Mutex<Option<PoolId>>,
    /// The pools that were made for one graph.
    pools: Mutex<Vec<WeakPool>>,
    /// The number of replays on the device so far.
    replays: AtomicU64,
}

/// The number of a capture, followed by the numbers of its bodies' captures.
pub(super) type Ids = Arc<Mutex<SmallVec<[u64; 2]>>>;

impl UnderWay {
    pub(super) fn has(&self, id: u64) -> bool {
        self.ids.lock().contains(&id)
    }

    /// Returns whether the number belongs to the capture of a body of a conditional node.
    fn is_body(&self, id: u64) -> bool {
        self.ids.lock().first() != Some(&id)
    }
}

/// A value in memory that a captured region relies on. The graph keeps it alive.
pub trait Upkeep: fmt::Debug + Send + Sync {
    /// Notes that the capture in which the value was registered is over.
    fn captured(&self);

    /// Makes the value right for a replay that is queued on the stream next.
    ///
    /// # Errors
    /// The errors of the work that it submits; then nothing is replayed.
    fn before_replay(&self, stream: &Stream) -> Result<()>;

    /// Notes that the replay was queued.
    fn after_replay(&self, stream: &Stream);
}

/// Upkeeps by the numbers that they were registered with.
pub(super) type Upkeeps = Vec<(usize, Arc<dyn Upkeep>)>;

/// The notes of a capture that is under way.
pub(super) struct UnderWay {
    /// The number of the capture, followed by the numbers of the captures of its conditional nodes' bodies.
    pub(crate) ids: Ids,
    pub(crate) thread: ThreadId,
    pub(crate) mode: CaptureMode,
    /// The pairs of streams for conditional nodes: a stream of the capture on which a conditional node was captured, and the
    /// stream on which the node's bodies are captured.
    pub(crate) body_streams: Vec<(Stream, Stream)>,
    /// The reason why the capture must fail, if there is one.
    pub(crate) broken: Option<String>,
    pub(crate) pool: GraphPool,
    pub(crate) branches: Branches,
    pub(crate) steps: Steps,
    pub(crate) footprint: Footprint<GraphPool>,
    /// The pinned memory that the captured copies use.
    pub(crate) pinned: Vec<Arc<PinnedBlock>>,
    /// The values that replays of the graph keep current.
    pub(super) upkeeps: Upkeeps,
    /// The number of driver calls that were made for the capture.
    pub(crate) questions: Arc<AtomicU64>,
}

impl Stream {
    /// Makes the graph that the stream captures keep a value current, once for each number. The number must not be used for
    /// anything else while the value lives. Returns whether the graph will: it will not if the stream does not capture, or
    /// captures the body of a [conditional node](super::if_), which may run more than once per replay.
    pub fn keep_up(&self, number: usize, upkeep: impl FnOnce() -> Arc<dyn Upkeep>) -> bool {
        self.device().captures().keep_up(self, number, upkeep)
    }
}

impl Captures {
    /// Returns whether any capture is under way. One load.
    pub(crate) fn are_under_way(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Notes a replay on the device.
    pub(super) fn note_replay(&self) {
        self.replays.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of replays on the device so far.
    pub(crate) fn replays(&self) -> u64 {
        self.replays.load(Ordering::Acquire)
    }

    /// Notes a pool that was made for one graph.
    pub(super) fn made_for_one_graph(&self, pool: WeakPool) {
        let mut pools = self.pools.lock();
        pools.retain(WeakPool::is_there);
        pools.push(pool);
    }

    /// Returns the pool with this identifier, if it was made for one graph.
    pub(super) fn pool_of_one_graph(&self, id: PoolId) -> Option<GraphPool> {
        self.pools.lock().iter().filter(|pool| pool.id == id).find_map(WeakPool::pool)
    }

    /// Notes that a pool that served one graph was released.
    pub(super) fn leave(&self, pool: PoolId) {
        *self.left.lock() = Some(pool);
    }

    /// Returns the pool of a graph that is gone, if there is one.
    pub(super) fn take_left(&self) -> Option<PoolId> {
        self.left.lock().take()
    }

    /// Returns the number of the capture that a stream takes part in, or 0.
    pub(crate) fn of(&self, stream: &Stream) -> u64 {
        self.info(stream).map_or(0, |info| info.id)
    }

    /// Returns the driver's information on the capture of a stream, if the stream captures.
    #[inline]
    pub(crate) fn info(&self, stream: &Stream) -> Option<CaptureInfo> {
        if self.are_under_way() { Self::query(stream) } else { None }
    }

    #[cold]
    fn query(stream: &Stream) -> Option<CaptureInfo> {
        let info = stream.device().driver().stream_capture_info(stream.handle()).ok()?;
        (info.status == CaptureStatus::Active).then_some(info)
    }

    /// Runs `note` on the capture that a stream takes part in, if it is one of ours.
    pub(super) fn note(&self, stream: &Stream, note: impl FnOnce(&mut UnderWay, &CaptureInfo)) {
        let Some(info) = self.info(stream) else { return };
        if let Some(capture) = self.lock().iter_mut().find(|capture| capture.has(info.id)) {
            capture.questions.fetch_add(1, Ordering::Relaxed);
            note(capture, &info);
        }
    }

    /// Makes the graph keep pinned memory, if the stream captures.
    pub(crate) fn keep(&self, stream: &Stream, block: &Arc<PinnedBlock>) {
        self.note(stream, |capture, _| {
            if !capture.pinned.iter().any(|known| Arc::ptr_eq(known, block)) {
                capture.pinned.push(block.clone());
            }
        });
    }

    /// Makes the graph keep a value current if the stream captures, and not a body; returns whether it will.
    pub(super) fn keep_up(
        &self,
        stream: &Stream,
        number: usize,
        upkeep: impl FnOnce() -> Arc<dyn Upkeep>,
    ) -> bool {
        let mut is_kept = false;
        self.note(stream, |capture, info| {
            is_kept = !capture.is_body(info.id);
            if is_kept && !capture.upkeeps.iter().any(|(known, _)| *known == number) {
                capture.upkeeps.push((number, upkeep()));
            }
        });
        is_kept
    }

    /// Notes that a command was submitted to a stream whose capture state had been `before`.
    pub(crate) fn submitted(&self, stream: &Stream, before: &CaptureInfo, command: &Command<'_>) {
        self.note(stream, |capture, after| {
            // Counts the query of `before`, too.
            capture.questions.fetch_add(1, Ordering::Relaxed);
            let label = command.label();
            capture.branches.submitted(stream, label);
            capture.steps.submitted(&before.dependencies, &after.dependencies, command);
            capture.footprint.touched(command.accesses(), label);
        });
    }

    /// Notes the ranges of commands that were submitted to the stream past the runtime.
    pub(crate) fn declared(&self, stream: &Stream, accesses: &[Access], label: Label) {
        self.note(stream, |capture, info| {
            capture.steps.declare(&info.dependencies);
            capture.footprint.touched(accesses, label);
        });
    }

    /// Checks whether the nodes that the stream has reached are known, because the driver call that follows does not check them.
    pub(super) fn look(&self, stream: &Stream) {
        self.note(stream, |capture, info| capture.steps.look(&info.dependencies));
    }

    /// Notes that a block was handed out. A block of a capture's pool belongs to that capture.
    #[inline]
    pub(crate) fn allocated(&self, block: &Block, label: Label) {
        if self.are_under_way() && !block.is_null() {
            let pool = block.pool();
            if let Some(capture) = self.lock().iter_mut().find(|capture| pool == Some(capture.pool.id())) {
                let (size, requested) = (block.size_bytes(), block.requested_bytes());
                capture.footprint.allocated(block.address(), size, requested, label);
            }
        }
    }

    /// Notes that the stream waits for an event, and may take part in a capture from now on.
    pub(crate) fn joined(&self, stream: &Stream) {
        self.note(stream, |capture, _| capture.branches.joined(stream));
    }

    /// Checks whether the stream may wait for an event of a capture (0 for an event outside captures). CUDA would break the
    /// capture and only then report the error.
    pub(crate) fn check_wait(&self, stream: &Stream, capture: u64) -> Result<()> {
        let Some(info) = self.info(stream) else { return Ok(()) };
        if info.id == capture {
            return Ok(());
        }
        let place = if capture == 0 { "outside it" } else { "in another capture" };
        Err(Error::capture(format!(
            "{stream:?} captures, and the event was recorded {place}: a graph cannot wait for what is not in it. Work from before \
             the capture is done when it begins, so leave this wait out; a stream that shall take part waits for the capturing \
             stream first (`wait_stream`), and is joined by an event that is recorded after that"
        )))
    }

    /// Returns the mode of the capture that a stream takes part in, if it is one of ours.
    pub(super) fn mode_of(&self, stream: &Stream) -> Option<CaptureMode> {
        let mut mode = None;
        self.note(stream, |capture, _| mode = Some(capture.mode));
        mode
    }

    /// Makes the capture that a stream takes part in fail.
    pub(super) fn break_capture(&self, stream: &Stream, why: String) {
        self.note(stream, |capture, _| {
            capture.broken.get_or_insert(why);
        });
    }

    /// Refuses a call that waits for a stream whose work is captured into a body of a conditional node, and breaks the capture.
    /// CUDA would break the body's capture, and drivers up to at least 580 free such a body twice when both captures end
    /// (NVIDIA's bug 6805256), which ends the process.
    #[inline]
    pub(crate) fn check_in_body(&self, stream: &Stream, label: Label) -> Result<()> {
        if self.are_under_way() { self.refuse_in_body(stream, label) } else { Ok(()) }
    }

    #[cold]
    fn refuse_in_body(&self, stream: &Stream, label: Label) -> Result<()> {
        let mut is_body = false;
        self.note(stream, |capture, info| {
            is_body = capture.is_body(info.id);
            if is_body {
                capture
                    .broken
                    .get_or_insert_with(|| format!("{label} waited in the body of a conditional node"));
            }
        });
        match is_body {
            false => Ok(()),
            true => Err(Error::capture(format!(
                "{label} waits for work that is captured into the body of a conditional node: none of it has run. Read values after a replay"
            ))),
        }
    }

    /// Notes the number under which a body of a conditional node on a stream is captured.
    pub(super) fn body_began(&self, stream: &Stream, id: u64) {
        self.note(stream, |capture, _| capture.ids.lock().push(id));
    }

    /// Returns the stream on which the bodies of a stream's conditional nodes are captured.
    pub(super) fn body_stream(&self, stream: &Stream) -> Result<Stream> {
        let mut found = None;
        self.note(stream, |capture, _| {
            found =
                capture.body_streams.iter().find(|(outer, _)| outer == stream).map(|(_, body)| body.clone());
        });
        if let Some(found) = found {
            return Ok(found);
        }
        // Searches for a stream that is not in use: the pool hands out its streams in turn.
        for _ in 0..STREAMS_PER_PRIORITY {
            let body = Stream::with_priority(stream.device(), stream.priority())?;
            let mut is_free = !body.is_capturing()?;
            self.note(stream, |capture, _| {
                is_free &= capture.body_streams.iter().all(|(_, other)| *other != body);
                if is_free {
                    capture.body_streams.push((stream.clone(), body.clone()));
                }
            });
            if is_free {
                return Ok(body);
            }
        }
        Err(Error::capture(
            "every stream of the pool captures already: there is none left for a conditional node's body",
        ))
    }

    /// Describes the streams of a capture that its origin does not wait for.
    pub(super) fn unjoined(&self, origin: &Stream, id: u64) -> Option<String> {
        let under_way = self.lock();
        let capture = under_way.iter().find(|capture| capture.has(id))?;
        capture.branches.unjoined(origin, id, &capture.questions)
    }

    pub(super) fn take(&self, id: u64) -> Option<UnderWay> {
        let mut under_way = self.lock();
        let position = under_way.iter().position(|capture| capture.has(id))?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(under_way.swap_remove(position))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        self.under_way.lock()
    }
}
