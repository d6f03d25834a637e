//! The programs, by the rule that they probe.
//!
//! The derivations are based on the CUDA C++ programming guide (streams, events, implicit synchronisation, graphs) and on the
//! driver API's reference for `cuStreamWaitEvent`, `cuEventRecord` and the page on API synchronisation behaviour. Two statements
//! carry most of them: commands of one stream execute in issue order, and commands of different streams are not ordered unless an
//! event, a synchronisation or the default stream's rule orders them.

mod events;
mod graphs;
mod host;
mod reuse;
mod streams;

use std::sync::OnceLock;

use super::LitmusProgram;

/// Returns all litmus programs.
pub fn programs() -> &'static [LitmusProgram] {
    static ALL: OnceLock<Vec<LitmusProgram>> = OnceLock::new();
    ALL.get_or_init(|| {
        [streams::PROGRAMS, events::PROGRAMS, host::PROGRAMS, reuse::PROGRAMS, graphs::PROGRAMS].concat()
    })
}

/// The names that every list of programs uses.
mod vocabulary {
    pub(super) use super::super::Cell::{X, Y, Z};
    pub(super) use super::super::Event::{E, F};
    pub(super) use super::super::Graph::{G, H};
    pub(super) use super::super::HostStep::*;
    pub(super) use super::super::Pinned::{P, Q};
    pub(super) use super::super::Register::{R, S};
    pub(super) use super::super::Stream::{A, B, C, Default as DEFAULT};
    pub(super) use super::super::{LitmusProgram, Observed};
}
