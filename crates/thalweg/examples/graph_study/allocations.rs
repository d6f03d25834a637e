//! A check that replays make no requests to the allocators.

use thalweg::{CaptureOptions, Device, Graph, Result};

use super::report::{Figure, Row, Section};
use super::setting::{Setting, static_input};

/// The requests to the allocators of a device since their creation.
struct Requests {
    device: u64,
    segments: u64,
    pinned: u64,
}

impl Requests {
    fn so_far(device: &Device) -> Self {
        let statistics = device.allocator().statistics();
        Self {
            device: statistics.allocation.all.allocated,
            segments: statistics.num_device_alloc,
            pinned: device.host_allocator().statistics().num_host_alloc,
        }
    }

    /// Counts the requests for memory while a function runs.
    fn during(device: &Device, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let before = Self::so_far(device);
        work()?;
        let after = Self::so_far(device);
        Ok(Self {
            device: after.device - before.device,
            segments: after.segments - before.segments,
            pinned: after.pinned - before.pinned,
        })
    }

    fn row(&self, name: &str, key: &str) -> Row {
        let counts = [("requests", self.device), ("driver", self.segments), ("pinned", self.pinned)];
        let figure = |(what, count)| Figure::count(format!("allocations_{key}_{what}"), count);
        Row::new(name, counts.map(figure))
    }
}

pub fn study(setting: &Setting) -> Result<Section> {
    let Setting { device, rounds, inputs, .. } = setting;
    let network = setting.network();
    let mut section = Section::new(
        "What a replay allocates",
        format!(
            "The allocators' own counts over {rounds} steps: requests for device memory, segments taken from the driver, and pinned \
             memory taken from it. Each step rewrites its input in place first."
        ),
    );
    let input = static_input(device)?;
    let steps = |step: &dyn Fn() -> Result<()>| {
        let round = |round: usize| {
            input.copy_(&inputs[round % inputs.len()])?;
            step()
        };
        Requests::during(device, || (0..*rounds).try_for_each(round))
    };
    let eager = steps(&|| network.forward(&input).map(drop))?;
    let (graph, output) = Graph::capture(device, CaptureOptions::default(), || network.forward(&input))?;
    let replays = steps(&|| graph.replay())?;
    device.synchronize()?;
    section.table(
        format!("Allocations during {rounds} steps"),
        &["way", "requests", "from the driver", "pinned"],
        vec![eager.row("eager", "eager"), replays.row("captured", "replay")],
    );
    let memory = graph.memory();
    let bytes = |name: &str, value| [Figure::bytes(format!("graph_{name}_bytes"), value)];
    section.table(
        "Memory of the graph, put aside at its capture",
        &["what", "bytes"],
        vec![
            Row::new(
                "reserved by its pool before the capture",
                bytes("reserved_before", memory.reserved_before_bytes),
            ),
            Row::new("reserved by its pool after it", bytes("reserved_after", memory.reserved_after_bytes)),
            Row::new("allocated in the capture, each block", bytes("allocated", memory.allocated_bytes)),
            Row::new("addresses that these blocks took", bytes("occupied", memory.occupied_bytes)),
            Row::new("held when it ended: the outputs", bytes("output", memory.output_bytes)),
            Row::new("inputs from outside: parameters, tokens", bytes("input", memory.input_bytes)),
            Row::new("held by a caller now", bytes("held", graph.pool().memory().held_bytes)),
        ],
    );
    drop(output);
    section
        .check(replays.device == 0, format!("{rounds} replays made {} requests for memory", replays.device));
    section.check(
        replays.segments == 0 && replays.pinned == 0,
        format!(
            "{rounds} replays took {} segments and {} pieces of pinned memory from the driver",
            replays.segments, replays.pinned
        ),
    );
    section.check(
        eager.device > 0,
        format!("the same steps, eagerly, made {} requests: the counts count", eager.device),
    );
    Ok(section)
}
