//! The command that runs for all parts of an exchange.

use thalweg_driver::{Access, CollectiveOperation, ElementFormat};

use super::reduction;
use crate::executor::plug::Devices;
use crate::executor::task::JointWork;
use crate::memory::{HostAddress, Memory, Resolved, Toucher};

/// All parts of an exchange, as the work of one task. Each part has two accesses, for reading and for writing.
pub(super) struct Joint {
    pub(super) operation: CollectiveOperation,
    pub(super) format: ElementFormat,
    pub(super) devices: Devices,
}

impl JointWork for Joint {
    fn resolve(&self, memory: &Memory, accesses: &[Access]) -> Result<Resolved, String> {
        let mut all = Resolved::default();
        for (&device, accesses) in self.devices.iter().zip(accesses.chunks_exact(2)) {
            let resolved = memory.resolve(device, accesses, Toucher::Kernel)?;
            let before = all.pointers.len() as u32;
            all.pointers.extend(resolved.pointers);
            all.pieces.extend(resolved.pieces.into_iter().map(|mut piece| {
                piece.access += before;
                piece
            }));
        }
        Ok(all)
    }

    // Reads the data of every rank, and writes the result of each: there are two accesses per rank.
    unsafe fn run(&self, accesses: &[Access], resolved: &Resolved) {
        let ends = |access: usize| {
            let ends = accesses.iter().zip(&resolved.pointers).skip(access).step_by(2);
            ends.map(|(access, pointer)| (access.bytes as usize, pointer.map(HostAddress::pointer)))
        };
        let input = |(bytes, pointer): (usize, Option<*mut u8>)| {
            let mut input = vec![0; bytes];
            if let Some(source) = pointer {
                // SAFETY: the range is resolved and locked for this command, and as long as the buffer, which is memory
                // of its own.
                unsafe { std::ptr::copy_nonoverlapping(source, input.as_mut_ptr(), bytes) };
            }
            input
        };
        let inputs: Vec<Vec<u8>> = ends(0).map(input).collect();
        let outputs = reduction::outputs(self.operation, self.format, &inputs);
        for ((bytes, pointer), output) in ends(1).zip(outputs) {
            let Some(target) = pointer else { continue };
            assert_eq!(output.len(), bytes, "a collective's output is as long as the rank declared");
            // SAFETY: as above, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), target, bytes) };
        }
    }
}
