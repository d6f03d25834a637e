//! [`Selection`]: the elements whose flags are set, of which the host has read the number.

use thalweg_ir::DType;
use thalweg_kernels::compact::{Compact, MOST_DIMENSIONS, Work};
use thalweg_runtime::graph::audit::ObstacleKind;
use thalweg_runtime::{Error, Label, Result, refuse};

use crate::native::launch;
use crate::tensor::Tensor;

/// Flags, and the numbers of set ones in parts of them, on the device.
pub(crate) struct Flags {
    flags: Tensor,
    counts: Tensor,
    label: Label,
}

/// Flags, of which the host knows the number of set ones.
pub(crate) struct Selection {
    flags: Flags,
    /// The number of set flags.
    pub count: usize,
}

impl Flags {
    /// Counts the elements that are not 0, or truth values that are true.
    pub(crate) fn new(x: &Tensor, label: Label) -> Result<Self> {
        let flags = x.detach().contiguous_as(DType::Bool)?;
        let kernel = Compact::count(flags.elements() as u64);
        let stream = x.device().current_stream();
        let counts = Tensor::empty_on(&[kernel.parts() as usize], DType::I64, &stream, label)?;
        let flags = Self { flags, counts, label };
        flags.launch(kernel, [None; 3])?;
        Ok(flags)
    }

    /// Waits for the number of set flags.
    pub(crate) fn select(self) -> Result<Selection> {
        let counts: Vec<i64> = self.counts.read(self.label, Some(ObstacleKind::DataDependentShape))?;
        Ok(Selection { flags: self, count: counts.into_iter().sum::<i64>() as usize })
    }

    /// Launches a kernel whose operands follow flags and counts.
    fn launch(&self, kernel: Compact, rest: [Option<&Tensor>; 3]) -> Result<()> {
        let [source, other, result] = rest;
        launch(kernel, [Some(&self.flags), Some(&self.counts), source, other, result], self.label)
    }

    fn kernel(&self, work: Work) -> Compact {
        Compact { work, ..Compact::count(self.flags.elements() as u64) }
    }

    /// Writes the coordinates of the first set flags in these extents to a tensor (rows, dimensions), and a number in the rows
    /// after them.
    pub(crate) fn write_coordinates(&self, extents: &[usize], fill: i64, result: &Tensor) -> Result<()> {
        if extents.len() > MOST_DIMENSIONS {
            refuse!("nonzero is not supported for tensor with more than {MOST_DIMENSIONS} dimensions");
        }
        let strides = result.layout().strides();
        let mut kernel = Compact {
            limit: result.shape()[0] as u64,
            fill,
            strides: [strides[0] as u64, strides[1] as u64],
            rank: extents.len() as u64,
            ..self.kernel(Work::Coordinates)
        };
        kernel.extents.iter_mut().zip(extents).for_each(|(to, &extent)| *to = extent as u64);
        self.launch(kernel, [None, None, Some(result)])
    }

    /// Writes the rank of each element: the number of set flags up to and including its own, minus 1. With an order, the rank of each
    /// element is written at the position that the order contains for it.
    pub(crate) fn ranks(&self, order: Option<&Tensor>) -> Result<Tensor> {
        let stream = self.flags.device().current_stream();
        let result = Tensor::empty_on(&[self.flags.elements()], DType::I64, &stream, self.label)?;
        let order = order.map(Tensor::contiguous).transpose()?;
        self.launch(self.kernel(Work::Ranks), [None, order.as_ref(), Some(&result)])?;
        Ok(result)
    }
}

impl Selection {
    /// Waits for the number of elements that are not 0, or of truth values that are true.
    pub(crate) fn new(x: &Tensor, label: Label) -> Result<Self> {
        if x.elements() == 0 {
            let none = Tensor::empty(&[0], DType::I64, x.device())?;
            let flags = Flags { flags: x.detach().to_dtype(DType::Bool)?, counts: none, label };
            return Ok(Self { flags, count: 0 });
        }
        Flags::new(x, label)?.select()
    }

    /// Returns the coordinates of the set flags as (rows, dimensions). The coordinates of one dimension follow those of the
    /// previous one in memory, as in PyTorch.
    pub(crate) fn coordinates(&self, extents: &[usize]) -> Result<Tensor> {
        let device = self.flags.flags.device();
        let transposed = Tensor::empty_on(
            &[extents.len(), self.count],
            DType::I64,
            &device.current_stream(),
            self.flags.label,
        )?;
        let result = transposed.transpose(0, 1)?;
        if self.count > 0 {
            self.flags.write_coordinates(extents, 0, &result)?;
        }
        Ok(result)
    }

    /// Returns the numbers of the set flags.
    pub(crate) fn places(&self) -> Result<Tensor> {
        self.coordinates(&[self.flags.flags.elements()])?.reshape(&[self.count])
    }

    /// Returns the elements of a tensor with as many elements as flags whose flags are set.
    pub(crate) fn values(&self, source: &Tensor) -> Result<Tensor> {
        self.elements(Work::Values, source, None, &[self.count])
    }

    /// Returns the elements of a tensor with as many elements as flags, those whose flags are set replaced by the first ones of
    /// another.
    pub(crate) fn replaced(&self, source: &Tensor, by: &Tensor) -> Result<Tensor> {
        self.elements(Work::Replaced, source, Some(by), source.shape())
    }

    /// Returns elements of a tensor with as many elements as flags, or of another one, in a result of this shape.
    fn elements(&self, work: Work, source: &Tensor, by: Option<&Tensor>, shape: &[usize]) -> Result<Tensor> {
        let source = source.detach().contiguous()?;
        let by = by.map(|by| by.detach().contiguous()).transpose()?;
        let stream = source.device().current_stream();
        let result = Tensor::result_on(shape, source.dtype(), &stream, self.flags.label)?;
        let element_bytes = source.dtype().size_bytes() as u64;
        let kernel = Compact { limit: self.count as u64, element_bytes, ..self.flags.kernel(work) };
        if result.elements() > 0 {
            self.flags.launch(kernel, [Some(&source), by.as_ref(), Some(&result)])?;
        }
        Ok(result)
    }

    /// Writes the rank of each element: the number of set flags up to and including its own, minus 1. With an order, the rank of each
    /// element is written at the position that the order contains for it.
    pub(crate) fn ranks(&self, order: Option<&Tensor>) -> Result<Tensor> {
        self.flags.ranks(order)
    }
}
