//! Random programs, compiled and not: the same bits in everything that they return, write over and differentiate.

use thalweg_ir::{DType, Scalar};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Label, Result};
use thalweg_tensor::compile::{compiled, set_recomputed_bytes};
use thalweg_tensor::dispatch::{Argument, Value, find_operator};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::own_device;

/// Choices from a seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

const UNARY: &[&str] = &[
    "exp",
    "tanh",
    "neg",
    "abs",
    "sigmoid",
    "relu",
    "gelu",
    "sin",
    "square",
    "clone",
    "contiguous",
    "silu",
    "log1p",
];
const BINARY: &[&str] = &["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "lt.Tensor"];
const REDUCING: &[&str] = &["sum.dim_IntList", "mean.dim", "amax", "amin"];
const DTYPES: &[DType] =
    &[DType::F32, DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I64, DType::Bool];
const SHAPES: &[&[usize]] = &[
    &[4, 8],
    &[8],
    &[4, 1],
    &[3, 4, 8],
    &[1],
    &[],
    &[8, 8],
    &[2, 600],
    &[16, 40],
    &[40],
    &[2, 3, 4, 8],
    &[0, 8],
    &[5, 2100],
    &[24, 97],
    &[97],
    &[3, 1001],
    &[131, 5],
];

/// A program in progress.
struct Program<'d> {
    choices: Choices,
    device: &'d Device,
    generator: DeviceGenerator,
    tensors: Vec<Tensor>,
    /// The number of tensors that exist outside.
    inputs: usize,
}

