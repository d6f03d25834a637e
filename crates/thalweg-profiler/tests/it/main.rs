//! The integration tests of the crate, in one binary.

mod suite;
mod timeline;
mod world;
