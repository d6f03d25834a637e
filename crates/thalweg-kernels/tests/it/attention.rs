//! Attention on the host against its formulas in f64.

use std::cell::Cell;

use proptest::prelude::*;
use thalweg_ir::{DType, Element, bf16, f16, philox};
use thalweg_kernels::attention::{
    Addresses, Attention, AttentionPass, Dropout, Mask, MaskStrides, Operands, Outputs, Pass, PerOperand,
    Strides, TensorCores, run_on_host,
};
use thalweg_kernels::{NativeKernel, Placed};

/// Returns numbers in −1.5 … 1.5 with a long period.
fn numbers<T: Element>(count: u64, seed: u64) -> Vec<T> {
    let number = |i: u64| ((i * 7919 + seed * 104_729) % 2003) as f64 / 667.0 - 1.5;
    (0..count).map(|i| T::from_f64(number(i))).collect()
}

/// The layouts that an operand of (batch, heads, rows, features) may have.
#[derive(Clone, Copy, Debug)]
enum Lies {
    /// (batch, heads, rows, features).
    HeadFirst,
    /// (batch, rows, heads, features), with this many elements between rows.
    RowFirst(u64),
    /// (rows, batch, heads, features).
    BatchInside,
}

fn strides(lies: Lies, [batch, heads, rows]: [u64; 3], features: u64) -> Strides {
    match lies {
        Lies::HeadFirst => Strides { batch: heads * rows * features, head: rows * features, row: features },
        Lies::RowFirst(gap) => {
            let row = heads * features + gap;
            Strides { batch: rows * row, head: features, row }
        }
        Lies::BatchInside => {
            Strides { batch: heads * features, head: features, row: batch * heads * features }
        }
    }
}

fn attentions() -> impl Strategy<Value = Attention> {
    let lies = || {
        prop_oneof![
            Just(Lies::HeadFirst),
            Just(Lies::RowFirst(0)),
            Just(Lies::RowFirst(16)),
            Just(Lies::BatchInside)
        ]
    };
    let all = (lies(), lies(), lies(), lies(), lies(), lies(), lies(), lies());
    let sizes = (1..3u64, 1..3u64, 1..3u64, 1..40u64, 1..40u64, 1..4u64, any::<bool>(), 0.05..1.0f32);
    let repeats = proptest::option::of((any::<[bool; 4]>(), any::<bool>()));
    let dropout = prop_oneof![Just(0.0), 0.05..0.95f64, Just(1.0)];
    (sizes, all, repeats, dropout).prop_map(|(sizes, all, repeats, dropout)| {
        let (batch, kv_heads, shared, queries, keys, chunks, is_causal, scale) = sizes;
        let (heads, features) = (kv_heads * shared, chunks * 8);
        let (q, k) = ([batch, heads, queries], [batch, kv_heads, keys]);
        let lies = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
        let extents = [q, k, k, q, q, q, k, k];
        let strides = PerOperand::of(std::array::from_fn(|at| strides(lies[at], extents[at], features)));
        let scale_bits = scale.to_bits();
        let extents = [batch, heads, queries, keys];
        let (repeats, is_truth) = repeats.map_or((None, false), |(repeats, is)| (Some(repeats), is));
        let mask = repeats.map(|repeats| Mask { strides: mask_strides(repeats, extents), is_truth });
        let grad_mask = repeats.map_or(MaskStrides::default(), |repeats| dense_strides(repeats, extents));
        Attention {
            dtype: DType::F16,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            features,
            is_causal,
            scale_bits,
            strides,
            mask,
            grad_mask,
            mask_parts: 1,
            dropout: Dropout::of(dropout),
        }
    })
}

/// Returns the strides of a contiguous tensor over the scores that has one element along some of the dimensions.
fn dense_strides(repeats: [bool; 4], extents: [u64; 4]) -> MaskStrides {
    let (mut strides, mut step) = ([0; 4], 1);
    for dimension in (0..4).rev() {
        if !repeats[dimension] && extents[dimension] > 1 {
            strides[dimension] = step;
            step *= extents[dimension];
        }
    }
    let [batch, head, query, key] = strides;
    MaskStrides { batch, head, query, key }
}

