//! Rows that fit into the registers of their threads.

use thalweg_ir::held::{BYTES_OF_A_THREAD, Held, MOST_BYTES_OF_A_THREAD, MOST_THREADS_WITH_VALUES};
use thalweg_ir::online::Online;
use thalweg_ir::{Body, Class, Geometry, OperandGeometry, OutputPlace};

use super::{Iteration, POINTS_OF_A_LANE, SERIAL_POINTS, VECTOR_BYTES, WARP_POINTS, streamed};

/// The most points per thread, so that a lane's chain of additions stays short.
const POINTS_OF_A_THREAD: u64 = 64;

/// The most points and bytes of a thread that keeps values, the best first. With few, a multiprocessor has many rows in flight.
/// With many, a row has few threads that wait for each other, which is better than loading or computing values again.
const ROOMS: [(u64, usize); 3] =
    [(32, BYTES_OF_A_THREAD), (32, MOST_BYTES_OF_A_THREAD), (POINTS_OF_A_THREAD, MOST_BYTES_OF_A_THREAD)];

/// The fewest threads of a row, if it has a vector for each: a complete warp reads without gaps.
const WARP: u64 = 32;

/// The fewest threads that read a row with more vectors than that.
const LEAST_READING: u64 = 8;

/// The number of threads of a block that keeps only elements. Two such blocks share a multiprocessor: one loads while the other
/// computes.
const SHARING: u64 = 512;

/// The most threads of a block.
const BLOCK: u64 = 1024;

/// The number of points of all rows below which a row has as many threads as it has vectors: so few leave most of a GPU idle, and take as
/// long as a thread does with its points. The parts of long rows have more.
const FEW_POINTS: u64 = 1 << 16;

/// The fewest points of a thread that reads a row online; below, the most threads of such a row. With more threads, fewer rows
/// would be in flight while some wait for their last elements.
const POINTS_ONLINE: u64 = 32;
const THREADS_ONLINE: u64 = 256;

/// Returns the class in which rows of this geometry are read online (once, with running partial results), if the body allows it and
/// the points are one dimension, as for held rows. Shorter rows are held, because a warp then has several of them in flight. A
/// composition may require a number of lanes.
pub(super) fn online(
    body: &Body,
    geometry: &Geometry,
    class: Class,
    alignment_bytes: u64,
    wanted_lanes: Option<u16>,
) -> Option<Class> {
    let points = geometry.points();
    if class.inner_rank != 1 || points <= WARP_POINTS || body.has_offsets() {
        return None;
    }
    let class = Class { repeated: repeated(body, geometry)?, ..class };
    Online::of(body, &class)?;
    let widest = vector(body, geometry, &class, alignment_bytes);
    let threads = points.div_ceil(POINTS_ONLINE).next_power_of_two().min(THREADS_ONLINE);
    // Narrower vectors have fewer lanes.
    let fits = |vector: &u8| Some((threads * u64::from(*vector)) as u16) == wanted_lanes;
    let vector = [1, 2, 4, 8].into_iter().filter(|vector| *vector <= widest).find(fits).unwrap_or(widest);
    let lanes = (threads * u64::from(vector)) as u16;
    Some(Class { lanes, vector, online: true, ..class })
}

