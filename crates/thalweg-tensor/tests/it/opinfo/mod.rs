//! PyTorch's own database of operator samples, OpInfo, replayed here: results, gradients, and inputs that must be refused.
//!
//! `tests/opinfo/dump.py` writes the goldens, where PyTorch is installed. `tests/opinfo/passing.txt` lists the operators that
//! pass; the test fails if one of them no longer passes or another one does, so that the list is exact. Samples of complex64 are
//! in `tests/opinfo/complex`; `reading.txt` lists the operators that cannot run on the meta device, because the host reads
//! elements. After a change:
//!
//! ```text
//! THALWEG_OPINFO_WRITE=1 cargo test -p thalweg-tensor --test it opinfo     # the list, and docs/operators.md
//! THALWEG_OPINFO_ONLY=add,mul cargo test -p thalweg-tensor --test it opinfo -- --nocapture
//! THALWEG_OPINFO=FOLDER ...                                                # other goldens, such as the full set
//! ```

mod compiled;
mod core;
mod derivative;
mod differences;
pub mod file;
mod judge;
mod meta;
mod numbers;
mod own;
mod program;
mod races;
mod table;
mod unspecified;

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::thread;

use file::File;
use judge::{Score, judge};
use thalweg_lock::Mutex;
use thalweg_ops::schema::Schema;
use thalweg_tensor::dispatch::find_operator;

/// Returns the files of the goldens in a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let only: Option<BTreeSet<String>> =
        env::var("THALWEG_OPINFO_ONLY").ok().map(|names| names.split(',').map(str::to_owned).collect());
    let entries = std::fs::read_dir(folder).expect("the folder of goldens is read");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry is read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gz"));
    files.retain(|path| {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        only.as_ref().is_none_or(|only| only.contains(name))
    });
    files.sort();
    files
}

/// Judges all operators, on one thread per core.
fn scores(folder: &Path) -> Vec<Score> {
    let files = Mutex::new(files(folder));
    let scores = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = || files.lock().pop();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = next() {
                    let score = judge(&File::read(&path));
                    scores.lock().push(score);
                }
            });
        }
    });
    let mut scores = scores.into_inner();
    scores.sort_by(|a, b| a.name.cmp(&b.name));
    scores
}

#[test]
fn operators_agree_with_pytorchs_samples() {
    let folder = env::var_os("THALWEG_OPINFO").map_or_else(|| table::folder().join("goldens"), PathBuf::from);
    let scores = scores(&folder);
    for score in &scores {
        for failure in score.failures.iter().chain(&score.others) {
            println!("{}: {failure}", score.name);
        }
    }
    if env::var_os("THALWEG_OPINFO_WRITE").is_some() {
        let root = table::folder().join("../../../..");
        let complex = self::scores(&table::folder().join("complex"));
        std::fs::write(table::folder().join("passing.txt"), table::list_of(&scores))
            .expect("the list is written");
        std::fs::write(root.join("docs/operators.md"), table::page(&scores, &complex))
            .expect("the page is written");
        return;
    }
    let listed = table::listed();
    let lost: Vec<&str> = scores
        .iter()
        .filter(|score| listed.contains(&score.name) && !score.passes())
        .map(|score| score.name.as_str())
        .collect();
    assert!(lost.is_empty(), "these operators passed, and do not any more: {lost:?}");
    let gained: Vec<&str> = scores
        .iter()
        .filter(|score| score.passes() && !listed.contains(&score.name))
        .map(|score| score.name.as_str())
        .collect();
    assert!(gained.is_empty(), "these operators pass; say so with THALWEG_OPINFO_WRITE=1: {gained:?}");
    let second = table::second_not_as_named(&scores);
    assert!(
        second.is_empty(),
        "gradients of gradients differ where SECOND does not name it, or neither: {second:?}"
    );
}

/// `tests/opinfo/complex` has samples of complex64 of the operators that take it.
#[test]
fn operators_of_complex_numbers_agree_with_pytorchs_samples() {
    let scores = scores(&table::folder().join("complex"));
    let mut failures = Vec::new();
    for score in scores.iter().filter(|score| !score.passes()) {
        failures.push(format!("{}: {:?} {:?} {:?}", score.name, score.missing, score.failures, score.others));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let backward: usize = scores.iter().map(|score| score.backward.held).sum();
    assert!(
        env::var_os("THALWEG_OPINFO_ONLY").is_some() || backward > 100,
        "{backward} samples have gradients"
    );
}

#[test]
fn schemas_are_pytorchs() {
    let text =
        std::fs::read_to_string(table::folder().join("goldens/schemas.txt")).expect("the schemas are read");
    let mut compared = 0;
    let mut differ = Vec::new();
    for line in text.lines() {
        let name = line.split_once('(').map_or(line, |(name, _)| name);
        let Ok(operator) = find_operator(name) else { continue };
        compared += 1;
        let own = operator.schema().to_string();
        if Schema::parse(line).is_ok_and(|schema| schema.to_string() == own) {
            continue;
        }
        differ.push(format!("{own}\n    PyTorch: {line}"));
    }
    assert!(compared > 20, "{compared} operators have names that PyTorch knows");
    assert!(differ.is_empty(), "these schemas differ:\n{}", differ.join("\n"));
}
