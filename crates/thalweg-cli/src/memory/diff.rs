//! `thalweg memory diff`: the growth from one snapshot to another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use thalweg::memory_tools::analysis::{self, Growth, Moment, Summary, summarise};

use super::files;
use super::moment::At;
use super::places::place_of;
use super::size::{change, count, size};
use super::table::Table;
use crate::output::{Failure, Output};

/// Shows the memory that grew from one snapshot to another
#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg memory diff before.pickle after.pickle --at peak")]
pub struct DiffArgs {
    /// The earlier snapshot
    before: PathBuf,
    /// The later snapshot
    after: PathBuf,
    /// The moment at which what is live is compared
    #[arg(long, value_name = "MOMENT", default_value = "end")]
    at: At,
    /// The number of sizes and places that are shown
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,
    /// One JSON object per device
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &DiffArgs) -> Result<ExitCode, Failure> {
    let DiffArgs { at, top, .. } = *arguments;
    let (before_path, after_path) = (arguments.before.display(), arguments.after.display());
    let (before, after) = (files::read(&arguments.before)?, files::read(&arguments.after)?);
    let mut devices = before.devices();
    devices.extend(after.devices());
    devices.sort_unstable();
    devices.dedup();
    let output = Output::standard();
    for (index, device) in devices.into_iter().enumerate() {
        let [old, new] = [&before, &after].map(|recording| summarise(recording, device));
        let moments = [at.of(&old), at.of(&new)];
        let (by_size, by_stack) = analysis::diff((&before, moments[0]), (&after, moments[1]));
        let by_place = by_place(by_stack.iter().map(|group| (place_of(group.key.iter().copied()), group)));
        if arguments.json {
            output.json(&describe(device, [&old, &new], moments, &by_size, &by_place, top));
            continue;
        }
        if index > 0 {
            output.text("\n");
        }
        output.line(2, &format!("device {device}: {before_path} -> {after_path}"));
        output.text(&totals([&old, &new], moments).render(output.width(), 2));
        let sizes =
            growth("live by size", &by_size, top, |bytes| format!("{} ({})", size(*bytes), count(*bytes)));
        let places = growth("live by place", &by_place, top, String::clone);
        for table in [sizes, places].iter().filter(|table| !table.is_empty()) {
            output.text("\n");
            output.text(&table.render(output.width(), 2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn totals([old, new]: [&Summary; 2], [old_moment, new_moment]: [&Moment; 2]) -> Table {
    let mut table = Table::new(&["", "before", "after", "change"], 0);
    for (name, before, after) in [
        ("peak reserved", old.peak_reserved_bytes, new.peak_reserved_bytes),
        ("peak live", old.peak_live_bytes, new.peak_live_bytes),
        ("live, compared below", old_moment.live_bytes, new_moment.live_bytes),
    ] {
        let difference = i128::from(after) - i128::from(before);
        table.row(vec![name.into(), size(before), size(after), change(difference)]);
    }
    table
}

fn growth<K>(name: &'static str, groups: &[Growth<K>], top: usize, text: impl Fn(&K) -> String) -> Table {
    let mut table = Table::new(&["change", "before", "after", "blocks", name], 4);
    for group in chosen(groups, top) {
        let (before, after) = group.blocks;
        table.row(vec![
            change(group.change_bytes()),
            size(group.bytes.0),
            size(group.bytes.1),
            format!("{:+}", after as i128 - before as i128),
            text(&group.key),
        ]);
    }
    table
}

/// Returns the largest changes in both directions, growth first.
fn chosen<K>(groups: &[Growth<K>], top: usize) -> Vec<&Growth<K>> {
    let mut chosen: Vec<_> = groups.iter().collect();
    chosen.sort_by_key(|group| std::cmp::Reverse(group.change_bytes().unsigned_abs()));
    chosen.truncate(top);
    chosen.sort_by_key(|group| std::cmp::Reverse(group.change_bytes()));
    chosen
}

/// Groups stacks by their places, without stacks whose memory is the same in both snapshots.
fn by_place<'g, K: 'g>(groups: impl Iterator<Item = (String, &'g Growth<K>)>) -> Vec<Growth<String>> {
    let mut places: BTreeMap<String, Growth<String>> = BTreeMap::new();
    for (name, group) in groups {
        let empty = || Growth { key: name.clone(), blocks: (0, 0), bytes: (0, 0) };
        let place = places.entry(name.clone()).or_insert_with(empty);
        place.blocks = (place.blocks.0 + group.blocks.0, place.blocks.1 + group.blocks.1);
        place.bytes =
            (place.bytes.0.saturating_add(group.bytes.0), place.bytes.1.saturating_add(group.bytes.1));
    }
    places
        .into_values()
        .filter(|place| place.bytes.0 != place.bytes.1 || place.blocks.0 != place.blocks.1)
        .collect()
}

fn describe(
    device: usize,
    [old, new]: [&Summary; 2],
    [old_moment, new_moment]: [&Moment; 2],
    by_size: &[Growth<u64>],
    by_place: &[Growth<String>],
    top: usize,
) -> Value {
    fn rows<K: Clone + Into<Value>>(name: &str, groups: &[Growth<K>], top: usize) -> Vec<Value> {
        let row = |group: &Growth<K>| {
            json!({
                name: group.key.clone().into(),
                "blocks_before": group.blocks.0,
                "blocks_after": group.blocks.1,
                "bytes_before": group.bytes.0,
                "bytes_after": group.bytes.1,
            })
        };
        chosen(groups, top).into_iter().map(row).collect()
    }
    json!({
        "device": device,
        "peak_reserved_bytes_before": old.peak_reserved_bytes,
        "peak_reserved_bytes_after": new.peak_reserved_bytes,
        "peak_live_bytes_before": old.peak_live_bytes,
        "peak_live_bytes_after": new.peak_live_bytes,
        "live_bytes_before": old_moment.live_bytes,
        "live_bytes_after": new_moment.live_bytes,
        "by_size": rows("size_bytes", by_size, top),
        "by_stack": rows("place", by_place, top),
    })
}
