//! The sections of `show` besides the two moments: the allocator's settings, the memory of each stage, the categories of memory.

use serde_json::{Value, json};
use thalweg::memory_tools::analysis::{Categories, Moment, Stage, stages};
use thalweg::snapshot::Recording;

use super::page::recorded_settings;
use super::places::printable;
use super::size::{count, share, size};
use super::table::Table;
use crate::output::Output;

/// Returns the settings in the file, in one line, without those that have their default values.
pub fn settings(recording: &Recording) -> Option<String> {
    let set: Vec<String> = recorded_settings(recording)
        .into_iter()
        .filter(|(name, value)| !is_default(name, value))
        .map(|(name, value)| printable(&format!("{name}:{value}")))
        .collect();
    match (recording.settings().is_empty(), set.is_empty()) {
        (true, _) => None,
        (false, true) => Some("PyTorch's defaults".into()),
        (false, false) => Some(set.join(", ")),
    }
}

/// Returns whether a setting has its default value.
fn is_default(name: &str, value: &str) -> bool {
    let is_nothing = |value: &str| matches!(value, "not set" | "" | "False" | "0" | "0.0" | "-1");
    // A table has a figure for each size; it has its default value if all are zero.
    let values = value.split(", ").map(|part| part.rsplit(':').next().unwrap_or(part));
    name == "pinned_num_register_threads" && value == "1"
        || name != "PYTORCH_CUDA_ALLOC_CONF" && values.clone().all(is_nothing)
        || is_nothing(value)
}

/// Prints the stages that the program marked, as a table.
pub fn print_stages(output: &Output, recording: &Recording, device: usize, top: usize) {
    let stages = stages(recording, device);
    if stages.is_empty() {
        return;
    }
    output.text("\n");
    let mut table = Table::new(&["stage", "times", "took", "peak live", "own", "reserved"], 0);
    for stage in stages.iter().take(top) {
        table.row(vec![
            printable(&stage.name),
            count(stage.times as u64),
            format!("{:.3} s", stage.duration_us as f64 / 1e6),
            size(stage.peak_live_bytes),
            size(stage.peak_own_bytes),
            size(stage.peak_reserved_bytes),
        ]);
    }
    output.text(&table.render(output.width(), 2));
    if let Some(more) = stages.len().checked_sub(top).filter(|more| *more > 0) {
        output.line(2, &format!("  and {} more stages", count(more as u64)));
    }
}

/// Reads a rule of `--category`: `NAME=TEXT`.
pub fn category(rule: &str) -> Result<(String, String), &'static str> {
    let parts = rule.split_once('=').filter(|(name, text)| !name.is_empty() && !text.is_empty());
    parts.map(|(name, text)| (name.to_owned(), text.to_owned())).ok_or("write NAME=TEXT")
}

/// Returns the live bytes of a moment by category: its name, blocks and bytes, the most first.
pub fn by_category<'c>(
    recording: &Recording,
    moment: &Moment,
    categories: &'c Categories,
) -> Vec<(&'c str, usize, u64)> {
    let mut sums = vec![(0, 0_u64); categories.names().len()];
    let mut sorting = categories.over(recording);
    for group in &moment.by_stack {
        let (blocks, bytes) = &mut sums[sorting.category(group.stack)];
        *blocks += group.blocks;
        *bytes = bytes.saturating_add(group.bytes);
    }
    let named = categories.names().iter().zip(sums);
    let mut rows: Vec<_> = named
        .filter(|(_, (blocks, _))| *blocks > 0)
        .map(|(name, (blocks, bytes))| (&**name, blocks, bytes))
        .collect();
    rows.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    rows
}

/// Returns the table of categories.
pub fn category_table(rows: &[(&str, usize, u64)], live_bytes: u64) -> Table {
    let mut table = Table::new(&["bytes", "share", "blocks", "live by category"], 3);
    for (name, blocks, bytes) in rows {
        table.row(vec![size(*bytes), share(*bytes, live_bytes), count(*blocks as u64), printable(name)]);
    }
    table
}

/// Returns the stages for scripts.
pub fn json_stages(recording: &Recording, device: usize) -> Vec<Value> {
    let stage = |stage: Stage| {
        json!({
            "name": *stage.name,
            "times": stage.times,
            "duration_us": stage.duration_us,
            "peak_live_bytes": stage.peak_live_bytes,
            "peak_own_bytes": stage.peak_own_bytes,
            "peak_reserved_bytes": stage.peak_reserved_bytes,
            "peak_entry": stage.peak_entry,
        })
    };
    stages(recording, device).into_iter().map(stage).collect()
}
