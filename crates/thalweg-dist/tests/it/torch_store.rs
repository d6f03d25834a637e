//! The client of PyTorch's `TCPStore`, tested with PyTorch's own server. `THALWEG_PYTHON` names a Python interpreter that has
//! PyTorch; without it, the one in the search path is tried.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use thalweg_dist::store::{Store, TorchStore};

use crate::stores::contract;

const LONG: Duration = Duration::from_secs(20);

/// A program that serves a store, exchanges a key with another client, and exits when its input is closed.
const SERVER: &str = r#"
import datetime, sys
import torch.distributed as dist
backend = sys.argv[1] == "libuv"
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=20), wait_for_workers=False, use_libuv=backend)
print(store.port, flush=True)
sys.stdin.readline()
store.set("from_python", store.get("to_python") + b"!")
store.add("sum", 40)
sys.stdin.read()
"#;

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn python() -> Option<String> {
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let imports =
        Command::new(&python).args(["-c", "import torch.distributed"]).stderr(Stdio::null()).status();
    imports.is_ok_and(|status| status.success()).then_some(python)
}

#[test]
fn pytorchs_server_is_a_store_as_any_other() {
    let Some(python) = python() else {
        eprintln!("SKIPPED: no PyTorch here; THALWEG_PYTHON names a Python that has it");
        return;
    };
    for backend in ["libuv", "threads"] {
        let mut command = Command::new(&python);
        let piped = command.args(["-c", SERVER, backend]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Server(piped.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = format!("127.0.0.1:{}", line.trim());
        let [one, other] = [(); 2].map(|()| TorchStore::connect(&address, LONG).unwrap());
        contract(&one, &other);

        one.set("to_python", b"a value").unwrap();
        one.add("sum", 2).unwrap();
        server.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(other.get("from_python").unwrap(), b"a value!", "{backend}");
        let begin = std::time::Instant::now();
        while one.get("sum").unwrap() != b"42" {
            assert!(begin.elapsed() < LONG, "PyTorch's client adds to the same number");
        }

        drop(server);
        let error = one.find("sum").unwrap_err();
        assert!(error.is_distributed() && error.to_string().contains(&address), "{error}");
    }
}

#[test]
fn a_server_of_another_kind_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // Closes what says something it does not know.
            let _ = stream.read(&mut [0; 5]);
        }
    });
    let error = TorchStore::connect(&address, Duration::from_millis(50)).unwrap_err();
    assert!(error.is_distributed() && error.to_string().contains(&address), "{error}");
}
