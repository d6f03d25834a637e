//! Work of vendors' libraries, submitted as commands.

use std::sync::Arc;

use thalweg_driver::{
    Access, Activation, ActivationPass, CaptureMode, Code, ComputeFormat, ElementFormat, GpuCall, HostFault,
    HostKernel, HostLaunch, Label, LibraryLaunch, MatmulActivation, MatmulAlgorithm, MatmulCall,
    MatmulEpilogue, Matrix, ReductionSchemes, Result, StreamHandle,
};

use super::fixture::{Buffer, Fixture, Stream, check_refused, equal, fail, skip};
use super::{CaseResult, group};

group! {
    "library":
    a_matmul_multiplies,
    a_matmul_reads_transposes_and_batches,
    a_matmul_adds_to_its_output,
    a_matmul_adds_a_bias_to_each_row,
    algorithms_of_a_matmul_compute_the_same,
    a_matmul_takes_gelu_and_keeps_its_argument,
    a_matmul_is_multiplied_by_the_derivative_of_gelu,
    a_matmul_takes_what_is_above_0_and_its_gradient_where_that_was,
    a_matmul_of_16_bit_floats_gives_32,
    a_matmul_is_ordered_with_its_stream,
    a_matmul_is_captured,
    a_matmul_needs_a_stream,
}

fn require_matmul(fixture: &Fixture) -> CaseResult {
    if fixture.driver.device_properties(fixture.device)?.libraries.matmul {
        return Ok(());
    }
    skip("the device has no library for matrix products (cuBLASLt was not found)")
}

/// Returns the index of element (row, column) of the operand in one matrix of the batch, in elements from the matrix's address.
fn at(matrix: &Matrix, batch: u64, row: u64, column: u64) -> usize {
    let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
    (batch * matrix.batch_stride + row * matrix.leading_dimension + column) as usize
}

/// Returns the number of elements that an operand of `rows`×`columns` spans from its address.
fn span(matrix: &Matrix, batch: u64, rows: u64, columns: u64) -> usize {
    at(matrix, batch - 1, rows - 1, columns - 1) + 1
}

/// Computes the product on the host, by the definition.
fn multiply(call: &MatmulCall, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let MatmulCall { m, n, k, batch, a, b, d, .. } = *call;
    let (alpha, beta) = (call.alpha as f32, call.beta as f32);
    let left = launch.read::<f32>(a.address, span(&a, batch, m, k))?;
    let right = launch.read::<f32>(b.address, span(&b, batch, k, n))?;
    let output = launch.write::<f32>(d.address, span(&d, batch, m, n))?;
    let bias = call.epilogue.bias.map(|bias| launch.read::<f32>(bias, n as usize)).transpose()?;
    for matrix in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let product = |i| left[at(&a, matrix, row, i)] * right[at(&b, matrix, i, column)];
                let sum: f32 = (0..k).map(product).sum();
                let target = &mut output[at(&d, matrix, row, column)];
                let addend = if beta == 0.0 { 0.0 } else { beta * *target };
                let bias = bias.map_or(0.0, |bias| bias[column as usize]);
                *target = alpha * sum + addend + bias;
            }
        }
    }
    Ok(())
}

fn submit(fixture: &Fixture, stream: StreamHandle, call: MatmulCall) -> Result<()> {
    let host: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| multiply(&call, launch));
    let bytes = |matrix: &Matrix, rows, columns| 4 * span(matrix, call.batch, rows, columns) as u64;
    let output = bytes(&call.d, call.m, call.n);
    let mut accesses = vec![
        Access::read(call.a.address, bytes(&call.a, call.m, call.k)),
        Access::read(call.b.address, bytes(&call.b, call.k, call.n)),
        if call.beta == 0.0 {
            Access::write(call.d.address, output)
        } else {
            Access::read_write(call.d.address, output)
        },
    ];
    accesses.extend(call.epilogue.bias.map(|bias| Access::read(bias, 4 * call.n)));
    let launch = LibraryLaunch {
        gpu: &GpuCall::Matmul(call),
        host: &host,
        arguments: &[],
        accesses: &accesses,
        label: Label::here("matmul"),
    };
    fixture.driver.library_async(stream, &launch)
}

