//! [`Finding`]: what a checker says, for people who have never read this code.
//!
//! A finding names two accesses, the memory's history, the order that is missing and one call that would add it. Its text is at
//! most [`WIDTH`] columns wide.

use std::fmt;

use thalweg_driver::{AccessMode, Label, SourceLine};

/// The width of a report, in columns.
pub const WIDTH: usize = 100;

/// A place in the program that work comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// The operator (`add`), or the driver's call where none was named.
    pub operator: &'static str,
    /// The line of source, where it is known.
    pub location: Option<SourceLine>,
}

impl From<Label> for Site {
    fn from(label: Label) -> Self {
        Self { operator: label.operator, location: Some(label.source()) }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.operator)?;
        match self.location {
            Some(SourceLine { file, line }) => write!(f, " at {file}:{line}"),
            None => Ok(()),
        }
    }
}

/// The kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two accesses to the same bytes, one of them a write, and nothing says which comes first.
    Race,
    /// Memory is used on a stream that does not wait for the allocation.
    UseBeforeAllocation,
    /// Memory is used after it was given back.
    UseAfterFree,
    /// Memory is given back in stream order, and a use of it may come later.
    FreeBeforeLastUse,
    /// The driver's memory is unmapped or closed while work that uses it may be under way.
    UnmapInUse,
    /// An allocator gave memory out again before the last use by its former owner was over.
    ReuseBeforeLastUse,
    /// An allocator gave out memory that is still held.
    OverlappingBlocks,
    /// Memory was given back while another stream's work may use it, and the allocator was not told of that stream.
    MissingRecord,
    /// The allocator was told of a use by another stream before the last such use.
    EarlyRecord,
    /// A graph uses memory that was given back since it was captured.
    StaleGraphInput,
    /// Memory that only a graph writes is read before the graph was ever launched.
    OutputBeforeLaunch,
    /// Bytes are read that were never written since they were allocated.
    Uninitialised,
    /// A command touches bytes beside the block that it uses.
    OutOfBounds,
}

impl FindingKind {
    /// Returns what it is called in reports.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Race => "data race",
            Self::UseBeforeAllocation => "use before the allocation",
            Self::UseAfterFree => "use after free",
            Self::FreeBeforeLastUse => "free before the last use",
            Self::UnmapInUse => "unmapped while in use",
            Self::ReuseBeforeLastUse => "reuse before the last use is done",
            Self::OverlappingBlocks => "memory given out twice",
            Self::MissingRecord => "missing record_stream",
            Self::EarlyRecord => "record_use before the last use",
            Self::StaleGraphInput => "the graph's external input has died",
            Self::OutputBeforeLaunch => "output read before the graph was launched",
            Self::Uninitialised => "read of uninitialised memory",
            Self::OutOfBounds => "out of bounds",
        }
    }
}

/// One of the two pieces of work that a finding is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// The place that it comes from.
    pub site: Site,
    /// The graph launch that it was part of.
    pub launch: Option<Site>,
    /// The call of the program that it was part of, where that is another: a backward pass, say. See [`within`](thalweg_driver::within).
    pub within: Option<Site>,
    /// The way in which it touches the memory; `None` for work that does not (an allocation, a free).
    pub mode: Option<AccessMode>,
    /// The first address that it touches.
    pub start: u64,
    /// The number of bytes that it touches.
    pub bytes: u64,
    /// Whether it touches some of them only, and which is not known.
    pub is_some: bool,
    /// The stream, host thread or graph that it is part of.
    pub actor: String,
    /// Its number among all the program's work, in the order of submission.
    pub number: u64,
}

/// The history of the memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The first address and the bytes of the allocation or block.
    pub range: Option<(u64, u64)>,
    /// The place where it was allocated, and for which stream.
    pub allocated: Option<(Site, String)>,
    /// Each `record_stream` and `record_use` that it had, with the stream.
    pub recorded: Vec<(Site, String)>,
    /// The place where it was freed.
    pub freed: Option<Site>,
}

