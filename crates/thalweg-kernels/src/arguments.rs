//! The arguments of a launch as words of 8 bytes: the addresses of its operands, then its description. Words can be read back.
//!
//! [`arguments!`] and [`choices!`] define the words of a description: a structure has those of its fields, in the order in which
//! the CUDA code declares them; an enumeration has one, its number.

use std::slice::Iter;

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;

use crate::native::Words;

/// A value that is encoded as a fixed number of words.
pub(crate) trait Argument: Sized {
    /// Appends the words.
    fn write(&self, words: &mut Words);

    /// Reads the value's words; `None` if they do not encode such a value.
    fn read(words: &mut Iter<'_, u64>) -> Option<Self>;
}

/// Returns the words of a launch.
pub(crate) fn pack(at: &impl Argument, kernel: &impl Argument) -> Words {
    let mut words = Words::new();
    at.write(&mut words);
    kernel.write(&mut words);
    words
}

/// Returns the description and the addresses of a launch, and the words that follow them.
pub(crate) fn unpack<K: Argument, A: Argument, const REST: usize>(
    kernel: &str,
    launch: &HostLaunch<'_>,
) -> Result<(K, A, [u64; REST]), HostFault> {
    let (chunks, rest) = launch.arguments.as_chunks::<8>();
    let words: Words = chunks.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
    let found = if rest.is_empty() { read(&words) } else { None };
    found.ok_or_else(|| HostFault(format!("{kernel}: the arguments are not in its layout")))
}

/// Reads a description and addresses from words, and returns them with the words that follow. Returns `None` if the number of
/// words is wrong, or if they do not encode such a description.
pub(crate) fn read<K: Argument, A: Argument, const REST: usize>(
    words: &[u64],
) -> Option<(K, A, [u64; REST])> {
    let mut words = words.iter();
    let (at, kernel) = (A::read(&mut words)?, K::read(&mut words)?);
    Some((kernel, at, words.as_slice().try_into().ok()?))
}

/// Returns the words of a launch's arguments; `None` if there are not `COUNT` of them.
pub(crate) fn words<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    let (chunks, []) = bytes.as_chunks::<8>() else { return None };
    let chunks: &[[u8; 8]; COUNT] = chunks.try_into().ok()?;
    Some(chunks.map(u64::from_le_bytes))
}

/// Returns the number of a dtype.
pub(crate) fn number_of(dtype: DType) -> u64 {
    DType::ALL.iter().position(|&other| other == dtype).expect("ALL lists every dtype") as u64
}

/// Returns the dtype with a number; `None` if there is no such dtype.
pub(crate) fn dtype_of(number: u64) -> Option<DType> {
    DType::ALL.get(usize::try_from(number).ok()?).copied()
}

macro_rules! one_word {
    ($($T:ty: $write:expr, $read:expr;)*) => {$(
        impl Argument for $T {
            fn write(&self, words: &mut Words) {
                let write: fn(Self) -> u64 = $write;
                words.push(write(*self));
            }

            fn read(words: &mut Iter<'_, u64>) -> Option<Self> {
                let read: fn(u64) -> Option<Self> = $read;
                read(*words.next()?)
            }
        }
    )*};
}

one_word! {
    u64: |number| number, Some;
    i64: i64::cast_unsigned, |word| Some(word.cast_signed());
    f64: f64::to_bits, |word| Some(f64::from_bits(word));
    bool: u64::from, |word| Some(word != 0);
    DType: number_of, dtype_of;
    DevicePointer: DevicePointer::address, |word| Some(DevicePointer::new(word));
}

impl<T: Argument, const COUNT: usize> Argument for [T; COUNT] {
    fn write(&self, words: &mut Words) {
        self.iter().for_each(|item| item.write(words));
    }

    fn read(words: &mut Iter<'_, u64>) -> Option<Self> {
        let items: Vec<T> = (0..COUNT).map(|_| T::read(words)).collect::<Option<_>>()?;
        items.try_into().ok()
    }
}

/// Implements `Argument` for a structure as the words of its fields.
macro_rules! arguments {
    ($T:ident { $($field:ident),* }) => {
        impl $crate::arguments::Argument for $T {
            fn write(&self, words: &mut $crate::native::Words) {
                $($crate::arguments::Argument::write(&self.$field, words);)*
            }

            fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
                $(let $field = $crate::arguments::Argument::read(words)?;)*
                Some(Self { $($field),* })
            }
        }
    };
}

/// Implements `Argument` for an enumeration as the number of one of the given values.
macro_rules! choices {
    ($T:ident: $all:expr) => {
        impl $crate::arguments::Argument for $T {
            fn write(&self, words: &mut $crate::native::Words) {
                words.push(*self as u64);
            }

            fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
                let word = *words.next()?;
                $all.into_iter().find(|&choice| choice as u64 == word)
            }
        }
    };
}

pub(crate) use {arguments, choices};

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Work {
        First = 1,
        Second = 4,
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Sizes {
        extents: [u64; 2],
        padding: i64,
        scale: f64,
        reversed: bool,
        dtype: DType,
        work: Work,
    }

    arguments! { Sizes { extents, padding, scale, reversed, dtype, work } }
    choices! { Work: [Work::First, Work::Second] }

    #[test]
    fn words_stand_in_the_order_of_the_fields() {
        let (extents, work) = ([3, 5], Work::Second);
        let sizes = Sizes { extents, padding: -1, scale: 1.0, reversed: true, dtype: DType::F32, work };
        let at = [0x10, 0x20].map(DevicePointer::new);
        let mut words = pack(&at, &sizes);
        let dtype = DType::ALL.iter().position(|&dtype| dtype == DType::F32).unwrap() as u64;
        assert_eq!(words[..], [0x10, 0x20, 3, 5, u64::MAX, 0x3ff0_0000_0000_0000, 1, dtype, 4]);
        assert_eq!(read(&words), Some((sizes, at, [])));
        words.push(7);
        assert_eq!(read(&words), Some((sizes, at, [7])));
    }

    #[test]
    fn other_words_are_refused() {
        let sizes = |words: &[u64]| read::<Sizes, [u64; 1], 0>(words).is_some();
        let right = [0x10, 3, 5, 0, 0, 0, 0, 1];
        assert!(sizes(&right));
        assert!(!sizes(&right[..7]) && !sizes(&[&right[..], &[0]].concat()));
        for (place, wrong) in [(7, 2), (6, u64::MAX)] {
            let mut words = right;
            words[place] = wrong;
            assert!(!sizes(&words), "{words:?}");
        }
    }
}