/// Returns a contiguous matrix with rows of `columns` elements.
fn contiguous(buffer: &Buffer<'_>, columns: u64) -> Matrix {
    Matrix { address: buffer.pointer, leading_dimension: columns, batch_stride: 0, transposed: false }
}

/// Returns the call for `D = A · B` over floats, without batch.
fn product(m: u64, n: u64, k: u64, operands: [Matrix; 3]) -> MatmulCall {
    let [a, b, d] = operands;
    MatmulCall {
        m,
        n,
        k,
        batch: 1,
        a,
        b,
        d,
        format: ElementFormat::R_32F,
        output_format: ElementFormat::R_32F,
        compute: ComputeFormat::F32,
        alpha: 1.0,
        beta: 0.0,
        epilogue: MatmulEpilogue::default(),
        workspace: None,
        reductions: ReductionSchemes::ANY,
        algorithm: None,
    }
}

/// Allocates a buffer with these values, which the cases choose as small whole numbers: their products and sums are exact in any
/// order.
fn floats<'f>(fixture: &'f Fixture, stream: &Stream<'_>, values: &[f32]) -> Result<Buffer<'f>> {
    let buffer = fixture.buffer(values.len() as u64)?;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    fixture.driver.copy_from_host(stream.handle, buffer.pointer, &bytes, Label::here("floats"))?;
    fixture.driver.stream_synchronize(stream.handle)?;
    Ok(buffer)
}

fn read(fixture: &Fixture, stream: &Stream<'_>, buffer: &Buffer<'_>) -> Result<Vec<f32>> {
    let words = fixture.words_on(stream.handle, buffer.pointer, buffer.words)?;
    Ok(words.into_iter().map(f32::from_bits).collect())
}

