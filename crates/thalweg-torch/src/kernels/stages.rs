//! The launches of norms over channels: group norm if a group does not fit in a block, batch norm, and their gradients. Those of
//! group norm follow; those of batch norm ([`super::batch`]) are similar:
//!
//! ```text
//!  forward    moments of parts ─▶ of groups ─▶ points              x twice, the result once
//!  backward   sums of channels ─▶ coefficients of groups ─▶ points    x and the gradient twice, its own once
//!                     └─────────▶ parameters
//! ```

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{BodyBuilder, DType, OutputPlace, ReduceOp, Value};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};
use thalweg_ops::structured::{
    CHANNEL_NORM_APPLY, CHANNEL_NORM_BACKWARD, CHANNEL_NORM_COMBINE, CHANNEL_NORM_FOLD,
    CHANNEL_NORM_FOLD_WEIGHTED, CHANNEL_NORM_SUMS, SUM,
};
use thalweg_ops::{LoopOp, Placement, Signature, Space, forward};

use super::work::Work;
use super::{Kernels, Operator};
use crate::status::Result;

fn loaded<'b>(b: &'b BodyBuilder, signature: &Signature, input: usize) -> Value<'b> {
    b.input(signature.inputs[input]).to(signature.compute)
}

/// Mean, and sum of squared differences from it, of a part of a group.
static MOMENTS: LoopOp = LoopOp {
    name: "group_norm_moments",
    doc: "The mean of each row, and the sum of the squared differences from it.",
    scalars: &["count"],
    outputs: &[OutputPlace::Row; 2],
    build: |b, signature| {
        let x = loaded(b, signature, 0);
        let mean = b.reduce(ReduceOp::Sum, x) / b.scalar(DType::F64).to(signature.compute);
        let centred = x - mean;
        b.output(mean, signature.outputs[0], OutputPlace::Row);
        b.output(b.reduce(ReduceOp::Sum, centred * centred), signature.outputs[1], OutputPlace::Row);
    },
    ..SUM
};

/// Mean and 1 / √(variance + ε) of a group, from the moments of parts of one size: as PyTorch keeps them, and in f32.
static STATISTICS: LoopOp = LoopOp {
    name: "group_norm_statistics",
    doc: "Mean and inverse deviation of groups, from the moments of their parts.",
    input_count: 2,
    scalars: &["parts", "count", "epsilon"],
    outputs: &[OutputPlace::Row; 4],
    build: |b, signature| {
        let [means, squares] = [0, 1].map(|input| loaded(b, signature, input));
        let [parts, count, epsilon] = [0; 3].map(|_| b.scalar(DType::F64).to(signature.compute));
        let mean = b.reduce(ReduceOp::Sum, means) / parts;
        let apart = means - mean;
        let variance = b.reduce(ReduceOp::Sum, squares + count * apart * apart) / (parts * count);
        let inverse_deviation = 1.0 / (variance + epsilon).sqrt();
        for (output, value) in [mean, inverse_deviation, mean, inverse_deviation].into_iter().enumerate() {
            b.output(value, signature.outputs[output], OutputPlace::Row);
        }
    },
    ..SUM
};