/// One thing that is wrong with a program, said once per run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the finding.
    pub kind: FindingKind,
    /// Whether it is: else it is possible, since of one of the two it is only known that it touches some bytes of a range, and
    /// nothing has said which.
    pub is_certain: bool,
    /// Whether another host thread knows that the first is over, and may have told the one that submitted the second: by a
    /// mutex, a channel or a flag that the sanitizer was not told of. Then it is not certain either.
    pub is_between_threads: bool,
    /// The work that came first in the order of submission, where there are two.
    pub first: Option<Work>,
    /// The work at which it showed.
    pub second: Work,
    /// The first address and the number of the bytes that both touch.
    pub range: (u64, u64),
    /// The history of the memory.
    pub history: History,
    /// The places where the streams were made that it names, as far as that is known.
    pub streams: Vec<(String, Site)>,
    /// The order that is missing, in one sentence.
    pub missing: String,
    /// The one call that would add it, and where it goes.
    pub advice: String,
}

impl Finding {
    /// Returns whether it is no more than possible: two commands touch some rows each that data chooses, and nothing has said
    /// whether they are the same ones; or one thread has seen the first complete, and may have told the other so by means that
    /// the sanitizer does not see.
    pub fn is_possible(&self) -> bool {
        !self.is_certain
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = match self.mode {
            Some(AccessMode::Read) => " reads",
            Some(AccessMode::Write) => " writes",
            Some(AccessMode::ReadWrite) => " reads and writes",
            None => "",
        };
        write!(f, "{}{does}", self.site)?;
        if self.mode.is_some() {
            let some = if self.is_some { " some of" } else { "" };
            write!(f, "{some} {}", Range(self.start, self.bytes))?;
        }
        write!(f, ", on {}, as number {}", self.actor, self.number)?;
        if let Some(within) = &self.within {
            write!(f, ", within {within}")?;
        }
        if let Some(launch) = &self.launch {
            write!(f, ", launched by {launch}")?;
        }
        Ok(())
    }
}

struct Range(u64, u64);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.1 == 1 { "byte" } else { "bytes" };
        write!(f, "{} {unit} from {:#x} on", self.1, self.0)
    }
}

/// Writes a paragraph with a heading, broken between words and indented below the heading.
fn paragraph(f: &mut fmt::Formatter<'_>, heading: &str, text: &str) -> fmt::Result {
    const INDENT: usize = 12;
    write!(f, "\n  {heading:<width$}", width = INDENT - 2)?;
    let mut column = INDENT;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > INDENT && column + 1 + length > WIDTH {
            write!(f, "\n{:INDENT$}", "")?;
            column = INDENT;
        } else if column > INDENT {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(word)?;
        column += length;
    }
    Ok(())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overlap = if self.is_possible() { ", which they may both touch" } else { "" };
        let title = match (self.is_between_threads, self.kind) {
            (true, FindingKind::Race) => "may race",
            (true, FindingKind::UseBeforeAllocation) => "maybe used before the allocation",
            (_, kind) => kind.title(),
        };
        write!(f, "{title}: {}{overlap}", Range(self.range.0, self.range.1))?;
        if let Some(first) = &self.first {
            paragraph(f, "first:", &first.to_string())?;
            paragraph(f, "then:", &self.second.to_string())?;
        } else {
            paragraph(f, "where:", &self.second.to_string())?;
        }
        let History { range, allocated, recorded, freed } = &self.history;
        let mut memory = Vec::new();
        if let Some((start, bytes)) = range {
            memory.push(Range(*start, *bytes).to_string());
        }
        if let Some((site, owner)) = allocated {
            let whose = if owner.is_empty() { String::new() } else { format!(" for {owner}") };
            memory.push(format!("allocated by {site}{whose}"));
        }
        memory.extend(recorded.iter().map(|(site, stream)| format!("recorded for {stream} by {site}")));
        memory.extend(freed.iter().map(|site| format!("freed by {site}")));
        if !memory.is_empty() {
            paragraph(f, "memory:", &memory.join("; "))?;
        }
        if !self.streams.is_empty() {
            let made = self.streams.iter().map(|(stream, site)| format!("{stream} is of {site}"));
            paragraph(f, "streams:", &made.collect::<Vec<_>>().join("; "))?;
        }
        paragraph(f, "missing:", &self.missing)?;
        paragraph(f, "to do:", &self.advice)
    }
}
