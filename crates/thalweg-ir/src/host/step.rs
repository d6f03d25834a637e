//! The loops: one step over one block. Each loop is a function of slices and a closure, so that the compiler sees that the target
//! overlaps nothing, and vectorises it.

use std::cell::Cell;

use half::slice::HalfFloatSliceExt;

use super::arithmetic::{Bits, Float, Number};
use super::loops::{Map1, Map2, Map3, Operand, Shape, Spread, SumOf, Target};
use super::operand::{Cells, Source};
use super::processor::{has_fma, vectors};
use super::program::{HostStep, Pair as PairOfSteps, Place, Taken, Terms};
use super::register::{File, Lane};
use crate::Scalar;
use crate::body::{Binary, Unary};
use crate::complex::Pair;
use crate::elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};
use crate::{Category, DType, Scalar as Value, philox};

/// The registers, the inputs that they may be views of, and the number of elements of a block that are in use.
pub(super) struct Block<'f, 'a> {
    pub file: &'f mut File,
    pub inputs: &'f [Source<'a>],
    pub count: usize,
    /// The lines of the block and their length.
    pub shape: Shape,
    /// The output that the current step writes directly, instead of its register.
    pub direct: Option<Direct<'a>>,
}

/// The position of a block in an output.
#[derive(Clone, Copy)]
pub(super) struct Direct<'a> {
    pub cells: Cells<'a>,
    pub first: usize,
    /// The distance from one line to the next, if there are several.
    pub line: usize,
}

/// Evaluates an expression with `$f` bound to two of addition, subtraction and multiplication in sequence.
macro_rules! with_pair {
    ($pair:expr, $f:ident => $body:expr) => {{
        macro_rules! after {
            ($first:expr) => {
                match ($pair.second, $pair.place) {
                    (Binary::Mul, Place::Both) => {
                        let $f = |a: f32, b: f32, _: f32| {
                            let value = $first(a, b);
                            value * value
                        };
                        $body
                    }
                    (Binary::Add, Place::Left) => {
                        let $f = |a: f32, b: f32, c: f32| $first(a, b) + c;
                        $body
                    }
                    (Binary::Add, _) => {
                        let $f = |a: f32, b: f32, c: f32| c + $first(a, b);
                        $body
                    }
                    (Binary::Sub, Place::Left) => {
                        let $f = |a: f32, b: f32, c: f32| $first(a, b) - c;
                        $body
                    }
                    (Binary::Sub, _) => {
                        let $f = |a: f32, b: f32, c: f32| c - $first(a, b);
                        $body
                    }
                    (_, Place::Left) => {
                        let $f = |a: f32, b: f32, c: f32| $first(a, b) * c;
                        $body
                    }
                    _ => {
                        let $f = |a: f32, b: f32, c: f32| c * $first(a, b);
                        $body
                    }
                }
            };
        }
        match $pair.first {
            Binary::Add => after!(|a: f32, b: f32| a + b),
            Binary::Sub => after!(|a: f32, b: f32| a - b),
            _ => after!(|a: f32, b: f32| a * b),
        }
    }};
}

