//! [`Alignments`]: the probability of sequences of labels, summed over all their alignments with time, and its gradient (A. Graves et
//! al., *Connectionist Temporal Classification*, 2006).
//!
//! A sequence of n labels has 2 n + 1 states: the labels, with blanks between them. In each step in time a state follows itself, the one
//! before it, or the one two before it where that skips a blank between different labels. The logarithms of the probabilities of all ways
//! to a state follow from those of the step before. Going back from the last step gives the probabilities of all ways from a state to
//! the end, and so the share of each state in the probability of the sequence, which is its gradient.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};
use crate::source::Source;

/// The sizes of a launch. All numbers are f64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Alignments {
    /// The number of steps in time.
    pub times: u64,
    /// The number of sequences.
    pub batch: u64,
    /// The number of states of the longest sequence.
    pub states: u64,
    /// Whether the launch computes the gradient of the emissions, from the sums and losses of a launch before.
    pub is_gradient: bool,
}

arguments! { Alignments { times, batch, states, is_gradient } }

/// The most threads of a block.
const BLOCK: u64 = 512;

const NAME: &str = "alignments";

/// Returns name and source of the kernel.
pub(crate) fn sources() -> [(String, String); 1] {
    [(NAME.to_owned(), print())]
}

fn print() -> String {
    Source::new(NAME).print(include_str!("alignments.cu"))
}

/// Operands, all contiguous: the logarithms of the probabilities with which states are emitted (times, batch, states); whether a state may
/// follow the one two before it, as bytes (batch, states); the steps in time and the labels of each sequence, int64 (2, batch); the
/// logarithms of the sums over the ways to each state (times, batch, states), and −ln of the probabilities of sequences (batch), which
/// are read for the gradient; and for it the gradient of the latter (batch), and the result (times, batch, states).
impl NativeKernel for Placed<Alignments, [DevicePointer; 7]> {
    native! { self: NAME, print(), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        match self.kernel.states {
            0 => Err(Fault::new("alignments: a sequence has at least one state".to_owned())),
            _ => Ok(()),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.kernel.batch, self.kernel.states.next_power_of_two().clamp(32, BLOCK))
    }

    fn accesses(&self) -> Accesses {
        let Alignments { times, batch, states, is_gradient } = self.kernel;
        let (all, of_batch) = (times * batch * states * 8, batch * 8);
        let [emitted, skips, lengths, sums, losses, gradient, result] = self.at;
        let mut accesses = Accesses::from_iter([
            Access::read(emitted, all),
            Access::read(skips, batch * states),
            Access::read(lengths, 2 * of_batch),
        ]);
        accesses.extend(match is_gradient {
            false => vec![Access::write(sums, all), Access::write(losses, of_batch)],
            true => vec![
                Access::read(sums, all),
                Access::read(losses, of_batch),
                Access::read(gradient, of_batch),
                Access::write(result, all),
            ],
        });
        accesses
    }
}

/// Returns the logarithm of a sum of numbers whose logarithms are given.
fn logarithm_of_sum(terms: [f64; 3]) -> f64 {
    let most = terms.into_iter().fold(f64::NEG_INFINITY, f64::max);
    if most > f64::NEG_INFINITY {
        most + terms.into_iter().map(|term| (term - most).exp()).sum::<f64>().ln()
    } else {
        terms.into_iter().sum()
    }
}

/// Writes the sums over the ways to each state in each step: from the first step on, or from the last.
fn walk(to: &mut [Vec<f64>], emitted: impl Fn(usize, usize) -> f64, skips: &[u8], is_back: bool) {
    let times = to.len();
    for step in 0..times {
        let time = if is_back { times - 1 - step } else { step };
        let count = to[time].len();
        for place in 0..count {
            let state = |place: usize| if is_back { count - 1 - place } else { place };
            let sum = match step {
                0 if place < 2 => 0.0,
                0 => f64::NEG_INFINITY,
                _ => {
                    let before = &to[if is_back { time + 1 } else { time - 1 }];
                    let from = |back: usize| match place.checked_sub(back) {
                        Some(place) => before[state(place)],
                        None => f64::NEG_INFINITY,
                    };
                    let later = if is_back { place.checked_sub(2).map(state) } else { Some(state(place)) };
                    let skips = later.is_some_and(|state| skips[state] != 0);
                    logarithm_of_sum([from(0), from(1), if skips { from(2) } else { f64::NEG_INFINITY }])
                }
            };
            to[time][state(place)] = sum + emitted(time, state(place));
        }
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, at, []): (Alignments, [DevicePointer; 7], _) = arguments::unpack(NAME, launch)?;
    let [emitted, skips, lengths, sums, losses, gradient, result] = at;
    let [times, batch, states] = [kernel.times, kernel.batch, kernel.states].map(|size| size as usize);
    let all = times * batch * states;
    let (emitted, skips) = (launch.read::<f64>(emitted, all)?, launch.read::<u8>(skips, batch * states)?);
    let lengths = launch.read::<i64>(lengths, 2 * batch)?;
    let place = |time: usize, sequence: usize, state: usize| (time * batch + sequence) * states + state;
    let of = |sequence: usize, is_back: bool| {
        let count = 2 * lengths[batch + sequence] as usize + 1;
        let mut ways = vec![vec![0.0; count]; lengths[sequence] as usize];
        let skips = &skips[sequence * states..][..count];
        walk(&mut ways, |time, state| emitted[place(time, sequence, state)], skips, is_back);
        ways
    };
    if !kernel.is_gradient {
        let (sums, losses) = (launch.write::<f64>(sums, all)?, launch.write::<f64>(losses, batch)?);
        for (sequence, loss) in losses.iter_mut().enumerate() {
            let ways = of(sequence, false);
            for (time, states) in ways.iter().enumerate() {
                sums[place(time, sequence, 0)..][..states.len()].copy_from_slice(states);
            }
            *loss = -match ways.last().map(Vec::as_slice) {
                Some([.., label, blank]) => logarithm_of_sum([*label, *blank, f64::NEG_INFINITY]),
                Some(states) => states.iter().sum(),
                None if lengths[batch + sequence] == 0 => 0.0,
                None => f64::NEG_INFINITY,
            };
        }
        return Ok(());
    }
    let (sums, losses) = (launch.read::<f64>(sums, all)?, launch.read::<f64>(losses, batch)?);
    let (gradient, result) = (launch.read::<f64>(gradient, batch)?, launch.write::<f64>(result, all)?);
    result.fill(0.0);
    for sequence in 0..batch {
        let (loss, gradient) = (losses[sequence], gradient[sequence]);
        for (time, states) in of(sequence, true).iter().enumerate() {
            for (state, after) in states.iter().enumerate() {
                let at = place(time, sequence, state);
                let is_impossible = [sums[at], *after].contains(&f64::NEG_INFINITY) && loss < f64::INFINITY;
                if gradient != 0.0 && !is_impossible {
                    result[at] = -gradient * (sums[at] + after - emitted[at] + loss).exp();
                }
            }
        }
    }
    Ok(())
}
