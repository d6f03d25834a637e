//! The host functions of a library's decompositions ([`DenseCall`]), by those of [`Decompose`](super::Decompose), which are
//! row-major.

use std::sync::Arc;

use thalweg_driver::{
    Access, DenseCall, DenseMethod, DenseUse, DevicePointer, HostFault, HostKernel, HostLaunch,
};

use super::host;

/// Returns the ranges that a call reads and writes, except its workspace.
pub fn accesses(call: &DenseCall) -> impl Iterator<Item = Access> {
    let of_addresses = call.addresses.into_iter().filter(|at| at.address() != 0);
    let addresses = of_addresses.map(|at| Access::read(at, 8 * call.batch));
    let operands = call.operand_bytes().into_iter().zip(call.operands).filter(|((bytes, _), _)| *bytes > 0);
    let operands = operands.map(|((bytes, usage), at)| {
        let bytes = bytes * call.batch;
        match usage {
            DenseUse::Read => Access::read(at, bytes),
            DenseUse::Write => Access::write(at, bytes),
            DenseUse::Change => Access::read_write(at, bytes),
        }
    });
    addresses.chain(operands).collect::<Vec<_>>().into_iter()
}

/// Returns a host function that executes a call.
pub fn host_function(call: DenseCall) -> Arc<dyn HostKernel> {
    Arc::new(move |launch: &HostLaunch<'_>| (0..call.batch).try_for_each(|matrix| one(&call, launch, matrix)))
}

/// Returns a column-major matrix (rows, columns) in row-major order, or the reverse with the sizes swapped.
fn turned(a: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|place| a[place % columns * rows + place / columns]).collect()
}

fn one(call: &DenseCall, launch: &HostLaunch<'_>, matrix: u64) -> Result<(), HostFault> {
    let (rows, columns) = (call.rows as usize, call.columns as usize);
    let bytes = call.operand_bytes();
    let at =
        |operand: usize| DevicePointer::new(call.operands[operand].address() + matrix * bytes[operand].0);
    let count = |operand: usize, width: u64| (bytes[operand].0 / width) as usize;
    let floats = |operand: usize| launch.write::<f64>(at(operand), count(operand, 8));
    let state = |operand: usize| launch.write::<i32>(at(operand), 1);
    match call.method {
        DenseMethod::Cholesky => state(1)?[0] = host::cholesky(floats(0)?, rows),
        DenseMethod::Lu => {
            let a = floats(0)?;
            let mut whole = turned(a, [rows, columns]);
            let pivots = launch.write::<i32>(at(1), count(1, 4))?;
            state(2)?[0] = host::lu(&mut whole, pivots, [rows, columns], true);
            a.copy_from_slice(&turned(&whole, [columns, rows]));
        }
        DenseMethod::Triangular { upper, transposed, unit } => {
            let flags =
                [upper, transposed, unit].iter().rev().fold(0, |flags, &bit| flags << 1 | u64::from(bit));
            let a = launch.read::<f64>(at(0), count(0, 8))?;
            host::triangular(a, floats(1)?, [rows, columns], flags);
        }
        DenseMethod::Qr => {
            let a = floats(0)?;
            let mut whole = turned(a, [rows, columns]);
            host::qr(&mut whole, floats(1)?, [rows, columns]);
            a.copy_from_slice(&turned(&whole, [columns, rows]));
        }
        DenseMethod::Reflectors { width } => {
            let (a, width) = (floats(0)?, width as usize);
            let vectors = turned(&a[..rows * columns], [rows, columns]);
            let factors = launch.read::<f64>(at(1), columns)?;
            let mut q = vec![0.0; rows * width];
            host::reflectors(&vectors, factors, &mut q, [rows, columns, width]);
            a.copy_from_slice(&turned(&q, [width, rows]));
        }
        DenseMethod::Eigen => {
            let (a, values) = (floats(0)?, floats(1)?);
            let mut vectors = vec![0.0; rows * rows];
            host::eigen(a, &mut vectors, values, rows);
            a.copy_from_slice(&turned(&vectors, [rows, rows]));
            state(2)?[0] = 0;
        }
        DenseMethod::Singular => {
            let mut left = turned(floats(0)?, [rows, columns]);
            let mut right = vec![0.0; columns * columns];
            host::singular(&mut left, &mut right, floats(3)?, [rows, columns]);
            floats(1)?.copy_from_slice(&turned(&left, [columns, rows]));
            floats(2)?.copy_from_slice(&turned(&right, [columns, columns]));
            state(4)?[0] = 0;
        }
    }
    Ok(())
}
