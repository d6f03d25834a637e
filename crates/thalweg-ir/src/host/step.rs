//! The loops: one step over one block. Each loop is a function of slices and a closure, so that the compiler sees that the
//! target overlaps nothing, and vectorises it.

use std::cell::Cell;

use half::slice::HalfFloatSliceExt;

use super::arithmetic::{Bits, Float, Number};
use super::loops::{Accumulate, AccumulateRounds, Map1, Map2, Map3, Spread, Store, TILE, Trees};
use super::operand::{Cells, Source};
use super::program::{HostStep, Pair as PairOfSteps, Place};
use super::register::{File, Lane};
use super::vectors::{Loop as _, has_fma, vectors};
use crate::Scalar;
use crate::body::{Binary, ReduceOp, Unary};
use crate::complex::Pair;
use crate::elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};
use crate::kernel::RUN;
use crate::{Category, DType, Scalar as Value, philox};

/// The registers, the inputs that they may be views of, and how many elements of a block are in use.
pub(super) struct Block<'f, 'a> {
    pub file: &'f mut File,
    pub inputs: &'f [Source<'a>],
    pub count: usize,
    /// The output that the step at hand writes in place of its register, with the element that it begins at.
    pub direct: Option<(Cells<'a>, usize)>,
}

impl Block<'_, '_> {
    /// Fills the target of a step, or the output that it writes in its place, by a function that may read registers, never the target.
    #[inline(always)]
    fn fill_target<T: Lane>(&mut self, step: &HostStep, fill: impl FnOnce(&File, &[Cell<T>])) {
        let (direct, count) = (self.direct, self.count);
        let mut data = if direct.is_none() { self.file.take::<T>(step.target) } else { Vec::new() };
        let target = match &direct {
            Some((cells, first)) => {
                let cells = T::cells(cells).expect("operands were checked against the program");
                &cells[*first..*first + count]
            }
            None => Cell::from_mut(&mut data[..count]).as_slice_of_cells(),
        };
        fill(self.file, target);
        if direct.is_none() {
            self.file.put(step.target, data);
        }
    }

