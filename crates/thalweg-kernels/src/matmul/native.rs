//! Products as launches: the ranges that they touch, and their host functions.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use thalweg_driver::{
    Access, Activation, ActivationPass, DevicePointer, HostFault, HostKernel, HostLaunch, MatmulActivation,
    MatmulEpilogue, Touch,
};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::{Fault, Slice, SliceMut};
use thalweg_ir::{DType, Element, with_dtype};

use super::fused::{self, FusedMatmul, HostOperands, PerOperand};
use super::{ARGUMENT_WORDS, Factor, Matmul, Operand};
use crate::native::{Accesses, NativeKernel, Placed, Words, native};
use crate::operands::slice;

/// Operands: the left factor, the right factor and the result.
impl NativeKernel for Placed<Matmul, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        super::cuda::name(self.kernel.dtype)
    }

    fn source(&self) -> String {
        super::cuda::print(self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        host_function().clone()
    }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.check()
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Matmul { m, n, batch, .. } = self.kernel;
        (m > 0 && n > 0 && batch > 0).then(|| super::cuda::launch_shape(&self.kernel))
    }

    fn words(&self) -> Words {
        let [a, b, d] = self.at.map(DevicePointer::address);
        self.kernel.pack(a, b, d).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let Self { kernel: product, at: [a, b, d] } = self;
        let bytes = product.spans().map(|elements| elements * product.dtype.size_bytes() as u64);
        let touch = |operand, rows, columns| touch_of_matrix(product, operand, rows, columns);
        let result = if product.accumulates() {
            Access::read_write(*d, bytes[2])
        } else {
            Access::write(*d, bytes[2])
        };
        Accesses::from_iter([
            Access::read(*a, bytes[0]).touching(touch(&product.a, product.m, product.k)),
            Access::read(*b, bytes[1]).touching(touch(&product.b, product.k, product.n)),
            result.touching(touch(&product.d, product.m, product.n)),
        ])
    }
}

/// Operands: the addresses of a [`PerOperand`].
impl NativeKernel for Placed<FusedMatmul, PerOperand> {
    native! { self: fused::cuda::NAME, fused::cuda::print(), run_fused_on_host }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.check()
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let spans = self.kernel.spans();
        (spans.d > 0 || spans.row_sums > 0).then(|| fused::cuda::launch_shape(&self.kernel))
    }

    fn words(&self) -> Words {
        self.kernel.pack(&self.at).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let Self { kernel: fused, at } = self;
        let (product, spans) = (&fused.product, fused.spans());
        let bytes = |elements: u64| elements * size_of::<f32>() as u64;
        let (m, n, k) = (product.m, product.n, product.k);
        let read = |address: u64, span: u64| Access::read(DevicePointer::new(address), bytes(span));
        let write = |address: u64, span: u64| Access::write(DevicePointer::new(address), bytes(span));
        let mut accesses = Accesses::from_iter([
            read(at.a, spans.a).touching(touch_of_matrix(product, &product.a, m, k)),
            read(at.b, spans.b).touching(touch_of_matrix(product, &product.b, k, n)),
            read(at.bias, spans.bias),
            write(at.d, spans.d).touching(touch_of_matrix(product, &product.d, m, n)),
            write(at.row_sums, spans.row_sums),
        ]);
        if let Some(addend) = &fused.addend {
            accesses.push(read(at.addend, spans.addend).touching(touch_of_matrix(product, addend, m, n)));
        }
        accesses
    }
}

/// Returns the bytes of its span that a matrix of a product touches. The matrix has this many rows and columns in the product.
pub(super) fn touch_of_matrix(product: &Matmul, operand: &Operand, rows: u64, columns: u64) -> Touch {
    let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
    let dimensions = [(product.batch, operand.batch_stride), (rows, operand.leading_dimension), (columns, 1)];
    Touch::of(dimensions.into_iter(), product.dtype.size_bytes() as u64)
}

