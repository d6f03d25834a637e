//! Fourier transforms, decompositions and recurrent networks: calls of vendors' libraries.

use std::sync::Arc;

use thalweg_driver::{
    Access, CaptureMode, Code, DenseCall, DenseMethod, DevicePointer, ElementFormat, FourierCall,
    FourierKind, FourierShape, GpuCall, HostFault, HostKernel, HostLaunch, Label, LibraryLaunch,
    RecurrentCall, RecurrentKind, RecurrentPass, RecurrentShape, RecurrentStates, Result,
};

use super::fixture::{Buffer, Fixture, Stream, fail, holds, skip};
use super::{CaseResult, Stop, group};

group! {
    "calculations":
    a_fourier_transform_sums_with_roots_of_unity,
    a_fourier_transform_is_captured,
    a_decomposition_has_its_factors,
    a_decomposition_is_not_captured,
    a_recurrent_network_repeats_its_step,
    sizes_that_do_not_fit_are_refused,
}

/// A host function of operands of 64-bit floats: it reads all of them and returns the new contents of those that are written.
type Definition = fn(&[Vec<f64>]) -> Vec<Option<Vec<f64>>>;

/// A call with its operands in device memory.
struct Problem<'f> {
    fixture: &'f Fixture,
    gpu: GpuCall,
    buffers: Vec<Buffer<'f>>,
    /// Held until the problem is dropped.
    _workspace: Option<Buffer<'f>>,
    accesses: Vec<Access>,
    content: Vec<Vec<f64>>,
    definition: Definition,
}

fn bytes_of(content: &[f64]) -> Vec<u8> {
    content.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl<'f> Problem<'f> {
    /// Makes a call from the addresses of its operands and its workspace.
    fn new(
        fixture: &'f Fixture,
        stream: &Stream<'_>,
        content: Vec<Vec<f64>>,
        definition: Definition,
        make: impl Fn(&[DevicePointer], Option<(DevicePointer, u64)>) -> GpuCall,
    ) -> CaseResult<Self> {
        let mut buffers = Vec::new();
        for values in &content {
            let buffer = fixture.buffer(2 * values.len() as u64)?;
            fixture.driver.copy_from_host(
                stream.handle,
                buffer.pointer,
                &bytes_of(values),
                Label::here("operands"),
            )?;
            buffers.push(buffer);
        }
        fixture.driver.stream_synchronize(stream.handle)?;
        let addresses: Vec<DevicePointer> = buffers.iter().map(|buffer| buffer.pointer).collect();
        let needed = match fixture.driver.library_workspace(fixture.device, &make(&addresses, None)) {
            Err(error) if [Code::LibraryMissing, Code::NotSupported].contains(&error.code()) => {
                return Err(Stop::Skipped("the device has no library for this".to_owned()));
            }
            needed => needed?,
        };
        let workspace = (needed > 0).then(|| fixture.buffer(needed.div_ceil(4))).transpose()?;
        let gpu = make(&addresses, workspace.as_ref().map(|buffer| (buffer.pointer, needed)));
        let mut accesses: Vec<Access> =
            buffers.iter().map(|buffer| Access::read_write(buffer.pointer, 4 * buffer.words)).collect();
        accesses.extend(workspace.as_ref().map(|buffer| Access::write(buffer.pointer, needed)));
        Ok(Self { fixture, gpu, buffers, _workspace: workspace, accesses, content, definition })
    }

    fn submit(&self, stream: &Stream<'_>) -> Result<()> {
        let operands: Vec<(DevicePointer, usize)> = self
            .buffers
            .iter()
            .zip(&self.content)
            .map(|(buffer, list)| (buffer.pointer, list.len()))
            .collect();
        let definition = self.definition;
        let host: Arc<dyn HostKernel> = Arc::new(move |launch: &HostLaunch<'_>| -> Result<(), HostFault> {
            let all = operands.iter().map(|&(at, count)| launch.write::<f64>(at, count));
            let mut all = all.collect::<Result<Vec<_>, _>>()?;
            let read: Vec<Vec<f64>> = all.iter().map(|operand| operand.to_vec()).collect();
            for (operand, new) in all.iter_mut().zip(definition(&read)) {
                if let Some(new) = new {
                    operand.copy_from_slice(&new);
                }
            }
            Ok(())
        });
        let launch = LibraryLaunch {
            gpu: &self.gpu,
            host: &host,
            arguments: &[],
            accesses: &self.accesses,
            label: Label::here("calculation"),
        };
        self.fixture.driver.library_async(stream.handle, &launch)
    }

    /// Compares the operands with their new contents by the definition.
    fn check(&self, stream: &Stream<'_>) -> CaseResult {
        let expected = (self.definition)(&self.content);
        for (place, (buffer, expected)) in self.buffers.iter().zip(expected).enumerate() {
            let Some(expected) = expected else { continue };
            let words = self.fixture.words_on(stream.handle, buffer.pointer, buffer.words)?;
            let seen = words
                .chunks_exact(2)
                .map(|pair| f64::from_bits(u64::from(pair[0]) | u64::from(pair[1]) << 32));
            for (at, (seen, expected)) in seen.zip(&expected).enumerate() {
                // NaN marks what a call leaves unspecified.
                if !expected.is_nan() && (seen - expected).abs() > 1e-9 * (1.0 + expected.abs()) {
                    return fail(format!("operand {place} at {at}: {seen} for {expected}"));
                }
            }
        }
        Ok(())
    }
}

