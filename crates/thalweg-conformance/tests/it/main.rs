//! The integration tests of the crate, in one binary.

mod conformance;
mod litmus;
mod processes;
