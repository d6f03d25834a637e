//! Random numbers of the device: Philox's own, drawn once each, and the same captured or not.

use thalweg_ir::{DType, philox};
use thalweg_nn::functional::dropout;
use thalweg_runtime::sim::Check;
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use crate::support::{assert_close, check_gradient, device, random, tensor, values};

const SEED: u64 = 0x0123_4567_89ab_cdef;

fn generator() -> DeviceGenerator {
    DeviceGenerator::new(SEED, &device()).unwrap()
}

#[test]
fn uniform_numbers_are_the_words_of_their_threads() {
    let generator = generator();
    for (count, offset) in [(1000, 0), (3, 4)] {
        let found = generator.rand(&[count], DType::F32).unwrap().to_vec::<f32>().unwrap();
        let threads = count.div_ceil(256) * 256;
        for (element, &found) in found.iter().enumerate() {
            let word = philox::word(SEED, (element % threads) as u64, offset + (element / threads) as u64);
            let unit = (word as f32).mul_add(2f32.powi(-32), 2f32.powi(-33));
            assert_eq!(found, if unit == 1.0 { 0.0 } else { unit }, "element {element}");
        }
        assert_eq!(generator.state().unwrap(), (SEED, offset + 4));
    }
}

#[test]
fn many_elements_go_round_the_threads_and_move_the_offset_further() {
    let generator = generator();
    let properties = device().properties().clone();
    let resident = properties.max_threads_per_multi_processor / 256 * properties.multi_processor_count;
    let threads = resident as usize * 256;
    let count = threads * 5 + 1;
    let found = generator.rand(&[count], DType::F32).unwrap().to_vec::<f32>().unwrap();
    let word = philox::word(SEED, 0, 5);
    assert_eq!(found[threads * 5], (word as f32).mul_add(2f32.powi(-32), 2f32.powi(-33)));
    assert_eq!(generator.state().unwrap().1, 8);
}

#[test]
fn draws_have_their_distributions() {
    let generator = generator();
    let moments = |tensor: &Tensor| {
        let values = values(tensor);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64)
    };
    let (mean, variance) = moments(&generator.randn(&[100, 1000], DType::F32).unwrap());
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    let (mean, variance) = moments(&generator.uniform(&[100_000], -1.0, 3.0, DType::F64).unwrap());
    assert!((mean - 1.0).abs() < 0.02 && (variance - 16.0 / 12.0).abs() < 0.02, "{mean} {variance}");
    let (mean, _) = moments(&generator.bernoulli(&[100_000], 0.3, DType::Bool).unwrap());
    assert!((mean - 0.3).abs() < 0.01, "{mean}");
    // The upper bound is excluded also where rounding would reach it.
    let rounded = values(&generator.rand(&[100_000], DType::Bf16).unwrap());
    assert!(rounded.iter().all(|value| (0.0..1.0).contains(value)));
}

