//! Gradients of OpInfo's samples, and gradients of these, in f64 compared with finite differences, independently of PyTorch's
//! own.
//!
//! A sample is a function of its leaves. The derivative in one direction of all leaves at once, of a weighted sum of all results,
//! must agree with differences, and so must that of the gradients, if PyTorch has them. Operators that no sample reaches are in
//! `own.rs`. Every exception is listed below with its reason, and the test fails if one is no longer needed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use serde_json::{Value as Json, json};
use thalweg_lock::Mutex;
use thalweg_ops::schema::Kind;
use thalweg_tensor::dispatch::{
    Call, DispatchKey, IncludeKeyGuard, Operator, find_operator, operators, register_fallback,
};
use thalweg_tensor::random::{DeviceGenerator, with_generator};
use thalweg_tensor::{Tensor, Tensors};

use super::derivative::{Derivative, Function, first_order, second_order, text};
use super::file::{File, Inputs, list};
use super::own;
use super::program::{Machine, Stop};
use super::table;
use crate::support::device;

/// A change of a leaf before the sample's calls read it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Preparation {
    /// The leaf is replaced by its Hermitian part: the operator reads a triangle, and returns the gradient of both.
    Hermitian,
    /// The leaf is replaced by the triangle that the operator reads.
    Triangle,
    /// The leaf is replaced by its logarithm of softmax: the gradient is right only for normalized rows.
    LogSoftmax,
    /// The leaf is not moved: the result is discontinuous.
    Fixed,
}

/// Leaves that are prepared, by the name and the variant of the sample and the leaf's index, like `gradcheck_wrapper` of OpInfo.
const PREPARED: &[(&str, usize, Preparation)] = &[
    ("cholesky", 0, Preparation::Hermitian),
    ("cholesky_inverse", 0, Preparation::Triangle),
    ("cholesky_solve", 1, Preparation::Triangle),
    ("linalg.cholesky", 0, Preparation::Hermitian),
    ("linalg.cholesky_ex", 0, Preparation::Hermitian),
    ("linalg.eigh", 0, Preparation::Hermitian),
    ("linalg.eigvalsh", 0, Preparation::Hermitian),
    ("linalg.pinv hermitian", 0, Preparation::Hermitian),
    ("nn.functional.cosine_embedding_loss", 2, Preparation::Fixed),
    ("nn.functional.ctc_loss", 0, Preparation::LogSoftmax),
    ("nn.functional.hinge_embedding_loss", 1, Preparation::Fixed),
];

/// Names with functions whose derivative does not agree with differences.
const DIFFER: &[(&str, &str)] = &[
    ("as_strided", "the result reads the storage beyond the leaf, which a leaf that was moved does not have"),
    ("bfloat16", "the result is rounded to 16 bits"),
    ("half", "the result is rounded to 16 bits"),
    ("nn.functional.max_unpool1d", "a place that is named twice has the gradient of both, as PyTorch's"),
    ("nn.functional.max_unpool2d", "a place that is named twice has the gradient of both, as PyTorch's"),
    ("nn.functional.max_unpool3d", "a place that is named twice has the gradient of both, as PyTorch's"),
    ("normal.Tensor_Tensor", "the gradients are zeros, as PyTorch's"),
    ("normal.Tensor_float", "the gradients are zeros, as PyTorch's"),
    ("normal.float_Tensor", "the gradients are zeros, as PyTorch's"),
];

