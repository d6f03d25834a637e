//! Integration tests of `thalweg-lock`, as one program.

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
mod it {
    mod cancelled;
    mod filter;
}
