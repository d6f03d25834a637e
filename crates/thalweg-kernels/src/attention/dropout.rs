//! Dropout of attention's weights: which are kept is a function of seed, offset and position, so no pass stores it.
//!
//! The weights of all heads are divided into *pieces* of 16 queries × 16 keys, numbered along the keys, then along the queries,
//! then by heads. A piece has 32 subsequences of the generator ([`thalweg_ir::philox`]): `32 · piece + 4 · (query % 8) + key % 8 /
//! 2`. Each draws one block of four words, at the offset, by seven rounds of Philox, whose ten rounds would take as long as the
//! rest of the softmax. The word of a weight is `2 · (key / 8 % 2) + query / 8 % 2`, its half the upper one for odd keys, and the
//! weight is kept if the half is less than [`Dropout::kept`].
//!
//! These are the positions of the scores that one lane of a warp computes, so kernels draw without exchanging words. A call uses
//! one block of every subsequence: the generator's offset advances by [`WORDS`].

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::philox;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::source::Source;

/// The number of words by which a call advances the generator's offset.
pub const WORDS: u64 = 4;

/// The number of values of half a word.
const VALUES: u32 = 1 << 16;

/// The number of queries, and of keys, of a piece.
const PIECE: u64 = 16;

/// The probability with which weights are kept, in steps of 2⁻¹⁶.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dropout {
    /// The number of the 2¹⁶ values of a draw for which a weight is kept: less than 2¹⁶.
    pub kept: u32,
}

impl Dropout {
    /// Returns the dropout that drops weights with a probability between 0 and 1; `None` if it drops none: the probability, rounded to
    /// a multiple of 2⁻¹⁶, is 0.
    #[must_use]
    pub fn of(probability: f64) -> Option<Self> {
        let kept = ((1.0 - probability) * f64::from(VALUES)).round() as u32;
        // A probability below 1 keeps something.
        let least = u32::from(probability < 1.0);
        (probability > 0.0 && kept < VALUES).then(|| Self { kept: kept.max(least) })
    }

    /// Returns the factor of the weights that are kept: the inverse of their share, so that the expected result is that without
    /// dropout; 0 if none are kept.
    #[must_use]
    pub fn rescale(self) -> f32 {
        if self.kept == 0 { 0.0 } else { VALUES as f32 / self.kept as f32 }
    }
}

/// The weights of heads of equal size, as pieces, and the state of the generator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub(super) dropout: Dropout,
    pub(super) queries: u64,
    pub(super) keys: u64,
    /// Seed and offset.
    pub(super) state: [u64; 2],
}

impl Pieces {
    /// Returns whether a weight of a head, counted through all batches, is kept.
    pub(super) fn keeps(&self, head: u64, query: u64, key: u64) -> bool {
        let (down, across) = (self.queries.div_ceil(PIECE), self.keys.div_ceil(PIECE));
        let piece = (head * down + query / PIECE) * across + key / PIECE;
        let subsequence = piece * 32 + query % 8 * 4 + key % 8 / 2;
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let [seed, offset] = self.state;
        let ([low, high], [own, above]) = (halves(offset / WORDS), halves(subsequence));
        let words = philox::block_of_rounds::<7>([low, high, own, above], halves(seed));
        let word = words[(key / 8 % 2 * 2 + query / 8 % 2) as usize];
        let half = if key % 2 == 1 { word >> 16 } else { word & 0xffff };
        half < self.dropout.kept
    }
}

/// The truth values that say which weights of a call are kept, (heads of all batches, queries, keys), contiguous: for gradients by
/// operators and for tests. The kernels of attention regenerate them instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeptWeights {
    /// The number of heads of all batches.
    pub heads: u64,
    /// The number of queries of a head.
    pub queries: u64,
    /// The number of keys of a head.
    pub keys: u64,
    /// The probability.
    pub dropout: Dropout,
}

/// The addresses of the operands of [`KeptWeights`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptAddresses {
    /// Seed and offset of the generator, as two int64.
    pub state: DevicePointer,
    /// The truth values.
    pub to: DevicePointer,
}

arguments! { KeptAddresses { state, to } }

const NAME: &str = "attention_kept_weights";

impl KeptWeights {
    fn elements(&self) -> u64 {
        self.heads * self.queries * self.keys
    }
}

pub(super) fn source() -> (String, String) {
    (NAME.to_owned(), Source::new(NAME).print(include_str!("kept.cu")))
}

impl NativeKernel for Placed<KeptWeights, KeptAddresses> {
    native! { self: NAME, source().1, run }

    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let KeptWeights { heads, queries, keys, .. } = self.kernel;
        let pieces = heads * queries.div_ceil(PIECE) * keys.div_ceil(PIECE);
        along_x(pieces.div_ceil(8).min(1 << 20), 256_u64)
    }

    fn words(&self) -> Words {
        let KeptWeights { heads, queries, keys, dropout } = self.kernel;
        let mut words = Words::new();
        arguments::Argument::write(&self.at, &mut words);
        words.extend([heads, queries, keys, u64::from(dropout.kept)]);
        words
    }

    fn accesses(&self) -> Accesses {
        Accesses::from_iter([
            Access::read(self.at.state, 2 * size_of::<i64>() as u64),
            Access::write(self.at.to, self.kernel.elements()),
        ])
    }
}

fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let fault = || HostFault("attention: the arguments are not in its layout".to_owned());
    let [state, to, heads, queries, keys, kept] =
        arguments::words::<6>(launch.arguments).ok_or_else(fault)?;
    let state: &[u64] = launch.read(DevicePointer::new(state), 2)?;
    let pieces =
        Pieces { dropout: Dropout { kept: kept as u32 }, queries, keys, state: [state[0], state[1]] };
    let to = launch.write::<u8>(DevicePointer::new(to), (heads * queries * keys) as usize)?;
    let places = (0..heads)
        .flat_map(|head| (0..queries).flat_map(move |query| (0..keys).map(move |key| (head, query, key))));
    for (to, (head, query, key)) in to.iter_mut().zip(places) {
        *to = u8::from(pieces.keeps(head, query, key));
    }
    Ok(())
}
