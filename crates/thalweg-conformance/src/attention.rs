//! Scaled dot-product attention and its gradients: calls of a vendor's library.

use std::sync::Arc;

use thalweg_driver::{
    Access, AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape, CaptureMode,
    ElementFormat, GpuCall, HostFault, HostKernel, HostLaunch, Label, LibraryLaunch, Result,
};

use super::fixture::{Buffer, Fixture, Stream, fail, holds, skip};
use super::{CaseResult, group};

group! {
    "attention":
    it_averages_values,
    it_has_gradients,
    it_takes_packed_operands_and_fewer_heads_of_keys,
    it_takes_lengths_that_are_no_multiple_of_a_block,
    it_adds_a_mask,
    it_repeats_its_bits,
    it_is_captured,
}

const FORMAT: ElementFormat = ElementFormat::R_16BF;
const HEAD_SIZE: u64 = 64;

/// The tolerated difference of a result from the definition, relative to the largest element: operands and intermediate values
/// have 8-bit mantissas.
const TOLERANCE: f64 = 2e-2;

fn require_attention(fixture: &Fixture) -> CaseResult {
    if fixture.driver.device_properties(fixture.device)?.libraries.attention {
        return Ok(());
    }
    skip("the device has no library for attention (cuDNN was not found, or is too old)")
}

fn to_bf16(value: f64) -> u16 {
    // Rounded to nearest, ties away from zero: any rounding does for inputs.
    (((value as f32).to_bits() + 0x8000) >> 16) as u16
}

fn from_bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// The place of one operand in a buffer, in elements.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    heads: u64,
    positions: u64,
    strides: [u64; 3],
}

impl Place {
    fn at(&self, batch: u64, head: u64, position: u64) -> usize {
        let [of_batch, of_head, of_position] = self.strides;
        (self.start + batch * of_batch + head * of_head + position * of_position) as usize
    }
}

/// The place of a mask in the buffer, in elements: strides along batches, heads and queries.
#[derive(Clone, Copy)]
struct MaskPlace {
    start: u64,
    strides: [u64; 3],
}

/// The operands of a problem, all in one buffer: query, key, value, output, and the gradients of output, query, key, value; then
/// the mask, if there is one.
struct Layout {
    shape: AttentionShape,
    places: [Place; 8],
    mask: Option<MaskPlace>,
    elements: u64,
}

impl Layout {
    /// Creates a layout `[batch, position, head, size]` of the operands. Packed, queries, keys and values of a position follow
    /// one another.
    fn new(shape: AttentionShape, is_packed: bool) -> Self {
        let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, .. } = shape;
        let mut elements = 0;
        let mut place = |heads: u64, positions: u64, all_heads: u64, first: u64, takes: bool| {
            let row = all_heads * head_size;
            let place = Place {
                start: elements + first * head_size,
                heads,
                positions,
                strides: [positions * row, head_size, row],
            };
            elements += if takes { batch * positions * row } else { 0 };
            place
        };
        let together = heads + 2 * kv_heads;
        let [query, key, value] = if is_packed {
            [
                place(heads, queries, together, 0, false),
                place(kv_heads, keys, together, heads, false),
                place(kv_heads, keys, together, heads + kv_heads, true),
            ]
        } else {
            [
                place(heads, queries, heads, 0, true),
                place(kv_heads, keys, kv_heads, 0, true),
                place(kv_heads, keys, kv_heads, 0, true),
            ]
        };
        let mut row = || place(heads, queries, heads, 0, true);
        let (output, output_gradient, query_gradient) = (row(), row(), row());
        let mut column = || place(kv_heads, keys, kv_heads, 0, true);
        let (key_gradient, value_gradient) = (column(), column());
        let places =
            [query, key, value, output, output_gradient, query_gradient, key_gradient, value_gradient];
        Self { shape, places, mask: None, elements }
    }

    /// Adds a mask, which along each of batch, head and query either has values of its own or is the same for all.
    fn masked(self, [by_batch, by_head, by_query]: [bool; 3]) -> Self {
        let AttentionShape { batch, heads, queries, keys, .. } = self.shape;
        let mut elements = keys.next_multiple_of(8);
        let mut along = |is: bool, extent: u64| {
            let stride = elements;
            if is {
                elements *= extent;
            }
            if is { stride } else { 0 }
        };
        let query = along(by_query, queries);
        let head = along(by_head, heads);
        let strides = [along(by_batch, batch), head, query];
        let start = self.elements.next_multiple_of(8);
        Self { mask: Some(MaskPlace { start, strides }), elements: start + elements, ..self }
    }
}

