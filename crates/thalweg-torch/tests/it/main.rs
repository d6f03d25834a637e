//! The C interface, called as PyTorch calls it, on simulated devices.

mod capture;
mod eager;
mod failures;
mod header;
mod pools;
mod process;
mod races;
mod sanitizer;
mod support;
mod transient_streams;
mod trees;
mod watch;