#[test]
fn the_state_says_where_the_numbers_go_on() {
    let generator = generator();
    let first = generator.randn(&[100], DType::F32).unwrap().to_vec::<f32>().unwrap();
    let (seed, offset) = generator.state().unwrap();
    let second = generator.randn(&[100], DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_ne!(first, second);
    generator.set_state(seed, offset).unwrap();
    assert_eq!(generator.randn(&[100], DType::F32).unwrap().to_vec::<f32>().unwrap(), second);
    generator.manual_seed(SEED).unwrap();
    assert_eq!(generator.randn(&[100], DType::F32).unwrap().to_vec::<f32>().unwrap(), first);
    assert!(generator.set_state(seed, 3).is_err());
    assert!(generator.rand(&[3], DType::I64).is_err());
    assert!(generator.bernoulli(&[3], 1.5, DType::F32).is_err());
    assert_eq!(generator.rand(&[0, 3], DType::F32).unwrap().shape(), [0, 3]);
}

#[test]
fn dropout_keeps_a_part_and_scales_it() {
    let generator = generator();
    let x = random(&[50, 200], 1);
    let restart = || generator.manual_seed(SEED).unwrap();
    restart();
    let found = values(&dropout(&x, 0.25, true, &generator).unwrap());
    let kept = found.iter().filter(|value| **value != 0.0).count();
    assert!((7200..7800).contains(&kept), "{kept} of 10,000");
    let expected: Vec<f64> =
        values(&x).iter().zip(&found).map(|(x, y)| if *y == 0.0 { 0.0 } else { x / 0.75 }).collect();
    assert_close(&found, &expected, 1e-12);
    check_gradient(&random(&[4, 5], 2).transpose(0, 1).unwrap(), |x| {
        restart();
        dropout(x, 0.5, true, &generator).unwrap()
    });
    assert_eq!(values(&dropout(&x, 0.5, false, &generator).unwrap()), values(&x));
    assert!(values(&dropout(&x, 1.0, true, &generator).unwrap()).iter().all(|value| *value == 0.0));
    assert!(dropout(&x, 1.5, true, &generator).is_err());
}

#[test]
fn replays_draw_fresh_numbers_and_the_same_as_without_a_graph() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let draw = |generator: &DeviceGenerator| {
        let noise = generator.randn(&[300], DType::F32)?;
        dropout(&noise, 0.5, true, generator)
    };
    let eager = generator();
    let expected: Vec<Vec<f32>> = (0..5).map(|_| draw(&eager).unwrap().to_vec::<f32>().unwrap()).collect();
    assert_ne!(expected[1], expected[2]);
    let captured = generator();
    let mut found = vec![draw(&captured).unwrap().to_vec::<f32>().unwrap()];
    let (graph, noise) = Graph::capture(&device, CaptureOptions::default(), || draw(&captured)).unwrap();
    for _ in 0..3 {
        graph.replay().unwrap();
        found.push(noise.to_vec::<f32>().unwrap());
    }
    found.push(draw(&captured).unwrap().to_vec::<f32>().unwrap());
    assert_eq!(found, expected);
}

#[test]
fn draws_on_several_streams_are_ordered() {
    let (device, generator) = (device(), generator());
    let one = generator.rand(&[1000], DType::F32).unwrap().to_vec::<f32>().unwrap();
    generator.manual_seed(SEED).unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&device).unwrap()).collect();
    let draws: Vec<Vec<f32>> = streams
        .iter()
        .map(|stream| {
            let _current = stream.make_current();
            generator.rand(&[1000], DType::F32).unwrap()
        })
        .zip(&streams)
        .map(|(tensor, stream)| {
            let _current = stream.make_current();
            tensor.to_vec::<f32>().unwrap()
        })
        .collect();
    assert_eq!(draws[0], one);
    assert!(draws[1] != draws[0] && draws[2] != draws[1]);
    assert_eq!(generator.state().unwrap().1, 12);
}

#[test]
fn permutations_have_each_number_once() {
    let operator = thalweg_tensor::dispatch::find_operator("randperm").unwrap();
    let draw = || {
        let arguments = [thalweg_tensor::dispatch::Value::Int(1000)];
        match operator.call_boxed(&arguments, Some(&device())).unwrap().remove(0) {
            thalweg_tensor::dispatch::Value::Tensor(tensor) => tensor.to_vec::<i64>().unwrap(),
            other => panic!("randperm gives {other:?}"),
        }
    };
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    let mut sorted = first;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..1000).collect::<Vec<i64>>());

    let mut order = Generator::new(7).permutation(1000).unwrap();
    assert_ne!(order, (0..1000).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..1000).collect::<Vec<_>>());
}

