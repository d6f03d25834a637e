//! Memory: the driver as the allocators' upstream, and [`Buffer`], the memory of a tensor.
//!
//! [`DriverUpstream`] is the only place that connects the allocators' terms (segments, pages, stream numbers) with the driver's
//! (pointers, physical memory, streams). Each of its modules implements one trait of `thalweg_memory`.

mod buffer;
mod captures;
mod collective;
mod external;
mod graph_output;
mod in_place;
mod managed;
mod outside;
mod pages;
mod quarantine;
mod sharing;
mod stream_ordered;
#[cfg(test)]
mod tests;
mod upstream;

pub use self::buffer::Buffer;
pub(crate) use self::collective::CollectiveMemory;
pub use self::graph_output::OutputHandle;
pub use self::managed::ManagedMemory;
pub use self::outside::outside_capture;
pub(crate) use self::quarantine::Quarantine;
pub use self::sharing::{SharedBuffer, SharedHandle};
pub(crate) use self::upstream::DriverUpstream;