fn a_matmul_multiplies(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let a = floats(fixture, &stream, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let b = floats(fixture, &stream, &[1.0, 0.0, 2.0, 1.0, 0.0, 3.0])?;
    let d = floats(fixture, &stream, &[f32::NAN; 4])?;
    let operands = [contiguous(&a, 3), contiguous(&b, 2), contiguous(&d, 2)];
    submit(fixture, stream.handle, product(2, 2, 3, operands))?;
    equal(read(fixture, &stream, &d)?, vec![5.0, 11.0, 14.0, 23.0], "a product of 2×3 and 3×2")
}

fn a_matmul_reads_transposes_and_batches(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    // Two batches. A is stored transposed, 3×2 each; B is one 3×2 matrix for both.
    let a: Vec<f32> = (1..=12_u8).map(f32::from).collect();
    let a = floats(fixture, &stream, &a)?;
    let b = floats(fixture, &stream, &[1.0, 0.0, 2.0, 1.0, 0.0, 3.0])?;
    let d = floats(fixture, &stream, &[0.0; 8])?;
    let operands = [
        Matrix { batch_stride: 6, transposed: true, ..contiguous(&a, 2) },
        contiguous(&b, 2),
        Matrix { batch_stride: 4, ..contiguous(&d, 2) },
    ];
    let call = MatmulCall { batch: 2, ..product(2, 2, 3, operands) };
    submit(fixture, stream.handle, call)?;
    // The first A is [1 3 5; 2 4 6], the second [7 9 11; 8 10 12].
    let expected = vec![7.0, 18.0, 10.0, 22.0, 25.0, 42.0, 28.0, 46.0];
    equal(read(fixture, &stream, &d)?, expected, "two products with a transposed operand and a shared one")
}

fn a_matmul_adds_to_its_output(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let one = floats(fixture, &stream, &[1.0, 2.0, 3.0, 4.0])?;
    let d = floats(fixture, &stream, &[100.0, 200.0, 300.0, 400.0])?;
    let operands = [contiguous(&one, 2), contiguous(&one, 2), contiguous(&d, 2)];
    let call = MatmulCall { alpha: 2.0, beta: 0.5, ..product(2, 2, 2, operands) };
    submit(fixture, stream.handle, call)?;
    equal(
        read(fixture, &stream, &d)?,
        vec![64.0, 120.0, 180.0, 244.0],
        "twice a square plus half of what was there",
    )
}

fn a_matmul_adds_a_bias_to_each_row(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let a = floats(fixture, &stream, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let b = floats(fixture, &stream, &[1.0, 0.0, 2.0, 1.0, 0.0, 3.0])?;
    let d = floats(fixture, &stream, &[f32::NAN; 4])?;
    let operands = [contiguous(&a, 3), contiguous(&b, 2), contiguous(&d, 2)];
    // The same product with one bias and then another: the cached description must not contain the first bias.
    for bias in [[10.0, 20.0], [-1.0, 7.0]] {
        let values = floats(fixture, &stream, &bias)?;
        let epilogue = MatmulEpilogue { bias: Some(values.pointer), activation: None };
        let call = MatmulCall { epilogue, ..product(2, 2, 3, operands) };
        submit(fixture, stream.handle, call)?;
        let expected = vec![5.0 + bias[0], 11.0 + bias[1], 14.0 + bias[0], 23.0 + bias[1]];
        equal(read(fixture, &stream, &d)?, expected, "a product of 2×3 and 3×2, and a bias")?;
    }
    Ok(())
}

fn algorithms_of_a_matmul_compute_the_same(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let numbers = |count: u64| (0..count).map(|i| (i * 7 % 5) as f32 - 2.0).collect::<Vec<_>>();
    let (a, b) = (floats(fixture, &stream, &numbers(512))?, floats(fixture, &stream, &numbers(1024))?);
    let d = floats(fixture, &stream, &[f32::NAN; 512])?;
    let call = product(16, 32, 32, [contiguous(&a, 32), contiguous(&b, 32), contiguous(&d, 32)]);
    submit(fixture, stream.handle, call)?;
    let expected = read(fixture, &stream, &d)?;
    let algorithms = fixture.driver.matmul_algorithms(fixture.device, &call, 16)?;
    equal((1..=16).contains(&algorithms.len()), true, "between 1 and 16 algorithms")?;
    for algorithm in algorithms {
        fixture.driver.copy_from_host(stream.handle, d.pointer, &[0xff; 2048], Label::here("poison"))?;
        submit(fixture, stream.handle, MatmulCall { algorithm: Some(algorithm), ..call })?;
        equal(read(fixture, &stream, &d)?, expected.clone(), "a product by one of its algorithms")?;
    }
    let unknown = MatmulAlgorithm { id: 12_345, tile: 9_999, ..MatmulAlgorithm::default() };
    let result = submit(fixture, stream.handle, MatmulCall { algorithm: Some(unknown), ..call });
    check_refused(result, &[Code::NotSupported], "an algorithm that the library does not have")
}

/// Rows, columns and terms of the products of 16-bit floats.
const SIZES: [usize; 3] = [24, 16, 8];

fn to_bf16(value: f32) -> u16 {
    // Rounded to nearest, ties away from zero.
    ((value.to_bits() + 0x8000) >> 16) as u16
}

fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns GELU by its formula with tanh, and its derivative, by a difference.
fn gelu(x: f32) -> [f64; 2] {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    let of = |x: f64| 0.5 * x * (1.0 + (factor * (x + 0.044_715 * x * x * x)).tanh());
    let (x, step) = (f64::from(x), 1e-5);
    [of(x), (of(x + step) - of(x - step)) / (2.0 * step)]
}

/// A product of 16-bit floats, with its operands, a bias and an auxiliary matrix.
struct Short<'f> {
    fixture: &'f Fixture,
    operands: [Vec<f32>; 4],
    buffers: [Buffer<'f>; 4],
    output: Buffer<'f>,
}

impl<'f> Short<'f> {
    fn new(fixture: &'f Fixture, stream: &Stream<'_>) -> Result<Self> {
        let [m, n, k] = SIZES;
        let mut state = 5_u32;
        let mut draw = |count: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Multiples of 1/8 up to 1, which 16 bits represent exactly.
                ((state >> 28) as f32 - 8.0) / 8.0
            };
            (0..count).map(|_| next()).collect()
        };
        let operands = [draw(m * k), draw(k * n), draw(n), draw(m * n)];
        let short = |values: &Vec<f32>| -> Result<Buffer<'f>> {
            let buffer = fixture.buffer((values.len() as u64).div_ceil(2))?;
            let bytes: Vec<u8> = values.iter().flat_map(|&value| to_bf16(value).to_le_bytes()).collect();
            fixture.driver.copy_from_host(stream.handle, buffer.pointer, &bytes, Label::here("16 bits"))?;
            fixture.driver.stream_synchronize(stream.handle)?;
            Ok(buffer)
        };
        let [a, b, bias, beside] = operands.each_ref().map(short);
        let buffers = [a?, b?, bias?, beside?];
        let output = fixture.buffer((m * n) as u64)?;
        Ok(Self { fixture, operands, buffers, output })
    }

    /// Returns the product of a row and a column, without a bias.
    fn product(&self, row: usize, column: usize) -> f32 {
        let [_, n, k] = SIZES;
        (0..k).map(|term| self.operands[0][row * k + term] * self.operands[1][term * n + column]).sum()
    }

    /// Submits the product; in the simulator `host` computes each element of the output and of the auxiliary matrix.
    fn submit(
        &self,
        stream: &Stream<'_>,
        output_format: ElementFormat,
        epilogue: MatmulEpilogue,
        host: impl Fn(usize, usize) -> [f32; 2],
    ) -> Result<()> {
        let [m, n, k] = SIZES;
        let [a, b, _, beside] = &self.buffers;
        let (output, argument) = (self.output.pointer, beside.pointer);
        let values: Vec<[f32; 2]> = (0..m * n).map(|place| host(place / n, place % n)).collect();
        let is_wide = output_format == ElementFormat::R_32F;
        let host: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| -> Result<(), HostFault> {
            if is_wide {
                let output = launch.write::<f32>(output, values.len())?;
                output.iter_mut().zip(&values).for_each(|(to, [value, _])| *to = *value);
                return Ok(());
            }
            let output = launch.write::<u16>(output, values.len())?;
            output.iter_mut().zip(&values).for_each(|(to, [value, _])| *to = to_bf16(*value));
            let argument = launch.write::<u16>(argument, values.len())?;
            argument.iter_mut().zip(&values).for_each(|(to, [_, value])| *to = to_bf16(*value));
            Ok(())
        });
        let operands = [contiguous(a, k as u64), contiguous(b, n as u64), contiguous(&self.output, n as u64)];
        let call = MatmulCall {
            format: ElementFormat::R_16BF,
            output_format,
            epilogue,
            ..product(m as u64, n as u64, k as u64, operands)
        };
        let [a, b, bias, beside] = self.buffers.each_ref().map(|buffer| (buffer.pointer, 4 * buffer.words));
        let accesses = [
            Access::read(a.0, a.1),
            Access::read(b.0, b.1),
            Access::read(bias.0, bias.1),
            Access::read_write(beside.0, beside.1),
            Access::write(output, 4 * self.output.words),
        ];
        let launch = LibraryLaunch {
            gpu: &GpuCall::Matmul(call),
            host: &host,
            arguments: &[],
            accesses: &accesses,
            label: Label::here("matmul"),
        };
        self.fixture.driver.library_async(stream.handle, &launch)
    }

    /// Returns the 16-bit floats of a buffer.
    fn read(&self, stream: &Stream<'_>, buffer: &Buffer<'_>) -> Result<Vec<f32>> {
        let words = self.fixture.words_on(stream.handle, buffer.pointer, buffer.words)?;
        let halves = words.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]).map(from_bf16);
        Ok(halves.take(SIZES[0] * SIZES[1]).collect())
    }
}

