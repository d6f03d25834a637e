//! The [`Driver`] of the simulator: each call enters the machine, does its part there, and waits where the contract says so.

use std::path::Path;

use smallvec::SmallVec;
use thalweg_driver::{
    Access, CaptureInfo, CaptureMode, Cluster, Code, Collective, CommunicatorHandle, CommunicatorId,
    CommunicatorInfo, ConditionFormat, ConditionHandle, Conditional, Copy, DependencyUpdate, DevicePointer,
    DeviceProperties, Driver, Error, EventFlags, EventHandle, ExternalStream, Fill, FunctionAttributes,
    FunctionHandle, GpuCall, GraphDescription, GraphExecHandle, GraphExecUpdate, GraphHandle,
    GraphNodeHandle, GraphNodeKind, HostFlags, HostFunction, HostMethod, HostPointer, Image, IpcHandle,
    Label, Launch, LibraryLaunch, MatmulAlgorithm, MatmulCall, MemoryAccess, MemoryAdvice, MemoryInfo,
    ModuleHandle, PhysicalFlags, PhysicalHandle, PoolAttributes, PoolHandle, PoolUsage, ProcessMemory,
    RecurrentMemory, RecurrentShape, Registration, Result, ShareableHandle, StreamHandle, TensorMap,
    TensorTiles, Version,
};

use super::SimDriver;
use super::collective;
use super::executor::command::CommandId;
use super::memory::SpanAccess;
use super::refusal::Refusal;
use super::state::{MachineState, unknown};
use crate::calls::capture;
use crate::calls::code::{ALGORITHMS, MAX_THREADS_PER_BLOCK};
use crate::calls::pool;
use crate::calls::transfer::{self, take_away};
use crate::executor::faults::Point;
use crate::executor::task::{BorrowedTarget, Task, Work};

/// Defines calls that enter the machine: `fn name(arguments) -> answer = enter(…);`.
macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty = $enter:ident($($passed:expr),*);)*) => {
        $(fn $name(&self $(, $argument: $type)*) -> Result<$answer> {
            self.$enter($($passed),*)
        })*
    };
}

impl Driver for SimDriver {
    // ---- Devices and contexts -------------------------------------------------------------------------------------