    /// Computes target = f(a).
    #[inline(always)]
    fn map1<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A) -> T) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<T>]| {
            let a = file.read::<A>(inputs, step.operands[0], count);
            vectors(Map1 { target, a, f });
        });
    }

    /// Computes target = f(a, b).
    #[inline(always)]
    fn map2<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A, A) -> T) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<T>]| {
            let a = file.read::<A>(inputs, step.operands[0], count);
            let b = file.read::<A>(inputs, step.operands[1], count);
            vectors(Map2 { target, a, b, f });
        });
    }

    /// Computes target = a / b of integers. Dividing by one is common (a stride, a dilation), and a pass that finds it costs a
    /// small part of what the divisions would.
    fn divide<T: Bits>(&mut self, step: &HostStep) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<T>]| {
            let a = file.read::<T>(inputs, step.operands[0], count);
            let b = file.read::<T>(inputs, step.operands[1], count);
            if b.iter().all(|&b| b == T::ONE) {
                return vectors(Store { cells: target, values: a });
            }
            for ((target, &a), &b) in target.iter().zip(a).zip(b) {
                target.set(a.div(b));
            }
        });
    }

    /// Computes target = aᵇ. One power for all elements is common (an optimizer's decay to the number of the step), and a pass that finds
    /// it costs a small part of what the powers would.
    fn pow<T: Float>(&mut self, step: &HostStep) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<T>]| {
            let a = file.read::<T>(inputs, step.operands[0], count);
            let b = file.read::<T>(inputs, step.operands[1], count);
            match (a.first(), b.first()) {
                (Some(&first), Some(&exponent))
                    if a.iter().all(|&a| a == first)
                        && b.iter().all(|&b| b == exponent)
                        && first != T::ZERO =>
                {
                    let power = first.pow(exponent);
                    target.iter().for_each(|target| target.set(power));
                }
                _ => vectors(Map2 { target, a, b, f: T::pow }),
            }
        });
    }

    /// Computes target = f(a, b, c).
    #[inline(always)]
    fn map3<A: Lane, T: Lane>(&mut self, step: &HostStep, f: impl Fn(A, T, T) -> T) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<T>]| {
            let a = file.read::<A>(inputs, step.operands[0], count);
            let b = file.read::<T>(inputs, step.operands[1], count);
            let c = file.read::<T>(inputs, step.operands[2], count);
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

    /// Computes two of addition, subtraction and multiplication, one after the other.
    pub fn pair(&mut self, PairOfSteps { first, second, place }: PairOfSteps, step: &HostStep) {
        macro_rules! after {
            ($first:expr) => {
                match (second, place) {
                    (Binary::Mul, Place::Both) => self.map3(step, |a: f32, b: f32, _| {
                        let value = $first(a, b);
                        value * value
                    }),
                    (Binary::Add, Place::Left) => self.map3(step, |a: f32, b, c: f32| $first(a, b) + c),
                    (Binary::Add, _) => self.map3(step, |a: f32, b, c: f32| c + $first(a, b)),
                    (Binary::Sub, Place::Left) => self.map3(step, |a: f32, b, c: f32| $first(a, b) - c),
                    (Binary::Sub, _) => self.map3(step, |a: f32, b, c: f32| c - $first(a, b)),
                    (_, Place::Left) => self.map3(step, |a: f32, b, c: f32| $first(a, b) * c),
                    _ => self.map3(step, |a: f32, b, c: f32| c * $first(a, b)),
                }
            };
        }
        match first {
            Binary::Add => after!(|a: f32, b: f32| a + b),
            Binary::Sub => after!(|a: f32, b: f32| a - b),
            _ => after!(|a: f32, b: f32| a * b),
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

    /// Puts each element at so many places, one element after the other.
    pub fn spread(&mut self, step: &HostStep, places: usize) {
        let (inputs, count) = (self.inputs, self.count);
        with_dtype!(step.dtype, T => self.file.write(step.target, count * places, |file, target: &mut [T]| {
            let values = file.read::<T>(inputs, step.operands[0], count);
            vectors(Spread { target, values, places });
        }));
    }

    pub fn select(&mut self, step: &HostStep) {
        with_dtype!(step.dtype, T => {
            self.map3(step, |condition: u8, yes: T, no: T| if condition != 0 { yes } else { no });
        });
    }

    pub fn cast(&mut self, to: DType, step: &HostStep) {
        /// The casts of one type to every type; one that is rounded to a 16-bit float is an f32.
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

    /// Extends a float of 8 or 16 bits to an f32; a cast to its own type copies.
    fn extend<H: Lane + Reduced>(&mut self, to: DType, step: &HostStep) {
        if to != DType::F32 {
            return self.map1(step, |a: H| a);
        }
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<f32>]| {
            H::extend(file.read(inputs, step.operands[0], count), target);
        });
    }

    /// Rounds an f32 to a float of 8 or 16 bits.
    fn round<H: Lane + Reduced>(&mut self, step: &HostStep) {
        let (inputs, count) = (self.inputs, self.count);
        self.fill_target(step, |file, target: &[Cell<H>]| {
            H::round(file.read(inputs, step.operands[0], count), target);
        });
    }
}

/// A float without arithmetic of its own, many at a time.
trait Reduced: Sized {
    /// Writes the values as f32.
    fn extend(values: &[Self], target: &[Cell<f32>]);

    /// Writes the values that are nearest to f32.
    fn round(values: &[f32], target: &[Cell<Self>]);
}

/// The number of values that the conversions of the CPU get at a time.
const CONVERTED: usize = 256;

/// With the conversions of several at once that the CPU has, which write slices.
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

/// One after the other.
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

impl Reduced for bf16 {
    fn extend(values: &[Self], target: &[Cell<f32>]) {
        vectors(Map1 { target, a: values, f: extend_bf16 });
    }

    fn round(values: &[f32], target: &[Cell<Self>]) {
        vectors(Map1 { target, a: values, f: round_bf16 });
    }
}

/// Returns a value as f32: its bits come first; a NaN is made quiet.
#[inline(always)]
fn extend_bf16(value: bf16) -> f32 {
    let bits = u32::from(value.to_bits());
    let quiet = if bits & 0x7fff > 0x7f80 { 0x40 } else { 0 };
    f32::from_bits((bits | quiet) << 16)
}

/// Returns the nearest value, the even one of two; a NaN is made quiet.
#[inline(always)]
fn round_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { bits >> 16 | 0x40 } else { rounded } as u16)
}

reduced_by_one! { f8e4m3 f8e5m2 }

/// Returns the value that a reduction starts with.
fn neutral<T: Number>(op: ReduceOp) -> T {
    match op {
        ReduceOp::Sum => T::ZERO,
        ReduceOp::Product => T::ONE,
        ReduceOp::Max => T::LOWEST,
        ReduceOp::Min => T::HIGHEST,
    }
}

