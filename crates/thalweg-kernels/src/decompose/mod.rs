//! [`Decompose`]: decompositions of matrices, and solutions by them: Cholesky, LU, LDLᵀ, QR, eigenvalues, singular values.
//!
//! Matrices are row-major f64, one after another, and one block works on each. Single precision is not enough for computations
//! that *use* a decomposition (gradients subtract close numbers), and 64-bit arithmetic has half the rate of 32-bit on the GPUs
//! that these kernels are for. The host functions sum in the order of the kernels, so results have a GPU's bits.
//!
//! Algorithms (G. H. Golub, *Matrix Computations*): Cholesky by columns, LU by outer products with partial pivoting, LDLᵀ with
//! the pivoting of J. R. Bunch and L. Kaufman (Mathematics of Computation 31, 1977), QR by Householder reflectors in LAPACK's
//! packed form, eigenvalues of symmetric matrices and singular values by cyclic Jacobi rotations, those of other matrices by QR
//! steps with J. H. Wilkinson's shifts on complex matrices in Hessenberg form.

mod cuda;
mod eigenvalues;
mod host;
mod indefinite;
pub mod library;

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{Element, c128};

use crate::arguments::{self, arguments, choices};
use crate::native::{Accesses, NativeKernel, Placed, along_x, native};

/// A decomposition, or a solution by one. The operands of each are listed in order, without the leading (batch, …).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// A symmetric matrix (rows, rows), which is overwritten with its lower factor, with zeros above the diagonal; and an i32, 0
    /// or the order of the leading minor that is not positive definite. The part above the diagonal is not read.
    Cholesky,
    /// A triangular matrix (rows, rows), and right sides (rows, columns), which are overwritten with the solutions. Bit 0 of the
    /// flags: the upper triangle is read; bit 1: the matrix is transposed; bit 2: its diagonal is 1.
    Triangular,
    /// A matrix (rows, columns), which is overwritten with both factors, without the lower one's diagonal of ones; int32 numbers
    /// of the rows that were swapped (the lesser of both sizes), counted from 1; and an i32, 0 or the first pivot that is 0. Bit
    /// 0 of the flags: rows are swapped.
    Lu,
    /// Swapped rows (columns) as [`Method::Lu`] writes them, and the int64 rows in their new order (rows).
    Permutation,
    /// A matrix (rows, columns), which is overwritten with the upper factor, with the reflectors' vectors below the diagonal; and
    /// the reflectors' factors (the lesser of both sizes).
    Qr,
    /// Vectors of reflectors (rows, columns) below a diagonal, their factors (columns), and the first `width` columns of the product
    /// of the reflectors (rows, width).
    Reflectors,
    /// A symmetric matrix (rows, rows), which is overwritten; its eigenvectors as columns (rows, rows); and its eigenvalues, the least
    /// first (rows).
    Eigen,
    /// A matrix (rows, columns) with at least as many rows as columns, which is overwritten with the left singular vectors; the
    /// right ones as columns (columns, columns); and the singular values, the greatest first (columns).
    Singular,
    /// A symmetric matrix (rows, rows), whose lower triangle is read and overwritten with L and D: blocks of one or two rows in
    /// D's diagonal, and below them L, whose diagonal is 1; int32 numbers of the rows (rows) that were swapped, counted from 1,
    /// negative for both rows of a block of two; and an i32, 0 or the first block that is 0.
    Indefinite,
    /// L, D and the swapped rows as [`Method::Indefinite`] writes them, and right sides (rows, columns), which are overwritten
    /// with the solutions.
    IndefiniteSolve,
    /// A complex matrix (rows, rows), which is overwritten; its eigenvectors as columns of length 1 whose largest element is real
    /// (rows, rows); and its eigenvalues (rows), in no order. All are complex128.
    General,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 11] = [
        Self::Cholesky,
        Self::Triangular,
        Self::Lu,
        Self::Permutation,
        Self::Qr,
        Self::Reflectors,
        Self::Eigen,
        Self::Singular,
        Self::Indefinite,
        Self::IndefiniteSolve,
        Self::General,
    ];

    /// Returns the name of the entry point.
    fn name(self) -> &'static str {
        match self {
            Self::Cholesky => "decompose_cholesky",
            Self::Triangular => "decompose_triangular",
            Self::Lu => "decompose_lu",
            Self::Permutation => "decompose_permutation",
            Self::Qr => "decompose_qr",
            Self::Reflectors => "decompose_reflectors",
            Self::Eigen => "decompose_eigen",
            Self::Singular => "decompose_singular",
            Self::Indefinite => "decompose_indefinite",
            Self::IndefiniteSolve => "decompose_indefinite_solve",
            Self::General => "decompose_general",
        }
    }
}

/// The sizes of a launch. See the [module](self) and [`Method`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decompose {
    /// The method.
    pub method: Method,
    /// The number of matrices.
    pub batch: u64,
    /// The number of rows of a matrix.
    pub rows: u64,
    /// The number of columns of the matrix, or of the right sides.
    pub columns: u64,
    /// The number of columns of [`Method::Reflectors`]' product.
    pub width: u64,
    /// The flags of the method.
    pub flags: u64,
}

arguments! { Decompose { batch, rows, columns, width, flags, method } }
choices! { Method: Method::ALL }

/// The way in which an operand of a method is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Change,
}

/// Threads of a block.
const BLOCK: u32 = 256;

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Method::ALL.into_iter().map(|method| (method.name().to_owned(), cuda::print(method)))
}