impl Program<'_> {
    fn any(&mut self) -> Tensor {
        let back = self.choices.below(self.tensors.len());
        self.tensors[self.tensors.len() - 1 - back].clone()
    }

    /// Calls an operator; a call that is refused has no result.
    fn call(&self, name: &str, arguments: &[Value]) -> Option<Tensor> {
        let operator = find_operator(name).unwrap_or_else(|_| panic!("there is {name}"));
        let arguments: Vec<Argument<'_>> = arguments.iter().map(Value::as_argument).collect();
        let label = Label::here("random program");
        operator.call(&arguments, Some(self.device), label).ok().map(|mut results| results.swap_remove(0))
    }

    /// Calls an operator whose kernel is not a loop.
    fn native(&mut self, x: &Tensor, this: Value, other: Value, dim: i64) -> Option<Tensor> {
        let extent = x.shape().get(dim as usize).copied().unwrap_or(1);
        if extent == 0 {
            return None;
        }
        let length = 1 + self.choices.below(extent);
        let list: Vec<i64> = (0..length).map(|_| self.choices.below(extent) as i64).collect();
        let index = Tensor::from_slice(&list, &[length], self.device).ok()?;
        match self.choices.below(12) {
            9.. => self.completed(x, &index, dim),
            0..3 => self.call("matmul", &[this, other]),
            3 => self.call("cumsum", &[this, Value::Int(dim)]),
            4 => self.call("sort", &[this, Value::Int(dim)]),
            5 => self.call("index_select", &[this, Value::Int(dim), Value::Tensor(index)]),
            6 => self.call("linear", &[this, other]),
            // Rows may be repeated: only sums of whole numbers do not depend on their order.
            7 if !x.dtype().is_floating_point() => {
                let part = x.index_select(dim, &index).ok()?;
                self.call("index_add_", &[this, Value::Int(dim), Value::Tensor(index), Value::Tensor(part)]);
                None
            }
            _ => {
                let part = x.narrow(dim, 0, length).ok()?.mul_scalar(2.0).ok()?;
                let index = Tensor::arange(length, 0, 1, DType::I64, self.device).ok()?;
                self.call("index_copy_", &[this, Value::Int(dim), Value::Tensor(index), Value::Tensor(part)]);
                None
            }
        }
    }

    /// Calls an operator that copies its first tensor by a loop, and completes the copy by a kernel that is not a loop.
    fn completed(&mut self, x: &Tensor, index: &Tensor, dim: i64) -> Option<Tensor> {
        let first = match self.choices.below(2) {
            0 => x.mul_scalar(3.0).ok()?,
            _ => Tensor::zeros(x.shape(), x.dtype(), self.device).ok()?,
        };
        let length = index.shape()[0];
        let part = x.narrow(dim, 0, length).ok()?;
        let places = Tensor::arange(length, 0, 1, DType::I64, self.device).ok()?;
        let shape: Vec<usize> =
            (0..x.rank()).map(|axis| if axis == dim as usize { length } else { 1 }).collect();
        let along = places.reshape(&shape).ok()?.expand(part.shape()).ok()?;
        let (first, part, dim) = (Value::Tensor(first), Value::Tensor(part), Value::Int(dim));
        let [places, along, index] = [places, along, index.clone()].map(Value::Tensor);
        match self.choices.below(6) {
            // Indices that differ: the order of sums does not matter.
            0 => self.call("index_add", &[first, dim, places, part]),
            1 => self.call("index_copy", &[first, dim, places, part]),
            2 => self.call("scatter_add", &[first, dim, along, part]),
            3 => self.call("scatter.src", &[first, dim, along, part]),
            4 => self.call("index_fill.int_Scalar", &[first, dim, index, Value::Scalar(Scalar::F64(0.5))]),
            _ => {
                let mask = Value::Tensor(x.gt_scalar(0.25).ok()?);
                self.call("masked_scatter", &[first, mask, Value::Tensor(x.clone())])
            }
        }
    }

    /// Makes a view.
    fn view(&mut self, x: &Tensor, this: Value, dim: i64) -> Option<Tensor> {
        match self.choices.below(5) {
            0 => self.call("transpose.int", &[this, Value::Int(dim), Value::Int(0)]),
            1 => self.call("unsqueeze", &[this, Value::Int(dim)]),
            2 => self.call("flatten.using_ints", &[this]),
            3 => {
                let extent = x.shape().get(dim as usize).copied().unwrap_or(0);
                let start = self.choices.below(extent.max(1));
                let length = self.choices.below(extent - start.min(extent) + 1);
                x.narrow(dim, start, length).ok()
            }
            _ => x.expand_as(&self.any()).ok(),
        }
    }

    /// Computes with parts of a tensor, and joins them in another order, as rotary embeddings do.
    fn turned(&mut self, x: &Tensor, dim: usize) -> Option<Tensor> {
        let extent = x.shape().get(dim).copied().filter(|extent| *extent > 1)?;
        let widened = x.to_dtype(self.choices.pick(&[DType::F32, DType::F64])).ok()?.square().ok()?;
        let ends = [self.choices.below(extent), extent];
        let first = widened.narrow(dim as i64, 0, ends[0]).ok()?;
        let second = widened.narrow(dim as i64, ends[0], ends[1] - ends[0]).ok()?;
        let parts = match self.choices.below(3) {
            0 if first.shape() == second.shape() => {
                vec![first.sub(&second).ok()?, second.mul(&first).ok()?]
            }
            1 => vec![second.neg().ok()?, first.exp().ok()?],
            _ => vec![second.abs().ok()?, first.clone(), second],
        };
        let joined = self.call("cat", &[Value::Tensors(parts), Value::Int(dim as i64)])?;
        joined.to_dtype(self.choices.pick(&[DType::Bf16, DType::F32])).ok()?.sin().ok()
    }

    fn joined(&mut self, x: Tensor, dim: i64) -> Option<Tensor> {
        if self.choices.below(2) == 0 {
            return self.turned(&x, dim as usize);
        }
        let both = vec![x, self.any()];
        self.call("cat", &[Value::Tensors(both), Value::Int(dim)])
    }

    fn step(&mut self) -> Result<Option<Tensor>> {
        let (x, y) = (self.any(), self.any());
        let (this, other) = (Value::Tensor(x.clone()), Value::Tensor(y));
        let dim = self.choices.below(x.rank().max(1)) as i64;
        let number = Value::Scalar(Scalar::F64(self.choices.below(9) as f64 / 4.0 - 1.0));
        let flag = Value::Bool(self.choices.below(2) == 0);
        Ok(match self.choices.below(22) {
            0..4 => {
                let name = self.choices.pick(UNARY);
                self.call(name, &[this])
            }
            4..8 => {
                let name = self.choices.pick(BINARY);
                self.call(name, &[this, other])
            }
            8 => self
                .choices
                .pick(&[Some("mul.Scalar"), Some("add.Scalar")])
                .and_then(|name| self.call(name, &[this, number])),
            9..11 => {
                let name = self.choices.pick(REDUCING);
                self.call(name, &[this, Value::Ints(vec![dim]), flag])
            }
            11 => {
                let name = self.choices.pick(&["softmax.int", "log_softmax.int"]);
                self.call(name, &[this, Value::Int(dim)])
            }
            12 => {
                let to = self.choices.pick(DTYPES);
                x.to_dtype(to).ok()
            }
            13 => self.view(&x, this, dim),
            14 => {
                let name = self.choices.pick(&["add_.Tensor", "mul_.Tensor", "copy_", "sub_.Tensor"]);
                self.call(name, &[this, other]).and(None)
            }
            15 => match self.choices.below(3) {
                0 => self.call("zero_", &[this]).and(None),
                1 => self.call("mul_.Scalar", &[this, number]).and(None),
                _ => self.call("fill_.Scalar", &[this, number]).and(None),
            },
            16 => {
                if self.tensors.len() > self.inputs + 1 {
                    let place = self.inputs + self.choices.below(self.tensors.len() - self.inputs);
                    self.tensors.remove(place);
                }
                None
            }
            17 => match self.choices.below(4) {
                // What the host reads decides what follows.
                0 if x.elements() > 0 => {
                    let total = x.to_dtype(DType::F64)?.sum(&[], false)?.item::<f64>()?;
                    if total > 0.0 { x.exp().ok() } else { x.neg().ok() }
                }
                1 if x.dtype().is_floating_point() => self.generator.dropout(&x, 0.5).ok(),
                2 => self.generator.rand(x.shape(), DType::F32).ok(),
                _ => self.native(&x, this, other, dim),
            },
            18 => {
                let condition = x.to_dtype(DType::Bool).map(Value::Tensor);
                let third = Value::Tensor(self.any());
                condition.ok().and_then(|condition| self.call("where.self", &[condition, other, third]))
            }
            19..21 => self.native(&x, this, other, dim),
            _ => self.joined(x, dim),
        })
    }

    fn run(&mut self) -> Result<()> {
        for _ in 0..4 + self.choices.below(24) {
            if let Some(result) = self.step()?
                && result.elements() < 1 << 15
            {
                self.tensors.push(result);
            }
            // What is dropped may still be saved for backward: it is computed again.
            if self.tensors.len() > self.inputs && self.choices.below(3) == 0 {
                let dropped = self.inputs + self.choices.below(self.tensors.len() - self.inputs);
                self.tensors.remove(dropped);
            }
        }
        Ok(())
    }
}

