//! The types of sizes that methods accept.

use smallvec::{Array, SmallVec};

/// A size, of any common integer type. It may be −1 if the operator documents that it computes one size.
pub trait Size: Copy {
    /// Returns the size as ATen's operators take it.
    fn size(self) -> i64;
}

macro_rules! sizes_of_integers {
    ($($integer:ident)*) => {$(
        impl Size for $integer {
            fn size(self) -> i64 {
                // No tensor has this many elements: the operator refuses the size.
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
    )*};
}

sizes_of_integers!(i32 i64 u32 u64 usize);

/// Several sizes: a reference to an array, a slice or a vector of integers, or a tuple of several types of them, as in
/// `x.reshape((batch, -1))`. An empty list of sizes is `()`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as sizes",
    note = "sizes are references to arrays, slices and vectors of integers, or tuples of integers; no sizes are `()`"
)]
pub trait Sizes {
    /// Returns the sizes as ATen's operators take them.
    fn sizes(&self) -> SmallVec<[i64; 6]>;
}

impl<I: Size> Sizes for &[I] {
    fn sizes(&self) -> SmallVec<[i64; 6]> {
        self.iter().map(|size| size.size()).collect()
    }
}

impl<I: Size, const COUNT: usize> Sizes for &[I; COUNT] {
    fn sizes(&self) -> SmallVec<[i64; 6]> {
        self.as_slice().sizes()
    }
}

impl<I: Size> Sizes for &Vec<I> {
    fn sizes(&self) -> SmallVec<[i64; 6]> {
        self.as_slice().sizes()
    }
}

impl<A: Array> Sizes for &SmallVec<A>
where
    A::Item: Size,
{
    fn sizes(&self) -> SmallVec<[i64; 6]> {
        self.as_slice().sizes()
    }
}

macro_rules! sizes_of_tuples {
    ($(($($place:tt $size:ident),*))*) => {$(
        impl<$($size: Size),*> Sizes for ($($size,)*) {
            fn sizes(&self) -> SmallVec<[i64; 6]> {
                SmallVec::from_slice(&[$(self.$place.size()),*])
            }
        }
    )*};
}

sizes_of_tuples! {
    ()
    (0 A)
    (0 A, 1 B)
    (0 A, 1 B, 2 C)
    (0 A, 1 B, 2 C, 3 D)
    (0 A, 1 B, 2 C, 3 D, 4 E)
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F)
}
