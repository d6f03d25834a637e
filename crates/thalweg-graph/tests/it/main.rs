//! Segments of operators of the table: what becomes one loop, what does not, and where temporary memory is.

// Parts of the library that need nothing else of it: their own tests run here, which spares a test binary of the whole library.
#[allow(unused)]
#[path = "../../src/embedding.rs"]
mod embedding;

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_graph::{Lifetime, Machine, Memory, Node, Operand, Program, Refusal, Segment, plan};
use thalweg_ir::{DType, Layout, Shape};
use thalweg_ops::LoopOp;
use thalweg_ops::lower::{LoopArguments, LoopLaunch, LoweredLoop, Operand as Lowered, Points};
use thalweg_ops::structured::{COPY, SOFTMAX, SUM};
use thalweg_ops::table::{add, exp, mul};

const MACHINE: Machine = Machine { shared_memory_bytes: 227 << 10, has_clusters: true };

/// A tensor of a segment.
#[derive(Clone)]
struct Value {
    memory: u32,
    layout: Layout,
    dtype: DType,
}

impl Value {
    fn operand(&self) -> Operand {
        let offset = (self.layout.offset() * self.dtype.size_bytes()) as u64;
        Operand { memory: self.memory, offset }
    }

    fn lowered(&self) -> Lowered<'_> {
        Lowered { dtype: self.dtype, layout: &self.layout }
    }

    fn seen(&self, layout: Layout) -> Self {
        Self { layout, ..self.clone() }
    }
}

#[derive(Default)]
struct Builder(Segment);

impl Builder {
    fn memory(&mut self, layout: Layout, dtype: DType, lifetime: Lifetime) -> Value {
        let memory = self.0.memories.len() as u32;
        let bytes = (layout.span() * dtype.size_bytes()) as u64;
        self.0.memories.push(Memory { bytes, alignment_bytes: 256, lifetime });
        Value { memory, layout, dtype }
    }

    fn input(&mut self, shape: &[usize]) -> Value {
        self.memory(Layout::contiguous(shape), DType::F32, Lifetime::Existing)
    }

    /// Calls an operator that reduces dimensions, or none; its result is temporary.
    fn reduce(&mut self, operator: &'static LoopOp, inputs: &[&Value], reduced: &[usize]) -> Value {
        let points =
            if reduced.is_empty() { Points::Tensors } else { Points::Reduced(Shape::from_slice(reduced)) };
        let arguments = LoopArguments { points, ..LoopArguments::default() };
        let operands: Vec<Lowered<'_>> = inputs.iter().map(|input| input.lowered()).collect();
        let lowered = LoweredLoop::new(operator, &operands, &arguments).unwrap();
        let output = &lowered.outputs[0];
        let value = self.memory(output.layout.clone(), output.dtype, Lifetime::Temporary);
        self.add(lowered.launch().clone(), inputs, &value);
        value
    }

    fn call(&mut self, operator: &'static LoopOp, inputs: &[&Value]) -> Value {
        self.reduce(operator, inputs, &[])
    }

    /// Calls an operator whose result is written over a tensor.
    fn write_over(&mut self, operator: &'static LoopOp, inputs: &[&Value], output: &Value) {
        let operands: Vec<Lowered<'_>> = inputs.iter().map(|input| input.lowered()).collect();
        let launch =
            LoopLaunch::into_outputs(operator, &operands, &[output.lowered()], &LoopArguments::default())
                .unwrap();
        self.add(launch, inputs, output);
    }

    /// Returns numbers in another dtype and another layout, in temporary memory.
    fn copied(&mut self, x: &Value, layout: Layout, dtype: DType) -> Value {
        let copy = self.memory(layout, dtype, Lifetime::Temporary);
        let arguments = LoopArguments { dtype: Some(dtype), ..LoopArguments::default() };
        let launch = LoopLaunch::into_outputs(&COPY, &[x.lowered()], &[copy.lowered()], &arguments).unwrap();
        self.add(launch, &[x], &copy);
        copy
    }

