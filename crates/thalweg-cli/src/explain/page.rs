//! The page: one HTML file without scripts, which needs nothing else. Texts of the file reach it as escaped text only.

use std::fmt::Write;

use thalweg::memory_tools::report::LOOK;

use super::model::{Segment, Step, totals};

const STYLE: &str = include_str!("style.css");

/// The number of colours of kernels, which repeat.
const COLOURS: usize = 6;

/// Returns a text with the characters escaped that HTML gives a meaning.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a number of bytes in the unit that suits it.
fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = (count as f64, "bytes");
    for unit in units {
        if shown.0 < 1024.0 {
            break;
        }
        shown = (shown.0 / 1024.0, unit);
    }
    if shown.1 == "bytes" { format!("{count} bytes") } else { format!("{:.1} {}", shown.0, shown.1) }
}

/// Returns the page of all segments.
pub fn page(segments: &[Segment]) -> String {
    let (loops, kernels) = totals(segments);
    let moved = [0, 1].map(|which| segments.iter().map(|segment| segment.traffic[which]).sum());
    let arena = segments.iter().map(|segment| segment.arena).max().unwrap_or(0);
    let tile = |value: &str, name: &str| {
        format!("<div class=figure><div class=label>{name}</div><div class=value>{value}</div></div>")
    };
    let tiles = [
        tile(&segments.len().to_string(), "Segments"),
        tile(&format!("{loops} → {kernels}"), "Loops → kernels"),
        tile(&format!("{} → {}", bytes(moved[0]), bytes(moved[1])), "Memory traffic"),
        tile(&bytes(arena), "Largest arena"),
    ]
    .concat();
    let sections: String =
        segments.iter().zip(1..).map(|(segment, number)| section(segment, number)).collect();
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Compiled segments</title>\n\
         <meta name=viewport content=\"width=device-width\">\n\
         <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <style>{LOOK}{STYLE}</style>\n<header><h1>thalweg explain <span>compiled functions: segments, kernels and \
         memory</span></h1></header>\n<main><section class=figures aria-label=Summary>{tiles}</section>\n{sections}</main></html>\n"
    )
}

fn section(segment: &Segment, number: usize) -> String {
    let [before, after] = segment.traffic;
    let mut html = format!(
        "<section class=panel aria-labelledby=segment{number}><h2 id=segment{number}>Segment {number} <span>ends before {}</span></h2>\n<p>{} fused into {}. Memory traffic: {} instead of {}. \
         Allocated: {}, of which {} in the arena.</p>\n<div class=columns>",
        escaped(&segment.end),
        counted(segment.nodes.len(), "loop"),
        counted(segment.steps.len(), "kernel"),
        bytes(after),
        bytes(before),
        bytes(segment.allocated),
        bytes(segment.arena)
    );
    html += &kernels(segment);
    html += &plan(segment);
    html += "</div>\n";
    html += &apart(segment);
    html + "</section>\n"
}

fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// Returns a loop as operator and line.
fn named(name: &str) -> String {
    match name.split_once(" (") {
        Some((operator, line)) => {
            format!("<b>{}</b> <i>{}</i>", escaped(operator), escaped(line.trim_end_matches(')')))
        }
        None => format!("<b>{}</b>", escaped(name)),
    }
}

fn points(step: &Step) -> String {
    let shape = |extents: &[usize]| extents.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
    match step.extents.each_ref().map(|extents| shape(extents)) {
        [rows, inner] if inner.is_empty() => format!("{rows} points"),
        [rows, inner] if rows.is_empty() => format!("one row of {inner}"),
        [rows, inner] => format!("{rows} rows of {inner}"),
    }
}

