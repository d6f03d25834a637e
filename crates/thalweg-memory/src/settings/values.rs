//! The values that are more than a number or a switch, each with its arithmetic.

use std::fmt;

/// A mebibyte, in bytes.
pub(super) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The unit of sizes: every block's size is a multiple of it.
const MIN_BLOCK_BYTES: u64 = 512;

/// The source of the defaults of the other keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Thalweg's own decisions.
    Thalweg,
    /// The decisions of PyTorch 2.11.
    PyTorch,
}

/// The allocator that hands out device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// The caching allocator of this crate.
    Native,
    /// The driver's own stream-ordered allocator.
    CudaMallocAsync,
}

/// The rule by which free memory of another stream may serve a request that would otherwise take more memory from the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrossStreamReuse {
    /// Free memory is never reused by another stream: each stream keeps its memory.
    Never,
    /// Free memory is reused as soon as the other stream's work on it is known to be done.
    Idle,
    /// Free memory is also reused earlier: the requesting stream then waits on the device for the other stream's work, within the
    /// limit on such waits.
    Ordered,
}

/// A value that is one of a few words.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word.
    const WORDS: &'static [(Self, &'static str)];
}

impl Choice for Policy {
    const WORDS: &'static [(Self, &'static str)] = &[(Self::Thalweg, "thalweg"), (Self::PyTorch, "pytorch")];
}

impl Choice for Backend {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Native, "native"), (Self::CudaMallocAsync, "cudaMallocAsync")];
}

impl Choice for CrossStreamReuse {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Never, "never"), (Self::Idle, "idle"), (Self::Ordered, "ordered")];
}

impl Choice for bool {
    const WORDS: &'static [(Self, &'static str)] = &[(true, "True"), (false, "False")];
}

/// Returns the word of a choice.
pub(super) fn word<T: Choice>(value: T) -> &'static str {
    let (_, word) = T::WORDS.iter().find(|(other, _)| *other == value).expect("every choice has a word");
    word
}

/// The virtual address space that an expandable segment reserves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// A fraction of the device's memory, more than 0.
    Fraction(f64),
    /// A number of GiB, at least 1.
    Gibibytes(u64),
}

impl Reserve {
    /// Returns the reservation in bytes on a device with `total_bytes` of memory: never more than 9/8 of that, since no
    /// request that could use more can be served.
    pub fn bytes(self, total_bytes: u64) -> u64 {
        let asked = match self {
            // A conversion from floating point saturates.
            Self::Fraction(fraction) => (fraction * total_bytes as f64) as u64,
            Self::Gibibytes(count) => count.saturating_mul(GIB),
        };
        asked.min(Self::full_bytes(total_bytes))
    }

    /// Returns the default reservation: 9/8 of the device's memory.
    pub(super) fn full_bytes(total_bytes: u64) -> u64 {
        total_bytes.saturating_add(total_bytes / 8)
    }

    pub(super) fn is_valid(&self) -> bool {
        match *self {
            Self::Fraction(fraction) => fraction.is_finite() && fraction > 0.0,
            Self::Gibibytes(count) => count > 0,
        }
    }
}

/// The number of equal steps into which the range between two powers of two is divided when a request's size is rounded up, for
/// each of 16 intervals: below 2 MiB, from 2 MiB, from 4 MiB and so on to 32 GiB and above. With 0 and 1 there are no steps:
/// sizes in that interval are rounded to 512 bytes only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PowerTwoDivisions {
    intervals: [u64; Self::INTERVALS],
}

impl PowerTwoDivisions {
    /// The number of intervals.
    pub const INTERVALS: usize = 16;

    /// Returns divisions that are the same for all sizes; `None` unless the number is a power of two.
    pub fn uniform(divisions: u64) -> Option<Self> {
        divisions.is_power_of_two().then_some(Self { intervals: [divisions; Self::INTERVALS] })
    }

    /// Returns divisions with a number for each interval; `None` unless each is 0 or a power of two.
    pub fn from_intervals(intervals: [u64; Self::INTERVALS]) -> Option<Self> {
        intervals.iter().all(|&divisions| Self::is_valid(divisions)).then_some(Self { intervals })
    }

    /// Returns the divisions of each interval.
    pub fn intervals(&self) -> [u64; Self::INTERVALS] {
        self.intervals
    }

    /// Returns the divisions at a size.
    pub fn at(&self, size_bytes: u64) -> u64 {
        self.intervals[Self::interval(size_bytes / MIB)]
    }

