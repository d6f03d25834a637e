//! `thalweg memory diff`: what grew from one snapshot to another.

use std::process::ExitCode;

use std::collections::BTreeMap;

use thalweg::memory::analysis::{self, Growth, Moment, Summary, summarise};

use super::arguments::Arguments;
use super::places::place_of;
use super::size::{change, count, size};
use super::table::Table;
use super::{Failure, files};
use crate::UsageError;
use crate::output::{Object, Output};

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    arguments.only(&["--top", "--at"])?;
    let top = arguments.top()?;
    let moment: fn(&Summary) -> &Moment = match arguments.value("--at") {
        None | Some("end") => |summary| &summary.at_end,
        Some("peak") => |summary| &summary.at_peak,
        Some(other) => return Err(UsageError(format!("--at takes end or peak, not `{other}`")).into()),
    };
    let [before, after] = arguments.files()? else {
        return Err(UsageError("two snapshots are compared, the earlier one first".into()).into());
    };
    let (before_path, after_path) = (before, after);
    let (before, after) = (files::read(before)?, files::read(after)?);
    let mut devices = before.devices();
    devices.extend(after.devices());
    devices.sort_unstable();
    devices.dedup();
    let output = Output::standard();
    for (index, device) in devices.into_iter().enumerate() {
        let [old, new] = [&before, &after].map(|recording| summarise(recording, device));
        let (by_size, by_stack) = analysis::diff((&before, moment(&old)), (&after, moment(&new)));
        let by_place = by_place(by_stack.iter().map(|group| (place_of(group.key.iter().copied()), group)));
        if arguments.has("--json") {
            let moments = [moment(&old), moment(&new)];
            output.text(&json(device, [&old, &new], moments, &by_size, &by_place, top).finish());
            continue;
        }
        if index > 0 {
            output.text("\n");
        }
        output.line(2, &format!("device {device}: {before_path} -> {after_path}"));
        output.text(&totals([&old, &new], [moment(&old), moment(&new)]).render(output.width(), 2));
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

/// What changed most, in either direction; what grew is first.
fn chosen<K>(groups: &[Growth<K>], top: usize) -> Vec<&Growth<K>> {
    let mut chosen: Vec<_> = groups.iter().collect();
    chosen.sort_by_key(|group| std::cmp::Reverse(group.change_bytes().unsigned_abs()));
    chosen.truncate(top);
    chosen.sort_by_key(|group| std::cmp::Reverse(group.change_bytes()));
    chosen
}

/// Groups of stacks by their places. What is the same in both is left out.
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

fn json(
    device: usize,
    [old, new]: [&Summary; 2],
    [old_moment, new_moment]: [&Moment; 2],
    by_size: &[Growth<u64>],
    by_place: &[Growth<String>],
    top: usize,
) -> Object {
    let figures = |object: Object, blocks: (usize, usize), bytes: (u64, u64)| {
        object
            .integer("blocks_before", blocks.0 as u64)
            .integer("blocks_after", blocks.1 as u64)
            .integer("bytes_before", bytes.0)
            .integer("bytes_after", bytes.1)
    };
    Object::new()
        .integer("device", device as u64)
        .integer("peak_reserved_bytes_before", old.peak_reserved_bytes)
        .integer("peak_reserved_bytes_after", new.peak_reserved_bytes)
        .integer("peak_live_bytes_before", old.peak_live_bytes)
        .integer("peak_live_bytes_after", new.peak_live_bytes)
        .integer("live_bytes_before", old_moment.live_bytes)
        .integer("live_bytes_after", new_moment.live_bytes)
        .objects(
            "by_size",
            chosen(by_size, top).into_iter().map(|group| {
                figures(Object::new().integer("size_bytes", group.key), group.blocks, group.bytes)
            }),
        )
        .objects(
            "by_stack",
            chosen(by_place, top)
                .into_iter()
                .map(|group| figures(Object::new().string("place", &group.key), group.blocks, group.bytes)),
        )
}
