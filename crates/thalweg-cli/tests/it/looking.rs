//! Tests of `thalweg memory` with a snapshot of a program that ran out of memory in a marked stage: each subcommand must show what
//! the user looks for.

use std::fs;
use std::process::Command;

use thalweg::snapshot::StreamId;
use thalweg::snapshot::{Action, Annotation, Frame, SettingValue, Snapshot, TraceEntry};

use crate::{program, scratch, text};

const MIB: u64 = 1 << 20;
const START: u64 = 0x7f00_0000_0000;

fn frames(lines: &[(&str, u32, &str)]) -> Option<thalweg::snapshot::Frames> {
    let frame =
        |&(file, line, name): &(&str, u32, &str)| Frame { filename: file.into(), line, name: name.into() };
    Some(lines.iter().map(frame).collect())
}

/// Writes a snapshot of a program that allocates parameters and then runs a forward pass that does not fit.
fn snapshot() -> Snapshot {
    let model = [("torch/nn/modules/module.py", 9, "_apply"), ("train.py", 3, "main")];
    let forward = [("model.py", 17, "forward"), ("train.py", 8, "main")];
    let cache = [("kv.py", 5, "append"), ("train.py", 9, "main")];
    let entry = |time_us, action, address, bytes, stack: &[(&str, u32, &str)]| TraceEntry {
        time_us: Some(time_us),
        frames: frames(stack),
        ..TraceEntry::new(action, address, bytes, StreamId::from_raw(0))
    };
    let trace = vec![
        entry(10, Action::SegmentAlloc, START, 256 * MIB, &model),
        entry(11, Action::Alloc, START, 100 * MIB, &model),
        entry(20, Action::Alloc, START + 100 * MIB, 60 * MIB, &forward),
        TraceEntry {
            user_metadata: Some("layer 3 \u{1b}[31m".into()),
            ..entry(21, Action::Alloc, START + 160 * MIB, 40 * MIB, &cache)
        },
        entry(22, Action::FreeRequested, START + 160 * MIB, 40 * MIB, &cache),
        entry(22, Action::FreeCompleted, START + 160 * MIB, 40 * MIB, &cache),
        entry(23, Action::Oom, 5 * MIB, 900 * MIB, &forward),
    ];
    let mark =
        |stage: &str, time_us| Annotation { name: "forward".into(), stage: stage.into(), device: 1, time_us };
    Snapshot {
        device_traces: vec![vec![entry(1, Action::Snapshot, 0, 0, &[])], trace],
        allocator_settings: vec![
            ("expandable_segments".into(), SettingValue::Bool(true)),
            ("max_split_size".into(), SettingValue::Int(-1)),
        ],
        external_annotations: vec![mark("START", 15), mark("END", 30)],
        ..Snapshot::default()
    }
}

/// The subcommands that print parts of the snapshot.
struct Asked(std::path::PathBuf);

impl Asked {
    fn new(name: &str) -> Self {
        Self::of(name, &snapshot())
    }

    fn of(name: &str, snapshot: &Snapshot) -> Self {
        let folder = scratch(name);
        fs::create_dir_all(&folder).expect("the folder of temporary files takes folders");
        fs::write(folder.join("s.pickle"), snapshot.to_pickle()).expect("the scratch folder takes files");
        Self(folder)
    }

    fn ask(&self, arguments: &[&str]) -> (String, String, Option<i32>) {
        let mut command = Command::new(program());
        command.arg("memory").args(arguments).current_dir(&self.0).env_clear().env("COLUMNS", "200");
        let output = command.output().expect("the program starts");
        (text(&output.stdout), text(&output.stderr), output.status.code())
    }

    fn print(&self, arguments: &[&str]) -> String {
        let (out, error, status) = self.ask(arguments);
        assert_eq!((error.as_str(), status), ("", Some(0)), "{arguments:?}");
        out
    }
}

#[test]
fn show_begins_with_what_ran_out_of_memory() {
    let asked = Asked::new("looking-show");
    let out = asked.print(&["show", "s.pickle", "--category", "cache=kv.py"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "s.pickle, device 1", "the device that failed is first:\n{out}");
    assert!(
        lines[1].starts_with("  OUT OF MEMORY at entry 6: 900.0 MiB were requested at model.py:17 forward"),
        "{out}"
    );
    for part in [
        "Most was held: 100.0 MiB by train.py:3 main",
        "settings  expandable_segments:True\n",
        "forward      1  0.000 s  200.0 MiB         100.0 MiB  256.0 MiB\n",
        "100.0 MiB   50.0 %       1  parameters\n",
        "60.0 MiB   30.0 %       1  activations\n",
        "40.0 MiB   20.0 %       1  cache\n",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(&out).contains(&squeezed(part)), "{part} is missing:\n{out}");
    }
    let json = asked.print(&["show", "s.pickle", "--json"]);
    let first = json.lines().next().expect("there is a line");
    for part in [
        "\"settings\":\"expandable_segments:True\"",
        "\"stages\":[{\"name\":\"forward\",\"times\":1,",
        "\"by_category\":[",
    ] {
        assert!(first.contains(part), "{part} is missing: {first}");
    }
}

