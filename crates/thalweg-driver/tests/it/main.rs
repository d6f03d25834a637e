//! The integration tests of the crate, in one binary.

mod cuda_libraries;
mod forwarding;
