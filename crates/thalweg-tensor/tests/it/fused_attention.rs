//! Fused attention compared with the composition of operators in f64, and the choice between them.

use std::slice::from_ref;

use thalweg_driver::GraphNode;
use thalweg_ir::DType;
use thalweg_nn::functional::{AttentionOptions, packed_attention, scaled_dot_product_attention};
use thalweg_runtime::{CaptureOptions, Graph, Label, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};
use thalweg_tensor::deterministic::use_deterministic_algorithms;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::sdp::SdpBackend::{Cudnn, Flash, Math};
use thalweg_tensor::sdp::{SdpBackend, in_pieces_of, sdp_kernel};

use crate::deterministic::DETERMINISTIC;
use crate::support::{assert_close, device, random, values};

/// Calls the operator of ATen.
fn attention(all: [&Tensor; 3], is_causal: bool, scale: Option<f64>) -> Result<Tensor> {
    masked_attention(all, None, is_causal, scale)
}

/// Calls the operator of ATen with a mask.
fn masked_attention(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    is_causal: bool,
    scale: Option<f64>,
) -> Result<Tensor> {
    let operator = find_operator("scaled_dot_product_attention")?;
    let (mask, no_dropout, is_shared) = (Argument::from(mask), Argument::Float(0.0), Argument::Bool(true));
    let scale = scale.map_or(Argument::None, Argument::Float);
    let all = [q.into(), k.into(), v.into(), mask, no_dropout, is_causal.into(), scale, is_shared];
    Ok(operator.call(&all, None, Label::here("attention"))?.swap_remove(0))
}

/// Returns the result and the gradients of three tensors, by one backend, in a dtype.
fn results(
    backend: SdpBackend,
    inputs: &[Tensor; 3],
    gradient: &Tensor,
    dtype: DType,
    is_causal: bool,
    scale: Option<f64>,
) -> [Vec<f64>; 4] {
    let attend = |all: [&Tensor; 3]| attention(all, is_causal, scale);
    results_of(attend, backend, inputs, gradient, dtype)
}

/// Returns the result and the gradients of three tensors, by one backend, in a dtype, of a kind of attention.
fn results_of(
    attend: impl Fn([&Tensor; 3]) -> Result<Tensor>,
    backend: SdpBackend,
    inputs: &[Tensor; 3],
    gradient: &Tensor,
    dtype: DType,
) -> [Vec<f64>; 4] {
    let leaves =
        inputs.each_ref().map(|input| input.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap());
    let result = sdp_kernel(&[backend], || attend(leaves.each_ref())).unwrap();
    assert_eq!(result.dtype(), dtype);
    result.backward_with(&gradient.to_dtype(dtype).unwrap()).unwrap();
    let [q, k, v] = leaves.map(|leaf| values(&leaf.grad().unwrap()));
    [values(&result), q, k, v]
}

/// Returns the fused backends of the test device. A GPU without cuDNN has one; versions of cuDNN differ in the shapes that they support,
/// so shapes that no network has are tested only in the simulator.
fn fused_backends(is_usual: bool, dtype: DType) -> Vec<SdpBackend> {
    let device = device();
    let has_library =
        device.properties().libraries.attention && (is_usual || device.is_simulated()) && dtype != DType::F32;
    [Cudnn, Flash].into_iter().filter(|&backend| backend == Flash || has_library).collect()
}

/// Returns numbers that a dtype represents exactly.
fn representable(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    random(shape, seed).to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap()
}