impl Block<'_, '_> {
    /// Fills the target of a step, or the output that replaces it, with a function that may read registers other than the target.
    #[inline(always)]
    fn fill_target<T: Lane>(&mut self, step: &HostStep, fill: impl FnOnce(&File, Target<'_, T>)) {
        let shape = self.shape;
        if let Some(Direct { cells, first, line }) = self.direct {
            let cells = &T::cells(&cells).expect("operands were checked against the program")[first..];
            return fill(self.file, Target { cells, line, shape });
        }
        let mut data = self.file.take::<T>(step.target);
        let cells = Cell::from_mut(&mut data[..self.count]).as_slice_of_cells();
        fill(self.file, Target { cells, line: shape.length, shape });
        self.file.put(step.target, data);
    }

    /// Computes target = f(a).
    #[inline(always)]
    fn map1<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A) -> T) {
        let (inputs, shape) = (self.inputs, self.shape);
        self.fill_target(step, |file, target: Target<'_, T>| {
            let a = &file.operand(inputs, step.operands[0], shape);
            vectors(Map1 { target, a, f });
        });
    }

    /// Computes target = f(a, b).
    #[inline(always)]
    fn map2<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A, A) -> T) {
        let (inputs, shape) = (self.inputs, self.shape);
        self.fill_target(step, |file, target: Target<'_, T>| {
            let a = &file.operand(inputs, step.operands[0], shape);
            let b = &file.operand(inputs, step.operands[1], shape);
            vectors(Map2 { target, a, b, f });
        });
    }

    /// Computes target = a / b of integers. Division by one is common (a stride, a dilation), and testing for it costs little
    /// compared with the divisions.
    fn divide<T: Bits>(&mut self, step: &HostStep) {
        let divisors = self.file.read::<T>(self.inputs, step.operands[1], self.count);
        if divisors.iter().all(|&divisor| divisor == T::ONE) {
            return self.map1(step, |a: T| a);
        }
        self.map2(step, T::div);
    }

    /// Computes target = aᵇ. A single power for all elements is common (an optimizer's decay to the power of the number of
    /// steps), and testing for it costs little compared with the powers.
    fn pow<T: Float>(&mut self, step: &HostStep) {
        let [bases, exponents] =
            [0, 1].map(|operand| self.file.read::<T>(self.inputs, step.operands[operand], self.count));
        match (bases.first(), exponents.first()) {
            (Some(&base), Some(&exponent))
                if bases.iter().all(|&a| a == base)
                    && exponents.iter().all(|&b| b == exponent)
                    && base != T::ZERO =>
            {
                let power = base.pow(exponent);
                self.map1(step, |_: T| power);
            }
            _ => self.map2(step, T::pow),
        }
    }

    /// Computes target = f(a, b, c).
    #[inline(always)]
    fn map3<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A, T, T) -> T) {
        let (inputs, shape) = (self.inputs, self.shape);
        self.fill_target(step, |file, target: Target<'_, T>| {
            let a = &file.operand(inputs, step.operands[0], shape);
            let b = &file.operand(inputs, step.operands[1], shape);
            let c = &file.operand(inputs, step.operands[2], shape);
            vectors(Map3 { target, a, b, c, f });
        });
    }

    /// Fills a register.
    pub fn fill<T: Lane>(&mut self, register: u16, value: T) {
        self.file.write(register, self.count, |_, target: &mut [T]| target.fill(value));
    }

    /// Fills the target of a step with a number.
    pub fn fill_scalar(&mut self, step: &HostStep, value: Value) {
        with_dtype!(step.dtype,
            bool => self.fill(step.target, u8::from(value.to_f64() != 0.0)),
            integer T => self.fill(step.target, value.to_i64() as T),
            reduced T => self.fill(step.target, T::from_f32(value.to_f64() as f32)),
            float T => self.fill(step.target, value.to_f64() as T),
            complex T => self.fill(step.target, T::of(value.to_f64(), 0.0)),
        );
    }

    pub fn unary(&mut self, op: Unary, step: &HostStep) {
        with_dtype!(step.dtype,
            bool => self.map1(step, |a: u8| a ^ 1),
            integer T => self.unary_integer::<T>(op, step),
            reduced T => unreachable!("arithmetic is done in compute types"),
            float T => self.unary_float::<T>(op, step),
            complex T => match op {
                Unary::Neg => self.map1(step, |a: T| -a),
                Unary::Conj => self.map1(step, |a: T| a.conj()),
                _ => unreachable!("bodies are checked when they are compiled"),
            },
        );
    }

    fn unary_integer<T: Number>(&mut self, op: Unary, step: &HostStep) {
        match op {
            Unary::Neg => self.map1(step, T::neg),
            Unary::Abs => self.map1(step, T::abs),
            _ => unreachable!("bodies are checked when they are compiled"),
        }
    }

    fn unary_float<T: Float>(&mut self, op: Unary, step: &HostStep) {
        match op {
            Unary::Neg => self.map1(step, T::neg),
            Unary::Abs => self.map1(step, T::abs),
            Unary::Sqrt => self.map1(step, T::sqrt),
            Unary::Floor => self.map1(step, T::floor),
            Unary::Ceil => self.map1(step, T::ceil),
            Unary::Trunc => self.map1(step, T::trunc),
            Unary::Round => self.map1(step, T::round),
            Unary::Not | Unary::Conj => unreachable!("bodies are checked when they are compiled"),
            Unary::Exp => self.map1(step, T::exp),
            Unary::Log => self.map1(step, T::ln),
            Unary::Tanh => self.map1(step, T::tanh),
            Unary::Erf => self.map1(step, T::erf),
            other => self.map1(step, T::function(other).expect("the others are functions")),
        }
    }

    pub fn binary(&mut self, op: Binary, step: &HostStep) {
        with_dtype!(step.dtype,
            bool => self.binary_integer::<u8>(op, step),
            integer T => self.binary_integer::<T>(op, step),
            reduced T => unreachable!("arithmetic is done in compute types"),
            float T => self.binary_float::<T>(op, step),
            complex T => match op {
                Binary::Add => self.map2(step, |a: T, b: T| a + b),
                Binary::Sub => self.map2(step, |a: T, b: T| a - b),
                Binary::Mul => self.map2(step, |a: T, b: T| a * b),
                Binary::Div => self.map2(step, T::over),
                Binary::Equal => self.map2(step, |a: T, b: T| u8::from(a == b)),
                _ => unreachable!("bodies are checked when they are compiled"),
            },
        );
    }

    fn binary_integer<T: Bits>(&mut self, op: Binary, step: &HostStep) {
        match op {
            Binary::And => self.map2(step, T::and),
            Binary::Or => self.map2(step, T::or),
            Binary::Xor => self.map2(step, T::xor),
            Binary::Div => self.divide::<T>(step),
            Binary::Pow | Binary::Atan2 => unreachable!("bodies are checked when they are compiled"),
            other => self.binary_number::<T>(other, step),
        }
    }

    fn binary_float<T: Float>(&mut self, op: Binary, step: &HostStep) {
        match op {
            Binary::Pow => self.pow::<T>(step),
            Binary::Atan2 => self.map2(step, T::atan2),
            Binary::And | Binary::Or | Binary::Xor => {
                unreachable!("bodies are checked when they are compiled")
            }
            other => self.binary_number::<T>(other, step),
        }
    }

    fn binary_number<T: Number>(&mut self, op: Binary, step: &HostStep) {
        match op {
            Binary::Add => self.map2(step, T::add),
            Binary::Sub => self.map2(step, T::sub),
            Binary::Mul => self.map2(step, T::mul),
            Binary::Div => self.map2(step, T::div),
            Binary::Rem => self.map2(step, T::rem),
            Binary::Max => self.map2(step, T::greater),
            Binary::Min => self.map2(step, T::smaller),
            Binary::Equal => self.map2(step, |a: T, b: T| u8::from(a == b)),
            Binary::Less => self.map2(step, |a: T, b: T| u8::from(a < b)),
            Binary::LessEqual => self.map2(step, |a: T, b: T| u8::from(a <= b)),
            Binary::Pow | Binary::Atan2 | Binary::And | Binary::Or | Binary::Xor => {
                unreachable!("these are not defined for every number")
            }
        }
    }

    /// Computes two of addition, subtraction and multiplication in sequence.
    pub fn pair(&mut self, pair: PairOfSteps, step: &HostStep) {
        with_pair!(pair, f => self.map3(step, f));
    }

    /// Computes the terms of a sum.
    pub fn terms(&mut self, terms: Terms, step: &HostStep) {
        match terms {
            Terms::Binary(op) => self.binary_number::<f32>(op, step),
            Terms::Pair(pair) => self.pair(pair, step),
        }
    }

    /// Adds the terms of a sum to accumulators. Each line has `lanes` of them, which are used in turn, beginning with lane
    /// `lane`.
    pub fn add_terms(
        &self,
        (terms, step): (Terms, &HostStep),
        accumulators: &mut [f32],
        (lanes, lane): (usize, usize),
    ) {
        let (inputs, shape) = (self.inputs, self.shape);
        let [first, second, third] = step.operands;
        let third = if matches!(terms, Terms::Pair(_)) { third } else { second };
        let a = &self.file.operand(inputs, first, shape);
        let b = &self.file.operand(inputs, second, shape);
        let c = &self.file.operand(inputs, third, shape);
        let length = shape.length;
        macro_rules! sum {
            ($f:expr) => {
                vectors(SumOf { accumulators, lanes, lane, a, b, c, length, f: $f })
            };
        }
        match terms {
            Terms::Binary(Binary::Add) => sum!(|a, b, _| a + b),
            Terms::Binary(Binary::Sub) => sum!(|a, b, _| a - b),
            Terms::Binary(_) => sum!(|a, b, _| a * b),
            Terms::Pair(pair) => with_pair!(pair, f => sum!(f)),
        }
    }

    pub fn fma(&mut self, step: &HostStep) {
        if step.dtype == DType::F32 && has_fma() {
            return self.map3(step, f32::mul_add);
        }
        with_dtype!(step.dtype,
            bool => unreachable!("bodies are checked when they are compiled"),
            integer T => self.map3(step, <T as Number>::fma),
            reduced T => unreachable!("arithmetic is done in compute types"),
            float T => self.map3(step, <T as Number>::fma),
        );
    }

    pub fn random(&mut self, step: &HostStep) {
        self.map3(step, |seed: i64, subsequence: i64, position: i64| {
            i64::from(philox::word(seed as u64, subsequence as u64, position as u64))
        });
    }

    /// Repeats each element `places` times, beginning with row `first`. With `pieces`, a target whose readers allow it receives one
    /// piece per row, which is repeated along the row.
    pub fn spread(&mut self, step: &HostStep, first: usize, places: usize, pieces: bool) {
        let (inputs, count) = (self.inputs, self.count);
        let operand = step.operands[0];
        with_dtype!(step.dtype, T => match step.readers {
            Taken::ByPiece if pieces => self.file.repeat(step.target, count, |file, row| {
                file.read::<T>(inputs, operand, first + count)[first + row]
            }),
            _ => self.file.write(step.target, count * places, |file, target: &mut [T]| {
                let values = &file.read::<T>(inputs, operand, first + count)[first..];
                vectors(Spread { target, values, places });
            }),
        });
    }

    pub fn select(&mut self, step: &HostStep) {
        with_dtype!(step.dtype, T => {
            self.map3(step, |condition: u8, yes: T, no: T| if condition != 0 { yes } else { no });
        });
    }

    pub fn cast(&mut self, to: DType, step: &HostStep) {
        /// The casts of one type to every type; a cast to a 16-bit float starts from f32.
        macro_rules! cast_from {
            ($from:ident) => {
                with_dtype!(to,
                    bool => self.map1(step, |a: $from| u8::from(a != <$from as Number>::ZERO)),
                    integer T => self.map1(step, |a: $from| a as T),
                    reduced T => self.round::<T>(step),
                    float T => self.map1(step, |a: $from| a as T),
                    complex T => self.map1(step, |a: $from| T::of(a as f64, 0.0)),
                )
            };
        }
        with_dtype!(step.dtype,
            bool => cast_from!(u8),
            integer A => cast_from!(A),
            reduced A => self.extend::<A>(to, step),
            float A => cast_from!(A),
            complex A => match to {
                DType::Bool => self.map1(step, |a: A| u8::from(a.parts() != [0.0; 2])),
                DType::F32 => self.map1(step, |a: A| a.parts()[0] as f32),
                DType::F64 => self.map1(step, |a: A| a.parts()[0]),
                DType::C64 => self.map1(step, |a: A| c64::of(a.parts()[0], a.parts()[1])),
                _ => self.map1(step, |a: A| c128::of(a.parts()[0], a.parts()[1])),
            },
        );
    }

    /// Extends a float of 8 or 16 bits to f32; a cast to its own type copies.
    fn extend<H: Lane + Reduced>(&mut self, to: DType, step: &HostStep) {
        if to != DType::F32 {
            return self.map1(step, |a: H| a);
        }
        self.convert(step, H::extend);
    }

    /// Rounds an f32 to a float of 8 or 16 bits.
    fn round<H: Lane + Reduced>(&mut self, step: &HostStep) {
        self.convert(step, H::round);
    }

    /// Converts elements line by line.
    fn convert<A: Lane, T: Lane>(&mut self, step: &HostStep, convert: impl Fn(&[A], &[Cell<T>])) {
        let (inputs, shape) = (self.inputs, self.shape);
        self.fill_target(step, |file, target: Target<'_, T>| {
            let a = file.operand(inputs, step.operands[0], shape);
            (0..shape.lines).for_each(|line| convert(a.line(line, shape.length), target.line(line)));
        });
    }
}

