//! The planner: from a body and the layouts of its operands to a kernel's class and a launch's geometry.
//!
//! Only the planner decides which dimensions can be merged, whether a launch is contiguous, how wide loads are, and how many
//! lanes combine a row. Each decision depends only on shapes, strides and dtypes, so the same call always runs the same kernel
//! and sums in the same order.

mod columns;
mod explain;
mod parts;
mod points;
mod rows;
mod streamed;

pub use parts::{Divided, LEAST_DIVIDED, divided};

use smallvec::SmallVec;
use thalweg_ir::{
    Body, Class, DType, Dimensions, Geometry, InputKind, Kernel, OperandGeometry, OutputPlace, RUN, ReduceOp,
    Streamed,
};

/// The placement of one operand over the iteration space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// By strides over the row dimensions and over the inner ones (elements; 0 repeats). Row outputs have no inner strides.
    Strided {
        /// One stride per row dimension.
        rows: Dimensions,
        /// One stride per inner dimension.
        inner: Dimensions,
    },
    /// Contiguous, with this number of elements, gathered from.
    Gathered(u64),
}

/// An iteration space with its operands, before any decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Iteration {
    /// The extents of the row dimensions.
    pub rows: Dimensions,
    /// The extents of the inner dimensions.
    pub inner: Dimensions,
    /// The inputs of the body, then its outputs.
    pub operands: SmallVec<[Placement; 8]>,
    /// The greatest number of bytes to which every operand's address is aligned.
    pub alignment_bytes: u64,
    /// The shared memory available to a block, in bytes.
    pub shared_memory_bytes: u32,
    /// Whether blocks may form clusters, which read each other's shared memory: on GPUs of compute capability 9.0.
    pub has_clusters: bool,
}

/// A plan: the decisions for one launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchPlan {
    /// The class of launches that the kernel is compiled for.
    pub class: Class,
    /// The geometry of this launch.
    pub geometry: Geometry,
}

/// Bytes of a thread's widest load.
const VECTOR_BYTES: u64 = 16;

/// Rows with at most this many points are combined by one thread, unless they are several vectors.
const SERIAL_POINTS: u64 = 16;

/// Rows with at most this many points are combined by a warp, longer ones by a block.
const WARP_POINTS: u64 = 1024;

/// The most points per row that warps combine if there are at most [`FEW_WARPS`] rows whose points are read again to be written. With
/// more points, a lane would take longer than the rest of such a launch.
const SHORT_POINTS: u64 = 256;
const FEW_WARPS: u64 = 1 << 10;

/// The most rows that get blocks of the largest size, if each has at least [`LONG_POINTS`] points, because so few rows would leave
/// most of a GPU idle (for example, the greatest score in a vocabulary). This applies only if the order of combining does not matter,
/// since the order depends on shapes only.
const FEW_ROWS: u64 = 64;
const LONG_POINTS: u64 = 1 << 14;

/// The most rows that get such blocks if their points are written. Other rows are divided among several blocks.
const FEW_WRITTEN_ROWS: u64 = 256;

/// The least number of rows, adjacent in memory, for which one thread per row reads complete sectors and fills a GPU.
const ROWS_FOR_A_THREAD_EACH: u64 = 1 << 15;

/// With fewer rows than that, the number of neighbours that share a block: eight elements of 4 bytes are a sector.
const ROWS_ABREAST: u16 = 8;

/// Points per lane of such rows, while there are no more than [`MOST_LANES_ABREAST`] lanes: the loads that a thread has in
/// flight.
const POINTS_ABREAST: u64 = 8;

/// The most lanes of rows that share a block: a block has at most 1,024 threads.
const MOST_LANES_ABREAST: u64 = 128;

/// The most points of a lane without a cascade; with more, it is a cascade of two levels.
const POINTS_OF_A_LANE: u64 = 2 * RUN;

/// The most points of a lane with a cascade of two levels; with more, it has three.
const POINTS_OF_TWO_LEVELS: u64 = 2 * RUN * RUN;

/// Plans the launch of a body over an iteration.
pub fn plan(body: &Body, iteration: &Iteration) -> LaunchPlan {
    plan_in_lanes(body, iteration, None)
}

