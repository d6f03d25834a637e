//! The integration tests of the crate, in one binary.

/// The tests lie in `tests/it/`.
mod it {
    mod collectives;
    mod collectives_referee;
    mod collectives_support;
    mod conformance;
    mod controlled;
    mod cuda_libraries;
    mod litmus;
    mod processes;
    mod referee;
    mod referee_graphs;
    mod referee_lifetimes;
    mod referee_orders;
    mod referee_support;
    mod sim_capture;
    mod sim_conditionals;
    mod sim_faults;
    mod sim_memory;
    mod sim_order;
    mod sim_support;
    mod small_machines;
}
