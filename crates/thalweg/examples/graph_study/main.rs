//! A study of CUDA graphs on one region: whether a replay has the same results as eager work, what it saves, what it costs, and
//! what breaks it.
//!
//! ```text
//! cargo run --release --example graph_study                       # the GPU if there is one, else the simulated GPU
//! cargo run --release --example graph_study -- --rounds 200 --html study.html
//! ```
//!
//! Its parts are a checklist of questions from papers on graphs: a smoke test of one captured stage, eager against captured
//! against updated, one sequence length against many, an audit of allocations by replays, two streams, and the report of the
//! capture audit. The results are printed as tables, as one HTML page with charts, and as JSON lines, with the same figures in
//! all three. Each part states its checks; the exit status reports whether they hold.
//!
//! On the simulated GPU the host computes what a GPU would: its times compare ways of submitting work on this host, and do not
//! apply to a GPU.

mod allocations;
#[path = "../common/arguments.rs"]
mod arguments;
mod chart;
mod fork;
mod lengths;
mod modes;
mod options;
mod page;
mod region;
mod report;
mod setting;
mod smoke;
mod terminal;
mod timing;

use std::fmt::Display;
use std::process::ExitCode;

use options::Options;
use report::{Report, Section};
use setting::Setting;
use thalweg::{Result, no_grad};

/// A part of the study, with the text for its progress.
type Part = (&'static str, fn(&Setting) -> Result<Section>);

const PARTS: [Part; 6] = [
    ("one stage, captured once", smoke::study),
    ("eager, captured, updated", modes::study),
    ("sequence lengths", lengths::study),
    ("allocations", allocations::study),
    ("two streams", fork::study),
    ("capture audit", region::study),
];

fn main() -> ExitCode {
    arguments::run("graph_study", options::USAGE, Options::parse, run)
}

fn cannot_write(page: &dyn Display, error: &std::io::Error) -> ExitCode {
    eprintln!("graph_study: the page {page} cannot be written: {error}");
    ExitCode::FAILURE
}

fn run(options: &Options) -> Result<ExitCode> {
    let page = options.html.display();
    // Checked before the work, which takes a while. A file at the path stays until the page is complete.
    let folder = options.html.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(Err(error)) = folder.map(std::fs::metadata) {
        return Ok(cannot_write(&page, &error));
    }
    let report = no_grad(|| study(options))?;
    if options.json {
        print_json(&report);
    } else {
        print!("{}", terminal::text(&report));
    }
    if let Err(error) = std::fs::write(&options.html, page::html(&report)) {
        return Ok(cannot_write(&page, &error));
    }
    if !options.json {
        println!("\nThe page is {page}.\n{}", report.verdict());
    }
    if report.all_hold() {
        return Ok(ExitCode::SUCCESS);
    }
    for check in report.checks().filter(|check| !check.holds) {
        eprintln!("graph_study: does not hold: {}", check.statement);
    }
    Ok(ExitCode::FAILURE)
}

fn study(options: &Options) -> Result<Report> {
    let device = arguments::device(options.device.as_deref())?;
    let setting = Setting::new(device, options.rounds, options.layers)?;
    // Loads the kernels, so that no part includes that time and every region can be captured.
    for network in &setting.networks {
        network.forward(&setting.inputs[0])?.add(&network.forward(&setting.inputs[0])?)?;
    }
    let mut sections = Vec::new();
    for (number, (name, part)) in PARTS.into_iter().enumerate() {
        eprintln!("[{}/{}] {name}", number + 1, PARTS.len());
        sections.push(part(&setting).map_err(|error| error.context(name))?);
    }
    Ok(Report {
        device: setting.device.to_string(),
        model: setting.device.properties().name.clone(),
        is_simulated: setting.device.is_simulated(),
        network: setting.to_string(),
        rounds: options.rounds,
        sections,
    })
}

fn print_json(report: &Report) {
    for figure in report.figures() {
        println!(
            "{{\"name\": \"graph_study_{}\", \"value\": {}, \"unit\": \"{}\", \"device\": \"{}\", \"rounds\": {}}}",
            figure.name,
            figure.text(),
            figure.unit.name(),
            report.device,
            report.rounds
        );
    }
}
