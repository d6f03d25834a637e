//! [`Join`]: tensors that are placed side by side in one tensor, by one launch for up to [`PARTS`] of them.
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
/// The bytes that are copied at once, with the names of their types.
const WIDTHS: [(u64, &str); 5] = [(16, "uint4"), (8, "u64"), (4, "u32"), (2, "u16"), (1, "u8")];
/// The vectors of a thread, and the most tensors of a launch. A launch of few vectors has a thread for each, and one of few tensors takes
/// few arguments, whose transfer is a good part of a short launch.
const FORMS: [(u64, usize); 3] = [(1, 8), (1, PARTS), (4, PARTS)];
/// The number of vectors from which on a thread copies several.
const MANY_VECTORS: u64 = 1 << 17;

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
    /// The number of bytes before this tensor in a row of the result.
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

/// A variant of the kernel, by numbers in [`WIDTHS`] and [`FORMS`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Variant {
    width: usize,
    form: usize,
}

/// The names of the entry points, by width and form.
const NAMES: [[&str; FORMS.len()]; WIDTHS.len()] = [
    ["join_16_few", "join_16_short", "join_16"],
    ["join_8_few", "join_8_short", "join_8"],
    ["join_4_few", "join_4_short", "join_4"],
    ["join_2_few", "join_2_short", "join_2"],
    ["join_1_few", "join_1_short", "join_1"],
];

impl Variant {
    fn all() -> impl Iterator<Item = Self> {
        (0..WIDTHS.len()).flat_map(|width| (0..FORMS.len()).map(move |form| Self { width, form }))
    }

    const fn name(self) -> &'static str {
        NAMES[self.width][self.form]
    }

    const fn bytes(self) -> u64 {
        WIDTHS[self.width].0
    }

    fn print(self) -> String {
        let (vectors, parts) = FORMS[self.form];
        Source::new(self.name())
            .define("VECTOR", WIDTHS[self.width].1)
            .define("PARTS", parts)
            .define("VECTORS", vectors)
            .print(include_str!("kernel.cu"))
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Variant::all().map(|variant| (variant.name().to_owned(), variant.print()))
}

impl Placed<Join, Joined> {
    /// Returns the variant with the largest vectors.
    fn variant(&self) -> Variant {
        let parts = self.at.parts.iter();
        let all = parts.fold(self.at.result.address() | self.kernel.pitch, |all, part| {
            all | part.source.address() | part.width | part.offset
        });
        let fits = |(bytes, _): &(u64, &str)| all.is_multiple_of(*bytes);
        let width = WIDTHS.iter().position(fits).unwrap_or(WIDTHS.len() - 1);
        let bytes: u64 = self.at.parts.iter().map(|part| self.kernel.rows * part.width).sum();
        let form = match bytes / WIDTHS[width].0 {
            MANY_VECTORS.. => 2,
            _ => usize::from(self.at.parts.len() > FORMS[0].1),
        };
        Variant { width, form }
    }

    /// Returns the number of blocks of each part.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let (variant, rows) = (self.variant(), self.kernel.rows);
        let of_a_block = BLOCK * FORMS[variant.form].0;
        self.at.parts.iter().map(move |part| (rows * (part.width / variant.bytes())).div_ceil(of_a_block))
    }
}

impl NativeKernel for Placed<Join, Joined> {
    native! { self: self.variant().name(), self.variant().print(), run_on_host }

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
        let (variant, Join { rows, pitch }) = (self.variant(), self.kernel);
        let vector = variant.bytes();
        let mut words: Words = [self.at.result.address(), rows, pitch / vector, self.at.parts.len() as u64]
            .into_iter()
            .collect();
        let mut first = 0;
        for (part, blocks) in self.at.parts.iter().zip(self.blocks()) {
            words.extend([part.source.address(), part.width / vector, part.offset / vector, first]);
            first += blocks;
        }
        words.resize(4 + 4 * FORMS[variant.form].1, 0);
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
