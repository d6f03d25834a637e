//! The [`Driver`] of the sanitizer: each call is passed to the inner driver, and its meaning to the model.
//!
//! The model is not locked while the inner driver works, because calls that wait would block all other threads. Calls that create
//! something enter it into the model afterwards. Calls that destroy something remove it beforehand, and restore it if the driver
//! refuses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_driver::{
    Access, AccessMode, CaptureInfo, CaptureMode, CaptureStatus, Collective, CommunicatorHandle,
    CommunicatorId, ConditionFormat, ConditionHandle, Conditional, Copy, DevicePointer, Driver, Endpoint,
    Error, EventHandle, Fill, GraphExecHandle, GraphExecUpdate, GraphHandle, GraphNodeHandle, HostFlags,
    HostFunction, HostPointer, Image, IpcHandle, Label, Launch, LibraryLaunch, ModuleHandle, PhysicalFlags,
    PhysicalHandle, PoolHandle, ProcessMemory, Result, ShareableHandle, StreamHandle,
};

use super::capture::CapturedCall;
use super::chosen::Speaking;
use super::clock::Clock;
use super::model::{Model, Record, StreamId};
use super::space::ObjectKind;
use super::{Instrument, SanitizerDriver, take_label, threads};

fn end_of_copy(endpoint: Endpoint, bytes: u64, mode: AccessMode) -> Access {
    match endpoint {
        Endpoint::Device(pointer) => Access::new(pointer.address(), bytes, mode),
        Endpoint::Pinned(pointer) => Access::new(pointer.address(), bytes, mode),
    }
}

impl SanitizerDriver {
    /// Enters memory that a call returned, by its start and size, into the model.
    fn appeared(&self, kind: ObjectKind, device: u32, (start, bytes): (u64, u64), call: &'static str) {
        let mut model = self.model.lock();
        let site = model.sites.labelled(take_label(), call);
        model.appeared(kind, device, start, bytes, site);
    }
}

impl Driver for SanitizerDriver {
    thalweg_driver::wraps!(inner);

    fn instrument(&self) -> Option<&dyn Instrument> {
        Some(self)
    }

    // Calls that are not listed here order nothing and touch nothing, and are passed to the inner driver.

    // ---- Synchronisation ------------------------------------------------------------------------------------------

    fn device_synchronize(&self, device: u32) -> Result<()> {
        let frontier = |model: &mut Model| Some(model.device_frontier(device));
        self.waits(frontier, || self.inner.device_synchronize(device))
    }

    fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        let frontier = |model: &mut Model| model.stream(stream).map(|id| model.frontier(id));
        self.query(frontier, || self.inner.stream_query(stream))
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        let frontier = |model: &mut Model| model.stream(stream).map(|id| model.frontier(id));
        self.waits(frontier, || self.inner.stream_synchronize(stream))
    }

    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.query(|model| model.recorded(event.raw()), || self.inner.event_query(event))
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.waits(|model| model.recorded(event.raw()), || self.inner.event_synchronize(event))
    }

    // ---- Streams and events ---------------------------------------------------------------------------------------

    fn default_stream(&self, device: u32) -> Result<StreamHandle> {
        let stream = self.inner.default_stream(device)?;
        self.enter_stream(device, stream, true);
        Ok(stream)
    }

    fn stream_create(&self, device: u32, priority: i32) -> Result<StreamHandle> {
        self.arrive();
        let stream = self.inner.stream_create(device, priority)?;
        self.enter_stream(device, stream, false);
        Ok(stream)
    }

    fn stream_from_external(
        &self,
        device: u32,
        stream: thalweg_driver::ExternalStream,
    ) -> Result<StreamHandle> {
        let wrapped = self.inner.stream_from_external(device, stream)?;
        // The legacy stream synchronises with others even if its handle was never requested.
        self.default_stream(device)?;
        self.enter_stream(device, wrapped, stream.cuda_stream() <= 1 && stream.context().is_none());
        Ok(wrapped)
    }

    fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        let capture = self.capture_of(stream);
        self.inner.stream_destroy(stream)?;
        let mut model = self.model.lock();
        model.forget_stream(stream);
        if let Some(position) =
            model.captures.iter().position(|known| known.capture == capture && known.origin == stream.raw())
        {
            model.captures.swap_remove(position);
            self.captures.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    }

    fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.arrive();
        let label = take_label();
        self.inner.stream_wait_event(stream, event)?;
        // In a capture the driver knows the dependencies of the next node.
        if self.capture_of(stream) == 0 {
            let host = self.host();
            let mut model = self.model.lock();
            if let Some(id) = model.stream(stream) {
                let site = label.map_or(0, |label| model.sites.of(label));
                model.wait(id, event.raw(), host, site);
            }
        }
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.arrive();
        self.inner.event_record(event, stream)?;
        let is_captured = self.capture_of(stream) != 0;
        let host = self.host();
        let mut model = self.model.lock();
        if is_captured {
            model.events.insert(event.raw(), Record::Captured);
        } else if let Some(id) = model.stream(stream) {
            model.record(event.raw(), id, host);
        }
        Ok(())
    }

    fn event_record_external(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let before = self.capturing(stream);
        self.inner.event_record_external(event, stream)?;
        let node = CapturedCall::Record { event: event.raw() };
        self.in_stream_order(stream, before.as_ref(), "event_record_external", node, |_, _, _| ())
    }

    fn stream_wait_event_external(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let before = self.capturing(stream);
        self.inner.stream_wait_event_external(stream, event)?;
        let node = CapturedCall::Wait { event: event.raw() };
        self.in_stream_order(stream, before.as_ref(), "stream_wait_event_external", node, |_, _, _| ())
    }

    fn event_destroy(&self, event: EventHandle) -> Result<()> {
        let record = self.model.lock().forget_event(event.raw());
        let result = self.inner.event_destroy(event);
        if let (Err(_), Some(record)) = (&result, record) {
            self.model.lock().events.insert(event.raw(), record);
        }
        result
    }

    // ---- Memory ---------------------------------------------------------------------------------------------------

    fn memory_allocate(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        self.arrive();
        let pointer = self.inner.memory_allocate(device, bytes)?;
        self.appeared(ObjectKind::Plain, device, (pointer.address(), bytes), "memory_allocate");
        Ok(pointer)
    }

    fn memory_allocate_managed(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        let pointer = self.inner.memory_allocate_managed(device, bytes)?;
        self.appeared(ObjectKind::Plain, device, (pointer.address(), bytes), "memory_allocate_managed");
        Ok(pointer)
    }

    fn memory_allocate_collective(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        let pointer = self.inner.memory_allocate_collective(device, bytes)?;
        self.appeared(ObjectKind::Plain, device, (pointer.address(), bytes), "memory_allocate_collective");
        Ok(pointer)
    }

    fn memory_free(&self, pointer: DevicePointer) -> Result<()> {
        let start = pointer.address();
        let frontier = |model: &mut Model| {
            let mapping = model.space.starting_at(start);
            let device = mapping.map(|mapping| model.space.object(mapping.object).device);
            device.map(|device| model.device_frontier(device)).unwrap_or_default()
        };
        self.gives_back(start, "memory_free", frontier, || self.inner.memory_free(pointer))
    }

    fn physical_create(&self, device: u32, bytes: u64, flags: PhysicalFlags) -> Result<PhysicalHandle> {
        self.arrive();
        let physical = self.inner.physical_create(device, bytes, flags)?;
        let mut model = self.model.lock();
        let site = model.sites.labelled(take_label(), "physical_create");
        let object = model.space.create(ObjectKind::Physical, device, bytes, false, site);
        model.physical.insert(physical.raw(), object);
        Ok(physical)
    }

    fn physical_export(&self, physical: PhysicalHandle) -> Result<ShareableHandle> {
        let handle = self.inner.physical_export(physical)?;
        self.model.lock().gave_away(physical.raw(), &handle);
        Ok(handle)
    }

    fn physical_import(&self, device: u32, bytes: u64, handle: &ShareableHandle) -> Result<PhysicalHandle> {
        let physical = self.inner.physical_import(device, bytes, handle)?;
        let mut model = self.model.lock();
        let object = match model.opened(handle) {
            Some(known) => known,
            None => {
                let site = model.sites.labelled(take_label(), "physical_import");
                model.space.create(ObjectKind::Physical, device, bytes, true, site)
            }
        };
        model.physical.insert(physical.raw(), object);
        Ok(physical)
    }

    fn physical_release(&self, physical: PhysicalHandle) -> Result<()> {
        let object = self.model.lock().physical.remove(&physical.raw());
        let result = self.inner.physical_release(physical);
        if let Some(object) = object {
            let mut model = self.model.lock();
            match result {
                Ok(()) => model.space.let_go(object),
                Err(_) => drop(model.physical.insert(physical.raw(), object)),
            }
        }
        result
    }

    fn memory_map(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        physical: PhysicalHandle,
        offset: u64,
    ) -> Result<()> {
        self.inner.memory_map(pointer, bytes, physical, offset)?;
        let mut model = self.model.lock();
        if let Some(&object) = model.physical.get(&physical.raw()) {
            model.space.keep(object);
            model.space.map(pointer.address(), bytes, object, offset);
        }
        Ok(())
    }

    fn memory_unmap(&self, pointer: DevicePointer, bytes: u64) -> Result<()> {
        self.unmaps(pointer.address(), bytes, "memory_unmap", || self.inner.memory_unmap(pointer, bytes))
    }

    fn ipc_export(&self, pointer: DevicePointer) -> Result<IpcHandle> {
        let handle = self.inner.ipc_export(pointer)?;
        let mut model = self.model.lock();
        if let Some(mapping) = model.space.starting_at(pointer.address()) {
            let serial = model.space.object(mapping.object).serial;
            model.exported.insert(handle.0, (mapping.object, serial));
        }
        Ok(handle)
    }

    fn ipc_open(&self, device: u32, handle: IpcHandle) -> Result<DevicePointer> {
        let pointer = self.inner.ipc_open(device, handle)?;
        let mut model = self.model.lock();
        let known = model.exported.get(&handle.0).copied();
        // Memory of another process has an unknown size: it counts as outside.
        if let Some((object, serial)) = known
            && let Some(bytes) = model.space.bytes_of(object, serial)
        {
            model.space.keep(object);
            model.space.map(pointer.address(), bytes, object, 0);
        }
        Ok(pointer)
    }

    fn ipc_close(&self, pointer: DevicePointer) -> Result<()> {
        let start = pointer.address();
        let bytes = self.model.lock().space.starting_at(start).map_or(0, |mapping| mapping.end - start);
        self.unmaps(start, bytes, "ipc_close", || self.inner.ipc_close(pointer))
    }

    fn memory_allocate_async(
        &self,
        pool: PoolHandle,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<DevicePointer> {
        let before = self.capturing(stream);
        let pointer = self.inner.memory_allocate_async(pool, bytes, stream)?;
        let start = pointer.address();
        {
            let mut model = self.model.lock();
            let site = model.sites.call("memory_allocate_async");
            let device = model.stream(stream).map_or(0, |id| model.streams[id as usize].device);
            model.appeared(ObjectKind::StreamOrdered, device, start, bytes, site);
        }
        let node = CapturedCall::Allocate { start, bytes };
        self.in_stream_order(
            stream,
            before.as_ref(),
            "memory_allocate_async",
            node,
            |model, clock, mark| {
                model.given_out(clock, mark, start, bytes);
            },
        )?;
        Ok(pointer)
    }

    fn memory_free_async(&self, pointer: DevicePointer, stream: StreamHandle) -> Result<()> {
        let start = pointer.address();
        let serial = |model: &mut Model| {
            model.space.starting_at(start).map(|mapping| model.space.object(mapping.object).serial)
        };
        let known = serial(&mut self.model.lock());
        let before = self.capturing(stream);
        self.inner.memory_free_async(pointer, stream)?;
        let node = CapturedCall::Free { start };
        self.in_stream_order(stream, before.as_ref(), "memory_free_async", node, |model, clock, mark| {
            // Another thread may have got the address meanwhile.
            if serial(model) == known {
                model.taken_back(clock, mark, start);
            }
        })
    }

    fn host_allocate(&self, bytes: u64, flags: HostFlags) -> Result<HostPointer> {
        let pointer = self.inner.host_allocate(bytes, flags)?;
        self.appeared(ObjectKind::Pinned, 0, (pointer.address(), bytes), "host_allocate");
        Ok(pointer)
    }

    fn host_free(&self, pointer: HostPointer) -> Result<()> {
        let frontier = |model: &mut Model| model.whole_frontier();
        self.gives_back(pointer.address(), "host_free", frontier, || self.inner.host_free(pointer))
    }

    fn host_read(&self, source: HostPointer, target: &mut [u8]) -> Result<()> {
        self.arrive();
        self.inner.host_read(source, target)?;
        self.host_touches(source.address(), target.len(), AccessMode::Read, "host_read")
    }

    fn host_write(&self, target: HostPointer, source: &[u8]) -> Result<()> {
        self.arrive();
        self.inner.host_write(target, source)?;
        self.host_touches(target.address(), source.len(), AccessMode::Write, "host_write")
    }

    fn host_map(&self, memory: &ProcessMemory) -> Result<DevicePointer> {
        let pointer = self.inner.host_map(memory)?;
        self.appeared(ObjectKind::Pinned, 0, (pointer.address(), memory.size_bytes()), "host_map");
        Ok(pointer)
    }

    fn host_unmap(&self, pointer: DevicePointer) -> Result<()> {
        let nothing = |_: &mut Model| Clock::default();
        self.gives_back(pointer.address(), "host_unmap", nothing, || self.inner.host_unmap(pointer))
    }

    /// From here on the host may write the bytes at any time, so none of them counts as uninitialised.
    fn host_view(&self, device: u32, pointer: DevicePointer, bytes: u64) -> Result<u64> {
        let frontier = |model: &mut Model| Some(model.device_frontier(device));
        let mut address = 0;
        self.waits(frontier, || {
            address = self.inner.host_view(device, pointer, bytes)?;
            Ok(())
        })?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.host_touches(pointer.address(), bytes, AccessMode::Write, "host_view")?;
        Ok(address)
    }

    // ---- Commands -------------------------------------------------------------------------------------------------

    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()> {
        let accesses = [
            end_of_copy(copy.source, copy.bytes, AccessMode::Read),
            end_of_copy(copy.target, copy.bytes, AccessMode::Write),
        ];
        self.command(stream, copy.label, &accesses, || self.inner.copy_async(stream, copy))
    }

    fn copy_from_host(
        &self,
        stream: StreamHandle,
        target: DevicePointer,
        source: &[u8],
        label: Label,
    ) -> Result<()> {
        let accesses = [Access::write(target, source.len() as u64)];
        self.command(stream, label, &accesses, || self.inner.copy_from_host(stream, target, source, label))
    }

    fn copy_to_host(
        &self,
        stream: StreamHandle,
        target: &mut [u8],
        source: DevicePointer,
        label: Label,
    ) -> Result<()> {
        let accesses = [Access::read(source, target.len() as u64)];
        let frontier = {
            let mut model = self.model.lock();
            model.stream(stream).map(|id| model.frontier(id))
        };
        let result =
            self.command(stream, label, &accesses, || self.inner.copy_to_host(stream, target, source, label));
        self.note_standstill(&result);
        let is_over = result.as_ref().map_or_else(Error::is_device_lost, |()| true);
        if let (true, Some(mut frontier)) = (is_over, frontier) {
            let host = self.host();
            let mut model = self.model.lock();
            // All work that was submitted to the stream before, and the copy itself.
            if let Some(id) = model.stream(stream) {
                let stream = &model.streams[id as usize];
                frontier.learn(stream.strand, stream.clock.of(stream.strand));
            }
            model.note_seen(host, &frontier);
            model.decide();
        }
        result
    }

    fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()> {
        let accesses = [Access::write(fill.target, fill.count.saturating_mul(fill.pattern.bytes()))];
        self.command(stream, fill.label, &accesses, || self.inner.fill_async(stream, fill))
    }

    fn host_function_async(&self, stream: StreamHandle, function: HostFunction, label: Label) -> Result<()> {
        let function = match self.capturing(stream) {
            Some(_) => function,
            None => {
                let host = self.host();
                let mut model = self.model.lock();
                let clock = model.stream(stream).map(|id| model.address(id, host).clock.clone());
                let clock = clock.unwrap_or_default();
                model.known_to_functions.join(&clock);
                threads::with_clock(function, clock)
            }
        };
        self.command(stream, label, &[], || self.inner.host_function_async(stream, function, label))
    }

    fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        let accesses = self.with_tickets(stream, launch.accesses);
        let launch = Launch { accesses: accesses.as_deref().unwrap_or(launch.accesses), ..*launch };
        self.command(stream, launch.label, launch.accesses, || self.inner.launch(stream, &launch))
    }

    fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()> {
        self.command(stream, launch.label, launch.accesses, || self.inner.library_async(stream, launch))
    }

    // ---- Code -----------------------------------------------------------------------------------------------------

    fn module_load(&self, device: u32, image: Image<'_>) -> Result<ModuleHandle> {
        let module = match image {
            Image::Host(module) => {
                self.speaks.store(true, Ordering::Relaxed);
                let said = Arc::clone(&self.model.lock().chosen.said);
                let speaking = module
                    .map(|kernel| Arc::new(Speaking { kernel: Arc::clone(kernel), said: Arc::clone(&said) }));
                self.inner.module_load(device, Image::Host(&speaking))?
            }
            _ => self.inner.module_load(device, image)?,
        };
        self.model.lock().modules.insert(module.raw(), device);
        Ok(module)
    }

    fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        let device = self.model.lock().modules.remove(&module.raw());
        let frontier = |model: &mut Model| device.map(|device| model.device_frontier(device));
        let result = self.waits(frontier, || self.inner.module_unload(module));
        if let (Err(_), Some(device)) = (&result, device) {
            self.model.lock().modules.insert(module.raw(), device);
        }
        result
    }

    // ---- Several devices together ---------------------------------------------------------------------------------

    fn communicators_create(&self, devices: &[u32]) -> Result<Vec<CommunicatorHandle>> {
        let handles = self.inner.communicators_create(devices)?;
        self.model.lock().communicators.add(devices, &handles);
        Ok(handles)
    }

    fn communicator_join(
        &self,
        id: &CommunicatorId,
        device: u32,
        rank: u32,
        ranks: u32,
    ) -> Result<CommunicatorHandle> {
        let handle = self.inner.communicator_join(id, device, rank, ranks)?;
        self.model.lock().communicators.join(id, device, (rank, ranks), handle);
        Ok(handle)
    }

    fn communicator_split(
        &self,
        own: CommunicatorHandle,
        part: &[u32],
    ) -> Result<Option<CommunicatorHandle>> {
        let handle = self.inner.communicator_split(own, part)?;
        self.model.lock().communicators.split(own, part, handle);
        Ok(handle)
    }

    fn communicator_abort(&self, communicator: CommunicatorHandle) -> Result<()> {
        self.inner.communicator_abort(communicator)?;
        self.model.lock().communicators.forget(communicator);
        Ok(())
    }

    fn communicator_destroy(&self, communicator: CommunicatorHandle) -> Result<()> {
        self.inner.communicator_destroy(communicator)?;
        self.model.lock().communicators.forget(communicator);
        Ok(())
    }

    fn collectives_async(&self, collectives: &[Collective]) -> Result<()> {
        let mut captured: Vec<(StreamHandle, CaptureInfo)> = Vec::new();
        for call in collectives {
            if captured.iter().all(|(stream, _)| *stream != call.stream) {
                captured.extend(self.capturing(call.stream).map(|info| (call.stream, info)));
            }
        }
        self.inner.collectives_async(collectives)?;
        let host = self.host();
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        let mut group: Vec<(&Collective, StreamId)> = Vec::new();
        for call in
            collectives.iter().filter(|call| captured.iter().all(|(stream, _)| *stream != call.stream))
        {
            group.extend(model.stream(call.stream).map(|id| (call, id)));
        }
        model.collectives(&group, host);
        for (stream, before) in &captured {
            let calls = || collectives.iter().filter(|call| call.stream == *stream);
            let accesses: Vec<Access> =
                calls().filter_map(|call| model.communicators.accesses(call)).flatten().collect();
            let after = self.inner.stream_capture_info(*stream)?;
            let site = calls().next().map_or(0, |call| model.sites.of(call.label));
            model.captured(&*self.inner, before, &after, site, CapturedCall::Accesses(&accesses));
        }
        self.answer(&model, found, "collectives_async", ())
    }

    // ---- Capture and graphs ---------------------------------------------------------------------------------------

    fn stream_begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.inner.stream_begin_capture(stream, mode)?;
        let capture = self.inner.stream_capture_info(stream).map_or(0, |info| info.id);
        self.model.lock().begin_capture(capture, stream.raw());
        self.captures.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn condition_set_async(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        source: DevicePointer,
        format: ConditionFormat,
        label: Label,
    ) -> Result<()> {
        let accesses = [Access::read(source, format.bytes())];
        self.command(stream, label, &accesses, || {
            self.inner.condition_set_async(stream, condition, source, format, label)
        })
    }

    fn conditional_node_add(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        conditional: Conditional,
        label: Label,
    ) -> Result<Vec<GraphHandle>> {
        let before = self.capturing(stream);
        let bodies = self.inner.conditional_node_add(stream, condition, conditional, label)?;
        if let Some(before) = before {
            let after = self.inner.stream_capture_info(stream)?;
            let mut model = self.model.lock();
            let site = model.sites.of(label);
            model.captured(&*self.inner, &before, &after, site, CapturedCall::Bodies(&bodies));
        }
        Ok(bodies)
    }

    fn stream_begin_capture_to_graph(
        &self,
        stream: StreamHandle,
        body: GraphHandle,
        mode: CaptureMode,
    ) -> Result<()> {
        self.inner.stream_begin_capture_to_graph(stream, body, mode)?;
        let capture = self.inner.stream_capture_info(stream).map_or(0, |info| info.id);
        let mut model = self.model.lock();
        model.families.begin(capture, body);
        model.begin_capture(capture, stream.raw());
        self.captures.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn stream_end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let result = self.inner.stream_end_capture(stream);
        let is_over = result.is_ok()
            || !self.inner.stream_capture_info(stream).is_ok_and(|info| info.status != CaptureStatus::None);
        let mut model = self.model.lock();
        if is_over && let Some(graph) = model.end_capture(stream.raw()) {
            self.captures.fetch_sub(1, Ordering::Release);
            if let Ok(handle) = &result {
                model.graphs.insert(handle.raw(), graph);
            }
        }
        result
    }

    fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        self.inner.graph_destroy(graph)?;
        self.model.lock().graph_destroyed(graph.raw());
        Ok(())
    }

    fn graph_instantiate(&self, graph: GraphHandle, device: u32) -> Result<GraphExecHandle> {
        let executable = self.inner.graph_instantiate(graph, device)?;
        self.model.lock().instantiated(graph.raw(), executable.raw());
        Ok(executable)
    }

    fn graph_exec_update(&self, exec: GraphExecHandle, graph: GraphHandle) -> Result<GraphExecUpdate> {
        let answer = self.inner.graph_exec_update(exec, graph)?;
        if answer.is_updated() {
            self.model.lock().exec_updated(exec.raw(), graph.raw());
        }
        Ok(answer)
    }

    fn graph_exec_kernel_node_set_params(
        &self,
        exec: GraphExecHandle,
        node: GraphNodeHandle,
        launch: &Launch<'_>,
    ) -> Result<()> {
        self.inner.graph_exec_kernel_node_set_params(exec, node, launch)?;
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        model.kernel_node_set(exec.raw(), node, launch);
        self.answer(&model, found, launch.label.operator, ())
    }

    fn graph_exec_destroy(&self, exec: GraphExecHandle) -> Result<()> {
        self.inner.graph_exec_destroy(exec)?;
        self.model.lock().executable_destroyed(exec.raw());
        Ok(())
    }

    fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        self.inner.graph_launch(exec, stream)?;
        let host = self.host();
        let mut model = self.model.lock();
        let found = model.findings.list.len();
        let site = model.sites.labelled(take_label(), "graph_launch");
        if let Some(id) = model.stream(stream) {
            model.launched(exec.raw(), id, host, site);
        }
        self.answer(&model, found, "graph_launch", ())
    }
}
