//! Stream-ordered memory that graphs allocate and free.
//!
//! On a capturing stream, an allocation becomes a node and so does a free. The address is known at once and is the same in
//! every launch. In the simulator the memory is taken at the capture and belongs to the graph and its executables, until
//! the last of them is gone and its launches are over: the nodes only define an order, and move no bytes. (A GPU gives
//! graphs memory from a pool of its own, and shares it between graphs that do not run at once.)
//!
//! Invariant: an address of a graph is an allocation of a pool for as long as the graph is listed here.

use thalweg_driver::{Code, GraphNodeKind};

use crate::executor::command::{Body, Frontier, Origin};
use crate::objects::graph_memory::{GraphMemory, Owned};
use crate::refusal::{CallResult, Refusal};
use crate::schedules::Actor;
use crate::state::MachineState;

impl MachineState {
    /// Turns a new allocation into a node if the stream captures. An allocation that cannot be a node is freed.
    pub(crate) fn capture_allocation(&mut self, stream: u64, address: u64) -> CallResult<()> {
        let captured = self.stream_id(stream).and_then(|own| match self.graph_of_capture(own) {
            Some(graph) => self.capture_node(own, GraphNodeKind::Allocate, None).map(|()| Some(graph)),
            None => Ok(None),
        });
        match captured {
            Ok(None) => Ok(()),
            Ok(Some(graph)) => {
                let memory = self.graph_memory.entry(graph).or_default();
                // The graph itself is the first holder.
                memory.holders = memory.holders.max(1);
                memory.allocations.insert(address, Owned::default());
                Ok(())
            }
            Err(refusal) => {
                self.pools.freed(address, &mut self.memory);
                Err(refusal)
            }
        }
    }

    /// Captures a free.
    pub(crate) fn capture_free(&mut self, own: u64, address: u64) -> CallResult<()> {
        self.check_capture(own)?;
        let graph = self.graph_of_capture(own).expect("the stream captures");
        let is_there = self
            .graph_memory
            .get(&graph)
            .and_then(|memory| memory.allocations.get(&address))
            .is_some_and(|owned| !owned.freed_by_a_node);
        if !is_there {
            return Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} was not allocated in this capture, or was freed in it already"),
            ));
        }
        self.capture_node(own, GraphNodeKind::Free, None)?;
        let memory = self.graph_memory.get_mut(&graph).expect("found above");
        memory.allocations.get_mut(&address).expect("found above").freed_by_a_node = true;
        Ok(())
    }

    /// Frees a graph's memory outside of captures. Returns whether the address is memory of a graph.
    pub(crate) fn free_of_graph(&mut self, address: u64) -> CallResult<bool> {
        let owned = self.graph_memory.values_mut().find_map(|memory| memory.allocations.get_mut(&address));
        match owned {
            None => Ok(false),
            Some(owned) if owned.is_live => {
                owned.is_live = false;
                Ok(true)
            }
            Some(_) => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} belongs to a graph, and no launch of it has left it allocated"),
            )),
        }
    }

    /// Adds an executable of the graph as a holder of its memory, and returns the key of that memory, if there is any.
    pub(crate) fn hold_graph_memory(&mut self, graph: u64) -> Option<u64> {
        self.graph_memory.get_mut(&graph)?.holders += 1;
        Some(graph)
    }

    /// Removes a dropped graph or executable from the holders of the graph's memory. When the last holder is removed, the memory
    /// is freed as soon as all launches are over.
    pub(crate) fn let_go_of_graph_memory(&mut self, graph: u64) {
        let Some(memory) = self.graph_memory.get_mut(&graph) else { return };
        memory.holders -= 1;
        if memory.holders > 0 {
            return;
        }
        let GraphMemory { allocations, launches, .. } =
            self.graph_memory.remove(&graph).expect("found above");
        // The schedule does not choose when the free happens: it follows the end of the last launch.
        let origin = Origin { level: 0, actor: Actor::Stream(0) };
        for address in allocations.into_keys() {
            let free = self.executor.add(Body::PoolFree(address), origin, launches.iter().copied());
            self.pools.set_freeing(address, Frontier::from_slice(&[free]));
        }
    }

    /// Records a launch of the graph, which ends with `launch`.
    pub(crate) fn launched_graph_memory(&mut self, graph: u64, launch: &Frontier) {
        let Some(memory) = self.graph_memory.get_mut(&graph) else { return };
        self.executor.prune(&mut memory.launches);
        memory.launches.extend_from_slice(launch);
        for owned in memory.allocations.values_mut() {
            owned.is_live = !owned.freed_by_a_node;
        }
    }
}
