//! All layers of a decoder for a token: the kernel compared with the layers operator by operator in f32.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_nn::functional::{
    Affine, DecoderHead, DecoderInput, DecoderLayer, DecoderOptions, decoder_layers, layer_norm, next_token_,
};
use thalweg_runtime::Result;
use thalweg_runtime::sim::Check;
use thalweg_tensor::fused::decoder::{DecoderState, exchange_for, fused_decoder_layers, fused_next_token};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, own_device, random, values};

const OPTIONS: DecoderOptions<'static> = DecoderOptions { eps: 1e-5, rotations: None, exchange: None };

/// The sizes of layers.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    features: usize,
    hidden: usize,
    heads: usize,
    context: usize,
    layers: usize,
}

/// The tensors of a layer, in the order of [`DecoderLayer`].
struct Layer {
    tensors: Vec<Tensor>,
    caches: [Tensor; 2],
}

impl Layer {
    fn new(sizes: Sizes, seed: u64, dtype: DType) -> Self {
        let Sizes { features, hidden, heads, context, .. } = sizes;
        let of = |at: u64, shape: &[usize], factor: f64| {
            random(shape, 100 * seed + at).mul_scalar(factor).unwrap().to_dtype(dtype).unwrap()
        };
        let small = |terms: usize| 2.0 / (terms as f64).sqrt();
        let shapes: [(&[usize], f64); 12] = [
            (&[features], 1.0),
            (&[features], 0.3),
            (&[features], 1.0),
            (&[features], 0.3),
            (&[3 * features, features], small(features)),
            (&[3 * features], 0.3),
            (&[features, features], small(features)),
            (&[features], 0.3),
            (&[hidden, features], small(features)),
            (&[hidden], 0.3),
            (&[features, hidden], small(hidden)),
            (&[features], 0.3),
        ];
        let tensors = (0..).zip(shapes).map(|(at, (shape, factor))| of(at, shape, factor)).collect();
        let cache = |at| of(at, &[1, heads, context, features / heads], 1.0);
        Self { tensors, caches: [cache(20), cache(21)] }
    }

    /// Returns the layer in another dtype.
    fn to_dtype(&self, dtype: DType) -> Self {
        let to = |tensor: &Tensor| tensor.to_dtype(dtype).unwrap();
        Self { tensors: self.tensors.iter().map(to).collect(), caches: self.caches.each_ref().map(to) }
    }

    fn parts(&self) -> DecoderLayer<'_> {
        let pair =
            |at: usize| Affine { weight: &self.tensors[2 * at], bias: Some(&self.tensors[2 * at + 1]) };
        DecoderLayer {
            norms: [pair(0), pair(1)],
            products: [pair(2), pair(3), pair(4), pair(5)],
            caches: self.caches.each_ref(),
        }
    }
}

/// Returns the root mean square of differences, relative to that of the expected values.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let square = |sum: f64, x: f64| sum + x * x;
    let apart = found.iter().zip(expected).map(|(a, b)| a - b).fold(0.0, square);
    (apart / expected.iter().copied().fold(0.0, square)).sqrt()
}

#[track_caller]
fn fused(input: &Tensor, position: &Tensor, layers: &[Layer]) -> Option<Tensor> {
    let parts: Vec<_> = layers.iter().map(Layer::parts).collect();
    fused_decoder_layers(DecoderInput::Row(input), position, &parts, OPTIONS, Location::caller()).unwrap()
}

fn number(value: i64) -> Tensor {
    Tensor::from_slice(&[value], &[1], &device()).unwrap()
}

