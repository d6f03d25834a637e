//! The registers of a running program, and the types that their elements have.

use std::cell::Cell;

use super::operand::{Cells, Slice, Source};
use crate::DType;
use crate::elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};

/// A block of elements: its own, or a view of an input that spares a copy.
#[derive(Debug, Default)]
pub(super) struct Register<T> {
    /// As many elements as the largest block so far.
    pub data: Vec<T>,
    /// The place where the elements are instead, if they are those of an input.
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

/// An element type of registers.
pub(super) trait Lane: Copy + Default + 'static {
    /// Its number among the banks.
    const BANK: usize;
    fn bank(file: &File) -> &Bank<Self>;
    fn bank_mut(file: &mut File) -> &mut Bank<Self>;
    fn slice<'a>(slice: &Slice<'a>) -> Option<&'a [Self]>;
    fn cells<'a>(cells: &Cells<'a>) -> Option<&'a [Cell<Self>]>;
}

/// The number of banks: one per dtype, of which that of bools stays empty.
pub(super) const BANKS: usize = DType::ALL.len();

/// Defines [`File`], with a bank per dtype that has elements of its own, and the types of its elements.
macro_rules! define_file {
    (
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal, }
        $($group:ident { $($(#[$doc:meta])* $variant:ident $element:ident $name:literal,)* })*
    ) => {
        /// Every register. Bools live among bytes. A thread keeps one file for all its launches.
        #[derive(Debug, Default)]
        pub(super) struct File {
            $($($element: Bank<$element>,)*)*
        }

        impl File {
            /// Makes room for a program that needs this many registers, of `block` elements, and accumulators of each bank.
            pub fn prepare(&mut self, registers: &[u16; BANKS], accumulators: &[u16; BANKS], block: usize) {
                $($(reserve::<$element>(self, registers, accumulators, block);)*)*
            }
        }

        /// Returns how many bytes an element of each bank has in all registers together.
        pub(super) fn bytes_of_element(registers: &[u16; BANKS]) -> usize {
            [$($(usize::from(registers[DType::$variant as usize]) * size_of::<$element>(),)*)*].iter().sum()
        }

        $($(
            impl Lane for $element {
                const BANK: usize = DType::$variant as usize;

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
        )*)*
    };
}

for_each_dtype! { define_file }

/// Makes a bank large enough for a program.
fn reserve<T: Lane>(file: &mut File, registers: &[u16; BANKS], accumulators: &[u16; BANKS], block: usize) {
    let bank = T::bank_mut(file);
    let wanted = usize::from(registers[T::BANK]);
    while bank.registers.len() < wanted {
        bank.registers.push(Register::default());
    }
    for register in bank.registers[..wanted].iter_mut().filter(|register| register.data.len() < block) {
        register.data.resize(block, T::default());
    }
    let wanted = usize::from(accumulators[T::BANK]);
    if bank.accumulators.len() < wanted {
        bank.accumulators.resize(wanted, Vec::new());
    }
}

impl File {
    /// Returns the first `count` elements of a register.
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

    /// Takes the elements of a register out of it, which then has none of an input.
    #[inline]
    pub fn take<T: Lane>(&mut self, register: u16) -> Vec<T> {
        let slot = &mut T::bank_mut(self).registers[usize::from(register)];
        slot.view = None;
        std::mem::take(&mut slot.data)
    }

    /// Puts elements back.
    #[inline]
    pub fn put<T: Lane>(&mut self, register: u16, data: Vec<T>) {
        T::bank_mut(self).registers[usize::from(register)].data = data;
    }

    /// Fills the first `count` elements of a register by a function that may read other registers, never this one.
    #[inline]
    pub fn write<T: Lane>(&mut self, register: u16, count: usize, fill: impl FnOnce(&Self, &mut [T])) {
        let mut data = self.take(register);
        fill(self, &mut data[..count]);
        self.put(register, data);
    }
}
