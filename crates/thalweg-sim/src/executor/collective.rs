//! Collectives: parts, where they meet, and what becomes of those that cannot.
//!
//! A rank's part is a command of its stream. It *arrives* when its stream reaches it, and then it is neither complete nor
//! ready: it holds its stream up. When all parts of a *meeting* have arrived, one command runs in the place of the first, over
//! all ranks' memory, and all parts are complete when it is. So a collective is as synchronous as a GPU's may be: who relies
//! on a broadcast's root, or on a sender, that does not wait finds out here.
//!
//! # What goes wrong
//! - Parts that meet differ: found when the second of them arrives.
//! - Parts wait for each other: an arrived part waits for all that have not arrived, and a part that has not waits for what
//!   lies before it in its stream, and for earlier parts of its rank. Where these waits come round to where they began, nothing
//!   that the program does later can help. Looked for when nothing runs.
//! - A rank waits for a device that is lost, or for a rank that was given up.
//!
//! Each is the loss of the communicator's devices, with a text that names the calls. A rank whose part never comes keeps the
//! others waiting, since it may still come: [`Collectives::describe`] says so on request.
//!
//! # Invariants
//! - A part is in exactly one meeting, at one seat, from its submission to its completion.
//! - A meeting is attended exactly while a part of it has arrived and it does not run.
//! - Parts own nothing of the program: they may be dropped in the critical section.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_driver::{
    Access, Code, Collective, CollectiveOperation, CommunicatorHandle, CommunicatorInfo, ElementFormat,
    GraphNodeKind,
};

use super::task::{Task, Work};
use crate::executor::{CommandId, Frontier};
use crate::machine::Locked;
use crate::memory::{Memory, Resolved, Toucher};
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

/// Devices of a communicator, by rank.
pub(crate) type Devices = SmallVec<[u32; 8]>;

/// A rank's part, as the work of a task.
pub(crate) struct Part {
    communicator: u64,
    rank: u32,
    group: u64,
    operation: CollectiveOperation,
    format: ElementFormat,
    count: u64,
}

/// All parts of a meeting, as the work of one task: two accesses each, what it reads and what it writes.
pub(crate) struct Joint {
    pub(crate) operation: CollectiveOperation,
    pub(crate) format: ElementFormat,
    devices: Devices,
}

/// A communicator.
struct Communicator {
    ranks: Vec<Rank>,
    /// How many sends and receives there were from one rank to another.
    pairs: FxHashMap<(u32, u32), [u64; 2]>,
}

struct Rank {
    device: u32,
    /// How many collectives it was given.
    calls: u64,
    /// The group that it was given last, and in which submission.
    group: (u64, u64),
    /// The parts of the group before that, which come before those of this one.
    before: Frontier,
    members: Frontier,
    is_gone: bool,
}

/// Which parts meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// The collective of this number, of every rank.
    All(u64),
    /// The send and the receive of this number.
    Pair { from: u32, to: u32, number: u64 },
}

struct Meeting {
    communicator: u64,
    key: Key,
    seats: SmallVec<[Option<Seated>; 4]>,
    is_running: bool,
}

#[derive(Clone)]
struct Seated {
    command: CommandId,
    task: Arc<Task>,
    has_arrived: bool,
}

/// All communicators, and the meetings that are not over.
#[derive(Default)]
pub(crate) struct Collectives {
    communicators: BTreeMap<u64, Communicator>,
    meetings: BTreeMap<u64, Meeting>,
    by_key: FxHashMap<(u64, Key), u64>,
    /// Meeting and seat of a command, by its slot.
    by_slot: FxHashMap<u32, (u64, usize)>,
    attended: Vec<u64>,
    communicators_made: u64,
    meetings_made: u64,
    submissions: u64,
    /// Whether parts came or arrived since circles were last looked for.
    has_changed: bool,
}

/// The state of a meeting.
pub(crate) enum Verdict {
    /// All have arrived: the task runs as the first of these commands, by slot, and all are complete when it is.
    Meets { slots: SmallVec<[u32; 8]>, task: Arc<Task> },
    /// It cannot be: the devices are lost, and these commands are over.
    Fails(Failure),
}

