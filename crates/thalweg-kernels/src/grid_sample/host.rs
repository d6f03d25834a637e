//! The definition of [`GridSample`]: the same positions, weights and sums on the host.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::{DType, Element};

use super::{GridSample, Interpolation, Padding};
use crate::arguments;
use crate::dtypes::{rounded, with_float};
use crate::shared::cubic;

pub(super) fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, [_]): (GridSample, _, _) = arguments::unpack("grid_sample", launch)?;
    with_float!("grid_sample", sizes.dtype, T => run_of::<T>(launch, &sizes, at))
}

/// A number and its derivative with respect to the coordinate.
#[derive(Clone, Copy)]
struct Place {
    at: f64,
    slope: f64,
}

/// A point of an axis, if it is inside of the image, with its weight and the derivative of that.
#[derive(Clone, Copy)]
struct Tap {
    at: Option<usize>,
    weight: f64,
    slope: f64,
}

fn clipped(place: Place, last: f64) -> Place {
    match place.at > 0.0 && place.at < last {
        true => place,
        // NaN is clipped to 0.
        false => Place { at: if place.at >= last { last } else { 0.0 }, slope: 0.0 },
    }
}

/// Returns a position; if it cannot be the index of an element, one that is outside of every image.
fn bounded(place: Place) -> Place {
    let is_number = place.at >= f64::from(i32::MIN) && place.at <= f64::from(i32::MAX) - 1.0;
    if is_number { place } else { Place { at: -100.0, slope: 0.0 } }
}

fn padded<T: Element>(sizes: &GridSample, extent: f64, place: Place) -> Place {
    let (last, r) = (extent - 1.0, rounded::<T>);
    match sizes.padding {
        Padding::Zeros => place,
        Padding::Border => clipped(place, last),
        Padding::Reflection => {
            let (low, span) = if sizes.align_corners { (0.0, last) } else { (-0.5, extent) };
            if span == 0.0 {
                return Place { at: place.at * 0.0, slope: 0.0 };
            }
            let moved = r(place.at - low);
            let distance = moved.abs();
            let (extra, turns) = (r(distance % span), r(distance / span).floor());
            let is_even = turns % 2.0 == 0.0;
            let sign = match moved {
                moved if moved < 0.0 => -place.slope,
                moved if moved > 0.0 => place.slope,
                _ => 0.0,
            };
            let at = r(if is_even { extra } else { r(span - extra) } + low);
            clipped(Place { at, slope: if is_even { sign } else { -sign } }, last)
        }
    }
}

fn taps_of<T: Element>(sizes: &GridSample, axis: usize, coordinate: f64) -> Vec<Tap> {
    let (extent, r) = (sizes.extents[axis] as f64, rounded::<T>);
    let (last, from_zero) = (extent - 1.0, r(coordinate + 1.0));
    let place = match sizes.align_corners {
        true => Place { at: r(from_zero * (last / 2.0)), slope: last / 2.0 },
        false => Place { at: r(r(from_zero * extent) - 1.0) / 2.0, slope: extent / 2.0 },
    };
    let tap = |at: f64, weight: f64, slope: f64| {
        let at = (at >= 0.0 && at <= last).then_some(at as usize);
        Tap { at, weight, slope }
    };
    match sizes.interpolation {
        Interpolation::Cubic => {
            let first = place.at.floor();
            let t = r(place.at - first);
            let rest = r(1.0 - t);
            let weights = [(t, true), (t, false), (rest, false), (rest, true)];
            (weights.into_iter().enumerate())
                .map(|(number, (t, is_far))| {
                    let [weight, slope] = match is_far {
                        true => [cubic::far::<T>(t), cubic::far_slope::<T>(t)],
                        false => [cubic::near::<T>(t), cubic::near_slope::<T>(t)],
                    };
                    let at = Place { at: first + number as f64 - 1.0, slope: 0.0 };
                    let sign = if number < 2 { place.slope } else { -place.slope };
                    tap(padded::<T>(sizes, extent, at).at, weight, r(slope * sign))
                })
                .collect()
        }
        Interpolation::Nearest => {
            vec![tap(padded::<T>(sizes, extent, place).at.round_ties_even(), 1.0, 0.0)]
        }
        Interpolation::Linear => {
            let place = bounded(padded::<T>(sizes, extent, place));
            let first = place.at.floor();
            let weight = r(place.at - first);
            vec![tap(first, r(1.0 - weight), -place.slope), tap(first + 1.0, weight, place.slope)]
        }
    }
}