/// Plans the launch of a body over an iteration. If rows can be held by this many lanes, they are: the body is a composition, whose
/// sums keep the order that they have alone.
pub fn plan_in_lanes(body: &Body, iteration: &Iteration, wanted_lanes: Option<u16>) -> LaunchPlan {
    let flat = points::as_rows(body, iteration);
    let iteration = flat.as_ref().unwrap_or(iteration);
    let ordered = points::in_order_of_outputs(body, iteration);
    let iteration = ordered.as_ref().unwrap_or(iteration);
    let keep_dimensions = body.uses_coordinates();
    let operands = &iteration.operands;
    let row_strides: SmallVec<[&[u64]; 8]> = strided(operands, |rows, _| Some(rows));
    let inner_strides: SmallVec<[&[u64]; 8]> =
        strided(operands, |_, inner| (!inner.is_empty()).then_some(inner));
    let rows = merge(&iteration.rows, &row_strides, keep_dimensions);
    let inner = merge(&iteration.inner, &inner_strides, keep_dimensions);
    let geometry = Geometry {
        row_shape: rows.extents(&iteration.rows),
        inner_shape: inner.extents(&iteration.inner),
        operands: operands
            .iter()
            .map(|operand| match operand {
                Placement::Gathered(elements) => OperandGeometry::Gathered { elements: *elements },
                Placement::Strided { rows: row_strides, inner: inner_strides } => OperandGeometry::Strided {
                    row_strides: rows.strides(row_strides),
                    inner_strides: if inner_strides.is_empty() {
                        Dimensions::new()
                    } else {
                        inner.strides(inner_strides)
                    },
                },
            })
            .collect(),
    };
    let contiguous = is_contiguous(body, &geometry);
    let class = Class {
        contiguous,
        narrow_index: is_narrow(&geometry),
        ..Class::new(geometry.row_shape.len() as u8, geometry.inner_shape.len() as u8)
    };
    let alignment_bytes = iteration.alignment_bytes;
    let online = rows::online(body, &geometry, class, alignment_bytes, wanted_lanes);
    let is_online = online.as_ref().is_some_and(|class| Some(class.lanes) == wanted_lanes);
    let held_by = || wanted_lanes.and_then(|lanes| rows::held_by(lanes, body, &geometry, class, iteration));
    let special = (if is_online { None } else { held_by() })
        .or(online)
        .or_else(|| rows::held(body, &geometry, class, iteration))
        .or_else(|| columns::side_by_side(body, &geometry, class, alignment_bytes))
        .or_else(|| points::transposed_class(body, &geometry, class, alignment_bytes))
        .or_else(|| points::vectors(body, &geometry, class, alignment_bytes));
    if let Some(class) = special {
        return LaunchPlan { class, geometry };
    }
    let (lanes, rows_abreast) = lanes(body, &geometry);
    let class = Class {
        lanes,
        rows_abreast,
        cascade: cascade(body, &geometry, lanes),
        vector: if contiguous && body.reductions.is_empty() {
            vector(body, &geometry, iteration.alignment_bytes)
        } else {
            1
        },
        ..class
    };
    LaunchPlan { class, geometry }
}

fn strided<'a>(
    operands: &'a [Placement],
    choose: impl Fn(&'a [u64], &'a [u64]) -> Option<&'a [u64]>,
) -> SmallVec<[&'a [u64]; 8]> {
    let of = |operand: &'a Placement| match operand {
        Placement::Strided { rows, inner } => choose(rows, inner),
        Placement::Gathered(_) => None,
    };
    operands.iter().filter_map(of).collect()
}

/// Dimensions merged into one: runs of dimension numbers, outermost first.
struct Merged(SmallVec<[SmallVec<[usize; 6]>; 6]>);

impl Merged {
    fn extents(&self, shape: &[u64]) -> Dimensions {
        self.0.iter().map(|run| run.iter().map(|&dimension| shape[dimension]).product()).collect()
    }

    fn strides(&self, strides: &[u64]) -> Dimensions {
        self.0.iter().map(|run| run.last().map_or(1, |&dimension| strides[dimension])).collect()
    }
}

