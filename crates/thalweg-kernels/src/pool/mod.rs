//! [`Pool`]: the mean or the greatest element of each window of planes, and their gradients.
//!
//! A thread handles one window of some planes, or a few points of a row and the windows that contain them, so several threads never add
//! to one sum, and results always have the same bits. Channels may be innermost, in all operands. Places are counted in 32 bits; [`Pool::is_taken`] returns for which planes they fit. The
//! host function computes in the same order.

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::{rounded, with_float};
use crate::native::{Accesses, NativeKernel, Placed, Words};
use crate::planes::{MOST_PLANES, over_planes};
use crate::source::Source;
use crate::threads::{ranges, share};

/// The quantity that is computed, and its source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolPass {
    /// The mean of each window.
    Average,
    /// The gradient of a plane from that of its windows' means.
    AverageBackward,
    /// The greatest element of each window, and its place in the plane: the first among equals, or among NaNs. For a window that
    /// is entirely in the padding it is the lowest value, and the place is 2³¹ - 1.
    Greatest,
    /// The gradient of a plane, from the gradients and the positions of its windows' maxima.
    GreatestBackward,
    /// [`Greatest`](Self::Greatest) with the place within the window, a byte, which is 255 if the window is entirely in the padding.
    GreatestWithin,
    /// The gradient of [`GreatestWithin`](Self::GreatestWithin).
    GreatestWithinBackward,
}

impl PoolPass {
    /// Every pass.
    pub const ALL: [Self; 6] = [
        Self::Average,
        Self::AverageBackward,
        Self::Greatest,
        Self::GreatestBackward,
        Self::GreatestWithin,
        Self::GreatestWithinBackward,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Average => "average_pool",
            Self::AverageBackward => "average_pool_backward",
            Self::Greatest => "greatest_pool",
            Self::GreatestBackward => "greatest_pool_backward",
            Self::GreatestWithin => "greatest_pool_within",
            Self::GreatestWithinBackward => "greatest_pool_within_backward",
        }
    }

    const fn is_backward(self) -> bool {
        matches!(self, Self::AverageBackward | Self::GreatestBackward | Self::GreatestWithinBackward)
    }

    const fn has_places(self) -> bool {
        !matches!(self, Self::Average | Self::AverageBackward)
    }

    /// Returns the dtype of the places of maxima.
    pub const fn places(self) -> Option<DType> {
        match self {
            Self::Average | Self::AverageBackward => None,
            Self::Greatest | Self::GreatestBackward => Some(DType::I64),
            Self::GreatestWithin | Self::GreatestWithinBackward => Some(DType::U8),
        }
    }

    /// Returns the number of elements that a thread computes: neighbours mostly have the same windows, whose positions are read once.
    const fn points(self) -> u64 {
        match self {
            Self::GreatestBackward | Self::GreatestWithinBackward => 4,
            _ => 1,
        }
    }
}

/// The sizes of a launch: planes and their windows along three axes; planes of fewer axes have leading extents of 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// The quantity that is computed, and its source.
    pub pass: PoolPass,
    /// The number of planes: images times channels; or only images, if their channels are innermost.
    pub planes: u64,
    /// The number of channels if they are innermost; otherwise 1.
    pub inner: u64,
    /// The extents of a plane.
    pub extents: [u64; 3],
    /// The number of windows along each axis.
    pub windows: [u64; 3],
    /// The extents of a window.
    pub kernel: [u64; 3],
    /// The distance from one window to the next. If it is 0, windows divide each axis among them, as those of adaptive pools: window w
    /// of n has the coordinates from ⌊w · extent / n⌋ to before ⌈(w + 1) · extent / n⌉.
    pub stride: [u64; 3],
    /// The padding before and after each axis.
    pub padding: [u64; 3],
    /// The distance from one element of a window to the next: 1 for averages.
    pub dilation: [u64; 3],
    /// Whether an average counts padding as elements.
    pub counts_padding: bool,
    /// The divisor of an average; if it is 0, the number of the window's elements is used.
    pub divisor: i64,
    /// The dtype of the elements: a floating-point type. 16-bit floats are summed in f32.
    pub dtype: DType,
}

arguments! {
    Pool { planes, inner, extents, windows, kernel, stride, padding, dilation, counts_padding, divisor, dtype, pass }
}
choices! { PoolPass: PoolPass::ALL }

/// The dtypes for which a pool has a kernel.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// The place of the greatest element of a window that has no elements.
const NOWHERE: i64 = i32::MAX as i64;

