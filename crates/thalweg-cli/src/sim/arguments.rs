//! The arguments of `thalweg sim`.

use crate::UsageError;

/// How many seconds one run may take if nobody says otherwise.
const TIMEOUT_S: u64 = 300;

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arguments {
    pub first: u64,
    pub seeds: u64,
    pub faults: bool,
    pub order_only: bool,
    /// How many seconds one run may take.
    pub timeout_s: u64,
    pub jobs: usize,
    pub json: bool,
    /// The program and its arguments: never empty.
    pub program: Vec<String>,
}

impl Arguments {
    /// Reads what stands behind the command's name.
    pub fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let Some(split) = arguments.iter().position(|argument| argument == "--") else {
            return Err(UsageError("write `--` before the program that is to run".to_owned()));
        };
        let (options, program) = (&arguments[..split], &arguments[split + 1..]);
        if program.is_empty() {
            return Err(UsageError("there is no program after `--`".to_owned()));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut parsed = Self {
            first: 0,
            seeds: 100,
            faults: false,
            order_only: false,
            timeout_s: TIMEOUT_S,
            jobs: processors,
            json: false,
            program: program.to_vec(),
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let mut number = || number(option, options.next());
            match option.as_str() {
                "--seeds" => parsed.seeds = number()?,
                "--first" => parsed.first = number()?,
                "--jobs" => parsed.jobs = usize::try_from(number()?).unwrap_or(usize::MAX).clamp(1, 1024),
                "--timeout" => parsed.timeout_s = number()?.max(1),
                "--order-only" => parsed.order_only = true,
                "--faults" => parsed.faults = true,
                "--json" => parsed.json = true,
                _ => return Err(UsageError(format!("there is no option `{option}`"))),
            }
        }
        Ok(parsed)
    }
}

fn number(option: &str, value: Option<&String>) -> Result<u64, UsageError> {
    let Some(value) = value else { return Err(UsageError(format!("`{option}` needs a number"))) };
    value.parse().map_err(|_| UsageError(format!("`{option} {value}`: that is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words).map_err(|UsageError(text)| text)
    }

    #[test]
    fn options_stand_before_the_program() {
        let parsed = parse("--order-only --timeout 7 -- digits").unwrap();
        assert_eq!((parsed.order_only, parsed.timeout_s), (true, 7));
        let parsed = parse("--seeds 20 --faults --first 3 -- digits --steps 5 --json").unwrap();
        assert_eq!((parsed.first, parsed.seeds, parsed.faults, parsed.json), (3, 20, true, false));
        assert_eq!(parsed.program, ["digits", "--steps", "5", "--json"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_a_sentence() {
        for (line, part) in [
            ("digits", "`--`"),
            ("--seeds 3 --", "no program"),
            ("--seeds -- digits", "needs a number"),
            ("--seeds many -- digits", "no number"),
            ("--sedes 3 -- digits", "`--sedes`"),
        ] {
            let text = parse(line).unwrap_err();
            assert!(text.contains(part), "{line}: {text}");
        }
    }
}
