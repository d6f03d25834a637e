//! Compares one operator with its goldens: results, gradients, in-place and `out=` forms, and the inputs that PyTorch refuses.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value as Json, json};
use thalweg_ir::DType;
use thalweg_runtime::Label;
use thalweg_tensor::autograd::{BackwardOptions, gradients, gradients_with};
use thalweg_tensor::dispatch::{Argument, Operator, Value, find_operator};
use thalweg_tensor::{Tensor, no_grad};

use super::file::{File, Inputs, Row, list};
use super::numbers::{Numbers, Tolerance, compare, compare_with_row, pattern};
use super::program::{Machine, Stop};
use super::unspecified::{
    among_equals, gives_places_alone, has_eigenvalues, in_order, is_random, is_statistic,
    order_of_eigenvalues, places_agree, unordered_dimension,
};
use crate::support::{device, on_own_device};

/// Operators of which the layout decides whether they take a tensor.
const BY_LAYOUT: &[&str] = &["view", "view_as", "view_copy"];

/// The number of checks that hold, out of all.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    /// The number of checks that hold.
    pub held: usize,
    /// The number of all checks.
    pub of: usize,
}

/// The score of one operator: its samples that agree, and the others by reason.
#[derive(Default)]
pub struct Score {
    /// OpInfo's name.
    pub name: String,
    /// Whether it belongs to Core ATen.
    pub is_core: bool,
    /// The dtypes of its samples.
    pub dtypes: BTreeSet<String>,
    /// Overloads that do not exist here.
    pub missing: BTreeSet<String>,
    /// Samples whose results agree, as they are stored and with gaps between elements.
    pub forward: Tally,
    /// Samples whose results have PyTorch's strides.
    pub strides: Tally,
    /// Samples whose gradients agree.
    pub backward: Tally,
    /// Samples whose gradients of gradients agree.
    pub double_backward: Tally,
    /// Samples whose results agree when they are computed in place.
    pub in_place: Tally,
    /// Samples whose results agree when they are written to given tensors.
    pub out: Tally,
    /// Inputs that are refused as in PyTorch.
    pub errors: Tally,
    /// Refusals whose message contains the text that OpInfo expects.
    pub words: Tally,
    /// The first failed checks.
    pub failures: Vec<String>,
    /// The first failed checks that do not decide whether the operator passes: gradients of gradients, in-place and `out=` forms.
    pub others: Vec<String>,
}

impl Score {
    /// Returns whether everything exists and agrees. Gradients of gradients, in-place and `out=` forms are counted separately.
    pub fn passes(&self) -> bool {
        self.missing.is_empty() && self.failures.is_empty() && self.forward.of > 0
    }

    fn note(&mut self, what: &str, sample: &Json, result: Result<(), String>) -> bool {
        note(&mut self.failures, what, sample, result)
    }

    fn note_other(&mut self, what: &str, sample: &Json, result: Result<(), String>) -> bool {
        note(&mut self.others, what, sample, result)
    }
}

/// Keeps the first failures; returns whether there is no failure.
fn note(failures: &mut Vec<String>, what: &str, sample: &Json, result: Result<(), String>) -> bool {
    let Err(reason) = result else { return true };
    if failures.len() < 5 {
        let text = |field: &str| sample[field].as_str().unwrap_or_default();
        failures.push(format!("{what} {} {} {}: {reason}", text("variant"), text("dtype"), sample["calls"]));
    }
    false
}

/// Runs a function that may panic; a panic counts as a failure.
fn guarded(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panics: {}", text.or(panic.downcast_ref().copied()).unwrap_or("without words")))
    })
}

