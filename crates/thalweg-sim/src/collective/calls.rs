//! The driver's calls on communicators.

use smallvec::SmallVec;
use thalweg_driver::{Code, Collective, CommunicatorHandle, CommunicatorId, CommunicatorInfo, GraphNodeKind};

use super::{Part, format_name};
use crate::executor::command::Frontier;
use crate::executor::task::{Task, Work};
use crate::machine::Locked;
use crate::memory::Toucher;
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

impl MachineState {
    pub(crate) fn communicators_create(&mut self, devices: &[u32]) -> CallResult<Vec<CommunicatorHandle>> {
        self.forbid_in_capture("communicators_create")?;
        if devices.is_empty() {
            return Err(Refusal::new(Code::InvalidValue, "a communicator of no devices"));
        }
        for (rank, &device) in devices.iter().enumerate() {
            self.usable(device)?;
            if devices[..rank].contains(&device) {
                let detail = format!("device {device} is named twice: each device has one rank");
                return Err(Refusal::new(Code::InvalidValue, detail));
            }
        }
        let communicator = self.executor.gate.create(devices.iter().copied().map(Some));
        let ranks = 0..devices.len() as u32;
        let handles = ranks.map(|rank| self.communicators.insert((communicator, rank)));
        Ok(handles.map(CommunicatorHandle::from_raw).collect())
    }

    pub(super) fn communicator(&self, handle: CommunicatorHandle) -> CallResult<(u64, u32)> {
        let found = self.communicators.get(handle.raw()).copied();
        found.ok_or_else(|| unknown("communicator", handle.raw()))
    }

    pub(crate) fn communicator_info(&self, handle: CommunicatorHandle) -> CallResult<CommunicatorInfo> {
        let (communicator, rank) = self.communicator(handle)?;
        let ranks = &self.executor.gate.communicators[&communicator].ranks;
        let device = ranks[rank as usize].device.expect("a rank with a handle has joined");
        Ok(CommunicatorInfo { rank, ranks: ranks.len() as u32, device })
    }

    pub(crate) fn communicator_id(&mut self) -> CallResult<CommunicatorId> {
        self.forbid_in_capture("communicator_id")?;
        let made = &mut self.executor.gate.ids_made;
        *made += 1;
        let mut id = [0; CommunicatorId::BYTES];
        id[..8].copy_from_slice(&made.to_le_bytes());
        Ok(CommunicatorId(id))
    }

    pub(crate) fn communicator_join(
        &mut self,
        id: &CommunicatorId,
        device: u32,
        rank: u32,
        ranks: u32,
    ) -> CallResult<CommunicatorHandle> {
        self.forbid_in_capture("communicator_join")?;
        self.usable(device)?;
        let refuse = |text: String| Err(Refusal::new(Code::InvalidValue, text));
        if rank >= ranks {
            return refuse(format!("there is no rank {rank} in a communicator of {ranks} ranks"));
        }
        let gate = &mut self.executor.gate;
        let number = id.0[..8].try_into().map_or(0, u64::from_le_bytes);
        if number == 0 || number > gate.ids_made || id.0[8..].iter().any(|&byte| byte != 0) {
            return refuse("no `communicator_id` of this machine gave this identifier".to_owned());
        }
        let communicator = match gate.by_id.get(id) {
            Some(&communicator) => communicator,
            None => {
                let communicator = gate.create((0..ranks).map(|_| None));
                gate.by_id.insert(*id, communicator);
                communicator
            }
        };
        let Some(found) = gate.communicators.get_mut(&communicator) else {
            return refuse(
                "the communicator of this identifier has been given up by all its ranks".to_owned(),
            );
        };
        let (all, places) = (found.ranks.len(), &mut found.ranks);
        if all != ranks as usize {
            return refuse(format!("rank {rank} joins a communicator of {ranks} ranks, others one of {all}"));
        }
        if let Some(other) = places.iter().position(|place| place.device == Some(device)) {
            return refuse(format!("device {device} is rank {other} already: each device has one rank"));
        }
        let place = &mut places[rank as usize];
        if place.device.is_some() {
            return refuse(format!("rank {rank} has joined before"));
        }
        place.device = Some(device);
        Ok(CommunicatorHandle::from_raw(self.communicators.insert((communicator, rank))))
    }

    /// Aborts a rank, together with its unfinished parts.
    pub(crate) fn communicator_abort(&mut self, handle: CommunicatorHandle) -> CallResult<()> {
        let (communicator, rank) = self.communicator(handle)?;
        self.forbid_in_capture("communicator_abort")?;
        self.communicators.remove(handle.raw());
        self.forget_registered(handle);
        let collectives = &mut self.executor.gate;
        let found = collectives.communicators.get_mut(&communicator).expect("a rank of it was there");
        let rank = &mut found.ranks[rank as usize];
        (rank.is_gone, rank.is_aborted) = (true, true);
        collectives.forget_communicator(communicator);
        self.executor.review_gate();
        Ok(())
    }