/// Operators that record a gradient and are reached by no function here, except those of the table of elementwise operators,
/// which has its own tests, and those that take no tensor.
const NOT_REACHED: &[(&str, &[&str])] = &[
    ("PyTorch has no derivative of it", &["heaviside", "thalweg::alignments_backward"]),
    (
        "the results are truth values or places",
        &[
            "isneginf",
            "isposinf",
            "signbit",
            "thalweg::all",
            "thalweg::any",
            "thalweg::argmax",
            "thalweg::argmin",
            "thalweg::checked_index",
            "thalweg::count_nonzero",
            "thalweg::place",
        ],
    ),
    (
        "the results are drawn, and have no gradient",
        &[
            "bernoulli.p",
            "thalweg::bernoulli",
            "thalweg::cauchy",
            "thalweg::exponential",
            "thalweg::geometric",
            "thalweg::integers",
        ],
    ),
    (
        "other operators, which autograd sees, compute them where a gradient is wanted",
        &[
            "thalweg::channel_norm_apply",
            "thalweg::channel_norm_combine",
            "thalweg::channel_norm_fold",
            "thalweg::channel_norm_fold_weighted",
            "thalweg::channel_norm_moved",
            "thalweg::channel_norm_moved_both",
            "thalweg::channel_norm_parts",
            "thalweg::channel_norm_statistics",
            "thalweg::channel_norm_sums",
            "thalweg::kl_div_of_logarithms_elements",
            "thalweg::layer_norm",
            "thalweg::max_and_place",
            "thalweg::min_and_place",
        ],
    ),
    (
        "they are parts of backward passes, whose gradient is another formula",
        &[
            "_log_softmax_backward_data",
            "thalweg::add_layer_norm_backward",
            "thalweg::bag_products",
            "thalweg::channel_norm_backward",
            "thalweg::channel_norm_backward_of_batch",
            "thalweg::channel_norm_gradients",
            "thalweg::cross_entropy_backward",
            "thalweg::cross_entropy_smoothed_backward",
            "thalweg::layer_norm_backward",
            "thalweg::layer_norm_backward_add",
            "thalweg::layer_norm_parameters_backward",
            "thalweg::rms_norm_affine_backward",
            "thalweg::rms_norm_backward",
            "thalweg::rms_norm_weight_backward",
        ],
    ),
    (
        "they take floats of 32 or 16 bits alone, or are called for 16 bits alone, and have tests of their own",
        &[
            "thalweg::convolution",
            "thalweg::fused_attention",
            "thalweg::mlp",
            "thalweg::packed_fused_attention",
            "thalweg::recurrent",
            "thalweg::select",
            "thalweg::wide_sum",
        ],
    ),
    (
        "they take complex numbers alone, which these samples have not, and have tests in Python",
        &["thalweg::eigenvalues_of_hermitian", "thalweg::hermitian"],
    ),
];

/// A function of tensors in f64, made from a sample.
struct Program<'a> {
    sample: &'a Json,
    calls: Vec<Json>,
    inputs: Vec<Tensor>,
    leaves: Vec<usize>,
    generator: Arc<DeviceGenerator>,
}

/// Replaces dtypes among arguments by the widest of their kind.
fn widened(json: &Json) -> Json {
    match json {
        Json::Array(items) => items.iter().map(widened).collect(),
        Json::Object(fields) => match fields.get("dtype").and_then(Json::as_str) {
            Some("float32") => json!({"dtype": "float64"}),
            Some("complex64") => json!({"dtype": "complex128"}),
            _ => fields.iter().map(|(name, field)| (name.clone(), widened(field))).collect(),
        },
        other => other.clone(),
    }
}

fn number(json: &Json) -> usize {
    json.as_u64().expect("a number") as usize
}

impl<'a> Program<'a> {
    fn new(file: &'a File, sample: &'a Json) -> Result<Self, String> {
        let mut inputs = Inputs::wide(file);
        Ok(Self {
            sample,
            calls: list(&sample["calls"]).iter().map(widened).collect(),
            inputs: list(&sample["inputs"])
                .iter()
                .map(|index| inputs.make(index))
                .collect::<Result<_, _>>()?,
            leaves: list(&sample["leaves"]).iter().map(number).collect(),
            generator: Arc::new(DeviceGenerator::new(0, &device()).map_err(text)?),
        })
    }

    fn points(&self) -> Vec<Tensor> {
        self.leaves.iter().map(|&leaf| self.inputs[leaf].clone()).collect()
    }

    /// Computes the results that have a gradient, from the leaves. Random numbers are the same ones each time.
    fn outputs(&self, leaves: &[Tensor], prepared: &[(usize, Preparation)]) -> Result<Vec<Tensor>, String> {
        let mut inputs = self.inputs.clone();
        for (place, (&input, leaf)) in self.leaves.iter().zip(leaves).enumerate() {
            let preparation = prepared.iter().find(|(at, _)| *at == place);
            inputs[input] = match preparation {
                Some((_, preparation)) => {
                    self.prepare(leaf, &self.inputs[input], *preparation).map_err(text)?
                }
                None => leaf.clone(),
            };
        }
        self.generator.manual_seed(7).map_err(text)?;
        let mut machine = Machine::new(&inputs);
        with_generator(&self.generator, || machine.run(&self.calls)).map_err(Stop::into_message)?;
        let roots = list(&self.sample["roots"]).iter();
        roots.map(|root| machine.tensor(&self.sample["outputs"][number(root)][0]).cloned()).collect()
    }

