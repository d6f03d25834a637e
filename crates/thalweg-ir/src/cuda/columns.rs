//! Rows that are adjacent in memory, like the columns of a matrix: neighbouring threads take neighbouring rows, or vectors of them,
//! and each has the loads of several points in flight.
//!
//! Every value that differs from row to row is an array over the rows of a thread, with the suffix `[e]`.

use crate::body::{Binary, Body, InputKind, Node, Output, OutputPlace, Unary};
use crate::kernel::RUN;
use crate::{DType, ExprId, Kernel};

use super::entry::{inner_dimensions, offset};
use super::expression::{Defined, memory_type, neutral, stored};
use super::row::{RowPrinter, Written};
use super::writer::Writer;

/// Registers of a thread for the elements that it loads together, and those in a block of the most threads: two such blocks share a
/// multiprocessor if they have few.
const REGISTERS: usize = 24;
const FEW_REGISTERS: usize = 8;

/// The most inputs of a body for which two blocks of the most threads have registers, and the threads of both.
const INPUTS_OF_LIGHT: usize = 4;
const SHARING: u32 = 2048;

/// The fewest and the most points whose elements are loaded together.
const AT_ONCE: (usize, usize) = (2, 8);

/// Returns whether this module prints a kernel: rows abreast that are handled by vectors, and those handled one element at a time
/// whose points are one dimension of strided operands, and whose results load nothing.
pub(super) fn is_printed(kernel: &Kernel) -> bool {
    let (body, class) = (&kernel.body, &kernel.class);
    if class.held > 0 || class.online || class.rows_abreast == 1 {
        return false;
    }
    let at_points = body.point_dependent(|input| !class.repeats(input));
    let is_strided = body.inputs.iter().all(|input| input.kind == InputKind::Strided);
    let is_simple = |output: &Output| {
        output.scatter.is_none() && (output.place == OutputPlace::Point || !at_points[output.value.index()])
    };
    class.vector > 1
        || class.inner_rank == 1
            && is_strided
            && !body.has_offsets()
            && body.report.is_none()
            && body.outputs.iter().all(is_simple)
}

/// Returns the values that take long to compute: loops over points do not compute them again.
fn costly(body: &Body) -> Vec<bool> {
    let mut costly = vec![false; body.nodes.len()];
    for (index, node) in body.nodes.iter().enumerate() {
        let takes_long = match node {
            Node::Unary(op, _) => !matches!(op, Unary::Neg | Unary::Abs | Unary::Not | Unary::Conj),
            Node::Binary(op, ..) => matches!(op, Binary::Div | Binary::Rem | Binary::Pow | Binary::Atan2),
            _ => false,
        };
        costly[index] = takes_long || node.operands().any(|operand| costly[operand.index()]);
    }
    costly
}

