//! [`Finding`]: the report of a checker, for readers who have never read this code.
//!
//! A finding names two accesses, the memory's history, the missing order and one call that would add it. Its text is at most
//! [`WIDTH`] columns wide.

use std::fmt;

use thalweg_driver::{AccessMode, Label, SourceLine};

/// The width of a report, in columns.
pub const WIDTH: usize = 100;

/// The place in the program that submits work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// The operator (`add`), or the driver's call if no operator was named.
    pub operator: &'static str,
    /// The source line, if it is known.
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
    /// Two accesses to the same bytes, one of them a write, are not ordered.
    Race,
    /// Memory is used on a stream that does not wait for the allocation.
    UseBeforeAllocation,
    /// Memory is used after it was freed.
    UseAfterFree,
    /// Memory is freed in stream order, but a use of it may happen later.
    FreeBeforeLastUse,
    /// The driver's memory is unmapped or closed while work that uses it may be under way.
    UnmapInUse,
    /// An allocator reused memory before the last use by its former owner was complete.
    ReuseBeforeLastUse,
    /// An allocator handed out memory that is still held.
    OverlappingBlocks,
    /// Memory was freed while another stream's work may use it, and that use was not recorded with the allocator.
    MissingRecord,
    /// A use by another stream was recorded with the allocator before that stream's last use of the memory.
    EarlyRecord,
    /// A graph uses memory that was freed after the capture.
    StaleGraphInput,
    /// Memory that only a graph writes is read before the graph was ever launched.
    OutputBeforeLaunch,
    /// Bytes are read that were never written since they were allocated.
    Uninitialised,
    /// A command touches bytes outside the block that it uses.
    OutOfBounds,
}

impl FindingKind {
    /// Returns the title of the kind in reports.
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

/// One of the two pieces of work of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// The place that submitted the work.
    pub site: Site,
    /// The graph launch that the work was part of.
    pub launch: Option<Site>,
    /// The call of the program that the work was part of, if that is a different call: a backward pass, say. See
    /// [`within`](thalweg_driver::within).
    pub within: Option<Site>,
    /// The way in which the work touches the memory; `None` for work that does not (an allocation, a free).
    pub mode: Option<AccessMode>,
    /// The first address that the work touches.
    pub start: u64,
    /// The number of bytes that the work touches.
    pub bytes: u64,
    /// Whether the work touches only some of the bytes, without it being known which.
    pub is_some: bool,
    /// The stream, host thread or graph that the work is part of.
    pub actor: String,
    /// The number of the work among all the program's work, in the order of submission.
    pub number: u64,
}

/// The history of the memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The first address and the size in bytes of the allocation or block.
    pub range: Option<(u64, u64)>,
    /// The place where the memory was allocated, and the stream that it was allocated for.
    pub allocated: Option<(Site, String)>,
    /// Each `record_stream` and `record_use` of the memory, with the stream.
    pub recorded: Vec<(Site, String)>,
    /// The place where the memory was freed.
    pub freed: Option<Site>,
}

/// One error in a program, reported once per run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the finding.
    pub kind: FindingKind,
    /// Whether the finding is certain. If not, it is only possible, because one of the two accesses is only known to touch some
    /// bytes of a range, which were not reported.
    pub is_certain: bool,
    /// Whether another host thread has seen the first complete, and may have notified the one that submitted the second: by a
    /// mutex, a channel or a flag that the sanitizer cannot observe. Then the finding is not certain either.
    pub is_between_threads: bool,
    /// The work that came first in the order of submission, if there are two.
    pub first: Option<Work>,
    /// The work at which the error was detected.
    pub second: Work,
    /// The first address and the number of the bytes that both touch.
    pub range: (u64, u64),
    /// The history of the memory.
    pub history: History,
    /// The names of the streams in the finding, with the places where they were made, as far as these are known.
    pub streams: Vec<(String, Site)>,
    /// The missing order, in one sentence.
    pub missing: String,
    /// The one call that would add the order, and the place for it.
    pub advice: String,
}

impl Finding {
    /// Returns whether the finding is only possible. Either two commands touch rows that are chosen by data, and it was not
    /// reported whether these are the same rows; or one thread has seen the first complete, and may have notified the other by
    /// means that the sanitizer does not see.
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
