//! The environment variables of torchrun, SLURM and MPI, and processes that find each other by them.

use std::process::Command;

use thalweg_dist::{GroupOptions, LaunchEnvironment, Rendezvous};

fn environment(variables: &[(&str, &str)]) -> thalweg_runtime::Result<Option<LaunchEnvironment>> {
    LaunchEnvironment::from_variables(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")];

#[test]
fn launchers_are_understood() {
    assert_eq!(environment(&[]).unwrap(), None);
    assert_eq!(environment(&MASTER).unwrap(), None, "without a rank a process is alone");
    let at = |local_rank, store_port, prefix: Option<&str>| {
        let (master_address, agent_store_prefix) = ("host".to_owned(), prefix.map(str::to_owned));
        Some(LaunchEnvironment {
            rank: 3,
            world_size: 8,
            local_rank,
            master_address,
            store_port,
            agent_store_prefix,
        })
    };
    let wanted = |local_rank, store_port| at(local_rank, store_port, None);
    let torchrun = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), MASTER[0], MASTER[1]];
    assert_eq!(environment(&torchrun).unwrap(), wanted(1, 29500));
    // torchrun serves a store at the port, which a later start of the ranks sees as an empty one.
    let agent = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(environment(&agent).unwrap(), at(1, 29500, Some("thalweg/none/0")));
    let again = [("TORCHELASTIC_RUN_ID", "job"), ("TORCHELASTIC_RESTART_COUNT", "2")];
    let again = [&agent[..], &again].concat();
    assert_eq!(environment(&again).unwrap(), at(1, 29500, Some("thalweg/job/2")));
    let none = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "False")]].concat();
    assert_eq!(environment(&none).unwrap(), wanted(1, 29500));
    let own = [&agent[..], &[("THALWEG_STORE_PORT", "7")]].concat();
    assert_eq!(environment(&own).unwrap(), wanted(1, 7));
    let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "2"), MASTER[0], MASTER[1]];
    assert_eq!(environment(&slurm).unwrap(), wanted(2, 29500));
    let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8"), MASTER[0], MASTER[1]];
    assert_eq!(environment(&mpi).unwrap(), wanted(0, 29500));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("RANK", "0")], "environment variable WORLD_SIZE expected, but not set"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR expected"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2"), MASTER[0]], "MASTER_PORT expected"),
        (&[("RANK", "two"), ("WORLD_SIZE", "2")], "RANK=two is not a number"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2"), MASTER[0], MASTER[1]], "rank 2 is not in a world of 2"),
    ];
    for (variables, wanted) in cases {
        let error = environment(variables).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(wanted), "{error}");
    }
}

/// The variable that makes the test binary a rank.
const CHILD: &str = "THALWEG_TEST_RANK_PROCESS";

#[test]
fn processes_meet_and_exchange_by_the_store() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "environment::processes_meet_and_exchange_by_the_store", "--nocapture"])
            .env(CHILD, "1")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "3")
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .output()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = [2, 0, 1].map(|rank| scope.spawn(move || start(rank))).into_iter().collect();
        for rank in ranks {
            let output = rank.join().unwrap().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && text.contains("met 3 ranks"), "{text}{errors}");
        }
    });
}

fn child() {
    let met = Rendezvous::from_environment().unwrap().unwrap();
    assert_eq!((met.world_size, met.local_rank), (3, met.rank));
    met.store.set(&format!("own/{}", met.rank), &[met.rank as u8]).unwrap();
    for rank in 0..3u8 {
        assert_eq!(met.store.get(&format!("own/{rank}")).unwrap(), [rank]);
    }
    println!("met {} ranks", met.world_size);
    // Simulated devices of several processes learn that they do not reach each other, and no rank waits for long.
    let device = thalweg_dist::simulated_devices(1).unwrap().remove(0);
    let group = met.init_process_group(&device, GroupOptions::default());
    match met.rank {
        0 => assert_eq!(group.unwrap().size(), 3),
        _ => assert!(group.unwrap_err().to_string().contains("run the ranks as threads")),
    }
    // The server lives until all are done.
    let done = met.store.add("done", 1).unwrap();
    if done == 3 {
        met.store.set("all", b"").unwrap();
    }
    met.store.get("all").unwrap();
    if met.rank == 0 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// The variable by which the test below makes its own binary a rank.
const ELASTIC_CHILD: &str = "THALWEG_TEST_ELASTIC_PROCESS";

#[test]
fn ranks_of_torchrun_meet_at_its_store_which_outlives_rank_0() {
    if std::env::var_os(ELASTIC_CHILD).is_some() {
        return elastic_child();
    }
    let Some(python) = crate::torch_store::python() else {
        eprintln!("SKIPPED: no PyTorch here; THALWEG_PYTHON names a Python that has it");
        return;
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = Command::new(python)
        .args(["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=3", "--max-restarts=1"])
        .args(["--master-addr=127.0.0.1", &format!("--master-port={port}"), "--no-python"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "environment::ranks_of_torchrun_meet_at_its_store_which_outlives_rank_0"])
        .arg("--nocapture")
        .env(ELASTIC_CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.matches("met after rank 0 had ended").count(), 2, "{text}{errors}");
}

fn elastic_child() {
    let met = Rendezvous::from_environment().unwrap().unwrap();
    let key = |what: &str| format!("{what}/{}", met.rank);
    // A restart begins with no keys of the start before.
    assert_eq!(met.store.add(&key("starts"), 1).unwrap(), 1);
    for rank in 0..3 {
        met.store.get(&format!("starts/{rank}")).unwrap();
    }
    if std::env::var("TORCHELASTIC_RESTART_COUNT").unwrap() == "0" {
        assert_ne!(met.rank, 1, "ends the first start");
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
    if met.rank == 0 {
        met.store.set("process", std::process::id().to_string().as_bytes()).unwrap();
        return;
    }
    let process = String::from_utf8(met.store.get("process").unwrap()).unwrap();
    let begin = std::time::Instant::now();
    // What ended is gone, or waits as a zombie for torchrun to notice it.
    let is_running = || {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    while is_running() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "rank 0 does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    met.store.set(&key("own"), b"1").unwrap();
    for rank in 1..3 {
        assert_eq!(met.store.get(&format!("own/{rank}")).unwrap(), b"1");
    }
    println!("met after rank 0 had ended");
}
