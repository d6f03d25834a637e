//! Rows that stream through the shared memory of a cluster of blocks ([`Class::streamed`]), for rows too long for the registers
//! of one multiprocessor.
//!
//! A block has several groups of threads, each with memory for a few rows. The copy engine brings a group's next rows while the
//! group computes one; each pass reads shared memory. Inputs that are the same for all rows are copied once. A reduction is
//! combined by warps. Each warp sends its result to the shared memory of every block of the cluster, so that all threads receive
//! it without a barrier of the cluster, and the other groups of a block compute meanwhile.
//!
//! # Why sent values do not overwrite each other
//! An exchange alternates between two slots. A warp sends its value of exchange n + 2 after it has read the values of n + 1,
//! which were complete. So every warp of the cluster had sent its value of n + 1, which each does after it has read the values of
//! n. Exchange n + 2 therefore overwrites only values that have been read. Blocks end together, so that no block sends to one
//! that has ended.

use crate::body::{InputKind, Node};
use crate::held::Held;
use crate::kernel::Streamed;
use crate::{Class, ExprId, Kernel};

use super::entry::{index_type, open_entry_with};
use super::expression::{Defined, memory_type};
use super::row::RowPrinter;
use super::writer::Writer;

/// Inputs that are copied to shared memory, each with the offset of its piece in bytes.
struct Copied {
    inputs: Vec<(usize, u32)>,
    bytes: u32,
}

impl Copied {
    /// Places the pieces of these inputs one after the other.
    fn of(kernel: &Kernel, streamed: Streamed, is_copied: impl Fn(usize) -> bool) -> Self {
        let (body, class) = (&kernel.body, &kernel.class);
        let elements = u32::from(class.held) * piece(class, streamed);
        let mut bytes = 0;
        let walks = |&input: &usize| {
            body.inputs[input].kind == InputKind::Strided && body.uses_input(input) && !class.repeats(input)
        };
        let inputs = (0..body.inputs.len()).filter(walks).filter(|&input| is_copied(input)).map(|input| {
            let place = bytes;
            bytes += elements * body.inputs[input].dtype.size_bytes() as u32;
            (input, place)
        });
        Self { inputs: inputs.collect(), bytes }
    }

    /// Returns the inputs that differ by row, and those that are the same for all rows.
    fn all(kernel: &Kernel, streamed: Streamed) -> [Self; 2] {
        [false, true].map(|column| Self::of(kernel, streamed, |input| streamed.is_column(input) == column))
    }

    /// Returns the bytes of one element of every input together.
    fn bytes_of_an_element(&self, kernel: &Kernel) -> usize {
        self.inputs.iter().map(|&(input, _)| kernel.body.inputs[input].dtype.size_bytes()).sum()
    }
}

/// Returns the number of elements of a piece of a row: a vector for each thread of a group.
fn piece(class: &Class, streamed: Streamed) -> u32 {
    class.threads_of_a_group(streamed) * u32::from(class.vector)
}

/// Returns the bytes of dynamic shared memory of a block.
pub(super) fn shared_bytes(kernel: &Kernel, streamed: Streamed) -> u32 {
    let [rows, columns] = Copied::all(kernel, streamed);
    u32::from(streamed.groups) * u32::from(streamed.stages) * rows.bytes + columns.bytes
}

