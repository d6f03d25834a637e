//! The operators of networks: values compared with the definition in f64, gradients against finite differences.

use thalweg_ir::DType;
use thalweg_nn::functional::{
    AttentionOptions, ClassLossOptions, Reduction, add_layer_norm, cross_entropy_with, embedding, layer_norm,
    layer_norm_fork, nll_loss, packed_attention, scaled_dot_product_attention,
};
use thalweg_tensor::testing::tolerance;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{
    assert_close, check_gradient, device, expect_out_of_range, on_own_device, random, tensor, values,
};

fn indices(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &device()).unwrap()
}

/// Returns a tensor whose sum's gradient is not the same everywhere.
fn weighted(x: Tensor) -> Tensor {
    let weights = random(x.shape(), 99);
    x.mul(&weights).unwrap()
}

fn mean_and_variance(row: &[f64]) -> (f64, f64) {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    (mean, row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64)
}

#[test]
fn layer_norm_follows_its_definition() {
    for features in [4, 40, 1500] {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::Bf16] {
            let x = random(&[3, features], 1).to_dtype(dtype).unwrap();
            let [weight, bias] = [2, 3].map(|seed| random(&[features], seed).to_dtype(dtype).unwrap());
            let found = layer_norm(&x, &[features], Some(&weight), Some(&bias), 1e-5).unwrap();
            assert_eq!(found.dtype(), dtype);
            let (weight, bias) = (values(&weight), values(&bias));
            let expected: Vec<f64> = values(&x)
                .chunks(features)
                .flat_map(|row| {
                    let (mean, variance) = mean_and_variance(row);
                    let scale = (variance + 1e-5).sqrt();
                    (0..features).map(|i| (row[i] - mean) / scale * weight[i] + bias[i]).collect::<Vec<_>>()
                })
                .collect();
            assert_close(&values(&found), &expected, 4.0 * tolerance(dtype));
        }
    }
}

#[test]
fn layer_norm_without_parameters_is_that_with_ones_and_zeros() {
    let x = random(&[2, 3, 4], 1);
    let (ones, zeros) =
        (Tensor::ones(&[3, 4], DType::F64, &device()), Tensor::zeros(&[3, 4], DType::F64, &device()));
    let (ones, zeros) = (ones.unwrap(), zeros.unwrap());
    let expected = values(&layer_norm(&x, &[3, 4], Some(&ones), Some(&zeros), 1e-5).unwrap());
    for (weight, bias) in [(None, None), (Some(&ones), None), (None, Some(&zeros))] {
        assert_close(&values(&layer_norm(&x, &[3, 4], weight, bias, 1e-5).unwrap()), &expected, 1e-12);
    }
}

#[test]
fn layer_norm_has_gradients() {
    let (x, weight, bias) = (random(&[2, 3, 5], 1), random(&[3, 5], 2), random(&[3, 5], 3));
    let transposed = random(&[5, 2, 3], 4).permute(&[1, 2, 0]).unwrap();
    let norm = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
        weighted(layer_norm(x, &[3, 5], Some(weight), Some(bias), 1e-2).unwrap())
    };
    check_gradient(&x, |x| norm(x, &weight, &bias));
    check_gradient(&weight, |weight| norm(&x, weight, &bias));
    check_gradient(&bias, |bias| norm(&transposed, &weight, bias));
    check_gradient(&weight, |weight| norm(&transposed, weight, &bias));
    check_gradient(&x, |x| weighted(layer_norm(x, &[5], None, None, 1e-2).unwrap()));
}

#[test]
fn a_fork_of_layer_norm_adds_the_gradient_that_comes_past_it() {
    let (x, weight, bias) = (random(&[2, 3, 5], 1), random(&[5], 2), random(&[5], 3));
    let fork = |x: &Tensor| layer_norm_fork(x, &weight, &bias, 1e-2).unwrap();
    assert_eq!(values(&fork(&x)[1]), values(&x));
    check_gradient(&x, |x| {
        let [normalized, past] = fork(x);
        weighted(normalized).add(&past.square().unwrap()).unwrap()
    });
    check_gradient(&x, |x| weighted(fork(x)[0].clone()));
    check_gradient(&x, |x| fork(x)[1].square().unwrap());
    // The bits of a layer and an addition, in every dtype.
    for dtype in [DType::F32, DType::Bf16] {
        let [x, weight, bias] = [&x, &weight, &bias].map(|tensor| tensor.to_dtype(dtype).unwrap());
        let gradients = [true, false].map(|forks| {
            let leaf = x.detach().requires_grad_().unwrap();
            let [normalized, past] = if forks {
                layer_norm_fork(&leaf, &weight, &bias, 1e-5).unwrap()
            } else {
                [layer_norm(&leaf, &[5], Some(&weight), Some(&bias), 1e-5).unwrap(), leaf.clone()]
            };
            normalized
                .sin()
                .unwrap()
                .add(&past.sin().unwrap())
                .unwrap()
                .sum(&[], false)
                .unwrap()
                .backward()
                .unwrap();
            values(&leaf.grad().unwrap())
        });
        assert_eq!(gradients[0], gradients[1], "{dtype}");
    }
    assert!(layer_norm_fork(&x, &bias.narrow(0, 0, 4).unwrap(), &bias, 1e-5).is_err());
}

