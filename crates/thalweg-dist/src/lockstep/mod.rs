//! [`LockstepGraph`]: a region that either all ranks of a group capture together, or none.
//!
//! If one rank has a graph that another does not have, or their collectives are in different orders, the first replay hangs
//! without a message. So ranks exchange through the store what they captured, before anything is instantiated:
//!
//! ```text
//! capture the region ─► say a hash of its collectives, or what went wrong ─► read those of all ─► instantiate ─► say so ─► wait for all
//!                                                                            └ they differ, or a rank failed: no graph, on any rank
//! ```
//!
//! The hashes are compared group by group (a mesh has several), messages pair by pair. If they differ, the lists are read, and
//! the error names the first call that differs, with both ranks' source lines. Computation may differ from rank to rank.
//!
//! In the store, a capture has the keys `lockstep/N/captured/R`, `…/calls/R` and `…/ready/R` of each rank R, and a verification
//! `…/replays/V/R`.

pub(crate) mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thalweg_derive::at_line;
use thalweg_driver::CaptureMode;
use thalweg_lock::Mutex;
use thalweg_runtime::{CaptureOptions, Error, Graph, Label, Result};
use thalweg_tensor::caller::{at_line, label_at};

use self::record::{Digest, Record, Sequence};
use crate::ProcessGroup;
use crate::flight::Tensors;
use crate::store::Store;

/// The interval at which a rank that waits for others checks whether the group has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The message of a rank that succeeded.
const DONE: &str = "done";

/// The prefix of the message of a rank that failed, before the reason.
const FAILED: &str = "failed: ";

/// A graph that all ranks of a group captured in lockstep, and must replay equally often. Each rank has its own graph, with the
/// same number.
pub struct LockstepGraph {
    graph: Graph,
    group: ProcessGroup,
    number: u64,
    replays: AtomicU64,
    verifications: AtomicU64,
    /// The source line of the latest replay.
    last: Mutex<Option<Label>>,
}

impl LockstepGraph {
    /// Captures a region on all ranks of a group, and returns each rank's graph with the region's result. *All* ranks call it; it
    /// *blocks* until they have.
    ///
    /// The capture only forbids calls of its own thread ([`CaptureMode::ThreadLocal`]), so that ranks may be threads of one
    /// process. Run the region once beforehand, so that kernels are compiled and connections made. Cached memory is released
    /// first, as `torch.cuda.graph` does.
    ///
    /// # Errors
    /// On the rank that failed, the region's own error or those of [`Graph::capture`]. On all others [`Error::is_distributed`]
    /// with that rank and its error. On all ranks [`Error::is_distributed`] if they captured collectives in another order, of
    /// another kind, size or dtype, with the first that differs and both ranks' lines; and if a rank does not make the call
    /// within the group's timeout, with its number. After an error no rank has a graph; memory and streams are as before.
    #[track_caller]
    pub fn capture<T>(
        group: &ProcessGroup,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let location = Location::caller();
        let number = group.0.captures.fetch_add(1, Ordering::Relaxed);
        let exchange = Exchange { group, number };
        let captured = {
            // If the region panics, the others are notified. Its calls have their own source lines.
            let mut word = Word { exchange: &exchange, is_said: false };
            record::begin();
            let captured = group.check().and_then(|()| capture_locally(group, options, region));
            let record = record::end();
            word.publish(captured.as_ref().map(|_| &record)).map_err(|error| error.at(location))?;
            captured
        };
        let (captured, result) = captured?;
        let graph = at_line(location, || {
            exchange.compare()?;
            let graph = captured.instantiate();
            let said = graph.as_ref().map_or_else(|error| format!("{FAILED}{error}"), |_| DONE.to_owned());
            exchange.publish("ready", &said)?;
            let graph = graph?;
            exchange.all("ready")?;
            exchange.forget_former();
            Ok(graph)
        })?;
        let state = Self {
            graph,
            group: group.clone(),
            number,
            replays: AtomicU64::new(0),
            verifications: AtomicU64::new(0),
            last: Mutex::new(None),
        };
        Ok((state, result))
    }

