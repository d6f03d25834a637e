//! Convolution and its gradients: calls of a vendor's library.

use std::sync::Arc;

use thalweg_driver::{
    Access, CaptureMode, Code, ConvolutionCall, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape,
    ElementFormat, GpuCall, HostFault, HostKernel, HostLaunch, Label, LibraryLaunch, Result,
};

use super::fixture::{Buffer, Fixture, Stream, fail, holds, skip};
use super::{CaseResult, group};

group! {
    "convolution":
    it_convolves_images,
    it_convolves_sequences_and_volumes,
    it_takes_groups_and_sizes_of_any_kind,
    it_is_exact_without_tf32,
    it_repeats_its_bits,
    it_is_captured,
    it_adds_a_bias_and_rectifies,
    it_tries_engines_where_that_is_asked_for,
    it_refuses_what_is_no_convolution,
}

const PASSES: [ConvolutionPass; 3] =
    [ConvolutionPass::Forward, ConvolutionPass::InputGradient, ConvolutionPass::WeightGradient];
const FORMATS: [ElementFormat; 3] = [ElementFormat::R_32F, ElementFormat::R_16F, ElementFormat::R_16BF];

fn require_convolution(fixture: &Fixture) -> CaseResult {
    if fixture.driver.device_properties(fixture.device)?.libraries.convolution {
        return Ok(());
    }
    skip("the device has no library for convolution (cuDNN was not found, or is too old)")
}

/// Encodes an element. The cases use small multiples of 1/8, which every format represents exactly.
fn encode(format: ElementFormat, value: f64) -> Vec<u8> {
    let bits = (value as f32).to_bits();
    match format {
        ElementFormat::R_32F => bits.to_le_bytes().to_vec(),
        ElementFormat::R_16BF => (((bits + 0x8000) >> 16) as u16).to_le_bytes().to_vec(),
        _ => to_f16(value).to_le_bytes().to_vec(),
    }
}

/// Rounds to the nearest 16-bit float of magnitude 2⁻¹⁴ or more, ties away from zero; smaller values become 0.
fn to_f16(value: f64) -> u16 {
    let bits = (value as f32).to_bits() + 0x1000;
    let (sign, exponent, fraction) = (bits >> 16 & 0x8000, bits >> 23 & 0xff, bits >> 13 & 0x3ff);
    if exponent < 113 { sign as u16 } else { (sign | (exponent - 112) << 10 | fraction) as u16 }
}

fn from_f16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

