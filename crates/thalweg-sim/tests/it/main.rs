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
