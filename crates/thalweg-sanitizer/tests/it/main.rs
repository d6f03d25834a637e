//! The integration tests of the crate, in one binary.

mod collectives_referee;
mod referee;
mod referee_graphs;
mod referee_lifetimes;
mod referee_orders;
mod referee_support;
