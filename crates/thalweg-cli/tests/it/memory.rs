//! Tests of `thalweg memory` with the recorded traces.
//!
//! The output is compared with files in `tests/it/golden`; with `THALWEG_UPDATE_GOLDEN=1` they are written instead, to be
//! reviewed before they are committed. The figures are compared with what PyTorch itself counted.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use thalweg::memory_tools::analysis::what_if::CANDIDATES;

use crate::{browser, program, scratch, text};

/// The folder of the recorded traces, in which the program runs, so that its output has the same paths everywhere.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../thalweg-memory-tools/tests/data");

fn trace(name: &str) -> String {
    format!("{name}.pickle.gz")
}

/// Returns what a subcommand prints on a terminal of `columns` columns, and its status.
fn run(arguments: &[&str], columns: usize) -> (String, String, Option<i32>) {
    let mut command = Command::new(program());
    command.arg("memory").args(arguments).current_dir(DATA).env_clear().env("COLUMNS", columns.to_string());
    let output = command.output().expect("the program starts");
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn succeed(arguments: &[&str], columns: usize) -> String {
    let (out, error, status) = run(arguments, columns);
    assert_eq!((error.as_str(), status), ("", Some(0)), "{arguments:?}");
    out
}

/// Compares with a file.
fn golden(name: &str, printed: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
    if std::env::var_os("THALWEG_UPDATE_GOLDEN").is_some() {
        fs::write(&path, printed).expect("the folder is there");
        return;
    }
    let expected = fs::read_to_string(&path).expect("the file is in the repository");
    assert!(printed == expected, "{name} differs; it is now:\n{printed}");
}

#[test]
fn what_is_printed_lines_up() {
    let gpt = trace("gpt_train");
    golden("show.txt", &succeed(&["show", &gpt], 100));
    golden("show_narrow.txt", &succeed(&["show", &gpt, "--top", "3"], 60));
    golden("replay_search.txt", &succeed(&["replay", &gpt, "--search", "--gpu-memory", "9GB"], 100));
    golden("replay_narrow.txt", &succeed(&["replay", &gpt, "--conf", "max_split_size_mb:128"], 60));
    golden("diff.txt", &succeed(&["diff", &trace("resnet_sizes"), &gpt, "--at", "peak"], 100));
    for name in ["show_narrow.txt", "replay_narrow.txt"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
        let widest =
            fs::read_to_string(path).expect("it was compared").lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(60), "{name} is {widest:?} wide");
    }
}

/// Returns the figures that PyTorch reported, by column.
fn truth() -> Vec<BTreeMap<String, String>> {
    let table = fs::read_to_string(format!("{DATA}/truth.tsv")).expect("the figures are in the repository");
    let mut lines = table.lines().map(|line| line.split('\t').map(str::to_owned));
    let names: Vec<String> = lines.next().expect("the first line has the names").collect();
    lines.map(|values| names.iter().cloned().zip(values).collect()).collect()
}

/// Returns the settings of a row: those that its name stands for, and its memory limit.
fn settings_of(row: &BTreeMap<String, String>) -> String {
    let conf = match row["conf"].as_str() {
        "default" | "limit" => "",
        "expandable" | "limit_expandable" => "expandable_segments:True",
        "split128" | "limit_split" => "max_split_size_mb:128",
        "pow2_8" => "roundup_power2_divisions:8",
        "gc0.6" => "garbage_collection_threshold:0.6",
        "limit_gc" => "garbage_collection_threshold:0.7",
        "async" => "backend:cudaMallocAsync",
        other => panic!("the table has a new row: {other}"),
    };
    match row["memory_fraction"].as_str() {
        "-" => conf.to_owned(),
        fraction if conf.is_empty() => format!("per_process_memory_fraction:{fraction}"),
        fraction => format!("{conf},per_process_memory_fraction:{fraction}"),
    }
}

