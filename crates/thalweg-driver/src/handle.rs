//! Plain integer handles.
//!
//! A handle names an object that a driver owns. It is `Copy`, carries no lifetime, and means nothing to another driver.
//! Every driver *checks* its handles: a handle that it never issued, or that has been destroyed, is
//! [`Code::InvalidHandle`](crate::Code::InvalidHandle), never undefined behaviour. Closing a handle while another thread
//! uses it is also safe: the call in flight finishes first.

use std::fmt;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// Creates the handle with this number. Only the driver that issued the number can interpret it.
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the number.
            pub const fn raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

handles! {
    /// A stream: a queue of commands that run in order.
    StreamHandle;
    /// An event: a marker recorded on a stream.
    EventHandle;
    /// A loaded module: one image with its kernels.
    ModuleHandle;
    /// A kernel of a loaded module.
    FunctionHandle;
    /// A graph: captured commands and the edges between them.
    GraphHandle;
    /// An instantiated graph, ready to launch.
    GraphExecHandle;
    /// One node of a graph.
    GraphNodeHandle;
    /// A condition of a graph: a number on the device that conditional nodes read.
    ConditionHandle;
    /// Physical memory without an address, to be mapped into a reserved range.
    PhysicalHandle;
    /// A pool of the stream-ordered allocator.
    PoolHandle;
    /// A rank of a communicator.
    CommunicatorHandle;
}

/// An address in device memory (bytes). Addresses are unique over all devices of one driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DevicePointer(u64);

/// An address in pinned host memory that a driver allocated (bytes).
///
/// The memory is read and written through [`Driver::host_read`](crate::Driver::host_read) and
/// [`Driver::host_write`](crate::Driver::host_write), because a copy engine may use it at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HostPointer(u64);

macro_rules! pointers {
    ($($name:ident),*) => {$(
        impl $name {
            /// Creates the pointer with this address.
            pub const fn new(address: u64) -> Self {
                Self(address)
            }

            /// Returns the address.
            pub const fn address(self) -> u64 {
                self.0
            }

            /// Returns the pointer `bytes` after this one. Wraps around at the end of the address space, as pointers on the
            /// GPU do: the driver refuses the range when it is used.
            #[must_use]
            pub const fn offset(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// Returns whether this is the null pointer.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

pointers!(DevicePointer, HostPointer);