    fn prepare(
        &self,
        leaf: &Tensor,
        origin: &Tensor,
        preparation: Preparation,
    ) -> thalweg_runtime::Result<Tensor> {
        let is_upper = self.calls[0][1]["upper"] == Json::Bool(true);
        match preparation {
            Preparation::Hermitian => leaf.add(&leaf.transpose(-2, -1)?.conj()?)?.mul_scalar(0.5),
            Preparation::Triangle if is_upper => leaf.triu(0),
            Preparation::Triangle => leaf.tril(0),
            Preparation::LogSoftmax => leaf.log_softmax(-1),
            Preparation::Fixed => Ok(origin.clone()),
        }
    }
}

/// The numbers of samples whose derivatives agree, do not exist, or differ.
#[derive(Default)]
struct Tally {
    /// The functions.
    of: usize,
    /// The functions whose gradients agree, and those whose gradients of gradients agree.
    agree: [usize; 2],
    /// The reasons why others do not agree.
    differ: Vec<String>,
}

impl Tally {
    fn count(&mut self, order: usize, run: impl FnOnce() -> Result<Derivative, String>) -> bool {
        match catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("panics".to_owned())) {
            Ok(Derivative::Agrees) => {
                self.agree[order - 1] += 1;
                return true;
            }
            Ok(Derivative::Missing) => {}
            Ok(Derivative::Differs(reason)) | Err(reason) => {
                self.differ.push(format!("order {order}: {reason}"));
            }
        }
        false
    }

    /// Checks a function, and its gradients where they are `smooth`.
    fn check(&mut self, points: &[Tensor], is_smooth: bool, outputs: &Function<'_>) {
        self.of += 1;
        if self.count(1, || first_order(outputs, points)) && is_smooth {
            self.count(2, || second_order(outputs, points));
        }
    }
}

/// The outcome of the functions of one name.
struct Score {
    name: String,
    tally: Tally,
    /// The names of [`PREPARED`] without which fewer samples agree.
    needed: BTreeSet<&'static str>,
}

/// Checks the samples of a file in the dtypes that have a wider one.
fn judge(path: &Path) -> Score {
    let file = File::read(path);
    let name = file.text("name");
    let mut score = Score { name: name.to_owned(), tally: Tally::default(), needed: BTreeSet::new() };
    for sample in list(&file.header["samples"]) {
        let text = |field: &str| sample[field].as_str().unwrap_or_default();
        let is_there = |call: &Json| call[0].as_str().is_some_and(|name| find_operator(name).is_ok());
        if sample["leaves"].is_null()
            || !matches!(text("dtype"), "float32" | "complex64")
            || !list(&sample["calls"]).iter().all(is_there)
        {
            continue;
        }
        let program = match Program::new(&file, sample) {
            Ok(program) => program,
            Err(reason) => {
                score.tally.differ.push(reason);
                continue;
            }
        };
        let label = format!("{name} {}", text("variant"));
        let entries = PREPARED.iter().filter(|(name, ..)| *name == label.trim_end());
        let prepared: Vec<_> = entries.clone().map(|&(_, leaf, preparation)| (leaf, preparation)).collect();
        let is_smooth = !sample["second"].is_null();
        let points = program.points();
        let before = score.tally.agree;
        score.tally.check(&points, is_smooth, &|leaves| program.outputs(leaves, &prepared));
        for (name, ..) in entries {
            let mut bare = Tally::default();
            bare.check(&points, is_smooth, &|leaves| program.outputs(leaves, &[]));
            if (0..2).any(|order| bare.agree[order] < score.tally.agree[order] - before[order]) {
                score.needed.insert(name);
            }
        }
    }
    score
}

