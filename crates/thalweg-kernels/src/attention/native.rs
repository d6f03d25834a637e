//! The passes as launches: the ranges that they touch, and their host functions.

use std::cell::Cell;
use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use super::{
    Addresses, Attention, AttentionPass, GradientPasses, LibraryAttention, Operands, Outputs, Pass,
    TensorCores,
};
use crate::native::{Accesses, Native, NativeKernel, Placed, Words, native};

/// The bytes of seed and offset.
const STATE_BYTES: u64 = 2 * size_of::<u64>() as u64;

/// Operands: the [`Addresses`] of the pass.
/// Operands: those of every pass, but for the address of the sums.
impl Native<Addresses> for GradientPasses<'_> {
    fn scratch_bytes(&self) -> u64 {
        self.sums.attention.sums() * size_of::<f32>() as u64
    }

    fn launches(self, at: Addresses, sums: DevicePointer) -> impl Iterator<Item = impl NativeKernel> {
        let at = Addresses { sums: sums.address(), ..at };
        let passes = self.passes.iter().map(move |&pass| AttentionPass { pass, ..self.sums });
        [self.sums].into_iter().chain(passes).map(move |kernel| Placed { kernel, at })
    }
}

impl NativeKernel for Placed<AttentionPass, Addresses> {
    native! { self: self.kernel.unit().name(), self.kernel.unit().print(), run }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.attention.check()?;
        let is_element = self.at.mask.is_multiple_of(self.kernel.attention.mask_bytes());
        Fault::unless(
            is_element && self.at.operands.list().iter().all(|address| address.is_multiple_of(16)),
            || "attention: operands begin at multiples of 16 bytes".to_owned(),
        )
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        self.kernel.shape()
    }

    fn shared_memory_bytes(&self) -> u32 {
        self.kernel.unit().shared_memory_bytes()
    }

    fn words(&self) -> Words {
        self.kernel.pack(&self.at).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let Self { kernel: AttentionPass { attention, pass, .. }, at } = self;
        let (spans, touches) = (attention.spans().list(), attention.touches().list());
        let addresses = at.operands.list();
        let size = attention.dtype.size_bytes() as u64;
        let read = |place: usize| {
            Access::read(DevicePointer::new(addresses[place]), spans[place] * size).touching(touches[place])
        };
        let write = |place: usize| {
            Access::write(DevicePointer::new(addresses[place]), spans[place] * size).touching(touches[place])
        };
        let (lse, sums) = (DevicePointer::new(at.lse), DevicePointer::new(at.sums));
        let (lse_bytes, sums_bytes) = (attention.lse() * 4, attention.sums() * 4);
        let mut accesses = match pass {
            Pass::Forward => {
                Accesses::from_iter([read(0), read(1), read(2), write(3), Access::write(lse, lse_bytes)])
            }
            Pass::Sums => Accesses::from_iter([
                read(3),
                read(4),
                Access::read(lse, lse_bytes),
                Access::write(sums, sums_bytes),
            ]),
            Pass::Keys => Accesses::from_iter([
                read(0),
                read(1),
                read(2),
                read(4),
                Access::read(sums, sums_bytes),
                write(6),
                write(7),
            ]),
            Pass::Queries => Accesses::from_iter([
                read(0),
                read(1),
                read(2),
                read(4),
                Access::read(sums, sums_bytes),
                write(5),
            ]),
            Pass::Mask => {
                let bytes = attention.mask_parts * attention.elements_of_mask_part() * 4;
                let write = Access::write(DevicePointer::new(at.grad_mask), bytes);
                Accesses::from_iter([
                    read(0),
                    read(1),
                    read(2),
                    read(4),
                    Access::read(sums, sums_bytes),
                    write,
                ])
            }
        };
        if *pass != Pass::Sums {
            accesses.extend(of_scores(attention, at));
        }
        accesses
    }
}

/// A call of a library has [`Addresses`] of its operands and of the logarithms of sums, but no address of the sums of the gradient.
impl Placed<LibraryAttention, Addresses> {
    fn pass(&self) -> Placed<AttentionPass, Addresses> {
        let pass = if self.kernel.is_backward { Pass::Sums } else { Pass::Forward };
        let kernel =
            AttentionPass { attention: self.kernel.attention, pass, cores: TensorCores::Warp, processors: 0 };
        Placed { kernel, at: self.at }
    }

