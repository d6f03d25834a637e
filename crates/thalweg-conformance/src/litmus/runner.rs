//! Runs litmus programs and counts outcomes: on any driver with random delays, on a controlled simulator with every schedule.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::{Cell, Event, Graph, HostStep, LitmusProgram, Observation, Observed, Pinned, Register, Stream};
use crate::{Fixture, Kernel, KernelArguments, wait_us};
use thalweg_driver::{
    CaptureMode, Code, Copy, DevicePointer, Driver, Endpoint, Error, EventFlags, EventHandle, Fill,
    FillPattern, GraphExecHandle, HostFlags, HostPointer, Label, Result, StreamHandle,
};
use thalweg_lock::Mutex;
use thalweg_sim::SimDriver;
use thalweg_sim::schedules::{Exhaustive, Late, SplitMix};

/// The number of bytes from one cell to the next: cells share no cache line and no memory sector.
const STRIDE: u64 = 256;
const CELLS: u64 = 3;
const PINNED: u64 = 2;

/// The time that a poll may go on before the driver counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the program `repetitions` times, each with other delays, and counts the outcomes.
///
/// # Errors
/// The driver's error: a litmus program makes no call that may fail.
pub fn run(program: &LitmusProgram, fixture: &Fixture, repetitions: u64, seed: u64) -> Result<Observation> {
    let machine = Machine::new(fixture, None)?;
    let mut counts = BTreeMap::new();
    for repetition in 0..repetitions {
        let outcome = machine.run_once(program, Random::new(seed, repetition), || Ok(()))?;
        *counts.entry(outcome).or_insert(0) += 1;
    }
    Ok(Observation { program: *program, counts })
}

/// Runs the program under every schedule of a controlled simulator, without delays, and counts the outcomes.
///
/// # Errors
/// The driver's error; [`Code::Timeout`] if `most_runs` were not enough.
pub fn explore(program: &LitmusProgram, driver: &Arc<SimDriver>, most_runs: u64) -> Result<Observation> {
    driver.begin_run(Box::new(Late::new(0)))?;
    let fixture = Fixture::new(Arc::<SimDriver>::clone(driver), 0)?;
    let machine = Machine::new(&fixture, Some(driver))?;
    let mut counts = BTreeMap::new();
    let mut search = Exhaustive::new();
    while let Some(schedule) = search.next_run() {
        if search.runs() > most_runs {
            let detail = format!("{}: more than {most_runs} runs", program.name);
            return Err(Error::new(Code::Timeout, "litmus", detail));
        }
        let begin = || driver.begin_run(Box::new(schedule)).map(drop);
        let outcome = machine.run_once(program, Random::none(), begin)?;
        *counts.entry(outcome).or_insert(0) += 1;
    }
    Ok(Observation { program: *program, counts })
}

/// Random delays, or none if a schedule decides.
#[derive(Clone)]
struct Random(Option<SplitMix>);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        let mut random = SplitMix::new(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        Self(Some(random))
    }

    fn none() -> Self {
        Self(None)
    }

    /// Returns the state for another thread.
    fn fork(&mut self) -> Self {
        match &mut self.0 {
            Some(random) => Self::new(random.next(), 0),
            None => Self::none(),
        }
    }

    fn below(&mut self, limit: u64) -> u32 {
        self.0.as_mut().map_or(0, |random| (random.next() % limit) as u32)
    }

    /// Draws a delay: usually none, sometimes a short one, sometimes one longer than a launch.
    fn delay_us(&mut self) -> u32 {
        match self.below(4) {
            0 | 1 => 0,
            2 => self.below(10),
            _ => 10 + self.below(50),
        }
    }

    fn long_delay_us(&mut self) -> u32 {
        if self.0.is_some() { 150 + self.below(100) } else { 0 }
    }
}

/// The objects of all programs, made once per program and reset for each repetition.
struct Machine<'f> {
    fixture: &'f Fixture,
    /// The simulator, if a schedule decides.
    controlled: Option<&'f Arc<SimDriver>>,
    streams: [StreamHandle; 4],
    cells: DevicePointer,
    pinned: HostPointer,
    registers: Arc<[AtomicU32; 2]>,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let driver = self.driver();
        let _ = driver.device_synchronize(self.fixture.device);
        for &stream in &self.streams[1..] {
            let _ = driver.stream_destroy(stream);
        }
        let _ = driver.memory_free(self.cells);
        let _ = driver.host_free(self.pinned);
    }
}

