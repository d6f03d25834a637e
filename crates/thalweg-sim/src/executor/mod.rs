//! The executor: commands, the edges between them, and the range lock.
//!
//! Each command counts its unfinished predecessors and lists its successors. Stream order, event waits, the ties of the
//! legacy default stream and the edges of graphs are all the same edges. A command whose count is 0 is *ready*; a worker
//! takes it when the range lock admits it.
//!
//! # The range lock
//! A running command holds the physical bytes that it touches. A command is admitted only if no running command touches the
//! same bytes in conflict. This is not an order that the program can use; it makes every program sound: a racy one gets one
//! of the possible orders. The host holds bytes in the same way while it reads or writes pinned memory or removes memory.
//! While it waits for that, conflicting commands are not admitted, so it waits for running commands and never for queued
//! ones.
//!
//! # Invariants
//! - A command is in exactly one state: waiting, ready, running, gone. Its slot is reused with another generation, so a
//!   [`CommandId`] always shows whether its command is gone.
//! - Edges lead from older commands to newer ones: there are no cycles.
//! - Commands without a task (marks) never wait for a worker: they are complete at the moment when their last predecessor
//!   is.
//! - A gated command is never ready: when it could be, it waits at the gate ([`plug`](crate::executor::plug)) for others,
//!   and then one of them runs for all.
//! - No task is dropped while the machine is locked: a task owns the program's values, whose destructors may call us.

pub(crate) mod command;
pub(crate) mod faults;
mod gated;
pub(crate) mod offers;
pub(crate) mod plug;
pub(crate) mod ready;
pub(crate) mod snapshot;
pub(crate) mod task;

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::Code;

use self::command::{Body, Claim, CommandId, Frontier, Origin, Planned};
use self::faults::{Faults, Point};
use self::plug::{Gate, QueueingCommand};
use self::ready::Ready;
use self::snapshot::Snapshot;
use self::task::{Task, Work};
use super::memory::{Memory, Piece, Resolved};
use super::refusal::Refusal;
use super::schedules::Actor;

/// The details of a command that only a controlled machine knows.
struct Detail {
    number: u64,
    /// The number of the command among its actor's commands.
    index: u64,
    actor: Actor,
    /// Whether a host thread waits for the command, directly or through other commands.
    is_needed: bool,
    predecessors: Frontier,
    /// The copy of the command's memory, if the command has begun but not ended.
    snapshot: Option<Snapshot>,
}

/// The details that a controlled machine keeps.
#[derive(Default)]
struct Details {
    /// The details of the commands, one for each slot.
    commands: Vec<Detail>,
    /// The number of the last command. Marks have no number, because they are never chosen.
    number: u64,
    /// The number of commands that each actor has submitted.
    counts: FxHashMap<Actor, u64>,
    /// The number of host functions that are not complete.
    host_functions: usize,
    /// The time, as the number of commands that have ended.
    ended: u64,
}

/// The number of commands of a stream that may be queued. A thread that submits more waits until the first of them is
/// complete, as with CUDA, whose limit is about the same. Without a limit, a program that never waits for its work would
/// fill the host's memory, and leave minutes of work queued. Commands that are queued together, such as the nodes of a
/// graph, may exceed the limit: they only wait until the queue has any room.
///
/// A program that blocks a stream until it has submitted more commands than fit in the queue deadlocks, as with CUDA.
pub(super) const QUEUE_COMMANDS: usize = 1024;

/// The commands of a stream that are not complete.
#[derive(Default)]
struct Queue {
    commands: usize,
    /// Whether a host thread waits for room.
    is_awaited: bool,
}

/// The length of a step of time, in nanoseconds, if time is counted in commands.
const TICK_NANOSECONDS: u64 = 1000;

struct Slot {
    generation: u32,
    pending: u32,
    /// The number of the stream that queued the command.
    stream: u32,
    level: u8,
    /// Whether a host thread waits for the command.
    awaited: bool,
    body: Option<Body>,
    successors: SmallVec<[u32; 4]>,
    /// The places of the command's accesses, and the epoch of the memory when they were resolved.
    resolved: Option<(u64, Resolved)>,
}