/// A problem on a device: its operands, its logarithms and its scratch memory.
struct Problem<'f> {
    fixture: &'f Fixture,
    layout: Layout,
    operands: Buffer<'f>,
    logarithms: Buffer<'f>,
    workspace: Buffer<'f>,
    /// The initial values of the operands.
    content: Vec<u16>,
}

impl<'f> Problem<'f> {
    fn new(fixture: &'f Fixture, stream: &Stream<'_>, layout: Layout) -> Result<Self> {
        let shape = layout.shape;
        let mut state = 7_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            to_bf16(f64::from(state >> 16) / 16_384.0 - 2.0)
        };
        let mut content: Vec<u16> = (0..layout.elements).map(|_| draw()).collect();
        if let Some(mask) = layout.mask {
            // The third key of each row of the mask is masked out.
            let rows = content[mask.start as usize..].chunks_mut(shape.keys.next_multiple_of(8) as usize);
            rows.for_each(|row| row[2] = to_bf16(f64::NEG_INFINITY));
        }
        let rows = shape.batch * shape.heads * shape.queries;
        let operands = fixture.buffer(layout.elements.div_ceil(2))?;
        let logarithms = fixture.buffer(rows)?;
        let bytes: Vec<u8> = content.iter().flat_map(|element| element.to_le_bytes()).collect();
        fixture.driver.copy_from_host(stream.handle, operands.pointer, &bytes, Label::here("operands"))?;
        fixture.driver.stream_synchronize(stream.handle)?;
        let empty = fixture.buffer(1)?;
        let mut problem = Self { fixture, layout, operands, logarithms, workspace: empty, content };
        let needed = [false, true].map(|backward| {
            fixture.driver.library_workspace(fixture.device, &GpuCall::Attention(problem.call(backward)))
        });
        let [forward, backward] = needed;
        problem.workspace = fixture.buffer(forward?.max(backward?).div_ceil(4).max(1))?;
        Ok(problem)
    }

    fn operand(&self, index: usize) -> AttentionOperand {
        let place = self.layout.places[index];
        AttentionOperand { address: self.operands.pointer.offset(2 * place.start), strides: place.strides }
    }

    fn call(&self, is_backward: bool) -> AttentionCall {
        let [query, key, value, output] = [0, 1, 2, 3].map(|index| self.operand(index));
        AttentionCall {
            shape: self.layout.shape,
            scale: 0.125,
            query,
            key,
            value,
            mask: self.layout.mask.map(|MaskPlace { start, strides }| AttentionMask {
                address: self.operands.pointer.offset(2 * start),
                strides,
            }),
            output,
            log_sum_exp: self.logarithms.pointer,
            gradients: is_backward.then(|| AttentionGradients {
                output: self.operand(4),
                query: self.operand(5),
                key: self.operand(6),
                value: self.operand(7),
            }),
            deterministic: true,
            workspace: Some((self.workspace.pointer, 4 * self.workspace.words)),
        }
    }

    fn submit(&self, stream: &Stream<'_>, is_backward: bool) -> Result<()> {
        let Layout { shape, places, mask, .. } = self.layout;
        let (operands, elements) = (self.operands.pointer, self.layout.elements as usize);
        let (logarithms, rows) = (self.logarithms.pointer, self.logarithms.words as usize);
        let host: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| -> Result<(), HostFault> {
            let memory = launch.write::<u16>(operands, elements)?;
            let definition = Definition::new(&shape, &places, mask, memory);
            if is_backward {
                for (place, gradient) in places[5..].iter().zip(&definition.gradients) {
                    store(&shape, place, gradient, memory);
                }
            } else {
                store(&shape, &places[3], &definition.output, memory);
                let target = launch.write::<f32>(logarithms, rows)?;
                for (target, value) in target.iter_mut().zip(&definition.logarithms) {
                    *target = *value as f32;
                }
            }
            Ok(())
        });
        let accesses = [
            Access::read_write(operands, 2 * elements as u64),
            Access::read_write(logarithms, 4 * rows as u64),
            Access::write(self.workspace.pointer, 4 * self.workspace.words),
        ];
        let launch = LibraryLaunch {
            gpu: &self.call(is_backward).into(),
            host: &host,
            arguments: &[],
            accesses: &accesses,
            label: Label::here("attention"),
        };
        self.fixture.driver.library_async(stream.handle, &launch)
    }

    fn read(&self, stream: &Stream<'_>) -> Result<(Vec<u16>, Vec<f64>)> {
        let words = self.fixture.words_on(stream.handle, self.operands.pointer, self.operands.words)?;
        let operands = words.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]).collect();
        let logarithms =
            self.fixture.words_on(stream.handle, self.logarithms.pointer, self.logarithms.words)?;
        Ok((operands, logarithms.into_iter().map(|bits| f64::from(f32::from_bits(bits))).collect()))
    }

    /// Compares the device's results with the definition, and memory that it must not write with the initial values.
    fn check(&self, stream: &Stream<'_>, with_gradients: bool) -> CaseResult {
        let (seen, logarithms) = self.read(stream)?;
        let Layout { shape, places, mask, .. } = &self.layout;
        let definition = Definition::new(shape, places, *mask, &self.content);
        close("the logarithms", &logarithms, &definition.logarithms)?;
        let load =
            |index: usize, content: &[u16]| load(&self.layout.shape, &self.layout.places[index], content);
        close("the output", &load(3, &seen), &definition.output)?;
        let names = ["the query's gradient", "the key's gradient", "the value's gradient"];
        for (index, (name, expected)) in names.into_iter().zip(&definition.gradients).enumerate() {
            if with_gradients {
                close(name, &load(5 + index, &seen), expected)?;
            } else {
                holds(
                    load(5 + index, &seen) == load(5 + index, &self.content),
                    "a forward pass writes no gradient",
                )?;
            }
        }
        for index in [0, 1, 2, 4] {
            holds(
                load(index, &seen) == load(index, &self.content),
                "an operand that is read stays as it was",
            )?;
        }
        Ok(())
    }
}

