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
        (&[], "usage: thalweg COMMAND"),
    ] {
        let output = thalweg(arguments, &[]);
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaints}");
        assert!(complaints.contains(complaint), "{arguments:?}: {complaints}");
        assert!(complaints.contains("usage: thalweg"), "{arguments:?}: {complaints}");
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