/// Compares an operator with a file.
pub fn judge(file: &File) -> Score {
    let mut score = Score {
        name: file.text("name").into(),
        is_core: file.header["core"] == Json::Bool(true),
        ..Score::default()
    };
    let samples = list(&file.header["samples"]);
    let errors = list(&file.header["errors"]);
    for sample in samples.iter().chain(errors) {
        let names = list(&sample["calls"]).iter().filter_map(|call| call[0].as_str());
        score.missing.extend(names.filter(|name| find_operator(name).is_err()).map(str::to_owned));
        score.dtypes.extend(sample["dtype"].as_str().map(str::to_owned));
    }
    if !score.missing.is_empty() {
        return score;
    }
    for (index, sample) in samples.iter().enumerate() {
        let judged = Judged { file, sample };
        let mut strides = Ok(());
        let forward = guarded(|| judged.forward(false, &mut strides));
        score.forward.of += 1;
        score.forward.held += usize::from(score.note("forward", sample, forward));
        score.strides.of += 1;
        score.strides.held += usize::from(score.note_other("strides", sample, strides));
        if sample["strided"] == Json::Bool(true) {
            let strided = guarded(|| judged.forward(true, &mut Ok(())));
            score.forward.of += 1;
            score.forward.held += usize::from(score.note("with gaps", sample, strided));
        }
        if !sample["leaves"].is_null() && !is_random(sample) {
            let backward = guarded(|| judged.backward(false));
            score.backward.of += 1;
            score.backward.held += usize::from(score.note("backward", sample, backward));
            let is_drawn = index % 3 == 0 && sample["strided"] == Json::Bool(true);
            if is_drawn && !BY_LAYOUT.contains(&score.name.as_str()) {
                let backward = guarded(|| judged.backward(true));
                _ = score.note("backward of another layout", sample, backward);
            }
        }
        if !sample["second"].is_null() && !is_random(sample) {
            let twice = guarded(|| judged.double_backward());
            score.double_backward.of += 1;
            score.double_backward.held += usize::from(score.note_other("double backward", sample, twice));
        }
        forms(&judged, &mut score);
    }
    for error in errors {
        let judged = Judged { file, sample: error };
        // An input that cannot be expressed here cannot be accepted.
        let mut message = Some(String::new());
        let refused = guarded(|| on_own_device(|| judged.refuses()).map(|text| message = text));
        if let Some(message) = message {
            score.errors.of += 1;
            score.errors.held += usize::from(score.note("error input", error, refused));
            // OpInfo expects no message for some refusals.
            if let Some(words) = error["matched"].as_str() {
                score.words.of += 1;
                score.words.held += usize::from(message.contains(words));
            }
        }
    }
    score
}

/// Counts the in-place and `out=` forms of a sample of one call.
fn forms(judged: &Judged<'_>, score: &mut Score) {
    let [call] = list(&judged.sample["calls"]) else { return };
    if is_random(judged.sample) {
        return;
    }
    let form = |kind: &str| {
        let name = judged.file.header["forms"][call[0].as_str().unwrap_or_default()][kind].as_str()?;
        (judged.file.header[kind] == Json::Bool(true)).then_some(name)
    };
    if let Some(name) = form("inplace")
        && judged.may_be_in_place(call)
    {
        score.in_place.of += 1;
        score.in_place.held +=
            usize::from(score.note_other("in place", judged.sample, guarded(|| judged.in_place(name, call))));
    }
    if form("out").is_some() {
        score.out.of += 1;
        score.out.held += usize::from(score.note_other("out=", judged.sample, guarded(|| judged.out(call))));
    }
}

/// The leaves of a program that was run, its results that have a gradient, and their gradients.
struct Rooted {
    leaves: Vec<Tensor>,
    outputs: Vec<Tensor>,
    cotangents: Vec<Tensor>,
}

/// Returns a tensor of the same elements that is a view of a leaf: its dimensions are in another order, with gaps, after an odd number of
/// elements.
fn laid_out(tensor: &Tensor, salt: usize) -> Result<Tensor, thalweg_runtime::Error> {
    let tensor = tensor.detach();
    if tensor.elements() == 0 {
        return tensor.requires_grad_();
    }
    let rank = tensor.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    match salt % 3 {
        0 => order.reverse(),
        1 if rank > 1 => order.swap(rank - 2, rank - 1),
        _ if rank > 2 => order[1..].rotate_left(1),
        _ => {}
    }
    let mut inverse = vec![0; rank];
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    let turned = tensor.permute(&order)?.unsqueeze(rank as i64)?;
    let memory = Tensor::cat(&[turned.clone(), turned.clone(), turned], rank as i64)?;
    let leaf = memory.detach().requires_grad_()?;
    leaf.select(rank as i64, 1)?.permute(&inverse)
}

/// A sample with its file.
struct Judged<'a> {
    file: &'a File,
    sample: &'a Json,
}

