//! Runs the graphs on the host, in f64, and compares them with attention by its definition.

use std::collections::HashMap;

use super::attention::Recipe;
use super::graph::{Extents, Graph, Operation, Pointwise, Reduction, Role, TensorIndex};
use crate::DevicePointer;
use crate::library::ElementFormat;
use crate::library::attention::{
    AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape,
};

fn places(sizes: Extents) -> impl Iterator<Item = Extents> {
    let [a, b, c, d] = sizes;
    (0..a * b * c * d).map(move |i| [i / (b * c * d), i / (c * d) % b, i / d % c, i % d])
}

fn offset(place: Extents, strides: Extents) -> usize {
    place.iter().zip(strides).map(|(at, stride)| at * stride).sum::<i64>() as usize
}

/// The elements of tensors by index, and the contents of memory.
struct Interpreter<'a> {
    graph: &'a Graph,
    memory: &'a mut HashMap<Role, Vec<f64>>,
    between: HashMap<usize, Vec<f64>>,
}

impl Interpreter<'_> {
    /// Returns the element of a tensor at a position, repeated along dimensions of size one.
    fn at(&self, index: TensorIndex, place: Extents) -> f64 {
        let tensor = &self.graph.tensors[index.0];
        let inside = |(at, size): (i64, i64)| if size == 1 { 0 } else { at };
        let mut own = [0; 4];
        for dimension in 0..4 {
            own[dimension] = inside((place[dimension], tensor.sizes[dimension]));
            assert!(own[dimension] < tensor.sizes[dimension], "{place:?} is outside of {tensor:?}");
        }
        match tensor.role {
            Some(role) => self.memory[&role][offset(own, tensor.strides)],
            None => self.between[&index.0][offset(own, super::graph::contiguous(tensor.sizes))],
        }
    }

    fn store(&mut self, index: TensorIndex, value: impl Fn(&Self, Extents) -> f64) {
        let tensor = &self.graph.tensors[index.0];
        let values: Vec<_> = places(tensor.sizes).map(|place| (place, value(self, place))).collect();
        let Some(role) = tensor.role else {
            self.between.insert(index.0, values.into_iter().map(|(_, value)| value).collect());
            return;
        };
        let memory = self.memory.get_mut(&role).expect("memory for every role");
        for (place, value) in values {
            memory[offset(place, tensor.strides)] = value;
        }
    }

    fn sizes(&self, index: TensorIndex) -> Extents {
        self.graph.tensors[index.0].sizes
    }

    fn run(&mut self) {
        for operation in &self.graph.operations {
            match operation {
                Operation::Pointwise { mode, inputs, output, axis, .. } => {
                    self.store(*output, |own, place| point(own, *mode, inputs, place, *axis));
                }
                Operation::Matmul { a, b, output, overrides } => {
                    let (left, right, product) = (self.sizes(*a), self.sizes(*b), self.sizes(*output));
                    assert_eq!([left[2], right[3], left[3]], [product[2], product[3], right[2]]);
                    for (given, own) in overrides.iter().zip([product[2], product[3], left[3]]) {
                        assert!(given.is_none_or(|given| self.at(given, [1, 0, 0, 0]) == own as f64));
                    }
                    let shared = left[1] / right[1];
                    self.store(*output, |own, [batch, head, row, column]| {
                        let term = |i| {
                            own.at(*a, [batch, head, row, i]) * own.at(*b, [batch, head / shared, i, column])
                        };
                        (0..left[3]).map(term).sum()
                    });
                }
                Operation::Reduction { mode, input, output } => {
                    let (from, to) = (self.sizes(*input), self.sizes(*output));
                    self.store(*output, |own, place| {
                        let inside = |from_place: &Extents| {
                            (0..4).all(|i| from_place[i] / (from[i] / to[i]) == place[i])
                        };
                        let values = places(from).filter(inside).map(|place| own.at(*input, place));
                        match mode {
                            Reduction::Add => values.sum(),
                            Reduction::Maximum => values.fold(f64::NEG_INFINITY, f64::max),
                        }
                    });
                }
                Operation::Reshape { input, output } => {
                    self.store(*output, |own, [a, b, c, d]| own.at(*input, [a, b, d, c]));
                }
            }
        }
    }
}

