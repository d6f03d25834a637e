//! A random program that keeps the rules: streams, buffers of few sizes, copies, host memory, in a correct order.
//!
//! Every piece of memory remembers its last writer and its readers since. Before a stream touches it, the stream is ordered after
//! them, in one of the possible ways; afterwards the use is recorded, in one of the possible ways. Every write stores a new
//! value, and every read is compared. So a correct runtime has no findings, and few mistakes of a wrong one remain unseen.

use std::sync::Arc;

use thalweg_driver::FillPattern;
use thalweg_runtime::{Buffer, Device, Error, Event, Label, PinnedBuffer, Result, Stream};

/// The sizes of buffers: few, so that memory is reused often; around the borders of size classes and pages.
const SIZES: &[u64] = &[500, 1500, 3000, 60_000, 1 << 20, (2 << 20) - 512, 3 << 20, 5 << 20];

/// The number of bytes of each part of a buffer that are written and read.
pub const PIECE: u64 = 400;

/// The value of a captured buffer that has the value of the graph's input at the replay.
pub const INPUT: u32 = u32::MAX;

/// The position of a stream after it touched some memory.
#[derive(Clone)]
pub struct Mark {
    pub stream: Stream,
    pub event: Arc<Event>,
}

impl Mark {
    pub fn of(stream: &Stream) -> Result<Self> {
        Ok(Self { stream: stream.clone(), event: Arc::new(stream.record_event()?) })
    }
}

/// The streams that touched some memory, as far as it matters.
#[derive(Default)]
pub struct Touched {
    writer: Option<Mark>,
    readers: Vec<Mark>,
}

impl Touched {
    /// Returns the work that a reader, or a writer, must be ordered after.
    fn before(&self, writes: bool) -> impl Iterator<Item = &Mark> {
        self.writer.iter().chain(self.readers.iter().filter(move |_| writes))
    }

    fn add(&mut self, mark: Mark, writes: bool) {
        if writes {
            self.readers.clear();
            self.writer = Some(mark);
        } else {
            self.readers.push(mark);
        }
    }

    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The way in which memory is kept for the streams that use it besides its own.
#[derive(Clone, Copy)]
enum Keeps {
    /// `record_use` after each use.
    Precisely,
    /// `record_stream`, before or after a use.
    Late,
    /// Its own stream waits for the others before the drop.
    Waits,
}

/// A buffer, its value, and the streams that touched it.
pub struct Held {
    buffer: Buffer,
    home: Stream,
    keeps: Keeps,
    pub value: u32,
    pub touched: Touched,
}

impl Held {
    /// Returns the parts that are written and read: the beginning, for a large buffer a part of each page, and the end.
    fn pieces(&self) -> Vec<(u64, u64)> {
        let bytes = self.buffer.size_bytes();
        let last = bytes.saturating_sub(PIECE) / 4 * 4;
        let mut starts: Vec<u64> = (0..last).step_by(1 << 20).collect();
        starts.push(last);
        starts.dedup();
        starts.into_iter().map(|start| (start, PIECE.min(bytes - start) / 4 * 4)).collect()
    }

    /// Notes that work which uses the buffer was submitted to a stream.
    pub fn used(&mut self, stream: &Stream, writes: bool) -> Result<()> {
        if *stream != self.home {
            match self.keeps {
                Keeps::Precisely => self.buffer.record_use(stream),
                Keeps::Late => self.buffer.record_stream(stream),
                Keeps::Waits => {}
            }
        }
        match Mark::of(stream) {
            Ok(mark) => self.touched.add(mark, writes),
            Err(error) => {
                self.buffer.record_stream(stream);
                return Err(error);
            }
        }
        Ok(())
    }

    fn fill(&self, stream: &Stream, value: u32) -> Result<()> {
        self.pieces().into_iter().try_for_each(|(start, bytes)| {
            let target = self.buffer.pointer().offset(start);
            stream.fill(target, FillPattern::U32(value), bytes / 4, Label::here("fill"))
        })
    }

    fn copy_from(&self, other: &Self, stream: &Stream) -> Result<()> {
        self.pieces().into_iter().try_for_each(|(start, bytes)| {
            let (target, source) =
                (self.buffer.pointer().offset(start), other.buffer.pointer().offset(start));
            stream.copy_on_device(target, source, bytes, Label::here("copy"))
        })
    }

