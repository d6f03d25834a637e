//! Fused attention with dropout and with gradients of masks, compared with the composition of operators in f64 under the same
//! dropped weights.

use std::sync::Arc;

use thalweg_ir::{DType, philox};
use thalweg_lock::Mutex;
use thalweg_nn::functional::{AttentionOptions, scaled_dot_product_attention};
use thalweg_runtime::{CaptureOptions, Graph, Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with, saved_tensors_hooks};
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::{DeviceGenerator, Generator};
use thalweg_tensor::sdp::SdpBackend::{Cudnn, Flash, Math};
use thalweg_tensor::sdp::sdp_kernel;

use crate::support::{assert_close, device, random, values};

/// A call: its sizes and options.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    kv_heads: usize,
    shared: usize,
    queries: usize,
    keys: usize,
    features: usize,
    /// The features of the values.
    width: usize,
    p: f64,
    is_causal: bool,
    /// The shape of the mask, the dimensions that repeat being 1.
    mask: Option<Vec<usize>>,
    is_truth: bool,
    /// Whether tokens come before heads in memory.
    tokens_first: bool,
    seed: u64,
}

impl Case {
    fn drawn(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let mut below = |count: u32| generator.below(count).unwrap() as usize;
        let [batch, kv_heads, shared] = [1 + below(2), 1 + below(2), 1 + below(2)];
        let [queries, keys] = [1 + below(35), 1 + below(35)];
        let features = [8, 20, 64, 136][below(4)];
        let width = if below(3) == 0 { 1 + below(40) } else { features };
        let p = if below(4) == 0 { 0.0 } else { 0.1 + below(80) as f64 / 100.0 };
        let extents = [batch, kv_heads * shared, queries, keys];
        let mask = (below(10) < 7).then(|| {
            let shape = extents.map(|extent| if below(2) == 0 { 1 } else { extent });
            shape[below(5)..].to_vec()
        });
        let (is_truth, is_causal) = (below(2) == 0, below(2) == 0 && mask.is_none());
        let tokens_first = below(2) == 0;
        Self {
            batch,
            kv_heads,
            shared,
            queries,
            keys,
            features,
            width,
            p,
            is_causal,
            mask,
            is_truth,
            tokens_first,
            seed,
        }
    }
}

/// Returns numbers that float16 represents exactly, in memory by heads or by tokens.
fn representable(shape: [usize; 4], seed: u64, tokens_first: bool) -> Tensor {
    let [batch, heads, tokens, features] = shape;
    let numbers = |shape: &[usize]| random(shape, seed).to_dtype(DType::F16).unwrap();
    match tokens_first {
        true => numbers(&[batch, tokens, heads, features]).transpose(1, 2).unwrap(),
        false => numbers(&shape),
    }
}

/// Returns the factors of weights: the words of a piece of 16 × 16 weights are drawn by 32 subsequences.
fn factors([heads, queries, keys]: [usize; 3], p: f64, (seed, offset): (u64, u64)) -> Vec<f64> {
    let kept = ((1.0 - p) * 65_536.0).round() as u32;
    let (down, across) = (queries.div_ceil(16), keys.div_ceil(16));
    let places = (0..heads)
        .flat_map(|head| (0..queries).flat_map(move |query| (0..keys).map(move |key| (head, query, key))));
    let factor = |(head, query, key): (usize, usize, usize)| {
        let piece = (head * down + query / 16) * across + key / 16;
        let lane = query % 8 * 4 + key % 8 / 2;
        let word = key % 16 / 8 * 2 + query % 16 / 8;
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let ([low, high], [own, above]) = (halves(offset / 4), halves((piece * 32 + lane) as u64));
        let drawn = philox::block_of_rounds::<7>([low, high, own, above], halves(seed))[word];
        let half = if key % 2 == 0 { drawn & 0xffff } else { drawn >> 16 };
        if half < kept { 65_536.0 / f64::from(kept) } else { 0.0 }
    };
    places.map(factor).collect()
}

