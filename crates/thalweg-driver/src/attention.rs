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
    /// Elements a head.
    pub head_size: u64,
    /// Whether query `i` sees the keys `0..=i` only.
    pub causal: bool,
    /// The format of all operands' elements: 16-bit floats of either kind.
    pub format: ElementFormat,
}

/// One operand, of shape [batch, heads, positions, head size]: the elements of a head follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionOperand {
    /// Its first element, aligned to 16 bytes.
    pub address: DevicePointer,
    /// Elements from one batch, one head and one position to the next: multiples of 8 where there is a next one. 0 repeats
    /// (never in what is written).
    pub strides: [u64; 3],
}

/// Numbers that are added to the scaled scores, of shape [batch, heads, queries, keys]: those of a query's keys follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionMask {
    /// Its first element, aligned to 16 bytes.
    pub address: DevicePointer,
    /// Elements from one batch, one head and one query to the next: multiples of 8. 0 repeats.
    pub strides: [u64; 3],
}

/// Attention over queries, keys and values; or, with `gradients`, its backward pass.
///
/// How much scratch memory a call needs is asked beforehand
/// ([`Driver::library_workspace`](crate::Driver::library_workspace)).
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
    /// The values, which are averaged.
    pub value: AttentionOperand,
    /// The mask that is added to the scores, in the operands' format.
    pub mask: Option<AttentionMask>,
    /// The averages: written forward, read backward.
    pub output: AttentionOperand,
    /// The logarithms of the sums of exponentials, contiguous f32 of shape [batch, heads, queries]: written forward, read
    /// backward. Aligned to 16 bytes.
    pub log_sum_exp: DevicePointer,
    /// The gradients, of a backward pass.
    pub gradients: Option<AttentionGradients>,
    /// Whether a backward pass must give the same bits each time. The library adds up the query's gradient in whatever order its
    /// blocks end, or keeps all scores' gradients in the workspace and adds them up behind, which takes longer. A forward pass gives the same bits always.
    pub deterministic: bool,
    /// Scratch memory that the library may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

/// The gradients of a backward pass: each has the shape of what it belongs to, and strides of its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionGradients {
    /// The gradient of the output: read.
    pub output: AttentionOperand,
    /// The gradient of the queries: written, like the two below.
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
