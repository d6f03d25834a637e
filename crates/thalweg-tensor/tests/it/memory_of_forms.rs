//! The memory that in-place and `out=` forms take in addition to the tensors that they write: none, except for the operators of a
//! list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use thalweg_ops::schema::{Kind, Parameter};
use thalweg_runtime::{Device, Label, Result};
use thalweg_tensor::dispatch::{Argument, Operator, Value, find_operator, operators};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{device, on_own_device};

/// The in-place forms of PyTorch 2.11, by `make_forms.py`.
const IN_PLACE: &str = include_str!("../goldens/forms_in_place.txt");

/// The memory that PyTorch takes for the forms of the list, by `make_memory.py`, where it has them.
const IN_PYTORCH: &str = include_str!("../goldens/memory_in_pytorch.txt");

/// The forms that take memory and that PyTorch computes in none on the CPU, by how their names begin, and why.
const REASONS: [(&[&str], &str); 6] = [
    (&["put", "take"], "the indices as numbers from 0 on, checked"),
    (&["masked_scatter_"], "the places of the mask, for which PyTorch takes running sums on a GPU"),
    (
        &["nonzero"],
        "the coordinates in PyTorch's order, which it copies on a GPU too where the tensor is contiguous",
    ),
    (&["polar"], "both parts, before they are side by side"),
    (&["frexp"], "the exponents as floats, converted afterwards"),
    (&["linalg_solve_triangular"], "matrices of f64, in which they are solved"),
];

/// The extent of both dimensions of the operands.
const EXTENT: usize = 64;

/// The tensors from which arguments are made.
struct Operands {
    /// Numbers in (0, 1).
    numbers: [Tensor; 3],
    index: Tensor,
    row: Tensor,
    mask: Tensor,
}

impl Operands {
    fn new(device: &Device) -> Result<Self> {
        let count = EXTENT * EXTENT;
        let number = |seed: usize| {
            let values: Vec<f32> =
                (0..count).map(|at| ((at * 7 + seed) % 97) as f32 / 100.0 + 0.01).collect();
            Tensor::from_slice(&values, &[EXTENT, EXTENT], device)
        };
        let places: Vec<i64> = (0..count as i64).map(|at| at * 5 % EXTENT as i64).collect();
        let index = Tensor::from_slice(&places, &[EXTENT, EXTENT], device)?;
        let row = Tensor::from_slice(&places[..EXTENT], &[EXTENT], device)?;
        let numbers = [number(1)?, number(2)?, number(3)?];
        let mask = numbers[0].gt_scalar(0.5)?;
        Ok(Self { numbers, index, row, mask })
    }

    /// Returns an argument for a parameter, or `None` if its default is used.
    fn argument(&self, place: usize, parameter: &Parameter, is_row: bool) -> Option<Value> {
        let (name, ty) = (parameter.name.as_str(), &parameter.ty);
        if parameter.default.is_some() {
            return None;
        }
        Some(match (ty.kind, ty.list) {
            (Kind::Tensor, true) if ty.optional_elements => {
                Value::OptionalTensors(vec![Some(self.row.clone())])
            }
            (Kind::Tensor, true) => Value::Tensors(self.numbers.to_vec()),
            (Kind::Tensor, false) if name.starts_with("ind") && is_row => Value::Tensor(self.row.clone()),
            (Kind::Tensor, false) if name.starts_with("ind") => Value::Tensor(self.index.clone()),
            (Kind::Tensor, false) if ["mask", "condition"].contains(&name) => {
                Value::Tensor(self.mask.clone())
            }
            (Kind::Tensor, false) if name.starts_with("vec") => {
                let row = self.numbers[place % 3].narrow(0, 0, 1).and_then(|row| row.reshape(&[EXTENT]));
                Value::Tensor(row.expect("a row"))
            }
            (Kind::Tensor, false) if name.starts_with("batch") => {
                Value::Tensor(self.numbers[place % 3].unsqueeze(0).expect("a batch"))
            }
            (Kind::Tensor, false) => Value::Tensor(self.numbers[place % 3].clone()),
            (Kind::Scalar | Kind::Float, false) => Value::Float(0.5),
            (Kind::Int, true) if name.contains("dim") => Value::Ints(vec![1]),
            (Kind::Int, true) => Value::Ints(vec![EXTENT as i64; 2]),
            (Kind::Int, false) if ["n", "m"].contains(&name) => Value::Int(EXTENT as i64),
            (Kind::Int, false) => Value::Int(1),
            (Kind::Bool, false) => Value::Bool(false),
            _ => Value::None,
        })
    }

    /// Returns arguments of a call, with a copy of the first tensor.
    fn arguments(&self, operator: &Operator, is_row: bool) -> Result<Vec<Value>> {
        let parameters = &operator.schema().parameters;
        let count = parameters.iter().rposition(|parameter| parameter.default.is_none());
        let mut values: Vec<Value> = parameters[..count.map_or(0, |last| last + 1)]
            .iter()
            .enumerate()
            .map(|(place, parameter)| self.argument(place, parameter, is_row).unwrap_or(Value::None))
            .collect();
        if let Some(Value::Tensor(first)) = values.first_mut() {
            *first = first.deep_clone()?;
        }
        Ok(values)
    }
}

