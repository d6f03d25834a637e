//! The report as text, 80 columns wide.

use std::fmt::Write as _;

use super::report::{Check, Figure, Report, Section, Table};

const WIDTH: usize = 80;

/// The spaces before everything but titles.
const INDENT: &str = "  ";

/// Spaces between columns.
const GAP: usize = 2;

pub fn text(report: &Report) -> String {
    let mut out = String::new();
    paragraph(&mut out, "", &format!("Graph study on {} ({})", report.device, report.model));
    paragraph(&mut out, "", &format!("Region: {}.", report.network));
    paragraph(&mut out, "", &format!("Times: {}; {} rounds a way.", report.times_are(), report.rounds));
    for (number, section) in report.sections.iter().enumerate() {
        write_section(&mut out, number + 1, section, report);
    }
    out
}

fn write_section(out: &mut String, number: usize, section: &Section, report: &Report) {
    let title = format!("{number}. {}", section.title);
    let _ = writeln!(out, "\n{title}\n{}", "─".repeat(title.chars().count()));
    paragraph(out, INDENT, &section.lead);
    for table in &section.tables {
        out.push('\n');
        let simulated = report.is_simulated && table.is_of_times();
        let note = if simulated { format!(" ({})", report.times_are()) } else { String::new() };
        paragraph(out, INDENT, &format!("{}{note}", table.caption));
        write_table(out, table);
    }
    if let Some(quotation) = &section.quotation {
        out.push('\n');
        for line in quotation.lines() {
            let _ = writeln!(out, "{}", format!("{INDENT}{line}").trim_end());
        }
    }
    out.push('\n');
    for Check { holds, statement } in &section.checks {
        let mark = if *holds { "ok      " } else { "FAILED  " };
        for (place, line) in wrapped(statement, WIDTH - INDENT.len() - mark.len()).iter().enumerate() {
            let mark = if place == 0 { mark } else { "        " };
            let _ = writeln!(out, "{INDENT}{mark}{line}");
        }
    }
}

/// Writes a table: names to the left, figures to the right.
fn write_table(out: &mut String, table: &Table) {
    let mut lines: Vec<Vec<String>> = vec![table.columns.iter().map(ToString::to_string).collect()];
    for row in &table.rows {
        let figures = row.figures.iter().map(Figure::text);
        lines.push(std::iter::once(row.name.clone()).chain(figures).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    for line in &lines {
        let mut text = format!("{INDENT}{INDENT}{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            let _ = write!(text, "{}{cell:>width$}", " ".repeat(GAP));
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
}

fn paragraph(out: &mut String, indent: &str, text: &str) {
    for line in wrapped(text, WIDTH - indent.len()) {
        let _ = writeln!(out, "{indent}{line}");
    }
}

/// Returns the lines of a text. A word that is longer than a line stays whole.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
