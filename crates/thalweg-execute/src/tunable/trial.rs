//! Trials: a product with operands of its own, timed with one solution after another.

use std::sync::Arc;

use thalweg_driver::Label;
use thalweg_ir::{DType, Element, bf16, f16, with_dtype};
use thalweg_kernels::matmul::fused;
use thalweg_kernels::matmul::warp_groups::Tiles;

use super::settings::{Effective, Tolerances};
use super::signature::{Shape, Solution};
use crate::products::{Precision, can_take_few_rows, can_take_groups, library_algorithms, matmul_by};
use crate::strips::Operands;
use thalweg_runtime::invalid;
use thalweg_runtime::outside_capture;
use thalweg_runtime::{Buffer, Error, Event, Result, Stream};

/// One copy of the operands.
struct Set {
    buffers: [Buffer; 3],
    bias: Option<Buffer>,
    is_wide: bool,
}

impl Set {
    fn operands(&self) -> Operands {
        let [a, b, d] = &self.buffers;
        Operands {
            at: [a.pointer(), b.pointer(), d.pointer()],
            bias: self.bias.as_ref().map(Buffer::pointer),
            is_wide: self.is_wide,
        }
    }
}

/// The maximum number of copies of the operands.
const MOST_SETS: u64 = 256;

/// The number of bytes that are filled before the timed calls. The fill takes an H100 some 25 microseconds, in which the host
/// queues a few calls.
const AHEAD_BYTES: u64 = 64 << 20;

/// The minimum duration, in milliseconds, of a timed run of calls: events are inaccurate by some thousandths of a millisecond.
const LEAST_MS: f32 = 0.05;

/// A product that is being tried.
pub(super) struct Trial<'s> {
    stream: &'s Stream,
    shape: Shape,
    precision: Precision,
    sets: Vec<Set>,
    next: usize,
    /// The memory that a GPU fills before the timed calls, so that these are queued before the first begins.
    ahead: Option<Buffer>,
    label: Label,
}

/// A candidate's time, and whether it was timed to the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Timed {
    /// The median, in milliseconds.
    Median(f32),
    /// The candidate was far slower than the best after a few runs.
    Discarded,
    /// The candidate does not run.
    Unusable,
}

