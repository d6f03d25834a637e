//! The integration tests of networks: functional, modules, optimizers, whole training steps.
//!
//! They run on the simulator, and on a GPU where `THALWEG_TEST_DEVICE=cuda` is set.

mod data;
mod files;
mod functional;
mod linear;
mod lines;
mod models;
mod modules;
mod networks;
mod optimizer_goldens;
mod optimizers;
mod packed;
mod state;
mod step;
mod summary;
#[path = "../../../thalweg-tensor/tests/it/support.rs"]
mod support;
mod tensor_optimizers;
mod training;
mod windows;
