//! The programs that a planted bug must break, each with its machine and settings.

use thalweg_driver::{DevicePointer, FillPattern, Label};
use thalweg_memory::{Backend, CrossStreamReuse, Policy, PoolOptions, Settings};
use thalweg_runtime::sim::{Check, Failure, Gpu};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, MemPool, Result, Stream};

use crate::graphs::Studio;
use crate::world::{Held, PIECE, World};

/// A random program with its environment.
pub struct Program {
    pub name: &'static str,
    /// The memory of the device: little, so that memory has to be found in other ways than by reserving more.
    memory_bytes: u64,
    settings: fn() -> Settings,
    devices: u32,
    faults: bool,
    body: fn(&Gpu) -> Result<()>,
}

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

/// The settings of most programs.
const PLAIN: Program = Program {
    name: "buffers",
    memory_bytes: 24 * MIB,
    settings: small_pages,
    devices: 1,
    faults: false,
    body: buffers,
};

/// All of them.
pub const ALL: [Program; 14] = [
    PLAIN,
    Program { name: "ordered reuse", settings: ordered_reuse, ..PLAIN },
    Program { name: "hand over", memory_bytes: 16 * MIB, settings: ordered_reuse, body: hand_over, ..PLAIN },
    Program { name: "waves", settings: ordered_reuse, body: waves, ..PLAIN },
    Program { name: "PyTorch's policy", settings: pytorch, ..PLAIN },
    Program { name: "the driver's allocator", settings: stream_ordered, ..PLAIN },
    Program { name: "pools", memory_bytes: 64 * MIB, body: pools, ..PLAIN },
    Program { name: "threads", memory_bytes: 32 * MIB, body: threads, ..PLAIN },
    Program { name: "graphs", memory_bytes: 64 * MIB, body: graphs, ..PLAIN },
    Program { name: "stitched graphs", memory_bytes: 64 * MIB, body: stitched_graphs, ..PLAIN },
    Program { name: "pinned", body: pinned, ..PLAIN },
    Program { name: "peers", devices: 2, body: peers, ..PLAIN },
    Program { name: "graphs, faults", faults: true, body: graphs, ..PLAIN },
    Program { name: "waves, faults", memory_bytes: 16 * MIB, faults: true, body: waves_with_faults, ..PLAIN },
];

impl Program {
    /// Runs the program with one seed.
    pub fn run(&self, seed: u64) -> std::result::Result<(), Box<Failure>> {
        let check = Check::new().seeds(seed..seed + 1).without_shrinking();
        let check = check.memory_bytes(self.memory_bytes).devices(self.devices).allocator((self.settings)());
        let check = if self.faults { check.with_faults() } else { check };
        check.find(self.body).map(drop)
    }
}

/// Returns the default settings with pages so small that little memory has many.
fn small_pages() -> Settings {
    Settings::default().with_expandable_page_bytes(PAGE).expect("an even number of MiB")
}

fn ordered_reuse() -> Settings {
    small_pages().with_cross_stream_reuse(CrossStreamReuse::Ordered).with_record_use_depth(1)
}

fn stream_ordered() -> Settings {
    Settings::default().with_backend(Backend::CudaMallocAsync)
}

fn pytorch() -> Settings {
    Settings::default().with_policy(Policy::PyTorch)
}

/// Returns the default stream and some of the pool.
fn streams(device: &Device) -> Result<Vec<Stream>> {
    let mut streams = vec![device.default_stream()];
    for _ in 0..3 {
        streams.push(Stream::new(device)?);
    }
    Ok(streams)
}

fn world(gpu: &Gpu, number: u32) -> Result<World> {
    Ok(World::new(gpu.device(), streams(gpu.device())?, number, gpu.random()))
}

/// Uses one thread, several streams.
fn buffers(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    (0..80).try_for_each(|_| world.step())
}

/// Passes buffers of few sizes from stream to stream. The host hardly ever waits, so freed buffers are still in use elsewhere.
fn hand_over(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    world.waits = false;
    world.sizes = &[3000, 3 << 20, 5 << 20];
    world.streams.truncate(2);
    (0..80).try_for_each(|_| world.step())
}

/// Frees groups of buffers while they are in use.
fn waves(gpu: &Gpu) -> Result<()> {
    make_waves(world(gpu, 1)?)
}

/// Runs the waves under faults.
fn waves_with_faults(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    world.forgives = true;
    make_waves(world)
}

fn make_waves(mut world: World) -> Result<()> {
    world.waits = false;
    world.sizes = &[3000, 60_000, 3 << 20, 5 << 20];
    (0..12).try_for_each(|_| world.wave())
}