/// Returns the host function of a [`Matmul`], which accompanies the call of the vendor's library. The product's words may be
/// followed by those of a [`MatmulEpilogue`] ([`library_words`]): then D's previous contents are not added, and each element is
/// rounded before an activation or its derivative is applied.
pub fn host_function() -> &'static Arc<dyn HostKernel> {
    static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
    FUNCTION.get_or_init(|| Arc::new(run_on_host))
}

/// The passes of activations, numbered from 1.
const PASSES: [(Activation, ActivationPass); 4] = [
    (Activation::Gelu, ActivationPass::Forward),
    (Activation::Gelu, ActivationPass::Backward),
    (Activation::Relu, ActivationPass::Forward),
    (Activation::Relu, ActivationPass::Backward),
];

/// Returns the host function of a [`Matmul`] of 16-bit floats whose D is of f32. Its arguments are the product's.
pub fn wide_host_function() -> &'static Arc<dyn HostKernel> {
    static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
    FUNCTION.get_or_init(|| Arc::new(run_wide_on_host))
}

fn run_wide_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let refused = || HostFault("matmul: the arguments are not in its layout".to_owned());
    let (product, [a, b, d]) = Matmul::unpack(launch.arguments).ok_or_else(refused)?;
    let [a_span, b_span, d_span] = product.spans();
    let wide = |address: u64, span: u64| -> Result<Vec<f32>, HostFault> {
        with_dtype!(product.dtype, T => {
            let elements = launch.read::<T>(DevicePointer::new(address), span as usize)?;
            Ok(elements.iter().map(|element| element.to_f64() as f32).collect())
        })
    };
    let (a, b) = (wide(a, a_span)?, wide(b, b_span)?);
    let d = launch.write::<f32>(DevicePointer::new(d), d_span as usize)?;
    let product = Matmul { dtype: DType::F32, ..product };
    let (a, b): (Slice<'_>, Slice<'_>) = (a.as_slice().into(), b.as_slice().into());
    super::host::run(&product, a, b, d.into()).map_err(|fault| HostFault(format!("matmul: {fault}")))
}

/// Returns the ranges that a product of 16-bit floats touches whose D is of f32.
#[must_use]
pub fn wide_accesses(placed: &Placed<Matmul, [DevicePointer; 3]>) -> Accesses {
    let wide = Placed { kernel: Matmul { dtype: DType::F32, ..placed.kernel }, at: placed.at };
    let operands = placed.accesses().into_iter().take(2);
    operands.chain(wide.accesses().into_iter().skip(2)).collect()
}

/// Returns the arguments of [`host_function`] for a product with an epilogue. After the product's words these are: the address of
/// the bias, or 0; the number of an activation's pass (1 and 2 for GELU forward and backward, 3 and 4 for the rectified linear
/// unit), or 0; and the address and the leading dimension of the memory that the activation keeps.
#[must_use]
pub fn library_words(placed: &Placed<Matmul, [DevicePointer; 3]>, epilogue: &MatmulEpilogue) -> Words {
    let mut words = placed.words();
    if *epilogue != MatmulEpilogue::default() {
        let activation = epilogue.activation.map_or([0; 3], |activation| {
            let MatmulActivation { function, pass, kept, leading_dimension } = activation;
            let is_it = |pair: &(Activation, ActivationPass)| *pair == (function, pass);
            let number = PASSES.iter().position(is_it).expect("the list has all") as u64 + 1;
            [number, kept.address(), leading_dimension]
        });
        words.push(epilogue.bias.map_or(0, DevicePointer::address));
        words.extend(activation);
    }
    words
}