/// Computes accumulators = op(accumulators, values), element by element.
fn combine<T: Number>(op: ReduceOp, accumulators: &mut [T], values: &[T]) {
    #[inline(always)]
    fn each<T: Number>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
        // A few elements are not worth the choice.
        if values.len() < 32 {
            return Accumulate { accumulators, values, f }.call();
        }
        vectors(Accumulate { accumulators, values, f });
    }
    match op {
        ReduceOp::Sum => each(accumulators, values, T::add),
        ReduceOp::Product => each(accumulators, values, T::mul),
        ReduceOp::Max => each(accumulators, values, T::greater),
        ReduceOp::Min => each(accumulators, values, T::smaller),
    }
}

/// Computes accumulators = op(accumulators, values) for values that are whole rounds of all lanes, as many lanes at a time as stay
/// in registers of the processor.
fn combine_rounds<T: Number>(op: ReduceOp, accumulators: &mut [T], values: &[T]) {
    #[inline(always)]
    fn rounds<T: Number>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
        vectors(AccumulateRounds { accumulators, values, f });
    }
    match op {
        ReduceOp::Sum => rounds(accumulators, values, T::add),
        ReduceOp::Product => rounds(accumulators, values, T::mul),
        ReduceOp::Max => rounds(accumulators, values, T::greater),
        ReduceOp::Min => rounds(accumulators, values, T::smaller),
    }
}

/// Combines every `lanes` neighbours, a power of two of them, as a tree, neighbours first. The results come first.
fn combine_trees<T: Number>(op: ReduceOp, values: &mut [T], lanes: usize) {
    #[inline(always)]
    fn each<T: Number>((values, lanes): (&mut [T], usize), f: impl Fn(T, T) -> T) {
        vectors(Trees { values, lanes, f });
    }
    let values = (values, lanes);
    match op {
        ReduceOp::Sum => each(values, T::add),
        ReduceOp::Product => each(values, T::mul),
        ReduceOp::Max => each(values, T::greater),
        ReduceOp::Min => each(values, T::smaller),
    }
}

/// Returns op(… op(accumulator, first value) …, last value).
fn fold<T: Number>(op: ReduceOp, accumulator: T, values: &[T]) -> T {
    let values = values.iter().copied();
    match op {
        ReduceOp::Sum => values.fold(accumulator, T::add),
        ReduceOp::Product => values.fold(accumulator, T::mul),
        ReduceOp::Max => values.fold(accumulator, T::greater),
        ReduceOp::Min => values.fold(accumulator, T::smaller),
    }
}

/// The accumulators of a reduction in a launch: for each level of the cascade `lanes` groups of `columns` elements, one per row of
/// the block. The lowest level comes first. Of a block along the points of `together` rows, the lanes of each row.
#[derive(Clone, Copy)]
pub(super) struct Accumulators {
    pub op: ReduceOp,
    pub dtype: DType,
    pub number: u16,
    pub lanes: usize,
    pub columns: usize,
    pub together: usize,
    pub levels: u32,
}

/// Evaluates an expression with `$type` standing for the arithmetic type of a dtype.
macro_rules! with_number {
    ($dtype:expr, $type:ident => $body:expr) => {
        with_dtype!($dtype,
            bool => {
                type $type = u8;
                $body
            },
            integer $type => $body,
            reduced $type => unreachable!("arithmetic is done in compute types"),
            float $type => $body,
        )
    };
}

