//! Memory that is shared with other processes.

pub(crate) mod imports;
pub(crate) mod sharing;