    /// Returns numbers as float32, in temporary memory.
    fn widened(&mut self, x: &Value) -> Value {
        self.copied(x, x.layout.clone(), DType::F32)
    }

    fn add(&mut self, launch: LoopLaunch, inputs: &[&Value], output: &Value) {
        let inputs = inputs.iter().map(|input| input.operand()).collect();
        let (outputs, numbers_of) = (SmallVec::from_slice(&[output.operand()]), self.0.nodes.len() as u32);
        self.0.nodes.push(Node { launch: Arc::new(launch), inputs, outputs, numbers_of });
    }

    fn keep(&mut self, value: &Value) {
        self.0.memories[value.memory as usize].lifetime = Lifetime::Kept;
    }

    fn plan(&self) -> Program {
        plan(&self.0, &MACHINE)
    }
}

/// Returns the nodes that each step computes.
fn members(program: &Program) -> Vec<Vec<u32>> {
    program.steps.iter().map(|step| step.members.to_vec()).collect()
}

#[test]
fn a_chain_is_one_step_without_memory_between() {
    let mut builder = Builder::default();
    let (x, bias) = (builder.input(&[64, 32]), builder.input(&[32]));
    let sum = builder.call(&add, &[&x, &bias]);
    let flat = builder.call(&exp, &[&sum.seen(Layout::contiguous(&[2048]))]);
    let product = builder.call(&mul, &[&flat.seen(Layout::contiguous(&[64, 32])), &x]);
    builder.keep(&product);
    let program = builder.plan();
    assert_eq!(members(&program), [[0, 1, 2]]);
    assert_eq!(
        (program.arena_bytes, program.placed.len(), program.kept.clone()),
        (0, 0, vec![product.memory])
    );
    // x is read once.
    assert_eq!(program.steps[0].inputs.len(), 2);
    assert_eq!(program.traffic_bytes[1], 4 * (2048 + 32 + 2048));
}

#[test]
fn what_is_kept_in_between_is_written_too_and_what_is_not_read_is_left_out() {
    let mut builder = Builder::default();
    let x = builder.input(&[100]);
    let kept = builder.call(&exp, &[&x]);
    let unread = builder.call(&exp, &[&kept]);
    let result = builder.call(&add, &[&kept, &x]);
    builder.keep(&kept);
    builder.keep(&result);
    let program = builder.plan();
    assert_eq!(members(&program), [[0, 2]]);
    let written: Vec<u32> = program.steps[0].outputs.iter().map(|output| output.memory).collect();
    assert_eq!(written, [kept.memory, result.memory]);
    assert!(!program.placed.iter().any(|(memory, _)| *memory == unread.memory));
}

#[test]
fn rows_join_what_makes_their_points_and_what_reads_their_results() {
    let mut builder = Builder::default();
    let x = builder.input(&[64, 96]);
    let points = builder.call(&exp, &[&x]);
    let total = builder.reduce(&SUM, &[&points], &[1]);
    let spread = total.seen(Layout::new(&[64, 96], &[1, 0], 0).unwrap());
    let result = builder.call(&mul, &[&points, &spread]);
    builder.keep(&result);
    let program = builder.plan();
    assert_eq!(members(&program), [[0, 1, 2]], "{:?}", program.apart);
    assert_eq!(program.steps[0].launch.body.reductions.len(), 1);
    // The same through a transposed view.
    let mut builder = Builder::default();
    let x = builder.input(&[64, 96]);
    let points = builder.call(&exp, &[&x.seen(Layout::new(&[96, 64], &[1, 96], 0).unwrap())]);
    let total = builder.reduce(&SUM, &[&points], &[0]);
    builder.keep(&total);
    assert_eq!(builder.plan().steps.len(), 1);
}

