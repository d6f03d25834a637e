//! Reused memory: the orders that an allocator and a loader must establish.

use super::vocabulary::*;

pub(super) const PROGRAMS: &[LitmusProgram] = &[
    LitmusProgram {
        name: "reuse/pinned_memory_is_refilled_too_early",
        about: "The host overwrites the source of a copy that may not have run: the copy takes either value.",
        threads: &[&[HostWrite(P, 1), Write(A, Y, 1), CopyIn(A, X, P), HostWrite(P, 2)]],
        observed: &[Observed::Cell(X)],
        allowed: &[&[1], &[2]],
    },
    LitmusProgram {
        name: "reuse/pinned_memory_is_refilled_behind_an_event",
        about: "The host waits until the copy has read its source.",
        threads: &[&[
            HostWrite(P, 1),
            WriteLate(A, Y, 1),
            CopyIn(A, X, P),
            Record(E, A),
            SyncEvent(E),
            HostWrite(P, 2),
        ]],
        observed: &[Observed::Cell(X)],
        allowed: &[&[1]],
    },
    LitmusProgram {
        name: "reuse/a_block_is_written_while_another_stream_reads",
        about: "A owns the block, and B uses it; without a record of B's use, A's next write may come before B's read. \
                This is a missing `record_stream`.",
        threads: &[&[Write(A, X, 1), Record(E, A), Wait(B, E), Move(B, Y, X), Write(A, X, 2)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[1], &[2]],
    },
    LitmusProgram {
        name: "reuse/a_block_is_written_after_the_other_stream",
        about: "With an event behind B's read, for which A waits, the write comes after the read.",
        threads: &[&[
            Write(A, X, 1),
            Record(E, A),
            Wait(B, E),
            Move(B, Y, X),
            Record(F, B),
            Wait(A, F),
            Write(A, X, 2),
        ]],
        observed: &[Observed::Cell(X), Observed::Cell(Y)],
        allowed: &[&[2, 1]],
    },
    LitmusProgram {
        name: "reuse/a_use_recorded_too_early_protects_nothing",
        about: "The event is recorded before B's last read: A's write may still come before that read.",
        threads: &[&[
            Write(A, X, 1),
            Record(E, A),
            Wait(B, E),
            Record(F, B),
            Move(B, Y, X),
            Wait(A, F),
            Write(A, X, 2),
        ]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[1], &[2]],
    },
    LitmusProgram {
        name: "reuse/a_prefetch_is_ordered_both_ways",
        about: "A loader copies batches on a side stream: the compute stream waits for each copy, and the next copy into \
                the same cell waits for the computation.",
        threads: &[&[
            HostWrite(P, 1),
            CopyIn(B, X, P),
            Record(E, B),
            Wait(A, E),
            Move(A, Y, X),
            Record(F, A),
            HostWrite(Q, 2),
            Wait(B, F),
            CopyIn(B, X, Q),
            Record(E, B),
            Wait(A, E),
            Move(A, Z, X),
        ]],
        observed: &[Observed::Cell(Y), Observed::Cell(Z)],
        allowed: &[&[1, 2]],
    },
    LitmusProgram {
        name: "reuse/a_prefetch_overwrites_the_batch",
        about: "The same without the wait for the computation: the second batch may arrive before the first was used.",
        threads: &[&[
            HostWrite(P, 1),
            CopyIn(B, X, P),
            Record(E, B),
            Wait(A, E),
            Move(A, Y, X),
            HostWrite(Q, 2),
            CopyIn(B, X, Q),
            Record(E, B),
            Wait(A, E),
            Move(A, Z, X),
        ]],
        observed: &[Observed::Cell(Y), Observed::Cell(Z)],
        allowed: &[&[1, 2], &[2, 2]],
    },
];
