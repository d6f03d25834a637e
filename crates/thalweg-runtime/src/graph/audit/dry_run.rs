//! [`DryRun`]: a model of the region's capture, kept up to date while the region runs eagerly.
//!
//! The dry run models CUDA's capture rules from the calls that the region makes: which streams take part (the region's own, and
//! those that waited for an event of a stream that does), which node each of them has reached, and which calls are forbidden to
//! which thread. Where a capture would be broken, the dry run notes the obstacle and continues as if the call had not been made,
//! so that one run finds all obstacles.
//!
//! # Invariants
//! - The dry run does not know the driver and is passed what it needs, so it can be wrong about a capture only by modelling the
//!   rules wrongly.
//! - Obstacles are numbered in the order in which the region ran into them. A capture of the same region returns the code of the
//!   first one that has a code.

use std::thread::ThreadId;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{CaptureMode, Code, EventHandle};

use super::counts::{Command, Counts};
use super::obstacle::{Obstacle, ObstacleKind, Site};

/// A stream as the capture rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamIdentity {
    /// The `CUstream`: two handles name the same stream if their `CUstream`s are equal.
    pub(super) cuda_stream: u64,
    pub(super) device: u32,
    /// Whether the stream is the device's legacy default stream.
    pub(super) is_legacy: bool,
    /// Whether the stream synchronises with the legacy default stream.
    pub(super) is_blocking: bool,
}

/// The thread and operator that make a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) site: Site,
    /// The kind of obstacle to report if the call is refused, as set by the caller.
    pub(super) kind: Option<ObstacleKind>,
    pub(super) thread: ThreadId,
    /// The capture mode of the calling thread, which decides which calls are forbidden.
    pub(super) mode: CaptureMode,
}

/// A stream's part of the capture.
struct Member {
    place: StreamIdentity,
    /// The nodes that the stream's next command depends on.
    branch: SmallVec<[u32; 2]>,
    /// The wait that made the stream join the capture; `None` for the region's stream.
    joined: Option<Site>,
    /// The stream's last command.
    last: Option<Site>,
    is_destroyed: bool,
}

/// The last record of an event of the region.
enum Record {
    Captured(SmallVec<[u32; 2]>),
    Outside(Site),
}

/// A kernel that was loaded and not yet launched; its launch will name the operator.
struct Load {
    thread: ThreadId,
    kernel: String,
    order: u64,
    code: Option<Code>,
}

/// See the [module](self).
pub(super) struct DryRun {
    mode: CaptureMode,
    /// The region's thread.
    thread: ThreadId,
    /// The streams that take part; the first is the region's stream.
    members: Vec<Member>,
    /// The predecessors of each node.
    nodes: Vec<SmallVec<[u32; 2]>>,
    events: FxHashMap<EventHandle, Record>,
    loads: Vec<Load>,
    /// The obstacles, each with the number of its first occurrence.
    obstacles: Vec<(u64, Obstacle)>,
    order: u64,
    pub(super) counts: Counts,
}

impl DryRun {
    /// Creates a dry run of a capture that begins on this stream, in this mode, by this thread.
    pub(super) fn new(origin: StreamIdentity, mode: CaptureMode, thread: ThreadId) -> Self {
        let origin =
            Member { place: origin, branch: SmallVec::new(), joined: None, last: None, is_destroyed: false };
        Self {
            mode,
            thread,
            members: vec![origin],
            nodes: Vec::new(),
            events: FxHashMap::default(),
            loads: Vec::new(),
            obstacles: Vec::new(),
            order: 0,
            counts: Counts::default(),
        }
    }

    /// Returns whether the thread is the region's.
    pub(super) fn is_own(&self, thread: ThreadId) -> bool {
        self.thread == thread
    }

    fn member(&self, place: StreamIdentity) -> Option<usize> {
        self.members
            .iter()
            .position(|member| member.place.cuda_stream == place.cuda_stream && !member.is_destroyed)
    }

    /// Returns whether the stream takes part.
    pub(super) fn captures(&self, place: StreamIdentity) -> bool {
        !place.is_legacy && self.member(place).is_some()
    }

    /// Returns the nodes that the next command of a stream that takes part depends on.
    pub(super) fn branch(&self, place: StreamIdentity) -> Option<&[u32]> {
        self.member(place).map(|member| self.members[member].branch.as_slice())
    }

