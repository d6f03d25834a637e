//! Turns troubles into reports: the finding with its accesses, its history, the missing order and the call that would add it.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;
use thalweg_driver::{BlockKind, UseKind};

use super::chosen::{Answer, Key, Part, Pending};
use super::clock::Clock;
use super::finding::{Finding, FindingKind, History, Site, Work};
use super::model::{Actor, Model, StreamId, Wait};
use super::shadow::{Mark, MarkKind};
use super::site::SiteId;
use super::touch::Trouble;

/// The maximum number of findings that are kept.
const FINDINGS: usize = 1000;

/// The findings, each once.
#[derive(Default)]
pub(super) struct Findings {
    known: FxHashSet<Key>,
    /// The possible findings that will never be decided and were already reported.
    noted: FxHashSet<Key>,
    pub(super) list: Vec<Finding>,
    pub(super) observer: Option<Observer>,
}

/// The observers of findings.
pub(super) type Observer = Box<dyn Fn(&Finding) + Send + Sync>;

impl Findings {
    fn push(&mut self, finding: Finding) {
        if let Some(observer) = &self.observer {
            observer(&finding);
        }
        self.list.push(finding);
    }
}

impl Model {
    /// Reports a trouble with the work of this mark, unless it was reported already. `clock` is the clock of the work.
    pub(super) fn report(&mut self, trouble: &Trouble, mark: &Mark, clock: &Clock) {
        let Some((key, trouble)) = self.unreported(trouble, mark) else { return };
        let finding = self.finding(&trouble, mark, clock);
        self.say(key, finding);
    }

    /// Reports a trouble with the work of this mark if the bytes chosen by data confirm it, once they are known.
    pub(super) fn ask(&mut self, trouble: &Trouble, parts: Vec<Part>, mark: &Mark, clock: &Clock) {
        let Some((key, trouble)) = self.unreported(trouble, mark) else { return };
        let will_be_known = parts.iter().all(|part| !part.touched.contains(&0) && !part.spared.contains(&0));
        if !will_be_known && self.findings.noted.contains(&key) {
            return;
        }
        let finding = Finding { is_certain: false, ..self.finding(&trouble, mark, clock) };
        if !will_be_known {
            self.note(key, finding);
        } else if self.chosen.ask(Pending { key, finding, parts }) {
            self.decide();
        }
    }

    /// Returns the trouble's final kind, and the key under which it is reported only once; `None` if the trouble must not be
    /// reported.
    fn unreported(&self, trouble: &Trouble, mark: &Mark) -> Option<(Key, Trouble)> {
        let mut trouble = *trouble;
        let is_race = trouble.kind == FindingKind::Race;
        if is_race && trouble.other.is_some_and(|other| self.may_yet_be_ordered(&other, mark)) {
            return None;
        }
        let block = self.blocks.get(trouble.block);
        if trouble.kind == FindingKind::Uninitialised
            && mark.launch == 0
            && block.is_some_and(|block| block.capture != 0 && !self.launched.contains(&block.capture))
        {
            trouble.kind = FindingKind::OutputBeforeLaunch;
        }
        let origin = block.map_or(0, |block| block.allocated);
        let (other, around) = trouble.other.map_or((origin, 0), |other| (other.site, other.within));
        let key = (trouble.kind, [other, around, mark.site, mark.within]);
        (self.findings.list.len() < FINDINGS && !self.findings.known.contains(&key)).then_some((key, trouble))
    }

    fn finding(&mut self, trouble: &Trouble, mark: &Mark, clock: &Clock) -> Finding {
        let is_between_threads = self.informed_thread(trouble).is_some();
        let is_known = trouble.other.is_none_or(|other| mark.surely_meets(&other));
        Finding {
            kind: trouble.kind,
            is_certain: !is_between_threads && (trouble.kind != FindingKind::Race || is_known),
            is_between_threads,
            first: trouble.other.map(|other| self.work_of(&other)),
            second: self.work_of(mark),
            range: (trouble.start, trouble.end - trouble.start),
            history: self.history(trouble),
            streams: self.made(trouble, mark),
            missing: self.missing(trouble, mark, clock),
            advice: self.advice(trouble, mark),
        }
    }

