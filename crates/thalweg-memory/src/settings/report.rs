//! Reports of the settings: warnings for people, and their part of a snapshot.

use super::keys::{Concerns, KEYS};
use super::values::{Backend, MIB, PowerTwoDivisions};
use super::{Settings, TEXT_VARIABLES};

/// A value in the `allocator_settings` of a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotValue {
    /// `True` or `False`.
    Boolean(bool),
    /// A whole number; -1 for unlimited.
    Integer(i64),
    /// A number with a fraction.
    Number(f64),
    /// A text.
    Text(String),
    /// Whole numbers under keys.
    Table(Vec<(String, i64)>),
}

/// Returns a limit as PyTorch shows it: a size that does not fit a signed number counts as unlimited.
fn limit(bytes: Option<u64>) -> SnapshotValue {
    SnapshotValue::Integer(bytes.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1))
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Settings {
    /// Returns the settings under the names and in the order of PyTorch's snapshots. `PYTORCH_CUDA_ALLOC_CONF` is the canonical
    /// text, because the text that was applied last may have been only a part. `expandable_segments` is the requested value,
    /// whether or not the upstream supports it.
    pub fn allocator_settings(&self) -> Vec<(&'static str, SnapshotValue)> {
        use SnapshotValue::{Boolean, Integer, Number, Table, Text};
        let intervals = self.roundup_power2_divisions().intervals();
        let divisions = intervals.iter().enumerate();
        let divisions = divisions.map(|(interval, &count)| ((1u64 << interval).to_string(), integer(count)));
        let threshold = self.garbage_collection_threshold().unwrap_or(0.0);
        vec![
            (TEXT_VARIABLES[0], Text(self.to_string())),
            ("max_split_size", limit(self.max_split_size_bytes())),
            ("garbage_collection_threshold", Number(threshold)),
            ("expandable_segments", Boolean(self.expandable_segments())),
            ("pinned_num_register_threads", Integer(integer(self.pinned_num_register_threads()))),
            ("release_lock_on_cudamalloc", Boolean(self.release_lock_on_cudamalloc())),
            ("pinned_use_cuda_host_register", Boolean(self.pinned_use_cuda_host_register())),
            ("graph_capture_record_stream_reuse", Boolean(self.graph_capture_record_stream_reuse())),
            ("max_round_threshold", limit(self.pinned_max_round_threshold_bytes())),
            ("max_cached_size", limit(self.pinned_max_cached_size_bytes())),
            ("roundup_power2_divisions", Table(divisions.collect())),
        ]
    }

    /// Returns the settings that have no effect, each as one sentence for people.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.backend() == Backend::CudaMallocAsync {
            let native = KEYS.iter().filter(|key| key.concerns() == Concerns::Native && key.is_set(self));
            let names: Vec<&str> = native.map(|key| key.name()).collect();
            if !names.is_empty() {
                warnings.push(format!("backend:cudaMallocAsync ignores {}", names.join(", ")));
            }
        } else if self.garbage_collection_threshold().is_some() && self.per_process_memory_fraction() == 1.0 {
            let text = "garbage_collection_threshold has no effect until a memory fraction below 1 is set";
            warnings.push(text.to_owned());
        }
        if let (Some(round), Some(cached)) =
            (self.pinned_max_round_threshold_bytes(), self.pinned_max_cached_size_bytes())
            && round > cached
        {
            warnings.push(format!(
                "pinned_max_round_threshold_mb:{} has no effect beyond pinned_max_cached_size_mb:{}, above which \
                 nothing is rounded",
                round / MIB,
                cached / MIB
            ));
        }
        warnings
    }

    /// Returns the most that may be taken from the driver on a device with `total_bytes` of memory; `None` if all of it may.
    pub fn allowed_bytes(&self, total_bytes: u64) -> Option<u64> {
        let fraction = self.per_process_memory_fraction();
        (fraction < 1.0).then(|| (fraction * total_bytes as f64).round() as u64)
    }

    /// Returns the size of the block for a request, under [`roundup_power2_divisions`](Self::roundup_power2_divisions).
    pub fn round_size(&self, requested_bytes: u64) -> u64 {
        PowerTwoDivisions::round_size(&self.roundup_power2_divisions(), requested_bytes)
    }
}
