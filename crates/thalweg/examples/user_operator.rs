//! A user-defined operator, max(x, 0)²: a formula, from which its kernels, its gradient and its tests are derived.
//!
//! ```text
//! cargo run --release --example user_operator -- --device sim
//! ```

use thalweg::dispatch::define_loop;
use thalweg::driver::Label;
use thalweg::ir::OutputPlace;
use thalweg::ops::{DTypeRule, Examples, LoopOp, Space};
use thalweg::testing::check_entry;
use thalweg::{Device, Error, Result, Tensor};

static SQUARED_RELU: LoopOp = LoopOp {
    name: "user_squared_relu",
    aten: Some("user::squared_relu(Tensor self) -> Tensor"),
    rule: DTypeRule::Floating,
    space: Space::Elementwise,
    build: |b, signature| {
        let x = b.input(signature.inputs[0]).to(signature.compute);
        let positive = x.gt(0.0).select(x, x.like(0.0));
        b.output(positive * positive, signature.outputs[0], OutputPlace::Row);
    },
    examples: Some(Examples {
        inputs: &[&[-0.5], &[3.0]],
        scalars: &[],
        reference: |x, _| x[0].max(0.0).powi(2),
    }),
    ..LoopOp::BASE
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let device = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Device::best()?,
        ["--device", name] => Device::from_name(name)?,
        _ => return Err(Error::invalid("usage: user_operator [--device cuda|sim[:N]]")),
    };
    let operator = define_loop(&SQUARED_RELU)?;
    check_entry(&SQUARED_RELU)?;
    let x = Tensor::from_slice(&[-2.0f32, -0.5, 0.5, 3.0], &[4], &device)?.requires_grad_()?;
    let y = operator.call(&[(&x).into()], None, Label::here("squared_relu"))?.swap_remove(0);
    y.sum(&[], false)?.backward()?;
    println!("squared_relu on {device}: {:?}", y.detach().to_vec::<f32>()?);
    println!("its gradient: {:?}", x.grad().expect("x requires a gradient").to_vec::<f32>()?);
    Ok(())
}
