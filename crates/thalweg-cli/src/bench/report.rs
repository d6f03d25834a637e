//! The table of a bench: as text, as a file, as a page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use thalweg::memory_tools::report::LOOK;

use super::ceilings::Ceilings;
use super::measure::Time;
use super::rows::Row;

/// The ratio to PyTorch's time up to which a row counts as equal.
const EQUAL: f64 = 1.05;

/// The ratio above which a row is listed as slow.
const SLOW: f64 = 1.3;

/// The outcome of one side: a time, or the reason why there is no time.
pub type Outcome = Result<Time, String>;

/// A row and its times.
pub struct Line {
    /// The row.
    pub row: Row,
    /// Our time.
    pub ours: Outcome,
    /// PyTorch's time, if it was measured.
    pub theirs: Option<Outcome>,
    /// The bytes of inputs and results.
    pub bytes: u64,
}

impl Line {
    /// Returns our time divided by PyTorch's.
    fn ratio(&self) -> Option<f64> {
        let (Ok(ours), Some(Ok(theirs))) = (&self.ours, &self.theirs) else { return None };
        Some(ours.microseconds / theirs.microseconds)
    }

    /// Returns the bytes per second divided by the bandwidth of a copy; only for the forward pass, whose bytes are known.
    fn of_copy(&self, ceilings: &Ceilings) -> Option<f64> {
        let ours = self.ours.as_ref().ok().filter(|_| self.row.gradients.is_empty())?;
        Some(self.bytes as f64 / (ours.microseconds * 1e-6) / ceilings.copy)
    }
}

/// All measured rows.
pub struct Report {
    ceilings: Ceilings,
    peer: Option<String>,
    lines: Vec<Line>,
}

impl Report {
    /// Creates a report without rows.
    pub fn new(ceilings: Ceilings, peer: Option<String>) -> Self {
        Self { ceilings, peer, lines: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Returns whether an operator failed here.
    pub fn has_failures(&self) -> bool {
        self.lines.iter().any(|line| line.ours.is_err())
    }

    fn ratios(&self) -> Vec<f64> {
        self.lines.iter().filter_map(Line::ratio).collect()
    }

    /// Returns the table, by families, followed by the slow rows and the failures.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        let mut family = "";
        for line in &self.lines {
            if line.row.family != family {
                family = &line.row.family;
                let _ = writeln!(
                    text,
                    "\n{family}\n  {:>10} {:>10} {:>6} {:>6}",
                    "us", "PyTorch", "ratio", "copy"
                );
            }
            let _ = writeln!(
                text,
                "  {:>10} {:>10} {:>6} {:>6}  {}",
                microseconds(Some(&line.ours)),
                microseconds(line.theirs.as_ref()),
                line.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")),
                line.of_copy(&self.ceilings).map_or("-".into(), |share| format!("{:.0} %", 100.0 * share)),
                line.row.name()
            );
        }
        text.push_str(&self.summary());
        text
    }

    /// Returns the figures over all rows.
    fn summary(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let theirs = line.theirs.as_ref().and_then(|theirs| theirs.as_ref().err());
            for (whose, why) in [("", line.ours.as_ref().err()), (" with PyTorch", theirs)] {
                if let Some(why) = why {
                    let _ = writeln!(
                        text,
                        "\nfailed{whose}: {}\n  {}",
                        line.row.name(),
                        why.lines().next().unwrap_or_default()
                    );
                }
            }
        }
        let ratios = self.ratios();
        let Some(peer) = self.peer.as_ref().filter(|_| !ratios.is_empty()) else { return text };
        let timed = self.lines.iter().filter(|line| line.ratio().is_some());
        let operators = timed.map(|line| line.row.operator.as_str()).collect::<BTreeSet<_>>().len();
        let share = |limit: f64| {
            100.0 * ratios.iter().filter(|ratio| **ratio <= limit).count() as f64 / ratios.len() as f64
        };
        let _ = writeln!(
            text,
            "\n{} rows of {operators} operators against {peer}: geometric mean {:.3}, {:.1} % of rows at most {EQUAL}, {} above {SLOW}",
            ratios.len(),
            geometric_mean(&ratios),
            share(EQUAL),
            ratios.iter().filter(|ratio| **ratio > SLOW).count()
        );
        text
    }

