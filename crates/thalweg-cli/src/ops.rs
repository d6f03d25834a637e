//! `thalweg ops`: the operators, as a list and as pages.

use std::process::ExitCode;

use anstyle::AnsiColor;
use clap::Args;
use serde_json::{Value, json};
use thalweg::dispatch::{Operator, operators};

use crate::output::{Failure, Output, paint};

/// Lists operators, or shows the schemas of one and what it computes
#[derive(Args)]
#[command(after_help = "\
Names are PyTorch's: add is every overload, add.Tensor is one. A part of a name
lists what has it.

Examples:
  thalweg ops
  thalweg ops add
  thalweg ops softmax --json")]
pub struct OpsArgs {
    /// One JSON object per overload
    #[arg(long)]
    json: bool,
    /// Parts of other operators too
    #[arg(long)]
    internal: bool,
    /// A name, an overload, or a part of a name
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &OpsArgs) -> Result<ExitCode, Failure> {
    let output = Output::standard();
    let all: Vec<&Operator> =
        operators().into_iter().filter(|operator| arguments.internal || !is_internal(operator)).collect();
    let exact = |operator: &&Operator, name: &str| operator.name() == name || operator.base_name() == name;
    let (found, is_page): (Vec<&Operator>, bool) = match &arguments.name {
        None => (all, false),
        Some(name) => {
            let page: Vec<&Operator> = all.iter().copied().filter(|operator| exact(operator, name)).collect();
            match page.is_empty() {
                false => (page, true),
                true => (
                    all.into_iter().filter(|operator| operator.name().contains(name.as_str())).collect(),
                    false,
                ),
            }
        }
    };
    if found.is_empty() {
        let name = arguments.name.as_deref().unwrap_or_default();
        return Err(Failure(format!("no operator has '{name}' in its name; `thalweg ops` lists them all")));
    }
    if arguments.json {
        found.iter().for_each(|operator| output.json(&as_json(operator)));
    } else if is_page {
        found.iter().for_each(|operator| page(&output, operator));
    } else {
        list(&output, &found);
    }
    Ok(ExitCode::SUCCESS)
}

fn is_internal(operator: &Operator) -> bool {
    operator.name().contains("::")
}

/// Prints names in columns, one for all overloads of an operator.
fn list(output: &Output, found: &[&Operator]) {
    let mut names: Vec<&str> =
        found.iter().map(|operator| operator.name().split('.').next().unwrap_or_default()).collect();
    names.dedup();
    let wide = names.iter().map(|name| name.len()).max().unwrap_or(0) + 2;
    let columns = (output.width() / wide).max(1);
    let rows = names.len().div_ceil(columns);
    for row in 0..rows {
        let line: String =
            names.iter().skip(row).step_by(rows).map(|name| format!("{name:<wide$}")).collect();
        output.text(&format!("{}\n", line.trim_end()));
    }
    output.line(
        0,
        &format!("\n{} operators, {} overloads; thalweg ops NAME shows one.", names.len(), found.len()),
    );
}

/// Prints the documentation of an overload.
fn page(output: &Output, operator: &Operator) {
    output.line(4, &paint(AnsiColor::Cyan, &operator.schema().to_string(), 0));
    let documentation = operator.documentation().trim();
    if !documentation.is_empty() {
        let sentence: Vec<&str> = documentation.split_whitespace().collect();
        output.line(4, &format!("    {}", sentence.join(" ")));
    }
    output.line(4, &format!("    Computed by {}.", operator.computed_by()));
    if let Some(schema) = operator.in_place_schema() {
        output.line(4, &format!("    In place: {}", schema.name));
    }
    output.text("\n");
}

fn as_json(operator: &Operator) -> Value {
    json!({
        "name": operator.name(),
        "schema": operator.schema().to_string(),
        "documentation": operator.documentation().trim(),
        "computed_by": operator.computed_by(),
        "in_place": operator.in_place_schema().map(|schema| schema.name),
    })
}
