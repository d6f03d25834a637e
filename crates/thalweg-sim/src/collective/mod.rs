//! Collectives: parts, the exchanges in which they run, and the end of those that cannot run.
//!
//! A rank's part is a command of its stream. It *arrives* when its stream reaches it. Then it is neither complete nor
//! ready, and its stream waits. When all parts of a *exchange* have arrived, one command runs in the place of the first,
//! over all ranks' memory, and all parts are complete when it is. So a collective is as synchronous as one on a GPU may be,
//! which exposes programs that rely on a broadcast's root, or on a sender, not waiting.
//!
//! To the executor a part is [gated](Work::Gated), and [`Collectives`] are its [`Gate`].
//!
//! # How it is built
//! `joint` is the command that runs for all, with `reduction` as its arithmetic. `waits` finds which rank waits for which.
//! `links` may delay data, or stall. `calls` are the driver's calls, with `splits` and `registered`, the memory that is
//! registered with a rank.
//!
//! With [`state`](crate::state), `splits` and `registered` this module is a circle: the state contains the collectives, and
//! those two are methods of the state. `links` and `waits` are spokes: they add methods to [`Collectives`] and [`Exchange`],
//! which are defined here.
//!
//! # Failures
//! - Parts of an exchange differ: found when the second of them arrives.
//! - Parts wait for each other: an arrived part waits for all that have not arrived, and a part that has not arrived waits
//!   for the work before it in its stream, and for earlier parts of its rank. If these waits form a circle, nothing that
//!   the program does later can help. The simulator searches for circles when nothing runs.
//! - A rank waits for a device that is lost, or for a rank that was destroyed or aborted.
//!
//! Each is the loss of the communicator's devices, with a text that names the calls. If a rank's part is never submitted,
//! the others keep waiting, because it may still come: [`Gate::describe`] reports this on request.
//!
//! # Invariants
//! - A part is in exactly one exchange, at one position, from its submission to its completion.
//! - An exchange is attended exactly while a part of it has arrived and it does not run.
//! - Parts own no values of the program: they may be dropped in the critical section.

pub(crate) mod calls;
mod joint;
pub(crate) mod links;
mod reduction;
pub(crate) mod registered;
mod splits;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{Code, CollectiveOperation, CommunicatorId, ElementFormat, Label};

use self::joint::Joint;
use self::links::Links;
use self::registered::Windows;
use self::splits::Splits;
use crate::executor::command::{CommandId, Frontier};
use crate::executor::plug::{Devices, Failure, Gate, Verdict, Web};
use crate::executor::task::{Task, Work};
use crate::refusal::Refusal;

/// A rank's part, as the work of a task.
pub(crate) struct Part {
    communicator: u64,
    rank: u32,
    group: u64,
    operation: CollectiveOperation,
    format: ElementFormat,
    count: u64,
}

/// A communicator.
struct Communicator {
    ranks: Vec<Rank>,
    /// The numbers of sends and receives from one rank to another.
    pairs: FxHashMap<(u32, u32), [u64; 2]>,
}

struct Rank {
    /// The device; `None` until the rank joins.
    device: Option<u32>,
    /// The number of collectives that were submitted to the rank.
    calls: u64,
    /// The number of splits that the rank has called.
    splits: u64,
    /// The number of calls by which the rank registered symmetric memory.
    windows: u64,
    /// The number of the rank's latest group, and of the submission that contained it.
    group: (u64, u64),
    /// The parts of the previous group, which precede the parts of the latest group.
    before: Frontier,
    members: Frontier,
    /// The latest call.
    last: Option<Label>,
    is_gone: bool,
    /// Whether the rank was destroyed without waiting for its parts.
    is_aborted: bool,
}

/// The key that the parts of an exchange share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// The collective with this number, of every rank.
    All(u64),
    /// The send and the receive with this number.
    Pair { from: u32, to: u32, number: u64 },
}

struct Exchange {
    communicator: u64,
    key: Key,
    parts: SmallVec<[Option<RankPart>; 4]>,
    is_running: bool,
    /// Whether all parts have arrived.
    has_departed: bool,
    /// The moment at which the meeting's data arrives, if the data takes time.
    opens: Option<Instant>,
}

#[derive(Clone)]
struct RankPart {
    command: CommandId,
    task: Arc<Task>,
    has_arrived: bool,
}

