//! Planted bugs: mistakes that somebody could make in this code, one of which can be switched on.
//!
//! An instrument that finds bugs is believed when it is seen to find some. With the feature `planted-bugs` the places below
//! hold a choice between the right expression and a wrong one, `planted!(NAME, right, wrong)`; a program under the instrument
//! must pass with no bug planted, and be caught with each (thalweg-runtime's test `planted`, `docs/simulator.md`). Without
//! the feature the macro is its right expression and nothing else is compiled.
//!
//! A bug is one line, and one that people make: an event on the wrong stream, a wait that is left out, a list that is not
//! cleared. To add one, put the choice where the line is and a row into the table; the test takes its list from here. A choice
//! without a row does not compile, and a row without a choice is never caught, which fails the test.
//!
//! What is not here: how they are caught.

/// The right expression; or the wrong one, where this bug is planted.
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr $(,)?) => {
        if $crate::planted::Bug::$bug.is_planted() { $wrong } else { $right }
    };
}

/// The right expression: no bugs are planted in this build.
#[cfg(not(feature = "planted-bugs"))]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident, $right:expr, $wrong:expr $(,)?) => {
        $right
    };
}

#[cfg(feature = "planted-bugs")]
pub use self::table::{Bug, plant, reached};

#[cfg(feature = "planted-bugs")]
mod table {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Which bug is planted: its place in the table, from 1 on; 0 for none.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);
    /// How often its place was come by.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    macro_rules! bugs {
        ($($bug:ident: $place:literal, $what:literal;)*) => {
            /// A bug that can be planted.
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub enum Bug {
                $(#[doc = $what] $bug,)*
            }

            impl Bug {
                /// All of them.
                pub const ALL: &[Self] = &[$(Self::$bug,)*];

                /// The file that it is in, from the folder of the crates on.
                pub const fn place(self) -> &'static str {
                    match self {
                        $(Self::$bug => $place,)*
                    }
                }

                /// What goes wrong.
                pub const fn what(self) -> &'static str {
                    match self {
                        $(Self::$bug => $what,)*
                    }
                }
            }
        };
    }

    impl Bug {
        /// Whether it is the one that is planted. For [`planted!`](crate::planted) only.
        #[doc(hidden)]
        pub fn is_planted(self) -> bool {
            let is_planted = PLANTED.load(Ordering::Relaxed) == self as usize + 1;
            if is_planted {
                REACHED.fetch_add(1, Ordering::Relaxed);
            }
            is_planted
        }
    }

    /// Plants a bug in this process, instead of the one before; or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(0, |bug| bug as usize + 1), Ordering::Relaxed);
        REACHED.store(0, Ordering::Relaxed);
    }

    /// How often the place of the planted bug was come by since it was planted.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::Relaxed)
    }

    bugs! {
        OnlyFirstUse: "memory/order", "of several streams that use a block, only the first is waited for";
        OnlyOneRecorded: "memory/order", "of several record_stream, only one gets its event";
        NotReadyIsReady: "memory/order", "a query that answers `not ready` is taken for `ready`";
        LaterIsSettled: "memory/order", "a later use is taken for over, since an earlier one of the stream is";
        SynchronizeReturns: "memory/order", "the host does not wait for the events that it says it waited for";
        OrderWithoutWait: "memory/order", "a pending block is handed out without the wait on the device";
        WaitOnUser: "memory/order", "the stream that used the block waits, instead of the one that gets it";
        SettlesTooMuch: "memory/order", "a wait for one use counts for later ones of that stream";
        MarksForgotten: "memory/order", "in a capture, a block is free before its use on a branch is joined";
        AnyMarkWillDo: "memory/order", "in a capture, one of several branches joined is enough";
        UnjoinedIsReached: "memory/reach", "in a capture, a branch that was not joined is taken for ordered";
        UseRecordedAtHome: "memory/allocator", "record_use records its event on the block's own stream";
        FirstUseKept: "memory/allocator", "record_use keeps the first event of a stream instead of the last";
        RecordStreamLost: "memory/allocator", "record_stream does nothing";
        BorrowerForgotten: "memory/allocator", "a lent block goes home without an event of the borrower";
        UsesForgotten: "memory/arena", "a freed block is free at once, whatever other streams do with it";
        TooSmallFromHand: "memory/arena", "the block that was freed last serves a request that is larger";
        StaysInBin: "memory/arena", "a block that is handed out stays in its bin";
        NeighbourStaysInBin: "memory/arena", "a block that was merged stays in its bin";
        EmptiedWhileBusy: "memory/release", "empty_cache unmaps pages before the stream is done with them";
        InboxLosesUses: "memory/arena", "a block that is freed while its arena is locked loses its uses";
        VigilNotTold: "memory/arena", "a graph does not hear that an input was given back";
        MergesWithTaken: "memory/blocks", "a freed block is merged with a neighbour that somebody has";
        SplitOverlaps: "memory/blocks", "the rest of a block that is cut begins 512 bytes too early";
        HoleUnmappedAtOnce: "memory/grow", "pages that moved are unmapped at their old address at once";
        AliasUnmapped: "memory/grow", "in a capture, pages that moved leave the addresses that its replays run at";
        TakenWhileBusy: "memory/grow", "a capture takes shared pages before the stream that had them is done";
        FenceNotAwaited: "memory/grow", "a stream counts as idle as soon as somebody asks";
        FreedSinceIsIdle: "memory/grow", "what became free after the fence counts as idle too";
        ClockStandsStill: "memory/grow", "what became free just after the fence counts as free before it";
        PageInUseMoves: "memory/grow", "a page moves of which a part is in use";
        PagesWithoutWait: "memory/ladder", "pages of another stream are taken without waiting for it";
        LoanWithoutWait: "memory/ladder", "a block of another stream is borrowed without waiting for it";
        LoanWaitsForItself: "memory/ladder", "the borrower waits for its own event instead of the lender's";
        MadePagesLost: "memory/ladder", "pages that were made for a request that failed are lost";
        RestoredWhileBusy: "memory/checkpoint", "a pool is put back while freed blocks wait for other streams";
        PoolNotKept: "memory/pools", "a graph's pool gives its memory back while the graph lives";
        ScopeIgnored: "memory/pools", "what a capture allocates comes from the shared pool";
        PinnedUsesIgnored: "memory/host/bucket", "pinned memory is free at once, whatever copies are under way";
        PinnedGivenTwice: "memory/host/bucket", "pinned memory that is handed out stays in the list of free blocks";
        PinnedFirstUseKept: "memory/host/uses", "pinned memory keeps the first event of a stream";
        PinnedOnlyFirstUse: "memory/host/uses", "of several streams that use pinned memory, one is waited for";
        PinnedNotReadyIsReady: "memory/host/uses", "for pinned memory, `not ready` is taken for `ready`";
        PinnedRetired: "memory/host/uses", "for pinned memory, an event that has not passed counts as failed";
        WaitStreamOnItself: "runtime/stream", "wait_stream records its event on the stream that waits";
        SynchronizeNothing: "runtime/stream", "Stream::synchronize returns at once";
        AlwaysIdle: "runtime/stream", "Stream::query answers true";
        DeviceReturnsAtOnce: "runtime/device", "Device::synchronize returns at once";
        RecordedElsewhere: "runtime/event", "an event is recorded on the default stream";
        WaitEventDropped: "runtime/event", "a stream does not wait for the event";
        QueryAlwaysTrue: "runtime/event", "Event::query answers true";
        PinnedUseNotTold: "runtime/pinned", "the cache of pinned memory does not hear of a use";
        CopyNotRecorded: "runtime/copy", "a copy to pinned memory is not recorded as a use of it";
        CopyRecordedElsewhere: "runtime/copy", "a copy from pinned memory is recorded on the current stream";
        GraphForgetsPinned: "runtime/graph", "a graph does not keep the pinned memory that it copies from";
        ReplayForgetsPinned: "runtime/graph", "a replay is not recorded as a use of the graph's pinned memory";
        ReplayNotAwaited: "runtime/graph", "a graph's memory is unmapped before a replay is over";
        SharingUnchecked: "runtime/graph/sharing", "a graph overwrites an output of another that is still wanted";
        GraphDropsPool: "runtime/graph", "a graph does not keep the pool that its memory is in";
        HostPoolNotReleased: "runtime/graph", "the pool of a graph's pinned memory is never released";
        CaptureNeverEnds: "runtime/graph", "the allocator does not hear that a capture has ended";
        NoTerminals: "runtime/memory/captures", "what a capturing stream did last is not known";
        FreedOnDefaultStream: "runtime/memory/stream_ordered", "memory is freed in the order of the default stream";
        EventGivenTwice: "runtime/memory/upstream", "an event that is taken stays in the list of spare ones";
        EventOnDefaultStream: "runtime/memory/upstream", "the allocators' events are recorded on the default stream";
        PeerEventAtHome: "runtime/memory/upstream", "an event for a peer's stream is made on the wrong device";
        FailedMapNotUndone: "runtime/memory/pages", "pages of a mapping that failed half-way stay mapped";
    }
}
