//! Random choices from a seed.

use super::{Choice, Schedule};

/// The generator splitmix64 by Steele, Lea and Flood: small, fast, and any seed works.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Creates the generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates a second sequence of the same seed, for choices. The numbers that the program draws then do not change the
    /// choices, and all schedules of a seed, replays included, return the same numbers to the program.
    pub(super) const fn for_choices(seed: u64) -> Self {
        Self(Self(seed ^ 0x5851_f42d_4c95_7f2d).next())
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below the limit, which is not 0. (The bias for limits that are not a power of two is below 2^-32.)
    pub const fn below(&mut self, limit: usize) -> usize {
        ((self.next() as u128 * limit as u128) >> 64) as usize
    }
}

/// A schedule that takes every choice with the same probability.
#[derive(Clone, Debug)]
pub struct Random {
    choices: SplitMix,
    numbers: SplitMix,
}

impl Random {
    /// Creates the schedule of a seed.
    pub fn new(seed: u64) -> Self {
        Self { choices: SplitMix::for_choices(seed), numbers: SplitMix::new(seed) }
    }
}

impl Schedule for Random {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        self.choices.below(choices.len())
    }

    fn random(&mut self) -> u64 {
        self.numbers.next()
    }
}
