//! The arguments of a launch as a host function reads them: words of 8 bytes, in which dtypes are numbers.

use thalweg_ir::DType;

/// Returns the words of a launch's arguments; `None` if they are not so many.
pub(crate) fn words<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    let (chunks, []) = bytes.as_chunks::<8>() else { return None };
    let chunks: &[[u8; 8]; COUNT] = chunks.try_into().ok()?;
    Some(chunks.map(u64::from_le_bytes))
}

/// Returns the number of a dtype.
pub(crate) fn number_of(dtype: DType) -> u64 {
    DType::ALL.iter().position(|&other| other == dtype).expect("ALL lists every dtype") as u64
}

/// Returns the dtype of a number; `None` if it is none's.
pub(crate) fn dtype_of(number: u64) -> Option<DType> {
    DType::ALL.get(usize::try_from(number).ok()?).copied()
}
