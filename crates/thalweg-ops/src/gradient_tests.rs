//! Kernels are found by the number of a body and by the dtypes of its operands: these must determine the body.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_ir::{Body, Category, DType};

use super::{forward, forward_into, gradient};
use crate::definition::{DTypes, LoopOp, Signature};
use crate::{elementwise, parts};

const DTYPES: [DType; 8] =
    [DType::Bool, DType::U8, DType::I32, DType::I64, DType::F16, DType::Bf16, DType::F32, DType::F64];

/// Returns the signatures of calls with up to three tensors of every dtype, with and without dimensions, and with numbers of every
/// kind.
fn signatures(operator: &LoopOp) -> Vec<Signature> {
    let count = operator.input_count;
    let mut found: Vec<Signature> = Vec::new();
    if count == 0 || count > 3 {
        return found;
    }
    // Three tensors: a half of the dtypes is enough.
    let dtypes = if count == 3 { &DTYPES[3..7] } else { &DTYPES[..] };
    for combination in 0..dtypes.len().pow(count as u32) {
        let pick = |input: usize| dtypes[combination / dtypes.len().pow(input as u32) % dtypes.len()];
        let inputs: Vec<DType> = (0..count).map(pick).collect();
        for zero_dimensional in 0..1 << count {
            for scalars in [Category::Bool, Category::Integer, Category::FloatingPoint] {
                let signature = operator.signature_of(&inputs, zero_dimensional, scalars, None);
                found.extend(signature.ok().filter(|signature| !found.contains(signature)));
            }
        }
    }
    found
}

#[derive(Default)]
struct Seen(HashMap<(u64, DTypes), (Arc<Body>, String)>);

impl Seen {
    fn check(&mut self, operator: &LoopOp, id: u64, body: &Arc<Body>, signature: &Signature) {
        let operands = body.inputs.iter().map(|input| input.dtype);
        let operands = operands.chain(body.outputs.iter().map(|output| output.dtype));
        let key = (id, operands.chain([signature.compute]).collect());
        let description = format!("{} {signature:?}", operator.name);
        let (known, former) = self.0.entry(key).or_insert_with(|| (Arc::clone(body), description.clone()));
        // A body with a constant that is not a number does not equal itself.
        let is_same = known == body || format!("{known:?}") == format!("{body:?}");
        assert!(is_same, "{description} has the kernel of {former}");
    }
}

#[test]
fn numbers_and_dtypes_determine_bodies() {
    let mut compared = 0;
    for operator in elementwise().chain(parts()) {
        let mut seen = Seen::default();
        for signature in signatures(operator) {
            let body = forward(operator, &signature);
            seen.check(operator, body.id, &body.body, &signature);
            if let [output] = signature.outputs.as_slice() {
                let into =
                    DTYPES.iter().filter(|dtype| *dtype != output && dtype.category() >= output.category());
                for &dtype in into {
                    let body = forward_into(operator, &signature, &[dtype].into_iter().collect());
                    seen.check(operator, body.id, &body.body, &signature);
                }
            }
            for wanted in 1..1_u32 << operator.input_count {
                if let Ok(derived) = gradient(operator, &signature, wanted) {
                    seen.check(operator, derived.id, &derived.body, &signature);
                }
            }
            compared += 1;
        }
    }
    assert!(compared > 5_000, "{compared} signatures");
}