impl RowPrinter<'_> {
    /// Prints the kernel.
    pub(super) fn print_columns(&self, writer: &mut Writer) {
        let is_light = self.has_largest_block() && self.kernel.body.inputs.len() <= INPUTS_OF_LIGHT;
        self.open_entry(if is_light { SHARING } else { 0 }, writer);
        self.open_rows(writer);
        self.print_row_places(writer);
        let (written, mut kept) = (self.written(), self.statements.nothing());
        for (pass, early) in written.passes() {
            self.print_column_pass(pass, early, &mut kept, writer);
        }
        let Written { of_row, late: of_points, .. } = &written;
        if !of_row.is_empty() {
            writer.open("if (active && lane == 0)");
            self.print_column_outputs((of_row, &kept), |output| format!("start_output{output}"), writer);
            writer.close("");
        }
        if !of_points.is_empty() {
            let lanes = self.kernel.class.lanes;
            self.print_of_rows(&self.values(of_points), &mut kept, writer);
            writer.open(&format!("for ({} point = lane; point < points; point += {lanes})", self.index));
            let inputs = self.column_inputs(&self.values(of_points));
            self.print_places(&inputs, of_points, writer);
            self.declare_loads(&inputs, 1, writer);
            writer.line("const u32 k = 0;");
            self.print_column_loads(&inputs, writer);
            self.print_column_outputs((of_points, &kept), |output| format!("at_output{output}"), writer);
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

    /// Prints the values that are the same at all points of a row and take long to compute, of those that `values` need: arrays over the
    /// rows of a thread, which are added to `kept`.
    fn print_of_rows(&self, values: &[ExprId], kept: &mut Defined, writer: &mut Writer) {
        let (body, vector) = (&self.kernel.body, self.kernel.class.vector);
        let at_points = body.point_dependent(|_| true);
        let mut needed = self.statements.nothing();
        values.iter().for_each(|value| needed[value.index()] = true);
        // A detached value has the name of its operand.
        let is_passed = |index: usize| at_points[index] || matches!(body.nodes[index], Node::Detach(_));
        for index in (0..needed.len()).rev().filter(|&index| is_passed(index)) {
            if needed[index] {
                body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
            }
        }
        let costly = costly(body);
        let is_found = |&index: &usize| needed[index] && costly[index] && !is_passed(index) && !kept[index];
        let found: Vec<ExprId> =
            (0..body.nodes.len()).filter(is_found).map(|index| ExprId(index as u32)).collect();
        if found.is_empty() {
            return;
        }
        for &id in &found {
            writer.line(&format!(
                "{} row_{}[{vector}];",
                body.dtype(id).short_name(),
                self.statements.name(id)
            ));
        }
        self.open_elements(writer);
        self.define_for_element(&found, kept, writer);
        for &id in &found {
            let name = self.statements.name(id);
            writer.line(&format!("row_{name}[e] = {name};"));
            kept[id.index()] = true;
        }
        writer.close("");
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
    fn print_column_pass(&self, pass: &[usize], written: &[usize], kept: &mut Defined, writer: &mut Writer) {
        let (body, class, index) = (&self.kernel.body, &self.kernel.class, self.index);
        let reduced = pass.iter().map(|&number| body.reductions[number].value);
        let values: Vec<ExprId> = reduced.chain(self.values(written)).collect();
        self.print_of_rows(&values, kept, writer);
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
        self.print_column_points((pass, written, kept), [&begin, &end], writer);
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
        for &number in pass {
            let (lanes, threads) = (class.lanes, class.threads_abreast());
            let function = self.combining_function(number);
            writer
                .line(&format!("combine_columns<{lanes}, {threads}>(results{number}, shared, {function});"));
        }
    }

    /// Returns whether a block has the most threads.
    fn has_largest_block(&self) -> bool {
        let class = &self.kernel.class;
        u32::from(class.lanes) * class.threads_abreast() == 1024
    }

    /// Returns the number of points whose elements of these inputs are loaded together.
    fn points_at_once(&self, inputs: &[usize]) -> u32 {
        let class = &self.kernel.class;
        let bytes = inputs.iter().map(|&input| {
            let elements = if class.repeats(input) { 1 } else { usize::from(class.vector) };
            self.kernel.body.inputs[input].dtype.size_bytes() * elements
        });
        let registers: usize = bytes.map(|bytes| bytes.div_ceil(4)).sum();
        let own = if self.has_largest_block() { FEW_REGISTERS } else { REGISTERS };
        let most = (own / registers.max(1)).clamp(AT_ONCE.0, AT_ONCE.1);
        1 << most.ilog2()
    }

    /// Prints the loop over a lane's points in a range, several at a time.
    fn print_column_points(
        &self,
        (pass, written, kept): (&[usize], &[usize], &Defined),
        [begin, end]: [&str; 2],
        writer: &mut Writer,
    ) {
        let (body, class, index) = (&self.kernel.body, &self.kernel.class, self.index);
        let values: Vec<ExprId> = pass.iter().map(|&number| body.reductions[number].value).collect();
        let needed: Vec<ExprId> = values.iter().copied().chain(self.values(written)).collect();
        let inputs = self.column_inputs(&needed);
        let at_once = self.points_at_once(&inputs);
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
        self.print_places(&[], written, writer);
        self.open_elements(writer);
        self.define_for_element(&values, kept, writer);
        for &number in pass {
            let value = self.statements.name(body.reductions[number].value);
            self.print_combining(number, &format!("{}[e]", self.results(0, number)), &value, writer);
        }
        writer.close("");
        if !written.is_empty() {
            self.print_column_outputs((written, kept), |output| format!("at_output{output}"), writer);
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

    /// Returns the type of what a thread loads of an input at a point: a vector, or what is the same for all of its rows.
    fn read_at_once(&self, input: usize) -> String {
        let dtype = self.kernel.body.inputs[input].dtype;
        if self.kernel.class.repeats(input) { memory_type(dtype).to_owned() } else { self.pack_of(dtype) }
    }

    fn declare_loads(&self, inputs: &[usize], at_once: u32, writer: &mut Writer) {
        for &input in inputs {
            writer.line(&format!("{} input{input}[{at_once}];", self.read_at_once(input)));
        }
    }

    fn print_column_loads(&self, inputs: &[usize], writer: &mut Writer) {
        for &input in inputs {
            let kind = self.read_at_once(input);
            writer.line(&format!("input{input}[k] = *(const {kind}*)(a.input{input} + at_input{input});"));
        }
    }

    /// Prints the definitions that `values` need, in a row and at a point. Those of `kept` are read from their arrays.
    fn define_for_element(&self, values: &[ExprId], kept: &Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        let mut defined: Defined = self.statements.nothing();
        let mut needed = self.statements.nothing();
        values.iter().for_each(|value| needed[value.index()] = true);
        for index in (0..needed.len()).rev() {
            if !needed[index] {
                continue;
            }
            let dtype = body.dtypes[index].short_name();
            if kept[index] {
                let name = self.statements.name(ExprId(index as u32));
                writer.line(&format!("const {dtype} {name} = row_{name}[e];"));
                defined[index] = true;
                continue;
            }
            if let Node::Reduced { reduction } = body.nodes[index] {
                writer.line(&format!("const {dtype} reduced{reduction} = results{reduction}[e];"));
            }
            body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
        }
        self.statements.define(values, &mut defined, |_| true, writer);
    }

    /// Prints outputs of the rows of a thread.
    fn print_column_outputs(
        &self,
        (outputs, kept): (&[usize], &Defined),
        place: impl Fn(usize) -> String,
        writer: &mut Writer,
    ) {
        let body = &self.kernel.body;
        for &number in outputs {
            writer.line(&format!("{} output{number};", self.pack_of(body.outputs[number].dtype)));
        }
        self.open_elements(writer);
        self.define_for_element(&self.values(outputs), kept, writer);
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
