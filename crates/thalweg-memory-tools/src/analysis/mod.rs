//! The analysis of a [`Recording`](thalweg_snapshot::Recording): how much memory was live and reserved, when, by which code,
//! and why the rest was of no use.
//!
//! ```text
//!  Recording ──▶ summarise ──▶ Summary     peaks, what was live then, fragmentation, what went wrong
//!      │    ├──▶ lives ──────▶ Lives       every block and segment, from when to when
//!      │    ├──▶ stages ─────▶ Stage       the same for each scope that the program marked
//!      │    └──▶ diff ───────▶ Growth      what one has more of than another
//!      └───────▶ what_if ────▶ ReplayFigures     the same program under other settings
//!                  └────────▶ Forecast    the same, where its beginning may not be known
//! ```
//!
//! It is here, and not in the command line, because it is about memory and about nothing else: it opens no file and prints no
//! text, so that a page, a notebook and a test see the same figures.
//!
//! # How it is reckoned
//! - A trace is a list of changes. The state before it is rebuilt from its end: what the segments say at the end, minus what
//!   the trace did. Memory that was freed in the trace and never allocated in it was there before.
//! - *Live* is what was asked for and not yet free; a block whose free waits for another stream counts, since no other stream can
//!   have it. *Reserved* is what was taken from the driver.
//! - Entries say what was asked for, before rounding. Where the layout of a moment inside the trace is needed, blocks are taken
//!   to be rounded up to 512 bytes; what an allocator did not split off counts as free then. At the end of the trace the
//!   file says the sizes, and they are exact.
//!
//! What is not here: memory that the allocator never saw. The driver's own, that of libraries and of other processes is in
//! no trace, except for one number: how much the device had left when a request failed.

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
pub use places::{Telling, backward_node, telling};
pub use stages::{Stage, stages};
pub use summary::{
    Doubts, Moment, OutOfMemoryEntry, PoolUse, SizeGroup, StackGroup, Start, Summary, summarise,
};