impl Decompose {
    /// Returns the number of elements of each operand per matrix, their size in bytes, and their use.
    fn operands(&self) -> [(u64, u64, Use); 3] {
        let Self { rows, columns, width, .. } = *self;
        let least = rows.min(columns);
        let none = (0, 8, Use::Read);
        match self.method {
            Method::Cholesky => [(rows * rows, 8, Use::Change), (1, 4, Use::Write), none],
            Method::Triangular => [(rows * rows, 8, Use::Read), (rows * columns, 8, Use::Change), none],
            Method::Lu => [(rows * columns, 8, Use::Change), (least, 4, Use::Write), (1, 4, Use::Write)],
            Method::Permutation => [(columns, 4, Use::Read), (rows, 8, Use::Write), none],
            Method::Qr => [(rows * columns, 8, Use::Change), (least, 8, Use::Write), none],
            Method::Reflectors => {
                [(rows * columns, 8, Use::Read), (columns, 8, Use::Read), (rows * width, 8, Use::Write)]
            }
            Method::Eigen => {
                [(rows * rows, 8, Use::Change), (rows * rows, 8, Use::Write), (rows, 8, Use::Write)]
            }
            Method::Singular => [
                (rows * columns, 8, Use::Change),
                (columns * columns, 8, Use::Write),
                (columns, 8, Use::Write),
            ],
            Method::Indefinite => [(rows * rows, 8, Use::Change), (rows, 4, Use::Write), (1, 4, Use::Write)],
            Method::IndefiniteSolve => {
                [(rows * rows, 8, Use::Read), (rows, 4, Use::Read), (rows * columns, 8, Use::Change)]
            }
            Method::General => {
                [(rows * rows, 16, Use::Change), (rows * rows, 16, Use::Write), (rows, 16, Use::Write)]
            }
        }
    }
}

/// Operands: those that [`Method`] lists; null addresses for absent ones.
impl NativeKernel for Placed<Decompose, [DevicePointer; 3]> {
    native! { self: self.kernel.method.name(), cuda::print(self.kernel.method), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let Decompose { method, rows, columns, width, .. } = self.kernel;
        let fits = match method {
            Method::Singular => columns <= rows,
            Method::Reflectors => columns <= rows && width <= rows,
            _ => true,
        };
        Fault::unless(fits, || format!("{} does not take {rows}x{columns}", method.name()))
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let writes =
            self.kernel.operands().into_iter().any(|(count, _, usage)| count > 0 && usage != Use::Read);
        along_x(self.kernel.batch, BLOCK).filter(|_| writes)
    }

    fn accesses(&self) -> Accesses {
        let operands = self.at.into_iter().zip(self.kernel.operands());
        operands
            .map(|(at, (count, size, usage))| {
                let bytes = self.kernel.batch * count * size;
                match usage {
                    Use::Read => Access::read(at, bytes),
                    Use::Write => Access::write(at, bytes),
                    Use::Change => Access::read_write(at, bytes),
                }
            })
            .collect()
    }
}

/// Returns elements that a launch reads; an empty slice for a count of 0.
fn read<'a, T: Element>(launch: &'a HostLaunch<'_>, at: u64, count: u64) -> Result<&'a [T], HostFault> {
    if count == 0 { Ok(&[]) } else { launch.read(DevicePointer::new(at), count as usize) }
}

/// Returns elements that a launch writes; an empty slice for a count of 0.
fn write<'a, T: Element>(launch: &'a HostLaunch<'_>, at: u64, count: u64) -> Result<&'a mut [T], HostFault> {
    if count == 0 { Ok(&mut []) } else { launch.write(DevicePointer::new(at), count as usize) }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (call, at, []): (Decompose, [u64; 3], _) = arguments::unpack("decompose", launch)?;
    let counts = call.operands().map(|(count, _, _)| count);
    for matrix in 0..call.batch {
        let operands = call.operands();
        let place = |operand: usize| at[operand] + matrix * counts[operand] * operands[operand].1;
        let [rows, columns, width] = [call.rows, call.columns, call.width].map(|extent| extent as usize);
        let change = |operand: usize| write::<f64>(launch, place(operand), counts[operand]);
        let given = |operand: usize| read::<f64>(launch, place(operand), counts[operand]);
        let integers = |operand: usize| write::<i32>(launch, place(operand), counts[operand]);
        let complex = |operand: usize| write::<c128>(launch, place(operand), counts[operand]);
        match call.method {
            Method::Cholesky => integers(1)?[0] = host::cholesky(change(0)?, rows),
            Method::Triangular => host::triangular(given(0)?, change(1)?, [rows, columns], call.flags),
            Method::Lu => {
                integers(2)?[0] = host::lu(change(0)?, integers(1)?, [rows, columns], call.flags & 1 != 0)
            }
            Method::Permutation => host::permutation(
                read::<i32>(launch, place(0), counts[0])?,
                write::<i64>(launch, place(1), counts[1])?,
            ),
            Method::Qr => host::qr(change(0)?, change(1)?, [rows, columns]),
            Method::Reflectors => host::reflectors(given(0)?, given(1)?, change(2)?, [rows, columns, width]),
            Method::Eigen => host::eigen(change(0)?, change(1)?, change(2)?, rows),
            Method::Singular => host::singular(change(0)?, change(1)?, change(2)?, [rows, columns]),
            Method::Indefinite => integers(2)?[0] = indefinite::factor(change(0)?, integers(1)?, rows),
            Method::IndefiniteSolve => indefinite::solve(
                given(0)?,
                read::<i32>(launch, place(1), counts[1])?,
                change(2)?,
                [rows, columns],
            ),
            Method::General => eigenvalues::general(complex(0)?, complex(1)?, complex(2)?, rows),
        }
    }
    Ok(())
}
