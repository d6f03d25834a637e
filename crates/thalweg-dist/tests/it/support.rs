//! Ranks for tests: threads on the fast simulator, and threads under seeds and the race checker.

use std::sync::Arc;

use thalweg_dist::store::HashStore;
use thalweg_dist::{GroupOptions, ProcessGroup};
use thalweg_ir::DType;
use thalweg_runtime::sim::{Check, Failure, Gpu, Summary};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;

pub use crate::gate::Gate;

/// A program that each rank runs, with its group and a seed.
pub type RankProgram = fn(&ProcessGroup, u64) -> Result<()>;

/// Runs a program on `ranks` ranks, one thread each, under seeds and the race checker. The program gets its seed.
pub fn find(check: Check, ranks: u32, program: RankProgram) -> Result<Summary, Box<Failure>> {
    check.devices(ranks).memory_bytes(64 << 20).find(move |gpu| spawn(gpu, program))
}

/// Runs a program as [`find`] does, and panics with the report if a seed fails.
#[track_caller]
pub fn checked(seeds: u64, ranks: u32, program: RankProgram) -> Summary {
    match find(Check::new().seeds(0..seeds), ranks, program) {
        Ok(summary) => summary,
        Err(failure) => panic!("{failure}"),
    }
}

fn spawn(gpu: &Gpu, program: RankProgram) -> Result<()> {
    let store = Arc::new(HashStore::new());
    let (seed, ranks) = (gpu.seed(), gpu.devices().len() as u32);
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let (store, device) = (store.clone(), gpu.devices()[rank as usize].clone());
            gpu.spawn(&format!("rank {rank}"), move || {
                let _current = device.make_current();
                let group = ProcessGroup::new(store, rank, ranks, &device, GroupOptions::default())?;
                program(&group, seed)
            })
        })
        .collect();
    let outcomes: Vec<Result<()>> = threads.into_iter().map(|thread| thread.join()?).collect();
    outcomes.into_iter().collect()
}

/// Small numbers that a seed decides: a generator of the tests' own.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Returns the values of a rank in a step: small integers, so that every order of a sum has the same result.
pub fn values(rank: u32, step: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|index| ((index * 7 + u64::from(rank) * 13 + step * 5) % 19) as f32 - 9.0).collect()
}

pub fn tensor(group: &ProcessGroup, values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], group.device())
}

pub fn empty(group: &ProcessGroup, count: usize) -> Result<Tensor> {
    Tensor::full(&[count], -1.0, DType::F32, group.device())
}

/// Samples of a step: small numbers of a generator of the test's own.
fn samples(step: u64, count: usize, width: usize) -> Vec<f32> {
    let mut random = Random::new(step * 31 + width as u64);
    (0..count * width).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
}

/// Returns this rank's part of a step's batch: inputs and targets.
pub fn batch(rank: u32, ranks: u32, step: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let (total, own) = (12, 12 / ranks as usize);
    let part = |width: usize| {
        let all = samples(step, total, width);
        let rows = &all[rank as usize * own * width..][..own * width];
        Tensor::from_slice(rows, &[own, width], device)
    };
    Ok((part(6)?, part(3)?))
}

/// Returns the mean of the squared differences.
pub fn loss(output: &Tensor, target: &Tensor) -> Result<Tensor> {
    output.sub(target)?.square()?.mean(&[], false)
}

/// Steps by plain gradient descent.
pub fn descend(parameters: &[Tensor]) -> Result<()> {
    for parameter in parameters {
        if let Some(gradient) = parameter.grad() {
            let stepped = parameter.detach().sub(&gradient.mul_scalar(0.5)?)?;
            parameter.detach().copy_(&stepped)?;
        }
        parameter.zero_grad();
    }
    Ok(())
}

/// Returns the elements of parameters, one after the other.
pub fn parameter_values(parameters: &[Tensor]) -> Result<Vec<f32>> {
    let all: Result<Vec<Vec<f32>>> = parameters.iter().map(|parameter| parameter.detach().to_vec()).collect();
    Ok(all?.concat())
}

/// Asserts that numbers are within a bound of others.
#[track_caller]
pub fn close(found: &[f32], wanted: &[f32], bound: f32) {
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= bound, "{index}: {found}, not {wanted}");
    }
}

/// Returns numbers as bytes, for collectives of objects.
pub fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// A folder for the files of one test, which is deleted at its end.
pub struct Folder(pub std::path::PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-dist-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
