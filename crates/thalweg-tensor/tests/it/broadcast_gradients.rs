//! Gradients of inputs that were broadcast are sums that are computed with what they sum: they equal those of the path that records
//! gradients of gradients, which sums stored values, and they store nothing as large as the points.

use thalweg_ir::DType;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};

use crate::support::{assert_close, on_own_device, random, values};

/// Numbers drawn from a seed (a linear congruential generator, Knuth's MMIX).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound) as usize
    }

    /// Draws a leaf that broadcasts to a shape, in a drawn order of its dimensions in memory.
    fn operand(&mut self, points: &[usize], is_whole: bool, dtype: DType) -> Result<Tensor> {
        let first = if is_whole { 0 } else { self.below(points.len() as u64 + 1) };
        let shape: Vec<usize> = (points[first..].iter())
            .map(|&extent| if is_whole || self.below(2) == 0 { extent } else { 1 })
            .collect();
        let values = random(&shape, self.0).abs()?.add_scalar(0.5)?.to_dtype(dtype)?;
        let turned = match shape.len() > 1 && self.below(2) == 0 {
            true => values.transpose(0, -1)?.contiguous()?.transpose(0, -1)?,
            false => values,
        };
        turned.detach().requires_grad_()
    }
}

type Function = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

const FUNCTIONS: [Function; 5] = [
    |x, y, z| x.mul(y)?.add(z),
    |x, y, z| x.addcmul(y, z, 0.5),
    |x, y, z| x.div(y)?.mul(z),
    |x, y, z| x.lerp_tensor(y, z),
    |x, y, z| x.atan2(y)?.pow(z),
];

#[test]
fn sums_with_their_values_are_those_of_stored_values() {
    let mut draw = Draw(20_261_129);
    for case in 0..120 {
        let rank = 1 + draw.below(4);
        let points: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 7, 33][draw.below(5)]).collect();
        let dtype = [DType::F64, DType::F64, DType::F32, DType::Bf16][draw.below(4)];
        let operands: Vec<Tensor> =
            (0..3).map(|number| draw.operand(&points, number == 0, dtype).unwrap()).collect();
        let result = FUNCTIONS[case % FUNCTIONS.len()](&operands[0], &operands[1], &operands[2]).unwrap();
        let gradient = random(result.shape(), draw.0).to_dtype(dtype).unwrap();
        let [stored, summed] = [true, false].map(|create_graph| {
            let options = BackwardOptions { retain_graph: true, create_graph };
            gradients_with(std::slice::from_ref(&result), &[Some(gradient.clone())], &operands, options)
                .unwrap()
        });
        for ((stored, summed), operand) in stored.iter().zip(&summed).zip(&operands) {
            let [stored, summed] = [stored, summed].map(|found| found.as_ref().expect("it is used"));
            assert_eq!(summed.shape(), operand.shape(), "case {case}");
            let tolerance = match dtype {
                DType::F64 => 1e-11,
                DType::F32 => 1e-4,
                // Stored values of the intermediate tensor were rounded to 16 bits.
                _ => 0.04 * points.iter().product::<usize>() as f64,
            };
            assert_close(&values(summed), &values(stored), tolerance);
        }
    }
}

#[test]
fn nothing_as_large_as_the_points_is_stored_for_a_sum() {
    on_own_device(|| {
        let x = random(&[256, 1024], 1).to_dtype(DType::Bf16).unwrap().requires_grad_().unwrap();
        for shape in [&[1024][..], &[256, 1], &[1]] {
            let weight = random(shape, 2).to_dtype(DType::Bf16).unwrap().requires_grad_().unwrap();
            let result = x.mul(&weight).unwrap();
            let gradient = Some(random(result.shape(), 3).to_dtype(DType::Bf16).unwrap());
            let allocator = x.device().allocator().clone();
            let before = allocator.statistics().allocated_bytes.all.current;
            allocator.reset_peak_memory_stats();
            let inputs = [x.clone(), weight];
            let found = gradients_with(&[result], &[gradient], &inputs, BackwardOptions::default()).unwrap();
            let peak = allocator.statistics().allocated_bytes.all.peak - before;
            // The gradient of x, and parts of sums.
            assert!(peak < 256 * 1024 * 2 * 5 / 4, "{shape:?}: {peak} bytes");
            drop(found);
        }
    });
}
