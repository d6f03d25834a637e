//! The sanitizer's model of a machine: streams, events and host threads with their clocks, and the orders between them.
//!
//! The model works at submission. Every order that CUDA guarantees is known when a call is made, whatever the device does later,
//! so nothing here depends on how the driver below schedules its work. Calls enter the model after the driver has accepted them.
//! Calls that destroy something are entered before the driver is called, since another thread may get the same handle or address
//! as soon as the driver is done.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_driver::{AccessMode, StreamHandle};

use super::blocks::Blocks;
use super::bodies::Families;
use super::chosen::Chosen;
use super::clock::{Clock, Strand};
use super::collective::Communicators;
use super::graph::{Executable, Graph};
use super::report::Findings;
use super::shadow::{Mark, MarkKind};
use super::site::{SiteId, Sites};
use super::space::{Shared, Space};

/// The index of a host thread; 0 is the first that makes a call without being registered.
pub(super) type HostId = u32;

/// The index of a stream.
pub(super) type StreamId = u32;

/// A host thread.
pub(super) struct Host {
    pub(super) strand: Strand,
    pub(super) name: String,
    /// The work that the thread knows of: its own, the work it saw complete, and the work that other threads passed on to it.
    pub(super) clock: Clock,
    /// The number of changes of the clock.
    pub(super) version: u64,
    /// The thread's position among all threads in the order of their creation, if that is known.
    pub(super) age: Option<u64>,
    /// Whether the thread was added at its first call, without having been registered. Only part of its order is then observed.
    pub(super) is_attached: bool,
}

/// A stream.
pub(super) struct Stream {
    pub(super) strand: Strand,
    pub(super) device: u32,
    pub(super) name: String,
    pub(super) is_legacy: bool,
    pub(super) is_blocking: bool,
    /// The work that precedes the stream's next command.
    pub(super) clock: Clock,
    /// The place where the stream was made; 0 if it was not reported.
    pub(super) made: SiteId,
    /// The last of the stream's waits for each other stream, the latest last.
    pub(super) waits: Vec<Wait>,
    /// The host thread, and the version of its clock, that the stream's clock includes already.
    heard: (HostId, u64),
    /// The number of handles of the stream.
    handles: u32,
    cuda_stream: u64,
}

/// The streams of a device.
#[derive(Default)]
pub(super) struct Device {
    legacy: Option<StreamId>,
    blocking: SmallVec<[StreamId; 4]>,
    all: Vec<StreamId>,
    /// The work of destroyed streams.
    orphans: Clock,
    created: u32,
}

/// The kind of a strand, for reports and advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Actor {
    Host(HostId),
    Stream(StreamId),
    /// A chain of an executable graph that was last launched on a stream.
    Chain {
        graph: u64,
        stream: StreamId,
    },
}

/// A wait of a stream for an event of another, if the program is known to have requested it.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) earlier: StreamId,
    /// The number of the other stream's last work that the wait covers.
    pub(super) number: u64,
    pub(super) site: SiteId,
}

/// The latest record of an event.
pub(super) enum Record {
    Live(Clock, StreamId),
    /// A record in a capture. It orders nodes of the graph, whose edges the driver reports.
    Captured,
}