#[test]
fn a_sum_keeps_its_order_or_is_not_fused() {
    let mut builder = Builder::default();
    let x = builder.input(&[64, 4096]);
    let half = builder.memory(Layout::contiguous(&[64, 4096]), DType::Bf16, Lifetime::Existing);
    let soft = builder.reduce(&SOFTMAX, &[&half], &[1]);
    let result = builder.call(&mul, &[&soft, &x]);
    builder.keep(&result);
    let program = builder.plan();
    let alone = |number: usize| {
        builder.0.nodes[number].launch.plan(256, MACHINE.shared_memory_bytes, true).unwrap().class
    };
    if let [step] = &program.steps[..] {
        let class = step.launch.plan(256, MACHINE.shared_memory_bytes, true).unwrap().class;
        assert_eq!((class.lanes, class.cascade), (alone(0).lanes, alone(0).cascade));
    } else {
        let reason = program.apart[0].reason;
        assert!(matches!(reason, Refusal::Order | Refusal::Exponentials | Refusal::Form), "{reason:?}");
    }
}

#[test]
fn writes_in_place_are_one_and_reads_stay_before_writes() {
    let mut builder = Builder::default();
    let (x, y) = (builder.input(&[50]), builder.input(&[50]));
    builder.write_over(&add, &[&x, &y], &x);
    builder.write_over(&mul, &[&x, &y], &x);
    let program = builder.plan();
    assert_eq!(members(&program), [[0, 1]]);
    assert_eq!((program.steps[0].inputs.len(), program.steps[0].outputs.len()), (2, 1));

    // The old elements are read elsewhere than they are written.
    let mut builder = Builder::default();
    let x = builder.input(&[8, 8]);
    let turned = x.seen(Layout::new(&[8, 8], &[1, 8], 0).unwrap());
    let sum = builder.call(&add, &[&x, &turned]);
    builder.keep(&sum);
    builder.write_over(&mul, &[&x, &x], &x);
    assert_eq!(members(&builder.plan()), [[0], [1]]);
}

#[test]
fn a_result_is_not_computed_again_for_each_row_unless_that_is_cheap() {
    let repeated = |operator: &'static LoopOp| {
        let mut builder = Builder::default();
        let (x, bias) = (builder.input(&[64, 32]), builder.input(&[32]));
        let inputs = [&bias, &bias];
        let small = builder.call(operator, &inputs[..operator.input_count]);
        let result = builder.call(&add, &[&x, &small]);
        builder.keep(&result);
        builder.plan()
    };
    assert_eq!(repeated(&mul).steps.len(), 1);
    let dear = repeated(&exp);
    assert_eq!((dear.steps.len(), dear.apart[0].reason), (2, Refusal::Repeated));
    assert_eq!((dear.arena_bytes, dear.placed.len()), (256, 1), "the small result is between the steps");
    assert_eq!(dear.apart[0].reason.to_string(), "one would be computed again at every point of the other");
}

#[test]
fn points_that_differ_are_not_fused() {
    let mut builder = Builder::default();
    let (x, other) = (builder.input(&[64]), builder.input(&[32]));
    let whole = builder.call(&exp, &[&x]);
    let every_other = whole.seen(Layout::new(&[32], &[2], 0).unwrap());
    let part = builder.call(&add, &[&every_other, &other]);
    builder.keep(&part);
    let program = builder.plan();
    assert_eq!((program.steps.len(), program.apart[0].reason), (2, Refusal::Spaces));
    let text = program.describe(&["exp".to_owned(), "add".to_owned()]).to_string();
    assert!(text.contains("not fused: exp and add, since their iteration spaces differ"), "{text}");
}

#[test]
fn a_copy_in_another_order_also_casts_but_computes_little_else() {
    let shape = [512, 256, 9];
    let last = Layout::contiguous(&[512, 9, 256]).permute(&[0, 2, 1]).unwrap();
    for narrow_first in [true, false] {
        let mut builder = Builder::default();
        let (between, after) =
            if narrow_first { (DType::Bf16, DType::Bf16) } else { (DType::F32, DType::Bf16) };
        let weight = builder.input(&shape);
        let order = if narrow_first { weight.layout.clone() } else { last.clone() };
        let first = builder.copied(&weight, order, between);
        let second = builder.copied(&first, last.clone(), after);
        builder.keep(&second);
        assert_eq!(members(&builder.plan()), [[0, 1]], "{narrow_first}");
    }
    let mut builder = Builder::default();
    let inputs: Vec<Value> = (0..3).map(|_| builder.input(&shape)).collect();
    let sum = builder.call(&add, &[&inputs[0], &inputs[1]]);
    let sum = builder.call(&add, &[&sum, &inputs[2]]);
    let moved = builder.copied(&sum, last, DType::F32);
    builder.keep(&moved);
    let program = builder.plan();
    assert_eq!(members(&program), [vec![0, 1], vec![2]]);
    assert!(program.apart.iter().all(|apart| apart.reason == Refusal::Form), "{:?}", program.apart);
}

