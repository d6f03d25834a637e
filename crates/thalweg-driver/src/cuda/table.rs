//! Tables of entry points: how a function of a shared library is called.
//!
//! [`entry_points!`] turns a list of C signatures into a struct with one optional function per field, and one method per
//! function that returns a [`CallStatus`]: the status, and the name of the call. A missing entry point is a status too. So
//! an old driver results in an error that names the entry point and the version that introduced it, and everything else
//! keeps working.
//!
//! The table does not check arguments: its methods are `unsafe`, and their callers argue.

use std::ffi::{CStr, c_char, c_void};

/// One function of a shared library.
pub(super) struct EntryPoint {
    /// The name in the documentation (`cuMemAlloc`), for errors.
    pub(super) name: &'static str,
    /// The exported symbol of the signature that we call (`cuMemAlloc_v2`).
    pub(super) symbol: &'static CStr,
    /// The version of CUDA that introduced this signature, as CUDA numbers it; 0 for libraries without versions.
    pub(super) version: i32,
}

/// The result of an entry point.
#[must_use]
#[derive(Clone, Copy)]
pub(super) struct CallStatus {
    /// The entry point that was called.
    pub(super) call: &'static str,
    /// The library's status; 0 is success everywhere.
    pub(super) status: u32,
    /// The version that has the entry point, if the library lacks it.
    pub(super) missing: Option<i32>,
}

impl CallStatus {
    pub(super) const fn is_success(self) -> bool {
        self.status == 0 && self.missing.is_none()
    }
}

/// Returns the text that a C library keeps at `text`.
///
/// # Safety
/// `text` is null or points to a string that ends with 0 and is not written meanwhile.
pub(super) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Turns a pointer from a loader into an optional function.
///
/// # Safety
/// `F` is a type of `extern "C"` function, and `pointer` is null or the address of a function of that signature.
pub(super) unsafe fn function_at<F: Copy>(pointer: *const c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: both are one pointer wide, and the caller promises the signature.
    (!pointer.is_null()).then(|| unsafe { std::mem::transmute_copy::<*const c_void, F>(&pointer) })
}

/// Returns a name that ends with 0 as C's text.
pub(super) const fn symbol(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(symbol) => symbol,
        Err(_) => panic!("the name ends with its only 0"),
    }
}

