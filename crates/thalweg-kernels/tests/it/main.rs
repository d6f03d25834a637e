//! The tests of the crate, in one binary.

mod compiled;
mod matmul;
