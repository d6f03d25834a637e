//! Kernels whose threads have their own points: bodies without reductions.

use crate::body::OutputPlace;
use crate::{DType, ExprId, Kernel};

use super::entry::{
    POINT_BLOCK, index_type, inner_dimensions, offset, open_entry, row_dimensions, split_index,
};
use super::expression::{Statements, memory_type, reported, scattered, stored};
use super::writer::Writer;

/// Returns the strided inputs that the body reads.
pub(super) fn loaded_inputs(kernel: &Kernel) -> Vec<usize> {
    (0..kernel.body.inputs.len()).filter(|&number| kernel.body.loads_input(number)).collect()
}

/// Returns the inputs whose offsets the body reads.
fn offset_inputs(kernel: &Kernel) -> impl Iterator<Item = usize> + '_ {
    (0..kernel.body.inputs.len()).filter(|&number| kernel.body.uses_offsets(number))
}

/// Returns how many vectors of each input a thread loads before it uses the first: with few inputs, one vector each would leave
/// too few loads in flight.
pub(super) fn vectors_at_once(kernel: &Kernel) -> u32 {
    if kernel.class.vector > 1 && kernel.body.inputs.len() < 4 { 2 } else { 1 }
}

/// Prints the lines with the thread's number, the number of threads and the number of points.
fn print_counts(index: &str, writer: &mut Writer) {
    writer.line(&format!("const {index} count = {index}(a.rows * a.points);"));
    writer.line(&format!("const {index} threads = {index}(gridDim.x) * blockDim.x;"));
    writer.line(&format!("const {index} thread = {index}(blockIdx.x) * blockDim.x + threadIdx.x;"));
}

