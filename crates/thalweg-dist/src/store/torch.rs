//! A client of PyTorch's `TCPStore`, so that ranks can use the store that `torchrun` already serves.
//!
//! A request is a byte for its kind, followed by its fields: keys and values as a 64-bit length and their bytes, and 64-bit
//! numbers, all in the machine's byte order. PyTorch's clients put `/` before each key, and so does this one: both see the same
//! keys.
//!
//! A wait polls instead of blocking at the server, so that a wait that timed out need not be cancelled.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result};

use super::{Store, number, timed_out};

/// The number by which the server recognizes a client.
const MAGIC: u32 = 0x3C85_F7CE;
/// The kinds of requests, by PyTorch's numbers.
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const COMPARE_SET: u8 = 2;
const GET: u8 = 3;
const ADD: u8 = 4;
const CHECK: u8 = 5;
const COUNT: u8 = 7;
const DELETE: u8 = 8;
/// The maximum length of a value; a longer one is an error.
const MOST: u64 = 1 << 30;
/// The time between two polls of a wait, and between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
/// The time that an answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// A client of the store that PyTorch's `TCPStore` serves, under `torchrun` at `MASTER_ADDR:MASTER_PORT`.
#[derive(Debug)]
pub struct TorchStore {
    address: String,
    timeout: Duration,
    /// The connection; `None` after an error, because an answer may still arrive on it.
    connection: Mutex<Option<TcpStream>>,
}

impl TorchStore {
    /// Connects to the server at an address, which it waits for.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if no server answers in time, or the server does not speak PyTorch's protocol.
    pub fn connect(address: &str, timeout: Duration) -> Result<Self> {
        let begin = Instant::now();
        loop {
            let last = match greeted(address) {
                Ok(stream) => {
                    let connection = Mutex::new(Some(stream));
                    return Ok(Self { address: address.to_owned(), timeout, connection });
                }
                Err(error) => error,
            };
            if begin.elapsed() >= timeout {
                return Err(Error::distributed(format!(
                    "no TCPStore of PyTorch answers at {address} after {} ms: {last}",
                    timeout.as_millis()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn request<T>(
        &self,
        what: &str,
        request: &[u8],
        answer: impl FnOnce(&mut TcpStream) -> io::Result<T>,
    ) -> Result<T> {
        let refuse = |error: io::Error| {
            Error::distributed(format!(
                "PyTorch's TCPStore at {} does not answer ({what}: {error}). Its process may have ended",
                self.address
            ))
        };
        let mut connection = self.connection.lock();
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => greeted(&self.address).map_err(refuse)?,
        };
        let answered = stream.write_all(request).and_then(|()| answer(&mut stream)).map_err(refuse)?;
        *connection = Some(stream);
        Ok(answered)
    }
}

/// Connects and sends the client's magic number. The server closes connections that send anything else.
fn greeted(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no such address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ANSWER) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER))?;
                let mut greeting = vec![VALIDATE];
                greeting.extend(MAGIC.to_ne_bytes());
                // A query, so that another kind of server is noticed here.
                greeting.push(COUNT);
                stream.write_all(&greeting)?;
                read_number(&mut stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_number(stream: &mut TcpStream) -> io::Result<i64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(i64::from_ne_bytes(bytes))
}

fn read_value(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = read_number(stream)?;
    let Some(length) = u64::try_from(length).ok().filter(|&length| length <= MOST) else {
        let text = format!("a value of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    };
    let mut value = vec![0; length as usize];
    stream.read_exact(&mut value)?;
    Ok(value)
}

/// Returns a request with a key and values.
fn request(kind: u8, key: &str, values: &[&[u8]]) -> Vec<u8> {
    let key = format!("/{key}");
    let mut request = vec![kind];
    for field in std::iter::once(key.as_bytes()).chain(values.iter().copied()) {
        request.extend((field.len() as u64).to_ne_bytes());
        request.extend(field);
    }
    request
}

impl Store for TorchStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        // The server does not answer a set. The next query on the connection is processed after it.
        let mut both = request(SET, key, &[value]);
        both.push(COUNT);
        self.request("set", &both, read_number).map(drop)
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>> {
        if !self.check(&[key])? {
            return Ok(None);
        }
        self.request("get", &request(GET, key, &[]), read_value).map(Some)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        // PyTorch's server takes a value that is not a number as 0, or exits.
        if let Some(value) = self.find(key)? {
            number(key, &value)?;
        }
        let mut add = request(ADD, key, &[]);
        add.extend(amount.to_ne_bytes());
        self.request("add", &add, read_number)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.request("compare_set", &request(COMPARE_SET, key, &[expected, desired]), read_value)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        while !self.check(keys)? {
            if begin.elapsed() >= timeout {
                let mut missing = Vec::new();
                for &key in keys {
                    if !self.check(&[key])? {
                        missing.push(key);
                    }
                }
                return Err(timed_out(
                    &missing,
                    timeout,
                    &format_args!("PyTorch's TCPStore at {}", self.address),
                ));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        self.request("delete_key", &request(DELETE, key, &[]), read_number).map(|count| count > 0)
    }

    fn num_keys(&self) -> Result<usize> {
        self.request("num_keys", &[COUNT], read_number).map(|count| count.max(0) as usize)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let mut check = vec![CHECK];
        check.extend((keys.len() as u64).to_ne_bytes());
        keys.iter().for_each(|key| check.extend(&request(CHECK, key, &[])[1..]));
        let mut ready = [0];
        self.request("check", &check, |stream| stream.read_exact(&mut ready)).map(|()| ready == [0])
    }
}
