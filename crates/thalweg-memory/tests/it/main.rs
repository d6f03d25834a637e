//! The allocators from outside, on the fake upstream.

mod captures;
mod conformance;
mod decisions;
mod direct;
mod faults;
mod harness;
mod histories;
mod history_wiring;
mod host;
mod host_capture;
mod host_harness;
mod host_random;
mod host_threads;
mod model;
mod out_of_memory;
mod private_pools;
mod random;
mod record_use;
mod replays;
mod settings;
mod snapshots;
mod summary;
mod threads;
mod traces;