#[test]
fn replays_predict_what_pytorch_did() {
    for row in truth() {
        let name = format!("{} {}", row["workload"], row["conf"]);
        let conf = settings_of(&row);
        let trace = trace(&row["workload"]);
        let gpu = if row["total_memory"] == "-" { "85017493504" } else { &row["total_memory"] };
        let gpu = format!("{gpu}B");
        let arguments = ["replay", &trace, "--conf", &conf, "--gpu-memory", &gpu, "--json"];
        let printed = succeed(&arguments, 80);
        let found: Value = serde_json::from_str(&printed).expect("one object is printed");
        let found = found.as_object().expect("one object is printed");
        let is_label = |key: &&str| row["conf"] == "async" && *key == "is_estimate";
        let mut keys: Vec<&str> = found.keys().map(String::as_str).filter(|key| !is_label(key)).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "address_mismatches",
                "device",
                "driver_allocations",
                "driver_frees",
                "fits_from_bytes",
                "out_of_memory",
                "peak_live_bytes",
                "peak_reserved_bytes",
                "policy",
                "retries",
                "settings"
            ]
        );
        let figure = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", found[key]));
        let real = |key: &str| row[key].parse::<f64>().expect("it is a number");
        let (reserved, expected) = (figure("peak_reserved_bytes"), real("reserved_bytes.all.peak"));
        let off = (reserved - expected).abs();
        assert_eq!(found["out_of_memory"], row["out_of_memory"] == "true", "{name}");
        assert_eq!(found.contains_key("is_estimate"), row["conf"] == "async", "{name}");
        if row["conf"] == "async" {
            assert!(off <= (0.2 * expected).max(f64::from(64 << 20)), "{name}: {reserved} for {expected}");
            continue;
        }
        assert_eq!(figure("retries"), real("num_alloc_retries"), "{name}");
        if row["conf"].starts_with("limit") {
            assert!(off <= 0.005 * expected, "{name}: {reserved} for {expected}");
            let frees = (figure("driver_frees") - real("num_device_free")).abs();
            assert!(
                frees <= (0.2 * real("num_device_free")).max(1.0),
                "{name}: {frees} frees too many or too few"
            );
        } else {
            assert_eq!(reserved, expected, "{name}");
            assert_eq!(figure("driver_allocations"), real("num_device_alloc"), "{name}");
        }
        if row["conf"] == "default" {
            assert_eq!(figure("address_mismatches"), 0.0, "{name}");
        }
    }
}

#[test]
fn what_show_says_is_what_pytorch_counted() {
    for row in truth().iter().filter(|row| row["conf"] == "default") {
        let (printed, _, _) = run(&["show", &trace(&row["workload"]), "--json", "--top", "0"], 80);
        for (key, column) in [
            ("peak_reserved_bytes", "reserved_bytes.all.peak"),
            ("peak_live_bytes", "requested_bytes.all.peak"),
        ] {
            let part = format!("\"{key}\":{},", row[column]);
            assert!(printed.contains(&part), "{}: {printed} lacks {part}", row["workload"]);
        }
    }
}

#[test]
fn checks_fail_with_one_line_and_status_1() {
    let gpt = trace("gpt_train");
    let (out, _, status) = run(&["check", &gpt, "--max-reserved", "20GiB", "--max-growth", "2%"], 80);
    assert_eq!(status, Some(0), "{out}");
    let (out, _, status) = run(&["check", &gpt, "--max-reserved", "8GiB"], 80);
    assert_eq!((out.lines().count(), status), (1, Some(1)));
    assert!(out.contains("8.76 GiB (9401532416 bytes) reserved at most, 8.00 GiB allowed"), "{out}");
    let (_, error, status) = run(&["check", &gpt], 80);
    assert!(
        error.contains("not provided") && error.contains("--max-reserved <SIZE>|--max-growth <SHARE>"),
        "{error}"
    );
    assert_eq!(status, Some(2));
}