#[test]
fn fused_attention_and_its_gradients_are_those_of_operators_in_f64() {
    // Shapes of queries and keys: heads of their own and shared, lengths that differ, one key, without a batch.
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[2, 3, 17, 16], &[2, 3, 17, 16]),
        (&[1, 4, 33, 8], &[1, 2, 9, 8]),
        (&[2, 6, 5, 40], &[2, 1, 70, 40]),
        (&[1, 1, 1, 128], &[1, 1, 130, 128]),
        (&[2, 2, 3, 8], &[2, 2, 1, 8]),
        (&[3, 12, 24], &[3, 7, 24]),
    ];
    for (seed, (q, k)) in (0..).step_by(10).zip(shapes) {
        for (dtype, tolerance) in [(DType::Bf16, 0.03), (DType::F16, 0.004), (DType::F32, 1e-5)] {
            let inputs = [
                representable(q, seed, dtype),
                representable(k, seed + 1, dtype),
                representable(k, seed + 2, dtype),
            ];
            let gradient = representable(q, seed + 3, dtype);
            for (is_causal, scale) in [(false, None), (true, None), (true, Some(0.7))] {
                let expected = results(Math, &inputs, &gradient, DType::F64, is_causal, scale);
                for backend in fused_backends(q.len() == 4, dtype) {
                    let fused = results(backend, &inputs, &gradient, dtype, is_causal, scale);
                    for (found, expected) in fused.iter().zip(&expected) {
                        assert_close(found, expected, tolerance);
                    }
                }
            }
        }
    }
}

#[test]
fn masks_of_fused_attention_repeat_as_they_are_given() {
    // Of every score, of keys, of queries (some see nothing), without a batch, over heads only, and a part of a larger tensor.
    let shapes: [&[usize]; 6] =
        [&[2, 6, 37, 70], &[2, 1, 1, 70], &[37, 1], &[6, 37, 70], &[1, 6, 1, 1], &[70]];
    let (q, k) = ([2, 6, 37, 24], [2, 3, 70, 24]);
    for (dtype, tolerance) in [(DType::Bf16, 0.03), (DType::F16, 0.004), (DType::F32, 1e-5)] {
        let inputs = [representable(&q, 1, dtype), representable(&k, 2, dtype), representable(&k, 3, dtype)];
        let gradient = representable(&q, 4, dtype);
        for (shape, seed) in shapes.into_iter().zip(10..) {
            let numbers = representable(shape, seed, dtype);
            let truths = numbers.gt_scalar(0.0).unwrap();
            let wide: Vec<usize> = shape.iter().map(|size| size + 3).collect();
            let mut part = truths.clone();
            if !shape.contains(&1) {
                part = representable(&wide, seed, dtype).gt_scalar(0.0).unwrap();
                for (dimension, &size) in shape.iter().enumerate() {
                    part = part.narrow(dimension as i64, 1, size).unwrap();
                }
            }
            for mask in [&numbers, &truths, &part] {
                let attend = |all: [&Tensor; 3]| masked_attention(all, Some(mask), false, None);
                let expected = results_of(attend, Math, &inputs, &gradient, DType::F64);
                let found = results_of(attend, Flash, &inputs, &gradient, dtype);
                for (found, expected) in found.iter().zip(&expected) {
                    assert_close(found, expected, tolerance);
                }
            }
        }
    }
}

/// Returns the mask of a causal kind of attention with a query that sees nothing, as truth values.
fn with_an_empty_row(queries: usize, keys: usize) -> Tensor {
    let seen = Tensor::ones(&[queries, keys], DType::Bool, &device()).unwrap().tril(0).unwrap();
    seen.narrow(0, 5, 1).unwrap().fill_(false).unwrap();
    seen
}

#[test]
fn masks_are_added_by_cudnn_where_it_may_read_them() {
    let shapes: [&[usize]; 5] = [&[2, 4, 128, 192], &[2, 1, 1, 192], &[1, 128, 192], &[1, 4, 1, 192], &[192]];
    let (q, k) = ([2, 4, 128, 64], [2, 2, 192, 64]);
    for (dtype, tolerance) in [(DType::Bf16, 0.03), (DType::F16, 0.004)] {
        let inputs = [representable(&q, 1, dtype), representable(&k, 2, dtype), representable(&k, 3, dtype)];
        let gradient = representable(&q, 4, dtype);
        let mut masks: Vec<Tensor> =
            shapes.iter().zip(10..).map(|(shape, seed)| representable(shape, seed, dtype)).collect();
        // Rows whose distance exceeds their length, and one without a key.
        masks.push(representable(&[128, 256], 20, dtype).narrow(1, 16, 192).unwrap());
        masks.push(with_an_empty_row(128, 192));
        for mask in &masks {
            let attend = |all: [&Tensor; 3]| masked_attention(all, Some(mask), false, None);
            let expected = results_of(attend, Math, &inputs, &gradient, DType::F64);
            for backend in fused_backends(true, dtype) {
                let found = results_of(attend, backend, &inputs, &gradient, dtype);
                for (found, expected) in found.iter().zip(&expected) {
                    assert_close(found, expected, tolerance);
                }
            }
        }
    }
}

