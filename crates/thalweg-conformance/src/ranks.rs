//! Ranks with streams and memory for tests of collectives, and a plain model of every operation.

use std::sync::Arc;

use half::{bf16, f16};
use thalweg_driver::{
    Collective, CollectiveOperation, CommunicatorHandle, DevicePointer, Driver, ElementFormat, Label,
    Reduction, StreamHandle,
};
use thalweg_sim::{Schedule, SimConfig, SimDriver};

/// The number of ranks of a [`World`] in most tests.
pub const RANKS: u32 = 4;

/// The size of the memory that a rank sends, and of the memory that it receives.
pub const BYTES: u64 = 4096;

/// Every element format that collectives take.
pub const FORMATS: [ElementFormat; 10] = [
    ElementFormat::R_32F,
    ElementFormat::R_64F,
    ElementFormat::R_16F,
    ElementFormat::R_16BF,
    ElementFormat::R_8I,
    ElementFormat::R_8U,
    ElementFormat::R_32I,
    ElementFormat::R_32U,
    ElementFormat::R_64I,
    ElementFormat::R_64U,
];

/// Every reduction operation.
pub const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Product, Reduction::Maximum, Reduction::Minimum, Reduction::Average];

/// Returns every collective of all ranks.
pub fn operations(root: u32) -> Vec<CollectiveOperation> {
    let mut all = vec![CollectiveOperation::Broadcast { root }, CollectiveOperation::AllGather];
    for reduction in REDUCTIONS {
        all.push(CollectiveOperation::AllReduce(reduction));
        all.push(CollectiveOperation::Reduce { root, reduction });
        all.push(CollectiveOperation::ReduceScatter(reduction));
    }
    all
}

/// A driver of four devices, one stream and two buffers each.
pub struct World<D> {
    /// The driver of all ranks.
    pub driver: Arc<D>,
    /// The communicator of each rank.
    pub communicator: Vec<CommunicatorHandle>,
    /// The stream of each rank.
    pub streams: Vec<StreamHandle>,
    /// The memory that each rank sends from: [`BYTES`] bytes.
    pub send: Vec<DevicePointer>,
    /// The memory that each rank receives into: [`BYTES`] bytes.
    pub receive: Vec<DevicePointer>,
}

/// Returns the configuration of a machine with `devices` devices.
pub fn config(devices: u32) -> SimConfig {
    SimConfig { devices, memory_bytes: 16 << 20, workers: 2, ..SimConfig::default() }
}

/// Makes [`RANKS`] ranks on an uncontrolled simulator.
pub fn fast() -> World<SimDriver> {
    World::new(SimDriver::new(config(RANKS)).unwrap(), RANKS)
}

/// Makes [`RANKS`] ranks on a simulator under a schedule.
pub fn controlled(schedule: impl Schedule + 'static) -> World<SimDriver> {
    World::new(SimDriver::controlled(config(RANKS), Box::new(schedule)).unwrap(), RANKS)
}

impl<D: Driver> World<D> {
    /// Makes `ranks` ranks, one per device of the driver.
    pub fn new(driver: Arc<D>, ranks: u32) -> Self {
        let devices: Vec<u32> = (0..ranks).collect();
        let communicator = driver.communicators_create(&devices).unwrap();
        let streams = devices.iter().map(|&device| driver.stream_create(device, 0).unwrap()).collect();
        let buffers =
            || devices.iter().map(|&device| driver.memory_allocate(device, BYTES).unwrap()).collect();
        let (send, receive) = (buffers(), buffers());
        Self { communicator, streams, send, receive, driver }
    }

    /// Returns the part of a rank on its stream, from its send buffer to its receive buffer.
    #[track_caller]
    pub fn part(
        &self,
        rank: usize,
        operation: CollectiveOperation,
        format: ElementFormat,
        count: u64,
    ) -> Collective {
        Collective {
            communicator: self.communicator[rank],
            stream: self.streams[rank],
            operation,
            format,
            count,
            send: self.send[rank],
            receive: self.receive[rank],
            label: Label::here(name(operation)),
        }
    }

    /// Submits the operation on all ranks.
    #[track_caller]
    pub fn all(&self, operation: CollectiveOperation, format: ElementFormat, count: u64) -> Vec<Collective> {
        (0..self.communicator.len()).map(|rank| self.part(rank, operation, format, count)).collect()
    }