impl RowPrinter<'_> {
    /// Prints the kernel.
    pub(super) fn print_streamed(&self, held: &Held, writer: &mut Writer) {
        let kernel = self.kernel;
        let (class, index) = (&kernel.class, index_type(&kernel.class));
        let Some(streamed) = class.streamed else { return };
        let Streamed { cluster, groups, stages, .. } = streamed;
        let threads = class.threads_of_a_group(streamed);
        let [rows, columns] = Copied::all(kernel, streamed);
        let values = held.passes.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let bounds = format!("{}, 1", u32::from(groups) * threads);
        open_entry_with(
            kernel,
            &format!("__cluster_dims__({cluster}, 1, 1) __launch_bounds__({bounds})"),
            writer,
        );
        writer.line("extern __shared__ __align__(128) unsigned char dynamic_shared[];");
        writer.line(&format!(
            "__shared__ streamed_rows<{cluster}, {groups}, {stages}, {threads}, {values}> shared;"
        ));
        writer.line(&format!("const u32 rank = blockIdx.x % {cluster}, group = threadIdx.x / {threads};"));
        writer
            .line(&format!("const u32 thread = threadIdx.x % {threads}, lane = rank * {threads} + thread;"));
        writer.line(&format!("const {index} rows = {index}(a.rows), points = {index}(a.points);"));
        let piece = piece(class, streamed);
        writer.line(&format!("const u32 elements = elements_of_block<{cluster}, {piece}>(points, rank);"));
        writer.line("begin_streaming(shared);");
        self.print_columns_copied(streamed, &rows, &columns, writer);
        self.print_fetch(streamed, &rows, writer);
        if !columns.inputs.is_empty() {
            writer.line("await_bytes(shared.columns, 0);");
        }
        writer.line("u32 stage = 0, phase = 0, turn = 0;");
        writer.open(&format!("for ({index} row = begin; row < rows; row += step)"));
        self.print_row_places(writer);
        writer.line(&format!("unsigned char* const staged = {};", stage_at(streamed, &rows, "stage")));
        for &(input, place) in &rows.inputs {
            let pack = self.pack(kernel.body.inputs[input].dtype);
            writer.line(&format!("const {pack}* const copied{input} = (const {pack}*)(staged + {place});"));
        }
        let defined = self.print_arrival(writer);
        self.print_passes(held, defined, writer);
        writer.line(&format!("meet_group<{threads}>(group);"));
        writer.open("if (thread < 32)");
        writer.line(&format!("fetch(row + {stages} * step, stage);"));
        writer.close("");
        writer.line("++stage;");
        writer.open(&format!("if (stage == {stages})"));
        writer.line("stage = 0;");
        writer.line("phase ^= 1;");
        writer.close("");
        writer.close("");
        writer.line("meet_cluster();");
        writer.close("");
    }

    /// Prints the copies of inputs that are the same for all rows.
    fn print_columns_copied(&self, streamed: Streamed, rows: &Copied, columns: &Copied, writer: &mut Writer) {
        if columns.inputs.is_empty() {
            return;
        }
        let (kernel, piece) = (self.kernel, piece(&self.kernel.class, streamed));
        let before = u32::from(streamed.groups) * u32::from(streamed.stages) * rows.bytes;
        let cluster = streamed.cluster;
        for &(input, place) in &columns.inputs {
            let pack = self.pack(kernel.body.inputs[input].dtype);
            let at = before + place;
            writer.line(&format!(
                "const {pack}* const copied{input} = (const {pack}*)(dynamic_shared + {at});"
            ));
        }
        writer.open("if (threadIdx.x < 32)");
        let bytes = columns.bytes_of_an_element(kernel);
        print_expectation("threadIdx.x", "shared.columns", bytes, writer);
        for &(input, _) in &columns.inputs {
            let of = memory_type(kernel.body.inputs[input].dtype);
            writer.line(&format!(
                "copy_pieces<{cluster}, {piece}>(({of}*)copied{input}, a.input{input}, points, rank, shared.columns);"
            ));
        }
        writer.close("");
    }

    /// Prints the function that begins to copy a row, and the copies of the first rows.
    fn print_fetch(&self, streamed: Streamed, rows: &Copied, writer: &mut Writer) {
        let (kernel, index) = (self.kernel, self.index);
        let (Streamed { cluster, groups, stages, .. }, piece) = (streamed, piece(&kernel.class, streamed));
        writer.line(&format!(
            "const {index} clusters = {index}(gridDim.x) / {cluster}, step = clusters * {groups};"
        ));
        writer.line(&format!("const {index} begin = {index}(blockIdx.x) / {cluster} + group * clusters;"));
        writer.open(&format!("const auto fetch = [&](const {index} row, const u32 stage)"));
        writer.open("if (row < rows)");
        let bytes = rows.bytes_of_an_element(kernel);
        print_expectation("thread", "shared.full[group][stage]", bytes, writer);
        writer.line(&format!("unsigned char* const to = {};", stage_at(streamed, rows, "stage")));
        for &(input, place) in &rows.inputs {
            let of = memory_type(kernel.body.inputs[input].dtype);
            let stride = match kernel.class.contiguous {
                true => "points".to_owned(),
                false => format!("{index}(a.input{input}_row_stride0)"),
            };
            writer.line(&format!(
                "copy_pieces<{cluster}, {piece}>(({of}*)(to + {place}), a.input{input} + row * {stride}, points, rank, shared.full[group][stage]);"
            ));
        }
        writer.close("");
        writer.close(";");
        writer.open("if (thread < 32)");
        writer.open(&format!("for (u32 stage = 0; stage < {stages}; ++stage)"));
        writer.line("fetch(begin + stage * step, stage);");
        writer.close("");
        writer.close("");
    }

    /// Prints the wait for a row, after the loads of its single elements, which arrive meanwhile. Returns the values that are
    /// defined then.
    fn print_arrival(&self, writer: &mut Writer) -> Defined {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let is_single =
            |node: &Node| matches!(node, Node::Load { input } if class.repeats(usize::from(*input)));
        let singles = body.nodes.iter().zip(0..).filter(|(node, _)| is_single(node));
        let singles: Vec<ExprId> = singles.map(|(_, index)| ExprId(index)).collect();
        let mut defined = self.statements.nothing();
        self.define_for_row(&singles, &mut defined, writer);
        writer.line("await_bytes(shared.full[group][stage], phase);");
        defined
    }

    /// Returns the vector of an input that begins at `first`, as it is read from shared memory.
    pub(super) fn in_shared_memory(&self, streamed: Streamed, input: usize) -> String {
        format!("copied{input}[k * {} + thread]", self.kernel.class.threads_of_a_group(streamed))
    }

    /// Prints how the threads of a cluster combine their parts of a row.
    pub(super) fn print_exchange(&self, streamed: Streamed, combined: &[usize], writer: &mut Writer) {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let (cluster, threads) = (u32::from(streamed.cluster), class.threads_of_a_group(streamed));
        let warps = threads / 32;
        let sizes =
            combined.iter().map(|&number| body.dtype(body.reductions[number].value).size_bytes().max(4));
        let bytes = sizes.sum::<usize>() as u32 * cluster * warps;
        writer.open("if (thread == 0)");
        writer.line(&format!("expect_bytes(shared.exchanged[group][turn & 1], {bytes});"));
        writer.close("");
        for &number in combined {
            let function = self.combining_function(number);
            let dtype = body.dtype(body.reductions[number].value).short_name();
            writer.line(&format!(
                "const {dtype} own{number} = combine_warp<32>(combine_vector(lanes{number}, {function}), {function});"
            ));
        }
        for (place, &number) in combined.iter().enumerate() {
            writer.line(&format!(
                "send<{cluster}>(own{number}, shared.values[group][turn & 1][{place}][rank * {warps} + thread / 32], shared.exchanged[group][turn & 1]);"
            ));
        }
        writer.line("await_bytes(shared.exchanged[group][turn & 1], turn >> 1 & 1);");
        for (place, &number) in combined.iter().enumerate() {
            let dtype = body.dtype(body.reductions[number].value).short_name();
            let function = self.combining_function(number);
            writer.line(&format!(
                "const {dtype} reduced{number} = combine_sent<{dtype}>(shared.values[group][turn & 1][{place}], {function});"
            ));
        }
        writer.line("++turn;");
    }
}

/// Prints how the first lane of a warp announces the bytes that the warp will copy of a row.
fn print_expectation(thread: &str, barrier: &str, bytes_of_an_element: usize, writer: &mut Writer) {
    writer.open(&format!("if ({thread} == 0)"));
    writer.line(&format!("expect_bytes({barrier}, elements * {bytes_of_an_element});"));
    writer.close("");
    writer.line("__syncwarp();");
}

/// Returns the code for the beginning of a stage's memory in a thread's group.
fn stage_at(streamed: Streamed, rows: &Copied, stage: &str) -> String {
    format!("dynamic_shared + (group * {} + {stage}) * {}", streamed.stages, rows.bytes)
}