/// All communicators, and the exchanges that are not over.
#[derive(Default)]
pub(crate) struct Collectives {
    communicators: BTreeMap<u64, Communicator>,
    /// Communicators whose ranks join one by one.
    by_id: FxHashMap<CommunicatorId, u64>,
    ids_made: u64,
    splits: Splits,
    windows: Windows,
    exchanges: BTreeMap<u64, Exchange>,
    by_key: FxHashMap<(u64, Key), u64>,
    /// The meeting that a command takes part in and the command's seat there, by the command's slot.
    by_slot: FxHashMap<u32, (u64, usize)>,
    attended: Vec<u64>,
    communicators_made: u64,
    meetings_made: u64,
    submissions: u64,
    /// Whether parts were queued or arrived since the last search for circles.
    has_changed: bool,
    links: Links,
    /// Whether links take no time, because the machine is controlled.
    pub(crate) is_untimed: bool,
}

impl Part {
    fn names_of_call(&self) -> String {
        let Self { operation, format, count, .. } = self;
        format!("{operation}, {count} elements of {}", format_name(*format))
    }

    /// Returns whether the part can run together with another.
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

impl Rank {
    /// Describes the latest call of a rank that makes no more.
    fn last_words(&self) -> String {
        self.last.map_or_else(|| " before its first call".to_owned(), |last| format!(" after {last}"))
    }
}

impl Communicator {
    /// Returns the key of the meeting for the rank's next part, by the part's kind, and the part's seat there.
    fn next(&mut self, part: &Part) -> (Key, usize) {
        let (pair, position) = match part.operation {
            CollectiveOperation::Send { peer } => ((part.rank, peer), 0),
            CollectiveOperation::Receive { peer } => ((peer, part.rank), 1),
            _ => {
                let calls = &mut self.ranks[part.rank as usize].calls;
                *calls += 1;
                return (Key::All(*calls), part.rank as usize);
            }
        };
        let number = &mut self.pairs.entry(pair).or_default()[position];
        *number += 1;
        (Key::Pair { from: pair.0, to: pair.1, number: *number }, position)
    }

    fn devices(&self) -> Devices {
        self.ranks.iter().filter_map(|rank| rank.device).collect()
    }
}

impl Exchange {
    /// Returns the rank of a position.
    fn rank(&self, position: usize) -> u32 {
        match self.key {
            Key::All(_) => position as u32,
            Key::Pair { from, to, .. } => [from, to][position],
        }
    }

    fn arrived(&self) -> impl Iterator<Item = (usize, &RankPart)> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(position, part)| Some((position, part.as_ref().filter(|part| part.has_arrived)?)))
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let is_there = |part: &Option<RankPart>| part.as_ref().is_some_and(|part| part.has_arrived);
        self.parts.iter().enumerate().filter(move |(_, part)| !is_there(part)).map(|(position, _)| position)
    }
}

/// Returns the part of a task, if it is gated.
fn gated_part(task: &Task) -> Option<&Part> {
    match &task.work {
        Work::Gated(part) => Some(part.downcast_ref().expect("parts are all that is gated")),
        _ => None,
    }
}

fn part_of(task: &Task) -> &Part {
    gated_part(task).expect("only parts are seated")
}

impl Collectives {
    fn create(&mut self, devices: impl Iterator<Item = Option<u32>>) -> u64 {
        self.communicators_made += 1;
        let rank = |device: Option<u32>| Rank {
            device,
            calls: 0,
            splits: 0,
            windows: 0,
            group: (0, 0),
            before: Frontier::new(),
            members: Frontier::new(),
            last: None,
            is_gone: false,
            is_aborted: false,
        };
        let communicator = Communicator { ranks: devices.map(rank).collect(), pairs: FxHashMap::default() };
        self.communicators.insert(self.communicators_made, communicator);
        self.communicators_made
    }