fn point(
    own: &Interpreter<'_>,
    mode: Pointwise,
    inputs: &[TensorIndex],
    place: Extents,
    axis: Option<i64>,
) -> f64 {
    let input = |i: usize| own.at(inputs[i], place);
    let truth = |value: bool| f64::from(u8::from(value));
    match mode {
        Pointwise::Add => input(0) + input(1),
        Pointwise::Multiply => input(0) * input(1),
        Pointwise::Divide => input(0) / input(1),
        Pointwise::Subtract => input(0) - input(1),
        Pointwise::Exponential => input(0).exp(),
        Pointwise::Logarithm => input(0).ln(),
        Pointwise::Identity => input(0),
        Pointwise::Relu => input(0).max(0.0),
        Pointwise::GreaterOrEqual => truth(input(0) >= input(1)),
        Pointwise::Less => truth(input(0) < input(1)),
        Pointwise::And => truth(input(0) != 0.0 && input(1) != 0.0),
        Pointwise::Index => place[axis.expect("an index has an axis") as usize] as f64,
        Pointwise::Select => {
            if input(2) == 0.0 {
                input(1)
            } else {
                input(0)
            }
        }
    }
}

/// Returns an operand with the layout `[batch, position, head, size]`, and gaps between positions, so that all strides
/// differ.
fn operand(heads: u64, positions: u64, head_size: u64) -> AttentionOperand {
    let position = (heads + 1) * head_size;
    AttentionOperand {
        address: DevicePointer::new(0x1000),
        strides: [positions * position, head_size, position],
    }
}

fn call(shape: AttentionShape, is_backward: bool) -> AttentionCall {
    let AttentionShape { heads, kv_heads, queries, keys, head_size, .. } = shape;
    let (rows, columns) = (operand(heads, queries, head_size), operand(kv_heads, keys, head_size));
    AttentionCall {
        shape,
        scale: 0.25,
        query: rows,
        key: columns,
        value: columns,
        mask: None,
        output: rows,
        log_sum_exp: DevicePointer::new(0x2000),
        gradients: is_backward.then_some(AttentionGradients {
            output: rows,
            query: rows,
            key: columns,
            value: columns,
        }),
        deterministic: false,
        workspace: None,
    }
}

fn shape(kv_heads: u64, queries: u64, keys: u64, causal: bool) -> AttentionShape {
    let format = ElementFormat::R_16BF;
    AttentionShape { batch: 2, heads: 4, kv_heads, queries, keys, head_size: 8, causal, format }
}

/// Computes output and logarithms by the definition, from flat memory in the layout of [`operand`], and a mask with these
/// strides.
fn attend(shape: &AttentionShape, memory: &HashMap<Role, Vec<f64>>, mask: Option<[u64; 3]>) -> [Vec<f64>; 2] {
    let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, causal, .. } = *shape;
    let place = |operand: AttentionOperand, batch, head, position, i| {
        let [of_batch, of_head, of_position] = operand.strides;
        (batch * of_batch + head * of_head + position * of_position + i) as usize
    };
    let (rows, columns) = (operand(heads, queries, head_size), operand(kv_heads, keys, head_size));
    let (query, key, value) = (&memory[&Role::Query], &memory[&Role::Key], &memory[&Role::Value]);
    let mut output = vec![0.0; query.len()];
    let mut logarithms = Vec::new();
    for (b, h, i) in (0..batch)
        .flat_map(|b| (0..heads).map(move |h| (b, h)))
        .flat_map(|(b, h)| (0..queries).map(move |i| (b, h, i)))
    {
        let shared = h / (heads / kv_heads);
        let seen = if causal { keys.min(i + 1) } else { keys };
        let weights: Vec<f64> = (0..seen)
            .map(|j| {
                let dot = |d| query[place(rows, b, h, i, d)] * key[place(columns, b, shared, j, d)];
                let added = mask.map_or(0.0, |[of_batch, of_head, of_query]| {
                    memory[&Role::Mask][(b * of_batch + h * of_head + i * of_query + j) as usize]
                });
                (0.25 * (0..head_size).map(dot).sum::<f64>() + added).exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        logarithms.push(sum.ln());
        for d in 0..head_size {
            let term = |(j, weight): (u64, &f64)| weight / sum * value[place(columns, b, shared, j, d)];
            output[place(rows, b, h, i, d)] = (0..).zip(&weights).map(term).sum();
        }
    }
    [output, logarithms]
}

/// Returns memory for every role of a shape, filled with numbers without a pattern.
fn memory(shape: &AttentionShape) -> HashMap<Role, Vec<f64>> {
    let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, .. } = *shape;
    let rows = batch * queries * (heads + 1) * head_size;
    let columns = batch * keys * (kv_heads + 1) * head_size;
    let mut state = 1_u64;
    let mut draw = |count: u64| -> Vec<f64> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        (0..count).map(|_| next()).collect()
    };
    let row_count = batch * heads * queries;
    [
        (Role::Query, draw(rows)),
        (Role::Key, draw(columns)),
        (Role::Value, draw(columns)),
        (Role::Mask, draw(batch * heads * queries * 8)),
        (Role::OutputGradient, draw(rows)),
        (Role::Output, draw(rows)),
        (Role::LogSumExp, draw(row_count)),
        (Role::QueryGradient, draw(rows)),
        (Role::KeyGradient, draw(columns)),
        (Role::ValueGradient, draw(columns)),
        (Role::RowProducts, draw(row_count)),
        (Role::QuerySums, draw(row_count * head_size)),
        (Role::QueryLengths, vec![queries as f64; batch as usize]),
        (Role::KeyLengths, vec![keys as f64; batch as usize]),
        (Role::Scale, vec![0.25]),
        (Role::One, vec![1.0]),
        (Role::Masked, vec![f64::NEG_INFINITY]),
    ]
    .into()
}

