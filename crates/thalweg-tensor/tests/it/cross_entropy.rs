//! Cross entropy over long rows, and its gradient, which overwrites the scores if nothing else holds them.

use std::slice::from_ref;

use thalweg_ir::DType;
use thalweg_nn::functional::{ClassLossOptions, Reduction, cross_entropy, cross_entropy_with};
use thalweg_runtime::{Device, Label, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};
use thalweg_tensor::dispatch::find_operator;

use crate::support::{assert_close, check_gradient, device, own_device, random, tensor, values};

const RETAINED: BackwardOptions = BackwardOptions { retain_graph: true, create_graph: false };

/// The bytes of the scores of [`Case`].
const SCORES: i64 = 1 << 20;

/// Scores of 1 MiB, and a leaf from which they come whose gradient is small.
struct Case {
    device: Device,
    leaf: Tensor,
    constant: Tensor,
    target: Tensor,
}

impl Case {
    fn new() -> Self {
        let device = own_device();
        let numbers = |count: usize| (0..count).map(|n| (n * n % 89) as f32 / 40.0).collect::<Vec<_>>();
        let constant = Tensor::from_slice(&numbers(64 * 4096), &[64, 4096], &device).unwrap();
        let leaf = Tensor::from_slice(&numbers(4096), &[4096], &device).unwrap().requires_grad_().unwrap();
        let classes: Vec<i64> = (0..64).map(|row| row * 61).collect();
        let target = Tensor::from_slice(&classes, &[64], &device).unwrap();
        Self { device, leaf, constant, target }
    }

    fn scores(&self) -> Tensor {
        self.leaf.add(&self.constant).unwrap()
    }

    fn loss(&self, scores: &Tensor) -> Tensor {
        cross_entropy(scores, &self.target).unwrap()
    }

    /// Returns the leaf's gradient, and whether the pass allocated memory for the gradient of the scores.
    fn backward(&self, loss: &Tensor, options: BackwardOptions) -> (Vec<f64>, bool) {
        let allocator = self.device.allocator();
        let figure = |name: &str| {
            let stats = allocator.memory_stats();
            stats.iter().find(|(key, _)| key == name).expect("the allocator counts bytes").1
        };
        self.leaf.zero_grad();
        allocator.reset_peak_memory_stats();
        let before = figure("allocated_bytes.all.current");
        loss.backward_options(None, options).unwrap();
        let more = figure("allocated_bytes.all.peak") - before;
        (values(&self.leaf.grad().unwrap()), more >= SCORES)
    }
}

#[test]
fn the_gradient_takes_the_place_of_scores_that_nothing_holds() {
    let case = Case::new();
    let scores = case.scores();
    let before = values(&scores);
    let loss = case.loss(&scores);
    let (expected, took_memory) = case.backward(&loss, BackwardOptions::default());
    assert!(took_memory, "the scores are held");
    assert_eq!(values(&scores), before);
    drop(scores);
    let loss = case.loss(&case.scores());
    let (found, took_memory) = case.backward(&loss, BackwardOptions::default());
    assert_eq!(found, expected);
    assert!(!took_memory);
    assert!(loss.backward().is_err(), "what was saved is gone");
}

#[test]
fn a_pass_that_another_may_follow_leaves_the_scores() {
    let case = Case::new();
    let loss = case.loss(&case.scores());
    let (first, took_memory) = case.backward(&loss, RETAINED);
    assert!(took_memory);
    let (second, took_memory) = case.backward(&loss, BackwardOptions::default());
    assert_eq!(second, first);
    assert!(!took_memory, "none follows the last");
}

#[test]
fn scores_that_another_node_saved_or_another_stream_reads_are_left() {
    let case = Case::new();
    let (alone, _) = case.backward(&case.loss(&case.scores()), BackwardOptions::default());
    let twice = {
        let scores = case.scores();
        case.loss(&scores).add(&case.loss(&scores)).unwrap()
    };
    let (found, took_memory) = case.backward(&twice, BackwardOptions::default());
    assert!(took_memory, "the node that runs first leaves them to the other");
    assert_close(&found, &alone.iter().map(|gradient| 2.0 * gradient).collect::<Vec<_>>(), 1e-6);
    let elsewhere = Stream::new(&case.device).unwrap();
    let loss = {
        let scores = case.scores();
        scores.record_stream(&elsewhere);
        case.loss(&scores)
    };
    let (found, took_memory) = case.backward(&loss, BackwardOptions::default());
    assert!(took_memory);
    assert_eq!(found, alone);
}

