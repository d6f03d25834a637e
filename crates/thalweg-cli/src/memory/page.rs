//! `--html`: the data of the page of some snapshots.
//!
//! [`Pages`] turns the analysis of one device after the other into a [`PageModel`]: lives into rows, stacks into a table that all
//! devices share, the summary into the headline. Its figures have the same names as in `--json`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thalweg::memory_tools::analysis::{Categories, Lives, Stage, Summary, lives, stages};
use thalweg::memory_tools::report::{
    BlockLife, Curve, DevicePage, Figure, FigureValue, Mark, MarkKind, PageModel, SegmentLife, StageRow, Tone,
};
use thalweg::snapshot::StreamId;
use thalweg::snapshot::{Action, Recording, SettingValue};

use super::shortage;
use super::size::{count, size};
use super::stacks::PageStacks;
use crate::output::Failure;

/// The share of the reserved memory above which hard fragmentation is highlighted.
const NOTABLE: f64 = 0.05;

/// Sizes of GPUs, in bytes.
#[derive(Clone, Copy)]
pub struct GpuBytes {
    /// The size of the GPU that the program ran on.
    pub gpu: Option<u64>,
    /// The smallest GPU that would have been enough, if memory ran out.
    pub least_gpu: Option<u64>,
}

/// A model under construction.
pub struct Pages<'c> {
    model: PageModel,
    categories: &'c Categories,
    stacks: PageStacks,
}

impl<'c> Pages<'c> {
    /// Creates an empty page of these snapshots.
    pub fn new(paths: &[PathBuf], categories: &'c Categories) -> Self {
        let model = PageModel {
            title: paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(", "),
            categories: categories.names().to_vec(),
            ..PageModel::default()
        };
        Self { model, categories, stacks: PageStacks::default() }
    }

    /// Writes the page into a file atomically: an existing file stays until the page is complete. `read` are the files that it
    /// was made from.
    pub fn write(self, path: &Path, read: &[PathBuf]) -> Result<(), Failure> {
        refuse_input(path, read)?;
        write_whole(path, |file| thalweg::memory_tools::report::write(&self.model, file))
            .map_err(|error| Failure(format!("{}: {error}", path.display())))
    }

    /// Adds one device of one snapshot, with the curves of other settings.
    pub fn add(
        &mut self,
        path: &str,
        recording: &Recording,
        summary: &Summary,
        gpus: GpuBytes,
        curves: Vec<Curve>,
    ) {
        let device = summary.device;
        let Lives { blocks, segments } = lives(recording, device);
        let stacks = self.stacks.add(&mut self.model, recording, &blocks, self.categories);
        let mut streams = Names::default();
        let mut pools = Names::default();
        // The shared pool is first, even if it is not used.
        pools.index((0, 0), pool_name);
        let blocks = blocks.iter().map(|block| {
            let stack = stacks.get(block.stack);
            BlockLife {
                allocated: event(block.allocated),
                freed: event(block.freed),
                completed: event(block.completed),
                address: block.address,
                size_bytes: block.size_bytes,
                requested_bytes: block.requested_bytes,
                stream: streams.index(block.stream, stream_name),
                pool: pools.index(block.pool_id, pool_name),
                category: stack.map_or(0, |(_, category)| category),
                stack: stack.map(|(number, _)| number),
            }
        });
        let blocks = blocks.collect();
        let segments = segments.iter().map(|segment| SegmentLife {
            taken: event(segment.taken),
            returned: event(segment.returned),
            address: segment.address,
            size_bytes: segment.size_bytes,
            stream: streams.index(segment.stream, stream_name),
            pool: pools.index(segment.pool_id, pool_name),
            is_expandable: segment.is_expandable,
        });
        let segments = segments.collect();
        let mut findings = findings(recording, summary, gpus);
        if let Some(depth) = stacks.depth {
            findings.push(format!(
                "The stacks are too many for a page: of each there is the frame that tells most, and what called it, {} frames at most.",
                count(depth as u64)
            ));
        }
        let times: Option<Vec<i64>> = recording.trace(device).map(|event| event.time_us).collect();
        self.model.devices.push(DevicePage {
            name: format!("{path}, device {device}"),
            event_count: event(Some(recording.trace_len(device))).unwrap_or(0),
            times_us: times.unwrap_or_default(),
            streams: streams.names,
            pools: pools.names,
            blocks,
            segments,
            marks: marks(recording, device),
            curves,
            figures: figures(summary),
            findings,
            gpu_bytes: gpus.gpu,
            stages: stages(recording, device).into_iter().map(stage_row).collect(),
            settings: recorded_settings(recording),
        });
    }
}