    fn say(&mut self, key: Key, finding: Finding) {
        if self.findings.list.len() < FINDINGS && self.findings.known.insert(key) {
            self.findings.push(finding);
        }
    }

    /// Reports a possible finding that will never be decided.
    fn note(&mut self, key: Key, finding: Finding) {
        // A read of bytes that may not have been written is not reported: usually they were written.
        if finding.kind == FindingKind::Race
            && self.findings.list.len() < FINDINGS
            && !self.findings.known.contains(&key)
            && self.findings.noted.insert(key)
        {
            self.findings.push(finding);
        }
    }

    /// Reports the pending findings that are now decided, from the known bytes chosen by data.
    pub(super) fn decide(&mut self) {
        if self.chosen.pending.is_empty() {
            return;
        }
        self.chosen.process_reports();
        let mut open = VecDeque::new();
        for mut pending in std::mem::take(&mut self.chosen.pending) {
            if self.findings.known.contains(&pending.key) {
                continue;
            }
            match self.chosen.answer(&pending) {
                Answer::Yes(start, bytes) => {
                    pending.finding.range = (start, bytes);
                    pending.finding.is_certain = !pending.finding.is_between_threads;
                    self.say(pending.key, pending.finding);
                }
                Answer::No => {}
                Answer::Open => open.push_back(pending),
                Answer::Never => self.note(pending.key, pending.finding),
            }
        }
        self.chosen.left(open);
        while let Some(pending) = self.chosen.excess() {
            self.note(pending.key, pending.finding);
        }
    }

    /// Reports all findings that are still pending as possible.
    pub(super) fn give_up(&mut self) {
        self.decide();
        for pending in std::mem::take(&mut self.chosen.pending) {
            self.note(pending.key, pending.finding);
        }
    }

    /// Returns the findings so far, and the possible ones that are still pending.
    pub(super) fn found(&mut self) -> Vec<Finding> {
        self.decide();
        let mut list = self.findings.list.clone();
        let mut noted = FxHashSet::default();
        for Pending { key, finding, .. } in &self.chosen.pending {
            let is_new = !self.findings.noted.contains(key) && noted.insert(*key);
            if is_new && finding.kind == FindingKind::Race {
                list.push(finding.clone());
            }
        }
        list
    }

    fn site(&self, id: SiteId) -> Site {
        self.sites
            .get(id)
            .unwrap_or(Site { operator: "work that the sanitizer was not told of", location: None })
    }

    fn work_of(&self, mark: &Mark) -> Work {
        let touches = matches!(mark.kind, MarkKind::Command | MarkKind::Host);
        Work {
            site: self.site(mark.site),
            launch: self.sites.get(mark.launch),
            within: self.sites.get(mark.within),
            mode: touches.then_some(mark.mode),
            start: mark.start,
            bytes: mark.bytes,
            is_some: !mark.is_certain,
            actor: self.actor_name(mark),
            number: mark.number,
        }
    }

    /// Returns the call of the program that the work is part of: the place for a wait.
    fn call(&self, mark: &Mark) -> Site {
        let around = self.sites.get(mark.launch).or_else(|| self.sites.get(mark.within));
        around.unwrap_or_else(|| self.site(mark.site))
    }

    fn stream_of(&self, mark: &Mark) -> Option<StreamId> {
        match self.actors[mark.strand.index()] {
            Actor::Host(_) => None,
            Actor::Stream(stream) | Actor::Chain { stream, .. } => Some(stream),
        }
    }

    /// Returns the places where the streams of a trouble were made.
    fn made(&self, trouble: &Trouble, mark: &Mark) -> Vec<(String, Site)> {
        let owner = self.blocks.get(trouble.block).map(|block| block.stream);
        let streams = [trouble.other.and_then(|other| self.stream_of(&other)), self.stream_of(mark), owner];
        let mut list: Vec<(String, Site)> = Vec::new();
        for stream in streams.iter().flatten().map(|&id| &self.streams[id as usize]) {
            if let Some(site) = self.sites.get(stream.made)
                && !list.iter().any(|(name, _)| *name == stream.name)
            {
                list.push((stream.name.clone(), site));
            }
        }
        list
    }

