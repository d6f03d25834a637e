//! Blocks for other processes: the shared part of their memory, and the bytes of their handles.

use std::sync::Arc;

use proptest::prelude::*;
use thalweg_lock::Mutex;
use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{
    Backend, Block, DeviceAllocator, MemoryHandle, MemorySharing, PageHandle, PageId, Settings, SharedExtent,
    SharingKind, Upstream, UpstreamError, VirtualMemory,
};

use crate::harness::{forward_events, forward_memory, pytorch, stream};

const MIB: u64 = 1 << 20;
/// The address at which memory of other processes begins.
const EXTERNAL: u64 = 1 << 45;

/// A fake upstream that exports its memory: a handle contains the numbers of its memory. Imported memory is invented.
struct Exporter {
    inner: FakeUpstream,
    imported: Mutex<Vec<u64>>,
}

forward_events!(Exporter, inner);

impl Upstream for Exporter {
    forward_memory!(inner);

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }

    fn sharing(&self) -> Option<&dyn MemorySharing> {
        Some(self)
    }
}

fn handle(number: u64) -> [u8; 64] {
    let mut handle = [0xAB; 64];
    handle[..8].copy_from_slice(&number.to_le_bytes());
    handle
}

impl MemorySharing for Exporter {
    fn export_allocation(&self, base_address: u64) -> Result<[u8; 64], UpstreamError> {
        let is_base = self.inner.live_segments().iter().any(|(address, _)| *address == base_address);
        if is_base { Ok(handle(base_address)) } else { Err(UpstreamError::Other("not an allocation".into())) }
    }

    fn import_allocation(&self, handle: &[u8; 64]) -> Result<u64, UpstreamError> {
        self.inner.memory_info()?;
        let address = EXTERNAL + u64::from(handle[0]);
        self.imported.lock().push(address);
        Ok(address)
    }

    fn close_allocation(&self, address: u64) -> Result<(), UpstreamError> {
        let mut imported = self.imported.lock();
        let place = imported.iter().position(|open| *open == address).expect("only what is open is closed");
        imported.swap_remove(place);
        Ok(())
    }

    fn export_page(&self, page: PageId) -> Result<PageHandle, UpstreamError> {
        Ok(PageHandle::Descriptor(i32::try_from(page.raw()).expect("pages are few")))
    }

    fn import_page(&self, process: u32, bytes: u64, handle: &PageHandle) -> Result<PageId, UpstreamError> {
        assert!(process > 0 && matches!(handle, PageHandle::Descriptor(_)));
        self.inner.virtual_memory().expect("it has pages").create_page(bytes)
    }
}

fn allocator(settings: Settings) -> (Arc<Exporter>, Arc<DeviceAllocator>) {
    let upstream =
        Arc::new(Exporter { inner: FakeUpstream::with_virtual_memory(1 << 30), imported: Mutex::default() });
    (upstream.clone(), DeviceAllocator::new(upstream, settings))
}

fn allocate(allocator: &DeviceAllocator, bytes: u64) -> Block {
    allocator.allocate(bytes, stream(1)).expect("there is room")
}

#[test]
fn a_plain_block_is_shared_with_its_segment() {
    let (_, allocator) = allocator(pytorch());
    let first = allocate(&allocator, 3 * MIB);
    let second = allocate(&allocator, 2 * MIB);
    let extent = SharedExtent {
        kind: SharingKind::Plain,
        base_address: first.address(),
        extent_bytes: 20 * MIB,
        offset_bytes: 3 * MIB,
        size_bytes: 2 * MIB,
        pages: Vec::new(),
    };
    assert_eq!(second.shared_extent(), Some(extent));
    assert!(second.is_exportable() && second.sharing_kind() == Some(SharingKind::Plain));
    let shared = second.share().expect("it can be");
    assert_eq!((shared.offset_bytes, shared.size_bytes), (3 * MIB, 2 * MIB));
    assert_eq!(shared.memory, MemoryHandle::Allocation(Box::new(handle(first.address()))));
    assert_eq!(first.share().expect("it can be").memory, shared.memory, "one segment is opened once");
}