/// Inputs from a seed.
fn inputs(choices: &mut Choices, device: &Device, has_gradients: bool) -> Result<Vec<Tensor>> {
    (0..2 + choices.below(3))
        .map(|_| {
            let shape = choices.pick(SHAPES);
            let count: usize = shape.iter().product();
            let numbers: Vec<f32> = (0..count).map(|_| choices.below(4000) as f32 / 1000.0 - 2.0).collect();
            let dtype = choices.pick(DTYPES);
            let tensor = Tensor::from_slice(&numbers, shape, device)?.to_dtype(dtype)?.clone();
            if has_gradients && dtype.is_floating_point() { tensor.requires_grad_() } else { Ok(tensor) }
        })
        .collect()
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    let values = tensor.detach().to_dtype(DType::F64)?.to_vec::<f64>()?;
    Ok(values.into_iter().map(|value| if value.is_nan() { 1 } else { value.to_bits() }).collect())
}

/// The shape, the strides and the bits of a tensor that a program returns or writes.
type Left = (Vec<usize>, Vec<usize>, Vec<u64>);

/// Runs the program of a seed, and returns everything that it leaves.
fn outcome(seed: u64, device: &Device, is_compiled: bool) -> Result<Vec<Left>> {
    let mut choices = Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let has_gradients = choices.below(2) == 0;
    let tensors = inputs(&mut choices, device, has_gradients)?;
    let generator = DeviceGenerator::new(seed, device)?;
    let leaves: Vec<Tensor> = tensors.clone();
    let mut program = Program { choices, device, generator, inputs: tensors.len(), tensors };
    match is_compiled {
        true => compiled(|| program.run())?,
        false => program.run()?,
    }
    let mut left = program.tensors;
    if has_gradients {
        let is_differentiable = |tensor: &&Tensor| tensor.requires_grad() && tensor.elements() > 0;
        let loss = |tensors: &[Tensor]| -> Result<Option<Tensor>> {
            let mut loss: Option<Tensor> = None;
            for tensor in tensors.iter().filter(is_differentiable) {
                let part = tensor.to_dtype(DType::F32)?.sum(&[], false)?;
                loss = Some(match loss {
                    Some(loss) => loss.add(&part)?,
                    None => part,
                });
            }
            Ok(loss)
        };
        let loss = if is_compiled { compiled(|| loss(&left))? } else { loss(&left)? };
        // A backward pass is refused if a value that it reads was written over, compiled or not.
        if let Some(loss) = loss
            && loss.backward().is_ok()
        {
            left.extend(leaves.iter().filter_map(Tensor::grad));
        }
    }
    no_grad(|| {
        left.iter()
            .map(|tensor| Ok((tensor.shape().to_vec(), tensor.layout().strides().to_vec(), bits(tensor)?)))
            .collect()
    })
}

