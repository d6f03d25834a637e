//! The entry point of a kernel and the indices that its threads compute, for all printers.

use super::writer::Writer;
use crate::{Class, Kernel};

/// The number of threads of a block if each thread has points of its own.
pub(super) const POINT_BLOCK: u32 = 256;

/// Threads of a block where up to a warp works on a row.
pub(super) const ROW_BLOCK: u32 = 128;

/// Returns the type of offsets, coordinates and counts of a kernel.
pub(super) fn index_type(class: &Class) -> &'static str {
    if class.narrow_index { "u32" } else { "u64" }
}

/// Prints the line that opens a kernel's entry point. It limits the threads of a block, and limits registers so that a number of
/// blocks can share a multiprocessor.
pub(super) fn open_entry(kernel: &Kernel, threads: u32, blocks: u32, writer: &mut Writer) {
    let bounds = if blocks > 1 { format!("{threads}, {blocks}") } else { threads.to_string() };
    open_entry_with(kernel, &format!("__launch_bounds__({bounds})"), writer);
}

/// Prints the line that opens an entry point with these attributes, and the statements with which each kernel begins.
pub(super) fn open_entry_with(kernel: &Kernel, attributes: &str, writer: &mut Writer) {
    writer.open(&format!(
        "extern \"C\" __global__ void {attributes} {name}(const __grid_constant__ {name}_arguments a)",
        name = kernel.name
    ));
    writer.line("launch_dependents();");
    writer.line("wait_for_previous();");
    if kernel.body.draws() {
        writer.line("philox_words philox = {};");
    }
}

/// Writes lines that split a linear index into coordinates, the last dimension first. `dimensions` has the name and the extent of
/// each coordinate.
pub(super) fn split_index(linear: &str, dimensions: &[(String, String)], index: &str, writer: &mut Writer) {
    match dimensions {
        [] => {}
        [(only, _)] => writer.line(&format!("const {index} {only} = {linear};")),
        [(first, _), others @ ..] => {
            let mut rest = linear.to_string();
            for (coordinate, extent) in others.iter().rev() {
                writer.line(&format!("const {index} {coordinate} = {rest} % {index}(a.{extent});"));
                let next = format!("before_{coordinate}");
                writer.line(&format!("const {index} {next} = {rest} / {index}(a.{extent});"));
                rest = next;
            }
            writer.line(&format!("const {index} {first} = {rest};"));
        }
    }
}

/// Returns the row coordinates with the arguments that hold their extents.
pub(super) fn row_dimensions(class: &Class) -> Vec<(String, String)> {
    (0..class.row_rank).map(|d| (format!("row{d}"), format!("row_extent{d}"))).collect()
}

/// Returns the inner coordinates with the arguments that hold their extents.
pub(super) fn inner_dimensions(class: &Class) -> Vec<(String, String)> {
    (0..class.inner_rank).map(|d| (format!("inner{d}"), format!("inner_extent{d}"))).collect()
}

/// Returns the sum of coordinates times strides of an operand: `group` is `row` or `inner`.
pub(super) fn offset(operand: &str, group: &str, rank: u8, index: &str) -> String {
    let terms: Vec<String> =
        (0..rank).map(|d| format!("{group}{d} * {index}(a.{operand}_{group}_stride{d})")).collect();
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}