/// The place within a window that has no elements.
const NOWHERE_WITHIN: u8 = u8::MAX;

/// The bytes of neighbouring channels that a thread computes.
const VECTOR_BYTES: u64 = 16;

fn name(pass: PoolPass, dtype: DType) -> String {
    format!("{}_{}", pass.name(), dtype.name())
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let all = PoolPass::ALL.into_iter().flat_map(|pass| FLOATS.map(|dtype| (pass, dtype)));
    all.map(|(pass, dtype)| (name(pass, dtype), print(pass, dtype)))
}

fn print(pass: PoolPass, dtype: DType) -> String {
    Source::new(&name(pass, dtype))
        .elements(dtype)
        .flag("IS_GREATEST", pass.has_places())
        .flag("IS_BACKWARD", pass.is_backward())
        .flag("IS_WITHIN", pass.places() == Some(DType::U8))
        .define("POINTS", pass.points())
        .define("WIDE", VECTOR_BYTES / dtype.size_bytes() as u64)
        .print(include_str!("kernel.cu"))
}

impl Pool {
    /// Returns the extents of the result for each plane.
    const fn target(&self) -> [u64; 3] {
        if self.pass.is_backward() { self.extents } else { self.windows }
    }

    /// Returns whether all computed places fit into 32 bits, and there is a kernel for the dtype.
    pub fn is_taken(&self) -> bool {
        let is_small = |numbers: [u64; 3]| {
            let all = numbers.iter().try_fold(1u64, |all, &number| all.checked_mul(number));
            all.is_some_and(|all| all < 1 << 30)
        };
        let reach = |counts: [u64; 3], steps: [u64; 3]| {
            counts.iter().zip(steps).all(|(&count, step)| count.saturating_mul(step) < 1 << 28)
        };
        let volume = |numbers: [u64; 3]| numbers.iter().product::<u64>().saturating_mul(self.inner);
        FLOATS.contains(&self.dtype)
            && self.planes <= MOST_PLANES
            && [self.extents, self.windows, self.kernel].into_iter().all(is_small)
            && self.padding.iter().chain(&self.stride).all(|&number| number < 1 << 28)
            && reach(self.kernel, self.dilation)
            && reach(self.windows, self.stride)
            && (self.pass.has_places() || self.dilation == [1; 3])
            && [self.extents, self.windows].into_iter().all(|numbers| volume(numbers) < 1 << 31)
            && (self.stride.iter().all(|&stride| stride > 0) || self.is_divisible())
            && (self.pass.places() != Some(DType::U8) || self.has_small_windows())
    }

    /// Returns whether places within windows are bytes.
    fn has_small_windows(&self) -> bool {
        self.stride != [0; 3] && self.kernel.iter().product::<u64>() < u64::from(NOWHERE_WITHIN)
    }

    /// Returns the place in the plane of a place within a window.
    fn place_of(&self, window: [usize; 3], within: u8) -> i64 {
        if within == NOWHERE_WITHIN {
            return NOWHERE;
        }
        let [_, rows, columns] = self.kernel;
        let within = u64::from(within);
        let parts = [within / columns / rows, within / columns % rows, within % columns];
        let at = |axis: usize| {
            (window[axis] as u64 * self.stride[axis] + parts[axis] * self.dilation[axis]) as i64
                - self.padding[axis] as i64
        };
        (at(0) * self.extents[1] as i64 + at(1)) * self.extents[2] as i64 + at(2)
    }

    /// Returns the place within a window of a place in the plane.
    fn within(&self, window: [usize; 3], place: i64) -> u8 {
        let last = self.kernel.iter().product::<u64>() as u8;
        (0..last).find(|&within| self.place_of(window, within) == place).unwrap_or(NOWHERE_WITHIN)
    }

    /// Returns whether the windows divide each axis evenly, with all sizes in 32 bits and no padding.
    fn is_divisible(&self) -> bool {
        let axes = self.extents.iter().zip(self.windows);
        let fit = axes.into_iter().all(|(&extent, windows)| {
            extent > 0
                && windows > 0
                && extent.saturating_mul(windows + 1) < 1 << 31
                && (extent + 1) * windows < 1 << 31
        });
        fit && self.stride == [0; 3] && self.padding == [0; 3] && self.dilation == [1; 3] && self.divisor == 0
    }

    /// Returns the coordinates of a window, if windows divide the axis among them.
    fn divided(&self, axis: usize, window: u64) -> Option<std::ops::Range<u64>> {
        let (extent, windows) = (self.extents[axis], self.windows[axis]);
        let is_divided = self.stride[axis] == 0;
        is_divided.then(|| window * extent / windows..((window + 1) * extent).div_ceil(windows))
    }

