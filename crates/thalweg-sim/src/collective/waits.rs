//! Waits of ranks for each other, and circles of such waits.

use std::fmt::Write as _;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use thalweg_driver::Code;

use super::{Collectives, Exchange};
use crate::executor::plug::{Failure, Web};
use crate::refusal::Refusal;

/// A part that has arrived: its exchange and its position.
#[derive(Clone, Copy)]
struct Waiter {
    exchange: u64,
    position: usize,
}

/// A position that a waiter waits for, and the waiter that delays it, if there is one.
#[derive(Clone, Copy)]
struct Wait {
    position: usize,
    blocker: Option<usize>,
}

impl Collectives {
    /// Gives up parts that wait for each other in a circle, if there is a circle.
    pub(super) fn give_up_circle(&mut self, web: &Web<'_>) -> Option<Failure> {
        let (waiters, waits) = self.waits(web);
        let circle = circle(&waits)?;
        let exchange = |step: usize| &self.exchanges[&waiters[circle[step].0].exchange];
        let is_one = (1..circle.len()).all(|step| exchange(step).communicator == exchange(0).communicator);
        let first = waiters[circle[0].0];
        let mut detail =
            format!("deadlock of collectives: {}", self.name(exchange(0), first.position, !is_one));
        for (step, &(waiter, position)) in circle.iter().enumerate() {
            let (here, next) = (exchange(step), (step + 1) % circle.len());
            let (there, blocker) = (exchange(next), waiters[circle[next].0]);
            let call = &here.parts[waiters[waiter].position].as_ref().expect("it has arrived").task;
            let _ = write!(detail, " waits in {} for rank {}", call.label, here.rank(position));
            let other = self.name(there, blocker.position, !is_one);
            let is_its_own = self.device(here, position) == self.device(there, blocker.position);
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
        let mut failure = self.fail(waiters[circle[0].0].exchange, refusal);
        let others: Vec<u64> = circle[1..].iter().map(|&(waiter, _)| waiters[waiter].exchange).collect();
        for id in others {
            if self.attended.contains(&id) {
                let more = self.fail(id, failure.refusal.clone());
                failure.devices.extend(more.devices);
                failure.released.extend(more.released);
            }
        }
        Some(failure)
    }

    /// Describes in words which part waits for which other part; empty if no part waits.
    pub(super) fn describe_waits(&self, web: &Web<'_>) -> String {
        let (waiters, waits) = self.waits(web);
        let mut text = String::new();
        for (waiter, waits) in waiters.iter().zip(&waits) {
            let exchange = &self.exchanges[&waiter.exchange];
            let Some(part) = &exchange.parts[waiter.position] else { continue };
            let is_first = exchange.arrived().next().is_some_and(|(position, _)| position == waiter.position);
            if let Some(stall) = self.stall(exchange).filter(|_| is_first) {
                let _ = write!(text, "All ranks wait in {}: {stall}. ", part.task.label);
                continue;
            }
            let Some(wait) = waits.first().filter(|_| is_first) else { continue };
            let names = self.communicators.len() > 1;
            let (name, awaited) =
                (self.name(exchange, waiter.position, names), self.name(exchange, wait.position, names));
            let _ = write!(text, "{name} waits in {} for {awaited}", part.task.label);
            match (wait.blocker, &exchange.parts[wait.position]) {
                (Some(blocker), _) => {
                    let blocker = waiters[blocker];
                    if let Some(other) = &self.exchanges[&blocker.exchange].parts[blocker.position] {
                        let _ = write!(text, ", which waits in {}", other.task.label);
                    }
                }
                (None, Some(there)) => {
                    let _ = write!(text, ", whose {} comes after work that has not run", there.task.label);
                }
                (None, None) => {
                    let rank = &self.communicators[&exchange.communicator].ranks
                        [exchange.rank(wait.position) as usize];
                    text += ", which has not made this call";
                    if let Some(last) = rank.last {
                        let _ = write!(text, " (its latest is {last})");
                    }
                }
            }
            text += ". ";
        }
        text
    }

    fn name(&self, exchange: &Exchange, position: usize, with_communicator: bool) -> String {
        let rank = exchange.rank(position);
        if with_communicator {
            format!("rank {rank} of communicator {}", exchange.communicator)
        } else {
            format!("rank {rank}")
        }
    }

    /// Returns the device of a position; `None` if its rank has not joined.
    fn device(&self, exchange: &Exchange, position: usize) -> Option<u32> {
        self.communicators[&exchange.communicator].ranks[exchange.rank(position) as usize].device
    }

    /// Returns all parts that have arrived, and the waits of each.
    fn waits(&self, web: &Web<'_>) -> (Vec<Waiter>, Vec<SmallVec<[Wait; 4]>>) {
        let waiters: Vec<Waiter> = self
            .attended
            .iter()
            .flat_map(|&exchange| {
                self.exchanges[&exchange].arrived().map(move |(position, _)| Waiter { exchange, position })
            })
            .collect();
        let held_up: Vec<FxHashSet<u32>> = waiters
            .iter()
            .map(|waiter| {
                let part = self.exchanges[&waiter.exchange].parts[waiter.position].as_ref();
                reached(part.expect("it has arrived").command.slot(), web)
            })
            .collect();
        let waits = |waiter: &Waiter| {
            let exchange = &self.exchanges[&waiter.exchange];
            let wait = |position: usize| {
                let before = self.before(exchange, position, web);
                let holds = |slots: &FxHashSet<u32>| before.iter().any(|slot| slots.contains(slot));
                // Among the blockers, those of the same device are preferred.
                let is_of_another_device = |number: &usize| {
                    let blocker = waiters[*number];
                    self.device(&self.exchanges[&blocker.exchange], blocker.position)
                        != self.device(exchange, position)
                };
                let blockers = (0..waiters.len()).filter(|&number| holds(&held_up[number]));
                Wait { position, blocker: blockers.min_by_key(is_of_another_device) }
            };
            exchange.missing().map(wait).collect()
        };
        let all = waiters.iter().map(waits).collect();
        (waiters, all)
    }

    /// Returns the commands, by slot, that must be reached before a position's part arrives: the part itself, or the last parts
    /// of a rank that has not made the call yet.
    fn before(&self, exchange: &Exchange, position: usize, web: &Web<'_>) -> SmallVec<[u32; 4]> {
        if let Some(part) = &exchange.parts[position] {
            return SmallVec::from_slice(&[part.command.slot()]);
        }
        let rank = &self.communicators[&exchange.communicator].ranks[exchange.rank(position) as usize];
        rank.members.iter().filter(|&&member| !(web.is_done)(member)).map(|member| member.slot()).collect()
    }
}

/// Returns the command in a slot and all commands that wait for it.
fn reached(slot: u32, web: &Web<'_>) -> FxHashSet<u32> {
    let (mut found, mut open) = (FxHashSet::default(), vec![slot]);
    while let Some(slot) = open.pop() {
        if found.insert(slot) {
            open.extend_from_slice((web.successors)(slot));
        }
    }
    found
}

/// Finds a circle of waiters, each of which waits for the next one, and returns for each waiter the seat that it waits for.
fn circle(waits: &[SmallVec<[Wait; 4]>]) -> Option<Vec<(usize, usize)>> {
    let mut is_known = vec![false; waits.len()];
    for start in 0..waits.len() {
        // The path from the start: waiters, and how many of their waits have been followed.
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
                    steps.map(|&(waiter, followed)| (waiter, waits[waiter][followed - 1].position)).collect(),
                );
            }
            next = Some(blocker).filter(|&blocker| !is_known[blocker]);
        }
    }
    None
}