    /// Changes the nodes that the next command of a stream that takes part depends on. Nodes that do not exist are left out.
    pub(super) fn set_branch(&mut self, place: StreamIdentity, nodes: &[u32], keep: bool) {
        let known = self.nodes.len() as u32;
        let Some(member) = self.member(place) else { return };
        let branch = &mut self.members[member].branch;
        if !keep {
            branch.clear();
        }
        for &node in nodes.iter().filter(|&&node| node < known) {
            if !branch.contains(&node) {
                branch.push(node);
            }
        }
    }

    // ---- Obstacles ------------------------------------------------------------------------------------------------

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn note(&mut self, kind: ObstacleKind, site: Site, code: Option<Code>, detail: String) {
        let order = self.next_order();
        self.note_at(order, kind, site, code, detail);
    }

    fn note_at(&mut self, order: u64, kind: ObstacleKind, site: Site, code: Option<Code>, detail: String) {
        let same = |known: &&mut (u64, Obstacle)| {
            known.1.kind == kind && known.1.site == site && known.1.code == code
        };
        match self.obstacles.iter_mut().find(same) {
            Some((_, known)) => known.count += 1,
            None => self.obstacles.push((order, Obstacle { kind, site, code, detail, count: 1 })),
        }
    }

    /// Notes that the region draws random numbers on the host.
    pub(super) fn host_random(&mut self, site: Site) {
        let detail =
            "the host draws random numbers: each replay would repeat those of the capture".to_owned();
        self.note(ObstacleKind::HostRandomState, site, None, detail);
    }

    // ---- Rules ----------------------------------------------------------------------------------------------------

    /// Returns whether a call that CUDA considers potentially unsafe is forbidden to the caller.
    fn forbids(&self, by: &Caller) -> bool {
        if by.thread == self.thread {
            self.mode != CaptureMode::Relaxed && by.mode != CaptureMode::Relaxed
        } else {
            self.mode == CaptureMode::Global && by.mode == CaptureMode::Global
        }
    }

    /// Notes a potentially unsafe call, described by `words` (`allocates device memory`).
    pub(super) fn unsafe_call(&mut self, kind: ObstacleKind, by: &Caller, words: &str) {
        if !self.forbids(by) {
            return;
        }
        let (kind, detail) = if by.thread == self.thread {
            (by.kind.unwrap_or(kind), format!("{words}, which a capture forbids to its thread"))
        } else {
            (
                ObstacleKind::OtherThread,
                format!("another thread {words}, which a global capture forbids to all"),
            )
        };
        self.note(kind, by.site, Some(Code::StreamCaptureUnsupported), detail);
    }

    /// Returns whether the legacy stream is used while a stream that synchronises with it captures: then the call is refused.
    pub(super) fn refused_by_legacy(&mut self, place: StreamIdentity, by: &Caller) -> bool {
        let tied = |member: &Member| member.place.is_blocking && member.place.device == place.device;
        if !place.is_legacy || !self.members.iter().any(|member| tied(member) && !member.is_destroyed) {
            return false;
        }
        let detail = "the legacy default stream would depend on a blocking stream that captures".to_owned();
        self.note(ObstacleKind::LegacyStream, by.site, Some(Code::StreamCaptureImplicit), detail);
        true
    }

    // ---- Commands -------------------------------------------------------------------------------------------------

    /// Notes that a command was submitted.
    pub(super) fn submitted(&mut self, place: StreamIdentity, by: &Caller, command: Command) {
        self.counts.add(command);
        self.settle_loads(by.thread, Some(by.site));
        if self.refused_by_legacy(place, by) {
            return;
        }
        match self.member(place) {
            Some(member) if !place.is_legacy => self.append(member, by.site),
            _ => self.escaped(place, by),
        }
    }

    /// Notes a command that a stream cannot take while it captures.
    pub(super) fn submitted_uncapturable(
        &mut self,
        place: StreamIdentity,
        by: &Caller,
        command: Command,
        kind: ObstacleKind,
        words: &str,
    ) {
        self.counts.add(command);
        if self.refused_by_legacy(place, by) {
            return;
        }
        if !self.captures(place) {
            return self.escaped(place, by);
        }
        let kind = by.kind.unwrap_or(kind);
        let code = Some(Code::StreamCaptureUnsupported);
        self.note(kind, by.site, code, format!("{words}, which a stream cannot do while it captures"));
    }

