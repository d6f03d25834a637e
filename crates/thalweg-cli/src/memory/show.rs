//! `thalweg memory show`: a summary of one snapshot.
//!
//! This module and `replay` use each other: a page of one snapshot has the curves of a replay, and a replay prints the same
//! doubts about a snapshot.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use thalweg::memory_tools::analysis::{
    Categories, Doubts, Fragmentation, Moment, OutOfMemoryEntry, Summary, summarise,
};
use thalweg::snapshot::{Action, Gap, Recording};

use super::page::{GpuBytes, Pages};
use super::places::{by_place, place};
use super::replay::WhatIf;
use super::size::{count, share, size};
use super::table::Table;
use super::{files, replay, sections, shortage};
use crate::output::{Failure, Output};

/// Shows the peaks, what was live then, and why the rest of the reserved memory was of no use
#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg memory show snapshot.pickle
  thalweg memory show snapshot.pickle --category 'KV cache=cache.py'
  thalweg memory show snapshot.pickle --html page.html --gpu-memory 24GiB")]
pub struct ShowArgs {
    #[command(flatten)]
    what_if: WhatIf,
    /// The number of sizes and places that are shown
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,
    /// Counts memory that was allocated with TEXT in a frame (file:line function) as NAME; may be repeated
    #[arg(long, value_name = "NAME=TEXT", value_parser = sections::category)]
    category: Vec<(String, String)>,
}