/// The part of a command that the worker which took it needs.
pub(super) struct Job {
    index: u32,
    pub(super) task: Arc<Task>,
    pub(super) start: Start,
    /// The contents of the command's memory when the command began, if it began before this job.
    pub(super) snapshot: Option<Snapshot>,
}

/// The way in which a command begins.
pub(super) enum Start {
    /// The command runs, and the range lock holds its bytes.
    Run(Resolved),
    /// The device is lost: the command does not run.
    Skip,
    /// The command fails, because it accesses memory that it must not access.
    Fail(Refusal),
}

struct Held {
    holder: Holder,
    pieces: SmallVec<[Piece; 4]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Command(u32),
    Host(Claim),
}

/// Commands and the range lock.
pub(super) struct Executor<G> {
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(super) ready: Ready,
    running: Vec<Held>,
    waiting_claims: Vec<Held>,
    last_claim: u64,
    lost: Vec<Option<Refusal>>,
    /// The planned faults.
    pub(super) faults: Faults,
    /// The place where gated commands wait for each other.
    pub(super) gate: G,
    started: Instant,
    /// The streams with commands that are not complete, by their numbers.
    queues: FxHashMap<u32, Queue>,
    /// Marks that are complete but whose successors have not been notified yet.
    completing: Vec<u32>,
    /// Steps that were reached and must now queue their next commands, with the slots of those steps.
    reached: Vec<(u32, Box<dyn QueueingCommand>)>,
    is_stepping: bool,
    /// Steps that have queued their next commands. They may hold the last references to tasks, which must not be dropped here.
    pub(super) spent: Vec<Box<dyn QueueingCommand>>,
    /// Addresses whose stream-ordered frees have been reached.
    pub(super) freed: Vec<u64>,
    /// Whether a worker may find more to do than before.
    pub(super) wake_workers: bool,
    /// Whether an event that a host thread waits for has happened.
    pub(super) wake_hosts: bool,
    /// The details; `None` on a machine that is not controlled.
    details: Option<Box<Details>>,
}

impl<G: Gate + Default> Executor<G> {
    pub(super) fn new(devices: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ready: Ready::default(),
            running: Vec::new(),
            waiting_claims: Vec::new(),
            last_claim: 0,
            lost: vec![None; devices as usize],
            faults: Faults::default(),
            gate: G::default(),
            started: Instant::now(),
            queues: FxHashMap::default(),
            completing: Vec::new(),
            reached: Vec::new(),
            is_stepping: false,
            spent: Vec::new(),
            freed: Vec::new(),
            wake_workers: false,
            wake_hosts: false,
            details: None,
        }
    }
}

impl<G: Gate> Executor<G> {
    /// Keeps the details for [`offers`](Self::offers) from now on.
    pub(super) fn keep_details(&mut self) {
        self.details = Some(Box::default());
    }

    /// Returns the reason why the device is lost, if it is lost.
    pub(super) fn lost(&self, device: u32) -> Option<&Refusal> {
        self.lost[device as usize].as_ref()
    }

    /// Returns how many commands are not complete.
    pub(super) fn live(&self) -> usize {
        self.queues.values().map(|queue| queue.commands).sum()
    }

    /// Returns whether the queue of a stream has room.
    pub(super) fn has_room(&self, stream: u32) -> bool {
        self.queues.get(&stream).is_none_or(|queue| queue.commands < QUEUE_COMMANDS)
    }

    /// Returns whether the queue of a stream has room. If not, host threads will be woken when it has.
    pub(super) fn await_room(&mut self, stream: u32) -> bool {
        let has_room = self.has_room(stream);
        if !has_room && let Some(queue) = self.queues.get_mut(&stream) {
            queue.is_awaited = true;
        }
        has_room
    }

    fn leave_queue(&mut self, stream: u32) {
        let Entry::Occupied(mut queue) = self.queues.entry(stream) else { return };
        queue.get_mut().commands -= 1;
        if queue.get().commands < QUEUE_COMMANDS {
            self.wake_hosts |= std::mem::take(&mut queue.get_mut().is_awaited);
        }
        if queue.get().commands == 0 {
            queue.remove();
        }
    }