/// Returns an operand's elements, in the order [batch, head, position, size].
fn load(shape: &AttentionShape, place: &Place, memory: &[u16]) -> Vec<f64> {
    let mut elements = Vec::new();
    each_row(shape, place, |start| {
        elements.extend(memory[start..start + shape.head_size as usize].iter().map(|bits| from_bf16(*bits)));
    });
    elements
}

fn store(shape: &AttentionShape, place: &Place, elements: &[f64], memory: &mut [u16]) {
    let mut rows = elements.chunks(shape.head_size as usize);
    each_row(shape, place, |start| {
        for (target, element) in memory[start..].iter_mut().zip(rows.next().unwrap_or_default()) {
            *target = to_bf16(*element);
        }
    });
}

fn each_row(shape: &AttentionShape, place: &Place, mut row: impl FnMut(usize)) {
    for batch in 0..shape.batch {
        for head in 0..place.heads {
            for position in 0..place.positions {
                row(place.at(batch, head, position));
            }
        }
    }
}

fn close(what: &str, seen: &[f64], expected: &[f64]) -> CaseResult {
    let largest = expected.iter().fold(1e-3_f64, |most, value| most.max(value.abs()));
    let wrong = |(seen, expected): (&f64, &f64)| {
        let difference = (seen - expected).abs();
        difference.is_nan() || difference > TOLERANCE * largest
    };
    match seen.iter().zip(expected).position(wrong) {
        None => Ok(()),
        Some(at) => fail(format!("{what}, at {at}: {} for {}", seen[at], expected[at])),
    }
}

/// Attention by its definition, in f64, computed from the elements of the operands.
struct Definition {
    output: Vec<f64>,
    logarithms: Vec<f64>,
    /// The gradients of query, key and value.
    gradients: [Vec<f64>; 3],
}

