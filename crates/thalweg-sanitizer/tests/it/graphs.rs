//! The sanitizer on updated executables, conditional nodes and events of work outside of a graph, case by case.

use thalweg_driver::{
    Access, CaptureMode, Conditional, DevicePointer, Driver, EventHandle, GraphExecHandle, GraphHandle,
    GraphNodeHandle, Label,
};
use thalweg_sanitizer::FindingKind::{self, Race, StaleGraphInput, UseAfterFree};

use super::support::{BYTES, World, verdict};

type Case = (&'static str, &'static [FindingKind], fn(&World));

/// Returns a graph of one kernel, captured on A.
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

const CONDITIONALS: &[Case] = &[
    ("a body comes after what its node comes after", &[], |w| {
        let exec = w.capture(w.a, || {
            w.write(w.a, w.x);
            w.conditional(Conditional::If, &[&|| w.read(w.c, w.x)]);
            w.write(w.a, w.x);
        });
        w.launch(exec, w.a);
        w.launch(exec, w.b);
        w.write(w.b, w.x);
    }),
    ("a body races with another stream", &[Race], |w| {
        let exec = w.capture(w.a, || w.conditional(Conditional::If, &[&|| w.write(w.c, w.x)]));
        w.launch(exec, w.a);
        w.read(w.b, w.x);
    }),
    ("a body races with another branch of its graph", &[Race], |w| {
        let exec = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.read(w.b, w.x);
            w.conditional(Conditional::While, &[&|| w.write(w.c, w.x)]);
            w.order(w.b, w.a);
        });
        w.launch(exec, w.a);
    }),
    ("a body in a body races with another branch", &[Race], |w| {
        let exec = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.read(w.b, w.x);
            let label = Label::here("outer");
            let outer = w.driver.condition_create(w.a, 1).unwrap();
            let bodies = w.driver.conditional_node_add(w.a, outer, Conditional::If, label).unwrap();
            let (c, d) = (w.c, w.driver.stream_create(0, 0).unwrap());
            w.driver.stream_begin_capture_to_graph(c, bodies[0], CaptureMode::Relaxed).unwrap();
            let inner = w.driver.condition_create(c, 1).unwrap();
            let within = w.driver.conditional_node_add(c, inner, Conditional::If, label).unwrap();
            w.driver.stream_begin_capture_to_graph(d, within[0], CaptureMode::Relaxed).unwrap();
            w.write(d, w.x);
            w.driver.stream_end_capture(d).unwrap();
            w.driver.stream_end_capture(c).unwrap();
            w.order(w.b, w.a);
        });
        w.launch(exec, w.a);
    }),
    ("two branches of a body race", &[Race], |w| {
        let exec = w.capture(w.a, || {
            w.conditional(
                Conditional::If,
                &[&|| {
                    w.order(w.c, w.b);
                    w.write(w.b, w.x);
                    w.write(w.c, w.x);
                    w.order(w.b, w.c);
                }],
            );
        });
        w.launch(exec, w.a);
    }),
    ("two bodies of one node never meet", &[], |w| {
        let bodies: [&dyn Fn(); 2] = [&|| w.write(w.c, w.x), &|| w.write(w.c, w.x)];
        let exec = w.capture(w.a, || w.conditional(Conditional::IfElse, &bodies));
        w.launch(exec, w.a);
    }),
    ("a condition's value is read", &[Race], |w| {
        let exec = w.capture(w.a, || w.conditional(Conditional::If, &[]));
        w.launch(exec, w.a);
        w.write(w.b, w.y);
    }),
    ("what a body reads has died", &[StaleGraphInput], |w| {
        let block = w.take(w.a);
        w.write(w.a, block);
        let exec = w.capture(w.a, || w.conditional(Conditional::If, &[&|| w.read(w.c, block)]));
        w.launch(exec, w.a);
        w.free(block);
        w.launch(exec, w.a);
    }),
    ("memory of a body is memory of its graph", &[], |w| {
        let exec = w.capture(w.a, || {
            w.conditional(Conditional::If, &[&|| w.write(w.c, w.take(w.c))]);
            w.read(w.a, w.x);
            w.free(w.x);
        });
        w.launch(exec, w.a);
        w.launch(exec, w.a);
    }),
    ("memory of a graph is memory of its bodies", &[], |w| {
        let exec = w.capture(w.a, || {
            let block = w.take(w.a);
            w.write(w.a, block);
            w.conditional(Conditional::While, &[&|| w.read(w.c, block)]);
            w.free(block);
        });
        w.launch(exec, w.a);
        w.launch(exec, w.a);
    }),
];

#[test]
fn conditional_nodes() {
    for (name, expected, program) in CONDITIONALS {
        verdict(name, expected, program);
    }
}

