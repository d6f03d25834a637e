//! [`KeyAverages`]: sums per operator.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::trace::Trace;

/// The sums of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Average {
    /// The operator.
    pub operator: &'static str,
    /// How many commands it submitted.
    pub count: u64,
    /// Nanoseconds on the host, in calls of the driver.
    pub host_nanoseconds: u64,
    /// Nanoseconds on devices.
    pub device_nanoseconds: u64,
    /// Bytes that the commands that ran declared.
    pub bytes: u64,
    /// Floating-point operations of the commands that ran, where they are known.
    pub flops: u64,
}

impl Average {
    /// Returns the bytes per nanosecond of device time, which are GB/s; `None` where either is 0.
    pub fn bandwidth(&self) -> Option<f64> {
        (self.bytes > 0 && self.device_nanoseconds > 0)
            .then(|| self.bytes as f64 / self.device_nanoseconds as f64)
    }

    /// Returns 10⁹ floating-point operations per second of device time; `None` where either is 0.
    pub fn gflops(&self) -> Option<f64> {
        (self.flops > 0 && self.device_nanoseconds > 0)
            .then(|| self.flops as f64 / self.device_nanoseconds as f64)
    }
}

/// Sums per operator; its `Display` is a table.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyAverages(pub Vec<Average>);

impl KeyAverages {
    pub(crate) fn of(trace: &Trace) -> Self {
        let host: HashMap<u64, u64> =
            trace.calls.iter().map(|call| (call.correlation, call.span.nanoseconds())).collect();
        let mut rows: HashMap<&'static str, Average> = HashMap::new();
        for command in &trace.commands {
            let operator = command.operator;
            let row = rows.entry(operator).or_insert(Average {
                operator,
                count: 0,
                host_nanoseconds: 0,
                device_nanoseconds: 0,
                bytes: 0,
                flops: 0,
            });
            row.count += 1;
            row.host_nanoseconds += host.get(&command.correlation).copied().unwrap_or(0);
            if let Some(span) = command.span {
                row.device_nanoseconds += span.nanoseconds();
                row.bytes = row.bytes.saturating_add(command.bytes);
                row.flops = row.flops.saturating_add(command.flops);
            }
        }
        let mut rows: Vec<Average> = rows.into_values().collect();
        rows.sort_by_key(|row| (Reverse(row.device_nanoseconds), row.operator));
        Self(rows)
    }
}

/// The column that a table is sorted by, in descending order; names in [`FromStr`] are PyTorch's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortBy {
    /// Time on devices (`device_time_total`, `cuda_time_total`).
    #[default]
    DeviceTime,
    /// Time on the host (`cpu_time_total`).
    HostTime,
    /// Number of commands (`count`).
    Count,
    /// Declared bytes (`bytes`).
    Bytes,
    /// Known floating-point operations (`flops`).
    Flops,
}

impl FromStr for SortBy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "device_time_total" | "self_device_time_total" | "cuda_time_total" | "self_cuda_time_total" => {
                Self::DeviceTime
            }
            "cpu_time_total" | "self_cpu_time_total" => Self::HostTime,
            "count" => Self::Count,
            "bytes" => Self::Bytes,
            "flops" => Self::Flops,
            _ => {
                return Err(format!(
                    "sort_by '{name}': write `device_time_total`, `cpu_time_total`, `count`, `bytes` or `flops`"
                ));
            }
        })
    }
}

/// The limits of a GPU, as they were measured (`thalweg bench`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ceilings {
    /// GB/s of a copy within the GPU, its reads and its writes together.
    pub bandwidth: f64,
    /// 10⁹ floating-point operations per second of a large matrix product.
    pub gflops: f64,
}

impl KeyAverages {
    /// Returns a table of at most `row_limit` rows (`key_averages().table(sort_by, row_limit)`). Shares are of all rows.
    pub fn table(&self, sort_by: SortBy, row_limit: usize) -> String {
        self.write(sort_by, row_limit, None)
    }

    /// Returns the table of [`table`](Self::table) with what share of the GPU's bandwidth and of its arithmetic each operator reached:
    /// `-` where its bytes or operations are not known.
    pub fn table_against(&self, sort_by: SortBy, row_limit: usize, ceilings: &Ceilings) -> String {
        self.write(sort_by, row_limit, Some(ceilings))
    }

    fn write(&self, sort_by: SortBy, row_limit: usize, ceilings: Option<&Ceilings>) -> String {
        let mut rows: Vec<&Average> = self.0.iter().collect();
        let key = |row: &Average| match sort_by {
            SortBy::DeviceTime => row.device_nanoseconds,
            SortBy::HostTime => row.host_nanoseconds,
            SortBy::Count => row.count,
            SortBy::Bytes => row.bytes,
            SortBy::Flops => row.flops,
        };
        rows.sort_by_key(|row| (Reverse(key(row)), row.operator));
        rows.truncate(row_limit);
        let width = rows.iter().map(|row| row.operator.len()).max().unwrap_or(0).max("operator".len());
        let total: u64 = self.0.iter().map(|row| row.device_nanoseconds).sum();
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let mut text = format!(
            "{:width$} {:>8} {:>12} {:>12} {:>8} {:>9} {:>9}",
            "operator", "calls", "host µs", "device µs", "device %", "GB/s", "GFLOP/s"
        );
        if ceilings.is_some() {
            text += &format!(" {:>11} {:>11}", "% of copy", "% of matmul");
        }
        text.push('\n');
        for row in rows {
            text += &format!(
                "{:width$} {:>8} {:>12.3} {:>12.3} {:>8.1} {:>9} {:>9}",
                row.operator,
                row.count,
                row.host_nanoseconds as f64 / 1e3,
                row.device_nanoseconds as f64 / 1e3,
                100.0 * row.device_nanoseconds as f64 / total.max(1) as f64,
                rate(row.bandwidth()),
                rate(row.gflops()),
            );
            if let Some(ceilings) = ceilings {
                let share = |rate: Option<f64>, ceiling: f64| rate.map(|rate| 100.0 * rate / ceiling);
                let bandwidth = finite(share(row.bandwidth(), ceilings.bandwidth));
                let gflops = finite(share(row.gflops(), ceilings.gflops));
                text += &format!(" {:>11} {:>11}", rate(bandwidth), rate(gflops));
            }
            text.push('\n');
        }
        text
    }
}

/// Returns a share of a ceiling that is one: none of a ceiling of 0.
fn finite(share: Option<f64>) -> Option<f64> {
    share.filter(|share| share.is_finite())
}

impl fmt::Display for KeyAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(SortBy::DeviceTime, usize::MAX))
    }
}
