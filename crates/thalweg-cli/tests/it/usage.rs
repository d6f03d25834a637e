//! Command lines that are accepted or refused before anything runs.

use std::process::{Command, Stdio};

use crate::{program, scratch, text, thalweg};

const COMMANDS: [&[&str]; 15] = [
    &["audit"],
    &["doctor"],
    &["explain"],
    &["memory"],
    &["memory", "show"],
    &["memory", "replay"],
    &["memory", "diff"],
    &["memory", "check"],
    &["memory", "events"],
    &["memory", "at"],
    &["memory", "flame"],
    &["ops"],
    &["sim"],
    &["completions"],
    &["man"],
];

/// Checks that the message is short and that only the remedy follows it, so that it stays visible.
#[test]
fn wrong_arguments_are_explained_with_status_2() {
    for (arguments, complaint) in [
        (&["docter"][..], "unrecognized subcommand 'docter'\n  tip: a similar subcommand exists: 'doctor'"),
        (&["help", "docter"], "unrecognized subcommand 'docter'"),
        (
            &["doctor", "--jason"],
            "unexpected argument '--jason' found\n  tip: a similar argument exists: '--json'",
        ),
        (&["doctor", "cuda"], "unexpected argument 'cuda' found"),
        (&["--quick"], "unexpected argument '--quick' found"),
        (&["memory", "shw", "x"], "a similar subcommand exists: 'show'"),
        (&["memory", "show"], "not provided:\n  <SNAPSHOT>..."),
        (
            &["memory", "show", "x", "--conf", "max_split_size_mb:64"],
            "--conf draws a curve on the page of --html",
        ),
        (&["memory", "diff", "x"], "not provided:\n  <AFTER>"),
        (&["memory", "flame", "x", "--at", "pek"], "a similar value exists: 'peak'"),
        (&["memory", "show", "x", "--category", "x="], "'x=' for '--category <NAME=TEXT>': write NAME=TEXT"),
        (&["memory", "replay", "x", "--conf", "max_split:1"], "--conf max_split:1: "),
        (&["sim", "--seeds", "3", "--"], "not provided:\n  <PROGRAM>..."),
        (&["sim", "--seeds", "many", "--", "x"], "'many' for '--seeds <N>'"),
        (&["sim", "--sedes", "3", "--", "x"], "a similar argument exists: '--seeds'"),
        (&["sim", "--timeout", "0", "--", "x"], "'0' for '--timeout <SECONDS>'"),
        (&["ops", "qwerty"], "no operator has 'qwerty' in its name"),
        (&["completions", "tcsh"], "possible values: bash, elvish, fish"),
        (&["--color", "alwyas", "doctor"], "a similar value exists: 'always'"),
    ] {
        let output = thalweg(arguments, &[]);
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaints}");
        assert!(
            complaints.starts_with("error: ") && complaints.contains(complaint),
            "{arguments:?}: {complaints}"
        );
        assert!(complaints.lines().count() <= 4, "the help hides it: {complaints}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (arguments, expected) in [
        (&["--help"][..], "Usage: thalweg [OPTIONS] <COMMAND>"),
        (&["help"], "Usage: thalweg [OPTIONS] <COMMAND>"),
        (&["help", "doctor"], "Usage: thalweg doctor"),
        (&["doctor", "--json", "--help"], "Usage: thalweg doctor"),
        (&["--version"], concat!("thalweg ", env!("CARGO_PKG_VERSION"))),
    ] {
        let output = thalweg(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).contains(expected), "{arguments:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
    for arguments in [&[][..], &["memory"]] {
        let output = thalweg(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("Examples:"), "{arguments:?}");
    }
}

/// Checks that the program accepts the examples in its own help, up to files that do not exist.
#[test]
fn the_help_has_examples_that_are_right_and_fits_the_width() {
    let folder = scratch("examples");
    std::fs::create_dir_all(&folder).expect("the folder of temporary files takes folders");
    for command in COMMANDS {
        let output = thalweg(&[command, &["--help"]].concat(), &[("COLUMNS", "80")]);
        let help = text(&output.stdout);
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        let examples = help.lines().skip_while(|line| !line.starts_with("Example"));
        let examples: Vec<&str> =
            examples.skip(1).take_while(|line| !line.is_empty()).map(str::trim).collect();
        assert!(!examples.is_empty(), "{help}");
        for example in examples {
            let alone = example.split([';', '|', '>', '&']).next().expect("a split has a part");
            let called = alone.replacen("thalweg", "\"$0\"", 1).replace('~', ".");
            let mut shell = Command::new("sh");
            shell.args(["-c", &called]).arg(program()).current_dir(&folder).stdout(Stdio::null());
            let output = shell.env("THALWEG_CACHE_DIR", "").output().expect("there is a shell");
            let complaints = text(&output.stderr);
            let is_right = complaints.is_empty()
                || complaints.contains("No such file")
                || complaints.contains("no device")
                || complaints.contains("cuda");
            assert!(is_right, "{example}: {complaints}");
        }
    }
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn colour_is_for_terminals_and_for_who_asks() {
    let is_coloured = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = thalweg(arguments, variables);
        text(&output.stdout).contains('\x1b') || text(&output.stderr).contains('\x1b')
    };
    for arguments in
        [&["--help"][..], &["doctr"], &["audit", "--device", "sim", "train"], &["sim", "--", "true"]]
    {
        let with = |color: &'static str| [&["--color", color][..], arguments].concat();
        let has_colour = arguments[0] != "audit";
        assert!(!is_coloured(arguments, &[]), "{arguments:?}");
        assert_eq!(is_coloured(&with("always"), &[("NO_COLOR", "1")]), has_colour, "{arguments:?}");
        assert_eq!(is_coloured(arguments, &[("CLICOLOR_FORCE", "1")]), has_colour, "{arguments:?}");
        assert!(!is_coloured(arguments, &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "0")]), "{arguments:?}");
        assert!(!is_coloured(&with("never"), &[("CLICOLOR_FORCE", "1")]), "{arguments:?}");
    }
}

#[test]
fn shells_and_manual_pages_know_every_command() {
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef thalweg"), ("fish", "complete -c thalweg")]
    {
        let script = text(&thalweg(&["completions", shell], &[]).stdout);
        assert!(script.contains(part) && script.contains("max-reserved"), "{shell}");
    }
    let folder = scratch("man").join("man1");
    let output = thalweg(&["man", folder.to_str().expect("its name is text")], &[]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), ""));
    for command in COMMANDS {
        let name = format!("thalweg-{}.1", command.join("-"));
        let page =
            std::fs::read_to_string(folder.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH OPTIONS") && page.contains("Example"), "{name}");
    }
    std::fs::remove_dir_all(folder.parent().expect("it has one")).expect("it is ours");
    let output = thalweg(&["man", "/dev/null/x"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: /dev/null/x: "), "{}", text(&output.stderr));
}

/// Checks that lost output is reported as a failure, and that a closed standard error causes no panic.
#[test]
fn a_full_disk_is_told() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    for arguments in [&["doctor"][..], &["--help"], &["--version"], &["completions", "bash"]] {
        let mut command = Command::new(program());
        let output = command.args(arguments).stdout(full()).output().expect("the program starts");
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaints}");
        assert!(complaints.contains("the output could not be written"), "{arguments:?}: {complaints}");
    }
    for arguments in [&["memory", "show", "/nonexistent"][..], &["memory", "shw"], &[]] {
        let mut command = Command::new(program());
        let output = command.args(arguments).stderr(full()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