    /// Queues a group. Everything is checked before anything is queued.
    pub(crate) fn collectives(&mut self, group: &[Collective]) -> CallResult<()> {
        let number = self.executor.gate.begin();
        let parts =
            group.iter().map(|call| self.part(call, number)).collect::<CallResult<Vec<(u64, Task)>>>()?;
        // All parts of a stream come after its earlier work, and its later work comes after all of them.
        let mut streams: Vec<(u64, StreamPlace, StreamPlace)> = Vec::new();
        for (own, task) in parts {
            let position = streams.iter().position(|(stream, ..)| *stream == own).unwrap_or_else(|| {
                let before = self.place(own);
                let after = StreamPlace { frontier: Frontier::new(), nodes: SmallVec::new() };
                streams.push((own, before, after));
                streams.len() - 1
            });
            self.set_place(own, streams[position].1.clone());
            self.submit(own, task, GraphNodeKind::Library)?;
            let reached = self.place(own);
            let after = &mut streams[position].2;
            // A part leaves much of the position unchanged: in a capture the commands, outside of one the nodes.
            after.add(&reached);
        }
        for (own, _, after) in streams {
            self.set_place(own, after);
        }
        Ok(())
    }

    /// Checks a rank's part of a collective. Returns the part as a task, and the handle of its stream.
    fn part(&mut self, call: &Collective, group: u64) -> CallResult<(u64, Task)> {
        let label = call.label;
        let refuse = |code, text: String| Err(Refusal::new(code, format!("`{label}`: {text}")));
        let (communicator, rank) = self.communicator(call.communicator)?;
        let CommunicatorInfo { ranks, device, .. } = self.communicator_info(call.communicator)?;
        let own = self.enter(call.stream.raw())?;
        self.check_capture(own)?;
        let of_stream = self.stream(own).device;
        if of_stream != device {
            let text = format!("rank {rank} is device {device}, and the stream is one of device {of_stream}");
            return refuse(Code::InvalidValue, text);
        }
        if let Some(named) = call.operation.named_rank().filter(|&named| named >= ranks) {
            let text = format!("there is no rank {named} in a communicator of {ranks} ranks");
            return refuse(Code::InvalidValue, text);
        }
        let Some(accesses) = call.accesses(rank, ranks) else {
            let text = format!("{} elements of {}: no such size", call.count, format_name(call.format));
            return refuse(Code::InvalidValue, text);
        };
        if let Err(text) = self.memory.resolve(device, &accesses, Toucher::Kernel) {
            return refuse(Code::InvalidValue, text);
        }
        let &Collective { operation, format, count, .. } = call;
        let work = Work::Gated(Box::new(Part { communicator, rank, group, operation, format, count }));
        Ok((own, Task { device, label, accesses: SmallVec::from_slice(&accesses), work }))
    }

    /// Returns the position that a stream's next command follows.
    fn place(&self, own: u64) -> StreamPlace {
        let stream = self.stream(own);
        let nodes = stream.capture.as_ref().map(|branch| branch.nodes.clone()).unwrap_or_default();
        StreamPlace { frontier: stream.frontier.clone(), nodes }
    }

    fn set_place(&mut self, own: u64, place: StreamPlace) {
        let stream = self.stream_mut(own);
        stream.frontier = place.frontier;
        if let Some(branch) = &mut stream.capture {
            branch.nodes = place.nodes;
        }
    }
}

/// A position in a stream: after these commands, or after these nodes of its capture.
#[derive(Clone)]
struct StreamPlace {
    frontier: Frontier,
    nodes: SmallVec<[u32; 2]>,
}

impl StreamPlace {
    /// Adds another position's commands to this one. Commands that are in both are not added twice; otherwise the position would
    /// grow by the number of parts with each group.
    fn add(&mut self, other: &Self) {
        for command in &other.frontier {
            if !self.frontier.contains(command) {
                self.frontier.push(*command);
            }
        }
        for node in &other.nodes {
            if !self.nodes.contains(node) {
                self.nodes.push(*node);
            }
        }
    }
}

/// Destroys a rank after its collectives are done.
pub(crate) fn communicator_destroy(mut locked: Locked<'_>, handle: CommunicatorHandle) -> CallResult<()> {
    let (communicator, rank) = locked.communicator(handle)?;
    locked.forbid_in_capture("communicator_destroy")?;
    let collectives = &locked.executor.gate;
    let work = collectives.communicators[&communicator].ranks[rank as usize].members.clone();
    locked = locked.wait_for(&work)?;
    // Another thread may have destroyed it meanwhile.
    locked.communicator(handle)?;
    locked.communicators.remove(handle.raw());
    locked.forget_registered(handle);
    let collectives = &mut locked.executor.gate;
    let found = collectives.communicators.get_mut(&communicator).expect("a rank of it was there");
    found.ranks[rank as usize].is_gone = true;
    collectives.forget_communicator(communicator);
    locked.executor.review_gate();
    Ok(())
}