/// Returns the class in which threads hold rows of this geometry, if they can. The points must be one dimension in which every
/// operand is contiguous or repeats one element, and there must be registers for them. A block of the most threads keeps what its
/// registers hold and loads the rest again.
pub(super) fn held(body: &Body, geometry: &Geometry, class: Class, iteration: &Iteration) -> Option<Class> {
    let (class, points) = in_vectors(body, geometry, class, iteration)?;
    let vector = u64::from(class.vector);
    let of = |threads: u64| Class {
        lanes: (threads * vector) as u16,
        held: points.div_ceil(threads * vector) as u8,
        ..class
    };
    if let Some((threads, most)) = threads_with_values(body, &class, geometry.rows(), points) {
        let class = of(threads);
        return Some(Class { held: rounded(class.held, most), ..class });
    }
    let elements = Elements { held: Held::of(body, &class, false)?, points, vector };
    let bytes = elements.held.bytes_of_a_point(body, class.vector);
    let shared = elements.in_shared_memory(bytes, iteration.shared_memory_bytes);
    let streamed =
        || streamed::of(body, geometry, &class, iteration, &elements.held).filter(|_| !body.has_offsets());
    let alone = || elements.threads(bytes).map(of);
    match shared {
        Some(shared) => {
            // Unless it is copied once, an input that is the same for all rows passes through the second-level cache with each
            // row.
            let with_columns = streamed().filter(|class| class.streamed.is_some_and(|it| it.columns > 0));
            with_columns.or(Some(Class { shared, ..of(SHARING) }))
        }
        None if elements.fits(bytes) => alone(),
        None => streamed().or_else(alone),
    }
}

/// Returns the class in which this many lanes hold rows of this geometry, if they can: in registers, with no more points for a thread
/// than [`held`] allows.
pub(super) fn held_by(
    lanes: u16,
    body: &Body,
    geometry: &Geometry,
    class: Class,
    iteration: &Iteration,
) -> Option<Class> {
    let (class, points) = in_vectors(body, geometry, class, iteration)?;
    let vector = class.vector;
    let threads = u64::from(lanes / u16::from(vector));
    let held = u8::try_from(points.div_ceil(u64::from(lanes))).ok()?;
    let class = Class { lanes, held, ..class };
    let has_values = threads <= u64::from(MOST_THREADS_WITH_VALUES);
    let bytes = Held::of(body, &class, has_values)?.bytes_of_a_point(body, vector) as u64;
    let room: usize = if has_values { MOST_BYTES_OF_A_THREAD } else { BYTES_OF_A_THREAD };
    let is_whole = threads.is_power_of_two() && threads * u64::from(vector) == u64::from(lanes);
    let most = POINTS_OF_A_THREAD.min(room as u64 / bytes) / u64::from(vector);
    let fits = u64::from(held) <= most;
    let class = Class { held: if has_values { rounded(held, most) } else { held }, ..class };
    (is_whole && fits && (2..=BLOCK).contains(&threads)).then_some(class)
}

/// Returns a number of vectors for which threads have registers: at least `vectors`, at most `most`, and one of few, so that few kernels
/// serve rows of all lengths. A thread skips the vectors after its row's end.
fn rounded(vectors: u8, most: u64) -> u8 {
    let vectors = u64::from(vectors);
    let step = if vectors <= 4 { 1 } else { (vectors.next_power_of_two() / 8).max(2) };
    vectors.next_multiple_of(step).min(most).max(vectors) as u8
}

/// Returns the class in which the rows of this geometry are read by vectors, and the number of points of a row with those that a
/// vector adds to a shifted one; `None` if no threads hold such rows.
fn in_vectors(body: &Body, geometry: &Geometry, class: Class, iteration: &Iteration) -> Option<(Class, u64)> {
    let points = geometry.points();
    if body.reductions.is_empty() || class.inner_rank != 1 {
        return None;
    }
    let class = Class { repeated: repeated(body, geometry)?, ..class };
    let class = Class { vector: vector(body, geometry, &class, iteration.alignment_bytes), ..class };
    if points <= SERIAL_POINTS {
        // One element at a time, a thread reads a short row as well as several threads do.
        let has_vectors = class.vector > 1 && points >= 2 * u64::from(class.vector);
        return has_vectors.then_some((class, points));
    }
    let shifted = shifted(body, geometry, &class, iteration.alignment_bytes);
    let class = shifted.filter(|_| !body.has_offsets()).unwrap_or(class);
    let more = if class.shifted { u64::from(class.vector) - 1 } else { 0 };
    Some((class, points + more))
}

