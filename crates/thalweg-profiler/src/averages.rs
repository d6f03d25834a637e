//! [`KeyAverages`]: sums per operator, and per region of the program.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use crate::trace::{Activity, Span, Trace};

/// The sums of an operator.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Average {
    /// The operator, or the name of a region.
    pub operator: String,
    /// The number of calls of the operator. If no call was seen: the number of commands that the operator submitted, or, if it
    /// has only kernels in graphs, the number of kernels that ran.
    pub count: u64,
    /// Nanoseconds on the host, excluding operators that this operator called. If no call of the operator was seen, the
    /// nanoseconds in calls of the driver.
    pub self_host_nanoseconds: u64,
    /// Nanoseconds on the host, including operators that this operator called.
    pub host_nanoseconds: u64,
    /// Nanoseconds on devices.
    pub device_nanoseconds: u64,
    /// The declared bytes of the commands that ran, if they are known. The bytes of a graph's kernels are not.
    pub bytes: u64,
    /// Nanoseconds on devices of the work that is counted in `bytes`.
    pub bytes_nanoseconds: u64,
    /// Floating-point operations of the commands that ran, if they are known.
    pub flops: u64,
    /// Nanoseconds on devices of the work that is counted in `flops`.
    pub flops_nanoseconds: u64,
    /// The bytes of device memory that the operator allocated from a caching allocator minus those that it freed, excluding
    /// operators that it called; 0 if changes of memory were not recorded.
    pub self_device_memory_bytes: i64,
    /// The bytes of device memory that the operator and the operators that it called allocated minus those that they freed.
    pub device_memory_bytes: i64,
}

impl Average {
    /// Returns the bytes per nanosecond of device time, which are GB/s; `None` where either is 0.
    pub fn bandwidth(&self) -> Option<f64> {
        (self.bytes > 0 && self.bytes_nanoseconds > 0)
            .then(|| self.bytes as f64 / self.bytes_nanoseconds as f64)
    }

    /// Returns 10⁹ floating-point operations per second of device time; `None` where either is 0.
    pub fn gflops(&self) -> Option<f64> {
        (self.flops > 0 && self.flops_nanoseconds > 0)
            .then(|| self.flops as f64 / self.flops_nanoseconds as f64)
    }
}

/// The sums per operator; their `Display` is a table.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyAverages(pub Vec<Average>);

impl KeyAverages {
    pub(crate) fn of(trace: &Trace) -> Self {
        let mut rows = Rows::default();
        rows.add_calls(trace);
        rows.add_commands(trace);
        rows.add_activities(trace);
        rows.add_memory(trace);
        rows.add_regions(trace);
        let mut rows: Vec<Average> = rows.0.into_values().collect();
        rows.sort_by(|a, b| {
            (Reverse(a.device_nanoseconds), &a.operator).cmp(&(Reverse(b.device_nanoseconds), &b.operator))
        });
        Self(rows)
    }
}

/// The sums while they are computed, by operator.
#[derive(Default)]
struct Rows(HashMap<String, Average>);

impl Rows {
    fn of(&mut self, operator: &str) -> &mut Average {
        if !self.0.contains_key(operator) {
            self.0
                .insert(operator.to_owned(), Average { operator: operator.to_owned(), ..Average::default() });
        }
        self.0.get_mut(operator).expect("it is there by now")
    }

    /// Adds the calls of operators.
    fn add_calls(&mut self, trace: &Trace) {
        let mut within: HashMap<u64, u64> = HashMap::new();
        for call in &trace.operators {
            if let Some(parent) = call.parent {
                *within.entry(parent).or_default() += call.span.nanoseconds();
            }
        }
        for call in &trace.operators {
            let row = self.of(call.name);
            let nanoseconds = call.span.nanoseconds();
            row.count += 1;
            row.host_nanoseconds += nanoseconds;
            row.self_host_nanoseconds +=
                nanoseconds.saturating_sub(within.get(&call.id).copied().unwrap_or(0));
        }
    }

    /// Adds the commands; those outside of recorded operators count separately.
    fn add_commands(&mut self, trace: &Trace) {
        let operators = trace.operators_of_calls();
        let host: HashMap<u64, u64> =
            trace.calls.iter().map(|call| (call.correlation, call.span.nanoseconds())).collect();
        for command in &trace.commands {
            let operator = operators.get(&command.correlation).copied();
            let row = self.of(operator.unwrap_or(command.operator));
            if operator.is_none() {
                let nanoseconds = host.get(&command.correlation).copied().unwrap_or(0);
                row.count += 1;
                row.host_nanoseconds += nanoseconds;
                row.self_host_nanoseconds += nanoseconds;
            }
            if let Some(span) = command.span {
                row.flops = row.flops.saturating_add(command.flops);
                row.flops_nanoseconds += if command.flops > 0 { span.nanoseconds() } else { 0 };
            }
        }
    }

    fn add_activities(&mut self, trace: &Trace) {
        let mut declared = BTreeSet::new();
        for activity in &trace.activities {
            let row = self.of(&activity.operator);
            let nanoseconds = activity.span.nanoseconds();
            row.device_nanoseconds += nanoseconds;
            if is_by_itself(activity) {
                row.count += 1;
            }
            if activity.bytes == 0 {
                continue;
            }
            row.bytes_nanoseconds += nanoseconds;
            // A call declares its bytes once for all of its activities.
            let is_first = declared.insert((activity.correlation, activity.device));
            if is_first || is_by_itself(activity) {
                row.bytes = row.bytes.saturating_add(activity.bytes);
            }
        }
    }
}

