//! What the referee makes of executables that change, case by case.

use thalweg_device::check::FindingKind::{self, Race, StaleGraphInput, UseAfterFree};
use thalweg_device::{Access, DevicePointer, Driver, GraphExecHandle, GraphHandle, GraphNodeHandle};

use super::referee_support::{BYTES, World, verdict};

type Case = (&'static str, &'static [FindingKind], fn(&World));

/// A graph that one kernel is, on A.
fn reading(w: &World, pointer: DevicePointer) -> GraphHandle {
    w.graph(w.a, || w.read(w.a, pointer))
}

fn writing(w: &World, pointer: DevicePointer) -> GraphHandle {
    w.graph(w.a, || w.write(w.a, pointer))
}

fn instantiate(w: &World, graph: GraphHandle) -> GraphExecHandle {
    w.driver.graph_instantiate(graph, 0).unwrap()
}

fn update(w: &World, exec: GraphExecHandle, graph: GraphHandle) {
    assert!(w.driver.graph_exec_update(exec, graph).unwrap().is_updated());
    w.driver.graph_destroy(graph).unwrap();
}

fn node(w: &World, graph: GraphHandle, index: usize) -> GraphNodeHandle {
    w.driver.graph_describe(graph).unwrap().nodes[index].handle
}

fn set(w: &World, exec: GraphExecHandle, node: GraphNodeHandle, access: Access) {
    w.driver.graph_exec_kernel_node_set_params(exec, node, &w.kernel("changed", &[access])).unwrap();
}

const CASES: &[Case] = &[
    ("an update brings the other graph's accesses", &[Race], |w| {
        let exec = instantiate(w, reading(w, w.y));
        update(w, exec, writing(w, w.x));
        w.launch(exec, w.a);
        w.read(w.b, w.x);
    }),
    ("an update takes the old accesses away", &[], |w| {
        let exec = instantiate(w, writing(w, w.y));
        update(w, exec, writing(w, w.x));
        w.launch(exec, w.a);
        w.read(w.b, w.y);
    }),
    ("an update that is refused changes nothing", &[Race], |w| {
        let exec = instantiate(w, writing(w, w.y));
        let longer = w.graph(w.a, || {
            w.write(w.a, w.x);
            w.write(w.a, w.x);
        });
        assert!(!w.driver.graph_exec_update(exec, longer).unwrap().is_updated());
        w.launch(exec, w.a);
        w.read(w.b, w.x);
        w.read(w.b, w.y);
    }),
    ("an update keeps the order of launches", &[], |w| {
        let exec = instantiate(w, writing(w, w.x));
        w.launch(exec, w.a);
        update(w, exec, writing(w, w.x));
        w.launch(exec, w.b);
    }),
    ("an updated graph still orders its branches", &[Race], |w| {
        let branches = |ordered: bool| {
            w.graph(w.a, || {
                w.record(w.e, w.a);
                w.wait(w.b, w.e);
                w.write(w.b, w.y);
                if ordered {
                    w.write(w.a, w.x);
                } else {
                    w.write(w.a, w.y);
                }
                w.order(w.b, w.a);
            })
        };
        let exec = instantiate(w, branches(true));
        w.launch(exec, w.a);
        update(w, exec, branches(false));
        w.launch(exec, w.a);
    }),
    ("an update brings an input that has died", &[StaleGraphInput], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let exec = instantiate(w, reading(w, w.y));
        let other = reading(w, block);
        w.free(block);
        update(w, exec, other);
        w.launch(exec, w.a);
    }),
    ("a kernel is given other memory", &[Race], |w| {
        let graph = reading(w, w.y);
        let exec = instantiate(w, graph);
        set(w, exec, node(w, graph, 0), Access::write(w.x, BYTES));
        w.launch(exec, w.a);
        w.read(w.b, w.x);
    }),
    ("a kernel no longer touches its memory", &[], |w| {
        let graph = writing(w, w.x);
        let exec = instantiate(w, graph);
        set(w, exec, node(w, graph, 0), Access::write(w.y, BYTES));
        w.launch(exec, w.a);
        w.read(w.b, w.x);
    }),
    ("other executables keep their kernels", &[Race], |w| {
        let graph = writing(w, w.x);
        let (exec, other) = (instantiate(w, graph), instantiate(w, graph));
        set(w, exec, node(w, graph, 0), Access::read(w.y, BYTES));
        w.launch(other, w.a);
        w.read(w.b, w.x);
    }),
    ("a kernel is given memory that was freed", &[UseAfterFree], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let graph = reading(w, w.y);
        let exec = instantiate(w, graph);
        w.free(block);
        set(w, exec, node(w, graph, 0), Access::read(block, BYTES));
    }),
    ("a kernel's new memory dies", &[StaleGraphInput], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let graph = reading(w, w.y);
        let exec = instantiate(w, graph);
        set(w, exec, node(w, graph, 0), Access::read(block, BYTES));
        w.launch(exec, w.a);
        w.free(block);
        w.launch(exec, w.a);
    }),
    ("a kernel is named as before after an update", &[Race], |w| {
        let two = |pointer| {
            w.graph(w.a, || {
                w.read(w.a, w.y);
                w.read(w.a, pointer);
            })
        };
        let graph = two(w.y);
        let exec = instantiate(w, graph);
        update(w, exec, two(w.x));
        // The second kernel reads X; now the first writes it.
        set(w, exec, node(w, graph, 0), Access::write(w.x, BYTES));
        w.launch(exec, w.a);
        w.read(w.b, w.x);
    }),
];

#[test]
fn executables_that_change() {
    for (name, expected, program) in CASES {
        verdict(name, expected, program);
    }
}