impl<'s> Trial<'s> {
    /// Copies the operands often enough to fill `rotating_bytes`, so that no trial finds its operands in a cache. Without given
    /// operands the copies contain generated numbers. `None` if memory does not suffice for one copy.
    pub(super) fn new(
        stream: &'s Stream,
        shape: Shape,
        precision: Precision,
        operands: Option<&Operands>,
        rotating_bytes: u64,
        label: Label,
    ) -> Result<Option<Self>> {
        let mut trial = Self { stream, shape, precision, sets: Vec::new(), next: 0, ahead: None, label };
        let bytes = trial.bytes();
        let whole: u64 = bytes.iter().sum();
        let wanted = rotating_bytes.div_ceil(whole.max(1)).clamp(1, MOST_SETS);
        while (trial.sets.len() as u64) < wanted {
            match trial.allocate(bytes) {
                Ok(set) => trial.sets.push(set),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
        }
        if !stream.device().is_simulated() {
            // Without it the times of small products are dominated by how fast the host queues them.
            trial.ahead = Buffer::labelled(stream, AHEAD_BYTES, label).ok();
        }
        for number in 0..trial.sets.len() {
            let target = trial.sets[number].operands();
            let source = match (operands, number) {
                (Some(operands), _) => *operands,
                (None, 0) => {
                    trial.fill_randomly(&target, bytes)?;
                    continue;
                }
                (None, _) => trial.sets[0].operands(),
            };
            trial.copy(&target, &source, bytes)?;
        }
        Ok((!trial.sets.is_empty()).then_some(trial))
    }

    /// Returns the bytes of A, B, D and the bias.
    fn bytes(&self) -> [u64; 4] {
        let product = &self.shape.product;
        let [a, b, d] = product.spans();
        let bias = if self.shape.has_bias { product.n } else { 0 };
        let dtypes = [product.dtype, product.dtype, self.shape.output(), product.dtype];
        std::array::from_fn(|at| [a, b, d, bias][at] * dtypes[at].size_bytes() as u64)
    }

    fn allocate(&self, [a, b, d, bias]: [u64; 4]) -> Result<Set> {
        let buffer = |bytes| Buffer::labelled(self.stream, bytes, self.label);
        let bias = (bias > 0).then(|| buffer(bias)).transpose()?;
        let is_wide = self.shape.is_wide;
        Ok(Set { buffers: [buffer(a)?, buffer(b)?, buffer(d)?], bias, is_wide })
    }

    /// Copies operands; D only if the product is added to it.
    fn copy(&self, target: &Operands, source: &Operands, bytes: [u64; 4]) -> Result<()> {
        let operands = target.at.into_iter().zip(source.at).zip(bytes);
        let copied = if self.shape.product.accumulates() { 3 } else { 2 };
        for ((to, from), bytes) in operands.take(copied) {
            self.stream.copy_on_device(to, from, bytes, self.label)?;
        }
        if let (Some(to), Some(from)) = (target.bias, source.bias) {
            self.stream.copy_on_device(to, from, bytes[3], self.label)?;
        }
        Ok(())
    }

    /// Fills operands with random numbers between -1 and 1.
    fn fill_randomly(&self, target: &Operands, bytes: [u64; 4]) -> Result<()> {
        let dtype = self.shape.product.dtype;
        let pattern = numbers(dtype, 1 << 16);
        let places = target.at.into_iter().chain(target.bias).zip(bytes);
        for (start, bytes) in places {
            let first = bytes.min(pattern.len() as u64);
            self.stream.copy_from_host(start, &pattern[..first as usize], self.label)?;
            let mut done = first;
            while done < bytes {
                let more = done.min(bytes - done);
                self.stream.copy_on_device(start.offset(done), start, more, self.label)?;
                done += more;
            }
        }
        Ok(())
    }

    /// Returns the available solutions, the default first: solutions of the library, and with `own_kernels` also Thalweg's own
    /// kernels.
    pub(super) fn candidates(&self, algorithms: u32, own_kernels: bool) -> Result<Vec<Solution>> {
        let product = &self.shape.product;
        let own_kernels = own_kernels && !self.shape.is_wide;
        let mut candidates = vec![Solution::Default];
        if own_kernels && !self.shape.has_bias && fused::could_fit(product) {
            candidates.push(Solution::Tiles);
        }
        if own_kernels && can_take_few_rows(self.stream, product) {
            candidates.push(Solution::Rows);
        }
        if own_kernels && can_take_groups(self.stream, product) {
            candidates.extend(Tiles::ALL.map(Solution::Groups));
        }
        let operands = self.sets[0].operands();
        let found = library_algorithms(self.stream, product, self.precision, &operands, algorithms)?;
        candidates.extend(found.into_iter().map(Solution::Library));
        Ok(candidates)
    }

    fn run(&mut self, solution: Solution) -> Result<()> {
        let operands = self.sets[self.next].operands();
        self.next = (self.next + 1) % self.sets.len();
        matmul_by(self.stream, solution, self.precision, &self.shape.product, &operands, self.label)
    }

    /// Returns the time of one call in milliseconds, measured over `calls` calls.
    fn time(&mut self, solution: Solution, calls: u32) -> Result<f32> {
        let (start, end) = (Event::with_timing(), Event::with_timing());
        if let Some(ahead) = &self.ahead {
            let zero = thalweg_driver::FillPattern::U32(0);
            for _ in 0..calls.div_ceil(4) {
                self.stream.fill(ahead.pointer(), zero, AHEAD_BYTES / 4, self.label)?;
            }
        }
        start.record(self.stream)?;
        (0..calls).try_for_each(|_| self.run(solution))?;
        end.record(self.stream)?;
        self.wait()?;
        Ok(start.elapsed_ms(&end)? / calls as f32)
    }

    /// Blocks until the stream is idle. That harms no capture of another stream: nothing of a capture runs.
    fn wait(&self) -> Result<()> {
        let driver: &Arc<_> = self.stream.device().driver();
        outside_capture(driver, || Ok(self.stream.synchronize()))?
    }

    fn median(&mut self, solution: Solution, calls: u32, runs: u32) -> Result<f32> {
        let mut times = (0..runs.max(1)).map(|_| self.time(solution, calls)).collect::<Result<Vec<_>>>()?;
        times.sort_by(f32::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Times a solution. One that takes 1.5 times as long as the best after three runs is discarded, and so is one that takes
    /// 1.15 times as long after ten.
    pub(super) fn measure(
        &mut self,
        solution: Solution,
        best: Option<f32>,
        settings: &Effective,
    ) -> Result<Timed> {
        // The first call may load kernels; a second one shows how long a call takes.
        let probed = self.run(solution).and_then(|()| self.wait()).and_then(|()| self.time(solution, 1));
        let probe = match probed {
            Ok(probe) => probe,
            Err(error) if error.is_asynchronous() || error.is_device_lost() => return Err(error),
            Err(_) => return Ok(Timed::Unusable),
        };
        let calls = (LEAST_MS / probe.max(1e-4)).clamp(1.0, 32.0) as u32;
        let most = settings.max_tuning_iterations.max(1);
        let mut approximate = probe;
        for (runs, bound) in [(3, 1.5), (10, 1.15)] {
            if runs > most
                || approximate * runs as f32 * calls as f32 > settings.max_tuning_duration_ms as f32
            {
                break;
            }
            approximate = self.median(solution, calls, runs)?;
            if best.is_some_and(|best| approximate > bound * best) {
                return Ok(Timed::Discarded);
            }
        }
        let within =
            |milliseconds: u32| (milliseconds as f32 / (approximate * calls as f32).max(1e-6)) as u32;
        for _ in 0..settings.warmup_iterations.min(within(settings.warmup_duration_ms)) {
            self.time(solution, calls)?;
        }
        let runs = most.min(within(settings.max_tuning_duration_ms)).max(1);
        self.median(solution, calls, runs).map(Timed::Median)
    }

    /// Returns the result that a solution computes from the first copy of the operands.
    pub(super) fn result(&mut self, solution: Solution) -> Result<Vec<f64>> {
        let bytes = self.bytes()[2];
        let start = self.sets[0].operands().at[2];
        // Old values of D would be added to the product, and elements between its rows would be compared with themselves.
        let zero = thalweg_driver::FillPattern::U8(0);
        self.stream.fill(start, zero, bytes, self.label)?;
        self.next = 0;
        self.run(solution)?;
        let mut read = vec![0_u8; bytes as usize];
        self.stream.copy_to_host(&mut read, start, self.label)?;
        Ok(with_dtype!(self.shape.output(), T => {
            let values = read.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>);
            values.map(Element::to_f64).collect()
        }))
    }
}

/// Returns whether numbers agree within the tolerances. NaN never occurs here.
pub(super) fn all_close(found: &[f64], expected: &[f64], tolerances: Tolerances) -> bool {
    let Tolerances { atol, rtol } = tolerances;
    found.iter().zip(expected).all(|(found, expected)| {
        found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= atol + rtol * expected.abs()
    })
}

/// Returns the bytes of `count` random numbers between -1 and 1.
fn numbers(dtype: DType, count: u32) -> Vec<u8> {
    let mut state = 1_u32;
    let values = (0..count).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    match dtype {
        DType::F64 => values.flat_map(|value| f64::from(value).to_le_bytes()).collect(),
        DType::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::Bf16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    }
}

/// Returns an error of a file.
pub(super) fn file_error(path: &std::path::Path, what: &str, error: &std::io::Error) -> Error {
    invalid!("{}: {what}: {error}", path.display())
}
