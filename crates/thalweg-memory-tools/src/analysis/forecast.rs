//! The forecast of a program under other settings, even if its beginning is not known.
//!
//! If a trace begins with its program, a replay determines everything. If not, the memory that the settings had reserved by then
//! cannot be known. Three things are known nevertheless:
//!
//! - Live memory must be reserved: no settings can have less ([`Forecast::least_reserved_bytes`]).
//! - The result for the recorded part with a *tidy* beginning, in which its live blocks are placed where the settings would place
//!   them now.
//! - The result with a *worn* beginning, with all memory that the recording had reserved by then, and live blocks at their
//!   recorded addresses.
//!
//! The two beginnings are the same for all settings, so outcomes with the same beginning are compared. Nothing is claimed that
//! does not hold for both of them.

use thalweg_memory::{settings::Backend, settings::Settings};

use super::what_if::{self, ReplayFigures};
use crate::replay::{RecordedProgram, StartState};

/// The precision of the search for the smallest GPU, as a divisor of the reserved memory.
const TOLERANCE: u64 = 128;
/// The granularity of the smallest GPU, in bytes.
const GPU_GRANULE_BYTES: u64 = 1 << 20;

/// The number of streams and private pools above which a program is replayed only once.
const MOST_ARENAS: usize = 256;

/// The prediction for a program under given settings, as far as it is known.
#[derive(Clone, PartialEq, Debug)]
pub struct Forecast {
    /// The result for the complete program. If the trace does not contain the program's beginning, the result for the recorded
    /// part with a tidy beginning: live blocks are placed where these settings would place them.
    pub tidy: ReplayFigures,
    /// The result for the recorded part with a worn beginning: the memory that the recording had reserved, with live blocks at
    /// their recorded addresses. `None` if the trace contains the program's beginning. Under the settings of the recording this
    /// is what happened.
    pub worn: Option<ReplayFigures>,
    /// Whether the settings are those of the recording.
    pub is_recorded: bool,
    /// A lower bound of the program's peak of reserved memory, in bytes.
    pub least_reserved_bytes: u64,
    /// The size of a GPU that is enough for the recorded part, while one that is smaller by a hundredth is not. `None` if this is
    /// not known.
    pub fits_from_bytes: Option<u64>,
}

/// Returns the reason why no forecast is possible for a program under given settings, if there is one.
pub fn unknown(program: &RecordedProgram, settings: &Settings) -> Option<&'static str> {
    let is_estimate = settings.backend() == Backend::CudaMallocAsync;
    (is_estimate && !program.pools().is_empty()).then_some(
        "what cudaMallocAsync reserves for captured graphs and private pools cannot be estimated: the driver keeps their memory \
         by rules of its own",
    )
}

/// An answer to a question: yes, no, or perhaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The statement holds with neither beginning.
    No,
    /// The statement holds with only one of the beginnings.
    Perhaps,
    /// The statement holds with each beginning.
    Yes,
}

impl Forecast {
    /// Replays `program` under `settings` on a GPU of `gpu_bytes`, or on one that is never full. `is_recorded` means that these
    /// settings led to the state in which the trace begins. `progress` is called now and then with the number of steps served.
    pub fn of(
        program: &RecordedProgram,
        settings: &Settings,
        is_recorded: bool,
        gpu_bytes: Option<u64>,
        mut progress: impl FnMut(usize),
    ) -> Result<Self, String> {
        let is_estimate = settings.backend() == Backend::CudaMallocAsync;
        let mut run = |start| what_if::run(program, settings.clone(), start, gpu_bytes, &mut progress);
        let is_whole = program.older_blocks() == 0;
        let start = if is_whole { StartState::Recorded } else { StartState::LiveBlocks };
        let tidy = run(start)?;
        let worn = if is_whole || is_estimate { None } else { Some(run(StartState::Recorded)?) };
        let recorded = worn.as_ref().filter(|worn| is_recorded && !worn.out_of_memory);
        let least_reserved_bytes = match is_estimate {
            true => program.peak_live_bytes(),
            false => program.least_reserved_bytes(settings),
        };
        let least_reserved_bytes =
            recorded.map_or(0, |worn| worn.peak_reserved_bytes).max(least_reserved_bytes);
        Ok(Self { tidy, worn, is_recorded, least_reserved_bytes, fits_from_bytes: None })
    }

    /// Searches for the smallest GPU that is enough. This takes several replays.
    pub fn find_gpu(&mut self, program: &RecordedProgram, settings: &Settings) -> Result<(), String> {
        let is_unknown =
            settings.backend() == Backend::CudaMallocAsync || settings.per_process_memory_fraction() < 1.0;
        if is_unknown || program.arenas() > MOST_ARENAS {
            return Ok(());
        }
        let starts: &[StartState] = match (&self.worn, self.is_recorded) {
            (None, _) | (Some(_), true) => &[StartState::Recorded],
            (Some(_), false) => &[StartState::LiveBlocks, StartState::Recorded],
        };
        let fits = |gpu: Option<u64>| {
            let mut most = 0;
            for &start in starts {
                let (fits, peak) = what_if::fits(program, settings.clone(), start, gpu)?;
                most = peak.max(most);
                if !fits {
                    return Ok((false, most));
                }
            }
            Ok::<_, String>((true, most))
        };
        let (is_endless_enough, most) = fits(None)?;
        if !is_endless_enough {
            return Ok(());
        }
        let mut enough = most.next_multiple_of(GPU_GRANULE_BYTES);
        if !fits(Some(enough))?.0 {
            // Garbage collection depends on the size of the GPU.
            enough += enough / 4;
            if !fits(Some(enough))?.0 {
                return Ok(());
            }
        }
        // The memory that is live at once does not fit in less.
        let mut too_small = program.least_reserved_bytes(settings).saturating_sub(1);
        while enough - too_small > (enough / TOLERANCE).max(2 * GPU_GRANULE_BYTES) {
            let middle = (too_small + (enough - too_small) / 2).next_multiple_of(GPU_GRANULE_BYTES);
            if fits(Some(middle))?.0 {
                enough = middle;
            } else {
                too_small = middle;
            }
        }
        self.fits_from_bytes = Some(enough);
        Ok(())
    }