/// Merges neighbouring dimensions that every operand traverses like one dimension. Dimensions of extent 1 are removed. One
/// dimension always remains, unless the space has none.
fn merge(shape: &[u64], operands: &[&[u64]], keep: bool) -> Merged {
    let mut runs: SmallVec<[SmallVec<[usize; 6]>; 6]> = SmallVec::new();
    if keep {
        return Merged((0..shape.len()).map(|dimension| SmallVec::from_slice(&[dimension])).collect());
    }
    for dimension in (0..shape.len()).filter(|&dimension| shape[dimension] != 1) {
        let joins = runs.last().is_some_and(|run| {
            let outer = *run.last().expect("a run is never empty");
            operands.iter().all(|strides| strides[outer] == strides[dimension] * shape[dimension])
        });
        match runs.last_mut() {
            Some(run) if joins => run.push(dimension),
            _ => runs.push(SmallVec::from_slice(&[dimension])),
        }
    }
    if runs.is_empty() && !shape.is_empty() {
        runs.push(SmallVec::from_slice(&[shape.len() - 1]));
    }
    Merged(runs)
}

fn is_contiguous(body: &Body, geometry: &Geometry) -> bool {
    let (rows, points) = (geometry.rows(), geometry.points());
    let scatters = body.outputs.iter().any(|output| output.scatter.is_some());
    if scatters || body.uses_coordinates() || geometry.row_shape.len() > 1 || geometry.inner_shape.len() > 1 {
        return false;
    }
    let lies = |strides: &[u64], extent: u64, wanted: u64| {
        strides.iter().all(|&stride| extent <= 1 || stride == wanted)
    };
    let places =
        body.inputs.iter().map(|_| OutputPlace::Point).chain(body.outputs.iter().map(|output| output.place));
    geometry.operands.iter().zip(places).all(|(operand, place)| match operand {
        OperandGeometry::Gathered { .. } => true,
        OperandGeometry::Strided { row_strides, inner_strides } => {
            let row = if place == OutputPlace::Point { points } else { 1 };
            lies(row_strides, rows, row) && lies(inner_strides, points, 1)
        }
    })
}

fn is_narrow(geometry: &Geometry) -> bool {
    // Half of the range of 32 bits, so that a grid's stride can be added without overflow.
    let limit = 1 << 30;
    geometry.rows().saturating_mul(geometry.points()) < limit
        && (0..geometry.operands.len()).all(|operand| geometry.span(operand) < limit)
}

/// Returns the number of lanes of a row, and the number of rows that a block handles abreast.
fn lanes(body: &Body, geometry: &Geometry) -> (u16, u16) {
    let (rows, points) = (geometry.rows(), geometry.points());
    if body.reductions.is_empty() || points <= SERIAL_POINTS {
        return (1, 1);
    }
    let side_by_side = geometry.operands.iter().zip(&body.inputs).all(|(operand, input)| match operand {
        OperandGeometry::Strided { row_strides, inner_strides } => {
            // An operand that is the same for all rows is read once for all threads, wherever it is.
            input.kind == InputKind::Strided
                && (row_strides.iter().all(|&stride| stride == 0)
                    || row_strides.last().is_none_or(|&stride| stride <= 1)
                        && inner_strides.last().is_some_and(|&stride| stride != 1))
        }
        OperandGeometry::Gathered { .. } => true,
    });
    let neighbours = geometry.row_shape.last().copied().unwrap_or(1);
    match points {
        _ if side_by_side && rows >= ROWS_FOR_A_THREAD_EACH => (1, 1),
        _ if side_by_side && neighbours >= u64::from(ROWS_ABREAST) => {
            let lanes = (points / POINTS_ABREAST).next_power_of_two().min(MOST_LANES_ABREAST);
            (lanes as u16, ROWS_ABREAST)
        }
        _ if points <= WARP_POINTS
            && !(points > SHORT_POINTS && rows <= FEW_WARPS && body.writes_points()) =>
        {
            (32, 1)
        }
        _ if points >= LONG_POINTS && rows <= FEW_ROWS && !rounds(body) => (1024, 1),
        _ if points >= LONG_POINTS && rows <= FEW_WRITTEN_ROWS && body.writes_points() => (1024, 1),
        _ => (256, 1),
    }
}

