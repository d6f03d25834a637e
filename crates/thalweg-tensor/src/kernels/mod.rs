//! The kernels of the built-in operators: the functions that the dispatcher calls for a backend or for autograd.
//!
//! All loop operators of the table share one backend kernel and one autograd kernel ([`loops`](crate::loops)), made from their
//! entry. Matrix products, linear layers, attention, windows, gathers and scatters have separate kernels; layer
//! normalization records a node of its own. Every kernel serves both backends: the runtime distinguishes a GPU from the simulator.

pub(crate) mod alignments;
pub(crate) mod attention_in_pieces;
pub(crate) mod bags;
pub(crate) mod channel_norm;
pub(crate) mod compact;
pub(crate) mod convolution;
pub(crate) mod creation;
pub(crate) mod cross_entropy;
pub(crate) mod fused_attention;
pub(crate) mod geometry;
pub(crate) mod grid_sample;
pub(crate) mod indexing;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod mlp;
pub(crate) mod nll;
pub(crate) mod normalization;
pub(crate) mod normalized;
pub(crate) mod one_query;
pub(crate) mod random;
pub(crate) mod recorded_write;
pub(crate) mod reductions;
pub(crate) mod resample;
pub(crate) mod reshape;
pub(crate) mod rms_norm;
pub(crate) mod views;