#[test]
fn a_sum_is_normalized_as_an_addition_and_a_layer_are() {
    let (x, branch) = (random(&[2, 3, 5], 1), random(&[2, 3, 5], 4));
    let (weight, bias) = (random(&[5], 2), random(&[5], 3));
    let both = |[normalized, sum]: [Tensor; 2]| weighted(normalized).add(&sum.square().unwrap()).unwrap();
    check_gradient(&x, |x| both(add_layer_norm(x, &branch, &weight, &bias, 1e-2).unwrap()));
    check_gradient(&branch, |branch| both(add_layer_norm(&x, branch, &weight, &bias, 1e-2).unwrap()));
    check_gradient(&weight, |weight| both(add_layer_norm(&x, &branch, weight, &bias, 1e-2).unwrap()));
    check_gradient(&branch, |branch| {
        weighted(add_layer_norm(&x, branch, &weight, &bias, 1e-2).unwrap()[0].clone())
    });
    check_gradient(&branch, |branch| {
        add_layer_norm(&x, branch, &weight, &bias, 1e-2).unwrap()[1].square().unwrap()
    });
    // The bits of an addition, a layer and a cast, where all have one dtype, and where the branch was computed in another.
    for (dtype, of_branch) in
        [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::F32, DType::Bf16)]
    {
        let found = [true, false].map(|is_one| {
            let leaf =
                |tensor: &Tensor, dtype| tensor.to_dtype(dtype).unwrap().detach().requires_grad_().unwrap();
            let leaves =
                [leaf(&x, dtype), leaf(&branch, of_branch), leaf(&weight, dtype), leaf(&bias, dtype)];
            let [x, branch, weight, bias] = &leaves;
            let run = || -> thalweg_runtime::Result<[Tensor; 2]> {
                if is_one {
                    return add_layer_norm(x, branch, weight, bias, 1e-5);
                }
                let sum = x.add(branch)?;
                Ok([layer_norm(&sum, &[5], Some(weight), Some(bias), 1e-5)?.to_dtype(of_branch)?, sum])
            };
            let results = match dtype == of_branch {
                true => run(),
                false => thalweg_tensor::autocast::autocast(DType::Bf16, run),
            };
            let [normalized, sum] = results.unwrap();
            assert_eq!((normalized.dtype(), sum.dtype()), (of_branch, dtype));
            let loss = normalized.sin().unwrap().add(&sum.sin().unwrap()).unwrap().sum(&[], false).unwrap();
            loss.backward().unwrap();
            let gradients: Vec<Tensor> = leaves.iter().map(|leaf| leaf.grad().unwrap()).collect();
            [&normalized, &sum].into_iter().chain(&gradients).map(values).collect::<Vec<_>>()
        });
        assert_eq!(found[0], found[1], "{dtype}, {of_branch}");
    }
    let refused = |x: &Tensor, branch: &Tensor| add_layer_norm(x, branch, &weight, &bias, 1e-5).is_err();
    assert!(refused(&x, &branch.narrow(0, 0, 1).unwrap()));
    assert!(refused(&x.to_dtype(DType::F32).unwrap(), &branch), "a sum in f64");
}

