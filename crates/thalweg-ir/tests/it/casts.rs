//! Casts of a body: those that change no number are left out, and no others are.

use thalweg_ir::{Binary, BodyBuilder, DType, Unary, Value};

#[test]
fn casts_that_change_no_number_are_left_out() {
    let builder = BodyBuilder::new();
    let [narrow, half, float, double] =
        [DType::Bf16, DType::F16, DType::F32, DType::F64].map(|dtype| builder.input(dtype));
    let [truth, byte, integer] = [DType::Bool, DType::U8, DType::I32].map(|dtype| builder.input(dtype));
    let there_and_back = |value: Value<'_>, by: DType| value.to(by).to(value.dtype()).id() == value.id();
    // Numbers of 16 bits are computed in f32, from which they were cast.
    assert!(there_and_back(narrow, DType::Bf16) && there_and_back(half, DType::F16));
    assert!(there_and_back(float, DType::F64) && there_and_back(integer, DType::F64));
    assert!(
        there_and_back(truth.to(DType::F32), DType::Bf16) && there_and_back(byte.to(DType::F32), DType::F16)
    );
    // So is what has their numbers only.
    let zero = narrow.like(0.0f64);
    let kept = narrow.binary(Binary::LessEqual, zero);
    let chosen = kept.select(narrow.unary(Unary::Neg), narrow.unary(Unary::Abs).binary(Binary::Max, zero));
    assert!(there_and_back(chosen, DType::Bf16));
    // The others are rounded.
    for (value, by) in [
        (narrow.binary(Binary::Mul, narrow), DType::Bf16),
        (narrow, DType::F16),
        (half, DType::Bf16),
        (float, DType::F16),
        (double, DType::F32),
        (integer, DType::F32),
        (kept.select(narrow, float), DType::Bf16),
        (narrow.binary(Binary::Max, half), DType::F16),
        (narrow.binary(Binary::Max, narrow.like(0.1f64)), DType::Bf16),
        (byte.to(DType::I32), DType::Bool),
    ] {
        assert!(!there_and_back(value, by), "{:?} by {by}", value.node());
    }
}
