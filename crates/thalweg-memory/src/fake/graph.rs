//! Captures of the fake: graphs that grow by commands and joins, as those of capturing streams do.
//!
//! A capture begins on one stream and spreads by [`join`](FakeUpstream::capture_join): a stream that joins one of its streams
//! becomes part of it. Each stream of a capture has *terminals*, the nodes that its next command will depend on. As with a
//! driver, a join is not a node.

use std::collections::{BTreeMap, BTreeSet};

use super::FakeUpstream;
use crate::ids::StreamId;
use crate::upstream::{CaptureId, Captures, NodeId, UpstreamError};

/// All captures that are under way.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// The capturing streams: their capture, and their terminals.
    streams: BTreeMap<StreamId, (CaptureId, BTreeSet<NodeId>)>,
    predecessors: BTreeMap<NodeId, Vec<NodeId>>,
    next: u64,
}

impl Graphs {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn are_under_way(&self) -> bool {
        !self.streams.is_empty()
    }
}

impl FakeUpstream {
    /// Begins a capture on `stream`. Until the last capture ends, touching an event is a breach of the contract, and panics.
    ///
    /// # Panics
    /// If the stream is capturing already.
    pub fn begin_capture(&self, stream: StreamId) -> CaptureId {
        let graphs = &mut self.inner.lock().graphs;
        let capture = CaptureId::from_raw(graphs.next());
        let before = graphs.streams.insert(stream, (capture, BTreeSet::new()));
        assert!(before.is_none(), "{stream:?} captures already");
        capture
    }

    /// Adds a command to the graph of the capturing `stream`.
    ///
    /// # Panics
    /// If the stream is not capturing.
    pub fn capture_command(&self, stream: StreamId) -> NodeId {
        let graphs = &mut self.inner.lock().graphs;
        let node = NodeId::from_raw(graphs.next());
        let (_, terminals) = graphs.streams.get_mut(&stream).expect("the stream captures");
        let before = std::mem::replace(terminals, BTreeSet::from([node]));
        graphs.predecessors.insert(node, before.into_iter().collect());
        node
    }

    /// Makes later work of `stream` depend on all work so far of `other`, which captures.
    ///
    /// # Panics
    /// If `other` is not capturing, or `stream` captures into another graph.
    pub fn capture_join(&self, stream: StreamId, other: StreamId) {
        let graphs = &mut self.inner.lock().graphs;
        let (capture, after) = graphs.streams.get(&other).cloned().expect("the other stream captures");
        let (own, terminals) = graphs.streams.entry(stream).or_insert((capture, BTreeSet::new()));
        assert_eq!(*own, capture, "streams of two captures do not join");
        terminals.extend(after);
    }

    /// Ends a capture on all its streams.
    pub fn end_capture(&self, capture: CaptureId) {
        self.inner.lock().graphs.streams.retain(|_, (one, _)| *one != capture);
    }
}

impl Captures for FakeUpstream {
    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, UpstreamError> {
        self.call(
            |calls| &mut calls.captures,
            |inner| Ok(inner.graphs.streams.get(&stream).map(|(capture, _)| *capture)),
        )
    }

    fn terminals(&self, stream: StreamId) -> Result<Vec<NodeId>, UpstreamError> {
        self.call(
            |calls| &mut calls.captures,
            |inner| {
                let (_, terminals) = inner.graphs.streams.get(&stream).expect("the stream captures");
                Ok(terminals.iter().copied().collect())
            },
        )
    }

    fn predecessors(&self, _stream: StreamId, node: NodeId) -> Result<Vec<NodeId>, UpstreamError> {
        self.call(
            |calls| &mut calls.predecessors,
            |inner| Ok(inner.graphs.predecessors.get(&node).cloned().expect("the node is of a graph")),
        )
    }
}
