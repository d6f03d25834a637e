//! [`NextToken`]: a language model's head and the choice of the likeliest token, which a decoder reads next, in one kernel.
//!
//! `token = argmax(norm(x) · weightᵀ)`, `position += 1`, `history[position] = token`. The scores are rounded to the weights'
//! dtype and not stored. A position beyond the history is reported, and writes nothing there. Among equal scores the first
//! counts, and NaN is greater than all, as in `argmax`.
//!
//! A warp multiplies eight rows of the weights at a time with the tensor cores, while the loads of the next eight are in flight.
//! The blocks combine their results in two words. The first is the greatest score with its place, encoded so that its order as an
//! unsigned number is that of scores, then of earlier places.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode, Touch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments::{self, arguments};
use crate::matmul::few_rows::FewRows;
use crate::native::{Accesses, NativeKernel, Placed, ReportIndex, Words, native};
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NextToken {
    /// The number of tokens: 1 to 2³¹ - 1.
    pub count: u64,
    /// The number of tokens that fit the history.
    pub context: u64,
    /// Features of the row: a multiple of 32 up to 4,096.
    pub features: u64,
    /// The bits of the number that is added to the variance.
    pub eps_bits: u64,
    /// The dtype of row and weights: float16 or bfloat16.
    pub dtype: DType,
}

arguments! { NextToken { count, context, features, eps_bits, dtype } }

/// A launch's sizes, and the number of the GPU's multiprocessors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NextTokenLaunch {
    /// The sizes.
    pub sizes: NextToken,
    /// The number of multiprocessors, each of which has at most three blocks.
    pub processors: u64,
}

/// The addresses at which the operands of a launch begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextTokenAddresses {
    /// The row (features).
    pub row: DevicePointer,
    /// The head's weights (tokens, features).
    pub weight: DevicePointer,
    /// Weight and bias of the layer norm (features); without a bias, null, it is a root-mean-square norm.
    pub norm: [DevicePointer; 2],
    /// The token, one int64, which is written.
    pub token: DevicePointer,
    /// The position, one int64, which is read and written.
    pub position: DevicePointer,
    /// The tokens so far, each at its position (context).
    pub history: DevicePointer,
    /// Two words of 8 bytes in which the blocks combine their results: zeros before and after the launch.
    pub meeting: DevicePointer,
}

arguments! { NextTokenAddresses { row, weight, norm, token, position, history, meeting } }

/// The dtypes of weights.
const DTYPES: [DType; 2] = [DType::F16, DType::Bf16];

/// The most features that a row may have.
const MOST_FEATURES: u64 = 4096;

/// The number of warps of a block, and of rows of the weights that a warp handles at a time.
const WARPS: u64 = 8;
const WARP_ROWS: u64 = 8;
/// The number of blocks that a multiprocessor runs at a time.
const BLOCKS: u64 = 3;

impl NextToken {
    /// The bytes of the words in which blocks combine their results.
    pub const MEETING_BYTES: u64 = 16;

    /// Returns whether there is a kernel for this many tokens and features.
    #[must_use]
    pub fn takes(dtype: DType, count: u64, features: u64) -> bool {
        DTYPES.contains(&dtype)
            && (1..1 << 31).contains(&count)
            && (1..=MOST_FEATURES).contains(&features)
            && features.is_multiple_of(32)
    }

    fn history_at(&self, history: DevicePointer) -> Access {
        Access::write(history, self.context * 8).touching(Touch::chosen(8))
    }

    fn name_of(dtype: DType) -> &'static str {
        if dtype == DType::F16 { "next_token_float16" } else { "next_token_bfloat16" }
    }

    fn print(dtype: DType) -> String {
        Source::new(Self::name_of(dtype))
            .elements(dtype)
            .define("MOST_FEATURES", MOST_FEATURES)
            .print(include_str!("next_token.cu"))
    }
}

/// Returns name and source of every kernel.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| (NextToken::name_of(dtype).to_owned(), NextToken::print(dtype)))
}

