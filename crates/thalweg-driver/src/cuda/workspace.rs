//! The workspaces of library calls.

use crate::DevicePointer;

/// The alignment of a workspace and of its parts, in bytes.
pub(super) const PART: u64 = 256;

/// Returns the start of a call's workspace, or why it is not suitable.
pub(super) fn workspace_of(
    given: Option<(DevicePointer, u64)>,
    needed: u64,
) -> Result<DevicePointer, String> {
    let (start, bytes) = given.unwrap_or((DevicePointer::new(0), 0));
    if bytes < needed {
        return Err(format!("a workspace of {bytes} bytes; {needed} are needed"));
    }
    if !start.address().is_multiple_of(PART) {
        return Err(format!("the workspace at {start:?} is not aligned to {PART} bytes"));
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_is_small_or_not_aligned_is_refused() {
        let with = |address, bytes| workspace_of(Some((DevicePointer::new(address), bytes)), 512);
        assert_eq!(with(0x1000, 512), Ok(DevicePointer::new(0x1000)));
        assert!(with(0x1000, 511).expect_err("it is small").contains("512 are needed"));
        assert!(with(0x1080, 512).expect_err("it is not aligned").contains("256"));
    }
}
