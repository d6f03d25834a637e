//! The integration tests of the crate, in one binary.

mod schedule;
mod suite;
mod timeline;
mod traced;
mod world;
