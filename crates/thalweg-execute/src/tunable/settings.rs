//! The settings of tuning, and its environment variables.

use std::path::PathBuf;

/// The environment variables `PYTORCH_TUNABLEOP_*`, read once. They override the settings of a program.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Variables {
    pub(super) enabled: bool,
    pub(super) tuning: Option<bool>,
    pub(super) record_untuned: Option<bool>,
    pub(super) wildcard_fallback: Option<bool>,
    pub(super) max_tuning_duration_ms: Option<u32>,
    pub(super) max_tuning_iterations: Option<u32>,
    pub(super) requested_algorithms: Option<u32>,
    /// The size in MB; negative for the size of the L2 cache.
    pub(super) rotating_buffer: Option<i64>,
    pub(super) numerical_check: Option<Option<Tolerances>>,
    pub(super) filename: Option<String>,
    pub(super) untuned_filename: Option<String>,
    pub(super) warmup_duration_ms: u32,
    pub(super) warmup_iterations: u32,
    pub(super) verbose: u32,
    pub(super) verbose_filename: Option<String>,
}

impl Variables {
    /// Reads the variables through a lookup function. A value that is not a number counts as not set.
    pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let text =
            |name: &str| lookup(&format!("PYTORCH_TUNABLEOP_{name}")).filter(|value| !value.is_empty());
        let flag = |name: &str| text(name).map(|value| value == "1");
        let number = |name: &str| text(name).and_then(|value| value.parse::<u32>().ok());
        Self {
            enabled: flag("ENABLED") == Some(true),
            tuning: flag("TUNING"),
            record_untuned: flag("RECORD_UNTUNED"),
            wildcard_fallback: flag("WILDCARD_FALLBACK"),
            max_tuning_duration_ms: number("MAX_TUNING_DURATION_MS"),
            max_tuning_iterations: number("MAX_TUNING_ITERATIONS"),
            requested_algorithms: number("CUBLASLT_REQUESTED_ALGO_COUNT").map(|count| count.max(1)),
            rotating_buffer: text("ROTATING_BUFFER_SIZE").and_then(|value| value.parse().ok()),
            numerical_check: text("NUMERICAL_CHECK").map(|value| Tolerances::parse(&value)),
            filename: text("FILENAME"),
            untuned_filename: text("UNTUNED_FILENAME"),
            warmup_duration_ms: number("MAX_WARMUP_DURATION_MS").unwrap_or(0),
            warmup_iterations: number("MAX_WARMUP_ITERATIONS").unwrap_or(0),
            verbose: number("VERBOSE").unwrap_or(0),
            verbose_filename: text("VERBOSE_FILENAME"),
        }
    }
}

/// The tolerated difference of a candidate's result from the default's: `atol` plus `rtol` times the default's magnitude.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tolerances {
    pub(super) atol: f64,
    pub(super) rtol: f64,
}

impl Tolerances {
    /// Parses `atol_rtol`, as in `1e-5_1e-5`; `0` means no tolerances.
    fn parse(text: &str) -> Option<Self> {
        let (atol, rtol) = text.split_once('_')?;
        Some(Self { atol: atol.parse().ok()?, rtol: rtol.parse().ok()? })
    }
}

/// The settings that a program makes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Settings {
    pub(super) max_tuning_duration_ms: u32,
    pub(super) max_tuning_iterations: u32,
    pub(super) requested_algorithms: u32,
    pub(super) rotating_buffer: i64,
    pub(super) numerical_check: Option<Tolerances>,
    /// The name that the program set, and whether the device's number is inserted.
    pub(super) filename: Option<(String, bool)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_tuning_duration_ms: 30,
            max_tuning_iterations: 100,
            requested_algorithms: 32,
            rotating_buffer: -1,
            numerical_check: None,
            filename: None,
        }
    }
}

/// The settings with the variables applied.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Effective {
    pub(super) max_tuning_duration_ms: u32,
    pub(super) max_tuning_iterations: u32,
    pub(super) requested_algorithms: u32,
    pub(super) rotating_buffer: i64,
    pub(super) numerical_check: Option<Tolerances>,
    pub(super) warmup_duration_ms: u32,
    pub(super) warmup_iterations: u32,
}

