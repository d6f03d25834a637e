//! [`Join`]: tensors that are placed beside each other in one, by one launch for up to [`PARTS`] of them.
//!
//! Each tensor is a matrix of bytes without gaps, all with the same number of rows. Row r of the result holds row r of each. Bytes
//! are copied in the largest vectors that divide every width, offset and address.

use smallvec::SmallVec;
use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::native::{Accesses, NativeKernel, Placed, Words, native};
use crate::source::Source;

/// The most tensors of a launch.
pub const PARTS: usize = 64;

/// Threads of a block.
const BLOCK: u64 = 256;
/// Vectors of a thread.
const VECTORS: u64 = 4;
/// The bytes that are copied at once, and the names of the entry points.
const VARIANTS: [(u64, &str, &str); 5] = [
    (16, "join_16", "uint4"),
    (8, "join_8", "u64"),
    (4, "join_4", "u32"),
    (2, "join_2", "u16"),
    (1, "join_1", "u8"),
];

/// The sizes of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Join {
    /// The number of rows.
    pub rows: u64,
    /// The bytes from one row of the result to the next.
    pub pitch: u64,
}

/// A tensor that is joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JoinPart {
    /// The address of its first row.
    pub source: DevicePointer,
    /// The bytes of a row.
    pub width: u64,
    /// The bytes in a row of the result before those of this tensor.
    pub offset: u64,
}

/// The operands of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The address of the result.
    pub result: DevicePointer,
    /// The tensors, at least one and at most [`PARTS`], none empty.
    pub parts: SmallVec<[JoinPart; 8]>,
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    VARIANTS.into_iter().map(|variant| (variant.1.to_owned(), print(variant)))
}

fn print((_, name, vector): (u64, &str, &str)) -> String {
    Source::new(name)
        .define("VECTOR", vector)
        .define("PARTS", PARTS)
        .define("VECTORS", VECTORS)
        .print(include_str!("kernel.cu"))
}

impl Placed<Join, Joined> {
    /// Returns the variant with the largest vectors.
    fn variant(&self) -> (u64, &'static str, &'static str) {
        let parts = self.at.parts.iter();
        let all = parts.fold(self.at.result.address() | self.kernel.pitch, |all, part| {
            all | part.source.address() | part.width | part.offset
        });
        VARIANTS.into_iter().find(|(bytes, ..)| all.is_multiple_of(*bytes)).unwrap_or(VARIANTS[4])
    }

    /// Returns the number of blocks of each part.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let (vector, ..) = self.variant();
        let rows = self.kernel.rows;
        self.at.parts.iter().map(move |part| (rows * (part.width / vector)).div_ceil(BLOCK * VECTORS))
    }
}

impl NativeKernel for Placed<Join, Joined> {
    native! { self: self.variant().1, print(self.variant()), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let fits = |part: &JoinPart| {
            part.width > 0 && part.offset.checked_add(part.width).is_some_and(|end| end <= self.kernel.pitch)
        };
        let parts = &self.at.parts;
        Fault::unless((1..=PARTS).contains(&parts.len()) && parts.iter().all(fits), || {
            format!("join: {parts:?} do not fit into rows of {} bytes", self.kernel.pitch)
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let blocks: u64 = self.blocks().sum();
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks > 0 && blocks < 1 << 31)?;
        Some(LaunchShape { grid: [blocks, 1, 1], block: [BLOCK as u32, 1, 1] })
    }

    fn words(&self) -> Words {
        let (vector, ..) = self.variant();
        let Join { rows, pitch } = self.kernel;
        let mut words: Words = [self.at.result.address(), rows, pitch / vector, self.at.parts.len() as u64]
            .into_iter()
            .collect();
        let mut first = 0;
        for (part, blocks) in self.at.parts.iter().zip(self.blocks()) {
            words.extend([part.source.address(), part.width / vector, part.offset / vector, first]);
            first += blocks;
        }
        words.resize(4 + 4 * PARTS, 0);
        // The kernel does not read this word; the host reads its sizes in bytes.
        words.push(vector);
        words
    }

    fn accesses(&self) -> Accesses {
        let rows = self.kernel.rows;
        let first = self.at.parts.iter().map(|part| part.offset).min().unwrap_or(0);
        let end = self.at.parts.iter().map(|part| part.offset + part.width).max().unwrap_or(0);
        let written = if rows == 0 { 0 } else { (rows - 1) * self.kernel.pitch + end - first };
        let reads = self.at.parts.iter().map(|part| Access::read(part.source, rows * part.width));
        reads.chain([Access::write(self.at.result.offset(first), written)]).collect()
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (chunks, []) = launch.arguments.as_chunks::<8>() else {
        return Err(HostFault("join: the arguments are not in its layout".to_owned()));
    };
    let words: Vec<u64> = chunks.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
    let (Some(&[result, rows, pitch, count]), Some(&vector)) = (words.first_chunk::<4>(), words.last())
    else {
        return Err(HostFault("join: the arguments are not in its layout".to_owned()));
    };
    let (parts, _) = words[4..].as_chunks::<4>();
    let parts =
        || parts.iter().take(count as usize).map(|&[source, width, offset, _]| (source, width, offset));
    let first = parts().map(|(.., offset)| offset).min().unwrap_or(0);
    let end = parts().map(|(_, width, offset)| offset + width).max().unwrap_or(0);
    let written = (rows.saturating_sub(1) * pitch + end - first) * vector;
    let target = launch.write::<u8>(DevicePointer::new(result + first * vector), written as usize)?;
    for (source, width, offset) in parts() {
        let bytes = (width * vector) as usize;
        let source = launch.read::<u8>(DevicePointer::new(source), rows as usize * bytes)?;
        for (row, from) in source.chunks_exact(bytes.max(1)).enumerate() {
            let start = (row as u64 * pitch + offset - first) as usize * vector as usize;
            target[start..start + bytes].copy_from_slice(from);
        }
    }
    Ok(())
}
