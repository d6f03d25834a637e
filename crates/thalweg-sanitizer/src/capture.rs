//! Captures and graph launches.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{Access, BlockKind, CaptureInfo, Driver, GraphHandle, GraphNodeHandle};

use super::clock::Clock;
use super::finding::FindingKind;
use super::graph::{Captured, Executable, Graph, Node, NodeWork, Owner, chains};
use super::model::{Actor, HostId, Model, Record, StreamId};
use super::shadow::{Mark, MarkKind};
use super::site::SiteId;
use super::space::ELSEWHERE;
use super::touch::{Manner, Troubles, add, trouble};

/// The kind of a captured call.
#[derive(Clone, Copy, Debug)]
pub(super) enum CapturedCall<'a> {
    Accesses(&'a [Access]),
    Allocate { start: u64, bytes: u64 },
    Free { start: u64 },
    Record { event: u64 },
    Wait { event: u64 },
    Bodies(&'a [GraphHandle]),
}

impl Model {
    /// Notes that a capture begins on a stream.
    pub(super) fn begin_capture(&mut self, capture: u64, origin: u64) {
        self.captures.push(Graph { capture, origin, ..Graph::default() });
    }

    /// Notes that launches of the capture's graph may use memory of other captures, for which the program is responsible.
    pub(super) fn capture_vouched(&mut self, capture: u64) {
        if capture != 0 {
            self.vouched.insert(self.families.of(capture));
        }
    }

    /// Ends the capture that began on a stream, and returns its graph.
    pub(super) fn end_capture(&mut self, origin: u64) -> Option<Graph> {
        let position = self.captures.iter().position(|capture| capture.origin == origin)?;
        let graph = self.captures.swap_remove(position);
        self.vouched.remove(&graph.capture);
        Some(graph)
    }

    /// Notes that a call became a node, if the driver has a new node.
    pub(super) fn captured(
        &mut self,
        driver: &dyn Driver,
        before: &CaptureInfo,
        after: &CaptureInfo,
        site: SiteId,
        call: CapturedCall<'_>,
    ) {
        let Some(position) = self.captures.iter().position(|capture| capture.capture == before.id) else {
            return;
        };
        let mut graph = std::mem::take(&mut self.captures[position]);
        let new = after.dependencies.iter().find(|&handle| !graph.handles.contains_key(handle)).copied();
        if let Some(handle) = new {
            let predecessors = before
                .dependencies
                .iter()
                .map(|&node| learn(driver, before.graph, &mut graph, node))
                .collect();
            let work = self.work(graph.capture, site, call);
            let within = self.sites.within();
            graph.push(handle, Node { predecessors, site, within, work });
        }
        self.captures[position] = graph;
    }

    pub(super) fn work(&mut self, capture: u64, site: SiteId, call: CapturedCall<'_>) -> NodeWork {
        let accesses = match call {
            CapturedCall::Accesses(accesses) => accesses,
            CapturedCall::Allocate { start, bytes } => return NodeWork::Allocate { start, bytes },
            CapturedCall::Free { start } => return NodeWork::Free { start },
            CapturedCall::Record { event } | CapturedCall::Wait { event } => {
                self.events_of_graphs.insert(event);
                return match call {
                    CapturedCall::Record { .. } => NodeWork::Record { event },
                    _ => NodeWork::Wait { event },
                };
            }
            CapturedCall::Bodies(bodies) => {
                self.families.add(capture, bodies);
                return NodeWork::Bodies(bodies.into());
            }
        };
        let family = self.families.of(capture);
        let is_vouched = self.vouched.contains(&family);
        let accesses = accesses.iter().filter(|access| access.bytes > 0).map(|&access| {
            self.inspect(&access, site);
            let none = Owner { block: 0, serial: 0, is_kept: true };
            let owner = self.owner(access.start).map_or(none, |owner| {
                let is_kept = self.blocks.get(owner.block).is_some_and(|block| {
                    let is_of_graphs = block.capture != 0 || block.kind == BlockKind::GraphOutput;
                    self.families.of(block.capture) == family || is_vouched && is_of_graphs
                });
                Owner { is_kept, ..owner }
            });
            Captured { access, owner }
        });
        NodeWork::Accesses(accesses.collect())
    }

    /// Checks whether the memory of an access exists and belongs to the caller, when the access is captured.
    fn inspect(&mut self, access: &Access, site: SiteId) {
        let mut troubles = Troubles::new();
        let mut holder = None;
        for piece in self.space.translate(access.start, access.bytes) {
            if piece.object == ELSEWHERE {
                if self.space.departed(piece.address).is_some() {
                    let kind = FindingKind::UseAfterFree;
                    add(&mut troubles, trouble(kind, None, 0, &piece, piece.start, piece.end));
                }
                continue;
            }
            let (blocks, object) = (&self.blocks, self.space.object(piece.object));
            if !object.has_blocks {
                continue;
            }
            object.shadow.look(piece.start, piece.end, |first, end, state| {
                let block = *holder.get_or_insert(state.block);
                let kind = if block != state.block || block == 0 {
                    FindingKind::OutOfBounds
                } else if blocks.is_freed(block) {
                    FindingKind::UseAfterFree
                } else {
                    return;
                };
                add(&mut troubles, trouble(kind, None, state.block, &piece, first, end));
            });
        }
        let number = self.number + 1;
        let strand = self.hosts[0].strand;
        let Access { start, bytes, mode, .. } = *access;
        let mark = Mark { start, bytes, mode, ..Mark::new(strand, number, site, MarkKind::Command) };
        for trouble in troubles {
            self.report(&trouble, &mark, &Clock::default());
        }
    }

    /// Notes that a graph was instantiated under a new handle.
    pub(super) fn instantiated(&mut self, graph: u64, executable: u64) {
        let Some(graph) = self.graphs.get(&graph) else { return };
        let (capture, (nodes, names)) = (graph.capture, self.in_place(graph));
        let (places, count) = chains(&nodes);
        let actor = Actor::Chain { graph: executable, stream: 0 };
        let strands = (0..count).map(|_| self.strand(actor)).collect();
        let (places, last) = (places.into(), Clock::default());
        self.executables.insert(executable, Executable { capture, nodes, names, places, strands, last });
    }

    /// Drops an executable.
    pub(super) fn executable_destroyed(&mut self, handle: u64) {
        let Some(executable) = self.executables.remove(&handle) else { return };
        for strand in executable.strands {
            self.retire(strand, executable.last.of(strand));
        }
    }

    /// Notes a launch of an executable on a stream.
    pub(super) fn launched(&mut self, handle: u64, id: StreamId, host: HostId, launch: SiteId) {
        self.submit(id, host);
        let Some(mut executable) = self.executables.remove(&handle) else { return };
        self.launched.insert(executable.capture);
        let mut entry = self.streams[id as usize].clock.clone();
        entry.join(&executable.last);
        let mut ends: SmallVec<[Option<Clock>; 2]> = executable.strands.iter().map(|_| None).collect();
        let mut awaited: FxHashMap<u32, Clock> = FxHashMap::default();
        let places = Arc::clone(&executable.places);
        for (index, node) in executable.nodes.iter().enumerate() {
            let place = places[index];
            let strand = executable.strands[place.chain as usize];
            self.actors[strand.index()] = Actor::Chain { graph: handle, stream: id };
            let mut clock = ends[place.chain as usize].take().unwrap_or_else(|| entry.clone());
            for before in &node.predecessors {
                if let Some(before) = awaited.get(before) {
                    clock.join(before);
                }
            }
            if let NodeWork::Wait { event } = node.work
                && let Some(Record::Live(record, _)) = self.events.get(&event)
            {
                clock.join(record);
            }
            let number = self.next();
            clock.learn(strand, number);
            if let NodeWork::Record { event } = node.work {
                self.events.insert(event, Record::Live(clock.clone(), id));
            }
            let mark = Mark::new(strand, number, node.site, MarkKind::Command);
            let mark = Mark { within: node.within, launch, ..mark };
            self.run_node(node, &clock, mark);
            if place.is_awaited {
                awaited.insert(index as u32, clock.clone());
            }
            ends[place.chain as usize] = Some(clock);
        }
        let stream = &mut self.streams[id as usize];
        stream.clock.join(&entry);
        for end in ends.iter().flatten() {
            stream.clock.join(end);
        }
        executable.last.clone_from(&stream.clock);
        self.executables.insert(handle, executable);
    }

    fn run_node(&mut self, node: &Node, clock: &Clock, mark: Mark) {
        match &node.work {
            NodeWork::Accesses(accesses) => {
                for Captured { access, owner } in accesses {
                    if self.is_stale(access, owner, &mark, clock) {
                        continue;
                    }
                    self.touch(clock, mark, access, Manner::Launched);
                }
            }
            &NodeWork::Allocate { start, bytes } => self.given_out(clock, mark, start, bytes),
            &NodeWork::Free { start } => self.taken_back(clock, mark, start),
            // They touch nothing, and have ordered already.
            NodeWork::Record { .. } | NodeWork::Wait { .. } => {}
            NodeWork::Bodies(_) => unreachable!("an executable has its bodies in their places"),
        }
    }

    /// Returns whether the memory that a node was captured with now has another owner, and reports it.
    fn is_stale(&mut self, access: &Access, owner: &Owner, mark: &Mark, clock: &Clock) -> bool {
        if owner.is_kept {
            return false;
        }
        let now = self.owner(access.start);
        let is_there = now
            .is_some_and(|now| now.serial == owner.serial && (owner.block == 0 || now.block == owner.block));
        if is_there && !self.blocks.is_freed(owner.block) {
            return false;
        }
        let mark = Mark { start: access.start, bytes: access.bytes, mode: access.mode, ..*mark };
        for piece in self.space.translate(access.start, access.bytes).iter().take(1) {
            let kind = FindingKind::StaleGraphInput;
            let found = trouble(kind, None, owner.block, piece, piece.start, piece.end);
            self.report(&found, &mark, clock);
        }
        true
    }
}

/// Returns the index of a node. A node that was captured past the sanitizer is learned from the driver, with all its
/// dependencies.
fn learn(driver: &dyn Driver, handle: Option<GraphHandle>, graph: &mut Graph, node: GraphNodeHandle) -> u32 {
    let mut stack: Vec<(GraphNodeHandle, Option<Vec<GraphNodeHandle>>)> = vec![(node, None)];
    while let Some((node, predecessors)) = stack.pop() {
        if graph.handles.contains_key(&node) {
            continue;
        }
        match predecessors {
            None => {
                let found = handle.and_then(|graph| driver.graph_node_predecessors(graph, node).ok());
                let found = found.unwrap_or_default();
                stack.push((node, Some(found.clone())));
                stack.extend(found.into_iter().map(|before| (before, None)));
            }
            Some(found) => {
                let predecessors = found.iter().map(|before| graph.handles[before]).collect();
                let work = NodeWork::Accesses(Vec::new());
                graph.push(node, Node { predecessors, site: 0, within: 0, work });
            }
        }
    }
    graph.handles[&node]
}