#[test]
fn embedding_reads_rows_and_adds_up_their_gradients() {
    on_own_device(|| {
        let weight = random(&[5, 3], 1);
        let places = indices(&[1, 4, 1, 0, 1, 4], &[2, 3]);
        let found = embedding(&places, &weight, None).unwrap();
        assert_eq!(found.shape(), [2, 3, 3]);
        let rows = values(&weight);
        let expected: Vec<f64> =
            [1, 4, 1, 0, 1, 4].iter().flat_map(|&row| rows[row * 3..row * 3 + 3].to_vec()).collect();
        assert_eq!(values(&found), expected);
        check_gradient(&weight, |weight| weighted(embedding(&places, weight, None).unwrap()));
        // The padding's row is read and has no gradient.
        let leaf = weight.detach().requires_grad_().unwrap();
        let padded = embedding(&places, &leaf, Some(-1)).unwrap();
        assert_eq!(values(&padded), expected);
        padded.sum(&[], false).unwrap().backward().unwrap();
        let gradient = values(&leaf.grad().unwrap());
        assert_eq!(gradient, [1., 1., 1., 3., 3., 3., 0., 0., 0., 0., 0., 0., 0., 0., 0.]);
        let outside = embedding(&indices(&[5, -1], &[2]), &weight, None).unwrap();
        expect_out_of_range();
        assert!(values(&outside).iter().all(|value| value.is_nan()));
        assert!(embedding(&places, &weight, Some(5)).is_err());
    });
}

#[test]
fn an_embedding_has_gradients_for_any_number_of_features_and_none_for_indices_out_of_range() {
    on_own_device(|| {
        let places = indices(&[2, -1, 2, 3, 0], &[5]);
        for (dtype, features) in
            [(DType::F32, 1), (DType::F32, 300), (DType::F64, 128), (DType::Bf16, 130), (DType::F16, 3)]
        {
            let weight = random(&[3, features], 1).to_dtype(dtype).unwrap().requires_grad_().unwrap();
            let gradient = random(&[5, features], 2).to_dtype(dtype).unwrap();
            embedding(&places, &weight, None).unwrap().backward_with(&gradient).unwrap();
            expect_out_of_range();
            let parts = values(&gradient);
            let part = |place: usize, feature: usize| parts[place * features + feature];
            let expected: Vec<f64> = (0..features)
                .map(|feature| part(4, feature))
                .chain((0..features).map(|_| 0.0))
                .chain((0..features).map(|feature| part(0, feature) + part(2, feature)))
                .collect();
            assert_close(&values(&weight.grad().unwrap()), &expected, tolerance(dtype));
        }
        let empty = random(&[3, 4], 1).requires_grad_().unwrap();
        embedding(&indices(&[], &[0]), &empty, None).unwrap().sum(&[], false).unwrap().backward().unwrap();
        assert_eq!(values(&empty.grad().unwrap()), [0.0; 12]);
    });
}

#[test]
fn many_equal_indices_add_up_in_the_same_order() {
    let places: Vec<i64> = (0..700).map(|n| n * n % 7).collect();
    let places = indices(&places, &[700]);
    let gradient = || {
        let leaf = random(&[7, 64], 1).to_dtype(DType::F32).unwrap().requires_grad_().unwrap();
        let weights = random(&[700, 64], 2).to_dtype(DType::F32).unwrap();
        let loss = embedding(&places, &leaf, None).unwrap().mul(&weights).unwrap().sum(&[], false).unwrap();
        loss.backward().unwrap();
        leaf.grad().unwrap().to_vec::<f32>().unwrap()
    };
    let (first, second) = (gradient(), gradient());
    assert_eq!(first, second);
    let weights = values(&random(&[700, 64], 2).to_dtype(DType::F32).unwrap());
    let mut expected = vec![0.0; 7 * 64];
    for n in 0..700 {
        (0..64).for_each(|d| expected[n * n % 7 * 64 + d] += weights[n * 64 + d]);
    }
    let found: Vec<f64> = first.iter().map(|&value| f64::from(value)).collect();
    assert_close(&found, &expected, 1e-5);
}