#[test]
fn layers_in_one_kernel_are_near_those_of_operators_in_f32() {
    let all = [
        Sizes { features: 64, hidden: 256, heads: 2, context: 40, layers: 2 },
        Sizes { features: 256, hidden: 1024, heads: 4, context: 300, layers: 3 },
        // Rows that blocks do not share evenly, and hidden features that are not a multiple of the row's.
        Sizes { features: 192, hidden: 416, heads: 3, context: 70, layers: 2 },
        // Clusters of four; heads of 16 features, and fifteen.
        Sizes { features: 64, hidden: 96, heads: 4, context: 20, layers: 2 },
        Sizes { features: 480, hidden: 960, heads: 15, context: 460, layers: 1 },
        // Heads of 128 features, more clusters than heads, and several times eight keys for each warp.
        Sizes { features: 512, hidden: 2048, heads: 4, context: 1700, layers: 1 },
        // More layers than a launch has.
        Sizes { features: 32, hidden: 64, heads: 2, context: 9, layers: 34 },
    ];
    for (sizes, dtype) in
        all.into_iter().flat_map(|sizes| [DType::F16, DType::Bf16].map(|dtype| (sizes, dtype)))
    {
        let bound =
            if dtype == DType::F16 { 2e-3 } else { 2e-2 } * (sizes.layers as f64 / 3.0).max(1.0).sqrt();
        let layers: Vec<Layer> =
            (1..).take(sizes.layers).map(|seed| Layer::new(sizes, seed, dtype)).collect();
        let wide: Vec<Layer> = layers.iter().map(|layer| layer.to_dtype(DType::F32)).collect();
        let last = sizes.context as i64 - 1;
        for position in [0, 1, last / 2, last, last + 1, -1] {
            let input = random(&[1, sizes.features], (7 + position) as u64).to_dtype(dtype).unwrap();
            let at = number(position);
            no_grad(|| {
                let result = fused(&input, &at, &layers).expect("the kernel takes these sizes");
                let parts: Vec<_> = wide.iter().map(Layer::parts).collect();
                let input = input.to_dtype(DType::F32).unwrap();
                let expected = decoder_layers(DecoderInput::Row(&input), &at, &parts, OPTIONS).unwrap();
                let apart = distance(&values(&result), &values(&expected));
                assert!(apart < bound, "{sizes:?} {dtype} at {position}: {apart}");
                for (narrow, wide) in
                    layers.iter().zip(&wide).flat_map(|(a, b)| a.caches.iter().zip(&b.caches))
                {
                    let apart = distance(&values(narrow), &values(wide));
                    assert!(apart < bound, "{sizes:?} {dtype} at {position}: a cache is {apart} apart");
                    // Rounding errors are not carried on.
                    wide.copy_(&narrow.to_dtype(DType::F32).unwrap()).unwrap();
                }
            });
        }
    }
}

/// A form of layers that only the streamed kernel takes.
#[derive(Clone, Copy, Debug)]
struct Form {
    features: usize,
    hidden: usize,
    heads: [usize; 2],
    width: usize,
    is_gated: bool,
    is_centred: bool,
    is_turned: bool,
    has_biases: bool,
}

/// The tensors of such a layer: norms and products, each with a bias.
struct AnyLayer {
    norms: [[Tensor; 2]; 2],
    products: [[Tensor; 2]; 4],
    caches: [Tensor; 2],
    form: Form,
}

impl AnyLayer {
    fn new(form: Form, context: usize, seed: u64, dtype: DType) -> Self {
        let Form { features, hidden, heads: [heads, key_heads], width, is_gated, .. } = form;
        let of = |at: u64, shape: &[usize], factor: f64| {
            random(shape, 100 * seed + at).mul_scalar(factor).unwrap().to_dtype(dtype).unwrap()
        };
        let product = |at: u64, rows: usize, terms: usize| {
            [of(at, &[rows, terms], 2.0 / (terms as f64).sqrt()), of(at + 1, &[rows], 0.3)]
        };
        let norm = |at| [of(at, &[features], 1.0), of(at + 1, &[features], 0.3)];
        let cache = |at| of(at, &[1, key_heads, context, width], 1.0);
        let products = [
            product(4, (heads + 2 * key_heads) * width, features),
            product(6, features, heads * width),
            product(8, hidden * (1 + usize::from(is_gated)), features),
            product(10, features, hidden),
        ];
        Self { norms: [norm(0), norm(2)], products, caches: [cache(12), cache(13)], form }
    }

