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

/// Names that do not pass, each with its reason.
const REASONS: &[(&str, &str)] = &[
    ("_efficient_attention_forward", "PyTorch has it on CUDA alone; `scaled_dot_product_attention` is there"),
    ("_flash_attention_forward", "PyTorch has it on CUDA alone; `scaled_dot_product_attention` is there"),
    ("_scaled_mm, _scaled_mm_v2", "PyTorch has no samples of them on the CPU"),
    (
        "as_strided_scatter",
        "PyTorch's gradient of its first input is what the written part had, not the rest",
    ),
    ("broadcast_shapes", "it is a function of shapes: Python calls no operator"),
    ("chalf", "there is no complex32"),
    ("conj", "PyTorch makes a lazy view, which calls no operator; `conj_physical` is compared instead"),
    ("hash_tensor", "its results are uint64, which does not exist here"),
    ("histogramdd", "PyTorch has it on the CPU alone"),
    (
        "jiterator_2inputs_2outputs, jiterator_4inputs_with_extra_args, jiterator_binary, jiterator_binary_return_by_ref, jiterator_unary",
        "they compile the user's CUDA code; `Stream::launch_kernel` does here",
    ),
    (
        "nn.functional.scaled_dot_product_attention",
        "in float16 a gradient of one sample is off by 0.0007: the fused kernel computes it from the result, which is rounded to 16 bits, as PyTorch's kernels on a GPU do, while its samples are of a CPU",
    ),
    ("sparse.mm, sparse.sampled_addmm, to_sparse", "there are no sparse tensors"),
];

/// Names with gradients of gradients that differ from PyTorch's, each with its reason.
const SECOND: &[(&str, &str)] = &[
    (
        "as_strided_scatter",
        "PyTorch's gradient is that of the written part, see above; differences in f64 agree with ours",
    ),
    ("linalg.norm", "at zeros, where there is none, PyTorch's is NaN, and ours 0"),
    (
        "logcumsumexp",
        "PyTorch computes with logarithms of gradients, so that its is NaN where one is 0; differences in f64 agree with ours",
    ),
    ("masked.logaddexp", "where both numbers are masked PyTorch's is NaN, and ours 0"),
    (
        "nn.functional.normalize",
        "a sum in float32 of numbers of order 1 that cancel is rounded in another way",
    ),
];

/// Returns the names of [`SECOND`] whose gradients of gradients all agree, and the others' that do not.
pub fn second_not_as_named(scores: &[Score]) -> Vec<&str> {
    let is_named = |score: &Score| SECOND.iter().any(|(name, _)| *name == score.name);
    let differs = |score: &Score| score.double_backward.held < score.double_backward.of;
    let wrong = scores.iter().filter(|score| differs(score) != is_named(score));
    wrong.map(|score| score.name.as_str()).collect()
}

/// Returns the row of an operator.
fn row_of(score: &Score) -> String {
    let mark = if score.passes() { "" } else { " ✗" };
    let dtypes: Vec<&str> = score.dtypes.iter().map(String::as_str).collect();
    let tallies = [
        score.forward,
        score.strides,
        score.backward,
        score.double_backward,
        score.in_place,
        score.out,
        score.errors,
        score.words,
    ];
    let cells = tallies.map(cell);
    format!("| `{}`{mark} | {} | {} |\n", score.name, dtypes.join(" "), cells.join(" | "))
}

