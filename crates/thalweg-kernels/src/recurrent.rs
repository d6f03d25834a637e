//! Recurrent networks as host functions, for devices that run these instead of a vendor's library.
//!
//! All computations are in f64, and results are rounded once. The backward pass computes the forward pass again, and keeps the
//! gradients of the gates in the reserve, from which the pass of the weights continues.

use std::cell::Cell;
use std::sync::Arc;

use half::{bf16, f16};
use thalweg_driver::{
    Access, DevicePointer, ElementFormat, HostFault, HostKernel, HostLaunch, RecurrentCall, RecurrentKind,
    RecurrentMemory, RecurrentPart, RecurrentPass, RecurrentShape, RecurrentStates,
};

/// Returns the ranges that a call reads and writes, except its workspace.
pub fn accesses(call: &RecurrentCall, memory: &RecurrentMemory) -> Vec<Access> {
    let shape = &call.shape;
    let width = shape.format.bytes().unwrap_or_default();
    let [input, output, hidden, cell] = shape.elements().map(|count| count * width);
    let weights = memory.weight_elements * width;
    let mut list = vec![
        Access::read(call.input, input),
        Access::read(call.weights, weights),
        Access::read(call.first.hidden, hidden),
    ];
    list.extend(call.first.cell.map(|at| Access::read(at, cell)));
    let both = |list: &mut Vec<Access>, states: RecurrentStates, make: fn(DevicePointer, u64) -> Access| {
        list.push(make(states.hidden, hidden));
        list.extend(states.cell.map(|at| make(at, cell)));
    };
    match call.pass {
        RecurrentPass::Forward { last } => {
            list.push(Access::write(call.output, output));
            both(&mut list, last, Access::write);
            list.extend(call.reserve.map(|(start, bytes)| Access::write(start, bytes)));
            return list;
        }
        RecurrentPass::Backward { output: gradient, last, input: of_input, first } => {
            list.extend([Access::read(gradient, output), Access::write(of_input, input)]);
            both(&mut list, first, Access::write);
            if let Some(last) = last {
                both(&mut list, last, Access::read);
            }
        }
        RecurrentPass::Weights { weights: gradient } => list.push(Access::read_write(gradient, weights)),
    }
    list.push(Access::read(call.output, output));
    list.extend(call.reserve.map(|(start, bytes)| Access::read_write(start, bytes)));
    list
}