impl Rows {
    /// Adds the regions of the program, of which operators are parts.
    fn add_regions(&mut self, trace: &Trace) {
        let mut outermost: HashMap<u64, Vec<Span>> = HashMap::new();
        for call in trace.operators.iter().filter(|call| call.parent.is_none()) {
            outermost.entry(call.thread).or_default().push(call.span);
        }
        for region in &trace.annotations {
            let calls = outermost.get(&region.thread).map_or(&[][..], Vec::as_slice);
            let first = calls.partition_point(|call| call.start < region.span.start);
            let within = calls[first..].iter().take_while(|call| call.end <= region.span.end);
            let nanoseconds = region.span.nanoseconds();
            let row = self.of(&region.name);
            row.count += 1;
            row.host_nanoseconds += nanoseconds;
            row.self_host_nanoseconds +=
                nanoseconds.saturating_sub(within.map(|call| call.nanoseconds()).sum());
        }
    }
}

/// The row of memory that changed outside of operators, by PyTorch's name.
const MEMORY: &str = "[memory]";

impl Rows {
    /// Adds the memory that operators allocated from the caching allocator and freed.
    fn add_memory(&mut self, trace: &Trace) {
        if trace.memory.is_empty() {
            return;
        }
        let operators: HashMap<u64, _> = trace.operators.iter().map(|call| (call.id, call)).collect();
        for event in &trace.memory {
            let bytes = event.change.bytes;
            let Some(call) = event.operator.and_then(|id| operators.get(&id)) else {
                let outside = self.of(MEMORY);
                outside.count += 1;
                outside.self_device_memory_bytes += bytes;
                outside.device_memory_bytes += bytes;
                continue;
            };
            self.of(call.name).self_device_memory_bytes += bytes;
            let callers = std::iter::successors(Some(call), |call| operators.get(&call.parent?));
            callers.for_each(|call| self.of(call.name).device_memory_bytes += bytes);
        }
    }
}

/// Returns whether an activity counts separately, because a graph or an unrecorded library runs it.
fn is_by_itself(activity: &Activity) -> bool {
    activity.graph_node.is_some() || activity.correlation.is_none()
}

/// The column that a table is sorted by, in descending order; the names in [`FromStr`] are PyTorch's.
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
    /// Device memory (`device_memory_usage`, `cuda_memory_usage`).
    DeviceMemory,
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
            "device_memory_usage"
            | "self_device_memory_usage"
            | "cuda_memory_usage"
            | "self_cuda_memory_usage" => Self::DeviceMemory,
            _ => {
                return Err(format!(
                    "sort_by '{name}': write `device_time_total`, `cpu_time_total`, `device_memory_usage`, `count`, `bytes` or `flops`"
                ));
            }
        })
    }
}

/// The measured limits of a GPU (`thalweg bench`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ceilings {
    /// The bandwidth in GB/s of a copy within the GPU, reads and writes added.
    pub bandwidth: f64,
    /// 10⁹ floating-point operations per second of a large matrix product.
    pub gflops: f64,
}

impl KeyAverages {
    /// Returns a table of at most `row_limit` rows (`key_averages().table(sort_by, row_limit)`). Shares refer to all rows.
    pub fn table(&self, sort_by: SortBy, row_limit: usize) -> String {
        self.write(sort_by, row_limit, None)
    }

    /// Returns the table of [`table`](Self::table) with the share of the GPU's bandwidth and of its arithmetic that each operator
    /// reached: `-` if its bytes or operations are not known.
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
            SortBy::DeviceMemory => u64::try_from(row.device_memory_bytes).unwrap_or(0),
        };
        let has_memory = self.0.iter().any(|row| row.device_memory_bytes != 0 || row.operator == MEMORY);
        rows.sort_by(|a, b| (Reverse(key(a)), &a.operator).cmp(&(Reverse(key(b)), &b.operator)));
        rows.truncate(row_limit);
        let width = rows.iter().map(|row| shown(&row.operator).chars().count()).max().unwrap_or(0);
        let width = width.max("operator".len());
        let total: u64 = self.0.iter().map(|row| row.device_nanoseconds).sum();
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let mut text = format!(
            "{:width$} {:>8} {:>12} {:>12} {:>12} {:>8} {:>9} {:>9}",
            "operator", "calls", "self host µs", "host µs", "device µs", "device %", "GB/s", "GFLOP/s"
        );
        if has_memory {
            text += &format!(" {:>12} {:>12}", "self MiB", "MiB");
        }
        if ceilings.is_some() {
            text += &format!(" {:>11} {:>11}", "% of copy", "% of matmul");
        }
        text.push('\n');
        for row in rows {
            text += &format!(
                "{:width$} {:>8} {:>12.3} {:>12.3} {:>12.3} {:>8.1} {:>9} {:>9}",
                shown(&row.operator),
                row.count,
                row.self_host_nanoseconds as f64 / 1e3,
                row.host_nanoseconds as f64 / 1e3,
                row.device_nanoseconds as f64 / 1e3,
                100.0 * row.device_nanoseconds as f64 / total.max(1) as f64,
                rate(row.bandwidth()),
                rate(row.gflops()),
            );
            if has_memory {
                let mebibytes = |bytes: i64| bytes as f64 / f64::from(1 << 20);
                let (own, all) = (row.self_device_memory_bytes, row.device_memory_bytes);
                text += &format!(" {:>12.2} {:>12.2}", mebibytes(own), mebibytes(all));
            }
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

/// The length of the longest name that a table shows: names of C++ have hundreds of letters.
const LONGEST_NAME: usize = 60;

/// Returns a name shortened for a table.
fn shown(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}

/// Returns a finite share; `None` for a share of a ceiling of 0.
fn finite(share: Option<f64>) -> Option<f64> {
    share.filter(|share| share.is_finite())
}

impl fmt::Display for KeyAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(SortBy::DeviceTime, usize::MAX))
    }
}