#[test]
fn a_block_of_pages_is_shared_with_the_pages_that_it_lies_in() {
    let (upstream, allocator) = allocator(Settings::default().with_expandable_segments(true));
    let blocks = [3 * MIB, 2 * MIB, 9 * MIB].map(|bytes| allocate(&allocator, bytes));
    for block in &blocks {
        let extent = block.shared_extent().expect("it can be shared");
        assert_eq!(extent.kind, SharingKind::Pages);
        let (from, to) = (block.address(), block.address() + block.size_bytes());
        let mapped = upstream.inner.mapped_pages().into_iter();
        let touched: Vec<_> =
            mapped.filter(|(address, bytes, _)| *address < to && from < address + bytes).collect();
        assert_eq!(extent.pages, touched.iter().map(|(.., page)| *page).collect::<Vec<_>>());
        assert_eq!(extent.base_address, touched[0].0);
        assert_eq!(extent.base_address + extent.offset_bytes, from);
        assert_eq!(extent.extent_bytes, touched.iter().map(|(_, bytes, _)| bytes).sum::<u64>());
        let MemoryHandle::Pages { process, page_bytes, handles, .. } =
            block.share().expect("it can be").memory
        else {
            panic!("pages are shared as pages");
        };
        assert_eq!((process, page_bytes), (std::process::id(), touched[0].1));
        let numbers = extent.pages.iter().map(|page| PageHandle::Descriptor(page.raw() as i32));
        assert_eq!(handles, numbers.collect::<Vec<_>>());
    }
}

#[test]
fn what_cannot_be_shared_says_so() {
    let (_, exporting) = allocator(pytorch());
    let null = exporting.allocate(0, stream(1)).expect("nothing is needed");
    let pool = exporting.create_pool();
    let scope = exporting.use_pool(pool).expect("it is known");
    let revoked = allocate(&exporting, 1000);
    drop(scope);
    let checkpoint = exporting.checkpoint_pool(pool).expect("nothing is in the way");
    let _restored = exporting.restore_pool(pool, &checkpoint).expect("nothing is in the way");
    let (_, ordered) = allocator(Settings::default().with_backend(Backend::CudaMallocAsync));
    let ordered = allocate(&ordered, 1000);
    let none = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), pytorch());
    let none = allocate(&none, 1000);
    assert_eq!(none.sharing_kind(), Some(SharingKind::Plain), "it could be, by another upstream");
    for (block, words) in [
        (&null, "there is none"),
        (&revoked, "was taken back"),
        (&ordered, "stream-ordered allocator"),
        (&none, "the upstream shares no memory"),
    ] {
        assert!(!block.is_exportable());
        let error = block.share().expect_err("it cannot be");
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
    }
}

#[test]
fn what_is_shared_is_opened_once_and_closed_with_its_last_owner() {
    let (upstream, allocator) = allocator(pytorch());
    let plain = MemoryHandle::Allocation(Box::new(handle(7)));
    let other = MemoryHandle::Allocation(Box::new(handle(8)));
    let pages = pages(vec![PageHandle::Descriptor(5), PageHandle::Descriptor(6)]);
    let [first, again] = [(); 2].map(|()| allocator.open_shared(&plain).expect("nothing is in the way"));
    assert!(Arc::ptr_eq(&first, &again) && first.address() == EXTERNAL + 7);
    let other = allocator.open_shared(&other).expect("nothing is in the way");
    let mapped = allocator.open_shared(&pages).expect("nothing is in the way");
    let places: Vec<_> = upstream.inner.mapped_pages().iter().map(|page| (page.0, page.1)).collect();
    assert_eq!(places, [(mapped.address(), 2 * MIB), (mapped.address() + 2 * MIB, 2 * MIB)]);
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 0, "it is another process's");
    drop((first, other));
    assert_eq!(*upstream.imported.lock(), [EXTERNAL + 7], "it has an owner left");
    drop(again);
    let fresh = allocator.open_shared(&plain).expect("it can be opened again");
    mapped.record_stream(stream(3));
    drop((fresh, allocator));
    drop(mapped);
    assert_eq!(upstream.inner.calls().synchronize_event, 1, "the work on it is waited for");
    assert_eq!(upstream.imported.lock().len(), 0);
    let left = (upstream.inner.live_pages(), upstream.inner.reserved_ranges(), upstream.inner.live_events());
    assert_eq!(left, (0, Vec::new(), 0));
}