#[test]
fn index_copy_writes_at_indices_on_the_device() {
    on_own_device(|| {
        let target = Tensor::zeros(&[2, 4, 3], DType::F32, &device()).unwrap();
        let source = tensor(&(1..=12).map(f64::from).collect::<Vec<_>>(), &[2, 2, 3], DType::F32);
        target.index_copy_(1, &indices(&[3, 1], &[2]), &source).unwrap();
        let expected = [
            0., 0., 0., 4., 5., 6., 0., 0., 0., 1., 2., 3., 0., 0., 0., 10., 11., 12., 0., 0., 0., 7., 8., 9.,
        ];
        assert_eq!(values(&target), expected);
        // Through a transposed view, from an expanded source; what is out of range is left alone.
        let view = target.permute(&[2, 1, 0]).unwrap();
        let ones = Tensor::ones(&[], DType::F32, &device()).unwrap().expand(&[3, 2, 2]).unwrap();
        view.index_copy_(1, &indices(&[0, 4], &[2]), &ones).unwrap();
        expect_out_of_range();
        let mut expected = expected;
        [0, 1, 2, 12, 13, 14].iter().for_each(|&place| expected[place] = 1.0);
        assert_eq!(values(&target), expected);
        let position = indices(&[2], &[]);
        target.index_copy_(-2, &position, &source.narrow(1, 0, 1).unwrap()).unwrap();
        assert_eq!(values(&target)[6..9], [1.0, 2.0, 3.0]);
        for (index, source) in [(&indices(&[0], &[1]), &source), (&source, &source)] {
            assert!(target.index_copy_(1, index, source).is_err());
        }
        let leaf = target.detach().requires_grad_().unwrap();
        assert!(leaf.index_copy_(1, &indices(&[0, 1], &[2]), &source).is_err());
        no_grad(|| leaf.index_copy_(1, &indices(&[0, 1], &[2]), &source)).unwrap();
    });
}

/// −log softmax(x) of every class of a row.
fn log_losses(row: &[f64]) -> Vec<f64> {
    let log_sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
    row.iter().map(|x| log_sum - x).collect()
}

#[test]
fn cross_entropy_takes_pytorchs_options() {
    let x = random(&[6, 5], 1);
    let classes = [4, 0, 2, 2, 1, 3];
    let target = indices(&classes, &[6]);
    let rows: Vec<Vec<f64>> = values(&x).chunks(5).map(log_losses).collect();
    for smoothing in [0.0, 0.25] {
        let losses: Vec<f64> = rows
            .iter()
            .zip(classes)
            .map(|(row, class)| {
                let loss =
                    (1.0 - smoothing) * row[class as usize] + smoothing * row.iter().sum::<f64>() / 5.0;
                if class == 2 { 0.0 } else { loss }
            })
            .collect();
        let total: f64 = losses.iter().sum();
        for (reduction, expected) in
            [(Reduction::None, losses), (Reduction::Sum, vec![total]), (Reduction::Mean, vec![total / 4.0])]
        {
            let options = ClassLossOptions { ignore_index: 2, label_smoothing: smoothing, reduction };
            let loss = |x: &Tensor| cross_entropy_with(x, &target, options).unwrap();
            assert_close(&values(&loss(&x)), &expected, 1e-12);
            check_gradient(&x, loss);
        }
    }
}

#[test]
fn cross_entropy_takes_classes_anywhere_and_alone() {
    on_own_device(|| {
        let images = random(&[2, 5, 3, 2], 1);
        let target = indices(&[0, 4, 2, 1, 1, 3, 2, 2, 0, 4, 1, 3], &[2, 3, 2]);
        let rows = images.permute(&[0, 2, 3, 1]).unwrap().reshape(&[12, 5]).unwrap();
        let flat = target.reshape(&[12]).unwrap();
        let options = ClassLossOptions::default();
        let expected = values(&cross_entropy_with(&rows, &flat, options).unwrap());
        assert_close(&values(&cross_entropy_with(&images, &target, options).unwrap()), &expected, 1e-12);
        check_gradient(&images, |images| cross_entropy_with(images, &target, options).unwrap());
        let log_probabilities = images.log_softmax(1).unwrap();
        assert_close(&values(&nll_loss(&log_probabilities, &target, options).unwrap()), &expected, 1e-12);
        check_gradient(&images, |images| {
            nll_loss(&images.log_softmax(1).unwrap(), &target, options).unwrap()
        });
        let one =
            cross_entropy_with(&rows.select(0, 0).unwrap(), &flat.select(0, 0).unwrap(), options).unwrap();
        assert_close(&values(&one), &[log_losses(&values(&rows)[..5])[0]], 1e-12);
        let outside =
            cross_entropy_with(&rows.narrow(0, 0, 1).unwrap(), &indices(&[5], &[1]), options).unwrap();
        expect_out_of_range();
        assert!(values(&outside)[0].is_nan());
    });
}

/// The number that is added to the score of a batch, a query and a key.
type Mask = Box<dyn Fn(usize, usize, usize) -> f64>;