/// Points minus a mean, times an inverse deviation and a weight, plus a bias.
static POINTS: LoopOp = LoopOp {
    name: "group_norm_points",
    doc: "Points minus a mean, times an inverse deviation and a weight, plus a bias.",
    input_count: 5,
    outputs: &[OutputPlace::Point],
    build: |b, signature| {
        let [x, mean, inverse_deviation, weight, bias] =
            [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
        let result = (x - mean) * inverse_deviation * weight + bias;
        b.output(result, signature.outputs[0], OutputPlace::Point);
    },
    ..SUM
};

/// The sums over a channel of gradient times input, and of the gradient.
static SUMS: LoopOp = LoopOp {
    name: "group_norm_sums",
    doc: "The sums over each row of gradient times input, and of the gradient.",
    input_count: 2,
    outputs: &[OutputPlace::Row; 2],
    build: |b, signature| {
        let [gradient, x] = [0, 1].map(|input| loaded(b, signature, input));
        b.output(b.reduce(ReduceOp::Sum, gradient * x), signature.outputs[0], OutputPlace::Row);
        b.output(b.reduce(ReduceOp::Sum, gradient), signature.outputs[1], OutputPlace::Row);
    },
    ..SUM
};

/// The factor of the input, and the number, in the gradient of a group's points.
static COEFFICIENTS: LoopOp = LoopOp {
    name: "group_norm_coefficients",
    doc: "The factor of the input, and the number, in the gradient of a group's points.",
    input_count: 5,
    scalars: &["count"],
    outputs: &[OutputPlace::Row; 2],
    build: |b, signature| {
        let [products, sums, weight, mean, inverse_deviation] =
            [0, 1, 2, 3, 4].map(|input| loaded(b, signature, input));
        let count = b.scalar(DType::F64).to(signature.compute);
        // The terms are linear in the channels' sums, so they are summed over channels, and each reduction has one result per
        // group.
        let slope =
            (sums * mean - products) * weight * inverse_deviation * inverse_deviation * inverse_deviation
                / count;
        let level = sums * weight * inverse_deviation / count;
        b.output(b.reduce(ReduceOp::Sum, slope), signature.outputs[0], OutputPlace::Row);
        let number = b.reduce(ReduceOp::Sum, 0.0 - slope * mean - level);
        b.output(number, signature.outputs[1], OutputPlace::Row);
    },
    ..SUM
};

/// The gradient of the input, from the coefficients of its group.
static GRADIENT: LoopOp = LoopOp {
    name: "group_norm_gradient",
    doc: "The gradient of group_norm's input, by the coefficients of each group.",
    input_count: 6,
    outputs: &[OutputPlace::Point],
    build: |b, signature| {
        let [gradient, x, weight, inverse_deviation, slope, number] =
            [0, 1, 2, 3, 4, 5].map(|input| loaded(b, signature, input));
        let result = inverse_deviation * weight * gradient + slope * x + number;
        b.output(result, signature.outputs[0], OutputPlace::Point);
    },
    ..SUM
};

/// The gradients of weight and bias: sums over instances.
static PARAMETERS: LoopOp = LoopOp {
    name: "group_norm_parameters",
    doc: "The gradients of group_norm's weight and bias, from the sums of channels.",
    input_count: 4,
    outputs: &[OutputPlace::Row; 2],
    build: |b, signature| {
        let [products, sums, mean, inverse_deviation] = [0, 1, 2, 3].map(|input| loaded(b, signature, input));
        let of_weight = b.reduce(ReduceOp::Sum, (products - mean * sums) * inverse_deviation);
        b.output(of_weight, signature.outputs[0], OutputPlace::Row);
        b.output(b.reduce(ReduceOp::Sum, sums), signature.outputs[1], OutputPlace::Row);
    },
    ..SUM
};

/// A kernel of a norm over channels. Its number distinguishes it from other works.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    Moments,
    Statistics,
    Points,
    Sums,
    Coefficients,
    Gradient,
    Parameters,
    BatchStatistics,
    BatchPoints,
    BatchSums,
    BatchTotals,
    BatchWeightedTotals,
    BatchGradient,
}

/// The first number of these kernels; the numbers of other kinds of works are below it.
const FIRST: u64 = 128;

impl Stage {
    fn operator(self) -> &'static LoopOp {
        match self {
            Self::Moments => &MOMENTS,
            Self::Statistics => &STATISTICS,
            Self::Points => &POINTS,
            Self::Sums => &SUMS,
            Self::Coefficients => &COEFFICIENTS,
            Self::Gradient => &GRADIENT,
            Self::Parameters => &PARAMETERS,
            Self::BatchStatistics => &CHANNEL_NORM_COMBINE,
            Self::BatchPoints => &CHANNEL_NORM_APPLY,
            Self::BatchSums => &CHANNEL_NORM_SUMS,
            Self::BatchTotals => &CHANNEL_NORM_FOLD,
            Self::BatchWeightedTotals => &CHANNEL_NORM_FOLD_WEIGHTED,
            Self::BatchGradient => &CHANNEL_NORM_BACKWARD,
        }
    }
}

/// A tensor of a launch: its dtype and address, and its strides over the dimensions of rows and two within a row.
#[derive(Clone, Copy)]
pub(super) struct Operand<const ROWS: usize = 2> {
    pub(super) dtype: DType,
    pub(super) address: u64,
    pub(super) rows: [u64; ROWS],
    pub(super) inner: [u64; 2],
}

/// A launch of a stage over rows. Outputs that are written once per row have no strides within it; if each point is a row, no
/// operand has any.
pub(super) struct Launch<'a, const ROWS: usize = 2> {
    pub(super) stage: Stage,
    pub(super) rows: [u64; ROWS],
    pub(super) inner: [u64; 2],
    pub(super) scalars: &'a [f64],
    pub(super) inputs: &'a [Operand<ROWS>],
    pub(super) outputs: &'a [Operand<ROWS>],
}

