//! Rows that are adjacent in memory, like the columns of a matrix, handled by vectors: a thread takes neighbouring rows, so that
//! a block reads complete lines of memory and has the loads of several points in flight.
//!
//! Every value that differs from row to row is an array over the rows of a thread, with the suffix `[e]`.

use crate::body::{Node, Output};
use crate::kernel::RUN;
use crate::{DType, ExprId};

use super::entry::{inner_dimensions, offset};
use super::expression::{Defined, memory_type, neutral, stored};
use super::row::{RowPrinter, Written};
use super::writer::Writer;

impl RowPrinter<'_> {
    /// Prints the kernel.
    pub(super) fn print_columns(&self, writer: &mut Writer) {
        self.open_entry(0, writer);
        self.open_rows(writer);
        self.print_row_places(writer);
        let written = self.written();
        for (pass, early) in written.passes() {
            self.print_column_pass(pass, early, writer);
        }
        let Written { of_row, late: of_points, .. } = &written;
        if !of_row.is_empty() {
            writer.open("if (active && lane == 0)");
            self.print_column_outputs(of_row, |output| format!("start_output{output}"), writer);
            writer.close("");
        }
        if !of_points.is_empty() {
            let lanes = self.kernel.class.lanes;
            writer.open(&format!("for ({} point = lane; point < points; point += {lanes})", self.index));
            let inputs = self.column_inputs(&self.values(of_points));
            self.print_places(&inputs, of_points, writer);
            self.declare_loads(&inputs, 1, writer);
            writer.line("const u32 k = 0;");
            self.print_column_loads(&inputs, writer);
            self.print_column_outputs(of_points, |output| format!("at_output{output}"), writer);
            writer.close("");
        }
        self.close_rows(writer);
    }

    /// Returns the values of outputs.
    fn values(&self, outputs: &[usize]) -> Vec<ExprId> {
        outputs.iter().map(|&number| self.kernel.body.outputs[number].value).collect()
    }

    /// Returns the inputs that values need. Repeated inputs are read element by element, the others as vectors.
    fn column_inputs(&self, values: &[ExprId]) -> Vec<usize> {
        self.statements.loads(values, &self.statements.nothing())
    }

    fn pack_of(&self, dtype: DType) -> String {
        format!("pack<{}, {}>", memory_type(dtype), self.kernel.class.vector)
    }

    /// Opens the loop over the rows of a thread.
    fn open_elements(&self, writer: &mut Writer) {
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {}; ++e)", self.kernel.class.vector));
    }

    /// Declares the results of these reductions, one per row of the thread, starting from the neutral value.
    fn declare_results(&self, pass: &[usize], name: impl Fn(usize) -> String, writer: &mut Writer) {
        let (body, vector) = (&self.kernel.body, self.kernel.class.vector);
        for &number in pass {
            let dtype = body.dtype(body.reductions[number].value);
            writer.line(&format!("{} {}[{vector}];", dtype.short_name(), name(number)));
        }
        self.open_elements(writer);
        for &number in pass {
            let reduction = &body.reductions[number];
            let start = neutral(reduction.op, body.dtype(reduction.value));
            writer.line(&format!("{}[e] = {start};", name(number)));
        }
        writer.close("");
    }

    /// Returns the name of a reduction's results on a level of the cascade.
    fn results(&self, level: u8, number: usize) -> String {
        if level + 1 == self.kernel.class.cascade {
            format!("results{number}")
        } else {
            format!("run{level}_{number}")
        }
    }

    /// Prints one pass over the points for reductions that do not depend on each other, which also writes outputs at points.
    fn print_column_pass(&self, pass: &[usize], written: &[usize], writer: &mut Writer) {
        let (class, index) = (&self.kernel.class, self.index);
        let levels = class.cascade;
        self.declare_results(pass, |number| self.results(levels - 1, number), writer);
        let (mut begin, mut end) = ("lane".to_owned(), "points".to_owned());
        for level in (0..levels - 1).rev() {
            let step = u64::from(class.lanes) * RUN.pow(u32::from(level) + 1);
            writer.open(&format!(
                "for ({index} begin{level} = {begin}; begin{level} < {end}; begin{level} += {step})"
            ));
            writer.line(&format!(
                "const {index} end{level} = begin{level} + {step} < {end} ? begin{level} + {step} : {end};"
            ));
            self.declare_results(pass, |number| self.results(level, number), writer);
            (begin, end) = (format!("begin{level}"), format!("end{level}"));
        }
        self.print_column_points(pass, written, [&begin, &end], writer);
        for level in 1..levels {
            self.open_elements(writer);
            for &number in pass {
                let (so_far, below) = (self.results(level, number), self.results(level - 1, number));
                self.print_combining(number, &format!("{so_far}[e]"), &format!("{below}[e]"), writer);
            }
            writer.close("");
            writer.close("");
        }
        if class.lanes == 1 {
            return;
        }
        self.open_elements(writer);
        for &number in pass {
            let (lanes, threads) = (class.lanes, class.threads_abreast());
            writer.line(&format!(
                "results{number}[e] = combine_abreast<{lanes}, {threads}>(results{number}[e], shared, {});",
                self.combining_function(number)
            ));
        }
        writer.close("");
    }

    /// Prints the loop over a lane's points in a range, several at a time.
    fn print_column_points(
        &self,
        pass: &[usize],
        written: &[usize],
        [begin, end]: [&str; 2],
        writer: &mut Writer,
    ) {
        let (body, class, index) = (&self.kernel.body, &self.kernel.class, self.index);
        let values: Vec<ExprId> = pass.iter().map(|&number| body.reductions[number].value).collect();
        let needed: Vec<ExprId> = values.iter().copied().chain(self.values(written)).collect();
        let inputs = self.column_inputs(&needed);
        let at_once = if inputs.len() > 1 { 2 } else { 4 };
        let lanes = class.lanes;
        let step = u32::from(lanes) * at_once;
        writer.open(&format!("for ({index} next = {begin}; next < {end}; next += {step})"));
        let open_points = |writer: &mut Writer| {
            writer.line("#pragma unroll");
            writer.open(&format!("for (u32 k = 0; k < {at_once}; ++k)"));
            writer.line(&format!("const {index} point = next + k * {lanes};"));
            writer.open(&format!("if (point < {end})"));
        };
        self.declare_loads(&inputs, at_once, writer);
        open_points(writer);
        self.print_places(&inputs, &[], writer);
        self.print_column_loads(&inputs, writer);
        (0..2).for_each(|_| writer.close(""));
        open_points(writer);
        let repeated: Vec<usize> = inputs.iter().copied().filter(|&input| class.repeats(input)).collect();
        self.print_places(&repeated, written, writer);
        self.open_elements(writer);
        self.define_for_element(&values, writer);
        for &number in pass {
            let value = self.statements.name(body.reductions[number].value);
            self.print_combining(number, &format!("{}[e]", self.results(0, number)), &value, writer);
        }
        writer.close("");
        if !written.is_empty() {
            self.print_column_outputs(written, |output| format!("at_output{output}"), writer);
        }
        (0..3).for_each(|_| writer.close(""));
    }

    /// Prints the coordinates of `point` and the places of these operands there.
    fn print_places(&self, inputs: &[usize], outputs: &[usize], writer: &mut Writer) {
        let (class, index) = (&self.kernel.class, self.index);
        if inputs.is_empty() && outputs.is_empty() && !self.kernel.body.uses_coordinates() {
            return;
        }
        for (coordinate, _) in inner_dimensions(class) {
            writer.line(&format!("const {index} {coordinate} = point;"));
        }
        let inputs = inputs.iter().map(|number| format!("input{number}"));
        for operand in inputs.chain(outputs.iter().map(|number| format!("output{number}"))) {
            let inside = offset(&operand, "inner", class.inner_rank, index);
            writer.line(&format!("const {index} at_{operand} = start_{operand} + {inside};"));
        }
    }

    fn declare_loads(&self, inputs: &[usize], at_once: u32, writer: &mut Writer) {
        for &input in inputs.iter().filter(|&&input| !self.kernel.class.repeats(input)) {
            writer.line(&format!(
                "{} input{input}[{at_once}];",
                self.pack_of(self.kernel.body.inputs[input].dtype)
            ));
        }
    }

    fn print_column_loads(&self, inputs: &[usize], writer: &mut Writer) {
        for &input in inputs.iter().filter(|&&input| !self.kernel.class.repeats(input)) {
            let pack = self.pack_of(self.kernel.body.inputs[input].dtype);
            writer.line(&format!("input{input}[k] = *(const {pack}*)(a.input{input} + at_input{input});"));
        }
    }

    /// Prints the definitions that `values` need, in a row and at a point.
    fn define_for_element(&self, values: &[ExprId], writer: &mut Writer) {
        let body = &self.kernel.body;
        let mut needed = self.statements.nothing();
        values.iter().for_each(|value| needed[value.index()] = true);
        for index in (0..needed.len()).rev() {
            if !needed[index] {
                continue;
            }
            if let Node::Reduced { reduction } = body.nodes[index] {
                let dtype = body.dtypes[index].short_name();
                writer.line(&format!("const {dtype} reduced{reduction} = results{reduction}[e];"));
            }
            body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
        }
        let mut defined: Defined = self.statements.nothing();
        self.statements.define(values, &mut defined, |_| true, writer);
    }

    /// Prints outputs of the rows of a thread.
    fn print_column_outputs(&self, outputs: &[usize], place: impl Fn(usize) -> String, writer: &mut Writer) {
        let body = &self.kernel.body;
        for &number in outputs {
            writer.line(&format!("{} output{number};", self.pack_of(body.outputs[number].dtype)));
        }
        self.open_elements(writer);
        self.define_for_element(&self.values(outputs), writer);
        for &number in outputs {
            let Output { value, dtype, .. } = body.outputs[number];
            let value = stored(&self.statements.name(value), body.dtype(value), dtype);
            writer.line(&format!("output{number}.element[e] = {value};"));
        }
        writer.close("");
        for &number in outputs {
            let pack = self.pack_of(body.outputs[number].dtype);
            writer.line(&format!("*({pack}*)(a.output{number} + {}) = output{number};", place(number)));
        }
    }
}