const POINTS: usize = 12;

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 37 + 11) % 23) as f64 / 8.0 - 1.0).collect()
}

fn transformed(operands: &[Vec<f64>]) -> Vec<Option<Vec<f64>>> {
    let mut result = Vec::new();
    for line in operands[0].chunks_exact(2 * POINTS) {
        for k in 0..POINTS {
            let mut sum = [0.0, 0.0];
            for (t, pair) in line.chunks_exact(2).enumerate() {
                let (sine, cosine) =
                    (-std::f64::consts::TAU * (k * t % POINTS) as f64 / POINTS as f64).sin_cos();
                sum[0] += pair[0] * cosine - pair[1] * sine;
                sum[1] += pair[0] * sine + pair[1] * cosine;
            }
            result.extend(sum);
        }
    }
    vec![None, Some(result)]
}

fn fourier<'f>(fixture: &'f Fixture, stream: &Stream<'_>) -> CaseResult<Problem<'f>> {
    let shape = FourierShape {
        kind: FourierKind::Complex { forward: true },
        rank: 1,
        sizes: [POINTS as u64, 1, 1],
        batch: 3,
        input_strides: [1, POINTS as u64],
        format: ElementFormat::R_64F,
    };
    let content = vec![numbers(6 * POINTS), vec![0.0; 6 * POINTS]];
    Problem::new(fixture, stream, content, transformed, |at, workspace| {
        FourierCall { shape, input: at[0], output: at[1], workspace }.into()
    })
}

fn a_fourier_transform_sums_with_roots_of_unity(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let problem = fourier(fixture, &stream)?;
    problem.submit(&stream)?;
    problem.check(&stream)
}

fn a_fourier_transform_is_captured(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let problem = fourier(fixture, &stream)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(problem.submit(&stream)?))?;
    graph.replay(&stream, 2)?;
    problem.check(&stream)
}

/// Factorizes the symmetric matrix ((4, 2, 2), (2, 5, 3), (2, 3, 6)).
fn factorized(operands: &[Vec<f64>]) -> Vec<Option<Vec<f64>>> {
    let (a, unspecified) = (&operands[0], f64::NAN);
    let l00 = a[0].sqrt();
    let (l10, l20) = (a[3] / l00, a[6] / l00);
    let l11 = (a[4] - l10 * l10).sqrt();
    let l21 = (a[7] - l20 * l10) / l11;
    let l22 = (a[8] - l20 * l20 - l21 * l21).sqrt();
    let lower = vec![l00, unspecified, unspecified, l10, l11, unspecified, l20, l21, l22];
    vec![Some(lower), Some(vec![0.0])]
}

fn dense<'f>(fixture: &'f Fixture, stream: &Stream<'_>) -> CaseResult<Problem<'f>> {
    let matrix = vec![4.0, 2.0, 2.0, 2.0, 5.0, 3.0, 2.0, 3.0, 6.0];
    let null = DevicePointer::new(0);
    Problem::new(fixture, stream, vec![matrix, vec![0.0]], factorized, move |at, workspace| {
        DenseCall {
            method: DenseMethod::Cholesky,
            batch: 1,
            rows: 3,
            columns: 3,
            operands: [at[0], at[1], null, null, null],
            addresses: [null; 2],
            workspace,
        }
        .into()
    })
}