/// Devices that are lost, why, and the commands that wait no longer.
pub(crate) struct Failure {
    pub(crate) devices: Devices,
    pub(crate) refusal: Refusal,
    pub(crate) released: SmallVec<[u32; 8]>,
}

/// How commands hang together.
pub(crate) struct Web<'a> {
    /// The commands that wait for the command in a slot.
    pub(crate) successors: &'a dyn Fn(u32) -> &'a [u32],
    /// Whether a command is complete.
    pub(crate) is_done: &'a dyn Fn(CommandId) -> bool,
}

impl Joint {
    /// Returns where each rank's accesses are, with the rights of its device.
    pub(crate) fn resolve(&self, memory: &Memory, accesses: &[Access]) -> Result<Resolved, String> {
        let mut all = Resolved::default();
        for (&device, accesses) in self.devices.iter().zip(accesses.chunks_exact(2)) {
            let resolved = memory.resolve(device, accesses, Toucher::Kernel)?;
            let before = all.pointers.len() as u32;
            all.pointers.extend(resolved.pointers);
            all.pieces.extend(resolved.pieces.into_iter().map(|mut piece| {
                piece.access += before;
                piece
            }));
        }
        Ok(all)
    }
}

impl Part {
    fn names_of_call(&self) -> String {
        let Self { operation, format, count, .. } = self;
        format!("{operation}, {count} elements of {}", format_name(*format))
    }

    /// Returns whether it can meet another.
    fn agrees(&self, other: &Self) -> bool {
        let is_pair = self.operation.is_between_two();
        (is_pair || self.operation == other.operation)
            && (self.format, self.count) == (other.format, other.count)
    }
}

fn format_name(format: ElementFormat) -> String {
    let name = match format {
        ElementFormat::R_32F => "CUDA_R_32F",
        ElementFormat::R_64F => "CUDA_R_64F",
        ElementFormat::R_16F => "CUDA_R_16F",
        ElementFormat::R_16BF => "CUDA_R_16BF",
        ElementFormat::R_8I => "CUDA_R_8I",
        ElementFormat::R_8U => "CUDA_R_8U",
        ElementFormat::R_32I => "CUDA_R_32I",
        ElementFormat::R_32U => "CUDA_R_32U",
        ElementFormat::R_64I => "CUDA_R_64I",
        ElementFormat::R_64U => "CUDA_R_64U",
        ElementFormat(number) => return format!("the unknown format {number}"),
    };
    name.to_owned()
}

impl Communicator {
    /// Returns which meeting the rank's next part of this kind belongs to, and its seat there.
    fn next(&mut self, part: &Part) -> (Key, usize) {
        let (pair, seat) = match part.operation {
            CollectiveOperation::Send { peer } => ((part.rank, peer), 0),
            CollectiveOperation::Receive { peer } => ((peer, part.rank), 1),
            _ => {
                let calls = &mut self.ranks[part.rank as usize].calls;
                *calls += 1;
                return (Key::All(*calls), part.rank as usize);
            }
        };
        let number = &mut self.pairs.entry(pair).or_default()[seat];
        *number += 1;
        (Key::Pair { from: pair.0, to: pair.1, number: *number }, seat)
    }

    fn devices(&self) -> Devices {
        self.ranks.iter().map(|rank| rank.device).collect()
    }
}

impl Meeting {
    /// Returns the rank that sits there.
    fn rank(&self, seat: usize) -> u32 {
        match self.key {
            Key::All(_) => seat as u32,
            Key::Pair { from, to, .. } => [from, to][seat],
        }
    }

    fn arrived(&self) -> impl Iterator<Item = (usize, &Seated)> {
        let seats = self.seats.iter().enumerate();
        seats.filter_map(|(seat, seated)| Some((seat, seated.as_ref().filter(|seated| seated.has_arrived)?)))
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let is_there = |seated: &Option<Seated>| seated.as_ref().is_some_and(|seated| seated.has_arrived);
        self.seats.iter().enumerate().filter(move |(_, seated)| !is_there(seated)).map(|(seat, _)| seat)
    }
}

fn part_of(task: &Task) -> &Part {
    match &task.work {
        Work::Part(part) => part,
        _ => unreachable!("only parts are seated"),
    }
}

