//! The tests of the crate, in one binary. They run on simulated devices of their own, and those that any device can run also
//! on the first GPU, one after the other, where `THALWEG_TEST_DEVICE=cuda` is set.

mod audit;
mod audit_differential;
mod capture;
mod conditionals;
mod contract;
mod current;
mod devices;
mod disk_cache;
mod environment;
mod events;
mod external_memory;
mod faults;
mod gate;
mod graph;
mod graph_outputs;
mod graph_updates;
mod kernels;
mod lifecycle;
mod memory;
mod pinned;
mod pool_sharing;
mod sanitizer;
mod sanitizer_fuzz;
mod sanitizer_programs;
mod sharing;
mod sim_check;
mod sim_threads;
mod streams;
mod support;