#[test]
fn a_loop_is_divided_where_others_read_or_write_its_parts() {
    // Halves of rows of 64, as the loop over the whole rows writes and reads them.
    let half = |number: usize| Layout::new(&[48, 32], &[64, 1], 32 * number).unwrap();
    let mut builder = Builder::default();
    let x = builder.input(&[48, 64]);
    let whole = builder.call(&exp, &[&x]);
    let [first, second] = [0, 1].map(|number| whole.seen(half(number)));
    let joined = builder.memory(Layout::contiguous(&[48, 64]), DType::F32, Lifetime::Temporary);
    builder.write_over(&mul, &[&first, &second], &joined.seen(half(1)));
    builder.write_over(&add, &[&second, &first], &joined.seen(half(0)));
    let result = builder.call(&exp, &[&joined]);
    builder.keep(&result);
    let program = builder.plan();
    assert_eq!(members(&program), [[0, 1, 2, 3]]);
    assert_eq!((program.arena_bytes, program.traffic_bytes[1]), (0, 2 * 4 * 48 * 64));
    let offsets = |operands: &[Operand]| operands.iter().map(|operand| operand.offset).collect::<Vec<_>>();
    let step = &program.steps[0];
    assert_eq!((offsets(&step.inputs).len(), offsets(&step.outputs).len()), (2, 2));

    // A part that nothing reads is not computed.
    let mut builder = Builder::default();
    let (x, other) = (builder.input(&[64]), builder.input(&[32]));
    let whole = builder.call(&exp, &[&x]);
    let part = builder.call(&add, &[&whole.seen(Layout::contiguous(&[32])), &other]);
    builder.keep(&part);
    let program = builder.plan();
    assert_eq!((members(&program), program.traffic_bytes[1]), (vec![vec![0, 1]], 3 * 4 * 32));

    // What is read as a whole and in parts, by loops that are not fused with any part, stays whole.
    let mut builder = Builder::default();
    let x = builder.input(&[48, 64]);
    let whole = builder.call(&exp, &[&x]);
    let rows = builder.reduce(&SUM, &[&whole], &[1]);
    let part = builder.reduce(&SUM, &[&whole.seen(half(0))], &[0]);
    builder.keep(&rows);
    builder.keep(&part);
    assert!(builder.plan().steps.len() <= 2);
}

#[test]
fn the_same_segment_has_the_same_program() {
    let build = |rows: usize| {
        let mut builder = Builder::default();
        let x = builder.input(&[rows, 32]);
        let y = builder.call(&exp, &[&x]);
        let z = builder.call(&mul, &[&y, &x]);
        builder.keep(&z);
        builder.plan()
    };
    let (one, other, larger) = (build(8), build(8), build(16));
    assert_eq!(one.steps[0].launch.id, other.steps[0].launch.id);
    // A kernel does not depend on the sizes.
    assert_eq!(one.steps[0].launch.id, larger.steps[0].launch.id);
    assert_eq!(one.steps[0].launch.body, larger.steps[0].launch.body);
}

