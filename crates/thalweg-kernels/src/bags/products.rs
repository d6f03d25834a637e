//! [`BagProducts`].

use std::sync::LazyLock;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::Element as _;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use super::{BLOCK, check};
use crate::arguments::{self, arguments};
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, ReportIndex, Words, along_x, native};
use crate::scatter::{Combine, Term as _, VECTOR, Wide, typed, width_of};
use crate::source::Source;

/// The scalar product of each index's row of a table with the gradient of its bag; 0 for the padding index. See the
/// [module](super).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BagProducts {
    /// The number of indices.
    pub count: u64,
    /// The number of bags: rows of the gradient.
    pub bags: u64,
    /// Rows of the table.
    pub rows: u64,
    /// Elements of a row.
    pub features: u64,
    /// The distance between the gradient's rows, in elements.
    pub gradient_stride: u64,
    /// The index whose product is 0; −1 if there is none.
    pub padding: i64,
    /// The dtype of gradient, table and result: a floating-point type. 16-bit floats are multiplied and added in f32, and rounded once.
    pub dtype: DType,
}

arguments! { BagProducts { count, bags, rows, features, gradient_stride, padding, dtype } }

/// The operands of a launch: gradient (rows contiguous in themselves), table, indices (i64), the bag of each (i64), and the result.
type Operands = [DevicePointer; 5];

impl BagProducts {
    /// Returns the number of elements that a thread handles at once, and the number of threads of a row.
    fn shape(&self, at: &Operands) -> [u64; 2] {
        let strides = [self.gradient_stride, self.features, 1];
        let width = width_of(self.dtype, self.features, strides, [at[0], at[1]]);
        [width, self.features.div_ceil(width).next_power_of_two().clamp(1, 32)]
    }

    fn form(&self, at: &Operands) -> &'static Form {
        static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| forms().collect());
        let is_wide = self.shape(at)[0] > 1;
        FORMS.iter().find(|form| form.dtype == self.dtype && form.is_wide == is_wide).unwrap_or(&FORMS[0])
    }

    /// Returns the number of elements that the gradient spans in memory.
    fn gradient_span(&self) -> u64 {
        if self.bags == 0 { 0 } else { (self.bags - 1) * self.gradient_stride + self.features }
    }
}

/// A variant of the kernel.
struct Form {
    dtype: DType,
    is_wide: bool,
    name: String,
}

fn forms() -> impl Iterator<Item = Form> {
    FLOATS.into_iter().flat_map(|dtype| {
        [false, true].map(|is_wide| {
            let wide = if is_wide { "_wide" } else { "" };
            Form { dtype, is_wide, name: format!("bags_products_{}{wide}", dtype.name()) }
        })
    })
}

impl Form {
    fn print(&self) -> String {
        let width = if self.is_wide { VECTOR / self.dtype.size_bytes() as u64 } else { 1 };
        let call = format_args!("products<{}, {width}>(x)", self.dtype.short_name());
        Source::new(&self.name).define("CALL", call).print(include_str!("products.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(super) fn sources() -> impl Iterator<Item = (String, String)> {
    forms().map(|form| (form.name.clone(), form.print()))
}

/// The words of a launch after its addresses, in the order of the CUDA code.
struct Described {
    kernel: BagProducts,
    lanes: u64,
}

arguments! { Described { kernel, lanes } }

impl NativeKernel for Placed<BagProducts, Operands> {
    native! { self: &self.kernel.form(&self.at).name, self.kernel.form(&self.at).print(), reports run_on_host }

    fn check(&self) -> Result<(), Fault> {
        check("bags_products", self.kernel.dtype)
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [_, lanes] = self.kernel.shape(&self.at);
        along_x(self.kernel.count.div_ceil(BLOCK / lanes), BLOCK)
    }

    fn words(&self) -> Words {
        let [_, lanes] = self.kernel.shape(&self.at);
        arguments::pack(&self.at, &Described { kernel: self.kernel, lanes })
    }

    fn accesses(&self) -> Accesses {
        let BagProducts { count, rows, features, dtype, .. } = self.kernel;
        let (element, index) = (dtype.size_bytes() as u64, size_of::<i64>() as u64);
        let [gradient, table, indices, bags_of, result] = self.at;
        Accesses::from_iter([
            Access::read(gradient, self.kernel.gradient_span() * element),
            Access::read(table, rows * features * element),
            Access::read(indices, count * index),
            Access::read(bags_of, count * index),
            Access::write(result, count * element),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>, report: &ReportIndex) -> Result<(), HostFault> {
    let (described, at, [slot]): (Described, Operands, _) = arguments::unpack("bags_products", launch)?;
    let tell = |named: i64| report(slot, named, described.kernel.rows as i64);
    typed!(described.kernel.dtype, T => run_typed::<T>(launch, &described.kernel, at, tell))
}

fn run_typed<T: Wide>(
    launch: &HostLaunch<'_>,
    kernel: &BagProducts,
    at: Operands,
    tell: impl Fn(i64),
) -> Result<(), HostFault> {
    let [count, bags, rows, features] =
        [kernel.count, kernel.bags, kernel.rows, kernel.features].map(|size| size as usize);
    let [width, lanes] = kernel.shape(&at).map(|number| number as usize);
    let [gradient, table, indices, bags_of, result] = at;
    let gradient = launch.read::<T>(gradient, kernel.gradient_span() as usize)?;
    let table = launch.read::<T>(table, rows * features)?;
    let indices = launch.read::<i64>(indices, count)?;
    let bags_of = launch.read::<i64>(bags_of, count)?;
    let result = launch.write::<T>(result, count)?;
    for (place, result) in result.iter_mut().enumerate() {
        let bag = usize::try_from(bags_of[place]).ok().filter(|&bag| bag < bags);
        let row = usize::try_from(indices[place]).ok().filter(|&row| row < rows);
        if row.is_none() {
            tell(indices[place]);
        }
        let mut sums = vec![T::Sum::from_f64(0.0); lanes];
        if let (Some(bag), Some(row)) = (bag, row)
            && indices[place] != kernel.padding
        {
            let gradient = &gradient[bag * kernel.gradient_stride as usize..][..features];
            for (column, (a, b)) in gradient.iter().zip(&table[row * features..][..features]).enumerate() {
                let product = a.widened().combine(Combine::Product, b.widened());
                let sum = &mut sums[column / width % lanes];
                *sum = sum.combine(Combine::Sum, product);
            }
        }
        while sums.len() > 1 {
            let others = sums.split_off(sums.len() / 2);
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = sum.combine(Combine::Sum, other));
        }
        *result = T::narrowed(sums[0]);
    }
    Ok(())
}
