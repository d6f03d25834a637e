//! Random numbers, drawn as PyTorch's CUDA generator draws them.
//!
//! Seed and offset come from device memory. Of `threads` subsequences, element *i* takes the word at `offset + i / threads` of
//! subsequence `i % threads`: that is what a grid of as many threads gets that draws four words at a time and steps through
//! the elements (`distribution_nullary_kernel`), so the numbers are PyTorch's, and each element is a function of its place
//! alone. The offset is a multiple of four.
//!
//! Numbers are drawn in f32 whatever the result's dtype; PyTorch draws f64 with twice as many bits.

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
        aten: None,
        doc,
        input_count: 2,
        scalars,
        sizes: Sizes::Count,
        rule: DTypeRule::Created,
        space: Space::Coordinates,
        outputs: &[OutputPlace::Row],
        build,
        from_result: None,
        examples: None,
    }
}

/// The words of the element at hand.
struct Words<'b> {
    builder: &'b BodyBuilder,
    seed: Value<'b>,
    subsequence: Value<'b>,
    position: Value<'b>,
}

impl<'b> Words<'b> {
    /// Takes seed and offset, and the number of threads.
    fn new(b: &'b BodyBuilder) -> Self {
        let [seed, offset] = [0; 2].map(|_| b.input(DType::I64));
        let threads = scalar(b, DType::I64);
        let element = b.index(Dimension::Row(0));
        let round = element / threads;
        Self { builder: b, seed, subsequence: element - round * threads, position: offset + round }
    }

    /// Returns the word at a position, as f32.
    fn at(&self, position: Value<'b>) -> Value<'b> {
        self.builder.random(self.seed, self.subsequence, position).to(DType::F32)
    }

    /// Returns a number in (0, 1], with cuRAND's rounding.
    fn uniform(&self) -> Value<'b> {
        part(self.at(self.position), 1.0)
    }

    /// Returns a normally distributed number: the sine or the cosine half of a Box-Muller pair.
    fn normal(&self) -> Value<'b> {
        let odd = self.position % 2;
        let first = self.position - odd;
        let radius = (-2.0 * part(self.at(first), 1.0).log()).sqrt();
        let angle = part(self.at(first + 1), std::f64::consts::TAU);
        radius * odd.eq(0).select(angle.sin(), angle.cos())
    }
}

/// Returns (word + ½) / 2³² of a whole, rounded once.
fn part(word: Value<'_>, whole: f64) -> Value<'_> {
    let unit = whole / f64::from(1u32 << 31) / 2.0;
    word.mul_add(word.like(unit), word.like(unit / 2.0))
}

/// Numbers in [low, high).
pub static UNIFORM: LoopOp =
    drawn("uniform", "Random numbers in [low, high).", &["threads", "low", "high"], |b, signature| {
        let words = Words::new(b);
        let [low, high] = [0; 2].map(|_| b.scalar(DType::F64).to(DType::F32));
        let result = signature.outputs[0];
        // Drawn from (low, high]; the upper bound, also one that rounding reaches, becomes the lower.
        let value = words.uniform().mul_add(high - low, low).to(result).to(result.compute());
        let bound = high.to(result).to(result.compute());
        b.output(value.eq(bound).select(low.to(value.dtype()), value), result, OutputPlace::Row);
    });

/// Normally distributed numbers.
pub static NORMAL: LoopOp = drawn(
    "normal",
    "Normally distributed random numbers.",
    &["threads", "mean", "deviation"],
    |b, signature| {
        let words = Words::new(b);
        let [mean, deviation] = [0; 2].map(|_| b.scalar(DType::F64).to(DType::F32));
        b.output(words.normal().mul_add(deviation, mean), signature.outputs[0], OutputPlace::Row);
    },
);

/// 1 with a probability, else 0.
pub static BERNOULLI: LoopOp =
    drawn("bernoulli", "1 with a probability, else 0.", &["threads", "probability"], |b, signature| {
        let words = Words::new(b);
        let probability = b.scalar(DType::F64).to(DType::F32);
        b.output(
            words.uniform().lt(probability).to(signature.compute),
            signature.outputs[0],
            OutputPlace::Row,
        );
    });

/// x where a draw of `probability` says so, over that probability, else 0; and what was kept.
pub static DROPOUT: LoopOp = LoopOp {
    input_count: 3,
    rule: DTypeRule::FloatingPoint,
    outputs: &[OutputPlace::Row, OutputPlace::Row],
    ..drawn(
        "dropout",
        "Elements that are kept with a probability, over it, else 0; and which were kept.",
        &["threads", "probability"],
        |b, signature| {
            let x = b.input(signature.inputs[0]).to(signature.compute);
            let words = Words::new(b);
            let probability = b.scalar(DType::F64);
            let kept = words.uniform().lt(probability.to(DType::F32));
            // In this order, and as a product, so that the gradient has the same bits at a gradient of x.
            let scaled = x * kept.to(x.dtype()) * (1.0 / probability).to(x.dtype());
            b.output(scaled, signature.outputs[0], OutputPlace::Row);
            b.output(kept, DType::Bool, OutputPlace::Row);
        },
    )
};

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
