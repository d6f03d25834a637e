//! Times of steps, and their percentiles.

use std::time::Instant;

use thalweg::{Device, Result};

use super::report::{Bar, Figure, Unit};

/// The times of one way of running a step, in microseconds.
#[derive(Default)]
pub struct Times {
    /// The times until the host was free again.
    host: Vec<f64>,
    /// The times until the device had finished the step.
    end: Vec<f64>,
}

impl Times {
    /// Runs a step on an idle device, and records its time.
    pub fn step<T>(&mut self, device: &Device, step: impl FnOnce() -> Result<T>) -> Result<T> {
        device.synchronize()?;
        let start = Instant::now();
        let result = step()?;
        let host = start.elapsed();
        device.synchronize()?;
        let end = start.elapsed();
        self.host.push(host.as_secs_f64() * 1e6);
        self.end.push(end.as_secs_f64() * 1e6);
        Ok(result)
    }

    /// Adds other times.
    pub fn extend(&mut self, others: &Self) {
        self.host.extend(&others.host);
        self.end.extend(&others.end);
    }

    pub fn host(&self) -> Spread {
        Spread::of(&self.host)
    }

    pub fn end(&self) -> Spread {
        Spread::of(&self.end)
    }
}

/// The median of many times, and the 95th percentile.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub p50: f64,
    pub p95: f64,
}

impl Spread {
    /// Returns the percentiles of times, by the nearest rank.
    fn of(times: &[f64]) -> Self {
        assert!(!times.is_empty(), "a way of doing a step was timed at least once");
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        Self { p50: rank(50), p95: rank(95) }
    }

    pub fn figures(self, name: &str) -> [Figure; 2] {
        let figure =
            |percentile, value| Figure::new(format!("{name}_{percentile}"), value, Unit::Microseconds);
        [figure("p50", self.p50), figure("p95", self.p95)]
    }

    pub fn bar(self, name: &str) -> Bar {
        Bar { name: name.to_owned(), p50: self.p50, p95: self.p95 }
    }
}