/// Uses a pool that is restored, from time to time, to its empty state.
fn pools(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    world.waits = false;
    world.sizes = &[1500, 3000];
    let pool = MemPool::new(gpu.device(), PoolOptions::default());
    let allocator = gpu.device().allocator();
    let _scope = pool.enter()?;
    let empty = allocator.checkpoint_pool(pool.id()).expect("the pool is there, and nothing is captured");
    for _ in 0..6 {
        (0..12).try_for_each(|_| world.step())?;
        world.held.clear();
        let restored =
            allocator.restore_pool(pool.id(), &empty).expect("the pool is there, and nothing is captured");
        assert!(restored.allocated.is_empty(), "it was empty");
    }
    Ok(())
}

/// Replays captured graphs among other work.
fn graphs(gpu: &Gpu) -> Result<()> {
    let mut studio = Studio::new(world(gpu, 1)?)?;
    (0..50).try_for_each(|_| studio.step())
}

/// Captures whose free memory is fragmented, and which get memory that is freed meanwhile, while other work continues.
fn stitched_graphs(gpu: &Gpu) -> Result<()> {
    let device = gpu.device();
    let [capturing, side] = [Stream::new(device)?, Stream::new(device)?];
    for value in 1..4 {
        let shared = filled(&side, 8 * MIB, value)?;
        let options = CaptureOptions { stream: Some(capturing.clone()), ..CaptureOptions::default() };
        let (graph, (held, whole)) = Graph::capture(device, options, || {
            let pieces = (0..4).map(|_| filled(&capturing, 4 * MIB, value)).collect::<Result<Vec<_>>>()?;
            let held: Vec<Buffer> = pieces.into_iter().skip(1).step_by(2).collect();
            // The other stream continues meanwhile, and no thread waits for it.
            stamp(&side, &shared, 98)?;
            drop(shared);
            let whole = filled(&capturing, 8 * MIB, value + 10)?;
            Ok((held, (whole, filled(&capturing, 8 * MIB, value + 20)?)))
        })?;
        for _ in 0..2 {
            let other = filled(&side, 4 * MIB, 99)?;
            graph.replay_on(&capturing)?;
            let expected = [(&held[0], value), (&whole.0, value + 10), (&whole.1, value + 20)];
            expected.into_iter().try_for_each(|(buffer, value)| check(&capturing, buffer, value))?;
            check(&side, &other, 99)?;
        }
        drop((graph, held, whole));
    }
    Ok(())
}

fn filled(stream: &Stream, bytes: u64, value: u8) -> Result<Buffer> {
    let buffer = Buffer::new(stream, bytes)?;
    stamp(stream, &buffer, value)?;
    Ok(buffer)
}

/// Returns where the parts of a large buffer begin that are written and read: one in each page.
fn pieces(buffer: &Buffer) -> impl Iterator<Item = DevicePointer> {
    (0..buffer.size_bytes()).step_by(PAGE as usize).map(|start| buffer.pointer().offset(start))
}

fn stamp(stream: &Stream, buffer: &Buffer, value: u8) -> Result<()> {
    pieces(buffer)
        .try_for_each(|piece| stream.fill(piece, FillPattern::U8(value), PIECE, Label::here("fill")))
}

fn check(stream: &Stream, buffer: &Buffer, value: u8) -> Result<()> {
    pieces(buffer).try_for_each(|piece| {
        let mut bytes = [0; PIECE as usize];
        stream.copy_to_host(&mut bytes, piece, Label::here("read"))?;
        assert!(bytes == [value; PIECE as usize], "a buffer holds what was written to it last");
        Ok(())
    })
}

/// Copies from and to pinned memory.
fn pinned(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    (0..40).try_for_each(|_| {
        world.step()?;
        world.step_pinned()
    })
}

/// Copies by streams of another device.
fn peers(gpu: &Gpu) -> Result<()> {
    let mut world = world(gpu, 1)?;
    world.peers = streams(&gpu.devices()[1])?;
    gpu.devices()[0].enable_peer_access(&gpu.devices()[1])?;
    (0..60).try_for_each(|_| world.step())
}

/// Uses two threads that pass buffers to each other.
fn threads(gpu: &Gpu) -> Result<()> {
    let (sender, receiver) = gpu.channel::<Held>();
    let (mut first, mut second) = (world(gpu, 1)?, world(gpu, 2)?);
    // Both use the streams of the first, so that they meet in its caches.
    second.streams.clone_from(&first.streams);
    let giver = gpu.spawn("giver", move || -> Result<()> {
        for step in 0..60 {
            first.step()?;
            if step % 8 == 7
                && let Some(held) = first.held.pop()
            {
                drop(sender.send(held));
            }
        }
        Ok(())
    });
    let taker = gpu.spawn("taker", move || -> Result<()> {
        for step in 0..60 {
            second.step()?;
            if step % 10 == 9 {
                second.held.extend(receiver.receive()?);
            }
        }
        Ok(())
    });
    giver.join()??;
    taker.join()?
}