/// Returns the strides of a mask that repeats along some of its dimensions, with a gap between its rows.
fn mask_strides(repeats: [bool; 4], [_, heads, queries, keys]: [u64; 4]) -> MaskStrides {
    let row = keys + 3;
    let steps = [heads * queries * row, queries * row, row, 1];
    let [batch, head, query, key] = std::array::from_fn(|at| if repeats[at] { 0 } else { steps[at] });
    MaskStrides { batch, head, query, key }
}

/// Returns a mask of which every third element is −∞: some queries see no keys.
fn mask_of<T: Element>(attention: &Attention) -> Vec<T> {
    let Some(Mask { strides, .. }) = attention.mask else { return Vec::new() };
    let MaskStrides { batch, head, query, key } = strides;
    let Attention { batch: batches, heads, queries, keys, .. } = *attention;
    let count = (batches - 1) * batch + (heads - 1) * head + (queries - 1) * query + (keys - 1) * key + 1;
    let mut mask = numbers::<T>(count, 9);
    mask.iter_mut().step_by(3).for_each(|element| *element = T::from_f64(f64::NEG_INFINITY));
    mask
}

/// Returns the element of an operand, by its strides.
fn place(strides: Strides, [batch, head, row]: [u64; 3], feature: u64) -> usize {
    (batch * strides.batch + head * strides.head + row * strides.row + feature) as usize
}

/// Every result by the formulas of attention in f64, in the order (batch, head, row, feature).
///
/// Gradients are those of the rounded result that the passes were given, as in the passes.
struct Model {
    o: Vec<f64>,
    lse: Vec<f64>,
    grad_q: Vec<f64>,
    grad_k: Vec<f64>,
    grad_v: Vec<f64>,
    grad_mask: Vec<f64>,
}

/// Returns the place of a score in a tensor over the scores.
fn place_of_score(strides: MaskStrides, [batch, head, query]: [u64; 3], key: u64) -> usize {
    (batch * strides.batch + head * strides.head + query * strides.query + key * strides.key) as usize
}

/// Seed and offset of the draws.
const STATE: [u64; 2] = [0x1234_5678_9abc_def0, 40];

/// Returns the factor of a weight: the words of a piece of 16 queries × 16 keys are drawn by 32 subsequences.
fn factor(attention: &Attention, [batch, head, query]: [u64; 3], key: u64) -> f64 {
    let Some(Dropout { kept }) = attention.dropout else { return 1.0 };
    let [down, across] = [attention.queries, attention.keys].map(|count| count.div_ceil(16));
    let piece = ((batch * attention.heads + head) * down + query / 16) * across + key / 16;
    let lane = (query % 16 % 8) * 4 + key % 16 % 8 / 2;
    let word = (key % 16 / 8) * 2 + query % 16 / 8;
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let ([low, high], [own, above]) = (halves(STATE[1] / 4), halves(piece * 32 + lane));
    let drawn = philox::block_of_rounds::<7>([low, high, own, above], halves(STATE[0]))[word as usize];
    let half = if key.is_multiple_of(2) { drawn & 0xffff } else { drawn >> 16 };
    if half < kept { 65_536.0 / f64::from(kept) } else { 0.0 }
}

/// The elements that the model reads: q, k, v, the result and its gradient, by operand, head of a batch, row and feature.
type Read<'a> = &'a dyn Fn(usize, [u64; 3], u64) -> f64;

/// Returns the number of elements of the gradient of the mask.
fn grad_mask_len(attention: &Attention) -> usize {
    let Attention { batch, heads, queries, keys, grad_mask, .. } = *attention;
    place_of_score(grad_mask, [batch - 1, heads - 1, queries - 1], keys - 1) + 1
}

