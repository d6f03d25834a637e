//! The points of a step of a recurrent network: what stands behind the products of the input and of the hidden state, in one kernel, and its
//! gradient in another.

use thalweg_ir::{BodyBuilder, OutputPlace, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Space};

/// The places of outputs.
const ROWS: [OutputPlace; 7] = [OutputPlace::Row; 7];

/// Returns a loop over points of so many tensors.
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

/// Returns so many inputs.
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

/// Returns the gradient before a sigmoid from that behind it.
fn before_sigmoid<'b>(y: Value<'b>, g: Value<'b>) -> Value<'b> {
    g * y * (1.0 - y)
}

/// Returns the gradient before a hyperbolic tangent from that behind it.
fn before_tanh<'b>(y: Value<'b>, g: Value<'b>) -> Value<'b> {
    g * (1.0 - y * y)
}

/// A step of long short-term memory: the gates i, f, g, o by the input, the same by the hidden state, and the cell give the hidden state, the
/// cell, and the gates behind their functions.
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

/// The gradient of [`LSTM_STEP`]: those of the hidden state and the cell, the gates behind their functions, the cell before and after the step give
/// those of the gates i, f, g, o, which are the same for input and hidden state, and of the cell before.
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

/// A step of a gated recurrent unit: the gates r, z, n by the input, the same by the hidden state, and the hidden state give the next one, and the
/// gates behind their functions.
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

/// The gradient of [`GRU_STEP`]: that of the next hidden state, the gates behind their functions, the hidden state's part of n and the hidden state
/// give those of the gates r, z, n by the input, of the same by the hidden state, and of the hidden state.
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
