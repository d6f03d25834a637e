//! The host's memory for the simulated memory: all system calls of the simulator are here.
//!
//! Each device has one anonymous file of the size of its memory. It is sparse: a page that was never written costs nothing.
//! One reservation of host addresses represents the simulated address space. Its first part, the *window*, maps every
//! device's file from beginning to end, so that a contiguous piece of physical memory has an address without a system call.
//! The rest, the *area*, is inaccessible until pieces of the files are mapped there, as often and in whatever order the
//! program requests: this implements remapping and aliasing.
//!
//! Invariants: offsets into the reservation and into files are multiples of [`PAGE_BYTES`]; nothing outside the reservation
//! is ever mapped over; the reservation and the files live as long as the [`Backing`].

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use thalweg_driver::anonymous;

/// The unit of simulated physical memory. A multiple of the page of every host that we know (4, 16 or 64 KiB).
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// The size of the area for mappings, as a multiple of the memory of all devices.
const AREA_FACTOR: u64 = 64;

/// The simulated devices' memory on the host: files, and the reserved addresses that the files are mapped into.
#[derive(Debug)]
pub(crate) struct Backing {
    base: NonNull<u8>,
    reserved_bytes: u64,
    device_bytes: u64,
    files: Vec<File>,
}

// SAFETY: the reservation is plain memory that is owned by this value and not tied to a thread. The executor's range lock
// decides which code may touch which bytes of it, and when; the value itself only exposes raw pointers.
unsafe impl Send for Backing {}
// SAFETY: as for `Send`; the methods that take `&self` only compute addresses or make system calls that are thread-safe.
unsafe impl Sync for Backing {}

impl Backing {
    /// Creates files of `device_bytes` each, and a reservation for them.
    pub(crate) fn new(devices: u32, device_bytes: u64) -> io::Result<Self> {
        assert_eq!(device_bytes % PAGE_BYTES, 0, "whole pages");
        let files = (0..devices).map(|_| anonymous_file(device_bytes)).collect::<io::Result<Vec<_>>>()?;
        let window_bytes = device_bytes
            .checked_mul(u64::from(devices))
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let (base, reserved_bytes) = reserve(window_bytes)?;
        let backing = Self { base, reserved_bytes, device_bytes, files };
        for device in 0..devices {
            backing.map(u64::from(device) * device_bytes, device_bytes, device, 0)?;
        }
        Ok(backing)
    }

    /// Returns the offset of a device's window in the reservation.
    pub(crate) fn window_offset(&self, device: u32) -> u64 {
        u64::from(device) * self.device_bytes
    }

    /// Returns the part of the reservation after the window: its offset and length.
    pub(crate) fn area(&self) -> (u64, u64) {
        let window_bytes = self.device_bytes * self.files.len() as u64;
        (window_bytes, self.reserved_bytes - window_bytes)
    }

    /// Returns the host address at an offset of the reservation.
    pub(crate) fn pointer(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.reserved_bytes, "offset {offset:#x} is outside the reservation");
        // SAFETY: the offset is inside the one mapping that `reserve` made.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// Maps `bytes` of a device's file, from `file_offset` on, at an offset of the reservation.
    pub(crate) fn map(&self, offset: u64, bytes: u64, device: u32, file_offset: u64) -> io::Result<()> {
        assert!(file_offset + bytes <= self.device_bytes, "the file ends before {:#x}", file_offset + bytes);
        let file = self.files[device as usize].as_raw_fd();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        self.remap(offset, bytes, protection, libc::MAP_SHARED, file, file_offset)
    }

    /// Returns whether a device with this number exists.
    pub(crate) fn has_device(&self, device: u32) -> bool {
        (device as usize) < self.files.len()
    }

    /// Makes a part of a device's memory read as zeros again, and returns the host's memory to the system for `large` parts
    /// and more.
    pub(crate) fn renew(&mut self, device: u32, file_offset: u64, bytes: u64, large: u64) -> io::Result<()> {
        assert!(file_offset + bytes <= self.device_bytes, "the file ends before {:#x}", file_offset + bytes);
        if bytes >= large {
            // Whole pages are returned to the system; the rest at both ends is cleared.
            let end = file_offset + bytes;
            let (first, last) = (file_offset.next_multiple_of(PAGE_BYTES), end - end % PAGE_BYTES);
            self.discard_now(device, first, last - first)?;
            self.clear(device, file_offset, first - file_offset);
            self.clear(device, last, end - last);
        } else {
            self.clear(device, file_offset, bytes);
        }
        Ok(())
    }

