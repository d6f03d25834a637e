//! The explanation of segments: which loops became one kernel, why others did not, and where memory is.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Once;

use thalweg_graph::{Program, Segment};
use thalweg_runtime::{Environment, Label};

use super::waiters::Waiting;

/// Returns whether new programs are explained.
pub(super) fn is_explained() -> bool {
    let environment = Environment::get();
    environment.explain_compile || environment.explain_file.is_some()
}

/// Writes the explanation of a new program to standard error and to the file, if they are wanted.
pub(super) fn explain(program: &Program, segment: &Segment, loops: &[Waiting], before: Option<Label>) {
    if !is_explained() {
        return;
    }
    let environment = Environment::get();
    let end = match before {
        Some(label) => format!("{} ({})", label.operator, line(&label)),
        None => "the read of a result's address".to_owned(),
    };
    let name = |waiting: &Waiting| format!("{} ({})", waiting.label.operator, line(&waiting.label));
    let names: Vec<String> = loops.iter().map(name).collect();
    if environment.explain_compile {
        eprint!("compile: a segment that ends before {end}: {}", program.describe(&names));
    }
    if let Some(path) = &environment.explain_file {
        let record = format!("{}\n", program.record(segment, &names, &end));
        // One write per line: several threads and processes may append.
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(record.as_bytes())) {
            static REPORTED: Once = Once::new();
            REPORTED.call_once(|| eprintln!("compile: {}: {error}", path.display()));
        }
    }
}

/// Returns the line of a label: that of a program in another language, if there is one.
fn line(label: &Label) -> String {
    match label.program {
        Some(line) => format!("{}:{}", line.file, line.line),
        None => format!("{}:{}", label.location.file(), label.location.line()),
    }
}