    /// Queues the graph on the current stream, and counts the replay. All ranks must replay the same graphs in the same order. If
    /// the group has a watchdog, a rank that does not replay is named when the others have waited for the timeout.
    ///
    /// # Errors
    /// Those of [`Graph::replay`], and the reason why the group failed, if it has.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        self.group.check()?;
        let label = label_at("lockstep replay", Location::caller());
        let entry = self.group.note(label, Tensors::default());
        let submission = self.group.has_watchdog().then(|| self.group.0.outstanding.begin(entry));
        // Outside of any closure, so that it has the caller's source line.
        let replayed = self.graph.replay();
        replayed.map_err(|error| self.group.explain(error))?;
        self.replays.fetch_add(1, Ordering::Relaxed);
        *self.last.lock() = Some(label);
        let event = Arc::new(self.group.device().current_stream().record_event()?);
        self.group.flight().submitted(entry, None, event.clone());
        if let Some(submission) = submission {
            submission.submitted(event);
        }
        Ok(())
    }

    /// Checks that all ranks have replayed the graph equally often. *All* ranks call it; it *blocks* until they have, but not for
    /// the replays.
    ///
    /// # Errors
    /// [`Error::is_distributed`] on all ranks if the counts differ, with the ranks, their counts and the lines of their last
    /// replays; and if a rank does not make the call within the group's timeout, with its number.
    #[at_line]
    pub fn verify(&self) -> Result<()> {
        self.group.check()?;
        let time = self.verifications.fetch_add(1, Ordering::Relaxed);
        let exchange = Exchange { group: &self.group, number: self.number };
        let last = *self.last.lock();
        let last = last.map_or_else(|| "none".to_owned(), |label| label.to_string());
        let key = format!("replays/{time}");
        exchange.publish(&key, &format!("{} {last}", self.replays()))?;
        let all = exchange.all(&key)?;
        let all: Vec<(&str, &str)> = all.iter().filter_map(|text| text.split_once(' ')).collect();
        let counts: BTreeSet<&str> = all.iter().map(|(count, _)| *count).collect();
        if counts.len() <= 1 {
            return Ok(());
        }
        // The count of most ranks is taken as right; of two halves, that of the first.
        let votes = |count: &str| all.iter().filter(|(other, _)| *other == count).count();
        let usual = all.iter().rev().map(|(count, _)| *count).max_by_key(|count| votes(count)).unwrap_or("0");
        let out = (0..).zip(&all).filter(|(_, (count, _))| *count != usual);
        let out: Vec<String> = out
            .map(|(rank, (count, last)): (u32, _)| {
                format!("rank {rank} has replayed it {count} times, last {last}")
            })
            .collect();
        Err(Error::distributed(format!(
            "lockstep graph {}: {}; the other ranks {usual} times",
            self.number,
            out.join("; ")
        )))
    }

    /// Returns how often this rank has replayed the graph.
    pub fn replays(&self) -> u64 {
        self.replays.load(Ordering::Relaxed)
    }

    /// Returns the graph's number among those that the group captured in lockstep, the same on all ranks, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the graph, for inspection; replays through it are not counted.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

impl fmt::Debug for LockstepGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockstepGraph({} of {:?}, {} replays)", self.number, self.group, self.replays())
    }
}

/// Captures a region on this rank, without an executable.
fn capture_locally<T>(
    group: &ProcessGroup,
    options: CaptureOptions,
    region: impl FnOnce() -> Result<T>,
) -> Result<(thalweg_runtime::graph::CapturedGraph, T)> {
    // The graph's pool should not add to the memory that eager steps have left cached.
    group.device().empty_cache()?;
    let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..options };
    let capture = Graph::capture_begin(group.device(), options)?;
    let result = {
        let _current = capture.stream().make_current();
        region()?
    };
    Ok((capture.end()?, result))
}

/// The exchange of the ranks about one graph, through the store.
struct Exchange<'g> {
    group: &'g ProcessGroup,
    number: u64,
}