    /// Checks that the library can compute the call.
    ///
    /// # Errors
    /// Those of [`Attention::check`]; and if operands are float32, an operand does not begin at a multiple of 16 bytes, or the mask is not [one for the
    /// library](super::Mask::is_of_library), or there is dropout.
    pub fn check(&self) -> Result<(), Fault> {
        if self.kernel.attention.mask.is_some_and(|mask| !mask.is_of_library(self.at.mask)) {
            return Err(Fault::new(
                "attention: a library takes a mask of numbers whose keys follow one another, with strides and an address in multiples of \
                 16 bytes"
                    .to_owned(),
            ));
        }
        if self.kernel.attention.dtype == DType::F32 {
            return Err(Fault::new("attention: a library takes bfloat16 or float16".to_owned()));
        }
        if self.kernel.attention.dropout.is_some() {
            return Err(Fault::new("attention: a library draws other numbers for dropout".to_owned()));
        }
        self.pass().check()
    }

    /// Returns the host function, which reads [`words`](Self::words).
    #[must_use]
    pub fn host(&self) -> Arc<dyn HostKernel> {
        if self.kernel.is_backward { Arc::new(run_backward) } else { Arc::new(run) }
    }

    /// Returns the arguments of the host function.
    #[must_use]
    pub fn words(&self) -> Words {
        self.pass().words()
    }

    /// Returns the ranges that the call touches, except its workspace.
    #[must_use]
    pub fn accesses(&self) -> Accesses {
        if !self.kernel.is_backward {
            return self.pass().accesses();
        }
        let attention = &self.kernel.attention;
        let (spans, touches) = (attention.spans().list(), attention.touches().list());
        let size = attention.dtype.size_bytes() as u64;
        let operands = self.at.operands.list().into_iter().zip(spans).zip(touches).enumerate();
        let mut accesses: Accesses = operands
            .map(|(place, ((address, span), touch))| {
                let (address, bytes) = (DevicePointer::new(address), span * size);
                let access =
                    if place < 5 { Access::read(address, bytes) } else { Access::write(address, bytes) };
                access.touching(touch)
            })
            .collect();
        accesses.push(Access::read(DevicePointer::new(self.at.lse), attention.lse() * 4));
        accesses.extend(of_scores(attention, &self.at));
        accesses
    }
}

/// Returns the accesses of every pass that computes scores: to the mask and to the generator's state.
fn of_scores(attention: &Attention, at: &Addresses) -> impl Iterator<Item = Access> {
    let (span, touch) = attention.mask_span();
    let bytes = span * attention.mask_bytes();
    let mask = attention.mask.map(|_| Access::read(DevicePointer::new(at.mask), bytes).touching(touch));
    let state = attention.dropout.map(|_| Access::read(DevicePointer::new(at.state), STATE_BYTES));
    mask.into_iter().chain(state)
}

/// The mask, as numbers or as truth values, and the generator's state.
type OfScores<'l, T> = (&'l [T], &'l [u8], [u64; 2]);

/// Reads the mask, as numbers or as truth values, and the generator's state.
fn read_of_scores<'l, T: Element>(
    launch: &'l HostLaunch<'_>,
    attention: &Attention,
    at: &Addresses,
) -> Result<OfScores<'l, T>, HostFault> {
    let (mask, span) = (DevicePointer::new(at.mask), attention.mask_span().0 as usize);
    let is_truth = attention.mask.is_some_and(|mask| mask.is_truth);
    let numbers = if span > 0 && !is_truth { launch.read(mask, span)? } else { &[] };
    let truths = if span > 0 && is_truth { launch.read(mask, span)? } else { &[] };
    let state = match attention.dropout {
        Some(_) => launch.read::<u64>(DevicePointer::new(at.state), 2)?,
        None => &[0; 2],
    };
    Ok((numbers, truths, [state[0], state[1]]))
}

fn run_backward(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (pass, at) = AttentionPass::unpack(launch.arguments)
        .ok_or_else(|| HostFault("attention: the arguments are not in its layout".to_owned()))?;
    match pass.attention.dtype {
        DType::Bf16 => run_backward_typed::<bf16>(launch, &pass.attention, &at),
        DType::F16 => run_backward_typed::<f16>(launch, &pass.attention, &at),
        DType::F32 => run_backward_typed::<f32>(launch, &pass.attention, &at),
        other => Err(HostFault(format!("attention: {other} is not a dtype of its operands"))),
    }
}

