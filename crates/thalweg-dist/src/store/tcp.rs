//! [`TcpStore`]: a server in one process, clients in all.
//!
//! The server has a thread that accepts and one per connection, which answers one request after the other. It lives as long as
//! the store that started it, so the process of rank 0 must outlive the requests of the others.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result};

use super::hash::Table;
use super::wire::{GREETING, Operation, Status, message, parts, read_frame, write_frame};
use super::{DEFAULT_STORE_TIMEOUT, Store, timed_out};

/// The time between a client's attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// The time that an answer may arrive after the timeout of its wait.
const SLACK: Duration = Duration::from_secs(30);

/// The time that a greeting may take.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// A store whose values are kept by one process and reached by all through TCP (`torch.distributed.TCPStore`, with a different
/// protocol).
///
/// The traffic is neither encrypted nor authenticated: use the port only in a network of machines that trust each other.
#[derive(Debug)]
pub struct TcpStore {
    address: SocketAddr,
    timeout: Duration,
    /// Connections that are not in use: a thread that waits for a key does not block the requests of others.
    idle: Mutex<Vec<TcpStream>>,
    /// The server, which ends with the store.
    _server: Option<Server>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl TcpStore {
    /// Starts a server at an address and connects to it; port 0 selects a free one ([`TcpStore::address`]).
    ///
    /// # Errors
    /// [`Error::is_distributed`] if the port cannot be bound.
    pub fn serve(address: impl ToSocketAddrs, timeout: Duration) -> Result<Self> {
        let listener = TcpListener::bind(address).map_err(|error| {
            Error::distributed(format!(
                "the store's server cannot listen: {error}. Choose another port with THALWEG_STORE_PORT"
            ))
        })?;
        let bound = listener.local_addr().map_err(|error| broken("local_addr", &error))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let started = Builder::new().name("store-server".to_owned()).spawn(move || accept(&listener, &over));
        started.map_err(|error| broken("the server's thread", &error))?;
        let mut own = bound;
        if own.ip().is_unspecified() {
            own.set_ip(if own.is_ipv4() {
                [127, 0, 0, 1].into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        let server = Some(Server { address: own, is_over });
        Self { address: own, timeout, idle: Mutex::default(), _server: server }.greeted()
    }

    /// Connects to the server at an address, which it waits for.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if no server answers in time, or the server is of another kind.
    pub fn connect(address: &str, timeout: Duration) -> Result<Self> {
        let begin = Instant::now();
        let mut last = "there is no such address".to_owned();
        loop {
            match address.to_socket_addrs() {
                Err(error) => last = error.to_string(),
                Ok(addresses) => {
                    for address in addresses {
                        match connect_and_greet(address, timeout.saturating_sub(begin.elapsed())) {
                            Ok(connection) => {
                                let idle = Mutex::new(vec![connection]);
                                return Self { address, timeout, idle, _server: None }.greeted();
                            }
                            Err(error) => last = error.to_string(),
                        }
                    }
                }
            }
            if begin.elapsed() >= timeout {
                return Err(Error::distributed(format!(
                    "no store answers at {address} after {} ms: {last}. Rank 0 serves it: is it running, and is MASTER_ADDR its \
                     machine?",
                    timeout.as_millis()
                )));
            }
            std::thread::sleep(RETRY.min(timeout.saturating_sub(begin.elapsed())));
        }
    }

    /// Returns the address of the server, as this process reaches it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the store once a request has been answered.
    fn greeted(self) -> Result<Self> {
        self.num_keys()?;
        Ok(self)
    }

    fn request(
        &self,
        operation: Operation,
        fields: &[&[u8]],
        patience: Duration,
    ) -> Result<(Status, Vec<u8>)> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect_and_greet(self.address, self.timeout)
                .map_err(|error| Error::distributed(self.text(operation, &error)))?,
        };
        let answered = exchange(&mut connection, &message(operation as u8, fields), patience + SLACK);
        let answer = answered.map_err(|error| Error::distributed(self.text(operation, &error)))?;
        // A connection is not used again after an error.
        self.idle.lock().push(connection);
        let (status, field) = match parts(&answer) {
            Some((0, fields)) => (Status::Done, fields),
            Some((1, fields)) => (Status::Missing, fields),
            Some((_, fields)) => (Status::Error, fields),
            None => (Status::Error, vec![&b"the answer is none"[..]]),
        };
        let field = field.first().map(|field| field.to_vec()).unwrap_or_default();
        match status {
            Status::Error => Err(Error::distributed(String::from_utf8_lossy(&field).into_owned())),
            status => Ok((status, field)),
        }
    }

    fn text(&self, operation: Operation, error: &io::Error) -> String {
        format!(
            "the store at {} does not answer ({operation:?}: {error}). Its process may have ended: rank 0 must live until all \
             ranks are done",
            self.address
        )
    }
}

fn broken(what: &str, error: &io::Error) -> Error {
    Error::distributed(format!("the store's server: {what}: {error}"))
}

/// Connects, and exchanges greetings.
fn connect_and_greet(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, timeout.max(RETRY))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_TIME))?;
    stream.write_all(GREETING)?;
    let mut answer = [0; GREETING.len()];
    let read = stream.read_exact(&mut answer);
    if read.is_err() || answer != *GREETING {
        let text =
            "what listens there is not a store of Thalweg (torchrun's own store has a port of its own)";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(stream)
}

