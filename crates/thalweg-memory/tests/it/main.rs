//! The allocators from outside, on the fake upstream.

mod captures;
mod checkpoint;
mod conformance;
mod decisions;
mod exact;
mod faults;
mod harness;
mod histories;
mod host;
mod host_capture;
mod host_harness;
mod host_random;
mod host_threads;
mod model;
mod private_pools;
mod random;
mod raw;
mod record_use;
mod replays;
mod settings;
mod sharing;
mod snapshots;
mod summary;
mod threads;
mod traces;
