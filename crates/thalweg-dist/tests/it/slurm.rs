//! The script that starts ranks under SLURM, with stand-ins for `srun` and `scontrol`: three tasks on two nodes, both of which are this machine.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use thalweg_dist::{LaunchEnvironment, Rendezvous};

use crate::support::Folder;

/// Starts the tasks as SLURM would: two on the first node, one on the second.
const SRUN: &str = r#"#!/bin/sh
while [ "${1#--}" != "$1" ]; do echo "option $1"; shift; done
run() { procid=$1 node=$2 localid=$3; shift 3
    SLURM_PROCID=$procid SLURM_NODEID=$node SLURM_LOCALID=$localid SLURM_NTASKS=3 SLURM_STEP_TASKS_PER_NODE="2,1" "$@" &
}
run 0 0 0 "$@"; first=$!
run 1 0 1 "$@"; second=$!
run 2 1 0 "$@"; third=$!
wait $first && wait $second && wait $third
"#;

/// Names the nodes of the list that the test gives.
const SCONTROL: &str = r#"#!/bin/sh
[ "$*" = "show hostnames node[1-2]" ] || exit 3
echo 127.0.0.1
echo node2
"#;

/// The variable that makes the test binary a rank.
const CHILD: &str = "THALWEG_TEST_SLURM_TASK";

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a program by the script. Of the variables that launchers set, only the given ones are set.
fn script(folder: &Folder, variables: &[(&str, &str)], program: &[&str]) -> Output {
    executable(&folder.0.join("srun"), SRUN);
    executable(&folder.0.join("scontrol"), SCONTROL);
    let mut path = folder.0.clone().into_os_string();
    path.push(":/usr/bin:/bin");
    Command::new("sh")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../thalweg/examples/common/srun.sh"))
        .args(program)
        .env_clear()
        .env("PATH", path)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[test]
fn tasks_of_slurm_meet_with_the_variables_of_torchrun() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let folder = Folder::new("srun");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let own = std::env::current_exe().unwrap();
    let test = "slurm::tasks_of_slurm_meet_with_the_variables_of_torchrun";
    let variables = [
        (CHILD, "1"),
        ("SLURM_JOB_NODELIST", "node[1-2]"),
        ("SLURM_JOB_ID", "77"),
        // As a batch script has it, which runs outside of any task.
        ("SLURM_PROCID", "0"),
        ("MASTER_PORT", port.as_str()),
        ("OPTIONS_OF_SRUN", "--label --mem=0"),
    ];
    let output = script(&folder, &variables, &[own.to_str().unwrap(), "--exact", test, "--nocapture"]);
    let [text, errors] = texts(&output);
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.matches("met 3 ranks").count(), 3, "{text}{errors}");
    for place in
        ["rank 0, local 0 of 2, node 0", "rank 1, local 1 of 2, node 0", "rank 2, local 0 of 2, node 1"]
    {
        assert!(text.contains(place), "no {place} in {text}");
    }
    for option in ["option --kill-on-bad-exit=1", "option --label", "option --mem=0"] {
        assert!(text.contains(option), "no {option} in {text}");
    }
}

fn child() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let environment = LaunchEnvironment::get().unwrap().unwrap();
    assert_eq!(environment.master_address, "127.0.0.1");
    assert_eq!(environment.agent_store_prefix, None);
    let met = Rendezvous::of(&environment).unwrap();
    met.store.set(&format!("own/{}", met.rank), &[met.rank as u8]).unwrap();
    for rank in 0..met.world_size as u8 {
        assert_eq!(met.store.get(&format!("own/{rank}")).unwrap(), [rank]);
    }
    let (local, node) = (variable("LOCAL_WORLD_SIZE"), variable("GROUP_RANK"));
    println!(
        "rank {}, local {} of {local}, node {node}: met {} ranks",
        met.rank, met.local_rank, met.world_size
    );
    // The server lives until all are done.
    if met.store.add("done", 1).unwrap() == 3 {
        met.store.set("all", b"").unwrap();
    }
    met.store.get("all").unwrap();
    if met.rank == 0 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn the_script_chooses_the_first_host_and_a_port_of_the_job() {
    let folder = Folder::new("srun-port");
    let print = ["sh", "-c", "echo $RANK at $MASTER_ADDR:$MASTER_PORT"];
    let port = |variables: &[(&str, &str)]| {
        let output = script(&folder, variables, &print);
        let [text, errors] = texts(&output);
        assert!(output.status.success(), "{errors}");
        text
    };
    let job = [("SLURM_JOB_NODELIST", "node[1-2]"), ("SLURM_JOB_ID", "40007")];
    assert!(port(&job).contains("2 at 127.0.0.1:10007"));
    let chosen = [job[0], job[1], ("MASTER_ADDR", "head"), ("MASTER_PORT", "5")];
    assert!(port(&chosen).contains("1 at head:5"));
}

#[test]
fn mistakes_with_the_script_are_named_and_a_task_that_fails_is_told() {
    let folder = Folder::new("srun-mistakes");
    let output = script(&folder, &[("SLURM_JOB_NODELIST", "node[1-2]")], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output)[1].contains("usage: sbatch"), "{:?}", texts(&output));
    let output = script(&folder, &[], &["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output)[1].contains("SLURM_JOB_NODELIST is not set"), "{:?}", texts(&output));
    let fails = ["sh", "-c", "[ $RANK != 1 ]"];
    assert!(!script(&folder, &[("SLURM_JOB_NODELIST", "node[1-2]")], &fails).status.success());
    // Arguments come as they are.
    let print = ["printf", "<%s>", "two words", "", "$RANK"];
    let output = script(&folder, &[("SLURM_JOB_NODELIST", "node[1-2]")], &print);
    assert!(texts(&output)[0].contains("<two words><><$RANK>"), "{:?}", texts(&output));
}