#[test]
fn the_device_draws_what_a_generator_of_the_host_gives() {
    let (mut tensors, mut numbers) = (Generator::new(SEED), Generator::new(SEED));
    // After each, a sequence is at another position in a block of four words.
    for count in [3, 70_001, 0, 1, 1 << 16] {
        let drawn = Tensor::uniform(&[count], -2.0, 3.0, &mut tensors, &device()).unwrap();
        let expected: Vec<f32> = (0..count).map(|_| -2.0 + 5.0 * numbers.uniform()).collect();
        assert!(drawn.to_vec::<f32>().unwrap() == expected, "{count}");
        let drawn = Tensor::normal(&[count], 1.0, 0.5, &mut tensors, &device()).unwrap();
        let expected: Vec<f64> = (0..count).map(|_| f64::from(1.0 + 0.5 * numbers.normal())).collect();
        assert_close(&values(&drawn), &expected, 1e-6);
        assert_eq!(tensors.next_u32(), numbers.next_u32());
    }
}

#[test]
fn nothing_is_drawn_on_the_meta_device_but_the_sequence_goes_on() {
    let mut meta = Generator::new(SEED);
    let drawn = Tensor::uniform(&[1 << 19, 1 << 19], 0.0, 1.0, &mut meta, &Device::meta().unwrap()).unwrap();
    assert_eq!(drawn.shape(), [1 << 19, 1 << 19]);
    Tensor::uniform(&[5], 0.0, 1.0, &mut meta, &Device::meta().unwrap()).unwrap();
    assert_eq!(meta.next_u32(), philox::word(SEED, 0, (1 << 38) + 5));
}

/// Returns the number in (0, 1] that an element of a draw receives, and its half of the Box-Muller pair, by their definitions:
/// one word each.
fn defined(count: usize, offset: u64) -> impl Fn(usize) -> (f32, f64) {
    let properties = device().properties().clone();
    let resident = properties.max_threads_per_multi_processor / 256 * properties.multi_processor_count;
    let threads = count.div_ceil(256).min(resident as usize) * 256;
    move |element| {
        let position = offset + (element / threads) as u64;
        let word = |position| philox::word(SEED, (element % threads) as u64, position) as f32;
        let uniform = word(position).mul_add(2f32.powi(-32), 2f32.powi(-33));
        let first = position / 2 * 2;
        let radius = (-2.0 * (f64::from(word(first)) / 2f64.powi(32) + 2f64.powi(-33)).ln()).sqrt();
        let angle = (f64::from(word(first + 1)) + 0.5) / 2f64.powi(32) * std::f64::consts::TAU;
        (uniform, radius * if position.is_multiple_of(2) { angle.sin() } else { angle.cos() })
    }
}

/// Numbers of elements that are drawn one by one or in runs, so that the last round or run is incomplete for some of them.
const COUNTS: [usize; 6] = [1, 257, 4_099, (1 << 20) - 1, 1 << 20, 1_300_003];