impl Accumulators {
    fn of<'f, T: Lane>(&self, file: &'f mut File) -> &'f mut Vec<T> {
        &mut T::bank_mut(file).accumulators[usize::from(self.number)]
    }

    /// Returns the value that every accumulator starts with.
    fn neutral<T: Number>(&self) -> T {
        match (self.dtype, neutral::<T>(self.op)) {
            // The highest bool is 1, not 255.
            (DType::Bool, value) => value.smaller(T::ONE),
            (_, value) => value,
        }
    }

    /// Returns how many accumulators a level has.
    const fn level(&self) -> usize {
        self.lanes * self.columns * self.together
    }

    /// Sets every accumulator to the neutral value.
    pub fn start(&self, block: &mut Block<'_, '_>) {
        with_number!(self.dtype, T => {
            let value = self.neutral::<T>();
            let accumulators = self.of::<T>(block.file);
            accumulators.clear();
            accumulators.resize(self.level() * self.levels as usize, value);
        });
    }

    /// Returns how many points of a row the runs of a level have together.
    fn points_of_runs(&self, level: u32) -> usize {
        self.lanes * (RUN as usize).pow(level)
    }

    /// Moves the results of runs that end before point number `end` up.
    fn go_up<T: Number>(&self, accumulators: &mut [T], end: usize) {
        for level in 1..self.levels {
            if !end.is_multiple_of(self.points_of_runs(level)) {
                return;
            }
            self.combine_up(accumulators, level);
        }
    }

    /// Combines the accumulators of the level below into those of a level, and starts them anew.
    fn combine_up<T: Number>(&self, accumulators: &mut [T], level: u32) {
        let (below, above) = accumulators[(level as usize - 1) * self.level()..].split_at_mut(self.level());
        combine(self.op, &mut above[..self.level()], below);
        below.fill(self.neutral());
    }

    /// Combines a block across rows: point number `point` of each.
    pub fn across(&self, block: &mut Block<'_, '_>, register: u16, point: usize) {
        let first = (point & (self.lanes - 1)) * self.columns;
        with_number!(self.dtype, T => {
            let mut accumulators = std::mem::take(self.of::<T>(block.file));
            let values = block.file.read::<T>(block.inputs, register, block.count);
            combine(self.op, &mut accumulators[first..first + self.columns], values);
            self.go_up(&mut accumulators, point + 1);
            *self.of(block.file) = accumulators;
        });
    }

    /// Combines a block along the points of a row, from point number `point` on.
    pub fn along(&self, block: &mut Block<'_, '_>, register: u16, point: usize) {
        with_number!(self.dtype, T => {
            let mut accumulators = std::mem::take(self.of::<T>(block.file));
            let mut values = block.file.read::<T>(block.inputs, register, block.count);
            if self.together > 1 {
                let rows = accumulators.chunks_exact_mut(self.lanes).zip(values.chunks_exact(values.len() / self.together));
                rows.for_each(|(accumulators, values)| self.along_lanes(accumulators, values, 0));
                *self.of(block.file) = accumulators;
                return;
            }
            let mut point = point;
            while !values.is_empty() {
                let run = if self.levels > 1 { self.points_of_runs(1) } else { usize::MAX };
                let (now, later) = values.split_at(values.len().min(run - point % run));
                self.along_lanes(&mut accumulators[..self.lanes], now, point);
                (values, point) = (later, point + now.len());
                self.go_up(&mut accumulators, point);
            }
            *self.of(block.file) = accumulators;
        });
    }

    /// Combines values into the lanes of the lowest level, from point number `point` on.
    fn along_lanes<T: Number>(&self, accumulators: &mut [T], mut values: &[T], point: usize) {
        if let [accumulator] = accumulators {
            *accumulator = fold(self.op, *accumulator, values);
            return;
        }
        let mut lane = point & (self.lanes - 1);
        if lane == 0 && self.lanes.is_multiple_of(TILE) && self.lanes < values.len() {
            let (whole, rest) = values.split_at(values.len() - values.len() % self.lanes);
            combine_rounds(self.op, accumulators, whole);
            values = rest;
        }
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(self.lanes - lane));
            combine(self.op, &mut accumulators[lane..], now);
            (values, lane) = (later, 0);
        }
    }

    /// Combines the lanes as a tree, neighbours first, and puts the results into a register, one per row of the block.
    pub fn finish(&self, block: &mut Block<'_, '_>, register: u16) {
        with_number!(self.dtype, T => {
            let mut all = std::mem::take(self.of::<T>(block.file));
            (1..self.levels).for_each(|level| self.combine_up(&mut all, level));
            let accumulators = &mut all[(self.levels as usize - 1) * self.level()..];
            let (columns, mut lanes) = (self.columns, self.lanes);
            if columns == 1 {
                combine_trees(self.op, accumulators, lanes);
                lanes = 1;
            }
            while lanes > 1 {
                lanes /= 2;
                for lane in 0..lanes {
                    let (first, second) = accumulators.split_at_mut((2 * lane + 1) * columns);
                    combine(self.op, &mut first[2 * lane * columns..], &second[..columns]);
                    first.copy_within(2 * lane * columns.., lane * columns);
                }
            }
            block.file.write(register, block.count, |_, target: &mut [T]| {
                target.copy_from_slice(&accumulators[..target.len()]);
            });
            *self.of(block.file) = all;
        });
    }
}

/// Returns the number that an argument's bits stand for.
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