/// Prints the kernel of a contiguous class: one function for a point, called for vectors and for the remaining points.
pub(super) fn print_contiguous(kernel: &Kernel, writer: &mut Writer) {
    let index = index_type(&kernel.class);
    let inputs = loaded_inputs(kernel);
    print_point_function(kernel, &inputs, writer);
    let (body, name, vector) = (&kernel.body, &kernel.name, kernel.class.vector);
    let call = |at: &str, element: &dyn Fn(&str, usize) -> String| {
        let mut arguments = vec!["a".to_string(), at.to_string()];
        arguments.extend(body.draws().then(|| "philox".to_string()));
        arguments.extend(inputs.iter().map(|&number| element("input", number)));
        arguments.extend((0..body.outputs.len()).map(|number| element("output", number)));
        format!("{name}_point({});", arguments.join(", "))
    };
    open_entry(kernel, POINT_BLOCK, 1, writer);
    print_counts(index, writer);
    let mut start = "thread".to_string();
    if vector > 1 {
        let at_once = vectors_at_once(kernel);
        let block = POINT_BLOCK * at_once;
        writer.line(&format!("const {index} vectors = count / {vector};"));
        writer.line(&format!("const {index} begin = {index}(blockIdx.x) * {block} + threadIdx.x;"));
        writer.line(&format!("const {index} step = {index}(gridDim.x) * {block};"));
        writer.open(&format!("for ({index} first = begin; first < vectors; first += step)"));
        let open_vectors = |writer: &mut Writer| {
            writer.line("#pragma unroll");
            writer.open(&format!("for (u32 k = 0; k < {at_once}; ++k)"));
            writer.line(&format!("const {index} i = first + k * {POINT_BLOCK};"));
            writer.open("if (i < vectors)");
        };
        for &number in &inputs {
            let pack = format!("pack<{}, {vector}>", memory_type(body.inputs[number].dtype));
            writer.line(&format!("{pack} input{number}[{at_once}];"));
        }
        open_vectors(writer);
        for &number in &inputs {
            let pack = format!("pack<{}, {vector}>", memory_type(body.inputs[number].dtype));
            writer.line(&format!("input{number}[k] = ((const {pack}*)a.input{number})[i];"));
        }
        (0..2).for_each(|_| writer.close(""));
        open_vectors(writer);
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
        writer.line(&call(&format!("i * {vector} + e"), &|kind, number| {
            let k = if kind == "input" { "[k]" } else { "" };
            format!("{kind}{number}{k}.element[e]")
        }));
        writer.close("");
        for (number, pack) in packs.iter().enumerate() {
            writer.line(&format!("(({pack}*)a.output{number})[i] = output{number};"));
        }
        (0..3).for_each(|_| writer.close(""));
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
    parameters.extend(body.draws().then(|| "philox_words& philox".to_string()));
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
    let statements =
        Statements::new(body, |number| format!("input{number}")).with_offsets(|_| "i".to_owned());
    print_values(kernel, &statements, &|number| format!("output{number}"), writer);
    writer.close("");
    writer.blank();
}

/// Returns how many points a thread of a strided class without vectors loads before it uses the first.
fn points_at_once(kernel: &Kernel) -> u32 {
    let body = &kernel.body;
    let is_plain = !body.uses_coordinates()
        && !body.draws()
        && body.report.is_none()
        && body.outputs.iter().all(|output| output.scatter.is_none());
    if is_plain && loaded_inputs(kernel).len() < 4 { 4 } else { 1 }
}

/// Prints the loop of a strided class without vectors whose threads load several points at once, a block apart.
fn print_points_at_once(kernel: &Kernel, at_once: u32, dimensions: &[(String, String)], writer: &mut Writer) {
    let body = &kernel.body;
    let index = index_type(&kernel.class);
    let (inputs, block) = (loaded_inputs(kernel), POINT_BLOCK * at_once);
    writer.line(&format!("const {index} count = {index}(a.rows * a.points);"));
    writer.line(&format!("const {index} begin = {index}(blockIdx.x) * {block} + threadIdx.x;"));
    writer.line(&format!("const {index} step = {index}(gridDim.x) * {block};"));
    writer.open(&format!("for ({index} first = begin; first < count; first += step)"));
    for &number in &inputs {
        writer.line(&format!("{} input{number}[{at_once}];", memory_type(body.inputs[number].dtype)));
    }
    for number in offset_inputs(kernel) {
        writer.line(&format!("{index} offset{number}[{at_once}];"));
    }
    for number in 0..body.outputs.len() {
        writer.line(&format!("{index} to_output{number}[{at_once}];"));
    }
    let open_points = |writer: &mut Writer| {
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 k = 0; k < {at_once}; ++k)"));
        writer.line(&format!("const {index} i = first + k * {POINT_BLOCK};"));
        writer.open("if (i < count)");
    };
    open_points(writer);
    split_index("i", dimensions, index, writer);
    print_offsets(kernel, writer);
    for &number in &inputs {
        writer.line(&format!("input{number}[k] = a.input{number}[at_input{number}];"));
    }
    for number in offset_inputs(kernel) {
        writer.line(&format!("offset{number}[k] = at_input{number};"));
    }
    for number in 0..body.outputs.len() {
        writer.line(&format!("to_output{number}[k] = at_output{number};"));
    }
    (0..2).for_each(|_| writer.close(""));
    open_points(writer);
    let output = |number| format!("a.output{number}[to_output{number}[k]]");
    let statements = Statements::new(body, |number| format!("input{number}[k]"))
        .with_offsets(|number| format!("offset{number}[k]"));
    print_values(kernel, &statements, &output, writer);
    (0..3).for_each(|_| writer.close(""));
}

