//! The examples as a user runs them: on the simulator, with their output checked.

mod graph_study;
mod sim;

use std::path::PathBuf;
use std::process::{Command, Output};

use thalweg::models::bert::{BertConfig, BertForSequenceClassification};
use thalweg::module::Module;
use thalweg::random::Generator;
use thalweg::serialize;

/// Returns an example's program, which cargo builds beside the tests. `None`, with a message, if only the tests were copied.
fn example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a running test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders
        .flat_map(|folder| [folder.join("examples").join(name), folder.join(name)])
        .find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: the example {name} is not beside {}", test.display());
    }
    found
}

/// Returns the README.
fn readme() -> String {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    text.expect("it is text")
}

/// Runs an example on the device that the tests run on.
fn run(program: &PathBuf, arguments: &[&str]) -> Output {
    let device = std::env::var("THALWEG_TEST_DEVICE").unwrap_or_else(|_| "sim".to_owned());
    Command::new(program).args(["--device", &device]).args(arguments).output().expect("the example starts")
}

/// Returns the output of an example that succeeded.
fn printed(program: &PathBuf, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Checks that an example refuses a command line with these words.
fn refuses(program: &PathBuf, arguments: &[&str], words: &str) -> Output {
    let output = run(program, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(words), "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
    output
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines()
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no line '{start}' in:\n{text}"))
}

#[test]
fn digits_repeats_its_losses_captured_or_not() {
    let Some(program) = example("digits") else { return };
    let run = |arguments: &[&str]| printed(&program, arguments);
    let first = run(&["--steps", "8"]);
    assert!(first.starts_with("device: "), "the first line names the device:\n{first}");
    let memory = line(&first, "memory: peak allocated ");
    if first.contains(", simulated, ") {
        // Pages are few, so it is the same on a GPU.
        let (_, reserved) = memory.split_once(", ").expect("the line has two figures");
        assert!(readme().contains(reserved), "the README says something else than {reserved}");
    }
    assert!(
        first.lines().last().is_some_and(|last| last.starts_with("test accuracy: ") && last.ends_with('%'))
    );
    let losses = line(&first, "losses: ").to_owned();
    assert_eq!(line(&run(&["--steps", "8"]), "losses: "), losses, "the same seed");
    assert_eq!(line(&run(&["--steps", "8", "--graph"]), "losses: "), losses, "captured and replayed");
    assert_ne!(line(&run(&["--steps", "8", "--seed", "1"]), "losses: "), losses, "another seed");
}

#[test]
fn the_readmes_program_is_an_example_and_prints_what_the_readme_shows() {
    let Some(program) = example("first") else { return };
    let readme = readme();
    let (_, rest) = readme.split_once("```rust\n").expect("the README has a program");
    let (shown, rest) = rest.split_once("```\n\n```text output\n").expect("the program has an output");
    let (output, _) = rest.split_once("```").expect("a block ends");
    let source = include_str!("../../examples/first.rs");
    assert!(shown.lines().all(|line| source.contains(line)), "examples/first.rs differs from:\n{shown}");
    let run = Command::new(&program).output().expect("the example starts");
    let printed = String::from_utf8(run.stdout).expect("text");
    assert!(!printed.ends_with("'sim:0')\n") || printed == output, "the README shows {output} for {printed}");
}

#[test]
fn training_goes_on_from_a_file_as_if_it_had_not_stopped() {
    for (name, last, options) in [
        ("gpt", "loss: ", &["--batch", "4", "--sample", "0"][..]),
        ("gpt", "loss: ", &["--batch", "4", "--sample", "0", "--graph", "--dtype", "bf16"]),
        ("resnet", "loss: ", &["--batch", "8"]),
        ("digits", "test accuracy: ", &["--dtype", "bf16", "--graph"]),
    ] {
        let Some(program) = example(name) else { return };
        let file = std::env::temp_dir().join(format!("thalweg-resumed-{name}-{}.pt", std::process::id()));
        let path = file.to_str().expect("a path of text");
        let run = |arguments: &[&str]| printed(&program, &[arguments, options].concat());
        let whole = run(&["--steps", "5"]);
        run(&["--steps", "3", "--save", path]);
        let resumed = run(&["--steps", "2", "--resume", path]);
        assert_eq!(line(&resumed, last), line(&whole, last), "{name} {options:?}");
        std::fs::remove_file(&file).expect("it was saved");
    }
}

#[test]
fn digits_refuses_what_it_does_not_know() {
    let Some(program) = example("digits") else { return };
    for (arguments, words) in [
        (&["--epoch", "3"][..], "unknown argument --epoch"),
        (&["--steps"], "--steps needs a value"),
        (&["--steps", "-1"], "whole number"),
        (&["--device", "gpu"], "unknown kind 'gpu'"),
        (&["--device", "sim:7"], "no device"),
    ] {
        refuses(&program, arguments, words);
    }
}

#[test]
fn decode_gives_the_same_tokens_captured_and_allocates_nothing_then() {
    let Some(program) = example("decode") else { return };
    let small = ["--tokens", "4", "--context", "8", "--features", "64", "--layers", "1"];
    for more in [&[][..], &["--integers", "int8"], &["--integers", "int4"]] {
        let text = printed(&program, &[&small, more].concat());
        let [eager, captured] = ["eager", "captured"].map(|name| line(&text, name));
        assert!(captured.ends_with(" 0 allocations"), "{text}");
        assert!(!eager.ends_with(" 0 allocations"), "the counts count:\n{text}");
        assert_eq!(
            line(&text, "tokens:").split_whitespace().count(),
            1 + 5,
            "the first and four more:\n{text}"
        );
    }
}

#[test]
fn gpt_learns_saves_and_resumes() {
    let Some(program) = example("gpt") else { return };
    let file = std::env::temp_dir().join(format!("thalweg-gpt-{}.safetensors", std::process::id()));
    let path = file.to_str().expect("a path of text");
    let loss = |text: &str| line(text, "loss: ")["loss: ".len()..].parse::<f64>().expect("a number");
    let short = ["--batch", "8", "--sample", "5", "--prompt", "Love"];
    let first = printed(&program, &[&["--steps", "1"], &short[..]].concat());
    let trained = printed(&program, &[&["--steps", "8", "--save", path], &short[..]].concat());
    assert!(loss(&trained) < loss(&first), "{first}{trained}");
    assert!(trained.lines().any(|line| line.starts_with("Love")), "{trained}");
    let folder = file.with_extension("runs");
    let log = ["--log-dir", folder.to_str().expect("a path of text")];
    let replayed = printed(&program, &[&["--steps", "8", "--graph"], &log[..], &short[..]].concat());
    assert_eq!(line(&replayed, "loss: "), line(&trained, "loss: "), "replays are steps");
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("it was written");
    std::fs::remove_dir_all(&folder).expect("it was made");
    let logged: serde_json::Value =
        serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&logged["step"], &logged["tag"]), (&8.into(), &"loss".into()));
    let value = logged["value"].as_f64().expect("a number");
    assert!((value - loss(&replayed)).abs() < 1e-3, "{logged} {replayed}");
    let resumed =
        printed(&program, &[&["--steps", "1", "--resume", path, "--dtype", "bf16"], &short[..]].concat());
    assert!(loss(&resumed) < loss(&first) && resumed.contains("bfloat16"), "{resumed}");
    std::fs::remove_file(&file).expect("it was saved");
    refuses(&program, &["--dtype", "f16"], "--dtype takes f32 or bf16");
    refuses(&program, &["--prompt", "ß"], "the text has no 'ß'");
}