    /// Starts a submission of parts, and returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.submissions += 1;
        self.submissions
    }

    /// Returns whether there are communicators, or have been.
    pub(crate) fn are_used(&self) -> bool {
        self.communicators_made > 0
    }

    /// Returns whether a task is not part of a collective, or its rank still exists.
    pub(crate) fn is_usable(&self, task: &Task) -> bool {
        let Some(part) = gated_part(task) else { return true };
        let found = self.communicators.get(&part.communicator);
        found.is_some_and(|communicator| !communicator.ranks[part.rank as usize].is_gone)
    }

    /// Describes the rank that a part was waiting for when this rank aborted the communicator: a rank that has not made the call,
    /// if there is one.
    fn abortion(&self, exchange: &Exchange, position: usize, first: &RankPart, aborted: u32) -> String {
        let ranks = &self.communicators[&exchange.communicator].ranks;
        let own = exchange.rank(position);
        let waits = format!("rank {own} waits in {}", first.task.label);
        let by = if aborted == own { "it".to_owned() } else { format!("rank {aborted}") };
        let mut absent =
            exchange.missing().map(|position| exchange.rank(position)).filter(|&rank| rank != own);
        match (self.stall(exchange), absent.next()) {
            (Some(stall), _) => format!("{waits}: {stall}, and {by} has aborted the communicator"),
            (None, Some(first)) if first == aborted || absent.any(|rank| rank == aborted) => {
                let last = ranks[aborted as usize].last_words();
                format!("{waits} for rank {aborted}, which has aborted the communicator{last}")
            }
            (None, Some(absent)) => {
                let last = ranks[absent as usize].last;
                let last = last
                    .map_or_else(|| "it has made none".to_owned(), |last| format!("its latest is {last}"));
                format!(
                    "{waits} for rank {absent}, which has not made this call ({last}), and {by} has aborted the communicator"
                )
            }
            (None, None) => format!("{waits}, and {by} has aborted the communicator"),
        }
    }

    /// Returns why an exchange cannot run, as far as is known yet.
    fn objection(&self, exchange: &Exchange, lost: &[Option<Refusal>]) -> Option<Refusal> {
        let communicator = &self.communicators[&exchange.communicator];
        let is_alive = |part: &RankPart| lost[part.task.device as usize].is_none();
        let (position, first) = exchange.arrived().find(|(_, part)| is_alive(part))?;
        let part = part_of(&first.task);
        for other in 0..exchange.parts.len() {
            let rank = &communicator.ranks[exchange.rank(other) as usize];
            let peer = exchange.rank(other);
            let loss = rank.device.and_then(|device| Some((device, lost[device as usize].as_ref()?)));
            let why = match (loss, &exchange.parts[other]) {
                _ if rank.is_aborted => {
                    let detail = self.abortion(exchange, position, first, peer);
                    return Some(Refusal::new(Code::LaunchTimeout, detail));
                }
                (Some((device, cause)), _) => format!("whose device {device} is lost: {}", cause.detail),
                (None, None) if rank.is_gone => format!("which has been given up{}", rank.last_words()),
                _ => continue,
            };
            let detail = format!(
                "rank {} waits in {} for rank {peer}, {why}",
                exchange.rank(position),
                first.task.label
            );
            return Some(Refusal::new(Code::LaunchTimeout, detail));
        }
        let (other, second) = exchange.arrived().find(|(_, other)| !part.agrees(part_of(&other.task)))?;
        let call = |position: usize, part: &RankPart| {
            let rank = exchange.rank(position);
            format!("rank {rank} calls {} ({})", part.task.label, part_of(&part.task).names_of_call())
        };
        let detail = format!(
            "calls of a collective differ: {}, {}. All ranks of a communicator make the same calls in the same order",
            call(position, first),
            call(other, second)
        );
        Some(Refusal::new(Code::LaunchFailed, detail))
    }

    /// Gives up an exchange that cannot run, and removes its arrived parts.
    fn fail(&mut self, id: u64, refusal: Refusal) -> Failure {
        self.attended.retain(|&other| other != id);
        let exchange = self.exchanges.get_mut(&id).expect("an attended exchange");
        // Before the exchange is removed: if it is the last one and all ranks are gone, the communicator is removed with it.
        let devices = self.communicators[&exchange.communicator].devices();
        let mut released = SmallVec::new();
        for place in &mut exchange.parts {
            if let Some(part) = place.take_if(|part| part.has_arrived) {
                self.by_slot.remove(&part.command.slot());
                released.push(part.command.slot());
            }
        }
        if exchange.parts.iter().all(Option::is_none) {
            self.forget(id);
        }
        Failure { devices, refusal, released }
    }

    fn forget(&mut self, id: u64) {
        if let Some(exchange) = self.exchanges.remove(&id) {
            self.by_key.remove(&(exchange.communicator, exchange.key));
            self.forget_communicator(exchange.communicator);
        }
    }

    /// Removes a communicator without ranks and exchanges.
    fn forget_communicator(&mut self, communicator: u64) {
        let is_over = self.communicators[&communicator].ranks.iter().all(|rank| rank.is_gone)
            && !self.exchanges.values().any(|exchange| exchange.communicator == communicator);
        if is_over {
            self.communicators.remove(&communicator);
        }
    }

    fn meet(&mut self, id: u64) -> Verdict {
        let exchange = self.exchanges.get_mut(&id).expect("an attended exchange");
        exchange.is_running = true;
        let tasks = || exchange.parts.iter().flatten().map(|part| &part.task);
        let first = tasks().next().expect("all ranks have arrived");
        let part = part_of(first);
        let devices = tasks().map(|task| task.device).collect();
        let task = Task {
            device: first.device,
            label: first.label,
            accesses: tasks().flat_map(|task| task.accesses.iter().copied()).collect(),
            work: Work::Joint(Box::new(Joint { operation: part.operation, format: part.format, devices })),
        };
        let slots = exchange.parts.iter().flatten().map(|part| part.command.slot()).collect();
        Verdict::Runs { slots, task: Arc::new(task) }
    }
}

