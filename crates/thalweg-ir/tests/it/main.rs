//! The tests of the crate, in one binary.

mod arguments;
mod casts;
mod compose;
mod cuda;
mod grad;
mod host;
mod kernels;
mod layout;
mod model;
mod places;
mod random;
