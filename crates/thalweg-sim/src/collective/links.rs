//! Links between devices: the time that data takes, and links that stall.
//!
//! A collective of all ranks uses the ring of its ranks: the links between neighbours, and the link between the last and
//! the first rank. A message uses the one link between its two ranks. A link is the same in both directions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Collectives, Exchange};
use crate::faults::Fault;

/// The speed of data between two devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Link {
    /// Data arrives at once.
    #[default]
    Instant,
    /// Data takes time. On a controlled machine, which counts commands instead of time, it arrives at once.
    Timed {
        /// The time until the first byte.
        latency: Duration,
        /// The number of bytes that follow per second; at least 1.
        bytes_per_second: u64,
    },
    /// Data never arrives, until the link is set anew.
    Stalled,
}

/// All links that are not instant, and the planned stalls.
#[derive(Default)]
pub(super) struct Links {
    links: BTreeMap<[u32; 2], Link>,
    /// The planned stalls: the number of the collective at which a stall begins, and the stalled link.
    planned: Vec<(u64, u32)>,
    /// The number of collectives that have met since the stalls were planned.
    met: u64,
    struck: u64,
}

/// The reason why a meeting does not run although all its parts have arrived.
pub(super) enum Hold {
    /// The link between these ranks stalls.
    Stalled([u32; 2]),
    /// The meeting's data is in transit.
    OnItsWay,
}

/// Returns two devices in ascending order.
fn pair([one, other]: [u32; 2]) -> [u32; 2] {
    [one.min(other), one.max(other)]
}

impl Collectives {
    /// Sets the link between two devices.
    pub(crate) fn set_link(&mut self, devices: [u32; 2], link: Link) {
        match link {
            Link::Instant => drop(self.links.links.remove(&pair(devices))),
            link => drop(self.links.links.insert(pair(devices), link)),
        }
    }

    /// Plans the stalls among `faults`, replacing those that were planned before; counting begins anew.
    pub(crate) fn plan_stalls(&mut self, faults: &[Fault]) {
        let stall = |fault: &Fault| match *fault {
            Fault::LinkStalls { collective, link } => Some((collective, link)),
            _ => None,
        };
        let Links { planned, met, struck, .. } = &mut self.links;
        (*planned, *met, *struck) = (faults.iter().filter_map(stall).collect(), 0, 0);
    }

    /// Returns how many of the planned stalls have begun.
    pub(crate) fn stalls_struck(&self) -> u64 {
        self.links.struck
    }

    /// Returns when the data of the next exchange arrives.
    pub(crate) fn next_opening(&self) -> Option<Instant> {
        self.attended.iter().filter_map(|id| self.exchanges[id].opens).min()
    }

    /// Returns the pairs of ranks between which an exchange's data is sent.
    fn ways(&self, exchange: &Exchange) -> Vec<[u32; 2]> {
        let ranks: Vec<u32> = (0..exchange.parts.len()).map(|position| exchange.rank(position)).collect();
        match ranks[..] {
            [_] => Vec::new(),
            [one, other] => vec![[one, other]],
            _ => ranks.iter().zip(ranks.iter().cycle().skip(1)).map(|(&one, &other)| [one, other]).collect(),
        }
    }

    fn devices_of(&self, exchange: &Exchange, ranks: [u32; 2]) -> Option<[u32; 2]> {
        let all = &self.communicators[&exchange.communicator].ranks;
        let [one, other] = ranks.map(|rank| all[rank as usize].device);
        Some(pair([one?, other?]))
    }

    /// Records that all parts of an exchange have arrived: from now on its data is in transit.
    pub(super) fn depart(&mut self, id: u64, is_timed: bool) {
        let exchange = &self.exchanges[&id];
        if exchange.has_departed {
            return;
        }
        if self.links.links.is_empty() && self.links.planned.is_empty() {
            self.links.met += 1;
            self.exchanges.get_mut(&id).expect("it was looked at above").has_departed = true;
            return;
        }
        let ways = self.ways(exchange);
        let number = self.links.met;
        let stalls = self.links.planned.iter().filter(|(collective, _)| *collective == number);
        let stalled: Vec<[u32; 2]> = stalls
            .filter_map(|(_, link)| ways.get((*link as usize).checked_rem(ways.len())?))
            .filter_map(|ranks| self.devices_of(exchange, *ranks))
            .collect();
        let bytes = exchange.parts.iter().flatten().flat_map(|part| &part.task.accesses);
        let bytes = bytes.map(|access| access.bytes).max().unwrap_or(0);
        let times = ways.iter().filter_map(|ranks| {
            match self.links.links.get(&self.devices_of(exchange, *ranks)?)? {
                Link::Timed { latency, bytes_per_second } => {
                    Some(*latency + Duration::from_secs_f64(bytes as f64 / (*bytes_per_second).max(1) as f64))
                }
                _ => None,
            }
        });
        let time = times.max().filter(|_| is_timed);
        let links = &mut self.links;
        links.met += 1;
        links.planned.retain(|(collective, _)| *collective != number);
        links.struck += stalled.len() as u64;
        links.links.extend(stalled.into_iter().map(|devices| (devices, Link::Stalled)));
        let exchange = self.exchanges.get_mut(&id).expect("it was looked at above");
        exchange.has_departed = true;
        exchange.opens = time.map(|time| Instant::now() + time);
    }

    /// Returns the reason why a meeting does not run yet although all its parts have arrived.
    pub(super) fn hold(&self, exchange: &Exchange) -> Option<Hold> {
        if self.links.links.is_empty() && exchange.opens.is_none() {
            return None;
        }
        let is_stalled = |ranks: &[u32; 2]| {
            let devices = self.devices_of(exchange, *ranks);
            devices.and_then(|devices| self.links.links.get(&devices)) == Some(&Link::Stalled)
        };
        if let Some(ranks) = self.ways(exchange).into_iter().find(is_stalled) {
            return Some(Hold::Stalled(ranks));
        }
        exchange.opens.filter(|opens| *opens > Instant::now()).map(|_| Hold::OnItsWay)
    }

    /// Describes a stalled link that delays an exchange, in words.
    pub(super) fn stall(&self, exchange: &Exchange) -> Option<String> {
        let is_complete = exchange.missing().next().is_none();
        let Some(Hold::Stalled([one, other])) = self.hold(exchange).filter(|_| is_complete) else {
            return None;
        };
        let [first, second] = self.devices_of(exchange, [one, other])?;
        Some(format!(
            "the link between rank {one} and rank {other} (devices {first} and {second}) has stalled"
        ))
    }
}
