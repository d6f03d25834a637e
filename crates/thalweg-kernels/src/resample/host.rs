//! The definition of [`Resample`]: the same sums in the same order on the host.

use bytemuck::Pod;
use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::Element;

use super::{Resample, ResampleBy, Variant};
use crate::arguments;
use crate::dtypes::{rounded, with_float};
use crate::shared::cubic::{far, near};
use crate::threads::{ranges, share};

/// The fewest elements for each thread of the host.
const LEAST_OF_A_THREAD: usize = 1 << 12;

/// The old points of an axis that a new point is computed from, with their weights.
type Taps = Vec<(usize, f64)>;

pub(super) fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, []): (Resample, _, _) = arguments::unpack("resample", launch)?;
    match sizes.variant() {
        Variant::Copy(1) => copy_of::<u8, f32>(launch, &sizes, at),
        Variant::Copy(2) => copy_of::<u16, f32>(launch, &sizes, at),
        Variant::Copy(4) => copy_of::<u32, f32>(launch, &sizes, at),
        Variant::Copy(_) => copy_of::<u64, f64>(launch, &sizes, at),
        _ => with_float!("resample", sizes.dtype, T => run_of::<T>(launch, &sizes, at)),
    }
}

/// Returns the position of a new point on the old axis.
fn position<T: Element>(sizes: &Resample, axis: usize, to: usize) -> f64 {
    let r = rounded::<T>;
    let (scale, to) = (r(sizes.scale[axis]), to as f64);
    match sizes.by {
        ResampleBy::Nearest | ResampleBy::LinearCorners | ResampleBy::CubicCorners => r(to * scale),
        ResampleBy::NearestExact => r(r(to + 0.5) * scale),
        _ => r(r(r(to + 0.5) * scale) - 0.5),
    }
}

fn nearest<T: Element>(sizes: &Resample, axis: usize, to: usize) -> usize {
    let (extent, moved) = (sizes.source[axis] as i64, to as i64 - sizes.before[axis]);
    let at = match sizes.by {
        ResampleBy::Reflected => extent - 1 - (extent - 1 - moved.abs()).abs(),
        ResampleBy::Replicated => moved.clamp(0, extent - 1),
        ResampleBy::Circular => moved.rem_euclid(extent),
        _ => (position::<T>(sizes, axis, to).floor() as i64).clamp(0, extent - 1),
    };
    at as usize
}

fn taps<T: Element>(sizes: &Resample, axis: usize, to: usize) -> Taps {
    let last = sizes.source[axis] as i64 - 1;
    if last == 0 {
        return vec![(0, 1.0)];
    }
    let inside = |at: i64| at.clamp(0, last) as usize;
    match sizes.by {
        ResampleBy::Linear | ResampleBy::LinearCorners => {
            let place = position::<T>(sizes, axis, to).max(0.0);
            let first = inside(place.floor() as i64);
            let weight = rounded::<T>(place - first as f64);
            vec![(first, rounded::<T>(1.0 - weight)), (inside(first as i64 + 1), weight)]
        }
        ResampleBy::Cubic | ResampleBy::CubicCorners => {
            let place = position::<T>(sizes, axis, to);
            let before = place.floor();
            let t = rounded::<T>(place - before);
            let rest = rounded::<T>(1.0 - t);
            let weights = [far::<T>(t), near::<T>(t), near::<T>(rest), far::<T>(rest)];
            (weights.into_iter())
                .enumerate()
                .map(|(tap, weight)| (inside(before as i64 - 1 + tap as i64), weight))
                .collect()
        }
        _ => vec![(nearest::<T>(sizes, axis, to), 1.0)],
    }
}

/// Returns, for each old point of an axis, the new points that it contributes to, with its weights.
fn uses<T: Element>(sizes: &Resample, axis: usize) -> Vec<Taps> {
    let mut uses = vec![Taps::new(); sizes.source[axis] as usize];
    for to in 0..sizes.target[axis] as usize {
        let mut own: Taps = Taps::new();
        for (at, weight) in taps::<T>(sizes, axis, to) {
            match own.iter_mut().find(|(other, _)| *other == at) {
                Some((_, sum)) => *sum = rounded::<T>(*sum + weight),
                None => own.push((at, weight)),
            }
        }
        let used = own.into_iter().filter(|(_, weight)| *weight != 0.0);
        used.for_each(|(at, weight)| uses[at].push((to, weight)));
    }
    if sizes.by == ResampleBy::Reflected {
        // The order of the kernel: the point itself, then its image in the first point, then that in the last.
        for (at, list) in uses.iter_mut().enumerate() {
            let own = at as i64 + sizes.before[axis];
            list.sort_by_key(|&(to, _)| match to as i64 - own {
                0 => 0,
                _ if to as i64 == sizes.before[axis] - at as i64 => 1,
                _ => 2,
            });
        }
    }
    uses
}

