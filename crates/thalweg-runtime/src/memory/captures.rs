//! The captures under way, as the allocators query them: numbers of captures and nodes are the driver's own.

use thalweg_driver::{CaptureInfo, CaptureStatus, Code, GraphNodeHandle};
use thalweg_memory::{CaptureId, Captures, NodeId, StreamId, UpstreamError};

use super::upstream::{DriverUpstream, handle, upstream_error};

fn node_ids(nodes: Vec<GraphNodeHandle>) -> Vec<NodeId> {
    nodes.into_iter().map(|node| NodeId::from_raw(node.raw())).collect()
}

impl DriverUpstream {
    /// Returns the capture of a stream; `None` if it does not capture. A broken capture will not become a graph, and its nodes
    /// are gone.
    fn capture(&self, stream: StreamId) -> thalweg_driver::Result<Option<CaptureInfo>> {
        let info = match self.driver.stream_capture_info(handle(stream)) {
            Ok(info) => info,
            Err(_) if self.left_no_capture(handle(stream)) => return Ok(None),
            Err(error) => return Err(error),
        };
        match info.status {
            CaptureStatus::None => Ok(None),
            CaptureStatus::Active => Ok(Some(info)),
            CaptureStatus::Invalidated => Err(thalweg_driver::Error::new(
                Code::StreamCaptureInvalidated,
                "stream_capture_info",
                format!("the capture of {stream:?} was broken by an earlier error: end it"),
            )),
        }
    }

    /// Returns the capture of a stream, or an error if it does not capture.
    fn capture_of_capturing(&self, stream: StreamId) -> Result<CaptureInfo, UpstreamError> {
        self.capture(stream).map_err(upstream_error)?.ok_or_else(|| {
            let detail = format!("{stream:?} does not capture");
            upstream_error(thalweg_driver::Error::new(Code::IllegalState, "stream_capture_info", detail))
        })
    }
}

impl Captures for DriverUpstream {
    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, UpstreamError> {
        let capture = self.capture(stream).map_err(upstream_error)?;
        Ok(capture.map(|info| CaptureId::from_raw(info.id)))
    }

    fn terminals(&self, stream: StreamId) -> Result<Vec<NodeId>, UpstreamError> {
        let info = self.capture_of_capturing(stream)?;
        Ok(node_ids(info.dependencies))
    }

    fn predecessors(&self, stream: StreamId, node: NodeId) -> Result<Vec<NodeId>, UpstreamError> {
        let graph = self.capture_of_capturing(stream)?.graph.expect("a capture under way has a graph");
        let node = GraphNodeHandle::from_raw(node.raw());
        self.driver.graph_node_predecessors(graph, node).map(node_ids).map_err(upstream_error)
    }
}
