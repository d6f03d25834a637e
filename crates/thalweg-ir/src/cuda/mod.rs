//! CUDA C++ from kernels: [`print()`] writes the source for NVRTC, [`launch_shape`] computes the grid and block size.
//!
//! The text is a function of the kernel only, so it serves as a cache key; a change of the printer shows in the snapshots of the
//! tests. The text includes no header: a prelude of our own has the 16-bit floats, the saturating casts and the combination of
//! lanes, and only those parts that the kernels mention are printed.
//!
//! # Forms
//! - **Contiguous points.** A body without reductions whose operands are contiguous. A thread handles [`Class::vector`]
//!   consecutive elements with loads and stores of up to 16 bytes, then the rest one by one.
//! - **Strided points.** Points with coordinates: the linear index is divided once by each extent. Vectors run along the last
//!   dimension, in which some inputs may repeat one element.
//! - **Tiles.** Strided points where inputs are contiguous in a different dimension than outputs ([`Class::transposed`]): a block reads a
//!   tile along one dimension and writes it along the other.
//! - **Rows.** A body with reductions. [`Class::threads_of_a_row`] threads work on a row: one thread, part of a warp, a warp, or
//!   a block. If the points fit into their registers, the row is [`held`](Class::held): read once, as vectors. If they do not,
//!   and the GPU has clusters of blocks, the row [streams](Class::streamed) through the shared memory of several blocks. If only
//!   a greatest value and a sum of exponentials are needed, the row is read [`online`](Class::online): once, without keeping it.
//! - **Columns.** If neighbouring rows are adjacent in memory, as in a sum over columns, a block works on [`Class::rows_abreast`]
//!   of them, and neighbouring threads are the same lane of neighbouring rows, or of neighbouring vectors of rows.
//!
//! Reductions that need no earlier result share one pass over the row; values that are constant in a row are computed before the
//! pass.
//!
//! Every form loops over its work in steps of the grid, so that any grid (of complete clusters, where there are clusters) is
//! correct, and [`launch_shape`] affects speed only.
//!
//! # Invariants
//! - The order of a reduction is the one that [`Class`] documents; with [`OPTIONS`] nothing is contracted or flushed. Every
//!   operation that is correctly rounded therefore has the bits of the host executor; the errors of the others are those of the
//!   tables in NVIDIA's CUDA programming guide (mathematical functions, default compilation). Exponentials of rows whose elements and
//!   results are all floats of 16 bits are `__expf` ([`Body::has_fast_exponentials`](crate::Body::has_fast_exponentials)), as are
//!   those of which only results of 16 bits follow ([`Body::rounded_coarsely`](crate::Body::rounded_coarsely)): their error is
//!   2 + |1.173 x| units of f32. Likewise, quotients by one plus an exponential, from which only results of 16 bits follow, are
//!   products by an approximate reciprocal, two units off at most.
//! - A gathered element is read, and a scattered one written, only where its guard is true.
//! - Every thread of a block reaches every barrier: loops around barriers depend on the block only, and threads without a row
//!   take part with no points.
//!
//! This module compiles nothing and uses no device: the number of multiprocessors is an argument.

mod columns;
mod entry;
mod expression;
mod foreach;
mod held;
mod online;
mod point;
mod prelude;
mod row;
mod streamed;
mod tile;
mod writer;

use crate::body::{InputKind, OutputPlace};
use crate::{Class, Geometry, Kernel};
use entry::{POINT_BLOCK, ROW_BLOCK};
use writer::Writer;

pub use expression::FloatNames;
pub use foreach::print_foreach;
pub use prelude::with_prelude;

/// The options that NVRTC needs in addition to the architecture: the language, and no contraction of a·b + c, so that a kernel
/// rounds where its body does.
pub const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false"];

/// The most blocks per multiprocessor of kernels whose threads handle one element at a time, since such a block does little work in
/// comparison with its start. Other kernels have a block for each part of their work, so that no multiprocessor waits for another at
/// the end.
const BLOCKS_PER_MULTI_PROCESSOR: u64 = 32;

/// The most blocks per multiprocessor for kernels that draw random numbers. PyTorch's kernels have the same number on a
/// multiprocessor of 2,048 threads, so that the elements that a thread handles one after another use the words of one block
/// ([`philox`](crate::philox)).
const DRAWING_BLOCKS: u64 = 8;

/// The numbers of blocks and threads of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaunchShape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
}

/// The most blocks of a launch that may begin before the preceding kernel is complete.
const MOST_EARLY_BLOCKS: u64 = 512;