fn model(attention: &Attention, mask: &[f64], read: Read<'_>) -> Model {
    let Attention { batch, heads, kv_heads, queries, keys, features, is_causal, .. } = *attention;
    let scale = f64::from(attention.scale());
    let rows = |heads: u64, rows: u64| vec![0.0; (batch * heads * rows * features) as usize];
    let mut model = Model {
        o: rows(heads, queries),
        lse: Vec::new(),
        grad_q: rows(heads, queries),
        grad_k: rows(kv_heads, keys),
        grad_v: rows(kv_heads, keys),
        grad_mask: vec![0.0; grad_mask_len(attention)],
    };
    for (batch, head, query) in (0..batch).flat_map(|batch| {
        (0..heads).flat_map(move |head| (0..queries).map(move |query| (batch, head, query)))
    }) {
        let own = [batch, head, query];
        let other = |key: u64| [batch, head / (heads / kv_heads), key];
        let seen = if is_causal { keys.min(query + 1) } else { keys };
        let dot = |a: usize, b: usize, key: u64| -> f64 {
            (0..features).map(|at| read(a, own, at) * read(b, other(key), at)).sum()
        };
        let added = |key: u64| attention.mask.map_or(0.0, |it| mask[place_of_score(it.strides, own, key)]);
        let exponentials: Vec<f64> =
            (0..seen).map(|key| (dot(0, 1, key) * scale + added(key)).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        model.lse.push(sum.ln());
        if sum == 0.0 {
            continue;
        }
        let first = (((batch * heads + head) * queries + query) * features) as usize;
        for at in 0..features {
            let terms = exponentials
                .iter()
                .zip(0..)
                .map(|(weight, key)| weight / sum * factor(attention, own, key) * read(2, other(key), at));
            model.o[first + at as usize] = terms.sum();
        }
        let product: f64 = (0..features).map(|at| read(3, own, at) * read(4, own, at)).sum();
        for (exponential, key) in exponentials.iter().zip(0..) {
            let weight = exponential / sum;
            let factor = factor(attention, own, key);
            let of_mask = weight * (dot(4, 2, key) * factor - product);
            model.grad_mask[place_of_score(attention.grad_mask, own, key)] += of_mask;
            let score = of_mask * scale;
            let [_, kv_head, _] = other(key);
            let key_first = (((batch * kv_heads + kv_head) * keys + key) * features) as usize;
            for at in 0..features {
                let place = key_first + at as usize;
                model.grad_q[first + at as usize] += score * read(1, other(key), at);
                model.grad_k[place] += score * read(0, own, at);
                model.grad_v[place] += weight * factor * read(4, own, at);
            }
        }
    }
    model
}

/// Runs a pass on operands of which all elements that must not be read are NaN, and returns what it wrote.
fn run<T: Element>(
    attention: &Attention,
    pass: Pass,
    operands: Operands<'_, T>,
    [rows, grad_k, grad_v]: [&[Cell<T>]; 3],
    numbers: &[Cell<f32>],
) {
    run_on_host(attention, pass, operands, Outputs { rows, grad_k, grad_v, numbers });
}

/// Compares an output with the model, and the elements between its rows with the poison that was there before.
fn is_near<T: Element>(
    found: &[Cell<T>],
    strides: Strides,
    [batch, heads, rows]: [u64; 3],
    features: u64,
    expected: &[f64],
    tolerance: f64,
) -> Result<(), TestCaseError> {
    let mut is_written = vec![false; found.len()];
    let mut expected = expected.iter();
    for (batch, head, row) in (0..batch)
        .flat_map(|batch| (0..heads).flat_map(move |head| (0..rows).map(move |row| (batch, head, row))))
    {
        for feature in 0..features {
            let at = place(strides, [batch, head, row], feature);
            is_written[at] = true;
            let (found, expected) = (found[at].get().to_f64(), *expected.next().unwrap());
            prop_assert!(
                (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
                "{found} for {expected}"
            );
        }
    }
    for (cell, _) in found.iter().zip(is_written).filter(|(_, is_written)| !is_written) {
        prop_assert!(cell.get().to_f64().is_nan(), "written outside of the rows");
    }
    Ok(())
}

/// Returns the mask as numbers and as truth values, one of which is empty, and the numbers that are added to the scores.
fn forms_of_mask<T: Element>(attention: &Attention) -> (Vec<T>, Vec<u8>, Vec<f64>) {
    let numbers: Vec<T> = mask_of(attention);
    if !attention.mask.is_some_and(|mask| mask.is_truth) {
        let wide = numbers.iter().map(|element| element.to_f64()).collect();
        return (numbers, Vec::new(), wide);
    }
    let truths: Vec<u8> = numbers.iter().map(|element| u8::from(element.to_f64() > 0.0)).collect();
    let of_truth = |truth: &u8| if *truth == 1 { 0.0 } else { f64::NEG_INFINITY };
    let wide = truths.iter().map(of_truth).collect();
    (Vec::new(), truths, wide)
}

/// Compares the sums of parts, one after another, with the model.
fn is_sum_of_parts(parts: &[Cell<f32>], model: &[f64], epsilon: f64) -> Result<(), TestCaseError> {
    for (at, expected) in model.iter().enumerate() {
        let found: f64 = parts.iter().skip(at).step_by(model.len()).map(|part| f64::from(part.get())).sum();
        prop_assert!(
            (found - expected).abs() <= 4.0 * epsilon * (1.0 + expected.abs()),
            "{found} for {expected}"
        );
    }
    Ok(())
}

fn passes_agree<T: Element>(attention: &Attention, epsilon: f64) -> Result<(), TestCaseError> {
    let attention = Attention { dtype: T::DTYPE, ..*attention };
    attention.check().unwrap();
    let spans = attention.spans().list();
    let all: [Vec<T>; 5] = std::array::from_fn(|at| numbers(spans[at], at as u64));
    let strides = attention.strides.list();
    let (mask, truths, wide) = forms_of_mask::<T>(&attention);
    let model_of = |o: &[T]| {
        model(&attention, &wide, &|operand, row, feature| {
            let elements = if operand == 3 { o } else { &all[operand] };
            elements[place(strides[operand], row, feature)].to_f64()
        })
    };
    let poison = |count: u64| vec![Cell::new(T::from_f64(f64::NAN)); count as usize];
    let poison32 = |count: u64| vec![Cell::new(f32::NAN); count as usize];
    let nothing = Operands {
        q: &[],
        k: &[],
        v: &[],
        o: &[],
        grad_o: &[],
        lse: &[],
        sums: &[],
        mask: &mask,
        truths: &truths,
        state: STATE,
    };
    let Attention { batch, heads, kv_heads, queries, keys, features, .. } = attention;
    let (rows, key_rows) = ([batch, heads, queries], [batch, kv_heads, keys]);

    let (o, lse) = (poison(spans[3]), poison32(attention.lse()));
    let qkv = Operands { q: &all[0], k: &all[1], v: &all[2], ..nothing };
    run(&attention, Pass::Forward, qkv, [&o, &[], &[]], &lse);
    let model = model_of(&all[3]);
    is_near(&o, strides[3], rows, features, &model.o, epsilon)?;
    for (found, expected) in lse.iter().zip(&model.lse) {
        let found = f64::from(found.get());
        prop_assert!(found == *expected || (found - expected).abs() < 1e-4, "{found} for {expected}");
    }

    let sums = poison32(attention.sums());
    let o: Vec<T> = o.iter().map(Cell::get).collect();
    let lse: Vec<f32> = lse.iter().map(Cell::get).collect();
    let of_result = Operands { o: &o, grad_o: &all[4], lse: &lse, ..nothing };
    run(&attention, Pass::Sums, of_result, [&[], &[], &[]], &sums);
    let sums: Vec<f32> = sums.iter().map(Cell::get).collect();
    prop_assert!(sums.iter().all(|sum| !sum.is_nan()), "every sum is written");

    let [grad_q, grad_k, grad_v] = [5, 6, 7].map(|at| poison(spans[at]));
    let given = Operands { grad_o: &all[4], sums: &sums, ..qkv };
    run(&attention, Pass::Keys, given, [&[], &grad_k, &grad_v], &[]);
    run(&attention, Pass::Queries, given, [&grad_q, &[], &[]], &[]);
    // In one part, and in as many as a device of this number of multiprocessors has blocks for.
    let model = model_of(&o);
    let pass = AttentionPass { attention, pass: Pass::Mask, cores: TensorCores::Warp, processors: 2 };
    for mask_parts in [1, pass.parts_of_mask()] {
        let len = grad_mask_len(&attention);
        let parts = poison32(mask_parts * len as u64);
        run(&Attention { mask_parts, ..attention }, Pass::Mask, given, [&[], &[], &[]], &parts);
        is_sum_of_parts(&parts, &model.grad_mask, epsilon)?;
    }
    is_near(&grad_q, strides[5], rows, features, &model.grad_q, epsilon)?;
    is_near(&grad_k, strides[6], key_rows, features, &model.grad_k, epsilon)?;
    is_near(&grad_v, strides[7], key_rows, features, &model.grad_v, epsilon)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_pass_is_its_formula(attention in attentions()) {
        passes_agree::<f16>(&attention, 1.0 / 1024.0)?;
        passes_agree::<bf16>(&attention, 1.0 / 128.0)?;
        passes_agree::<f32>(&attention, 1e-4)?;
    }

    #[test]
    fn arguments_are_read_back(attention in attentions(), pass in 0..5usize, lse in any::<u64>()) {
        let kernel = AttentionPass { attention, pass: Pass::ALL[pass], cores: TensorCores::Warp, processors: 0 };
        let operands = PerOperand::of([16, 32, 48, 64, 80, 96, 112, 128]);
        let at = Addresses { operands, lse, sums: 7, mask: 9, grad_mask: 10, state: 11 };
        let words = kernel.pack(&at);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        prop_assert_eq!(AttentionPass::unpack(&bytes), Some((kernel, at)));
        prop_assert_eq!(AttentionPass::unpack(&bytes[8..]), None);
    }
}

fn example() -> Attention {
    let row = |heads: u64| Strides { batch: 100 * heads * 64, head: 64, row: heads * 64 };
    Attention {
        dtype: DType::Bf16,
        batch: 2,
        heads: 4,
        kv_heads: 2,
        queries: 100,
        keys: 100,
        features: 64,
        is_causal: true,
        scale_bits: 0.125f32.to_bits(),
        strides: PerOperand::of([4, 2, 2, 4, 4, 4, 2, 2].map(row)),
        mask: None,
        grad_mask: MaskStrides::default(),
        mask_parts: 1,
        dropout: None,
    }
}

#[test]
fn what_no_kernel_takes_is_refused() {
    assert_eq!(example().check(), Ok(()));
    let refused = |attention: Attention, why: &str| {
        let fault = attention.check().unwrap_err().to_string();
        assert!(fault.contains(why), "{fault}");
    };
    refused(Attention { dtype: DType::F64, ..example() }, "not float64");
    refused(Attention { dtype: DType::F32, features: 136, ..example() }, "up to 128 features, not 136");
    refused(Attention { features: 60, ..example() }, "not 60");
    refused(Attention { features: 264, ..example() }, "not 264");
    refused(Attention { dropout: Some(Dropout { kept: 1 << 16 }), ..example() }, "fewer than all");
    refused(Attention { kv_heads: 3, ..example() }, "3 heads of keys cannot be shared by 4");
    refused(Attention { keys: 0, ..example() }, "no key");
    refused(Attention { scale_bits: (-1.0f32).to_bits(), ..example() }, "above 0, not -1");
    let mut strides = example().strides;
    strides.v.row = 3;
    refused(Attention { strides, ..example() }, "multiples of 8");
    let kernel =
        AttentionPass { attention: example(), pass: Pass::Forward, cores: TensorCores::Warp, processors: 0 };
    let operands = PerOperand { k: 8, ..PerOperand::default() };
    let placed = Placed { kernel, at: Addresses { operands, ..Addresses::default() } };
    assert!(NativeKernel::check(&placed).unwrap_err().to_string().contains("16 bytes"));
}

#[test]
fn a_pass_touches_what_it_reads_and_writes() {
    let operands = PerOperand::of([1, 2, 3, 4, 5, 6, 7, 8].map(|place| place << 32));
    let at = Addresses {
        operands,
        lse: 9 << 32,
        sums: 10 << 32,
        mask: 11 << 32,
        grad_mask: 12 << 32,
        state: 13 << 32,
    };
    let touched_of = |attention: Attention, pass| {
        let kernel = AttentionPass { attention, pass, cores: TensorCores::WarpGroup, processors: 0 };
        let accesses = Placed { kernel, at }.accesses();
        accesses.iter().map(|access| (access.start >> 32, access.bytes)).collect::<Vec<_>>()
    };
    let touched = |pass| touched_of(example(), pass);
    let (q, k) = (2 * 100 * 4 * 64 * 2, 2 * 100 * 2 * 64 * 2);
    let (lse, sums) = (2 * 4 * 100 * 4, 2 * 2 * 4 * 128 * 4);
    assert_eq!(touched(Pass::Forward), [(1, q), (2, k), (3, k), (4, q), (9, lse)]);
    assert_eq!(touched(Pass::Sums), [(4, q), (5, q), (9, lse), (10, sums)]);
    assert_eq!(touched(Pass::Keys), [(1, q), (2, k), (3, k), (5, q), (10, sums), (7, k), (8, k)]);
    assert_eq!(touched(Pass::Queries), [(1, q), (2, k), (3, k), (5, q), (10, sums), (6, q)]);
    // One row of keys per batch.
    let strides = MaskStrides { batch: 128, head: 0, query: 0, key: 1 };
    let of_kind = |pass, is_truth| {
        let mask = Some(Mask { strides, is_truth });
        touched_of(Attention { mask, ..example() }, pass).into_iter().find(|it| it.0 == 11)
    };
    let masked = |pass| of_kind(pass, false);
    assert_eq!(masked(Pass::Forward), Some((11, (128 + 100) * 2)));
    assert_eq!((masked(Pass::Keys), masked(Pass::Queries)), (masked(Pass::Forward), masked(Pass::Forward)));
    assert_eq!(masked(Pass::Sums), None);
    assert_eq!(of_kind(Pass::Queries, true), Some((11, 128 + 100)));
    // The state of dropout, and the gradient of a mask with one row per batch.
    let grad_mask = MaskStrides { batch: 100, head: 0, query: 0, key: 1 };
    let mask = Some(Mask { strides, is_truth: false });
    let drops = Attention { mask, grad_mask, dropout: Dropout::of(0.1), ..example() };
    let written = touched_of(drops, Pass::Mask);
    assert_eq!(written.iter().find(|it| it.0 == 12), Some(&(12, 200 * 4)));
    let parts = touched_of(Attention { mask_parts: 3, ..drops }, Pass::Mask);
    assert_eq!(parts.iter().find(|it| it.0 == 12), Some(&(12, 3 * 200 * 4)));
    assert_eq!(written.iter().find(|it| it.0 == 13), Some(&(13, 16)));
    assert_eq!(touched_of(drops, Pass::Sums).iter().find(|it| it.0 == 13), None);
}

#[test]
fn a_probability_is_rounded_to_half_a_word() {
    assert_eq!(Dropout::of(0.0), None);
    assert_eq!(Dropout::of(0.5), Some(Dropout { kept: 1 << 15 }));
    assert_eq!(Dropout::of(1.0), Some(Dropout { kept: 0 }));
    assert_eq!(Dropout::of(1.0 - 1e-9), Some(Dropout { kept: 1 }));
    assert_eq!(Dropout::of(1e-5), Some(Dropout { kept: (1 << 16) - 1 }));
    assert_eq!(Dropout::of(7e-6), None);
    assert_eq!(Dropout { kept: 0 }.rescale(), 0.0);
    assert_eq!(Dropout { kept: 1 << 14 }.rescale(), 4.0);
}