    /// Returns whether the command is complete.
    pub(super) fn is_done(&self, id: CommandId) -> bool {
        self.slots[id.index as usize].generation != id.generation
    }

    /// Returns whether all commands are complete. If not, host threads will be woken when they are.
    pub(super) fn await_all(&mut self, ids: &[CommandId]) -> bool {
        let mut done = true;
        for &id in ids {
            if !self.is_done(id) {
                self.slots[id.index as usize].awaited = true;
                done = false;
            }
        }
        done
    }

    /// Removes complete commands from a frontier.
    pub(super) fn prune(&self, frontier: &mut Frontier) {
        frontier.retain(|id| !self.is_done(*id));
    }

    /// Queues a command that follows other commands.
    pub(super) fn add(
        &mut self,
        body: Body,
        origin: Origin,
        predecessors: impl IntoIterator<Item = CommandId>,
    ) -> CommandId {
        let index = self.vacant_slot();
        let id = CommandId { index, generation: self.slots[index as usize].generation };
        let before = match &body {
            Body::Task(task) if matches!(task.work, Work::Gated(_)) => self.gate.enlist(id, task),
            Body::Mark(Some(reached)) => reached.queued(id),
            _ => Frontier::new(),
        };
        let mut pending = 0;
        if let Some(details) = &mut self.details {
            details.begin(index, &body, origin.actor);
        }
        for predecessor in predecessors.into_iter().chain(before) {
            let slot = &mut self.slots[predecessor.index as usize];
            if slot.generation == predecessor.generation {
                slot.successors.push(index);
                pending += 1;
                if let Some(details) = &mut self.details {
                    details.commands[index as usize].predecessors.push(predecessor);
                }
            }
        }
        let slot = &mut self.slots[index as usize];
        slot.pending = pending;
        (slot.level, slot.stream) = (origin.level, origin.stream());
        slot.body = Some(body);
        self.queues.entry(slot.stream).or_default().commands += 1;
        if pending == 0 {
            self.make_ready(index);
            self.complete_marks();
        }
        id
    }

