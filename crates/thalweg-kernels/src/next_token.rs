//! [`NextToken`]: the likeliest token of a row of scores becomes the one that a decoder reads next, in one kernel.
//!
//! `token = argmax(scores)`, `position += 1`, `history[position] = token`. A position behind the history is told of, and writes nothing there. Of
//! equal scores the first counts, and NaN is greater than all, as in `argmax`.

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Touch};
use thalweg_ir::cuda::{FloatNames, LaunchShape, with_prelude};
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments::{self, arguments};
use crate::{Accesses, NativeKernel, Placed, Tell, Words};

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NextToken {
    /// How many scores there are: 1 to 2³¹ - 1.
    pub count: u64,
    /// How many tokens the history has room for.
    pub context: u64,
    /// Of the scores: float32, float16 or bfloat16.
    pub dtype: DType,
}

arguments! { NextToken { count, context, dtype } }

/// The dtypes of scores.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Threads of the block.
const THREADS: u32 = 1024;

/// The operands of a launch: scores, and the token, the position and the history, of int64.
type Operands = [DevicePointer; 4];

impl NextToken {
    /// Returns whether there is a kernel for scores of a dtype, so many of them.
    #[must_use]
    pub fn takes(dtype: DType, count: u64) -> bool {
        DTYPES.contains(&dtype) && (1..1 << 31).contains(&count)
    }

    fn history_at(&self, history: DevicePointer) -> Access {
        Access::write(history, self.context * 8).touching(Touch::chosen(8))
    }

    fn name_of(dtype: DType) -> &'static str {
        match dtype {
            DType::F32 => "next_token_float32",
            DType::F16 => "next_token_float16",
            _ => "next_token_bfloat16",
        }
    }

    fn print(dtype: DType) -> String {
        let FloatNames { element, load, .. } = FloatNames::of(dtype);
        let code = include_str!("next_token.cu")
            .replace("NAME", Self::name_of(dtype))
            .replace("ELEMENT", element)
            .replace("LOAD", &load);
        with_prelude(&code)
    }
}

/// Returns name and source of every kernel.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| (NextToken::name_of(dtype).to_owned(), NextToken::print(dtype)))
}

impl NativeKernel for Placed<NextToken, Operands> {
    fn name(&self) -> &str {
        NextToken::name_of(self.kernel.dtype)
    }

    fn source(&self) -> String {
        NextToken::print(self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        self.host_telling(Arc::new(|_, _, _| ()))
    }

    fn host_telling(&self, tell: Tell) -> Arc<dyn HostKernel> {
        Arc::new(move |launch: &HostLaunch<'_>| run(launch, &tell))
    }

    fn tells(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), Fault> {
        let NextToken { count, dtype, .. } = self.kernel;
        match NextToken::takes(dtype, count) {
            true => Ok(()),
            false => Err(Fault::new(format!("next_token: there is no kernel for {count} scores of {dtype}"))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        Some(LaunchShape { grid: [1, 1, 1], block: [THREADS, 1, 1] })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let [scores, token, position, history] = self.at;
        let NextToken { count, dtype, .. } = self.kernel;
        Accesses::from_iter([
            Access::read(scores, count * dtype.size_bytes() as u64),
            Access::write(token, 8),
            Access::read_write(position, 8),
            self.kernel.history_at(history),
        ])
    }
}

fn run(launch: &HostLaunch<'_>, tell: &Tell) -> Result<(), HostFault> {
    let (kernel, at, [slot]): (NextToken, Operands, _) = arguments::unpack("next_token", launch)?;
    let likeliest = match kernel.dtype {
        DType::F32 => likeliest::<f32>(launch, at[0], kernel.count),
        DType::F16 => likeliest::<f16>(launch, at[0], kernel.count),
        DType::Bf16 => likeliest::<bf16>(launch, at[0], kernel.count),
        other => return Err(HostFault(format!("next_token: there is no kernel for {other}"))),
    }?;
    let [_, token, position, history] = at;
    launch.write::<i64>(token, 1)?[0] = likeliest as i64;
    let position = &mut launch.write::<i64>(position, 1)?[0];
    *position = position.wrapping_add(1);
    let place = u64::try_from(*position).ok().filter(|&place| place < kernel.context);
    let Some(place) = place else {
        tell(slot, *position, kernel.context as i64);
        return Ok(());
    };
    launch.write::<i64>(history, kernel.context as usize)?[place as usize] = likeliest as i64;
    if launch.has_tickets() {
        launch.touched(&kernel.history_at(history), [(history.address() + place * 8, 8)]);
    }
    Ok(())
}

/// Returns the place of the greatest score: NaN is greater than all, and of equal ones the first counts.
fn likeliest<T: Element>(launch: &HostLaunch<'_>, at: DevicePointer, count: u64) -> Result<usize, HostFault> {
    let scores = launch.read::<T>(at, count as usize)?;
    let mut best = (0, f64::NEG_INFINITY);
    for (place, score) in scores.iter().map(|score| score.to_f64()).enumerate() {
        if score.is_nan() {
            return Ok(place);
        }
        if score > best.1 {
            best = (place, score);
        }
    }
    Ok(best.0)
}
