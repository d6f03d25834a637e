//! Random numbers, one word of a generator each; `thalweg_kernels::random` defines which element uses which word of a device's
//! generator.

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

/// The words of a device's generator for the element at a point.
struct Words<'b> {
    builder: &'b BodyBuilder,
    seed: Value<'b>,
    subsequence: Value<'b>,
    position: Value<'b>,
}

impl<'b> Words<'b> {
    /// Loads seed and offset, and the number of threads.
    fn new(builder: &'b BodyBuilder) -> Self {
        let [seed, offset] = [0; 2].map(|_| builder.input(DType::I64));
        let threads = scalar(builder, DType::I64);
        let element = builder.index(Dimension::Row(0));
        let round = element / threads;
        Self { builder, seed, subsequence: element - round * threads, position: offset + round }
    }

    /// Returns a number in (0, 1] from a word, with cuRAND's rounding.
    fn unit(&self, position: Value<'b>) -> Value<'b> {
        let word = self.builder.random(self.seed, self.subsequence, position).to(DType::F32);
        let unit = f64::from(1u32 << 31).recip() / 2.0;
        word.mul_add(word.like(unit), word.like(unit / 2.0))
    }

    /// Returns a number in [0, 1) from a word, as `uniform_` draws it.
    fn fraction(&self, position: Value<'b>) -> Value<'b> {
        let unit = self.unit(position);
        unit.ge(1.0).select(unit.like(0.0), unit)
    }

    /// Returns the logarithm of a number in (0, 1), in the dtype in which numbers of the result's dtype are computed, as PyTorch's kernels for GPUs do. It is at most −2⁻²⁴, so
    /// it is not 0 in any dtype.
    fn log_open(&self, signature: &Signature) -> Value<'b> {
        let (unit, least) = (self.unit(self.position), f64::from(1u32 << 24).recip());
        let logarithm = unit.to(wide(signature)).log();
        unit.ge(1.0 - least).select(logarithm.like(-least), logarithm)
    }
}

/// Returns the dtype in which numbers of the result's dtype are computed.
fn wide(signature: &Signature) -> DType {
    if signature.outputs[0] == DType::F64 { DType::F64 } else { DType::F32 }
}

/// 1 with a probability, else 0.
pub static BERNOULLI: LoopOp =
    drawn("bernoulli", "1 with a probability, else 0.", &["threads", "probability"], |b, signature| {
        let words = Words::new(b);
        let kept = words.unit(words.position).lt(b.scalar(DType::F64).to(DType::F32));
        b.output(kept.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    });

/// Numbers with an exponential distribution: −ln u / lambd.
pub static EXPONENTIAL: LoopOp = drawn(
    "exponential",
    "Numbers of an exponential distribution, of which the factor is the negative mean.",
    &["threads", "factor"],
    |b, signature| {
        let logarithm = Words::new(b).log_open(signature);
        let drawn = logarithm * b.scalar(DType::F64).to(logarithm.dtype());
        b.output(drawn.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    },
);

/// Numbers of trials up to the first success: ⌈ln u / ln (1 − p)⌉.
pub static GEOMETRIC: LoopOp = drawn(
    "geometric",
    "Numbers of trials up to the first success, where the factor is the reciprocal of ln (1 − p).",
    &["threads", "factor"],
    |b, signature| {
        let logarithm = Words::new(b).log_open(signature);
        let drawn = (logarithm * b.scalar(DType::F64).to(logarithm.dtype())).ceil();
        b.output(drawn.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    },
);

/// Numbers with a Cauchy distribution: median + sigma · tan (π (u − ½)).
pub static CAUCHY: LoopOp =
    drawn("cauchy", "Numbers of a Cauchy distribution.", &["threads", "median", "sigma"], |b, signature| {
        let words = Words::new(b);
        // At both ends the tangent is infinite.
        let (unit, least) = (words.unit(words.position), f64::from(1u32 << 23).recip());
        let unit = unit.ge(1.0 - least).select(unit.like(1.0 - least), unit);
        let number = unit.ge(least).select(unit, unit.like(least)).to(wide(signature));
        let [median, sigma] = [0; 2].map(|_| b.scalar(DType::F64).to(number.dtype()));
        let drawn = ((number - 0.5) * std::f64::consts::PI).tan() * sigma + median;
        b.output(drawn.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    });

/// Integers of a range that begins at `low`: remainders of 63-bit numbers, which consist of three draws of 21 bits each.
pub static INTEGERS: LoopOp = drawn(
    "integers",
    "Integers of a range, from three draws that are so many words apart.",
    &["threads", "words", "range", "low"],
    |b, signature| {
        let words = Words::new(b);
        let [apart, range, low] = [0; 3].map(|_| scalar(b, DType::I64));
        let part = |draw: i64| {
            // A number in [0, 1) of f32 has 24 bits.
            let number = words.fraction(words.position + apart * draw);
            (number * f64::from(1 << 21)).floor().to(DType::I64)
        };
        let bits = (part(0) * (1i64 << 21) + part(1)) * (1i64 << 21) + part(2);
        let drawn = bits - bits / range * range + low;
        b.output(drawn.to(signature.compute), signature.outputs[0], OutputPlace::Row);
    },
);

const fn sequence(
    name: &'static str,
    doc: &'static str,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp { input_count: 0, ..drawn(name, doc, scalars, build) }
}

/// The words of a seed as one sequence, which a program on the host uses in order.
struct Sequence<'b> {
    builder: &'b BodyBuilder,
    seed: Value<'b>,
    position: Value<'b>,
}

impl<'b> Sequence<'b> {
    /// Loads the seed, and the position of the first word.
    fn new(builder: &'b BodyBuilder) -> Self {
        let [seed, position] = [0; 2].map(|_| builder.scalar(DType::I64));
        Self { builder, seed, position }
    }

    /// Returns a number in [0, 1): the upper 24 bits of the word `place` words after the first.
    fn fraction(&self, place: Value<'b>) -> Value<'b> {
        let word = self.builder.random(self.seed, self.seed.like(0), self.position + place);
        (word / 256).to(DType::F32) * f64::from(1 << 24).recip()
    }
}

/// Numbers in [low, high) from a sequence, one word each.
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

/// Normally distributed numbers from a sequence, two words each: the cosine half of a Box-Muller pair.
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