thread_local! {
    /// The operators that this thread has called with a result that has a gradient.
    static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

fn note(call: &Call<'_>) -> thalweg_runtime::Result<Tensors> {
    let results = call.redispatch()?;
    if results.iter().any(Tensor::requires_grad) {
        REACHED.with_borrow_mut(|reached| reached.insert(call.operator.name()));
    }
    Ok(results)
}

/// Judges all files and the functions of `own.rs`, on one thread per core; also returns the operators that were reached.
fn judge_all() -> (Vec<Score>, BTreeSet<&'static str>) {
    let folders = ["goldens", "complex"].map(|name| table::folder().join(name));
    let files = Mutex::new(folders.iter().flat_map(|folder| super::files(folder)).collect::<Vec<_>>());
    let next = || files.lock().pop();
    let found = Mutex::new((own_scores(), REACHED.with_borrow_mut(std::mem::take)));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let _noted = IncludeKeyGuard::new(DispatchKey::User1);
                while let Some(path) = next() {
                    let score = judge(&path);
                    let mut found = found.lock();
                    found.0.push(score);
                    found.1.extend(REACHED.with_borrow_mut(std::mem::take));
                }
            });
        }
    });
    found.into_inner()
}

fn own_scores() -> Vec<Score> {
    let _noted = IncludeKeyGuard::new(DispatchKey::User1);
    let score = |function: &own::Function| {
        let mut tally = Tally::default();
        tally.check(&function.points(), function.is_smooth, &|leaves| {
            (function.outputs)(leaves).map_err(text)
        });
        Score { name: function.name.to_owned(), tally, needed: BTreeSet::new() }
    };
    own::FUNCTIONS.iter().map(score).collect()
}

/// Returns the operators that were not reached but that [`NOT_REACHED`] does not name, and those that it names but that were
/// reached.
fn not_as_named(reached: &BTreeSet<&str>) -> Vec<String> {
    let entries = thalweg_ops::elementwise().chain(thalweg_ops::parts());
    let table: BTreeSet<String> = entries.map(|entry| entry.operator_name()).collect();
    let excepted: BTreeSet<&str> = NOT_REACHED.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let is_missing = |operator: &Operator| {
        let parameters = &operator.schema().parameters;
        operator.records_gradient()
            && parameters.iter().any(|parameter| parameter.ty.kind == Kind::Tensor)
            && !reached.contains(operator.name())
            && !table.contains(operator.name())
    };
    // Other tests define operators of their own.
    let operators = operators().into_iter().filter(|operator| !operator.name().starts_with("test::"));
    let wrong = operators.filter(|operator| is_missing(operator) != excepted.contains(operator.name()));
    wrong
        .map(|operator| format!("{}: reached where NOT_REACHED names it, or neither", operator.name()))
        .collect()
}

#[test]
fn gradients_agree_with_differences() {
    let is_whole = std::env::var_os("THALWEG_OPINFO_ONLY").is_none();
    let _noting = register_fallback(DispatchKey::User1, Arc::new(note));
    let (scores, reached) = judge_all();
    let (mut by_name, mut needed) = (BTreeMap::<&str, Tally>::new(), BTreeSet::<&str>::new());
    for score in &scores {
        let tally = by_name.entry(&score.name).or_default();
        (0..2).for_each(|order| tally.agree[order] += score.tally.agree[order]);
        tally.of += score.tally.of;
        tally.differ.extend(score.tally.differ.iter().cloned());
        needed.extend(&score.needed);
    }
    let mut wrong = if is_whole { not_as_named(&reached) } else { Vec::new() };
    for (name, tally) in &by_name {
        let is_named = DIFFER.iter().any(|(named, _)| named == name);
        if tally.differ.is_empty() == is_named {
            wrong.push(format!(
                "{name} differs where DIFFER does not name it, or neither: {:?}",
                tally.differ
            ));
        }
        if tally.of > 0 && tally.agree[0] == 0 && !is_named {
            wrong.push(format!("{name} has no derivative that agrees"));
        }
    }
    let needless = PREPARED.iter().filter(|(name, ..)| is_whole && !needed.contains(name));
    wrong.extend(needless.map(|(name, ..)| format!("{name} needs no preparation")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let sum = |order: usize| by_name.values().map(|tally| tally.agree[order]).sum::<usize>();
    println!("{} gradients and {} gradients of gradients agree", sum(0), sum(1));
    assert!(!is_whole || sum(0) > 3400 && sum(1) > 2800);
}