impl Definition {
    fn new(shape: &AttentionShape, places: &[Place; 8], mask: Option<MaskPlace>, memory: &[u16]) -> Self {
        let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, causal, .. } = *shape;
        let added = |batch: u64, head: u64, query: u64, key: usize| {
            mask.map_or(0.0, |MaskPlace { start, strides: [of_batch, of_head, of_query] }| {
                let row = start + batch * of_batch + head * of_head + query * of_query;
                from_bf16(memory[row as usize + key])
            })
        };
        let [query, key, value] = [0, 1, 2].map(|index| load(shape, &places[index], memory));
        let output_gradient = load(shape, &places[4], memory);
        let (mut output, mut logarithms) = (Vec::new(), Vec::new());
        let mut gradients = [vec![0.0; query.len()], vec![0.0; key.len()], vec![0.0; value.len()]];
        let size = head_size as usize;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let add = |target: &mut [f64], factor: f64, row: &[f64]| {
            target.iter_mut().zip(row).for_each(|(target, value)| *target += factor * value);
        };
        for (row, i) in (0..batch * heads * queries).map(|row| (row as usize, row % queries)) {
            let (batch, head) = (row as u64 / queries / heads, row as u64 / queries % heads);
            let first = ((batch * kv_heads + head / (heads / kv_heads)) * keys) as usize;
            let seen = if causal { keys.min(i + 1) } else { keys } as usize;
            let own = row * size..(row + 1) * size;
            let column = |j: usize| (first + j) * size..(first + j + 1) * size;
            let score =
                |j: usize| 0.125 * dot(&query[own.clone()], &key[column(j)]) + added(batch, head, i, j);
            let scores: Vec<f64> = (0..seen).map(score).collect();
            let logarithm = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
            let weights: Vec<f64> = scores.iter().map(|score| (score - logarithm).exp()).collect();
            let mut average = vec![0.0; size];
            for (j, weight) in weights.iter().enumerate() {
                add(&mut average, *weight, &value[column(j)]);
            }
            let arriving = &output_gradient[own.clone()];
            let centre = dot(arriving, &average);
            for (j, weight) in weights.iter().enumerate() {
                let slope = 0.125 * weight * (dot(arriving, &value[column(j)]) - centre);
                add(&mut gradients[0][own.clone()], slope, &key[column(j)]);
                add(&mut gradients[1][column(j)], slope, &query[own.clone()]);
                add(&mut gradients[2][column(j)], *weight, arriving);
            }
            output.extend(average);
            logarithms.push(logarithm);
        }
        Self { output, logarithms, gradients }
    }
}

fn shape(heads: u64, kv_heads: u64, queries: u64, keys: u64, causal: bool) -> AttentionShape {
    AttentionShape { batch: 2, heads, kv_heads, queries, keys, head_size: HEAD_SIZE, causal, format: FORMAT }
}

fn it_averages_values(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    let stream = fixture.stream()?;
    for causal in [false, true] {
        let problem = Problem::new(fixture, &stream, Layout::new(shape(2, 2, 128, 128, causal), false))?;
        problem.submit(&stream, false)?;
        problem.check(&stream, false)?;
    }
    Ok(())
}

fn pass_both_ways(fixture: &Fixture, shape: AttentionShape, is_packed: bool) -> CaseResult {
    both_ways(fixture, Layout::new(shape, is_packed))
}

fn both_ways(fixture: &Fixture, layout: Layout) -> CaseResult {
    let stream = fixture.stream()?;
    let problem = Problem::new(fixture, &stream, layout)?;
    problem.submit(&stream, false)?;
    problem.submit(&stream, true)?;
    problem.check(&stream, true)
}

fn it_has_gradients(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    pass_both_ways(fixture, shape(2, 2, 128, 128, false), false)?;
    pass_both_ways(fixture, shape(2, 2, 128, 128, true), false)
}

fn it_takes_packed_operands_and_fewer_heads_of_keys(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    pass_both_ways(fixture, shape(4, 2, 128, 128, true), true)?;
    pass_both_ways(fixture, shape(3, 1, 64, 64, false), true)
}

fn it_takes_lengths_that_are_no_multiple_of_a_block(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    for (queries, keys) in [(77, 77), (40, 130), (130, 40)] {
        for causal in [false, true] {
            pass_both_ways(fixture, shape(2, 1, queries, keys, causal), false)?;
        }
    }
    Ok(())
}

fn it_adds_a_mask(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    let masks = [[true; 3], [true, false, false], [false, false, true], [false, true, true], [false; 3]];
    for (heads, kv_heads, queries, keys) in [(2, 2, 128, 128), (4, 2, 128, 256), (2, 1, 72, 200)] {
        for mask in masks {
            both_ways(
                fixture,
                Layout::new(shape(heads, kv_heads, queries, keys, false), false).masked(mask),
            )?;
        }
    }
    Ok(())
}

fn it_repeats_its_bits(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    let stream = fixture.stream()?;
    let problem = Problem::new(fixture, &stream, Layout::new(shape(2, 2, 100, 300, false), false))?;
    let pass = || {
        problem.submit(&stream, false)?;
        problem.submit(&stream, true)?;
        problem.read(&stream)
    };
    let first = pass()?;
    for _ in 0..3 {
        holds(pass()? == first, "a deterministic pass gives the same bits each time")?;
    }
    Ok(())
}

fn it_is_captured(fixture: &Fixture) -> CaseResult {
    require_attention(fixture)?;
    let stream = fixture.stream()?;
    let problem = Problem::new(fixture, &stream, Layout::new(shape(2, 1, 77, 77, true), false))?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        problem.submit(&stream, false)?;
        problem.submit(&stream, true)?;
        Ok(())
    })?;
    graph.replay(&stream, 2)?;
    problem.check(&stream, true)
}