/// Returns the kernels, each with the loops that it computes.
fn kernels(segment: &Segment) -> String {
    let mut html = String::from("<div class=kernels>");
    for (step, place) in segment.steps.iter().zip(0..) {
        let (reads, writes) = (step.reads.len(), step.writes.len());
        write!(
            html,
            "<div class=\"kernel colour{}\"><h3>Kernel {} <span>{}, reads {reads}, writes {writes}</span></h3><ol>",
            place % COLOURS,
            place + 1,
            points(step)
        )
        .expect("a string grows");
        for &member in &step.members {
            write!(html, "<li>{}</li>", named(&segment.nodes[member])).expect("a string grows");
        }
        html += "</ol></div>";
    }
    let left_out: Vec<usize> =
        (0..segment.nodes.len()).filter(|&node| segment.step_of(node).is_none()).collect();
    if !left_out.is_empty() {
        html += "<div class=\"kernel none\"><h3>Left out</h3><ol>";
        for node in left_out {
            let twin = segment.twins.iter().find(|(_, second)| *second == node);
            let why = match twin {
                Some((first, _)) => format!("the same as {}", named(&segment.nodes[*first])),
                None => "nothing reads it".to_owned(),
            };
            write!(html, "<li>{}: {why}</li>", named(&segment.nodes[node])).expect("a string grows");
        }
        html += "</ol></div>";
    }
    html + "</div>"
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 180.0;
/// The height of a row of memory that is not in the arena.
const ROW: f64 = 16.0;
/// The most rows of memory that are drawn.
const MOST_ROWS: usize = 24;
/// The most numbers of kernels below the picture.
const MOST_TICKS: usize = 20;

/// Returns the memory over the kernels: the arena by offsets, and below it the results and the inputs, which are not in the arena.
fn plan(segment: &Segment) -> String {
    let steps = segment.steps.len().max(1) as f64;
    let across = |step: usize| step as f64 * WIDTH / steps;
    let arena = if segment.arena == 0 { 0.0 } else { HEIGHT };
    let mut drawn = String::new();
    let mut rect = |(first, last): (usize, usize), (y, height): (f64, f64), class: &str, title: &str| {
        let (x, width) = (across(first) + 1.0, across(last + 1) - across(first) - 2.0);
        write!(
            drawn,
            "<rect class={class} x={x:.1} y={y:.1} width={width:.1} height={height:.1} rx=2><title>{title}</title></rect>"
        )
        .expect("a string grows");
    };
    let (mut rows, mut listed) = (0, String::new());
    for (memory, number) in segment.memories.iter().zip(0..) {
        let Some(uses) = segment.uses(number) else { continue };
        let lifetime = escaped(&memory.lifetime);
        let size = match memory.bytes {
            0 => "not recorded".to_owned(), // memory of inputs
            count => bytes(count),
        };
        let title = format!("{lifetime}, {size}");
        let kernels = match uses {
            (first, last) if first == last => (first + 1).to_string(),
            (first, last) => format!("{} to {}", first + 1, last + 1),
        };
        write!(listed, "<tr><td>{lifetime}<td>{size}<td>{kernels}").expect("a string grows");
        match memory.offset {
            Some(offset) => {
                let scale = HEIGHT / segment.arena as f64;
                let height = (memory.bytes as f64 * scale).max(2.0);
                rect(uses, (offset as f64 * scale, height - 1.0), "temporary", &title);
            }
            None if memory.lifetime != "temporary" && rows < MOST_ROWS => {
                let uses = if memory.lifetime == "kept" { (uses.0, segment.steps.len() - 1) } else { uses };
                let class = if memory.lifetime == "kept" { "kept" } else { "existing" };
                rect(uses, (arena + 8.0 + rows as f64 * ROW, ROW - 4.0), class, &title);
                rows += 1;
            }
            None => {}
        }
    }
    let height = arena + 8.0 + rows as f64 * ROW;
    let mut ticks = String::new();
    for step in (0..segment.steps.len()).step_by(segment.steps.len().div_ceil(MOST_TICKS).max(1)) {
        let x = across(step) + WIDTH / steps / 2.0;
        write!(ticks, "<text x={x:.1} y={:.1}>{}</text>", height + 14.0, step + 1).expect("a string grows");
    }
    let frame = if arena > 0.0 {
        format!("<rect class=frame width={WIDTH} height={arena} />")
    } else {
        String::new()
    };
    format!(
        "<figure><svg viewBox=\"-1 -1 {} {}\" role=img aria-label=\"Memory in use during each kernel; the table below has the same data\">\
         {frame}{drawn}{ticks}</svg>\
         <figcaption><span class=\"key temporary\"></span>temporary, in the arena <span class=\"key kept\"></span>results \
         <span class=\"key existing\"></span>inputs. A column per kernel; a bar is memory, over the kernels that use it.</figcaption>\
         <details><summary>As a table</summary><table><tr><th>Memory<th>Size<th>Kernels{listed}</table></details></figure>",
        WIDTH + 2.0,
        height + 20.0
    )
}

/// Returns the pairs that are not fused, with the reasons.
fn apart(segment: &Segment) -> String {
    if segment.apart.is_empty() {
        return String::new();
    }
    let row = |(first, second, reason): &(usize, usize, String)| {
        let [first, second] = [first, second].map(|node| named(&segment.nodes[*node]));
        format!("<tr><td>{first}<td>{second}<td>{}", escaped(reason))
    };
    let rows: String = segment.apart.iter().map(row).collect();
    format!(
        "<table><caption>Pairs of loops that were not fused</caption><tr><th>Loop<th>Loop that reads its result<th>Reason{rows}</table>\n"
    )
}