/// The objects of one repetition.
struct Repetition {
    events: [EventHandle; 2],
    graphs: Mutex<[Option<GraphExecHandle>; 2]>,
    barrier: Barrier,
    /// The number of arrivals of threads at the barrier, if a schedule decides.
    arrivals: Arc<AtomicUsize>,
    threads: usize,
}

impl<'f> Machine<'f> {
    fn new(fixture: &'f Fixture, controlled: Option<&'f Arc<SimDriver>>) -> Result<Self> {
        let (driver, device) = (&fixture.driver, fixture.device);
        Ok(Self {
            fixture,
            controlled,
            streams: [
                driver.default_stream(device)?,
                driver.stream_create(device, 0)?,
                driver.stream_create(device, 0)?,
                driver.stream_create(device, 0)?,
            ],
            cells: driver.memory_allocate(device, CELLS * STRIDE)?,
            pinned: driver.host_allocate(PINNED * STRIDE, HostFlags::default())?,
            registers: Arc::default(),
        })
    }

    fn driver(&self) -> &dyn Driver {
        &*self.fixture.driver
    }

    /// Makes one run; `begin` is called when everything is prepared.
    fn run_once(
        &self,
        program: &LitmusProgram,
        random: Random,
        begin: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<u32>> {
        self.reset()?;
        let driver = self.driver();
        let flags = EventFlags::default();
        let repetition = Repetition {
            events: [
                driver.event_create(self.fixture.device, flags)?,
                driver.event_create(self.fixture.device, flags)?,
            ],
            graphs: Mutex::default(),
            barrier: Barrier::new(program.threads.len()),
            arrivals: Arc::default(),
            threads: program.threads.len(),
        };
        begin()?;
        let ran = self.run_threads(program, &repetition, random);
        let done = driver.device_synchronize(self.fixture.device);
        if let Some(controlled) = self.controlled {
            controlled.begin_run(Box::new(Late::new(0)))?;
        }
        for event in repetition.events {
            // The program may have destroyed it already.
            let _ = driver.event_destroy(event);
        }
        let graphs = repetition.graphs.into_inner();
        for exec in graphs.into_iter().flatten() {
            let _ = driver.graph_exec_destroy(exec);
        }
        ran.and(done)?;
        program.observed.iter().map(|&place| self.observe(place)).collect()
    }

    fn reset(&self) -> Result<()> {
        let (driver, stream) = (self.driver(), self.stream(Stream::A));
        let label = Label::here("reset of a litmus program");
        let count = CELLS * STRIDE;
        let fill = Fill { target: self.cells, pattern: FillPattern::U8(0), count, label };
        driver.fill_async(stream, &fill)?;
        driver.stream_synchronize(stream)?;
        driver.host_write(self.pinned, &[0; (PINNED * STRIDE) as usize])?;
        self.registers.iter().for_each(|register| register.store(0, Ordering::SeqCst));
        Ok(())
    }

    fn run_threads(
        &self,
        program: &LitmusProgram,
        repetition: &Repetition,
        mut random: Random,
    ) -> Result<()> {
        if let [steps] = program.threads {
            return self.run_thread(steps, repetition, random);
        }
        if let Some(driver) = self.controlled {
            return self.run_seated(driver, program, repetition);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = program
                .threads
                .iter()
                .map(|steps| {
                    let own = random.fork();
                    scope.spawn(move || self.run_thread(steps, repetition, own))
                })
                .collect();
            // All threads are joined before the first error is returned.
            let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            results.into_iter().try_for_each(|result| {
                result.unwrap_or_else(|_| {
                    Err(Error::new(Code::Unknown, "litmus", "a call panicked on its thread"))
                })
            })
        })
    }