    /// Returns the layer in f32.
    fn widened(&self) -> Self {
        let to = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
        let all = |pair: &[Tensor; 2]| pair.each_ref().map(to);
        let (norms, products) = (self.norms.each_ref().map(all), self.products.each_ref().map(all));
        Self { norms, products, caches: self.caches.each_ref().map(to), form: self.form }
    }

    fn parts(&self) -> DecoderLayer<'_> {
        let Form { is_centred, has_biases, .. } = self.form;
        DecoderLayer {
            norms: self.norms.each_ref().map(|pair| affine(pair, is_centred)),
            products: self.products.each_ref().map(|pair| affine(pair, has_biases)),
            caches: self.caches.each_ref(),
        }
    }
}

fn affine([weight, bias]: &[Tensor; 2], has: bool) -> Affine<'_> {
    Affine { weight, bias: has.then_some(bias) }
}

/// Returns forms of layers, most of which only the streamed kernel takes.
fn forms() -> Vec<Form> {
    let plain = Form {
        features: 64,
        hidden: 96,
        heads: [4, 2],
        width: 16,
        is_gated: true,
        is_centred: false,
        is_turned: true,
        has_biases: false,
    };
    vec![
        plain,
        Form { heads: [4, 1], is_turned: false, has_biases: true, ..plain },
        // Heads of more or fewer features than the row, and widths that are not powers of two.
        Form { features: 160, heads: [2, 2], width: 48, is_centred: true, is_gated: false, ..plain },
        Form { features: 32, hidden: 352, heads: [3, 3], width: 128, ..plain },
        // Layers that are too large to be held, and GPT-2's without a bias.
        Form {
            features: 1024,
            hidden: 4096,
            heads: [16, 16],
            width: 64,
            is_gated: false,
            is_centred: true,
            is_turned: false,
            has_biases: true,
        },
        Form {
            features: 96,
            hidden: 384,
            heads: [6, 6],
            width: 16,
            is_gated: false,
            is_centred: true,
            is_turned: false,
            has_biases: false,
        },
    ]
}

#[test]
fn layers_of_every_form_in_one_kernel_are_near_those_of_operators_in_f32() {
    let context = 9;
    for (form, dtype) in
        forms().into_iter().flat_map(|form| [DType::F16, DType::Bf16].map(|dtype| (form, dtype)))
    {
        let bound = if dtype == DType::F16 { 2e-3 } else { 2e-2 };
        let count = if form.features > 1000 { 1 } else { 2 };
        let layers: Vec<_> =
            (1..).take(count).map(|seed| AnyLayer::new(form, context, seed, dtype)).collect();
        let wide: Vec<_> = layers.iter().map(AnyLayer::widened).collect();
        let angles =
            random(&[context, form.width / 2], 3).mul_scalar(3.0).unwrap().to_dtype(DType::F32).unwrap();
        let tables = [angles.cos().unwrap(), angles.sin().unwrap()];
        let options = DecoderOptions { rotations: form.is_turned.then_some(tables.each_ref()), ..OPTIONS };
        let parts: Vec<_> = layers.iter().map(AnyLayer::parts).collect();
        let wide_parts: Vec<_> = wide.iter().map(AnyLayer::parts).collect();
        for position in [0, 4, 8] {
            let row = random(&[1, form.features], (7 + position) as u64).to_dtype(dtype).unwrap();
            let at = number(position);
            no_grad(|| {
                let input = DecoderInput::Row(&row);
                let found = fused_decoder_layers(input, &at, &parts, options, Location::caller()).unwrap();
                let found = found.unwrap_or_else(|| panic!("a kernel takes {form:?} {dtype}"));
                let row = row.to_dtype(DType::F32).unwrap();
                let expected = decoder_layers(DecoderInput::Row(&row), &at, &wide_parts, options).unwrap();
                let apart = distance(&values(&found), &values(&expected));
                assert!(apart < bound, "{form:?} {dtype} at {position}: {apart}");
                for (narrow, wide) in
                    layers.iter().zip(&wide).flat_map(|(a, b)| a.caches.iter().zip(&b.caches))
                {
                    let apart = distance(&values(narrow), &values(wide));
                    assert!(apart < bound, "{form:?} {dtype} at {position}: a cache is {apart} apart");
                    wide.copy_(&narrow.to_dtype(DType::F32).unwrap()).unwrap();
                }
            });
        }
        // A position out of range writes nothing.
        no_grad(|| {
            let before = values(&layers[0].caches[0]);
            let row = random(&[1, form.features], 5).to_dtype(dtype).unwrap();
            for position in [-1, context as i64] {
                let at = number(position);
                fused_decoder_layers(DecoderInput::Row(&row), &at, &parts, options, Location::caller())
                    .unwrap();
                assert_eq!(values(&layers[0].caches[0]), before, "{form:?} at {position}");
            }
        });
    }
}

