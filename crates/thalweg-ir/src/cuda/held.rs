//! Rows that their threads hold: elements are loaded as vectors, many at a time, and stay in registers from the first pass to the
//! last. [`Held`] determines which values are kept.

use crate::Kernel;
use crate::body::{InputKind, OutputPlace};
use crate::held::{Held, MOST_THREADS_WITH_VALUES};
use crate::online::is_one_value;

use super::expression::{Defined, memory_type, neutral, stored};
use super::row::RowPrinter;
use super::writer::Writer;

/// Returns the values that a kernel keeps, whose class holds rows.
///
/// # Panics
/// If the class does not allow it.
pub(super) fn of(kernel: &Kernel) -> Held {
    let (class, name) = (&kernel.class, &kernel.name);
    let threads = class.threads_of_a_row();
    let most = class.streamed.map_or(1024, |streamed| 1024 * u32::from(streamed.cluster));
    assert!((2..=most).contains(&threads), "{name}: {threads} threads do not hold a row");
    assert_is_one_dimension(kernel);
    Held::of(&kernel.body, class, threads <= MOST_THREADS_WITH_VALUES && class.streamed.is_none())
        .unwrap_or_else(|| panic!("{name}: an output of a row that is held reads no single element"))
}

/// Checks that the points of a kernel have one dimension, without runs and without rows abreast.
pub(super) fn assert_is_one_dimension(kernel: &Kernel) {
    let Kernel { class, name, .. } = kernel;
    let one = class.inner_rank == 1 && class.rows_abreast == 1 && class.cascade == 1;
    assert!(one, "{name}: a row that is held or online is one dimension without runs, not abreast of others");
}

/// Returns the bytes of a block's shared memory for vectors of its threads.
pub(super) fn shared_bytes(kernel: &Kernel) -> u32 {
    let Kernel { class, body, .. } = kernel;
    let held = of(kernel);
    let kept = body.inputs.iter().zip(held.kept).find(|(_, kept)| *kept);
    let bytes = kept.map_or(0, |(input, _)| input.dtype.size_bytes());
    u32::from(class.shared) * class.threads_of_a_row() * u32::from(class.vector) * bytes as u32
}

/// The most vectors of a thread that are printed as separate statements rather than a loop. Vectors that are kept always are: a register
/// has no index.
const UNROLLED: u8 = 16;