/// Returns the ranges that a product with an epilogue touches.
#[must_use]
pub fn library_accesses(placed: &Placed<Matmul, [DevicePointer; 3]>, epilogue: &MatmulEpilogue) -> Accesses {
    let (product, mut accesses) = (&placed.kernel, placed.accesses());
    let size = product.dtype.size_bytes() as u64;
    accesses.extend(epilogue.bias.map(|bias| Access::read(bias, product.n * size)));
    accesses.extend(epilogue.activation.map(|activation| {
        let MatmulActivation { function, pass, kept, leading_dimension } = activation;
        let access = |bytes: u64| match pass {
            ActivationPass::Forward => Access::write(kept, bytes),
            ActivationPass::Backward => Access::read(kept, bytes),
        };
        match function {
            Activation::Gelu => {
                let touch = Touch::of([(product.m, leading_dimension), (product.n, 1)].into_iter(), size);
                access(argument_span(product, leading_dimension) * size).touching(touch)
            }
            Activation::Relu => access(product.m * leading_dimension / 8),
        }
    }));
    accesses
}

/// Returns the number of elements that GELU's argument spans.
fn argument_span(product: &Matmul, leading_dimension: u64) -> u64 {
    if product.m == 0 || product.n == 0 { 0 } else { (product.m - 1) * leading_dimension + product.n }
}

/// The number of words of an epilogue; all of them are 0 if there is none.
pub(super) const EPILOGUE_WORDS: usize = 4;

/// Reads the words of an epilogue.
fn epilogue_of(bytes: &[u8]) -> Option<MatmulEpilogue> {
    if bytes.is_empty() {
        return Some(MatmulEpilogue::default());
    }
    let [bias, number, kept, leading_dimension] = crate::arguments::words::<EPILOGUE_WORDS>(bytes)?;
    let kept = DevicePointer::new(kept);
    let activation = match usize::try_from(number).ok()?.checked_sub(1) {
        None => None,
        Some(place) => {
            let &(function, pass) = PASSES.get(place)?;
            Some(MatmulActivation { function, pass, kept, leading_dimension })
        }
    };
    Some(MatmulEpilogue { bias: (bias != 0).then_some(DevicePointer::new(bias)), activation })
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    run_words_on_host(launch, launch.arguments)
}

/// Runs the product that these bytes of a launch's arguments describe, in the layout of [`library_words`].
pub(super) fn run_words_on_host(launch: &HostLaunch<'_>, bytes: &[u8]) -> Result<(), HostFault> {
    let refused = || HostFault("matmul: the arguments are not in its layout".to_owned());
    let (words, epilogue) = bytes.split_at_checked(size_of::<[u64; ARGUMENT_WORDS]>()).ok_or_else(refused)?;
    let epilogue = epilogue_of(epilogue).ok_or_else(refused)?;
    let (mut product, [a, b, d]) = Matmul::unpack(words).ok_or_else(refused)?;
    let [a_span, b_span, d_span] = product.spans();
    let a = slice(launch, product.dtype, a, a_span)?;
    let b = slice(launch, product.dtype, b, b_span)?;
    let (d, count) = (DevicePointer::new(d), d_span as usize);
    with_dtype!(product.dtype, T => {
        let d = launch.write::<T>(d, count)?;
        if let Some(bias) = epilogue.bias {
            let bias = launch.read::<T>(bias, product.n as usize)?;
            // A row that starts with the bias, and to which the product is added, is rounded only once.
            rows_of(&product).for_each(|row| d[row].copy_from_slice(bias));
            product.beta = Factor::ONE;
        }
        let target: SliceMut<'_> = (&mut *d).into();
        super::host::run(&product, a, b, target).map_err(|fault| HostFault(format!("matmul: {fault}")))?;
        match epilogue.activation {
            Some(activation) if activation.function == Activation::Gelu => apply_gelu(&product, activation, launch, d),
            Some(activation) => apply_relu(&product, activation, launch, d),
            None => Ok(()),
        }
    })
}

