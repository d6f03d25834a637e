//! Random numbers: [`Generator`] on the host, for initial weights and shuffles; [`DeviceGenerator`] on the device, for dropout
//! and whatever else a kernel draws.
//!
//! What [`Generator`] draws in a captured region, each replay repeats. So its methods tell an audit of the region.
//!
//! Both are Philox4x32-10 ([`thalweg_ir::philox`]): the same seed gives the same numbers on every machine.

mod device;

use thalweg_ir::philox;
use thalweg_runtime::graph::audit::host_random;
use thalweg_runtime::{Device, Label, Result};

pub use device::DeviceGenerator;

use crate::tensor::Tensor;

/// A stream of random numbers from a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generator {
    key: [u32; 2],
    counter: u64,
    block: [u32; 4],
    used: usize,
}

impl Generator {
    /// The stream of a seed (`torch.manual_seed` in purpose; the numbers are not PyTorch's).
    pub fn new(seed: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], counter: 0, block: [0; 4], used: 4 }
    }

    /// 32 random bits.
    #[track_caller]
    pub fn next_u32(&mut self) -> u32 {
        host_random(Label::here("next_u32"));
        self.bits()
    }

    fn bits(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox::block([self.counter as u32, (self.counter >> 32) as u32, 0, 0], self.key);
            self.counter += 1;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A number in [0, 1) with 24 random bits.
    #[track_caller]
    pub fn uniform(&mut self) -> f32 {
        host_random(Label::here("uniform"));
        self.fraction()
    }

    fn fraction(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 24) as f32
    }

    /// A number below `bound`, each as likely as the others. `bound` must not be 0.
    #[track_caller]
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "there is no number below 0");
        host_random(Label::here("below"));
        self.bits_below(bound)
    }

    fn bits_below(&mut self, bound: u32) -> u32 {
        // Lemire's method: reject the few low products that would favour some results. <https://arxiv.org/abs/1805.10941>
        loop {
            let product = u64::from(self.bits()) * u64::from(bound);
            if product as u32 >= bound.wrapping_neg() % bound {
                return (product >> 32) as u32;
            }
        }
    }

    /// The numbers 0 to `count` − 1 in random order (`torch.randperm`).
    #[track_caller]
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        host_random(Label::here("permutation"));
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.bits_below(last as u32 + 1) as usize);
        }
        order
    }
}

impl Generator {
    /// A normally distributed number, with mean 0 and variance 1: the cosine half of a Box-Muller pair.
    #[track_caller]
    pub fn normal(&mut self) -> f32 {
        host_random(Label::here("normal"));
        self.bell()
    }

    fn bell(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.fraction()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.fraction()).cos()
    }
}

impl Tensor {
    /// A tensor of f32 with normally distributed numbers.
    #[track_caller]
    pub fn normal(
        shape: &[usize],
        mean: f32,
        deviation: f32,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let count = thalweg_ir::element_count(shape)?;
        host_random(Label::here("normal"));
        let values: Vec<f32> = (0..count).map(|_| mean + deviation * generator.bell()).collect();
        Self::from_slice(&values, shape, device)
    }

    /// A tensor of f32 with numbers in [low, high).
    #[track_caller]
    pub fn uniform(
        shape: &[usize],
        low: f32,
        high: f32,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let count = thalweg_ir::element_count(shape)?;
        host_random(Label::here("uniform"));
        let values: Vec<f32> = (0..count).map(|_| low + (high - low) * generator.fraction()).collect();
        Self::from_slice(&values, shape, device)
    }
}

#[cfg(test)]
mod tests {
    use super::Generator;

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut order = Generator::new(7).permutation(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