    /// Returns whether only a part of the program is known.
    pub fn is_partial(&self) -> bool {
        self.worn.is_some()
    }

    /// Returns the outcome that is closest to the real program's.
    pub fn nearest(&self) -> &ReplayFigures {
        self.worn.as_ref().filter(|_| self.is_recorded).unwrap_or(&self.tidy)
    }

    /// Returns bounds on the peak of the reserved memory over the recorded part, in bytes: the least and the greatest possible
    /// value.
    pub fn recorded_part_bytes(&self) -> (u64, u64) {
        let nearest = self.nearest().peak_reserved_bytes;
        match &self.worn {
            Some(worn) if !self.is_recorded => {
                (nearest.min(worn.peak_reserved_bytes), nearest.max(worn.peak_reserved_bytes))
            }
            _ => (nearest, nearest),
        }
    }

    /// Returns whether a request fails for lack of memory over the recorded part.
    pub fn out_of_memory(&self) -> Answer {
        let nearest = self.nearest().out_of_memory;
        match &self.worn {
            Some(worn) if worn.out_of_memory != nearest => Answer::Perhaps,
            _ if nearest => Answer::Yes,
            _ => Answer::No,
        }
    }

    /// Returns how many bytes lower the peak of the reserved memory is than in `first`. Compares the tidy results and the worn
    /// results, and returns the smaller difference first.
    fn saved_bytes(&self, first: &Self) -> (i128, i128) {
        let saved = |first: &ReplayFigures, other: &ReplayFigures| {
            i128::from(first.peak_reserved_bytes) - i128::from(other.peak_reserved_bytes)
        };
        let tidy = saved(&first.tidy, &self.tidy);
        match (&first.worn, &self.worn) {
            (Some(first), Some(other)) => {
                let worn = saved(first, other);
                (tidy.min(worn), tidy.max(worn))
            }
            _ => (tidy, tidy),
        }
    }
}

/// A recommendation derived from forecasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recommendation {
    /// None of the settings fits the GPU.
    NoneFits,
    /// No settings are known to reserve less than the first.
    NoChange,
    /// Other settings fit where the first do not.
    Fits {
        /// The index of the settings in the list.
        index: usize,
    },
    /// Other settings reserve less than the first.
    Saves {
        /// The index of the settings in the list.
        index: usize,
        /// The least saving, in bytes.
        least_bytes: u64,
        /// The greatest saving, in bytes.
        most_bytes: u64,
    },
}

/// Returns which of several settings to use instead of the first, if any: those that fit and save most, and among those that save
/// about the same (to 1 %) those that call the driver least. If only a part of the program is known, a saving counts only if it
/// appears with both beginnings.
pub fn recommend(forecasts: &[Forecast]) -> Recommendation {
    let fits = |forecast: &Forecast| forecast.out_of_memory() == Answer::No && !forecast.tidy.is_estimate;
    let Some(first) = forecasts.first().filter(|_| forecasts.iter().any(fits)) else {
        return Recommendation::NoneFits;
    };
    let calls = |index: usize| {
        let ReplayFigures { driver_allocations, driver_frees, .. } = forecasts[index].nearest();
        driver_allocations + driver_frees
    };
    let fitting = || (0..forecasts.len()).filter(|&index| fits(&forecasts[index]));
    if !fits(first) {
        let most = |index: usize| forecasts[index].recorded_part_bytes().1;
        let least = fitting().map(most).min().unwrap_or(0);
        let near = fitting().filter(|&index| most(index) <= least + least / 100);
        return near.min_by_key(|&index| calls(index)).map_or(Recommendation::NoneFits, |index| {
            if first.out_of_memory() == Answer::Yes {
                Recommendation::Fits { index }
            } else {
                Recommendation::NoChange
            }
        });
    }
    let whole = i128::from(first.recorded_part_bytes().1);
    let saved = |index: usize| forecasts[index].saved_bytes(first).0;
    let most = fitting().map(saved).max().unwrap_or(0);
    let near = fitting().filter(|&index| saved(index) >= most - whole / 100);
    let index = near.min_by_key(|&index| calls(index)).unwrap_or(0);
    let (least, most) = forecasts[index].saved_bytes(first);
    match u64::try_from(least) {
        Ok(least_bytes) if least > whole / 100 => Recommendation::Saves {
            index,
            least_bytes,
            most_bytes: u64::try_from(most).unwrap_or(least_bytes),
        },
        _ => Recommendation::NoChange,
    }
}
