//! What a device that is nearly full still gives, with pages of large requests as large as they are by default.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{AllocationError, Block, DeviceAllocator, Settings};

use crate::harness::stream;

const MIB: u64 = 1 << 20;

struct World {
    allocator: Arc<DeviceAllocator>,
}

impl World {
    fn new(mebibytes: u64, settings: &str) -> Self {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(mebibytes * MIB));
        let settings = Settings::parse(settings).expect("these are settings");
        Self { allocator: DeviceAllocator::new(upstream, settings) }
    }

    fn ask(&self, bytes: u64) -> Result<Block, AllocationError> {
        self.allocator.allocate(bytes, stream(1))
    }

    fn allocate(&self, mebibytes: u64) -> Block {
        self.ask(mebibytes * MIB).expect("there is room")
    }
}

/// The lowest place lacks two pages, the one behind it only one; and there is memory for one.
#[test]
fn growth_goes_where_the_fewest_pages_are_missing() {
    let world = World::new(40, "");
    let [first, middle, last] = [8, 16, 12].map(|mebibytes| world.allocate(mebibytes));
    drop(middle);
    world.allocator.empty_cache().expect("no capture is under way");
    let small: Vec<Block> = (0..8).map(|_| world.allocate(1)).collect();
    let served = world.allocate(12);
    assert_eq!(served.address(), last.address() + 12 * MIB);
    drop((first, last, small));
}