/// Computes attention by its definition: `seen` returns the number that is added to a score.
fn attention(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    sizes: [usize; 5],
    mask: impl Fn(usize, usize, usize) -> f64,
) -> Vec<f64> {
    let [batch, queries, keys, features, results] = sizes;
    let mut found = Vec::new();
    for b in 0..batch {
        for i in 0..queries {
            let score = |j: usize| {
                let dot: f64 = (0..features)
                    .map(|e| q[(b * queries + i) * features + e] * k[(b * keys + j) * features + e])
                    .sum();
                (dot / (features as f64).sqrt() + mask(b, i, j)).exp()
            };
            let sum: f64 = (0..keys).map(score).sum();
            found.extend((0..results).map(|e| {
                let total: f64 = (0..keys).map(|j| score(j) * v[(b * keys + j) * results + e]).sum();
                if sum == 0.0 { 0.0 } else { total / sum }
            }));
        }
    }
    found
}

#[test]
fn packed_attention_is_attention_of_its_parts() {
    for (tokens, heads, features) in [(5, 6, 4), (1, 2, 3), (3, 1, 1), (40, 3, 33)] {
        for (dtype, is_causal) in [(DType::F64, true), (DType::F64, false), (DType::F32, true)] {
            let packed = random(&[tokens, heads, 3, features], 1).to_dtype(dtype).unwrap();
            let gradient = random(&[tokens, heads, features], 2).to_dtype(dtype).unwrap();
            let results = [true, false].map(|in_place| {
                let leaf = packed.detach().requires_grad_().unwrap();
                let result = if in_place {
                    packed_attention(&leaf, is_causal).unwrap()
                } else {
                    let parts: Vec<Tensor> =
                        leaf.unbind(2).unwrap().iter().map(|part| part.transpose(0, 1).unwrap()).collect();
                    let options = AttentionOptions { is_causal, ..AttentionOptions::default() };
                    let result = scaled_dot_product_attention(&parts[0], &parts[1], &parts[2], options);
                    result.unwrap().transpose(0, 1).unwrap()
                };
                result.backward_with(&gradient).unwrap();
                [values(&result), values(&leaf.grad().unwrap())]
            });
            let [found, expected] = results;
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(found, expected, 10.0 * tolerance(dtype));
            }
        }
    }
    // Parts that are a view of something larger, heads and tokens swapped.
    let whole = random(&[4, 3, 3, 7], 3);
    let view = |whole: &Tensor| whole.transpose(0, 1).unwrap().narrow(3, 1, 5).unwrap();
    check_gradient(&whole, |whole| weighted(packed_attention(&view(whole), true).unwrap()));
    assert!(packed_attention(&random(&[4, 3, 2, 7], 3), true).is_err());
}

#[test]
fn attention_follows_its_definition() {
    let (q, k, v) = (random(&[2, 3, 4, 6], 1), random(&[2, 3, 5, 6], 2), random(&[2, 3, 5, 7], 3));
    let bools: Vec<f64> = (0..20).map(|n| f64::from(n >= 5 && n % 3 != 0)).collect();
    let boolean = tensor(&bools, &[4, 5], DType::Bool);
    let added = random(&[3, 4, 5], 4);
    let numbers = values(&added);
    let hidden = |hide: bool| if hide { f64::NEG_INFINITY } else { 0.0 };
    let mut cases: Vec<(AttentionOptions<'_>, Mask)> = vec![
        (AttentionOptions::default(), Box::new(|_, _, _| 0.0)),
        (AttentionOptions { is_causal: true, ..Default::default() }, Box::new(move |_, i, j| hidden(j > i))),
        (
            AttentionOptions { attn_mask: Some(&boolean), ..Default::default() },
            Box::new(move |_, i, j| hidden(bools[i * 5 + j] == 0.0)),
        ),
    ];
    cases.push((
        AttentionOptions { attn_mask: Some(&added), ..Default::default() },
        Box::new(move |b, i, j| numbers[(b % 3 * 4 + i) * 5 + j]),
    ));
    for (options, mask) in cases {
        let found = scaled_dot_product_attention(&q, &k, &v, options).unwrap();
        assert_eq!(found.shape(), [2, 3, 4, 7]);
        let expected = attention(&values(&q), &values(&k), &values(&v), [6, 4, 5, 6, 7], mask);
        assert_close(&values(&found), &expected, 1e-12);
        let run = |q: &Tensor, k: &Tensor, v: &Tensor| {
            weighted(scaled_dot_product_attention(q, k, v, options).unwrap())
        };
        check_gradient(&q, |q| run(q, &k, &v));
        check_gradient(&k, |k| run(&q, k, &v));
        check_gradient(&v, |v| run(&q, &k, v));
    }
    check_gradient(&added, |mask| {
        let options = AttentionOptions { attn_mask: Some(mask), ..Default::default() };
        weighted(scaled_dot_product_attention(&q, &k, &v, options).unwrap())
    });
    let both = AttentionOptions { attn_mask: Some(&boolean), is_causal: true, ..Default::default() };
    assert!(scaled_dot_product_attention(&q, &k, &v, both).is_err());
    assert!(scaled_dot_product_attention(&q, &v, &k, AttentionOptions::default()).is_err());
}