/// The other process may reuse the numbers of its descriptors for other memory as soon as it learns that this process has closed
/// the memory.
#[test]
fn memory_that_is_given_up_is_not_found_by_its_handle() {
    let (_, allocator) = allocator(Settings::default());
    let handle = |serial| MemoryHandle::Pages {
        process: 7,
        serial,
        page_bytes: 2 * MIB,
        handles: vec![PageHandle::Descriptor(5)],
    };
    let first = allocator.open_shared(&handle(1)).expect("it can be opened");
    let again = allocator.open_shared(&handle(1)).expect("it is open");
    assert!(Arc::ptr_eq(&first, &again));
    let other = allocator.open_shared(&handle(2)).expect("it can be opened");
    assert!(!Arc::ptr_eq(&first, &other), "the number was another's by then");
    assert!(allocator.retire_shared(again).is_none(), "it has an owner still");
    let closing = allocator.retire_shared(first).expect("the last one has it");
    let reused = allocator.open_shared(&handle(1)).expect("it can be opened");
    assert!(!Arc::ptr_eq(&closing, &reused) && closing.address() != reused.address());
    drop(closing);
    assert!(
        Arc::ptr_eq(&reused, &allocator.open_shared(&handle(1)).expect("it is open")),
        "that one is found"
    );
}

#[test]
fn memory_whose_users_cannot_be_waited_for_stays_open() {
    let (upstream, allocator) = allocator(pytorch());
    let plain = MemoryHandle::Allocation(Box::new(handle(7)));
    let open = allocator.open_shared(&plain).expect("nothing is in the way");
    open.record_stream(stream(3));
    upstream.inner.fail_call(2, Fault::Other);
    drop(open);
    assert_eq!(upstream.imported.lock().len(), 1);
    assert_eq!(upstream.inner.live_events(), 0);
}

/// During a capture the streams that use the memory cannot be waited for, and memory of a capturing stream cannot be unmapped.
#[test]
fn memory_that_is_dropped_in_a_capture_stays_open() {
    let (upstream, allocator) = allocator(pytorch());
    let open = |number| {
        let memory = allocator.open_shared(&MemoryHandle::Allocation(Box::new(handle(number))));
        memory.expect("nothing is in the way")
    };
    let (used, unused) = (open(7), open(8));
    used.record_stream(stream(3));
    let capture = allocator.begin_capture();
    let before = upstream.inner.calls();
    drop(used);
    assert_eq!(upstream.inner.calls(), before, "the driver is asked nothing");
    drop(unused);
    assert_eq!(*upstream.imported.lock(), [EXTERNAL + 7]);
    drop(capture);
}

#[test]
fn a_failure_to_open_leaves_nothing_open() {
    for call in 1..=5 {
        let (upstream, allocator) = allocator(pytorch());
        let pages = pages([1, 2, 3].map(PageHandle::Descriptor).into());
        upstream.inner.fail_call(call, Fault::Other);
        let error = allocator.open_shared(&pages).expect_err("a call fails");
        assert!(error.is_upstream(), "{error}");
        assert_eq!((upstream.inner.live_pages(), upstream.inner.reserved_ranges()), (0, Vec::new()));
        allocator.open_shared(&pages).expect("nothing is in the way any more");
    }
    let (_, allocator) = allocator(pytorch());
    for (page_bytes, count) in [(4096, 1), (2 * MIB, 0), (1 << 62, 4)] {
        let handles = vec![PageHandle::Descriptor(1); count];
        let pages = MemoryHandle::Pages { process: 1, serial: 0, page_bytes, handles };
        assert!(allocator.open_shared(&pages).expect_err("it makes no sense").is_invalid_argument());
    }
    let plain = MemoryHandle::Allocation(Box::new(handle(7)));
    let none = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), pytorch());
    assert!(none.open_shared(&plain).expect_err("nothing is shared").is_invalid_argument());
}

fn pages(handles: Vec<PageHandle>) -> MemoryHandle {
    MemoryHandle::Pages { process: 0x0102_0304, serial: 0x0807_0605_0403_0201, page_bytes: 2 * MIB, handles }
}

/// The layout byte by byte, which other programs read.
#[test]
fn the_bytes_are_those_that_pytorch_writes() {
    let plain = MemoryHandle::Allocation(Box::new(handle(7))).encode();
    assert_eq!((&plain[..2], &plain[2..]), (&[3, b'c'][..], &handle(7)[..]));
    let bytes = pages(vec![PageHandle::Descriptor(5), PageHandle::Descriptor(0x0a0b_0c0d)]).encode();
    let expected = [
        &[3, b'e'][..],
        &[4, 3, 2, 1, 1, 2, 3, 4],
        &[0, 0, 0x20, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 5, 6, 7, 8],
        &[5, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a],
    ];
    assert_eq!(bytes, expected.concat());
    let fabric = pages(vec![PageHandle::Fabric(Box::new(handle(9)))]).encode();
    assert_eq!((fabric[26], &fabric[34..]), (2, &handle(9)[..]));
    assert_eq!(pages(vec![PageHandle::Descriptor(5); 3]).extent_bytes(), Some(6 * MIB));
}

