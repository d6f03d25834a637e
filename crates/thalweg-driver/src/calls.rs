//! The list of a driver's calls: their documentation, arguments and results.
//!
//! [`calls!`] passes the list to a macro that makes something of each call: a method of [`Driver`](crate::Driver) that forwards it
//! ([`driver`](crate::driver)), and CUDA's implementation of that method (`cuda/driver.rs`). Both import the types that the list
//! names from here.

pub(crate) use std::path::Path;

pub(crate) use crate::{
    CaptureInfo, CaptureMode, Cluster, Collective, CommunicatorHandle, CommunicatorId, CommunicatorInfo,
    ConditionFormat, ConditionHandle, Conditional, Copy, DependencyUpdate, DevicePointer, DeviceProperties,
    EventFlags, EventHandle, ExternalStream, Fill, FunctionAttributes, FunctionHandle, GpuCall,
    GraphDescription, GraphExecHandle, GraphExecUpdate, GraphHandle, GraphNodeHandle, HostFlags,
    HostFunction, HostPointer, Image, IpcHandle, Label, Launch, LibraryLaunch, MatmulAlgorithm, MatmulCall,
    MemoryAccess, MemoryAdvice, MemoryInfo, ModuleHandle, PhysicalFlags, PhysicalHandle, PoolAttributes,
    PoolHandle, PoolUsage, ProcessMemory, RecurrentMemory, RecurrentShape, Registration, Result,
    ShareableHandle, StreamHandle, TensorMap, TensorTiles,
};

