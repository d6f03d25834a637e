//! Collectives: which parts belong together, and the order that results.
//!
//! A part is work of its stream, and is checked against the clock that the stream has when the part is submitted. When the last
//! part of a collective is submitted, the streams of the receiving ranks learn the clocks that the sending ranks' streams had
//! before their parts. They do not learn of the parts themselves, since a rank continues when its own part is done.
//!
//! Before that, the order does not exist yet, although it will. So races between work after an early part and work of the ranks
//! that have not arrived are not reported in the meantime. An event that was recorded on an early rank's stream in that time does
//! not learn of the order later.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{Access, Collective, CollectiveOperation, CommunicatorHandle, CommunicatorId};

use super::clock::Clock;
use super::model::{Actor, HostId, Model, StreamId};
use super::shadow::{Mark, MarkKind};
use super::touch::Manner;

/// The communicators that the program has made.
#[derive(Default)]
pub(super) struct Communicators {
    /// The communicator and the rank of each handle.
    ranks: FxHashMap<u64, (u64, u32)>,
    all: FxHashMap<u64, Communicator>,
    by_id: FxHashMap<CommunicatorId, u64>,
    /// The splits that only some of their ranks have called, by communicator, number and ranks.
    by_split: FxHashMap<(u64, u64, Vec<u32>), u64>,
    made: u64,
}

struct Communicator {
    /// The device of each rank, `None` until it joins.
    devices: Vec<Option<u32>>,
    /// The number of collectives that each rank has submitted.
    calls: Vec<u64>,
    /// The number of splits that each rank has called.
    splits: Vec<u64>,
    /// The number of sends and receives from one rank to another.
    pairs: FxHashMap<(u32, u32), [u64; 2]>,
    /// The collectives that some ranks have submitted and other ranks have not.
    open: FxHashMap<Key, Vec<Option<RankPart>>>,
}

impl Communicator {
    fn of(devices: Vec<Option<u32>>) -> Self {
        let calls = vec![0; devices.len()];
        Self {
            devices,
            splits: calls.clone(),
            calls,
            pairs: FxHashMap::default(),
            open: FxHashMap::default(),
        }
    }
}

/// The key that the parts of one collective share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    All(u64),
    Pair(u32, u32, u64),
}

/// A rank's part.
struct RankPart {
    rank: u32,
    operation: CollectiveOperation,
    stream: StreamId,
    number: u64,
    /// The work that precedes the part.
    entry: Clock,
}

impl Communicators {
    pub(super) fn add(&mut self, devices: &[u32], handles: &[CommunicatorHandle]) {
        self.made += 1;
        self.all.insert(self.made, Communicator::of(devices.iter().copied().map(Some).collect()));
        self.ranks.extend((0..).zip(handles).map(|(rank, handle)| (handle.raw(), (self.made, rank))));
    }

    /// Adds a rank that joined with an identifier.
    pub(super) fn join(
        &mut self,
        id: &CommunicatorId,
        device: u32,
        (rank, ranks): (u32, u32),
        handle: CommunicatorHandle,
    ) {
        let made = &mut self.made;
        let communicator = *self.by_id.entry(*id).or_insert_with(|| {
            *made += 1;
            *made
        });
        let all = self.all.entry(communicator);
        let all = all.or_insert_with(|| Communicator::of(vec![None; ranks as usize]));
        all.devices[rank as usize] = Some(device);
        self.ranks.insert(handle.raw(), (communicator, rank));
    }

    /// Notes that a rank has split a communicator into parts. If the rank is in a part, it has these ranks, and a handle of its
    /// own.
    pub(super) fn split(
        &mut self,
        own: CommunicatorHandle,
        part: &[u32],
        handle: Option<CommunicatorHandle>,
    ) {
        let Some(&(parent, rank)) = self.ranks.get(&own.raw()) else { return };
        let Some(all) = self.all.get_mut(&parent) else { return };
        let (device, number) = (all.devices[rank as usize], all.splits[rank as usize]);
        all.splits[rank as usize] += 1;
        let place = part.iter().position(|&other| other == rank);
        let (Some(handle), Some(place)) = (handle, place) else { return };
        let key = (parent, number, part.to_vec());
        let made = &mut self.made;
        let communicator = *self.by_split.entry(key.clone()).or_insert_with(|| {
            *made += 1;
            *made
        });
        let found = self.all.entry(communicator);
        let found = found.or_insert_with(|| Communicator::of(vec![None; part.len()]));
        found.devices[place] = device;
        if found.devices.iter().all(Option::is_some) {
            self.by_split.remove(&key);
        }
        self.ranks.insert(handle.raw(), (communicator, place as u32));
    }

    pub(super) fn forget(&mut self, handle: CommunicatorHandle) {
        let Some((communicator, _)) = self.ranks.remove(&handle.raw()) else { return };
        if !self.ranks.values().any(|(other, _)| *other == communicator) {
            self.all.remove(&communicator);
        }
    }

