//! The report as one HTML page: no script, no network, light or dark as the reader's system is.

use std::fmt::Write as _;

use thalweg::memory_tools::report::LOOK;

use super::chart;
use super::report::{Report, Section, Table};

const STYLE: &str = include_str!("style.css");

/// The figures at the head of the page, by name, with their descriptions.
const HEADLINES: [(&str, &str); 4] = [
    ("modes_eager_host_p50", "µs of host time a step, eager"),
    ("modes_captured_host_p50", "µs of host time a step, captured"),
    ("modes_captured_speedup", "times less host time"),
    ("allocations_replay_requests", "allocations in all replays"),
];

pub fn html(report: &Report) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let _ = writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let device = escaped(&format!("{} ({})", report.device, report.model));
    let _ = writeln!(
        out,
        "<title>Graph study on {device}</title>\n<style>\n{LOOK}{STYLE}</style>\n</head>\n<body>\n<main>"
    );
    write_head(&mut out, &device, report);
    for (number, section) in report.sections.iter().enumerate() {
        write_section(&mut out, number + 1, section, report);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn write_head(out: &mut String, device: &str, report: &Report) {
    let _ = writeln!(out, "<header>\n<h1>Graph study</h1>\n<p>{device}</p>");
    let _ = writeln!(out, "<p class=\"muted\">The region is {}.</p>", escaped(&report.network));
    let simulated = if report.is_simulated { " class=\"notice\"" } else { " class=\"muted\"" };
    let _ = writeln!(
        out,
        "<p{simulated}>Times: {}; {} rounds a way.</p>\n</header>",
        report.times_are(),
        report.rounds
    );
    out.push_str("<div class=\"tiles\">\n");
    for (name, text) in HEADLINES {
        if let Some(figure) = report.figures().find(|figure| figure.name == name) {
            let _ = writeln!(out, "<p class=\"tile\"><b>{}</b> {text}</p>", figure.text());
        }
    }
    let tone = if report.all_hold() { "" } else { " bad" };
    let failed = report.checks().filter(|check| !check.holds).count();
    let (all, verdict) = (report.checks().count(), report.verdict());
    let _ = writeln!(
        out,
        "<p class=\"tile{tone}\" title=\"{verdict}\"><b>{} of {all}</b> checks hold</p>\n</div>",
        all - failed
    );
}

fn write_section(out: &mut String, number: usize, section: &Section, report: &Report) {
    let _ = writeln!(out, "<section aria-labelledby=\"part{number}\">");
    let _ = writeln!(out, "<h2 id=\"part{number}\">{number}. {}</h2>", escaped(section.title));
    let _ = writeln!(out, "<p>{}</p>", escaped(&section.lead));
    if let Some(chart) = &section.chart {
        chart::write(out, chart, report);
    }
    for (place, table) in section.tables.iter().enumerate() {
        write_table(out, &format!("table{number}-{place}"), table, report);
    }
    if let Some(quotation) = &section.quotation {
        let _ = writeln!(out, "<pre tabindex=\"0\">{}</pre>", escaped(quotation));
    }
    out.push_str("<ul class=\"checks\">\n");
    for check in &section.checks {
        let (class, mark, word) =
            if check.holds { ("good", "✓", "holds") } else { ("bad", "✗", "does not hold") };
        let _ = writeln!(
            out,
            "<li class=\"{class}\"><span aria-label=\"{word}\" role=\"img\">{mark}</span> {}</li>",
            escaped(&check.statement)
        );
    }
    out.push_str("</ul>\n</section>\n");
}

/// Writes a table that scrolls horizontally if it is too wide, also by keyboard.
fn write_table(out: &mut String, id: &str, table: &Table, report: &Report) {
    let _ = writeln!(
        out,
        "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{id}\">\n<table{}>",
        if table.columns.len() > 3 { " class=\"wide\"" } else { "" }
    );
    let simulated = report.is_simulated && table.is_of_times();
    let note = if simulated { format!(" ({})", report.times_are()) } else { String::new() };
    let _ = writeln!(out, "<caption id=\"{id}\">{}{note}</caption>\n<thead><tr>", escaped(&table.caption));
    for column in &table.columns {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(column));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escaped(&row.name));
        for figure in &row.figures {
            let text = figure.text();
            let _ = write!(out, "<td><data id=\"{}\" value=\"{text}\">{text}</data></td>", figure.name);
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// Returns a text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