    /// Reads the buffer back on a stream that is ordered after its last write.
    pub fn check(&self, stream: &Stream, expected: u32) -> Result<()> {
        for (start, bytes) in self.pieces() {
            let mut found = vec![0_u32; bytes as usize / 4];
            let target = bytemuck::cast_slice_mut(&mut found);
            stream.copy_to_host(target, self.buffer.pointer().offset(start), Label::here("read"))?;
            assert!(
                found.iter().all(|value| *value == expected),
                "contents: {:#x} instead of {expected:#x}",
                found[0]
            );
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if matches!(self.keeps, Keeps::Waits) {
            for mark in self.touched.before(true).filter(|mark| mark.stream != self.home) {
                if mark.event.wait(&self.home).is_err() {
                    self.buffer.record_stream(&mark.stream);
                }
            }
        }
    }
}

/// Pinned memory, its value, and the streams that touched it.
struct Pinned {
    buffer: PinnedBuffer,
    value: u32,
    touched: Touched,
}

/// A random program of one host thread.
pub struct World {
    pub device: Device,
    random: u64,
    /// The streams that it uses.
    pub streams: Vec<Stream>,
    /// Streams of another device, for copies.
    pub peers: Vec<Stream>,
    pub held: Vec<Held>,
    pinned: Vec<Pinned>,
    next_value: u32,
    /// The sizes of its buffers.
    pub sizes: &'static [u64],
    /// Whether nothing may wait on the host, because a graph is being captured.
    pub is_captured: bool,
    /// Whether it sometimes waits on the host without need.
    pub waits: bool,
    /// Whether it continues when memory is refused for any reason, because faults are injected.
    pub forgives: bool,
}

impl World {
    /// Creates a world. `number` distinguishes the worlds of a run.
    pub fn new(device: &Device, streams: Vec<Stream>, number: u32, seed: u64) -> Self {
        Self {
            device: device.clone(),
            random: seed,
            streams,
            peers: Vec::new(),
            held: Vec::new(),
            pinned: Vec::new(),
            next_value: number << 20,
            sizes: SIZES,
            is_captured: false,
            waits: true,
            forgives: false,
        }
    }

    /// Returns a random number (Steele, Lea and Flood's SplitMix).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.random() % bound as u64) as usize
    }

    pub fn new_value(&mut self) -> u32 {
        self.next_value += 1;
        self.next_value
    }

    pub fn any_stream(&mut self) -> Stream {
        let place = self.below(self.streams.len());
        self.streams[place].clone()
    }

    fn any_held(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.below(self.held.len()))
    }

    fn any_pinned(&mut self) -> Option<usize> {
        (!self.pinned.is_empty()).then(|| self.below(self.pinned.len()))
    }

    /// Orders a stream's next work after a mark.
    pub fn order(&mut self, stream: &Stream, mark: &Mark) -> Result<()> {
        if mark.stream == *stream {
            return Ok(());
        }
        match self.below(if self.waits { 8 } else { 4 }) {
            0 => stream.wait_stream(&mark.stream),
            1..=4 => stream.wait_event(&mark.event),
            _ => self.wait(mark),
        }
    }

    /// Lets the host wait for a mark.
    fn wait(&mut self, mark: &Mark) -> Result<()> {
        match self.below(5) {
            0 => mark.event.synchronize(),
            1 => mark.stream.synchronize(),
            2 => mark.stream.device().synchronize(),
            3 => {
                while !mark.stream.query()? {}
                Ok(())
            }
            _ => {
                while !mark.event.query()? {}
                Ok(())
            }
        }
    }

    fn order_all(&mut self, stream: &Stream, touched: &Touched, writes: bool) -> Result<()> {
        touched.before(writes).try_for_each(|mark| self.order(stream, mark))
    }

    /// Makes one step.
    pub fn step(&mut self) -> Result<()> {
        match self.below(24) {
            0..=5 => self.allocate(),
            6..=8 => self.write(),
            9..=11 => self.copy(),
            12..=13 => self.read(),
            14..=17 => self.drop_one(),
            18..=22 => self.step_pinned(),
            _ if !self.waits || self.below(3) > 0 => Ok(()),
            _ => self.device.empty_cache(),
        }
    }

    fn allocate(&mut self) -> Result<()> {
        if self.held.len() >= 8 {
            self.drop_one()?;
        }
        let home = self.any_stream();
        let bytes = self.sizes[self.below(self.sizes.len())];
        if let Some(held) = self.new_held(&home, bytes)? {
            self.held.push(held);
        }
        Ok(())
    }

