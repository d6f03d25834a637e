//! Builds every program of the workspace with one call of Cargo, and reads their locations from its messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The kind of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A binary of a crate.
    Tool,
    /// An example.
    Example,
    /// The integration tests of a crate.
    Test,
    /// A bench.
    Bench,
}

/// A program that was built.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BuiltProgram {
    pub kind: Kind,
    /// The crate of the program.
    pub package: String,
    /// The program's name within the crate.
    pub name: String,
    /// The folder of the crate.
    pub folder: PathBuf,
    pub executable: PathBuf,
}

/// Crates that never use a GPU: their programs would only make the bundle larger.
const WITHOUT_GPUS: [&str; 7] = [
    "xtask",
    "thalweg-derive",
    "thalweg-ir",
    "thalweg-kernels",
    "thalweg-lock",
    "thalweg-memory-tools",
    "thalweg-snapshot",
];

/// Builds the programs, stripped, without the library tests, which test private items.
pub fn build(root: &Path) -> Result<Vec<BuiltProgram>, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .args(["build", "--workspace", "--profile", "bundle", "--bins", "--examples"])
        .args(WITHOUT_GPUS.iter().flat_map(|name| ["--exclude", *name]))
        .args(["--test", "it", "--bench", "*", "--message-format", "json-render-diagnostics"])
        // Flags of this machine (`target-cpu=native`, say) would make programs that others cannot run.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err("the build failed".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<BuiltProgram> = messages.lines().filter_map(program).collect();
    programs.sort();
    if programs.is_empty() {
        return Err("cargo named no program that it built".to_owned());
    }
    Ok(programs)
}

/// Returns the program that a message of Cargo reports, if any.
fn program(line: &str) -> Option<BuiltProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = PathBuf::from(message["executable"].as_str()?);
    let target = &message["target"];
    let kind = match target["kind"][0].as_str()? {
        "bin" => Kind::Tool,
        "example" => Kind::Example,
        "test" => Kind::Test,
        "bench" => Kind::Bench,
        _ => return None,
    };
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = folder.file_name()?.to_str()?.to_owned();
    Some(BuiltProgram { kind, package, name: target["name"].as_str()?.to_owned(), folder, executable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_programs() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/thalweg-x/Cargo.toml",
            "target":{"kind":["test"],"name":"it"},"executable":"/r/target/bundle/deps/it-01"}"#;
        let found = program(line).expect("a program");
        assert_eq!(
            (found.kind, found.package.as_str(), found.name.as_str()),
            (Kind::Test, "thalweg-x", "it")
        );
        assert_eq!(found.folder, Path::new("/r/crates/thalweg-x"));
        assert_eq!(program(&line.replace(r#""/r/target/bundle/deps/it-01""#, "null")), None, "a library");
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