#[test]
fn the_gradient_has_a_gradient() {
    let x = random(&[4, 7], 31);
    let target = Tensor::from_slice(&[3i64, -100, 6, 0], &[4], &device()).unwrap();
    let weight = random(&[4, 7], 32);
    check_gradient(&x, |x| {
        let leaf = if x.requires_grad() { x.clone() } else { x.detach().requires_grad_().unwrap() };
        let loss = cross_entropy(&leaf, &target).unwrap();
        let create = BackwardOptions { retain_graph: true, create_graph: true };
        let found = gradients_with(from_ref(&loss), &[None], from_ref(&leaf), create).unwrap();
        found[0].as_ref().unwrap().mul(&weight).unwrap()
    });
}

#[test]
fn long_rows_agree_with_the_formula() {
    for points in [1000, 1025, 5000, 70_001] {
        let rows = 3;
        let x = random(&[rows, points], points as u64).mul_scalar(9.0).unwrap();
        let mut scores = values(&x);
        // A row of which little is left, and one whose greatest is at its end.
        scores[..points - 3].fill(f64::NEG_INFINITY);
        scores[2 * points - 1] = 300.0;
        let classes = [points as i64 - 2, 5, -100];
        let target = Tensor::from_slice(&classes, &[rows], &device()).unwrap();
        let expected: Vec<f64> = (scores.chunks(points).zip(classes))
            .map(|(row, class)| {
                let greatest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - greatest).exp()).sum();
                if class < 0 { 0.0 } else { greatest + sum.ln() - row[class as usize] }
            })
            .collect();
        let options = ClassLossOptions { reduction: Reduction::None, ..ClassLossOptions::default() };
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6)] {
            let x = tensor(&scores, &[rows, points], dtype).requires_grad_().unwrap();
            let losses = cross_entropy_with(&x, &target, options).unwrap();
            assert_close(&values(&losses), &expected, tolerance);
            losses.sum(&[], false).unwrap().backward().unwrap();
            for (row, (part, class)) in values(&x.grad().unwrap()).chunks(points).zip(classes).enumerate() {
                let of_row = &scores[row * points..][..points];
                let log_sum = expected[row] + of_row[class.max(0) as usize];
                for (at, (&found, &score)) in part.iter().zip(of_row).enumerate() {
                    let is_class = f64::from(u8::from(at as i64 == class));
                    let wanted = if class < 0 { 0.0 } else { (score - log_sum).exp() - is_class };
                    assert!((found - wanted).abs() < 20.0 * tolerance, "{row}, {at}: {found}, not {wanted}");
                }
            }
        }
    }
}

#[test]
fn losses_at_classes_read_one_element_of_a_row() {
    let logarithms = random(&[3, 4, 2], 5);
    let classes = [3_i64, 0, -100, 1, 3, 3];
    let target = Tensor::from_slice(&classes, &[3, 2], &device()).unwrap();
    let weight = tensor(&[0.5, 2.0, 7.0, 0.25], &[4], DType::F64);
    let all = values(&logarithms);
    let (mut sum, mut total) = (0.0, 0.0);
    for (row, class) in classes.into_iter().enumerate().filter(|&(_, class)| class >= 0) {
        let of_class = values(&weight)[class as usize];
        sum -= of_class * all[(row / 2 * 4 + class as usize) * 2 + row % 2];
        total += of_class;
    }
    let loss = |x: &Tensor, reduction: i64| {
        let arguments = [x.into(), (&target).into(), (&weight).into(), reduction.into(), (-100_i64).into()];
        find_operator("nll_loss_nd")
            .unwrap()
            .call(&arguments, None, Label::here("nll_loss_nd"))
            .unwrap()
            .remove(0)
    };
    assert_close(&values(&loss(&logarithms, 2)), &[sum], 1e-14);
    assert_close(&values(&loss(&logarithms, 1)), &[sum / total], 1e-14);
    assert_eq!(values(&loss(&logarithms, 0))[2], 0.0);
    for reduction in 0..3 {
        check_gradient(&logarithms, |x| loss(x, reduction));
        // The gradient of a gradient that is recorded.
        check_gradient(&logarithms, |x| {
            let x = x.mul(x).unwrap();
            let sum = loss(&x, reduction).square().unwrap().sum(&[], false).unwrap();
            let create = BackwardOptions { retain_graph: true, create_graph: true };
            gradients_with(&[sum], &[None], &[x], create).unwrap().remove(0).unwrap()
        });
    }
}
