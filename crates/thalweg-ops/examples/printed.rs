//! Prints the kernels of typical calls, so that they can be timed without this library (`time_printed.py` in this folder does
//! that). For each case it writes, to the folder given as first argument, the CUDA C (`NAME.cu`) and a line of `cases.tsv` with
//! everything that a launch needs.
//!
//! The columns are the case, the kernel's name, blocks, threads, the numbers of inputs, outputs and scalars, the words after
//! addresses and scalars, and bytes of dynamic shared memory. Calls use bfloat16 on a GPU with 132 multiprocessors. With a second
//! argument `float32`, only the cases over rows and columns are printed, in that dtype.

use std::fmt::Write as _;

use thalweg_ir::DType::{self, Bf16, F32, I64};
use thalweg_ir::{Body, LaunchArguments, OutputPlace, cuda};
use thalweg_ops::{
    Iteration, LoopOp, Placement, Signature, forward, gradient, kernel, plan, structured, table,
};

/// The placement of an operand of a case.
#[derive(Clone, Copy)]
enum Lies {
    /// At every point, stored as rows of points.
    Points,
    /// Once per row.
    Rows,
    /// Once per point, the same for all rows.
    Columns,
}

struct Case {
    name: String,
    operator: &'static LoopOp,
    signature: Signature,
    body: Body,
    iteration: Iteration,
}

fn signature(operator: &LoopOp, dtypes: &[DType], to: DType) -> Signature {
    operator.signature(dtypes, false, Some(to)).expect("the operator takes these dtypes")
}

/// Returns a case over a matrix with these numbers of rows and points, of which rows or columns are combined.
fn matrix(
    name: &str,
    operator: &'static LoopOp,
    (signature, body): (Signature, Body),
    [rows, points]: [u64; 2],
    lies: &[Lies],
    by_columns: bool,
) -> Case {
    let inputs = body.inputs.len();
    let operands = lies.iter().enumerate().map(|(number, lies)| {
        let (row, inner) = match lies {
            Lies::Points => (points, 1),
            Lies::Rows => (1, 0),
            Lies::Columns => (0, 1),
        };
        let (row, inner) = if by_columns { (inner, row) } else { (row, inner) };
        let of_rows = number >= inputs && body.outputs[number - inputs].place == OutputPlace::Row;
        let inner = if of_rows { Vec::new() } else { vec![inner] };
        Placement::Strided {
            rows: [if of_rows { 1 } else { row }].into_iter().collect(),
            inner: inner.into(),
        }
    });
    let [first, second] = if by_columns { [points, rows] } else { [rows, points] };
    let iteration = Iteration {
        rows: [first].into_iter().collect(),
        inner: [second].into_iter().collect(),
        operands: operands.collect(),
        alignment_bytes: 256,
        shared_memory_bytes: 227 << 10,
        has_clusters: true,
    };
    Case { name: format!("{name} {rows}x{points}"), operator, signature, body, iteration }
}

/// Returns a case of an elementwise operator over these extents, with the strides of each operand.
fn elementwise(
    name: &str,
    operator: &'static LoopOp,
    dtypes: &[DType],
    to: DType,
    shape: &[u64],
    strides: &[&[u64]],
) -> Case {
    let signature = signature(operator, dtypes, to);
    let body = forward(operator, &signature).body.as_ref().clone();
    let operands = strides
        .iter()
        .map(|&strides| Placement::Strided { rows: strides.into(), inner: Default::default() })
        .collect();
    let iteration = Iteration {
        rows: shape.into(),
        inner: Default::default(),
        operands,
        alignment_bytes: 256,
        shared_memory_bytes: 227 << 10,
        has_clusters: true,
    };
    Case { name: name.to_owned(), operator, signature, body, iteration }
}

/// Returns the signature and the body of an operator for these dtypes, with a result of this dtype.
fn parts_of(operator: &'static LoopOp, dtypes: &[DType], to: DType) -> (Signature, Body) {
    let mut signature = signature(operator, dtypes, to);
    if let [only] = signature.outputs.as_mut_slice() {
        *only = to;
    }
    let body = forward(operator, &signature).body.as_ref().clone();
    (signature, body)
}

/// Adds the cases of a dtype over rows of this many points, and over columns.
fn matrices(shape: [u64; 2], dtype: DType, cases: &mut Vec<Case>) {
    use Lies::{Columns, Points, Rows};
    let mut row = |name: &str, operator: &'static LoopOp, dtypes: &[DType], lies: &[Lies]| {
        let signature = signature(operator, dtypes, dtype);
        let body = forward(operator, &signature).body.as_ref().clone();
        cases.push(matrix(name, operator, (signature, body), shape, lies, false));
    };
    row("softmax", &structured::SOFTMAX, &[dtype], &[Points; 2]);
    row("log_softmax", &structured::LOG_SOFTMAX, &[dtype], &[Points; 2]);
    let lies = [Points, Columns, Columns, Points, Rows, Rows];
    row("layer_norm", &structured::LAYER_NORM_AFFINE, &[dtype; 3], &lies);
    row("sum", &structured::SUM, &[dtype], &[Points, Rows]);
    let lies = [Points, Columns, Rows, Rows, Points, Points];
    row("layer_norm_backward", &structured::LAYER_NORM_BACKWARD, &[dtype, dtype, F32, F32, dtype], &lies);
    row("cross_entropy", &structured::CROSS_ENTROPY, &[dtype, I64], &[Points, Rows, Rows, Rows]);
    let lies = [Points, Rows, Rows, Rows, Points];
    row("cross_entropy_backward", &structured::CROSS_ENTROPY_BACKWARD, &[dtype, I64, F32, dtype], &lies);
    let of_softmax = signature(&structured::SOFTMAX, &[dtype], dtype);
    let derived = gradient(&structured::SOFTMAX, &of_softmax, 1).expect("softmax has a gradient");
    let parts = (of_softmax, derived.body.as_ref().clone());
    cases.push(matrix("softmax_backward", &structured::SOFTMAX, parts, shape, &[Points; 3], false));
    let parts = parts_of(&structured::SUM, &[dtype], dtype);
    cases.push(matrix("column_sum", &structured::SUM, parts, shape, &[Points, Rows], true));
}

