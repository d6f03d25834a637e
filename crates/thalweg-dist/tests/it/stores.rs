//! Stores: the same calls on each kind of store, waits, and failures.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_dist::store::{FileStore, HashStore, PrefixStore, Store, TcpStore};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(60);

/// A file that is deleted at the end of a test.
struct TestFile(std::path::PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-store-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn serve() -> TcpStore {
    TcpStore::serve("127.0.0.1:0", LONG).unwrap()
}

/// Checks the common contract of all stores on a store that two ranks use.
pub fn contract(one: &dyn Store, other: &dyn Store) {
    one.set("key", b"value").unwrap();
    assert_eq!(other.get("key").unwrap(), b"value");
    other.set("key", b"").unwrap();
    assert_eq!(one.find("key").unwrap(), Some(Vec::new()), "an empty value is a value");
    assert_eq!(one.find("nothing").unwrap(), None);

    assert_eq!(one.add("count", 3).unwrap(), 3);
    assert_eq!(other.add("count", -5).unwrap(), -2);
    assert_eq!(one.get("count").unwrap(), b"-2");
    one.set("count", b"forty").unwrap();
    assert!(other.add("count", 1).unwrap_err().to_string().contains("not a number"));

    assert_eq!(one.compare_set("first", b"", b"one").unwrap(), b"one");
    assert_eq!(other.compare_set("first", b"", b"other").unwrap(), b"one", "the first counts");
    assert_eq!(other.compare_set("first", b"one", b"two").unwrap(), b"two");
    assert_eq!(one.compare_set("absent", b"expected", b"new").unwrap(), b"expected");
    assert_eq!(one.find("absent").unwrap(), None);

    assert!(one.check(&["key", "first"]).unwrap() && !one.check(&["key", "absent"]).unwrap());
    assert!(other.delete_key("key").unwrap() && !one.delete_key("key").unwrap());
    assert_eq!(one.num_keys().unwrap(), 2);

    let text = one.wait(&["first", "a", "b"], SHORT).unwrap_err().to_string();
    assert!(text.contains("wait timeout after 60 ms, keys: \"a\", \"b\""), "{text}");

    let long = vec![7; 100_000];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| one.get("late"));
        std::thread::sleep(SHORT);
        other.set("late", &long).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), long);
    });
}

#[test]
fn stores_do_the_same() {
    let hash = HashStore::new();
    contract(&hash, &hash.clone());
    let file = TestFile::new("contract");
    contract(&FileStore::open(&file.0).unwrap(), &FileStore::open(&file.0).unwrap());
    let server = serve();
    contract(&server, &TcpStore::connect(&server.address().to_string(), LONG).unwrap());
}

#[test]
fn a_prefix_is_a_part_of_its_store() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (a, b) = (PrefixStore::new("a", store.clone()), PrefixStore::new("b", store.clone()));
    a.set("key", b"1").unwrap();
    b.set("key", b"2").unwrap();
    assert_eq!((a.get("key").unwrap(), b.get("key").unwrap()), (b"1".to_vec(), b"2".to_vec()));
    assert_eq!(store.get("a/key").unwrap(), b"1");
    assert_eq!(a.compare_set("key", b"1", b"3").unwrap(), b"3");
    assert_eq!(a.add("n", 2).unwrap() + b.add("n", 5).unwrap(), 7);
}

#[test]
fn many_ranks_add_at_once() {
    let server = serve();
    let file = TestFile::new("adds");
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (tcp, file) =
                    (TcpStore::connect(&address, LONG).unwrap(), FileStore::open(&file.0).unwrap());
                for _ in 0..25 {
                    tcp.add("sum", 1).unwrap();
                    file.add("sum", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(server.get("sum").unwrap(), b"200");
    assert_eq!(FileStore::open(&file.0).unwrap().get("sum").unwrap(), b"200");
}

#[test]
fn one_thread_waits_and_another_asks() {
    let server = serve();
    let client = TcpStore::connect(&server.address().to_string(), LONG).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.get("go"));
        std::thread::sleep(SHORT);
        // On the same store, whose connection is in use.
        client.set("go", b"now").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), b"now");
    });
}

#[test]
fn who_does_not_answer_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begin = Instant::now();
    let text = TcpStore::connect(&port.to_string(), SHORT).unwrap_err().to_string();
    assert!(text.contains(&format!("no store answers at {port}")) && text.contains("MASTER_ADDR"), "{text}");
    assert!(begin.elapsed() < LONG);

    let server = serve();
    let taken = TcpStore::serve(server.address(), LONG).unwrap_err();
    assert!(taken.is_distributed() && taken.to_string().contains("THALWEG_STORE_PORT"), "{taken}");

    // Something else listens there: it is not taken for a store.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let text = TcpStore::connect(&address, Duration::ZERO).unwrap_err().to_string();
    assert!(text.contains("not a store of Thalweg"), "{text}");
    answering.join().unwrap();
}

#[test]
fn a_server_survives_nonsense_and_its_end_is_told() {
    let server = serve();
    for nonsense in
        [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"thalweg1\xff\xff\xff\xff", b"thalweg1\x01\x00\x00\x00\x63"]
    {
        TcpStream::connect(server.address()).unwrap().write_all(nonsense).unwrap();
    }
    let client = TcpStore::connect(&server.address().to_string(), Duration::from_secs(1)).unwrap();
    client.set("key", b"1").unwrap();
    assert_eq!(server.get("key").unwrap(), b"1");
}

#[test]
fn a_file_of_something_else_is_no_store() {
    let file = TestFile::new("nonsense");
    std::fs::write(&file.0, "no records, but some text").unwrap();
    let text = FileStore::open(&file.0).unwrap_err().to_string();
    assert!(text.contains("Is it a new file?"), "{text}");
}
