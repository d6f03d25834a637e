//! Tasks of this repository that are more than a line of shell: `cargo xtask bundle`, `cargo xtask wheel`, `cargo xtask python`,
//! `cargo xtask stubs`, `cargo xtask planted`, `cargo xtask release` and `cargo xtask tidy`.
//!
//! Exit statuses: 0 for success, 1 if the task failed or found something, 2 for a usage error.
#![forbid(unsafe_code)]

mod bundle;
mod planted;
mod progress;
mod python;
mod release;
mod tidy;
mod wheel;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Chores of this repository that are more than a line of shell
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    Bundle(bundle::BundleArgs),
    Wheel(WheelArgs),
    Python(python::TestArgs),
    /// Write the package's type stubs from the operator table
    Stubs,
    Planted(planted::PlantedArgs),
    Release(release::ReleaseArgs),
    /// Check sizes of files and functions, and what no source may contain
    Tidy,
}

/// Build the Python wheel `thalweg-torch`, or with `thalweg` the wheel of `import thalweg`
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
struct WheelArgs {
    #[command(flatten)]
    torch: wheel::TorchWheelArgs,
    #[command(subcommand)]
    package: Option<Package>,
}

/// A wheel other than `thalweg-torch`.
#[derive(Subcommand)]
enum Package {
    Thalweg(python::ThalwegWheelArgs),
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().chore {
        Chore::Bundle(arguments) => bundle::run(&arguments),
        Chore::Wheel(WheelArgs { package: Some(Package::Thalweg(arguments)), .. }) => {
            python::wheel(&arguments)
        }
        Chore::Wheel(WheelArgs { torch, package: None }) => wheel::run(&torch),
        Chore::Python(arguments) => python::test(&arguments),
        Chore::Stubs => python::stubs(),
        Chore::Planted(arguments) => planted::run(&arguments),
        Chore::Release(arguments) => release::run(&arguments),
        Chore::Tidy => tidy::run(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    // The variable is read at run time, so that a checkout that was moved after the build is still found; otherwise the folder of
    // the build is used.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().expect("this package lies in the repository").to_path_buf()
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn chores_are_parsed() {
        let parse = |line: &str| CommandLine::try_parse_from(line.split(' ')).map(|line| line.chore);
        let wheel = parse("xtask wheel thalweg --profile dev");
        assert!(matches!(wheel, Ok(Chore::Wheel(WheelArgs { package: Some(Package::Thalweg(_)), .. }))));
        assert!(matches!(
            parse("xtask wheel --objects-only"),
            Ok(Chore::Wheel(WheelArgs { package: None, .. }))
        ));
        assert!(parse("xtask wheel --torch one --torch two --cuda three").is_ok());
        assert!(parse("xtask python tensors graphs").is_ok());
        assert!(parse("xtask python --python python3.13t threads").is_ok());
        assert!(parse("xtask wheel thalweg --python /opt/bin/python3.13t").is_ok());
        let refused = |line: &str| parse(line).err().map(|error| error.kind());
        assert_eq!(refused("xtask wheel --torch one"), Some(ErrorKind::MissingRequiredArgument));
        assert_eq!(refused("xtask tidy all"), Some(ErrorKind::UnknownArgument));
        assert_eq!(refused("xtask planted one two"), Some(ErrorKind::UnknownArgument));
        let misspelt = parse("xtask bundle --arch sm_90").err().expect("it is not a flag").to_string();
        assert!(misspelt.contains("--archs"), "{misspelt}");
    }
}
