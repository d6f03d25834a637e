//! Short-time Fourier transforms: transforms of overlapping frames of a signal, and their inverses.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::{call as call_operator, operators, single};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the discrete Fourier transforms of frames of `n_fft` points of signals (…, length), as (…, frequencies, frames).
    /// Frames begin at a distance of `hop_length` points, a quarter of `n_fft` by default, and are multiplied by a window.
    "stft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor"
        fn stft(n_fft: int, hop_length: optional_int, win_length: optional_int, window: optional_tensor, normalized: bool, onesided: optional_bool, return_complex: optional_bool, align_to_window: optional_bool)
        = Composite(|call| frames(call, call.tensor(0), 5));
    /// Returns the discrete Fourier transforms of centred frames of signals, which are padded at both ends.
    "stft.center(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, str pad_mode=\"reflect\", bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor"
        = Composite(|call| {
            let x = call.tensor(0);
            if !call.bool(5) {
                return frames(call, x, 7);
            }
            if call.optional_bool(10).is_some() {
                refuse!("stft align_to_window should only be set when center = false.");
            }
            check_signal(x)?;
            let half = call.int(1) / 2;
            let rank_three = if x.rank() == 1 { x.unsqueeze(0)?.unsqueeze(0)? } else { x.unsqueeze(0)? };
            let padded = rank_three.pad(&[half, half], call.str(6), None)?.squeeze(0)?;
            frames(call, &if x.rank() == 1 { padded.squeeze(0)? } else { padded }, 7)
        });
    /// Returns the signals whose frames have the discrete Fourier transforms (…, frequencies, frames): the sums of all frames,
    /// each multiplied by its window, divided by the sums of the windows' squares. Blocks, because windows must overlap
    /// everywhere.
    "istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor"
        fn istft(n_fft: int, hop_length: optional_int, win_length: optional_int, window: optional_tensor, center: bool, normalized: bool, onesided: optional_bool, length: optional_int, return_complex: bool)
        = Composite(|call| signal(call).map(single));
}

/// The sizes of frames.
struct Frames {
    /// The number of points of a frame.
    points: usize,
    /// The distance between the beginnings of two frames, in points.
    hop: usize,
    /// The number of points of the window, which is centred in a frame.
    width: usize,
}

fn check_signal(x: &Tensor) -> Result<()> {
    refuse_if!(
        x.rank() == 0 || x.rank() > 2 || !x.dtype().is_differentiable(),
        "stft expects a tensor of floats or complex numbers with 1 or 2 dimensions, but got {} {:?}",
        x.dtype(),
        x.shape()
    );
    Ok(())
}

impl Frames {
    /// Reads arguments 1 to 3 of a call.
    fn of(call: &Call<'_>) -> Result<Self> {
        let name = call.operator.base_name();
        let points = call.int(1);
        let (hop, width) =
            (call.optional_int(2).unwrap_or(points / 4), call.optional_int(3).unwrap_or(points));
        refuse_if!(!(1..1 << 40).contains(&points), "{name}: expected n_fft > 0, but got n_fft={points}");
        refuse_if!(!(1..1 << 40).contains(&hop), "{name}: expected hop_length > 0, but got hop_length={hop}");
        if !(1..=points).contains(&width) {
            refuse!("{name}: expected 0 < win_length <= n_fft, but got win_length={width}");
        }
        Ok(Self { points: points as usize, hop: hop as usize, width: width as usize })
    }

    /// Returns the window of a call, centred in a frame and padded with zeros; `None` if all weights are 1.
    fn window(&self, call: &Call<'_>) -> Result<Option<Tensor>> {
        let window = match call.optional_tensor(4) {
            Some(window) if *window.shape() != [self.width] => {
                refuse!(
                    "{}: expected a 1D window tensor of size equal to win_length={}, but got window with size {:?}",
                    call.operator.base_name(),
                    self.width,
                    window.shape()
                );
            }
            Some(window) => window.clone(),
            None if self.width == self.points => return Ok(None),
            None => Tensor::ones(&[self.width], call.tensor(0).dtype().real(), call.device)?,
        };
        let left = (self.points - self.width) / 2;
        let right = self.points - self.width - left;
        window.constant_pad_nd(&[left as i64, right as i64], 0).map(Some)
    }

    /// Returns the sum of overlapping frames (batch, frames, points) as (batch, length).
    fn overlapped(&self, frames: &Tensor) -> Result<Tensor> {
        let &[batch, count, points] = frames.shape() else { unreachable!("frames have three dimensions") };
        let starts = Tensor::arange(count, 0, self.hop as i64, DType::I64, frames.device())?;
        let inside = Tensor::arange(points, 0, 1, DType::I64, frames.device())?;
        let places = starts.unsqueeze(1)?.add(&inside)?.reshape(&[count * points])?;
        let length = points + self.hop * (count - 1);
        let zeros = Tensor::zeros(&[batch, length], frames.dtype(), frames.device())?;
        zeros.index_add(1, &places, &frames.reshape(&[batch, count * points])?)
    }
}