pub fn run(arguments: &ShowArgs) -> Result<ExitCode, Failure> {
    let ShowArgs { what_if: question, top, category } = arguments;
    let (gpu, html, top) = (question.gpu, question.html.as_deref(), *top);
    question.check()?;
    if html.is_none() && !question.conf.is_empty() {
        let text = "--conf draws a curve on the page of --html; for its figures there is `replay`";
        return Err(Failure(text.into()));
    }
    let output = Output::standard();
    let mut is_first = true;
    let categories = Categories::new(category.iter().map(|(name, text)| (&**name, &**text)));
    let mut pages = Pages::new(&question.snapshots, &categories);
    files::each(&question.snapshots, |path, recording| {
        let mut devices = recording.devices();
        // The most important results are first.
        let is_short = |device: &usize| recording.trace(*device).any(|event| event.action == Action::Oom);
        devices.sort_by_key(|device| !is_short(device));
        if devices.is_empty() {
            output.line(2, &format!("{path}: no memory of any device, and no trace"));
        }
        for device in devices {
            let summary = summarise(recording, device);
            let is_told = html.is_some() || !question.json;
            let least_gpu =
                if is_told { replay::least_gpu(question, path, recording, &summary)? } else { None };
            if html.is_some() {
                let curves = if recording.trace_len(device) > 0 {
                    replay::curves(question, path, recording, device)?
                } else {
                    Vec::new()
                };
                pages.add(path, recording, &summary, GpuBytes { gpu, least_gpu }, curves);
            }
            if question.json {
                output.json(&describe(path, recording, &summary, top, &categories));
                continue;
            }
            if !std::mem::take(&mut is_first) {
                output.text("\n");
            }
            let page = Page {
                output: &output,
                recording,
                summary: &summary,
                top,
                gpu,
                categories: &categories,
                least_gpu,
            };
            page.print(path);
        }
        Ok(())
    })?;
    if let Some(html) = html {
        pages.write(html, &question.snapshots)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The output for one device.
struct Page<'p> {
    output: &'p Output,
    recording: &'p Recording,
    summary: &'p Summary,
    top: usize,
    gpu: Option<u64>,
    categories: &'p Categories,
    /// The smallest GPU that would have been enough, if memory ran out and it is known.
    least_gpu: Option<u64>,
}

impl Page<'_> {
    fn print(&self, path: &str) {
        let Summary { device, at_peak, at_end, .. } = self.summary;
        self.output.line(2, &format!("{path}, device {device}"));
        // The most important results are first.
        for failure in &self.summary.out_of_memory {
            self.failure(failure);
        }
        self.totals();
        if let Some(settings) = sections::settings(self.recording) {
            self.fact("settings", &settings);
        }
        for doubt in doubts(self.recording, self.summary, self.gpu) {
            self.fact("doubt", &doubt);
        }
        self.notes();
        if self.summary.entries > 0 {
            self.moment("When most was live", at_peak);
        }
        if self.summary.entries == 0 || at_end.entry != at_peak.entry {
            self.moment("At the end", at_end);
        }
        sections::print_stages(self.output, self.recording, *device, self.top);
        self.pools();
    }

    fn fact(&self, name: &str, text: &str) {
        self.output.line(12, &format!("  {name:<10}{text}"));
    }

    fn totals(&self) {
        let summary = self.summary;
        let Summary { at_end, start, .. } = summary;
        if summary.entries == 0 {
            self.fact("trace", "none: only the moment at which the file was written is known");
            self.fact("reserved", &size(at_end.reserved_bytes));
            self.fact(
                "live",
                &format!("{} in {} blocks", size(at_end.live_bytes), count(at_end.live_blocks as u64)),
            );
        } else {
            let duration =
                summary.duration_us.map_or(String::new(), |us| format!(" over {:.1} s", us as f64 / 1e6));
            self.fact("trace", &format!("{} entries{duration}", count(summary.entries as u64)));
            let bound = if start.is_complete() { "" } else { ">=" };
            let both = |peak, end| format!("{bound}{} at most, {} at the end", size(peak), size(end));
            self.fact("reserved", &both(summary.peak_reserved_bytes, at_end.reserved_bytes));
            self.fact("live", &both(summary.peak_live_bytes, at_end.live_bytes));
            if summary.peak_live_bytes > 0 {
                let ratio = summary.peak_reserved_bytes as f64 / summary.peak_live_bytes as f64;
                let part = if start.is_complete() { "" } else { ", in the recorded part" };
                self.fact("ratio", &format!("{ratio:.3} reserved for each byte live, peak over peak{part}"));
            }
            if let Some(growth) = summary.growth {
                let quarter = "in the last quarter against the second";
                self.fact(
                    "growth",
                    &format!("{:+.1} % of the highest live memory, {quarter}", 100.0 * growth),
                );
            }
        }
        if summary.host_bytes > 0 {
            self.fact("pinned", &format!("{} of host memory", size(summary.host_bytes)));
        }
        if !start.is_complete() && summary.entries > 0 {
            self.fact(
                "before",
                &format!(
                    "the trace begins with {} live in {} blocks: the history was switched on late, or its ring of entries \
                     was full and dropped the beginning. Where these blocks came from is known only if they live on. What was \
                     before can have been more: >= is a lower bound.",
                    size(start.live_bytes),
                    count(start.live_blocks as u64)
                ),
            );
        }
    }

    fn notes(&self) {
        let text = "memory outside the allocator (the driver's context, NCCL, cuBLAS and other libraries, other processes) is \
                    in no snapshot; nvidia-smi shows the sum";
        self.fact("not known", text);
    }

    fn moment(&self, title: &str, moment: &Moment) {
        let Fragmentation {
            active_bytes,
            hard_bytes,
            soft_bytes,
            stream_bytes,
            pool_bytes,
            largest_free_bytes,
        } = moment.fragmentation;
        let entry = if self.summary.entries > 0 {
            format!(" (entry {})", count(moment.entry as u64))
        } else {
            String::new()
        };
        self.output.line(2, &format!("\n{title}{entry}: {} reserved", size(moment.reserved_bytes)));
        let mut table = Table::new(&["", "bytes", "share"], 0);
        for (name, bytes) in [
            ("active, after rounding", active_bytes),
            ("hard: free between live blocks", hard_bytes),
            ("soft: free in segments of their own", soft_bytes),
            ("stream: free, but another stream's", stream_bytes),
            ("free in private pools", pool_bytes),
        ] {
            table.row(vec![name.into(), size(bytes), share(bytes, moment.reserved_bytes)]);
        }
        self.table(&table);
        self.output.line(
            2,
            &format!("  largest free range of stream {}: {}", moment.stream.raw(), size(largest_free_bytes)),
        );
        let mut by_size = Table::new(&["live by size", "blocks", "bytes", "share"], 0);
        for group in moment.by_size.iter().take(self.top) {
            by_size.row(vec![
                format!("{} ({})", size(group.size_bytes), count(group.size_bytes)),
                count(group.blocks as u64),
                size(group.bytes),
                share(group.bytes, moment.live_bytes),
            ]);
        }
        self.table(&by_size);
        let mut table = Table::new(&["bytes", "share", "blocks", "live by place"], 3);
        let places = by_place(self.recording, &moment.by_stack);
        for group in places.iter().take(self.top) {
            table.row(vec![
                size(group.bytes),
                share(group.bytes, moment.live_bytes),
                count(group.blocks as u64),
                group.name.clone(),
            ]);
        }
        self.table(&table);
        self.left_out("places", places.len());
        let categories = sections::by_category(self.recording, moment, self.categories);
        self.table(&sections::category_table(&categories, moment.live_bytes));
    }

    fn table(&self, table: &Table) {
        if !table.is_empty() {
            self.output.text(&table.render(self.output.width(), 2));
        }
    }

    fn left_out(&self, what: &str, all: usize) {
        if let Some(more) = all.checked_sub(self.top).filter(|more| *more > 0) {
            self.output.line(2, &format!("  and {} more {what}", count(more as u64)));
        }
    }

    fn pools(&self) {
        if self.summary.pools.iter().all(|pool| pool.pool_id == (0, 0)) {
            return;
        }
        let mut table = Table::new(&["pool at the end", "segments", "reserved", "active"], 0);
        for pool in &self.summary.pools {
            let (graph, user) = pool.pool_id;
            let name =
                if pool.pool_id == (0, 0) { "shared".into() } else { format!("private ({graph}, {user})") };
            table.row(vec![
                name,
                count(pool.segments as u64),
                size(pool.reserved_bytes),
                size(pool.active_bytes),
            ]);
        }
        self.output.text("\n");
        self.table(&table);
    }

    fn failure(&self, failure: &OutOfMemoryEntry) {
        let text = shortage::in_full(self.recording, failure, self.gpu, self.least_gpu);
        self.output.line(2, &format!("  OUT OF MEMORY at entry {}: {text}", count(failure.entry as u64)));
    }
}

