//! Scaled dot-product attention, as data: a call of a vendor's library ([`GpuCall::Attention`](crate::GpuCall::Attention)).
//!
//! For batch `b`, head `h` (which reads head `h / (heads / kv_heads)` of keys and values), query `i` and key `j`:
//!
//! ```text
//! s[i, j] = scale · Σ_d q[i, d] · k[j, d] + m[i, j]    where not causal, or j ≤ i; m is the mask, if there is one
//! lse[i]  = ln Σ_j exp(s[i, j])
//! p[i, j] = exp(s[i, j] − lse[i])
//! o[i, d] = Σ_j p[i, j] · v[j, d]
//! ```
//!
//! and backward, from the gradient `go` of the output:
//!
//! ```text
//! gs[i, j] = p[i, j] · (Σ_d go[i, d] · v[j, d] − Σ_d go[i, d] · o[i, d])
//! gq[i, d] = scale · Σ_j gs[i, j] · k[j, d]
//! gk[j, d] = scale · Σ_i gs[i, j] · q[i, d]         summed over the heads that read this one
//! gv[j, d] = Σ_i p[i, j] · go[i, d]                 likewise
//! ```
//!
//! Sums are of 32-bit floats; `p` and `gs` are rounded to the operands' format before they are multiplied. Where all `s` of a query are −∞, so is its
//! `lse`, and its `o` and `p` are 0.

use crate::library::ElementFormat;
use crate::{DevicePointer, GpuCall};

/// The sizes of an attention, and whether it is causal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionShape {
    /// Independent problems.
    pub batch: u64,
    /// Heads of queries and of the output.
    pub heads: u64,
    /// Heads of keys and values: a divisor of `heads`.
    pub kv_heads: u64,
    /// Positions of queries and of the output.
    pub queries: u64,
    /// Positions of keys and values.
    pub keys: u64,
    /// Elements per head.
    pub head_size: u64,
    /// Whether query `i` sees the keys `0..=i` only.
    pub causal: bool,
    /// The format of all operands' elements: one of the 16-bit floats.
    pub format: ElementFormat,
}

/// One operand, of shape [batch, heads, positions, head size]. The elements of a head are contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionOperand {
    /// The address of the first element, aligned to 16 bytes.
    pub address: DevicePointer,
    /// Elements from one batch, one head and one position to the next: multiples of 8 where there is a next one. A stride
    /// of 0 repeats (never in an operand that is written).
    pub strides: [u64; 3],
}

/// A tensor that is added to the scaled scores, of shape [batch, heads, queries, keys]. The elements of a query's keys are
/// contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionMask {
    /// The address of the first element, aligned to 16 bytes.
    pub address: DevicePointer,
    /// Elements from one batch, one head and one query to the next: multiples of 8. A stride of 0 repeats.
    pub strides: [u64; 3],
}

/// Attention over queries, keys and values; or, with `gradients`, its backward pass.
///
/// [`Driver::library_workspace`](crate::Driver::library_workspace) returns the size of the workspace that a call needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionCall {
    /// The sizes.
    pub shape: AttentionShape,
    /// The factor of the products of queries and keys.
    pub scale: f32,
    /// The queries.
    pub query: AttentionOperand,
    /// The keys.
    pub key: AttentionOperand,
    /// The values, of which the output is a weighted average.
    pub value: AttentionOperand,
    /// The mask that is added to the scores, in the operands' format.
    pub mask: Option<AttentionMask>,
    /// The output: written in the forward pass, read in the backward pass.
    pub output: AttentionOperand,
    /// The logarithms of the sums of exponentials, contiguous f32 of shape [batch, heads, queries]: written in the forward
    /// pass, read in the backward pass. Aligned to 16 bytes.
    pub log_sum_exp: DevicePointer,
    /// The gradients, of a backward pass.
    pub gradients: Option<AttentionGradients>,
    /// Whether a backward pass must return the same bits each time. If not, the library adds up the query's gradient in
    /// whatever order its blocks end. If so, it keeps the gradients of all scores in the workspace and adds them up
    /// afterwards, which takes longer. A forward pass always returns the same bits.
    pub deterministic: bool,
    /// The workspace that the library may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

/// The gradients of a backward pass: each has the shape of its tensor, and strides of its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionGradients {
    /// The gradient of the output: read.
    pub output: AttentionOperand,
    /// The gradient of the queries: written, like the next two.
    pub query: AttentionOperand,
    /// The gradient of the keys.
    pub key: AttentionOperand,
    /// The gradient of the values.
    pub value: AttentionOperand,
}

impl From<AttentionCall> for GpuCall {
    fn from(call: AttentionCall) -> Self {
        Self::Attention(call)
    }
}
