//! Rows that are read once ([`Online`]), and reductions to which one point contributes, whose element is loaded separately.

use crate::online::{Online, Picked, picked};
use crate::{DType, Kernel, ReduceOp, Scalar};

use super::expression::{Defined, Statements, literal, memory_type, neutral};
use super::row::RowPrinter;
use super::writer::Writer;

/// Elements of a thread that are combined at a time.
const AT_ONCE: u8 = 8;

/// Returns the reductions of a kernel whose class is online.
///
/// # Panics
/// If the class does not allow it.
pub(super) fn of(kernel: &Kernel) -> Online {
    let (class, name) = (&kernel.class, &kernel.name);
    let threads = class.threads_of_a_row();
    assert!((2..=1024).contains(&threads), "{name}: {threads} threads do not share a row");
    super::held::assert_is_one_dimension(kernel);
    Online::of(&kernel.body, class).unwrap_or_else(|| panic!("{name}: no sum of exponentials in one pass"))
}

impl RowPrinter<'_> {
    /// Prints the kernel.
    pub(super) fn print_online(&self, online: &Online, writer: &mut Writer) {
        self.open_entry(0, writer);
        self.open_rows(writer);
        self.print_row_places(writer);
        let body = &self.kernel.body;
        let all: Vec<usize> = (0..body.reductions.len()).collect();
        let mut defined = self.statements.nothing();
        let values: Vec<_> =
            all.iter().filter(|&&n| n != online.sum).map(|&n| body.reductions[n].value).collect();
        self.define_for_row(&values, &mut defined, writer);
        self.print_known(&all, writer);
        let picks: Vec<(usize, Picked)> =
            all.iter().filter_map(|&n| Some((n, picked(body, &self.at_points, n)?))).collect();
        for &(number, picked) in &picks {
            self.print_place(number, picked, &mut defined, writer);
        }
        self.print_pass_online(online, &defined, writer);
        for &(number, picked) in &picks {
            self.define_for_row(&[picked.value], &mut defined, writer);
            self.print_picked(number, picked, &defined, writer);
        }
        let operands: Vec<_> = body.written().collect();
        self.define_for_row(&operands, &mut defined, writer);
        let outputs: Vec<usize> = (0..body.outputs.len()).collect();
        self.print_row_outputs(&outputs, &defined, writer);
        self.close_rows(writer);
    }

    /// Prints the pass, and the tree over the threads. A thread starts from the lowest finite number, so that an infinity is
    /// never subtracted from another.
    fn print_pass_online(&self, online: &Online, defined: &Defined, writer: &mut Writer) {
        let (body, class, index) = (&self.kernel.body, &self.kernel.class, self.index);
        let (threads, vector) = (class.threads_of_a_row(), class.vector);
        let dtype = body.dtype(online.value);
        let (name, infinity) = (dtype.short_name(), neutral(ReduceOp::Max, dtype));
        let (packs, step) = (AT_ONCE / vector, threads * u32::from(AT_ONCE));
        writer.line(&format!("{name} greatest = {};", lowest(dtype)));
        writer.line(&format!("{name} sum = {};", neutral(ReduceOp::Sum, dtype)));
        writer.open(&format!("for ({index} begin = lane * {vector}; begin < points; begin += {step})"));
        let inputs: Vec<usize> = self
            .statements
            .loads(&[online.value], defined)
            .into_iter()
            .filter(|&n| !class.repeats(n))
            .collect();
        for &input in &inputs {
            writer.line(&format!("{} input{input}[{packs}];", self.pack(body.inputs[input].dtype)));
        }
        let open = |writer: &mut Writer| {
            writer.line("#pragma unroll");
            writer.open(&format!("for (u32 k = 0; k < {packs}; ++k)"));
            writer.line(&format!("const {index} first = begin + k * {};", threads * u32::from(vector)));
        };
        open(writer);
        writer.open("if (first < points)");
        for &input in &inputs {
            self.print_load(input, &format!("input{input}[k]"), writer);
        }
        (0..2).for_each(|_| writer.close(""));
        writer.line(&format!("{name} values[{AT_ONCE}], candidates[{AT_ONCE}];"));
        open(writer);
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
        let value = format!("values[k * {vector} + e]");
        writer.line(&format!("{value} = {infinity};"));
        writer.open("if (first < points)");
        self.statements.define(&[online.value], &mut defined.clone(), |index| self.at_points[index], writer);
        writer.line(&format!("{value} = {};", self.statements.name(online.value)));
        writer.close("");
        writer.line(&format!("candidates[k * {vector} + e] = {value};"));
        (0..2).for_each(|_| writer.close(""));
        let exp = if dtype == DType::F32 { "expf" } else { "exp" };
        let (higher, plus) = (self.combining_function(online.greatest), self.combining_function(online.sum));
        writer.line(&format!(
            "const {name} higher = maximum<{name}>(greatest, combine_vector(candidates, {higher}));"
        ));
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {AT_ONCE}; ++e)"));
        writer.line(&format!("values[e] = {exp}(values[e] - higher);"));
        writer.close("");
        writer.line(&format!("sum = sum * {exp}(greatest - higher) + combine_vector(values, {plus});"));
        writer.line("greatest = higher;");
        writer.close("");
        for (number, own) in [
            (online.greatest, "greatest".to_owned()),
            (online.sum, format!("sum * {exp}(greatest - reduced{})", online.greatest)),
        ] {
            writer.line(&format!("{name} reduced{number} = {own};"));
            self.print_combination(number, &format!("reduced{number}"), writer);
        }
    }

    /// Prints the place of a reduction's one point and the loads of its elements, which arrive while the row is read.
    pub(super) fn print_place(
        &self,
        number: usize,
        picked: Picked,
        defined: &mut Defined,
        writer: &mut Writer,
    ) {
        let (body, index) = (&self.kernel.body, self.index);
        self.define_for_row(&[picked.place], defined, writer);
        writer.line(&format!("const i64 place{number} = {};", self.statements.name(picked.place)));
        writer
            .line(&format!("const bool inside{number} = place{number} >= 0 && place{number} < i64(points);"));
        let inputs = self.statements.loads(&[picked.value], defined);
        for input in inputs.into_iter().filter(|&input| !self.kernel.class.repeats(input)) {
            let element = memory_type(body.inputs[input].dtype);
            let start = self.start(&format!("input{input}"));
            writer.line(&format!(
                "const {element} picked{number}_{input} = inside{number} ? a.input{input}[{start} + {index}(place{number})] : {element}();"
            ));
        }
    }

    /// Prints a reduction to which one point contributes.
    pub(super) fn print_picked(&self, number: usize, picked: Picked, defined: &Defined, writer: &mut Writer) {
        let (body, class) = (&self.kernel.body, &self.kernel.class);
        let dtype = body.dtype(picked.value);
        writer.line(&format!("{} reduced{number} = {};", dtype.short_name(), neutral(ReduceOp::Sum, dtype)));
        writer.open(&format!("if (inside{number})"));
        if self.statements.reads_inner(&[picked.value], defined) {
            writer.line(&format!("const {0} inner0 = {0}(place{number});", self.index));
        }
        let statements = Statements::new(body, |input| match class.repeats(input) {
            true => format!("a.input{input}[start_input{input}]"),
            false => format!("picked{number}_{input}"),
        });
        statements.define(&[picked.value], &mut defined.clone(), |index| self.at_points[index], writer);
        writer.line(&format!("reduced{number} = {};", statements.name(picked.value)));
        writer.close("");
    }
}

/// Returns the lowest finite number of a dtype.
fn lowest(dtype: DType) -> String {
    let lowest = if dtype == DType::F32 { f64::from(f32::MIN) } else { f64::MIN };
    literal(Scalar::F64(lowest), dtype)
}