fn decode(format: ElementFormat, bytes: &[u8]) -> Vec<f64> {
    let half = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]);
    match format {
        ElementFormat::R_32F => bytes
            .chunks_exact(4)
            .map(|four| f64::from(f32::from_le_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        ElementFormat::R_16BF => {
            bytes.chunks_exact(2).map(|pair| f64::from(f32::from_bits(u32::from(half(pair)) << 16))).collect()
        }
        _ => bytes.chunks_exact(2).map(|pair| from_f16(half(pair))).collect(),
    }
}

/// Returns the index of an element of an operand [first, channels, extents].
fn place(shape: &ConvolutionShape, channels: u64, extents: [u64; 3], at: [u64; 5]) -> usize {
    let [first, channel, z, y, x] = at;
    let (count, inside) = (extents.iter().product::<u64>(), (z * extents[1] + y) * extents[2] + x);
    let place = if shape.channels_last {
        (first * count + inside) * channels + channel
    } else {
        (first * channels + channel) * count + inside
    };
    place as usize
}

fn points(extents: [u64; 3]) -> impl Iterator<Item = [u64; 3]> {
    let [depth, height, width] = extents;
    (0..depth * height * width).map(move |at| [at / (height * width), at / width % height, at % width])
}

/// Computes one operand (input, weight, output) from the other two by the definition, in f64.
fn definition(shape: &ConvolutionShape, pass: ConvolutionPass, operands: &[Vec<f64>; 3]) -> Vec<f64> {
    let [ref input, ref weight, ref output] = *operands;
    let (of_group, outs) = (shape.input_channels / shape.groups, shape.output_channels / shape.groups);
    let mut result = vec![0.0; operands[written(pass)].len()];
    for n in 0..shape.batch {
        for k in 0..shape.output_channels {
            for [z, y, x] in points(shape.output) {
                let to = place(shape, shape.output_channels, shape.output, [n, k, z, y, x]);
                for r in points(shape.kernel) {
                    let from = [0, 1, 2].map(|axis| {
                        let start = [z, y, x][axis] * shape.stride[axis] + r[axis] * shape.dilation[axis];
                        start.checked_sub(shape.padding[axis]).filter(|&at| at < shape.input[axis])
                    });
                    let [Some(iz), Some(iy), Some(ix)] = from else { continue };
                    for c in 0..of_group {
                        let channel = k / outs * of_group + c;
                        let from = place(shape, shape.input_channels, shape.input, [n, channel, iz, iy, ix]);
                        let by = place(shape, of_group, shape.kernel, [k, c, r[0], r[1], r[2]]);
                        match pass {
                            ConvolutionPass::Forward => result[to] += weight[by] * input[from],
                            ConvolutionPass::InputGradient => result[from] += weight[by] * output[to],
                            ConvolutionPass::WeightGradient => result[by] += output[to] * input[from],
                        }
                    }
                }
            }
        }
    }
    result
}

/// Adds a bias to an output, and rectifies it.
fn finish(shape: &ConvolutionShape, bias: &[f64], relu: bool, output: &mut [f64]) {
    for n in 0..shape.batch {
        for (k, bias) in (0..).zip(bias) {
            for [z, y, x] in points(shape.output) {
                let value = &mut output[place(shape, shape.output_channels, shape.output, [n, k, z, y, x])];
                *value += bias;
                if relu {
                    *value = value.max(0.0);
                }
            }
        }
    }
}

/// Returns the index of the operand that a pass writes, among input, weight and output.
const fn written(pass: ConvolutionPass) -> usize {
    match pass {
        ConvolutionPass::Forward => 2,
        ConvolutionPass::InputGradient => 0,
        ConvolutionPass::WeightGradient => 1,
    }
}

/// Fills an operand, and waits for completion.
fn fill(
    fixture: &Fixture,
    stream: &Stream<'_>,
    buffer: &Buffer<'_>,
    format: ElementFormat,
    content: &[f64],
) -> Result<()> {
    let encoded: Vec<u8> = content.iter().flat_map(|value| encode(format, *value)).collect();
    fixture.driver.copy_from_host(stream.handle, buffer.pointer, &encoded, Label::here("operands"))?;
    fixture.driver.stream_synchronize(stream.handle)
}

/// A pass on a device: operands (input, weight, output), scratch memory, and the initial values of the operands.
struct Problem<'f> {
    fixture: &'f Fixture,
    call: ConvolutionCall,
    buffers: [Buffer<'f>; 3],
    bias: Option<(Buffer<'f>, Vec<f64>)>,
    workspace: Buffer<'f>,
    content: [Vec<f64>; 3],
}

/// The options with which a pass is computed.
#[derive(Clone, Copy)]
struct How {
    allow_tf32: bool,
    /// Whether the activation follows the bias; `None` without a bias.
    relu: Option<bool>,
    most_engines: u32,
}

impl How {
    const PLAIN: Self = Self { allow_tf32: true, relu: None, most_engines: 1 };
}

impl<'f> Problem<'f> {
    fn new(
        fixture: &'f Fixture,
        stream: &Stream<'_>,
        shape: ConvolutionShape,
        pass: ConvolutionPass,
        how: How,
    ) -> Result<Self> {
        let counts = shape.elements().unwrap_or_default();
        let bytes = shape.format.bytes().unwrap_or(4);
        let mut state = 11_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 28) / 8.0 - 1.0
        };
        let content = counts.map(|count| (0..count).map(|_| draw()).collect::<Vec<f64>>());
        let [input, weight, output] = counts.map(|count| fixture.buffer((count * bytes).div_ceil(4)));
        let buffers = [input?, weight?, output?];
        for (buffer, content) in buffers.iter().zip(&content) {
            fill(fixture, stream, buffer, shape.format, content)?;
        }
        let bias = match how.relu {
            None => None,
            Some(_) => {
                let content: Vec<f64> = (0..shape.output_channels).map(|_| draw()).collect();
                let buffer = fixture.buffer((shape.output_channels * bytes).div_ceil(4))?;
                fill(fixture, stream, &buffer, shape.format, &content)?;
                Some((buffer, content))
            }
        };
        let epilogue = bias.as_ref().zip(how.relu);
        let mut call = ConvolutionCall {
            shape,
            pass,
            input: buffers[0].pointer,
            weight: buffers[1].pointer,
            output: buffers[2].pointer,
            allow_tf32: how.allow_tf32,
            deterministic: true,
            epilogue: epilogue.map(|((bias, _), relu)| ConvolutionEpilogue { bias: bias.pointer, relu }),
            most_engines: how.most_engines,
            workspace: None,
        };
        let needed = fixture.driver.library_workspace(fixture.device, &GpuCall::Convolution(call))?;
        let workspace = fixture.buffer(needed.div_ceil(4).max(1))?;
        call.workspace = Some((workspace.pointer, 4 * workspace.words));
        Ok(Self { fixture, call, buffers, bias, workspace, content })
    }

    fn submit(&self, stream: &Stream<'_>) -> Result<()> {
        let (shape, pass) = (self.call.shape, self.call.pass);
        let width = shape.format.bytes().unwrap_or(4) as usize;
        let target = written(pass);
        let epilogue = self.call.epilogue;
        let bias_bytes = shape.output_channels as usize * width;
        let ranges = [0, 1, 2].map(|index| (self.buffers[index].pointer, self.content[index].len() * width));
        let host: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| -> Result<(), HostFault> {
            let mut operands = [const { Vec::new() }; 3];
            for (index, (start, bytes)) in ranges.into_iter().enumerate() {
                operands[index] = match index == target {
                    true => vec![0.0; bytes / width],
                    false => decode(shape.format, launch.read::<u8>(start, bytes)?),
                };
            }
            let mut result = definition(&shape, pass, &operands);
            if let Some(ConvolutionEpilogue { bias, relu }) = epilogue {
                let bias = decode(shape.format, launch.read::<u8>(bias, bias_bytes)?);
                finish(&shape, &bias, relu, &mut result);
            }
            let memory = launch.write::<u8>(ranges[target].0, ranges[target].1)?;
            for (place, value) in memory.chunks_exact_mut(width).zip(result) {
                place.copy_from_slice(&encode(shape.format, value));
            }
            Ok(())
        });
        let access = |index: usize| {
            let (start, bytes) = ranges[index];
            if index == target {
                Access::write(start, bytes as u64)
            } else {
                Access::read(start, bytes as u64)
            }
        };
        let mut accesses = vec![
            access(0),
            access(1),
            access(2),
            Access::write(self.workspace.pointer, 4 * self.workspace.words),
        ];
        accesses.extend(epilogue.map(|epilogue| Access::read(epilogue.bias, bias_bytes as u64)));
        let launch = LibraryLaunch {
            gpu: &self.call.into(),
            host: &host,
            arguments: &[],
            accesses: &accesses,
            label: Label::here("convolution"),
        };
        self.fixture.driver.library_async(stream.handle, &launch)
    }

    fn read(&self, stream: &Stream<'_>) -> Result<[Vec<f64>; 3]> {
        let mut all = [const { Vec::new() }; 3];
        for ((elements, buffer), content) in all.iter_mut().zip(&self.buffers).zip(&self.content) {
            let words = self.fixture.words_on(stream.handle, buffer.pointer, buffer.words)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            *elements = decode(self.call.shape.format, &bytes);
            elements.truncate(content.len());
        }
        Ok(all)
    }

    /// Compares the device's results with the definition, and memory that it must not write with the initial values.
    fn check(&self, stream: &Stream<'_>) -> CaseResult {
        let (seen, target) = (self.read(stream)?, written(self.call.pass));
        for index in (0..3).filter(|&index| index != target) {
            holds(seen[index] == self.content[index], "an operand that is read stays as it was")?;
        }
        // Operands have 4 bits, so products are exact, in TF32 too: only the rounding of sums and of the result remains.
        let tolerance = if self.call.shape.format == ElementFormat::R_32F { 1e-5 } else { 1e-2 };
        let mut expected = definition(&self.call.shape, self.call.pass, &self.content);
        if let (Some((_, bias)), Some(epilogue)) = (&self.bias, self.call.epilogue) {
            finish(&self.call.shape, bias, epilogue.relu, &mut expected);
        }
        let largest = expected.iter().fold(1e-3_f64, |most, value| most.max(value.abs()));
        let is_wrong = |(seen, expected): (&f64, &f64)| {
            let difference = (seen - expected).abs();
            difference.is_nan() || difference > tolerance * largest
        };
        match seen[target].iter().zip(&expected).position(is_wrong) {
            None => Ok(()),
            Some(at) => fail(format!(
                "{:?}, at {at}: {} for {}: {:?}",
                self.call.pass, seen[target][at], expected[at], self.call.shape
            )),
        }
    }
}

