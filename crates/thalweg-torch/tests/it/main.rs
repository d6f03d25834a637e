//! The C interface, called as PyTorch calls it, on simulated devices.

mod capture;
mod eager;
mod failures;
mod header;
mod lent_streams;
mod pools;
mod process;
mod races;
mod sanitizer;
mod support;
mod trees;
mod watch;
