//! Automatic differentiation: the graph that operators record, and the switches of recording.
//!
//! An operator whose inputs require a gradient records a [`Node`]: what it saved, and an [`Edge`] to the node of each input.
//! A leaf's node accumulates into [`Tensor::grad`]. [`backward`](crate::Tensor::backward) walks the graph from the result to the
//! leaves, each node after all nodes that feed it; see `engine` for streams. [`gradients`] gives what arrives at chosen tensors
//! instead, and [`backward_input`] cuts a pass in two. Hooks see, and may replace, the gradients on the way.
//!
//! What a node saved must still be what it was: a write in place to a saved tensor is found by its version and is an error
//! that names the operator. A backward pass frees what the nodes saved as it goes, unless [`BackwardOptions::retain_graph`] is
//! set. A write in place of something that a gradient flows from is recorded too; see `kernels::recorded_write`.
//!
//! # Gradients that leaves have already
//! A pass adds to them in place, as PyTorch does: all holders of [`Tensor::grad`] see the sum, and a graph that saved it finds it written. Under
//! [`BackwardOptions::create_graph`] the sum is a new tensor. Where the gradient of a weight is a matrix product, the kernel that multiplies adds it
//! (`request`): the sum is rounded once, no memory is needed for the product, and nothing follows it. So it is with the products of a weight
//! that several layers share, and of a weight that autocast casts: its f32 gradient is added to without being rounded to 16 bits. A gradient of its own is made for hooks that see it, in anomaly mode, in [`gradients`], on other
//! streams than the caller's, and where dtype or layout of the leaf's gradient differ from the product's.
//!
//! # Hooks
//! A pass comes to a node when all gradients of its outputs have arrived, and then calls, with the node's stream current:
//!
//! 1. the hooks of tensors ([`Tensor::register_hook`]) in the order of their registration, each of which sees what the former left;
//! 2. [`Tensor::retain_grad`], which keeps what those left;
//! 3. the hooks before the node ([`Node::register_prehook`]);
//! 4. the node's backward function; of a leaf, the accumulation into [`Tensor::grad`];
//! 5. the hooks behind the accumulation ([`Tensor::register_post_accumulate_grad_hook`]), and those behind the node
//!    ([`Node::register_hook`]).
//!
//! [`gradients`] calls those of 1 and 2 for its inputs too, and returns what they left; PyTorch's
//! `torch.autograd.grad` returns what arrived where it goes on beyond the input. No hook is called where no gradient arrived.
//!
//! A hook's result must be ready on the stream that is current when it is called: one that works on another stream lets this one
//! wait for it, and records the uses of tensors on both. Hooks run under `no_grad`, unless
//! [`BackwardOptions::create_graph`] is set. An error of a hook is one of the pass.
//!
//! # Files
//! | file | has |
//! |---|---|
//! | `node.rs`, `meta.rs`, `saved.rs`, `leaf.rs`, `request.rs` | the graph: nodes, a tensor's part in it, what nodes keep, and what a pass asks of them |
//! | `record.rs`, [`formula`] | recording |
//! | `history.rs`, `hooks.rs`, `edge.rs`, `region.rs` | methods of tensors and nodes in the graph |
//! | `backward.rs`, `engine.rs`, `halves.rs`, `pass.rs` | backward passes |
//! | `mode.rs`, `options.rs`, `origin.rs`, `anomaly.rs` | switches, and the lines that failures come from |
//! | `checkpoint.rs`, `offload.rs`, `gradcheck.rs` | functions that use all of this |
//!
//! [`Tensor::grad`]: crate::Tensor::grad
//! [`Tensor::register_hook`]: crate::Tensor::register_hook
//! [`Tensor::register_post_accumulate_grad_hook`]: crate::Tensor::register_post_accumulate_grad_hook
//! [`Tensor::retain_grad`]: crate::Tensor::retain_grad

mod anomaly;
mod backward;
mod checkpoint;
mod edge;
mod engine;
pub mod formula;
mod gradcheck;
mod halves;
mod history;
mod hook_list;
mod hooks;
mod leaf;
mod meta;
mod mode;
mod node;
mod offload;
mod options;
mod origin;
mod pass;
mod record;
mod region;
mod request;
mod saved;

pub use anomaly::{
    detect_anomaly, is_anomaly_check_nan_enabled, is_anomaly_enabled, set_anomaly_enabled, set_detect_anomaly,
};
pub use backward::{gradients, gradients_with, reached};
pub use checkpoint::{CheckpointOptions, Explain, checkpoint, checkpoint_with};
pub use edge::{Backpropagation, run_backward};
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use halves::{BackwardWeights, backward_input};
pub use hook_list::HookHandle;
pub(crate) use meta::{AutogradMeta, ViewOf};
pub use mode::{
    NoGrad, enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled, set_inference_mode, set_inference_mode_enabled, try_no_grad,
};
pub(crate) use node::running;
pub use node::{Attachment, Backward, Edge, Gradients, Node, running_node};
pub use offload::save_on_cpu;
pub use options::BackwardOptions;
pub use origin::set_stack_source;
pub use pass::{at_end as at_pass_end, number as pass_number, queue_callback, will_run};
pub(crate) use record::record;
pub use record::{record_function, record_function_of_any};
pub(crate) use region::Region;
pub use request::Request;
pub use saved::{
    Saved, SavedPlace, SavedTensorsRegion, enter_saved_tensors_hooks, saved_tensors_hooks,
    saved_tensors_hooks_for,
};
