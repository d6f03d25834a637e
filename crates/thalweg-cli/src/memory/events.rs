//! `thalweg memory events`: the history, entry by entry; and `thalweg memory at`: the history of one address.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use thalweg::memory_tools::analysis::{BlockLife, lives};
use thalweg::snapshot::{Action, BlockState, Event, Recording, Remarks, StackId};

use super::files;
use super::places::{place, printable};
use super::size::{count, size};
use super::table::Table;
use crate::output::{Failure, Output};

/// Lists the events, entry by entry, with their remarks
#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg memory events snapshot.pickle --find oom --stacks
  thalweg memory events snapshot.pickle --find model.py --from 5000 --count 100")]
pub struct EventsArgs {
    /// A file that _dump_snapshot wrote
    snapshot: PathBuf,
    /// The number of the device [default: the first]
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Only entries with this text in their action, address, frames or remarks
    #[arg(long, value_name = "TEXT")]
    find: Option<String>,
    /// The first entry that is looked at
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    from: usize,
    /// The number of events that are listed
    #[arg(long, value_name = "N", default_value_t = 40)]
    count: usize,
    /// With all frames
    #[arg(long)]
    stacks: bool,
    /// One JSON object per entry
    #[arg(long)]
    json: bool,
}

/// Shows what an address was, and is at the end
#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg memory at snapshot.pickle 0x7f3e2a000000