/// Returns, for each point of each axis of the planes that are written, the points that it is computed from.
fn lists<T: Element>(sizes: &Resample) -> [Vec<Taps>; 3] {
    [0, 1, 2].map(|axis| match sizes.backward {
        true => uses::<T>(sizes, axis),
        false => (0..sizes.target[axis] as usize).map(|to| taps::<T>(sizes, axis, to)).collect(),
    })
}

/// Copies elements; their positions are computed in `T`.
fn copy_of<E: Pod + Send + Sync, T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &Resample,
    [read, written]: [DevicePointer; 2],
) -> Result<(), HostFault> {
    let read = launch.read::<E>(read, sizes.span() as usize)?;
    let written = launch.write::<E>(written, sizes.written() as usize)?;
    let [by_z, by_y, by_x] = [2, 3, 4].map(|place| sizes.strides[place] as usize);
    fill(written, sizes, &lists::<T>(sizes), |plane, [of_z, of_y, of_x]| {
        read[plane + of_z[0].0 * by_z + of_y[0].0 * by_y + of_x[0].0 * by_x]
    });
    Ok(())
}

fn run_of<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &Resample,
    [read, written]: [DevicePointer; 2],
) -> Result<(), HostFault> {
    let read = launch.read::<T>(read, sizes.span() as usize)?;
    let written = launch.write::<T>(written, sizes.written() as usize)?;
    let strides = sizes.strides.map(|stride| stride as usize);
    // A single −0 keeps its sign.
    let start = if sizes.backward { 0.0 } else { -0.0 };
    fill(written, sizes, &lists::<T>(sizes), |plane, lists| {
        T::from_f64(sum_of::<T>(read, plane, (&strides[2..], start), lists))
    });
    Ok(())
}

/// Writes each element as the function returns it for the start of its plane and the points of each axis that it is computed from.
fn fill<E: Send>(
    written: &mut [E],
    sizes: &Resample,
    lists: &[Vec<Taps>; 3],
    of: impl Fn(usize, [&Taps; 3]) -> E + Sync,
) {
    let [_, extents] = sizes.passes();
    let [_, height, width] = extents.map(|extent| extent as usize);
    let channels = sizes.channels as usize;
    let points: usize = extents.iter().product::<u64>() as usize;
    let [by_image, by_channel] = [0, 1].map(|place| sizes.strides[place] as usize);
    let element = |number: usize| {
        let (image, channel, point) = match sizes.channels_last {
            true => (number / (points * channels), number % channels, number / channels % points),
            false => (number / (points * channels), number / points % channels, number % points),
        };
        let [z, y, x] = [point / width / height, point / width % height, point % width];
        of(image * by_image + channel * by_channel, [&lists[0][z], &lists[1][y], &lists[2][x]])
    };
    let (mut rest, mut jobs) = (written, Vec::new());
    for range in ranges(rest.len(), LEAST_OF_A_THREAD) {
        let (part, later) = rest.split_at_mut(range.len());
        rest = later;
        let element = &element;
        jobs.push(move || part.iter_mut().zip(range).for_each(|(to, number)| *to = element(number)));
    }
    share(jobs);
}

/// Returns the sum of a plane's elements at points of each axis, weighted.
fn sum_of<T: Element>(
    read: &[T],
    plane: usize,
    (strides, start): (&[usize], f64),
    [of_z, of_y, of_x]: [&Taps; 3],
) -> f64 {
    let r = rounded::<T>;
    let mut sum = start;
    for &(z, z_weight) in of_z {
        let mut of_rows = start;
        for &(y, y_weight) in of_y {
            let row = plane + z * strides[0] + y * strides[1];
            let mut of_row = start;
            for &(x, weight) in of_x {
                of_row = r(of_row + r(weight * read[row + x * strides[2]].to_f64()));
            }
            of_rows = r(of_rows + r(y_weight * of_row));
        }
        sum = r(sum + r(z_weight * of_rows));
    }
    sum
}