#[test]
fn what_is_no_kernel_is_left_to_operators() {
    let sizes = Sizes { features: 64, hidden: 128, heads: 2, context: 10, layers: 1 };
    let input = |dtype| random(&[1, 64], 3).to_dtype(dtype).unwrap();
    let (layer, at) = (Layer::new(sizes, 1, DType::Bf16), number(3));
    no_grad(|| {
        assert!(fused(&input(DType::Bf16), &at, std::slice::from_ref(&layer)).is_some());
        assert!(fused(&input(DType::F16), &at, std::slice::from_ref(&layer)).is_none(), "another dtype");
        let wide = layer.to_dtype(DType::F32);
        assert!(fused(&input(DType::F32), &at, std::slice::from_ref(&wide)).is_none(), "f32");
        let shared =
            Layer { caches: [0, 0].map(|at| layer.caches[at].clone()), tensors: layer.tensors.clone() };
        assert!(fused(&input(DType::Bf16), &at, &[shared]).is_none(), "one cache for both");
        let wider = Layer::new(Sizes { features: 96, heads: 3, ..sizes }, 2, DType::Bf16);
        assert!(
            fused(&input(DType::Bf16), &at, &[layer.to_dtype(DType::Bf16), wider]).is_none(),
            "other features"
        );
        // Parts that do not fit are refused on either path.
        let parts = DecoderLayer { norms: [layer.parts().products[2]; 2], ..layer.parts() };
        assert!(
            decoder_layers(DecoderInput::Row(&input(DType::Bf16)), &at, &[parts], OPTIONS)
                .unwrap_err()
                .is_invalid_argument()
        );
        let two = random(&[2, 64], 4).to_dtype(DType::Bf16).unwrap();
        assert!(
            decoder_layers(DecoderInput::Row(&two), &at, &[layer.parts()], OPTIONS)
                .unwrap_err()
                .is_invalid_argument()
        );
    });
    let leaf = input(DType::Bf16).requires_grad_().unwrap();
    assert!(fused(&leaf, &at, std::slice::from_ref(&layer)).is_none(), "a gradient is wanted");
}