    /// Clears a range, which must not be in use.
    fn clear(&mut self, device: u32, file_offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let start = self.pointer(self.window_offset(device) + file_offset);
        // SAFETY: the window maps the entire file, readable and writable, as long as the `Backing` lives, and the range is
        // inside the file. This memory is no longer used: the value is borrowed exclusively.
        unsafe { std::ptr::write_bytes(start, 0, bytes as usize) };
    }

    /// Returns whether the backing has this many files, each of this size.
    pub(crate) fn is_of(&self, devices: u32, device_bytes: u64) -> bool {
        self.files.len() == devices as usize && self.device_bytes == device_bytes
    }

    /// Makes a part of the reservation inaccessible again.
    pub(crate) fn unmap(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.remap(offset, bytes, libc::PROT_NONE, anonymous::PRIVATE, -1, 0)
    }

    /// Gives the host's memory of a part of a device's file back to the system. The part reads as zeros afterwards. A host
    /// that cannot do this keeps the memory: nothing depends on it.
    pub(crate) fn discard(&self, device: u32, file_offset: u64, bytes: u64) {
        let _ = self.discard_now(device, file_offset, bytes);
    }

    #[cfg(target_os = "linux")]
    fn discard_now(&self, device: u32, file_offset: u64, bytes: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let file = self.files[device as usize].as_raw_fd();
        // SAFETY: a system call on a file that we own; the caller has made sure that no command uses the range.
        let status = unsafe { libc::fallocate(file, mode, file_offset as libc::off_t, bytes as libc::off_t) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[cfg(not(target_os = "linux"))]
    fn discard_now(&self, _device: u32, _file_offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn remap(
        &self,
        offset: u64,
        bytes: u64,
        protection: i32,
        flags: i32,
        file: i32,
        file_offset: u64,
    ) -> io::Result<()> {
        assert!([offset, bytes, file_offset].iter().all(|value| value.is_multiple_of(PAGE_BYTES)));
        assert!(bytes > 0 && offset + bytes <= self.reserved_bytes, "outside the reservation");
        let target = self.pointer(offset).cast();
        // SAFETY: the target is inside our reservation, so no other mapping is replaced; the caller has made sure that no
        // running command uses the old mapping.
        let mapped = unsafe {
            libc::mmap(
                target,
                bytes as usize,
                protection,
                flags | libc::MAP_FIXED,
                file,
                file_offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the entire mapping that `reserve` made; pointers into it are only used while the `Backing` lives.
        let status = unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved_bytes as usize) };
        debug_assert_eq!(status, 0, "munmap of our own reservation");
    }
}

/// Reserves addresses for a window and an area after it: a large area, or as much as the host provides.
fn reserve(window_bytes: u64) -> io::Result<(NonNull<u8>, u64)> {
    let mut factor = AREA_FACTOR;
    loop {
        let reserved_bytes = window_bytes
            .checked_mul(1 + factor)
            .filter(|&bytes| usize::try_from(bytes).is_ok())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory));
        match reserved_bytes.and_then(|bytes| Ok((anonymous::map(bytes, libc::PROT_NONE)?, bytes))) {
            Err(_) if factor > 1 => factor /= 2,
            outcome => return outcome,
        }
    }
}

/// Returns a file of `bytes` bytes without a name.
#[cfg(target_os = "linux")]
pub(crate) fn anonymous_file(bytes: u64) -> io::Result<File> {
    // SAFETY: a system call with a valid C string.
    let file = unsafe { libc::memfd_create(c"thalweg-simulated-gpu".as_ptr(), libc::MFD_CLOEXEC) };
    sized(file, bytes)
}

/// Returns a file of `bytes` bytes without a name.
#[cfg(not(target_os = "linux"))]
pub(crate) fn anonymous_file(bytes: u64) -> io::Result<File> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = std::ffi::CString::new(format!("/thalweg-{}-{number}", std::process::id()))?;
    // SAFETY: system calls with a valid C string; the name is gone at once, the file lives as long as its descriptor.
    let file = unsafe {
        let file = libc::shm_open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600);
        libc::shm_unlink(name.as_ptr());
        file
    };
    sized(file, bytes)
}

fn sized(descriptor: i32, bytes: u64) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us and nothing else has it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes)?;
    Ok(file)
}