    /// Runs the threads of the program as host threads of a controlled simulator.
    fn run_seated(
        &self,
        driver: &Arc<SimDriver>,
        program: &LitmusProgram,
        repetition: &Repetition,
    ) -> Result<()> {
        let count = program.threads.len();
        let seats = (0..count).map(|number| driver.host_thread_slot(&format!("litmus {number}")));
        let seats = seats.collect::<Result<Vec<_>>>()?;
        let ended = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let threads: Vec<_> = program
                .threads
                .iter()
                .zip(seats)
                .map(|(steps, seat)| {
                    let ended = Arc::clone(&ended);
                    scope.spawn(move || {
                        let result =
                            seat.take().and_then(|()| self.run_thread(steps, repetition, Random::none()));
                        ended.fetch_add(1, Ordering::SeqCst);
                        drop(seat);
                        result
                    })
                })
                .collect();
            let all = driver
                .wait_until("the threads of the program", move || ended.load(Ordering::SeqCst) == count);
            let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            results.into_iter().try_for_each(|result| {
                result.unwrap_or_else(|_| {
                    Err(Error::new(Code::Unknown, "litmus", "a call panicked on its thread"))
                })
            })?;
            all
        })
    }

    fn wait_at_barrier(&self, repetition: &Repetition, result: &mut Result<()>) {
        let Some(driver) = self.controlled else {
            repetition.barrier.wait();
            return;
        };
        let arrived = repetition.arrivals.fetch_add(1, Ordering::SeqCst) + 1;
        let goal = arrived.next_multiple_of(repetition.threads);
        let arrivals = Arc::clone(&repetition.arrivals);
        let waited = driver.wait_until("the barrier", move || arrivals.load(Ordering::SeqCst) >= goal);
        if result.is_ok() {
            *result = waited;
        }
    }

    fn run_thread(&self, steps: &[HostStep], repetition: &Repetition, mut random: Random) -> Result<()> {
        let mut result = Ok(());
        for &step in steps {
            // After an error only the barriers are passed, so that no other thread waits for this one for ever.
            if step == HostStep::Barrier {
                self.wait_at_barrier(repetition, &mut result);
            } else if result.is_ok() {
                if random.0.is_some() && random.below(3) == 0 {
                    wait_us(random.below(20));
                }
                result = self.step(step, repetition, &mut random);
            }
        }
        result
    }

    fn step(&self, step: HostStep, repetition: &Repetition, random: &mut Random) -> Result<()> {
        let driver = self.driver();
        let event = |event: Event| repetition.events[event as usize];
        match step {
            HostStep::Record(which, stream) => driver.event_record(event(which), self.stream(stream)),
            HostStep::Wait(stream, which) => driver.stream_wait_event(self.stream(stream), event(which)),
            HostStep::Destroy(which) => driver.event_destroy(event(which)),
            HostStep::SyncStream(stream) => driver.stream_synchronize(self.stream(stream)),
            HostStep::SyncEvent(which) => driver.event_synchronize(event(which)),
            HostStep::SyncDevice => driver.device_synchronize(self.fixture.device),
            HostStep::PollStream(stream) => poll(|| driver.stream_query(self.stream(stream))),
            HostStep::PollEvent(which) => poll(|| driver.event_query(event(which))),
            HostStep::Query(register, which) => {
                self.set(register, u32::from(driver.event_query(event(which))?));
                Ok(())
            }
            HostStep::HostWrite(pinned, value) => {
                driver.host_write(self.pinned(pinned), &value.to_le_bytes())
            }
            HostStep::HostRead(register, pinned) => {
                let value = self.read_pinned(pinned)?;
                self.set(register, value);
                Ok(())
            }
            HostStep::HostCopy(to, from) => {
                // This makes no call of the driver, but the schedule must get a choice nevertheless.
                self.controlled.map_or(Ok(()), |driver| driver.pass())?;
                self.set(to, self.registers[from as usize].load(Ordering::SeqCst));
                Ok(())
            }
            HostStep::Begin(stream) => driver.stream_begin_capture(self.stream(stream), CaptureMode::Relaxed),
            HostStep::End(stream, graph) => self.end_capture(stream, graph, repetition),
            HostStep::Launch(stream, graph) => {
                let execs = repetition.graphs.lock();
                let exec = execs[graph as usize].unwrap_or(GraphExecHandle::from_raw(0));
                driver.graph_launch(exec, self.stream(stream))
            }
            command => self.submit(command, random),
        }
    }

    /// Submits the steps that put work on a stream.
    fn submit(&self, step: HostStep, random: &mut Random) -> Result<()> {
        let driver = self.driver();
        let label = Label::here("litmus");
        let kernel = |stream, kernel, arguments: KernelArguments| {
            self.fixture.kernels.launch(driver, self.stream(stream), kernel, arguments)
        };
        let word = |cell, value| KernelArguments::new(self.cell(cell), 1, value);
        let copy = |stream, target, source| {
            driver.copy_async(self.stream(stream), &Copy { target, source, bytes: 4, label })
        };
        let (device, host) =
            (|cell| Endpoint::Device(self.cell(cell)), |pinned| Endpoint::Pinned(self.pinned(pinned)));
        match step {
            HostStep::Write(stream, cell, value) => {
                kernel(stream, Kernel::Constant, word(cell, value).with_delay_us(random.delay_us()))
            }
            HostStep::WriteLate(stream, cell, value) => {
                kernel(stream, Kernel::Constant, word(cell, value).with_delay_us(random.long_delay_us()))
            }
            HostStep::Add(stream, cell, value) => {
                kernel(stream, Kernel::Add, word(cell, value).with_delay_us(random.delay_us()))
            }
            HostStep::Move(stream, to, from) => {
                let arguments = word(to, 0).with_source(self.cell(from)).with_delay_us(random.delay_us());
                kernel(stream, Kernel::Copy, arguments)
            }
            HostStep::Copy(stream, to, from) => copy(stream, device(to), device(from)),
            HostStep::CopyIn(stream, to, from) => copy(stream, device(to), host(from)),
            HostStep::CopyOut(stream, to, from) => copy(stream, host(to), device(from)),
            HostStep::Fill(stream, cell, value) => {
                let pattern = FillPattern::U32(u32::from(value));
                driver.fill_async(
                    self.stream(stream),
                    &Fill { target: self.cell(cell), pattern, count: 1, label },
                )
            }
            HostStep::Upload(stream, cell, value) => {
                driver.copy_from_host(self.stream(stream), self.cell(cell), &value.to_le_bytes(), label)
            }
            HostStep::Download(stream, register, cell) => {
                let mut bytes = [0; 4];
                driver.copy_to_host(self.stream(stream), &mut bytes, self.cell(cell), label)?;
                self.set(register, u32::from_le_bytes(bytes));
                Ok(())
            }
            HostStep::Call(stream, register, value) => {
                let registers = Arc::clone(&self.registers);
                let set = move || registers[register as usize].store(value, Ordering::SeqCst);
                driver.host_function_async(self.stream(stream), Arc::new(set), label)
            }
            other => unreachable!("{other:?} puts no work on a stream"),
        }
    }

    fn end_capture(&self, stream: Stream, graph: Graph, repetition: &Repetition) -> Result<()> {
        let driver = self.driver();
        let captured = driver.stream_end_capture(self.stream(stream))?;
        let exec = driver.graph_instantiate(captured, self.fixture.device);
        driver.graph_destroy(captured)?;
        repetition.graphs.lock()[graph as usize] = Some(exec?);
        Ok(())
    }

    fn observe(&self, place: Observed) -> Result<u32> {
        match place {
            Observed::Register(register) => Ok(self.registers[register as usize].load(Ordering::SeqCst)),
            Observed::Pinned(pinned) => self.read_pinned(pinned),
            Observed::Cell(cell) => {
                let (stream, mut bytes) = (self.stream(Stream::A), [0; 4]);
                self.driver().copy_to_host(stream, &mut bytes, self.cell(cell), Label::here("observe"))?;
                Ok(u32::from_le_bytes(bytes))
            }
        }
    }

    fn stream(&self, stream: Stream) -> StreamHandle {
        self.streams[stream as usize]
    }

    fn cell(&self, cell: Cell) -> DevicePointer {
        self.cells.offset(cell as u64 * STRIDE)
    }

    fn pinned(&self, pinned: Pinned) -> HostPointer {
        self.pinned.offset(pinned as u64 * STRIDE)
    }

    fn read_pinned(&self, pinned: Pinned) -> Result<u32> {
        let mut bytes = [0; 4];
        self.driver().host_read(self.pinned(pinned), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn set(&self, register: Register, value: u32) {
        self.registers[register as usize].store(value, Ordering::SeqCst);
    }
}

fn poll(mut ask: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ask()? {
        if start.elapsed() > PATIENCE {
            let detail = "a query answered `not ready` for 20 s: the work does not get ahead";
            return Err(Error::new(Code::LaunchTimeout, "litmus", detail));
        }
        std::thread::yield_now();
    }
    Ok(())
}
