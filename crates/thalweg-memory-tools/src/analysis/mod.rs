//! The analysis of a [`Recording`](thalweg_snapshot::Recording): how much memory was live and reserved, when, by which code, and
//! why the rest was unusable.
//!
//! ```text
//!  Recording ──▶ summarise ──▶ Summary     peaks, what was live then, fragmentation, what went wrong
//!      │    ├──▶ lives ──────▶ Lives       every block and segment, from when to when
//!      │    ├──▶ stages ─────▶ Stage       the same for each scope that the program marked
//!      │    └──▶ diff ───────▶ Growth      the memory that grew from one to another
//!      └───────▶ what_if ────▶ ReplayFigures     the same program under other settings
//!                  └────────▶ Forecast    the same, where its beginning may not be known
//! ```
//!
//! It is here, and not in the command line, because it only depends on memory: it opens no file and prints no text, so that a
//! page, a notebook and a test see the same figures.
//!
//! # Method
//! - A trace is a list of changes. The state before it is reconstructed from its end: the segments at the end, minus the changes
//!   of the trace. Memory that was freed in the trace and never allocated in it existed before.
//! - *Live* memory is memory that was requested and is not yet free; a block whose free waits for another stream counts, since no
//!   other stream can use it. *Reserved* memory is memory that was taken from the driver.
//! - Entries contain the requested size, before rounding. If the layout of a moment inside the trace is needed, blocks are
//!   assumed to be rounded up to 512 bytes; a remainder that the allocator did not split off counts as free. At the end of the
//!   trace the file contains the exact sizes.
//!
//! Memory that the allocator never handled is not included. Memory of the driver, of libraries and of other processes is in no
//! trace, except for one number: how much the device had left when a request failed.

mod categories;
mod diff;
pub mod forecast;
mod layout;
mod lives;
mod places;
mod stages;
mod summary;
mod walk;
pub mod what_if;

pub use categories::{Categories, Sorting};
pub use diff::{Growth, diff};
pub use layout::Fragmentation;
pub use lives::{BlockLife, Lives, SegmentLife, lives};
pub use places::{FrameChoice, backward_node, informative_frame};
pub use stages::{Stage, stages};
pub use summary::{
    Doubts, Moment, OutOfMemoryEntry, PoolUse, SizeGroup, StackGroup, Start, Summary, summarise,
};
