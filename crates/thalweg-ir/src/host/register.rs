//! The registers of a running program, and the seven types that their elements have.

use std::cell::Cell;

use half::{bf16, f16};

use super::BLOCK;
use super::operand::{Cells, Slice, Source};

/// A block of elements: its own, or a view of an input that spares a copy.
#[derive(Debug, Default)]
pub(super) struct Register<T> {
    /// [`BLOCK`] elements.
    pub data: Vec<T>,
    /// Where the elements are instead, if they are those of an input.
    pub view: Option<View>,
}

/// Consecutive elements of an input that is a [`Slice`].
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub input: u16,
    pub offset: usize,
}

/// The registers of one element type, and the accumulators of reductions over it.
#[derive(Debug, Default)]
pub(super) struct Bank<T> {
    pub registers: Vec<Register<T>>,
    pub accumulators: Vec<Vec<T>>,
}

/// Every register. Bools live among bytes. A thread keeps one file for all its launches.
#[derive(Debug, Default)]
pub(super) struct File {
    u8: Bank<u8>,
    i32: Bank<i32>,
    i64: Bank<i64>,
    f16: Bank<f16>,
    bf16: Bank<bf16>,
    f32: Bank<f32>,
    f64: Bank<f64>,
}

/// An element type of registers.
pub(super) trait Lane: Copy + Default + 'static {
    /// Its number among the banks.
    const BANK: usize;
    fn bank(file: &File) -> &Bank<Self>;
    fn bank_mut(file: &mut File) -> &mut Bank<Self>;
    fn slice<'a>(slice: &Slice<'a>) -> Option<&'a [Self]>;
    fn cells<'a>(cells: &Cells<'a>) -> Option<&'a [Cell<Self>]>;
}

/// How many banks there are.
pub(super) const BANKS: usize = 7;

macro_rules! lanes {
    ($($element:ident $variant:ident $number:literal;)*) => {$(
        impl Lane for $element {
            const BANK: usize = $number;

            #[inline]
            fn bank(file: &File) -> &Bank<Self> {
                &file.$element
            }

            #[inline]
            fn bank_mut(file: &mut File) -> &mut Bank<Self> {
                &mut file.$element
            }

            #[inline]
            fn slice<'a>(slice: &Slice<'a>) -> Option<&'a [Self]> {
                if let Slice::$variant(elements) = *slice { Some(elements) } else { None }
            }

            #[inline]
            fn cells<'a>(cells: &Cells<'a>) -> Option<&'a [Cell<Self>]> {
                if let Cells::$variant(elements) = *cells { Some(elements) } else { None }
            }
        }
    )*};
}

lanes! {
    u8 U8 0;
    i32 I32 1;
    i64 I64 2;
    f16 F16 3;
    bf16 Bf16 4;
    f32 F32 5;
    f64 F64 6;
}

/// Evaluates an expression with `$type` standing for the element type of a dtype.
macro_rules! with_lane {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool | $crate::DType::U8 => {
                type $type = u8;
                $body
            }
            $crate::DType::I32 => {
                type $type = i32;
                $body
            }
            $crate::DType::I64 => {
                type $type = i64;
                $body
            }
            $crate::DType::F16 => {
                type $type = half::f16;
                $body
            }
            $crate::DType::Bf16 => {
                type $type = half::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $type = f32;
                $body
            }
            $crate::DType::F64 => {
                type $type = f64;
                $body
            }
        }
    };
}
pub(super) use with_lane;

/// Makes a bank large enough for a program.
fn reserve<T: Lane>(file: &mut File, registers: &[u16; BANKS], accumulators: &[u16; BANKS]) {
    let bank = T::bank_mut(file);
    let wanted = usize::from(registers[T::BANK]);
    while bank.registers.len() < wanted {
        bank.registers.push(Register { data: vec![T::default(); BLOCK], view: None });
    }
    let wanted = usize::from(accumulators[T::BANK]);
    if bank.accumulators.len() < wanted {
        bank.accumulators.resize(wanted, Vec::new());
    }
}

impl File {
    /// Makes room for a program that needs this many registers and accumulators of each bank.
    pub fn prepare(&mut self, registers: &[u16; BANKS], accumulators: &[u16; BANKS]) {
        reserve::<u8>(self, registers, accumulators);
        reserve::<i32>(self, registers, accumulators);
        reserve::<i64>(self, registers, accumulators);
        reserve::<f16>(self, registers, accumulators);
        reserve::<bf16>(self, registers, accumulators);
        reserve::<f32>(self, registers, accumulators);
        reserve::<f64>(self, registers, accumulators);
    }

    /// The first `count` elements of a register.
    #[inline]
    pub fn read<'f, T: Lane>(&'f self, inputs: &'f [Source<'_>], register: u16, count: usize) -> &'f [T] {
        let register = &T::bank(self).registers[usize::from(register)];
        let Some(View { input, offset }) = register.view else {
            return &register.data[..count];
        };
        match &inputs[usize::from(input)] {
            Source::Slice(slice) => {
                let elements = T::slice(slice).expect("operands were checked against the program");
                &elements[offset..offset + count]
            }
            Source::Cells(_) => unreachable!("only slices are viewed"),
        }
    }

    /// Fills the first `count` elements of a register by a function that may read other registers, never this one.
    #[inline]
    pub fn write<T: Lane>(&mut self, register: u16, count: usize, fill: impl FnOnce(&Self, &mut [T])) {
        let slot = &mut T::bank_mut(self).registers[usize::from(register)];
        slot.view = None;
        let mut data = std::mem::take(&mut slot.data);
        fill(self, &mut data[..count]);
        T::bank_mut(self).registers[usize::from(register)].data = data;
    }
}