    /// Returns a value for each window of each plane and channel, from another one and the window.
    fn each_of_windows<T: Copy, U>(&self, list: &[T], value: impl Fn([usize; 3], T) -> U) -> Vec<U> {
        let [_, height, width] = self.windows.map(|count| count as usize);
        let (windows, inner) = (self.windows.iter().product::<u64>() as usize, self.inner as usize);
        let of = |(place, &from): (usize, &T)| {
            let window = place / inner % windows;
            value([window / width / height, window / width % height, window % width], from)
        };
        list.iter().enumerate().map(of).collect()
    }

    /// Returns the windows of an axis that can contain a coordinate.
    fn windows_of(&self, axis: usize, at: usize) -> std::ops::Range<usize> {
        if self.stride[axis] == 0 {
            let (at, windows, extent) = (at as u64, self.windows[axis], self.extents[axis]);
            return (at * windows / extent) as usize..((at + 1) * windows).div_ceil(extent) as usize;
        }
        let padded = at as u64 + self.padding[axis];
        let reach = (self.kernel[axis] - 1) * self.dilation[axis];
        let first = padded.saturating_sub(reach).div_ceil(self.stride[axis]);
        first as usize..(padded / self.stride[axis] + 1).min(self.windows[axis]) as usize
    }

    /// Returns the coordinates of an axis that a window covers, without those outside of the plane.
    fn points_of(&self, axis: usize, window: usize) -> impl Iterator<Item = usize> + use<> {
        let divided = self.divided(axis, window as u64);
        let strided = (window as u64 * self.stride[axis], self.kernel[axis]);
        let (first, count) = divided.map_or(strided, |all| (all.start, all.end - all.start));
        let (extent, dilation, padding) = (self.extents[axis], self.dilation[axis], self.padding[axis]);
        (0..count).filter_map(move |place| {
            let at = (first + place * dilation).checked_sub(padding)?;
            (at < extent).then_some(at as usize)
        })
    }

    /// Returns the divisor of an average over a window.
    fn divisor(&self, window: [usize; 3]) -> f64 {
        if self.divisor != 0 {
            return self.divisor as f64;
        }
        let span = |axis: usize| {
            if let Some(all) = self.divided(axis, window[axis] as u64) {
                return (all.end - all.start) as i64;
            }
            let [extent, padding] = [self.extents, self.padding].map(|numbers| numbers[axis] as i64);
            let first = window[axis] as i64 * self.stride[axis] as i64 - padding;
            let end = (first + self.kernel[axis] as i64).min(extent + padding);
            if self.counts_padding { end - first } else { end.min(extent) - first.max(0) }
        };
        (0..3).map(span).product::<i64>() as f64
    }
}

/// Operands: the planes, or the gradients of their windows; the places (a null address for averages); and the result.
impl NativeKernel for Placed<Pool, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        static NAMES: std::sync::OnceLock<[[String; DType::ALL.len()]; PoolPass::ALL.len()]> =
            std::sync::OnceLock::new();
        let names = NAMES.get_or_init(|| PoolPass::ALL.map(|pass| DType::ALL.map(|dtype| name(pass, dtype))));
        &names[self.kernel.pass as usize][self.kernel.dtype as usize]
    }

    fn source(&self) -> String {
        print(self.kernel.pass, self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        Fault::unless(self.kernel.is_taken(), || format!("there is no kernel for {:?}", self.kernel))
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [depth, height, width] = self.kernel.target();
        let vector = self.vector();
        let pieces = if vector == 1 { width.div_ceil(self.kernel.pass.points()) } else { width };
        over_planes(depth * height * pieces * (self.kernel.inner / vector), self.kernel.planes)
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        words.push(self.vector());
        words
    }

    fn accesses(&self) -> Accesses {
        let Pool { pass, planes, inner, extents, windows, dtype, .. } = self.kernel;
        let size = dtype.size_bytes() as u64;
        let [points, windows] = [extents, windows].map(|list| planes * inner * list.iter().product::<u64>());
        let [source, places, result] = self.at;
        let (from, to) = if pass.is_backward() { (windows, points) } else { (points, windows) };
        let mut list =
            Accesses::from_iter([Access::read(source, from * size), Access::write(result, to * size)]);
        if let Some(dtype) = pass.places() {
            let bytes = windows * dtype.size_bytes() as u64;
            list.push(if pass.is_backward() {
                Access::read(places, bytes)
            } else {
                Access::write(places, bytes)
            });
        }
        list
    }
}

