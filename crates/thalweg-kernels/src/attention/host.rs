//! The passes of attention on the host, which define the results.

use std::cell::Cell;

use thalweg_ir::Element;

use super::dropout::Pieces;
use super::{Attention, MaskStrides, Pass, PerOperand, Strides};

/// The operands of a pass; those that the pass does not read are empty.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'e, T> {
    /// Queries.
    pub q: &'e [T],
    /// Keys.
    pub k: &'e [T],
    /// Values.
    pub v: &'e [T],
    /// The result.
    pub o: &'e [T],
    /// The gradient of the result.
    pub grad_o: &'e [T],
    /// The logarithms of the sums of exponentials, for the gradient.
    pub lse: &'e [f32],
    /// The results of [`Pass::Sums`].
    pub sums: &'e [f32],
    /// The mask, if there is one of numbers.
    pub mask: &'e [T],
    /// The mask, if there is one of truth values.
    pub truths: &'e [u8],
    /// Seed and offset of the generator, with dropout.
    pub state: [u64; 2],
}

/// The results of a pass, as cells, because the gradients of a packed tensor interleave; those that the pass does not write are
/// empty.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'e, T: Copy> {
    /// The result, or the gradient of the queries.
    pub rows: &'e [Cell<T>],
    /// The gradient of the keys.
    pub grad_k: &'e [Cell<T>],
    /// The gradient of the values.
    pub grad_v: &'e [Cell<T>],
    /// The logarithms, the sums, or the parts of the gradient of the mask.
    pub numbers: &'e [Cell<f32>],
}

/// A head of one batch, and the head of keys that it reads.
#[derive(Clone, Copy)]
struct Head {
    batch: u64,
    head: u64,
    kv_head: u64,
    /// The index of the head among the heads of all batches.
    place: usize,
}

/// Runs a pass on the host, in f32.
///
/// # Panics
/// If an operand is shorter than its [span](Attention::spans).
pub fn run_on_host<T: Element>(
    attention: &Attention,
    pass: Pass,
    read: Operands<'_, T>,
    write: Outputs<'_, T>,
) {
    let Attention { batch, heads, kv_heads, .. } = *attention;
    if pass == Pass::Keys {
        for (batch, kv_head) in (0..batch).flat_map(|batch| (0..kv_heads).map(move |head| (batch, head))) {
            gradient_of_keys(attention, batch, kv_head, read, write);
        }
        return;
    }
    if pass == Pass::Mask {
        return gradient_of_mask(attention, read, write.numbers);
    }
    for (batch, head) in (0..batch).flat_map(|batch| (0..heads).map(move |head| (batch, head))) {
        let kv_head = head / (heads / kv_heads);
        let head = Head { batch, head, kv_head, place: (batch * heads + head) as usize };
        match pass {
            Pass::Forward => forward(attention, head, read, write),
            Pass::Sums => sums(attention, head, read, write.numbers),
            _ => gradient_of_queries(attention, head, read, write.rows),
        }
    }
}

/// Returns where a row begins.
fn start(strides: Strides, batch: u64, head: u64, row: u64) -> usize {
    (batch * strides.batch + head * strides.head + row * strides.row) as usize
}

/// Returns a row as f32.
fn row<T: Element>(attention: &Attention, from: &[T], strides: Strides, at: (u64, u64, u64)) -> Vec<f32> {
    let row = &from[start(strides, at.0, at.1, at.2)..][..attention.features as usize];
    row.iter().map(|value| value.to_f64() as f32).collect()
}

/// Returns all rows of a head as f32.
fn rows<T: Element>(
    attention: &Attention,
    from: &[T],
    strides: Strides,
    (batch, head): (u64, u64),
    count: u64,
) -> Vec<Vec<f32>> {
    (0..count).map(|at| row(attention, from, strides, (batch, head, at))).collect()
}

fn store<T: Element>(to: &[Cell<T>], start: usize, values: &[f32]) {
    for (to, &value) in to[start..][..values.len()].iter().zip(values) {
        to.set(T::from_f64(f64::from(value)));
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Sixteen sums are independent, so that they are vectors.
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0.0_f32; 16];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f32>()
}

/// Adds a row times a factor.
fn add(to: &mut [f32], factor: f32, row: &[f32]) {
    to.iter_mut().zip(row).for_each(|(to, value)| *to += factor * value);
}

/// Returns the place of a score in a tensor over the scores.
fn place(strides: MaskStrides, (batch, head): (u64, u64), query: u64, key: usize) -> usize {
    let MaskStrides { batch: of_batch, head: of_head, query: of_query, key: of_key } = strides;
    (batch * of_batch + head * of_head + query * of_query + key as u64 * of_key) as usize
}