#[test]
fn executables_that_change() {
    for (name, expected, program) in CASES {
        verdict(name, expected, program);
    }
}

/// Captures on A a wait for the event, a write of `x` and a record of another event.
fn between_events(w: &World, waited: EventHandle, recorded: EventHandle) -> GraphExecHandle {
    w.capture(w.a, || {
        w.driver.stream_wait_event_external(w.a, waited).unwrap();
        w.write(w.a, w.x);
        w.driver.event_record_external(recorded, w.a).unwrap();
        w.write(w.a, w.y);
    })
}

const EVENTS_OF_WORK_OUTSIDE: &[Case] = &[
    ("a launch waits for work outside", &[], |w| {
        let exec = between_events(w, w.e, w.event());
        for _ in 0..2 {
            w.write(w.b, w.x);
            w.record(w.e, w.b);
            w.launch(exec, w.a);
            w.driver.stream_synchronize(w.a).unwrap();
        }
    }),
    ("a launch waits for an event that is not recorded", &[Race], |w| {
        let exec = between_events(w, w.e, w.event());
        w.write(w.b, w.x);
        w.launch(exec, w.a);
    }),
    ("a launch waits for an event that is recorded after it", &[Race], |w| {
        let exec = between_events(w, w.e, w.event());
        w.write(w.b, w.x);
        w.launch(exec, w.a);
        w.record(w.e, w.b);
    }),
    ("a launch waits for the record before the last work", &[Race], |w| {
        let exec = between_events(w, w.e, w.event());
        w.record(w.e, w.b);
        w.write(w.b, w.x);
        w.launch(exec, w.a);
    }),
    ("a launch waits for the latest record only", &[Race], |w| {
        let exec = between_events(w, w.e, w.event());
        w.write(w.b, w.x);
        w.record(w.e, w.b);
        w.record(w.e, w.c);
        w.launch(exec, w.a);
    }),
    ("work outside waits for a place in a launch", &[], |w| {
        let recorded = w.event();
        let exec = between_events(w, w.e, recorded);
        for _ in 0..2 {
            w.launch(exec, w.a);
            w.wait(w.b, recorded);
            w.read(w.b, w.x);
            w.order(w.b, w.a);
        }
    }),
    ("work outside does not wait for what comes after the place", &[Race], |w| {
        let recorded = w.event();
        let exec = between_events(w, w.e, recorded);
        w.launch(exec, w.a);
        w.wait(w.b, recorded);
        w.read(w.b, w.y);
    }),
    ("the host waits for a place in a launch", &[], |w| {
        let recorded = w.event();
        let exec = between_events(w, w.e, recorded);
        w.launch(exec, w.a);
        w.driver.event_synchronize(recorded).unwrap();
        w.write(w.b, w.x);
    }),
    ("a launch waits for a place in another's", &[], |w| {
        let recorded = w.event();
        let (first, second) = (
            between_events(w, w.e, recorded),
            w.capture(w.b, || {
                w.driver.stream_wait_event_external(w.b, recorded).unwrap();
                w.read(w.b, w.x);
            }),
        );
        w.launch(first, w.a);
        w.launch(second, w.b);
    }),
    ("nodes order when their events are given up", &[], |w| {
        let recorded = w.event();
        let (first, second) = (
            between_events(w, w.e, recorded),
            w.capture(w.b, || {
                w.driver.stream_wait_event_external(w.b, recorded).unwrap();
                w.read(w.b, w.x);
            }),
        );
        w.driver.event_destroy(recorded).unwrap();
        w.launch(first, w.a);
        w.launch(second, w.b);
    }),
    ("a branch waits for another by an event of the graph's own", &[], |w| {
        let recorded = w.event();
        let exec = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.write(w.a, w.x);
            w.driver.event_record_external(recorded, w.a).unwrap();
            w.driver.stream_wait_event_external(w.b, recorded).unwrap();
            w.write(w.b, w.x);
            w.order(w.b, w.a);
        });
        w.launch(exec, w.a);
        w.launch(exec, w.a);
    }),
    ("a branch waits by an event that another records later", &[Race], |w| {
        let recorded = w.event();
        let exec = w.capture(w.a, || {
            w.order(w.a, w.b);
            w.driver.stream_wait_event_external(w.b, recorded).unwrap();
            w.write(w.b, w.x);
            w.write(w.a, w.x);
            w.driver.event_record_external(recorded, w.a).unwrap();
            w.order(w.b, w.a);
        });
        w.launch(exec, w.a);
    }),
];

#[test]
fn events_of_work_outside() {
    for (name, expected, program) in EVENTS_OF_WORK_OUTSIDE {
        verdict(name, expected, program);
    }
}
