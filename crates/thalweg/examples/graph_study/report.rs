//! The results of the study, as data. The terminal output, the page and the JSON lines are all written from it, so a figure has
//! the same text in all three.

/// A number with a name that is unique in the report.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: Unit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Count,
    Bytes,
    Microseconds,
    /// A ratio of two figures.
    Times,
    /// A difference of outputs.
    Difference,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "1",
            Self::Bytes => "bytes",
            Self::Microseconds => "us",
            Self::Times => "times",
            Self::Difference => "absolute",
        }
    }
}

impl Figure {
    pub fn new(name: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { name: name.into(), value, unit }
    }

    pub fn count(name: impl Into<String>, value: u64) -> Self {
        Self::new(name, value as f64, Unit::Count)
    }

    pub fn bytes(name: impl Into<String>, value: u64) -> Self {
        Self::new(name, value as f64, Unit::Bytes)
    }

    /// Returns the number's text, which is the same in the JSON.
    pub fn text(&self) -> String {
        let value = self.value;
        match self.unit {
            Unit::Count | Unit::Bytes => format!("{value:.0}"),
            Unit::Difference if value == 0.0 => "0".to_owned(),
            Unit::Difference => format!("{value:.1e}"),
            Unit::Microseconds | Unit::Times => microseconds(value),
        }
    }
}

/// Returns a time with at least three significant digits.
pub fn microseconds(value: f64) -> String {
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A row of a table: its name, and one figure per column.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub figures: Vec<Figure>,
}

impl Row {
    pub fn new(name: impl Into<String>, figures: impl IntoIterator<Item = Figure>) -> Self {
        Self { name: name.into(), figures: figures.into_iter().collect() }
    }
}

#[derive(Clone, Debug)]
pub struct Table {
    /// The caption of the table, with the unit of its figures.
    pub caption: String,
    /// The headings: of the rows' names, then of the figures.
    pub columns: Vec<&'static str>,
    pub rows: Vec<Row>,
}

impl Table {
    /// Returns whether the table has times. Those of the simulated GPU are not a GPU's.
    pub fn is_of_times(&self) -> bool {
        let mut figures = self.rows.iter().flat_map(|row| &row.figures);
        figures.any(|figure| figure.unit == Unit::Microseconds)
    }
}

/// A condition that must hold.
#[derive(Clone, Debug)]
pub struct Check {
    pub holds: bool,
    pub statement: String,
}

/// Two percentiles of a way of running a step.
#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub p50: f64,
    pub p95: f64,
}

/// A time at each length.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub enum Chart {
    /// Groups of bars, each with a heading, in microseconds.
    Bars { title: String, groups: Vec<(String, Vec<Bar>)> },
    /// Microseconds over tokens; `marks` are the captured sizes.
    Lines { title: String, lines: Vec<Line>, marks: Vec<f64> },
}

/// A part of the study.
#[derive(Clone, Debug)]
pub struct Section {
    pub title: &'static str,
    /// The experiment, and its result.
    pub lead: String,
    pub chart: Option<Chart>,
    pub tables: Vec<Table>,
    pub checks: Vec<Check>,
    /// A text that is quoted verbatim.
    pub quotation: Option<String>,
}

impl Section {
    pub fn new(title: &'static str, lead: impl Into<String>) -> Self {
        Self {
            title,
            lead: lead.into(),
            chart: None,
            tables: Vec::new(),
            checks: Vec::new(),
            quotation: None,
        }
    }

    pub fn check(&mut self, holds: bool, statement: impl Into<String>) {
        self.checks.push(Check { holds, statement: statement.into() });
    }

    pub fn table(&mut self, caption: impl Into<String>, columns: &[&'static str], rows: Vec<Row>) {
        self.tables.push(Table { caption: caption.into(), columns: columns.to_vec(), rows });
    }
}

/// The study.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device, as `--device` names it.
    pub device: String,
    /// The name of the figure.
    pub model: String,
    pub is_simulated: bool,
    /// The work that is captured.
    pub network: String,
    pub rounds: usize,
    pub sections: Vec<Section>,
}

impl Report {
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        let tables = self.sections.iter().flat_map(|section| &section.tables);
        tables.flat_map(|table| &table.rows).flat_map(|row| &row.figures)
    }

    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.sections.iter().flat_map(|section| &section.checks)
    }

    pub fn all_hold(&self) -> bool {
        self.checks().all(|check| check.holds)
    }

    /// Returns the result of the checks, in one line.
    pub fn verdict(&self) -> String {
        let (all, failed) = (self.checks().count(), self.checks().filter(|check| !check.holds).count());
        match failed {
            0 => format!("all {all} checks hold"),
            failed => format!("{failed} of {all} checks do not hold"),
        }
    }

    /// Returns the meaning of the times.
    pub fn times_are(&self) -> &'static str {
        if self.is_simulated {
            "simulated GPU: the host's time only"
        } else {
            "of the host, and to the end of the step on the GPU"
        }
    }
}
