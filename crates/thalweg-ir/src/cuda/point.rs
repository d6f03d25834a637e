//! Kernels whose threads have points of their own: bodies without reductions.

use crate::body::{InputKind, Output, OutputPlace};
use crate::{ExprId, Kernel};

use super::expression::{Statements, memory_type, scattered, stored};
use super::writer::Writer;
use super::{POINT_BLOCK, index_type, inner_dimensions, offset, open_entry, row_dimensions, split_index};

/// Returns the strided inputs that the body reads.
fn loaded_inputs(kernel: &Kernel) -> Vec<usize> {
    let inputs = kernel.body.inputs.iter().enumerate();
    inputs
        .filter(|&(number, input)| input.kind == InputKind::Strided && kernel.body.uses_input(number))
        .map(|(number, _)| number)
        .collect()
}

/// Prints the lines with the thread's number, the number of threads and the number of points.
fn print_counts(index: &str, writer: &mut Writer) {
    writer.line(&format!("const {index} count = {index}(a.rows * a.points);"));
    writer.line(&format!("const {index} threads = {index}(gridDim.x) * blockDim.x;"));
    writer.line(&format!("const {index} thread = {index}(blockIdx.x) * blockDim.x + threadIdx.x;"));
}

/// Prints the kernel of a contiguous class: one function for a point, called for vectors and for the rest.
pub(super) fn print_contiguous(kernel: &Kernel, writer: &mut Writer) {
    let index = index_type(&kernel.class);
    let inputs = loaded_inputs(kernel);
    print_point_function(kernel, &inputs, writer);
    let (body, name, vector) = (&kernel.body, &kernel.name, kernel.class.vector);
    let call = |at: &str, element: &dyn Fn(&str, usize) -> String| {
        let mut arguments = vec!["a".to_string(), at.to_string()];
        arguments.extend(inputs.iter().map(|&number| element("input", number)));
        arguments.extend((0..body.outputs.len()).map(|number| element("output", number)));
        format!("{name}_point({});", arguments.join(", "))
    };
    open_entry(kernel, POINT_BLOCK, writer);
    print_counts(index, writer);
    let mut start = "thread".to_string();
    if vector > 1 {
        writer.open(&format!("for ({index} i = thread; i < count / {vector}; i += threads)"));
        for &number in &inputs {
            let pack = format!("pack<{}, {vector}>", memory_type(body.inputs[number].dtype));
            writer.line(&format!("const {pack} input{number} = ((const {pack}*)a.input{number})[i];"));
        }
        let packs: Vec<String> = body
            .outputs
            .iter()
            .map(|output| format!("pack<{}, {vector}>", memory_type(output.dtype)))
            .collect();
        for (number, pack) in packs.iter().enumerate() {
            writer.line(&format!("{pack} output{number};"));
        }
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
        writer
            .line(&call(&format!("i * {vector} + e"), &|kind, number| format!("{kind}{number}.element[e]")));
        writer.close("");
        for (number, pack) in packs.iter().enumerate() {
            writer.line(&format!("(({pack}*)a.output{number})[i] = output{number};"));
        }
        writer.close("");
        start = format!("count / {vector} * {vector} + thread");
    }
    writer.open(&format!("for ({index} i = {start}; i < count; i += threads)"));
    writer.line(&call("i", &|kind, number| format!("a.{kind}{number}[i]")));
    writer.close("");
    writer.close("");
}

/// Prints the function of one point: elements by value, results by reference.
fn print_point_function(kernel: &Kernel, inputs: &[usize], writer: &mut Writer) {
    let (body, class, name) = (&kernel.body, &kernel.class, &kernel.name);
    let index = index_type(class);
    let mut parameters = vec![format!("const {name}_arguments& a"), format!("const {index} i")];
    for &number in inputs {
        parameters.push(format!("const {} input{number}", memory_type(body.inputs[number].dtype)));
    }
    for (number, output) in body.outputs.iter().enumerate() {
        parameters.push(format!("{}& output{number}", memory_type(output.dtype)));
    }
    writer.open(&format!("static __device__ __forceinline__ void {name}_point({})", parameters.join(", ")));
    if body.uses_coordinates() {
        match (class.row_rank, class.inner_rank) {
            (1, 1) => {
                writer.line(&format!("const {index} row0 = i / {index}(a.points);"));
                writer.line(&format!("const {index} inner0 = i % {index}(a.points);"));
            }
            (1, _) => writer.line(&format!("const {index} row0 = i;")),
            (_, 1) => writer.line(&format!("const {index} inner0 = i;")),
            _ => {}
        }
    }
    print_outputs(kernel, &|number| format!("input{number}"), &|number| format!("output{number}"), writer);
    writer.close("");
    writer.blank();
}

/// Prints the kernel of a strided class.
pub(super) fn print_strided(kernel: &Kernel, writer: &mut Writer) {
    let (body, class) = (&kernel.body, &kernel.class);
    let index = index_type(class);
    open_entry(kernel, POINT_BLOCK, writer);
    print_counts(index, writer);
    writer.open(&format!("for ({index} i = thread; i < count; i += threads)"));
    let mut dimensions = row_dimensions(class);
    dimensions.extend(inner_dimensions(class));
    split_index("i", &dimensions, index, writer);
    let place = |operand: &str, at_points: bool| {
        let row = offset(operand, "row", class.row_rank, index);
        if at_points && class.inner_rank > 0 {
            format!("{row} + {}", offset(operand, "inner", class.inner_rank, index))
        } else {
            row
        }
    };
    for number in loaded_inputs(kernel) {
        let operand = format!("input{number}");
        writer.line(&format!("const {index} at_{operand} = {};", place(&operand, true)));
    }
    let outputs = body.outputs.iter().enumerate();
    for (number, output) in outputs.filter(|(_, output)| output.scatter.is_none()) {
        let operand = format!("output{number}");
        writer.line(&format!(
            "const {index} at_{operand} = {};",
            place(&operand, output.place == OutputPlace::Point)
        ));
    }
    let element = |kind: &str, number: usize| format!("a.{kind}{number}[at_{kind}{number}]");
    print_outputs(kernel, &|number| element("input", number), &|number| element("output", number), writer);
    writer.close("");
    writer.close("");
}

/// Returns the body at one point. All values come before the first store, so that an output may be an input's memory.
fn print_outputs(
    kernel: &Kernel,
    input: &dyn Fn(usize) -> String,
    output: &dyn Fn(usize) -> String,
    writer: &mut Writer,
) {
    let body = &kernel.body;
    let statements = Statements::new(body, input);
    let mut defined = statements.nothing();
    let values: Vec<ExprId> = body.outputs.iter().flat_map(Output::operands).collect();
    statements.define(&values, &mut defined, |_| true, writer);
    for (number, place) in body.outputs.iter().enumerate() {
        let value = stored(&statements.name(place.value), body.dtype(place.value), place.dtype);
        match place.scatter {
            None => writer.line(&format!("{} = {value};", output(number))),
            Some(scatter) => writer.line(&scattered(&statements, number, scatter, &value)),
        }
    }
}