#[test]
fn what_is_computed_twice_is_computed_once() {
    let mut builder = Builder::default();
    let (x, y) = (builder.input(&[40]), builder.input(&[40]));
    let [one, other] = [(); 2].map(|()| builder.call(&exp, &[&x]));
    let [sum, again] = [&one, &other].map(|value| builder.call(&add, &[value, &y]));
    let product = builder.call(&mul, &[&sum, &again]);
    builder.keep(&product);
    let program = builder.plan();
    assert_eq!(program.twins, [(0, 1), (2, 3)]);
    assert_eq!(members(&program), [[0, 2, 4]]);
    // What is kept is written, and what is written over in between is computed again.
    builder.keep(&other);
    assert_eq!(builder.plan().twins, []);
    let mut builder = Builder::default();
    let x = builder.input(&[40]);
    let one = builder.call(&exp, &[&x]);
    builder.write_over(&mul, &[&x, &one], &x);
    let other = builder.call(&exp, &[&x]);
    let product = builder.call(&mul, &[&one, &other]);
    builder.keep(&product);
    assert_eq!(builder.plan().twins, []);
}

#[test]
fn numbers_that_several_loops_read_wider_are_not_stored_wide() {
    let program_of = |narrow: DType| {
        let mut builder = Builder::default();
        let x = builder.memory(Layout::contiguous(&[16, 64, 1024]), narrow, Lifetime::Existing);
        let wide = builder.widened(&x);
        // Sums of columns and of rows have no loop in common.
        for dimension in [1, 2] {
            let sum = builder.reduce(&SUM, &[&wide], &[dimension]);
            builder.keep(&sum);
        }
        builder.plan()
    };
    let program = program_of(DType::Bf16);
    assert_eq!(members(&program), [[0, 1], [0, 2]], "{:?}", program.apart);
    assert_eq!((program.arena_bytes, program.placed.len()), (0, 0));
    assert_eq!(program.traffic_bytes[1], 2 * (16 * 64 * 1024 * 2) + 4 * 16 * (64 + 1024));
    // Numbers of as many bytes are read as often, whether they are copied or not.
    assert_eq!(program_of(DType::F32).steps.len(), 2);
}

#[test]
fn what_sums_of_rows_and_of_columns_read_is_computed_for_each() {
    // The gradient of a norm of rows: of its weight, and of its input.
    let mut builder = Builder::default();
    let (x, gradient) = (builder.input(&[512, 1024]), builder.input(&[512, 1024]));
    let narrow = builder.copied(&gradient, gradient.layout.clone(), DType::Bf16);
    builder.keep(&narrow);
    let (weight, inverse) = (builder.input(&[1024]), builder.input(&[512, 1]));
    let along = builder.call(&mul, &[&gradient, &inverse]);
    let of_weight = builder.call(&mul, &[&along, &x]);
    let of_weight = builder.reduce(&SUM, &[&of_weight], &[0]);
    builder.keep(&of_weight);
    let scaled = builder.call(&mul, &[&along, &weight]);
    let total = builder.call(&mul, &[&scaled, &x]);
    let total = builder.reduce(&SUM, &[&total], &[1]);
    let total = total.seen(Layout::contiguous(&[512, 1]));
    let centre = builder.call(&mul, &[&x, &total]);
    let of_input = builder.call(&add, &[&scaled, &centre]);
    builder.keep(&of_input);
    let program = builder.plan();
    // The sums of rows, and then those of columns with the gradient of the input.
    assert_eq!(program.steps.len(), 2, "{:?}", members(&program));
    assert_eq!(program.placed.len(), 1, "the sums of rows: {:?}", program.apart);
    let computed = |node: u32| program.steps.iter().filter(|step| step.members.contains(&node)).count();
    assert_eq!(computed(1), 2, "the product with the inverse is computed for both sums");
}

#[test]
fn what_is_written_meanwhile_is_not_read_later() {
    let mut builder = Builder::default();
    let x = builder.memory(Layout::contiguous(&[512, 256]), DType::Bf16, Lifetime::Existing);
    let wide = builder.widened(&x);
    let columns = builder.reduce(&SUM, &[&wide], &[0]);
    builder.write_over(&mul, &[&x, &x], &x);
    let rows = builder.reduce(&SUM, &[&wide], &[1]);
    builder.keep(&columns);
    builder.keep(&rows);
    let program = builder.plan();
    let reader = program.steps.iter().find(|step| step.members.contains(&3)).unwrap();
    assert!(!reader.inputs.iter().any(|input| input.memory == x.memory), "{:?}", members(&program));
}
