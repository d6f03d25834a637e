//! Bodies of the table's operators and of their derived gradients, made once a signature and kept.

use std::hash::Hash;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{Body, BodyBuilder, Node};

use crate::definition::{FromResult, LoopOp, Signature};

/// The body of an operator for one signature.
#[derive(Clone, PartialEq, Debug)]
pub struct ForwardBody {
    /// A number that tells it from every other body of these dtypes.
    pub id: u64,
    /// The body.
    pub body: Body,
}

/// A table that is filled as it is asked.
pub(crate) type Kept<K, V> = OnceLock<RwLock<FxHashMap<K, V>>>;

pub(crate) fn keep<K: Clone + Eq + Hash, V: Clone>(kept: &Kept<K, V>, key: K, make: impl FnOnce() -> V) -> V {
    let table = kept.get_or_init(RwLock::default);
    if let Some(found) = table.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return found.clone();
    }
    let made = make();
    table.write().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
    made
}

/// Returns the body of an operator.
pub fn forward(operator: &LoopOp, signature: &Signature) -> Arc<ForwardBody> {
    static BODIES: Kept<(u64, Signature), Arc<ForwardBody>> = OnceLock::new();
    keep(&BODIES, (operator.id(), signature.clone()), || {
        Arc::new(ForwardBody { id: operator.id(), body: operator.body(signature) })
    })
}

/// The gradient of an operator with respect to some of its inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct GradientBody {
    /// A number that tells it from every other body of the operator's signature.
    pub id: u64,
    /// The inputs of the operator that it reads, by their number; the gradients of the outputs follow them.
    pub saved_inputs: SmallVec<[usize; 4]>,
    /// The outputs of the operator that it reads, by their number; they follow the inputs.
    pub saved_outputs: SmallVec<[usize; 1]>,
    /// The outputs of the operator whose gradients it reads, by their number.
    pub used_outputs: SmallVec<[usize; 2]>,
    /// The body: saved inputs and outputs, then used gradients; one output a wanted input.
    pub body: Body,
}

type Derived = Result<Arc<GradientBody>, String>;

/// Returns the gradient of `operator` with respect to the inputs in `wanted` (a bit each), or why there is none.
pub fn gradient(operator: &LoopOp, signature: &Signature, wanted: u32) -> Derived {
    static GRADIENTS: Kept<(u64, Signature, u32), Derived> = OnceLock::new();
    keep(&GRADIENTS, (operator.id(), signature.clone(), wanted), || derive(operator, signature, wanted))
}

fn derive(operator: &LoopOp, signature: &Signature, wanted: u32) -> Derived {
    let wrt: SmallVec<[usize; 4]> =
        (0..signature.inputs.len()).filter(|&input| wanted & (1 << input) != 0).collect();
    // The number of a derived body: the operator's, mixed with which inputs are wanted.
    let id = (operator.id() ^ u64::from(wanted)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if let Some(from_result) = operator.from_result {
        let body = by_result(operator, signature, &wrt, from_result);
        let (saved_inputs, saved_outputs) = (SmallVec::new(), SmallVec::from_slice(&[0]));
        let used_outputs = SmallVec::from_slice(&[0]);
        return Ok(Arc::new(GradientBody { id, saved_inputs, saved_outputs, used_outputs, body }));
    }
    of_body(operator.name, id, &operator.body(signature), &wrt)
}

/// Returns the gradient of a gradient that is derived from an operator of this signature, with respect to the inputs of its body in
/// `wanted` (a bit each), or why there is none.
pub fn gradient_of(
    name: &'static str,
    signature: &Signature,
    derived: &GradientBody,
    wanted: u32,
) -> Derived {
    static GRADIENTS: Kept<(u64, Signature, u32), Derived> = OnceLock::new();
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
    let inputs = body.inputs.len();
    let (body, kept) = without_unused_inputs(&gradient.body);
    Ok(Arc::new(GradientBody {
        id,
        saved_outputs: SmallVec::new(),
        saved_inputs: kept.iter().copied().filter(|&input| input < inputs).collect(),
        used_outputs: kept.iter().filter_map(|&input| input.checked_sub(inputs)).collect(),
        body,
    }))
}

/// Returns the body that an entry writes by its result.
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

/// Returns the body without the inputs that nothing reads, and the numbers of those that stay.
pub(crate) fn without_unused_inputs(body: &Body) -> (Body, SmallVec<[usize; 4]>) {
    let kept: SmallVec<[usize; 4]> = (0..body.inputs.len()).filter(|&input| body.uses_input(input)).collect();
    let renumber = |input: &mut u16| {
        if let Some(position) = kept.iter().position(|&old| old == usize::from(*input)) {
            *input = position as u16;
        }
    };
    let mut result = body.clone();
    result.inputs = kept.iter().map(|&input| body.inputs[input]).collect();
    for node in &mut result.nodes {
        match node {
            Node::Load { input } | Node::Gather { input, .. } => renumber(input),
            _ => {}
        }
    }
    (result, kept)
}