/// Runs the passes of the gradient, one after another.
fn run_backward_typed<T: Element>(
    launch: &HostLaunch<'_>,
    attention: &Attention,
    at: &Addresses,
) -> Result<(), HostFault> {
    let (spans, addresses) = (attention.spans().list(), at.operands.list());
    let read = |place: usize| launch.read::<T>(DevicePointer::new(addresses[place]), spans[place] as usize);
    let write = |place: usize| launch.cells::<T>(DevicePointer::new(addresses[place]), spans[place] as usize);
    let mut sums = vec![0.0_f32; attention.sums() as usize];
    let (mask, truths, state) = read_of_scores(launch, attention, at)?;
    let operands = Operands {
        q: read(0)?,
        k: read(1)?,
        v: read(2)?,
        o: read(3)?,
        grad_o: read(4)?,
        lse: launch.read(DevicePointer::new(at.lse), attention.lse() as usize)?,
        sums: &[],
        mask,
        truths,
        state,
    };
    let none = Outputs { rows: &[], grad_k: &[], grad_v: &[], numbers: &[] };
    let numbers = Cell::from_mut(sums.as_mut_slice()).as_slice_of_cells();
    super::run_on_host(attention, Pass::Sums, operands, Outputs { numbers, ..none });
    let operands = Operands { sums: &sums, ..operands };
    let keys = Outputs { grad_k: write(6)?, grad_v: write(7)?, ..none };
    super::run_on_host(attention, Pass::Keys, operands, keys);
    super::run_on_host(attention, Pass::Queries, operands, Outputs { rows: write(5)?, ..none });
    Ok(())
}

fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (pass, at) = AttentionPass::unpack(launch.arguments)
        .ok_or_else(|| HostFault("attention: the arguments are not in its layout".to_owned()))?;
    match pass.attention.dtype {
        DType::Bf16 => run_typed::<bf16>(launch, &pass, &at),
        DType::F16 => run_typed::<f16>(launch, &pass, &at),
        DType::F32 => run_typed::<f32>(launch, &pass, &at),
        other => Err(HostFault(format!("attention: {other} is not a dtype of its operands"))),
    }
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    kernel: &AttentionPass,
    at: &Addresses,
) -> Result<(), HostFault> {
    let AttentionPass { attention, pass, .. } = kernel;
    let (spans, addresses) = (attention.spans().list(), at.operands.list());
    let of_mask = attention.mask_parts * attention.elements_of_mask_part();
    let [lse, sums, of_mask] = [attention.lse(), attention.sums(), of_mask].map(|count| count as usize);
    let is_sums = *pass == Pass::Sums;
    let backward = !is_sums && *pass != Pass::Forward;
    let read = |place: usize, is: bool| -> Result<&[T], HostFault> {
        if !is || spans[place] == 0 {
            return Ok(&[]);
        }
        launch.read(DevicePointer::new(addresses[place]), spans[place] as usize)
    };
    let write = |place: usize, is: bool| {
        let count = if is { spans[place] as usize } else { 0 };
        if count == 0 { Ok(&[][..]) } else { launch.cells::<T>(DevicePointer::new(addresses[place]), count) }
    };
    let numbers = |address: u64, count: usize, is: bool| -> Result<&[f32], HostFault> {
        if is && count > 0 { launch.read(DevicePointer::new(address), count) } else { Ok(&[]) }
    };
    let (mask, truths, state) = match is_sums {
        true => (&[][..], &[][..], [0; 2]),
        false => read_of_scores(launch, attention, at)?,
    };
    let operands = Operands {
        q: read(0, !is_sums)?,
        k: read(1, !is_sums)?,
        v: read(2, !is_sums)?,
        o: read(3, is_sums)?,
        grad_o: read(4, *pass != Pass::Forward)?,
        lse: numbers(at.lse, lse, is_sums)?,
        sums: numbers(at.sums, sums, backward)?,
        mask,
        truths,
        state,
    };
    let outputs = Outputs {
        rows: if *pass == Pass::Forward { write(3, true)? } else { write(5, *pass == Pass::Queries)? },
        grad_k: write(6, *pass == Pass::Keys)?,
        grad_v: write(7, *pass == Pass::Keys)?,
        numbers: match pass {
            Pass::Forward if lse > 0 => launch.cells::<f32>(DevicePointer::new(at.lse), lse)?,
            Pass::Sums if sums > 0 => launch.cells::<f32>(DevicePointer::new(at.sums), sums)?,
            Pass::Mask if of_mask > 0 => launch.cells::<f32>(DevicePointer::new(at.grad_mask), of_mask)?,
            _ => &[],
        },
    };
    super::run_on_host(attention, *pass, operands, outputs);
    Ok(())
}
