//! Points whose operands disagree on the fastest dimension, as in a transposition: a block reads a tile of each such input along
//! the dimension in which the input's elements are adjacent, and writes along that of the outputs.

use crate::{DType, Kernel};

use super::entry::{POINT_BLOCK, index_type, open_entry, split_index};
use super::expression::{Statements, memory_type};
use super::point::{loaded_inputs, print_values};
use super::writer::Writer;

/// The number of points of a tile in both of its dimensions.
pub(super) const TILE: u32 = 64;

/// Returns how many elements a row of a tile takes in shared memory, so that neighbouring rows begin in different banks.
const fn pitch(dtype: DType) -> u32 {
    TILE + if dtype.size_bytes() < 4 { 4 / dtype.size_bytes() as u32 } else { 1 }
}

/// Returns the number of tiles of a space with these extents. Tiles cover the last and the turned dimension.
pub(super) fn count(extents: &[u64], transposed: u8) -> u64 {
    let tiled = |dimension: usize| dimension + 1 == extents.len() || dimension + 1 == usize::from(transposed);
    let tiles = extents
        .iter()
        .enumerate()
        .map(|(dimension, &extent)| if tiled(dimension) { extent.div_ceil(u64::from(TILE)) } else { extent });
    tiles.product()
}

/// A printer of a kernel over tiles.
struct TilePrinter<'k> {
    kernel: &'k Kernel,
    index: &'static str,
    /// The dimension in which outputs are written; `transposed` is the one in which turned inputs are read.
    last: u8,
    transposed: u8,
}

/// Prints the kernel.
pub(super) fn print(kernel: &Kernel, writer: &mut Writer) {
    let class = &kernel.class;
    let printer = TilePrinter {
        kernel,
        index: index_type(class),
        last: class.row_rank - 1,
        transposed: class.transposed - 1,
    };
    printer.print(writer);
}

