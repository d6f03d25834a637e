//! The choices of a decision, and the end of a run that has none.

use std::fmt::Write as _;

use smallvec::SmallVec;
use thalweg_driver::Code;

use super::{Control, Host, Next, Phase, Wait};
use crate::executor::offers::Offer;
use crate::refusal::Refusal;
use crate::schedules::{Actor, Choice, Touched};
use crate::state::MachineState;

impl MachineState {
    pub(crate) fn control(&mut self) -> &mut Control {
        self.control.as_mut().expect("the machine is controlled")
    }

    /// Returns whether a wait is over.
    fn is_over(&self, wait: &Wait) -> bool {
        let control = self.control.as_ref().expect("the machine is controlled");
        match wait {
            Wait::Turn { .. } => true,
            Wait::Progress(seen) => *seen != control.progress,
            Wait::Commands(commands) => commands.iter().all(|command| self.executor.is_done(*command)),
            Wait::Bytes(claim) => self.executor.can_hold(*claim),
            Wait::Room(stream) => self.executor.has_room(*stream),
            Wait::Thread(host) => control.hosts[*host as usize].is_finished(),
            Wait::Condition(_, condition) => condition(),
        }
    }

    fn can_go(&self, host: &Host) -> bool {
        match &host.phase {
            Phase::Parked(wait) => self.is_over(wait),
            Phase::Refused(_) => true,
            Phase::Running | Phase::Finished => false,
        }
    }

    /// Returns the host threads that can continue, starting with `first`.
    pub(crate) fn hosts_that_can_go(&self, first: u32) -> SmallVec<[u32; 4]> {
        let control = self.control.as_ref().expect("the machine is controlled");
        let others = (0..control.hosts.len() as u32).filter(|&host| host != first);
        std::iter::once(first)
            .chain(others)
            .filter(|&host| self.can_go(&control.hosts[host as usize]))
            .collect()
    }