/// Compares with a tolerance for the rounding to 16 bits.
fn near(seen: &[f32], expected: impl Fn(usize, usize) -> f64, what: &str) -> CaseResult {
    for (place, &seen) in seen.iter().enumerate() {
        let expected = expected(place / SIZES[1], place % SIZES[1]);
        let is_near = (f64::from(seen) - expected).abs() <= 0.01 * expected.abs() + 2e-3;
        if !is_near {
            return fail(format!("{what}: element {place} is {seen}, not {expected}"));
        }
    }
    Ok(())
}

fn a_matmul_takes_gelu_and_keeps_its_argument(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let short = Short::new(fixture, &stream)?;
    let [_, _, bias, argument] = &short.buffers;
    let gelu_of = MatmulActivation {
        function: Activation::Gelu,
        pass: ActivationPass::Forward,
        kept: argument.pointer,
        leading_dimension: SIZES[1] as u64,
    };
    for with_bias in [true, false] {
        let sum = |row: usize, column: usize| {
            short.product(row, column) + if with_bias { short.operands[2][column] } else { 0.0 }
        };
        let epilogue = MatmulEpilogue { bias: with_bias.then_some(bias.pointer), activation: Some(gelu_of) };
        short.submit(&stream, ElementFormat::R_16BF, epilogue, |row, column| {
            [gelu(sum(row, column))[0] as f32, sum(row, column)]
        })?;
        near(&short.read(&stream, argument)?, |row, column| sum(row, column).into(), "GELU's argument")?;
        near(&short.read(&stream, &short.output)?, |row, column| gelu(sum(row, column))[0], "GELU")?;
    }
    Ok(())
}