impl Collectives {
    fn create(&mut self, devices: &[u32]) -> u64 {
        self.communicators_made += 1;
        let rank = |&device: &u32| Rank {
            device,
            calls: 0,
            group: (0, 0),
            before: Frontier::new(),
            members: Frontier::new(),
            is_gone: false,
        };
        let communicator =
            Communicator { ranks: devices.iter().map(rank).collect(), pairs: FxHashMap::default() };
        self.communicators.insert(self.communicators_made, communicator);
        self.communicators_made
    }

    /// Parts are about to be queued; the number of the submission.
    pub(crate) fn begin(&mut self) -> u64 {
        self.submissions += 1;
        self.submissions
    }

    /// Returns whether there are communicators, or were.
    pub(crate) fn are_used(&self) -> bool {
        self.communicators_made > 0
    }

    /// Returns whether the rank of a part is still there.
    pub(crate) fn is_usable(&self, part: &Part) -> bool {
        let found = self.communicators.get(&part.communicator);
        found.is_some_and(|communicator| !communicator.ranks[part.rank as usize].is_gone)
    }

    /// Takes a command in, if it is a part: what it comes after besides.
    pub(crate) fn enlist(&mut self, command: CommandId, task: &Arc<Task>) -> Frontier {
        let Work::Part(part) = &task.work else { return Frontier::new() };
        let found = self.communicators.get_mut(&part.communicator);
        let communicator = found.expect("looked at when it was submitted, under the same lock");
        let (key, seat) = communicator.next(part);
        let count = if part.operation.is_between_two() { 2 } else { communicator.ranks.len() };
        let rank = &mut communicator.ranks[part.rank as usize];
        let group = (part.group, self.submissions);
        if rank.group != group {
            rank.group = group;
            rank.before = std::mem::take(&mut rank.members);
        }
        rank.members.push(command);
        let before = rank.before.clone();
        let made = &mut self.meetings_made;
        let id = *self.by_key.entry((part.communicator, key)).or_insert_with(|| {
            *made += 1;
            *made
        });
        let meeting = self.meetings.entry(id).or_insert_with(|| Meeting {
            communicator: part.communicator,
            key,
            seats: std::iter::repeat_with(|| None).take(count).collect(),
            is_running: false,
        });
        meeting.seats[seat] = Some(Seated { command, task: Arc::clone(task), has_arrived: false });
        self.by_slot.insert(command.slot(), (id, seat));
        self.has_changed = true;
        before
    }

    /// Notes that the stream of a part has reached it.
    pub(crate) fn arrived(&mut self, slot: u32) {
        let (id, seat) = self.by_slot[&slot];
        let meeting = self.meetings.get_mut(&id).expect("a seated part is in a meeting");
        meeting.seats[seat].as_mut().expect("the part has this seat").has_arrived = true;
        if !self.attended.contains(&id) {
            self.attended.push(id);
        }
        self.has_changed = true;
    }

    /// Returns what has become of a meeting, of which something has; one at a time.
    pub(crate) fn verdict(&mut self, lost: &[Option<Refusal>]) -> Option<Verdict> {
        for position in 0..self.attended.len() {
            let id = self.attended[position];
            let meeting = &self.meetings[&id];
            let is_lost = |seated: &Seated| lost[seated.task.device as usize].clone();
            let losses = meeting.arrived().map(|(_, seated)| is_lost(seated));
            if let Some(loss) = losses.reduce(|one, other| one.and(other)).flatten() {
                // No thread waits who could: those who come later will be told.
                let failure = Failure { devices: Devices::new(), ..self.fail(id, loss) };
                return Some(Verdict::Fails(failure));
            }
            if let Some(refusal) = self.objection(meeting, lost) {
                return Some(Verdict::Fails(self.fail(id, refusal)));
            }
            if meeting.missing().next().is_none() {
                self.attended.swap_remove(position);
                return Some(self.meet(id));
            }
        }
        None
    }