/// A float without arithmetic of its own, converted many at a time.
trait Reduced: Sized {
    /// Writes the values as f32.
    fn extend(values: &[Self], target: &[Cell<f32>]);

    /// Writes the nearest value of this type to each f32.
    fn round(values: &[f32], target: &[Cell<Self>]);
}

/// The number of values that are passed to the CPU's conversions at a time.
const CONVERTED: usize = 256;

/// Uses the CPU's conversions of several values at once, which write slices.
impl Reduced for f16 {
    fn extend(values: &[Self], target: &[Cell<f32>]) {
        let mut converted = [0.0; CONVERTED];
        for (target, values) in target.chunks(CONVERTED).zip(values.chunks(CONVERTED)) {
            let converted = &mut converted[..values.len()];
            values.convert_to_f32_slice(converted);
            target.iter().zip(converted).for_each(|(target, value)| target.set(*value));
        }
    }

    fn round(values: &[f32], target: &[Cell<Self>]) {
        let mut converted = [Self::ZERO; CONVERTED];
        for (target, values) in target.chunks(CONVERTED).zip(values.chunks(CONVERTED)) {
            let converted = &mut converted[..values.len()];
            converted.convert_from_f32_slice(values);
            target.iter().zip(converted).for_each(|(target, value)| target.set(*value));
        }
    }
}