    fn append(&mut self, member: usize, site: Site) {
        let index = self.nodes.len() as u32;
        let member = &mut self.members[member];
        self.nodes.push(std::mem::replace(&mut member.branch, SmallVec::from_slice(&[index])));
        member.last = Some(site);
    }

    /// Notes work that would run during the capture without becoming a part of it.
    fn escaped(&mut self, place: StreamIdentity, by: &Caller) {
        let stream =
            if place.is_legacy { "the legacy default stream" } else { "a stream outside the capture" };
        let origin = if by.thread == self.thread { "the region" } else { "another thread" };
        let kind = match (by.thread == self.thread, place.is_legacy) {
            (false, _) => ObstacleKind::OtherThread,
            (true, true) => ObstacleKind::LegacyStream,
            (true, false) => ObstacleKind::OutsideStream,
        };
        let detail = format!(
            "{origin} gives work to {stream}: it runs once, during the capture, and the graph lacks it"
        );
        self.note(kind, by.site, None, detail);
    }

    // ---- Order ----------------------------------------------------------------------------------------------------

    /// Notes that an event was recorded.
    pub(super) fn recorded(&mut self, event: EventHandle, place: StreamIdentity, by: &Caller) {
        if self.refused_by_legacy(place, by) {
            return;
        }
        let record = match self.member(place) {
            Some(member) if !place.is_legacy => Record::Captured(self.members[member].branch.clone()),
            _ => Record::Outside(by.site),
        };
        self.events.insert(event, record);
    }

    /// Notes that a stream of the capture records an event of work outside, or waits for it: a node.
    pub(super) fn met_outside(&mut self, place: StreamIdentity, by: &Caller) {
        if let Some(member) = self.member(place) {
            self.append(member, by.site);
        }
    }

    /// Forgets an event that was destroyed.
    pub(super) fn forget_event(&mut self, event: EventHandle) {
        self.events.remove(&event);
    }

    /// Notes that a stream waits for an event that has been recorded.
    pub(super) fn waited(&mut self, place: StreamIdentity, event: EventHandle, by: &Caller) {
        if self.refused_by_legacy(place, by) {
            return;
        }
        let member = if place.is_legacy { None } else { self.member(place) };
        match (self.events.get(&event), member) {
            (Some(Record::Captured(_)), None) if place.is_legacy => {
                let detail = "the legacy default stream waits for work of the capture".to_owned();
                self.note(ObstacleKind::LegacyStream, by.site, Some(Code::StreamCaptureImplicit), detail);
            }
            (Some(Record::Captured(nodes)), None) => {
                let branch = nodes.clone();
                let joined = Some(by.site);
                self.members.push(Member { place, branch, joined, last: None, is_destroyed: false });
            }
            (Some(Record::Captured(nodes)), Some(member)) => {
                let branch = &mut self.members[member].branch;
                for &node in nodes {
                    if !branch.contains(&node) {
                        branch.push(node);
                    }
                }
            }
            (Some(Record::Outside(site)), Some(_)) => {
                let detail =
                    format!("a stream of the capture waits for an event from outside of it ({site})");
                self.outside_event(by, detail);
            }
            (None, Some(_)) => {
                let detail = "a stream of the capture waits for an event that was recorded before it began";
                self.outside_event(by, detail.to_owned());
            }
            (_, None) => {}
        }
    }

    fn outside_event(&mut self, by: &Caller, detail: String) {
        self.note(ObstacleKind::OutsideEvent, by.site, Some(Code::StreamCaptureIsolation), detail);
    }

    /// Forgets a stream that was destroyed.
    pub(super) fn destroyed(&mut self, place: StreamIdentity) {
        if let Some(member) = self.member(place) {
            self.members[member].is_destroyed = true;
        }
    }

    // ---- The host -------------------------------------------------------------------------------------------------

    /// Notes that the host waits for a stream, or queries it.
    pub(super) fn asked_stream(&mut self, place: StreamIdentity, by: &Caller, words: &str) {
        if self.refused_by_legacy(place, by) {
            return;
        }
        if self.captures(place) {
            let detail = format!("the host {words} a stream of the capture, on which nothing has run");
            let code = Some(Code::StreamCaptureUnsupported);
            self.note(ObstacleKind::HostSynchronisation, by.site, code, detail);
        } else {
            self.unsafe_call(ObstacleKind::HostSynchronisation, by, &format!("{words} a stream"));
        }
    }