#[test]
fn steps_of_layers_have_no_race_under_any_schedule() {
    Check::new().seeds(0..6).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let sizes = Sizes { features: 32, hidden: 64, heads: 2, context: 4, layers: 2 };
        let cache = || Tensor::zeros(&[1, 2, 4, 16], DType::Bf16, device);
        let of = |shape: &[usize]| Tensor::full(shape, 0.125, DType::Bf16, device);
        let Sizes { features, hidden, .. } = sizes;
        let shapes: [&[usize]; 12] = [
            &[features],
            &[features],
            &[features],
            &[features],
            &[3 * features, features],
            &[3 * features],
            &[features, features],
            &[features],
            &[hidden, features],
            &[hidden],
            &[features, hidden],
            &[features],
        ];
        let tensors = shapes.into_iter().map(of).collect::<Result<Vec<_>>>()?;
        let layers = [
            Layer { tensors: tensors.clone(), caches: [cache()?, cache()?] },
            Layer { tensors, caches: [cache()?, cache()?] },
        ];
        let parts: Vec<_> = layers.iter().map(Layer::parts).collect();
        let (one, position) =
            (Tensor::ones(&[1], DType::I64, device)?, Tensor::zeros(&[1], DType::I64, device)?);
        let mut row = of(&[1, features])?;
        let (token, history) =
            (Tensor::zeros(&[1], DType::I64, device)?, Tensor::zeros(&[4], DType::I64, device)?);
        let (tokens, positions) = (of(&[5, features])?, of(&[4, features])?);
        no_grad(|| {
            for _ in 0..3 {
                row = decoder_layers(DecoderInput::Row(&row), &position, &parts, OPTIONS)?;
                position.add_(&one)?;
            }
            let input =
                DecoderInput::Embedded { tokens: &tokens, token: &token, positions: Some(&positions) };
            let exchange = exchange_for(input, &parts, OPTIONS)?;
            let options = DecoderOptions { exchange: exchange.as_ref(), ..OPTIONS };
            position.zero_()?;
            let barrier = Tensor::zeros(&[2], DType::I64, device)?;
            let state =
                DecoderState { token: &token, position: &position, history: &history, barrier: &barrier };
            let norm = layers[0].parts().norms[0];
            let head = DecoderHead { norm, eps: 1e-5, product: Affine { weight: &tokens, bias: None } };
            for _ in 0..3 {
                row = decoder_layers(input, &position, &parts, options)?;
                next_token_(&row, &head, state)?;
            }
            row.to_dtype(DType::F32)?.to_vec::<f32>().map(drop)
        })
    });
}

#[test]
fn embedded_rows_and_kept_memory_change_no_result() {
    // One launch that keeps its memory, one that cannot, and two launches.
    for (layers, context) in [(4, 11), (2, 5), (35, 6)] {
        let sizes = Sizes { features: 64, hidden: 128, heads: 2, context, layers };
        let table = |rows: usize, seed| random(&[rows, 64], seed).to_dtype(DType::Bf16).unwrap();
        let (tokens, positions) = (table(9, 1), table(context, 2));
        let of = || -> Vec<Layer> {
            (1..).take(sizes.layers).map(|seed| Layer::new(sizes, seed, DType::Bf16)).collect()
        };
        let (layers, expected_layers) = (of(), of());
        let parts: Vec<_> = layers.iter().map(Layer::parts).collect();
        no_grad(|| {
            let token = number(0);
            let input =
                DecoderInput::Embedded { tokens: &tokens, token: &token, positions: Some(&positions) };
            let exchange =
                exchange_for(input, &parts, OPTIONS).unwrap().expect("the kernel takes these sizes");
            let options = DecoderOptions { exchange: Some(&exchange), ..OPTIONS };
            for (place, of_token) in [3, 8, 0, 0, 5].into_iter().enumerate().take(context) {
                token.copy_(&number(of_token)).unwrap();
                let at = number(place as i64);
                let found = decoder_layers(input, &at, &parts, options).unwrap();
                let row = |table: &Tensor, row: i64| table.narrow(0, row as usize, 1).unwrap();
                let row = row(&tokens, of_token).add(&row(&positions, place as i64)).unwrap();
                let expected = fused(&row, &at, &expected_layers).expect("the kernel takes these sizes");
                assert_eq!(values(&found), values(&expected), "{sizes:?} at {place}");
            }
            for (of_token, place) in [(9, 0), (-1, 0), (0, context as i64), (0, -1)] {
                token.copy_(&number(of_token)).unwrap();
                let found = decoder_layers(input, &number(place), &parts, options).unwrap();
                assert!(values(&found).iter().all(|x| x.is_nan()), "token {of_token} at {place}");
            }
        });
    }
}

