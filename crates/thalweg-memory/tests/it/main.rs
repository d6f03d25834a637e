//! The allocators from outside, on the fake upstream.

mod decisions;
mod faults;
mod harness;
mod histories;
mod host;
mod model;
mod private_pools;
mod random;
mod replays;
mod snapshots;
mod threads;
mod traces;