fn a_decomposition_has_its_factors(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let problem = dense(fixture, &stream)?;
    problem.submit(&stream)?;
    problem.check(&stream)
}

fn a_decomposition_is_not_captured(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let problem = dense(fixture, &stream)?;
    fixture.driver.stream_begin_capture(stream.handle, CaptureMode::Global)?;
    let refused = problem.submit(&stream);
    // The capture ends well: nothing was queued.
    let graph = fixture.driver.stream_end_capture(stream.handle)?;
    fixture.driver.graph_destroy(graph)?;
    let code = refused.err().map(|error| error.code());
    holds(code == Some(Code::StreamCaptureUnsupported), "a captured decomposition is refused")?;
    problem.submit(&stream)?;
    problem.check(&stream)
}

const STEPS: usize = 4;

/// Runs h' = tanh(w x + r h) over the steps: operands are x, w with r after it, h, the output and the last state.
fn repeated(operands: &[Vec<f64>]) -> Vec<Option<Vec<f64>>> {
    let (w, r, mut h) = (operands[1][0], operands[1][1], operands[2][0]);
    let mut output = Vec::new();
    for x in &operands[0] {
        h = (w * x + r * h).tanh();
        output.push(h);
    }
    vec![None, None, None, Some(output), Some(vec![h])]
}

fn a_recurrent_network_repeats_its_step(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let shape = RecurrentShape {
        kind: RecurrentKind::Tanh,
        inputs: 1,
        hidden: 1,
        projected: 0,
        layers: 1,
        bidirectional: false,
        has_biases: false,
        lengths: vec![STEPS as u32].into(),
        format: ElementFormat::R_64F,
        allow_tf32: false,
    };
    match fixture.driver.recurrent_memory(fixture.device, &shape) {
        Err(error) if [Code::LibraryMissing, Code::NotSupported].contains(&error.code()) => {
            return skip("the device has no library for recurrent networks");
        }
        memory if memory.as_ref().is_ok_and(|memory| memory.weight_elements != 2) => {
            return fail("a network with two weights has a buffer of another size");
        }
        memory => memory.map(drop)?,
    }
    let content = vec![numbers(STEPS), vec![0.75, -0.5], vec![0.25], vec![0.0; STEPS], vec![0.0]];
    let problem = Problem::new(fixture, &stream, content, repeated, |at, workspace| {
        let of = |hidden| RecurrentStates { hidden, cell: None };
        RecurrentCall {
            shape: shape.clone(),
            pass: RecurrentPass::Forward { last: of(at[4]) },
            input: at[0],
            weights: at[1],
            first: of(at[2]),
            output: at[3],
            reserve: None,
            workspace,
        }
        .into()
    })?;
    problem.submit(&stream)?;
    problem.check(&stream)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(problem.submit(&stream)?))?;
    graph.replay(&stream, 2)?;
    problem.check(&stream)
}

fn sizes_that_do_not_fit_are_refused(fixture: &Fixture) -> CaseResult {
    let shape = RecurrentShape {
        kind: RecurrentKind::Gated,
        inputs: 3,
        hidden: 4,
        projected: 0,
        layers: 1,
        bidirectional: false,
        has_biases: true,
        lengths: vec![3, 2].into(),
        format: ElementFormat::R_32F,
        allow_tf32: true,
    };
    let wrong = [
        RecurrentShape { projected: 2, ..shape.clone() },
        RecurrentShape { lengths: vec![2, 3].into(), ..shape.clone() },
        RecurrentShape { lengths: vec![2, 0].into(), ..shape.clone() },
        RecurrentShape { hidden: 0, ..shape },
    ];
    for shape in &wrong {
        let code = fixture.driver.recurrent_memory(fixture.device, shape).err().map(|error| error.code());
        let is_refused = [Some(Code::InvalidValue), Some(Code::LibraryMissing)].contains(&code);
        holds(is_refused, "a network of impossible sizes is refused")?;
    }
    let transform = FourierShape {
        kind: FourierKind::FromReal,
        rank: 2,
        sizes: [4, 6, 1],
        batch: 2,
        input_strides: [1, 24],
        format: ElementFormat::R_32F,
    };
    holds(transform.fault().is_none() && transform.counts() == [24, 16], "a half has a middle")?;
    let gaps = FourierShape { input_strides: [2, 48], ..transform };
    holds(gaps.fault().is_some(), "transforms over two dimensions have no gaps")
}