The exit status is 1 if the address is in no block or segment of the snapshot.")]
pub struct AtArgs {
    /// A file that _dump_snapshot wrote
    snapshot: PathBuf,
    /// An address of the device, such as 0x7f3e2a000000
    #[arg(value_parser = parse_address)]
    address: u64,
    /// The number of the device [default: all]
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// The number of owners that are listed, the latest of all
    #[arg(long, value_name = "N", default_value_t = 40)]
    count: usize,
    /// One JSON object per device
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &EventsArgs) -> Result<ExitCode, Failure> {
    let (path, recording) = read(&arguments.snapshot)?;
    let device = device(arguments.device, &recording)?;
    let from = arguments.from;
    let wanted = arguments.find.as_deref().map(str::to_lowercase);
    let list = List {
        output: Output::standard(),
        recording: &recording,
        first_us: recording.trace(device).find_map(|event| event.time_us),
        is_json: arguments.json,
        has_stacks: arguments.stacks,
    };
    let all = recording.trace(device).zip(recording.remarks(device)).enumerate().skip(from);
    let mut found = all.filter(|(entry, (event, remarks))| {
        wanted.as_deref().is_none_or(|wanted| list.matches(*entry, event, remarks, wanted))
    });
    if !list.is_json {
        let length = count(recording.trace_len(device) as u64);
        list.output.line(2, &format!("{path}, device {device}: {length} entries"));
    }
    let shown: Vec<_> = found.by_ref().take(arguments.count).collect();
    list.print(&shown);
    let more = found.count();
    if !list.is_json {
        let last = shown.last().map_or(from, |(entry, _)| entry + 1);
        let text = match (shown.len(), more) {
            (0, _) => "no such entry".into(),
            (_, 0) => return Ok(ExitCode::SUCCESS),
            (_, more) => format!("{} more: go on with --from {last}", count(more as u64)),
        };
        list.output.line(2, &format!("  {text}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a snapshot, and its name for people.
fn read(path: &Path) -> Result<(std::path::Display<'_>, Recording), Failure> {
    Ok((path.display(), files::read(path)?))
}

/// Returns the selected device; the default is the first.
fn device(wanted: Option<usize>, recording: &Recording) -> Result<usize, Failure> {
    let devices = recording.devices();
    match wanted {
        Some(wanted) if devices.contains(&wanted) => Ok(wanted),
        Some(wanted) => {
            let there = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Err(Failure(format!("nothing is recorded of device {wanted}; there is: {there}")))
        }
        None => Ok(devices.first().copied().unwrap_or(0)),
    }
}

type Row<'r> = (usize, (Event, Remarks<'r>));

/// A list of entries.
struct List<'r> {
    output: Output,
    recording: &'r Recording,
    first_us: Option<i64>,
    is_json: bool,
    has_stacks: bool,
}

impl List<'_> {
    /// Returns whether an entry contains a text, in lower case: in its action, address, frames, or remarks.
    fn matches(&self, entry: usize, event: &Event, remarks: &Remarks<'_>, wanted: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(wanted);
        let frames = event.stack.into_iter().flat_map(|stack| self.recording.stack(stack));
        has(event.action.name())
            || format!("{:#x}", event.address).contains(wanted)
            || entry.to_string() == wanted
            || [remarks.compile_context, remarks.user_metadata, remarks.internal_metadata]
                .into_iter()
                .flatten()
                .any(has)
            || frames
                .into_iter()
                .any(|frame| has(&format!("{}:{} {}", frame.filename, frame.line, frame.name)))
    }

    fn print(&self, rows: &[Row<'_>]) {
        if self.is_json {
            for row in rows {
                self.output.json(&self.json(row));
            }
            return;
        }
        if self.has_stacks {
            for row in rows {
                self.with_stack(row);
            }
            return;
        }
        let mut table = Table::new(&["entry", "ms", "bytes", "address", "what and where"], 4);
        for (entry, (event, remarks)) in rows {
            let (bytes, address) = sizes(event);
            let what = format!(
                "{}: {}{}",
                event.action.name(),
                place(self.recording, event.stack),
                remarks_text(remarks)
            );
            table.row(vec![count(*entry as u64), self.time(event), bytes, address, what]);
        }
        if !table.is_empty() {
            self.output.text(&table.render(self.output.width(), 2));
        }
    }

    fn with_stack(&self, (entry, (event, remarks)): &Row<'_>) {
        let (bytes, address) = sizes(event);
        let time = self.time(event);
        let time = if time.is_empty() { time } else { format!(", at {time} ms") };
        let what = event.action.name();
        let entry = count(*entry as u64);
        self.output
            .line(4, &format!("\n  {entry}  {what}  {bytes}  {address}{time}{}", remarks_text(remarks)));
        stack(&self.output, self.recording, event.stack);
    }

    /// Returns milliseconds since the first entry.
    fn time(&self, event: &Event) -> String {
        let since = event.time_us.zip(self.first_us).map(|(now, first)| now.saturating_sub(first));
        since.map_or_else(String::new, |us| format!("{:.3}", us as f64 / 1000.0))
    }

    fn json(&self, (entry, (event, remarks)): &Row<'_>) -> Value {
        let mut object = json!({
            "entry": entry,
            "action": event.action.name(),
            "address": format!("{:#x}", event.address),
            "size_bytes": event.size_bytes,
            "stream": event.stream.raw(),
            "place": place(self.recording, event.stack),
            "time_us": event.time_us,
        });
        for (key, text) in [
            ("compile_context", remarks.compile_context),
            ("user_metadata", remarks.user_metadata),
            ("internal_metadata", remarks.internal_metadata),
        ] {
            if let Some(text) = text {
                object[key] = text.into();
            }
        }
        object
    }
}

/// Returns the bytes and the address of an entry. For a failed request the address is the device's free memory.
fn sizes(event: &Event) -> (String, String) {
    let address = match event.action {
        Action::Oom => format!("({} free)", size(event.address)),
        Action::Snapshot => String::new(),
        _ => format!("{:#x}", event.address),
    };
    (size(event.size_bytes), address)
}

/// Returns the remarks of the program or the allocator on an entry.
fn remarks_text(remarks: &Remarks<'_>) -> String {
    let compiled = remarks.compile_context.filter(|text| !matches!(*text, "" | "N/A"));
    let mut text = String::new();
    for (name, said) in [
        ("compiled region", compiled),
        ("said", remarks.user_metadata.filter(|text| !text.is_empty())),
        ("allocator", remarks.internal_metadata.filter(|text| !text.is_empty())),
    ] {
        if let Some(said) = said {
            text.push_str(&format!(" [{name}: {}]", printable(said)));
        }
    }
    text
}

/// Prints the frames of a stack, innermost first.
fn stack(output: &Output, recording: &Recording, stack: Option<StackId>) {
    for frame in stack.into_iter().flat_map(|stack| recording.stack(stack)) {
        output.line(
            10,
            &format!("      {}", printable(&format!("{}:{} {}", frame.filename, frame.line, frame.name))),
        );
    }
}

/// Runs `thalweg memory at`.
pub fn at(arguments: &AtArgs) -> Result<ExitCode, Failure> {
    let (path, recording) = read(&arguments.snapshot)?;
    let (output, address) = (Output::standard(), arguments.address);
    let is_wanted = |device: &usize| arguments.device.is_none_or(|wanted| wanted == *device);
    let mut is_known = false;
    for device in recording.devices().into_iter().filter(is_wanted) {
        let mut owners: Vec<BlockLife> = lives(&recording, device).blocks;
        owners.retain(|block| {
            (block.address..block.address.saturating_add(block.size_bytes.max(1))).contains(&address)
        });
        let place_at_end = at_end(&recording, device, address);
        let is_here = !owners.is_empty() || place_at_end.is_some();
        is_known |= is_here;
        if arguments.json {
            output.json(&json_at(&recording, device, address, &owners));
            continue;
        }
        if !is_here {
            continue;
        }
        output.line(2, &format!("{path}, device {device}, {address:#x}"));
        output.line(12, &format!("  at the end{}", place_at_end.unwrap_or_else(|| "  not reserved".into())));
        let mut table = Table::new(&["allocated", "freed", "bytes", "begins at", "where"], 4);
        let earlier = owners.len().saturating_sub(arguments.count);
        if earlier > 0 {
            let text = format!("  {} owners before these: --count N lists more", count(earlier as u64));
            output.line(2, &text);
        }
        for block in &owners[earlier..] {
            let entry = |entry: Option<usize>, other: &str| {
                entry.map_or_else(|| other.to_owned(), |entry| count(entry as u64))
            };
            table.row(vec![
                entry(block.allocated, "before"),
                entry(block.freed, "-"),
                size(block.requested_bytes),
                format!("{:#x}", block.address),
                place(&recording, block.stack),
            ]);
        }
        if !table.is_empty() {
            output.text(&table.render(output.width(), 2));
        }
        if let Some(last) = owners.last() {
            output.line(2, "  The stack of the last of them:");
            stack(&output, &recording, last.stack);
        }
    }
    if is_known {
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.json {
        let of = arguments.device.map_or_else(String::new, |device| format!(" of device {device}"));
        output.line(2, &format!("{path}: no block and no segment{of} was ever at {address:#x}"));
    }
    Ok(ExitCode::FAILURE)
}

/// Prints the block and segment that contain an address when the file was written.
fn at_end(recording: &Recording, device: usize, address: u64) -> Option<String> {
    let within = |start: u64, bytes: u64| (start..start.saturating_add(bytes)).contains(&address);
    for (segment, mut blocks) in recording.segments(device) {
        if !within(segment.address, segment.total_bytes) {
            continue;
        }
        let block = blocks.find(|block| within(block.address, block.size_bytes));
        let block = block.map_or_else(String::new, |block| {
            let state = match block.state {
                BlockState::ActiveAllocated => "live",
                BlockState::ActivePendingFree => "freed, and waiting for other streams",
                BlockState::Inactive => "free",
            };
            format!("in a block of {} ({state}) of ", size(block.size_bytes))
        });
        let kind = if segment.is_expandable { "an expandable segment" } else { "a segment" };
        let pool = match segment.pool_id {
            (0, 0) => String::new(),
            (graph, user) => format!(", private pool ({graph}, {user})"),
        };
        return Some(format!(
            "  {block}{kind} of {} from {:#x} on, stream {}{pool}",
            size(segment.total_bytes),
            segment.address,
            segment.stream.raw(),
        ));
    }
    None
}

fn json_at(recording: &Recording, device: usize, address: u64, owners: &[BlockLife]) -> Value {
    let block = |block: &BlockLife| {
        json!({
            "address": format!("{:#x}", block.address),
            "size_bytes": block.size_bytes,
            "requested_bytes": block.requested_bytes,
            "place": place(recording, block.stack),
            "allocated": block.allocated,
            "freed": block.freed,
        })
    };
    json!({
        "device": device,
        "address": format!("{address:#x}"),
        "blocks": owners.iter().map(block).collect::<Vec<_>>(),
    })
}

/// Reads `0x7f3e2a000000`, or a decimal number.
fn parse_address(text: &str) -> Result<u64, &'static str> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "write an address as 0x7f3e2a000000")
}