#[test]
fn bert_compares_sentences_with_the_weights_of_a_file() {
    let Some(program) = example("bert") else { return };
    let cosines = |text: &str| -> Vec<Vec<f64>> {
        let number = |word: &str| word.parse::<f64>().ok();
        text.lines().skip(1).map(|line| line.split_whitespace().map_while(number).collect()).collect()
    };
    let sentences = ["the cat sat", "sat the cat", "dogs, no cat"];
    let random = cosines(&printed(&program, &sentences));
    let replayed = cosines(&printed(&program, &[&["--graph"], &sentences[..]].concat()));
    assert_eq!(replayed, random, "a replay gives what an eager call gives");
    assert!(random.iter().enumerate().all(|(n, row)| row.len() == 3 && row[n] == 1.0), "{random:?}");
    assert!(random[0][1] > random[0][2] && random[0][1] == random[1][0], "{random:?}");
    let folder = std::env::temp_dir().join(format!("thalweg-bert-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let [weights, vocab] = ["model.safetensors", "vocab.txt"].map(|name| folder.join(name));
    let device = thalweg::Device::sim(0).expect("a simulated GPU");
    let config = BertConfig {
        vocab_size: 7,
        hidden_size: 24,
        num_hidden_layers: 1,
        num_attention_heads: 3,
        intermediate_size: 16,
        max_position_embeddings: 9,
        ..BertConfig::default()
    };
    let model =
        BertForSequenceClassification::new(&config, 2, &mut Generator::new(3), &device).expect("a model");
    serialize::save_file(&model.state_dict(), &weights, &[]).expect("weights are saved");
    std::fs::write(&vocab, "[PAD]\n[UNK]\n[CLS]\n[SEP]\ncat\n##s\nzebra\n").expect("a vocabulary");
    let [file, words] = [&weights, &vocab].map(|path| path.to_str().expect("a path of text"));
    let options = ["--weights", file, "--vocab", words, "--heads", "3"];
    let read = cosines(&printed(&program, &[&options[..], &["Cats", "cat ##s", "dog", "giraffe"]].concat()));
    assert!(read[2][3] == 1.0 && read[0][2] < 1.0, "unknown words are one token: {read:?}");
    assert!(read[0][1] < 1.0, "a piece is not a word: {read:?}");
    refuses(&program, &[&options[..5], &["2000000"]].concat(), "not a multiple");
    refuses(&program, &["--weights", file], "go together");
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn resnet_learns_saves_and_resumes() {
    let Some(program) = example("resnet") else { return };
    let file = std::env::temp_dir().join(format!("thalweg-resnet-{}.safetensors", std::process::id()));
    let path = file.to_str().expect("a path of text");
    let loss = |text: &str| line(text, "loss: ")["loss: ".len()..].parse::<f64>().expect("a number");
    let first = printed(&program, &["--batch", "16", "--steps", "1"]);
    let trained = printed(&program, &["--batch", "16", "--steps", "8", "--save", path]);
    assert!(loss(&trained) < loss(&first), "{first}{trained}");
    let replayed = printed(&program, &["--batch", "16", "--steps", "8", "--graph"]);
    assert_eq!(line(&replayed, "loss: "), line(&trained, "loss: "), "replays are steps");
    let resumed = printed(&program, &["--steps", "0", "--resume", path]);
    assert_eq!(line(&resumed, "test accuracy"), line(&trained, "test accuracy"));
    let half = printed(&program, &["--batch", "16", "--steps", "1", "--resume", path, "--dtype", "bf16"]);
    assert!(loss(&half) < loss(&first) && half.contains("bfloat16"), "{half}");
    std::fs::remove_file(&file).expect("it was saved");
    refuses(&program, &["--dtype", "f16"], "--dtype takes f32 or bf16");
}

#[test]
fn an_operator_of_ones_own_has_values_and_gradients() {
    for name in ["user_operator", "user_kernel"] {
        let Some(program) = example(name) else { return };
        let text = printed(&program, &[]);
        assert!(line(&text, "squared_relu on").ends_with(": [0.0, 0.0, 0.25, 9.0]"), "{text}");
        assert_eq!(line(&text, "its gradient"), "its gradient: [0.0, 0.0, 1.0, 6.0]");
        refuses(&program, &["--dtype", "f16"], &format!("usage: {name}"));
    }
}

#[test]
fn decode_refuses_what_it_does_not_know() {
    let Some(program) = example("decode") else { return };
    for (arguments, words) in [
        (&["--token", "3"][..], "unknown argument --token"),
        (&["--tokens"], "--tokens needs a value"),
        (&["--tokens", "0"], "whole number"),
        (&["--tokens", "128"], "do not fit into a context of 128"),
        (&["--heads", "3"], "cannot be divided among 3 heads"),
        (&["--integers", "int3"], "int8 or int4, not 'int3'"),
    ] {
        let output = refuses(&program, arguments, words);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: decode "), "{arguments:?}");
    }
    refuses(&program, &["--device", "sim:7"], "no device");
}

#[test]
fn profile_writes_the_timeline_of_a_training_step() {
    let Some(program) = example("profile") else { return };
    let path = std::env::temp_dir().join(format!("thalweg-profile-{}.json", std::process::id()));
    let output = Command::new(&program).arg(&path).output().expect("the example starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = std::fs::read(&path).expect("the trace is written");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("the trace is JSON");
    std::fs::remove_file(&path).expect("the trace can be removed");
    let events = trace["traceEvents"].as_array().expect("a trace has events");
    let of = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
    let work = of("kernel") + of("gpu_memcpy") + of("gpu_memset");
    let arrows = events.iter().filter(|event| event["ph"] == "f").count();
    assert!(work > 0 && arrows == work, "{work} commands, {arrows} arrows");
    // Step, forward and backward, on the host and on the one stream.
    assert_eq!((of("user_annotation"), of("gpu_user_annotation")), (3, 3));
    // The table has a head, and a row per operator and region, nodes of the backward pass that launch nothing themselves among them.
    let table = String::from_utf8(output.stdout).expect("text");
    let operators: std::collections::BTreeSet<_> = events
        .iter()
        .filter_map(|event| match event["cat"].as_str()? {
            "kernel" | "gpu_memcpy" | "gpu_memset" => Some(event["args"]["operator"].to_string()),
            "cpu_op" | "user_annotation" => Some(event["name"].to_string()),
            _ => None,
        })
        .collect();
    assert!(operators.contains("\"LinearBackward0\""), "{operators:?}");
    assert_eq!(table.lines().count(), operators.len() + 2, "{table}");
}

#[test]
fn faults_names_the_rank_that_stalls() {
    let Some(program) = example("faults") else { return };
    let run = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).output().expect("the example starts");
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    // By itself it has no launcher's variables and takes simulated devices.
    let (is_success, text) = run(&["--fault", "none"]);
    assert!(is_success && (0..3).all(|rank| text.contains(&format!("rank {rank}: 400 steps"))), "{text}");
    let (_, text) = run(&["--fault", "stall", "--timeout", "1"]);
    assert!(text.contains("rank 2 stalls") && text.contains("for rank 2, which has been given up"), "{text}");
    let (is_success, text) = run(&["--fault", "kill"]);
    assert!(!is_success && text.contains("process per rank"), "{text}");
}
