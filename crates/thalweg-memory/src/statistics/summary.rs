//! Statistics as a table for a person at a terminal.
//!
//! The table is 77 columns wide, whatever the figures: large sizes and counts are shown in larger units. Each figure has its own
//! unit, since present and accumulated values differ by orders of magnitude; the units are aligned, so that they are noticed. The
//! table is made only from [`DeviceStatistics`]. It is not a data format: programs read
//! [`memory_stats`](DeviceStatistics::memory_stats).

use super::stats::{ByPool, DeviceStatistics, Statistic};

/// The width between the outer bars.
const WIDTH: usize = 75;

impl DeviceStatistics {
    /// Returns the statistics as a table: the present value, the peak, and the sums, for all requests, for the large and for the
    /// small ones. `label` names the owner of the memory (`GPU 0`). If `abbreviated`, the rows of large and small requests are
    /// left out.
    ///
    /// ```
    /// use thalweg_memory::DeviceStatistics;
    /// println!("{}", DeviceStatistics::default().memory_summary("GPU 0", true));
    /// ```
    pub fn memory_summary(&self, label: &str, abbreviated: bool) -> String {
        let mut table = Table::default();
        table.rule('=');
        let mut title: String = "Thalweg memory summary, ".to_owned() + label;
        if let Some((end, _)) = title.char_indices().nth(WIDTH - 2) {
            title.truncate(end);
        }
        table.line(&format!("{title:^WIDTH$}"));
        table.rule('-');
        for pair in [
            [("Out of memory", self.num_ooms), ("Retries", self.num_alloc_retries)],
            [("Driver allocations", self.num_device_alloc), ("Driver frees", self.num_device_free)],
            [("Waits for all streams", self.num_sync_all_streams), ("", 0)],
        ] {
            table.counters(pair);
        }
        table.rule('=');
        table.row(
            "Metric",
            ["Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"].map(|name| format!("{name:<10}")),
        );
        for (name, quantity) in [
            ("Allocated memory", &self.allocated_bytes),
            ("Active memory", &self.active_bytes),
            ("Requested memory", &self.requested_bytes),
            ("Reserved memory", &self.reserved_bytes),
            ("Non-releasable memory", &self.inactive_split_bytes),
        ] {
            table.quantity(name, quantity, size, abbreviated);
        }
        for (name, quantity) in [
            ("Allocations", &self.allocation),
            ("Active allocs", &self.active),
            ("Reserved segments", &self.segment),
            ("Non-releasable allocs", &self.inactive_split),
        ] {
            table.quantity(name, quantity, count, abbreviated);
        }
        table.rule('-');
        table.figures("Oversize allocations", &self.oversize_allocations, count);
        table.figures("Oversize segments", &self.oversize_segments, count);
        table.rule('=');
        table.text
    }
}

#[derive(Default)]
struct Table {
    text: String,
}

impl Table {
    /// Adds a line of exactly [`WIDTH`] columns between bars.
    fn line(&mut self, inner: &str) {
        self.text.push('|');
        self.text.push_str(inner);
        self.text.push_str("|\n");
    }

    fn rule(&mut self, character: char) {
        self.line(&character.to_string().repeat(WIDTH));
    }

    /// Adds a line with two counters that have no peak; a counter without a name stays empty.
    fn counters(&mut self, pair: [(&str, u64); 2]) {
        let [left, right] = pair.map(|(name, value)| match name {
            "" => " ".repeat(35),
            _ => format!("{name:<25}{}", count(value)),
        });
        self.line(&format!(" {left} | {right} "));
    }

    fn row(&mut self, name: &str, cells: [String; 4]) {
        self.line(&format!(" {name:<21} | {} ", cells.join(" | ")));
    }

    fn figures(&mut self, name: &str, statistic: &Statistic, shown: fn(u64) -> String) {
        let Statistic { current, peak, allocated, freed } = *statistic;
        self.row(name, [current, peak, allocated, freed].map(shown));
    }

    fn quantity(&mut self, name: &str, quantity: &ByPool, shown: fn(u64) -> String, abbreviated: bool) {
        self.rule('-');
        self.figures(name, &quantity.all, shown);
        if !abbreviated {
            self.figures("      from large pool", &quantity.large_pool, shown);
            self.figures("      from small pool", &quantity.small_pool, shown);
        }
    }
}

/// Returns a size in ten columns: ` 20.00 MiB`, `   512 B  `.
fn size(bytes: u64) -> String {
    scaled(
        bytes,
        &Scale { units: ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], step: 1024.0, plain: 1 << 10 },
    )
}

/// Returns a count in ten columns: `999999    `, `  1.23 M  `.
fn count(count: u64) -> String {
    scaled(count, &Scale { units: ["", "K", "M", "G", "T", "P", "E"], step: 1000.0, plain: 1_000_000 })
}

struct Scale {
    units: [&'static str; 7],
    /// The number of these units in the next larger one.
    step: f64,
    /// The bound below which values are shown without conversion.
    plain: u64,
}

fn scaled(value: u64, scale: &Scale) -> String {
    let Scale { units, step, plain } = scale;
    if value < *plain {
        return format!("{value:>6} {:<3}", units[0]);
    }
    let (mut scaled, mut unit) = (value as f64, 0);
    // A value that rounds to a full next unit is shown in that unit.
    while scaled >= step - 0.05 {
        scaled /= step;
        unit += 1;
    }
    let decimals = if scaled < 999.995 { 2 } else { 1 };
    format!("{scaled:>6.decimals$} {:<3}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_ten_columns() {
        let table = [
            (0, "     0 B  ", "     0    "),
            (1000, "  1000 B  ", "  1000    "),
            (1023, "  1023 B  ", "  1023    "),
            (1024, "  1.00 KiB", "  1024    "),
            (999_999, "976.56 KiB", "999999    "),
            (1_000_000, "976.56 KiB", "  1.00 M  "),
            (1023 << 10, "1023.0 KiB", "  1.05 M  "),
            ((1 << 20) - 1, "  1.00 MiB", "  1.05 M  "),
            (20 << 20, " 20.00 MiB", " 20.97 M  "),
            (999_960_000, "953.64 MiB", "  1.00 G  "),
            ((1 << 40) - (1 << 36), "960.00 GiB", "  1.03 T  "),
            (u64::MAX, " 16.00 EiB", " 18.45 E  "),
        ];
        for (value, as_size, as_count) in table {
            assert_eq!((size(value).as_str(), count(value).as_str()), (as_size, as_count), "{value}");
        }
    }
}
