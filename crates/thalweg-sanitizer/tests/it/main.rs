//! The integration tests of the crate, in one binary.

mod chosen;
mod collectives;
mod graphs;
mod knowledge;
mod lifetimes;
mod orders;
mod suites;
mod support;