/// Returns whether a kernel of the loop IR is launched before the preceding kernel is complete, for which it then waits itself.
/// This holds for small kernels, whose launch takes as long as their work and whose blocks take no room from the preceding
/// kernel's.
pub fn is_programmatic(shape: &LaunchShape) -> bool {
    shape.grid.iter().map(|&side| u64::from(side)).product::<u64>() <= MOST_EARLY_BLOCKS
}

/// Returns the translation unit of one kernel, whose entry point has the kernel's name and takes one structure by value: the words
/// of [`LaunchArguments`](crate::LaunchArguments).
///
/// # Panics
/// If the kernel is invalid: arithmetic on a 16-bit float, a coordinate beyond its class's ranks, lanes that are not a power of
/// two, a vector in a body with reductions.
pub fn print(kernel: &Kernel) -> String {
    print_unit(&[kernel])
}

/// Prints several kernels in one translation unit, which compiles much faster than one unit per kernel. Names must differ.
///
/// # Panics
/// Under the conditions of [`print()`], and if two kernels have the same name.
pub fn print_unit(kernels: &[&Kernel]) -> String {
    let mut names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "kernels of one unit have different names");
    let mut code = String::new();
    for kernel in kernels {
        code.push('\n');
        code.push_str(&print_kernel(kernel));
    }
    prelude::needed_by(&code) + &code
}

/// Returns the launch of a kernel over a geometry on a GPU with this many multiprocessors. For [clusters](Class::streamed) this may
/// be more than can run at once, so that the last would wait for the first: only the driver knows how many can.
///
/// The grid is never empty: the caller must skip a geometry without rows or points.
pub fn launch_shape(kernel: &Kernel, geometry: &Geometry, multi_processor_count: u32) -> LaunchShape {
    let class = &kernel.class;
    let threads_of_a_row = u64::from(class.threads_of_a_row());
    let abreast = u32::from(class.rows_abreast);
    let (blocks, threads) = if class.transposed > 0 {
        (tile::count(&geometry.row_shape, class.transposed), POINT_BLOCK)
    } else if works_by_points(kernel) {
        let points = geometry.rows().saturating_mul(geometry.points());
        let vectors = points.div_ceil(u64::from(class.vector));
        let at_once = if class.contiguous { point::vectors_at_once(kernel) } else { 1 };
        (vectors.div_ceil(u64::from(POINT_BLOCK * at_once)), POINT_BLOCK)
    } else if abreast > 1 {
        (geometry.rows().div_ceil(u64::from(abreast)), u32::from(class.lanes) * class.threads_abreast())
    } else if threads_of_a_row <= 32 {
        (geometry.rows().div_ceil(u64::from(ROW_BLOCK) / threads_of_a_row), ROW_BLOCK)
    } else if let Some(streamed) = class.streamed {
        let cluster = u64::from(streamed.cluster);
        let clusters = u64::from(multi_processor_count) / cluster;
        let threads = u32::from(streamed.groups) * class.threads_of_a_group(streamed);
        (geometry.rows().min(clusters.max(1)) * cluster, threads)
    } else {
        (geometry.rows(), class.threads_of_a_row())
    };
    let most = if works_by_points(kernel) && class.vector == 1 && class.transposed == 0 {
        let blocks = if kernel.body.draws() { DRAWING_BLOCKS } else { BLOCKS_PER_MULTI_PROCESSOR };
        u64::from(multi_processor_count.max(1)) * blocks
    } else {
        (1 << 31) - 1
    };
    LaunchShape { grid: [blocks.clamp(1, most) as u32, 1, 1], block: [threads, 1, 1] }
}

/// Returns the bytes of dynamic shared memory of each block of a launch.
pub fn shared_memory_bytes(kernel: &Kernel) -> u32 {
    match kernel.class.streamed {
        Some(streamed) => streamed::shared_bytes(kernel, streamed),
        None if kernel.class.shared > 0 => held::shared_bytes(kernel),
        None => 0,
    }
}

/// Returns whether threads have their own points rather than rows: nothing is combined, and no output is written once for several
/// points.
fn works_by_points(kernel: &Kernel) -> bool {
    let body = &kernel.body;
    body.reductions.is_empty()
        && (kernel.class.inner_rank == 0
            || body.outputs.iter().all(|output| output.place == OutputPlace::Point))
}