/// Returns the transforms of the frames of signals, for a call whose options begin at a position: whether they are normalized,
/// have half of the frequencies, are complex, and whether frames are counted by their windows.
fn frames(call: &Call<'_>, x: &Tensor, options: usize) -> Result<Tensors> {
    check_signal(x)?;
    let sizes = Frames::of(call)?;
    let window = sizes.window(call)?;
    let is_complex =
        x.dtype().is_complex() || window.as_ref().is_some_and(|window| window.dtype().is_complex());
    let half = call.optional_bool(options + 1).unwrap_or(!is_complex);
    refuse_if!(half && is_complex, "Cannot have onesided output if window or input is complex");
    let gives_complex = match call.optional_bool(options + 2) {
        None if !is_complex => {
            refuse!(
                "stft requires the return_complex parameter be given for real inputs, and will further require that \
                 return_complex=True in a future PyTorch release."
            );
        }
        given => given.unwrap_or(true),
    };
    let mut rows = if x.rank() == 1 { x.unsqueeze(0)? } else { x.clone() };
    if call.optional_bool(options + 3) == Some(true) {
        let around = ((sizes.points - sizes.width) / 2) as i64;
        rows = rows.constant_pad_nd(&[around, around], 0)?;
    }
    let length = rows.shape()[1];
    if sizes.points > length {
        refuse!("stft: expected 0 < n_fft < {length}, but got n_fft={}", sizes.points);
    }
    let mut frames = rows.unfold(1, sizes.points as i64, sizes.hop as i64)?;
    if let Some(window) = window {
        frames = frames.mul(&window)?;
    }
    let normalization = Argument::Int(i64::from(call.bool(options)));
    let dims = Argument::Ints(&[2]);
    let operator = if is_complex { built_in!("_fft_c2c")? } else { built_in!("_fft_r2c")? };
    let last = Argument::Bool(is_complex || half);
    let transforms =
        call_operator(operator, &[(&frames).into(), dims, normalization, last], None, call.label.location)?;
    let mut result = transforms.transpose(1, 2)?;
    if x.rank() == 1 {
        result = result.squeeze(0)?;
    }
    if gives_complex { Ok(single(result)) } else { result.view_as_real().map(single) }
}

fn signal(call: &Call<'_>) -> Result<Tensor> {
    let z = call.tensor(0);
    refuse_if!(
        !z.dtype().is_complex() || !(2..=3).contains(&z.rank()) || z.elements() == 0,
        "istft expects complex numbers with 2 or 3 dimensions and elements, but got {} {:?}",
        z.dtype(),
        z.shape()
    );
    let sizes = Frames::of(call)?;
    let stack = if z.rank() == 2 { z.unsqueeze(0)? } else { z.clone() };
    let [frequencies, count] = [stack.shape()[1], stack.shape()[2]];
    let half = call.optional_bool(7).unwrap_or(frequencies != sizes.points);
    let expected = if half { sizes.points / 2 + 1 } else { sizes.points };
    refuse_if!(
        frequencies != expected,
        "istft: expected the frequency dimension (3rd to the last) of the input tensor to match n_fft={}, {expected} \
         frequencies, but got {frequencies}",
        sizes.points
    );
    refuse_if!(sizes.hop > sizes.width, "istft: expected 0 < hop_length <= win_length");
    let window = sizes.window(call)?;
    let frames = real_frames(call, &stack.transpose(1, 2)?, half, sizes.points)?;
    let weights = match &window {
        Some(window) => window.clone(),
        None => Tensor::ones(&[sizes.points], z.dtype().real(), call.device)?,
    };
    let sum = sizes.overlapped(&frames.mul(&weights)?)?;
    let squares = weights.square()?.expand(&[1, count, sizes.points])?;
    let envelope = sizes.overlapped(&squares.contiguous()?)?;
    let whole = sizes.points + sizes.hop * (count - 1);
    let start = if call.bool(5) { sizes.points / 2 } else { 0 };
    let end = match call.optional_int(8) {
        Some(length) if !(0..1 << 40).contains(&length) => {
            refuse!("istft: expected length >= 0, but got length={length}");
        }
        Some(length) => start + length as usize,
        None if call.bool(5) => whole - sizes.points / 2,
        None => whole,
    };
    let there = end.min(whole).saturating_sub(start);
    let envelope = envelope.narrow(1, start.min(whole), there)?;
    check_overlap(&envelope)?;
    let result = sum.narrow(1, start.min(whole), there)?.div(&envelope)?;
    let missing = end.saturating_sub(start) - there;
    let result = if missing > 0 { result.constant_pad_nd(&[0, missing as i64], 0)? } else { result };
    if z.rank() == 2 { result.squeeze(0) } else { Ok(result) }
}

/// Returns the frames of transforms along the last dimension, as (batch, frames, points).
fn real_frames(call: &Call<'_>, z: &Tensor, half: bool, points: usize) -> Result<Tensor> {
    let normalization = Argument::Int(if call.bool(6) { 1 } else { 2 });
    let dims = Argument::Ints(&[2]);
    if call.bool(9) {
        refuse_if!(
            half,
            "Cannot have onesided output if window or input is complex: pass onesided=false with return_complex=true"
        );
        let arguments = [z.into(), dims, normalization, Argument::Bool(false)];
        return call_operator(built_in!("_fft_c2c")?, &arguments, None, call.label.location);
    }
    let kept = z.narrow(2, 0, points / 2 + 1)?;
    let arguments = [(&kept).into(), dims, normalization, Argument::Int(points as i64)];
    call_operator(built_in!("_fft_c2r")?, &arguments, None, call.label.location)
}

/// Refuses windows under which some point has a total weight of 0.
fn check_overlap(envelope: &Tensor) -> Result<()> {
    if envelope.device().is_meta() || envelope.elements() == 0 {
        return Ok(());
    }
    let least = envelope.detach().abs()?.amin(&[], false)?.to_dtype(DType::F64)?.item::<f64>()?;
    // NaN is refused, too.
    match least > 1e-11 {
        true => Ok(()),
        false => Err(invalid!(
            "istft: window overlap add min: {least}; windows must overlap everywhere: pass a smaller hop_length"
        )),
    }
}
