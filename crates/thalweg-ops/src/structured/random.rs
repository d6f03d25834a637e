//! Random numbers, one word of a generator each; `thalweg_kernels::random` says which word of a device's generator is whose.

use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Sizes, Space, scalar};

const fn drawn(
    name: &'static str,
    doc: &'static str,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        name,
        doc,
        input_count: 2,
        scalars,
        sizes: Sizes::Extents(1),
        rule: DTypeRule::Created,
        space: Space::Coordinates,
        build,
        ..LoopOp::BASE
    }
}

/// 1 with a probability, else 0.
pub static BERNOULLI: LoopOp =
    drawn("bernoulli", "1 with a probability, else 0.", &["threads", "probability"], |b, signature| {
        let [seed, offset] = [0; 2].map(|_| b.input(DType::I64));
        let threads = scalar(b, DType::I64);
        let element = b.index(Dimension::Row(0));
        let round = element / threads;
        let word = b.random(seed, element - round * threads, offset + round).to(DType::F32);
        // A number in (0, 1], with cuRAND's rounding.
        let unit = f64::from(1u32 << 31).recip() / 2.0;
        let drawn = word.mul_add(word.like(unit), word.like(unit / 2.0));
        let kept = drawn.lt(b.scalar(DType::F64).to(DType::F32));
        b.output(kept.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    });

const fn sequence(
    name: &'static str,
    doc: &'static str,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp { input_count: 0, ..drawn(name, doc, scalars, build) }
}

/// The words of a seed in one sequence, which a program on the host goes through.
struct Sequence<'b> {
    builder: &'b BodyBuilder,
    seed: Value<'b>,
    position: Value<'b>,
}

impl<'b> Sequence<'b> {
    /// Takes the seed, and the position of the first word.
    fn new(builder: &'b BodyBuilder) -> Self {
        let [seed, position] = [0; 2].map(|_| builder.scalar(DType::I64));
        Self { builder, seed, position }
    }

    /// Returns a number in [0, 1): the upper 24 bits of the word so many behind the first.
    fn fraction(&self, place: Value<'b>) -> Value<'b> {
        let word = self.builder.random(self.seed, self.seed.like(0), self.position + place);
        (word / 256).to(DType::F32) * f64::from(1 << 24).recip()
    }
}

/// Numbers in [low, high) from a sequence: one word each.
pub static SEQUENCE_UNIFORM: LoopOp = sequence(
    "sequence_uniform",
    "Random numbers in [low, high), from a generator of the host.",
    &["seed", "position", "low", "high"],
    |b, signature| {
        let words = Sequence::new(b);
        let [low, high] = [0; 2].map(|_| b.scalar(DType::F64).to(DType::F32));
        let value = low + (high - low) * words.fraction(b.index(Dimension::Row(0)));
        b.output(value, signature.outputs[0], OutputPlace::Row);
    },
);

/// Normally distributed numbers from a sequence: two words each, the cosine half of a Box-Muller pair.
pub static SEQUENCE_NORMAL: LoopOp = sequence(
    "sequence_normal",
    "Normally distributed random numbers, from a generator of the host.",
    &["seed", "position", "mean", "deviation"],
    |b, signature| {
        let words = Sequence::new(b);
        let [mean, deviation] = [0; 2].map(|_| b.scalar(DType::F64).to(DType::F32));
        let first = b.index(Dimension::Row(0)) * 2;
        let radius = (-2.0 * (1.0 - words.fraction(first)).log()).sqrt();
        let angle = words.fraction(first + 1) * std::f64::consts::TAU;
        b.output(mean + deviation * (radius * angle.cos()), signature.outputs[0], OutputPlace::Row);
    },
);