/// Applies the rectified linear unit to D. Forward, sets a bit for each element above 0 and replaces the others with 0; backward,
/// replaces the elements whose bit is not set with 0.
fn apply_relu<T: Element>(
    product: &Matmul,
    MatmulActivation { pass, kept, leading_dimension, .. }: MatmulActivation,
    launch: &HostLaunch<'_>,
    d: &mut [T],
) -> Result<(), HostFault> {
    let row_bytes = (leading_dimension / 8) as usize;
    let count = product.m as usize * row_bytes;
    let places = rows_of(product).enumerate().flat_map(|(row, columns)| {
        columns
            .enumerate()
            .map(move |(column, place)| (place, row * row_bytes + column / 8, 1_u8 << (column % 8)))
    });
    let zero = T::from_f64(0.0);
    if pass == ActivationPass::Forward {
        let bits = launch.write::<u8>(kept, count)?;
        bits.fill(0);
        for (place, byte, bit) in places {
            // NaN stays NaN.
            if d[place].to_f64() > 0.0 {
                bits[byte] |= bit;
            } else if d[place].to_f64() <= 0.0 {
                d[place] = zero;
            }
        }
    } else {
        let bits = launch.read::<u8>(kept, count)?;
        for (place, byte, bit) in places {
            if bits[byte] & bit == 0 {
                d[place] = zero;
            }
        }
    }
    Ok(())
}

/// Applies GELU to the elements of D, which are kept as its argument, or multiplies them by its derivative.
fn apply_gelu<T: Element>(
    product: &Matmul,
    MatmulActivation { pass, kept: input, leading_dimension, .. }: MatmulActivation,
    launch: &HostLaunch<'_>,
    d: &mut [T],
) -> Result<(), HostFault> {
    let count = argument_span(product, leading_dimension) as usize;
    let places = rows_of(product).enumerate().flat_map(|(row, columns)| {
        columns.enumerate().map(move |(column, place)| (place, row * leading_dimension as usize + column))
    });
    if pass == ActivationPass::Forward {
        let argument = launch.write::<T>(input, count)?;
        for (place, at) in places {
            argument[at] = d[place];
            d[place] = T::from_f64(gelu(d[place].to_f64()).0);
        }
    } else {
        let argument = launch.read::<T>(input, count)?;
        for (place, at) in places {
            d[place] = T::from_f64(d[place].to_f64() * gelu(argument[at].to_f64()).1);
        }
    }
    Ok(())
}

/// Returns GELU by its tanh approximation, and its derivative.
fn gelu(x: f64) -> (f64, f64) {
    let factor = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let tanh = (factor * (x + 0.044_715 * x * x * x)).tanh();
    let slope = factor * (1.0 + 3.0 * 0.044_715 * x * x);
    (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
}

/// Returns the ranges of D's rows.
fn rows_of(product: &Matmul) -> impl Iterator<Item = Range<usize>> + use<> {
    let Matmul { m, n, batch, d, .. } = *product;
    (0..batch).flat_map(move |item| {
        (0..m).map(move |row| {
            let first = (item * d.batch_stride + row * d.leading_dimension) as usize;
            first..first + n as usize
        })
    })
}

fn run_fused_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (fused, at) = FusedMatmul::unpack(launch.arguments)
        .ok_or_else(|| HostFault("fused matmul: the arguments are not in its layout".to_owned()))?;
    let spans = fused.spans();
    let read = |address: u64, span: u64| -> Result<&[f32], HostFault> {
        if span == 0 { Ok(&[]) } else { launch.read(DevicePointer::new(address), span as usize) }
    };
    let write = |address: u64, span: u64| -> Result<&mut [f32], HostFault> {
        if span == 0 { Ok(&mut []) } else { launch.write(DevicePointer::new(address), span as usize) }
    };
    let operands = HostOperands {
        a: read(at.a, spans.a)?,
        b: read(at.b, spans.b)?,
        bias: read(at.bias, spans.bias)?,
        addend: read(at.addend, spans.addend)?,
        d: write(at.d, spans.d)?,
        row_sums: write(at.row_sums, spans.row_sums)?,
    };
    fused::run_on_host(&fused, operands).map_err(|fault| HostFault(fault.to_string()))
}
