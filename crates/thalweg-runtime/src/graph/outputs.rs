//! Outputs that borrow from their graph, so that the compiler rejects uses after they are overwritten.
//!
//! A graph writes its outputs to the same addresses in every replay, so a buffer of an earlier replay may hold the values of a
//! later one. A [`BoundGraph`] owns the outputs, and a caller borrows them until the next replay: code that keeps a value longer
//! must clone it, or it does not compile. When the borrow ends, the outputs are released: other graphs of the pool may
//! overwrite them.

use std::ops::Deref;

use super::Graph;
use crate::{Result, Stream};

/// A graph with the result of its region, which callers borrow from one replay to the next.
///
/// ```compile_fail
/// # use thalweg_runtime::{Buffer, Stream, graph::BoundGraph};
/// # fn f(mut graph: BoundGraph<Buffer>, stream: &Stream) -> thalweg_runtime::Result<()> {
/// let first = graph.replay_on(stream)?;
/// let second = graph.replay_on(stream)?;
/// first.pointer(); // the second replay has overwritten it
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BoundGraph<T> {
    graph: Graph,
    outputs: T,
}

/// The outputs of the last replay. Dropping them releases them ([`Graph::release_outputs`]).
#[derive(Debug)]
pub struct Outputs<'a, T> {
    bound: &'a BoundGraph<T>,
}

impl Graph {
    /// Binds the region's result to the graph: from now on callers borrow it, from one replay to the next.
    pub fn bind<T>(self, outputs: T) -> BoundGraph<T> {
        BoundGraph { graph: self, outputs }
    }
}

impl<T> BoundGraph<T> {
    /// Replays as [`Graph::replay`] does, and returns the outputs: valid in the order of the current stream.
    #[track_caller]
    pub fn replay(&mut self) -> Result<Outputs<'_, T>> {
        self.graph.replay()?;
        Ok(Outputs { bound: self })
    }

    /// Replays as [`Graph::replay_on`] does, and returns the outputs: valid in the order of that stream.
    #[track_caller]
    pub fn replay_on(&mut self, stream: &Stream) -> Result<Outputs<'_, T>> {
        self.graph.replay_on(stream)?;
        Ok(Outputs { bound: self })
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph and the result of its region as separate values.
    pub fn into_parts(self) -> (Graph, T) {
        (self.graph, self.outputs)
    }
}

impl<T> Deref for Outputs<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.bound.outputs
    }
}

impl<T> Drop for Outputs<'_, T> {
    fn drop(&mut self) {
        self.bound.graph.release_outputs();
    }
}
