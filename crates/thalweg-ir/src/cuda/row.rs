//! Kernels whose threads share rows: bodies with reductions, or with outputs that are written once for several points.
//!
//! This module is a hub: `held`, `streamed` and `online` print special forms of row with its printer.

use crate::body::{InputKind, OutputPlace};
use crate::held::{passes, reduced_by};
use crate::kernel::RUN;
use crate::online::{is_one_value, picked};
use crate::{DType, ExprId, Kernel};

use super::entry::{
    ROW_BLOCK, index_type, inner_dimensions, offset, open_entry, row_dimensions, split_index,
};
use super::expression::{Defined, Statements, binary, combining, neutral, reported, scattered, stored};
use super::writer::Writer;

/// The passes of a kernel over the points, and the outputs by where they are written.
pub(super) struct Written {
    passes: Vec<Vec<usize>>,
    /// Outputs at points that the last pass writes.
    early: Vec<usize>,
    pub of_row: Vec<usize>,
    /// Outputs at points that a separate loop after the passes writes.
    pub late: Vec<usize>,
}

impl Written {
    /// Returns each pass with the outputs that it writes.
    pub fn passes(&self) -> impl Iterator<Item = (&[usize], &[usize])> {
        let last = self.passes.len().wrapping_sub(1);
        let written = move |number| if number == last { self.early.as_slice() } else { &[] };
        self.passes.iter().enumerate().map(move |(number, pass)| (pass.as_slice(), written(number)))
    }
}

/// A printer of a row kernel.
pub(super) struct RowPrinter<'k> {
    pub kernel: &'k Kernel,
    pub index: &'static str,
    pub statements: Statements<'k>,
    /// The nodes that differ from point to point.
    pub at_points: Vec<bool>,
}

/// Prints the kernel.
pub(super) fn print(kernel: &Kernel, writer: &mut Writer) {
    let class = &kernel.class;
    let held = (class.held > 0).then(|| super::held::of(kernel));
    let kept: Vec<bool> = match &held {
        Some(held) => held.kept.clone(),
        // One by one, from vectors that were loaded before.
        None if class.online => vec![true; kernel.body.inputs.len()],
        None => Vec::new(),
    };
    let has_columns = super::columns::is_printed(kernel);
    let load = move |number: usize| match kept.get(number) {
        None if has_columns && class.repeats(number) => format!("input{number}[k]"),
        None if has_columns => format!("input{number}[k].element[e]"),
        _ if class.repeats(number) => format!("a.input{number}[start_input{number}]"),
        Some(true) if class.shared > 0 => format!("kept{number}.element[e]"),
        Some(true) => format!("input{number}[k].element[e]"),
        Some(false) => format!("input{number}.element[e]"),
        None if class.contiguous => format!("a.input{number}[at]"),
        None => format!("a.input{number}[at_input{number}]"),
    };
    let at_points = kernel.body.point_dependent(|input| !class.repeats(input));
    let offset = move |number: usize| match class.held {
        1.. if class.repeats(number) => format!("start_input{number}"),
        1.. if class.contiguous => "row_start + first + e".to_owned(),
        1.. => format!("start_input{number} + first + e"),
        0 if class.contiguous => "at".to_owned(),
        0 => format!("at_input{number}"),
    };
    let mut statements = Statements::new(&kernel.body, load).with_offsets(offset);
    if class.held > 0 {
        statements = statements.with_vectors(|input| class.repeats(input));
    }
    let printer = RowPrinter { kernel, index: index_type(class), statements, at_points };
    match held {
        Some(held) if class.streamed.is_some() => printer.print_streamed(&held, writer),
        Some(held) => printer.print_held(&held, writer),
        None if class.online => printer.print_online(&super::online::of(kernel), writer),
        None if has_columns => printer.print_columns(writer),
        None => printer.print(writer),
    }
}