/// Checks that a page does not overwrite one of the files that it is made from.
///
/// # Errors
/// If the page's file is one of them, by whatever name.
pub fn refuse_input(page: &Path, read: &[PathBuf]) -> Result<(), Failure> {
    let Ok(there) = page.metadata() else { return Ok(()) };
    let is_page = |path: &&PathBuf| {
        path.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
    };
    match read.iter().find(is_page) {
        Some(path) => Err(Failure(format!(
            "--html {} would destroy the snapshot {}: name another file",
            page.display(),
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Writes a temporary file in the same folder, and renames it when it is complete. A target that is not a file, such as a pipe,
/// is written directly.
fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if place.metadata().is_ok_and(|there| !there.is_file()) {
        let mut file = BufWriter::new(File::options().write(true).open(&place)?);
        return write(&mut file).and_then(|()| file.flush());
    }
    let mut beside = place.clone().into_os_string();
    beside.push(format!(".{}.part", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = File::create(&beside).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner()?.sync_all()?;
        fs::rename(&beside, &place)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Numbers for things, in order of first use, with their names.
struct Names<T> {
    numbers: HashMap<T, u16>,
    names: Vec<String>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), names: Vec::new() }
    }
}

impl<T: Copy + Eq + std::hash::Hash> Names<T> {
    /// Returns the number of a thing. After 65 536 things, new ones share the last number.
    fn index(&mut self, thing: T, name: fn(T) -> String) -> u16 {
        *self.numbers.entry(thing).or_insert_with(|| {
            if self.names.len() <= usize::from(u16::MAX) {
                self.names.push(name(thing));
            }
            (self.names.len() - 1) as u16
        })
    }
}

fn stage_row(stage: Stage) -> StageRow {
    StageRow {
        name: stage.name.to_string(),
        times: u32::try_from(stage.times).unwrap_or(u32::MAX),
        duration_us: stage.duration_us,
        peak_live_bytes: stage.peak_live_bytes,
        peak_own_bytes: stage.peak_own_bytes,
        peak_reserved_bytes: stage.peak_reserved_bytes,
        peak_position: event(Some(stage.peak_entry)).unwrap_or(0),
    }
}

/// Returns the allocator's settings when the file was written, as people write them.
pub fn recorded_settings(recording: &Recording) -> Vec<(String, String)> {
    let value = |value: &SettingValue| match value {
        SettingValue::None => "not set".to_owned(),
        SettingValue::Bool(true) => "True".to_owned(),
        SettingValue::Bool(false) => "False".to_owned(),
        SettingValue::Int(number) => number.to_string(),
        SettingValue::Float(number) => number.to_string(),
        SettingValue::Text(text) => text.to_string(),
        SettingValue::Table(rows) => {
            rows.iter().map(|(key, number)| format!("{key}:{number}")).collect::<Vec<_>>().join(", ")
        }
    };
    recording.settings().iter().map(|(name, set)| (name.to_string(), value(set))).collect()
}

fn stream_name(stream: StreamId) -> String {
    if stream.raw() == 0 { "default stream".into() } else { format!("stream {:#x}", stream.raw()) }
}

fn pool_name(id: (u64, u64)) -> String {
    if id == (0, 0) { "shared pool".into() } else { format!("private pool ({}, {})", id.0, id.1) }
}

/// Returns an entry's number in a page's format. A file of four thousand million entries would not fit in memory.
fn event(entry: Option<usize>) -> Option<u32> {
    entry.map(|entry| u32::try_from(entry).expect("a recording has fewer than 2^32 entries"))
}

fn marks(recording: &Recording, device: usize) -> Vec<Mark> {
    let trace = recording.trace(device).enumerate();
    let of_note = trace.filter_map(|(entry, seen)| {
        let (kind, text) = match seen.action {
            Action::Oom => {
                let text = shortage::in_short(recording, seen.size_bytes, seen.stack, seen.address);
                (MarkKind::OutOfMemory, text)
            }
            Action::Snapshot => (MarkKind::Snapshot, "a snapshot was taken".into()),
            _ => return None,
        };
        Some(Mark { event: event(Some(entry))?, kind, text })
    });
    of_note.collect()
}

fn figures(summary: &Summary) -> Vec<Figure> {
    let bytes = |key: &str, label: &str, bytes: u64, note: &str, tone| Figure {
        key: key.into(),
        label: label.into(),
        value: FigureValue::Bytes(bytes),
        note: note.into(),
        tone,
    };
    let lost = &summary.at_peak.fragmentation;
    let is_notable = |bytes: u64| bytes as f64 > NOTABLE * summary.at_peak.reserved_bytes as f64;
    let tone = |bytes| if is_notable(bytes) { Tone::Warning } else { Tone::Plain };
    let mut figures = vec![
        bytes(
            "peak_live_bytes",
            "Peak live",
            summary.peak_live_bytes,
            "asked for and not yet free",
            Tone::Plain,
        ),
        bytes(
            "peak_reserved_bytes",
            "Peak reserved",
            summary.peak_reserved_bytes,
            "taken from the driver",
            Tone::Plain,
        ),
        bytes(
            "hard_bytes",
            "Hard fragmentation",
            lost.hard_bytes,
            "at the peak, between live blocks",
            tone(lost.hard_bytes),
        ),
        bytes(
            "soft_bytes",
            "Soft fragmentation",
            lost.soft_bytes,
            "at the peak, in idle segments",
            tone(lost.soft_bytes),
        ),
        bytes(
            "stream_bytes",
            "Other streams",
            lost.stream_bytes,
            "at the peak, idle there",
            tone(lost.stream_bytes),
        ),
        bytes(
            "pool_bytes",
            "Private pools",
            lost.pool_bytes,
            "at the peak, idle there",
            tone(lost.pool_bytes),
        ),
        Figure {
            key: "entries".into(),
            label: "Events".into(),
            value: FigureValue::Count(summary.entries as u64),
            note: String::new(),
            tone: Tone::Plain,
        },
    ];
    if let Some(failure) = summary.out_of_memory.first() {
        let note = "asked for when memory ran out";
        figures
            .insert(0, bytes("requested_bytes", "Out of memory", failure.requested_bytes, note, Tone::Bad));
    }
    figures
}

fn findings(recording: &Recording, summary: &Summary, GpuBytes { gpu, least_gpu }: GpuBytes) -> Vec<String> {
    let failures = summary.out_of_memory.iter().map(|failure| {
        let text = shortage::in_full(recording, failure, gpu, least_gpu);
        format!("Memory ran out at event {}: {text}", count(failure.entry as u64))
    });
    let mut findings: Vec<String> = failures.collect();
    if summary.entries == 0 {
        findings.push("There is no trace: only the moment at which the file was written is known.".into());
    } else if !summary.start.is_complete() {
        let live = size(summary.start.live_bytes);
        findings.push(format!(
            "The trace begins with {live} live: what was before is known only by what remained of it."
        ));
    }
    findings.push(
        "Memory outside the allocator (the driver's context, libraries, other processes) is in no snapshot."
            .into(),
    );
    findings
}