impl TilePrinter<'_> {
    fn print(&self, writer: &mut Writer) {
        let (kernel, index, last, transposed) = (self.kernel, self.index, self.last, self.transposed);
        let inputs = loaded_inputs(kernel);
        let (tiled, plain): (Vec<usize>, Vec<usize>) =
            inputs.iter().partition(|&&input| kernel.class.transposed_inputs >> input & 1 == 1);
        open_entry(kernel, POINT_BLOCK, 1, writer);
        for &input in &tiled {
            let dtype = kernel.body.inputs[input].dtype;
            writer.line(&format!(
                "__shared__ __align__(16) {} tile{input}[{TILE}][{}];",
                self.pack(dtype, 1),
                pitch(dtype)
            ));
        }
        for (name, dimension) in [("written", last), ("read", transposed)] {
            writer.line(&format!("const {index} {name} = {index}(a.row_extent{dimension});"));
            writer.line(&format!("const {index} {name}_tiles = ({name} + {}) / {TILE};", TILE - 1));
        }
        let others: Vec<u8> =
            (0..kernel.class.row_rank).filter(|d| ![last, transposed].contains(d)).collect();
        let extents: Vec<String> =
            others.iter().map(|dimension| format!(" * {index}(a.row_extent{dimension})")).collect();
        writer.line(&format!("const {index} tiles = written_tiles * read_tiles{};", extents.concat()));
        writer.open(&format!("for ({index} number = blockIdx.x; number < tiles; number += gridDim.x)"));
        writer.line(&format!("const {index} first_written = number % written_tiles * {TILE};"));
        writer.line(&format!("const {index} first_read = number / written_tiles % read_tiles * {TILE};"));
        if !others.is_empty() {
            writer.line(&format!("const {index} outside = number / written_tiles / read_tiles;"));
        }
        let dimensions: Vec<(String, String)> =
            others.iter().map(|d| (format!("row{d}"), format!("row_extent{d}"))).collect();
        split_index("outside", &dimensions, index, writer);
        let outputs = (0..kernel.body.outputs.len()).map(|number| format!("output{number}"));
        for operand in inputs.iter().map(|number| format!("input{number}")).chain(outputs) {
            let terms: Vec<String> =
                others.iter().map(|d| format!("row{d} * {index}(a.{operand}_row_stride{d})")).collect();
            let start = if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") };
            writer.line(&format!("const {index} start_{operand} = {start};"));
        }
        self.print_reads(&tiled, writer);
        self.print_points(&plain, writer);
        writer.line("__syncthreads();");
        writer.close("");
        writer.close("");
    }

    fn pack(&self, dtype: DType, elements: u8) -> String {
        match elements {
            1 => memory_type(dtype).to_owned(),
            _ => format!("pack<{}, {elements}>", memory_type(dtype)),
        }
    }

    /// Returns the sum of the two coordinates of a tile's point times an operand's strides.
    fn at(&self, operand: &str) -> String {
        let (index, last, transposed) = (self.index, self.last, self.transposed);
        format!(
            "start_{operand} + at_written * {index}(a.{operand}_row_stride{last}) + at_read * {index}(a.{operand}_row_stride{transposed})"
        )
    }

    /// Opens the loop over a thread's vectors of a tile that run along `along`, which is `read` or `written`.
    fn open_vectors(&self, along: &str, across: &str, writer: &mut Writer) {
        let (index, vector) = (self.index, u32::from(self.kernel.class.vector));
        let per_row = TILE / vector;
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 k = 0; k < {}; ++k)", TILE * per_row / POINT_BLOCK));
        writer.line(&format!(
            "const u32 {along}_place = (k * {POINT_BLOCK} + threadIdx.x) % {per_row} * {vector};"
        ));
        writer.line(&format!("const u32 {across}_place = (k * {POINT_BLOCK} + threadIdx.x) / {per_row};"));
        for name in [along, across] {
            writer.line(&format!("const {index} at_{name} = first_{name} + {name}_place;"));
        }
        writer.open("if (at_written < written && at_read < read)");
    }

    /// Prints the loads of tiles: all are in flight before the first is stored in shared memory.
    fn print_reads(&self, tiled: &[usize], writer: &mut Writer) {
        let vector = self.kernel.class.vector;
        let count = TILE * TILE / u32::from(vector) / POINT_BLOCK;
        let packs: Vec<String> =
            tiled.iter().map(|&input| self.pack(self.kernel.body.inputs[input].dtype, vector)).collect();
        for (input, pack) in tiled.iter().zip(&packs) {
            writer.line(&format!("{pack} input{input}[{count}];"));
        }
        self.open_vectors("read", "written", writer);
        for (input, pack) in tiled.iter().zip(&packs) {
            let at = self.at(&format!("input{input}"));
            writer.line(&format!("input{input}[k] = *(const {pack}*)(a.input{input} + {at});"));
        }
        (0..2).for_each(|_| writer.close(""));
        self.open_vectors("read", "written", writer);
        for (input, pack) in tiled.iter().zip(&packs) {
            writer.line(&format!("*({pack}*)&tile{input}[written_place][read_place] = input{input}[k];"));
        }
        (0..2).for_each(|_| writer.close(""));
        writer.line("__syncthreads();");
    }

    /// Prints the computation at the points of a tile.
    fn print_points(&self, plain: &[usize], writer: &mut Writer) {
        let (kernel, index, last) = (self.kernel, self.index, self.last);
        let (body, vector) = (&kernel.body, kernel.class.vector);
        self.open_vectors("written", "read", writer);
        for &input in plain {
            writer.line(&format!("const {index} at_input{input} = {};", self.at(&format!("input{input}"))));
        }
        for (number, output) in body.outputs.iter().enumerate() {
            let pack = format!("pack<{}, {vector}>", memory_type(output.dtype));
            writer.line(&format!("{pack} output{number};"));
        }
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
        let transposed_inputs = kernel.class.transposed_inputs;
        let load = move |input: usize| {
            if transposed_inputs >> input & 1 == 1 {
                format!("tile{input}[written_place + e][read_place]")
            } else {
                format!("a.input{input}[at_input{input} + e * {index}(a.input{input}_row_stride{last})]")
            }
        };
        let statements = Statements::new(body, load);
        print_values(kernel, &statements, &|number| format!("output{number}.element[e]"), writer);
        writer.close("");
        for (number, output) in body.outputs.iter().enumerate() {
            let pack = format!("pack<{}, {vector}>", memory_type(output.dtype));
            let at = self.at(&format!("output{number}"));
            writer.line(&format!("*({pack}*)(a.output{number} + {at}) = output{number};"));
        }
        (0..2).for_each(|_| writer.close(""));
    }
}