/// The complete state of the sanitizer.
pub(super) struct Model {
    pub(super) sites: Sites,
    pub(super) actors: Vec<Actor>,
    /// Strands whose owners are gone, with the last number of each.
    retired: Vec<(Strand, u64)>,
    pub(super) number: u64,
    pub(super) hosts: Vec<Host>,
    /// The threads that have not ended, as far as can be seen.
    pub(super) living: Vec<HostId>,
    /// The number of threads that made a call without being registered.
    pub(super) attached: u32,
    /// The clock of the threads that have ended.
    pub(super) known_to_ended: Clock,
    /// The clock of the work before the host functions that were submitted.
    pub(super) known_to_functions: Clock,
    /// Whether all unregistered threads count as one.
    pub(super) threads_are_one: bool,
    pub(super) streams: Vec<Stream>,
    handles: FxHashMap<u64, StreamId>,
    by_cuda_stream: FxHashMap<(u32, u64), StreamId>,
    devices: Vec<Device>,
    pub(super) events: FxHashMap<u64, Record>,
    /// The events that nodes of graphs record or wait for: their records outlive their handles.
    pub(super) events_of_graphs: FxHashSet<u64>,
    /// The work that some host thread has seen complete.
    pub(super) observed: Clock,
    pub(super) space: Space,
    pub(super) blocks: Blocks,
    pub(super) captures: Vec<Graph>,
    pub(super) graphs: FxHashMap<u64, Graph>,
    pub(super) executables: FxHashMap<u64, Executable>,
    pub(super) families: Families,
    /// The captures for whose graphs the program vouches that they may use memory of other captures.
    pub(super) vouched: FxHashSet<u64>,
    /// The device of each module.
    pub(super) modules: FxHashMap<u64, u32>,
    /// The physical object of each handle.
    pub(super) physical: FxHashMap<u64, u32>,
    /// The plain object of each exported handle, with its serial number.
    pub(super) exported: FxHashMap<[u8; 64], (u32, u64)>,
    /// The physical object of each exported identity, with its serial number.
    pub(super) given_away: FxHashMap<Shared, (u32, u64)>,
    pub(super) communicators: Communicators,
    pub(super) findings: Findings,
    /// The accesses whose bytes are chosen by data, and questions about them.
    pub(super) chosen: Chosen,
    /// The captures whose graphs have been launched.
    pub(super) launched: FxHashSet<u64>,
    /// Whether a wait timed out because nothing could continue.
    pub(super) stands_still: bool,
    /// Whether the line of each drop is looked up, and not only of drops that cause a finding.
    pub(super) traces_drops: bool,
    /// Whether advice is written for a Python program.
    pub(super) speaks_python: bool,
}