    /// Returns why a meeting cannot be, as far as it has come.
    fn objection(&self, meeting: &Meeting, lost: &[Option<Refusal>]) -> Option<Refusal> {
        let communicator = &self.communicators[&meeting.communicator];
        let is_alive = |seated: &Seated| lost[seated.task.device as usize].is_none();
        let (seat, first) = meeting.arrived().find(|(_, seated)| is_alive(seated))?;
        let part = part_of(&first.task);
        for other in 0..meeting.seats.len() {
            let rank = &communicator.ranks[meeting.rank(other) as usize];
            let who = meeting.rank(other);
            let why = match (&lost[rank.device as usize], &meeting.seats[other]) {
                (Some(cause), _) => format!("whose device {} is lost: {}", rank.device, cause.detail),
                (None, None) if rank.is_gone => "which has been given up".to_owned(),
                _ => continue,
            };
            let detail =
                format!("rank {} waits in {} for rank {who}, {why}", meeting.rank(seat), first.task.label);
            return Some(Refusal::new(Code::LaunchTimeout, detail));
        }
        let (other, second) = meeting.arrived().find(|(_, other)| !part.agrees(part_of(&other.task)))?;
        let call = |seat: usize, seated: &Seated| {
            let rank = meeting.rank(seat);
            format!("rank {rank} calls {} ({})", seated.task.label, part_of(&seated.task).names_of_call())
        };
        let detail = format!(
            "calls of a collective differ: {}, {}. All ranks of a communicator make the same calls in the same order",
            call(seat, first),
            call(other, second)
        );
        Some(Refusal::new(Code::LaunchFailed, detail))
    }

    /// Gives up a meeting that cannot be. Those of its parts that have arrived leave.
    fn fail(&mut self, id: u64, refusal: Refusal) -> Failure {
        self.attended.retain(|&other| other != id);
        let meeting = self.meetings.get_mut(&id).expect("an attended meeting");
        let communicator = meeting.communicator;
        let mut released = SmallVec::new();
        for seat in &mut meeting.seats {
            if let Some(seated) = seat.take_if(|seated| seated.has_arrived) {
                self.by_slot.remove(&seated.command.slot());
                released.push(seated.command.slot());
            }
        }
        if meeting.seats.iter().all(Option::is_none) {
            self.forget(id);
        }
        Failure { devices: self.communicators[&communicator].devices(), refusal, released }
    }

    fn forget(&mut self, id: u64) {
        if let Some(meeting) = self.meetings.remove(&id) {
            self.by_key.remove(&(meeting.communicator, meeting.key));
            let is_over = self.communicators[&meeting.communicator].ranks.iter().all(|rank| rank.is_gone)
                && !self.meetings.values().any(|other| other.communicator == meeting.communicator);
            if is_over {
                self.communicators.remove(&meeting.communicator);
            }
        }
    }

    fn meet(&mut self, id: u64) -> Verdict {
        let meeting = self.meetings.get_mut(&id).expect("an attended meeting");
        meeting.is_running = true;
        let tasks = || meeting.seats.iter().flatten().map(|seated| &seated.task);
        let first = tasks().next().expect("everybody has arrived");
        let part = part_of(first);
        let devices = tasks().map(|task| task.device).collect();
        let task = Task {
            device: first.device,
            label: first.label,
            accesses: tasks().flat_map(|task| task.accesses.iter().copied()).collect(),
            work: Work::Joint(Joint { operation: part.operation, format: part.format, devices }),
        };
        let slots = meeting.seats.iter().flatten().map(|seated| seated.command.slot()).collect();
        Verdict::Meets { slots, task: Arc::new(task) }
    }

    /// Returns the command in a slot has run: if it was a meeting's, its devices, and the other commands that are over with
    /// it.
    pub(crate) fn end(&mut self, slot: u32) -> Option<(Devices, SmallVec<[u32; 8]>)> {
        let &(id, _) = self.by_slot.get(&slot)?;
        let meeting = &self.meetings[&id];
        debug_assert!(meeting.is_running, "a part does not run by itself");
        let devices = self.communicators[&meeting.communicator].devices();
        let slots: SmallVec<[u32; 8]> =
            meeting.seats.iter().flatten().map(|seated| seated.command.slot()).collect();
        for slot in &slots {
            self.by_slot.remove(slot);
        }
        self.forget(id);
        Some((devices, slots.into_iter().filter(|&other| other != slot).collect()))
    }

    /// Returns the other parts of the meeting that the command in a slot belongs to.
    pub(crate) fn partners(&self, slot: u32) -> SmallVec<[CommandId; 8]> {
        let Some(&(id, _)) = self.by_slot.get(&slot) else { return SmallVec::new() };
        let seated = self.meetings[&id].seats.iter().flatten();
        seated.map(|seated| seated.command).filter(|command| command.slot() != slot).collect()
    }
}

