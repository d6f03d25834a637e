//! Decompositions of dense matrices, as data: calls of a vendor's libraries ([`GpuCall::Dense`](crate::GpuCall::Dense)).
//!
//! Matrices are contiguous, of 64-bit floats, one after another; column-major unless a method says otherwise.

use crate::{DevicePointer, GpuCall};

/// A decomposition, or a solution by one. The operands of each are listed in order, without the leading (batch, …).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DenseMethod {
    /// A symmetric row-major matrix (rows, rows), whose lower triangle is read and overwritten with the lower factor; what is above
    /// it is unspecified afterwards; and an i32, 0 or the order of the leading minor that is not positive definite.
    Cholesky,
    /// A matrix (rows, columns), which is overwritten with both factors, the lower one without its diagonal of ones; int32 numbers of
    /// the rows that were swapped (the lesser of both sizes), counted from 1; and an i32, 0 or the first pivot that is 0.
    Lu,
    /// A triangular row-major matrix (rows, rows), and row-major right sides (rows, columns), which are overwritten with the
    /// solutions.
    Triangular {
        /// Whether the upper triangle is read.
        upper: bool,
        /// Whether the matrix is transposed.
        transposed: bool,
        /// Whether the diagonal is 1, and not read.
        unit: bool,
    },
    /// A matrix (rows, columns), which is overwritten with the upper factor, with the reflectors' vectors below the diagonal; and
    /// the reflectors' factors (the lesser of both sizes).
    Qr,
    /// Vectors of `columns` reflectors below the diagonal of a matrix (rows, width), which is overwritten with the first `width`
    /// columns of the reflectors' product; and the reflectors' factors (columns).
    Reflectors {
        /// The number of columns of the product: at least `columns`, at most `rows`.
        width: u64,
    },
    /// A symmetric matrix (rows, rows), which is overwritten with its eigenvectors as columns; its eigenvalues, the least first
    /// (rows); and an i32, 0 unless the method did not converge.
    Eigen,
    /// A matrix (rows, columns) with at least as many rows as columns, which is overwritten; its left singular vectors (rows,
    /// columns); the right ones (columns, columns), as columns; the singular values, the greatest first (columns); and an i32, 0
    /// unless the method did not converge.
    Singular,
}

/// A batch of decompositions. It cannot be captured in a graph: the libraries may wait for the device.
///
/// [`Driver::library_workspace`](crate::Driver::library_workspace) returns the size of the workspace that a call needs.
#[derive(Clone, PartialEq, Debug)]
pub struct DenseCall {
    /// The method.
    pub method: DenseMethod,
    /// The number of matrices.
    pub batch: u64,
    /// The number of rows of a matrix.
    pub rows: u64,
    /// The number of columns of the matrix, or of the right sides.
    pub columns: u64,
    /// The operands that the method lists, aligned to 16 bytes; null addresses for absent ones.
    pub operands: [DevicePointer; 5],
    /// The addresses of the matrices of the first and of the second operand, as 64-bit numbers in device memory.
    pub addresses: [DevicePointer; 2],
    /// The workspace that the libraries may use while this command runs: address, aligned to 256 bytes, and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
}

/// The use of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DenseUse {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read and written.
    Change,
}

impl DenseCall {
    /// Returns the bytes of each operand per matrix, and its use; 0 for an absent one.
    pub fn operand_bytes(&self) -> [(u64, DenseUse); 5] {
        use DenseUse::{Change, Read, Write};
        let (rows, columns) = (self.rows, self.columns);
        let least = rows.min(columns);
        let none = (0, Read);
        match self.method {
            DenseMethod::Cholesky => [(8 * rows * rows, Change), (4, Write), none, none, none],
            DenseMethod::Lu => [(8 * rows * columns, Change), (4 * least, Write), (4, Write), none, none],
            DenseMethod::Triangular { .. } => {
                [(8 * rows * rows, Read), (8 * rows * columns, Change), none, none, none]
            }
            DenseMethod::Qr => [(8 * rows * columns, Change), (8 * least, Write), none, none, none],
            DenseMethod::Reflectors { width } => {
                [(8 * rows * width, Change), (8 * columns, Read), none, none, none]
            }
            DenseMethod::Eigen => [(8 * rows * rows, Change), (8 * rows, Write), (4, Write), none, none],
            DenseMethod::Singular => [
                (8 * rows * columns, Change),
                (8 * rows * columns, Write),
                (8 * columns * columns, Write),
                (8 * columns, Write),
                (4, Write),
            ],
        }
    }

    /// Returns why these sizes are not a valid call; `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        let sizes = [self.batch, self.rows, self.columns];
        if sizes.iter().any(|&size| size == 0 || size > i32::MAX as u64) {
            return Some("a size is 0, or more than 2^31 - 1".to_owned());
        }
        let (rows, columns) = (self.rows, self.columns);
        let is_wrong = match self.method {
            DenseMethod::Singular => columns > rows,
            DenseMethod::Reflectors { width } => width < columns || width > rows,
            DenseMethod::Cholesky | DenseMethod::Eigen => rows != columns,
            DenseMethod::Lu | DenseMethod::Triangular { .. } | DenseMethod::Qr => false,
        };
        if is_wrong {
            return Some(format!("{:?} does not take {rows}×{columns}", self.method));
        }
        let largest = rows.max(columns);
        let is_large = largest.checked_mul(largest).is_none_or(|elements| elements > i32::MAX as u64);
        is_large.then(|| "a matrix has more than 2^31 - 1 elements".to_owned())
    }
}

impl From<DenseCall> for GpuCall {
    fn from(call: DenseCall) -> Self {
        Self::Dense(call)
    }
}