/// Returns a convolution by batch, channels, groups, extents of input and kernel, stride, padding and dilation.
fn shape(
    [batch, input_channels, output_channels, groups]: [u64; 4],
    [input, kernel, stride, padding, dilation]: [[u64; 3]; 5],
) -> ConvolutionShape {
    let mut shape = ConvolutionShape {
        batch,
        input_channels,
        output_channels,
        groups,
        input,
        kernel,
        output: [1; 3],
        stride,
        padding,
        dilation,
        format: ElementFormat::R_32F,
        channels_last: false,
    };
    shape.output = [0, 1, 2].map(|axis| shape.windows(axis).unwrap_or(0));
    shape
}

const ONE: [u64; 3] = [1; 3];
const NONE: [u64; 3] = [0; 3];

/// Compares all passes in all formats with the definition. For a layout and format without an engine the library may return
/// `NotSupported`, except for contiguous f32.
fn hold(fixture: &Fixture, shape: ConvolutionShape) -> CaseResult {
    let stream = fixture.stream()?;
    for format in FORMATS {
        for channels_last in [false, true] {
            let shape = ConvolutionShape { format, channels_last, ..shape };
            for pass in PASSES {
                match Problem::new(fixture, &stream, shape, pass, How::PLAIN) {
                    Ok(problem) => {
                        problem.submit(&stream)?;
                        problem.check(&stream)?;
                    }
                    Err(error)
                        if error.code() == Code::NotSupported
                            && (channels_last || format != ElementFormat::R_32F) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

fn it_convolves_images(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    hold(fixture, shape([2, 16, 24, 1], [[1, 9, 11], [1, 3, 3], ONE, [0, 1, 1], ONE]))?;
    hold(fixture, shape([2, 8, 16, 1], [[1, 12, 10], [1, 5, 3], [1, 2, 2], [0, 2, 1], ONE]))?;
    hold(fixture, shape([3, 32, 8, 1], [[1, 7, 7], ONE, ONE, NONE, ONE]))
}

fn it_convolves_sequences_and_volumes(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    hold(fixture, shape([2, 8, 8, 1], [[1, 1, 33], [1, 1, 4], [1, 1, 3], [0, 0, 2], ONE]))?;
    hold(fixture, shape([2, 8, 8, 1], [[4, 5, 6], [3, 2, 3], [2, 1, 2], [1, 0, 1], ONE]))
}

fn it_takes_groups_and_sizes_of_any_kind(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    hold(fixture, shape([1, 3, 5, 1], [[1, 9, 7], [1, 3, 2], [1, 2, 1], [0, 1, 0], [1, 1, 2]]))?;
    hold(fixture, shape([2, 6, 9, 3], [[1, 8, 8], [1, 3, 3], [1, 2, 2], [0, 1, 1], ONE]))?;
    hold(fixture, shape([2, 16, 16, 16], [[1, 10, 9], [1, 3, 3], ONE, [0, 2, 2], [1, 2, 2]]))
}

fn it_is_exact_without_tf32(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let stream = fixture.stream()?;
    let shape = shape([2, 16, 24, 1], [[1, 9, 11], [1, 3, 3], ONE, [0, 1, 1], ONE]);
    for pass in PASSES {
        let mut problem =
            Problem::new(fixture, &stream, shape, pass, How { allow_tf32: false, ..How::PLAIN })?;
        // 1 + 2⁻¹² is lost in TF32.
        let fine = 1.0 + 2_f64.powi(-12);
        for (buffer, content) in problem.buffers.iter().zip(&mut problem.content) {
            content.iter_mut().for_each(|value| *value = fine);
            fill(fixture, &stream, buffer, shape.format, content)?;
        }
        problem.submit(&stream)?;
        problem.check(&stream)?;
    }
    Ok(())
}

fn it_repeats_its_bits(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let stream = fixture.stream()?;
    let shape = shape([4, 16, 24, 1], [[1, 14, 14], [1, 3, 3], ONE, [0, 1, 1], ONE]);
    for pass in PASSES {
        let problem = Problem::new(fixture, &stream, shape, pass, How::PLAIN)?;
        problem.submit(&stream)?;
        let first = problem.read(&stream)?;
        for _ in 0..3 {
            problem.submit(&stream)?;
            holds(problem.read(&stream)? == first, "a deterministic pass gives the same bits each time")?;
        }
    }
    Ok(())
}

fn it_is_captured(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let stream = fixture.stream()?;
    let shape = shape([2, 16, 24, 1], [[1, 9, 11], [1, 3, 3], [1, 2, 2], [0, 1, 1], ONE]);
    for pass in PASSES {
        let problem = Problem::new(fixture, &stream, shape, pass, How::PLAIN)?;
        let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(problem.submit(&stream)?))?;
        graph.replay(&stream, 2)?;
        problem.check(&stream)?;
    }
    Ok(())
}

fn it_adds_a_bias_and_rectifies(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let stream = fixture.stream()?;
    for (format, channels_last) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        for plain in [
            shape([2, 16, 24, 1], [[1, 9, 11], [1, 3, 3], ONE, [0, 1, 1], ONE]),
            shape([2, 8, 8, 1], [[4, 5, 6], [3, 2, 3], [2, 1, 2], [1, 0, 1], ONE]),
        ] {
            let shape = ConvolutionShape { format, channels_last, ..plain };
            for relu in [false, true] {
                let how = How { relu: Some(relu), ..How::PLAIN };
                match Problem::new(fixture, &stream, shape, ConvolutionPass::Forward, how) {
                    Ok(problem) => {
                        problem.submit(&stream)?;
                        problem.check(&stream)?;
                    }
                    // In that case the caller adds the bias.
                    Err(error) if error.code() == Code::NotSupported => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

fn it_tries_engines_where_that_is_asked_for(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let stream = fixture.stream()?;
    let how = How { most_engines: 6, ..How::PLAIN };
    let shape = shape([4, 16, 32, 1], [[1, 15, 13], [1, 3, 3], ONE, [0, 1, 1], ONE]);
    for pass in PASSES {
        // A capture tries no engines; the next call does, and the second call uses its result.
        let problem = Problem::new(fixture, &stream, shape, pass, how)?;
        let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(problem.submit(&stream)?))?;
        graph.replay(&stream, 1)?;
        problem.check(&stream)?;
        for _ in 0..2 {
            problem.submit(&stream)?;
            problem.check(&stream)?;
        }
    }
    Ok(())
}

fn it_refuses_what_is_no_convolution(fixture: &Fixture) -> CaseResult {
    require_convolution(fixture)?;
    let shape = shape([2, 8, 8, 1], [[1, 9, 11], [1, 3, 3], ONE, [0, 1, 1], ONE]);
    let wrong = [
        ConvolutionShape { groups: 3, ..shape },
        ConvolutionShape { output: [1, 9, 12], ..shape },
        ConvolutionShape { stride: [1, 0, 1], ..shape },
    ];
    holds(wrong.iter().all(|shape| shape.fault().is_some()) && shape.fault().is_none(), "a fault is found")
}