fn a_matmul_is_multiplied_by_the_derivative_of_gelu(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let short = Short::new(fixture, &stream)?;
    let argument = &short.buffers[3];
    let gelu_of = MatmulActivation {
        function: Activation::Gelu,
        pass: ActivationPass::Backward,
        kept: argument.pointer,
        leading_dimension: SIZES[1] as u64,
    };
    let at = |row: usize, column: usize| short.operands[3][row * SIZES[1] + column];
    let slope = |row: usize, column: usize| f64::from(short.product(row, column)) * gelu(at(row, column))[1];
    let epilogue = MatmulEpilogue { bias: None, activation: Some(gelu_of) };
    short.submit(&stream, ElementFormat::R_16BF, epilogue, |row, column| {
        [slope(row, column) as f32, at(row, column)]
    })?;
    near(&short.read(&stream, &short.output)?, slope, "a product times the derivative")?;
    near(&short.read(&stream, argument)?, |row, column| at(row, column).into(), "GELU's argument is read")
}

/// The mask bits that a forward pass stores are in the library's own format: the backward pass of the same library reads them.
fn a_matmul_takes_what_is_above_0_and_its_gradient_where_that_was(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let mut short = Short::new(fixture, &stream)?;
    let [m, n, _] = SIZES;
    // One row of 128 bits for each row of the output, and room for the values that the host function of these cases writes.
    short.buffers[3] = floats(fixture, &stream, &vec![0.0; m * n])?;
    let kept = short.buffers[3].pointer;
    let relu = |pass| {
        let function = Activation::Relu;
        Some(MatmulActivation { function, pass, kept, leading_dimension: 128 })
    };
    let bias = short.buffers[2].pointer;
    for with_bias in [false, true] {
        let sum = |row: usize, column: usize| {
            short.product(row, column) + if with_bias { short.operands[2][column] } else { 0.0 }
        };
        let at = |row: usize, column: usize| f64::from(sum(row, column).max(0.0));
        let forward =
            MatmulEpilogue { bias: with_bias.then_some(bias), activation: relu(ActivationPass::Forward) };
        short.submit(&stream, ElementFormat::R_16BF, forward, |row, column| [at(row, column) as f32, 0.0])?;
        near(&short.read(&stream, &short.output)?, at, "what is above 0")?;
        if (0..m * n).all(|place| sum(place / n, place % n) > 0.0) {
            return fail("a case without negative sums shows nothing");
        }
        let slope = |row: usize, column: usize| match sum(row, column) {
            sum if sum > 0.0 => f64::from(short.product(row, column)),
            _ => 0.0,
        };
        let backward = MatmulEpilogue { bias: None, activation: relu(ActivationPass::Backward) };
        short.submit(&stream, ElementFormat::R_16BF, backward, |row, column| {
            [slope(row, column) as f32, 0.0]
        })?;
        near(&short.read(&stream, &short.output)?, slope, "a product where the sum was above 0")?;
    }
    Ok(())
}

