//! The header against the library: the same functions, and structures of the same layout.

use std::collections::BTreeSet;
use thalweg_torch::interface::*;

const HEADER: &str = include_str!("../../include/thalweg_torch.h");

/// Returns the header without its comments.
fn code() -> String {
    let mut code = String::new();
    let mut rest = HEADER;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    code + rest
}

/// Returns names before an opening bracket that begin with `thalweg_`, outside structures and arguments.
fn declared() -> BTreeSet<String> {
    let code = code();
    let mut names = BTreeSet::new();
    let mut depth = 0_i32;
    let mut word = String::new();
    for character in code.chars() {
        match character {
            'a'..='z' | '_' | '0'..='9' => word.push(character),
            '(' => {
                if depth == 0 && word.starts_with("thalweg_") {
                    names.insert(std::mem::take(&mut word));
                }
                word.clear();
                depth += 1;
            }
            ')' => {
                depth -= 1;
                word.clear();
            }
            _ => word.clear(),
        }
    }
    names
}

fn exported() -> BTreeSet<String> {
    let sources = [
        include_str!("../../src/interface/mod.rs"),
        include_str!("../../src/interface/kernels.rs"),
        include_str!("../../src/interface/memory.rs"),
        include_str!("../../src/interface/pools.rs"),
        include_str!("../../src/interface/sanitizer.rs"),
        include_str!("../../src/interface/sharing.rs"),
        include_str!("../../src/interface/watch.rs"),
    ];
    let lines = sources.iter().flat_map(|source| source.lines()).map(str::trim_start);
    // An exported function is one of C's, or an entry of `exports!`.
    let begins =
        ["pub extern \"C\" fn ", "pub unsafe extern \"C\" fn ", "on(", "on_unless_forked(", "with_device("];
    let exports = lines.filter(|line| begins.iter().any(|begin| line.starts_with(begin)));
    exports
        .filter_map(|line| Some(format!("thalweg_{}", line.split(" thalweg_").nth(1)?.split('(').next()?)))
        .collect()
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let (declared, exported) = (declared(), exported());
    assert!(exported.len() > 40, "the exports were found: {exported:?}");
    let missing: Vec<_> = exported.difference(&declared).collect();
    assert!(missing.is_empty(), "not in the header: {missing:?}");
    let invented: Vec<_> = declared.difference(&exported).collect();
    assert!(invented.is_empty(), "only in the header: {invented:?}");
}

/// The shared library that cargo builds beside the tests has every symbol. The linker drops symbols that are not exported.
#[test]
fn the_shared_library_has_the_symbols() {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    let library = ["libthalweg_torch.so", "deps/libthalweg_torch.so"].map(|name| folder.join(name));
    let file =
        library.iter().find(|file| file.exists()).expect("cargo builds the shared library with the tests");
    let bytes = std::fs::read(file).unwrap();
    for name in declared() {
        let symbol = [b"\0", name.as_bytes(), b"\0"].concat();
        assert!(
            bytes.windows(symbol.len()).any(|window| window == symbol),
            "{name} is not exported by {file:?}"
        );
    }
}

/// C checks the numbers of the header against its structures wherever it is included; here they are checked against ours.
#[test]
fn structures_have_the_layout_of_the_header() {
    let sizes = [
        ("live_block", size_of::<LiveBlockC>()),
        ("segment_source", size_of::<SegmentSourceC>()),
        ("statistics", size_of::<StatisticsC>()),
        ("segment", size_of::<SegmentC>()),
        ("block", size_of::<BlockC>()),
        ("event", size_of::<EventC>()),
        ("annotation", size_of::<AnnotationC>()),
        ("visitor", size_of::<VisitorC>()),
        ("history_settings", size_of::<HistorySettingsC>()),
        ("stack_recorder", size_of::<StackRecorderC>()),
    ];
    for (name, bytes) in sizes {
        let line = format!("THALWEG_SIZE(thalweg_{name}, {bytes});");
        assert!(HEADER.contains(&line), "the header lacks {line}");
    }
    assert_eq!(HEADER.matches("\nTHALWEG_SIZE(").count(), sizes.len());
}

#[test]
fn the_versions_agree() {
    assert!(HEADER.contains(&format!("#define THALWEG_ABI_VERSION {}\n", thalweg_abi_version())));
    let python = include_str!("../../python/thalweg_torch/_library.py");
    assert!(python.contains(&format!("ABI_VERSION = {}\n", thalweg_abi_version())));
}