/// Returns the page `docs/operators.md`, by the scores, and by those of samples of complex64.
pub fn page(scores: &[Score], complex: &[Score]) -> String {
    let alone: Vec<&str> = complex
        .iter()
        .filter(|score| score.passes() && scores.iter().all(|other| other.name != score.name))
        .map(|score| score.name.as_str())
        .collect();
    let passing = scores.iter().filter(|score| score.passes()).count() + alone.len();
    let core: Vec<&Score> = scores.iter().filter(|score| score.is_core).collect();
    let core_passing = core.iter().filter(|score| score.passes()).count();
    let (there, missing): (Vec<&Score>, Vec<&Score>) =
        scores.iter().partition(|score| score.missing.is_empty());
    let mut text = format!(
        "# Operators, compared with PyTorch's samples\n\n\
         OpInfo is PyTorch's own database of operators: sample inputs, tolerances, and inputs that must be refused. The test\n\
         `opinfo` of `thalweg-tensor` replays its samples by the ATen overloads that PyTorch 2.11 calls for them. An operator\n\
         passes when every sample agrees in dtype, shape, values, shared storage and gradients, and every error input is refused.\n\
         A number agrees when it is within OpInfo's tolerance of PyTorch's, or of the result in f64, or no further from the latter\n\
         than PyTorch's worst number of the same tensor, in units of the tolerance. Gradients in\n\
         16-bit floats, for which OpInfo has no tolerance, may also be off by its relative one of the tensor's largest number.\n\n\
         Of random numbers only dtype and shape are compared. Where PyTorch leaves open which of equal elements stands first (`sort`,\n\
         `topk`), places agree that hold the values. The samples are from PyTorch on the CPU; what it does otherwise on CUDA is done as\n\
         there: statistics of normalization in 16-bit floats are float32, and the device's next synchronization refuses indices out of range.\n\
         PyTorch gives eigenvalues (`eig`) in no order: they are compared in that of the nearest.\n\n\
         **{passing} of {NAMES} names pass**; of those of Core ATen, {core_passing} of {}. {} names have samples that can be replayed on\n\
         strided tensors. Samples of complex64 of {} names are compared with PyTorch's too; {} of the names above\n\
         have no others ({}).\n\n\
         A number is that of samples that all agree. Samples count twice under *forward* where they are also run on inputs with gaps\n\
         between their elements. *Strides* (of results, as PyTorch's), *double backward*, *in place*, *out=* and *in its words* (the message of a refusal has the\n\
         words that OpInfo asks for) are counted, and do not decide whether an operator passes. The test `differences` holds gradients and gradients of\n\
         gradients of the same samples, in f64, against finite differences, and those of every other operator that has a gradient.\n\n\
         | operator | dtypes | forward | strides | backward | double backward | in place | out= | error inputs | in its words |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        core.len(),
        scores.len(),
        complex.len(),
        alone.len(),
        alone.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    );
    there.into_iter().for_each(|score| text.push_str(&row_of(score)));
    let names: Vec<String> = missing.iter().map(|score| format!("`{}`", score.name)).collect();
    write!(
        text,
        "\n## What does not pass\n\nOverloads that do not exist here are called by {}.\n\n",
        names.join(", ")
    )
    .expect("a string takes text");
    let rows = |rows: &[(&str, &str)]| {
        let line = |(names, reason): &(&str, &str)| {
            let names: Vec<String> = names.split(", ").map(|name| format!("`{name}`")).collect();
            format!("- {}: {reason}.\n", names.join(", "))
        };
        rows.iter().map(line).collect::<String>()
    };
    text.push_str(&rows(REASONS));
    text.push_str("\n## Gradients of gradients that are not PyTorch's\n\n");
    text.push_str(&rows(SECOND));
    text
}

#[test]
fn names_that_do_not_pass_have_a_reason() {
    let (listed, folder) = (listed(), folder().join("goldens"));
    let with_reason: BTreeSet<&str> = REASONS.iter().flat_map(|(names, _)| names.split(", ")).collect();
    for entry in std::fs::read_dir(folder).expect("the folder of goldens is read") {
        let file = entry.expect("an entry is read").file_name();
        let file = file.to_str().expect("names are text");
        let Some(name) = file.strip_suffix(".gz") else { continue };
        assert!(
            listed.contains(name) != with_reason.contains(name),
            "{name} either passes or has a reason why it does not"
        );
    }
}
