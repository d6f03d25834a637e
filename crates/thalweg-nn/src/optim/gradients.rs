//! [`Gradients`]: gradients that are examined and scaled together, by few launches.

use std::panic::Location;
use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Kernels, execute};
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::{BodyBuilder, DType, OutputPlace};
use thalweg_kernels::magnitudes::{CAPACITY, Magnitude, Magnitudes, Operands};
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Error, Result, refuse, refuse_if};
use thalweg_tensor::caller::label_at;
use thalweg_tensor::{Tensor, no_grad};

/// Tensors on one device, for work on its current stream.
pub(super) struct Gradients {
    operator: String,
    device: Device,
    /// The tensors, each with its elements in order of memory: the order does not matter for a sum, or for a product with one
    /// number.
    tensors: Vec<Tensor>,
    location: &'static Location<'static>,
}

/// The factor by which a list is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Factor {
    /// A number on the device.
    Given,
    /// m / (n + 10⁻⁶), at most 1, for a norm n on the device and a scalar m.
    OfNorm,
}

/// Kernels that multiply a list in place, by dtypes of its elements and of the number on the device.
static KERNELS: LazyLock<Mutex<Products>> = LazyLock::new(Mutex::default);

type Products = FxHashMap<(Factor, [DType; 2]), Arc<ForeachKernel>>;

impl Gradients {
    /// Takes the gradients of those parameters that have one; `None` if none has.
    pub(super) fn of<'a>(
        operator: &str,
        parameters: impl IntoIterator<Item = &'a Tensor>,
        location: &'static Location<'static>,
    ) -> Result<Option<Self>> {
        let gradients = parameters.into_iter().filter_map(Tensor::grad);
        let gradients: Vec<Tensor> = gradients.map(|gradient| gradient.detach()).collect();
        (!gradients.is_empty()).then(|| Self::new(operator, gradients, location)).transpose()
    }

    /// Takes tensors, and records their use on the current stream.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there are no tensors, or they are on several devices.
    pub(super) fn new(
        operator: &str,
        tensors: Vec<Tensor>,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        let Some(device) = tensors.first().map(|tensor| tensor.device().clone()) else {
            refuse!("{operator}: there is no tensor");
        };
        for tensor in &tensors {
            refuse_if!(
                *tensor.device() != device,
                "{operator}: the gradients are on two devices, {device} and {}; clip those of each by themselves",
                tensor.device()
            );
            tensor.record_stream(&device.current_stream());
        }
        Ok(Self { operator: operator.to_owned(), device, tensors, location })
    }

    /// Returns the tensors.
    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensors that have elements, by dtype; complex numbers as the real ones that a function makes of them.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a tensor is of integers.
    fn lists(&self, of_complex: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<(DType, Vec<Tensor>)>> {
        let mut lists: Vec<_> = FLOATS.into_iter().map(|dtype| (dtype, Vec::new())).collect();
        for tensor in &self.tensors {
            let real = if tensor.dtype().is_complex() { of_complex(tensor)? } else { tensor.clone() };
            let Some((_, list)) = lists.iter_mut().find(|(dtype, _)| *dtype == real.dtype()) else {
                refuse!(
                    "{}: it takes floating-point and complex numbers, not {}",
                    self.operator,
                    real.dtype()
                );
            };
            if real.elements() > 0 {
                list.push(real);
            }
        }
        Ok(lists)
    }

    /// Returns f64 if a tensor is f64 or c128, else f32.
    pub(super) fn dtype(&self) -> DType {
        let is_wide = self.tensors.iter().any(|tensor| tensor.dtype().real() == DType::F64);
        if is_wide { DType::F64 } else { DType::F32 }
    }

    /// Returns the magnitudes of all elements, chunk by chunk: a vector of [`dtype`](Self::dtype), at least one number.
    pub(super) fn magnitudes(&self, magnitude: Magnitude) -> Result<Tensor> {
        no_grad(|| {
            let stream = self.device.current_stream();
            let label = label_at("_foreach_norm", self.location);
            let mut parts = Vec::new();
            // The squares of both parts add to that of a complex number.
            let of_complex = |tensor: &Tensor| match magnitude {
                Magnitude::Power(2.0) => tensor.view_as_real(),
                _ => tensor.abs(),
            };
            for (dtype, list) in self.lists(of_complex)? {
                let kernel = Magnitudes { magnitude, dtype };
                // A tensor with gaps is copied, so it is read once more.
                let dense = list.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
                for list in dense.chunks(CAPACITY) {
                    let tensors: Vec<_> =
                        list.iter().map(|tensor| (tensor.pointer(), tensor.elements() as u64)).collect();
                    let chunks = Magnitudes::chunks(tensors.iter().map(|&(_, elements)| elements));
                    let numbers = Tensor::empty(&[chunks as usize], kernel.number_dtype(), &self.device)?;
                    execute(
                        Kernels(kernel),
                        Operands { tensors, numbers: numbers.pointer() },
                        &stream,
                        label,
                    )?;
                    parts.push(numbers.to_dtype(self.dtype())?);
                }
            }
            match parts.len() {
                0 => Tensor::zeros(&[1], self.dtype(), &self.device),
                1 => Ok(parts.swap_remove(0)),
                _ => Tensor::cat(&parts, 0),
            }
        })
    }

    /// Multiplies every element, in place, by a factor that is one element of f32 or f64 on the device. Products are rounded
    /// once.
    pub(super) fn scale(&self, factor: &Tensor) -> Result<()> {
        self.multiply((Factor::Given, factor), &[], || Ok(factor.clone()))
    }

    /// Multiplies every element by max_norm / (norm + 10⁻⁶) where that is below 1, in place: the norm is one element of f32 or
    /// f64 on the device. Products are rounded once; if the norm is small enough, no element is read.
    pub(super) fn clip(&self, norm: &Tensor, max_norm: f64) -> Result<()> {
        self.multiply((Factor::OfNorm, norm), &[max_norm.to_bits()], || {
            let room = norm.add_scalar(1e-6)?;
            let factor = Tensor::full(&[], max_norm, room.dtype(), room.device())?.div(&room)?;
            factor.minimum(&Tensor::ones(&[], room.dtype(), room.device())?)
        })
    }

    /// Multiplies every element by the factor that a kernel computes from a number and scalars; for tensors with gaps, a function
    /// computes the factor.
    fn multiply(
        &self,
        (kind, number): (Factor, &Tensor),
        scalars: &[u64],
        factor: impl Fn() -> Result<Tensor>,
    ) -> Result<()> {
        no_grad(|| {
            let stream = self.device.current_stream();
            number.record_stream(&stream);
            for (dtype, list) in self.lists(Tensor::view_as_real)? {
                let (dense, others): (Vec<Tensor>, Vec<Tensor>) =
                    list.into_iter().partition(|tensor| tensor.is_contiguous());
                for tensor in others {
                    let wide = if dtype == DType::F64 { DType::F64 } else { number.dtype() };
                    tensor.copy_(&tensor.to_dtype(wide)?.mul(&factor()?.to_dtype(wide)?)?)?;
                }
                if dense.is_empty() {
                    continue;
                }
                let kernel = product_kernel(kind, [dtype, number.dtype()]);
                let arguments = ForeachArguments {
                    shared: SmallVec::from_slice(&[number.pointer().address()]),
                    scalars: SmallVec::from_slice(scalars),
                    items: dense.iter().map(item).collect(),
                };
                execute(Kernels(&kernel), &arguments, &stream, label_at("_foreach_mul_", self.location))?;
                dense.iter().for_each(|tensor| tensor.bump_version());
            }
            Ok(())
        })
    }
}