    /// Returns the size of the block for a request: at least 512 bytes; if the step is more than 512 bytes, the next step between
    /// the two neighbouring powers of two; otherwise the next multiple of 512.
    ///
    /// ```
    /// use thalweg_memory::PowerTwoDivisions;
    /// let eighths = PowerTwoDivisions::uniform(8).expect("8 is a power of two");
    /// assert_eq!(eighths.round_size(1_100_000), (1 << 20) + (1 << 20) / 8);
    /// assert_eq!(eighths.round_size(4096), 4096);
    /// assert_eq!(eighths.round_size(1025), 1536);
    /// ```
    pub fn round_size(&self, requested_bytes: u64) -> u64 {
        let divisions = self.at(requested_bytes);
        if divisions <= 1 || requested_bytes <= MIN_BLOCK_BYTES.saturating_mul(divisions) {
            return requested_bytes.max(1).next_multiple_of(MIN_BLOCK_BYTES);
        }
        let power_below = 1 << requested_bytes.ilog2();
        // A step has more than 512 bytes, so no step is smaller than a block, and every result is a multiple of 512.
        requested_bytes.next_multiple_of(power_below / divisions)
    }

    pub(super) fn is_valid(divisions: u64) -> bool {
        divisions == 0 || divisions.is_power_of_two()
    }

    /// Returns the interval that contains a size in MiB.
    pub(super) fn interval(size_mib: u64) -> usize {
        (size_mib.max(1).ilog2() as usize).min(Self::INTERVALS - 1)
    }

    /// Sets one interval, for a list in the text.
    pub(super) fn set(&mut self, interval: usize, divisions: u64) {
        self.intervals[interval] = divisions;
    }
}

/// Writes the text of the settings: `8`, or `[64:0,128:4,>:2]`.
impl fmt::Display for PowerTwoDivisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = Self::INTERVALS - 1;
        let intervals = &self.intervals;
        // The first interval of a list also applies to all below it, and `>` to all above the last.
        let same_below = intervals.iter().take_while(|&&divisions| divisions == intervals[0]).count();
        if same_below > last {
            return match intervals[0] {
                0 => f.write_str("[]"),
                divisions => write!(f, "{divisions}"),
            };
        }
        let same_above =
            intervals.iter().rev().take_while(|&&divisions| divisions == intervals[last]).count();
        let rest = Self::INTERVALS - same_above;
        f.write_str("[")?;
        for (interval, divisions) in intervals.iter().enumerate().take(rest).skip(same_below - 1) {
            write!(f, "{}:{divisions},", 1u64 << interval)?;
        }
        write!(f, ">:{}]", intervals[last])
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(f, "{fraction}"),
            Self::Gibibytes(count) => write!(f, "{count}G"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_begins_at_each_power_of_two_of_mebibytes() {
        let mut intervals = [0; PowerTwoDivisions::INTERVALS];
        for (interval, divisions) in intervals.iter_mut().enumerate() {
            *divisions = 1 << interval;
        }
        let divisions = PowerTwoDivisions::from_intervals(intervals).expect("powers of two");
        let table = [
            (0, 1),
            (1, 1),
            (2 * MIB - 1, 1),
            (2 * MIB, 2),
            (4 * MIB - 1, 2),
            (4 * MIB, 4),
            (32 * GIB - 1, 1 << 14),
            (32 * GIB, 1 << 15),
            (64 * GIB, 1 << 15),
            (1 << 60, 1 << 15),
        ];
        for (size, expected) in table {
            assert_eq!(divisions.at(size), expected, "at {size}");
        }
    }

    #[test]
    fn sizes_round_to_the_next_step() {
        let table = [
            (4, 0, 512),
            (4, 512, 512),
            (4, 2048, 2048),
            (4, 2049, 2560),
            (4, 2561, 3072),
            (4, 3585, 4096),
            (4, 1200 * 1024, 1280 * 1024),
            (4, (1 << 60) - 1, 1 << 60),
            (4, 1 << 60, 1 << 60),
            // Fewer than two divisions, or more divisions than the size has units of 512 bytes, leave multiples of 512.
            (1, 1200 * 1024 + 1, 1200 * 1024 + 512),
            (1 << 20, 3 * MIB + 1, 3 * MIB + 512),
            (1 << 63, 1 << 60, 1 << 60),
        ];
        for (divisions, requested, rounded) in table {
            let divisions = PowerTwoDivisions::uniform(divisions).expect("a power of two");
            assert_eq!(divisions.round_size(requested), rounded, "{divisions} divisions, {requested} bytes");
        }
        assert_eq!(PowerTwoDivisions::default().round_size(1200 * 1024 + 1), 1200 * 1024 + 512);
        assert_eq!((PowerTwoDivisions::uniform(0), PowerTwoDivisions::uniform(6)), (None, None));
    }

    #[test]
    fn a_reservation_saturates_and_is_capped() {
        let total = 80 * GIB;
        assert_eq!(Reserve::Fraction(0.5).bytes(total), 40 * GIB);
        assert_eq!(Reserve::Fraction(1.0).bytes(total), total);
        assert_eq!(Reserve::Fraction(1e300).bytes(total), 90 * GIB);
        assert_eq!(Reserve::Gibibytes(8).bytes(total), 8 * GIB);
        assert_eq!(Reserve::Gibibytes(u64::MAX).bytes(total), 90 * GIB);
        assert_eq!(Reserve::Gibibytes(u64::MAX).bytes(u64::MAX), u64::MAX);
    }
}
