//! The arguments of all subcommands: files, and options that a subcommand takes or refuses.

use crate::UsageError;

/// Options that stand alone, and those that a value follows, behind the next argument or an equals sign.
const FLAGS: &[&str] = &["--json", "--search", "--stacks"];
const VALUED: &[&str] = &[
    "--top",
    "--html",
    "--conf",
    "--policy",
    "--card",
    "--at",
    "--max-reserved",
    "--max-growth",
    "--category",
    "--device",
    "--find",
    "--from",
    "--count",
];

/// What stands behind the name of a subcommand.
#[derive(Debug)]
pub struct Arguments {
    files: Vec<String>,
    options: Vec<(&'static str, Option<String>)>,
}

impl Arguments {
    pub fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut this = Self { files: Vec::new(), options: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                this.files.extend(rest.by_ref().cloned());
            } else if argument == "-" || !argument.starts_with('-') {
                this.files.push(argument.clone());
            } else {
                let (name, inline) = match argument.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (argument.as_str(), None),
                };
                if let Some(flag) = FLAGS.iter().find(|flag| **flag == name) {
                    if inline.is_some() {
                        return Err(UsageError(format!("{flag} takes no value")));
                    }
                    this.options.push((flag, None));
                } else if let Some(option) = VALUED.iter().find(|option| **option == name) {
                    let value = inline.or_else(|| rest.next().cloned());
                    let value = value.ok_or_else(|| UsageError(format!("{option} needs a value")))?;
                    this.options.push((option, Some(value)));
                } else {
                    return Err(UsageError(format!("there is no option `{name}`")));
                }
            }
        }
        Ok(this)
    }

    /// Refuses options that the subcommand has no use for. `--json` is for all.
    pub fn only(&self, taken: &[&str]) -> Result<(), UsageError> {
        match self.options.iter().find(|(name, _)| *name != "--json" && !taken.contains(name)) {
            Some((name, _)) => Err(UsageError(format!("{name} is for another subcommand"))),
            None => Ok(()),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(option, _)| *option == name)
    }

    /// The value of an option; of the last, if it is there several times.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).last()
    }

    pub fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.options
            .iter()
            .filter(move |(option, _)| *option == name)
            .filter_map(|(_, value)| value.as_deref())
    }

    /// The value of an option, read by `read`.
    pub fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, UsageError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let complaint = || UsageError(format!("{name} takes {expected}, not `{value}`"));
        read(value).map(Some).ok_or_else(complaint)
    }

    /// The files, of which there must be at least one.
    pub fn files(&self) -> Result<&[String], UsageError> {
        match &self.files[..] {
            [] => Err(UsageError("which snapshot?".into())),
            files => Ok(files),
        }
    }

    /// How many sizes and places are shown.
    pub fn top(&self) -> Result<usize, UsageError> {
        Ok(self.read("--top", "a whole number", |text| text.parse().ok())?.unwrap_or(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, String> {
        let owned: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        Arguments::parse(&owned).map_err(|UsageError(text)| text)
    }

    #[test]
    fn values_follow_or_are_joined_and_a_bare_dash_is_a_file() {
        let parsed =
            parse(&["a", "--conf", "x:1", "--conf=y:2", "-", "--json", "--", "--top"]).expect("it is right");
        assert_eq!(parsed.files, ["a", "-", "--top"]);
        assert_eq!(parsed.values("--conf").collect::<Vec<_>>(), ["x:1", "y:2"]);
        assert!(parsed.has("--json") && !parsed.has("--search"));
        assert!(parsed.only(&["--conf"]).is_ok() && parsed.only(&[]).is_err());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (arguments, what) in [
            (&["--jsn"][..], "no option `--jsn`"),
            (&["--conf"], "needs a value"),
            (&["--json=1"], "takes no value"),
        ] {
            assert!(parse(arguments).expect_err("it is wrong").contains(what));
        }
        let top = parse(&["--top", "many"]).expect("the value is looked at later").top();
        assert_eq!(
            top.map_err(|UsageError(text)| text),
            Err("--top takes a whole number, not `many`".into())
        );
    }
}