/// Returns the number that the mask adds to a score.
fn added<T: Element>(
    attention: &Attention,
    read: &Operands<'_, T>,
    head: (u64, u64),
    query: u64,
    key: usize,
) -> f32 {
    match attention.mask {
        None => 0.0,
        Some(mask) if mask.is_truth && read.truths[place(mask.strides, head, query, key)] != 0 => 0.0,
        Some(mask) if mask.is_truth => f32::NEG_INFINITY,
        Some(mask) => read.mask[place(mask.strides, head, query, key)].to_f64() as f32,
    }
}

/// Returns the factor of a weight: 1 without dropout, else 0 or that of the weights that are kept.
fn factor<T: Element>(
    attention: &Attention,
    read: &Operands<'_, T>,
    (batch, head): (u64, u64),
    query: u64,
    key: usize,
) -> f32 {
    let Some(dropout) = attention.dropout else { return 1.0 };
    let Attention { heads, queries, keys, .. } = *attention;
    let pieces = Pieces { dropout, queries, keys, state: read.state };
    if pieces.keeps(batch * heads + head, query, key as u64) { dropout.rescale() } else { 0.0 }
}

/// Returns the number of keys that a query sees.
fn seen(attention: &Attention, query: u64) -> usize {
    let seen = if attention.is_causal { (query + 1).min(attention.keys) } else { attention.keys };
    seen as usize
}

fn forward<T: Element>(attention: &Attention, head: Head, read: Operands<'_, T>, write: Outputs<'_, T>) {
    let PerOperand { q, k, v, o, .. } = attention.strides;
    let shared = (head.batch, head.kv_head);
    let keys = rows(attention, read.k, k, shared, attention.keys);
    let values = rows(attention, read.v, v, shared, attention.keys);
    for query in 0..attention.queries {
        let own = row(attention, read.q, q, (head.batch, head.head, query));
        let seen = seen(attention, query);
        let place = (head.batch, head.head);
        let mask = |key: usize| added(attention, &read, place, query, key);
        let score = |(at, key): (usize, &Vec<f32>)| dot(&own, key) * attention.scale() + mask(at);
        let scores: Vec<f32> = keys[..seen].iter().enumerate().map(score).collect();
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
        let (mut sum, mut result) = (0.0, vec![0.0; attention.features as usize]);
        for (at, (score, value)) in scores.iter().zip(&values).enumerate() {
            let weight = (score - base).exp();
            sum += weight;
            add(&mut result, weight * factor(attention, &read, place, query, at), value);
        }
        let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        result.iter_mut().for_each(|value| *value *= inverse);
        store(write.rows, start(o, head.batch, head.head, query), &result);
        let place = head.place * attention.queries as usize + query as usize;
        write.numbers[place].set(if sum == 0.0 { f32::NEG_INFINITY } else { base + sum.ln() });
    }
}

fn sums<T: Element>(attention: &Attention, head: Head, read: Operands<'_, T>, write: &[Cell<f32>]) {
    let PerOperand { o, grad_o, .. } = attention.strides;
    let padded = attention.padded_queries() as usize;
    let (logarithms, products) = write.split_at((attention.batch * attention.heads) as usize * padded);
    for query in 0..padded {
        let (mut logarithm, mut product) = (f32::INFINITY, 0.0);
        if (query as u64) < attention.queries {
            let lse = read.lse[head.place * attention.queries as usize + query];
            let at = (head.batch, head.head, query as u64);
            product = dot(&row(attention, read.o, o, at), &row(attention, read.grad_o, grad_o, at));
            // A row that sees no keys has weights of 0.
            logarithm = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse * std::f32::consts::LOG2_E };
        }
        logarithms[head.place * padded + query].set(logarithm);
        products[head.place * padded + query].set(product);
    }
}

/// Returns the sums of a query.
fn sums_of(attention: &Attention, place: usize, query: u64, sums: &[f32]) -> (f32, f32) {
    let padded = attention.padded_queries() as usize;
    let at = place * padded + query as usize;
    (sums[at], sums[(attention.batch * attention.heads) as usize * padded + at])
}

/// Recomputes a weight from a score with scale and mask, and returns it with the gradient of the score.
fn weight(score: f32, (logarithm, product): (f32, f32), gradient: f32) -> (f32, f32) {
    let weight = (score * std::f32::consts::LOG2_E - logarithm).exp2();
    (weight, weight * (gradient - product))
}