fn print_kernel(kernel: &Kernel) -> String {
    let Class { row_rank, inner_rank, contiguous, lanes, vector, .. } = kernel.class;
    let name = &kernel.name;
    let threads = kernel.class.threads_of_a_row();
    let blocks = kernel.class.streamed.map_or(1, |streamed| u32::from(streamed.cluster));
    assert!(
        lanes.is_power_of_two() && threads.is_power_of_two() && threads <= 1024 * blocks,
        "{name}: {lanes} lanes are not a power of two of up to 1,024 threads"
    );
    assert!(matches!(kernel.class.cascade, 1..=3), "{name}: a cascade has one to three levels");
    let abreast = kernel.class.rows_abreast;
    let threads_abreast = kernel.class.threads_abreast();
    // Threads that reduce a row alone are abreast only for the sake of vectors.
    let is_of_use = lanes > 1 || vector > 1;
    let fits = abreast == 1
        || (is_of_use && abreast.is_power_of_two() && (1..=1024).contains(&(threads * threads_abreast)));
    assert!(fits, "{name}: {abreast} rows of {lanes} lanes are not a block of up to 1,024 threads");
    assert!(matches!(vector, 1 | 2 | 4 | 8), "{name}: a vector of {vector} elements is not 1, 2, 4 or 8");
    let scatters = kernel.body.outputs.iter().any(|output| output.scatter.is_some());
    assert!(!contiguous || !scatters, "{name}: a kernel that scatters is not contiguous");
    let reports = kernel.body.report.is_some();
    assert!(
        !reports
            || works_by_points(kernel)
            || kernel.body.outputs.iter().any(|output| output.place == OutputPlace::Row),
        "{name}: a report goes with an output that is written once per row"
    );
    assert!(!contiguous || (row_rank <= 1 && inner_rank <= 1), "{name}: contiguous dimensions are merged");
    let mut writer = Writer::default();
    print_arguments(kernel, &mut writer);
    if works_by_points(kernel) {
        let is_plain = lanes == 1 && abreast == 1 && kernel.class.cascade == 1;
        assert!(is_plain, "{name}: nothing is combined, so a row has one lane");
        if contiguous {
            point::print_contiguous(kernel, &mut writer);
        } else if kernel.class.transposed > 0 {
            assert!(
                kernel.class.transposed < row_rank && inner_rank == 0 && !scatters,
                "{name}: nothing is turned"
            );
            tile::print(kernel, &mut writer);
        } else {
            point::print_strided(kernel, &mut writer);
        }
    } else {
        let has_vectors =
            kernel.class.held > 0 || kernel.class.online || abreast > 1 && inner_rank == 1 && !contiguous;
        assert!(
            vector == 1 || has_vectors,
            "{name}: only rows that are held, online or abreast have vectors"
        );
        row::print(kernel, &mut writer);
    }
    writer.finish()
}

/// Prints the structure of a kernel's arguments: the words of [`LaunchArguments::pack`](crate::LaunchArguments::pack), by name.
fn print_arguments(kernel: &Kernel, writer: &mut Writer) {
    let (body, class) = (&kernel.body, &kernel.class);
    writer.open(&format!("struct {}_arguments", kernel.name));
    for (number, input) in body.inputs.iter().enumerate() {
        writer.line(&format!("const {}* input{number};", expression::memory_type(input.dtype)));
    }
    for (number, output) in body.outputs.iter().enumerate() {
        writer.line(&format!("{}* output{number};", expression::memory_type(output.dtype)));
    }
    for (number, &dtype) in body.scalars.iter().enumerate() {
        writer.line(&format!("{} scalar{number};", expression::scalar_type(dtype)));
    }
    if body.report.is_some() {
        writer.line("volatile i64* report;");
    }
    writer.line("u64 rows;");
    writer.line("u64 points;");
    let words = |writer: &mut Writer, prefix: &str, count: u8| {
        (0..count).for_each(|number| writer.line(&format!("u64 {prefix}{number};")));
    };
    if !class.contiguous {
        words(writer, "row_extent", class.row_rank);
        words(writer, "inner_extent", class.inner_rank);
    }
    for (number, input) in body.inputs.iter().enumerate() {
        match input.kind {
            InputKind::Gathered => writer.line(&format!("u64 input{number}_elements;")),
            InputKind::Strided if class.contiguous => {}
            InputKind::Strided => {
                words(writer, &format!("input{number}_row_stride"), class.row_rank);
                words(writer, &format!("input{number}_inner_stride"), class.inner_rank);
            }
        }
    }
    for (number, output) in body.outputs.iter().enumerate() {
        if output.scatter.is_some() {
            writer.line(&format!("u64 output{number}_elements;"));
            continue;
        }
        if class.contiguous {
            continue;
        }
        words(writer, &format!("output{number}_row_stride"), class.row_rank);
        if output.place == OutputPlace::Point {
            words(writer, &format!("output{number}_inner_stride"), class.inner_rank);
        }
    }
    writer.close(";");
    writer.blank();
}