    /// Returns whether the event belongs to the capture: then the host's query is refused.
    pub(super) fn refused_as_captured(&mut self, event: EventHandle, by: &Caller, words: &str) -> bool {
        if !matches!(self.events.get(&event), Some(Record::Captured(_))) {
            return false;
        }
        let detail = format!("the host {words} an event of the capture, which nothing has reached");
        self.note(ObstacleKind::HostSynchronisation, by.site, Some(Code::CapturedEvent), detail);
        true
    }

    /// Notes that the host waits for an event, or queries it.
    pub(super) fn asked_event(&mut self, event: EventHandle, by: &Caller, words: &str) {
        if !self.refused_as_captured(event, by, words) {
            self.unsafe_call(ObstacleKind::HostSynchronisation, by, &format!("{words} an event"));
        }
    }

    /// Notes that the host waits for a device.
    pub(super) fn asked_device(&mut self, device: u32, by: &Caller) {
        if self.members.iter().any(|member| member.place.device == device && !member.is_destroyed) {
            let detail = "the host waits for the device while one of its streams captures".to_owned();
            let code = Some(Code::StreamCaptureUnsupported);
            self.note(ObstacleKind::HostSynchronisation, by.site, code, detail);
        }
    }

    // ---- Kernels --------------------------------------------------------------------------------------------------

    /// Notes that a module was loaded.
    pub(super) fn loaded(&mut self, by: &Caller) {
        let code = self.forbids(by).then_some(Code::StreamCaptureUnsupported);
        let order = self.next_order();
        self.loads.push(Load { thread: by.thread, kernel: String::new(), order, code });
    }

    /// Notes that a kernel was looked up in a module that the thread has loaded.
    pub(super) fn found_kernel(&mut self, thread: ThreadId, name: &str) {
        if let Some(load) = self.loads.iter_mut().rev().find(|load| load.thread == thread) {
            name.clone_into(&mut load.kernel);
        }
    }

    /// Notes that the latest loads were for this command.
    fn settle_loads(&mut self, thread: ThreadId, site: Option<Site>) {
        let (settled, rest) =
            std::mem::take(&mut self.loads).into_iter().partition(|load| load.thread == thread);
        self.loads = rest;
        let settled: Vec<Load> = settled;
        for Load { kernel, order, code, .. } in settled {
            let site = site.unwrap_or(Site::unknown("module_load"));
            let name = if kernel.is_empty() { "a kernel".to_owned() } else { format!("the kernel {kernel}") };
            let detail = format!("{name} is loaded at its first use");
            self.note_at(order, ObstacleKind::LazyModuleLoad, site, code, detail);
        }
    }

    // ---- The end --------------------------------------------------------------------------------------------------

    /// Ends the region, and returns its counts and its obstacles in the order of their occurrence, with unjoined forks at the
    /// end.
    pub(super) fn finish(mut self) -> (Vec<Obstacle>, Counts) {
        while let Some(load) = self.loads.first() {
            self.settle_loads(load.thread, None);
        }
        self.note_unjoined_forks();
        self.obstacles.sort_by_key(|(order, _)| *order);
        (self.obstacles.into_iter().map(|(_, obstacle)| obstacle).collect(), self.counts)
    }

    fn note_unjoined_forks(&mut self) {
        let mut before = vec![false; self.nodes.len()];
        let mut open = self.members[0].branch.to_vec();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut before[node as usize], true) {
                open.extend_from_slice(&self.nodes[node as usize]);
            }
        }
        let mut found = Vec::new();
        for member in &self.members[1..] {
            if member.branch.iter().all(|&node| before[node as usize]) {
                continue;
            }
            let forked = member.joined.map_or_else(String::new, |site| format!(", forked by {site},"));
            let (site, last) = match (member.last, member.joined) {
                (Some(last), _) => (last, format!("its last command is {last}")),
                (None, Some(joined)) => (joined, "it has no command of its own".to_owned()),
                (None, None) => continue,
            };
            found.push((
                site,
                format!(
                    "stream {:#x}{forked} is not joined: {last}, and the region's stream waits for nothing after that",
                    member.place.cuda_stream
                ),
            ));
        }
        for (site, detail) in found {
            self.note(ObstacleKind::UnjoinedFork, site, Some(Code::StreamCaptureUnjoined), detail);
        }
    }
}
