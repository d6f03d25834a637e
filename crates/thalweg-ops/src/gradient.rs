//! Bodies of the table's operators and of their derived gradients, built once per signature and cached.

use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{
    Body, BodyBuilder, DType, ExprId, InputKind, Node, Output, OutputPlace, ReduceOp, Reduction,
};
use thalweg_lock::RwLock;

use crate::definition::{DTypes, FromInputs, FromResult, LoopOp, Signature};

/// The body of an operator for one signature.
#[derive(Clone, PartialEq, Debug)]
pub struct ForwardBody {
    /// A number that distinguishes this body from every other body with these dtypes.
    pub id: u64,
    /// The body.
    pub body: Arc<Body>,
}

/// A cache that is filled on first use.
pub(crate) type Cache<K, V> = OnceLock<RwLock<FxHashMap<K, V>>>;

pub(crate) fn keep<K: Clone + Eq + Hash, V: Clone>(
    kept: &Cache<K, V>,
    key: K,
    make: impl FnOnce() -> V,
) -> V {
    let table = kept.get_or_init(RwLock::default);
    if let Some(found) = table.read().get(&key) {
        return found.clone();
    }
    let made = make();
    table.write().insert(key, made.clone());
    made
}

/// Returns a number that identifies the body of an operator for a signature. The dtypes of a body's operands do not: a comparison of
/// float32 with bfloat16 numbers rounds the former if they have no dimensions.
fn identity(operator: &LoopOp, signature: &Signature) -> u64 {
    let dtypes =
        signature.inputs.iter().chain(&signature.outputs).chain([&signature.common, &signature.compute]);
    dtypes.fold(operator.id(), |id, &dtype| (id ^ dtype as u64).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Returns the body of an operator.
pub fn forward(operator: &LoopOp, signature: &Signature) -> Arc<ForwardBody> {
    static BODIES: Cache<(u64, Signature), Arc<ForwardBody>> = OnceLock::new();
    keep(&BODIES, (operator.id(), signature.clone()), || {
        Arc::new(ForwardBody { id: identity(operator, signature), body: Arc::new(operator.body(signature)) })
    })
}

/// Returns the body of an operator whose results are converted to these dtypes as they are written.
pub fn forward_into(operator: &LoopOp, signature: &Signature, outputs: &DTypes) -> Arc<ForwardBody> {
    static BODIES: Cache<(u64, Signature, DTypes), Arc<ForwardBody>> = OnceLock::new();
    if signature.outputs == *outputs {
        return forward(operator, signature);
    }
    keep(&BODIES, (operator.id(), signature.clone(), outputs.clone()), || {
        let body = forward(operator, signature).body.with_outputs_in(outputs.iter().copied());
        Arc::new(ForwardBody { id: identity(operator, signature), body: Arc::new(body) })
    })
}

/// The gradient of an operator with respect to some of its inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct GradientBody {
    /// A number that distinguishes this body from every other body of the operator's signature.
    pub id: u64,
    /// The inputs of the operator that the gradient reads, by their numbers.
    pub saved_inputs: SmallVec<[usize; 4]>,
    /// The outputs of the operator that the gradient reads, by their numbers; in the body they follow the saved inputs.
    pub saved_outputs: SmallVec<[usize; 1]>,
    /// The outputs of the operator whose gradients this gradient reads, by their numbers; in the body they follow the saved
    /// outputs.
    pub used_outputs: SmallVec<[usize; 2]>,
    /// The body: saved inputs and outputs, then used gradients; one output per requested input.
    pub body: Arc<Body>,
}

type Derived = Result<Arc<GradientBody>, String>;

/// Returns the gradient of `operator` with respect to the inputs in `wanted` (one bit each), or the reason why there is no
/// gradient.
pub fn gradient(operator: &LoopOp, signature: &Signature, wanted: u32) -> Derived {
    static GRADIENTS: Cache<(u64, Signature, u32), Derived> = OnceLock::new();
    keep(&GRADIENTS, (operator.id(), signature.clone(), wanted), || derive(operator, signature, wanted))
}

fn derive(operator: &LoopOp, signature: &Signature, wanted: u32) -> Derived {
    let wrt: SmallVec<[usize; 4]> =
        (0..signature.inputs.len()).filter(|&input| wanted & (1 << input) != 0).collect();
    // The number of a derived body: the operator's, mixed with the set of requested inputs.
    let id = (identity(operator, signature) ^ u64::from(wanted)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if let Some(from_inputs) = operator.from_inputs {
        let body = by_inputs(operator, signature, &wrt, from_inputs);
        return Ok(Arc::new(packed(id, &body, signature.inputs.len())));
    }
    if let Some(from_result) = operator.from_result {
        let body = by_result(operator, signature, &wrt, from_result);
        let (saved_inputs, saved_outputs) = (SmallVec::new(), SmallVec::from_slice(&[0]));
        let used_outputs = SmallVec::from_slice(&[0]);
        return Ok(Arc::new(GradientBody {
            id,
            saved_inputs,
            saved_outputs,
            used_outputs,
            body: Arc::new(body),
        }));
    }
    of_body(operator.name, id, &operator.body(signature), &wrt)
}

/// Returns the gradient of a gradient that is derived from an operator of this signature, with respect to the inputs of its body
/// in `wanted` (one bit each), or the reason why there is no gradient.
pub fn gradient_of(
    name: &'static str,
    signature: &Signature,
    derived: &GradientBody,
    wanted: u32,
) -> Derived {
    static GRADIENTS: Cache<(u64, Signature, u32), Derived> = OnceLock::new();
    keep(&GRADIENTS, (derived.id, signature.clone(), wanted), || {
        let wrt: SmallVec<[usize; 4]> =
            (0..derived.body.inputs.len()).filter(|&input| wanted & (1 << input) != 0).collect();
        let id = (derived.id ^ u64::from(wanted)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        of_body(name, id, &derived.body, &wrt)
    })
}

/// Returns the gradient of a body.
fn of_body(name: &str, id: u64, body: &Body, wrt: &[usize]) -> Derived {
    let gradient = thalweg_ir::grad::gradient(body, wrt)
        .map_err(|reason| format!("{name} is not differentiable: {reason}"))?;
    Ok(Arc::new(packed(id, &gradient.body, body.inputs.len())))
}

/// Returns a gradient whose body has this number of the operator's inputs before the gradients of the outputs.
fn packed(id: u64, gradient: &Body, inputs: usize) -> GradientBody {
    let (body, kept) = without_unused_inputs(gradient);
    GradientBody {
        id,
        saved_outputs: SmallVec::new(),
        saved_inputs: kept.iter().copied().filter(|&input| input < inputs).collect(),
        used_outputs: kept.iter().filter_map(|&input| input.checked_sub(inputs)).collect(),
        body: Arc::new(body),
    }
}

/// A gradient for calls in which gradients of some outputs are absent.
#[derive(Clone, Debug)]
pub struct PartialGradient {
    /// The gradient, which reads neither the absent gradients nor tensors that only multiply them.
    pub derived: Arc<GradientBody>,
    /// The saved tensors that this gradient reads, inputs and outputs together, by their index among those of the full gradient.
    pub saved: SmallVec<[usize; 4]>,
    /// The outputs of which nothing remains (one bit each, by index): they only have terms with absent gradients.
    pub absent_outputs: u32,
}

/// Returns a gradient of an operator of this signature without those of the used outputs in `absent` (one bit each, by index).
pub fn without(signature: &Signature, derived: &GradientBody, absent: u32) -> PartialGradient {
    static GRADIENTS: Cache<(u64, Signature, u32), PartialGradient> = OnceLock::new();
    keep(&GRADIENTS, (derived.id, signature.clone(), absent), || {
        let saved = derived.saved_inputs.len() + derived.saved_outputs.len();
        let is_absent = |place: usize| absent & (1 << place) != 0;
        let used = derived.used_outputs.len();
        let inputs: Vec<usize> =
            (0..used).filter(|&place| is_absent(place)).map(|place| saved + place).collect();
        let (body, kept) =
            without_unused_inputs(&thalweg_ir::grad::without_gradients(&derived.body, &inputs));
        let is_zero = |body: &Body, output: usize| is_constant_zero(body, body.outputs[output].value);
        let absent_outputs = (0..body.outputs.len())
            .filter(|&output| is_zero(&body, output) && !is_zero(&derived.body, output))
            .fold(0, |mask, output| mask | 1 << output);
        let at = |place: usize| kept.contains(&place);
        let from = derived.saved_inputs.len();
        let saved_inputs = derived.saved_inputs.iter().enumerate().filter(|&(place, _)| at(place));
        let saved_outputs = derived.saved_outputs.iter().enumerate().filter(|&(place, _)| at(from + place));
        let used_outputs = derived.used_outputs.iter().enumerate().filter(|&(place, _)| at(saved + place));
        PartialGradient {
            derived: Arc::new(GradientBody {
                id: (derived.id ^ u64::from(absent)).wrapping_mul(0xd6e8_feb8_6659_fd93),
                saved_inputs: saved_inputs.map(|(_, &input)| input).collect(),
                saved_outputs: saved_outputs.map(|(_, &output)| output).collect(),
                used_outputs: used_outputs.map(|(_, &output)| output).collect(),
                body: Arc::new(body),
            }),
            saved: kept.iter().copied().filter(|&place| place < saved).collect(),
            absent_outputs,
        }
    })
}

/// Returns whether an expression is the number 0, cast or not.
fn is_constant_zero(body: &Body, id: ExprId) -> bool {
    match body.nodes[id.index()] {
        Node::Constant(number) => number.to_f64() == 0.0,
        Node::Cast(value) => is_constant_zero(body, value),
        _ => false,
    }
}

/// A gradient that sums some of its outputs over the points of rows.
#[derive(Clone, Debug)]
pub struct SummedGradient {
    /// A number that distinguishes this body from every other body of the operator's signature.
    pub id: u64,
    /// The inputs of the gradient's body that this one reads, by their numbers.
    pub inputs: SmallVec<[usize; 4]>,
    /// The body: one value per row for each output that is summed, and one per point for each other.
    pub body: Arc<Body>,
}

/// Returns a gradient of an operator of this signature with the outputs that have a place: at [`Row`](OutputPlace::Row) an output is
/// summed over rows, at [`Point`](OutputPlace::Point) it has one value for each point. Returns `None` if it does not have one value for
/// each point, which rows could sum.
pub fn summed(
    signature: &Signature,
    derived: &GradientBody,
    places: &[Option<OutputPlace>],
) -> Option<Arc<SummedGradient>> {
    type Key = (u64, Signature, SmallVec<[Option<OutputPlace>; 4]>);
    static GRADIENTS: Cache<Key, Option<Arc<SummedGradient>>> = OnceLock::new();
    keep(&GRADIENTS, (derived.id, signature.clone(), places.into()), || {
        let body = &derived.body;
        let is_of_points = body.reductions.is_empty()
            && !body.uses_coordinates()
            && body.report.is_none()
            && body.inputs.iter().all(|input| input.kind == InputKind::Strided)
            && body.outputs.iter().all(|output| output.scatter.is_none())
            && body.outputs.iter().all(|output| matches!(body.dtype(output.value), DType::F32 | DType::F64));
        is_of_points.then(|| Arc::new(with_sums(derived, places)))
    })
}

fn with_sums(derived: &GradientBody, places: &[Option<OutputPlace>]) -> SummedGradient {
    let (mut id, mut body) = (derived.id, Body::clone(&derived.body));
    body.outputs.clear();
    for (&place, output) in places.iter().zip(&derived.body.outputs) {
        let number = place.map_or(3, |place| 1 + place as u64);
        id = (id ^ number).wrapping_mul(0xa076_1d64_78bd_642f);
        let Some(place) = place else { continue };
        let mut output = Output { place, ..*output };
        if place == OutputPlace::Row {
            body.dtypes.push(body.dtype(output.value));
            body.nodes.push(Node::Reduced { reduction: body.reductions.len() as u16 });
            body.reductions.push(Reduction { op: ReduceOp::Sum, value: output.value });
            output.value = ExprId(body.nodes.len() as u32 - 1);
        }
        body.outputs.push(output);
    }
    let (body, inputs) = without_unused_inputs(&body.pruned());
    SummedGradient { id, inputs, body: Arc::new(body) }
}

/// Returns the body of a gradient that the entry computes from its inputs.
fn by_inputs(operator: &LoopOp, signature: &Signature, wrt: &[usize], from_inputs: FromInputs) -> Body {
    let builder = BodyBuilder::new();
    {
        let gradients = from_inputs(&builder, signature);
        for &input in wrt {
            builder.output(gradients[input], signature.inputs[input], operator.outputs[0]);
        }
    }
    builder.finish().pruned()
}

/// Returns the body of a gradient that the entry computes from its result.
fn by_result(operator: &LoopOp, signature: &Signature, wrt: &[usize], from_result: FromResult) -> Body {
    let builder = BodyBuilder::new();
    {
        let value = || builder.input(signature.outputs[0]).to(signature.compute);
        let (result, gradient) = (value(), value());
        let gradients = from_result(&builder, signature, result, gradient);
        for &input in wrt {
            builder.output(gradients[input], signature.inputs[input], operator.outputs[0]);
        }
    }
    builder.finish().pruned()
}

/// Returns the body without the inputs that nothing reads, and the numbers of the remaining inputs.
pub(crate) fn without_unused_inputs(body: &Body) -> (Body, SmallVec<[usize; 4]>) {
    let kept: SmallVec<[usize; 4]> = (0..body.inputs.len()).filter(|&input| body.uses_input(input)).collect();
    let renumber = |input: &mut u16| {
        if let Some(position) = kept.iter().position(|&old| old == usize::from(*input)) {
            *input = position as u16;
        }
    };
    let mut result = body.clone();
    result.inputs = kept.iter().map(|&input| body.inputs[input]).collect();
    result.nodes.iter_mut().filter_map(Node::input_mut).for_each(renumber);
    (result, kept)
}

#[cfg(test)]
#[path = "gradient_tests.rs"]
mod tests;