    fn name(&self) -> &'static str {
        "sim"
    }

    fn version(&self) -> Version {
        Version { major: 13, minor: 0 }
    }

    fn device_count(&self) -> u32 {
        self.config.devices
    }

    fn device_properties(&self, device: u32) -> Result<DeviceProperties> {
        self.enter("cuDeviceGetAttribute", |state| state.device(device).map(|_| ()))?;
        Ok(self.properties(device))
    }

    entries! {
        fn context_is_active(device: u32) -> bool =
            enter("cuDevicePrimaryCtxGetState", |state| Ok(state.device(device)?.is_active));
        fn context_initialize(device: u32) -> () = enter("cuDevicePrimaryCtxRetain", |state| {
            state.device(device)?;
            state.forbid_in_capture("context_initialize")?;
            state.usable(device)
        });
        fn device_synchronize(device: u32) -> () = enter_and_wait("cuCtxSynchronize", |mut locked| {
            locked.usable(device)?;
            locked.forbid_on_capturing_device(device, "device_synchronize")?;
            let work = locked.device_frontier(device);
            locked.wait_for_result(&work)?.check_alive(device)
        });
        fn memory_info(device: u32) -> MemoryInfo = enter("cuMemGetInfo", |state| {
            state.usable(device)?;
            Ok(state.memory.info(device))
        });
        fn can_access_peer(device: u32, peer: u32) -> bool = enter("cuDeviceCanAccessPeer", |state| {
            state.device(device)?;
            state.device(peer)?;
            Ok(device != peer)
        });
        fn enable_peer_access(device: u32, peer: u32) -> () = enter("cuCtxEnablePeerAccess", |state| {
            state.usable(device)?;
            state.usable(peer)?;
            state.memory.enable_peer(device, peer)
        });
        fn disable_peer_access(device: u32, peer: u32) -> () = enter("cuCtxDisablePeerAccess", |state| {
            state.usable(device)?;
            state.usable(peer)?;
            state.memory.disable_peer(device, peer)
        });
    }

    // ---- Streams --------------------------------------------------------------------------------------------------

    entries! {
        fn default_stream(device: u32) -> StreamHandle = enter("cuDevicePrimaryCtxRetain", |state| {
            state.usable(device)?;
            Ok(StreamHandle::from_raw(state.devices[device as usize].default_stream))
        });
        fn stream_create(device: u32, priority: i32) -> StreamHandle = enter("cuStreamCreateWithPriority", |state| {
            Ok(StreamHandle::from_raw(state.stream_create(device, priority, false)?))
        });
        fn stream_destroy(stream: StreamHandle) -> () = enter("cuStreamDestroy", |state| state.stream_destroy(stream.raw()));
        fn stream_device(stream: StreamHandle) -> u32 =
            enter("cuStreamGetDevice", |state| Ok(state.number_and_device(stream.raw())?.1));
        fn stream_priority(stream: StreamHandle) -> i32 = enter("cuStreamGetPriority", |state| {
            let own = state.stream_id(stream.raw())?;
            Ok(state.stream(own).priority)
        });
        fn stream_is_blocking(stream: StreamHandle) -> bool = enter("cuStreamGetFlags", |state| {
            let own = state.stream_id(stream.raw())?;
            let found = state.stream(own);
            Ok(found.is_blocking || found.is_legacy)
        });
        fn stream_query(stream: StreamHandle) -> bool = query("cuStreamQuery", stream.raw(), |state| {
            let own = state.enter(stream.raw())?;
            state.forbid_on_capturing(own, "stream_query")?;
            state.forbid_in_capture("stream_query")?;
            Ok(state.frontier(own))
        });
        fn stream_synchronize(stream: StreamHandle) -> () = enter_and_wait("cuStreamSynchronize", |mut locked| {
            let own = locked.enter(stream.raw())?;
            locked.forbid_on_capturing(own, "stream_synchronize")?;
            locked.forbid_in_capture("stream_synchronize")?;
            let device = locked.stream(own).device;
            let work = locked.frontier(own);
            locked.wait_for_result(&work)?.check_alive(device)
        });
        fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> () =
            submit("cuStreamWaitEvent", stream, |state| state.stream_wait_event(stream.raw(), event.raw()));
        fn stream_from_external(device: u32, stream: ExternalStream) -> StreamHandle = enter("cuStreamGetCtx", |state| {
            if stream.context().is_some() {
                return Err(Refusal::new(
                    Code::InvalidContext,
                    "a simulated device has its primary context only",
                ));
            }
            Ok(StreamHandle::from_raw(state.stream_from_external(device, stream.cuda_stream())?))
        });
        fn cuda_stream(stream: StreamHandle) -> u64 =
            enter("cuStreamGetId", |state| Ok(state.number_and_device(stream.raw())?.0));
    }

    // ---- Events ---------------------------------------------------------------------------------------------------

    entries! {
        fn event_create(device: u32, flags: EventFlags) -> EventHandle =
            enter("cuEventCreate", |state| Ok(EventHandle::from_raw(state.event_create(device, flags)?)));
        fn event_destroy(event: EventHandle) -> () = enter("cuEventDestroy", |state| {
            state.events.remove(event.raw()).map(|_| ()).ok_or_else(|| unknown("event", event.raw()))
        });
        fn event_record(event: EventHandle, stream: StreamHandle) -> () =
            submit("cuEventRecord", stream, |state| state.event_record(event.raw(), stream.raw()));
        fn event_record_external(event: EventHandle, stream: StreamHandle) -> () =
            enter("cuEventRecordWithFlags", |state| state.event_record_external(event.raw(), stream.raw()));
        fn stream_wait_event_external(stream: StreamHandle, event: EventHandle) -> () =
            enter("cuStreamWaitEvent", |state| state.stream_wait_event_external(stream.raw(), event.raw()));
    }

    fn cuda_event(&self, event: EventHandle) -> Result<u64> {
        Ok(event.raw())
    }

    entries! {
        fn event_query(event: EventHandle) -> bool = query("cuEventQuery", event.raw(), |state| {
            let unfinished = state.event_frontier(event.raw())?;
            state.forbid_in_capture("event_query")?;
            Ok(unfinished)
        });
        fn event_synchronize(event: EventHandle) -> () = enter_and_wait("cuEventSynchronize", |mut locked| {
            let work = locked.event_frontier(event.raw())?;
            locked.forbid_in_capture("event_synchronize")?;
            let device = locked.event_device(event.raw())?;
            locked.wait_for_result(&work)?.check_alive(device)
        });
        fn event_elapsed_ms(start: EventHandle, end: EventHandle) -> f32 = enter("cuEventElapsedTime", |state| {
            let (start, end) = state.event_times(start.raw(), end.raw())?;
            Ok(((end as f64 - start as f64) / 1e6) as f32)
        });
    }

    // ---- Device memory --------------------------------------------------------------------------------------------

    entries! {
        fn memory_allocate(device: u32, bytes: u64) -> DevicePointer = enter("cuMemAlloc", |state| {
            state.usable(device)?;
            state.forbid_in_capture("memory_allocate")?;
            state.executor.faults.pass(Point::DeviceMemory)?;
            state.memory.plain_allocate(device, bytes, SpanAccess::Plain).map(DevicePointer::new)
        });
        fn memory_allocate_managed(device: u32, bytes: u64) -> DevicePointer = enter("cuMemAllocManaged", |state| {
            state.usable(device)?;
            state.forbid_in_capture("memory_allocate_managed")?;
            state.executor.faults.pass(Point::DeviceMemory)?;
            state.memory.plain_allocate(device, bytes, SpanAccess::Managed).map(DevicePointer::new)
        });
        fn memory_advise(pointer: DevicePointer, bytes: u64, advice: MemoryAdvice) -> () =
            enter("cuMemAdvise", |state| state.memory_advise(pointer.address(), bytes, advice));
    }

    fn memory_free(&self, pointer: DevicePointer) -> Result<()> {
        let address = pointer.address();
        self.enter_and_wait("cuMemFree", |mut locked| {
            let (device, _) = locked.memory.plain_pieces(address)?;
            locked.memory.check_not_open(address)?;
            locked.check_not_registered(address)?;
            locked.forbid_in_capture("memory_free")?;
            let work = locked.device_frontier(device);
            let find = |state: &MachineState| {
                state.memory.check_not_open(address)?;
                state.check_not_registered(address)?;
                state.memory.plain_pieces(address).map(|(_, pieces)| pieces)
            };
            take_away(locked.wait_for(&work)?, find, |state| state.memory.plain_free(address))
        })
    }

    entries! {
        fn address_reserve(device: u32, bytes: u64) -> DevicePointer = enter("cuMemAddressReserve", |state| {
            state.usable(device)?;
            state.memory.address_reserve(bytes).map(DevicePointer::new)
        });
        fn address_free(pointer: DevicePointer, bytes: u64) -> () =
            enter("cuMemAddressFree", |state| state.memory.address_free(pointer.address(), bytes));
        fn physical_create(device: u32, bytes: u64, flags: PhysicalFlags) -> PhysicalHandle = enter("cuMemCreate", |state| {
            state.usable(device)?;
            if flags.gpu_direct_rdma {
                let detail = "no network adapter reaches simulated memory: leave `gpu_direct_rdma` off";
                return Err(Refusal::new(Code::NotSupported, detail));
            }
            state.executor.faults.pass(Point::DeviceMemory)?;
            state.memory.physical_create(device, bytes, flags.share_as).map(PhysicalHandle::from_raw)
        });
        fn physical_release(physical: PhysicalHandle) -> () =
            enter("cuMemRelease", |state| state.memory.physical_release(physical.raw()));
        fn memory_map(pointer: DevicePointer, bytes: u64, physical: PhysicalHandle, offset: u64) -> () =
            enter("cuMemMap", |state| {
                state.executor.faults.pass(Point::Map)?;
                state.memory.map(pointer.address(), bytes, physical.raw(), offset)
            });
    }

    fn memory_unmap(&self, pointer: DevicePointer, bytes: u64) -> Result<()> {
        let address = pointer.address();
        self.enter_and_wait("cuMemUnmap", |locked| {
            let find = |state: &MachineState| state.memory.mapped_pieces(address, bytes);
            take_away(locked, find, |state| state.memory.unmap(address, bytes))
        })
    }

    entries! {
        fn memory_set_access(pointer: DevicePointer, bytes: u64, device: u32, access: MemoryAccess) -> () =
            enter("cuMemSetAccess", |state| {
                state.usable(device)?;
                state.memory.set_access(pointer.address(), bytes, device, access)
            });
        fn physical_export(physical: PhysicalHandle) -> ShareableHandle =
            enter("cuMemExportToShareableHandle", |state| state.memory.physical_export(physical.raw()));
        fn physical_import(device: u32, bytes: u64, handle: &ShareableHandle) -> PhysicalHandle =
            enter("cuMemImportFromShareableHandle", |state| {
                state.usable(device)?;
                state.memory.physical_import(device, bytes, handle).map(PhysicalHandle::from_raw)
            });
        fn ipc_export(pointer: DevicePointer) -> IpcHandle =
            enter("cuIpcGetMemHandle", |state| state.memory.ipc_export(pointer.address()));
        fn ipc_open(device: u32, handle: IpcHandle) -> DevicePointer = enter("cuIpcOpenMemHandle", |state| {
            state.usable(device)?;
            state.forbid_in_capture("ipc_open")?;
            state.memory.ipc_open(device, handle).map(DevicePointer::new)
        });
        fn address_range(pointer: DevicePointer) -> (DevicePointer, u64) = enter("cuMemGetAddressRange", |state| {
            let (start, bytes) = state.memory.address_range(pointer.address())?;
            Ok((DevicePointer::new(start), bytes))
        });
    }

    fn ipc_close(&self, pointer: DevicePointer) -> Result<()> {
        let address = pointer.address();
        self.enter_and_wait("cuIpcCloseMemHandle", |mut locked| {
            locked.memory.opened_pieces(address)?;
            locked.forbid_in_capture("ipc_close")?;
            let find = |state: &MachineState| state.memory.opened_pieces(address);
            take_away(locked, find, |state| state.memory.ipc_close(address))
        })
    }

    entries! {
        fn pool_create(device: u32) -> PoolHandle =
            enter("cuMemPoolCreate", |state| state.pool_create(device).map(PoolHandle::from_raw));
        fn pool_destroy(pool: PoolHandle) -> () = enter("cuMemPoolDestroy", |state| state.pool_destroy(pool.raw()));
        fn pool_trim(pool: PoolHandle, keep_bytes: u64) -> () =
            enter("cuMemPoolTrimTo", |state| state.pool_trim(pool.raw(), keep_bytes));
        fn pool_attributes(pool: PoolHandle) -> PoolAttributes =
            enter("cuMemPoolGetAttribute", |state| state.pool_attributes(pool.raw()).copied());
        fn pool_set_attributes(pool: PoolHandle, attributes: PoolAttributes) -> () = enter("cuMemPoolSetAttribute", |state| {
            *state.pool_attributes(pool.raw())? = attributes;
            Ok(())
        });
        fn pool_usage(pool: PoolHandle) -> PoolUsage =
            enter("cuMemPoolGetAttribute", |state| state.pool_usage(pool.raw()).copied());
        fn pool_reset_peaks(pool: PoolHandle) -> () = enter("cuMemPoolSetAttribute", |state| {
            let usage = state.pool_usage(pool.raw())?;
            usage.reserved_peak_bytes = usage.reserved_bytes;
            usage.used_peak_bytes = usage.used_bytes;
            Ok(())
        });
        fn memory_allocate_async(pool: PoolHandle, bytes: u64, stream: StreamHandle) -> DevicePointer =
            enter_and_wait("cuMemAllocFromPoolAsync", |locked| {
                pool::allocate_async(locked, pool.raw(), bytes, stream.raw()).map(DevicePointer::new)
            });
        fn memory_free_async(pointer: DevicePointer, stream: StreamHandle) -> () =
            submit("cuMemFreeAsync", stream, |state| state.free_async(pointer.address(), stream.raw()));
    }

    // ---- Pinned host memory ---------------------------------------------------------------------------------------

    entries! {
        fn host_allocate(bytes: u64, flags: HostFlags) -> HostPointer = enter("cuMemHostAlloc", |state| {
            state.forbid_in_capture("host_allocate")?;
            let prefault_threads = match flags.method {
                HostMethod::Allocate => 0,
                HostMethod::Register { .. } if flags.write_combined => {
                    let detail =
                        "memory of the process cannot be made write-combined: use HostMethod::Allocate";
                    return Err(Refusal::new(Code::InvalidValue, detail));
                }
                HostMethod::Register { prefault_threads } => prefault_threads,
            };
            state.executor.faults.pass(Point::PinnedMemory)?;
            state.memory.pinned_allocate(bytes, prefault_threads).map(HostPointer::new)
        });
    }

    fn host_free(&self, pointer: HostPointer) -> Result<()> {
        let address = pointer.address();
        self.enter_and_wait("cuMemFreeHost", |mut locked| {
            locked.memory.pinned_piece(address)?;
            locked.forbid_in_capture("host_free")?;
            let devices = 0..locked.devices.len() as u32;
            let work: Vec<CommandId> = devices.flat_map(|device| locked.device_frontier(device)).collect();
            let find =
                |state: &MachineState| Ok(SmallVec::from_slice(&[state.memory.pinned_piece(address)?]));
            take_away(locked.wait_for(&work)?, find, |state| state.memory.pinned_free(address))
        })
    }

    fn host_read(&self, source: HostPointer, target: &mut [u8]) -> Result<()> {
        let access =
            Access { start: source.address(), ..Access::read(DevicePointer::default(), target.len() as u64) };
        self.look_and_wait("host_read", source.address(), |locked| {
            transfer::with_pinned(locked, access, |pointer| {
                // SAFETY: the bytes are held for this read, and `target` is memory of its own.
                unsafe { std::ptr::copy_nonoverlapping(pointer, target.as_mut_ptr(), target.len()) };
            })
        })
    }

    fn host_write(&self, target: HostPointer, source: &[u8]) -> Result<()> {
        let access = Access {
            start: target.address(),
            ..Access::write(DevicePointer::default(), source.len() as u64)
        };
        self.enter_and_wait("host_write", |locked| {
            transfer::with_pinned(locked, access, |pointer| {
                // SAFETY: the bytes are held for this write, and `source` is memory of its own.
                unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), pointer, source.len()) };
            })
        })
    }

    // ---- Memory that the host accesses in place -------------------------------------------------------------------

    entries! {
        fn host_map(memory: &ProcessMemory) -> DevicePointer = enter("cuMemHostRegister", |state| {
            state.memory.process_map(memory).map(DevicePointer::new)
        });
        fn host_unmap(pointer: DevicePointer) -> () = enter_and_wait("cuMemHostUnregister", |locked| {
            let address = pointer.address();
            let find =
                |state: &MachineState| Ok(SmallVec::from_slice(&[state.memory.process_piece(address)?]));
            take_away(locked, find, |state| state.memory.process_unmap(address))
        });
        fn host_view(device: u32, pointer: DevicePointer, bytes: u64) -> u64 =
            enter_and_wait("cuPointerGetAttribute", |mut locked| {
                locked.usable(device)?;
                let address = locked.memory.view(device, &Access::write(pointer, bytes))?;
                let work = locked.device_frontier(device);
                locked.wait_for(&work)?;
                Ok(address)
            });
        fn host_unview(pointer: DevicePointer, _bytes: u64) -> () = enter("cuPointerGetAttribute", |state| {
            state.memory.unview(pointer.address())
        });
    }

    // ---- Copies, fills, host functions ----------------------------------------------------------------------------

    entries! {
        fn copy_async(stream: StreamHandle, copy: &Copy) -> () =
            submit("cuMemcpyAsync", stream, |state| transfer::copy(state, stream.raw(), copy));
    }

    fn copy_from_host(
        &self,
        stream: StreamHandle,
        target: DevicePointer,
        source: &[u8],
        label: Label,
    ) -> Result<()> {
        let staged: Box<[u8]> = source.into();
        self.submit("cuMemcpyHtoDAsync", stream, |state| {
            let own = state.enter(stream.raw())?;
            state.forbid_on_capturing(own, "copy_from_host")?;
            let accesses = [Access::write(target, staged.len() as u64)];
            transfer::submit(state, own, label, &accesses, Work::CopyIn(staged), GraphNodeKind::Copy)?;
            Ok(())
        })
    }

    fn copy_to_host(
        &self,
        stream: StreamHandle,
        target: &mut [u8],
        source: DevicePointer,
        label: Label,
    ) -> Result<()> {
        let bytes = target.len() as u64;
        let borrowed = BorrowedTarget::new(target);
        self.enter_and_wait("cuMemcpyDtoHAsync", |mut locked| {
            let own = locked.enter(stream.raw())?;
            locked.forbid_on_capturing(own, "copy_to_host")?;
            let device = locked.stream(own).device;
            let accesses = [Access::read(source, bytes)];
            let work = Work::CopyOut(borrowed.target());
            let command = transfer::submit(&mut locked, own, label, &accesses, work, GraphNodeKind::Copy)?;
            let command = command.expect("the stream does not capture");
            locked.wait_for_result(&[command])?.check_alive(device)
        })
    }

    entries! {
        fn fill_async(stream: StreamHandle, fill: &Fill) -> () =
            submit("cuMemsetAsync", stream, |state| transfer::fill(state, stream.raw(), fill));
        fn host_function_async(stream: StreamHandle, function: HostFunction, label: Label) -> () =
            submit("cuLaunchHostFunc", stream, |state| {
                let own = state.enter(stream.raw())?;
                let device = state.stream(own).device;
                // A clone: if this is refused, the function is dropped by this call, outside the critical section.
                let work = Work::Host(HostFunction::clone(&function));
                let task = Task { device, label, accesses: SmallVec::new(), work };
                state.submit(own, task, GraphNodeKind::Host).map(|_| ())
            });
    }

    // ---- Code -----------------------------------------------------------------------------------------------------

    entries! {
        fn module_load(device: u32, image: Image<'_>) -> ModuleHandle =
            enter("cuModuleLoadData", |state| state.module_load(device, image).map(ModuleHandle::from_raw));
        fn module_unload(module: ModuleHandle) -> () = enter_and_wait("cuModuleUnload", |locked| {
            let device = locked.module_device(module.raw())?;
            let work = locked.device_frontier(device);
            locked.wait_for(&work)?.module_unload(module.raw())
        });
        fn function_get(module: ModuleHandle, name: &str) -> FunctionHandle = enter("cuModuleGetFunction", |state| {
            state.function_get(module.raw(), name).map(FunctionHandle::from_raw)
        });
        fn function_attributes(function: FunctionHandle) -> FunctionAttributes = enter("cuFuncGetAttribute", |state| {
            state.check_function(function.raw())?;
            Ok(FunctionAttributes {
                max_threads_per_block: MAX_THREADS_PER_BLOCK,
                registers: 32,
                shared_memory_bytes: 0,
                local_memory_bytes: 0,
            })
        });
    }

    fn max_active_clusters(&self, function: FunctionHandle, cluster: Cluster) -> Result<u32> {
        self.enter("cuOccupancyMaxActiveClusters", |state| {
            state.check_function(function.raw())?;
            Ok((self.config.workers as u32 / cluster.blocks.max(1)).max(1))
        })
    }

    entries! {
        fn launch(stream: StreamHandle, launch: &Launch<'_>) -> () =
            submit("cuLaunchKernel", stream, |state| state.launch(stream.raw(), launch));
    }

    fn tensor_map(&self, tiles: &TensorTiles) -> Result<TensorMap> {
        // A host function can compute the addresses of its operands.
        tiles.check().map(|()| tiles.described())
    }

    fn library_workspace(&self, device: u32, _: &GpuCall) -> Result<u64> {
        // A host function needs no workspace.
        self.device_properties(device).map(|_| 0)
    }

    fn recurrent_memory(&self, device: u32, shape: &RecurrentShape) -> Result<RecurrentMemory> {
        self.device_properties(device)?;
        match shape.fault() {
            None => Ok(shape.dense()),
            Some(fault) => Err(Error::new(Code::InvalidValue, "cudnnSetRNNDescriptor_v8", fault)),
        }
    }

    fn matmul_algorithms(&self, device: u32, _: &MatmulCall, most: u32) -> Result<Vec<MatmulAlgorithm>> {
        self.device_properties(device).map(|_| ALGORITHMS.into_iter().take(most as usize).collect())
    }

    entries! {
        fn library_async(stream: StreamHandle, launch: &LibraryLaunch<'_>) -> () =
            submit(launch.gpu.entry_point(), stream, |state| state.library(stream.raw(), launch));
    }

    // ---- Several devices together ---------------------------------------------------------------------------------

    entries! {
        fn communicators_create(devices: &[u32]) -> Vec<CommunicatorHandle> =
            enter("ncclCommInitAll", |state| state.communicators_create(devices));
        fn communicator_id() -> CommunicatorId = enter("ncclGetUniqueId", MachineState::communicator_id);
        fn communicator_join(id: &CommunicatorId, device: u32, rank: u32, ranks: u32) -> CommunicatorHandle =
            enter("ncclCommInitRank", |state| state.communicator_join(id, device, rank, ranks));
        fn communicator_abort(communicator: CommunicatorHandle) -> () =
            enter("ncclCommAbort", |state| state.communicator_abort(communicator));
        fn communicator_info(communicator: CommunicatorHandle) -> CommunicatorInfo =
            enter("ncclCommUserRank", |state| state.communicator_info(communicator));
        fn communicator_destroy(communicator: CommunicatorHandle) -> () = enter_and_wait("ncclCommDestroy", |locked| {
            collective::calls::communicator_destroy(locked, communicator)
        });
        fn communicator_split(own: CommunicatorHandle, part: &[u32]) -> Option<CommunicatorHandle> =
            enter("ncclCommSplit", |state| state.communicator_split(own, part));
        fn memory_allocate_collective(device: u32, bytes: u64) -> DevicePointer =
            enter("ncclMemAlloc", |state| state.memory_allocate_collective(device, bytes));
        fn memory_register(registration: &Registration) -> () =
            enter("ncclCommRegister", |state| state.memory_register(registration));
        fn memory_deregister(communicator: CommunicatorHandle, pointer: DevicePointer) -> () =
            enter("ncclCommDeregister", |state| state.memory_deregister(communicator, pointer));
    }

    fn collectives_async(&self, collectives: &[Collective]) -> Result<()> {
        let streams = collectives.iter().map(|collective| collective.stream);
        self.submit_on("ncclGroupEnd", streams, |state| state.collectives(collectives))
    }

    // ---- Capture and graphs ---------------------------------------------------------------------------------------

    entries! {
        fn stream_begin_capture(stream: StreamHandle, mode: CaptureMode) -> () =
            enter("cuStreamBeginCapture", |state| state.capture_begin(stream.raw(), mode));
        fn stream_end_capture(stream: StreamHandle) -> GraphHandle =
            enter("cuStreamEndCapture", |state| state.capture_end(stream.raw()).map(GraphHandle::from_raw));
        fn stream_capture_info(stream: StreamHandle) -> CaptureInfo =
            enter("cuStreamGetCaptureInfo", |state| state.capture_info(stream.raw()));
        fn stream_update_capture_dependencies(stream: StreamHandle, dependencies: &[GraphNodeHandle],
            update: DependencyUpdate) -> () =
            enter("cuStreamUpdateCaptureDependencies", |state| {
                state.capture_update(stream.raw(), dependencies, update)
            });
        fn condition_create(stream: StreamHandle, initial: u32) -> ConditionHandle =
            enter("cuGraphConditionalHandleCreate", |state| {
                state.condition_create(stream.raw(), initial).map(ConditionHandle::from_raw)
            });
        fn condition_set_async(stream: StreamHandle, condition: ConditionHandle, source: DevicePointer,
            format: ConditionFormat, label: Label) -> () =
            submit("cudaGraphSetConditional", stream, |state| {
                state.condition_set(stream.raw(), condition.raw(), source, format, label)
            });
        fn conditional_node_add(stream: StreamHandle, condition: ConditionHandle, conditional: Conditional,
            label: Label) -> Vec<GraphHandle> =
            enter("cuGraphAddNode", |state| {
                let bodies = state.conditional_node_add(stream.raw(), condition.raw(), conditional, label)?;
                Ok(bodies.into_iter().map(GraphHandle::from_raw).collect())
            });
        fn stream_begin_capture_to_graph(stream: StreamHandle, body: GraphHandle, mode: CaptureMode) -> () =
            enter("cuStreamBeginCaptureToGraph", |state| {
                state.capture_begin_to_graph(stream.raw(), body.raw(), mode)
            });
    }

    fn thread_exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        Ok(capture::exchange_thread_mode(mode))
    }

    entries! {
        fn graph_node_predecessors(graph: GraphHandle, node: GraphNodeHandle) -> Vec<GraphNodeHandle> =
            enter("cuGraphNodeGetDependencies", |state| state.graph_node_predecessors(graph.raw(), node));
        fn graph_describe(graph: GraphHandle) -> GraphDescription =
            enter("cuGraphGetNodes", |state| state.graph_describe(graph.raw()));
    }

    fn graph_debug_dot_print(&self, graph: GraphHandle, path: &Path, _verbose: bool) -> Result<()> {
        let call = "cuGraphDebugDotPrint";
        let description = self.enter(call, |state| state.graph_describe(graph.raw()))?;
        std::fs::write(path, description.to_dot()).map_err(|error| {
            Error::new(Code::OperatingSystem, call, format!("writing {}: {error}", path.display()))
        })
    }

    entries! {
        fn graph_destroy(graph: GraphHandle) -> () = enter("cuGraphDestroy", |state| state.graph_destroy(graph.raw()));
        fn graph_instantiate(graph: GraphHandle, device: u32) -> GraphExecHandle = enter("cuGraphInstantiate", |state| {
            state.graph_instantiate(graph.raw(), device).map(GraphExecHandle::from_raw)
        });
        fn graph_exec_update(exec: GraphExecHandle, graph: GraphHandle) -> GraphExecUpdate =
            enter("cuGraphExecUpdate", |state| state.graph_exec_update(exec.raw(), graph.raw()));
        fn graph_exec_kernel_node_set_params(exec: GraphExecHandle, node: GraphNodeHandle, launch: &Launch<'_>) -> () =
            enter("cuGraphExecKernelNodeSetParams", |state| {
                state.graph_exec_kernel_node_set_params(exec.raw(), node, launch)
            });
        fn graph_exec_destroy(exec: GraphExecHandle) -> () =
            enter("cuGraphExecDestroy", |state| state.graph_exec_destroy(exec.raw()));
        fn graph_launch(exec: GraphExecHandle, stream: StreamHandle) -> () =
            submit("cuGraphLaunch", stream, |state| state.graph_launch(exec.raw(), stream.raw()));
    }
}
