//! Programs as people write them: weights that stay, passes that allocate and then free in reverse order, batches of varying
//! sizes, buffers that another stream still uses, and now and then an `empty_cache`.

use super::MIB;

/// The operation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Allocate {
        id: usize,
        bytes: u64,
        stream: u64,
        pool: Option<usize>,
    },
    Free {
        id: usize,
        used_elsewhere: bool,
    },
    /// The other stream has finished with the block; the host sees this at its next check.
    Pass {
        id: usize,
    },
    EmptyCache,
}

/// The kind of a program.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub streams: u64,
    pub pools: usize,
    pub empties: bool,
    pub operations: usize,
}

/// Pseudo-random numbers that are the same on every machine.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

struct Writer {
    numbers: Numbers,
    kind: Kind,
    ops: Vec<Op>,
    ids: usize,
    /// The allocated blocks, the latest last.
    live: Vec<usize>,
    pending: Vec<usize>,
    /// Sizes that occur repeatedly, as the sizes of layers do.
    sizes: Vec<u64>,
}

/// Returns the program of a seed.
pub fn program(seed: u64, kind: Kind) -> Vec<Op> {
    let mut numbers = Numbers::new(seed);
    let sizes = (0..12).map(|_| size(&mut numbers)).collect();
    let (ops, live, pending) = (Vec::new(), Vec::new(), Vec::new());
    let mut writer = Writer { numbers, kind, ops, ids: 0, live, pending, sizes };
    for _ in 0..5 + writer.numbers.below(20) {
        writer.allocate();
    }
    while writer.ops.len() < kind.operations {
        writer.pass();
        if kind.empties && writer.numbers.one_in(3) {
            writer.ops.push(Op::EmptyCache);
        }
    }
    writer.ops
}

fn size(numbers: &mut Numbers) -> u64 {
    match numbers.below(10) {
        0..=2 => 1 + numbers.below(4096),
        3..=4 => 1 + numbers.below(MIB),
        5 => MIB + numbers.below(9 * MIB),
        6 => (1 + numbers.below(40)) * MIB,
        7 => 10 * MIB + numbers.below(60 * MIB),
        8 => 512 << numbers.below(18),
        _ => 2 * MIB + numbers.below(20 * MIB),
    }
}

impl Writer {
    /// Runs a forward pass and a backward pass.
    fn pass(&mut self) {
        let before = self.live.len();
        if self.numbers.one_in(3) {
            let at = self.numbers.below(self.sizes.len() as u64) as usize;
            self.sizes[at] = size(&mut self.numbers);
        }
        for _ in 0..10 + self.numbers.below(30) {
            self.allocate();
            if self.numbers.one_in(3) {
                self.free_one();
            }
        }
        // Some blocks live longer.
        while self.live.len() > before + 2 {
            self.free_last();
            if self.numbers.one_in(4) {
                self.allocate();
                self.free_last();
            }
        }
        if self.live.len() > 30 {
            self.free_one();
        }
    }

    fn allocate(&mut self) {
        let bytes = match self.numbers.one_in(3) {
            true => size(&mut self.numbers),
            false => self.sizes[self.numbers.below(self.sizes.len() as u64) as usize],
        };
        let stream = match self.numbers.one_in(3) {
            true => 7 + self.numbers.below(self.kind.streams),
            false => 7,
        };
        let pool = (self.kind.pools > 0 && self.numbers.one_in(4))
            .then(|| self.numbers.below(self.kind.pools as u64) as usize);
        self.ops.push(Op::Allocate { id: self.ids, bytes, stream, pool });
        self.live.push(self.ids);
        self.ids += 1;
        if !self.pending.is_empty() && self.numbers.one_in(3) {
            let at = self.numbers.below(self.pending.len() as u64) as usize;
            self.ops.push(Op::Pass { id: self.pending.swap_remove(at) });
        }
    }

    fn free_last(&mut self) {
        if let Some(id) = self.live.pop() {
            self.free(id);
        }
    }

    fn free_one(&mut self) {
        if !self.live.is_empty() {
            let at = self.numbers.below(self.live.len() as u64) as usize;
            let id = self.live.remove(at);
            self.free(id);
        }
    }

    fn free(&mut self, id: usize) {
        let used_elsewhere = self.kind.streams > 1 && self.numbers.one_in(6);
        self.ops.push(Op::Free { id, used_elsewhere });
        if used_elsewhere {
            self.pending.push(id);
        }
    }
}
