//! The collectives that a rank captured, group by group, and hashes of them.
//!
//! Collectives proper are compared between all members of a group, in their order. Messages are compared between sender and
//! receiver.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use thalweg_driver::CollectiveOperation;
use thalweg_runtime::CollectivePart;

use crate::ProcessGroup;

thread_local! {
    /// The collectives that this thread captures in lockstep, if a capture is in progress.
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

/// A sequence of calls that must be the same on several ranks: its group, and the direction if it is of messages.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Sequence {
    /// The name of the group.
    pub(super) group: String,
    /// The ranks that must agree, as the first group numbers them.
    pub(super) members: Vec<u32>,
    /// Whether the sequence is of messages from the first of two members to the second.
    pub(super) is_messages: bool,
}

/// The calls of a rank, in order, each with its source line.
#[derive(Default, Debug)]
pub(super) struct Record(BTreeMap<Sequence, Vec<Call>>);

#[derive(Debug)]
struct Call {
    /// The part of the message that is the same on all ranks.
    content: String,
    /// The operation and its source line.
    text: String,
}

/// The number of calls of a sequence, and their hash.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Digest {
    count: usize,
    hash: u64,
}

/// Begins to record the collectives that this thread submits.
pub(super) fn begin() {
    RECORD.with(|record| *record.borrow_mut() = Some(Record::default()));
}

/// Ends the recording.
pub(super) fn end() -> Record {
    RECORD.with(|record| record.borrow_mut().take()).unwrap_or_default()
}

/// Records submitted collectives, if this thread captures in lockstep.
pub(crate) fn note(group: &ProcessGroup, parts: &[CollectivePart]) {
    RECORD.with(|record| {
        if let Some(record) = &mut *record.borrow_mut() {
            parts.iter().for_each(|part| record.add(group, part));
        }
    });
}

impl Record {
    fn add(&mut self, group: &ProcessGroup, part: &CollectivePart) {
        let ranks = group.global_ranks();
        let place = |rank: u32| ranks[rank as usize];
        let (members, is_messages, what) = match part.operation {
            CollectiveOperation::Send { peer } => {
                (vec![place(group.rank()), place(peer)], true, "message".to_owned())
            }
            CollectiveOperation::Receive { peer } => {
                (vec![place(peer), place(group.rank())], true, "message".to_owned())
            }
            operation => (ranks.to_vec(), false, operation.to_string()),
        };
        let sequence = Sequence { group: group.name().to_owned(), members, is_messages };
        let content = format!("{what}, {} elements of format {}", part.count, part.format.0);
        let text = format!("{}, {} elements, by {}", part.operation, part.count, part.label);
        self.0.entry(sequence).or_default().push(Call { content, text });
    }

    /// Writes counts and hashes, one line per sequence.
    pub(super) fn digests(&self) -> String {
        let line = |(sequence, calls): (&Sequence, &Vec<Call>)| {
            let hash = calls.iter().fold(OFFSET, |hash, call| hashed(hash, call.content.as_bytes()));
            let members: Vec<String> = sequence.members.iter().map(u32::to_string).collect();
            let kind = if sequence.is_messages { "messages" } else { "collectives" };
            format!("{kind}\t{}\t{}\t{}\t{hash}\n", sequence.group, members.join(","), calls.len())
        };
        self.0.iter().map(line).collect()
    }

    /// Writes the calls, one per line: the sequence, the content that is compared, and the text.
    pub(super) fn calls(&self) -> String {
        let mut text = String::new();
        for (sequence, calls) in &self.0 {
            for call in calls {
                let line = call.text.replace(['\n', '\t'], " ");
                // Writing to a string does not fail.
                let _ = writeln!(text, "{}\t{}\t{line}", sequence.key(), call.content);
            }
        }
        text
    }
}

impl Sequence {
    /// Returns the key that identifies the sequence in a list of calls.
    fn key(&self) -> String {
        format!("{} {:?} {}", self.group, self.members, self.is_messages)
    }

    /// Finds the sequence's calls in a list that [`Record::calls`] wrote: the content that is compared, and the text.
    fn calls_in<'t>(&self, list: &'t str) -> Vec<(&'t str, &'t str)> {
        let key = self.key();
        let own = |line: &'t str| line.strip_prefix(&key)?.strip_prefix('\t')?.split_once('\t');
        list.lines().filter_map(own).collect()
    }

    /// Describes the first difference between the lists of two ranks.
    pub(super) fn difference(&self, ranks: [u32; 2], lists: [&str; 2]) -> String {
        let [one, two] = lists.map(|list| self.calls_in(list));
        let differs =
            |place: &usize| one.get(*place).map(|call| call.0) != two.get(*place).map(|call| call.0);
        let place = (0..one.len().max(two.len())).find(differs).unwrap_or(0);
        let of = |calls: &[(&str, &str)]| calls.get(place).map_or("nothing", |call| call.1).to_owned();
        let what = if self.is_messages {
            format!("messages from rank {} to rank {}", self.members[0], self.members[1])
        } else {
            "collectives".to_owned()
        };
        format!(
            "ranks {} and {} captured other {what} in the group \"{}\": call {} is {} on rank {}, and {} on rank {}",
            ranks[0],
            ranks[1],
            self.group,
            place + 1,
            of(&one),
            ranks[0],
            of(&two),
            ranks[1]
        )
    }
}

/// Parses the output of [`Record::digests`].
pub(super) fn parse(text: &str) -> Option<BTreeMap<Sequence, Digest>> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split('\t');
        let is_messages = words.next()? == "messages";
        let group = words.next()?.to_owned();
        let members = words.next()?.split(',').map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
        let digest = Digest { count: words.next()?.parse().ok()?, hash: words.next()?.parse().ok()? };
        found.insert(Sequence { group, members, is_messages }, digest);
    }
    Some(found)
}

/// The start of an FNV-1a hash, which is the same in every program.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    // A byte that no text contains separates the texts.
    bytes.iter().chain(&[0xff]).fold(hash, step)
}
