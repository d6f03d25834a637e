//! `thalweg memory`: what a program did with its GPU memory, from the snapshot that PyTorch wrote; no GPU is needed.
//!
//! The figures are those of [`thalweg::memory::analysis`]; here are files, arguments and tables. Each subcommand is a module
//! with a function that takes its [`Arguments`]; [`SUBCOMMANDS`] is the one list of them.
//!
//! # Invariants
//! - A file is only read. Whatever is in it, the outcome is a result or a complaint.
//! - Where the toolbox cannot know, its output says so: memory outside the allocator, what was before the trace, the rules of
//!   `cudaMallocAsync`.
//! - Exit status 1 is for `check` alone. A file that cannot be read is 2: nothing was looked at.

mod arguments;
mod check;
mod diff;
mod events;
mod files;
mod flame;
mod page;
mod places;
mod replay;
mod sections;
mod show;
mod size;
mod table;

use std::process::ExitCode;

use arguments::Arguments;

use crate::output::complain;
use crate::{Command, UsageError};

/// The command.
pub const COMMAND: Command = Command {
    name: "memory",
    summary: "what a PyTorch memory snapshot tells, and what other settings would do",
    usage: "\
usage: thalweg memory show   SNAPSHOT... [--top N] [--card 24GiB]
                             [--category NAME=TEXT]...
                             [--html OUT [--conf KEY:VALUE,...]...]
       thalweg memory replay SNAPSHOT... [--conf KEY:VALUE,...]... [--search]
                             [--policy pytorch|thalweg] [--card 24GiB]
                             [--html OUT]
       thalweg memory diff   BEFORE AFTER [--at end|peak] [--top N]
       thalweg memory check  SNAPSHOT... [--max-reserved 20GiB]
                             [--max-growth 2%]
       thalweg memory events SNAPSHOT [--device N] [--find TEXT] [--from ENTRY]
                             [--count N] [--stacks]
       thalweg memory at     SNAPSHOT ADDRESS [--device N]
       thalweg memory flame  SNAPSHOT... [--at peak|end]

Reads what torch.cuda.memory._dump_snapshot wrote: a pickle, or JSON, packed
with gzip or not; - is standard input. Nothing in a file is run, and no GPU
is needed.

  show    the peaks, what was live then by size and by place, and why the rest
          of the reserved memory was of no use
  replay  the recorded requests again, under other settings: what would have
          been reserved, and whether it would have fitted
  diff    what one snapshot has more of than another
  check   for CI: one line, and exit status 1 if a limit is passed
  events  what happened, entry by entry, with what was said beside it
  at      what an address was, and is at the end
  flame   the live memory by stack, as lines that flame graphs are drawn from

  --json          one JSON object a line
  --html OUT      show, replay: the same and more as a page for a browser, in
                  one file; each --conf is a curve on it
  --top N         how many sizes and places are shown (default: 8)
  --conf CONF     settings to try, as in PYTORCH_CUDA_ALLOC_CONF; may be
                  repeated (default: those that the snapshot was recorded with)
  --policy NAME   pytorch: decides as PyTorch 2.11 does (default);
                  thalweg: as this project's own allocator does
  --card SIZE     the memory of the card, with its unit: 24GiB, 24GB
  --search        tries a list of settings too, and recommends one (see below)
  --category NAME=TEXT  show: what was allocated with TEXT in a
                  frame (file:line function) is NAME's; may be repeated
  --find TEXT     events: those with TEXT in action, address, frames or remarks
  --from ENTRY    events: the first that is looked at
  --count N       events: how many are listed (default: 40)
  --stacks        events: with all frames
  --at MOMENT     flame: the peak (default), or the end;
                  diff: what is live at the end (default), or at the peak
  --max-reserved SIZE   check: the most that may be reserved at once
  --max-growth SHARE    check: 2%, how much the highest live memory of the last
                        quarter of the trace may exceed that of the second

--search tries what is known to help some programs:
  the default
  expandable_segments:True
      segments that grow: no free rests between segments
  max_split_size_mb:64, :128, :256, :512
      large blocks are not cut, and stay whole for large requests
  roundup_power2_divisions:4, :8, :16
      sizes that vary a little become equal, and fit where others were
  garbage_collection_threshold:0.6, :0.8, and :0.8 with max_split_size_mb:128
      old cached segments go back before the card is full; with --card only,
      since without one nothing is collected
It recommends the one that fits and reserves least; of those within 1 % of that,
the one that calls the driver least. Of a trace that lost its beginning only
what is certain to save is recommended. cudaMallocAsync is not tried: of that
there is only an estimate (--conf backend:cudaMallocAsync).

The exit status is 0; 1 if check found a limit passed; 2 if a file could not be
read or the command makes no sense.
",
    run,
};

/// Why a subcommand did not do what it was asked to.
enum Failure {
    Usage(UsageError),
    /// A file could not be read, or not be used: what to say of it.
    File(String),
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Self::Usage(error)
    }
}

type Subcommand = fn(Arguments) -> Result<ExitCode, Failure>;

const SUBCOMMANDS: &[(&str, Subcommand)] = &[
    ("show", show::run),
    ("replay", replay::run),
    ("diff", diff::run),
    ("check", check::run),
    ("events", events::run),
    ("at", events::at),
    ("flame", flame::run),
];

fn run(arguments: &[String]) -> Result<ExitCode, UsageError> {
    let names: Vec<_> = SUBCOMMANDS.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let Some((first, rest)) = arguments.split_first() else {
        return Err(UsageError(format!("which of {names}?")));
    };
    let Some((_, subcommand)) = SUBCOMMANDS.iter().find(|(name, _)| name == first) else {
        return Err(UsageError(format!("there is no `{first}`; there are: {names}")));
    };
    match subcommand(Arguments::parse(rest)?) {
        Ok(code) => Ok(code),
        Err(Failure::Usage(error)) => Err(error),
        Err(Failure::File(text)) => Ok(complain(&format!("thalweg memory {first}: {text}"))),
    }
}