/// Compares the elements of a tensor of this role; the bytes between them must be unchanged.
fn compare(graph: &Graph, role: Role, actual: &[f64], expected: &[f64], before: &[f64]) {
    let tensor = graph.tensors.iter().find(|tensor| tensor.role == Some(role)).expect("the graph has it");
    let mut untouched: Vec<bool> = vec![true; actual.len()];
    for place in places(tensor.sizes) {
        let at = offset(place, tensor.strides);
        untouched[at] = false;
        let (actual, expected) = (actual[at], expected[at]);
        assert!((actual - expected).abs() < 1e-6, "{role:?} at {place:?}: {actual} for {expected}");
    }
    for (at, _) in untouched.iter().enumerate().filter(|(_, untouched)| **untouched) {
        assert_eq!(actual[at].to_bits(), before[at].to_bits(), "{role:?} between its elements, at {at}");
    }
}

fn run(graph: &Graph, memory: &mut HashMap<Role, Vec<f64>>) {
    Interpreter { graph, memory, between: HashMap::new() }.run();
}

/// Returns shapes, strides of masks, and whether lengths are passed.
fn cases() -> impl Iterator<Item = (AttentionShape, Option<[u64; 3]>, bool)> {
    let shapes = [(4, 3, 3), (2, 3, 5), (1, 5, 2), (2, 1, 4)];
    shapes.into_iter().flat_map(|(kv_heads, queries, keys)| {
        let with = move |causal| shape(kv_heads, queries, keys, causal);
        // A mask for every score, for each batch's keys, for all batches' scores, and for each head's keys.
        let all = [queries * 32, queries * 8, 8];
        [
            (with(false), None, false),
            (with(true), None, false),
            (with(true), Some(all), true),
            (with(false), None, true),
            (with(false), Some(all), false),
            (with(false), Some([8, 0, 0]), false),
            (with(false), Some([0, 0, 8]), true),
            (with(true), Some([0, 8, 0]), false),
        ]
    })
}

fn masked(call: AttentionCall, mask: Option<[u64; 3]>) -> AttentionCall {
    let mask = mask.map(|strides| AttentionMask { address: DevicePointer::new(0x3000), strides });
    AttentionCall { mask, ..call }
}

#[test]
fn the_forward_graph_is_attention() {
    for (shape, mask, lengths) in cases() {
        let call = masked(call(shape, false), mask);
        let recipe = Recipe { lengths, ..Recipe::new(&call, 91_400).expect("it is possible") };
        let graph = recipe.graph();
        let before = memory(&shape);
        let mut after = before.clone();
        run(&graph, &mut after);
        let [output, logarithms] = attend(&shape, &before, mask);
        compare(&graph, Role::Output, &after[&Role::Output], &output, &before[&Role::Output]);
        compare(&graph, Role::LogSumExp, &after[&Role::LogSumExp], &logarithms, &[]);
    }
}