#[test]
fn logarithms_of_rows_without_keys_serve_either_backend() {
    let dtype = DType::Bf16;
    let inputs = [1, 2, 3].map(|seed| representable(&[2, 2, 128, 64], seed, dtype));
    let gradient = representable(&[2, 2, 128, 64], 4, dtype);
    let mask = with_an_empty_row(128, 128);
    let attend = |all: [&Tensor; 3]| masked_attention(all, Some(&mask), false, None);
    let expected = results_of(attend, Math, &inputs, &gradient, DType::F64);
    // The forward pass of one backend, and the gradient of the other.
    let added = mask.select_where(&Tensor::zeros(&[], dtype, &device()).unwrap(), &infinite(dtype)).unwrap();
    let [q, k, v] = inputs.each_ref().map(|input| input.to_dtype(dtype).unwrap());
    let gradient = gradient.to_dtype(dtype).unwrap();
    let backends = fused_backends(true, dtype);
    for (forward, backward) in
        backends.iter().flat_map(|&one| backends.iter().map(move |&other| (one, other)))
    {
        let bit = |backend: SdpBackend| Argument::Int(1 << backend as i64);
        let operands = [(&q).into(), (&k).into(), (&v).into(), Argument::from(Some(&added)), Argument::None];
        let options = [false.into(), Argument::Float(0.125)];
        let no_dropout = Argument::Float(0.0);
        let call = |name: &str, list: Vec<Argument<'_>>| {
            find_operator(name).unwrap().call(&list, None, Label::here("attention")).unwrap()
        };
        let list = operands.into_iter().chain(options).chain([bit(forward), no_dropout]).collect();
        let results = call("thalweg::fused_attention", list);
        let list = [(&gradient).into()]
            .into_iter()
            .chain(operands)
            .chain([(&results[0]).into(), (&results[1]).into()]);
        let list = list.chain(options).chain([bit(backward), no_dropout]).collect();
        let found = call("thalweg::fused_attention_backward", list);
        for (found, expected) in results[..1].iter().chain(&found).zip(&expected) {
            assert_close(&values(found), expected, 0.03);
        }
    }
}

fn infinite(dtype: DType) -> Tensor {
    Tensor::full(&[], f64::NEG_INFINITY, dtype, &device()).unwrap()
}

#[test]
fn a_mask_that_cudnn_may_not_read_is_flashs() {
    if !device().properties().libraries.attention {
        return;
    }
    let half = representable(&[1, 2, 8, 16], 1, DType::F16).to_dtype(DType::F16).unwrap();
    let wide = representable(&[8, 9], 2, DType::F16).to_dtype(DType::F16).unwrap();
    let whole = wide.narrow(1, 0, 8).unwrap().contiguous().unwrap();
    // Rows nine elements apart, keys that do not follow one another, and one number for all keys.
    for mask in
        [wide.narrow(1, 0, 8).unwrap(), whole.transpose(0, 1).unwrap(), whole.narrow(1, 0, 1).unwrap()]
    {
        let call = || masked_attention([&half; 3], Some(&mask), false, None);
        let error = sdp_kernel(&[Cudnn], call).unwrap_err().to_string();
        assert!(error.contains("does not take the mask"), "{error}");
        let found = values(&sdp_kernel(&[Cudnn, Flash], call).unwrap());
        assert_close(&found, &values(&sdp_kernel(&[Math], call).unwrap()), 0.004);
    }
}

