//! The decisions of a plan, in words.

use std::fmt::Write;

use thalweg_ir::held::MOST_THREADS_WITH_VALUES;
use thalweg_ir::{Body, Class, Geometry, OperandGeometry, Streamed};

use super::{FEW_THREADS, LaunchPlan, SERIAL_POINTS};

impl LaunchPlan {
    /// Returns one line that states which form of kernel a plan for this body chose, and why.
    pub fn explain(&self, body: &Body) -> String {
        let Self { class, geometry } = self;
        let mut text = format!("rows {:?}", geometry.row_shape.as_slice());
        if class.inner_rank > 0 {
            write!(text, " of points {:?}", geometry.inner_shape.as_slice()).expect("writing succeeds");
        }
        let index = if class.narrow_index { "32-bit" } else { "64-bit" };
        format!("{text}, {index} indices: {}", form(body, class, geometry))
    }
}

fn form(body: &Body, class: &Class, geometry: &Geometry) -> String {
    let Class { lanes, vector, held, rows_abreast, cascade, .. } = class;
    let threads = class.threads_of_a_row();
    if class.transposed > 0 {
        return format!(
            "tiles of {vector} elements per thread, since inputs {} are walked along dimension {} and outputs along the last",
            bits(class.transposed_inputs),
            class.transposed - 1
        );
    }
    if let Some(Streamed { cluster, groups, stages, columns }) = class.streamed {
        let once =
            if columns > 0 { format!("; inputs {} are copied once", bits(columns)) } else { String::new() };
        return format!(
            "rows streamed through the shared memory of clusters of {cluster} blocks, which have {groups} groups of {} threads with room for {stages} \
             rows each, {held} vectors of {vector} elements per thread{once}",
            threads / u32::from(cluster)
        );
    }
    if *held > 0 {
        let kept = if threads > MOST_THREADS_WITH_VALUES {
            "elements stay in registers and values are computed anew, since a large block has few"
        } else {
            "elements and values stay in registers"
        };
        let shared = match class.shared {
            0 => String::new(),
            shared => format!(", {shared} of them in shared memory"),
        };
        let shifted = if class.shifted { ", which begin before rows that are not aligned" } else { "" };
        return format!(
            "rows held by {threads} threads, {held} vectors of {vector} elements each{shared}{shifted}; {kept}"
        );
    }
    if class.online {
        return format!(
            "rows read once by {threads} threads, vectors of {vector} elements; the sum of exponentials follows the greatest value"
        );
    }
    if *rows_abreast > 1 {
        // A line is eight of the widest vectors.
        let has_lines = *vector > 1 && *rows_abreast >= 8 * u16::from(*vector);
        let lines = if has_lines { "whole lines of" } else { "sectors of, since there are few" };
        return format!(
            "{lines} columns: {rows_abreast} abreast, vectors of {vector}, {lanes} lanes, a cascade of {cascade}"
        );
    }
    if !body.reductions.is_empty() {
        let why = not_held(body, class, geometry);
        return format!(
            "{threads} threads per row, each pass reads it anew, since {why}; a cascade of {cascade}"
        );
    }
    let layout = if class.contiguous { "contiguous" } else { "strided" };
    match vector {
        1 => format!("{layout} points, one element at a time, since {}", not_vectors(class, geometry)),
        _ => format!("{layout} points, vectors of {vector} elements"),
    }
}

/// Returns the numbers of the bits that are set.
fn bits(bits: u32) -> String {
    let numbers: Vec<String> = (0..32).filter(|n| bits >> n & 1 == 1).map(|n| n.to_string()).collect();
    numbers.join(", ")
}

/// Returns the reason why rows are not held.
fn not_held(body: &Body, class: &Class, geometry: &Geometry) -> String {
    let gap = geometry.operands.iter().position(|operand| match operand {
        OperandGeometry::Strided { inner_strides, .. } => inner_strides.iter().any(|stride| *stride > 1),
        OperandGeometry::Gathered { .. } => false,
    });
    let at_points = body.point_dependent(|_| true);
    match gap {
        _ if geometry.points() <= SERIAL_POINTS => "it is short".to_owned(),
        _ if class.inner_rank > 1 => "its points are several dimensions".to_owned(),
        Some(operand) => format!("the points of operand {operand} have gaps"),
        None if body.outputs.iter().any(|output| {
            output.place == thalweg_ir::OutputPlace::Row && at_points[output.value.index()]
        }) =>
        {
            "an output of the row reads an element".to_owned()
        }
        None => "it does not fit into registers".to_owned(),
    }
}

/// Returns the reason why points are not handled by vectors.
fn not_vectors(class: &Class, geometry: &Geometry) -> String {
    let gap = geometry.operands.iter().position(|operand| match operand {
        OperandGeometry::Strided { row_strides, .. } => row_strides.last().is_some_and(|stride| *stride > 1),
        OperandGeometry::Gathered { .. } => false,
    });
    match gap {
        _ if class.contiguous && geometry.rows() * geometry.points() < 2 * FEW_THREADS => {
            "they are few".to_owned()
        }
        Some(operand) if !class.contiguous => format!("operand {operand} has gaps in the last dimension"),
        _ => {
            "extents, strides or addresses are not multiples of more, or the body asks where it is".to_owned()
        }
    }
}
