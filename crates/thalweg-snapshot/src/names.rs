//! The names that snapshots and allocators share: streams, private pools, size classes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Defines identifiers: numbers with a type of their own, for this crate and the allocators.
#[doc(hidden)]
#[macro_export]
macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// Creates the identifier with this number, whose meaning is known only to the upstream.
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the number.
            pub const fn raw(self) -> u64 {
                self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

identifiers! {
    /// A stream: a queue of device work that runs in order. Two streams of one upstream never have the same number.
    StreamId;
}

/// The name of a private pool. No two pools of a process have the same name, whatever allocator they belong to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(u64);

impl PoolId {
    /// Returns a name that no other pool of the process has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name as a number, for logs and snapshots.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({})", self.0)
    }
}

/// The kind of pool that a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// Requests up to 1 MiB, from segments of 2 MiB.
    Small,
    /// Blocks larger than the small ones.
    Large,
}

impl SizeClass {
    /// Returns the opposite class.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Small => Self::Large,
            Self::Large => Self::Small,
        }
    }
}