// ---- Who waits for whom -----------------------------------------------------------------------------------------------

/// A part that has arrived: its meeting and its seat.
#[derive(Clone, Copy)]
struct Waiter {
    meeting: u64,
    seat: usize,
}

/// A seat that a waiter waits for, and the waiter that holds it up, if one does.
#[derive(Clone, Copy)]
struct Wait {
    seat: usize,
    blocker: Option<usize>,
}

impl Collectives {
    /// Looks for parts that wait for each other, if there may be some that were not looked for yet.
    pub(crate) fn find_circle(&mut self, web: &Web<'_>) -> Option<Failure> {
        let (waiters, waits) = self.waits(web);
        let circle = circle(&waits)?;
        let meeting = |step: usize| &self.meetings[&waiters[circle[step].0].meeting];
        let is_one = (1..circle.len()).all(|step| meeting(step).communicator == meeting(0).communicator);
        let first = waiters[circle[0].0];
        let mut detail = format!("deadlock of collectives: {}", self.name(meeting(0), first.seat, !is_one));
        for (step, &(waiter, seat)) in circle.iter().enumerate() {
            let (here, next) = (meeting(step), (step + 1) % circle.len());
            let (there, blocker) = (meeting(next), waiters[circle[next].0]);
            let call = &here.seats[waiters[waiter].seat].as_ref().expect("it has arrived").task;
            let _ = write!(detail, " waits in {} for rank {}", call.label, here.rank(seat));
            let other = self.name(there, blocker.seat, !is_one);
            let is_its_own = self.device(here, seat) == self.device(there, blocker.seat);
            match (is_its_own, next) {
                (true, 0) => {}
                (true, _) if is_one => detail += ", which",
                (true, _) => detail += &format!(", which as {other}"),
                (false, 0) => detail += &format!(", whose call comes after that of {other}"),
                (false, _) => detail += &format!(", whose call comes after that of {other}, which"),
            }
        }
        detail += ". All ranks make the calls of all communicators in the same order, or those that may be in any in one group";
        let refusal = Refusal::new(Code::LaunchTimeout, detail);
        let mut failure = self.fail(waiters[circle[0].0].meeting, refusal);
        let others: Vec<u64> = circle[1..].iter().map(|&(waiter, _)| waiters[waiter].meeting).collect();
        for id in others {
            if self.attended.contains(&id) {
                let more = self.fail(id, failure.refusal.clone());
                failure.devices.extend(more.devices);
                failure.released.extend(more.released);
            }
        }
        Some(failure)
    }

    /// Returns whether there may be a circle that has not been looked for.
    pub(crate) fn may_wait_in_circle(&mut self) -> bool {
        !self.attended.is_empty() && std::mem::take(&mut self.has_changed)
    }

    /// Describes which thread waits for which, in words; empty if none waits.
    pub(crate) fn describe(&self, web: &Web<'_>) -> String {
        let (waiters, waits) = self.waits(web);
        let mut text = String::new();
        for (waiter, waits) in waiters.iter().zip(&waits) {
            let meeting = &self.meetings[&waiter.meeting];
            let Some(seated) = &meeting.seats[waiter.seat] else { continue };
            let is_first = meeting.arrived().next().is_some_and(|(seat, _)| seat == waiter.seat);
            let Some(wait) = waits.first().filter(|_| is_first) else { continue };
            let names = self.communicators.len() > 1;
            let (name, awaited) =
                (self.name(meeting, waiter.seat, names), self.name(meeting, wait.seat, names));
            let _ = write!(text, "{name} waits in {} for {awaited}", seated.task.label);
            match (wait.blocker, &meeting.seats[wait.seat]) {
                (Some(blocker), _) => {
                    let blocker = waiters[blocker];
                    if let Some(other) = &self.meetings[&blocker.meeting].seats[blocker.seat] {
                        let _ = write!(text, ", which waits in {}", other.task.label);
                    }
                }
                (None, Some(there)) => {
                    let _ = write!(text, ", whose {} comes after work that has not run", there.task.label);
                }
                (None, None) => text += ", which has not made this call",
            }
            text += ". ";
        }
        text
    }

