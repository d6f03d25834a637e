//! Stores: keys and values that all ranks see (`torch.distributed.Store`). Ranks find each other through a store.
//!
//! - [`HashStore`]: for threads of one process.
//! - [`TcpStore`]: a server in one process, clients in the others.
//! - [`TorchStore`]: a client of the server of PyTorch's `TCPStore`, for example under `torchrun`.
//! - [`FileStore`]: a file that all processes can open.
//! - [`PrefixStore`]: a part of another store.
//!
//! A value is a byte string. Waits have a limit ([`Store::timeout`]), and an error that names the key.

mod file;
mod hash;
mod prefix;
mod tcp;
mod torch;
mod wire;

use std::fmt::Debug;
use std::time::Duration;

use thalweg_runtime::{Error, Result};

pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use tcp::TcpStore;
pub use torch::TorchStore;

/// The time that a store waits by default: PyTorch's 5 minutes.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// Keys and values that all ranks see. Every call *blocks*.
///
/// # Errors
/// [`Error::is_distributed`] from every call if the store cannot be reached, or a key was not set in time.
pub trait Store: Send + Sync + Debug {
    /// Sets the value of a key.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Returns the value of a key, for which it waits up to [`timeout`](Self::timeout).
    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.wait(&[key], self.timeout())?;
        match self.find(key)? {
            Some(value) => Ok(value),
            None => Err(Error::distributed(format!("get: the key \"{key}\" was deleted while it was read"))),
        }
    }

    /// Returns the value of a key if it has one now.
    fn find(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Adds to the number of a key, which is 0 if it is not set, and returns the sum. The value is stored as decimal digits.
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Sets the value of a key if its value is `expected`, and returns the resulting value. A key that is not set counts as an
    /// empty value; if it remains unset, the result is `expected`.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>>;

    /// Waits until all keys are set.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;

    /// Removes a key, and returns whether it was set.
    fn delete_key(&self, key: &str) -> Result<bool>;

    /// Returns the number of keys.
    fn num_keys(&self) -> Result<usize>;

    /// Returns the time that [`get`](Self::get) waits at most.
    fn timeout(&self) -> Duration;

    /// Returns whether a call costs no more than a lock. Ranks then publish every call at once.
    fn is_in_process(&self) -> bool {
        false
    }

    /// Returns whether all keys are set now.
    fn check(&self, keys: &[&str]) -> Result<bool> {
        for key in keys {
            if self.find(key)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the error of a wait that took too long.
fn timed_out(keys: &[&str], timeout: Duration, whose: &dyn std::fmt::Display) -> Error {
    let list: Vec<String> = keys.iter().map(|key| format!("\"{key}\"")).collect();
    Error::distributed(format!(
        "wait timeout after {} ms, keys: {} ({whose}). A rank that should set it has not come",
        timeout.as_millis(),
        list.join(", ")
    ))
}

/// Parses the number that [`Store::add`] wrote.
fn number(key: &str, value: &[u8]) -> Result<i64> {
    let text = std::str::from_utf8(value).ok().map(str::trim);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::distributed(format!("add: the value of \"{key}\" is not a number")))
}