    /// Returns a buffer with a value; `None` if there is not enough memory. Then all buffers are dropped.
    pub fn new_held(&mut self, home: &Stream, bytes: u64) -> Result<Option<Held>> {
        let buffer = match Buffer::new(home, bytes) {
            Err(error) if error.is_out_of_memory() => {
                self.held.clear();
                return Ok(None);
            }
            Err(error) if self.forgives && !error.is_device_lost() => return Ok(None),
            other => other?,
        };
        let keeps = [Keeps::Precisely, Keeps::Late, Keeps::Waits][self.below(3)];
        let value = self.new_value();
        let mut held = Held { buffer, home: home.clone(), keeps, value, touched: Touched::default() };
        let filled = held.fill(home, value);
        held.used(home, true)?;
        filled.map(|()| Some(held))
    }

    fn write(&mut self) -> Result<()> {
        let Some(place) = self.any_held() else { return Ok(()) };
        let held = self.held.swap_remove(place);
        let held = self.rewrite(held)?;
        self.held.push(held);
        Ok(())
    }

    /// Makes some buffers on one stream, uses them on another and drops them, possibly before any of this work has run.
    pub fn wave(&mut self) -> Result<()> {
        let (home, user) = (self.any_stream(), self.any_stream());
        for _ in 0..1 + self.below(4) {
            let bytes = self.sizes[self.below(self.sizes.len())];
            let Some(held) = self.new_held(&home, bytes)? else { return Ok(()) };
            let held = self.rewrite_on(&user, held)?;
            self.held.push(held);
        }
        while !self.held.is_empty() {
            self.drop_one()?;
        }
        Ok(())
    }

    /// Writes a new value to a buffer.
    pub fn rewrite(&mut self, held: Held) -> Result<Held> {
        let stream = self.any_stream();
        self.rewrite_on(&stream, held)
    }

    fn rewrite_on(&mut self, stream: &Stream, mut held: Held) -> Result<Held> {
        let value = self.new_value();
        self.order_all(stream, &held.touched, true)?;
        let filled = held.fill(stream, value);
        held.used(stream, true)?;
        held.value = value;
        filled.map(|()| held)
    }

    /// Orders a stream's next work after the last write of a buffer.
    pub fn order_to_read(&mut self, stream: &Stream, held: &Held) -> Result<()> {
        self.order_all(stream, &held.touched, false)
    }

    /// Makes a buffer a copy of another of its size.
    fn copy(&mut self) -> Result<()> {
        let Some(place) = self.any_held() else { return Ok(()) };
        let source = self.held.swap_remove(place);
        let bytes = source.buffer.size_bytes();
        let target = self.held.iter().position(|held| held.buffer.size_bytes() == bytes);
        let target = match target {
            Some(place) => Some(self.held.swap_remove(place)),
            None => {
                let home = self.any_stream();
                self.new_held(&home, bytes)?
            }
        };
        let Some(target) = target else { return Ok(()) };
        let (source, target) = self.copy_held(source, target)?;
        self.held.extend([source, target]);
        Ok(())
    }

    pub fn copy_held(&mut self, mut source: Held, mut target: Held) -> Result<(Held, Held)> {
        let mut stream = self.any_stream();
        if !self.peers.is_empty() && self.below(2) == 0 {
            let place = self.below(self.peers.len());
            stream = self.peers[place].clone();
        }
        self.order_all(&stream, &source.touched, false)?;
        self.order_all(&stream, &target.touched, true)?;
        let copied = target.copy_from(&source, &stream);
        let used = source.used(&stream, false);
        target.used(&stream, true)?;
        used?;
        target.value = source.value;
        copied.map(|()| (source, target))
    }

    fn read(&mut self) -> Result<()> {
        if self.is_captured {
            return Ok(());
        }
        let Some(place) = self.any_held() else { return Ok(()) };
        let stream = self.any_stream();
        let mut held = self.held.swap_remove(place);
        self.order_all(&stream, &held.touched, false)?;
        let read = held.check(&stream, held.value);
        held.used(&stream, false)?;
        self.held.push(held);
        read
    }

    fn drop_one(&mut self) -> Result<()> {
        if let Some(place) = self.any_held() {
            drop(self.held.swap_remove(place));
        }
        Ok(())
    }

