//! The host's part: pinned memory, copies of ordinary memory, and functions that run in stream order.

mod copy;
mod function;
mod memory;
