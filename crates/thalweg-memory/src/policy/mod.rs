//! The rules by which sizes are rounded, segments are sized and blocks are cut.
//!
//! A policy is arithmetic on sizes: it holds no state, sees no address and calls nobody. There is one so far, PyTorch's
//! [`best_fit`], whose decisions are followed to the byte, so that a program's memory looks the same here as there.

pub(crate) mod best_fit;
