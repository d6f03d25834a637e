//! A user-defined operator with its own kernel, max(x, 0)²: CUDA C for a GPU, the same work on the host for the simulated one, and
//! its gradient.
//!
//! ```text
//! cargo run --release --example user_kernel -- --device sim
//! ```

use std::sync::Arc;

use thalweg::autograd::formula::{Formula, register_formula};
use thalweg::dispatch::{Call, DispatchKey, Operator, define_operator};
use thalweg::driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Label};
use thalweg::ir::{cuda::LaunchShape, host::Fault};
use thalweg::kernels::{Accesses, NativeKernel, Words};
use thalweg::tensor::Tensors;
use thalweg::{DType, Device, Error, Result, Tensor};

const CUDA: &str = "
struct squared_relu_arguments { const float* x; float* y; unsigned long long count; };
extern \"C\" __global__ void squared_relu(const __grid_constant__ squared_relu_arguments a) {
    const unsigned long long n = blockIdx.x * 256ull + threadIdx.x;
    if (n < a.count) { const float x = a.x[n] > 0.0f ? a.x[n] : 0.0f; a.y[n] = x * x; }
}";

/// A launch: addresses of input and result, and their number of elements.
struct SquaredRelu(DevicePointer, DevicePointer, u64);

impl NativeKernel for SquaredRelu {
    fn name(&self) -> &str {
        "squared_relu"
    }

    fn source(&self) -> String {
        CUDA.to_owned()
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let grid = [self.2.div_ceil(256) as u32, 1, 1];
        (self.2 > 0).then_some(LaunchShape { grid, block: [256, 1, 1] })
    }

    fn words(&self) -> Words {
        Words::from_iter([self.0.address(), self.1.address(), self.2])
    }

    fn accesses(&self) -> Accesses {
        Accesses::from_iter([Access::read(self.0, 4 * self.2), Access::write(self.1, 4 * self.2)])
    }
}

fn on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let words: Vec<u64> =
        launch.arguments.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let [x, y] = [words[0], words[1]].map(DevicePointer::new);
    let (x, y) = (launch.read::<f32>(x, words[2] as usize)?, launch.write::<f32>(y, words[2] as usize)?);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(0.0) * x.max(0.0));
    Ok(())
}

fn forward(call: &Call<'_>) -> Result<Tensors> {
    if call.tensors[0].dtype() != DType::F32 {
        return Err(Error::invalid(format!("squared_relu takes float32, not {}", call.tensors[0].dtype())));
    }
    let x = call.tensors[0].contiguous()?;
    let y = x.empty_like()?;
    let kernel = SquaredRelu(x.pointer(), y.pointer(), x.elements() as u64);
    x.device().current_stream().launch_native(&kernel, call.label)?;
    Ok(Tensors::from_iter([y]))
}

static GRADIENT: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| call.one(0, || (call.gradient()? * call.saved(0)?.relu()?)? * 2.0),
};

/// Defines the operator for both kinds of device.
fn define() -> Result<&'static Operator> {
    let operator = define_operator("user::squared_relu(Tensor self) -> Tensor")?;
    for key in [DispatchKey::Cuda, DispatchKey::Sim] {
        operator.register(key, Arc::new(forward)).keep();
    }
    register_formula(operator, &GRADIENT).keep();
    Ok(operator)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let device = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Device::best()?,
        ["--device", name] => Device::from_name(name)?,
        _ => return Err(Error::invalid("usage: user_kernel [--device cuda|sim[:N]]")),
    };
    let operator = define()?;
    let x = Tensor::from_slice(&[-2.0f32, -0.5, 0.5, 3.0], &[4], &device)?.requires_grad_()?;
    let y = operator.call(&[(&x).into()], None, Label::here("squared_relu"))?.swap_remove(0);
    y.sum(&[], false)?.backward()?;
    println!("squared_relu on {device}: {:?}", y.detach().to_vec::<f32>()?);
    println!("its gradient: {:?}", x.grad().expect("x requires a gradient").to_vec::<f32>()?);
    Ok(())
}