impl Placed<Pool, [DevicePointer; 3]> {
    /// Returns the number of neighbouring channels that a thread computes.
    fn vector(&self) -> u64 {
        let vector = VECTOR_BYTES / self.kernel.dtype.size_bytes() as u64;
        let is_aligned = self.at.iter().all(|at| at.address().is_multiple_of(VECTOR_BYTES));
        if is_aligned && self.kernel.inner.is_multiple_of(vector) { vector } else { 1 }
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (pool, at, [_]): (Pool, _, _) = arguments::unpack("pool", launch)?;
    with_float!("pool", pool.dtype, T => run::<T>(launch, &pool, at))
}

/// The fewest elements for each thread of the host.
const LEAST_OF_A_THREAD: usize = 1 << 14;

fn run<T: Element>(launch: &HostLaunch<'_>, pool: &Pool, at: [DevicePointer; 3]) -> Result<(), HostFault> {
    let [source, places, result] = at;
    let [of_points, of_windows] =
        [pool.extents, pool.windows].map(|list| list.iter().product::<u64>() as usize);
    let (planes, inner) = (pool.planes as usize, pool.inner as usize);
    let all = planes * inner;
    let (from, to) = if pool.pass.is_backward() { (of_windows, of_points) } else { (of_points, of_windows) };
    let source = launch.read::<T>(source, all * from)?;
    let result = launch.write::<T>(result, all * to)?;
    let (mut bytes, mut wide): (&mut [u8], Vec<i64>) = (&mut [], Vec::new());
    let mut written: &mut [i64] = &mut [];
    let mut read: &[i64] = &[];
    match pool.pass {
        PoolPass::Greatest => written = launch.write::<i64>(places, all * of_windows)?,
        PoolPass::GreatestBackward => read = launch.read::<i64>(places, all * of_windows)?,
        PoolPass::GreatestWithin => {
            bytes = launch.write::<u8>(places, all * of_windows)?;
            wide = vec![0; bytes.len()];
            written = &mut wide;
        }
        PoolPass::GreatestWithinBackward => {
            let bytes = launch.read::<u8>(places, all * of_windows)?;
            wide = pool.each_of_windows(bytes, |window, within| pool.place_of(window, within));
            read = &wide;
        }
        _ => {}
    }
    run_wide(pool, (source, read), (result, written));
    if !bytes.is_empty() {
        bytes.copy_from_slice(&pool.each_of_windows(&wide, |window, place| pool.within(window, place)));
    }
    Ok(())
}

/// Runs a pool whose places are those in planes.
fn run_wide<T: Element>(
    pool: &Pool,
    (source, read): (&[T], &[i64]),
    (result, written): (&mut [T], &mut [i64]),
) {
    let [of_points, of_windows] =
        [pool.extents, pool.windows].map(|list| list.iter().product::<u64>() as usize);
    let (planes, inner) = (pool.planes as usize, pool.inner as usize);
    let (from, to) = if pool.pass.is_backward() { (of_windows, of_points) } else { (of_points, of_windows) };
    if inner == 1 {
        return run_planes(pool, (source, read), (result, written));
    }
    let (source, read) = (turned(source, planes, [from, inner]), turned(read, planes, [from, inner]));
    let mut results = vec![T::from_f64(0.0); result.len()];
    let mut found = vec![0; written.len()];
    let flat = Pool { planes: pool.planes * pool.inner, inner: 1, ..*pool };
    run_planes(&flat, (&source, &read), (&mut results, &mut found));
    result.copy_from_slice(&turned(&results, planes, [inner, to]));
    written.copy_from_slice(&turned(&found, planes, [inner, to]));
}

/// Returns matrices, all of these rows and columns, transposed; nothing if there are none.
fn turned<T: Copy>(list: &[T], count: usize, [rows, columns]: [usize; 2]) -> Vec<T> {
    let of =
        |matrix: usize| (0..columns).flat_map(move |column| (0..rows).map(move |row| (matrix, row, column)));
    let all = if list.is_empty() { 0 } else { count };
    (0..all)
        .flat_map(of)
        .map(|(matrix, row, column)| list[(matrix * rows + row) * columns + column])
        .collect()
}

fn run_planes<T: Element>(
    pool: &Pool,
    (source, read): (&[T], &[i64]),
    (mut result, mut written): (&mut [T], &mut [i64]),
) {
    let [of_points, of_windows] =
        [pool.extents, pool.windows].map(|list| list.iter().product::<u64>() as usize);
    let (from, to) = if pool.pass.is_backward() { (of_windows, of_points) } else { (of_points, of_windows) };
    let mut jobs = Vec::new();
    for planes in ranges(pool.planes as usize, LEAST_OF_A_THREAD.div_ceil(to.max(1))) {
        let (own, rest) = result.split_at_mut(planes.len() * to);
        let own_places = if written.is_empty() { 0 } else { own.len() };
        let (found, later) = written.split_at_mut(own_places);
        (result, written) = (rest, later);
        jobs.push(move || {
            for (number, plane) in planes.enumerate() {
                let source = &source[plane * from..][..from];
                let target = &mut own[number * to..][..to];
                match pool.pass {
                    PoolPass::Average => average(pool, source, target),
                    PoolPass::Greatest | PoolPass::GreatestWithin => {
                        greatest(pool, source, target, &mut found[number * to..][..to])
                    }
                    PoolPass::AverageBackward => of_points_each(pool, target, |window, place| {
                        rounded::<T>(source[place].to_f64() / pool.divisor(window))
                    }),
                    PoolPass::GreatestBackward | PoolPass::GreatestWithinBackward => {
                        let places = &read[plane * from..][..from];
                        greatest_backward(pool, source, places, target);
                    }
                }
            }
        });
    }
    share(jobs);
}

/// Calls a function with each window of a plane, and its number.
fn each_window(windows: [u64; 3], mut call: impl FnMut([usize; 3], usize)) {
    let [depth, height, width] = windows.map(|count| count as usize);
    for z in 0..depth {
        for y in 0..height {
            (0..width).for_each(|x| call([z, y, x], (z * height + y) * width + x));
        }
    }
}

/// Calls a function with each place of a plane that a window covers.
fn each_place(pool: &Pool, window: [usize; 3], mut call: impl FnMut(usize)) {
    let [_, height, width] = pool.extents.map(|extent| extent as usize);
    for z in pool.points_of(0, window[0]) {
        for y in pool.points_of(1, window[1]) {
            pool.points_of(2, window[2]).for_each(|x| call((z * height + y) * width + x));
        }
    }
}

fn average<T: Element>(pool: &Pool, source: &[T], target: &mut [T]) {
    each_window(pool.windows, |window, number| {
        let mut sum = 0.0;
        each_place(pool, window, |place| sum = rounded::<T>(sum + source[place].to_f64()));
        target[number] = T::from_f64(rounded::<T>(sum / pool.divisor(window)));
    });
}

fn greatest<T: Element>(pool: &Pool, source: &[T], target: &mut [T], places: &mut [i64]) {
    each_window(pool.windows, |window, number| {
        let (mut greatest, mut found) = (f64::NEG_INFINITY, NOWHERE);
        each_place(pool, window, |place| {
            let value = source[place].to_f64();
            if value > greatest || found == NOWHERE || (value.is_nan() && !greatest.is_nan()) {
                (greatest, found) = (value, place as i64);
            }
        });
        (target[number], places[number]) = (T::from_f64(greatest), found);
    });
}

/// Writes, for each point, the sum of a function over the windows that can contain it; the function takes a window's coordinates
/// and its number.
fn of_points_each<T: Element>(pool: &Pool, target: &mut [T], part: impl Fn([usize; 3], usize) -> f64) {
    let [_, height, width] = pool.windows.map(|count| count as usize);
    each_window(pool.extents, |at, own| {
        let mut sum = 0.0;
        for z in pool.windows_of(0, at[0]) {
            for y in pool.windows_of(1, at[1]) {
                for x in pool.windows_of(2, at[2]) {
                    sum = rounded::<T>(sum + part([z, y, x], (z * height + y) * width + x));
                }
            }
        }
        target[own] = T::from_f64(sum);
    });
}

fn greatest_backward<T: Element>(pool: &Pool, source: &[T], places: &[i64], target: &mut [T]) {
    // Added in the order of the windows, which is the order for each point.
    let mut sums = vec![0.0; target.len()];
    each_window(pool.windows, |_, number| {
        if let Some(sum) = usize::try_from(places[number]).ok().and_then(|place| sums.get_mut(place)) {
            *sum = rounded::<T>(*sum + source[number].to_f64());
        }
    });
    target.iter_mut().zip(sums).for_each(|(place, sum)| *place = T::from_f64(sum));
}