#[test]
fn the_backward_graph_is_its_gradient() {
    for ((shape, mask, lengths), deterministic) in cases().zip([false, true, true].into_iter().cycle()) {
        let call = AttentionCall { deterministic, ..masked(call(shape, true), mask) };
        let recipe = Recipe { lengths, ..Recipe::new(&call, 91_400).expect("it is possible") };
        let graph = recipe.graph();
        let mut before = memory(&shape);
        let [output, logarithms] = attend(&shape, &before, mask);
        before.insert(Role::Output, output);
        before.insert(Role::LogSumExp, logarithms);
        let mut after = before.clone();
        run(&graph, &mut after);
        let loss = |memory: &HashMap<Role, Vec<f64>>| -> f64 {
            let [output, _] = attend(&shape, memory, mask);
            output.iter().zip(&memory[&Role::OutputGradient]).map(|(o, g)| o * g).sum()
        };
        for (of, gradient) in [
            (Role::Query, Role::QueryGradient),
            (Role::Key, Role::KeyGradient),
            (Role::Value, Role::ValueGradient),
        ] {
            let slope = |at: usize| {
                let step = 1e-4;
                let mut moved = before.clone();
                let mut loss_at = |by: f64| {
                    moved.get_mut(&of).expect("it is there")[at] = before[&of][at] + by;
                    loss(&moved)
                };
                (loss_at(step) - loss_at(-step)) / (2.0 * step)
            };
            let expected: Vec<f64> = (0..before[&of].len()).map(slope).collect();
            compare(&graph, gradient, &after[&gradient], &expected, &before[&gradient]);
        }
    }
}

#[test]
fn lengths_are_told_where_a_version_reads_beyond_them() {
    let lengths = |queries, keys, is_backward, version| {
        Recipe::new(&call(shape(2, queries, keys, true), is_backward), version)
            .expect("it is possible")
            .lengths
    };
    assert!(lengths(128, 200, true, 91_400));
    assert!(lengths(200, 128, true, 91_500));
    assert!(!lengths(128, 256, true, 91_400), "whole blocks");
    assert!(!lengths(200, 200, true, 91_501), "a newer version");
    assert!(!lengths(200, 200, false, 91_400), "forward");
}

#[test]
fn impossible_calls_are_refused_with_the_reason() {
    let refuse = |change: fn(&mut AttentionCall)| {
        let mut call = call(shape(2, 3, 5, true), true);
        change(&mut call);
        Recipe::new(&call, 91_400).expect_err("it is impossible")
    };
    assert!(refuse(|c| c.shape.keys = 0).contains("a size is 0"));
    assert!(refuse(|c| c.shape.batch = 1 << 31).contains("more than 2^31 - 1"));
    assert!(refuse(|c| c.shape.kv_heads = 3).contains("4 heads do not divide evenly over 3"));
    assert!(refuse(|c| c.query.address = DevicePointer::new(0x1008)).contains("of the query, 0x1008"));
    assert!(refuse(|c| c.log_sum_exp = DevicePointer::new(8)).contains("the logarithms"));
    assert!(refuse(|c| c.key.strides[2] = 12).contains("stride 12 of the key"));
    assert!(refuse(|c| c.value.strides[1] = 1 << 63).contains("of the value"));
    assert!(refuse(|c| *c = masked(*c, Some([0, 0, 5]))).contains("stride 5 of the mask"));
    let shifted = |c: &mut AttentionCall| {
        c.mask = Some(AttentionMask { address: DevicePointer::new(8), strides: [0; 3] });
    };
    assert!(refuse(shifted).contains("of the mask, 0x8"));
    let huge = |c: &mut AttentionCall| (c.shape.batch, c.shape.queries) = (i32::MAX as u64, i32::MAX as u64);
    assert!(refuse(huge).contains("larger than any memory"));
    let repeated = |c: &mut AttentionCall| {
        c.gradients.as_mut().expect("it is backward").value.strides[0] = 0;
    };
    assert!(refuse(repeated).contains("the value's gradient is written"));
    let mut allowed = call(shape(2, 3, 5, true), true);
    allowed.key.strides[0] = 0;
    assert!(Recipe::new(&allowed, 91_400).is_ok(), "an operand that is read may repeat");
}

#[test]
fn strides_of_dimensions_without_a_next_element_do_not_matter() {
    let one = AttentionShape { batch: 1, ..shape(2, 3, 5, false) };
    let query = |stride| {
        let mut call = call(one, false);
        call.query.strides[0] = stride;
        Recipe::new(&call, 91_400).expect("it is possible").query
    };
    assert_eq!(query(3), query(0));
}