fn check(seed: u64, device: &Device) {
    let expected = outcome(seed, device, false).unwrap_or_else(|error| panic!("seed {seed}, eager: {error}"));
    // Twice: planned, and found.
    for _ in 0..2 {
        let found =
            outcome(seed, device, true).unwrap_or_else(|error| panic!("seed {seed}, compiled: {error}"));
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "seed {seed}, tensor {place}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn random_programs_have_the_bits_of_eager_ones() {
    let cases = std::env::var("THALWEG_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(250);
    let first = std::env::var("THALWEG_FIRST_CASE").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    let device = own_device();
    set_recomputed_bytes(std::env::var("THALWEG_RECOMPUTE_BYTES").is_err().then_some(0));
    (first..first + cases).for_each(|seed| check(seed, &device));
    let counters = thalweg_tensor::compile::counters();
    assert!(counters.kernels <= counters.loops, "{counters:?}");
    assert!(cases < 100 || counters.passed > 0, "some loops wait while other kernels are queued");
    assert!(cases < 100 || counters.recomputed > 0, "some saved results are computed again");
}

#[test]
fn compiled_programs_have_no_race_under_any_schedule() {
    set_recomputed_bytes(std::env::var("THALWEG_RECOMPUTE_BYTES").is_err().then_some(0));
    for program in 0..12 {
        Check::new().seeds(0..4).run(|gpu| outcome(10_000 + program, gpu.device(), true).map(drop));
    }
}

#[test]
fn a_lack_of_memory_is_reported_and_leaves_no_wrong_result() {
    set_recomputed_bytes(std::env::var("THALWEG_RECOMPUTE_BYTES").is_err().then_some(0));
    for program in 0..6 {
        Check::new().seeds(0..4).with_faults().run(|gpu| {
            // With faults any call may fail; what does not fail is right, as the sanitizer and the comparison see it.
            let Ok(expected) = outcome(20_000 + program, gpu.device(), false) else { return };
            if let Ok(found) = outcome(20_000 + program, gpu.device(), true) {
                assert!(found == expected, "program {program}");
            }
        });
    }
}
