//! Automatic differentiation: the graph that operators record, and the switches of recording.
//!
//! An operator whose inputs require a gradient records a [`Node`]: the tensors that it saved, and an [`Edge`] to the node of each
//! input. A leaf's node accumulates into [`Tensor::grad`]. [`backward`](crate::Tensor::backward) walks the graph from the result
//! to the leaves, each node after all nodes that feed it; see `engine` for streams. [`gradients`] returns the gradients that
//! arrive at chosen tensors instead, and [`backward_input`] cuts a pass in two. Hooks see, and may replace, the gradients on the
//! way.
//!
//! A tensor that a node saved must not change: a write in place to it is detected by its version and is an error that names the
//! operator. A backward pass frees the saved tensors as it goes, unless [`BackwardOptions::retain_graph`] is set. A write in
//! place of a value that a gradient flows from is recorded too; see `kernels::recorded_write`.
//!
//! # Gradients that leaves have already
//! A pass accumulates into existing gradients in place, as PyTorch does: all holders of [`Tensor::grad`] see the sum, and a graph
//! that saved the gradient reports that it was modified. Under [`BackwardOptions::create_graph`] the sum is a new tensor. If the
//! gradient of a weight is a matrix product, the kernel that multiplies also adds (`request`): the sum is rounded once, the
//! product needs no memory, and no addition follows. The same holds for the products of a weight that several layers share, and
//! of a weight that autocast casts: the product is added to its f32 gradient without being rounded to 16 bits. The gradient is
//! computed as a separate tensor for hooks that see it, in anomaly mode, in [`gradients`], on streams other than the caller's,
//! and if dtype or layout of the leaf's gradient differ from the product's.
//!
//! # Hooks
//! A pass reaches a node when all gradients of its outputs have arrived, and then calls, with the node's stream current:
//!
//! 1. the hooks of tensors ([`Tensor::register_hook`]) in the order of their registration, each of which sees the result of the
//!    previous one;
//! 2. [`Tensor::retain_grad`], which keeps the result of those hooks;
//! 3. the hooks before the node ([`Node::register_prehook`]);
//! 4. the node's backward function; for a leaf, the accumulation into [`Tensor::grad`];
//! 5. the hooks after the accumulation ([`Tensor::register_post_accumulate_grad_hook`]), and those after the node
//!    ([`Node::register_hook`]).
//!
//! [`gradients`] calls those of 1 and 2 for its inputs too, and returns their result; PyTorch's `torch.autograd.grad` returns the
//! gradient before the hooks if the pass continues beyond the input. No hook is called if no gradient arrived.
//!
//! A hook's result must be ready on the stream that is current when it is called: a hook that works on another stream must make
//! this one wait for it, and record the uses of tensors on both. Hooks run under `no_grad`, unless
//! [`BackwardOptions::create_graph`] is set. An error of a hook is an error of the pass.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `node.rs`, `meta.rs`, `saved.rs`, `leaf.rs`, `request.rs` | the graph: nodes, a tensor's part in it, the tensors that nodes keep, and the requests of a pass |
//! | `record.rs`, [`formula`] | recording |
//! | `history.rs`, `hooks.rs`, `edge.rs`, `region.rs` | methods of tensors and nodes in the graph |
//! | `backward.rs`, `engine.rs`, `halves.rs`, `pass.rs` | backward passes |
//! | `mode.rs`, `options.rs`, `origin.rs`, `anomaly.rs`, `apart.rs` | switches, and the source lines of failures |
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
mod redirected;
mod region;
mod request;
mod saved;

pub use anomaly::{
    detect_anomaly, is_anomaly_check_nan_enabled, is_anomaly_enabled, set_anomaly_enabled, set_detect_anomaly,
};
pub use backward::{gradients, gradients_with, reached};
pub use checkpoint::{CheckpointOptions, Explain, checkpoint, checkpoint_with};
pub use edge::{Backpropagation, run_backward};
pub(crate) use engine::reachable;
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use halves::{BackwardWeights, backward_input};
pub use hook_list::HookHandle;
pub use leaf::ExternalGradient;
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
pub(crate) use redirected::with_redirected_leaves;
pub(crate) use region::Region;
pub use request::Request;
pub(crate) use saved::freed;
pub use saved::{
    Saved, SavedPlace, SavedTensorsRegion, enter_saved_tensors_hooks, enter_saved_tensors_hooks_for,
    saved_tensors_hooks, saved_tensors_hooks_for,
};