#[test]
fn the_help_names_what_a_search_tries() {
    let output =
        Command::new(program()).args(["memory", "replay", "--help"]).output().expect("the program starts");
    let help = text(&output.stdout);
    for conf in CANDIDATES {
        for (key, value) in conf.split(',').filter_map(|part| part.split_once(':')) {
            let mut lines = help.lines().map(str::trim).filter(|line| line.contains(key));
            assert!(lines.any(|line| line.contains(&format!(":{value}"))), "{key}:{value} is not in {help}");
        }
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn several_ranks_are_told_apart() {
    let (gpt, fsdp) = (trace("gpt_train"), trace("fsdp_streams"));
    let printed = succeed(&["replay", &gpt, &fsdp, "--json"], 80);
    let ranks: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).expect("it is an object")).collect();
    assert_eq!([&ranks[0]["snapshot"], &ranks[1]["snapshot"]], [&json!(gpt), &json!(fsdp)]);
}

/// Returns the number after a name in JSON text.
fn number(json: &str, name: &str) -> u64 {
    let rest = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}")).1;
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap_or_else(|_| panic!("{name} is {}", &rest[..end]))
}

#[test]
fn the_page_shows_the_figures_of_the_command() {
    let folder = scratch("page");
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let page = folder.join("page.html");
    let path = page.to_str().expect("its name is text");
    let (gpt, conf) = (trace("gpt_train"), "expandable_segments:True");
    let printed = succeed(&["show", &gpt, "--json", "--html", path, "--conf", conf], 80);
    let replayed = succeed(&["replay", &gpt, "--json", "--conf", conf], 80);
    let written = fs::read_to_string(&page).expect("the page was written");
    for key in ["peak_live_bytes", "peak_reserved_bytes", "hard_bytes", "entries"] {
        let (figure, value) = (format!("\"key\":\"{key}\""), number(&printed, key).to_string());
        let (_, rest) = written.split_once(&figure).unwrap_or_else(|| panic!("the page has no {key}"));
        assert!(rest.split('}').next().is_some_and(|rest| rest.contains(&value)), "{key} is not {value}");
    }
    if let Some(result) = browser::self_test(&page, &folder) {
        assert!(!result.contains("\"error\""), "{result}");
        for key in ["peak_live_bytes", "peak_reserved_bytes"] {
            assert_eq!(number(&result, key), number(&printed, key), "{key}");
        }
        let peak = number(&replayed, "peak_reserved_bytes");
        let curve = format!("[\"reserved with {conf}\",{peak}]");
        assert!(result.contains(&curve), "{result} lacks {curve}");
    }
    fs::remove_dir_all(&folder).expect("it is ours");
    let (_, error, status) = run(&["show", &gpt, "--conf", conf], 80);
    assert!(error.contains("--conf draws a curve on the page of --html"), "{error}");
    assert_eq!(status, Some(2));
}

/// Runs the command with a limited address space.
fn run_within(mebibytes: u64, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new("sh");
    let limited = format!("ulimit -v {}; exec \"$0\" memory \"$@\"", mebibytes << 10);
    command.args(["-c", &limited]).arg(program()).args(arguments).current_dir(DATA).env_clear();
    let output = command.output().expect("there is a shell");
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

/// Returns a compressed file of `mebibytes` MiB of a single byte value.
fn packed(head: &[u8], byte: u8, mebibytes: usize) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(head).expect("a vector takes it");
    (0..mebibytes).for_each(|_| packed.write_all(&[byte; 1 << 20]).expect("a vector takes it"));
    packed.finish().expect("a vector takes it")
}

