//! Random programs over captured graphs: forks and joins, memory of the graph, an input that changes, pinned memory.
//!
//! The captured region is a random program of its own ([`World`]) on three streams that fork and join. The buffers that remain at
//! its end are the graph's outputs. They are compared after replays of this graph and, since their pool keeps them, of others;
//! between these, other programs use the device. A graph whose input was dropped must refuse to be replayed.

use std::cell::RefCell;
use std::rc::Rc;

use thalweg_runtime::graph::OverwritePolicy;
use thalweg_runtime::{CaptureMode, CaptureOptions, Graph, GraphPool, Result, Stream};

use crate::world::{Held, INPUT, Mark, World, or_short_of_memory};

/// A graph, with the memory that it writes and reads.
struct Captured {
    graph: Graph,
    outputs: Vec<Held>,
    input: Held,
    /// The content of the input at the last replay.
    seen: Option<u32>,
    /// The last replay of any graph of its pool.
    last: Rc<RefCell<Option<Mark>>>,
}

/// A random program that captures graphs and replays them.
pub struct Studio {
    pub world: World,
    /// The streams that capture; nothing else uses them.
    streams: [Stream; 4],
    graphs: Vec<Captured>,
}

impl Studio {
    pub fn new(world: World) -> Result<Self> {
        let new = || Stream::new(&world.device);
        let streams = [new()?, new()?, new()?, new()?];
        Ok(Self { world, streams, graphs: Vec::new() })
    }

    pub fn step(&mut self) -> Result<()> {
        match self.world.below(12) {
            0 => self.capture(),
            1..=3 => self.replay(),
            4 => self.write_input(),
            6 if self.world.below(3) == 0 => self.look_again(),
            5 if self.world.below(2) == 0 => self.drop_one(),
            _ => self.world.step(),
        }
    }

    fn any(&mut self) -> Option<usize> {
        (!self.graphs.is_empty()).then(|| self.world.below(self.graphs.len()))
    }

    fn drop_one(&mut self) -> Result<()> {
        if let Some(place) = self.any() {
            let mut captured = self.graphs.swap_remove(place);
            // The graph's last replay is under way, and nothing has waited for it by reading its outputs.
            if self.world.below(2) == 0 {
                self.launch(&mut captured)?;
            }
            let Captured { graph, outputs, input, .. } = captured;
            if self.world.below(8) == 0 {
                drop(input);
                let stream = self.world.any_stream();
                // If memory was short, the region may not have used the input.
                let uses_it = !graph.contract().inputs().is_empty();
                let replayed = graph.replay_on(&stream);
                assert!(!uses_it || replayed.is_err(), "a graph is replayed on an input that is gone");
                return Ok(());
            }
            // In any order.
            if self.world.below(2) == 0 {
                drop(outputs);
                drop(graph);
            } else {
                drop(graph);
                drop(outputs);
            }
            // A wait for the input is a wait for the replay; other programs have to find out on their own.
            if self.world.below(2) == 0 {
                self.world.held.push(input);
            }
            // Replays may be under way.
            if self.world.below(2) == 0 {
                self.world.device.empty_cache()?;
            }
        }
        Ok(())
    }

