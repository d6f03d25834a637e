//! PyTorch's default policy: two size classes, best fit, split what is left over.
//!
//! | request | class | segment | a rest is split off when |
//! |---|---|---|---|
//! | up to 1 MiB | small | 2 MiB | it has at least 512 bytes |
//! | up to 10 MiB | large | 20 MiB | it has more than 1 MiB |
//! | more | large | the next multiple of 2 MiB | it has more than 1 MiB |
//!
//! Small and large requests never share a segment: a small block that stays would keep a large segment from going back.
//! Every size is rounded up to a multiple of 512 bytes, and so every address is one too.
//!
//! With [`max_split_size`](crate::Settings::with_max_split_size_bytes) set, blocks of that size or more are *oversize*: they
//! are never cut, serve only requests that are oversize themselves, and only when at most 20 MiB are wasted.

use crate::stats::SizeClass;

/// Every block's size and address is a multiple of this.
pub(crate) const MIN_BLOCK_BYTES: u64 = 512;
/// Requests up to this are small.
pub(crate) const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// The segment of small requests.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The segment of large requests below [`MIN_OWN_SEGMENT_BYTES`], and the most that an oversize block may waste.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// From this on a request gets a segment of its own size.
pub(crate) const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// Such a segment is a multiple of this.
pub(crate) const SEGMENT_GRANULE_BYTES: u64 = 2 << 20;
/// No request may be larger (1 EiB): it can only be a mistake, and the sums below cannot overflow.
pub(crate) const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// The size of the block for a request.
pub(crate) fn round_size(requested_bytes: u64) -> u64 {
    requested_bytes.max(1).next_multiple_of(MIN_BLOCK_BYTES)
}

/// The class of a rounded size.
pub(crate) fn size_class(size_bytes: u64) -> SizeClass {
    if size_bytes <= SMALL_REQUEST_BYTES { SizeClass::Small } else { SizeClass::Large }
}

/// The size of the segment to ask the upstream for when nothing cached serves a rounded size.
pub(crate) fn segment_size(size_bytes: u64) -> u64 {
    if size_bytes <= SMALL_REQUEST_BYTES {
        SMALL_SEGMENT_BYTES
    } else if size_bytes < MIN_OWN_SEGMENT_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        size_bytes.next_multiple_of(SEGMENT_GRANULE_BYTES)
    }
}

/// Whether to cut a block that serves `size_bytes` and has `rest_bytes` to spare.
pub(crate) fn should_split(class: SizeClass, size_bytes: u64, rest_bytes: u64, max_split_bytes: u64) -> bool {
    match class {
        SizeClass::Small => rest_bytes >= MIN_BLOCK_BYTES,
        SizeClass::Large => size_bytes < max_split_bytes && rest_bytes > SMALL_REQUEST_BYTES,
    }
}

/// Whether a free block of `block_bytes`, which is large enough, may serve a request of `size_bytes`.
pub(crate) fn may_serve(size_bytes: u64, block_bytes: u64, max_split_bytes: u64) -> bool {
    if size_bytes < max_split_bytes {
        block_bytes < max_split_bytes
    } else {
        block_bytes < size_bytes.saturating_add(LARGE_SEGMENT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_round_up_to_512_bytes() {
        let table =
            [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB, MIB), (MIB + 1, MIB + 512)];
        for (requested, rounded) in table {
            assert_eq!(round_size(requested), rounded, "round_size({requested})");
        }
        assert_eq!(round_size(MAX_REQUEST_BYTES), MAX_REQUEST_BYTES);
    }

    #[test]
    fn segments_have_three_sizes() {
        let table = [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
            (33 * MIB, 34 * MIB),
            (MAX_REQUEST_BYTES, MAX_REQUEST_BYTES),
        ];
        for (size, segment) in table {
            assert_eq!(segment_size(size), segment, "segment_size({size})");
        }
        assert_eq!(size_class(MIB), SizeClass::Small);
        assert_eq!(size_class(MIB + 512), SizeClass::Large);
    }

    #[test]
    fn a_rest_is_split_off_when_it_is_worth_it() {
        assert!(should_split(SizeClass::Small, 512, 512, u64::MAX));
        assert!(!should_split(SizeClass::Small, 512, 0, u64::MAX));
        assert!(!should_split(SizeClass::Large, 3 * MIB, MIB, u64::MAX));
        assert!(should_split(SizeClass::Large, 3 * MIB, MIB + 512, u64::MAX));
        assert!(!should_split(SizeClass::Large, 64 * MIB, 30 * MIB, 64 * MIB), "oversize blocks stay whole");
        assert!(should_split(SizeClass::Large, 64 * MIB - 512, 30 * MIB, 64 * MIB));
    }

    #[test]
    fn oversize_blocks_serve_oversize_requests_only_and_waste_little() {
        let limit = 64 * MIB;
        assert!(may_serve(63 * MIB, 63 * MIB, limit));
        assert!(!may_serve(63 * MIB, 64 * MIB, limit));
        assert!(may_serve(64 * MIB, 84 * MIB - 512, limit));
        assert!(!may_serve(64 * MIB, 84 * MIB, limit));
        assert!(may_serve(2 * MIB, 1 << 40, u64::MAX));
    }
}
