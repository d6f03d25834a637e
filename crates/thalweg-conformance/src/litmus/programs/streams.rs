//! Order within a stream, between streams, and the default stream.

use super::vocabulary::*;

pub(super) const PROGRAMS: &[LitmusProgram] = &[
    LitmusProgram {
        name: "streams/one_stream_writes_in_order",
        about: "Commands of one stream run in issue order, so the second write is the last.",
        threads: &[&[Write(A, X, 1), Write(A, X, 2)]],
        observed: &[Observed::Cell(X)],
        allowed: &[&[2]],
    },
    LitmusProgram {
        name: "streams/one_stream_reads_between_writes",
        about: "A copy between two kernels of its stream sees the first and not the second.",
        threads: &[&[Write(A, X, 1), Copy(A, Y, X), Write(A, X, 2)]],
        observed: &[Observed::Cell(X), Observed::Cell(Y)],
        allowed: &[&[2, 1]],
    },
    LitmusProgram {
        name: "streams/commands_of_every_kind_are_ordered",
        about: "Kernels, fills and copies of one stream are ordered with one another, whatever engine runs them: X is \
                filled, copied out, copied in from pinned memory that the copy out has written, and added to.",
        threads: &[&[
            Write(A, X, 1),
            Fill(A, X, 5),
            CopyOut(A, P, X),
            Write(A, X, 2),
            CopyIn(A, X, P),
            Add(A, X, 1),
            Copy(A, Y, X),
            Fill(A, X, 9),
        ]],
        observed: &[Observed::Cell(X), Observed::Cell(Y), Observed::Pinned(P)],
        allowed: &[&[9, 6, 5]],
    },
    LitmusProgram {
        name: "streams/two_streams_race_to_write",
        about: "Nothing orders the two writes: either is the last.",
        threads: &[&[Write(A, X, 1), Write(B, X, 2)]],
        observed: &[Observed::Cell(X)],
        allowed: &[&[1], &[2]],
    },
    LitmusProgram {
        name: "streams/a_read_without_order_sees_either",
        about: "Nothing orders the copy after the kernel of the other stream: it sees the old value or the new.",
        threads: &[&[Write(A, X, 1), Copy(B, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[0], &[1]],
    },
    LitmusProgram {
        name: "streams/a_late_write_is_still_missed",
        about: "As before, with a kernel so long that the copy almost always comes first; both remain allowed.",
        threads: &[&[WriteLate(A, X, 1), Copy(B, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[0], &[1]],
    },
    LitmusProgram {
        name: "streams/an_addition_may_be_lost",
        about: "Two additions that are not atomic, on two streams: one may read before the other has written, so one of \
                the two may be lost.",
        threads: &[&[Add(A, X, 1), Add(B, X, 1)]],
        observed: &[Observed::Cell(X)],
        allowed: &[&[1], &[2]],
    },
    LitmusProgram {
        name: "streams/a_fill_without_order_is_missed",
        about: "A fill of device memory is asynchronous like a kernel: another stream may miss it.",
        threads: &[&[Fill(A, X, 7), Copy(B, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[0], &[7]],
    },
    LitmusProgram {
        name: "streams/the_default_stream_ignores_non_blocking_streams",
        about: "Non-blocking streams take no part in the legacy default stream's implicit synchronisation: the copy on \
                the default stream is not ordered after the kernel.",
        threads: &[&[Write(A, X, 1), Copy(DEFAULT, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[0], &[1]],
    },
    LitmusProgram {
        name: "streams/non_blocking_streams_ignore_the_default_stream",
        about: "The other direction of the same rule: the non-blocking stream does not wait for the default stream.",
        threads: &[&[Write(DEFAULT, X, 1), Copy(A, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[0], &[1]],
    },
    LitmusProgram {
        name: "streams/the_default_stream_waits_for_events",
        about: "An event orders the default stream like any other.",
        threads: &[&[WriteLate(A, X, 1), Record(E, A), Wait(DEFAULT, E), Copy(DEFAULT, Y, X)]],
        observed: &[Observed::Cell(Y)],
        allowed: &[&[1]],
    },
    LitmusProgram {
        name: "streams/the_default_stream_is_in_order",
        about: "The default stream is a stream: issue order.",
        threads: &[&[WriteLate(DEFAULT, X, 1), Copy(DEFAULT, Y, X), Write(DEFAULT, X, 2)]],
        observed: &[Observed::Cell(X), Observed::Cell(Y)],
        allowed: &[&[2, 1]],
    },
    LitmusProgram {
        name: "streams/a_host_function_blocks_its_stream",
        about: "A host function runs after the work before it, and the host sees what it did once the stream is done.",
        threads: &[&[Call(A, R, 1), WriteLate(A, X, 1), Call(A, R, 2), SyncStream(A), HostCopy(S, R)]],
        observed: &[Observed::Register(S)],
        allowed: &[&[2]],
    },
    LitmusProgram {
        name: "streams/a_host_function_is_asynchronous",
        about: "Without synchronisation the host may look before the function has run.",
        threads: &[&[Write(A, X, 1), Call(A, R, 2), HostCopy(S, R)]],
        observed: &[Observed::Register(S)],
        allowed: &[&[0], &[2]],
    },
];