fn run_of<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &GridSample,
    at: [DevicePointer; 5],
) -> Result<(), HostFault> {
    if T::DTYPE == DType::F64 {
        run_with::<T, f64>(launch, sizes, at)
    } else {
        run_with::<T, f32>(launch, sizes, at)
    }
}

fn run_with<T: Element, S: Element>(
    launch: &HostLaunch<'_>,
    sizes: &GridSample,
    [input_at, grid_at, output_at, of_input_at, of_grid_at]: [DevicePointer; 5],
) -> Result<(), HostFault> {
    let r = rounded::<T>;
    let ([input_count, grid_count, output_count], [of_input_count, of_grid_count]) =
        (sizes.spans(), sizes.gradients());
    let input = launch.read::<T>(input_at, input_count as usize)?;
    let grid = launch.read::<T>(grid_at, grid_count as usize)?;
    let (mut output, mut gradient): (&mut [T], &[T]) = (&mut [], &[]);
    let (mut of_input, mut of_grid): (&mut [S], &mut [T]) = (&mut [], &mut []);
    if sizes.backward {
        gradient = launch.read::<T>(output_at, output_count as usize)?;
        if of_input_at.address() != 0 {
            of_input = launch.write::<S>(of_input_at, of_input_count as usize)?;
        }
        if of_grid_at.address() != 0 {
            of_grid = launch.write::<T>(of_grid_at, of_grid_count as usize)?;
        }
    } else {
        output = launch.write::<T>(output_at, output_count as usize)?;
    }
    let [height, width] = sizes.extents.map(|extent| extent as usize);
    let place = |strides: [u64; 4], at: [u64; 4]| -> usize {
        strides.iter().zip(at).map(|(stride, at)| stride * at).sum::<u64>() as usize
    };
    let [rows, columns] = sizes.points;
    for own in 0..sizes.batch * rows * columns {
        let (image, row, column) = (own / (rows * columns), own / columns % rows, own % columns);
        let coordinate = |which: u64| grid[place(sizes.grid_strides, [image, row, column, which])].to_f64();
        let of_x = taps_of::<T>(sizes, 1, coordinate(0));
        let of_y = taps_of::<T>(sizes, 0, coordinate(1));
        let pairs = || of_y.iter().flat_map(|y| of_x.iter().map(move |x| (y, x)));
        // The sums of each slice of the channels, along y and along x.
        let mut along = vec![[0.0; 2]; sizes.slices() as usize];
        for channel in 0..sizes.channels {
            let element = |y: usize, x: usize| {
                input[place(sizes.input_strides, [image, channel, y as u64, x as u64])].to_f64()
            };
            let out = place(sizes.output_strides, [image, channel, row, column]);
            if !sizes.backward {
                let sum = pairs().fold(0.0, |sum, (y, x)| {
                    let value = y.at.zip(x.at).map_or(0.0, |(y, x)| element(y, x));
                    r(sum + r(value * r(y.weight * x.weight)))
                });
                output[out] = T::from_f64(sum);
                continue;
            }
            let gradient = gradient[out].to_f64();
            let plane = (image * sizes.channels + channel) as usize * height * width;
            for (y, x) in pairs() {
                let tap = y.at.zip(x.at).map(|(row, column)| (row * width + column, element(row, column)));
                if let Some(to) = tap.and_then(|(place, _)| of_input.get_mut(plane + place)) {
                    *to = S::from_f64(r(to.to_f64() + r(gradient * r(y.weight * x.weight))));
                }
                let value = r(gradient * tap.map_or(0.0, |(_, element)| element));
                let [along_y, along_x] = &mut along[(channel % sizes.slices()) as usize];
                *along_y = r(*along_y + r(r(value * y.slope) * x.weight));
                *along_x = r(*along_x + r(r(value * y.weight) * x.slope));
            }
        }
        let [along_y, along_x] = [0, 1]
            .map(|axis| along.iter().map(|sums| sums[axis]).reduce(|sum, part| r(sum + part)).unwrap_or(0.0));
        if let Some(to) = of_grid.get_mut(own as usize * 2..own as usize * 2 + 2) {
            to.copy_from_slice(&[T::from_f64(along_x), T::from_f64(along_y)]);
        }
    }
    Ok(())
}