/// Invokes a macro with the list of all calls. Each of them is written as in a trait: documentation, name, `&self`, arguments and
/// result.
#[rustfmt::skip]
macro_rules! calls { ($form:ident) => { $form! {
    // ---- Devices and contexts -------------------------------------------------------------------------------------

    /// Returns the properties of a device. Creates no context, except on the first call if the driver cannot learn them
    /// otherwise.
    fn device_properties(&self, device: u32) -> Result<DeviceProperties>;

    /// Returns whether the device has a context already. Does not create one.
    fn context_is_active(&self, device: u32) -> Result<bool>;

    /// Makes sure that the device has a context (some 100 ms on a GPU, hundreds of MiB of its memory). Every call that
    /// needs one does so too. *Not in capture.*
    fn context_initialize(&self, device: u32) -> Result<()>;

    /// Blocks until all work of the device is done. *Not in capture*: refused in every mode while a stream of the device
    /// captures.
    fn device_synchronize(&self, device: u32) -> Result<()>;

    /// Returns the free and the total memory, in bytes.
    fn memory_info(&self, device: u32) -> Result<MemoryInfo>;

    /// Returns whether kernels of `device` could touch memory of `peer`. A device is not a peer of itself: `false`.
    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool>;

    /// Lets kernels of `device` touch plain memory of `peer`. Enabling twice is
    /// [`PeerAccessAlreadyEnabled`](crate::Code::PeerAccessAlreadyEnabled).
    fn enable_peer_access(&self, device: u32, peer: u32) -> Result<()>;

    /// Disables peer access. If it is not enabled, the error is
    /// [`PeerAccessNotEnabled`](crate::Code::PeerAccessNotEnabled).
    fn disable_peer_access(&self, device: u32, peer: u32) -> Result<()>;

    // ---- Streams --------------------------------------------------------------------------------------------------

    /// Returns the legacy default stream of a device. It needs no destroying, and destroying it is an error.
    fn default_stream(&self, device: u32) -> Result<StreamHandle>;

    /// Returns a new non-blocking stream. The priority is clamped to the device's range; smaller is more urgent.
    fn stream_create(&self, device: u32, priority: i32) -> Result<StreamHandle>;

    /// Destroys the stream. Work that is queued on it still runs.
    fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;

    /// Returns the device of the stream.
    fn stream_device(&self, stream: StreamHandle) -> Result<u32>;

    /// Returns the priority after clamping.
    fn stream_priority(&self, stream: StreamHandle) -> Result<i32>;

    /// Returns whether the stream synchronizes with the legacy default stream: each of the two waits for all earlier work of the
    /// other. Streams of `stream_create` never do; streams that were made elsewhere may. `true` for the legacy default stream
    /// itself.
    fn stream_is_blocking(&self, stream: StreamHandle) -> Result<bool>;

    /// Returns whether all work on the stream is done. *Not in capture*, of this stream or another.
    fn stream_query(&self, stream: StreamHandle) -> Result<bool>;

    /// Blocks until all work on the stream is done. *Not in capture*, of this stream or another.
    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;

    /// Makes later work on the stream wait for the latest record of the event before this call. An event that was never
    /// recorded does not delay the stream. Recording the event again changes nothing for this wait. An event of a capture
    /// pulls the stream into that capture.
    fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// Captures a wait for an event of work outside of the graph (`CU_EVENT_WAIT_EXTERNAL`): a node that, at each launch of the
    /// graph, follows the latest record of the event before the launch, or by an earlier node of it (in the order in which
    /// they were captured). A GPU may wait for later records, too. An event without a record delays nothing. On a stream that
    /// does not capture the error is [`IllegalState`](crate::Code::IllegalState). *Not in a body of a conditional node.*
    fn stream_wait_event_external(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// Returns a handle for a stream that was made elsewhere, such as by PyTorch. `stream_destroy` only forgets the handle;
    /// the stream itself lives on.
    fn stream_from_external(&self, device: u32, stream: ExternalStream) -> Result<StreamHandle>;

    /// Returns the driver's own number for the stream (`CUstream`), to be passed to other libraries.
    fn cuda_stream(&self, stream: StreamHandle) -> Result<u64>;

    // ---- Events ---------------------------------------------------------------------------------------------------

    /// Returns the driver's own number for the event (`CUevent`), to be passed to other libraries.
    fn cuda_event(&self, event: EventHandle) -> Result<u64>;

    /// Returns a new event. It belongs to the device and counts as complete until it is recorded.
    fn event_create(&self, device: u32, flags: EventFlags) -> Result<EventHandle>;

    /// Destroys the event. Waits that were queued on it remain valid, and so do the nodes of graphs that name it: an event that
    /// became part of a graph keeps its memory in CUDA until the process ends.
    fn event_destroy(&self, event: EventHandle) -> Result<()>;

    /// Records the event on a stream of the same device: it is complete when all earlier work on the stream is. On a
    /// capturing stream it marks a position in the graph.
    fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Captures a record of the event for work outside of the graph (`CU_EVENT_RECORD_EXTERNAL`): a node that, at each launch of
    /// the graph, records the event after the nodes that it depends on. The launch counts as the record: work that is submitted
    /// after it waits for the node. The capture itself leaves the event unchanged. On a stream that does not capture the error is
    /// [`IllegalState`](crate::Code::IllegalState). *Not in a body of a conditional node.*
    fn event_record_external(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Returns whether the latest record is complete. *Not in capture.* For an event of a capture under way the error is
    /// [`CapturedEvent`](crate::Code::CapturedEvent), for one of a capture that has ended or is broken
    /// [`InvalidValue`](crate::Code::InvalidValue).
    fn event_query(&self, event: EventHandle) -> Result<bool>;

    /// Blocks until the latest record is complete. *Not in capture.* Fails for events of captures as `event_query` does.
    fn event_synchronize(&self, event: EventHandle) -> Result<()>;

    /// Returns the milliseconds between two records. Both events need timing and must be recorded
    /// ([`InvalidHandle`](crate::Code::InvalidHandle)) and complete ([`NotReady`](crate::Code::NotReady)).
    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // ---- Device memory --------------------------------------------------------------------------------------------

    /// Allocates `bytes` of device memory, aligned to 256 bytes at least; 0 bytes is an error. The memory is uninitialised.
    /// May block. *Not in capture.*
    fn memory_allocate(&self, device: u32, bytes: u64) -> Result<DevicePointer>;

    /// Allocates `bytes` of managed memory: pages move between the device, its peers and the host as they are touched, and
    /// a program may allocate more than the device's memory. The memory is uninitialised and is freed by `memory_free`. On
    /// devices without managed memory the error is [`NotSupported`](crate::Code::NotSupported). May block. *Not in
    /// capture.*
    fn memory_allocate_managed(&self, device: u32, bytes: u64) -> Result<DevicePointer>;

    /// Advises the driver how a part of managed memory will be used. A device that is named must support concurrent managed
    /// access (see its properties).
    fn memory_advise(&self, pointer: DevicePointer, bytes: u64, advice: MemoryAdvice) -> Result<()>;

    /// Frees memory of `memory_allocate`, or of another call whose documentation names this function. Blocks until the work that
    /// may use the memory is done. *Not in capture.*
    fn memory_free(&self, pointer: DevicePointer) -> Result<()>;

    // ---- Virtual memory: allowed in every capture, and a part of none ---------------------------------------------

    /// Reserves a range of addresses without memory. `bytes` is a multiple of the device's granularity.
    fn address_reserve(&self, device: u32, bytes: u64) -> Result<DevicePointer>;

    /// Releases a reserved range; all of it must be unmapped.
    fn address_free(&self, pointer: DevicePointer, bytes: u64) -> Result<()>;

    /// Creates physical memory without an address. `bytes` is a multiple of the device's granularity.
    fn physical_create(&self, device: u32, bytes: u64, flags: PhysicalFlags) -> Result<PhysicalHandle>;

    /// Releases the handle. The memory lives on while it is mapped.
    fn physical_release(&self, physical: PhysicalHandle) -> Result<()>;

    /// Maps the physical memory, from `offset` on, at an address of a reserved range. The range cannot be used before
    /// `memory_set_access`. The same memory may be mapped at several addresses at once: ordered work (by its stream, an
    /// event, the host) sees the same bytes at each of them, and one kernel must not use two of them.
    fn memory_map(&self, pointer: DevicePointer, bytes: u64, physical: PhysicalHandle, offset: u64) -> Result<()>;

    /// Unmaps entire mappings: all of them or, on failure, none. The caller has waited for the work that uses these
    /// addresses; later work that uses them fails with a sticky error. Other mappings of the same memory stay.
    fn memory_unmap(&self, pointer: DevicePointer, bytes: u64) -> Result<()>;

    /// Lets `device` touch a mapped range.
    fn memory_set_access(&self, pointer: DevicePointer, bytes: u64, device: u32, access: MemoryAccess) -> Result<()>;

    // ---- Memory of several processes ------------------------------------------------------------------------------

    /// Exports physical memory as a handle that another process can open. The memory was created with
    /// [`share_as`](PhysicalFlags::share_as), or imported.
    fn physical_export(&self, physical: PhysicalHandle) -> Result<ShareableHandle>;

    /// Imports physical memory that a process exported, possibly this one: `bytes` of `device`, as it was created. The
    /// caller keeps `handle`. The simulator imports only from its own process, while a handle or a mapping keeps the memory
    /// alive; another process gets [`NotSupported`](crate::Code::NotSupported).
    fn physical_import(&self, device: u32, bytes: u64, handle: &ShareableHandle) -> Result<PhysicalHandle>;

    /// Exports memory of `memory_allocate`, by its first address, as a handle that another process can open. The memory
    /// must not be freed while a process has it open.
    fn ipc_export(&self, pointer: DevicePointer) -> Result<IpcHandle>;

    /// Opens memory that another process exported, from a device that is `device` in this process. On a GPU, the process
    /// that exported it must not be this one ([`InvalidContext`](crate::Code::InvalidContext)); in the simulator it must be
    /// ([`NotSupported`](crate::Code::NotSupported) otherwise). *Not in capture.*
    fn ipc_open(&self, device: u32, handle: IpcHandle) -> Result<DevicePointer>;

    /// Closes memory of `ipc_open`, once for each time that it was opened. The caller has waited for the work that uses it.
    /// *Not in capture.*
    fn ipc_close(&self, pointer: DevicePointer) -> Result<()>;

    /// Returns the allocation that contains an address: its first address, and its size in bytes. Works for memory of
    /// `memory_allocate`, `memory_allocate_managed` and `ipc_open`, whose handle does not contain the size. (A GPU may keep
    /// small allocations of one process in one piece and open all of it; then the piece is returned.) Any other address is
    /// [`InvalidValue`](crate::Code::InvalidValue).
    fn address_range(&self, pointer: DevicePointer) -> Result<(DevicePointer, u64)>;

    // ---- Stream-ordered memory ------------------------------------------------------------------------------------

    /// Returns a new pool of the stream-ordered allocator, with the default attributes of this crate: the pool keeps its
    /// memory until it is trimmed.
    fn pool_create(&self, device: u32) -> Result<PoolHandle>;

    /// Destroys the pool. Its memory is returned to the device when the last allocation from it is freed.
    fn pool_destroy(&self, pool: PoolHandle) -> Result<()>;

    /// Returns unused memory of the pool to the device, down to `keep_bytes`.
    fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()>;

    /// Returns the pool's attributes.
    fn pool_attributes(&self, pool: PoolHandle) -> Result<PoolAttributes>;

    /// Sets the pool's attributes. On failure, some of them may have changed.
    fn pool_set_attributes(&self, pool: PoolHandle, attributes: PoolAttributes) -> Result<()>;

    /// Returns the pool's usage.
    fn pool_usage(&self, pool: PoolHandle) -> Result<PoolUsage>;

    /// Sets the peaks of a pool's usage to the current values.
    fn pool_reset_peaks(&self, pool: PoolHandle) -> Result<()>;

    /// Allocates memory of the pool's device, usable by later work on the stream. On a capturing stream the allocation
    /// becomes a node and the memory belongs to the graph: it exists from that node on, at this address, in every launch.
    fn memory_allocate_async(&self, pool: PoolHandle, bytes: u64, stream: StreamHandle) -> Result<DevicePointer>;

    /// Frees memory of `memory_allocate_async` once earlier work on the stream is done. On a capturing stream the free
    /// becomes a node, and only memory that the same capture allocated is accepted. Memory that a graph allocates and does
    /// not free is freed by this call after a launch, or by the next launch.
    fn memory_free_async(&self, pointer: DevicePointer, stream: StreamHandle) -> Result<()>;

    // ---- Pinned host memory ---------------------------------------------------------------------------------------

    /// Allocates page-locked host memory, which every device can copy to and from asynchronously. Zeroed. *Not in capture.*
    fn host_allocate(&self, bytes: u64, flags: HostFlags) -> Result<HostPointer>;

    /// Frees pinned memory. Blocks until the work of every device that uses it is done. *Not in capture*: refused in every
    /// mode while a device that used it captures.
    fn host_free(&self, pointer: HostPointer) -> Result<()>;

    /// Reads pinned memory from the host, now. Nothing orders the read after work that writes there: synchronise first.
    fn host_read(&self, source: HostPointer, target: &mut [u8]) -> Result<()>;

    /// Writes pinned memory from the host, now. Nothing orders the write after work that reads there: synchronise first.
    fn host_write(&self, target: HostPointer, source: &[u8]) -> Result<()>;

    // ---- Memory that the host accesses in place: on the simulated GPU; other drivers answer `NotSupported` ------------

    /// Gives memory of the process an address at which every device uses it in place, until `host_unmap`. From now on, a call that
    /// queues a command on it blocks until the command is done, so that the host's accesses between calls are in program order.
    /// The same bytes may be mapped several times.
    fn host_map(&self, memory: &ProcessMemory) -> Result<DevicePointer>;

    /// Ends a mapping of `host_map`, once no running command touches it.
    fn host_unmap(&self, pointer: DevicePointer) -> Result<()>;

    /// Returns the host's address of memory of a device, which the host may access in place until `host_unview`. Blocks until the
    /// device's work is done. From now on, commands on these bytes are as after `host_map`. The bytes are one allocation, or a
    /// part of one, and views do not overlap in part.
    fn host_view(&self, device: u32, pointer: DevicePointer, bytes: u64) -> Result<u64>;

    /// Ends a view of `host_view`: nothing uses the host's address any more.
    fn host_unview(&self, pointer: DevicePointer, bytes: u64) -> Result<()>;

    // ---- Copies, fills, host functions ----------------------------------------------------------------------------

    /// Copies between device memory and device or pinned memory, in stream order. Plain memory of a different device than the
    /// stream's may be copied with or without peer access; mapped memory only if `memory_set_access` gave the stream's
    /// device access.
    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()>;

    /// Copies ordinary host memory to the device in stream order. Returns when `source` may change; the copy itself may
    /// still be running. Blocks for all but small sizes. *Not in capture of this stream.*
    fn copy_from_host(&self, stream: StreamHandle, target: DevicePointer, source: &[u8], label: Label) -> Result<()>;

    /// Copies device memory to ordinary host memory in stream order. Blocks until the bytes are there. *Not in capture of
    /// this stream.*
    fn copy_to_host(&self, stream: StreamHandle, target: &mut [u8], source: DevicePointer, label: Label) -> Result<()>;

    /// Fills device memory with a pattern, in stream order.
    fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()>;

    /// Runs a function of the host in stream order; later work on the stream waits for it. On a capturing stream the
    /// function becomes a node and runs at each launch.
    fn host_function_async(&self, stream: StreamHandle, function: HostFunction, label: Label) -> Result<()>;

    // ---- Code -----------------------------------------------------------------------------------------------------

    /// Loads an image. If the device does not accept images of this kind, the error is
    /// [`InvalidImage`](crate::Code::InvalidImage).
    fn module_load(&self, device: u32, image: Image<'_>) -> Result<ModuleHandle>;

    /// Unloads the module with its functions. Blocks until the work that uses them is done.
    fn module_unload(&self, module: ModuleHandle) -> Result<()>;

    /// Returns a kernel by name; [`NotFound`](crate::Code::NotFound) if there is none.
    fn function_get(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle>;

    /// Returns the resources that the kernel needs.
    fn function_attributes(&self, function: FunctionHandle) -> Result<FunctionAttributes>;

    /// Returns how many of a kernel's clusters run at once. With a driver older than CUDA 11.8, or if the device has no
    /// room for one cluster, the error is [`NotSupported`](crate::Code::NotSupported).
    fn max_active_clusters(&self, function: FunctionHandle, cluster: Cluster) -> Result<u32>;

    /// Queues a kernel. A grid or block with a 0, or a block that is too large, is
    /// [`InvalidValue`](crate::Code::InvalidValue).
    fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()>;

    /// Returns a tensor and its tiles as an argument of kernels that copy tiles with the multiprocessor's copy engine
    /// (compute capability 9.0 and later). Does not access the tensor's memory. With a driver older than CUDA 12.0 the
    /// error is [`NotSupported`](crate::Code::NotSupported).
    fn tensor_map(&self, tiles: &TensorTiles) -> Result<TensorMap>;

    /// Returns the bytes of scratch memory that a call of a vendor's library needs. Of the call's addresses and its
    /// workspace only the alignment matters. Prepares the call, which may take some tenths of a second for the first call
    /// of a shape on a device.
    ///
    /// The error is [`NotSupported`](crate::Code::NotSupported), with the reason, if the library cannot do the call, and
    /// [`LibraryMissing`](crate::Code::LibraryMissing) if the library is missing.
    fn library_workspace(&self, device: u32, call: &GpuCall) -> Result<u64>;

    /// Returns the layout of a recurrent network's weights, and the bytes that its passes need. Prepares the calls, which may
    /// take some tenths of a second for the first call of a shape on a device. Fails as `library_workspace` does.
    fn recurrent_memory(&self, device: u32, shape: &RecurrentShape) -> Result<RecurrentMemory>;

    /// Returns up to `most` algorithms of the library for a product. The library's own first choice is first, and all of
    /// them work with the call's workspace. Of addresses and workspace only the alignment matters. May take some tenths of
    /// a second.
    ///
    /// The error is [`Library`](crate::Code::Library) for a product that the library cannot do, and
    /// [`LibraryMissing`](crate::Code::LibraryMissing) if the library is missing.
    fn matmul_algorithms(&self, device: u32, call: &MatmulCall, most: u32) -> Result<Vec<MatmulAlgorithm>>;

    /// Queues work of a vendor's library. If the library is missing, the error is
    /// [`LibraryMissing`](crate::Code::LibraryMissing); the device's properties show this beforehand.
    fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()>;

    // ---- Several devices together ---------------------------------------------------------------------------------

    /// Returns a communicator of these devices, each named once: a handle for each rank, rank `i` on `devices[i]`. Blocks (on
    /// GPUs for about a second). Without NCCL a GPU answers [`LibraryMissing`](crate::Code::LibraryMissing). *Not in capture.*
    fn communicators_create(&self, devices: &[u32]) -> Result<Vec<CommunicatorHandle>>;

    /// Returns the identifier of a new communicator, for [`communicator_join`](Self::communicator_join). *Not in capture.*
    fn communicator_id(&self) -> Result<CommunicatorId>;

    /// Joins a device to a communicator as rank `rank` of `ranks`. All ranks join with the same identifier, each from its
    /// own host thread. A GPU blocks until all have joined; the simulator does not, and the first collective waits for the
    /// rank instead. A device has one rank. *Not in capture.*
    fn communicator_join(&self, id: &CommunicatorId, device: u32, rank: u32, ranks: u32) -> Result<CommunicatorHandle>;

    /// Returns the rank of a handle, and the number of ranks.
    fn communicator_info(&self, communicator: CommunicatorHandle) -> Result<CommunicatorInfo>;

    /// Destroys a rank. Blocks until the collectives submitted to it are done. *Not in capture.*
    fn communicator_destroy(&self, communicator: CommunicatorHandle) -> Result<()>;

    /// Destroys a rank without waiting. Its collectives that are still waiting for other ranks end unfinished, and their
    /// streams continue. (In the simulator the communicator's devices are lost, with an error that names the aborted rank.)
    /// *Not in capture.*
    fn communicator_abort(&self, communicator: CommunicatorHandle) -> Result<()>;

    /// Splits a communicator (`ncclCommSplit`): returns this rank's handle in a new communicator that consists of the given
    /// ranks, in this order. *All* ranks call it, in the same order as their other splits, with no collective under way.
    /// Ranks of one part name the same ranks; a rank that is in no part names none and gets `None`. A GPU blocks until all
    /// ranks have called. With NCCL before 2.18 the error is [`NotSupported`](crate::Code::NotSupported). *Not in capture.*
    fn communicator_split(&self, own: CommunicatorHandle, part: &[u32]) -> Result<Option<CommunicatorHandle>>;

    /// Allocates device memory that NCCL can open to other GPUs (`ncclMemAlloc`). It is freed by `memory_free`. With NCCL
    /// before 2.19 the error is [`NotSupported`](crate::Code::NotSupported). May block. *Not in capture.*
    fn memory_allocate_collective(&self, device: u32, bytes: u64) -> Result<DevicePointer>;

    /// Registers memory of a rank's device with its communicator (`ncclCommRegister`), so that collectives on it may avoid
    /// copies. It stays registered until `memory_deregister`, or until the rank is destroyed, and must not be freed before
    /// then; the simulator refuses that. Memory that overlaps a registration is
    /// [`InvalidValue`](crate::Code::InvalidValue). Symmetric memory is registered by all ranks, with the same size and in
    /// the same order, and a GPU blocks until all have called. With NCCL before 2.19 (2.27.3 for symmetric memory) the
    /// error is [`NotSupported`](crate::Code::NotSupported). *Not in capture.*
    fn memory_register(&self, registration: &Registration) -> Result<()>;

    /// Removes the registration of the memory that begins at `pointer`. No collective that uses the memory may be under
    /// way.
    fn memory_deregister(&self, communicator: CommunicatorHandle, pointer: DevicePointer) -> Result<()>;

    /// Queues a group of parts of collectives, for one rank or for several. On failure the simulator queues none of them.
    /// The [module](crate::collective) defines which parts belong together and what is ordered. A host thread that submits
    /// for several ranks submits their parts as one group: on a GPU this call may wait for the other ranks.
    ///
    /// In the simulator, parts that belong together and differ, and parts that wait for each other in a circle, are errors
    /// that name the calls and lose the communicator's devices ([`LaunchFailed`](crate::Code::LaunchFailed),
    /// [`LaunchTimeout`](crate::Code::LaunchTimeout)). If the part of a rank is never submitted, the other ranks keep
    /// waiting. A GPU hangs in all these cases.
    fn collectives_async(&self, collectives: &[Collective]) -> Result<()>;

    // ---- Capture and graphs ---------------------------------------------------------------------------------------

    /// Starts a capture on a stream that is not the legacy default stream.
    fn stream_begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()>;

    /// Ends a capture, on the stream that started it, and returns the graph. The error is
    /// [`StreamCaptureUnjoined`](crate::Code::StreamCaptureUnjoined) if a forked stream was not joined,
    /// [`StreamCaptureInvalidated`](crate::Code::StreamCaptureInvalidated) if the capture is broken, and
    /// [`StreamCaptureWrongThread`](crate::Code::StreamCaptureWrongThread) if another thread began a capture that is not
    /// relaxed. In these cases the capture is over and the streams are usable again.
    fn stream_end_capture(&self, stream: StreamHandle) -> Result<GraphHandle>;

    /// Returns whether and how the stream captures. For the legacy default stream, while a blocking stream captures, the
    /// error is [`StreamCaptureImplicit`](crate::Code::StreamCaptureImplicit).
    fn stream_capture_info(&self, stream: StreamHandle) -> Result<CaptureInfo>;

    /// Changes the dependencies of the next command on a capturing stream. The nodes belong to the graph under
    /// construction.
    fn stream_update_capture_dependencies(
        &self, stream: StreamHandle, dependencies: &[GraphNodeHandle], update: DependencyUpdate
    ) -> Result<()>;

    /// Returns a new condition of the graph that the stream captures into. Each launch starts it at `initial`. Exactly one
    /// conditional node of this graph, or of a body in it at any depth, reads it: `graph_instantiate` refuses a graph with
    /// a condition that no node reads, in the simulator and with drivers for CUDA 12.8 and later. The condition is
    /// destroyed with the graph that the capture began.
    ///
    /// The calls about conditions and conditional nodes fail with [`IllegalState`](crate::Code::IllegalState) on a stream
    /// that does not capture, and with [`NotSupported`](crate::Code::NotSupported) where the device's
    /// [properties](DeviceProperties::conditional_nodes) lack such nodes. See the [module](crate::conditional).
    fn condition_create(&self, stream: StreamHandle, initial: u32) -> Result<ConditionHandle>;

    /// Captures a kernel that sets a condition to the value that `source` has when the kernel runs: before the node that
    /// reads the condition, or in a body. A condition of another graph or device, or a `source` that is not aligned to the
    /// format, is [`InvalidValue`](crate::Code::InvalidValue). If two executables of one graph run at once, each may see
    /// the value that the other set.
    fn condition_set_async(
        &self, stream: StreamHandle, condition: ConditionHandle, source: DevicePointer, format: ConditionFormat, label: Label
    ) -> Result<()>;

    /// Adds a conditional node after the nodes that the next command on the capturing stream would depend on; the next
    /// command then depends on the node. Returns the node's bodies. They are empty, and must be filled by captures before
    /// the graph is instantiated. A condition that another node reads is [`InvalidValue`](crate::Code::InvalidValue).
    fn conditional_node_add(
        &self, stream: StreamHandle, condition: ConditionHandle, conditional: Conditional, label: Label
    ) -> Result<Vec<GraphHandle>>;

    /// Starts a capture on a stream into a body of a conditional node. The body must be empty and of the stream's device;
    /// any other graph is [`InvalidValue`](crate::Code::InvalidValue). `stream_end_capture` ends the capture and returns
    /// the body. The capture that contains the node may have ended by then, or continue on its own streams. Commands that a
    /// body cannot contain are refused when they are captured, when the capture ends, or by `graph_instantiate`.
    fn stream_begin_capture_to_graph(&self, stream: StreamHandle, body: GraphHandle, mode: CaptureMode) -> Result<()>;

    /// Sets how the calling thread is bound by other threads' captures. Returns the previous mode.
    fn thread_exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;

    /// Returns the nodes that a node of the graph depends on directly, in no particular order; also while a capture builds
    /// the graph. The cost does not depend on the size of the graph, if the node came from [`CaptureInfo::dependencies`] or
    /// from this call.
    fn graph_node_predecessors(&self, graph: GraphHandle, node: GraphNodeHandle) -> Result<Vec<GraphNodeHandle>>;

    /// Returns the graph as data, also while a capture builds it. On a GPU this takes a few calls per node.
    fn graph_describe(&self, graph: GraphHandle) -> Result<GraphDescription>;

    /// Writes the driver's own description of the graph to a file in Graphviz format, with all details if `verbose`. The
    /// error is [`OperatingSystem`](crate::Code::OperatingSystem) if the file cannot be written, and
    /// [`InvalidValue`](crate::Code::InvalidValue) if the path is invalid. For a text that is the same on every driver see
    /// [`GraphDescription::to_dot`].
    fn graph_debug_dot_print(&self, graph: GraphHandle, path: &Path, verbose: bool) -> Result<()>;

    /// Destroys the graph, with its bodies and conditions. Its executables live on. The error is
    /// [`IllegalState`](crate::Code::IllegalState) for a body, and for a graph one of whose bodies is being captured.
    fn graph_destroy(&self, graph: GraphHandle) -> Result<()>;

    /// Returns an executable of the graph for one device. Blocks while it is built. The error is
    /// [`IllegalState`](crate::Code::IllegalState) for a graph that a capture is building, for a body, and for a graph one
    /// of whose bodies is being captured or failed to be. It is [`NotSupported`](crate::Code::NotSupported) for a graph
    /// with conditional nodes that has an executable already.
    fn graph_instantiate(&self, graph: GraphHandle, device: u32) -> Result<GraphExecHandle>;

    /// Replaces the work of the executable by that of another graph, node by node. Later launches do the work of a new
    /// executable of that graph; launches that were queued before are not affected. It costs a fraction of an
    /// instantiation.
    ///
    /// The graphs must have the same shape. Nodes without successors are paired in their order, and the dependencies of
    /// paired nodes are paired in the order of the edges, so two captures of one program match. Paired nodes are of one
    /// kind. A kernel may be replaced by any other of the same device and stream priority. A copy keeps the devices and the
    /// kinds of memory (device, pinned) that it copies between. A fill keeps its device and the width of its pattern, and a
    /// GPU may insist on its size. Stream-ordered allocations and frees, and conditional nodes, cannot be updated at all.
    /// If any of this does not hold, the result is [`GraphExecUpdate::Refused`] and the executable is unchanged.
    ///
    /// The executable's nodes keep their handles: those of the graph that it was instantiated from.
    fn graph_exec_update(&self, exec: GraphExecHandle, graph: GraphHandle) -> Result<GraphExecUpdate>;

    /// Replaces the work of a kernel node of an executable: another kernel of the same device, grid, block, arguments and
    /// accesses. Later launches do the new work; the graph and launches that were queued before are not affected.
    ///
    /// `node` is a node of the graph that the executable was instantiated from, which must still exist. It was captured
    /// from a [`launch`](Self::launch), in the graph itself and not in a body. Anything else is
    /// [`InvalidValue`](crate::Code::InvalidValue), and so is everything that `launch` would refuse.
    fn graph_exec_kernel_node_set_params(
        &self, exec: GraphExecHandle, node: GraphNodeHandle, launch: &Launch<'_>
    ) -> Result<()>;

    /// Destroys the executable. A launch that is under way runs to its end.
    fn graph_exec_destroy(&self, exec: GraphExecHandle) -> Result<()>;

    /// Queues the entire graph as one piece of work on the stream. Launches of one executable run one after the other. *Not
    /// in capture of this stream.*
    fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()>;
}}}
pub(crate) use calls;