    /// Queues commands. Those without predecessors in the list follow `entry`. Returns the commands' identifiers, in order.
    pub(super) fn add_all<'a>(
        &mut self,
        planned: impl IntoIterator<Item = Planned<'a>>,
        entry: Option<CommandId>,
    ) -> Vec<CommandId> {
        let planned = planned.into_iter();
        let mut commands: Vec<CommandId> = Vec::with_capacity(planned.size_hint().0);
        for Planned { body, origin, predecessors } in planned {
            let command = if predecessors.is_empty() {
                self.add(body, origin, entry)
            } else {
                self.add(body, origin, predecessors.iter().map(|&place| commands[place as usize]))
            };
            commands.push(command);
        }
        commands
    }

    fn vacant_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 commands are queued");
            self.slots.push(Slot {
                generation: 0,
                pending: 0,
                stream: 0,
                level: 0,
                awaited: false,
                body: None,
                successors: SmallVec::new(),
                resolved: None,
            });
            index
        })
    }

    fn make_ready(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        match slot.body.as_ref().expect("a waiting command has a body") {
            Body::Task(task) if matches!(task.work, Work::Host(_)) => self.ready.push_host(index),
            Body::Task(task) if matches!(task.work, Work::Gated(_)) => {
                self.gate.arrived(index);
                self.open_gate();
            }
            Body::Task(_) => {
                self.ready.push(slot.level, index);
                self.wake_workers = true;
            }
            Body::Mark(_) | Body::PoolFree(_) | Body::Step(..) => self.completing.push(index),
        }
    }

    /// Completes all marks that have been reached, including those that this reaches.
    fn complete_marks(&mut self) {
        loop {
            while let Some(index) = self.completing.pop() {
                self.complete_mark(index);
            }
            if !self.take_step() {
                return;
            }
        }
    }

    fn complete_mark(&mut self, index: u32) {
        match self.slots[index as usize].body.take() {
            Some(Body::Mark(Some(reported))) => {
                reported.reached(match &self.details {
                    Some(details) => details.ended * TICK_NANOSECONDS,
                    None => self.started.elapsed().as_nanos() as u64,
                });
            }
            Some(Body::PoolFree(address)) => self.freed.push(address),
            Some(Body::Step(step, first)) => {
                self.reached.push((first.unwrap_or(index), step));
                if first.is_none() {
                    return;
                }
            }
            _ => {}
        }
        self.retire(index);
    }

    /// Completes the command: each successor has one predecessor less.
    fn retire(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.resolved = None;
        let stream = slot.stream;
        self.wake_hosts |= std::mem::take(&mut slot.awaited);
        let successors = std::mem::take(&mut slot.successors);
        self.free.push(index);
        self.leave_queue(stream);
        for successor in successors {
            let slot = &mut self.slots[successor as usize];
            slot.pending -= 1;
            if slot.pending == 0 {
                self.make_ready(successor);
            }
        }
    }

    // ---- Workers --------------------------------------------------------------------------------------------------

    /// Returns the next command for a worker, after acquiring the command's bytes in the range lock.
    pub(super) fn take(&mut self, memory: &Memory) -> Option<Job> {
        let Self { ready, slots, running, waiting_claims, lost, .. } = self;
        let index = ready.take(|index| {
            let held = running.iter().chain(waiting_claims.iter());
            slots[index as usize].is_admissible(memory, lost, held)
        })?;
        let job = self.start(index, memory);
        self.wake_workers |= self.ready.queued() > 0;
        Some(job)
    }

    /// Returns the next host function.
    pub(super) fn take_host(&mut self) -> Option<Job> {
        let index = self.ready.take_host()?;
        Some(self.start_host(index))
    }

    fn start_host(&mut self, index: u32) -> Job {
        let task = self.take_task(index);
        if let Some(details) = &mut self.details {
            details.host_functions -= 1;
        }
        let lost = self.lost(task.device).is_some();
        Job {
            index,
            task,
            start: if lost { Start::Skip } else { Start::Run(Resolved::default()) },
            snapshot: None,
        }
    }

    fn start(&mut self, index: u32, memory: &Memory) -> Job {
        let resolved = self.slots[index as usize].resolved.take();
        let task = self.take_task(index);
        let start = match resolved {
            _ if let Some(cause) = self.lost(task.device) => match task.work {
                // The commands that waited with it at the gate must not continue as if it had run.
                Work::Joint(_) => Start::Fail(cause.clone()),
                _ => Start::Skip,
            },
            Some(_) if let Err(refusal) = self.faults.pass(Point::Command) => {
                let detail = format!("`{}` failed: {}", task.label, refusal.detail);
                Start::Fail(Refusal::new(refusal.code, detail))
            }
            Some((_, resolved)) => {
                let pieces = resolved.pieces.clone();
                self.running.push(Held { holder: Holder::Command(index), pieces });
                Start::Run(resolved)
            }
            None => match task.resolve(memory) {
                Ok(_) => unreachable!("it did not resolve a moment ago, under the same lock"),
                Err(text) => {
                    let detail = format!("`{}` failed: {text}", task.label);
                    Start::Fail(Refusal::new(Code::IllegalAddress, detail))
                }
            },
        };
        Job { index, task, start, snapshot: None }
    }

    fn take_task(&mut self, index: u32) -> Arc<Task> {
        match self.slots[index as usize].body.take() {
            Some(Body::Task(task)) => task,
            _ => unreachable!("only tasks are ready"),
        }
    }

    /// Finishes a command that has run, or will not: releases its bytes and completes it.
    pub(super) fn finish(&mut self, index: u32, device: u32, outcome: Result<(), Refusal>) {
        self.let_go(Holder::Command(index));
        if let Some(details) = &mut self.details {
            details.ended += 1;
        }
        let met = self.gate.end(index);
        if let Err(refusal) = outcome {
            let own = [device];
            let devices = met.as_ref().map_or(&own[..], |(devices, _)| devices);
            self.lose(devices, &refusal);
            self.open_gate();
        }
        self.retire(index);
        self.completing.extend(met.into_iter().flat_map(|(_, others)| others));
        self.complete_marks();
    }

    fn lose(&mut self, devices: &[u32], refusal: &Refusal) {
        for &device in devices {
            self.lost[device as usize].get_or_insert_with(|| refusal.clone());
        }
        self.wake_hosts = true;
    }

    // ---- The host's part of the range lock ------------------------------------------------------------------------

    /// Requests bytes.
    pub(super) fn claim(&mut self, pieces: SmallVec<[Piece; 4]>) -> Claim {
        self.last_claim += 1;
        let claim = Claim(self.last_claim);
        self.waiting_claims.push(Held { holder: Holder::Host(claim), pieces });
        claim
    }

    /// Holds the requested bytes, if no running command touches them in conflict.
    pub(super) fn try_hold(&mut self, claim: Claim) -> bool {
        let position = self.waiting_claims.iter().position(|held| held.holder == Holder::Host(claim));
        let position = position.expect("the claim is waiting");
        let wanted = &self.waiting_claims[position].pieces;
        if self.running.iter().any(|held| conflict(&held.pieces, wanted)) {
            return false;
        }
        let held = self.waiting_claims.swap_remove(position);
        self.running.push(held);
        true
    }

    /// Releases a claim's bytes.
    pub(super) fn release(&mut self, claim: Claim) {
        self.let_go(Holder::Host(claim));
    }

    /// Returns whether a running command touches these bytes in conflict.
    pub(super) fn is_touched(&self, pieces: &[Piece]) -> bool {
        self.running.iter().any(|held| conflict(&held.pieces, pieces))
    }

    fn let_go(&mut self, holder: Holder) {
        if let Some(position) = self.running.iter().position(|held| held.holder == holder) {
            self.running.swap_remove(position);
        }
        self.wake_workers |= self.ready.queued() > 0;
        self.wake_hosts |= !self.waiting_claims.is_empty();
    }
}

