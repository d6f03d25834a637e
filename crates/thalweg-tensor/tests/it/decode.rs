//! A decoder's step: products of few rows, and attention of one query, against their formulas in f64.

use thalweg_ir::DType;
use thalweg_nn::functional::{
    AttentionOptions, cached_attention, layer_norm, linear, linear_add, norm_linear,
    scaled_dot_product_attention,
};
use thalweg_runtime::Result;
use thalweg_runtime::sim::Check;
use thalweg_tensor::dispatch::trace;
use thalweg_tensor::fused::NormLinear;
use thalweg_tensor::sdp::{SdpBackend, sdp_kernel};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{assert_close, close, device, random, values};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Returns numbers that a dtype represents exactly, as a tensor of that dtype.
fn representable(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    random(shape, seed).to_dtype(dtype).unwrap()
}

/// Returns the tolerance of a sum of this many terms below 1 that is rounded to a dtype once.
fn bound(dtype: DType, terms: usize) -> f64 {
    let rounding = match dtype {
        DType::F16 => 5e-4,
        DType::Bf16 => 4e-3,
        _ => 1e-7,
    };
    rounding + terms as f64 * 6e-8
}

/// Leaves NaN in the memory of the next tensor of this size.
fn poison(shape: &[usize], dtype: DType) {
    drop(Tensor::full(shape, f64::NAN, dtype, &device()).unwrap());
}

/// Returns input · weightᵀ + bias + addend, from values.
fn layer([input, weight, bias, addend]: [&Tensor; 4]) -> Vec<f64> {
    let [x, w, b, a] = [input, weight, bias, addend].map(values);
    let (k, n) = (input.shape()[1], weight.shape()[0]);
    let term = |row: usize, column: usize| {
        (0..k).map(|i| x[row * k + i] * w[column * k + i]).sum::<f64>() + b[column] + a[row * n + column]
    };
    (0..input.shape()[0])
        .flat_map(|row| (0..n).map(move |column| (row, column)))
        .map(|(r, c)| term(r, c))
        .collect()
}

