//! The integration tests of the crate, in one binary.

mod collectives;
mod controlled;
mod links;
mod queue;
mod sim_capture;
mod sim_conditionals;
mod sim_faults;
mod sim_memory;
mod sim_order;
mod sim_support;
mod small_machines;

// Parts of the library that need nothing else of it: their own tests run here, which spares a test binary of the whole library.
#[allow(unused)]
#[path = "../../src/memory/ranges.rs"]
mod ranges;
#[allow(unused)]
#[path = "../../src/executor/ready.rs"]
mod ready;
#[allow(unused)]
#[path = "../../src/table.rs"]
mod table;