impl RowPrinter<'_> {
    /// Prints the kernel.
    pub(super) fn print_held(&self, held: &Held, writer: &mut Writer) {
        self.open_entry(self.sharing(), writer);
        if self.kernel.class.shared > 0 {
            writer.line("extern __shared__ __align__(16) unsigned char dynamic_shared[];");
        }
        self.open_rows(writer);
        self.print_row_places(writer);
        if self.kernel.class.shifted {
            let start = self.start(&self.shifted_operand());
            writer.line(&format!("const u32 shift = u32({start}) % {};", self.kernel.class.vector));
        }
        self.print_passes(held, self.statements.nothing(), writer);
        self.close_rows(writer);
    }

    /// Prints the passes over a row and the stores of its outputs. `defined` has the values that are already defined.
    pub(super) fn print_passes(&self, held: &Held, mut defined: Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        for (pass, reductions) in held.passes.iter().enumerate() {
            let values: Vec<_> = reductions.iter().map(|&number| body.reductions[number].value).collect();
            self.define_for_row(&values, &mut defined, writer);
            self.print_reductions(held, pass, reductions, &mut defined, writer);
        }
        let operands: Vec<_> = body.written().collect();
        self.define_for_row(&operands, &mut defined, writer);
        let (of_points, of_row): (Vec<usize>, Vec<usize>) =
            (0..body.outputs.len()).partition(|&number| body.outputs[number].place == OutputPlace::Point);
        if !of_row.is_empty() {
            self.print_row_outputs(&of_row, &defined, writer);
        }
        if !of_points.is_empty() {
            self.print_point_outputs(held, &of_points, &defined, writer);
        }
    }

    /// Returns the vector type of an operand's elements.
    pub(super) fn pack(&self, dtype: crate::DType) -> String {
        format!("pack<{}, {}>", memory_type(dtype), self.kernel.class.vector)
    }

    /// Returns the pointer to the beginning of an operand's row.
    pub(super) fn start(&self, operand: &str) -> String {
        if self.kernel.class.contiguous { "row_start".to_owned() } else { format!("start_{operand}") }
    }

    /// Opens the loop over a thread's vectors of the row. Inside, `first` is the first point of the vector.
    fn open_vectors(&self, held: &Held, writer: &mut Writer) {
        let (class, index) = (&self.kernel.class, self.index);
        let (threads, vector) = (class.threads_of_a_row(), class.vector);
        let is_unrolled = class.held <= UNROLLED || held.keeps();
        writer.line(if is_unrolled { "#pragma unroll" } else { "#pragma unroll 4" });
        writer.open(&format!("for (u32 k = 0; k < {}; ++k)", class.held));
        if class.shifted {
            // A first point before the row is a large number, which is not below the number of points.
            writer.line(&format!("const {index} begin = (k * {threads} + lane) * {vector};"));
            writer.line(&format!("const {index} first = begin - shift;"));
            writer.open("if (begin < points + shift)");
            return;
        }
        writer.line(&format!("const {index} first = (k * {threads} + lane) * {vector};"));
        // When vectors are in registers, an unrolled loop would have more loads in flight than there are registers.
        writer.open(&match (class.streamed, class.held) {
            (Some(_), 2..) => format!("if (k < {} || first < points)", class.held - 1),
            _ => "if (first < points)".to_owned(),
        });
    }

    /// Returns the name of an input that is read point by point.
    fn shifted_operand(&self) -> String {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let walks = |&input: &usize| {
            body.inputs[input].kind == InputKind::Strided && body.uses_input(input) && !class.repeats(input)
        };
        let input = (0..body.inputs.len()).find(walks);
        format!("input{}", input.expect("the planner requires an input that is read point by point"))
    }

    /// Prints the loads before a pass: those of kept elements that this pass is the first to need.
    fn print_loads(&self, held: &Held, pass: usize, writer: &mut Writer) {
        let inputs: Vec<usize> = held.loads[pass]
            .iter()
            .copied()
            .filter(|&input| held.kept[input] && held.pass_range(input).is_some_and(|range| range.0 == pass))
            .collect();
        if inputs.is_empty() {
            return;
        }
        let class = &self.kernel.class;
        for &input in &inputs {
            let pack = self.pack(self.kernel.body.inputs[input].dtype);
            writer.line(&match class.shared {
                0 => format!("{pack} input{input}[{}];", class.held),
                shared => {
                    let (own, threads) = (class.held - shared, class.threads_of_a_row());
                    format!("split_vectors<{pack}, {own}, {threads}> input{input}(dynamic_shared);")
                }
            });
        }
        self.open_vectors(held, writer);
        for &input in &inputs {
            match class.shared {
                0 => self.print_load(input, &format!("input{input}[k]"), writer),
                _ => writer.line(&format!("input{input}.set(k, {});", self.loaded(input))),
            }
        }
        writer.close("");
        writer.close("");
    }

    pub(super) fn print_load(&self, input: usize, target: &str, writer: &mut Writer) {
        writer.line(&format!("{target} = {};", self.loaded(input)));
    }

    /// Returns the vector of an input that begins at `first`, as it is read from memory.
    fn loaded(&self, input: usize) -> String {
        if let Some(streamed) = self.kernel.class.streamed {
            return self.in_shared_memory(streamed, input);
        }
        let pack = self.pack(self.kernel.body.inputs[input].dtype);
        let start = self.start(&format!("input{input}"));
        match self.kernel.class.shifted {
            // A first point before the row is a large number: only its sum with the row's start is a place.
            true => format!("*(const {pack}*)(a.input{input} + ({start} + first))"),
            false => format!("*(const {pack}*)(a.input{input} + {start} + first)"),
        }
    }

    /// Opens the loop over the vectors of a pass, with the elements that only this pass needs.
    fn open_pass(&self, held: &Held, pass: usize, defined: &Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        self.print_loads(held, pass, writer);
        for (index, _) in held.made_in.iter().enumerate().filter(|(_, made)| **made == Some(pass)) {
            let (dtype, class) = (body.dtypes[index].short_name(), &self.kernel.class);
            writer.line(&format!("{dtype} held{index}[{}][{}];", class.held, class.vector));
        }
        self.open_vectors(held, writer);
        for &input in held.loads[pass].iter().filter(|&&input| !held.kept[input]) {
            let pack = self.pack(body.inputs[input].dtype);
            self.print_load(input, &format!("const {pack} input{input}"), writer);
        }
        if self.kernel.class.shared > 0 {
            for &input in held.loads[pass].iter().filter(|&&input| held.kept[input]) {
                let pack = self.pack(body.inputs[input].dtype);
                writer.line(&format!("const {pack} kept{input} = input{input}.get(k);"));
            }
        }
        let mut known = defined.clone();
        held.uses[pass].iter().for_each(|&index| known[index] = true);
        let line = |input: usize| format!("{} + first", self.start(&format!("input{input}")));
        let roots = (held.roots[pass].as_slice(), &known);
        self.statements.print_gathered(roots, self.kernel.class.vector, line, writer);
    }

    /// Returns how many threads must share a multiprocessor's registers, so that some rows are loaded while others are computed.
    /// Without this bound the compiler would use more registers per thread where the kept values leave room. Elements of 32 bits
    /// leave none.
    fn sharing(&self) -> u32 {
        let class = &self.kernel.class;
        if class.threads_of_a_row() == 512 && class.vector > 4 { 1024 } else { 0 }
    }

    /// Opens the loop over the points of a vector, with the values that a pass computes.
    fn open_elements_held(&self, held: &Held, pass: usize, defined: &Defined, writer: &mut Writer) {
        let body = &self.kernel.body;
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {}; ++e)", self.kernel.class.vector));
        if self.kernel.class.shifted {
            writer.open("if (first + e >= points)");
            writer.line("continue;");
            writer.close("");
        }
        let mut defined = defined.clone();
        for &index in &held.uses[pass] {
            writer.line(&format!("const {} v{index} = held{index}[k][e];", body.dtypes[index].short_name()));
            defined[index] = true;
        }
        if self.statements.reads_inner(&held.roots[pass], &defined) {
            writer.line(&format!("const {} inner0 = first + e;", self.index));
        }
        self.statements.define(&held.roots[pass], &mut defined, |index| self.at_points[index], writer);
        for (index, _) in held.made_in.iter().enumerate().filter(|(_, made)| **made == Some(pass)) {
            writer.line(&format!("held{index}[k][e] = v{index};"));
        }
    }

    /// Prints reductions of a value that is the same for the entire row.
    pub(super) fn print_known(&self, reductions: &[usize], writer: &mut Writer) {
        let body = &self.kernel.body;
        for &number in reductions.iter().filter(|&&number| is_one_value(body, &self.at_points, number)) {
            let value = body.reductions[number].value;
            let dtype = body.dtype(value).short_name();
            writer.line(&format!("const {dtype} reduced{number} = {};", self.statements.name(value)));
        }
    }

    /// Prints the pass of these reductions.
    fn print_reductions(
        &self,
        held: &Held,
        pass: usize,
        reductions: &[usize],
        defined: &mut Defined,
        writer: &mut Writer,
    ) {
        let body = &self.kernel.body;
        self.print_known(reductions, writer);
        held.places_of(body, pass)
            .for_each(|(number, picked)| self.print_place(number, picked, defined, writer));
        let is_combined =
            |number: &usize| held.picks[*number].is_none() && !is_one_value(body, &self.at_points, *number);
        let combined: Vec<usize> = reductions.iter().copied().filter(is_combined).collect();
        if !combined.is_empty() {
            self.print_combined(held, pass, &combined, defined, writer);
        }
        for &number in reductions {
            if let Some(picked) = held.picks[number] {
                self.print_picked(number, picked, defined, writer);
            }
        }
    }

    /// Prints the loop over points that combines values.
    fn print_combined(
        &self,
        held: &Held,
        pass: usize,
        combined: &[usize],
        defined: &Defined,
        writer: &mut Writer,
    ) {
        let (body, vector) = (&self.kernel.body, self.kernel.class.vector);
        for &number in combined {
            let reduction = &body.reductions[number];
            let dtype = body.dtype(reduction.value);
            writer.line(&format!("{} lanes{number}[{vector}];", dtype.short_name()));
            writer.line("#pragma unroll");
            writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
            writer.line(&format!("lanes{number}[e] = {};", neutral(reduction.op, dtype)));
            writer.close("");
        }
        self.open_pass(held, pass, defined, writer);
        self.open_elements_held(held, pass, defined, writer);
        for &number in combined {
            let value = self.statements.name(body.reductions[number].value);
            self.print_combining(number, &format!("lanes{number}[e]"), &value, writer);
        }
        (0..3).for_each(|_| writer.close(""));
        if let Some(streamed) = self.kernel.class.streamed {
            self.print_exchange(streamed, combined, writer);
            return;
        }
        for &number in combined {
            let dtype = body.dtype(body.reductions[number].value).short_name();
            let own = format!("combine_vector(lanes{number}, {})", self.combining_function(number));
            writer.line(&format!("{dtype} reduced{number} = {own};"));
            self.print_combination(number, &format!("reduced{number}"), writer);
        }
    }

    /// Prints the last pass.
    fn print_point_outputs(&self, held: &Held, outputs: &[usize], defined: &Defined, writer: &mut Writer) {
        let (body, last) = (&self.kernel.body, held.passes.len());
        self.open_pass(held, last, defined, writer);
        for &number in outputs {
            writer.line(&format!("{} output{number};", self.pack(body.outputs[number].dtype)));
        }
        self.open_elements_held(held, last, defined, writer);
        for &number in outputs {
            let output = &body.outputs[number];
            let value = stored(&self.statements.name(output.value), body.dtype(output.value), output.dtype);
            writer.line(&format!("output{number}.element[e] = {value};"));
        }
        writer.close("");
        for &number in outputs {
            let (pack, start) =
                (self.pack(body.outputs[number].dtype), self.start(&format!("output{number}")));
            let to = format!("({pack}*)(a.output{number} + {start} + first)");
            if self.kernel.class.shifted {
                self.print_part_of_vector(number, (&to, &start), writer);
                continue;
            }
            writer.line(&match self.kernel.class.streamed {
                Some(_) => format!("store_once({to}, output{number});"),
                None => format!("*{to} = output{number};"),
            });
        }
        writer.close("");
        writer.close("");
    }

    /// Prints the store of those elements of a vector that are in the row.
    fn print_part_of_vector(&self, number: usize, (to, start): (&str, &str), writer: &mut Writer) {
        let vector = self.kernel.class.vector;
        writer.open(&format!("if (first < points && points - first >= {vector})"));
        writer.line(&format!("*{to} = output{number};"));
        writer.close("");
        writer.open("else");
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
        writer.open("if (first + e < points)");
        writer.line(&format!("a.output{number}[{start} + first + e] = output{number}.element[e];"));
        (0..3).for_each(|_| writer.close(""));
    }
}