/// Returns the result of attention by operators in f64, with factors of the weights.
fn by_operators([q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, factors: &Tensor, case: &Case) -> Tensor {
    let wide = |tensor: &Tensor| tensor.repeat_interleave(case.shared as i64, Some(1)).unwrap();
    let scale = 1.0 / (case.features as f64).sqrt();
    let infinite = Tensor::full(&[], f64::NEG_INFINITY, DType::F64, &device()).unwrap();
    let mut scores = q.matmul(&wide(k).transpose(-2, -1).unwrap()).unwrap().mul_scalar(scale).unwrap();
    scores = match mask {
        Some(mask) if mask.dtype() == DType::Bool => mask.select_where(&scores, &infinite).unwrap(),
        Some(mask) => scores.add(mask).unwrap(),
        None => scores,
    };
    if case.is_causal {
        let seen = Tensor::ones(&[case.queries, case.keys], DType::Bool, &device()).unwrap().tril(0).unwrap();
        scores = seen.select_where(&scores, &infinite).unwrap();
    }
    let softmax = find_operator("_safe_softmax").unwrap();
    let arguments = [(&scores).into(), Argument::Int(-1), Argument::None];
    let weights = softmax.call(&arguments, None, Label::here("softmax")).unwrap().swap_remove(0);
    weights.mul(factors).unwrap().matmul(&wide(v)).unwrap()
}

/// Returns the operands of a case in float16: queries, keys, values, the gradient of the result, and the mask.
fn operands(case: &Case) -> ([Tensor; 4], Option<Tensor>) {
    let heads = case.kv_heads * case.shared;
    let of = |heads: usize, tokens: usize, features: usize, seed: u64| {
        representable([case.batch, heads, tokens, features], case.seed + seed, case.tokens_first)
    };
    let tensors = [
        of(heads, case.queries, case.features, 1),
        of(case.kv_heads, case.keys, case.features, 2),
        of(case.kv_heads, case.keys, case.width, 3),
        of(heads, case.queries, case.width, 4),
    ];
    let mask = case.mask.as_ref().map(|shape| {
        let numbers = random(shape, case.seed + 5).to_dtype(DType::F16).unwrap();
        if case.is_truth { numbers.gt_scalar(-0.3).unwrap() } else { numbers }
    });
    (tensors, mask)
}

/// Returns the result and the gradients of leaves.
fn results(
    leaves: &[Tensor],
    gradient: &Tensor,
    attend: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Vec<Vec<f64>> {
    let result = attend(leaves).unwrap();
    result.backward_with(gradient).unwrap();
    let of_leaves = leaves.iter().filter(|leaf| leaf.requires_grad());
    let gradients = of_leaves.map(|leaf| values(&leaf.grad().unwrap()));
    [values(&result)].into_iter().chain(gradients).collect()
}

fn agrees(case: &Case) {
    let ([q, k, v, gradient], mask) = operands(case);
    let leaf = |tensor: &Tensor, dtype: DType| match tensor.dtype() {
        DType::Bool => tensor.clone(),
        _ => tensor.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap(),
    };
    let leaves = |dtype: DType| -> Vec<Tensor> {
        [&q, &k, &v].into_iter().chain(&mask).map(|tensor| leaf(tensor, dtype)).collect()
    };
    let generator = DeviceGenerator::new(case.seed, &device()).unwrap();
    generator.set_state(case.seed, 4 * (case.seed % 7)).unwrap();
    let state = generator.state().unwrap();
    let found = results(&leaves(DType::F16), &gradient, |leaves| {
        let options = AttentionOptions {
            attn_mask: leaves.get(3),
            is_causal: case.is_causal,
            enable_gqa: true,
            dropout: Some((case.p, &generator)),
            ..AttentionOptions::default()
        };
        sdp_kernel(&[Cudnn, Flash], || {
            scaled_dot_product_attention(&leaves[0], &leaves[1], &leaves[2], options)
        })
    });
    let moved = if case.p == 0.0 { 0 } else { 4 };
    assert_eq!(generator.state().unwrap(), (state.0, state.1 + moved));
    let heads = case.kv_heads * case.shared;
    let shape = [case.batch, heads, case.queries, case.keys];
    let factors = match case.p {
        0.0 => vec![1.0; shape.iter().product()],
        p => factors([case.batch * heads, case.queries, case.keys], p, state),
    };
    let factors = Tensor::from_slice(&factors, &shape, &device()).unwrap();
    let wide = gradient.to_dtype(DType::F64).unwrap();
    let expected = results(&leaves(DType::F64), &wide, |leaves| {
        Ok(by_operators([&leaves[0], &leaves[1], &leaves[2]], leaves.get(3), &factors, case))
    });
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, 0.01);
    }
}

#[test]
fn weights_are_dropped_and_masks_have_gradients_as_by_operators() {
    for seed in 0..24 {
        let case = Case::drawn(seed);
        println!("{case:?}");
        agrees(&case);
    }
}