/// Returns a host function that executes a call, with weights in the [dense](RecurrentShape::dense) layout.
pub fn host_function(call: RecurrentCall) -> Arc<dyn HostKernel> {
    Arc::new(move |launch: &HostLaunch<'_>| run(&call, launch))
}

fn load(
    launch: &HostLaunch<'_>,
    format: ElementFormat,
    at: DevicePointer,
    count: u64,
) -> Result<Vec<f64>, HostFault> {
    let count = count as usize;
    Ok(match format {
        ElementFormat::R_64F => launch.read::<f64>(at, count)?.to_vec(),
        ElementFormat::R_32F => launch.read::<f32>(at, count)?.iter().map(|&x| f64::from(x)).collect(),
        ElementFormat::R_16F => launch.read::<f16>(at, count)?.iter().map(|x| x.to_f64()).collect(),
        _ => launch.read::<bf16>(at, count)?.iter().map(|x| x.to_f64()).collect(),
    })
}

fn store(
    launch: &HostLaunch<'_>,
    format: ElementFormat,
    at: DevicePointer,
    values: &[f64],
) -> Result<(), HostFault> {
    fn fill<T>(memory: &mut [T], values: &[f64], convert: fn(f64) -> T) {
        memory.iter_mut().zip(values).for_each(|(place, &value)| *place = convert(value));
    }
    let count = values.len();
    match format {
        ElementFormat::R_64F => launch.write::<f64>(at, count)?.copy_from_slice(values),
        ElementFormat::R_32F => fill(launch.write::<f32>(at, count)?, values, |x| x as f32),
        ElementFormat::R_16F => fill(launch.write::<f16>(at, count)?, values, f16::from_f64),
        _ => fill(launch.write::<bf16>(at, count)?, values, bf16::from_f64),
    }
    Ok(())
}

/// Adds values to the elements in memory.
fn accumulate(
    launch: &HostLaunch<'_>,
    format: ElementFormat,
    at: DevicePointer,
    values: &[f64],
) -> Result<(), HostFault> {
    fn each<T: Copy>(memory: &[Cell<T>], values: &[f64], sum: fn(T, f64) -> T) {
        memory.iter().zip(values).for_each(|(place, &value)| place.set(sum(place.get(), value)));
    }
    let count = values.len();
    match format {
        ElementFormat::R_64F => each(launch.cells::<f64>(at, count)?, values, |x, y| x + y),
        ElementFormat::R_32F => {
            each(launch.cells::<f32>(at, count)?, values, |x, y| (f64::from(x) + y) as f32)
        }
        ElementFormat::R_16F => {
            each(launch.cells::<f16>(at, count)?, values, |x, y| f16::from_f64(x.to_f64() + y))
        }
        _ => each(launch.cells::<bf16>(at, count)?, values, |x, y| bf16::from_f64(x.to_f64() + y)),
    }
    Ok(())
}

/// Returns x (rows, k) · wᵀ with w (columns, k), on top of a row of biases.
fn times_turned(x: &[f64], w: &[f64], k: usize, bias: Option<&[f64]>) -> Vec<f64> {
    let mut result = Vec::with_capacity(x.len() / k * (w.len() / k));
    for row in x.chunks_exact(k) {
        for (column, weight) in w.chunks_exact(k).enumerate() {
            let product: f64 = row.iter().zip(weight).map(|(a, b)| a * b).sum();
            result.push(product + bias.map_or(0.0, |bias| bias[column]));
        }
    }
    result
}

/// Adds x (rows, n) · w (n, k) to a result (rows, k).
fn add_times(result: &mut [f64], x: &[f64], w: &[f64], k: usize) {
    let n = w.len() / k;
    for (result, row) in result.chunks_exact_mut(k).zip(x.chunks_exact(n)) {
        for (&factor, weight) in row.iter().zip(w.chunks_exact(k)) {
            result.iter_mut().zip(weight).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}

/// Adds aᵀ · b of rows (rows, n) and (rows, k) to a result (n, k).
fn add_outer(result: &mut [f64], a: &[f64], b: &[f64], k: usize) {
    let n = result.len() / k;
    for (a, b) in a.chunks_exact(n).zip(b.chunks_exact(k)) {
        for (&factor, result) in a.iter().zip(result.chunks_exact_mut(k)) {
            result.iter_mut().zip(b).for_each(|(sum, value)| *sum += factor * value);
        }
    }
}

fn add(result: &mut [f64], values: &[f64]) {
    result.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The sizes that one layer in one direction works with.
#[derive(Clone, Copy)]
struct Sizes {
    kind: RecurrentKind,
    hidden: usize,
    /// Features of a hidden state.
    outputs: usize,
    /// Elements of all gates of a row.
    gates: usize,
    /// Features of the layer's input.
    inputs: usize,
}

/// The weights of one layer in one direction.
struct Weights<'w> {
    of_input: &'w [f64],
    of_hidden: &'w [f64],
    biases: Option<[&'w [f64]; 2]>,
    projection: Option<&'w [f64]>,
}

/// The values of one row that the backward pass reads: the gates after their functions, the hidden state's part of a gated unit's last
/// gate, the states before, the cell after, and the hidden state before its projection.
#[derive(Clone, Default)]
struct Row {
    gates: Vec<f64>,
    of_hidden: Vec<f64>,
    hidden: Vec<f64>,
    cell: Vec<f64>,
    next_cell: Vec<f64>,
    wide: Vec<f64>,
}

/// The gradients at one row: of the gates by the input and by the hidden state, and of the hidden state after the step.
struct RowGradient {
    by_input: Vec<f64>,
    by_hidden: Vec<f64>,
    output: Vec<f64>,
}

impl Sizes {
    /// Computes a step of one sequence: replaces its states, and returns the values that the backward pass needs.
    fn step(&self, of_input: &[f64], weights: &Weights<'_>, hidden: &mut [f64], cell: &mut [f64]) -> Row {
        let bias = weights.biases.map(|biases| biases[1]);
        let of_hidden = times_turned(hidden, weights.of_hidden, self.outputs, bias);
        let mut row = Row { hidden: hidden.to_vec(), cell: cell.to_vec(), ..Row::default() };
        let n = self.hidden;
        let sum = |place: usize| of_input[place] + of_hidden[place];
        let wide: Vec<f64> = match self.kind {
            RecurrentKind::Relu => (0..n).map(|at| sum(at).max(0.0)).collect(),
            RecurrentKind::Tanh => (0..n).map(|at| sum(at).tanh()).collect(),
            RecurrentKind::LongShortTerm => {
                row.gates = (0..4 * n)
                    .map(|at| if at / n == 2 { sum(at).tanh() } else { sigmoid(sum(at)) })
                    .collect();
                for (at, cell) in cell.iter_mut().enumerate() {
                    *cell = row.gates[n + at] * *cell + row.gates[at] * row.gates[2 * n + at];
                }
                row.next_cell = cell.to_vec();
                (0..n).map(|at| row.gates[3 * n + at] * cell[at].tanh()).collect()
            }
            RecurrentKind::Gated => {
                row.gates = (0..2 * n).map(|at| sigmoid(sum(at))).collect();
                for at in 0..n {
                    row.gates.push((of_input[2 * n + at] + row.gates[at] * of_hidden[2 * n + at]).tanh());
                }
                row.of_hidden = of_hidden[2 * n..].to_vec();
                (0..n)
                    .map(|at| {
                        let update = row.gates[n + at];
                        (1.0 - update) * row.gates[2 * n + at] + update * hidden[at]
                    })
                    .collect()
            }
        };
        match weights.projection {
            Some(projection) => hidden.copy_from_slice(&times_turned(&wide, projection, n, None)),
            None => hidden.copy_from_slice(&wide),
        }
        row.wide = wide;
        row
    }

    /// Computes the gradient of a step from those of the states after it, which it replaces by those of the states before.
    fn step_back(
        &self,
        row: &Row,
        weights: &Weights<'_>,
        of_hidden: &mut [f64],
        of_cell: &mut [f64],
    ) -> RowGradient {
        let (n, output) = (self.hidden, of_hidden.to_vec());
        let mut wide = output.clone();
        if let Some(projection) = weights.projection {
            wide = vec![0.0; n];
            add_times(&mut wide, &output, projection, n);
        }
        let mut by_input = vec![0.0; self.gates];
        let mut direct = vec![0.0; self.outputs];
        let of_sigmoid = |y: f64| y * (1.0 - y);
        for at in 0..n {
            let gate = |place: usize| row.gates[place * n + at];
            match self.kind {
                RecurrentKind::Relu => by_input[at] = if row.wide[at] > 0.0 { wide[at] } else { 0.0 },
                RecurrentKind::Tanh => by_input[at] = wide[at] * (1.0 - row.wide[at].powi(2)),
                RecurrentKind::LongShortTerm => {
                    let y = row.next_cell[at].tanh();
                    let slope = of_cell[at] + wide[at] * gate(3) * (1.0 - y * y);
                    by_input[at] = slope * gate(2) * of_sigmoid(gate(0));
                    by_input[n + at] = slope * row.cell[at] * of_sigmoid(gate(1));
                    by_input[2 * n + at] = slope * gate(0) * (1.0 - gate(2).powi(2));
                    by_input[3 * n + at] = wide[at] * y * of_sigmoid(gate(3));
                    of_cell[at] = slope * gate(1);
                }
                RecurrentKind::Gated => {
                    let of_new = wide[at] * (1.0 - gate(1)) * (1.0 - gate(2).powi(2));
                    by_input[at] = of_new * row.of_hidden[at] * of_sigmoid(gate(0));
                    by_input[n + at] = wide[at] * (row.hidden[at] - gate(2)) * of_sigmoid(gate(1));
                    by_input[2 * n + at] = of_new;
                    direct[at] = wide[at] * gate(1);
                }
            }
        }
        let mut by_hidden = by_input.clone();
        if self.kind == RecurrentKind::Gated {
            by_hidden[2 * n..].iter_mut().zip(&row.gates).for_each(|(slope, reset)| *slope *= reset);
        }
        of_hidden.copy_from_slice(&direct);
        add_times(of_hidden, &by_hidden, weights.of_hidden, self.outputs);
        RowGradient { by_input, by_hidden, output }
    }
}

/// A network over its sequences.
struct Network<'n> {
    shape: &'n RecurrentShape,
    weights: &'n [f64],
    parts: Vec<RecurrentPart>,
    /// The first row of each step and the number of its sequences.
    steps: Vec<(usize, usize)>,
}

/// A pass through all layers: the inputs of each layer, the rows of each layer and direction, and the last states.
struct Trace {
    inputs: Vec<Vec<f64>>,
    rows: Vec<Vec<Row>>,
    hidden: Vec<f64>,
    cell: Vec<f64>,
}

impl<'n> Network<'n> {
    fn new(shape: &'n RecurrentShape, weights: &'n [f64]) -> Self {
        let mut start = 0;
        let longest = shape.lengths.first().copied().unwrap_or(0);
        let steps = (0..longest).map(|step| {
            let active = shape.lengths.partition_point(|&length| length > step);
            start += active;
            (start - active, active)
        });
        let steps = steps.collect();
        Self { shape, weights, parts: shape.dense().parts, steps }
    }

    fn sizes(&self, layer: usize) -> Sizes {
        let shape = self.shape;
        Sizes {
            kind: shape.kind,
            hidden: shape.hidden as usize,
            outputs: shape.outputs() as usize,
            gates: (shape.kind.gates() * shape.hidden) as usize,
            inputs: shape.inputs_of(layer as u64) as usize,
        }
    }

    fn weights(&self, place: usize) -> Weights<'_> {
        let (part, layer) = (&self.parts[place], place as u64 / self.shape.directions());
        let [input, hidden, bias, _, projection] = self.shape.part_elements(layer);
        let slice = |start: u64, count: u64| &self.weights[start as usize..(start + count) as usize];
        Weights {
            of_input: slice(part.of_input, input),
            of_hidden: slice(part.of_hidden, hidden),
            biases: part.biases.map(|starts| starts.map(|start| slice(start, bias))),
            projection: part.projection.map(|start| slice(start, projection)),
        }
    }

    /// Returns the steps in the order of a direction.
    fn order(&self, is_reverse: bool) -> Vec<(usize, usize)> {
        let mut steps = self.steps.clone();
        if is_reverse {
            steps.reverse();
        }
        steps
    }

    /// Runs all layers; the result ends with the output.
    fn forward(&self, input: Vec<f64>, mut hidden: Vec<f64>, mut cell: Vec<f64>) -> Trace {
        let (directions, sequences) = (self.shape.directions() as usize, self.shape.lengths.len());
        let row_count = self.shape.rows() as usize;
        let (mut inputs, mut rows) = (vec![input], Vec::new());
        for layer in 0..self.shape.layers as usize {
            let sizes = self.sizes(layer);
            let width = sizes.outputs * directions;
            let mut output = vec![0.0; row_count * width];
            for direction in 0..directions {
                let place = layer * directions + direction;
                let weights = self.weights(place);
                let bias = weights.biases.map(|biases| biases[0]);
                let of_input = times_turned(&inputs[layer], weights.of_input, sizes.inputs, bias);
                let mut kept = vec![Row::default(); row_count];
                for (start, active) in self.order(direction == 1) {
                    for sequence in 0..active {
                        let (row, state) = (start + sequence, place * sequences + sequence);
                        let hidden = &mut hidden[state * sizes.outputs..][..sizes.outputs];
                        let cell = match sizes.kind.has_cell() {
                            true => &mut cell[state * sizes.hidden..][..sizes.hidden],
                            false => &mut [],
                        };
                        let of_input = &of_input[row * sizes.gates..][..sizes.gates];
                        kept[row] = sizes.step(of_input, &weights, hidden, cell);
                        output[row * width + direction * sizes.outputs..][..sizes.outputs]
                            .copy_from_slice(hidden);
                    }
                }
                rows.push(kept);
            }
            inputs.push(output);
        }
        Trace { inputs, rows, hidden, cell }
    }

    /// Computes the gradients of all rows, by layer and direction, and of the input, and replaces those of the last states by
    /// those of the first.
    fn backward(
        &self,
        trace: &Trace,
        mut output: Vec<f64>,
        of_hidden: &mut [f64],
        of_cell: &mut [f64],
    ) -> (Vec<f64>, Vec<Vec<RowGradient>>) {
        let (directions, sequences) = (self.shape.directions() as usize, self.shape.lengths.len());
        let row_count = self.shape.rows() as usize;
        let mut all: Vec<Vec<RowGradient>> = Vec::new();
        for layer in (0..self.shape.layers as usize).rev() {
            let sizes = self.sizes(layer);
            let width = sizes.outputs * directions;
            let mut input = vec![0.0; row_count * sizes.inputs];
            for direction in (0..directions).rev() {
                let place = layer * directions + direction;
                let weights = self.weights(place);
                let mut gradients: Vec<Option<RowGradient>> = (0..row_count).map(|_| None).collect();
                for (start, active) in self.order(direction == 0) {
                    for sequence in 0..active {
                        let (row, state) = (start + sequence, place * sequences + sequence);
                        let of_hidden = &mut of_hidden[state * sizes.outputs..][..sizes.outputs];
                        let of_cell = match sizes.kind.has_cell() {
                            true => &mut of_cell[state * sizes.hidden..][..sizes.hidden],
                            false => &mut [],
                        };
                        add(of_hidden, &output[row * width + direction * sizes.outputs..][..sizes.outputs]);
                        let gradient = sizes.step_back(&trace.rows[place][row], &weights, of_hidden, of_cell);
                        let input = &mut input[row * sizes.inputs..][..sizes.inputs];
                        add_times(input, &gradient.by_input, weights.of_input, sizes.inputs);
                        gradients[row] = Some(gradient);
                    }
                }
                all.push(gradients.into_iter().flatten().collect());
            }
            output = input;
        }
        all.reverse();
        (output, all)
    }

    /// Adds the gradients of the weights, from those of all rows in the reserve.
    fn add_weights(&self, trace: &Trace, reserve: &[f64], gradient: &mut [f64]) {
        let (directions, row_count) = (self.shape.directions() as usize, self.shape.rows() as usize);
        let mut rest = reserve;
        for (place, part) in self.parts.iter().enumerate() {
            let layer = place / directions;
            let sizes = self.sizes(layer);
            let [input, hidden, bias, _, projection] = self.shape.part_elements(layer as u64);
            let [by_input, by_hidden, outputs] = [sizes.gates, sizes.gates, sizes.outputs].map(|width| {
                let (here, after) = rest.split_at(width * row_count);
                rest = after;
                here
            });
            let rows = &trace.rows[place];
            let of = |start: u64, count: u64| start as usize..(start + count) as usize;
            add_outer(&mut gradient[of(part.of_input, input)], by_input, &trace.inputs[layer], sizes.inputs);
            let before: Vec<f64> = rows.iter().flat_map(|row| row.hidden.iter().copied()).collect();
            add_outer(&mut gradient[of(part.of_hidden, hidden)], by_hidden, &before, sizes.outputs);
            for (start, slopes) in part.biases.iter().flatten().zip([by_input, by_hidden]) {
                let sum = &mut gradient[of(*start, bias)];
                slopes.chunks_exact(sizes.gates).for_each(|row| add(sum, row));
            }
            if let Some(start) = part.projection {
                let wide: Vec<f64> = rows.iter().flat_map(|row| row.wide.iter().copied()).collect();
                add_outer(&mut gradient[of(start, projection)], outputs, &wide, sizes.hidden);
            }
        }
    }
}

fn run(call: &RecurrentCall, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (shape, format) = (&call.shape, call.shape.format);
    let [inputs, outputs, hidden, cell] = shape.elements();
    let read = |at: DevicePointer, count: u64| load(launch, format, at, count);
    let cells = |at: Option<DevicePointer>| at.map_or(Ok(Vec::new()), |at| read(at, cell));
    let write = |at: DevicePointer, values: &[f64]| store(launch, format, at, values);
    let write_cell = |at: Option<DevicePointer>, values: &[f64]| at.map_or(Ok(()), |at| write(at, values));
    let memory = shape.dense();
    let weights = read(call.weights, memory.weight_elements)?;
    let network = Network::new(shape, &weights);
    let first = call.first;
    let trace = network.forward(read(call.input, inputs)?, read(first.hidden, hidden)?, cells(first.cell)?);
    let reserve = |launch: &HostLaunch<'_>| match call.reserve {
        Some((start, _)) => Ok((start, memory.reserve_bytes as usize / 8)),
        None => Err(HostFault(format!("a backward pass without a reserve, in a grid {:?}", launch.grid))),
    };
    match call.pass {
        RecurrentPass::Forward { last } => {
            if let Some((start, _)) = call.reserve {
                launch.write::<f64>(start, memory.reserve_bytes as usize / 8)?.fill(0.0);
            }
            write(call.output, trace.inputs.last().map_or(&[], Vec::as_slice))?;
            write(last.hidden, &trace.hidden)?;
            write_cell(last.cell, &trace.cell)
        }
        RecurrentPass::Backward { output, last, input, first } => {
            let mut of_hidden = match last {
                Some(last) => read(last.hidden, hidden)?,
                None => vec![0.0; hidden as usize],
            };
            let mut of_cell = match last.and_then(|last| last.cell) {
                Some(at) => read(at, cell)?,
                None => vec![0.0; cell as usize],
            };
            let (of_input, rows) =
                network.backward(&trace, read(output, outputs)?, &mut of_hidden, &mut of_cell);
            write(input, &of_input)?;
            write(first.hidden, &of_hidden)?;
            write_cell(first.cell, &of_cell)?;
            let (start, count) = reserve(launch)?;
            let kept = rows.iter().flat_map(|rows| {
                let lists: [fn(&RowGradient) -> &[f64]; 3] =
                    [|r| &r.by_input, |r| &r.by_hidden, |r| &r.output];
                lists.into_iter().flat_map(move |list| rows.iter().flat_map(list).copied())
            });
            launch.write::<f64>(start, count)?.iter_mut().zip(kept).for_each(|(place, value)| *place = value);
            Ok(())
        }
        RecurrentPass::Weights { weights } => {
            let (start, count) = reserve(launch)?;
            let mut gradient = vec![0.0; memory.weight_elements as usize];
            network.add_weights(&trace, launch.read::<f64>(start, count)?, &mut gradient);
            accumulate(launch, format, weights, &gradient)
        }
    }
}
