//! The registers of a running program, and the types of their elements.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use super::loops::{Fill, Operand, PIECE, Shape};
use super::operand::{Cells, Slice, Source};
use super::processor::vectors;
use crate::DType;
use crate::elements::{bf16, c64, c128, f8e4m3, f8e5m2, f16};

/// The alignment of elements in bytes, that of a cache line: vectors that cross two lines are accessed at half the speed.
const ALIGNMENT: usize = 64;

/// Elements that start at a multiple of [`ALIGNMENT`].
#[derive(Debug, Default)]
pub(super) struct Elements<T> {
    /// The elements, with padding before the first.
    data: Vec<T>,
    first: usize,
}

impl<T: Lane> Elements<T> {
    /// Makes room for `count` elements, whose values are unspecified afterwards.
    pub fn reserve(&mut self, count: usize) {
        if self.len() < count {
            self.data.resize(count + ALIGNMENT / size_of::<T>(), T::default());
            self.first = self.data.as_ptr().align_offset(ALIGNMENT).min(self.data.len() - count);
        }
    }
}

impl<T> Deref for Elements<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.data[self.first..]
    }
}

impl<T> DerefMut for Elements<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.first..]
    }
}

/// A block of elements: its own, or a view of an input that saves a copy.
#[derive(Debug, Default)]
pub(super) struct Register<T> {
    /// As many elements as the largest block so far.
    pub data: Elements<T>,
    /// The place of the elements in an input, if the register is a view.
    pub view: Option<View>,
    /// Whether there is only one [piece](super::loops::PIECE) of each line, which repeats along the line.
    pub repeats: bool,
}

/// Elements of an input that is a [`Slice`], line by line.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub input: u16,
    /// The first element, if it is not that of the current block.
    pub offset: Option<usize>,
    /// The distance from one line to the next, if there are several.
    pub line: usize,
}

/// The registers of one element type, and the accumulators of reductions over it.
#[derive(Debug, Default)]
pub(super) struct Bank<T> {
    pub registers: Vec<Register<T>>,
    pub accumulators: Vec<Elements<T>>,
}

/// An element type of registers.
pub(super) trait Lane: Copy + Default + 'static {
    /// The index of the type among the banks.
    const BANK: usize;
    fn bank(file: &File) -> &Bank<Self>;
    fn bank_mut(file: &mut File) -> &mut Bank<Self>;
    fn slice<'a>(slice: &Slice<'a>) -> Option<&'a [Self]>;
    fn cells<'a>(cells: &Cells<'a>) -> Option<&'a [Cell<Self>]>;
}

/// The number of banks: one per dtype. That of bools stays empty.
pub(super) const BANKS: usize = DType::ALL.len();

/// Defines [`File`], with a bank per dtype that has its own element type, and the types of its elements.
macro_rules! define_file {
    (
        bool { $(#[$bool_doc:meta])* $bool:ident $bool_element:ident $bool_name:literal $bool_exchange:tt, }
        $($group:ident { $($(#[$doc:meta])* $variant:ident $element:ident $name:literal $exchange:tt,)* })*
    ) => {
        /// All registers. Bools are stored as bytes. A thread keeps one file for all its launches.
        #[derive(Debug, Default)]
        pub(super) struct File {
            $($($element: Bank<$element>,)*)*
            /// The element of each operand at which the current block begins.
            pub places: Vec<usize>,
        }

        impl File {
            /// Makes room for a program that needs this many registers, of `block` elements, and accumulators of each bank.
            pub fn prepare(&mut self, registers: &[u16; BANKS], accumulators: &[u16; BANKS], block: usize) {
                $($(reserve::<$element>(self, registers, accumulators, block);)*)*
            }
        }

        /// Returns the number of bytes that one element takes in all registers of all banks together.
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
    bank.registers[..wanted].iter_mut().for_each(|register| register.data.reserve(block));
    let wanted = usize::from(accumulators[T::BANK]);
    if bank.accumulators.len() < wanted {
        bank.accumulators.resize_with(wanted, Elements::default);
    }
}

impl File {
    /// Returns the first `count` elements of a register whose lines are contiguous.
    #[inline]
    pub fn read<'f, T: Lane>(&'f self, inputs: &'f [Source<'_>], register: u16, count: usize) -> &'f [T] {
        let register = &T::bank(self).registers[usize::from(register)];
        debug_assert!(!register.repeats, "a step that takes whole blocks reads a piece");
        match register.view {
            Some(view) => &self.viewed::<T>(inputs, view)[..count],
            None => &register.data[..count],
        }
    }

    /// Returns the elements of a block in a register.
    #[inline]
    pub fn operand<'f, T: Lane>(
        &'f self,
        inputs: &'f [Source<'_>],
        register: u16,
        Shape { lines, length }: Shape,
    ) -> Operand<'f, T> {
        let register = &T::bank(self).registers[usize::from(register)];
        match register.view {
            Some(view) => Operand::new(self.viewed(inputs, view), view.line),
            None if register.repeats => Operand::repeating(&register.data[..lines * PIECE]),
            None => Operand::new(&register.data[..lines * length], length),
        }
    }

    /// Returns an input's elements, beginning with the first element of a view.
    #[inline]
    fn viewed<'f, T: Lane>(&'f self, inputs: &'f [Source<'_>], view: View) -> &'f [T] {
        let input = usize::from(view.input);
        let offset = view.offset.unwrap_or_else(|| self.places[input]);
        match &inputs[input] {
            Source::Slice(slice) => {
                &T::slice(slice).expect("operands were checked against the program")[offset..]
            }
            Source::Cells(_) => unreachable!("only slices are viewed"),
        }
    }

    /// Fills one piece per line with the line's value, which then repeats along the line.
    #[inline(never)]
    pub fn repeat<T: Lane>(&mut self, register: u16, lines: usize, value: impl Fn(&Self, usize) -> T) {
        self.write(register, lines * PIECE, |file, target: &mut [T]| {
            for (line, target) in target.chunks_exact_mut(PIECE).enumerate() {
                vectors(Fill { target, value: value(file, line) });
            }
        });
        T::bank_mut(self).registers[usize::from(register)].repeats = true;
    }

    /// Makes a register a view of an input.
    #[inline]
    pub fn view<T: Lane>(&mut self, register: u16, view: View) {
        let register = &mut T::bank_mut(self).registers[usize::from(register)];
        (register.view, register.repeats) = (Some(view), false);
    }

    /// Takes the elements out of a register, which is then not a view.
    #[inline]
    pub fn take<T: Lane>(&mut self, register: u16) -> Elements<T> {
        let slot = &mut T::bank_mut(self).registers[usize::from(register)];
        (slot.view, slot.repeats) = (None, false);
        std::mem::take(&mut slot.data)
    }

    /// Puts elements back into a register.
    #[inline]
    pub fn put<T: Lane>(&mut self, register: u16, data: Elements<T>) {
        T::bank_mut(self).registers[usize::from(register)].data = data;
    }

    /// Fills the first `count` elements of a register with a function that may read other registers, but not this one.
    #[inline]
    pub fn write<T: Lane>(&mut self, register: u16, count: usize, fill: impl FnOnce(&Self, &mut [T])) {
        let mut data = self.take(register);
        fill(self, &mut data[..count]);
        self.put(register, data);
    }
}