/// Returns how many threads keep elements and values of a row, and how many vectors each has room for; `None` if a block of that many
/// threads does not have registers for both.
fn threads_with_values(body: &Body, class: &Class, rows: u64, points: u64) -> Option<(u64, u64)> {
    let (held, vector) = (Held::of(body, class, true)?, u64::from(class.vector));
    let bytes = held.bytes_of_a_point(body, class.vector);
    let (vectors, most_threads) = (points.div_ceil(vector), u64::from(MOST_THREADS_WITH_VALUES));
    let is_spread = rows.saturating_mul(points) < FEW_POINTS && vectors > WARP && held.combines();
    let reading = if is_spread { vectors.next_power_of_two().min(most_threads) } else { reading(vectors) };
    // If nothing is combined, no thread waits for others: more threads have more loads in flight.
    let rooms = if held.combines() { &ROOMS[..] } else { &ROOMS[..1] };
    rooms.iter().find_map(|&(most, most_bytes)| {
        let room = most.min((most_bytes / bytes) as u64) / vector * vector;
        let threads = points.div_ceil(room.max(1)).next_power_of_two().max(reading);
        (room > 0 && threads <= most_threads).then_some((threads, room / vector))
    })
}

/// Returns the number of threads that read a row of so many vectors: among the numbers that fit a warp, one that leaves the fewest
/// threads idle at the last vector.
fn reading(vectors: u64) -> u64 {
    let most = vectors.next_power_of_two().clamp(2, WARP);
    if vectors > WARP {
        return most;
    }
    let candidates =
        [most, most / 2, most / 4].into_iter().filter(|&threads| threads >= LEAST_READING.min(most));
    candidates.min_by_key(|threads| vectors.next_multiple_of(*threads)).unwrap_or(most)
}

/// The elements of a row that its threads keep, without any values computed from them.
struct Elements {
    held: Held,
    points: u64,
    vector: u64,
}

impl Elements {
    /// Returns how many vectors each of [`SHARING`] threads keeps in shared memory, if it keeps elements of one input, at least
    /// half of them in registers. Returns `None` if there are too many, or if registers are enough. A point takes `bytes` bytes.
    fn in_shared_memory(&self, bytes: usize, shared_memory_bytes: u32) -> Option<u8> {
        let Self { held, points, vector } = self;
        let kept = held.kept.iter().filter(|&&kept| kept).count();
        let is_one = kept == 1 && held.combines() && held.passes.len() > 1;
        let registers = (BYTES_OF_A_THREAD / bytes) as u64 / vector;
        let shared = points.div_ceil(SHARING * vector).saturating_sub(registers);
        let is_room = shared * SHARING * vector * bytes as u64 <= (shared_memory_bytes / 2).into();
        let fits = *vector > 1 && (1..=registers).contains(&shared) && is_room;
        (is_one && fits).then_some(shared as u8)
    }

    /// Returns the number of points that fit a thread's registers.
    fn room(&self, bytes: usize) -> u64 {
        POINTS_OF_A_THREAD.min((BYTES_OF_A_THREAD / bytes) as u64) / self.vector * self.vector
    }

    /// Returns whether everything that later passes need fits the registers of a block.
    fn fits(&self, bytes: usize) -> bool {
        let room = self.room(bytes);
        room > 0 && self.points.div_ceil(room).next_power_of_two() <= BLOCK
    }

    /// Returns how many threads keep as many elements as fit their registers; `None` if they would load too many again.
    fn threads(&self, bytes: usize) -> Option<u64> {
        let Self { held, points, vector } = self;
        let fitting = points.div_ceil(self.room(bytes).max(1)).next_power_of_two();
        let fits = self.fits(bytes);
        let is_short = |threads| *vector > 1 && points.div_ceil(threads * vector) <= POINTS_OF_A_LANE;
        if !held.combines() {
            (fits || is_short(BLOCK)).then_some(BLOCK)
        } else if fits {
            Some(fitting.max(SHARING))
        } else if *points <= SHARING * POINTS_OF_A_THREAD && is_short(SHARING) {
            Some(SHARING)
        } else {
            is_short(BLOCK).then_some(BLOCK)
        }
    }
}

