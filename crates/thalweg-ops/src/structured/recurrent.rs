//! The elementwise part of a step of a recurrent network, after the products of the input and of the hidden state: one kernel,
//! and one for its gradient.

use thalweg_ir::{BodyBuilder, OutputPlace, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Space};

/// The places of outputs, all written once per row.
const ROWS: [OutputPlace; 7] = [OutputPlace::Row; 7];

/// Returns the entry of a loop over points of `input_count` tensors.
const fn points(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    outputs: &'static [OutputPlace],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    let (rule, space) = (DTypeRule::Floating, Space::Elementwise);
    LoopOp { name, doc, input_count, outputs, rule, space, build, ..LoopOp::BASE }
}

/// Loads `COUNT` inputs.
fn inputs<'b, const COUNT: usize>(b: &'b BodyBuilder, signature: &Signature) -> [Value<'b>; COUNT] {
    std::array::from_fn(|input| b.input(signature.inputs[input]).to(signature.compute))
}

/// Writes the results.
fn write<'b, const COUNT: usize>(b: &'b BodyBuilder, signature: &Signature, results: [Value<'b>; COUNT]) {
    for (result, &dtype) in results.into_iter().zip(&signature.outputs) {
        b.output(result, dtype, OutputPlace::Row);
    }
}

fn sigmoid(x: Value<'_>) -> Value<'_> {
    let negative = x.lt(0.0);
    let small = negative.select(x, -x).exp();
    negative.select(small, x.like(1.0)) / (1.0 + small)
}

/// Returns the gradient of a sigmoid's input from that of its result y.
fn before_sigmoid<'b>(y: Value<'b>, g: Value<'b>) -> Value<'b> {
    g * y * (1.0 - y)
}

/// Returns the gradient of a hyperbolic tangent's input from that of its result y.
fn before_tanh<'b>(y: Value<'b>, g: Value<'b>) -> Value<'b> {
    g * (1.0 - y * y)
}

/// A step of long short-term memory. Inputs: the gates i, f, g, o from the input, the gates from the hidden state, and the cell.
/// Results: the hidden state, the cell, and the gates after their activation functions.
pub static LSTM_STEP: LoopOp = points(
    "lstm_step_points",
    "A step of long short-term memory.",
    9,
    ROWS.first_chunk::<6>().expect("there are more"),
    |b, signature| {
        let [xi, xf, xg, xo, hi, hf, hg, ho, cell] = inputs(b, signature);
        let [i, f, o] = [xi + hi, xf + hf, xo + ho].map(sigmoid);
        let g = (xg + hg).tanh();
        let next = f * cell + i * g;
        write(b, signature, [o * next.tanh(), next, i, f, g, o]);
    },
);

/// The gradient of [`LSTM_STEP`]. Inputs: the gradients of hidden state and cell, the gates after their activation functions, and
/// the cell before and after the step. Results: the gradients of the gates i, f, g, o, which are the same for input and hidden
/// state, and of the cell before the step.
pub static LSTM_STEP_BACKWARD: LoopOp = points(
    "lstm_step_points_backward",
    "The gradient of a step of long short-term memory.",
    8,
    ROWS.first_chunk::<5>().expect("there are more"),
    |b, signature| {
        let [of_hidden, of_next, i, f, g, o, cell, next] = inputs(b, signature);
        let y = next.tanh();
        let of_cell = of_next + before_tanh(y, of_hidden * o);
        let of_gates = [
            before_sigmoid(i, of_cell * g),
            before_sigmoid(f, of_cell * cell),
            before_tanh(g, of_cell * i),
            before_sigmoid(o, of_hidden * y),
        ];
        let [di, df, dg, dout] = of_gates;
        write(b, signature, [di, df, dg, dout, of_cell * f]);
    },
);

/// A step of a gated recurrent unit. Inputs: the gates r, z, n from the input, the gates from the hidden state, and the hidden
/// state. Results: the next hidden state, and the gates after their activation functions.
pub static GRU_STEP: LoopOp = points(
    "gru_step_points",
    "A step of a gated recurrent unit.",
    7,
    ROWS.first_chunk::<4>().expect("there are more"),
    |b, signature| {
        let [xr, xz, xn, hr, hz, hn, hidden] = inputs(b, signature);
        let [r, z] = [xr + hr, xz + hz].map(sigmoid);
        let n = (xn + r * hn).tanh();
        write(b, signature, [n + z * (hidden - n), r, z, n]);
    },
);

/// The gradient of [`GRU_STEP`]. Inputs: the gradient of the next hidden state, the gates after their activation functions, the
/// hidden state's part of n, and the hidden state. Results: the gradients of the gates r, z, n from the input, of the gates from
/// the hidden state, and of the hidden state.
pub static GRU_STEP_BACKWARD: LoopOp = points(
    "gru_step_points_backward",
    "The gradient of a step of a gated recurrent unit.",
    6,
    &ROWS,
    |b, signature| {
        let [gradient, r, z, n, hn, hidden] = inputs(b, signature);
        let of_n = before_tanh(n, gradient * (1.0 - z));
        let of_r = before_sigmoid(r, of_n * hn);
        let of_z = before_sigmoid(z, gradient * (hidden - n));
        write(b, signature, [of_r, of_z, of_n, of_r, of_z, of_n * r, gradient * z]);
    },
);