    fn actor_name(&self, mark: &Mark) -> String {
        match self.actors[mark.strand.index()] {
            Actor::Host(host) => self.hosts[host as usize].name.clone(),
            Actor::Stream(stream) => self.streams[stream as usize].name.clone(),
            Actor::Chain { stream, .. } => {
                format!("a graph launched on {}", self.streams[stream as usize].name)
            }
        }
    }

    /// Returns the stream that carries an actor's work; `None` for the host.
    fn stream_name(&self, mark: &Mark) -> Option<&str> {
        Some(&self.streams[self.stream_of(mark)? as usize].name)
    }

    fn history(&mut self, trouble: &Trouble) -> History {
        if let Some(block) = self.blocks.get(trouble.block) {
            let owner = match block.kind {
                BlockKind::Device | BlockKind::GraphOutput => {
                    self.streams[block.stream as usize].name.clone()
                }
                BlockKind::Pinned => "the host".to_owned(),
            };
            let recorded = block.recorded.iter().map(|recorded| {
                (self.site(recorded.site), self.streams[recorded.stream as usize].name.clone())
            });
            return History {
                range: Some((block.start, block.bytes)),
                allocated: Some((self.site(block.allocated), owner)),
                recorded: recorded.collect(),
                freed: block.freed.map(|freed| self.site(freed)),
            };
        }
        if let Some(departed) = self.space.departed(trouble.start) {
            return History {
                range: Some((departed.start, departed.end - departed.start)),
                allocated: Some((self.site(departed.allocated), String::new())),
                recorded: Vec::new(),
                freed: Some(self.site(departed.freed)),
            };
        }
        let allocated = self.space.object(trouble.object).allocated;
        let allocated = self.sites.get(allocated).map(|site| (site, String::new()));
        History { allocated, ..History::default() }
    }

    /// Returns the thread that may have told the later work's thread about the earlier work, if nothing else could order the two.
    fn informed_thread(&self, trouble: &Trouble) -> Option<&str> {
        let is_order = matches!(trouble.kind, FindingKind::Race | FindingKind::UseBeforeAllocation);
        self.may_have_reported(trouble.other.as_ref().filter(|_| is_order)?)
    }

    // ---- The missing order ----------------------------------------------------------------------------------------

    fn missing(&self, trouble: &Trouble, mark: &Mark, clock: &Clock) -> String {
        let second = self.site(mark.site);
        let Some(other) = &trouble.other else { return self.missing_alone(trouble, second) };
        let first = self.site(other.site);
        let (a, b) = (self.actor_name(other), self.actor_name(mark));
        if let Some(informed_thread) = self.informed_thread(trouble) {
            return format!(
                "The simulator was not told of any synchronisation between these two threads: {informed_thread} knows that {first} is \
                 over, and nothing says that the thread of {second} heard of it."
            );
        }
        match trouble.kind {
            FindingKind::ReuseBeforeLastUse => format!(
                "The allocator gave this memory to {second} while {first} on {a} may still use it: the new owner's stream \
                 does not come after it, and the host has not seen it complete."
            ),
            FindingKind::MissingRecord => format!(
                "When the memory was given back, nothing put {first} on {a} before what its next owner does: the \
                 allocator hands it to later work of {b} at once."
            ),
            FindingKind::EarlyRecord => format!(
                "The use that was recorded for {a} ends at the `record_use`, and {first} came after it: the allocator \
                 does not wait for that."
            ),
            FindingKind::UnmapInUse => {
                format!("The host has not seen {first} on {a} complete, and unmapping waits for nothing.")
            }
            FindingKind::FreeBeforeLastUse => {
                format!(
                    "Nothing puts the free on {b} after {first} on {a}. {}",
                    self.reach(other, mark, clock)
                )
            }
            FindingKind::UseBeforeAllocation => format!(
                "The memory was given out on {a}, after whatever used it before there; {b} does not wait for that. {}",
                self.reach(other, mark, clock)
            ),
            FindingKind::UseAfterFree => format!("The memory was given back on {a} by {first}."),
            _ if self.is_one_launch(other, mark) => format!(
                "In the captured graph no path leads from {first} to {second}: their branches may run in either order, or \
                 at once."
            ),
            _ => format!(
                "Nothing puts {second} on {b} after {first} on {a}. {}",
                self.reach(other, mark, clock)
            ),
        }
    }

