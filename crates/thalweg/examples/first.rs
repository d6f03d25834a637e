//! The README's first program: a gradient.

use thalweg::prelude::*;

fn main() -> Result<()> {
    let device = Device::best()?; // the GPU if there is one, else the simulated one
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device)?.requires_grad_()?;
    let y = x.square()?.sum(&[], false)?;
    y.backward()?;
    println!("{}", x.grad().expect("x requires a gradient"));
    Ok(())
}