#[test]
fn hostile_bytes_are_refused_with_a_reason() {
    let good = pages(vec![PageHandle::Descriptor(5), PageHandle::Descriptor(6)]).encode();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    let plain = MemoryHandle::Allocation(Box::new(handle(7))).encode();
    for (bytes, words) in [
        (Vec::new(), "its version and kind takes 2 bytes, and 0 are left"),
        (vec![3], "its version and kind takes 2 bytes, and 1 are left"),
        (with(0, &[2]), "it is of version 2, and 3 is understood"),
        (with(1, b"x"), "its kind is 0x78, and must be 'c' or 'e'"),
        (plain[..65].to_vec(), "the handle of an allocation takes 64 bytes, and 63 are left"),
        (longer(&plain), "there are 1 bytes behind its end"),
        (good[..33].to_vec(), "the header takes 32 bytes, and 31 are left"),
        (with(2, &(-1i32).to_le_bytes()), "its process is not a positive number"),
        (with(2, &0i32.to_le_bytes()), "its process is not a positive number"),
        (with(10, &0u64.to_le_bytes()), "2 pages of 0 bytes make no sense"),
        (with(10, &513u64.to_le_bytes()), "2 pages of 513 bytes make no sense"),
        (with(10, &(1u64 << 63).to_le_bytes()), "2 pages of 9223372036854775808 bytes make no sense"),
        (with(18, &0u64.to_le_bytes()), "it says 0 pages, and 8 bytes are left"),
        (with(18, &3u64.to_le_bytes()), "it says 3 pages, and 8 bytes are left"),
        (with(18, &u64::MAX.to_le_bytes()), "it says 18446744073709551615 pages, and 8 bytes are left"),
        (with(18, &(1u64 << 62).to_le_bytes()), "it says 4611686018427387904 pages, and 8 bytes are left"),
        (with(18, &1u64.to_le_bytes()), "there are 4 bytes behind its end"),
        (with(26, &0i32.to_le_bytes()), "its handle type is 0, and must be 1 or 2"),
        (with(26, &2i32.to_le_bytes()), "it says 2 pages, and 8 bytes are left"),
        (with(34, &(-5i32).to_le_bytes()), "-5 is not a file descriptor"),
        (longer(&good), "there are 1 bytes behind its end"),
    ] {
        let error = MemoryHandle::decode(&bytes).expect_err("it is broken").to_string();
        assert!(error.contains(words), "{error} for {words}");
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        process in 1..=i32::MAX as u32,
        serial in any::<u64>(),
        units in 1..1000u64,
        numbers in prop::collection::vec(0..=i32::MAX, 1..50),
        kind in 0..3u8,
    ) {
        let handle = match kind {
            0 => MemoryHandle::Allocation(Box::new(handle(units))),
            1 => {
                let handles = numbers.into_iter().map(PageHandle::Descriptor).collect();
                MemoryHandle::Pages { process, serial, page_bytes: units * 2 * MIB, handles }
            }
            _ => {
                let handles = numbers.into_iter().map(|number| PageHandle::Fabric(Box::new(handle(number as u64))));
                MemoryHandle::Pages { process, serial, page_bytes: units * 2 * MIB, handles: handles.collect() }
            }
        };
        prop_assert_eq!(MemoryHandle::decode(&handle.encode()), Ok(handle));
    }

    /// A decoded handle agrees with its bytes; and no bytes cause a panic.
    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        sound in 0..3u8,
    ) {
        // Random bytes would hardly get past the first two, or past the header.
        if sound > 0 && bytes.len() >= 34 {
            bytes[0] = 3;
            bytes[1] = if bytes[1] < 128 { b'c' } else { b'e' };
        }
        if sound > 1 && bytes.len() >= 34 {
            bytes[5] &= 0x7f;
            bytes[11..18].fill(0);
            bytes[10..12].copy_from_slice(&[0, 2]);
            bytes[19..26].fill(0);
            let handle_type = 1 + bytes[26] % 2;
            bytes[26..30].copy_from_slice(&[handle_type, 0, 0, 0]);
            bytes[18] = ((bytes.len() - 34) / if bytes[26] == 1 { 4 } else { 64 }) as u8;
        }
        if let Ok(handle) = MemoryHandle::decode(&bytes) {
            let mut again = handle.encode();
            if again[1] == b'e' {
                // The padding that C inserts between its fields may be anything.
                for gap in [6..10, 30..34] {
                    again[gap.clone()].copy_from_slice(&bytes[gap]);
                }
            }
            prop_assert_eq!(again, bytes);
        }
    }
}
