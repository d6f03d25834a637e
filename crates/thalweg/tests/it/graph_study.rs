//! The example `graph_study`: its checks hold, and its text, page and JSON have the same figures.

use std::path::PathBuf;

use crate::{example, printed, refuses, run};

/// A folder of its own for a test, which goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-graph-study-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Self(path)
    }

    fn page(&self) -> String {
        self.0.join("page.html").to_str().expect("a path in text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the value of a key in a flat line of JSON, without its quotes.
fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!("\"{key}\": ")).unwrap_or_else(|| panic!("no {key} in {line}"));
    rest.split([',', '}']).next().expect("a split has a first part").trim_matches('"')
}

#[test]
fn every_check_holds_and_the_page_has_the_figures_of_the_json() {
    let Some(program) = example("graph_study") else { return };
    let folder = Folder::new("figures");
    let json = printed(&program, &["--rounds", "3", "--layers", "1", "--json", "--html", &folder.page()]);
    let page = std::fs::read_to_string(folder.page()).expect("the page was written");
    let figures: Vec<&str> = json.lines().collect();
    for line in &figures {
        let name = value(line, "name").strip_prefix("graph_study_").expect("the example's own figures");
        let number = value(line, "value");
        assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        let on_page = format!("<data id=\"{name}\" value=\"{number}\">{number}</data>");
        assert_eq!(page.matches(&on_page).count(), 1, "{line}");
    }
    assert_eq!(page.matches("<data ").count(), figures.len(), "the page has no figure that the JSON lacks");
    let figure = |name: &str| {
        let found = figures.iter().find(|line| value(line, "name") == format!("graph_study_{name}"));
        value(found.unwrap_or_else(|| panic!("no figure {name} in:\n{json}")), "value")
    };
    for (name, expected) in [
        ("smoke_identical", "3"),
        ("allocations_replay_requests", "0"),
        ("allocations_replay_driver", "0"),
        ("updated_kernel_instantiated", "0"),
        ("updated_whole_instantiated", "0"),
        ("lengths_sizes_recordings", "4"),
        ("fork_identical", "3"),
        ("region_obstacles", "0"),
    ] {
        assert_eq!(figure(name), expected, "{name}");
    }
    assert!(!page.contains("does not hold"), "every check holds");
    assert!(page.contains("unjoined fork") && page.contains("prefers-color-scheme: dark"));
    assert_eq!(page.matches("<svg ").count(), 2);
    for outside in ["http:", "https:", "<script", " src=", "<link"] {
        assert!(!page.contains(outside), "the page needs nothing else, but has '{outside}'");
    }
}

#[test]
fn the_tables_line_up_in_eighty_columns() {
    let Some(program) = example("graph_study") else { return };
    let folder = Folder::new("tables");
    let text = printed(&program, &["--rounds", "1", "--layers", "1", "--html", &folder.page()]);
    for line in text.lines().filter(|line| !line.contains(&folder.page())) {
        // Paths are never broken, since they are there to be copied.
        assert!(line.chars().count() <= 80 || line.contains(".rs:"), "{line}");
    }
    assert!(
        text.lines().last().is_some_and(|last| last.starts_with("all ") && last.ends_with(" checks hold"))
    );
    let start = text.lines().position(|line| line.contains("host p50")).expect("the table of ways");
    let ends: Vec<usize> = text.lines().skip(start).take(6).map(|line| line.chars().count()).collect();
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}:\n{text}");
}

#[test]
fn what_it_does_not_know_is_refused() {
    let Some(program) = example("graph_study") else { return };
    for (arguments, words) in [
        (&["--round", "3"][..], "unknown argument --round"),
        (&["--rounds"], "--rounds needs a value"),
        (&["--rounds", "0"], "whole number"),
        (&["--layers", "0"], "whole number"),
    ] {
        let output = refuses(&program, arguments, words);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: graph_study "), "{arguments:?}");
    }
    refuses(&program, &["--device", "sim:7"], "no device");
    let folder = Folder::new("missing");
    let nowhere = folder.0.join("no such folder").join("page.html");
    let nowhere = nowhere.to_str().expect("a path in text");
    refuses(&program, &["--rounds", "1", "--html", nowhere], "cannot be written");
    assert!(run(&program, &["--help"]).status.success());
}
