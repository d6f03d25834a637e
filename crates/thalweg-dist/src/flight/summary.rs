//! A comparison of the calls of all ranks: which rank is missing in which call, and where calls differ.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use thalweg_runtime::Result;

use super::call::FlightCall;
use crate::ProcessGroup;

/// The interval at which a rank that waits for the records of others checks for them.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The collectives of a rank, as far as it has published them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RankFlight {
    /// The number of collectives that the rank has called.
    pub made: u64,
    /// The latest collective.
    pub last: Option<FlightCall>,
    /// Whether the rank has published its calls since the group failed. A dead rank has not, nor one that has not noticed the
    /// failure yet.
    pub has_spoken: bool,
    /// The rank's latest calls by their numbers, as far as known.
    pub calls: BTreeMap<u64, FlightCall>,
}

/// The calls of all ranks of a group, and the differences between them; [`ProcessGroup::flight_summary`] makes it. Its text form
/// has one line per rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightSummary {
    /// The name of the group.
    pub group: String,
    /// The calls of each rank, by rank.
    pub ranks: Vec<RankFlight>,
}

impl ProcessGroup {
    /// Returns the calls of all ranks, after the group has failed: each rank's watchdog publishes its calls when it learns of the
    /// failure. *Blocks* until all have, for at most `wait`.
    ///
    /// # Errors
    /// [`Error::is_distributed`](thalweg_runtime::Error::is_distributed) if the store cannot be reached.
    pub fn flight_summary(&self, wait: Duration) -> Result<FlightSummary> {
        let begin = Instant::now();
        let mut records = self.flight_records()?;
        while records.iter().any(Option::is_none) && begin.elapsed() < wait {
            std::thread::sleep(CHECK_INTERVAL.min(wait));
            records = self.flight_records()?;
        }
        let rank = |(rank, record): (u32, &Option<String>)| {
            let progress = self.0.store.find(&format!("progress/{rank}"))?;
            let progress = progress.map(|text| String::from_utf8_lossy(&text).into_owned());
            Ok(RankFlight::new(progress.as_deref(), record.as_deref()))
        };
        let ranks = (0..).zip(&records).map(rank).collect::<Result<_>>()?;
        Ok(FlightSummary { group: self.name().to_owned(), ranks })
    }
}

impl RankFlight {
    /// Parses a rank's progress (the number and label of its latest call), which it publishes while it runs, and its record.
    fn new(progress: Option<&str>, record: Option<&str>) -> Self {
        let mut calls: BTreeMap<u64, FlightCall> =
            record.unwrap_or_default().lines().filter_map(FlightCall::parse).collect();
        let latest = progress.and_then(|text| {
            let (number, label) = text.split_once(' ')?;
            Some((number.parse::<u64>().ok()?, label))
        });
        if let Some((number, label)) = latest {
            calls.entry(number).or_insert_with(|| FlightCall::labelled(label));
        }
        let last = calls.last_key_value();
        let (made, last) = (last.map_or(0, |(number, _)| *number), last.map(|(_, call)| call.clone()));
        Self { made, last, has_spoken: record.is_some(), calls }
    }
}

impl FlightSummary {
    /// Returns the greatest number of calls that a rank has made.
    pub fn front(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.made).max().unwrap_or(0)
    }

    /// Returns the ranks that have made fewer calls than others, each with the number of the first call that it has not made.
    pub fn missing(&self) -> Vec<(u32, u64)> {
        let front = self.front();
        let behind = (0..).zip(&self.ranks).filter(|(_, rank)| rank.made < front);
        behind.map(|(number, rank)| (number, rank.made + 1)).collect()
    }

    /// Returns the first call that two ranks made differently ([`FlightCall::differs`]), with them.
    pub fn difference(&self) -> Option<(u64, [u32; 2])> {
        (1..=self.front()).find_map(|call| {
            let mut known =
                (0..).zip(&self.ranks).filter_map(|(rank, flight)| Some((rank, flight.calls.get(&call)?)));
            let (first, of_first) = known.next()?;
            let other = known.find(|(_, other)| other.differs(of_first))?;
            Some((call, [first, other.0]))
        })
    }

    /// Returns a call as recorded by a rank that has made it, with that rank.
    fn call(&self, call: u64) -> Option<(u32, &FlightCall)> {
        (0..).zip(&self.ranks).find_map(|(rank, flight)| Some((rank, flight.calls.get(&call)?)))
    }

    fn text(&self, rank: u32, call: u64) -> String {
        self.ranks[rank as usize].calls.get(&call).map_or_else(|| "unknown".to_owned(), FlightCall::to_string)
    }
}

impl fmt::Display for FlightSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let front = self.front();
        writeln!(f, "the group \"{}\" of {} ranks, {front} calls:", self.group, self.ranks.len())?;
        for (number, rank) in (0..).zip(&self.ranks) {
            let last = rank.last.as_ref().map_or_else(|| "none".to_owned(), FlightCall::to_string);
            write!(f, "  rank {number}: ")?;
            if rank.made == front {
                write!(f, "has made all calls; the last is {last}")?;
            } else {
                let call = rank.made + 1;
                write!(f, "is missing in call {call}")?;
                if let Some((other, missed)) = self.call(call) {
                    write!(f, ", which is {missed} on rank {other}")?;
                }
                write!(f, "; its last call is {last}")?;
            }
            writeln!(f, "{}", if rank.has_spoken { "" } else { "; silent since the group failed" })?;
        }
        if let Some((call, [one, two])) = self.difference() {
            let (first, second) = (self.text(one, call), self.text(two, call));
            writeln!(f, "  call {call} differs: {first} on rank {one}, {second} on rank {two}")?;
        }
        Ok(())
    }
}