/// Returns the parts of a file that are inconsistent or were not understood, in sentences.
pub fn doubts(recording: &Recording, summary: &Summary, gpu: Option<u64>) -> Vec<String> {
    let Doubts { gap, leaves_out_ends, misplaced_blocks, excess_bytes } = summary.doubts;
    let mut doubts = Vec::new();
    if let Some(Gap { entry, is_one, freed_blocks, allocated_blocks }) = gap {
        let (entry, freed, allocated) =
            (count(entry as u64), count(freed_blocks as u64), count(allocated_blocks as u64));
        let where_ = match is_one {
            true => format!("the history has a gap before entry {entry}, as if it had been off for a while"),
            false => {
                format!("entries are missing in several places of the history, first before entry {entry}")
            }
        };
        doubts.push(format!(
            "{where_}: {freed} blocks were freed and {allocated} allocated unseen. They are put in there; what was reserved \
             before is not known exactly"
        ));
    }
    if leaves_out_ends {
        doubts.push("the recording leaves out when a free is over (free_completed): it counts as over when it is asked for".into());
    }
    for (what, times) in recording.left_out() {
        doubts.push(format!("not understood and left out: {what} ({} times)", count(*times)));
    }
    if misplaced_blocks > 0 {
        doubts.push(format!(
            "the file contradicts itself: {} blocks are not within their segments",
            count(misplaced_blocks as u64)
        ));
    }
    if excess_bytes > 0 {
        doubts.push(format!(
            "the file contradicts itself: up to {} more are live than reserved. Segments are missing in it, or entries",
            size(excess_bytes)
        ));
    }
    if let Some(gpu) = gpu.filter(|gpu| *gpu < summary.peak_reserved_bytes) {
        doubts.push(format!(
            "--gpu-memory is {}, and the recording reserved {}: is it the right size, and the right unit (GiB, not GB)?",
            size(gpu),
            size(summary.peak_reserved_bytes)
        ));
    }
    doubts
}

