//! Host memory straight from the operating system. The simulator's pinned memory consists of it, and a GPU's driver pins
//! it.

use std::io;
use std::ptr::NonNull;

/// Mapped private memory, zeroed and aligned to a page of the host. A page costs nothing before it is touched.
#[derive(Debug)]
pub struct Anonymous {
    pointer: NonNull<u8>,
    bytes: u64,
}

// SAFETY: plain memory that is owned by this value and not tied to a thread. The value exposes only a raw pointer: code
// that dereferences it argues why nothing else touches those bytes in conflict.
unsafe impl Send for Anonymous {}
// SAFETY: as for `Send`; the methods that take `&self` touch no memory.
unsafe impl Sync for Anonymous {}

/// The flags for mappings without a file: no swap is reserved for them. (Miri, which has no swap, does not know the flag.)
pub const PRIVATE: i32 =
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

/// Maps `bytes` of memory without a file, with the given protection.
pub fn map(bytes: u64, protection: i32) -> io::Result<NonNull<u8>> {
    let length = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // SAFETY: a new anonymous mapping at an address that the system chooses touches nothing that exists.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, PRIVATE, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(mapped.cast()).expect("mmap does not choose address 0"))
}

impl Anonymous {
    /// Maps `bytes` of zeroed memory.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let pointer = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Self { pointer, bytes })
    }

    /// Returns the address of the first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Makes the system back all pages with memory now, using `threads` parallel threads; does nothing if `threads` is 0. If a
    /// thread cannot be started, the pages of its part are backed later, when they are touched.
    pub fn prefault(&mut self, threads: u32) {
        let page = page_bytes();
        let pages = self.bytes.div_ceil(page);
        let threads = u64::from(threads).min(pages);
        let memory = &*self;
        let touch = |part: u64| {
            for number in pages * part / threads..pages * (part + 1) / threads {
                // SAFETY: the page begins inside the mapping. `prefault` borrows the memory exclusively and each page
                // belongs to one part, so nothing else touches this byte.
                unsafe { memory.pointer.as_ptr().add((number * page) as usize).write_volatile(0) };
            }
        };
        std::thread::scope(|scope| {
            for part in 1..threads {
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || touch(part));
            }
            if threads > 0 {
                touch(0);
            }
        });
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the entire mapping of `new`; the owner has made sure that nothing uses it any more.
        let status = unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.bytes as usize) };
        debug_assert_eq!(status, 0, "munmap of our own mapping");
    }
}

fn page_bytes() -> u64 {
    // SAFETY: reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of pages that the system has backed.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn resident_pages(memory: &Anonymous) -> usize {
        let pages = memory.bytes.div_ceil(page_bytes()) as usize;
        let mut found = vec![0_u8; pages];
        // SAFETY: the range is our mapping, and the vector has a byte for each of its pages.
        let status =
            unsafe { libc::mincore(memory.pointer().cast(), memory.bytes as usize, found.as_mut_ptr()) };
        assert_eq!(status, 0);
        found.iter().filter(|&&byte| byte & 1 != 0).count()
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn every_page_is_found_by_any_number_of_threads() {
        let pages = 37_usize;
        for threads in [1, 2, 5, 64] {
            let mut memory = Anonymous::new(pages as u64 * page_bytes()).expect("memory");
            memory.prefault(threads);
            assert_eq!(resident_pages(&memory), pages, "{threads} threads");
        }
    }

    #[test]
    fn more_than_there_are_addresses_is_an_error() {
        assert!(Anonymous::new(1 << 62).is_err());
    }
}
