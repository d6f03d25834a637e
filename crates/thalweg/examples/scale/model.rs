//! The time of a training step on many GPUs, from times measured on one and on two.
//!
//! A step is two queues, as on a GPU: the computation, and the collectives of the group's stream, one after the other. A bucket
//! or a unit is sent when the computation has reached it, and the computation waits when it needs a result.

/// Times of a collective on two GPUs: bytes of the whole tensor, and microseconds.
pub type Table = [(f64, f64)];

/// Two H100 of one host, 2026-11-23.
pub const ALL_REDUCE: &Table =
    &[(1e6, 21.7), (4.19e6, 33.9), (16.8e6, 78.3), (67.1e6, 252.4), (268.4e6, 897.0), (1073.7e6, 3271.0)];
pub const ALL_GATHER: &Table =
    &[(1e6, 23.8), (4.19e6, 26.4), (16.8e6, 56.5), (67.1e6, 162.0), (268.4e6, 554.0), (1073.7e6, 1996.9)];
pub const REDUCE_SCATTER: &Table =
    &[(1e6, 21.7), (4.19e6, 24.4), (16.8e6, 56.5), (67.1e6, 166.6), (268.4e6, 565.1), (1073.7e6, 2033.1)];

/// Microseconds of a launch on the host: one H100, 2026-11-22.
pub const LAUNCH: f64 = 2.9;

/// Microseconds of a collective's call on the host: two H100, 2026-11-23, the mean of the three at 1 MiB.
pub const CALL: f64 = 22.3;

/// The machine around the GPUs, which was not measured.
pub struct Assumed {
    /// The number of GPUs of a host, each with its own link to the network.
    pub per_host: f64,
    /// Bytes per microsecond over such a link.
    pub link: f64,
    /// Microseconds from one GPU of a host to the next, within a collective.
    pub hop: f64,
    /// Microseconds from host to host, within a collective.
    pub host_hop: f64,
}

pub const ASSUMED: Assumed = Assumed { per_host: 8.0, link: 45_000.0, hop: 1.5, host_hop: 8.0 };

/// The route of a collective's messages.
#[derive(Clone, Copy)]
pub enum Collective {
    /// Up a tree of hosts and down again.
    AllReduce,
    /// Around a ring of all ranks.
    AllGather,
    /// Around a ring of all ranks.
    ReduceScatter,
}

/// Returns the time of a size, between those that were measured.
fn interpolated(table: &Table, bytes: f64) -> f64 {
    let (first, last) = (table[0], table[table.len() - 1]);
    if bytes <= first.0 {
        return first.1;
    }
    let above = table.windows(2).find(|pair| bytes <= pair[1].0);
    let Some(&[(low, before), (high, after)]) = above else { return last.1 * bytes / last.0 };
    before + (after - before) * (bytes - low) / (high - low)
}

/// Returns the microseconds of an all-reduction between hosts, of which each GPU has `bytes` bytes.
pub fn between_hosts(bytes: f64, hosts: f64) -> f64 {
    if hosts < 2.0 {
        return 0.0;
    }
    2.0 * (bytes * (hosts - 1.0) / hosts / ASSUMED.link + hosts.log2() * ASSUMED.host_hop)
}

impl Collective {
    /// Returns the microseconds of a collective over a tensor of `bytes` bytes on `ranks` GPUs.
    pub fn time(self, bytes: f64, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        if ranks < 2.0 {
            return 0.0;
        }
        let Assumed { per_host, link, hop, host_hop } = ASSUMED;
        let (table, passes) = match self {
            Self::AllReduce => (ALL_REDUCE, 2.0),
            Self::AllGather => (ALL_GATHER, 1.0),
            Self::ReduceScatter => (REDUCE_SCATTER, 1.0),
        };
        // On two GPUs half of the tensor passes a link in each direction, on n of them (n - 1) / n.
        let within = interpolated(table, bytes * 2.0 * (ranks - 1.0) / ranks);
        let hosts = (ranks / per_host).ceil();
        let of_host = ranks.min(per_host);
        let between = passes * bytes * (hosts - 1.0) / hosts / (per_host * link);
        let latency = match self {
            Self::AllReduce => 2.0 * (hosts.log2() * host_hop + (of_host - 2.0) * hop),
            Self::AllGather | Self::ReduceScatter => (hosts - 1.0) * host_hop + (ranks - hosts - 1.0) * hop,
        };
        within.max(between) + latency
    }
}

/// Two queues.
#[derive(Default)]
struct Queues {
    computation: f64,
    collectives: f64,
    /// The time in which collectives ran.
    busy: f64,
}

impl Queues {
    /// Queues a collective after the computation so far, and returns the time at which it is done.
    fn send(&mut self, time: f64) -> f64 {
        self.collectives = self.collectives.max(self.computation) + time;
        self.busy += time;
        self.collectives
    }

    fn wait(&mut self, until: f64) {
        self.computation = self.computation.max(until);
    }
}

/// The computation of a step, in microseconds.
#[derive(Clone, Copy)]
pub struct Step {
    pub forward: f64,
    pub backward: f64,
    pub optimizer: f64,
    /// The slowdown of the computation while a collective runs, as a share of the collective's time.
    pub contention: f64,
}

impl Step {
    /// Returns the time of a data parallel step with these buckets, in this order.
    pub fn data_parallel(&self, buckets: &[f64], ranks: u32) -> f64 {
        let mut queues = Queues { computation: self.forward, ..Queues::default() };
        let all: f64 = buckets.iter().sum();
        for bytes in buckets {
            queues.computation += self.backward * bytes / all;
            queues.send(Collective::AllReduce.time(*bytes, ranks));
        }
        queues.wait(queues.collectives);
        queues.computation + self.optimizer + self.contention * queues.busy
    }

    /// Returns the time of a fully sharded step of equal units, one gathered ahead, with full parameters of `gathered` bytes and
    /// gradients of `reduced` bytes; over `ranks` GPUs, with `replicas` replicas.
    pub fn sharded(&self, units: u32, [gathered, reduced]: [f64; 2], ranks: u32, replicas: u32) -> f64 {
        let gather = Collective::AllGather.time(gathered, ranks);
        let scatter = Collective::ReduceScatter.time(reduced, ranks);
        let replicate = between_hosts(reduced / f64::from(ranks), f64::from(replicas));
        // The replicas' group has its own stream.
        let mut replicated: f64 = 0.0;
        let (forward, backward) = (self.forward / f64::from(units), self.backward / f64::from(units));
        let mut queues = Queues::default();
        let mut ready = queues.send(gather);
        for unit in 0..units {
            let next = if unit + 1 < units { queues.send(gather) } else { ready };
            queues.wait(ready);
            queues.computation += forward;
            ready = next;
        }
        ready = queues.send(gather);
        for unit in 0..units {
            let next = if unit + 1 < units { queues.send(gather) } else { ready };
            queues.wait(ready);
            queues.computation += backward;
            replicated = replicated.max(queues.send(scatter)) + replicate;
            ready = next;
        }
        queues.wait(replicated);
        // The optimizer has this rank's rows.
        let optimizer = self.optimizer / f64::from(ranks);
        queues.computation + optimizer + self.contention * queues.busy
    }
}
