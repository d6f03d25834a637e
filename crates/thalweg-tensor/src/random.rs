//! Random numbers: [`Generator`], whose position in its sequence is kept on the host, for initial weights and shuffles; and
//! [`DeviceGenerator`], whose position is in device memory, for dropout and everything else that each replay of a graph draws
//! anew.
//!
//! Numbers drawn from a [`Generator`] in a captured region are repeated by each replay, so its methods report the draws to an
//! audit of the region.
//!
//! Both are Philox4x32-10 ([`thalweg_ir::philox`]): the same seed results in the same numbers on every machine.

mod default;
mod device;

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, element_count, philox};
use thalweg_runtime::graph::audit::host_random;
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse_if};

pub(crate) use default::{SEED, made_generator};
pub use default::{default_generator, with_generator};
pub use device::DeviceGenerator;
pub(crate) use device::{GeneratorState, Numbers};

use crate::caller::{at_line, creating, label_at, outermost};
use crate::dispatch::{Operator, built_in};
use crate::host_room::host_room;
use crate::loops::{LoopArguments, Points};
use crate::tensor::Tensor;

/// A stream of random numbers from a seed, drawn on the host. A graph therefore contains the numbers that were drawn during its
/// capture, and every replay repeats them, as with a CPU generator in PyTorch; the [audit](mod@thalweg_runtime::graph::audit) reports
/// such draws. A [`DeviceGenerator`] draws anew in each replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generator {
    key: [u32; 2],
    counter: u64,
    block: [u32; 4],
    used: usize,
}

impl Generator {
    /// Returns a generator with a seed (like `torch.manual_seed`, but the numbers differ from PyTorch's).
    pub fn new(seed: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], counter: 0, block: [0; 4], used: 4 }
    }

    /// Returns 32 random bits. In a capture they become a constant of the graph.
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

    /// Returns the seed and the number of words drawn.
    fn place(&self) -> (u64, u64) {
        let seed = u64::from(self.key[1]) << 32 | u64::from(self.key[0]);
        (seed, self.counter.wrapping_mul(4).wrapping_sub(4 - self.used as u64))
    }

    /// Moves to the position after this many drawn words.
    fn go_to(&mut self, position: u64) {
        (self.counter, self.used) = (position / 4, 4);
        for _ in 0..position % 4 {
            self.bits();
        }
    }

    /// Returns a number in [0, 1) with 24 random bits.
    #[track_caller]
    pub fn uniform(&mut self) -> f32 {
        host_random(Label::here("uniform"));
        self.fraction()
    }

    fn fraction(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 24) as f32
    }

    /// Returns a number below `bound`, each equally likely.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if `bound` is 0.
    #[track_caller]
    pub fn below(&mut self, bound: u32) -> Result<u32> {
        if bound == 0 {
            return Err(invalid!("below: there is no number below 0").at(outermost(Location::caller())));
        }
        host_random(Label::here("below"));
        Ok(self.bits_below(bound))
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

    /// Returns the numbers 0 to `count` − 1 in random order (`torch.randperm`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there are 2³² numbers or more; [`Error::is_out_of_memory`] if the host does not have
    /// enough memory.
    #[track_caller]
    pub fn permutation(&mut self, count: usize) -> Result<Vec<usize>> {
        let mut order = at_line(Location::caller(), || {
            refuse_if!(u32::try_from(count).is_err(), "permutation: {count} numbers are more than 2³² − 1");
            host_room(count)
        })?;
        host_random(Label::here("permutation"));
        order.extend(0..count);
        for last in (1..count).rev() {
            order.swap(last, self.bits_below(last as u32 + 1) as usize);
        }
        Ok(order)
    }
}

impl Generator {
    /// Returns a normally distributed number, with mean 0 and variance 1: the cosine half of a Box-Muller pair.
    #[track_caller]
    pub fn normal(&mut self) -> f32 {
        host_random(Label::here("normal"));
        self.box_muller()
    }

    fn box_muller(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.fraction()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.fraction()).cos()
    }
}

impl Tensor {
    /// Returns an f32 tensor of normally distributed numbers; the deviation is at least 0. The device computes the numbers that
    /// [`Generator::normal`] would return, apart from the rounding of the logarithm and the cosine. Asynchronous.
    #[track_caller]
    pub fn normal(
        shape: &[usize],
        mean: f32,
        deviation: f32,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let label = label_at("normal", Location::caller());
        creating("normal", (shape, DType::F32, device), label.location, || {
            check_deviation(f64::from(deviation))?;
            Self::drawn(
                built_in!("thalweg::sequence_normal")?,
                2,
                [mean, deviation],
                shape,
                generator,
                device,
                label,
            )
        })
    }

    /// Returns an f32 tensor of numbers in [low, high); both bounds are finite. The device computes the numbers that
    /// [`Generator::uniform`] would return. Asynchronous.
    #[track_caller]
    pub fn uniform(
        shape: &[usize],
        low: f32,
        high: f32,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let label = label_at("uniform", Location::caller());
        creating("uniform", (shape, DType::F32, device), label.location, || {
            check_uniform(f64::from(low), f64::from(high), f64::from(f32::MAX))?;
            Self::drawn(
                built_in!("thalweg::sequence_uniform")?,
                1,
                [low, high],
                shape,
                generator,
                device,
                label,
            )
        })
    }

    /// Returns a tensor of numbers that the device draws from the sequence of a host generator, a fixed number of words each; the
    /// generator skips these words.
    fn drawn(
        operator: &'static Operator,
        words: u64,
        numbers: [f32; 2],
        shape: &[usize],
        generator: &mut Generator,
        device: &Device,
        label: Label,
    ) -> Result<Self> {
        let count = element_count(shape)?;
        if count == 0 {
            return Self::empty(shape, DType::F32, device);
        }
        host_random(label);
        let (seed, position) = generator.place();
        let placed = [seed, position].map(|number| Scalar::I64(number as i64));
        let arguments = LoopArguments {
            scalars: placed.into_iter().chain(numbers.map(|number| Scalar::F64(number.into()))).collect(),
            points: Points::Result(SmallVec::from_slice(&[count])),
            dtype: Some(DType::F32),
        };
        let mut drawn = operator.call_loop(&[], &arguments, Some(device), label)?;
        generator.go_to(position.wrapping_add(words.wrapping_mul(count as u64)));
        drawn.swap_remove(0).reshape(shape)
    }
}

/// Refuses bounds between which there is nothing to draw, or whose difference exceeds the range of the dtype, as PyTorch does.
fn check_uniform(low: f64, high: f64, largest: f64) -> Result<()> {
    let sound = low.is_finite() && high.is_finite() && low <= high && high - low <= largest;
    if sound {
        return Ok(());
    }
    Err(invalid!(
        "there is nothing to draw from in [{low}, {high}); the bounds must be finite, the lower one first, and no \
         further apart than the dtype's largest number"
    ))
}

/// Refuses a deviation that is negative or not a number.
fn check_deviation(deviation: f64) -> Result<()> {
    refuse_if!(deviation < 0.0 || deviation.is_nan(), "normal expects std >= 0.0, but found std {deviation}");
    Ok(())
}
