//! An audit as text: the verdict, a table of obstacles, each obstacle's detail and repair, the counts, the savings.
//!
//! A line is as wide as the format requests (`{audit:60}`), by default 100 columns. If the table does not fit, each obstacle has
//! lines of its own instead. Facts that several obstacles share are printed once. Paths are never broken, so that they can be
//! copied.

use std::fmt;

use thalweg_driver::{CaptureMode, SourceLine};

use super::{Audit, Counts, Obstacle};

/// The default width.
const WIDTH: usize = 100;

/// The number of spaces between columns.
const GAP: usize = 2;

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(WIDTH);
        let mode = match self.mode {
            CaptureMode::Global => "global",
            CaptureMode::ThreadLocal => "thread-local",
            CaptureMode::Relaxed => "relaxed",
        };
        let verdict = match self.obstacles.len() {
            0 => format!("This region can be captured ({mode} mode, {}).", self.device),
            1 => {
                format!("This region cannot be captured as it is: 1 obstacle ({mode} mode, {}).", self.device)
            }
            count => {
                format!(
                    "This region cannot be captured as it is: {count} obstacles ({mode} mode, {}).",
                    self.device
                )
            }
        };
        write_wrapped(f, "", &verdict, width)?;
        if !self.obstacles.is_empty() {
            let rows: Vec<[String; 6]> = self.obstacles.iter().enumerate().map(row).collect();
            let widths = widths(&rows);
            f.write_str("\n")?;
            let is_table = widths.iter().sum::<usize>() + GAP * (widths.len() - 1) <= width;
            if is_table {
                write_table(f, &rows, &widths)?;
                f.write_str("\n")?;
            }
            for group in groups(&self.obstacles) {
                write_group(f, &self.obstacles, &rows, &group, is_table, width)?;
            }
        }
        f.write_str("\n")?;
        write_wrapped(f, "", &counts(&self.counts), width)?;
        write_wrapped(f, "", &self.savings_in_words(), width)
    }
}

impl Audit {
    fn savings_in_words(&self) -> String {
        match &self.savings {
            Some(savings) => format!("Predicted: {savings}."),
            None if self.is_simulated => {
                "What a graph would save is measured on a GPU; the simulator only counts.".to_owned()
            }
            None => "No savings: the region submits nothing.".to_owned(),
        }
    }
}

const HEADINGS: [&str; 6] = ["", "obstacle", "operator", "line", "code", "times"];

/// Whether a column is aligned right, as columns of numbers are.
const RIGHT: [bool; 6] = [true, false, false, false, true, true];

fn row((index, obstacle): (usize, &Obstacle)) -> [String; 6] {
    let line = obstacle
        .location()
        .map_or_else(|| "?".to_owned(), |SourceLine { file, line }| format!("{file}:{line}"));
    let code = obstacle.code().map_or_else(|| "-".to_owned(), |code| code.number().to_string());
    [
        (index + 1).to_string(),
        obstacle.kind().to_string(),
        obstacle.operator().to_owned(),
        line,
        code,
        obstacle.count().to_string(),
    ]
}

fn widths(rows: &[[String; 6]]) -> [usize; 6] {
    let mut widths = HEADINGS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn write_table(f: &mut fmt::Formatter<'_>, rows: &[[String; 6]], widths: &[usize; 6]) -> fmt::Result {
    let headings = HEADINGS.map(str::to_owned);
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let padded = if RIGHT[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            line.push_str(&padded);
            line.push_str(&" ".repeat(GAP));
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns the indices of the obstacles that share a kind and a code, in the order in which the region ran into the first of
/// each.
fn groups(obstacles: &[Obstacle]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, obstacle) in obstacles.iter().enumerate() {
        let essence = |index: usize| (obstacles[index].kind(), obstacles[index].code());
        match groups.iter_mut().find(|group| essence(group[0]) == (obstacle.kind(), obstacle.code())) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Writes the facts that the obstacles of a group share, each once: CUDA's answer, the finding, the repair.
fn write_group(
    f: &mut fmt::Formatter<'_>,
    obstacles: &[Obstacle],
    rows: &[[String; 6]],
    group: &[usize],
    is_table: bool,
    width: usize,
) -> fmt::Result {
    let first = &obstacles[group[0]];
    let answer = match first.code() {
        Some(code) => format!("{} ({})", code.name(), code.number()),
        None => "no error of CUDA, and a wrong graph".to_owned(),
    };
    write_wrapped(f, "", &format!("{}: {answer}", sentence(first.kind().name())), width)?;
    let mut said: Vec<&str> = Vec::new();
    for &index in group {
        let [number, _, operator, line, _, times] = &rows[index];
        let detail = obstacles[index].detail();
        let head = format!("  {number:>2}  ");
        if !is_table {
            write_wrapped(f, &head, &format!("{operator}, {times} ×"), width)?;
            writeln!(f, "      {line}")?;
        }
        if said.contains(&detail) {
            continue;
        }
        said.push(detail);
        let same = group.iter().filter(|&&other| obstacles[other].detail() == detail);
        let numbers: Vec<&str> = same.map(|&other| rows[other][0].as_str()).collect();
        let head = if is_table { format!("  {:>2}  ", numbers.join(", ")) } else { "      ".to_owned() };
        write_wrapped(f, &head, &sentence(detail), width)?;
    }
    write_wrapped(f, "  ", &format!("repair: {}", first.repair()), width)
}

fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

/// Writes `12 kernels, 1 copy of 4.0 KiB; 3 allocations of 12 KiB`.
fn counts(counts: &Counts) -> String {
    let mut parts = Vec::new();
    let mut add = |count: u64, one: &str, many: &str| match count {
        0 => {}
        1 => parts.push(format!("1 {one}")),
        count => parts.push(format!("{count} {many}")),
    };
    add(counts.kernels, "kernel", "kernels");
    add(counts.library_calls, "library call", "library calls");
    let (one, many) = (
        format!("copy of {}", bytes(counts.copied_bytes)),
        format!("copies of {} in all", bytes(counts.copied_bytes)),
    );
    add(counts.copies, &one, &many);
    add(counts.fills, "fill", "fills");
    add(counts.host_functions, "host function", "host functions");
    add(counts.graph_launches, "graph launch", "graph launches");
    add(counts.memory_nodes, "stream-ordered allocation or free", "stream-ordered allocations and frees");
    let (one, many) = (
        format!("allocation of {}", bytes(counts.allocated_bytes)),
        format!("allocations of {} in all", bytes(counts.allocated_bytes)),
    );
    add(counts.allocations, &one, &many);
    if parts.is_empty() {
        "It submits nothing.".to_owned()
    } else {
        format!("It submits {}.", parts.join(", "))
    }
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Writes a text whose first line begins with `head` and whose further lines are indented by the width of `head`, broken between
/// words.
fn write_wrapped(f: &mut fmt::Formatter<'_>, head: &str, text: &str, width: usize) -> fmt::Result {
    let indent = head.chars().count();
    let mut line = head.to_owned();
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            writeln!(f, "{line}")?;
            line = " ".repeat(indent);
            column = indent;
        }
        if column > indent {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += length;
    }
    writeln!(f, "{line}")
}