impl NativeKernel for Placed<NextTokenLaunch, NextTokenAddresses> {
    native! {
        self: NextToken::name_of(self.kernel.sizes.dtype), NextToken::print(self.kernel.sizes.dtype), reports run
    }

    fn check(&self) -> Result<(), Fault> {
        let NextToken { count, features, dtype, .. } = self.kernel.sizes;
        if !NextToken::takes(dtype, count, features) {
            let why = format!(
                "next_token: there is no kernel for {count} tokens of {features} features in {dtype}"
            );
            return Err(Fault::new(why));
        }
        Fault::unless(self.at.weight.address().is_multiple_of(16), || {
            "next_token: weights begin at a multiple of 16 bytes".to_owned().to_owned()
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let most = self.kernel.processors.max(1) * BLOCKS;
        let blocks = self.kernel.sizes.count.div_ceil(WARPS * WARP_ROWS).min(most) as u32;
        Some(LaunchShape { grid: [blocks, 1, 1], block: [32 * WARPS as u32, 1, 1] })
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel.sizes)
    }

    fn accesses(&self) -> Accesses {
        let NextTokenAddresses { row, weight, norm, token, position, history, meeting } = self.at;
        let NextToken { count, features, dtype, .. } = self.kernel.sizes;
        let row_bytes = features * dtype.size_bytes() as u64;
        Accesses::from_iter([
            Access::read(row, row_bytes),
            Access::read(weight, count * row_bytes),
            Access::read(norm[0], row_bytes),
            Access::read(norm[1], if norm[1].address() == 0 { 0 } else { row_bytes }),
            Access::write(token, 8),
            Access::read_write(position, 8),
            Access::read_write(meeting, NextToken::MEETING_BYTES),
            self.kernel.sizes.history_at(history),
        ])
    }
}

fn run(launch: &HostLaunch<'_>, report: &ReportIndex) -> Result<(), HostFault> {
    let (sizes, at, [slot]): (NextToken, NextTokenAddresses, _) = arguments::unpack("next_token", launch)?;
    let likeliest = match sizes.dtype {
        DType::F16 => likeliest::<f16>(launch, &sizes, &at),
        DType::Bf16 => likeliest::<bf16>(launch, &sizes, &at),
        other => return Err(HostFault(format!("next_token: there is no kernel for {other}"))),
    }?;
    launch.write::<i64>(at.token, 1)?[0] = likeliest as i64;
    let position = &mut launch.write::<i64>(at.position, 1)?[0];
    *position = position.wrapping_add(1);
    let Some(place) = u64::try_from(*position).ok().filter(|&place| place < sizes.context) else {
        report(slot, *position, sizes.context as i64);
        return Ok(());
    };
    launch.write::<i64>(at.history, sizes.context as usize)?[place as usize] = likeliest as i64;
    if launch.has_tickets() {
        launch.touched(&sizes.history_at(at.history), [(at.history.address() + place * 8, 8)]);
    }
    Ok(())
}

/// Returns the place of the greatest score: NaN is greater than all, and among equal scores the first counts.
fn likeliest<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &NextToken,
    at: &NextTokenAddresses,
) -> Result<usize, HostFault> {
    let features = sizes.features as usize;
    let bias = if at.norm[1].address() == 0 { 0 } else { features };
    let norm = [launch.read::<T>(at.norm[0], features)?, launch.read::<T>(at.norm[1], bias)?];
    let eps = f32::from_bits(sizes.eps_bits as u32);
    let row: Vec<T> = FewRows::normalized(launch.read::<T>(at.row, features)?, norm, eps);
    let row: Vec<f32> = row.iter().map(|x| x.to_f64() as f32).collect();
    let weights = launch.read::<T>(at.weight, sizes.count as usize * features)?;
    let mut best = (0, f64::NEG_INFINITY);
    for (place, line) in weights.chunks_exact(features).enumerate() {
        let sum: f32 = line.iter().zip(&row).map(|(a, b)| a.to_f64() as f32 * b).sum();
        let score = T::from_f64(f64::from(sum)).to_f64();
        if score.is_nan() {
            return Ok(place);
        }
        if score > best.1 {
            best = (place, score);
        }
    }
    Ok(best.0)
}