    fn capture(&mut self) -> Result<()> {
        if self.graphs.len() >= 3 {
            self.drop_one()?;
        }
        let home = self.world.any_stream();
        let Some(mut input) = self.world.new_held(&home, 3000)? else { return Ok(()) };
        let place = if self.world.below(2) == 0 { self.any() } else { None };
        let shared = place.map(|place| &self.graphs[place]);
        let (pool, last) = match shared {
            Some(other) => (Some(other.graph.pool().clone()), Rc::clone(&other.last)),
            None => {
                let pool = GraphPool::with_policy(&self.world.device, OverwritePolicy::Preserve);
                (Some(pool), Rc::default())
            }
        };
        let mode = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed][self.world.below(3)];
        let streams = self.streams.to_vec();
        // From the end of this function on, only the graph owns the pinned memory.
        let pinned = self.world.new_pinned()?;
        let options =
            CaptureOptions { pool, mode, stream: Some(streams[0].clone()), ..CaptureOptions::default() };
        let bystander = self.world.any_stream();
        let seed = self.world.random();
        let number = 1 + self.world.new_value() % 500;
        let value = std::mem::replace(&mut input.value, INPUT);
        let mut inside = World::new(&self.world.device, streams.clone(), 1024 + number, seed);
        (inside.is_captured, inside.waits) = (true, false);
        inside.sizes = &[1500, 3000];
        let outer = &mut self.world;
        let device = outer.device.clone();
        let (graph, (mut input, mut outputs)) = Graph::capture(&device, options, || {
            streams[1..].iter().try_for_each(|stream| stream.wait_stream(&streams[0]))?;
            let marked = std::mem::take(&mut input.touched);
            for step in 0..32 {
                match step {
                    3 => input = copy_input(&mut inside, input)?,
                    5 => copy_pinned(&mut inside, &streams[0], &pinned)?,
                    7 => allocate_beside(outer, &bystander)?,
                    _ => or_short_of_memory(inside.step())?,
                }
            }
            input.touched = marked;
            streams[1..].iter().try_for_each(|stream| streams[0].wait_stream(stream))?;
            Ok((input, std::mem::take(&mut inside.held)))
        })?;
        input.value = value;
        outputs.iter_mut().for_each(|output| output.touched.forget());
        self.graphs.push(Captured { graph, outputs, input, seen: None, last });
        Ok(())
    }

    fn replay(&mut self) -> Result<()> {
        let Some(place) = self.any() else { return Ok(()) };
        let mut captured = self.graphs.swap_remove(place);
        self.launch(&mut captured)?;
        let read = if self.world.below(3) > 0 { self.read_outputs(&mut captured) } else { Ok(()) };
        self.graphs.push(captured);
        read
    }

    fn launch(&mut self, captured: &mut Captured) -> Result<()> {
        let stream = self.world.any_stream();
        let last = captured.last.borrow_mut().take();
        last.iter().try_for_each(|mark| self.world.order(&stream, mark))?;
        self.world.order_to_read(&stream, &captured.input)?;
        {
            let _current = stream.make_current();
            captured.graph.replay()?;
        }
        captured.input.used(&stream, false)?;
        let mark = Mark::of(&stream)?;
        *captured.last.borrow_mut() = Some(mark);
        captured.seen = Some(captured.input.value);
        Ok(())
    }

    /// Checks that the outputs of a graph have the values of its last replay, whatever was replayed since.
    fn look_again(&mut self) -> Result<()> {
        let Some(place) = self.any() else { return Ok(()) };
        let mut captured = self.graphs.swap_remove(place);
        let read = self.read_outputs(&mut captured);
        self.graphs.push(captured);
        read
    }

    fn read_outputs(&mut self, captured: &mut Captured) -> Result<()> {
        let (Some(seen), Some(mark)) = (captured.seen, captured.last.borrow().clone()) else { return Ok(()) };
        let reader = self.world.any_stream();
        self.world.order(&reader, &mark)?;
        for output in &mut captured.outputs {
            let expected = if output.value == INPUT { seen } else { output.value };
            let read = output.check(&reader, expected);
            output.used(&reader, false)?;
            read?;
        }
        Ok(())
    }

    /// Changes the input in place.
    fn write_input(&mut self) -> Result<()> {
        let Some(place) = self.any() else { return Ok(()) };
        let mut captured = self.graphs.swap_remove(place);
        captured.input = self.world.rewrite(captured.input)?;
        self.graphs.push(captured);
        Ok(())
    }
}

/// Makes a captured buffer a copy of the input.
fn copy_input(inside: &mut World, input: Held) -> Result<Held> {
    let home = inside.any_stream();
    let Some(target) = inside.new_held(&home, 3000)? else { return Ok(input) };
    let (input, target) = inside.copy_held(input, target)?;
    inside.held.push(target);
    Ok(input)
}

/// Makes a captured buffer a copy of pinned memory.
fn copy_pinned(
    inside: &mut World,
    stream: &Stream,
    pinned: &(thalweg_runtime::PinnedBuffer, u32),
) -> Result<()> {
    let Some(mut target) = inside.new_held(stream, 1500)? else { return Ok(()) };
    let copied = inside.overwrite(stream, &pinned.0, pinned.1, &mut target);
    target.used(stream, true)?;
    inside.held.push(target);
    copied
}

/// Allocates on a stream that takes no part in the capture.
fn allocate_beside(outer: &mut World, bystander: &Stream) -> Result<()> {
    let held = outer.new_held(bystander, 3000)?;
    outer.held.extend(held);
    Ok(())
}