/// Returns whether the order in which a reduction combines elements affects its result.
fn rounds(body: &Body) -> bool {
    body.reductions.iter().any(|reduction| {
        matches!(reduction.op, ReduceOp::Sum | ReduceOp::Product)
            && body.dtype(reduction.value).is_floating_point()
    })
}

/// Returns the number of levels of partial results that a lane keeps: more than one only for sums of floats, since extrema and
/// integers are exact.
fn cascade(body: &Body, geometry: &Geometry, lanes: u16) -> u8 {
    let points = geometry.points().div_ceil(u64::from(lanes));
    if !rounds(body) || points <= POINTS_OF_A_LANE {
        1
    } else if points <= POINTS_OF_TWO_LEVELS {
        2
    } else {
        3
    }
}

/// The number of threads below which a thread handles fewer points, about a block of 256 on each multiprocessor of a large GPU. A
/// thread handles its points in turn, and a kernel with so little work takes as long as its longest thread.
const FEW_THREADS: u64 = 1 << 15;

/// Returns how many neighbouring points a thread handles at once if points are contiguous: as many as fit 16 bytes, or fewer if
/// that leaves the GPU too few threads.
fn vector(body: &Body, geometry: &Geometry, alignment_bytes: u64) -> u8 {
    let sizes =
        body.inputs.iter().map(|input| input.dtype).chain(body.outputs.iter().map(|output| output.dtype));
    let largest = sizes.map(|dtype| dtype.size_bytes() as u64).max().unwrap_or(1);
    let mut vector = (VECTOR_BYTES / largest).clamp(1, 8);
    // Each thread moves `vector` elements of every operand, so the smallest dtype limits the rate, and the largest the width.
    let fills = |vector: u64| geometry.rows().saturating_mul(geometry.points()) / vector >= FEW_THREADS;
    while vector > 1 && !(alignment_bytes.is_multiple_of(vector * largest) && fills(vector)) {
        vector /= 2;
    }
    vector as u8
}

/// Builds a kernel with a name for its operator, dtypes and class. Two kernels with the same name are the same kernel.
pub fn kernel(operator: &str, compute: DType, body: Body, class: Class) -> Kernel {
    use std::fmt::Write;
    let mut name = format!("{operator}_");
    let inputs = body.inputs.iter().map(|input| input.dtype);
    let outputs = body.outputs.iter().map(|output| output.dtype);
    for dtype in inputs.chain([compute]).chain(outputs) {
        name.push_str(abbreviation(dtype));
    }
    let Class {
        row_rank, inner_rank, contiguous, narrow_index, lanes, vector, rows_abreast, cascade, ..
    } = class;
    let shape = if contiguous { "c" } else { "s" };
    let index = if narrow_index { "n" } else { "w" };
    let abreast = if rows_abreast > 1 { format!("_a{rows_abreast}") } else { String::new() };
    let levels = if cascade > 1 { format!("_k{cascade}") } else { String::new() };
    let held = match class.held {
        0 if class.online => "_o".to_owned(),
        0 => String::new(),
        held => format!("_h{held}"),
    };
    let shared = match class.streamed {
        Some(Streamed { cluster, groups, stages, columns }) => {
            format!("_b{cluster}g{groups}s{stages}w{columns:x}")
        }
        None if class.shared > 0 => format!("_d{}", class.shared),
        None => String::new(),
    };
    let shifted = if class.shifted { "_m" } else { "" };
    let repeated = if class.repeated > 0 { format!("_r{:x}", class.repeated) } else { String::new() };
    let transposed = match class.transposed {
        0 => String::new(),
        transposed => format!("_t{transposed}i{:x}", class.transposed_inputs),
    };
    write!(
        name,
        "_{shape}{row_rank}{inner_rank}{index}_l{lanes}_v{vector}{abreast}{levels}{held}{shifted}{shared}{repeated}{transposed}"
    )
    .expect("writing to a string succeeds");
    Kernel { name, body, class }
}

const fn abbreviation(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "b",
        other => other.short_name(),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
