//! The self-test of a device: about a second of copies, of a kernel, of matrix products, each checked and then timed.
//!
//! Every result is compared with one that the host computed in f64 (or, for copies, bit by bit); only then is the speed taken.
//! The speeds are only shown; nothing depends on them.

use std::error::Error;
use std::time::{Duration, Instant};

use thalweg::runtime::{Buffer, Label, PinnedBuffer};
use thalweg::{Device, Stream, Tensor};

use super::{Finding, ItemStatus, Report};

/// Returns the time that each part is timed for. The speed of a simulated GPU is of little interest.
fn duration(device: &Device) -> Duration {
    Duration::from_millis(if device.is_simulated() { 25 } else { 250 })
}

/// The result of a part of the test.
struct Figure {
    value: f64,
    unit: &'static str,
    /// A description of the work.
    what: String,
}

type TestResult = Result<Figure, Box<dyn Error>>;

/// A part of the test: its name and its function.
type Part = (&'static str, fn(&Device, &Stream) -> TestResult);

/// Tests a device.
pub fn run(device: &Device, report: &mut Report) {
    let stream = device.default_stream();
    let parts: [Part; 3] = [("copy", copy), ("kernel", kernel), ("matmul", matmul)];
    for (part, test) in parts {
        let subject = format!("{device} {part}");
        let name = format!("self_test_{part}");
        let finding = match test(device, &stream) {
            Ok(Figure { value, unit, what }) => {
                Finding::new(ItemStatus::Ok, name, subject, format!("{value:>7.1} {unit}, {what}"))
                    .value(value, unit)
            }
            Err(error) => Finding::new(ItemStatus::Failed, name, subject, error.to_string()).value((), ""),
        };
        report.add(&finding.member("device", device.to_string()));
    }
}

/// Repeats work until the time is over, and returns the seconds of one round.
fn time(stream: &Stream, mut round: impl FnMut() -> thalweg::Result<()>) -> thalweg::Result<f64> {
    let duration = duration(stream.device());
    let mut rounds = 0_u32;
    let mut batch = 1_u32;
    let start = Instant::now();
    loop {
        for _ in 0..batch {
            round()?;
        }
        stream.synchronize()?;
        rounds += batch;
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return Ok(elapsed.as_secs_f64() / f64::from(rounds));
        }
        // Many rounds in flight hide the cost of waiting; they are few enough not to exceed the time by much.
        batch = if elapsed < duration / 8 { (batch * 2).min(64) } else { batch };
    }
}

/// Copies pinned memory to the device and back.
fn copy(device: &Device, stream: &Stream) -> TestResult {
    let bytes: u64 = if device.is_simulated() { 4 << 20 } else { 32 << 20 };
    let words = bytes / 8;
    let pattern: Vec<u64> = (0..words).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let (source, target) = (PinnedBuffer::new(device, bytes)?, PinnedBuffer::new(device, bytes)?);
    let memory = Buffer::new(stream, bytes)?;
    source.write(0, &pattern)?;
    target.write(0, &vec![0_u64; pattern.len()])?;
    let round_trip = || {
        stream.copy_from_pinned(memory.pointer(), &source, 0, bytes, Label::here("doctor_copy"))?;
        stream.copy_to_pinned(&target, 0, memory.pointer(), bytes, Label::here("doctor_copy"))
    };
    round_trip()?;
    stream.synchronize()?;
    let mut came_back = vec![0_u64; pattern.len()];
    target.read(0, &mut came_back)?;
    if let Some(word) = pattern.iter().zip(&came_back).position(|(sent, back)| sent != back) {
        let (sent, back) = (pattern[word], came_back[word]);
        return Err(format!("byte {} came back wrong: {back:#018x} for {sent:#018x}", word * 8).into());
    }
    let seconds = time(stream, round_trip)?;
    Ok(Figure {
        value: 2.0 * bytes as f64 / seconds / 1e9,
        unit: "GB/s",
        what: format!("{} MiB of pinned memory to the device and back", bytes >> 20),
    })
}

/// Tests and times an operator of the table.
fn kernel(device: &Device, stream: &Stream) -> TestResult {
    // Not a multiple of the block size, so that the last block is partial.
    let elements: usize = if device.is_simulated() { (1 << 17) + 3 } else { (1 << 22) + 3 };
    let values: Vec<f32> = (0..elements).map(|i| ((i * 7919) % 4001) as f32 / 200.0 - 10.0).collect();
    let x = Tensor::from_slice(&values, &[elements], device)?;
    let start = Instant::now();
    let result = x.sigmoid()?;
    stream.synchronize()?;
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    for (index, (&x, y)) in values.iter().zip(result.to_vec::<f32>()?).enumerate() {
        let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
        if (f64::from(y) - expected)
            .abs()
            .partial_cmp(&(1e-6 * expected))
            .is_none_or(std::cmp::Ordering::is_gt)
        {
            return Err(format!("sigmoid({x}) is {y} at element {index}, not {expected}").into());
        }
    }
    let seconds = time(stream, || x.sigmoid().map(drop))?;
    Ok(Figure {
        value: 2.0 * size_of_val(values.as_slice()) as f64 / seconds / 1e9,
        unit: "GB/s",
        what: format!("sigmoid of {elements} f32 (the first took {first_ms:.0} ms)"),
    })
}

/// Tests and times matrix products: one of odd sizes is checked completely, a larger one is timed.
fn matmul(device: &Device, stream: &Stream) -> TestResult {
    const M: usize = 97;
    const N: usize = 131;
    const K: usize = 203;
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 2654435761 + seed) % 2003) as f32 / 1001.0 - 1.0).collect()
    };
    let (a, b) = (numbers(M * K, 1), numbers(K * N, 2));
    let left = Tensor::from_slice(&a, &[M, K], device)?;
    let right = Tensor::from_slice(&b, &[K, N], device)?;
    let result = left.matmul(&right)?.to_vec::<f32>()?;
    for row in 0..M {
        for column in 0..N {
            let terms = (0..K).map(|i| f64::from(a[row * K + i]) * f64::from(b[i * N + column]));
            let (expected, magnitude) =
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let got = f64::from(result[row * N + column]);
            // The maximum error of K roundings.
            let bound = K as f64 * f64::from(f32::EPSILON) * magnitude;
            if (got - expected).abs().partial_cmp(&bound).is_none_or(std::cmp::Ordering::is_gt) {
                let place = format!("({M}×{K})·({K}×{N}) at row {row}, column {column}");
                return Err(format!("{place} is {got}, not {expected}").into());
            }
        }
    }
    let size = if device.is_simulated() { 256 } else { 1024 };
    let square = Tensor::from_slice(&numbers(size * size, 3), &[size, size], device)?;
    let seconds = time(stream, || square.matmul(&square).map(drop))?;
    let by = match (device.is_simulated(), device.properties().libraries.matmul) {
        (true, _) => "on the CPU",
        (false, true) => "by cuBLASLt",
        (false, false) => "by our own kernel, since cuBLASLt is missing",
    };
    Ok(Figure {
        value: 2.0 * (size as f64).powi(3) / seconds / 1e9,
        unit: "GFLOP/s",
        what: format!("{size}×{size} f32 {by}"),
    })
}
