//! The fields of CUPTI's records. Our structs are prefixes of the records, so sizes are not compared.

use cudarc::cupti::sys as cupti;

use super::super::tools::cupti::{CopyOrFillRecord, CorrelationRecord, KernelRecord, PeerCopyRecord};
use super::*;

macro_rules! begins_as {
    ($ours:ty, $theirs:ty { $($fields:tt)* }) => {
        same_fields!($ours, $theirs { $($fields)* });
        assert!(size_of::<$ours>() <= size_of::<$theirs>(), stringify!($ours));
    };
}

/// Compares the common fields of a kernel, a copy and a fill, and some further fields.
macro_rules! begins_as_activity {
    ($ours:ty, $theirs:ty { $($fields:tt)* }) => {
        begins_as!($ours, $theirs {
            kind = kind,
            start = start,
            end = end,
            device = deviceId,
            stream = streamId,
            correlation = correlationId,
            graph_node = graphNodeId,
            $($fields)*
        });
    };
}

#[test]
fn fields_of_records_of_cupti() {
    begins_as_activity!(KernelRecord, cupti::CUpti_ActivityKernel10 {
        registers_per_thread = registersPerThread,
        grid = gridX,
        block = blockX,
        static_shared_memory = staticSharedMemory,
        dynamic_shared_memory = dynamicSharedMemory,
        name = name,
    });
    begins_as_activity!(CopyOrFillRecord, cupti::CUpti_ActivityMemcpy6 { bytes = bytes });
    begins_as_activity!(CopyOrFillRecord, cupti::CUpti_ActivityMemset4 { bytes = bytes });
    begins_as_activity!(PeerCopyRecord, cupti::CUpti_ActivityMemcpyPtoP4 { bytes = bytes });
    begins_as!(CorrelationRecord, cupti::CUpti_ActivityExternalCorrelation {
        kind = kind,
        external_kind = externalKind,
        external = externalId,
        correlation = correlationId,
    });
}
