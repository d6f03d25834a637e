//! The capture audit of the region that most parts of the study capture.

use thalweg::graph::audit;
use thalweg::{CaptureOptions, Result};

use super::report::{Figure, Row, Section};
use super::setting::Setting;

pub fn study(setting: &Setting) -> Result<Section> {
    let mut section = Section::new(
        "What the audit says of the region",
        "The audit runs the region once, eagerly, lists what would keep it from being captured, and counts what it submits.",
    );
    let found =
        audit(&setting.device, CaptureOptions::default(), || setting.network().forward(&setting.inputs[0]))?;
    let counts = found.counts();
    let row = |name: &str, key: &str, value| Row::new(name, [Figure::count(format!("region_{key}"), value)]);
    section.table(
        "What the region submits",
        &["what", "count"],
        vec![
            row("obstacles", "obstacles", found.obstacles().len() as u64),
            row("commands", "commands", counts.commands()),
            row("of these kernels", "kernels", counts.kernels),
            row("of these library calls", "library_calls", counts.library_calls),
            row("of these copies", "copies", counts.copies),
            row("of these fills", "fills", counts.fills),
            row("allocations", "allocations", counts.allocations),
            Row::new("bytes allocated", [Figure::bytes("region_allocated_bytes", counts.allocated_bytes)]),
        ],
    );
    section.check(found.is_capturable(), "the audit finds no obstacle in the region");
    section.quotation = Some(format!("{found:78}"));
    Ok(section)
}
