//! The integration tests of tensors: every operator of the table, autograd, dispatch, graphs, hostile input.
//!
//! They run on the simulator, and on a GPU where `THALWEG_TEST_DEVICE=cuda` is set.

mod activations;
mod audit;
mod autocast;
mod autograd;
mod backward_operators;
mod bad_input;
mod decompositions;
mod dispatch;
mod display;
mod ergonomics;
mod errors;
mod fused_attention;
mod generator;
mod goldens;
mod graph_callable;
mod graph_step;
mod graph_tree;
mod graph_tree_sizes;
mod hooks;
mod hostile;
mod in_place;
mod in_place_forms;
mod indexing;
mod inference;
mod kernels;
mod layouts;
mod leaves;
mod linalg;
mod meta;
mod norms;
mod opinfo;
mod pools;
mod reduce;
mod reductions;
mod rules;
mod sanitizer;
mod scans;
mod second_order;
mod stream_order;
mod streams;
mod support;
mod table;
mod views;
