//! The `run` script of a bundle, and its tests.

/// The script.
pub const SCRIPT: &str = include_str!("run.sh");

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};

    use super::super::make_executable;
    use super::SCRIPT;

    /// A bundle of programs that print their arguments.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("thalweg-run-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            let fake = Self(folder);
            fake.program("run", SCRIPT);
            fs::write(fake.0.join("VERSION"), "thalweg of a test\n").unwrap();
            fake.program("thalweg", "#!/bin/sh\necho \"$@\" on \"$THALWEG_DEVICE\"\n");
            fake.program("conformance", "#!/bin/sh\necho \"$@\"\n");
            fake.program("digits", "#!/bin/sh\necho losses: 0f\necho \"$@\"\n");
            fake.program("graph_study", "#!/bin/sh\necho study \"$@\" | cut -c1-25\n");
            fake.program("other", "#!/bin/sh\necho another example \"$@\"\n");
            fake.program("tests/thalweg-good", "#!/bin/sh\necho 'test result: ok. 3 passed'\necho more\n");
            fake.program("benches/thalweg-x", "#!/bin/sh\necho '{}'\necho '{}'\n");
            fake
        }

        fn program(&self, name: &str, text: &str) {
            let file = self.0.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            make_executable(&file).unwrap();
        }

        fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
            let mut command = Command::new(self.0.join("run"));
            command.args(["--device", "sim"]).args(arguments).env("OUT", self.0.join("out"));
            let Output { status, stdout, .. } =
                command.env_remove("THALWEG_PRECOMPILED_KERNELS").output().unwrap();
            (status.code(), String::from_utf8(stdout).unwrap())
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            // Files left in the temporary folder are harmless.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn everything_is_run_and_summed_up() {
        let fake = Fake::new("all");
        let (status, text) = fake.run(&["all"]);
        assert_eq!(status, Some(0), "{text}");
        for part in [
            "doctor ",
            "tests/good ",
            "ok. 3 passed",
            "digits-graph",
            "study --device sim --html",
            "another example",
            "the same in all three runs",
            "2 figures",
            "0 of the parts",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        for file in ["machine.txt", "summary.txt", "tests-good.log", "bench-x.log"] {
            assert!(fake.0.join("out").join(file).is_file(), "{file}");
        }
    }

    #[test]
    fn a_part_that_fails_is_seen_and_the_others_still_run() {
        let fake = Fake::new("failing");
        fake.program("tests/thalweg-bad", "#!/bin/sh\necho it broke\nexit 101\n");
        fake.program("digits", "#!/bin/sh\necho losses: $$\n");
        let (status, text) = fake.run(&["all"]);
        assert_eq!(status, Some(1), "{text}");
        for part in ["   | it broke", "tests/good ", "they differ", "2 of the parts failed"] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert_eq!(fake.run(&["tests", "good"]).0, Some(0), "only what was named");
        assert_eq!(fake.run(&["tests", "thalweg-bad"]).0, Some(1));
    }

    #[test]
    fn packed_programs_are_unpacked_at_the_first_call() {
        let fake = Fake::new("packed");
        let fresh = fake.0.join("fresh/programs");
        fs::create_dir_all(&fresh).unwrap();
        fs::rename(fake.0.join("thalweg"), fresh.join("thalweg")).unwrap();
        fs::rename(fake.0.join("tests"), fresh.join("tests")).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(fake.0.join("fresh"))
            .arg("-cJf")
            .arg(fake.0.join("programs.tar.xz"))
            .arg("programs");
        assert!(tar.status().unwrap().success());
        fs::remove_dir_all(fake.0.join("fresh")).unwrap();
        assert_eq!(fake.run(&["doctor", "--json"]), (Some(0), "doctor --json on sim\n".to_owned()));
        assert!(fake.0.join("programs/thalweg").is_file());
        let (status, text) = fake.run(&["tests", "good"]);
        assert_eq!(status, Some(0), "{text}");
    }

    #[test]
    fn wrong_calls_do_nothing() {
        let fake = Fake::new("usage");
        for arguments in [&[][..], &["nothing"], &["--device", "tpu", "all"], &["--device"]] {
            let (status, text) = fake.run(arguments);
            assert_eq!((status, text.as_str()), (Some(2), ""), "{arguments:?}");
        }
        assert_eq!(fake.run(&["--help"]).0, Some(0));
        assert_eq!(fake.run(&["doctor", "--json"]), (Some(0), "doctor --json on sim\n".to_owned()));
        assert_eq!(fake.run(&["other", "x"]), (Some(0), "another example x\n".to_owned()));
        assert_eq!(fake.run(&["tests/thalweg-good"]).0, Some(2), "a part is not a path");
        assert!(!fake.0.join("out").exists());
    }

    #[test]
    fn kernels_are_unpacked_once_and_again_when_there_are_newer_ones() {
        let fake = Fake::new("kernels");
        let pack = |content: &str| {
            let kernels = fake.0.join("fresh/kernels/sm_90");
            fs::create_dir_all(&kernels).unwrap();
            fs::write(kernels.join("a.kernel"), content).unwrap();
            let archive = fake.0.join("kernels.tar.xz");
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(fake.0.join("fresh")).arg("-cJf").arg(archive).arg("kernels");
            assert!(tar.status().unwrap().success());
        };
        fake.program("thalweg", "#!/bin/sh\ncat \"$THALWEG_PRECOMPILED_KERNELS\"/sm_90/a.kernel\n");
        let unpacked = |path: &Path| fs::read_to_string(path.join("sm_90/a.kernel")).unwrap();
        pack("first");
        assert_eq!(fake.run(&["doctor"]), (Some(0), "first".to_owned()));
        assert_eq!(unpacked(&fake.0.join("kernels")), "first");
        fs::write(fake.0.join("kernels/sm_90/a.kernel"), "kept").unwrap();
        assert_eq!(fake.run(&["doctor"]).1, "kept", "not unpacked again");
        std::thread::sleep(std::time::Duration::from_millis(20));
        pack("second");
        assert_eq!(fake.run(&["doctor"]).1, "second");
        let names = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut left: Vec<String> = fs::read_dir(&fake.0).unwrap().map(names).collect();
        left.retain(|name| name.starts_with("kernels"));
        left.sort();
        assert_eq!(left, ["kernels", "kernels.tar.xz"], "nothing half-way is left");
    }
}