#[test]
fn a_mask_that_does_not_expand_is_refused() {
    let half = representable(&[1, 2, 4, 8], 1, DType::F16).to_dtype(DType::F16).unwrap();
    let wrong = Tensor::ones(&[3, 4], DType::Bool, half.device()).unwrap();
    let error = sdp_kernel(&[Flash], || masked_attention([&half; 3], Some(&wrong), false, None)).unwrap_err();
    assert!(error.to_string().contains("does not expand"), "{error}");
}

#[test]
fn what_lies_in_other_ways_is_read_as_it_is() {
    let whole = representable(&[5, 2, 3, 4, 16], 1, DType::F16);
    let gradient = representable(&[2, 4, 5, 16], 2, DType::F16);
    // (tokens, batch, 3, heads, features): parts of a packed tensor; one that is expanded, and one whose features are not
    // contiguous.
    let part = |place: usize| whole.select(2, place).unwrap().permute(&[1, 2, 0, 3]).unwrap();
    let expanded = part(1).narrow(0, 0, 1).unwrap().expand(&[2, 4, 5, 16]).unwrap();
    let turned = part(2).transpose(2, 3).unwrap().contiguous().unwrap().transpose(2, 3).unwrap();
    for inputs in [[part(0), part(1), part(2)], [part(0), expanded, turned]] {
        let found = [true, false].map(|is_copied| {
            let inputs = inputs.each_ref().map(|input| {
                let half = input.to_dtype(DType::F16).unwrap();
                if is_copied { half.contiguous().unwrap() } else { half }
            });
            results(Flash, &inputs, &gradient, DType::F16, true, None)
        });
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn gradients_of_the_parts_of_a_packed_tensor_are_packed_without_a_copy() {
    // (batch, tokens, …): the parts before the heads, after them, and in one dimension with them; and two parts of one, which are
    // less than a whole.
    let whole = representable(&[2, 5, 96], 1, DType::F16);
    let gradient = representable(&[2, 2, 5, 16], 2, DType::F16).to_dtype(DType::F16).unwrap();
    let expected = packed_gradient(&whole, &gradient, Math, |whole| {
        let parts = whole.reshape(&[2, 5, 3, 2, 16]).unwrap();
        [0, 1, 2].map(|part| parts.select(2, part).unwrap().transpose(1, 2).unwrap())
    });
    type Parts = fn(&Tensor) -> [Tensor; 3];
    let in_packs: [Parts; 2] = [
        |whole| {
            let parts = whole.reshape(&[2, 5, 3, 2, 16]).unwrap().unbind(2).unwrap();
            [0, 1, 2].map(|part| parts[part].transpose(1, 2).unwrap())
        },
        |whole| {
            let parts = whole.split(32, 2).unwrap();
            [0, 1, 2].map(|part| parts[part].reshape(&[2, 5, 2, 16]).unwrap().transpose(1, 2).unwrap())
        },
    ];
    for backend in fused_backends(true, DType::F16) {
        for parts in in_packs {
            let found = packed_gradient(&whole, &gradient, backend, parts);
            assert_close(&found.0, &expected.0, 0.004);
            // A GPU does not know which operator submitted a node.
            assert!(
                !device().is_simulated() || found.1 == 0,
                "nothing is copied, but {} commands run",
                found.1
            );
        }
        let swapped = packed_gradient(&whole, &gradient, backend, |whole| {
            let parts = whole.reshape(&[2, 5, 3, 2, 16]).unwrap().unbind(2).unwrap();
            [1, 0, 2].map(|part| parts[part].transpose(1, 2).unwrap())
        });
        let expected = packed_gradient(&whole, &gradient, Math, |whole| {
            let parts = whole.reshape(&[2, 5, 3, 2, 16]).unwrap();
            [1, 0, 2].map(|part| parts.select(2, part).unwrap().transpose(1, 2).unwrap())
        });
        assert_close(&swapped.0, &expected.0, 0.004);
    }
}

/// Returns the gradient of a packed tensor from that of the attention of its parts, and the number of commands that join it.
fn packed_gradient(
    whole: &Tensor,
    gradient: &Tensor,
    backend: SdpBackend,
    parts: impl Fn(&Tensor) -> [Tensor; 3],
) -> (Vec<f64>, usize) {
    let stream = Stream::new(&device()).unwrap();
    stream.wait_stream(&device().current_stream()).unwrap();
    let _current = stream.make_current();
    let leaf = whole.to_dtype(DType::F16).unwrap().detach().requires_grad_().unwrap();
    let run = || {
        let parts = parts(&leaf);
        let result = sdp_kernel(&[backend], || attention(parts.each_ref(), true, None))?;
        result.backward_with(gradient)
    };
    run().unwrap();
    let found = values(&leaf.grad().unwrap());
    leaf.zero_grad();
    let (graph, ()) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
    let nodes = &graph.description().unwrap().nodes;
    let is_other =
        |node: &&GraphNode| node.label.is_none_or(|label| !label.to_string().contains("attention"));
    (found, nodes.iter().filter(is_other).count())
}

#[test]
fn deterministic_gradients_are_those_of_flash() {
    let inputs = [1, 2, 3].map(|seed| representable(&[1, 2, 40, 16], seed, DType::Bf16));
    let gradient = representable(&[1, 2, 40, 16], 4, DType::Bf16);
    let of = |backends: &[SdpBackend]| {
        let leaves = inputs
            .each_ref()
            .map(|input| input.to_dtype(DType::Bf16).unwrap().detach().requires_grad_().unwrap());
        let result = sdp_kernel(backends, || attention(leaves.each_ref(), true, None)).unwrap();
        result.backward_with(&gradient.to_dtype(DType::Bf16).unwrap()).unwrap();
        leaves.map(|leaf| values(&leaf.grad().unwrap()))
    };
    let _guard = DETERMINISTIC.lock();
    use_deterministic_algorithms(true, false);
    let (found, again) = (of(&[Cudnn, Flash]), of(&[Cudnn, Flash]));
    use_deterministic_algorithms(false, false);
    assert_eq!(found, again);
    for (found, expected) in found.iter().zip(&of(&[Flash])) {
        assert_close(found, expected, 0.02);
    }
}

#[test]
fn packed_attention_is_fused_for_floats_of_16_bits() {
    for (dtype, tolerance) in [(DType::Bf16, 0.04), (DType::F16, 0.005)] {
        let packed = representable(&[21, 4, 3, 16], 1, dtype);
        let gradient = representable(&[21, 4, 16], 2, dtype);
        for is_causal in [false, true] {
            let [fused, expected] = [(Flash, dtype), (Math, DType::F64)].map(|(backend, dtype)| {
                let leaf = packed.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap();
                let result = sdp_kernel(&[backend], || packed_attention(&leaf, is_causal)).unwrap();
                result.backward_with(&gradient.to_dtype(dtype).unwrap()).unwrap();
                [values(&result), values(&leaf.grad().unwrap())]
            });
            assert_close(&fused[0], &expected[0], tolerance);
            assert_close(&fused[1], &expected[1], tolerance);
        }
    }
}

#[test]
fn what_the_fused_kernel_does_not_take_goes_to_operators_or_is_refused() {
    let tensor = |shape: &[usize], dtype: DType| random(shape, 1).to_dtype(dtype).unwrap();
    let half = tensor(&[1, 2, 4, 8], DType::F16);
    let refused = |x: &Tensor, options: AttentionOptions<'_>, why: &str| {
        scaled_dot_product_attention(x, x, x, options).unwrap();
        let call = || scaled_dot_product_attention(x, x, x, options);
        let error = sdp_kernel(&[Flash], call).unwrap_err().to_string();
        assert!(error.contains("No available kernel") && error.contains(why), "{error}");
        sdp_kernel(&[Math], call).unwrap();
    };
    let plain = AttentionOptions::default();
    let mask = tensor(&[4, 4], DType::F16);
    refused(&half, AttentionOptions { scale: Some(-1.0), ..plain }, "scale above 0");
    refused(&tensor(&[1, 2, 4, 8], DType::F64), plain, "bfloat16, float16 or float32");
    refused(&tensor(&[1, 2, 4, 129], DType::F32), plain, "up to 128 of float32");
    refused(&tensor(&[1, 2, 4, 257], DType::F16), plain, "up to 256 features");
    refused(&tensor(&[1, 1, 2, 4, 8], DType::F16), plain, "3 or 4 dimensions");
    sdp_kernel(&[Flash], || scaled_dot_product_attention(&half, &half, &half, plain)).unwrap();
    let inner = || sdp_kernel(&[Math], || scaled_dot_product_attention(&half, &half, &half, plain));
    sdp_kernel(&[Flash], || {
        inner()?;
        let error = scaled_dot_product_attention(&mask, &mask, &mask, plain).unwrap_err().to_string();
        assert!(error.contains("No available kernel"), "the outer choice is back: {error}");
        Ok(())
    })
    .unwrap();
    let both = AttentionOptions { attn_mask: Some(&mask), is_causal: true, ..plain };
    assert!(scaled_dot_product_attention(&half, &half, &half, both).unwrap_err().is_invalid_argument());
    let none = sdp_kernel(&[], || scaled_dot_product_attention(&half, &half, &half, plain));
    assert!(none.unwrap_err().is_invalid_argument());
}

#[test]
fn autocast_fuses_what_is_given_in_float32() {
    let x = random(&[1, 2, 6, 8], 1).to_dtype(DType::F32).unwrap();
    let packed = random(&[6, 2, 3, 8], 1).to_dtype(DType::F32).unwrap().requires_grad_().unwrap();
    autocast(DType::Bf16, || {
        sdp_kernel(&[Flash], || {
            let result = scaled_dot_product_attention(&x, &x, &x, AttentionOptions::default())?;
            assert_eq!(result.dtype(), DType::Bf16);
            assert_eq!(attention([&x, &x, &x], true, None)?.dtype(), DType::Bf16);
            let result = packed_attention(&packed, true)?;
            assert_eq!(result.dtype(), DType::Bf16);
            result.sum(&[], false)?.backward()
        })
    })
    .unwrap();
    assert_eq!(packed.grad().unwrap().dtype(), DType::F32);
}

#[test]
fn gradients_of_gradients_of_fused_attention_are_those_of_operators() {
    let second = |backend: SdpBackend, dtype: DType| {
        let leaf = |shape: &[usize], seed| {
            representable(shape, seed, DType::F16).to_dtype(dtype).unwrap().requires_grad_().unwrap()
        };
        let leaves = [leaf(&[1, 4, 5, 8], 1), leaf(&[1, 2, 6, 8], 2), leaf(&[1, 2, 6, 8], 3)];
        let result = sdp_kernel(&[backend], || attention(leaves.each_ref(), true, None)).unwrap();
        let along = representable(&[1, 4, 5, 8], 4, DType::F16).to_dtype(dtype).unwrap();
        let create = BackwardOptions { retain_graph: true, create_graph: true };
        let first = gradients_with(from_ref(&result), &[Some(along)], &leaves, create).unwrap();
        let squares: Vec<Tensor> = first
            .into_iter()
            .map(|gradient| gradient.unwrap().square().unwrap().sum(&[], false).unwrap())
            .collect();
        let one = |of: &Tensor| Some(Tensor::ones(&[], dtype, of.device()).unwrap());
        let ones: Vec<Option<Tensor>> = squares.iter().map(one).collect();
        let found = gradients_with(&squares, &ones, &leaves, BackwardOptions::default()).unwrap();
        found.into_iter().map(|gradient| values(&gradient.unwrap())).collect::<Vec<_>>()
    };
    for (found, expected) in second(Flash, DType::F16).iter().zip(&second(Math, DType::F64)) {
        assert_close(found, expected, 0.02);
    }
}

/// Returns softmax(query · keyᵀ · scale + mask) · value by other operators.
fn composed([q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, is_causal: bool, scale: f64) -> Result<Tensor> {
    let shared = (q.shape()[1] / k.shape()[1]) as i64;
    let (k, v) = (k.repeat_interleave(shared, Some(1))?, v.repeat_interleave(shared, Some(1))?);
    let mut scores = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(scale)?;
    let hidden = Tensor::full(&[], -1e30, DType::F64, q.device())?;
    if is_causal {
        let seen = Tensor::ones(&scores.shape()[2..], DType::Bool, q.device())?.tril(0)?;
        scores = seen.select_where(&scores, &hidden)?;
    }
    scores = match mask {
        Some(mask) if mask.dtype() == DType::Bool => mask.select_where(&scores, &hidden)?,
        Some(mask) => scores.add(mask)?,
        None => scores,
    };
    scores.softmax(-1)?.matmul(&v)
}

#[test]
fn attention_in_pieces_of_any_size_is_that_of_operators() {
    let device = device();
    for seed in 0..44 {
        let of = |step: usize, count: usize| 1 + (seed * 31 / step) % count;
        let (batch, kv_heads, shared) = (of(1, 3), of(2, 3), of(5, 2));
        let (mut queries, mut keys, features, width) = (of(3, 6), of(7, 6), of(4, 4), of(6, 5));
        if seed >= 40 {
            // These are long enough to be divided below a triangle.
            (queries, keys) = (290 + seed, [150, 400][seed % 2]);
        }
        let number = seed as u64 * 10;
        let made = |shape: &[usize], at: u64| random(shape, number + at);
        let leaf = |shape: &[usize], at| made(shape, at).requires_grad_();
        let query = leaf(&[batch, queries, kv_heads * shared, features], 1).unwrap();
        let key = leaf(&[batch, kv_heads, keys, features], 2).unwrap();
        let value = leaf(&[batch, kv_heads, keys, width], 3).unwrap();
        let is_causal = seed % 4 == 2 || seed >= 40;
        let mask = match seed % 4 {
            0 if !is_causal => {
                let numbers = made(&[kv_heads * shared, queries, keys], 4);
                // Every query sees the first key.
                Some(numbers.gt_scalar(0.0).unwrap().logical_or(&first_key(keys, &device)).unwrap())
            }
            1 if !is_causal => Some(leaf(&[batch, 1, 1, keys], 4).unwrap()),
            _ => None,
        };
        let trained: Vec<Tensor> = [&query, &key, &value]
            .into_iter()
            .chain(mask.as_ref().filter(|mask| mask.requires_grad()))
            .cloned()
            .collect();
        let along = made(&[batch, kv_heads * shared, queries, width], 5);
        let gradients = |result: &Tensor| -> Vec<Vec<f64>> {
            let found = gradients_with(
                from_ref(result),
                &[Some(along.clone())],
                &trained,
                BackwardOptions::default(),
            );
            std::iter::once(result.detach())
                .chain(found.unwrap().into_iter().map(Option::unwrap))
                .map(|tensor| values(&tensor))
                .collect()
        };
        let rows = query.transpose(1, 2).unwrap();
        let expected = gradients(&composed([&rows, &key, &value], mask.as_ref(), is_causal, 0.7).unwrap());
        for most in [1, 5, 17, 60, usize::MAX].into_iter().skip(if seed < 40 { 0 } else { 4 }) {
            in_pieces_of(most, || {
                let result =
                    masked_attention([&rows, &key, &value], mask.as_ref(), is_causal, Some(0.7)).unwrap();
                for (found, expected) in gradients(&result).iter().zip(&expected) {
                    assert_close(found, expected, 1e-11);
                }
            });
        }
    }
}

/// Returns true for the first key.
fn first_key(keys: usize, device: &thalweg_runtime::Device) -> Tensor {
    Tensor::arange(keys, 0, 1, DType::I64, device).unwrap().lt_scalar(1).unwrap()
}