/// Implements `Reduced` by converting one value after the other.
macro_rules! reduced_by_one {
    ($($type:ident)*) => {$(
        impl Reduced for $type {
            fn extend(values: &[Self], target: &[Cell<f32>]) {
                target.iter().zip(values).for_each(|(target, value)| target.set(value.to_f32()));
            }

            fn round(values: &[f32], target: &[Cell<Self>]) {
                target.iter().zip(values).for_each(|(target, &value)| target.set(Self::from_f32(value)));
            }
        }
    )*};
}

/// Returns cells as the target of a loop.
fn line<T>(cells: &[Cell<T>]) -> Target<'_, T> {
    Target { cells, line: cells.len(), shape: Shape { lines: 1, length: cells.len() } }
}

impl Reduced for bf16 {
    fn extend(values: &[Self], target: &[Cell<f32>]) {
        vectors(Map1 { target: line(target), a: &Operand::new(values, values.len()), f: extend_bf16 });
    }

    fn round(values: &[f32], target: &[Cell<Self>]) {
        vectors(Map1 { target: line(target), a: &Operand::new(values, values.len()), f: round_bf16 });
    }
}

/// Returns a value as f32: its bits are the upper half; a NaN becomes quiet.
#[inline(always)]
fn extend_bf16(value: bf16) -> f32 {
    let bits = u32::from(value.to_bits());
    let quiet = if bits & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits((bits | quiet) << 16)
}

/// Returns the nearest value, ties to even; a NaN becomes quiet.
#[inline(always)]
fn round_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { bits >> 16 | 0x40 } else { rounded } as u16)
}

reduced_by_one! { f8e4m3 f8e5m2 }

/// Returns the number that an argument's bits represent.
pub(super) fn argument(dtype: DType, bits: u64) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(bits != 0),
        Category::Integer => Scalar::I64(bits as i64),
        Category::FloatingPoint | Category::Complex => Scalar::F64(f64::from_bits(bits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brain_floats_are_extended_and_rounded_as_by_their_library() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            assert_eq!(extend_bf16(value).to_bits(), value.to_f32().to_bits(), "{bits:#x}");
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(bits) << 16 | low);
                assert_eq!(round_bf16(value).to_bits(), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }
}
