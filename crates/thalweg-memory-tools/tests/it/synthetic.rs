//! An invented training run as a page's model: parameters that stay, activations that are allocated and freed in the order of a
//! stack, temporaries, frees that wait for another stream, and a cache that is emptied now and then. The same number of events
//! and the same seed result in the same run.

use thalweg_memory_tools::report::{
    BlockLife, Curve, DevicePage, Figure, FigureValue, Mark, MarkKind, PageModel, SegmentLife, Stack,
    StackFrame, StageRow, Tone,
};

const SIZES: [u64; 12] = [
    512,
    4096,
    65_536,
    262_144,
    1 << 20,
    3 << 20,
    6 << 20,
    12 << 20,
    24 << 20,
    37 << 20,
    64 << 20,
    150 << 20,
];
const SLOTS: u64 = 8;
const STACKS: u64 = 400;
const PARAMETERS: usize = 300;
/// The number of events between the free of a block of the side stream and its completion.
const DELAY: u32 = 40;

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// An allocator as simple as possible: segments of equal slots.
struct Run {
    random: Random,
    device: DevicePage,
    /// The free slots of each size: (segment, slot).
    free: Vec<Vec<(usize, u64)>>,
    /// The number of used slots of each segment.
    used: Vec<u64>,
    /// The place of each block.
    places: Vec<(usize, u64)>,
    pending: Vec<(u32, usize)>,
    next_address: u64,
    limit: u32,
}

impl Run {
    fn event(&mut self) -> Option<u32> {
        let event = self.device.event_count;
        (event < self.limit).then(|| {
            let last = self.device.times_us.last().copied().unwrap_or(1_700_000_000_000_000);
            self.device.times_us.push(last + self.random.below(30) as i64);
            self.device.event_count += 1;
            event
        })
    }

    /// Returns a block of one of the sizes; with `is_before`, one that is live before the first event.
    fn allocate(&mut self, size: usize, category: u16, is_before: bool) -> Option<usize> {
        let stream = u16::from(self.random.below(20) == 0);
        let (segment, slot) = match self.free[size].pop() {
            Some(place) => place,
            None => self.segment(size, stream, is_before)?,
        };
        let allocated = if is_before { None } else { Some(self.event()?) };
        self.used[segment] += 1;
        let stack = self.random.below(STACKS + 1) as u32;
        self.device.blocks.push(BlockLife {
            allocated,
            address: self.device.segments[segment].address + slot * SIZES[size],
            size_bytes: SIZES[size],
            requested_bytes: SIZES[size] - self.random.below(500),
            stream: self.device.segments[segment].stream,
            pool: self.device.segments[segment].pool,
            category,
            stack: stack.checked_sub(1),
            ..BlockLife::default()
        });
        self.places.push((segment, slot));
        Some(self.device.blocks.len() - 1)
    }

    fn segment(&mut self, size: usize, stream: u16, is_before: bool) -> Option<(usize, u64)> {
        let taken = if is_before { None } else { Some(self.event()?) };
        let segment = self.device.segments.len();
        self.device.segments.push(SegmentLife {
            taken,
            address: self.next_address,
            size_bytes: SIZES[size] * SLOTS,
            stream,
            pool: u16::from(self.random.below(9) == 0),
            is_expandable: size == 5,
            ..SegmentLife::default()
        });
        self.next_address += (SIZES[size] * SLOTS).next_multiple_of(2 << 20) + (2 << 20);
        self.used.push(0);
        self.free[size].extend((1..SLOTS).map(|slot| (segment, slot)));
        Some((segment, 0))
    }

    fn free(&mut self, block: usize) -> Option<()> {
        let event = self.event()?;
        self.device.blocks[block].freed = Some(event);
        let delay = if self.device.blocks[block].stream == 1 { DELAY } else { 0 };
        self.pending.push((event + delay, block));
        self.complete()
    }

    fn complete(&mut self) -> Option<()> {
        while let Some(at) = self.pending.iter().position(|(due, _)| *due <= self.device.event_count) {
            let (_, block) = self.pending.remove(at);
            self.device.blocks[block].completed = Some(self.event()?);
            let (segment, slot) = self.places[block];
            self.used[segment] -= 1;
            let size = SIZES.iter().position(|size| *size == self.device.blocks[block].size_bytes);
            self.free[size.expect("it has one of the sizes")].push((segment, slot));
        }
        Some(())
    }

