//! CUPTI: arguments, numbers, and the fields of records. Our structs are prefixes of the records, so sizes are not
//! compared.

use cudarc::cupti::sys as cupti;

use super::super::tools::cupti::{
    self as ours, CopyOrFillRecord, CorrelationRecord, CuptiTable, KernelRecord, PeerCopyRecord, kind,
};
use super::*;

#[test]
fn arguments_of_cupti() {
    let theirs = generated! {
        cupti:
            cuptiSubscribe(_, _, _);
            cuptiUnsubscribe(_);
            cuptiActivityRegisterCallbacks(_, _);
            cuptiActivityEnable(_);
            cuptiActivityDisable(_);
            cuptiActivityFlushAll(_);
            cuptiActivityGetNextRecord(_, _, _);
            cuptiActivityGetNumDroppedRecords(_, _, _);
            cuptiActivityPushExternalCorrelationId(_, _);
            cuptiActivityPopExternalCorrelationId(_, _);
            cuptiGetTimestamp(_);
    };
    compare(CuptiTable::signatures(), &theirs, &[]);
}

#[test]
fn constants_of_cupti() {
    use cupti::CUpti_ActivityKind as Kind;
    same_numbers! {
        kind::COPY => Kind::CUPTI_ACTIVITY_KIND_MEMCPY;
        kind::FILL => Kind::CUPTI_ACTIVITY_KIND_MEMSET;
        kind::DRIVER => Kind::CUPTI_ACTIVITY_KIND_DRIVER;
        kind::RUNTIME => Kind::CUPTI_ACTIVITY_KIND_RUNTIME;
        kind::KERNEL => Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        kind::PEER_COPY => Kind::CUPTI_ACTIVITY_KIND_MEMCPY2;
        kind::EXTERNAL_CORRELATION => Kind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        ours::OUR_CORRELATION => cupti::CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
        ours::FLUSH_FORCED => cupti::CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED;
        ours::MULTIPLE_SUBSCRIBERS => cupti::CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    }
}

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