impl Exchange<'_> {
    fn key(&self, number: u64, what: &str, rank: u32) -> String {
        format!("lockstep/{number}/{what}/{rank}")
    }

    fn store(&self) -> &dyn Store {
        &*self.group.0.store
    }

    fn publish(&self, what: &str, text: &str) -> Result<()> {
        self.store().set(&self.key(self.number, what, self.group.rank()), text.as_bytes())
    }

    /// Returns a rank's message, after waiting for it for at most the group's timeout.
    fn of(&self, what: &str, rank: u32) -> Result<String> {
        let (key, begin) = (self.key(self.number, what, rank), Instant::now());
        let timeout = self.group.0.options.timeout;
        while !self.store().check(&[&key])? {
            self.group.check()?;
            if let Some(text) = self.group.failure_elsewhere() {
                return Err(Error::distributed(text));
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Error::distributed(format!(
                    "lockstep graph {}: rank {rank} has not come within {} ms ({what}). {}",
                    self.number,
                    timeout.as_millis(),
                    self.group.who_is_missing(self.group.last_call().map_or(0, |last| last.sequence))
                )));
            }
            // The error says no more than the next check.
            let _ = self.store().wait(&[&key], left.min(CHECK_INTERVAL));
        }
        Ok(String::from_utf8_lossy(&self.store().get(&key)?).into_owned())
    }

    /// Returns the messages of all ranks.
    ///
    /// # Errors
    /// If a rank reports a failure, or sends no message in time.
    fn all(&self, what: &str) -> Result<Vec<String>> {
        let all = (0..self.group.size()).map(|rank| self.of(what, rank)).collect::<Result<Vec<_>>>()?;
        for (rank, text) in all.iter().enumerate() {
            if let Some(reason) = text.strip_prefix(FAILED) {
                return Err(Error::distributed(format!(
                    "lockstep graph {}: rank {rank} failed, and no rank has a graph: {reason}",
                    self.number
                )));
            }
        }
        Ok(all)
    }

    /// Compares the captures of all ranks.
    fn compare(&self) -> Result<()> {
        let all = self.all("captured")?;
        let nonsense =
            || Error::distributed("the store's entries `lockstep` are none: do others use the same store?");
        let all = all.iter().map(|text| record::parse(text).ok_or_else(nonsense));
        let all: Vec<BTreeMap<Sequence, Digest>> = all.collect::<Result<_>>()?;
        let sequences: BTreeSet<&Sequence> = all.iter().flat_map(BTreeMap::keys).collect();
        for sequence in sequences {
            let place = |member: &u32| self.group.global_ranks().iter().position(|rank| rank == member);
            // Ranks that are not in this group are not compared.
            let members: Vec<usize> = sequence.members.iter().filter_map(place).collect();
            let digest = |rank: usize| all[rank].get(sequence).copied().unwrap_or_default();
            let Some((&first, others)) = members.split_first() else { continue };
            if let Some(&other) = others.iter().find(|&&other| digest(other) != digest(first)) {
                let ranks = [first as u32, other as u32];
                let [one, two] = ranks.map(|rank| self.of("calls", rank));
                let text = sequence.difference(ranks, [&one?, &two?]);
                return Err(Error::distributed(format!(
                    "lockstep graph {}: {text}. No rank has a graph",
                    self.number
                )));
            }
        }
        Ok(())
    }

    /// Removes this rank's entries of an earlier capture, which all ranks have finished.
    fn forget_former(&self) {
        if let Some(former) = self.number.checked_sub(2) {
            for what in ["captured", "calls", "ready"] {
                // An entry that stays only takes space.
                let _ = self.store().delete_key(&self.key(former, what, self.group.rank()));
            }
        }
    }
}

/// The message of a rank about its capture, which is also sent if its region panics.
struct Word<'g> {
    exchange: &'g Exchange<'g>,
    is_said: bool,
}

impl Word<'_> {
    fn publish(&mut self, captured: Result<&Record, &Error>) -> Result<()> {
        self.is_said = true;
        let text = match captured {
            Ok(record) => {
                self.exchange.publish("calls", &record.calls())?;
                record.digests()
            }
            Err(error) => format!("{FAILED}{error}"),
        };
        self.exchange.publish("captured", &text)
    }
}

impl Drop for Word<'_> {
    fn drop(&mut self) {
        if !self.is_said {
            drop(record::end());
            // An error of the store cannot be reported to any caller.
            let _ = self.exchange.publish("captured", &format!("{FAILED}it panicked"));
        }
    }
}
