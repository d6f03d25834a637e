//! [`FileStore`]: a file that all processes can open.
//!
//! The file is a list of records, each a message of the [wire](super::wire) protocol. A process that sets a value appends one,
//! and the last record of a key is valid. Every call holds the file's lock (`flock`), so the file system must have locks.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thalweg_runtime::{Error, Result};

use super::wire::{message, parts, read_frame, write_frame};
use super::{DEFAULT_STORE_TIMEOUT, Store, number, timed_out};

/// The time between two checks of the file.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

const SET: u8 = 1;
const DELETE: u8 = 2;

/// A store in a file (`torch.distributed.FileStore`). Each start of a program needs a new file, which is not deleted.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    timeout: Duration,
}

type Values = BTreeMap<String, Vec<u8>>;

impl FileStore {
    /// Opens the store in a file, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if the file cannot be opened or is not a store.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with_timeout(path, DEFAULT_STORE_TIMEOUT)
    }

    /// Opens the store in a file with a timeout for waits.
    pub fn with_timeout(path: impl AsRef<Path>, timeout: Duration) -> Result<Self> {
        let store = Self { path: path.as_ref().to_owned(), timeout };
        store.num_keys()?;
        Ok(store)
    }

    /// Runs a call on the values under the lock, and appends the record that it returns, if any.
    fn locked<T>(&self, call: impl FnOnce(&Values) -> Result<(T, Option<Vec<u8>>)>) -> Result<T> {
        let opened = || -> io::Result<(File, Values)> {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
            file.lock()?;
            let values = read(&mut file)?;
            Ok((file, values))
        };
        let failed = |error: io::Error| {
            Error::distributed(format!("the store in {}: {error}. Is it a new file?", self.path.display()))
        };
        let (mut file, values) = opened().map_err(failed)?;
        let (answer, record) = call(&values)?;
        if let Some(record) = record {
            write_frame(&mut file, &record).map_err(failed)?;
        }
        Ok(answer)
    }
}

fn read(file: &mut File) -> io::Result<Values> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let (mut rest, mut values) = (bytes.as_slice(), Values::new());
    while !rest.is_empty() {
        let record = read_frame(&mut rest)?;
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "a record that is none");
        let (kind, fields) = parts(&record).ok_or_else(nonsense)?;
        let key = fields.first().and_then(|key| std::str::from_utf8(key).ok()).ok_or_else(nonsense)?;
        match (kind, fields.as_slice()) {
            (SET, [_, value]) => _ = values.insert(key.to_owned(), value.to_vec()),
            (DELETE, [_]) => _ = values.remove(key),
            _ => return Err(nonsense()),
        }
    }
    Ok(values)
}

fn set(key: &str, value: &[u8]) -> Option<Vec<u8>> {
    Some(message(SET, &[key.as_bytes(), value]))
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.locked(|_| Ok(((), set(key, value))))
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.locked(|values| Ok((values.get(key).cloned(), None)))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.locked(|values| {
            let former = values.get(key).map_or(Ok(0), |value| number(key, value))?;
            let sum = former.wrapping_add(amount);
            Ok((sum, set(key, sum.to_string().as_bytes())))
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.locked(|values| {
            let found = values.get(key);
            if found.map(Vec::as_slice).unwrap_or_default() == expected {
                return Ok((desired.to_vec(), set(key, desired)));
            }
            Ok((found.map_or_else(|| expected.to_vec(), Clone::clone), None))
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            let missing: Vec<&str> = self.locked(|values| {
                Ok((keys.iter().copied().filter(|key| !values.contains_key(*key)).collect(), None))
            })?;
            if missing.is_empty() {
                return Ok(());
            }
            if begin.elapsed() >= timeout {
                return Err(timed_out(
                    &missing,
                    timeout,
                    &format_args!("FileStore in {}", self.path.display()),
                ));
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        self.locked(|values| {
            let is_there = values.contains_key(key);
            Ok((is_there, is_there.then(|| message(DELETE, &[key.as_bytes()]))))
        })
    }

    fn num_keys(&self) -> Result<usize> {
        self.locked(|values| Ok((values.len(), None)))
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