impl Gate for Collectives {
    fn enlist(&mut self, command: CommandId, task: &Arc<Task>) -> Frontier {
        let part = part_of(task);
        let found = self.communicators.get_mut(&part.communicator);
        let communicator = found.expect("looked at when it was submitted, under the same lock");
        let (key, position) = communicator.next(part);
        let count = if part.operation.is_between_two() { 2 } else { communicator.ranks.len() };
        let rank = &mut communicator.ranks[part.rank as usize];
        let group = (part.group, self.submissions);
        if rank.group != group {
            rank.group = group;
            rank.before = std::mem::take(&mut rank.members);
        }
        rank.last = Some(task.label);
        rank.members.push(command);
        let before = rank.before.clone();
        let made = &mut self.meetings_made;
        let id = *self.by_key.entry((part.communicator, key)).or_insert_with(|| {
            *made += 1;
            *made
        });
        let exchange = self.exchanges.entry(id).or_insert_with(|| Exchange {
            communicator: part.communicator,
            key,
            parts: std::iter::repeat_with(|| None).take(count).collect(),
            is_running: false,
            has_departed: false,
            opens: None,
        });
        exchange.parts[position] = Some(RankPart { command, task: Arc::clone(task), has_arrived: false });
        self.by_slot.insert(command.slot(), (id, position));
        self.has_changed = true;
        before
    }

    fn arrived(&mut self, slot: u32) {
        let (id, position) = self.by_slot[&slot];
        let exchange = self.exchanges.get_mut(&id).expect("a part is in an exchange");
        exchange.parts[position].as_mut().expect("the part has this position").has_arrived = true;
        if !self.attended.contains(&id) {
            self.attended.push(id);
        }
        self.has_changed = true;
    }

    fn verdict(&mut self, lost: &[Option<Refusal>]) -> Option<Verdict> {
        for position in 0..self.attended.len() {
            let id = self.attended[position];
            let exchange = &self.exchanges[&id];
            let is_lost = |part: &RankPart| lost[part.task.device as usize].clone();
            let losses = exchange.arrived().map(|(_, part)| is_lost(part));
            if let Some(loss) = losses.reduce(|one, other| one.and(other)).flatten() {
                // No thread waits here that could continue: ranks that arrive later get the error then.
                let failure = Failure { devices: Devices::new(), ..self.fail(id, loss) };
                return Some(Verdict::Fails(failure));
            }
            if let Some(refusal) = self.objection(exchange, lost) {
                return Some(Verdict::Fails(self.fail(id, refusal)));
            }
            if exchange.missing().next().is_none() {
                self.depart(id, !self.is_untimed);
                if self.hold(&self.exchanges[&id]).is_some() {
                    continue;
                }
                self.attended.swap_remove(position);
                return Some(self.meet(id));
            }
        }
        None
    }

    fn end(&mut self, slot: u32) -> Option<(Devices, SmallVec<[u32; 8]>)> {
        let &(id, _) = self.by_slot.get(&slot)?;
        let exchange = &self.exchanges[&id];
        debug_assert!(exchange.is_running, "a part does not run by itself");
        let devices = self.communicators[&exchange.communicator].devices();
        let slots: SmallVec<[u32; 8]> =
            exchange.parts.iter().flatten().map(|part| part.command.slot()).collect();
        for slot in &slots {
            self.by_slot.remove(slot);
        }
        self.forget(id);
        Some((devices, slots.into_iter().filter(|&other| other != slot).collect()))
    }

    fn partners(&self, slot: u32) -> SmallVec<[CommandId; 8]> {
        let Some(&(id, _)) = self.by_slot.get(&slot) else { return SmallVec::new() };
        let parts = self.exchanges[&id].parts.iter().flatten();
        parts.map(|part| part.command).filter(|command| command.slot() != slot).collect()
    }

    fn may_wait_in_circle(&mut self) -> bool {
        !self.attended.is_empty() && std::mem::take(&mut self.has_changed)
    }

    fn find_circle(&mut self, web: &Web<'_>) -> Option<Failure> {
        self.give_up_circle(web)
    }

    fn describe(&self, web: &Web<'_>) -> String {
        self.describe_waits(web)
    }
}