    fn name(&self, meeting: &Meeting, seat: usize, with_communicator: bool) -> String {
        let rank = meeting.rank(seat);
        if with_communicator {
            format!("rank {rank} of communicator {}", meeting.communicator)
        } else {
            format!("rank {rank}")
        }
    }

    /// Returns the device of a seat.
    fn device(&self, meeting: &Meeting, seat: usize) -> u32 {
        self.communicators[&meeting.communicator].ranks[meeting.rank(seat) as usize].device
    }

    /// Returns all parts that have arrived, and what each waits for.
    fn waits(&self, web: &Web<'_>) -> (Vec<Waiter>, Vec<SmallVec<[Wait; 4]>>) {
        let waiters: Vec<Waiter> = self
            .attended
            .iter()
            .flat_map(|&meeting| {
                self.meetings[&meeting].arrived().map(move |(seat, _)| Waiter { meeting, seat })
            })
            .collect();
        let held_up: Vec<FxHashSet<u32>> = waiters
            .iter()
            .map(|waiter| {
                let seated = self.meetings[&waiter.meeting].seats[waiter.seat].as_ref();
                reached(seated.expect("it has arrived").command.slot(), web)
            })
            .collect();
        let waits = |waiter: &Waiter| {
            let meeting = &self.meetings[&waiter.meeting];
            let wait = |seat: usize| {
                let before = self.before(meeting, seat, web);
                let holds = |slots: &FxHashSet<u32>| before.iter().any(|slot| slots.contains(slot));
                // Of those that hold it up, the rank's own device first.
                let is_of_another_device = |number: &usize| {
                    let blocker = waiters[*number];
                    self.device(&self.meetings[&blocker.meeting], blocker.seat) != self.device(meeting, seat)
                };
                let blockers = (0..waiters.len()).filter(|&number| holds(&held_up[number]));
                Wait { seat, blocker: blockers.min_by_key(is_of_another_device) }
            };
            meeting.missing().map(wait).collect()
        };
        let all = waiters.iter().map(waits).collect();
        (waiters, all)
    }

    /// Returns the commands that a seat's part is or comes after, by slot: the part itself, or the last parts of a rank that
    /// has not made the call yet.
    fn before(&self, meeting: &Meeting, seat: usize, web: &Web<'_>) -> SmallVec<[u32; 4]> {
        if let Some(seated) = &meeting.seats[seat] {
            return SmallVec::from_slice(&[seated.command.slot()]);
        }
        let rank = &self.communicators[&meeting.communicator].ranks[meeting.rank(seat) as usize];
        rank.members.iter().filter(|&&member| !(web.is_done)(member)).map(|member| member.slot()).collect()
    }
}

/// Returns the command in a slot and all that waits for it.
fn reached(slot: u32, web: &Web<'_>) -> FxHashSet<u32> {
    let (mut found, mut open) = (FxHashSet::default(), vec![slot]);
    while let Some(slot) = open.pop() {
        if found.insert(slot) {
            open.extend_from_slice((web.successors)(slot));
        }
    }
    found
}

/// Waiters of which each waits for the next, and the last for the first; with the seat that each waits for.
fn circle(waits: &[SmallVec<[Wait; 4]>]) -> Option<Vec<(usize, usize)>> {
    let mut is_known = vec![false; waits.len()];
    for start in 0..waits.len() {
        // The way from the start: waiters, and how many of their waits have been followed.
        let mut way: Vec<(usize, usize)> = Vec::new();
        let mut next = Some(start).filter(|&start| !is_known[start]);
        loop {
            if let Some(waiter) = next.take() {
                is_known[waiter] = true;
                way.push((waiter, 0));
            }
            let Some((waiter, followed)) = way.last_mut() else { break };
            let Some(wait) = waits[*waiter].get(*followed) else {
                way.pop();
                continue;
            };
            *followed += 1;
            let Some(blocker) = wait.blocker else { continue };
            if let Some(begin) = way.iter().position(|&(other, _)| other == blocker) {
                let steps = way[begin..].iter();
                return Some(
                    steps.map(|&(waiter, followed)| (waiter, waits[waiter][followed - 1].seat)).collect(),
                );
            }
            next = Some(blocker).filter(|&blocker| !is_known[blocker]);
        }
    }
    None
}