fn gradient_of_queries<T: Element>(
    attention: &Attention,
    head: Head,
    read: Operands<'_, T>,
    write: &[Cell<T>],
) {
    let PerOperand { q, k, v, grad_o, grad_q, .. } = attention.strides;
    let shared = (head.batch, head.kv_head);
    let keys = rows(attention, read.k, k, shared, attention.keys);
    let values = rows(attention, read.v, v, shared, attention.keys);
    for query in 0..attention.queries {
        let at = (head.batch, head.head, query);
        let own = row(attention, read.q, q, at);
        let gradient = row(attention, read.grad_o, grad_o, at);
        let sums = sums_of(attention, head.place, query, read.sums);
        let mut result = vec![0.0; attention.features as usize];
        for (place, (key, value)) in keys.iter().zip(&values).take(seen(attention, query)).enumerate() {
            let mask = added(attention, &read, (head.batch, head.head), query, place);
            let factor = factor(attention, &read, (head.batch, head.head), query, place);
            let score = dot(&own, key) * attention.scale() + mask;
            let (_, score) = weight(score, sums, dot(&gradient, value) * factor);
            add(&mut result, score * attention.scale(), key);
        }
        store(write, start(grad_q, head.batch, head.head, query), &result);
    }
}

fn gradient_of_keys<T: Element>(
    attention: &Attention,
    batch: u64,
    kv_head: u64,
    read: Operands<'_, T>,
    write: Outputs<'_, T>,
) {
    let PerOperand { q, k, v, grad_o, grad_k, grad_v, .. } = attention.strides;
    let shared = attention.heads / attention.kv_heads;
    let keys = rows(attention, read.k, k, (batch, kv_head), attention.keys);
    let values = rows(attention, read.v, v, (batch, kv_head), attention.keys);
    let nothing = || vec![vec![0.0; attention.features as usize]; attention.keys as usize];
    let (mut of_keys, mut of_values) = (nothing(), nothing());
    for head in kv_head * shared..(kv_head + 1) * shared {
        let place = (batch * attention.heads + head) as usize;
        for query in 0..attention.queries {
            let own = row(attention, read.q, q, (batch, head, query));
            let gradient = row(attention, read.grad_o, grad_o, (batch, head, query));
            let sums = sums_of(attention, place, query, read.sums);
            for key in 0..seen(attention, query) {
                let factor = factor(attention, &read, (batch, head), query, key);
                let gradient_of_weight = dot(&gradient, &values[key]) * factor;
                let mask = added(attention, &read, (batch, head), query, key);
                let score = dot(&own, &keys[key]) * attention.scale() + mask;
                let (weight, score) = weight(score, sums, gradient_of_weight);
                add(&mut of_values[key], weight * factor, &gradient);
                add(&mut of_keys[key], score * attention.scale(), &own);
            }
        }
    }
    for (key, (of_key, of_value)) in of_keys.iter().zip(&of_values).enumerate() {
        store(write.grad_k, start(grad_k, batch, kv_head, key as u64), of_key);
        store(write.grad_v, start(grad_v, batch, kv_head, key as u64), of_value);
    }
}

fn gradient_of_mask<T: Element>(attention: &Attention, read: Operands<'_, T>, write: &[Cell<f32>]) {
    let PerOperand { q, k, v, grad_o, .. } = attention.strides;
    let Attention { batch, heads, kv_heads, queries, grad_mask, mask_parts, .. } = *attention;
    let mut all = vec![0.0_f32; write.len()];
    let across = if grad_mask.head == 0 { heads } else { 1 };
    let pairs = if grad_mask.batch == 0 { batch * across } else { across };
    for (batch, head) in (0..batch).flat_map(|batch| (0..heads).map(move |head| (batch, head))) {
        let pair = if grad_mask.batch == 0 { batch * across } else { 0 } + head % across;
        // The last part that begins at the pair or before it.
        let part = ((pair + 1) * mask_parts - 1) / pairs;
        let part = &mut all[(part * attention.elements_of_mask_part()) as usize..];
        let shared = (batch, head / (heads / kv_heads));
        let keys = rows(attention, read.k, k, shared, attention.keys);
        let values = rows(attention, read.v, v, shared, attention.keys);
        for query in 0..queries {
            let own = row(attention, read.q, q, (batch, head, query));
            let gradient = row(attention, read.grad_o, grad_o, (batch, head, query));
            let sums = sums_of(attention, (batch * heads + head) as usize, query, read.sums);
            for key in 0..seen(attention, query) {
                let mask = added(attention, &read, (batch, head), query, key);
                let factor = factor(attention, &read, (batch, head), query, key);
                let score = dot(&own, &keys[key]) * attention.scale() + mask;
                let (_, score) = weight(score, sums, dot(&gradient, &values[key]) * factor);
                part[place(grad_mask, (batch, head), query, key)] += score;
            }
        }
    }
    write.iter().zip(all).for_each(|(to, value)| to.set(value));
}