/// Returns the peak memory of a second call, relative to the bytes that it writes.
fn taken(device: &Device, written_bytes: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    device.synchronize()?;
    device.allocator().reset_peak_memory_stats();
    let before = device.allocator().statistics().allocated_bytes.all.current;
    call()?;
    device.synchronize()?;
    let peak = device.allocator().statistics().allocated_bytes.all.peak;
    Ok((peak - before) as f64 / written_bytes as f64)
}

fn bytes(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.elements() * tensor.dtype().size_bytes()).sum()
}

/// Returns the memory of an operator's forms, by name, if a call can be made with the operands.
fn forms(operands: &Operands, operator: &'static Operator, found: &mut BTreeMap<String, f64>) -> Result<()> {
    let label = Label::here("memory");
    for is_row in [false, true] {
        let values = operands.arguments(operator, is_row)?;
        let arguments: Vec<Argument<'_>> = values.iter().map(Value::as_argument).collect();
        let Ok(results) = operator.call(&arguments, Some(&device()), label) else { continue };
        if operator.schema().is_mutable() {
            let share =
                taken(&device(), bytes(&results), || operator.call(&arguments, None, label).map(drop))?;
            found.insert(operator.name().into(), share);
            return Ok(());
        }
        let is_list = operator.schema().returns.iter().any(|result| result.list || result.alias.is_some());
        if is_list || bytes(&results) < 1 << 12 {
            return Ok(());
        }
        let out: Vec<Tensor> = (results.iter())
            .map(|result| Tensor::empty(result.shape(), result.dtype(), &device()))
            .collect::<Result<_>>()?;
        drop(results);
        if let Ok(share) = taken(&device(), bytes(&out), || operator.call_out(&arguments, &out)) {
            found.insert(format!("{} out=", operator.name()), share);
        }
        let is_pytorchs = |name: &str| IN_PLACE.lines().any(|known| known == name);
        let in_place = operator
            .in_place_schema()
            .filter(|schema| is_pytorchs(&schema.name))
            .map(|schema| find_operator(&schema.name))
            .transpose()?;
        if let Some(in_place) = in_place
            && let Ok(share) =
                taken(&device(), bytes(&out), || in_place.call(&arguments, None, label).map(drop))
        {
            found.insert(in_place.name().into(), share);
        }
        return Ok(());
    }
    Ok(())
}

/// Returns the list of the forms that take memory.
fn list() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/memory_of_forms.txt")
}

/// After a change: `THALWEG_MEMORY_WRITE=1 cargo test -p thalweg-tensor --test it memory_of_forms` writes the list anew;
/// then `make_memory.py` measures PyTorch.
#[test]
fn forms_take_no_memory_but_those_of_a_list() {
    let found = on_own_device(|| {
        no_grad(|| {
            let operands = Operands::new(&device()).unwrap();
            let mut found = BTreeMap::new();
            // Forms that another test has requested are operators by then; they are measured with their operators.
            let derived: BTreeSet<String> = operators()
                .iter()
                .filter_map(|operator| {
                    let named = operator.in_place_schema()?.name.to_string();
                    let (base, overload) = operator.name().split_once('.').unwrap_or((operator.name(), ""));
                    let dot = if overload.is_empty() { "" } else { "." };
                    Some([named, format!("{base}_{dot}{overload}")])
                })
                .flatten()
                .collect();
            for operator in operators() {
                let is_own = !derived.contains(operator.name());
                if is_own && !operator.name().contains("::") && !operator.name().starts_with('_') {
                    forms(&operands, operator, &mut found)
                        .unwrap_or_else(|error| panic!("{}: {error}", operator.name()));
                }
            }
            found
        })
    });
    let (free, taking): (BTreeMap<_, _>, BTreeMap<_, _>) =
        found.into_iter().partition(|(_, share)| *share < 0.2);
    println!("{} forms take nothing, {} take memory", free.len(), taking.len());
    let mut text = String::new();
    for (name, share) in &taking {
        _ = writeln!(text, "{name}: {share:.2}");
    }
    if std::env::var_os("THALWEG_MEMORY_WRITE").is_some() {
        std::fs::write(list(), text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(list()).unwrap();
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    assert_eq!(lines(&text), lines(&expected));
    let takes_in_pytorch = |name: &str| {
        let share = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(": ")?.parse::<f64>().unwrap());
        IN_PYTORCH.lines().find_map(share).is_none_or(|share| share >= 0.2)
    };
    let has_reason = |name: &str| {
        takes_in_pytorch(name)
            || REASONS.iter().any(|(begin, _)| begin.iter().any(|begin| name.starts_with(begin)))
    };
    let without: Vec<&String> = taking.keys().filter(|name| !has_reason(name)).collect();
    assert!(without.is_empty(), "these forms take memory for no reason that is known: {without:?}");
    assert!(free.len() > 300, "{} forms take nothing", free.len());
}