    fn empty_cache(&mut self) -> Option<()> {
        for segment in 0..self.used.len() {
            if self.used[segment] == 0 && self.device.segments[segment].returned.is_none() {
                self.device.segments[segment].returned = Some(self.event()?);
                self.free.iter_mut().for_each(|places| places.retain(|(of, _)| *of != segment));
            }
        }
        Some(())
    }

    /// Runs one step of training: forward and backward pass, with temporaries. Returns `None` when the events are used up.
    fn step(&mut self, layers: u64) -> Option<()> {
        let mut activations = Vec::new();
        for _ in 0..layers {
            let size = 3 + self.random.below(6) as usize;
            activations.push(self.allocate(size, 1, false)?);
            for _ in 0..self.random.below(4) {
                let size = self.random.below(8) as usize;
                let temporary = self.allocate(size, 2, false)?;
                self.free(temporary)?;
            }
        }
        while let Some(block) = activations.pop() {
            let size = self.random.below(9) as usize;
            let gradient = self.allocate(size, 2, false)?;
            self.free(block)?;
            self.free(gradient)?;
        }
        if self.random.below(6) == 0 { self.empty_cache() } else { Some(()) }
    }
}

/// Returns one device with exactly this many events.
pub fn device(name: &str, events: u32, seed: u64) -> DevicePage {
    let device = DevicePage {
        name: name.to_owned(),
        streams: vec!["default stream".into(), "stream 0x7f01".into()],
        pools: vec!["shared pool".into(), "pool (0, 1)".into()],
        ..DevicePage::default()
    };
    let mut run = Run {
        random: Random(seed),
        device,
        free: vec![Vec::new(); SIZES.len()],
        used: Vec::new(),
        places: Vec::new(),
        pending: Vec::new(),
        next_address: 0x7f12_0000_0000,
        limit: events,
    };
    for _ in 0..PARAMETERS {
        let size = 2 + run.random.below(6) as usize;
        run.allocate(size, 0, true).expect("what was there before needs no event");
    }
    loop {
        let layers = 100 + run.random.below(600);
        if run.step(layers).is_none() {
            break;
        }
    }
    let mut device = run.device;
    device.marks.push(Mark {
        event: events - 1,
        kind: MarkKind::OutOfMemory,
        text: "37.0 MiB <asked for>".into(),
    });
    device.curves.push(Curve {
        name: "expandable_segments:True".into(),
        is_estimate: true,
        steps: vec![(None, 1 << 30), (Some(events / 3), 3 << 30), (Some(events / 2), 5 << 28)],
    });
    device.stages = ["forward <of all>", "backward"]
        .into_iter()
        .enumerate()
        .map(|(number, name)| StageRow {
            name: name.into(),
            times: number as u32 + 1,
            duration_us: 1_234_567,
            peak_live_bytes: 5 << 30,
            peak_own_bytes: 3 << 20,
            peak_reserved_bytes: 6 << 30,
            peak_position: events / 2,
        })
        .collect();
    device.settings = vec![("expandable_segments".into(), "True".into())];
    device.figures.push(Figure {
        key: "events".into(),
        label: "Events".into(),
        value: FigureValue::Count(events.into()),
        note: String::new(),
        tone: Tone::Plain,
    });
    device
}

/// Returns a model that contains these devices.
pub fn model(devices: Vec<DevicePage>) -> PageModel {
    let frames = (0..STACKS).map(|line| StackFrame {
        file: if line % 3 == 0 {
            "torch/nn/modules/linear.py".into()
        } else {
            format!("train/part_{}.py", line % 7)
        },
        line: line as u32 + 1,
        function: if line % 2 == 0 { "forward".into() } else { "</script><b>backward".into() },
    });
    PageModel {
        title: "synthetic </title><script>throw 1</script>".into(),
        devices,
        frames: frames.collect(),
        stacks: (0..STACKS as u32)
            .map(|frame| Stack {
                frames: vec![frame, (frame * 7 + 1) % STACKS as u32, 1, 2],
                frame: frame % 4,
            })
            .collect(),
        categories: vec!["parameters".into(), "activations".into(), "temporaries".into()],
    }
}