// ---- The calls --------------------------------------------------------------------------------------------------------

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
        let communicator = self.executor.collectives.create(devices);
        let ranks = 0..devices.len() as u32;
        let handles = ranks.map(|rank| self.communicators.insert((communicator, rank)));
        Ok(handles.map(CommunicatorHandle::from_raw).collect())
    }

    fn communicator(&self, handle: CommunicatorHandle) -> CallResult<(u64, u32)> {
        let found = self.communicators.get(handle.raw()).copied();
        found.ok_or_else(|| unknown("communicator", handle.raw()))
    }

    pub(crate) fn communicator_info(&self, handle: CommunicatorHandle) -> CallResult<CommunicatorInfo> {
        let (communicator, rank) = self.communicator(handle)?;
        let ranks = &self.executor.collectives.communicators[&communicator].ranks;
        Ok(CommunicatorInfo { rank, ranks: ranks.len() as u32, device: ranks[rank as usize].device })
    }

    /// Queues a group. Everything is checked before anything is queued.
    pub(crate) fn collectives(&mut self, group: &[Collective]) -> CallResult<()> {
        let number = self.executor.collectives.begin();
        let parts =
            group.iter().map(|call| self.part(call, number)).collect::<CallResult<Vec<(u64, Task)>>>()?;
        // All parts of a stream come after what is on it now, and the stream goes on after all of them.
        let mut streams: Vec<(u64, Place, Place)> = Vec::new();
        for (own, task) in parts {
            let position = streams.iter().position(|(stream, ..)| *stream == own).unwrap_or_else(|| {
                let before = self.place(own);
                let after = Place { frontier: Frontier::new(), nodes: SmallVec::new() };
                streams.push((own, before, after));
                streams.len() - 1
            });
            self.set_place(own, streams[position].1.clone());
            self.submit(own, task, GraphNodeKind::Library)?;
            let reached = self.place(own);
            let after = &mut streams[position].2;
            after.frontier.extend(reached.frontier);
            after.nodes.extend(reached.nodes);
        }
        for (own, _, after) in streams {
            self.set_place(own, after);
        }
        Ok(())
    }

    /// Returns a call as a task, on the stream with this handle.
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
        let work = Work::Part(Part { communicator, rank, group, operation, format, count });
        Ok((own, Task { device, label, accesses: SmallVec::from_slice(&accesses), work }))
    }

    /// Returns what the next command of a stream comes after.
    fn place(&self, own: u64) -> Place {
        let stream = self.stream(own);
        let nodes = stream.capture.as_ref().map(|branch| branch.nodes.clone()).unwrap_or_default();
        Place { frontier: stream.frontier.clone(), nodes }
    }

    fn set_place(&mut self, own: u64, place: Place) {
        let stream = self.stream_mut(own);
        stream.frontier = place.frontier;
        if let Some(branch) = &mut stream.capture {
            branch.nodes = place.nodes;
        }
    }
}

/// A place in a stream: after these commands, or after these nodes of its capture.
#[derive(Clone)]
struct Place {
    frontier: Frontier,
    nodes: SmallVec<[u32; 2]>,
}

/// Gives a rank up, once its collectives are done.
pub(crate) fn communicator_destroy(mut locked: Locked<'_>, handle: CommunicatorHandle) -> CallResult<()> {
    let (communicator, rank) = locked.communicator(handle)?;
    locked.forbid_in_capture("communicator_destroy")?;
    let collectives = &locked.executor.collectives;
    let work = collectives.communicators[&communicator].ranks[rank as usize].members.clone();
    locked = locked.wait_for(&work)?;
    // Another thread may have been faster.
    locked.communicator(handle)?;
    locked.communicators.remove(handle.raw());
    let collectives = &mut locked.executor.collectives;
    let found = collectives.communicators.get_mut(&communicator).expect("a rank of it was there");
    found.ranks[rank as usize].is_gone = true;
    let is_over = found.ranks.iter().all(|rank| rank.is_gone)
        && !collectives.meetings.values().any(|meeting| meeting.communicator == communicator);
    if is_over {
        collectives.communicators.remove(&communicator);
    }
    locked.executor.review_collectives();
    Ok(())
}