#[test]
fn hostile_and_useless_files_are_complained_of() {
    let folder = scratch("memory");
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("the folder is there");
        path.to_str().expect("its name is text").to_owned()
    };
    let whole =
        fs::read(format!("{DATA}/{}", trace("fsdp_streams"))).expect("the trace is in the repository");
    let long = |code: &[u8], length: &[u8]| [b"\x80\x04", code, length].concat();
    // One text of 1 MiB that is remembered a million times; a list that has itself a million times.
    let texts = [b"\x80\x04X\x00\x00\x10\x00", &[b'a'; 1 << 20][..], &b"\x94".repeat(1 << 20)].concat();
    let lists = [b"\x80\x04]\x94(".to_vec(), b"h\x00".repeat(1 << 20), b"e.".to_vec()].concat();
    for (path, what) in [
        (file("marks.pickle.gz", &packed(b"\x80\x04", b'(', 64)), "as no snapshot does"),
        (file("lists.pickle.gz", &packed(b"\x80\x04", b']', 64)), "more than in any real snapshot"),
        (file("long.json.gz", &packed(b"[\"", b'a', 1024)), "as no snapshot does"),
        (file("texts.pickle", &texts), "the file ends"),
        (file("lists.pickle", &lists), "not a segment"),
        (
            file("deep.pickle", &[b"\x80\x04", &b"]".repeat(8 << 20)[..]].concat()),
            "more than in any real snapshot",
        ),
        (file("calls.pickle", b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR."), "offset 2: instruction 0x63"),
        (file("cut.pickle.gz", &whole[..whole.len() / 2]), "cannot be read at offset"),
        (file("empty.pickle", b""), "offset 0"),
        (
            file("text.pickle", &long(b"\x8d", &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
            "the file ends",
        ),
        (file("bytes.pickle", &long(b"\x8e", &[0xff; 8])), "the file ends"),
        (file("number.pickle", &long(b"\x8b", &[0xff; 4])), "the file ends"),
        (file("memo.pickle", &long(b"]r", &[0xff; 4])), "remembers as 4294967295"),
        (file("deep.json", "[".repeat(1 << 20).as_bytes()), "the file ends"),
        (file("other.json", b"{\"a\":1}"), "neither segments nor device_traces"),
        (file("no_trace.json", b"[]"), "there is no trace to replay"),
        (folder.join("absent").to_str().expect("its name is text").to_owned(), "No such file"),
        (folder.to_str().expect("its name is text").to_owned(), "it is a folder"),
    ] {
        let (out, error, status) = run_within(256, &["replay", &path]);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{path}: {error}");
        assert!(error.contains(what), "{path}: {error} lacks {what}");
    }
    fs::remove_dir_all(&folder).expect("it is ours");
}

/// Checks that a damaged compressed file is refused, also if the damage is after the end of the pickle in it.
#[test]
fn damage_of_a_packed_file_is_noticed() {
    let folder = scratch("damage");
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let whole =
        fs::read(format!("{DATA}/{}", trace("fsdp_streams"))).expect("the trace is in the repository");
    let path = folder.join("damaged.pickle.gz");
    let path = path.to_str().expect("its name is text");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(path, bytes).expect("the folder is there");
        let (out, error, status) = run(&["show", path], 80);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{what}: {error}");
    };
    for from_end in 1..=8 {
        let mut bytes = whole.clone();
        let at = bytes.len() - from_end;
        bytes[at] ^= 0x10;
        refused(&bytes, &format!("a flip {from_end} before the end"));
    }
    for step in 1..24 {
        let mut bytes = whole.clone();
        let at = bytes.len() * step / 24;
        bytes[at] ^= 1 << (step % 8);
        refused(&bytes, &format!("a flip at {at}"));
    }
    refused(&whole[..whole.len() - 5], "cut by five bytes");
    refused(&[&whole[..], b"garbage"].concat(), "something follows");
    fs::remove_dir_all(&folder).expect("it is ours");
}

/// Checks that a number without a unit is refused.
#[test]
fn units_are_demanded() {
    let gpt = trace("gpt_train");
    for (arguments, what) in [
        (
            ["replay", &gpt, "--gpu-memory", "24"],
            "'24' for '--gpu-memory <SIZE>': that is 24 B, less than the smallest segment of the allocator, 2.00 MiB",
        ),
        (
            ["replay", &gpt, "--gpu-memory", "0GiB"],
            "'0GiB' for '--gpu-memory <SIZE>': write a size with its unit",
        ),
        (
            ["show", &gpt, "--gpu-memory", "nanGiB"],
            "'nanGiB' for '--gpu-memory <SIZE>': write a size with its unit",
        ),
        (
            ["check", &gpt, "--max-reserved", "20 apples"],
            "'20 apples' for '--max-reserved <SIZE>': write a size",
        ),
        (["check", &gpt, "--max-growth", "2"], "'2' for '--max-growth <SHARE>': write percents"),
    ] {
        let (out, error, status) = run(&arguments, 80);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{arguments:?}");
        assert!(error.contains(what) && error.lines().count() <= 3, "{error}");
    }
    let warned = succeed(&["replay", &gpt, "--gpu-memory", "8GB"], 200);
    assert!(warned.contains("--gpu-memory is 7.45 GiB, and the recording reserved 8.76 GiB"), "{warned}");
}

/// For a trace that lost its beginning, a GPU smaller than the memory that was then reserved gets a normal answer.
#[test]
fn a_search_on_a_small_gpu_says_which_is_enough() {
    let folder = scratch("small_gpu");
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let mut packed = flate2::read::GzDecoder::new(
        fs::File::open(format!("{DATA}/{}", trace("gpt_train"))).expect("it is there"),
    );
    let mut pickle = Vec::new();
    std::io::Read::read_to_end(&mut packed, &mut pickle).expect("it is whole");
    let mut snapshot = thalweg::snapshot::Snapshot::from_pickle(&pickle).expect("it is one");
    let entries = snapshot.device_traces[0].len();
    snapshot.device_traces[0].drain(..entries * 6 / 10);
    let path = folder.join("cut.pickle");
    fs::write(&path, snapshot.to_pickle()).expect("the folder is there");
    let path = path.to_str().expect("its name is text");
    let printed = succeed(&["replay", path, "--search", "--gpu-memory", "2GiB"], 100);
    assert!(printed.contains("None of these settings fits the GPU"), "{printed}");
    assert!(printed.contains("The smallest GPU that is enough has "), "{printed}");
    assert!(
        printed.lines().filter(|line| line.contains(">=") && line.contains("yes")).count() >= 12,
        "{printed}"
    );
    let printed = succeed(&["replay", path, "--search"], 100);
    assert!(printed.contains("Recommended: no change; of a trace without its beginning"), "{printed}");
    let object = succeed(&["replay", path, "--json", "--conf", "expandable_segments:True"], 80);
    let object: Value = serde_json::from_str(&object).expect("one object is printed");
    let bound = json!("peak_live_bytes,peak_reserved_bytes,out_of_memory");
    assert_eq!((&object["is_lower_bound"], &object["lower_bound_of"]), (&json!(true), &bound));
    fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn a_page_does_not_replace_what_it_is_made_from() {
    let folder = scratch("own-page");
    fs::create_dir_all(&folder).unwrap();
    let (own, link, page) =
        (folder.join("own.pickle.gz"), folder.join("link.html"), folder.join("page.html"));
    fs::copy(format!("{DATA}/{}", trace("gpt_train")), &own).unwrap();
    let bytes = fs::read(&own).unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let name = |path: &PathBuf| path.to_str().expect("a path of the test's").to_owned();
    for command in ["show", "replay"] {
        for target in [&own, &link] {
            let (out, error, status) = run(&[command, &name(&own), "--html", &name(target)], 200);
            assert_eq!((out.as_str(), status), ("", Some(2)), "{error}");
            assert!(error.contains("would destroy the snapshot"), "{error}");
            assert!(fs::read(&own).unwrap() == bytes, "the snapshot has changed");
        }
    }
    fs::write(&page, "an old page").unwrap();
    succeed(&["show", &name(&own), "--html", &name(&page)], 200);
    assert!(fs::read_to_string(&page).unwrap().contains("<html"));
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing is left beside it: {names:?}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_size_in_bytes_and_the_old_name_of_the_option_are_understood() {
    let gpt = trace("gpt_train");
    let new = succeed(&["replay", &gpt, "--gpu-memory", "85017493504B"], 100);
    assert_eq!(succeed(&["replay", &gpt, "--ca\x72d", "85017493504"], 100), new);
}

#[test]
fn an_address_that_was_never_in_use_is_said_to_be_none() {
    let gpt = trace("gpt_train");
    let (out, error, status) = run(&["at", &gpt, "0x1"], 100);
    assert_eq!((error.as_str(), status), ("", Some(1)), "{out}");
    assert!(out.contains("no block and no segment was ever at 0x1"), "{out}");
    assert_eq!(run(&["at", &gpt, "0x1", "--json"], 100).2, Some(1));
}
