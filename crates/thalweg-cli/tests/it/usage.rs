//! Calls that are right or wrong before anything is done.

use crate::{text, thalweg};

#[test]
fn wrong_arguments_are_explained_with_status_2() {
    for (arguments, complaint) in [
        (&["docter"][..], "no command `docter`; the commands are: audit, doctor"),
        (&["help", "docter"], "no command `docter`"),
        (&["doctor", "--jason"], "thalweg doctor: there is no option `--jason`"),
        (&["doctor", "cuda"], "no option `cuda`"),
        (&["--quick"], "no command `--quick`"),
        (&["--version", "extra"], "--version stands alone, without `extra`"),
        (&[], "usage: thalweg COMMAND"),
    ] {
        let output = thalweg(arguments, &[]);
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaints}");
        assert!(complaints.contains(complaint), "{arguments:?}: {complaints}");
        let last = complaints.lines().last().unwrap_or_default();
        assert!(complaints.lines().count() <= 2 || arguments.is_empty(), "the help hides it: {complaints}");
        assert!(last.contains("--version") || last.contains(complaint) || last.contains("--help"), "{last}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (arguments, expected) in [
        (&["--help"][..], "doctor"),
        (&["help"], "usage: thalweg COMMAND"),
        (&["help", "doctor"], "usage: thalweg doctor"),
        (&["doctor", "--json", "--help"], "usage: thalweg doctor"),
        (&["--version"], concat!("thalweg ", env!("CARGO_PKG_VERSION"))),
    ] {
        let output = thalweg(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).contains(expected), "{arguments:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
}

/// Output that is lost is no success, and who does not listen to complaints makes no panic.
#[test]
fn a_full_disk_is_told() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    for arguments in [&["doctor"][..], &["--help"], &["--version"]] {
        let mut command = std::process::Command::new(crate::program());
        let output = command.args(arguments).stdout(full()).output().expect("the program starts");
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaints}");
        assert!(complaints.contains("the output could not be written"), "{arguments:?}: {complaints}");
    }
    for arguments in [&["memory", "show", "/nonexistent"][..], &["memory", "shw"], &[]] {
        let mut command = std::process::Command::new(crate::program());
        let output = command.args(arguments).stderr(full()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