/// Prints the kernel of a strided class. With vectors, a thread's points are neighbours in the last dimension.
pub(super) fn print_strided(kernel: &Kernel, writer: &mut Writer) {
    let (body, class) = (&kernel.body, &kernel.class);
    let (index, vector) = (index_type(class), class.vector);
    open_entry(kernel, POINT_BLOCK, 1, writer);
    let mut dimensions = row_dimensions(class);
    dimensions.extend(inner_dimensions(class));
    let at_once = if vector == 1 { points_at_once(kernel) } else { 1 };
    if at_once > 1 {
        print_points_at_once(kernel, at_once, &dimensions, writer);
        writer.close("");
        return;
    }
    print_counts(index, writer);
    if vector == 1 {
        writer.open(&format!("for ({index} i = thread; i < count; i += threads)"));
        split_index("i", &dimensions, index, writer);
    } else {
        let (coordinate, extent) = dimensions.pop().expect("vectors lie along a dimension");
        writer.line(&format!("const {index} vectors = {index}(a.{extent}) / {vector};"));
        writer.open(&format!("for ({index} i = thread; i < count / {vector}; i += threads)"));
        writer.line(&format!("const {index} {coordinate} = i % vectors * {vector};"));
        if !dimensions.is_empty() {
            writer.line(&format!("const {index} outside = i / vectors;"));
        }
        split_index("outside", &dimensions, index, writer);
    }
    print_offsets(kernel, writer);
    let element = |kind: &str, number: usize| format!("a.{kind}{number}[at_{kind}{number}]");
    if vector == 1 {
        let statements = Statements::new(body, |number| element("input", number))
            .with_offsets(|number| format!("at_input{number}"));
        print_values(kernel, &statements, &|number| element("output", number), writer);
    } else {
        let packs = |dtype: DType| format!("pack<{}, {vector}>", memory_type(dtype));
        for number in loaded_inputs(kernel).into_iter().filter(|&number| !class.repeats(number)) {
            let pack = packs(body.inputs[number].dtype);
            writer.line(&format!(
                "const {pack} input{number} = *(const {pack}*)(a.input{number} + at_input{number});"
            ));
        }
        print_gathered(kernel, writer);
        for (number, output) in body.outputs.iter().enumerate() {
            writer.line(&format!("{} output{number};", packs(output.dtype)));
        }
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
        let input = |number: usize| {
            let pack = format!("input{number}.element[e]");
            if class.repeats(number) { element("input", number) } else { pack }
        };
        let offset = |number: usize| match class.repeats(number) {
            true => format!("at_input{number}"),
            false => format!("at_input{number} + e"),
        };
        let statements =
            Statements::new(body, input).with_offsets(offset).with_vectors(|input| class.repeats(input));
        print_values(kernel, &statements, &|number| format!("output{number}.element[e]"), writer);
        writer.close("");
        for (number, output) in body.outputs.iter().enumerate() {
            let pack = packs(output.dtype);
            writer.line(&format!("*({pack}*)(a.output{number} + at_output{number}) = output{number};"));
        }
    }
    writer.close("");
    writer.close("");
}

/// Prints the loads of what is gathered as vectors, with what their indices need.
fn print_gathered(kernel: &Kernel, writer: &mut Writer) {
    let (body, class) = (&kernel.body, &kernel.class);
    if !body.has_offsets() {
        return;
    }
    let offset = |number| format!("at_input{number}");
    let statements = Statements::new(body, |number| format!("a.input{number}[at_input{number}]"))
        .with_offsets(offset)
        .with_vectors(|input| class.repeats(input));
    let differs = body.point_dependent(|input| !class.repeats(input));
    let roots: Vec<ExprId> = body.written().collect();
    let mut defined = statements.nothing();
    statements.define(&roots, &mut defined, |index| !differs[index], writer);
    statements.print_gathered((&roots, &defined), class.vector, offset, writer);
}

/// Prints the offsets of the operands of a strided kernel.
fn print_offsets(kernel: &Kernel, writer: &mut Writer) {
    let (body, class) = (&kernel.body, &kernel.class);
    let index = index_type(class);
    let place = |operand: &str, at_points: bool| {
        let row = offset(operand, "row", class.row_rank, index);
        if at_points && class.inner_rank > 0 {
            format!("{row} + {}", offset(operand, "inner", class.inner_rank, index))
        } else {
            row
        }
    };
    let inputs = 0..body.inputs.len();
    for number in inputs.filter(|&number| body.loads_input(number) || body.uses_offsets(number)) {
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
}

/// Prints the values and the stores of the outputs at one point; the statements determine how elements are loaded. All values are computed
/// before the first store, so that an output may overwrite an input.
pub(super) fn print_values(
    kernel: &Kernel,
    statements: &Statements<'_>,
    output: &dyn Fn(usize) -> String,
    writer: &mut Writer,
) {
    let body = &kernel.body;
    let mut defined = statements.nothing();
    let values: Vec<ExprId> = body.written().collect();
    statements.define(&values, &mut defined, |_| true, writer);
    for (number, place) in body.outputs.iter().enumerate() {
        let value = stored(&statements.name(place.value), body.dtype(place.value), place.dtype);
        match place.scatter {
            None => writer.line(&format!("{} = {value};", output(number))),
            Some(scatter) => writer.line(&scattered(statements, number, scatter, &value)),
        }
    }
    if let Some(report) = body.report {
        writer.line(&reported(statements, report));
    }
}
