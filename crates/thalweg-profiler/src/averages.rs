//! [`KeyAverages`]: sums per operator.

use std::collections::HashMap;
use std::fmt;

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
        rows.sort_by_key(|row| (std::cmp::Reverse(row.device_nanoseconds), row.operator));
        Self(rows)
    }
}

impl fmt::Display for KeyAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|row| row.operator.len()).max().unwrap_or(0).max("operator".len());
        let total: u64 = self.0.iter().map(|row| row.device_nanoseconds).sum();
        writeln!(
            f,
            "{:width$} {:>8} {:>12} {:>12} {:>8} {:>9} {:>9}",
            "operator", "calls", "host µs", "device µs", "device %", "GB/s", "GFLOP/s"
        )?;
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        for row in &self.0 {
            writeln!(
                f,
                "{:width$} {:>8} {:>12.3} {:>12.3} {:>8.1} {:>9} {:>9}",
                row.operator,
                row.count,
                row.host_nanoseconds as f64 / 1e3,
                row.device_nanoseconds as f64 / 1e3,
                100.0 * row.device_nanoseconds as f64 / total.max(1) as f64,
                rate(row.bandwidth()),
                rate(row.gflops()),
            )?;
        }
        Ok(())
    }
}
