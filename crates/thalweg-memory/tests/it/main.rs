//! The allocators from outside, on the fake upstream.

mod decisions;
mod faults;
mod harness;
mod host;
mod host_capture;
mod host_harness;
mod host_random;
mod host_threads;
mod model;
mod private_pools;
mod random;
mod settings;
mod summary;
mod threads;