    /// Returns the memory that a part touches.
    pub(super) fn accesses(&self, call: &Collective) -> Option<[Access; 2]> {
        let (communicator, rank) = self.ranks.get(&call.communicator.raw())?;
        call.accesses(*rank, self.all.get(communicator)?.devices.len() as u32)
    }

    /// Adds a part. Returns all parts of its collective, if this was the last.
    fn add_part(&mut self, handle: CommunicatorHandle, part: RankPart) -> Option<Vec<RankPart>> {
        let (communicator, _) = self.ranks.get(&handle.raw())?;
        let communicator = self.all.get_mut(communicator)?;
        let (pair, place) = match part.operation {
            CollectiveOperation::Send { peer } => ((part.rank, peer), 0),
            CollectiveOperation::Receive { peer } => ((peer, part.rank), 1),
            _ => ((0, 0), part.rank as usize),
        };
        let (key, parts) = if part.operation.is_between_two() {
            let number = &mut communicator.pairs.entry(pair).or_default()[place];
            *number += 1;
            (Key::Pair(pair.0, pair.1, *number), 2)
        } else {
            let calls = &mut communicator.calls[place];
            *calls += 1;
            (Key::All(*calls), communicator.devices.len())
        };
        let open = communicator.open.entry(key);
        let open = open.or_insert_with(|| std::iter::repeat_with(|| None).take(parts).collect());
        open[place] = Some(part);
        if open.iter().any(Option::is_none) {
            return None;
        }
        let complete = communicator.open.remove(&key)?;
        Some(complete.into_iter().flatten().collect())
    }
}

impl Model {
    /// Notes a group of parts on streams that do not capture, and the memory that they touch.
    pub(super) fn collectives(&mut self, group: &[(&Collective, StreamId)], host: HostId) {
        let mut entries: SmallVec<[(StreamId, Clock); 4]> = SmallVec::new();
        for &(call, id) in group {
            let Some(&(_, rank)) = self.communicators.ranks.get(&call.communicator.raw()) else { continue };
            let Some(accesses) = self.communicators.accesses(call) else { continue };
            let known = entries.iter().find(|(stream, _)| *stream == id).map(|(_, entry)| entry.clone());
            let is_first = known.is_none();
            let entry = known.unwrap_or_else(|| self.address(id, host).clock.clone());
            if is_first {
                entries.push((id, entry.clone()));
            }
            // The parts of a group on one stream are not ordered: each part except the first is a strand of its own.
            let number = self.next();
            let own = self.streams[id as usize].strand;
            let strand = if is_first { own } else { self.strand(Actor::Stream(id)) };
            let mut clock = entry.clone();
            clock.learn(strand, number);
            let site = self.sites.of(call.label);
            let mark =
                Mark { within: self.sites.within(), ..Mark::new(strand, number, site, MarkKind::Command) };
            for access in &accesses {
                self.touch(&clock, mark, access, Manner::Submitted);
            }
            self.streams[id as usize].clock.learn(strand, number);
            if !is_first {
                self.retire(strand, number);
            }
            let part = RankPart { rank, operation: call.operation, stream: id, number, entry };
            if let Some(parts) = self.communicators.add_part(call.communicator, part) {
                self.met(&parts);
            }
        }
    }

    fn met(&mut self, parts: &[RankPart]) {
        for part in parts {
            let givers = parts.iter().filter(|giver| part.operation.is_fed_by(part.rank, giver.rank));
            let clock = &mut self.streams[part.stream as usize].clock;
            givers.for_each(|giver| clock.join(&giver.entry));
        }
    }

    /// Returns whether a collective that is still open may order two pieces of work: one of them follows a part of the
    /// collective, and the other is work of a device whose rank has not submitted its part.
    pub(super) fn may_yet_be_ordered(&self, first: &Mark, second: &Mark) -> bool {
        let stream = |mark: &Mark| match self.actors[mark.strand.index()] {
            Actor::Stream(stream) | Actor::Chain { stream, .. } => Some(stream),
            Actor::Host(_) => None,
        };
        let (Some(one), Some(other)) = (stream(first), stream(second)) else { return false };
        let is_between = |communicator: &Communicator, key: &Key, parts: &[Option<RankPart>]| {
            let is_missing = |device: u32| {
                let mut missing =
                    (0..).zip(parts).filter(|(_, part)| part.is_none()).map(|(place, _)| match key {
                        Key::All(_) => place,
                        Key::Pair(from, to, _) => [*from, *to][place as usize],
                    });
                missing.any(|rank: u32| communicator.devices[rank as usize].is_none_or(|own| own == device))
            };
            let follows = |mark: &Mark, stream: StreamId| {
                parts.iter().flatten().any(|part| part.stream == stream && part.number < mark.number)
            };
            let device = |stream: StreamId| self.streams[stream as usize].device;
            (follows(first, one) && is_missing(device(other)))
                || (follows(second, other) && is_missing(device(one)))
        };
        let communicators = self.communicators.all.values();
        communicators.into_iter().any(|communicator| {
            communicator.open.iter().any(|(key, parts)| is_between(communicator, key, parts))
        })
    }
}
