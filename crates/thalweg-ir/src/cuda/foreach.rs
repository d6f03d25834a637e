//! Kernels over lists of tensors: each block finds its tensor, then its threads iterate over their part of it.

use crate::body::Output;
use crate::foreach::{BLOCK, CHUNK, ForeachKernel, ForeachOperand};
use crate::{Body, ExprId, Node};

use super::expression::{Statements, memory_type, scalar_type, stored};
use super::prelude;
use super::writer::Writer;

/// Returns the translation unit of a kernel over a list of tensors, whose entry point takes the words of [`ForeachKernel::pack`]
/// as one structure by value. Values that depend only on scalars and on inputs of one element are computed once per thread. If
/// they show that every element keeps its value, no element is read.
///
/// # Panics
/// If the kernel is invalid: a body with reductions, coordinates, gathers or scatters, or an output whose dtype differs from that
/// of the input that it overwrites.
pub fn print_foreach(kernel: &ForeachKernel) -> String {
    let body = &kernel.body;
    let plain = body.reductions.is_empty()
        && body.report.is_none()
        && body.outputs.iter().all(|output| output.scatter.is_none())
        && !body
            .nodes
            .iter()
            .any(|node| matches!(node, Node::Index(_) | Node::Place { .. } | Node::Gather { .. }));
    assert!(plain, "{}: a body over a list is elementwise", kernel.name);
    for (output, &target) in body.outputs.iter().zip(&kernel.targets) {
        let input = body.inputs[usize::from(target)];
        assert_eq!(output.dtype, input.dtype, "{}: an output has its place's dtype", kernel.name);
        let is_elements = kernel.operands[usize::from(target)] == ForeachOperand::Elements;
        assert!(is_elements, "{}: what is written has elements", kernel.name);
    }
    let mut writer = Writer::default();
    print_arguments(kernel, &mut writer);
    print_entry(kernel, &mut writer);
    let code = writer.finish();
    prelude::needed_by(&code) + "\n" + &code
}

/// The number of elements that a thread loads before it stores the first.
const AT_ONCE: u32 = 4;

/// CUDA code that finds the tensor of a block. It reads from the arguments `a`: the number of `tensors`, and the `first_block` of
/// each.
const FIND_TENSOR: &str = "\
// The last tensor that begins at this block or before.
u32 tensor = 0;
for (u32 end = u32(a.tensors); end - tensor > 1;) {
    const u32 middle = (tensor + end) / 2;
    if (a.first_block[middle] <= blockIdx.x) tensor = middle; else end = middle;
}";

fn print_arguments(kernel: &ForeachKernel, writer: &mut Writer) {
    let (body, capacity) = (&kernel.body, kernel.capacity());
    writer.open(&format!("struct {}_arguments", kernel.name));
    for (number, input) in body.inputs.iter().enumerate().filter(|(number, _)| kernel.is_shared(*number)) {
        writer.line(&format!("const {}* input{number};", memory_type(input.dtype)));
    }
    for (number, &dtype) in body.scalars.iter().enumerate() {
        writer.line(&format!("{} scalar{number};", scalar_type(dtype)));
    }
    writer.line("u64 tensors;");
    writer.line(&format!("u64 elements[{capacity}];"));
    writer.line(&format!("u64 first_block[{capacity}];"));
    for number in kernel.listed() {
        writer.line(&format!("{}* input{number}[{capacity}];", memory_type(body.inputs[number].dtype)));
    }
    writer.close(";");
    writer.blank();
}

/// Returns the condition under which every output equals the element that it overwrites, if one condition covers all elements.
fn unchanged(body: &Body, targets: &[u16]) -> Option<ExprId> {
    let node = |id: ExprId| &body.nodes[id.index()];
    let is_load = |id: ExprId, target: u16| matches!(*node(id), Node::Load { input } if input == target);
    // A 16-bit float is cast to the compute dtype on loading, and back on storing.
    let is_element = |id: ExprId, target: u16| match *node(id) {
        Node::Cast(loaded) => {
            is_load(loaded, target) && body.dtype(id) == body.inputs[usize::from(target)].dtype.compute()
        }
        _ => is_load(id, target),
    };
    let condition = |(output, &target): (&Output, &u16)| match *node(output.value) {
        Node::Select(condition, yes, _) if is_element(yes, target) => Some(condition),
        _ => None,
    };
    let mut conditions = body.outputs.iter().zip(targets).map(condition);
    let first = conditions.next()??;
    conditions.all(|other| other == Some(first)).then_some(first)
}

fn print_entry(kernel: &ForeachKernel, writer: &mut Writer) {
    let (body, name) = (&kernel.body, &kernel.name);
    writer.open(&format!(
        "extern \"C\" __global__ void __launch_bounds__({BLOCK}) {name}(const __grid_constant__ {name}_arguments a)"
    ));
    FIND_TENSOR.lines().for_each(|line| writer.line(line));
    writer.line(&format!("const u64 start = (blockIdx.x - a.first_block[tensor]) * {CHUNK};"));
    writer.line("const u64 elements = a.elements[tensor];");
    writer.line(&format!("const u64 end = elements - start < {CHUNK} ? elements : start + {CHUNK};"));
    for number in kernel.listed() {
        writer.line(&format!(
            "{}* const input{number} = a.input{number}[tensor];",
            memory_type(body.inputs[number].dtype)
        ));
    }
    // Outputs may alias any input, so a compiler moves no load before an earlier store: the loads of several elements are printed
    // first.
    let load = |number: usize| match kernel.operands[number] {
        ForeachOperand::Shared => format!("*a.input{number}"),
        ForeachOperand::PerTensor => format!("*input{number}"),
        ForeachOperand::Elements => format!("loaded{number}[part]"),
    };
    let has_elements = |number: usize| kernel.operands[number] == ForeachOperand::Elements;
    let statements = Statements::new(body, load);
    let at_elements = body.point_dependent(has_elements);
    let values: Vec<ExprId> = body.outputs.iter().flat_map(Output::operands).collect();
    let mut defined = statements.nothing();
    statements.define(&values, &mut defined, |index| !at_elements[index], writer);
    if let Some(condition) =
        unchanged(body, &kernel.targets).filter(|condition| !at_elements[condition.index()])
    {
        writer.line(&format!("if ({}) return;", statements.name(condition)));
    }
    writer.open(&format!("for (u64 first = start + threadIdx.x; first < end; first += {})", BLOCK * AT_ONCE));
    let used: Vec<usize> =
        kernel.listed().filter(|&number| has_elements(number) && body.uses_input(number)).collect();
    for &number in &used {
        writer.line(&format!("{} loaded{number}[{AT_ONCE}] = {{}};", memory_type(body.inputs[number].dtype)));
    }
    let open_parts = |writer: &mut Writer| {
        writer.line("#pragma unroll");
        writer.open(&format!("for (u32 part = 0; part < {AT_ONCE}; ++part)"));
        writer.line(&format!("const u64 i = first + part * {BLOCK};"));
    };
    open_parts(writer);
    writer.open("if (i < end)");
    for number in used {
        writer.line(&format!("loaded{number}[part] = input{number}[i];"));
    }
    writer.close("");
    writer.close("");
    open_parts(writer);
    statements.define(&values, &mut defined, |index| at_elements[index], writer);
    writer.open("if (i < end)");
    for (output, &target) in body.outputs.iter().zip(&kernel.targets) {
        let value = stored(&statements.name(output.value), body.dtype(output.value), output.dtype);
        writer.line(&format!("input{target}[i] = {value};"));
    }
    writer.close("");
    writer.close("");
    writer.close("");
    writer.close("");
}