/// Checks that `show` and the page report the same.
#[test]
fn the_page_says_what_show_says_of_what_ran_out_of_memory() {
    let asked = Asked::new("looking-page");
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let out = squeezed(&asked.print(&["show", "s.pickle", "--gpu-memory", "1GiB", "--html", "page.html"]));
    let (_, said) = out.split_once("OUT OF MEMORY at entry 6: ").expect("it is said first");
    let (said, _) = said.split_once(" tries other settings.").expect("the last of it is what to try");
    assert!(said.contains("of the GPU were outside the allocator. Most was held: 100.0 MiB"), "{said}");
    let page = fs::read_to_string(asked.0.join("page.html")).expect("it was written");
    assert!(page.contains(&format!("Memory ran out at event 6: {said} tries other settings.")), "{said}");
}

#[test]
fn events_are_listed_and_found() {
    let asked = Asked::new("looking-events");
    let all = asked.print(&["events", "s.pickle", "--device", "1"]);
    assert_eq!(all.lines().count(), 2 + 7, "{all}");
    assert!(all.contains("[said: layer 3 \\u{1b}[31m]") && !all.contains('\u{1b}'), "{all}");
    let found = asked.print(&["events", "s.pickle", "--device", "1", "--find", "KV.py", "--count", "2"]);
    assert!(found.contains("1 more: go on with --from 5"), "{found}");
    assert!(asked.print(&["events", "s.pickle", "--find", "kv.py"]).contains("no such entry"));
    let stacks = asked.print(&["events", "s.pickle", "--device", "1", "--find", "oom", "--stacks"]);
    assert!(stacks.contains("train.py:8 main") && stacks.contains("(5.00 MiB free)"), "{stacks}");
    let json = asked.print(&["events", "s.pickle", "--device", "1", "--find", "layer", "--json"]);
    assert!(json.contains("\"entry\":3,\"action\":\"alloc\",\"address\":\"0x7f000a000000\""), "{json}");
    let (_, error, status) = asked.ask(&["events", "s.pickle", "--device", "7"]);
    assert!(
        status == Some(2) && error.contains("nothing is recorded of device 7; there is: 0, 1"),
        "{error}"
    );
}

#[test]
fn an_address_is_looked_up() {
    let asked = Asked::new("looking-at");
    let out = asked.print(&["at", "s.pickle", "0x7f000a000010"]);
    let row = out.lines().find(|line| line.contains("kv.py:5 append")).unwrap_or_else(|| panic!("{out}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..5], ["3", "4", "40.0", "MiB", "0x7f000a000000"], "{out}");
    assert!(out.contains("at the end  not reserved"), "{out}");
    let (out, _, status) = asked.ask(&["at", "s.pickle", "0x10"]);
    assert!(status == Some(1) && out.contains("was ever at 0x10"), "{out}");
    let (_, error, status) = asked.ask(&["at", "s.pickle", "here"]);
    assert!(status == Some(2) && error.contains("'here' for '<ADDRESS>': write an address as"), "{error}");
}

#[test]
fn live_memory_is_folded_by_stack() {
    let asked = Asked::new("looking-flame");
    let out = asked.print(&["flame", "s.pickle"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines,
        [
            "s.pickle device 1;main train.py:3;_apply modules/module.py:9 104857600",
            "s.pickle device 1;main train.py:8;forward model.py:17 62914560",
            "s.pickle device 1;main train.py:9;append kv.py:5 41943040",
        ]
    );
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The memory that the driver's own allocator reserves for private pools is not known: there is no figure, and no
/// recommendation.
#[test]
fn of_the_drivers_allocator_with_private_pools_there_is_no_figure() {
    let mut shared = snapshot();
    shared.device_traces[1].pop();
    let mut private = shared.clone();
    for entry in &mut private.device_traces[1] {
        entry.pool_id = Some((0, 7));
    }
    let arguments = ["replay", "s.pickle", "--conf", "", "--conf", "backend:cudaMallocAsync"];
    let known = Asked::of("looking-shared", &shared).print(&arguments);
    assert!(known.contains('~') && !known.contains("cannot be estimated"), "{known}");
    let asked = Asked::of("looking-private", &private);
    let unknown = asked.print(&arguments);
    // The other device has no pools.
    let (_, unknown) = unknown.split_once("device 1").expect("it has a trace");
    assert!(!unknown.contains('~'), "{unknown}");
    let said = unknown.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "what cudaMallocAsync reserves for captured graphs and private pools cannot be estimated";
    assert!(said.contains(why) && !said.contains("Recommended"), "{unknown}");
    let json = asked.print(&[&arguments[..], &["--json"]].concat());
    assert!(json.contains(&format!("\"peak_reserved_bytes\":null,\"why_unknown\":\"{why}")), "{json}");
}
