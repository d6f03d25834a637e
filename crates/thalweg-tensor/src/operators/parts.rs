//! The operators that are parts of others, without methods. Their bodies are in [`kernels`](crate::kernels).

use thalweg_kernels::random::Distribution;
use thalweg_ops::Autocast;
use thalweg_ops::structured::{CROSS_ENTROPY, CROSS_ENTROPY_SMOOTHED};

use super::Body::{Differentiable, Kernel, Pair};
use super::{Complex, OpDef, pool};
use crate::kernels::{
    alignments, attention_in_pieces, channel_norm, convolution, creation, cross_entropy, fused_attention,
    grid_sample, indexing, linear, matmul, mlp, nll, normalization, one_query, random, resample, rms_norm,
};
use crate::loops::{LoopCall, run};

/// The operators that are parts of others.
pub(super) static OPERATORS: &[OpDef] = &[
    OpDef::part(
        "thalweg::full(Scalar value, int[] size, ScalarType dtype) -> Tensor",
        Kernel(creation::full),
    ),
    OpDef::part(
        "thalweg::uniform(Tensor seed, Tensor offset, Scalar threads, Scalar low, Scalar high, int[] size, ScalarType dtype) -> Tensor",
        Kernel(|call| random::drawn(call, Distribution::Uniform)),
    ),
    OpDef::part(
        "thalweg::normal(Tensor seed, Tensor offset, Scalar threads, Scalar mean, Scalar deviation, int[] size, ScalarType dtype) -> Tensor",
        Kernel(|call| random::drawn(call, Distribution::Normal)),
    ),
    OpDef::part(
        "thalweg::dropout(Tensor input, Tensor seed, Tensor offset, Scalar threads, Scalar keep, int[] size) -> (Tensor, Tensor)",
        Differentiable(random::dropout, &random::DROPOUT),
    ),
    OpDef::part(
        "thalweg::max_pool2d_within(Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) -> (Tensor, Tensor)",
        Kernel(pool::greatest_within),
    ),
    OpDef::part(
        "thalweg::max_pool2d_within_backward(Tensor grad_output, Tensor places, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, int[2] size) -> Tensor",
        Kernel(pool::greatest_within_backward),
    ),
    OpDef::part(
        "thalweg::kept(Tensor seed, Tensor offset, Scalar threads, Scalar keep, int[] size) -> Tensor",
        Kernel(random::kept),
    ),
    OpDef::part(
        "thalweg::cross_entropy(Tensor input, Tensor target, Scalar classes, Scalar ignore_index, int[] dim) -> (Tensor, Tensor)",
        Differentiable(
            |call| run(&LoopCall::of(&CROSS_ENTROPY, call)?, call.resolved),
            &cross_entropy::GRADIENT,
        ),
    ),
    OpDef::part(
        "thalweg::cross_entropy_smoothed(Tensor input, Tensor target, Scalar classes, Scalar ignore_index, Scalar label_smoothing, int[] dim) -> (Tensor, Tensor)",
        Differentiable(
            |call| run(&LoopCall::of(&CROSS_ENTROPY_SMOOTHED, call)?, call.resolved),
            &cross_entropy::SMOOTHED_GRADIENT,
        ),
    ),
    OpDef {
        autocast: Autocast::Full,
        ..OpDef::part(
            "thalweg::nll_loss(Tensor input, Tensor target, Tensor? weight, int ignore_index, int dimension) -> (Tensor, Tensor)",
            Differentiable(nll::forward, &nll::GRADIENT),
        )
    },
    OpDef {
        autocast: Autocast::Full,
        ..OpDef::part(
            "thalweg::layer_norm_affine(Tensor input, Tensor weight, Tensor bias, Scalar count, Scalar epsilon, int[] dim) -> (Tensor, Tensor, Tensor)",
            Pair(normalization::backend, normalization::autograd),
        )
    },
    OpDef {
        autocast: Autocast::Full,
        ..OpDef::part(
            "thalweg::layer_norm_fork(Tensor input, Tensor weight, Tensor bias, Scalar count, Scalar epsilon, int[] dim) -> (Tensor, Tensor, Tensor, Tensor)",
            Pair(normalization::fork, normalization::autograd),
        )
    },
    OpDef {
        autocast: Autocast::Rounded,
        ..OpDef::part(
            "thalweg::add_layer_norm(Tensor input, Tensor branch, Tensor weight, Tensor bias, Scalar count, Scalar epsilon, int[] dim, ScalarType? dtype=None) -> (Tensor, Tensor, Tensor, Tensor)",
            Pair(normalization::add, normalization::autograd),
        )
    },
    OpDef::part(
        "thalweg::rms_norm(Tensor input, Tensor? weight, int[] normalized_shape, float eps) -> (Tensor, Tensor)",
        Differentiable(rms_norm::forward, &rms_norm::GRADIENT),
    ),
    OpDef::part(
        "thalweg::channel_norm(Tensor input, Tensor weight, Tensor bias, int groups, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        Differentiable(channel_norm::forward, &channel_norm::GRADIENT),
    ),
    OpDef::part(
        "thalweg::alignments(Tensor emitted, Tensor total, Tensor skips, Tensor lengths) -> (Tensor, Tensor)",
        Differentiable(alignments::forward, &alignments::GRADIENT),
    ),
    OpDef::part(
        "thalweg::alignments_backward(Tensor grad, Tensor emitted, Tensor skips, Tensor lengths, Tensor losses, Tensor sums) -> Tensor",
        Differentiable(alignments::backward, &alignments::SECOND),
    ),
    OpDef::part(
        "thalweg::embedding(Tensor weight, Tensor indices, Scalar padding=-1) -> Tensor",
        Pair(indexing::embedding, indexing::embedding_autograd),
    ),
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::fused_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, bool is_causal, float scale, int backends, float dropout) -> (Tensor, Tensor)",
            Differentiable(fused_attention::forward, &fused_attention::GRADIENT),
        )
    },
    OpDef::part(
        "thalweg::fused_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, Tensor out, Tensor logsumexp, bool is_causal, float scale, int backends, float dropout) -> (Tensor, Tensor, Tensor)",
        Kernel(fused_attention::backward),
    ),
    OpDef::part(
        "thalweg::fused_attention_backward_mask(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, Tensor out, Tensor logsumexp, bool is_causal, float scale, int backends, float dropout) -> Tensor",
        Kernel(fused_attention::backward_of_mask),
    ),
    OpDef::part(
        "thalweg::attention_in_pieces(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? state, bool is_causal, float scale, float dropout) -> Tensor",
        Differentiable(attention_in_pieces::forward, &attention_in_pieces::GRADIENT),
    ),
    OpDef::part(
        "thalweg::attention_kept_weights(Tensor state, int[] size, float dropout) -> Tensor",
        Kernel(fused_attention::kept_weights),
    ),
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::packed_fused_attention(Tensor packed, bool is_causal, float scale, int backends) -> (Tensor, Tensor)",
            Differentiable(fused_attention::packed, &fused_attention::PACKED_GRADIENT),
        )
    },
    OpDef::part(
        "thalweg::one_query_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor",
        Kernel(one_query::backend),
    ),
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::linear(Tensor input, Tensor weight, Tensor? bias=None, Tensor? addend=None) -> Tensor",
            Pair(linear::backend, linear::autograd),
        )
    },
    OpDef::part(
        "thalweg::norm_linear(Tensor input, Tensor weight, Tensor? bias, Tensor? addend, Tensor norm_weight, Tensor norm_bias, float eps, bool gelu) -> Tensor",
        Kernel(linear::few_rows),
    ),
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::mlp(Tensor input, Tensor weight1, Tensor weight2, Tensor? bias1=None, Tensor? bias2=None, bool relu=False) -> (Tensor, Tensor, Tensor)",
            Differentiable(mlp::forward, &mlp::GRADIENT),
        )
    },
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::addmm(Tensor self, Tensor mat1, Tensor mat2, Scalar beta, Scalar alpha) -> Tensor",
            Pair(matmul::add_backend, matmul::add_autograd),
        )
    },
    OpDef {
        autocast: Autocast::Lower,
        ..OpDef::part(
            "thalweg::convolution(Tensor first, Tensor second, int computed, int[] size, int[] stride, int[] padding, int[] dilation, int groups, Tensor? bias=None, bool relu=False) -> Tensor",
            Differentiable(convolution::backend, &convolution::GRADIENT),
        )
    },
    OpDef::part(
        "thalweg::grid_sample(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        Differentiable(grid_sample::forward, &grid_sample::GRADIENT),
    ),
    OpDef {
        complex: Complex::Taken,
        ..OpDef::part(
            "thalweg::resample(Tensor self, int by, int[] size, float[] scale, int[] before) -> Tensor",
            Differentiable(resample::forward, &resample::GRADIENT),
        )
    },
    OpDef {
        complex: Complex::Taken,
        ..OpDef::part(
            "thalweg::resample_backward(Tensor self, int by, int[] size, float[] scale, int[] before) -> Tensor",
            Differentiable(resample::backward, &resample::BACKWARD_GRADIENT),
        )
    },
];