impl Model {
    pub(super) fn new(devices: u32) -> Self {
        let mut model = Self {
            sites: Sites::default(),
            actors: Vec::new(),
            retired: Vec::new(),
            number: 0,
            hosts: Vec::new(),
            living: Vec::new(),
            attached: 0,
            known_to_ended: Clock::default(),
            known_to_functions: Clock::default(),
            threads_are_one: false,
            streams: Vec::new(),
            handles: FxHashMap::default(),
            by_cuda_stream: FxHashMap::default(),
            devices: (0..devices).map(|_| Device::default()).collect(),
            events: FxHashMap::default(),
            events_of_graphs: FxHashSet::default(),
            observed: Clock::default(),
            space: Space::new(),
            blocks: Blocks::default(),
            captures: Vec::new(),
            graphs: FxHashMap::default(),
            executables: FxHashMap::default(),
            families: Families::default(),
            vouched: FxHashSet::default(),
            modules: FxHashMap::default(),
            physical: FxHashMap::default(),
            exported: FxHashMap::default(),
            given_away: FxHashMap::default(),
            communicators: Communicators::default(),
            findings: Findings::default(),
            chosen: Chosen::default(),
            launched: FxHashSet::default(),
            stands_still: false,
            traces_drops: false,
            speaks_python: false,
        };
        model.introduce("the host");
        model.hosts[0].is_attached = true;
        model
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Returns a strand for a new actor: one that is no longer used and whose work the host has seen complete, or a new one.
    pub(super) fn strand(&mut self, actor: Actor) -> Strand {
        let observed = &self.observed;
        if let Some(index) = self.retired.iter().position(|&(strand, last)| observed.covers(strand, last)) {
            let (strand, _) = self.retired.swap_remove(index);
            self.actors[strand.index()] = actor;
            return strand;
        }
        self.actors.push(actor);
        Strand((self.actors.len() - 1) as u32)
    }

    /// Ends a strand.
    pub(super) fn retire(&mut self, strand: Strand, last: u64) {
        self.retired.push((strand, last));
    }

    // ---- Host threads ---------------------------------------------------------------------------------------------

    /// Registers a new host thread, which knows nothing yet, and returns it.
    pub(super) fn introduce(&mut self, name: &str) -> HostId {
        let id = self.hosts.len() as HostId;
        let strand = self.strand(Actor::Host(id));
        let (name, clock) = (name.to_owned(), Clock::default());
        self.hosts.push(Host { strand, name, clock, version: 1, age: None, is_attached: false });
        self.living.push(id);
        id
    }

    /// Notes that a host thread saw all this work complete.
    pub(super) fn note_seen(&mut self, host: HostId, clock: &Clock) {
        self.observed.join(clock);
        self.tell(host, clock);
    }

    /// Notes that a host thread learned of all this work.
    pub(super) fn tell(&mut self, host: HostId, clock: &Clock) {
        let host = &mut self.hosts[host as usize];
        host.clock.join(clock);
        host.version += 1;
    }

    /// Numbers the next action of a host thread, and returns the number.
    pub(super) fn host_acts(&mut self, host: HostId) -> u64 {
        let number = self.next();
        let host = &mut self.hosts[host as usize];
        host.clock.learn(host.strand, number);
        host.version += 1;
        number
    }

    // ---- Streams --------------------------------------------------------------------------------------------------

    /// Adds a stream of the driver, under its handle and its `CUstream`, and returns it.
    pub(super) fn add_stream(
        &mut self,
        handle: StreamHandle,
        device: u32,
        cuda_stream: u64,
        is_legacy: bool,
        is_blocking: bool,
    ) -> StreamId {
        let cuda_stream = if is_legacy { 0 } else { cuda_stream };
        if let Some(&known) = self.handles.get(&handle.raw()) {
            return known;
        }
        if let Some(&known) = self.by_cuda_stream.get(&(device, cuda_stream)) {
            self.streams[known as usize].handles += 1;
            self.handles.insert(handle.raw(), known);
            return known;
        }
        let id = self.streams.len() as StreamId;
        let strand = self.strand(Actor::Stream(id));
        let owner = &mut self.devices[device as usize];
        let name = if is_legacy {
            format!("the default stream of device {device}")
        } else {
            owner.created += 1;
            format!("stream {} of device {device}", owner.created)
        };
        owner.all.push(id);
        if is_legacy {
            owner.legacy = Some(id);
        } else if is_blocking {
            owner.blocking.push(id);
        }
        let clock = Clock::default();
        let stream = Stream {
            strand,
            device,
            name,
            is_legacy,
            is_blocking: is_blocking && !is_legacy,
            clock,
            made: 0,
            waits: Vec::new(),
            heard: (0, 0),
            handles: 1,
            cuda_stream,
        };
        self.streams.push(stream);
        self.handles.insert(handle.raw(), id);
        self.by_cuda_stream.insert((device, cuda_stream), id);
        id
    }

    /// Returns the stream of a handle.
    pub(super) fn stream(&self, handle: StreamHandle) -> Option<StreamId> {
        self.handles.get(&handle.raw()).copied()
    }

    /// Drops a handle. The stream is removed with its last handle; its work is not.
    pub(super) fn forget_stream(&mut self, handle: StreamHandle) {
        let Some(id) = self.handles.remove(&handle.raw()) else { return };
        let stream = &mut self.streams[id as usize];
        stream.handles -= 1;
        if stream.handles > 0 || stream.is_legacy {
            return;
        }
        let (cuda_stream, number) = (stream.cuda_stream, stream.device);
        let (strand, is_blocking, clock) = (stream.strand, stream.is_blocking, stream.clock.clone());
        let device = &mut self.devices[number as usize];
        device.all.retain(|&other| other != id);
        device.blocking.retain(|other| *other != id);
        device.orphans.join(&clock);
        let legacy = device.legacy;
        if let (true, Some(legacy)) = (is_blocking, legacy) {
            // Later work of the default stream still comes after it.
            self.streams[legacy as usize].clock.join(&clock);
        }
        self.by_cuda_stream.remove(&(number, cuda_stream));
        let last = clock.of(strand);
        self.retire(strand, last);
    }

    /// Updates a stream's clock by the synchronisation with the legacy default stream. The clock then covers all work that
    /// precedes the stream's next command.
    pub(super) fn settle(&mut self, id: StreamId) -> &mut Stream {
        let stream = &self.streams[id as usize];
        let device = &self.devices[stream.device as usize];
        if stream.is_legacy {
            let mut clock = std::mem::take(&mut self.streams[id as usize].clock);
            for &other in &device.blocking {
                clock.join(&self.streams[other as usize].clock);
            }
            self.streams[id as usize].clock = clock;
        } else if let (true, Some(legacy)) = (stream.is_blocking, device.legacy) {
            let clock = std::mem::take(&mut self.streams[legacy as usize].clock);
            self.streams[id as usize].clock.join(&clock);
            self.streams[legacy as usize].clock = clock;
        }
        &mut self.streams[id as usize]
    }

    /// Notes that a host thread submits to the stream: everything in the thread's clock precedes the stream's next work.
    pub(super) fn address(&mut self, id: StreamId, host: HostId) -> &mut Stream {
        let speaker = &self.hosts[host as usize];
        let stream = &mut self.streams[id as usize];
        if stream.heard != (host, speaker.version) {
            stream.clock.join(&speaker.clock);
            stream.heard = (host, speaker.version);
        }
        if stream.is_legacy || stream.is_blocking {
            self.settle(id);
        }
        &mut self.streams[id as usize]
    }

    /// Numbers a command that is submitted to a stream, and returns the number. The stream's clock is then the command's.
    pub(super) fn submit(&mut self, id: StreamId, host: HostId) -> u64 {
        let number = self.next();
        let stream = self.address(id, host);
        stream.clock.learn(stream.strand, number);
        number
    }

    /// Returns the clock of everything that was submitted to a stream.
    pub(super) fn frontier(&mut self, id: StreamId) -> Clock {
        self.settle(id).clock.clone()
    }

    /// Returns the clock of everything that was submitted to a device.
    pub(super) fn device_frontier(&self, device: u32) -> Clock {
        let Some(device) = self.devices.get(device as usize) else { return Clock::default() };
        let mut clock = device.orphans.clone();
        for &stream in &device.all {
            clock.join(&self.streams[stream as usize].clock);
        }
        clock
    }

    /// Returns the clock of everything that was submitted to any device.
    pub(super) fn whole_frontier(&self) -> Clock {
        let mut clock = Clock::default();
        for device in 0..self.devices.len() as u32 {
            clock.join(&self.device_frontier(device));
        }
        clock
    }

    // ---- Events ---------------------------------------------------------------------------------------------------

    /// Records an event on a stream.
    pub(super) fn record(&mut self, event: u64, id: StreamId, host: HostId) {
        let clock = self.address(id, host).clock.clone();
        self.events.insert(event, Record::Live(clock, id));
    }

    /// Makes a stream wait for the event's latest record.
    pub(super) fn wait(&mut self, id: StreamId, event: u64, host: HostId, site: SiteId) {
        self.address(id, host);
        let Some(Record::Live(clock, earlier)) = self.events.get(&event) else { return };
        let number = clock.of(self.streams[*earlier as usize].strand);
        let wait = Wait { earlier: *earlier, number, site };
        let stream = &mut self.streams[id as usize];
        stream.clock.join(clock);
        if site != 0 && wait.earlier != id {
            stream.waits.retain(|other| other.earlier != wait.earlier);
            stream.waits.push(wait);
        }
    }

    /// Returns the clock of the event's latest record.
    pub(super) fn recorded(&self, event: u64) -> Option<Clock> {
        match self.events.get(&event) {
            Some(Record::Live(clock, _)) => Some(clock.clone()),
            _ => None,
        }
    }

    /// Forgets an event whose handle is given up, and returns its record. That of an event which a graph names stays.
    pub(super) fn forget_event(&mut self, event: u64) -> Option<Record> {
        if self.events_of_graphs.contains(&event) { None } else { self.events.remove(&event) }
    }

    // ---- Marks ----------------------------------------------------------------------------------------------------

    /// Returns a mark for the command with this number on the stream.
    pub(super) fn mark(&mut self, id: StreamId, number: u64, site: SiteId, kind: MarkKind) -> Mark {
        let strand = self.streams[id as usize].strand;
        Mark { within: self.sites.within(), mode: AccessMode::Write, ..Mark::new(strand, number, site, kind) }
    }
}