#[test]
fn the_likeliest_token_becomes_the_next_one() {
    let numbers = |count, value| Tensor::full(&[count], value, DType::I64, &device()).unwrap();
    let (token, position, barrier) = (numbers(1, 0.0), numbers(1, -1.0), numbers(2, 0.0));
    let history = numbers(6, -7.0);
    let state = DecoderState { token: &token, position: &position, history: &history, barrier: &barrier };
    let mut expected = vec![-7; 6];
    // The last one runs operator by operator.
    let cases = [
        (DType::Bf16, 5003, 96, true),
        (DType::F16, 64, 32, true),
        (DType::Bf16, 1, 64, true),
        (DType::F16, 1001, 768, true),
        (DType::Bf16, 300, 1056, true),
        (DType::F32, 300, 40, false),
    ];
    for (place, (dtype, count, features, is_fused)) in cases.into_iter().enumerate() {
        let of = |shape: &[usize], seed| random(shape, seed).to_dtype(dtype).unwrap();
        let (row, weight) = (of(&[1, features], 1), of(&[count, features], 2));
        let norm = [of(&[features], 3), of(&[features], 4)];
        // The row itself, normalized, is far ahead of random ones; it occurs twice, and the first one counts.
        let shape = [features];
        let normal = layer_norm(&row, &shape, Some(&norm[0]), Some(&norm[1]), 1e-5).unwrap();
        let near = [normal, weight.clone()];
        let likeliest = count / 2;
        for at in [likeliest, (likeliest + 7).min(count - 1)] {
            near[1].narrow(0, at, 1).unwrap().copy_(&near[0]).unwrap();
        }
        let head = DecoderHead {
            norm: Affine { weight: &norm[0], bias: Some(&norm[1]) },
            eps: 1e-5,
            product: Affine { weight: &weight, bias: None },
        };
        let found = no_grad(|| {
            let is_found = fused_next_token(&row, &head, state, Location::caller()).unwrap();
            if !is_found {
                next_token_(&row, &head, state).unwrap();
            }
            is_found
        });
        assert_eq!(found, is_fused, "{dtype} {count} x {features}");
        expected[place] = likeliest as i64;
        assert_eq!(token.to_vec::<i64>().unwrap(), [likeliest as i64], "{dtype} {count} x {features}");
        assert_eq!(position.to_vec::<i64>().unwrap(), [place as i64]);
        assert_eq!(history.to_vec::<i64>().unwrap(), expected);
        assert_eq!(barrier.to_vec::<i64>().unwrap(), [0, 0]);
    }
}

#[test]
fn nan_is_the_likeliest_and_a_token_behind_the_history_is_reported() {
    // A separate device: an error is reported at the next wait for the device, by any test.
    let device = own_device();
    let numbers = |count, value| Tensor::full(&[count], value, DType::I64, &device).unwrap();
    let (token, position, barrier) = (numbers(1, 0.0), numbers(1, 5.0), numbers(2, 0.0));
    let history = numbers(6, -7.0);
    let state = DecoderState { token: &token, position: &position, history: &history, barrier: &barrier };
    let weight = Tensor::from_slice(&[0.0_f32; 96], &[3, 32], &device).unwrap();
    weight.narrow(0, 1, 1).unwrap().fill_(f64::NAN).unwrap();
    let weight = weight.to_dtype(DType::F16).unwrap();
    let ones = Tensor::ones(&[32], DType::F16, &device).unwrap();
    let row = Tensor::arange(32, 0, 1, DType::F16, &device).unwrap().reshape(&[1, 32]).unwrap();
    let head = DecoderHead {
        norm: Affine { weight: &ones, bias: Some(&ones) },
        eps: 1e-5,
        product: Affine { weight: &weight, bias: None },
    };
    assert!(no_grad(|| fused_next_token(&row, &head, state, Location::caller())).unwrap());
    let error = device.synchronize().unwrap_err().to_string();
    assert!(error.contains("index 6 is out of bounds for dimension 0 with size 6"), "{error}");
    assert_eq!((token.to_vec::<i64>().unwrap(), position.to_vec::<i64>().unwrap()), (vec![1], vec![6]));
    assert_eq!(history.to_vec::<i64>().unwrap(), [-7; 6]);
}