#[test]
fn gradients_of_gradients_with_dropout_regenerate_what_was_dropped() {
    let shape = [1, 2, 5, 8];
    let case = Case {
        batch: 1,
        kv_heads: 2,
        shared: 1,
        queries: 5,
        keys: 5,
        features: 8,
        width: 8,
        p: 0.4,
        is_causal: false,
        mask: Some(vec![2, 5, 5]),
        is_truth: false,
        tokens_first: false,
        seed: 3,
    };
    let ([q, k, v, along], mask) = operands(&case);
    let generator = DeviceGenerator::new(11, &device()).unwrap();
    let factors = factors([2, 5, 5], case.p, generator.state().unwrap());
    let factors = Tensor::from_slice(&factors, &[1, 2, 5, 5], &device()).unwrap();
    let second = |dtype: DType, attend: &dyn Fn(&[Tensor]) -> Result<Tensor>| {
        let leaf = |tensor: &Tensor| tensor.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap();
        let leaves: Vec<Tensor> = [&q, &k, &v].into_iter().chain(&mask).map(leaf).collect();
        let result = attend(&leaves).unwrap();
        assert_eq!(result.shape(), shape);
        let create = BackwardOptions { retain_graph: true, create_graph: true };
        let along = Some(along.to_dtype(dtype).unwrap());
        let first = gradients_with(&[result], &[along], &leaves, create).unwrap();
        let square = |of: Option<Tensor>| of.unwrap().square().unwrap().sum(&[], false).unwrap();
        let squares: Vec<Tensor> = first.into_iter().map(square).collect();
        let ones = vec![None; squares.len()];
        let found = gradients_with(&squares, &ones, &leaves, BackwardOptions::default()).unwrap();
        found.into_iter().map(|gradient| values(&gradient.unwrap())).collect::<Vec<_>>()
    };
    let fused = |leaves: &[Tensor]| {
        let dropout = Some((case.p, &generator));
        let options =
            AttentionOptions { attn_mask: Some(&leaves[3]), dropout, ..AttentionOptions::default() };
        sdp_kernel(&[Flash], || scaled_dot_product_attention(&leaves[0], &leaves[1], &leaves[2], options))
    };
    let by_operators = |leaves: &[Tensor]| {
        Ok(by_operators([&leaves[0], &leaves[1], &leaves[2]], leaves.get(3), &factors, &case))
    };
    for (found, expected) in second(DType::F16, &fused).iter().zip(&second(DType::F64, &by_operators)) {
        assert_close(found, expected, 0.03);
    }
}

#[test]
fn replays_of_a_graph_drop_other_weights() {
    let tensor = |shape: &[usize], seed| random(shape, seed).to_dtype(DType::F16).unwrap();
    let x = tensor(&[1, 2, 32, 16], 1).requires_grad_().unwrap();
    let gradient = tensor(&[1, 2, 32, 16], 2);
    let generator = DeviceGenerator::new(5, &device()).unwrap();
    let run = || {
        let options = AttentionOptions { dropout: Some((0.3, &generator)), ..AttentionOptions::default() };
        let result = sdp_kernel(&[Flash], || scaled_dot_product_attention(&x, &x, &x, options))?;
        result.backward_with(&gradient)?;
        Ok(result)
    };
    let eager: Vec<[Vec<f64>; 2]> = (0..3)
        .map(|_| {
            x.zero_grad();
            let result = run().unwrap();
            [values(&result), values(&x.grad().unwrap())]
        })
        .collect();
    assert!(eager[0] != eager[1] && eager[1] != eager[2]);
    generator.manual_seed(5).unwrap();
    x.zero_grad();
    let (graph, result) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
    let of_x = x.grad().unwrap();
    for expected in &eager {
        graph.replay().unwrap();
        assert_eq!([values(&result), values(&of_x)], *expected, "each replay draws as the eager call does");
    }
}

#[test]
fn nothing_of_the_size_of_the_scores_is_kept() {
    let x = random(&[2, 2, 64, 8], 1).to_dtype(DType::F16).unwrap().requires_grad_().unwrap();
    let mask = Tensor::ones(&[2, 1, 1, 64], DType::Bool, &device()).unwrap();
    let generator = DeviceGenerator::new(5, &device()).unwrap();
    let options = AttentionOptions {
        attn_mask: Some(&mask),
        dropout: Some((0.1, &generator)),
        ..AttentionOptions::default()
    };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let kept = sizes.clone();
    let pack = move |tensor: &Tensor| {
        kept.lock().push(tensor.elements());
        Ok(tensor.clone())
    };
    let attend = || scaled_dot_product_attention(&x, &x, &x, options);
    let result = saved_tensors_hooks(pack, |packed: &Tensor| Ok(packed.clone()), attend).unwrap();
    result.sum(&[], false).unwrap().backward().unwrap();
    // Queries, keys, values, mask, the generator's state, result and logarithms.
    let mut sizes = sizes.lock().clone();
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 128, 256, 2048, 2048, 2048, 2048]);
}

#[test]
fn a_probability_of_one_results_in_zeros_and_others_are_refused() {
    let x = random(&[1, 1, 4, 8], 1).to_dtype(DType::F16).unwrap().requires_grad_().unwrap();
    let generator = DeviceGenerator::new(5, &device()).unwrap();
    let attend = |p: f64| {
        let options = AttentionOptions { dropout: Some((p, &generator)), ..AttentionOptions::default() };
        scaled_dot_product_attention(&x, &x, &x, options)
    };
    let result = attend(1.0).unwrap();
    result.sum(&[], false).unwrap().backward().unwrap();
    assert!(values(&result).iter().chain(&values(&x.grad().unwrap())).all(|&value| value == 0.0));
    for p in [-0.1, 1.1, f64::NAN] {
        assert!(attend(p).unwrap_err().to_string().contains("between 0 and 1"));
    }
    let error = sdp_kernel(&[Cudnn], || attend(0.5)).unwrap_err().to_string();
    assert!(error.contains("No available kernel"), "{error}");
    assert!(sdp_kernel(&[Math], || attend(0.5)).is_ok());
}