/// The dtypes of gradients.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

fn item(tensor: &Tensor) -> ForeachItem {
    let addresses = SmallVec::from_slice(&[tensor.pointer().address()]);
    ForeachItem { elements: tensor.elements() as u64, addresses }
}

/// Returns the kernel that multiplies elements by a factor, of these dtypes. A factor of 1 does not change them.
fn product_kernel(kind: Factor, dtypes: [DType; 2]) -> Arc<ForeachKernel> {
    let [elements, number] = dtypes;
    let mut kernels = KERNELS.lock();
    let kernel = kernels.entry((kind, dtypes)).or_insert_with(|| {
        let builder = BodyBuilder::new();
        let (x, given) = (builder.input(elements), builder.input(number));
        let (by, verb) = match kind {
            Factor::Given => (given, "multiply"),
            Factor::OfNorm => {
                let most = builder.scalar(DType::F64).to(number);
                ((most / (given + 1e-6)).minimum(given.like(1.0)), "clip")
            }
        };
        let compute = if elements == DType::F64 { DType::F64 } else { number };
        let product = (x.to(compute) * by.to(compute)).to(x.dtype());
        builder.output(by.eq(1.0).select(x, product), elements, OutputPlace::Row);
        Arc::new(ForeachKernel {
            name: format!("{verb}_list_{}_by_{}", elements.name(), number.name()),
            body: builder.finish(),
            operands: SmallVec::from_slice(&[ForeachOperand::Elements, ForeachOperand::Shared]),
            targets: SmallVec::from_slice(&[0]),
        })
    });
    Arc::clone(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_with_a_number_compile_for_every_dtype() {
        let kinds = [Factor::Given, Factor::OfNorm];
        let dtypes = FLOATS.into_iter().flat_map(|of| [DType::F32, DType::F64].map(|number| [of, number]));
        let kernels = dtypes.flat_map(|dtypes| kinds.map(|kind| product_kernel(kind, dtypes)));
        let units: Vec<(String, String)> =
            kernels.map(|kernel| (kernel.name.clone(), thalweg_ir::cuda::print_foreach(&kernel))).collect();
        assert!(units.iter().any(|(name, _)| name == "clip_list_bfloat16_by_float32"));
        thalweg_conformance::compiler_accepts(
            &thalweg_conformance::ARCHITECTURES,
            &units,
            thalweg_ir::cuda::OPTIONS,
        );
    }
}
