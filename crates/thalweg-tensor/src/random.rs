//! Random numbers on the host, for initial weights and shuffles.
//!
//! Philox4x32-10, the counter-based generator that CUDA's libraries and PyTorch use (Salmon et al., "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011): the same seed gives the same numbers on every machine.

use thalweg_runtime::{Device, Result};

use crate::tensor::Tensor;

/// A stream of random numbers from a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generator {
    key: [u32; 2],
    counter: u64,
    block: [u32; 4],
    used: usize,
}

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// One block of Philox4x32-10.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [low, high] = [(0, 0), (1, 2)]
            .map(|(multiplier, word)| u64::from(MULTIPLIERS[multiplier]) * u64::from(counter[word]));
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

impl Generator {
    /// The stream of a seed (`torch.manual_seed` in purpose; the numbers are not PyTorch's).
    pub fn new(seed: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], counter: 0, block: [0; 4], used: 4 }
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox([self.counter as u32, (self.counter >> 32) as u32, 0, 0], self.key);
            self.counter += 1;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A number in [0, 1) with 24 random bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// A number below `bound`, each as likely as the others. `bound` must not be 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "there is no number below 0");
        // Lemire's method: reject the few low products that would favour some results. <https://arxiv.org/abs/1805.10941>
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= bound.wrapping_neg() % bound {
                return (product >> 32) as u32;
            }
        }
    }

    /// The numbers 0 to `count` − 1 in random order (`torch.randperm`).
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u32 + 1) as usize);
        }
        order
    }
}

impl Tensor {
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
        let values: Vec<f32> = (0..count).map(|_| low + (high - low) * generator.uniform()).collect();
        Self::from_slice(&values, shape, device)
    }
}

#[cfg(test)]
mod tests {
    use super::{Generator, philox};

    #[test]
    fn known_answers() {
        // The reference implementation's known-answer tests for philox4x32-10 (Random123, kat_vectors).
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut order = Generator::new(7).permutation(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
