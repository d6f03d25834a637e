//! Work of vendors' libraries: a command like any other.

use std::sync::Arc;

use thalweg_driver::{
    Access, CaptureMode, Code, ComputeFormat, ElementFormat, GpuCall, HostFault, HostKernel, HostLaunch,
    Label, LibraryLaunch, MatmulAlgorithm, MatmulCall, Matrix, ReductionSchemes, Result, StreamHandle,
};

use super::fixture::{Buffer, Fixture, Stream, equal, refused, skip};
use super::{CaseResult, group};

group! {
    "library":
    a_matmul_multiplies,
    a_matmul_reads_transposes_and_batches,
    a_matmul_adds_to_its_output,
    a_matmul_adds_a_bias_to_each_row,
    algorithms_of_a_matmul_compute_the_same,
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

/// Returns the place of element (row, column) of the operand in one matrix of the batch, in elements from the matrix's
/// address.
fn at(matrix: &Matrix, batch: u64, row: u64, column: u64) -> usize {
    let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
    (batch * matrix.batch_stride + row * matrix.leading_dimension + column) as usize
}

/// Returns how many elements an operand of `rows`×`columns` spans from its address on.
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
    let bias = call.bias.map(|bias| launch.read::<f32>(bias, n as usize)).transpose()?;
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
    accesses.extend(call.bias.map(|bias| Access::read(bias, 4 * call.n)));
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
        compute: ComputeFormat::F32,
        alpha: 1.0,
        beta: 0.0,
        bias: None,
        workspace: None,
        reductions: ReductionSchemes::ANY,
        algorithm: None,
    }
}

/// Returns small whole numbers, whose products and sums are exact in any order.
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
    // The same product with one bias and then another: the description that is kept is not that of the first.
    for bias in [[10.0, 20.0], [-1.0, 7.0]] {
        let values = floats(fixture, &stream, &bias)?;
        let call = MatmulCall { bias: Some(values.pointer), ..product(2, 2, 3, operands) };
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
    refused(result, &[Code::NotSupported], "an algorithm that the library does not have")
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
    refused(
        result,
        &[Code::InvalidHandle, Code::LibraryMissing],
        "library_async on a stream that is not there",
    )
}