impl Effective {
    pub(super) fn of(variables: &Variables, settings: &Settings) -> Self {
        Self {
            max_tuning_duration_ms: variables
                .max_tuning_duration_ms
                .unwrap_or(settings.max_tuning_duration_ms),
            max_tuning_iterations: variables.max_tuning_iterations.unwrap_or(settings.max_tuning_iterations),
            requested_algorithms: variables.requested_algorithms.unwrap_or(settings.requested_algorithms),
            rotating_buffer: variables.rotating_buffer.unwrap_or(settings.rotating_buffer),
            numerical_check: variables.numerical_check.unwrap_or(settings.numerical_check),
            warmup_duration_ms: variables.warmup_duration_ms,
            warmup_iterations: variables.warmup_iterations,
        }
    }

    /// Returns the number of bytes that copies of the operands should fill, on a device with this L2 cache; 0 for one copy.
    pub(super) fn rotating_bytes(&self, l2_cache_bytes: u64) -> u64 {
        match u64::try_from(self.rotating_buffer) {
            Ok(megabytes) => megabytes.saturating_mul(1 << 20),
            Err(_) => l2_cache_bytes,
        }
    }
}

/// Returns the file of the results of a device.
pub(super) fn results_file(variables: &Variables, settings: &Settings, device: u32) -> PathBuf {
    match (&variables.filename, &settings.filename) {
        (Some(name), _) => of_device(name, device),
        (None, Some((name, true))) => of_device(name, device),
        (None, Some((name, false))) => name.into(),
        (None, None) => of_device("tunableop_results.csv", device),
    }
}

/// Returns the file of a device's products that are not tuned yet.
pub(super) fn untuned_file(variables: &Variables, device: u32) -> PathBuf {
    of_device(variables.untuned_filename.as_deref().unwrap_or("tunableop_untuned.csv"), device)
}

/// Returns a file's name with the number of a device inserted in place of `%d`, else before the last dot, else at the end.
fn of_device(name: &str, device: u32) -> PathBuf {
    if name.contains("%d") {
        return name.replace("%d", &device.to_string()).into();
    }
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[file..].rfind('.') {
        Some(dot) => {
            let (stem, extension) = name.split_at(file + dot);
            format!("{stem}{device}{extension}").into()
        }
        None => format!("{name}{device}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_device_goes_into_a_file_name() {
        let names = [
            ("results.csv", "results3.csv"),
            ("a.b/results", "a.b/results3"),
            ("/data/r_%d.csv", "/data/r_3.csv"),
            ("a.b/c.d.csv", "a.b/c.d3.csv"),
        ];
        for (name, expected) in names {
            assert_eq!(of_device(name, 3), PathBuf::from(expected));
        }
    }

    #[test]
    fn variables_come_before_what_a_program_sets() {
        let variables = Variables::read(|name| {
            let value = match name.strip_prefix("PYTORCH_TUNABLEOP_")? {
                "ENABLED" => "1",
                "TUNING" => "0",
                "MAX_TUNING_ITERATIONS" => "7",
                "MAX_TUNING_DURATION_MS" => "a few",
                "CUBLASLT_REQUESTED_ALGO_COUNT" => "0",
                "ROTATING_BUFFER_SIZE" => "-1",
                "NUMERICAL_CHECK" => "1e-3_0.5",
                "FILENAME" => "tuned_%d.csv",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert!(variables.enabled && variables.tuning == Some(false));
        let mine = Settings {
            max_tuning_iterations: 50,
            max_tuning_duration_ms: 9,
            rotating_buffer: 2,
            filename: Some(("mine.csv".into(), false)),
            ..Settings::default()
        };
        let effective = Effective::of(&variables, &mine);
        assert_eq!((effective.max_tuning_iterations, effective.max_tuning_duration_ms), (7, 9));
        assert_eq!(effective.requested_algorithms, 1, "at least one algorithm is asked for");
        assert_eq!(effective.rotating_bytes(50 << 20), 50 << 20);
        assert_eq!(effective.numerical_check, Some(Tolerances { atol: 1e-3, rtol: 0.5 }));
        assert_eq!(results_file(&variables, &mine, 1), PathBuf::from("tuned_1.csv"));
        let none = Variables::read(|_| None);
        assert_eq!(results_file(&none, &mine, 1), PathBuf::from("mine.csv"));
        assert_eq!(results_file(&none, &Settings::default(), 1), PathBuf::from("tunableop_results1.csv"));
        assert_eq!(Effective::of(&none, &mine).rotating_bytes(50 << 20), 2 << 20);
    }
}