    fn missing_alone(&self, trouble: &Trouble, second: Site) -> String {
        match trouble.kind {
            FindingKind::UseAfterFree => format!("{second} was submitted after the memory had been given back."),
            FindingKind::OverlappingBlocks => {
                "The allocator gave out bytes of a block that was not freed: this is a bug of the allocator.".to_owned()
            }
            FindingKind::StaleGraphInput => {
                "The graph was captured with this memory, which was given back since: a launch uses whatever is at the \
                 address now."
                    .to_owned()
            }
            FindingKind::OutputBeforeLaunch => {
                "The memory was allocated inside a capture, where nothing runs: until the graph is launched nothing has \
                 written it."
                    .to_owned()
            }
            FindingKind::Uninitialised => {
                "No work that was submitted before writes these bytes: what is read is whatever was left there.".to_owned()
            }
            FindingKind::OutOfBounds => {
                "These bytes do not belong to the block that the access begins in.".to_owned()
            }
            _ => String::new(),
        }
    }

    /// Returns whether both are nodes of one executable.
    fn is_one_launch(&self, first: &Mark, second: &Mark) -> bool {
        let executable = |mark: &Mark| match self.actors[mark.strand.index()] {
            Actor::Chain { graph, .. } => Some(graph),
            _ => None,
        };
        executable(first).is_some() && executable(first) == executable(second)
    }

    /// Describes how much of the first actor's work the second is ordered after.
    fn reach(&self, first: &Mark, second: &Mark, clock: &Clock) -> String {
        let (a, b) = (self.actor_name(first), self.actor_name(second));
        let (earlier, later) = (self.stream_of(first), self.stream_of(second));
        let waits = later.map_or(&[][..], |later| &self.streams[later as usize].waits);
        match clock.of(first.strand) {
            0 => {
                let elsewhere = waits.last().filter(|wait| Some(wait.earlier) != earlier).map(|wait| {
                    let stream = &self.streams[wait.earlier as usize].name;
                    format!(" Its last wait, {}, was for {stream}.", self.site(wait.site))
                });
                format!(
                    "At that moment {b} had not waited for any work of {a}.{}",
                    elsewhere.unwrap_or_default()
                )
            }
            known => {
                let is_that = |wait: &&Wait| Some(wait.earlier) == earlier && wait.number == known;
                let by = waits.iter().find(is_that).map(|wait| format!(" (by {})", self.site(wait.site)));
                format!(
                    "At that moment {b} had waited for {a} only up to number {known}{}, and this is number {}.",
                    by.unwrap_or_default(),
                    first.number
                )
            }
        }
    }

    /// Returns the call by which one stream waits for another.
    fn wait_stream(&self, later: &str, earlier: &str) -> String {
        let later = if is_identifier(later) { later } else { "later" };
        let earlier = if is_identifier(earlier) { earlier } else { "earlier" };
        let reference = if self.speaks_python { "" } else { "&" };
        format!("{later}.wait_stream({reference}{earlier})")
    }

    // ---- The call that would add it -------------------------------------------------------------------------------

    fn advice(&self, trouble: &Trouble, mark: &Mark) -> String {
        let second = self.site(mark.site);
        if let Some(other) = &trouble.other {
            let advice = self.advice_for_two(trouble, other, mark);
            return match self.unseen_order(trouble, other) {
                Some(hint) => format!("{advice} {hint}"),
                None => advice,
            };
        }
        match trouble.kind {
            FindingKind::StaleGraphInput => format!(
                "keep the memory that {second} uses alive for as long as the graph is replayed (hold its tensor), and write \
                 new input into it in place; or capture again."
            ),
            FindingKind::OutputBeforeLaunch => {
                format!("call `graph.replay()` before {second}, on the same stream or one that it waits for.")
            }
            FindingKind::Uninitialised => {
                format!(
                    "write the memory before {second}: fill it (`zeros` instead of `empty`) or copy into it."
                )
            }
            FindingKind::OutOfBounds => format!(
                "check the extents and strides that {second} was given, or allocate as many bytes as it declares."
            ),
            FindingKind::OverlappingBlocks => "report this to the maintainers of the allocator.".to_owned(),
            _ => format!("drop the memory after {second}, not before: keep its owner alive until then."),
        }
    }