impl<const ROWS: usize> Launch<'_, ROWS> {
    /// Runs the launch on PyTorch's stream of a device.
    ///
    /// # Safety
    /// Each operand is on the device with the size given by rows and strides; no output overlaps another operand.
    pub(super) unsafe fn run(&self, kernels: &Kernels, device: i32, stream: u64) -> Result<()> {
        let operator = self.stage.operator();
        let addresses = |operands: &[Operand<ROWS>]| -> SmallVec<[u64; 6]> {
            operands.iter().map(|operand| operand.address).collect()
        };
        let extents: SmallVec<[u64; 64]> = self
            .rows
            .into_iter()
            .chain(self.inner)
            .chain(
                self.inputs
                    .iter()
                    .chain(self.outputs)
                    .flat_map(|operand| operand.rows.into_iter().chain(operand.inner)),
            )
            .collect();
        let dtypes: SmallVec<[DType; 10]> =
            self.inputs.iter().chain(self.outputs).map(|operand| operand.dtype).collect();
        let scalars: SmallVec<[u64; 3]> = self.scalars.iter().map(|scalar| scalar.to_bits()).collect();
        let work = Work {
            name: operator.name,
            number: FIRST + self.stage as u64,
            dtypes: &dtypes,
            extents: &extents,
            lower: &|| self.lower(),
            scalars: &scalars,
            inputs: &addresses(self.inputs),
            outputs: &addresses(self.outputs),
        };
        // SAFETY: the caller's promise.
        unsafe { work.run(&kernels.place, device, stream) }
    }

    fn lower(&self) -> Result<LoopLaunch> {
        let operator = self.stage.operator();
        let dtypes = |operands: &[Operand<ROWS>]| operands.iter().map(|operand| operand.dtype).collect();
        let signature = Signature {
            inputs: dtypes(self.inputs),
            common: self.inputs[0].dtype,
            compute: DType::F32,
            outputs: dtypes(self.outputs),
        };
        let body = forward(operator, &signature);
        let has_inner = operator.space != Space::Elementwise;
        let inner =
            |inner: &[u64; 2], has: bool| if has { SmallVec::from_slice(inner) } else { SmallVec::new() };
        let placed = |operand: &Operand<ROWS>, has: bool| Placement::Strided {
            rows: SmallVec::from_slice(&operand.rows),
            inner: inner(&operand.inner, has),
        };
        let outputs = self.outputs.iter().zip(operator.outputs);
        let outputs =
            outputs.map(|(operand, &place)| placed(operand, has_inner && place == OutputPlace::Point));
        let narrow = |sizes: &[u64]| sizes.iter().map(|&size| size as usize).collect();
        Ok(LoopLaunch {
            id: body.id,
            name: operator.name.into(),
            body: Arc::clone(&body.body),
            compute: DType::F32,
            rows: narrow(&self.rows),
            inner: narrow(&inner(&self.inner, has_inner)),
            placements: self.inputs.iter().map(|operand| placed(operand, has_inner)).chain(outputs).collect(),
            scalars: LaunchNumbers::new(),
            lanes: None,
        })
    }
}