#[test]
fn taking_apart_and_back_has_gradients() {
    for (count, dimension) in [(3, 1), (3, -1), (2, 0)] {
        let mut shape = vec![4, 5, 2];
        shape.insert(if dimension < 0 { 3 } else { dimension as usize }, count);
        let x = random(&shape, 1);
        let sum = |x: &Tensor| {
            let places = x.unbind(dimension).unwrap();
            assert_eq!(places.len(), count);
            let first = places[0].square().unwrap();
            weighted(first.add(&places[count - 1].exp().unwrap()).unwrap())
        };
        check_gradient(&x, sum);
        check_gradient(&x, |x| {
            let places = x.unbind(dimension).unwrap();
            let product = places.iter().skip(1).fold(places[0].clone(), |sum, place| sum.mul(place).unwrap());
            weighted(product)
        });
    }
}

#[test]
fn a_transformer_learns_and_a_captured_step_gives_the_same_bits() {
    use thalweg_nn::module::{Module, Transformer, TransformerOptions};
    use thalweg_nn::optim::{AdamW, AdamWOptions};
    use thalweg_runtime::{CaptureOptions, Graph, Stream};
    use thalweg_tensor::random::Generator;

    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let options = TransformerOptions { vocabulary: 11, context: 8, layers: 2, features: 16, heads: 2 };
    let losses = |captured: bool| -> Vec<u32> {
        let model = Transformer::new(options, &mut Generator::new(1), &device).unwrap();
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
        let optimizer = optimizer.unwrap();
        let tokens: Vec<i64> = (0..3 * 7).map(|n| n * n % 11).collect();
        let tokens = indices(&tokens, &[3, 7]);
        let (input, next) = (tokens.narrow(1, 0, 6).unwrap(), tokens.narrow(1, 1, 6).unwrap());
        let step = || {
            optimizer.zero_grad();
            let loss = model.loss(&input, &next)?;
            loss.backward()?;
            optimizer.step()?;
            Ok(loss.detach())
        };
        let bits = |loss: &Tensor| loss.item::<f32>().unwrap().to_bits();
        let mut losses = vec![bits(&step().unwrap())];
        if captured {
            let (graph, loss) = Graph::capture(&device, CaptureOptions::default(), step).unwrap();
            for _ in 0..12 {
                graph.replay().unwrap();
                losses.push(bits(&loss));
            }
        } else {
            losses.extend((0..12).map(|_| bits(&step().unwrap())));
        }
        assert_eq!(optimizer.param_groups()[0].steps(0).item::<f32>().unwrap(), 13.0);
        losses
    };
    let eager = losses(false);
    assert_eq!(losses(true), eager);
    let (first, last) = (f32::from_bits(eager[0]), f32::from_bits(eager[12]));
    assert!(last < 0.6 * first, "the transformer learns: {first} to {last}");
}

#[test]
fn heads_of_keys_are_shared_as_if_they_were_repeated() {
    let options = AttentionOptions { enable_gqa: true, is_causal: true, ..AttentionOptions::default() };
    let [query, key, value] = [([2, 6, 5, 4], 1), ([2, 2, 5, 4], 2), ([2, 2, 5, 4], 3)]
        .map(|(shape, seed)| random(&shape, seed).requires_grad_().unwrap());
    let found = scaled_dot_product_attention(&query, &key, &value, options).unwrap();
    let [k, v] = [&key, &value].map(|tensor| tensor.repeat_interleave(3, Some(1)).unwrap());
    let plain = AttentionOptions { enable_gqa: false, ..options };
    let expected = scaled_dot_product_attention(&query, &k, &v, plain).unwrap();
    assert_close(&values(&found), &values(&expected), 1e-12);
    assert!(scaled_dot_product_attention(&query, &key, &value, plain).is_err());
    let three = random(&[2, 4, 5, 4], 4);
    let error = scaled_dot_product_attention(&query, &three, &three, options).unwrap_err().to_string();
    assert!(error.contains("must divide the number of heads"), "{error}");
    let flat = random(&[5, 4], 4);
    assert!(scaled_dot_product_attention(&flat, &flat, &flat, options).unwrap_err().is_invalid_argument());
}
