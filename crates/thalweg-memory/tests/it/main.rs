//! The allocators from outside, on the fake upstream.

mod decisions;
mod faults;
mod harness;
#[cfg(any())]
mod host;
mod model;
mod private_pools;
mod random;
mod settings;
mod summary;
mod threads;