impl RowPrinter<'_> {
    fn print(&self, writer: &mut Writer) {
        self.open_entry(0, writer);
        self.open_rows(writer);
        self.print_row_places(writer);
        let mut defined = self.statements.nothing();
        let written = self.written();
        for (pass, early) in written.passes() {
            self.print_pass(pass, early, &mut defined, writer);
        }
        self.print_outputs(&written, &mut defined, writer);
        self.close_rows(writer);
    }

    /// Returns the passes over the points, and where outputs are written. The last pass writes the outputs at points, if none of them
    /// needs a result of that pass. Otherwise a separate loop writes all of them, and loads their inputs again: since outputs may
    /// overwrite inputs, they are not written before the last pass.
    pub fn written(&self) -> Written {
        let body = &self.kernel.body;
        let passes = passes(body);
        let needs = |number: &usize, pass: &[usize]| {
            let mut operands = body.outputs[*number].operands();
            operands.any(|value| reduced_by(body, value).any(|reduction| pass.contains(&reduction)))
        };
        let (of_points, of_row): (Vec<usize>, Vec<usize>) =
            (0..body.outputs.len()).partition(|&number| body.outputs[number].place == OutputPlace::Point);
        let is_late = passes.last().is_none_or(|last| of_points.iter().any(|number| needs(number, last)));
        let (early, late) = if is_late { (Vec::new(), of_points) } else { (of_points, Vec::new()) };
        Written { passes, early, of_row, late }
    }

    /// Opens the kernel's entry point, with the memory in which a block combines its warps. At least `sharing` threads share the
    /// registers of a multiprocessor.
    pub fn open_entry(&self, sharing: u32, writer: &mut Writer) {
        let (threads, abreast) = (self.kernel.class.threads_of_a_row(), self.kernel.class.threads_abreast());
        let block = if abreast > 1 || threads > 32 { threads * abreast } else { ROW_BLOCK };
        open_entry(self.kernel, block, (sharing / block).max(1), writer);
        if abreast > 1 {
            writer.line(&format!("__shared__ u64 shared[{}];", threads * abreast));
        } else if threads > 32 && self.combines() {
            let reductions = self.kernel.body.reductions.len();
            writer.line(&format!("__shared__ u64 shared[{reductions}][{}];", threads / 32));
        }
    }

    /// Returns whether threads combine their parts of a row.
    fn combines(&self) -> bool {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let is_combined = |number| {
            !is_one_value(body, &self.at_points, number) && picked(body, &self.at_points, number).is_none()
        };
        !(class.held > 0 || class.online) || (0..body.reductions.len()).any(is_combined)
    }

    /// Closes the loop over rows and the entry point. Each reduction of a block has its own shared memory, so only a single
    /// reduction could overwrite values of the previous row too early: it needs a barrier.
    pub fn close_rows(&self, writer: &mut Writer) {
        let is_block = self.kernel.class.threads_of_a_row() > 32 && self.abreast() == 1;
        if is_block && self.kernel.body.reductions.len() == 1 {
            writer.line("__syncthreads();");
        }
        writer.close("");
        writer.close("");
    }

    /// Returns how many rows a block handles, with neighbouring rows in neighbouring threads.
    fn abreast(&self) -> u32 {
        u32::from(self.kernel.class.rows_abreast)
    }

    /// Opens the loop over rows, in which `row`, `points`, `lane` and `active` (whether the thread has a row at all) are defined
    /// as far as they are needed.
    pub fn open_rows(&self, writer: &mut Writer) {
        let index = self.index;
        writer.line(&format!("const {index} rows = {index}(a.rows);"));
        match self.kernel.class.threads_of_a_row() {
            _ if self.abreast() > 1 => {
                let (threads, vector) = (self.kernel.class.threads_abreast(), self.kernel.class.vector);
                writer.line(&format!("const u32 lane = threadIdx.x / {threads};"));
                let mine = match vector {
                    1 => format!("threadIdx.x % {threads}"),
                    _ => format!("threadIdx.x % {threads} * {vector}"),
                };
                self.open_shared_rows(self.abreast(), &mine, writer);
            }
            1 => {
                if !self.nests_points() {
                    writer.line(&format!("const {index} points = {index}(a.points);"));
                }
                writer.line(&format!("const {index} threads = {index}(gridDim.x) * blockDim.x;"));
                writer
                    .line(&format!("const {index} thread = {index}(blockIdx.x) * blockDim.x + threadIdx.x;"));
                writer.open(&format!("for ({index} row = thread; row < rows; row += threads)"));
            }
            lanes @ 2..=32 => {
                let per_block = ROW_BLOCK / lanes;
                writer.line(&format!("const u32 lane = threadIdx.x % {lanes};"));
                self.open_shared_rows(per_block, &format!("threadIdx.x / {lanes}"), writer);
            }
            _ => {
                writer.line("const u32 lane = threadIdx.x;");
                writer.line(&format!("const {index} points = {index}(a.points);"));
                writer.open(&format!(
                    "for ({index} row = {index}(blockIdx.x); row < rows; row += {index}(gridDim.x))"
                ));
            }
        }
    }

    /// Opens the loop of a block over rows of which it handles several at a time; `mine` is the thread's row among them. A thread
    /// without a row takes part with no points.
    fn open_shared_rows(&self, per_block: u32, mine: &str, writer: &mut Writer) {
        let index = self.index;
        writer.line(&format!("const {index} step = {index}(gridDim.x) * {per_block};"));
        writer.open(&format!(
            "for ({index} first = {index}(blockIdx.x) * {per_block}; first < rows; first += step)"
        ));
        writer.line(&format!("const bool active = first + {mine} < rows;"));
        writer.line(&format!("const {index} row = active ? first + {mine} : 0;"));
        writer.line(&format!("const {index} points = active ? {index}(a.points) : 0;"));
    }

    /// Prints the start of the row in each operand.
    pub fn print_row_places(&self, writer: &mut Writer) {
        let (body, class, index) = (&self.kernel.body, &self.kernel.class, self.index);
        if class.contiguous {
            if body.uses_coordinates() && class.row_rank == 1 {
                writer.line(&format!("const {index} row0 = row;"));
            }
            writer.line(&format!("const {index} row_start = row * {index}(a.points);"));
            return;
        }
        split_index("row", &row_dimensions(class), index, writer);
        let outputs = body.outputs.iter().enumerate().filter(|(_, output)| output.scatter.is_none());
        for operand in self.inputs_in_place().chain(outputs.map(|(number, _)| format!("output{number}"))) {
            let start = offset(&operand, "row", class.row_rank, index);
            writer.line(&format!("const {index} start_{operand} = {start};"));
        }
    }

    /// Returns the names of the strided inputs that are read from global memory.
    fn inputs_in_place(&self) -> impl Iterator<Item = String> {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        (0..body.inputs.len())
            .filter(|&number| body.inputs[number].kind == InputKind::Strided && body.uses_input(number))
            .filter(|&number| class.streamed.is_none() || class.repeats(number))
            .map(|number| format!("input{number}"))
    }

    /// Prints one pass over the row for reductions that do not depend on each other, which also writes outputs at points.
    fn print_pass(&self, pass: &[usize], written: &[usize], defined: &mut Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        let reduced = pass.iter().map(|&number| body.reductions[number].value);
        let values: Vec<ExprId> =
            reduced.chain(written.iter().flat_map(|&number| body.outputs[number].operands())).collect();
        self.define_for_row(&values, defined, writer);
        for &number in pass {
            let reduction = &body.reductions[number];
            let dtype = body.dtype(reduction.value);
            let start = neutral(reduction.op, dtype);
            writer.line(&format!("{} reduced{number} = {start};", dtype.short_name()));
        }
        let levels = self.kernel.class.cascade;
        (1..levels).rev().for_each(|level| self.open_runs(pass, level, writer));
        let loops = self.open_points_of(&self.run(levels - 1, 0), writer);
        self.define_at_point(&values, written, defined, writer);
        for &number in pass {
            let value = self.statements.name(body.reductions[number].value);
            self.print_combining(number, &self.so_far(0, number), &value, writer);
        }
        written.iter().for_each(|&number| self.print_point_store(number, writer));
        (0..loops).for_each(|_| writer.close(""));
        for level in 1..levels {
            for &number in pass {
                self.print_combining(
                    number,
                    &self.so_far(level, number),
                    &self.so_far(level - 1, number),
                    writer,
                );
            }
            writer.close("");
        }
        for &number in pass {
            self.print_combination(number, &format!("reduced{number}"), writer);
        }
    }

    /// Returns the name of a reduction's partial result at a level of the cascade.
    fn so_far(&self, level: u8, number: usize) -> String {
        if level + 1 == self.kernel.class.cascade {
            format!("reduced{number}")
        } else {
            format!("run{level}_{number}")
        }
    }

    pub fn print_combining(&self, number: usize, so_far: &str, value: &str, writer: &mut Writer) {
        let reduction = &self.kernel.body.reductions[number];
        let dtype = self.kernel.body.dtype(reduction.value);
        writer.line(&format!("{so_far} = {};", binary(combining(reduction.op), so_far, value, dtype)));
    }

    /// Returns the first and the last point of a lane in the runs of a level; in the row, if there are no runs.
    fn run(&self, levels: u8, level: u8) -> [String; 2] {
        if level < levels {
            return ["begin", "end"].map(|name| format!("{name}{level}"));
        }
        [if self.kernel.class.lanes == 1 { "0" } else { "lane" }.to_owned(), "points".to_owned()]
    }

    /// Opens the loop over the runs whose results a level combines.
    fn open_runs(&self, pass: &[usize], level: u8, writer: &mut Writer) {
        let (index, body, below) = (self.index, &self.kernel.body, level - 1);
        let [begin, end] = self.run(self.kernel.class.cascade - 1, level);
        let step = u64::from(self.kernel.class.lanes) * RUN.pow(u32::from(level));
        writer.open(&format!(
            "for ({index} begin{below} = {begin}; begin{below} < {end}; begin{below} += {step})"
        ));
        writer.line(&format!(
            "const {index} end{below} = begin{below} + {step} < {end} ? begin{below} + {step} : {end};"
        ));
        for &number in pass {
            let reduction = &body.reductions[number];
            let dtype = body.dtype(reduction.value);
            let start = neutral(reduction.op, dtype);
            writer.line(&format!("{} {} = {start};", dtype.short_name(), self.so_far(below, number)));
        }
    }

    /// Prints the tree over the threads of a row, whose partial results are named `own`.
    pub fn print_combination(&self, number: usize, own: &str, writer: &mut Writer) {
        let function = self.combining_function(number);
        let combined = match self.kernel.class.threads_of_a_row() {
            lanes if self.abreast() > 1 => {
                format!("combine_abreast<{lanes}, {}>({own}, shared, {function})", self.abreast())
            }
            1 => return,
            lanes @ 2..=32 => format!("combine_warp<{lanes}>({own}, {function})"),
            lanes => format!("combine_block<{lanes}>({own}, shared[{number}], {function})"),
        };
        writer.line(&format!("reduced{number} = {combined};"));
    }

    /// Returns the function that combines two results of a reduction.
    pub fn combining_function(&self, number: usize) -> String {
        let reduction = &self.kernel.body.reductions[number];
        let dtype = self.kernel.body.dtype(reduction.value);
        let value = dtype.short_name();
        let combined = binary(combining(reduction.op), "x", "y", dtype);
        format!("[](const {value} x, const {value} y) {{ return {combined}; }}")
    }

    /// Defines the values that the roots need and that are the same at all points of the row.
    pub fn define_for_row(&self, roots: &[ExprId], defined: &mut Defined, writer: &mut Writer) {
        self.statements.define(roots, defined, |index| !self.at_points[index], writer);
    }

    /// Defines the values that the roots need at the current point, and the places of these outputs.
    fn define_at_point(&self, roots: &[ExprId], outputs: &[usize], defined: &Defined, writer: &mut Writer) {
        let (class, index) = (&self.kernel.class, self.index);
        let mut inputs = self.statements.loads(roots, defined);
        inputs.extend(self.statements.offsets(roots, defined));
        inputs.sort_unstable();
        inputs.dedup();
        if !class.contiguous {
            let inputs = inputs.iter().map(|number| format!("input{number}"));
            for operand in inputs.chain(outputs.iter().map(|number| format!("output{number}"))) {
                let inside = offset(&operand, "inner", class.inner_rank, index);
                writer.line(&format!("const {index} at_{operand} = start_{operand} + {inside};"));
            }
        } else if !inputs.is_empty() || !outputs.is_empty() {
            writer.line(&format!("const {index} at = row_start + point;"));
        }
        self.statements.define(roots, &mut defined.clone(), |index| self.at_points[index], writer);
    }

    /// Returns whether nested loops visit the points of a row: one lane visits them all in order, so it needs no divisions to
    /// find its coordinates.
    fn nests_points(&self) -> bool {
        self.kernel.class.lanes == 1 && self.kernel.class.inner_rank > 1 && self.kernel.class.cascade == 1
    }

    /// Opens the loop or loops over a lane's points and defines the inner coordinates. Returns the number of loops opened.
    fn open_points(&self, writer: &mut Writer) -> usize {
        self.open_points_of(&self.run(0, 0), writer)
    }

    /// Opens the loop or loops of [`RowPrinter::open_points`] over a range of points.
    fn open_points_of(&self, [begin, end]: &[String; 2], writer: &mut Writer) -> usize {
        let (class, index) = (&self.kernel.class, self.index);
        let dimensions = inner_dimensions(class);
        if self.nests_points() {
            for (coordinate, extent) in &dimensions {
                writer.open(&format!(
                    "for ({index} {coordinate} = 0; {coordinate} < {index}(a.{extent}); ++{coordinate})"
                ));
            }
            return dimensions.len();
        }
        let step = match class.lanes {
            1 => "++point".to_owned(),
            lanes => format!("point += {lanes}"),
        };
        writer.open(&format!("for ({index} point = {begin}; point < {end}; {step})"));
        if !class.contiguous || self.kernel.body.uses_coordinates() {
            split_index("point", &dimensions, index, writer);
        }
        1
    }

    /// Prints the outputs of the row, written by its first lane, then those of its points, written by all.
    fn print_outputs(&self, written: &Written, defined: &mut Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        let Written { of_row, late, .. } = written;
        let values: Vec<ExprId> = body.written().collect();
        self.define_for_row(&values, defined, writer);
        if !of_row.is_empty() {
            self.print_row_outputs(of_row, defined, writer);
        }
        if !late.is_empty() {
            let loops = self.open_points(writer);
            let values: Vec<ExprId> = late.iter().map(|&number| body.outputs[number].value).collect();
            self.define_at_point(&values, late, defined, writer);
            late.iter().for_each(|&number| self.print_point_store(number, writer));
            (0..loops).for_each(|_| writer.close(""));
        }
    }

    /// Prints the outputs that are written once per row. Outputs that load elements (of operands that do not vary inside the row)
    /// load them at the row's first point.
    pub fn print_row_outputs(&self, outputs: &[usize], defined: &Defined, writer: &mut Writer) {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let report = body.report.into_iter().flat_map(|report| report.operands());
        let values: Vec<ExprId> =
            outputs.iter().flat_map(|&number| body.outputs[number].operands()).chain(report).collect();
        let at_a_point = values.iter().any(|value| self.at_points[value.index()]);
        match class.threads_of_a_row() {
            1 if !at_a_point => {}
            1 => writer.open(""),
            2..=32 => writer.open("if (active && lane == 0)"),
            _ if self.abreast() > 1 => writer.open("if (active && lane == 0)"),
            _ => writer.open("if (lane == 0)"),
        }
        if at_a_point {
            if class.contiguous {
                writer.line(&format!("const {} point = 0;", self.index));
            }
            if !class.contiguous || body.uses_coordinates() {
                for (coordinate, _) in inner_dimensions(class) {
                    writer.line(&format!("const {} {coordinate} = 0;", self.index));
                }
            }
            self.define_at_point(&values, &[], defined, writer);
        }
        for &number in outputs {
            let place = if class.contiguous { "row".to_string() } else { format!("start_output{number}") };
            self.print_store(number, &place, writer);
        }
        if let Some(report) = body.report {
            writer.line(&reported(&self.statements, report));
        }
        if class.threads_of_a_row() > 1 || at_a_point {
            writer.close("");
        }
    }

    fn print_point_store(&self, number: usize, writer: &mut Writer) {
        let place = if self.kernel.class.contiguous { "at".into() } else { format!("at_output{number}") };
        self.print_store(number, &place, writer);
    }

    fn print_store(&self, number: usize, place: &str, writer: &mut Writer) {
        let body = &self.kernel.body;
        let output = &body.outputs[number];
        let from: DType = body.dtype(output.value);
        let value = stored(&self.statements.name(output.value), from, output.dtype);
        match output.scatter {
            None => writer.line(&format!("a.output{number}[{place}] = {value};")),
            Some(scatter) => writer.line(&scattered(&self.statements, number, scatter, &value)),
        }
    }
}
