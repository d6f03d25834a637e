//! The scores of all operators: as a page of the documentation, and as the list of operators that pass.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::judge::{Score, Tally};

/// OpInfo's names, in PyTorch 2.11.
const NAMES: usize = 634;

/// Returns the folder of the goldens and of the list.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/opinfo")
}

/// Reads the names that are listed as passing.
pub fn listed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(folder().join("passing.txt")).expect("the list is read");
    text.lines().map(str::to_owned).collect()
}

/// Returns the text of the list.
pub fn list_of(scores: &[Score]) -> String {
    scores.iter().filter(|score| score.passes()).fold(String::new(), |text, score| text + &score.name + "\n")
}

fn cell(tally: Tally) -> String {
    match tally {
        Tally { of: 0, .. } => "–".into(),
        Tally { held, of } if held == of => format!("{of}"),
        Tally { held, of } => format!("**{held} of {of}**"),
    }
}

/// Returns the page `docs/operators.md`.
pub fn page(scores: &[Score]) -> String {
    let passing = scores.iter().filter(|score| score.passes()).count();
    let core: Vec<&Score> = scores.iter().filter(|score| score.is_core).collect();
    let core_passing = core.iter().filter(|score| score.passes()).count();
    let (there, missing): (Vec<&Score>, Vec<&Score>) =
        scores.iter().partition(|score| score.missing.is_empty());
    let mut text = format!(
        "# Operators, held against PyTorch's samples\n\n\
         OpInfo is PyTorch's own database of operators: sample inputs, tolerances, and inputs that must be refused. The test\n\
         `opinfo` of `thalweg-tensor` replays its samples by the ATen overloads that PyTorch 2.11 calls for them. An operator\n\
         passes when every sample agrees in dtype, shape, values, shared storage and gradients, and every error input is refused.\n\
         A number agrees when it is within OpInfo's tolerance of PyTorch's, or of the result in f64, or no further from the latter\n\
         than PyTorch's worst number of the same tensor, in units of the tolerance. Gradients in\n\
         16-bit floats, for which OpInfo has no tolerance, may also be off by its relative one of the tensor's largest number.\n\n\
         Of random numbers only dtype and shape are compared. Where PyTorch leaves open which of equal elements stands first (`sort`,\n\
         `topk`), places agree that hold the values. The samples are from PyTorch on the CPU; what it does otherwise on CUDA is done as\n\
         there: statistics of normalization in 16-bit floats are float32, and indices out of range are not refused by the host.\n\
         `as_strided_scatter` does not pass because PyTorch's gradient of its first input is what the written part had, not the rest.\n\n\
         **{passing} of {NAMES} names pass**; of those of Core ATen, {core_passing} of {}. {} names have samples that can be replayed on\n\
         strided tensors. Samples of complex64 are held against PyTorch beside these, and are not counted.\n\n\
         A number is that of samples that all agree. Samples count twice under *forward* where they are also run on inputs with gaps\n\
         between their elements. *Double backward*, *in place*, *out=* and *in its words* (the message of a refusal has the words that\n\
         OpInfo asks for) are counted, and do not decide whether an operator passes.\n\n\
         | operator | dtypes | forward | backward | double backward | in place | out= | error inputs | in its words |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        core.len(),
        scores.len(),
    );
    for score in there {
        let mark = if score.passes() { "" } else { " ✗" };
        let dtypes: Vec<&str> = score.dtypes.iter().map(String::as_str).collect();
        let tallies = [
            score.forward,
            score.backward,
            score.double_backward,
            score.in_place,
            score.out,
            score.errors,
            score.words,
        ];
        let cells = tallies.map(cell);
        writeln!(text, "| `{}`{mark} | {} | {} |", score.name, dtypes.join(" "), cells.join(" | "))
            .expect("a string takes text");
    }
    text += "\n## Missing\n\nOperators that call overloads which do not exist here, with the overloads:\n\n";
    for score in missing {
        let names: Vec<String> = score.missing.iter().map(|name| format!("`{name}`")).collect();
        writeln!(text, "- `{}`: {}", score.name, names.join(", ")).expect("a string takes text");
    }
    text
}
