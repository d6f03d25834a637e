//! The tests of the crate, in one binary.

mod attention;
mod compiled;
mod matmul;
mod words;
