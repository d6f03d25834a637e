//! Bags of rows of a table against a plain model: every mode, padding, factors, widths that are vectors and that are not, bags of many
//! rows, of one and of none.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::{assert_close, check_gradient, device, random, tensor, values};

/// Indices, and the places at which bags begin.
struct Bags {
    indices: Vec<i64>,
    offsets: Vec<i64>,
}

impl Bags {
    /// Returns bags of these lengths, of indices below `rows`.
    fn of(lengths: &[usize], rows: i64, seed: u64) -> Self {
        let mut state = seed;
        let count = lengths.iter().sum();
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i64 % rows
        };
        let indices = (0..count).map(|_| next()).collect();
        let mut begin = 0;
        let begins = lengths.iter().map(|&length| {
            begin += length as i64;
            begin - length as i64
        });
        Self { indices, offsets: begins.collect() }
    }

    /// Returns the places of a bag whose index is not the padding index.
    fn places(&self, bag: usize, padding: Option<i64>) -> Vec<usize> {
        let end = self.offsets.get(bag + 1).map_or(self.indices.len(), |&end| end as usize);
        (self.offsets[bag] as usize..end).filter(|&place| Some(self.indices[place]) != padding).collect()
    }

    fn combined(
        &self,
        weight: &Tensor,
        mode: i64,
        padding: Option<i64>,
        factors: Option<&Tensor>,
    ) -> Vec<Tensor> {
        let of = |tensor: &Tensor| Value::Tensor(tensor.clone());
        let arguments = [
            of(weight),
            of(&long(&self.indices)),
            of(&long(&self.offsets)),
            Value::Bool(false),
            Value::Int(mode),
            Value::Bool(false),
            factors.map_or(Value::None, of),
            Value::Bool(false),
            padding.map_or(Value::None, Value::Int),
        ];
        call("embedding_bag.padding_idx", &arguments)
    }
}

fn long(list: &[i64]) -> Tensor {
    Tensor::from_slice(list, &[list.len()], &device()).unwrap()
}

/// Returns results and indices of maxima of a plain model.
fn model(
    bags: &Bags,
    rows: &[f64],
    width: usize,
    mode: i64,
    padding: Option<i64>,
    factors: &[f64],
) -> (Vec<f64>, Vec<i64>) {
    let (mut results, mut maxima) = (Vec::new(), Vec::new());
    for bag in 0..bags.offsets.len() {
        let places = bags.places(bag, padding);
        for column in 0..width {
            let value = |place: usize| rows[bags.indices[place] as usize * width + column];
            if mode == 2 {
                let best = places.iter().copied().reduce(|a, b| if value(b) > value(a) { b } else { a });
                results.push(best.map_or(0.0, value));
                maxima.push(best.map_or(-1, |place| bags.indices[place]));
                continue;
            }
            let sum: f64 = places.iter().map(|&place| value(place) * factors[place]).sum();
            results.push(if mode == 1 { sum / places.len().max(1) as f64 } else { sum });
        }
    }
    (results, maxima)
}

const LENGTHS: [&[usize]; 4] = [&[7, 0, 1, 3], &[3000, 0, 1, 39, 1960], &[2; 300], &[0, 0]];

#[test]
fn rows_are_combined_in_bags() {
    for (case, lengths) in LENGTHS.into_iter().enumerate() {
        for (width, mode) in [(1, 0), (9, 1), (8, 2), (64, 0), (300, 1), (300, 2)] {
            let bags = Bags::of(lengths, 30, case as u64);
            let weight = random(&[30, width], 11);
            let factors = random(&[bags.indices.len()], 12);
            for (padding, has_factors) in [(None, false), (Some(4), mode == 0)] {
                let plain = vec![1.0; bags.indices.len()];
                let numbers = if has_factors { values(&factors) } else { plain };
                let (expected, maxima) = model(&bags, &values(&weight), width, mode, padding, &numbers);
                let found = bags.combined(&weight, mode, padding, has_factors.then_some(&factors));
                assert_close(&values(&found[0]), &expected, 1e-12);
                let sizes: Vec<i64> = found[2].to_vec().unwrap();
                let counts = (0..lengths.len()).map(|bag| bags.places(bag, padding).len() as i64);
                assert!(counts.eq(sizes), "{lengths:?}");
                let bag_of: Vec<i64> = found[1].to_vec().unwrap();
                let own = lengths.iter().enumerate().flat_map(|(bag, &length)| vec![bag as i64; length]);
                assert!(own.eq(bag_of), "{lengths:?}");
                assert_eq!(found[3].to_vec::<i64>().unwrap(), maxima);
            }
        }
    }
}

/// 16-bit rows are summed in f32, and rounded once.
#[test]
fn short_floats_are_rounded_once() {
    let bags = Bags::of(&[900, 5, 0, 100], 40, 5);
    for (dtype, bound) in [(DType::F16, 1.0 / 2048.0), (DType::Bf16, 1.0 / 256.0)] {
        let weight = random(&[40, 16], 6).to_dtype(dtype).unwrap();
        let (rows, ones) = (values(&weight.to_dtype(DType::F64).unwrap()), vec![1.0; bags.indices.len()]);
        for mode in 0..3 {
            let (expected, _) = model(&bags, &rows, 16, mode, None, &ones);
            let found = values(&bags.combined(&weight, mode, None, None)[0].to_dtype(DType::F64).unwrap());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= bound * expected.abs() + 1e-4,
                    "{dtype}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn gradients_reach_rows_and_factors() {
    let bags = Bags::of(&[5, 0, 1, 14], 6, 7);
    for width in [3, 4] {
        let (weight, factors) = (random(&[6, width], 8), random(&[20], 9));
        for padding in [None, Some(2)] {
            for mode in 0..3 {
                check_gradient(&weight, |weight| bags.combined(weight, mode, padding, None)[0].clone());
            }
            check_gradient(&weight, |weight| bags.combined(weight, 0, padding, Some(&factors))[0].clone());
            check_gradient(&factors, |factors| bags.combined(&weight, 0, padding, Some(factors))[0].clone());
            // The gradient of the factors' gradient.
            let bag = bags.combined(&weight, 0, padding, None)[1].clone();
            let products = |gradient: &Tensor, weight: &Tensor| {
                let of = |tensor: &Tensor| Value::Tensor(tensor.clone());
                let (indices, padding) = (long(&bags.indices), Value::Int(padding.unwrap_or(-1)));
                call("thalweg::bag_products", &[of(gradient), of(weight), of(&indices), of(&bag), padding])[0]
                    .clone()
            };
            let gradient = random(&[4, width], 10);
            check_gradient(&gradient, |gradient| products(gradient, &weight));
            check_gradient(&weight, |weight| products(&gradient, weight));
        }
    }
}

/// Of equal rows the first one is the maximum, and receives the gradient.
#[test]
fn the_first_of_equal_maxima_counts() {
    let weight = tensor(&[1.0, 1.0, 0.5], &[3, 1], DType::F64).requires_grad_().unwrap();
    let bags = Bags { indices: vec![2, 1, 0, 1], offsets: vec![0] };
    let found = bags.combined(&weight, 2, None, None);
    assert_eq!(found[3].to_vec::<i64>().unwrap(), [1]);
    found[0].sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&weight.grad().unwrap()), [0.0, 1.0, 0.0]);
}