#[test]
fn every_element_has_the_word_of_its_place() {
    for count in COUNTS {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            let generator = generator();
            let uniform = values(&generator.uniform(&[count], -1.0, 3.0, dtype).unwrap());
            let (_, offset) = generator.state().unwrap();
            let normal = values(&generator.normal(&[count], 1.0, 0.5, dtype).unwrap());
            let (of_uniform, of_normal) = (defined(count, 0), defined(count, offset));
            let rounded = |value: f64| values(&tensor(&[value], &[1], dtype))[0];
            // Every element of small draws; of large ones every 997th and the last.
            let step = if count > 10_000 { 997 } else { 1 };
            for element in (0..count).step_by(step).chain(count.saturating_sub(20)..count) {
                let expected = rounded(f64::from(of_uniform(element).0.mul_add(4.0, -1.0)));
                let expected = if expected == 3.0 { -1.0 } else { expected };
                assert_eq!(uniform[element], expected, "{dtype}, {element} of {count}");
                let expected = 1.0 + 0.5 * of_normal(element).1;
                let room =
                    if dtype.size_bytes() == 2 { 2f64.powi(-8) * expected.abs().max(0.01) } else { 4e-6 };
                let found = normal[element];
                assert!(
                    (found - expected).abs() <= room,
                    "{dtype}, {element} of {count}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn dropout_of_any_size_and_place_keeps_what_the_words_say() {
    for count in COUNTS {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            let generator = generator();
            // After the first element nothing is aligned to 16 bytes.
            let room: Vec<f64> = (0..count + 1).map(|place| (place % 13) as f64 - 6.5).collect();
            let room = tensor(&room, &[count + 1], dtype);
            for first in [0, 1] {
                generator.manual_seed(SEED).unwrap();
                let x = room.narrow(0, first, count).unwrap().detach().requires_grad_().unwrap();
                let y = generator.dropout(&x, 0.75).unwrap();
                y.sum(&[], false).unwrap().backward().unwrap();
                let (found, gradient) = (values(&y), values(&x.grad().unwrap()));
                let (of, scale) = (defined(count, 0), 1.0 / 0.75);
                let one = if dtype == DType::F64 { scale } else { f64::from(scale as f32) };
                let rounded = |value: f64| values(&tensor(&[value], &[1], dtype))[0];
                let products: Vec<f64> = (0..13).map(|place| rounded((place as f64 - 6.5) * one)).collect();
                let of_one = rounded(one);
                for element in (0..count).step_by(if count > 10_000 { 7 } else { 1 }) {
                    let kept = f64::from(u8::from(of(element).0 < 0.75));
                    let expected = products[(element + first) % 13] * kept;
                    assert_eq!(found[element], expected, "{dtype}, {element} of {count}, from {first}");
                    assert_eq!(
                        gradient[element],
                        of_one * kept,
                        "{dtype}, {element} of {count}, from {first}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_operator_of_dropout_draws_alike_in_one_launch_and_in_several() {
    use thalweg_tensor::dispatch::{Value, find_operator};
    let call = |name: &str, x: &Tensor, p: f64| {
        let values = [Value::Tensor(x.clone()), Value::Float(p), Value::Bool(true)];
        let results = find_operator(name).unwrap().call_boxed(&values, None).unwrap();
        let tensors = results.into_iter().map(|result| match result {
            Value::Tensor(tensor) => tensor,
            other => panic!("{name} gives {other:?}"),
        });
        tensors.collect::<Vec<_>>()
    };
    let drawn = |name: &str, x: &Tensor, p: f64| {
        let generator = std::sync::Arc::new(generator());
        thalweg_tensor::random::with_generator(&generator, || call(name, x, p))
    };
    // A contiguous tensor takes one launch, a transposed one several.
    let x = random(&[40, 60], 3).to_dtype(DType::F32).unwrap();
    let turned = x.transpose(0, 1).unwrap().contiguous().unwrap().transpose(0, 1).unwrap();
    assert!(x.is_contiguous() && !turned.is_contiguous());
    for p in [0.1, 0.5, 1.0] {
        let of_both = |name: &str| [&x, &turned].map(|x| drawn(name, x, p));
        let [one, several] = of_both("dropout");
        assert_close(&values(&one[0]), &values(&several[0]), 1e-6);
        let [one, several] = of_both("native_dropout");
        assert_close(&values(&one[0]), &values(&several[0]), 1e-6);
        assert_eq!(values(&one[1]), values(&several[1]));
        assert_eq!(one[1].dtype(), DType::Bool);
        let kept = values(&one[1]).iter().sum::<f64>() / 2400.0;
        assert!((kept - (1.0 - p)).abs() < 0.05, "{kept} are kept of {p}");
    }
}

#[test]
fn a_program_of_a_check_may_draw_from_the_default_generator() {
    Check::new()
        .seeds(0..2)
        .run(|gpu| -> Result<()> { Tensor::rand(&[4], DType::F32, gpu.device()).map(drop) });
}