    /// Writes device memory of a rank and waits.
    pub fn write(&self, rank: usize, target: DevicePointer, bytes: &[u8]) {
        self.driver.copy_from_host(self.streams[rank], target, bytes, Label::here("write")).unwrap();
    }

    /// Reads device memory of a rank and waits.
    pub fn read(&self, rank: usize, source: DevicePointer, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.driver.copy_to_host(self.streams[rank], &mut content, source, Label::here("read")).unwrap();
        content
    }

    /// Waits for all ranks.
    pub fn synchronize(&self) -> thalweg_driver::Result<()> {
        self.streams.iter().try_for_each(|&stream| self.driver.stream_synchronize(stream))
    }
}

/// Returns the name of an operation, for messages.
pub fn name(operation: CollectiveOperation) -> &'static str {
    match operation {
        CollectiveOperation::AllReduce(_) => "all_reduce",
        CollectiveOperation::Broadcast { .. } => "broadcast",
        CollectiveOperation::Reduce { .. } => "reduce",
        CollectiveOperation::AllGather => "all_gather",
        CollectiveOperation::ReduceScatter(_) => "reduce_scatter",
        CollectiveOperation::Send { .. } => "send",
        CollectiveOperation::Receive { .. } => "receive",
    }
}

// ---- The model --------------------------------------------------------------------------------------------------------

/// Encodes a number as an element; numbers that do not fit an integer format wrap.
pub fn encode(format: ElementFormat, value: f64) -> Vec<u8> {
    let integer = value as i64;
    match format {
        ElementFormat::R_32F => (value as f32).to_le_bytes().to_vec(),
        ElementFormat::R_64F => value.to_le_bytes().to_vec(),
        ElementFormat::R_16F => f16::from_f64(value).to_le_bytes().to_vec(),
        ElementFormat::R_16BF => bf16::from_f64(value).to_le_bytes().to_vec(),
        _ => integer.to_le_bytes()[..format.bytes().unwrap() as usize].to_vec(),
    }
}

/// Encodes numbers in a format.
pub fn encode_all(format: ElementFormat, values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&value| encode(format, value)).collect()
}

/// Returns small numbers, different from rank to rank.
pub fn values(rank: u32, count: u64, salt: u64) -> Vec<f64> {
    (0..count).map(|index| ((u64::from(rank) * 5 + index * 3 + salt) % 7) as f64).collect()
}

/// Returns the result that each rank receives; `None` if it receives nothing.
pub fn expected(operation: CollectiveOperation, inputs: &[Vec<f64>]) -> Vec<Option<Vec<f64>>> {
    let ranks = inputs.len();
    let reduced = |reduction: Reduction| -> Vec<f64> {
        let column = |index: usize| inputs.iter().map(move |input| input[index]);
        let value = |index: usize| match reduction {
            Reduction::Sum => column(index).sum(),
            Reduction::Product => column(index).product(),
            Reduction::Maximum => column(index).fold(f64::MIN, f64::max),
            Reduction::Minimum => column(index).fold(f64::MAX, f64::min),
            Reduction::Average => column(index).sum::<f64>() / ranks as f64,
        };
        (0..inputs[0].len()).map(value).collect()
    };
    let at = |root: u32, value: Vec<f64>| {
        (0..ranks).map(|rank| (rank == root as usize).then(|| value.clone())).collect()
    };
    match operation {
        CollectiveOperation::AllReduce(reduction) => vec![Some(reduced(reduction)); ranks],
        CollectiveOperation::Broadcast { root } => vec![Some(inputs[root as usize].clone()); ranks],
        CollectiveOperation::Reduce { root, reduction } => at(root, reduced(reduction)),
        CollectiveOperation::AllGather => vec![Some(inputs.concat()); ranks],
        CollectiveOperation::ReduceScatter(reduction) => {
            let all = reduced(reduction);
            all.chunks(all.len() / ranks).map(|part| Some(part.to_vec())).collect()
        }
        CollectiveOperation::Send { .. } | CollectiveOperation::Receive { .. } => vec![None; ranks],
    }
}

/// Returns the number of elements that a rank sends.
pub fn sent_elements(operation: CollectiveOperation, count: u64) -> u64 {
    if matches!(operation, CollectiveOperation::ReduceScatter(_)) { count * u64::from(RANKS) } else { count }
}