impl Judged<'_> {
    fn inputs(&self, is_strided: bool) -> Result<Vec<Tensor>, String> {
        let mut inputs = Inputs::new(self.file, is_strided);
        list(&self.sample["inputs"]).iter().map(|index| inputs.make(index)).collect()
    }

    fn tolerance(&self, dtype: &str) -> Tolerance {
        let variant = self.sample["variant"].as_str().unwrap_or_default();
        let of_variant = &self.file.header["tolerances"][variant];
        let pair = match (&of_variant[dtype], dtype) {
            // A complex result of a real sample: PyTorch's default is that of the parts.
            (Json::Null, "complex64") => &of_variant["float32"],
            (pair, _) => pair,
        };
        let number = |index: usize, default: f64| pair[index].as_f64().unwrap_or(default);
        Tolerance { relative: number(0, 1e-7), absolute: number(1, 1e-7) }
    }

    /// Compares a result, by the tolerance of its dtype and no less than that of the sample's. `exact` is its row in f64, or null.
    fn agrees(&self, found: &Tensor, row: &Json, exact: &Json) -> Result<(), String> {
        self.agrees_within(found, row, exact, |tolerance, _| tolerance)
    }

    /// Compares a gradient. Its sums cancel, so an element can be no closer than a few roundings of the largest number: two units of
    /// the last place for complex samples, whose transforms add many terms. For 16-bit floats OpInfo has no tolerance, so that the
    /// largest number determines the tolerance of the others.
    fn gradient_agrees(&self, found: &Tensor, row: &Json, exact: &Json) -> Result<(), String> {
        self.agrees_within(found, row, exact, |tolerance, row| {
            let share = match row.dtype {
                "float16" | "bfloat16" => tolerance.relative,
                "complex64" => 2.0 * f64::from(f32::EPSILON),
                _ => 0.0,
            };
            let largest = Numbers::of_row(self.file, row).map_or(0.0, |numbers| numbers.largest());
            Tolerance { absolute: tolerance.absolute + share * largest, ..tolerance }
        })
    }

    fn agrees_within(
        &self,
        found: &Tensor,
        row: &Json,
        exact: &Json,
        widen: impl FnOnce(Tolerance, &Row<'_>) -> Tolerance,
    ) -> Result<(), String> {
        let mut row = self.file.row(row);
        if is_random(self.sample) {
            row.storage = None;
        }
        let exact = (!exact.is_null()).then(|| self.file.row(exact));
        let of_sample = self.tolerance(self.sample["dtype"].as_str().unwrap_or_default());
        let own = self.tolerance(row.dtype);
        let tolerance = Tolerance {
            relative: own.relative.max(of_sample.relative),
            absolute: own.absolute.max(of_sample.absolute),
        };
        compare_with_row(found, self.file, &row, exact.as_ref(), widen(tolerance, &row))
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Machine, Stop> {
        let mut machine = Machine::new(inputs);
        machine.run(list(&self.sample["calls"]))?;
        Ok(machine)
    }

    /// Compares the results, the inputs afterwards, and shared storage; and, separately, the strides.
    fn forward(&self, is_strided: bool, strides: &mut Result<(), String>) -> Result<(), String> {
        let inputs = self.inputs(is_strided)?;
        let machine = no_grad(|| self.run(&inputs)).map_err(Stop::into_message)?;
        let mut outputs = Vec::new();
        for (index, output) in list(&self.sample["outputs"]).iter().enumerate() {
            let found = machine.tensor(&output[0])?;
            let values = machine.tensor(&list(&self.sample["outputs"])[0][0])?;
            if strides.is_ok() {
                *strides = self.strides_agree(index, found, &self.file.row(&output[1]));
            }
            self.output_agrees(&machine, index, [found, values], output)
                .map_err(|reason| format!("output {index}: {reason}"))?;
            outputs.push(found);
        }
        for pair in list(&self.sample["mutated"]) {
            let index = pair[0].as_u64().expect("an input's number") as usize;
            self.agrees(&inputs[index], &pair[1], &Json::Null)
                .map_err(|reason| format!("input {index} afterwards: {reason}"))?;
        }
        if is_strided {
            return Ok(());
        }
        for (i, output) in outputs.iter().enumerate() {
            for (j, input) in inputs.iter().enumerate() {
                // Inputs of the same bytes are one storage in the file, so that one's alias is the other's.
                let storage = |input: usize| self.file.row(&self.sample["inputs"][input]).storage;
                let is_shared = list(&self.sample["aliases"]).iter().any(|pair| {
                    pair[0].as_u64() == Some(i as u64)
                        && pair[1].as_u64().is_some_and(|input| storage(input as usize) == storage(j))
                });
                if output.elements() > 0 && output.shares_storage_with(input) != is_shared {
                    let verb = if is_shared { "does not share" } else { "shares" };
                    return Err(format!("output {i} {verb} the storage of input {j}"));
                }
            }
        }
        Ok(())
    }

    /// Compares the strides of a result, of dimensions with several elements.
    fn strides_agree(&self, index: usize, found: &Tensor, row: &Row<'_>) -> Result<(), String> {
        let strides = found.layout().strides();
        let differs = |dim: usize| row.shape[dim] > 1 && strides.get(dim) != Some(&row.strides[dim]);
        if found.elements() == 0 || !(0..row.shape.len()).any(differs) {
            return Ok(());
        }
        let expected = &row.strides;
        Err(format!("output {index} of {:?} has strides {strides:?}, PyTorch's {expected:?}", row.shape))
    }

    /// Compares a result of the program; values that PyTorch leaves unspecified are checked with the first result.
    fn output_agrees(
        &self,
        machine: &Machine,
        index: usize,
        [found, values]: [&Tensor; 2],
        output: &Json,
    ) -> Result<(), String> {
        let row = self.file.row(&output[1]);
        let exact = &self.sample["exact"]["outputs"][index];
        if is_statistic(self.sample, index) && found.dtype() == DType::F32 && row.dtype != "float32" {
            let dtype = row.dtype.parse().map_err(|_| format!("dtype {} does not exist", row.dtype))?;
            let narrow = found.to_dtype(dtype).map_err(|error| error.to_string())?;
            return self.agrees(&narrow, &output[1], exact);
        }
        let input = machine.tensor(&self.sample["calls"][0][1]["self"]["t"]);
        let is_alone = gives_places_alone(self.sample);
        if let (true, Ok(input)) = (index == 1 || is_alone, input)
            && let Some(dimension) = unordered_dimension(self.sample, input.rank())
        {
            let expected;
            let values = match is_alone {
                true => {
                    expected = self.at_places(input, &row, dimension)?;
                    &expected
                }
                false => values,
            };
            if found.dtype() != DType::I64 || found.shape() != row.shape {
                return Err(format!("places are {found:?}"));
            }
            return places_agree(input, found, values, dimension);
        }
        match self.order(values)? {
            Some(order) => self.agrees(&in_order(found, &order)?, &output[1], exact),
            None => self.agrees(found, &output[1], exact),
        }
    }

    /// Returns the order in which results are compared, by the first one, if PyTorch returns them in no order.
    fn order(&self, first: &Tensor) -> Result<Option<Tensor>, String> {
        if !has_eigenvalues(self.sample) || first.elements() == 0 {
            return Ok(None);
        }
        let row = self.file.row(&list(&self.sample["outputs"])[0][1]);
        let expected = Numbers::of_row(self.file, &row).ok_or("there are no eigenvalues to compare with")?;
        order_of_eigenvalues(first, &expected).map(Some)
    }

    /// Returns the elements of an input at PyTorch's indices along a dimension.
    fn at_places(&self, input: &Tensor, places: &Row<'_>, dimension: usize) -> Result<Tensor, String> {
        let Some(Numbers::Integers(list)) = Numbers::of_row(self.file, places) else {
            return Err("places are not integers".to_owned());
        };
        Tensor::from_slice(&list, &places.shape, input.device())
            .and_then(|places| input.gather(dimension as i64, &places))
            .map_err(|error| error.to_string())
    }

    /// Runs the program with leaves that require a gradient.
    fn rooted(&self, is_laid_out: bool) -> Result<Rooted, String> {
        let mut inputs = self.inputs(false)?;
        let number = |json: &Json| json.as_u64().expect("a number") as usize;
        let leaves: Vec<usize> = list(&self.sample["leaves"]).iter().map(number).collect();
        for &leaf in &leaves {
            let made = match is_laid_out {
                true => laid_out(&inputs[leaf], leaf + inputs.len()),
                false => inputs[leaf].requires_grad_(),
            };
            inputs[leaf] = made.map_err(|error| error.to_string())?;
        }
        let machine = self.run(&inputs).map_err(Stop::into_message)?;
        let leaves = leaves.iter().map(|&leaf| inputs[leaf].clone()).collect();
        let mut rooted = Rooted { leaves, outputs: Vec::new(), cotangents: Vec::new() };
        for index in list(&self.sample["roots"]).iter().map(number) {
            let output = machine.tensor(&self.sample["outputs"][index][0])?;
            if !output.requires_grad() {
                return Err(format!("output {index} requires no gradient"));
            }
            let output = match self.order(machine.tensor(&self.sample["outputs"][0][0])?)? {
                Some(order) => in_order(output, &order)?,
                None => output.clone(),
            };
            rooted.cotangents.push(pattern(output.shape(), output.dtype(), index));
            rooted.outputs.push(output);
        }
        Ok(rooted)
    }

    /// Compares the gradients of the leaves.
    fn backward(&self, is_laid_out: bool) -> Result<(), String> {
        let Rooted { leaves, outputs, cotangents } = self.rooted(is_laid_out)?;
        let cotangents: Vec<Option<Tensor>> = cotangents.into_iter().map(Some).collect();
        let found = gradients(&outputs, &cotangents, &leaves).map_err(|error| error.to_string())?;
        if let ([leaf], [Some(found)]) = (leaves.as_slice(), found.as_slice())
            && let Some(dimension) = unordered_dimension(self.sample, leaf.rank())
        {
            let expected = Numbers::of_row(self.file, &self.file.row(&self.sample["gradients"][0]));
            let expected =
                among_equals(leaf, expected.ok_or("there is no gradient to compare with")?, dimension)?;
            let found = among_equals(leaf, Numbers::of_tensor(found)?, dimension)?;
            return compare(&found, &expected, None, self.tolerance("float32"));
        }
        self.gradients_agree(&found, &self.sample["gradients"], &self.sample["exact"]["gradients"])
    }

    /// Compares the gradients of the gradients, for leaves and cotangents.
    fn double_backward(&self) -> Result<(), String> {
        let Rooted { leaves, outputs, cotangents } = self.rooted(false)?;
        let text = |error: thalweg_runtime::Error| error.to_string();
        let cotangents: Vec<Tensor> =
            cotangents.iter().map(Tensor::requires_grad_).collect::<Result<_, _>>().map_err(text)?;
        let given: Vec<Option<Tensor>> = cotangents.iter().cloned().map(Some).collect();
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let first = gradients_with(&outputs, &given, &leaves, options).map_err(text)?;
        let (mut roots, mut directions) = (Vec::new(), Vec::new());
        for (index, gradient) in first.into_iter().enumerate() {
            if let Some(gradient) = gradient.filter(Tensor::requires_grad) {
                directions.push(Some(pattern(gradient.shape(), gradient.dtype(), 100 + index)));
                roots.push(gradient);
            }
        }
        let wanted: Vec<Tensor> = leaves.iter().chain(&cotangents).cloned().collect();
        let found = gradients(&roots, &directions, &wanted).map_err(text)?;
        let (of_leaves, of_cotangents) = found.split_at(leaves.len());
        let second = &self.sample["second"];
        let exact = &self.sample["exact"]["second"];
        self.gradients_agree(of_leaves, &second["inputs"], &exact["inputs"])?;
        self.gradients_agree(of_cotangents, &second["cotangents"], &exact["cotangents"])
            .map_err(|reason| format!("of cotangents: {reason}"))
    }

    /// Compares gradients with rows; a missing one counts as zeros.
    fn gradients_agree(&self, found: &[Option<Tensor>], expected: &Json, exact: &Json) -> Result<(), String> {
        for (place, (found, row)) in found.iter().zip(list(expected)).enumerate() {
            let result = match (found, row) {
                (None, Json::Null) => Ok(()),
                (Some(found), Json::Null) if Numbers::of_tensor(found)?.are_zero() => Ok(()),
                (Some(_), Json::Null) => Err("there is one, in PyTorch none".to_owned()),
                (None, row) => match Numbers::of_row(self.file, &self.file.row(row)) {
                    Some(numbers) if numbers.are_zero() => Ok(()),
                    _ => Err("there is none".to_owned()),
                },
                (Some(found), row) => self.gradient_agrees(found, row, &exact[place]),
            };
            result.map_err(|reason| format!("gradient {place}: {reason}"))?;
        }
        Ok(())
    }

    /// Returns whether the result has the shape and dtype of the first argument.
    fn may_be_in_place(&self, call: &Json) -> bool {
        let Some(this) = call[1]["self"]["t"].as_u64() else { return false };
        let own = self.file.row(&self.sample["inputs"][this as usize]);
        let [output] = list(&self.sample["outputs"]) else { return false };
        let result = self.file.row(&output[1]);
        // Inputs whose elements share memory cannot be written.
        let is_whole = own.strides.iter().zip(&own.shape).all(|(&stride, &size)| stride > 0 || size <= 1);
        is_whole && own.dtype == result.dtype && own.shape == result.shape
    }

    fn in_place(&self, name: &str, call: &Json) -> Result<(), String> {
        let inputs = self.inputs(false)?;
        let mut machine = Machine::new(&inputs);
        let calls = [json!([name, call[1], call[2]])];
        no_grad(|| machine.run(&calls)).map_err(Stop::into_message)?;
        let this = machine.tensor(&call[1]["self"]["t"])?;
        self.agrees(this, &self.sample["outputs"][0][1], &self.sample["exact"]["outputs"][0])
    }

    fn out(&self, call: &Json) -> Result<(), String> {
        let machine = Machine::new(&self.inputs(false)?);
        let name = call[0].as_str().expect("an overload's name");
        let (operator, values) = machine.bind(name, &call[1]).map_err(Stop::into_message)?;
        let arguments: Vec<Argument<'_>> = values.iter().map(Value::as_argument).collect();
        let text = |error: thalweg_runtime::Error| error.to_string();
        // A sample may leave results of its call out; they are written into tensors of their shape.
        let results =
            no_grad(|| operator.call(&arguments, Some(&device()), Label::here("out"))).map_err(text)?;
        let outputs = list(&self.sample["outputs"]);
        // A list of results is one number of the call.
        let numbers: Vec<&Json> = match list(&call[2]) {
            [Json::Array(numbers)] => numbers.iter().collect(),
            numbers => numbers.iter().collect(),
        };
        let place = |output: &Json| numbers.iter().position(|&number| *number == output[0]);
        let mut given = Vec::new();
        for (index, result) in results.iter().enumerate() {
            let row = outputs.iter().find(|output| place(output) == Some(index));
            let (shape, dtype) = match row.map(|output| self.file.row(&output[1])) {
                Some(row) => {
                    let dtype =
                        row.dtype.parse().map_err(|_| format!("dtype {} does not exist", row.dtype))?;
                    (row.shape, dtype)
                }
                None => (result.shape().to_vec(), result.dtype()),
            };
            given.push(Tensor::empty(&shape, dtype, &device()).map_err(text)?);
        }
        self.written(&machine, (operator, &arguments), &given, &place)?;
        let empty = |given: &Tensor| Tensor::empty(&[0], given.dtype(), &device());
        let empty: Vec<Tensor> = given.iter().map(empty).collect::<Result<_, _>>().map_err(text)?;
        self.written(&machine, (operator, &arguments), &empty, &place)
            .map_err(|reason| format!("into what has no elements: {reason}"))
    }

    /// Compares the results that a call writes into given tensors; `place` finds the tensor of an output.
    fn written(
        &self,
        machine: &Machine,
        (operator, arguments): (&'static Operator, &[Argument<'_>]),
        given: &[Tensor],
        place: &dyn Fn(&Json) -> Option<usize>,
    ) -> Result<(), String> {
        no_grad(|| operator.call_out(arguments, given)).map_err(|error| error.to_string())?;
        for (index, output) in list(&self.sample["outputs"]).iter().enumerate() {
            let found = &given[place(output).ok_or("an output that is not a result of the call")?];
            self.output_agrees(machine, index, [found, &given[0]], output)?;
        }
        Ok(())
    }

    /// Returns the message with which the last call is refused; `None` if the call cannot be expressed here.
    fn refuses(&self) -> Result<Option<String>, String> {
        let Ok(inputs) = self.inputs(false) else { return Ok(None) };
        match self.run(&inputs) {
            // Errors that only the device detects are reported at the next wait.
            Ok(_) => match device().synchronize() {
                Err(error) if error.is_out_of_range() => Ok(Some(error.to_string())),
                _ => Err(format!("accepted; PyTorch says: {}", self.sample["message"])),
            },
            Err(Stop::Inexpressible(_)) => Ok(None),
            Err(Stop::Refused { in_last_call: false, message, .. }) => {
                Err(format!("refused too early: {message}"))
            }
            Err(Stop::Refused { is_invalid_argument: false, message, .. }) => {
                Err(format!("not refused as an invalid argument: {message}"))
            }
            Err(Stop::Refused { message, .. }) => Ok(Some(message)),
        }
    }
}