/// A row is `field = name as symbol @ version old (arguments);`, of which `as`, the version and `old` are optional. A test compares
/// each row with the function of the same symbol in the generated bindings that the table names, but for those that are `old`: CUDA 13
/// replaced their signatures, and the row of the newer one covers their common part.
macro_rules! entry_points {
    ($(#[$meta:meta])* $table:ident from $($module:ident)::+ { $($rows:tt)* }) => {
        $crate::cuda::table::entry_points! { @table $(#[$meta])* $table { $($rows)* } }
        $crate::cuda::table::entry_points! { @compare $table ($($module)::+) $($rows)* }
    };
    ($(#[$meta:meta])* $table:ident { $($rows:tt)* }) => {
        $crate::cuda::table::entry_points! { @table $(#[$meta])* $table { $($rows)* } }
        $crate::cuda::table::entry_points! { @sizes $table $($rows)* }
    };
    (
        @table $(#[$meta:meta])*
        $table:ident {
            $($field:ident = $name:ident $(as $symbol:ident)? $(@ $version:literal $($old:ident)?)? ($($argument:ident: $type:ty),*);)*
        }
    ) => {
        $(#[$meta])*
        pub(in crate::cuda) struct $table {
            $($field: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl $table {
            /// Fills the table through `find`.
            ///
            /// # Safety
            /// `find` returns null or the address of the C function of the entry point, in the signature that belongs to
            /// its symbol; the functions stay loaded for the rest of the process.
            pub(in crate::cuda) unsafe fn resolve(
                mut find: impl FnMut(&$crate::cuda::table::EntryPoint) -> *const std::ffi::c_void,
            ) -> Self {
                Self {
                    $($field: {
                        const SYMBOL: &str = $crate::cuda::table::entry_points!(@symbol $name $($symbol)?);
                        let found = find(&$crate::cuda::table::EntryPoint {
                            name: stringify!($name),
                            symbol: const { $crate::cuda::table::symbol(SYMBOL) },
                            version: 0 $(+ $version)?,
                        });
                        // SAFETY: the caller's promise.
                        unsafe { $crate::cuda::table::function_at(found) }
                    },)*
                }
            }

            $(
                /// # Safety
                /// The requirements of the library's documentation on the arguments.
                // Signatures are C's: some are long.
                #[allow(clippy::too_many_arguments)]
                #[inline]
                pub(in crate::cuda) unsafe fn $field(&self, $($argument: $type),*) -> $crate::cuda::table::CallStatus {
                    let call = stringify!($name);
                    match self.$field {
                        Some(function) => {
                            // SAFETY: `resolve` promised the signature; the caller promises the arguments.
                            let status = unsafe { function($($argument),*) };
                            $crate::cuda::table::CallStatus { call, status, missing: None }
                        }
                        None => $crate::cuda::table::CallStatus { call, status: 0, missing: Some(0 $(+ $version)?) },
                    }
                }
            )*
        }
    };
    (
        @sizes $table:ident
        $($field:ident = $name:ident $(as $symbol:ident)? $(@ $version:literal $($old:ident)?)? ($($argument:ident: $type:ty),*);)*
    ) => {
        #[cfg(test)]
        impl $table {
            /// Returns the symbol and the sizes of the arguments of every entry.
            pub(in crate::cuda) fn sizes() -> Vec<(&'static str, Vec<usize>)> {
                vec![$(($crate::cuda::table::entry_points!(@symbol $name $($symbol)?), vec![$(size_of::<$type>()),*])),*]
            }
        }
    };
    (@symbol $name:ident) => { concat!(stringify!($name), "\0") };
    (@symbol $name:ident $symbol:ident) => { concat!(stringify!($symbol), "\0") };
    (
        @compare $table:ident ($($module:ident)::+)
        $($field:ident = $name:ident $(as $symbol:ident)? $(@ $version:literal $($old:ident)?)? ($($argument:ident: $type:ty),*);)*
    ) => {
        #[cfg(test)]
        impl $table {
            /// Compares the number and the sizes of the arguments of every entry with those of the generated bindings.
            pub(in crate::cuda) fn compare() {
                use $($module)::+ as bindings;
                $($crate::cuda::table::entry_points!(
                    @entry bindings [$($($old)?)?] [$name $($symbol)?] [$($argument)*] [$($type),*]
                );)*
            }
        }
    };
    (@entry $bindings:ident [old] $names:tt $arguments:tt $types:tt) => {};
    (@entry $bindings:ident [] [$name:ident $symbol:ident] $arguments:tt $types:tt) => {
        $crate::cuda::table::entry_points!(@entry $bindings [] [$symbol] $arguments $types)
    };
    (@entry $bindings:ident [] [$symbol:ident] [$($argument:ident)*] [$($type:ty),*]) => {
        let theirs = $bindings::$symbol as unsafe fn($($crate::cuda::table::entry_points!(@any $argument)),*) -> _;
        let sizes: Vec<usize> = vec![$(size_of::<$type>()),*];
        assert_eq!(sizes, $crate::cuda::argument_sizes::ArgumentSizes::sizes(theirs), "arguments of {}", stringify!($symbol));
    };
    (@any $argument:ident) => { _ };
}

/// Defines numbers of a header: constants (`NAME = value, THEIRS;`) or an enum. A test compares each with the one of the generated
/// bindings, whose name follows the value.
macro_rules! numbers {
    ($test:ident from $($module:ident)::+, $vis:vis $type:ty { $($(#[$meta:meta])* $name:ident = $value:expr, $theirs:expr;)* }) => {
        $($(#[$meta])* $vis const $name: $type = $value;)*

        #[cfg(test)]
        #[test]
        fn $test() {
            use $($module)::+::*;
            $(assert_eq!($name as u64, $theirs as u64, stringify!($theirs));)*
        }
    };
    (
        $test:ident from $($module:ident)::+,
        $(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$of_variant:meta])* $variant:ident = $value:expr, $theirs:expr;)* }
    ) => {
        $(#[$meta])*
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis enum $enum { $($(#[$of_variant])* $variant = $value,)* }

        #[cfg(test)]
        #[test]
        fn $test() {
            use $($module)::+::*;
            $(assert_eq!($enum::$variant as u32, $theirs as u32, stringify!($theirs));)*
        }
    };
}

pub(super) use {entry_points, numbers};