impl Details {
    fn begin(&mut self, index: u32, body: &Body, actor: Actor) {
        let (mut number, mut step) = (0, 0);
        if let Body::Task(task) = body {
            self.number += 1;
            number = self.number;
            let count = self.counts.entry(actor).or_default();
            *count += 1;
            step = *count;
            self.host_functions += usize::from(matches!(task.work, Work::Host(_)));
        }
        let detail = Detail {
            number,
            index: step,
            actor,
            is_needed: false,
            predecessors: Frontier::new(),
            snapshot: None,
        };
        match self.commands.get_mut(index as usize) {
            Some(old) => *old = detail,
            None => self.commands.push(detail),
        }
    }
}

impl Slot {
    fn is_host_function(&self) -> bool {
        matches!(&self.body, Some(Body::Task(task)) if matches!(task.work, Work::Host(_)))
    }

    /// Returns whether a ready command does not conflict with the held bytes. Resolves its accesses.
    fn is_admissible<'a>(
        &mut self,
        memory: &Memory,
        lost: &[Option<Refusal>],
        mut held: impl Iterator<Item = &'a Held>,
    ) -> bool {
        let Some(Body::Task(task)) = &self.body else { unreachable!("only tasks are ready") };
        if lost[task.device as usize].is_some() {
            return true;
        }
        if self.resolved.as_ref().is_none_or(|(epoch, _)| *epoch != memory.epoch) {
            let resolved = task.resolve(memory);
            self.resolved = resolved.ok().map(|resolved| (memory.epoch, resolved));
        }
        match &self.resolved {
            Some((_, resolved)) => !held.any(|held| conflict(&held.pieces, &resolved.pieces)),
            None => true,
        }
    }
}

impl Job {
    /// Returns the command's slot, which identifies it while it runs.
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

fn conflict(left: &[Piece], right: &[Piece]) -> bool {
    left.iter().any(|piece| right.iter().any(|other| piece.conflicts(other)))
}