/// Returns the inputs that repeat one element for a row, as bits. Returns `None` if an operand neither repeats one element nor is
/// contiguous, or if all inputs repeat.
fn repeated(body: &Body, geometry: &Geometry) -> Option<u32> {
    let (mut repeated, mut walks) = (0, false);
    for (number, operand) in geometry.operands.iter().enumerate() {
        let OperandGeometry::Strided { inner_strides, .. } = operand else { continue };
        match inner_strides.first() {
            Some(1) => walks |= number < body.inputs.len(),
            Some(0) if number < body.inputs.len().min(32) => repeated |= 1 << number,
            Some(_) => return None,
            // A row output.
            None => {}
        }
    }
    walks.then_some(repeated)
}

/// Returns the class in which rows are read in vectors that begin before them, if the rows themselves are not aligned to half a vector.
/// The operands must be aligned, and have the same distances between rows.
fn shifted(body: &Body, geometry: &Geometry, class: &Class, alignment_bytes: u64) -> Option<Class> {
    let walking: Vec<_> = walking(body, geometry, class).collect();
    let vector = widest(&walking);
    let is_wider = u64::from(class.vector) * 2 < vector;
    let moving = |strides: &[u64]| -> Vec<u64> {
        geometry
            .row_shape
            .iter()
            .zip(strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(_, &stride)| stride)
            .collect()
    };
    let (_, first) = walking.first()?;
    let is_same = walking.iter().all(|(_, strides)| moving(strides) == moving(first));
    (is_wider && is_same && alignment_bytes.is_multiple_of(VECTOR_BYTES)).then_some(Class {
        vector: vector as u8,
        shifted: true,
        ..*class
    })
}

/// Returns the size of the elements, and the row strides, of each operand that is read or written point by point.
fn walking<'a>(
    body: &'a Body,
    geometry: &'a Geometry,
    class: &'a Class,
) -> impl Iterator<Item = (u64, &'a [u64])> + use<'a> {
    let inputs = body.inputs.iter().map(|input| (input.dtype, OutputPlace::Point));
    let outputs = body.outputs.iter().map(|output| (output.dtype, output.place));
    let all = inputs.chain(outputs).zip(&geometry.operands).enumerate();
    all.filter_map(|(number, ((dtype, place), operand))| {
        let OperandGeometry::Strided { row_strides, .. } = operand else { return None };
        let is_apart = place == OutputPlace::Row || class.repeats(number) && number < body.inputs.len();
        (!is_apart).then_some((dtype.size_bytes() as u64, row_strides.as_slice()))
    })
}

/// Returns the number of elements of a vector of these operands, none of which is longer than [`VECTOR_BYTES`].
fn widest(walking: &[(u64, &[u64])]) -> u64 {
    let largest = walking.iter().map(|(bytes, _)| *bytes).max();
    (VECTOR_BYTES / largest.unwrap_or(1)).clamp(1, 8)
}

/// Returns the widest vector for which every row of every operand is aligned and is a multiple of its length.
fn vector(body: &Body, geometry: &Geometry, class: &Class, alignment_bytes: u64) -> u8 {
    let walking: Vec<_> = walking(body, geometry, class).collect();
    let mut vector = widest(&walking);
    let (largest, mut common) = (VECTOR_BYTES / vector, geometry.points());
    for (_, row_strides) in walking {
        let strides = geometry.row_shape.iter().zip(row_strides).filter(|(extent, _)| **extent > 1);
        common = strides.fold(common, |common, (_, stride)| common | stride);
    }
    while vector > 1 && !(common.is_multiple_of(vector) && alignment_bytes.is_multiple_of(vector * largest)) {
        vector /= 2;
    }
    vector as u8
}