fn a_matmul_of_16_bit_floats_gives_32(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let short = Short::new(fixture, &stream)?;
    let none = MatmulEpilogue::default();
    short.submit(&stream, ElementFormat::R_32F, none, |row, column| [short.product(row, column), 0.0])?;
    let [m, n, _] = SIZES;
    let expected: Vec<f32> = (0..m * n).map(|place| short.product(place / n, place % n)).collect();
    // Sums of eight products of eighths are exact.
    equal(read(fixture, &stream, &short.output)?, expected, "a product of 16-bit floats, in 32 bits")
}

fn a_matmul_is_ordered_with_its_stream(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let a = floats(fixture, &stream, &[2.0, 0.0, 0.0, 2.0])?;
    let (x, y) = (floats(fixture, &stream, &[1.0, 2.0, 3.0, 4.0])?, floats(fixture, &stream, &[0.0; 4])?);
    for _ in 0..5 {
        let operands = [contiguous(&a, 2), contiguous(&x, 2), contiguous(&y, 2)];
        submit(fixture, stream.handle, product(2, 2, 2, operands))?;
        fixture.copy(&stream, x.end(), y.end(), 16)?;
    }
    equal(read(fixture, &stream, &x)?, vec![32.0, 64.0, 96.0, 128.0], "five doublings, each copied back")
}

fn a_matmul_is_captured(fixture: &Fixture) -> CaseResult {
    require_matmul(fixture)?;
    let stream = fixture.stream()?;
    let a = floats(fixture, &stream, &[2.0, 0.0, 0.0, 2.0])?;
    let x = floats(fixture, &stream, &[1.0, 2.0, 3.0, 4.0])?;
    let y = floats(fixture, &stream, &[0.0; 4])?;
    let operands = [contiguous(&a, 2), contiguous(&x, 2), contiguous(&y, 2)];
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        submit(fixture, stream.handle, product(2, 2, 2, operands))?;
        fixture.copy(&stream, x.end(), y.end(), 16)?;
        Ok(())
    })?;
    graph.replay(&stream, 3)?;
    equal(read(fixture, &stream, &x)?, vec![8.0, 16.0, 24.0, 32.0], "three launches of a captured doubling")
}

fn a_matmul_needs_a_stream(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let operands = [contiguous(&buffer, 2), contiguous(&buffer, 2), contiguous(&buffer, 2)];
    let result = submit(fixture, StreamHandle::from_raw(0), product(2, 2, 2, operands));
    check_refused(
        result,
        &[Code::InvalidHandle, Code::LibraryMissing],
        "library_async on a stream that is not there",
    )
}