    /// Returns all rows as comma-separated values.
    pub fn as_csv(&self) -> String {
        let mut text = String::from(
            "family,operator,arguments,dtype,direction,shapes,us,captured,torch_us,torch_captured,ratio,of_copy\n",
        );
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        for line in &self.lines {
            let side = |outcome: Option<&Outcome>| match outcome {
                Some(Ok(time)) => format!("{:.3},{}", time.microseconds, u8::from(time.captured)),
                _ => ",".to_owned(),
            };
            let Row { family, operator, text: arguments, dtype, shapes, .. } = &line.row;
            let number = |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.3}"));
            let _ = writeln!(
                text,
                "{},{operator},{},{},{},{},{},{},{},{}",
                quoted(family),
                quoted(arguments),
                dtype.short_name(),
                line.row.direction(),
                quoted(shapes),
                side(Some(&line.ours)),
                side(line.theirs.as_ref()),
                number(line.ratio()),
                number(line.of_copy(&self.ceilings))
            );
        }
        text
    }

    /// Returns a page with a bar per row, by families: the ratio, or the share of a copy if the report has no peer.
    pub fn as_html(&self) -> String {
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        let mut families: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
        self.lines.iter().for_each(|line| families.entry(&line.row.family).or_default().push(line));
        let (width_of_one, legend) = match &self.peer {
            Some(peer) => (
                25.0,
                format!(
                    "Each figure is the time of a row divided by that of {peer}: below 1 is faster. \
                     <i class=equal></i> at most {EQUAL} <i class=behind></i> up to {SLOW} <i class=slow></i> above {SLOW}",
                    peer = escape(peer)
                ),
            ),
            None => (
                100.0,
                "Each figure is the speed of a row as a share of the speed of a copy: 1 is as fast as a copy of the same bytes."
                    .to_owned(),
            ),
        };
        let mut body = format!("<p>{legend}</p>\n");
        for (family, lines) in families {
            let _ = writeln!(
                body,
                "<section class=panel><div class=table tabindex=0 role=region aria-label=\"{0}\"><table><caption>{0}</caption>",
                escape(family)
            );
            for line in lines {
                let ratio = line.ratio();
                let value = if self.peer.is_some() { ratio } else { line.of_copy(&self.ceilings) };
                let class = match ratio {
                    Some(ratio) if ratio > SLOW => "slow",
                    Some(ratio) if ratio > EQUAL => "behind",
                    _ => "equal",
                };
                let _ = writeln!(
                    body,
                    "<tr><th scope=row>{}<td>{}<td class=bar><i class=\"{class}\" style=\"width:{:.0}%\"></i>",
                    escape(&line.row.name()),
                    value.map_or("-".into(), |value| format!("{value:.2}")),
                    value.map_or(0.0, |value| (value * width_of_one).clamp(0.5, 100.0))
                );
            }
            body.push_str("</table></div></section>\n");
        }
        let title =
            self.peer.as_ref().map_or("share of a copy".to_owned(), |peer| format!("time by that of {peer}"));
        PAGE.replace("LOOK", LOOK)
            .replace("TITLE", &escape(&title))
            .replace("SUMMARY", &escape(&self.summary()))
            .replace("BODY", &body)
    }
}

/// The HTML around the report's rows.
const PAGE: &str = r#"<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Operators: TITLE</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>LOOK
main { max-width: 1400px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
pre:empty { display: none; }
p { margin: 10px 0 0; color: var(--muted); }
section.panel { margin-top: 14px; }
table { table-layout: fixed; }
caption { color: var(--ink); font-weight: 650; }
th, td { padding: 1px 10px 1px 0; }
th { width: 55%; overflow-wrap: anywhere; font: 12px ui-monospace, monospace; }
td { width: 4em; text-align: right; }
td.bar { width: auto; text-align: left; }
i { height: .8rem; display: block; border-radius: 2px; }
p i { display: inline-block; width: .8rem; margin: 0 .2em 0 .8em; vertical-align: -.1em; }
.equal { background: var(--c2); } .behind { background: var(--c4); } .slow { background: var(--bad); }
</style>
<header><h1>thalweg bench <span>operators: TITLE</span></h1></header>
<main><pre>SUMMARY</pre>
BODY</main></html>
"#;

fn microseconds(outcome: Option<&Outcome>) -> String {
    match outcome {
        None => "-".into(),
        Some(Err(_)) => "failed".into(),
        Some(Ok(time)) => format!("{:.1}{}", time.microseconds, if time.captured { "" } else { "*" }),
    }
}

/// Returns the geometric mean.
fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Time;
    use crate::bench::rows::rows;

    fn line(ours: f64, theirs: Option<f64>) -> Line {
        let time = |microseconds| Ok(Time { microseconds, captured: true });
        let row = rows().into_iter().find(|row| row.gradients.is_empty()).unwrap();
        Line { row, ours: time(ours), theirs: theirs.map(time), bytes: 1_000_000 }
    }

    #[test]
    fn ratios_are_of_times_and_their_mean_is_geometric() {
        let ceilings = Ceilings { copy: 1e12, product: 1e12, launch: 1e-6 };
        let mut report = Report::new(ceilings, Some("PyTorch".into()));
        report.push(line(1.0, Some(2.0)));
        report.push(line(2.0, Some(1.0)));
        report.push(line(5.0, None));
        let text = report.as_text();
        assert!(
            text.contains("2 rows of 1 operators against PyTorch: geometric mean 1.000, 50.0 % of rows"),
            "{text}"
        );
        assert!(text.contains("100 %"), "one megabyte in a microsecond is what the copy does: {text}");
        let csv = report.as_csv();
        assert_eq!(csv.lines().count(), 4);
        assert!(csv.lines().nth(1).unwrap().ends_with(",1.000,1,2.000,1,0.500,1.000"), "{csv}");
        let page = report.as_html();
        assert!(page.contains("class=\"slow\"") && page.contains("divided by that of PyTorch"), "{page}");
        assert!(page.contains("<td>-<td"), "a row that PyTorch was not timed for has no ratio: {page}");
        assert!(!report.has_failures());
    }
}
