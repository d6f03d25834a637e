//! The memory of a program over time as one HTML page: `thalweg memory show SNAPSHOT --html OUT` writes it.
//!
//! [`write()`] takes a [`PageModel`], which consists of plain columns of data, and writes one file that needs nothing else: no
//! network (its content security policy forbids any), no fonts, no framework. A browser opens it from the disk or from an
//! attachment.
//!
//! # How it is built
//! ```text
//!  PageModel ─▶ meta   names, figures, findings: JSON in a <script type="application/json">        ┐
//!           └─▶ encode blocks, segments, times, curves, stacks: columns of varints, in base64      ├─▶ one file
//!               page/  page.html, style.css and the scripts, each a file of this crate; look.css   ┘
//! ```
//! The numbers of a device are differences from the previous row, in the greatest unit that divides them, with seven bits per
//! byte: some 15 bytes per block. A million events make a file of some ten megabytes, and a browser reads it in a fraction of a
//! second. `page/data.js` is the counterpart of `encode`: a change of one requires a change of the other.
//!
//! This module depends neither on the reader of snapshots nor on the allocator, and they do not depend on it; its tests (which
//! open pages in a browser) make their models by hand.
//!
//! # Invariants
//! - Texts of a model come from untrusted files. They reach the page only inside JSON with `<` escaped, and the document only as
//!   text nodes.
//! - The figures at the head of the page are the model's, unchanged. The curves and the stack are drawn from the blocks and
//!   segments; the page's self-test (`?selftest`) reports the values computed from these, so that tests can compare the two.
//!
//! This module analyses nothing. The category of a block, the kinds of fragmentation, and the memory that another setting would
//! have reserved are determined by the analysis that makes the model.

mod encode;
mod meta;
mod model;

use std::io::{self, Write};

pub use model::{
    BlockLife, Curve, DevicePage, Figure, FigureValue, Mark, MarkKind, PageModel, SegmentLife, Stack,
    StackFrame, StageRow, Tone,
};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");

/// The style that all pages of the project share: colours, light and dark, and the look of figures, panels and tables. A page adds
/// its own after it.
pub const LOOK: &str = include_str!("look.css");

/// The scripts, in the order in which they depend on each other.
const SCRIPTS: [&str; 12] = [
    include_str!("page/text.js"),
    include_str!("page/data.js"),
    include_str!("page/profile.js"),
    include_str!("page/groups.js"),
    include_str!("page/painter.js"),
    include_str!("page/chart.js"),
    include_str!("page/segments.js"),
    include_str!("page/lists.js"),
    include_str!("page/flame.js"),
    include_str!("page/events.js"),
    include_str!("page/page.js"),
    include_str!("page/self_test.js"),
];

/// Writes the page.
///
/// # Errors
/// Returns the error of `out`.
///
/// # Panics
/// If the model contradicts itself: an index beyond its table, an event beyond the device's events.
pub fn write(model: &PageModel, out: &mut impl Write) -> io::Result<()> {
    let mut rest = TEMPLATE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("a place in the template has an end");
        out.write_all(before.as_bytes())?;
        match name {
            "title" => out.write_all(meta::html_text(&model.title).as_bytes())?,
            "style" => [LOOK, STYLE].iter().try_for_each(|style| out.write_all(style.as_bytes()))?,
            "data" => data(model, out)?,
            "script" => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
            _ => unreachable!("the template has no place {name}"),
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Writes the elements that contain the data: `meta`, `stacks`, and `device-0` onwards.
fn data(model: &PageModel, out: &mut impl Write) -> io::Result<()> {
    write!(out, "<script type=\"application/json\" id=\"meta\">{}</script>", meta::meta(model))?;
    let mut column = |name: &str, bytes: &[u8]| {
        write!(out, "\n<script type=\"text/plain\" id=\"{name}\">")?;
        encode::base64(bytes, out)?;
        out.write_all(b"</script>")
    };
    column("stacks", &encode::stacks(model))?;
    for (number, device) in model.devices.iter().enumerate() {
        column(&format!("device-{number}"), &encode::device(device, model))?;
    }
    Ok(())
}