fn describe(
    path: &str,
    recording: &Recording,
    summary: &Summary,
    top: usize,
    categories: &Categories,
) -> Value {
    let pools = summary.pools.iter().map(|pool| {
        json!({
            "pool_id": format!("{}_{}", pool.pool_id.0, pool.pool_id.1),
            "segments": pool.segments,
            "reserved_bytes": pool.reserved_bytes,
            "active_bytes": pool.active_bytes,
        })
    });
    let failures = summary.out_of_memory.iter().map(|failure| {
        json!({
            "entry": failure.entry,
            "requested_bytes": failure.requested_bytes,
            "device_free_bytes": failure.device_free_bytes,
            "reserved_bytes": failure.reserved_bytes,
            "place": place(recording, failure.stack),
        })
    });
    json!({
        "snapshot": path,
        "device": summary.device,
        "entries": summary.entries,
        "peak_live_bytes": summary.peak_live_bytes,
        "peak_reserved_bytes": summary.peak_reserved_bytes,
        "host_bytes": summary.host_bytes,
        "starts_empty": summary.start.is_complete(),
        "start_live_bytes": summary.start.live_bytes,
        "start_reserved_bytes": summary.start.reserved_bytes,
        "doubts": doubts(recording, summary, None).join("; "),
        "growth": summary.growth,
        "stages": sections::json_stages(recording, summary.device),
        "settings": sections::settings(recording).unwrap_or_default(),
        "at_peak": json_moment(recording, &summary.at_peak, top, categories),
        "at_end": json_moment(recording, &summary.at_end, top, categories),
        "pools": pools.collect::<Vec<_>>(),
        "out_of_memory": failures.collect::<Vec<_>>(),
    })
}

fn json_moment(recording: &Recording, moment: &Moment, top: usize, categories: &Categories) -> Value {
    let by_size =
        moment.by_size.iter().take(top).map(
            |group| json!({ "size_bytes": group.size_bytes, "blocks": group.blocks, "bytes": group.bytes }),
        );
    let places = by_place(recording, &moment.by_stack);
    let by_stack = places
        .iter()
        .take(top)
        .map(|group| json!({ "place": group.name, "blocks": group.blocks, "bytes": group.bytes }));
    let by_category = sections::by_category(recording, moment, categories)
        .into_iter()
        .map(|(name, blocks, bytes)| json!({ "category": name, "blocks": blocks, "bytes": bytes }));
    json!({
        "entry": moment.entry,
        "live_bytes": moment.live_bytes,
        "live_blocks": moment.live_blocks,
        "reserved_bytes": moment.reserved_bytes,
        "active_bytes": moment.fragmentation.active_bytes,
        "hard_bytes": moment.fragmentation.hard_bytes,
        "soft_bytes": moment.fragmentation.soft_bytes,
        "stream_bytes": moment.fragmentation.stream_bytes,
        "pool_bytes": moment.fragmentation.pool_bytes,
        "largest_free_bytes": moment.fragmentation.largest_free_bytes,
        "by_size": by_size.collect::<Vec<_>>(),
        "by_stack": by_stack.collect::<Vec<_>>(),
        "by_category": by_category.collect::<Vec<_>>(),
    })
}
