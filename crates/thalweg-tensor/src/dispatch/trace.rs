//! [`trace`]: the calls that a function makes, as a list.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Once};

use rustc_hash::FxHashMap;
use thalweg_ir::Scalar;
use thalweg_runtime::Result;

use super::{Call, DispatchKey, ExcludeKeyGuard, IncludeKeyGuard, Operator, register_fallback};
use crate::argument::{Argument, Value};
use crate::tensor::{Tensor, Tensors};

/// One call of a [`Trace`].
#[derive(Clone, Debug)]
pub struct TracedCall {
    /// The operator.
    pub operator: &'static Operator,
    /// One argument per parameter of the operator's schema.
    pub arguments: Vec<Value>,
    /// The results. The trace keeps them and the tensors among the arguments alive.
    pub results: Tensors,
}

impl TracedCall {
    /// Calls the operator again with these arguments, in which `replaced` maps each tensor to the one to use.
    #[track_caller]
    pub fn call_with(&self, replaced: impl Fn(&Tensor) -> Tensor) -> Result<Vec<Value>> {
        let values: Vec<Value> = (self.arguments.iter())
            .map(|argument| match argument {
                Value::Tensor(tensor) => Value::Tensor(replaced(tensor)),
                Value::Tensors(list) => Value::Tensors(list.iter().map(&replaced).collect()),
                Value::OptionalTensors(list) => {
                    Value::OptionalTensors(list.iter().map(|tensor| tensor.as_ref().map(&replaced)).collect())
                }
                other => other.clone(),
            })
            .collect();
        let device = self.results.first().map(|result| result.device().clone());
        self.operator.call_boxed(&values, device.as_ref())
    }
}

/// The calls that a function made, in their order. Prints as a program, one call per line:
///
/// ```text
/// %2: float32[4, 4] = add.Tensor(%0, %1, alpha=1)
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The calls.
    pub calls: Vec<TracedCall>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Names::default();
        for call in &self.calls {
            let arguments: Vec<String> = (call.arguments.iter().zip(&call.operator.schema().parameters))
                .map(|(value, parameter)| {
                    let text = names.text(value.as_argument());
                    if parameter.keyword_only { format!("{}={text}", parameter.name) } else { text }
                })
                .collect();
            let results: Vec<String> = (call.results.iter())
                .map(|result| format!("{}: {}{:?}", names.name(result), result.dtype(), result.shape()))
                .collect();
            writeln!(f, "{} = {}({})", results.join(", "), call.operator.name(), arguments.join(", "))?;
        }
        Ok(())
    }
}

/// The names of tensors: numbers in the order in which they appear.
#[derive(Default)]
struct Names(FxHashMap<usize, usize>);

impl Names {
    fn name(&mut self, tensor: &Tensor) -> String {
        let next = self.0.len();
        format!("%{}", self.0.entry(tensor.identity()).or_insert(next))
    }

    fn text(&mut self, argument: Argument<'_>) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        match argument {
            Argument::None => "None".to_owned(),
            Argument::Tensor(tensor) => self.name(tensor),
            Argument::Tensors(tensors) => list(tensors.iter().map(|tensor| self.name(tensor)).collect()),
            Argument::OptionalTensors(tensors) => {
                let name = |tensor: &Option<Tensor>| match tensor {
                    Some(tensor) => self.name(tensor),
                    None => "None".to_owned(),
                };
                list(tensors.iter().map(name).collect())
            }
            Argument::Scalar(number) => number.to_string(),
            Argument::Complex(number) => format!("({}{:+}j)", number.re, number.im),
            Argument::Int(integer) => integer.to_string(),
            Argument::Float(number) => number.to_string(),
            Argument::Bool(truth) => Scalar::Bool(truth).to_string(),
            Argument::Ints(numbers) => format!("{numbers:?}"),
            Argument::Floats(numbers) => format!("{numbers:?}"),
            Argument::Bools(truths) => {
                list(truths.iter().map(|&truth| Scalar::Bool(truth).to_string()).collect())
            }
            Argument::Scalars(numbers) => list(numbers.iter().map(ToString::to_string).collect()),
            Argument::Str(text) => format!("{text:?}"),
            Argument::DType(dtype) => dtype.to_string(),
            Argument::Device(device) => device.to_string(),
        }
    }
}

thread_local! {
    /// The trace that this thread records.
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// Runs a function and records the calls of operators that it makes on this thread: the calls that it makes itself, not those
/// that their kernels make in turn. Calls of backward functions are recorded if the function runs a backward pass. If traces are
/// nested, the inner one records.
pub fn trace<T>(function: impl FnOnce() -> Result<T>) -> Result<(T, Trace)> {
    static FALLBACK: Once = Once::new();
    FALLBACK.call_once(|| register_fallback(DispatchKey::Trace, Arc::new(record)).keep());
    let recording = Recording { outer: CURRENT.replace(Some(Trace::default())) };
    let answer = {
        let _guard = IncludeKeyGuard::new(DispatchKey::Trace);
        function()
    };
    let trace = CURRENT.take().unwrap_or_default();
    drop(recording);
    Ok((answer?, trace))
}

/// A guard that restores the outer trace, after a panic too.
struct Recording {
    outer: Option<Trace>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        CURRENT.set(self.outer.take());
    }
}

fn record(call: &Call<'_>) -> Result<Tensors> {
    let results = {
        let _kernels_calls_are_not_recorded = ExcludeKeyGuard::new(DispatchKey::Trace);
        call.redispatch()?
    };
    CURRENT.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.calls.push(TracedCall {
                operator: call.operator,
                arguments: call.arguments.iter().map(|argument| argument.to_value()).collect(),
                results: results.clone(),
            });
        }
    });
    Ok(results)
}