    /// Asks the schedule.
    pub(crate) fn choose(&mut self, decider: u32) -> Next {
        let commands = self.executor.offers(&self.memory);
        let mut hosts = self.hosts_that_can_go(decider);
        if hosts.is_empty() && commands.is_empty() {
            // Only polling threads are left. Whatever they wait for, they have to check it themselves.
            hosts = self.pollers();
        }
        match (&hosts[..], &commands[..]) {
            ([], []) => return Next::Nothing,
            (&[host], []) => return Next::Host(host),
            ([], &[command]) => return Next::Command(command),
            _ => {}
        }
        let mut control = self.control.take().expect("the machine is controlled");
        let mut choices: SmallVec<[(Choice<'_>, Next); 8]> = SmallVec::new();
        let is_quiet = !self.executor.has_host_functions() && control.is_quiet();
        let host = |number: u32| {
            let choice = Choice {
                actor: Actor::Host(number),
                label: None,
                command: 0,
                index: control.hosts[number as usize].waits,
                is_current: number == decider,
                is_needed: false,
                is_quiet,
                is_beginning: false,
                touched: Touched::Anything,
            };
            (choice, Next::Host(number))
        };
        let offers = || commands.iter().map(|&index| self.executor.offer(index));
        let (mine, others) = hosts.split_at(usize::from(hosts.first() == Some(&decider)));
        choices.extend(mine.iter().map(|&number| host(number)));
        let needed = offers().filter(|offer| offer.is_needed);
        choices.extend(needed.map(|offer| (offer.choice(), Next::Command(offer.index))));
        choices.extend(others.iter().map(|&number| host(number)));
        let rest = offers().filter(|offer| !offer.is_needed);
        choices.extend(rest.map(|offer| (offer.choice(), Next::Command(offer.index))));
        let beginning = commands.iter().filter(|&&index| self.executor.can_begin(index, &commands));
        choices.extend(beginning.map(|&index| {
            let choice = Choice { is_beginning: true, ..self.executor.offer(index).choice() };
            (choice, Next::Begin(index))
        }));
        let (offered, mut nexts): (SmallVec<[Choice<'_>; 8]>, SmallVec<[Next; 8]>) =
            choices.into_iter().unzip();
        if hosts.len() > 1 {
            control.observe();
        }
        let wanted = control.schedule.next(&offered);
        let chosen = if wanted < offered.len() { wanted } else { 0 };
        control.trace.decided(chosen, &offered);
        drop(offered);
        self.control = Some(control);
        nexts.swap_remove(chosen)
    }

    /// Returns the threads that poll, the one that has waited longest for its turn first. Returns none if they have polled
    /// for too long.
    fn pollers(&mut self) -> SmallVec<[u32; 4]> {
        let control = self.control();
        let polls = |host: &Host| matches!(host.phase, Phase::Parked(Wait::Progress(_)));
        let hosts = control.hosts.iter().enumerate();
        let mut found: SmallVec<[u32; 4]> =
            hosts.filter(|(_, host)| polls(host)).map(|(number, _)| number as u32).collect();
        if found.is_empty() {
            return found;
        }
        if control.is_livelock() {
            self.declare_stuck(
                "livelock: nothing is left to be done that could change what the program polls for. ",
            );
            return found;
        }
        let polled = |host: &u32| control.hosts[*host as usize].polled;
        // One at a time: the program cannot see which of them is first, and each gets its turn.
        let first = found.iter().copied().min_by_key(polled).unwrap_or_default();
        control.polled += 1;
        let now = control.polled;
        control.host(first).polled = now;
        found.clear();
        found.push(first);
        found
    }

    /// Runs the first half of a command.
    pub(crate) fn begin(&mut self, index: u32) {
        let offer = self.executor.offer(index);
        let (label, actor, number) = (offer.label, offer.actor, offer.number);
        self.control().trace.began(label, actor, number);
        self.executor.begin(index);
    }

    /// Reports to every waiting thread that its wait cannot end.
    pub(crate) fn declare_stuck(&mut self, what: &str) {
        let text = self.describe_hosts(what);
        let control = self.control();
        let refusal = Refusal::new(Code::Timeout, &*text);
        for host in &mut control.hosts {
            if matches!(host.phase, Phase::Parked(_)) {
                host.phase = Phase::Refused(refusal.clone());
            }
        }
        control.set_stuck(text);
    }

    /// Describes what every thread is doing, after a sentence about the problem.
    pub(crate) fn describe_hosts(&mut self, what: &str) -> String {
        let collectives = self.executor.describe_gate();
        let control = self.control.as_ref().expect("the machine is controlled");
        let mut text = what.to_owned();
        for (number, host) in control.hosts.iter().enumerate() {
            let reason = match &host.phase {
                Phase::Parked(wait) => format!("waits in {} for {}", host.call, self.describe(wait, control)),
                Phase::Running if host.is_spinning => {
                    format!("is busy outside of the driver, where its last call was {}", host.call)
                }
                Phase::Running => "is blocked outside of the driver".to_owned(),
                Phase::Refused(_) | Phase::Finished => continue,
            };
            let _ = write!(text, "Host thread {number} `{}` {reason}. ", host.name);
        }
        for label in control.detached.iter().filter_map(|detached| detached.label) {
            let _ = write!(text, "The host function `{label}` is blocked outside of the driver. ");
        }
        text += &collectives;
        text.truncate(text.trim_end().len());
        text
    }

    fn describe(&self, wait: &Wait, control: &Control) -> String {
        match wait {
            Wait::Turn { .. } => "its turn".to_owned(),
            Wait::Progress(_) => "something that it polls for".to_owned(),
            Wait::Commands(commands) => {
                let unfinished = commands.iter().filter_map(|&command| self.executor.describe(command));
                let names: Vec<String> =
                    unfinished.take(4).map(|(label, actor)| format!("`{label}` on {actor}")).collect();
                format!("work on the device: {}", names.join(", "))
            }
            Wait::Bytes(_) => "memory that a running command touches".to_owned(),
            Wait::Room(stream) => format!("room in the queue of {}", Actor::Stream(*stream)),
            Wait::Thread(host) => {
                format!("the end of host thread {host} `{}`", control.hosts[*host as usize].name)
            }
            Wait::Condition(what, _) => what.clone(),
        }
    }
}

impl<'a> Offer<'a> {
    fn choice(&self) -> Choice<'a> {
        let &Offer { number: command, step: index, actor, label, is_needed, touched, .. } = self;
        let label = Some(label);
        let (is_current, is_quiet, is_beginning) = (false, false, false);
        Choice { actor, label, command, index, is_current, is_needed, is_quiet, is_beginning, touched }
    }
}