fn exchange(stream: &mut TcpStream, message: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(patience))?;
    write_frame(stream, message)?;
    read_frame(stream)
}

/// Accepts connections until the store is dropped.
fn accept(listener: &TcpListener, is_over: &Arc<AtomicBool>) {
    let table = Arc::new(Table::default());
    for stream in listener.incoming() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(RETRY);
            continue;
        };
        let table = Arc::clone(&table);
        // Without a thread the connection is closed, and its client reports that.
        let _ = Builder::new().name("store-connection".to_owned()).spawn(move || serve(stream, &table));
    }
}

/// Answers the requests of one connection until it is closed or sends an invalid message.
fn serve(mut stream: TcpStream, table: &Table) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(GREETING_TIME));
    let mut greeting = [0; GREETING.len()];
    if stream.read_exact(&mut greeting).is_err()
        || greeting != *GREETING
        || stream.write_all(GREETING).is_err()
    {
        return;
    }
    let _ = stream.set_read_timeout(None);
    while let Ok(request) = read_frame(&mut stream) {
        if write_frame(&mut stream, &answer(table, &request)).is_err() {
            return;
        }
    }
}

fn answer(table: &Table, request: &[u8]) -> Vec<u8> {
    let nonsense = || message(Status::Error as u8, &[b"the request is none"]);
    let Some((operation, fields)) = parts(request) else { return nonsense() };
    let Some(operation) = Operation::of_byte(operation) else { return nonsense() };
    let texts: Option<Vec<&str>> = fields.iter().map(|field| std::str::from_utf8(field).ok()).collect();
    let done = |field: &[u8]| message(Status::Done as u8, &[field]);
    let missing = |field: &[u8]| message(Status::Missing as u8, &[field]);
    let key = fields.first().and_then(|field| std::str::from_utf8(field).ok());
    match (operation, key, fields.as_slice()) {
        (Operation::Set, Some(key), [_, value]) => {
            table.set(key, value);
            done(b"")
        }
        (Operation::Find, Some(key), [_]) => {
            table.find(key).map_or_else(|| missing(b""), |value| done(&value))
        }
        (Operation::Add, Some(key), [_, amount]) => {
            let Ok(amount) = (*amount).try_into().map(i64::from_le_bytes) else { return nonsense() };
            match table.add(key, amount) {
                Ok(sum) => done(&sum.to_le_bytes()),
                Err(error) => message(Status::Error as u8, &[error.to_string().as_bytes()]),
            }
        }
        (Operation::CompareSet, Some(key), [_, expected, desired]) => {
            done(&table.compare_set(key, expected, desired))
        }
        (Operation::Wait, Some(milliseconds), [_, ..]) => {
            let (Ok(milliseconds), Some(texts)) = (milliseconds.parse(), texts) else { return nonsense() };
            match table.wait(&texts[1..], Duration::from_millis(milliseconds)) {
                late if late.is_empty() => done(b""),
                late => missing(late.join("\n").as_bytes()),
            }
        }
        (Operation::DeleteKey, Some(key), [_]) => done(&[u8::from(table.delete_key(key))]),
        (Operation::NumKeys, None, []) => done(&(table.num_keys() as u64).to_le_bytes()),
        _ => nonsense(),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect_timeout(&self.address, RETRY);
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.request(Operation::Set, &[key.as_bytes(), value], self.timeout).map(drop)
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let (status, value) = self.request(Operation::Find, &[key.as_bytes()], self.timeout)?;
        Ok(Some(value).filter(|_| status == Status::Done))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let (_, sum) =
            self.request(Operation::Add, &[key.as_bytes(), &amount.to_le_bytes()], self.timeout)?;
        let sum = sum.try_into().map(i64::from_le_bytes);
        sum.map_err(|_| Error::distributed("add: the answer is not a number"))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let fields = [key.as_bytes(), expected, desired];
        self.request(Operation::CompareSet, &fields, self.timeout).map(|(_, value)| value)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let milliseconds = timeout.as_millis().min(u128::from(u64::MAX)).to_string();
        let mut fields = vec![milliseconds.as_bytes()];
        fields.extend(keys.iter().map(|key| key.as_bytes()));
        let (status, missing) = self.request(Operation::Wait, &fields, timeout)?;
        if status == Status::Done {
            return Ok(());
        }
        let missing = String::from_utf8_lossy(&missing).into_owned();
        let missing: Vec<&str> = missing.lines().collect();
        Err(timed_out(&missing, timeout, &format_args!("TcpStore at {}", self.address)))
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        let (_, answer) = self.request(Operation::DeleteKey, &[key.as_bytes()], self.timeout)?;
        Ok(answer == [1])
    }

    fn num_keys(&self) -> Result<usize> {
        let (_, count) = self.request(Operation::NumKeys, &[], DEFAULT_STORE_TIMEOUT)?;
        let count = count.try_into().map(u64::from_le_bytes);
        count
            .map(|count| count as usize)
            .map_err(|_| Error::distributed("num_keys: the answer is not a number"))
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