/// Runs launches one after the other; `None` if one of them fails, and the call is then left to PyTorch.
///
/// # Safety
/// As for [`Launch::run`].
pub(super) unsafe fn run<const ROWS: usize>(
    kernels: &Kernels,
    operator: Operator,
    device: i32,
    launches: &[Launch<'_, ROWS>],
) -> Option<()> {
    let stream = kernels.current_stream(device)?;
    for launch in launches {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { launch.run(kernels, device, stream) } {
            kernels.give_up(operator, &error);
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use thalweg_driver::cuda::CompileOptions;

    use super::*;

    /// Compiles a source for sm_90.
    fn compiles_source(compiler: &thalweg_driver::cuda::Nvrtc, source: &str, name: &str) {
        let extra = thalweg_ir::cuda::OPTIONS.iter().map(|&option| option.to_owned()).collect();
        let options = CompileOptions { fmad: false, extra, ..CompileOptions::new("sm_90") };
        let compiled = compiler.compile(source, name, &options);
        assert!(!compiled.unwrap_or_else(|error| panic!("{name}: {error}")).cubin.is_empty());
    }

    /// Compiles the kernel of a launch.
    fn compiles<const ROWS: usize>(compiler: &thalweg_driver::cuda::Nvrtc, launch: &Launch<'_, ROWS>) {
        let name = launch.stage.operator().name;
        let launch = launch.lower().expect("the stage is lowered");
        let plan = launch.plan(16, 0, false).expect("the stage is planned");
        let kernel = launch.kernel(&plan);
        compiles_source(compiler, &thalweg_ir::cuda::print_unit(&[&kernel]), name);
    }

    /// Compiles a stage for 8 instances of 32 groups of 10 channels of 4,096 points, in bfloat16.
    fn compile(
        compiler: &thalweg_driver::cuda::Nvrtc,
        stage: Stage,
        rows: [u64; 2],
        inner: [u64; 2],
        inputs: &str,
    ) {
        let operator = stage.operator();
        let operand = |kind: char| {
            let (dtype, rows, inner) = match kind {
                'p' => (DType::Bf16, [32 * 40_960, 40_960], [4096, 1]),
                'c' => (DType::Bf16, [0, 10], [1, 0]),
                'g' => (DType::Bf16, [32, 1], [0, 0]),
                'f' => (DType::F32, [32, 1], [0, 0]),
                _ => (DType::F32, [320, 10], [1, 0]),
            };
            Operand { dtype, address: 0, rows, inner }
        };
        let inputs: Vec<Operand> = inputs.chars().map(operand).collect();
        let kinds = operator.outputs.iter().map(|&place| if place == OutputPlace::Row { 'f' } else { 'p' });
        let outputs: Vec<Operand> = kinds.map(operand).collect();
        let launch = Launch { stage, rows, inner, scalars: &[], inputs: &inputs, outputs: &outputs };
        compiles(compiler, &launch);
    }

    /// Compiles a stage of batch norm for 32 instances of 256 channels of 784 points in bfloat16, with parameters in f32.
    fn compile_batch(
        compiler: &thalweg_driver::cuda::Nvrtc,
        stage: Stage,
        rows: [u64; 3],
        inner: [u64; 2],
        kinds: &str,
    ) {
        let operand = |kind: char| {
            let (dtype, rows, inner) = match kind {
                'p' => (DType::Bf16, [256 * 784, 784, 1], [0, 0]),
                'x' => (DType::Bf16, [256 * 784, 784, 784], [256 * 784, 1]),
                'c' => (DType::F32, [0, 1, 0], [0, 0]),
                'r' => (DType::F32, [1, 0, 0], [0, 0]),
                _ => (DType::F32, [1, 0, 0], [256, 1]),
            };
            Operand { dtype, address: 0, rows, inner }
        };
        let (inputs, outputs) = kinds.split_once('>').expect("inputs and outputs");
        let [inputs, outputs] = [inputs, outputs].map(|kinds| kinds.chars().map(operand).collect::<Vec<_>>());
        let launch = Launch { stage, rows, inner, scalars: &[], inputs: &inputs, outputs: &outputs };
        compiles(compiler, &launch);
    }

    #[test]
    fn stages_of_batch_norm_compile() {
        let Ok(compiler) = thalweg_runtime::compiler() else {
            println!("skipped: there is no NVRTC here");
            return;
        };
        let (parts, channels, points) = ([32, 256, 1], [256, 1, 1], [32, 256, 784]);
        compile_batch(compiler, Stage::Moments, parts, [1, 784], "x>rr");
        compile_batch(compiler, Stage::BatchStatistics, channels, [32, 1], "ii>rrr");
        compile_batch(compiler, Stage::BatchPoints, points, [1, 1], "pcccc>p");
        compile_batch(compiler, Stage::BatchSums, parts, [1, 784], "xccx>rr");
        compile_batch(compiler, Stage::BatchTotals, channels, [32, 1], "ii>rr");
        compile_batch(compiler, Stage::BatchWeightedTotals, channels, [32, 1], "iir>rr");
        compile_batch(compiler, Stage::BatchGradient, points, [1, 1], "pccpccc>p");
        for dtype in [DType::F32, DType::Bf16] {
            let update = super::super::batch::update(dtype);
            compiles_source(compiler, &thalweg_ir::cuda::print_foreach(&update), &update.name);
        }
    }

    #[test]
    fn stages_compile() {
        let Ok(compiler) = thalweg_runtime::compiler() else {
            println!("skipped: there is no NVRTC here");
            return;
        };
        let groups = [8, 32];
        compile(compiler, Stage::Moments, [8 * 32, 5], [8192, 1], "p");
        compile(compiler, Stage::Statistics, groups, [5, 1], "ii");
        compile(compiler, Stage::Points, groups, [10, 4096], "pffcc");
        compile(compiler, Stage::Sums, [8, 320], [4096, 1], "pp");
        compile(compiler, Stage::Coefficients, groups, [10, 1], "iicgg");
        compile(compiler, Stage::Gradient, groups, [10, 4096], "ppcgff");
        compile(compiler, Stage::Parameters, [32, 10], [8, 1], "iigg");
    }
}