    /// Returns a hint where a registered thread or a host function could order the works in a way that is not seen.
    fn unseen_order(&self, trouble: &Trouble, other: &Mark) -> Option<String> {
        let is_order = matches!(trouble.kind, FindingKind::Race | FindingKind::UseBeforeAllocation);
        if !is_order || self.informed_thread(trouble).is_some() {
            return None;
        }
        let knower = self.could_notify(other)?;
        Some(format!(
            "This is not a race if {knower}, which knows that {} is over, notifies the other side by a channel or a flag of the \
             program's own: let the simulator see it, by `gpu.channel`, `gpu.flag`, or `host_release` and `host_acquire`.",
            self.site(other.site)
        ))
    }

    fn advice_for_two(&self, trouble: &Trouble, other: &Mark, mark: &Mark) -> String {
        let (first, second) = match self.is_one_launch(other, mark) {
            true => (self.site(other.site), self.site(mark.site)),
            false => (self.call(other), self.call(mark)),
        };
        if self.informed_thread(trouble).is_some() {
            return format!(
                "if a mutex, a channel or a flag orders the threads, use those of the simulator (`gpu.mutex`, `gpu.channel`, \
                 `gpu.flag`), or call `host_release` before it is given and `host_acquire` behind it; if nothing does, join the \
                 thread of {first} or send it a message before {second}."
            );
        }
        let earlier = self.stream_name(other);
        let record = |stream: &str| {
            format!(
                "call `record_stream` for {stream} before the free ({second}), or `record_use` after {first}; or make the \
                 owner's stream wait for {stream} before the free."
            )
        };
        match (trouble.kind, earlier, self.stream_name(mark)) {
            (FindingKind::MissingRecord, Some(stream), _) => match self.blocks.get(trouble.block) {
                Some(block) if block.kind == BlockKind::Pinned => {
                    format!(
                        "call `record_use` for {stream} after {first}, or synchronise {stream} before the free ({second})."
                    )
                }
                _ => record(stream),
            },
            (FindingKind::EarlyRecord, Some(stream), _) => {
                let recorded = self
                    .blocks
                    .get(trouble.block)
                    .and_then(|block| block.recorded.iter().find(|recorded| recorded.kind == UseKind::SoFar));
                let from =
                    recorded.map_or(String::new(), |recorded| format!(" from {}", self.site(recorded.site)));
                format!(
                    "move the `record_use` for {stream}{from} to after {first}, or call `record_stream` instead."
                )
            }
            (FindingKind::ReuseBeforeLastUse, Some(stream), _) => format!(
                "call `record_stream` for {stream} before the memory is given back; where that was done, the allocator \
                 reused it too early."
            ),
            (FindingKind::UseAfterFree, _, _) => {
                format!("free the memory after {second}, not before; or use memory that is still allocated.")
            }
            (FindingKind::UnmapInUse, Some(stream), _) => {
                format!(
                    "call `synchronize` for {stream} before {second}, or wait on the host for an event behind {first}."
                )
            }
            (_, Some(_), Some(_)) if self.is_one_launch(other, mark) => format!(
                "while capturing, record an event after {first} and make the stream of {second} wait for it before {second}."
            ),
            (_, Some(earlier), Some(later)) => format!(
                "before {second}, insert `{}`{}; or record an event after {first} and let {later} wait for it.",
                self.wait_stream(later, earlier),
                legend(later, earlier),
            ),
            (_, Some(stream), None) => format!(
                "before {second}, call `synchronize` for {stream}, or wait on the host for an event that was recorded after \
                 {first}."
            ),
            (_, None, _) => format!(
                "hand over from the thread of {first} to the thread of {second} (join it, or send a message) before {second}."
            ),
        }
    }
}

/// Returns a text that identifies the streams in that call whose names are not the program's own.
fn legend(later: &str, earlier: &str) -> String {
    match (is_identifier(later), is_identifier(earlier)) {
        (true, true) => String::new(),
        (true, false) => format!(", where `earlier` is {earlier}"),
        (false, true) => format!(", where `later` is {later}"),
        (false, false) => format!(", where `later` is {later} and `earlier` is {earlier}"),
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}