#[test]
fn layers_of_few_rows_are_near_those_in_f64() {
    // Columns and terms: whole chunks and a rest, rows that several warps share, columns that four rows at a time do not divide.
    for (n, k) in [(300, 264), (37, 2048), (16_390, 8)] {
        for (dtype, rows) in DTYPES.into_iter().flat_map(|dtype| [1, 2, 4].map(|rows| (dtype, rows))) {
            let input = representable(&[rows, k], 1, dtype);
            // The weight is a part of a wider one.
            let weight = representable(&[n, k + 8], 2, dtype).narrow(1, 0, k).unwrap();
            let (bias, addend) = (representable(&[n], 3, dtype), representable(&[rows, n], 4, dtype));
            let expected = layer([&input, &weight, &bias, &addend]);
            poison(&[rows, n], dtype);
            let result = no_grad(|| linear_add(&input, &weight, Some(&bias), &addend)).unwrap();
            let found = values(&result);
            for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                let bound = bound(dtype, k);
                assert!(
                    close(found, expected, bound),
                    "{dtype} {rows} x {n} x {k} [{at}]: {found}, {expected}"
                );
            }
            // Without a bias and an addend, and from an address that is not a multiple of 16 bytes.
            let zero = |shape: &[usize]| Tensor::zeros(shape, dtype, &device()).unwrap();
            let expected = layer([&input, &weight, &zero(&[n]), &zero(&[rows, n])]);
            let shifted = zero(&[n * k + 1]).narrow(0, 1, n * k).unwrap().reshape(&[n, k]).unwrap();
            shifted.copy_(&weight).unwrap();
            for weight in [&weight, &shifted] {
                poison(&[rows, n], dtype);
                let result = no_grad(|| linear(&input, weight, None)).unwrap();
                assert_close(&values(&result), &expected, bound(dtype, k));
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_beside_others() {
    for dtype in DTYPES {
        let (input, weight) = (representable(&[4, 520], 1, dtype), representable(&[130, 520], 2, dtype));
        let of = |rows: usize| values(&linear(&input.narrow(0, 0, rows).unwrap(), &weight, None).unwrap());
        let alone = no_grad(|| of(1));
        for rows in 2..=4 {
            assert_eq!(no_grad(|| of(rows))[..130], alone[..], "{dtype}, {rows} rows");
        }
    }
}

/// Returns the layer norm of rows by its formula, with a weight and a bias.
fn normalized([input, weight, bias]: [&Tensor; 3], eps: f64) -> Vec<f64> {
    let [x, w, b] = [input, weight, bias].map(values);
    let width = w.len();
    let of_row = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let factor = 1.0 / (variance + eps).sqrt();
        row.iter().enumerate().map(|(at, x)| (x - mean) * factor * w[at] + b[at]).collect::<Vec<_>>()
    };
    x.chunks(width).flat_map(of_row).collect()
}

#[test]
fn a_norm_before_a_layer_of_few_rows_is_one_kernel_near_the_formula_in_f64() {
    for (dtype, (n, k)) in
        DTYPES.into_iter().flat_map(|dtype| [(300, 264), (37, 2048)].map(|size| (dtype, size)))
    {
        // The last is more rows than the kernel takes.
        for rows in [1, 2, 4, 5] {
            let input = representable(&[1, rows, k], 1, dtype);
            let (weight, bias, addend) = (
                representable(&[n, k], 2, dtype),
                representable(&[n], 3, dtype),
                representable(&[1, rows, n], 4, dtype),
            );
            let norm = [representable(&[k], 5, dtype), representable(&[k], 6, dtype)];
            let normal = normalized([&input, &norm[0], &norm[1]], 0.25);
            let normal = Tensor::from_slice(&normal, &[rows, k], &device()).unwrap().to_dtype(dtype).unwrap();
            let zero = Tensor::zeros(&[rows, n], dtype, &device()).unwrap();
            let product = layer([&normal, &weight, &bias, &zero]);
            for (gelu, addend) in [(false, None), (true, None), (true, Some(&addend))] {
                let parts = NormLinear {
                    norm: norm.each_ref(),
                    eps: 0.25,
                    weight: &weight,
                    bias: Some(&bias),
                    gelu,
                    addend,
                };
                let added = addend.map_or(vec![0.0; rows * n], values);
                let act = |x: f64| match gelu {
                    true => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x.powi(3))).tanh()),
                    false => x,
                };
                let expected: Vec<f64> =
                    product.iter().zip(added).map(|(&x, added)| act(x) + added).collect();
                poison(&[rows, n], dtype);
                let (result, calls) = trace(|| no_grad(|| norm_linear(&input, &parts))).unwrap();
                assert_eq!(result.shape(), [1, rows, n]);
                assert_eq!(calls.to_string().contains("thalweg::norm_linear"), rows <= 4, "{calls}");
                // A term may be rounded to the other side in the norm, which the products of a row carry on.
                let bound = 4.0 * bound(dtype, k) * (k as f64).sqrt();
                for (at, (&found, &expected)) in values(&result).iter().zip(&expected).enumerate() {
                    assert!(
                        close(found, expected, bound),
                        "{dtype} {rows} x {n} x {k} [{at}]: {found}, {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_norm_before_a_layer_with_gradients_is_the_two_operators() {
    let leaf = |shape: &[usize], seed| random(shape, seed).detach().requires_grad_().unwrap();
    let leaves = [leaf(&[2, 264], 1), leaf(&[264], 2), leaf(&[264], 3), leaf(&[300, 264], 4)];
    let gradients = |result: Tensor| {
        leaves.iter().for_each(Tensor::zero_grad);
        result.backward_with(&random(&[2, 300], 5)).unwrap();
        leaves.each_ref().map(|leaf| values(&leaf.grad().unwrap()))
    };
    let [input, scale, shift, weight] = &leaves;
    let norm = [scale, shift];
    let parts = NormLinear { norm, eps: 1e-5, weight, bias: None, gelu: false, addend: None };
    let found = gradients(norm_linear(input, &parts).unwrap());
    let normal = layer_norm(input, &[264], Some(scale), Some(shift), 1e-5).unwrap();
    assert_eq!(found, gradients(linear(&normal, weight, None).unwrap()));
    let short = NormLinear { norm: [&shift.narrow(0, 0, 8).unwrap(), shift], ..parts };
    let refused = norm_linear(input, &short).unwrap_err();
    assert!(refused.is_invalid_argument(), "{refused}");
}

/// A function that returns whether the query of an item's head may attend to a key.
type Counts = fn(usize, usize, usize) -> bool;

/// Returns attention of one query per head, computed from values; `counts` returns whether a head's query may attend to a key.
fn one_query(tensors: [&Tensor; 3], scale: f64, counts: impl Fn(usize, usize, usize) -> bool) -> Vec<f64> {
    let [q, k, v] = tensors.map(values);
    let [&[batch, heads, _, features], &[_, kv_heads, keys, _]] = [tensors[0].shape(), tensors[1].shape()]
    else {
        panic!("tensors of rank 4")
    };
    let mut all = Vec::new();
    for (item, head) in (0..batch).flat_map(|item| (0..heads).map(move |head| (item, head))) {
        let of = |elements: &[f64], key: usize, feature: usize| {
            let shared = head / (heads / kv_heads);
            elements[((item * kv_heads + shared) * keys + key) * features + feature]
        };
        let query = &q[(item * heads + head) * features..][..features];
        let seen: Vec<usize> = (0..keys).filter(|&key| counts(item, head, key)).collect();
        let score = |key: usize| scale * (0..features).map(|f| query[f] * of(&k, key, f)).sum::<f64>();
        let weights: Vec<f64> = seen.iter().map(|&key| score(key).exp()).collect();
        let total: f64 = weights.iter().sum();
        all.extend((0..features).map(|feature| {
            let sum: f64 =
                seen.iter().zip(&weights).map(|(&key, weight)| weight * of(&v, key, feature)).sum();
            if total == 0.0 { 0.0 } else { sum / total }
        }));
    }
    all
}

#[test]
fn attention_of_one_query_is_near_that_in_f64() {
    let sizes = [(1, 12, 12, 70, 64), (2, 4, 2, 129, 128), (2, 2, 1, 1, 8), (1, 3, 3, 300, 96)];
    for (dtype, (batch, heads, kv_heads, keys, features)) in
        DTYPES.into_iter().flat_map(|dtype| sizes.map(|sizes| (dtype, sizes)))
    {
        let query = representable(&[batch, 1, heads, features], 1, dtype).transpose(1, 2).unwrap();
        // Keys have the layout of a cache, values that of a projection.
        let key = representable(&[batch, kv_heads, keys + 3, features], 2, dtype).narrow(2, 2, keys).unwrap();
        let value = representable(&[batch, keys, kv_heads, features], 3, dtype).transpose(1, 2).unwrap();
        let masks: [(Option<Tensor>, Counts); 4] = [
            (None, |_, _, _| true),
            (Some(random(&[keys], 9)), |_, _, key| key % 3 != 1),
            (Some(random(&[batch, heads, 1, keys], 9)), |item, head, key| (item + head + key) % 2 == 0),
            (Some(random(&[keys], 9)), |_, _, _| false),
        ];
        for (number, (like, counts)) in masks.into_iter().enumerate() {
            let mask = like.map(|like| {
                let (shape, per_head) = (like.shape().to_vec(), like.rank() == 4);
                let at = |place: usize| match per_head {
                    true => counts(place / keys / heads, place / keys % heads, place % keys),
                    false => counts(0, 0, place),
                };
                let truths: Vec<i64> = (0..like.elements()).map(|place| i64::from(at(place))).collect();
                Tensor::from_slice(&truths, &shape, &device()).unwrap().to_dtype(DType::Bool).unwrap()
            });
            let options = AttentionOptions {
                attn_mask: mask.as_ref(),
                enable_gqa: heads != kv_heads,
                scale: Some(0.25),
                ..AttentionOptions::default()
            };
            poison(&[batch, heads, 1, features], dtype);
            let attend = || scaled_dot_product_attention(&query, &key, &value, options);
            let result = no_grad(|| sdp_kernel(&[SdpBackend::Flash], attend)).unwrap();
            assert_eq!((result.shape(), result.dtype()), (&[batch, heads, 1, features][..], dtype));
            let expected = one_query([&query, &key, &value], 0.25, counts);
            for (at, (found, expected)) in values(&result).into_iter().zip(expected).enumerate() {
                let case = format!(
                    "{dtype} {batch} x {heads}/{kv_heads} x {keys} x {features}, mask {number} [{at}]"
                );
                assert!(close(found, expected, bound(dtype, 64)), "{case}: {found}, {expected}");
            }
        }
    }
}

/// Returns the contents of a cache (batch, heads, keys, features) after a key or value (batch, heads, 1, features) is written at a
/// position.
fn appended(cache: &Tensor, new: &Tensor, position: i64) -> Vec<f64> {
    let (mut all, new) = (values(cache), values(new));
    let (keys, features) = (cache.shape()[2], cache.shape()[3]);
    if let Some(place) = usize::try_from(position).ok().filter(|&place| place < keys) {
        for (row, new) in new.chunks(features).enumerate() {
            all[(row * keys + place) * features..][..features].copy_from_slice(new);
        }
    }
    all
}

#[test]
fn attention_with_a_cache_appends_a_key_and_sees_what_lies_up_to_it() {
    // In one block a head and in several, one or more heads a key, by the kernel and by operators (float64, 20 features).
    let sizes = [(1, 12, 12, 300, 64), (2, 4, 2, 70, 128), (1, 6, 2, 290, 8), (1, 2, 2, 40, 20)];
    let dtypes = DTYPES.into_iter().chain([DType::F64]);
    for (dtype, (batch, heads, kv_heads, keys, features)) in
        dtypes.flat_map(|dtype| sizes.map(|sizes| (dtype, sizes)))
    {
        // In the layout of a projection; the caches are halves of one tensor.
        let query = representable(&[batch, heads, 1, features], 1, dtype);
        let packed = representable(&[2, batch, kv_heads, 1, features], 2, dtype);
        for position in [0, 1, 33, keys as i64 - 1, keys as i64, -1] {
            let both = representable(&[2, batch, kv_heads, keys, features], 3, dtype).contiguous().unwrap();
            let [key, value] = [0, 1].map(|part| packed.select(0, part).unwrap());
            let caches = [0, 1].map(|part| both.select(0, part).unwrap());
            let expected = [appended(&caches[0], &key, position), appended(&caches[1], &value, position)];
            let place = Tensor::from_slice(&[position], &[1], &device()).unwrap();
            let case = format!("{dtype} {batch} x {heads}/{kv_heads} x {keys} x {features} at {position}");
            let is_one_kernel = dtype != DType::F64 && features != 20;
            if !is_one_kernel && !(0..keys as i64).contains(&position) {
                // By operators an index out of range is reported.
                continue;
            }
            poison(&[batch, heads, 1, features], dtype);
            let call =
                || cached_attention([&query, &key, &value], [&caches[0], &caches[1]], &place, Some(0.25));
            let result = no_grad(call).unwrap();
            assert_eq!([values(&caches[0]), values(&caches[1])], expected, "{case}");
            let seen = |_: usize, _: usize, key: usize| (key as i64) <= position;
            let expected = one_query([&query, &caches[0], &caches[1]], 0.25, seen);
            for (at, (found, expected)) in values(&result).into_iter().zip(expected).enumerate() {
                assert!(close(found, expected, bound(dtype, 64)), "{case} [{at}]: {found}, {expected}");
            }
        }
    }
}

#[test]
fn attention_with_a_cache_refuses_what_does_not_fit() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device()).unwrap();
    let (new, cache, position) = (zeros(&[1, 2, 1, 8]), zeros(&[1, 2, 5, 8]), zeros(&[1]));
    let of = |new: &Tensor, cache: &Tensor, position: &Tensor| {
        cached_attention([new, new, new], [cache, &cache.clone()], position, None).unwrap_err().to_string()
    };
    assert!(of(&new, &cache, &position).contains("a position of one int64"));
    let position = Tensor::from_slice(&[0_i64], &[1], &device()).unwrap();
    assert!(of(&new, &zeros(&[1, 3, 5, 8]), &position).contains("kv_heads"));
    assert!(of(&zeros(&[1, 2, 2, 8]), &cache, &position).contains("cached_attention"));
    assert!(of(&zeros(&[2, 8]), &cache, &position).contains("cached_attention"));
}

#[test]
fn places_of_extrema_of_long_rows_are_the_first_of_equals_and_of_nans() {
    for (dtype, length) in DTYPES.into_iter().flat_map(|dtype| [4096, 5003, 50_257].map(|n| (dtype, n))) {
        // Many equal elements, a NaN in the second row, and zeros of both signs in the third.
        let mut numbers: Vec<f32> = (0..3 * length).map(|at| ((at * 7919) % 251) as f32 - 125.0).collect();
        (numbers[length + 4001], numbers[length + 4050]) = (f32::NAN, f32::NAN);
        numbers[2 * length..].fill(0.0);
        numbers[2 * length] = -0.0;
        let host = |row: usize, sign: f32| {
            let row = &numbers[row * length..][..length];
            let first_nan = row.iter().position(|x| x.is_nan());
            let best = row.iter().fold(f32::NEG_INFINITY, |best, x| best.max(sign * x));
            first_nan.or_else(|| row.iter().position(|x| sign * x == best)).unwrap() as i64
        };
        let rows = Tensor::from_slice(&numbers, &[3, length], &device()).unwrap().to_dtype(dtype).unwrap();
        let places = |tensor: Tensor| tensor.to_vec::<i64>().unwrap();
        assert_eq!(places(rows.argmax(1).unwrap()), [0, 1, 2].map(|row| host(row, 1.0)), "{dtype} {length}");
        assert_eq!(
            places(rows.argmin(-1).unwrap()),
            [0, 1, 2].map(|row| host(row, -1.0)),
            "{dtype} {length}"
        );
        // A single row, of which the last element is the greatest.
        let one = rows.select(0, 0).unwrap();
        one.narrow(0, length - 1, 1)
            .unwrap()
            .copy_(&Tensor::full(&[1], 200.0, dtype, &device()).unwrap())
            .unwrap();
        assert_eq!(places(one.argmax(0).unwrap()), [length as i64 - 1], "{dtype} {length}");
    }
}

#[test]
fn a_step_over_a_cache_has_no_race_under_any_schedule() {
    Check::new().seeds(0..6).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let ones = |shape: &[usize]| Tensor::ones(shape, DType::Bf16, device);
        let (weight, cache) = (ones(&[1024, 64])?, Tensor::zeros(&[2, 4, 6, 16], DType::Bf16, device)?);
        let position = Tensor::from_slice(&[2_i64], &[1], device)?;
        no_grad(|| {
            let hidden = linear(&ones(&[1, 64])?, &weight, None)?;
            let parts = hidden.narrow(1, 0, 192)?.reshape(&[3, 1, 4, 1, 16])?;
            let [query, key, value] = [parts.select(0, 0)?, parts.select(0, 1)?, parts.select(0, 2)?];
            let [keys, values] = [cache.narrow(0, 0, 1)?, cache.narrow(0, 1, 1)?];
            let result = cached_attention([&query, &key, &value], [&keys, &values], &position, None)?;
            // One key of three is 64 throughout, and its score is so great that the others do not count.
            assert_eq!(result.to_dtype(DType::F32)?.to_vec::<f32>()?, vec![64.0; 64]);
            Ok(())
        })
    });
}