/// Adds the two stages of sums over long columns: parts of 1,024 points, and the combination of their results.
fn stages([points, columns]: [u64; 2], cases: &mut Vec<Case>) {
    let parts = points / 1024;
    let (signature, body) = parts_of(&structured::SUM, &[Bf16], F32);
    let strided = |rows: [u64; 2], inner: &[u64]| Placement::Strided {
        rows: rows.into_iter().collect(),
        inner: inner.into(),
    };
    let input = strided([1024 * columns, 1], &[columns]);
    let iteration = Iteration {
        rows: [parts, columns].into_iter().collect(),
        inner: [1024].into_iter().collect(),
        operands: [input, strided([columns, 1], &[])].into_iter().collect(),
        alignment_bytes: 256,
        shared_memory_bytes: 227 << 10,
        has_clusters: true,
    };
    let name = format!("column_parts {points}x{columns}");
    cases.push(Case { name, operator: &structured::SUM, signature, body, iteration });
    let rest = parts_of(&structured::SUM, &[F32], F32);
    let lies = [Lies::Points, Lies::Rows];
    cases.push(matrix("column_rest", &structured::SUM, rest, [parts, columns], &lies, true));
}

fn cases(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [
        [262_144, 1024],
        [32_768, 8192],
        [4096, 65_536],
        [349_525, 768],
        [16_384, 16_384],
        [8192, 32_768],
        [5336, 50_304],
        [2048, 131_072],
    ] {
        matrices(shape, dtype, &mut cases);
    }
    if dtype != Bf16 {
        return cases;
    }
    for shape in [[262_144, 1024], [32_768, 8192], [4096, 65_536]] {
        stages(shape, &mut cases);
    }
    let count = 1 << 28;
    let flat: &[u64] = &[1];
    cases.push(elementwise("gelu", &table::gelu, &[Bf16], Bf16, &[count], &[flat; 2]));
    cases.push(elementwise("add", &table::add, &[Bf16; 2], Bf16, &[count], &[flat; 3]));
    cases.push(elementwise("cast", &structured::COPY, &[Bf16], F32, &[count], &[flat; 2]));
    let side = 16_384;
    let turned: [&[u64]; 2] = [&[1, side], &[side, 1]];
    cases.push(elementwise("transpose", &structured::COPY, &[Bf16], Bf16, &[side; 2], &turned));
    cases.push(elementwise("transpose_f32", &structured::COPY, &[F32], F32, &[side; 2], &turned));
    let one: [&[u64]; 3] = [&[1, side], &[side, 1], &[side, 1]];
    cases.push(elementwise("add_transposed", &table::add, &[Bf16; 2], Bf16, &[side; 2], &one));
    let heads: [&[u64]; 2] = [&[1024 * 768, 64, 768, 1], &[1024 * 768, 1024 * 64, 64, 1]];
    cases.push(elementwise("heads", &structured::COPY, &[Bf16], Bf16, &[256, 12, 1024, 64], &heads));
    cases
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target/printed".to_owned());
    std::fs::create_dir_all(&folder)?;
    let mut lines = String::new();
    let dtype = if std::env::args().nth(2).as_deref() == Some("float32") { F32 } else { Bf16 };
    for case in cases(dtype) {
        let Case { name, operator, signature, body, iteration } = case;
        let plan = plan(&body, &iteration);
        let kernel = kernel(operator.name, signature.compute, body, plan.class);
        let shape = cuda::launch_shape(&kernel, &plan.geometry, 132);
        let sizes: Vec<String> =
            LaunchArguments::sizes(&kernel, &plan.geometry).iter().map(|word| word.to_string()).collect();
        let counts = [kernel.body.inputs.len(), kernel.body.outputs.len(), kernel.body.scalars.len()];
        let [inputs, outputs, scalars] = counts;
        let symbol = &kernel.name;
        writeln!(
            lines,
            "{name}\t{symbol}\t{}\t{}\t{inputs}\t{outputs}\t{scalars}\t{}\t{}",
            shape.grid[0],
            shape.block[0],
            sizes.join(","),
            cuda::shared_memory_bytes(&kernel)
        )
        .expect("writing to a string succeeds");
        std::fs::write(format!("{folder}/{symbol}.cu"), cuda::print(&kernel))?;
    }
    std::fs::write(format!("{folder}/cases.tsv"), lines)
}
