//! [`HashStore`]: a store in memory, and the table that a server keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_lock::{Condvar, Mutex, MutexGuard};
use thalweg_runtime::Result;

use super::{DEFAULT_STORE_TIMEOUT, Store, number, timed_out};

/// A store for threads of one process (`torch.distributed.HashStore`). A clone is the same store.
#[derive(Clone, Debug)]
pub struct HashStore {
    table: Arc<Table>,
    timeout: Duration,
}

/// Keys, values, and the connections that wait for them.
#[derive(Default, Debug)]
pub(super) struct Table {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Table {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.values.lock()
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) {
        self.values().insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
    }

    pub(super) fn find(&self, key: &str) -> Option<Vec<u8>> {
        self.values().get(key).cloned()
    }

    pub(super) fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let mut values = self.values();
        let former = values.get(key).map_or(Ok(0), |value| number(key, value))?;
        let sum = former.wrapping_add(amount);
        values.insert(key.to_owned(), sum.to_string().into_bytes());
        drop(values);
        self.changed.notify_all();
        Ok(sum)
    }

    pub(super) fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Vec<u8> {
        let mut values = self.values();
        let found = values.get(key).cloned();
        if found.as_deref().unwrap_or_default() == expected {
            values.insert(key.to_owned(), desired.to_vec());
            drop(values);
            self.changed.notify_all();
            return desired.to_vec();
        }
        found.unwrap_or_else(|| expected.to_vec())
    }

    /// Waits for keys, and returns those that were not set in time.
    pub(super) fn wait<'k>(&self, keys: &[&'k str], timeout: Duration) -> Vec<&'k str> {
        let begin = Instant::now();
        let mut values = self.values();
        loop {
            let missing: Vec<&str> = keys.iter().copied().filter(|key| !values.contains_key(*key)).collect();
            let left = timeout.saturating_sub(begin.elapsed());
            if missing.is_empty() || left.is_zero() {
                return missing;
            }
            let waited = self.changed.wait_timeout(values, left);
            values = waited.0;
        }
    }

    pub(super) fn delete_key(&self, key: &str) -> bool {
        self.values().remove(key).is_some()
    }

    pub(super) fn num_keys(&self) -> usize {
        self.values().len()
    }
}

impl Default for HashStore {
    fn default() -> Self {
        Self::new()
    }
}

impl HashStore {
    /// Creates an empty store that waits for 5 minutes.
    pub fn new() -> Self {
        Self::with_timeout(DEFAULT_STORE_TIMEOUT)
    }

    /// Creates an empty store with a timeout for waits.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self { table: Arc::default(), timeout }
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.table.set(key, value);
        Ok(())
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.table.find(key))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.table.add(key, amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(self.table.compare_set(key, expected, desired))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let missing = self.table.wait(keys, timeout);
        if missing.is_empty() { Ok(()) } else { Err(timed_out(&missing, timeout, &"HashStore")) }
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        Ok(self.table.delete_key(key))
    }

    fn num_keys(&self) -> Result<usize> {
        Ok(self.table.num_keys())
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn is_in_process(&self) -> bool {
        true
    }
}