    // ---- Pinned memory ----------------------------------------------------------------------------------------------

    /// Makes one step with pinned memory.
    pub fn step_pinned(&mut self) -> Result<()> {
        match self.below(6) {
            0 => self.pin(),
            1..=2 => self.copy_to_pinned(),
            3 => self.copy_from_pinned(),
            4 => self.read_pinned(),
            _ => self.drop_pinned(),
        }
    }

    /// Allocates pinned memory with a value that the host wrote.
    pub fn new_pinned(&mut self) -> Result<(PinnedBuffer, u32)> {
        let (bytes, value) = ([PIECE, 3000][self.below(2)], self.new_value());
        let buffer = PinnedBuffer::new(&self.device, bytes)?;
        buffer.write(0, &[value; PIECE as usize / 4])?;
        Ok((buffer, value))
    }

    fn pin(&mut self) -> Result<()> {
        if self.is_captured || self.pinned.len() >= 3 {
            return self.drop_pinned();
        }
        match self.new_pinned() {
            Ok((buffer, value)) => self.pinned.push(Pinned { buffer, value, touched: Touched::default() }),
            Err(error) if error.is_out_of_memory() => self.pinned.clear(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn copy_to_pinned(&mut self) -> Result<()> {
        let (Some(from), Some(to)) = (self.any_held(), self.any_pinned()) else { return Ok(()) };
        let stream = self.any_stream();
        let (mut held, mut pinned) = (self.held.swap_remove(from), self.pinned.swap_remove(to));
        self.order_all(&stream, &held.touched, false)?;
        self.order_all(&stream, &pinned.touched, true)?;
        let source = held.buffer.pointer();
        let copied = stream.copy_to_pinned(&pinned.buffer, 0, source, PIECE, Label::here("to pinned"));
        held.used(&stream, false)?;
        copied?;
        pinned.touched.add(Mark::of(&stream)?, true);
        pinned.value = held.value;
        self.held.push(held);
        self.pinned.push(pinned);
        Ok(())
    }

    fn copy_from_pinned(&mut self) -> Result<()> {
        let (Some(from), Some(to)) = (self.any_pinned(), self.any_held()) else { return Ok(()) };
        let stream = self.any_stream();
        let (mut pinned, mut held) = (self.pinned.swap_remove(from), self.held.swap_remove(to));
        self.order_all(&stream, &pinned.touched, false)?;
        self.order_all(&stream, &held.touched, true)?;
        let copied = self.overwrite(&stream, &pinned.buffer, pinned.value, &mut held);
        held.used(&stream, true)?;
        copied?;
        pinned.touched.add(Mark::of(&stream)?, false);
        self.held.push(held);
        self.pinned.push(pinned);
        Ok(())
    }

    /// Copies pinned memory into all of a buffer. The stream must already be ordered after all earlier uses.
    pub fn overwrite(
        &mut self,
        stream: &Stream,
        pinned: &PinnedBuffer,
        value: u32,
        held: &mut Held,
    ) -> Result<()> {
        held.value = value;
        held.fill(stream, value)?;
        stream.copy_from_pinned(held.buffer.pointer(), pinned, 0, PIECE, Label::here("from pinned"))
    }

    /// Reads pinned memory on the host, and writes a new value.
    fn read_pinned(&mut self) -> Result<()> {
        if self.is_captured {
            return Ok(());
        }
        let Some(place) = self.any_pinned() else { return Ok(()) };
        let mut pinned = self.pinned.swap_remove(place);
        let marks: Vec<Mark> = pinned.touched.before(true).cloned().collect();
        marks.iter().try_for_each(|mark| self.wait(mark))?;
        let mut found = [0_u32; PIECE as usize / 4];
        pinned.buffer.read(0, &mut found)?;
        assert_eq!(found, [pinned.value; PIECE as usize / 4], "contents of pinned memory");
        pinned.value = self.new_value();
        pinned.buffer.write(0, &[pinned.value; PIECE as usize / 4])?;
        pinned.touched.forget();
        self.pinned.push(pinned);
        Ok(())
    }

    fn drop_pinned(&mut self) -> Result<()> {
        if let Some(place) = self.any_pinned() {
            drop(self.pinned.swap_remove(place));
        }
        Ok(())
    }
}

/// Returns whether a program may continue after an error: memory was short.
pub fn or_short_of_memory(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if Error::is_out_of_memory(&error) => Ok(()),
        other => other,
    }
}
