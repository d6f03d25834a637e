//! Charts as inline SVG, coloured by the page's style. The tables have the same data.

use std::fmt::Write as _;

use super::page::escaped;
use super::report::{Bar, Chart, Line, Report, microseconds};

const WIDTH: f64 = 840.0;

/// The layout of a bar chart: the begin of bars, the end of the longest, and the distance between them.
const BARS_LEFT: f64 = 160.0;
const BARS_RIGHT: f64 = WIDTH - 150.0;
const BAR_STEP: f64 = 26.0;
const BAR_HEIGHT: f64 = 16.0;
const HEADING: f64 = 30.0;

/// The layout of a line chart: its height, and the margins around the plot.
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 42.0;

pub fn write(out: &mut String, chart: &Chart, report: &Report) {
    let (Chart::Bars { title, .. } | Chart::Lines { title, .. }) = chart;
    let note = if report.is_simulated { format!(" ({})", report.times_are()) } else { String::new() };
    let title = escaped(title);
    let _ = writeln!(out, "<figure tabindex=\"0\">\n<figcaption>{title}<span>{note}</span></figcaption>");
    match chart {
        Chart::Bars { groups, .. } => bars(out, &title, groups),
        Chart::Lines { lines, marks, .. } => curves(out, &title, lines, marks),
    }
    out.push_str("</svg>\n</figure>\n");
}

fn open(out: &mut String, title: &str, height: f64) {
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}; the figures are in the table below\">"
    );
}

/// Writes bars. Each group has its own scale, which begins at zero.
fn bars(out: &mut String, title: &str, groups: &[(String, Vec<Bar>)]) {
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    open(out, title, HEADING * groups.len() as f64 + BAR_STEP * rows as f64 + 8.0);
    let mut y = 0.0;
    for (place, (name, bars)) in groups.iter().enumerate() {
        let _ =
            writeln!(out, "<text class=\"quiet\" x=\"0\" y=\"{:.1}\">{}, µs</text>", y + 18.0, escaped(name));
        if place == 0 {
            bar_legend(out, y + 18.0);
        }
        y += HEADING;
        let most = bars.iter().map(|bar| bar.p95).fold(0.0, f64::max).max(1e-9);
        for bar in bars {
            let [p50, p95] = [bar.p50, bar.p95].map(|value| (BARS_RIGHT - BARS_LEFT) * value / most);
            let middle = y + BAR_HEIGHT / 2.0 + 4.5;
            let _ = writeln!(out, "<text x=\"0\" y=\"{middle:.1}\">{}</text>", escaped(&bar.name));
            for (class, width) in [("p95", p95), ("p50", p50)] {
                let _ = writeln!(
                    out,
                    "<rect class=\"{class}\" x=\"{BARS_LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>",
                    width.max(1.0)
                );
            }
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{middle:.1}\">{} <tspan class=\"quiet\">/ {}</tspan></text>",
                BARS_LEFT + p95 + 8.0,
                microseconds(bar.p50),
                microseconds(bar.p95)
            );
            y += BAR_STEP;
        }
    }
}

fn bar_legend(out: &mut String, y: f64) {
    for (class, x) in [("p50", 300.0), ("p95", 364.0)] {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>\
             <text class=\"quiet\" x=\"{}\" y=\"{y}\">{class}</text>",
            y - 10.0,
            x + 18.0
        );
    }
}

fn curves(out: &mut String, title: &str, lines: &[Line], marks: &[f64]) {
    open(out, title, HEIGHT);
    let points = || lines.iter().flat_map(|line| &line.points);
    let step_y = nice_step(points().map(|point| point.1).fold(0.0, f64::max).max(1e-9) / 4.0);
    let most_y = step_y * (points().map(|point| point.1).fold(0.0, f64::max) / step_y).ceil().max(1.0);
    let most_x = points().map(|point| point.0).fold(0.0, f64::max).max(1.0);
    let x = |value: f64| LEFT + (RIGHT - LEFT) * value / most_x;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / most_y;
    for tick in 0..=(most_y / step_y).round() as usize {
        let value = tick as f64 * step_y;
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
             <text class=\"quiet\" text-anchor=\"end\" x=\"{1:.1}\" y=\"{2:.1}\">{value}</text>",
            y(value),
            LEFT - 8.0,
            y(value) + 4.0
        );
    }
    for &mark in marks {
        let _ = writeln!(
            out,
            "<line class=\"mark\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
             <text class=\"quiet\" text-anchor=\"middle\" x=\"{0:.1}\" y=\"{1:.1}\">{mark}</text>",
            x(mark),
            BOTTOM + 17.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"quiet\" text-anchor=\"end\" x=\"{RIGHT}\" y=\"{:.1}\">tokens of a sequence; the captured sizes are \
         marked</text>\n<text class=\"quiet\" x=\"0\" y=\"18\">µs</text>",
        BOTTOM + 36.0
    );
    for (number, line) in lines.iter().enumerate() {
        let path: Vec<String> =
            line.points.iter().map(|&(a, b)| format!("{:.1},{:.1}", x(a), y(b))).collect();
        let _ = writeln!(out, "<polyline class=\"line line{number}\" points=\"{}\"/>", path.join(" "));
        for &(a, b) in &line.points {
            let _ = writeln!(
                out,
                "<circle class=\"dot dot{number}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"/>",
                x(a),
                y(b)
            );
        }
        let left = LEFT + 170.0 * number as f64;
        let _ = writeln!(
            out,
            "<line class=\"line line{number}\" x1=\"{left}\" x2=\"{}\" y1=\"14\" y2=\"14\"/>\
             <text x=\"{}\" y=\"18\">{}</text>",
            left + 34.0,
            left + 42.0,
            escaped(&line.name)
        );
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, 50 … that is at least `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|step| step * power).find(|&step| step >= least);
    step.unwrap_or(10.0 * power)
}
